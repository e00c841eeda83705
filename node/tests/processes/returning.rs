//! Members that rejoin: after a restart, or after having been frozen; and a second machine with the identity of one of them.

#![cfg(unix)]

use super::departures::training;
use super::process::{ENDLESS, Process, end_all, is_change, name_of};

/// Removes one peer from the list.
fn take(peers: &mut Vec<(Process, String)>, index: usize) -> (Process, String) {
    peers.remove(index)
}

#[test]
fn a_restarted_peer_rejoins_with_its_identity() {
    let (place, mut peers) = training(3, ENDLESS);
    let (victim, name) = take(&mut peers, 1);
    let killed = victim.kill();
    let mut again = place.join("peer-2", &place.invite("peer-3"));
    assert_eq!(name_of(&mut again), name, "its identity is in its data directory");
    again.wait_for("recovery_started");
    for (peer, _) in &mut peers {
        peer.wait(|event| is_change(event, "left", &name));
        peer.wait(|event| is_change(event, "joined", &name));
    }
    again.wait_for("step");
    let mut peers: Vec<Process> = peers.into_iter().map(|(peer, _)| peer).collect();
    peers.push(again);
    end_all(&place, "peer-2", peers, &[killed]);
}

#[test]
fn a_restarted_peer_finds_members_that_went_on_without_its_sponsor() {
    let (place, mut peers) = training(4, ENDLESS);
    let invite = place.invite("peer-1");
    let mut killed = Vec::new();
    for _ in 0..2 {
        // The founder, whose address is in the invite, and then the second one.
        let (victim, name) = take(&mut peers, 0);
        killed.push(victim.kill());
        for (peer, _) in &mut peers {
            peer.wait(|event| is_change(event, "left", &name));
        }
    }
    let mut again = place.join("peer-2", &invite);
    again.wait_for("step");
    let mut peers: Vec<Process> = peers.into_iter().map(|(peer, _)| peer).collect();
    peers.push(again);
    end_all(&place, "peer-2", peers, &killed);
}

#[test]
fn a_suspended_peer_rejoins_by_itself() {
    let (place, mut peers) = training(3, ENDLESS);
    let (mut frozen, name) = take(&mut peers, 2);
    frozen.signal("STOP");
    for (peer, _) in &mut peers {
        let view = peer.wait(|event| is_change(event, "left", &name));
        assert_eq!(view["change"]["restarted"], serde_json::json!([]));
    }
    frozen.signal("CONT");
    frozen.wait_for("excluded");
    for (peer, _) in &mut peers {
        peer.wait(|event| is_change(event, "joined", &name));
    }
    frozen.wait_for("step");
    let mut peers: Vec<Process> = peers.into_iter().map(|(peer, _)| peer).collect();
    peers.push(frozen);
    end_all(&place, "peer-3", peers, &[]);
}

/// A machine stands still, and its copy is started meanwhile: the others accept the later start.
#[test]
fn of_two_machines_with_one_identity_only_the_later_one_continues() {
    let (place, mut peers) = training(3, ENDLESS);
    let (original, name) = take(&mut peers, 1);
    original.signal("STOP");
    for file in ["identity", "incarnation"] {
        let contents = std::fs::read(place.path(&format!("peer-2/{file}"))).expect("readable");
        place.write(&format!("copy/{file}"), contents);
    }
    let mut copy = place.join("copy", &place.invite("peer-1"));
    for (peer, _) in &mut peers {
        peer.wait(|event| is_change(event, "joined", &name));
    }
    copy.wait_for("step");
    original.signal("CONT");
    let original = original.end();
    assert!(original.failure().contains("is a copy of the other"), "{}", original.failure());
    // A peer whose link was to the wrong one has a link with the right one again.
    let step = copy.newest_step();
    copy.wait_for_step(step + 500);
    let mut peers: Vec<Process> = peers.into_iter().map(|(peer, _)| peer).collect();
    peers.insert(0, copy);
    end_all(&place, "peer-3", peers, &[original]);
}
