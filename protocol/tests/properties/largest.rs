//! The largest messages and records that there can be: they fit the frames that the limits allow.

use peergrad_protocol::agreement::{Acceptor, Ballot};
use peergrad_protocol::chunks::ChunkSet;
use peergrad_protocol::durable::{Charter, Durable};
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::ledger::{Ledger, Span};
use peergrad_protocol::limits::{
    ADDRESS_BYTES_MAX, ADDRESSES_MAX, ATTEMPTS_MAX, BRANCHES_MAX, CHUNKS_MAX, COPIES_MAX, DEALT_SPANS_MAX,
    ESTRANGED_MAX, EXPELLED_MAX, GIVEN_BACK_MAX, MEMBERS_MAX, PARCEL_CHUNKS_MAX, ROOTS_MAX, SAMPLES_MAX,
    SAVED_MAX, SPECIFICATION_BYTES_MAX, STEPS_MAX, WEIGHT_MAX,
};
use peergrad_protocol::message::{
    Again, Content, Holdings, Message, Parcel, Piece, Promise, Propose, Report, Saved, Tally, WantChunks,
};
use peergrad_protocol::view::{
    Branch, Cause, Deal, Donor, Expulsion, Forward, Member, Move, Moves, Recovery, Resume, Root, Succession,
    View,
};
use peergrad_protocol::{Epoch, Frame, Incarnation, PeerId, Rank, RunId, StepNumber, ViewDigest};

use crate::knock;

/// Members whose addresses are as many and as long as they may be.
fn crowd(count: usize) -> Vec<Member> {
    let member = |index: usize| {
        let mut peer = [255; 32];
        peer[..2].copy_from_slice(&(index as u16).to_be_bytes());
        Member {
            peer: PeerId(peer),
            incarnation: Incarnation(u64::MAX),
            addresses: vec!["x".repeat(ADDRESS_BYTES_MAX); ADDRESSES_MAX],
            weight: WEIGHT_MAX,
        }
    };
    (0..count).map(member).collect()
}

/// The longest lists that a view of the most members can have, with the longest numbers in them.
fn largest() -> (Resume, Ledger, Moves) {
    let last = Rank::from_index(MEMBERS_MAX - 1);
    let end = u64::from(u32::MAX);
    let span = |index: usize| Span { start: end - 2 * index as u64 - 1, end: end - 2 * index as u64 };
    let mut given_back: Vec<Span> = (0..GIVEN_BACK_MAX).map(span).collect();
    given_back.reverse();
    let dealt = (GIVEN_BACK_MAX..GIVEN_BACK_MAX + DEALT_SPANS_MAX).map(span).collect();
    let mut parts = vec![vec![]; MEMBERS_MAX];
    parts[0] = dealt;
    let chunk_end = CHUNKS_MAX as u32;
    let donor = Donor { first: chunk_end - 1, end: chunk_end, rank: last };
    let resume = Resume {
        step: StepNumber(STEPS_MAX),
        newcomers: (1..MEMBERS_MAX).map(Rank::from_index).collect(),
        deal: Some(Deal { pass: STEPS_MAX, parts }),
        forward: Some(Forward { tally: Tally { samples: end, loss: 0.1 }, donors: vec![donor; CHUNKS_MAX] }),
        is_restored: false,
        merge: None,
    };
    let from: Vec<Rank> = (0..COPIES_MAX).map(|index| Rank::from_index(MEMBERS_MAX - 1 - index)).collect();
    let list = (0..chunk_end).map(|chunk| Move { chunk, from: from.clone() }).collect();
    let moves = Moves { list, rate: u32::MAX, restarted: vec![] };
    (resume, Ledger { pass: STEPS_MAX, position: end, given_back, put_off: vec![] }, moves)
}

fn last_branch() -> Branch {
    Branch { epoch: Epoch(STEPS_MAX), step: StepNumber(STEPS_MAX), fork: u32::MAX }
}

/// The largest view, a change, and a report.
fn all_of_them() -> (View, Succession, Report) {
    let (resume, ledger, moves) = largest();
    let nobody = PeerId([254; 32]);
    let expelled = vec![Expulsion { peer: nobody, by: nobody, cause: Cause::Violations }; EXPELLED_MAX];
    let roots = vec![Root { view: ViewDigest([255; 32]), trained: SAMPLES_MAX }; ROOTS_MAX];
    let view = View {
        run: RunId([255; 32]),
        epoch: Epoch(STEPS_MAX),
        parents: vec![ViewDigest([255; 32]); 2],
        members: crowd(MEMBERS_MAX),
        branch: last_branch(),
        branches_before: vec![Branch { epoch: Epoch(STEPS_MAX - 1), ..last_branch() }; BRANCHES_MAX],
        recovery: Recovery::Resume(resume.clone()),
        ledger: ledger.clone(),
        moves: moves.clone(),
        expelled: expelled.clone(),
        roots: roots.clone(),
        estranged: vec![crowd(1).remove(0).contact(); ESTRANGED_MAX],
    };
    let change = Succession {
        parent: ViewDigest([255; 32]),
        removed: vec![Rank(u32::MAX); MEMBERS_MAX],
        added: crowd(MEMBERS_MAX),
        weights: vec![(Rank(u32::MAX), 255); MEMBERS_MAX],
        resume,
        ledger,
        moves,
        expelled,
        roots,
    };
    let all = || ChunkSet::all(CHUNKS_MAX);
    let tally = Some(Tally { samples: u64::from(u32::MAX), loss: 0.1 });
    let saved = Saved {
        steps: StepNumber(STEPS_MAX),
        branch: last_branch(),
        ledger: view.ledger.clone(),
        digest: ContentDigest([255; 32]),
        states: all(),
    };
    let again = Again { member: crowd(1).remove(0), saved: vec![saved; SAVED_MAX] };
    let report = Report {
        is_over: true,
        complete: Some(StepNumber(STEPS_MAX)),
        states: all(),
        states_before: Some(all()),
        is_entering: true,
        tally,
        next: Some(Holdings { values: all(), states: all(), tally }),
        lost: vec![Rank(u32::MAX); MEMBERS_MAX],
        has_bequest: true,
        again: Some(Box::new(again)),
    };
    (view, change, report)
}

#[test]
fn the_largest_messages_fit_their_frames() {
    let (view, change, report) = all_of_them();
    assert_eq!(view.validate(), Ok(()));
    let ballot = Ballot { attempt: ATTEMPTS_MAX, rank: Rank(u32::MAX) };
    let mut acceptor = Acceptor::default();
    acceptor.accept(ballot, change.clone()).expect("nothing was promised before");
    let charter = Charter { specification: vec![255; SPECIFICATION_BYTES_MAX], nonce: [255; 32] };
    let durable = Durable { view: view.clone(), incarnation: Incarnation(u64::MAX), acceptor, charter };
    assert_eq!(Durable::from_bytes(&durable.to_bytes()), Some(durable));

    let accepted = Some((ballot, change.clone()));
    let promise = Promise { view: ViewDigest([255; 32]), ballot, accepted, report };
    for message in [
        Message::Install(view),
        Message::Succeed(change.clone()),
        Message::Propose(Propose { ballot, change }),
        Message::Promise(Box::new(promise)),
        Message::WantChunks(WantChunks {
            view: ViewDigest([255; 32]),
            steps: StepNumber(STEPS_MAX),
            chunks: ChunkSet::all(CHUNKS_MAX),
        }),
        Message::Parcel(Parcel {
            view: ViewDigest([255; 32]),
            steps: StepNumber(STEPS_MAX),
            content: Content::State,
            pieces: vec![Piece { chunk: CHUNKS_MAX as u32 - 1, updates: u32::MAX }; PARCEL_CHUNKS_MAX],
            digest: ContentDigest([255; 32]),
        }),
    ] {
        let frame = Frame::encode(&message, None);
        assert!(knock(&frame) == Ok(message), "{} bytes", frame.byte_count());
    }
}
