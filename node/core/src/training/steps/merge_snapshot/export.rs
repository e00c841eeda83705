//! The export of a snapshot: the state that a member keeps for another branch, and sends on request.

use std::sync::Arc;

use peergrad_protocol::limits::REQUESTED_BYTES_MAX;
use peergrad_protocol::message::{
    ChunkContent, MergeMessage, MergeOffer, SavedCheckpoint, SnapshotChunks, SnapshotDonor, WantSnapshot,
};
use peergrad_protocol::view::Member;
use peergrad_protocol::{Frame, Instant, Rank, StepNumber, ViewDigest};

use super::super::super::base::EngineBase;
use super::super::chunk_batch::ChunkBatchBuilder;
use crate::state::checkpoint::Checkpoint;
use crate::state::snapshot_id::SnapshotId;

/// The state that a member keeps for another branch.
pub(super) struct KeptSnapshot {
    /// The view in which the snapshot was taken.
    pub(super) view: ViewDigest,
    /// The state itself: all parameters, and the optimizer state that this member stores.
    pub(super) checkpoint: Arc<Checkpoint>,
    /// Since when no peer has requested it. `None` from a request until the next check of the time.
    pub(super) idle_since: Option<Instant>,
}

impl KeptSnapshot {
    pub(super) fn id(&self) -> SnapshotId {
        (self.view, self.checkpoint.saved.steps)
    }

    /// The offer of this snapshot to another branch, from this member as its coordinator. The snapshot was taken in the present view.
    pub(super) fn offer(&self, base: &EngineBase, question: u64) -> MergeOffer {
        let SavedCheckpoint { steps, cursor, .. } = self.checkpoint.saved.clone();
        let (view, shard_map) = (base.view(), &base.shard_map);
        // The holders of each chunk in the last of these steps.
        let moved = shard_map.moved(StepNumber(steps.0.saturating_sub(1)));
        let placement = shard_map.target.after(&view.moves, moved);
        let donor = |(index, member): (usize, &Member)| {
            let rank = Rank::from_index(index);
            let is_its = |chunk: &usize| placement.replica_holders(*chunk).contains(&rank);
            let chunks = 0..shard_map.sharding.chunks.count();
            let states = chunks.filter(|_| shard_map.sharding.has_state).filter(is_its).collect();
            SnapshotDonor { contact: member.contact(), states }
        };
        MergeOffer {
            view: self.view,
            steps,
            trained: cursor.taken(u64::from(base.loaded.task.sample_count())),
            cursor,
            ancestors: view.ancestors_at(steps),
            donors: view.members.iter().enumerate().map(donor).collect(),
            coordinator: base.me.peer,
            question,
        }
    }

    /// The next requested chunk batches, of at most [`REQUESTED_BYTES_MAX`]; none if the request is for another snapshot.
    pub(super) fn frames(&mut self, base: &EngineBase, want: &WantSnapshot) -> Vec<Frame> {
        if self.id() != (want.view, want.steps) {
            return vec![];
        }
        self.idle_since = None;
        let (checkpoint, chunks) = (&self.checkpoint, base.shard_map.sharding.chunks);
        let part = |chunk: usize| match want.content {
            ChunkContent::Values => Some((&checkpoint.parameters[chunks.range(chunk)], 0)),
            ChunkContent::State => checkpoint.state(chunk).map(|state| (&state.moments[..], state.updates)),
        };
        let known = want.chunks.iter().filter(|chunk| *chunk < chunks.count());
        let (mut frames, mut batch, mut bytes) = (Vec::new(), ChunkBatchBuilder::default(), 0);
        let seal = |batch: ChunkBatchBuilder| {
            let (batch, payload) = batch.seal(want.steps, want.content, &base.segments)?;
            let chunks = SnapshotChunks { view: want.view, batch };
            Some(Frame::encode(&MergeMessage::SnapshotChunks(chunks).into(), Some(payload)))
        };
        for (chunk, (part, updates)) in known.filter_map(|chunk| Some((chunk, part(chunk)?))) {
            batch.add(chunk, part, updates);
            bytes += size_of_val(part);
            if batch.is_full() {
                frames.extend(seal(std::mem::take(&mut batch)));
                if bytes >= REQUESTED_BYTES_MAX {
                    break;
                }
            }
        }
        frames.extend(seal(batch));
        frames
    }
}
