//! What a user asks of a running node: to leave the run, to expel a member, and to give up lost table chunks.

use peergrad_protocol::view::ExpulsionCause;
use peergrad_protocol::{Instant, PeerId};

use super::{Machine, NodeRole, Progress};
use crate::io::{Event, Failure, Output};

impl Machine {
    /// The user asks this peer to leave. A member first hands over the chunks that it owns, if another member is there to take them.
    pub(super) fn leave(&mut self, out: &mut Vec<Output>) {
        match &mut self.role {
            NodeRole::Member(active)
                if active.progress == Progress::Training
                    && active.training.view().members.len() > 1
                    && !active.membership.members.is_paused()
                    && active.membership.missing_chunks() == 0 =>
            {
                self.is_leaving = true;
                if let Some(tables) = active.training.tables_mut() {
                    tables.wind_down(out);
                }
                out.push(Output::Event(Event::Leaving));
            }
            _ => self.end(Err(Failure::Left), out),
        }
    }

    /// A leaving member asks the others to go on without it, once its worker has sent all that it has computed.
    pub(super) fn retire_if_done(&mut self, now: Instant, out: &mut Vec<Output>) {
        if let NodeRole::Member(active) = &mut self.role
            && self.is_leaving
            && !active.membership.members.is_retiring()
            && active.training.has_wound_down()
        {
            active.membership.members.on_retire(self.me.peer);
            self.poll_membership(now, out);
        }
    }

    /// The user asks to expel a member.
    pub(super) fn expel(&mut self, now: Instant, peer: PeerId, out: &mut Vec<Output>) {
        if let NodeRole::Member(active) = &mut self.role {
            active.membership.members.expel(peer, ExpulsionCause::Request, out);
            self.poll_membership(now, out);
        }
    }

    /// The user declares table chunks lost: all their replicas are gone for good, so nothing waits for them any more.
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
