//! Merge snapshots: the state that one branch of a partitioned run keeps for another branch, which goes on for both.
//!
//! Like two halves of an orchestra that have rehearsed in different towns. Before they play together again, one half sends its scores with
//! all its pencil marks. The other half goes through them part by part, and weighs each mark by how long either half has rehearsed.
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
//!   of the import stays possible ([`StepEngine::begin_import`]).
//! - A member without its part of the snapshot that its view merges does not begin there.

use std::sync::Arc;
use std::time::Duration;

use peergrad_models::task::Task;
use peergrad_protocol::message::{ChunkContent, MergeOffer, SnapshotChunks, WantSnapshot};
use peergrad_protocol::view::Merge;
use peergrad_protocol::{Buffer, Frame, Instant, PeerId, StepNumber, ViewDigest};

use super::super::base::EngineBase;
use super::StepEngine;
use super::transfer::chunk_len;
use crate::io::{Event, Output, Reject};
use crate::state::blend::Blend;
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
    kept: Option<KeptSnapshot>,
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

    /// The snapshot that was taken in this view; `None` if there is none.
    pub(in crate::training) fn kept_in(&self, view: ViewDigest) -> Option<&KeptSnapshot> {
        self.kept.as_ref().filter(|snapshot| snapshot.view == view)
    }

    /// The next chunk batches that another branch has requested; none if that snapshot is not kept here.
    pub(in crate::training) fn frames(&mut self, base: &EngineBase, want: &WantSnapshot) -> Vec<Frame> {
        self.kept.as_mut().map_or_else(Vec::new, |kept| kept.frames(base, want))
    }

    /// Drops an import that no coordinator has renewed for long, and a snapshot that no peer has requested for long.
    pub(in crate::training) fn expire(&mut self, now: Instant, pinned: Option<SnapshotId>) {
        let MergeSnapshots { import, kept, .. } = self;
        import.take_if(|it| Some(it.id()) != pinned && now.since(it.renewed_at) > SNAPSHOT_LIFETIME);
        kept.take_if(|snapshot| now.since(*snapshot.idle_since.get_or_insert(now)) > SNAPSHOT_LIFETIME);
    }

    /// Gives up an import whose snapshot is not available.
    pub(in crate::training) fn cancel_import(&mut self, snapshot_id: SnapshotId) {
        self.import.take_if(|it| it.id() == snapshot_id);
    }

    /// The offer that is being imported, and the number of chunks of which something is missing; `None` if there is no import.
    pub(in crate::training) fn importing(&self) -> Option<(&MergeOffer, usize)> {
        self.import.as_ref().map(|it| (&it.offer, it.missing.len()))
    }

    /// The snapshot of which this member has all that it needs in the present view, if there is one.
    pub(super) fn imported(&self) -> Option<SnapshotId> {
        let it = self.import.as_ref().filter(|it| it.missing.is_empty())?;
        Some(it.id())
    }
}

impl StepEngine {
    // The branch that yields.

    /// Takes a snapshot after `steps` steps for another branch. If it is kept already, it is kept for longer.
    pub(in crate::training) fn snapshot_after(&mut self, steps: StepNumber) {
        let view = self.base.digest();
        if let Some(snapshot) = &mut self.merge_snapshots.kept
            && snapshot.id() == (view, steps)
        {
            snapshot.idle_since = None;
        } else if steps.0 > self.committed_steps() {
            self.merge_snapshots.due = Some(steps);
        }
    }

    /// A step was committed: takes a snapshot if it is due.
    pub(super) fn snapshot_if_due(&mut self) {
        let steps = self.committed_steps();
        if self.merge_snapshots.due.take_if(|at| at.0 <= steps).is_some_and(|at| at.0 == steps) {
            let view = self.base.digest();
            self.merge_snapshots.kept = self.checkpoint().map(|checkpoint| KeptSnapshot {
                view,
                checkpoint: Arc::new(checkpoint),
                idle_since: None,
            });
        }
    }

    // The branch that leads.

    /// Another branch offers its snapshot. A `pinned` import is kept, because a view that merges it may come, or is there.
    pub(in crate::training) fn begin_import(
        &mut self,
        now: Instant,
        offer: MergeOffer,
        pinned: Option<SnapshotId>,
    ) {
        if let Some(it) = &mut self.merge_snapshots.import {
            if it.id() == (offer.view, offer.steps) {
                (it.offer, it.renewed_at) = (offer, now);
                return;
            }
            if Some(it.id()) == pinned {
                return;
            }
        }
        self.merge_snapshots.import = Some(SnapshotImport::new(offer, now));
        self.update_missing_chunks();
    }

    /// The number of steps that this branch has committed since its snapshot: they are not merged.
    pub(in crate::training) fn steps_since_snapshot(&self) -> u64 {
        let kept = self.merge_snapshots.kept_in(self.base.digest());
        kept.map_or(0, |snapshot| self.committed_steps().saturating_sub(snapshot.checkpoint.saved.steps.0))
    }

    /// The merge that the present view has yet to make, if any.
    pub(in crate::training) fn pending_merge(&self) -> Option<&Merge> {
        self.base.view().merge().filter(|_| self.committed_steps() <= self.base.view().first_step().0)
    }

    /// Whether this member has its part of the snapshot that the view has yet to merge.
    pub(super) fn has_merge_snapshot(&self) -> bool {
        let merge = self.pending_merge();
        merge.is_some_and(|merge| self.merge_snapshots.imported() == Some((merge.view, merge.steps)))
    }

    /// Whether this member evaluates the merge: it is the first one that owns anything, so others can reach it.
    fn evaluates_merge(&self) -> bool {
        let owner = self.base.view().members.iter().position(|member| member.capacity > 0);
        owner == Some(self.base.rank.index())
    }

    /// Computes which chunks are missing. Of the chunks that this member stores, or may store at the start of the next view, it needs
    /// values and state. Of the others it needs only the values, and only if it evaluates the merge.
    pub(super) fn update_missing_chunks(&mut self) {
        let shard_map: &ShardMap = &self.base.shard_map;
        let now = shard_map.target.after(&shard_map.view.moves, shard_map.moved(self.step));
        let is_merging = self.pending_merge().is_some();
        let is_mine = |chunk: usize| {
            // The merge happens at the holders that chunks have at the start of the view.
            let placements = if is_merging { &[&now][..] } else { &[&now, &shard_map.target] };
            placements.iter().any(|placement| placement.replica_holders(chunk).contains(&self.base.rank))
        };
        let (evaluates_merge, has_state) =
            (self.evaluates_merge() && !is_merging, shard_map.sharding.has_state);
        let Some(it) = &mut self.merge_snapshots.import else { return };
        if shard_map.view.descends_from(it.offer.view) {
            self.merge_snapshots.import = None;
            return;
        }
        let wants = |chunk| match is_mine(chunk) {
            true => Some((chunk, has_state)),
            false => evaluates_merge.then_some((chunk, false)),
        };
        it.set_wanted((0..shard_map.sharding.chunks.count()).filter_map(wants));
    }

    /// Requests missing chunks: one window from each linked donor without a pending request. Donors that are not linked are dialed.
    pub(in crate::training) fn fetch(
        &mut self,
        now: Instant,
        is_linked: impl Fn(&PeerId) -> bool,
        out: &mut Vec<Output>,
    ) {
        let Self { base: EngineBase { shard_map, rank, .. }, optimizer, merge_snapshots, .. } = self;
        let len_of = |chunk: usize, content| match content {
            ChunkContent::Values => shard_map.sharding.chunks.range(chunk).len(),
            ChunkContent::State => optimizer.len_of(chunk),
        };
        if let Some(import) = &mut merge_snapshots.import {
            import.fetch(now, *rank, is_linked, len_of, out);
        }
    }

    /// Chunks of another branch have arrived.
    ///
    /// # Errors
    /// The chunks are damaged, or have values that no branch can have.
    pub(in crate::training) fn receive_snapshot_chunks(
        &mut self,
        now: Instant,
        from: PeerId,
        chunks: &SnapshotChunks,
        payload: &Buffer,
    ) -> Result<(), Reject> {
        let Self { base, optimizer, merge_snapshots, .. } = self;
        let len_of = |chunk| chunk_len(base, optimizer, chunk, chunks.batch.content);
        match &mut merge_snapshots.import {
            Some(import) => import.receive(now, from, chunks, payload, len_of),
            None => Ok(()),
        }
    }

    // The merging step.

    /// The merge in the step in progress; `None` if the step merges nothing.
    pub(super) fn merging(&self) -> Option<&Merge> {
        let is_first = self.step == self.base.view().first_step() && self.commit.complete.is_some();
        self.base.view().merge().filter(|_| is_first)
    }

    /// The rule of owners in the step in progress; `None` unless the step merges another branch.
    pub(super) fn blend(&self) -> Option<Blend> {
        let share = self.merging()?.share();
        let it = self
            .merge_snapshots
            .import
            .as_ref()
            .expect("a member without its part of a merge does not begin");
        let updates_max = u32::try_from(self.step.0 + 1).unwrap_or(u32::MAX);
        Some(Blend { remote: Arc::clone(&it.remote), share, updates_max })
    }

    /// The step that merges another branch is complete.
    pub(super) fn note_merge(&mut self, merge: Merge) {
        let (Some(ours), Some(merged), Some(it)) =
            (&self.commit.previous, &self.commit.complete, &self.merge_snapshots.import)
        else {
            return;
        };
        // Only the member that evaluates has all values.
        let has_all = it.remote.values.len() == self.base.shard_map.sharding.chunks.count();
        let comparison = (self.evaluates_merge() && has_all).then(|| MergeComparison {
            ours: Arc::clone(ours),
            remote: Arc::clone(&it.remote),
            merged: Arc::clone(merged),
        });
        self.merge_snapshots.merged = Some((merge, comparison));
    }

    /// A step was committed: perhaps the one that merges another branch.
    pub(super) fn end_merge(&mut self, out: &mut Vec<Output>) {
        if let Some((merge, comparison)) = self.merge_snapshots.merged.take() {
            self.merge_snapshots.import = None;
            self.merge_snapshots.comparison = comparison;
            out.push(Output::Event(Event::Merged(merge)));
        }
    }

    /// The merge that this member is to evaluate; `None` if there is none.
    pub(in crate::training) fn take_comparison(&mut self) -> Option<(MergeComparison, Arc<dyn Task>)> {
        let comparison = self.merge_snapshots.comparison.take()?;
        Some((comparison, Arc::clone(&self.base.loaded.task)))
    }
}

/// How long a snapshot is kept, or an import goes on, without a message about it.
const SNAPSHOT_LIFETIME: Duration = Duration::from_secs(60);
