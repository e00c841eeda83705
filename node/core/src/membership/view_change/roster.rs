//! The roster of the next view: its members with what they have measured, and how their ranks follow from those in the present view.

use peergrad_protocol::cursor::DataCursor;
use peergrad_protocol::view::{Member, Moves, Resume, View, ViewChange};
use peergrad_protocol::{PeerId, Rank};

use super::Churn;
use crate::membership::measurements::Measurement;
use crate::state::shard_map::ShardMap;

/// The members of the next view, and the mapping between old and new ranks.
pub(super) struct Roster {
    /// The members of the next view, by new rank.
    pub(super) members: Vec<Member>,
    /// By new rank: what each member has measured.
    measurements: Vec<Measurement>,
    /// The old rank of each new one; `None` for a peer that was not in the view before.
    old_ranks: Vec<Option<Rank>>,
    /// The new rank of each old one; `None` for a member that is gone.
    new_ranks: Vec<Option<Rank>>,
}

impl Roster {
    pub(super) fn new(view: &View, churn: &Churn) -> Self {
        let old = (0..view.members.len()).map(Rank::from_index).filter(|rank| !churn.leavers.contains(rank));
        let staying = old.map(|rank| {
            let mut member = view.member(rank).clone();
            if let Some((_, capacity)) = churn.capacities.iter().find(|(of, _)| *of == rank) {
                member.capacity = *capacity;
            }
            if churn.retirees.contains(&rank) {
                member.capacity = 0;
            }
            (member, Some(rank))
        });
        let mut all: Vec<(Member, Option<Rank>)> =
            staying.chain(churn.joiners.iter().map(|member| (member.clone(), None))).collect();
        all.sort_by_key(|(member, _)| member.peer);
        if all.iter().all(|(member, _)| member.capacity == 0) {
            // No member that stays has offered to own anything, and at least one must: preferably one that does not begin to leave
            // with this change. After a stop
            // all members join as new ones.
            let is_retiree = |old: &Rank| churn.retirees.contains(old);
            let owner = all.iter().position(|(_, old)| old.as_ref().is_some_and(|old| !is_retiree(old)));
            let owner = owner.or(all.iter().position(|(_, old)| old.is_some())).unwrap_or_default();
            all.iter_mut().skip(owner).take(1).for_each(|(member, _)| member.capacity = 1);
        }
        let mut new_ranks = vec![None; view.members.len()];
        for (index, (_, old)) in all.iter().enumerate() {
            if let Some(old) = old {
                new_ranks[old.index()] = Some(Rank::from_index(index));
            }
        }
        let (members, old_ranks): (Vec<Member>, Vec<Option<Rank>>) = all.into_iter().unzip();
        let measured = |old: Rank| churn.measurements.get(old.index()).copied();
        let measurement = |old: Rank| measured(old).unwrap_or_else(|| Measurement::in_view(view, old));
        let measurements = old_ranks.iter().map(|old| old.map(measurement).unwrap_or_default()).collect();
        Self { members, measurements, old_ranks, new_ranks }
    }

    /// The new rank of a peer, whether it stays or rejoins.
    pub(super) fn rank_of(&self, peer: &PeerId) -> Option<Rank> {
        self.members.binary_search_by(|member| member.peer.cmp(peer)).ok().map(Rank::from_index)
    }

    pub(super) fn new_rank(&self, old: Rank) -> Option<Rank> {
        self.new_ranks[old.index()]
    }

    /// The new ranks of these old ones, without members that are gone.
    pub(super) fn to_new_ranks(&self, old: impl Iterator<Item = Rank>) -> Vec<Rank> {
        old.filter_map(|rank| self.new_rank(rank)).collect()
    }

    /// The new members, as they are in the next view.
    fn added(&self) -> Vec<Member> {
        let new = self.members.iter().zip(&self.old_ranks).filter(|(_, old)| old.is_none());
        new.map(|(member, _)| member.clone()).collect()
    }

    /// The ranks of the new members.
    pub(super) fn newcomers(&self) -> Vec<Rank> {
        let is_new = |(_, old): &(usize, &Option<Rank>)| old.is_none();
        self.old_ranks.iter().enumerate().filter(is_new).map(|(index, _)| Rank::from_index(index)).collect()
    }

    /// By new rank: this part of what members have measured. Empty if it is known of none.
    fn known<T: Default + PartialEq>(&self, part: impl Fn(&Measurement) -> T) -> Vec<T> {
        let parts: Vec<T> = self.measurements.iter().map(part).collect();
        if parts.iter().all(|part| *part == T::default()) { vec![] } else { parts }
    }

    pub(super) fn change(
        &self,
        shard_map: &ShardMap,
        churn: &Churn,
        resume: Resume,
        cursor: DataCursor,
        moves: Moves,
    ) -> ViewChange {
        let capacity_of = |(member, old): (&Member, &Option<Rank>)| {
            let rank = (*old)?;
            (shard_map.view.member(rank).capacity != member.capacity).then_some((rank, member.capacity))
        };
        let capacities = self.members.iter().zip(&self.old_ranks).filter_map(capacity_of).collect();
        ViewChange {
            parent: shard_map.digest,
            removed: churn.leavers.clone(),
            added: self.added(),
            capacities,
            speeds: self.known(|measurement| measurement.samples_per_minute),
            lines: self.known(|measurement| measurement.line),
            resume,
            cursor,
            moves,
            expelled: vec![],
            quarantined: vec![],
            ancestors: vec![],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{self, member};

    #[test]
    fn speeds_follow_their_members_to_other_ranks() {
        let view = View { speeds: vec![100, 200, 300], ..fixtures::view(&[1, 3, 5]) };
        let churn = Churn { leavers: vec![Rank(0)], joiners: vec![member(2), member(4)], ..Churn::default() };
        let speeds = |churn: &Churn| Roster::new(&view, churn).known(|measured| measured.samples_per_minute);
        assert_eq!(speeds(&churn), [0, 200, 0, 300]);
        let news = [1, 0, 7].map(|speed| Measurement { samples_per_minute: speed, ..Measurement::default() });
        let measured = Churn { measurements: news.into(), ..churn };
        assert_eq!(speeds(&measured), [0, 0, 0, 7]);
        // A peer that rejoins as a new member has another speed, perhaps.
        let again = Churn { leavers: vec![Rank(1)], joiners: vec![member(3)], ..Churn::default() };
        assert_eq!(speeds(&again), [100, 0, 300]);
        let all = Churn { leavers: vec![Rank(0), Rank(1), Rank(2)], joiners: vec![member(9)], ..again };
        assert_eq!(speeds(&all), [], "no speed is known");
    }
}
