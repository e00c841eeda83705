//! The way that words take: one stream to each member and one from it, cut into segments.

use peergrad_collectives::links::Links;
use peergrad_protocol::limits::WORD_BYTES_MAX;
use peergrad_protocol::message::{Message, Words};
use peergrad_protocol::wire::{decode_word, encode_word};
use peergrad_protocol::{Frame, Pool, Rank};

use super::Tables;
use crate::geometry::Geometry;
use crate::io::{Output, Reject};
use crate::table::keeper::Outbox;

/// Words to and from another member.
#[derive(Default)]
pub(super) struct Stream {
    /// To be sent, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// The beginning of a word that has not come as a whole.
    incoming: Vec<u8>,
}

impl Stream {
    /// Whether so much waits to be sent that questions have to wait, too.
    pub(super) fn is_long(&self) -> bool {
        self.out.len() - self.sent > LONG
    }
}

/// Bytes that wait for credit, beyond which questions do.
const LONG: usize = 4 << 20;

impl Tables {
    /// Puts words on their way.
    pub(super) fn post(&mut self, out: Outbox) {
        for (to, word) in out {
            if to == self.me {
                self.own.push_back(word);
            } else {
                encode_word(&word, &mut self.streams[to.index()].out);
            }
        }
    }

    /// Takes in a segment of another member's words.
    pub(super) fn take(&mut self, from: Rank, bytes: &[u8]) -> Result<(), Reject> {
        let mut incoming = std::mem::take(&mut self.streams[from.index()].incoming);
        incoming.extend_from_slice(bytes);
        let (mut read, mut refused) = (0, Ok(()));
        while let Some((length, rest)) = incoming[read..].split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*length) as usize;
            if length > WORD_BYTES_MAX {
                // Whatever follows cannot be told apart.
                return Err(Reject::Word);
            }
            let Some(bytes) = rest.get(..length) else { break };
            read += 4 + length;
            let word = decode_word(bytes).map_err(|_| Reject::Word)?;
            refused = refused.and(self.hear(from, word).map_err(Reject::Table));
            self.hear_own();
        }
        incoming.drain(..read);
        self.streams[from.index()].incoming = incoming;
        refused
    }

    /// Sends what credit allows.
    pub(super) fn pump(
        &mut self,
        links: &mut Links,
        geometry: &Geometry,
        segments: &Pool,
        out: &mut Vec<Output>,
    ) {
        let (view, len) = (geometry.digest, geometry.cut.segment_elements * size_of::<f32>());
        for (rank, stream) in self.streams.iter_mut().enumerate() {
            while stream.sent < stream.out.len() && links.take_for_one_hop(rank) {
                let end = stream.out.len().min(stream.sent + len);
                let bytes = &stream.out[stream.sent..end];
                let mut payload = segments.take_bytes(bytes.len());
                payload.bytes_mut().copy_from_slice(bytes);
                stream.sent = end;
                let frame = Frame::encode(&Message::Words(Words { view }), Some(payload));
                out.push(Output::Send { to: geometry.view.members[rank].peer, frame });
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
