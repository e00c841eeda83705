//! Faults of members that are neither a crash nor a cut: what members report of each other, and who was quarantined for it.
//!
//! A member that loses frames, changes them, or stops doing one of its tasks still answers, and would halt all others. Each member that
//! notices something complains, and the next view is without the fewest members whose absence explains the complaints. A single complaint
//! does not tell which of the two members is at fault. So the record remembers both, and the next time the one that occurs more often has
//! to go.

use std::collections::BTreeSet;

use crate::id::{PeerId, Rank};
use crate::limits::QUARANTINE_TIMES_MAX;
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
    /// Its parameters are not those of most members.
    Parameters,
    /// The values of its shard that it sent are not those that it has itself.
    Values,
    /// Its frames arrive far later than those of others.
    Late,
}

/// A member's complaint about another one in the same view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Complaint {
    /// The member that it is about.
    pub about: Rank,
    /// What the sender has noticed.
    pub fault: MemberFault,
}

/// A member that a view excludes because of complaints. It may join again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Quarantine {
    /// The peer that is excluded.
    pub peer: PeerId,
    /// The member at the other end of the complaint; of several, one of them.
    pub other: PeerId,
    /// What was noticed.
    pub fault: MemberFault,
    /// Whether several members complain about the peer. Otherwise the fault may be that of `other`.
    pub is_certain: bool,
}

impl View {
    /// Whether a member that is quarantined once more is to be expelled. One that only a single other member ever complained about may be
    /// that member's victim, and is not expelled. Nor is one with other parameters: it may have them from a member that sends it others.
    #[must_use]
    pub fn is_last_quarantine(&self, next: &Quarantine) -> bool {
        let counts = |it: &&Quarantine| it.peer == next.peer && it.fault != MemberFault::Parameters;
        let all: Vec<&Quarantine> = self.quarantined.iter().chain([next]).filter(counts).collect();
        let others: BTreeSet<PeerId> = all.iter().map(|quarantine| quarantine.other).collect();
        all.len() >= QUARANTINE_TIMES_MAX
            && (others.len() > 1 || all.iter().any(|quarantine| quarantine.is_certain))
    }

    /// The members that were quarantined since the view `before`; none if this view continues another branch.
    #[must_use]
    pub fn quarantined_since(&self, before: &Self) -> &[Quarantine] {
        let known = &before.quarantined;
        let continues = |forgotten: &usize| self.quarantined.starts_with(&known[*forgotten..]);
        match (0..known.len()).find(continues) {
            Some(forgotten) => &self.quarantined[known.len() - forgotten..],
            None if known.is_empty() => &self.quarantined,
            None => &[],
        }
    }

    /// How often `peer` was one of two members of which one was at fault. Of two members the one with the larger value has to go: being
    /// kept counts twice, so that the same two take turns.
    #[must_use]
    pub fn suspicion(&self, peer: &PeerId) -> usize {
        let weight = |quarantine: &Quarantine| {
            usize::from(quarantine.peer == *peer)
                + 2 * usize::from(quarantine.other == *peer && !quarantine.is_certain)
        };
        self.quarantined.iter().map(weight).sum()
    }
}
