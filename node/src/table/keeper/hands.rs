//! Samples, at the owner of the first chunk: it deals them, and takes them back from workers that are gone.

use std::sync::Arc;

use peergrad_protocol::Rank;
use peergrad_protocol::limits::{HANDS_MAX, STEPS_MAX};
use peergrad_protocol::table::{Dealing, Hand, Told, Word, Writer};

use super::super::dealing;
use super::clocks::Clock;
use super::copies::Change;
use super::{Keeper, Outbox, Part};

/// Samples that a worker asks for.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    /// Its number for them.
    pub(super) hand: u64,
    pub(super) samples: u64,
    /// Whether nobody waits for it meanwhile.
    pub(super) may_wait: bool,
}

impl Keeper {
    /// A worker is done with samples, or gives them back.
    pub(super) fn change_hands(
        &mut self,
        from: Rank,
        number: u64,
        change: fn(&mut Dealing, Writer, u64) -> bool,
        out: &mut Outbox,
    ) {
        let writer = self.places.who(from);
        if change(self.store.dealing(), writer, number) {
            self.mark(0, &Part::dealt([writer]));
            self.deal_to_those_who_wait(out);
        }
    }

    /// What workers that are gone were dealt comes back, if that is kept here: at the owner, and at copies, who need not be told.
    pub(super) fn take_back_hands(&mut self) {
        let places = Arc::clone(&self.places);
        if dealing::give_back(self.store.dealing(), |writer| places.members.contains(writer))
            && self.owns(0)
            && self.is_here(0)
        {
            self.mark(0, &Part::dealt([]));
        }
    }

    /// A worker asks for samples.
    pub(super) fn deal(&mut self, from: Rank, wanted: Wanted, out: &mut Outbox) {
        let Wanted { hand, samples, may_wait } = wanted;
        let writer = self.places.who(from);
        let known = self.store.dealing().held.iter().find(|held| held.writer == writer);
        let is_new = known.is_none_or(|known| hand > known.last);
        // What it has not sent yet, nobody else can wait for; but where nobody waits for it, it may wait for too many of them to be safe.
        let holds_some = known.is_some_and(|known| !known.hands.is_empty() && known.hands.len() < HANDS_MAX);
        if let Some(dealt) = self.deck.deal(self.store.dealing(), writer, hand, samples) {
            if is_new {
                self.mark(0, &Part::dealt([writer]));
                // Others may have waited until so much was dealt.
                self.deal_to_those_who_wait(out);
            }
            let change = Change::Dealt(hand);
            let unsafe_at = self.expect(from, change);
            let worker = self.workers.entry(from).or_default();
            worker.hands.insert(hand, dealt);
            if unsafe_at > 0 {
                worker.pending.insert(change, unsafe_at);
            }
            return self.acknowledge(from, out);
        }
        let is_over = self.deck.is_over(self.store.dealing());
        // Others may wait for its clock, too, unless they have ended.
        let waits =
            |clock: &Clock| matches!(clock, Clock::At(clock) | Clock::Raised(clock) if *clock < STEPS_MAX);
        let has_others = self.clocks.iter().any(|(rank, clock)| *rank != from && waits(clock));
        if is_over || holds_some || (has_others && !may_wait) {
            out.push((from, Word::Told(Told::Dealt { hand, dealt: Hand::default(), is_over })));
        } else {
            self.wants_hand.insert(from, wanted);
        }
    }

    /// Perhaps everything is done.
    pub(super) fn deal_to_those_who_wait(&mut self, out: &mut Outbox) {
        for (worker, wanted) in std::mem::take(&mut self.wants_hand) {
            self.deal(worker, wanted, out);
        }
    }
}
