//! Chunk batches: several chunks in one payload, with an entry for each and one digest.

use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::{CHUNK_BATCH_BYTES, CHUNK_BATCH_CHUNKS_MAX};
use peergrad_protocol::message::{ChunkBatch, ChunkContent, ChunkEntry};
use peergrad_protocol::{Buffer, Pool, StepNumber};

use crate::io::Reject;

/// A chunk batch that is being packed.
#[derive(Default)]
pub(super) struct ChunkBatchBuilder {
    /// The elements of all its chunks, one chunk after the other.
    elements: Vec<f32>,
    /// For each chunk, in the same order: its index, and its count of updates.
    entries: Vec<ChunkEntry>,
}

impl ChunkBatchBuilder {
    /// Adds a chunk.
    pub(super) fn add(&mut self, chunk: usize, part: &[f32], updates: u32) {
        self.elements.extend_from_slice(part);
        self.entries.push(ChunkEntry { chunk: chunk as u32, updates });
    }

    /// Whether the next chunk belongs into another batch.
    pub(super) fn is_full(&self) -> bool {
        size_of_val(&self.elements[..]) >= CHUNK_BATCH_BYTES || self.entries.len() == CHUNK_BATCH_CHUNKS_MAX
    }

    /// The chunk batch and its payload; `None` if no chunk is in it.
    pub(super) fn seal(
        self,
        steps: StepNumber,
        content: ChunkContent,
        pool: &Pool,
    ) -> Option<(ChunkBatch, Buffer)> {
        if self.entries.is_empty() {
            return None;
        }
        let mut payload = pool.take(self.elements.len());
        payload.copy_from_slice(&self.elements);
        let digest = ContentDigest::of(payload.bytes());
        Some((ChunkBatch { steps, content, entries: self.entries, digest }, payload))
    }
}

/// The chunks of a batch. `len_of`: the number of elements that a chunk must have; `None` if there is no such chunk.
///
/// # Errors
/// The batch is damaged, or contains something that is not a chunk.
pub(super) fn unpack<'a>(
    chunk_batch: &ChunkBatch,
    payload: &'a Buffer,
    len_of: impl Fn(usize) -> Option<usize>,
) -> Result<Vec<(ChunkEntry, &'a [f32])>, Reject> {
    if ContentDigest::of(payload.bytes()) != chunk_batch.digest {
        return Err(Reject::Chunk);
    }
    let mut rest: &[f32] = payload;
    let mut next = |piece: &ChunkEntry| {
        let len = len_of(piece.chunk as usize).ok_or(Reject::Chunk)?;
        let (part, after) = rest.split_at_checked(len).ok_or(Reject::Chunk)?;
        rest = after;
        Ok((*piece, part))
    };
    chunk_batch.entries.iter().map(&mut next).collect()
}
