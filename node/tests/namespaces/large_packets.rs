//! A router that drops large packets without a word: small messages pass, so that links open and then stall. The peers say what it is.

use super::network::TestNetwork;
use super::process::ENDLESS;
use super::swarm::Swarm;

#[test]
fn peers_name_a_path_that_loses_large_packets() {
    let Some(world) = TestNetwork::of(2) else { return };
    world.lose_large_packets(1, 1280);
    let mut swarm = Swarm::start_in(world, ENDLESS);
    swarm.peers[0].wait_for_notice("large packets get lost without a word");
    swarm.world.allow_large_packets(1);
    swarm.peers.iter_mut().for_each(|peer| peer.wait_for_step(20));
    swarm.leave();
}
