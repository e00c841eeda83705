//! Pauses: what the user has learned about members that are missing, in one view.

use peergrad_protocol::PeerId;

use crate::io::{Event, Output};

/// The pause of one view.
#[derive(Default)]
pub(super) struct Pause {
    /// How many members were reached at the last report that they are too few; `None` before the first.
    reached: Option<usize>,
    /// Whether the user has been informed that no reachable member has parameters.
    is_orphaned: bool,
}

impl Pause {
    /// Whether too few members can be reached to continue or to hand over chunks.
    pub(super) fn is_begun(&self) -> bool {
        self.reached.is_some()
    }

    /// How many of `members` can be reached, this one included, and how many are needed; `None` unless too few can be reached.
    pub(super) fn reached_and_needed(&self, members: usize) -> Option<(usize, usize)> {
        let reached = self.reached?;
        Some((reached, needed(members, reached)))
    }

    /// Whether all members with parameters are lost.
    pub(super) fn is_orphaned(&self) -> bool {
        self.is_orphaned
    }

    /// Tells the user that too few of `members` can be reached, once for each number of them.
    pub(super) fn report(&mut self, members: usize, missing: Vec<PeerId>, out: &mut Vec<Output>) {
        let reached = members - missing.len();
        if self.reached.replace(reached) != Some(reached) {
            let needed = needed(members, reached);
            out.push(Output::Event(Event::Paused { reached, needed, members, missing }));
        }
    }

    /// Tells the user, once, that `peers`, which are all that have parameters, have to come back.
    pub(super) fn report_orphaned(&mut self, peers: Vec<PeerId>, out: &mut Vec<Output>) {
        if !std::mem::replace(&mut self.is_orphaned, true) {
            out.push(Output::Event(Event::ParametersUnreachable { peers }));
        }
    }
}

/// How many of `members` are needed to continue, if `reached` are not enough: more than half of all, and more than `reached`.
fn needed(members: usize, reached: usize) -> usize {
    (members / 2 + 1).max(reached + 1)
}
