//! Sweeps: each job counts once whatever happens, the results are those of one peer, and more peers are faster.

use std::sync::{Arc, Mutex};

use peergrad_config::sweep::specification::{StrategyChoice, SweepPlan};
use peergrad_config::sweep::{
    Job, SweepHost, SweepProgress, SweepSpecification, TrialResult, TrialSource, UnattendedHost,
};
use peergrad_simulations::compare::measure;
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::workload::Workload;

use super::counting::{in_trouble, seeds};
use crate::common::{assert_nobody_is_blamed, ended};

const STRATEGIES: [StrategyChoice; 3] = [
    StrategyChoice::All,
    StrategyChoice::Halving { eta: 3, rungs: Some(3) },
    StrategyChoice::Asha { eta: 3, rungs: Some(3), parallel: 8 },
];

/// Long enough that a sweep goes on after all faults: peers that are cut off when it ends would wait for it.
const RUN: &str =
    "epochs = 90\nbatch = 4\n[data]\nfile = \"f.csv\"\n[model]\nhidden = [4]\n[shards]\nreplicas = 6\n";

/// Forty rows of two classes.
fn rows() -> String {
    (0..40).map(|row| format!("{},{},{}\n", row % 7, row * 5 % 11, u32::from(row % 7 > 3))).collect()
}

/// What the workers of a sweep know in the end.
#[derive(Clone, Debug, Default)]
struct Known {
    jobs: Vec<Job>,
    results: Vec<Option<TrialResult>>,
    best: Option<usize>,
    is_complete: bool,
}

/// Keeps what was read last, by any worker.
#[derive(Debug, Default)]
struct Witness(Mutex<Known>);

impl SweepHost for Witness {
    fn begin(&self, _specification: &Arc<SweepSpecification>) {}

    fn show(&self, progress: &SweepProgress<'_>) {
        *self.0.lock().expect("nobody panics with it") = Known {
            jobs: progress.schedule.jobs().to_vec(),
            results: progress.results.to_vec(),
            best: progress.schedule.best(progress.results),
            is_complete: progress.schedule.is_complete(),
        };
    }

    fn pause(&self) {}

    fn begin_slice(&self) -> Box<dyn FnMut() -> bool> {
        UnattendedHost.begin_slice()
    }

    fn is_leaving(&self) -> bool {
        false
    }
}

fn workload(strategy: StrategyChoice) -> (Workload, Arc<Witness>) {
    let plan = SweepPlan {
        variations: vec!["optimizer.rate=1e-4..1:log:9".to_owned(), "batch=2,4,8".to_owned()],
        source: TrialSource::Grid,
        strategy,
    };
    let witness = Arc::new(Witness::default());
    let host: Arc<dyn SweepHost> = Arc::<Witness>::clone(&witness);
    (Workload::sweep(RUN, &plan, ("f.csv", rows().as_bytes()), host).expect("all of it is allowed"), witness)
}

/// Runs a sweep with so many peers. Returns what they know, the table in the end, and the virtual seconds.
fn swept(strategy: StrategyChoice, peers: usize) -> (Known, Vec<f32>, f64) {
    let (workload, witness) = workload(strategy);
    let scenario = Scenario {
        sample_time: std::time::Duration::from_millis(5),
        ..Scenario::new("sweep", peers, workload)
    };
    let mut simulation = Simulation::new(&scenario, 3);
    while simulation.tick() {}
    assert_nobody_is_blamed(&simulation.cluster);
    let cluster = &simulation.cluster;
    let states: Vec<_> = cluster
        .hosts()
        .ids()
        .map(|host| ended(cluster, host).state.as_ref().expect("it has a table"))
        .collect();
    assert!(states.windows(2).all(|pair| pair[0].digest == pair[1].digest), "one table in the end");
    let seconds = cluster.events().last().expect("they end").0.0 as f64 / 1e9;
    let known = witness.0.lock().expect("nobody panics with it").clone();
    (known, states[0].parameters.to_vec(), seconds)
}

#[test]
fn the_table_has_the_same_bits_for_any_number_of_peers_and_four_are_faster() {
    for strategy in STRATEGIES {
        let (alone, table, seconds) = swept(strategy, 1);
        assert!(alone.is_complete && alone.results.iter().flatten().count() == alone.jobs.len());
        for peers in [4, 7] {
            let (known, of_many, seconds_of_many) = swept(strategy, peers);
            assert_eq!(of_many, table, "{strategy:?}, {peers} peers");
            assert_eq!((known.best, &known.jobs), (alone.best, &alone.jobs));
            println!("{strategy:?}: {peers} peers take {:.3} of the time of one", seconds_of_many / seconds);
            if strategy == StrategyChoice::All && peers == 4 {
                assert!(seconds_of_many < 0.35 * seconds, "{seconds_of_many} of {seconds}");
            }
        }
    }
}

#[test]
fn each_job_counts_once_under_all_kinds_of_faults() {
    for seed in seeds(3) {
        let strategy = STRATEGIES[seed as usize % 3];
        let expected = swept(strategy, 1).0;
        let (workload, witness) = workload(strategy);
        in_trouble(workload, seed);
        let known = witness.0.lock().expect("nobody panics with it").clone();
        assert!(known.is_complete, "seed {seed}");
        assert_eq!((known.jobs, known.results), (expected.jobs, expected.results), "seed {seed}");
    }
}

#[test]
fn halving_finds_a_best_trial_for_less_than_half_of_the_samples() {
    let [all, halving, _] = STRATEGIES.map(|strategy| swept(strategy, 4).0);
    let (epochs, strategy) = (90, peergrad_config::sweep::Strategy::Halving { eta: 3, rungs: 3 });
    let trained: u64 = halving.jobs.iter().map(|job| strategy.epochs(job.rung, epochs)).sum();
    assert!(2 * trained < 27 * epochs, "{trained}");
    let accuracy =
        |known: &Known| known.results[known.best.expect("it has ended")].and_then(|best| best.accuracy);
    assert!(accuracy(&halving) >= accuracy(&all).map(|best| best - 0.005), "{halving:?}");
}

/// A scenario is measured as any other.
#[test]
fn a_sweep_violates_no_invariant() {
    let (workload, _) = workload(StrategyChoice::Halving { eta: 3, rungs: None });
    let course = measure(&Scenario::new("sweep", 5, workload), 1);
    assert_eq!(course.outcome.violations, []);
}
