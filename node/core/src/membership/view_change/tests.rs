//! Cases of the rules, one by one, and then any reports that members can give of the same run.

use std::collections::BTreeMap;
use std::sync::Arc;

use peergrad_protocol::PeerId;
use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::cursor::DataCursor;
use peergrad_protocol::limits::REPLICAS_MAX;
use peergrad_protocol::manifest::Chunks;
use peergrad_protocol::message::{MemberReport, PartialStep, SampleStats};
use peergrad_protocol::placement::Replicas;
use peergrad_protocol::view::{Donor, Recovery, View};

use super::*;
use crate::fixtures::{member, round_size, view};
use crate::state::shard_map::ShardingConfig;

mod any_reports;
mod merging;
mod moved;
mod restarted;

const CHUNKS: usize = 40;
const SAMPLES: u64 = 100;
const BATCH: u64 = 12;
const ROUND: RoundSize = round_size(BATCH);
const EPOCHS: u64 = 3;
const STATS: SampleStats = SampleStats { samples: BATCH, loss: 3.0 };
/// The step in progress of most cases.
const STEP: StepNumber = StepNumber(7);

fn sharding(replicas: usize, has_state: bool) -> ShardingConfig {
    ShardingConfig { replicas: Replicas::Number(replicas), ..all(has_state) }
}

/// Every member stores every chunk.
fn all(has_state: bool) -> ShardingConfig {
    ShardingConfig {
        chunks: Chunks::of(16 * CHUNKS),
        replicas: Replicas::All,
        has_state,
        segment_elements: 16,
        has_tables: false,
    }
}

/// A view of these peers that has begun with `step`, to which those in `newcomers` are new.
fn later_view(peers: &[u8], step: StepNumber, newcomers: &[u32]) -> View {
    let newcomers = newcomers.iter().copied().map(Rank).collect();
    View {
        parents: vec![view(peers).digest()],
        recovery: Recovery::Resume(Resume { newcomers, ..Resume::at(step) }),
        ..view(peers)
    }
}

fn shard_map(view: View, sharding: ShardingConfig) -> ShardMap {
    let digest = view.digest();
    ShardMap::new(Arc::new(view), digest, sharding)
}

fn planner(shard_map: &ShardMap) -> ViewChangePlanner<'_> {
    ViewChangePlanner {
        shard_map,
        sample_count: SAMPLES,
        round_size: ROUND,
        epochs: EPOCHS,
        has_local_parameters: false,
        allows_forks: false,
    }
}

/// The assignment of `step` in a view that began with the run.
fn assignment(view: &View, step: StepNumber) -> BatchAssignment {
    let first = BatchAssignment::next(&DataCursor::default(), ROUND, SAMPLES, view, StepNumber(0));
    (1..=step.0).fold(first, |assignment, step| {
        BatchAssignment::next(&assignment.after, ROUND, SAMPLES, view, StepNumber(step))
    })
}

/// The chunks whose state a member stores in `step`.
fn kept(shard_map: &ShardMap, rank: u32, step: StepNumber) -> ChunkSet {
    let placement = shard_map.target.after(&shard_map.view.moves, shard_map.moved(step));
    (0..CHUNKS).filter(|chunk| placement.replica_holders(*chunk).contains(&Rank(rank))).collect()
}

/// A member in the middle of [`STEP`], which holds nothing of it yet.
fn inside(shard_map: &ShardMap, rank: u32) -> MemberReport {
    MemberReport {
        complete: Some(STEP),
        states: kept(shard_map, rank, STEP),
        next: Some(PartialStep::default()),
        ..MemberReport::default()
    }
}

/// A member that has completed [`STEP`].
fn ahead(shard_map: &ShardMap, rank: u32) -> MemberReport {
    let states = kept(shard_map, rank, STEP);
    MemberReport {
        complete: Some(STEP.next()),
        states_before: Some(states.clone()),
        states,
        stats: Some(STATS),
        ..MemberReport::default()
    }
}

fn reports(list: impl IntoIterator<Item = (u32, MemberReport)>) -> BTreeMap<Rank, MemberReport> {
    list.into_iter().map(|(rank, report)| (Rank(rank), report)).collect()
}

/// The change that a proposer computes from the reports; members that have not reported are gone.
fn after_loss(shard_map: &ShardMap, reports: &BTreeMap<Rank, MemberReport>) -> ViewChange {
    let kept: Vec<Rank> = reports.keys().copied().collect();
    // The proposer is at the step of the slowest member.
    let at = reports.values().filter_map(|report| report.complete).min().expect("somebody has parameters");
    let assignment = assignment(&shard_map.view, at);
    let assignment_of = |step| (step == at).then_some(&assignment);
    let change =
        planner(shard_map).after_loss(&kept, reports, assignment_of).expect("somebody has parameters");
    let next = shard_map.view.apply(shard_map.digest, &change);
    assert!(next.is_ok_and(|next| planner(shard_map).fits(&next)), "a record that is valid: {change:?}");
    change
}

/// The holders of each chunk's state at the start of the view that follows by `change`, by new ranks.
fn state_holders(shard_map: &ShardMap, change: &ViewChange) -> Vec<Vec<Rank>> {
    let next = shard_map.view.apply(shard_map.digest, change).expect("a valid change");
    let digest = next.digest();
    let next = ShardMap::new(Arc::new(next), digest, shard_map.sharding);
    let placement = next.target.after(&next.view.moves, 0);
    (0..CHUNKS).map(|chunk| placement.replica_holders(chunk).to_vec()).collect()
}

/// The chunks that this member owns; with `is_any`, also those that it replicates.
fn chunks_of(shard_map: &ShardMap, rank: u32, is_any: bool) -> Vec<usize> {
    let holders = |chunk: usize| shard_map.target.replica_holders(chunk);
    let is_theirs = |chunk: &usize| {
        let place = holders(*chunk).iter().position(|holder| *holder == Rank(rank));
        place.is_some_and(|place| is_any || place == 0)
    };
    (0..CHUNKS).filter(is_theirs).collect()
}

// After a loss: where training resumes.

#[test]
fn a_step_that_no_member_has_completed_restarts() {
    let shard_map = shard_map(view(&[1, 3, 5]), sharding(2, true));
    let change = after_loss(&shard_map, &reports([0, 2].map(|rank| (rank, inside(&shard_map, rank)))));
    assert_eq!((change.resume.step, &change.resume.forward), (STEP, &None));
    assert_eq!((change.removed, change.resume.newcomers), (vec![Rank(1)], vec![]));
    assert!(change.moves.restarted.is_empty(), "one copy was left of everything");
}

#[test]
fn training_continues_after_a_step_that_all_remaining_members_completed() {
    let shard_map = shard_map(view(&[1, 3, 5]), sharding(2, true));
    let both = reports([0, 2].map(|rank| (rank, ahead(&shard_map, rank))));
    let change = after_loss(&shard_map, &both);
    assert_eq!((change.resume.step, change.resume.forward), (STEP.next(), None));
}

#[test]
fn a_step_that_one_member_has_completed_is_rolled_forward_from_it() {
    let shard_map = shard_map(view(&[1, 3, 5]), sharding(3, true));
    let mut slow = inside(&shard_map, 0);
    slow.next = Some(PartialStep { values: (0..10).collect(), ..PartialStep::default() });
    let change = after_loss(&shard_map, &reports([(0, slow), (2, ahead(&shard_map, 2))]));
    assert_eq!(change.resume.step, STEP.next());
    let forward = change.resume.forward.expect("all of it is there");
    assert_eq!(forward.stats, STATS);
    // Rank 2 is rank 1 now, and rank 0 has the first ten chunks itself.
    assert_eq!(forward.donors, [Donor { first: 10, end: CHUNKS as u32, rank: Rank(1) }]);
}

/// Members with local parameters at different steps; the proposer is at the first of these steps.
fn after_loss_adrift(steps: [u64; 2]) -> ViewChange {
    let shard_map = shard_map(view(&[1, 3, 5]), sharding(1, false));
    let at = |steps| MemberReport {
        complete: Some(StepNumber(steps)),
        stats: Some(STATS),
        ..MemberReport::default()
    };
    let reports = reports([(0, at(steps[0])), (2, at(steps[1]))]);
    let first = StepNumber(steps[0]);
    let assignment = assignment(&shard_map.view, first);
    let planner = ViewChangePlanner { has_local_parameters: true, ..planner(&shard_map) };
    let change =
        planner.after_loss(&[Rank(0), Rank(2)], &reports, |step| (step == first).then_some(&assignment));
    change.expect("both have parameters")
}

/// Nine steps make an epoch, and three epochs the run: steps 0 to 26.
#[test]
fn with_local_parameters_all_continue_from_the_furthest_member() {
    let change = after_loss_adrift([7, 9]);
    assert_eq!((change.resume.step, &change.resume.forward), (StepNumber(9), &None));
    let batch = change.resume.batch.expect("the run goes on");
    assert_eq!(
        (batch.epoch, batch.parts.len()),
        (1, 2),
        "the proposer, behind by two, assigns the batch nevertheless"
    );
    assert_eq!(after_loss_adrift([9, 9]).resume.step, StepNumber(9));
}

#[test]
fn with_local_parameters_the_mean_after_the_last_step_is_rolled_forward() {
    let change = after_loss_adrift([26, 27]);
    assert_eq!((change.resume.step, &change.resume.batch), (StepNumber(27), &None));
    let forward = change.resume.forward.expect("one of them holds the mean");
    assert_eq!(forward.donors, [Donor { first: 0, end: CHUNKS as u32, rank: Rank(1) }]);
    assert_eq!(after_loss_adrift([27, 27]).resume.forward, None, "both hold it");
}

/// No member has completed the step, but together they hold it.
#[test]
fn a_step_that_members_hold_only_together_is_rolled_forward() {
    let shard_map = shard_map(view(&[1, 3, 5]), sharding(3, true));
    let half = |rank: u32, values: std::ops::Range<usize>, stats| {
        let next = PartialStep { values: values.collect(), states: ChunkSet::all(CHUNKS), stats };
        (rank, MemberReport { next: Some(next), ..inside(&shard_map, rank) })
    };
    let whole = reports([half(0, 0..25, None), half(2, 20..CHUNKS, Some(STATS))]);
    let forward = after_loss(&shard_map, &whole).resume.forward.expect("together they hold it");
    assert_eq!(
        forward.donors,
        [Donor { first: 0, end: 20, rank: Rank(0) }, Donor { first: 25, end: CHUNKS as u32, rank: Rank(1) }]
    );
    // One chunk less, or no member that knows the statistics of the sums.
    for lacking in [
        [half(0, 0..25, None), half(2, 26..CHUNKS, Some(STATS))],
        [half(0, 0..25, None), half(2, 20..CHUNKS, None)],
    ] {
        let change = after_loss(&shard_map, &reports(lacking));
        assert_eq!((change.resume.step, change.resume.forward), (STEP, None));
    }
}

/// The owner has sent its new values and died before its replica had the sums.
#[test]
fn a_step_is_undone_if_the_new_state_of_a_chunk_is_lost_with_its_owner() {
    let shard_map = shard_map(view(&[1, 3, 5]), sharding(2, true));
    let lost = |rank: u32, states: ChunkSet| {
        let next = PartialStep { values: ChunkSet::all(CHUNKS), states, stats: Some(STATS) };
        (rank, MemberReport { next: Some(next), ..inside(&shard_map, rank) })
    };
    let updated = |rank| kept(&shard_map, rank, STEP);
    let change = after_loss(&shard_map, &reports([lost(0, updated(0)), lost(2, updated(2))]));
    assert!(change.resume.forward.is_some(), "replicas and owners together have it all");
    // Rank 2 has updated its own chunks only, and not the replicas of rank 1's.
    let own: ChunkSet = chunks_of(&shard_map, 2, false).into_iter().collect();
    let change = after_loss(&shard_map, &reports([lost(0, updated(0)), lost(2, own)]));
    assert_eq!((change.resume.step, change.resume.forward), (STEP, None));
    assert!(change.moves.restarted.is_empty(), "the old state is still there");
}

/// Without replicas, the state is lost with its owner in any case: that is no reason to undo the step.
#[test]
fn state_that_is_lost_in_any_case_does_not_undo_a_step() {
    let shard_map = shard_map(view(&[1, 3, 5]), sharding(1, true));
    let change = after_loss(&shard_map, &reports([0, 2].map(|rank| (rank, ahead(&shard_map, rank)))));
    assert_eq!((change.resume.step, &change.resume.forward), (STEP.next(), &None));
    let both = reports([(0, inside(&shard_map, 0)), (2, ahead(&shard_map, 2))]);
    let mut whole = both;
    let updated = PartialStep { states: kept(&shard_map, 0, STEP), ..PartialStep::default() };
    whole.get_mut(&Rank(0)).expect("it has reported").next = Some(updated);
    let change = after_loss(&shard_map, &whole);
    assert!(change.resume.forward.is_some());
    let lost: Vec<u32> = chunks_of(&shard_map, 1, false).iter().map(|chunk| *chunk as u32).collect();
    assert_eq!(change.moves.restarted, lost);
}

#[test]
fn a_stateless_rule_is_rolled_forward_from_values_alone() {
    let shard_map = shard_map(view(&[1, 3, 5]), sharding(2, false));
    let empty = |report: MemberReport| MemberReport { states: ChunkSet::default(), ..report };
    let both = reports([(0, empty(inside(&shard_map, 0))), (2, empty(ahead(&shard_map, 2)))]);
    let change = after_loss(&shard_map, &both);
    assert!(change.resume.forward.is_some());
    assert_eq!((change.moves.restarted.len(), change.moves.list.len()), (0, 0));
}

#[test]
fn there_is_no_next_view_if_no_member_has_parameters() {
    let shard_map = shard_map(later_view(&[1, 3], STEP, &[1]), sharding(2, true));
    let assignment = assignment(&shard_map.view, STEP);
    let reports = reports([(1, MemberReport::default())]);
    assert_eq!(planner(&shard_map).after_loss(&[Rank(1)], &reports, |_| Some(&assignment)), None);
}

// After a loss: the holders.

#[test]
fn replica_holders_become_owners_at_once_and_keep_their_chunks() {
    let shard_map = shard_map(view(&[1, 3, 5, 7]), sharding(2, true));
    let rest = [0, 2, 3];
    let change = after_loss(&shard_map, &reports(rest.map(|rank| (rank, inside(&shard_map, rank)))));
    for (chunk, holders) in state_holders(&shard_map, &change).iter().enumerate() {
        let before = shard_map.target.replica_holders(chunk).iter().filter(|rank| **rank != Rank(1));
        let before: Vec<Rank> =
            before.map(|rank| if *rank > Rank(1) { Rank(rank.0 - 1) } else { *rank }).collect();
        assert_eq!(*holders, before, "chunk {chunk}");
    }
    // Chunks with a single holder move first.
    let counts: Vec<usize> = change.moves.list.iter().map(|moved| moved.from.len()).collect();
    assert!(counts.is_sorted() && counts.contains(&1), "{counts:?}");
    assert_eq!(change.moves.rate, 1);
}

/// If any two of four members are lost at once, the other two have everything, and own it at once.
#[test]
fn with_replicas_everywhere_two_losses_restart_no_chunk() {
    let shard_map = shard_map(view(&[1, 3, 5, 7]), all(true));
    for (one, other) in (0..4).flat_map(|one| (one + 1..4).map(move |other| (one, other))) {
        let rest = (0..4).filter(|rank| *rank != one && *rank != other);
        let change = after_loss(&shard_map, &reports(rest.map(|rank| (rank, inside(&shard_map, rank)))));
        assert!(change.moves.restarted.is_empty(), "{one} and {other} are lost");
        assert!(state_holders(&shard_map, &change).iter().all(|holders| holders.len() == 2));
        // Nothing has to travel, so the very first step is fully replicated.
        let next = shard_map.view.apply(shard_map.digest, &change).expect("a valid change");
        let digest = next.digest();
        assert!(ShardMap::new(Arc::new(next), digest, shard_map.sharding).shards(0).is_fully_replicated);
    }
}

/// Sums are not new values: a member that has gathered them all, and has not updated, has no part of the step's result.
#[test]
fn a_step_of_gathered_sums_rolls_forward_only_if_a_member_completed_it() {
    let shard_map = shard_map(view(&[1, 3, 5]), all(true));
    let gathered = |rank: u32| {
        let next = PartialStep { stats: Some(STATS), ..PartialStep::default() };
        (rank, MemberReport { next: Some(next), ..inside(&shard_map, rank) })
    };
    let change = after_loss(&shard_map, &reports([gathered(0), gathered(2)]));
    assert_eq!((change.resume.step, &change.resume.forward), (STEP, &None));
    assert!(change.moves.restarted.is_empty());

    let change = after_loss(&shard_map, &reports([gathered(0), (2, ahead(&shard_map, 2))]));
    let donors = change.resume.forward.as_ref().map(|forward| &forward.donors[..]);
    assert_eq!(donors, Some(&[Donor { first: 0, end: CHUNKS as u32, rank: Rank(1) }][..]));
    // The other member gets the values from this one, and the state by moves.
    assert_eq!((change.moves.list.len(), change.moves.restarted.len()), (CHUNKS, 0));
    assert!(state_holders(&shard_map, &change).iter().all(|holders| *holders == [Rank(1)]));
}

/// A member that offers to own nothing stores replicas, and owns only what no other member holds.
#[test]
fn a_member_that_owns_nothing_stores_replicas_of_all_chunks() {
    let mut view = view(&[1, 3, 5]);
    view.members[0].capacity = 0;
    let three = shard_map(view, all(true));
    assert!((0..CHUNKS).all(|chunk| three.target.replica_holders(chunk)[2] == Rank(0)));
    // One of the owners is lost; the other one owns everything, and has all of it.
    let change = after_loss(&three, &reports([0, 2].map(|rank| (rank, inside(&three, rank)))));
    assert!(state_holders(&three, &change).iter().all(|holders| *holders == [Rank(1), Rank(0)]));
    assert!(change.moves.list.is_empty() && change.capacities.is_empty());
    // The other owner does not have the state of the chunks in `awaited` yet: until it has, they stay at their holders.
    let awaited = [3, 4];
    let mut late = inside(&three, 2);
    late.states = (0..CHUNKS).filter(|chunk| !awaited.contains(chunk)).collect();
    let change = after_loss(&three, &reports([(0, inside(&three, 0)), (2, late)]));
    for (chunk, holders) in state_holders(&three, &change).iter().enumerate() {
        let expected = if awaited.contains(&chunk) { &[Rank(0)][..] } else { &[Rank(1), Rank(0)] };
        assert_eq!(holders, expected, "chunk {chunk}");
    }
    assert!(change.moves.restarted.is_empty());
}

#[test]
fn with_replicas_everywhere_the_holders_of_a_chunk_are_limited() {
    let peers: Vec<u8> = (1..=REPLICAS_MAX as u8 + 4).collect();
    let shard_map = shard_map(view(&peers), all(true));
    let rest = 1..peers.len() as u32;
    let change = after_loss(&shard_map, &reports(rest.map(|rank| (rank, ahead(&shard_map, rank)))));
    let counts: Vec<usize> = state_holders(&shard_map, &change).iter().map(Vec::len).collect();
    assert!(counts.iter().all(|count| [REPLICAS_MAX, REPLICAS_MAX - 1].contains(count)), "{counts:?}");
}

/// A chunk moved between the two reports: an old holder that still has the state is as good as a new one.
#[test]
fn a_member_that_reports_the_state_of_a_chunk_becomes_its_holder() {
    let shard_map = shard_map(view(&[1, 3, 5, 7]), sharding(2, true));
    let chunk = chunks_of(&shard_map, 1, true)[0];
    let stranger =
        (0..4).find(|rank| !shard_map.target.replica_holders(chunk).contains(&Rank(*rank))).unwrap();
    let mut all = reports([0, 1, 2, 3].map(|rank| (rank, inside(&shard_map, rank))));
    all.get_mut(&Rank(stranger)).unwrap().states.insert(chunk);
    for holder in shard_map.target.replica_holders(chunk) {
        all.remove(holder);
    }
    let change = after_loss(&shard_map, &all);
    assert!(!change.moves.restarted.contains(&(chunk as u32)));
    let new_rank = all.keys().position(|rank| *rank == Rank(stranger)).unwrap();
    assert_eq!(state_holders(&shard_map, &change)[chunk], [Rank::from_index(new_rank)]);
}

/// A newcomer takes its first step without parameters: chunks that it got there would never be updated.
#[test]
fn a_chunk_whose_holders_left_does_not_fall_to_a_newcomer() {
    for (replicas, has_state) in [(1, true), (2, true), (2, false)] {
        // The newcomer is the first in order.
        let shard_map = shard_map(later_view(&[1, 3, 5], STEP, &[0]), sharding(replicas, has_state));
        let silent = MemberReport { complete: None, ..MemberReport::default() };
        let change = after_loss(&shard_map, &reports([(0, silent), (2, inside(&shard_map, 2))]));
        assert_eq!((change.resume.step, &change.resume.newcomers[..]), (STEP, &[Rank(0)][..]));
        let holders = state_holders(&shard_map, &change);
        assert!(holders.iter().all(|holders| *holders == [Rank(1)]), "{holders:?}");
        assert_eq!(change.moves.restarted.is_empty(), !has_state);
    }
}

#[test]
fn a_member_owns_the_chunks_even_if_none_offered_capacity() {
    let mut view = view(&[1, 3, 5]);
    view.members[0].capacity = 0;
    view.members[2].capacity = 0;
    let shard_map = shard_map(view, sharding(2, true));
    let change = after_loss(&shard_map, &reports([0, 2].map(|rank| (rank, inside(&shard_map, rank)))));
    assert_eq!(change.capacities, [(Rank(0), 1)]);
    assert_eq!(change.moves.restarted.len(), CHUNKS, "nobody else had kept anything");
}

// After a loss: newcomers.

#[test]
fn a_newcomer_whose_first_step_is_undone_is_a_newcomer_again() {
    let shard_map = shard_map(later_view(&[1, 3, 5], STEP, &[2]), sharding(2, true));
    let states = ChunkSet::default;
    let fresh = |report| MemberReport { states: states(), states_before: None, is_entering: true, ..report };
    // It is ahead, but a chunk's new state is lost with rank 1.
    let both = reports([(0, inside(&shard_map, 0)), (2, fresh(ahead(&shard_map, 2)))]);
    let change = after_loss(&shard_map, &both);
    assert_eq!((change.resume.step, &change.resume.forward), (STEP, &None));
    assert_eq!(change.resume.newcomers, [Rank(1)]);
    // Once it has its parameters from a step that is not undone, it is no newcomer.
    let both = reports([(0, ahead(&shard_map, 0)), (2, fresh(ahead(&shard_map, 2)))]);
    let change = after_loss(&shard_map, &both);
    assert_eq!((change.resume.step, change.resume.newcomers), (STEP.next(), vec![]));
}

#[test]
fn a_newcomer_without_parameters_stays_a_newcomer() {
    let shard_map = shard_map(later_view(&[1, 3, 5], STEP, &[0]), sharding(3, true));
    let all = reports([(0, MemberReport::default()), (1, inside(&shard_map, 1))]);
    let change = after_loss(&shard_map, &all);
    assert_eq!((change.resume.step, change.resume.newcomers), (STEP, vec![Rank(0)]));
}

// After a loss: the assignment of samples.

#[test]
fn remaining_members_keep_their_parts_and_the_other_samples_are_returned() {
    let shard_map = shard_map(view(&[1, 3, 5]), sharding(2, true));
    let change = after_loss(&shard_map, &reports([0, 2].map(|rank| (rank, inside(&shard_map, rank)))));
    let before = assignment(&shard_map.view, STEP);
    let batch = change.resume.batch.expect("the batch was assigned");
    assert_eq!(batch.epoch, before.epoch);
    assert_eq!(batch.parts, [before.parts[0].spans.clone(), before.parts[2].spans.clone()]);
    assert_eq!(change.cursor.returned, before.parts[1].spans);
    assert_eq!(change.cursor.position, before.after.position);
}

/// A proposer that is itself behind assigns the next step as the members ahead did.
#[test]
fn the_step_after_a_rolled_forward_one_is_assigned_as_before() {
    let shard_map = shard_map(view(&[1, 3, 5]), sharding(3, true));
    let change = after_loss(&shard_map, &reports([(0, inside(&shard_map, 0)), (2, ahead(&shard_map, 2))]));
    let before = assignment(&shard_map.view, STEP.next());
    let batch = change.resume.batch.expect("the batch was assigned");
    assert_eq!(batch.parts, [before.parts[0].spans.clone(), before.parts[2].spans.clone()]);
}

/// All members have finished, and one is lost before the last step is committed: no samples are taken from an epoch after the last.
#[test]
fn no_samples_are_assigned_after_the_last_step() {
    let shard_map = shard_map(view(&[1, 3, 5]), sharding(2, true));
    let mut last = assignment(&shard_map.view, StepNumber(0));
    let mut steps = StepNumber(0);
    while last.epoch < EPOCHS {
        steps = steps.next();
        last = BatchAssignment::next(&last.after, ROUND, SAMPLES, &shard_map.view, steps);
    }
    let done = |rank| (rank, MemberReport { complete: Some(steps), ..inside(&shard_map, rank) });
    let kept = [Rank(0), Rank(2)];
    let change =
        planner(&shard_map).after_loss(&kept, &reports([done(0), done(2)]), |_| Some(&last)).unwrap();
    assert_eq!((change.resume.step, &change.resume.batch), (steps, &None));
    assert_eq!(change.cursor.taken(SAMPLES), EPOCHS * SAMPLES);
    let next = shard_map.view.apply(shard_map.digest, &change).expect("a valid change");
    assert_eq!(BatchAssignment::next(&change.cursor, ROUND, SAMPLES, &next, steps).epoch, EPOCHS);
}

// Between two steps.

/// The change to the view that begins three steps from now.
fn between_steps(shard_map: &ShardMap, churn: &Churn) -> Option<ViewChange> {
    let assignment = assignment(&shard_map.view, STEP);
    let change = planner(shard_map).between_steps(StepNumber(STEP.0 + 3), STEP, &assignment, churn)?;
    let next = shard_map.view.apply(shard_map.digest, &change);
    assert!(next.is_ok_and(|next| planner(shard_map).fits(&next)), "a record that is valid: {change:?}");
    Some(change)
}

#[test]
fn a_joiner_enters_between_two_steps_and_gets_its_chunks_by_moves() {
    let shard_map = shard_map(view(&[1, 3]), sharding(2, true));
    let churn = Churn { joiners: vec![member(2)], ..Churn::default() };
    let change = between_steps(&shard_map, &churn).expect("the run goes on");
    let resume = Resume { newcomers: vec![Rank(1)], ..Resume::at(StepNumber(STEP.0 + 3)) };
    assert_eq!((&change.resume, &change.added), (&resume, &churn.joiners));
    assert_eq!(change.cursor, assignment(&shard_map.view, StepNumber(STEP.0 + 2)).after);
    assert_eq!((change.removed.len(), change.capacities.len()), (0, 0));
    // Until their turn, all chunks stay at the two members that have them.
    for (chunk, holders) in state_holders(&shard_map, &change).iter().enumerate() {
        let renamed = shard_map.target.replica_holders(chunk).iter().map(|rank| Rank(2 * rank.0));
        assert_eq!(*holders, renamed.collect::<Vec<_>>(), "chunk {chunk}");
    }
    assert!(!change.moves.list.is_empty() && change.moves.restarted.is_empty());
}

/// The newcomer stores nothing in its first step, and everything after the last turn.
#[test]
fn with_replicas_everywhere_a_joiner_gets_all_chunks_by_moves() {
    let before = shard_map(view(&[1, 3]), all(true));
    let churn = Churn { joiners: vec![member(2)], ..Churn::default() };
    let change = between_steps(&before, &churn).expect("the run goes on");
    assert_eq!(change.moves.list.len(), CHUNKS);
    let next = before.view.apply(before.digest, &change).expect("a valid change");
    let after = shard_map(next, before.sharding);
    let is_whole = |moved| after.shards(moved).is_fully_replicated;
    assert!(!is_whole(0) && !is_whole(CHUNKS - 1) && is_whole(CHUNKS));
    // Before the last turn it may not go with all the others.
    let step = |turns: u64| StepNumber(after.view.first_step().0 + turns);
    assert!(!planner(&after).can_leave(&[Rank(0), Rank(2)], step(1)));
    assert!(planner(&after).can_leave(&[Rank(0), Rank(2)], step(CHUNKS as u64 + 1)));
}

/// The moves of the previous view are not over: a chunk that has not had its turn is still at its earlier holders.
#[test]
fn chunks_that_have_not_moved_yet_move_from_their_present_holders() {
    let before = shard_map(view(&[1, 3]), sharding(2, true));
    let churn = Churn { joiners: vec![member(2)], ..Churn::default() };
    let mut change = between_steps(&before, &churn).expect("the run goes on");
    change.moves.rate = 4;
    let view = before.view.apply(before.digest, &change).unwrap();
    let first_step = view.first_step();
    let shard_map = shard_map(view, sharding(2, true));
    let assignment =
        BatchAssignment::next(&shard_map.view.cursor, ROUND, SAMPLES, &shard_map.view, first_step);
    let step = StepNumber(first_step.0 + 3);
    let churn = Churn { joiners: vec![member(9)], ..Churn::default() };
    let next = planner(&shard_map).between_steps(step, first_step, &assignment, &churn).unwrap();
    // Before that step, two turns of four chunks were over; the third belongs to the step, which is not taken any more.
    let placement = shard_map.target.after(&shard_map.view.moves, 8);
    for (chunk, holders) in state_holders(&shard_map, &next).iter().enumerate() {
        assert_eq!(holders, placement.replica_holders(chunk), "chunk {chunk}");
    }
}

/// A member that cannot be reached directly any more hands over its chunks, and one that can be again gets a share; no member stops.
#[test]
fn capacities_change_between_two_steps_and_chunks_move() {
    let before = shard_map(view(&[1, 3, 5]), sharding(1, true));
    let churn = Churn { capacities: vec![(Rank(1), 0)], ..Churn::default() };
    let change = between_steps(&before, &churn).expect("the run goes on");
    assert_eq!((&change.capacities[..], change.removed.len()), (&[(Rank(1), 0)][..], 0));
    assert!(!change.resume.is_interruption());
    let moving: Vec<usize> = change.moves.list.iter().map(|moved| moved.chunk as usize).collect();
    assert_eq!(moving, chunks_of(&before, 1, false), "all that it owns, and nothing else");
    let next = before.view.apply(before.digest, &change).expect("a valid change");
    assert_eq!(next.replica_holders(), [true; 3], "until its chunks have moved it has to be reached");
    let worker = View { moves: Moves::default(), ..next };
    assert_eq!(worker.replica_holders(), [true, false, true]);
    let after = shard_map(worker, before.sharding);
    let churn = Churn { capacities: vec![(Rank(1), 1)], ..Churn::default() };
    let change = between_steps(&after, &churn).expect("the run goes on");
    assert_eq!(change.capacities, [(Rank(1), 1)]);
    let moving: Vec<usize> = change.moves.list.iter().map(|moved| moved.chunk as usize).collect();
    assert_eq!(moving, chunks_of(&before, 1, false), "they come back");
}

#[test]
fn a_leaver_departs_at_once_if_others_hold_replicas_else_it_hands_over() {
    let step = StepNumber(STEP.0 + 3);
    let one = shard_map(view(&[1, 3, 5]), sharding(1, true));
    let two = shard_map(view(&[1, 3, 5]), sharding(2, true));
    let none = shard_map(view(&[1, 3, 5]), sharding(1, false));
    assert!(!planner(&one).can_leave(&[Rank(1)], step));
    assert!(planner(&two).can_leave(&[Rank(1)], step) && !planner(&two).can_leave(&[Rank(1), Rank(2)], step));
    assert!(planner(&none).can_leave(&[Rank(0), Rank(1)], step), "there is nothing to keep");

    let whole = shard_map(view(&[1, 3, 5]), all(true));
    assert!(planner(&whole).can_leave(&[Rank(0), Rank(2)], step), "one that stays is enough");
    assert!(!planner(&whole).can_leave(&[Rank(0), Rank(1), Rank(2)], step));

    let leaving = Churn { leavers: vec![Rank(1)], ..Churn::default() };
    let change = between_steps(&two, &leaving).expect("the run goes on");
    assert_eq!((&change.removed[..], &change.resume), (&[Rank(1)][..], &Resume::at(step)));
    assert!(change.moves.restarted.is_empty());

    let retiring = Churn { retirees: vec![Rank(1)], ..Churn::default() };
    let change = between_steps(&one, &retiring).expect("the run goes on");
    assert_eq!((&change.capacities[..], change.removed.len()), (&[(Rank(1), 0)][..], 0));
    let moving: Vec<usize> = change.moves.list.iter().map(|moved| moved.chunk as usize).collect();
    assert_eq!(moving, chunks_of(&one, 1, false), "all that it owns, and nothing else");
    assert_eq!(change.moves.rate as usize, moving.len().div_ceil(TURNS_OF_RETIREES));
    let next = one.view.apply(one.digest, &change).unwrap();
    let after = shard_map(next, sharding(1, true));
    let later = StepNumber(step.0 + TURNS_OF_RETIREES as u64 + 1);
    assert!(
        !planner(&after).can_leave(&[Rank(1)], step.next()) && planner(&after).can_leave(&[Rank(1)], later)
    );
}

#[test]
fn chunks_without_optimizer_state_all_move_in_one_step() {
    let shard_map = shard_map(view(&[1, 3]), sharding(1, false));
    let churn = Churn { joiners: vec![member(2)], ..Churn::default() };
    let change = between_steps(&shard_map, &churn).expect("the run goes on");
    assert_eq!(change.moves.rate as usize, change.moves.list.len());
    assert!(state_holders(&shard_map, &change).iter().all(|holders| *holders != [Rank(1)]));
}

#[test]
fn no_view_begins_after_the_last_step() {
    let shard_map = shard_map(view(&[1, 3]), sharding(2, true));
    let churn = Churn { joiners: vec![member(2)], ..Churn::default() };
    let steps = EPOCHS * SAMPLES.div_ceil(BATCH);
    let at = |step: u64| {
        let assignment = assignment(&shard_map.view, StepNumber(step - 1));
        planner(&shard_map).between_steps(StepNumber(step), StepNumber(step - 1), &assignment, &churn)
    };
    assert!(at(steps - 1).is_some() && at(steps).is_none() && at(steps + 5).is_none());
    let assignment = assignment(&shard_map.view, StepNumber(steps - 4));
    let named = |step| {
        planner(&shard_map).between_steps(StepNumber(step), StepNumber(steps - 4), &assignment, &churn)
    };
    assert!(named(steps - 1).is_some() && named(steps).is_none());
}

#[test]
fn new_ranks_follow_the_order_of_peers() {
    let view = view(&[2, 4, 6, 8]);
    let churn = Churn {
        joiners: vec![member(1), member(5)],
        leavers: vec![Rank(1)],
        retirees: vec![Rank(3)],
        ..Churn::default()
    };
    let roster = Roster::new(&view, &churn);
    let peers: Vec<u8> = roster.members.iter().map(|member| member.peer.0[0]).collect();
    assert_eq!(peers, [1, 2, 5, 6, 8]);
    let new: Vec<Option<u32>> = (0..4).map(|rank| roster.new_rank(Rank(rank)).map(|rank| rank.0)).collect();
    assert_eq!(new, [Some(1), None, Some(3), Some(4)]);
    assert_eq!(roster.newcomers(), [Rank(0), Rank(2)]);
    assert_eq!((roster.members[4].capacity, roster.members[3].capacity), (0, 1));
}

#[test]
fn a_member_that_stays_becomes_the_owner_when_the_last_owner_retires() {
    let mut view = view(&[1, 3]);
    view.members[1].capacity = 0;
    let shard_map = shard_map(view, sharding(1, true));
    let retiring =
        |ranks: &[u32]| Churn { retirees: ranks.iter().copied().map(Rank).collect(), ..Churn::default() };
    let change = between_steps(&shard_map, &retiring(&[0])).expect("the run goes on");
    assert_eq!(change.capacities, [(Rank(0), 0), (Rank(1), 1)]);
    assert!(planner(&shard_map).changes_anything(&retiring(&[0])));
    assert!(!planner(&shard_map).changes_anything(&retiring(&[1])), "it owns nothing already");
    assert!(!planner(&shard_map).changes_anything(&retiring(&[0, 1])), "one of them has to own the chunks");
}

#[test]
fn if_all_remaining_members_retire_one_of_them_stays_an_owner() {
    let view = view(&[2, 4]);
    let light = Member { capacity: 0, ..member(1) };
    let churn = Churn { joiners: vec![light], retirees: vec![Rank(0), Rank(1)], ..Churn::default() };
    let capacities: Vec<u8> =
        Roster::new(&view, &churn).members.iter().map(|member| member.capacity).collect();
    assert_eq!(capacities, [0, 1, 0], "a newcomer has nothing that it could own");
}
