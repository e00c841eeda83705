//! Whole runs: what many peers compute is what one computes.

use std::collections::BTreeSet;

use peergrad::alone::train_alone;
use peergrad::data::embedded::{DIGITS, embedded};
use peergrad::specification::{RunFile, resolve};
use serde_json::Value;

use super::process::{Ended, Place, Process, shared_data};

/// The digits for 230 steps, every one of them with a digest.
const SHORT: [(&str, &str); 2] = [("passes", "10"), ("digest_every", "1")];

#[test]
fn the_demo_ends_with_one_model_and_a_summary() {
    let demo = Place::new().run(&["demo", "--json", "--peers", "2"]).end();
    let summary = demo.summary();
    assert!(summary["test_accuracy"].as_f64() >= Some(0.96), "{summary}");
    let fields: BTreeSet<&str> = summary.as_object().expect("an object").keys().map(String::as_str).collect();
    let expected = [
        "event",
        "steps",
        "samples",
        "left_out",
        "test_accuracy",
        "test_loss",
        "digest",
        "peers",
        "wall_seconds",
        "bytes_sent",
        "bytes_received",
    ];
    assert_eq!(fields, BTreeSet::from(expected));
    let digests: BTreeSet<Option<&str>> = demo.events.iter().map(|event| event["digest"].as_str()).collect();
    assert_eq!(digests.len(), 1);
    assert_eq!((summary["peers"].as_u64(), demo.all("peer").count()), (Some(2), 2));
    assert_eq!(demo.stderr, "", "nothing for people while programs read");
}

#[test]
fn the_demo_tells_people_on_standard_error_and_ends_with_results() {
    for (peers, words) in [("1", "1 peer learns"), ("2", "2 peers learn")] {
        let demo = Place::new().ask(&["demo", "--peers", peers]);
        assert_eq!(demo.code, Some(0), "{}", demo.stderr);
        assert!(demo.stderr.contains(words), "{}", demo.stderr);
        assert!(
            demo.stdout.contains("test accuracy") && demo.stdout.contains("one digest"),
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

/// Losses agree with the plain loop to the rounding of sums in another order; among peers everything agrees in every bit.
fn compare_with_alone(count: usize, topology: &str) {
    let place = Place::new();
    let topology = format!("{topology:?}");
    let text = place.init(DIGITS, &[&SHORT[..], &[("topology", &topology)]].concat());
    place.write("run.toml", &text);
    let peers: Vec<Ended> = place.swarm(count).into_iter().map(Process::end).collect();

    let bytes = embedded(DIGITS).expect("the digits are embedded");
    let run = RunFile::parse(&text).expect("the peers could read it");
    let loaded = resolve(&run, DIGITS, bytes).and_then(|specification| specification.load(bytes));
    let mut expected = Vec::new();
    train_alone(&loaded.expect("the peers could load it"), |step| expected.push(step.loss));
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
fn breast_cancer_trains_from_an_unedited_run_file() {
    let Some(summary) = train_file("breast_cancer.csv.gz", &[]) else { return };
    assert!(summary["test_accuracy"].as_f64() >= Some(0.95), "{summary}");
}

#[test]
fn letters_train() {
    let Some(summary) = train_file("letters.csv.gz", &[("passes", "2")]) else { return };
    assert!(summary["test_accuracy"].as_f64() >= Some(0.7), "{summary}");
}

#[test]
fn mnist_trains() {
    let Some(summary) = train_file("mnist_5k.csv.gz", &[("passes", "2")]) else { return };
    assert!(summary["test_accuracy"].as_f64() >= Some(0.85), "{summary}");
}

/// Two peers on a data file beside the workspace.
fn train_file(name: &str, changes: &[(&str, &str)]) -> Option<Value> {
    let path = shared_data(name)?;
    let place = Place::new();
    let text = place.init(path.to_str().expect("the workspace's path is Unicode"), changes);
    place.write("run.toml", text);
    let peers: Vec<Ended> = place.swarm(2).into_iter().map(Process::end).collect();
    assert_eq!(peers[0].summary()["digest"], peers[1].summary()["digest"]);
    Some(peers[1].summary().clone())
}
