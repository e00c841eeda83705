//! The status client: connects to a peer of a run, without being a peer itself, to ask it something.
//!
//! It draws a new key for each request, does not listen, and shows the run's secret in the handshake, as every peer does. The
//! peer opens a lane to it, as to every other end; the client accepts none, and the peer tries again only rarely.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::io::BufReader;
use libp2p::swarm::SwarmEvent;
use libp2p::{Stream, Swarm};
use peergrad_protocol::PeerId;
use peergrad_protocol::invite::Secret;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::bootstrap_address::BootstrapAddress;
use super::dial::{CarrierEvidence, CarrierHistory, DialFailure, Dialer, FailedAddress, NewConnection};
use super::identity::{Identity, from_libp2p};
use super::keyring::Keyring;
use super::machine::Machine;
use super::substreams::{Accepted, Incoming, OpenError};
use super::transport::{self, Mdns, STATUS_PROTOCOL, SwarmBehaviour, TransportError};

/// The peers to ask, and the secret to connect with.
#[derive(Debug)]
pub struct StatusTarget {
    /// The run's secret.
    pub secret: Secret,
    /// The peers to try; the first that answers is asked.
    pub bootstrap_addresses: Vec<BootstrapAddress>,
}

/// A connection to one peer.
#[derive(Debug)]
pub struct StatusClient {
    peer: PeerId,
    stream: BufReader<Stream>,
    /// The task that keeps the connection running.
    driver: JoinHandle<()>,
}

/// No peer could be asked.
#[derive(Debug, thiserror::Error)]
pub enum StatusClientError {
    /// No peer could be reached.
    #[error("no peer of the run could be reached:\n{}", lines(troubles))]
    Unreachable {
        /// Why each address could not be reached.
        troubles: BTreeMap<String, DialFailure>,
    },
    /// No peer answered in time.
    #[error("no peer of the run answered within {} s: check the addresses and the network in between", PATIENCE.as_secs())]
    Silent,
    /// The peer does not know this request.
    #[error("peer {} answers, but does not know this request: it runs another release; use the same one on both machines", peer.short())]
    Unknown {
        /// The peer.
        peer: PeerId,
    },
    /// The connection to the peer was lost.
    #[error("the connection to peer {} was lost ({reason}): try again", peer.short())]
    Lost {
        /// The peer.
        peer: PeerId,
        /// Why the connection was lost, in words.
        reason: String,
    },
    /// libp2p cannot be set up.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

/// The status requests that come in.
#[derive(Debug)]
pub struct StatusStreams(pub(super) Incoming);

impl StatusStreams {
    /// The stream of the next request, and the machine that it comes from; `None` once the network is gone.
    pub async fn next(&mut self) -> Option<(Machine, Stream)> {
        self.0.next().await.map(|Accepted { machine, stream, .. }| (machine, stream))
    }
}

impl StatusClient {
    /// Connects to the first peer that answers.
    ///
    /// # Errors
    /// No peer could be reached, or the peer does not know status requests.
    // The future is boxed here, or each crate that awaits it would compile libp2p's swarm once more.
    #[must_use = "a future does nothing until it is awaited"]
    pub fn connect(target: StatusTarget) -> BoxFuture<'static, Result<Self, StatusClientError>> {
        Box::pin(Self::reach(target))
    }

    async fn reach(target: StatusTarget) -> Result<Self, StatusClientError> {
        let StatusTarget { secret, bootstrap_addresses } = target;
        let (mut swarm, _) = transport::swarm(&Identity::generate(), &Keyring::new(secret), Mdns::Off)?;
        let mut dialer = Dialer::default();
        for bootstrap in bootstrap_addresses {
            dialer.want_bootstrap(bootstrap, Instant::now());
        }
        let meeting = timeout(PATIENCE, dial(&mut swarm, &mut dialer)).await;
        let (id, peer) = meeting.map_err(|_| StatusClientError::Silent)??;
        let opener = swarm.behaviour().substreams.opener();
        let driver = tokio::spawn(async move {
            loop {
                swarm.select_next_some().await;
            }
        });
        let lost = |reason: String| StatusClientError::Lost { peer, reason };
        let stream = match timeout(OPEN_MAX, opener.open(id, STATUS_PROTOCOL)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(OpenError::Unknown(_))) => Err(StatusClientError::Unknown { peer }),
            Ok(Err(error)) => Err(lost(error.to_string())),
            Err(_) => Err(lost("no answer".to_owned())),
        };
        match stream {
            Ok(stream) => Ok(Self { peer, stream: BufReader::new(stream), driver }),
            Err(error) => {
                driver.abort();
                Err(error)
            }
        }
    }

    /// The peer that answered.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// The stream for the request and its answer.
    pub fn stream(&mut self) -> &mut BufReader<Stream> {
        &mut self.stream
    }
}

impl Drop for StatusClient {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Dials all peers until one answers or all have failed.
async fn dial(
    swarm: &mut Swarm<SwarmBehaviour>,
    dialer: &mut Dialer,
) -> Result<(libp2p::PeerId, PeerId), StatusClientError> {
    let mut troubles = BTreeMap::new();
    let mut rounds = interval(ROUND);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        for options in dialer.take_due(Instant::now()) {
            let attempt = options.connection_id();
            if let Err(error) = swarm.dial(options) {
                note(&mut troubles, dialer.failed(attempt, &error, Instant::now()));
            }
        }
        tokio::select! {
            event = swarm.select_next_some() => match event {
                SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                    let (connection, address) = (connection_id, endpoint.get_remote_address());
                    let arrival = NewConnection { connection, address, evidence: CarrierEvidence::Out };
                    dialer.connected(peer_id, arrival, CarrierHistory::default(), Instant::now());
                    if let Some(peer) = from_libp2p(&peer_id) {
                        return Ok((peer_id, peer));
                    }
                }
                SwarmEvent::OutgoingConnectionError { connection_id, error, .. } => {
                    note(&mut troubles, dialer.failed(connection_id, &error, Instant::now()));
                }
                _ => {}
            },
            _ = rounds.tick() => {}
        }
        if dialer.have_all_failed() {
            return Err(StatusClientError::Unreachable { troubles });
        }
    }
}

fn note(troubles: &mut BTreeMap<String, DialFailure>, failures: Vec<FailedAddress>) {
    for FailedAddress { address, trouble, .. } in failures {
        troubles.insert(address.to_string(), trouble);
    }
}

fn lines(troubles: &BTreeMap<String, DialFailure>) -> String {
    let mut text = String::new();
    for (address, trouble) in troubles {
        writeln!(text, "  {address}: {trouble}").expect("a string takes any text");
    }
    text.truncate(text.trim_end().len());
    text
}

/// How often due attempts are started.
const ROUND: Duration = Duration::from_millis(50);
/// The limit for reaching a peer: one address may take two attempts of five seconds each.
const PATIENCE: Duration = Duration::from_secs(20);
const OPEN_MAX: Duration = Duration::from_secs(5);
