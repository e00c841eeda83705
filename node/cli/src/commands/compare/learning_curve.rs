//! The course of a training: where it was at the end of each of many equal stretches of samples.
//!
//! Stretches of samples, not of steps: what one way of training does in a step, another does in many. So points of all files lie at
//! about the same samples, and there are as many of a long training as of a short one.

use std::time::Duration;

use peergrad_page::comparison::Point;

use crate::commands::swarm::{Swarm, TrainedSamples};

/// What is known at some time of a training.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgressPoint {
    trained: TrainedSamples,
    time: Duration,
    bytes: u64,
}

impl ProgressPoint {
    /// As far as the peers have told.
    pub(super) fn of(swarm: &Swarm<'_>) -> Self {
        Self {
            trained: swarm.peers[0].trained,
            time: training_time(swarm),
            bytes: swarm.peers.iter().map(|peer| peer.usage.bytes_sent).sum(),
        }
    }
}

/// From the first view to the newest step of the peer that is the last to get there.
pub(super) fn training_time(swarm: &Swarm<'_>) -> Duration {
    let seconds = swarm.peers.iter().map(|peer| peer.usage.training_seconds).fold(0.0, f64::max);
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// The points so far.
pub(super) struct LearningCurve {
    points: Vec<Point>,
    /// Samples of a stretch.
    stretch: u64,
    /// At the newest point.
    before: TrainedSamples,
    /// Where training was last.
    newest: Option<ProgressPoint>,
}

impl LearningCurve {
    /// The course of a training of so many samples, all epochs together.
    pub(super) fn new(samples: u64) -> Self {
        let stretch = samples.div_ceil(STRETCHES).max(1);
        Self { points: Vec::new(), stretch, before: TrainedSamples::default(), newest: None }
    }

    /// Training is here now.
    pub(super) fn note(&mut self, now: &ProgressPoint) {
        // A stretch ends where the first peer tells of a step; what the others have sent for it is known by the next one.
        if now.trained.samples / self.stretch > self.before.samples / self.stretch {
            self.push(now);
        }
        self.newest = Some(*now);
    }

    /// All points, with what is left after the last whole stretch.
    pub(super) fn finish(mut self) -> Vec<Point> {
        if let Some(newest) = self.newest.filter(|newest| newest.trained.samples > self.before.samples) {
            self.push(&newest);
        }
        self.points
    }

    fn push(&mut self, now: &ProgressPoint) {
        let samples = now.trained.samples - self.before.samples;
        let worth = (now.trained.loss_sum - self.before.loss_sum) / samples as f64;
        let (time, bytes) = (now.time, now.bytes);
        self.points.push(Point { samples: now.trained.samples, time, bytes, worth });
        self.before = now.trained;
    }
}

/// Enough for a smooth curve, and few enough for its noise to be gone.
const STRETCHES: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_means_over_equal_stretches() {
        let mut course = LearningCurve::new(640);
        let mut trained = TrainedSamples::default();
        // Steps of 4 samples, whose loss falls from 100 by 1 a step.
        for step in 0..159_u32 {
            trained.samples += 4;
            trained.loss_sum += 4.0 * (100.0 - f64::from(step));
            let time = Duration::from_secs(step.into());
            // Other peers tell of the same step too.
            for bytes in [trained.samples * 10, trained.samples * 10 + 5] {
                course.note(&ProgressPoint { trained, time, bytes });
            }
        }
        let points = course.finish();
        assert_eq!(points.len(), 64, "{points:?}");
        let first = Point { samples: 12, time: Duration::from_secs(2), bytes: 120, worth: 99.0 };
        assert_eq!((points[0], points[1].samples, points[1].worth), (first, 20, 96.5));
        assert_eq!(points[63].samples, 636, "the rest, although it is no whole stretch");
        assert!(points.windows(2).all(|pair| pair[0].worth > pair[1].worth));
    }

    #[test]
    fn steps_that_are_longer_than_a_stretch_have_a_point_each() {
        let mut course = LearningCurve::new(100);
        for step in 1..=2 {
            let trained = TrainedSamples { samples: 50 * step, loss_sum: 25.0 };
            course.note(&ProgressPoint { trained, time: Duration::ZERO, bytes: 0 });
        }
        let worths: Vec<f64> = course.finish().iter().map(|point| point.worth).collect();
        assert_eq!(worths, [0.5, 0.0]);
        assert_eq!(LearningCurve::new(0).finish(), []);
    }
}
