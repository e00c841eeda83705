//! The messages of training that a member receives in its view, now or before it has entered that view.

use peergrad_protocol::message::{Message, TrainingMessage};
use peergrad_protocol::{Buffer, Frame, PeerId, Rank};

use super::{ActiveMember, evaluations};
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
        TrainingMessage::SaveCheckpoint(save) => {
            if active.training.view().rank(&from) != Some(Rank(0)) {
                return Err(Reject::OutOfPlace);
            }
            active.save_after(cx.now, save.steps);
            return Ok(());
        }
        TrainingMessage::Evaluated(evaluated) => {
            evaluations::note(active, cx, from, evaluated);
            return Ok(());
        }
        // The arrival of data shows that training advances.
        TrainingMessage::Segment(_) | TrainingMessage::ChunkBatch(_) | TrainingMessage::Tables => {
            active.membership.members.data_arrived(cx.now);
        }
        _ => {}
    }
    active.training.receive(from, message, payload, cx.out)
}

/// Handles the frames that were kept for the view that has just been entered.
pub(super) fn replay_early(active: &mut ActiveMember, cx: &mut NodeContext<'_>) {
    for (from, frames) in cx.node.early_frames.take(active.training.base().digest()) {
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
