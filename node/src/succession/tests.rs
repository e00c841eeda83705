//! Cases of the rules, one by one, and then any reports that members can give of one and the same truth.

use std::sync::Arc;

use peergrad_protocol::PeerId;
use peergrad_protocol::chunks::ChunkSet;
use peergrad_protocol::ledger::Ledger;
use peergrad_protocol::limits::COPIES_MAX;
use peergrad_protocol::manifest::Chunks;
use peergrad_protocol::message::{Holdings, Tally};
use peergrad_protocol::placement::Copies;
use peergrad_protocol::view::{Recovery, View};

use super::*;
use crate::fixtures::{member, view};
use crate::geometry::Cut;

mod any_reports;
mod merging;
mod moved;
mod restarted;

const CHUNKS: usize = 40;
const SAMPLES: u64 = 100;
const BATCH: u64 = 12;
const PASSES: u64 = 3;
const TALLY: Tally = Tally { samples: BATCH, loss: 3.0 };
/// The step in progress of most cases.
const STEP: StepNumber = StepNumber(7);

fn cut(copies: usize, has_state: bool) -> Cut {
    Cut { copies: Copies::Number(copies), ..all(has_state) }
}

/// Everybody keeps everything.
fn all(has_state: bool) -> Cut {
    Cut {
        chunks: Chunks::of(16 * CHUNKS),
        copies: Copies::All,
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

fn geometry(view: View, cut: Cut) -> Geometry {
    let digest = view.digest();
    Geometry::new(Arc::new(view), digest, cut)
}

fn basis(geometry: &Geometry) -> Basis<'_> {
    Basis { geometry, sample_count: SAMPLES, batch_size: BATCH, passes: PASSES, drifts: false, forks: false }
}

/// How the batch of `step` is dealt in a view that has been there from the beginning of the run.
fn dealt(view: &View, step: StepNumber) -> Dealt {
    let first = Dealt::next(&Ledger::default(), BATCH, SAMPLES, view, StepNumber(0));
    (1..=step.0).fold(first, |dealt, step| Dealt::next(&dealt.after, BATCH, SAMPLES, view, StepNumber(step)))
}

/// The chunks that a member keeps the state of in `step`.
fn kept(geometry: &Geometry, rank: u32, step: StepNumber) -> ChunkSet {
    let placement = geometry.target.after(&geometry.view.moves, geometry.moved(step));
    (0..CHUNKS).filter(|chunk| placement.keepers(*chunk).contains(&Rank(rank))).collect()
}

/// A member in the middle of [`STEP`], which holds nothing of it yet.
fn inside(geometry: &Geometry, rank: u32) -> Report {
    Report {
        complete: Some(STEP),
        states: kept(geometry, rank, STEP),
        next: Some(Holdings::default()),
        ..Report::default()
    }
}

/// A member that has completed [`STEP`].
fn ahead(geometry: &Geometry, rank: u32) -> Report {
    let states = kept(geometry, rank, STEP);
    Report {
        complete: Some(STEP.next()),
        states_before: Some(states.clone()),
        states,
        tally: Some(TALLY),
        ..Report::default()
    }
}

fn reports(list: impl IntoIterator<Item = (u32, Report)>) -> BTreeMap<Rank, Report> {
    list.into_iter().map(|(rank, report)| (Rank(rank), report)).collect()
}

/// What a proposer makes of reports; who has not reported is gone.
fn after_loss(geometry: &Geometry, reports: &BTreeMap<Rank, Report>) -> Succession {
    let kept: Vec<Rank> = reports.keys().copied().collect();
    // The proposer is where the last of them is.
    let at = reports.values().filter_map(|report| report.complete).min().expect("somebody has parameters");
    let dealt = dealt(&geometry.view, at);
    let dealt_of = |step| (step == at).then_some(&dealt);
    let change = basis(geometry).after_loss(&kept, reports, dealt_of).expect("somebody has parameters");
    let next = geometry.view.succeed(geometry.digest, &change);
    assert!(next.is_ok_and(|next| basis(geometry).fits(&next)), "a record that is valid: {change:?}");
    change
}

/// Where chunk by chunk the state is when the view that comes of `change` begins, by new ranks.
fn keepers(geometry: &Geometry, change: &Succession) -> Vec<Vec<Rank>> {
    let next = geometry.view.succeed(geometry.digest, change).expect("a valid change");
    let digest = next.digest();
    let next = Geometry::new(Arc::new(next), digest, geometry.cut);
    let placement = next.target.after(&next.view.moves, 0);
    (0..CHUNKS).map(|chunk| placement.keepers(chunk).to_vec()).collect()
}

/// The chunks whose owner is this member, or with `is_any` also those of which it keeps a copy.
fn chunks_of(geometry: &Geometry, rank: u32, is_any: bool) -> Vec<usize> {
    let keepers = |chunk: usize| geometry.target.keepers(chunk);
    let is_theirs = |chunk: &usize| {
        let place = keepers(*chunk).iter().position(|keeper| *keeper == Rank(rank));
        place.is_some_and(|place| is_any || place == 0)
    };
    (0..CHUNKS).filter(is_theirs).collect()
}

// After a loss: where training goes on.

#[test]
fn a_step_that_is_nowhere_complete_is_begun_again() {
    let geometry = geometry(view(&[1, 3, 5]), cut(2, true));
    let change = after_loss(&geometry, &reports([0, 2].map(|rank| (rank, inside(&geometry, rank)))));
    assert_eq!((change.resume.step, &change.resume.forward), (STEP, &None));
    assert_eq!((change.removed, change.resume.newcomers), (vec![Rank(1)], vec![]));
    assert!(change.moves.restarted.is_empty(), "one copy was left of everything");
}

#[test]
fn what_all_that_stay_have_complete_goes_on_from_there() {
    let geometry = geometry(view(&[1, 3, 5]), cut(2, true));
    let both = reports([0, 2].map(|rank| (rank, ahead(&geometry, rank))));
    let change = after_loss(&geometry, &both);
    assert_eq!((change.resume.step, change.resume.forward), (STEP.next(), None));
}

#[test]
fn a_step_that_one_has_complete_is_rolled_forward_from_it() {
    let geometry = geometry(view(&[1, 3, 5]), cut(3, true));
    let mut slow = inside(&geometry, 0);
    slow.next = Some(Holdings { values: (0..10).collect(), ..Holdings::default() });
    let change = after_loss(&geometry, &reports([(0, slow), (2, ahead(&geometry, 2))]));
    assert_eq!(change.resume.step, STEP.next());
    let forward = change.resume.forward.expect("all of it is there");
    assert_eq!(forward.tally, TALLY);
    // Rank 2 is rank 1 now, and rank 0 has the first ten chunks itself.
    assert_eq!(forward.donors, [Donor { first: 10, end: CHUNKS as u32, rank: Rank(1) }]);
}

/// Members that have parameters of their own, at different steps; the proposer is at the first of them.
fn after_loss_adrift(steps: [u64; 2]) -> Succession {
    let geometry = geometry(view(&[1, 3, 5]), cut(1, false));
    let at = |steps| Report { complete: Some(StepNumber(steps)), tally: Some(TALLY), ..Report::default() };
    let reports = reports([(0, at(steps[0])), (2, at(steps[1]))]);
    let first = StepNumber(steps[0]);
    let dealt = dealt(&geometry.view, first);
    let basis = Basis { drifts: true, ..basis(&geometry) };
    let change = basis.after_loss(&[Rank(0), Rank(2)], &reports, |step| (step == first).then_some(&dealt));
    change.expect("both have parameters")
}

/// Nine steps make a pass, and three passes the run: steps 0 to 26.
#[test]
fn where_members_drift_the_furthest_is_where_all_go_on() {
    let change = after_loss_adrift([7, 9]);
    assert_eq!((change.resume.step, &change.resume.forward), (StepNumber(9), &None));
    let deal = change.resume.deal.expect("the run goes on");
    assert_eq!(
        (deal.pass, deal.parts.len()),
        (1, 2),
        "the proposer, behind by two, deals the step all the same"
    );
    assert_eq!(after_loss_adrift([9, 9]).resume.step, StepNumber(9));
}

#[test]
fn where_members_drift_the_mean_of_the_last_step_is_handed_on() {
    let change = after_loss_adrift([26, 27]);
    assert_eq!((change.resume.step, &change.resume.deal), (StepNumber(27), &None));
    let forward = change.resume.forward.expect("one of them holds the mean");
    assert_eq!(forward.donors, [Donor { first: 0, end: CHUNKS as u32, rank: Rank(1) }]);
    assert_eq!(after_loss_adrift([27, 27]).resume.forward, None, "both hold it");
}

/// Neither has the step complete, but together they hold it.
#[test]
fn a_step_that_members_hold_only_together_is_rolled_forward() {
    let geometry = geometry(view(&[1, 3, 5]), cut(3, true));
    let half = |rank: u32, values: std::ops::Range<usize>, tally| {
        let next = Holdings { values: values.collect(), states: ChunkSet::all(CHUNKS), tally };
        (rank, Report { next: Some(next), ..inside(&geometry, rank) })
    };
    let whole = reports([half(0, 0..25, None), half(2, 20..CHUNKS, Some(TALLY))]);
    let forward = after_loss(&geometry, &whole).resume.forward.expect("together they hold it");
    assert_eq!(
        forward.donors,
        [Donor { first: 0, end: 20, rank: Rank(0) }, Donor { first: 25, end: CHUNKS as u32, rank: Rank(1) }]
    );
    // One chunk less, or nobody who knows what the sums are worth.
    for lacking in [
        [half(0, 0..25, None), half(2, 26..CHUNKS, Some(TALLY))],
        [half(0, 0..25, None), half(2, 20..CHUNKS, None)],
    ] {
        let change = after_loss(&geometry, &reports(lacking));
        assert_eq!((change.resume.step, change.resume.forward), (STEP, None));
    }
}

/// The owner has sent its new values and died before the keeper of its copies had the sums.
#[test]
fn without_the_new_state_of_a_chunk_whose_owner_left_the_step_is_undone() {
    let geometry = geometry(view(&[1, 3, 5]), cut(2, true));
    let lost = |rank: u32, states: ChunkSet| {
        let next = Holdings { values: ChunkSet::all(CHUNKS), states, tally: Some(TALLY) };
        (rank, Report { next: Some(next), ..inside(&geometry, rank) })
    };
    let updated = |rank| kept(&geometry, rank, STEP);
    let change = after_loss(&geometry, &reports([lost(0, updated(0)), lost(2, updated(2))]));
    assert!(change.resume.forward.is_some(), "copies and owners together have it all");
    // Rank 2 has updated its own chunks only, and not the copies of rank 1's.
    let own: ChunkSet = chunks_of(&geometry, 2, false).into_iter().collect();
    let change = after_loss(&geometry, &reports([lost(0, updated(0)), lost(2, own)]));
    assert_eq!((change.resume.step, change.resume.forward), (STEP, None));
    assert!(change.moves.restarted.is_empty(), "the old state is still there");
}

/// With one copy only the state goes with its owner whatever is done: no reason to undo the step.
#[test]
fn state_that_is_lost_in_any_case_does_not_undo_a_step() {
    let geometry = geometry(view(&[1, 3, 5]), cut(1, true));
    let change = after_loss(&geometry, &reports([0, 2].map(|rank| (rank, ahead(&geometry, rank)))));
    assert_eq!((change.resume.step, &change.resume.forward), (STEP.next(), &None));
    let both = reports([(0, inside(&geometry, 0)), (2, ahead(&geometry, 2))]);
    let mut whole = both;
    let updated = Holdings { states: kept(&geometry, 0, STEP), ..Holdings::default() };
    whole.get_mut(&Rank(0)).expect("it has reported").next = Some(updated);
    let change = after_loss(&geometry, &whole);
    assert!(change.resume.forward.is_some());
    let lost: Vec<u32> = chunks_of(&geometry, 1, false).iter().map(|chunk| *chunk as u32).collect();
    assert_eq!(change.moves.restarted, lost);
}

#[test]
fn a_rule_without_state_needs_the_values_only() {
    let geometry = geometry(view(&[1, 3, 5]), cut(2, false));
    let empty = |report: Report| Report { states: ChunkSet::default(), ..report };
    let both = reports([(0, empty(inside(&geometry, 0))), (2, empty(ahead(&geometry, 2)))]);
    let change = after_loss(&geometry, &both);
    assert!(change.resume.forward.is_some());
    assert_eq!((change.moves.restarted.len(), change.moves.list.len()), (0, 0));
}

#[test]
fn nobody_with_parameters_makes_no_view() {
    let geometry = geometry(later_view(&[1, 3], STEP, &[1]), cut(2, true));
    let dealt = dealt(&geometry.view, STEP);
    let reports = reports([(1, Report::default())]);
    assert_eq!(basis(&geometry).after_loss(&[Rank(1)], &reports, |_| Some(&dealt)), None);
}

// After a loss: who holds what.

#[test]
fn copies_become_owners_at_once_and_everything_is_kept_by_those_who_hold_it() {
    let geometry = geometry(view(&[1, 3, 5, 7]), cut(2, true));
    let rest = [0, 2, 3];
    let change = after_loss(&geometry, &reports(rest.map(|rank| (rank, inside(&geometry, rank)))));
    for (chunk, keepers) in keepers(&geometry, &change).iter().enumerate() {
        let before = geometry.target.keepers(chunk).iter().filter(|rank| **rank != Rank(1));
        let before: Vec<Rank> =
            before.map(|rank| if *rank > Rank(1) { Rank(rank.0 - 1) } else { *rank }).collect();
        assert_eq!(*keepers, before, "chunk {chunk}");
    }
    // Those that only one holds move first.
    let counts: Vec<usize> = change.moves.list.iter().map(|moved| moved.from.len()).collect();
    assert!(counts.is_sorted() && counts.contains(&1), "{counts:?}");
    assert_eq!(change.moves.rate, 1);
}

/// Whoever of four goes in one stroke, the two others have everything, and it is theirs at once.
#[test]
fn where_all_keep_everything_no_two_losses_restart_anything() {
    let geometry = geometry(view(&[1, 3, 5, 7]), all(true));
    for (one, other) in (0..4).flat_map(|one| (one + 1..4).map(move |other| (one, other))) {
        let rest = (0..4).filter(|rank| *rank != one && *rank != other);
        let change = after_loss(&geometry, &reports(rest.map(|rank| (rank, inside(&geometry, rank)))));
        assert!(change.moves.restarted.is_empty(), "{one} and {other} are lost");
        assert!(keepers(&geometry, &change).iter().all(|keepers| keepers.len() == 2));
        // Nothing has to travel, so the very first step is a whole one.
        let next = geometry.view.succeed(geometry.digest, &change).expect("a valid change");
        let digest = next.digest();
        assert!(Geometry::new(Arc::new(next), digest, geometry.cut).shards(0).is_whole);
    }
}

/// Sums are nobody's new values: who has gathered them all, and not updated, has nothing of the step.
#[test]
fn a_step_of_gathered_sums_goes_forward_only_from_who_has_completed_it() {
    let geometry = geometry(view(&[1, 3, 5]), all(true));
    let gathered = |rank: u32| {
        let next = Holdings { tally: Some(TALLY), ..Holdings::default() };
        (rank, Report { next: Some(next), ..inside(&geometry, rank) })
    };
    let change = after_loss(&geometry, &reports([gathered(0), gathered(2)]));
    assert_eq!((change.resume.step, &change.resume.forward), (STEP, &None));
    assert!(change.moves.restarted.is_empty());

    let change = after_loss(&geometry, &reports([gathered(0), (2, ahead(&geometry, 2))]));
    let donors = change.resume.forward.as_ref().map(|forward| &forward.donors[..]);
    assert_eq!(donors, Some(&[Donor { first: 0, end: CHUNKS as u32, rank: Rank(1) }][..]));
    // The other one gets the values from it, and the state by moves.
    assert_eq!((change.moves.list.len(), change.moves.restarted.len()), (CHUNKS, 0));
    assert!(keepers(&geometry, &change).iter().all(|keepers| *keepers == [Rank(1)]));
}

/// It keeps copies, and owns only what nobody else holds.
#[test]
fn who_owns_nothing_keeps_copies_of_everything() {
    let mut view = view(&[1, 3, 5]);
    view.members[0].weight = 0;
    let three = geometry(view, all(true));
    assert!((0..CHUNKS).all(|chunk| three.target.keepers(chunk)[2] == Rank(0)));
    // One of the owners is lost; the other one owns everything, and has all of it.
    let change = after_loss(&three, &reports([0, 2].map(|rank| (rank, inside(&three, rank)))));
    assert!(keepers(&three, &change).iter().all(|keepers| *keepers == [Rank(1), Rank(0)]));
    assert!(change.moves.list.is_empty() && change.weights.is_empty());
    // Of the chunks in `awaited` the other owner has not got the state yet: until it has, they are with who holds them.
    let awaited = [3, 4];
    let mut late = inside(&three, 2);
    late.states = (0..CHUNKS).filter(|chunk| !awaited.contains(chunk)).collect();
    let change = after_loss(&three, &reports([(0, inside(&three, 0)), (2, late)]));
    for (chunk, keepers) in keepers(&three, &change).iter().enumerate() {
        let expected = if awaited.contains(&chunk) { &[Rank(0)][..] } else { &[Rank(1), Rank(0)] };
        assert_eq!(keepers, expected, "chunk {chunk}");
    }
    assert!(change.moves.restarted.is_empty());
}

#[test]
fn beyond_the_limit_the_best_keep_copies_and_truncated_lists_are_records() {
    let peers: Vec<u8> = (1..=COPIES_MAX as u8 + 4).collect();
    let geometry = geometry(view(&peers), all(true));
    let rest = 1..peers.len() as u32;
    let change = after_loss(&geometry, &reports(rest.map(|rank| (rank, ahead(&geometry, rank)))));
    let counts: Vec<usize> = keepers(&geometry, &change).iter().map(Vec::len).collect();
    assert!(counts.iter().all(|count| [COPIES_MAX, COPIES_MAX - 1].contains(count)), "{counts:?}");
}

/// What moved between the two reports: an old keeper that still has the state is as good as a new one.
#[test]
fn whoever_holds_the_state_is_its_keeper() {
    let geometry = geometry(view(&[1, 3, 5, 7]), cut(2, true));
    let chunk = chunks_of(&geometry, 1, true)[0];
    let stranger = (0..4).find(|rank| !geometry.target.keepers(chunk).contains(&Rank(*rank))).unwrap();
    let mut all = reports([0, 1, 2, 3].map(|rank| (rank, inside(&geometry, rank))));
    all.get_mut(&Rank(stranger)).unwrap().states.insert(chunk);
    for keeper in geometry.target.keepers(chunk) {
        all.remove(keeper);
    }
    let change = after_loss(&geometry, &all);
    assert!(!change.moves.restarted.contains(&(chunk as u32)));
    let new_rank = all.keys().position(|rank| *rank == Rank(stranger)).unwrap();
    assert_eq!(keepers(&geometry, &change)[chunk], [Rank::from_index(new_rank)]);
}

/// A newcomer goes through its first step without parameters: what is given to it there would never be updated.
#[test]
fn a_chunk_whose_keepers_left_does_not_fall_to_a_newcomer() {
    for (copies, has_state) in [(1, true), (2, true), (2, false)] {
        // The newcomer is the first in order.
        let geometry = geometry(later_view(&[1, 3, 5], STEP, &[0]), cut(copies, has_state));
        let silent = Report { complete: None, ..Report::default() };
        let change = after_loss(&geometry, &reports([(0, silent), (2, inside(&geometry, 2))]));
        assert_eq!((change.resume.step, &change.resume.newcomers[..]), (STEP, &[Rank(0)][..]));
        let keepers = keepers(&geometry, &change);
        assert!(keepers.iter().all(|keepers| *keepers == [Rank(1)]), "{keepers:?}");
        assert_eq!(change.moves.restarted.is_empty(), !has_state);
    }
}

#[test]
fn somebody_owns_the_chunks_even_if_nobody_offered_to() {
    let mut view = view(&[1, 3, 5]);
    view.members[0].weight = 0;
    view.members[2].weight = 0;
    let geometry = geometry(view, cut(2, true));
    let change = after_loss(&geometry, &reports([0, 2].map(|rank| (rank, inside(&geometry, rank)))));
    assert_eq!(change.weights, [(Rank(0), 1)]);
    assert_eq!(change.moves.restarted.len(), CHUNKS, "nobody else had kept anything");
}

// After a loss: newcomers.

#[test]
fn a_newcomer_whose_first_step_is_undone_is_one_again() {
    let geometry = geometry(later_view(&[1, 3, 5], STEP, &[2]), cut(2, true));
    let states = ChunkSet::default;
    let fresh = |report| Report { states: states(), states_before: None, is_entering: true, ..report };
    // It is ahead; but a chunk's new state is gone with rank 1.
    let both = reports([(0, inside(&geometry, 0)), (2, fresh(ahead(&geometry, 2)))]);
    let change = after_loss(&geometry, &both);
    assert_eq!((change.resume.step, &change.resume.forward), (STEP, &None));
    assert_eq!(change.resume.newcomers, [Rank(1)]);
    // Once it has its parameters from a step that stays, it is none.
    let both = reports([(0, ahead(&geometry, 0)), (2, fresh(ahead(&geometry, 2)))]);
    let change = after_loss(&geometry, &both);
    assert_eq!((change.resume.step, change.resume.newcomers), (STEP.next(), vec![]));
}

#[test]
fn a_newcomer_without_parameters_is_still_one() {
    let geometry = geometry(later_view(&[1, 3, 5], STEP, &[0]), cut(3, true));
    let all = reports([(0, Report::default()), (1, inside(&geometry, 1))]);
    let change = after_loss(&geometry, &all);
    assert_eq!((change.resume.step, change.resume.newcomers), (STEP, vec![Rank(0)]));
}

// After a loss: whose samples are which.

#[test]
fn who_stays_keeps_its_part_and_the_rest_goes_back() {
    let geometry = geometry(view(&[1, 3, 5]), cut(2, true));
    let change = after_loss(&geometry, &reports([0, 2].map(|rank| (rank, inside(&geometry, rank)))));
    let before = dealt(&geometry.view, STEP);
    let deal = change.resume.deal.expect("a batch was dealt");
    assert_eq!(deal.pass, before.pass);
    assert_eq!(deal.parts, [before.parts[0].spans.clone(), before.parts[2].spans.clone()]);
    assert_eq!(change.ledger.given_back, before.parts[1].spans);
    assert_eq!(change.ledger.position, before.after.position);
}

/// A proposer that is itself behind deals the next step as those who are ahead did.
#[test]
fn the_step_after_one_that_is_rolled_forward_is_dealt_as_it_was() {
    let geometry = geometry(view(&[1, 3, 5]), cut(3, true));
    let change = after_loss(&geometry, &reports([(0, inside(&geometry, 0)), (2, ahead(&geometry, 2))]));
    let before = dealt(&geometry.view, STEP.next());
    let deal = change.resume.deal.expect("a batch was dealt");
    assert_eq!(deal.parts, [before.parts[0].spans.clone(), before.parts[2].spans.clone()]);
}

/// Everybody is done, and somebody is lost before the last step is committed: of the pass that never comes nothing is taken.
#[test]
fn after_the_last_step_nothing_is_dealt() {
    let geometry = geometry(view(&[1, 3, 5]), cut(2, true));
    let mut last = dealt(&geometry.view, StepNumber(0));
    let mut steps = StepNumber(0);
    while last.pass < PASSES {
        steps = steps.next();
        last = Dealt::next(&last.after, BATCH, SAMPLES, &geometry.view, steps);
    }
    let done = |rank| (rank, Report { complete: Some(steps), ..inside(&geometry, rank) });
    let kept = [Rank(0), Rank(2)];
    let change = basis(&geometry).after_loss(&kept, &reports([done(0), done(2)]), |_| Some(&last)).unwrap();
    assert_eq!((change.resume.step, &change.resume.deal), (steps, &None));
    assert_eq!(change.ledger.taken(SAMPLES), PASSES * SAMPLES);
    let next = geometry.view.succeed(geometry.digest, &change).expect("a valid change");
    assert_eq!(Dealt::next(&change.ledger, BATCH, SAMPLES, &next, steps).pass, PASSES);
}

// Between two steps.

/// The change to the view that begins three steps from now.
fn between_steps(geometry: &Geometry, exchange: &Exchange) -> Option<Succession> {
    let dealt = dealt(&geometry.view, STEP);
    let change = basis(geometry).between_steps(StepNumber(STEP.0 + 3), STEP, &dealt, exchange)?;
    let next = geometry.view.succeed(geometry.digest, &change);
    assert!(next.is_ok_and(|next| basis(geometry).fits(&next)), "a record that is valid: {change:?}");
    Some(change)
}

#[test]
fn a_joiner_comes_in_between_two_steps_and_gets_its_chunks_by_moves() {
    let geometry = geometry(view(&[1, 3]), cut(2, true));
    let exchange = Exchange { joiners: vec![member(2)], ..Exchange::default() };
    let change = between_steps(&geometry, &exchange).expect("the run goes on");
    let resume = Resume { newcomers: vec![Rank(1)], ..Resume::at(StepNumber(STEP.0 + 3)) };
    assert_eq!((&change.resume, &change.added), (&resume, &exchange.joiners));
    assert_eq!(change.ledger, dealt(&geometry.view, StepNumber(STEP.0 + 2)).after);
    assert_eq!((change.removed.len(), change.weights.len()), (0, 0));
    // Until their turn all chunks stay with the two who have them.
    for (chunk, keepers) in keepers(&geometry, &change).iter().enumerate() {
        let renamed = geometry.target.keepers(chunk).iter().map(|rank| Rank(2 * rank.0));
        assert_eq!(*keepers, renamed.collect::<Vec<_>>(), "chunk {chunk}");
    }
    assert!(!change.moves.list.is_empty() && change.moves.restarted.is_empty());
}

/// The newcomer keeps nothing in its first step, and everything after the last turn.
#[test]
fn a_joiner_comes_to_keep_everything_too() {
    let before = geometry(view(&[1, 3]), all(true));
    let exchange = Exchange { joiners: vec![member(2)], ..Exchange::default() };
    let change = between_steps(&before, &exchange).expect("the run goes on");
    assert_eq!(change.moves.list.len(), CHUNKS);
    let next = before.view.succeed(before.digest, &change).expect("a valid change");
    let after = geometry(next, before.cut);
    let is_whole = |moved| after.shards(moved).is_whole;
    assert!(!is_whole(0) && !is_whole(CHUNKS - 1) && is_whole(CHUNKS));
    // Before the last turn it may not go with all the others.
    let step = |turns: u64| StepNumber(after.view.first_step().0 + turns);
    assert!(!basis(&after).can_go(&[Rank(0), Rank(2)], step(1)));
    assert!(basis(&after).can_go(&[Rank(0), Rank(2)], step(CHUNKS as u64 + 1)));
}

/// The moves of the view before are not over: what has not had its turn is still where it was.
#[test]
fn chunks_that_have_not_moved_yet_move_from_where_they_are() {
    let before = geometry(view(&[1, 3]), cut(2, true));
    let exchange = Exchange { joiners: vec![member(2)], ..Exchange::default() };
    let mut change = between_steps(&before, &exchange).expect("the run goes on");
    change.moves.rate = 4;
    let view = before.view.succeed(before.digest, &change).unwrap();
    let first_step = view.first_step();
    let geometry = geometry(view, cut(2, true));
    let dealt = Dealt::next(&geometry.view.ledger, BATCH, SAMPLES, &geometry.view, first_step);
    let step = StepNumber(first_step.0 + 3);
    let exchange = Exchange { joiners: vec![member(9)], ..Exchange::default() };
    let next = basis(&geometry).between_steps(step, first_step, &dealt, &exchange).unwrap();
    // In the step before it, two turns of four were over; the third comes with the step that is not taken any more.
    let placement = geometry.target.after(&geometry.view.moves, 8);
    for (chunk, keepers) in keepers(&geometry, &next).iter().enumerate() {
        assert_eq!(keepers, placement.keepers(chunk), "chunk {chunk}");
    }
}

/// One that cannot be reached any more hands over what it has, and one that can be again gets a share; nobody stops.
#[test]
fn weights_change_between_two_steps_and_chunks_move() {
    let before = geometry(view(&[1, 3, 5]), cut(1, true));
    let exchange = Exchange { weights: vec![(Rank(1), 0)], ..Exchange::default() };
    let change = between_steps(&before, &exchange).expect("the run goes on");
    assert_eq!((&change.weights[..], change.removed.len()), (&[(Rank(1), 0)][..], 0));
    assert!(!change.resume.is_interruption());
    let moving: Vec<usize> = change.moves.list.iter().map(|moved| moved.chunk as usize).collect();
    assert_eq!(moving, chunks_of(&before, 1, false), "all that it owns, and nothing else");
    let next = before.view.succeed(before.digest, &change).expect("a valid change");
    assert_eq!(next.keepers(), [true; 3], "until its chunks have moved it has to be reached");
    let worker = View { moves: Moves::default(), ..next };
    assert_eq!(worker.keepers(), [true, false, true]);
    let after = geometry(worker, before.cut);
    let exchange = Exchange { weights: vec![(Rank(1), 1)], ..Exchange::default() };
    let change = between_steps(&after, &exchange).expect("the run goes on");
    assert_eq!(change.weights, [(Rank(1), 1)]);
    let moving: Vec<usize> = change.moves.list.iter().map(|moved| moved.chunk as usize).collect();
    assert_eq!(moving, chunks_of(&before, 1, false), "they come back");
}

#[test]
fn a_leaver_goes_at_once_if_others_keep_copies_and_else_hands_over_first() {
    let step = StepNumber(STEP.0 + 3);
    let one = geometry(view(&[1, 3, 5]), cut(1, true));
    let two = geometry(view(&[1, 3, 5]), cut(2, true));
    let none = geometry(view(&[1, 3, 5]), cut(1, false));
    assert!(!basis(&one).can_go(&[Rank(1)], step));
    assert!(basis(&two).can_go(&[Rank(1)], step) && !basis(&two).can_go(&[Rank(1), Rank(2)], step));
    assert!(basis(&none).can_go(&[Rank(0), Rank(1)], step), "there is nothing to keep");

    let whole = geometry(view(&[1, 3, 5]), all(true));
    assert!(basis(&whole).can_go(&[Rank(0), Rank(2)], step), "one that stays is enough");
    assert!(!basis(&whole).can_go(&[Rank(0), Rank(1), Rank(2)], step));

    let leaving = Exchange { leavers: vec![Rank(1)], ..Exchange::default() };
    let change = between_steps(&two, &leaving).expect("the run goes on");
    assert_eq!((&change.removed[..], &change.resume), (&[Rank(1)][..], &Resume::at(step)));
    assert!(change.moves.restarted.is_empty());

    let retiring = Exchange { retirees: vec![Rank(1)], ..Exchange::default() };
    let change = between_steps(&one, &retiring).expect("the run goes on");
    assert_eq!((&change.weights[..], change.removed.len()), (&[(Rank(1), 0)][..], 0));
    let moving: Vec<usize> = change.moves.list.iter().map(|moved| moved.chunk as usize).collect();
    assert_eq!(moving, chunks_of(&one, 1, false), "all that it owns, and nothing else");
    assert_eq!(change.moves.rate as usize, moving.len().div_ceil(TURNS_IN_A_HURRY));
    let next = one.view.succeed(one.digest, &change).unwrap();
    let after = geometry(next, cut(1, true));
    let later = StepNumber(step.0 + TURNS_IN_A_HURRY as u64 + 1);
    assert!(!basis(&after).can_go(&[Rank(1)], step.next()) && basis(&after).can_go(&[Rank(1)], later));
}

#[test]
fn values_without_state_are_where_they_belong_after_one_step() {
    let geometry = geometry(view(&[1, 3]), cut(1, false));
    let exchange = Exchange { joiners: vec![member(2)], ..Exchange::default() };
    let change = between_steps(&geometry, &exchange).expect("the run goes on");
    assert_eq!(change.moves.rate as usize, change.moves.list.len());
    assert!(keepers(&geometry, &change).iter().all(|keepers| *keepers != [Rank(1)]));
}

#[test]
fn no_view_begins_after_the_last_step() {
    let geometry = geometry(view(&[1, 3]), cut(2, true));
    let exchange = Exchange { joiners: vec![member(2)], ..Exchange::default() };
    let steps = PASSES * SAMPLES.div_ceil(BATCH);
    let at = |step: u64| {
        let dealt = dealt(&geometry.view, StepNumber(step - 1));
        basis(&geometry).between_steps(StepNumber(step), StepNumber(step - 1), &dealt, &exchange)
    };
    assert!(at(steps - 1).is_some() && at(steps).is_none() && at(steps + 5).is_none());
    let dealt = dealt(&geometry.view, StepNumber(steps - 4));
    let named =
        |step| basis(&geometry).between_steps(StepNumber(step), StepNumber(steps - 4), &dealt, &exchange);
    assert!(named(steps - 1).is_some() && named(steps).is_none());
}

#[test]
fn the_order_of_peers_gives_everyone_its_new_rank() {
    let view = view(&[2, 4, 6, 8]);
    let exchange = Exchange {
        joiners: vec![member(1), member(5)],
        leavers: vec![Rank(1)],
        retirees: vec![Rank(3)],
        ..Exchange::default()
    };
    let roll = Roll::new(&view, &exchange);
    let peers: Vec<u8> = roll.members.iter().map(|member| member.peer.0[0]).collect();
    assert_eq!(peers, [1, 2, 5, 6, 8]);
    let new: Vec<Option<u32>> = (0..4).map(|rank| roll.new_rank(Rank(rank)).map(|rank| rank.0)).collect();
    assert_eq!(new, [Some(1), None, Some(3), Some(4)]);
    assert_eq!(roll.newcomers(), [Rank(0), Rank(2)]);
    assert_eq!((roll.members[4].weight, roll.members[3].weight), (0, 1));
}

#[test]
fn if_all_that_stay_retire_one_of_them_keeps_owning() {
    let view = view(&[2, 4]);
    let light = Member { weight: 0, ..member(1) };
    let exchange = Exchange { joiners: vec![light], retirees: vec![Rank(0), Rank(1)], ..Exchange::default() };
    let weights: Vec<u8> = Roll::new(&view, &exchange).members.iter().map(|member| member.weight).collect();
    assert_eq!(weights, [0, 1, 0], "a newcomer has nothing that it could own");
}
