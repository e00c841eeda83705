//! The history of a view: the branch that it is on, the views that led to it, and the members that may have taken another way.
//!
//! Like the log of a version control system: a restart from checkpoints goes back to an earlier commit, a partition forks, and a
//! merge joins two lines. Two peers that compare their histories find the last view that both come from.
//!
//! # Invariants
//! - What was trained on a branch beyond the first step of a later branch was given up.
//! - Ancestors are in the order in which they were added. Where there are too many, the same ones are left out on every branch.

use crate::id::{Rank, StepNumber, ViewDigest, ViewNumber};
use crate::limits::{ANCESTORS_MAX, BRANCHES_MAX, PARTITIONED_MAX};
use crate::message::Contact;
use crate::wire::codec::{Decode, Encode};

use super::{Expulsion, Member, View, ViewChange};

/// What led to a view.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct ViewHistory {
    /// The branch that the view is on.
    pub branch: Branch,
    /// Earlier branches that led to the present one, the newest last; at most [`BRANCHES_MAX`], the oldest are forgotten.
    pub earlier_branches: Vec<Branch>,
    /// Views that this one descends from, the newest last; at most [`ANCESTORS_MAX`], older ones are thinned out. Empty in a run
    /// that cannot fork.
    pub ancestors: Vec<Ancestor>,
    /// Members that were lost and may train on another branch; at most [`PARTITIONED_MAX`], the oldest are forgotten. Empty in a
    /// run that cannot fork.
    pub partitioned: Vec<Contact>,
}

/// A stretch of the run's history without a step back. It starts with the run's first view, with a view that restarts from
/// checkpoints, or with a view that leaves members behind which may go on without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct Branch {
    /// The number of the view that starts the branch.
    pub view_number: ViewNumber,
    /// The first step of the branch.
    pub step: StepNumber,
    /// Tells apart views with the same number and parent, where both parts of a partitioned swarm go on: derived from the parent's
    /// digest and from the first member that the view keeps. `None` where there is only one such view.
    pub fork: Option<u32>,
}

/// A view that a later one descends from, as its successor or by merging.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Ancestor {
    /// The digest of the view.
    pub view: ViewDigest,
    /// Samples that the run had trained when the view ended.
    pub trained: u64,
}

/// Samples up to which two histories are the same, given the views of each, its own view included. `None` if they share no view.
#[must_use]
pub fn fork_point(ours: &[Ancestor], theirs: &[Ancestor]) -> Option<u64> {
    let common = |our: &Ancestor| {
        let their = theirs.iter().find(|their| their.view == our.view)?;
        Some(our.trained.min(their.trained))
    };
    ours.iter().filter_map(common).max()
}

impl ViewHistory {
    /// A history that starts with this branch.
    #[must_use]
    pub fn starting_with(branch: Branch) -> Self {
        Self { branch, earlier_branches: vec![], ancestors: vec![], partitioned: vec![] }
    }

    /// Whether the state of `branch` after `steps` steps led to this view, and was not given up since.
    #[must_use]
    pub fn descends_from_state(&self, branch: Branch, steps: StepNumber) -> bool {
        let all = self.earlier_branches.iter().chain([&self.branch]);
        let mut from_there = all.skip_while(|known| **known != branch);
        from_there.next().is_some() && from_there.all(|later| steps <= later.step)
    }

    /// The branches before the next view, which is on `branch`.
    fn earlier_than(&self, branch: Branch) -> Vec<Branch> {
        let last = (branch != self.branch).then_some(self.branch);
        let mut earlier: Vec<Branch> = self.earlier_branches.iter().copied().chain(last).collect();
        earlier.drain(..earlier.len().saturating_sub(BRANCHES_MAX));
        earlier
    }
}

/// Which views a view descends from.
impl View {
    /// Whether this view descends from `view`, as its successor or by merging, as far back as its history reaches. A merge that is
    /// still to be done does not count.
    #[must_use]
    pub fn descends_from(&self, view: ViewDigest) -> bool {
        self.parents.first() == Some(&view)
            || self.history.ancestors.iter().any(|ancestor| ancestor.view == view)
    }

    /// Whether this view descends from `view` in another way than as its direct successor.
    #[must_use]
    pub fn has_merged(&self, view: ViewDigest) -> bool {
        self.descends_from(view) && self.parents.first() != Some(&view)
    }

    /// The views that this one descends from after `steps` steps. A merge counts once the first step of the view is complete.
    #[must_use]
    pub fn ancestors_at(&self, steps: StepNumber) -> Vec<Ancestor> {
        let merge = self.merge().filter(|_| steps > self.first_step());
        union(&self.history.ancestors, merge.map_or(&[], |merge| &merge.history))
    }

    /// The views that the next view descends from. A view that restarts from checkpoints does not descend from what was merged
    /// after them.
    #[must_use]
    pub fn ancestors_after(&self, change: &ViewChange) -> Vec<Ancestor> {
        let mut ancestors = self.ancestors_at(change.resume.step);
        if let Some(back) = change.ancestors.first().filter(|_| change.resume.is_restored) {
            // Ancestors are in order: the first that ended later than the checkpoint is the view that wrote it.
            let left = ancestors.iter().position(|ancestor| ancestor.trained > back.trained);
            ancestors.truncate(left.map_or(ancestors.len(), |left| left + 1));
            ancestors.iter_mut().for_each(|ancestor| ancestor.trained = ancestor.trained.min(back.trained));
        }
        union(&ancestors, &change.ancestors)
    }

    /// The history of the next view, with these members and expulsions. `digest` is that of this view.
    pub(super) fn history_after(
        &self,
        digest: ViewDigest,
        change: &ViewChange,
        members: &[Member],
        expelled: &[Expulsion],
    ) -> ViewHistory {
        let branch = self.branch_after(digest, change);
        ViewHistory {
            branch,
            earlier_branches: self.history.earlier_than(branch),
            ancestors: self.ancestors_after(change),
            partitioned: self.partitioned_after(change, members, expelled),
        }
    }

    fn branch_after(&self, digest: ViewDigest, change: &ViewChange) -> Branch {
        let (view_number, step) = (ViewNumber(self.number.0 + 1), change.resume.step);
        if change.resume.is_restored {
            Branch { view_number, step, fork: None }
        } else if change.ancestors.is_empty() || change.removed.is_empty() {
            self.history.branch
        } else {
            // The removed members may agree on another view with the same parent, which keeps other members.
            let is_kept = |index: &usize| !change.removed.contains(&Rank::from_index(*index));
            let first_kept = (0..self.members.len()).find(is_kept).unwrap_or(0);
            let of_parent = u32::from_le_bytes([digest.0[0], digest.0[1], digest.0[2], digest.0[3]]);
            Branch { view_number, step, fork: Some(of_parent.wrapping_add(first_kept as u32)) }
        }
    }

    /// Members that were lost and may train on another branch.
    fn partitioned_after(
        &self,
        change: &ViewChange,
        members: &[Member],
        expelled: &[Expulsion],
    ) -> Vec<Contact> {
        let is_loss = !change.ancestors.is_empty() && change.resume.is_interruption();
        let lost = change.removed.iter().filter(|_| is_loss).map(|rank| self.member(*rank).contact());
        let mut partitioned: Vec<Contact> = self.history.partitioned.iter().cloned().chain(lost).collect();
        partitioned.retain(|contact| {
            let is_in = members.binary_search_by(|member| member.peer.cmp(&contact.peer)).is_ok();
            !is_in && !expelled.iter().any(|expulsion| expulsion.peer == contact.peer)
        });
        partitioned.drain(..partitioned.len().saturating_sub(PARTITIONED_MAX));
        partitioned
    }
}

/// Both lists as one. Where they are too many, the one with the largest digest among the older half is left out, so that all
/// branches leave out the same ones and two of them still share some.
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
