//! The limits on handshakes: how many incoming connections may be open whose other end has not yet proved the secret.
//!
//! A waiting room has a fixed number of chairs. One visitor with many coats must not take them all, and some chairs are kept for guests
//! who were here before.
//!
//! # How it works
//! - TCP and QUIC have places of their own. So a flood over one carrier leaves the other one open.
//! - One machine has a few places of each carrier.
//! - A quarter of the places is kept for known machines: those with which a connection was established before.
//! - A TCP connection whose other end stays [silent](super::silence_limit) loses its place while places are scarce.
//!
//! # Invariants
//! - All places together are fewer than the connections that the swarm sets up at once. The rest is for circuits, which only members open.
//! - What is remembered of strangers is bounded.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::swarm::behaviour::{ConnectionEstablished, ListenFailure};
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent,
    ToSwarm, dummy,
};
use libp2p::{Multiaddr, PeerId};
use peergrad_protocol::limits::MEMBERS_MAX;

use super::address::{Carrier, is_relayed};
use super::machine::Machine;

/// Limits the incoming connections whose other end has not yet proved the secret.
#[derive(Debug)]
pub(super) struct HandshakeLimits(Handshakes);

/// The handshakes that are under way. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Handshakes(Arc<Mutex<State>>);

/// The connections of one machine that were refused since its last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RefusedMachine {
    /// The machine.
    pub(super) machine: Machine,
    /// How many of its connections were refused.
    pub(super) count: u64,
}

#[derive(Debug)]
struct State {
    limits: Limits,
    /// The connections that hold a place.
    pending: BTreeMap<ConnectionId, (Machine, Carrier)>,
    /// The machines with which a connection was established, the latest last.
    known: VecDeque<Machine>,
    /// Connections refused since the last report. Machines beyond [`REFUSED_MACHINES_MAX`] are only in `refused_count`.
    refused: BTreeMap<Machine, u64>,
    /// All connections that were refused since the last call of [`Handshakes::take_refused_count`].
    refused_count: u64,
}

/// How many places there are for each carrier.
#[derive(Clone, Copy, Debug)]
struct Limits {
    tcp: CarrierLimits,
    quic: CarrierLimits,
}

#[derive(Clone, Copy, Debug)]
struct CarrierLimits {
    /// Places for all machines.
    all: usize,
    /// Those of them that unknown machines may hold.
    unknown: usize,
    /// Places of one unknown machine.
    per_unknown: usize,
    /// Places of one known machine: perhaps many peers run there.
    per_known: usize,
}

/// A connection is refused because too many others are being set up.
#[derive(Debug, thiserror::Error)]
#[error("too many connections at once")]
struct TooMany;

impl Handshakes {
    /// No handshake yet; `pending_max` is how many connections the swarm sets up at once.
    pub(super) fn new(pending_max: u32) -> Self {
        Self(Arc::new(Mutex::new(State {
            limits: Limits::of(pending_max as usize),
            pending: BTreeMap::new(),
            known: VecDeque::new(),
            refused: BTreeMap::new(),
            refused_count: 0,
        })))
    }

    /// Whether places over TCP are so scarce that this machine's silent connections should end.
    pub(super) fn are_scarce(&self, machine: Machine) -> bool {
        let state = self.lock();
        let limits = state.limits.tcp;
        state.held(Carrier::Tcp) * 2 >= limits.unknown
            || state.held_by(machine, Carrier::Tcp) >= limits.per_machine(state.known.contains(&machine))
    }

    /// How many connections were refused since the last call.
    pub(super) fn take_refused_count(&self) -> u64 {
        std::mem::take(&mut self.lock().refused_count)
    }

    /// The machine of which most connections were refused since the last report, if they are worth one. Counting then restarts.
    pub(super) fn take_report(&self) -> Option<RefusedMachine> {
        let mut state = self.lock();
        let (machine, count) = state.refused.iter().max_by_key(|(_, count)| **count)?;
        let most = RefusedMachine { machine: *machine, count: *count };
        (most.count >= REPORTED_MIN).then(|| {
            state.refused.clear();
            most
        })
    }

    // Counting cannot panic.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn admit(&mut self, connection: ConnectionId, machine: Machine, carrier: Carrier) -> Result<(), TooMany> {
        let is_known = self.known.contains(&machine);
        let limits = self.limits.over(carrier);
        let count_max = if is_known { limits.all } else { limits.unknown };
        if self.held(carrier) >= count_max || self.held_by(machine, carrier) >= limits.per_machine(is_known) {
            self.note_refused(machine);
            return Err(TooMany);
        }
        self.pending.insert(connection, (machine, carrier));
        Ok(())
    }

    fn held(&self, carrier: Carrier) -> usize {
        self.pending.values().filter(|(_, other)| *other == carrier).count()
    }

    fn held_by(&self, machine: Machine, carrier: Carrier) -> usize {
        self.pending.values().filter(|holder| **holder == (machine, carrier)).count()
    }

    fn note_refused(&mut self, machine: Machine) {
        self.refused_count += 1;
        if self.refused.len() < REFUSED_MACHINES_MAX || self.refused.contains_key(&machine) {
            *self.refused.entry(machine).or_default() += 1;
        }
    }

    fn note_established(&mut self, machine: Machine) {
        self.known.retain(|known| *known != machine);
        if self.known.len() == KNOWN_MAX {
            self.known.pop_front();
        }
        self.known.push_back(machine);
    }
}

impl Limits {
    fn of(pending_max: usize) -> Self {
        let quarter = pending_max / 4;
        let (quic, circuits) = (quarter.min(QUIC_MAX), pending_max / 8);
        let tcp = pending_max - circuits - quic;
        let tcp = CarrierLimits {
            all: tcp,
            unknown: tcp - quarter,
            per_unknown: quarter.min(TCP_PER_MACHINE_MAX),
            per_known: quarter,
        };
        let per_machine = (quic / 2).min(QUIC_PER_MACHINE_MAX);
        let quic = CarrierLimits {
            all: quic,
            unknown: quic - quic / 4,
            per_unknown: per_machine,
            per_known: per_machine,
        };
        Self { tcp, quic }
    }

    fn over(&self, carrier: Carrier) -> CarrierLimits {
        match carrier {
            Carrier::Tcp => self.tcp,
            Carrier::Quic => self.quic,
        }
    }
}

impl CarrierLimits {
    fn per_machine(&self, is_known: bool) -> usize {
        if is_known { self.per_known } else { self.per_unknown }
    }
}

impl HandshakeLimits {
    pub(super) fn new(handshakes: Handshakes) -> Self {
        Self(handshakes)
    }

    /// The handshakes that it limits.
    pub(super) fn handshakes(&self) -> &Handshakes {
        &self.0
    }
}

impl NetworkBehaviour for HandshakeLimits {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        connection: ConnectionId,
        at: &Multiaddr,
        from: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        if is_relayed(at) || is_relayed(from) {
            return Ok(());
        }
        let admitted = self.0.lock().admit(connection, Machine::at(from), Carrier::of(from));
        admitted.map_err(ConnectionDenied::new)
    }

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            FromSwarm::ConnectionEstablished(ConnectionEstablished { connection_id, endpoint, .. }) => {
                let mut state = self.0.lock();
                state.pending.remove(&connection_id);
                if !endpoint.is_relayed() {
                    state.note_established(Machine::at(endpoint.get_remote_address()));
                }
            }
            FromSwarm::ListenFailure(ListenFailure { connection_id, .. }) => {
                self.0.lock().pending.remove(&connection_id);
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}

/// Places of one unknown machine over TCP.
const TCP_PER_MACHINE_MAX: usize = 16;
/// Places over QUIC. The first packets of QUIC may carry a forged address, so these are few.
pub(super) const QUIC_MAX: usize = 16;
/// Places of one machine over QUIC.
const QUIC_PER_MACHINE_MAX: usize = 4;
/// Machines that are remembered as known.
const KNOWN_MAX: usize = MEMBERS_MAX;
/// Machines whose refused connections are counted apart.
const REFUSED_MACHINES_MAX: usize = 64;
/// Fewer refused connections of one machine are not worth a report: perhaps many peers began there at the same moment.
const REPORTED_MIN: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// A swarm's limits, and the number of the next connection.
    struct Listener {
        limits: HandshakeLimits,
        next: usize,
    }

    impl Listener {
        fn new(pending_max: u32) -> Self {
            Self { limits: HandshakeLimits::new(Handshakes::new(pending_max)), next: 0 }
        }

        /// A connection arrives from the host `10.0.HOST`; `None` if it is refused.
        fn knock(&mut self, host: &str, carrier: Carrier) -> Option<ConnectionId> {
            let id = ConnectionId::new_unchecked(self.next);
            self.next += 1;
            let transport = match carrier {
                Carrier::Tcp => "tcp/40000",
                Carrier::Quic => "udp/40000/quic-v1",
            };
            let from = format!("/ip4/10.0.{host}/{transport}").parse().unwrap();
            let at = "/ip4/10.0.0.1/tcp/9".parse().unwrap();
            self.limits.handle_pending_inbound_connection(id, &at, &from).is_ok().then_some(id)
        }

        /// How many connections of this host are let in until one is refused.
        fn fill(&mut self, host: &str, carrier: Carrier) -> usize {
            (0..).find(|_| self.knock(host, carrier).is_none()).unwrap()
        }

        /// So many machines take all places that they can get over TCP.
        fn flood(&mut self, hosts: usize) -> usize {
            (0..hosts).map(|host| self.fill(&format!("9.{host}"), Carrier::Tcp)).sum()
        }

        fn handshakes(&self) -> Handshakes {
            self.limits.handshakes().clone()
        }
    }

    fn machine(ip: &str) -> Machine {
        ip.parse::<std::net::IpAddr>().unwrap().into()
    }

    #[test]
    fn one_machine_that_renews_its_connections_keeps_no_other_machine_out() {
        let mut listener = Listener::new(256);
        assert_eq!(listener.fill("0.7", Carrier::Tcp), TCP_PER_MACHINE_MAX);
        for _ in 0..2000 {
            // Each connection that ends is replaced at once.
            let ended = *listener.handshakes().lock().pending.keys().next().unwrap();
            listener.handshakes().lock().pending.remove(&ended);
            assert_eq!(listener.fill("0.7", Carrier::Tcp), 1);
            let other = listener.knock("0.8", Carrier::Tcp).expect("another machine is let in");
            listener.handshakes().lock().pending.remove(&other);
        }
        assert!(listener.knock("0.7", Carrier::Quic).is_some(), "over QUIC there is room");
    }

    #[test]
    fn many_machines_leave_places_for_known_ones_and_for_quic() {
        let mut listener = Listener::new(256);
        listener.handshakes().lock().note_established(machine("10.0.0.8"));
        let strangers = listener.flood(100);
        assert_eq!(listener.knock("0.7", Carrier::Tcp), None, "strangers have taken all that they may");
        assert!(listener.knock("0.8", Carrier::Tcp).is_some(), "a known machine is let in");
        assert!(listener.knock("0.7", Carrier::Quic).is_some(), "over QUIC there is room");
        assert!(strangers + 64 <= 256, "{strangers}");
    }

    #[test]
    fn places_over_quic_are_limited_in_total_and_per_machine() {
        let mut listener = Listener::new(256);
        assert_eq!(listener.fill("0.7", Carrier::Quic), QUIC_PER_MACHINE_MAX);
        let others: usize = (0..10).map(|host| listener.fill(&format!("9.{host}"), Carrier::Quic)).sum();
        assert!(QUIC_PER_MACHINE_MAX + others < QUIC_MAX, "some are kept for known machines");
        assert!(listener.knock("0.7", Carrier::Tcp).is_some(), "over TCP there is room");
    }

    #[test]
    fn all_places_together_are_fewer_than_the_connections_that_the_swarm_sets_up() {
        for pending_max in [16, 17, 64, 256] {
            let Limits { tcp, quic } = Limits::of(pending_max);
            assert!(tcp.all + quic.all < pending_max);
            for limits in [tcp, quic] {
                let per_machine = limits.per_unknown.max(limits.per_known);
                assert!(0 < limits.per_unknown && per_machine < limits.all && limits.unknown < limits.all);
            }
        }
    }

    #[test]
    fn silent_connections_end_only_while_places_are_scarce() {
        let mut listener = Listener::new(256);
        listener.knock("0.7", Carrier::Tcp);
        assert!(!listener.handshakes().are_scarce(machine("10.0.0.7")));
        listener.fill("0.7", Carrier::Tcp);
        assert!(listener.handshakes().are_scarce(machine("10.0.0.7")), "it holds all that it may");
        assert!(!listener.handshakes().are_scarce(machine("10.0.0.8")));
        listener.flood(100);
        assert!(listener.handshakes().are_scarce(machine("10.0.0.8")), "most places are taken");
    }

    #[test]
    fn the_machine_with_most_refused_connections_is_reported() {
        let mut listener = Listener::new(256);
        assert_eq!(listener.handshakes().take_report(), None);
        for _ in 0..100 {
            listener.fill("0.7", Carrier::Tcp);
        }
        listener.fill("0.8", Carrier::Tcp);
        assert_eq!(listener.handshakes().take_refused_count(), 101);
        let report = RefusedMachine { machine: machine("10.0.0.7"), count: 100 };
        assert_eq!(listener.handshakes().take_report(), Some(report));
        listener.fill("0.8", Carrier::Tcp);
        assert_eq!(listener.handshakes().take_report(), None, "one is not worth a report");
    }

    #[test]
    fn what_is_remembered_of_machines_is_bounded() {
        let mut listener = Listener::new(256);
        let handshakes = listener.handshakes();
        for number in 0..2 * KNOWN_MAX as u32 {
            handshakes.lock().note_established(Machine::from(std::net::IpAddr::from(number.to_be_bytes())));
        }
        assert_eq!(handshakes.lock().known.len(), KNOWN_MAX);
        listener.flood(200);
        assert_eq!(handshakes.lock().refused.len(), REFUSED_MACHINES_MAX);
        assert_eq!(handshakes.take_refused_count(), 200);
    }
}
