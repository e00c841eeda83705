//! Dial-back: a peer asks another one to dial it, to learn whether it can be reached, and if not, why.
//!
//! A shop whose telephone never rings may have no customers, or no line. One asks a friend to ring it.
//!
//! ```text
//! asker                                          helper
//!   these addresses, please -------------------->  dials each that it may, from a new port and with a new key
//!   <----------------- of each: reached or not
//! ```
//! # How it works
//! The helper makes a handshake at each address, up to the point where it knows that the asker answers there: over TCP that is
//! Noise with the run's secret, over QUIC the handshake of TLS. It uses a new key for each request and stays outside of the
//! swarm, so that none of these connections can be mistaken for one between the two peers.
//!
//! # Invariants
//! - A helper dials public addresses, and others only where the asker is seen to be ([`dial_rule`](super::dial_rule)).
//! - All failures read alike and take equally long, and so does what is not dialed. So an asker does not learn which ports are open where the helper looks.
//! - A helper dials only for peers that have shown the secret: a few addresses at a time, for a few askers at once.
//! - An address counts as reached only if the asker's own key answers there.
//!
//! # Not here
//! When peers are asked, and what follows: `network/upkeep.rs`. libp2p's AutoNAT (v2) asks the same question. We differ
//! in two ways: AutoNAT never retries an address that failed, so it would miss a port that is forwarded later; and it leaves a
//! connection of the helper behind, on which lanes would then be opened.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::{Pending, pending};
use std::io;
use std::iter::{Empty, empty};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::{Boxed, DialOpts, PortUse};
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo, Version};
use libp2p::identity::Keypair;
use libp2p::swarm::StreamProtocol;
use libp2p::{Multiaddr, PeerId, Transport, core, noise, quic, tcp};
use peergrad_protocol::limits::ADDRESSES_MAX;
use peergrad_protocol::wire;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::dial_rule::Endpoint;
use crate::address::Carrier;
use crate::keyring::Keyring;

/// The protocol of these requests.
pub(crate) const DIAL_BACK_PROTOCOL: StreamProtocol = StreamProtocol::new("/peergrad/check/1");

/// The result of dialing one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DialBackOutcome {
    /// The asker answered there.
    Reached,
    /// The asker did not answer there, for this reason, in words.
    Failed(String),
    /// The helper may not dial there: this says nothing.
    NotTried,
}

/// A request: the addresses to dial.
type Question = Vec<String>;
/// An answer: for each address, a text if the asker was not reached there; empty if it was.
type Answer = Vec<Option<String>>;

/// Asks the peer at the other end of `stream` to dial these addresses, and returns the result for each.
///
/// # Errors
/// The other end is gone or busy, or its answer makes no sense.
pub(crate) async fn ask(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    addresses: &[Multiaddr],
) -> io::Result<Vec<DialBackOutcome>> {
    let question: Question = addresses.iter().map(Multiaddr::to_string).collect();
    let exchange = async {
        write_record(&mut stream, &wire::encode_record(&question)).await?;
        read_record(&mut stream).await
    };
    let bytes = timeout(ANSWER_MAX, exchange).await.map_err(|_| io::ErrorKind::TimedOut)??;
    let answer: Option<Answer> = wire::decode_record(&bytes).ok();
    let answer = answer.filter(|answer| answer.len() == addresses.len()).ok_or(io::ErrorKind::InvalidData)?;
    // The reason comes from another peer and is shown to people, so its length is limited.
    let cut = |reason: String| {
        reason.chars().filter(|letter| !letter.is_control()).take(REASON_CHARACTERS_MAX).collect()
    };
    let outcome = |reason: Option<String>| match reason {
        None => DialBackOutcome::Reached,
        Some(reason) if reason == NOT_TRIED => DialBackOutcome::NotTried,
        Some(reason) => DialBackOutcome::Failed(cut(reason)),
    };
    Ok(answer.into_iter().map(outcome).collect())
}

/// The helper's side: it dials for others.
#[derive(Clone)]
pub(crate) struct DialBackServer {
    keyring: Keyring,
    /// The peers that it is dialing for.
    askers: Arc<Mutex<BTreeSet<PeerId>>>,
}

impl DialBackServer {
    pub(crate) fn new(keyring: Keyring) -> Self {
        Self { keyring, askers: Arc::default() }
    }

    /// Answers one request of a peer that is seen at this IP address. If too many are being answered, the stream is closed without an answer.
    pub(crate) async fn answer(
        self,
        asker: PeerId,
        ip: Option<IpAddr>,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
    ) {
        let Some(_place) = self.take_slot(asker) else { return };
        // An asker that has gone needs no answer.
        let _ = timeout(ANSWER_MAX, self.try_answer(asker, ip, &mut stream)).await;
    }

    async fn try_answer(
        &self,
        peer: PeerId,
        ip: Option<IpAddr>,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let bytes = read_record(stream).await?;
        let question: Question = wire::decode_record(&bytes).map_err(|_| io::ErrorKind::InvalidData)?;
        if question.len() > CHECKED_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let asker = Asker { peer, ip, deadline: Instant::now() + DIAL_MAX };
        let prologue = self.keyring.secret().handshake_prologue();
        let mut dials = JoinSet::new();
        for (index, text) in question.into_iter().enumerate() {
            dials.spawn(async move { (index, asker.failure(prologue, &text).await) });
        }
        let mut findings = dials.join_all().await;
        findings.sort_by_key(|(index, _)| *index);
        if findings.iter().any(|(_, failure)| failure.is_some()) {
            sleep_until(asker.deadline).await;
        }
        let answer: Answer = findings.into_iter().map(|(_, failure)| failure.map(str::to_owned)).collect();
        write_record(stream, &wire::encode_record(&answer)).await?;
        stream.close().await
    }

    fn take_slot(&self, asker: PeerId) -> Option<AskerSlot> {
        let mut askers = self.askers.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = askers.len() < ASKERS_MAX && askers.insert(asker);
        is_free.then(|| AskerSlot { askers: Arc::clone(&self.askers), asker })
    }
}

/// A place among the peers that are being dialed for.
struct AskerSlot {
    askers: Arc<Mutex<BTreeSet<PeerId>>>,
    asker: PeerId,
}

impl Drop for AskerSlot {
    fn drop(&mut self) {
        self.askers.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.asker);
    }
}

/// A request to dial one peer back.
#[derive(Clone, Copy)]
struct Asker {
    peer: PeerId,
    /// The IP address at which the peer is seen; `None` if it comes through a relay.
    ip: Option<IpAddr>,
    /// When all dials for it end.
    deadline: Instant,
}

impl Asker {
    /// Dials one address, if that is permitted, and checks that the asker answers there: the text of the answer if it does not.
    async fn failure(self, prologue: [u8; 32], address: &str) -> Option<&'static str> {
        let Some(endpoint) = address.parse().ok().as_ref().and_then(Endpoint::of) else {
            return Some(NOT_REACHED);
        };
        let permitted = timeout_at(self.deadline, endpoint.permitted(self.ip)).await.unwrap_or_default();
        if permitted.is_empty() {
            return Some(NOT_TRIED);
        }
        let carrier = endpoint.carrier();
        let probes = permitted.into_iter().map(|address| self.probe(prologue, carrier, address));
        (!join_all(probes).await.contains(&true)).then_some(NOT_REACHED)
    }

    /// Dials one address, and checks that the asker answers there.
    async fn probe(self, prologue: [u8; 32], carrier: Carrier, address: Multiaddr) -> bool {
        let seen = SeenPeer::default();
        let Ok(mut transport) = transport(prologue, carrier, &seen) else { return false };
        let options = DialOpts { role: core::Endpoint::Dialer, port_use: PortUse::New };
        let Ok(dial) = transport.dial(address, options) else { return false };
        // How the dial ends does not matter: the peer may have answered before.
        let _ = timeout_at(self.deadline, dial).await;
        seen.peer() == Some(self.peer)
    }
}

/// Makes a handshake with a new key, notes who answers, and then ends the connection.
fn transport(prologue: [u8; 32], carrier: Carrier, seen: &SeenPeer) -> io::Result<Boxed<()>> {
    let keypair = Keypair::generate_ed25519();
    let seen = seen.clone();
    match carrier {
        Carrier::Tcp => {
            let noise = noise::Config::new(&keypair).map_err(io::Error::other)?;
            let tcp = tcp::tokio::Transport::new(tcp::Config::new().nodelay(true));
            let noise = noise.with_prologue(prologue.to_vec());
            let authenticated = tcp.upgrade(Version::V1).authenticate(noise);
            let stopped = authenticated.multiplex_ext(move |peer, _| {
                seen.note(*peer);
                StopAfterHandshake
            });
            Ok(stopped.map(|_, _| ()).boxed())
        }
        Carrier::Quic => {
            let quic = quic::tokio::Transport::new(quic::Config::new(&keypair));
            Ok(quic.map(move |(peer, _), _| seen.note(peer)).boxed())
        }
    }
}

/// The peer that answered.
#[derive(Clone, Default)]
struct SeenPeer {
    peer: Arc<Mutex<Option<PeerId>>>,
}

impl SeenPeer {
    fn note(&self, peer: PeerId) {
        *self.peer.lock().unwrap_or_else(PoisonError::into_inner) = Some(peer);
    }

    fn peer(&self) -> Option<PeerId> {
        *self.peer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// It takes the place of a multiplexer and offers none, so that the connection ends before the other end's swarm hears of it.
#[derive(Clone, Copy)]
struct StopAfterHandshake;

impl UpgradeInfo for StopAfterHandshake {
    type Info = &'static str;
    type InfoIter = Empty<&'static str>;

    fn protocol_info(&self) -> Self::InfoIter {
        empty()
    }
}

impl<C> InboundConnectionUpgrade<C> for StopAfterHandshake {
    type Output = StreamMuxerBox;
    type Error = Infallible;
    type Future = Pending<Result<StreamMuxerBox, Infallible>>;

    fn upgrade_inbound(self, _: C, _: &'static str) -> Self::Future {
        pending()
    }
}

impl<C> OutboundConnectionUpgrade<C> for StopAfterHandshake {
    type Output = StreamMuxerBox;
    type Error = Infallible;
    type Future = Pending<Result<StreamMuxerBox, Infallible>>;

    fn upgrade_outbound(self, _: C, _: &'static str) -> Self::Future {
        pending()
    }
}

async fn write_record(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    let len = u16::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    stream.write_all(&len.to_le_bytes()).await?;
    stream.write_all(bytes).await?;
    stream.flush().await
}

async fn read_record(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut len = [0; 2];
    stream.read_exact(&mut len).await?;
    let mut bytes = vec![0; usize::from(u16::from_le_bytes(len)).min(RECORD_BYTES_MAX)];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Addresses in one request: TCP addresses, and the QUIC addresses that follow from them.
pub(crate) const CHECKED_MAX: usize = 2 * ADDRESSES_MAX;
/// Peers that are dialed for at once.
const ASKERS_MAX: usize = 16;
/// What the asker reads where it was not reached.
const NOT_REACHED: &str = "could not be reached";
/// The text for an address that the helper may not dial.
const NOT_TRIED: &str = "not tried";
/// The limit for all dials of one request.
const DIAL_MAX: Duration = Duration::from_secs(4);
/// The limit for a request, all dials, and the answer.
const ANSWER_MAX: Duration = Duration::from_secs(8);
const RECORD_BYTES_MAX: usize = 16 << 10;
const REASON_CHARACTERS_MAX: usize = 120;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures::StreamExt;
    use libp2p::Swarm;
    use libp2p::swarm::SwarmEvent;

    use peergrad_protocol::invite::Secret;

    use super::*;
    use crate::Identity;
    use crate::pipe::Pipe;
    use crate::transport::{self, Mdns, SwarmBehaviour};

    const SECRET: Secret = Secret([1; 32]);

    /// A swarm that listens over TCP and QUIC, and where.
    async fn listener() -> (Swarm<SwarmBehaviour>, [Multiaddr; 2]) {
        let mut swarm = transport::swarm(&Identity::generate(), &Keyring::new(SECRET), Mdns::Off).unwrap().0;
        let mut addresses = Vec::new();
        for address in ["/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"] {
            swarm.listen_on(address.parse().unwrap()).unwrap();
            let event = swarm.select_next_some().await;
            let SwarmEvent::NewListenAddr { address, .. } = event else { panic!("{event:?}") };
            addresses.push(address);
        }
        (swarm, addresses.try_into().unwrap())
    }

    fn asker(peer: PeerId, ip: &str) -> Asker {
        Asker { peer, ip: Some(ip.parse().unwrap()), deadline: Instant::now() + DIAL_MAX }
    }

    #[tokio::test]
    async fn a_probe_recognizes_the_peer_and_its_swarm_sees_no_connection() {
        let (mut swarm, addresses) = listener().await;
        let (peer, other) = (*swarm.local_peer_id(), Identity::generate().keypair().public().to_peer_id());
        let prologue = SECRET.handshake_prologue();
        let looking = async {
            for address in addresses.map(|address| address.to_string()) {
                assert_eq!(asker(peer, "127.0.0.1").failure(prologue, &address).await, None, "{address}");
                assert_eq!(
                    asker(other, "127.0.0.1").failure(prologue, &address).await,
                    Some(NOT_REACHED),
                    "another peer"
                );
                assert_eq!(
                    asker(peer, "10.79.0.3").failure(prologue, &address).await,
                    Some(NOT_TRIED),
                    "it is not there"
                );
                let other_secret = Secret([2; 32]).handshake_prologue();
                if address.contains("/tcp/") {
                    assert_eq!(
                        asker(peer, "127.0.0.1").failure(other_secret, &address).await,
                        Some(NOT_REACHED)
                    );
                }
            }
        };
        let hearing = async {
            loop {
                let event = swarm.select_next_some().await;
                assert!(!matches!(event, SwarmEvent::ConnectionEstablished { .. }), "{event:?}");
            }
        };
        tokio::select! {
            () = looking => {}
            () = hearing => {}
        }
    }

    /// What a helper answers to a peer on loopback that asks for these addresses, and how long that took in virtual time.
    async fn answer_to(addresses: &[Multiaddr]) -> (Vec<DialBackOutcome>, Duration) {
        let (near, far) = tokio::io::duplex(1 << 16);
        let peer = Identity::generate().keypair().public().to_peer_id();
        let helper = DialBackServer::new(Keyring::new(SECRET));
        let began = Instant::now();
        let serving = helper.answer(peer, Some(Ipv4Addr::LOCALHOST.into()), Pipe(far));
        let (answer, ()) = tokio::join!(ask(Pipe(near), addresses), serving);
        (answer.unwrap(), began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn open_closed_and_forbidden_ports_read_alike() {
        let open = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let ports = [open.local_addr().unwrap().port(), closed.port()];
        let addresses = ports.map(|port| format!("/ip4/127.0.0.1/tcp/{port}"));
        let other = ["/ip4/10.79.0.1/tcp/9", "/dns/nowhere.invalid/tcp/9"].map(str::to_owned);
        let tried = addresses.map(|address| (address, DialBackOutcome::Failed(NOT_REACHED.to_owned())));
        let forbidden = other.map(|address| (address, DialBackOutcome::NotTried));
        for (address, outcome) in tried.into_iter().chain(forbidden) {
            let (answer, duration) = answer_to(&[address.parse().unwrap()]).await;
            assert_eq!(answer, [outcome], "{address}");
            assert!(duration >= DIAL_MAX, "{address}: the time tells nothing either");
        }
    }

    #[test]
    fn few_peers_are_dialed_back_at_a_time_and_each_only_once() {
        let helper = DialBackServer::new(Keyring::new(SECRET));
        let peer = || Identity::generate().keypair().public().to_peer_id();
        let first = peer();
        let place = helper.take_slot(first);
        assert!(place.is_some() && helper.take_slot(first).is_none());
        let others: Vec<_> = (1..ASKERS_MAX).map(|_| helper.take_slot(peer())).collect();
        assert!(others.iter().all(Option::is_some) && helper.take_slot(peer()).is_none());
        drop(place);
        assert!(helper.take_slot(first).is_some());
    }
}
