//! The geometry of a view: who owns and copies which chunks of the parameter vector in each of its steps, and in what
//! segments they travel.
//!
//! A function of the view and the model's size, so every member has the same. Chunks move between two steps, a few at a
//! time; so a view has one [`Shards`] for its first steps after another, and the last one stays.

use std::ops::Range;
use std::sync::Arc;

use peergrad_collectives::mirror::{Edge, MirrorPlan};
use peergrad_collectives::plan::Layout;
use peergrad_protocol::manifest::Chunks;
use peergrad_protocol::placement::Placement;
use peergrad_protocol::view::{Member, View};
use peergrad_protocol::{Rank, RunId, StepNumber, ViewDigest};

/// How a parameter vector is cut and kept: the same at every member of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) chunks: Chunks,
    /// Members that keep the state of a chunk, the owner included.
    pub(crate) copies: usize,
    /// Whether the rule keeps any state: where it does not, copies have nothing to keep.
    pub(crate) has_state: bool,
    pub(crate) segment_elements: usize,
}

/// A view, and what follows from it.
pub(crate) struct Geometry {
    pub(crate) view: Arc<View>,
    pub(crate) digest: ViewDigest,
    pub(crate) cut: Cut,
    /// Where the chunks are once all have moved.
    pub(crate) target: Placement,
}

/// Who keeps what in one step.
pub(crate) struct Shards {
    pub(crate) placement: Placement,
    /// By rank: the chunks that it owns, in order.
    pub(crate) owned: Vec<Vec<usize>>,
    /// By rank: the chunks of which it keeps a copy, in order.
    pub(crate) copied: Vec<Vec<usize>>,
    /// The shards cut into segments.
    pub(crate) layout: Arc<Layout>,
    /// Which owners send which sums to the keepers of their copies.
    pub(crate) mirrors: Arc<MirrorPlan>,
}

impl Cut {
    /// Where the chunks belong among `members`.
    pub(crate) fn place(&self, run: &RunId, members: &[Member]) -> Placement {
        // Of nothing there are no copies.
        let copies = if self.has_state { self.copies } else { 1 };
        Placement::draw(run, members, self.chunks.count(), copies)
    }
}

impl Geometry {
    /// What follows from `view`, whose digest is `digest`.
    pub(crate) fn new(view: Arc<View>, digest: ViewDigest, cut: Cut) -> Self {
        let target = cut.place(&view.run, &view.members);
        Self { view, digest, cut, target }
    }

    /// How many of the view's moves have been made when `step` is trained.
    pub(crate) fn moved(&self, step: StepNumber) -> usize {
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
        for chunk in 0..chunks.count() {
            placement.keepers(chunk)[1..].iter().for_each(|keeper| copied[keeper.index()].push(chunk));
        }
        let edges = if has_state { edges(&placement, &owned, chunks) } else { vec![] };
        Shards {
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
    /// Whether `rank` keeps the state of `chunk`.
    pub(crate) fn is_kept_by(&self, chunk: usize, rank: Rank) -> bool {
        self.placement.keepers(chunk).contains(&rank)
    }
}
