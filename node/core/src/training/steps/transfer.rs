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
//! segments of the next step may have used up all of it, and wait at the receiver for this very step. So filling batches are requested:
//! of each donor [`REQUESTED_BYTES_MAX`] at a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::limits::{CHUNKS_MAX, REQUESTED_BYTES_MAX};
use peergrad_protocol::message::{
    ChunkBatch, ChunkContent, ChunkEntry, PartialStep, SampleStats, TrainingMessage, WantChunks,
};
use peergrad_protocol::view::{Donor, Move, RollForward};
use peergrad_protocol::{Buffer, Frame, PeerId, Rank, StepNumber};

use super::super::base::EngineBase;
use super::StepEngine;
use super::chunk_batch::{ChunkBatchBuilder, unpack};
use super::state::StepState;
use crate::io::{Output, Reject};
use crate::state::optimizer_shard::OptimizerShard;
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
    /// The index of the chunk.
    chunk: usize,
    /// The properties of the chunk batch that it belongs to.
    chunk_batch: BatchKey,
}

/// The common properties of the chunks in one chunk batch.
#[derive(Clone, Copy, PartialEq)]
struct BatchKey {
    /// The receiver.
    to: Rank,
    /// How many steps the sent values or states include.
    steps: StepNumber,
    /// Whether the values of the chunks are sent, or their optimizer state.
    content: ChunkContent,
}

/// The step that is being filled from other members.
struct Filling {
    /// The new parameters, complete except for the missing chunks.
    vector: Buffer,
    /// The chunks that have not arrived.
    missing: BTreeSet<usize>,
    /// Those of them that were requested, and from which donor.
    requested: BTreeMap<usize, Rank>,
    /// The number of samples in the step, and their summed loss, from the view's record.
    stats: SampleStats,
    /// The members that are asked for chunks, and for which.
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

    // Moving.

    /// Queues the chunks that leave this member in the step in progress.
    pub(super) fn move_chunks(&mut self, state: &StepState) {
        let (shard_map, step) = (&state.base.shard_map, state.step);
        if !shard_map.sharding.has_state || step <= shard_map.view.first_step() {
            return;
        }
        let (done, due) = (shard_map.moved(StepNumber(step.0 - 1)), shard_map.moved(step));
        for moved in &shard_map.view.moves.list[done..due] {
            let chunk = moved.chunk as usize;
            if moved.from[0] != state.base.rank || chunk >= shard_map.sharding.chunks.count() {
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

    /// Takes in the states that arrived before this member was at its step.
    pub(super) fn take_arrivals(&mut self, state: &mut StepState) {
        let version = state.commit.newest_version();
        while let Some(entry) = self.arrivals.first_entry() {
            let (steps, chunk) = *entry.key();
            if steps > state.step {
                return;
            }
            let arrived = entry.remove();
            if steps == state.step && state.optimizer.state(version, chunk).is_none() {
                state.optimizer.insert(version, chunk, Some(arrived));
            }
        }
    }

    // Filling.

    /// Begins to complete the step in progress from other members; `vector` has all chunks except those in `missing`.
    pub(super) fn fill(
        &mut self,
        state: &StepState,
        (vector, missing): (Buffer, BTreeSet<usize>),
        forward: &RollForward,
        out: &mut Vec<Output>,
    ) {
        let donors = forward.donors.clone();
        let ranks: BTreeSet<Rank> = donors.iter().map(|donor| donor.rank).collect();
        let requested = BTreeMap::new();
        self.filling = Some(Filling { vector, missing, requested, stats: forward.stats, donors });
        ranks.into_iter().for_each(|rank| self.ask(state, rank, out));
    }

    /// The values of the step that is being filled, with its statistics, if nothing is missing any more.
    pub(super) fn take_filled(&mut self) -> Option<(Buffer, SampleStats)> {
        let Filling { vector, stats, .. } = self.filling.take_if(|filling| filling.missing.is_empty())?;
        Some((vector, stats))
    }

    /// The members that owe chunks to this one: those that complete an interrupted step, or the state of chunks that have moved here.
    pub(super) fn awaited(&self, state: &StepState) -> BTreeSet<Rank> {
        if let Some(filling) = &self.filling {
            let has = |donor: &&Donor| {
                (donor.first..donor.end).any(|chunk| filling.missing.contains(&(chunk as usize)))
            };
            return filling.donors.iter().filter(has).map(|donor| donor.rank).collect();
        }
        let (shard_map, me) = (&state.base.shard_map, state.base.rank);
        if !shard_map.sharding.has_state {
            return BTreeSet::new();
        }
        let is_due = |moved: &&Move| {
            let chunk = moved.chunk as usize;
            chunk < shard_map.sharding.chunks.count()
                && !moved.from.contains(&me)
                && shard_map.target.replica_holders(chunk).contains(&me)
                && state.optimizer.state(state.commit.newest_version(), chunk).is_none()
        };
        let due = &shard_map.view.moves.list[..shard_map.moved(state.step)];
        due.iter().filter(is_due).map(|moved| moved.from[0]).collect()
    }

    /// Requests missing chunks of the step in progress from a donor that has them, as many as may be on their way.
    pub(super) fn ask(&mut self, state: &StepState, donor: Rank, out: &mut Vec<Output>) {
        let Some(filling) = &mut self.filling else { return };
        let (base, all) = (&state.base, state.base.shard_map.sharding.chunks);
        let bytes_of = |chunk: usize| all.range(chunk).len() * size_of::<f32>();
        let on_their_way = filling.requested.iter().filter(|(_, from)| **from == donor);
        let mut byte_count: usize = on_their_way.map(|(chunk, _)| bytes_of(*chunk)).sum();
        let mut chunks = ChunkSet::default();
        for &chunk in filling.missing.iter().filter(|chunk| !filling.requested.contains_key(chunk)) {
            if byte_count >= REQUESTED_BYTES_MAX {
                break;
            }
            let is_its = |at: &Donor| at.rank == donor && (at.first..at.end).contains(&(chunk as u32));
            if filling.donors.iter().any(is_its) {
                chunks.insert(chunk);
                byte_count += bytes_of(chunk);
            }
        }
        if !chunks.is_empty() {
            filling.requested.extend(chunks.iter().map(|chunk| (chunk, donor)));
            let want = WantChunks { steps: state.step.next(), chunks };
            let frame = Frame::encode(&TrainingMessage::WantChunks(want).in_view(base.digest()), None);
            out.push(Output::Send { to: base.view().member(donor).peer, frame });
        }
    }

    /// There is a new link to a donor: what was requested from it is lost, and requested again.
    pub(super) fn ask_again(&mut self, state: &StepState, donor: Rank, out: &mut Vec<Output>) {
        if let Some(filling) = &mut self.filling {
            filling.requested.retain(|_, from| *from != donor);
        }
        self.ask(state, donor, out);
    }

    /// The chunks and state of the step that is being filled; `states` are those that are here. `None` if no step is.
    pub(super) fn holdings(&self, state: &StepState, states: &ChunkSet) -> Option<PartialStep> {
        let filling = self.filling.as_ref()?;
        let count = state.base.shard_map.sharding.chunks.count();
        let values = (0..count).filter(|chunk| !filling.missing.contains(chunk)).collect();
        Some(PartialStep { values, states: states.clone(), stats: Some(filling.stats) })
    }

    /// A member requests chunks that this one has.
    ///
    /// # Errors
    /// The sender is not a member, or requests more than there is.
    pub(super) fn receive_request(
        &mut self,
        state: &StepState,
        from: PeerId,
        want: &WantChunks,
    ) -> Result<(), Reject> {
        let to = state.base.view().rank(&from).ok_or(Reject::NotAMember)?;
        let asked = self.outbox.iter().filter(|outgoing| outgoing.chunk_batch.to == to).count();
        let all = state.base.shard_map.sharding.chunks;
        if asked + want.chunks.len() > CHUNKS_MAX || !want.chunks.iter().all(|chunk| chunk < all.count()) {
            return Err(Reject::OutOfPlace);
        }
        // All but the last one, since a single chunk may be larger.
        let others = want.chunks.iter().take(want.chunks.len().saturating_sub(1));
        if others.map(|chunk| all.range(chunk).len() * size_of::<f32>()).sum::<usize>() > REQUESTED_BYTES_MAX
        {
            return Err(Reject::OutOfPlace);
        }
        let chunk_batch = BatchKey { to, steps: want.steps, content: ChunkContent::Values };
        self.outbox.extend(want.chunks.iter().map(|chunk| Outgoing { chunk, chunk_batch }));
        Ok(())
    }

    // Both.

    /// Sends moving chunks as far as credit goes, and all that were requested.
    pub(super) fn send_chunks(&mut self, state: &mut StepState, out: &mut Vec<Output>) {
        let mut replies = VecDeque::new();
        while let Some(first) = self.outbox.front().copied() {
            let to = first.chunk_batch.to;
            if first.chunk_batch.content == ChunkContent::Values {
                if let Some(frame) = self.next_chunk_batch(state) {
                    out.push(Output::Send { to: state.base.view().member(to).peer, frame });
                }
                continue;
            }
            // Without credit for one chunk batch there is none for the next.
            if replies.iter().any(|outgoing: &Outgoing| outgoing.chunk_batch.to == to)
                || state.base.flow_control.links.credit(to.index()) == 0
            {
                replies.extend(self.outbox.pop_front());
                continue;
            }
            // A chunk that is not here any more is left out: the receiver is beyond that step, or in another view.
            if let Some(frame) = self.next_chunk_batch(state) {
                let has_credit = state.base.flow_control.links.take_for_one_hop(to.index());
                assert!(has_credit, "looked at before");
                out.push(Output::Send { to: state.base.view().member(to).peer, frame });
            }
        }
        self.outbox = replies;
    }

    /// The next chunks of the outbox for one chunk batch.
    fn next_chunk_batch(&mut self, state: &StepState) -> Option<Frame> {
        let chunk_batch = self.outbox.front()?.chunk_batch;
        let mut batch = ChunkBatchBuilder::default();
        while let Some(outgoing) = self.next_of(chunk_batch) {
            let Outgoing { chunk, chunk_batch: BatchKey { steps, content, .. } } = outgoing;
            let (part, updates) = match content {
                ChunkContent::Values => (self.values(state, chunk, steps), 0),
                ChunkContent::State => {
                    let kept = state.state_after(chunk, steps);
                    (kept.map(|kept| &kept.moments[..]), kept.map_or(0, |kept| kept.updates))
                }
            };
            let Some(part) = part else { continue };
            batch.add(chunk, part, updates);
            if batch.is_full() {
                break;
            }
        }
        let BatchKey { steps, content, .. } = chunk_batch;
        let (chunk_batch, payload) = batch.seal(steps, content, &state.base.segments)?;
        let message = TrainingMessage::ChunkBatch(chunk_batch).in_view(state.base.digest());
        Some(Frame::encode(&message, Some(payload)))
    }

    /// The values of a chunk after `steps` steps; `None` if they are not here.
    fn values<'a>(&'a self, state: &'a StepState, chunk: usize, steps: StepNumber) -> Option<&'a [f32]> {
        let range = state.base.shard_map.sharding.chunks.range(chunk);
        let commit = &state.commit;
        if steps == state.step {
            return Some(&commit.complete.as_ref()?[range]);
        }
        if steps == state.step.next() {
            let filling = self.filling.as_ref()?;
            return (!filling.missing.contains(&chunk)).then(|| &filling.vector[range]);
        }
        let is_before = commit.uncommitted.is_some() && steps.next() == state.step;
        if is_before { Some(&commit.previous.as_ref()?[range]) } else { None }
    }

    /// Takes in the chunks of a batch from the member of this rank.
    ///
    /// # Errors
    /// The chunks are damaged, or not expected.
    pub(super) fn receive(
        &mut self,
        state: &mut StepState,
        from: Rank,
        message: &ChunkBatch,
        payload: &Buffer,
    ) -> Result<(), Reject> {
        let len_of = |chunk| chunk_len(&state.base, &state.optimizer, chunk, message.content);
        for (piece, part) in unpack(message, payload, len_of)? {
            match message.content {
                ChunkContent::Values if message.steps == state.step.next() => {
                    self.receive_values(state, piece.chunk as usize, part);
                }
                ChunkContent::Values => {}
                ChunkContent::State => self.receive_state(state, from, message.steps, piece, part)?,
            }
        }
        Ok(())
    }

    /// Takes in the values of a chunk of the step that is being filled.
    fn receive_values(&mut self, state: &StepState, chunk: usize, values: &[f32]) {
        let Some(filling) = &mut self.filling else { return };
        filling.requested.remove(&chunk);
        // A chunk that was requested twice may arrive twice.
        if filling.missing.remove(&chunk) {
            filling.vector[state.base.shard_map.sharding.chunks.range(chunk)].copy_from_slice(values);
        }
    }

    /// Takes in the state of a chunk that moves to this member.
    fn receive_state(
        &mut self,
        state: &mut StepState,
        from: Rank,
        steps: StepNumber,
        ChunkEntry { chunk, updates }: ChunkEntry,
        moments: &[f32],
    ) -> Result<(), Reject> {
        let base = &state.base;
        let is_mine = base.shard_map.target.replica_holders(chunk as usize).contains(&base.rank);
        let is_donor =
            |moved: &Move| moved.chunk == chunk && moved.from[0] == from && !moved.from.contains(&base.rank);
        let is_due = steps == state.step || steps == state.step.next();
        if !is_mine || !is_due || !base.view().moves.list.iter().any(is_donor) {
            return Err(Reject::Chunk);
        }
        let arrived = OptimizerState { moments: moments.to_vec(), updates };
        self.arrivals.insert((steps, chunk as usize), arrived);
        self.take_arrivals(state);
        Ok(())
    }
}

impl StepEngine {
    /// Completes the step that is being filled, if nothing is missing any more.
    pub(super) fn end_filling(&mut self) {
        if let Some((vector, stats)) = self.transfer.take_filled() {
            let record = self.state.record(stats, self.backup_workers.own_samples(&self.state));
            self.complete_step(Arc::new(vector), record);
        }
    }

    /// Chunks have arrived.
    ///
    /// # Errors
    /// The chunks are damaged, or not expected.
    pub(super) fn receive_chunk_batch(
        &mut self,
        from: PeerId,
        message: &ChunkBatch,
        payload: &Buffer,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let rank = self.state.base.view().rank(&from).ok_or(Reject::NotAMember)?;
        if message.content == ChunkContent::State {
            out.push(Output::Credit { to: from, segments: 1 });
        }
        self.transfer.receive(&mut self.state, rank, message, payload)?;
        // This member's report stays true: a step that becomes whole now is completed later.
        if !self.is_suspended() {
            if message.content == ChunkContent::Values {
                self.transfer.ask(&self.state, rank, out);
            }
            self.end_filling();
        }
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
