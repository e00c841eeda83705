//! The view: an agreed record of who is in, from which everything else is computed.
//!
//! Like the minutes of a meeting: numbered, naming those present, pointing at the minutes before. Whoever holds the same
//! minutes computes the same owners, the same batches and the same ring, without asking anybody.
//!
//! # Invariants
//! - All members of a view hold the same record, byte for byte; its digest names it in every frame that touches
//!   owned state.
//! - Members are sorted by peer id, so a rank is a function of the record.
//! - A record alone says where training goes on, how the interrupted batch is dealt, and who holds the state of each chunk:
//!   whoever has it needs to ask nobody.
//!
//! # How a view follows another
//! Members agree on a [`ViewChange`], which says only what changes; [`View::apply`] makes the next record of it.

use std::collections::BTreeSet;

use crate::cursor::DataCursor;
use crate::id::{Incarnation, PeerId, Rank, RunId, StepNumber, ViewDigest, ViewNumber};
use crate::limits::{
    ADDRESS_BYTES_MAX, ADDRESSES_MAX, ANCESTORS_MAX, BRANCHES_MAX, CAPACITY_MAX, CHUNKS_MAX, EXPELLED_MAX,
    MEMBERS_MAX, PARENTS_MAX, PARTITIONED_MAX, REPLICAS_MAX, SAMPLES_MAX, STEPS_MAX,
};
use crate::message::Contact;
use crate::wire::{self, Decode, Encode};

mod resume;

pub use resume::{BatchParts, Donor, Merge, Recovery, Resume, RollForward};

/// An agreed record of membership.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct View {
    /// The run it belongs to.
    pub run: RunId,
    /// Its number in the lineage.
    pub number: ViewNumber,
    /// Digests of the views it follows: none for the first, and beside the one before the one that is to be merged.
    pub parents: Vec<ViewDigest>,
    /// Who is in, sorted by peer.
    pub members: Vec<Member>,
    /// Where the run's present branch begins.
    pub branch: Branch,
    /// The branches before it that have led to it, the last at the end; of many, the last [`BRANCHES_MAX`].
    pub earlier_branches: Vec<Branch>,
    /// Where training goes on.
    pub recovery: Recovery,
    /// The bookmark from which batches are dealt in this view, after the one that [`Resume::deal`] says.
    pub cursor: DataCursor,
    /// What the placement among these members differs in from what members hold.
    pub moves: Moves,
    /// Peers that are not let in any more, the last at the end; of many, the last [`EXPELLED_MAX`].
    pub expelled: Vec<Expulsion>,
    /// Where both parts of a swarm that is cut in two go on: views that this one comes from, the last at the end; of many,
    /// [`ANCESTORS_MAX`], and the older ones thinned.
    pub ancestors: Vec<Ancestor>,
    /// Also there: members that were lost, and may have gone on as another lineage; of many, the last [`PARTITIONED_MAX`].
    pub partitioned: Vec<Contact>,
}

/// A view that a later one comes from, as its successor or by merging: what both of two lineages come from is their fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Ancestor {
    /// The view.
    pub view: ViewDigest,
    /// Samples that were trained when it was left.
    pub trained: u64,
}

/// Both lists as one. Where they are too many, some of the older ones are left out: always the same, whichever lineage names
/// them, so that two that have many in common still have some.
fn union(ancestors: &[Ancestor], others: &[Ancestor]) -> Vec<Ancestor> {
    let mut ancestors = ancestors.to_vec();
    for other in others {
        if !ancestors.iter().any(|ancestor| ancestor.view == other.view) {
            ancestors.push(*other);
        }
    }
    while ancestors.len() > ANCESTORS_MAX {
        let older = ancestors[..ancestors.len() / 2].iter().enumerate();
        let index = older.max_by_key(|(_, ancestor)| ancestor.view).map_or(0, |(index, _)| index);
        ancestors.remove(index);
    }
    ancestors
}

/// Samples up to which two histories are one, given the views that each comes from, itself among them.
#[must_use]
pub fn fork_point(ours: &[Ancestor], theirs: &[Ancestor]) -> Option<u64> {
    let common = |our: &Ancestor| {
        let their = theirs.iter().find(|their| their.view == our.view)?;
        Some(our.trained.min(their.trained))
    };
    ours.iter().filter_map(common).max()
}

/// A peer that the members have put out of the run for good, under its identity of then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Expulsion {
    /// Who.
    pub peer: PeerId,
    /// The member on whose word.
    pub by: PeerId,
    /// Why.
    pub cause: ExpulsionCause,
}

/// Why a peer is put out of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum ExpulsionCause {
    /// A user wanted it; it hands over what it owns first.
    Request,
    /// It went on sending what no correct peer sends.
    Violations,
}

/// Where a run's history begins that has led to a view without going back: with the run's first view, or with the last one
/// that went on from checkpoints, or without some of the members. What was trained before it and beyond its first step is no part of that history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct Branch {
    /// The number of that view.
    pub view_number: ViewNumber,
    /// Its first step.
    pub step: StepNumber,
    /// Tells apart views with the same number and parent, where both parts of a partitioned swarm go on: derived from the parent's
    /// digest and from the first member that the view keeps. `None` where there is only one such view.
    pub fork: Option<u32>,
}

/// A peer in one incarnation, as a view names it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Member {
    /// Who it is.
    pub peer: PeerId,
    /// Which start of it.
    pub incarnation: Incarnation,
    /// Where others dial it, best first; opaque text to the pure half.
    pub addresses: Vec<String>,
    /// How much of the parameters it owns relative to others, 0 to [`CAPACITY_MAX`].
    pub capacity: u8,
}

impl Member {
    /// Who it is, and where to dial it.
    #[must_use]
    pub fn contact(&self) -> Contact {
        Contact { peer: self.peer, addresses: self.addresses.clone() }
    }
}

/// Chunks whose holders change, and when.
///
/// A chunk that is listed stays with those who hold its state until its turn has come, a few chunks after each step. All
/// others are where the placement among the view's members puts them from its first step on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Moves {
    /// In the order in which they move.
    pub list: Vec<Move>,
    /// How many move after each step; not zero unless the list is empty.
    pub rate: u32,
    /// Chunks whose optimizer state nobody in the view holds: it starts from nothing, with a count of its own, at those
    /// who keep the chunk in the view's first step.
    pub restarted: Vec<u32>,
}

/// One chunk that is to move.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Move {
    /// Which.
    pub chunk: u32,
    /// Who holds its state now, or starts it: the owner first.
    pub from: Vec<Rank>,
}

impl Moves {
    /// How many of the list have moved after so many steps of the view.
    #[must_use]
    pub fn moved(&self, steps: u64) -> usize {
        let moved = steps.saturating_mul(u64::from(self.rate));
        usize::try_from(moved).unwrap_or(usize::MAX).min(self.list.len())
    }
}

/// What changes from one view to the next: the value on which members agree.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct ViewChange {
    /// The view that it follows.
    pub parent: ViewDigest,
    /// Members of that view, by their ranks there, that are not in the next one.
    pub removed: Vec<Rank>,
    /// Who comes in, sorted by peer.
    pub added: Vec<Member>,
    /// Members, by their ranks in that view, whose capacity is another one from now on.
    pub capacities: Vec<(Rank, u8)>,
    /// Where training goes on; ranks are those of the next view.
    pub resume: Resume,
    /// As in [`View`].
    pub cursor: DataCursor,
    /// As in [`View`]; ranks are those of the next view.
    pub moves: Moves,
    /// Peers that are not let in any more from now on.
    pub expelled: Vec<Expulsion>,
    /// Views that the next one comes from, beyond those that this one does.
    pub ancestors: Vec<Ancestor>,
}

/// Why a view record cannot be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidView {
    /// No member, or more than the limit.
    #[error("a view has 1 to {MEMBERS_MAX} members")]
    MemberCount,
    /// Members out of order, or one of them twice.
    #[error("the members of a view are sorted and distinct")]
    MemberOrder,
    /// A capacity over the limit, or nobody who owns anything.
    #[error("capacities are 0 to {CAPACITY_MAX}, and not all of them 0")]
    Capacity,
    /// More parents than a merge has.
    #[error("a view follows at most {PARENTS_MAX} others")]
    Parents,
    /// A view after others that says it is the first, or a number that no view has.
    #[error("it is neither the first view of a run nor one that follows another")]
    Number,
    /// A branch that does not begin where the record says.
    #[error("the branch of the run does not begin where it can")]
    Branch,
    /// A bookmark or a step that cannot be.
    #[error("the cursor or the step where training goes on cannot be")]
    DataCursor,
    /// A list of ranks, chunks or positions that cannot be.
    #[error("what it says of ranks, chunks or samples cannot be")]
    Lists,
    /// A change of a view that does not fit it.
    #[error("it does not follow the view that it names")]
    Parent,
    /// More peers put out than are remembered, or one of them that is in.
    #[error("of those who were put out, none is in, and at most {EXPELLED_MAX} are remembered")]
    Expelled,
    /// More views, or lost members, than are remembered, or more samples than can be.
    #[error("a view names at most {ANCESTORS_MAX} that it comes from, and {PARTITIONED_MAX} lost members")]
    Ancestors,
    /// Too many or too long addresses.
    #[error("a member has at most {ADDRESSES_MAX} addresses of at most {ADDRESS_BYTES_MAX} bytes")]
    Addresses,
}

impl View {
    /// The first view of a run, with which everything begins.
    #[must_use]
    pub fn first(run: RunId, members: Vec<Member>) -> Self {
        Self {
            run,
            number: ViewNumber(1),
            parents: vec![],
            members,
            branch: Branch { view_number: ViewNumber(1), step: StepNumber(0), fork: None },
            earlier_branches: vec![],
            recovery: Recovery::Initialize,
            cursor: DataCursor::default(),
            moves: Moves::default(),
            expelled: vec![],
            ancestors: vec![],
            partitioned: vec![],
        }
    }

    /// The first view of a run that goes on from what its founder, who is alone, has saved of another one.
    #[must_use]
    pub fn first_from_checkpoint(run: RunId, founder: Member, step: StepNumber, cursor: DataCursor) -> Self {
        let resume = Resume { is_restored: true, ..Resume::at(step) };
        let branch = Branch { view_number: ViewNumber(1), step, fork: None };
        Self { branch, recovery: Recovery::Resume(resume), cursor, ..Self::first(run, vec![founder]) }
    }

    /// Whether there are too many members for each to speak with every other all the time.
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.members.len() > SMALL_VIEW_MEMBERS_MAX
    }

    /// By rank: whether a member owns or copies anything in this view, or may: it has capacity, or chunks have yet to move from it.
    ///
    /// Two that do not have nothing to send each other but words.
    #[must_use]
    pub fn replica_holders(&self) -> Vec<bool> {
        let mut holders: Vec<bool> = self.members.iter().map(|member| member.capacity > 0).collect();
        self.moves.list.iter().flat_map(|moved| &moved.from).for_each(|rank| holders[rank.index()] = true);
        holders
    }

    /// The digest that names this view.
    #[must_use]
    pub fn digest(&self) -> ViewDigest {
        let mut hasher = blake3::Hasher::new_derive_key("peergrad 1 view");
        hasher.update(&wire::encode_record(self));
        ViewDigest(*hasher.finalize().as_bytes())
    }

    /// Whether it comes from that view, as its successor or by merging, as far back as it says. What is still to be merged it
    /// does not come from.
    #[must_use]
    pub fn descends_from(&self, view: ViewDigest) -> bool {
        self.parents.first() == Some(&view) || self.ancestors.iter().any(|ancestor| ancestor.view == view)
    }

    /// Whether it comes from that view otherwise than as its successor.
    #[must_use]
    pub fn has_merged(&self, view: ViewDigest) -> bool {
        self.descends_from(view) && self.parents.first() != Some(&view)
    }

    /// The rank of `peer`, if it is in.
    #[must_use]
    pub fn rank(&self, peer: &PeerId) -> Option<Rank> {
        self.members.binary_search_by(|member| member.peer.cmp(peer)).ok().map(Rank::from_index)
    }

    /// The member at `rank`.
    ///
    /// # Panics
    /// If the view has no such rank.
    #[must_use]
    pub fn member(&self, rank: Rank) -> &Member {
        &self.members[rank.index()]
    }

    /// Checks what every record must satisfy.
    ///
    /// # Errors
    /// Says which rule it breaks.
    pub fn validate(&self) -> Result<(), InvalidView> {
        if self.members.is_empty() || self.members.len() > MEMBERS_MAX {
            return Err(InvalidView::MemberCount);
        }
        if !self.members.is_sorted_by(|a, b| a.peer < b.peer) {
            return Err(InvalidView::MemberOrder);
        }
        let capacities: BTreeSet<u8> = self.members.iter().map(|member| member.capacity).collect();
        if capacities.last() == Some(&0) || capacities.last() > Some(&CAPACITY_MAX) {
            return Err(InvalidView::Capacity);
        }
        if !self.members.iter().all(|member| are_bounded(&member.addresses)) {
            return Err(InvalidView::Addresses);
        }
        let are_ancestors = self.ancestors.len() <= ANCESTORS_MAX
            && self.ancestors.iter().all(|ancestor| ancestor.trained <= SAMPLES_MAX);
        if !are_ancestors || self.partitioned.len() > PARTITIONED_MAX {
            return Err(InvalidView::Ancestors);
        }
        if !self.partitioned.iter().all(|contact| are_bounded(&contact.addresses)) {
            return Err(InvalidView::Addresses);
        }
        let is_out = |expelled: &Expulsion| self.rank(&expelled.peer).is_none();
        if self.expelled.len() > EXPELLED_MAX || !self.expelled.iter().all(is_out) {
            return Err(InvalidView::Expelled);
        }
        if self.parents.len() > PARENTS_MAX {
            return Err(InvalidView::Parents);
        }
        let is_founded_anew = self.recovery == Recovery::Initialize && !self.parents.is_empty();
        if is_founded_anew || self.number.0 > STEPS_MAX || self.branch.view_number > self.number {
            return Err(InvalidView::Number);
        }
        let is_restored = matches!(&self.recovery, Recovery::Resume(resume) if resume.is_restored);
        let begins_here =
            self.branch == Branch { view_number: self.number, step: self.first_step(), fork: None };
        let is_early =
            |branch: &Branch| branch.view_number < self.branch.view_number && branch.step.0 <= STEPS_MAX;
        let are_before =
            self.earlier_branches.len() <= BRANCHES_MAX && self.earlier_branches.iter().all(is_early);
        if self.branch.step.0 > STEPS_MAX || (is_restored && !begins_here) || !are_before {
            return Err(InvalidView::Branch);
        }
        let count = self.members.len();
        if !self.cursor.is_valid() {
            return Err(InvalidView::DataCursor);
        }
        if let Recovery::Resume(resume) = &self.recovery {
            resume.validate(count, &self.cursor)?;
        }
        if self.moves.are_valid(count) { Ok(()) } else { Err(InvalidView::Lists) }
    }

    /// Whether all samples and chunks that it speaks of are there, in a run that has so many.
    #[must_use]
    pub fn fits(&self, sample_count: u64, chunk_count: usize) -> bool {
        let is_chunk = |chunk: u32| (chunk as usize) < chunk_count;
        let are_donated = |forward: &RollForward| forward.donors.iter().all(|donor| is_chunk(donor.end - 1));
        let is_resumed = match &self.recovery {
            Recovery::Initialize => true,
            Recovery::Resume(resume) => {
                resume.forward.as_ref().is_none_or(are_donated)
                    && resume.merge.as_ref().is_none_or(|merge| merge.cursor.position <= sample_count)
            }
        };
        // What is dealt, and what is given back, lies before the position.
        self.cursor.position <= sample_count
            && is_resumed
            && self.moves.list.iter().all(|moved| is_chunk(moved.chunk))
            && self.moves.restarted.iter().all(|chunk| is_chunk(*chunk))
    }

    /// Why a peer is not let in any more, if it is not.
    #[must_use]
    pub fn expulsion(&self, peer: &PeerId) -> Option<&Expulsion> {
        self.expelled.iter().rfind(|expelled| expelled.peer == *peer)
    }

    /// The first step that is trained in this view.
    #[must_use]
    pub fn first_step(&self) -> StepNumber {
        match &self.recovery {
            Recovery::Initialize => StepNumber(0),
            Recovery::Resume(resume) => resume.step,
        }
    }

    /// What is merged into this lineage with the first step.
    #[must_use]
    pub fn merge(&self) -> Option<&Merge> {
        match &self.recovery {
            Recovery::Initialize => None,
            Recovery::Resume(resume) => resume.merge.as_deref(),
        }
    }

    /// Members who have no parameters before the first step.
    #[must_use]
    pub fn newcomers(&self) -> &[Rank] {
        match &self.recovery {
            Recovery::Initialize => &[],
            Recovery::Resume(resume) => &resume.newcomers,
        }
    }

    /// The next view, if `change` fits this one.
    ///
    /// # Errors
    /// It changes another view, or what comes of it is no view.
    pub fn apply(&self, digest: ViewDigest, change: &ViewChange) -> Result<Self, InvalidView> {
        let is_rank = |rank: &Rank| rank.index() < self.members.len();
        let are_ranks =
            change.removed.iter().all(is_rank) && change.capacities.iter().all(|(rank, _)| is_rank(rank));
        if change.parent != digest || !are_ranks {
            return Err(InvalidView::Parent);
        }
        let mut members = self.members.clone();
        for &(rank, capacity) in &change.capacities {
            members[rank.index()].capacity = capacity;
        }
        let removed: BTreeSet<usize> = change.removed.iter().map(|rank| rank.index()).collect();
        let mut index = 0;
        members.retain(|_| {
            index += 1;
            !removed.contains(&(index - 1))
        });
        members.extend(change.added.iter().cloned());
        members.sort_by_key(|member| member.peer);
        let mut expelled = self.expelled.clone();
        expelled.extend(&change.expelled);
        expelled.drain(..expelled.len().saturating_sub(EXPELLED_MAX));
        let number = ViewNumber(self.number.0 + 1);
        let is_restored = change.resume.is_restored;
        let step = change.resume.step;
        let branch = if is_restored {
            Branch { view_number: number, step, fork: None }
        } else if change.ancestors.is_empty() || change.removed.is_empty() {
            self.branch
        } else {
            // Others may go on from the same view, and keep others of it.
            let first_kept = (0..self.members.len()).find(|index| !removed.contains(index)).unwrap_or(0);
            let of_parent = u32::from_le_bytes([digest.0[0], digest.0[1], digest.0[2], digest.0[3]]);
            Branch { view_number: number, step, fork: Some(of_parent.wrapping_add(first_kept as u32)) }
        };
        let next = Self {
            run: self.run,
            number,
            parents: std::iter::once(digest)
                .chain(change.resume.merge.as_ref().map(|merge| merge.view))
                .collect(),
            earlier_branches: self.earlier_branches_of(branch),
            branch,
            recovery: Recovery::Resume(change.resume.clone()),
            cursor: change.cursor.clone(),
            moves: change.moves.clone(),
            ancestors: self.ancestors_after(change),
            partitioned: self.partitioned_after(change, &members, &expelled),
            members,
            expelled,
        };
        next.validate()?;
        Ok(next)
    }

    /// The branches that have led to this one, which may be the present one.
    fn earlier_branches_of(&self, branch: Branch) -> Vec<Branch> {
        let last = (branch != self.branch).then_some(self.branch);
        let mut before: Vec<Branch> = self.earlier_branches.iter().copied().chain(last).collect();
        before.drain(..before.len().saturating_sub(BRANCHES_MAX));
        before
    }

    /// Whether the state of a branch after so many steps is one that has led here: it was not given up since.
    #[must_use]
    pub fn descends_from_state(&self, branch: Branch, steps: StepNumber) -> bool {
        let all = self.earlier_branches.iter().chain([&self.branch]);
        let mut from_there = all.skip_while(|known| **known != branch);
        from_there.next().is_some() && from_there.all(|later| steps <= later.step)
    }

    /// The views that this one comes from after so many steps: what was to be merged with the first one is merged once that is
    /// behind.
    #[must_use]
    pub fn ancestors_at(&self, steps: StepNumber) -> Vec<Ancestor> {
        let merge = self.merge().filter(|_| steps > self.first_step());
        union(&self.ancestors, merge.map_or(&[], |merge| &merge.history))
    }

    /// The views that the next one comes from. One that goes on from checkpoints does not come from what was merged after them.
    #[must_use]
    pub fn ancestors_after(&self, change: &ViewChange) -> Vec<Ancestor> {
        let mut ancestors = self.ancestors_at(change.resume.step);
        if let Some(back) = change.ancestors.first().filter(|_| change.resume.is_restored) {
            // They are in the order in which they came; the first that was left later is the one that was gone back to.
            let left = ancestors.iter().position(|ancestor| ancestor.trained > back.trained);
            ancestors.truncate(left.map_or(ancestors.len(), |left| left + 1));
            ancestors.iter_mut().for_each(|ancestor| ancestor.trained = ancestor.trained.min(back.trained));
        }
        union(&ancestors, &change.ancestors)
    }

    /// Who may be in another lineage, where there can be one.
    fn partitioned_after(
        &self,
        change: &ViewChange,
        members: &[Member],
        expelled: &[Expulsion],
    ) -> Vec<Contact> {
        let is_loss = !change.ancestors.is_empty() && change.resume.is_interruption();
        let lost = change.removed.iter().filter(|_| is_loss).map(|rank| self.member(*rank).contact());
        let mut partitioned: Vec<Contact> = self.partitioned.iter().cloned().chain(lost).collect();
        partitioned.retain(|contact| {
            let is_in = members.binary_search_by(|member| member.peer.cmp(&contact.peer)).is_ok();
            !is_in && !expelled.iter().any(|expulsion| expulsion.peer == contact.peer)
        });
        partitioned.drain(..partitioned.len().saturating_sub(PARTITIONED_MAX));
        partitioned
    }
}

impl ViewChange {
    /// Whether its lists can be; the rest shows when it is applied to the view that it follows.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        self.removed.len() <= MEMBERS_MAX
            && self.added.len() <= MEMBERS_MAX
            && self.capacities.len() <= MEMBERS_MAX
            && self.added.iter().all(|member| are_bounded(&member.addresses))
            && self.resume.is_bounded()
            && self.cursor.is_valid()
            && self.moves.are_bounded()
            && self.expelled.len() <= EXPELLED_MAX
            && self.ancestors.len() <= ANCESTORS_MAX
    }
}

impl Moves {
    fn are_bounded(&self) -> bool {
        self.list.len() <= CHUNKS_MAX
            && self.list.iter().all(|moved| moved.from.len() <= REPLICAS_MAX)
            && self.restarted.len() <= CHUNKS_MAX
    }

    fn are_valid(&self, member_count: usize) -> bool {
        let is_move = |moved: &Move| {
            let distinct: BTreeSet<&Rank> = moved.from.iter().collect();
            (1..=REPLICAS_MAX).contains(&moved.from.len())
                && distinct.len() == moved.from.len()
                && moved.from.iter().all(|rank| rank.index() < member_count)
        };
        self.list.iter().all(is_move)
            && are_distinct_chunks(self.list.iter().map(|moved| moved.chunk))
            && are_distinct_chunks(self.restarted.iter().copied())
            && (self.rate > 0 || self.list.is_empty())
    }
}

fn is_chunk(chunk: u32) -> bool {
    (chunk as usize) < CHUNKS_MAX
}

fn are_distinct_chunks(mut chunks: impl Iterator<Item = u32>) -> bool {
    let mut seen = BTreeSet::new();
    chunks.all(|chunk| is_chunk(chunk) && seen.insert(chunk))
}

/// Whether a list of addresses keeps to the limits.
#[must_use]
pub fn are_bounded(addresses: &[String]) -> bool {
    addresses.len() <= ADDRESSES_MAX && addresses.iter().all(|address| address.len() <= ADDRESS_BYTES_MAX)
}

/// Members up to which each speaks with every other all the time.
const SMALL_VIEW_MEMBERS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::Span;
    use crate::limits::BATCH_SPANS_MAX;
    use crate::message::SampleStats;

    fn member(byte: u8) -> Member {
        Member {
            peer: PeerId([byte; 32]),
            incarnation: Incarnation(1),
            addresses: vec![format!("/ip4/127.0.0.1/tcp/{byte}")],
            capacity: 1,
        }
    }

    fn expulsion(byte: u8) -> Expulsion {
        Expulsion { peer: PeerId([byte; 32]), by: PeerId([1; 32]), cause: ExpulsionCause::Request }
    }

    fn view(peers: &[u8]) -> View {
        View::first(RunId([9; 32]), peers.iter().map(|byte| member(*byte)).collect())
    }

    fn resumed(peers: &[u8], resume: Resume) -> View {
        View { recovery: Recovery::Resume(resume), ..view(peers) }
    }

    #[test]
    fn every_field_changes_the_digest() {
        let base = view(&[1, 2]);
        let mut others = vec![view(&[1, 3]), View { number: ViewNumber(2), ..base.clone() }];
        others.push(View { parents: vec![base.digest()], ..base.clone() });
        others.push(View { run: RunId([8; 32]), ..base.clone() });
        others.push(View { branch: Branch { step: StepNumber(1), ..base.branch }, ..base.clone() });
        others.push(resumed(&[1, 2], Resume::at(StepNumber(0))));
        others.push(resumed(&[1, 2], Resume { is_restored: true, ..Resume::at(StepNumber(0)) }));
        others.push(View { cursor: DataCursor { position: 1, ..DataCursor::default() }, ..base.clone() });
        others.push(View { moves: Moves { rate: 1, ..Moves::default() }, ..base.clone() });
        let mut incarnation = base.clone();
        incarnation.members[0].incarnation = Incarnation(2);
        others.push(incarnation);
        let digests: BTreeSet<_> = others.iter().map(View::digest).chain([base.digest()]).collect();
        assert_eq!(digests.len(), others.len() + 1);
    }

    #[test]
    fn ranks_follow_the_order_of_peers() {
        let view = view(&[1, 5, 9]);
        assert_eq!(view.rank(&PeerId([5; 32])), Some(Rank(1)));
        assert_eq!(view.rank(&PeerId([6; 32])), None);
    }

    #[test]
    fn broken_records_are_told_apart() {
        assert_eq!(view(&[1, 2]).validate(), Ok(()));
        assert_eq!(view(&[]).validate(), Err(InvalidView::MemberCount));
        assert_eq!(view(&[2, 1]).validate(), Err(InvalidView::MemberOrder));
        assert_eq!(view(&[2, 2]).validate(), Err(InvalidView::MemberOrder));
        let mut light = view(&[1]);
        light.members[0].capacity = 0;
        assert_eq!(light.validate(), Err(InvalidView::Capacity));
        light.members[0].capacity = CAPACITY_MAX + 1;
        assert_eq!(light.validate(), Err(InvalidView::Capacity));
        let mut wordy = view(&[1]);
        wordy.members[0].addresses = vec!["x".repeat(ADDRESS_BYTES_MAX + 1)];
        assert_eq!(wordy.validate(), Err(InvalidView::Addresses));
        let merged = View { parents: vec![view(&[1]).digest(); 3], ..view(&[1]) };
        assert_eq!(merged.validate(), Err(InvalidView::Parents));
        let late = resumed(&[1], Resume::at(StepNumber(u64::MAX)));
        assert_eq!(late.validate(), Err(InvalidView::DataCursor));
        let odd = View { cursor: DataCursor { position: u64::MAX, ..DataCursor::default() }, ..view(&[1]) };
        assert_eq!(odd.validate(), Err(InvalidView::DataCursor));
        let again = View { parents: vec![view(&[1]).digest()], ..view(&[1]) };
        assert_eq!(again.validate(), Err(InvalidView::Number));
        let last = View { number: ViewNumber(STEPS_MAX), ..view(&[1]) };
        assert_eq!(last.validate(), Ok(()));
        assert_eq!(
            View { number: ViewNumber(STEPS_MAX + 1), ..view(&[1]) }.validate(),
            Err(InvalidView::Number)
        );
        let crowd: Vec<Member> = (0..=MEMBERS_MAX as u16)
            .map(|index| {
                let mut peer = PeerId([0; 32]);
                peer.0[..2].copy_from_slice(&index.to_be_bytes());
                Member { peer, ..member(0) }
            })
            .collect();
        assert_eq!(View { members: crowd[1..].to_vec(), ..view(&[]) }.validate(), Ok(()));
        assert_eq!(View { members: crowd, ..view(&[]) }.validate(), Err(InvalidView::MemberCount));
    }

    #[test]
    fn lists_that_cannot_be_are_refused() {
        let span = |start, end| Span { start, end };
        let deal = |parts: Vec<Vec<Span>>| Some(BatchParts { epoch: 0, parts });
        let at = Resume::at(StepNumber(3));
        for resume in [
            Resume { newcomers: vec![Rank(2)], ..at.clone() },
            Resume { newcomers: vec![Rank(0), Rank(1)], ..at.clone() },
            Resume { newcomers: vec![Rank(0), Rank(0)], ..at.clone() },
            Resume { batch: deal(vec![vec![]]), ..at.clone() },
            Resume { batch: deal(vec![vec![span(0, 4)], vec![span(3, 5)]]), ..at.clone() },
            Resume { batch: deal(vec![vec![span(4, 4)], vec![]]), ..at.clone() },
            Resume {
                forward: Some(RollForward {
                    stats: SampleStats::default(),
                    donors: vec![Donor { first: 0, end: 1, rank: Rank(2) }],
                }),
                ..at.clone()
            },
        ] {
            assert_eq!(resumed(&[1, 2], resume.clone()).validate(), Err(InvalidView::Lists), "{resume:?}");
        }
        let donors = |count| vec![Donor { first: 0, end: 1, rank: Rank(1) }; count];
        for (stats, donors, expected) in [
            (SampleStats::default(), donors(CHUNKS_MAX), Ok(())),
            (SampleStats::default(), donors(CHUNKS_MAX + 1), Err(InvalidView::Lists)),
            (
                SampleStats::default(),
                vec![Donor { first: 1, end: 1, rank: Rank(0) }],
                Err(InvalidView::Lists),
            ),
            (
                SampleStats::default(),
                vec![Donor { first: 0, end: 4097, rank: Rank(0) }],
                Err(InvalidView::Lists),
            ),
            (SampleStats { samples: 1 << 32, loss: 0.0 }, vec![], Err(InvalidView::Lists)),
        ] {
            let resume = Resume { forward: Some(RollForward { stats, donors }), ..at.clone() };
            assert_eq!(resumed(&[1, 2], resume).validate(), expected);
        }
    }

    #[test]
    fn moves_that_cannot_be_are_refused() {
        let moves = |list: &[(u32, &[u32])], rate, restarted: &[u32]| Moves {
            list: list
                .iter()
                .map(|(chunk, from)| Move { chunk: *chunk, from: from.iter().map(|r| Rank(*r)).collect() })
                .collect(),
            rate,
            restarted: restarted.to_vec(),
        };
        for odd in [
            moves(&[(1, &[0])], 0, &[]),
            moves(&[(1, &[0]), (1, &[1])], 1, &[]),
            moves(&[(1, &[0, 0])], 1, &[]),
            moves(&[(1, &[2])], 1, &[]),
            moves(&[(1, &[])], 1, &[]),
            moves(&[(CHUNKS_MAX as u32, &[0])], 1, &[]),
            moves(&[], 0, &[1, 1]),
            moves(&[], 0, &[CHUNKS_MAX as u32]),
        ] {
            let record = View { moves: odd.clone(), ..view(&[1, 2]) };
            assert_eq!(record.validate(), Err(InvalidView::Lists), "{odd:?}");
        }
        let restarted = View { moves: moves(&[(1, &[0])], 1, &[1]), ..view(&[1, 2]) };
        assert_eq!(restarted.validate(), Ok(()), "a chunk may start anew elsewhere than where it belongs");
        let peers: Vec<u8> = (0..=REPLICAS_MAX as u8).collect();
        for (holders, expected) in [(REPLICAS_MAX, Ok(())), (REPLICAS_MAX + 1, Err(InvalidView::Lists))] {
            let from: Vec<u32> = (0..holders as u32).collect();
            let record = View { moves: moves(&[(4095, &from)], 1, &[3]), ..view(&peers) };
            assert_eq!(record.validate(), expected);
        }
    }

    #[test]
    fn what_is_dealt_was_taken_once() {
        let span = |start, end| Span { start, end };
        let returned = vec![span(4, 6), span(9, 10)];
        let cursor = DataCursor { epoch: 1, position: 20, returned, deferred: vec![] };
        let validate = |epoch, parts: &[&[Span]]| {
            let parts = parts.iter().map(|part| part.to_vec()).collect();
            let resume = Resume { batch: Some(BatchParts { epoch, parts }), ..Resume::at(StepNumber(3)) };
            View { cursor: cursor.clone(), ..resumed(&[1, 2], resume) }.validate()
        };
        assert_eq!(validate(1, &[&[span(6, 9), span(0, 4)], &[span(10, 20)]]), Ok(()));
        assert_eq!(validate(1, &[&[], &[]]), Ok(()));
        for parts in [
            // Nobody's, and somebody's who is not in.
            &[&[][..]][..],
            &[&[], &[], &[]],
            // Twice, beyond what was taken, and given back as well.
            &[&[span(0, 3)], &[span(2, 4)]],
            &[&[span(10, 21)], &[]],
            &[&[span(5, 7)], &[]],
            &[&[span(7, 7)], &[]],
        ] {
            assert_eq!(validate(1, parts), Err(InvalidView::Lists), "{parts:?}");
        }
        assert_eq!(validate(2, &[&[span(0, 4)], &[]]), Err(InvalidView::Lists), "of another epoch");
    }

    #[test]
    fn a_record_fits_the_samples_and_chunks_that_there_are() {
        let donor = Donor { first: 2, end: 8, rank: Rank(0) };
        let forward = Some(RollForward { stats: SampleStats::default(), donors: vec![donor] });
        let record = View {
            cursor: DataCursor { position: 100, ..DataCursor::default() },
            moves: Moves { list: vec![Move { chunk: 7, from: vec![Rank(0)] }], rate: 1, restarted: vec![5] },
            ..resumed(&[1, 2], Resume { forward, ..Resume::at(StepNumber(3)) })
        };
        assert_eq!(record.validate(), Ok(()));
        assert!(record.fits(100, 8) && !record.fits(99, 8) && !record.fits(100, 7));
        let moved = View { recovery: Recovery::Initialize, ..record.clone() };
        assert!(moved.fits(100, 8) && !moved.fits(100, 7));
        let restarted = View { moves: Moves { list: vec![], ..moved.moves.clone() }, ..moved };
        assert!(restarted.fits(100, 6) && !restarted.fits(100, 5));
        assert!(view(&[1]).fits(1, 1));
    }

    #[test]
    fn a_change_is_bounded_before_it_is_applied() {
        let change = ViewChange {
            parent: ViewDigest([0; 32]),
            removed: vec![],
            added: vec![],
            capacities: vec![],
            resume: Resume::at(StepNumber(9)),
            cursor: DataCursor::default(),
            moves: Moves::default(),
            expelled: vec![],
            ancestors: vec![],
        };
        assert!(change.is_bounded());
        let ranks = |count: usize| vec![Rank(0); count];
        let spans = |count: usize| vec![vec![Span { start: 0, end: 1 }; count]];
        let deal = |parts| Resume { batch: Some(BatchParts { epoch: 0, parts }), ..change.resume.clone() };
        let moved = |holders| Move { chunk: 0, from: ranks(holders) };
        let moves = |list, restarted| Moves { list, rate: 1, restarted };
        let wordy = Member { addresses: vec![String::new(); ADDRESSES_MAX + 1], ..member(1) };
        let forward = RollForward {
            stats: SampleStats::default(),
            donors: vec![Donor { first: 0, end: 1, rank: Rank(0) }; CHUNKS_MAX + 1],
        };
        for odd in [
            ViewChange { removed: ranks(MEMBERS_MAX + 1), ..change.clone() },
            ViewChange { added: vec![member(1); MEMBERS_MAX + 1], ..change.clone() },
            ViewChange { added: vec![wordy], ..change.clone() },
            ViewChange { capacities: vec![(Rank(0), 1); MEMBERS_MAX + 1], ..change.clone() },
            ViewChange {
                resume: Resume { newcomers: ranks(MEMBERS_MAX + 1), ..change.resume.clone() },
                ..change.clone()
            },
            ViewChange { resume: deal(vec![vec![]; MEMBERS_MAX + 1]), ..change.clone() },
            ViewChange { resume: deal(spans(BATCH_SPANS_MAX + 1)), ..change.clone() },
            ViewChange {
                resume: Resume { forward: Some(forward), ..change.resume.clone() },
                ..change.clone()
            },
            ViewChange { cursor: DataCursor { epoch: u64::MAX, ..DataCursor::default() }, ..change.clone() },
            ViewChange { moves: moves(vec![moved(1); CHUNKS_MAX + 1], vec![]), ..change.clone() },
            ViewChange { moves: moves(vec![moved(REPLICAS_MAX + 1)], vec![]), ..change.clone() },
            ViewChange { moves: moves(vec![], vec![0; CHUNKS_MAX + 1]), ..change.clone() },
            ViewChange { expelled: vec![expulsion(9); EXPELLED_MAX + 1], ..change.clone() },
        ] {
            assert!(!odd.is_bounded(), "{odd:?}");
        }
    }

    #[test]
    fn a_change_makes_the_next_view() {
        let base = view(&[1, 3, 5]);
        let digest = base.digest();
        let change = ViewChange {
            parent: digest,
            removed: vec![Rank(1)],
            added: vec![Member { incarnation: Incarnation(2), ..member(3) }, member(4)],
            capacities: vec![(Rank(2), 7)],
            resume: Resume::at(StepNumber(9)),
            cursor: DataCursor { position: 5, ..DataCursor::default() },
            moves: Moves::default(),
            expelled: vec![expulsion(7)],
            ancestors: vec![],
        };
        let next = base.apply(digest, &change).unwrap();
        let members: Vec<_> =
            next.members.iter().map(|m| (m.peer.0[0], m.incarnation.0, m.capacity)).collect();
        assert_eq!(members, [(1, 1, 1), (3, 2, 1), (4, 1, 1), (5, 1, 7)]);
        assert_eq!(
            (next.number, &next.parents, next.first_step()),
            (ViewNumber(2), &vec![digest], StepNumber(9))
        );
        let other = ViewChange { parent: ViewDigest([0; 32]), ..change.clone() };
        assert_eq!(base.apply(digest, &other), Err(InvalidView::Parent));
        let outside = ViewChange { removed: vec![Rank(3)], ..change.clone() };
        assert_eq!(base.apply(digest, &outside), Err(InvalidView::Parent));
        let twice = ViewChange { added: vec![member(1)], ..change };
        assert_eq!(base.apply(digest, &twice), Err(InvalidView::MemberOrder));
    }

    #[test]
    fn who_is_put_out_is_remembered_and_not_in() {
        let base = View { expelled: (100..164).map(expulsion).collect(), ..view(&[1, 3]) };
        assert_eq!(base.validate(), Ok(()));
        assert_eq!(base.expulsion(&PeerId([100; 32])), Some(&expulsion(100)));
        let put_out = |peer, removed| {
            let (parent, resume) = (base.digest(), Resume::at(StepNumber(9)));
            let (added, capacities, cursor, moves) =
                (vec![], vec![], DataCursor::default(), Moves::default());
            let expelled = vec![expulsion(peer)];
            base.apply(
                parent,
                &ViewChange {
                    parent,
                    removed,
                    added,
                    capacities,
                    resume,
                    cursor,
                    moves,
                    expelled,
                    ancestors: vec![],
                },
            )
        };
        let next = put_out(3, vec![Rank(1)]).unwrap();
        assert_eq!(next.expelled.len(), EXPELLED_MAX);
        assert_eq!(next.expulsion(&PeerId([3; 32])), Some(&expulsion(3)));
        assert_eq!(next.expulsion(&PeerId([100; 32])), None, "the oldest is forgotten");
        assert_eq!(put_out(3, vec![]), Err(InvalidView::Expelled), "it is in");
        let many = View { expelled: vec![expulsion(9); EXPELLED_MAX + 1], ..view(&[1]) };
        assert_eq!(many.validate(), Err(InvalidView::Expelled));
    }

    #[test]
    fn a_view_names_the_views_that_it_comes_from_and_two_find_their_fork() {
        let ancestor = |byte, trained| Ancestor { view: ViewDigest([byte; 32]), trained };
        let base = View {
            ancestors: (0..ANCESTORS_MAX as u8).map(|byte| ancestor(byte, 5)).collect(),
            ..view(&[1, 3])
        };
        let parent = base.digest();
        let change = |resume, ancestors| ViewChange {
            parent,
            removed: vec![],
            added: vec![],
            capacities: vec![],
            resume,
            cursor: DataCursor::default(),
            moves: Moves::default(),
            expelled: vec![],
            ancestors,
        };
        let (cursor, history) =
            (DataCursor::default(), vec![ancestor(2, 5), ancestor(70, 9), ancestor(90, 70)]);
        let (ours, theirs) = (30, 10);
        let merge = Merge { view: ViewDigest([90; 32]), steps: StepNumber(7), ours, theirs, cursor, history };
        let resume = Resume { merge: Some(Box::new(merge.clone())), ..Resume::at(StepNumber(9)) };
        let next = base.apply(parent, &change(resume.clone(), vec![ancestor(80, 64)])).unwrap();
        assert_eq!((&next.parents, next.merge()), (&vec![parent, merge.view], Some(&merge)));
        assert_eq!((next.ancestors.len(), merge.share()), (ANCESTORS_MAX, 0.25));
        assert!(next.descends_from(parent) && !next.descends_from(merge.view), "its first step is to come");
        // Given up with the first step, or behind with it.
        let after = |step| {
            let (parent, resume) = (next.digest(), Resume::at(StepNumber(step)));
            next.apply(parent, &ViewChange { parent, ..change(resume, vec![ancestor(95, 80)]) }).unwrap()
        };
        let (dropped, merged) = (after(9), after(10));
        assert!(!dropped.descends_from(merge.view) && merged.descends_from(merge.view));
        // Of the older ones the same are left out, whoever does it.
        let names = |view: &View, byte| view.descends_from(ViewDigest([byte; 32]));
        let kept = |view: &View| (0..64).filter(|byte| names(view, *byte)).collect::<Vec<u8>>();
        assert!(kept(&dropped).starts_with(&kept(&merged)[..29]) && names(&merged, 70) && names(&merged, 2));
        let next = merged;
        // Of a history that goes on from the same view later, only what came before counts.
        assert_eq!(
            fork_point(&next.ancestors, &[ancestor(90, 75), ancestor(80, 60), ancestor(75, 90)]),
            Some(70)
        );
        assert_eq!(fork_point(&next.ancestors, &[ancestor(75, 90)]), None);
        for odd in [Merge { ours: 0, theirs: 0, ..merge.clone() }, Merge { ours: u64::MAX, ..merge }] {
            let resume = Resume { merge: Some(Box::new(odd)), ..resume.clone() };
            assert_eq!(base.apply(parent, &change(resume, vec![])), Err(InvalidView::Lists));
        }
        let parts = vec![vec![Span { start: 0, end: 1 }], vec![]];
        let trains = Resume { batch: Some(BatchParts { epoch: 0, parts }), ..resume };
        assert!(base.apply(parent, &change(trains, vec![])).is_err(), "its first step trains nothing");
        assert!(!change(Resume::at(StepNumber(9)), vec![ancestor(1, 1); ANCESTORS_MAX + 1]).is_bounded());
    }

    #[test]
    fn who_goes_back_does_not_come_from_what_was_merged_since() {
        let ancestor = |byte, trained| Ancestor { view: ViewDigest([byte; 32]), trained };
        // One that was merged early, and after the view that was gone back to one that had trained little.
        let ancestors =
            vec![ancestor(1, 20), ancestor(2, 10), ancestor(3, 60), ancestor(4, 30), ancestor(5, 80)];
        let base = View { ancestors, ..view(&[1, 3]) };
        let (parent, parts) = (base.digest(), (vec![], vec![], vec![], vec![]));
        let after = |is_restored| {
            let (removed, added, capacities, expelled) = parts.clone();
            let (cursor, moves) = (DataCursor::default(), Moves::default());
            let resume = Resume { is_restored, ..Resume::at(StepNumber(4)) };
            let ancestors = vec![Ancestor { view: parent, trained: 40 }];
            ViewChange { parent, removed, added, capacities, resume, cursor, moves, expelled, ancestors }
        };
        let last = Ancestor { view: parent, trained: 40 };
        assert_eq!(
            base.ancestors_after(&after(true)),
            [ancestor(1, 20), ancestor(2, 10), ancestor(3, 40), last]
        );
        assert_eq!(base.ancestors_after(&after(false)).len(), 6);
    }

    #[test]
    fn where_lineages_can_part_a_view_names_who_was_lost_until_they_are_back() {
        let base = view(&[1, 3, 5]);
        let names =
            |view: &View| view.partitioned.iter().map(|contact| contact.peer.0[0]).collect::<Vec<_>>();
        let ancestor = Ancestor { view: base.digest(), trained: 7 };
        let change = |view: &View, removed: Vec<Rank>, added: Vec<Member>, ancestors: Vec<Ancestor>| {
            let parts = vec![vec![]; view.members.len() + added.len() - removed.len()];
            let deal = Some(BatchParts { epoch: 0, parts });
            let (parent, resume) = (view.digest(), Resume { batch: deal, ..Resume::at(StepNumber(9)) });
            let (capacities, cursor, moves, expelled) =
                (vec![], DataCursor::default(), Moves::default(), vec![]);
            let change =
                ViewChange { parent, removed, added, capacities, resume, cursor, moves, expelled, ancestors };
            view.apply(parent, &change).unwrap()
        };
        let lost = change(&base, vec![Rank(1), Rank(2)], vec![], vec![ancestor]);
        assert_eq!(names(&lost), [3, 5]);
        let back = change(&lost, vec![], vec![member(5)], vec![ancestor]);
        assert_eq!(names(&back), [3]);
        // There is only one lineage where none is named.
        assert!(names(&change(&base, vec![Rank(1)], vec![], vec![])).is_empty());
    }

    #[test]
    fn a_branch_begins_where_training_goes_on_from_checkpoints() {
        let base = view(&[1, 3]);
        let follow = |view: &View, resume| {
            let parent = view.digest();
            let (cursor, moves) = (DataCursor::default(), Moves::default());
            let (removed, added, capacities, expelled) = (vec![], vec![], vec![], vec![]);
            let ancestors = vec![];
            let change =
                ViewChange { parent, removed, added, capacities, resume, cursor, moves, expelled, ancestors };
            view.apply(parent, &change)
        };
        let restored = |step| Resume { is_restored: true, ..Resume::at(StepNumber(step)) };
        let next = follow(&base, Resume::at(StepNumber(9))).unwrap();
        assert_eq!(next.branch, Branch { view_number: ViewNumber(1), step: StepNumber(0), fork: None });
        let back = follow(&next, restored(4)).unwrap();
        let branch = Branch { view_number: ViewNumber(3), step: StepNumber(4), fork: None };
        assert_eq!(back.branch, branch);
        assert_eq!(follow(&back, Resume::at(StepNumber(7))).unwrap().branch, branch);
        // Of what each branch has come to, nothing counts beyond the beginning of a later one.
        let again = follow(&back, restored(6)).unwrap();
        let is_behind = |branch, steps| again.descends_from_state(branch, StepNumber(steps));
        assert!(is_behind(again.branch, 99) && is_behind(branch, 6) && is_behind(next.branch, 4));
        assert!(!is_behind(branch, 7) && !is_behind(next.branch, 5));
        assert!(!is_behind(Branch { fork: Some(1), ..branch }, 4), "of another lineage");
        let interrupted =
            Resume { batch: Some(BatchParts { epoch: 0, parts: vec![vec![], vec![]] }), ..restored(4) };
        assert_eq!(follow(&next, interrupted), Err(InvalidView::Lists));
        for branch in
            [Branch { view_number: ViewNumber(2), ..branch }, Branch { step: StepNumber(5), ..branch }]
        {
            assert_eq!(View { branch, ..back.clone() }.validate(), Err(InvalidView::Branch));
        }
        let early = Branch { view_number: ViewNumber(4), step: StepNumber(0), fork: None };
        assert_eq!(View { branch: early, ..next }.validate(), Err(InvalidView::Number));
        let alone = View::first_from_checkpoint(base.run, member(1), StepNumber(7), DataCursor::default());
        assert_eq!((alone.validate(), alone.first_step()), (Ok(()), StepNumber(7)));
    }

    #[test]
    fn moves_come_a_few_a_step() {
        let list = (0..5).map(|chunk| Move { chunk, from: vec![Rank(0)] }).collect();
        let moves = Moves { list, rate: 2, restarted: vec![] };
        assert_eq!([0, 1, 2, 3, u64::MAX].map(|steps| moves.moved(steps)), [0, 2, 4, 5, 5]);
    }
}
