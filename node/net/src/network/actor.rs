//! The actor: the task that owns the swarm and everything that is known of each peer. It hands each event to the part that decides.
//!
//! ```text
//!   commands ---------.                    .---> links (links.rs): begin, end, lanes
//!   reports of lanes --+--> NetworkActor --+---> connections (connections.rs): redial, carriers
//!   swarm events -----'                    '---> reachability (upkeep.rs): dial-back, relays, search
//! ```

use std::time::Duration;

use futures::StreamExt;
use libp2p::{Multiaddr, Swarm};
use peergrad_protocol::Incarnation;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::command::Command;
use super::lanes::Lanes;
use super::links::Links;
use super::sinks::Sinks;
use super::status::NetworkStatus;
use super::upkeep::ReachabilityUpkeep;
use crate::address::{is_relayed, parse_all};
use crate::bootstrap_address::BootstrapAddress;
use crate::dial::Dialer;
use crate::handshake_limits::RefusedMachine;
use crate::identity::{from_libp2p, to_libp2p};
use crate::listen::Claim;
use crate::notice::Notice;
use crate::reachability::Connectivity;
use crate::reachability::dial_rule::may_lead_there;
use crate::remote::{LinkIntent, Remotes};
use crate::transport::SwarmBehaviour;

/// The times at which the user hears of refused connections: ever more rarely, so that no stranger can fill the screen.
struct RefusalReports {
    /// No report is made before this time.
    due: Instant,
    /// The pause after the next report.
    pause: Duration,
}

/// The state of a running network.
pub(super) struct NetworkActor {
    /// The connections of libp2p.
    pub(super) swarm: Swarm<SwarmBehaviour>,
    /// What is known of each peer.
    pub(super) remotes: Remotes,
    /// The peers to dial.
    pub(super) dialer: Dialer,
    /// How others reach this peer.
    pub(super) connectivity: Connectivity,
    /// What the task of each lane needs.
    pub(super) lanes: Lanes,
    /// The number of the last outgoing lane.
    outgoing_count: u64,
    /// Where the network reports to.
    pub(super) sinks: Sinks,
    /// When the user may hear of refused connections again.
    refusal_reports: RefusalReports,
    /// The claim on the port, held as long as the swarm listens.
    _claim: Claim,
}

impl NetworkActor {
    pub(super) fn new(
        swarm: Swarm<SwarmBehaviour>,
        lanes: Lanes,
        sinks: Sinks,
        external: Vec<Multiaddr>,
        start: Incarnation,
        claim: Claim,
    ) -> Self {
        let listening: Vec<_> = swarm.listeners().cloned().collect();
        let mut dialer = Dialer::new(*swarm.local_peer_id());
        dialer.listen_on(listening.clone());
        let connectivity = Connectivity::new(external, &listening, sinks.addresses.borrow().clone());
        Self {
            swarm,
            remotes: Remotes::new(start),
            dialer,
            connectivity,
            lanes,
            outgoing_count: 0,
            sinks,
            refusal_reports: RefusalReports { due: Instant::now(), pause: REFUSALS_PAUSE },
            _claim: claim,
        }
    }

    /// Dials this address until a peer answers there.
    pub(super) fn want_bootstrap(&mut self, bootstrap: BootstrapAddress) {
        self.dialer.want_bootstrap(bootstrap, Instant::now());
    }

    /// Handles commands and events until all senders of commands are gone.
    pub(super) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let mut rounds = interval(ROUND);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // Commands first: a connection that closes after a goodbye is not a loss, if the goodbye has been handled by
                // then.
                biased;
                command = commands.recv() => match command {
                    Some(command) => self.on_command(command),
                    None => return,
                },
                _ = rounds.tick() => self.on_tick(),
                event = self.swarm.select_next_some() => self.on_swarm_event(event),
            }
            self.dial_due();
        }
    }

    /// The part that begins and ends links.
    pub(super) fn links(&mut self) -> Links<'_> {
        let Self { swarm, remotes, dialer, lanes, outgoing_count, sinks, .. } = self;
        Links { swarm, remotes, dialer, lanes, outgoing_count, sinks }
    }

    /// The part that keeps this peer reachable.
    pub(super) fn upkeep(&mut self) -> ReachabilityUpkeep<'_> {
        let Self { swarm, remotes, dialer, connectivity, lanes, sinks, .. } = self;
        ReachabilityUpkeep { swarm, remotes, dialer, connectivity, lanes, sinks }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Dial(contact) => {
                let Some(id) = to_libp2p(contact.peer).filter(|id| id != self.swarm.local_peer_id()) else {
                    return;
                };
                let mut addresses = parse_all(&contact.addresses);
                let own = self.dialer.own_ips();
                let seen_at = self.remotes.get_mut(&id).map_or(&[][..], |remote| &remote.paths.ips);
                addresses.retain(|address| may_lead_there(address, seen_at, &own));
                if addresses.iter().any(is_relayed) {
                    self.connectivity.search_soon(Instant::now());
                }
                self.dialer.want(id, addresses, Instant::now());
                if let Some(remote) = self.remotes.get_mut(&id) {
                    remote.link.intent = LinkIntent::Connect;
                    if remote.has_usable_connection() {
                        self.dialer.mark_connected(id, remote.paths.carriers);
                    }
                    self.links().open_lane(id);
                }
            }
            Command::HangUp(peer) => {
                if let Some(id) = to_libp2p(peer) {
                    self.dialer.forget(id);
                    self.links().close(id, LinkIntent::Disconnect);
                }
            }
            Command::StopDialing(peer) => {
                if let Some(id) = to_libp2p(peer) {
                    self.dialer.forget(id);
                }
            }
            Command::KeepWanted(peers) => {
                self.dialer.keep_wanted(|id| from_libp2p(id).is_some_and(|peer| peers.contains(&peer)));
            }
            Command::Disconnect(peer) => {
                if let Some(id) = to_libp2p(peer) {
                    self.links().disconnect(id, "disconnected on request");
                }
            }
            Command::KeepOnly(peers) => {
                let is_kept = |id| from_libp2p(id).is_some_and(|peer| peers.contains(&peer));
                let others: Vec<_> =
                    self.swarm.connected_peers().filter(|id| !is_kept(id)).copied().collect();
                for id in others {
                    self.links().disconnect(id, "the run has another secret");
                }
            }
            // The task that asked may be gone.
            Command::Status(reply) => {
                _ = reply.send(NetworkStatus::of(self.remotes.iter().map(|(_, remote)| remote), &self.dialer))
            }
            Command::Report(id, report) => self.links().on_report(id, report),
            Command::Checked(id, findings) => self.upkeep().on_checked(id, findings),
            Command::CircuitWanted => self.connectivity.cut_off.want_circuit(Instant::now()),
            Command::AskedRouter(answer) => self.upkeep().on_router(answer),
            Command::HandshakeRefused { from, reason } => {
                let count = self.lanes.counters.add_refused_stranger();
                // Reported ever more rarely, so that no stranger can fill the screen.
                if let Some(reason) = reason
                    && count.is_power_of_two()
                {
                    self.sinks.notify(Notice::HandshakeRefused { from, reason, count });
                }
            }
        }
    }

    /// Checks the timers.
    fn on_tick(&mut self) {
        let now = Instant::now();
        self.links().give_up_overdue(now);
        self.upkeep().maintain(now);
        self.links().open_lanes();
        self.count_refused(now);
    }

    /// Counts the connections that were refused during handshakes, and reports them if that is due.
    fn count_refused(&mut self, now: Instant) {
        let handshakes = self.swarm.behaviour().handshake_limits.handshakes();
        self.lanes.counters.add_refused_connections(handshakes.take_refused_count());
        if now < self.refusal_reports.due {
            return;
        }
        let Some(RefusedMachine { machine, count }) = handshakes.take_report() else { return };
        let RefusalReports { due, pause } = &mut self.refusal_reports;
        *due = now + *pause;
        *pause = (2 * *pause).min(REFUSALS_PAUSE_MAX);
        self.sinks.notify(Notice::ConnectionsRefused { from: machine, count });
    }

    fn dial_due(&mut self) {
        let now = Instant::now();
        for options in self.dialer.take_due(now) {
            let attempt = options.connection_id();
            if let Err(error) = self.swarm.dial(options) {
                self.on_dial_failed(attempt, &error);
            }
        }
    }
}

/// How often the timers are checked.
const ROUND: Duration = Duration::from_millis(100);
/// The pause after the first report of refused connections. It doubles with each report.
const REFUSALS_PAUSE: Duration = Duration::from_secs(60);
const REFUSALS_PAUSE_MAX: Duration = Duration::from_secs(3600);
