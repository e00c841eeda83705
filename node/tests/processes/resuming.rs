//! `peer resume` with a run file: one that has changed since the run was started, and one on the command line.

use super::process::{ENDLESS, LOCAL, Process, TestFolder};

/// A folder with an interrupted run of one peer.
fn interrupted() -> TestFolder {
    let place = TestFolder::new();
    place.write("run.toml", run_file(8, ""));
    let mut peer = place.start("alone", 1, &[]);
    peer.wait_for("saved");
    peer.kill();
    place
}

fn run_file(batch: u32, more: &str) -> String {
    format!(
        "epochs = {ENDLESS}\nbatch = {batch}\n[data]\nfile = \"digits\"\n[checkpoints]\nseconds = 1\n{more}"
    )
}

fn resume(place: &TestFolder, more: &[&str]) -> Process {
    let listen = ["--json", "--no-mdns", "--listen", "127.0.0.1", "--dir", "alone"];
    place.run(&[["resume"].as_slice(), &listen, more].concat())
}

/// What a resumed peer says, once it trains.
fn said(place: &TestFolder, more: &[&str]) -> String {
    let mut peer = resume(place, more);
    peer.wait_for("step");
    peer.kill().stderr
}

#[test]
fn a_changed_run_file_is_ignored_with_a_word() {
    let place = interrupted();
    assert!(!said(&place, &[]).contains("has changed"));
    place.write("run.toml", run_file(16, "[optimizer]\nrate = 0.5\n"));
    let words = "`batch` (16, in the run 8), `optimizer.rate` (0.5, in the run not given)";
    for more in [&[][..], &["--alone"], &[]] {
        let stderr = said(&place, more);
        assert!(stderr.contains(words) && stderr.contains("goes on with its own values"), "{stderr}");
        assert!(stderr.contains("begin a new run"), "{stderr}");
    }
    place.write("run.toml", run_file(8, "# as before\n"));
    assert!(!said(&place, &[]).contains("has changed"));
}

#[test]
fn what_resume_does_not_take_is_answered_with_what_to_do() {
    let place = interrupted();
    let invite = format!("pg1{}", "a".repeat(200));
    for (extra, words) in [
        ("run.toml", "`resume` takes no run file"),
        ("run.toml", "start run.toml`"),
        ("alone", "resume --dir alone`"),
        (invite.as_str(), "`resume` takes no invite"),
    ] {
        let answer = place.ask(&[&["resume", extra], LOCAL.as_slice(), &["alone"]].concat());
        let why = answer.failure();
        assert!(why.contains(words) && !why.contains(&invite), "{why}");
    }
}
