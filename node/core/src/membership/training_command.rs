//! What membership asks of training, while members choose the next view.

use peergrad_protocol::StepNumber;

/// What membership asks of training.
#[derive(Debug, PartialEq)]
pub(crate) enum TrainingCommand {
    /// Stop at once.
    Freeze,
    /// Leave this view before this step.
    StopBefore(StepNumber),
    /// Take that step in this view after all: no change happens before it.
    Continue,
}
