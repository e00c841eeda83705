//! Mirrors and rounds on the same links: each holder gets the owner's sums, not the values that the owner computes from them.

use peergrad_collectives::plan::Topology;

use crate::case::{Adversary, Case, PLAIN, Rule, TOPOLOGIES, seed};

#[test]
fn every_replica_holder_receives_the_sums_in_order() {
    for rank_count in 1..9 {
        for len in [0, 1, 7, 1000] {
            for replicas in 1..4 {
                for topology in TOPOLOGIES {
                    for credit in [1, 2, 4] {
                        let case =
                            Case { rank_count, len, topology, credit, replicas, round_count: 2, ..PLAIN };
                        case.check(seed(&[
                            rank_count as u64,
                            len as u64,
                            replicas as u64,
                            u64::from(credit),
                        ]));
                    }
                }
            }
        }
    }
}

#[test]
fn mirrors_and_rounds_share_exhausted_links() {
    for rank_count in [2, 3, 5, 8] {
        for replicas in [2, 3, 8] {
            for topology in TOPOLOGIES {
                for adversary in [Adversary::Eager, Adversary::Starve(0), Adversary::Starve(1)] {
                    let case = Case { rank_count, topology, replicas, round_count: 4, adversary, ..PLAIN };
                    case.check(seed(&[rank_count as u64, replicas as u64]));
                }
            }
        }
    }
}

#[test]
fn long_vectors_are_mirrored() {
    for topology in TOPOLOGIES {
        Case { rank_count: 5, len: 65537, topology, replicas: 3, round_count: 3, ..PLAIN }.check(9);
    }
}

/// Planted bug: members send the next step's segments first. These fill the link to a holder that cannot begin that step, as it waits for
/// the segments that were overtaken.
#[test]
#[should_panic(expected = "is stuck")]
fn a_mirror_that_is_overtaken_gets_stuck() {
    let rule = Rule::Overtake;
    Case { topology: Topology::Direct, replicas: 2, round_count: 4, rule, ..PLAIN }.check(1);
}
