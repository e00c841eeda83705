//! Members that depart in the middle: killed, or asked to leave. The others go on, and nothing is lost.

#![cfg(unix)]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use peergrad_config::model_file::ModelFile;
use peergrad_protocol::id::ContentDigest;

use super::process::{
    ENDLESS, Ended, PROGRAM, Process, TestFolder, check_left, check_one_history, end_all, invite_of,
    is_change, is_view_of, name_of,
};

/// Members in the middle of a run over the digits, and their names.
pub(crate) fn training(count: usize, epochs: u64) -> (TestFolder, Vec<(Process, String)>) {
    training_by(count, epochs, "digest_every = 1")
}

/// As [`training`], with these lines under `[sync]`.
pub(crate) fn training_by(count: usize, epochs: u64, sync: &str) -> (TestFolder, Vec<(Process, String)>) {
    let place = TestFolder::new();
    place.write("run.toml", format!("epochs = {epochs}\n[data]\nfile = \"digits\"\n[sync]\n{sync}\n"));
    let mut founder = place.start("peer-1", count, &[]);
    let name = name_of(&mut founder);
    let invite = invite_of(&mut founder);
    let mut peers = vec![(founder, name)];
    for number in 2..=count {
        let mut joiner = place.join(&format!("peer-{number}"), &invite);
        let name = name_of(&mut joiner);
        peers.push((joiner, name));
    }
    peers.iter_mut().for_each(|(peer, _)| peer.wait_for_step(20));
    (place, peers)
}

#[test]
fn the_others_finish_when_a_member_is_killed() {
    let (_place, mut peers) = training(3, 40);
    let (victim, gone) = peers.pop().expect("three");
    let killed = victim.kill();
    assert_eq!(killed.code, None);
    let survivors: Vec<Ended> = peers.into_iter().map(|(peer, _)| peer.end()).collect();
    for peer in &survivors {
        let view = peer.all("view").find(|view| is_change(view, "left", &gone)).expect("a view without it");
        assert_eq!(view["change"]["restarted"], serde_json::json!([]), "one may go without a loss");
        assert_eq!(peer.summary()["peers"].as_u64(), Some(2));
        assert!(peer.summary()["test_accuracy"].as_f64() > Some(0.95), "{}", peer.summary());
        assert_eq!(peer.summary()["digest"].as_str(), peer.digests().last().copied());
        assert_eq!(peer.digests(), survivors[0].digests());
        assert_eq!(peer.summary()["steps"].as_u64(), Some(peer.digests().len() as u64));
    }
    check_one_history(&[&killed, &survivors[0], &survivors[1]]);
}

/// As when a program has started a peer and does not read what it prints.
#[test]
fn a_peer_whose_output_nobody_reads_can_be_ended() {
    let place = TestFolder::new();
    place.write(
        "run.toml",
        format!("epochs = {ENDLESS}\n[data]\nfile = \"digits\"\n[network]\nmdns = false\n"),
    );
    let mut command = Command::new(PROGRAM);
    command.args(["start", "--peers", "1", "--json", "--listen", "127.0.0.1", "--port", "0", "--dir"]);
    command.arg(place.path("peer")).arg(place.path("run.toml"));
    let mut peer = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the program starts");
    // From then on it handles signals, or will in a moment.
    let mut first = String::new();
    let mut output = BufReader::with_capacity(512, peer.stdout.take().expect("piped"));
    output.read_line(&mut first).expect("a pipe can be read");
    assert!(first.contains("listening"), "{first}");
    let mut ask_after = |seconds| {
        thread::sleep(Duration::from_secs(seconds));
        assert_eq!(peer.try_wait().expect("a child can be waited for"), None, "it waits for its reader");
        let status = Command::new("kill").args(["-s", "TERM", &peer.id().to_string()]).status();
        assert!(status.expect("there is a kill command").success());
    };
    // By the first time, the pipe is full; the first signal asks the peer to leave, the second one stops it.
    ask_after(10);
    ask_after(2);
    let code = (0..500).find_map(|_| {
        thread::sleep(Duration::from_millis(20));
        peer.try_wait().expect("a child can be waited for")
    });
    let _ = peer.kill();
    assert_eq!(code.expect("it ends").code(), Some(1));
}

#[test]
fn a_new_peer_takes_the_place_of_a_killed_one() {
    let (place, mut peers) = training(3, ENDLESS);
    let (victim, gone) = peers.remove(1);
    let killed = victim.kill();
    peers.iter_mut().for_each(|(peer, _)| {
        peer.wait(|event| is_change(event, "left", &gone));
    });
    let mut fresh = place.join("fresh", &place.invite("peer-3"));
    let name = name_of(&mut fresh);
    peers.iter_mut().for_each(|(peer, _)| {
        let view = peer.wait(|event| is_change(event, "joined", &name));
        assert_eq!(view["change"]["interrupted"], false, "a join interrupts nobody");
    });
    let step = fresh.wait_for("step")["step"].as_u64().expect("a number");
    fresh.wait_for_step(step + 50);
    let mut peers: Vec<Process> = peers.into_iter().map(|(peer, _)| peer).collect();
    peers.insert(0, fresh);
    end_all(&place, "peer-3", peers, &[killed]);
}

#[test]
fn a_run_outlives_its_founder() {
    let (place, mut peers) = training(3, ENDLESS);
    let (founder, gone) = peers.remove(0);
    let killed = founder.kill();
    peers.iter_mut().for_each(|(peer, _)| {
        peer.wait(|event| is_change(event, "left", &gone));
    });
    let invite = place.invite("peer-2");
    let mut late: Vec<Process> = ["late-1", "late-2"].map(|name| place.join(name, &invite)).into();
    late.iter_mut().for_each(|peer| {
        peer.wait_for("step");
    });
    peers.iter_mut().for_each(|(peer, _)| {
        peer.wait(|event| is_view_of(event, 4));
    });
    let mut peers: Vec<Process> = peers.into_iter().map(|(peer, _)| peer).collect();
    peers.append(&mut late);
    end_all(&place, "late-2", peers, &[killed]);
}

#[test]
fn a_member_that_is_asked_to_leave_hands_over_its_shard() {
    let (place, mut peers) = training(3, ENDLESS);
    let (leaver, gone) = peers.pop().expect("three");
    let left = leaver.leave();
    check_left(&left);
    let bytes = std::fs::read(place.path("peer-3/model.safetensors")).expect("what it knows is saved");
    let model = ModelFile::decode(&bytes).expect("whole");
    assert_eq!(model.origin.steps, left.all("step").count() as u64);
    let digest = ContentDigest::of(bytemuck::cast_slice(&model.parameters)).to_string();
    assert_eq!(Some(digest.as_str()), left.digests().last().copied());
    for (peer, _) in &mut peers {
        let view = peer.wait(|event| is_change(event, "left", &gone));
        let change = &view["change"];
        assert_eq!((&change["interrupted"], &change["returned"]), (&false.into(), &0.into()));
        assert_eq!(change["restarted"], serde_json::json!([]));
    }
    let peers = peers.into_iter().map(|(peer, _)| peer).collect();
    let others = end_all(&place, "peer-2", peers, &[left]);
    assert_eq!(others[0].all("paused").count(), 0);
}

#[test]
fn peers_that_wait_for_the_start_can_be_interrupted() {
    let place = TestFolder::new();
    place.write("run.toml", "[data]\nfile = \"digits\"\n");
    let mut founder = place.start("founder", 3, &[]);
    let mut joiner = place.join("joiner", &invite_of(&mut founder));
    founder.wait(|event| event["event"] == "peer_ready" && event["ready"] == 2);
    joiner.wait_for("prepared");
    assert_eq!(joiner.leave().failure(), "stopped on request");
    founder.wait_for("peer_withdrawn");
    assert_eq!(founder.leave().failure(), "stopped on request");
}
