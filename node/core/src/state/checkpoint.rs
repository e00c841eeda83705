//! A checkpoint: what a member saves of a run, so that a swarm whose peers have all stopped can go on from there.
//!
//! Like the players of an adjourned game who each note down the whole board, and the cards in their own hand: one note
//! is enough to set up the board again, and together the notes hold all cards. All members note the position after the
//! same step.
//!
//! # How it works
//! - *When.* The lowest rank names a step a little ahead of all members, every so many seconds; a member saves when it has committed that step.
//!   A member saves once more what it has when it stops by itself.
//! - *What.* All parameters, and the optimizer state of the chunks that this member keeps; with local parameters, its own
//!   parameters.
//! - *What for.* When all peers have stopped, those that come back agree on the view that follows their last one
//!   (`recovery.rs`). It names the step from which all go on.
//!
//! # Not here
//! Files: `net/checkpoints.rs`. What each peer kept to itself (what a lossy codec has left out so far, and local optimizer state)
//! is not saved: it starts empty, as it does for a peer that is started again.

use std::sync::Arc;
use std::time::Duration;

use peergrad_protocol::manifest::Manifest;
use peergrad_protocol::message::SavedCheckpoint;
use peergrad_protocol::{Buffer, Instant, RunId, StepNumber};

pub use crate::state::optimizer_shard::OptimizerState;

/// The state of a run after some committed steps, as far as one member holds it.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The run.
    pub run: RunId,
    /// What the run is: the specification's bytes.
    pub specification: Arc<[u8]>,
    /// Shape of the parameters.
    pub manifest: Manifest,
    /// Which steps, where the epoch stands, and what is in here.
    pub saved: SavedCheckpoint,
    /// The flat parameter vector.
    pub parameters: Arc<Buffer>,
    /// The optimizer state of the chunks that [`SavedCheckpoint::states`] names, in their order.
    pub states: Vec<OptimizerState>,
    /// Samples that the steps left out.
    pub left_out: u64,
    /// Samples that this peer has computed.
    pub own_samples: u64,
}

impl Checkpoint {
    /// The optimizer state of a chunk, if it is in here.
    #[must_use]
    pub fn state(&self, chunk: usize) -> Option<&OptimizerState> {
        let index = self.saved.states.iter().position(|saved| saved == chunk)?;
        self.states.get(index)
    }
}

/// When checkpoints are due at one member.
pub(crate) struct CheckpointSchedule {
    /// Zero: never.
    every: Duration,
    due: Instant,
    /// Where training was one [`LEAD`] before that.
    sampled: Option<StepNumber>,
}

impl CheckpointSchedule {
    pub(crate) fn new(now: Instant, every: Duration) -> Self {
        Self { every, due: now.after(every), sampled: None }
    }

    /// When to call [`CheckpointSchedule::tick`] next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let sample_at = Instant(self.due.0.saturating_sub(self.lead().as_nanos() as u64));
        let next = if self.sampled.is_none() { sample_at } else { self.due };
        (!self.every.is_zero()).then_some(next)
    }

    /// The step after which all are to save, if one is due: ahead of where anybody can be when the word arrives.
    pub(crate) fn tick(&mut self, now: Instant, step: StepNumber) -> Option<StepNumber> {
        if self.deadline().is_none_or(|deadline| deadline > now) {
            return None;
        }
        let Some(sampled) = self.sampled else {
            self.sampled = Some(step);
            return None;
        };
        self.restart(now);
        // As many as were taken in the time before, and as many as members can be apart.
        let taken = step.0.saturating_sub(sampled.0);
        Some(StepNumber(step.0 + taken.max(STEPS_APART)))
    }

    /// One was saved, or is about to be.
    pub(crate) fn restart(&mut self, now: Instant) {
        *self = Self::new(now, self.every);
    }

    fn lead(&self) -> Duration {
        LEAD.min(self.every / 2)
    }
}

/// For so long training goes on before the step that is named.
const LEAD: Duration = Duration::from_secs(1);
/// Steps that members can be apart, and one that may be committed while the word is on its way.
const STEPS_APART: u64 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_named_as_far_ahead_as_training_gets_in_the_meantime() {
        let at = |seconds| Instant::default().after(Duration::from_secs(seconds));
        let mut checkpoint_schedule = CheckpointSchedule::new(at(0), Duration::from_secs(30));
        assert_eq!(checkpoint_schedule.deadline(), Some(at(29)));
        assert_eq!(checkpoint_schedule.tick(at(28), StepNumber(900)), None);
        assert_eq!(checkpoint_schedule.tick(at(29), StepNumber(1000)), None);
        assert_eq!(checkpoint_schedule.deadline(), Some(at(30)));
        assert_eq!(checkpoint_schedule.tick(at(30), StepNumber(1040)), Some(StepNumber(1080)));
        assert_eq!(checkpoint_schedule.deadline(), Some(at(59)));
        // Nothing gets on: the next steps all the same.
        assert_eq!(checkpoint_schedule.tick(at(60), StepNumber(1041)), None);
        assert_eq!(checkpoint_schedule.tick(at(61), StepNumber(1041)), Some(StepNumber(1041 + STEPS_APART)));
    }

    #[test]
    fn never_is_never() {
        let mut checkpoint_schedule = CheckpointSchedule::new(Instant::default(), Duration::ZERO);
        assert_eq!(checkpoint_schedule.deadline(), None);
        assert_eq!(checkpoint_schedule.tick(Instant(u64::MAX), StepNumber(5)), None);
    }
}
