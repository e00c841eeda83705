//! Tests of one member among a few: its answers to proposers, its own proposals, and what it learns of chosen views.

use std::sync::Arc;

use peergrad_protocol::agreement::Ballot;
use peergrad_protocol::cursor::DataCursor;
use peergrad_protocol::durable::{DurableRecord, RunDefinition};
use peergrad_protocol::manifest::Chunks;
use peergrad_protocol::message::{
    Accepted, AgreementMessage, Heartbeat, MemberReport, Message, Nack, Prepare, Propose, SentFrames,
};
use peergrad_protocol::placement::Replicas;
use peergrad_protocol::view::{BatchParts, Move, Moves, Resume, View, ViewChange};
use peergrad_protocol::wire::encode_record;
use peergrad_protocol::{StepNumber, ViewDigest, ViewNumber};

use super::*;
use crate::fixtures::{self, peer};
use crate::io::{PersistId, Reject};
use crate::membership::journal::Journal;
use crate::membership::view_change::ViewChangePlanner;
use crate::membership::{Assignments, GateStatus, Membership, MergeStatus};
use crate::node_report::Condition;
use crate::partition_policy::PartitionPolicy;
use crate::state::assignment::BatchAssignment;
use crate::state::round_size::RoundSize;
use crate::state::shard_map::{ShardMap, ShardingConfig};
use crate::state::shared_cache::SharedCache;

const NOW: Instant = Instant(0);
/// The step in progress.
const STEP: StepNumber = StepNumber(7);
/// The samples of a step.
const ROUND: RoundSize = fixtures::round_size(12);

fn view(peers: &[u8]) -> View {
    View { cursor: DataCursor { position: 84, ..DataCursor::default() }, ..fixtures::view(peers) }
}

fn ballot(attempt: u32, rank: u32) -> Ballot {
    Ballot { attempt, rank: Rank(rank) }
}

/// Peer 2 of 1, 2 and 3, with 1 and 3 linked, and the state of its training.
struct Bench {
    membership: Membership,
    shard_map: ShardMap,
    assignment: BatchAssignment,
    is_open: bool,
    is_held: bool,
    is_closing: bool,
    /// Until when this member is busy.
    busy_until: Instant,
    journal: Journal,
    out: Vec<Output>,
}

impl Bench {
    fn new() -> Self {
        Self::among(&[1, 2, 3])
    }

    /// The second of these peers, with all others linked.
    fn among(peers: &[u8]) -> Self {
        let view = Arc::new(view(peers));
        let digest = view.digest();
        let sharding = ShardingConfig {
            chunks: Chunks::of(160),
            replicas: Replicas::Number(2),
            has_state: true,
            segment_elements: 10,
            has_tables: false,
        };
        let me = view.members[1].clone();
        let definition = RunDefinition { specification: vec![], nonce: [0; 32] };
        let others = view.members.iter().map(|member| member.peer).filter(|peer| *peer != me.peer);
        let linked = others.collect();
        Self {
            membership: Membership::new(
                NOW,
                me,
                Arc::clone(&view),
                digest,
                linked,
                (SharedCache::default(), encode_record(&definition).into(), fixtures::rules()),
            ),
            assignment: BatchAssignment::next(&view.cursor, ROUND, 100, &view, STEP),
            shard_map: ShardMap::new(view, digest, sharding),
            is_open: true,
            is_held: false,
            is_closing: false,
            busy_until: NOW,
            journal: Journal::default(),
            out: vec![],
        }
    }

    fn ask<T>(
        &mut self,
        ask: impl FnOnce(&mut Membership, &TrainingStatus<'_>, &mut Journal, &mut Vec<Output>) -> T,
    ) -> T {
        let report = || MemberReport { complete: Some(STEP), ..MemberReport::default() };
        let status = TrainingStatus {
            tables: None,
            planner: ViewChangePlanner {
                shard_map: &self.shard_map,
                sample_count: 100,
                round_size: ROUND,
                epochs: 3,
                has_local_parameters: false,
                allows_forks: false,
            },
            report: &report,
            step: STEP,
            assignments: Assignments { current: &self.assignment, previous: None, next: None },
            gate: GateStatus { is_open: self.is_open, is_held: self.is_held, ..GateStatus::default() },
            has_parameters: true,
            computing: None,
            busy_until: self.busy_until,
            is_closing: self.is_closing,
            has_committed: true,
            merge: MergeStatus::default(),
        };
        ask(&mut self.membership, &status, &mut self.journal, &mut self.out)
    }

    fn prepare(
        &mut self,
        from: u8,
        ballot: Ballot,
        before: Option<u64>,
    ) -> Result<Vec<TrainingCommand>, Reject> {
        let prepare = Prepare { view: self.shard_map.digest, ballot, before: before.map(StepNumber) };
        self.ask(|membership, status, journal, out| {
            membership.on_prepare(NOW, peer(from), prepare, status, journal, out)
        })
    }

    fn propose(&mut self, from: u8, ballot: Ballot, change: ViewChange) -> Result<(), Reject> {
        let propose = Propose { ballot, change };
        self.ask(|membership, status, journal, out| {
            membership.on_propose(NOW, peer(from), propose, status, journal, out)
        })
    }

    fn persisted(&mut self, id: PersistId) {
        self.membership.persisted(self.journal.persisted(id), &mut self.out);
    }

    fn sent(&mut self) -> Vec<(u8, Message)> {
        let sent = |output| match output {
            Output::Send { to, frame } => Some((to.0[0], frame.decode().expect("a valid frame"))),
            _ => None,
        };
        self.out.drain(..).filter_map(sent).collect()
    }

    /// The record that is to be written, and the messages that are sent at once.
    fn written(&mut self) -> Written {
        let record = self.out.iter().find_map(|output| match output {
            Output::Persist { id, record } => {
                Some((*id, DurableRecord::from_bytes(&record.to_bytes()).expect("a record")))
            }
            _ => None,
        });
        (record, self.sent())
    }

    /// The change that removes peer 3.
    fn change(&self) -> ViewChange {
        ViewChange {
            parent: self.shard_map.digest,
            removed: vec![Rank(2)],
            added: vec![],
            capacities: vec![],
            speeds: vec![],
            lines: vec![],
            resume: Resume::at(STEP),
            cursor: DataCursor { position: 96, ..DataCursor::default() },
            moves: Moves::default(),
            expelled: vec![],
            quarantined: vec![],
            ancestors: vec![],
        }
    }
}

#[test]
fn a_promise_is_on_disk_before_it_is_sent_and_carries_a_report() {
    let mut bench = Bench::new();
    bench.membership.members.link_down(&peer(3));
    assert_eq!(bench.prepare(1, ballot(3, 0), None), Ok(vec![TrainingCommand::Freeze]));
    let (record, sent) = bench.written();
    let (id, record) = record.expect("a promise is written down");
    assert_eq!((id, sent), (PersistId(0), vec![]));
    assert_eq!((record.acceptor.promised(), &record.view), (Some(ballot(3, 0)), &*bench.shard_map.view));
    assert_eq!(bench.sent(), []);
    bench.persisted(id);
    let report = MemberReport { complete: Some(STEP), lost: vec![Rank(2)], ..MemberReport::default() };
    let promise = Promise { view: bench.shard_map.digest, ballot: ballot(3, 0), accepted: None, report };
    assert_eq!(bench.sent(), [(1, Message::Agreement(AgreementMessage::Promise(Box::new(promise))))]);
}

#[test]
fn a_promise_for_a_later_step_stops_training_only_before_that_step() {
    let mut bench = Bench::new();
    assert_eq!(bench.prepare(1, ballot(1, 0), Some(8)), Ok(vec![TrainingCommand::StopBefore(StepNumber(8))]));
    bench.out.clear();
    let nack = |promised| {
        let view = Bench::new().shard_map.digest;
        [(
            1,
            Message::Agreement(AgreementMessage::Nack(Nack {
                view,
                ballot: ballot(2, 0),
                promised,
                step: STEP,
            })),
        )]
    };
    // The step is in progress already, or past.
    for before in [7, 6, 0] {
        assert_eq!(bench.prepare(1, ballot(2, 0), Some(before)), Ok(vec![]));
        assert_eq!(bench.sent(), nack(None), "before step {before}");
    }
    bench.is_open = false;
    assert_eq!(bench.prepare(1, ballot(2, 0), Some(7)), Ok(vec![TrainingCommand::StopBefore(STEP)]));
    bench.out.clear();
    bench.is_closing = true;
    assert_eq!(bench.prepare(1, ballot(2, 0), Some(9)), Ok(vec![]));
    assert_eq!(bench.sent(), nack(None), "there is no step to come");
}

#[test]
fn a_promise_rejects_lower_ballots() {
    let mut bench = Bench::new();
    assert!(bench.prepare(1, ballot(5, 0), None).is_ok());
    bench.out.clear();
    assert_eq!(bench.prepare(3, ballot(4, 2), None), Ok(vec![]));
    let change = bench.change();
    assert_eq!(bench.propose(3, ballot(4, 2), change), Ok(()));
    let view = bench.shard_map.digest;
    let nack = Nack { view, ballot: ballot(4, 2), promised: Some(ballot(5, 0)), step: STEP };
    assert_eq!(
        bench.sent(),
        [
            (3, Message::Agreement(AgreementMessage::Nack(nack))),
            (3, Message::Agreement(AgreementMessage::Nack(nack)))
        ]
    );
}

#[test]
fn a_ballot_belongs_to_the_rank_that_it_names() {
    let mut bench = Bench::new();
    assert_eq!(bench.prepare(1, ballot(1, 2), None), Err(Reject::OutOfPlace));
    assert_eq!(bench.prepare(9, ballot(1, 0), None), Err(Reject::OutOfPlace));
    let change = bench.change();
    assert_eq!(bench.propose(1, ballot(1, 2), change), Err(Reject::OutOfPlace));
    assert!(bench.out.is_empty());
}

#[test]
fn an_acceptance_is_on_disk_before_it_is_sent_and_later_promises_report_it() {
    let mut bench = Bench::new();
    let (change, view) = (bench.change(), bench.shard_map.digest);
    assert_eq!(bench.propose(1, ballot(1, 0), change.clone()), Ok(()));
    let (record, sent) = bench.written();
    let (id, record) = record.expect("an acceptance is written down");
    assert_eq!((record.acceptor.accepted(), sent), (Some(&(ballot(1, 0), change.clone())), vec![]));
    // Another member asks before the disk has answered: the later record holds both promises.
    assert!(bench.prepare(3, ballot(2, 2), None).is_ok());
    bench.out.clear();
    bench.persisted(PersistId(id.0 + 1));
    let accepted = Message::Agreement(AgreementMessage::Accepted(Accepted { view, ballot: ballot(1, 0) }));
    let report = MemberReport { complete: Some(STEP), ..MemberReport::default() };
    let promise = Promise { view, ballot: ballot(2, 2), accepted: Some((ballot(1, 0), change)), report };
    assert_eq!(
        bench.sent(),
        [(1, accepted), (3, Message::Agreement(AgreementMessage::Promise(Box::new(promise))))]
    );
}

#[test]
fn a_change_that_cannot_be_the_next_view_of_this_run_is_rejected() {
    let mut bench = Bench::new();
    let change = bench.change();
    let moved = |chunk| Moves { list: vec![Move { chunk, from: vec![Rank(0)] }], rate: 1, restarted: vec![] };
    for odd in [
        ViewChange { removed: vec![Rank(3)], ..change.clone() },
        ViewChange { removed: vec![Rank(0), Rank(1), Rank(2)], ..change.clone() },
        // More samples than there are, and a chunk that this model does not have.
        ViewChange { cursor: DataCursor { position: 101, ..DataCursor::default() }, ..change.clone() },
        ViewChange { moves: moved(10), ..change.clone() },
    ] {
        assert_eq!(bench.propose(1, ballot(1, 0), odd.clone()), Err(Reject::OutOfPlace));
        let learned =
            bench.ask(|membership, status, journal, out| membership.on_learn(&odd, status, journal, out));
        assert_eq!(learned, Err(Reject::OutOfPlace));
    }
    assert!(bench.out.is_empty() && bench.membership.succession.next.is_none());
    let fitting = ViewChange { moves: moved(9), ..change };
    assert_eq!(bench.propose(1, ballot(1, 0), fitting), Ok(()));
}

#[test]
fn the_next_view_is_on_disk_before_it_is_entered() {
    let mut bench = Bench::new();
    let change = bench.change();
    for _ in 0..2 {
        let learned =
            bench.ask(|membership, status, journal, out| membership.on_learn(&change, status, journal, out));
        assert_eq!(learned, Ok(()));
    }
    let next = bench.shard_map.view.apply(bench.shard_map.digest, &change).unwrap();
    let (record, _) = bench.written();
    let (id, record) = record.expect("the view is written down");
    assert_eq!((record.view, record.acceptor.promised()), (next.clone(), None));
    assert!(bench.membership.next().is_none());
    bench.persisted(id);
    let (view, digest) = bench.membership.next().expect("it is on disk");
    assert_eq!((&**view, digest), (&next, next.digest()));
    // A member that still asks gets the chosen view.
    assert_eq!(bench.prepare(3, ballot(9, 2), None), Ok(vec![]));
    assert_eq!(bench.sent(), [(3, Message::Agreement(AgreementMessage::Install(next.clone())))]);
    bench.membership.advance(NOW);
    assert_eq!(bench.membership.members.place.view.number, ViewNumber(2));
    assert!(bench.prepare(3, ballot(9, 2), None).is_ok());
    assert_eq!(bench.sent(), [(3, Message::Agreement(AgreementMessage::Install(next)))]);
}

/// Members that do not know yet that the next view is without a leaver miss it. No member may enter the next view before its first step
/// only because of that.
#[test]
fn the_loss_of_a_member_that_the_next_view_removes_is_no_trouble() {
    let mut bench = Bench::new();
    bench.membership.departed(&peer(3), "stopped on request", &mut bench.out);
    let look = |bench: &mut Bench| bench.ask(|membership, status, _, out| membership.poll(NOW, status, out));
    look(&mut bench);
    assert!(bench.membership.is_troubled());
    let change = bench.change();
    let learned =
        bench.ask(|membership, status, journal, out| membership.on_learn(&change, status, journal, out));
    assert_eq!(learned, Ok(()));
    assert!(!bench.membership.is_troubled());
    assert_eq!(
        (look(&mut bench), bench.membership.is_troubled()),
        (vec![], false),
        "peer 3 is allowed to be gone"
    );
    bench.membership.members.link_down(&peer(1));
    look(&mut bench);
    assert!(bench.membership.is_troubled(), "peer 1 is not");
}

/// A member that has stopped for the next view may still have to send what others need in this one.
#[test]
fn a_member_that_waits_for_the_next_view_does_not_enter_it_early() {
    let mut bench = Bench::new();
    bench.is_open = false;
    bench.is_held = true;
    let change = bench.change();
    let learned =
        bench.ask(|membership, status, journal, out| membership.on_learn(&change, status, journal, out));
    assert_eq!(learned, Ok(()));
    let commands =
        bench.ask(|membership, status, _, out| membership.poll(NOW.after(PACING.collect_max), status, out));
    assert_eq!((commands, bench.membership.is_troubled()), (vec![], false));
}

#[test]
fn a_later_view_than_the_next_one_shows_that_this_member_was_excluded() {
    let mut bench = Bench::new();
    let next = bench.shard_map.view.apply(bench.shard_map.digest, &bench.change()).unwrap();
    let last = next.apply(next.digest(), &ViewChange { parent: next.digest(), ..bench.change() });
    assert!(last.is_err(), "rank 2 has gone already");
    let later = View { number: ViewNumber(3), parents: vec![next.digest()], ..next.clone() };
    assert!(!bench.membership.on_install(later, &mut bench.journal, &mut bench.out));
    assert!(
        bench.membership.on_install(view(&[1, 2, 3]), &mut bench.journal, &mut bench.out),
        "it is in that one"
    );
    assert!(bench.membership.succession.next.is_none());
    assert!(bench.membership.on_install(next, &mut bench.journal, &mut bench.out));
    assert!(bench.membership.succession.next.is_some());
}

#[test]
fn under_policy_winner_only_a_majority_can_exclude_a_member() {
    let without_me = |removed: Vec<Rank>| {
        let mut bench = Bench::among(&[1, 2, 3, 4]);
        bench.membership.members.policy = PartitionPolicy::Winner;
        let parts = vec![vec![]; 4 - removed.len()];
        let resume = Resume { batch: Some(BatchParts { epoch: 0, parts }), ..Resume::at(STEP) };
        let change = ViewChange { removed, resume, ..bench.change() };
        let next = bench.shard_map.view.apply(bench.shard_map.digest, &change).unwrap();
        assert_eq!(
            bench.ask(|membership, status, journal, out| membership.on_learn(&change, status, journal, out)),
            Ok(())
        );
        (bench.membership.members.is_minority_branch(&next), bench.membership.succession.next.is_some())
    };
    assert_eq!(without_me(vec![Rank(1)]), (false, true), "the three others");
    assert_eq!(without_me(vec![Rank(0), Rank(1)]), (true, false), "half of them");
    assert_eq!(without_me(vec![Rank(0), Rank(1), Rank(2)]), (true, false), "one that was sharding off");
    assert_eq!(without_me(vec![Rank(0), Rank(2), Rank(3)]), (false, true), "this one, which is in");
}

/// Its proposer can write to its disk, and too many others cannot.
#[test]
fn a_change_that_is_withdrawn_stops_nobody() {
    let mut bench = Bench::new();
    let view = bench.shard_map.digest;
    let commands = bench.prepare(1, ballot(2, 0), Some(9)).unwrap();
    assert_eq!(commands, [TrainingCommand::StopBefore(StepNumber(9))]);
    for (from, of) in
        [(3, (view, ballot(2, 0))), (1, (ViewDigest([9; 32]), ballot(2, 0))), (1, (view, ballot(1, 0)))]
    {
        assert_eq!(bench.membership.on_withdraw(peer(from), of), [], "{from} {of:?}");
    }
    for attempt in [2, 3] {
        let commands = bench.membership.on_withdraw(peer(1), (view, ballot(attempt, 0)));
        assert_eq!(
            commands,
            [TrainingCommand::Continue],
            "it names a later step only once its own disk works"
        );
    }
    bench.prepare(3, ballot(3, 2), Some(9)).unwrap();
    assert_eq!(
        bench.membership.on_withdraw(peer(1), (view, ballot(4, 0))),
        [],
        "another one has asked since"
    );
    let change = bench.change();
    bench.propose(3, ballot(3, 2), change).unwrap();
    assert_eq!(bench.membership.on_withdraw(peer(3), (view, ballot(3, 2))), [], "it may be chosen");
}

/// A member has refused, because the named step had begun there. Then so many disks fail that no change can be chosen.
#[test]
fn a_change_is_withdrawn_although_a_member_has_refused_it_before_too_many_disks_failed() {
    let mut bench = Bench::among(&[1, 2, 3, 4, 5]);
    bench.membership.members.set_disk_fails(peer(1), true);
    bench.membership.members.on_retire(peer(5));
    let timing = &mut bench.membership.members.detection.step_timing;
    for (milliseconds, step) in [(0, 5), (150, 6)] {
        timing.note(NOW.after(Duration::from_millis(milliseconds)), StepNumber(step));
    }
    let look = |bench: &mut Bench| {
        bench.ask(|membership, status, _, out| membership.poll(NOW, status, out));
        bench.sent()
    };
    let asked = look(&mut bench);
    let [(2, Message::Agreement(AgreementMessage::Prepare(prepare)))] = asked[..] else {
        panic!("it asks itself first: {asked:?}")
    };
    let Prepare { view, ballot: asked_under, .. } = prepare;
    bench.answer(NOW, 2..=2, &[]);
    bench.sent();
    let nack = Nack { view, ballot: asked_under, promised: None, step: STEP };
    bench.membership.on_nack(NOW, &nack);
    (3..=4).for_each(|byte| {
        bench.membership.members.set_disk_fails(peer(byte), true);
    });
    let sent = look(&mut bench);
    let withdrawn = Message::Agreement(AgreementMessage::Withdraw { view, ballot: asked_under });
    assert_eq!(sent, [1, 2, 3, 4, 5].map(|byte| (byte, withdrawn.clone())));
    assert_eq!(look(&mut bench), [], "once");
}

/// A change that others have accepted takes precedence over the proposer's own.
#[test]
fn a_proposer_repeats_a_change_that_was_already_accepted() {
    let mut bench = Bench::new();
    bench.membership.members.link_down(&peer(3));
    let commands =
        bench.ask(|membership, status, _, out| membership.poll(NOW.after(PACING.stagger), status, out));
    assert_eq!(commands, []);
    let later = NOW.after(PACING.stagger * 2);
    bench.ask(|membership, status, _, out| membership.poll(later, status, out));
    let view = bench.shard_map.digest;
    let prepare =
        Message::Agreement(AgreementMessage::Prepare(Prepare { view, ballot: ballot(1, 1), before: None }));
    assert_eq!(bench.sent(), [(2, prepare.clone())], "itself first");
    let theirs = ViewChange { removed: vec![Rank(0)], ..bench.change() };
    for (from, accepted) in [(2, None), (1, Some((ballot(1, 0), theirs.clone())))] {
        let report = MemberReport { complete: Some(STEP), ..MemberReport::default() };
        let promise = Promise { view, ballot: ballot(1, 1), accepted, report };
        bench
            .ask(|membership, status, _, out| membership.on_promise(later, peer(from), promise, status, out));
    }
    let mut sent = bench.sent().into_iter();
    assert_eq!(sent.next(), Some((1, prepare)), "the others once its own promise is on disk");
    let proposed = sent.next().expect("a quorum has promised");
    assert_eq!(
        proposed,
        (
            1,
            Message::Agreement(AgreementMessage::Propose(Propose {
                ballot: ballot(1, 1),
                change: theirs.clone()
            }))
        )
    );
    // This member's acceptance and one more: then the change is chosen, and sent to all.
    bench.membership.on_accepted(later, peer(2), Accepted { view, ballot: ballot(1, 1) }, &mut bench.out);
    assert_eq!(bench.sent(), []);
    bench.membership.on_accepted(later, peer(1), Accepted { view, ballot: ballot(1, 1) }, &mut bench.out);
    assert_eq!(bench.sent()[0], (1, Message::Agreement(AgreementMessage::Learn(theirs))));
}

/// Forty members, the first of which has died, and the last of which has never been linked.
fn proposer_of_forty() -> (Bench, Instant) {
    let mut bench = Bench::among(&(1..=40).collect::<Vec<u8>>());
    let view = Arc::clone(&bench.membership.members.place.view);
    bench.membership.members.links.down(peer(40), &view);
    bench.membership.members.link_down(&peer(1));
    bench.ask(|membership, status, _, out| membership.poll(NOW, status, out));
    let asked = |bench: &mut Bench| bench.sent().into_iter().map(|(to, _)| to).collect::<Vec<u8>>();
    assert_eq!(asked(&mut bench), [2]);
    bench.answer(NOW, 2..=2, &[0]);
    assert_eq!(asked(&mut bench), (3..=39).collect::<Vec<u8>>());
    (bench, NOW)
}

impl Bench {
    /// Members answer this one's attempt, and report that they cannot reach the members at the ranks `lost`.
    fn answer(&mut self, now: Instant, from: impl Iterator<Item = u8>, lost: &[u32]) {
        let lost: Vec<Rank> = lost.iter().map(|rank| Rank(*rank)).collect();
        for byte in from {
            let report = MemberReport { complete: Some(STEP), lost: lost.clone(), ..MemberReport::default() };
            let promise =
                Promise { view: self.shard_map.digest, ballot: ballot(1, 1), accepted: None, report };
            self.ask(|membership, status, _, out| {
                membership.on_promise(now, peer(byte), promise, status, out)
            });
        }
    }

    /// The members that it proposes to leave out; `None` if it has proposed nothing by then.
    fn proposed(&mut self, at: Instant) -> Option<Vec<Rank>> {
        self.ask(|membership, status, _, out| membership.poll(at, status, out));
        self.sent().into_iter().find_map(|(_, message)| match message {
            Message::Agreement(AgreementMessage::Propose(propose)) => Some(propose.change.removed),
            _ => None,
        })
    }
}

#[test]
fn a_proposer_waits_less_for_members_without_a_link() {
    let (mut bench, began) = proposer_of_forty();
    bench.answer(began, 2..=38, &[0]);
    let (links_may_come, answers_may_come) = (began.after(RECONNECT_GRACE), began.after(PACING.collect_max));
    assert_eq!(bench.proposed(links_may_come), None, "the last but one is linked");
    bench.answer(links_may_come, 39..=39, &[0]);
    assert_eq!(bench.proposed(links_may_come), Some(vec![Rank(0), Rank(39)]));

    let (mut bench, began) = proposer_of_forty();
    bench.answer(began, 2..=38, &[0]);
    assert_eq!(bench.proposed(answers_may_come), Some(vec![Rank(0), Rank(38), Rank(39)]));
    assert_eq!(began, NOW);
}

/// In a large view each member watches a few others: a report counts if its sender watches the lost member.
#[test]
fn a_proposer_waits_less_for_members_that_others_have_lost() {
    let (mut bench, began) = proposer_of_forty();
    bench.answer(began, 2..=37, &[0]);
    bench.answer(began, 38..=38, &[0, 38]);
    assert_eq!(bench.proposed(began), None, "its own answer may be on its way");
    assert_eq!(bench.proposed(began.after(RECONNECT_GRACE)), Some(vec![Rank(0), Rank(38), Rank(39)]));
}

#[test]
fn members_leave_a_proposer_time_to_finish_unless_its_link_is_lost() {
    let mut bench = Bench::among(&(1..=40).collect::<Vec<u8>>());
    bench.membership.members.link_down(&peer(9));
    assert!(bench.prepare(1, ballot(3, 0), None).is_ok());
    let attempts = |bench: &mut Bench, at| {
        bench.ask(|membership, status, _, out| membership.poll(at, status, out));
        bench
            .sent()
            .iter()
            .any(|(_, message)| matches!(message, Message::Agreement(AgreementMessage::Prepare(_))))
    };
    let collected = NOW.after(PACING.collect_max + HEARTBEAT_INTERVAL_OF_MANY);
    assert!(!attempts(&mut bench, collected));
    bench.membership.members.link_down(&peer(1));
    assert!(attempts(&mut bench, collected), "the first is gone, and this one is the second");
}

impl Bench {
    /// Peer `from` says that it computes at the step in progress, and is busy for so many milliseconds more.
    fn computes(&mut self, now: Instant, from: u8, busy_milliseconds: u32) {
        let heartbeat = Heartbeat {
            view: self.shard_map.digest,
            view_number: self.shard_map.view.number,
            complete: STEP,
            computing: Some(STEP),
            sent: SentFrames::default(),
            heard: SentFrames::default(),
            is_uplink_busy: false,
            window_bytes: 0,
            disk_fails: false,
            busy_milliseconds,
        };
        self.membership.on_heartbeat(now, peer(from), heartbeat, &mut self.out);
    }

    /// Whether peer 3, which computes for so many seconds since the start, hangs or is busy by then. It was busy until `busy_until`, or has
    /// said then that it is not busy any more.
    fn condition(&mut self, milliseconds: u64, busy_until: u64, word: BusyWord) -> Condition {
        let now = NOW.after(Duration::from_millis(milliseconds));
        let left = busy_until.saturating_sub(milliseconds) as u32;
        self.computes(now, 3, if left > 0 && word == BusyWord::TakenBack { 3_600_000 } else { left });
        self.ask(|membership, status, _, _| {
            assert_eq!(membership.members.waits_for_busy(now), left > 0);
            membership.report(now, status).health[2].condition
        })
    }
}

/// How the time ends for which a member is busy.
#[derive(Clone, Copy, PartialEq)]
enum BusyWord {
    Over,
    TakenBack,
}

#[test]
fn a_member_that_computes_for_too_long_hangs_but_not_while_it_is_busy() {
    for (busy_until, word) in [(0, BusyWord::Over), (60_100, BusyWord::Over), (30_000, BusyWord::TakenBack)] {
        let mut bench = Bench::new();
        let conditions = (0..=90_000).step_by(250).map(|at| (at, bench.condition(at, busy_until, word)));
        for (at, condition) in conditions {
            let expected = match at {
                at if at < busy_until => Condition::Busy,
                at if at <= busy_until + 10_000 => Condition::Working,
                _ => Condition::Hanging,
            };
            assert_eq!(condition, expected, "after {at} ms, busy until {busy_until} ms");
        }
    }
}

#[test]
fn a_heartbeat_that_is_late_does_not_make_a_member_hang() {
    let mut bench = Bench::new();
    bench.computes(NOW, 3, 0);
    let hanging = |bench: &mut Bench, seconds| {
        let now = NOW.after(Duration::from_secs(seconds));
        bench.ask(|membership, status, _, _| membership.members.hanging(now, status))
    };
    assert_eq!(hanging(&mut bench, 11), [], "it may have ended that step since");
    bench.computes(NOW.after(Duration::from_secs(11)), 3, 0);
    assert_eq!(hanging(&mut bench, 11), [Rank(2)]);
}

/// In a large view each member watches a few others, but all wait for one that is busy.
#[test]
fn all_members_of_a_large_view_learn_who_is_busy() {
    let at = |seconds| NOW.after(Duration::from_secs(seconds));
    let mut bench = Bench::among(&(1..=40).collect::<Vec<u8>>());
    let receivers = |bench: &mut Bench, seconds| {
        bench.membership.heartbeat_is_due(at(seconds));
        bench.ask(|membership, status, _, out| membership.tick(at(seconds), status, out));
        let (heartbeat, receivers) = bench.membership.members.take_heartbeat().expect("one is due");
        (heartbeat.busy_milliseconds, receivers.len())
    };
    assert_eq!(receivers(&mut bench, 1), (0, 4));
    bench.busy_until = at(20);
    assert_eq!(
        [2, 4, 5].map(|seconds| receivers(&mut bench, seconds)),
        [(18_000, 39), (16_000, 39), (15_000, 4)]
    );
    bench.busy_until = at(6);
    assert_eq!([6, 9].map(|seconds| receivers(&mut bench, seconds)), [(0, 39), (0, 4)]);

    // Peer 20 is no neighbor.
    let stalls = |bench: &mut Bench, seconds| {
        bench.ask(|membership, status, _, out| {
            membership.poll(at(seconds), status, out);
            membership.members.is_stalled(at(seconds), status)
        })
    };
    let mut bench = Bench::among(&(1..=40).collect::<Vec<u8>>());
    stalls(&mut bench, 0);
    bench.computes(at(1), 20, 30_000);
    let seconds: Vec<u64> = (1..60).filter(|seconds| stalls(&mut bench, *seconds)).collect();
    assert_eq!(seconds.first(), Some(&41), "ten seconds after the last look at which it was busy");
}

/// The heartbeat interval of a view that is so large that each member watches a few.
const HEARTBEAT_INTERVAL_OF_MANY: Duration = Duration::from_secs(1);

/// A record to be written, and the messages sent with their receivers.
type Written = (Option<(PersistId, DurableRecord)>, Vec<(u8, Message)>);
