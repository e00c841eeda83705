//! Endings: after the loss of a peer the others continue and keep what is committed, and no member waits at the last barrier.

use std::sync::Arc;

use peergrad_collectives::plan::Topology;
use peergrad_core::node::{NodeState, Wait};
use peergrad_simulations::cluster::Cluster;
use peergrad_simulations::host::Crash;
use peergrad_simulations::task::FixedLoader;

use crate::common::{committed, ended, gathered, run_out, run_until_training, squares};

#[test]
fn losing_a_peer_at_any_time_stops_no_other_peer() {
    let fixed = Arc::new(squares(Topology::Ring));
    for crash_at in [0, 1, 2, 500, 2000, 5000, 15_000] {
        for crash in [Crash::Killed, Crash::PowerLost] {
            let case = format!("crashed {crash_at} events after the start, {crash:?}");
            let (mut cluster, hosts) = gathered(4, &fixed, SEED);
            run_until_training(&mut cluster);
            (0..crash_at).for_each(|_| assert!(cluster.tick()));
            let victim = hosts[2];
            assert!(cluster.hosts().node_state(victim).is_some(), "{case}: it has ended before");
            cluster.crash(victim, crash);
            run_out(&mut cluster);
            for &host in hosts.iter().filter(|&&host| host != victim) {
                let end = ended(&cluster, host);
                assert_eq!(end.outcome, Ok(()), "{case}");
                let state = end.state.as_ref().expect("it trained");
                let committed = committed(&cluster, host);
                assert_eq!(state.steps, committed.len() as u64, "{case}");
                let last = committed.last().expect("it trained");
                assert_eq!(Some(state.digest), last.digest, "{case}");
            }
        }
    }
}

#[test]
fn a_peer_lost_at_the_closing_barrier_leaves_no_other_peer_waiting() {
    for topology in [Topology::Ring, Topology::Direct] {
        let mut fixed = squares(topology);
        // Two steps: the last one matters, and what comes before is repeated for every crash.
        (fixed.loaded.config.batch_size, fixed.loaded.config.epochs) = (370, 1);
        let fixed = Arc::new(fixed);
        let undisturbed = Endgame::watch(&fixed);
        let in_last_step = (undisturbed.last_step_at..undisturbed.barrier_at).step_by(CRASH_EVERY);
        let at_barrier = undisturbed.barrier_at..undisturbed.end_at;
        assert!(in_last_step.len() > 10 && at_barrier.len() > 10, "{undisturbed:?}");
        for crash_at in in_last_step.chain(at_barrier) {
            for victim in 0..4 {
                assert_nobody_waits(&fixed, crash_at, victim);
            }
        }
    }
}

/// When the end of an undisturbed run begins, in events since the start.
#[derive(Debug)]
struct Endgame {
    /// The first member has committed the last step but one.
    last_step_at: usize,
    /// The first member has completed the last step, and waits for the others.
    barrier_at: usize,
    /// Every process has ended.
    end_at: usize,
}

impl Endgame {
    /// Watches four peers that take two steps.
    fn watch(fixed: &Arc<FixedLoader>) -> Self {
        let (mut cluster, hosts) = gathered(4, fixed, SEED);
        let mut event_count = 0;
        let mut until = |is_so: &dyn Fn(&Cluster) -> bool| {
            while !is_so(&cluster) {
                assert!(cluster.tick());
                event_count += 1;
            }
            event_count
        };
        let last_step_at = until(&|cluster| !cluster.history().commits.is_empty());
        let is_closing = |standing| matches!(standing, Some(NodeState::Member(m)) if m.wait == Wait::Closing);
        let barrier_at =
            until(&|cluster| hosts.iter().any(|&host| is_closing(cluster.hosts().node_state(host))));
        let end_at = until(&|cluster| cluster.hosts().running().next().is_none());
        for &host in &hosts {
            assert_eq!(ended(&cluster, host).outcome, Ok(()));
            assert_eq!(committed(&cluster, host).len(), 2);
        }
        Self { last_step_at, barrier_at, end_at }
    }
}

/// Crashes one of four peers: all others must finish.
fn assert_nobody_waits(fixed: &Arc<FixedLoader>, crash_at: usize, victim: usize) {
    let (mut cluster, hosts) = gathered(4, fixed, SEED);
    (0..crash_at).for_each(|_| assert!(cluster.tick()));
    let victim = hosts[victim];
    cluster.crash(victim, Crash::Killed);
    run_out(&mut cluster);
    for &host in hosts.iter().filter(|&&host| host != victim) {
        let outcome = &ended(&cluster, host).outcome;
        assert_eq!(*outcome, Ok(()), "{victim} crashed after {crash_at} events, and {host}");
    }
}

const SEED: u64 = 9;
/// Events between two crashes that are tried before the barrier; a prime, so that it is no multiple of a round.
const CRASH_EVERY: usize = 13;
