//! Reaching and being reached: whom this peer asks to dial it, through whom others speak to it if they cannot, and where it looks
//! for those whom it misses.
//!
//! # How it works
//! - Peers that have a connection of their own with this one are asked to dial it: a few, one after the other, and again later.
//! - One that is reached says so to libp2p, which has it serve as a relay. One that is not takes places at two of those, and
//!   announces the ways through them.
//! - Where a circuit is all there is, a better way is tried from time to time: the other end may be one that can be dialed, and
//!   did not know of us. (Holes through two routers at once are made by DCUtR, when the circuit begins.)
//! - One that is wanted and not reached is looked for among those that are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use libp2p::core::transport::ListenerId;
use libp2p::swarm::ConnectionId;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::{Multiaddr, PeerId, identify, relay};
use peergrad_protocol::limits::{ADDRESS_BYTES_MAX, ADDRESSES_MAX};
use tokio::time::Instant;

use super::super::addresses::{parse_all, without_peer};
use super::super::check::{CHECK_PROTOCOL, Finding};
use super::super::circuits::{is_relayed, relay_of, through};
use super::super::gateway::Forwarding;
use super::super::identity::from_libp2p;
use super::super::link::LinkEvent;
use super::super::listen::{announced, beyond_this_machine};
use super::super::notice::Notice;
use super::super::reach::{Reachability, Standing, Survey};
use super::super::remote::{Remote, machine_of};
use super::switchboard::Switchboard;

/// What is known of how this peer is reached, and what is being done about it.
pub(super) struct Reaching {
    survey: Survey,
    /// Peers that answer questions.
    helpers: BTreeSet<PeerId>,
    /// Peers that pass on what is said, and where this peer has dialed them.
    relays: BTreeMap<PeerId, Multiaddr>,
    /// Places taken at them.
    places: BTreeMap<PeerId, ListenerId>,
    /// No place is asked for before.
    places_due: Instant,
    /// Where libp2p was told that this peer is reached.
    confirmed: Vec<Multiaddr>,
    /// What was told last.
    told: Option<Reachability>,
    /// What the driver knows: addresses, and whether this peer is reached.
    placed: (Vec<String>, bool),
    /// Peers that were met through a relay, and are reached without one since.
    pub(super) met: BTreeSet<PeerId>,
    /// When those who are missing are looked for next.
    search_due: Instant,
}

impl Reaching {
    /// Of a peer that listens on these addresses, and has announced those.
    pub(super) fn new(external: Vec<Multiaddr>, listening: &[Multiaddr], announced: Vec<String>) -> Self {
        let now = Instant::now();
        let listening = beyond_this_machine(listening);
        Self {
            survey: Survey::new(external, listening),
            helpers: BTreeSet::new(),
            relays: BTreeMap::new(),
            places: BTreeMap::new(),
            places_due: now,
            confirmed: Vec::new(),
            told: None,
            placed: (announced, true),
            met: BTreeSet::new(),
            search_due: now,
        }
    }
}

impl Switchboard {
    // What others say.

    /// The system has given us an address, or taken one away; or a relay has.
    pub(super) fn on_listening(&mut self) {
        let listening: Vec<_> = self.swarm.listeners().cloned().collect();
        let beyond = beyond_this_machine(&listening);
        self.reaching.survey.listen_on(beyond, Instant::now());
        self.tell_reach();
    }

    /// A place at a relay is gone; another one is taken later.
    pub(super) fn on_listener_closed(&mut self, listener: ListenerId) {
        let count = self.reaching.places.len();
        self.reaching.places.retain(|_, place| *place != listener);
        if self.reaching.places.len() != count {
            self.reaching.places_due = Instant::now() + PLACE_PAUSE;
            self.on_listening();
        }
    }

    /// A peer says what it speaks, where it listens, and where it sees this one.
    pub(super) fn on_identified(&mut self, id: PeerId, connection: ConnectionId, info: &identify::Info) {
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        remote.is_identified = true;
        // Its own loopback addresses would lead us to ourselves.
        let mut usable = parse_all(&announced(&[], &info.listen_addrs));
        let is_way = |address: &&Multiaddr| is_relayed(address) && relay_of(address) != Some(id);
        usable.extend(info.listen_addrs.iter().filter(is_way).cloned().map(without_peer));
        for address in &usable {
            remote.note_host(address);
            if !remote.addresses.contains(address) {
                remote.remember(address.clone());
                remote.begin_detour(Instant::now());
            }
        }
        let known = remote.connections.get(&connection).filter(|known| !known.is_relayed);
        let known = known.map(|known| known.dialed.clone());
        for address in usable {
            self.swarm.behaviour_mut().finding.add_address(&id, address);
        }
        // What is seen of a circuit is the relay.
        let Some(dialed) = known else { return self.open_lane(id) };
        self.reaching.survey.seen_at(id, &info.observed_addr);
        if info.protocols.contains(&CHECK_PROTOCOL) {
            self.reaching.helpers.insert(id);
        }
        match dialed.filter(|_| info.protocols.contains(&relay::HOP_PROTOCOL_NAME)) {
            Some(address) => _ = self.reaching.relays.insert(id, address),
            None => _ = self.reaching.relays.remove(&id),
        }
        self.tell_reach();
        self.open_lane(id);
    }

    /// What a peer has found that was asked to dial this one.
    pub(super) fn on_checked(&mut self, id: PeerId, findings: Option<Vec<(Multiaddr, Finding)>>) {
        self.reaching.survey.found(id, findings, Instant::now());
        self.confirm();
        self.tell_reach();
    }

    /// What a router says that was asked to forward a port.
    pub(super) fn on_router(&mut self, answer: Forwarding) {
        if self.reaching.survey.asked_router(answer.clone(), Instant::now()) {
            self.notify(Notice::Router(answer));
            self.tell_reach();
        }
    }

    /// A peer is not connected any more.
    pub(super) fn forget_way(&mut self, id: PeerId) {
        self.reaching.helpers.remove(&id);
        self.reaching.relays.remove(&id);
        self.reaching.survey.forget(&id);
        self.reaching.met.remove(&id);
    }

    // What is done about it.

    /// What is due.
    pub(super) fn look_for_ways(&mut self, now: Instant) {
        self.ask_helper(now);
        self.take_places(now);
        self.do_without_relays(now);
        self.search(now);
    }

    fn ask_helper(&mut self, now: Instant) {
        let Reaching { survey, helpers, .. } = &mut self.reaching;
        let Some(helper) = survey.next_helper(helpers.iter().copied(), now) else { return };
        let candidates = self.reaching.survey.candidates();
        self.lanes.spawn(self.lanes.clone().check(helper, candidates));
    }

    /// Tells libp2p where this peer is reached, so that it serves others.
    fn confirm(&mut self) {
        let reached = match self.reaching.survey.standing() {
            Standing::Reachable => self.reaching.survey.reached(),
            Standing::Unknown | Standing::Unreachable => Vec::new(),
        };
        if self.reaching.confirmed == reached {
            return;
        }
        for address in std::mem::replace(&mut self.reaching.confirmed, reached.clone()) {
            if !reached.contains(&address) {
                self.swarm.remove_external_address(&address);
            }
        }
        let status = if reached.is_empty() { relay::Status::Disable } else { relay::Status::Enable };
        self.swarm.behaviour_mut().relay.set_status(Some(status));
        reached.into_iter().for_each(|address| self.swarm.add_external_address(address));
        // Whoever speaks to this peer through a relay is to find the better way.
        let connected: Vec<_> = self.swarm.connected_peers().copied().collect();
        self.swarm.behaviour_mut().identify.push(connected);
    }

    /// Takes places at relays while this peer is not reached, and gives them back once it is and nobody speaks to it there any
    /// more.
    fn take_places(&mut self, now: Instant) {
        let is_unreachable = self.reaching.survey.standing() == Standing::Unreachable;
        if !is_unreachable {
            if self.remotes.values().any(|remote| !remote.circuits().is_empty()) {
                return;
            }
            for (_, place) in std::mem::take(&mut self.reaching.places) {
                self.swarm.remove_listener(place);
            }
            return;
        }
        if self.reaching.places.len() >= PLACES_MAX || now < self.reaching.places_due {
            return;
        }
        let relays = self.reaching.relays.iter();
        let Some((relay, address)) =
            relays.clone().find(|(relay, _)| !self.reaching.places.contains_key(relay))
        else {
            return;
        };
        let (relay, way) = (*relay, through(*relay, address.clone()));
        self.reaching.places_due = now + PLACE_PAUSE;
        if let Ok(place) = self.swarm.listen_on(way) {
            self.reaching.places.insert(relay, place);
        }
    }

    fn do_without_relays(&mut self, now: Instant) {
        let due: Vec<_> = self
            .remotes
            .iter_mut()
            .filter_map(|(id, remote)| Some((*id, remote.take_detour(now)?)))
            .collect();
        for (id, addresses) in due {
            let options = DialOpts::peer_id(id).condition(PeerCondition::Always).addresses(addresses);
            // There is a way already: nobody need hear that there is no better one.
            let _ = self.swarm.dial(options.allocate_new_port().build());
        }
    }

    /// Those who are wanted and not there are asked for at relays, and looked for among all.
    fn search(&mut self, now: Instant) {
        if now < self.reaching.search_due {
            return;
        }
        self.reaching.search_due = now + SEARCH_PAUSE;
        let guesses = self.reaching.relays.iter().map(|(relay, address)| through(*relay, address.clone()));
        let guesses: Vec<Multiaddr> = guesses.take(GUESSES_MAX).collect();
        let missing: Vec<_> = self.dialing.missing().take(SEARCHES_MAX).collect();
        for (id, mut circuits) in missing {
            circuits.extend(guesses.iter().cloned());
            circuits.retain(|circuit| relay_of(circuit) != Some(id));
            if !circuits.is_empty() {
                let options = DialOpts::peer_id(id).condition(PeerCondition::Always).addresses(circuits);
                // Beside the attempts that are told of: those are at addresses of its own, and may take long.
                let _ = self.swarm.dial(options.allocate_new_port().build());
            }
            // What comes of this joins the addresses of the next attempt.
            self.swarm.behaviour_mut().finding.get_closest_peers(id);
        }
    }

    // What is told.

    /// Tells driver and user what is new.
    pub(super) fn tell_reach(&mut self) {
        let survey = &self.reaching.survey;
        let standing = survey.standing();
        let listening: Vec<_> = self.swarm.listeners().cloned().collect();
        let mut best = survey.told();
        if standing == Standing::Reachable {
            best.extend(survey.reached());
        }
        let mut addresses = announced(&best, &listening);
        let mut ways: Vec<Multiaddr> =
            listening.iter().filter(|address| is_relayed(address)).cloned().map(without_peer).collect();
        // A relay may have addresses for its neighbours alone: the one at which it was dialed is good for others.
        let dialed: BTreeSet<_> = self.reaching.relays.values().filter_map(machine_of).collect();
        ways.sort_by_key(|way| machine_of(way).is_none_or(|machine| !dialed.contains(&machine)));
        let ways: Vec<_> =
            ways.iter().map(Multiaddr::to_string).filter(|way| way.len() <= ADDRESS_BYTES_MAX).collect();
        addresses.truncate(ADDRESSES_MAX - ways.len().min(PLACES_MAX));
        addresses.extend(ways.into_iter().take(PLACES_MAX));
        self.announce.send_if_modified(|known| {
            let is_new = *known != addresses;
            known.clone_from(&addresses);
            is_new
        });
        let placed = (addresses.clone(), standing != Standing::Unreachable);
        // One that only its own machine reaches need not be told.
        if self.reaching.placed != placed && !self.reaching.survey.listening.is_empty() {
            let (addresses, is_reachable) = placed.clone();
            self.tell(LinkEvent::Placed { addresses, is_reachable });
            self.reaching.placed = placed;
        }
        let relays = self.reaching.places.keys().filter_map(from_libp2p).collect();
        let is_relayed = |remote: &&Remote| !remote.connections.is_empty() && !remote.has_own_way();
        let relayed = self.remotes.values().filter(is_relayed).count();
        let report = self.reaching.survey.report(addresses, relays, (self.reaching.met.len(), relayed));
        if report.standing != Standing::Unknown && self.reaching.told.as_ref() != Some(&report) {
            self.reaching.told = Some(report.clone());
            self.notify(Notice::Reach(Box::new(report)));
        }
    }
}

/// Relays through which one is spoken to: one may go.
const PLACES_MAX: usize = 2;
/// Between two requests for a place.
const PLACE_PAUSE: Duration = Duration::from_secs(2);
/// How often those who are missing are looked for.
const SEARCH_PAUSE: Duration = Duration::from_secs(1);
/// Who is looked for at once; the others later.
const SEARCHES_MAX: usize = 8;
/// Relays at which one is asked for who may be known there.
const GUESSES_MAX: usize = 3;
