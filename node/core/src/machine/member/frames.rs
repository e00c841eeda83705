//! The messages of training that a member receives in its view, now or before it has entered that view.

use peergrad_protocol::message::{Message, TrainingMessage};
use peergrad_protocol::{Buffer, Frame, Instant, PeerId, Rank};

use super::ActiveMember;
use crate::io::Reject;
use crate::machine::context::NodeContext;
use crate::machine::role::Role;

/// Handles a message of the present view.
pub(super) fn receive(
    active: &mut ActiveMember,
    cx: &mut NodeContext<'_>,
    from: PeerId,
    message: TrainingMessage,
    payload: Option<Buffer>,
) -> Result<(), Reject> {
    match message {
        TrainingMessage::Segment(segment) => {
            let payload = data(active, cx.now, payload, Reject::Segment)?;
            active.training.receive_segment(from, segment, payload, cx.out)
        }
        TrainingMessage::ChunkBatch(chunk_batch) => {
            let payload = data(active, cx.now, payload, Reject::Chunk)?;
            active.training.chunk_batch(from, &chunk_batch, &payload, cx.out)
        }
        TrainingMessage::Tables => {
            let payload = data(active, cx.now, payload, Reject::MalformedTableMessage)?;
            active.training.on_table_frame(from, payload, cx.out)
        }
        TrainingMessage::WantChunks(want) => active.training.receive_chunk_request(from, want, cx.out),
        TrainingMessage::Complete(complete) => active.training.receive_complete(from, complete),
        TrainingMessage::Closed(closed) => active.training.receive_closed(from, closed),
        TrainingMessage::StepProgress(offer) => active.training.receive_offer(from, offer, cx.out),
        TrainingMessage::StepContributors(chosen) => active.training.receive_choice(from, chosen, cx.out),
        // Only the coordinator of this branch sends it.
        TrainingMessage::TakeSnapshot(save) => {
            active.training.snapshot_after(save.steps);
            Ok(())
        }
        TrainingMessage::SaveCheckpoint(save) => {
            if active.training.view().rank(&from) != Some(Rank(0)) {
                return Err(Reject::OutOfPlace);
            }
            active.save_after(cx.now, save.steps);
            Ok(())
        }
    }
}

/// The payload of a message with data, whose arrival shows that training advances. Without a payload the message is `malformed`.
fn data(
    active: &mut ActiveMember,
    now: Instant,
    payload: Option<Buffer>,
    malformed: Reject,
) -> Result<Buffer, Reject> {
    active.membership.data_arrived(now);
    payload.ok_or(malformed)
}

/// Handles the frames that were kept for the view that has just been entered.
pub(super) fn replay_early(active: &mut ActiveMember, cx: &mut NodeContext<'_>) {
    for (from, frames) in cx.node.early_frames.take(active.training.digest()) {
        for frame in frames {
            if let Err(reject) = replay(active, cx, from, frame) {
                active.reject(cx, from, reject);
            }
        }
    }
}

fn replay(
    active: &mut ActiveMember,
    cx: &mut NodeContext<'_>,
    from: PeerId,
    frame: Frame,
) -> Result<(), Reject> {
    match cx.node.cache.message(&frame)? {
        Message::InView { view, message } => active.on_view_message(cx, from, view, message, frame),
        // Only messages of a view are kept.
        _ => Ok(()),
    }
}
