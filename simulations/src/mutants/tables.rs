//! Bugs in the messages of tables.

use peergrad_protocol::message::{Message, TrainingMessage};
use peergrad_protocol::table::TableMessage;
use peergrad_protocol::wire::{decode_table_message, encode_table_message};
use peergrad_protocol::{Buffer, Frame};

use crate::filters::{Envelope, FrameAction};
use crate::host::HostId;

/// Leaves nothing in the updates of chunks that this host gets.
pub(super) fn empty_updates(envelope: &Envelope<'_>, to: HostId) -> FrameAction {
    let Some(Message::InView { view, message: TrainingMessage::Tables }) = envelope.message() else {
        return FrameAction::Pass;
    };
    let Some(payload) = envelope.frame.payload.as_ref().filter(|_| envelope.to == to) else {
        return FrameAction::Pass;
    };
    let (mut bytes, mut rest) = (Vec::new(), payload.bytes());
    while let Some((length, others)) = rest.split_first_chunk::<4>() {
        // Frames with parts of messages pass.
        let Some((message, others)) = others.split_at_checked(u32::from_le_bytes(*length) as usize) else {
            return FrameAction::Pass;
        };
        let Ok(mut message) = decode_table_message(message) else { return FrameAction::Pass };
        if let TableMessage::ReplicaUpdate(update) = &mut message {
            update.chunks.clear();
        }
        encode_table_message(&message, &mut bytes);
        rest = others;
    }
    let frame = Frame::encode(&TrainingMessage::Tables.in_view(view), Some(Buffer::from_bytes(&bytes)));
    FrameAction::Replace(vec![frame])
}
