//! Commands from users of this machine to its peer, and the reasons to decline them.

use peergrad_core::node_report::NodeReport;
use peergrad_net::{AdminRequest, random_bytes, unix_seconds};
use peergrad_protocol::PeerId;
use peergrad_protocol::invite::Secret;

use super::{Busy, StatusService};
use crate::text::event_text::{is_called, short_names};

impl StatusService {
    /// Expels the member with this short name or id from the run.
    ///
    /// # Errors
    /// The reason, as text, why this is not possible.
    pub(in crate::status) async fn remove(&self, name: &str) -> Result<(), String> {
        let member = self.inner.member().await?;
        let all: Vec<PeerId> = member.members.iter().map(|seen| seen.peer).collect();
        let called: Vec<PeerId> = all.iter().copied().filter(|peer| is_called(peer, name)).collect();
        let peer = match called[..] {
            [peer] => peer,
            [] => {
                return Err(format!("no member is called {name}; the members are: {}", short_names(&all)));
            }
            [..] => {
                return Err(format!(
                    "several members are called {name}: give the whole id, which `status --json` shows"
                ));
            }
        };
        if peer == self.inner.me {
            return Err("that is the peer asked itself: press Ctrl-C in its terminal to hand over and leave"
                .to_owned());
        }
        self.inner.submit(AdminRequest::Expel(peer))
    }

    /// Changes the run's secret to a random one.
    ///
    /// # Errors
    /// The reason, as text, why this is not possible.
    pub(in crate::status) async fn rekey(&self) -> Result<(), String> {
        let member = self.inner.member().await?;
        if member.paused.is_some() || member.is_troubled {
            return Err(
                "some members cannot be reached and would be locked out: try again when training has resumed"
                    .to_owned(),
            );
        }
        let at = (unix_seconds() * 1000.0) as u64;
        self.inner.submit(AdminRequest::Rekey { secret: Secret(random_bytes()), at })
    }

    /// Ends the run at all members.
    ///
    /// # Errors
    /// The reason, as text, why this is not possible.
    pub(crate) async fn end_run(&self) -> Result<(), String> {
        self.inner.member().await?;
        self.inner.submit(AdminRequest::EndRun)
    }

    /// Resets table chunks that no peer has any more.
    ///
    /// # Errors
    /// The reason, as text, why this is not possible.
    pub(in crate::status) async fn declare_lost(&self) -> Result<(), String> {
        match self.inner.node_report().await {
            Ok(NodeReport::Member(member)) if member.missing_chunks > 0 => {}
            Ok(NodeReport::Join { recovery: Some(_), .. }) => {}
            Ok(_) => {
                return Err(
                    "this peer is not waiting for lost chunks; ask the one that is (see `status`)".to_owned()
                );
            }
            Err(Busy) => return Err("this peer is too busy: try again".to_owned()),
        }
        self.inner.submit(AdminRequest::DeclareLost)
    }
}
