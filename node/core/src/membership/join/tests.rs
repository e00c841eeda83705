//! Tests of a joiner and the peers that it asks: which one welcomes it, and which ones refuse.

use std::time::Duration;

use peergrad_protocol::{Incarnation, ViewNumber};

use super::*;
use crate::fixtures::{self, peer};

const SPECIFICATION: &[u8] = b"[model]\n";
const NONCE: [u8; 32] = [7; 32];
const NOW: Instant = Instant(0);
const PARAMETERS: ContentDigest = ContentDigest([5; 32]);

fn member(byte: u8) -> Member {
    Member { incarnation: Incarnation(4), addresses: vec![format!("/{byte}")], ..fixtures::member(byte) }
}

fn run() -> RunId {
    RunId::derive(SPECIFICATION, &NONCE)
}

fn view(peers: &[u8]) -> View {
    View { number: ViewNumber(3), ..View::first(run(), peers.iter().map(|byte| member(*byte)).collect()) }
}

fn welcome(peers: &[u8]) -> Welcome {
    let contact = |byte: &u8| Contact { peer: peer(*byte), addresses: vec![format!("/{byte}")] };
    let members = peers.iter().map(contact).collect();
    Welcome { specification: SPECIFICATION.to_vec(), nonce: NONCE, members, non_owners: vec![] }
}

/// The messages sent, with their receivers.
fn sent(out: &mut Vec<Output>) -> Vec<(u8, Message)> {
    let sent = |output| match output {
        Output::Send { to, frame } => Some((to.0[0], frame.decode().expect("a valid frame"))),
        _ => None,
    };
    out.drain(..).filter_map(sent).collect()
}

fn asked(out: &mut Vec<Output>) -> Vec<u8> {
    let is_join =
        |(to, message): (u8, Message)| matches!(message, Message::Join(JoinMessage::Join(_))).then_some(to);
    sent(out).into_iter().filter_map(is_join).collect()
}

/// Peer 9, welcomed by peer 1, which has named 1, 2 and 3.
fn welcomed() -> Joiner {
    let mut joiner = Joiner::new(Some(run()), member(9), None);
    let mut out = Vec::new();
    joiner.link_up(NOW, peer(1), &mut out);
    assert_eq!(asked(&mut out), [1]);
    let taken = joiner.on_welcome(NOW, peer(1), welcome(&[1, 2, 3]), &mut out).expect("it is the run");
    let identity = taken.expect("it is the first welcome");
    assert_eq!((&identity.specification[..], identity.nonce), (SPECIFICATION, NONCE));
    let dialed = out.iter().filter(|output| matches!(output, Output::Dial(_))).count();
    assert_eq!((dialed, joiner.sponsor()), (3, Some(peer(1))));
    joiner
}

#[test]
fn one_sponsor_is_enough() {
    let (mut joiner, mut out) = (welcomed(), Vec::new());
    joiner.link_up(NOW, peer(2), &mut out);
    assert!(asked(&mut out).is_empty());
    assert!(joiner.on_welcome(NOW, peer(2), welcome(&[2]), &mut out).is_ok_and(|taken| taken.is_none()));
    assert_eq!(joiner.sponsor(), Some(peer(1)));
    // Other peers were asked before: their refusal does not count.
    assert_eq!(joiner.on_refuse(peer(2), Refusal::Full).map_err(drop), Ok(()));
    assert!(joiner.on_refuse(peer(1), Refusal::Full).is_err());
}

#[test]
fn a_joiner_does_not_join_another_run_than_that_of_its_invite() {
    let mut joiner = Joiner::new(Some(RunId([1; 32])), member(9), None);
    let result = joiner.on_welcome(NOW, peer(1), welcome(&[1]), &mut Vec::new());
    assert!(matches!(result, Err(Failure::WrongSpecification { by }) if by == peer(1)));
    assert_eq!(joiner.sponsor(), None);
}

#[test]
fn a_joiner_reports_once_that_no_member_is_active() {
    let (mut joiner, mut out) = (Joiner::new(Some(run()), member(9), None), Vec::new());
    joiner.link_up(NOW, peer(1), &mut out);
    let mut reported = Vec::new();
    for second in 1..20 {
        assert_eq!(joiner.on_refuse(peer(1), Refusal::NotReady).map_err(drop), Ok(()));
        joiner.tick(NOW.after(second * JOIN_RETRY), [1, 2].map(peer).into_iter(), &mut out);
        let is_report = |output: &Output| matches!(output, Output::Event(Event::NoActiveMember { .. }));
        reported.extend(out.drain(..).filter(is_report).map(|_| second));
    }
    assert_eq!(reported, [silence::IDLE_REPORTED_AT]);
}

#[test]
fn a_joiner_reports_a_lasting_silence_of_all_peers_once() {
    let (mut joiner, mut out) = (Joiner::new(Some(run()), member(9), None), Vec::new());
    joiner.link_up(NOW, peer(1), &mut out);
    let mut reported = Vec::new();
    for second in 1..40 {
        let is_linked = second == 5;
        let linked = is_linked.then(|| peer(1)).into_iter();
        joiner.tick(NOW.after(second * JOIN_RETRY), linked, &mut out);
        let is_report = |output: &Output| matches!(output, Output::Event(Event::NoPeerAnswers));
        reported.extend(out.drain(..).filter(is_report).map(|_| second));
    }
    assert_eq!(reported, [5 + silence::ISOLATED_REPORTED_AT]);
}

#[test]
fn a_joiner_that_no_peer_ever_answers_reports_it_within_seconds_and_once() {
    let (mut joiner, mut out) = (Joiner::new(Some(run()), member(9), None), Vec::new());
    assert!(joiner.deadline().is_some(), "it does not wait for a link");
    for second in 0..600 {
        joiner.tick(NOW.after(second * JOIN_RETRY), std::iter::empty(), &mut out);
        let reports = out.iter().filter(|output| matches!(output, Output::Event(Event::NoPeerAnswers)));
        let expected = u32::from(second + 1 >= silence::UNANSWERED_REPORTED_AT);
        assert_eq!((out.len(), reports.count() as u32), (expected as usize, expected), "{second}");
    }
}

#[test]
fn a_peer_reached_through_a_relay_names_members_but_is_no_sponsor() {
    let (mut joiner, mut out) = (Joiner::new(Some(run()), member(9), None), Vec::new());
    joiner.set_route(peer(3), Route::Relayed);
    joiner.link_up(NOW, peer(3), &mut out);
    assert_eq!(asked(&mut out), [3]);
    assert!(joiner.on_welcome(NOW, peer(3), welcome(&[3, 1]), &mut out).is_ok_and(|taken| taken.is_none()));
    assert_eq!(joiner.sponsor(), None, "data would have to come from it");
    let dialed = out.iter().filter(|output| matches!(output, Output::Dial(_))).count();
    assert_eq!(dialed, 2);
    out.clear();
    joiner.link_up(NOW, peer(1), &mut out);
    assert_eq!(asked(&mut out), [1]);
}

#[test]
fn a_joiner_that_owns_nothing_need_not_reach_other_non_owners() {
    for (capacity, workers, is_ready) in
        [(1, &[][..], false), (0, &[], false), (1, &[3], false), (0, &[3], true)]
    {
        let (mut joiner, mut out) = (welcomed(), Vec::new());
        joiner.reachability_changed(NOW, &Member { capacity, ..member(9) }, &mut out);
        assert_eq!(asked(&mut out), [1], "the sponsor hears what it offers now");
        let workers = workers.iter().copied().map(peer).collect();
        let again = Welcome { non_owners: workers, ..welcome(&[1, 2, 3]) };
        assert!(joiner.on_welcome(NOW, peer(1), again, &mut out).is_ok());
        joiner.set_route(peer(3), Route::Relayed);
        out.clear();
        joiner.report_ready(PARAMETERS, |_| true, &mut out);
        assert_eq!(
            sent(&mut out) == [(1, Message::Join(JoinMessage::Ready(PARAMETERS)))],
            is_ready,
            "capacity {capacity}"
        );
        joiner.set_route(peer(3), Route::Direct);
        joiner.report_ready(PARAMETERS, |_| true, &mut out);
        assert_eq!(joiner.reachability.unlinked().len(), 0, "it is reached itself");
    }
}

#[test]
fn a_joiner_reports_ready_once_all_members_are_linked_and_repeats_it() {
    let (mut joiner, mut out) = (welcomed(), Vec::new());
    joiner.report_ready(PARAMETERS, |peer| peer.0[0] != 3, &mut out);
    assert_eq!(sent(&mut out), []);
    joiner.report_ready(PARAMETERS, |_| true, &mut out);
    joiner.report_ready(PARAMETERS, |_| true, &mut out);
    assert_eq!(sent(&mut out), [(1, Message::Join(JoinMessage::Ready(PARAMETERS)))]);
    joiner.tick(NOW.after(JOIN_RETRY), [1, 2, 3].map(peer).into_iter(), &mut out);
    assert_eq!(sent(&mut out), [(1, Message::Join(JoinMessage::Ready(PARAMETERS)))]);
}

#[test]
fn a_joiner_asks_all_linked_peers_when_its_sponsor_is_lost() {
    let (mut joiner, mut out) = (welcomed(), Vec::new());
    joiner.report_ready(PARAMETERS, |_| true, &mut out);
    out.clear();
    joiner.link_down(NOW, peer(2));
    assert_eq!(joiner.sponsor(), Some(peer(1)));
    joiner.link_down(NOW, peer(1));
    assert_eq!(joiner.sponsor(), None);
    assert_eq!(joiner.deadline(), Some(NOW), "at once");
    joiner.tick(NOW, [2, 3].map(peer).into_iter(), &mut out);
    let dialed =
        out.iter().filter(|output| matches!(output, Output::Dial(contact) if contact.peer == peer(1)));
    assert_eq!(dialed.count(), 1, "it may come back");
    assert_eq!(asked(&mut out), [2, 3]);
    // The next sponsor learns again that this peer is ready.
    assert!(joiner.on_welcome(NOW, peer(3), welcome(&[3, 2]), &mut out).is_ok());
    out.clear();
    joiner.report_ready(PARAMETERS, |_| true, &mut out);
    assert_eq!(sent(&mut out), [(3, Message::Join(JoinMessage::Ready(PARAMETERS)))]);
}

#[test]
fn a_sponsor_that_stops_is_replaced_by_the_members_that_it_named() {
    let (mut joiner, mut out) = (welcomed(), Vec::new());
    assert_eq!(joiner.departed(NOW, peer(2), "gone").map_err(drop), Ok(()));
    assert_eq!(joiner.sponsor(), Some(peer(1)));
    assert_eq!(joiner.departed(NOW, peer(1), "gone").map_err(drop), Ok(()));
    joiner.tick(NOW, [2, 3].map(peer).into_iter(), &mut out);
    assert!(!out.iter().any(|output| matches!(output, Output::Dial(contact) if contact.peer == peer(1))));
    assert_eq!(asked(&mut out), [2, 3]);
    // If the founder has named no other peer, its departure ends the run.
    let mut joiner = Joiner::new(None, member(9), None);
    assert!(joiner.on_welcome(NOW, peer(1), welcome(&[1]), &mut out).is_ok());
    let result = joiner.departed(NOW, peer(1), "stopped by its user");
    assert!(matches!(result, Err(Failure::FounderLeft { by, .. }) if by == peer(1)));
}

#[test]
fn a_sponsor_that_is_no_member_any_more_is_asked_again_later() {
    let (mut joiner, mut out) = (welcomed(), Vec::new());
    assert_eq!(joiner.on_refuse(peer(1), Refusal::NotReady).map_err(drop), Ok(()));
    assert_eq!(joiner.sponsor(), None);
    joiner.tick(NOW.after(JOIN_RETRY / 2), [1, 2].map(peer).into_iter(), &mut out);
    assert!(asked(&mut out).is_empty());
    joiner.tick(NOW.after(JOIN_RETRY), [1, 2].map(peer).into_iter(), &mut out);
    assert_eq!(asked(&mut out), [1, 2]);
}

#[test]
fn a_joiner_redirects_other_joiners_to_its_sponsor() {
    let (mut joiner, mut out) = (welcomed(), Vec::new());
    let join = |run| Join { run, incarnation: Incarnation(1), addresses: vec![], capacity: 1 };
    joiner.on_join(peer(8), &join(Some(run())), &mut out);
    joiner.on_join(peer(8), &join(Some(RunId([1; 32]))), &mut out);
    Joiner::new(None, member(9), None).on_join(peer(8), &join(None), &mut out);
    let sponsor = Contact { peer: peer(1), addresses: vec!["/1".to_owned()] };
    assert_eq!(
        sent(&mut out),
        [
            (8, Message::Join(JoinMessage::Redirect(sponsor))),
            (8, Message::Join(JoinMessage::Refuse(Refusal::OtherRun { run: run() }))),
            (8, Message::Join(JoinMessage::Refuse(Refusal::NotReady))),
        ]
    );
}

#[test]
fn a_joiner_enters_one_view_and_only_with_its_run_and_incarnation() {
    let mut joiner = welcomed();
    let with_me = view(&[1, 9]);
    assert!(joiner.is_in(&with_me));
    assert!(!joiner.is_in(&view(&[1, 2])) && !joiner.is_in(&View { run: RunId([1; 32]), ..view(&[9]) }));
    let mut older = with_me.clone();
    older.members[1].incarnation = Incarnation(3);
    assert!(!joiner.is_in(&older));
    joiner.recording();
    assert!(!joiner.is_in(&with_me), "it is being written to disk");
    assert!(joiner.persisted(vec![], &mut Vec::new()).is_none());
    let effect = Effect::EnterView(Arc::new(with_me.clone()), with_me.digest());
    let entry = joiner.persisted(vec![effect], &mut Vec::new()).expect("it is on disk");
    assert_eq!((&*entry.view, entry.digest), (&with_me, with_me.digest()));
    assert!(entry.checkpoint.is_none());
}

#[test]
fn an_excluded_peer_asks_all_members_and_relies_only_on_those_it_hears() {
    let mut joiner = Joiner::rejoining(run(), welcome(&[1, 2, 9]).members, member(9));
    let mut out = Vec::new();
    joiner.ask_all(NOW, [1, 2].map(peer).into_iter(), &mut out);
    assert_eq!(asked(&mut out), [1, 2]);
    assert!(joiner.on_welcome(NOW, peer(1), welcome(&[1, 2]), &mut out).is_ok());
    joiner.heard(&peer(1));
    out.clear();
    joiner.report_ready(PARAMETERS, |_| true, &mut out);
    assert_eq!(sent(&mut out), [], "peer 2 was linked all the time, and may be the one that it cannot reach");
    joiner.tick(NOW.after(Duration::from_secs(1)), [1, 2].map(peer).into_iter(), &mut out);
    assert_eq!(asked(&mut out), [1, 2]);
    joiner.heard(&peer(2));
    joiner.report_ready(PARAMETERS, |_| true, &mut out);
    assert_eq!(sent(&mut out), [(1, Message::Join(JoinMessage::Ready(PARAMETERS)))]);
}
