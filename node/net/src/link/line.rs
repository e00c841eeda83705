//! The line under a link: what it carries, and how long it is, as frames and their acknowledgements show.
//!
//! To fill a line, as much has to be in flight as it carries in a round trip. More only waits in queues, and delays small frames.
//!
//! # How it works
//! 1. Each frame remembers what was acknowledged when it was sent. Its own acknowledgement gives a rate: what was acknowledged in between,
//!    by the time in between. That time is taken from the receiver's clock, since acknowledgements may come late, and together. Delays make
//!    some rates smaller, so the largest recent one counts. Where nothing more waited to be sent, the rate is the sender's and not the
//!    line's: it counts only if it is larger than what is known. A pause does not make a rate old.
//! 2. Queues make some round trips longer, so the shortest recent one counts, and only those of frames that were sent while no large frame
//!    was in flight replace an old one. If no such frame was sent for ten seconds, this end sends one large frame at a time until it has a
//!    new one. A large frame's round trip includes the time that the line takes to carry it. Where packets are lost, frames take longer
//!    than that, as `line/recovery.rs` says.
//! 3. The product of the two has to be in flight, and somewhat more. How much more, and how fast large frames leave, is in
//!    `line/pacing.rs`: a line that carries more shows that by the next rates, until it is full.
//! 4. Where the queue before the line grows, less is in flight, as `line/queue.rs` says.
//! 5. After a pause of a minute, or over another lane, the line may be another one: little is in flight at first, and the first rate
//!    with more frames waiting replaces all earlier ones.
//!
//! # Reading
//! Cardwell et al., *BBR: Congestion-Based Congestion Control*, 2016. Here TCP decides what it sends when; this only bounds what it is given.

mod pacing;
mod queue;
mod recent_max;
mod recovery;
mod uplink;

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::Duration;

use peergrad_core::io::Line;
use tokio::time::Instant;

use super::{SMALL_FRAME_BYTES, STALL_TIMEOUT};
pub(super) use pacing::Pace;
use pacing::Pacing;
use queue::Queue;
use recent_max::RecentMax;
use recovery::Recovery;
pub(crate) use uplink::Uplink;
use uplink::{AcknowledgedFrame, UplinkMark, UplinkUse};

/// Measures the line under one link, over all its lanes.
#[derive(Debug)]
pub(super) struct LineMeter {
    progress: Progress,
    /// The frames in flight, the oldest first.
    in_flight: VecDeque<SentFrame>,
    /// Their bytes.
    in_flight_bytes: usize,
    /// How many of them are large.
    large_in_flight: usize,
    /// Recent rates, in bytes per second.
    rates: RecentMax<u64>,
    /// When a rate was last measured while more frames waited; `None` before that on this lane.
    filled_at: Option<Instant>,
    /// Recent round trips, of which the shortest one counts.
    round_trips: RecentMax<Reverse<Duration>>,
    recovery: Recovery,
    pacing: Pacing,
    queue: Queue,
    /// How many connections share what is in flight.
    stripes: usize,
    /// What this line takes of the uplink that it shares with others.
    uplink: UplinkUse,
    /// The line as it was last reported, and when.
    reported: Option<(Line, Instant)>,
}

/// What the other end has, as far as this end knows.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// The bytes that were acknowledged so far.
    acknowledged: u64,
    /// When that last grew, or when a frame was sent after a pause.
    acknowledged_at: Instant,
    /// When the newest acknowledged frame was sent, or the first one after a pause.
    sent_at: Instant,
    /// When the newest acknowledged frame had arrived, by the clock of the other end; `None` after a pause.
    arrived_at: Option<Duration>,
}

impl Progress {
    /// How long the line took to carry what was acknowledged since then.
    fn time_since(&self, before: &Self) -> Duration {
        // Acknowledgements may wait behind what goes the same way, and then come together. So the other end's clock counts.
        let arriving = match (before.arrived_at, self.arrived_at) {
            // A clock may be wrong. What had arrived before was sent before, so no more time than since then has passed.
            (Some(earlier), Some(later)) => {
                later.saturating_sub(earlier).min(self.acknowledged_at - before.sent_at)
            }
            _ => self.acknowledged_at - before.acknowledged_at,
        };
        // What was sent in a burst cannot have been carried faster than it was sent.
        arriving.max(self.sent_at - before.sent_at)
    }
}

/// When a frame may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// At once.
    Now,
    /// At this time.
    At(Instant),
    /// Once others are acknowledged.
    AfterAcknowledgement,
}

/// A frame in flight.
#[derive(Debug)]
struct SentFrame {
    byte_count: usize,
    at: Instant,
    /// How long its pace held back the end of it.
    held_back: Duration,
    /// Whether no large frame was in flight before it.
    was_first: bool,
    /// Whether no other frame waited behind it.
    was_last: bool,
    /// What the other end had when it was sent.
    before: Progress,
    /// The state of the uplink then; `None` unless this is a large frame over a long line.
    mark: Option<UplinkMark>,
}

impl SentFrame {
    /// The part of its time in flight in which a line of this rate did not carry it, and its pace did not hold it back.
    fn waited(&self, now: Instant, bytes_per_second: u64) -> Duration {
        let carrying = pacing::carried_in(self.byte_count as u64, bytes_per_second);
        (now - self.at).saturating_sub(carrying.max(self.held_back))
    }
}

impl LineMeter {
    /// The meter of a new lane.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            progress: Progress { acknowledged: 0, acknowledged_at: now, sent_at: now, arrived_at: None },
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            large_in_flight: 0,
            rates: RecentMax::default(),
            filled_at: None,
            round_trips: RecentMax::default(),
            recovery: Recovery::default(),
            pacing: Pacing::new(now),
            queue: Queue::new(now),
            stripes: 1,
            uplink: UplinkUse::default(),
            reported: None,
        }
    }

    /// Another lane begins, perhaps over another line: nothing is in flight.
    pub(super) fn restart(&mut self, now: Instant) {
        self.in_flight.clear();
        self.progress.arrived_at = None;
        (self.in_flight_bytes, self.large_in_flight) = (0, 0);
        self.leave_uplink();
        self.queue = Queue::new(now);
        self.recovery.restart();
        self.filled_at = None;
        self.stripes = 1;
    }

    /// What was in flight does not use the uplink any more.
    pub(super) fn leave_uplink(&mut self) {
        self.uplink.clear();
    }

    /// The line is one of those that share this uplink.
    pub(super) fn share(&mut self, uplink: Uplink) {
        self.uplink = UplinkUse::new(uplink);
    }

    /// How many connections share what is in flight.
    pub(super) fn stripes(&self) -> usize {
        self.stripes
    }

    /// So many connections share what is in flight from now on. More of them may carry more.
    pub(super) fn set_stripes(&mut self, now: Instant, count: usize) {
        if count > self.stripes {
            self.pacing.probe(now);
        }
        self.stripes = count;
    }

    /// When a frame of this size may be sent. Small frames do not wait for tensors, and a large one does not wait for small ones.
    pub(super) fn turn(&self, now: Instant, byte_count: usize) -> Turn {
        if !self.has_room(now, byte_count) {
            return Turn::AfterAcknowledgement;
        }
        let Some(line) = self.filled_line(now).filter(|_| !is_small(byte_count)) else { return Turn::Now };
        let time = self.pacing.time(now, line).max(self.uplink.time(now, line.round_trip));
        time.map_or(Turn::Now, Turn::At)
    }

    /// Whether a frame of this size may be in flight with the others.
    fn has_room(&self, now: Instant, byte_count: usize) -> bool {
        let limit = self.limit(now);
        if is_small(byte_count) {
            return self.in_flight_bytes < limit + SMALL_FRAMES_EXTRA;
        }
        if self.large_in_flight == 0 || self.round_trips.is_old(now) {
            return self.large_in_flight == 0;
        }
        self.in_flight_bytes < limit || (self.large_in_flight == 1 && self.would_pause(now, byte_count))
    }

    /// Whether frames of this size, one at a time, would leave the line idle for much of the time, and its rate unknown.
    fn would_pause(&self, now: Instant, byte_count: usize) -> bool {
        self.line(now).is_some_and(|line| byte_count as u64 <= 8 * line.bytes_to_fill())
    }

    /// A frame is sent. `was_last` says whether no other one waits behind it. Returns when its parts leave; `None` if that is at once.
    pub(super) fn note_sent(&mut self, now: Instant, byte_count: usize, was_last: bool) -> Option<Pace> {
        if self.in_flight.is_empty() {
            self.rates.skip(now - self.progress.acknowledged_at);
            let acknowledged = self.progress.acknowledged;
            self.progress = Progress { acknowledged, acknowledged_at: now, sent_at: now, arrived_at: None };
        }
        let line = self.filled_line(now);
        let pace = line.and_then(|line| self.pacing.note_sent(now, byte_count, line));
        let was_first = self.large_in_flight == 0;
        let is_large = !is_small(byte_count);
        self.in_flight_bytes += byte_count;
        self.large_in_flight += usize::from(is_large);
        let round_trip = self.round_trips.largest().filter(|_| is_large);
        let mark = round_trip.and_then(|Reverse(trip)| self.uplink.note_sent(now, byte_count, trip));
        let before = self.progress;
        let pace = pace.filter(|_| is_large);
        let held_back = pace.map_or(Duration::ZERO, |pace| pace.time(byte_count) - now);
        self.in_flight.push_back(SentFrame {
            byte_count,
            at: now,
            held_back,
            was_first,
            was_last,
            before,
            mark,
        });
        pace
    }

    /// So many of the oldest frames in flight have arrived, the last of them at this time by the other end's clock.
    pub(super) fn note_acknowledged(&mut self, now: Instant, frames: usize, arrived_at: Duration) {
        let mut newest = None;
        for _ in 0..frames.min(self.in_flight.len()) {
            let frame = self.in_flight.pop_front().expect("counted");
            self.progress.acknowledged += frame.byte_count as u64;
            self.in_flight_bytes -= frame.byte_count;
            self.large_in_flight -= usize::from(!is_small(frame.byte_count));
            self.note_round_trip(now, now - frame.at, frame.was_first);
            self.note_uplink(now, &frame);
            if !is_small(frame.byte_count) {
                let took = frame.waited(now, self.rates.largest().unwrap_or(u64::MAX));
                self.recovery.note_frame(took);
                if let Some(line) = self.line(now) {
                    self.queue.note(now, frame.at, took, line);
                }
            }
            newest = Some(frame);
        }
        let Some(frame) = newest else { return };
        self.progress.acknowledged_at = now;
        self.progress.sent_at = frame.at;
        self.progress.arrived_at = Some(arrived_at);
        let took = self.progress.time_since(&frame.before);
        let byte_count = self.progress.acknowledged - frame.before.acknowledged;
        // Of a line that is not known yet, a small frame may show much too little.
        let shows_least = frame.was_last || (is_small(frame.byte_count) && !self.is_filled(now));
        self.note_rate(now, byte_count, took, shows_least);
    }

    fn note_uplink(&mut self, now: Instant, frame: &SentFrame) {
        let (Some(mark), Some(Reverse(round_trip))) = (frame.mark, self.round_trips.largest()) else {
            return;
        };
        let SentFrame { byte_count, was_last, .. } = *frame;
        self.uplink.note_acknowledged(now, &AcknowledgedFrame { byte_count, mark, was_last, round_trip });
    }

    fn note_round_trip(&mut self, now: Instant, round_trip: Duration, was_first: bool) {
        let round_trip = Reverse(round_trip);
        if was_first || self.round_trips.largest().is_none_or(|shortest| round_trip >= shortest) {
            self.round_trips.insert(now, round_trip);
        }
    }

    fn note_rate(&mut self, now: Instant, byte_count: u64, took: Duration, was_last: bool) {
        // Acknowledgements that come together say nothing about the rate.
        if took.is_zero() || self.round_trips.largest().is_some_and(|Reverse(shortest)| took < shortest) {
            return;
        }
        let rate = u128::from(byte_count) * 1_000_000_000 / took.as_nanos();
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        if was_last {
            if self.rates.largest().is_none_or(|largest| rate < largest) {
                return;
            }
        } else {
            if !self.is_filled(now) {
                self.rates.clear();
                self.pacing = Pacing::new(now);
            }
            self.filled_at = Some(now);
        }
        self.rates.insert(now, rate);
        self.pacing.note_rate(now, self.rates.largest().unwrap_or(rate));
    }

    /// Whether the line was full not long ago, so that its rate is known.
    fn is_filled(&self, now: Instant) -> bool {
        self.filled_at.is_some_and(|at| now - at <= PAUSE_MAX)
    }

    /// What the line carries; `None` before the first measurement.
    pub(super) fn line(&self, now: Instant) -> Option<Line> {
        let Reverse(round_trip) = self.round_trips.largest()?;
        let frame_time = self.recovery.frame_time(now, round_trip);
        Some(Line { round_trip, frame_time, bytes_per_second: self.rates.largest()? })
    }

    /// What the line carries, if it was full not long ago.
    fn filled_line(&self, now: Instant) -> Option<Line> {
        self.line(now).filter(|_| self.is_filled(now))
    }

    /// A ping outside this lane has come back.
    pub(super) fn note_ping(&mut self, now: Instant, round_trip: Duration) {
        if self.large_in_flight > 0 {
            self.recovery.note_ping(now, round_trip);
        }
    }

    /// How many bytes are in flight.
    pub(super) fn in_flight_bytes(&self) -> usize {
        self.in_flight_bytes
    }

    /// How long a frame may go without an acknowledgement, on a line on which `least` would do if it were short. Queues hold what a line
    /// carries in some round trips, and TCP waits for one or more of them before it sends a lost packet again.
    pub(super) fn patience(&self, least: Duration) -> Duration {
        let Some(Reverse(round_trip)) = self.round_trips.largest() else { return least };
        (least + PATIENCE_ROUND_TRIPS * round_trip).min(least.max(STALL_TIMEOUT))
    }

    /// How many bytes may be in flight.
    fn limit(&self, now: Instant) -> usize {
        let Some(line) = self.filled_line(now) else { return UNMEASURED_BYTES };
        let least = least_in_flight(line.bytes_per_second);
        let (carried, gain) = (line.bytes_to_fill(), self.pacing.gains(now, line).window);
        let wanted = (carried / 100).saturating_mul(gain).max(least);
        // Alone on its uplink, a line waits for lost packets rather than for others.
        let percent = if self.uplink.is_shared() { self.queue.percent() } else { 100 };
        let wanted = wanted.saturating_mul(percent) / 100;
        let stripes = self.stripes as u64;
        let sockets = if stripes == 1 { SOCKET_BYTES } else { stripes * FULL_SOCKET_BYTES };
        let bytes = wanted.min(sockets.max(carried.saturating_add(carried / 10)));
        let bytes = bytes.min(self.uplink.limit(line.frame_time).unwrap_or(u64::MAX));
        let bytes = bytes.saturating_add((stripes - 1) * STRIPE_BYTES);
        usize::try_from(bytes).unwrap_or(usize::MAX).min(IN_FLIGHT_BYTES_MAX)
    }

    /// How many bytes a second all long lines carry together, if that differs much from what was last returned.
    pub(super) fn take_uplink_news(&self, now: Instant) -> Option<u64> {
        self.uplink.take_news(now)
    }

    /// The line, if it differs much from what was last returned.
    pub(super) fn take_news(&mut self, now: Instant) -> Option<Line> {
        let line = self.line(now)?;
        let is_news = self.reported.is_none_or(|(before, at)| {
            let micros = |line: Line| u64::try_from(line.round_trip.as_micros()).unwrap_or(u64::MAX);
            now - at > REPORT_INTERVAL
                && (is_other(before.bytes_to_fill(), line.bytes_to_fill())
                    || is_other(micros(before), micros(line)))
        });
        is_news.then(|| {
            self.reported = Some((line, now));
            line
        })
    }
}

/// Whether a value differs so much from the one before that it is reported.
fn is_other(before: u64, now: u64) -> bool {
    before.abs_diff(now) > before / 8
}

/// How much may be in flight on a line with this rate, however short it is. An urgent frame waits for what is in flight, and on a slow line
/// that takes long.
fn least_in_flight(bytes_per_second: u64) -> u64 {
    let bytes = bytes_per_second.saturating_mul(QUEUE_MAX.as_millis() as u64) / 1000;
    bytes.min(IN_FLIGHT_BYTES as u64)
}

/// Whether a frame is small: it does not wait for tensors.
fn is_small(byte_count: usize) -> bool {
    byte_count <= SMALL_FRAME_BYTES
}

/// How many round trips more an acknowledgement may take.
const PATIENCE_ROUND_TRIPS: u32 = 8;
/// How much more small frames may bring in flight: control messages must not wait behind tensors.
const SMALL_FRAMES_EXTRA: usize = 1 << 20;
/// How long a rate counts after the line was last full. Steps may be that far apart.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// How long a measurement counts.
const RECENT: Duration = Duration::from_secs(10);
/// How often a change is reported at most.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);
/// How much may be in flight on a line that is not measured yet.
const UNMEASURED_BYTES: usize = 256 << 10;
/// How much may be in flight on a short line. Well below what sockets buffer in both directions.
const IN_FLIGHT_BYTES: usize = 1 << 20;
/// On a short line that is slow: only what it carries in this time.
const QUEUE_MAX: Duration = Duration::from_millis(150);
/// What a socket takes without a pause: two thirds of the 4 MiB that Linux gives it. A socket that is full takes nothing until a third of it
/// is free, and then so much at once that it waits in a queue.
const SOCKET_BYTES: u64 = 2600 << 10;
/// What each of several sockets takes: where a line needs them, packets are lost, and each socket is full until they were sent again.
const FULL_SOCKET_BYTES: u64 = 4 << 20;
/// What waits at each of several connections: a piece in its buffer, one in its socket, and one that is being sent.
const STRIPE_BYTES: u64 = 48 << 10;
/// How much may be in flight at most.
const IN_FLIGHT_BYTES_MAX: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    const FRAME: usize = 128 << 10;

    /// The clock of the other end, when this end hears of an arrival at this time.
    fn arrival(now: Instant) -> Duration {
        static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
        now.saturating_duration_since(*BEGIN)
    }

    /// Whether a frame may be in flight now; when exactly it leaves is another question.
    fn may_send(meter: &LineMeter, now: Instant, byte_count: usize) -> bool {
        meter.turn(now, byte_count) != Turn::AfterAcknowledgement
    }

    /// A line that carries `rate` bytes a second and takes `delay` each way, with frames always ready. Returns the meter after so many
    /// round trips, and the longest time that a frame took in the second half.
    fn filled(rate: u64, delay: Duration, round_trips: u32) -> (LineMeter, Instant, Duration) {
        let now = Instant::now();
        fill(LineMeter::new(now), now, rate, delay, round_trips)
    }

    /// The same with a meter that may have measured before.
    fn fill(
        mut meter: LineMeter,
        mut now: Instant,
        rate: u64,
        delay: Duration,
        round_trips: u32,
    ) -> (LineMeter, Instant, Duration) {
        let end = now + 2 * delay * round_trips;
        let (mut free_at, mut arrivals) = (now, VecDeque::new());
        let mut longest = Duration::ZERO;
        while now < end {
            let next: Option<&(Instant, Instant)> = arrivals.front();
            match (meter.turn(now, FRAME), next) {
                (Turn::Now, _) => {
                    let pace = meter.note_sent(now, FRAME, false);
                    free_at = free_at.max(now) + Duration::from_nanos(FRAME as u64 * 1_000_000_000 / rate);
                    free_at = free_at.max(pace.map_or(now, |pace| pace.time(FRAME)));
                    arrivals.push_back((now, free_at + 2 * delay));
                }
                (Turn::At(time), next) if next.is_none_or(|(_, acknowledged_at)| time < *acknowledged_at) => {
                    now = time;
                }
                _ => {
                    let (sent_at, acknowledged_at) = arrivals.pop_front().expect("a frame is in flight");
                    now = acknowledged_at;
                    if now + delay * round_trips > end {
                        longest = longest.max(now - sent_at);
                    }
                    meter.note_acknowledged(now, 1, arrival(now));
                }
            }
        }
        for (_, acknowledged_at) in arrivals {
            now = acknowledged_at;
            meter.note_acknowledged(now, 1, arrival(now));
        }
        (meter, now, longest)
    }

    #[test]
    fn a_long_line_is_filled_within_some_round_trips_and_not_flooded() {
        let delay = Duration::from_millis(50);
        let (meter, now, longest) = filled(25_000_000, delay, 40);
        let line = meter.line(now).unwrap();
        assert!(line.bytes_per_second.abs_diff(25_000_000) < 1_500_000, "{line:?}");
        assert!(line.round_trip < Duration::from_millis(110), "{line:?}");
        let limit = meter.limit(now);
        assert!((2_600_000..3_000_000).contains(&limit), "{limit}");
        assert!(longest < Duration::from_millis(210), "at most a round trip waits in the queue: {longest:?}");
    }

    #[test]
    fn a_slow_line_that_carries_more_again_is_soon_full() {
        // A frame takes longer than several round trips.
        let delay = Duration::from_millis(25);
        let (meter, now, _) = filled(150_000, delay, 600);
        let slow = meter.line(now).unwrap().bytes_per_second;
        assert!(slow < 200_000, "{slow}");
        let (meter, now, _) = fill(meter, now, 1_200_000, delay, 240);
        let rate = meter.line(now).unwrap().bytes_per_second;
        assert!(rate > 1_100_000, "{rate}");
    }

    #[test]
    fn a_line_that_loses_packets_is_filled_as_well() {
        // Small frames and pings take 100 ms, and all large ones 150 ms longer.
        let filled = |ping: u64| {
            let mut now = Instant::now();
            let mut meter = LineMeter::new(now);
            meter.note_sent(now, 100, true);
            now += Duration::from_millis(100);
            meter.note_acknowledged(now, 1, arrival(now));
            meter.note_sent(now, FRAME, false);
            meter.note_ping(now, Duration::from_millis(ping));
            now += Duration::from_millis(250);
            meter.note_acknowledged(now, 1, arrival(now));
            let (meter, _, _) = fill(meter, now, 10_000_000, Duration::from_millis(125), 30);
            meter.line(now).unwrap().bytes_per_second
        };
        assert!(filled(100) > 9_000_000, "{}", filled(100));
        assert!(filled(250) < 7_000_000, "what delays pings too is a queue: {}", filled(250));
    }

    #[test]
    fn acknowledgements_that_come_together_do_not_make_a_line_fast() {
        let begin = Instant::now();
        let mut meter = LineMeter::new(begin);
        // The line carries a frame in 131 ms, and eight are in flight. Acknowledgements wait behind what goes the same way, and come every
        // 300 ms.
        let millis = |count: usize| Duration::from_millis(count as u64);
        let (mut sent, mut acknowledged) = (0_usize, 0);
        for now in (0..20_000_usize).step_by(300) {
            let arrived = sent.min(now.saturating_sub(50) / 131);
            if arrived > acknowledged {
                let arrived_at = millis(arrived * 131 + 25);
                meter.note_acknowledged(begin + millis(now), arrived - acknowledged, arrived_at);
                acknowledged = arrived;
            }
            while sent < acknowledged + 8 {
                meter.note_sent(begin + millis(now), FRAME, false);
                sent += 1;
            }
        }
        let rate = meter.rates.largest().unwrap();
        assert!(rate.abs_diff(1_000_000) < 10_000, "{rate}");
    }

    #[test]
    fn an_acknowledgement_gets_more_time_on_a_long_line() {
        let least = Duration::from_millis(750);
        let patience = |delay| filled(2_500_000, Duration::from_millis(delay), 20).0.patience(least);
        assert_eq!(LineMeter::new(Instant::now()).patience(least), least, "nothing is known yet");
        // A trip of the first frame includes the 52 ms that the line takes to carry it.
        assert!(patience(1) < Duration::from_millis(1_250), "{:?}", patience(1));
        assert!(patience(100) > Duration::from_millis(2_350), "{:?}", patience(100));
        assert_eq!(patience(1_000), STALL_TIMEOUT, "another way may be better");
        assert_eq!(
            filled(2_500_000, Duration::from_millis(100), 20).0.patience(STALL_TIMEOUT),
            STALL_TIMEOUT
        );
    }

    #[test]
    fn a_short_line_needs_no_more_than_before() {
        let (meter, now, _) = filled(1_000_000_000, Duration::from_micros(100), 100);
        assert_eq!(meter.limit(now), IN_FLIGHT_BYTES);
    }

    #[test]
    fn on_a_slow_line_little_is_in_flight() {
        let (mut meter, mut now, longest) = filled(1_000_000, Duration::from_millis(10), 100);
        assert!(
            longest < Duration::from_millis(550),
            "four frames of 131 ms, since trips include the frame: {longest:?}"
        );
        // Once a small frame has shown how short the line is:
        meter.note_sent(now, 100, true);
        now += Duration::from_millis(20);
        meter.note_acknowledged(now, 1, arrival(now));
        assert!(may_send(&meter, now, FRAME));
        meter.note_sent(now, FRAME, false);
        assert!(may_send(&meter, now, FRAME), "the line would be idle for a round trip");
        meter.note_sent(now, FRAME, false);
        assert!(!may_send(&meter, now, FRAME) && may_send(&meter, now, 100));
    }

    #[test]
    fn a_pause_does_not_make_a_line_slow() {
        let (mut meter, mut now, _) = filled(25_000_000, Duration::from_millis(50), 12);
        let before = meter.limit(now);
        let end = now + PAUSE_MAX;
        while now < end - Duration::from_secs(1) {
            now += Duration::from_millis(250);
            meter.note_sent(now, 100, true);
            now += Duration::from_millis(100);
            meter.note_acknowledged(now, 1, arrival(now));
        }
        assert!(meter.limit(now).abs_diff(before) < before / 10, "{} after {before}", meter.limit(now));
        assert_eq!(
            meter.limit(end + RECENT),
            UNMEASURED_BYTES,
            "after a long pause the line may be another one"
        );
        meter.restart(now);
        assert_eq!(meter.limit(now), UNMEASURED_BYTES, "another lane may lead over another line");
        meter.note_sent(now, FRAME, false);
        now += Duration::from_millis(200);
        meter.note_acknowledged(now, 1, arrival(now));
        assert!(meter.line(now).unwrap().bytes_per_second < 1_000_000, "{:?}", meter.line(now));
    }

    #[test]
    fn the_first_frames_after_a_pause_do_not_replace_the_rate() {
        let (mut meter, mut now, _) = filled(25_000_000, Duration::from_millis(50), 12);
        now += RECENT + Duration::from_secs(5);
        meter.note_sent(now, FRAME, false);
        now += Duration::from_millis(105);
        meter.note_acknowledged(now, 1, arrival(now));
        assert!(meter.line(now).unwrap().bytes_per_second > 20_000_000, "{:?}", meter.line(now));
    }

    #[test]
    fn frames_of_steps_keep_the_round_trip_up_to_date_without_a_pause() {
        let (mut meter, mut now, _) = filled(25_000_000, Duration::from_millis(50), 12);
        let end = now + 3 * RECENT;
        while now < end {
            assert!(!meter.round_trips.is_old(now));
            meter.note_sent(now, FRAME, false);
            meter.note_sent(now, FRAME, false);
            now += Duration::from_millis(110);
            meter.note_acknowledged(now, 2, arrival(now));
            now += Duration::from_millis(900);
        }
        assert_eq!(meter.line(now).unwrap().round_trip, Duration::from_millis(110));
    }

    /// A line of 2 MB/s that takes 300 to 320 ms for a round trip, with a heartbeat every 250 ms: one is always in flight.
    #[test]
    fn heartbeats_that_are_always_in_flight_do_not_stop_tensors() {
        let begin = Instant::now();
        let (mut meter, mut now, mut free_at) = (LineMeter::new(begin), begin, begin);
        let (mut arrivals, mut heartbeat_at) = (VecDeque::<Instant>::new(), begin);
        let (mut carried_at, mut longest, mut carried) = (begin, Duration::ZERO, 0);
        let mut sizes = VecDeque::new();
        while now < begin + Duration::from_secs(60) {
            let heartbeat = (now >= heartbeat_at).then(|| {
                heartbeat_at += Duration::from_millis(250);
                100
            });
            if let Some(size) = heartbeat.or_else(|| may_send(&meter, now, FRAME).then_some(FRAME)) {
                meter.note_sent(now, size, false);
                free_at = free_at.max(now) + Duration::from_nanos(size as u64 * 500);
                let jitter = Duration::from_millis((sizes.len() as u64 * 7 + carried / 10_007) % 20);
                let last = arrivals.back().copied().unwrap_or(now);
                arrivals.push_back(last.max(free_at + Duration::from_millis(300) + jitter));
                sizes.push_back(size);
                continue;
            }
            now = heartbeat_at.min(arrivals.front().copied().unwrap_or(heartbeat_at)).max(now);
            if arrivals.front().is_some_and(|at| *at <= now) {
                arrivals.pop_front();
                meter.note_acknowledged(now, 1, arrival(now));
                if let Some(FRAME) = sizes.pop_front() {
                    longest = longest.max(now - carried_at);
                    (carried, carried_at) = (carried + FRAME as u64, now);
                }
            }
        }
        assert!(longest < Duration::from_secs(2), "{longest:?} without a tensor");
        assert!(carried > 60 * 2_000_000 * 8 / 10, "{carried} bytes in a minute");
    }

    #[test]
    fn a_full_line_is_measured_again_with_one_frame_in_flight() {
        let (mut meter, mut now, _) = filled(25_000_000, Duration::from_millis(50), 10);
        meter.note_sent(now, FRAME, false);
        let end = now + RECENT;
        while now <= end {
            assert!(!meter.round_trips.is_old(now));
            // The trip of a frame that was not alone does not count.
            meter.note_sent(now, FRAME, false);
            now += Duration::from_millis(150);
            meter.note_acknowledged(now, 1, arrival(now));
        }
        now += Duration::from_millis(150);
        meter.note_acknowledged(now, 1, arrival(now));
        meter.note_sent(now, 100, true);
        assert!(may_send(&meter, now, FRAME), "it does not wait for a small one");
        meter.note_sent(now, FRAME, false);
        assert!(!may_send(&meter, now, FRAME) && may_send(&meter, now, 100));
        now += Duration::from_millis(205);
        meter.note_acknowledged(now, 2, arrival(now));
        assert_eq!(meter.line(now).unwrap().round_trip, Duration::from_millis(205));
        assert!(meter.limit(now) > FRAME);
    }

    #[test]
    fn a_line_is_reported_when_it_changes_much() {
        let (mut meter, now, _) = filled(25_000_000, Duration::from_millis(50), 12);
        let known = meter.take_news(now).unwrap();
        assert_eq!(meter.take_news(now + RECENT), None);
        let twice = Line { bytes_per_second: 2 * known.bytes_per_second, ..known };
        meter.rates.insert(now, twice.bytes_per_second);
        assert_eq!(meter.take_news(now + REPORT_INTERVAL), None, "not so often");
        assert_eq!(meter.take_news(now + 2 * REPORT_INTERVAL), Some(twice));
    }
}
