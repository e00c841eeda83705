//! Which peer is dialed when and over which carrier, and what the user hears, with attempts that fail as a test decides.

use std::io;
use std::time::Duration;

use libp2p::TransportError;

use super::target::{RETRY_PAUSE_MAX, pause_after};
use super::*;
use crate::notice::Notice;
use crate::proof::ProofError;

#[test]
fn pauses_between_attempts_double_up_to_a_limit() {
    let pauses: Vec<_> = (1..8).map(|failures| pause_after(failures).as_millis()).collect();
    assert_eq!(pauses, [200, 400, 800, 1600, 3200, 5000, 5000]);
}

#[test]
fn a_dial_failure_is_reported_ever_more_rarely() {
    let mut dialer = Dialer::default();
    let start = Instant::now();
    dialer.want_bootstrap("10.0.0.7".parse().unwrap(), start);
    let mut told_at = Vec::new();
    for second in 0..500 {
        let now = start + Duration::from_secs(second);
        for options in dialer.take_due(now) {
            let address = Multiaddr::empty();
            let refused = TransportError::Other(io::Error::from(io::ErrorKind::ConnectionRefused));
            let error = DialError::Transport(vec![(address, refused)]);
            let notices = dialer.failed(options.connection_id(), &error, now);
            told_at.extend(notices.iter().map(|_| second));
        }
    }
    assert_eq!(told_at.len(), 4, "{told_at:?}");
}

fn refusal() -> DialError {
    failure(TCP, io::ErrorKind::ConnectionRefused.into())
}

fn failure(address: &str, error: io::Error) -> DialError {
    DialError::Transport(vec![(address.parse().unwrap(), TransportError::Other(error))])
}

const TCP: &str = "/ip4/10.0.0.7/tcp/9";
const QUIC: &str = "/ip4/10.0.0.7/udp/9/quic-v1";

/// What an attempt goes over; libp2p keeps its addresses to itself, but shows them.
fn carrier_of(options: &DialOpts) -> Carrier {
    let shown = format!("{options:?}");
    let (over_tcp, over_quic) = (shown.contains(TCP), shown.contains(QUIC));
    assert_ne!(over_tcp, over_quic, "each attempt is over one of both: {shown}");
    if over_quic { Carrier::Quic } else { Carrier::Tcp }
}

/// What a test sees of a target whose attempts all fail.
#[derive(Default)]
struct Seen {
    /// When it was tried, in milliseconds.
    over_tcp: Vec<u64>,
    over_quic: Vec<u64>,
    failures_seen: Vec<String>,
}

/// What the user reads of a failure.
fn text_of(failure: &FailedAddress) -> String {
    Notice::from(failure.clone()).to_string()
}

/// Fails every attempt for so long, as `fail` says.
fn fail_with(
    dialer: &mut Dialer,
    start: Instant,
    milliseconds: u64,
    fail: impl Fn(Carrier) -> DialError,
) -> Seen {
    let mut seen = Seen::default();
    for passed in 0..milliseconds {
        let now = start + Duration::from_millis(passed);
        let mut due = dialer.take_due(now);
        while let Some(options) = due.pop() {
            let carrier = carrier_of(&options);
            match carrier {
                Carrier::Tcp => seen.over_tcp.push(passed),
                Carrier::Quic => seen.over_quic.push(passed),
            }
            let failures = dialer.failed(options.connection_id(), &fail(carrier), now);
            seen.failures_seen.extend(failures.iter().map(text_of));
            due.extend(dialer.take_due(now));
        }
    }
    seen
}

/// Two connections that time out.
fn silence(carrier: Carrier) -> DialError {
    let address = if carrier == Carrier::Tcp { TCP } else { QUIC };
    failure(address, io::ErrorKind::TimedOut.into())
}

/// One that this peer has made, at this address.
fn dialed(connection: ConnectionId, address: &Multiaddr) -> NewConnection<'_> {
    NewConnection { connection, address, evidence: CarrierEvidence::Out }
}

fn through(carrier: Carrier) -> CarrierHistory {
    CarrierHistory { last: Some(carrier), out: Some(carrier) }
}

fn quic() -> Multiaddr {
    QUIC.parse().unwrap()
}

fn addresses() -> Vec<Multiaddr> {
    vec![TCP.parse().unwrap()]
}

fn circuit() -> Multiaddr {
    format!("/ip4/10.0.0.9/tcp/9/p2p/{}/p2p-circuit", PeerId::random()).parse().unwrap()
}

fn named(address: &str, start: Instant) -> Dialer {
    let mut dialer = Dialer::default();
    dialer.want_bootstrap(address.parse().unwrap(), start);
    dialer
}

#[test]
fn a_peer_wanted_again_is_dialed_at_once_and_a_forgotten_one_never() {
    let mut dialer = Dialer::default();
    let (peer, start) = (PeerId::random(), Instant::now());
    dialer.want(peer, addresses(), start);
    let seen = fail_with(&mut dialer, start, 5000, |_| refusal());
    assert_eq!((seen.over_tcp, seen.failures_seen.len()), (vec![0, 200, 600, 1400, 3000], 1));
    let later = start + Duration::from_secs(5);
    dialer.want(peer, addresses(), later);
    assert_eq!(fail_with(&mut dialer, later, 1000, |_| refusal()).over_tcp, [0]);
    dialer.keep_wanted(|other| *other != peer);
    assert!(fail_with(&mut dialer, later, 60_000, |_| refusal()).over_tcp.is_empty());
}

#[test]
fn after_a_tcp_timeout_quic_is_tried_at_once_and_one_failure_is_reported() {
    let start = Instant::now();
    let seen = fail_with(&mut named(TCP, start), start, 5000, silence);
    assert_eq!(seen.over_tcp, [0, 200, 600, 1400, 3000]);
    assert_eq!(seen.over_quic, seen.over_tcp);
    assert_eq!(seen.failures_seen, [format!("{TCP}: timed out; still trying")]);
}

#[test]
fn an_unreachable_peer_is_listed_once_whatever_addresses_were_tried() {
    let start = Instant::now();
    let at = |milliseconds| start + Duration::from_millis(milliseconds);
    let mut dialer = Dialer::default();
    let peer = crate::Identity::generate().peer();
    let other = "/ip4/10.0.0.8/tcp/9";
    dialer.want(to_libp2p(peer).unwrap(), vec![TCP.parse().unwrap(), other.parse().unwrap()], start);
    let refused = || {
        let refusal = || TransportError::Other(io::ErrorKind::ConnectionRefused.into());
        DialError::Transport(Vec::from([TCP, other].map(|at| (at.parse().unwrap(), refusal()))))
    };
    let mut notices = Vec::new();
    for passed in 0..20_000 {
        for options in dialer.take_due(at(passed)) {
            notices.extend(dialer.failed(options.connection_id(), &refused(), at(passed)));
        }
        // Others may be about to leave it out.
        let has_told = !dialer.unreached(at(passed)).is_empty();
        assert!(if passed < 2900 { !has_told } else { has_told || passed < 3100 }, "{passed}");
    }
    let unreached = dialer.unreached(at(20_000));
    let [Unreached { peer: Some(who), trouble: DialFailure::Refused, tries: 8, .. }] = &unreached[..] else {
        panic!("{unreached:?}");
    };
    assert_eq!(*who, peer);
    let words = text_of(&notices[0]);
    assert!(words.starts_with(&format!("peer {} at /ip4/10.0.0", peer.short())), "{words}");
    dialer.mark_connected(to_libp2p(peer).unwrap(), through(Carrier::Tcp));
    assert!(dialer.unreached(at(30_000)).is_empty());
}

#[test]
fn an_attempt_over_quic_is_part_of_the_pause() {
    let start = Instant::now();
    let mut dialer = named(TCP, start);
    let first = dialer.take_due(start).pop().unwrap();
    dialer.failed(first.connection_id(), &silence(Carrier::Tcp), start);
    let second = dialer.take_due(start).pop().unwrap();
    let later = start + RETRY_PAUSE_MAX;
    dialer.failed(second.connection_id(), &silence(Carrier::Quic), later);
    assert_eq!(carrier_of(&dialer.take_due(later).pop().unwrap()), Carrier::Tcp);
}

#[test]
fn a_refusal_over_tcp_is_believed_at_first_and_later_tried_over_quic() {
    let start = Instant::now();
    let seen = fail_with(&mut named(TCP, start), start, 5000, |carrier| match carrier {
        Carrier::Tcp => refusal(),
        Carrier::Quic => silence(carrier),
    });
    assert_eq!(seen.over_tcp, [0, 200, 600, 1400, 3000]);
    assert_eq!(seen.over_quic, [1400, 3000]);
    assert_eq!(seen.failures_seen, [format!("{TCP}: connection refused; still trying")]);
}

#[test]
fn a_peer_once_reached_over_tcp_is_tried_over_quic_if_it_stays_away() {
    let (peer, start) = (PeerId::random(), Instant::now());
    let mut dialer = Dialer::default();
    dialer.want(peer, addresses(), start);
    // It does not matter which of the two dialed.
    let (connection, address) = (ConnectionId::new_unchecked(0), &addresses()[0]);
    let came = NewConnection { evidence: CarrierEvidence::In, ..dialed(connection, address) };
    assert_eq!(
        dialer.connected(peer, came, CarrierHistory::default(), start),
        CarrierHistory { last: Some(Carrier::Tcp), out: None }
    );
    dialer.retry_from(peer, start);
    let seen = fail_with(&mut dialer, start, 3000, silence);
    assert_eq!((seen.over_tcp, seen.over_quic), (vec![0, 200, 600, 1400], vec![200, 600, 1400]));
}

#[test]
fn a_final_answer_is_reported_and_not_tried_over_the_other_carrier() {
    let start = Instant::now();
    let stranger = || io::Error::other(ProofError::OtherSecret);
    let over_tcp = fail_with(&mut named(TCP, start), start, 5000, |_| failure(TCP, stranger()));
    assert_eq!((over_tcp.over_quic.len(), over_tcp.failures_seen.len()), (0, 1));
    let over_quic = fail_with(&mut named(TCP, start), start, 5000, |carrier| match carrier {
        Carrier::Tcp => silence(carrier),
        Carrier::Quic => failure(QUIC, stranger()),
    });
    // The failure over TCP is reported before the attempt over QUIC has ended.
    assert_eq!(over_quic.failures_seen[0], format!("{TCP}: timed out; still trying"));
    assert_eq!(over_quic.failures_seen[1..], over_tcp.failures_seen);
    assert!(
        over_tcp.failures_seen[0].contains("the secret (or the run) differs"),
        "{:?}",
        over_tcp.failures_seen
    );

    // Of two addresses, the one that nobody answers at is tried over QUIC.
    let mut dialer = Dialer::default();
    let other: Multiaddr = "/ip4/10.0.0.8/tcp/9".parse().unwrap();
    dialer.want(PeerId::random(), vec![other.clone(), TCP.parse().unwrap()], start);
    let first = dialer.take_due(start).pop().unwrap();
    let DialError::Transport(mut errors) = silence(Carrier::Tcp) else { unreachable!() };
    errors.push((other, TransportError::Other(stranger())));
    dialer.failed(first.connection_id(), &DialError::Transport(errors), start);
    let second = format!("{:?}", dialer.take_due(start).pop().unwrap());
    assert!(second.contains(QUIC) && !second.contains("10.0.0.8"), "{second}");
}

/// A router may send the two to different machines.
#[test]
fn tcp_is_tried_even_if_another_peer_answers_over_quic() {
    let (peer, start) = (PeerId::random(), Instant::now());
    let mut dialer = Dialer::default();
    dialer.want(peer, addresses(), start);
    dialer.mark_connected(peer, through(Carrier::Quic));
    dialer.retry_from(peer, start);
    let first = dialer.take_due(start).pop().unwrap();
    assert_eq!(carrier_of(&first), Carrier::Quic);
    let error = DialError::WrongPeerId { obtained: libp2p::PeerId::random(), address: QUIC.parse().unwrap() };
    dialer.failed(first.connection_id(), &error, start);
    assert_eq!(carrier_of(&dialer.take_due(start).pop().unwrap()), Carrier::Tcp);
}

#[test]
fn a_peer_once_reached_over_quic_is_tried_over_quic_first() {
    let start = Instant::now();
    let peer = PeerId::random();
    let mut wanted = Dialer::default();
    wanted.want(peer, addresses(), start);
    wanted.mark_connected(peer, through(Carrier::Quic));
    wanted.retry_from(peer, start);
    let mut cut_off = Dialer::default();
    cut_off.reconnect(peer, addresses(), through(Carrier::Quic), start);
    for mut dialer in [wanted, cut_off] {
        let first = dialer.take_due(start).pop().unwrap();
        assert_eq!(carrier_of(&first), Carrier::Quic);
        dialer.failed(first.connection_id(), &silence(Carrier::Quic), start);
        let second = dialer.take_due(start).pop().unwrap();
        assert_eq!(carrier_of(&second), Carrier::Tcp);
        assert!(dialer.failed(second.connection_id(), &refusal(), start).is_empty());
        assert!(dialer.take_due(start).is_empty(), "the pause comes after both");
        dialer.reconnect(peer, addresses(), through(Carrier::Tcp), start);
        assert_eq!(carrier_of(&dialer.take_due(start).pop().unwrap()), Carrier::Tcp);
    }
}

#[test]
fn after_one_peer_was_reached_over_quic_others_are_tried_there_first() {
    let start = Instant::now();
    let mut dialer = named(TCP, start);
    let first = dialer.take_due(start).pop().unwrap();
    dialer.failed(first.connection_id(), &silence(Carrier::Tcp), start);
    let second = dialer.take_due(start).pop().unwrap();
    dialer.connected(
        PeerId::random(),
        dialed(second.connection_id(), &quic()),
        CarrierHistory::default(),
        start,
    );
    dialer.want(PeerId::random(), addresses(), start);
    assert_eq!(carrier_of(&dialer.take_due(start).pop().unwrap()), Carrier::Quic);

    // One who has come by itself says nothing about the way from here, and no more does QUIC where TCP was faster.
    let (peer, mut dialer) = (PeerId::random(), Dialer::default());
    dialer.want(peer, addresses(), start);
    let (others, address) = (ConnectionId::new_unchecked(0), &quic());
    let came = NewConnection { evidence: CarrierEvidence::In, ..dialed(others, address) };
    assert_eq!(dialer.connected(peer, came, CarrierHistory::default(), start).out, None);
    let beside = NewConnection { evidence: CarrierEvidence::None, ..dialed(others, address) };
    assert_eq!(dialer.connected(peer, beside, CarrierHistory::default(), start).out, None);
    dialer.retry_from(peer, start);
    dialer.reconnect(peer, addresses(), CarrierHistory::default(), start);
    dialer.want(PeerId::random(), addresses(), start);
    let due = dialer.take_due(start);
    assert_eq!(due.iter().map(carrier_of).collect::<Vec<_>>(), [Carrier::Tcp, Carrier::Tcp]);
}

#[test]
fn a_relayed_connection_does_not_change_the_known_carrier() {
    let (peer, start) = (PeerId::random(), Instant::now());
    let mut dialer = Dialer::default();
    dialer.want(peer, addresses(), start);
    dialer.mark_connected(peer, through(Carrier::Quic));
    let circuit = circuit();
    let relayed =
        NewConnection { evidence: CarrierEvidence::None, ..dialed(ConnectionId::new_unchecked(0), &circuit) };
    assert_eq!(dialer.connected(peer, relayed, CarrierHistory::default(), start), through(Carrier::Quic));
}

#[test]
fn relays_are_dialed_only_where_a_peer_has_no_other_address() {
    let start = Instant::now();
    let shown = |addresses| {
        let mut dialer = Dialer::default();
        dialer.want(PeerId::random(), addresses, start);
        format!("{:?}", dialer.take_due(start).pop().unwrap())
    };
    let both = shown(vec![circuit(), TCP.parse().unwrap()]);
    assert!(both.contains(TCP) && !both.contains("p2p-circuit"), "{both}");
    assert!(shown(vec![circuit()]).contains("p2p-circuit"));
}

/// A firewall may have begun to refuse what it let pass.
#[test]
fn an_incoming_quic_connection_makes_quic_the_likely_carrier() {
    let mut carriers = through(Carrier::Tcp);
    carriers.record_connection(CarrierEvidence::In, Carrier::Quic);
    assert_eq!(
        (carriers, carriers.likely()),
        (CarrierHistory { last: Some(Carrier::Quic), out: None }, Carrier::Quic)
    );
    carriers.record_connection(CarrierEvidence::In, Carrier::Tcp);
    assert_eq!(carriers.likely(), Carrier::Tcp);
    carriers.record_connection(CarrierEvidence::Out, Carrier::Quic);
    carriers.record_connection(CarrierEvidence::In, Carrier::Tcp);
    assert_eq!(carriers, CarrierHistory { last: Some(Carrier::Tcp), out: Some(Carrier::Quic) });
    carriers.record_connection(CarrierEvidence::Out, Carrier::Tcp);
    carriers.record_connection(CarrierEvidence::OutLate, Carrier::Quic);
    assert_eq!(
        carriers,
        CarrierHistory { last: Some(Carrier::Quic), out: Some(Carrier::Tcp) },
        "that was luck"
    );
}

/// It asks for seconds, and so also finds one who was not there when TCP was refused.
#[test]
fn a_late_quic_connection_after_a_refusal_says_nothing_against_tcp() {
    let start = Instant::now();
    const OTHER: &str = "/ip4/10.0.0.8/tcp/9";
    const OTHER_QUIC: &str = "/ip4/10.0.0.8/udp/9/quic-v1";
    let reached_at = |error: DialError, address: &str, took: u64| {
        let (peer, mut dialer) = (PeerId::random(), Dialer::default());
        dialer.want(peer, vec![TCP.parse().unwrap(), OTHER.parse().unwrap()], start);
        // As often as a refusal is believed, and once more.
        let mut now = start;
        let second = loop {
            let first = loop {
                match dialer.take_due(now).pop() {
                    Some(due) => break due,
                    None => now += Duration::from_millis(100),
                }
            };
            dialer.failed(first.connection_id(), &error, now);
            if let Some(second) = dialer.take_due(now).pop() {
                break second;
            }
        };
        assert!(format!("{second:?}").contains("quic"));
        now += Duration::from_millis(took);
        let address = address.parse().unwrap();
        dialer.connected(peer, dialed(second.connection_id(), &address), CarrierHistory::default(), now);
        dialer.retry_from(peer, now);
        carrier_of(&dialer.take_due(now).pop().unwrap())
    };
    let reached_after = |error: DialError, took: u64| reached_at(error, QUIC, took);
    assert_eq!(reached_after(refusal(), 800), Carrier::Quic, "a firewall refuses");
    assert_eq!(reached_after(refusal(), 1000), Carrier::Tcp);
    assert_eq!(reached_after(silence(Carrier::Tcp), 1000), Carrier::Quic);
    // Another machine of it has refused, where QUIC did not get through.
    let mut errors = refusal();
    let DialError::Transport(troubles) = &mut errors else { unreachable!() };
    let DialError::Transport(silent) = failure(OTHER, io::ErrorKind::TimedOut.into()) else { unreachable!() };
    troubles.extend(silent);
    assert_eq!(reached_at(errors, OTHER_QUIC, 1000), Carrier::Quic);
}

#[test]
fn a_quic_address_given_by_the_user_is_used_unchanged() {
    let start = Instant::now();
    let seen = fail_with(&mut named(QUIC, start), start, 1000, silence);
    assert_eq!((seen.over_tcp.len(), seen.over_quic), (0, vec![0, 200, 600]));
    assert_eq!(seen.failures_seen, [format!("{QUIC}: timed out; still trying")]);
}

/// libp2p leaves addresses at which this peer listens out of an attempt, and only says that none is left.
#[test]
fn an_address_of_this_peer_itself_is_reported_at_once() {
    let start = Instant::now();
    let me = crate::Identity::generate();
    let own = |address: &str| {
        let mut dialer = Dialer::new(to_libp2p(me.peer()).unwrap());
        dialer.listen_on(vec![TCP.parse().unwrap(), QUIC.parse().unwrap()]);
        dialer.want_bootstrap(address.parse().unwrap(), start);
        dialer
    };
    // Only an address is known: nobody else will ever answer there.
    for address in [TCP, QUIC] {
        let mut dialer = own(address);
        let first = dialer.take_due(start).pop().unwrap();
        let told = dialer.failed(first.connection_id(), &DialError::NoAddresses, start);
        let told: Vec<_> = told.iter().map(text_of).collect();
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("the address of this peer itself; give the address"), "{told:?}");
        assert!(dialer.take_due(start + Duration::from_secs(60)).is_empty());
    }
    // A peer is looked for there: it is gone, and may be elsewhere.
    let wanted = crate::Identity::generate().peer();
    let mut dialer = own(&format!("{TCP}/p2p/{}", to_libp2p(wanted).unwrap()));
    let first = dialer.take_due(start).pop().unwrap();
    let told = dialer.failed(first.connection_id(), &DialError::NoAddresses, start);
    let told: Vec<_> = told.iter().map(text_of).collect();
    assert!(told[0].contains("the run may have ended") && told[0].contains("fresh invite"), "{told:?}");
    assert_eq!(dialer.take_due(start + Duration::from_secs(60)).len(), 1);
    assert_eq!(dialer.unreached(start)[0].trouble, DialFailure::Ourselves);
}

#[test]
fn a_connection_that_leads_back_to_this_peer_is_recognised() {
    let start = Instant::now();
    let me = to_libp2p(crate::Identity::generate().peer()).unwrap();
    for obtained in [me, PeerId::random()] {
        let mut dialer = Dialer::new(me);
        dialer.want(PeerId::random(), addresses(), start);
        let mut told = Vec::new();
        for second in 0..60 {
            let now = start + Duration::from_secs(second);
            for due in dialer.take_due(now) {
                let error = DialError::WrongPeerId { obtained, address: TCP.parse().unwrap() };
                told.extend(dialer.failed(due.connection_id(), &error, now));
            }
        }
        let expected = match obtained == me {
            true => DialFailure::Ourselves,
            false => DialFailure::OtherPeer { found: obtained },
        };
        assert_eq!(told.iter().map(|told| told.trouble.clone()).collect::<Vec<_>>(), [expected]);
    }
}

#[test]
fn dead_addresses_are_reported_beside_those_of_this_peer_itself() {
    let start = Instant::now();
    let (me, wanted) = (PeerId::random(), PeerId::random());
    let mut dialer = Dialer::new(me);
    dialer.listen_on(vec!["/ip4/10.0.0.8/tcp/9".parse().unwrap()]);
    let aim = DialAim::Peer {
        id: wanted,
        addresses: vec![TCP.parse().unwrap(), "/ip4/10.0.0.8/tcp/9".parse().unwrap()],
    };
    dialer.add(aim, DialReason::Named, start);
    let first = dialer.take_due(start).pop().unwrap();
    let told = dialer.failed(first.connection_id(), &refusal(), start);
    let told: Vec<_> = told.into_iter().map(|told| told.trouble).collect();
    assert_eq!(told, [DialFailure::Refused, DialFailure::Ourselves]);
}

#[test]
fn a_peer_counts_as_gone_only_if_every_address_refuses() {
    assert_eq!(refused_everywhere(&refusal()).len(), 1);
    let with_silent = |address| {
        let DialError::Transport(mut errors) = refusal() else { unreachable!() };
        errors.push((address, TransportError::Other(io::Error::from(io::ErrorKind::TimedOut))));
        refused_everywhere(&DialError::Transport(errors)).len()
    };
    assert_eq!(with_silent("/ip4/10.0.0.8/tcp/9".parse().unwrap()), 0);
    assert_eq!(with_silent(circuit()), 1, "the peer has left the relay");
}
