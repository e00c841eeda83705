//! The port for direct connections, and strangers that connect to it.

use std::net::{Ipv4Addr, SocketAddr};

use peergrad_net::{Identity, Network, Notice};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::exchange::{assert_undisturbed, couriers, run};
use super::{SECRET, start, within_reason};

fn direct_address(network: &Network) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, network.direct_port().expect("loopback has free ports").get()).into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_the_direct_port_is_counted_and_disturbs_no_peer() {
    within_reason(async {
        let mut all = couriers(2, 400).await;
        let address = direct_address(&all[0].0);
        let (second, first) = (all.pop().unwrap(), all.pop().unwrap());
        let honest =
            tokio::spawn(async move { tokio::join!(run(first.0, first.1), run(second.0, second.1)) });
        let mut random = ChaCha8Rng::seed_from_u64(1);
        for _ in 0..300 {
            let mut bytes = vec![0; random.next_u32() as usize % 600];
            random.fill_bytes(&mut bytes);
            // A third begin like TLS, and continue with noise.
            if random.next_u32() % 3 == 0 {
                bytes.splice(..0, [22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]);
            }
            // Once the honest peers are done, the port is closed.
            let Ok(mut stream) = TcpStream::connect(address).await else { break };
            let _ = stream.write_all(&bytes).await;
        }
        let ((first, traffic), (second, _)) = honest.await.unwrap();
        assert!(traffic.refused_strangers > 0, "{traffic:?}");
        [first, second].iter().for_each(assert_undisturbed);
    })
    .await;
}

#[tokio::test]
async fn a_stranger_is_refused_and_reported() {
    within_reason(async {
        let (network, mut notices) = start(Identity::generate(), SECRET).await;
        let mut stranger = TcpStream::connect(direct_address(&network)).await.unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n").await.unwrap();
        let Some(Notice::HandshakeRefused { from, count: 1, reason }) = notices.recv().await else {
            panic!("a notice of it");
        };
        assert_eq!(from, Ipv4Addr::LOCALHOST);
        assert!(reason.contains("not the handshake of a peer"), "{reason}");
        assert_eq!(network.counters().read().refused_strangers, 1);
        let mut answer = Vec::new();
        // Perhaps the stranger receives a few bytes of TLS, and then the end.
        let _ = stranger.read_to_end(&mut answer).await;
        assert!(answer.len() < 100, "{answer:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_do_not_block_others() {
    within_reason(async {
        let mut all = couriers(2, 200).await;
        let address = direct_address(&all[0].0);
        let mut silent = Vec::new();
        for _ in 0..50 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let (second, first) = (all.pop().unwrap(), all.pop().unwrap());
        let ((first, _), (second, _)) = tokio::join!(run(first.0, first.1), run(second.0, second.1));
        [first, second].iter().for_each(assert_undisturbed);
    })
    .await;
}
