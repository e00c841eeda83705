//! Sessions, outages and circuits of one remote peer.

use libp2p::swarm::ConnectionId;

use super::paths::{RELAY_UPGRADE_PAUSE, RELAY_UPGRADE_PAUSE_MAX};
use super::*;
use crate::dial::CarrierHistory;
use crate::link::OpenRequest;

fn remote(now: Instant) -> RemotePeer {
    RemotePeer::new(PeerId([1; 32]), Incarnation(1), now)
}

fn connection(since: Instant, is_relayed: bool) -> Connection {
    Connection { since, carrier: Carrier::Tcp, is_relayed, dialed: None }
}

#[test]
fn a_link_that_carries_tensors_does_not_continue_over_a_circuit() {
    let now = Instant::now();
    let mut remote = remote(now);
    remote.paths.connections.insert(ConnectionId::new_unchecked(1), connection(now, false));
    let SessionChange::New(link) = remote.note_session(draw(), now) else { panic!("the first") };
    assert!(!link.is_relayed() && remote.has_usable_connection());
    remote.paths.connections.clear();
    remote.paths.connections.insert(ConnectionId::new_unchecked(2), connection(now, true));
    assert!(!remote.has_usable_connection());
    remote.link.outage = None;
    remote.link.note_outage("connection reset".to_owned(), now);
    assert_eq!(remote.overdue(now + RECONNECT_MAX).as_deref(), Some("connection reset"));
    remote.take_link().unwrap();
    let SessionChange::New(link) = remote.note_session(draw(), now) else { panic!("another one") };
    assert!(link.is_relayed() && remote.has_usable_connection() && !remote.paths.has_unrelayed_connection());
}

#[test]
fn an_upgrade_from_a_circuit_is_tried_ever_more_rarely() {
    let now = Instant::now();
    let mut remote = remote(now);
    let address: Multiaddr = "/ip4/10.0.0.7/tcp/9".parse().unwrap();
    remote.paths.remember(address.clone());
    assert_eq!(remote.paths.take_relay_upgrade(now), None, "there is no circuit");
    remote.paths.connections.insert(ConnectionId::new_unchecked(2), connection(now, true));
    assert_eq!(remote.paths.take_relay_upgrade(now), Some(vec![address]));
    assert_eq!(remote.paths.take_relay_upgrade(now), None);
    assert!(remote.paths.take_relay_upgrade(now + RELAY_UPGRADE_PAUSE).is_some());
    assert_eq!(remote.paths.take_relay_upgrade(now + 2 * RELAY_UPGRADE_PAUSE), None);
    remote.paths.connections.insert(ConnectionId::new_unchecked(1), connection(now, false));
    assert_eq!(remote.paths.take_relay_upgrade(now + RELAY_UPGRADE_PAUSE_MAX), None);
}

fn draw() -> SessionId {
    SessionId::draw(Incarnation(1))
}

#[test]
fn of_two_processes_with_one_identity_the_later_one_is_the_peer() {
    let now = Instant::now();
    let mut remote = remote(now);
    let [first, second] = [1, 2].map(|start| SessionId::draw(Incarnation(start)));
    remote.note_session(first, now);
    assert!(!remote.link.is_duplicate(first) && !remote.link.is_duplicate(second));
    assert!(matches!(remote.note_session(second, now), SessionChange::Replaced { .. }));
    assert!(remote.link.is_duplicate(first));
    remote.take_link().unwrap();
    assert!(remote.link.is_duplicate(first), "the later one may come back");
}

#[test]
fn a_link_lasts_as_long_as_both_sessions() {
    let now = Instant::now();
    let mut remote = remote(now);
    let (first, second) = (draw(), draw());
    assert!(matches!(remote.note_session(first, now), SessionChange::New(_)));
    let mine = remote.link.mine;
    assert!(matches!(remote.note_session(first, now), SessionChange::Same(_)));
    assert!(matches!(remote.note_session(second, now), SessionChange::Replaced { .. }));
    assert_eq!(remote.link.mine, mine, "only our own giving up changes our session");
    remote.take_link().unwrap();
    assert_ne!(remote.link.mine, mine);
}

#[test]
fn an_opening_for_an_earlier_session_is_recognized() {
    let now = Instant::now();
    let mut remote = remote(now);
    let theirs = draw();
    let opening = |known| OpenRequest { session: theirs, known, joins: None };
    assert!(remote.link.is_current(opening(None)));
    assert!(remote.link.is_current(opening(Some(remote.link.mine))));
    let before = remote.link.mine;
    remote.note_session(theirs, now);
    remote.take_link();
    assert!(!remote.link.is_current(opening(Some(before))));
}

#[test]
fn an_outage_ends_the_link_sooner_without_a_connection() {
    let now = Instant::now();
    let mut remote = remote(now);
    remote.note_session(draw(), now);
    remote.link.outage = None;
    assert_eq!(remote.overdue(now + ANSWER_MAX), None);
    remote.link.note_outage("connection reset".to_owned(), now);
    remote.link.note_outage("connection refused".to_owned(), now);
    assert_eq!(remote.overdue(now), None);
    assert_eq!(remote.overdue(now + RECONNECT_MAX).as_deref(), Some("connection reset"));
    remote.paths.connections.insert(ConnectionId::new_unchecked(1), connection(now, false));
    assert_eq!(remote.overdue(now + RECONNECT_MAX), None);
    assert_eq!(remote.overdue(now + ANSWER_MAX).as_deref(), Some("no answer for 10 s"));
}

#[test]
fn an_outdated_response_is_ignored() {
    let now = Instant::now();
    let mut remote = remote(now);
    let (first, second) = (draw(), draw());
    assert!(remote.link.is_response_current(None, first));
    remote.note_session(first, now);
    assert!(remote.link.is_response_current(None, first), "both have said the same");
    assert!(remote.link.is_response_current(Some(first), second), "it has begun another session");
    remote.note_session(second, now);
    assert!(!remote.link.is_response_current(Some(first), first), "sent before it began another session");
}

#[test]
fn a_peer_is_gone_if_its_own_machine_refuses_the_connection() {
    let now = Instant::now();
    let mut remote = remote(now);
    let refused: Vec<Multiaddr> = vec!["/ip4/10.0.0.7/tcp/9".parse().unwrap()];
    assert!(!remote.is_gone(&refused), "another machine may have that address");
    remote.paths.note_ip(&"/ip4/10.0.0.7/tcp/40000".parse().unwrap());
    assert!(remote.is_gone(&refused));
    remote.paths.addresses.push("/ip4/10.0.0.9/tcp/9/p2p-circuit".parse().unwrap());
    assert!(!remote.is_gone(&refused), "it may be behind a firewall");
    remote.paths.direct.note_accepted();
    assert!(remote.is_gone(&refused));
    remote.paths.carriers.last = Some(Carrier::Quic);
    assert!(!remote.is_gone(&refused), "what keeps TCP out may say so as well");
    remote.paths.carriers.out = Some(Carrier::Tcp);
    assert!(remote.is_gone(&refused), "TCP gets through from here, whatever the last connection ran over");
    remote.paths.connections.insert(ConnectionId::new_unchecked(1), connection(now, false));
    assert!(!remote.is_gone(&refused));
}

#[test]
fn a_link_over_quic_is_given_more_time_for_its_next_connection() {
    let now = Instant::now();
    let mut remote = remote(now);
    remote.note_session(draw(), now);
    remote.paths.carriers = CarrierHistory { last: Some(Carrier::Tcp), out: Some(Carrier::Quic) };
    assert_eq!(remote.overdue(now + RECONNECT_MAX), None);
    assert!(remote.overdue(now + RECONNECT_OVER_QUIC_MAX).is_some());
}
