//! Training: a member's part in it, from view to view, by one of two engines.
//!
//! ```text
//!                 Training
//!                /        \
//!        StepEngine      TableEngine      one of them, as the program asks for
//!                \        /
//!                EngineBase               rank, view, links, run, closing barrier
//! ```
//! - The [step engine](steps) trains all members in lockstep: batches, rounds, commits.
//! - The [table engine](tables) lets each worker go at its own pace, on rows of parameters that members keep for each other.
//!
//! The node asks [`Training`] for what both engines have. Each engine lacks some of what the other has: a run with tables has no merge
//! snapshot, and a run with steps has no clock.

use std::collections::BTreeMap;
use std::sync::Arc;

use peergrad_protocol::message::MemberReport;
use peergrad_protocol::view::{Ancestor, Member, Resume, View};
use peergrad_protocol::{Buffer, PeerId, Pool, StepNumber, ViewDigest};

use crate::io::{Failure, Output};
use crate::peer_links::LinkFlow;
use crate::program::command::Reply;
use crate::program::loader::Loaded;
use crate::state::checkpoint::Checkpoint;
use crate::state::shared_cache::SharedCache;
use base::EngineBase;
pub(crate) use base::VECTORS_KEPT_MAX;
use steps::StepEngine;
use steps::merge_snapshot::{BranchSnapshots, BranchSnapshotsMut};
use tables::TableEngine;

mod account;
mod base;
mod closing;
mod closing_barrier;
mod flow_control;
mod inputs;
mod loss_watch;
mod omissions;
mod steps;
mod tables;

/// Training, as one member sees it.
///
/// It has a method for each thing that both engines do in their own way. What they have in common is reached by [`base`](Self::base), and
/// what only one of them has by [`steps`](Self::steps) or [`tables_mut`](Self::tables_mut).
pub(crate) enum Training {
    /// All members take the same steps.
    Steps(Box<StepEngine>),
    /// Each worker has a clock of its own.
    Tables(Box<TableEngine>),
}

/// The inputs from which training starts in a member's first view.
pub(crate) struct TrainingInputs {
    /// This member, in the incarnation that is in the view.
    pub(crate) me: Member,
    /// The run's specification, in the bytes that are kept in checkpoints.
    pub(crate) specification: Arc<[u8]>,
    /// The task, its configuration, and the program.
    pub(crate) loaded: Loaded,
    /// The pool of vectors with as many elements as there are parameters.
    pub(crate) vectors: Pool,
    /// The initial parameters, as they were drawn when this peer reported that it is ready; `None` if a run has begun with them.
    pub(crate) initial: Option<Arc<Buffer>>,
    /// The pool of buffers for segments.
    pub(crate) segments: Pool,
    /// The cache of this process.
    pub(crate) cache: SharedCache,
    /// The checkpoint with which this member begins, if the view resumes from checkpoints.
    pub(crate) checkpoint: Option<Arc<Checkpoint>>,
}

impl Training {
    /// Begins training in `view`: the first one of a run, where all members draw the same initial parameters, or one in
    /// which this member is a newcomer. `flows` as for [`Training::enter`].
    pub(crate) fn begin_in(
        view: &Arc<View>,
        digest: ViewDigest,
        mut inputs: TrainingInputs,
        flows: &mut BTreeMap<PeerId, LinkFlow>,
        out: &mut Vec<Output>,
    ) -> Self {
        let (checkpoint, initial) = (inputs.checkpoint.clone(), inputs.initial.take());
        let base = EngineBase::new(view, digest, inputs, flows);
        let parameters = || match &checkpoint {
            Some(checkpoint) => Arc::clone(&checkpoint.parameters),
            None => initial.unwrap_or_else(|| base.initial_parameters()),
        };
        if let Some(table_spec) = base.loaded.program.table_spec(&base.loaded) {
            let parameters = parameters();
            let engine = TableEngine::new(base, table_spec, parameters, checkpoint.as_deref(), out);
            return Self::Tables(Box::new(engine));
        }
        // A newcomer gets its parameters from the other members.
        let complete = (!base.is_newcomer()).then(parameters);
        Self::Steps(Box::new(StepEngine::new(base, complete, checkpoint.as_deref(), out)))
    }

    /// What both engines have in common: this member's rank, its view, the links, and the closing barrier.
    pub(crate) fn base(&self) -> &EngineBase {
        match self {
            Self::Steps(steps) => &steps.state.base,
            Self::Tables(tables) => &tables.base,
        }
    }

    /// As [`base`](Self::base), to freeze training or to report to the closing barrier.
    pub(crate) fn base_mut(&mut self) -> &mut EngineBase {
        match self {
            Self::Steps(steps) => &mut steps.state.base,
            Self::Tables(tables) => &mut tables.base,
        }
    }

    /// What only a run of steps has, such as evaluations on the way. `None` in a run with tables.
    pub(crate) fn steps(&self) -> Option<&StepEngine> {
        if let Self::Steps(steps) = self { Some(steps) } else { None }
    }

    /// As [`steps`](Self::steps), to change it.
    pub(crate) fn steps_mut(&mut self) -> Option<&mut StepEngine> {
        if let Self::Steps(steps) = self { Some(steps) } else { None }
    }

    /// The snapshots for other branches. `None` in a run with tables, which has none.
    pub(crate) fn branch_snapshots(&self) -> Option<BranchSnapshots<'_>> {
        Some(self.steps()?.branch_snapshots())
    }

    /// As [`merging`](Self::merging), to keep, import and drop snapshots.
    pub(crate) fn branch_snapshots_mut(&mut self) -> Option<BranchSnapshotsMut<'_>> {
        Some(self.steps_mut()?.branch_snapshots_mut())
    }

    /// What only a run with tables has: a worker, which may be idle or wind down. `None` in a run of steps.
    pub(crate) fn tables_mut(&mut self) -> Option<&mut TableEngine> {
        if let Self::Tables(tables) = self { Some(tables) } else { None }
    }

    // Where this member is.

    /// The view that this member is in.
    pub(crate) fn view(&self) -> &Arc<View> {
        self.base().view()
    }

    /// The step in progress; with tables, the one that views begin at.
    pub(crate) fn step(&self) -> StepNumber {
        match self {
            Self::Steps(steps) => steps.state().step(),
            Self::Tables(tables) => tables.first_step(),
        }
    }

    /// The step of this member, or its worker's clock.
    pub(crate) fn at(&self) -> StepNumber {
        match self {
            Self::Steps(steps) => steps.state().step(),
            Self::Tables(tables) => tables.clock(),
        }
    }

    /// The number of committed steps; with tables, of clocks that this member has completed.
    pub(crate) fn committed(&self) -> StepNumber {
        match self {
            Self::Steps(steps) => StepNumber(steps.state().committed_steps()),
            Self::Tables(tables) => tables.clock(),
        }
    }

    /// The views that this branch descends from.
    pub(crate) fn ancestors(&self) -> Vec<Ancestor> {
        self.view().ancestors_at(self.committed())
    }

    /// Whether this branch descends from that view, perhaps through a merge.
    pub(crate) fn has_merged(&self, view: ViewDigest) -> bool {
        self.view().descends_from(view) || self.ancestors().iter().any(|root| root.view == view)
    }

    /// The newest state that this member can save by itself, and which checkpoints are kept beside it. `None` if it has nothing to save; with
    /// tables, also while other members store a part of it.
    pub(crate) fn checkpoint(&mut self) -> Option<Output> {
        let (checkpoint, retention) = match self {
            Self::Steps(steps) => (steps.state().checkpoint()?, steps.state().retention()),
            Self::Tables(tables) => (tables.checkpoint_alone()?, tables.retention()),
        };
        Some(Output::SaveCheckpoint { checkpoint: Arc::new(checkpoint), retention })
    }

    // The change of the view.

    /// Whether training is frozen in a view that it could continue in.
    pub(crate) fn can_thaw(&self) -> bool {
        self.base().is_frozen && !self.steps().is_some_and(StepEngine::is_behind_view)
    }

    /// Resumes in the same view, as if training had not stopped.
    pub(crate) fn thaw(&mut self, out: &mut Vec<Output>) {
        match self {
            Self::Steps(steps) => steps.thaw(out),
            Self::Tables(tables) => tables.thaw(out),
        }
    }

    /// Does not take `step` in this view. An earlier step before which it had stopped may be taken now.
    pub(crate) fn stop_before(&mut self, step: StepNumber, out: &mut Vec<Output>) {
        match self {
            Self::Steps(steps) => steps.stop_before(step, out),
            Self::Tables(tables) => tables.make_progress(out),
        }
    }

    /// Takes the step before which it has stopped: the change that was to happen there will not.
    pub(crate) fn continue_steps(&mut self, out: &mut Vec<Output>) {
        if let Self::Steps(steps) = self {
            steps.continue_steps(out);
        }
    }

    /// The step of this member, and the chunks and state that it has.
    pub(crate) fn report(&self) -> MemberReport {
        match self {
            Self::Steps(steps) => steps.report(),
            Self::Tables(tables) => tables.report(),
        }
    }

    /// Enters `view`, which resumes as `resume` says. `flows` are those of all links; the members' shares are taken out of it, and put
    /// back when the view is left.
    pub(crate) fn enter(
        &mut self,
        view: (&Arc<View>, ViewDigest),
        resume: &Resume,
        flows: &mut BTreeMap<PeerId, LinkFlow>,
        out: &mut Vec<Output>,
    ) {
        match self {
            Self::Steps(steps) => steps.enter(view, resume, flows, out),
            Self::Tables(tables) => tables.enter(view, flows, out),
        }
    }

    /// Returns the credit of all held segments: training is over at this member. Returns the reply of a program that waits for a view.
    pub(crate) fn leave(
        self,
        flows: &mut BTreeMap<PeerId, LinkFlow>,
        out: &mut Vec<Output>,
    ) -> Option<Reply<()>> {
        match self {
            Self::Steps(steps) => steps.leave(flows, out),
            Self::Tables(tables) => tables.leave(flows, out),
        }
    }

    // The end.

    /// Why the run cannot be continued: its loss has not been finite for long, or the members' parameters differ.
    pub(crate) fn failure(&self) -> Option<Failure> {
        let undecided = || self.steps()?.state().undecided();
        self.base().loss_watch.failure().or_else(undecided)
    }

    /// Why nothing of this member may be saved if it ends now: the newest step had no finite loss, or the parameters are not those of most
    /// members.
    pub(crate) fn failure_at_end(&self) -> Option<Failure> {
        self.base().loss_watch.failure_at_end().or_else(|| self.differs_at_end())
    }

    /// Why the run has failed at this member if it ends now, although its loss is finite: the parameters are not those of most members.
    pub(crate) fn differs_at_end(&self) -> Option<Failure> {
        self.steps()?.state().differs_at_end()
    }

    /// Whether nothing that this member's worker has computed would be lost if it left.
    pub(crate) fn has_wound_down(&self) -> bool {
        match self {
            Self::Steps(_) => true,
            Self::Tables(tables) => tables.has_wound_down(),
        }
    }

    /// Commits the newest complete step of a member that is alone: nobody else could undo it.
    pub(crate) fn commit_alone(&mut self, out: &mut Vec<Output>) {
        assert_eq!(self.view().members.len(), 1, "it is alone");
        if let Some(steps) = self.steps_mut() {
            steps.commit_last(out);
        }
    }

    /// Commits the last step, after the closing barrier.
    pub(crate) fn commit_last(&mut self, out: &mut Vec<Output>) {
        assert!(self.base().is_closed(), "every member is done");
        if let Some(steps) = self.steps_mut() {
            steps.commit_last(out);
        }
        self.base_mut().end_barrier();
    }
}
