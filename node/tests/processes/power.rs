//! Power cuts: all processes are killed at once, and the restarted ones continue from their checkpoints.

#![cfg(unix)]

use std::collections::BTreeMap;

use serde_json::Value;

use super::process::{ENDLESS, Ended, Process, TestFolder};

/// Peers of the digits that save a checkpoint every second, and report the digest of every step.
fn swarm(count: usize) -> (TestFolder, Vec<Process>) {
    let place = TestFolder::new();
    place.write(
        "run.toml",
        format!(
            "epochs = {ENDLESS}\nbatch = 256\n[data]\nfile = \"digits\"\n[sync]\ndigest_every = 1\n[checkpoints]\nseconds = 1\n"
        ),
    );
    let peers = place.swarm(count);
    (place, peers)
}

fn directory(index: usize) -> String {
    format!("peer-{}", index + 1)
}

/// Starts the peer with this data directory again.
fn resume(place: &TestFolder, index: usize, more: &[&str]) -> Process {
    let directory = directory(index);
    let local = ["--json", "--no-mdns", "--listen", "127.0.0.1", "--dir", &directory];
    place.run(&[&["resume"], more, &local].concat())
}

/// Waits until a checkpoint is written, and `steps` later steps are committed.
fn train_on(peer: &mut Process, steps: u64) {
    let saved = peer.wait(|event| event["event"] == "saved" && event["failure"].is_null());
    peer.wait_for_step(saved["steps"].as_u64().expect("a number") + steps);
}

/// Kills all so that none notices another one's end: all are stopped before the first is killed.
fn kill_all(peers: Vec<Process>) -> Vec<Ended> {
    for name in ["STOP", "KILL"] {
        peers.iter().for_each(|peer| peer.signal(name));
    }
    peers.into_iter().map(Process::end).collect()
}

/// The reported digest of each step.
fn digests(ended: &[Ended]) -> BTreeMap<u64, String> {
    let mut digests = BTreeMap::new();
    for step in ended.iter().flat_map(|peer| peer.all("step")) {
        let (number, digest) =
            (step["step"].as_u64().expect("a number"), step["digest"].as_str().expect("text"));
        let known = digests.entry(number).or_insert_with(|| digest.to_owned());
        assert_eq!(known, digest, "step {number} has two different digests");
    }
    digests
}

/// Checks that all continue from the same step with the same parameters, as reported before. Returns the number of steps.
fn check_restored(restored: &[Value], ended: &[Ended]) -> u64 {
    let digests = digests(ended);
    let steps = restored[0]["steps"].as_u64().expect("a number");
    for other in restored {
        assert_eq!((&other["steps"], &other["digest"]), (&restored[0]["steps"], &restored[0]["digest"]));
    }
    let before = digests.get(&(steps - 1)).expect("a checkpoint is of a step that somebody reported");
    assert_eq!(restored[0]["digest"].as_str(), Some(before.as_str()));
    steps
}

#[test]
fn all_members_continue_from_the_newest_checkpoint() {
    let (place, mut peers) = swarm(4);
    let mut before = 0;
    for steps in [0, 37, 150] {
        // A step that all have saved is one from which all can continue.
        peers.iter_mut().for_each(|peer| train_on(peer, steps));
        let ended = kill_all(peers);
        peers = (0..4).map(|index| resume(&place, index, &[])).collect();
        let restored: Vec<Value> = peers.iter_mut().map(|peer| peer.wait_for("restored")).collect();
        let steps = check_restored(&restored, &ended);
        assert!(steps > before, "what was trained in between is not lost");
        assert_eq!(restored[0]["restarted"].as_array().map(Vec::len), Some(0));
        peers[0].wait_for_step(steps);
        before = steps;
    }
    for peer in peers {
        peer.kill();
    }
}

/// The newest checkpoint of some is damaged: all use the one before.
#[test]
fn damaged_checkpoints_are_skipped() {
    let (place, mut peers) = swarm(3);
    for _ in 0..2 {
        train_on(&mut peers[1], 0);
    }
    peers.iter_mut().for_each(|peer| train_on(peer, 0));
    let ended = kill_all(peers);
    let newest = |index: usize| {
        let runs =
            std::fs::read_dir(place.path(&format!("{}/checkpoints", directory(index)))).expect("readable");
        let run = runs.flatten().next().expect("one run").path();
        let files = std::fs::read_dir(run).expect("it is there").flatten().map(|file| file.path());
        // Its tensors are written first: without the other file it is not complete.
        let complete = files.filter(|path| path.extension().is_some_and(|it| it == "toml"));
        complete.max().expect("some").with_extension("safetensors")
    };
    let newest_steps = |index| {
        newest(index)
            .file_stem()
            .expect("it is there")
            .to_str()
            .expect("it is there")
            .parse::<u64>()
            .expect("it is there")
    };
    let most = (0..3).map(newest_steps).max().expect("it is there");
    for index in 0..2 {
        let path = newest(index);
        let mut bytes = std::fs::read(&path).expect("it is there");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        std::fs::write(path, bytes).expect("it is there");
    }
    let mut peers: Vec<Process> = (0..3).map(|index| resume(&place, index, &[])).collect();
    let restored: Vec<Value> = peers.iter_mut().map(|peer| peer.wait_for("restored")).collect();
    let steps = check_restored(&restored, &ended);
    assert!(steps < most, "{steps} of {most}: of the newest only one peer has all");
    peers[2].wait_for_step(steps);
    let first = peers.remove(0).kill();
    let is_told = |note: &Value| {
        note["text"].as_str().is_some_and(|text| text.contains("skipped the damaged checkpoint"))
    };
    assert!(first.all("note").any(is_told));
}

/// Two of three return: they wait for the third for a while, and go on without it; it joins later.
#[test]
fn enough_restarted_members_continue_without_the_others() {
    let (place, mut peers) = swarm(3);
    peers.iter_mut().for_each(|peer| train_on(peer, 5));
    let ended = kill_all(peers);
    let mut first = resume(&place, 0, &[]);
    let alone = first.wait_for("recovery_progress");
    assert_eq!(alone["missing"].as_array().map(Vec::len), Some(2));
    let mut second = resume(&place, 1, &[]);
    let restored = [first.wait_for("restored"), second.wait_for("restored")];
    let steps = check_restored(&restored, &ended);
    assert_eq!(
        restored[0]["restarted"].as_array().map(Vec::len),
        Some(0),
        "two replicas are among two of three"
    );
    let mut third = resume(&place, 2, &[]);
    first.wait(|event| {
        event["event"] == "view" && event["members"].as_array().expect("it is there").len() == 3
    });
    third.wait_for_step(steps);
}

/// One peer does not wait: it founds a new run from its checkpoint, and others can join that.
#[test]
fn one_peer_starts_a_new_run_alone_from_its_checkpoint() {
    let (place, mut peers) = swarm(3);
    peers.iter_mut().for_each(|peer| train_on(peer, 5));
    let ended = kill_all(peers);
    let mut alone = resume(&place, 1, &["--alone"]);
    let invite = alone.wait_for("invite")["invite"].as_str().expect("text").to_owned();
    let steps = check_restored(&[alone.wait_for("restored")], &ended);
    alone.wait_for_step(steps + 3);
    let mut joiner = place.join("newcomer", &invite);
    joiner.wait_for("step");
    let left = alone.leave();
    assert!(left.all("left").next().is_some(), "{}", left.stderr);
}

/// A swarm that its users stopped, one peer after the other, continues where the last peer stopped.
#[test]
fn the_last_peer_saves_a_checkpoint_when_it_stops() {
    let (place, mut peers) = swarm(2);
    peers[1].wait_for_step(20);
    let second = peers.remove(1).leave();
    assert!(second.all("left").next().is_some());
    let mut first = peers.remove(0);
    first.wait(|event| {
        event["event"] == "view" && event["members"].as_array().expect("it is there").len() == 1
    });
    let step = first.newest_step();
    first.wait_for_step(step + 7);
    let first = first.leave();
    let last = first.all("step").last().expect("it has trained")["step"].as_u64().expect("it is there");
    let mut again = resume(&place, 0, &[]);
    let restored = again.wait_for("restored");
    assert_eq!(restored["steps"].as_u64(), Some(last + 1));
    again.wait_for_step(last + 5);
}

#[test]
fn resume_needs_an_unfinished_run() {
    let place = TestFolder::new();
    let answer = place.ask(&["resume", "--dir", "nothing"]);
    assert_eq!(answer.code, Some(1));
    assert!(answer.stderr.contains("nothing holds no unfinished run"), "{}", answer.stderr);
}
