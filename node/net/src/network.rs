//! The network: starts the swarm, keeps the links, and is what the driver holds.
//!
//! ```text
//!   driver --- commands ---> actor (one task: swarm, remotes, dialer) --- link events ---> driver
//!                                 ^ reports          | spawns
//!                             lanes (one task for each) ------------- frames, credit -----------> driver
//! ```
//! All that is known of connections and links has one owner, the actor; lanes ask it what a session number means. So
//! up, frames and down of a link reach the driver in that order, through one queue.

mod actor;
mod command;
mod connections;
mod connectivity;
mod handle;
mod lanes;
mod status;

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, Swarm, TransportError as ListenTrouble};
use peergrad_protocol::invite::Secret;
use peergrad_protocol::message::Contact;
use peergrad_protocol::{Incarnation, PeerId, Pool};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

use super::address::{over_quic, port_of, to_multiaddr};
use super::bootstrap_address::BootstrapAddress;
use super::counters::Counters;
use super::direct::{CredentialsError, DirectEndpoint};
use super::identity::Identity;
use super::keyring::Keyring;
use super::link::{LinkEvent, error_text, system_error};
use super::listen::{self, Claim, Listen, ListenError, Port, announced};
use super::notice::Notice;
use super::reachability::{DIAL_BACK_PROTOCOL, DialBackServer, Gateway, Ports};
use super::status_client::StatusStreams;
use super::transport::{self, Behaviour, BehaviourEvent, TransportError};
use actor::NetworkActor;
use command::Command;
pub use handle::{Disconnector, NetworkHandle};
pub use status::{Lane, LinkSnapshot, NetworkStatus};

/// What a network is made from.
pub struct NetworkOptions {
    /// Who this peer is.
    pub identity: Identity,
    /// The start of this process, as its data directory counts them: of two that have one identity, the larger is the peer.
    pub start: Incarnation,
    /// The run's secret: without it nobody gets past the handshake.
    pub secret: Secret,
    /// Where to listen.
    pub listen: Listen,
    /// Addresses under which others reach this peer, that it cannot see itself (a router's, a tunnel's).
    pub external: Vec<Multiaddr>,
    /// Whether the router is asked to forward the port.
    pub upnp: bool,
    /// Whom to try when joining.
    pub bootstrap_addresses: Vec<BootstrapAddress>,
    /// Whether to make itself known on the local network, and look for others there.
    pub mdns: bool,
    /// Where the payloads of received frames live.
    pub pool: Pool,
}

/// The network cannot start. Nothing is left running.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It cannot listen.
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
    /// Keeps the router's ports open, and closes them in the end.
    gateway: Option<JoinHandle<()>>,
    /// As long as this is held the lanes go on, and the router is asked.
    _open: watch::Sender<()>,
}

impl Network {
    /// Listens, and starts to dial the bootstrap_addresses. Notices come out of the second result.
    ///
    /// # Errors
    /// Says why it cannot, and what to do.
    pub async fn start(
        options: NetworkOptions,
    ) -> Result<(Self, mpsc::UnboundedReceiver<Notice>), StartError> {
        let (notices, notices_out) = mpsc::unbounded_channel();
        let (events, events_out) = mpsc::unbounded_channel();
        let (commands, commands_out) = mpsc::unbounded_channel();
        let peer = options.identity.peer();

        let keyring = Keyring::new(options.secret);
        let (mut swarm, trouble) = transport::swarm(&options.identity, &keyring, options.mdns)?;
        if let Some(error) = trouble {
            // Whoever started us holds the other end.
            let _ = notices.send(Notice::NoMdns { reason: error.to_string() });
        }
        // Lanes are accepted before anybody can connect, or the first one would be refused.
        let substreams = &mut swarm.behaviour_mut().substreams;
        let opener = substreams.opener();
        let incoming = substreams.accept(transport::LANE_PROTOCOL);
        let status_streams = substreams.accept(transport::STATUS_PROTOCOL);
        let checks = substreams.accept(DIAL_BACK_PROTOCOL);
        let mut claim = options.listen.claim()?;
        let Opened { listening, meanwhile, quic } =
            open_ports(&mut swarm, &options.listen, &mut claim).await?;
        let has_quic = quic.is_ok();
        if let Err(reason) = quic {
            let _ = notices.send(Notice::NoQuic { reason });
        }
        if let Port::Preferred(wanted) = options.listen.port
            && claim.port != wanted
        {
            let listening = listening.iter().find_map(port_of).unwrap_or_default();
            let _ = notices.send(Notice::DefaultPortTaken { wanted, listening });
        }
        let (announce, addresses) = watch::channel(announced(&options.external, &listening));

        let port = listening.iter().find_map(port_of).unwrap_or_default();
        let (direct_endpoint, listeners) =
            DirectEndpoint::open(&options.identity, &keyring, &options.listen, port).await?;

        let direct_port = direct_endpoint.port();
        let (open, open_out) = watch::channel(());

        let gateway = options.upnp.then(|| {
            let ports = Ports { tcp: port, has_quic, direct: direct_port };
            let commands = commands.clone();
            // The actor ends with the network.
            let tell = move |answer| drop(commands.send(Command::AskedRouter(answer)));
            tokio::spawn(Gateway::new(ports).keep(open_out.clone(), tell))
        });
        let counters = Arc::new(Counters::default());
        let lanes = lanes::Lanes {
            opener,
            direct_endpoint: Arc::new(direct_endpoint),
            events,
            counters: Arc::clone(&counters),
            pool: options.pool,
            reports: commands.clone(),
            open: open_out,
        };
        let helper = DialBackServer::new(keyring.clone());
        let mut tasks = vec![
            tokio::spawn(lanes::accept(incoming, lanes.clone())),
            tokio::spawn(lanes::serve_dial_backs(checks, helper, lanes.clone())),
        ];
        match listeners {
            Ok(listeners) => tasks.push(tokio::spawn(lanes::answer(listeners, lanes.clone()))),
            Err(error) => _ = notices.send(Notice::NoDirectLanes { reason: error.to_string() }),
        }
        let mut actor =
            NetworkActor::new(swarm, lanes, notices, announce, options.external, options.start, claim);
        for event in meanwhile {
            actor.on_swarm_event(event);
        }
        for bootstrap in options.bootstrap_addresses {
            actor.want_bootstrap(bootstrap);
        }
        tasks.push(tokio::spawn(actor.run(commands_out)));
        let network = Self {
            peer,
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

    /// Who this peer is.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// This peer with the addresses to tell others, best first, as they are now.
    #[must_use]
    pub fn contact(&self) -> Contact {
        Contact { peer: self.peer, addresses: self.addresses.borrow().clone() }
    }

    /// The port on which it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port for direct lanes, on the same addresses; `None` if this peer offers none.
    #[must_use]
    pub fn direct_port(&self) -> Option<NonZeroU16> {
        self.direct_port
    }

    /// What has gone over all links so far.
    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Holds all who connect from now on, and those it connects to, to another secret. Of those who are connected the members stay;
    /// the others have to show it.
    pub fn change_secret(&self, secret: Secret, members: BTreeSet<PeerId>) {
        if self.keyring.secret() != secret {
            self.keyring.change(secret);
            self.command(Command::KeepOnly(members));
        }
    }

    /// Keeps trying to have a link to this peer until told to hang up, or until the peer says goodbye. Asked again, the
    /// next attempt is made at once.
    pub fn dial(&self, contact: Contact) {
        self.command(Command::Dial(contact));
    }

    /// Sends what is queued, says goodbye, and closes the link; no `Down` is told.
    pub fn hang_up(&self, peer: PeerId) {
        self.command(Command::HangUp(peer));
    }

    /// Stops trying a peer; a link that is there stays.
    pub fn stop_dialing(&self, peer: PeerId) {
        self.command(Command::StopDialing(peer));
    }

    /// Stops trying everyone else: nobody is needed any more who was named by the user, or in an earlier view.
    pub fn keep_dialing_only(&self, peers: Vec<PeerId>) {
        self.command(Command::KeepWanted(peers));
    }

    /// Those who come to ask something; once. If nobody takes them, nobody is answered.
    pub fn status_streams(&mut self) -> Option<StatusStreams> {
        self.status_streams.take()
    }

    /// Where to ask for its links.
    #[must_use]
    pub fn handle(&self) -> NetworkHandle {
        NetworkHandle { commands: self.commands.clone() }
    }

    /// Disconnector for this network's connections.
    #[must_use]
    pub fn disconnector(&self) -> Disconnector {
        Disconnector { commands: self.commands.clone() }
    }

    /// What happened next to a link. Nothing is lost if this is dropped while it waits.
    pub async fn next(&mut self) -> LinkEvent {
        self.events.recv().await.expect("the actor runs as long as the network is held")
    }

    /// Closes all connections, and what a router has opened.
    pub async fn close(mut self) {
        let gateway = self.gateway.take();
        // Whoever holds it open is told by its end.
        drop(self);
        if let Some(gateway) = gateway {
            // It has a bound of its own, and nothing to say.
            let _ = gateway.await;
        }
    }

    fn command(&self, command: Command) {
        // It only ends with us.
        let _ = self.commands.send(command);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Open ports.
struct Opened {
    /// The addresses behind them.
    listening: Vec<Multiaddr>,
    /// What happened while the system was asked for them: others may have connected already.
    meanwhile: Vec<SwarmEvent<BehaviourEvent>>,
    /// Why nobody reaches this peer over QUIC, if that is so.
    quic: Result<(), String>,
}

/// Opens the ports, and waits until the system has named the addresses behind them.
async fn open_ports(
    swarm: &mut Swarm<Behaviour>,
    listen: &Listen,
    claim: &mut Claim,
) -> Result<Opened, ListenError> {
    let mut port = claim.port;
    let mut opened = Opened { listening: Vec::new(), meanwhile: Vec::new(), quic: Ok(()) };
    for (index, address) in listen.addresses().into_iter().enumerate() {
        match swarm.listen_on(to_multiaddr(address, port)) {
            Ok(_) => {}
            // A machine without IPv6 does without.
            Err(_) if index > 0 => continue,
            Err(ListenTrouble::Other(error)) => {
                return Err(listen::refused(SocketAddr::new(address, port), error));
            }
            Err(ListenTrouble::MultiaddrNotSupported(_)) => return Err(ListenError::NoAddress),
        }
        if index == 0 {
            let deadline = Instant::now() + FIRST_ADDRESS;
            while opened.listening.is_empty() {
                let event = timeout_at(deadline, swarm.select_next_some()).await;
                opened.note(event.map_err(|_| ListenError::NoAddress)?);
            }
            // The second kind of IP gets the port that the first was given.
            port = port_of(&opened.listening[0]).unwrap_or(port);
        }
    }
    opened.quic = open_quic(swarm, listen, claim, port).await;
    let settled = Instant::now() + MORE_ADDRESSES;
    while let Ok(event) = timeout_at(settled, swarm.select_next_some()).await {
        opened.note(event);
    }
    Ok(opened)
}

/// Opens the UDP port of the same number for QUIC. An error says in words why this peer goes without.
async fn open_quic(
    swarm: &mut Swarm<Behaviour>,
    listen: &Listen,
    claim: &mut Claim,
    port: u16,
) -> Result<(), String> {
    claim.hand_over();
    let mut trouble = listen_over_quic(swarm, listen, port);
    if let Err(ListenTrouble::Other(error)) = &trouble
        && system_error(error).kind() == io::ErrorKind::AddrInUse
    {
        // Another peer that looks for a port lets go of this one in a moment, since TCP's is ours.
        sleep(PASSING_BY).await;
        trouble = listen_over_quic(swarm, listen, port);
    }
    trouble.map_err(|trouble| {
        claim.take_back(SocketAddr::new(listen.addresses()[0], port));
        match trouble {
            ListenTrouble::Other(error) => format!("UDP port {port}: {}", error_text(&error)),
            ListenTrouble::MultiaddrNotSupported(address) => format!("{address} is not supported"),
        }
    })
}

fn listen_over_quic(
    swarm: &mut Swarm<Behaviour>,
    listen: &Listen,
    port: u16,
) -> Result<(), ListenTrouble<io::Error>> {
    let addresses = listen.addresses().into_iter().filter_map(|ip| over_quic(&to_multiaddr(ip, port)));
    for (index, address) in addresses.enumerate() {
        match swarm.listen_on(address) {
            Err(trouble) if index == 0 => return Err(trouble),
            // A machine without IPv6 does without.
            _ => {}
        }
    }
    Ok(())
}

impl Opened {
    fn note(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::NewListenAddr { address, .. } => self.listening.push(address),
            other => self.meanwhile.push(other),
        }
    }
}

const FIRST_ADDRESS: Duration = Duration::from_secs(5);
/// How long one that looks for a port may have this one.
const PASSING_BY: Duration = Duration::from_millis(100);
/// The system names the addresses of all interfaces in one burst; later ones are announced when they come.
const MORE_ADDRESSES: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, UdpSocket};

    use super::*;

    #[tokio::test]
    async fn where_the_udp_port_is_taken_it_is_said_and_otherwise_quic_has_it() {
        let listen = Listen { address: Some(Ipv4Addr::LOCALHOST.into()), port: Port::Any };
        let mut swarm =
            transport::swarm(&Identity::generate(), &Keyring::new(Secret([1; 32])), false).unwrap().0;
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let port = address.port();
        let mut claim = listen.claim().unwrap();
        let other = UdpSocket::bind(address).unwrap();
        let reason = open_quic(&mut swarm, &listen, &mut claim, port).await.unwrap_err();
        assert_eq!(reason, format!("UDP port {port}: another program uses it"));
        drop(other);
        open_quic(&mut swarm, &listen, &mut claim, port).await.unwrap();
        UdpSocket::bind(address).unwrap_err();
    }
}
