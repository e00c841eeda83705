//! The queue before a line: less is in flight where it grows.
//!
//! A line is measured when nothing else is on its way. Where other lines share the uplink of this end or the downlink of the other one, each of
//! them has in flight what it once carried alone, and a queue fills until the system drops packets. Then small frames wait as well, and
//! a new connection may take seconds.
//!
//! # How it works
//! Once in a round trip, the shortest time of its frames is compared with what they take with an empty queue, lost packets included. If it
//! is longer by at least [`LONG_QUEUE`], and twice as long or more, a quarter less may be in flight from now on, down to [`PERCENT_MIN`]. If
//! it is longer by half or less, a quarter more may be, up to all that the line carries by its own measurement. On a line whose round trip is
//! shorter than [`SHORT_ROUND_TRIP`], little is in flight anyway. A line that is alone on its [uplink](super::uplink) ignores this: a frame is late there because
//! packets were lost, and waits for no other line.
//!
//! # Reading
//! Shalunov et al., *Low Extra Delay Background Transport (LEDBAT)*, RFC 6817, 2012: a window that follows the delay in a queue. A lower
//! bound is needed beside connections that fill any queue.

use std::time::Duration;

use peergrad_core::io::Line;
use tokio::time::Instant;

/// How much of its measured window a line may use.
#[derive(Debug)]
pub(super) struct Queue {
    percent: u64,
    /// When that was last looked at.
    looked_at: Instant,
    /// The shortest round trip of the frames that have arrived since then.
    shortest: Option<Duration>,
    /// The shortest round trip that was known then.
    empty: Duration,
}

impl Queue {
    pub(super) fn new(now: Instant) -> Self {
        Self { percent: 100, looked_at: now, shortest: None, empty: Duration::ZERO }
    }

    /// A large frame that was sent at this time over this line has arrived, and has taken so long, without the time that the line takes to
    /// carry it.
    pub(super) fn note(&mut self, now: Instant, sent_at: Instant, took: Duration, line: Line) {
        let (empty, usual) = (line.round_trip, line.frame_time);
        if empty < SHORT_ROUND_TRIP {
            self.percent = 100;
            return;
        }
        let shortest = self.shortest.map_or(took, |shortest| shortest.min(took));
        self.shortest = Some(shortest);
        // What was sent before shows the queue as it was before.
        if sent_at < self.looked_at {
            return;
        }
        let queue = shortest.saturating_sub(usual);
        if empty > self.empty * 3 / 2 {
            // It was measured again: what was taken for a queue is the line.
            self.percent = 100;
        } else if queue >= usual.max(LONG_QUEUE) {
            self.percent = (self.percent * 3 / 4).max(PERCENT_MIN);
        } else if queue <= usual / 2 {
            self.percent = (self.percent * 5 / 4).min(100);
        }
        (self.looked_at, self.shortest, self.empty) = (now, None, empty);
    }

    /// How much of the measured window may be in flight, in hundredths.
    pub(super) fn percent(&self) -> u64 {
        self.percent
    }
}

/// A line with a shorter round trip has little in flight.
const SHORT_ROUND_TRIP: Duration = Duration::from_millis(25);
/// A shorter queue delays nothing that matters.
const LONG_QUEUE: Duration = Duration::from_millis(100);
/// What may be in flight at least, in hundredths of the measured window.
const PERCENT_MIN: u64 = 25;

#[cfg(test)]
mod tests {
    use super::*;

    fn line(round_trip: Duration) -> Line {
        Line::without_losses(round_trip, 10_000_000)
    }

    fn long_line() -> Line {
        line(Duration::from_millis(100))
    }

    /// The percentage after so many round trips of this length, with eight frames in each.
    fn after(queue: &mut Queue, from: Instant, round_trips: u32, round_trip: Duration) -> (Instant, u64) {
        let end = from + round_trips * round_trip;
        let mut now = from;
        while now < end {
            now += round_trip / 8;
            queue.note(now, now - round_trip, round_trip, long_line());
        }
        (now, queue.percent())
    }

    #[test]
    fn less_is_in_flight_while_the_queue_is_long() {
        let begin = Instant::now() + Duration::from_secs(10);
        let mut queue = Queue::new(begin);
        let (now, percent) = after(&mut queue, begin, 20, Duration::from_millis(140));
        assert_eq!(percent, 100, "a short queue");
        let (now, percent) = after(&mut queue, now, 3, Duration::from_millis(250));
        assert!((40..80).contains(&percent), "{percent}");
        let (now, percent) = after(&mut queue, now, 40, Duration::from_millis(400));
        assert_eq!(percent, PERCENT_MIN);
        let (now, percent) = after(&mut queue, now, 20, Duration::from_millis(180));
        assert_eq!(percent, PERCENT_MIN, "neither long nor short");
        let (_, percent) = after(&mut queue, now, 20, Duration::from_millis(120));
        assert!(percent > 95, "{percent}");
    }

    #[test]
    fn frames_that_wait_for_lost_packets_wait_in_no_queue() {
        let begin = Instant::now() + Duration::from_secs(10);
        let mut queue = Queue::new(begin);
        let resending = Line { frame_time: Duration::from_millis(250), ..long_line() };
        let mut percent_after = |millis, frames| {
            for frame in 1..frames {
                let now = begin + Duration::from_millis(millis) * frame;
                let took = Duration::from_millis(millis);
                queue.note(now, now - took, took, resending);
            }
            queue.percent()
        };
        assert_eq!(percent_after(400, 20), 100);
        assert_eq!(percent_after(600, 40), PERCENT_MIN);
    }

    #[test]
    fn a_line_that_has_become_short_has_no_long_queue() {
        let begin = Instant::now() + Duration::from_secs(10);
        let mut queue = Queue::new(begin);
        let (now, percent) = after(&mut queue, begin, 40, Duration::from_millis(400));
        assert_eq!(percent, PERCENT_MIN);
        let short = line(Duration::from_millis(1));
        queue.note(now, now - Duration::from_millis(3), Duration::from_millis(3), short);
        assert_eq!(queue.percent(), 100);
    }

    #[test]
    fn a_single_fast_frame_shows_that_the_queue_was_empty_in_between() {
        let begin = Instant::now() + Duration::from_secs(10);
        let mut queue = Queue::new(begin);
        let mut now = begin;
        for frame in 0..400 {
            now += Duration::from_millis(20);
            let round_trip = Duration::from_millis(if frame % 10 == 0 { 120 } else { 300 });
            queue.note(now, now - round_trip, round_trip, long_line());
        }
        assert!(queue.percent() > 75, "{}", queue.percent());
    }

    #[test]
    fn on_short_lines_no_queue_is_long() {
        let begin = Instant::now() + Duration::from_secs(10);
        let mut queue = Queue::new(begin);
        for frame in 0..1000 {
            let now = begin + frame * Duration::from_millis(5);
            let short = line(Duration::from_micros(200));
            queue.note(now, now - Duration::from_millis(40), Duration::from_millis(40), short);
        }
        assert_eq!(queue.percent(), 100);
    }
}
