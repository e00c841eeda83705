//! Dealing: whose samples are which in a step.
//!
//! A batch is dealt to the members of the view in which its step begins, evenly among those who have parameters. If the
//! view changes in the middle, everyone keeps what it has computed, and what those who left had been dealt goes back to
//! the pass. So parts belong to members by name, not by rank.

use peergrad_protocol::ledger::{Ledger, Span};
use peergrad_protocol::view::{Deal, Member, Recovery, Resume, View};
use peergrad_protocol::{Incarnation, PeerId, Rank, StepNumber};

/// One step's batch as it is dealt, and the bookmark after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dealt {
    pub(crate) pass: u64,
    pub(crate) parts: Vec<Part>,
    /// The bookmark behind it.
    pub(crate) after: Ledger,
}

/// What one member has been dealt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) peer: PeerId,
    pub(crate) incarnation: Incarnation,
    pub(crate) spans: Vec<Span>,
}

impl Dealt {
    /// Deals the next batch from `ledger` to the members of `view` that have parameters in `step`.
    pub(crate) fn next(
        ledger: &Ledger,
        batch_size: u64,
        sample_count: u64,
        view: &View,
        step: StepNumber,
    ) -> Self {
        let (batch, after) = ledger.take(batch_size, sample_count);
        let newcomers = if step == view.first_step() { view.newcomers() } else { &[] };
        let share = |index: usize| u32::from(!newcomers.contains(&Rank::from_index(index)));
        let shares: Vec<u32> = (0..view.members.len()).map(share).collect();
        let part = |index: usize| batch.part(index, &shares);
        Self { pass: batch.pass, parts: named(view, part), after }
    }

    /// A batch that a view's record deals; `after` is the record's bookmark.
    pub(crate) fn of_record(deal: &Deal, view: &View, after: Ledger) -> Self {
        Self { pass: deal.pass, parts: named(view, |index| deal.parts[index].clone()), after }
    }

    /// Number of samples.
    pub(crate) fn len(&self) -> u64 {
        self.parts.iter().flat_map(|part| &part.spans).map(Span::len).sum()
    }

    /// What a member has been dealt.
    pub(crate) fn part(&self, peer: &PeerId, incarnation: Incarnation) -> &[Span] {
        let is_theirs = |part: &&Part| part.peer == *peer && part.incarnation == incarnation;
        self.parts.iter().find(is_theirs).map_or(&[], |part| &part.spans)
    }

    /// The batch of `step` in `view`, where `before` is that of the step before it: the view's first one as its record
    /// says, the others from the bookmark.
    pub(crate) fn following(
        before: &Self,
        batch_size: u64,
        sample_count: u64,
        view: &View,
        step: StepNumber,
    ) -> Self {
        if step != view.first_step() {
            return Self::next(&before.after, batch_size, sample_count, view, step);
        }
        match &view.recovery {
            Recovery::Resume(Resume { deal: Some(deal), .. }) => {
                Self::of_record(deal, view, view.ledger.clone())
            }
            Recovery::Resume(_) | Recovery::Found => {
                Self::next(&view.ledger, batch_size, sample_count, view, step)
            }
        }
    }

    /// The same batch without the parts of those who are not among `members`, or cannot compute since they are `newcomers`
    /// there; these parts go back to the pass. As a record deals it.
    pub(crate) fn among(&self, members: &[Member], newcomers: &[Rank]) -> (Deal, Ledger) {
        let computing = |index: &usize| !newcomers.contains(&Rank::from_index(*index));
        let part = |(index, member): (usize, &Member)| match computing(&index) {
            true => self.part(&member.peer, member.incarnation).to_vec(),
            false => vec![],
        };
        let parts = members.iter().enumerate().map(part).collect();
        let stays = |part: &&Part| {
            let is_it = |index: usize| {
                let member = &members[index];
                (member.peer, member.incarnation) == (part.peer, part.incarnation)
            };
            (0..members.len()).filter(computing).any(is_it)
        };
        let gone = self.parts.iter().filter(|part| !stays(part)).flat_map(|part| part.spans.iter().copied());
        (Deal { pass: self.pass, parts }, self.after.give_back(gone))
    }
}

fn named(view: &View, part: impl Fn(usize) -> Vec<Span>) -> Vec<Part> {
    let of = |index: usize| {
        let member = &view.members[index];
        Part { peer: member.peer, incarnation: member.incarnation, spans: part(index) }
    };
    (0..view.members.len()).map(of).collect()
}
