//! Merging, for the node. Only a run of steps has merge snapshots: see [`merge_snapshot`](super::steps::merge_snapshot).

use std::sync::Arc;

use peergrad_models::task::Task;
use peergrad_protocol::message::{MergeOffer, SnapshotChunks, WantSnapshot};
use peergrad_protocol::view::{Ancestor, Merge};
use peergrad_protocol::{Buffer, Frame, Instant, PeerId, StepNumber, ViewDigest};

use super::Training;
use super::steps::StepEngine;
use super::steps::merge_snapshot::MergeComparison;
use crate::io::{Output, Reject};
use crate::state::snapshot_id::SnapshotId;

impl Training {
    // The branch that yields.

    /// Keeps a snapshot of the state after `steps` steps for another branch. If it is kept already, it is kept for longer.
    pub(crate) fn snapshot_after(&mut self, steps: StepNumber) {
        if let Some(engine) = self.steps_mut() {
            engine.snapshot_after(steps);
        }
    }

    /// The offer of this branch's snapshot to another branch, from this member, the coordinator. `None` until the snapshot is kept.
    pub(crate) fn merge_offer(&self, question: u64) -> Option<MergeOffer> {
        let StepEngine { base, merge_snapshots, .. } = self.steps()?;
        Some(merge_snapshots.kept_in(base.digest())?.offer(base, question))
    }

    /// The next chunk batches that another branch has requested; none if that snapshot is not kept here.
    pub(crate) fn snapshot_frames(&mut self, want: &WantSnapshot) -> Vec<Frame> {
        self.steps_mut().map_or_else(Vec::new, |steps| steps.merge_snapshots.frames(&steps.base, want))
    }

    /// Whether a snapshot of the present view is kept here.
    pub(crate) fn has_snapshot(&self) -> bool {
        self.steps().is_some_and(|steps| steps.merge_snapshots.kept_in(steps.base.digest()).is_some())
    }

    /// The number of steps that this branch has committed since its snapshot: they are not merged.
    pub(crate) fn steps_since_snapshot(&self) -> u64 {
        self.steps().map_or(0, StepEngine::steps_since_snapshot)
    }

    // The branch that leads.

    /// Another branch offers its snapshot. A `pinned` import is kept, because a view that merges it may come, or is there.
    pub(crate) fn begin_import(&mut self, now: Instant, offer: MergeOffer, pinned: Option<SnapshotId>) {
        if let Some(steps) = self.steps_mut() {
            steps.begin_import(now, offer, pinned);
        }
    }

    /// Drops an import that no coordinator has renewed for long, and a snapshot that no branch has requested for long.
    pub(crate) fn expire_snapshots(&mut self, now: Instant, pinned: Option<SnapshotId>) {
        if let Some(steps) = self.steps_mut() {
            steps.merge_snapshots.expire(now, pinned);
        }
    }

    /// Gives up an import whose snapshot is not available.
    pub(crate) fn cancel_import(&mut self, snapshot_id: SnapshotId) {
        if let Some(steps) = self.steps_mut() {
            steps.merge_snapshots.cancel_import(snapshot_id);
        }
    }

    /// The offer that is being imported, and the number of chunks of which something is missing; `None` if there is no import.
    pub(crate) fn importing(&self) -> Option<(&MergeOffer, usize)> {
        self.steps()?.merge_snapshots.importing()
    }

    /// Requests missing chunks from donors, and dials donors that are not linked.
    pub(crate) fn fetch(&mut self, now: Instant, is_linked: impl Fn(&PeerId) -> bool, out: &mut Vec<Output>) {
        if let Some(steps) = self.steps_mut() {
            steps.fetch(now, is_linked, out);
        }
    }

    /// Chunks of another branch have arrived.
    ///
    /// # Errors
    /// The chunks are damaged, or have values that no branch can have.
    pub(crate) fn receive_snapshot_chunks(
        &mut self,
        now: Instant,
        from: PeerId,
        chunks: &SnapshotChunks,
        payload: &Buffer,
    ) -> Result<(), Reject> {
        self.steps_mut().map_or(Ok(()), |steps| steps.receive_snapshot_chunks(now, from, chunks, payload))
    }

    /// The merge that this member is to evaluate; `None` if there is none, or another member evaluates it.
    pub(crate) fn take_comparison(&mut self) -> Option<(MergeComparison, Arc<dyn Task>)> {
        self.steps_mut()?.take_comparison()
    }

    // The ancestors of this branch.

    /// The number of committed steps; with tables, of clocks that this member has completed.
    pub(crate) fn committed(&self) -> StepNumber {
        match self {
            Self::Steps(steps) => steps.committed(),
            Self::Tables(tables) => tables.clock(),
        }
    }

    /// The views that this branch descends from.
    pub(crate) fn ancestors(&self) -> Vec<Ancestor> {
        self.view().ancestors_at(self.committed())
    }

    /// Whether this branch descends from that view, perhaps through a merge.
    pub(crate) fn has_merged(&self, view: ViewDigest) -> bool {
        self.view().descends_from(view) || self.ancestors().iter().any(|root| root.view == view)
    }

    /// The merge that the present view has yet to make, if any.
    pub(crate) fn pending_merge(&self) -> Option<&Merge> {
        self.steps()?.pending_merge()
    }
}
