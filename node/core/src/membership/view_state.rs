//! View state: what a member knows of one view, from its entry until the next one.

use std::collections::{BTreeMap, BTreeSet};

use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::{Instant, Rank};

use super::failure_detection::ReportedProgress;

/// What a member knows of one view, and drops with it.
pub(super) struct ViewState {
    /// When this view was entered.
    pub(super) entered_at: Instant,
    /// Members whose link broke in this view, or whose process restarted: frames from them may be lost.
    pub(super) broken: BTreeSet<Rank>,
    /// Members whose heartbeats name another view, and since when. Used only where all parts of a partitioned run go on.
    pub(super) in_other_views: BTreeMap<Rank, Instant>,
    /// Members that have announced that they stop.
    pub(super) departed: BTreeSet<Rank>,
    /// By rank: the progress in the member's last heartbeat.
    pub(super) reported_progress: BTreeMap<Rank, ReportedProgress>,
    /// Whether a step of this view is committed, so that all its members have parameters.
    pub(super) has_committed: bool,
    /// Since when this view cannot go on; `None` while it can.
    pub(super) trouble_since: Option<Instant>,
    /// Since when a quorum answers of which no member has parameters; `None` otherwise.
    pub(super) regrouped_at: Option<Instant>,
    /// Since when any member is lost, even one that the next view leaves out; `None` if none is.
    pub(super) missed_since: Option<Instant>,
    /// Whether another member already asks for the successor of the next view.
    pub(super) is_next_outdated: bool,
    /// Whether this member has once postponed a proposal that would have left out a member that answers.
    pub(super) has_doubted: bool,
    /// How many members were reached at the last report to the user that they are too few; `None` before the first.
    pub(super) paused: Option<usize>,
    /// Whether the user has been informed that no reachable member has parameters.
    pub(super) is_orphaned: bool,
    /// Chunks of tables that no reachable member has, as last reported to the user.
    pub(super) missing_chunks: ChunkSet,
    /// The missing chunks that the user has declared lost: they restart from initial values.
    pub(super) lost_chunks: ChunkSet,
}

impl ViewState {
    /// The state of a view that is entered now.
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
