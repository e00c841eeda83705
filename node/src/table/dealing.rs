//! The dealing: who computes which samples, where workers go at their own pace.
//!
//! It is as with the bookmark of the [ledger](peergrad_protocol::ledger), but for one thing: the cards are not dealt to all at once.
//! Whoever has nothing to compute asks for a *hand*. What a worker was dealt it holds until it says that it is done, which it does
//! once what came of it would outlive it. If it is lost before, its hands come back and are dealt next, so every sample of every
//! pass is done, and the run is over when nobody holds anything.
//!
//! A worker that is lost when what it has computed is safe, and before it could say so, has computed in vain: that hand is dealt
//! once more. It is the only way in which a sample counts twice, and at most the worker's last hands do.
//!
//! # Invariants
//! - A worker that asks again under the same number is given the same hand, whoever deals by then.

use peergrad_protocol::limits::{HANDS_MAX, STEPS_MAX};
use peergrad_protocol::table::{Dealing, Hand, Held, Writer};

/// How much there is to be dealt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deck {
    /// Passes of the run.
    pub passes: u64,
    /// Samples of a pass.
    pub samples: u64,
    /// Samples that the first worker has to itself.
    pub warm_up: u64,
    /// Of those after that, how many are dealt before another worker comes in; 0: all come at once.
    pub wave: u64,
}

impl Deck {
    /// The hand that a worker asks for, of so many samples if there are as many left of the pass; `None`: there are none at present.
    pub fn deal(&self, dealing: &mut Dealing, writer: Writer, number: u64, samples: u64) -> Option<Hand> {
        let known = held_by(dealing, writer);
        if number <= known.last {
            return known.hands.iter().find(|(of, _)| *of == number).map(|(_, hand)| hand.clone());
        }
        if known.hands.len() == HANDS_MAX || !self.has_room(dealing, writer) {
            return None;
        }
        let hand = if !dealing.returned.is_empty() {
            dealing.returned.remove(0)
        } else if self.is_dealt(dealing) {
            return None;
        } else {
            let (batch, ledger) = dealing.ledger.take(samples.max(1), self.samples);
            dealing.ledger = ledger;
            Hand { pass: batch.pass, spans: batch.spans }
        };
        let known = held_by(dealing, writer);
        known.last = number;
        known.hands.push((number, hand.clone()));
        Some(hand)
    }

    /// Whether a worker is one of those that are in by now.
    fn has_room(&self, dealing: &Dealing, writer: Writer) -> bool {
        // One that has ended makes room.
        let mut others = dealing.held.iter().filter(|held| (1..STEPS_MAX).contains(&held.last));
        let is_in = others.clone().any(|held| held.writer == writer);
        let taken = dealing.ledger.taken(self.samples);
        let room = match taken.checked_sub(self.warm_up) {
            None => 1,
            Some(_) if self.wave == 0 => return true,
            Some(after) => 2 + after / self.wave,
        };
        is_in || room > others.by_ref().count() as u64
    }

    /// Whether every sample was dealt, and is held by somebody, or done.
    fn is_dealt(&self, dealing: &Dealing) -> bool {
        let all = self.passes.saturating_mul(self.samples);
        dealing.returned.is_empty() && dealing.ledger.taken(self.samples) >= all
    }

    /// Whether every sample is done.
    #[must_use]
    pub fn is_over(&self, dealing: &Dealing) -> bool {
        self.is_dealt(dealing) && dealing.held.iter().all(|held| held.hands.is_empty())
    }
}

/// A worker is done with its hands up to this number. Whether that is news.
pub fn done(dealing: &mut Dealing, writer: Writer, number: u64) -> bool {
    let hands = &mut held_by(dealing, writer).hands;
    let before = hands.len();
    hands.retain(|(of, _)| *of > number);
    hands.len() < before
}

/// A worker computes nothing from this number on: what it was dealt comes back, and it is dealt nothing more. Whether that is news.
pub fn back(dealing: &mut Dealing, writer: Writer, number: u64) -> bool {
    let known = held_by(dealing, writer);
    let is_news = std::mem::replace(&mut known.last, STEPS_MAX) < STEPS_MAX;
    let (held, unused) = std::mem::take(&mut known.hands).into_iter().partition(|(of, _)| *of < number);
    known.hands = held;
    let unused: Vec<(u64, Hand)> = unused;
    dealing.returned.extend(unused.into_iter().map(|(_, hand)| hand));
    is_news
}

/// The owner's word of what is dealt: of all workers, or of those who are in it.
pub fn take(dealing: &mut Dealing, told: &Dealing) {
    dealing.ledger = told.ledger.clone();
    dealing.returned.clone_from(&told.returned);
    told.held.iter().for_each(|held| held_by(dealing, held.writer).clone_from(held));
}

/// What those who are gone were not done with comes back. Whether anybody is gone.
pub fn give_back(dealing: &mut Dealing, is_there: impl Fn(&Writer) -> bool) -> bool {
    let all = std::mem::take(&mut dealing.held).into_iter();
    let (held, gone): (Vec<Held>, Vec<Held>) = all.partition(|held| is_there(&held.writer));
    dealing.held = held;
    let is_any = !gone.is_empty();
    let hands = gone.into_iter().flat_map(|held| held.hands).map(|(_, hand)| hand);
    dealing.returned.extend(hands);
    is_any
}

fn held_by(dealing: &mut Dealing, writer: Writer) -> &mut Held {
    let place = dealing.held.binary_search_by(|held| held.writer.cmp(&writer)).unwrap_or_else(|place| {
        dealing.held.insert(place, Held { writer, last: 0, hands: vec![] });
        place
    });
    &mut dealing.held[place]
}

#[cfg(test)]
mod tests {
    use peergrad_protocol::{Incarnation, PeerId};

    use super::*;

    fn worker(byte: u8) -> Writer {
        Writer { peer: PeerId([byte; 32]), incarnation: Incarnation(1) }
    }

    /// The positions of a hand.
    fn positions(hand: Option<Hand>) -> Vec<(u64, u64, u64)> {
        let hand = hand.unwrap_or_default();
        hand.spans.iter().map(|span| (hand.pass, span.start, span.end)).collect()
    }

    #[test]
    fn every_sample_is_dealt_once_and_what_the_lost_held_once_more() {
        let (deck, mut dealing) = (Deck { passes: 2, samples: 5, ..Deck::default() }, Dealing::default());
        let (one, two) = (worker(1), worker(2));
        assert_eq!(positions(deck.deal(&mut dealing, one, 1, 2)), [(0, 0, 2)]);
        assert_eq!(positions(deck.deal(&mut dealing, two, 1, 2)), [(0, 2, 4)]);
        assert_eq!(positions(deck.deal(&mut dealing, two, 1, 2)), [(0, 2, 4)], "asked again");
        assert_eq!(positions(deck.deal(&mut dealing, one, 2, 2)), [(0, 4, 5)], "no hand is of two passes");
        assert!(done(&mut dealing, one, 1) && !done(&mut dealing, one, 1));
        assert_eq!(positions(deck.deal(&mut dealing, two, 2, 9)), [(1, 0, 5)]);
        assert_eq!(deck.deal(&mut dealing, one, 3, 2), None);
        assert!(!deck.is_over(&dealing));
        assert!(give_back(&mut dealing, |writer| *writer == one));
        assert_eq!(positions(deck.deal(&mut dealing, one, 3, 2)), [(0, 2, 4)]);
        assert_eq!(
            positions(deck.deal(&mut dealing, one, 4, 2)),
            [(1, 0, 5)],
            "of another pass than the ledger's"
        );
        assert!(done(&mut dealing, one, 4) && deck.is_over(&dealing));
        assert_eq!(deck.deal(&mut dealing, one, 5, 2), None);
    }

    #[test]
    fn workers_come_in_waves_after_the_first_has_warmed_up() {
        let deck = Deck { passes: 1, samples: 100, warm_up: 4, wave: 6 };
        let mut dealing = Dealing::default();
        let mut next = |byte, number| deck.deal(&mut dealing, worker(byte), number, 2).is_some();
        assert!(next(1, 1) && !next(2, 1) && next(1, 2));
        assert!(next(2, 1) && !next(3, 1), "4 are dealt, then 6");
        assert!(next(1, 3) && next(2, 2));
        assert!(next(3, 1) && !next(4, 1), "10 are dealt, then 12");
        assert!(next(1, 4) && next(2, 3) && next(4, 1));
    }
}
