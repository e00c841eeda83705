//! The journal: the records that this peer has asked its disk to keep, and what it does once each record is there.
//!
//! Like a notary's book: first the entry, then the signature goes out. Every effect that another peer may rely on (a vote in an
//! agreement, the entry into a view) is handed in together with the record that it rests on, so it cannot happen earlier.
//!
//! While the disk fails, for instance because it is full, this peer does not vote. It still enters views, so that the others need not
//! stop: a view was chosen by members that have written their votes. If this peer restarts then, it remembers the view before, and its
//! votes there.
//!
//! # Invariants
//! - An answer is released once its record, or a later one, is on disk. A later record holds all that an earlier one did.
//! - A view is entered once its record is on disk, or once the disk has failed to write it. The first view of a run has to be on disk.
//! - Effects are released in the order in which their records were handed out.

use std::collections::VecDeque;
use std::sync::Arc;

use peergrad_protocol::durable::DurableBytes;
use peergrad_protocol::message::Message;
use peergrad_protocol::view::View;
use peergrad_protocol::{PeerId, ViewDigest};

use crate::io::{Output, PersistId};

/// The records of one peer, from its start to its end, in whatever role.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// How many records were handed out, which is the id of the next one.
    persisted_count: u64,
    /// Effects whose record is not known to be on disk, oldest first.
    pending: VecDeque<(PersistId, Effect)>,
    /// Whether the disk could not write the newest record that it was given.
    is_failing: bool,
}

/// What a peer does once a record is on disk.
#[derive(Debug, PartialEq)]
pub(crate) enum Effect {
    /// It sends this answer to a proposer.
    Answer { to: PeerId, message: Box<Message> },
    /// It may enter this view.
    EnterView(Arc<View>, ViewDigest),
}

impl Journal {
    /// Has `record` written.
    pub(crate) fn persist(&mut self, record: DurableBytes, out: &mut Vec<Output>) -> PersistId {
        let id = PersistId(self.persisted_count);
        self.persisted_count += 1;
        out.push(Output::Persist { id, record });
        id
    }

    /// Has `record` written, and keeps `effect` until it is on disk.
    pub(crate) fn persist_then(&mut self, record: DurableBytes, effect: Effect, out: &mut Vec<Output>) {
        let id = self.persist(record, out);
        self.pending.push_back((id, effect));
    }

    /// The record `id` is on disk: returns the effects that waited for it, oldest first.
    pub(crate) fn persisted(&mut self, id: PersistId) -> Vec<Effect> {
        self.is_failing = false;
        let due = self.pending.iter().take_while(|(of, _)| *of <= id).count();
        self.pending.drain(..due).map(|(_, effect)| effect).collect()
    }

    /// The record `id` could not be written: returns the entries into views that waited for it, oldest first, if this peer may enter
    /// views that are not on its disk.
    pub(crate) fn not_persisted(&mut self, id: PersistId, may_enter_unwritten: bool) -> Vec<Effect> {
        self.is_failing = true;
        if !may_enter_unwritten {
            return vec![];
        }
        let is_due =
            |(of, effect): &(PersistId, Effect)| *of <= id && matches!(effect, Effect::EnterView(..));
        let (due, mut pending): (VecDeque<_>, VecDeque<_>) = self.pending.drain(..).partition(is_due);
        // Earlier answers belong to the choice of a view that is entered now.
        pending.retain(|(of, _)| due.back().is_none_or(|(entered, _)| of > entered));
        self.pending = pending;
        due.into_iter().map(|(_, effect)| effect).collect()
    }

    /// Whether the disk cannot be written at present.
    pub(crate) fn is_failing(&self) -> bool {
        self.is_failing
    }

    /// Drops the answers that wait: they belong to an agreement in which this peer has no vote any more.
    pub(crate) fn drop_answers(&mut self) {
        self.pending.retain(|(_, effect)| !matches!(effect, Effect::Answer { .. }));
    }

    /// Drops all effects that wait: this peer has left the view that they belong to.
    pub(crate) fn drop_effects(&mut self) {
        self.pending.clear();
    }
}

#[cfg(test)]
mod tests {
    use peergrad_protocol::Incarnation;
    use peergrad_protocol::agreement::Acceptor;
    use peergrad_protocol::message::{JoinMessage, Refusal};

    use super::*;
    use crate::fixtures::{peer, view};

    fn record() -> DurableBytes {
        DurableBytes::new([].into(), Incarnation(1), &Acceptor::default(), [].into())
    }

    fn answer(byte: u8) -> Effect {
        Effect::Answer {
            to: peer(byte),
            message: Box::new(Message::Join(JoinMessage::Refuse(Refusal::Full))),
        }
    }

    fn entry() -> Effect {
        let view = view(&[1]);
        let digest = view.digest();
        Effect::EnterView(Arc::new(view), digest)
    }

    #[test]
    fn effects_wait_for_their_record_or_a_later_one() {
        let (mut journal, mut out) = (Journal::default(), Vec::new());
        (1..=3).for_each(|byte| journal.persist_then(record(), answer(byte), &mut out));
        let ids = out.iter().map(|output| match output {
            Output::Persist { id, .. } => id.0,
            _ => u64::MAX,
        });
        assert_eq!(ids.collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(journal.persisted(PersistId(1)), [answer(1), answer(2)]);
        assert_eq!(journal.persisted(PersistId(1)), []);
        assert_eq!(journal.persisted(PersistId(2)), [answer(3)]);
    }

    #[test]
    fn while_the_disk_fails_views_are_entered_and_answers_wait() {
        let (mut journal, mut out) = (Journal::default(), Vec::new());
        journal.persist_then(record(), answer(1), &mut out);
        journal.persist_then(record(), entry(), &mut out);
        journal.persist_then(record(), entry(), &mut out);
        assert_eq!(journal.not_persisted(PersistId(1), true), [entry()]);
        assert!(journal.is_failing());
        assert_eq!(journal.not_persisted(PersistId(2), false), [], "the founder waits");
        journal.persist_then(record(), answer(2), &mut out);
        assert_eq!(journal.persisted(PersistId(3)), [entry(), answer(2)], "the first answer came too late");
        assert!(!journal.is_failing());
    }

    #[test]
    fn dropped_effects_never_happen_and_record_ids_continue() {
        let (mut journal, mut out) = (Journal::default(), Vec::new());
        journal.persist_then(record(), answer(1), &mut out);
        journal.persist_then(record(), entry(), &mut out);
        journal.drop_answers();
        assert_eq!(journal.persisted(PersistId(1)), [entry()]);
        journal.persist_then(record(), entry(), &mut out);
        journal.drop_effects();
        assert_eq!(journal.persisted(PersistId(2)), []);
        journal.persist_then(record(), answer(1), &mut out);
        assert_eq!(journal.persisted(PersistId(3)), [answer(1)]);
    }
}
