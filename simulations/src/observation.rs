//! Observations: what a cluster shows its invariants, one by one, as it happens.

use peergrad_core::io::Event;
use peergrad_protocol::message::Message;

use crate::host::HostId;

/// Something that an invariant may have an opinion on.
pub enum Observation<'a> {
    /// A frame leaves, as the receiver will get it.
    Sent {
        /// The sender.
        from: HostId,
        /// The receiver.
        to: HostId,
        /// What it says.
        message: &'a Message,
        /// The elements that it carries.
        payload: Option<&'a [f32]>,
    },
    /// A node hears that it is linked to another host's: nothing is on its way from it any more.
    Linked {
        /// Where.
        at: HostId,
        /// To whom.
        to: HostId,
        /// The connection, which both ends will have heard of.
        session: u32,
    },
    /// A receiver of segments and chunks lets their sender send more.
    Granted {
        /// Their receiver.
        from: HostId,
        /// Their sender.
        to: HostId,
        /// How many more.
        segments: u32,
    },
    /// A node told its user something.
    Emitted {
        /// Where.
        host: HostId,
        /// What.
        event: &'a Event,
    },
    /// A process is gone without a word.
    Crashed {
        /// Where.
        host: HostId,
    },
}
