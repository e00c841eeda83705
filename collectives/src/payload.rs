//! Payloads: elements in a pooled buffer, as they travel and back.
//!
//! Elements lie in memory as they travel unless a codec does something to them: then nothing is copied.

use peergrad_protocol::{Buffer, Pool};

use crate::codec::{Codec, CodecError};
use crate::plan::Segment;

/// A segment of `vector`, as it travels.
#[must_use]
pub fn payload_of(codec: Codec, segment: &Segment, vector: &[f32], pool: &Pool) -> Buffer {
    let mut packed = pool.take(segment.len());
    segment.copy_out(vector, &mut packed);
    encoded(codec, packed, pool)
}

/// What travels of these elements.
#[must_use]
pub fn encoded(codec: Codec, elements: Buffer, pool: &Pool) -> Buffer {
    if codec.is_exact() {
        return elements;
    }
    let mut payload = pool.take_bytes(codec.encoded_len(elements.len()));
    codec.encode(&elements, payload.bytes_mut());
    payload
}

/// The `len` elements that have come; `None`: the payload is the elements.
///
/// # Errors
/// The payload is not one of so many elements.
pub fn decoded(
    codec: Codec,
    len: usize,
    payload: &Buffer,
    pool: &Pool,
) -> Result<Option<Buffer>, CodecError> {
    let (expected, found) = (codec.encoded_len(len), payload.byte_count());
    if expected != found {
        return Err(CodecError::Length { expected, found });
    }
    if codec.is_exact() {
        return Ok(None);
    }
    let mut elements = pool.take(len);
    codec.decode(payload.bytes(), &mut elements)?;
    Ok(Some(elements))
}
