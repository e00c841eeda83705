//! The codec: how one value looks as bytes. The only file that names bincode.
//!
//! Values are in bincode 2's standard configuration: enum variants and integers as varints (below 251 one byte, then a marker
//! 251, 252, 253 and 2, 4 or 8 bytes), lists with their length first, floats as 8 bytes.
//!
//! # Invariants
//! - Decoding never panics, whatever the bytes. It never holds more than twelve times the bytes that the caller allows, or, where the budget
//!   follows the bytes that are there, 96 times these: bincode counts an empty string as the 8 bytes of its length, and it takes 24.
//! - Bytes behind the value are an error.

use crate::limits::{CONTROL_HEADER_BYTES_MAX, DURABLE_BYTES_MAX};

pub use bincode::{Decode, Encode};

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There are more bytes than such a record may have.
    #[error("the record is larger than allowed")]
    TooLarge,
    /// The bytes are no value of the type.
    #[error("the bytes are no such record")]
    Malformed,
    /// Bytes follow the record.
    #[error("the record is shorter than its bytes")]
    Length,
}

/// The canonical bytes of a record, for hashing and for text forms such as invites.
///
/// # Panics
/// Never: memory takes what is written.
#[must_use]
pub fn encode_record(record: &impl Encode) -> Vec<u8> {
    bincode::encode_to_vec(record, bincode::config::standard()).expect("writing to memory succeeds")
}

/// As [`encode_record`], appended to existing bytes.
pub(super) fn append_record(record: &impl Encode, bytes: &mut Vec<u8>) {
    bincode::encode_into_std_write(record, bytes, bincode::config::standard())
        .expect("writing to memory succeeds");
}

/// Decodes the bytes of [`encode_record`]; at most [`CONTROL_HEADER_BYTES_MAX`] bytes.
///
/// # Errors
/// The bytes are no such record, or have more bytes after it.
pub fn decode_record<T: Decode<()>>(bytes: &[u8]) -> Result<T, DecodeError> {
    decode_within::<T, { 4 * CONTROL_HEADER_BYTES_MAX }>(bytes, CONTROL_HEADER_BYTES_MAX)
}

/// As [`decode_record`], for the larger record that a member has on its disk: at most [`DURABLE_BYTES_MAX`] bytes.
///
/// # Errors
/// The bytes are no such record, or have more bytes after it.
pub fn decode_durable<T: Decode<()>>(bytes: &[u8]) -> Result<T, DecodeError> {
    decode_within::<T, { 4 * DURABLE_BYTES_MAX }>(bytes, DURABLE_BYTES_MAX)
}

/// As [`decode_record`], for a record of at most 8 KiB, such as an invite, which takes no more than 256 KiB while it is read.
///
/// # Errors
/// The bytes are no such record, or have more bytes after it.
pub fn decode_small_record<T: Decode<()>>(bytes: &[u8]) -> Result<T, DecodeError> {
    decode_within::<T, { BUDGET_FACTOR * SMALL_RECORD_BYTES }>(bytes, SMALL_RECORD_BYTES)
}

/// As [`decode_within`], with a budget that follows the number of bytes: a few bytes may claim lists as long as the longest record. Each
/// budget has its own code, so this is for types with little code, and records whose limit is high.
pub(super) fn decode_in_proportion<T: Decode<()>, const BUDGET: usize>(
    bytes: &[u8],
    bytes_max: usize,
) -> Result<T, DecodeError> {
    if bytes.len() <= SMALL_RECORD_BYTES {
        decode_within::<T, { BUDGET_FACTOR * SMALL_RECORD_BYTES }>(bytes, bytes_max)
    } else if bytes.len() <= MEDIUM_RECORD_BYTES {
        decode_within::<T, { BUDGET_FACTOR * MEDIUM_RECORD_BYTES }>(bytes, bytes_max)
    } else {
        decode_within::<T, BUDGET>(bytes, bytes_max)
    }
}

/// Reads a record of at most `bytes_max` bytes.
///
/// `BUDGET` is what its containers may take in memory, in bytes as bincode counts them: it counts before it allocates. The budget
/// is known at compile time, so each has its own code.
pub(super) fn decode_within<T: Decode<()>, const BUDGET: usize>(
    bytes: &[u8],
    bytes_max: usize,
) -> Result<T, DecodeError> {
    if bytes.len() > bytes_max {
        return Err(DecodeError::TooLarge);
    }
    let config = bincode::config::standard().with_limit::<BUDGET>();
    let (record, read) = bincode::decode_from_slice(bytes, config).map_err(|_| DecodeError::Malformed)?;
    if read == bytes.len() { Ok(record) } else { Err(DecodeError::Length) }
}

/// Whether `bytes` are what the encoder would write; bincode also reads small numbers behind the marker of larger ones.
pub(super) fn is_encoding_of(bytes: &[u8], record: &impl Encode) -> bool {
    let mut expected = Expected(bytes);
    let encoded = bincode::encode_into_std_write(record, &mut expected, bincode::config::standard());
    encoded.is_ok() && expected.0.is_empty()
}

/// A writer that takes only the bytes it was told to expect, so that comparing needs no memory.
struct Expected<'a>(&'a [u8]);

impl std::io::Write for Expected<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.strip_prefix(bytes).ok_or(std::io::ErrorKind::InvalidData)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Bytes of a small record, and of one between small and large.
const SMALL_RECORD_BYTES: usize = 8 << 10;
const MEDIUM_RECORD_BYTES: usize = 256 << 10;
/// How often a record's bytes its containers may take in memory: a list of empty lists takes 24 times as many.
const BUDGET_FACTOR: usize = 32;
