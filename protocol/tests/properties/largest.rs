//! The largest possible messages and records: they fit into the frames that the limits allow.

use peergrad_protocol::agreement::{Acceptor, Ballot};
use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::cursor::{DataCursor, Ending, Span};
use peergrad_protocol::durable::{DurableRecord, RunDefinition};
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::{
    ADDRESS_BYTES_MAX, ADDRESSES_MAX, ANCESTORS_MAX, ATTEMPTS_MAX, BATCH_SPANS_MAX, BRANCHES_MAX,
    CAPACITY_MAX, CHECKPOINTS_MAX, CHUNK_BATCH_CHUNKS_MAX, CHUNKS_MAX, EXPELLED_MAX, MEMBERS_MAX,
    PARTITIONED_MAX, QUARANTINES_MAX, REPLICAS_MAX, RETURNED_SPANS_MAX, SAMPLES_MAX, SPECIFICATION_BYTES_MAX,
    STEPS_MAX,
};
use peergrad_protocol::message::{
    AgreementMessage, Awaited, AwaitedAt, ChunkBatch, ChunkContent, ChunkEntry, MemberReport, Message,
    PartialStep, Promise, Propose, RejoinCandidate, SampleStats, SavedCheckpoint, Stage, TrainingMessage,
    WantChunks,
};
use peergrad_protocol::view::{
    Ancestor, BatchParts, Branch, Complaint, Donor, Expulsion, ExpulsionCause, Member, MemberFault,
    MemberLine, Move, Moves, Quarantine, Recovery, Resume, RollForward, View, ViewChange, ViewHistory,
};
use peergrad_protocol::{Frame, Incarnation, PeerId, Rank, RunId, StepNumber, ViewDigest, ViewNumber};

use crate::knock;

/// Members with the most and longest addresses.
fn crowd(count: usize) -> Vec<Member> {
    let member = |index: usize| {
        let mut peer = [255; 32];
        peer[..2].copy_from_slice(&(index as u16).to_be_bytes());
        Member {
            peer: PeerId(peer),
            incarnation: Incarnation(u64::MAX),
            addresses: vec!["x".repeat(ADDRESS_BYTES_MAX); ADDRESSES_MAX],
            capacity: CAPACITY_MAX,
        }
    };
    (0..count).map(member).collect()
}

/// The longest lists that a view with the most members can have, with the longest numbers.
fn largest() -> (Resume, DataCursor, Moves) {
    let last = Rank::from_index(MEMBERS_MAX - 1);
    let end = u64::from(u32::MAX);
    let span = |index: usize| Span { start: end - 2 * index as u64 - 1, end: end - 2 * index as u64 };
    let mut returned: Vec<Span> = (0..RETURNED_SPANS_MAX).map(span).collect();
    returned.reverse();
    let dealt = (RETURNED_SPANS_MAX..RETURNED_SPANS_MAX + BATCH_SPANS_MAX).map(span).collect();
    let mut parts = vec![vec![]; MEMBERS_MAX];
    parts[0] = dealt;
    let chunk_end = CHUNKS_MAX as u32;
    let donor = Donor { first: chunk_end - 1, end: chunk_end, rank: last };
    let resume = Resume {
        step: StepNumber(STEPS_MAX),
        newcomers: (1..MEMBERS_MAX).map(Rank::from_index).collect(),
        batch: Some(BatchParts { epoch: STEPS_MAX, parts }),
        forward: Some(RollForward {
            stats: SampleStats { samples: end, loss: 0.1 },
            donors: vec![donor; CHUNKS_MAX],
        }),
        is_restored: false,
        merge: None,
    };
    let from: Vec<Rank> = (0..REPLICAS_MAX).map(|index| Rank::from_index(MEMBERS_MAX - 1 - index)).collect();
    let list = (0..chunk_end).map(|chunk| Move { chunk, from: from.clone() }).collect();
    let moves = Moves { list, rate: u32::MAX, restarted: vec![] };
    (
        resume,
        DataCursor { epoch: STEPS_MAX, position: end, returned, deferred: vec![], ending: Ending::Over },
        moves,
    )
}

fn last_branch() -> Branch {
    Branch { view_number: ViewNumber(STEPS_MAX), step: StepNumber(STEPS_MAX), fork: Some(u32::MAX) }
}

/// The largest view, a change, and a report.
fn all_of_them() -> (View, ViewChange, MemberReport) {
    let (resume, cursor, moves) = largest();
    let nobody = PeerId([254; 32]);
    let expelled =
        vec![Expulsion { peer: nobody, by: nobody, cause: ExpulsionCause::Violations }; EXPELLED_MAX];
    let quarantined =
        vec![
            Quarantine { peer: nobody, other: nobody, fault: MemberFault::Withheld, is_certain: true };
            QUARANTINES_MAX
        ];
    let ancestors = vec![Ancestor { view: ViewDigest([255; 32]), trained: SAMPLES_MAX }; ANCESTORS_MAX];
    let view = View {
        run: RunId([255; 32]),
        number: ViewNumber(STEPS_MAX),
        parents: vec![ViewDigest([255; 32]); 2],
        members: crowd(MEMBERS_MAX),
        speeds: vec![u32::MAX; MEMBERS_MAX],
        lines: vec![
            MemberLine { kilobytes_per_second: u32::MAX, round_trip_milliseconds: u32::MAX };
            MEMBERS_MAX
        ],
        history: ViewHistory {
            branch: last_branch(),
            earlier_branches: vec![
                Branch { view_number: ViewNumber(STEPS_MAX - 1), ..last_branch() };
                BRANCHES_MAX
            ],
            ancestors: ancestors.clone(),
            partitioned: vec![crowd(1).remove(0).contact(); PARTITIONED_MAX],
        },
        recovery: Recovery::Resume(resume.clone()),
        cursor: cursor.clone(),
        moves: moves.clone(),
        expelled: expelled.clone(),
        quarantined: quarantined.clone(),
    };
    let change = ViewChange {
        parent: ViewDigest([255; 32]),
        removed: vec![Rank(u32::MAX); MEMBERS_MAX],
        added: crowd(MEMBERS_MAX),
        capacities: vec![(Rank(u32::MAX), 255); MEMBERS_MAX],
        speeds: vec![u32::MAX; MEMBERS_MAX],
        lines: vec![
            MemberLine { kilobytes_per_second: u32::MAX, round_trip_milliseconds: u32::MAX };
            MEMBERS_MAX
        ],
        resume,
        cursor,
        moves,
        expelled,
        quarantined,
        ancestors,
    };
    let all = || ChunkSet::all(CHUNKS_MAX);
    let saved = SavedCheckpoint {
        steps: StepNumber(STEPS_MAX),
        branch: last_branch(),
        cursor: view.cursor.clone(),
        digest: ContentDigest([255; 32]),
        states: all(),
    };
    let rejoin = RejoinCandidate { member: crowd(1).remove(0), saved: vec![saved; CHECKPOINTS_MAX] };
    (view, change, largest_report(rejoin))
}

fn largest_report(rejoin: RejoinCandidate) -> MemberReport {
    let all = || ChunkSet::all(CHUNKS_MAX);
    let stats = Some(SampleStats { samples: u64::from(u32::MAX), loss: 0.1 });
    MemberReport {
        is_vote_only: true,
        complete: Some(StepNumber(STEPS_MAX)),
        states: all(),
        states_before: Some(all()),
        is_entering: true,
        stats,
        next: Some(PartialStep { values: all(), states: all(), stats }),
        lost: vec![Rank(u32::MAX); MEMBERS_MAX],
        complaints: vec![Complaint { about: Rank(u32::MAX), fault: MemberFault::Withheld }; MEMBERS_MAX],
        awaited: Some(Awaited {
            at: AwaitedAt { step: StepNumber(STEPS_MAX), stage: Stage::Norms, hop: u32::MAX },
            from: vec![Rank(u32::MAX); MEMBERS_MAX],
        }),
        is_still: true,
        has_merge_snapshot: true,
        rejoin: Some(Box::new(rejoin)),
    }
}

#[test]
fn the_largest_messages_fit_their_frames() {
    let (view, change, report) = all_of_them();
    assert_eq!(view.validate(), Ok(()));
    let ballot = Ballot { attempt: ATTEMPTS_MAX, rank: Rank(u32::MAX) };
    let mut acceptor = Acceptor::default();
    acceptor.accept(ballot, change.clone()).expect("nothing was promised before");
    let definition = RunDefinition { specification: vec![255; SPECIFICATION_BYTES_MAX], nonce: [255; 32] };
    let durable =
        DurableRecord { view: view.clone(), incarnation: Incarnation(u64::MAX), acceptor, definition };
    assert_eq!(DurableRecord::from_bytes(&durable.to_bytes()), Some(durable));

    let accepted = Some((ballot, change.clone()));
    let promise = Promise { view: ViewDigest([255; 32]), ballot, accepted, report };
    for message in [
        Message::Agreement(AgreementMessage::Install(view)),
        Message::Agreement(AgreementMessage::Learn(change.clone())),
        Message::Agreement(AgreementMessage::Propose(Propose { ballot, change })),
        Message::Agreement(AgreementMessage::Promise(Box::new(promise))),
        TrainingMessage::WantChunks(WantChunks {
            steps: StepNumber(STEPS_MAX),
            chunks: ChunkSet::all(CHUNKS_MAX),
        })
        .in_view(ViewDigest([255; 32])),
        TrainingMessage::ChunkBatch(ChunkBatch {
            steps: StepNumber(STEPS_MAX),
            content: ChunkContent::State,
            entries: vec![
                ChunkEntry { chunk: CHUNKS_MAX as u32 - 1, updates: u32::MAX };
                CHUNK_BATCH_CHUNKS_MAX
            ],
            digest: ContentDigest([255; 32]),
        })
        .in_view(ViewDigest([255; 32])),
    ] {
        let frame = Frame::encode(&message, None);
        assert!(knock(&frame) == Ok(message), "{} bytes", frame.byte_count());
    }
}
