//! A view_state: the time that one view lasts.

use std::collections::{BTreeMap, BTreeSet};

use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::{Instant, Rank};

use super::failure_detection::ReportedProgress;

/// What a member knows of one view, and forgets with it.
pub(super) struct ViewState {
    /// When this view was entered.
    pub(super) entered_at: Instant,
    /// Members whose link broke in this view, or whose process is another one: what they had sent may be lost.
    pub(super) broken: BTreeSet<Rank>,
    /// Members that are heard of in other views only, and since when.
    pub(super) in_other_views: BTreeMap<Rank, Instant>,
    /// Members that have said that they stop.
    pub(super) departed: BTreeSet<Rank>,
    /// Where those are that are heard.
    pub(super) reported_progress: BTreeMap<Rank, ReportedProgress>,
    /// A step of this view is committed, so that nobody is new in it any more.
    pub(super) has_committed: bool,
    pub(super) trouble_since: Option<Instant>,
    /// Since when enough members answer who have no parameters between them.
    pub(super) regrouped_at: Option<Instant>,
    /// Since when somebody is lost, be it only one that leaves.
    pub(super) missed_since: Option<Instant>,
    /// The next view is being succeeded already.
    pub(super) is_next_outdated: bool,
    /// Whether a report that would leave somebody out was doubted.
    pub(super) has_doubted: bool,
    /// How many the user was told that it waits for.
    pub(super) paused: Option<usize>,
    /// Whether the user was told that nobody here has parameters.
    pub(super) is_orphaned: bool,
    /// Chunks that nobody here has, as the user was told.
    pub(super) missing_chunks: ChunkSet,
    /// Those of them that are lost for good, as a user has said.
    pub(super) lost_chunks: ChunkSet,
}

impl ViewState {
    /// Nothing has happened yet in a view that is entered now.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            entered_at: now,
            broken: BTreeSet::new(),
            in_other_views: BTreeMap::new(),
            departed: BTreeSet::new(),
            reported_progress: BTreeMap::new(),
            has_committed: false,
            trouble_since: None,
            regrouped_at: None,
            missed_since: None,
            is_next_outdated: false,
            has_doubted: false,
            paused: None,
            is_orphaned: false,
            missing_chunks: ChunkSet::default(),
            lost_chunks: ChunkSet::default(),
        }
    }
}
