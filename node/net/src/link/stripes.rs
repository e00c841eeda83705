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
//! 5. A peer that sends to several others at once has several connections already, and more on one lane would take from its other lanes.
//!    So a lane has one where others wait at the same time, and its pauses are short again. The receiver refuses more where others send
//!    much to it (`direct/joins.rs`).
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
    /// The present pause, or the next one.
    pause: Duration,
    /// Whether fewer are tried next.
    tries_fewer: bool,
    /// Whether frames take much longer than a round trip, probably because packets are lost.
    resends_packets: bool,
    /// The throughput when other lanes were last considered.
    looked_at: Throughput,
}

/// What the search does now.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// It measures the throughput, with the stripes that are kept or in a trial.
    Measuring(Measurement),
    /// It has rested since then.
    Resting(Instant),
}

/// A measurement of the throughput.
#[derive(Clone, Copy, Debug)]
struct Measurement {
    /// The throughput when it began.
    from: Throughput,
    begin: Instant,
    /// Whether the connections had found their rates by then: before that, it only waits for them.
    is_settled: bool,
    /// What is tried; `None` with the stripes that are kept.
    trial: Option<Trial>,
}

/// Another number of stripes than what is kept.
#[derive(Clone, Copy, Debug)]
struct Trial {
    count: usize,
    /// What the stripes that are kept carried before it, in bytes per second.
    before: f64,
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
        let phase = Phase::Measuring(Measurement::begin(now, from));
        Self { count, phase, pause: PAUSE_MIN, tries_fewer: false, resends_packets: false, looked_at: from }
    }

    /// How many stripes are kept.
    pub(crate) fn kept(&self) -> usize {
        self.count
    }

    /// Not all connections could be opened: the lane has so many now. Those beyond what was kept are tried instead.
    pub(crate) fn note_failure(&mut self, now: Instant, opened: usize) {
        if let Phase::Measuring(Measurement { trial: Some(trial), .. }) = &mut self.phase
            && opened > self.count
        {
            trial.count = opened;
            return;
        }
        self.count = self.count.min(opened).max(1);
        self.rest(now);
    }

    /// How many stripes the lane should have now.
    pub(crate) fn wanted(&self) -> usize {
        match self.phase {
            Phase::Measuring(Measurement { trial: Some(trial), .. }) => trial.count,
            Phase::Measuring(_) | Phase::Resting(_) => self.count,
        }
    }

    /// Takes in the throughput of the lane so far, over this line.
    pub(crate) fn note(&mut self, now: Instant, sum: Throughput, line: Line) {
        // A short line loses too little for too short a time.
        if line.round_trip < ROUND_TRIP_MIN {
            self.count = 1;
            self.phase = Phase::Measuring(Measurement::begin(now, sum));
            return;
        }
        if self.is_shared(sum) {
            (self.count, self.pause) = (1, PAUSE_MIN);
            self.phase = Phase::Resting(now);
            return;
        }
        self.resends_packets = line.resends_packets();
        match self.phase {
            Phase::Resting(since) if now - since < self.present_pause() => {}
            Phase::Resting(_) => {
                self.pause = (2 * self.pause).min(PAUSE_MAX);
                self.phase =
                    Phase::Measuring(Measurement { is_settled: true, ..Measurement::begin(now, sum) });
            }
            Phase::Measuring(measurement) => self.note_measured(now, sum, line.round_trip, measurement),
        }
    }

    /// Takes in the throughput while it is measured.
    fn note_measured(&mut self, now: Instant, sum: Throughput, round_trip: Duration, running: Measurement) {
        let restarted = Measurement { from: sum, begin: now, ..running };
        if !running.is_settled && is_settled(sum, running.from, round_trip) {
            self.phase = Phase::Measuring(Measurement { is_settled: true, ..restarted });
        } else if let Some(found) = running.found(now, sum, self.time_min(round_trip, running.trial)) {
            match running.trial {
                Some(trial) => self.judge(now, sum, trial, found),
                None => self.begin_trials(now, sum, found.bytes_per_second()),
            }
        } else if now - running.begin > MEASURING_MAX {
            match running.trial {
                Some(_) => self.rest(now),
                // Old and new together would be neither.
                None => self.phase = Phase::Measuring(restarted),
            }
        }
    }

    /// For how long frames must have waited in a measurement. A trial of many more stripes is short.
    fn time_min(&self, round_trip: Duration, trial: Option<Trial>) -> Duration {
        let time = TRIAL_MIN.max(TRIAL_ROUND_TRIPS * round_trip);
        if trial.is_some_and(|trial| trial.count >= 4 * self.count) { time / 2 } else { time }
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

    /// Begins with trials, if the stripes that are kept carry `before` bytes per second.
    fn begin_trials(&mut self, now: Instant, sum: Throughput, before: f64) {
        let fewer = self.tries_fewer && self.count > 1;
        let count = if fewer { self.count / 2 } else { self.growth() * self.count };
        self.try_count(now, sum, Trial { count, before });
    }

    fn try_count(&mut self, now: Instant, sum: Throughput, trial: Trial) {
        let trial = Trial { count: trial.count.min(STRIPES_MAX), ..trial };
        if trial.count == self.count {
            self.rest(now);
        } else {
            self.phase = Phase::Measuring(Measurement { trial: Some(trial), ..Measurement::begin(now, sum) });
        }
    }

    /// Decides whether to keep what was tried, with the throughput that was found.
    fn judge(&mut self, now: Instant, sum: Throughput, trial: Trial, found: Throughput) {
        let (kept, tried, rate) = (self.count, trial.count, found.bytes_per_second());
        let gain = if tried > kept { rate / trial.before } else { trial.before / rate };
        let excess = (gain / gain_min(kept.min(tried), kept.max(tried))).ln();
        if excess.abs() < CLOSE && found.time < 3 * TRIAL_MIN {
            return;
        }
        match (excess > 0.0, tried > kept) {
            (true, true) => {
                (self.count, self.pause) = (tried, PAUSE_MIN);
                self.try_count(now, sum, Trial { count: self.growth() * tried, before: rate });
            }
            (false, true) => match larger_counts(kept).find(|count| *count < tried) {
                Some(count) => self.try_count(now, sum, Trial { count, ..trial }),
                None => self.rest(now),
            },
            (true, false) => self.rest(now),
            (false, false) => {
                self.count = tried;
                self.rest(now);
            }
        }
    }

    /// How many times as many are tried first.
    fn growth(&self) -> usize {
        if self.resends_packets { 4 } else { 2 }
    }

    /// How long the search rests now: longer before a trial that probably fails, that of fewer where packets are lost.
    fn present_pause(&self) -> Duration {
        let expects_failure = self.tries_fewer && self.count > 1 && self.resends_packets;
        if expects_failure { (RESENDING_PAUSES * self.pause).min(PAUSE_MAX) } else { self.pause }
    }

    fn rest(&mut self, now: Instant) {
        self.tries_fewer = !self.tries_fewer;
        self.phase = Phase::Resting(now);
    }
}

impl Measurement {
    /// One with the stripes that are kept, which have not settled.
    fn begin(now: Instant, from: Throughput) -> Self {
        Self { from, begin: now, is_settled: false, trial: None }
    }

    /// The throughput, if frames have waited for at least so long.
    fn found(&self, now: Instant, sum: Throughput, time_min: Duration) -> Option<Throughput> {
        let since = sum.since(self.from);
        // Where frames wait rarely, the line is not what steps wait for.
        let is_enough = since.time >= time_min && since.time >= (now - self.begin) / 5;
        (self.is_settled && is_enough).then_some(since)
    }
}

/// The larger numbers that may be tried instead of so many stripes, the largest first.
fn larger_counts(kept: usize) -> impl Iterator<Item = usize> {
    [4 * kept, 2 * kept, kept + kept / 2].into_iter().filter(move |count| *count > kept)
}

/// Whether connections that began at `from` have found their rates.
fn is_settled(sum: Throughput, from: Throughput, round_trip: Duration) -> bool {
    sum.since(from).time >= SETTLING_MIN.max(SETTLING_ROUND_TRIPS * round_trip)
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
    const RESENDING: Line = Line { frame_time: Duration::from_millis(250), ..LINE };

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
        search.phase = Phase::Measuring(Measurement { is_settled: true, ..Measurement::begin(begin, sum) });
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
    fn where_frames_wait_for_lost_packets_the_lane_soon_gets_many() {
        let counts = searched_over(RESENDING, &mut search(), |count| 1e6 * count as f64, 55);
        assert_eq!(counts, [1, 4, 16]);
        let counts = searched_over(RESENDING, &mut search(), |count| (1e6 * count as f64).min(2.2e6), 150);
        assert_eq!(counts[..3], [1, 4, 2], "four are hardly better than two");
    }

    #[test]
    fn where_packets_are_lost_fewer_are_tried_after_a_longer_pause() {
        let begin = Instant::now();
        let sum = Throughput::default();
        for (line, count, seconds) in [(LINE, 4, 15), (RESENDING, 4, 60), (RESENDING, 1, 15)] {
            let mut search = StripeSearch::new(begin, count, sum);
            search.rest(begin);
            assert!(search.tries_fewer);
            search.note(begin + Duration::from_secs(seconds - 1), sum, line);
            assert!(matches!(search.phase, Phase::Resting(_)), "{count}");
            search.note(begin + Duration::from_secs(seconds), sum, line);
            assert!(matches!(search.phase, Phase::Measuring(_)), "{count}");
        }
    }

    #[test]
    fn those_that_could_be_opened_are_tried() {
        let (now, sum) = (Instant::now(), Throughput::default());
        let mut search = StripeSearch::new(now, 4, sum);
        search.try_count(now, sum, Trial { count: 16, before: 1e6 });
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
        search.phase = Phase::Resting(begin);
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
        (search.phase, search.pause) = (Phase::Resting(begin), PAUSE_MAX);
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
