//! Who owns what: a pure function of (run, members, chunk count), so nobody stores it and nobody is asked.
//!
//! Rendezvous hashing is a raffle held once for each chunk: every member draws a ticket that depends on nothing but
//! itself and the chunk, and the highest ticket takes it. When a member leaves, only its own prizes are drawn again.
//!
//! # How it works
//! 1. One blake3 output stream for each (run, peer) gives a `u64` for each chunk and unit of weight.
//! 2. A peer's score for a chunk is the largest of its `weight` draws: twice the weight, twice the chance, and integers only.
//! 3. Chunks go, in order, to the highest score whose owner still has room: nobody takes more than 1.25 of its fair share,
//!    rounded up to a whole chunk. The next scores keep copies, as many as [`Copies`] says; after them, where all are to
//!    keep one, those whose weight is 0.
//!
//! Cost: members x chunks draws, once a view: some 60 ms for 1,000 members and 4,096 chunks.
//!
//! # Invariants
//! - Every chunk has exactly one owner, of weight above zero; who keeps copies of it changes nothing about who that is.
//! - Integers only: two machines that differ in one bit here would have two owners.
//!
//! # Reading
//! Thaler & Ravishankar, *A name-based mapping scheme for rendezvous*, 1996; Mirrokni et al., *Consistent hashing with
//! bounded loads*, 2016. We differ in the weights: the largest of `w` draws instead of a logarithm.

use std::cmp::Reverse;

use crate::id::{Rank, RunId};
use crate::limits::COPIES_MAX;
use crate::view::{Member, Move, Moves};

/// Who keeps the state of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// So many members, the owner included; at least 1. Those of weight 0 keep nothing.
    Number(usize),
    /// All members, those of weight 0 too, up to [`COPIES_MAX`].
    All,
}

impl Copies {
    /// Members that keep one chunk, at most.
    #[must_use]
    pub fn keepers_max(self) -> usize {
        match self {
            Self::Number(count) => count,
            Self::All => COPIES_MAX,
        }
    }
}

/// The owners and copies of every chunk under one view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// By chunk: the owner first, then the other keepers of a copy.
    keepers: Vec<Vec<Rank>>,
    member_count: usize,
}

impl Placement {
    /// Draws the placement of `chunk_count` chunks among `members`.
    ///
    /// Fewer members than `copies` asks for means fewer copies.
    ///
    /// # Panics
    /// If `copies` is a number and zero, or no member has weight: a valid view has an owner.
    #[must_use]
    pub fn draw(run: &RunId, members: &[Member], chunk_count: usize, copies: Copies) -> Self {
        let keepers_max = copies.keepers_max();
        assert!(keepers_max > 0, "the owner counts as a copy");
        let total_weight: usize = members.iter().map(|member| usize::from(member.weight)).sum();
        assert!(total_weight > 0, "a view has at least one owner");
        let mut room: Vec<usize> = members
            .iter()
            .map(|member| (5 * chunk_count * usize::from(member.weight)).div_ceil(4 * total_weight))
            .collect();

        let scores: Vec<Vec<u64>> = members.iter().map(|member| scores(run, member, chunk_count)).collect();
        let (mut ranking, light): (Vec<usize>, Vec<usize>) =
            (0..members.len()).partition(|&index| members[index].weight > 0);
        let light = if copies == Copies::All { &light[..] } else { &[] };
        let draw = |chunk: usize| {
            // Highest score first; members are sorted by peer, so the index settles the odd tie.
            let place = |&index: &usize| (Reverse(scores[index][chunk]), index);
            let owner = ranking.iter().copied().filter(|&index| room[index] > 0).min_by_key(place);
            let owner = owner.expect("room for 1.25 times all chunks");
            room[owner] -= 1;
            // That many are enough, whether or not the owner is one of them.
            let best = best(&mut ranking, keepers_max, place);
            let others = best.iter().chain(light).copied().filter(|&index| index != owner);
            std::iter::once(owner).chain(others).take(keepers_max).map(Rank::from_index).collect()
        };
        let keepers = (0..chunk_count).map(draw).collect();
        Self { keepers, member_count: members.len() }
    }

    /// The placement in force while only the first `moved` of a view's moves have been made, where this one is drawn for its
    /// members.
    #[must_use]
    pub fn after(&self, moves: &Moves, moved: usize) -> Self {
        let mut placement = self.clone();
        for Move { chunk, from } in moves.list.iter().skip(moved) {
            if let Some(keepers) = placement.keepers.get_mut(*chunk as usize) {
                keepers.clone_from(from);
            }
        }
        placement
    }

    /// The owner of `chunk`.
    #[must_use]
    pub fn owner(&self, chunk: usize) -> Rank {
        self.keepers[chunk][0]
    }

    /// The owner of `chunk`, then the other members that keep a copy.
    #[must_use]
    pub fn keepers(&self, chunk: usize) -> &[Rank] {
        &self.keepers[chunk]
    }

    /// How many chunks were placed.
    #[must_use]
    pub fn chunk_count(&self) -> usize {
        self.keepers.len()
    }

    /// By rank, the chunks of its shard, in order.
    #[must_use]
    pub fn shards(&self) -> Vec<Vec<usize>> {
        let mut shards = vec![Vec::new(); self.member_count];
        for chunk in 0..self.keepers.len() {
            shards[self.owner(chunk).index()].push(chunk);
        }
        shards
    }
}

/// The `count` first of `ranking` by their place, in order; a single one is nobody's but the owner's, and not looked for.
fn best<K: Ord>(ranking: &mut [usize], count: usize, place: impl Fn(&usize) -> K + Copy) -> &[usize] {
    if count == 1 {
        return &[];
    }
    let count = count.min(ranking.len());
    ranking.select_nth_unstable_by_key(count - 1, place);
    ranking[..count].sort_unstable_by_key(place);
    &ranking[..count]
}

/// By chunk, the largest of the member's `weight` draws.
fn scores(run: &RunId, member: &Member, chunk_count: usize) -> Vec<u64> {
    let mut hasher = blake3::Hasher::new_derive_key("peergrad 1 placement");
    hasher.update(&run.0).update(&member.peer.0);
    let weight = usize::from(member.weight);
    // All at once: the hash makes 64 bytes at a time.
    let mut bytes = vec![0; chunk_count * weight * size_of::<u64>()];
    hasher.finalize_xof().fill(&mut bytes);
    let mut draws = bytes.as_chunks().0.iter().map(|draw| u64::from_le_bytes(*draw));
    (0..chunk_count).map(|_| draws.by_ref().take(weight).max().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Incarnation, PeerId};

    fn members(weights: &[u8]) -> Vec<Member> {
        let member = |(index, &weight): (usize, &u8)| Member {
            peer: PeerId([index as u8 + 1; 32]),
            incarnation: Incarnation(1),
            addresses: vec![],
            weight,
        };
        weights.iter().enumerate().map(member).collect()
    }

    #[test]
    fn the_draw_is_pinned() {
        let placement = Placement::draw(&RunId([3; 32]), &members(&[1, 1, 2, 0]), 12, Copies::Number(2));
        let owners: Vec<u32> = (0..12).map(|chunk| placement.owner(chunk).0).collect();
        assert_eq!(owners, [2, 0, 2, 2, 2, 2, 2, 0, 2, 2, 1, 0]);
    }

    /// The draw as the head of this file tells it, by sorting all members for each chunk.
    fn plain_draw(run: &RunId, members: &[Member], chunk_count: usize, copies: Copies) -> Vec<Vec<Rank>> {
        let scores: Vec<Vec<u64>> = members.iter().map(|member| scores(run, member, chunk_count)).collect();
        let total_weight: usize = members.iter().map(|member| usize::from(member.weight)).sum();
        let bound =
            |member: &Member| (5 * chunk_count * usize::from(member.weight)).div_ceil(4 * total_weight);
        let mut room: Vec<usize> = members.iter().map(bound).collect();
        let draw = |chunk: usize| {
            let mut ranking: Vec<usize> = (0..members.len()).filter(|&i| members[i].weight > 0).collect();
            ranking.sort_by_key(|&index| (Reverse(scores[index][chunk]), index));
            let owner = ranking.iter().position(|&index| room[index] > 0).unwrap();
            ranking[..=owner].rotate_right(1);
            room[ranking[0]] -= 1;
            if copies == Copies::All {
                ranking.extend((0..members.len()).filter(|&i| members[i].weight == 0));
            }
            ranking.truncate(copies.keepers_max());
            ranking.into_iter().map(Rank::from_index).collect()
        };
        (0..chunk_count).map(draw).collect()
    }

    #[test]
    fn looking_only_for_the_best_draws_the_same() {
        for (weights, chunk_count) in
            [(vec![1; 40], 41), (vec![1; 100], 1000), (vec![3, 0, 1, 16, 1, 2], 500)]
        {
            for copies in [1, 2, 3, 200].map(Copies::Number).into_iter().chain([Copies::All]) {
                let (run, members) = (RunId([4; 32]), members(&weights));
                let placement = Placement::draw(&run, &members, chunk_count, copies);
                assert_eq!(placement.keepers, plain_draw(&run, &members, chunk_count, copies));
            }
        }
    }

    #[test]
    fn shards_are_bounded_and_follow_weights() {
        for weights in [&[1; 7][..], &[1, 2, 4, 8], &[0, 1, 0, 1], &[16]] {
            let members = members(weights);
            let shards = Placement::draw(&RunId([5; 32]), &members, 4096, Copies::Number(1)).shards();
            let sizes: Vec<usize> = shards.iter().map(Vec::len).collect();
            let total: usize = weights.iter().map(|&w| usize::from(w)).sum();
            assert_eq!(sizes.iter().sum::<usize>(), 4096);
            for (&size, &weight) in sizes.iter().zip(weights) {
                let fair = 4096 * usize::from(weight) / total;
                assert!(size <= fair * 5 / 4 + 1 && size >= fair * 3 / 4, "{sizes:?} for {weights:?}");
            }
        }
    }

    #[test]
    fn a_chunk_stays_until_its_turn() {
        let target = Placement::draw(&RunId([6; 32]), &members(&[1, 1, 1]), 40, Copies::Number(2));
        let list = [5, 9, 7].map(|chunk| Move { chunk, from: vec![Rank(2)] });
        let moves = Moves { list: list.to_vec(), rate: 1, restarted: vec![] };
        let half = target.after(&moves, 1);
        assert_eq!(half.keepers(5), target.keepers(5));
        assert_eq!((half.keepers(9), half.keepers(7)), (&[Rank(2)][..], &[Rank(2)][..]));
        assert_eq!(target.after(&moves, 3), target);
    }

    #[test]
    fn a_join_moves_little() {
        for count in [2, 4, 8, 16, 32] {
            let all = members(&vec![1; count + 1]);
            let before = Placement::draw(&RunId([6; 32]), &all[..count], 4096, Copies::Number(1));
            let after = Placement::draw(&RunId([6; 32]), &all, 4096, Copies::Number(1));
            let moved = (0..4096).filter(|&chunk| before.owner(chunk) != after.owner(chunk)).count();
            assert!(moved * 10 * (count + 1) <= 4096 * 13, "{moved} of 4096 chunks moved at {count} members");
        }
    }

    #[test]
    fn copies_are_other_members() {
        let placement = Placement::draw(&RunId([5; 32]), &members(&[1, 1, 1, 0]), 500, Copies::Number(3));
        for chunk in 0..500 {
            let mut keepers = placement.keepers(chunk).to_vec();
            keepers.sort_unstable();
            assert_eq!(keepers, [Rank(0), Rank(1), Rank(2)]);
        }
        let alone = Placement::draw(&RunId([5; 32]), &members(&[1]), 1, Copies::Number(2));
        assert_eq!(alone.keepers(0), [Rank(0)]);
    }

    #[test]
    fn all_keep_everything_up_to_the_limit() {
        let (run, owner) = (RunId([5; 32]), Copies::Number(1));
        for (heavy, light) in [(1, 0), (3, 2), (1, 4), (30, 2), (30, 3), (32, 1), (40, 5)] {
            let mut weights = vec![0; heavy + light];
            // Those of weight 0 are at the beginning and at the end.
            weights[light / 2..].iter_mut().take(heavy).for_each(|weight| *weight = 1);
            let members = members(&weights);
            let all = Placement::draw(&run, &members, 200, Copies::All);
            let owners = Placement::draw(&run, &members, 200, owner);
            for chunk in 0..200 {
                let keepers = all.keepers(chunk);
                assert_eq!(keepers[0], owners.owner(chunk), "copies change no owner");
                let distinct: std::collections::BTreeSet<&Rank> = keepers.iter().collect();
                assert_eq!((distinct.len(), keepers.len()), (keepers.len(), members.len().min(COPIES_MAX)));
                let weights: Vec<u8> = keepers.iter().map(|rank| members[rank.index()].weight).collect();
                assert!(weights.is_sorted_by(|a, b| a >= b), "who owns nothing comes last: {weights:?}");
            }
        }
    }
}
