//! `peer compare`: several run files, each trained by real peers.

use super::process::{Ended, PROGRAM, Process, TestFolder};

/// The digits for two epochs, with the changes in `more`.
fn run_file(more: &str) -> String {
    format!("epochs = 2\n[data]\nfile = \"digits\"\n{more}")
}

const LOCAL_STEPS: &str = "[sync]\nkind = \"local\"\nlocal_steps = 8\n";

fn place() -> TestFolder {
    let place = TestFolder::new();
    place.write("sync.toml", run_file(""));
    place.write("local.toml", run_file(LOCAL_STEPS));
    place
}

/// Runs `peer compare`, with a folder for temporary files that must be empty afterwards.
fn compare(place: &TestFolder, arguments: &[&str]) -> Process {
    let scratch = place.path("scratch");
    std::fs::create_dir_all(&scratch).expect("writable");
    let mut command = std::process::Command::new(PROGRAM);
    command.arg("compare").args(arguments).current_dir(place.path("")).env("TMPDIR", scratch);
    Process::spawn(&mut command)
}

fn check_nothing_is_left(place: &TestFolder) {
    let left = std::fs::read_dir(place.path("scratch")).expect("readable").count();
    assert_eq!(left, 0, "folders of peers are removed");
}

#[test]
fn two_run_files_are_compared_pair_by_pair() {
    let place = place();
    let arguments = ["sync.toml", "local.toml", "--peers", "2", "--seeds", "3..5"];
    let compared = compare(&place, &[&arguments[..], &["--json"]].concat()).end();
    assert_eq!((compared.code, compared.stderr.as_str()), (Some(0), ""));
    let trained: Vec<_> =
        compared.all("trained").map(|object| (object["file"].as_str(), object["seed"].as_u64())).collect();
    let (sync, local) = (Some("sync.toml"), Some("local.toml"));
    assert_eq!(trained, [(sync, Some(3)), (local, Some(3)), (sync, Some(4)), (local, Some(4))]);
    for object in compared.all("trained") {
        assert!(object["test_accuracy"].as_f64() > Some(0.5), "{object}");
        assert_eq!(object["samples"].as_u64(), Some(2 * 1438), "two epochs over four fifths of the digits");
        assert!(object["training_seconds"].as_f64() > Some(0.0), "{object}");
    }
    let files: Vec<_> = compared.all("compared").collect();
    let sent = |index: usize| files[index]["bytes_sent"].as_f64().expect("a number");
    assert_eq!((files.len(), files[1]["to_first"].as_array().map(Vec::len)), (2, Some(2)));
    assert!(sent(1) < 0.3 * sent(0), "local steps save bytes: {} of {}", sent(1), sent(0));
    check_nothing_is_left(&place);
}

#[test]
fn people_get_a_table_and_a_page() {
    let place = place();
    let compared =
        compare(&place, &["sync.toml", "local.toml", "--peers", "2", "--report", "page.html"]).end_in_words();
    assert_eq!(compared.code, Some(0), "{}", compared.stderr);
    let lines: Vec<&str> = compared.stdout.lines().collect();
    assert!(lines[0].contains("time in training") && lines[0].contains("bytes sent"), "{}", compared.stdout);
    assert!(lines[1].starts_with("sync.toml ") && lines[1].contains("(1.00 x)"), "{}", compared.stdout);
    assert!(lines[2].starts_with("local.toml") && lines[2].contains("2,876"), "{}", compared.stdout);
    assert_eq!(lines[3..], ["report: page.html"]);
    assert!(compared.stderr.contains("local.toml, seed 7: accuracy"), "{}", compared.stderr);
    let page = std::fs::read_to_string(place.path("page.html")).expect("it was written");
    assert_eq!(page.matches("<svg").count(), 3, "against samples, time and bytes");
    assert!(page.matches("<circle").count() > 3 * 20, "a curve for each");
    assert!(page.contains("peer compare sync.toml local.toml --peers 2<"), "{page}");
    for outside in ["src=", "href=", "http"] {
        assert!(!page.contains(outside), "it needs nothing but itself: {outside}");
    }
}

#[test]
fn peers_of_a_comparison_do_not_send_each_other_the_data() {
    let place = TestFolder::new();
    let rows: String = (0..4000).map(|row| format!("{},{},{}\n", row % 7, row * 3 % 11, row % 2)).collect();
    place.write("data/table.csv", rows);
    let text = "epochs = 1\n[data]\nfile = \"table.csv\"\n[model]\nkind = \"softmax\"\n";
    place.write("data/a.toml", text);
    place.write("data/b.toml", format!("{text}[sync]\nkind = \"local\"\nlocal_steps = \"epoch\"\n"));
    let compared = compare(&place, &["data/a.toml", "data/b.toml", "--peers", "2", "--json"]).end();
    assert_eq!((compared.code, compared.stderr.as_str()), (Some(0), ""));
    let sent = compared.all("trained").last().and_then(|object| object["bytes_sent"].as_u64());
    assert!(sent.is_some_and(|sent| sent < 20_000), "{sent:?} bytes for one round of six parameters");
}

#[test]
fn run_files_that_cannot_be_compared_are_refused_before_training() {
    let place = place();
    place.write("small.toml", run_file("[model]\nhidden = [8]\n"));
    place.write("table.csv", "1,2,0\n3,4,1\n5,6,0\n7,8,1\n9,1,0\n");
    place.write("table.toml", "[data]\nfile = \"table.csv\"\n");
    place.write("seed.toml", format!("seed = 9\n{}", run_file("")));
    place.write("broken.toml", "pases = 3\n");
    let cases: [(&[&str], &str); 7] = [
        (&["sync.toml", "local.toml", "small.toml"], "sync.toml and small.toml train different models"),
        (&["sync.toml", "table.toml"], "sync.toml and table.toml train on different data"),
        (&["sync.toml", "seed.toml"], "the seeds 7 and 9, and so hold out different rows: use one seed"),
        (&["sync.toml", "broken.toml"], "broken.toml: TOML parse error at line 1, column 1"),
        (&["sync.toml", "gone.toml"], "cannot read gone.toml"),
        (
            &["sync.toml", "local.toml", "--report", "gone/page.html"],
            "cannot write the report gone/page.html",
        ),
        (&["sync.toml", "local.toml", "--report", "."], "cannot write the report ."),
    ];
    for (arguments, words) in cases {
        let refused = compare(&place, arguments).end_in_words();
        assert!(refused.failure().contains(words), "{words}: {}", refused.stderr);
        check_nothing_is_left(&place);
    }
    let misused: [(&[&str], &str); 3] = [
        (&["sync.toml"], "2 values required"),
        (&["sync.toml", "local.toml", "--seeds", "4..4"], "the second number must be larger"),
        (&["sync.toml", "local.toml", "--peers", "0"], "0 is not in 1..=64"),
    ];
    for (arguments, words) in misused {
        let Ended { code, stderr, .. } = compare(&place, arguments).end_in_words();
        assert!(code == Some(2) && stderr.contains(words), "{words}: {stderr}");
    }
}

#[test]
fn a_failing_peer_is_reported_with_its_own_message() {
    let place = TestFolder::new();
    place.write("table.csv", "1,2,0\n3,4,1\n5,6,0\n7,8,1\n9,1,0\n");
    place.write("a.toml", "epochs = 1000\n[data]\nfile = \"table.csv\"\n");
    place.write("b.toml", "epochs = 1\n[data]\nfile = \"table.csv\"\n");
    let mut compared = compare(&place, &["a.toml", "b.toml", "--peers", "1", "--json"]);
    compared.wait_for("training");
    std::fs::remove_file(place.path("table.csv")).expect("it is there");
    let ended = compared.end();
    // The first peer may have been about to read it; else it is the second one.
    for words in ["peer 1 of ", ".toml with seed 7 failed (exit status: 1): ", "cannot read table.csv"] {
        assert!(ended.failure().contains(words), "{words}: {}", ended.failure());
    }
    check_nothing_is_left(&place);
}

#[cfg(unix)]
#[test]
fn an_interrupted_comparison_leaves_nothing_behind() {
    let place = place();
    place.write("sync.toml", run_file("").replace("epochs = 2", "epochs = 100000"));
    let mut compared = compare(&place, &["sync.toml", "local.toml", "--peers", "2", "--json"]);
    compared.wait_for("training");
    compared.signal("INT");
    let ended = compared.end();
    assert_eq!(ended.failure(), "stopped on request");
    check_nothing_is_left(&place);
}
