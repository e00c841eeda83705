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

/// The filters of a cluster, in the order in which they are asked.
#[derive(Default)]
pub(crate) struct Filters {
    /// The first one is asked first.
    filters: Vec<Box<dyn FrameFilter>>,
}

impl Filters {
    /// Adds a filter after the existing ones.
    pub(crate) fn add(&mut self, filter: Box<dyn FrameFilter>) {
        self.filters.push(filter);
    }

    /// The first answer other than `Pass`.
    pub(crate) fn on_frame(&mut self, envelope: &Envelope<'_>) -> FrameAction {
        let mut verdicts = self.filters.iter_mut().map(|filter| filter.on_frame(envelope));
        verdicts.find(|verdict| !matches!(verdict, FrameAction::Pass)).unwrap_or(FrameAction::Pass)
    }

    /// How many segments of credit arrive after all filters.
    pub(crate) fn on_credit(&mut self, from: HostId, to: HostId, segments: u32) -> u32 {
        self.filters.iter_mut().fold(segments, |segments, filter| filter.on_credit(from, to, segments))
    }

    /// Whether no filter conceals from one end of a link that the link is down.
    pub(crate) fn hears_link_down(&mut self, at: HostId, of: HostId) -> bool {
        self.filters.iter_mut().all(|filter| filter.hears_link_down(at, of))
    }
}
