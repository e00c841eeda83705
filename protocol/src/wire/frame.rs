//! The frame: how one message looks as bytes.
//!
//! ```text
//! +---------+------+--------------+---------------+----------+--------------------+------------------------+
//! | version | kind | header bytes | payload bytes | checksum | header             | payload                |
//! | u8      | u8   | u32 LE       | u32 LE        | u32 LE   | bincode, variable- | raw little-endian,     |
//! |         |      |              |               |          | length integers    | never through bincode  |
//! +---------+------+--------------+---------------+----------+--------------------+------------------------+
//! ```
//! The prefix alone tells a reader how much to read and whether that is allowed, before it allocates anything. The header
//! is the [`Message`] as the [codec](super::codec) writes it. The checksum, a CRC-32, covers all other bytes: a bit that a faulty memory
//! flips on the way from one node to another makes no other message, and no other values. Table messages have no frames of their own: they
//! follow each other in a stream, each after its length.
//!
//! # Invariants
//! - Decoding never panics, whatever the bytes, and never holds more than twelve times the header bytes that the
//!   frame's kind allows.
//! - There is one encoding of a message: trailing bytes are an error, and so are numbers with more bytes than necessary.

use super::codec::{DecodeError, append_record, decode_in_proportion, decode_within, is_encoding_of};
use crate::buffer::Buffer;
use crate::limits::{
    CHUNK_BATCH_HEADER_BYTES_MAX, CHUNK_BYTES_MAX, CONTROL_HEADER_BYTES_MAX, DATA_PIECE_BYTES_MAX,
    SEGMENT_BYTES_MAX, SMALL_HEADER_BYTES_MAX, TABLE_MESSAGE_BYTES_MAX,
};
use crate::message::{Invalid, JoinMessage, MergeMessage, Message, Priority, TrainingMessage};
use crate::table::TableMessage;

/// One message's bytes: the prefix and header, and the payload in a pooled buffer that is never copied.
#[derive(Debug)]
pub struct Frame {
    /// Prefix and header.
    pub head: Vec<u8>,
    /// The elements or file bytes that the header describes.
    pub payload: Option<Buffer>,
}

/// The version of this format. Peers with different versions cannot communicate.
pub const VERSION: u8 = 1;

/// The number of bytes of a frame's prefix.
pub const PREFIX_BYTES: usize = CHECKSUM_AT + 4;

/// Where the kind is.
const KIND_AT: usize = 1;
/// Where the checksum begins.
const CHECKSUM_AT: usize = 10;

/// The content of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    kind: Kind,
    /// The number of bytes of the header that follows.
    pub header_bytes: usize,
    /// The number of bytes of the payload after it.
    pub payload_bytes: usize,
}

/// Why bytes are no frame. Their connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The version differs, or this is another protocol.
    #[error(
        "version {0} of the wire format, but this peer uses version {VERSION}: use the same release on both machines"
    )]
    Version(u8),
    /// There is no such kind of frame.
    #[error("no frame is of kind {0}")]
    Kind(u8),
    /// The announced size exceeds the limit of the frame's kind.
    #[error("the frame is larger than its kind allows")]
    TooLarge,
    /// The frame is shorter or longer than it announces.
    #[error("the frame has another length than it announces")]
    Length,
    /// The bytes were changed after the frame was made.
    #[error("the frame was changed on its way")]
    Changed,
    /// The header is no message, or one of another kind.
    #[error("the header is no message of its kind")]
    Header,
    /// The message breaks a rule.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

impl From<DecodeError> for WireError {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::TooLarge => Self::TooLarge,
            DecodeError::Malformed => Self::Header,
            DecodeError::Length => Self::Length,
        }
    }
}

/// The kind of a frame, which determines its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Control = 0,
    Segment = 1,
    Data = 2,
    ChunkBatch = 3,
    /// A control message of urgent priority.
    Urgent = 4,
}

impl Kind {
    fn of(message: &Message) -> Self {
        match message {
            Message::InView { message: TrainingMessage::Segment(_) | TrainingMessage::Tables, .. } => {
                Self::Segment
            }
            Message::Join(JoinMessage::Data(_)) => Self::Data,
            Message::InView { message: TrainingMessage::ChunkBatch(_), .. }
            | Message::Merge(MergeMessage::SnapshotChunks(_)) => Self::ChunkBatch,
            message if message.priority() == Priority::Urgent => Self::Urgent,
            _ => Self::Control,
        }
    }

    const fn header_bytes_max(self) -> usize {
        match self {
            Self::Control | Self::Urgent => CONTROL_HEADER_BYTES_MAX,
            Self::Segment | Self::Data => SMALL_HEADER_BYTES_MAX,
            Self::ChunkBatch => CHUNK_BATCH_HEADER_BYTES_MAX,
        }
    }

    const fn payload_bytes_max(self) -> usize {
        match self {
            Self::Control | Self::Urgent => 0,
            Self::Segment => SEGMENT_BYTES_MAX,
            Self::Data => DATA_PIECE_BYTES_MAX,
            Self::ChunkBatch => CHUNK_BYTES_MAX,
        }
    }
}

impl Prefix {
    /// Reads a prefix and checks the sizes that it announces against the limits.
    ///
    /// # Errors
    /// The prefix is invalid. Nothing has been allocated.
    pub fn decode(bytes: [u8; PREFIX_BYTES]) -> Result<Self, WireError> {
        let [version, kind, lengths @ ..] = bytes;
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        let kind = match kind {
            0 => Kind::Control,
            1 => Kind::Segment,
            2 => Kind::Data,
            3 => Kind::ChunkBatch,
            4 => Kind::Urgent,
            other => return Err(WireError::Kind(other)),
        };
        let [a, b, c, d, e, f, g, h, ..] = lengths;
        let header_bytes = u32::from_le_bytes([a, b, c, d]) as usize;
        let payload_bytes = u32::from_le_bytes([e, f, g, h]) as usize;
        if header_bytes > kind.header_bytes_max() || payload_bytes > kind.payload_bytes_max() {
            return Err(WireError::TooLarge);
        }
        Ok(Self { kind, header_bytes, payload_bytes })
    }

    /// The bytes of this prefix, without the checksum.
    fn encode(self) -> [u8; PREFIX_BYTES] {
        let mut bytes = [0; PREFIX_BYTES];
        bytes[0] = VERSION;
        bytes[KIND_AT] = self.kind as u8;
        bytes[2..6].copy_from_slice(&(self.header_bytes as u32).to_le_bytes());
        bytes[6..CHECKSUM_AT].copy_from_slice(&(self.payload_bytes as u32).to_le_bytes());
        bytes
    }
}

impl Frame {
    /// The frame of `message` with its payload.
    ///
    /// # Panics
    /// If the message exceeds the limits: outgoing messages are bounded where they are made.
    #[must_use]
    pub fn encode(message: &Message, payload: Option<Buffer>) -> Self {
        let kind = Kind::of(message);
        // Small headers, of which there are many, fit without a second allocation.
        let mut head = Vec::with_capacity(PREFIX_BYTES + SMALL_HEADER_BYTES_MAX);
        head.resize(PREFIX_BYTES, 0);
        append_record(message, &mut head);
        let prefix = Prefix {
            kind,
            header_bytes: head.len() - PREFIX_BYTES,
            payload_bytes: payload.as_ref().map_or(0, Buffer::byte_count),
        };
        assert!(prefix.header_bytes <= kind.header_bytes_max(), "a header of {} bytes", prefix.header_bytes);
        assert!(
            prefix.payload_bytes <= kind.payload_bytes_max(),
            "a payload of {} bytes",
            prefix.payload_bytes
        );
        head[..PREFIX_BYTES].copy_from_slice(&prefix.encode());
        seal(&mut head, payload.as_ref().map_or(&[], Buffer::bytes));
        Self { head, payload }
    }

    /// The message in this frame, checked against every rule that needs no context.
    ///
    /// # Errors
    /// The bytes are invalid, or the message breaks a rule.
    pub fn decode(&self) -> Result<Message, WireError> {
        let (prefix, header) = self.head.split_first_chunk::<PREFIX_BYTES>().ok_or(WireError::Length)?;
        let prefix = Prefix::decode(*prefix)?;
        let payload = self.payload.as_ref().map_or(&[][..], Buffer::bytes);
        if header.len() != prefix.header_bytes || payload.len() != prefix.payload_bytes {
            return Err(WireError::Length);
        }
        if self.head[CHECKSUM_AT..PREFIX_BYTES] != checksum(&self.head, payload) {
            return Err(WireError::Changed);
        }
        let decoded = match prefix.kind {
            Kind::Control | Kind::Urgent => {
                decode_within::<_, { 4 * CONTROL_HEADER_BYTES_MAX }>(header, CONTROL_HEADER_BYTES_MAX)
            }
            Kind::ChunkBatch => {
                decode_within::<_, { 4 * CHUNK_BATCH_HEADER_BYTES_MAX }>(header, CHUNK_BATCH_HEADER_BYTES_MAX)
            }
            Kind::Segment | Kind::Data => {
                decode_within::<_, { 4 * SMALL_HEADER_BYTES_MAX }>(header, SMALL_HEADER_BYTES_MAX)
            }
        };
        let message: Message = decoded.map_err(|_| WireError::Header)?;
        if Kind::of(&message) != prefix.kind || !is_encoding_of(header, &message) {
            return Err(WireError::Header);
        }
        message.validate()?;
        Ok(message)
    }

    /// How soon the frame is sent: its message's priority.
    #[must_use]
    pub fn priority(&self) -> Priority {
        if self.head.get(KIND_AT) == Some(&(Kind::Urgent as u8)) {
            Priority::Urgent
        } else {
            Priority::Normal
        }
    }

    /// All bytes of the frame, as they are sent on a stream.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        self.head.len() + self.payload.as_ref().map_or(0, Buffer::byte_count)
    }
}

/// Writes the checksum of a frame with this prefix, header and payload.
///
/// # Panics
/// If `head` is shorter than a prefix.
pub fn seal(head: &mut [u8], payload: &[u8]) {
    let checksum = checksum(head, payload);
    head[CHECKSUM_AT..PREFIX_BYTES].copy_from_slice(&checksum);
}

/// The checksum of a frame: all of `head` but the checksum itself, and the payload.
fn checksum(head: &[u8], payload: &[u8]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    for part in [&head[..CHECKSUM_AT], &head[PREFIX_BYTES..], payload] {
        hasher.update(part);
    }
    hasher.finalize().to_le_bytes()
}

/// Appends a table message to a stream: its length, four bytes in little-endian order, and its bytes.
///
/// # Panics
/// If it exceeds [`TABLE_MESSAGE_BYTES_MAX`]: outgoing messages are bounded where they are made.
pub fn encode_table_message(message: &TableMessage, stream: &mut Vec<u8>) {
    let start = stream.len();
    stream.extend_from_slice(&[0; 4]);
    append_record(message, stream);
    let length = stream.len() - start - 4;
    assert!(length <= TABLE_MESSAGE_BYTES_MAX, "a message of {length} bytes");
    stream[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
}

/// Decodes a table message from its bytes, without the length.
///
/// # Errors
/// The bytes are no message, have more bytes after it, or the message breaks a rule.
pub fn decode_table_message(bytes: &[u8]) -> Result<TableMessage, WireError> {
    let message = decode_in_proportion::<TableMessage, { 4 * TABLE_MESSAGE_BYTES_MAX }>(
        bytes,
        TABLE_MESSAGE_BYTES_MAX,
    )?;
    if message.is_valid() { Ok(message) } else { Err(WireError::Header) }
}
