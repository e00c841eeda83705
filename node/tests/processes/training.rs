//! Whole runs: many peers compute the same as one.

use std::collections::BTreeSet;

use peergrad_config::single_process::train_single_process;
use peergrad_config::specification::{RunFile, resolve};
use peergrad_models::data::embedded::{DIGITS, embedded};
use serde_json::Value;

use super::process::{Ended, Process, TestFolder, shared_data};

/// The digits for 230 steps, each with a digest.
const SHORT: [(&str, &str); 2] = [("epochs", "10"), ("digest_every", "1")];

#[test]
fn the_demo_ends_with_one_model_and_a_summary() {
    let demo = TestFolder::new().run(&["demo", "--json", "--peers", "3"]).end();
    let summary = demo.summary();
    assert!(summary["test_accuracy"].as_f64() >= Some(0.96), "{summary}");
    let fields: BTreeSet<&str> = summary.as_object().expect("an object").keys().map(String::as_str).collect();
    let expected = [
        "event",
        "steps",
        "samples",
        "left_out",
        "epochs",
        "epochs_before",
        "stall_seconds",
        "best",
        "test_accuracy",
        "test_loss",
        "digest",
        "peers",
        "wall_seconds",
        "bytes_sent",
        "bytes_sent_directly",
        "bytes_received",
    ];
    assert_eq!(fields, BTreeSet::from(expected));
    let digests: BTreeSet<Option<&str>> = demo.all("peer").map(|peer| peer["digest"].as_str()).collect();
    assert_eq!(digests, BTreeSet::from([summary["digest"].as_str()]));
    // One was killed, and another one joined.
    assert_eq!((summary["peers"].as_u64(), demo.all("peer").count()), (Some(3), 3));
    let killed = demo.all("killed").next().expect("one is");
    let changes: Vec<&Value> = demo.all("view").map(|view| &view["change"]).collect();
    assert_eq!((changes.len(), &changes[0]["left"][0]), (2, &killed["peer"]));
    assert_eq!(changes[1]["joined"].as_array().map(Vec::len), Some(1));
    let is_whole = |epoch: &Value| epoch["lost"] == 0 && epoch["repeated"] == 0;
    let epochs = summary["epochs"].as_array().expect("a list");
    assert!(epochs.len() == 40 && epochs.iter().all(is_whole), "{summary}");
    assert_eq!(demo.stderr, "", "nothing for people while programs read");
}

#[test]
fn the_demo_reports_on_standard_error_and_ends_with_results() {
    for (arguments, words) in [
        (&["demo", "--peers", "1"][..], &["with 1 peer on this machine"][..]),
        (
            &["demo", "--peers", "2"],
            &["with 2 peers on this machine", "a new peer joins", "without interruption"],
        ),
        (
            &["demo", "--peers", "3"],
            &["with 3 peers on this machine", "is killed", "restarts with", "a new peer joins"],
        ),
    ] {
        let demo = TestFolder::new().ask(arguments);
        assert_eq!(demo.code, Some(0), "{}", demo.stderr);
        words.iter().for_each(|words| assert!(demo.stderr.contains(words), "{words}: {}", demo.stderr));
        assert!(demo.stdout.contains("0 lost, 0 repeated"), "{}", demo.stdout);
        assert!(
            demo.stdout.contains("test accuracy") && demo.stdout.contains("same digest"),
            "{}",
            demo.stdout
        );
    }
}

#[test]
fn one_peer_alone_trains_like_the_plain_loop() {
    compare_with_alone(1, "ring");
}

#[test]
fn two_peers_train_like_one() {
    compare_with_alone(2, "ring");
}

#[test]
fn four_peers_train_like_one() {
    compare_with_alone(4, "ring");
}

#[test]
fn eight_peers_train_like_one() {
    compare_with_alone(8, "ring");
}

#[test]
fn peers_that_send_directly_train_like_one() {
    compare_with_alone(4, "direct");
}

/// Losses agree with the plain loop up to the rounding of sums in another order; among peers all results agree bit for bit.
fn compare_with_alone(count: usize, topology: &str) {
    let place = TestFolder::new();
    let topology = format!("{topology:?}");
    let text = place.init(DIGITS, &[&SHORT[..], &[("topology", &topology)]].concat());
    place.write("run.toml", &text);
    let peers: Vec<Ended> = place.swarm(count).into_iter().map(Process::end).collect();

    let bytes = embedded(DIGITS).expect("the digits are embedded");
    let run = RunFile::parse(&text).expect("the peers could read it");
    let loaded = resolve(&run, DIGITS, bytes).and_then(|specification| specification.load(bytes));
    let mut expected = Vec::new();
    train_single_process(&loaded.expect("the peers could load it"), |step| expected.push(step.loss));
    assert_eq!(expected.len(), 230);

    for peer in &peers {
        let losses: Vec<f64> = peer.all("step").filter_map(|step| step["loss"].as_f64()).collect();
        assert_eq!(losses.len(), expected.len());
        for (step, (found, expected)) in losses.iter().zip(&expected).enumerate() {
            assert!((found - expected).abs() <= 5e-6 * expected, "step {step}: {found}, alone {expected}");
        }
        assert_eq!(peer.digests(), peers[0].digests());
        assert_eq!(peer.summary()["test_accuracy"], peers[0].summary()["test_accuracy"]);
        assert_eq!(peer.summary()["digest"].as_str(), peers[0].digests().last().copied());
        assert_eq!(peer.summary()["peers"].as_u64(), Some(count as u64));
        assert_eq!(peer.stderr, "");
    }
    let own = |key: &str| peers.iter().filter_map(|peer| peer.summary()[key].as_u64()).sum::<u64>();
    assert_eq!(Some(own("own_samples")), peers[0].summary()["samples"].as_u64(), "each sample once");
    assert_eq!(own("shard"), 9610, "each parameter has one owner");
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let place = TestFolder::new();
    // Layers whose products are cut into pieces.
    let changes = [("epochs", "2"), ("batch", "300"), ("hidden", "[700, 500]"), ("digest_every", "1")];
    let text = place.init(DIGITS, &changes) + "threads = 3\n";
    place.write("run.toml", &text);
    let peers = [&["--threads", "1"][..], &["--threads", "2"], &[]].map(|threads| {
        let directory = format!("of-{}", threads.last().unwrap_or(&"run.toml"));
        place.start(&directory, 1, threads).end()
    });
    for (peer, threads) in peers.iter().zip([1, 2, 3]) {
        assert_eq!(
            peer.all("listening").map(|event| event["threads"].as_u64()).collect::<Vec<_>>(),
            [Some(threads)]
        );
        assert_eq!(peer.digests().len(), 10, "five steps of each epoch");
        assert_eq!(peer.digests(), peers[0].digests(), "{threads} threads");
        assert_eq!(peer.summary()["test_loss"], peers[0].summary()["test_loss"], "{threads} threads");
    }
}

#[test]
fn breast_cancer_trains_from_an_unedited_run_file() {
    let Some(summary) = train_file("breast_cancer.csv.gz", &[]) else { return };
    assert!(summary["test_accuracy"].as_f64() >= Some(0.95), "{summary}");
}

#[test]
fn letters_train() {
    let Some(summary) = train_file("letters.csv.gz", &[("epochs", "2")]) else { return };
    assert!(summary["test_accuracy"].as_f64() >= Some(0.7), "{summary}");
}

#[test]
fn mnist_trains() {
    let Some(summary) = train_file("mnist_5k.csv.gz", &[("epochs", "2")]) else { return };
    assert!(summary["test_accuracy"].as_f64() >= Some(0.85), "{summary}");
}

#[test]
fn a_sparse_file_trains_and_another_one_is_evaluated() {
    let files = ["a9a.libsvm.gz", "a9a_test.libsvm.gz"].map(shared_data);
    let [Some(trained), Some(other)] = files.each_ref().map(|path| path.as_ref()?.to_str()) else { return };
    let place = TestFolder::new();
    let unedited = place.init(trained, &[("epochs", "2")]);
    assert!(unedited.contains("# 32560 rows, 123 features") && unedited.contains("LIBSVM"), "{unedited}");
    // Softmax regression instead of a hidden layer.
    let is_kept = |line: &&str| !line.starts_with("hidden") && !line.starts_with("activation");
    let lines = unedited.lines().filter(is_kept).map(|line| line.replace("\"mlp\"", "\"softmax\"") + "\n");
    place.write("run.toml", lines.collect::<String>());
    let peers: Vec<Ended> = place.swarm(2).into_iter().map(Process::end).collect();
    let summary = peers[1].summary();
    assert!(summary["test_accuracy"].as_f64() >= Some(0.84), "{summary}");
    assert_eq!(peers[0].summary()["digest"], summary["digest"]);

    let evaluate =
        |data: &str| place.run(&["evaluate", "peer-1/model.safetensors", "--data", data, "--json"]).end();
    let [evaluation] = &evaluate(other).events[..] else { panic!("one line") };
    assert_eq!((&evaluation["samples"], &evaluation["held_out"]), (&16_281.into(), &false.into()));
    assert!(evaluation["accuracy"].as_f64() >= Some(0.84), "{evaluation}");
    place.write("narrow.txt", "0 1:1\n1 2:1\n");
    assert_eq!(evaluate("narrow.txt").events[0]["samples"], 2);
    place.write("wide.txt", "0 1:1\n1 124:1\n");
    let wide = place.ask(&["evaluate", "peer-1/model.safetensors", "--data", "wide.txt"]);
    let words = "wide.txt, line 2: the index 124 is larger than the number of features of the run, 123";
    assert!(wide.failure().contains(words), "{}", wide.stderr);
}

/// Two peers on a data file beside the workspace.
fn train_file(name: &str, changes: &[(&str, &str)]) -> Option<Value> {
    let path = shared_data(name)?;
    let place = TestFolder::new();
    let text = place.init(path.to_str().expect("the workspace's path is Unicode"), changes);
    place.write("run.toml", text);
    let peers: Vec<Ended> = place.swarm(2).into_iter().map(Process::end).collect();
    assert_eq!(peers[0].summary()["digest"], peers[1].summary()["digest"]);
    Some(peers[1].summary().clone())
}

#[test]
fn a_run_whose_loss_is_not_finite_ends_with_an_error_and_saves_nothing() {
    for kind in ["sync", "ds-sync", "diloco", "ssp", "downpour"] {
        let place = TestFolder::new();
        let optimizer = "[optimizer]\nrule = \"sgd\"\nrate = 1e6\n";
        let sync = format!("[sync]\nkind = \"{kind}\"\n");
        place.write("run.toml", format!("epochs = 1000000\n[data]\nfile = \"digits\"\n{optimizer}{sync}"));
        for (number, peer) in place.swarm(3).into_iter().map(Process::end).enumerate() {
            assert!(peer.failure().contains("smaller `rate`"), "{kind}: {}", peer.failure());
            assert!(!place.path(&format!("peer-{}/model.safetensors", number + 1)).exists(), "{kind}");
            assert_eq!(peer.all("saved").count(), 0, "{kind}");
        }
    }
}
