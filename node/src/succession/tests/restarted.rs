//! Everybody has stopped, and some are back.

use std::time::Duration;

use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::message::{Again, Saved};
use peergrad_protocol::view::Branch;
use peergrad_protocol::{Epoch, Incarnation};

use super::*;

/// A checkpoint after so many steps of the run's first branch.
fn saved(steps: u64, states: ChunkSet) -> Saved {
    Saved {
        steps: StepNumber(steps),
        branch: Branch { epoch: Epoch(1), step: StepNumber(0), fork: 0 },
        ledger: Ledger { pass: 1, position: steps, ..Ledger::default() },
        digest: ContentDigest([steps as u8; 32]),
        states,
    }
}

/// The member of this rank is back, as its next incarnation.
fn back(geometry: &Geometry, rank: u32, saved: Vec<Saved>) -> (u32, Report) {
    let member = geometry.view.member(Rank(rank));
    let member = Member { incarnation: Incarnation(9), ..member.clone() };
    let again = Some(Box::new(Again { member, saved }));
    (rank, Report { is_over: true, again, ..Report::default() })
}

fn after_stop(geometry: &Geometry, reports: impl IntoIterator<Item = (u32, Report)>) -> Restart {
    let restart = basis(geometry).after_stop(&[], &self::reports(reports)).expect("somebody is back");
    let next = geometry.view.succeed(geometry.digest, &restart.change);
    let next = next.unwrap_or_else(|error| panic!("{error}: {:?}", restart.change));
    assert!(basis(geometry).fits(&next) && restart.change.resume.is_restored);
    assert!(next.members.iter().all(|member| member.incarnation == Incarnation(9)));
    restart
}

/// Chunks that this member kept in the view before.
fn held(geometry: &Geometry, rank: u32) -> ChunkSet {
    kept(geometry, rank, STEP)
}

#[test]
fn the_newest_step_of_which_all_is_there_is_gone_on_from() {
    let geometry = geometry(later_view(&[1, 2, 3], STEP, &[]), cut(2, true));
    let of = |rank, steps: &[u64]| {
        back(&geometry, rank, steps.iter().map(|&step| saved(step, held(&geometry, rank))).collect())
    };
    for (lists, expected, newcomers) in [
        ([&[50, 40][..], &[50, 40], &[50, 40]], 50, &[][..]),
        // Two of three hold everything together.
        ([&[50, 40], &[50, 40], &[40]], 50, &[2]),
        // One alone does not.
        ([&[50, 40], &[40], &[40]], 40, &[]),
        ([&[50, 30], &[40], &[30]], 30, &[1]),
    ] {
        let [a, b, c] = lists;
        let Restart { change, is_whole } = after_stop(&geometry, [of(0, a), of(1, b), of(2, c)]);
        assert_eq!(change.resume.step, StepNumber(expected), "{lists:?}");
        assert_eq!(change.resume.newcomers, newcomers.iter().copied().map(Rank).collect::<Vec<_>>());
        assert_eq!((change.ledger.position, is_whole), (expected, true));
        assert!(change.moves.restarted.is_empty());
    }
}

#[test]
fn whoever_is_not_back_is_left_out_and_its_chunks_move() {
    let geometry = geometry(later_view(&[1, 2, 3], STEP, &[]), cut(2, true));
    let of = |rank| back(&geometry, rank, vec![saved(50, held(&geometry, rank))]);
    let Restart { change, is_whole } = after_stop(&geometry, [of(0), of(2)]);
    assert_eq!((change.removed.len(), change.added.len(), is_whole), (3, 2, true));
    // Who keeps a chunk in the first step has its state on its disk.
    for (chunk, keepers) in keepers(&geometry, &change).into_iter().enumerate() {
        for keeper in keepers {
            let old = if keeper == Rank(0) { 0 } else { 2 };
            assert!(held(&geometry, old).contains(chunk), "chunk {chunk} at {keeper:?}");
        }
    }
}

#[test]
fn state_that_nobody_has_saved_starts_anew_and_is_named() {
    let geometry = geometry(later_view(&[1, 2, 3], STEP, &[]), cut(1, true));
    let lost = held(&geometry, 1);
    let of = |rank| back(&geometry, rank, vec![saved(50, held(&geometry, rank))]);
    let Restart { change, is_whole } = after_stop(&geometry, [of(0), of(2)]);
    assert!(!is_whole && change.resume.step == StepNumber(50));
    let restarted: ChunkSet = change.moves.restarted.iter().map(|&chunk| chunk as usize).collect();
    assert_eq!(restarted.iter().collect::<Vec<_>>(), lost.iter().collect::<Vec<_>>());
}

#[test]
fn what_was_given_up_before_is_not_gone_back_to() {
    let branch = Branch { epoch: Epoch(1), step: StepNumber(30), fork: 0 };
    let branches_before = vec![Branch { epoch: Epoch(0), step: StepNumber(0), fork: 0 }];
    let geometry = geometry(View { branch, branches_before, ..later_view(&[1, 2], STEP, &[]) }, cut(2, true));
    let old = |steps| saved(steps, ChunkSet::all(CHUNKS));
    let earlier =
        |steps| Saved { branch: Branch { epoch: Epoch(0), step: StepNumber(0), fork: 0 }, ..old(steps) };
    let elsewhere =
        |steps| Saved { branch: Branch { epoch: Epoch(1), step: StepNumber(10), fork: 7 }, ..old(steps) };
    let of_this = |steps| Saved { branch, ..old(steps) };
    for (of_one, of_other, expected) in [
        (vec![earlier(60), earlier(30)], vec![earlier(30)], 30),
        (vec![earlier(60)], vec![earlier(20)], 20),
        (vec![earlier(60)], vec![of_this(40), earlier(30)], 40),
        // Of another lineage, which has forked off before.
        (vec![elsewhere(25)], vec![earlier(20)], 20),
    ] {
        let Restart { change, .. } =
            after_stop(&geometry, [back(&geometry, 0, of_one), back(&geometry, 1, of_other)]);
        assert_eq!(change.resume.step, StepNumber(expected));
    }
}

#[test]
fn without_any_checkpoint_all_begin_at_the_beginning() {
    for first_step in [StepNumber(0), STEP] {
        let geometry = geometry(later_view(&[1, 2, 3], first_step, &[]), cut(2, true));
        let restart = after_stop(&geometry, [back(&geometry, 0, vec![]), back(&geometry, 1, vec![])]);
        let Restart { change, is_whole } = &restart;
        assert_eq!((change.resume.step, &change.ledger), (StepNumber(0), &Ledger::default()));
        assert!(change.resume.newcomers.is_empty() && change.moves == Moves::default());
        assert!(!is_whole, "somebody may come who has saved something");
        let (soon, late) = (Duration::from_secs(59), Duration::from_secs(60));
        assert_eq!(
            [restart.is_due(false, soon), restart.is_due(false, late), restart.is_due(true, soon)],
            [false, true, true],
            "but not for ever"
        );
    }
}

#[test]
fn who_never_stopped_and_has_nothing_gets_even_the_beginning_from_others() {
    let geometry = geometry(later_view(&[1, 2, 3], STEP, &[2]), cut(2, true));
    let all = reports([back(&geometry, 0, vec![]), (2, Report::default())]);
    let restart = basis(&geometry).after_stop(&[Rank(2)], &all).expect("somebody is back");
    assert_eq!((restart.change.resume.step, restart.change.resume.newcomers), (StepNumber(0), vec![Rank(1)]));
}

#[test]
fn somebody_owns_something_although_nobody_who_is_back_offers_to() {
    let geometry = geometry(later_view(&[1, 2, 3], STEP, &[]), cut(2, true));
    for lists in [[vec![], vec![]], [vec![saved(50, ChunkSet::all(CHUNKS))], vec![]]] {
        let reports = lists.into_iter().zip([1, 2]).map(|(list, rank)| {
            let (rank, mut report) = back(&geometry, rank, list);
            report.again.as_mut().expect("it is back").member.weight = 0;
            (rank, report)
        });
        let restart = after_stop(&geometry, reports.collect::<Vec<_>>());
        let weights: Vec<u8> = restart.change.added.iter().map(|member| member.weight).collect();
        assert_eq!(weights, [1, 0]);
    }
}

#[test]
fn checkpoints_of_one_step_that_differ_are_not_put_together() {
    let geometry = geometry(later_view(&[1, 2, 3], STEP, &[]), cut(1, true));
    let of = |rank, digest: u8| {
        let saved = saved(50, held(&geometry, rank));
        back(&geometry, rank, vec![Saved { digest: ContentDigest([digest; 32]), ..saved }])
    };
    let Restart { change, is_whole } = after_stop(&geometry, [of(0, 1), of(1, 2), of(2, 2)]);
    assert_eq!((change.resume.newcomers, is_whole), (vec![Rank(0)], false));
    // Where members drift, each goes on with its own.
    let drifting = Basis { drifts: true, ..basis(&geometry) };
    let reports = self::reports([of(0, 1), of(1, 2), of(2, 2)]);
    let Restart { change, .. } = drifting.after_stop(&[], &reports).expect("somebody is back");
    assert!(change.resume.newcomers.is_empty());
}

#[test]
fn members_without_parameters_stay_and_get_them_from_who_is_back() {
    let geometry = geometry(later_view(&[1, 2, 3], STEP, &[2]), cut(2, true));
    let all = reports([back(&geometry, 0, vec![saved(50, ChunkSet::all(CHUNKS))]), (2, Report::default())]);
    let restart = basis(&geometry).after_stop(&[Rank(2)], &all).expect("somebody is back");
    assert_eq!(restart.change.removed, [Rank(0), Rank(1)]);
    assert_eq!(restart.change.resume.newcomers, [Rank(1)]);
    assert!(basis(&geometry).after_stop(&[Rank(2)], &reports([(2, Report::default())])).is_none());
}
