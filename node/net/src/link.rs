//! The link: a reliable, resumable way from one peer to another, in both directions.
//!
//! A parcel service keeps a copy of every parcel until the receipt comes back. If the road is cut, the driver asks at the other
//! end how many parcels have arrived, and continues after those.
//!
//! ```text
//!   outbox --- frames -----------------------> inbox      one lane in each direction, which the sender of the frames
//!          <-- received, consumed segments ---            opens: a substream, or a direct lane once that stands
//! ```
//! # How it works
//! - Each end draws a random *session* for each life of a link, and a link is a pair of sessions. Frames are numbered within
//!   the pair. An end that restarted or gave up draws another session, so numbers of two lives never mix.
//! - The sender opens a lane by naming its own session and the session that it knows of the other end (41 bytes). The receiver
//!   answers with its session and the number of frames of this pair that it has (52 bytes), and the sender continues after
//!   those.
//! - A direct lane may have several connections, its *stripes*: `link/stripes.rs` finds how many, and `direct/bundle.rs` makes one stream
//!   of them.
//! - A session names the start of the peer's process. If a second process with the same identity was started later, from a copy
//!   of the data directory, the earlier process is refused and told so.
//! - The receiver writes 24 bytes back whenever something changed: the frames received, which the sender can forget, when the last one
//!   arrived, which measures the line, and the segments consumed, which are the credit for new ones. Credit for more than before counts as
//!   consumed, too. A change during a write goes into the next 24 bytes.
//! - `GOODBYE` is the last frame of an end: it is closing on purpose, and the other end need not wait for it.
//!
//! # Invariants
//! - A frame is delivered once, and only between the up and the down of its link. Urgent frames are in order, and so are the others.
//! - What may be unacknowledged on a lane follows the measured line (`link/line.rs`). The node's credit bounds the frames that wait.
//! - A lane on which nothing is acknowledged for `STALL_TIMEOUT` is closed: a stalled multiplexer and a half-open connection
//!   look the same from here, and a new connection replaces both. A direct lane is closed sooner, in favour of a substream.
//!
//! # Not here
//! Connections, redialing, and when a link is up or down: see [`network`](super::network).

mod handshake;
mod inbox;
mod incoming;
mod line;
mod outbox;
mod outgoing;
mod stripes;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use peergrad_core::io::Line;
use peergrad_protocol::wire::{PREFIX_BYTES, WireError};
use peergrad_protocol::{Frame, PeerId};
use tokio::sync::OwnedSemaphorePermit;

pub(super) use handshake::{Acknowledgement, OpenRequest, OpenResponse, SessionId, Verdict};
pub(super) use inbox::Inbox;
pub(super) use incoming::{Shared, read_opening, receive, refuse, welcome_stripe};
pub(super) use line::Uplink;
pub(super) use outbox::Outbox;
pub(super) use outgoing::{open, transmit};
pub(super) use stripes::{LaneWaiting, StripeSearch, WaitingTime};

/// One life of a link. A closed link stays closed, and frames that are sent into it are dropped.
#[derive(Debug)]
pub struct Link {
    peer: PeerId,
    theirs: SessionId,
    pub(super) outbox: Outbox,
    pub(super) inbox: Inbox,
    /// Whether its outgoing lane is a direct lane.
    is_direct: AtomicBool,
    /// Whether it leads through a relay, and so carries control messages only.
    is_relayed: AtomicBool,
}

/// Whether a connection leads through a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// It leads straight to the other end.
    Straight,
    /// It leads through a relay.
    Relayed,
}

/// The kind of connection under a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneKind {
    /// A substream of a libp2p connection.
    Substream,
    /// A TLS connection for this lane alone.
    Direct,
}

/// The events of links, in the order in which they happened.
#[derive(Debug)]
pub enum LinkEvent {
    /// The link is up: frames can be sent, and will be delivered.
    Up(Arc<Link>),
    /// A frame has arrived.
    Frame {
        /// The link on which it arrived.
        link: Arc<Link>,
        /// The bytes. Only their lengths have been checked.
        frame: Frame,
        /// Its place in the queue, which is released when this is dropped.
        room: OwnedSemaphorePermit,
    },
    /// A peer has opened a stream that no correct peer opens, or that does not carry frames.
    BadStream(PeerId),
    /// The line has been measured again.
    LineMeasured {
        /// The link.
        link: Arc<Link>,
        /// What it carries.
        line: Line,
    },
    /// All long lines together have been measured again.
    UplinkMeasured {
        /// What they carry.
        bytes_per_second: u64,
    },
    /// The other end has consumed segments, or allows more of them.
    Credit {
        /// The link.
        link: Arc<Link>,
        /// How many more than it had reported before.
        segments: u32,
    },
    /// The other end knows a process with this peer's identity that was started later.
    DuplicateIdentity {
        /// The peer that reported it.
        by: PeerId,
    },
    /// The link no longer leads through a relay, and carries tensors from now on.
    NoLongerRelayed(Arc<Link>),
    /// The addresses at which others can dial this peer have changed, or whether they can.
    ReachabilityChanged {
        /// The addresses, best first.
        addresses: Vec<String>,
        /// Whether others can dial this peer, as far as is known.
        is_reachable: bool,
    },
    /// The link is closed.
    Down {
        /// The link.
        link: Arc<Link>,
        /// Why, in words.
        reason: String,
    },
}

/// Why a lane ended.
#[derive(Debug, thiserror::Error)]
pub enum LaneError {
    /// The connection under the lane is gone.
    #[error("{}", error_text(.0))]
    Broken(#[source] io::Error),
    /// Nothing moves, although the connection seems to exist.
    #[error("no answer for {} s", STALL_TIMEOUT.as_secs())]
    Stalled,
    /// The other end speaks another version or another protocol.
    #[error(
        "the other end uses version {0} of the link format, but this peer uses version {LANE_VERSION}: use the same release on both machines"
    )]
    Version(u8),
    /// The other end takes no frames: it is a status client.
    #[error("the other end accepts no frames")]
    Unwanted,
    /// The other end sent a greeting that no peer sends.
    #[error("the opening of the lane is invalid")]
    Handshake,
    /// The bytes are not a frame.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The bytes on a direct connection are not a piece of its lane.
    #[error(transparent)]
    Piece(NotAPiece),
    /// An acknowledgement of frames that were never sent, or one that is behind an earlier acknowledgement.
    #[error("the acknowledgement does not match what was sent")]
    Acknowledgement,
}

/// The bytes on a connection of a direct lane are not a piece of the lane. A connection reports it as an [`io::Error`].
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the received bytes are not a piece of this lane")]
pub struct NotAPiece;

impl From<NotAPiece> for io::Error {
    fn from(error: NotAPiece) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

impl From<io::Error> for LaneError {
    fn from(error: io::Error) -> Self {
        match error.get_ref().and_then(|cause| cause.downcast_ref()) {
            Some(not_a_piece) => Self::Piece(*not_a_piece),
            None => Self::Broken(error),
        }
    }
}

impl LaneError {
    /// Whether the other end broke the protocol.
    #[must_use]
    pub fn is_violation(&self) -> bool {
        !matches!(self, Self::Broken(_) | Self::Stalled | Self::Unwanted)
    }

    /// Whether the other end is of another release, as far as its bytes say.
    pub(super) fn is_other_release(&self) -> bool {
        matches!(self, Self::Version(_) | Self::Wire(WireError::Version(_)))
    }
}

impl Link {
    /// A link that begins over `route`.
    pub(super) fn new(peer: PeerId, theirs: SessionId, route: Route) -> Self {
        Self {
            peer,
            theirs,
            outbox: Outbox::default(),
            inbox: Inbox::default(),
            is_direct: AtomicBool::new(false),
            is_relayed: AtomicBool::new(route == Route::Relayed),
        }
    }

    /// Its line is one of those that share this uplink.
    pub(super) fn share(&self, uplink: Uplink) {
        self.outbox.share(uplink);
    }

    /// A ping of libp2p to the peer has come back, not through a relay. On a substream, frames have the same connection, and it says nothing.
    pub(super) fn note_ping(&self, round_trip: Duration) {
        if self.is_direct() {
            self.outbox.note_ping(round_trip);
        }
    }

    /// Whether the link leads through a relay, and so carries no tensors. Once this is false it stays false.
    #[must_use]
    pub fn is_relayed(&self) -> bool {
        self.is_relayed.load(Ordering::Relaxed)
    }

    /// The link carries tensors from now on.
    pub(super) fn end_relay(&self) {
        self.is_relayed.store(false, Ordering::Relaxed);
    }

    /// The peer at the other end.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// Whether frames are in flight and are being acknowledged.
    pub(super) fn is_moving(&self) -> bool {
        self.outbox.is_moving()
    }

    /// Whether the outgoing lane is, or last was, a direct lane.
    pub(super) fn is_direct(&self) -> bool {
        self.is_direct.load(Ordering::Relaxed)
    }

    /// How many connections carry the frames to the peer; `None` unless they go over a direct lane.
    pub(super) fn stripe_count(&self) -> Option<usize> {
        self.is_direct().then(|| self.outbox.stripe_count())
    }

    /// Whether much that was sent has not arrived yet.
    pub(super) fn is_busy(&self) -> bool {
        self.outbox.is_busy()
    }

    pub(super) fn theirs(&self) -> SessionId {
        self.theirs
    }

    /// The line to the other end; `None` before the first measurement.
    pub(crate) fn line(&self) -> Option<Line> {
        self.outbox.line()
    }

    /// Queues a frame behind the waiting ones; an urgent one only behind urgent ones.
    pub fn send(&self, frame: Frame) {
        self.outbox.push(frame);
    }

    /// Tells the other end that this one has consumed segments.
    pub fn give_credit(&self, segments: u32) {
        self.inbox.consume(segments);
    }

    /// Waits until the other end has acknowledged everything, with our goodbye, or the link is closed.
    ///
    /// Call it only for a link that is being closed: on another one it waits until that happens.
    pub async fn drained(&self) {
        self.outbox.drained().await;
    }

    pub(super) fn finish(&self) {
        self.outbox.finish(Frame { head: GOODBYE.to_vec(), payload: None });
    }

    pub(super) fn close(&self) {
        self.outbox.close();
        self.inbox.close();
    }
}

/// The system's error: the layers above a socket wrap it.
pub(super) fn system_error(error: &io::Error) -> &io::Error {
    let mut cause = error.get_ref().map(|cause| cause as &(dyn std::error::Error + 'static));
    while let Some(wrapped) = cause {
        if let Some(inner) = wrapped.downcast_ref::<io::Error>() {
            return system_error(inner);
        }
        cause = wrapped.source();
    }
    error
}

/// The system's error about a broken connection, as people say it.
pub(super) fn error_text(error: &io::Error) -> String {
    let error = system_error(error);
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::WriteZero | io::ErrorKind::BrokenPipe => {
            "connection closed".to_owned()
        }
        io::ErrorKind::ConnectionReset => "connection reset".to_owned(),
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::TimedOut => "timed out".to_owned(),
        io::ErrorKind::AddrInUse => "another program uses it".to_owned(),
        io::ErrorKind::HostUnreachable => "no route to that machine".to_owned(),
        io::ErrorKind::NetworkUnreachable => "no route to that network".to_owned(),
        _ => error.to_string(),
    }
}

/// The bytes of a goodbye, in place of a frame's prefix. No frame has version 0.
const GOODBYE: [u8; PREFIX_BYTES] = [0; PREFIX_BYTES];
/// The version of the greeting, of the acknowledgements, and of the pieces of a direct lane. Frames have their own version.
const LANE_VERSION: u8 = 5;
/// How many connections a lane may have.
pub(super) const STRIPES_MAX: usize = 16;
/// How long frames on a lane may stay unacknowledged. The other end's network acknowledges them even if its node is busy.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Frames up to this size may exceed the limit of what is in flight.
const SMALL_FRAME_BYTES: usize = 4 << 10;
/// How many received frames may wait for the driver; then reading pauses.
const UNREAD_FRAMES_MAX: usize = 256;
