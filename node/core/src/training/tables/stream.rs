//! The way that words take: one stream to each member and one from it, cut into segments.

use peergrad_collectives::credit::LinkCredits;
use peergrad_protocol::limits::TABLE_MESSAGE_BYTES_MAX;
use peergrad_protocol::message::TrainingMessage;
use peergrad_protocol::wire::{decode_table_message, encode_table_message};
use peergrad_protocol::{Frame, Pool, Rank};

use super::TableEngine;
use crate::io::{Output, Reject};
use crate::state::shard_map::ShardMap;
use crate::table::server::Outbox;

/// Words to and from another member.
#[derive(Default)]
pub(super) struct MessageStream {
    /// To be sent, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// The beginning of a message that has not come as a whole.
    incoming: Vec<u8>,
}

impl MessageStream {
    /// Whether so much waits to be sent that questions have to wait, too.
    pub(super) fn is_backlogged(&self) -> bool {
        self.out.len() - self.sent > BACKLOG_BYTES
    }
}

/// Bytes that wait for credit, beyond which questions do.
const BACKLOG_BYTES: usize = 4 << 20;

impl TableEngine {
    /// Puts words on their way.
    pub(super) fn send(&mut self, out: Outbox) {
        for (to, message) in out {
            if to == self.me {
                self.to_self.push_back(message);
            } else {
                encode_table_message(&message, &mut self.streams[to.index()].out);
            }
        }
    }

    /// Takes in a segment of another member's words.
    pub(super) fn receive(&mut self, from: Rank, bytes: &[u8]) -> Result<(), Reject> {
        let mut incoming = std::mem::take(&mut self.streams[from.index()].incoming);
        incoming.extend_from_slice(bytes);
        let (mut read, mut refused) = (0, Ok(()));
        while let Some((length, rest)) = incoming[read..].split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*length) as usize;
            if length > TABLE_MESSAGE_BYTES_MAX {
                // Whatever follows cannot be told apart.
                return Err(Reject::MalformedTableMessage);
            }
            let Some(bytes) = rest.get(..length) else { break };
            read += 4 + length;
            let message = decode_table_message(bytes).map_err(|_| Reject::MalformedTableMessage)?;
            refused = refused.and(self.on_message(from, message).map_err(Reject::Table));
            self.deliver_to_self();
        }
        incoming.drain(..read);
        self.streams[from.index()].incoming = incoming;
        refused
    }

    /// Sends what credit allows.
    pub(super) fn flush(
        &mut self,
        links: &mut LinkCredits,
        shard_map: &ShardMap,
        segments: &Pool,
        out: &mut Vec<Output>,
    ) {
        let (view, len) = (shard_map.digest, shard_map.sharding.segment_elements * size_of::<f32>());
        for (rank, stream) in self.streams.iter_mut().enumerate() {
            while stream.sent < stream.out.len() && links.take_for_one_hop(rank) {
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
