//! The geometry of a view: who owns and copies which chunks of the parameter vector in each of its steps, and in what
//! segments they travel.
//!
//! A function of the view and the model's size, so every member has the same. Chunks move between two steps, a few at a
//! time; so a view has one [`Shards`] for its first steps after another, and the last one stays.
//!
//! # Whole steps
//! Mostly an owner is the only one who can make new values of its sums, and besides sends the sums to those who keep copies.
//! Where *every* member keeps *every* chunk, all can do it themselves: they gather the sums, and that is all that travels.

use std::ops::Range;
use std::sync::Arc;

use peergrad_collectives::codec::Codec;
use peergrad_collectives::mirror::{Edge, MirrorPlan};
use peergrad_collectives::plan::Layout;
use peergrad_protocol::manifest::Chunks;
use peergrad_protocol::placement::{Copies, Placement};
use peergrad_protocol::view::{Member, View};
use peergrad_protocol::{Rank, RunId, StepNumber, ViewDigest};

use crate::loader::Loaded;

/// How a parameter vector is cut and kept: the same at every member of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) chunks: Chunks,
    /// Who keeps the state of a chunk.
    pub(crate) copies: Copies,
    /// Whether the rule keeps any state: where it does not, copies have nothing to keep.
    pub(crate) has_state: bool,
    pub(crate) segment_elements: usize,
    /// What is kept are the chunks of tables: they all move at once.
    pub(crate) has_tables: bool,
}

/// A view, and what follows from it.
pub(crate) struct Geometry {
    pub(crate) view: Arc<View>,
    pub(crate) digest: ViewDigest,
    pub(crate) cut: Cut,
    /// Where the chunks are once all have moved.
    pub(crate) target: Placement,
    /// By rank: elements that it owns then.
    pub(crate) shares: Vec<usize>,
    /// Whether a round can go around all members: next to each other are never two who own nothing, since those need not reach
    /// each other.
    pub(crate) has_ring: bool,
}

/// Who keeps what in one step.
pub(crate) struct Shards {
    pub(crate) placement: Placement,
    /// By rank: the chunks that it owns, in order.
    pub(crate) owned: Vec<Vec<usize>>,
    /// By rank: the chunks of which it keeps a copy, in order.
    pub(crate) copied: Vec<Vec<usize>>,
    /// Whether anybody is told of sums: those who keep copies, or everyone.
    tells_sums: bool,
    /// Whether every member keeps every chunk, so that sums are gathered and not parameters.
    pub(crate) is_whole: bool,
    /// The shards cut into segments.
    pub(crate) layout: Arc<Layout>,
    /// Which owners send which sums to the keepers of their copies.
    pub(crate) mirrors: Arc<MirrorPlan>,
}

impl Cut {
    /// How the parameter vector of a run is.
    pub(crate) fn of(loaded: &Loaded) -> Self {
        let layout = loaded.program.shared(loaded).map(|shared| shared.layout);
        let tables = layout.map(|layout| Chunks::cut_into(layout.number_count(), layout.chunk_count()));
        Self {
            copies: match loaded.training.copies {
                // What only one member had would be lost with it, and what was acknowledged of it too.
                Copies::Number(count) if tables.is_some() => Copies::Number(count.max(2)),
                copies => copies,
            },
            has_state: tables.is_some() || (loaded.state_count() > 0 && !loaded.program.drifts()),
            segment_elements: loaded.training.segment_elements,
            has_tables: tables.is_some(),
            chunks: tables.unwrap_or_else(|| loaded.manifest.chunks()),
        }
    }

    /// Where the chunks belong among `members`.
    pub(crate) fn place(&self, run: &RunId, members: &[Member]) -> Placement {
        // Of nothing there are no copies.
        let copies = if self.has_state { self.copies } else { Copies::Number(1) };
        Placement::draw(run, members, self.chunks.count(), copies)
    }
}

impl Geometry {
    /// What follows from `view`, whose digest is `digest`.
    pub(crate) fn new(view: Arc<View>, digest: ViewDigest, cut: Cut) -> Self {
        let target = cut.place(&view.run, &view.members);
        let keepers = view.keepers();
        let next = keepers.iter().cycle().skip(1);
        let has_ring = keepers.len() == 1 || keepers.iter().zip(next).all(|(one, other)| *one || *other);
        let mut shares = vec![0; view.members.len()];
        for chunk in 0..cut.chunks.count() {
            shares[target.owner(chunk).index()] += cut.chunks.range(chunk).len();
        }
        Self { view, digest, cut, target, shares, has_ring }
    }

    /// How many of the view's moves have been made when `step` is trained.
    pub(crate) fn moved(&self, step: StepNumber) -> usize {
        if self.cut.has_tables {
            return self.view.moves.list.len();
        }
        self.view.moves.moved(step.0.saturating_sub(self.view.first_step().0))
    }

    /// Who keeps what once so many moves have been made.
    pub(crate) fn shards(&self, moved: usize) -> Shards {
        let Cut { chunks, has_state, segment_elements, .. } = self.cut;
        let placement = self.target.after(&self.view.moves, moved);
        let owned = placement.shards();
        let ranges = |shard: &Vec<usize>| shard.iter().map(|&chunk| chunks.range(chunk)).collect();
        let by_rank: Vec<Vec<Range<usize>>> = owned.iter().map(ranges).collect();
        let member_count = self.view.members.len();
        let mut copied = vec![Vec::new(); member_count];
        // Of nothing there are no copies, whatever a record says.
        for chunk in (0..chunks.count()).filter(|_| has_state) {
            placement.keepers(chunk)[1..].iter().for_each(|keeper| copied[keeper.index()].push(chunk));
        }
        // A newcomer keeps nothing in its first step, whatever a record says.
        let is_settled = moved > 0 || self.view.newcomers().is_empty();
        let is_everywhere = |chunk| placement.keepers(chunk).len() == member_count;
        let is_whole = has_state && is_settled && (0..chunks.count()).all(is_everywhere);
        let has_mirrors = has_state && !is_whole;
        let edges = if has_mirrors { edges(&placement, &owned, chunks) } else { vec![] };
        let is_copied = |chunk| placement.keepers(chunk).len() > 1;
        Shards {
            tells_sums: has_state && (0..chunks.count()).any(is_copied),
            is_whole,
            layout: Arc::new(Layout::new(chunks.parameter_count(), by_rank, segment_elements)),
            mirrors: Arc::new(MirrorPlan::new(member_count, edges, segment_elements)),
            placement,
            owned,
            copied,
        }
    }
}

/// By owner and keeper of copies: what the one has to tell the other.
fn edges(placement: &Placement, owned: &[Vec<usize>], chunks: Chunks) -> Vec<Edge> {
    let mut edges = Vec::new();
    let mut of_owner: Vec<Vec<Range<usize>>> = vec![Vec::new(); owned.len()];
    for (owner, shard) in owned.iter().enumerate() {
        for &chunk in shard {
            for keeper in &placement.keepers(chunk)[1..] {
                of_owner[keeper.index()].push(chunks.range(chunk));
            }
        }
        for (keeper, ranges) in of_owner.iter_mut().enumerate().filter(|(_, ranges)| !ranges.is_empty()) {
            edges.push(Edge { owner, keeper, ranges: std::mem::take(ranges) });
        }
    }
    edges
}

impl Shards {
    /// How sums travel and are used, if they would travel by `codec`: where nobody is told of any, as they are.
    pub(crate) fn told(&self, codec: Codec) -> Codec {
        if self.tells_sums { codec } else { Codec::F32 }
    }

    /// Whether `rank` keeps the state of `chunk`.
    pub(crate) fn is_kept_by(&self, chunk: usize, rank: Rank) -> bool {
        self.placement.keepers(chunk).contains(&rank)
    }
}

#[cfg(test)]
mod tests {
    use peergrad_collectives::mirror::Mirror;
    use peergrad_protocol::Epoch;
    use peergrad_protocol::limits::COPIES_MAX;
    use peergrad_protocol::view::{Move, Moves, Recovery, Resume};

    use super::*;
    use crate::fixtures;

    const CHUNKS: usize = 30;
    const TWO: Copies = Copies::Number(2);

    fn geometry(members: u8, copies: Copies, has_state: bool, moves: Moves) -> Geometry {
        let recovery = Recovery::Resume(Resume::at(StepNumber(10)));
        let parents = vec![ViewDigest([1; 32])];
        let peers: Vec<u8> = (1..=members).collect();
        let view = View { epoch: Epoch(2), parents, recovery, moves, ..fixtures::view(&peers) };
        let digest = view.digest();
        // Chunks of 16 and 17 elements.
        let chunks = Chunks::of(16 * CHUNKS + 7);
        Geometry::new(
            Arc::new(view),
            digest,
            Cut { chunks, copies, has_state, segment_elements: 10, has_tables: false },
        )
    }

    /// By chunk, owner and keeper of a copy: what travels, as edges say it.
    fn mirrored(geometry: &Geometry, shards: &Shards) -> Vec<(usize, usize, usize)> {
        let chunks = geometry.cut.chunks;
        let mut mirrored = Vec::new();
        for Edge { owner, keeper, ranges } in edges(&shards.placement, &shards.owned, chunks) {
            assert!(ranges.is_sorted_by(|a, b| a.end <= b.start), "{ranges:?}");
            for range in ranges {
                let chunk = chunks.at(range.start);
                assert_eq!(range, chunks.range(chunk));
                mirrored.push((chunk, owner, keeper));
            }
        }
        mirrored.sort_unstable();
        mirrored
    }

    #[test]
    fn every_keeper_of_a_copy_is_told_by_the_owner_and_nobody_else() {
        for (members, copies) in [(2, 1), (3, 2), (5, 3), (9, 8)] {
            let geometry = geometry(members, Copies::Number(copies), true, Moves::default());
            let shards = geometry.shards(0);
            assert!(!shards.is_whole);
            let mut expected = Vec::new();
            for chunk in 0..CHUNKS {
                let (owner, others) = geometry.target.keepers(chunk).split_first().unwrap();
                expected.extend(others.iter().map(|keeper| (chunk, owner.index(), keeper.index())));
            }
            expected.sort_unstable();
            assert_eq!(mirrored(&geometry, &shards), expected, "{members} members, {copies} copies");
            assert_eq!(expected.len(), CHUNKS * (copies - 1));
        }
    }

    #[test]
    fn without_state_there_are_no_copies() {
        let list = vec![Move { chunk: 4, from: vec![Rank(1), Rank(2)] }];
        let shards = geometry(3, TWO, false, Moves { list, rate: 1, restarted: vec![] }).shards(0);
        assert!(shards.copied.iter().all(Vec::is_empty));
        assert!((0..3).all(|rank| {
            Mirror::new(Arc::clone(&shards.mirrors), rank, Codec::F32, vec![]).expects_nothing()
        }));
    }

    #[test]
    fn where_everybody_keeps_everything_nobody_is_told_of_sums() {
        let many = COPIES_MAX as u8;
        for (members, copies, is_whole) in [
            (1, Copies::Number(1), true),
            (2, TWO, true),
            (3, TWO, false),
            (4, Copies::Number(8), true),
            (1, Copies::All, true),
            (5, Copies::All, true),
            (many, Copies::All, true),
            (many + 1, Copies::All, false),
        ] {
            let shards = geometry(members, copies, true, Moves::default()).shards(0);
            assert_eq!(shards.is_whole, is_whole, "{members} members, {copies:?}");
            let mirror = |rank| Mirror::new(Arc::clone(&shards.mirrors), rank, Codec::F32, vec![]);
            let is_silent = (0..usize::from(members)).all(|rank| mirror(rank).expects_nothing());
            assert_eq!(is_silent, is_whole);
            let kept = |rank: usize| shards.owned[rank].len() + shards.copied[rank].len();
            assert!(!is_whole || (0..usize::from(members)).all(|rank| kept(rank) == CHUNKS));
            assert!(!geometry(members, copies, false, Moves::default()).shards(0).is_whole, "of no state");
        }
    }

    #[test]
    fn a_step_is_whole_once_the_last_chunk_has_moved() {
        let from = |ranks: &[u32]| ranks.iter().copied().map(Rank).collect::<Vec<_>>();
        let list = vec![Move { chunk: 4, from: from(&[1]) }, Move { chunk: 9, from: from(&[0, 2]) }];
        let waiting = geometry(3, Copies::All, true, Moves { list, rate: 1, restarted: vec![] });
        assert_eq!([0, 1, 2].map(|moved| waiting.shards(moved).is_whole), [false, false, true]);
        // Another owner is no other keeper.
        let list = vec![Move { chunk: 4, from: from(&[2, 1, 0]) }];
        let turned = geometry(3, Copies::All, true, Moves { list, rate: 1, restarted: vec![] });
        assert_eq!([0, 1].map(|moved| turned.shards(moved).is_whole), [true, true]);
    }

    /// A record is input: it may say that a newcomer holds what it cannot have.
    #[test]
    fn a_newcomer_makes_a_step_that_is_not_whole() {
        let settled = geometry(3, Copies::All, true, Moves::default());
        let mut view = View::clone(&settled.view);
        view.recovery = Recovery::Resume(Resume { newcomers: vec![Rank(1)], ..Resume::at(StepNumber(10)) });
        let (digest, cut) = (view.digest(), settled.cut);
        assert!(settled.shards(0).is_whole);
        assert!(!Geometry::new(Arc::new(view), digest, cut).shards(0).is_whole);
    }

    #[test]
    fn a_ring_goes_around_only_where_neighbours_reach_each_other() {
        for (weights, has_ring) in [
            (&[1][..], true),
            (&[1, 0], true),
            (&[0, 1, 0, 1], true),
            (&[0, 1, 0], false),
            (&[1, 0, 0, 1], false),
            (&[1, 1, 1, 1], true),
        ] {
            let peers: Vec<u8> = (1..=weights.len() as u8).collect();
            let mut view = fixtures::view(&peers);
            view.members.iter_mut().zip(weights).for_each(|(member, weight)| member.weight = *weight);
            let (digest, chunks) = (view.digest(), Chunks::of(16 * CHUNKS));
            let cut = Cut { chunks, copies: TWO, has_state: true, segment_elements: 10, has_tables: false };
            assert_eq!(Geometry::new(Arc::new(view), digest, cut).has_ring, has_ring, "{weights:?}");
        }
    }

    #[test]
    fn chunks_move_a_few_a_step() {
        let target = geometry(3, TWO, true, Moves::default()).target;
        let elsewhere = |chunk: usize| (0..3).map(Rank).find(|rank| *rank != target.owner(chunk)).unwrap();
        let list = [4, 9, 2].map(|chunk| Move { chunk: chunk as u32, from: vec![elsewhere(chunk)] });
        let moves = Moves { list: list.to_vec(), rate: 2, restarted: vec![] };
        let geometry = geometry(3, TWO, true, moves);
        let moved = [0, 10, 11, 12, 1 << 40].map(|step| geometry.moved(StepNumber(step)));
        assert_eq!(moved, [0, 0, 2, 3, 3]);
        for (moved, waiting) in [(0, &[4, 9, 2][..]), (2, &[2]), (3, &[])] {
            let shards = geometry.shards(moved);
            for chunk in 0..CHUNKS {
                let keepers = shards.placement.keepers(chunk);
                let expected =
                    if waiting.contains(&chunk) { &[elsewhere(chunk)][..] } else { target.keepers(chunk) };
                assert_eq!(keepers, expected, "chunk {chunk} after {moved} moves");
                for rank in (0..3).map(Rank) {
                    let is_owned = shards.owned[rank.index()].contains(&chunk);
                    let is_copied = shards.copied[rank.index()].contains(&chunk);
                    assert_eq!(
                        (is_owned, is_owned || is_copied),
                        (keepers[0] == rank, shards.is_kept_by(chunk, rank))
                    );
                }
            }
        }
    }

    /// A record is input: it may name chunks that this model does not have.
    #[test]
    fn moves_of_chunks_that_are_not_there_change_nothing() {
        let list = vec![Move { chunk: CHUNKS as u32, from: vec![Rank(1)] }];
        let geometry = geometry(2, Copies::Number(1), true, Moves { list, rate: 1, restarted: vec![4095] });
        assert_eq!(geometry.shards(0).placement, geometry.target);
        assert!(!geometry.view.fits(1, CHUNKS));
    }
}
