//! Cuts that last. Membership is fixed while training, so whoever is lost ends the run: everywhere, by name, without a hang.

use super::cuts::{Way, between, both_ways};
use super::process::{Ended, check_one_history};
use super::swarm::Swarm;

/// The ring stops where it is: a side that has sent something misses the answer, and one that has not, the next pings.
#[test]
fn a_partition_ends_the_run_on_both_sides() {
    let Some(mut swarm) = Swarm::training(4, LONG) else { return };
    swarm.world.cut(&between(&[0, 1], &[2, 3]));
    let peers = end(&mut swarm);
    for (host, peer) in peers.iter().enumerate() {
        let named = swarm.named_by(host, peer);
        let is_other_side = host / 2 != named / 2;
        assert!(is_other_side || named == host, "host {host} misses one of the other side, not {named}");
    }
}

#[test]
fn a_link_cut_in_one_direction_ends_the_run_everywhere() {
    let Some(mut swarm) = Swarm::training(4, LONG) else { return };
    let [from, to, ..] = swarm.ring()[..] else { unreachable!("four peers") };
    swarm.world.cut(&[Way { from, to }]);
    check_ends(&mut swarm, [from, to]);
}

/// The ring goes on for a while, since these two send each other nothing but pings.
#[test]
fn a_cut_between_two_that_are_no_neighbours_in_the_ring_ends_the_run_everywhere() {
    let Some(mut swarm) = Swarm::training(4, LONG) else { return };
    let [one, _, opposite, _] = swarm.ring()[..] else { unreachable!("four peers") };
    swarm.world.cut(&both_ways(one, opposite));
    check_ends(&mut swarm, [one, opposite]);
}

/// An end of the cut link gives up first, and names the other. Nobody in between is blamed.
fn check_ends(swarm: &mut Swarm, [one, other]: [usize; 2]) {
    let peers = end(swarm);
    let named: Vec<usize> = peers.iter().enumerate().map(|(host, peer)| swarm.named_by(host, peer)).collect();
    assert!(named[one] == other || named[other] == one, "{one}--{other} is cut; named: {named:?}");
    assert!(
        named.iter().all(|named| [one, other].contains(named)),
        "{one}--{other} is cut; named: {named:?}"
    );
}

/// All of them fail, and none has gone on alone.
fn end(swarm: &mut Swarm) -> Vec<Ended> {
    let peers = swarm.end();
    check_one_history(&peers.iter().collect::<Vec<_>>());
    peers
}

/// Passes of a run that would go on for much longer than anybody's patience.
const LONG: u64 = 10_000;
