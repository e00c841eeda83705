//! Matrix factorization in whole swarms: how staleness changes the error on new ratings, and how much travels.

use std::time::Duration;

use peergrad_config::specification::RunFile;
use peergrad_models::task::synthetic_ratings::SyntheticRatings;
use peergrad_simulations::host::Crash;
use peergrad_simulations::scenario::{Fault, FaultTime, Scenario, Targets};
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::workload::Workload;

use crate::common::{assert_nobody_is_blamed, ended, parameters};

/// Ratings of rank 8 with a noise of 0.5.
const RATINGS: SyntheticRatings =
    SyntheticRatings { users: 200, items: 120, rank: 8, density: 0.8, noise: 0.5, seed: 1 };

/// A factorization of these ratings.
fn workload(ratings: &SyntheticRatings, epochs: u64, sync: &str) -> Workload {
    workload_by("rule = \"adagrad\"\nrate = 0.1\nschedule = \"cosine\"", ratings, epochs, sync)
}

/// The same, by another optimizer.
fn workload_by(optimizer: &str, ratings: &SyntheticRatings, epochs: u64, sync: &str) -> Workload {
    let text = format!(
        "epochs = {epochs}\nbatch = 256\n[data]\nfile = \"ratings.csv\"\nheld_out = 0.1\n\
         [model]\nkind = \"factorization\"\nrank = 8\nregularization = 0.01\n\
         [optimizer]\n{optimizer}\n[sync]\n{sync}\n"
    );
    let run = RunFile::parse(&text).unwrap();
    Workload::data_file(&run, "ratings.csv", ratings.csv().as_bytes())
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The RMSE on the held-out ratings after a run of four peers, and the bytes that they sent.
fn trained(workload: &Workload) -> (f64, u64) {
    let mut simulation = Simulation::new(&Scenario::new("factorization", 4, workload.clone()), 3);
    while simulation.tick() {}
    assert_nobody_is_blamed(&simulation.cluster);
    let evaluation = workload.loaded.task.evaluate(&parameters(&simulation));
    let bytes = simulation.cluster.history().traffic.total;
    assert_eq!(simulation.finish().violations, []);
    (evaluation.loss.sqrt(), bytes)
}

#[test]
fn staleness_hardly_changes_the_error_on_new_ratings() {
    let (sync, _) = trained(&workload(&RATINGS, 40, "kind = \"sync\""));
    let of_staleness = |staleness| {
        let (rmse, bytes) =
            trained(&workload(&RATINGS, 40, &format!("kind = \"ssp\"\nstaleness = {staleness}")));
        println!("staleness {staleness}: RMSE {rmse:.4}, {:.1} MB", bytes as f64 / 1e6);
        rmse
    };
    println!("sync: RMSE {sync:.4}");
    let [none, three] = [0, 3].map(of_staleness);
    assert!((none / sync - 1.0).abs() < 0.005, "without staleness the steps are those of `sync`");
    assert!((three / none - 1.0).abs() < 0.01, "{three} with a staleness of 3, {none} without");
    assert!(none < 1.2 * f64::from(RATINGS.noise), "{none}");
    let (asynchronous, _) = trained(&workload(&RATINGS, 40, "kind = \"async\"\natomic = true"));
    println!("async: RMSE {asynchronous:.4}");
    assert!(asynchronous < 1.3 * f64::from(RATINGS.noise), "{asynchronous}");
}

/// The tables start with drawn factors, which a newcomer and the next owner of a chunk must have as well.
#[test]
fn a_crash_and_a_newcomer_do_not_change_the_result() {
    let optimizer = "rule = \"adam\"\nrate = 0.01";
    let workload = workload_by(optimizer, &RATINGS, 30, "kind = \"ssp\"\nstaleness = 2\natomic = true");
    let (expected, _) = trained(&workload);
    let after = |milliseconds| FaultTime::Training(Duration::from_millis(milliseconds));
    let mut scenario = Scenario::new("factorization", 4, workload.clone())
        .at(after(300), Fault::Join { count: 1 })
        .at(after(900), Fault::Crash { targets: Targets::Peers(vec![1]), crash: Crash::Killed })
        .at(after(8000), Fault::Leave { targets: Targets::Peers(vec![2]) });
    scenario.sample_time = Duration::from_micros(100);
    let mut simulation = Simulation::new(&scenario, 3);
    while simulation.tick() {}
    let founder = simulation.cluster.hosts().ids().next().unwrap();
    let state = ended(&simulation.cluster, founder).state.as_ref().expect("it has trained").clone();
    let found = workload.loaded.task.evaluate(&state.parameters).loss.sqrt();
    let outcome = simulation.finish();
    assert_eq!(outcome.violations, []);
    println!("RMSE {found:.4}, undisturbed {expected:.4}");
    assert!((found / expected - 1.0).abs() < 0.02, "{found}, undisturbed {expected}");
}

/// Most users and items are in no batch, so their rows stay where they are.
#[test]
fn only_the_rows_of_a_batch_travel() {
    let many = SyntheticRatings { users: 20_000, items: 2_000, density: 0.0002, ..RATINGS };
    let workload = workload(&many, 1, "kind = \"ssp\"");
    let (_, bytes) = trained(&workload);
    let ratings = u64::from(workload.loaded.task.sample_count());
    let all = 4 * workload.loaded.manifest.parameter_count() as u64;
    let steps = ratings.div_ceil(256);
    println!(
        "{ratings} ratings, {:.1} MB; dense gradients {:.1} MB",
        bytes as f64 / 1e6,
        (all * steps * 4) as f64 / 1e6
    );
    // Reading and adding a row of a user and one of an item, with their biases, and a replica of each.
    assert!(bytes < all * steps, "{bytes} bytes, in steps of {all} bytes each");
}
