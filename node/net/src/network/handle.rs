//! Handles: how other tasks use a running network that the driver owns.

use peergrad_protocol::PeerId;
use tokio::sync::{mpsc, oneshot};

use super::command::Command;
use super::status::NetworkStatus;

/// Asks a network for its status.
#[derive(Clone, Debug)]
pub struct NetworkHandle {
    pub(super) commands: mpsc::UnboundedSender<Command>,
}

impl NetworkHandle {
    /// The status now; empty once the network is gone.
    pub async fn status(&self) -> NetworkStatus {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(Command::Status(reply)).is_err() {
            return NetworkStatus::default();
        }
        answer.await.unwrap_or_default()
    }
}

/// Breaks connections, as a pulled cable would, for tests.
#[derive(Clone, Debug)]
pub struct Disconnector {
    pub(super) commands: mpsc::UnboundedSender<Command>,
}

impl Disconnector {
    /// Closes all connections to this peer. Its link recovers by itself.
    pub fn disconnect(&self, peer: PeerId) {
        // Without a network there is no connection to close.
        let _ = self.commands.send(Command::Disconnect(peer));
    }
}
