//! The transfer of single chunks: those that move in this step, and those that complete an interrupted step.
//!
//! Like handing over a shift: between two steps the old owner of a chunk sends its state to the new one, while all members already compute
//! the next gradients. The new owner needs the state only when the sums have arrived.
//!
//! # How it works
//! - *Moving.* Before a member takes a step, it sends the chunks that leave it in that step, with their state after as many steps. The new
//!   owner takes them in when it has reached the step itself.
//! - *Filling.* A view may roll a step forward that its members hold only together. A member that lacks chunks requests their values from
//!   the donors that the record names.
//!
//! Every batch of chunks has a digest. A moving batch uses a credit of its link, as a segment does, and precedes the segments of its step:
//! the new owner cannot complete the step without it, and until then holds segments of the next step. A filling batch uses no credit:
//! segments of the next step may have used up all of it, and wait at the receiver for this very step. So filling batches are requested, one
//! at a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::limits::CHUNKS_MAX;
use peergrad_protocol::message::{
    ChunkBatch, ChunkContent, ChunkEntry, SampleStats, TrainingMessage, WantChunks,
};
use peergrad_protocol::view::{Donor, Move};
use peergrad_protocol::{Buffer, Frame, PeerId, Rank, StepNumber};

use super::super::base::EngineBase;
use super::StepEngine;
use super::chunk_batch::{ChunkBatchBuilder, unpack};
use crate::io::{Output, Reject};
use crate::state::optimizer_shard::{OptimizerShard, Version};
use crate::state::optimizer_state::OptimizerState;

/// Chunks on their way, to and from this member.
#[derive(Default)]
pub(super) struct Transfer {
    /// The chunks that are sent as soon as there is credit.
    outbox: VecDeque<Outgoing>,
    /// By step and chunk: states that have arrived for the step in progress or the next one, and are not taken in yet.
    arrivals: BTreeMap<(StepNumber, usize), OptimizerState>,
    /// The step in progress while it is being filled. `None` in a step with a round.
    filling: Option<Filling>,
}

/// A chunk that is to be sent.
#[derive(Clone, Copy)]
struct Outgoing {
    chunk: usize,
    chunk_batch: BatchKey,
}

/// The common properties of the chunks in one chunk batch.
#[derive(Clone, Copy, PartialEq)]
struct BatchKey {
    to: Rank,
    steps: StepNumber,
    content: ChunkContent,
}

/// The step that is being filled from other members.
struct Filling {
    vector: Buffer,
    missing: BTreeSet<usize>,
    stats: SampleStats,
    donors: Vec<Donor>,
}

impl Transfer {
    pub(super) fn is_filling(&self) -> bool {
        self.filling.is_some()
    }

    /// Drops what belongs to an earlier view. Returns the values that have arrived for an interrupted step, and the chunks that it lacks.
    pub(super) fn clear(&mut self) -> Option<(Buffer, BTreeSet<usize>)> {
        let filling = std::mem::take(self).filling?;
        Some((filling.vector, filling.missing))
    }

    /// The next chunk to send, if it belongs to this chunk batch.
    fn next_of(&mut self, chunk_batch: BatchKey) -> Option<Outgoing> {
        let is_its = self.outbox.front().is_some_and(|next| next.chunk_batch == chunk_batch);
        if is_its { self.outbox.pop_front() } else { None }
    }

    /// The chunks that are still missing while the step is being filled.
    pub(super) fn missing(&self) -> Option<&BTreeSet<usize>> {
        self.filling.as_ref().map(|filling| &filling.missing)
    }

    /// The statistics of the step that is being filled.
    pub(super) fn stats(&self) -> Option<SampleStats> {
        self.filling.as_ref().map(|filling| filling.stats)
    }

    // Moving.

    /// Queues the chunks that leave this member in the step in progress.
    pub(super) fn move_chunks(&mut self, base: &EngineBase, step: StepNumber) {
        let shard_map = &base.shard_map;
        if !shard_map.sharding.has_state || step <= shard_map.view.first_step() {
            return;
        }
        let (done, due) = (shard_map.moved(StepNumber(step.0 - 1)), shard_map.moved(step));
        for moved in &shard_map.view.moves.list[done..due] {
            let chunk = moved.chunk as usize;
            if moved.from[0] != base.rank || chunk >= shard_map.sharding.chunks.count() {
                continue;
            }
            let new =
                shard_map.target.replica_holders(chunk).iter().filter(|holder| !moved.from.contains(holder));
            let outgoing = |&to: &Rank| Outgoing {
                chunk,
                chunk_batch: BatchKey { to, steps: step, content: ChunkContent::State },
            };
            self.outbox.extend(new.map(outgoing));
        }
    }

    /// Takes in the states that arrived before this member was at `step`, in this version.
    pub(super) fn take_arrivals(
        &mut self,
        step: StepNumber,
        version: Version,
        optimizer: &mut OptimizerShard,
    ) {
        while let Some(entry) = self.arrivals.first_entry() {
            let (steps, chunk) = *entry.key();
            if steps > step {
                return;
            }
            let state = entry.remove();
            if steps == step && optimizer.state(version, chunk).is_none() {
                optimizer.insert(version, chunk, Some(state));
            }
        }
    }

    // Filling.

    /// Requests missing chunks of the step in progress from a donor that has them.
    pub(super) fn ask(&self, base: &EngineBase, step: StepNumber, donor: Rank, out: &mut Vec<Output>) {
        let Some(filling) = &self.filling else { return };
        let has = |chunk: &&usize| {
            let is_its = |at: &Donor| at.rank == donor && (at.first..at.end).contains(&(**chunk as u32));
            filling.donors.iter().any(is_its)
        };
        let chunks: ChunkSet = filling.missing.iter().filter(has).copied().collect();
        if !chunks.is_empty() {
            let want = WantChunks { steps: step.next(), chunks };
            let frame = Frame::encode(&TrainingMessage::WantChunks(want).in_view(base.digest()), None);
            out.push(Output::Send { to: base.view().member(donor).peer, frame });
        }
    }

    /// Takes in the values of a chunk of the step that is being filled.
    fn receive_values(&mut self, base: &EngineBase, chunk: usize, values: &[f32]) {
        // A chunk that was requested twice may arrive twice.
        if let Some(filling) = &mut self.filling
            && filling.missing.remove(&chunk)
        {
            filling.vector[base.shard_map.sharding.chunks.range(chunk)].copy_from_slice(values);
        }
    }
}

impl StepEngine {
    // Filling.

    /// Completes the step in progress from other members; `vector` has all chunks except those in `missing`.
    pub(super) fn fill(
        &mut self,
        vector: Buffer,
        missing: BTreeSet<usize>,
        stats: SampleStats,
        donors: &[Donor],
        out: &mut Vec<Output>,
    ) {
        // The step has finished sums, so every member has completed the one before.
        self.commit.confirm();
        self.commit_if_confirmed(out);
        self.transfer.filling = Some(Filling { vector, missing, stats, donors: donors.to_vec() });
        let ranks: BTreeSet<Rank> = donors.iter().map(|donor| donor.rank).collect();
        ranks.into_iter().for_each(|rank| self.transfer.ask(&self.base, self.step, rank, out));
        self.end_filling();
    }

    pub(super) fn end_filling(&mut self) {
        if self.transfer.filling.as_ref().is_some_and(|filling| filling.missing.is_empty())
            && let Some(Filling { vector, stats, .. }) = self.transfer.filling.take()
        {
            let record = self.record(stats);
            self.complete_step(Arc::new(vector), record);
        }
    }

    /// A member requests chunks that this one has.
    ///
    /// # Errors
    /// The sender is not a member, or requests more than there is.
    pub(in crate::training) fn receive_chunk_request(
        &mut self,
        from: PeerId,
        want: WantChunks,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let to = self.base.view().rank(&from).ok_or(Reject::NotAMember)?;
        let asked = self.transfer.outbox.iter().filter(|outgoing| outgoing.chunk_batch.to == to).count();
        let is_chunk = |chunk: usize| chunk < self.base.shard_map.sharding.chunks.count();
        if asked + want.chunks.len() > CHUNKS_MAX || !want.chunks.iter().all(is_chunk) {
            return Err(Reject::OutOfPlace);
        }
        let chunk_batch = BatchKey { to, steps: want.steps, content: ChunkContent::Values };
        self.transfer.outbox.extend(want.chunks.iter().map(|chunk| Outgoing { chunk, chunk_batch }));
        self.make_progress(out);
        Ok(())
    }

    // Both.

    /// Sends moving chunks as far as credit goes, and one chunk batch of those that were requested.
    pub(super) fn send_chunks(&mut self, out: &mut Vec<Output>) {
        let mut replies = VecDeque::new();
        while let Some(first) = self.transfer.outbox.front().copied() {
            let to = first.chunk_batch.to;
            if first.chunk_batch.content == ChunkContent::Values {
                if let Some(frame) = self.next_chunk_batch() {
                    out.push(Output::Send { to: self.base.view().member(to).peer, frame });
                }
                self.transfer.outbox.retain(|outgoing| outgoing.chunk_batch != first.chunk_batch);
                continue;
            }
            // Without credit for one chunk batch there is none for the next.
            if replies.iter().any(|outgoing: &Outgoing| outgoing.chunk_batch.to == to)
                || self.base.flow_control.links.credit(to.index()) == 0
            {
                replies.extend(self.transfer.outbox.pop_front());
                continue;
            }
            // A chunk that is not here any more is left out: the receiver is beyond that step, or in another view.
            if let Some(frame) = self.next_chunk_batch() {
                let has_credit = self.base.flow_control.links.take_for_one_hop(to.index());
                assert!(has_credit, "looked at before");
                out.push(Output::Send { to: self.base.view().member(to).peer, frame });
            }
        }
        self.transfer.outbox = replies;
    }

    /// The next chunks of the outbox for one chunk batch.
    fn next_chunk_batch(&mut self) -> Option<Frame> {
        let chunk_batch = self.transfer.outbox.front()?.chunk_batch;
        let mut batch = ChunkBatchBuilder::default();
        while let Some(outgoing) = self.transfer.next_of(chunk_batch) {
            let Outgoing { chunk, chunk_batch: BatchKey { steps, content, .. } } = outgoing;
            let (part, updates) = match content {
                ChunkContent::Values => (self.values(chunk, steps), 0),
                ChunkContent::State => {
                    let state = self.state_after(chunk, steps);
                    (state.map(|state| &state.moments[..]), state.map_or(0, |state| state.updates))
                }
            };
            let Some(part) = part else { continue };
            batch.add(chunk, part, updates);
            if batch.is_full() {
                break;
            }
        }
        let BatchKey { steps, content, .. } = chunk_batch;
        let (chunk_batch, payload) = batch.seal(steps, content, &self.base.segments)?;
        Some(Frame::encode(
            &TrainingMessage::ChunkBatch(chunk_batch).in_view(self.base.digest()),
            Some(payload),
        ))
    }

    /// The values of a chunk after `steps` steps; `None` if they are not here.
    fn values(&self, chunk: usize, steps: StepNumber) -> Option<&[f32]> {
        let range = self.base.shard_map.sharding.chunks.range(chunk);
        if steps == self.step {
            return Some(&self.commit.complete.as_ref()?[range]);
        }
        if steps == self.step.next() {
            let filling = self.transfer.filling.as_ref()?;
            return (!filling.missing.contains(&chunk)).then(|| &filling.vector[range]);
        }
        let is_before = self.commit.uncommitted.is_some() && steps.next() == self.step;
        if is_before { Some(&self.commit.previous.as_ref()?[range]) } else { None }
    }

    /// The optimizer state of a chunk after `steps` steps; `None` if it is not here.
    fn state_after(&self, chunk: usize, steps: StepNumber) -> Option<&OptimizerState> {
        let is_before = self.commit.uncommitted.is_some() && steps.next() == self.step;
        if steps == self.step {
            self.optimizer.state(self.commit.newest_version(), chunk)
        } else if is_before {
            self.optimizer.state(Version::Committed, chunk)
        } else {
            None
        }
    }

    /// Chunks have arrived.
    ///
    /// # Errors
    /// The chunks are damaged, or not expected.
    pub(in crate::training) fn chunk_batch(
        &mut self,
        from: PeerId,
        message: &ChunkBatch,
        payload: &Buffer,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let rank = self.base.view().rank(&from).ok_or(Reject::NotAMember)?;
        if message.content == ChunkContent::State {
            out.push(Output::Credit { to: from, segments: 1 });
        }
        for (piece, part) in
            unpack(message, payload, |chunk| chunk_len(&self.base, &self.optimizer, chunk, message.content))?
        {
            match message.content {
                ChunkContent::Values if message.steps == self.step.next() => {
                    self.transfer.receive_values(&self.base, piece.chunk as usize, part);
                }
                ChunkContent::Values => {}
                ChunkContent::State => self.state_in(rank, message.steps, piece, part)?,
            }
        }
        // This member's report stays true: a step that becomes whole now is completed later.
        if !self.is_suspended() {
            if message.content == ChunkContent::Values {
                self.transfer.ask(&self.base, self.step, rank, out);
            }
            self.end_filling();
        }
        self.make_progress(out);
        Ok(())
    }

    fn state_in(
        &mut self,
        from: Rank,
        steps: StepNumber,
        ChunkEntry { chunk, updates }: ChunkEntry,
        moments: &[f32],
    ) -> Result<(), Reject> {
        let is_mine = self.base.shard_map.target.replica_holders(chunk as usize).contains(&self.base.rank);
        let is_donor = |moved: &Move| {
            moved.chunk == chunk && moved.from[0] == from && !moved.from.contains(&self.base.rank)
        };
        let is_due = steps == self.step || steps == self.step.next();
        if !is_mine || !is_due || !self.base.view().moves.list.iter().any(is_donor) {
            return Err(Reject::Chunk);
        }
        let state = OptimizerState { moments: moments.to_vec(), updates };
        self.transfer.arrivals.insert((steps, chunk as usize), state);
        self.transfer.take_arrivals(self.step, self.commit.newest_version(), &mut self.optimizer);
        Ok(())
    }
}

/// The number of elements of a chunk's values, or of its state. `None` if there is no such chunk.
pub(super) fn chunk_len(
    base: &EngineBase,
    optimizer: &OptimizerShard,
    chunk: usize,
    content: ChunkContent,
) -> Option<usize> {
    let chunks = base.shard_map.sharding.chunks;
    let is_chunk = chunk < chunks.count();
    is_chunk.then(|| match content {
        ChunkContent::Values => chunks.range(chunk).len(),
        ChunkContent::State => optimizer.len_of(chunk),
    })
}
