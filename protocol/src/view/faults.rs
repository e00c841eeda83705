//! Faults of members that are neither a crash nor a cut: what members report of each other, and who was left out of a view for it.
//!
//! A member that loses frames, changes them, or stops doing one of its tasks still answers, and would halt all others. Each member that
//! notices something complains, and the next view leaves out the fewest members whose absence explains the complaints. Of two members one
//! of which must be at fault, a single complaint does not tell which. So the record remembers both, and the next time the one that occurs
//! more often is left out.

use crate::id::{PeerId, Rank};
use crate::wire::codec::{Decode, Encode};

use super::View;

/// What a member has noticed of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub enum MemberFault {
    /// Frames from it were lost, changed or repeated.
    Frames,
    /// It sent what no correct member sends.
    Refused,
    /// It has not sent what others wait for, although it waits for nothing itself.
    Withheld,
}

/// A member's complaint about another one in the same view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Complaint {
    /// The member that it is about.
    pub about: Rank,
    /// What the sender has noticed.
    pub fault: MemberFault,
}

/// A member that a view left out because of complaints. It may join again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LeftOut {
    /// The peer that was left out.
    pub peer: PeerId,
    /// The member at the other end of the complaint; of several, one of them.
    pub other: PeerId,
    /// What was noticed.
    pub fault: MemberFault,
    /// Whether the complaints of several members agree. Otherwise the fault may be that of `other`.
    pub is_certain: bool,
}

impl View {
    /// How many times a view of this run has left out `peer`, as far as this one remembers.
    #[must_use]
    pub fn times_left_out(&self, peer: &PeerId) -> usize {
        self.left_out.iter().filter(|left_out| left_out.peer == *peer).count()
    }

    /// The members that were left out since the view `before`.
    #[must_use]
    pub fn left_out_since(&self, before: &Self) -> &[LeftOut] {
        let known = &before.left_out;
        let forgotten = (0..=known.len()).find(|&forgotten| self.left_out.starts_with(&known[forgotten..]));
        forgotten.map_or(&[], |forgotten| &self.left_out[known.len() - forgotten..])
    }

    /// How often `peer` was one of two members of which one was at fault. Of two members the one with the larger value is left out: being
    /// kept counts twice, so that the same two take turns.
    #[must_use]
    pub fn suspicion(&self, peer: &PeerId) -> usize {
        let weight = |left_out: &LeftOut| {
            usize::from(left_out.peer == *peer)
                + 2 * usize::from(left_out.other == *peer && !left_out.is_certain)
        };
        self.left_out.iter().map(weight).sum()
    }
}
