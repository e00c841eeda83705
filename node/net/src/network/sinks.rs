//! The sinks: where the actor reports to.

use peergrad_protocol::PeerId;
use tokio::sync::{mpsc, watch};

use crate::link::LinkEvent;
use crate::notice::{Notice, PeerNotice};

/// The senders to those who listen to a network.
pub(super) struct Sinks {
    /// To the driver: what happens to links.
    pub(super) events: mpsc::UnboundedSender<LinkEvent>,
    /// To the user.
    pub(super) notices: mpsc::UnboundedSender<Notice>,
    /// The addresses to tell others, best first.
    pub(super) addresses: watch::Sender<Vec<String>>,
}

impl Sinks {
    /// Reports an event to the driver.
    pub(super) fn emit(&self, event: LinkEvent) {
        // The driver may be gone, and then needs no events.
        let _ = self.events.send(event);
    }

    /// Reports a notice to the user.
    pub(super) fn notify(&self, notice: Notice) {
        // The receiver may be gone: notices need no reader.
        let _ = self.notices.send(notice);
    }

    /// Reports to the user what has changed between this peer and another one.
    pub(super) fn notify_of(&self, peer: PeerId, change: PeerNotice) {
        self.notify(Notice::Peer { peer, change });
    }

    /// Replaces the addresses to tell others.
    pub(super) fn announce(&self, addresses: &[String]) {
        self.addresses.send_if_modified(|known| {
            let is_new = known.as_slice() != addresses;
            known.clear();
            known.extend_from_slice(addresses);
            is_new
        });
    }
}
