//! Merging, as the node asks for it. Only a run of steps has merge snapshots: see [`merge_snapshot`](super::steps::merge_snapshot).

use std::sync::Arc;

use peergrad_models::task::Task;
use peergrad_protocol::message::{MergeOffer, SnapshotChunks, WantSnapshot};
use peergrad_protocol::view::{Ancestor, Merge};
use peergrad_protocol::{Buffer, Frame, Instant, PeerId, StepNumber, ViewDigest};

use super::Training;
use super::steps::StepEngine;
use super::steps::merge_snapshot::{MergeComparison, SnapshotId};
use crate::io::{Output, Reject};

impl Training {
    // The branch that is given up.

    /// What is here after so many steps is kept for another branch; if it is already, for a while longer.
    pub(crate) fn snapshot_after(&mut self, steps: StepNumber) {
        if let Some(engine) = self.steps_mut() {
            engine.snapshot_after(steps);
        }
    }

    /// What this branch leaves to another one, once it is kept; this member speaks for it.
    pub(crate) fn merge_offer(&self, question: u64) -> Option<MergeOffer> {
        let StepEngine { base, merge_snapshots, .. } = self.steps()?;
        Some(merge_snapshots.kept_in(base.digest())?.offer(base, question))
    }

    /// The next chunk batches of what another branch asks for, if it is kept here.
    pub(crate) fn snapshot_frames(&mut self, want: &WantSnapshot) -> Vec<Frame> {
        self.steps_mut().map_or_else(Vec::new, |steps| steps.merge_snapshots.frames(&steps.base, want))
    }

    /// Whether what is here was kept for another branch in the present view.
    pub(crate) fn has_snapshot(&self) -> bool {
        self.steps().is_some_and(|steps| steps.merge_snapshots.kept_in(steps.base.digest()).is_some())
    }

    /// Steps that this branch has committed since it kept what is left to another one: they are not merged.
    pub(crate) fn steps_since_snapshot(&self) -> u64 {
        self.steps().map_or(0, StepEngine::steps_since_snapshot)
    }

    // The branch that goes on.

    /// Another branch has left its snapshot to this one. A `pinned` import stays: a view that merges it may come, or is there.
    pub(crate) fn begin_import(&mut self, now: Instant, offer: MergeOffer, pinned: Option<SnapshotId>) {
        if let Some(steps) = self.steps_mut() {
            steps.begin_import(now, offer, pinned);
        }
    }

    /// Forgets an import that no coordinator has renewed for long, and a snapshot that no branch has asked for.
    pub(crate) fn expire_snapshots(&mut self, now: Instant, pinned: Option<SnapshotId>) {
        if let Some(steps) = self.steps_mut() {
            steps.merge_snapshots.expire(now, pinned);
        }
    }

    /// Gives up an import: that snapshot cannot be had.
    pub(crate) fn cancel_import(&mut self, snapshot_id: SnapshotId) {
        if let Some(steps) = self.steps_mut() {
            steps.merge_snapshots.cancel_import(snapshot_id);
        }
    }

    /// The offer that is being imported, and of how many chunks something is lacking.
    pub(crate) fn importing(&self) -> Option<(&MergeOffer, usize)> {
        self.steps()?.merge_snapshots.importing()
    }

    /// Asks donors for what is lacking, and dials those that are not linked.
    pub(crate) fn fetch(&mut self, now: Instant, is_linked: impl Fn(&PeerId) -> bool, out: &mut Vec<Output>) {
        if let Some(steps) = self.steps_mut() {
            steps.fetch(now, is_linked, out);
        }
    }

    /// Chunks of another branch have come.
    ///
    /// # Errors
    /// They are damaged, or no branch can have come to such values.
    pub(crate) fn receive_snapshot_chunks(
        &mut self,
        now: Instant,
        from: PeerId,
        chunks: &SnapshotChunks,
        payload: &Buffer,
    ) -> Result<(), Reject> {
        self.steps_mut().map_or(Ok(()), |steps| steps.receive_snapshot_chunks(now, from, chunks, payload))
    }

    /// What this member is to evaluate of a merge, if it is the one that does it.
    pub(crate) fn take_comparison(&mut self) -> Option<(MergeComparison, Arc<dyn Task>)> {
        self.steps_mut()?.take_comparison()
    }

    // The views that this branch comes from.

    /// Committed steps; with tables, clocks that are complete here.
    pub(crate) fn committed(&self) -> StepNumber {
        match self {
            Self::Steps(steps) => steps.committed(),
            Self::Tables(tables) => tables.clock(),
        }
    }

    /// The views that this branch comes from.
    pub(crate) fn ancestors(&self) -> Vec<Ancestor> {
        self.view().ancestors_at(self.committed())
    }

    /// Whether this branch comes from that view, be it by having merged it.
    pub(crate) fn has_merged(&self, view: ViewDigest) -> bool {
        self.view().descends_from(view) || self.ancestors().iter().any(|root| root.view == view)
    }

    /// What the present view is still to merge.
    pub(crate) fn pending_merge(&self) -> Option<&Merge> {
        self.steps()?.pending_merge()
    }
}
