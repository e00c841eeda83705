//! Attempts: mostly one proposer is enough to agree on a loss, however many members there are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use peergrad_config::specification::RunFile;
use peergrad_protocol::ViewDigest;
use peergrad_protocol::agreement::Ballot;
use peergrad_protocol::message::{AgreementMessage, Message};
use peergrad_simulations::filters::{Envelope, FrameAction};
use peergrad_simulations::scenario::{Fault, FaultTime, Scenario};
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::workload::Workload;

/// More members than watch each other; every two seconds one of them crashes or a new peer joins.
fn churning() -> Scenario {
    let text = "epochs = 60\nbatch = 40\n[optimizer]\nrule = \"sgd\"\nrate = 1.0\n\
                [sync]\ntopology = \"direct\"";
    let run = RunFile::parse(text).unwrap();
    let mut scenario = Scenario::new("churning", 40, Workload::integers(&run, 16, 40).unwrap());
    scenario.sample_time = Duration::from_secs(1);
    scenario.expect.patience = Duration::from_secs(60);
    scenario.at(
        FaultTime::Training(Duration::from_secs(2)),
        Fault::Churn { times: 30, every: Duration::from_secs(2) },
    )
}

/// By view: the ballots under which its members were asked.
type Ballots = Arc<Mutex<BTreeMap<ViewDigest, BTreeSet<Ballot>>>>;

/// The most ballots that any view has needed in a run.
fn attempts_max(seed: u64) -> usize {
    let mut simulation = Simulation::new(&churning(), seed);
    let ballots = Ballots::default();
    let noted = Arc::clone(&ballots);
    simulation.cluster.add_filter(Box::new(move |envelope: &Envelope<'_>| {
        if let Some(Message::Agreement(AgreementMessage::Prepare(prepare))) = envelope.message() {
            noted.lock().unwrap().entry(prepare.view).or_default().insert(prepare.ballot);
        }
        FrameAction::Pass
    }));
    let outcome = simulation.run();
    assert_eq!(outcome.violations, [], "seed {seed}");
    let ballots = ballots.lock().unwrap();
    assert!(ballots.len() > 10, "seed {seed}: there was something to agree on");
    ballots.values().map(BTreeSet::len).max().unwrap()
}

#[test]
fn forty_members_need_few_attempts_to_agree() {
    let attempts: Vec<usize> = (0..20).map(attempts_max).collect();
    assert!(attempts.iter().all(|count| *count <= ATTEMPTS_MAX), "{attempts:?}");
}

/// One for a planned change that is replaced because of a loss, one for a suspected member, and others for a further loss meanwhile.
const ATTEMPTS_MAX: usize = 4;
