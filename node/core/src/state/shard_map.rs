//! The shard map: which members own and replicate which chunks of the parameter vector in each step of a view, and in what segments the
//! chunks travel.
//!
//! It is a function of the view and the model's size, so every member has the same. Chunks move between two steps, a few at a time. So the
//! first steps of a view have one [`StepShards`] each, and the last one stays for the rest of the view.
//!
//! # Fully replicated steps
//! Usually only an owner can compute new values from its sums, and it also sends the sums to the replicas. Where *every* member stores
//! *every* chunk, all members can compute them: they gather the sums, and nothing else travels.

use std::ops::Range;
use std::sync::Arc;

use peergrad_collectives::codec::Codec;
use peergrad_collectives::mirror::{MirrorEdge, MirrorPlan};
use peergrad_collectives::plan::ShardLayout;
use peergrad_protocol::manifest::Chunks;
use peergrad_protocol::placement::{Placement, Replicas};
use peergrad_protocol::view::{Member, View};
use peergrad_protocol::{Rank, RunId, StepNumber, ViewDigest};

use crate::program::loader::{Loaded, RingLinks};

/// How a parameter vector is cut and stored: the same at every member of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardingConfig {
    /// How the vector is cut into chunks.
    pub(crate) chunks: Chunks,
    /// How many members store the state of a chunk.
    pub(crate) replicas: Replicas,
    /// Whether the rule keeps any state; if not, there is nothing to replicate.
    pub(crate) has_state: bool,
    /// The most elements of a segment.
    pub(crate) segment_elements: usize,
    /// Whether the chunks are those of tables, which all move at once.
    pub(crate) has_tables: bool,
}

/// A view, and the placement that follows from it.
pub(crate) struct ShardMap {
    pub(crate) view: Arc<View>,
    /// The digest of `view`.
    pub(crate) digest: ViewDigest,
    /// How the parameter vector is cut and stored.
    pub(crate) sharding: ShardingConfig,
    /// The placement of the chunks once all have moved.
    pub(crate) target: Placement,
    /// The number of elements that each member owns then, by rank.
    pub(crate) shares: Vec<usize>,
    /// Whether a round can use a ring of all members. In a ring no two neighbors may both own nothing, since such members need not reach
    /// each other.
    pub(crate) ring: RingLinks,
}

/// The members that store each chunk in one step.
pub(crate) struct StepShards {
    /// The owner and the replicas of each chunk.
    pub(crate) placement: Placement,
    /// The chunks that each member owns, by rank, in order.
    pub(crate) owned: Vec<Vec<usize>>,
    /// The chunks that each member replicates, by rank, in order.
    pub(crate) replicated: Vec<Vec<usize>>,
    /// Whether owners send sums: to replicas, or to all members.
    sends_sums: bool,
    /// Whether every member stores every chunk, so that sums are gathered instead of parameters.
    pub(crate) is_fully_replicated: bool,
    /// The shards cut into segments.
    pub(crate) layout: Arc<ShardLayout>,
    /// Which sums each owner sends to which replicas.
    pub(crate) mirrors: Arc<MirrorPlan>,
}

impl ShardingConfig {
    /// The sharding of a run's parameter vector or tables.
    pub(crate) fn of(loaded: &Loaded) -> Self {
        let layout = loaded.program.table_spec(loaded).map(|shared| shared.layout);
        let tables = layout.map(|layout| Chunks::cut_into(layout.value_count(), layout.chunk_count()));
        Self {
            replicas: match loaded.config.replicas {
                // Without a second replica, a chunk and its acknowledged updates would be lost with its owner.
                Replicas::Number(count) if tables.is_some() => Replicas::Number(count.max(2)),
                replicas => replicas,
            },
            has_state: tables.is_some()
                || (loaded.state_count() > 0 && !loaded.program.has_local_parameters()),
            segment_elements: loaded.config.segment_elements,
            has_tables: tables.is_some(),
            chunks: tables.unwrap_or_else(|| loaded.manifest.chunks()),
        }
    }

    /// The placement of the chunks among `members`.
    pub(crate) fn place(&self, run: &RunId, members: &[Member]) -> Placement {
        // Without state there is nothing to replicate.
        let replicas = if self.has_state { self.replicas } else { Replicas::Number(1) };
        Placement::compute(run, members, self.chunks.count(), replicas)
    }
}

impl ShardMap {
    /// The shard map of `view`, whose digest is `digest`.
    pub(crate) fn new(view: Arc<View>, digest: ViewDigest, sharding: ShardingConfig) -> Self {
        let target = sharding.place(&view.run, &view.members);
        let keepers = view.replica_holders();
        let next = keepers.iter().cycle().skip(1);
        let has_ring = keepers.len() == 1 || keepers.iter().zip(next).all(|(one, other)| *one || *other);
        let mut shares = vec![0; view.members.len()];
        for chunk in 0..sharding.chunks.count() {
            shares[target.owner(chunk).index()] += sharding.chunks.range(chunk).len();
        }
        let ring = if has_ring { RingLinks::Complete } else { RingLinks::Incomplete };
        Self { view, digest, sharding, target, shares, ring }
    }

    /// How many of the view's moves have been made when `step` is trained.
    pub(crate) fn moved(&self, step: StepNumber) -> usize {
        if self.sharding.has_tables {
            return self.view.moves.list.len();
        }
        self.view.moves.moved(step.0.saturating_sub(self.view.first_step().0))
    }

    /// The shards after `moved` of the view's moves.
    pub(crate) fn shards(&self, moved: usize) -> StepShards {
        let ShardingConfig { chunks, has_state, segment_elements, .. } = self.sharding;
        let placement = self.target.after(&self.view.moves, moved);
        let owned = placement.shards();
        let ranges = |shard: &Vec<usize>| shard.iter().map(|&chunk| chunks.range(chunk)).collect();
        let by_rank: Vec<Vec<Range<usize>>> = owned.iter().map(ranges).collect();
        let member_count = self.view.members.len();
        let mut replicated = vec![Vec::new(); member_count];
        // Without state there is nothing to replicate, whatever the record says.
        for chunk in (0..chunks.count()).filter(|_| has_state) {
            placement.replica_holders(chunk)[1..]
                .iter()
                .for_each(|holder| replicated[holder.index()].push(chunk));
        }
        // A newcomer stores nothing in its first step, whatever the record says.
        let is_settled = moved > 0 || self.view.newcomers().is_empty();
        let is_everywhere = |chunk| placement.replica_holders(chunk).len() == member_count;
        let is_fully_replicated = has_state && is_settled && (0..chunks.count()).all(is_everywhere);
        let has_mirrors = has_state && !is_fully_replicated;
        let edges = if has_mirrors { edges(&placement, &owned, chunks) } else { vec![] };
        let is_replicated = |chunk| placement.replica_holders(chunk).len() > 1;
        StepShards {
            sends_sums: has_state && (0..chunks.count()).any(is_replicated),
            is_fully_replicated,
            layout: Arc::new(ShardLayout::new(chunks.parameter_count(), by_rank, segment_elements)),
            mirrors: Arc::new(MirrorPlan::new(member_count, edges, segment_elements)),
            placement,
            owned,
            replicated,
        }
    }
}

/// For each pair of an owner and a replica holder, the chunks whose sums the owner sends.
fn edges(placement: &Placement, owned: &[Vec<usize>], chunks: Chunks) -> Vec<MirrorEdge> {
    let mut edges = Vec::new();
    let mut of_owner: Vec<Vec<Range<usize>>> = vec![Vec::new(); owned.len()];
    for (owner, shard) in owned.iter().enumerate() {
        for &chunk in shard {
            for holder in &placement.replica_holders(chunk)[1..] {
                of_owner[holder.index()].push(chunks.range(chunk));
            }
        }
        for (holder, ranges) in of_owner.iter_mut().enumerate().filter(|(_, ranges)| !ranges.is_empty()) {
            edges.push(MirrorEdge { owner, holder, ranges: std::mem::take(ranges) });
        }
    }
    edges
}

impl StepShards {
    /// The codec by which sums travel and are rounded: `codec`, or the exact one if no member receives sums.
    pub(crate) fn sum_codec(&self, codec: Codec) -> Codec {
        if self.sends_sums { codec } else { Codec::F32 }
    }

    /// Whether `rank` stores the state of `chunk`.
    pub(crate) fn has_replica(&self, chunk: usize, rank: Rank) -> bool {
        self.placement.replica_holders(chunk).contains(&rank)
    }
}

#[cfg(test)]
mod tests {
    use peergrad_collectives::mirror::Mirror;
    use peergrad_protocol::ViewNumber;
    use peergrad_protocol::limits::REPLICAS_MAX;
    use peergrad_protocol::view::{Move, Moves, Recovery, Resume};

    use super::*;
    use crate::fixtures;

    const CHUNKS: usize = 30;
    const TWO: Replicas = Replicas::Number(2);

    fn shard_map(members: u8, replicas: Replicas, has_state: bool, moves: Moves) -> ShardMap {
        let recovery = Recovery::Resume(Resume::at(StepNumber(10)));
        let parents = vec![ViewDigest([1; 32])];
        let peers: Vec<u8> = (1..=members).collect();
        let view = View { number: ViewNumber(2), parents, recovery, moves, ..fixtures::view(&peers) };
        let digest = view.digest();
        // Chunks of 16 and 17 elements.
        let chunks = Chunks::of(16 * CHUNKS + 7);
        ShardMap::new(
            Arc::new(view),
            digest,
            ShardingConfig { chunks, replicas, has_state, segment_elements: 10, has_tables: false },
        )
    }

    /// Each chunk with its owner and a replica holder, as the mirror edges list them.
    fn mirrored(shard_map: &ShardMap, shards: &StepShards) -> Vec<(usize, usize, usize)> {
        let chunks = shard_map.sharding.chunks;
        let mut mirrored = Vec::new();
        for MirrorEdge { owner, holder, ranges } in edges(&shards.placement, &shards.owned, chunks) {
            assert!(ranges.is_sorted_by(|a, b| a.end <= b.start), "{ranges:?}");
            for range in ranges {
                let chunk = chunks.at(range.start);
                assert_eq!(range, chunks.range(chunk));
                mirrored.push((chunk, owner, holder));
            }
        }
        mirrored.sort_unstable();
        mirrored
    }

    #[test]
    fn replica_holders_receive_sums_from_the_owner_and_no_other_member() {
        for (members, replicas) in [(2, 1), (3, 2), (5, 3), (9, 8)] {
            let shard_map = shard_map(members, Replicas::Number(replicas), true, Moves::default());
            let shards = shard_map.shards(0);
            assert!(!shards.is_fully_replicated);
            let mut expected = Vec::new();
            for chunk in 0..CHUNKS {
                let (owner, others) = shard_map.target.replica_holders(chunk).split_first().unwrap();
                expected.extend(others.iter().map(|holder| (chunk, owner.index(), holder.index())));
            }
            expected.sort_unstable();
            assert_eq!(mirrored(&shard_map, &shards), expected, "{members} members, {replicas} replicas");
            assert_eq!(expected.len(), CHUNKS * (replicas - 1));
        }
    }

    #[test]
    fn without_state_there_are_no_replicas() {
        let list = vec![Move { chunk: 4, from: vec![Rank(1), Rank(2)] }];
        let shards = shard_map(3, TWO, false, Moves { list, rate: 1, restarted: vec![] }).shards(0);
        assert!(shards.replicated.iter().all(Vec::is_empty));
        assert!((0..3).all(|rank| {
            Mirror::new(Arc::clone(&shards.mirrors), rank, Codec::F32, vec![]).expects_nothing()
        }));
    }

    #[test]
    fn with_replicas_everywhere_no_sums_are_mirrored() {
        let many = REPLICAS_MAX as u8;
        for (members, replicas, is_fully_replicated) in [
            (1, Replicas::Number(1), true),
            (2, TWO, true),
            (3, TWO, false),
            (4, Replicas::Number(8), true),
            (1, Replicas::All, true),
            (5, Replicas::All, true),
            (many, Replicas::All, true),
            (many + 1, Replicas::All, false),
        ] {
            let shards = shard_map(members, replicas, true, Moves::default()).shards(0);
            assert_eq!(shards.is_fully_replicated, is_fully_replicated, "{members} members, {replicas:?}");
            let mirror = |rank| Mirror::new(Arc::clone(&shards.mirrors), rank, Codec::F32, vec![]);
            let is_silent = (0..usize::from(members)).all(|rank| mirror(rank).expects_nothing());
            assert_eq!(is_silent, is_fully_replicated);
            let kept = |rank: usize| shards.owned[rank].len() + shards.replicated[rank].len();
            assert!(!is_fully_replicated || (0..usize::from(members)).all(|rank| kept(rank) == CHUNKS));
            assert!(
                !shard_map(members, replicas, false, Moves::default()).shards(0).is_fully_replicated,
                "of no state"
            );
        }
    }

    #[test]
    fn a_step_is_fully_replicated_once_the_last_chunk_has_moved() {
        let from = |ranks: &[u32]| ranks.iter().copied().map(Rank).collect::<Vec<_>>();
        let list = vec![Move { chunk: 4, from: from(&[1]) }, Move { chunk: 9, from: from(&[0, 2]) }];
        let waiting = shard_map(3, Replicas::All, true, Moves { list, rate: 1, restarted: vec![] });
        assert_eq!([0, 1, 2].map(|moved| waiting.shards(moved).is_fully_replicated), [false, false, true]);
        // Only the owner differs, and not the set of holders.
        let list = vec![Move { chunk: 4, from: from(&[2, 1, 0]) }];
        let turned = shard_map(3, Replicas::All, true, Moves { list, rate: 1, restarted: vec![] });
        assert_eq!([0, 1].map(|moved| turned.shards(moved).is_fully_replicated), [true, true]);
    }

    /// A view's record is input: it may claim that a newcomer stores what it cannot have.
    #[test]
    fn a_step_with_a_newcomer_is_not_fully_replicated() {
        let settled = shard_map(3, Replicas::All, true, Moves::default());
        let mut view = View::clone(&settled.view);
        view.recovery = Recovery::Resume(Resume { newcomers: vec![Rank(1)], ..Resume::at(StepNumber(10)) });
        let (digest, sharding) = (view.digest(), settled.sharding);
        assert!(settled.shards(0).is_fully_replicated);
        assert!(!ShardMap::new(Arc::new(view), digest, sharding).shards(0).is_fully_replicated);
    }

    #[test]
    fn a_ring_requires_that_all_neighbours_reach_each_other() {
        for (capacities, has_ring) in [
            (&[1][..], true),
            (&[1, 0], true),
            (&[0, 1, 0, 1], true),
            (&[0, 1, 0], false),
            (&[1, 0, 0, 1], false),
            (&[1, 1, 1, 1], true),
        ] {
            let peers: Vec<u8> = (1..=capacities.len() as u8).collect();
            let mut view = fixtures::view(&peers);
            view.members
                .iter_mut()
                .zip(capacities)
                .for_each(|(member, capacity)| member.capacity = *capacity);
            let (digest, chunks) = (view.digest(), Chunks::of(16 * CHUNKS));
            let sharding = ShardingConfig {
                chunks,
                replicas: TWO,
                has_state: true,
                segment_elements: 10,
                has_tables: false,
            };
            let ring = ShardMap::new(Arc::new(view), digest, sharding).ring;
            assert_eq!(ring == RingLinks::Complete, has_ring, "{capacities:?}");
        }
    }

    #[test]
    fn a_few_chunks_move_per_step() {
        let target = shard_map(3, TWO, true, Moves::default()).target;
        let elsewhere = |chunk: usize| (0..3).map(Rank).find(|rank| *rank != target.owner(chunk)).unwrap();
        let list = [4, 9, 2].map(|chunk| Move { chunk: chunk as u32, from: vec![elsewhere(chunk)] });
        let moves = Moves { list: list.to_vec(), rate: 2, restarted: vec![] };
        let shard_map = shard_map(3, TWO, true, moves);
        let moved = [0, 10, 11, 12, 1 << 40].map(|step| shard_map.moved(StepNumber(step)));
        assert_eq!(moved, [0, 0, 2, 3, 3]);
        for (moved, waiting) in [(0, &[4, 9, 2][..]), (2, &[2]), (3, &[])] {
            let shards = shard_map.shards(moved);
            for chunk in 0..CHUNKS {
                let keepers = shards.placement.replica_holders(chunk);
                let expected = if waiting.contains(&chunk) {
                    &[elsewhere(chunk)][..]
                } else {
                    target.replica_holders(chunk)
                };
                assert_eq!(keepers, expected, "chunk {chunk} after {moved} moves");
                for rank in (0..3).map(Rank) {
                    let is_owned = shards.owned[rank.index()].contains(&chunk);
                    let is_replicated = shards.replicated[rank.index()].contains(&chunk);
                    assert_eq!(
                        (is_owned, is_owned || is_replicated),
                        (keepers[0] == rank, shards.has_replica(chunk, rank))
                    );
                }
            }
        }
    }

    /// A view's record is input: it may name chunks that this model does not have.
    #[test]
    fn moves_of_nonexistent_chunks_change_nothing() {
        let list = vec![Move { chunk: CHUNKS as u32, from: vec![Rank(1)] }];
        let shard_map =
            shard_map(2, Replicas::Number(1), true, Moves { list, rate: 1, restarted: vec![4095] });
        assert_eq!(shard_map.shards(0).placement, shard_map.target);
        assert!(!shard_map.view.fits(1, CHUNKS));
    }
}
