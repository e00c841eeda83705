//! The passes: which samples each step trains, counted out position by position.
//!
//! Like a second player who keeps the score with a deck of their own: no bookmark and no ranges, but every card of the deck,
//! face up or face down. What the records say of a batch is followed, and compared with what the cards say it must be.
//!
//! # How it works
//! 1. A batch is the lowest positions of the pass that no step before was dealt, at most as many as a batch has; once
//!    there are none, a new pass begins. What a departed member had been dealt is free again, and being low, comes next.
//! 2. It is dealt in equal parts, in order of rank, to the members that have parameters.
//! 3. If the view changes in the middle of a step, who stays keeps its part, and the others' parts are free again.
//!
//! # Not here
//! The ledger, and whatever else nodes deal with: both sides would have the same mistake.

use std::collections::{BTreeMap, BTreeSet};

use peergrad::loader::Loaded;
use peergrad_protocol::ledger::{Ledger, Span};
use peergrad_protocol::view::{Deal, Member, Recovery, View};
use peergrad_protocol::{Incarnation, PeerId, Rank};

use super::lineage::{Installed, Lineage};

/// A run's passes, up to the last step that was counted.
#[derive(Clone, Debug)]
pub struct Passes {
    batch_size: u64,
    sample_count: u64,
    /// The pass of the last step.
    pass: u64,
    /// Its positions that no step was dealt.
    free: BTreeSet<u64>,
    steps: u64,
    /// By pass: how often each position was trained.
    trained: BTreeMap<u64, Vec<u32>>,
}

/// The batch of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The pass that it belongs to.
    pub pass: u64,
    /// By rank in the view in which the step was trained.
    pub parts: Vec<Part>,
    /// In words, what the record says otherwise than it must.
    pub objection: Option<String>,
}

/// What one member trains in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    peer: PeerId,
    incarnation: Incarnation,
    /// Positions in the pass's permutation.
    pub positions: Vec<u64>,
}

/// What came of the samples of one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassCount {
    /// Which.
    pub pass: u64,
    /// Samples that were trained at least once, or left out for a gradient that was not finite.
    pub trained: u64,
    /// Times that a sample was trained after its first.
    pub repeated: u64,
}

/// A batch as it is dealt: its pass and its parts.
type Dealt = (u64, Vec<Part>);

impl Passes {
    /// The start of a run.
    #[must_use]
    pub fn new(loaded: &Loaded) -> Self {
        Self::of(loaded.training.batch_size, u64::from(loaded.task.sample_count()))
    }

    /// As [`Passes::new`], of so many samples in batches of at most this size.
    #[must_use]
    pub fn of(batch_size: u64, sample_count: u64) -> Self {
        let free = (0..sample_count).collect();
        Self { batch_size, sample_count, pass: 0, free, steps: 0, trained: BTreeMap::new() }
    }

    /// Steps counted.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Counts one more step, which must be committed: before that, its view is not known for good. `None` if there is no
    /// view that it could belong to.
    pub fn count(&mut self, lineage: &Lineage) -> Option<Counted> {
        let view = &lineage.of_step(self.steps)?.view;
        let is_first = view.first_step().0 == self.steps;
        let free = std::mem::take(&mut self.free);
        (self.pass, self.free) = self.turned(self.pass, free);
        let mut objections = Vec::new();
        if is_first && deal_of(view).is_none() {
            objections.extend(self.object_to_ledger(view, "before"));
            let (pass, free) = self.left_of(&view.ledger);
            (self.pass, self.free) = self.turned(pass, free);
        }
        let (mut pass, mut parts) = self.due(view, lineage);
        if let Some(deal) = deal_of(view).filter(|_| is_first) {
            let said: Vec<Part> = deal_parts(view, deal);
            if deal.pass != pass || !are_same(&said, &parts) {
                objections.push(format!(
                    "view {} deals {} samples of pass {} in step {}, and not to each member what it had been dealt before, in all {} of pass {pass}",
                    view.epoch.0, deal.len(), deal.pass, self.steps, sample_count(&parts)
                ));
            }
            (pass, parts) = (deal.pass, said);
        }
        self.take(pass, &parts);
        if is_first && deal_of(view).is_some() {
            objections.extend(self.object_to_ledger(view, "after"));
            (self.pass, self.free) = self.left_of(&view.ledger);
        }
        self.steps += 1;
        Some(Counted { pass, parts, objection: objections.into_iter().next() })
    }

    /// The parts of a step are trained.
    fn take(&mut self, pass: u64, parts: &[Part]) {
        let sample_count = self.sample_count as usize;
        let trained = self.trained.entry(pass).or_insert_with(|| vec![0; sample_count]);
        for &position in parts.iter().flat_map(|part| &part.positions) {
            self.free.remove(&position);
            // Where there is no such position, there will be one too few.
            if let Some(times) = trained.get_mut(position as usize) {
                *times += 1;
            }
        }
    }

    /// What came of each pass so far.
    #[must_use]
    pub fn counts(&self) -> Vec<PassCount> {
        let count = |(&pass, times): (&u64, &Vec<u32>)| PassCount {
            pass,
            trained: times.iter().map(|&times| u64::from(times.min(1))).sum(),
            repeated: times.iter().map(|&times| u64::from(times.saturating_sub(1))).sum(),
        };
        self.trained.iter().map(count).collect()
    }

    /// Samples that a pass ended without.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let ended = self.counts().into_iter().filter(|count| count.pass < self.pass);
        ended.map(|count| self.sample_count - count.trained).sum()
    }

    /// Samples of the present pass that no step was dealt.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.free.len() as u64
    }

    /// Whether the last of so many passes is over.
    #[must_use]
    pub fn are_over(&self, passes: u64) -> bool {
        self.pass + 1 == passes && self.free.is_empty()
    }

    /// The batch of the next step, as its view must deal it.
    fn due(&self, view: &View, lineage: &Lineage) -> Dealt {
        let step = self.steps;
        let is_kept = view.first_step().0 > step || (view.first_step().0 == step && deal_of(view).is_some());
        let Some(Installed { view: before, .. }) = lineage.parent(view).filter(|_| is_kept) else {
            return self.fresh(view);
        };
        // Whoever stays has the part that it had, in the view before or in one before that.
        let (pass, before) = self.due(before, lineage);
        let part = |member: &Member| {
            let theirs = before.iter().find(|part| part.is_of(member)).cloned();
            theirs.unwrap_or_else(|| Part::of(member, vec![]))
        };
        (pass, view.members.iter().map(part).collect())
    }

    /// The next batch, in equal parts for those who have parameters.
    fn fresh(&self, view: &View) -> Dealt {
        let batch: Vec<u64> = self.free.iter().copied().take(self.batch_size as usize).collect();
        let is_first = view.first_step().0 == self.steps;
        let is_idle = |index: usize| is_first && view.newcomers().contains(&Rank::from_index(index));
        let busy_count = (0..view.members.len()).filter(|&index| !is_idle(index)).count();
        let mut busy_before = 0;
        let mut part = |(index, member): (usize, &Member)| {
            if is_idle(index) {
                return Part::of(member, vec![]);
            }
            let bound = |busy: usize| batch.len() * busy / busy_count;
            let positions = &batch[bound(busy_before)..bound(busy_before + 1)];
            busy_before += 1;
            Part::of(member, positions.to_vec())
        };
        (self.pass, view.members.iter().enumerate().map(&mut part).collect())
    }

    /// Where nothing is left of a pass, the next one is whole.
    fn turned(&self, pass: u64, free: BTreeSet<u64>) -> (u64, BTreeSet<u64>) {
        if free.is_empty() { (pass + 1, (0..self.sample_count).collect()) } else { (pass, free) }
    }

    /// In words, how the ledger of a view differs from what is left `when` its first step is taken.
    fn object_to_ledger(&self, view: &View, when: &str) -> Option<String> {
        let (pass, free) = self.left_of(&view.ledger);
        if self.turned(self.pass, self.free.clone()) == self.turned(pass, free.clone()) {
            return None;
        }
        Some(format!(
            "the ledger of view {} leaves {} samples of pass {pass} {when} step {}; {} of pass {} are left",
            view.epoch.0,
            free.len(),
            self.steps,
            self.free.len(),
            self.pass
        ))
    }

    /// The pass and the positions that a bookmark has not taken, or has taken back.
    fn left_of(&self, ledger: &Ledger) -> (u64, BTreeSet<u64>) {
        let given_back = positions(&ledger.given_back);
        (ledger.pass, given_back.into_iter().chain(ledger.position..self.sample_count).collect())
    }
}

impl Counted {
    /// How many samples it has.
    #[must_use]
    pub fn sample_count(&self) -> u64 {
        sample_count(&self.parts)
    }

    /// The samples in the order in which they are dealt, where `order` is the pass's permutation.
    #[must_use]
    pub fn samples(&self, order: &[u32]) -> Vec<u32> {
        let positions = self.parts.iter().flat_map(|part| &part.positions);
        positions.filter_map(|&position| order.get(position as usize).copied()).collect()
    }
}

impl Part {
    fn of(member: &Member, positions: Vec<u64>) -> Self {
        Self { peer: member.peer, incarnation: member.incarnation, positions }
    }

    fn is_of(&self, member: &Member) -> bool {
        (self.peer, self.incarnation) == (member.peer, member.incarnation)
    }
}

/// How a view's record deals its first step, if it does.
fn deal_of(view: &View) -> Option<&Deal> {
    match &view.recovery {
        Recovery::Found => None,
        Recovery::Resume(resume) => resume.deal.as_ref(),
    }
}

/// How a record deals a batch, by rank.
fn deal_parts(view: &View, deal: &Deal) -> Vec<Part> {
    let parts = view.members.iter().zip(&deal.parts);
    parts.map(|(member, spans)| Part::of(member, positions(spans))).collect()
}

fn sample_count(parts: &[Part]) -> u64 {
    parts.iter().map(|part| part.positions.len() as u64).sum()
}

fn positions(spans: &[Span]) -> Vec<u64> {
    spans.iter().flat_map(|span| span.start..span.end).collect()
}

fn are_same(ours: &[Part], theirs: &[Part]) -> bool {
    ours.len() == theirs.len()
        && ours.iter().zip(theirs).all(|(ours, theirs)| {
            // Neighbouring ranges may be told as one.
            let sorted = |part: &Part| part.positions.iter().copied().collect::<BTreeSet<u64>>();
            sorted(ours) == sorted(theirs) && ours.positions.len() == theirs.positions.len()
        })
}
