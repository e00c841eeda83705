//! Rounds compared with the plain sum: every combination of ranks, lengths, topologies and credit.

use std::ops::Range;
use std::sync::Arc;

use peergrad_collectives::codec::{Codec, Codecs, TopK, Values};
use peergrad_collectives::combine::Combine;
use peergrad_collectives::plan::{Plan, ShardLayout, Topology};
use peergrad_collectives::round::{Round, RoundContribution, SegmentLabel};
use peergrad_protocol::message::{Phase, SampleStats};
use peergrad_protocol::{Buffer, Pool};

use crate::case::{Adversary, Allocations, Case, PLAIN, Rule, TOPOLOGIES, seed};

const RANKS: Range<usize> = 1..17;
const LENGTHS: [usize; 5] = [0, 1, 7, 1000, 65537];
/// With more than eight, what starts at a member of a ring may go before relays.
const CREDIT: [u32; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 12];

#[test]
fn every_member_gets_the_plain_sum() {
    for rank_count in RANKS {
        for len in LENGTHS {
            for topology in TOPOLOGIES {
                for credit in CREDIT {
                    let case = Case { rank_count, len, topology, credit, ..PLAIN };
                    case.check(seed(&[rank_count as u64, len as u64, u64::from(credit)]));
                }
            }
        }
    }
}

#[test]
fn rounds_that_follow_each_other_do_not_mix() {
    for rank_count in [2, 3, 5, 8] {
        for topology in TOPOLOGIES {
            for credit in [1, 2, 4, 12] {
                for adversary in
                    [Adversary::Random, Adversary::Eager, Adversary::Starve(1), Adversary::Starve(0)]
                {
                    let case = Case { rank_count, topology, credit, round_count: 6, adversary, ..PLAIN };
                    case.check(seed(&[rank_count as u64, u64::from(credit)]));
                }
            }
        }
    }
}

/// The ends of some contributions are known only when others have summed up the beginnings.
#[test]
fn contributions_may_come_in_parts() {
    for rank_count in RANKS {
        for len in [1, 7, 1000] {
            for topology in TOPOLOGIES {
                for credit in [1, 2, 4, 12] {
                    for adversary in [Adversary::Random, Adversary::Eager, Adversary::Starve(0)] {
                        let case = Case { rank_count, len, topology, credit, adversary, ..PLAIN };
                        let absent =
                            usize::from(topology == Topology::Direct && rank_count > 2 && credit == 1);
                        // Where some are absent, all members end a round before the next one begins.
                        let round_count = if absent > 0 { 1 } else { 3 };
                        let gathers_sums = credit == 2;
                        let replicas = if gathers_sums { 1 } else { 2 };
                        let case = Case { in_parts: true, round_count, replicas, absent, ..case };
                        let case = Case { gathers_sums, ..case };
                        case.check(seed(&[rank_count as u64, len as u64, u64::from(credit)]));
                    }
                }
            }
        }
    }
}

/// The topology may change from one round to the next, as shares change.
#[test]
fn the_topology_may_change_from_round_to_round() {
    for rank_count in [3, 5, 8] {
        for topology in TOPOLOGIES {
            for credit in [1, 2, 4, 12] {
                for adversary in
                    [Adversary::Random, Adversary::Eager, Adversary::Starve(1), Adversary::Starve(0)]
                {
                    let case = Case { rank_count, topology, credit, round_count: 6, adversary, ..PLAIN };
                    let case = Case { alternates: true, replicas: 2, ..case };
                    case.check(seed(&[rank_count as u64, u64::from(credit)]));
                }
            }
        }
    }
}

/// A member without a contribution owns, sums up and gathers like all others.
#[test]
fn every_member_gets_the_sum_of_the_contributing_members() {
    for rank_count in [2, 3, 5, 8, 13] {
        for absent in 1..rank_count {
            for (len, credit) in
                [0, 1, 7, 1000].into_iter().flat_map(|len| [1, 4].map(|credit| (len, credit)))
            {
                for replicas in [1, 3] {
                    let case = Case { rank_count, len, absent, credit, replicas, ..PLAIN };
                    let case = Case { topology: Topology::Direct, ..case };
                    case.check(seed(&[rank_count as u64, absent as u64, u64::from(credit)]));
                }
            }
        }
    }
}

/// Receivers keep some of the credit while rounds go on.
fn with_less_credit(rule: Rule) {
    for rank_count in [2, 3, 5, 8] {
        for topology in TOPOLOGIES {
            for (credit, surplus) in
                [1, 2, 4].into_iter().flat_map(|credit| [1, 9, 30].map(|it| (credit, it)))
            {
                for adversary in [Adversary::Random, Adversary::Eager, Adversary::Starve(0)] {
                    let case = Case { rank_count, topology, credit, surplus, adversary, rule, ..PLAIN };
                    for (alternates, replicas) in [(false, 1), (true, 2)] {
                        let case = Case { round_count: 6, alternates, replicas, ..case };
                        case.check(seed(&[rank_count as u64, u64::from(credit), u64::from(surplus)]));
                    }
                }
            }
        }
    }
}

#[test]
fn rounds_end_although_receivers_keep_credit() {
    with_less_credit(Rule::Bubble);
}

/// Planted bug: receivers also keep the credit of segments that they pass on. In the end, none is left on any link.
#[test]
#[should_panic(expected = "is stuck")]
fn a_ring_gets_stuck_if_receivers_keep_credit_of_what_they_pass_on() {
    with_less_credit(Rule::KeepAll);
}

/// All members change their values only after their own shard has been sent: no member waits for ever, and none receives changed values.
#[test]
fn members_update_gathered_sums_only_after_sending_their_shard() {
    for rank_count in [1, 2, 3, 5, 8] {
        for (topology, len) in TOPOLOGIES.into_iter().flat_map(|topology| LENGTHS.map(|len| (topology, len)))
        {
            for credit in [1, 2, 4, 12] {
                for adversary in [Adversary::Random, Adversary::Eager, Adversary::Starve(0)] {
                    let case = Case { rank_count, len, topology, credit, round_count: 3, adversary, ..PLAIN };
                    let case = Case { gathers_sums: true, ..case };
                    case.check(seed(&[rank_count as u64, len as u64, u64::from(credit)]));
                }
            }
        }
    }
}

/// Contributions are encoded once, results by their owner; all members, including the owner, have the decoded values.
#[test]
fn all_members_decode_the_same_values() {
    let top = Codec::TopK(TopK { one_in: 5.try_into().unwrap(), values: Values::Bf16 });
    let codecs = [Codec::F32, Codec::Bf16, Codec::F16, Codec::Int8, top];
    for (rank_count, len) in [1, 2, 3, 5].into_iter().flat_map(|count| [1, 7, 1000].map(|len| (count, len))) {
        for (topology, reduce) in
            codecs.map(|reduce| (Topology::Direct, reduce)).into_iter().chain([(Topology::Ring, Codec::F32)])
        {
            for gather in &codecs[..4] {
                for gathers_sums in [false, true] {
                    let codecs = Codecs { reduce, gather: *gather };
                    let case = Case { rank_count, len, topology, codecs, gathers_sums, ..PLAIN };
                    let replicas = if gathers_sums { 1 } else { 2 };
                    Case { credit: 2, round_count: 2, replicas, ..case }
                        .check(seed(&[rank_count as u64, len as u64]));
                }
            }
        }
    }
}

/// Other lengths, and bytes that no encoder writes, change nothing: the correct segment is still accepted.
#[test]
fn malformed_segments_are_rejected_and_change_nothing() {
    let layout = Arc::new(ShardLayout::even(8, 2, &[0, 1], 4));
    let codecs = Codecs { reduce: Codec::Int8, gather: Codec::Bf16 };
    let (topology, combine, group, contributors) = (Topology::Direct, Combine::Sum, None, None);
    let plan = Arc::new(Plan { layout, topology, combine, codecs, rank: 0, group, contributors });
    let stats = SampleStats { samples: 1, loss: 0.5 };
    let room = || Buffer::from_values(&[0.0; 8]);
    let mut round = Round::new(plan, RoundContribution::whole(Buffer::from_values(&[1.0; 8]), stats), room);
    let label = SegmentLabel { phase: Phase::Reduce, owner: 0, index: 0, stats };
    let mut encoded = vec![0; Codec::Int8.encoded_len(4)];
    Codec::Int8.encode(&[127.0; 4], &mut encoded);
    let (mut no_scale, plain) = (encoded.clone(), [0; 16]);
    no_scale[..4].copy_from_slice(&f32::NEG_INFINITY.to_le_bytes());
    let (segments, mut actions) = (Pool::new(4), Vec::new());
    for bytes in [&plain[..], &encoded[1..], &no_scale, &[]] {
        let payload = Buffer::from_bytes(bytes);
        assert!(round.receive(1, label, payload, room, &segments, &mut actions).is_err(), "{bytes:?}");
    }
    assert!(actions.is_empty() && !round.is_reduced());
    round.receive(1, label, Buffer::from_bytes(&encoded), room, &segments, &mut actions).unwrap();
    let (vector, _) = round.own_shard().expect("the own shard is summed up");
    assert_eq!(vector[..4], [128.0; 4]);
}

/// A member waits for sums before it waits for values, and for those first that have passed the fewest members.
#[test]
fn a_member_says_what_it_waits_for() {
    let layout = Arc::new(ShardLayout::even(9, 3, &[0, 1, 2], 4));
    let stats = SampleStats { samples: 1, loss: 0.5 };
    let room = || Buffer::from_values(&[0.0; 9]);
    let begin = |topology, rank| {
        let (layout, codecs, combine) = (Arc::clone(&layout), Codecs::default(), Combine::Sum);
        let plan = Plan { layout, topology, combine, codecs, rank, group: None, contributors: None };
        Round::new(Arc::new(plan), RoundContribution::whole(Buffer::from_values(&[1.0; 9]), stats), room)
    };
    let mut round = begin(Topology::Direct, 0);
    let (segments, mut actions) = (Pool::new(4), Vec::new());
    for (awaited, from) in [(vec![1], 1), (vec![2], 2)] {
        assert_eq!(round.awaited(), Some((Phase::Reduce, 0, awaited)));
        let label = SegmentLabel { phase: Phase::Reduce, owner: 0, index: 0, stats };
        let sum = Buffer::from_values(&[1.0; 3]);
        round.receive(from, label, sum, room, &segments, &mut actions).unwrap();
    }
    assert_eq!(round.awaited(), Some((Phase::Gather, 0, vec![1, 2])));
    for owner in [1, 2] {
        let label = SegmentLabel { phase: Phase::Gather, owner, index: 0, stats };
        let values = Buffer::from_values(&[3.0; 3]);
        round.receive(owner, label, values, room, &segments, &mut actions).unwrap();
    }
    assert_eq!(round.awaited(), None);

    let mut round = begin(Topology::Ring, 1);
    for (hop, owner) in [(1, 2), (2, 1)] {
        assert_eq!(round.awaited(), Some((Phase::Reduce, hop, vec![0])));
        let label = SegmentLabel { phase: Phase::Reduce, owner, index: 0, stats };
        let sum = Buffer::from_values(&[1.0; 3]);
        round.receive(0, label, sum, room, &segments, &mut actions).unwrap();
    }
    assert_eq!(round.awaited(), Some((Phase::Gather, 1, vec![0])));
}

#[test]
#[should_panic(expected = "round sums at each hop")]
fn a_ring_does_not_round_sums() {
    let codecs = Codecs { reduce: Codec::Bf16, gather: Codec::F32 };
    Case { codecs, ..PLAIN }.check(0);
}

#[test]
fn nothing_vector_sized_is_allocated_after_the_first_round() {
    for topology in TOPOLOGIES {
        let case = Case { len: 65537, topology, credit: 3, round_count: 30, ..PLAIN };
        let Allocations { vectors, segments } = case.check(5);
        assert!(vectors <= 2 * 4, "contribution and result of each member, but {vectors} vectors");
        // Places on all links (twice as many, as the first segments may be short), not segments of 30 rounds.
        let links = if topology == Topology::Ring { 4 } else { 4 * 3 };
        let credits = u64::from(case.window()) * links;
        assert!(segments <= 2 * credits, "{segments} segments for {credits} credits");
    }
}

/// Planted bug: members begin to send a round while they still have to forward segments of one with another topology.
#[test]
#[should_panic(expected = "is stuck")]
fn a_round_that_overtakes_one_of_another_topology_gets_stuck() {
    for number in 0..200 {
        let case =
            Case { rank_count: 5, alternates: true, round_count: 6, adversary: Adversary::Eager, ..PLAIN };
        Case { rule: Rule::Hasty, ..case }.check(number);
    }
}

/// Planted bug: members start segments until all places of a link are taken. The ring fills with segments that no member can forward.
#[test]
#[should_panic(expected = "is stuck")]
fn a_ring_without_reserved_credit_for_relays_gets_stuck() {
    Case { rank_count: 3, len: 65537, adversary: Adversary::Eager, rule: Rule::Greedy, ..PLAIN }.check(1);
}
