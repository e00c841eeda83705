//! Dealing: whose samples are which in a step.
//!
//! A batch is dealt to the members of the view in which its step begins, evenly among those who have parameters. If the
//! view changes in the middle, everyone keeps what it has computed, and what those who left had been dealt goes back to
//! the pass. So parts belong to members by name, not by rank.

use peergrad_protocol::ledger::{Ledger, Span};
use peergrad_protocol::view::{Deal, Member, View};
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

    /// The same batch without the parts of those who are not among `members`; these go back to the pass. As a record
    /// deals it.
    pub(crate) fn among(&self, members: &[Member]) -> (Deal, Ledger) {
        let parts =
            members.iter().map(|member| self.part(&member.peer, member.incarnation).to_vec()).collect();
        let is_in = |part: &&Part| {
            members.iter().any(|member| (member.peer, member.incarnation) == (part.peer, part.incarnation))
        };
        let gone = self.parts.iter().filter(|part| !is_in(part)).flat_map(|part| part.spans.iter().copied());
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
