//! The remote: the state of one peer at the other end, as long as there is a connection or a link.
//!
//! It has three parts: the [link](LinkState) and its session numbers, the [paths](Paths) between the two peers, and
//! the [notices](Notices) that the user has read about it. What needs more than one part is here.
//!
//! Two processes may have one identity, if a data directory was copied. The process with the larger start number, usually the
//! one that was started later, counts as the peer; what the other process says changes nothing here.

use std::sync::Arc;
use std::time::Duration;

use libp2p::Multiaddr;
use peergrad_protocol::{Incarnation, PeerId};
use tokio::time::Instant;

use super::address::{Carrier, ip_of, is_relayed};
use super::link::{Link, SessionId};
pub(super) use link_state::{ClosingLink, LinkIntent, LinkState, Outage, Outgoing, SessionChange};
pub(super) use notices::{Condition, Notices};
pub(super) use paths::{Connection, Paths};
pub(super) use remotes::Remotes;

mod link_state;
mod notices;
mod paths;
mod remotes;
mod violators;

/// One peer, as long as there is a connection or a link.
#[derive(Debug)]
pub(super) struct RemotePeer {
    /// The peer's id.
    pub(super) peer: PeerId,
    /// The link to it, and what this peer does to open or close one.
    pub(super) link: LinkState,
    /// The connections to it, and where it can be dialed.
    pub(super) paths: Paths,
    /// Which of its conditions the user knows.
    pub(super) notices: Notices,
}

impl RemotePeer {
    /// The record of a new peer. `my_start` is the start number of this process.
    pub(super) fn new(peer: PeerId, my_start: Incarnation, now: Instant) -> Self {
        Self {
            peer,
            link: LinkState::new(my_start, now),
            paths: Paths::new(now),
            notices: Notices::default(),
        }
    }

    /// Whether there is a connection that the link may use: a link that carries tensors never goes on over a circuit.
    pub(super) fn has_usable_connection(&self) -> bool {
        let takes_circuits = self.link.current.as_ref().is_none_or(|link| link.is_relayed());
        self.paths.connections.values().any(|connection| takes_circuits || !connection.is_relayed)
    }

    /// Whether a link may begin: the other end has identified itself, or has had the time to.
    pub(super) fn may_begin(&self, now: Instant) -> bool {
        let is_late = |connection: &Connection| now >= connection.since + IDENTIFIED_AFTER_MAX;
        self.paths.is_identified
            || self.link.current.is_some()
            || self.paths.connections.values().any(is_late)
    }

    /// Whether the other end's process is gone: there is no connection, and a machine on which it was seen refuses TCP. If TCP did not
    /// get through before, the refusal may come from a firewall and shows nothing. A peer with a relay may be behind one, so TCP has to have
    /// got through from here.
    pub(super) fn is_gone(&self, refused: &[Multiaddr]) -> bool {
        let was_dialed = self.paths.carriers.out == Some(Carrier::Tcp) || self.paths.direct.was_accepted();
        let is_known = |address: &Multiaddr| ip_of(address).is_some_and(|ip| self.paths.ips.contains(&ip));
        !self.has_usable_connection()
            && self.paths.carriers.likely() == Carrier::Tcp
            && (was_dialed || !self.paths.addresses.iter().any(is_relayed))
            && refused.iter().any(is_known)
    }

    /// Takes in the other end's session, and returns what it means for the link.
    pub(super) fn note_session(&mut self, theirs: SessionId, now: Instant) -> SessionChange {
        let change = self.link.note_session(self.peer, theirs, self.paths.route(), now);
        if !matches!(change, SessionChange::Same(_)) {
            self.notices.end(Condition::Reconnecting);
        }
        change
    }

    /// Takes the link away for good. The other end's answers to earlier openings are no longer understood.
    pub(super) fn take_link(&mut self) -> Option<Arc<Link>> {
        let link = self.link.take()?;
        self.notices.end(Condition::Reconnecting);
        Some(link)
    }

    /// Why the link is given up now, in words; `None` while it works or may still recover.
    pub(super) fn overdue(&self, now: Instant) -> Option<String> {
        let outage = self.link.outage.as_ref().filter(|_| self.link.current.is_some())?;
        let patience = match (self.has_usable_connection(), self.paths.carriers.likely()) {
            (false, Carrier::Tcp) => RECONNECT_MAX,
            (false, Carrier::Quic) => RECONNECT_OVER_QUIC_MAX,
            (true, _) => ANSWER_MAX,
        };
        if now < outage.since + patience {
            return None;
        }
        Some(if !self.has_usable_connection() {
            outage.reason.clone()
        } else {
            format!("no answer for {} s", ANSWER_MAX.as_secs())
        })
    }

    /// Whether this record can be dropped without a loss.
    pub(super) fn is_idle(&self) -> bool {
        self.link.current.is_none() && self.link.closing.is_none() && self.paths.connections.is_empty()
    }
}

/// How long a link waits at most for the other end to identify itself.
const IDENTIFIED_AFTER_MAX: Duration = Duration::from_secs(1);
/// A link without a connection is given up after this.
const RECONNECT_MAX: Duration = Duration::from_secs(2);
/// The same limit over QUIC. An attempt without an answer takes 5 s, because QUIC reports no refusal, and TCP is tried after it.
const RECONNECT_OVER_QUIC_MAX: Duration = Duration::from_secs(7);
/// A link with a connection on which no lane gets an answer is given up after this.
const ANSWER_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
