//! The messages that have golden files: every one, and every variant within one.

use std::array;

use peergrad_protocol::agreement::{Acceptor, Ballot};
use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::cursor::{DataCursor, Ending, Span};
use peergrad_protocol::durable::{DurableRecord, RunDefinition};
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::invite::{Invite, Secret};
use peergrad_protocol::message::{
    Accepted, AdminMessage, AgreementMessage, Awaited, AwaitedAt, BestEvaluation, ChunkBatch, ChunkContent,
    ChunkEntry, Closed, Complete, Contact, DataPiece, Departure, Evaluated, Heartbeat, Join, JoinMessage,
    MemberReport, MergeAccept, MergeMessage, MergeOffer, MergeProbe, MergeReady, Message, Nack,
    ParametersDigest, PartialStep, Phase, Prepare, Promise, Propose, Refusal, RejoinCandidate, Rekey,
    SampleStats, SaveAt, SavedCheckpoint, Segment, SentFrames, ShardDigest, ShardNorm, SnapshotChunks,
    SnapshotDonor, Stage, StepContributors, StepProgress, TrainingMessage, WantChunks, WantData,
    WantSnapshot, Welcome,
};
use peergrad_protocol::table::{
    CutMessage, IdempotencyKey, JournalMessage, LastLease, LeaseTable, Map, Operation, Reduce, ReplicaUpdate,
    Request, Response, RowSet, Rows, SampleLease, TableChange, TableChunk, TableMessage, UsedKeys,
    WorkerClock, WorkerId, WorkerLeases,
};
use peergrad_protocol::view::{
    Ancestor, BatchParts, Branch, Complaint, Donor, Expulsion, ExpulsionCause, Member, MemberFault,
    MemberLine, Merge, Move, Moves, Quarantine, Recovery, Resume, RollForward, View, ViewChange, ViewHistory,
};
use peergrad_protocol::wire::encode_table_message;
use peergrad_protocol::{Incarnation, PeerId, Rank, RunId, StepNumber, ViewDigest, ViewNumber};

/// One message and its payload, with the name of its file.
pub(crate) struct Sample {
    pub(crate) name: &'static str,
    pub(crate) message: Message,
    pub(crate) payload: Option<Vec<u8>>,
}

/// Every message, and every variant within one; numbers are chosen so that each length of a varint occurs.
pub(crate) fn samples() -> Vec<Sample> {
    [joining(), agreement(), training(), merge_messages(), tables()].into_iter().flatten().collect()
}

/// Messages until a peer is in a view.
fn joining() -> Vec<Sample> {
    let refuse = |refusal| Message::Join(JoinMessage::Refuse(refusal));
    let mut samples = vec![
        control("join_with_run", Message::Join(JoinMessage::Join(join(Some(RunId(bytes(0x00))))))),
        control(
            "join_without_run",
            Message::Join(JoinMessage::Join(Join { addresses: vec![], capacity: 0, ..join(None) })),
        ),
        control("welcome", Message::Join(JoinMessage::Welcome(welcome()))),
        control("redirect", Message::Join(JoinMessage::Redirect(contact()))),
        control("refuse_other_run", refuse(Refusal::OtherRun { run: RunId(bytes(0x00)) })),
        control("refuse_full", refuse(Refusal::Full)),
        control("refuse_run_complete", refuse(Refusal::RunComplete)),
        control("refuse_duplicate_identity", refuse(Refusal::DuplicateIdentity)),
        control("refuse_not_ready", refuse(Refusal::NotReady)),
        control("refuse_expelled", refuse(Refusal::Expelled(expulsion()))),
        control(
            "want_data",
            Message::Join(JoinMessage::WantData(WantData {
                digest: ContentDigest(bytes(0x60)),
                offset: 262_144,
            })),
        ),
        control("ready", Message::Join(JoinMessage::Ready(ContentDigest(bytes(0x70))))),
        control("candidate", Message::Join(JoinMessage::Candidate(member(0x40, 2)))),
        control("retire", Message::Admin(AdminMessage::Retire)),
        control("end_run", Message::Admin(AdminMessage::EndRun)),
        control("install_first_view", Message::Agreement(AgreementMessage::Install(first_view()))),
        control("install_later_view", Message::Agreement(AgreementMessage::Install(later_view()))),
        control("leave", Message::Leave(Departure { reason: "stopped by its user".to_owned() })),
    ];
    // A file's bytes need not fill whole elements.
    for (name, payload) in [("data", b"5.1,3.5,setosa\n".to_vec()), ("data_empty", vec![])] {
        let message =
            Message::Join(JoinMessage::Data(DataPiece { digest: ContentDigest(bytes(0x60)), offset: 250 }));
        samples.push(Sample { name, message, payload: Some(payload) });
    }
    samples
}

/// Messages by which members agree on the next view.
#[expect(clippy::too_many_lines, reason = "a list of samples")]
fn agreement() -> Vec<Sample> {
    let view = first_view().digest();
    let promise = |accepted, report| {
        Message::Agreement(AgreementMessage::Promise(Box::new(Promise {
            view,
            ballot: ballot(3, 0),
            accepted,
            report,
        })))
    };
    let nack = |promised| {
        Message::Agreement(AgreementMessage::Nack(Nack {
            view,
            ballot: ballot(3, 0),
            promised,
            step: StepNumber(70_000),
        }))
    };
    vec![
        control(
            "heartbeat",
            Message::Heartbeat(Heartbeat {
                view,
                view_number: ViewNumber(1),
                complete: StepNumber(70_000),
                computing: Some(StepNumber(300)),
                sent: SentFrames { link: 3, count: 70_000 },
                heard: SentFrames { link: 1, count: 69_999 },
                is_uplink_busy: true,
                window_bytes: 5_000_000,
                disk_fails: true,
                busy_milliseconds: 600_000,
            }),
        ),
        control("frame_count", Message::FrameCount { view, sent: SentFrames { link: 3, count: 70_000 } }),
        control(
            "complain",
            Message::Agreement(AgreementMessage::Complain {
                view,
                complaint: Complaint { about: Rank(251), fault: MemberFault::Withheld },
            }),
        ),
        control(
            "measured",
            Message::Agreement(AgreementMessage::Measured { view, samples_per_minute: 70_000, line: LINE }),
        ),
        control("withdraw", Message::Agreement(AgreementMessage::Withdraw { view, ballot: ballot(3, 0) })),
        control(
            "prepare_at_once",
            Message::Agreement(AgreementMessage::Prepare(Prepare {
                view,
                ballot: ballot(3, 0),
                before: None,
            })),
        ),
        control(
            "prepare_before_a_step",
            Message::Agreement(AgreementMessage::Prepare(Prepare {
                view,
                ballot: ballot(251, 1),
                before: Some(StepNumber(70_002)),
            })),
        ),
        control("promise_of_a_newcomer", promise(None, MemberReport::default())),
        control(
            "promise_of_a_vote_left_over",
            promise(None, MemberReport { is_vote_only: true, ..MemberReport::default() }),
        ),
        control("promise_of_a_peer_that_is_back", promise(None, report_again())),
        control("promise_inside_a_step", promise(None, report())),
        control("promise_with_accepted", promise(Some((ballot(2, 1), loss())), report_uncommitted())),
        control("nack_with_a_higher_ballot", nack(Some(ballot(4, 1)))),
        control("nack_with_a_later_step", nack(None)),
        control(
            "propose_after_a_loss",
            Message::Agreement(AgreementMessage::Propose(Propose { ballot: ballot(3, 0), change: loss() })),
        ),
        control(
            "propose_between_steps",
            Message::Agreement(AgreementMessage::Propose(Propose {
                ballot: ballot(3, 0),
                change: exchange(),
            })),
        ),
        control(
            "propose_to_merge",
            Message::Agreement(AgreementMessage::Propose(Propose {
                ballot: ballot(3, 0),
                change: merging(),
            })),
        ),
        control(
            "accepted",
            Message::Agreement(AgreementMessage::Accepted(Accepted { view, ballot: ballot(3, 0) })),
        ),
        control("learn", Message::Agreement(AgreementMessage::Learn(exchange()))),
    ]
}

/// Messages between branches that meet again.
fn merge_messages() -> Vec<Sample> {
    let (run, view, recipients) = (RunId(bytes(0x00)), ViewDigest(bytes(0xa0)), ViewDigest(bytes(0x60)));
    let steps = StepNumber(300);
    let probe = |yields| {
        let (trained, ancestors, coordinator) = (70_000, vec![ancestor()], contact());
        Message::Merge(MergeMessage::Probe(MergeProbe {
            run,
            view,
            steps,
            trained,
            ancestors,
            coordinator,
            yields,
            question: 70_000,
            answers: 300,
        }))
    };
    let offer = MergeOffer {
        view,
        steps,
        cursor: cursor(),
        trained: 70_000,
        ancestors: vec![ancestor()],
        donors: vec![SnapshotDonor { contact: contact(), states: chunks(&[0, 9, 300]) }],
        coordinator: contact().peer,
        question: 70_000,
    };
    let want = |content| {
        Message::Merge(MergeMessage::WantSnapshot(WantSnapshot {
            view,
            steps,
            content,
            chunks: chunks(&[0, 9, 300]),
        }))
    };
    let payload = [1.0_f32.to_le_bytes(), 0.5_f32.to_le_bytes()].concat();
    let entries = vec![ChunkEntry { chunk: 9, updates: 299 }];
    let digest = ContentDigest::of(&payload);
    let batch = ChunkBatch { steps, content: ChunkContent::State, entries, digest };
    let snapshot_chunks = Message::Merge(MergeMessage::SnapshotChunks(SnapshotChunks { view, batch }));
    vec![
        control("merge_probe", probe(None)),
        control("merge_probe_decided", probe(Some(view))),
        control("take_snapshot", TrainingMessage::TakeSnapshot(SaveAt { steps }).in_view(view)),
        control("merge_offer", Message::Merge(MergeMessage::Offer(offer))),
        control("want_snapshot_values", want(ChunkContent::Values)),
        control("want_snapshot_state", want(ChunkContent::State)),
        Sample { name: "snapshot_chunks", message: snapshot_chunks, payload: Some(payload) },
        control(
            "merge_ready",
            Message::Merge(MergeMessage::Ready(MergeReady { recipients, view, steps, missing: 300 })),
        ),
        control(
            "merge_accept",
            Message::Merge(MergeMessage::Accept(MergeAccept {
                view,
                question: 70_000,
                is_merged: true,
                contacts: vec![contact()],
            })),
        ),
    ]
}

fn table_rows(values: &[f32]) -> Rows {
    Rows { indices: [3, 4, 300].into_iter().collect(), values: values.to_vec() }
}

fn sample_lease() -> SampleLease {
    SampleLease { epoch: 1, spans: vec![Span { start: 64, end: 300 }] }
}

fn worker_id() -> WorkerId {
    WorkerId { peer: PeerId(bytes(0x60)), incarnation: Incarnation(2) }
}

fn change(operation: Operation) -> TableChange {
    TableChange { sequence: 300, chunk: 9, key: None, operation }
}

fn table_chunk() -> TableChunk {
    let worker = worker_id();
    let (last, leases) = (LastLease::Number(8), vec![(7, sample_lease())]);
    let held = WorkerLeases { worker, last, leases, kept: vec![0, 300] };
    let lease_table = LeaseTable {
        cursor: DataCursor { epoch: 1, position: 300, ..DataCursor::default() },
        returned: vec![sample_lease()],
        outstanding: vec![held],
    };
    TableChunk {
        chunk: 300,
        is_whole: true,
        rows: table_rows(&[1.0, 0.25, -0.5, 0.0, 3.25, 2.0]),
        updates: vec![1, 2, 300],
        pending: vec![(70_000, table_rows(&[1.0, -0.5, 3.25]))],
        applied: vec![(worker, 70_000)],
        used_keys: Some(UsedKeys { round: 300, numbers: vec![0, 3, 70] }),
        lease_table: Some(lease_table),
    }
}

/// Table messages, each as it is in a stream.
#[expect(clippy::too_many_lines, reason = "a list of samples")]
fn tables() -> Vec<Sample> {
    let view = ViewDigest(bytes(0xa0));
    let (rows, lease, chunk) = (table_rows, sample_lease, table_chunk());
    let words = [
        (
            "table_get",
            TableMessage::Request(Request::Get {
                request: 300,
                min_clock: WorkerClock::At(70_000),
                rows: rows(&[]).indices,
            }),
        ),
        (
            "table_add",
            TableMessage::Request(Request::Change(change(Operation::Add {
                clock: 70_000,
                rows: rows(&[1.0, -0.5, 3.25]),
            }))),
        ),
        ("table_map", TableMessage::Request(Request::Change(change(Operation::Map(Map::axpy(-0.5, 3, 1)))))),
        (
            "table_add_once",
            TableMessage::Request(Request::Change(TableChange {
                key: Some(IdempotencyKey { round: 300, number: 70 }),
                ..change(Operation::Add { clock: 70_000, rows: rows(&[1.0, -0.5, 3.25]) })
            })),
        ),
        (
            "table_reduce_gram",
            TableMessage::Request(Request::Reduce {
                request: 300,
                min_clock: WorkerClock::At(70_000),
                chunk: 9,
                reduce: Reduce::Gram(vec![0, 2, 1]),
            }),
        ),
        ("table_superseded", TableMessage::Response(Response::Superseded { lease_number: 8 })),
        (
            "table_reduce",
            TableMessage::Request(Request::Reduce {
                request: 300,
                min_clock: WorkerClock::At(70_000),
                chunk: 9,
                reduce: Reduce::Dot(1, 300),
            }),
        ),
        ("table_new_worker", TableMessage::Request(Request::NewWorker)),
        ("table_tick", TableMessage::Request(Request::Tick { clock: WorkerClock::At(70_001) })),
        ("table_tick_at_the_end", TableMessage::Request(Request::Tick { clock: WorkerClock::Ended })),
        (
            "table_lease",
            TableMessage::Request(Request::Lease { lease_number: 8, samples: 64, may_wait: true }),
        ),
        (
            "table_complete",
            TableMessage::Request(Request::Change(change(Operation::Complete { last_lease: 7 }))),
        ),
        (
            "table_replay",
            TableMessage::Request(Request::Replay {
                worker: worker_id(),
                change: change(Operation::Complete { last_lease: 7 }),
            }),
        ),
        ("table_return", TableMessage::Request(Request::Return { first_lease: 8 })),
        (
            "table_rows",
            TableMessage::Response(Response::Rows {
                request: 300,
                clock: WorkerClock::At(70_000),
                applied: vec![299, 0],
                zero: RowSet::range(7..10),
                values: vec![1.0, -0.5, 3.25],
            }),
        ),
        (
            "table_reduced",
            TableMessage::Response(Response::Reduced {
                request: 300,
                clock: WorkerClock::At(70_000),
                applied: 9,
                values: vec![-0.25, 1.5],
            }),
        ),
        ("table_acknowledged", TableMessage::Response(Response::Acknowledged { up_to: 300 })),
        (
            "table_replay_acknowledged",
            TableMessage::Response(Response::ReplayAcknowledged { worker: worker_id(), up_to: 300 }),
        ),
        (
            "table_keep",
            TableMessage::Journal(JournalMessage::Keep {
                worker: worker_id(),
                change: change(Operation::Map(Map::scale(2.0, 1))),
                ends_transaction: true,
            }),
        ),
        ("table_kept", TableMessage::Journal(JournalMessage::Kept { worker: worker_id(), up_to: 300 })),
        ("table_forget", TableMessage::Journal(JournalMessage::Forget { worker: worker_id(), up_to: 300 })),
        ("table_hold", TableMessage::Cut(CutMessage::Hold(300))),
        ("table_held", TableMessage::Cut(CutMessage::Held(300))),
        ("table_take", TableMessage::Cut(CutMessage::Take(300))),
        ("table_release", TableMessage::Cut(CutMessage::Release(300))),
        (
            "table_leased",
            TableMessage::Response(Response::Leased {
                lease_number: 8,
                lease: lease(),
                is_kept: true,
                trained: None,
            }),
        ),
        ("table_handover", TableMessage::Handover(TableChunk { is_whole: true, ..chunk.clone() })),
        (
            "table_replica_update",
            TableMessage::ReplicaUpdate(ReplicaUpdate { number: 300, chunks: vec![chunk] }),
        ),
        ("table_replica_ack", TableMessage::ReplicaAck(300)),
        ("table_replicated", TableMessage::Replicated([0, 9, 300].into_iter().collect())),
    ];
    let sample = |(name, message): (&'static str, TableMessage)| {
        assert!(message.is_valid(), "{message:?}");
        let mut stream = Vec::new();
        encode_table_message(&message, &mut stream);
        Sample { name, message: TrainingMessage::Tables.in_view(view), payload: Some(stream) }
    };
    words.into_iter().map(sample).collect()
}

/// Messages between the members of one view.
fn training() -> Vec<Sample> {
    let view = ViewDigest(bytes(0xa0));
    let mut samples = training_controls(view);
    let elements: Vec<u8> = [1.0_f32, -0.5, 3.25].iter().flat_map(|value| value.to_le_bytes()).collect();
    for (name, phase, payload) in [
        ("segment_reduce", Phase::Reduce, elements.clone()),
        ("segment_mirror", Phase::Mirror, elements.clone()),
        // The payload of a gathered segment may be empty, as a shard may be.
        ("segment_gather_empty", Phase::Gather, vec![]),
    ] {
        samples.push(Sample {
            name,
            message: TrainingMessage::Segment(segment(phase)).in_view(view),
            payload: Some(payload),
        });
    }
    for (name, content, updates) in
        [("chunk_batch_values", ChunkContent::Values, 0), ("chunk_batch_state", ChunkContent::State, 299)]
    {
        let digest = ContentDigest::of(&elements);
        let entries = vec![ChunkEntry { chunk: 251, updates }, ChunkEntry { chunk: 4095, updates: 0 }];
        let chunk_batch = ChunkBatch { steps: StepNumber(300), content, entries, digest };
        samples.push(Sample {
            name,
            message: TrainingMessage::ChunkBatch(chunk_batch).in_view(view),
            payload: Some(elements.clone()),
        });
    }
    samples
}

/// Those without a payload.
fn training_controls(view: ViewDigest) -> Vec<Sample> {
    let want = WantChunks { steps: StepNumber(300), chunks: [0, 9, 300].into_iter().collect() };
    let complete = Complete { steps: StepNumber(5_000_000_000), left_out: 64 };
    let shards = vec![ShardDigest([1, 2, 3, 4, 5, 6, 7, 8]), ShardDigest([0xff; 8])];
    let (steps, digest) = (StepNumber(300), ContentDigest(bytes(0x70)));
    let parameters = ParametersDigest { steps, digest, shards };
    vec![
        control("want_chunks", TrainingMessage::WantChunks(want).in_view(view)),
        control("complete", TrainingMessage::Complete(complete).in_view(view)),
        control("parameters_digest", TrainingMessage::ParametersDigest(parameters).in_view(view)),
        control(
            "save_checkpoint",
            TrainingMessage::SaveCheckpoint(SaveAt { steps: StepNumber(70_002) }).in_view(view),
        ),
        control("expel", Message::Admin(AdminMessage::Expel(expulsion()))),
        control(
            "rekey",
            Message::Admin(AdminMessage::Rekey(Rekey {
                at: 70_000,
                by: PeerId(bytes(0x60)),
                secret: Secret(bytes(0x70)),
            })),
        ),
        control("rekeyed", Message::Admin(AdminMessage::Rekeyed(70_000))),
        control("closed", TrainingMessage::Closed(Closed { left_out: 64 }).in_view(view)),
        control(
            "step_progress",
            TrainingMessage::StepProgress(StepProgress {
                step: StepNumber(300),
                has_contribution: true,
                left_out: 64,
            })
            .in_view(view),
        ),
        control(
            "shard_norm",
            TrainingMessage::ShardNorm(ShardNorm { step: StepNumber(300), squares: 12.5 }).in_view(view),
        ),
        control("evaluating", TrainingMessage::Evaluating(SaveAt { steps: StepNumber(300) }).in_view(view)),
        control(
            "evaluated",
            TrainingMessage::Evaluated(Evaluated {
                steps: StepNumber(300),
                samples: 359,
                loss: 0.25,
                accuracy: Some(0.75),
                best: BestEvaluation { steps: StepNumber(200), loss: 0.125 },
            })
            .in_view(view),
        ),
        control(
            "step_contributors",
            TrainingMessage::StepContributors(StepContributors {
                step: StepNumber(300),
                late: vec![Rank(2), Rank(251)],
                left_out: 64,
            })
            .in_view(view),
        ),
    ]
}

fn control(name: &'static str, message: Message) -> Sample {
    Sample { name, message, payload: None }
}

fn join(run: Option<RunId>) -> Join {
    Join { run, incarnation: Incarnation(1_700_000_000_000), addresses: addresses(), capacity: 16 }
}

fn welcome() -> Welcome {
    let other = Contact { peer: PeerId(bytes(0x80)), addresses: vec![] };
    let non_owners = vec![other.peer];
    Welcome {
        specification: b"[model]\n".to_vec(),
        nonce: bytes(0x40),
        members: vec![contact(), other],
        non_owners,
    }
}

fn contact() -> Contact {
    Contact { peer: PeerId(bytes(0x20)), addresses: addresses() }
}

fn addresses() -> Vec<String> {
    vec!["/ip4/192.0.2.7/tcp/4747".to_owned(), "/dns/peer.example/tcp/4747".to_owned()]
}

fn member(first: u8, capacity: u8) -> Member {
    Member {
        peer: PeerId(bytes(first)),
        incarnation: Incarnation(1),
        addresses: vec![format!("/ip4/192.0.2.{first}/tcp/4747")],
        capacity,
    }
}

fn ballot(attempt: u32, rank: u32) -> Ballot {
    Ballot { attempt, rank: Rank(rank) }
}

pub(crate) fn first_view() -> View {
    View::first(RunId(bytes(0x00)), vec![member(0x20, 1), member(0x80, 0)])
}

/// A view after a merge, in which every part of a record is used.
pub(crate) fn later_view() -> View {
    let resume = Resume {
        newcomers: vec![Rank(1)],
        batch: Some(batch_parts()),
        forward: Some(forward()),
        ..exchange().resume
    };
    View {
        number: ViewNumber(251),
        speeds: vec![0, 70_000],
        lines: vec![LINE, MemberLine::default()],
        parents: vec![first_view().digest(), ViewDigest(bytes(0xa0))],
        recovery: Recovery::Resume(resume),
        cursor: cursor(),
        moves: moves(),
        expelled: vec![expulsion()],
        quarantined: vec![quarantine()],
        history: ViewHistory { ancestors: vec![ancestor()], ..first_view().history },
        ..first_view()
    }
}

fn ancestor() -> Ancestor {
    Ancestor { view: ViewDigest(bytes(0xa0)), trained: 70_000 }
}

/// A change that merges another branch.
fn merging() -> ViewChange {
    let (cursor, history) = (cursor(), vec![ancestor()]);
    let merge = Merge {
        view: ViewDigest(bytes(0xa0)),
        steps: StepNumber(300),
        ours: 70_000,
        theirs: 250,
        cursor,
        history,
    };
    ViewChange {
        resume: Resume { merge: Some(Box::new(merge)), ..Resume::at(StepNumber(70_002)) },
        ..exchange()
    }
}

fn expulsion() -> Expulsion {
    Expulsion { peer: PeerId(bytes(0x60)), by: PeerId(bytes(0x20)), cause: ExpulsionCause::Violations }
}

fn quarantine() -> Quarantine {
    let (peer, other) = (PeerId(bytes(0x60)), PeerId(bytes(0x20)));
    Quarantine { peer, other, fault: MemberFault::Frames, is_certain: false }
}

fn cursor() -> DataCursor {
    let returned = vec![Span { start: 10, end: 20 }, Span { start: 250, end: 300 }];
    DataCursor {
        epoch: 2,
        position: 65_535,
        returned,
        deferred: vec![Span { start: 300, end: 301 }],
        ending: Ending::NextBatch,
    }
}

fn batch_parts() -> BatchParts {
    let parts = vec![vec![Span { start: 65_000, end: 65_032 }, Span { start: 20, end: 30 }], vec![]];
    BatchParts { epoch: 2, parts }
}

fn forward() -> RollForward {
    let donors =
        vec![Donor { first: 0, end: 250, rank: Rank(1) }, Donor { first: 300, end: 301, rank: Rank(0) }];
    RollForward { stats: SampleStats { samples: 64, loss: 0.75 }, donors }
}

fn moves() -> Moves {
    let list =
        vec![Move { chunk: 251, from: vec![Rank(0)] }, Move { chunk: 7, from: vec![Rank(1), Rank(0)] }];
    Moves { list, rate: 2, restarted: vec![3, 4095] }
}

/// The last member of the first view is lost inside a step; so there are no moves, and the state of what it owned is gone.
fn loss() -> ViewChange {
    ViewChange {
        parent: first_view().digest(),
        removed: vec![Rank(1)],
        added: vec![],
        capacities: vec![],
        speeds: vec![],
        lines: vec![],
        resume: Resume {
            step: StepNumber(70_000),
            newcomers: vec![],
            batch: Some(BatchParts { epoch: 2, parts: vec![vec![Span { start: 65_000, end: 65_032 }]] }),
            forward: Some(RollForward { stats: SampleStats { samples: 64, loss: 0.75 }, donors: vec![] }),
            is_restored: false,
            merge: None,
        },
        cursor: cursor(),
        moves: Moves { restarted: vec![3, 4095], ..Moves::default() },
        expelled: vec![],
        quarantined: vec![],
        ancestors: vec![],
    }
}

/// A peer joins, and a member hands over what it owns.
fn exchange() -> ViewChange {
    ViewChange {
        parent: first_view().digest(),
        removed: vec![],
        added: vec![member(0x40, 2)],
        capacities: vec![(Rank(0), 0)],
        speeds: vec![0, 251, 70_000],
        lines: vec![MemberLine::default(), LINE, LINE],
        resume: Resume { newcomers: vec![Rank(1)], ..Resume::at(StepNumber(70_002)) },
        cursor: cursor(),
        moves: moves(),
        expelled: vec![
            Expulsion { cause: ExpulsionCause::Request, ..expulsion() },
            Expulsion { cause: ExpulsionCause::Faults, ..expulsion() },
        ],
        quarantined: vec![Quarantine { fault: MemberFault::Refused, is_certain: true, ..quarantine() }],
        ancestors: vec![ancestor()],
    }
}

fn chunks(list: &[usize]) -> ChunkSet {
    list.iter().copied().collect()
}

/// A member in the middle of a step; the step before is committed.
fn report() -> MemberReport {
    let next = PartialStep { values: chunks(&[0, 1, 2, 8]), states: ChunkSet::default(), stats: None };
    MemberReport {
        is_vote_only: false,
        complete: Some(StepNumber(70_000)),
        states: chunks(&[0, 3, 8, 15]),
        states_before: None,
        is_entering: false,
        stats: None,
        next: Some(next),
        lost: vec![Rank(1)],
        complaints: vec![],
        awaited: None,
        is_still: false,
        has_merge_snapshot: true,
        rejoin: None,
    }
}

/// A peer whose process is not the member's any more, and that has two checkpoints.
fn report_again() -> MemberReport {
    let saved = |steps, view_number| SavedCheckpoint {
        steps: StepNumber(steps),
        branch: Branch { view_number: ViewNumber(view_number), step: StepNumber(300), fork: Some(70_000) },
        cursor: cursor(),
        digest: ContentDigest(bytes(0x60)),
        states: chunks(&[0, 9]),
    };
    let again =
        RejoinCandidate { member: member(0x20, 1), saved: vec![saved(70_000, 251), saved(65_000, 2)] };
    MemberReport { is_vote_only: true, rejoin: Some(Box::new(again)), ..MemberReport::default() }
}

/// A member that does not know yet whether its newest step is complete everywhere.
fn report_uncommitted() -> MemberReport {
    let next = PartialStep {
        values: ChunkSet::default(),
        states: chunks(&[0]),
        stats: Some(SampleStats { samples: 64, loss: 0.5 }),
    };
    MemberReport {
        states_before: Some(chunks(&[0, 3])),
        complaints: vec![Complaint { about: Rank(1), fault: MemberFault::Refused }],
        awaited: Some(Awaited {
            at: AwaitedAt { step: StepNumber(70_000), stage: Stage::Gather, hop: 3 },
            from: vec![Rank(0), Rank(251)],
        }),
        is_still: true,
        is_entering: true,
        stats: Some(SampleStats { samples: 64, loss: 0.75 }),
        next: Some(next),
        ..report()
    }
}

fn segment(phase: Phase) -> Segment {
    Segment {
        step: StepNumber(300),
        phase,
        owner: 3,
        index: 70_000,
        stats: SampleStats { samples: 64, loss: 0.75 },
    }
}

pub(crate) fn invite() -> Invite {
    Invite { run: RunId(bytes(0x00)), secret: Secret(bytes(0xc0)), contacts: vec![contact()] }
}

/// A member that has promised one ballot, and accepted a change under an earlier one.
pub(crate) fn durable() -> DurableRecord {
    let mut acceptor = Acceptor::default();
    acceptor.accept(ballot(2, 1), loss()).expect("nothing was promised before");
    acceptor.promise(ballot(3, 0)).expect("a higher ballot");
    let definition = RunDefinition { specification: b"[model]\n".to_vec(), nonce: bytes(0x40) };
    DurableRecord { view: first_view(), incarnation: Incarnation(1), acceptor, definition }
}

/// Increasing bytes from `first` on: a reader sees at once in which order they are.
pub(crate) fn bytes<const N: usize>(first: u8) -> [u8; N] {
    array::from_fn(|index| first + index as u8)
}

const LINE: MemberLine = MemberLine { kilobytes_per_second: 25_000, round_trip_milliseconds: 100 };
