//! A bundle: the connections of a direct lane as one stream of bytes.
//!
//! Each connection is a *stripe*. The stream is cut into pieces, and whichever stripe can take one gets the next. Within a stripe pieces
//! are in order, so the receiver reads the number of the next piece of each, and then the piece whose turn it is. The others wait,
//! up to 145 KiB of them in the buffer of each stripe, and the rest where the system keeps them.
//!
//! ```text
//! piece    number u64, bytes that follow u32, little-endian; then the bytes
//!
//! stripe 0   | 0 | 2 | 3 | 6 |      and acknowledgements the other way, without pieces
//! stripe 1     | 1 |   4   | 5 |
//! ```
//! A stripe that is added is open before the first piece goes there. One that is no longer needed is closed after a piece. If another
//! one breaks, the lane ends, and its frames go into the next lane. Bytes that are no piece are a violation, as bytes that are no frame.

mod receiver;
mod sender;

use std::io;

use tokio::sync::OwnedSemaphorePermit;

use super::Records;
use crate::link::NotAPiece;
pub(crate) use receiver::BundleReceiver;
pub(crate) use sender::{BundleSender, Change};

/// A connection that is added to a lane, and its place among all those of this peer.
#[derive(Debug)]
pub(crate) struct Stripe {
    pub(crate) records: Records,
    pub(crate) place: OwnedSemaphorePermit,
}

/// What goes before the bytes of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PieceHead {
    number: u64,
    byte_count: u32,
}

impl PieceHead {
    fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..].copy_from_slice(&self.byte_count.to_le_bytes());
        bytes
    }

    /// Reads the head of a piece that comes after `expected` others at least.
    fn from_bytes(bytes: [u8; HEAD_BYTES], expected: u64) -> io::Result<Self> {
        let (number, byte_count) = bytes.split_at(8);
        let number = u64::from_le_bytes(number.try_into().expect("eight bytes"));
        let byte_count = u32::from_le_bytes(byte_count.try_into().expect("four bytes"));
        if number < expected || !(1..=PIECE_BYTES_MAX).contains(&byte_count) {
            return Err(NotAPiece.into());
        }
        Ok(Self { number, byte_count })
    }
}

const HEAD_BYTES: usize = 12;
/// How large a piece may be.
const PIECE_BYTES_MAX: u32 = 1 << 20;
/// How large it is where there are several stripes: what a slow stripe holds delays what comes after it.
const STRIPED_PIECE_BYTES: u32 = 16 << 10;

#[cfg(test)]
mod tests;
