//! The event log of real peers, and the page that `simulate report` draws of it.

#![cfg(unix)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::departures::training;
use super::process::{PROGRAM, Process, TestFolder, is_change};

/// The complete lines of a log.
fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("there is a log");
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn all<'a>(lines: &'a [Value], name: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["event"] == name).collect()
}

#[test]
fn a_run_with_faults_is_logged_and_can_be_drawn() {
    let (place, mut peers) = training(3, 1_000);
    let (victim, gone) = peers.pop().expect("three");
    victim.kill();
    peers.iter_mut().for_each(|(peer, _)| {
        peer.wait(|event| is_change(event, "left", &gone));
    });
    let mut again = place.join("peer-3", &place.invite("peer-1"));
    peers.iter_mut().for_each(|(peer, _)| {
        peer.wait(|event| is_change(event, "joined", &gone));
    });
    again.wait_for("step");
    let mut ended = vec![again.leave()];
    ended.extend(peers.into_iter().map(|(peer, _)| peer.leave()));

    let mut digests: BTreeMap<u64, String> = BTreeMap::new();
    for number in 1..=3 {
        let lines = lines(&place.path(&format!("peer-{number}/events.jsonl")));
        assert!(lines.iter().all(|line| line["at"].as_f64() > Some(1.7e9)), "each has its time");
        assert_eq!(lines[0]["event"], "log");
        let (starts, ends) = (all(&lines, "log"), all(&lines, "ended"));
        // The killed peer continues in the same file.
        assert_eq!((starts.len(), ends.len()), if number == 3 { (2, 1) } else { (1, 1) });
        // A last checkpoint may be written after it.
        let last = lines.iter().rfind(|line| line["event"] != "saved").expect("not empty");
        assert_eq!(last["event"], "ended");
        let steps = all(&lines, "step");
        assert!(steps.len() >= 4, "{}", steps.len());
        for step in steps {
            let digest = step["digest"].as_str().expect("digest_every is 1").to_owned();
            let number = step["step"].as_u64().expect("a number");
            assert_eq!(*digests.entry(number).or_insert_with(|| digest.clone()), digest, "step {number}");
        }
        let views = all(&lines, "view");
        // The killed peer was down when the others went on without it.
        let least = if number == 3 { 2 } else { 3 };
        assert!(views.len() >= least && views.iter().all(|view| view["run"].is_string()), "{views:?}");
        assert!(!all(&lines, "traffic").is_empty());
    }
    // The log has a view exactly as the process reported it.
    let logged = lines(&place.path("peer-1/events.jsonl"));
    let view_numbers =
        |lines: &[&Value]| lines.iter().filter_map(|line| line["number"].as_u64()).collect::<Vec<_>>();
    let spoken: Vec<&Value> = ended[1].all("view").collect();
    assert_eq!(view_numbers(&all(&logged, "view")), view_numbers(&spoken));
    assert!(!all(&logged, "member_suspected").is_empty() || !all(&logged, "notice").is_empty());

    draw(&place);
}

/// Runs `simulate`, which is beside `peer` if the whole workspace was built.
fn draw(place: &TestFolder) {
    let simulate = Path::new(PROGRAM).with_file_name("simulate");
    if !simulate.exists() {
        eprintln!("skipped: {} is not built", simulate.display());
        return;
    }
    let report = |logs: &[&str]| {
        let mut command = Command::new(&simulate);
        Process::spawn(command.arg("report").args(logs).args(["-o", "page.html"]).current_dir(place.path("")))
            .end_in_words()
    };
    let answer = report(&["peer-1", "peer-2", "peer-3"]);
    assert_eq!(answer.code, Some(0), "{} {}", answer.stdout, answer.stderr);
    assert!(answer.stdout.contains("3 peers committed"), "{}", answer.stdout);
    assert!(answer.stdout.contains("Clocks were aligned by"), "{}", answer.stdout);
    let page = std::fs::read_to_string(place.path("page.html")).expect("it was written");
    for part in
        ["All 4 checks held", "its log ends abruptly", "view 1", "Who owned what", "against time", "</html>"]
    {
        assert!(page.contains(part), "`{part}`");
    }
    assert!(!page.contains("virtual"), "it was real");
    // A log that was cut in the middle of a line, and one with garbage from some line on.
    let cut = std::fs::read(place.path("peer-2/events.jsonl")).expect("there");
    place.write("cut.jsonl", &cut[..cut.len() * 2 / 3]);
    place.write("garbage.jsonl", [&cut[..cut.len() / 2], &[0xff, 0xfe, b'\n', b'{', b'\n'][..]].concat());
    for log in ["cut.jsonl", "garbage.jsonl"] {
        let answer = report(&["peer-1", log]);
        assert_eq!(answer.code, Some(0), "{} {}", answer.stdout, answer.stderr);
        assert!(answer.stdout.contains("skipped"), "{}", answer.stdout);
        assert!(answer.stdout.contains("There is no log of p2"), "{}", answer.stdout);
    }
    let foreign = report(&["run.toml"]);
    assert!(
        foreign.code == Some(2) && foreign.stderr.contains("not the event log of a peer"),
        "{}",
        foreign.stderr
    );
}

/// A full disk, as far as a test can imitate it: the log's file cannot be created.
#[test]
fn training_continues_without_a_log() {
    let place = TestFolder::new();
    place.write("run.toml", "epochs = 4\n[data]\nfile = \"digits\"\n");
    std::fs::create_dir_all(place.path("peer-1/events.jsonl")).expect("writable");
    let mut peer = place.start("peer-1", 1, &[]);
    let notice = peer.wait_for_notice("cannot write the event log");
    assert!(notice.contains("training continues without it"), "{notice}");
    let ended = peer.end();
    ended.summary();
    assert_eq!(ended.all("notice").filter(|notice| notice.to_string().contains("event log")).count(), 1);
}
