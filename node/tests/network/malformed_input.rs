//! Malformed bytes, before and after the handshake, while honest peers exchange segments.

use std::time::Duration;

use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::{Multiaddr, StreamProtocol, Swarm, SwarmBuilder, noise, tcp, yamux};
use peergrad_net::{BootstrapAddress, Network, Notice, PeerNotice};
use peergrad_protocol::Frame;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedReceiver;

use super::courier::{Courier, segment};
use super::exchange::{couriers, run};
use super::{SECRET, within_reason};

const LANE: StreamProtocol = StreamProtocol::new("/peergrad/1");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_the_port_disturbs_no_peer() {
    within_reason(async {
        let mut all = couriers(2, 200).await;
        let address = socket_of(&all[0].0);
        let (second, first) = (all.pop().unwrap(), all.pop().unwrap());
        let honest =
            tokio::spawn(async move { tokio::join!(run(first.0, first.1), run(second.0, second.1)) });
        let mut random = ChaCha8Rng::seed_from_u64(1);
        for _ in 0..3000 {
            let mut bytes = vec![0; random.next_u32() as usize % 600];
            random.fill_bytes(&mut bytes);
            // A third begin like libp2p, and continue with noise.
            if random.next_u32() % 3 == 0 {
                bytes.splice(..0, *b"\x13/multistream/1.0.0\n\x07/noise\n");
            }
            // Once the honest peers are done, the port is closed.
            let Ok(mut stream) = TcpStream::connect(&address).await else { break };
            let _ = stream.write_all(&bytes).await;
        }
        honest.await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_from_a_peer_with_the_secret_disturbs_only_its_own_link() {
    within_reason(async {
        let mut random = ChaCha8Rng::seed_from_u64(2);
        let (mut network, notices) = super::start(peergrad_net::Identity::generate(), SECRET).await;
        let target = network.contact();
        let malicious_peer = MaliciousPeer::connect(&target.addresses[0]).await;

        let draining = tokio::spawn(async move {
            loop {
                network.next().await;
            }
        });
        for round in 0..200 {
            malicious_peer.misbehave(round, &mut random).await;
        }
        expect_bad_streams(notices).await;
        draining.abort();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn honest_peers_continue_beside_a_malicious_one() {
    within_reason(async {
        let mut all = couriers(2, 200).await;
        let target = all[0].0.contact();
        let (second, mut first) = (all.pop().unwrap(), all.pop().unwrap());
        first.1 = tolerant(&first.1, second.1.own);
        let honest =
            tokio::spawn(async move { tokio::join!(run(first.0, first.1), run(second.0, second.1)) });
        let malicious_peer = MaliciousPeer::connect(&target.addresses[0]).await;
        let mut random = ChaCha8Rng::seed_from_u64(3);
        for round in 0..100 {
            malicious_peer.misbehave_before_frames(round, &mut random).await;
        }
        let ((_, traffic), _) = honest.await.unwrap();
        assert!(traffic.bad_streams > 0);
    })
    .await;
}

/// The same courier, which ignores the malicious peer's link as long as no frame arrives on it.
fn tolerant(courier: &Courier, other: peergrad_protocol::PeerId) -> Courier {
    Courier::new(courier.own, vec![], &[other], 200)
}

async fn expect_bad_streams(mut notices: UnboundedReceiver<Notice>) {
    loop {
        if let Notice::Peer { change: PeerNotice::BadStream { .. }, .. } =
            notices.recv().await.expect("a notice of garbage")
        {
            return;
        }
    }
}

fn socket_of(network: &Network) -> String {
    let address: Multiaddr = network.contact().addresses[0].parse().unwrap();
    let port = address.iter().find_map(|part| match part {
        libp2p::multiaddr::Protocol::Tcp(port) => Some(port),
        _ => None,
    });
    format!("127.0.0.1:{}", port.unwrap())
}

/// A peer that holds the secret and does not follow the protocol.
struct MaliciousPeer {
    control: libp2p_stream::Control,
    target: libp2p::PeerId,
}

impl MaliciousPeer {
    async fn connect(address: &str) -> Self {
        let Ok(BootstrapAddress::Address(address)) = address.parse() else { panic!("an address") };
        let mut swarm = SwarmBuilder::with_new_identity()
            .with_tokio()
            .with_tcp(
                tcp::Config::new(),
                |keypair: &_| {
                    let prologue = SECRET.handshake_prologue().to_vec();
                    noise::Config::new(keypair).map(|config| config.with_prologue(prologue))
                },
                yamux::Config::default,
            )
            .unwrap()
            .with_behaviour(|_| libp2p_stream::Behaviour::new())
            .unwrap()
            .with_swarm_config(|config| config.with_idle_connection_timeout(Duration::from_secs(60)))
            .build();
        let control = swarm.behaviour().new_control();
        // It never accepts: it refuses peers that open a stream to it.
        swarm.dial(DialOpts::unknown_peer_id().address(address.clone()).build()).unwrap();
        let target = connected(&mut swarm).await;
        tokio::spawn(async move {
            loop {
                swarm.select_next_some().await;
            }
        });
        Self { control, target }
    }

    async fn open(&self) -> Option<libp2p::Stream> {
        // It is disconnected after a while, and its own swarm does not know the address.
        let mut control = self.control.clone();
        let opened = control.open_stream(self.target, LANE);
        tokio::time::timeout(Duration::from_secs(5), opened).await.ok()?.ok()
    }

    async fn misbehave(&self, round: u64, random: &mut ChaCha8Rng) {
        if round.is_multiple_of(2) {
            return self.misbehave_before_frames(round, random).await;
        }
        let Some(mut stream) = self.open().await else { return };
        let mut opening = vec![2; 33];
        opening[17..].fill(0);
        let mut answer = [0; 34];
        let frame = Frame::encode(&segment(0), Some(peergrad_protocol::Buffer::from_values(&[1.0; 100])));
        let _ = stream.write_all(&opening).await;
        let answered = stream.read_exact(&mut answer).await;
        assert!(answered.is_err() || answer[..2] == [2, 0], "an opening as it should be: {answer:?}");
        // A valid frame, then an invalid one: random, far too large, or with a broken header.
        let _ = stream.write_all(&frame.head).await;
        let _ = stream.write_all(frame.payload.unwrap().bytes()).await;
        let mut bytes = vec![0; 1 + random.next_u32() as usize % 300];
        random.fill_bytes(&mut bytes);
        match round % 3 {
            0 => {}
            1 => bytes.splice(..0, [1, 0, 255, 255, 255, 255, 0, 0, 0, 0]).for_each(drop),
            _ => bytes.splice(..0, [1, 1, 8, 0, 0, 0, 255, 255, 255, 255]).for_each(drop),
        }
        let _ = stream.write_all(&bytes).await;
        let _ = stream.close().await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }

    async fn misbehave_before_frames(&self, round: u64, random: &mut ChaCha8Rng) {
        let Some(mut stream) = self.open().await else { return };
        let mut bytes = vec![0; 33 + random.next_u32() as usize % 300];
        random.fill_bytes(&mut bytes);
        // Another version, or the right one without a session.
        bytes[0] = 3;
        if round.is_multiple_of(2) {
            bytes[0] = 2;
            bytes[1..17].fill(0);
        }
        let _ = stream.write_all(&bytes).await;
        let _ = stream.close().await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
}

async fn connected(swarm: &mut Swarm<libp2p_stream::Behaviour>) -> libp2p::PeerId {
    loop {
        match swarm.select_next_some().await {
            libp2p::swarm::SwarmEvent::ConnectionEstablished { peer_id, .. } => return peer_id,
            libp2p::swarm::SwarmEvent::OutgoingConnectionError { error, .. } => panic!("{error}"),
            _ => {}
        }
    }
}
