//! The speed meter: how many samples this machine computes in a minute.
//!
//! The median of recent jobs: one that took long because the machine slept, or did something else for a moment, changes nothing.

use std::collections::VecDeque;
use std::time::Duration;

use peergrad_protocol::Instant;

/// Measures the jobs of the program.
#[derive(Default)]
pub(super) struct SpeedMeter {
    /// Recent jobs, the oldest first: when each ended, and its samples a minute.
    recent: VecDeque<(Instant, u32)>,
}

impl SpeedMeter {
    /// A job that computed so many samples began then, and has ended now.
    pub(super) fn note(&mut self, began: Instant, now: Instant, samples: u64) {
        let took = now.since(began);
        if samples == 0 || took.is_zero() {
            return;
        }
        let in_a_minute = u128::from(samples) * MINUTE.as_nanos() / took.as_nanos();
        self.recent.push_back((now, u32::try_from(in_a_minute).unwrap_or(u32::MAX).max(1)));
        let is_old = |(ended, _): &(Instant, u32)| now.since(*ended) > RECENT;
        while self.recent.len() > JOBS_MAX
            || self.recent.len() > JOBS_MIN && self.recent.front().is_some_and(is_old)
        {
            self.recent.pop_front();
        }
    }

    /// The samples a minute; `None` before there are enough jobs.
    pub(super) fn samples_per_minute(&self) -> Option<u32> {
        if self.recent.len() < JOBS_MIN {
            return None;
        }
        let mut rates: Vec<u32> = self.recent.iter().map(|(_, rate)| *rate).collect();
        rates.sort_unstable();
        Some(rates[rates.len() / 2])
    }
}

const MINUTE: Duration = Duration::from_secs(60);
/// How long a job counts, if there are enough newer ones.
const RECENT: Duration = Duration::from_secs(20);
/// How many jobs a speed is measured from, at least and at most.
const JOBS_MIN: usize = 5;
const JOBS_MAX: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Instant {
        Instant(0).after(Duration::from_millis(milliseconds))
    }

    /// Jobs of 100 samples that take so many milliseconds each, one after the other.
    fn note_all(meter: &mut SpeedMeter, from: u64, took: &[u64]) -> u64 {
        took.iter().fold(from, |began, took| {
            meter.note(at(began), at(began + took), 100);
            began + took
        })
    }

    #[test]
    fn the_median_of_recent_jobs_counts() {
        let mut meter = SpeedMeter::default();
        let now = note_all(&mut meter, 0, &[100; 4]);
        assert_eq!(meter.samples_per_minute(), None);
        let now = note_all(&mut meter, now, &[100, 100, 30_000, 5]);
        assert_eq!(meter.samples_per_minute(), Some(60_000));
        meter.note(at(now), at(now + 100), 0);
        meter.note(at(now), at(now), 100);
        note_all(&mut meter, now, &[300; 15]);
        assert_eq!(meter.samples_per_minute(), Some(20_000));
    }

    #[test]
    fn long_jobs_are_forgotten_once_there_are_enough_newer_ones() {
        let mut meter = SpeedMeter::default();
        let now = note_all(&mut meter, 0, &[1_000; 8]);
        note_all(&mut meter, now, &[10_000; 5]);
        assert_eq!(meter.samples_per_minute(), Some(600));
        assert_eq!(meter.recent.len(), 5);
    }
}
