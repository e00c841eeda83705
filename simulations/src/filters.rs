//! Rules: code that sees every frame before the network takes it, and says what becomes of it.
//!
//! A filter stands for what no timed script can say: drop the third segment of step 5, flip a bit, answer for somebody else.
//! The first verdict that is not `Pass` counts, in the order in which the filters were added. Closures are filters.

use std::time::Duration;

use peergrad_protocol::message::Message;
use peergrad_protocol::{Frame, Instant};

use crate::host::HostId;

/// Something that decides about frames.
pub trait FrameFilter: Send {
    /// What becomes of this frame.
    fn on_frame(&mut self, envelope: &Envelope<'_>) -> FrameAction;

    /// How much credit arrives when one end of a link returns `segments` to the other.
    fn on_credit(&mut self, _from: HostId, _to: HostId, segments: u32) -> u32 {
        segments
    }

    /// Whether one end of a link hears that it is gone.
    fn hears_link_down(&mut self, _at: HostId, _of: HostId) -> bool {
        true
    }
}

impl<F: FnMut(&Envelope<'_>) -> FrameAction + Send> FrameFilter for F {
    fn on_frame(&mut self, envelope: &Envelope<'_>) -> FrameAction {
        self(envelope)
    }
}

/// A frame about to leave.
#[derive(Debug)]
pub struct Envelope<'a> {
    /// When.
    pub at: Instant,
    /// The sender.
    pub from: HostId,
    /// The receiver.
    pub to: HostId,
    /// Its bytes.
    pub frame: &'a Frame,
}

impl Envelope<'_> {
    /// What it says; `None` if it is no frame at all.
    #[must_use]
    pub fn message(&self) -> Option<Message> {
        self.frame.decode().ok()
    }
}

/// What becomes of a frame.
#[derive(Debug)]
pub enum FrameAction {
    /// The next filter decides; after the last one it is sent.
    Pass,
    /// It vanishes, as no reliable transport would have it.
    Drop,
    /// It takes so much longer, and holds up what follows on its link.
    Delay(Duration),
    /// These are sent in its place, from the same sender to the same receiver.
    Replace(Vec<Frame>),
}
