//! Cuts: paths between hosts that lose all packets, without an error, until they are healed.
//!
//! # How it works
//! The sender gets a wrong hardware address for the receiver. Its packets go out, the bridge sends them to all hosts, and no host accepts
//! them: for both ends it is like a cable that was cut somewhere on the path. A firewall or a route that rejects packets would not do,
//! since the sender would get an error at once.
//!
//! A cut is of one direction. Both directions of a pair, or all paths between two groups, are lists of cuts.
//!
//! # Not here
//! Multicast ignores hardware addresses and so every cut; the peers of these tests do not look for neighbours.

use super::network::{TestNetwork, address, hardware_address, neighbour};

/// The direction from one host to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OneWayPath {
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// Both directions between two hosts.
pub(crate) fn both_ways(one: usize, other: usize) -> Vec<OneWayPath> {
    vec![OneWayPath { from: one, to: other }, OneWayPath { from: other, to: one }]
}

/// All paths from a host of one side to a host of the other, in both directions.
pub(crate) fn between(one_side: &[usize], other_side: &[usize]) -> Vec<OneWayPath> {
    let pairs = one_side.iter().flat_map(|one| other_side.iter().map(move |other| (*one, *other)));
    pairs.flat_map(|(one, other)| both_ways(one, other)).collect()
}

impl TestNetwork {
    /// Drops all that is sent on these paths from now on.
    pub(crate) fn cut(&self, paths: &[OneWayPath]) {
        self.redirect(paths, |_| NOBODY.to_owned());
    }

    /// Lets all pass that is sent on these paths from now on.
    pub(crate) fn heal(&self, paths: &[OneWayPath]) {
        self.redirect(paths, hardware_address);
    }

    fn redirect(&self, paths: &[OneWayPath], target: impl Fn(usize) -> String) {
        for from in 0..self.len() {
            let mine = paths.iter().filter(|path| path.from == from);
            let lines: String = mine.map(|path| neighbour(path.to, &target(path.to))).collect();
            if !lines.is_empty() {
                self.host(from).ip(&lines);
            }
        }
    }
}

/// A hardware address that no host has.
const NOBODY: &str = "02:70:67:ff:ff:ff";

/// Sends one UDP packet to a port without a listener; the kernel of the receiver counts those that arrive.
fn post(world: &TestNetwork, OneWayPath { from, to }: OneWayPath) {
    let script = format!("echo word >/dev/udp/{}/9", address(to));
    let status = world.host(from).command("bash").args(["-c", &script]).status();
    assert!(status.is_ok_and(|status| status.success()), "sending fails");
}

/// Number of such packets that have arrived at a host.
fn arrived(world: &TestNetwork, at: usize) -> u64 {
    world.host(at).count("Udp", "NoPorts")
}

/// Waits until `count` have arrived. Packets of one host arrive in order, so none from before is still in transit.
fn wait_for_arrivals(world: &TestNetwork, at: usize, count: u64) {
    let is_there = (0..LOOKS_MAX).any(|_| {
        std::thread::yield_now();
        arrived(world, at) >= count
    });
    assert!(is_there, "{} of {count} have arrived", arrived(world, at));
}

/// Polls for what should happen within a few microseconds; a busy machine needs more polls.
const LOOKS_MAX: usize = 1_000_000;

#[test]
fn a_cut_loses_one_direction_silently_until_it_is_healed() {
    let Some(world) = TestNetwork::of(2) else { return };
    let (there, back) = (OneWayPath { from: 0, to: 1 }, OneWayPath { from: 1, to: 0 });
    post(&world, there);
    wait_for_arrivals(&world, 1, 1);

    world.cut(&[there]);
    post(&world, there);
    post(&world, back);
    wait_for_arrivals(&world, 0, 1);

    world.heal(&[there]);
    post(&world, there);
    wait_for_arrivals(&world, 1, 2);
    assert_eq!((arrived(&world, 1), arrived(&world, 0)), (2, 1), "the second of three is lost");
}

#[test]
fn a_partition_leaves_links_within_each_side_intact() {
    let Some(world) = TestNetwork::of(4) else { return };
    let partition = between(&[0, 1], &[2, 3]);
    assert_eq!(partition.len(), 8);
    let others = |host| (0..4).filter(move |other| *other != host);
    let everybody_posts =
        || (0..4).for_each(|from| others(from).for_each(|to| post(&world, OneWayPath { from, to })));
    world.cut(&partition);
    everybody_posts();
    (0..4).for_each(|host| wait_for_arrivals(&world, host, 1));
    world.heal(&partition);
    everybody_posts();
    (0..4).for_each(|host| wait_for_arrivals(&world, host, 4));
    (0..4).for_each(|host| assert_eq!(arrived(&world, host), 4, "one of its own side, then all three"));
}
