//! Interruptions at every point of a schedule: one member is gone. The others end their rounds, continue from what they hold, and reach the
//! end of the run in the next view.
//!
//! ```text
//! rank:             0        1      2 (gone)     3
//! step 4            complete                              then step 4 is complete everywhere, and 0's step 5 goes on
//! step 4            [a b . d]  [a . c .]      [. b c d]   then the three together have all of it
//! step 4            [a . . .]  [. . . .]      [. . . d]   then it is added up again, without 2
//! ```

use peergrad_collectives::round::{InterruptedRound, RoundContribution};
use peergrad_protocol::message::SampleStats;
use rand::Rng;

use crate::case::{Adversary, Case, PLAIN, TOPOLOGIES, are_same_bits, seed, updated};
use crate::swarm::{Packet, Swarm};

#[test]
fn rounds_interrupted_at_any_point_continue_in_the_next_view() {
    let mut ends = Ends::default();
    for rank_count in 2..6 {
        for topology in TOPOLOGIES {
            for (credit, replicas, adversary) in [
                (1, 1, Adversary::Random),
                (3, 2, Adversary::Random),
                (2, 3, Adversary::Eager),
                (12, 2, Adversary::Random),
            ] {
                let round_count = 2;
                let case =
                    Case { rank_count, len: 40, topology, credit, replicas, round_count, adversary, ..PLAIN };
                interrupt_everywhere(case, &mut ends);
                interrupt_everywhere(Case { in_parts: true, ..case }, &mut ends);
            }
        }
    }
    // All three ways to continue must have occurred; otherwise the schedules are too simple.
    assert!(ends.ahead > 100 && ends.together > 100 && ends.again > 100, "{ends:?}");
}

/// How often each way to continue occurred.
#[derive(Debug, Default)]
struct Ends {
    /// A member had completed the step.
    ahead: usize,
    /// No member had completed it, but together they held all of it.
    together: usize,
    /// The step was summed up again.
    again: usize,
}

fn interrupt_everywhere(case: Case, ends: &mut Ends) {
    let seed = seed(&[case.rank_count as u64, u64::from(case.credit), case.replicas as u64]);
    let mut whole = Swarm::new(case, seed);
    let mut event_count = 0;
    while whole.advance() {
        event_count += 1;
    }
    for events in 0..=event_count {
        let mut swarm = Swarm::new(case, seed);
        for _ in 0..events {
            assert!(swarm.advance());
        }
        without(swarm, events % case.rank_count, ends).run();
    }
}

/// What one member held of one round.
struct Part {
    number: usize,
    /// By owner: how many segments of the owner's shard the member held.
    held: Vec<usize>,
    stats: Option<SampleStats>,
    remains: InterruptedRound,
}

/// The swarm in the next view without `gone`: the other members, with what they held of rounds, and with their credit.
fn without(mut swarm: Swarm, gone: usize, ends: &mut Ends) -> Swarm {
    let rest: Vec<usize> = (0..swarm.case.rank_count).filter(|rank| *rank != gone).collect();
    let mut parts: Vec<Vec<Part>> = rest.iter().map(|&rank| interrupt(&mut swarm, rank)).collect();
    let completed = |rank: &usize| swarm.members[*rank].completed;
    let first = rest.iter().map(completed).min().expect("somebody is left");
    let last = rest.iter().map(completed).max().expect("somebody is left");
    let begin = if first < last {
        ends.ahead += 1;
        last
    } else if hold_all(&swarm, &parts, first) {
        ends.together += 1;
        first + 1
    } else {
        ends.again += 1;
        first
    };

    let persons = rest.iter().map(|&rank| swarm.persons[rank]).collect();
    let case = Case { rank_count: rest.len(), ..swarm.case };
    let mut next = Swarm::of(persons, case, swarm.window, u64::from(swarm.generator.next_u32()));
    for (rank, &before) in rest.iter().enumerate() {
        let member = &mut next.members[rank];
        (member.begun, member.completed) = (begin, begin);
        let part = parts[rank].pop().filter(|part| part.number == begin);
        member.kept = part.map(|part| part.remains.contribution.expect("the round was not completed"));
        for (to, &to_before) in rest.iter().enumerate() {
            member.links.set_credit(to, swarm.members[before].links.credit(to_before));
            let queue = &mut next.queues[rank][to];
            for packet in std::mem::take(&mut swarm.queues[before][to_before]) {
                queue.push_back(match packet {
                    Packet::Segment { .. } | Packet::Stale => Packet::Stale,
                    Packet::Credit => Packet::Credit,
                });
            }
            // Received segments are no longer used, whether they were early, waited in a round, or were half added up.
            let held = swarm.members[before].held[to_before];
            queue.extend((0..held).map(|_| Packet::Credit));
        }
    }
    next
}

/// Ends all rounds of a member, and checks each part that remains.
fn interrupt(swarm: &mut Swarm, rank: usize) -> Vec<Part> {
    for index in 0..swarm.members[rank].turns.len() {
        swarm.check_replicated(rank, index);
    }
    let turns = std::mem::take(&mut swarm.members[rank].turns);
    let completed = swarm.members[rank].completed;
    let part = |turn: crate::swarm::Turn| {
        let (number, person) = (turn.number, swarm.persons[rank]);
        let held = (0..swarm.case.rank_count).map(|owner| turn.round.held_segments(owner)).collect();
        let stats = turn.round.seen_stats();
        let part = Part { number, held, stats, remains: turn.round.interrupt() };
        match &part.remains.contribution {
            Some(RoundContribution { vector, stats, known }) => {
                let contribution = swarm.case.contribution(person, number);
                assert!(are_same_bits(&vector[..*known], &contribution[..*known]));
                assert_eq!(*stats, Case::stats(person, number));
                assert!(number >= completed);
            }
            None => assert!(number < completed && part.remains.result.is_none()),
        }
        if number >= completed {
            check_held(swarm, rank, &part);
        }
        part
    };
    turns.into_iter().map(part).collect()
}

/// Checks that what a member holds of an incomplete round has the bits of the final result.
fn check_held(swarm: &Swarm, rank: usize, part: &Part) {
    for (owner, &held) in part.held.iter().enumerate() {
        let segments = &swarm.layout.shard(owner).segments()[..held];
        for range in segments.iter().flat_map(|segment| segment.ranges()).cloned() {
            let result = part.remains.result.as_ref().expect("a held segment is in the result");
            let expected: Vec<f32> =
                swarm.sums[part.number][range.clone()].iter().copied().map(updated).collect();
            assert!(are_same_bits(&result[range], &expected), "rank {rank} of {owner}, {:?}", swarm.case);
        }
    }
    let first_owner = swarm.layout.first_owner().expect("there are elements");
    if let Some(stats) = part.stats {
        let expected = swarm.case.plain_stats(&swarm.layout, &swarm.persons, rank, part.number);
        assert_eq!(stats, expected);
    }
    assert!(part.stats.is_some() || part.held[first_owner] == 0, "a held segment says what it is worth");
}

/// Whether round `number`, which no member completed, is complete if all members combine what they hold.
fn hold_all(swarm: &Swarm, parts: &[Vec<Part>], number: usize) -> bool {
    let of_round: Vec<&Part> = parts.iter().flatten().filter(|part| part.number == number).collect();
    let is_held = |owner: usize| {
        let held = of_round.iter().map(|part| part.held[owner]).max();
        held.is_some_and(|held| held == swarm.layout.shard(owner).segments().len())
    };
    let are_all_held = (0..swarm.case.rank_count).all(is_held);
    assert!(!are_all_held || of_round.iter().any(|part| part.stats.is_some()), "somebody knows the worth");
    are_all_held
}
