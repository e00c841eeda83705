//! Bugs in the merge of two branches: in the snapshot that one branch gives, and in when it yields.

use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::message::{ChunkContent, MergeAccept, MergeMessage, Message};
use peergrad_protocol::{Buffer, Frame};

use crate::filters::{Envelope, FrameAction};

/// A snapshot's values are changed, and its digest fits them.
pub(super) fn corrupt_snapshot(envelope: &Envelope<'_>) -> FrameAction {
    let (Some(Message::Merge(MergeMessage::SnapshotChunks(mut chunks))), Some(payload)) =
        (envelope.message(), &envelope.frame.payload)
    else {
        return FrameAction::Pass;
    };
    if chunks.batch.content != ChunkContent::Values {
        return FrameAction::Pass;
    }
    let mut values = payload.to_vec();
    values[0] += 1.0;
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    chunks.batch.digest = ContentDigest::of(&bytes);
    FrameAction::Replace(vec![Frame::encode(
        &MergeMessage::SnapshotChunks(chunks).into(),
        Some(Buffer::from_bytes(&bytes)),
    )])
}

/// A merge offer leaves out some samples that the branch has trained.
pub(super) fn hide_samples(envelope: &Envelope<'_>) -> FrameAction {
    let Some(Message::Merge(MergeMessage::Offer(mut will))) = envelope.message() else {
        return FrameAction::Pass;
    };
    let forgotten = will.cursor.position.min(HIDDEN_SAMPLES);
    will.cursor.position -= forgotten;
    will.trained -= forgotten;
    if !will.cursor.is_valid() {
        return FrameAction::Pass;
    }
    FrameAction::Replace(vec![Frame::encode(&MergeMessage::Offer(will).into(), None)])
}

/// How many samples it leaves out.
const HIDDEN_SAMPLES: u64 = 64;

/// A branch is told that it is merged when the other one has only heard of it.
pub(super) fn end_early(envelope: &Envelope<'_>) -> FrameAction {
    match envelope.message() {
        Some(Message::Merge(MergeMessage::Probe(meeting)))
            if meeting.answers != 0 && meeting.yields.is_some() =>
        {
            let view = meeting.yields.expect("just looked at");
            let contacts = vec![meeting.coordinator];
            let words = MergeAccept { view, question: meeting.answers, is_merged: true, contacts };
            FrameAction::Replace(vec![Frame::encode(&MergeMessage::Accept(words).into(), None)])
        }
        _ => FrameAction::Pass,
    }
}
