//! The examples in which each sample counts exactly once, each as two real processes on loopback: their ends are known numbers.

use processes::Peer;
use serde_json::Value;

mod processes;

#[test]
fn each_version_of_the_register_has_one_leader() {
    assert_eq!(accuracy_and_loss(env!("CARGO_BIN_EXE_registers")), (1.0, 0.0));
}

#[test]
fn the_sketch_counts_each_item_once() {
    let (accuracy, loss) = accuracy_and_loss(env!("CARGO_BIN_EXE_count_min"));
    assert_eq!(accuracy, 1.0, "no estimate is below the true count, or above the bound");
    assert!((loss - 272.08).abs() < 1e-6, "the mean overestimate of this stream by these hashes: {loss}");
}

#[test]
fn the_ranks_are_those_of_a_plain_loop() {
    let (accuracy, loss) = accuracy_and_loss(env!("CARGO_BIN_EXE_page_rank"));
    assert_eq!(accuracy, 1.0);
    assert!(loss < 1e-6, "{loss}");
}

#[test]
fn naive_bayes_counts_each_picture_once() {
    let (accuracy, loss) = accuracy_and_loss(env!("CARGO_BIN_EXE_naive_bayes"));
    assert_eq!(accuracy, 322.0 / 360.0);
    assert!((loss - 2.359_447).abs() < 1e-6, "the loss of the exact counts: {loss}");
}

/// Runs two peers to the end, and returns the accuracy and the loss, in which they agree.
fn accuracy_and_loss(program: &str) -> (f64, f64) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut founder = Peer::start(program, folder.path(), 2);
    let invite = founder.event("invite");
    let mut joiner = Peer::join(program, folder.path(), "joiner", &invite);
    let [first, second] = [&mut founder, &mut joiner].map(|peer| peer.event("summary"));
    assert_eq!((&first["digest"], &first["peers"]), (&second["digest"], &Value::from(2)));
    let number = |name: &str| first[name].as_f64().expect("a number");
    (number("test_accuracy"), number("test_loss"))
}
