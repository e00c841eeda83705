//! Message streams: one to each member and one from it, cut into segments.

use std::collections::VecDeque;

use peergrad_protocol::limits::TABLE_MESSAGE_BYTES_MAX;
use peergrad_protocol::message::TrainingMessage;
use peergrad_protocol::table::TableMessage;
use peergrad_protocol::wire::{decode_table_message, encode_table_message};
use peergrad_protocol::{Buffer, Frame, Rank};

use super::super::base::EngineBase;
use super::TableEngine;
use crate::io::{Output, Reject};
use crate::table::server::Outbox;

/// The streams to and from all members of a view.
#[derive(Default)]
pub(super) struct MessageStreams {
    /// Messages from this member to itself.
    pub(super) to_self: VecDeque<TableMessage>,
    /// Segments that have arrived and are not taken in yet, because the next view is being agreed on.
    pub(super) early: VecDeque<(Rank, Buffer)>,
    by_rank: Vec<MessageStream>,
}

/// Messages to and from another member.
#[derive(Clone, Default)]
struct MessageStream {
    /// Encoded messages, of which the bytes from `sent` on are still to be sent.
    out: Vec<u8>,
    sent: usize,
    /// The first part of a message that has not arrived completely.
    incoming: Vec<u8>,
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
}

/// The number of bytes waiting for credit from which on requests wait.
const BACKLOG_BYTES: usize = 4 << 20;

impl TableEngine {
    /// Appends messages to their streams.
    pub(super) fn send(&mut self, out: Outbox) {
        for (to, message) in out {
            if to == self.base.rank {
                self.streams.to_self.push_back(message);
            } else {
                encode_table_message(&message, &mut self.streams.by_rank[to.index()].out);
            }
        }
    }

    /// Takes in a segment of another member's messages.
    pub(super) fn receive_bytes(&mut self, from: Rank, bytes: &[u8]) -> Result<(), Reject> {
        let mut incoming = std::mem::take(&mut self.streams.by_rank[from.index()].incoming);
        incoming.extend_from_slice(bytes);
        let (mut read, mut refused) = (0, Ok(()));
        while let Some((length, rest)) = incoming[read..].split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*length) as usize;
            if length > TABLE_MESSAGE_BYTES_MAX {
                // Without the message's length, nothing after it can be decoded.
                return Err(Reject::MalformedTableMessage);
            }
            let Some(bytes) = rest.get(..length) else { break };
            read += 4 + length;
            let message = decode_table_message(bytes).map_err(|_| Reject::MalformedTableMessage)?;
            refused = refused.and(self.on_message(from, message).map_err(Reject::Table));
            self.deliver_to_self();
        }
        incoming.drain(..read);
        self.streams.by_rank[from.index()].incoming = incoming;
        refused
    }

    /// Sends what credit allows.
    pub(super) fn flush(&mut self, out: &mut Vec<Output>) {
        let EngineBase { flow_control, shard_map, segments, .. } = &mut self.base;
        let (view, len) = (shard_map.digest, shard_map.sharding.segment_elements * size_of::<f32>());
        for (rank, stream) in self.streams.by_rank.iter_mut().enumerate() {
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
