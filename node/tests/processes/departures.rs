//! Members that go in the middle: killed, frozen, or stopped by their user. The others name them and save what is committed.

#![cfg(unix)]

use peergrad::model_file::ModelFile;
use peergrad_protocol::PeerId;
use peergrad_protocol::id::ContentDigest;

use super::process::{Ended, Place, Process, check_one_history, invite_of, listening};

const NAMES: [&str; 3] = ["founder", "second", "third"];

/// Three members in the middle of a run that would go on for long, and their ids.
fn training() -> (Place, [(Process, PeerId); 3]) {
    let place = Place::new();
    place.write("run.toml", "passes = 1000\n[data]\nfile = \"digits\"\n[sync]\ndigest_every = 1\n");
    let mut founder = place.start(NAMES[0], 3, &[]);
    let id = listening(&mut founder).0;
    let invite = invite_of(&mut founder);
    let joiners = [NAMES[1], NAMES[2]].map(|name| {
        let mut joiner = place.join(name, &invite);
        let id = listening(&mut joiner).0;
        (joiner, id)
    });
    let [second, third] = joiners;
    let mut peers = [(founder, id), second, third];
    for (peer, _) in &mut peers {
        peer.wait_for_step(20);
    }
    (place, peers)
}

/// The others end with code 1, name the one that is gone, and leave the last committed state.
fn check_survivors(place: &Place, gone: PeerId, survivors: Vec<(&str, Process)>) {
    let survivors: Vec<(&str, Ended)> =
        survivors.into_iter().map(|(name, peer)| (name, peer.end())).collect();
    for (name, peer) in &survivors {
        let why = peer.failure();
        assert!(why.contains(&format!("peer {} is gone", gone.short())), "{name}: {why}");
        let bytes = std::fs::read(place.path(name).join("model.safetensors")).expect("the state is saved");
        let model = ModelFile::decode(&bytes).expect("whole");
        assert_eq!(model.origin.steps, peer.all("step").count() as u64);
        let digest = ContentDigest::of(bytemuck::cast_slice(&model.parameters)).to_string();
        assert_eq!(Some(digest.as_str()), peer.digests().last().copied(), "{name}");
        let note = peer.all("note").last().and_then(|note| note["text"].as_str()).unwrap_or_default();
        assert!(note.contains(&format!("after {} committed steps is saved", model.origin.steps)), "{note}");
    }
    check_one_history(&survivors.iter().map(|(_, peer)| peer).collect::<Vec<_>>());
}

#[test]
fn a_member_that_is_killed_is_named() {
    let (place, [founder, second, (victim, gone)]) = training();
    victim.signal("KILL");
    check_survivors(&place, gone, vec![("founder", founder.0), ("second", second.0)]);
}

#[test]
fn a_founder_that_is_killed_is_named() {
    let (place, [(victim, gone), second, third]) = training();
    victim.signal("KILL");
    check_survivors(&place, gone, vec![("second", second.0), ("third", third.0)]);
}

#[test]
fn a_member_that_is_frozen_is_named() {
    let (place, [founder, (victim, gone), third]) = training();
    victim.signal("STOP");
    check_survivors(&place, gone, vec![("founder", founder.0), ("third", third.0)]);
    victim.kill();
}

#[test]
fn a_member_that_is_interrupted_says_that_it_leaves() {
    let (place, [founder, second, (leaver, gone)]) = training();
    leaver.signal("INT");
    let left = leaver.end();
    assert_eq!(left.failure(), "stopped on request");
    assert!(left.stderr.contains("leaving"), "{}", left.stderr);
    assert!(place.path("third/model.safetensors").exists());
    check_survivors(&place, gone, vec![("founder", founder.0), ("second", second.0)]);
}

#[test]
fn peers_that_wait_can_be_interrupted() {
    let place = Place::new();
    place.write("run.toml", "[data]\nfile = \"digits\"\n");
    let mut founder = place.start("founder", 3, &[]);
    let mut joiner = place.join("joiner", &invite_of(&mut founder));
    founder.wait(|event| event["event"] == "gathered" && event["ready"] == 2);
    joiner.wait_for("prepared");
    joiner.signal("INT");
    assert_eq!(joiner.end().failure(), "stopped on request");
    founder.wait_for("withdrawn");
    founder.signal("INT");
    assert_eq!(founder.end().failure(), "stopped on request");
}
