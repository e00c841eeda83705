//! The state of the [closing barrier](super::closing): which members have finished the run.

use std::collections::BTreeSet;

use peergrad_protocol::PeerId;

use crate::program::command::Reply;

/// Which members have finished the run.
#[derive(Default)]
pub(super) struct ClosingBarrier {
    /// The reply to this member's program once every member has finished. `None` until that program has ended.
    reply: Option<Reply<()>>,
    /// The other members that have reported in this view that they have finished.
    done: BTreeSet<PeerId>,
    /// Whether a member has reported that all have finished.
    is_confirmed: bool,
}

impl ClosingBarrier {
    /// This member's program has ended, and waits for its reply.
    pub(super) fn wait(&mut self, reply: Reply<()>) {
        self.reply = Some(reply);
    }

    /// Whether this member's program has ended.
    pub(super) fn is_waiting(&self) -> bool {
        self.reply.is_some()
    }

    /// The program has more to do: a step is repeated.
    pub(super) fn withdraw(&mut self) {
        self.reply = None;
    }

    /// In a new view, members report again.
    pub(super) fn leave_view(&mut self) {
        self.done.clear();
    }

    /// Another member reports that it has finished.
    pub(super) fn member_done(&mut self, peer: PeerId) {
        self.done.insert(peer);
    }

    /// A member reports that all have finished.
    pub(super) fn confirm(&mut self) {
        self.is_confirmed = true;
    }

    /// Whether every one of `member_count` members has finished, this one included.
    pub(super) fn is_closed(&self, member_count: usize) -> bool {
        self.is_waiting() && (self.is_confirmed || self.done.len() + 1 == member_count)
    }

    /// Whether both this member and `peer`, another member, have finished.
    pub(super) fn is_closed_with(&self, peer: &PeerId) -> bool {
        let is_done = self.done.contains(peer) || self.is_confirmed;
        self.is_waiting() && is_done
    }

    /// Sends the program its reply, if it waits for one.
    pub(super) fn reply(&mut self) {
        if let Some(reply) = self.reply.take() {
            // The send fails if the program has ended and no longer waits.
            let _ = reply.send(());
        }
    }
}
