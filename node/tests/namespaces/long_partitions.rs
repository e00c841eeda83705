//! Partitions that last longer than any patience, and a machine that stands still. Members that have a quorum go on; the others wait,
//! report how many are missing, and rejoin by themselves once they can.

use std::time::{Duration, Instant};

use super::partitions::{OneWayPath, between, both_ways};
use super::process::ENDLESS;
use super::swarm::Swarm;

/// Shortest duration of a cut: until connections are given up, so that they must be opened again.
const CUT: Duration = Duration::from_secs(7);

/// Cuts these paths, waits for the expected effect, and heals them once the cut has lasted long enough.
fn partition_until(swarm: &mut Swarm, paths: &[OneWayPath], seen: impl FnOnce(&mut Swarm)) {
    let start = Instant::now();
    swarm.world.cut(paths);
    seen(swarm);
    println!("all have noticed after {:.1} s", start.elapsed().as_secs_f64());
    std::thread::sleep(CUT.saturating_sub(start.elapsed()));
    swarm.world.heal(paths);
    let healed = Instant::now();
    swarm.wait_for_all();
    println!("all are in one view {:.1} s after healing", healed.elapsed().as_secs_f64());
}

/// The failure detector gives new peers more time than peers that it has observed; these have trained for a while.
pub(crate) fn wait_until_known(swarm: &mut Swarm) {
    swarm.peers.iter_mut().for_each(|peer| peer.wait_for_step(2000));
}

/// The hosts with these ranks.
fn ranked(swarm: &Swarm, ranks: impl IntoIterator<Item = usize>) -> Vec<usize> {
    let hosts = swarm.by_rank();
    ranks.into_iter().map(|rank| hosts[rank]).collect()
}

/// The members with the first ranks go on, the others pause; once the cut is healed, all go on in one view.
fn partition(count: usize, going_on: usize) {
    let Some(mut swarm) = Swarm::training(count, ENDLESS) else { return };
    let (some, others) = (ranked(&swarm, 0..going_on), ranked(&swarm, going_on..count));
    wait_until_known(&mut swarm);
    partition_until(&mut swarm, &between(&some, &others), |swarm| {
        let start = Instant::now();
        let views = swarm.wait_for_loss(&some, others[0]);
        println!("the next view is there after {:.1} s", start.elapsed().as_secs_f64());
        for view in &views {
            assert_eq!(view["members"].as_array().map(Vec::len), Some(going_on));
            assert_eq!(view["change"]["restarted"], views[0]["change"]["restarted"]);
        }
        let restarted = views[0]["change"]["restarted"].as_array().map_or(0, Vec::len);
        assert_eq!(restarted > 0, others.len() > 1, "{restarted} chunks were held by the others only");
        for host in &others {
            let paused = swarm.peers[*host].wait(|event| {
                event["event"] == "paused" && event["reached"].as_u64() == Some(others.len() as u64)
            });
            assert_eq!(paused["members"].as_u64(), Some(count as u64));
            assert!(paused["needed"].as_u64() > paused["reached"].as_u64(), "{paused}");
        }
    });
    let ended = swarm.leave();
    for host in &some {
        assert_eq!(ended[*host].all("paused").count(), 0, "host {host} went on");
    }
}

#[test]
fn three_of_five_members_continue_and_two_wait() {
    partition(5, 3);
}

#[test]
fn of_two_halves_the_one_with_the_lowest_rank_continues() {
    partition(4, 2);
}

#[test]
fn of_two_peers_the_lower_rank_continues() {
    partition(2, 1);
}

#[test]
fn a_machine_whose_cable_is_pulled_is_excluded_and_rejoins() {
    partition(4, 3);
}

/// Both reach all others; only one of them can remain. That is the one with the lower rank, unless its vote comes too late.
#[test]
fn of_two_members_that_cannot_reach_each_other_one_is_excluded() {
    let Some(mut swarm) = Swarm::training(4, ENDLESS) else { return };
    let [first, second, third, fourth] = swarm.by_rank()[..] else { unreachable!("four peers") };
    partition_until(&mut swarm, &both_ways(second, fourth), |swarm| {
        let (view, lost, kept) = swarm.wait_for_loss_of_either(first, [fourth, second]);
        assert_eq!(view["members"].as_array().map(Vec::len), Some(3));
        swarm.wait_for_loss(&[kept, third], lost);
        swarm.peers[lost].wait_for("excluded");
    });
    swarm.leave();
}

#[test]
fn a_link_that_is_cut_in_one_direction_excludes_a_member() {
    let Some(mut swarm) = Swarm::training(4, ENDLESS) else { return };
    let [first, second, third, fourth] = swarm.by_rank()[..] else { unreachable!("four peers") };
    partition_until(&mut swarm, &[OneWayPath { from: fourth, to: second }], |swarm| {
        let (_, lost, kept) = swarm.wait_for_loss_of_either(first, [fourth, second]);
        swarm.wait_for_loss(&[kept, third], lost);
    });
    swarm.leave();
}

#[test]
fn a_suspended_peer_is_excluded_and_rejoins() {
    let Some(mut swarm) = Swarm::training(4, ENDLESS) else { return };
    let [first, second, third, fourth] = swarm.by_rank()[..] else { unreachable!("four peers") };
    wait_until_known(&mut swarm);
    let start = Instant::now();
    swarm.peers[second].signal("STOP");
    swarm.wait_for_loss(&[first, third, fourth], second);
    println!("the next view is there {:.1} s after it stood still", start.elapsed().as_secs_f64());
    swarm.peers[second].signal("CONT");
    swarm.peers[second].wait_for("excluded");
    swarm.wait_for_all();
    swarm.leave();
}
