//! Lead: how many steps ahead a change is named, so that it is usually chosen before members reach its step.
//!
//! A change that is named too early delays joiners and leavers; one that is named too late is refused. So the lead follows the time that
//! such an agreement takes, and doubles for a while with each change that was too late.

use std::time::Duration;

/// What this member has seen of earlier changes.
#[derive(Debug, Default)]
pub(super) struct Lead {
    /// How often the lead is doubled: once for each change that was named too late, and one time less with each view.
    doublings: u32,
    /// How long it takes until a change between two steps is chosen: the longest of the last few.
    agreement_time: Duration,
}

impl Lead {
    /// The lead in steps, where a step takes `step_time`.
    pub(super) fn steps(&self, step_time: Duration) -> u64 {
        let step_time = step_time.as_micros().max(1);
        let ahead = LEAD_MIN.max(self.agreement_time * 3 / 2);
        let steps = ahead.as_micros().div_ceil(step_time);
        (u64::try_from(steps).unwrap_or(LEAD_STEPS_MAX) << self.doublings).clamp(1, LEAD_STEPS_MAX)
    }

    /// A change was named too late.
    pub(super) fn lengthen(&mut self) {
        self.doublings = (self.doublings + 1).min(LEAD_DOUBLINGS_MAX);
    }

    /// A view has begun.
    pub(super) fn shorten(&mut self) {
        self.doublings = self.doublings.saturating_sub(1);
    }

    /// A change was chosen after this time.
    pub(super) fn note_agreement(&mut self, took: Duration) {
        self.agreement_time = took.max(self.agreement_time - self.agreement_time / 4);
    }
}

/// How far ahead a change is named at least.
const LEAD_MIN: Duration = Duration::from_millis(150);
/// How many steps ahead a change is named at most.
pub(super) const LEAD_STEPS_MAX: u64 = 256;
const LEAD_DOUBLINGS_MAX: u32 = 5;
