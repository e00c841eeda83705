//! The upkeep of reachability: asking others to dial this peer back, using relays while they cannot, and searching for missing peers.
//!
//! # How it works
//! - Directly connected peers are asked to dial this one back: a few of them, one after the other, and again later.
//! - A reachable peer tells libp2p so, and then serves as a relay. An unreachable peer reserves places at two relays and
//!   announces the addresses through them.
//! - While a peer is connected through a circuit only, a better connection is tried from time to time: perhaps the other end
//!   can be dialed and did not know this peer. (DCUtR punches holes through two routers when the circuit begins.)
//! - A wanted peer that is not reached is searched for among the connected ones.

use std::collections::BTreeSet;
use std::time::Duration;

use libp2p::core::transport::ListenerId;
use libp2p::swarm::ConnectionId;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::{Multiaddr, PeerId, Swarm, identify, relay};
use peergrad_protocol::limits::{ADDRESS_BYTES_MAX, ADDRESSES_MAX};
use tokio::time::Instant;

use super::lanes::Lanes;
use super::sinks::Sinks;
use crate::address::{ip_of, is_relayed, parse_all, relay_of, through, without_peer};
use crate::dial::Dialer;
use crate::identity::from_libp2p;
use crate::link::{LinkEvent, Route};
use crate::listen::{announced, beyond_this_machine};
use crate::notice::Notice;
use crate::reachability::dial_rule::may_lead_there;
use crate::reachability::{
    Advice, CIRCUIT_WANTED_PROTOCOL, Connectivity, DIAL_BACK_PROTOCOL, DialBackOutcome, PortForwarding,
    RELAYS_RESERVED_MAX, ReachabilityState,
};
use crate::remote::{RemotePeer, Remotes};
use crate::transport::SwarmBehaviour;

/// Keeps this peer reachable, and finds missing peers. It borrows what that needs from the actor.
pub(super) struct ReachabilityUpkeep<'a> {
    /// Listens at relays, serves as a relay, and dials.
    pub(super) swarm: &'a mut Swarm<SwarmBehaviour>,
    /// The connected peers, some of them through a relay only.
    pub(super) remotes: &'a mut Remotes,
    /// Knows the wanted peers that are not connected, and where this peer listens.
    pub(super) dialer: &'a mut Dialer,
    /// What is known of how others reach this peer.
    pub(super) connectivity: &'a mut Connectivity,
    /// Starts the tasks that ask others to dial back.
    pub(super) lanes: &'a Lanes,
    /// Receives what is reported to the driver and to the user.
    pub(super) sinks: &'a Sinks,
}

impl ReachabilityUpkeep<'_> {
    // Reports of others.

    /// The system has added or removed an address of this machine, or a relay has.
    pub(super) fn on_listening(&mut self) {
        let listening: Vec<_> = self.swarm.listeners().cloned().collect();
        let beyond = beyond_this_machine(&listening);
        self.dialer.listen_on(listening);
        self.connectivity.survey.listen_on(beyond, Instant::now());
        self.report();
    }

    /// A listener has closed. If it was a reservation, another one is made later.
    pub(super) fn on_listener_closed(&mut self, listener: ListenerId) {
        if self.connectivity.end_reservation(listener, Instant::now()) {
            self.on_listening();
        }
    }

    /// A peer names its protocols, its addresses, and the address at which it sees this one.
    pub(super) fn on_identified(&mut self, id: PeerId, connection: ConnectionId, info: &identify::Info) {
        let own = self.dialer.own_ips();
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        remote.paths.is_identified = true;
        let mut usable = parse_all(&announced(&[], &info.listen_addrs));
        let is_way = |address: &&Multiaddr| is_relayed(address) && relay_of(address) != Some(id);
        usable.extend(info.listen_addrs.iter().filter(is_way).cloned().map(without_peer));
        usable.retain(|address| may_lead_there(address, &remote.paths.ips, &own));
        for address in &usable {
            remote.paths.note_host(address);
            if !remote.paths.addresses.contains(address) {
                remote.paths.remember(address.clone());
                remote.paths.begin_relay_upgrade(Instant::now());
            }
        }
        let known = remote.paths.connections.get(&connection).filter(|known| !known.is_relayed);
        let known = known.map(|known| known.dialed.clone());
        for address in usable {
            self.swarm.behaviour_mut().discovery.add_address(&id, address);
        }
        // Over a circuit the other end sees the relay's address.
        let Some(dialed) = known else { return };
        self.connectivity.survey.seen_at(id, &info.observed_addr);
        if info.protocols.contains(&DIAL_BACK_PROTOCOL) {
            self.connectivity.helpers.insert(id);
        }
        match dialed.filter(|_| info.protocols.contains(&relay::HOP_PROTOCOL_NAME)) {
            Some(address) => _ = self.connectivity.relays.insert(id, address),
            None => _ = self.connectivity.relays.remove(&id),
        }
        self.report();
    }

    /// The findings of a peer that was asked to dial this one; `None` if it did not answer.
    pub(super) fn on_checked(&mut self, id: PeerId, findings: Option<Vec<(Multiaddr, DialBackOutcome)>>) {
        self.connectivity.survey.found(id, findings, Instant::now());
        self.confirm();
        self.report();
    }

    /// The answer of the router that was asked to forward a port.
    pub(super) fn on_router(&mut self, answer: PortForwarding) {
        if self.connectivity.survey.asked_router(answer.clone(), Instant::now()) {
            self.sinks.notify(Notice::PortForwarding(answer));
            self.report();
        }
    }

    /// As a relay, this peer has refused a circuit to `wanted`, which has no reservation: tells it that one is wanted.
    pub(super) fn on_circuit_refused(&mut self, wanted: PeerId) {
        let opener = self.lanes.opener.clone();
        self.lanes.spawn(async move {
            // A peer that does not know the protocol makes no reservation.
            let _ = opener.open(wanted, CIRCUIT_WANTED_PROTOCOL).await;
        });
    }

    // Regular work.

    /// Does the regular work that is due.
    pub(super) fn maintain(&mut self, now: Instant) {
        self.note_cut_off(now);
        self.ask_dial_back(now);
        self.reserve_relays(now);
        self.upgrade_relayed(now);
        self.search_missing(now);
    }

    /// Notes which peers are reached through a relay only, and reports changes.
    fn note_cut_off(&mut self, now: Instant) {
        let cut_off = &mut self.connectivity.cut_off;
        let before: Vec<_> = cut_off.peers().copied().collect();
        for (id, remote) in self.remotes.iter() {
            let is_connected = !remote.paths.connections.is_empty();
            cut_off.note(*id, is_connected.then(|| remote.paths.route() == Route::Relayed), now);
        }
        cut_off.forget_gone(now);
        if !cut_off.peers().eq(&before) {
            self.report();
        }
    }

    fn ask_dial_back(&mut self, now: Instant) {
        let Connectivity { survey, helpers, .. } = &mut *self.connectivity;
        let Some(helper) = survey.next_helper(helpers.iter().copied(), now) else { return };
        let candidates = self.connectivity.survey.candidates();
        self.lanes.spawn(self.lanes.clone().check(helper, candidates));
    }

    /// Tells libp2p at which addresses this peer is reachable, so that it serves as a relay.
    fn confirm(&mut self) {
        let reached = match self.connectivity.survey.standing() {
            ReachabilityState::Reachable => self.connectivity.survey.reached(),
            ReachabilityState::Unknown | ReachabilityState::Unreachable => Vec::new(),
        };
        if self.connectivity.confirmed == reached {
            return;
        }
        for address in std::mem::replace(&mut self.connectivity.confirmed, reached.clone()) {
            if !reached.contains(&address) {
                self.swarm.remove_external_address(&address);
            }
        }
        let status = if reached.is_empty() { relay::Status::Disable } else { relay::Status::Enable };
        self.swarm.behaviour_mut().relay.set_status(Some(status));
        reached.into_iter().for_each(|address| self.swarm.add_external_address(address));
        // Peers that are connected through a relay should learn the better addresses.
        let connected: Vec<_> = self.swarm.connected_peers().copied().collect();
        self.swarm.behaviour_mut().identify.push(connected);
    }

    /// Makes reservations at relays while this peer is unreachable. Once it is reachable, ends them when no circuit is left.
    fn reserve_relays(&mut self, now: Instant) {
        let is_unreachable = self.connectivity.survey.standing() == ReachabilityState::Unreachable;
        if !is_unreachable && !self.connectivity.cut_off.needs_relays(now) {
            if self.remotes.iter().any(|(_, remote)| !remote.paths.circuits().is_empty()) {
                return;
            }
            for (_, reservation) in std::mem::take(&mut self.connectivity.reservations) {
                self.swarm.remove_listener(reservation);
            }
            return;
        }
        let Some((relay, address)) = self.connectivity.next_reservation(now) else { return };
        if let Ok(reservation) = self.swarm.listen_on(address) {
            self.connectivity.reservations.insert(relay, reservation);
        }
    }

    fn upgrade_relayed(&mut self, now: Instant) {
        let due: Vec<_> = self
            .remotes
            .iter_mut()
            .filter_map(|(id, remote)| Some((*id, remote.paths.take_relay_upgrade(now)?)))
            .collect();
        for (id, addresses) in due {
            let options = DialOpts::peer_id(id).condition(PeerCondition::Always).addresses(addresses);
            // There is a connection already, so the user need not hear if no better one is found.
            let _ = self.swarm.dial(options.allocate_new_port().build());
        }
    }

    /// Asks for wanted peers that are not connected, at relays and in the peer discovery.
    fn search_missing(&mut self, now: Instant) {
        if now < self.connectivity.search_due {
            return;
        }
        self.connectivity.search_due = now + SEARCH_PAUSE;
        let relays = self.connectivity.relays.iter().filter(|(_, address)| !is_relayed(address));
        let guesses = relays.map(|(relay, address)| through(*relay, address.clone()));
        let guesses: Vec<Multiaddr> = guesses.take(GUESSES_MAX).collect();
        let mut missing: Vec<_> = self.dialer.missing().collect();
        // Where many are missing, they take turns.
        let searched = missing.len().min(SEARCHES_MAX);
        let first = self.connectivity.next_search.checked_rem(missing.len()).unwrap_or_default();
        self.connectivity.next_search = first + searched;
        missing.rotate_left(first);
        for (id, mut circuits) in missing.into_iter().take(searched) {
            circuits.extend(guesses.iter().cloned());
            circuits.retain(|circuit| relay_of(circuit) != Some(id));
            if !circuits.is_empty() {
                let options = DialOpts::peer_id(id).condition(PeerCondition::Always).addresses(circuits);
                // This is in addition to the dialer's attempts, which use the peer's own addresses and may take long.
                let _ = self.swarm.dial(options.allocate_new_port().build());
            }
            // Addresses that are found join the next attempt.
            self.swarm.behaviour_mut().discovery.search(id);
        }
    }

    // Reports of this peer.

    /// Reports changes to the driver and to the user.
    pub(super) fn report(&mut self) {
        let survey = &self.connectivity.survey;
        let standing = survey.standing();
        let listening: Vec<_> = self.swarm.listeners().cloned().collect();
        let mut best = survey.given_addresses();
        if standing == ReachabilityState::Reachable {
            best.extend(survey.reached());
        }
        let mut addresses = announced(&best, &listening);
        let mut carriers: Vec<Multiaddr> =
            listening.iter().filter(|address| is_relayed(address)).cloned().map(without_peer).collect();
        // A relay may have addresses that only its neighbours can use: the one at which this peer dialed it works for others.
        let dialed: BTreeSet<_> = self.connectivity.relays.values().filter_map(ip_of).collect();
        carriers.sort_by_key(|address| ip_of(address).is_none_or(|machine| !dialed.contains(&machine)));
        let carriers: Vec<_> = carriers
            .iter()
            .map(Multiaddr::to_string)
            .filter(|address| address.len() <= ADDRESS_BYTES_MAX)
            .collect();
        addresses.truncate(ADDRESSES_MAX - carriers.len().min(RELAYS_RESERVED_MAX));
        addresses.extend(carriers.into_iter().take(RELAYS_RESERVED_MAX));
        self.sinks.announce(&addresses);
        let cut_off: Vec<_> = self.connectivity.cut_off.peers().filter_map(from_libp2p).collect();
        // One badly connected peer does not take the shares of all others: only who is cut off from as many as it reaches gives its share up.
        let reached = self.remotes.iter().filter(|(_, remote)| {
            !remote.paths.connections.is_empty() && remote.paths.route() != Route::Relayed
        });
        let yields = !cut_off.is_empty() && cut_off.len() >= reached.count();
        let is_reachable = standing != ReachabilityState::Unreachable && !yields;
        let last_reported = (addresses.clone(), is_reachable);
        // A peer that only its own machine can reach reports nothing.
        if self.connectivity.last_reported != last_reported && !self.connectivity.survey.listening.is_empty()
        {
            let (addresses, is_reachable) = last_reported.clone();
            self.sinks.emit(LinkEvent::ReachabilityChanged { addresses, is_reachable });
            self.connectivity.last_reported = last_reported;
        }
        let relays = self.connectivity.reservations.keys().filter_map(from_libp2p).collect();
        let is_relayed = |(_, remote): &(&PeerId, &RemotePeer)| remote.paths.route() == Route::Relayed;
        let relayed = self.remotes.iter().filter(is_relayed).count();
        let mut report =
            self.connectivity.survey.report(addresses, relays, (self.connectivity.upgraded.len(), relayed));
        if standing != ReachabilityState::Unreachable && !is_reachable {
            report.state = ReachabilityState::Unreachable;
            report.advice = Advice::Connect;
            report.cut_off = cut_off;
        }
        if report.state != ReachabilityState::Unknown && self.connectivity.reported.as_ref() != Some(&report)
        {
            self.connectivity.reported = Some(report.clone());
            self.sinks.notify(Notice::Reachability(Box::new(report)));
        }
    }
}

/// How often missing peers are searched for.
const SEARCH_PAUSE: Duration = Duration::from_secs(1);
/// How many peers are searched for at once; the others come later.
const SEARCHES_MAX: usize = 8;
/// How many relays are asked for each missing peer.
const GUESSES_MAX: usize = 3;
