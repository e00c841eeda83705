//! How many connections a direct lane has. Each of them is a *stripe*.
//!
//! A TCP connection takes a packet that was lost for a sign of a full line, and sends less. Where packets are lost for other reasons, as on
//! radio, one connection uses a small part of the line, and each further connection as much again. A connection is also limited by the
//! window that the system gives it.
//!
//! # How it works
//! 1. What counts is the throughput: what was acknowledged while frames waited for the line, by the time in which they waited.
//! 2. It is measured with as many stripes as there are, and then with twice as many, or else half as many more. Where frames already take
//!    much longer than a round trip, four times as many are tried first, for half as long.
//! 3. With `m` stripes instead of `k` the throughput grows by `m / k` where each connection is limited by itself. Beside one connection of
//!    somebody else on a full line, it grows by `(m / (m + 1)) / (k / (k + 1))`, and only because the other one gets less. Between the two
//!    lies the limit, `m / k` times `(k + 1) / (m + 1)` to the power of 0.65. Above it, the added stripes are kept, and more are tried.
//!    Beside one or two connections of others a lane so keeps one. Beside many, it cannot tell: with eight of them, it keeps sixteen.
//! 4. Losses come at random, so a trial takes up to three times as long where the throughput is near the limit.
//! 5. A peer that sends to several others at once has several connections already, and more on one lane would take from its other lanes. So a
//!    lane has one where others wait at the same time. The receiver refuses more where others send much to it (`direct/joins.rs`).
//! 6. After a pause, which doubles from a quarter of a minute to half an hour, half as many are tried, by the same limit, and after the
//!    next pause more. While frames take much longer than a round trip, the pause before fewer is four times as long, and half an hour at
//!    most.
//!
//! # Reading
//! Hacker, Athey & Noble, *The End-to-End Performance Effects of Parallel TCP Sockets on a Lossy Wide-Area Network*, 2002.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use peergrad_core::io::Line;
use tokio::time::Instant;

use super::STRIPES_MAX;

/// What was acknowledged while frames waited for the line, and how long they waited.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Throughput {
    pub(super) byte_count: u64,
    pub(crate) time: Duration,
    /// How long frames of other lanes waited meanwhile, in all.
    pub(crate) others: Duration,
}

/// How long frames of all direct lanes of this peer have waited, in all.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitingTime(Arc<AtomicU64>);

/// The part of one lane in that.
#[derive(Debug)]
pub(crate) struct LaneWaiting {
    all: WaitingTime,
    /// What this lane has added to it.
    own: Duration,
    /// The lane's own sum when that was last added.
    counted: Duration,
}

/// Measures throughput.
#[derive(Debug, Default)]
pub(super) struct ThroughputMeter {
    sum: Throughput,
    /// Since when frames wait; `None` if none does.
    waiting_since: Option<Instant>,
}

/// Finds how many stripes a lane should have.
#[derive(Debug)]
pub(crate) struct StripeSearch {
    /// How many are kept.
    count: usize,
    phase: Phase,
    /// The pause after the next trials.
    pause: Duration,
    /// Whether fewer are tried next.
    tries_fewer: bool,
    /// Whether frames take much longer than a round trip, probably because packets are lost.
    resends_packets: bool,
    /// The throughput when other lanes were last considered.
    looked_at: Throughput,
}

/// What the search does now. `from` is the throughput when that began.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// It measures with the stripes that are kept, once they have settled.
    Measuring { from: Throughput, begin: Instant, is_settled: bool },
    /// It measures with another number, once that has settled.
    Trying { count: usize, from: Throughput, begin: Instant, is_settled: bool, before: f64 },
    /// It waits until this time, or the later one before a trial that probably fails.
    Resting(Instant, Instant),
}

impl ThroughputMeter {
    /// Frames wait from now on, or none does.
    pub(super) fn note_waiting(&mut self, now: Instant, is_waiting: bool) {
        self.sum.time += self.waited(now);
        self.waiting_since = is_waiting.then_some(now);
    }

    pub(super) fn note_acknowledged(&mut self, byte_count: usize) {
        if self.waiting_since.is_some() {
            self.sum.byte_count += byte_count as u64;
        }
    }

    /// The sum since the beginning.
    pub(super) fn sum(&self, now: Instant) -> Throughput {
        Throughput { time: self.sum.time + self.waited(now), ..self.sum }
    }

    fn waited(&self, now: Instant) -> Duration {
        self.waiting_since.map_or(Duration::ZERO, |since| now - since)
    }
}

impl LaneWaiting {
    /// The part of a lane that begins now.
    pub(crate) fn begin(all: &WaitingTime, throughput: Throughput) -> Self {
        Self { all: all.clone(), own: Duration::ZERO, counted: throughput.time }
    }

    /// Takes in the lane's throughput, and returns it with the time of the others.
    pub(crate) fn note(&mut self, throughput: Throughput) -> Throughput {
        let news = throughput.time.saturating_sub(self.counted);
        self.counted = throughput.time;
        self.own += news;
        let news = u64::try_from(news.as_micros()).unwrap_or(u64::MAX);
        let all = self.all.0.fetch_add(news, Ordering::Relaxed).saturating_add(news);
        Throughput { others: Duration::from_micros(all).saturating_sub(self.own), ..throughput }
    }
}

impl Throughput {
    fn since(self, from: Self) -> Self {
        Self {
            byte_count: self.byte_count.saturating_sub(from.byte_count),
            time: self.time.saturating_sub(from.time),
            others: self.others.saturating_sub(from.others),
        }
    }

    fn bytes_per_second(self) -> f64 {
        self.byte_count as f64 / self.time.as_secs_f64()
    }
}

impl StripeSearch {
    /// A search that begins with so many stripes, when this is the throughput so far.
    pub(crate) fn new(now: Instant, count: usize, from: Throughput) -> Self {
        let phase = Phase::Measuring { from, begin: now, is_settled: false };
        Self { count, phase, pause: PAUSE_MIN, tries_fewer: false, resends_packets: false, looked_at: from }
    }

    /// How many stripes are kept.
    pub(crate) fn kept(&self) -> usize {
        self.count
    }

    /// Not all connections could be opened: the lane has so many now. Those beyond what was kept are tried instead.
    pub(crate) fn note_failure(&mut self, now: Instant, opened: usize) {
        if let Phase::Trying { count, .. } = &mut self.phase
            && opened > self.count
        {
            *count = opened;
            return;
        }
        self.count = self.count.min(opened).max(1);
        self.rest(now);
    }

    /// How many stripes the lane should have now.
    pub(crate) fn wanted(&self) -> usize {
        match self.phase {
            Phase::Trying { count, .. } => count,
            Phase::Measuring { .. } | Phase::Resting(..) => self.count,
        }
    }

    /// Takes in the throughput of the lane so far, over this line.
    pub(crate) fn note(&mut self, now: Instant, sum: Throughput, line: Line) {
        let round_trip = line.round_trip;
        // A short line loses too little for too short a time.
        if round_trip < ROUND_TRIP_MIN {
            self.count = 1;
            self.phase = Phase::Measuring { from: sum, begin: now, is_settled: false };
            return;
        }
        if self.is_shared(sum) {
            self.count = 1;
            self.phase = Phase::Resting(now + PAUSE_MIN, now + PAUSE_MIN);
            return;
        }
        self.resends_packets = line.resends_packets();
        let trial_min = TRIAL_MIN.max(TRIAL_ROUND_TRIPS * round_trip);
        match self.phase {
            Phase::Resting(until, later) if now < if self.expects_failure() { later } else { until } => {}
            Phase::Resting(..) => self.phase = Phase::Measuring { from: sum, begin: now, is_settled: true },
            Phase::Measuring { from, is_settled: false, .. } => {
                if is_settled(sum, from, round_trip) {
                    self.phase = Phase::Measuring { from: sum, begin: now, is_settled: true };
                }
            }
            Phase::Measuring { from, begin, .. } => match measured(sum, from, now - begin, trial_min) {
                Some(trial) => self.begin_trials(now, sum, trial.bytes_per_second()),
                // Old and new together would be neither.
                None if now - begin > MEASURING_MAX => {
                    self.phase = Phase::Measuring { from: sum, begin: now, is_settled: true }
                }
                None => {}
            },
            Phase::Trying { count, from, begin, is_settled: false, before } => {
                if is_settled(sum, from, round_trip) {
                    self.phase = Phase::Trying { count, from: sum, begin: now, is_settled: true, before };
                } else if now - begin > MEASURING_MAX {
                    self.rest(now);
                }
            }
            Phase::Trying { count, from, begin, before, .. } => {
                let is_far = count >= 4 * self.count;
                let least = if is_far { trial_min / 2 } else { trial_min };
                if let Some(trial) = measured(sum, from, now - begin, least) {
                    self.judge(now, sum, count, before, trial);
                } else if now - begin > MEASURING_MAX {
                    self.rest(now);
                }
            }
        }
    }

    /// Whether other lanes of this peer have sent at the same time recently.
    fn is_shared(&mut self, sum: Throughput) -> bool {
        let since = sum.since(self.looked_at);
        if since.time < SHARED_TIME {
            return false;
        }
        self.looked_at = sum;
        since.others > since.time / 4
    }

    fn begin_trials(&mut self, now: Instant, sum: Throughput, rate: f64) {
        let fewer = self.tries_fewer && self.count > 1;
        let count = if fewer { self.count / 2 } else { self.growth() * self.count };
        self.try_count(now, sum, count, rate);
    }

    fn try_count(&mut self, now: Instant, sum: Throughput, count: usize, before: f64) {
        let count = count.min(STRIPES_MAX);
        if count == self.count {
            self.rest(now);
        } else {
            self.phase = Phase::Trying { count, from: sum, begin: now, is_settled: false, before };
        }
    }

    /// Decides whether to keep `tried` stripes, with this throughput, or those that had `before` bytes per second.
    fn judge(&mut self, now: Instant, sum: Throughput, tried: usize, before: f64, trial: Throughput) {
        let (kept, rate) = (self.count, trial.bytes_per_second());
        let (fewer, more) = (kept.min(tried), kept.max(tried));
        let gain = if tried == more { rate / before } else { before / rate };
        let excess = (gain / gain_min(fewer, more)).ln();
        if excess.abs() < CLOSE && trial.time < 3 * TRIAL_MIN {
            return;
        }
        match (excess > 0.0, tried == more) {
            (true, true) => {
                self.count = tried;
                self.pause = PAUSE_MIN;
                self.try_count(now, sum, self.growth() * tried, rate);
            }
            (false, true) if tried > 2 * kept => self.try_count(now, sum, 2 * kept, before),
            (false, true) if tried == 2 * kept && kept > 1 => {
                self.try_count(now, sum, kept + kept / 2, before);
            }
            (false, false) => {
                self.count = tried;
                self.rest(now);
            }
            _ => self.rest(now),
        }
    }

    /// How many times as many are tried first.
    fn growth(&self) -> usize {
        if self.resends_packets { 4 } else { 2 }
    }

    /// Whether the next trial is one of fewer, which probably fails.
    fn expects_failure(&self) -> bool {
        self.tries_fewer && self.count > 1 && self.resends_packets
    }

    fn rest(&mut self, now: Instant) {
        self.tries_fewer = !self.tries_fewer;
        self.phase = Phase::Resting(now + self.pause, now + (RESENDING_PAUSES * self.pause).min(PAUSE_MAX));
        self.pause = (2 * self.pause).min(PAUSE_MAX);
    }
}

/// Whether connections that began at `from` have found their rates.
fn is_settled(sum: Throughput, from: Throughput, round_trip: Duration) -> bool {
    sum.since(from).time >= SETTLING_MIN.max(SETTLING_ROUND_TRIPS * round_trip)
}

/// The throughput since `from`, if at least for so long frames have waited.
fn measured(sum: Throughput, from: Throughput, passed: Duration, least: Duration) -> Option<Throughput> {
    let since = sum.since(from);
    let is_enough = since.time >= least
        // Where frames wait rarely, the line is not what steps wait for.
        && since.time >= passed / 5;
    is_enough.then_some(since)
}

/// By which factor the throughput must grow with `m` stripes instead of `k`.
fn gain_min(k: usize, m: usize) -> f64 {
    let (k, m) = (k as f64, m as f64);
    m / k * ((k + 1.0) / (m + 1.0)).powf(0.65)
}

/// For how long frames must have waited before other lanes count.
const SHARED_TIME: Duration = Duration::from_secs(1);
/// Below it, a connection recovers from a lost packet quickly enough.
const ROUND_TRIP_MIN: Duration = Duration::from_millis(5);
/// For how long frames must have waited in a trial.
const TRIAL_MIN: Duration = Duration::from_secs(10);
const TRIAL_ROUND_TRIPS: u32 = 60;
/// A connection that begins is slow at first, and then fast until it loses its first packets.
const SETTLING_MIN: Duration = Duration::from_secs(6);
const SETTLING_ROUND_TRIPS: u32 = 60;
/// How long a trial may take, with pauses.
const MEASURING_MAX: Duration = Duration::from_secs(120);
const PAUSE_MIN: Duration = Duration::from_secs(15);
const PAUSE_MAX: Duration = Duration::from_secs(1800);
/// So many pauses come before fewer are tried where packets are probably lost.
const RESENDING_PAUSES: u32 = 4;
/// The logarithm of a factor: so near the limit, a trial takes longer.
const CLOSE: f64 = 0.2;

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: Duration = Duration::from_millis(100);
    const LINE: Line = Line { round_trip: ROUND_TRIP, frame_time: ROUND_TRIP, bytes_per_second: 1_000_000 };
    /// Frames wait for packets that are sent again.
    const LOSSY: Line = Line { frame_time: Duration::from_millis(250), ..LINE };

    /// A lane over a line whose throughput is `rate` of the number of stripes, for so many seconds. Returns the numbers that it had.
    fn searched(search: &mut StripeSearch, rate: impl Fn(usize) -> f64, seconds: u64) -> Vec<usize> {
        searched_over(LINE, search, rate, seconds)
    }

    fn searched_over(
        line: Line,
        search: &mut StripeSearch,
        rate: impl Fn(usize) -> f64,
        seconds: u64,
    ) -> Vec<usize> {
        let (begin, mut sum) = (Instant::now(), Throughput::default());
        search.looked_at = sum;
        search.phase = Phase::Measuring { from: sum, begin, is_settled: true };
        let mut counts = vec![search.wanted()];
        for tick in 1..4 * seconds {
            let now = begin + Duration::from_millis(250 * tick);
            let count = search.wanted();
            sum.time += Duration::from_millis(200);
            sum.byte_count += (rate(count) / 5.0) as u64;
            search.note(now, sum, line);
            if counts.last() != Some(&search.wanted()) {
                counts.push(search.wanted());
            }
        }
        counts
    }

    fn search() -> StripeSearch {
        StripeSearch::new(Instant::now(), 1, Throughput::default())
    }

    #[test]
    fn where_each_connection_is_limited_the_lane_gets_many() {
        let counts = searched(&mut search(), |count| 1e6 * count as f64, 120);
        assert_eq!(counts, [1, 2, 4, 8, 16]);
    }

    #[test]
    fn where_packets_are_evidently_lost_the_lane_soon_gets_many() {
        let counts = searched_over(LOSSY, &mut search(), |count| 1e6 * count as f64, 55);
        assert_eq!(counts, [1, 4, 16]);
        let counts = searched_over(LOSSY, &mut search(), |count| (1e6 * count as f64).min(2.2e6), 150);
        assert_eq!(counts[..3], [1, 4, 2], "four are hardly better than two");
    }

    #[test]
    fn where_packets_are_lost_fewer_are_tried_after_a_longer_pause() {
        let begin = Instant::now();
        let sum = Throughput::default();
        for (line, count, seconds) in [(LINE, 4, 15), (LOSSY, 4, 60), (LOSSY, 1, 15)] {
            let mut search = StripeSearch::new(begin, count, sum);
            search.rest(begin);
            assert!(search.tries_fewer);
            search.note(begin + Duration::from_secs(seconds - 1), sum, line);
            assert!(matches!(search.phase, Phase::Resting(..)), "{count}");
            search.note(begin + Duration::from_secs(seconds), sum, line);
            assert!(matches!(search.phase, Phase::Measuring { .. }), "{count}");
        }
    }

    #[test]
    fn those_that_could_be_opened_are_tried() {
        let (now, sum) = (Instant::now(), Throughput::default());
        let mut search = StripeSearch::new(now, 4, sum);
        search.try_count(now, sum, 16, 1e6);
        search.note_failure(now, 10);
        assert_eq!((search.wanted(), search.kept()), (10, 4));
        search.note_failure(now, 3);
        assert_eq!((search.wanted(), search.kept()), (3, 3));
    }

    #[test]
    fn the_line_itself_limits_how_many_help() {
        let counts = searched(&mut search(), |count| (1e6 * count as f64).min(5.2e6), 220);
        assert_eq!(counts, [1, 2, 4, 8, 6, 12, 9, 6], "with 12 and 9 the line is no fuller than with 6");
    }

    #[test]
    fn a_line_that_one_connection_fills_is_tried_ever_more_rarely() {
        let counts = searched(&mut search(), |_| 2e7, 4 * 3600);
        assert!(counts.iter().all(|count| *count <= 2));
        assert!((16..36).contains(&counts.len()), "{counts:?}");
    }

    #[test]
    fn beside_one_connection_of_others_a_lane_keeps_one() {
        for others in [1.0, 2.0, 5.0] {
            let shared = |count| 2e7 * count as f64 / (count as f64 + others);
            let counts = searched(&mut search(), shared, 1000);
            let kept = *counts.last().unwrap();
            assert!(others > 1.0 || kept == 1, "{counts:?}");
            assert!(kept as f64 <= 2.0 * others, "{kept} beside {others}");
        }
    }

    #[test]
    fn when_packets_are_no_longer_lost_the_lane_gets_fewer_again() {
        let mut search = search();
        searched(&mut search, |count| 1e6 * count as f64, 120);
        assert_eq!(search.wanted(), 16);
        let begin = Instant::now();
        search.phase = Phase::Resting(begin, begin);
        let counts = searched(&mut search, |_| 2e7, 3 * 3600);
        assert!(counts.last() == Some(&1) || counts.contains(&1), "{counts:?}");
    }

    #[test]
    fn lanes_know_how_long_others_waited() {
        let waited = |millis| Throughput { time: Duration::from_millis(millis), ..Throughput::default() };
        let all = WaitingTime::default();
        // One of them waited before this peer had others.
        let (mut one, mut other) =
            (LaneWaiting::begin(&all, waited(500)), LaneWaiting::begin(&all, waited(0)));
        assert_eq!(one.note(waited(600)).others, Duration::ZERO);
        assert_eq!(other.note(waited(30)).others, Duration::from_millis(100));
        assert_eq!(one.note(waited(700)).others, Duration::from_millis(30));
    }

    #[test]
    fn a_lane_beside_other_lanes_of_this_peer_has_one_connection() {
        let mut search = search();
        searched(&mut search, |count| 1e6 * count as f64, 120);
        assert_eq!(search.wanted(), 16);
        let (begin, mut sum) = (Instant::now(), Throughput::default());
        search.phase = Phase::Resting(begin + PAUSE_MAX, begin + PAUSE_MAX);
        search.looked_at = sum;
        for tick in 1..400 {
            sum.time += Duration::from_millis(200);
            sum.others += Duration::from_millis(100);
            sum.byte_count += 1_000_000;
            search.note(begin + Duration::from_millis(250 * tick), sum, LINE);
            assert!(tick < 8 || search.wanted() == 1, "{tick}");
        }
    }

    #[test]
    fn short_lines_and_idle_ones_have_one_connection() {
        let mut short = search();
        let begin = Instant::now();
        let mut sum = Throughput::default();
        for tick in 1..400 {
            sum.time += Duration::from_millis(200);
            sum.byte_count += 1_000_000;
            short.note(
                begin + Duration::from_millis(250 * tick),
                sum,
                Line::without_losses(Duration::from_millis(1), 1_000_000),
            );
            assert_eq!(short.wanted(), 1);
        }
        let mut idle = search();
        for tick in 1..400 {
            let waited = Throughput {
                byte_count: tick * 1000,
                time: Duration::from_millis(tick * 10),
                ..Throughput::default()
            };
            idle.note(begin + Duration::from_millis(250 * tick), waited, LINE);
            assert_eq!(idle.wanted(), 1);
        }
    }

    #[test]
    fn only_the_time_counts_in_which_frames_wait() {
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        let mut meter = ThroughputMeter::default();
        meter.note_acknowledged(7);
        meter.note_waiting(at(10), true);
        meter.note_acknowledged(100);
        assert_eq!(
            meter.sum(at(15)),
            Throughput { byte_count: 100, time: Duration::from_millis(5), ..Throughput::default() }
        );
        meter.note_waiting(at(20), false);
        meter.note_acknowledged(7);
        let sum = Throughput { byte_count: 100, time: Duration::from_millis(10), ..Throughput::default() };
        assert_eq!(meter.sum(at(99)), sum);
    }
}
