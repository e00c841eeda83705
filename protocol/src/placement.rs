//! Placement: the owner and the replicas of each chunk, a pure function of (run, members, chunk count). It is computed, not sent.
//!
//! Rendezvous hashing is a raffle held once for each chunk: every member draws a ticket that depends on nothing but
//! itself and the chunk, and the highest ticket wins it. When a member leaves, only its own prizes are drawn again.
//!
//! # How it works
//! 1. One blake3 output stream for each (run, peer) gives a `u64` for each chunk and unit of capacity.
//! 2. A peer's score for a chunk is the largest of its `capacity` draws: twice the capacity, twice the chance, and integers only.
//! 3. Each chunk goes, in order, to the member with the highest score that still has room: a member owns at most 1.25 of its fair
//!    share, rounded up to a whole chunk. The members with the next scores store replicas, as many as [`Replicas`] says. If all
//!    members are to store one, those of capacity 0 come last.
//!
//! Cost: members x chunks draws per view, about 60 ms for 1,000 members and 4,096 chunks.
//!
//! # Invariants
//! - Every chunk has exactly one owner, of capacity above zero. The number of replicas does not change the owner.
//! - Integers only: if two machines differed in one bit here, a chunk would have two owners.
//!
//! # Reading
//! Thaler & Ravishankar, *A name-based mapping scheme for rendezvous*, 1996; Mirrokni et al., *Consistent hashing with
//! bounded loads*, 2016. We differ in the capacities: the largest of `w` draws instead of a logarithm.

use std::cmp::Reverse;

use crate::id::{Rank, RunId};
use crate::limits::REPLICAS_MAX;
use crate::view::{Member, Move, Moves};

/// How many members store the state of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replicas {
    /// This number of members, the owner included; at least 1. Members of capacity 0 store nothing.
    Number(usize),
    /// All members, also those of capacity 0, up to [`REPLICAS_MAX`].
    All,
}

impl Replicas {
    /// The largest number of members that store one chunk.
    #[must_use]
    pub fn holders_max(self) -> usize {
        match self {
            Self::Number(count) => count,
            Self::All => REPLICAS_MAX,
        }
    }
}

/// The owners and replicas of every chunk under one view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// By chunk: the owner first, then the other replicas.
    holders: Vec<Vec<Rank>>,
    member_count: usize,
}

impl Placement {
    /// Computes the placement of `chunk_count` chunks among `members`.
    ///
    /// Fewer members than `replicas` asks for means fewer replicas.
    ///
    /// # Panics
    /// If `replicas` is a number and zero, or no member has capacity: a valid view has an owner.
    #[must_use]
    pub fn compute(run: &RunId, members: &[Member], chunk_count: usize, replicas: Replicas) -> Self {
        let holders_max = replicas.holders_max();
        assert!(holders_max > 0, "the owner counts as a holder");
        let total_capacity: usize = members.iter().map(|member| usize::from(member.capacity)).sum();
        assert!(total_capacity > 0, "a view has at least one owner");
        let mut room: Vec<usize> = members
            .iter()
            .map(|member| (5 * chunk_count * usize::from(member.capacity)).div_ceil(4 * total_capacity))
            .collect();

        let scores: Vec<Vec<u64>> = members.iter().map(|member| scores(run, member, chunk_count)).collect();
        let (mut ranking, light): (Vec<usize>, Vec<usize>) =
            (0..members.len()).partition(|&index| members[index].capacity > 0);
        let light = if replicas == Replicas::All { &light[..] } else { &[] };
        let draw = |chunk: usize| {
            // Highest score first; members are sorted by peer, so the index settles the odd tie.
            let place = |&index: &usize| (Reverse(scores[index][chunk]), index);
            let owner = ranking.iter().copied().filter(|&index| room[index] > 0).min_by_key(place);
            let owner = owner.expect("room for 1.25 times all chunks");
            room[owner] -= 1;
            // That many are enough, whether or not the owner is one of them.
            let best = best(&mut ranking, holders_max, place);
            let others = best.iter().chain(light).copied().filter(|&index| index != owner);
            std::iter::once(owner).chain(others).take(holders_max).map(Rank::from_index).collect()
        };
        let holders = (0..chunk_count).map(draw).collect();
        Self { holders, member_count: members.len() }
    }

    /// The placement in force after the first `moved` of a view's moves, if this one is the placement among the view's members.
    #[must_use]
    pub fn after(&self, moves: &Moves, moved: usize) -> Self {
        let mut placement = self.clone();
        for Move { chunk, from } in moves.list.iter().skip(moved) {
            if let Some(holders) = placement.holders.get_mut(*chunk as usize) {
                holders.clone_from(from);
            }
        }
        placement
    }

    /// The owner of `chunk`.
    #[must_use]
    pub fn owner(&self, chunk: usize) -> Rank {
        self.holders[chunk][0]
    }

    /// The owner of `chunk`, then the other members that store it.
    #[must_use]
    pub fn replica_holders(&self, chunk: usize) -> &[Rank] {
        &self.holders[chunk]
    }

    /// The number of chunks.
    #[must_use]
    pub fn chunk_count(&self) -> usize {
        self.holders.len()
    }

    /// By rank: the chunks of the member's shard, in order.
    #[must_use]
    pub fn shards(&self) -> Vec<Vec<usize>> {
        let mut shards = vec![Vec::new(); self.member_count];
        for chunk in 0..self.holders.len() {
            shards[self.owner(chunk).index()].push(chunk);
        }
        shards
    }
}

/// The first `count` of `ranking`, in order. A single replica is the owner itself, so nothing is computed for it.
fn best<K: Ord>(ranking: &mut [usize], count: usize, place: impl Fn(&usize) -> K + Copy) -> &[usize] {
    if count == 1 {
        return &[];
    }
    let count = count.min(ranking.len());
    ranking.select_nth_unstable_by_key(count - 1, place);
    ranking[..count].sort_unstable_by_key(place);
    &ranking[..count]
}

/// By chunk, the largest of the member's `capacity` draws.
fn scores(run: &RunId, member: &Member, chunk_count: usize) -> Vec<u64> {
    let mut hasher = blake3::Hasher::new_derive_key("peergrad 1 placement");
    hasher.update(&run.0).update(&member.peer.0);
    let capacity = usize::from(member.capacity);
    // All at once: the hash makes 64 bytes at a time.
    let mut bytes = vec![0; chunk_count * capacity * size_of::<u64>()];
    hasher.finalize_xof().fill(&mut bytes);
    let mut draws = bytes.as_chunks().0.iter().map(|draw| u64::from_le_bytes(*draw));
    (0..chunk_count).map(|_| draws.by_ref().take(capacity).max().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Incarnation, PeerId};

    fn members(capacities: &[u8]) -> Vec<Member> {
        let member = |(index, &capacity): (usize, &u8)| Member {
            peer: PeerId([index as u8 + 1; 32]),
            incarnation: Incarnation(1),
            addresses: vec![],
            capacity,
        };
        capacities.iter().enumerate().map(member).collect()
    }

    #[test]
    fn the_placement_is_pinned() {
        let placement = Placement::compute(&RunId([3; 32]), &members(&[1, 1, 2, 0]), 12, Replicas::Number(2));
        let owners: Vec<u32> = (0..12).map(|chunk| placement.owner(chunk).0).collect();
        assert_eq!(owners, [2, 0, 2, 2, 2, 2, 2, 0, 2, 2, 1, 0]);
    }

    /// The draw as the head of this file tells it, by sorting all members for each chunk.
    fn plain_draw(run: &RunId, members: &[Member], chunk_count: usize, replicas: Replicas) -> Vec<Vec<Rank>> {
        let scores: Vec<Vec<u64>> = members.iter().map(|member| scores(run, member, chunk_count)).collect();
        let total_capacity: usize = members.iter().map(|member| usize::from(member.capacity)).sum();
        let bound =
            |member: &Member| (5 * chunk_count * usize::from(member.capacity)).div_ceil(4 * total_capacity);
        let mut room: Vec<usize> = members.iter().map(bound).collect();
        let draw = |chunk: usize| {
            let mut ranking: Vec<usize> = (0..members.len()).filter(|&i| members[i].capacity > 0).collect();
            ranking.sort_by_key(|&index| (Reverse(scores[index][chunk]), index));
            let owner = ranking.iter().position(|&index| room[index] > 0).unwrap();
            ranking[..=owner].rotate_right(1);
            room[ranking[0]] -= 1;
            if replicas == Replicas::All {
                ranking.extend((0..members.len()).filter(|&i| members[i].capacity == 0));
            }
            ranking.truncate(replicas.holders_max());
            ranking.into_iter().map(Rank::from_index).collect()
        };
        (0..chunk_count).map(draw).collect()
    }

    #[test]
    fn the_fast_placement_agrees_with_the_plain_one() {
        for (capacities, chunk_count) in
            [(vec![1; 40], 41), (vec![1; 100], 1000), (vec![3, 0, 1, 16, 1, 2], 500)]
        {
            for replicas in [1, 2, 3, 200].map(Replicas::Number).into_iter().chain([Replicas::All]) {
                let (run, members) = (RunId([4; 32]), members(&capacities));
                let placement = Placement::compute(&run, &members, chunk_count, replicas);
                assert_eq!(placement.holders, plain_draw(&run, &members, chunk_count, replicas));
            }
        }
    }

    #[test]
    fn shards_are_bounded_and_follow_capacities() {
        for capacities in [&[1; 7][..], &[1, 2, 4, 8], &[0, 1, 0, 1], &[16]] {
            let members = members(capacities);
            let shards = Placement::compute(&RunId([5; 32]), &members, 4096, Replicas::Number(1)).shards();
            let sizes: Vec<usize> = shards.iter().map(Vec::len).collect();
            let total: usize = capacities.iter().map(|&w| usize::from(w)).sum();
            assert_eq!(sizes.iter().sum::<usize>(), 4096);
            for (&size, &capacity) in sizes.iter().zip(capacities) {
                let fair = 4096 * usize::from(capacity) / total;
                assert!(size <= fair * 5 / 4 + 1 && size >= fair * 3 / 4, "{sizes:?} for {capacities:?}");
            }
        }
    }

    #[test]
    fn a_chunk_stays_until_its_turn() {
        let target = Placement::compute(&RunId([6; 32]), &members(&[1, 1, 1]), 40, Replicas::Number(2));
        let list = [5, 9, 7].map(|chunk| Move { chunk, from: vec![Rank(2)] });
        let moves = Moves { list: list.to_vec(), rate: 1, restarted: vec![] };
        let half = target.after(&moves, 1);
        assert_eq!(half.replica_holders(5), target.replica_holders(5));
        assert_eq!((half.replica_holders(9), half.replica_holders(7)), (&[Rank(2)][..], &[Rank(2)][..]));
        assert_eq!(target.after(&moves, 3), target);
    }

    #[test]
    fn a_join_moves_little() {
        for count in [2, 4, 8, 16, 32] {
            let all = members(&vec![1; count + 1]);
            let before = Placement::compute(&RunId([6; 32]), &all[..count], 4096, Replicas::Number(1));
            let after = Placement::compute(&RunId([6; 32]), &all, 4096, Replicas::Number(1));
            let moved = (0..4096).filter(|&chunk| before.owner(chunk) != after.owner(chunk)).count();
            assert!(moved * 10 * (count + 1) <= 4096 * 13, "{moved} of 4096 chunks moved at {count} members");
        }
    }

    #[test]
    fn replicas_are_other_members() {
        let placement =
            Placement::compute(&RunId([5; 32]), &members(&[1, 1, 1, 0]), 500, Replicas::Number(3));
        for chunk in 0..500 {
            let mut holders = placement.replica_holders(chunk).to_vec();
            holders.sort_unstable();
            assert_eq!(holders, [Rank(0), Rank(1), Rank(2)]);
        }
        let alone = Placement::compute(&RunId([5; 32]), &members(&[1]), 1, Replicas::Number(2));
        assert_eq!(alone.replica_holders(0), [Rank(0)]);
    }

    #[test]
    fn with_replicas_everywhere_all_members_hold_all_chunks_up_to_the_limit() {
        let (run, owner) = (RunId([5; 32]), Replicas::Number(1));
        for (heavy, light) in [(1, 0), (3, 2), (1, 4), (30, 2), (30, 3), (32, 1), (40, 5)] {
            let mut capacities = vec![0; heavy + light];
            // Those of capacity 0 are at the beginning and at the end.
            capacities[light / 2..].iter_mut().take(heavy).for_each(|capacity| *capacity = 1);
            let members = members(&capacities);
            let all = Placement::compute(&run, &members, 200, Replicas::All);
            let owners = Placement::compute(&run, &members, 200, owner);
            for chunk in 0..200 {
                let holders = all.replica_holders(chunk);
                assert_eq!(holders[0], owners.owner(chunk), "replicas change no owner");
                let distinct: std::collections::BTreeSet<&Rank> = holders.iter().collect();
                assert_eq!((distinct.len(), holders.len()), (holders.len(), members.len().min(REPLICAS_MAX)));
                let capacities: Vec<u8> = holders.iter().map(|rank| members[rank.index()].capacity).collect();
                assert!(
                    capacities.is_sorted_by(|a, b| a >= b),
                    "who owns nothing comes last: {capacities:?}"
                );
            }
        }
    }
}
