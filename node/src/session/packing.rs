//! Packing: chunks end to end in one payload, with a word for each and a digest for all.

use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::{PARCEL_BYTES, PARCEL_CHUNKS_MAX};
use peergrad_protocol::message::{Content, Parcel, Piece};
use peergrad_protocol::{Buffer, Pool, StepNumber, ViewDigest};

use crate::io::Reject;

/// A parcel that is being packed.
#[derive(Default)]
pub(super) struct Packing {
    elements: Vec<f32>,
    pieces: Vec<Piece>,
}

impl Packing {
    /// Puts a chunk in.
    pub(super) fn add(&mut self, chunk: usize, part: &[f32], updates: u32) {
        self.elements.extend_from_slice(part);
        self.pieces.push(Piece { chunk: chunk as u32, updates });
    }

    /// Whether the next chunk belongs into another one.
    pub(super) fn is_full(&self) -> bool {
        size_of_val(&self.elements[..]) >= PARCEL_BYTES || self.pieces.len() == PARCEL_CHUNKS_MAX
    }

    /// The parcel and its payload; `None` if nothing is in it.
    pub(super) fn seal(
        self,
        view: ViewDigest,
        steps: StepNumber,
        content: Content,
        pool: &Pool,
    ) -> Option<(Parcel, Buffer)> {
        if self.pieces.is_empty() {
            return None;
        }
        let mut payload = pool.take(self.elements.len());
        payload.copy_from_slice(&self.elements);
        let digest = ContentDigest::of(payload.bytes());
        Some((Parcel { view, steps, content, pieces: self.pieces, digest }, payload))
    }
}

/// What is in a parcel, chunk by chunk; `len_of`: how many elements of a chunk there must be, if there is such a chunk.
///
/// # Errors
/// It is damaged, or holds what is no chunk.
pub(super) fn unpack<'a>(
    parcel: &Parcel,
    payload: &'a Buffer,
    len_of: impl Fn(usize) -> Option<usize>,
) -> Result<Vec<(Piece, &'a [f32])>, Reject> {
    if ContentDigest::of(payload.bytes()) != parcel.digest {
        return Err(Reject::Chunk);
    }
    let mut rest: &[f32] = payload;
    let mut next = |piece: &Piece| {
        let len = len_of(piece.chunk as usize).ok_or(Reject::Chunk)?;
        let (part, after) = rest.split_at_checked(len).ok_or(Reject::Chunk)?;
        rest = after;
        Ok((*piece, part))
    };
    parcel.pieces.iter().map(&mut next).collect()
}
