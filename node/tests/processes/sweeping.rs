//! `peer sweep`: trials at real peers, some of which are killed, and mistakes that are refused before anything starts.

use std::collections::BTreeSet;

use serde_json::Value;

use super::process::{Ended, LOCAL, Process, TestFolder, invite_of, is_change};

const RUN: &str =
    "epochs = 9\n[data]\nfile = \"digits\"\n[model]\nhidden = [16]\n[checkpoints]\nseconds = 1\n";
const VARY: [&str; 4] = ["--vary", "optimizer.rate=1e-4..1e-1:log:4", "--vary", "batch=32,64,128"];

fn place(run: &str) -> TestFolder {
    let place = TestFolder::new();
    place.write("run.toml", run);
    place
}

/// Starts a sweep, with its data in `directory`.
fn sweep(place: &TestFolder, directory: &str, more: &[&str]) -> Process {
    place.run(&[&["sweep", "run.toml"], more, &LOCAL, &[directory]].concat())
}

/// The result of a sweep that has ended.
fn result(ended: &Ended) -> &Value {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.all("sweep").last().expect("a sweep ends with its result")
}

/// Checks that no trial is missing or twice. Returns the numbers of the trials with their accuracies.
fn check_trials(ended: &Ended, count: usize) -> Vec<(u64, f64)> {
    let results = result(ended)["results"].as_array().expect("there are some");
    let trial = |result: &Value| {
        let accuracy = result["test_accuracy"].as_f64().expect("digits have classes");
        (result["trial"].as_u64().expect("a number"), accuracy)
    };
    let mut trials: Vec<(u64, f64)> = results.iter().map(trial).collect();
    trials.sort_by_key(|(trial, _)| *trial);
    let numbers: Vec<u64> = trials.iter().map(|(trial, _)| *trial).collect();
    assert_eq!(numbers, (1..=count as u64).collect::<Vec<_>>());
    trials
}

/// The samples that this peer itself has trained.
fn own_samples(ended: &Ended) -> u64 {
    result(ended)["own_samples"].as_u64().expect("a number")
}

/// Trainings that last for a while.
fn longer() -> String {
    RUN.replace("epochs = 9", "epochs = 400")
}

#[test]
fn four_peers_find_what_one_finds_and_share_the_work() {
    let place = place(&longer());
    let alone = sweep(&place, "alone", &VARY).end();
    let mut first = sweep(&place, "first", &[&VARY[..], &["--wait-for", "4"]].concat());
    let invite = invite_of(&mut first);
    let others: Vec<Process> = (2..=4).map(|number| place.join(&format!("peer-{number}"), &invite)).collect();
    let ended: Vec<Ended> =
        std::iter::once(first.end()).chain(others.into_iter().map(Process::end)).collect();
    let all = check_trials(&alone, 12);
    for peer in &ended {
        assert_eq!(check_trials(peer, 12), all, "the same bits, whichever peers have trained them");
        assert_eq!(result(peer)["best"], result(&alone)["best"]);
        assert_eq!(peer.summary()["digest"], alone.summary()["digest"], "the same table");
    }
    let trained: u64 = ended.iter().map(own_samples).sum();
    assert_eq!(trained, own_samples(&alone), "each trial is trained once");
    let most = ended.iter().map(own_samples).max().expect("there are four");
    println!("the busiest of four peers has trained {:.3} of all samples", most as f64 / trained as f64);
    assert!(ended.iter().filter(|peer| own_samples(peer) > 0).count() > 1, "several peers have trained");
}

#[test]
fn halving_finds_a_best_trial_with_less_than_half_of_the_samples() {
    let place = place(&RUN.replace("epochs = 9", "epochs = 40"));
    let vary = ["--vary", "optimizer.rate=1e-4..1e-1:log:9", "--vary", "batch=32,64,128"];
    let grid = sweep(&place, "grid", &vary).end();
    let accuracy = |ended: &Ended| result(ended)["best"]["test_accuracy"].as_f64().expect("a number");
    for (strategy, more) in [("halving", None), ("asha", Some(["--parallel", "2"]))] {
        let found = sweep(
            &place,
            strategy,
            &[
                &vary[..],
                &["--strategy", strategy],
                more.iter().flatten().copied().collect::<Vec<_>>().as_slice(),
            ]
            .concat(),
        )
        .end();
        let (samples, all) = (&result(&found)["samples"], &result(&found)["samples_of_all"]);
        let part = samples.as_f64().expect("a number") / all.as_f64().expect("a number");
        println!(
            "{strategy}: {:.4} with {part:.3} of the samples, grid {:.4}",
            accuracy(&found),
            accuracy(&grid)
        );
        assert!(accuracy(&found) >= accuracy(&grid) - 0.005, "{strategy}");
        assert!(part <= 0.5 || strategy == "asha", "{part} of the samples");
        assert_eq!(result(&found)["best"]["epochs"], 40);
    }
}

#[test]
fn a_killed_peer_leaves_no_trial_out_and_none_counts_twice() {
    let place = place(&longer());
    let mut first = sweep(&place, "first", &[&VARY[..], &["--wait-for", "3"]].concat());
    let invite = invite_of(&mut first);
    let (mut killed, other) = (place.join("killed", &invite), place.join("other", &invite));
    let name = killed.wait_for("listening")["peer"].as_str().expect("text").to_owned();
    // It has a trial then, or is about to claim one.
    killed.wait_for("trial");
    killed.kill();
    first.wait(|event| event["event"] == "sweep" || is_change(event, "left", &name));
    let ended = [first.end(), other.end()];
    let alone = sweep(&place, "alone", &VARY).end();
    for peer in &ended {
        assert_eq!(check_trials(peer, 12), check_trials(&alone, 12));
        assert_eq!(peer.summary()["digest"], alone.summary()["digest"], "each result was added once");
    }
}

#[cfg(unix)]
#[test]
fn processes_on_this_machine_are_peers_too_and_a_stopped_sweep_goes_on() {
    let place = place(&longer());
    let mut first = sweep(&place, "first", &[&VARY[..], &["--peers", "3"]].concat());
    let mut processes = Vec::new();
    for _ in 0..2 {
        processes.push(first.wait_for("local_peer")["process"].to_string());
    }
    let before = first.wait_for("trial")["trial"].as_u64();
    first.wait(|event| event["event"] == "saved" && event["failure"].is_null());
    // None of them notices the end of another one.
    let signal = |name: &str| {
        first.signal(name);
        let status = std::process::Command::new("kill").args(["-s", name]).args(&processes).status();
        assert!(status.expect("there is a kill command").success());
    };
    signal("STOP");
    signal("KILL");
    let events = first.end().events;
    let known: BTreeSet<u64> = events
        .iter()
        .filter(|event| event["event"] == "trial")
        .filter_map(|event| event["trial"].as_u64())
        .collect();
    assert!(known.len() < 12 && before.is_some_and(|trial| known.contains(&trial)), "{known:?}");
    let best = ["--resume", "--best", "best.toml", "--report", "page.html"];
    let ended = sweep(&place, "first", &best).end();
    let alone = sweep(&place, "alone", &VARY).end();
    assert_eq!(check_trials(&ended, 12), check_trials(&alone, 12));
    assert_eq!(result(&ended)["best"], result(&alone)["best"]);
    assert_eq!(ended.summary()["peers"], 3, "the others have come back");
    let file = std::fs::read_to_string(place.path("best.toml")).expect("it was written");
    let batch = result(&alone)["best"]["values"]["batch"].to_string();
    assert!(file.contains(&format!("batch = {batch}\n")) && file.contains("file = \"digits\""), "{file}");
    let page = std::fs::read_to_string(place.path("page.html")).expect("it was written");
    assert_eq!(page.matches("<svg").count(), 2, "a picture for each key");
    assert_eq!(page.matches("<circle").count(), 2 * 12);
}

#[test]
fn people_get_a_line_for_each_trial_and_a_table() {
    let place = place(RUN);
    let arguments = [
        "sweep",
        "run.toml",
        "--vary",
        "model.hidden=[8],[16]",
        "--no-mdns",
        "--listen",
        "127.0.0.1",
        "--port",
        "0",
        "--dir",
        "d",
    ];
    let ended = place.ask(&arguments);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("trial 1 (model.hidden = [8]), 9 epochs: accuracy 0."), "{}", ended.stderr);
    assert!(!ended.stderr.contains("step"), "{}", ended.stderr);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert!(lines[0].starts_with("trial  model.hidden  epochs  accuracy"), "{}", ended.stdout);
    assert!(lines[3].starts_with("best: trial 2 (model.hidden = [16])"), "{}", ended.stdout);
    assert!(
        lines[4].starts_with("2 trainings on 25,884 samples, 2 of them by this peer"),
        "{}",
        ended.stdout
    );
}

#[test]
fn a_sweep_that_makes_no_sense_is_refused_before_anything_starts() {
    let place = place(&RUN.replace("epochs = 9", "epochs = 100000"));
    place.write("local.toml", format!("{RUN}[sync]\nkind = \"local\"\n"));
    let rate = "optimizer.rate=0.1,0.2";
    let cases: [(&[&str], &str); 13] = [
        (&["run.toml"], "name a key and its values, such as `--vary optimizer.rate=0.001,0.01,0.1`"),
        (&["run.toml", "--vary", "optimizer.rte=1,2"], "unknown field `rte`"),
        (&["run.toml", "--vary", "network.port=1,2"], "the key `network.port` cannot vary"),
        (&["run.toml", "--vary", "optimizer.rate=0..1:log"], "only numbers above 0"),
        (&["run.toml", "--vary", "optimizer.rate=1..1"], "the range `1..1` is empty"),
        (&["run.toml", "--vary", "optimizer.rate=1..2"], "such as `optimizer.rate=LOW..HIGH:4`"),
        (&["run.toml", "--vary", rate, "--vary", rate], "it is given twice"),
        (&["run.toml", "--vary", "optimizer.rate=0.1,-5"], "trial 2 (optimizer.rate = -5)"),
        (&["run.toml", "--vary", "epochs=1..30:30", "--vary", "batch=1..30:30"], "these are 900 trials"),
        (&["run.toml", "--vary", rate, "--strategy", "random"], "--strategy random --trials N"),
        (&["run.toml", "--vary", rate, "--eta", "3"], "`--eta` is for `--strategy halving`"),
        (&["local.toml", "--vary", rate], "one peer alone trains each trial"),
        (&["run.toml", "--vary", rate, "--report", "gone/page.html"], "a folder that exists"),
    ];
    for (arguments, words) in cases {
        let refused = place.ask(&[&["sweep"], arguments, &["--dir", "nothing"]].concat());
        assert!(refused.failure().contains(words), "{words}: {}", refused.stderr);
        assert!(!place.path("nothing").exists(), "{words}: nothing was started");
    }
    let misused: [(&[&str], &str); 3] = [
        (&["--vary", rate], "RUN.toml"),
        (&["run.toml", "--resume", "--vary", rate], "cannot be used with"),
        (&["run.toml", "--vary", rate, "--peers", "0"], "0 is not in 1..=64"),
    ];
    for (arguments, words) in misused {
        let Ended { code, stderr, .. } = place.ask(&[&["sweep"], arguments].concat());
        assert!(code == Some(2) && stderr.contains(words), "{words}: {stderr}");
    }
    let mut run = place.start("run", 1, &[]);
    run.wait_for("saved");
    run.kill();
    let other = place.ask(&["sweep", "--resume", "--dir", "run"]);
    assert!(other.failure().contains("was no sweep"), "{}", other.stderr);
    let nothing = place.ask(&["sweep", "--resume", "--dir", "nothing"]);
    assert!(nothing.failure().contains("--dir DIR names a data directory"), "{}", nothing.stderr);
}
