//! Selection: the members that the next view keeps, of those that have reported.
//!
//! Some pairs of members cannot both stay: two that do not reach each other, and two of which one has complained about the other. When all
//! members stand still, the one that waits for the earliest thing counts as complaining about those that owe it. The fewest members whose
//! absence resolves all pairs have to go. If several choices are as small, the members that stay are those that were
//! [suspicious](peergrad_protocol::view::View::suspicion) least often, then those of lower rank.
//!
//! # Invariants
//! - Complaints never leave fewer members than can decide, nor only members without parameters. Then they are ignored, and the step is
//!   repeated with the same members.

use std::collections::{BTreeMap, BTreeSet};

use peergrad_protocol::Rank;
use peergrad_protocol::agreement::is_quorum;
use peergrad_protocol::clique;
use peergrad_protocol::limits::QUARANTINES_MAX;
use peergrad_protocol::message::MemberReport;
use peergrad_protocol::view::{Expulsion, ExpulsionCause, MemberFault, Quarantine, View};

use super::super::complaints::counting;
use super::super::place::Place;
use super::super::succession::AttemptPlan;
use crate::membership::view_change::driver::Attempt;

/// Which members a proposed view keeps, and why it is without others.
pub(super) struct Selection {
    /// The members that stay, in order.
    pub(super) kept: Vec<Rank>,
    /// The members that could stay if nobody had complained, in order.
    reachable: Vec<Rank>,
    /// Whether these are all that have answered and do not hang.
    pub(super) are_all: bool,
    /// The members that have to go because of complaints.
    pub(super) quarantined: Vec<Quarantine>,
}

/// Whether members wait for the first time since a step was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repetition {
    /// A step was committed in this view.
    First,
    /// None was: perhaps the view before ended in the same way.
    Again,
}

impl Selection {
    /// The same without regard to complaints.
    pub(super) fn without_complaints(&self) -> Self {
        let reachable = self.reachable.clone();
        Self { kept: reachable.clone(), reachable, are_all: self.are_all, quarantined: vec![] }
    }

    /// The peers that are expelled, because they have been quarantined too often.
    pub(super) fn expulsions(&self, view: &View) -> impl Iterator<Item = Expulsion> {
        let expulsion =
            |it: &Quarantine| Expulsion { peer: it.peer, by: it.other, cause: ExpulsionCause::Faults };
        self.quarantined.iter().filter(|quarantine| view.is_last_quarantine(quarantine)).map(expulsion)
    }
}

/// The reports of members that could stay, by rank.
type Reports<'r> = BTreeMap<Rank, &'r MemberReport>;

/// The reports in an attempt of the members that can train and do not hang.
pub(super) fn fit_reports(attempt: &Attempt<AttemptPlan>) -> Reports<'_> {
    let is_fit = |(rank, report): &(&Rank, &MemberReport)| {
        !report.is_vote_only && !attempt.plan.hanging.contains(rank)
    };
    attempt.proposer().reports().iter().filter(is_fit).map(|(rank, report)| (*rank, report)).collect()
}

/// The members of the view of `place` that the next view keeps, of those with a report. The member at `place` decides.
pub(super) fn select(place: &Place, reports: &Reports<'_>, repetition: Repetition) -> Selection {
    let view = &place.view;
    let lost = reports.iter().flat_map(|(rank, report)| report.lost.iter().map(|lost| (*rank, *lost)));
    let cut: BTreeSet<(Rank, Rank)> = lost.filter(|(_, lost)| reports.contains_key(lost)).collect();
    let reachable = largest(&by_suspicion(view), reports, &cut);
    let all = Selection {
        are_all: reachable.len() == reports.len(),
        kept: reachable.clone(),
        quarantined: vec![],
        reachable,
    };
    let faults = Faults::among(&all.reachable, reports, repetition);
    if faults.by_pair.is_empty() {
        return all;
    }
    let pairs = cut.iter().copied().chain(faults.by_pair.keys().copied()).collect();
    let has_parameters = |ranks: &[Rank]| ranks.iter().any(|rank| reports[rank].complete.is_some());
    let can_continue = |kept: &Vec<Rank>| {
        is_quorum(kept.iter().copied(), view.members.len())
            && (has_parameters(kept) || !has_parameters(&all.reachable))
    };
    // Where half of the members decide only with the first one, the order by rank may do what the other one cannot.
    let by_rank = (0..view.members.len()).map(Rank::from_index).collect();
    let mut choices = [by_suspicion(view), by_rank].into_iter().map(|order| largest(&order, reports, &pairs));
    let Some(kept) = choices.find(can_continue) else { return all };
    let gone = all.reachable.iter().filter(|rank| kept.binary_search(rank).is_err());
    let quarantined = gone.filter_map(|rank| faults.quarantine(*rank, &kept, place)).take(QUARANTINES_MAX);
    Selection { quarantined: quarantined.collect(), kept, ..all }
}

/// The ranks of all members, those first that were suspicious least often.
fn by_suspicion(view: &View) -> Vec<Rank> {
    let mut order: Vec<Rank> = (0..view.members.len()).map(Rank::from_index).collect();
    if !view.quarantined.is_empty() {
        order.sort_by_cached_key(|rank| (view.suspicion(&view.member(*rank).peer), *rank));
    }
    order
}

/// The largest set of the members with reports in which no pair occurs, in order. Ties go to the first ones in `order`.
fn largest(order: &[Rank], reports: &Reports<'_>, pairs: &BTreeSet<(Rank, Rank)>) -> Vec<Rank> {
    let mut places = vec![Rank(0); order.len()];
    order.iter().enumerate().for_each(|(index, rank)| places[rank.index()] = Rank::from_index(index));
    let of_places = pairs.iter().map(|(one, other)| (places[one.index()], places[other.index()])).collect();
    let kept = clique::largest(order.len(), &of_places).into_iter().map(|at| order[at.index()]);
    let kept: BTreeSet<Rank> = kept.filter(|rank| reports.contains_key(rank)).collect();
    kept.into_iter().collect()
}

/// When all members stand still: those that wait for the earliest thing, each with those that owe it.
///
/// A wait for members of which nothing can be said explains all later ones. If that happens again, it is no longer believed.
fn withheld(members: &[Rank], reports: &Reports<'_>, repetition: Repetition) -> Vec<(Rank, Rank)> {
    if !members.iter().all(|rank| reports[rank].is_still) {
        return vec![];
    }
    let is_debtor = |rank: Rank, from: &Rank| rank != *from && members.binary_search(from).is_ok();
    let waits = members.iter().filter_map(|rank| {
        let awaited = reports[rank].awaited.as_ref()?;
        let debtors: Vec<Rank> = awaited.from.iter().copied().filter(|from| is_debtor(*rank, from)).collect();
        (repetition == Repetition::First || !debtors.is_empty()).then_some((awaited.at, *rank, debtors))
    });
    let waits: Vec<_> = waits.collect();
    let earliest = waits.iter().map(|(at, ..)| *at).min();
    let first = waits.into_iter().filter(|(at, ..)| Some(*at) == earliest);
    first.flat_map(|(_, rank, debtors)| debtors.into_iter().map(move |from| (rank, from))).collect()
}

/// The complaints among some members.
struct Faults {
    /// By the member that complains and the one that it complains about: what it has noticed.
    by_pair: BTreeMap<(Rank, Rank), MemberFault>,
}

impl Faults {
    /// The complaints that count among these members, which are in order.
    fn among(members: &[Rank], reports: &Reports<'_>, repetition: Repetition) -> Self {
        let own = |rank: &Rank| {
            let is_about = |about: &Rank| about != rank && members.binary_search(about).is_ok();
            let complaints = reports[rank].complaints.iter().filter(|complaint| is_about(&complaint.about));
            complaints.map(|it| ((*rank, it.about), it.fault)).collect::<Vec<_>>()
        };
        let complaints: Vec<_> = members.iter().flat_map(own).collect();
        let mut by_pair: BTreeMap<(Rank, Rank), MemberFault> = counting(complaints.iter().copied()).collect();
        for pair in withheld(members, reports, repetition) {
            by_pair.entry(pair).or_insert(MemberFault::Withheld);
        }
        Self { by_pair }
    }

    /// Why a member has to go; `None` if no complaint concerns it.
    fn quarantine(&self, rank: Rank, kept: &[Rank], place: &Place) -> Option<Quarantine> {
        let at_other_end = |(from, about): &(Rank, Rank)| match rank {
            rank if rank == *about => Some(*from),
            rank if rank == *from => Some(*about),
            _ => None,
        };
        let others: BTreeSet<Rank> = self.by_pair.keys().filter_map(at_other_end).collect();
        let accusers = self.by_pair.keys().filter(|(_, about)| *about == rank).count();
        // One that stays rather than one that goes as well, and one that does not decide this itself.
        let doubt = |other: &Rank| (kept.binary_search(other).is_err(), *other == place.rank, *other);
        let other = others.into_iter().min_by_key(doubt)?;
        let fault = self.by_pair.get(&(other, rank)).or_else(|| self.by_pair.get(&(rank, other)))?;
        let (peer, other) = (place.peer(rank), place.peer(other));
        Some(Quarantine { peer, other, fault: *fault, is_certain: accusers > 1 })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use peergrad_protocol::StepNumber;
    use peergrad_protocol::message::{Awaited, AwaitedAt, Stage};
    use peergrad_protocol::view::Complaint;

    use super::*;
    use crate::fixtures::{self, peer};

    /// What the member with rank 0 decides in a view of five, given who has complained about whom and who was left out before.
    fn selection(complaints: &[(u32, u32)], before: &[Quarantine]) -> Selection {
        let reports = (0..5).map(|rank| report(rank, complaints)).collect();
        decide(reports, before, Repetition::First)
    }

    fn report(rank: u32, complaints: &[(u32, u32)]) -> MemberReport {
        let about = complaints.iter().filter(|(from, _)| *from == rank);
        let complaint = |about: &(u32, u32)| Complaint { about: Rank(about.1), fault: MemberFault::Frames };
        let complete = Some(StepNumber(7));
        MemberReport { complete, complaints: about.map(complaint).collect(), ..MemberReport::default() }
    }

    fn decide(all: Vec<MemberReport>, before: &[Quarantine], repetition: Repetition) -> Selection {
        let peers: Vec<u8> = (1..=all.len() as u8).collect();
        let view = View { quarantined: before.to_vec(), ..fixtures::view(&peers) };
        let digest = view.digest();
        let place = Place::new(fixtures::member(1), Arc::new(view), digest);
        let reports = all.iter().enumerate().map(|(index, it)| (Rank::from_index(index), it)).collect();
        select(&place, &reports, repetition)
    }

    fn gone(selection: &Selection) -> Vec<u32> {
        let all = selection.reachable.iter();
        all.filter(|rank| !selection.kept.contains(rank)).map(|rank| rank.0).collect()
    }

    fn quarantine(peer_byte: u8, other: u8, is_certain: bool) -> Quarantine {
        Quarantine { peer: peer(peer_byte), other: peer(other), fault: MemberFault::Frames, is_certain }
    }

    #[test]
    fn the_member_that_several_complain_about_has_to_go() {
        let selection = selection(&[(0, 1), (3, 1), (1, 4)], &[]);
        assert_eq!(gone(&selection), [1]);
        assert_eq!(
            selection.quarantined,
            [quarantine(2, 4, true)],
            "not by the word of the one that decides"
        );
    }

    #[test]
    fn of_two_members_the_higher_rank_has_to_go_and_the_next_time_the_other_one() {
        let first = selection(&[(2, 3)], &[]);
        assert_eq!((gone(&first), &first.quarantined), (vec![3], &vec![quarantine(4, 3, false)]));
        let second = selection(&[(2, 3)], &first.quarantined);
        assert_eq!((gone(&second), &second.quarantined), (vec![2], &vec![quarantine(3, 4, false)]));
    }

    /// A member that lies about one member after the other, or harms one after the other, is found at the second time.
    #[test]
    fn the_member_that_is_concerned_each_time_has_to_go() {
        let first = selection(&[(1, 3)], &[]);
        assert_eq!(gone(&first), [3]);
        assert_eq!(gone(&selection(&[(1, 4)], &first.quarantined)), [1]);
        assert_eq!(gone(&selection(&[(2, 1)], &first.quarantined)), [1]);
    }

    #[test]
    fn the_third_time_is_an_expulsion() {
        let before = [quarantine(2, 1, true), quarantine(2, 3, true)];
        let view = View { quarantined: before.to_vec(), ..fixtures::view(&[1, 2, 3, 4, 5]) };
        let expulsions = |complaints: &[(u32, u32)], before: &[Quarantine]| -> Vec<Expulsion> {
            selection(complaints, before).expulsions(&view).collect()
        };
        let expulsion = Expulsion { peer: peer(2), by: peer(3), cause: ExpulsionCause::Faults };
        assert_eq!(expulsions(&[(2, 1), (3, 1)], &before), [expulsion]);
        assert_eq!(expulsions(&[(2, 4), (3, 4)], &before), []);
    }

    #[test]
    fn complaints_never_leave_too_few_members() {
        let all_against_all: Vec<(u32, u32)> = (0..5).flat_map(|a| (0..5).map(move |b| (a, b))).collect();
        let selection = selection(&all_against_all, &[]);
        assert_eq!((gone(&selection), selection.quarantined), (vec![], vec![]));
    }

    /// A member that complains about several may be the one at fault, but nothing is certain.
    #[test]
    fn complaints_of_one_member_are_no_certainty() {
        let selection = selection(&[(2, 1), (2, 3)], &[]);
        assert_eq!((gone(&selection), selection.quarantined), (vec![2], vec![quarantine(3, 2, false)]));
    }

    #[test]
    fn of_two_members_the_first_one_can_continue_each_time() {
        let reports = || (0..2).map(|rank| report(rank, &[(0, 1)])).collect();
        let first = decide(reports(), &[], Repetition::First);
        assert_eq!(gone(&first), [1]);
        assert_eq!(gone(&decide(reports(), &first.quarantined, Repetition::First)), [1]);
    }

    #[test]
    fn members_without_parameters_do_not_stay_alone() {
        let newcomer = |rank| MemberReport { complete: None, ..report(rank, &[(0, 2), (1, 2)]) };
        let selection = decide(vec![newcomer(0), newcomer(1), report(2, &[])], &[], Repetition::First);
        assert_eq!((gone(&selection), selection.quarantined), (vec![], vec![]));
    }

    /// Reports of members that stand still, each of which waits for something of another one: at which step, and of whom.
    fn waiting(waits: &[(u64, &[u32])]) -> Vec<MemberReport> {
        let wait = |(step, from): &(u64, &[u32])| {
            let at = AwaitedAt { step: StepNumber(*step), stage: Stage::Reduce, hop: 0 };
            let awaited = Some(Awaited { at, from: from.iter().copied().map(Rank).collect() });
            MemberReport { is_still: true, awaited, ..report(0, &[]) }
        };
        waits.iter().map(wait).collect()
    }

    #[test]
    fn the_member_that_owes_the_earliest_thing_has_to_go() {
        let reports = || waiting(&[(7, &[3]), (8, &[0]), (7, &[3]), (9, &[0]), (8, &[0])]);
        assert_eq!(gone(&decide(reports(), &[], Repetition::First)), [3]);
        let mut one_computes = reports();
        one_computes[4].is_still = false;
        assert_eq!(gone(&decide(one_computes, &[], Repetition::First)), []);
    }

    /// A wait for a member that was cut off explains the others, but not again and again.
    #[test]
    fn a_wait_for_nobody_is_believed_once() {
        let reports = || waiting(&[(7, &[3]), (8, &[0]), (7, &[3]), (9, &[0]), (0, &[])]);
        assert_eq!(gone(&decide(reports(), &[], Repetition::First)), []);
        assert_eq!(gone(&decide(reports(), &[], Repetition::Again)), [3]);
    }
}
