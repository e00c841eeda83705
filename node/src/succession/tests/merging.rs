//! A view that is to merge another lineage with its first step, and somebody is lost.

use peergrad_protocol::message::Will;
use peergrad_protocol::view::Merge;
use peergrad_protocol::{PeerId, ViewDigest};

use super::*;

const OTHER: ViewDigest = ViewDigest([90; 32]);

/// What another lineage leaves, which has trained the first 60 samples of the first pass.
fn will() -> Will {
    Will {
        view: OTHER,
        steps: StepNumber(5),
        ledger: Ledger { position: 60, ..Ledger::default() },
        trained: 60,
        roots: vec![],
        donors: vec![],
        convener: PeerId([9; 32]),
        question: 0,
    }
}

fn forking(geometry: &Geometry) -> Basis<'_> {
    Basis { forks: true, ..basis(geometry) }
}

/// A view of these peers that is to merge it with [`STEP`].
fn merging_view(cut: Cut) -> Geometry {
    let before = geometry(view(&[1, 2, 3, 4]), cut);
    let from = StepNumber(STEP.0 - 1);
    let dealt = dealt(&before.view, from);
    let change = forking(&before).merging(STEP, from, &dealt, &will()).expect("the run goes on");
    geometry(before.view.succeed(before.digest, &change).expect("it follows"), cut)
}

/// A member in the step that merges, with its part of what is merged or without.
fn heir(geometry: &Geometry, rank: u32, has_bequest: bool) -> Report {
    Report { has_bequest, ..inside(geometry, rank) }
}

fn lost(geometry: &Geometry, reports: &BTreeMap<Rank, Report>) -> (Succession, View) {
    let kept: Vec<Rank> = reports.keys().copied().collect();
    let merged = Dealt::following(&Dealt::default(), BATCH, SAMPLES, &geometry.view, STEP);
    let dealt_of = |step| (step == STEP).then_some(&merged);
    let change = forking(geometry).after_loss(&kept, reports, dealt_of).expect("somebody has parameters");
    let next = geometry.view.succeed(geometry.digest, &change).expect("it follows");
    (change, next)
}

#[test]
fn what_is_to_be_merged_weighs_what_each_has_trained_alone() {
    let geometry = merging_view(cut(2, true));
    let merge = geometry.view.merge().expect("it merges");
    let Merge { view, ours, theirs, ref ledger, .. } = *merge;
    assert_eq!((view, ours, theirs, ledger), (OTHER, BATCH * STEP.0, 60, &will().ledger));
    // What it has trained is not behind this lineage before the step is.
    assert_eq!(geometry.view.ledger.taken(SAMPLES), BATCH * STEP.0);
    let merged = Dealt::following(&Dealt::default(), BATCH, SAMPLES, &geometry.view, STEP);
    assert_eq!((merged.len(), merged.after.taken(SAMPLES)), (0, BATCH * STEP.0));
    let short = Will { trained: 0, ..will() };
    let far = Will { ledger: Ledger { position: SAMPLES + 1, ..Ledger::default() }, ..will() };
    let over = Will { ledger: Ledger { pass: PASSES, ..Ledger::default() }, ..will() };
    assert!(forking(&geometry).can_merge(&will()));
    let odd = Will { trained: 61, ..will() };
    assert!([short, far, over, odd].iter().all(|odd| !forking(&geometry).can_merge(odd)));
}

#[test]
fn it_is_still_merged_if_those_who_keep_a_chunk_have_both_states() {
    let geometry = merging_view(cut(2, true));
    let (change, next) = lost(&geometry, &reports([0, 1, 3].map(|rank| (rank, heir(&geometry, rank, true)))));
    assert_eq!((next.merge(), change.resume.step), (geometry.view.merge(), STEP));
    assert!(!next.comes_from(OTHER) && next.ledger == geometry.view.ledger.apart(0, 4, SAMPLES));
}

#[test]
fn it_is_given_up_whole_if_they_have_not() {
    for (copies, has_state, heirs) in [
        // State is lost with all who kept it.
        (1, true, [true; 3]),
        // So is the other lineage's, although there is none of this one.
        (1, false, [true; 3]),
        // Somebody has started again.
        (2, true, [true, false, true]),
    ] {
        let geometry = merging_view(cut(copies, has_state));
        let heirs = [0, 1, 3].into_iter().zip(heirs);
        let (change, next) =
            lost(&geometry, &reports(heirs.map(|(rank, has)| (rank, heir(&geometry, rank, has)))));
        assert_eq!((next.merge(), change.resume.step), (None, STEP), "{copies} copies, {has_state}");
        assert!(change.resume.is_interruption() && change.resume.deal.is_some_and(|deal| deal.is_empty()));
        assert_eq!(next.ledger.taken(SAMPLES), geometry.view.ledger.taken(SAMPLES));
        // After the next step as well.
        assert!(!next.comes_from(OTHER) && next.roots_at(STEP.next()).iter().all(|root| root.view != OTHER));
    }
}

#[test]
fn a_step_that_merges_is_never_rolled_forward() {
    let geometry = merging_view(cut(2, true));
    let done = |rank| (rank, Report { has_bequest: true, ..ahead(&geometry, rank) });
    let (change, next) = lost(&geometry, &reports([done(0), done(1), (3, heir(&geometry, 3, true))]));
    assert_eq!((change.resume.step, change.resume.forward.is_some()), (STEP, false));
    assert_eq!(next.merge(), geometry.view.merge());
}

#[test]
fn once_all_have_completed_the_step_it_is_merged() {
    let geometry = merging_view(cut(2, true));
    let merged = Dealt::following(&Dealt::default(), BATCH, SAMPLES, &geometry.view, STEP);
    let reports = reports([0, 1, 3].map(|rank| (rank, ahead(&geometry, rank))));
    let kept: Vec<Rank> = reports.keys().copied().collect();
    let after = Dealt::following(&merged, BATCH, SAMPLES, &geometry.view, STEP.next());
    let dealt_of = |step| (step == STEP.next()).then_some(&after);
    let change = forking(&geometry).after_loss(&kept, &reports, dealt_of).expect("they have parameters");
    let next = geometry.view.succeed(geometry.digest, &change).expect("it follows");
    assert_eq!((change.resume.step, next.merge()), (STEP.next(), None));
    assert!(next.comes_from(OTHER));
}

#[test]
fn where_somebody_is_still_in_the_step_before_that_one_is_completed_and_nothing_is_merged() {
    let geometry = merging_view(cut(2, true));
    let before = StepNumber(STEP.0 - 1);
    let entered = |rank| Report { tally: Some(TALLY), ..heir(&geometry, rank, true) };
    let next = Holdings { states: kept(&geometry, 1, STEP), ..Holdings::default() };
    let behind = Report { complete: Some(before), next: Some(next), ..heir(&geometry, 1, true) };
    let reports = reports([(0, entered(0)), (1, behind), (3, entered(3))]);
    let kept: Vec<Rank> = reports.keys().copied().collect();
    let known = dealt(&geometry.view, before);
    let dealt_of = |step| (step == before).then_some(&known);
    let change = forking(&geometry).after_loss(&kept, &reports, dealt_of).expect("somebody has parameters");
    assert!(change.resume.step == STEP && change.resume.forward.is_some() && change.resume.merge.is_none());
    assert_eq!(change.ledger.taken(SAMPLES), BATCH * STEP.0, "nothing of the other lineage is behind it");
}
