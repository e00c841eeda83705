//! The inputs of training: the program's commands, the frames of other members, and links. Each goes to the engine that knows it.
//!
//! A frame that the engine of this run does not know is [out of place](Reject::OutOfPlace). A command that it does not know is
//! dropped, and its reply with it: the program was written for the other engine.

use peergrad_collectives::groups::Groups;
use peergrad_protocol::message::{ChunkBatch, Segment, StepContributors, StepProgress, WantChunks};
use peergrad_protocol::{Buffer, PeerId};

use super::Training;
use crate::io::{Output, Reject};
use crate::program::context::{ClockStart, Contribution, OwnerRule, Reply, StepStart, TableOperation};

impl Training {
    // What the program asks.

    /// Answers when there is a view to train in.
    pub(crate) fn ready(&mut self, reply: Reply<()>, out: &mut Vec<Output>) {
        match self {
            Self::Steps(steps) => steps.ready(reply, out),
            Self::Tables(tables) => tables.ready(reply, out),
        }
    }

    /// Whether a command belongs to the step or clock that the program was handed out last, and was not interrupted since.
    pub(crate) fn is_current(&self, turn: u64) -> bool {
        match self {
            Self::Steps(steps) => steps.is_current(turn),
            Self::Tables(tables) => tables.is_current(turn),
        }
    }

    /// Whether a command belongs to a step that was finished without it.
    pub(crate) fn is_finished(&self, turn: u64) -> bool {
        self.steps().is_some_and(|steps| steps.is_finished(turn))
    }

    /// Hands out the next step, once it is open. There is none with tables.
    pub(crate) fn begin(&mut self, reply: Reply<StepStart>, out: &mut Vec<Output>) {
        if let Some(steps) = self.steps_mut() {
            steps.begin(reply, out);
        }
    }

    /// Starts the round of the current step.
    ///
    /// # Errors
    /// A member that is ahead sent a segment that the plan does not foresee.
    pub(crate) fn reduce_scatter(
        &mut self,
        contribution: Contribution,
        among: Option<Groups>,
        reply: Reply<()>,
        out: &mut Vec<Output>,
    ) -> Result<(), (PeerId, Reject)> {
        self.steps_mut().map_or(Ok(()), |steps| steps.reduce_scatter(contribution, among, reply, out))
    }

    /// Takes the optimizer step for the own shard, as its sums come in.
    pub(crate) fn update_owned(&mut self, rule: OwnerRule, reply: Reply<()>, out: &mut Vec<Output>) {
        if let Some(steps) = self.steps_mut() {
            steps.update_owned(rule, reply, out);
        }
    }

    /// Sends the own shard to all members, as it becomes final.
    pub(crate) fn all_gather(&mut self, reply: Reply<()>, out: &mut Vec<Output>) {
        if let Some(steps) = self.steps_mut() {
            steps.all_gather(reply, out);
        }
    }

    /// Hands out the next clock, once it can begin. There is none without tables.
    pub(crate) fn begin_clock(&mut self, reply: Reply<ClockStart>, out: &mut Vec<Output>) {
        if let Some(tables) = self.tables_mut() {
            tables.begin_clock(reply, out);
        }
    }

    /// Does something in the clock that the program was handed out last.
    pub(crate) fn operate(&mut self, operation: TableOperation, out: &mut Vec<Output>) {
        if let Some(tables) = self.tables_mut() {
            tables.operate(operation, out);
        }
    }

    // What other members send.

    /// Takes in a segment of a round.
    ///
    /// # Errors
    /// The sender is no member, or no correct member sends that.
    pub(crate) fn receive_segment(
        &mut self,
        from: PeerId,
        segment: Segment,
        payload: Buffer,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        self.steps_mut()
            .map_or(Err(Reject::OutOfPlace), |steps| steps.receive_segment(from, segment, payload, out))
    }

    /// Takes in chunks that move, or that were asked for.
    ///
    /// # Errors
    /// They are damaged, or not those that were to come.
    pub(crate) fn chunk_batch(
        &mut self,
        from: PeerId,
        message: &ChunkBatch,
        payload: &Buffer,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        self.steps_mut()
            .map_or(Err(Reject::OutOfPlace), |steps| steps.chunk_batch(from, message, payload, out))
    }

    /// A member lacks chunks that this one has.
    ///
    /// # Errors
    /// The sender is no member, or asks for more than there is.
    pub(crate) fn receive_chunk_request(
        &mut self,
        from: PeerId,
        want: WantChunks,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        self.steps_mut().map_or(Err(Reject::OutOfPlace), |steps| steps.receive_chunk_request(from, want, out))
    }

    /// A member tells the first owner how far it is.
    ///
    /// # Errors
    /// The sender is no member, or steps of this run wait for all members.
    pub(crate) fn receive_offer(
        &mut self,
        from: PeerId,
        offer: StepProgress,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        self.steps_mut().map_or(Err(Reject::OutOfPlace), |steps| steps.receive_offer(from, offer, out))
    }

    /// The first owner tells which members are late.
    ///
    /// # Errors
    /// The sender is not the first owner, or the choice does not fit the step in progress.
    pub(crate) fn receive_choice(
        &mut self,
        from: PeerId,
        chosen: StepContributors,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        self.steps_mut().map_or(Err(Reject::OutOfPlace), |steps| steps.receive_choice(from, chosen, out))
    }

    /// Takes in a segment of table messages.
    ///
    /// # Errors
    /// The sender is no member, or no correct member sends that.
    pub(crate) fn on_table_frame(
        &mut self,
        from: PeerId,
        payload: Buffer,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        self.tables_mut().map_or(Err(Reject::OutOfPlace), |tables| tables.on_table_frame(from, payload, out))
    }

    // Links.

    /// A member returned credit.
    pub(crate) fn credit(&mut self, from: &PeerId, segments: u32, out: &mut Vec<Output>) {
        let base = self.base_mut();
        if base.flow_control.give_back(from, segments, &base.shard_map.view) {
            self.make_progress(out);
        }
    }

    /// A new link to a member is there: nothing is on its way.
    pub(crate) fn link_up(&mut self, peer: &PeerId, out: &mut Vec<Output>) {
        let Some(rank) = self.view().rank(peer) else { return };
        match self {
            Self::Steps(steps) => steps.link_up(peer, rank, out),
            Self::Tables(tables) => tables.link_up(rank, out),
        }
    }

    /// A member is not linked any more.
    pub(crate) fn link_down(&mut self, peer: &PeerId) {
        let Some(rank) = self.view().rank(peer) else { return };
        match self {
            Self::Steps(steps) => steps.link_down(rank),
            Self::Tables(tables) => tables.base.flow_control.link_down(rank),
        }
    }

    /// Something has come from outside: an idle worker of tables may begin a clock again.
    pub(crate) fn wake(&mut self) {
        if let Some(tables) = self.tables_mut() {
            tables.wake();
        }
    }
}
