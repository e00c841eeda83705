//! The learning curve of a training: samples, time, bytes and loss at the end of each of 64 equal intervals of samples.
//!
//! The intervals count samples and not steps, because kinds of training differ in how much one step does. So the points of all
//! compared trainings lie at about the same numbers of samples.

use std::time::Duration;

use peergrad_page::comparison::Point;

use crate::commands::swarm::{Swarm, TrainedSamples};

/// The state of a training at one time.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgressPoint {
    trained: TrainedSamples,
    time: Duration,
    bytes: u64,
}

impl ProgressPoint {
    /// The state that the peers have reported so far.
    pub(super) fn of(swarm: &Swarm<'_>) -> Self {
        Self {
            trained: swarm.peers[0].trained,
            time: training_time(swarm),
            bytes: swarm.peers.iter().map(|peer| peer.usage.bytes_sent).sum(),
        }
    }
}

/// The time from the first view to the newest step, at the slowest peer.
pub(super) fn training_time(swarm: &Swarm<'_>) -> Duration {
    let seconds = swarm.peers.iter().map(|peer| peer.usage.training_seconds).fold(0.0, f64::max);
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// The points of one training so far.
pub(super) struct LearningCurve {
    points: Vec<Point>,
    /// Samples of an interval.
    interval: u64,
    /// The samples at the newest point.
    before: TrainedSamples,
    /// The newest state; `None` before the first.
    newest: Option<ProgressPoint>,
}

impl LearningCurve {
    /// An empty curve of a training of `samples` samples, all epochs together.
    pub(super) fn new(samples: u64) -> Self {
        let interval = samples.div_ceil(INTERVALS).max(1);
        Self { points: Vec::new(), interval, before: TrainedSamples::default(), newest: None }
    }

    /// Adds the present state.
    pub(super) fn note(&mut self, now: &ProgressPoint) {
        // An interval ends when the first peer reports a step; the others' bytes for that step are known at the next one.
        if now.trained.samples / self.interval > self.before.samples / self.interval {
            self.push(now);
        }
        self.newest = Some(*now);
    }

    /// All points, including one for an incomplete last interval.
    pub(super) fn finish(mut self) -> Vec<Point> {
        if let Some(newest) = self.newest.filter(|newest| newest.trained.samples > self.before.samples) {
            self.push(&newest);
        }
        self.points
    }

    fn push(&mut self, now: &ProgressPoint) {
        let samples = now.trained.samples - self.before.samples;
        let quality = (now.trained.loss_sum - self.before.loss_sum) / samples as f64;
        let (time, bytes) = (now.time, now.bytes);
        self.points.push(Point { samples: now.trained.samples, time, bytes, worth: quality });
        self.before = now.trained;
    }
}

/// How many intervals a training has: enough for a smooth curve, and few enough to average out noise.
const INTERVALS: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_means_over_equal_intervals() {
        let mut curve = LearningCurve::new(640);
        let mut trained = TrainedSamples::default();
        // Steps of 4 samples; the loss starts at 100 and falls by 1 per step.
        for step in 0..159_u32 {
            trained.samples += 4;
            trained.loss_sum += 4.0 * (100.0 - f64::from(step));
            let time = Duration::from_secs(step.into());
            // Another peer reports the same step.
            for bytes in [trained.samples * 10, trained.samples * 10 + 5] {
                curve.note(&ProgressPoint { trained, time, bytes });
            }
        }
        let points = curve.finish();
        assert_eq!(points.len(), 64, "{points:?}");
        let first = Point { samples: 12, time: Duration::from_secs(2), bytes: 120, worth: 99.0 };
        assert_eq!((points[0], points[1].samples, points[1].worth), (first, 20, 96.5));
        assert_eq!(points[63].samples, 636, "the last interval is incomplete");
        assert!(points.windows(2).all(|pair| pair[0].worth > pair[1].worth));
    }

    #[test]
    fn steps_longer_than_an_interval_have_a_point_each() {
        let mut curve = LearningCurve::new(100);
        for step in 1..=2 {
            let trained = TrainedSamples { samples: 50 * step, loss_sum: 25.0 };
            curve.note(&ProgressPoint { trained, time: Duration::ZERO, bytes: 0 });
        }
        let worths: Vec<f64> = curve.finish().iter().map(|point| point.worth).collect();
        assert_eq!(worths, [0.5, 0.0]);
        assert_eq!(LearningCurve::new(0).finish(), []);
    }
}
