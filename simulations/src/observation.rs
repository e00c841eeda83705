//! Observations: the events of a cluster that are shown to its invariants, one by one, as they happen.

use peergrad_core::io::Event;
use peergrad_protocol::Buffer;
use peergrad_protocol::message::Message;

use crate::host::HostId;

/// One event that an invariant may check.
pub enum Observation<'a> {
    /// A frame is sent, in the form in which it will arrive.
    Sent {
        /// The sender.
        from: HostId,
        /// The receiver.
        to: HostId,
        /// The decoded message.
        message: &'a Message,
        /// Its payload; `None` if it has none.
        payload: Option<&'a Buffer>,
    },
    /// A node is notified of a new link. No frame of an earlier link from that host can still arrive.
    Linked {
        /// The host of the node.
        at: HostId,
        /// The host at the other end.
        to: HostId,
        /// The number of the connection, the same at both ends.
        session: u32,
    },
    /// A receiver of segments and chunks returns credit to their sender.
    Granted {
        /// The receiver of segments.
        from: HostId,
        /// The sender of segments.
        to: HostId,
        /// How many more segments may be sent.
        segments: u32,
    },
    /// A node reports an event to its user.
    Emitted {
        /// The host of the node.
        host: HostId,
        /// The event.
        event: &'a Event,
    },
    /// A process has ended without notice.
    Crashed {
        /// Its host.
        host: HostId,
    },
}
