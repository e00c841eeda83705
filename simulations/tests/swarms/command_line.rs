//! The program `simulate` as a user sees it: its output and its exit code.

use std::io::BufRead;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn simulate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_simulate")).args(arguments).output().unwrap()
}

/// Checks for exit code 2, and for exactly this text on standard error.
#[track_caller]
fn assert_refused(arguments: &[&str], parts: &[&str]) {
    let output = simulate(arguments);
    let words = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{words}");
    for part in parts {
        assert_eq!(words.matches(part).count(), 1, "`{part}` once in: {words}");
    }
}

fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn invalid_commands_are_refused_before_a_simulation_runs() {
    assert_refused(
        &["run", "nonsense"],
        &["no scenario and no file `nonsense`", "kill-mid-step", "simulate keys"],
    );
    assert_refused(&["show", "nonsense"], &["simulate list"]);
    assert_refused(&["run", "mutants", "--peers", "0"], &["0 peers cannot be simulated; 1 to 1000 can"]);
    assert_refused(&["run", "mutants", "--mutant", "nonsense"], &["`nonsense`", "simulate mutants"]);
    assert_refused(
        &["run", "mutants", "--report", "/nowhere/x.html"],
        &["cannot write the report /nowhere/x.html"],
    );
    assert_refused(&["sweep", "mutants", "nonsense", "--seeds", "0..1"], &["`nonsense`"]);
    assert_refused(&["sweep", "--seeds", "5..1"], &["the second number must be larger"]);
    assert_refused(&["sweep", "--seeds", "5-6"], &["two dots between"]);
    let binary = file("binary.toml", &[0xff, 0xfe, 0]);
    assert_refused(&["run", binary.to_str().unwrap()], &["cannot read", "TOML text"]);
    let misspelt = file("misspelt.toml", b"about = \"x\"\npers = 3");
    assert_refused(
        &["run", misspelt.to_str().unwrap()],
        &["misspelt.toml", "line 2", "unknown field `pers`", "simulate keys"],
    );
}

#[test]
fn the_reference_of_keys_is_a_scenario_that_runs() {
    let keys = simulate(&["keys"]);
    assert_eq!(keys.status.code(), Some(0));
    let path = file("mine.toml", &keys.stdout);
    let output = simulate(&["run", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    let words = String::from_utf8(output.stdout).unwrap();
    assert!(
        words.starts_with("mine, seed 1: what it shows") && words.contains("Checked, without a violation: "),
        "{words}"
    );
}

#[test]
fn every_line_of_json_is_an_object_and_the_last_one_sums_up() {
    let output = simulate(&["run", "mutants", "--small", "--json"]);
    let lines: Vec<serde_json::Value> =
        output.stdout.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    let last = lines.last().unwrap();
    assert_eq!(last["event"], "summary");
    for key in [
        "trace_hash",
        "virtual_seconds",
        "committed_steps",
        "samples_trained",
        "samples_lost",
        "samples_repeated",
        "steps_redone",
    ] {
        assert!(!last[key].is_null(), "{key}");
    }
}

#[test]
fn a_closed_output_pipe_causes_no_panic() {
    for arguments in [&["keys"][..], &["run", "mutants", "--json"], &["replay", "mutants"]] {
        // Closed before the program starts, so that it cannot have written anything.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_simulate"));
        let child = command.args(arguments).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        // Drops the command, which has its own end of the pipe.
        drop(command);
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(2), &b""[..]), "{arguments:?}");
    }
}

#[test]
fn the_largest_seeds_can_be_swept() {
    let seeds = format!("{}..{}", u64::MAX - 2, u64::MAX);
    let output = simulate(&["sweep", "mutants", "--json", "--seeds", &seeds]);
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &line["steps"]), (Some(0), &serde_json::json!(80)));
}

#[test]
fn two_training_modes_are_compared() {
    let place = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("comparisons");
    let path = |name: &str| place.join(name).to_str().unwrap().to_owned();
    let report = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("compared.html");
    let (sync, groups) = (path("sync.toml"), path("groups.toml"));
    let arguments = ["compare", &sync, &groups, "--seeds", "1..2", "--report", report.to_str().unwrap()];
    let output = simulate(&arguments);
    let words = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{words}");
    assert!(words.lines().nth(1).unwrap().contains("sync.toml") && words.contains("(1.00 x)"), "{words}");
    let page = std::fs::read_to_string(&report).unwrap();
    assert_eq!(page.matches("<svg").count(), 3, "against samples, time and bytes");
    let squares = file("squares.toml", b"about = \"x\"\npeers = 2\n[task]\nkind = \"squares\"");
    assert_refused(&["compare", &sync, squares.to_str().unwrap()], &["train different models or data"]);
}

#[test]
fn the_cost_of_fixed_delays_is_reported() {
    let output = simulate(&["delays", "--fixed", "--seeds", "1..2"]);
    let words = String::from_utf8(output.stdout).unwrap();
    let delays: Vec<&str> = words.lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(delays, ["0", "4", "16", "64"], "{words}");
    let json = simulate(&["delays", "--fixed", "9", "--seeds", "1..2", "--json"]);
    let lines: Vec<serde_json::Value> =
        json.stdout.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert_eq!(lines.iter().map(|line| line["delay"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 9]);
    assert_eq!(lines[0]["ratio"], serde_json::json!(1.0));

    assert_refused(&["delays", "--fixed", "--workers", "2"], &["cannot be used with '--workers"]);
    assert_refused(&["delays", "--fixed", "2000"], &["2000 is not in 0..=1024"]);
}

#[test]
fn the_cost_of_staleness_is_reported() {
    let small =
        ["delays", "--workers", "2", "--hidden", "8", "--rules", "sgd", "--target", "0.6", "--seeds", "1..3"];
    let json = simulate(&[&small[..], &["--staleness", "3", "--rates", "0.1", "--json"]].concat());
    let lines: Vec<serde_json::Value> =
        json.stdout.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert_eq!(lines.iter().map(|line| line["staleness"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 3]);
    assert_eq!(
        (&lines[0]["ratio"], lines[1]["batches"].as_array().unwrap().len()),
        (&serde_json::json!(1.0), 2)
    );
    let output = simulate(&[&small[..], &["--staleness", "0,2", "--baseline-batches", "200"]].concat());
    let words = String::from_utf8(output.stdout).unwrap();
    let heads = ["hidden", "rule", "rate", "s = 0", "s = 2"];
    assert!(heads.iter().all(|head| words.lines().next().unwrap().contains(head)), "{words}");
    assert_eq!((words.lines().count(), words.matches(" x)").count()), (2, 1), "{words}");

    assert_refused(&["delays", "--hidden", "64,,"], &["e.g. 64,64 for two hidden layers"]);
    assert_refused(&["delays", "--rules", "sgd,adm"], &["'adm'", "momentum, adagrad"]);
    assert_refused(&["delays", "--rates", "0.1"], &["--rates has 1 for 3 of --rules"]);
    assert_refused(&["delays", "--target", "93"], &["--target 93 is a share"]);
    assert_refused(&["delays", "--batches-max", "10"], &["before its --baseline-batches"]);
    assert_refused(&["delays", "--data", "/nowhere.csv"], &["cannot read the data file /nowhere.csv"]);
    let numbers: String = (0..40).map(|i| format!("{i}.5,{}.25\n", i * i)).collect();
    let numbers = file("numbers.csv", numbers.as_bytes());
    assert_refused(&["delays", "--data", numbers.to_str().unwrap()], &["no classes", "--target-loss"]);
    assert_refused(
        &[&small[..6], &["sgd", "--baseline-batches", "2", "--seeds", "1..2"]].concat(),
        &["no learning rate", "sgd on hidden layers of 8", "a larger --baseline-batches"],
    );
}

#[test]
fn all_files_for_comparison_can_be_read() {
    let place = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("comparisons");
    let mut count = 0;
    for entry in std::fs::read_dir(&place).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let parsed = peergrad_simulations::scenario::file::parse(
            "compared",
            &text,
            &place,
            peergrad_simulations::scenario::file::Size::Full,
        );
        assert!(parsed.is_ok(), "{}: {:?}", path.display(), parsed.err().map(|error| error.to_string()));
        count += 1;
    }
    assert!(count > 15);
}
