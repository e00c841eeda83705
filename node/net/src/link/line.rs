//! The line under a lane: what it carries, and how long it is, as frames and their acknowledgements show.
//!
//! To fill a line, as much has to be in flight as it carries in a round trip. More only waits in queues, and delays small frames.
//!
//! # How it works
//! 1. Each frame remembers what was acknowledged when it was sent. Its own acknowledgement gives a rate: what was acknowledged in between,
//!    by the time in between. Delays make some rates smaller, so the largest recent one counts. Where nothing more waited to be sent, the rate
//!    is the sender's and not the line's: it counts only if it is larger than what is known.
//! 2. Queues make some round trips longer, so the shortest one counts. If it is old, this end sends one frame at a time until it has a new
//!    one, from a frame that was alone in flight.
//! 3. Twice the product of the two may be in flight. A line that carries more shows that by the next rate, and so the limit doubles with
//!    each round trip until the line is full.
//!
//! # Reading
//! Cardwell et al., *BBR: Congestion-Based Congestion Control*, 2016. Here TCP decides what it sends when; this only bounds what it is given.

use std::collections::VecDeque;
use std::time::Duration;

use peergrad_core::io::Line;
use tokio::time::Instant;

/// Measures the line under one lane.
#[derive(Debug)]
pub(super) struct LineMeter {
    /// The bytes that were acknowledged so far.
    acknowledged: u64,
    /// When that last grew, or when a frame was sent after a pause.
    acknowledged_at: Instant,
    /// When the newest acknowledged frame was sent, or the first one after a pause.
    sent_at: Instant,
    /// The frames in flight, the oldest first.
    in_flight: VecDeque<SentFrame>,
    /// Recent rates, in bytes per second, with their times: each larger than all later ones.
    rates: VecDeque<(Instant, u64)>,
    /// The shortest recent round trip, and when it was measured; `None` before the first one.
    round_trip: Option<(Duration, Instant)>,
    /// The line as it was last reported, and when.
    reported: Option<(Line, Instant)>,
}

/// A frame in flight.
#[derive(Debug)]
struct SentFrame {
    byte_count: usize,
    at: Instant,
    /// Whether no other frame was in flight.
    was_alone: bool,
    /// Whether no other frame waited behind it.
    was_last: bool,
    /// The state of the meter when it was sent.
    acknowledged: u64,
    acknowledged_at: Instant,
    sent_at: Instant,
}

impl LineMeter {
    /// The meter of a new lane.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            acknowledged: 0,
            acknowledged_at: now,
            sent_at: now,
            in_flight: VecDeque::new(),
            rates: VecDeque::new(),
            round_trip: None,
            reported: None,
        }
    }

    /// Another lane begins, perhaps over the same line: nothing is in flight, and what is known stays until it is old.
    pub(super) fn restart(&mut self) {
        self.in_flight.clear();
    }

    /// A frame is sent. `was_last` says whether no other one waits behind it.
    pub(super) fn note_sent(&mut self, now: Instant, byte_count: usize, was_last: bool) {
        let was_alone = self.in_flight.is_empty();
        if was_alone {
            (self.acknowledged_at, self.sent_at) = (now, now);
        }
        let Self { acknowledged, acknowledged_at, sent_at, .. } = *self;
        self.in_flight.push_back(SentFrame {
            byte_count,
            at: now,
            was_alone,
            was_last,
            acknowledged,
            acknowledged_at,
            sent_at,
        });
    }

    /// So many of the oldest frames in flight have arrived.
    pub(super) fn note_acknowledged(&mut self, now: Instant, frames: usize) {
        let mut newest = None;
        for frame in self.in_flight.drain(..frames.min(self.in_flight.len())) {
            self.acknowledged += frame.byte_count as u64;
            newest = Some(frame);
        }
        let Some(frame) = newest else { return };
        self.acknowledged_at = now;
        self.sent_at = frame.at;
        self.note_round_trip(now, now - frame.at, frame.was_alone);
        // What was sent in a burst cannot have been carried faster than it was sent.
        let took = (now - frame.acknowledged_at).max(frame.at - frame.sent_at);
        self.note_rate(now, self.acknowledged - frame.acknowledged, took, frame.was_last);
    }

    fn note_round_trip(&mut self, now: Instant, round_trip: Duration, was_alone: bool) {
        let is_old = self.is_round_trip_old(now);
        if self.round_trip.is_none_or(|(shortest, _)| round_trip <= shortest || (is_old && was_alone)) {
            self.round_trip = Some((round_trip, now));
        }
    }

    fn note_rate(&mut self, now: Instant, byte_count: u64, took: Duration, was_last: bool) {
        // Acknowledgements that come together say nothing about the rate.
        if took.is_zero() || self.round_trip.is_some_and(|(shortest, _)| took < shortest) {
            return;
        }
        let rate = u128::from(byte_count) * 1_000_000_000 / took.as_nanos();
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        if was_last && self.rates.front().is_none_or(|(_, largest)| rate < *largest) {
            return;
        }
        while self.rates.back().is_some_and(|(_, earlier)| *earlier <= rate) {
            self.rates.pop_back();
        }
        self.rates.push_back((now, rate));
        while self.rates.front().is_some_and(|(at, _)| now - *at > RECENT) {
            self.rates.pop_front();
        }
    }

    fn is_round_trip_old(&self, now: Instant) -> bool {
        self.round_trip.is_some_and(|(_, at)| now - at > RECENT)
    }

    /// What the line carries; `None` before the first measurement.
    pub(super) fn line(&self) -> Option<Line> {
        let (round_trip, _) = self.round_trip?;
        let (_, bytes_per_second) = *self.rates.front()?;
        Some(Line { round_trip, bytes_per_second })
    }

    /// How many bytes may be in flight.
    pub(super) fn limit(&self, now: Instant) -> usize {
        if self.is_round_trip_old(now) {
            return 0;
        }
        let Some(line) = self.line() else { return UNMEASURED_BYTES };
        // An urgent frame waits for what is in flight, and on a slow line that takes long.
        let least = line.bytes_per_second.saturating_mul(QUEUE_MAX.as_millis() as u64) / 1000;
        let bytes = line.bytes_in_flight().max(least.min(IN_FLIGHT_BYTES as u64));
        usize::try_from(bytes).unwrap_or(usize::MAX).min(IN_FLIGHT_BYTES_MAX)
    }

    /// The line, if it differs much from what was last returned.
    pub(super) fn take_news(&mut self, now: Instant) -> Option<Line> {
        let line = self.line()?;
        let is_news = self.reported.is_none_or(|(before, at)| {
            let (old, new) = (before.bytes_in_flight(), line.bytes_in_flight());
            now - at > REPORT_INTERVAL && old.abs_diff(new) > old / 8
        });
        is_news.then(|| {
            self.reported = Some((line, now));
            line
        })
    }
}

/// How long a measurement counts.
const RECENT: Duration = Duration::from_secs(10);
/// How often a change is reported at most.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);
/// How much may be in flight on a line that is not measured yet.
const UNMEASURED_BYTES: usize = 256 << 10;
/// How much may be in flight on a short line. Well below what sockets buffer in both directions.
const IN_FLIGHT_BYTES: usize = 1 << 20;
/// On a short line that is slow: only what it carries in this time.
const QUEUE_MAX: Duration = Duration::from_millis(100);
/// How much may be in flight at most.
const IN_FLIGHT_BYTES_MAX: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: usize = 128 << 10;

    /// A line that carries `rate` bytes a second and takes `delay` each way, with frames always ready. Returns the meter after so many
    /// round trips, and the longest time that a frame took.
    fn filled(rate: u64, delay: Duration, round_trips: u32) -> (LineMeter, Instant, Duration) {
        let mut now = Instant::now();
        let mut meter = LineMeter::new(now);
        let end = now + 2 * delay * round_trips;
        let (mut free_at, mut arrivals, mut in_flight) = (now, VecDeque::new(), 0);
        let mut longest = Duration::ZERO;
        while now < end {
            while in_flight == 0 || in_flight + FRAME <= meter.limit(now) {
                meter.note_sent(now, FRAME, false);
                in_flight += FRAME;
                free_at = free_at.max(now) + Duration::from_nanos(FRAME as u64 * 1_000_000_000 / rate);
                arrivals.push_back((now, free_at + 2 * delay));
            }
            let (sent_at, acknowledged_at) = arrivals.pop_front().expect("a frame is in flight");
            now = acknowledged_at;
            longest = longest.max(now - sent_at);
            in_flight -= FRAME;
            meter.note_acknowledged(now, 1);
        }
        (meter, now, longest)
    }

    #[test]
    fn a_long_line_is_filled_within_some_round_trips_and_not_flooded() {
        let delay = Duration::from_millis(50);
        let (meter, now, longest) = filled(25_000_000, delay, 12);
        let line = meter.line().unwrap();
        assert!(line.bytes_per_second.abs_diff(25_000_000) < 1_500_000, "{line:?}");
        assert!(line.round_trip < Duration::from_millis(110), "{line:?}");
        let limit = meter.limit(now);
        assert!((4_500_000..6_000_000).contains(&limit), "{limit}");
        assert!(longest < Duration::from_millis(250), "one round trip waits in the queue: {longest:?}");
    }

    #[test]
    fn a_short_line_needs_no_more_than_before() {
        let (meter, now, _) = filled(1_000_000_000, Duration::from_micros(100), 100);
        assert_eq!(meter.limit(now), IN_FLIGHT_BYTES);
    }

    #[test]
    fn on_a_slow_line_little_is_in_flight() {
        let (meter, now, _) = filled(1_000_000, Duration::from_millis(10), 100);
        assert!((100_000..400_000).contains(&meter.limit(now)), "{}", meter.limit(now));
    }

    #[test]
    fn a_pause_does_not_make_a_line_slow() {
        let (mut meter, mut now, _) = filled(25_000_000, Duration::from_millis(50), 12);
        meter.restart();
        let before = meter.limit(now);
        for _ in 0..100 {
            now += Duration::from_millis(250);
            meter.note_sent(now, 100, true);
            now += Duration::from_millis(100);
            meter.note_acknowledged(now, 1);
        }
        assert!(meter.limit(now).abs_diff(before) < before / 10, "{} after {before}", meter.limit(now));
    }

    #[test]
    fn a_full_line_is_measured_again_with_one_frame_in_flight() {
        let (mut meter, mut now, _) = filled(25_000_000, Duration::from_millis(50), 10);
        now += RECENT;
        // Trips of frames that were not alone, and that take longer and longer, do not count.
        meter.note_sent(now, FRAME, false);
        meter.note_sent(now, FRAME, false);
        meter.note_acknowledged(now + Duration::from_millis(150), 2);
        now += Duration::from_millis(300);
        assert_eq!(meter.limit(now), 0);
        meter.restart();
        meter.note_sent(now, FRAME, false);
        now += Duration::from_millis(205);
        meter.note_acknowledged(now, 1);
        assert_eq!(meter.round_trip.unwrap().0, Duration::from_millis(205));
        assert!(meter.limit(now) > FRAME);
    }

    #[test]
    fn a_line_is_reported_when_it_changes_much() {
        let (mut meter, now, _) = filled(25_000_000, Duration::from_millis(50), 12);
        assert!(meter.take_news(now).is_some());
        assert_eq!(meter.take_news(now + RECENT), None);
    }
}
