//! The messages of training that a member receives in its view, now or before it has entered that view.

use peergrad_protocol::message::{Message, TrainingMessage};
use peergrad_protocol::{Buffer, Frame, PeerId, Rank, StepNumber};

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
        TrainingMessage::Evaluating(begun) => {
            if !may_be_evaluated(active, begun.steps) {
                return Err(Reject::OutOfPlace);
            }
            evaluations::begun(active, from, begun.steps);
            return Ok(());
        }
        TrainingMessage::Evaluated(evaluated) => {
            if !may_be_evaluated(active, evaluated.steps) || evaluated.best.steps > evaluated.steps {
                return Err(Reject::OutOfPlace);
            }
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

/// Whether a member may evaluate the parameters after so many steps by now: it is at most one step ahead.
fn may_be_evaluated(active: &ActiveMember, steps: StepNumber) -> bool {
    let is_due =
        active.training.steps().is_some_and(|engine| engine.state().evaluations.are_due_after(steps));
    is_due && steps <= active.training.step().next()
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
