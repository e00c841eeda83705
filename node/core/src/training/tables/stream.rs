//! Message streams: one to each member and one from it, cut into segments.

use std::collections::VecDeque;

use peergrad_protocol::limits::TABLE_MESSAGE_BYTES_MAX;
use peergrad_protocol::message::TrainingMessage;
use peergrad_protocol::table::TableMessage;
use peergrad_protocol::wire::{decode_table_message, encode_table_message};
use peergrad_protocol::{Buffer, Frame, Rank};

use super::super::base::EngineBase;
use crate::io::{Output, Reject};
use crate::table::server::Outbox;

/// The streams to and from all members of a view.
#[derive(Default)]
pub(super) struct MessageStreams {
    /// Messages from this member to itself.
    pub(super) to_self: VecDeque<TableMessage>,
    /// Segments that have arrived and are not taken in yet, because the next view is being agreed on.
    pub(super) early: VecDeque<(Rank, Buffer)>,
    /// The streams to and from each member, by rank. This member's own ones stay empty.
    by_rank: Vec<MessageStream>,
}

/// Messages to and from another member.
#[derive(Clone, Default)]
struct MessageStream {
    /// Encoded messages, of which the bytes from `sent` on are still to be sent.
    out: Vec<u8>,
    /// How many bytes of `out` were sent.
    sent: usize,
    /// The first part of a message that has not arrived completely.
    incoming: Vec<u8>,
}

/// The bytes that have arrived from a member, while they are read.
pub(super) struct Incoming {
    /// The bytes: first what was left of an incomplete message, then a new segment.
    bytes: Vec<u8>,
    /// The number of bytes that are read.
    read: usize,
}

impl MessageStreams {
    /// Empty streams to and from all members of a view.
    pub(super) fn new(member_count: usize) -> Self {
        Self { by_rank: vec![MessageStream::default(); member_count], ..Self::default() }
    }

    /// Whether so many bytes wait for this member that its requests have to wait, too.
    pub(super) fn is_backlogged(&self, rank: Rank) -> bool {
        let MessageStream { out, sent, .. } = &self.by_rank[rank.index()];
        out.len() - sent > BACKLOG_BYTES
    }

    /// Appends messages of this member, which has this rank, to their streams.
    pub(super) fn append(&mut self, me: Rank, out: Outbox) {
        for (to, message) in out {
            if to == me {
                self.to_self.push_back(message);
            } else {
                encode_table_message(&message, &mut self.by_rank[to.index()].out);
            }
        }
    }

    /// Appends a segment to what has arrived from a member, and takes all of that out to be read.
    pub(super) fn extend_incoming(&mut self, from: Rank, segment: &[u8]) -> Incoming {
        let mut bytes = std::mem::take(&mut self.by_rank[from.index()].incoming);
        bytes.extend_from_slice(segment);
        Incoming { bytes, read: 0 }
    }

    /// Keeps what is not a whole message yet until more of it arrives.
    pub(super) fn keep_incoming(&mut self, from: Rank, Incoming { mut bytes, read }: Incoming) {
        bytes.drain(..read);
        self.by_rank[from.index()].incoming = bytes;
    }

    /// Sends what credit allows.
    pub(super) fn flush(&mut self, base: &mut EngineBase, out: &mut Vec<Output>) {
        let EngineBase { flow_control, shard_map, segments, .. } = base;
        let (view, len) = (shard_map.digest, shard_map.sharding.segment_elements * size_of::<f32>());
        for (rank, stream) in self.by_rank.iter_mut().enumerate() {
            while stream.sent < stream.out.len() && flow_control.links.take_for_one_hop(rank) {
                let end = stream.out.len().min(stream.sent + len);
                let bytes = &stream.out[stream.sent..end];
                let mut payload = segments.take_bytes(bytes.len());
                payload.bytes_mut().copy_from_slice(bytes);
                stream.sent = end;
                let frame = Frame::encode(&TrainingMessage::Tables.in_view(view), Some(payload));
                out.push(Output::Send { to: shard_map.view.members[rank].peer, frame });
            }
            if stream.sent == stream.out.len() {
                stream.out.clear();
                stream.sent = 0;
            } else if stream.sent > stream.out.len() / 2 {
                stream.out.drain(..stream.sent);
                stream.sent = 0;
            }
        }
    }
}

impl Incoming {
    /// The next message; `None` if no whole one is left.
    ///
    /// # Errors
    /// The bytes are not what a correct member sends.
    pub(super) fn next_message(&mut self) -> Result<Option<TableMessage>, Reject> {
        let Some((length, rest)) = self.bytes[self.read..].split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > TABLE_MESSAGE_BYTES_MAX {
            // Without the message's length, nothing after it can be decoded.
            return Err(Reject::MalformedTableMessage);
        }
        let Some(bytes) = rest.get(..length) else { return Ok(None) };
        let message = decode_table_message(bytes).map_err(|_| Reject::MalformedTableMessage)?;
        self.read += 4 + length;
        Ok(Some(message))
    }
}

/// The number of bytes waiting for credit from which on requests wait.
const BACKLOG_BYTES: usize = 4 << 20;
