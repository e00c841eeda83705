//! Substreams: opening one to a connected peer, and accepting those of the other end.
//!
//! ```text
//!   Opener::open --- wanted ---> SubstreamBehaviour --- to the newest connection ---> Handler ---> stream, or why not
//!   Incoming <------------------ SubstreamBehaviour <------------------------------- Handler <--- stream of the other end
//! ```
//! Nothing here outlives its connection: requests on it are answered or dropped with it. A request without a connection fails
//! at once, since dialing is [not decided here](super::dial).

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::core::upgrade::{InboundUpgrade, ReadyUpgrade, UpgradeInfo};
use libp2p::swarm::behaviour::{ConnectionClosed, ConnectionEstablished};
use libp2p::swarm::handler::{
    ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound,
};
use libp2p::swarm::{
    ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm, NetworkBehaviour,
    NotifyHandler, StreamProtocol, StreamUpgradeError, SubstreamProtocol, THandler, THandlerInEvent,
    THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId, Stream};
use tokio::sync::{mpsc, oneshot};

use super::address::{ip_of, is_relayed};
use super::machine::Machine;

/// A substream cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    /// The other end does not accept this protocol.
    #[error("the other end does not support the protocol {0}")]
    Unknown(StreamProtocol),
    /// There is no connection, or it broke.
    #[error(transparent)]
    Broken(#[from] io::Error),
}

/// Opens substreams.
#[derive(Clone)]
pub(super) struct Opener {
    /// Not bounded: only this peer's own tasks ask, each for one substream at a time, and requests that were given up are
    /// skipped.
    wanted: mpsc::UnboundedSender<(PeerId, SubstreamRequest)>,
    kept: Kept,
}

/// How many reasons there are to keep the connections with each peer, although no substream is open.
#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<BTreeMap<PeerId, usize>>>);

/// A reason to keep the connections with a peer, for as long as this lasts.
#[derive(Debug)]
pub(super) struct Keep {
    peer: PeerId,
    kept: Kept,
}

impl Kept {
    fn contains(&self, peer: PeerId) -> bool {
        self.lock().contains_key(&peer)
    }

    /// A panic elsewhere cannot leave the counts half-changed: nothing in between can panic.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<PeerId, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Keep {
    fn drop(&mut self) {
        let mut kept = self.kept.lock();
        match kept.get_mut(&self.peer) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(kept.remove(&self.peer)),
        }
    }
}

impl Opener {
    /// Keeps the connections with this peer, although no substream is open, for as long as the returned value lasts.
    pub(super) fn keep(&self, peer: PeerId) -> Keep {
        *self.kept.lock().entry(peer).or_default() += 1;
        Keep { peer, kept: self.kept.clone() }
    }

    /// Opens a substream to a connected peer, on the newest of its connections.
    pub(super) async fn open(&self, peer: PeerId, protocol: StreamProtocol) -> Result<Stream, OpenError> {
        let (reply, replied) = oneshot::channel();
        // Dropping the request answers it.
        let _ = self.wanted.send((peer, SubstreamRequest { protocol, reply }));
        replied.await.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::NotConnected).into()))
    }
}

/// A substream that another peer has opened.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) peer: PeerId,
    /// The machine that the peer is on.
    pub(super) machine: Machine,
    /// The IP address at which the peer is seen; `None` if it comes through a relay.
    pub(super) ip: Option<IpAddr>,
    pub(super) stream: Stream,
}

/// The accepted substreams of one protocol.
#[derive(Debug)]
pub(super) struct Incoming(mpsc::Receiver<Accepted>);

impl Incoming {
    /// The next substream; `None` once the swarm is gone.
    pub(super) async fn next(&mut self) -> Option<Accepted> {
        self.0.recv().await
    }
}

/// A request for a substream.
#[derive(Debug)]
pub(super) struct SubstreamRequest {
    protocol: StreamProtocol,
    reply: oneshot::Sender<Result<Stream, OpenError>>,
}

/// The behaviour: it knows the connections, and the receiver of each protocol's substreams.
pub(super) struct SubstreamBehaviour {
    opener: Opener,
    wanted: mpsc::UnboundedReceiver<(PeerId, SubstreamRequest)>,
    acceptors: Vec<(StreamProtocol, mpsc::Sender<Accepted>)>,
    /// In the order in which they were established. Their ids do not follow it: an attempt has its id from its start.
    connections: BTreeMap<PeerId, Vec<ConnectionId>>,
    /// The IP address at the other end of each connection without a relay.
    ips: BTreeMap<ConnectionId, IpAddr>,
}

impl Default for SubstreamBehaviour {
    fn default() -> Self {
        let (sender, wanted) = mpsc::unbounded_channel();
        let opener = Opener { wanted: sender, kept: Kept::default() };
        Self { opener, wanted, acceptors: Vec::new(), connections: BTreeMap::new(), ips: BTreeMap::new() }
    }
}

impl SubstreamBehaviour {
    pub(super) fn opener(&self) -> Opener {
        self.opener.clone()
    }

    /// Accepts substreams of this protocol, on all connections from now on.
    pub(super) fn accept(&mut self, protocol: StreamProtocol) -> Incoming {
        assert!(
            self.acceptors.iter().all(|(taken, _)| *taken != protocol),
            "{protocol} is accepted in one place"
        );
        let (taker, incoming) = mpsc::channel(WAITING_MAX);
        self.acceptors.push((protocol, taker));
        Incoming(incoming)
    }

    fn handler(&self, peer: PeerId) -> Handler {
        let accepted = AnyOf(self.acceptors.iter().map(|(protocol, _)| protocol.clone()).collect());
        let kept = self.opener.kept.clone();
        Handler { peer, kept, accepted, wanted: VecDeque::new(), inbound: VecDeque::new() }
    }
}

impl NetworkBehaviour for SubstreamBehaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Infallible;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler(peer))
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler(peer))
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            FromSwarm::ConnectionEstablished(ConnectionEstablished {
                peer_id,
                connection_id,
                endpoint,
                ..
            }) => {
                let address = endpoint.get_remote_address();
                if let Some(ip) = ip_of(address).filter(|_| !is_relayed(address)) {
                    self.ips.insert(connection_id, ip);
                }
                self.connections.entry(peer_id).or_default().push(connection_id);
            }
            FromSwarm::ConnectionClosed(ConnectionClosed { peer_id, connection_id, .. }) => {
                self.ips.remove(&connection_id);
                if let Some(connections) = self.connections.get_mut(&peer_id) {
                    connections.retain(|id| *id != connection_id);
                }
                self.connections.retain(|_, connections| !connections.is_empty());
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        (protocol, stream): THandlerOutEvent<Self>,
    ) {
        if let Some((_, taker)) = self.acceptors.iter().find(|(taken, _)| *taken == protocol) {
            // If too many wait, or the receiver is gone, the substream is closed, and the other end sees that.
            let ip = self.ips.get(&connection).copied();
            let machine = ip.map_or(Machine::Hidden, Machine::from);
            let _ = taker.try_send(Accepted { peer, machine, ip, stream });
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<ToSwarm<Infallible, THandlerInEvent<Self>>> {
        while let Poll::Ready(Some((peer_id, wanted))) = self.wanted.poll_recv(context) {
            if let Some(newest) = self.connections.get(&peer_id).and_then(|all| all.last()) {
                let handler = NotifyHandler::One(*newest);
                return Poll::Ready(ToSwarm::NotifyHandler { peer_id, handler, event: wanted });
            }
        }
        Poll::Pending
    }
}

/// The handler of one connection.
pub(super) struct Handler {
    /// The other end.
    peer: PeerId,
    kept: Kept,
    accepted: AnyOf,
    wanted: VecDeque<SubstreamRequest>,
    inbound: VecDeque<(StreamProtocol, Stream)>,
}

impl ConnectionHandler for Handler {
    type FromBehaviour = SubstreamRequest;
    type ToBehaviour = (StreamProtocol, Stream);
    type InboundProtocol = AnyOf;
    type OutboundProtocol = ReadyUpgrade<StreamProtocol>;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = SubstreamRequest;

    fn connection_keep_alive(&self) -> bool {
        self.kept.contains(self.peer)
    }

    fn listen_protocol(&self) -> SubstreamProtocol<AnyOf> {
        SubstreamProtocol::new(self.accepted.clone(), ())
    }

    fn poll(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<ReadyUpgrade<StreamProtocol>, SubstreamRequest, (StreamProtocol, Stream)>>
    {
        if let Some(inbound) = self.inbound.pop_front() {
            return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(inbound));
        }
        // A task that has given up waiting has dropped the receiver.
        self.wanted.retain(|wanted| !wanted.reply.is_closed());
        if let Some(wanted) = self.wanted.pop_front() {
            let upgrade = ReadyUpgrade::new(wanted.protocol.clone());
            let protocol = SubstreamProtocol::new(upgrade, wanted);
            return Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol });
        }
        Poll::Pending
    }

    fn on_behaviour_event(&mut self, wanted: SubstreamRequest) {
        self.wanted.push_back(wanted);
    }

    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<'_, AnyOf, ReadyUpgrade<StreamProtocol>, (), SubstreamRequest>,
    ) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol, .. }) => {
                self.inbound.push_back(protocol);
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol, info }) => {
                let _ = info.reply.send(Ok(protocol));
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info, error }) => {
                let _ = info.reply.send(Err(match error {
                    StreamUpgradeError::NegotiationFailed => OpenError::Unknown(info.protocol),
                    StreamUpgradeError::Timeout => io::Error::from(io::ErrorKind::TimedOut).into(),
                    StreamUpgradeError::Io(error) => error.into(),
                }));
            }
            _ => {}
        }
    }
}

/// Accepts a substream of any of these protocols unchanged, and names its protocol.
#[derive(Clone)]
pub(super) struct AnyOf(Arc<[StreamProtocol]>);

impl UpgradeInfo for AnyOf {
    type Info = StreamProtocol;
    type InfoIter = Vec<StreamProtocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0.to_vec()
    }
}

impl InboundUpgrade<Stream> for AnyOf {
    type Output = (StreamProtocol, Stream);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_inbound(self, stream: Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((protocol, stream)))
    }
}

/// How many accepted substreams may wait: the tasks that take them only spawn others.
const WAITING_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use std::io::ErrorKind::NotConnected;
    use std::pin::pin;
    use std::time::Duration;

    use futures::{AsyncReadExt, AsyncWriteExt, StreamExt, future};
    use libp2p::swarm::SwarmEvent;
    use libp2p::swarm::dial_opts::DialOpts;
    use libp2p::{Swarm, SwarmBuilder, noise, tcp, yamux};

    use super::*;

    const KNOWN: StreamProtocol = StreamProtocol::new("/known/1");
    const UNKNOWN: StreamProtocol = StreamProtocol::new("/unknown/1");

    fn swarm(idle: Duration) -> Swarm<SubstreamBehaviour> {
        SwarmBuilder::with_new_identity()
            .with_tokio()
            .with_tcp(tcp::Config::new(), noise::Config::new, yamux::Config::default)
            .unwrap()
            .with_behaviour(|_| SubstreamBehaviour::default())
            .unwrap()
            .with_swarm_config(|config| config.with_idle_connection_timeout(idle))
            .build()
    }

    /// One that takes in [`KNOWN`], and one that is connected to it.
    async fn pair() -> (Swarm<SubstreamBehaviour>, Incoming, Swarm<SubstreamBehaviour>) {
        pair_with(Duration::from_secs(60)).await
    }

    /// The same, with another limit for a connection without substreams.
    async fn pair_with(idle: Duration) -> (Swarm<SubstreamBehaviour>, Incoming, Swarm<SubstreamBehaviour>) {
        let (mut taker, mut opener) = (swarm(idle), swarm(idle));
        let incoming = taker.behaviour_mut().accept(KNOWN);
        taker.listen_on("/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
        taker.select_next_some().await;
        connect(&mut taker, &mut opener).await;
        (taker, incoming, opener)
    }

    /// Makes one more connection between two, the second of which dials.
    async fn connect(taker: &mut Swarm<SubstreamBehaviour>, opener: &mut Swarm<SubstreamBehaviour>) {
        let address = taker.listeners().next().unwrap().clone();
        opener.dial(DialOpts::unknown_peer_id().address(address).build()).unwrap();
        let wanted = 1 + connections(opener, taker);
        while connections(taker, opener) < wanted || connections(opener, taker) < wanted {
            let event = future::select(taker.next(), opener.next()).await.factor_first().0;
            assert!(!matches!(event, Some(SwarmEvent::OutgoingConnectionError { .. })), "{event:?}");
        }
    }

    /// How many connections one knows to another.
    fn connections(of: &Swarm<SubstreamBehaviour>, to: &Swarm<SubstreamBehaviour>) -> usize {
        of.behaviour().connections.get(to.local_peer_id()).map_or(0, Vec::len)
    }

    /// Keeps both moving until `work` is done.
    async fn moving<T>(
        one: &mut Swarm<SubstreamBehaviour>,
        other: &mut Swarm<SubstreamBehaviour>,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                _ = one.next() => {}
                _ = other.next() => {}
            }
        }
    }

    /// Keeps a swarm moving from now on.
    fn drive(mut swarm: Swarm<SubstreamBehaviour>) {
        tokio::spawn(async move {
            loop {
                swarm.next().await;
            }
        });
    }

    #[tokio::test]
    async fn an_opened_substream_arrives_and_a_failure_gives_its_reason() {
        let (taker, mut incoming, opener) = pair().await;
        let (there, here) = (*taker.local_peer_id(), *opener.local_peer_id());
        let (out, back) = (opener.behaviour().opener(), taker.behaviour().opener());
        drive(taker);
        drive(opener);
        for text in ["first", "second"] {
            let mut stream = out.open(there, KNOWN).await.unwrap();
            stream.write_all(text.as_bytes()).await.unwrap();
            stream.close().await.unwrap();
            let Accepted { peer: from, machine, mut stream, .. } = incoming.next().await.unwrap();
            assert_eq!(machine, Machine::V4(std::net::Ipv4Addr::LOCALHOST));
            let mut read = String::new();
            stream.read_to_string(&mut read).await.unwrap();
            assert_eq!((from, read.as_str()), (here, text));
        }
        let unknown = out.open(there, UNKNOWN).await;
        assert!(matches!(unknown, Err(OpenError::Unknown(protocol)) if protocol == UNKNOWN));
        let untaken = back.open(here, KNOWN).await;
        assert!(matches!(untaken, Err(OpenError::Unknown(protocol)) if protocol == KNOWN));
        let nobody = out.open(PeerId::random(), KNOWN).await;
        assert!(
            matches!(&nobody, Err(OpenError::Broken(error)) if error.kind() == NotConnected),
            "{nobody:?}"
        );
    }

    #[tokio::test]
    async fn a_pending_open_fails_when_the_swarm_ends() {
        let (taker, _incoming, opener) = pair().await;
        let out = opener.behaviour().opener();
        let mut waiting = pin!(out.open(*taker.local_peer_id(), KNOWN));
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(opener);
        waiting.await.unwrap_err();
        out.open(*taker.local_peer_id(), KNOWN).await.unwrap_err();
    }

    #[tokio::test]
    async fn of_two_connections_the_newer_is_used_until_it_is_closed() {
        let (mut taker, mut incoming, mut opener) = pair().await;
        connect(&mut taker, &mut opener).await;
        let (there, out) = (*taker.local_peer_id(), opener.behaviour().opener());
        let [older, newer] = opener.behaviour().connections[&there][..] else { panic!("two connections") };

        let mut stream = moving(&mut taker, &mut opener, out.open(there, KNOWN)).await.unwrap();
        assert!(opener.close_connection(newer));
        while connections(&opener, &taker) > 1 {
            future::select(taker.next(), opener.next()).await;
        }
        assert_eq!(opener.behaviour().connections[&there], [older]);
        stream.read_to_end(&mut Vec::new()).await.unwrap_err();
        moving(&mut taker, &mut opener, out.open(there, KNOWN)).await.unwrap();
        assert!(incoming.next().await.is_some() && incoming.next().await.is_some());
    }

    #[tokio::test]
    async fn a_connection_without_substreams_is_kept_as_long_as_somebody_asks() {
        let idle = Duration::from_millis(50);
        let (mut taker, _incoming, mut opener) = pair_with(idle).await;
        let keep = [(&taker, &opener), (&opener, &taker)]
            .map(|(one, other)| [(); 2].map(|()| one.behaviour().opener().keep(*other.local_peer_id())));
        let keep = keep.map(|[first, _]| first);
        let (there, out) = (*taker.local_peer_id(), opener.behaviour().opener());
        moving(&mut taker, &mut opener, out.open(there, KNOWN)).await.unwrap();
        moving(&mut taker, &mut opener, tokio::time::sleep(10 * idle)).await;
        assert_eq!(
            (connections(&taker, &opener), connections(&opener, &taker)),
            (1, 1),
            "one reason is enough"
        );
        drop(keep);
        assert!(taker.behaviour().opener.kept.lock().is_empty());
        // The connection looks again when something happens on it.
        moving(&mut taker, &mut opener, out.open(there, KNOWN)).await.unwrap();
        while connections(&opener, &taker) > 0 {
            future::select(taker.next(), opener.next()).await;
        }
    }

    #[tokio::test]
    async fn closed_connections_leave_nothing_behind() {
        let (mut taker, _incoming, mut opener) = pair().await;
        let there = *taker.local_peer_id();
        for _ in 0..20 {
            connect(&mut taker, &mut opener).await;
            opener.disconnect_peer_id(there).unwrap();
            while connections(&taker, &opener) + connections(&opener, &taker) > 0 {
                future::select(taker.next(), opener.next()).await;
            }
            assert!(taker.behaviour().connections.is_empty() && opener.behaviour().connections.is_empty());
            assert!(taker.behaviour().ips.is_empty());
            connect(&mut taker, &mut opener).await;
        }
    }
}
