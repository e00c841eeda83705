//! Frame filters: code that sees every frame before the network takes it, and decides whether it is sent.
//!
//! A filter expresses faults that a timed script cannot: drop the third segment of step 5, flip a bit, answer in another peer's name.
//! Filters are asked in the order in which they were added, and the first answer other than `Pass` counts. Closures are filters.

use std::time::Duration;

use peergrad_protocol::message::Message;
use peergrad_protocol::{Frame, Instant};

use crate::host::HostId;

/// Code that decides about frames.
pub trait FrameFilter: Send {
    /// Decides about this frame.
    fn on_frame(&mut self, envelope: &Envelope<'_>) -> FrameAction;

    /// How many segments of credit arrive when one end of a link returns `segments` to the other.
    fn on_credit(&mut self, _from: HostId, _to: HostId, segments: u32) -> u32 {
        segments
    }

    /// Whether one end of a link is notified that the link is down.
    fn hears_link_down(&mut self, _at: HostId, _of: HostId) -> bool {
        true
    }
}

impl<F: FnMut(&Envelope<'_>) -> FrameAction + Send> FrameFilter for F {
    fn on_frame(&mut self, envelope: &Envelope<'_>) -> FrameAction {
        self(envelope)
    }
}

/// A frame about to be sent.
#[derive(Debug)]
pub struct Envelope<'a> {
    /// When it is sent.
    pub at: Instant,
    /// The sender.
    pub from: HostId,
    /// The receiver.
    pub to: HostId,
    /// Its bytes.
    pub frame: &'a Frame,
}

impl Envelope<'_> {
    /// The decoded message; `None` if the bytes are no valid frame.
    #[must_use]
    pub fn message(&self) -> Option<Message> {
        self.frame.decode().ok()
    }
}

/// What to do with a frame.
#[derive(Debug)]
pub enum FrameAction {
    /// The next filter decides; after the last one it is sent.
    Pass,
    /// The frame is lost, which a reliable transport would never do.
    Drop,
    /// The frame arrives later by this duration, and so do the frames behind it on its link.
    Delay(Duration),
    /// These frames are sent in its place, from the same sender to the same receiver.
    Replace(Vec<Frame>),
}
