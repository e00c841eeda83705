//! Paths that block TCP and let UDP pass: peers find each other and train over QUIC.

use std::time::Instant;

use serde_json::Value;

use super::long_partitions::wait_until_known;
use super::network::TestNetwork;
use super::process::ENDLESS;
use super::swarm::Swarm;
use super::training::{EPOCH_STEPS, check_finished};

/// How TCP's packets are blocked.
#[derive(Clone, Copy)]
enum Fate {
    /// They are dropped without an answer, as by a firewall on the path.
    Lost,
    /// The sender gets an error, as from a firewall that rejects packets.
    Prohibited,
}

/// Blocks TCP between all hosts, on existing connections too.
fn keep_out_tcp(world: &TestNetwork, fate: Fate) {
    for host in 0..world.len() {
        // Otherwise the kernel does not look up the route of packets for existing connections.
        let script = "echo 0 >/proc/sys/net/ipv4/ip_early_demux";
        let status = world.host(host).command("bash").args(["-c", script]).status();
        assert!(status.is_ok_and(|status| status.success()), "the kernel has that setting");
        world.host(host).ip(match fate {
            // Incoming packets are looked up in the table of local addresses first, unless its rule comes later.
            Fate::Lost => {
                "rule add pref 1 iif pgwire ipproto tcp blackhole\n\
                 rule add pref 2 lookup local\n\
                 rule del pref 0\n"
            }
            Fate::Prohibited => "rule add pref 1 ipproto tcp prohibit\n",
        });
    }
}

/// A swarm that could not use TCP from the start, in the middle of training.
fn training_without_tcp(count: usize, epochs: u64, fate: Fate) -> Option<Swarm> {
    let world = TestNetwork::of(count)?;
    keep_out_tcp(&world, fate);
    let mut swarm = Swarm::start_in(world, epochs);
    swarm.peers.iter_mut().for_each(|peer| {
        peer.wait_for_notice("over QUIC (UDP)");
    });
    swarm.peers.iter_mut().for_each(|peer| peer.wait_for_step(20));
    Some(swarm)
}

/// Checks that there was never a connection over TCP.
fn check_no_tcp(world: &TestNetwork) {
    for host in 0..world.len() {
        assert_eq!(world.host(host).count("Tcp", "PassiveOpens"), 0, "host {host}");
    }
}

#[test]
fn a_run_finishes_over_quic_where_tcp_packets_are_lost() {
    let Some(mut swarm) = training_without_tcp(3, 10, Fate::Lost) else { return };
    let peers = swarm.end();
    check_finished(&peers, 10 * EPOCH_STEPS);
    check_no_tcp(&swarm.world);
    for (host, peer) in peers.iter().enumerate() {
        let notices: Vec<_> =
            peer.all("notice").map(|notice| notice["text"].as_str().unwrap_or("")).collect();
        let over_quic = notices.iter().filter(|text| text.contains("over QUIC")).count();
        assert_eq!(over_quic, 2, "host {host}, once for each other peer: {notices:#?}");
        let is_expected = |text: &&str| {
            ["over QUIC", "no direct connection", "timed out"].iter().any(|words| text.contains(words))
        };
        assert!(notices.iter().all(is_expected), "host {host}: {notices:#?}");
        assert_eq!(peer.summary()["bytes_sent_directly"].as_u64(), Some(0));
    }
}

#[test]
fn a_run_finishes_over_quic_where_tcp_is_prohibited() {
    let Some(mut swarm) = training_without_tcp(2, 10, Fate::Prohibited) else { return };
    let peers = swarm.end();
    check_finished(&peers, 10 * EPOCH_STEPS);
    check_no_tcp(&swarm.world);
}

#[test]
fn a_run_that_loses_tcp_continues_over_quic() {
    let Some(mut swarm) = Swarm::training(3, ENDLESS) else { return };
    wait_until_known(&mut swarm);
    let start = Instant::now();
    keep_out_tcp(&swarm.world, Fate::Lost);
    swarm.peers.iter_mut().for_each(|peer| {
        peer.wait_for("paused");
    });
    swarm.wait_for_all();
    println!("all train again {:.1} s after TCP was lost", start.elapsed().as_secs_f64());
    let peers = swarm.leave();
    for peer in &peers {
        let is_over_quic =
            |notice: &Value| notice["text"].as_str().is_some_and(|text| text.contains("over QUIC"));
        assert!(peer.all("notice").any(is_over_quic));
    }
}

#[test]
fn a_killed_peer_is_removed_and_rejoins_over_quic() {
    let Some(mut swarm) = training_without_tcp(3, ENDLESS, Fate::Lost) else { return };
    wait_until_known(&mut swarm);
    let start = Instant::now();
    let killed = swarm.kill(2);
    swarm.wait_for_loss(&[0, 1], 2);
    println!("the next view is there {:.1} s after it was killed", start.elapsed().as_secs_f64());
    swarm.restart(2);
    swarm.wait_for_all();
    check_no_tcp(&swarm.world);
    swarm.leave_after(&[killed]);
}
