//! The watch on the loss: whether training has diverged.
//!
//! Parameters that have grown beyond all bounds have no finite loss, and no finite gradient leads back. So a member ends a run whose loss has
//! not been finite for [`STEPS_MAX`] steps, or at the run's end. It saves no state from such steps: the newest checkpoint is from before.

use peergrad_protocol::StepNumber;

use crate::io::Failure;

/// The newest steps of this member, or clocks of its worker, as far as their loss is not finite.
#[derive(Default)]
pub(super) struct LossWatch {
    /// The first of them; `None` if the newest step has a finite loss.
    since: Option<StepNumber>,
    /// How many there are.
    steps: u64,
}

impl LossWatch {
    /// A step is committed. `loss` is the mean over its samples; a step that left out all samples has none that is finite.
    pub(super) fn note(&mut self, step: StepNumber, loss: f64) {
        if loss.is_finite() {
            *self = Self::default();
        } else {
            self.since.get_or_insert(step);
            self.steps += 1;
        }
    }

    /// Whether the newest step has a finite loss.
    pub(super) fn is_finite(&self) -> bool {
        self.since.is_none()
    }

    /// Why the run cannot be continued, if too many steps had no finite loss.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.failure_at_end().filter(|_| self.steps >= STEPS_MAX)
    }

    /// Why the run has failed if it ends now; `None` if its newest step has a finite loss.
    pub(super) fn failure_at_end(&self) -> Option<Failure> {
        Some(Failure::Diverged { since: self.since?, steps: self.steps })
    }
}

/// After so many steps without a finite loss a run ends. A single batch of bad samples, or one member that computes wrongly, ends none.
const STEPS_MAX: u64 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_fails_after_many_steps_without_a_finite_loss_in_a_row() {
        let mut watch = LossWatch::default();
        let mut note = |steps: std::ops::Range<u64>, loss| {
            steps.for_each(|step| watch.note(StepNumber(step), loss));
            (watch.is_finite(), watch.failure(), watch.failure_at_end())
        };
        let diverged = |since, steps| Some(Failure::Diverged { since: StepNumber(since), steps });
        assert_eq!(note(0..5, 0.5), (true, None, None));
        assert_eq!(note(5..36, f64::NAN), (false, None, diverged(5, 31)));
        assert_eq!(note(36..37, 0.5), (true, None, None), "the samples were bad, not the parameters");
        assert_eq!(note(37..68, f64::INFINITY), (false, None, diverged(37, 31)));
        assert_eq!(note(68..69, f64::NAN), (false, diverged(37, 32), diverged(37, 32)));
    }
}
