//! The dialer: which peers to dial, where and when, and when to tell the user that a peer cannot be reached.
//!
//! It is like a list for telephone calls: some names stay on it until they are crossed out, some numbers came without a name,
//! and some calls that were cut off are made again for a while. This is the list; it makes no calls.
//!
//! # How it works
//! An attempt is made over TCP, and if TCP does not get through, another one follows at once over QUIC. The order is reversed
//! if QUIC got through to this peer before, or, where nothing is known of this peer, to the last other one. The two attempts
//! are one *round*: pauses are between rounds, and an address is reported to the user once per round. There is no second attempt if
//! the first failed in a way that the other carrier would repeat, such as another secret or another peer. At first, a failure over
//! TCP is not blamed on TCP: a machine that refuses usually does not listen yet, and a peer that was connected a moment ago has
//! usually lost all connections. An attempt over QUIC retries for seconds, so it also finds a peer that has only just begun to
//! listen; such a success does not show that TCP fails.

use std::net::IpAddr;

use libp2p::multiaddr::Protocol;
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::{ConnectionId, DialError};
use libp2p::{Multiaddr, PeerId};
use tokio::time::Instant;

use super::address::{Carrier, is_relayed, over_quic, own_ips, parse_all, without_peer};
use super::bootstrap_address::BootstrapAddress;
use super::identity::to_libp2p;
pub(super) use carriers::{CarrierEvidence, CarrierHistory};
pub use failure::DialFailure;
pub(super) use failure::refused_everywhere;
pub(super) use target::FailedAddress;
pub use target::Unreached;
use target::{
    DialAim, DialReason, DialTarget, FirstAttempt, MDNS_FAILURES_MAX, TargetState, WANTED_FAILURES_REPORTED,
};

mod carriers;
mod failure;
mod target;

/// The peers and addresses to dial.
#[derive(Debug, Default)]
pub(super) struct Dialer {
    targets: Vec<DialTarget>,
    /// This peer, which must not be dialed.
    own: OwnAddresses,
    /// The carrier that got through to the last peer that was dialed. If TCP fails, the reason is usually
    /// near this peer, or it concerns all peers.
    usual_carrier: Carrier,
}

/// How to recognise that an attempt leads back to this peer.
#[derive(Debug, Default)]
pub(super) struct OwnAddresses {
    /// This peer's id; `None` until it is known.
    id: Option<PeerId>,
    /// Where this peer listens. libp2p does not dial these addresses, and says nothing of it.
    listening: Vec<Multiaddr>,
}

/// A new connection.
#[derive(Clone, Copy)]
pub(super) struct NewConnection<'a> {
    /// Its id, which is that of the attempt if this peer has dialed.
    pub(super) connection: ConnectionId,
    /// The address of the other end.
    pub(super) address: &'a Multiaddr,
    /// What it shows about the carriers.
    pub(super) evidence: CarrierEvidence,
}

impl Dialer {
    /// The dialer of the peer `me`.
    pub(super) fn new(me: PeerId) -> Self {
        Self { own: OwnAddresses { id: Some(me), listening: Vec::new() }, ..Self::default() }
    }

    /// This peer listens at these addresses from now on.
    pub(super) fn listen_on(&mut self, listening: Vec<Multiaddr>) {
        self.own.listening = listening;
    }

    /// The IP addresses at which this peer listens.
    pub(super) fn own_ips(&self) -> Vec<IpAddr> {
        own_ips(self.own.listening.iter())
    }

    /// Keeps dialing this peer until [`forget`](Self::forget). The next attempt is due now.
    pub(super) fn want(&mut self, peer: PeerId, addresses: Vec<Multiaddr>, now: Instant) {
        self.add(DialAim::Peer { id: peer, addresses }, DialReason::Wanted, now);
    }

    /// As [`want`](Self::want), for a bootstrap address of the user.
    pub(super) fn want_bootstrap(&mut self, bootstrap: BootstrapAddress, now: Instant) {
        match bootstrap {
            BootstrapAddress::Contact(contact) => {
                if let Some(peer) = to_libp2p(contact.peer) {
                    let addresses = parse_all(&contact.addresses);
                    self.add(DialAim::Peer { id: peer, addresses }, DialReason::Named, now);
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
                self.add(DialAim::at(peer, address), DialReason::Named, now);
            }
        }
    }

    /// Tries a peer that was seen on the local network.
    pub(super) fn try_mdns_peer(&mut self, peer: PeerId, address: Multiaddr, now: Instant) {
        self.add(DialAim::at(Some(peer), without_peer(address)), DialReason::Mdns, now);
    }

    /// The connection to `peer` is lost: dials the peer again, from `due` on, with what is known of its carriers.
    pub(super) fn reconnect(
        &mut self,
        peer: PeerId,
        addresses: Vec<Multiaddr>,
        carriers: CarrierHistory,
        due: Instant,
    ) {
        self.add(DialAim::Peer { id: peer, addresses }, DialReason::Reconnect, due);
        for target in self.targets.iter_mut().filter(|target| target.is_for(peer)) {
            target.carriers.learn(carriers);
        }
        self.retry_from(peer, due);
    }

    /// A connection without a link is gone: if the peer is wanted, it is dialed again from `due` on.
    pub(super) fn retry_from(&mut self, peer: PeerId, due: Instant) {
        for target in self.targets.iter_mut().filter(|target| target.is_for(peer)) {
            if target.state == TargetState::Connected {
                target.state = TargetState::Waiting { due };
            }
        }
    }

    /// Stops reconnecting to a peer. If the node or the user wants the peer, it is still dialed.
    pub(super) fn stop_reconnecting(&mut self, peer: PeerId) {
        self.targets.retain(|target| !target.is_for(peer) || target.reason >= DialReason::Wanted);
    }

    /// Stops dialing a peer.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.targets.retain(|target| !target.is_for(peer));
    }

    /// Stops dialing all peers that the node or the user wants, except those for which `is_wanted` is true.
    pub(super) fn keep_wanted(&mut self, is_wanted: impl Fn(&PeerId) -> bool) {
        self.targets.retain(|target| {
            target.reason < DialReason::Wanted || target.aim.peer().as_ref().is_some_and(&is_wanted)
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

    /// A connection is open, perhaps from one of the attempts. `before` is what was known of the peer's carriers; returns what
    /// is known now.
    pub(super) fn connected(
        &mut self,
        peer: PeerId,
        arrival: NewConnection<'_>,
        before: CarrierHistory,
        now: Instant,
    ) -> CarrierHistory {
        let attempt = TargetState::Trying { attempt: arrival.connection };
        let tried = self.targets.iter().find(|target| target.state == attempt);
        let evidence = match arrival.evidence {
            CarrierEvidence::Out
                if tried.is_some_and(|target| target.may_have_begun_to_listen(arrival.address, now)) =>
            {
                CarrierEvidence::OutLate
            }
            evidence => evidence,
        };
        let carrier = Carrier::of(arrival.address);
        if tried.is_some() && evidence == CarrierEvidence::Out {
            self.usual_carrier = carrier;
        }
        let is_answer = |target: &DialTarget| target.aim.peer().is_none() && target.state == attempt;
        if let Some(index) = self.targets.iter().position(is_answer) {
            // An address without a peer has found its peer.
            let answered = self.targets.swap_remove(index);
            let addresses = answered.aim.addresses().to_vec();
            self.add(DialAim::Peer { id: peer, addresses }, answered.reason, now);
        }
        self.targets.retain(|target| !target.is_for(peer) || target.reason != DialReason::Reconnect);
        let known = self.targets.iter().find(|target| target.is_for(peer)).map(|target| target.carriers);
        let mut carriers = known.unwrap_or_default();
        carriers.learn(before);
        carriers.record_connection(evidence, carrier);
        self.mark_connected(peer, carriers);
        carriers
    }

    /// A new connection cannot be used: the next attempt is made at `due`.
    pub(super) fn try_later(&mut self, attempt: ConnectionId, due: Instant) {
        let state = TargetState::Trying { attempt };
        for target in self.targets.iter_mut().filter(|target| target.state == state) {
            target.state = TargetState::Waiting { due };
        }
    }

    /// The wanted peers that are not connected, each with the known addresses through relays.
    pub(super) fn missing(&self) -> impl Iterator<Item = (PeerId, Vec<Multiaddr>)> {
        let is_missing = |target: &&DialTarget| {
            target.reason >= DialReason::Reconnect && target.state != TargetState::Connected
        };
        let circuits = |target: &DialTarget| {
            target.aim.addresses().iter().filter(|address| is_relayed(address)).cloned().collect()
        };
        self.targets
            .iter()
            .filter(is_missing)
            .filter_map(move |target| Some((target.aim.peer()?, circuits(target))))
    }

    /// A connection to `peer` is open already, and this is known of its carriers.
    pub(super) fn mark_connected(&mut self, peer: PeerId, carriers: CarrierHistory) {
        for target in self.targets.iter_mut().filter(|target| target.is_for(peer)) {
            target.connected(carriers);
        }
    }

    /// The peer that this attempt dials; `None` if only its address is known.
    pub(super) fn whose(&self, attempt: ConnectionId) -> Option<PeerId> {
        self.targets.iter().find(|target| target.state == TargetState::Trying { attempt })?.aim.peer()
    }

    /// An attempt has failed. Returns the failures to report to the user.
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
        let Some(troubles) = target.end_attempt(error, &self.own, now) else {
            // A user who named an address should not have to wait for the second attempt to hear why the first failed.
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
                // No other peer will ever answer there.
                let is_own = target.aim.peer().is_none()
                    && troubles.iter().any(|(_, trouble)| *trouble == DialFailure::Ourselves);
                let reports = target.report_failures(troubles, now);
                if is_own {
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

    /// The peers that the user knows cannot be reached, and that still cannot.
    pub(super) fn unreached(&self, now: Instant) -> Vec<Unreached> {
        self.targets.iter().filter_map(|target| target.unreached(now)).collect()
    }

    /// Whether every target was tried over all carriers and none was reached.
    pub(super) fn have_all_failed(&self) -> bool {
        self.targets.iter().all(|target| target.failures > 0)
    }

    fn add(&mut self, aim: DialAim, reason: DialReason, due: Instant) {
        let Some(target) = self.targets.iter_mut().find(|target| target.aim.is_same(&aim)) else {
            return self.targets.push(DialTarget::new(aim, reason, due));
        };
        target.reason = target.reason.max(reason);
        if let TargetState::Waiting { due: planned } = &mut target.state
            && reason > DialReason::Mdns
        {
            *planned = due.min(*planned);
        }
        target.aim.learn(aim.addresses());
    }
}

impl OwnAddresses {
    /// Whether this peer listens at an address, over either carrier.
    pub(super) fn contains(&self, address: &Multiaddr) -> bool {
        self.listening.contains(address)
            || over_quic(address).is_some_and(|over_quic| self.listening.contains(&over_quic))
    }

    /// Whether this is the id of this peer.
    pub(super) fn is_id(&self, peer: &PeerId) -> bool {
        self.id.as_ref() == Some(peer)
    }
}

#[cfg(test)]
mod tests;
