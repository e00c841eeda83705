//! A checkpoint: what a member saves of a run, so that the run can resume after all its peers have stopped.
//!
//! Like players of an adjourned card game: each notes the whole table, and the cards in their own hand. One note is enough to restore the
//! table, and together the notes hold all cards. All members save the state after the same step.
//!
//! # How it works
//! - *When.* Every few seconds, as configured, the member of lowest rank names a step that is a little ahead of all members. A member saves
//!   when it has committed that step. A member that stops by itself saves its state once more.
//! - *What.* All parameters, and the optimizer state of the chunks that this member stores; with local parameters, its own parameters.
//! - *With tables* there is no step that all members commit. They agree on a moment at which no change is under way (`table/cut.rs`), and
//!   each saves the chunks that it stores at that moment.
//! - *What for.* When all peers have stopped, those that return agree on the view that follows their last one (`recovery.rs`). That view
//!   names the step from which all resume.
//!
//! # Not here
//! Files: `node/net/src/checkpoints.rs`. What each peer has alone (the residual of a lossy codec, and local optimizer state) is not saved:
//! it starts empty, as after any restart of a peer.

use std::sync::Arc;
use std::time::Duration;

use peergrad_protocol::manifest::Manifest;
use peergrad_protocol::message::{BestEvaluation, SavedCheckpoint};
use peergrad_protocol::table::TableChunk;
use peergrad_protocol::{Buffer, Instant, RunId, StepNumber};

pub use crate::state::optimizer_state::OptimizerState;

/// The state of a run after some committed steps, as far as one member stores it.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The id of the run.
    pub run: RunId,
    /// The encoded specification of the run.
    pub specification: Arc<[u8]>,
    /// The shape of the parameters.
    pub manifest: Manifest,
    /// The number of steps, the data cursor, and the chunks whose optimizer state is included.
    pub saved: SavedCheckpoint,
    /// The flat parameter vector.
    pub parameters: Arc<Buffer>,
    /// The optimizer state of the chunks that [`SavedCheckpoint::states`] names, in their order. Empty with tables.
    pub states: Vec<OptimizerState>,
    /// What this member has of the tables; `None` in a run of steps.
    pub tables: Option<SavedTables>,
    /// Samples that the steps left out.
    pub left_out: u64,
    /// Samples that this peer has computed.
    pub own_samples: u64,
    /// The evaluations during the run, before this checkpoint.
    pub evaluations: EvaluationHistory,
}

/// What one member has of a cut of tables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SavedTables {
    /// The chunks that [`SavedCheckpoint::states`] names, in their order.
    pub chunks: Vec<TableChunk>,
    /// How many clocks of this peer's worker are in the cut; `None` for a new worker, which had no clock.
    pub clock: Option<u64>,
}

/// The earlier evaluations of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EvaluationHistory {
    /// The best one; `None` before the first.
    pub best: Option<BestEvaluation>,
    /// How many came since.
    pub since_best: u32,
}

impl Checkpoint {
    /// The optimizer state of a chunk; `None` if it is not included.
    #[must_use]
    pub fn state(&self, chunk: usize) -> Option<&OptimizerState> {
        let index = self.saved.states.iter().position(|saved| saved == chunk)?;
        self.states.get(index)
    }
}

/// When checkpoints are due at one member.
pub(crate) struct CheckpointSchedule {
    /// The next checkpoint. `None` if none is ever due.
    next: Option<NextCheckpoint>,
    /// With tables: whether a cut is to begin as soon as that is possible.
    cut_is_due: bool,
    /// With tables: when the cut is given up that this member has asked for. `None` if it has asked for none since.
    cut_ends: Option<Instant>,
}

/// A checkpoint that is to come.
struct NextCheckpoint {
    /// The interval between checkpoints.
    every: Duration,
    /// When it is to be taken.
    due: Instant,
    /// The member's step at a time [`LEAD`] before `due`; `None` until then.
    sampled: Option<StepNumber>,
}

impl CheckpointSchedule {
    /// A schedule with this interval between checkpoints; `None`: they are never due.
    pub(crate) fn new(now: Instant, every: Option<Duration>) -> Self {
        Self { next: every.map(|every| NextCheckpoint::after(now, every)), cut_is_due: false, cut_ends: None }
    }

    /// When `tick` must be called next; `None` if checkpoints are never due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let next = self.next.as_ref()?.deadline();
        Some(self.cut_ends.map_or(next, |cut_ends| cut_ends.min(next)))
    }

    /// A cut of tables is due, if checkpoints are ever due: a view has begun, or the interval is over.
    pub(crate) fn request_cut(&mut self) {
        self.cut_is_due = self.next.is_some();
    }

    /// Whether a cut is to begin.
    pub(crate) fn cut_is_due(&self) -> bool {
        self.cut_is_due
    }

    /// This member asks all members for a cut of tables.
    pub(crate) fn cut_begins(&mut self, now: Instant) {
        self.cut_is_due = false;
        self.cut_ends = Some(now.after(CUT_TIME_MAX));
    }

    /// The cut was given up: the next one is due at the usual time.
    pub(crate) fn cut_fails(&mut self) {
        self.cut_is_due = false;
    }

    /// Whether the cut must be given up, if it was not taken yet. True once for each cut.
    pub(crate) fn cut_is_late(&mut self, now: Instant) -> bool {
        self.cut_ends.take_if(|ends| *ends <= now).is_some()
    }

    /// The step after which all members must save, if a checkpoint is due: ahead of any member's step when the message arrives.
    pub(crate) fn tick(&mut self, now: Instant, step: StepNumber) -> Option<StepNumber> {
        let next = self.next.as_mut().filter(|next| next.deadline() <= now)?;
        let Some(sampled) = next.sampled else {
            next.sampled = Some(step);
            return None;
        };
        self.restart(now);
        // The steps of the last [`LEAD`], and at least as many as members can be apart.
        let taken = step.0.saturating_sub(sampled.0);
        Some(StepNumber(step.0 + taken.max(STEPS_APART)))
    }

    /// A checkpoint was saved, or is about to be: the interval starts again.
    pub(crate) fn restart(&mut self, now: Instant) {
        if let Some(next) = &mut self.next {
            *next = NextCheckpoint::after(now, next.every);
        }
    }
}

impl NextCheckpoint {
    fn deadline(&self) -> Instant {
        let sample_at = Instant(self.due.0.saturating_sub(LEAD.min(self.every / 2).as_nanos() as u64));
        if self.sampled.is_none() { sample_at } else { self.due }
    }

    fn after(now: Instant, every: Duration) -> Self {
        Self { every, due: now.after(every), sampled: None }
    }
}

/// How long members may hold back changes of tables for a cut. Usually they do so for some round trips.
const CUT_TIME_MAX: Duration = Duration::from_secs(5);
/// How far ahead in time the step is named.
const LEAD: Duration = Duration::from_secs(1);
/// How many steps members can be apart, and one more that may be committed while the message is on its way.
const STEPS_APART: u64 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_to_save_is_chosen_as_far_ahead_as_training_gets_meanwhile() {
        let at = |seconds| Instant::default().after(Duration::from_secs(seconds));
        let mut checkpoint_schedule = CheckpointSchedule::new(at(0), Some(Duration::from_secs(30)));
        assert_eq!(checkpoint_schedule.deadline(), Some(at(29)));
        assert_eq!(checkpoint_schedule.tick(at(28), StepNumber(900)), None);
        assert_eq!(checkpoint_schedule.tick(at(29), StepNumber(1000)), None);
        assert_eq!(checkpoint_schedule.deadline(), Some(at(30)));
        assert_eq!(checkpoint_schedule.tick(at(30), StepNumber(1040)), Some(StepNumber(1080)));
        assert_eq!(checkpoint_schedule.deadline(), Some(at(59)));
        // Training has stalled: a step a little ahead is named nevertheless.
        assert_eq!(checkpoint_schedule.tick(at(60), StepNumber(1041)), None);
        assert_eq!(checkpoint_schedule.tick(at(61), StepNumber(1041)), Some(StepNumber(1041 + STEPS_APART)));
    }

    #[test]
    fn no_checkpoint_is_scheduled_without_an_interval() {
        let mut checkpoint_schedule = CheckpointSchedule::new(Instant::default(), None);
        assert_eq!(checkpoint_schedule.deadline(), None);
        assert_eq!(checkpoint_schedule.tick(Instant(u64::MAX), StepNumber(5)), None);
    }
}
