//! The link: an ordered, reliable, resumable way from one peer to another, in both directions.
//!
//! A parcel service that keeps a copy of every parcel until the receipt comes back. If the road is cut, the driver asks at
//! the other end how many parcels have arrived, and starts again after those.
//!
//! ```text
//!   outbox --- frames -----------------------> inbox      one lane in each direction, which the sender of the frames
//!          <-- received, consumed segments ---            opens: a substream, or a direct lane once that stands
//! ```
//! # How it works
//! - Each end draws a random *session* for each life of a link. A link is a pair of them. Frames are numbered within
//!   the pair, and an end that forgot (restarted, gave up) has another session, so that numbers of two lives never mix.
//! - The sender opens a lane and says its session and the one it knows of the other end (33 bytes). The receiver answers with
//!   its session and how many frames of this pair it has (36 bytes), and the sender goes on after those.
//! - A session says which start of the peer's process it belongs to. A process that still runs when one with the same identity
//!   was started later, from a copy of its data directory, is turned away and told so.
//! - The receiver writes back 16 bytes whenever something changed: frames received, so that the sender can forget them, and
//!   segments used up, which is the credit for new ones. What changes while it writes goes into the next 16 bytes.
//! - `GOODBYE` is the last thing an end sends: it is going on purpose, and the other end need not wait for it.
//!
//! # Invariants
//! - A frame is delivered once, in order, and only between the link's up and down.
//! - At most `IN_FLIGHT_BYTES_MAX` are unacknowledged on a lane, or one frame; frames that wait are bounded by the
//!   node's credit.
//! - A lane on which nothing is acknowledged for `STALL_TIMEOUT` is given up: a stalled multiplexer and a half-open connection
//!   look the same from here, and a new connection heals both. A direct lane, sooner, for a substream.
//!
//! # Not here
//! Connections, redialing, and when a link is up or down: see [`network`](super::network).

mod handshake;
mod inbox;
mod incoming;
mod outbox;
mod outgoing;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use peergrad_protocol::wire::{PREFIX_BYTES, WireError};
use peergrad_protocol::{Frame, PeerId};
use tokio::sync::OwnedSemaphorePermit;

pub(super) use handshake::{Acknowledgement, OpenRequest, OpenResponse, SessionId, Verdict};
pub(super) use inbox::Inbox;
pub(super) use incoming::{Shared, read_opening, receive, refuse};
pub(super) use outbox::Outbox;
pub(super) use outgoing::{open, transmit};

/// One life of a link. Once it is closed it stays closed; what is sent into it then is dropped.
#[derive(Debug)]
pub struct Link {
    peer: PeerId,
    theirs: SessionId,
    pub(super) outbox: Outbox,
    pub(super) inbox: Inbox,
    /// Whether its outgoing lane is a direct one.
    is_direct: AtomicBool,
    /// Whether it leads through another peer: then it carries words only.
    is_relayed: AtomicBool,
}

/// What a lane runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneKind {
    /// A substream of a connection of libp2p.
    Substream,
    /// A connection of its own.
    Direct,
}

/// What links tell the driver, in the order in which it happened.
#[derive(Debug)]
pub enum LinkEvent {
    /// Frames can be sent and will be delivered.
    Up(Arc<Link>),
    /// A frame has arrived.
    Frame {
        /// Over this link.
        link: Arc<Link>,
        /// Its bytes; only their lengths have been looked at.
        frame: Frame,
        /// Room in the queue, given back when this is dropped.
        room: OwnedSemaphorePermit,
    },
    /// The other end has used up segments.
    Credit {
        /// Over this link.
        link: Arc<Link>,
        /// How many more than it had told before.
        segments: u32,
    },
    /// The other end knows a process with this peer's identity that was started later.
    DuplicateIdentity {
        /// The one who says so.
        by: PeerId,
    },
    /// The link has led through another peer, and does not any more: it carries tensors now.
    NoLongerRelayed(Arc<Link>),
    /// Where others can dial this peer, and whether they can, is known better than before.
    ReachabilityChanged {
        /// Where, best first.
        addresses: Vec<String>,
        /// Whether they can.
        is_reachable: bool,
    },
    /// The link is closed.
    Down {
        /// This link.
        link: Arc<Link>,
        /// Why, in words.
        reason: String,
    },
}

/// Why a lane ended.
#[derive(Debug, thiserror::Error)]
pub enum LaneError {
    /// The connection under it is gone.
    #[error("{}", error_text(.0))]
    Broken(#[from] io::Error),
    /// Nothing moves, though the connection seems to be there.
    #[error("no answer for {} s", STALL_TIMEOUT.as_secs())]
    Stalled,
    /// The other end speaks another version, or something else.
    #[error(
        "version {0} of the link format; this peer speaks {LANE_VERSION}: use the same release on both machines"
    )]
    Version(u8),
    /// The other end takes no frames: it only looks on.
    #[error("it takes no frames")]
    Unwanted,
    /// A greeting that no peer sends.
    #[error("a greeting that makes no sense")]
    Handshake,
    /// What came is no frame.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// An acknowledgement of frames that were never sent, or that were acknowledged and are now asked for again.
    #[error("an acknowledgement that does not fit what was sent")]
    Acknowledgement,
}

impl LaneError {
    /// Whether the other end did what no correct peer does.
    #[must_use]
    pub fn is_violation(&self) -> bool {
        !matches!(self, Self::Broken(_) | Self::Stalled | Self::Unwanted)
    }
}

impl Link {
    pub(super) fn new(peer: PeerId, theirs: SessionId) -> Self {
        Self {
            peer,
            theirs,
            outbox: Outbox::default(),
            inbox: Inbox::default(),
            is_direct: AtomicBool::new(false),
            is_relayed: AtomicBool::new(false),
        }
    }

    /// Whether it leads through another peer, and so carries no tensors. Once it does not, it never does again.
    #[must_use]
    pub fn is_relayed(&self) -> bool {
        self.is_relayed.load(Ordering::Relaxed)
    }

    pub(super) fn set_relayed(&self, is_relayed: bool) {
        self.is_relayed.store(is_relayed, Ordering::Relaxed);
    }

    /// The other end.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// Whether frames are under way on a substream, and getting somewhere.
    pub(super) fn is_moving_on_substream(&self) -> bool {
        !self.is_direct() && self.outbox.is_moving()
    }

    /// Whether its outgoing lane is, or last was, a direct one.
    pub(super) fn is_direct(&self) -> bool {
        self.is_direct.load(Ordering::Relaxed)
    }

    pub(super) fn theirs(&self) -> SessionId {
        self.theirs
    }

    /// Queues a frame behind those already there.
    pub fn send(&self, frame: Frame) {
        self.outbox.push(frame);
    }

    /// Tells the other end that segments it sent have been used up.
    pub fn give_credit(&self, segments: u32) {
        self.inbox.consume(segments);
    }

    /// Waits until the other end has acknowledged everything, our goodbye included, or the link is closed.
    ///
    /// Only for a link that is hung up: on another one it waits for that.
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

/// What the system said: the layers above a socket wrap it.
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

/// What the system says about a broken connection, as people say it.
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

/// Stands in the place of a frame's prefix; no frame is of version 0.
const GOODBYE: [u8; PREFIX_BYTES] = [0; PREFIX_BYTES];
/// The version of the greeting and of the acknowledgements. The frames have their own.
const LANE_VERSION: u8 = 3;
/// How long a lane may stand still with frames unacknowledged; the other end's shell acknowledges, however busy its node.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Well under what sockets buffer in both directions, so that two peers that only push do not block each other.
const IN_FLIGHT_BYTES_MAX: usize = 1 << 20;
/// Frames up to this size may go beyond the limit, once more as much: control must not wait behind tensors.
const SMALL_FRAME_BYTES: usize = 4 << 10;
/// Frames that have arrived and that the driver has not taken yet; then reading waits.
const UNREAD_FRAMES_MAX: usize = 256;
