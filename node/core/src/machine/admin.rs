//! What users want of a node that runs: to leave, to have somebody else put out, and to go on without what is lost.

use peergrad_protocol::view::ExpulsionCause;
use peergrad_protocol::{Instant, PeerId};

use super::{Machine, NodeRole, Progress};
use crate::io::{Event, Failure, Output};

impl Machine {
    /// The user wants this peer to go: a member hands over what it owns first, if there is anybody to take it.
    pub(super) fn leave(&mut self, out: &mut Vec<Output>) {
        match &mut self.role {
            NodeRole::Member(active)
                if active.progress == Progress::Training
                    && active.training.view().members.len() > 1
                    && !active.membership.is_paused()
                    && active.membership.missing_chunks() == 0 =>
            {
                self.is_leaving = true;
                active.training.wind_down(out);
                out.push(Output::Event(Event::Leaving));
            }
            _ => self.end(Err(Failure::Left), out),
        }
    }

    /// One that wants to leave asks the others to go on without it, once its worker is done with what it has computed.
    pub(super) fn retire_if_done(&mut self, now: Instant, out: &mut Vec<Output>) {
        if let NodeRole::Member(active) = &mut self.role
            && self.is_leaving
            && !active.membership.is_retiring()
            && active.training.has_wound_down()
        {
            active.membership.on_retire(self.me.peer);
            self.poll_membership(now, out);
        }
    }

    /// A user wants a member out.
    pub(super) fn expel(&mut self, now: Instant, peer: PeerId, out: &mut Vec<Output>) {
        if let NodeRole::Member(active) = &mut self.role {
            active.membership.expel(peer, ExpulsionCause::Request, out);
            self.poll_membership(now, out);
        }
    }

    /// What nobody has of tables will not come back.
    pub(super) fn declare_lost(&mut self, now: Instant, out: &mut Vec<Output>) {
        match &mut self.role {
            NodeRole::Member(active) => active.membership.declare_lost(),
            NodeRole::Joiner(joiner) => {
                if let Some(recovering) = joiner.recovering() {
                    recovering.declare_lost();
                }
            }
            _ => return,
        }
        self.poll_membership(now, out);
    }
}
