//! Orders: what users of this machine have its peer see to, and why it cannot be.

use peergrad_core::node_report::NodeReport;
use peergrad_net::{AdminRequest, random_bytes, unix_seconds};
use peergrad_protocol::PeerId;
use peergrad_protocol::invite::Secret;

use super::{Busy, StatusService};

impl StatusService {
    /// Has a member put out of the run.
    ///
    /// # Errors
    /// In words, why that cannot be.
    pub(in crate::status) async fn remove(&self, peer: &str) -> Result<(), String> {
        let Ok(peer) = peer.parse::<PeerId>() else { return Err(format!("{peer} is no peer's id")) };
        let member = self.inner.member().await?;
        if !member.members.iter().any(|seen| seen.peer == peer) {
            return Err(format!("peer {} is not in the run", peer.short()));
        }
        if peer == self.inner.me {
            return Err("that is this very peer: Ctrl-C at its terminal hands over and leaves".to_owned());
        }
        self.inner.submit(AdminRequest::Expel(peer))
    }

    /// Has the run given another secret.
    ///
    /// # Errors
    /// In words, why that cannot be.
    pub(in crate::status) async fn rekey(&self) -> Result<(), String> {
        let member = self.inner.member().await?;
        if member.paused.is_some() || member.is_troubled {
            return Err(
                "not all members can be reached, and those that are not told would be locked out: try again once training goes on"
                    .to_owned(),
            );
        }
        let at = (unix_seconds() * 1000.0) as u64;
        self.inner.submit(AdminRequest::Rekey { secret: Secret(random_bytes()), at })
    }

    /// Has what nobody has any more of tables begin anew.
    ///
    /// # Errors
    /// In words, why that cannot be.
    pub(in crate::status) async fn declare_lost(&self) -> Result<(), String> {
        match self.inner.node_report().await {
            Ok(NodeReport::Member(member)) if member.missing_chunks > 0 => {}
            Ok(NodeReport::Join { recovery: Some(_), .. }) => {}
            Ok(_) => {
                return Err(
                    "this peer waits for nothing that could be lost; ask at the one that says so (see `status`)"
                        .to_owned(),
                );
            }
            Err(Busy) => return Err("this peer is too busy: try again".to_owned()),
        }
        self.inner.submit(AdminRequest::DeclareLost)
    }
}
