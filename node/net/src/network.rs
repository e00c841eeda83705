//! The network: the driver's end of the swarm and the links.
//!
//! ```text
//!   driver --- commands ---> actor (one task: swarm, remotes, dialer) --- link events ---> driver
//!                                 ^ reports          | spawns
//!                             lanes (one task for each) ------------- frames, credit -----------> driver
//! ```
//! One task, the actor, owns everything that is known of connections and links; lanes ask it what a session number means. So the
//! up, the frames and the down of a link reach the driver in that order, through one queue.

mod actor;
mod command;
mod connections;
mod handle;
mod lanes;
mod links;
mod ports;
mod sinks;
mod status;
mod upkeep;

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::sync::Arc;

use futures::future::BoxFuture;
use libp2p::{Multiaddr, Swarm};
use peergrad_protocol::invite::Secret;
use peergrad_protocol::message::Contact;
use peergrad_protocol::{Incarnation, PeerId, Pool};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::address::port_of;
use super::bootstrap_address::BootstrapAddress;
use super::counters::Counters;
use super::direct::{CredentialsError, DirectEndpoint, Joins, Listeners};
use super::identity::Identity;
use super::keyring::Keyring;
use super::link::{LinkEvent, Uplink, WaitingTime};
use super::listen::{Claim, Listen, ListenError, Port, announced};
use super::notice::Notice;
use super::reachability::{CIRCUIT_WANTED_PROTOCOL, DIAL_BACK_PROTOCOL, DialBackServer, Gateway, Ports};
use super::status_client::StatusStreams;
use super::substreams::{Incoming, Opener};
use super::transport::{self, Mdns, SwarmBehaviour, TransportError};
use actor::NetworkActor;
use command::Command;
pub use handle::{Disconnector, NetworkHandle};
use ports::OpenPorts;
use sinks::Sinks;
pub use status::{Lane, LinkSnapshot, NetworkStatus};

/// The options of a network.
pub struct NetworkOptions {
    /// The key pair behind this peer's id.
    pub identity: Identity,
    /// The start number of this process, from its data directory. If two processes have one identity, the larger number is the peer.
    pub start: Incarnation,
    /// The run's secret: only its holders can connect.
    pub secret: Secret,
    /// Where to listen.
    pub listen: Listen,
    /// Addresses at which others reach this peer and that its machine does not know, such as a router's or a tunnel's.
    pub external: Vec<Multiaddr>,
    /// Whether to ask the router, over UPnP, to forward the ports.
    pub upnp: bool,
    /// The peers to dial first.
    pub bootstrap_addresses: Vec<BootstrapAddress>,
    /// Whether to announce this peer on the local network, and look for others there.
    pub mdns: Mdns,
    /// The pool from which the payloads of received frames are allocated.
    pub pool: Pool,
}

/// The network cannot start. No task or socket of it is left.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A port cannot be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// libp2p cannot be set up.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// Direct lanes cannot be set up.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

/// A running network. Dropping it closes all connections.
#[derive(Debug)]
pub struct Network {
    /// The id of this peer.
    peer: PeerId,
    keyring: Keyring,
    commands: mpsc::UnboundedSender<Command>,
    events: mpsc::UnboundedReceiver<LinkEvent>,
    addresses: watch::Receiver<Vec<String>>,
    counters: Arc<Counters>,
    port: u16,
    direct_port: Option<NonZeroU16>,
    status_streams: Option<StatusStreams>,
    tasks: Vec<JoinHandle<()>>,
    /// The task that keeps the router's ports open, and closes them at the end; `None` without UPnP.
    gateway: Option<JoinHandle<()>>,
    /// Lanes and the gateway's task run as long as this is held.
    _open: watch::Sender<()>,
}

/// A network, and the receiver of its notices for the user.
type StartedNetwork = (Network, mpsc::UnboundedReceiver<Notice>);

impl Network {
    /// Listens, and starts to dial the bootstrap addresses. The second result receives notices for the user.
    ///
    /// # Errors
    /// A port cannot be opened, or libp2p cannot be set up.
    // The future is boxed here, or each crate that awaits it would compile libp2p's swarm once more.
    #[must_use = "a future does nothing until it is awaited"]
    pub fn start(options: NetworkOptions) -> BoxFuture<'static, Result<StartedNetwork, StartError>> {
        Box::pin(Self::open(options))
    }

    async fn open(options: NetworkOptions) -> Result<StartedNetwork, StartError> {
        let (notices, notices_out) = mpsc::unbounded_channel();
        let (events, events_out) = mpsc::unbounded_channel();
        let (commands, commands_out) = mpsc::unbounded_channel();
        let (open, open_out) = watch::channel(());
        let keyring = Keyring::new(options.secret);
        let ListeningSwarm { swarm, opener, streams, claim, ports: opened, port } =
            ListeningSwarm::open(&options, &keyring, &notices).await?;
        let [lane_streams, status_streams, dial_back_streams, wanted_circuits] = streams;
        let NetworkOptions { identity, listen, external, .. } = options;
        let (announce, addresses) = watch::channel(announced(&external, &opened.listening));
        let (direct_endpoint, listeners) = DirectEndpoint::open(&identity, &keyring, &listen, port).await?;
        if let Err(error) = &listeners {
            tell(&notices, Notice::NoDirectLanes { reason: error.to_string() });
        }
        let direct_port = direct_endpoint.port();
        let ports = Ports { tcp: port, has_quic: opened.quic.is_ok(), direct: direct_port };
        let gateway = options.upnp.then(|| start_gateway(ports, open_out.clone(), commands.clone()));
        let counters = Arc::new(Counters::default());
        let lanes = lanes::Lanes {
            opener,
            direct_endpoint: Arc::new(direct_endpoint),
            joins: Joins::default(),
            waiting: WaitingTime::default(),
            uplink: Uplink::default(),
            events: events.clone(),
            counters: Arc::clone(&counters),
            pool: options.pool,
            reports: commands.clone(),
            open: open_out,
        };
        let dial_back = DialBackServer::new(keyring.clone());
        let mut tasks = spawn_lanes(
            &lanes,
            [lane_streams, dial_back_streams, wanted_circuits],
            dial_back,
            listeners.ok(),
        );
        let sinks = Sinks { events, notices, addresses: announce };
        let mut actor = NetworkActor::new(swarm, lanes, sinks, external, options.start, claim);
        opened.meanwhile.into_iter().for_each(|event| actor.on_swarm_event(event));
        options.bootstrap_addresses.into_iter().for_each(|bootstrap| actor.want_bootstrap(bootstrap));
        tasks.push(tokio::spawn(actor.run(commands_out)));
        let network = Self {
            peer: identity.peer(),
            keyring,
            commands,
            events: events_out,
            addresses,
            counters,
            port,
            direct_port,
            status_streams: Some(StatusStreams(status_streams)),
            tasks,
            gateway,
            _open: open,
        };
        Ok((network, notices_out))
    }

    /// The id of this peer.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// This peer's id and the addresses to tell others now, best first.
    #[must_use]
    pub fn contact(&self) -> Contact {
        Contact { peer: self.peer, addresses: self.addresses.borrow().clone() }
    }

    /// The TCP port on which this peer listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port for direct lanes, on the same addresses; `None` if this peer offers none.
    #[must_use]
    pub fn direct_port(&self) -> Option<NonZeroU16> {
        self.direct_port
    }

    /// Counts what all links have carried so far.
    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Replaces the secret for all connections that are made from now on. Connections with `members` stay; all others are closed, and
    /// need the new secret to come back.
    pub fn change_secret(&self, secret: Secret, members: BTreeSet<PeerId>) {
        if self.keyring.secret() != secret {
            self.keyring.change(secret);
            self.command(Command::KeepOnly(members));
        }
    }

    /// Keeps dialing this peer until [`hang_up`](Self::hang_up) is called or the peer says goodbye. A repeated call makes the next
    /// attempt at once.
    pub fn dial(&self, contact: Contact) {
        self.command(Command::Dial(contact));
    }

    /// Sends what is queued and a goodbye, and closes the link, without a `Down` event.
    pub fn hang_up(&self, peer: PeerId) {
        self.command(Command::HangUp(peer));
    }

    /// Stops dialing a peer; an existing link stays.
    pub fn stop_dialing(&self, peer: PeerId) {
        self.command(Command::StopDialing(peer));
    }

    /// Stops dialing all other peers: those that the user named, and the members of earlier views, are no longer needed.
    pub fn keep_dialing_only(&self, peers: Vec<PeerId>) {
        self.command(Command::KeepWanted(peers));
    }

    /// The status requests; `None` after the first call. If they are not taken, no request is answered.
    pub fn status_streams(&mut self) -> Option<StatusStreams> {
        self.status_streams.take()
    }

    /// A handle for asking about the links.
    #[must_use]
    pub fn handle(&self) -> NetworkHandle {
        NetworkHandle { commands: self.commands.clone() }
    }

    /// A handle that breaks connections, for tests.
    #[must_use]
    pub fn disconnector(&self) -> Disconnector {
        Disconnector { commands: self.commands.clone() }
    }

    /// The next event of a link. No event is lost if this is dropped while it waits.
    pub async fn next(&mut self) -> LinkEvent {
        self.events.recv().await.expect("the actor runs as long as the network is held")
    }

    /// Closes all connections, and the ports that the router has opened.
    pub async fn close(mut self) {
        let gateway = self.gateway.take();
        // This ends `open`, which tells the gateway's task to close the ports.
        drop(self);
        if let Some(gateway) = gateway {
            // The task limits its own time, and has no result.
            let _ = gateway.await;
        }
    }

    fn command(&self, command: Command) {
        // The actor runs as long as the network is held.
        let _ = self.commands.send(command);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// A swarm that listens, and that no task drives yet.
struct ListeningSwarm {
    swarm: Swarm<SwarmBehaviour>,
    opener: Opener,
    /// The substreams of lanes, of status requests, of requests to dial back, and of wanted circuits.
    streams: [Incoming; 4],
    /// The claim on the port, to be held as long as the swarm listens.
    claim: Claim,
    ports: OpenPorts,
    /// The TCP port.
    port: u16,
}

impl ListeningSwarm {
    /// Creates the swarm and opens its ports. Notices tell the user which of the wanted ports and services this peer does not have.
    async fn open(
        options: &NetworkOptions,
        keyring: &Keyring,
        notices: &mpsc::UnboundedSender<Notice>,
    ) -> Result<Self, StartError> {
        let (mut swarm, no_mdns) = transport::swarm(&options.identity, keyring, options.mdns)?;
        if let Some(error) = no_mdns {
            tell(notices, Notice::NoMdns { reason: error.to_string() });
        }
        // Streams are accepted before any peer can connect: otherwise the first one would be refused.
        let substreams = &mut swarm.behaviour_mut().substreams;
        let opener = substreams.opener();
        let streams = [
            transport::LANE_PROTOCOL,
            transport::STATUS_PROTOCOL,
            DIAL_BACK_PROTOCOL,
            CIRCUIT_WANTED_PROTOCOL,
        ]
        .map(|protocol| substreams.accept(protocol));

        let mut claim = options.listen.claim()?;
        let ports = ports::open_ports(&mut swarm, &options.listen, &mut claim).await?;
        let port = ports.listening.iter().find_map(port_of).unwrap_or_default();
        tell_of_ports(notices, &options.listen, &claim, port, &ports.quic);
        Ok(Self { swarm, opener, streams, claim, ports, port })
    }
}

fn tell(notices: &mpsc::UnboundedSender<Notice>, notice: Notice) {
    // The caller of `start` may have dropped the receiver: notices need no reader.
    let _ = notices.send(notice);
}

/// Tells the user which of the wanted ports this peer does not have.
fn tell_of_ports(
    notices: &mpsc::UnboundedSender<Notice>,
    listen: &Listen,
    claim: &Claim,
    listening: u16,
    quic: &Result<(), String>,
) {
    if let Err(reason) = quic {
        tell(notices, Notice::NoQuic { reason: reason.clone() });
    }
    if let Port::Preferred(wanted) = listen.port
        && claim.port != wanted
    {
        tell(notices, Notice::DefaultPortTaken { wanted, listening });
    }
}

/// Starts the tasks that accept lanes over substreams, requests to dial back, wanted circuits, and direct lanes.
fn spawn_lanes(
    lanes: &lanes::Lanes,
    [lane_streams, dial_back_streams, wanted_circuits]: [Incoming; 3],
    dial_back: DialBackServer,
    listeners: Option<Listeners>,
) -> Vec<JoinHandle<()>> {
    let mut tasks = vec![
        tokio::spawn(lanes::accept(lane_streams, lanes.clone())),
        tokio::spawn(lanes::serve_dial_backs(dial_back_streams, dial_back, lanes.clone())),
        tokio::spawn(lanes::note_wanted_circuits(wanted_circuits, lanes.clone())),
    ];
    tasks.extend(listeners.map(|listeners| tokio::spawn(lanes::answer(listeners, lanes.clone()))));
    tasks
}

/// Has the router forward these ports as long as `open` is held.
fn start_gateway(
    ports: Ports,
    open: watch::Receiver<()>,
    commands: mpsc::UnboundedSender<Command>,
) -> JoinHandle<()> {
    // The actor ends with the network, and then the answer is not needed.
    let tell = move |answer| drop(commands.send(Command::AskedRouter(answer)));
    tokio::spawn(Gateway::new(ports).keep(open, tell))
}
