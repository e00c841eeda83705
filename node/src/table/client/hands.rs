//! Hands: the samples that a worker is dealt, and when it is done with them.

use std::collections::VecDeque;

use peergrad_protocol::limits::HANDS_MAX;
use peergrad_protocol::table::{Asked, Hand};

use super::{Client, Names, Question};
use crate::table::keeper::Outbox;

/// Samples that this worker was dealt.
#[derive(Default)]
pub(super) struct Hands {
    /// Numbers that were used.
    pub(super) count: u64,
    /// What it waits for: the number, how many, and whether nobody waits for this worker meanwhile.
    pub(super) wanted: Option<(u64, u32, bool)>,
    /// What has come and was not taken.
    pub(super) next: Option<(u64, Hand, bool)>,
    /// By hand that was taken: the last number of what came of it, once it is all sent.
    pub(super) taken: VecDeque<(u64, Option<u64>)>,
    /// The one of the clock in progress: what comes of it is not all added yet.
    pub(super) current: Option<u64>,
    /// Hands up to this one are done.
    pub(super) done: u64,
    /// The worker has ended, and computes none from this one on.
    pub(super) ends_before: Option<u64>,
}

/// Samples to compute, or that there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The worker's number for them.
    pub number: u64,
    /// Which; none: there are none at present.
    pub hand: Hand,
    /// Every sample of every pass is done.
    pub is_over: bool,
}

impl Client {
    /// Asks for so many samples, unless it has asked already.
    pub fn want_hand(&mut self, samples: u32, out: &mut Outbox) {
        if self.dealt.wanted.is_some() || self.dealt.next.is_some() {
            return;
        }
        self.dealt.count += 1;
        // Where nobody will wait for this worker, it need not go on with nothing.
        self.dealt.wanted = Some((self.dealt.count, samples, self.waits_for_nobody()));
        self.ask_for_hand(out);
    }

    pub(super) fn ask_for_hand(&self, out: &mut Outbox) {
        if let Some((hand, samples, may_wait)) = self.dealt.wanted {
            self.ask(0, Asked::Deal { hand, samples, may_wait }, out);
        }
    }

    /// The samples that were asked for, once they are here.
    pub fn take_hand(&mut self) -> Option<Taken> {
        let (number, hand, is_over) = self.dealt.next.take()?;
        if !hand.is_empty() {
            self.dealt.taken.push_back((number, None));
            self.dealt.current = Some(number);
        }
        Some(Taken { number, hand, is_over })
    }

    /// All that came of the hands that were taken so far has been sent, but for that of the clock in progress: once it is safe, they are
    /// done.
    pub(super) fn close_hands(&mut self) {
        let (last, current) = (self.sequence, self.dealt.current);
        let over = self.dealt.taken.iter_mut().filter(|(number, _)| Some(*number) != current);
        over.for_each(|(_, until)| _ = until.get_or_insert(last));
    }

    /// Whether it has taken as many as it is given before any of them is done.
    #[must_use]
    pub fn has_many_hands(&self) -> bool {
        self.dealt.taken.len() + 1 >= HANDS_MAX
    }

    /// The worker has ended: it computes no samples any more.
    pub(super) fn drop_hands(&mut self) {
        let dealt = &mut self.dealt;
        // The one of the clock in progress is not over.
        dealt.taken.retain(|(number, _)| Some(*number) != dealt.current);
        let wanted = dealt.wanted.take().map(|(number, ..)| number);
        let next = dealt.next.take().map(|(number, ..)| number);
        let first = dealt.current.take().or(wanted).or(next).unwrap_or(dealt.count + 1);
        dealt.ends_before.get_or_insert(first);
    }

    /// Says which samples others are to compute.
    pub(super) fn give_back(&self, out: &mut Outbox) {
        if let Some(hands) = self.dealt.ends_before {
            self.ask(0, Asked::Back { hands }, out);
        }
    }

    /// The worker leaves, between two clocks. Whether it may: what came of its samples is safe, and whoever deals has heard so.
    pub fn wind_down(&mut self, out: &mut Outbox) -> bool {
        self.push(out);
        if !self.is_settled() || !self.dealt.taken.is_empty() {
            return false;
        }
        // Whoever answers this has heard what came before.
        let question = Question::Rows(Names::default());
        let last = self.farewell.unwrap_or_else(|| self.request_of(0, question, 0, out));
        self.farewell = Some(last);
        !self.requests.contains_key(&last)
    }

    pub(super) fn tell_done(&mut self, out: &mut Outbox) {
        let safe_up_to = self.safe_up_to();
        let before = self.dealt.done;
        while let Some((hand, Some(until))) = self.dealt.taken.front().copied()
            && until <= safe_up_to
        {
            self.dealt.done = hand;
            self.dealt.taken.pop_front();
        }
        if self.dealt.done > before {
            self.ask(0, Asked::Done { hands: self.dealt.done }, out);
        }
    }
}
