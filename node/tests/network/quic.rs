//! Links over QUIC: where TCP is blocked, they open, survive a cut, close and open again as over TCP.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use peergrad_net::link::LinkEvent;
use peergrad_net::notice::DialFailure;
use peergrad_net::{
    BootstrapAddress, Identity, Listen, ListenError, Network, NetworkOptions, Notice, PeerNotice, Port,
    StartError,
};
use peergrad_protocol::invite::Secret;
use peergrad_protocol::message::{Contact, JoinMessage, Refusal};
use peergrad_protocol::{Frame, PeerId};
use tokio::net::UdpSocket;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;

use super::courier::Courier;
use super::exchange::{assert_undisturbed, run};
use super::{SECRET, next, options, start, start_joining, within_reason};

/// The TCP address at which `network` listens.
fn socket_of(network: &Network) -> SocketAddr {
    let address = network.contact().addresses[0].clone();
    let parts: Vec<_> = address.split('/').collect();
    let ["", "ip4", ip, "tcp", port] = parts[..] else { panic!("{address}") };
    SocketAddr::new(ip.parse().unwrap(), port.parse().unwrap())
}

/// The address of `network` over QUIC.
fn quic_address(network: &Network) -> String {
    format!("/ip4/127.0.0.1/udp/{}/quic-v1", socket_of(network).port())
}

/// The contact of `network` with that address only.
fn quic_contact(network: &Network) -> Contact {
    Contact { peer: network.peer(), addresses: vec![quic_address(network)] }
}

/// A path to `network` for UDP and not for TCP: at its address there is no TCP listener. It lasts as long as the second result.
async fn address_for_udp_alone(network: &Network) -> (SocketAddr, JoinSet<()>) {
    let (begin, end) = (UdpSocket::bind("127.0.0.1:0").await.unwrap(), socket_of(network));
    let address = begin.local_addr().unwrap();
    let begin = Arc::new(begin);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut beyond: Vec<(SocketAddr, Arc<UdpSocket>)> = Vec::new();
        let mut back = JoinSet::new();
        let mut bytes = vec![0; 1 << 16];
        loop {
            let (count, from) = begin.recv_from(&mut bytes).await.unwrap();
            let known = beyond.iter().find(|(known, _)| *known == from).map(|(_, socket)| Arc::clone(socket));
            let socket = match known {
                Some(socket) => socket,
                None => {
                    let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
                    socket.connect(end).await.unwrap();
                    let (begin, receiving) = (Arc::clone(&begin), Arc::clone(&socket));
                    back.spawn(async move {
                        let mut bytes = vec![0; 1 << 16];
                        // The loop ends when one end has closed its socket.
                        while let Ok(count) = receiving.recv(&mut bytes).await {
                            let _ = begin.send_to(&bytes[..count], from).await;
                        }
                    });
                    beyond.push((from, Arc::clone(&socket)));
                    socket
                }
            };
            let _ = socket.send(&bytes[..count]).await;
        }
    });
    (address, tasks)
}

/// A network that has connected over QUIC to a peer that is gone: it dials others over QUIC first.
async fn start_over_quic() -> (Network, UnboundedReceiver<Notice>) {
    let (mut network, mut notices) = start(Identity::generate(), SECRET).await;
    let (mut other, _) = start(Identity::generate(), SECRET).await;
    network.dial(quic_contact(&other));
    assert_linked(&mut network, &mut other).await;
    other.hang_up(network.peer());
    assert!(next(&mut network).await.starts_with("down"));
    network.hang_up(other.peer());
    assert_eq!(next_notice(&mut notices).await, over_quic(other.peer()));
    (network, notices)
}

/// The notice that the connection to `peer` runs over QUIC.
fn over_quic(peer: PeerId) -> Notice {
    Notice::Peer { peer, change: PeerNotice::QuicInUse }
}

async fn next_notice(notices: &mut UnboundedReceiver<Notice>) -> Notice {
    notices.recv().await.expect("the network is there")
}

/// Checks that frames arrive in both directions.
async fn assert_linked(one: &mut Network, other: &mut Network) {
    let (LinkEvent::Up(to_other), LinkEvent::Up(to_one)) = tokio::join!(one.next(), other.next()) else {
        panic!("a link begins with up");
    };
    assert_eq!((to_other.peer(), to_one.peer()), (other.peer(), one.peer()));
    to_other.send(Frame::encode(&JoinMessage::Refuse(Refusal::Full).into(), None));
    to_one.send(Frame::encode(&JoinMessage::Refuse(Refusal::Full).into(), None));
    assert!(next(one).await.contains("Full"));
    assert!(next(other).await.contains("Full"));
}

#[tokio::test]
async fn an_address_unreachable_over_tcp_is_reached_over_quic_and_reported() {
    within_reason(async {
        let (mut first, mut first_notices) = start(Identity::generate(), SECRET).await;
        let (address, _open) = address_for_udp_alone(&first).await;
        let (mut second, mut notices) =
            start_joining(Identity::generate(), SECRET, vec![address.to_string().parse().unwrap()]).await;
        assert_linked(&mut first, &mut second).await;
        let refused = next_notice(&mut notices).await;
        assert!(
            matches!(&refused, Notice::Unreachable { trouble: DialFailure::Refused, .. }),
            "TCP was tried first: {refused}"
        );
        assert_eq!(next_notice(&mut notices).await, over_quic(first.peer()));
        assert_eq!(next_notice(&mut first_notices).await, over_quic(second.peer()));
        for contact in [first.contact(), second.contact()] {
            assert!(contact.addresses.iter().all(|address| address.contains("/tcp/")), "{contact:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_link_over_quic_continues_after_a_cut() {
    within_reason(async {
        let (mut first, mut first_notices) = start_over_quic().await;
        let (mut second, _) = start(Identity::generate(), SECRET).await;
        second.dial(quic_contact(&first));
        assert_linked(&mut first, &mut second).await;
        let peer = second.peer();
        assert_eq!(next_notice(&mut first_notices).await, over_quic(peer));
        for _ in 0..3 {
            first.disconnector().disconnect(peer);
            let lost = next_notice(&mut first_notices).await;
            assert!(matches!(lost, Notice::Peer { change: PeerNotice::Reconnecting { .. }, .. }), "{lost}");
            // If TCP had been used in between, there would be a notice on the return to QUIC.
            assert_eq!(
                next_notice(&mut first_notices).await,
                Notice::Peer { peer, change: PeerNotice::Resumed }
            );
        }
    })
    .await;
}

/// Each sends numbered segments to the other, and one cuts connections: none may be lost, repeated or out of order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn much_data_over_quic_stays_intact_despite_repeated_cuts() {
    within_reason(async {
        let (first, _) = start_over_quic().await;
        let (second, _) = start(Identity::generate(), SECRET).await;
        let (peers, contacts) = ([first.peer(), second.peer()], vec![quic_contact(&first)]);
        let mut cutting = Courier::new(peers[0], vec![], &peers, 400);
        cutting.disconnector = Some((first.disconnector(), 60));
        let other = Courier::new(peers[1], contacts, &peers, 400);
        let ((cutting, traffic), (other, _)) = tokio::join!(run(first, cutting), run(second, other));
        [cutting, other].iter().for_each(assert_undisturbed);
        assert_eq!(traffic.bad_streams, 0);
    })
    .await;
}

#[tokio::test]
async fn two_peers_that_dial_each_other_over_quic_at_once_have_one_link() {
    within_reason(async {
        let (mut first, _) = start(Identity::generate(), SECRET).await;
        let (mut second, _) = start(Identity::generate(), SECRET).await;
        first.dial(quic_contact(&second));
        second.dial(quic_contact(&first));
        assert_linked(&mut first, &mut second).await;
    })
    .await;
}

#[tokio::test]
async fn a_wrong_secret_over_quic_is_reported_like_over_tcp() {
    within_reason(async {
        let (mut first, _) = start(Identity::generate(), SECRET).await;
        let (udp_only, _open) = address_for_udp_alone(&first).await;
        for address in [quic_address(&first), udp_only.to_string()] {
            let address: BootstrapAddress = address.parse().unwrap();
            let (_stranger, mut notices) =
                start_joining(Identity::generate(), Secret([8; 32]), vec![address]).await;
            let words = loop {
                match next_notice(&mut notices).await {
                    // From before QUIC was tried.
                    Notice::Unreachable { trouble: DialFailure::Refused, .. } => {}
                    Notice::Unreachable { trouble: DialFailure::WrongSecret, address, .. } => {
                        break address.to_string();
                    }
                    other => panic!("{other}"),
                }
            };
            let is_named = words.contains("/udp/") || words.ends_with(&format!("/tcp/{}", udp_only.port()));
            assert!(is_named, "{words}");
        }
        let (mut second, _) = start(Identity::generate(), SECRET).await;
        second.dial(quic_contact(&first));
        assert_linked(&mut first, &mut second).await;
    })
    .await;
}

#[tokio::test]
async fn another_peer_that_answers_over_quic_is_reported() {
    within_reason(async {
        let (first, _) = start(Identity::generate(), SECRET).await;
        let gone = Contact { peer: Identity::generate().peer(), ..quic_contact(&first) };
        let (_second, mut notices) =
            start_joining(Identity::generate(), SECRET, vec![BootstrapAddress::Contact(gone)]).await;
        let notice = next_notice(&mut notices).await;
        assert!(
            matches!(&notice, Notice::Unreachable { trouble: DialFailure::OtherPeer { .. }, .. }),
            "{notice}"
        );
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_hangs_up_over_quic_is_known_to_have_left_after_its_last_frame() {
    within_reason(async {
        let (mut first, _) = start(Identity::generate(), SECRET).await;
        let (mut second, _) = start(Identity::generate(), SECRET).await;
        second.dial(quic_contact(&first));
        let name = second.peer().short();
        assert_eq!(next(&mut first).await, format!("up {name}"));
        let LinkEvent::Up(link) = second.next().await else { panic!("another event") };
        for _ in 0..100 {
            link.send(Frame::encode(&JoinMessage::Refuse(Refusal::Full).into(), None));
        }
        second.hang_up(first.peer());
        for _ in 0..100 {
            assert_eq!(next(&mut first).await, format!("frame {name} Ok(Join(Refuse(Full)))"));
        }
        assert_eq!(next(&mut first).await, format!("down {name} it left"));
        link.drained().await;

        // The peer may return.
        second.dial(quic_contact(&first));
        assert_eq!(next(&mut first).await, format!("up {name}"));
    })
    .await;
}

/// As [`options`], with this port.
fn options_at(port: u16, identity: &Identity, bootstrap_addresses: Vec<BootstrapAddress>) -> NetworkOptions {
    NetworkOptions {
        listen: Listen { address: Some(Ipv4Addr::LOCALHOST.into()), port: Port::Exactly(port) },
        ..options(identity.clone(), SECRET, bootstrap_addresses)
    }
}

/// Starts a network at the port that it had before, as soon as the system allows it.
async fn restart(port: u16, identity: &Identity, bootstrap_addresses: Vec<BootstrapAddress>) -> Network {
    loop {
        match Network::start(options_at(port, identity, bootstrap_addresses.clone())).await {
            Ok((network, _)) => return network,
            Err(StartError::Listen(ListenError::PortInUse { .. })) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn a_peer_restarted_at_its_port_is_linked_again_whichever_side_dials() {
    within_reason(async {
        for survivor_dials in [true, false] {
            let (mut survivor, _) = start(Identity::generate(), SECRET).await;
            let identity = Identity::generate();
            let (other, _) = start(identity.clone(), SECRET).await;
            let (port, name) = (socket_of(&other).port(), other.peer().short());
            survivor.dial(quic_contact(&other));
            assert_eq!(next(&mut survivor).await, format!("up {name}"));
            let back = if survivor_dials { vec![] } else { vec![quic_address(&survivor).parse().unwrap()] };
            drop(other);
            let mut other = restart(port, &identity, back).await;
            assert!(next(&mut survivor).await.starts_with(&format!("down {name} ")));
            assert_eq!(next(&mut survivor).await, format!("up {name}"));
            assert_eq!(next(&mut other).await, format!("up {}", survivor.peer().short()));
        }
    })
    .await;
}
