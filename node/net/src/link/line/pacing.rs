//! Pacing: over a long line, large frames leave at the rate of the line and not as fast as this computer can write.
//!
//! A burst waits in a queue before the line, and acknowledgements of what comes the other way wait behind it. They then arrive all at once,
//! and the other end sends a burst as well. In between, both directions are idle.
//!
//! # How it works
//! After a pause, [`BURST_BYTES`] go at once over a fast line. What follows leaves at the measured rate times a gain. What may be
//! in flight is what the line carries while a frame is on its way, times another gain. A phase is as long as a frame takes, in whole round
//! trips, and at least as long as the line takes to carry 128 KiB:
//!
//! | | rate | in flight |
//! |---|---|---|
//! | while the rate grows, and for three phases afterwards | 2 | 3 |
//! | then in the first of eight phases, to see whether the line carries more | 1.25 | 2.5 |
//! | in the second, so that the queue becomes empty | 0.75 | 1.5 |
//! | in the others, over a slow line | 0.95 | 1.5 |
//! | in the others, over another one | 1 | 1.5 |
//!
//! Over a slow line, one below [`SLOW_BYTES_PER_SECOND`], a frame takes long. So its parts leave at that rate as well, though within
//! [`FRAME_TIME_MAX`]. There a queue of a few frames would delay acknowledgements of what comes the other way by more than a round trip. So
//! the line carries somewhat less than it could, and the queue stays empty.
//!
//! Acknowledgements wait in queues too, or for a busy computer, so in flight is more than the rate alone would need. What a socket takes
//! bounds it ([`line`](super)). Lines with a round trip below [`ROUND_TRIP_MIN`] are not paced.
//!
//! # Reading
//! Zhang, Shenker & Clark, *Observations on the Dynamics of a Congestion Control Algorithm: The Effects of Two-Way Traffic*, 1991.
//! The gains are those of BBR, see [`line`](super).

use std::time::Duration;

use peergrad_core::io::Line;
use tokio::time::Instant;

/// When the next large frame may leave.
#[derive(Debug)]
pub(super) struct Pacing {
    /// When everything that was sent has left, at the rates of that time.
    left_at: Instant,
    /// The rate when it last grew by a quarter, and when that was.
    growth: (u64, Instant),
}

/// Factors, in hundredths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gains {
    /// Of the rate at which large frames leave.
    pub(super) rate: u64,
    /// Of what may be in flight.
    pub(super) window: u64,
}

impl Pacing {
    pub(super) fn new(now: Instant) -> Self {
        Self { left_at: now, growth: (0, now) }
    }

    /// When the next large frame may leave over this line; `None` if it may do so now.
    pub(super) fn time(&self, now: Instant, line: Line) -> Option<Instant> {
        if line.round_trip < ROUND_TRIP_MIN {
            return None;
        }
        leaves_at(now, self.left_at, line.bytes_per_second)
    }

    /// A frame leaves over this line. Returns when its parts leave; `None` if that is at once.
    pub(super) fn note_sent(&mut self, now: Instant, byte_count: usize, line: Line) -> Option<Pace> {
        let bytes_per_second = line.bytes_per_second / 100 * self.gains(now, line).rate;
        let pace = Pace { begin: self.left_at.max(now), bytes_per_second };
        self.left_at = (pace.begin + carried_in(byte_count as u64, bytes_per_second)).min(now + WAIT_MAX);
        (is_slow(line) && line.round_trip >= ROUND_TRIP_MIN).then_some(pace)
    }

    /// The line was measured again.
    pub(super) fn note_rate(&mut self, now: Instant, bytes_per_second: u64) {
        // A line that has become slower may grow again.
        if bytes_per_second < self.growth.0 / 2 {
            self.growth.0 = bytes_per_second;
        }
        if bytes_per_second / 5 >= self.growth.0 / 4 {
            self.growth = (bytes_per_second, now);
            // What left at a smaller rate has left by now.
            self.left_at = self.left_at.min(now);
        }
    }

    /// The line may carry more from now on.
    pub(super) fn probe(&mut self, now: Instant) {
        self.growth.1 = now;
    }

    /// By how much frames may leave faster, and how much more may be in flight, than what was measured. What a phase brings shows only once
    /// its frames have arrived. The time of a frame varies, so whole round trips of it count.
    pub(super) fn gains(&self, now: Instant, line: Line) -> Gains {
        let round_trip = line.round_trip.as_micros().max(1);
        let phase = round_trip * ((line.frame_time.as_micros() + round_trip / 2) / round_trip).max(1);
        // Over a slow line, a frame takes longer than that.
        let phase = phase.max(carried_in(FRAME_BYTES, line.bytes_per_second).as_micros());
        let phases = (now - self.growth.1).as_micros() / phase;
        let (rate, window) = match phases {
            0..GROWTH_PHASES => (200, 300),
            _ => match phases % 8 {
                0 => (125, 250),
                1 => (75, 150),
                _ if is_slow(line) => (95, 150),
                _ => (100, 150),
            },
        };
        Gains { rate, window }
    }
}

/// When the parts of a frame leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::link) struct Pace {
    pub(in crate::link) begin: Instant,
    pub(in crate::link) bytes_per_second: u64,
}

impl Pace {
    /// When what follows so many bytes of the frame may leave.
    pub(in crate::link) fn time(&self, byte_count: usize) -> Instant {
        // The rate may be wrong, and small frames wait until this one has left.
        self.begin + carried_in(byte_count as u64, self.bytes_per_second).min(FRAME_TIME_MAX)
    }
}

/// Whether a frame takes so long over this line that its parts leave one after another.
fn is_slow(line: Line) -> bool {
    line.bytes_per_second < SLOW_BYTES_PER_SECOND
}

/// When the next frame may leave if everything before has left at `left_at`; `None` if it may do so now.
pub(super) fn leaves_at(now: Instant, left_at: Instant, bytes_per_second: u64) -> Option<Instant> {
    let ahead = carried_in(BURST_BYTES, bytes_per_second).clamp(TIMER_PRECISION, BURST_TIME_MAX);
    (left_at > now + ahead).then(|| left_at - ahead)
}

/// How long a line takes to carry so many bytes; [`WAIT_MAX`] at most.
pub(super) fn carried_in(byte_count: u64, bytes_per_second: u64) -> Duration {
    let micros = u128::from(byte_count) * 1_000_000 / u128::from(bytes_per_second.max(1));
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)).min(WAIT_MAX)
}

/// What goes at once after a pause: too little for a queue that matters, and enough that small steps do not wait.
const BURST_BYTES: u64 = 256 << 10;
/// On a slower line less goes at once: only what it carries in this time.
const BURST_TIME_MAX: Duration = Duration::from_millis(20);
/// A line that carries less is slow: a frame of 128 KiB takes longer than 20 ms.
const SLOW_BYTES_PER_SECOND: u64 = 6_500_000;
/// Within this time the whole frame leaves.
const FRAME_TIME_MAX: Duration = Duration::from_millis(250);
/// A large frame usually has so many bytes.
const FRAME_BYTES: u64 = 128 << 10;
/// On a shorter line a burst waits for no longer than a timer is late.
const ROUND_TRIP_MIN: Duration = Duration::from_millis(5);
/// How long a frame waits at most: a rate may be wrong.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(1);
/// A timer may be that late.
const TIMER_PRECISION: Duration = Duration::from_millis(2);
/// How long the rate may stay the same before it counts as the line's.
const GROWTH_PHASES: u128 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: usize = 128 << 10;
    const ROUND_TRIP: Duration = Duration::from_millis(100);
    const LINE: Line = Line { round_trip: ROUND_TRIP, frame_time: ROUND_TRIP, bytes_per_second: 10_000_000 };

    /// How many frames leave within this time.
    fn frames_in(pacing: &mut Pacing, from: Instant, time: Duration, line: Line) -> usize {
        let (mut now, mut count) = (from, 0);
        while now < from + time {
            match pacing.time(now, line) {
                Some(later) => now = later,
                None => {
                    pacing.note_sent(now, FRAME, line);
                    count += 1;
                }
            }
        }
        count
    }

    #[test]
    fn after_a_pause_a_burst_leaves_at_once_and_the_rest_at_the_rate_of_the_line() {
        let begin = Instant::now();
        let mut pacing = Pacing::new(begin);
        pacing.note_rate(begin, LINE.bytes_per_second);
        let steady = begin + 10 * LINE.round_trip;
        assert_eq!(
            frames_in(&mut pacing, steady, Duration::from_nanos(1), LINE),
            2,
            "more than 20 ms are too many"
        );
        let second = frames_in(&mut pacing, steady, Duration::from_secs(1), LINE);
        assert!((75..80).contains(&second), "{second} frames of 131 kB in a second at 10 MB/s");
    }

    #[test]
    fn while_the_rate_grows_frames_leave_at_twice_the_rate() {
        let begin = Instant::now();
        let mut pacing = Pacing::new(begin);
        pacing.note_rate(begin, LINE.bytes_per_second);
        let growing = frames_in(&mut pacing, begin, 2 * LINE.round_trip, LINE);
        assert!((32..36).contains(&growing), "{growing}");
        pacing.note_rate(begin + LINE.round_trip, LINE.bytes_per_second * 6 / 5);
        assert_eq!(pacing.gains(begin + 9 * LINE.round_trip, LINE).rate, 75, "a fifth more is not growth");
        let resending = Line { frame_time: 2 * ROUND_TRIP, ..LINE };
        assert_eq!(pacing.gains(begin + 5 * ROUND_TRIP, resending).rate, 200, "three phases have not passed");
        assert_eq!(pacing.gains(begin + 19 * ROUND_TRIP, resending).rate, 75);
        pacing.note_rate(begin + LINE.round_trip, LINE.bytes_per_second * 5 / 4);
        assert_eq!(pacing.gains(begin + 3 * LINE.round_trip, LINE).rate, 200);
    }

    #[test]
    fn over_a_slow_line_one_frame_leaves_at_a_time() {
        let begin = Instant::now();
        let line = Line { bytes_per_second: 1_000_000, ..LINE };
        let mut pacing = Pacing::new(begin);
        pacing.note_rate(begin, line.bytes_per_second);
        let steady = begin + 10 * line.round_trip;
        assert_eq!(frames_in(&mut pacing, steady, Duration::from_nanos(1), line), 1);
        assert_eq!(frames_in(&mut pacing, steady, Duration::from_secs(1), line), 7, "of 131 ms each");
    }

    #[test]
    fn over_a_slow_line_a_frame_leaves_in_parts_somewhat_slower_than_the_line() {
        let begin = Instant::now();
        let line = Line { bytes_per_second: 1_000_000, ..LINE };
        let mut pacing = Pacing::new(begin);
        pacing.note_rate(begin, line.bytes_per_second);
        // Phases are as long as a frame: the third of eight begins.
        let steady = begin + 10 * carried_in(FRAME as u64, line.bytes_per_second);
        let first = pacing.note_sent(steady, FRAME, line).unwrap();
        assert_eq!(first.time(0), steady);
        let whole = first.time(FRAME) - steady;
        assert!((136..140).contains(&whole.as_millis()), "{whole:?}");
        let second = pacing.note_sent(steady, FRAME, line).unwrap();
        assert_eq!(second.time(0), first.time(FRAME), "it follows the first one");
        let wrong = Line { bytes_per_second: 1, ..line };
        let late = pacing.note_sent(steady, FRAME, wrong).unwrap();
        assert_eq!(late.time(FRAME), late.time(0) + FRAME_TIME_MAX);
        assert_eq!(pacing.note_sent(steady, FRAME, LINE), None, "13 ms are short");
    }

    #[test]
    fn frames_on_a_short_line_do_not_wait() {
        let begin = Instant::now();
        let line = Line::without_losses(Duration::from_micros(200), LINE.bytes_per_second);
        let mut pacing = Pacing::new(begin);
        for _ in 0..100 {
            pacing.note_sent(begin, FRAME, line);
        }
        assert_eq!(pacing.time(begin, line), None);
    }
}
