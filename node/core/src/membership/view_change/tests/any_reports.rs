//! Whatever the members report of one interrupted step, the record describes what they can do, and no state is lost without need.
//!
//! The generated step was interrupted anywhere. All members with parameters have completed the step before, and some of them the one in
//! progress; the others hold some of its new values, and the new state of some chunks that they store. Some of the chunks are moving.

use std::collections::BTreeSet;

use peergrad_protocol::cursor::{Span, are_disjoint};
use proptest::prelude::*;
use proptest::sample::{Index, subsequence};

use super::*;

/// The generated state of one member.
#[derive(Clone, Debug)]
struct Draw {
    is_lost: bool,
    is_ahead: bool,
    is_newcomer: bool,
    knows_stats: bool,
    /// The chunks whose new values it has; and those whose new state it has, of the chunks that it stores.
    values: ChunkSet,
    states: ChunkSet,
    /// The chunks that it is to replicate, and that have not arrived yet.
    awaited: ChunkSet,
}

/// One interrupted step.
#[derive(Debug)]
struct Case {
    replicas: Replicas,
    has_state: bool,
    rate: u32,
    /// The number of steps of the view before the one in progress.
    age: u64,
    draws: Vec<Draw>,
    moved_from: Vec<(usize, Index)>,
}

fn some_chunks() -> impl Strategy<Value = ChunkSet> {
    // Often all of them; otherwise hardly a step would ever be rolled forward.
    prop_oneof![
        2 => Just(ChunkSet::all(CHUNKS)),
        1 => Just(ChunkSet::default()),
        2 => few_chunks(CHUNKS),
    ]
}

fn few_chunks(count: usize) -> impl Strategy<Value = ChunkSet> {
    subsequence((0..CHUNKS).collect::<Vec<_>>(), 0..=count).prop_map(|chunks| chunks.into_iter().collect())
}

fn draw() -> impl Strategy<Value = Draw> {
    let flags =
        (prop::bool::weighted(0.3), prop::bool::weighted(0.3), prop::bool::weighted(0.2), any::<bool>());
    (flags, some_chunks(), some_chunks(), few_chunks(2)).prop_map(
        |((is_lost, is_ahead, is_newcomer, knows_stats), values, states, awaited)| Draw {
            is_lost,
            is_ahead,
            is_newcomer,
            knows_stats,
            values,
            states,
            awaited,
        },
    )
}

fn case() -> impl Strategy<Value = Case> {
    let draws = prop::collection::vec(draw(), 2..7);
    let moved_from = prop::collection::vec((0..CHUNKS, any::<Index>()), 0..10);
    let replicas = prop_oneof![4 => (1..4_usize).prop_map(Replicas::Number), 1 => Just(Replicas::All)];
    (replicas, prop::bool::weighted(0.8), 1..4_u32, 0..4_u64, draws, moved_from).prop_map(
        |(replicas, has_state, rate, age, draws, moved_from)| Case {
            replicas,
            has_state,
            rate,
            age,
            draws,
            moved_from,
        },
    )
}

impl Case {
    /// Members that are new; they are so only if the step in progress is the view's first.
    fn newcomers(&self) -> Vec<u32> {
        let is_new = |rank: &usize| self.age == 0 && self.draws[*rank].is_newcomer;
        let newcomers: Vec<u32> = (0..self.draws.len()).filter(is_new).map(|rank| rank as u32).collect();
        // At least one member has parameters.
        if newcomers.len() == self.draws.len() { vec![] } else { newcomers }
    }

    fn shard_map(&self) -> ShardMap {
        let peers: Vec<u8> = (1..=self.draws.len() as u8).map(|index| 2 * index).collect();
        let newcomers = self.newcomers();
        let mut view = later_view(&peers, StepNumber(STEP.0 - self.age), &newcomers);
        let members: Vec<Rank> =
            (0..peers.len()).map(Rank::from_index).filter(|rank| !newcomers.contains(&rank.0)).collect();
        let sharding = ShardingConfig { replicas: self.replicas, ..all(self.has_state) };
        let target = sharding.place(&view.run, &view.members);
        let mut list: BTreeMap<u32, Vec<Rank>> = BTreeMap::new();
        for (chunk, from) in &self.moved_from {
            list.insert(*chunk as u32, vec![*from.get(&members)]);
        }
        // No chunk is at a newcomer before its turn has come.
        for chunk in 0..CHUNKS {
            if target.replica_holders(chunk).iter().any(|holder| !members.contains(holder)) {
                list.entry(chunk as u32).or_insert_with(|| vec![members[chunk % members.len()]]);
            }
        }
        let list = list.into_iter().map(|(chunk, from)| Move { chunk, from }).collect();
        view.moves = Moves { list, rate: self.rate, restarted: vec![] };
        shard_map(view, sharding)
    }

    fn reports(&self, shard_map: &ShardMap) -> BTreeMap<Rank, MemberReport> {
        let newcomers = self.newcomers();
        let staying = (0..self.draws.len() as u32).filter(|rank| !self.draws[*rank as usize].is_lost);
        // At least the proposer stays.
        let staying: BTreeSet<u32> = staying.chain([self.proposer()]).collect();
        let report = |rank: u32| {
            let report = self.report(shard_map, rank, newcomers.contains(&rank));
            (Rank(rank), report)
        };
        staying.into_iter().map(report).collect()
    }

    /// The last member that is no newcomer.
    fn proposer(&self) -> u32 {
        let newcomers = self.newcomers();
        (0..self.draws.len() as u32).rev().find(|rank| !newcomers.contains(rank)).expect("there is one")
    }

    fn report(&self, shard_map: &ShardMap, rank: u32, is_newcomer: bool) -> MemberReport {
        let draw = &self.draws[rank as usize];
        let all: ChunkSet = kept(shard_map, rank, STEP);
        let is_kept = |chunk: &usize| self.has_state && all.contains(*chunk);
        let updated = draw.states.iter().filter(is_kept).collect::<ChunkSet>();
        if draw.is_ahead {
            // A member that completes a step has the new state of all chunks that it stores.
            let states: ChunkSet = (0..CHUNKS).filter(is_kept).collect();
            let before = if is_newcomer { ChunkSet::default() } else { states.clone() };
            let states_before = Some(before);
            let is_entering = is_newcomer;
            return MemberReport { states, states_before, is_entering, next: None, ..ahead(shard_map, rank) };
        }
        if is_newcomer {
            return MemberReport::default();
        }
        let owner =
            |chunk: usize| shard_map.target.after(&shard_map.view.moves, shard_map.moved(STEP)).owner(chunk);
        let is_here = |chunk: &usize| !draw.awaited.contains(*chunk) || owner(*chunk) == Rank(rank);
        let states: ChunkSet = (0..CHUNKS).filter(is_kept).filter(is_here).collect();
        let next = PartialStep {
            values: draw.values.clone(),
            states: updated.iter().filter(|chunk| states.contains(*chunk)).collect(),
            stats: draw.knows_stats.then_some(STATS),
        };
        MemberReport { complete: Some(STEP), states, next: Some(next), ..MemberReport::default() }
    }
}

/// Whether the members that stay can complete the step together: the rule, written a second time.
fn can_complete(reports: &BTreeMap<Rank, MemberReport>, base: StepNumber, has_state: bool) -> bool {
    let holders = || reports.values().filter(|report| report.complete.is_some());
    let has_values = |report: &MemberReport, chunk| {
        report.complete == Some(base.next())
            || report.next.as_ref().is_some_and(|next| next.values.contains(chunk))
    };
    let is_whole = |chunk: usize| {
        let is_held = |steps| holders().any(|report| report.holds_state(chunk, steps));
        let has_state = !has_state || is_held(base.next()) || !is_held(base);
        has_state && holders().any(|report| has_values(report, chunk))
    };
    (0..CHUNKS).all(is_whole) && holders().any(|report| report.stats_of(base).is_some())
}

fn assert_donors(change: &ViewChange, reports: &BTreeMap<Rank, MemberReport>, base: StepNumber) {
    let Some(forward) = &change.resume.forward else { return };
    let donor_of = |chunk: usize| {
        let has = |donor: &&Donor| (donor.first as usize..donor.end as usize).contains(&chunk);
        forward.donors.iter().find(has).map(|donor| donor.rank.index())
    };
    let holders: Vec<&MemberReport> = reports.values().collect();
    let has = |report: &MemberReport, chunk: usize| {
        report.complete == Some(base.next())
            || report.complete == Some(base)
                && report.next.as_ref().is_some_and(|next| next.values.contains(chunk))
    };
    for chunk in 0..CHUNKS {
        let is_lacking = holders.iter().any(|report| report.complete == Some(base) && !has(report, chunk));
        let donor = donor_of(chunk);
        assert!(!is_lacking || donor.is_some(), "nobody gives chunk {chunk}: {change:?}");
        assert!(donor.is_none_or(|rank| has(holders[rank], chunk)), "{donor:?} lacks chunk {chunk}");
    }
}

fn assert_holders(shard_map: &ShardMap, change: &ViewChange, reports: &BTreeMap<Rank, MemberReport>) {
    let holders: Vec<&MemberReport> = reports.values().collect();
    let step = change.resume.step;
    for (chunk, ranks) in state_holders(shard_map, change).into_iter().enumerate() {
        let is_new = ranks.iter().any(|rank| change.resume.newcomers.contains(rank));
        assert!(!is_new, "chunk {chunk} is with a newcomer: {ranks:?}");
        if !shard_map.sharding.has_state {
            continue;
        }
        let held = holders.iter().filter(|report| report.holds_state(chunk, step)).count();
        let is_restarted = change.moves.restarted.contains(&(chunk as u32));
        assert_eq!(is_restarted, held == 0, "chunk {chunk} is held by {held}");
        if !is_restarted {
            assert!(ranks.iter().all(|rank| holders[rank.index()].holds_state(chunk, step)));
            assert_eq!(
                ranks.len(),
                held.min(shard_map.sharding.replicas.holders_max()),
                "chunk {chunk}: all that can be kept is"
            );
        }
    }
}

/// Parts are unchanged, except for members that cannot compute, and together with the returned samples they are the whole batch.
fn assert_deal(shard_map: &ShardMap, change: &ViewChange, reports: &BTreeMap<Rank, MemberReport>) {
    let before = assignment(&shard_map.view, change.resume.step);
    let batch = change.resume.batch.as_ref().expect("the run is not over");
    for (index, rank) in reports.keys().enumerate() {
        let is_new = change.resume.newcomers.contains(&Rank::from_index(index));
        let part: &[Span] = if is_new { &[] } else { &before.parts[rank.index()].spans };
        assert_eq!(batch.parts[index], part, "rank {index}");
    }
    let mut spans: Vec<Span> = batch.parts.iter().flatten().chain(&change.cursor.returned).copied().collect();
    spans.sort_unstable_by_key(|span| span.start);
    assert!(are_disjoint(&spans), "{spans:?}");
    let count: u64 = spans.iter().map(Span::len).sum();
    let returned: u64 = before.after.returned.iter().map(Span::len).sum();
    assert_eq!(count, before.len() + returned);
    assert_eq!(change.cursor.position, before.after.position);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_reports_lead_to_a_change_that_the_members_can_carry_out(case in case()) {
        let shard_map = case.shard_map();
        prop_assert_eq!(shard_map.view.validate(), Ok(()));
        let reports = case.reports(&shard_map);
        let kept: Vec<Rank> = reports.keys().copied().collect();
        // Any of them may propose, and knows the assignment of the step in progress, and of the one before while that is not committed.
        let (now, ahead) = (assignment(&shard_map.view, STEP), assignment(&shard_map.view, STEP.next()));
        let is_ahead = case.draws[case.proposer() as usize].is_ahead;
        let assignment_of = |step: StepNumber| match step {
            STEP => Some(&now),
            _ => Some(&ahead).filter(|_| is_ahead && step == STEP.next()),
        };
        let change = planner(&shard_map).after_loss(&kept, &reports, assignment_of).expect("somebody has parameters");
        let next = shard_map.view.apply(shard_map.digest, &change);
        prop_assert!(next.as_ref().is_ok_and(|next| planner(&shard_map).fits(next)), "{:?}", next);

        let base = reports.values().filter_map(|report| report.complete).min().expect("somebody has parameters");
        let is_forward = change.resume.forward.is_some();
        prop_assert_eq!(is_forward, can_complete(&reports, base, case.has_state));
        prop_assert_eq!(change.resume.step, if is_forward { base.next() } else { base });
        assert_donors(&change, &reports, base);
        assert_holders(&shard_map, &change, &reports);
        assert_deal(&shard_map, &change, &reports);
        // The members without parameters at the start of the view are its newcomers, and no others.
        let newcomers = case.newcomers();
        let is_new = |(rank, report): &(&Rank, &MemberReport)| {
            let is_undone = report.complete > Some(change.resume.step) && newcomers.contains(&rank.0);
            report.complete.is_none() || is_undone
        };
        let expected: Vec<Rank> = reports
            .iter()
            .enumerate()
            .filter(|(_, of)| is_new(of))
            .map(|(index, _)| Rank::from_index(index))
            .collect();
        prop_assert_eq!(&change.resume.newcomers, &expected);
    }
}
