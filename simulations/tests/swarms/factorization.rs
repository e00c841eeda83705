//! Matrix factorization in whole swarms: how staleness changes the error on new ratings, and how much travels.

use peergrad_config::specification::RunFile;
use peergrad_models::task::synthetic_ratings::SyntheticRatings;
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::workload::Workload;

use crate::common::{assert_nobody_is_blamed, parameters};

/// Ratings of rank 8 with a noise of 0.5.
const RATINGS: SyntheticRatings =
    SyntheticRatings { users: 200, items: 120, rank: 8, density: 0.8, noise: 0.5, seed: 1 };

/// A factorization of these ratings.
fn workload(ratings: &SyntheticRatings, epochs: u64, sync: &str) -> Workload {
    let text = format!(
        "epochs = {epochs}\nbatch = 256\n[data]\nfile = \"ratings.csv\"\nheld_out = 0.1\n\
         [model]\nkind = \"factorization\"\nrank = 8\nregularization = 0.01\n\
         [optimizer]\nrule = \"adagrad\"\nrate = 0.1\nschedule = \"cosine\"\n[sync]\n{sync}\n"
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
