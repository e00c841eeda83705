//! The inputs of training: the program's commands, the frames of other members, and links. Each is passed to the engine that handles it.
//!
//! A frame that the engine of this run does not handle is [out of place](Reject::OutOfPlace). A command that it does not handle is dropped
//! with its reply: the program was written for the other engine.

use peergrad_protocol::message::TrainingMessage;
use peergrad_protocol::{Buffer, PeerId};

use super::Training;
use crate::io::{Output, Reject};
use crate::program::command::ProgramCommand;

impl Training {
    // Commands of the program.

    /// Whether a command belongs to the step or clock that the program has begun last, and that was not interrupted since.
    pub(crate) fn is_current(&self, turn: u64) -> bool {
        match self {
            Self::Steps(steps) => steps.is_current(turn),
            Self::Tables(tables) => tables.is_current(turn),
        }
    }

    /// Carries out a command of the program. (A job is none of training's: see [`is_current`](Self::is_current).)
    ///
    /// # Errors
    /// A member that is ahead sent a segment that the plan does not contain.
    pub(crate) fn command(
        &mut self,
        command: ProgramCommand,
        out: &mut Vec<Output>,
    ) -> Result<(), (PeerId, Reject)> {
        match self {
            Self::Steps(steps) => steps.command(command, out),
            Self::Tables(tables) => {
                tables.command(command, out);
                Ok(())
            }
        }
    }

    // Frames of other members.

    /// Takes in a message of another member, with its payload if it has one.
    ///
    /// # Errors
    /// The sender is not a member, or no correct member sends this here and now.
    pub(crate) fn receive(
        &mut self,
        from: PeerId,
        message: TrainingMessage,
        payload: Option<Buffer>,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        // Whichever engine this is.
        match &message {
            TrainingMessage::Segment(_) if payload.is_none() => return Err(Reject::Segment),
            TrainingMessage::ChunkBatch(_) if payload.is_none() => return Err(Reject::Chunk),
            TrainingMessage::Tables if payload.is_none() => return Err(Reject::MalformedTableMessage),
            TrainingMessage::Complete(complete) => return self.base_mut().receive_complete(from, *complete),
            TrainingMessage::Closed(closed) => return self.base_mut().receive_closed(from, *closed),
            _ => {}
        }
        match self {
            Self::Steps(steps) => steps.receive(from, message, payload, out),
            Self::Tables(tables) => tables.receive(from, &message, payload, out),
        }
    }

    // Links.

    /// A member returned credit.
    pub(crate) fn credit(&mut self, from: &PeerId, segments: u32, out: &mut Vec<Output>) {
        let base = self.base_mut();
        if base.flow_control.give_back(from, segments, &base.shard_map.view) {
            match self {
                Self::Steps(steps) => steps.make_progress(out),
                Self::Tables(tables) => tables.make_progress(out),
            }
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
}
