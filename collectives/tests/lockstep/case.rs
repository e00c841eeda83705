//! A case: a round's members, shards and topology, and the expected result, computed by one plain loop.

use std::collections::BTreeMap;
use std::sync::Arc;

use peergrad_collectives::codec::{Codec, Codecs};
use peergrad_collectives::mirror::{MirrorEdge, MirrorPlan};
use peergrad_collectives::plan::{ShardLayout, Topology};
use peergrad_protocol::message::SampleStats;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

use crate::swarm::Swarm;

pub(crate) const TOPOLOGIES: [Topology; 2] = [Topology::Ring, Topology::Direct];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) rank_count: usize,
    pub(crate) len: usize,
    pub(crate) topology: Topology,
    /// Whether every other round has the other topology.
    pub(crate) alternates: bool,
    pub(crate) codecs: Codecs,
    /// How many segments a member may have started on a link.
    pub(crate) credit: u32,
    /// How many more at first: receivers keep this credit.
    pub(crate) surplus: u32,
    /// How many members get the sums of an element, including its owner; all if there are fewer members.
    pub(crate) replicas: usize,
    /// How many members contribute nothing; requires the direct topology.
    pub(crate) absent: usize,
    /// Whether sums are gathered, so that every member does with all sums what otherwise their owners do.
    pub(crate) gathers_sums: bool,
    /// Whether a member begins a round when it knows a part of its contribution, and learns the rest in parts.
    pub(crate) in_parts: bool,
    pub(crate) round_count: usize,
    pub(crate) adversary: Adversary,
    pub(crate) rule: Rule,
}

/// The values that most cases share.
pub(crate) const PLAIN: Case = Case {
    rank_count: 4,
    len: 1000,
    topology: Topology::Ring,
    alternates: false,
    codecs: Codecs { reduce: Codec::F32, gather: Codec::F32 },
    credit: 1,
    surplus: 0,
    replicas: 1,
    absent: 0,
    gathers_sums: false,
    in_parts: false,
    round_count: 1,
    adversary: Adversary::Random,
    rule: Rule::Bubble,
};

/// When a member may start a segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rule {
    /// While relays have a free place on the link.
    Bubble,
    /// Whenever there is a free place on the link.
    Greedy,
    /// As `Bubble`, but the mirror of a step may be overtaken by the segments of the next step.
    Overtake,
    /// As `Bubble`, but receivers also keep credit of segments that they pass on.
    KeepAll,
    /// As `Bubble`, but a round may overtake the one before if that has another topology.
    Hasty,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Adversary {
    /// Delivers in random order across links.
    Random,
    /// Lets members begin their next round as early as they can.
    Eager,
    /// Delivers nothing to one member, and does not let it begin a round, while anything else can happen.
    Starve(usize),
}

/// Number of buffers that a case requested from the allocator.
pub(crate) struct Allocations {
    pub(crate) vectors: u64,
    pub(crate) segments: u64,
}

impl Case {
    pub(crate) fn check(self, seed: u64) -> Allocations {
        let mut swarm = Swarm::new(self, seed);
        swarm.run();
        swarm.allocations()
    }

    /// Shards of random chunks: unequal, non-contiguous, some of them empty; and the holders of replicas for each chunk.
    pub(crate) fn place(&self, generator: &mut ChaCha8Rng) -> (ShardLayout, MirrorPlan) {
        let chunk_len = (self.len / 64).max(1);
        let segment_elements = (self.len / 50).max(3);
        let mut owned = vec![Vec::new(); self.rank_count];
        let mut kept: BTreeMap<(usize, usize), Vec<_>> = BTreeMap::new();
        for start in (0..self.len).step_by(chunk_len) {
            let chunk = start..(start + chunk_len).min(self.len);
            // The smaller of two draws: low ranks own more, high ranks may own nothing.
            let owner = below(generator, self.rank_count).min(below(generator, self.rank_count));
            let mut others: Vec<usize> = (0..self.rank_count).filter(|rank| *rank != owner).collect();
            for _ in 1..self.replicas.min(self.rank_count) {
                let holder = others.swap_remove(below(generator, others.len()));
                kept.entry((owner, holder)).or_default().push(chunk.clone());
            }
            owned[owner].push(chunk);
        }
        let edges = kept.into_iter().map(|((owner, holder), ranges)| MirrorEdge { owner, holder, ranges });
        let mirror_plan = MirrorPlan::new(self.rank_count, edges, segment_elements);
        (ShardLayout::new(self.len, owned, segment_elements), mirror_plan)
    }

    /// Places of a link: the most segments in flight on it.
    pub(crate) fn window(&self) -> u32 {
        // Credit is for segments that a member starts; relays have one more place.
        self.credit
            + self.surplus
            + u32::from((self.topology == Topology::Ring || self.alternates) && self.rank_count > 2)
    }

    /// The topology of a round.
    pub(crate) fn topology_of(&self, round: usize) -> Topology {
        match self.topology {
            Topology::Ring if self.alternates && round % 2 == 1 => Topology::Direct,
            Topology::Direct if self.alternates && round % 2 == 1 => Topology::Ring,
            topology => topology,
        }
    }

    /// What one person adds to a round; it does not depend on the person's rank.
    pub(crate) fn contribution(&self, person: usize, round: usize) -> Vec<f32> {
        let mut generator = ChaCha8Rng::seed_from_u64(seed(&[person as u64, round as u64, 77]));
        (0..self.len).map(|_| (generator.next_u32() >> 8) as f32 / 1e5 - 80.0).collect()
    }

    pub(crate) fn stats(person: usize, round: usize) -> SampleStats {
        SampleStats { samples: 10 * person as u64 + 1, loss: 0.1 * (person + round) as f64 }
    }

    /// The ranks that contribute; `None` if all do. Ranks that own nothing are absent more often than ranks that own much.
    pub(crate) fn contributors(&self) -> Option<Arc<[usize]>> {
        let count = self.rank_count;
        let is_absent = |rank: &usize| (rank + count - count / 2) % count < self.absent;
        (self.absent > 0).then(|| (0..count).filter(|rank| !is_absent(rank)).collect())
    }

    /// The ranks whose contributions to `owner`'s shard are added, in order.
    fn order(&self, owner: usize) -> impl Iterator<Item = usize> {
        let (count, contributors) = (self.rank_count, self.contributors());
        let all = (1..=count).map(move |distance| (owner + distance) % count);
        all.filter(move |rank| contributors.as_ref().is_none_or(|ranks| ranks.contains(rank)))
    }

    /// The sum over `persons`, by rank, in the plan's order.
    pub(crate) fn plain_sum(&self, layout: &ShardLayout, persons: &[usize], round: usize) -> Vec<f32> {
        let contributions: Vec<Vec<f32>> =
            persons.iter().map(|person| self.contribution(*person, round)).collect();
        // Contributions as owners receive them: those from other members were encoded.
        let travelled: Vec<Vec<f32>> = contributions
            .iter()
            .map(|contribution| rounded(self.codecs.reduce, layout, contribution))
            .collect();
        let mut sums = vec![0.0; self.len];
        for owner in 0..self.rank_count {
            let contributions =
                |rank: usize| if rank == owner { &contributions[rank] } else { &travelled[rank] };
            for element in layout.shard(owner).ranges().iter().cloned().flatten() {
                let mut order = self.order(owner);
                let first = order.next().expect("at least one rank");
                sums[element] =
                    order.fold(contributions(first)[element], |sum, rank| sum + contributions(rank)[element]);
            }
        }
        sums
    }

    /// The vector that all members have in the end, if these are the owners' sums.
    pub(crate) fn result(&self, layout: &ShardLayout, sums: &[f32]) -> Vec<f32> {
        let update = |vector: &[f32]| vector.iter().copied().map(updated).collect::<Vec<f32>>();
        if self.gathers_sums {
            update(&rounded(self.codecs.gather, layout, sums))
        } else {
            rounded(self.codecs.gather, layout, &update(sums))
        }
    }

    /// The stats of the first owner's shard, added up in the plan's order; if there are no elements, the stats of the member itself.
    pub(crate) fn plain_stats(
        &self,
        layout: &ShardLayout,
        persons: &[usize],
        rank: usize,
        round: usize,
    ) -> SampleStats {
        let Some(owner) = layout.first_owner() else {
            let is_in = self.order(0).any(|contributor| contributor == rank);
            return if is_in { Self::stats(persons[rank], round) } else { SampleStats::default() };
        };
        let mut order = self.order(owner).map(|rank| Self::stats(persons[rank], round));
        let mut total = order.next().expect("at least one rank");
        order.for_each(|stats| total += stats);
        total
    }
}

/// What an owner makes of a sum: a value that differs clearly from the sum.
pub(crate) fn updated(sum: f32) -> f32 {
    -sum
}

pub(crate) fn are_same_bits(some: &[f32], others: &[f32]) -> bool {
    some.len() == others.len() && some.iter().zip(others).all(|(one, other)| one.to_bits() == other.to_bits())
}

pub(crate) fn seed(parts: &[u64]) -> u64 {
    parts.iter().fold(1, |seed: u64, part| seed.wrapping_mul(1_000_003).wrapping_add(*part))
}

pub(crate) fn below(generator: &mut ChaCha8Rng, bound: usize) -> usize {
    (generator.next_u32() as usize) % bound
}

/// The vector after each of its segments was encoded and decoded.
fn rounded(codec: Codec, layout: &ShardLayout, vector: &[f32]) -> Vec<f32> {
    let mut rounded = vector.to_vec();
    for segment in (0..layout.rank_count()).flat_map(|owner| layout.shard(owner).segments()) {
        let (mut packed, mut bytes) = (vec![0.0; segment.len()], vec![0; codec.encoded_len(segment.len())]);
        segment.copy_out(vector, &mut packed);
        codec.encode(&packed, &mut bytes);
        codec.decode(&bytes, &mut packed).expect("what was just encoded");
        segment.copy_in(&packed, &mut rounded);
    }
    rounded
}
