//! The view: an agreed record of who is in, from which everything else is computed.
//!
//! Like the minutes of a meeting: numbered, naming those present, pointing at the minutes before. Whoever holds the same
//! minutes computes the same owners, the same batches and the same ring, without asking anybody.
//!
//! # Invariants
//! - All members of a view hold the same record, byte for byte; its digest names it in every frame that touches
//!   owned state.
//! - Members are sorted by peer id, so a rank is a function of the record.

use std::collections::BTreeSet;

use crate::id::{Epoch, Incarnation, PeerId, Rank, RunId, StepNumber, ViewDigest};
use crate::ledger::Ledger;
use crate::limits::{ADDRESS_BYTES_MAX, ADDRESSES_MAX, MEMBERS_MAX, PARENTS_MAX, STEPS_MAX, WEIGHT_MAX};
use crate::wire::{self, Decode, Encode};

/// An agreed record of membership.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct View {
    /// The run it belongs to.
    pub run: RunId,
    /// Its number in the lineage.
    pub epoch: Epoch,
    /// Digests of the views it follows: none for the first, two after a merge.
    pub parents: Vec<ViewDigest>,
    /// Who is in, sorted by peer.
    pub members: Vec<Member>,
    /// Where training goes on.
    pub recovery: Recovery,
    /// What has been trained when it goes on there.
    pub ledger: Ledger,
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
    /// How much of the parameters it owns relative to others, 0 to [`WEIGHT_MAX`].
    pub weight: u8,
}

/// What the members of a new view do with the step that the change interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Recovery {
    /// The run begins here: everyone draws the initial parameters from the specification's seed.
    Found,
    /// Training goes on from `step`, which every member has or can be given.
    Resume {
        /// The first step of the new view.
        step: StepNumber,
    },
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
    /// A weight over the limit, or nobody who owns anything.
    #[error("weights are 0 to {WEIGHT_MAX}, and not all of them 0")]
    Weight,
    /// More parents than a merge has.
    #[error("a view follows at most {PARENTS_MAX} others")]
    Parents,
    /// A bookmark or a step that cannot be.
    #[error("the ledger or the step where training goes on cannot be")]
    Ledger,
    /// Too many or too long addresses.
    #[error("a member has at most {ADDRESSES_MAX} addresses of at most {ADDRESS_BYTES_MAX} bytes")]
    Addresses,
}

impl View {
    /// The digest that names this view.
    #[must_use]
    pub fn digest(&self) -> ViewDigest {
        let mut hasher = blake3::Hasher::new_derive_key("peergrad 1 view");
        hasher.update(&wire::encode_record(self));
        ViewDigest(*hasher.finalize().as_bytes())
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
        let weights: BTreeSet<u8> = self.members.iter().map(|member| member.weight).collect();
        if weights.last() == Some(&0) || weights.last() > Some(&WEIGHT_MAX) {
            return Err(InvalidView::Weight);
        }
        if !self.members.iter().all(|member| are_bounded(&member.addresses)) {
            return Err(InvalidView::Addresses);
        }
        if self.parents.len() > PARENTS_MAX {
            return Err(InvalidView::Parents);
        }
        let is_reachable = match self.recovery {
            Recovery::Found => true,
            Recovery::Resume { step } => step.0 <= STEPS_MAX,
        };
        if !is_reachable || !self.ledger.is_valid() {
            return Err(InvalidView::Ledger);
        }
        Ok(())
    }
}

/// Whether a list of addresses keeps to the limits.
#[must_use]
pub fn are_bounded(addresses: &[String]) -> bool {
    addresses.len() <= ADDRESSES_MAX && addresses.iter().all(|address| address.len() <= ADDRESS_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(peers: &[u8]) -> View {
        let member = |&byte: &u8| Member {
            peer: PeerId([byte; 32]),
            incarnation: Incarnation(1),
            addresses: vec![format!("/ip4/127.0.0.1/tcp/{byte}")],
            weight: 1,
        };
        View {
            run: RunId([9; 32]),
            epoch: Epoch(1),
            parents: vec![],
            members: peers.iter().map(member).collect(),
            recovery: Recovery::Found,
            ledger: Ledger::default(),
        }
    }

    #[test]
    fn every_field_changes_the_digest() {
        let base = view(&[1, 2]);
        let mut others = vec![view(&[1, 3]), View { epoch: Epoch(2), ..base.clone() }];
        others.push(View { parents: vec![base.digest()], ..base.clone() });
        others.push(View { run: RunId([8; 32]), ..base.clone() });
        others.push(View { recovery: Recovery::Resume { step: StepNumber(0) }, ..base.clone() });
        others.push(View { ledger: Ledger { position: 1, ..Ledger::default() }, ..base.clone() });
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
        light.members[0].weight = 0;
        assert_eq!(light.validate(), Err(InvalidView::Weight));
        light.members[0].weight = WEIGHT_MAX + 1;
        assert_eq!(light.validate(), Err(InvalidView::Weight));
        let mut wordy = view(&[1]);
        wordy.members[0].addresses = vec!["x".repeat(ADDRESS_BYTES_MAX + 1)];
        assert_eq!(wordy.validate(), Err(InvalidView::Addresses));
        let merged = View { parents: vec![view(&[1]).digest(); 3], ..view(&[1]) };
        assert_eq!(merged.validate(), Err(InvalidView::Parents));
        let late = View { recovery: Recovery::Resume { step: StepNumber(u64::MAX) }, ..view(&[1]) };
        assert_eq!(late.validate(), Err(InvalidView::Ledger));
        let odd = View { ledger: Ledger { position: u64::MAX, ..Ledger::default() }, ..view(&[1]) };
        assert_eq!(odd.validate(), Err(InvalidView::Ledger));
    }
}
