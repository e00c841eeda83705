//! Tests of a returned peer: how it may still vote, which members it waits for, and what it asks them.

use peergrad_protocol::ViewNumber;
use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::cursor::DataCursor;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::view::{Branch, Moves, Resume};

use super::*;
use crate::fixtures::{self, peer};
use crate::io::PersistId;

const NOW: Instant = Instant(0);

fn definition() -> RunDefinition {
    RunDefinition { specification: b"[model]\n".to_vec(), nonce: [7; 32] }
}

fn member(byte: u8) -> Member {
    Member { incarnation: Incarnation(4), addresses: vec![format!("/{byte}")], ..fixtures::member(byte) }
}

fn view(peers: &[u8]) -> View {
    let members = peers.iter().map(|byte| member(*byte)).collect();
    View { number: ViewNumber(3), ..View::first(definition().run(), members) }
}

fn saved(steps: u64) -> SavedCheckpoint {
    SavedCheckpoint {
        steps: StepNumber(steps),
        branch: Branch { view_number: ViewNumber(1), step: StepNumber(0), fork: None },
        cursor: DataCursor::default(),
        digest: ContentDigest([steps as u8; 32]),
        states: ChunkSet::default(),
    }
}

/// The messages sent, with their receivers.
fn sent(out: &mut Vec<Output>) -> Vec<(u8, Message)> {
    let sent = |output| match output {
        Output::Send { to, frame } => Some((to.0[0], frame.decode().expect("a valid frame"))),
        _ => None,
    };
    out.drain(..).filter_map(sent).collect()
}

/// Peer 9, which was a member with 1 and 2 before it was restarted.
fn voter(acceptor: Acceptor<ViewChange>) -> (RecoveringMember, ViewDigest) {
    let durable = DurableRecord {
        view: view(&[1, 2, 9]),
        incarnation: Incarnation(3),
        acceptor,
        definition: definition(),
    };
    let digest = durable.view.digest();
    (RecoveringMember::new(durable, member(9), vec![saved(40)]), digest)
}

fn ballot(attempt: u32, rank: u32) -> Ballot {
    Ballot { attempt, rank: Rank(rank) }
}

fn change(parent: ViewDigest) -> ViewChange {
    ViewChange {
        parent,
        removed: vec![Rank(2)],
        added: vec![],
        capacities: vec![],
        speeds: vec![],
        lines: vec![],
        resume: Resume::at(StepNumber(5)),
        cursor: DataCursor::default(),
        moves: Moves::default(),
        expelled: vec![],
        quarantined: vec![],
        ancestors: vec![],
    }
}

/// The record that is to be written, and the messages that are sent at once.
fn written(out: &mut Vec<Output>) -> Written {
    let record = out.iter().find_map(|output| match output {
        Output::Persist { id, record } => {
            Some((*id, DurableRecord::from_bytes(&record.to_bytes()).expect("a record")))
        }
        _ => None,
    });
    (record, sent(out))
}

/// A record is on disk: the answers that waited for it are sent.
fn release(journal: &mut Journal, id: PersistId, out: &mut Vec<Output>) {
    for effect in journal.persisted(id) {
        let Effect::Answer { to, message } = effect else { panic!("it enters no view") };
        send(to, &message, out);
    }
}

#[test]
fn a_vote_is_on_disk_before_it_is_sent() {
    let (mut recovering, digest) = voter(Acceptor::default());
    let (mut journal, mut out) = (Journal::default(), Vec::new());
    let prepare = Prepare { view: digest, ballot: ballot(2, 1), before: None };
    recovering.on_prepare(NOW, peer(2), prepare, Readiness::Preparing, &mut journal, &mut out);
    let (record, sent_at_once) = written(&mut out);
    let (id, record) = record.expect("a promise is written down");
    assert_eq!((id, sent_at_once), (PersistId(0), vec![]));
    assert_eq!((record.acceptor.promised(), record.incarnation), (Some(ballot(2, 1)), Incarnation(3)));
    release(&mut journal, id, &mut out);
    let report = MemberReport { is_vote_only: true, ..MemberReport::default() };
    let promise = Promise { view: digest, ballot: ballot(2, 1), accepted: None, report };
    assert_eq!(
        sent(&mut out),
        [(2, Message::Agreement(AgreementMessage::Promise(Box::new(promise.clone()))))]
    );

    let propose = Propose { ballot: ballot(2, 1), change: change(digest) };
    recovering.on_propose(NOW, peer(2), propose, &mut journal, &mut out);
    let (record, sent_at_once) = written(&mut out);
    let (id, record) = record.expect("an acceptance is written down");
    assert_eq!((id, sent_at_once), (PersistId(1), vec![]));
    assert_eq!(record.acceptor.accepted(), Some(&(ballot(2, 1), change(digest))));
    release(&mut journal, id, &mut out);
    assert_eq!(
        sent(&mut out),
        [(
            2,
            Message::Agreement(AgreementMessage::Accepted(Accepted { view: digest, ballot: ballot(2, 1) }))
        )]
    );

    // A new proposer learns of the accepted change. Both answers wait for the same record, because a later record holds both.
    let prepare = Prepare { view: digest, ballot: ballot(3, 0), before: None };
    recovering.on_prepare(NOW, peer(1), prepare, Readiness::Preparing, &mut journal, &mut out);
    recovering.on_prepare(NOW, peer(1), prepare, Readiness::Preparing, &mut journal, &mut out);
    assert_eq!(sent(&mut out), []);
    release(&mut journal, PersistId(3), &mut out);
    let accepted = Some((ballot(2, 1), change(digest)));
    let promise = Message::Agreement(AgreementMessage::Promise(Box::new(Promise {
        ballot: ballot(3, 0),
        accepted,
        ..promise
    })));
    assert_eq!(sent(&mut out), [(1, promise.clone()), (1, promise)]);
}

/// Other members have received no message from a start whose view was never written to disk.
#[test]
fn a_restarted_peer_votes_in_views_of_its_incarnations_since_the_durable_one() {
    for (start, has_vote) in [(2, false), (3, true), (5, true), (7, false)] {
        let (view_before, acceptor) = (view(&[1, 2, 9]), Acceptor::default());
        let durable = DurableRecord {
            view: view_before,
            incarnation: Incarnation(3),
            acceptor,
            definition: definition(),
        };
        let me = Member { incarnation: Incarnation(7), ..member(9) };
        let mut recovering = RecoveringMember::new(durable, me, vec![]);
        let mut later = View { number: ViewNumber(4), ..view(&[1, 2, 9]) };
        later.members[2].incarnation = Incarnation(start);
        let prepare = Prepare { view: later.digest(), ballot: ballot(2, 1), before: None };
        recovering.on_install(NOW, peer(1), later, &mut Journal::default());
        let (mut journal, mut out) = (Journal::default(), Vec::new());
        recovering.on_prepare(NOW, peer(2), prepare, Readiness::Preparing, &mut journal, &mut out);
        let written = written(&mut out).0.map(|(_, record)| record.incarnation);
        assert_eq!(written, has_vote.then_some(Incarnation(start)));
    }
}

#[test]
fn a_promise_holds_after_a_restart() {
    let mut acceptor = Acceptor::default();
    acceptor.promise(ballot(5, 0)).unwrap();
    let (mut recovering, digest) = voter(acceptor);
    let (mut journal, mut out) = (Journal::default(), Vec::new());
    let prepare = Prepare { view: digest, ballot: ballot(4, 1), before: None };
    recovering.on_prepare(NOW, peer(2), prepare, Readiness::Preparing, &mut journal, &mut out);
    let propose = Propose { ballot: ballot(4, 1), change: change(digest) };
    recovering.on_propose(NOW, peer(2), propose, &mut journal, &mut out);
    let nack = Nack { view: digest, ballot: ballot(4, 1), promised: Some(ballot(5, 0)), step: StepNumber(0) };
    assert_eq!(
        sent(&mut out),
        [
            (2, Message::Agreement(AgreementMessage::Nack(nack))),
            (2, Message::Agreement(AgreementMessage::Nack(nack)))
        ]
    );
}

#[test]
fn a_vote_is_given_only_in_its_view_and_to_the_owner_of_the_ballot() {
    let (mut recovering, digest) = voter(Acceptor::default());
    let (mut journal, mut out) = (Journal::default(), Vec::new());
    for (from, view, rank) in [
        (2, ViewDigest([0; 32]), 1),
        // Rank 1 is peer 2, and peer 7 is none of them.
        (1, digest, 1),
        (7, digest, 0),
        (2, digest, 5),
    ] {
        let prepare = Prepare { view, ballot: ballot(1, rank), before: None };
        recovering.on_prepare(NOW, peer(from), prepare, Readiness::Prepared, &mut journal, &mut out);
        let propose = Propose { ballot: ballot(1, rank), change: change(view) };
        recovering.on_propose(NOW, peer(from), propose, &mut journal, &mut out);
    }
    assert_eq!(out.len(), 0);
}

/// A record to be written, and the messages sent with their receivers.
type Written = (Option<(PersistId, DurableRecord)>, Vec<(u8, Message)>);

#[test]
fn a_prepared_peer_reports_the_checkpoints_that_it_has_saved() {
    for readiness in [Readiness::Preparing, Readiness::Prepared] {
        let (mut recovering, digest) = voter(Acceptor::default());
        let (mut journal, mut out) = (Journal::default(), Vec::new());
        let prepare = Prepare { view: digest, ballot: ballot(2, 1), before: None };
        recovering.on_prepare(NOW, peer(2), prepare, readiness, &mut journal, &mut out);
        release(&mut journal, PersistId(0), &mut out);
        let report = sent(&mut out).into_iter().find_map(|(_, message)| match message {
            Message::Agreement(AgreementMessage::Promise(promise)) => Some(promise.report),
            _ => None,
        });
        let again = report.expect("a promise").rejoin;
        let expected = Box::new(RejoinCandidate { member: member(9), saved: vec![saved(40)] });
        assert_eq!(again, (readiness == Readiness::Prepared).then_some(expected));
    }
}

#[test]
fn companions_send_each_other_their_view_once_per_link() {
    let (mut recovering, _) = voter(Acceptor::default());
    let mut out = Vec::new();
    let run = Some(definition().run());
    for (from, run) in [(1, run), (1, run), (8, run), (2, Some(RunId([0; 32]))), (2, None)] {
        recovering.inform(peer(from), run, &mut out);
    }
    let informed: Vec<u8> = sent(&mut out).into_iter().map(|(to, _)| to).collect();
    assert_eq!(informed, [1, 2], "not a peer that was no member, or that asks for another run");
    recovering.link_down(&peer(1));
    recovering.inform(peer(1), run, &mut out);
    assert_eq!(sent(&mut out), [(1, Message::Agreement(AgreementMessage::Install(view(&[1, 2, 9]))))]);
}

#[test]
fn a_peer_that_is_back_with_another_view_is_no_companion() {
    let (mut recovering, _) = voter(Acceptor::default());
    recovering.on_install(NOW, peer(1), view(&[1, 2, 9]), &mut Journal::default());
    assert_eq!(recovering.present().into_iter().collect::<Vec<_>>(), [Rank(0), Rank(2)]);
    recovering.on_install(
        NOW,
        peer(2),
        View { number: ViewNumber(2), ..view(&[1, 2, 9]) },
        &mut Journal::default(),
    );
    recovering.on_install(
        NOW,
        peer(2),
        View { run: RunId([1; 32]), ..view(&[1, 2, 9]) },
        &mut Journal::default(),
    );
    assert_eq!(recovering.present().len(), 2);
    recovering.link_down(&peer(1));
    assert_eq!(recovering.present().len(), 1);
}

#[test]
fn a_checkpoint_is_found_by_its_step_and_step_zero_needs_none() {
    let (recovering, _) = voter(Acceptor::default());
    let from = |step| {
        View::first_from_checkpoint(definition().run(), member(9), StepNumber(step), DataCursor::default())
    };
    assert_eq!(recovering.checkpoint_of(&from(40)), Some(&saved(40)));
    assert_eq!((recovering.checkpoint_of(&from(39)), recovering.checkpoint_of(&from(0))), (None, None));
}

#[test]
fn a_companion_that_comes_and_goes_prolongs_the_wait_once() {
    let (mut recovering, _) = voter(Acceptor::default());
    let at = |seconds| NOW.after(Duration::from_secs(seconds));
    recovering.on_install(at(1), peer(1), view(&[1, 2, 9]), &mut Journal::default());
    assert_eq!(recovering.companions.last_at, Some(at(1)));
    for again in [4, 8] {
        recovering.link_down(&peer(1));
        recovering.on_install(at(again), peer(1), view(&[1, 2, 9]), &mut Journal::default());
        assert_eq!((recovering.companions.last_at, recovering.present().len()), (Some(at(1)), 2));
    }
    recovering.on_install(at(9), peer(2), view(&[1, 2, 9]), &mut Journal::default());
    assert_eq!(recovering.companions.last_at, Some(at(9)), "another one is back");
}

#[test]
fn a_change_that_makes_no_valid_view_is_not_accepted() {
    let (mut recovering, digest) = voter(Acceptor::default());
    let (mut journal, mut out) = (Journal::default(), Vec::new());
    for odd in [
        ViewChange { removed: vec![Rank(0), Rank(1), Rank(2)], ..change(digest) },
        ViewChange { capacities: vec![(Rank(0), 0), (Rank(1), 0)], ..change(digest) },
        ViewChange { added: vec![member(2)], ..change(digest) },
    ] {
        let propose = Propose { ballot: ballot(1, 1), change: odd };
        recovering.on_propose(NOW, peer(2), propose, &mut journal, &mut out);
    }
    assert_eq!(out.len(), 0);
}
