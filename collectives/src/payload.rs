//! Payloads: a segment's elements in a pooled buffer, in the form in which they are sent.
//!
//! With an exact codec, this form is that of the elements in memory, and nothing is copied.

use peergrad_protocol::{Buffer, Pool};

use crate::codec::{Codec, CodecError};
use crate::plan::Segment;

/// The payload of a segment of `vector`, the flat vector.
#[must_use]
pub fn payload_of(codec: Codec, segment: &Segment, vector: &[f32], pool: &Pool) -> Buffer {
    let mut packed = pool.take(segment.len());
    segment.copy_out(vector, &mut packed);
    encoded(codec, packed, pool)
}

/// The payload of packed elements.
#[must_use]
pub fn encoded(codec: Codec, elements: Buffer, pool: &Pool) -> Buffer {
    if codec.is_exact() {
        return elements;
    }
    let mut payload = pool.take_bytes(codec.encoded_len(elements.len()));
    codec.encode(&elements, payload.bytes_mut());
    payload
}

/// The `len` elements of a payload; `None` if the payload is the elements themselves.
///
/// # Errors
/// The payload is no encoding of `len` elements.
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
