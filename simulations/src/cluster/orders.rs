//! The orders that users have given, until they are carried out: the simulator checks that none is forgotten.

use std::time::Duration;

use peergrad_core::node::NodeState;
use peergrad_protocol::Instant;

use super::{Cluster, UserCommand};
use crate::host::{HostId, ProcessId};

/// An order to leave, or to remove a peer. It is carried out when the process that it concerns has ended.
pub(super) struct Order {
    /// When it was given.
    given_at: Instant,
    /// The process that got the order. If it ends at once, nobody answers for the order.
    asked: ProcessId,
    /// The process that is to end.
    target: ProcessId,
}

impl Cluster {
    /// Remembers an order to this host if it has a process and the order is to end one.
    pub(super) fn note_order(&mut self, host: HostId, command: UserCommand) {
        let target = match command {
            UserCommand::Leave => host,
            UserCommand::Expel(other) if self.is_member_at(host, other) => other,
            // Of a peer that is no member: it is refused.
            UserCommand::Expel(_) => return,
            UserCommand::EndRun | UserCommand::DeclareLost | UserCommand::Busy(_) => return,
        };
        let (asked, target) = (self.hosts.newest_process(host), self.hosts.newest_process(target));
        self.orders.push(Order { given_at: self.now(), asked, target });
    }

    /// Whether the process that got the order has lived long enough to pass it on.
    fn was_received(&self, order: &Order) -> bool {
        let spans = &self.history().peers[order.asked.host.index()].spans;
        let ended_at = spans.last().map_or(order.given_at, |span| span.from);
        self.hosts.is_running(order.asked) || ended_at.since(order.given_at) > PASSED_ON_AFTER
    }

    /// Whether a peer was to be removed and has been alone since: there was nobody left to remove it.
    fn is_moot(&self, order: &Order) -> bool {
        let target = self.hosts.peer(order.target.host);
        let views = self.history().views.iter().rev().take_while(|note| note.at >= order.given_at);
        let mut alone =
            views.filter(|note| note.view.members.len() == 1 && note.view.rank(&target).is_some());
        order.asked != order.target && alone.next().is_some()
    }

    /// Whether a peer is a member of the view in which the peer on `host` trains.
    fn is_member_at(&self, host: HostId, other: HostId) -> bool {
        match self.hosts.node_state(host) {
            Some(NodeState::Member(member)) => member.view.rank(&self.hosts.peer(other)).is_some(),
            _ => false,
        }
    }

    /// The oldest order that is not carried out yet: when it was given, and the host of the process that is to end.
    #[must_use]
    pub fn oldest_order(&self) -> Option<(Instant, HostId)> {
        let is_open = |order: &&Order| {
            self.hosts.is_running(order.target) && self.was_received(order) && !self.is_moot(order)
        };
        self.orders.iter().find(is_open).map(|order| (order.given_at, order.target.host))
    }
}

/// How long a process needs to pass an order on to the other members: two heartbeats.
const PASSED_ON_AFTER: Duration = Duration::from_millis(500);
