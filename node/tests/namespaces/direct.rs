//! The path of direct connections is cut while that of libp2p works: frames go over libp2p, and over the direct connection again once the
//! path is healed.

use super::process::ENDLESS;
use super::swarm::Swarm;

/// The port for direct connections that belongs to the default port.
const PORT: u16 = 5747;

/// Drops the packets to and from that port, or lets them pass again.
fn direct_ways(swarm: &Swarm, command: &str) {
    for host in 0..swarm.world.len() {
        let rule = |end: &str| format!("rule {command} pref 1 ipproto tcp {end} {PORT} blackhole\n");
        swarm.world.host(host).ip(&(rule("dport") + &rule("sport")));
    }
}

#[test]
fn a_cut_direct_connection_interrupts_no_step() {
    let Some(mut swarm) = Swarm::training(3, ENDLESS) else { return };
    swarm.peers.iter_mut().for_each(|peer| peer.wait_for_step(500));
    direct_ways(&swarm, "add");
    swarm.peers.iter_mut().for_each(|peer| {
        peer.wait_for_notice("no direct connection to peer");
    });
    direct_ways(&swarm, "del");
    swarm.peers.iter_mut().for_each(|peer| {
        peer.wait_for_notice("go over a direct connection");
    });
    for peer in swarm.leave() {
        assert_eq!(peer.all("paused").count() + peer.all("excluded").count(), 0);
        assert!(peer.all("view").all(|view| view["change"]["interrupted"] != true), "a step was interrupted");
    }
}
