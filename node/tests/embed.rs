//! Peers inside this process, without a command line: they train, leave, crash and are asked.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use peergrad::embed::status::{MemberState, Phase, Status};
use peergrad::embed::{
    Connectivity, DirectoryChoice, DirectoryError, Mdns, NotYet, Outcome, Peer, PeerEvent, PeerHandle,
    PeerOptions, StartError, StoppedPeer,
};
use peergrad::io::{Event, Failure};
use peergrad::protocol::invite::Invite;
use peergrad::specification::RunFile;
use peergrad::specification::run_file::{LocalSteps, SyncKind};
use peergrad::task::StepInfo;
use peergrad::{Evaluation, Manifest, Optimizer, Task, Training};
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
    let directory = match options.directory {
        open @ DirectoryChoice::Open(_) => open,
        _ => DirectoryChoice::At(directory.to_owned()),
    };
    Peer::start(PeerOptions { directory, connectivity, ..options })
}

/// A founder and peers that have its invite, each with its directory.
fn swarm(peers: u32) -> Vec<(Peer, TempDir)> {
    let folder = || tempfile::tempdir().unwrap();
    let (training, first) = (training(peers), folder());
    let founder = start(training.new_run().unwrap(), first.path()).unwrap();
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
        match peer.next().expect("the peer does not panic") {
            PeerEvent::Ended(outcome) => return outcome,
            PeerEvent::Node(_) | PeerEvent::Notice(_) => {}
            PeerEvent::Panicked(reason) => panic!("{reason}"),
        }
    }
}

/// Returns once the peer has committed so many steps.
fn wait_for_steps(peer: &mut Peer, steps: u64) {
    loop {
        let event = peer.next().expect("the peer does not panic");
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
    assert_complete(&ending.into_iter().map(|ending| ending.join().unwrap()).collect::<Vec<_>>());
}

/// The outcomes are those of peers that have trained all samples, with the same parameters.
fn assert_complete(outcomes: &[Outcome]) {
    let first = outcomes[0].state.clone().unwrap();
    assert!((first.parameters[0] - 3.0).abs() < 0.01, "{:?}", first.parameters);
    for outcome in outcomes {
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
    let status = founder.handle().status().unwrap();
    assert_eq!((status.phase, status.members.len()), (Phase::Training, 2));
    assert_eq!(founder.start_report().directory, folder.path());
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
    assert!(handle.invite().is_some() && handle.status().is_none(), "a handle outlives its peer");
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
fn a_founder_waits_for_others_and_its_user_need_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut founder = start(training(2).new_run().unwrap(), folder.path()).unwrap();
    let error = loop {
        if let Err(error) = founder.next_within(Duration::from_millis(100)) {
            break error;
        }
    };
    assert_eq!(error, NotYet);
    while founder.handle().status().unwrap().phase != Phase::Bootstrapping {
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_peer_that_stopped_goes_on() {
    let mut swarm = swarm(2);
    let (mut stopped, folder) = swarm.pop().unwrap();
    wait_for_steps(&mut stopped, 3);
    drop(stopped);
    let found = (0..500).find_map(|_| {
        thread::sleep(Duration::from_millis(10));
        StoppedPeer::find(Some(folder.path())).ok()
    });
    let loader = training(2).join(swarm[0].0.handle().invite().unwrap()).loader;
    let again = start(found.unwrap().resume(loader).unwrap(), folder.path()).unwrap();
    let (mut peers, _folders): (Vec<_>, Vec<_>) = swarm.into_iter().unzip();
    peers.push(again);
    all_end(peers);
}

#[test]
fn a_peer_that_cannot_start_says_why() {
    let swarm = swarm(1);
    let directory = swarm[0].1.path();
    let again = start(training(1).new_run().unwrap(), directory);
    let error = again.err().expect("the directory is in use");
    assert!(matches!(error, StartError::Directory(DirectoryError::InUse { .. })), "{error}");
    assert!(training(1).batch(0).new_run().is_err(), "a setting is out of bounds");
}

#[test]
fn a_directory_is_free_again_after_its_peer() {
    let mut swarm = swarm(1);
    let (peer, folder) = swarm.pop().unwrap();
    assert_eq!(outcome(peer).result, Ok(()));
    let mut again = start(training(1).new_run().unwrap(), folder.path()).unwrap();
    wait_for_steps(&mut again, 3);
    drop(again);
    // What was being written is written first.
    let restarted = (0..500).find_map(|_| {
        thread::sleep(Duration::from_millis(10));
        start(training(1).new_run().unwrap(), folder.path()).ok()
    });
    assert!(restarted.is_some());
}

/// A slope of which one peer computes one gradient for longer than the other peer is patient.
struct LongStep {
    /// Whether this is the task of that peer.
    is_slow: bool,
    shared: Arc<LongStepState>,
}

/// What the two tasks have in common.
struct LongStepState {
    /// Whether the slow peer says that it is busy.
    says_so: bool,
    founder: OnceLock<PeerHandle>,
    slow: OnceLock<PeerHandle>,
    /// How many gradients the slow peer has begun.
    begun: AtomicUsize,
}

/// The slow peer's gradient that takes long, from 1.
const LONG: usize = 20;
const PATIENCE: Duration = Duration::from_secs(2);

impl LongStepState {
    /// Takes longer than the patience, after the other peer has heard that this is intended.
    fn take_long(&self) {
        if !self.says_so {
            return thread::sleep(PATIENCE * 5 / 2);
        }
        let (slow, founder) = (self.slow.wait(), self.founder.wait());
        slow.busy(PATIENCE * 10);
        let is_busy = |status: &Status| status.members.iter().any(|it| it.state == MemberState::Busy);
        while !founder.status().is_some_and(|status| status.is_well && is_busy(&status)) {
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(PATIENCE * 5 / 2);
        slow.not_busy();
    }
}

impl Task for LongStep {
    fn manifest(&self) -> Manifest {
        Slope.manifest()
    }

    fn sample_count(&self) -> u32 {
        Slope.sample_count()
    }

    fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        let begun = &self.shared.begun;
        if self.is_slow && begun.fetch_add(1, Ordering::SeqCst) + 1 == LONG {
            self.shared.take_long();
        } else if !self.is_slow && begun.load(Ordering::SeqCst) == LONG {
            // The run outlasts that gradient, and the return of the slow peer.
            thread::sleep(Duration::from_millis(50));
        }
        Slope.gradient(parameters, samples, gradient)
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        Slope.evaluate(parameters)
    }
}

/// The events of a peer that tell how it stands with the other one, and its outcome.
fn watched(mut peer: Peer) -> (Vec<Event>, Outcome) {
    let mut events = vec![];
    loop {
        match peer.next().expect("the peer does not panic") {
            PeerEvent::Node(event @ (Event::Excluded { .. } | Event::MemberSuspected(_))) => {
                events.push(event)
            }
            PeerEvent::Ended(outcome) => return (events, outcome),
            PeerEvent::Node(_) | PeerEvent::Notice(_) => {}
            PeerEvent::Panicked(reason) => panic!("{reason}"),
        }
    }
}

/// The events of two peers, one of which takes long at one step.
fn events_of_long_step(says_so: bool) -> Vec<Event> {
    let shared = Arc::new(LongStepState {
        says_so,
        founder: OnceLock::new(),
        slow: OnceLock::new(),
        begun: AtomicUsize::new(0),
    });
    let training = |is_slow| {
        let task = LongStep { is_slow, shared: Arc::clone(&shared) };
        let training = peergrad::train("slope", task).optimizer(Optimizer::SGD).epochs(EPOCHS).batch(40);
        training.peers(2).configure(|run| run.sync.patience_seconds = PATIENCE.as_secs())
    };
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let founder = start(training(false).new_run().unwrap(), folders[0].path()).unwrap();
    let invite = founder.handle().invite().unwrap();
    let slow = start(training(true).join(invite), folders[1].path()).unwrap();
    assert!(shared.founder.set(founder.handle()).is_ok() && shared.slow.set(slow.handle()).is_ok());
    let watching = [founder, slow].map(|peer| thread::spawn(move || watched(peer)));
    let (events, outcomes): (Vec<_>, Vec<_>) =
        watching.into_iter().map(|watching| watching.join().unwrap()).unzip();
    assert_complete(&outcomes);
    events.concat()
}

#[test]
fn a_peer_that_says_that_it_is_busy_is_waited_for() {
    let events = events_of_long_step(true);
    let is_excluded = |event: &Event| matches!(event, Event::Excluded { .. });
    // Peers of a machine that stands still suspect each other, which is another matter.
    let is_suspected = |event: &Event| matches!(event, Event::MemberSuspected(_));
    assert!(!events.iter().any(is_excluded) || events.iter().any(is_suspected), "{events:?}");
}

#[test]
fn a_peer_that_takes_long_and_says_nothing_is_left_out_and_comes_back() {
    let events = events_of_long_step(false);
    assert!(events.iter().any(|event| matches!(event, Event::Excluded { .. })), "{events:?}");
}

/// Keeps what it is told, and takes the local steps of every second round by itself.
struct Told(Arc<Mutex<Vec<StepInfo>>>);

impl Told {
    fn note(&self, step: &StepInfo) {
        assert!(step.is_wanted() && (step.rank, step.member_count) == (0, 1));
        self.0.lock().unwrap().push(step.clone());
    }
}

impl Task for Told {
    fn manifest(&self) -> Manifest {
        Manifest::tensor("w", [1])
    }

    fn sample_count(&self) -> u32 {
        SAMPLES
    }

    fn gradient(&self, _: &[f32], _: &[u32], _: &mut [f32]) -> f64 {
        panic!("programs call `contribute`")
    }

    fn contribute(&self, step: &StepInfo, _: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        self.note(step);
        gradient[0] = samples.len() as f32;
        0.0
    }

    fn learn(&self, step: &StepInfo, parameters: &mut [f32], samples: &[u32]) -> Option<f64> {
        if step.number.is_multiple_of(2) {
            return None;
        }
        self.note(step);
        assert_eq!(samples.len(), 500);
        parameters[0] += 1000.0;
        Some(0.0)
    }

    fn evaluate(&self, _: &[f32]) -> Evaluation {
        Evaluation { samples: 0, loss: 0.0, accuracy: None }
    }
}

/// What a task is told in two epochs, and its parameter at their end.
fn told(batch: u64, configure: impl FnOnce(&mut RunFile)) -> (Vec<StepInfo>, f32) {
    let told = Arc::default();
    let training = peergrad::train("told", Told(Arc::clone(&told))).optimizer(Optimizer::SGD);
    let training = training.learning_rate(1.0).epochs(2).batch(batch).peers(1).configure(configure);
    let folder = tempfile::tempdir().unwrap();
    let ended = outcome(start(training.new_run().unwrap(), folder.path()).unwrap());
    assert_eq!(ended.result, Ok(()));
    let told = std::mem::take(&mut *told.lock().unwrap());
    assert!(told.iter().all(|step| !step.is_wanted()), "nothing is wanted any more");
    (told, ended.state.unwrap().parameters[0])
}

#[test]
fn a_task_is_told_of_its_steps() {
    let (told, _) = told(500, |_| {});
    let numbers: Vec<_> =
        told.iter().map(|step| (step.number, step.epoch, step.local_steps.clone())).collect();
    assert_eq!(numbers, [(0, 0, 0..1), (1, 0, 1..2), (2, 1, 2..3), (3, 1, 3..4)]);
    let seeds: BTreeSet<u64> = told.iter().map(|step| step.seed).collect();
    assert_eq!(seeds.len(), 4, "each step has a seed of its own");
    assert!(told[0].rate > 0.0);
}

#[test]
fn a_task_may_take_local_steps_by_itself() {
    for kind in [SyncKind::Local, SyncKind::Diloco] {
        let (told, parameter) = told(250, |run| {
            run.sync.kind = Some(kind);
            run.sync.local_steps = Some(LocalSteps::Number(2));
        });
        let steps: Vec<_> = told.iter().map(|step| (step.number, step.local_steps.clone())).collect();
        assert_eq!(steps, [(0, 0..1), (0, 1..2), (1, 2..4), (2, 4..5), (2, 5..6), (3, 6..8)], "{kind:?}");
        let seeds: BTreeSet<u64> = told.iter().map(|step| step.seed).collect();
        assert_eq!(seeds.len(), told.len(), "each local step has a seed of its own");
        assert!(parameter > 900.0, "{kind:?}: {parameter}");
    }
}
