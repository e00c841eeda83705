//! The rate meter: how often something has happened per second, over the last seconds.
//!
//! It counts only what has happened at this peer. Steps that the other members took while the peer was away do not count.

use std::collections::VecDeque;
use std::time::Duration;

use peergrad_protocol::Instant;

/// Counts occurrences, and measures their present rate.
#[derive(Clone, Debug, Default)]
pub struct RateMeter {
    count: u64,
    /// The count at a few times, oldest first.
    marks: VecDeque<(Instant, u64)>,
}

impl RateMeter {
    /// Counts one occurrence.
    pub fn note(&mut self, now: Instant) {
        self.note_many(now, 1);
    }

    /// Counts so many occurrences at once.
    pub fn note_many(&mut self, now: Instant, count: u64) {
        self.count += count;
        // Marks are at least `MARKS_APART` apart, so that high rates need few of them.
        let is_early =
            self.marks.len() > 1 && self.marks.back().is_some_and(|last| now.since(last.0) < MARKS_APART);
        if !is_early {
            self.marks.push_back((now, self.count));
        }
        forget_before(&mut self.marks, now);
    }

    /// The number of occurrences so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Occurrences per second over the last eight seconds; for rarer ones, the rate between the last two. 0 once nothing has happened for a while.
    pub fn per_second(&self, now: Instant) -> f64 {
        let is_recent = |(at, _): &&(Instant, u64)| now.since(*at) <= WINDOW;
        let newest = self.marks.iter().rev();
        match (self.marks.iter().find(is_recent), newest.clone().next(), newest.clone().nth(1)) {
            (Some((from, before)), Some(last), _) if *from < last.0 => {
                rate(self.count - before, now.since(*from))
            }
            (_, Some((last, count)), Some((from, before))) if now.since(*last) <= 3 * last.since(*from) => {
                rate(count - before, last.since(*from).max(now.since(*last)))
            }
            _ => 0.0,
        }
    }
}

/// `count` per second over `time`; 0 for times that are too short to measure a rate.
pub(super) fn rate(count: u64, time: Duration) -> f64 {
    if time < SHORT { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// Drops entries from before the window, except the last of them, which marks its start.
pub(super) fn forget_before<T>(list: &mut VecDeque<(Instant, T)>, now: Instant) {
    while list.get(1).is_some_and(|second| now.since(second.0) > WINDOW) {
        list.pop_front();
    }
}

/// The time over which rates are measured.
pub(super) const WINDOW: Duration = Duration::from_secs(8);
const SHORT: Duration = Duration::from_millis(200);
const MARKS_APART: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Instant {
        Instant(0).after(Duration::from_millis(milliseconds))
    }

    #[test]
    fn rates_cover_the_last_seconds() {
        let mut meter = RateMeter::default();
        assert_eq!(meter.per_second(at(0)), 0.0);
        // A hundred per second, for a minute.
        for number in 0..6_000 {
            meter.note(at(number * 10));
        }
        assert!(meter.marks.len() < 40, "{}", meter.marks.len());
        let rate = meter.per_second(at(60_000));
        assert!((rate - 100.0).abs() < 1.0, "{rate}");
        // Then nothing happens: the rate falls, and is 0 after the window.
        let rate = meter.per_second(at(64_000));
        assert!(rate > 40.0 && rate < 60.0, "{rate}");
        assert_eq!(meter.per_second(at(90_000)), 0.0);
        assert_eq!(meter.count(), 6_000);
    }

    #[test]
    fn rare_occurrences_have_a_rate_too() {
        let mut meter = RateMeter::default();
        for number in 0..3 {
            meter.note(at(30_000 * number));
        }
        for now in [61_000, 80_000, 90_000] {
            let rate = meter.per_second(at(now));
            assert!((rate - 1.0 / 30.0).abs() < 1e-9, "{rate}");
        }
        assert_eq!(meter.per_second(at(200_000)), 0.0, "nothing happens any more");
    }
}
