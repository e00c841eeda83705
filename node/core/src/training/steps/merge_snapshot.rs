//! Merge snapshots: the state that one branch of a partitioned run keeps for another branch, which continues for both.
//!
//! # How it works
//! - *The branch that yields* keeps its state after a step that its coordinator names ([`KeptSnapshot`]), and trains on. Members of the
//!   other branch request chunks of it. Every member has all parameters; optimizer state is at its replicas.
//! - *The branch that leads* trains on too, while its members fetch the state of the chunks that each of them stores ([`SnapshotImport`]).
//!   When all members have theirs, they agree on a view whose first step trains nothing. In it owners and replicas blend both states, and
//!   the all-gather sends the result to all members. Like any other step it can be undone and repeated. It is never rolled forward, since a
//!   merge that not all members have made can still be given up.
//!
//! # Invariants
//! - An import is kept as long as a view that merges it may be entered, or the view's first step may be repeated: what was accepted because
//!   of the import stays possible ([`BranchSnapshotsMut::begin_import`]).
//! - A member without its part of the snapshot that its view merges does not begin there.

use std::sync::Arc;
use std::time::Duration;

use peergrad_models::task::Task;
use peergrad_protocol::message::{ChunkContent, MergeOffer, SnapshotChunks, WantSnapshot};
use peergrad_protocol::view::Merge;
use peergrad_protocol::{Buffer, Frame, Instant, PeerId, StepNumber, ViewDigest};

use super::super::base::EngineBase;
use super::state::StepState;
use super::transfer::chunk_len;
use crate::io::{Event, Output, Reject};
use crate::state::blend::{Blend, WantedContent};
use crate::state::shard_map::ShardMap;
use crate::state::snapshot_id::SnapshotId;
pub(crate) use comparison::MergeComparison;
use export::KeptSnapshot;
use import::SnapshotImport;

mod comparison;
mod export;
mod import;

/// The snapshots that a member keeps for other branches, and imports from them.
#[derive(Default)]
pub(in crate::training) struct MergeSnapshots {
    /// A snapshot is taken once this many steps are committed. `None` if no coordinator has asked for one.
    due: Option<StepNumber>,
    /// The snapshot that this member keeps for another branch; `None` if it keeps none.
    kept: Option<KeptSnapshot>,
    /// The snapshot that this member fetches from another branch; `None` if it fetches none.
    import: Option<SnapshotImport>,
    /// The merge in the newest complete step. `None` if there was none, or once that step is committed.
    merged: Option<(Merge, Option<MergeComparison>)>,
    /// The merge that this member is to evaluate. `None` once it was taken, and at all members but one.
    comparison: Option<MergeComparison>,
}

impl MergeSnapshots {
    /// Drops a pending snapshot: its offer would have named the view that is left.
    pub(super) fn leave_view(&mut self) {
        self.due = None;
    }

    /// The newest complete step is undone.
    pub(super) fn undo(&mut self) {
        self.merged = None;
    }

    /// The snapshot that was taken in this view; `None` if none was taken.
    fn kept_in(&self, view: ViewDigest) -> Option<&KeptSnapshot> {
        self.kept.as_ref().filter(|snapshot| snapshot.view == view)
    }

    /// A step was committed: takes a snapshot if it is due.
    pub(super) fn snapshot_if_due(&mut self, state: &StepState) {
        let steps = state.committed_steps();
        if self.due.take_if(|at| at.0 <= steps).is_some_and(|at| at.0 == steps) {
            let view = state.base.digest();
            self.kept = state.checkpoint().map(|checkpoint| KeptSnapshot {
                view,
                checkpoint: Arc::new(checkpoint),
                idle_since: None,
            });
        }
    }

    /// The snapshot of which this member has all that it needs in the present view, if there is one.
    pub(super) fn imported(&self) -> Option<SnapshotId> {
        let it = self.import.as_ref().filter(|it| it.missing.is_empty())?;
        Some(it.id())
    }

    /// Whether this member has its part of the snapshot that the view has yet to merge.
    pub(super) fn has_pending(&self, state: &StepState) -> bool {
        let merge = state.pending_merge();
        merge.is_some_and(|merge| self.imported() == Some((merge.view, merge.steps)))
    }

    /// Computes which chunks are missing. Of the chunks that this member stores, or may store at the start of the next view, it needs
    /// values and state. Of the others it needs only the values, and only if it evaluates the merge.
    pub(super) fn update_missing_chunks(&mut self, state: &StepState) {
        let (base, shard_map): (_, &ShardMap) = (&state.base, &state.base.shard_map);
        let now = shard_map.target.after(&shard_map.view.moves, shard_map.moved(state.step));
        let is_merging = state.pending_merge().is_some();
        let is_mine = |chunk: usize| {
            // The merge happens at the holders that chunks have at the start of the view.
            let placements = if is_merging { &[&now][..] } else { &[&now, &shard_map.target] };
            placements.iter().any(|placement| placement.replica_holders(chunk).contains(&base.rank))
        };
        let of_mine =
            if shard_map.sharding.has_state { WantedContent::ValuesAndState } else { WantedContent::Values };
        let wants_all = evaluates_merge(base) && !is_merging;
        let Some(it) = &mut self.import else { return };
        if shard_map.view.descends_from(it.offer.view) {
            self.import = None;
            return;
        }
        let wants = |chunk| match is_mine(chunk) {
            true => Some((chunk, of_mine)),
            false => wants_all.then_some((chunk, WantedContent::Values)),
        };
        it.set_wanted((0..shard_map.sharding.chunks.count()).filter_map(wants));
    }

    // The merging step.

    /// The rule of owners in the step in progress; `None` unless the step merges another branch.
    pub(super) fn blend(&self, state: &StepState) -> Option<Blend> {
        let share = state.merge_in_progress()?.share();
        let it = self.import.as_ref().expect("a member without its part of a merge does not begin");
        let updates_max = u32::try_from(state.step.0 + 1).unwrap_or(u32::MAX);
        Some(Blend { remote: Arc::clone(&it.remote), share, updates_max })
    }

    /// The step that merges another branch is complete.
    pub(super) fn note_merge(&mut self, state: &StepState, merge: Merge) {
        let (Some(ours), Some(merged), Some(it)) =
            (&state.commit.previous, &state.commit.complete, &self.import)
        else {
            return;
        };
        // Only the member that evaluates has all values.
        let has_all = it.remote.values.len() == state.base.shard_map.sharding.chunks.count();
        let comparison = (evaluates_merge(&state.base) && has_all).then(|| MergeComparison {
            ours: Arc::clone(ours),
            remote: Arc::clone(&it.remote),
            merged: Arc::clone(merged),
        });
        self.merged = Some((merge, comparison));
    }

    /// A step was committed: perhaps the one that merges another branch.
    pub(super) fn end_merge(&mut self, out: &mut Vec<Output>) {
        if let Some((merge, comparison)) = self.merged.take() {
            self.import = None;
            self.comparison = comparison;
            out.push(Output::Event(Event::Merged(merge)));
        }
    }
}

/// Whether this member evaluates the merge: it is the first one that owns anything, so others can reach it.
fn evaluates_merge(base: &EngineBase) -> bool {
    let owner = base.view().members.iter().position(|member| member.capacity > 0);
    owner == Some(base.rank.index())
}

/// The snapshots of a member, and the state that they are taken from, for the node's negotiation with other branches.
pub(crate) struct BranchSnapshots<'a> {
    /// The parameters and optimizer state of this branch.
    pub(super) state: &'a StepState,
    /// The snapshots that are kept and imported.
    pub(super) snapshots: &'a MergeSnapshots,
}

impl<'a> BranchSnapshots<'a> {
    /// Whether a snapshot of the present view is kept here.
    pub(crate) fn has_snapshot(&self) -> bool {
        self.snapshots.kept_in(self.state.base.digest()).is_some()
    }

    /// The offer of this branch's snapshot to another branch, from this member, the coordinator. `None` until the snapshot is kept.
    pub(crate) fn offer(&self, question: u64) -> Option<MergeOffer> {
        let base = &self.state.base;
        Some(self.snapshots.kept_in(base.digest())?.offer(base, question))
    }

    /// The number of steps that this branch has committed since its snapshot: they are not merged.
    pub(crate) fn steps_since_snapshot(&self) -> u64 {
        let (committed, kept) =
            (self.state.committed_steps(), self.snapshots.kept_in(self.state.base.digest()));
        kept.map_or(0, |snapshot| committed.saturating_sub(snapshot.checkpoint.saved.steps.0))
    }

    /// The offer that is being imported, and the number of chunks of which something is missing; `None` if there is no import.
    pub(crate) fn importing(&self) -> Option<(&'a MergeOffer, usize)> {
        self.snapshots.import.as_ref().map(|it| (&it.offer, it.missing.len()))
    }

    /// The merge that the present view has yet to make, if any.
    pub(crate) fn pending_merge(&self) -> Option<&'a Merge> {
        self.state.pending_merge()
    }
}

/// As [`BranchSnapshots`], to keep, import and drop snapshots.
pub(crate) struct BranchSnapshotsMut<'a> {
    /// The parameters and optimizer state of this branch.
    pub(super) state: &'a StepState,
    /// The snapshots that are kept and imported.
    pub(super) snapshots: &'a mut MergeSnapshots,
}

impl BranchSnapshotsMut<'_> {
    // The branch that yields.

    /// Keeps a snapshot of the state after `steps` steps for another branch. If it is kept already, it is kept for longer.
    pub(crate) fn snapshot_after(&mut self, steps: StepNumber) {
        let view = self.state.base.digest();
        if let Some(snapshot) = &mut self.snapshots.kept
            && snapshot.id() == (view, steps)
        {
            snapshot.idle_since = None;
        } else if steps.0 > self.state.committed_steps() {
            self.snapshots.due = Some(steps);
        }
    }

    /// The next chunk batches that another branch has requested; none if that snapshot is not kept here.
    pub(crate) fn frames(&mut self, want: &WantSnapshot) -> Vec<Frame> {
        let kept = self.snapshots.kept.as_mut();
        kept.map_or_else(Vec::new, |kept| kept.frames(&self.state.base, want))
    }

    // The branch that leads.

    /// Another branch offers its snapshot. A `pinned` import is kept, because a view that merges it may come, or is there.
    pub(crate) fn begin_import(&mut self, now: Instant, offer: MergeOffer, pinned: Option<SnapshotId>) {
        if let Some(it) = &mut self.snapshots.import {
            if it.id() == (offer.view, offer.steps) {
                (it.offer, it.renewed_at) = (offer, now);
                return;
            }
            if Some(it.id()) == pinned {
                return;
            }
        }
        self.snapshots.import = Some(SnapshotImport::new(offer, now));
        self.snapshots.update_missing_chunks(self.state);
    }

    /// Gives up an import whose snapshot is not available.
    pub(crate) fn cancel_import(&mut self, snapshot_id: SnapshotId) {
        self.snapshots.import.take_if(|it| it.id() == snapshot_id);
    }

    /// Drops an import that no coordinator has renewed for long, and a snapshot that no branch has requested for long.
    pub(crate) fn expire(&mut self, now: Instant, pinned: Option<SnapshotId>) {
        let MergeSnapshots { import, kept, .. } = &mut *self.snapshots;
        import.take_if(|it| Some(it.id()) != pinned && now.since(it.renewed_at) > SNAPSHOT_LIFETIME);
        kept.take_if(|snapshot| now.since(*snapshot.idle_since.get_or_insert(now)) > SNAPSHOT_LIFETIME);
    }

    /// Requests missing chunks: one window from each linked donor without a pending request. Donors that are not linked are dialed.
    pub(crate) fn fetch(&mut self, now: Instant, is_linked: impl Fn(&PeerId) -> bool, out: &mut Vec<Output>) {
        let StepState { base: EngineBase { shard_map, rank, .. }, optimizer, .. } = self.state;
        let len_of = |chunk: usize, content| match content {
            ChunkContent::Values => shard_map.sharding.chunks.range(chunk).len(),
            ChunkContent::State => optimizer.len_of(chunk),
        };
        if let Some(import) = &mut self.snapshots.import {
            import.fetch(now, *rank, is_linked, len_of, out);
        }
    }

    /// Chunks of another branch have arrived.
    ///
    /// # Errors
    /// The chunks are damaged, or have values that no branch can have.
    pub(crate) fn receive_chunks(
        &mut self,
        now: Instant,
        from: PeerId,
        chunks: &SnapshotChunks,
        payload: &Buffer,
    ) -> Result<(), Reject> {
        let StepState { base, optimizer, .. } = self.state;
        let len_of = |chunk| chunk_len(base, optimizer, chunk, chunks.batch.content);
        match &mut self.snapshots.import {
            Some(import) => import.receive(now, from, chunks, payload, len_of),
            None => Ok(()),
        }
    }

    /// The merge that this member is to evaluate; `None` if this step merges nothing, or another member evaluates the merge.
    pub(crate) fn take_comparison(&mut self) -> Option<(MergeComparison, Arc<dyn Task>)> {
        let comparison = self.snapshots.comparison.take()?;
        Some((comparison, Arc::clone(&self.state.base.loaded.task)))
    }
}

/// How long a snapshot is kept, or an import continues, without a message about it.
const SNAPSHOT_LIFETIME: Duration = Duration::from_secs(60);
