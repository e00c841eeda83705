//! The inputs of training: the program's commands, the frames of other members, and links. Each is passed to the engine that handles it.
//!
//! A frame that the engine of this run does not handle is [out of place](Reject::OutOfPlace). A command that it does not handle is dropped
//! with its reply: the program was written for the other engine.

use peergrad_collectives::groups::Groups;
use peergrad_protocol::message::{ChunkBatch, Segment, StepContributors, StepProgress, WantChunks};
use peergrad_protocol::{Buffer, PeerId};

use super::Training;
use crate::io::{Output, Reject};
use crate::program::command::{ClockStart, Reply, StepStart, TableOperation};
use crate::program::contribution::Contribution;
use crate::state::owner_rule::OwnerRule;

impl Training {
    // Commands of the program.

    /// Replies when there is a view to train in.
    pub(crate) fn ready(&mut self, reply: Reply<()>, out: &mut Vec<Output>) {
        match self {
            Self::Steps(steps) => steps.ready(reply, out),
            Self::Tables(tables) => tables.ready(reply, out),
        }
    }

    /// Whether a command belongs to the step or clock that the program has begun last, and that was not interrupted since.
    pub(crate) fn is_current(&self, turn: u64) -> bool {
        match self {
            Self::Steps(steps) => steps.is_current(turn),
            Self::Tables(tables) => tables.is_current(turn),
        }
    }

    /// Whether a command belongs to a step that was completed without the program.
    pub(crate) fn is_finished(&self, turn: u64) -> bool {
        self.steps().is_some_and(|steps| steps.is_finished(turn))
    }

    /// Replies with the next step, once it is open. With tables there is none.
    pub(crate) fn begin(&mut self, reply: Reply<StepStart>, out: &mut Vec<Output>) {
        if let Some(steps) = self.steps_mut() {
            steps.begin(reply, out);
        }
    }

    /// Starts the round of the current step.
    ///
    /// # Errors
    /// A member that is ahead sent a segment that the plan does not contain.
    pub(crate) fn reduce_scatter(
        &mut self,
        contribution: Contribution,
        among: Option<Groups>,
        reply: Reply<()>,
        out: &mut Vec<Output>,
    ) -> Result<(), (PeerId, Reject)> {
        self.steps_mut().map_or(Ok(()), |steps| steps.reduce_scatter(contribution, among, reply, out))
    }

    /// Takes the optimizer step for this member's shard, as its sums arrive.
    pub(crate) fn update_owned(&mut self, rule: OwnerRule, reply: Reply<()>, out: &mut Vec<Output>) {
        if let Some(steps) = self.steps_mut() {
            steps.update_owned(rule, reply, out);
        }
    }

    /// Sends this member's shard to all members, as its values become final.
    pub(crate) fn all_gather(&mut self, reply: Reply<()>, out: &mut Vec<Output>) {
        if let Some(steps) = self.steps_mut() {
            steps.all_gather(reply, out);
        }
    }

    /// Replies with the next clock, once it can begin. Without tables there is none.
    pub(crate) fn begin_clock(&mut self, reply: Reply<ClockStart>, out: &mut Vec<Output>) {
        if let Some(tables) = self.tables_mut() {
            tables.begin_clock(reply, out);
        }
    }

    /// Carries out an operation of the clock that the program has begun last.
    pub(crate) fn operate(&mut self, operation: TableOperation, out: &mut Vec<Output>) {
        if let Some(tables) = self.tables_mut() {
            tables.operate(operation, out);
        }
    }

    // Frames of other members.

    /// Takes in a segment of a round.
    ///
    /// # Errors
    /// The sender is not a member, or no correct member sends this segment.
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

    /// Takes in chunks that move, or that were requested.
    ///
    /// # Errors
    /// The chunks are damaged, or not expected.
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

    /// A member requests chunks that this one has.
    ///
    /// # Errors
    /// The sender is not a member, or requests more than there is.
    pub(crate) fn receive_chunk_request(
        &mut self,
        from: PeerId,
        want: WantChunks,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        self.steps_mut().map_or(Err(Reject::OutOfPlace), |steps| steps.receive_chunk_request(from, want, out))
    }

    /// A member tells the first owner about its progress.
    ///
    /// # Errors
    /// The sender is not a member, or steps of this run wait for all members.
    pub(crate) fn receive_offer(
        &mut self,
        from: PeerId,
        offer: StepProgress,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        self.steps_mut().map_or(Err(Reject::OutOfPlace), |steps| steps.receive_offer(from, offer, out))
    }

    /// The first owner says which members are late.
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
    /// The sender is not a member, or no correct member sends this segment.
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

    /// There is a new link to a member, with nothing on its way yet.
    pub(crate) fn link_up(&mut self, peer: &PeerId, out: &mut Vec<Output>) {
        let Some(rank) = self.view().rank(peer) else { return };
        match self {
            Self::Steps(steps) => steps.link_up(peer, rank, out),
            Self::Tables(tables) => tables.link_up(rank, out),
        }
    }

    /// A link to a member is down.
    pub(crate) fn link_down(&mut self, peer: &PeerId) {
        let Some(rank) = self.view().rank(peer) else { return };
        match self {
            Self::Steps(steps) => steps.link_down(rank),
            Self::Tables(tables) => tables.base.flow_control.link_down(rank),
        }
    }

    /// An input has arrived: an idle worker of tables may begin a clock again.
    pub(crate) fn wake(&mut self) {
        if let Some(tables) = self.tables_mut() {
            tables.wake();
        }
    }
}
