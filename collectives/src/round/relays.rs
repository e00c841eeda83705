//! Segments that have arrived in a ring and wait for credit to be sent on.

use std::collections::VecDeque;

use peergrad_protocol::Buffer;
use peergrad_protocol::message::Phase;

use super::SegmentLabel;

/// The waiting segments of each half of a round, in the order in which they arrived.
#[derive(Debug, Default)]
pub(super) struct Relays {
    reduce: VecDeque<(SegmentLabel, Buffer)>,
    gather: VecDeque<(SegmentLabel, Buffer)>,
}

impl Relays {
    pub(super) fn push(&mut self, label: SegmentLabel, payload: Buffer) {
        self.of(label.phase).push_back((label, payload));
    }

    /// Takes the oldest one of this half.
    pub(super) fn take(&mut self, phase: Phase) -> Option<(SegmentLabel, Buffer)> {
        self.of(phase).pop_front()
    }

    /// Whether one of this half waits.
    pub(super) fn has(&mut self, phase: Phase) -> bool {
        !self.of(phase).is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.reduce.is_empty() && self.gather.is_empty()
    }

    fn of(&mut self, phase: Phase) -> &mut VecDeque<(SegmentLabel, Buffer)> {
        match phase {
            Phase::Reduce => &mut self.reduce,
            Phase::Gather => &mut self.gather,
            Phase::Mirror => unreachable!("mirrored sums are not passed on"),
        }
    }
}
