//! Links open, close and open again; unknown peers and wrong addresses are told apart.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

use peergrad_net::link::LinkEvent;
use peergrad_net::notice::DialFailure;
use peergrad_net::{BootstrapAddress, Identity, Listen, Network, NetworkOptions, Notice, Port};
use peergrad_protocol::invite::Secret;
use peergrad_protocol::message::{Contact, Departure, JoinMessage, Message, Refusal};
use peergrad_protocol::{Frame, Incarnation};
use tokio::sync::mpsc::UnboundedReceiver;

use super::{SECRET, address_of, next, options, start, start_joining, within_reason};

async fn next_trouble(notices: &mut UnboundedReceiver<Notice>) -> (DialFailure, String) {
    loop {
        let notice = notices.recv().await.unwrap();
        if let Notice::Unreachable { trouble, .. } = &notice {
            return (trouble.clone(), notice.to_string());
        }
    }
}

#[tokio::test]
async fn one_address_is_enough_for_a_link_in_both_directions() {
    within_reason(async {
        let (mut first, _) = start(Identity::generate(), SECRET).await;
        let (mut second, _) = start_joining(Identity::generate(), SECRET, vec![address_of(&first)]).await;
        let (up_first, up_second) = tokio::join!(first.next(), second.next());
        let (LinkEvent::Up(to_second), LinkEvent::Up(to_first)) = (up_first, up_second) else { panic!() };
        assert_eq!((to_second.peer(), to_first.peer()), (second.peer(), first.peer()));
        to_second.send(Frame::encode(&JoinMessage::Refuse(Refusal::Full).into(), None));
        to_first.send(Frame::encode(&Message::Leave(Departure::new("bye")), None));
        assert!(next(&mut second).await.contains("Full"));
        assert!(next(&mut first).await.contains("bye"));
    })
    .await;
}

/// The data directory of a peer was copied to another machine, and both run.
#[tokio::test]
async fn of_two_processes_with_one_identity_the_later_one_is_linked() {
    within_reason(async {
        let (mut first, _) = start(Identity::generate(), SECRET).await;
        let bootstrap_addresses = vec![address_of(&first)];
        let copied = Identity::generate();
        let name = copied.peer().short();
        let [earlier, later] = [1, 2].map(|start| NetworkOptions {
            start: Incarnation(start),
            ..options(copied.clone(), SECRET, bootstrap_addresses.clone())
        });
        let (mut later, _) = Network::start(later).await.unwrap();
        assert_eq!(next(&mut first).await, format!("up {name}"));
        assert_eq!(next(&mut later).await, format!("up {}", first.peer().short()));
        let (mut earlier, _) = Network::start(earlier).await.unwrap();
        assert_eq!(next(&mut earlier).await, format!("outdated {}", first.peer().short()));
        drop(earlier);
        let LinkEvent::Down { reason, .. } = ({
            drop(later);
            first.next().await
        }) else {
            panic!("nothing was to happen before the later one went")
        };
        assert!(!reason.contains("restarted"), "{reason}");
    })
    .await;
}

/// A port that is free and stays free: the system chooses the ports of other tests from a higher range, and each call returns another one.
fn free_port() -> u16 {
    static CALLS: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + (std::process::id() % 1_000) as u16 * 10;
    (first..)
        .filter(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .nth(CALLS.fetch_add(1, Ordering::Relaxed).into())
        .expect("a port is free")
}

/// A neighbour may dial the instant that a port is open, before the network behind it has finished starting.
#[tokio::test]
async fn peers_that_dial_early_are_linked_in_both_directions() {
    within_reason(async {
        let port = free_port();
        let address: BootstrapAddress = format!("127.0.0.1:{port}").parse().unwrap();
        let mut early = Vec::new();
        for _ in 0..8 {
            early.push(start_joining(Identity::generate(), SECRET, vec![address.clone()]).await.0);
        }
        let options = NetworkOptions {
            listen: Listen { address: Some(Ipv4Addr::LOCALHOST.into()), port: Port::Exactly(port) },
            ..options(Identity::generate(), SECRET, vec![])
        };
        let (mut late, _) = Network::start(options).await.unwrap();
        let mut linked = 0;
        while linked < early.len() {
            if let LinkEvent::Up(link) = late.next().await {
                link.send(Frame::encode(&JoinMessage::Refuse(Refusal::Full).into(), None));
                linked += 1;
            }
        }
        for network in &mut early {
            assert!(next(network).await.starts_with("up"));
            assert!(next(network).await.contains("Full"));
        }
    })
    .await;
}

#[tokio::test]
async fn a_new_secret_keeps_members_connected_and_disconnects_all_others() {
    within_reason(async {
        let (mut first, _) = start(Identity::generate(), SECRET).await;
        let (mut member, _) = start_joining(Identity::generate(), SECRET, vec![address_of(&first)]).await;
        let LinkEvent::Up(link) = first.next().await else { panic!("a link was to come") };
        assert!(next(&mut member).await.starts_with("up"));
        let (other, mut notices) =
            start_joining(Identity::generate(), SECRET, vec![address_of(&first)]).await;
        assert!(next(&mut first).await.starts_with("up"));

        let (secret, members) = (Secret([9; 32]), BTreeSet::from([first.peer(), member.peer()]));
        first.change_secret(secret, members.clone());
        member.change_secret(secret, members);
        assert_eq!(next_trouble(&mut notices).await.0, DialFailure::WrongSecret);
        link.send(Frame::encode(&JoinMessage::Refuse(Refusal::Full).into(), None));
        assert!(next(&mut member).await.contains("Full"), "it was never interrupted");
        let (third, _) = start_joining(Identity::generate(), secret, vec![address_of(&first)]).await;
        let (lost, up) = (format!("down {}", other.peer().short()), format!("up {}", third.peer().short()));
        let mut notice = next(&mut first).await;
        if notice.starts_with(&lost) {
            notice = next(&mut first).await;
        }
        assert_eq!(notice, up);
    })
    .await;
}

#[tokio::test]
async fn a_wrong_secret_is_reported_and_the_right_one_still_works() {
    within_reason(async {
        let (mut first, _) = start(Identity::generate(), SECRET).await;
        let (_stranger, mut notices) =
            start_joining(Identity::generate(), Secret([8; 32]), vec![address_of(&first)]).await;
        let (trouble, words) = next_trouble(&mut notices).await;
        assert_eq!(trouble, DialFailure::WrongSecret);
        assert!(words.contains("answered, but the secret (or the run) differs: check the invite"), "{words}");

        let (second, _) = start_joining(Identity::generate(), SECRET, vec![address_of(&first)]).await;
        assert_eq!(next(&mut first).await, format!("up {}", second.peer().short()));
    })
    .await;
}

#[tokio::test]
async fn addresses_that_do_not_work_are_named_with_the_reason() {
    within_reason(async {
        let closed = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let nobody: BootstrapAddress = closed.to_string().parse().unwrap();
        let (mut first, mut notices) = start_joining(Identity::generate(), SECRET, vec![nobody]).await;
        let (trouble, words) = next_trouble(&mut notices).await;
        assert_eq!(trouble, DialFailure::Refused, "{words}");
        assert!(words.contains(&closed.port().to_string()), "{words}");

        // The invite names a peer that is gone, and another peer of the same run has its address now.
        let gone = Contact { peer: Identity::generate().peer(), addresses: first.contact().addresses };
        let (_second, mut notices) =
            start_joining(Identity::generate(), SECRET, vec![BootstrapAddress::Contact(gone)]).await;
        let (trouble, words) = next_trouble(&mut notices).await;
        assert!(matches!(trouble, DialFailure::OtherPeer { .. }), "{words}");

        // Another program listens there.
        let other = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = other.local_addr().unwrap().to_string().parse().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = other.accept().await {
                let _ = tokio::io::AsyncWriteExt::write_all(
                    &mut stream,
                    &b"HTTP/1.1 400 Bad Request\r\n".repeat(9),
                )
                .await;
                let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
            }
        });
        let (third, mut notices) = start_joining(Identity::generate(), SECRET, vec![address]).await;
        assert_eq!(next_trouble(&mut notices).await.0, DialFailure::NotAPeer);

        third.dial(first.contact());
        assert_eq!(next(&mut first).await, format!("up {}", third.peer().short()));
    })
    .await;
}

#[tokio::test]
async fn a_restarted_peer_is_down_and_up_again() {
    within_reason(async {
        let (mut first, _) = start(Identity::generate(), SECRET).await;
        let identity = Identity::generate();
        let name = identity.peer().short();
        let (second, _) = start_joining(identity.clone(), SECRET, vec![address_of(&first)]).await;
        assert_eq!(next(&mut first).await, format!("up {name}"));
        drop(second);

        let (mut second, _) = start_joining(identity, SECRET, vec![address_of(&first)]).await;
        // Which reason is reported depends on which peer dials first: its new session, or that its old port is closed.
        let down = next(&mut first).await;
        let reasons = ["it restarted", "connection refused"].map(|reason| format!("down {name} {reason}"));
        assert!(reasons.iter().any(|reason| down.starts_with(reason)), "{down}");
        assert_eq!(next(&mut first).await, format!("up {name}"));
        assert_eq!(next(&mut second).await, format!("up {}", first.peer().short()));
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_vanishes_is_reported_down_with_a_reason() {
    within_reason(async {
        let (mut first, _) = start(Identity::generate(), SECRET).await;
        let (second, _) = start(Identity::generate(), SECRET).await;
        let name = second.peer().short();
        first.dial(second.contact());
        assert_eq!(next(&mut first).await, format!("up {name}"));
        drop(second);
        let down = next(&mut first).await;
        assert!(down.starts_with(&format!("down {name} connection ")), "{down}");
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_hangs_up_is_known_to_have_left_after_its_last_frame() {
    within_reason(async {
        let (mut first, _) = start(Identity::generate(), SECRET).await;
        let (mut second, _) = start_joining(Identity::generate(), SECRET, vec![address_of(&first)]).await;
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
        second.dial(first.contact());
        assert_eq!(next(&mut first).await, format!("up {name}"));
    })
    .await;
}

/// At the end of a run all has been sent, and no peer may report the end as a failure.
#[tokio::test]
async fn a_goodbye_arrives_even_if_no_other_frame_is_pending() {
    within_reason(async {
        let (mut first, mut notices) = start(Identity::generate(), SECRET).await;
        let (mut second, _) = start_joining(Identity::generate(), SECRET, vec![address_of(&first)]).await;
        let name = second.peer().short();
        assert_eq!(next(&mut first).await, format!("up {name}"));
        let LinkEvent::Up(link) = second.next().await else { panic!("another event") };
        second.hang_up(first.peer());
        link.drained().await;
        drop(second);
        assert_eq!(next(&mut first).await, format!("down {name} it left"));
        let notices: Vec<String> =
            std::iter::from_fn(|| notices.try_recv().ok()).map(|it| it.to_string()).collect();
        assert!(notices.is_empty(), "leaving is no trouble: {notices:?}");
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_gave_up_a_link_announces_it_with_its_next_opening() {
    within_reason(async {
        let (mut first, _) = start(Identity::generate(), SECRET).await;
        let (mut second, _) = start_joining(Identity::generate(), SECRET, vec![address_of(&first)]).await;
        assert!(next(&mut first).await.starts_with("up"));
        assert!(next(&mut second).await.starts_with("up"));
        // Both cut the connection and open it again, repeatedly: neither may report the link as down.
        for _ in 0..20 {
            first.disconnector().disconnect(second.peer());
            second.disconnector().disconnect(first.peer());
            tokio::task::yield_now().await;
        }
        let LinkEvent::Up(_) = ({
            first.hang_up(second.peer());
            first.dial(second.contact());
            first.next().await
        }) else {
            panic!("the next life of the link begins with up")
        };
    })
    .await;
}

#[tokio::test]
async fn an_explicit_port_in_use_is_an_error_and_the_default_falls_back() {
    use peergrad_net::{Listen, ListenError, Mdns, Network, NetworkOptions, StartError};
    within_reason(async {
        let options = |port| NetworkOptions {
            identity: Identity::generate(),
            start: peergrad_protocol::Incarnation(1),
            secret: SECRET,
            listen: Listen { address: Some(std::net::Ipv4Addr::LOCALHOST.into()), port },
            external: vec![],
            upnp: false,
            bootstrap_addresses: vec![],
            mdns: Mdns::Off,
            pool: peergrad_protocol::Pool::new(4),
        };
        let (first, _) = Network::start(options(Port::Any)).await.unwrap();
        let address = first.contact().addresses[0].clone();
        let taken: u16 = address.rsplit('/').next().unwrap().parse().unwrap();
        let error = Network::start(options(Port::Exactly(taken))).await.unwrap_err();
        assert!(
            matches!(error, StartError::Listen(ListenError::PortInUse { port }) if port == taken),
            "{error}"
        );

        // Whichever process has the default port, these two networks do not share it.
        let (_second, _) = Network::start(options(Port::default())).await.unwrap();
        let (_third, mut notices) = Network::start(options(Port::default())).await.unwrap();
        let words = notices.recv().await.unwrap().to_string();
        assert!(words.starts_with("port 4747 is in use; listening on port "), "{words}");
    })
    .await;
}
