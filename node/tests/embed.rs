//! Peers inside this process, without a command line: they train, leave, crash and are asked.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::thread;
use std::time::Duration;

use peergrad::embed::status::Phase;
use peergrad::embed::{Connectivity, DirectoryChoice, Outcome, Peer, PeerEvent, PeerOptions, StartError};
use peergrad::io::{Event, Failure};
use peergrad::protocol::invite::Invite;
use peergrad::{Evaluation, Manifest, Optimizer, Task, Training};
use peergrad_net::{DirectoryError, Mdns};
use tempfile::TempDir;

/// Finds `w` in y = w x, from points with w = 3, at leisure.
struct Slope;

impl Task for Slope {
    fn manifest(&self) -> Manifest {
        Manifest::tensor("w", [1])
    }

    fn sample_count(&self) -> u32 {
        SAMPLES
    }

    fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        thread::sleep(Duration::from_millis(2));
        let errors = samples.iter().map(|&sample| (sample as f32 / SAMPLES as f32, parameters[0] - 3.0));
        gradient[0] = errors.clone().map(|(x, error)| 2.0 * error * x * x).sum();
        errors.map(|(x, error)| f64::from(error * x).powi(2)).sum()
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        Evaluation { samples: 1, loss: f64::from(parameters[0] - 3.0).powi(2), accuracy: None }
    }
}

const SAMPLES: u32 = 1000;
const EPOCHS: u64 = 40;

fn training(peers: u32) -> Training {
    peergrad::train("slope", Slope).optimizer(Optimizer::SGD).epochs(EPOCHS).batch(40).peers(peers)
}

/// A peer with its own directory, which nobody finds by chance.
fn start(options: PeerOptions, directory: &Path) -> Result<Peer, StartError> {
    let connectivity = Connectivity {
        listen: Some([127, 0, 0, 1].into()),
        port: Some(0),
        mdns: Mdns::Off,
        ..Connectivity::default()
    };
    let directory = DirectoryChoice::At(directory.to_owned());
    Peer::start(PeerOptions { directory, connectivity, ..options })
}

/// A founder and peers that have its invite, each with its directory.
fn swarm(peers: u32) -> Vec<(Peer, TempDir)> {
    let folder = || tempfile::tempdir().unwrap();
    let (training, first) = (training(peers), folder());
    let founder = start(training.found().unwrap(), first.path()).unwrap();
    let invite: Invite = founder.handle().invite().expect("a founder knows its run");
    let joined = (1..peers).map(|_| {
        let folder = folder();
        (start(training.join(invite.clone()), folder.path()).unwrap(), folder)
    });
    let joined: Vec<_> = joined.collect();
    std::iter::once((founder, first)).chain(joined).collect()
}

fn outcome(mut peer: Peer) -> Outcome {
    loop {
        match peer.next_blocking().expect("the peer does not panic") {
            PeerEvent::Ended(outcome) => return outcome,
            PeerEvent::Node(_) | PeerEvent::Notice(_) => {}
        }
    }
}

/// Returns once the peer has committed so many steps.
fn wait_for_steps(peer: &mut Peer, steps: u64) {
    loop {
        let event = peer.next_blocking().expect("the peer does not panic");
        if let PeerEvent::Node(Event::Committed(committed)) = event
            && committed.step.0 >= steps
        {
            return;
        }
    }
}

/// The peers train all samples to the end, with the same parameters.
fn all_end(peers: Vec<Peer>) {
    let ending: Vec<_> = peers.into_iter().map(|peer| thread::spawn(move || outcome(peer))).collect();
    let outcomes: Vec<Outcome> = ending.into_iter().map(|ending| ending.join().unwrap()).collect();
    let first = outcomes[0].state.clone().unwrap();
    assert!((first.parameters[0] - 3.0).abs() < 0.01, "{:?}", first.parameters);
    for outcome in &outcomes {
        assert_eq!(outcome.result, Ok(()));
        let state = outcome.state.as_ref().unwrap();
        assert_eq!((state.samples, state.left_out), (EPOCHS * u64::from(SAMPLES), 0));
        assert_eq!(state.digest, first.digest);
        assert_eq!(outcome.model.as_ref().unwrap().as_ref().map(|model| model.steps), Some(state.steps));
    }
}

#[test]
fn peers_of_one_process_train_together_and_answer_meanwhile() {
    let mut swarm = swarm(2);
    let (founder, folder) = &mut swarm[0];
    wait_for_steps(founder, 3);
    let status = founder.handle().status_blocking().unwrap();
    assert_eq!((status.phase, status.members.len()), (Phase::Training, 2));
    assert_eq!(founder.opening().directory, folder.path());
    let invite = founder.handle().invite().unwrap();
    assert_eq!(invite.contacts.len(), 2, "an invite names other members, too");
    let (peers, folders): (Vec<_>, Vec<_>) = swarm.into_iter().unzip();
    all_end(peers);
    assert!(folders[0].path().join("model.safetensors").exists());
}

#[test]
fn a_peer_that_leaves_hands_over() {
    let mut swarm = swarm(2);
    let (mut leaver, _folder) = swarm.pop().unwrap();
    wait_for_steps(&mut leaver, 3);
    let handle = leaver.handle();
    handle.leave();
    let outcome = outcome(leaver);
    assert_eq!((&outcome.result, outcome.is_success()), (&Err(Failure::Left), true));
    let (peers, _folders): (Vec<_>, Vec<_>) = swarm.into_iter().unzip();
    all_end(peers);
    assert!(handle.invite().is_some() && handle.status_blocking().is_none(), "a handle outlives its peer");
}

#[test]
fn a_peer_that_is_dropped_is_a_crashed_one() {
    let mut swarm = swarm(3);
    let (mut crashed, _folder) = swarm.pop().unwrap();
    wait_for_steps(&mut crashed, 3);
    drop(crashed);
    let (peers, _folders): (Vec<_>, Vec<_>) = swarm.into_iter().unzip();
    all_end(peers);
}

#[test]
fn a_peer_that_cannot_start_says_why() {
    let swarm = swarm(1);
    let directory = swarm[0].1.path();
    let again = start(training(1).found().unwrap(), directory);
    let error = again.err().expect("the directory is in use");
    assert!(matches!(error, StartError::Directory(DirectoryError::InUse { .. })), "{error}");
    assert!(training(1).batch(0).found().is_err(), "a setting is out of bounds");
}
