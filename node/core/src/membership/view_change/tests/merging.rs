//! A view that merges another branch in its first step, and one of its members is lost.

use peergrad_protocol::message::MergeOffer;
use peergrad_protocol::view::Merge;
use peergrad_protocol::{PeerId, ViewDigest};

use super::*;

const OTHER: ViewDigest = ViewDigest([90; 32]);

/// The offer of another branch, which has trained the first 60 samples of the first epoch.
fn merge_offer() -> MergeOffer {
    MergeOffer {
        view: OTHER,
        steps: StepNumber(5),
        cursor: DataCursor { position: 60, ..DataCursor::default() },
        trained: 60,
        ancestors: vec![],
        donors: vec![],
        coordinator: PeerId([9; 32]),
        question: 0,
    }
}

fn forking(shard_map: &ShardMap) -> ViewChangePlanner<'_> {
    ViewChangePlanner { allows_forks: true, ..planner(shard_map) }
}

/// A view of these peers that merges the offer in [`STEP`].
fn merging_view(sharding: ShardingConfig) -> ShardMap {
    let before = shard_map(view(&[1, 2, 3, 4]), sharding);
    let from = StepNumber(STEP.0 - 1);
    let assignment = assignment(&before.view, from);
    let change = forking(&before).merging(STEP, from, &assignment, &merge_offer()).expect("the run goes on");
    shard_map(before.view.apply(before.digest, &change).expect("it follows"), sharding)
}

/// A member in the merging step, with or without its part of the snapshot.
fn with_snapshot(shard_map: &ShardMap, rank: u32, has_merge_snapshot: bool) -> MemberReport {
    MemberReport { has_merge_snapshot, ..inside(shard_map, rank) }
}

fn lost(shard_map: &ShardMap, reports: &BTreeMap<Rank, MemberReport>) -> (ViewChange, View) {
    let kept: Vec<Rank> = reports.keys().copied().collect();
    let merged =
        BatchAssignment::following(&BatchAssignment::default(), ROUND, SAMPLES, &shard_map.view, STEP);
    let assignment_of = |step| (step == STEP).then_some(&merged);
    let change =
        forking(shard_map).after_loss(&kept, reports, assignment_of).expect("somebody has parameters");
    let next = shard_map.view.apply(shard_map.digest, &change).expect("it follows");
    (change, next)
}

#[test]
fn a_merge_weighs_each_branch_by_the_samples_it_trained_alone() {
    let shard_map = merging_view(sharding(2, true));
    let merge = shard_map.view.merge().expect("it merges");
    let Merge { view, ours, theirs, ref cursor, .. } = *merge;
    assert_eq!((view, ours, theirs, cursor), (OTHER, BATCH * STEP.0, 60, &merge_offer().cursor));
    // The cursor does not include the other branch's samples before the step is completed.
    assert_eq!(shard_map.view.cursor.taken(SAMPLES), BATCH * STEP.0);
    let merged =
        BatchAssignment::following(&BatchAssignment::default(), ROUND, SAMPLES, &shard_map.view, STEP);
    assert_eq!((merged.len(), merged.after.taken(SAMPLES)), (0, BATCH * STEP.0));
    let short = MergeOffer { trained: 0, ..merge_offer() };
    let far =
        MergeOffer { cursor: DataCursor { position: SAMPLES + 1, ..DataCursor::default() }, ..merge_offer() };
    let over = MergeOffer { cursor: DataCursor { epoch: EPOCHS, ..DataCursor::default() }, ..merge_offer() };
    assert!(forking(&shard_map).can_merge(&merge_offer()));
    let odd = MergeOffer { trained: 61, ..merge_offer() };
    assert!([short, far, over, odd].iter().all(|odd| !forking(&shard_map).can_merge(odd)));
}

#[test]
fn a_merge_survives_a_loss_if_holders_of_each_chunk_have_both_states() {
    let shard_map = merging_view(sharding(2, true));
    let (change, next) =
        lost(&shard_map, &reports([0, 1, 3].map(|rank| (rank, with_snapshot(&shard_map, rank, true)))));
    assert_eq!((next.merge(), change.resume.step), (shard_map.view.merge(), STEP));
    assert!(!next.descends_from(OTHER) && next.cursor == shard_map.view.cursor.for_partition(0, 4, SAMPLES));
}

#[test]
fn a_merge_is_abandoned_as_a_whole_if_holders_lack_a_state() {
    for (replicas, has_state, recipients) in [
        // State is lost with all its holders.
        (1, true, [true; 3]),
        // So is the other branch's state, although this branch has none.
        (1, false, [true; 3]),
        // One member has restarted.
        (2, true, [true, false, true]),
    ] {
        let shard_map = merging_view(sharding(replicas, has_state));
        let recipients = [0, 1, 3].into_iter().zip(recipients);
        let (change, next) = lost(
            &shard_map,
            &reports(recipients.map(|(rank, has)| (rank, with_snapshot(&shard_map, rank, has)))),
        );
        assert_eq!((next.merge(), change.resume.step), (None, STEP), "{replicas} replicas, {has_state}");
        assert!(change.resume.is_interruption() && change.resume.batch.is_some_and(|deal| deal.is_empty()));
        assert_eq!(next.cursor.taken(SAMPLES), shard_map.view.cursor.taken(SAMPLES));
        // After the next step as well.
        assert!(
            !next.descends_from(OTHER)
                && next.ancestors_at(STEP.next()).iter().all(|root| root.view != OTHER)
        );
    }
}

#[test]
fn a_step_that_merges_is_never_rolled_forward() {
    let shard_map = merging_view(sharding(2, true));
    let done = |rank| (rank, MemberReport { has_merge_snapshot: true, ..ahead(&shard_map, rank) });
    let (change, next) =
        lost(&shard_map, &reports([done(0), done(1), (3, with_snapshot(&shard_map, 3, true))]));
    assert_eq!((change.resume.step, change.resume.forward.is_some()), (STEP, false));
    assert_eq!(next.merge(), shard_map.view.merge());
}

#[test]
fn a_merge_is_done_once_all_members_have_completed_its_step() {
    let shard_map = merging_view(sharding(2, true));
    let merged =
        BatchAssignment::following(&BatchAssignment::default(), ROUND, SAMPLES, &shard_map.view, STEP);
    let reports = reports([0, 1, 3].map(|rank| (rank, ahead(&shard_map, rank))));
    let kept: Vec<Rank> = reports.keys().copied().collect();
    let after = BatchAssignment::following(&merged, ROUND, SAMPLES, &shard_map.view, STEP.next());
    let assignment_of = |step| (step == STEP.next()).then_some(&after);
    let change =
        forking(&shard_map).after_loss(&kept, &reports, assignment_of).expect("they have parameters");
    let next = shard_map.view.apply(shard_map.digest, &change).expect("it follows");
    assert_eq!((change.resume.step, next.merge()), (STEP.next(), None));
    assert!(next.descends_from(OTHER));
}

#[test]
fn a_member_one_step_behind_cancels_the_merge_and_its_step_is_completed() {
    let shard_map = merging_view(sharding(2, true));
    let before = StepNumber(STEP.0 - 1);
    let entered = |rank| MemberReport { stats: Some(STATS), ..with_snapshot(&shard_map, rank, true) };
    let next = PartialStep { states: kept(&shard_map, 1, STEP), ..PartialStep::default() };
    let behind =
        MemberReport { complete: Some(before), next: Some(next), ..with_snapshot(&shard_map, 1, true) };
    let reports = reports([(0, entered(0)), (1, behind), (3, entered(3))]);
    let kept: Vec<Rank> = reports.keys().copied().collect();
    let known = assignment(&shard_map.view, before);
    let assignment_of = |step| (step == before).then_some(&known);
    let change =
        forking(&shard_map).after_loss(&kept, &reports, assignment_of).expect("somebody has parameters");
    assert!(change.resume.step == STEP && change.resume.forward.is_some() && change.resume.merge.is_none());
    assert_eq!(change.cursor.taken(SAMPLES), BATCH * STEP.0, "it counts nothing of the other branch");
}
