//! The change from one view to the next: the value that members agree on.

use std::collections::BTreeSet;

use crate::cursor::DataCursor;
use crate::id::{Rank, ViewDigest, ViewNumber};
use crate::limits::{ANCESTORS_MAX, EXPELLED_MAX, MEMBERS_MAX, QUARANTINES_MAX};
use crate::wire::codec::{Decode, Encode};

use super::{
    Ancestor, Expulsion, InvalidView, Member, MemberLine, Moves, Quarantine, Recovery, Resume, View,
    are_bounded,
};

/// What changes from one view to the next.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct ViewChange {
    /// The digest of the view that the next one follows.
    pub parent: ViewDigest,
    /// Members of the parent that leave, by their ranks there.
    pub removed: Vec<Rank>,
    /// Members that join, sorted by peer id.
    pub added: Vec<Member>,
    /// Members whose capacity changes, by their ranks in the parent, with the new capacity.
    pub capacities: Vec<(Rank, u8)>,
    /// The [speeds](View::speeds) of the members of the next view.
    pub speeds: Vec<u32>,
    /// The [lines](View::lines) of the members of the next view.
    pub lines: Vec<MemberLine>,
    /// Where training resumes; ranks are those of the next view.
    pub resume: Resume,
    /// The data cursor of the next view.
    pub cursor: DataCursor,
    /// The moves of the next view; ranks are those of the next view.
    pub moves: Moves,
    /// Peers that are expelled with this change.
    pub expelled: Vec<Expulsion>,
    /// Members that this change excludes because of complaints.
    pub quarantined: Vec<Quarantine>,
    /// Views that the next view descends from and the parent does not. Empty in a run that cannot fork.
    pub ancestors: Vec<Ancestor>,
}

impl View {
    /// The next view, if `change` fits this one, whose digest is `digest`.
    ///
    /// # Errors
    /// `change` has another parent, or its result is no valid view.
    pub fn apply(&self, digest: ViewDigest, change: &ViewChange) -> Result<Self, InvalidView> {
        let is_rank = |rank: &Rank| rank.index() < self.members.len();
        let are_ranks =
            change.removed.iter().all(is_rank) && change.capacities.iter().all(|(rank, _)| is_rank(rank));
        if change.parent != digest || !are_ranks {
            return Err(InvalidView::Parent);
        }
        let members = self.members_after(change);
        let mut expelled = self.expelled.clone();
        expelled.extend(&change.expelled);
        expelled.drain(..expelled.len().saturating_sub(EXPELLED_MAX));
        let mut quarantined = self.quarantined.clone();
        quarantined.extend(&change.quarantined);
        quarantined.drain(..quarantined.len().saturating_sub(QUARANTINES_MAX));
        let merged = change.resume.merge.as_ref().map(|merge| merge.view);
        let next = Self {
            run: self.run,
            number: ViewNumber(self.number.0 + 1),
            parents: std::iter::once(digest).chain(merged).collect(),
            history: self.history_after(digest, change, &members, &expelled),
            recovery: Recovery::Resume(change.resume.clone()),
            cursor: change.cursor.clone(),
            moves: change.moves.clone(),
            members,
            speeds: change.speeds.clone(),
            lines: change.lines.clone(),
            expelled,
            quarantined,
        };
        next.validate()?;
        Ok(next)
    }

    fn members_after(&self, change: &ViewChange) -> Vec<Member> {
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
        members
    }
}

impl ViewChange {
    /// Whether the lists of the change are within their limits. [`View::apply`] checks the rest.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        self.removed.len() <= MEMBERS_MAX
            && self.added.len() <= MEMBERS_MAX
            && self.capacities.len() <= MEMBERS_MAX
            && self.speeds.len() <= MEMBERS_MAX
            && self.lines.len() <= MEMBERS_MAX
            && self.added.iter().all(|member| are_bounded(&member.addresses))
            && self.resume.is_bounded()
            && self.cursor.is_valid()
            && self.moves.are_bounded()
            && self.expelled.len() <= EXPELLED_MAX
            && self.quarantined.len() <= QUARANTINES_MAX
            && self.ancestors.len() <= ANCESTORS_MAX
    }
}
