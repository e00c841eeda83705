//! Runs that finish: over a working network, and over one that fails for a moment.

use std::time::Duration;

use super::partitions::both_ways;
use super::process::Ended;
use super::swarm::Swarm;

#[test]
fn four_hosts_train_one_model() {
    let Some(mut swarm) = Swarm::start(4, 10) else { return };
    let peers = swarm.end();
    check_finished(&peers, 10 * EPOCH_STEPS);
    check_undisturbed(&peers);
}

#[test]
fn a_short_link_outage_interrupts_no_step() {
    let Some(mut swarm) = Swarm::training(4, EPOCHS) else { return };
    let [one, next, ..] = swarm.by_rank()[..] else { unreachable!("four peers") };
    let repeated = |swarm: &Swarm| swarm.world.host(one).count("Tcp", "RetransSegs");
    let before = repeated(&swarm);
    swarm.world.cut(&both_ways(one, next));
    std::thread::sleep(MOMENT);
    let after = repeated(&swarm);
    swarm.world.heal(&both_ways(one, next));
    assert!(before < after, "nobody has answered what was sent to the next in the ring");
    let peers = swarm.end();
    check_finished(&peers, EPOCHS as usize * EPOCH_STEPS);
    check_undisturbed(&peers);
}

/// Checks that every peer finished after the same steps with the same bits.
pub(crate) fn check_finished(peers: &[Ended], steps: usize) {
    for peer in peers {
        assert_eq!(peer.summary()["peers"].as_u64(), Some(peers.len() as u64));
        assert_eq!(peer.summary()["digest"], peers[0].summary()["digest"]);
        assert_eq!(peer.digests().len(), steps);
        assert_eq!(peer.digests(), peers[0].digests());
    }
}

/// Checks that no peer has reported anything unusual, at the end neither: no connection was lost.
fn check_undisturbed(peers: &[Ended]) {
    for peer in peers {
        assert_eq!(peer.all("notice").collect::<Vec<_>>(), Vec::<&serde_json::Value>::new());
    }
}

/// Less than any patience, which is at least 1.4 s; long enough for the kernel to send again.
const MOMENT: Duration = Duration::from_millis(600);
/// Steps of an epoch over the digits.
pub(crate) const EPOCH_STEPS: usize = 23;
/// Enough that the middle of the run can be used.
const EPOCHS: u64 = 60;
