//! Every example as real processes on loopback, to the end: all peers have the same model, and it is trained.

use std::process::Command;

use processes::Peer;
use serde_json::Value;

mod processes;

#[test]
fn a_custom_task_trains() {
    assert!(test_loss(env!("CARGO_BIN_EXE_custom_task")) < 0.006);
}

#[test]
fn a_custom_program_trains() {
    assert!(test_loss(env!("CARGO_BIN_EXE_custom_program")) < 0.001);
}

/// Eight peers; three are killed, one after the other, and two join later. Each epoch fills in each row exactly once, whatever was in progress
/// and whichever peer owned the row.
#[test]
fn a_custom_table_loses_no_row_whichever_peer_is_killed() {
    const EPOCHS: f64 = 40.0;
    let (program, folder) = (env!("CARGO_BIN_EXE_custom_table"), tempfile::tempdir().expect("a folder"));
    let mut founder = Peer::start(program, folder.path(), 8);
    let invite = founder.event("invite");
    let join = |name: &str| Peer::join(program, folder.path(), name, &invite);
    let doomed = ["a", "b", "c"].map(join);
    let mut others: Vec<Peer> = ["d", "e", "f", "g"].map(join).into();
    for (index, victim) in doomed.into_iter().enumerate() {
        (0..12).for_each(|_| _ = founder.event("step"));
        // This kills its process.
        drop(victim);
        if index < 2 {
            others.push(join(&format!("late-{index}")));
        }
    }
    let end = founder.event("summary");
    assert_eq!(end["test_accuracy"], 1.0, "each row is a sum of equal numbers: {end}");
    assert_eq!(end["test_loss"], EPOCHS, "the mean number of additions to a row: {end}");
    for other in &mut others {
        assert_eq!(other.event("summary")["digest"], end["digest"]);
    }
}

#[test]
fn a_custom_task_survives_the_partition_test() {
    let output = Command::new(env!("CARGO_BIN_EXE_partition_test")).output().expect("the example starts");
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{words}{}", String::from_utf8_lossy(&output.stderr));
    assert!(words.contains("a cut of 1 s: 5 finished; 320 steps"), "{words}");
    assert!(words.contains("a cut of 10 s: 5 finished; 321 steps"), "{words}");
}

#[test]
fn peers_of_different_binaries_do_not_train_together() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut founder = Peer::start(env!("CARGO_BIN_EXE_custom_program"), folder.path(), 2);
    let invite = founder.event("invite");
    let mut stranger = Peer::join(env!("CARGO_BIN_EXE_custom_task"), folder.path(), "joiner", &invite);
    let failed = stranger.event("failed");
    assert!(failed["reason"].as_str().is_some_and(|words| words.contains("the task `weights`")), "{failed}");
}

/// Trains with two peers to the end, and returns the test loss.
fn test_loss(program: &str) -> f64 {
    let folder = tempfile::tempdir().expect("a folder");
    let mut founder = Peer::start(program, folder.path(), 2);
    let invite = founder.event("invite");
    let mut joiner = Peer::join(program, folder.path(), "joiner", &invite);
    let [first, second] = [&mut founder, &mut joiner].map(|peer| peer.event("summary"));
    assert_eq!((&first["digest"], &first["peers"]), (&second["digest"], &Value::from(2)));
    first["test_loss"].as_f64().expect("a loss")
}
