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
//! Node and membership see this type only. Each engine lacks some of what the other has: a run with tables has no checkpoint and no merge
//! snapshot, and a run with steps has no clock.

use std::collections::BTreeMap;
use std::sync::Arc;

use peergrad_protocol::message::{Closed, Complete, Contact, MemberReport, Message};
use peergrad_protocol::view::{Member, View};
use peergrad_protocol::{PeerId, Pool, Rank, StepNumber, ViewDigest};

use crate::io::{Output, Reject};
use crate::program::command::Reply;
use crate::program::loader::Loaded;
use crate::state::checkpoint::Checkpoint;
use crate::state::shared_cache::SharedCache;
use base::EngineBase;
use steps::StepEngine;
use tables::TableEngine;

mod account;
mod base;
mod closing;
mod closing_barrier;
mod flow_control;
mod inputs;
mod merging;
mod omissions;
mod steps;
mod tables;

/// Training, as one member sees it. It has a method for each thing that the node asks of training, hence many.
pub(crate) enum Training {
    /// All members take the same steps.
    Steps(Box<StepEngine>),
    /// Each worker has a clock of its own.
    Tables(Box<TableEngine>),
}

/// The inputs from which training starts in a member's first view.
pub(crate) struct TrainingInputs {
    pub(crate) me: Member,
    /// The run's specification, in the bytes that are kept in checkpoints.
    pub(crate) specification: Arc<[u8]>,
    pub(crate) loaded: Loaded,
    pub(crate) segments: Pool,
    pub(crate) cache: SharedCache,
    /// The checkpoint with which this member begins, if the view resumes from checkpoints.
    pub(crate) checkpoint: Option<Arc<Checkpoint>>,
}

impl Training {
    /// Begins training in `view`: the first one of a run, where all members draw the same initial parameters, or one in
    /// which this member is a newcomer. `credits` as for [`Training::enter`].
    pub(crate) fn begin_in(
        view: &Arc<View>,
        digest: ViewDigest,
        inputs: TrainingInputs,
        credits: &mut BTreeMap<PeerId, u32>,
        out: &mut Vec<Output>,
    ) -> Self {
        let checkpoint = inputs.checkpoint.clone();
        let base = EngineBase::new(view, digest, inputs, credits);
        let parameters = || match &checkpoint {
            Some(checkpoint) => Arc::clone(&checkpoint.parameters),
            None => base.initial_parameters(),
        };
        if let Some(table_spec) = base.loaded.program.table_spec(&base.loaded) {
            let parameters = parameters();
            return Self::Tables(Box::new(TableEngine::new(base, table_spec, parameters, out)));
        }
        // A newcomer gets its parameters from the other members.
        let complete = (!base.is_newcomer()).then(parameters);
        Self::Steps(Box::new(StepEngine::new(base, complete, checkpoint.as_deref(), out)))
    }

    fn base(&self) -> &EngineBase {
        match self {
            Self::Steps(steps) => &steps.base,
            Self::Tables(tables) => &tables.base,
        }
    }

    fn base_mut(&mut self) -> &mut EngineBase {
        match self {
            Self::Steps(steps) => &mut steps.base,
            Self::Tables(tables) => &mut tables.base,
        }
    }

    fn steps(&self) -> Option<&StepEngine> {
        if let Self::Steps(steps) = self { Some(steps) } else { None }
    }

    fn steps_mut(&mut self) -> Option<&mut StepEngine> {
        if let Self::Steps(steps) = self { Some(steps) } else { None }
    }

    fn tables_mut(&mut self) -> Option<&mut TableEngine> {
        if let Self::Tables(tables) = self { Some(tables) } else { None }
    }

    /// Does all that can be done now.
    fn make_progress(&mut self, out: &mut Vec<Output>) {
        match self {
            Self::Steps(steps) => steps.make_progress(out),
            Self::Tables(tables) => tables.make_progress(out),
        }
    }

    // Where this member is.

    /// The view that this member is in.
    pub(crate) fn view(&self) -> &Arc<View> {
        self.base().view()
    }

    /// The digest of that view.
    pub(crate) fn digest(&self) -> ViewDigest {
        self.base().digest()
    }

    /// This member's rank in its view.
    pub(crate) fn rank(&self) -> Rank {
        self.base().rank
    }

    /// The task, and the configuration of its training.
    pub(crate) fn loaded(&self) -> &Loaded {
        &self.base().loaded
    }

    /// The step in progress; with tables, the one that views begin at.
    pub(crate) fn step(&self) -> StepNumber {
        match self {
            Self::Steps(steps) => steps.step(),
            Self::Tables(tables) => tables.step(),
        }
    }

    /// The step of this member, or its worker's clock.
    pub(crate) fn at(&self) -> StepNumber {
        match self {
            Self::Steps(steps) => steps.step(),
            Self::Tables(tables) => tables.clock(),
        }
    }

    /// Whether the program keeps its state in tables.
    pub(crate) fn has_tables(&self) -> bool {
        matches!(self, Self::Tables(_))
    }

    /// Whether this member has left this view.
    pub(crate) fn is_past(&self, view: &ViewDigest) -> bool {
        self.base().is_past(view)
    }

    /// The address of a member; `None` of a peer that is no member.
    pub(crate) fn contact_of(&self, peer: &PeerId) -> Option<Contact> {
        self.base().contact_of(peer)
    }

    /// Sends a message to every other member.
    pub(crate) fn broadcast(&self, message: &Message, out: &mut Vec<Output>) {
        self.base().broadcast(message, out);
    }

    // The change of the view.

    /// Stops training: from now on no frame is taken in or sent, and no step is completed.
    pub(crate) fn freeze(&mut self) {
        self.base_mut().is_frozen = true;
    }

    /// Whether it is frozen, or cannot begin.
    pub(crate) fn is_suspended(&self) -> bool {
        self.base().is_frozen || self.is_behind_view()
    }

    /// Whether the view begins at a step that this member has not reached.
    pub(crate) fn is_behind_view(&self) -> bool {
        self.steps().is_some_and(StepEngine::is_behind_view)
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

    /// Whether it has stopped before `step`, and no member needs anything from it in this view any more.
    pub(crate) fn has_stopped_before(&self, step: StepNumber) -> bool {
        self.steps().is_some_and(|steps| steps.has_stopped_before(step))
    }

    /// The step of this member, and the chunks and state that it has.
    pub(crate) fn report(&self) -> MemberReport {
        match self {
            Self::Steps(steps) => steps.report(),
            Self::Tables(tables) => tables.report(),
        }
    }

    /// Enters `view`. `credits` are those of all links; the members' shares are taken out of it, and put back when the view is left.
    pub(crate) fn enter(
        &mut self,
        view: &Arc<View>,
        digest: ViewDigest,
        credits: &mut BTreeMap<PeerId, u32>,
        out: &mut Vec<Output>,
    ) {
        match self {
            Self::Steps(steps) => steps.enter(view, digest, credits, out),
            Self::Tables(tables) => tables.enter(view, digest, credits, out),
        }
    }

    /// Returns the credit of all held segments: training is over at this member. Returns the reply of a program that waits for a view.
    pub(crate) fn leave(
        self,
        credits: &mut BTreeMap<PeerId, u32>,
        out: &mut Vec<Output>,
    ) -> Option<Reply<()>> {
        match self {
            Self::Steps(steps) => steps.leave(credits, out),
            Self::Tables(tables) => tables.leave(credits, out),
        }
    }

    // The end.

    /// This member wants to leave: a worker of tables begins no clock any more.
    pub(crate) fn wind_down(&mut self, out: &mut Vec<Output>) {
        if let Some(tables) = self.tables_mut() {
            tables.wind_down(out);
        }
    }

    /// Whether nothing that this member's worker has computed would be lost if it left.
    pub(crate) fn has_wound_down(&self) -> bool {
        match self {
            Self::Steps(_) => true,
            Self::Tables(tables) => tables.has_wound_down(),
        }
    }

    /// The program is done: tells the other members, and waits until all of them have said so.
    pub(crate) fn close(&mut self, reply: Reply<()>, out: &mut Vec<Output>) {
        match self {
            Self::Steps(steps) => steps.close(reply, out),
            Self::Tables(tables) => tables.close(reply, out),
        }
    }

    /// The run is over, and the program still computes something that no step waits for: the other members need not wait for it.
    pub(crate) fn close_without_program(&mut self, out: &mut Vec<Output>) {
        if let Some(steps) = self.steps_mut() {
            steps.close_without_program(out);
        }
    }

    /// A member has finished the run.
    ///
    /// # Errors
    /// The sender is no member of the view.
    pub(crate) fn receive_complete(&mut self, from: PeerId, complete: Complete) -> Result<(), Reject> {
        self.base_mut().receive_complete(from, complete)
    }

    /// A member knows that every member has finished.
    ///
    /// # Errors
    /// The sender is no member of the view.
    pub(crate) fn receive_closed(&mut self, from: PeerId, closed: Closed) -> Result<(), Reject> {
        self.base_mut().receive_closed(from, closed)
    }

    /// As [`Training::receive_closed`], from a member that did not enter this view: all members of the view before had finished.
    pub(crate) fn closed_before(&mut self, closed: Closed) {
        self.base_mut().closed_before(closed);
    }

    /// Whether every member has finished, so that the last step is committed and the run is over.
    pub(crate) fn is_closed(&self) -> bool {
        self.base().is_closed()
    }

    /// The message with which this member tells others that every member has finished.
    pub(crate) fn closed(&self) -> Message {
        self.base().closed()
    }

    /// Whether the others wait for this member to report that every member has finished.
    pub(crate) fn is_barrier_root(&self) -> bool {
        self.base().is_barrier_root()
    }

    /// Whether the run cannot end properly without this peer.
    pub(crate) fn is_needed(&self, peer: &PeerId) -> bool {
        self.base().is_needed(peer)
    }

    /// Commits the last step, after the closing barrier.
    pub(crate) fn commit_last(&mut self, out: &mut Vec<Output>) {
        assert!(self.is_closed(), "every member is done");
        if let Some(steps) = self.steps_mut() {
            steps.commit_last(out);
        }
        self.base_mut().end_barrier();
    }
}
