//! All members have stopped, and some of them have returned.

use std::time::Duration;

use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::message::{RejoinCandidate, SavedCheckpoint};
use peergrad_protocol::view::{Branch, ViewHistory};
use peergrad_protocol::{Incarnation, ViewNumber};

use super::*;

/// A checkpoint after this many steps of the run's first branch.
fn saved(steps: u64, states: ChunkSet) -> SavedCheckpoint {
    SavedCheckpoint {
        steps: StepNumber(steps),
        branch: Branch { view_number: ViewNumber(1), step: StepNumber(0), fork: None },
        cursor: DataCursor { epoch: 1, position: steps, ..DataCursor::default() },
        digest: ContentDigest([steps as u8; 32]),
        states,
    }
}

/// The report of the member at this rank, which has returned in its next incarnation.
fn back(shard_map: &ShardMap, rank: u32, saved: Vec<SavedCheckpoint>) -> (u32, MemberReport) {
    let member = shard_map.view.member(Rank(rank));
    let member = Member { incarnation: Incarnation(9), ..member.clone() };
    let again = Some(Box::new(RejoinCandidate { member, saved }));
    (rank, MemberReport { is_vote_only: true, rejoin: again, ..MemberReport::default() })
}

fn after_stop(shard_map: &ShardMap, reports: impl IntoIterator<Item = (u32, MemberReport)>) -> Restart {
    let restart = planner(shard_map).after_stop(&[], &self::reports(reports)).expect("somebody is back");
    let next = shard_map.view.apply(shard_map.digest, &restart.change);
    let next = next.unwrap_or_else(|error| panic!("{error}: {:?}", restart.change));
    assert!(planner(shard_map).fits(&next) && restart.change.resume.is_restored);
    assert!(next.members.iter().all(|member| member.incarnation == Incarnation(9)));
    restart
}

/// The chunks that this member stored in the view before.
fn held(shard_map: &ShardMap, rank: u32) -> ChunkSet {
    kept(shard_map, rank, STEP)
}

#[test]
fn a_checkpoint_of_tables_counts_only_with_all_chunks() {
    let sharding = ShardingConfig { has_tables: true, ..sharding(2, true) };
    let shard_map = shard_map(later_view(&[1, 2, 3], STEP, &[]), sharding);
    let of = |rank, steps: &[u64]| {
        back(&shard_map, rank, steps.iter().map(|&step| saved(step, held(&shard_map, rank))).collect())
    };
    let restart = after_stop(&shard_map, [of(0, &[50, 40]), of(1, &[40]), of(2, &[40])]);
    assert_eq!((restart.change.resume.step, restart.is_whole), (StepNumber(40), true));
    assert_eq!(restart.change.moves.restarted, [0_u32; 0]);
    // Nothing is continued in part.
    let restart = after_stop(&shard_map, [of(0, &[50]), of(1, &[40]), of(2, &[30])]);
    assert_eq!((restart.change.resume.step, restart.is_whole), (StepNumber(0), false));
}

#[test]
fn a_restart_continues_from_the_newest_completely_saved_step() {
    let shard_map = shard_map(later_view(&[1, 2, 3], STEP, &[]), sharding(2, true));
    let of = |rank, steps: &[u64]| {
        back(&shard_map, rank, steps.iter().map(|&step| saved(step, held(&shard_map, rank))).collect())
    };
    for (lists, expected, newcomers) in [
        ([&[50, 40][..], &[50, 40], &[50, 40]], 50, &[][..]),
        // Two of three members have saved everything together.
        ([&[50, 40], &[50, 40], &[40]], 50, &[2]),
        // A single member has not.
        ([&[50, 40], &[40], &[40]], 40, &[]),
        ([&[50, 30], &[40], &[30]], 30, &[1]),
    ] {
        let [a, b, c] = lists;
        let Restart { change, is_whole } = after_stop(&shard_map, [of(0, a), of(1, b), of(2, c)]);
        assert_eq!(change.resume.step, StepNumber(expected), "{lists:?}");
        assert_eq!(change.resume.newcomers, newcomers.iter().copied().map(Rank).collect::<Vec<_>>());
        assert_eq!((change.cursor.position, is_whole), (expected, true));
        assert!(change.moves.restarted.is_empty());
    }
}

#[test]
fn a_member_that_is_not_back_is_removed_and_its_chunks_move() {
    let shard_map = shard_map(later_view(&[1, 2, 3], STEP, &[]), sharding(2, true));
    let of = |rank| back(&shard_map, rank, vec![saved(50, held(&shard_map, rank))]);
    let Restart { change, is_whole } = after_stop(&shard_map, [of(0), of(2)]);
    assert_eq!((change.removed.len(), change.added.len(), is_whole), (3, 2, true));
    // The holders of a chunk in the first step have its state on their disks.
    for (chunk, holders) in state_holders(&shard_map, &change).into_iter().enumerate() {
        for holder in holders {
            let old = if holder == Rank(0) { 0 } else { 2 };
            assert!(held(&shard_map, old).contains(chunk), "chunk {chunk} at {holder:?}");
        }
    }
}

#[test]
fn optimizer_state_that_no_member_saved_restarts_and_is_listed() {
    let shard_map = shard_map(later_view(&[1, 2, 3], STEP, &[]), sharding(1, true));
    let lost = held(&shard_map, 1);
    let of = |rank| back(&shard_map, rank, vec![saved(50, held(&shard_map, rank))]);
    let Restart { change, is_whole } = after_stop(&shard_map, [of(0), of(2)]);
    assert!(!is_whole && change.resume.step == StepNumber(50));
    let restarted: ChunkSet = change.moves.restarted.iter().map(|&chunk| chunk as usize).collect();
    assert_eq!(restarted.iter().collect::<Vec<_>>(), lost.iter().collect::<Vec<_>>());
}

#[test]
fn checkpoints_of_abandoned_steps_are_not_restored() {
    let branch = Branch { view_number: ViewNumber(1), step: StepNumber(30), fork: None };
    let earlier_branches = vec![Branch { view_number: ViewNumber(0), step: StepNumber(0), fork: None }];
    let history = ViewHistory { earlier_branches, ..ViewHistory::starting_with(branch) };
    let shard_map = shard_map(View { history, ..later_view(&[1, 2], STEP, &[]) }, sharding(2, true));
    let old = |steps| saved(steps, ChunkSet::all(CHUNKS));
    let earlier = |steps| SavedCheckpoint {
        branch: Branch { view_number: ViewNumber(0), step: StepNumber(0), fork: None },
        ..old(steps)
    };
    let elsewhere = |steps| SavedCheckpoint {
        branch: Branch { view_number: ViewNumber(1), step: StepNumber(10), fork: Some(7) },
        ..old(steps)
    };
    let of_this = |steps| SavedCheckpoint { branch, ..old(steps) };
    for (of_one, of_other, expected) in [
        (vec![earlier(60), earlier(30)], vec![earlier(30)], 30),
        (vec![earlier(60)], vec![earlier(20)], 20),
        (vec![earlier(60)], vec![of_this(40), earlier(30)], 40),
        // A checkpoint of another branch, which forked off before.
        (vec![elsewhere(25)], vec![earlier(20)], 20),
    ] {
        let Restart { change, .. } =
            after_stop(&shard_map, [back(&shard_map, 0, of_one), back(&shard_map, 1, of_other)]);
        assert_eq!(change.resume.step, StepNumber(expected));
    }
}

#[test]
fn without_any_checkpoint_training_restarts_at_step_zero() {
    for first_step in [StepNumber(0), STEP] {
        let shard_map = shard_map(later_view(&[1, 2, 3], first_step, &[]), sharding(2, true));
        let restart = after_stop(&shard_map, [back(&shard_map, 0, vec![]), back(&shard_map, 1, vec![])]);
        let Restart { change, is_whole } = &restart;
        assert_eq!((change.resume.step, &change.cursor), (StepNumber(0), &DataCursor::default()));
        assert!(change.resume.newcomers.is_empty() && change.moves == Moves::default());
        assert!(!is_whole, "somebody may come who has saved something");
        let (soon, late) = (Duration::from_secs(59), Duration::from_secs(60));
        assert_eq!(
            [restart.is_due(1, soon), restart.is_due(1, late), restart.is_due(0, soon)],
            [false, true, true],
            "but not for ever"
        );
    }
}

#[test]
fn a_member_that_never_stopped_gets_even_initial_parameters_from_others() {
    let shard_map = shard_map(later_view(&[1, 2, 3], STEP, &[2]), sharding(2, true));
    let all = reports([back(&shard_map, 0, vec![]), (2, MemberReport::default())]);
    let restart = planner(&shard_map).after_stop(&[Rank(2)], &all).expect("somebody is back");
    assert_eq!((restart.change.resume.step, restart.change.resume.newcomers), (StepNumber(0), vec![Rank(1)]));
}

#[test]
fn a_restarted_member_owns_the_chunks_even_if_none_offers_capacity() {
    let shard_map = shard_map(later_view(&[1, 2, 3], STEP, &[]), sharding(2, true));
    for lists in [[vec![], vec![]], [vec![saved(50, ChunkSet::all(CHUNKS))], vec![]]] {
        let reports = lists.into_iter().zip([1, 2]).map(|(list, rank)| {
            let (rank, mut report) = back(&shard_map, rank, list);
            report.rejoin.as_mut().expect("it is back").member.capacity = 0;
            (rank, report)
        });
        let restart = after_stop(&shard_map, reports.collect::<Vec<_>>());
        let capacities: Vec<u8> = restart.change.added.iter().map(|member| member.capacity).collect();
        assert_eq!(capacities, [1, 0]);
    }
}

#[test]
fn differing_checkpoints_of_the_same_step_are_not_combined() {
    let shard_map = shard_map(later_view(&[1, 2, 3], STEP, &[]), sharding(1, true));
    let of = |rank, digest: u8| {
        let saved = saved(50, held(&shard_map, rank));
        back(&shard_map, rank, vec![SavedCheckpoint { digest: ContentDigest([digest; 32]), ..saved }])
    };
    let Restart { change, is_whole } = after_stop(&shard_map, [of(0, 1), of(1, 2), of(2, 2)]);
    assert_eq!((change.resume.newcomers, is_whole), (vec![Rank(0)], false));
    // With local parameters, each member resumes with its own.
    let drifting = ViewChangePlanner { has_local_parameters: true, ..planner(&shard_map) };
    let reports = self::reports([of(0, 1), of(1, 2), of(2, 2)]);
    let Restart { change, .. } = drifting.after_stop(&[], &reports).expect("somebody is back");
    assert!(change.resume.newcomers.is_empty());
}

#[test]
fn members_without_parameters_stay_and_get_them_from_restarted_members() {
    let shard_map = shard_map(later_view(&[1, 2, 3], STEP, &[2]), sharding(2, true));
    let all =
        reports([back(&shard_map, 0, vec![saved(50, ChunkSet::all(CHUNKS))]), (2, MemberReport::default())]);
    let restart = planner(&shard_map).after_stop(&[Rank(2)], &all).expect("somebody is back");
    assert_eq!(restart.change.removed, [Rank(0), Rank(1)]);
    assert_eq!(restart.change.resume.newcomers, [Rank(1)]);
    assert!(planner(&shard_map).after_stop(&[Rank(2)], &reports([(2, MemberReport::default())])).is_none());
}
