//! Programs other than the synchronous one, as real processes: with a crash and a late joiner they end with one trained model.

use super::departures::training_by;
use super::process::{Ended, Process, is_change, name_of};

/// Four peers, of which one is killed, and another one that joins late.
fn train(sync: &str, epochs: u64) {
    let (place, mut peers) = training_by(4, epochs, sync);
    let (victim, gone) = peers.remove(2);
    victim.kill();
    peers[0].0.wait(|event| is_change(event, "left", &gone));
    let mut late = place.join("late", &place.invite("peer-1"));
    let name = name_of(&mut late);
    peers[0].0.wait(|event| is_change(event, "joined", &name));
    peers.push((late, name));
    let ended: Vec<Ended> = peers.into_iter().map(|(peer, _)| Process::end(peer)).collect();
    for peer in &ended {
        assert_eq!(peer.summary()["digest"], ended[0].summary()["digest"], "{sync}");
        let accuracy = peer.summary()["test_accuracy"].as_f64().expect("digits have classes");
        assert!(accuracy > 0.93, "{sync}: {accuracy}");
        assert_eq!(peer.stderr, "");
    }
}

#[test]
fn groups_that_change() {
    train("kind = \"ds-sync\"", 400);
}

/// Four peers on two cores are late all the time.
#[test]
fn backup_workers() {
    train("kind = \"backup-workers\"\nbackups = 2", 400);
}

#[test]
fn local_steps() {
    train("kind = \"local\"\nlocal_steps = 4", 300);
}

#[test]
fn local_and_outer_steps() {
    train("kind = \"diloco\"\nlocal_steps = 4", 300);
}

#[test]
fn rounds_in_seconds() {
    train("kind = \"diloco\"\nround_seconds = 0.005", 400);
}

#[test]
fn compressed_gradients_and_parameters() {
    train("gradients = \"int8\"\nparameters = \"bf16\"", 300);
}

#[test]
fn parameters_in_a_table() {
    train("kind = \"ssp\"\nstaleness = 2", 100);
}

#[test]
fn asynchronous_workers() {
    train("kind = \"async\"", 300);
}
