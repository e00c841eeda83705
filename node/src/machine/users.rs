//! What users want of a node that runs: to leave, to have somebody else put out, and to go on without what is lost.

use peergrad_protocol::view::Cause;
use peergrad_protocol::{Instant, PeerId};

use super::{Machine, Progress, Stage};
use crate::io::{Event, Failure, Output};

impl Machine {
    /// The user wants this peer to go: a member hands over what it owns first, if there is anybody to take it.
    pub(super) fn leave(&mut self, out: &mut Vec<Output>) {
        match &mut self.stage {
            Stage::Member(seat)
                if seat.progress == Progress::Training
                    && seat.session.view().members.len() > 1
                    && !seat.membership.is_paused()
                    && seat.membership.missing_chunks() == 0 =>
            {
                self.is_leaving = true;
                seat.session.wind_down(out);
                out.push(Output::Event(Event::Leaving));
            }
            _ => self.end(Err(Failure::Left), out),
        }
    }

    /// One that wants to leave asks the others to go on without it, once its worker is done with what it has computed.
    pub(super) fn retire_if_done(&mut self, now: Instant, out: &mut Vec<Output>) {
        if let Stage::Member(seat) = &mut self.stage
            && self.is_leaving
            && !seat.membership.is_retiring()
            && seat.session.has_wound_down()
        {
            seat.membership.on_retire(self.me.peer);
            self.look(now, out);
        }
    }

    /// A user wants a member out.
    pub(super) fn expel(&mut self, now: Instant, peer: PeerId, out: &mut Vec<Output>) {
        if let Stage::Member(seat) = &mut self.stage {
            seat.membership.expel(peer, Cause::Request, out);
            self.look(now, out);
        }
    }

    /// What nobody has of tables will not come back.
    pub(super) fn declare_lost(&mut self, now: Instant, out: &mut Vec<Output>) {
        match &mut self.stage {
            Stage::Member(seat) => seat.membership.declare_lost(),
            Stage::Joining(joining) => {
                if let Some(returning) = joining.returning() {
                    returning.declare_lost();
                }
            }
            _ => return,
        }
        self.look(now, out);
    }
}
