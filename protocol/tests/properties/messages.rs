//! Messages and records of every kind, with random valid content.

use std::ops::RangeInclusive;

use peergrad_protocol::agreement::Ballot;
use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::cursor::{DataCursor, Ending, Span};
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::invite::Secret;
use peergrad_protocol::limits::{
    ATTEMPTS_MAX, BUSY_MAX, CAPACITY_MAX, CHECKPOINTS_MAX, CHUNKS_MAX, MEMBERS_MAX, REPLICAS_MAX,
    SAMPLES_MAX, STEPS_MAX,
};
use peergrad_protocol::message::{
    Accepted, AdminMessage, AgreementMessage, Awaited, AwaitedAt, BestEvaluation, ChunkBatch, ChunkContent,
    ChunkEntry, Closed, Complete, Contact, DataPiece, Departure, Evaluated, Heartbeat, Join, JoinMessage,
    MemberReport, MergeAccept, MergeMessage, MergeOffer, MergeProbe, MergeReady, Message, Nack,
    ParametersDigest, PartialStep, Phase, Prepare, Promise, Propose, Refusal, RejoinCandidate, Rekey,
    SampleStats, SaveAt, SavedCheckpoint, Segment, SentFrames, ShardDigest, ShardNorm, SnapshotChunks,
    SnapshotDonor, Stage, StepContributors, StepProgress, TrainingMessage, WantChunks, WantData,
    WantSnapshot, Welcome,
};
use peergrad_protocol::view::{
    Ancestor, BatchParts, Branch, Complaint, Donor, Expulsion, ExpulsionCause, Member, MemberFault,
    MemberLine, Merge, Move, Moves, Quarantine, Recovery, Resume, RollForward, View, ViewChange, ViewHistory,
};
use peergrad_protocol::{Incarnation, PeerId, Rank, RunId, StepNumber, ViewDigest, ViewNumber};
use proptest::prelude::*;
use proptest::sample::subsequence;

pub(crate) fn array() -> impl Strategy<Value = [u8; 32]> {
    any::<[u8; 32]>()
}

pub(crate) fn addresses() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec("[ -~]{0,40}|.{0,20}", 0..4)
}

/// Numbers near those at which a varint becomes longer, and any others.
pub(crate) fn number() -> impl Strategy<Value = u64> {
    prop_oneof![248_u64..254, 65_534_u64..65_538, 4_294_967_294_u64..4_294_967_298, any::<u64>()]
}

/// As [`number`], for a step, an epoch or a view.
fn step() -> impl Strategy<Value = u64> {
    number().prop_map(|number| number.min(STEPS_MAX))
}

fn digest() -> impl Strategy<Value = ViewDigest> {
    array().prop_map(ViewDigest)
}

pub(crate) fn ballot() -> impl Strategy<Value = Ballot> {
    (0..=ATTEMPTS_MAX, any::<u32>()).prop_map(|(attempt, rank)| Ballot { attempt, rank: Rank(rank) })
}

/// A loss may be anything except NaN here, so that messages can be compared.
fn stats() -> impl Strategy<Value = SampleStats> {
    (any::<u32>(), prop::num::f64::ANY.prop_filter("comparable", |loss| !loss.is_nan()))
        .prop_map(|(samples, loss)| SampleStats { samples: samples.into(), loss })
}

pub(crate) fn contact() -> impl Strategy<Value = Contact> {
    (array(), addresses()).prop_map(|(peer, addresses)| Contact { peer: PeerId(peer), addresses })
}

/// Members in order, at least one of them with capacity.
fn members() -> impl Strategy<Value = Vec<Member>> {
    prop::collection::btree_map(array(), (number(), addresses(), 1..=CAPACITY_MAX), 1..6).prop_map(
        |members| {
            let member = |(peer, (incarnation, addresses, capacity))| Member {
                peer: PeerId(peer),
                incarnation: Incarnation(incarnation),
                addresses,
                capacity,
            };
            members.into_iter().map(member).collect()
        },
    )
}

/// A data cursor, and assigned ranges that are neither returned nor deferred.
fn cursor_and_spans() -> impl Strategy<Value = (DataCursor, Vec<Span>)> {
    let cuts = prop::collection::btree_set(0_u64..100_000, 0..12);
    (step(), 100_000..u64::from(u32::MAX), cuts).prop_map(|(epoch, position, cuts)| {
        let cuts: Vec<u64> = cuts.into_iter().collect();
        let spans: Vec<Span> = cuts.chunks_exact(2).map(|cut| Span { start: cut[0], end: cut[1] }).collect();
        let (untrained, assigned) = spans.split_at(spans.len() / 2);
        let (returned, deferred) = untrained.split_at(untrained.len() / 2);
        (
            DataCursor {
                epoch,
                position,
                returned: returned.to_vec(),
                deferred: deferred.to_vec(),
                ending: [Ending::None, Ending::NextBatch, Ending::Over][position as usize % 3],
            },
            assigned.to_vec(),
        )
    })
}

fn ranks(member_count: usize, counts: RangeInclusive<usize>) -> impl Strategy<Value = Vec<Rank>> {
    subsequence((0..member_count).map(Rank::from_index).collect::<Vec<_>>(), counts)
}

fn moves(member_count: usize) -> impl Strategy<Value = Moves> {
    let from = ranks(member_count, 1..=member_count.min(REPLICAS_MAX)).prop_shuffle();
    let list = prop::collection::btree_map(0..CHUNKS_MAX as u32, from, 0..6);
    (list, 1..100_u32, prop::collection::btree_set(0..CHUNKS_MAX as u32, 0..4)).prop_map(
        |(list, rate, mut restarted)| {
            restarted.retain(|chunk| !list.contains_key(chunk));
            let list = list.into_iter().map(|(chunk, from)| Move { chunk, from }).collect();
            Moves { list, rate, restarted: restarted.into_iter().collect() }
        },
    )
}

fn forward(member_count: usize) -> impl Strategy<Value = RollForward> {
    let donor = (0..CHUNKS_MAX as u32, 1..9_u32, 0..member_count).prop_map(|(first, count, rank)| Donor {
        first,
        end: (first + count).min(CHUNKS_MAX as u32),
        rank: Rank::from_index(rank),
    });
    (stats(), prop::collection::vec(donor, 0..5)).prop_map(|(stats, donors)| RollForward { stats, donors })
}

/// How a view of this many members resumes training, and the data cursor that belongs to it.
fn resume(member_count: usize) -> impl Strategy<Value = (Resume, DataCursor)> {
    let owners = prop::collection::vec(0..member_count, 6);
    let forward = prop::option::of(forward(member_count));
    let newcomers = ranks(member_count, 0..=member_count - 1);
    let interruption = (any::<bool>(), owners, forward);
    (step(), newcomers, cursor_and_spans(), interruption, prop::option::of(merge())).prop_map(
        move |(step, newcomers, (cursor, spans), (is_dealt, owners, forward), merge)| {
            let mut parts = vec![vec![]; member_count];
            spans.iter().zip(owners).for_each(|(span, owner)| parts[owner].push(*span));
            let batch = is_dealt.then_some(BatchParts { epoch: cursor.epoch, parts });
            // One in four of those without an interruption continues from checkpoints.
            let is_restored = batch.is_none() && forward.is_none() && step % 4 == 0;
            let is_bare = batch.is_none() && forward.is_none() && !is_restored;
            let merge = merge.filter(|_| is_bare).map(Box::new);
            (Resume { step: StepNumber(step), newcomers, batch, forward, is_restored, merge }, cursor)
        },
    )
}

fn merge() -> impl Strategy<Value = Merge> {
    let merge = (digest(), step(), 1..=SAMPLES_MAX, 0..=SAMPLES_MAX, cursor_and_spans(), ancestors());
    merge.prop_map(|(view, steps, ours, theirs, (cursor, _), history)| Merge {
        view,
        steps: StepNumber(steps),
        ours,
        theirs,
        cursor,
        history,
    })
}

fn ancestors() -> impl Strategy<Value = Vec<Ancestor>> {
    let ancestor = (digest(), 0..=SAMPLES_MAX).prop_map(|(view, trained)| Ancestor { view, trained });
    prop::collection::vec(ancestor, 0..4)
}

pub(crate) fn view() -> impl Strategy<Value = View> {
    let parents = || prop::collection::vec(digest(), 1..3);
    let later = move |members: Vec<Member>| {
        let count = members.len();
        (Just(members), parents(), resume(count), moves(count))
    };
    let later = members().prop_flat_map(later).prop_map(|(members, parents, (resume, cursor), moves)| {
        (members, parents, Recovery::Resume(resume), cursor, moves)
    });
    let first = members()
        .prop_map(|members| (members, vec![], Recovery::Initialize, DataCursor::default(), Moves::default()));
    (array(), step(), prop_oneof![1 => first, 4 => later], ancestors()).prop_map(
        |(run, view_number, (members, parents, recovery, cursor, moves), ancestors)| View {
            history: ViewHistory {
                partitioned: vec![Contact { peer: PeerId([0; 32]), addresses: vec![] }; ancestors.len()],
                ancestors,
                ..ViewHistory::starting_with(branch_of(view_number, &recovery))
            },
            run: RunId(run),
            number: ViewNumber(view_number),
            parents,
            speeds: (0..members.len() as u32).map(|rank| rank * 1000).collect(),
            lines: vec![],
            members,
            recovery,
            cursor,
            moves,
            // No generated peer has this id.
            expelled: vec![Expulsion {
                peer: PeerId([0; 32]),
                by: PeerId([1; 32]),
                cause: ExpulsionCause::Request,
            }],
            quarantined: vec![],
        },
    )
}

/// A branch that a view with this number may name.
fn branch_of(view_number: u64, recovery: &Recovery) -> Branch {
    match recovery {
        Recovery::Resume(resume) if resume.is_restored => {
            Branch { view_number: ViewNumber(view_number), step: resume.step, fork: None }
        }
        _ => Branch {
            view_number: ViewNumber(view_number / 2),
            step: StepNumber(view_number / 3),
            fork: Some(view_number as u32),
        },
    }
}

fn line() -> impl Strategy<Value = MemberLine> {
    (any::<u32>(), any::<u32>()).prop_map(|(kilobytes_per_second, round_trip_milliseconds)| MemberLine {
        kilobytes_per_second,
        round_trip_milliseconds,
    })
}

/// A change without a particular parent view.
pub(crate) fn change() -> impl Strategy<Value = ViewChange> {
    let capacities = prop::collection::vec((any::<u32>().prop_map(Rank), any::<u8>()), 0..4);
    let speeds = prop::collection::vec(any::<u32>(), 0..4);
    let lines = prop::collection::vec(line(), 0..4);
    let removed = prop::collection::vec(any::<u32>().prop_map(Rank), 0..4);
    let gone = (prop::collection::vec(expulsion(), 0..3), prop::collection::vec(quarantine(), 0..3));
    (digest(), removed, members(), (capacities, speeds, lines), resume(5), (moves(5), gone, ancestors()))
        .prop_map(
            |(
                parent,
                removed,
                added,
                (capacities, speeds, lines),
                (resume, cursor),
                (moves, gone, ancestors),
            )| {
                ViewChange {
                    parent,
                    removed,
                    added,
                    capacities,
                    speeds,
                    lines,
                    resume,
                    cursor,
                    moves,
                    expelled: gone.0,
                    quarantined: gone.1,
                    ancestors,
                }
            },
        )
}

fn expulsion() -> impl Strategy<Value = Expulsion> {
    let cause = prop_oneof![
        Just(ExpulsionCause::Request),
        Just(ExpulsionCause::Violations),
        Just(ExpulsionCause::Faults)
    ];
    (array(), array(), cause).prop_map(|(peer, by, cause)| Expulsion {
        peer: PeerId(peer),
        by: PeerId(by),
        cause,
    })
}

fn quarantine() -> impl Strategy<Value = Quarantine> {
    (array(), array(), fault(), any::<bool>()).prop_map(|(peer, other, fault, is_certain)| Quarantine {
        peer: PeerId(peer),
        other: PeerId(other),
        fault,
        is_certain,
    })
}

fn complaint() -> impl Strategy<Value = Complaint> {
    (any::<u32>(), fault()).prop_map(|(about, fault)| Complaint { about: Rank(about), fault })
}

fn awaited() -> impl Strategy<Value = Awaited> {
    let stage =
        prop_oneof![Just(Stage::Chunks), Just(Stage::Reduce), Just(Stage::Gather), Just(Stage::Norms)];
    let from = prop::collection::vec(any::<u32>().prop_map(Rank), 0..4);
    (step(), stage, any::<u32>(), from).prop_map(|(step, stage, hop, from)| {
        let at = AwaitedAt { step: StepNumber(step), stage, hop };
        Awaited { at, from }
    })
}

fn fault() -> impl Strategy<Value = MemberFault> {
    prop_oneof![
        Just(MemberFault::Frames),
        Just(MemberFault::Refused),
        Just(MemberFault::Withheld),
        Just(MemberFault::Parameters),
        Just(MemberFault::Values),
        Just(MemberFault::Late),
    ]
}

fn chunks() -> impl Strategy<Value = ChunkSet> {
    prop_oneof![
        prop::collection::vec(0..CHUNKS_MAX, 0..6).prop_map(|list| list.into_iter().collect()),
        (0..=CHUNKS_MAX).prop_map(ChunkSet::all)
    ]
}

fn rejoin() -> impl Strategy<Value = RejoinCandidate> {
    let branch = (step(), step(), any::<Option<u32>>()).prop_map(|(view_number, step, fork)| Branch {
        view_number: ViewNumber(view_number),
        step: StepNumber(step),
        fork,
    });
    let saved = (step(), branch, resume(3), digest(), chunks());
    let saved = saved.prop_map(|(steps, branch, (_, cursor), digest, states)| SavedCheckpoint {
        steps: StepNumber(steps),
        branch,
        cursor,
        digest: ContentDigest(digest.0),
        states,
    });
    (members(), prop::collection::vec(saved, 0..=CHECKPOINTS_MAX))
        .prop_map(|(mut members, saved)| RejoinCandidate { member: members.remove(0), saved })
}

fn report() -> impl Strategy<Value = MemberReport> {
    let next = (chunks(), chunks(), prop::option::of(stats()))
        .prop_map(|(values, states, stats)| PartialStep { values, states, stats });
    let lost = (
        prop::collection::vec(any::<u32>().prop_map(Rank), 0..4),
        prop::collection::vec(complaint(), 0..4),
        prop::option::of(awaited()),
        prop::option::of(rejoin()),
    );
    let options = (prop::option::of(step()), prop::option::of(chunks()), prop::option::of(stats()));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (flags, chunks(), options, prop::option::of(next), lost).prop_map(
        |(
            (is_vote_only, is_entering, has_merge_snapshot),
            states,
            (complete, states_before, stats),
            next,
            (lost, complaints, awaited, rejoin),
        )| {
            let complete = complete.map(StepNumber);
            let rejoin = rejoin.map(Box::new);
            MemberReport {
                is_vote_only,
                complete,
                states,
                states_before,
                is_entering,
                stats,
                next,
                lost,
                complaints,
                awaited,
                is_still: is_entering,
                has_merge_snapshot,
                rejoin,
            }
        },
    )
}

/// Any valid message.
pub(crate) fn message() -> impl Strategy<Value = Message> {
    let computing = prop::option::of(step());
    let sent = || (any::<u32>(), number()).prop_map(|(link, count)| SentFrames { link, count });
    let rest = (any::<bool>(), number(), any::<bool>(), 0..=BUSY_MAX.as_millis() as u32);
    let heartbeat = (digest(), step(), step(), computing, sent(), sent(), rest).prop_map(
        |(view, view_number, complete, computing, sent, heard, rest)| {
            let (is_uplink_busy, window_bytes, disk_fails, busy_milliseconds) = rest;
            let computing = computing.map(StepNumber);
            Heartbeat {
                view,
                view_number: ViewNumber(view_number),
                complete: StepNumber(complete),
                computing,
                sent,
                heard,
                is_uplink_busy,
                window_bytes,
                disk_fails,
                busy_milliseconds,
            }
        },
    );
    prop_oneof![
        joining().prop_map(Message::Join),
        agreement().prop_map(Message::Agreement),
        (digest(), training()).prop_map(|(view, message)| message.in_view(view)),
        merge_messages().prop_map(Message::Merge),
        admin().prop_map(Message::Admin),
        heartbeat.prop_map(Message::Heartbeat),
        (digest(), any::<u32>(), any::<u64>())
            .prop_map(|(view, link, count)| Message::FrameCount { view, sent: SentFrames { link, count } }),
        ".{0,60}".prop_map(|reason| Message::Leave(Departure { reason })),
    ]
}

/// Messages until a peer is in a view.
fn joining() -> impl Strategy<Value = JoinMessage> {
    let join = (prop::option::of(array()), number(), addresses(), 0..=CAPACITY_MAX).prop_map(
        |(run, incarnation, addresses, capacity)| {
            let incarnation = Incarnation(incarnation);
            JoinMessage::Join(Join { run: run.map(RunId), incarnation, addresses, capacity })
        },
    );
    let specification = prop::collection::vec(any::<u8>(), 0..300);
    let welcome = (specification, array(), prop::collection::vec(contact(), 0..4)).prop_map(
        |(specification, nonce, members)| {
            let non_owners = members.iter().skip(1).map(|contact| contact.peer).collect();
            JoinMessage::Welcome(Welcome { specification, nonce, members, non_owners })
        },
    );
    let refusal = prop_oneof![
        array().prop_map(|run| Refusal::OtherRun { run: RunId(run) }),
        Just(Refusal::Full),
        Just(Refusal::RunComplete),
        Just(Refusal::DuplicateIdentity),
        Just(Refusal::NotReady),
        expulsion().prop_map(Refusal::Expelled),
    ];
    let want =
        (array(), number()).prop_map(|(digest, offset)| WantData { digest: ContentDigest(digest), offset });
    let piece =
        (array(), number()).prop_map(|(digest, offset)| DataPiece { digest: ContentDigest(digest), offset });
    prop_oneof![
        join,
        welcome,
        contact().prop_map(JoinMessage::Redirect),
        refusal.prop_map(JoinMessage::Refuse),
        want.prop_map(JoinMessage::WantData),
        piece.prop_map(JoinMessage::Data),
        array().prop_map(|digest| JoinMessage::Ready(ContentDigest(digest))),
        members().prop_map(|mut members| JoinMessage::Candidate(members.remove(0))),
    ]
}

/// Messages by which members agree on the next view.
fn agreement() -> impl Strategy<Value = AgreementMessage> {
    let prepare = (digest(), ballot(), prop::option::of(step())).prop_map(|(view, ballot, before)| Prepare {
        view,
        ballot,
        before: before.map(StepNumber),
    });
    let promise = (digest(), ballot(), prop::option::of((ballot(), change())), report())
        .prop_map(|(view, ballot, accepted, report)| Promise { view, ballot, accepted, report });
    let nack = (digest(), ballot(), prop::option::of(ballot()), step())
        .prop_map(|(view, ballot, promised, step)| Nack { view, ballot, promised, step: StepNumber(step) });
    prop_oneof![
        prepare.prop_map(AgreementMessage::Prepare),
        promise.prop_map(|promise| AgreementMessage::Promise(Box::new(promise))),
        nack.prop_map(AgreementMessage::Nack),
        (ballot(), change())
            .prop_map(|(ballot, change)| AgreementMessage::Propose(Propose { ballot, change })),
        (digest(), ballot()).prop_map(|(view, ballot)| AgreementMessage::Accepted(Accepted { view, ballot })),
        change().prop_map(AgreementMessage::Learn),
        view().prop_map(AgreementMessage::Install),
        (digest(), complaint()).prop_map(|(view, complaint)| AgreementMessage::Complain { view, complaint }),
        (digest(), ballot()).prop_map(|(view, ballot)| AgreementMessage::Withdraw { view, ballot }),
        (digest(), any::<u32>(), line()).prop_map(|(view, samples_per_minute, line)| {
            AgreementMessage::Measured { view, samples_per_minute, line }
        }),
    ]
}

/// Messages between the members of one view.
fn training() -> impl Strategy<Value = TrainingMessage> {
    let want = (step(), chunks()).prop_map(|(steps, chunks)| WantChunks { steps: StepNumber(steps), chunks });
    let complete = (step(), 0..=SAMPLES_MAX)
        .prop_map(|(steps, left_out)| Complete { steps: StepNumber(steps), left_out });
    let shards = prop::collection::vec(any::<[u8; 8]>().prop_map(ShardDigest), 0..4);
    let parameters = (step(), array(), shards).prop_map(|(steps, digest, shards)| {
        let (steps, digest) = (StepNumber(steps), ContentDigest(digest));
        ParametersDigest { steps, digest, shards }
    });
    let progress = (step(), any::<bool>(), 0..=SAMPLES_MAX).prop_map(|(step, has_contribution, left_out)| {
        StepProgress { step: StepNumber(step), has_contribution, left_out }
    });
    let late = prop::collection::btree_set(0..MEMBERS_MAX as u32, 0..9);
    let contributors = (step(), late, 0..=SAMPLES_MAX).prop_map(|(step, late, left_out)| StepContributors {
        step: StepNumber(step),
        late: late.into_iter().map(Rank).collect(),
        left_out,
    });
    let norm =
        (step(), 0.0..=f64::MAX).prop_map(|(step, squares)| ShardNorm { step: StepNumber(step), squares });
    let best =
        (step(), any::<f64>()).prop_map(|(step, loss)| BestEvaluation { steps: StepNumber(step), loss });
    let shares = prop::option::of(0.0..=1.0);
    let evaluated = (step(), any::<u32>(), any::<f64>(), shares, best).prop_map(
        |(step, samples, loss, accuracy, best)| Evaluated {
            steps: StepNumber(step),
            samples,
            loss,
            accuracy,
            best,
        },
    );
    let save_at = || step().prop_map(|steps| SaveAt { steps: StepNumber(steps) });
    prop_oneof![
        segment(),
        want.prop_map(TrainingMessage::WantChunks),
        chunk_batch().prop_map(TrainingMessage::ChunkBatch),
        complete.prop_map(TrainingMessage::Complete),
        parameters.prop_map(TrainingMessage::ParametersDigest),
        (0..=SAMPLES_MAX).prop_map(|left_out| TrainingMessage::Closed(Closed { left_out })),
        progress.prop_map(TrainingMessage::StepProgress),
        contributors.prop_map(TrainingMessage::StepContributors),
        save_at().prop_map(TrainingMessage::SaveCheckpoint),
        save_at().prop_map(TrainingMessage::TakeSnapshot),
        norm.prop_map(TrainingMessage::ShardNorm),
        save_at().prop_map(TrainingMessage::Evaluating),
        evaluated.prop_map(TrainingMessage::Evaluated),
    ]
}

fn segment() -> impl Strategy<Value = TrainingMessage> {
    let phase = prop_oneof![Just(Phase::Reduce), Just(Phase::Gather), Just(Phase::Mirror)];
    (step(), phase, any::<u32>(), any::<u32>(), stats()).prop_map(|(step, phase, owner, index, stats)| {
        TrainingMessage::Segment(Segment { step: StepNumber(step), phase, owner, index, stats })
    })
}

fn chunk_batch() -> impl Strategy<Value = ChunkBatch> {
    let entries = prop::collection::vec((0..CHUNKS_MAX as u32, any::<u32>()), 0..9);
    (step(), any::<bool>(), entries, array()).prop_map(|(steps, has_values, entries, digest)| {
        let content = if has_values { ChunkContent::Values } else { ChunkContent::State };
        let piece = |(chunk, updates)| ChunkEntry { chunk, updates: u64::from(updates).min(steps) as u32 };
        let entries: Vec<ChunkEntry> = entries.into_iter().map(piece).collect();
        ChunkBatch { steps: StepNumber(steps), content, entries, digest: ContentDigest(digest) }
    })
}

/// Messages on users' requests to a run in progress.
fn admin() -> impl Strategy<Value = AdminMessage> {
    let at = || 0..=u64::MAX >> 2;
    let rekey = (at(), array(), array()).prop_map(|(at, by, secret)| Rekey {
        at,
        by: PeerId(by),
        secret: Secret(secret),
    });
    prop_oneof![
        Just(AdminMessage::Retire),
        Just(AdminMessage::EndRun),
        expulsion().prop_map(AdminMessage::Expel),
        rekey.prop_map(AdminMessage::Rekey),
        at().prop_map(AdminMessage::Rekeyed),
    ]
}

/// Messages between branches that meet again.
fn merge_messages() -> impl Strategy<Value = MergeMessage> {
    let probe = (
        array(),
        digest(),
        step(),
        0..=SAMPLES_MAX,
        ancestors(),
        contact(),
        (prop::option::of(digest()), number(), number()),
    );
    let probe =
        probe.prop_map(|(run, view, steps, trained, ancestors, coordinator, (yields, question, answers))| {
            MergeProbe {
                run: RunId(run),
                view,
                steps: StepNumber(steps),
                trained,
                ancestors,
                coordinator,
                yields,
                question,
                answers,
            }
        });
    let donation = (contact(), chunks()).prop_map(|(contact, states)| SnapshotDonor { contact, states });
    let donors = prop::collection::vec(donation, 0..4);
    let asked = (array(), number());
    let offer = (digest(), step(), cursor_and_spans(), 0..=SAMPLES_MAX, ancestors(), donors, asked);
    let offer =
        offer.prop_map(|(view, steps, (cursor, _), trained, ancestors, donors, (coordinator, question))| {
            MergeOffer {
                view,
                steps: StepNumber(steps),
                cursor,
                trained,
                ancestors,
                donors,
                coordinator: PeerId(coordinator),
                question,
            }
        });
    let content = prop_oneof![Just(ChunkContent::Values), Just(ChunkContent::State)];
    let want = (digest(), step(), content, chunks()).prop_map(|(view, steps, content, chunks)| {
        WantSnapshot { view, steps: StepNumber(steps), content, chunks }
    });
    let ready = (digest(), digest(), step(), any::<u32>());
    let ready = ready.prop_map(|(recipients, view, steps, missing)| MergeReady {
        recipients,
        view,
        steps: StepNumber(steps),
        missing,
    });
    let words = (digest(), number(), any::<bool>(), prop::collection::vec(contact(), 0..4));
    let words = words.prop_map(|(view, question, is_merged, contacts)| MergeAccept {
        view,
        question,
        is_merged,
        contacts,
    });
    let snapshot_chunks = (digest(), chunk_batch()).prop_map(|(view, batch)| SnapshotChunks { view, batch });
    prop_oneof![
        probe.prop_map(MergeMessage::Probe),
        snapshot_chunks.prop_map(MergeMessage::SnapshotChunks),
        offer.prop_map(MergeMessage::Offer),
        want.prop_map(MergeMessage::WantSnapshot),
        ready.prop_map(MergeMessage::Ready),
        words.prop_map(MergeMessage::Accept),
    ]
}

/// Whether a message may have a payload.
pub(crate) fn may_carry(message: &Message) -> bool {
    matches!(
        message,
        Message::InView { message: TrainingMessage::Segment(_) | TrainingMessage::ChunkBatch(_), .. }
            | Message::Join(JoinMessage::Data(_))
            | Message::Merge(MergeMessage::SnapshotChunks(_))
    )
}
