//! Histories of real runs, from logs that are cut, damaged or missing, with clocks hours apart, or that contradict each other.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use peergrad_protocol::PeerId;
use peergrad_simulations::history::{ExitStatus, LineRate, PeerState};
use peergrad_simulations::host::HostId;
use peergrad_simulations::logs::{LogError, RecordedRun, recorded_run};
use peergrad_simulations::report::{Report, render};
use serde_json::{Value, json};

const RUN: u8 = 9;
const BEGAN: f64 = 1_795_000_000.0;

fn hex(byte: u8) -> String {
    format!("{byte:02x}").repeat(32)
}

/// A generated log.
struct TestLog {
    text: String,
    /// How far this peer's clock is ahead, in seconds.
    ahead: f64,
}

impl TestLog {
    fn new(peer: u8, ahead: f64) -> Self {
        let mut test_log = Self { text: String::new(), ahead };
        test_log.start(0.0, peer, 1);
        test_log
    }

    fn line(&mut self, at: f64, mut line: Value) {
        line["at"] = json!(BEGAN + self.ahead + at);
        self.text.push_str(&(line.to_string() + "\n"));
    }

    fn start(&mut self, at: f64, peer: u8, incarnation: u64) {
        let peer = PeerId([peer; 32]).to_string();
        self.line(at, json!({"event": "log", "format": 1, "version": "0.1.0", "peer": peer, "incarnation": incarnation}));
    }

    fn view(&mut self, at: f64, view_number: u8, members: &[u8], first_step: u64, shard: u64) {
        self.line(at, view(view_number, hex(view_number), members, first_step, shard));
    }

    fn steps(&mut self, from: f64, until: f64, first: u64, bytes_per_step: u64) {
        for (index, number) in (first..).step_by(10).enumerate() {
            let at = from + index as f64 * 0.5;
            if at >= until {
                break;
            }
            let loss = 2.0 / (1.0 + number as f64);
            self.line(
                at,
                json!({"event": "step", "step": number, "epoch": 0, "loss": loss, "samples": 8, "left_out": 0,
                    "rate": 0.1, "bytes_sent": number * bytes_per_step}),
            );
        }
    }

    fn traffic(&mut self, from: u64, until: u64, other: u8) {
        let other = PeerId([other; 32]).to_string();
        for second in from..until {
            let bytes = json!({&other: [second * 1000, second * 500]});
            let lines = json!({&other: [2_000_000 + second, 0.1]});
            self.line(second as f64, json!({"event": "traffic", "bytes": bytes, "lines": lines}));
        }
    }

    fn end(&mut self, at: f64) {
        self.line(at, json!({"event": "ended", "finished": true, "text": "finished"}));
    }
}

fn view(view_number: u8, digest: String, members: &[u8], first_step: u64, shard: u64) -> Value {
    let parents: Vec<String> = if view_number == 1 { vec![] } else { vec![hex(view_number - 1)] };
    let members: Vec<String> = members.iter().map(|peer| PeerId([*peer; 32]).to_string()).collect();
    json!({"event": "view", "number": view_number, "digest": digest, "parents": parents, "members": members,
        "first_step": first_step, "redone": first_step > 0, "branch": {"view_number": 1, "step": 0}, "shard": shard,
        "run": hex(RUN)})
}

/// Two peers that train for a minute, the second with a clock that is ahead.
fn two(ahead: f64) -> [TestLog; 2] {
    [(1, 2, 0.0), (2, 1, ahead)].map(|(peer, other, ahead)| {
        let mut test_log = TestLog::new(peer, ahead);
        test_log.line(
            0.2,
            json!({"event": "prepared", "parameters": 100, "samples": 80, "steps": 1200, "epochs": 1, "own_losses": false}),
        );
        test_log.view(1.0, 1, &[1, 2], 0, if peer == 1 { 60 } else { 40 });
        // In order of time, as logs are written.
        for second in 1..60 {
            test_log.traffic(second, second + 1, other);
            test_log.steps(second as f64 + 0.01 * f64::from(peer), second as f64 + 0.9, 20 * second, 100);
        }
        test_log.end(60.0);
        test_log
    })
}

/// Writes files with these names and texts, into a new folder.
fn written(test: &str, files: &[(&str, &[u8])]) -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("logs-{test}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let write = |(name, bytes): &(&str, &[u8])| {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    };
    files.iter().map(write).collect()
}

fn tale_of(test: &str, test_logs: &[TestLog]) -> RecordedRun {
    let names: Vec<String> = (0..test_logs.len()).map(|index| format!("{index}.jsonl")).collect();
    let files: Vec<(&str, &[u8])> = names
        .iter()
        .zip(test_logs)
        .map(|(name, test_log)| (name.as_str(), test_log.text.as_bytes()))
        .collect();
    recorded_run(&written(test, &files), None).unwrap()
}

fn page(recorded_run: &RecordedRun) -> String {
    render(&Report {
        title: "a run",
        about: "made up",
        command: "",
        words: &[],
        facts: &[],
        check_results: &recorded_run.check_results,
        history: &recorded_run.history,
    })
}

fn states(recorded_run: &RecordedRun, lane: usize) -> Vec<PeerState> {
    recorded_run.history.peers[lane].spans.iter().map(|span| span.state).collect()
}

#[test]
fn clocks_hours_apart_are_aligned_by_the_steps_in_both_logs() {
    for ahead in [0.0, 7200.0, -86_400.0] {
        let recorded_run = tale_of("clocks", &two(ahead));
        let setting = |peer: u8| {
            recorded_run.clock_offsets.iter().find(|setting| setting.peer == PeerId([peer; 32])).unwrap()
        };
        let apart = setting(1).added - setting(2).added;
        assert!((apart - ahead).abs() < 0.02, "{apart}");
        assert!(
            setting(1).points.max(setting(2).points) > 100 && setting(1).points.min(setting(2).points) == 0
        );
        let seconds = recorded_run.history.end.0 as f64 / 1e9;
        assert!((seconds - 60.0).abs() < 0.1, "{seconds}");
        assert!(
            recorded_run.check_results.iter().all(|verdict| verdict.outcome.is_ok()),
            "{:?}",
            recorded_run.check_results
        );
        assert_eq!(recorded_run.check_results.len(), 3, "nothing is said of digests that nobody tells");
        for lane in 0..2 {
            assert_eq!(
                states(&recorded_run, lane),
                [PeerState::Joining, PeerState::Member(0), PeerState::Ended(ExitStatus::Finished)]
            );
        }
    }
}

#[test]
fn unlogged_steps_and_bytes_are_counted() {
    let recorded_run = tale_of("counts", &two(0.0));
    assert_eq!(recorded_run.steps, 1191);
    let commits = &recorded_run.history.commits;
    // From the first reported step to the last one, both included.
    assert_eq!(commits.iter().map(|note| note.count).sum::<u64>(), 1190 - 20 + 1);
    assert!(commits.is_sorted_by_key(|note| note.at) && commits.is_sorted_by_key(|note| note.bytes));
    // The senders' numbers; the receivers' numbers for the same bytes are not added.
    assert_eq!(recorded_run.history.traffic.total, 2 * 59_000);
    let over_time: u64 = recorded_run.history.traffic.over_time.iter().sum();
    assert!(over_time.abs_diff(2 * 59_000) < 1000, "{over_time}");
    let line = LineRate { bytes_per_second: 2_000_059, round_trip: Duration::from_millis(100) };
    let [first, second] = [HostId(0), HostId(1)];
    let lines = BTreeMap::from([((first, second), line), ((second, first), line)]);
    assert_eq!(recorded_run.history.traffic.lines, lines);
    assert_eq!(recorded_run.history.parameters, Some(100));
}

#[test]
fn cut_or_damaged_lines_are_skipped() {
    let [one, other] = two(0.0);
    let text = other.text.as_bytes();
    let cut = &text[..text.len() / 2];
    let garbage = [
        cut,
        b"\n{\"at\":1}\n\xff\xfe\0\n{\"at\":1795000031.0,\"event\":\"step\",\"step\":\"x\"}\nnull\n[]\n",
        b"{\"at\":1e300,\"event\":\"missed\"}\n{\"at\":-5,\"event\":\"missed\"}\n",
    ]
    .concat();
    for (bytes, damaged) in [(cut, 1), (garbage.as_slice(), 8), (&text[..text.len() - 1], 0)] {
        let paths = written("cut", &[("0.jsonl", one.text.as_bytes()), ("1.jsonl", bytes)]);
        let recorded_run = recorded_run(&paths, None).unwrap();
        assert_eq!(recorded_run.damaged_lines, damaged);
        assert_eq!(recorded_run.steps, 1191, "the other one has them");
        page(&recorded_run);
    }
}

#[test]
fn a_peer_without_a_log_is_known_from_the_logs_of_others() {
    let [mut one, _] = two(0.0);
    one.text.truncate(one.text.rfind("{\"at\"").unwrap_or(0));
    one.text.truncate(one.text.rfind("{\"at\"").unwrap());
    one.view(61.0, 2, &[1], 1200, 100);
    one.end(62.0);
    let recorded_run = tale_of("missing", &[one]);
    assert_eq!(recorded_run.names.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false]);
    assert_eq!(states(&recorded_run, 1), [PeerState::Member(0), PeerState::Down]);
    // The bytes that others received from it are all that is known of what it sent.
    assert!(recorded_run.history.traffic.total > 80_000, "{}", recorded_run.history.traffic.total);
    assert!(page(&recorded_run).contains("p1"));
}

#[test]
fn a_suspended_process_and_a_killed_one_are_told_apart() {
    let [one, _] = two(0.0);
    let mut other = TestLog::new(2, 0.0);
    other.view(1.0, 1, &[1, 2], 0, 40);
    other.traffic(1, 20, 1);
    // Suspended for ten seconds, then killed, and started again.
    other.traffic(30, 40, 1);
    other.start(50.0, 2, 2);
    other.view(52.0, 2, &[1, 2], 500, 40);
    other.traffic(52, 60, 1);
    let recorded_run = tale_of("still", &[one, other]);
    let lane = recorded_run.history.peers.iter().position(|lane| lane.peer == PeerId([2; 32])).unwrap();
    let member = PeerState::Member(0);
    assert_eq!(
        states(&recorded_run, lane),
        [
            PeerState::Joining,
            member,
            PeerState::Paused,
            member,
            PeerState::Down,
            PeerState::Joining,
            PeerState::Member(1)
        ]
    );
    let notes: Vec<&str> =
        recorded_run.history.peers[lane].notes.iter().map(|note| note.1.as_str()).collect();
    assert!(notes[0].contains("was suspended") && notes[1].contains("ends abruptly"), "{notes:?}");
    let gap = recorded_run.history.peers[lane].spans[2];
    assert!(gap.until.since(gap.from).as_secs() >= 8);
}

#[test]
fn a_swarm_that_continues_from_a_checkpoint_violates_no_invariant() {
    let read_run = |test, stops, branch: Value| {
        let test_logs = [(1, 2), (2, 1)].map(|(peer, other)| {
            let mut test_log = TestLog::new(peer, 0.0);
            test_log.view(1.0, 1, &[1, 2], 0, 50);
            test_log.traffic(1, 10, other);
            test_log.steps(2.0, 10.0, 10, 100);
            if stops {
                test_log.start(30.0, peer, 2);
            }
            // Continues from the checkpoint after step 50.
            let mut restored = view(2, hex(2), &[1, 2], 50, 50);
            restored["branch"] = branch.clone();
            test_log.line(31.0, restored);
            test_log.traffic(31, 40, other);
            test_log.steps(32.0, 40.0, 50, 90);
            test_log.end(40.0);
            test_log
        });
        tale_of(test, &test_logs)
    };
    let restarted_branch = json!({"view_number": 2, "step": 50});
    // All stop; or peers that had just joined continue with members that had stopped.
    for (test, stops) in [("stopped", true), ("restored", false)] {
        let recorded_run = read_run(test, stops, restarted_branch.clone());
        assert!(
            recorded_run.check_results.iter().all(|verdict| verdict.outcome.is_ok()),
            "{:?}",
            recorded_run.check_results
        );
        let steps: Vec<u64> = recorded_run.history.commits.iter().map(|note| note.committed.step.0).collect();
        assert_eq!(steps, (10..170).step_by(10).chain((50..210).step_by(10)).collect::<Vec<_>>());
        let back = &recorded_run.history.commits[16];
        assert_eq!((back.view, back.count), (1, 1), "it belongs to the view after the stop");
    }
    // Without a checkpoint this violates a guarantee.
    let recorded_run = read_run("undone", false, json!({"view_number": 1, "step": 0}));
    let broken =
        recorded_run.check_results.iter().find_map(|verdict| verdict.outcome.as_ref().err()).unwrap();
    assert!(broken.contains("lists step 50 after a later one"), "{broken}");
}

#[test]
fn files_of_a_directory_are_one_log() {
    let [one, _] = two(0.0);
    let lines: Vec<&str> = one.text.lines().collect();
    let (early, late) = lines.split_at(lines.len() / 2);
    // The writer begins each file like this.
    let mut again: Value =
        serde_json::from_str(lines.iter().find(|line| line.contains("\"view\"")).unwrap()).unwrap();
    again["again"] = json!(true);
    let late = format!("{}\n{again}\n{}\n", lines[0], late.join("\n"));
    let early = early.join("\n") + "\n";
    let files = [
        ("lab/events.1.jsonl", early.as_bytes()),
        ("lab/events.jsonl", late.as_bytes()),
        ("lab/events.backup.jsonl", b"nonsense"),
        ("lab/identity", b"no log"),
    ];
    let path = written("directory", &files)[0].parent().unwrap().to_owned();
    let whole = recorded_run(&[path], None).unwrap();
    let direct = tale_of("directly", &[one]);
    assert_eq!(format!("{:?}", whole.history), format!("{:?}", direct.history));
    assert_eq!(whole.damaged_lines, 0);
    // The second file alone begins with the view of that time.
    let alone = recorded_run(&written("alone", &[("events.jsonl", late.as_bytes())]), None).unwrap();
    assert_eq!(
        states(&alone, 0),
        [PeerState::Joining, PeerState::Member(0), PeerState::Ended(ExitStatus::Finished)]
    );
}

#[test]
fn logs_that_contradict_each_other_are_reported() {
    let [one, mut other] = two(0.0);
    other.text = other.text.replace(&hex(1), &hex(77));
    let recorded = tale_of("views", &[one, other]);
    let broken: Vec<_> = recorded.check_results.iter().filter(|verdict| verdict.outcome.is_err()).collect();
    assert_eq!(broken.len(), 1);
    assert!(broken[0].outcome.as_ref().unwrap_err().contains("view 1 differs between p"), "{:?}", broken[0]);

    let [one, mut other] = two(0.0);
    other.text = other.text.replacen("\"loss\":0.09523809523809523", "\"loss\":0.5", 1);
    assert!(other.text.contains("\"loss\":0.5"));
    let paths = written("losses", &[("0.jsonl", one.text.as_bytes()), ("1.jsonl", other.text.as_bytes())]);
    let recorded = recorded_run(&paths, None).unwrap();
    let broken = recorded.check_results.iter().find_map(|verdict| verdict.outcome.as_ref().err()).unwrap();
    assert!(broken.contains("the first is step 20"), "{broken}");
    // Members with local parameters have losses of their own.
    let own =
        [&one.text, &other.text].map(|text| text.replace("\"own_losses\":false", "\"own_losses\":true"));
    let files = [("0.jsonl", own[0].as_bytes()), ("1.jsonl", own[1].as_bytes())];
    let recorded = recorded_run(&written("own-losses", &files), None).unwrap();
    assert!(recorded.check_results.iter().all(|verdict| verdict.outcome.is_ok()));
    let page = paths[0].with_file_name("page.html");
    let mut command = Command::new(env!("CARGO_BIN_EXE_simulate"));
    let output = command.arg("report").args(&paths).arg("-o").arg(&page).output().unwrap();
    let words = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("VIOLATED") && words.contains("page.html"), "{words}");
    assert!(std::fs::read_to_string(page).unwrap().contains("1 of 3 checks failed"));
}

#[test]
fn a_long_run_makes_a_page_of_bounded_size() {
    let [mut one, _] = two(0.0);
    for hour in 1..200 {
        let at = 3600.0 * f64::from(hour);
        for minute in 0..60 {
            let number = 1200 + (u64::from(hour as u32) * 60 + minute) * 1000;
            one.steps(at + 60.0 * minute as f64, at + 60.0 * minute as f64 + 0.4, number, 100);
        }
        one.line(at + 3599.0, json!({"event": "member_suspected", "text": format!("no contact {hour}")}));
    }
    let recorded_run = tale_of("long", &[one]);
    assert!(recorded_run.history.traffic.over_time.len() <= 20_001);
    let page = page(&recorded_run);
    assert!(page.len() < 2_000_000, "{}", page.len());
}

#[test]
fn files_that_are_no_logs_are_reported_with_advice() {
    let [one, _] = two(0.0);
    let newer = one.text.replace("\"format\":1", "\"format\":2");
    let files = [
        ("good.jsonl", one.text.as_bytes()),
        ("newer.jsonl", newer.as_bytes()),
        ("foreign.jsonl", &b"hello\nworld\n"[..]),
        ("empty.jsonl", b""),
        ("lost.jsonl", one.text.lines().next().unwrap().as_bytes()),
        ("folder/x", b""),
    ];
    let paths = written("mistakes", &files);
    let failure = |path: PathBuf, run: Option<&str>| recorded_run(&[path], run).unwrap_err();
    assert!(matches!(failure(paths[1].clone(), None), LogError::OtherFormat { format_number: 2, .. }));
    assert!(matches!(failure(paths[2].clone(), None), LogError::Foreign { .. }));
    assert!(matches!(failure(paths[3].clone(), None), LogError::Foreign { .. }));
    assert!(matches!(failure(paths[4].clone(), None), LogError::NoRun));
    assert!(matches!(failure(paths[5].parent().unwrap().to_owned(), None), LogError::NoLog { .. }));
    assert!(matches!(failure(paths[0].with_file_name("absent"), None), LogError::Unreadable { .. }));
    let error = failure(paths[0].clone(), Some("ffff")).to_string();
    assert!(error.contains("`ffff`") && error.contains(&hex(RUN)[..8]), "{error}");
    assert!(recorded_run(&[paths[0].clone()], Some("0909")).is_ok());
}
