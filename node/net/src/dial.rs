//! Dialer: whom to try, where, when to try again, and when to tell the user that it does not work.
//!
//! Like someone who must reach people by telephone: some names are on a list until crossed out, some numbers came without
//! a name, some people were cut off in the middle and are called back for a while. This is the list; it makes no calls.
//!
//! # How it works
//! An attempt is made over TCP, and where that does not get through, at once another one over QUIC; the other way round where QUIC
//! has got through to that one before, or, if nothing has yet, to the last other one. The two are one *round*: pauses
//! are between rounds, and the user hears of an address once for both. Where an answer came that the other way would give as well
//! (another secret, another peer), there is no second attempt. And at first TCP is believed: one that refuses mostly does not
//! listen yet, and one that was there a moment ago is mostly cut off from everything. An attempt over QUIC goes on asking for
//! seconds, so that it also finds one who only now began to listen: whom it reaches late TCP may get to as well.

use libp2p::multiaddr::Protocol;
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::{ConnectionId, DialError};
use libp2p::{Multiaddr, PeerId};
use tokio::time::Instant;

use super::address::{Carrier, is_relayed, parse_all, remember, without_peer};
use super::bootstrap_address::BootstrapAddress;
use super::identity::to_libp2p;
pub(super) use carriers::{CarrierEvidence, CarrierHistory};
pub use failure::DialFailure;
pub(super) use failure::{failure_of, refused_everywhere};
pub(super) use target::FailedAddress;
pub use target::Unreached;
use target::{
    DialReason, DialTarget, FirstAttempt, MDNS_FAILURES_MAX, TargetState, WANTED_FAILURES_REPORTED,
};

mod carriers;
mod failure;
mod target;

/// Everyone to be reached.
#[derive(Debug, Default)]
pub(super) struct Dialer {
    targets: Vec<DialTarget>,
    /// What got through to the last one who was dialed. What keeps TCP out is mostly near us, or everywhere.
    usual_carrier: Carrier,
}

/// A connection that has come about.
#[derive(Clone, Copy)]
pub(super) struct NewConnection<'a> {
    /// Which attempt it comes from, if it is one of ours.
    pub(super) connection: ConnectionId,
    /// Where the other end is.
    pub(super) address: &'a Multiaddr,
    /// What it says of the ways there.
    pub(super) evidence: CarrierEvidence,
}

impl Dialer {
    /// Keeps trying to reach this peer until [`forget`](Self::forget); the next attempt is due now.
    pub(super) fn want(&mut self, peer: PeerId, addresses: Vec<Multiaddr>, now: Instant) {
        self.add(Some(peer), addresses, DialReason::Wanted, now);
    }

    /// As [`want`](Self::want), from what the user gave.
    pub(super) fn want_bootstrap(&mut self, bootstrap: BootstrapAddress, now: Instant) {
        match bootstrap {
            BootstrapAddress::Contact(contact) => {
                if let Some(peer) = to_libp2p(contact.peer) {
                    self.add(Some(peer), parse_all(&contact.addresses), DialReason::Named, now);
                }
            }
            BootstrapAddress::Address(mut address) => {
                let peer = match address.iter().last() {
                    Some(Protocol::P2p(peer)) => {
                        address.pop();
                        Some(peer)
                    }
                    _ => None,
                };
                self.add(peer, vec![address], DialReason::Named, now);
            }
        }
    }

    /// Tries a peer that was seen on the local network.
    pub(super) fn try_mdns_peer(&mut self, peer: PeerId, address: Multiaddr, now: Instant) {
        self.add(Some(peer), vec![without_peer(address)], DialReason::Mdns, now);
    }

    /// The connection to `peer`, of which so much is known, is lost: dials it, from `due` on.
    pub(super) fn reconnect(
        &mut self,
        peer: PeerId,
        addresses: Vec<Multiaddr>,
        carriers: CarrierHistory,
        due: Instant,
    ) {
        self.add(Some(peer), addresses, DialReason::Reconnect, due);
        for target in self.targets.iter_mut().filter(|target| target.peer == Some(peer)) {
            target.carriers.learn(carriers);
        }
        self.retry_from(peer, due);
    }

    /// A connection without a link is gone: if the peer is wanted, it is dialed again from `due` on.
    pub(super) fn retry_from(&mut self, peer: PeerId, due: Instant) {
        for target in self.targets.iter_mut().filter(|target| target.peer == Some(peer)) {
            if target.state == TargetState::Connected {
                target.state = TargetState::Waiting { due };
            }
        }
    }

    /// Stops calling back someone who was cut off; whoever is wanted is still tried.
    pub(super) fn stop_reconnecting(&mut self, peer: PeerId) {
        self.targets.retain(|target| target.peer != Some(peer) || target.reason >= DialReason::Wanted);
    }

    /// Stops trying.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.targets.retain(|target| target.peer != Some(peer));
    }

    /// Stops trying everyone whom the node or the user wants, but for those of whom `is_wanted` is true.
    pub(super) fn keep_wanted(&mut self, is_wanted: impl Fn(&PeerId) -> bool) {
        self.targets.retain(|target| {
            target.reason < DialReason::Wanted || target.peer.as_ref().is_some_and(&is_wanted)
        });
    }

    /// The attempts to make now.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<DialOpts> {
        let is_due =
            |target: &&mut DialTarget| matches!(target.state, TargetState::Waiting { due } if due <= now);
        let due = self.targets.iter_mut().filter(is_due);
        due.map(|target| {
            let options = target.options(self.usual_carrier);
            target.state = TargetState::Trying { attempt: options.connection_id() };
            options
        })
        .collect()
    }

    /// A connection is there, perhaps from one of the attempts, to a peer of whose ways so much was known. Returns what is known now.
    pub(super) fn connected(
        &mut self,
        peer: PeerId,
        arrival: NewConnection<'_>,
        before: CarrierHistory,
        now: Instant,
    ) -> CarrierHistory {
        let attempt = TargetState::Trying { attempt: arrival.connection };
        let tried = self.targets.iter().find(|target| target.state == attempt);
        let is_luck = tried.is_some_and(|target| target.may_have_begun_to_listen(arrival.address, now));
        let carrier = Carrier::of(arrival.address);
        if tried.is_some() && arrival.evidence == CarrierEvidence::Out && !is_luck {
            self.usual_carrier = carrier;
        }
        let is_answer = |target: &DialTarget| target.peer.is_none() && target.state == attempt;
        if let Some(index) = self.targets.iter().position(is_answer) {
            // The address has found its peer.
            let answered = self.targets.swap_remove(index);
            self.add(Some(peer), answered.addresses, answered.reason, now);
        }
        self.targets.retain(|target| target.peer != Some(peer) || target.reason != DialReason::Reconnect);
        let known =
            self.targets.iter().find(|target| target.peer == Some(peer)).map(|target| target.carriers);
        let mut carriers = known.unwrap_or_default();
        carriers.learn(before);
        carriers.record_connection(arrival.evidence, carrier, is_luck);
        self.mark_connected(peer, carriers);
        carriers
    }

    /// A connection is there that is of no use: the next attempt is made at `due`.
    pub(super) fn try_later(&mut self, attempt: ConnectionId, due: Instant) {
        let state = TargetState::Trying { attempt };
        for target in self.targets.iter_mut().filter(|target| target.state == state) {
            target.state = TargetState::Waiting { due };
        }
    }

    /// Those who are wanted and not there, and the ways through relays that are known of.
    pub(super) fn missing(&self) -> impl Iterator<Item = (PeerId, Vec<Multiaddr>)> {
        let is_missing = |target: &&DialTarget| {
            target.reason >= DialReason::Reconnect && target.state != TargetState::Connected
        };
        let circuits = |target: &DialTarget| {
            target.addresses.iter().filter(|address| is_relayed(address)).cloned().collect()
        };
        self.targets
            .iter()
            .filter(is_missing)
            .filter_map(move |target| Some((target.peer?, circuits(target))))
    }

    /// A connection to `peer` is there already, and so much is known of the ways there.
    pub(super) fn mark_connected(&mut self, peer: PeerId, carriers: CarrierHistory) {
        for target in self.targets.iter_mut().filter(|target| target.peer == Some(peer)) {
            target.connected(carriers);
        }
    }

    /// Whose attempt this is, if that is known.
    pub(super) fn whose(&self, attempt: ConnectionId) -> Option<PeerId> {
        self.targets.iter().find(|target| target.state == TargetState::Trying { attempt })?.peer
    }

    /// An attempt failed; returns what the user should hear.
    pub(super) fn failed(
        &mut self,
        attempt: ConnectionId,
        error: &DialError,
        now: Instant,
    ) -> Vec<FailedAddress> {
        let state = TargetState::Trying { attempt };
        let Some(index) = self.targets.iter().position(|target| target.state == state) else {
            return Vec::new();
        };
        let target = &mut self.targets[index];
        let Some(troubles) = target.end_attempt(error, now) else {
            // Whoever named an address does not have to wait for the second attempt to hear what is wrong with it.
            return match (target.reason, target.failures, &target.first) {
                (DialReason::Named, 0, Some(FirstAttempt { carrier: Carrier::Tcp, troubles, .. })) => {
                    target.report_failures(troubles.clone(), now)
                }
                _ => Vec::new(),
            };
        };
        match target.reason {
            DialReason::Wanted if target.failures < WANTED_FAILURES_REPORTED => Vec::new(),
            DialReason::Wanted | DialReason::Named => {
                let reports = target.report_failures(troubles, now);
                if matches!(error, DialError::LocalPeerId { .. }) {
                    self.targets.swap_remove(index);
                }
                reports
            }
            DialReason::Mdns => {
                let is_stranger =
                    |(_, trouble): &_| matches!(trouble, DialFailure::WrongSecret | DialFailure::NotAPeer);
                if target.failures >= MDNS_FAILURES_MAX || troubles.iter().any(is_stranger) {
                    self.targets.swap_remove(index);
                }
                Vec::new()
            }
            DialReason::Reconnect => Vec::new(),
        }
    }

    /// Those of whom the user was told that they cannot be reached, and still cannot.
    pub(super) fn unreached(&self, now: Instant) -> Vec<Unreached> {
        self.targets.iter().filter_map(|target| target.unreached(now)).collect()
    }

    /// Whether everyone was tried, over everything, and nobody was reached.
    pub(super) fn have_all_failed(&self) -> bool {
        self.targets.iter().all(|target| target.failures > 0)
    }

    fn add(&mut self, peer: Option<PeerId>, addresses: Vec<Multiaddr>, reason: DialReason, due: Instant) {
        let is_same = |target: &&mut DialTarget| match peer {
            Some(peer) => target.peer == Some(peer),
            None => target.peer.is_none() && target.addresses == addresses,
        };
        if let Some(target) = self.targets.iter_mut().find(is_same) {
            target.reason = target.reason.max(reason);
            if let TargetState::Waiting { due: planned } = &mut target.state
                && reason > DialReason::Mdns
            {
                *planned = due.min(*planned);
            }
            for address in addresses {
                remember(&mut target.addresses, address);
            }
            return;
        }
        self.targets.push(DialTarget::new(peer, addresses, reason, due));
    }
}

#[cfg(test)]
mod tests;
