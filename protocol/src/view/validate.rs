//! The rules that a view record satisfies, and the errors that name the broken one.

use std::collections::BTreeSet;

use crate::limits::{
    ADDRESS_BYTES_MAX, ADDRESSES_MAX, ANCESTORS_MAX, BRANCHES_MAX, CAPACITY_MAX, CHUNKS_MAX, EXPELLED_MAX,
    MEMBERS_MAX, PARENTS_MAX, PARTITIONED_MAX, QUARANTINES_MAX, SAMPLES_MAX, STEPS_MAX,
};

use super::{Branch, Expulsion, Recovery, RollForward, View, ViewHistory};

/// The rule that a view record breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidView {
    /// The view has no member, or more than the limit.
    #[error("a view has 1 to {MEMBERS_MAX} members")]
    MemberCount,
    /// Members are out of order, or one of them is there twice.
    #[error("the members of a view are sorted and distinct")]
    MemberOrder,
    /// The speeds or the lines are of other members.
    #[error("a view has the speeds and the lines of all members, or of none")]
    Measurements,
    /// A capacity is over the limit, or no member owns anything.
    #[error("capacities are 0 to {CAPACITY_MAX}, and not all of them 0")]
    Capacity,
    /// The view has more parents than a merge has.
    #[error("a view follows at most {PARENTS_MAX} others")]
    Parents,
    /// The view has parents but initializes the run, or its number cannot be.
    #[error("the view is neither the first of a run nor does it follow another")]
    Number,
    /// A branch does not start where the record says.
    #[error("the branch of the run does not start where it can")]
    Branch,
    /// The data cursor or the first step cannot be.
    #[error("the data cursor or the first step of the view cannot be")]
    DataCursor,
    /// A list of ranks, chunks or positions cannot be.
    #[error("a list of ranks, chunks or samples cannot be")]
    Lists,
    /// The change does not fit the view that it is applied to.
    #[error("the change does not follow this view")]
    Parent,
    /// The view remembers too many expulsions, or one of a member.
    #[error("a view remembers at most {EXPELLED_MAX} expulsions, none of them of a member")]
    Expelled,
    /// The view remembers too many quarantined members.
    #[error("a view remembers at most {QUARANTINES_MAX} quarantined members")]
    Quarantine,
    /// The view has too many ancestors or partitioned peers, or one that has trained more samples than there can be.
    #[error("a view names at most {ANCESTORS_MAX} ancestors and {PARTITIONED_MAX} partitioned peers")]
    Ancestors,
    /// There are too many addresses, or one is too long.
    #[error("a member has at most {ADDRESSES_MAX} addresses of at most {ADDRESS_BYTES_MAX} bytes")]
    Addresses,
}

impl View {
    /// Checks the rules that every record satisfies.
    ///
    /// # Errors
    /// The first rule that the record breaks.
    pub fn validate(&self) -> Result<(), InvalidView> {
        self.validate_members()?;
        self.history.validate()?;
        let is_out = |expelled: &Expulsion| self.rank(&expelled.peer).is_none();
        if self.expelled.len() > EXPELLED_MAX || !self.expelled.iter().all(is_out) {
            return Err(InvalidView::Expelled);
        }
        if self.quarantined.len() > QUARANTINES_MAX {
            return Err(InvalidView::Quarantine);
        }
        if self.parents.len() > PARENTS_MAX {
            return Err(InvalidView::Parents);
        }
        self.validate_branch()?;
        let count = self.members.len();
        if !self.cursor.is_valid() {
            return Err(InvalidView::DataCursor);
        }
        if let Recovery::Resume(resume) = &self.recovery {
            resume.validate(count, &self.cursor)?;
        }
        if self.moves.are_valid(count) { Ok(()) } else { Err(InvalidView::Lists) }
    }

    fn validate_members(&self) -> Result<(), InvalidView> {
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
        let of_all = |count: usize| count == 0 || count == self.members.len();
        if !of_all(self.speeds.len()) || !of_all(self.lines.len()) {
            return Err(InvalidView::Measurements);
        }
        if !self.members.iter().all(|member| are_bounded(&member.addresses)) {
            return Err(InvalidView::Addresses);
        }
        Ok(())
    }

    fn validate_branch(&self) -> Result<(), InvalidView> {
        let ViewHistory { branch, earlier_branches, .. } = &self.history;
        let has_parents_at_start = self.recovery == Recovery::Initialize && !self.parents.is_empty();
        if has_parents_at_start || self.number.0 > STEPS_MAX || branch.view_number > self.number {
            return Err(InvalidView::Number);
        }
        let is_restored = matches!(&self.recovery, Recovery::Resume(resume) if resume.is_restored);
        let starts_here = *branch == Branch { view_number: self.number, step: self.first_step(), fork: None };
        let is_earlier =
            |earlier: &Branch| earlier.view_number < branch.view_number && earlier.step.0 <= STEPS_MAX;
        let are_earlier = earlier_branches.len() <= BRANCHES_MAX && earlier_branches.iter().all(is_earlier);
        if branch.step.0 > STEPS_MAX || (is_restored && !starts_here) || !are_earlier {
            return Err(InvalidView::Branch);
        }
        Ok(())
    }

    /// Whether all samples and chunks that the record names exist, in a run that has so many of them.
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
        // Assigned and returned samples lie before the position of the cursor.
        self.cursor.position <= sample_count
            && is_resumed
            && self.moves.list.iter().all(|moved| is_chunk(moved.chunk))
            && self.moves.restarted.iter().all(|chunk| is_chunk(*chunk))
    }
}

impl ViewHistory {
    fn validate(&self) -> Result<(), InvalidView> {
        let are_ancestors = self.ancestors.len() <= ANCESTORS_MAX
            && self.ancestors.iter().all(|ancestor| ancestor.trained <= SAMPLES_MAX);
        if !are_ancestors || self.partitioned.len() > PARTITIONED_MAX {
            return Err(InvalidView::Ancestors);
        }
        if !self.partitioned.iter().all(|contact| are_bounded(&contact.addresses)) {
            return Err(InvalidView::Addresses);
        }
        Ok(())
    }
}

/// Whether a list of addresses is within the limits.
#[must_use]
pub fn are_bounded(addresses: &[String]) -> bool {
    addresses.len() <= ADDRESSES_MAX && addresses.iter().all(|address| address.len() <= ADDRESS_BYTES_MAX)
}

pub(super) fn is_chunk(chunk: u32) -> bool {
    (chunk as usize) < CHUNKS_MAX
}

pub(super) fn are_distinct_chunks(mut chunks: impl Iterator<Item = u32>) -> bool {
    let mut seen = BTreeSet::new();
    chunks.all(|chunk| is_chunk(chunk) && seen.insert(chunk))
}
