//! The geometry of a view: which pieces of the parameter vector its members own, and in what segments they travel.
//!
//! A function of the view and the model's size, so every member has the same.

use std::ops::Range;
use std::sync::Arc;

use peergrad_collectives::plan::Layout;
use peergrad_protocol::ViewDigest;
use peergrad_protocol::manifest::Chunks;
use peergrad_protocol::placement::Placement;
use peergrad_protocol::view::View;

/// A view, and what follows from it.
pub(crate) struct Geometry {
    pub(crate) view: Arc<View>,
    pub(crate) digest: ViewDigest,
    /// By rank: the chunks that it owns, as ranges of the parameter vector.
    pub(crate) shards: Vec<Vec<Range<usize>>>,
    /// The shards cut into segments.
    pub(crate) layout: Arc<Layout>,
}

impl Geometry {
    /// What follows from `view`, whose digest is `digest`, for a vector that is cut into `chunks`.
    pub(crate) fn new(view: View, digest: ViewDigest, chunks: Chunks, segment_elements: usize) -> Self {
        let placement = Placement::draw(&view.run, &view.members, chunks.count(), COPIES);
        let ranges = |shard: &Vec<usize>| shard.iter().map(|&chunk| chunks.range(chunk)).collect();
        let shards: Vec<Vec<_>> = placement.shards().iter().map(ranges).collect();
        let layout = Layout::new(chunks.parameter_count(), shards.clone(), segment_elements);
        Self { view: Arc::new(view), digest, shards, layout: Arc::new(layout) }
    }
}

/// Members that keep the state of a chunk: its owner alone.
const COPIES: usize = 1;
