//! Selection: the members that the next view keeps, of those that have reported.
//!
//! Two kinds of pairs cannot both stay: members that do not reach each other, and members of which one has complained about the other, or
//! waits for the other while all others wait for later things. The fewest members whose absence resolves all pairs are left out. If several choices leave out as few, the members that stay are those that
//! were [suspicious](peergrad_protocol::view::View::suspicion) least often, then those of lower rank.
//!
//! # Invariants
//! - Complaints never leave fewer members than can decide: then they are ignored, and the step is repeated with the same members.

use std::collections::{BTreeMap, BTreeSet};

use peergrad_protocol::agreement::is_quorum;
use peergrad_protocol::clique;
use peergrad_protocol::limits::TIMES_LEFT_OUT_MAX;
use peergrad_protocol::message::MemberReport;
use peergrad_protocol::view::{Expulsion, ExpulsionCause, LeftOut, MemberFault, View};
use peergrad_protocol::{PeerId, Rank};

use super::super::place::Place;
use super::super::succession::AttemptPlan;
use crate::membership::view_change::driver::Attempt;

/// Which members a proposed view keeps, and why it leaves out others.
pub(super) struct Selection {
    /// The members that stay, in order.
    pub(super) kept: Vec<Rank>,
    /// Whether these are all that have answered and do not hang, but for members with faults.
    pub(super) are_all: bool,
    /// The members that are left out because of complaints.
    pub(super) left_out: Vec<LeftOut>,
}

impl Selection {
    /// The peers that are expelled, because they have been left out too often.
    pub(super) fn expulsions(&self, view: &View) -> impl Iterator<Item = Expulsion> {
        let is_last = |left_out: &&LeftOut| view.times_left_out(&left_out.peer) + 1 >= TIMES_LEFT_OUT_MAX;
        let expulsion =
            |it: &LeftOut| Expulsion { peer: it.peer, by: it.other, cause: ExpulsionCause::Faults };
        self.left_out.iter().filter(is_last).map(expulsion)
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
pub(super) fn select(place: &Place, reports: &Reports<'_>) -> Selection {
    let view = &place.view;
    let lost = reports.iter().flat_map(|(rank, report)| report.lost.iter().map(|lost| (*rank, *lost)));
    let cut: BTreeSet<(Rank, Rank)> = lost.filter(|(_, lost)| reports.contains_key(lost)).collect();
    let reachable = largest(view, reports, &cut);
    let are_all = reachable.len() == reports.len();
    let faults = Faults::among(&reachable, reports);
    let pairs = cut.iter().copied().chain(faults.pairs()).collect();
    let kept = if faults.by_pair.is_empty() { reachable.clone() } else { largest(view, reports, &pairs) };
    if !is_quorum(kept.iter().copied(), view.members.len()) {
        return Selection { kept: reachable, are_all, left_out: vec![] };
    }
    let gone = reachable.iter().filter(|rank| !kept.contains(rank));
    let left_out = gone.filter_map(|rank| faults.left_out(*rank, &kept, place)).collect();
    Selection { kept, are_all, left_out }
}

/// The largest set of the members with reports in which no pair occurs.
fn largest(view: &View, reports: &Reports<'_>, pairs: &BTreeSet<(Rank, Rank)>) -> Vec<Rank> {
    // Ties go to the first ones in this order.
    let mut order: Vec<Rank> = (0..view.members.len()).map(Rank::from_index).collect();
    order.sort_by_key(|rank| (view.suspicion(&view.member(*rank).peer), *rank));
    let mut places = vec![Rank(0); order.len()];
    order.iter().enumerate().for_each(|(index, rank)| places[rank.index()] = Rank::from_index(index));
    let of_places = pairs.iter().map(|(one, other)| (places[one.index()], places[other.index()])).collect();
    let kept = clique::largest(order.len(), &of_places).into_iter().map(|at| order[at.index()]);
    let kept: BTreeSet<Rank> = kept.filter(|rank| reports.contains_key(rank)).collect();
    kept.into_iter().collect()
}

/// The members that wait for the earliest thing of all that members wait for, each with those that owe it.
fn withheld(members: &[Rank], reports: &Reports<'_>) -> Vec<(Rank, Rank)> {
    let awaited = |rank: &Rank| reports[rank].awaited.as_ref();
    let Some(earliest) = members.iter().filter_map(|rank| Some(awaited(rank)?.at)).min() else {
        return vec![];
    };
    let waiting = members.iter().filter_map(|rank| Some((*rank, awaited(rank)?)));
    let waiting = waiting.filter(|(_, awaited)| awaited.at == earliest);
    let pairs = waiting.flat_map(|(rank, awaited)| awaited.from.iter().map(move |from| (rank, *from)));
    pairs.filter(|(rank, from)| rank != from && members.contains(from)).collect()
}

/// The complaints among some members.
struct Faults {
    /// By the member that complains and the one that it complains about: what it has noticed.
    by_pair: BTreeMap<(Rank, Rank), MemberFault>,
}

impl Faults {
    fn among(members: &[Rank], reports: &Reports<'_>) -> Self {
        let own = |rank: &Rank| {
            let about =
                reports[rank].complaints.iter().filter(|it| it.about != *rank && members.contains(&it.about));
            about.map(|it| ((*rank, it.about), it.fault)).collect::<Vec<_>>()
        };
        let mut by_pair: BTreeMap<(Rank, Rank), MemberFault> = members.iter().flat_map(own).collect();
        for pair in withheld(members, reports) {
            by_pair.entry(pair).or_insert(MemberFault::Withheld);
        }
        Self { by_pair }
    }

    fn pairs(&self) -> impl Iterator<Item = (Rank, Rank)> {
        self.by_pair.keys().copied()
    }

    /// Why a member is left out; `None` if no complaint concerns it.
    fn left_out(&self, rank: Rank, kept: &[Rank], place: &Place) -> Option<LeftOut> {
        let at_other_end = |(from, about): (Rank, Rank)| match rank {
            rank if rank == about => Some(from),
            rank if rank == from => Some(about),
            _ => None,
        };
        let others: BTreeSet<Rank> = self.pairs().filter_map(at_other_end).collect();
        // One that stays rather than one that goes as well, and one that does not decide this itself.
        let other = others
            .iter()
            .copied()
            .min_by_key(|other| (!kept.contains(other), *other == place.rank, *other))?;
        let fault = self.by_pair.get(&(other, rank)).or_else(|| self.by_pair.get(&(rank, other)))?;
        let peer = |rank: Rank| -> PeerId { place.peer(rank) };
        Some(LeftOut { peer: peer(rank), other: peer(other), fault: *fault, is_certain: others.len() > 1 })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use peergrad_protocol::view::Complaint;

    use super::*;
    use crate::fixtures::{self, peer};

    /// What the member with rank 0 decides in a view of five, given who has complained about whom and who was left out before.
    fn selection(complaints: &[(u32, u32)], before: &[LeftOut]) -> Selection {
        let view = View { left_out: before.to_vec(), ..fixtures::view(&[1, 2, 3, 4, 5]) };
        let digest = view.digest();
        let place = Place::new(fixtures::member(1), Arc::new(view), digest);
        let report = |rank: u32| {
            let about = complaints.iter().filter(|(from, _)| *from == rank);
            let complaint =
                |about: &(u32, u32)| Complaint { about: Rank(about.1), fault: MemberFault::Frames };
            MemberReport { complaints: about.map(complaint).collect(), ..MemberReport::default() }
        };
        let all: Vec<MemberReport> = (0..5).map(report).collect();
        select(&place, &all.iter().enumerate().map(|(index, it)| (Rank::from_index(index), it)).collect())
    }

    fn gone(selection: &Selection) -> Vec<u32> {
        (0..5).filter(|rank| !selection.kept.contains(&Rank(*rank))).collect()
    }

    fn left_out(peer_byte: u8, other: u8, is_certain: bool) -> LeftOut {
        LeftOut { peer: peer(peer_byte), other: peer(other), fault: MemberFault::Frames, is_certain }
    }

    #[test]
    fn the_member_that_several_complain_about_is_left_out() {
        let selection = selection(&[(0, 1), (3, 1), (1, 4)], &[]);
        assert_eq!(gone(&selection), [1]);
        assert_eq!(selection.left_out, [left_out(2, 4, true)], "not by the word of the one that decides");
    }

    #[test]
    fn of_two_members_the_higher_rank_is_left_out_and_the_next_time_the_other_one() {
        let first = selection(&[(2, 3)], &[]);
        assert_eq!((gone(&first), &first.left_out), (vec![3], &vec![left_out(4, 3, false)]));
        let second = selection(&[(2, 3)], &first.left_out);
        assert_eq!((gone(&second), &second.left_out), (vec![2], &vec![left_out(3, 4, false)]));
    }

    /// A member that lies about one member after the other, or harms one after the other, is found at the second time.
    #[test]
    fn the_member_that_is_concerned_each_time_is_left_out() {
        let first = selection(&[(1, 3)], &[]);
        assert_eq!(gone(&first), [3]);
        assert_eq!(gone(&selection(&[(1, 4)], &first.left_out)), [1]);
        assert_eq!(gone(&selection(&[(2, 1)], &first.left_out)), [1]);
    }

    #[test]
    fn the_third_time_is_an_expulsion() {
        let before = [left_out(2, 1, true), left_out(2, 3, true)];
        let view = View { left_out: before.to_vec(), ..fixtures::view(&[1, 2, 3, 4, 5]) };
        let expulsions = |complaints: &[(u32, u32)], before: &[LeftOut]| -> Vec<Expulsion> {
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
        assert_eq!((gone(&selection), selection.left_out), (vec![], vec![]));
    }
}
