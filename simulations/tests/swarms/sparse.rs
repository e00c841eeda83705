//! Sparse logistic regression with its parameters in a table: compared with a plain solver, by staleness, and by bytes sent.

use std::path::{Path, PathBuf};

use peergrad_config::specification::Specification;
use peergrad_models::data::dense_table::unpack;
use peergrad_protocol::Instant;
use peergrad_simulations::cluster::Cluster;
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::scenario::file::{Size, parse};
use peergrad_simulations::simulation::Simulation;

use crate::common::{assert_nobody_is_blamed, ended};

/// The data beside the workspace; `None` if it is not there.
fn shared_data() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    if folder.join("a9a.libsvm.gz").exists() {
        return Some(folder);
    }
    eprintln!("skipped: {} is not here", folder.display());
    None
}

/// Four peers on one of `every` rows of a9a, all samples in one batch. A sample takes so much longer that a batch takes as long.
fn a9a(folder: &Path, every: usize, epochs: u64, rate: f64, staleness: u64, faults: &str) -> Scenario {
    let (batch, sample_time) = (SAMPLES.div_ceil(every), 100 * every);
    let text = format!(
        "about = \"a9a\"\npeers = 4\n[links]\npreset = \"lan\"\n[task]\nkind = \"file\"\nsample_time = \"{sample_time}us\"\n\
         [run]\nepochs = {epochs}\nbatch = {batch}\n[run.data]\nfile = \"a9a.libsvm.gz\"\nheld_out = 0.0\n\
         [run.model]\nkind = \"logistic\"\n[run.optimizer]\nrule = \"prox\"\nrate = {rate}\nl1 = {L1}\n\
         [run.sync]\nkind = \"ssp\"\nstaleness = {staleness}\n{faults}\n[expect]\npatience = \"100h\"\n"
    );
    parse("a9a", &text, folder, Size::Full).expect("it is a scenario")
}

const SAMPLES: usize = 32_560;
const FEATURES: usize = 123;
const L1: f64 = 1e-3;

fn run(scenario: &Scenario, seed: u64) -> Cluster {
    let mut simulation = Simulation::new(scenario, seed);
    while simulation.tick() {}
    assert_nobody_is_blamed(&simulation.cluster);
    simulation.cluster
}

/// The final parameters, which are equal at all peers.
fn parameters(cluster: &Cluster) -> Vec<f32> {
    let state = |host| ended(cluster, host).state.as_ref().expect("it has trained");
    let states: Vec<_> = cluster.hosts().ids().map(state).collect();
    assert!(states.windows(2).all(|pair| pair[0].digest == pair[1].digest), "one model in the end");
    states[0].parameters.to_vec()
}

/// Samples in double precision, read by other code than the runtime's: columns with values, the bias among them, and the class 1 or -1.
struct Plain(Vec<(Vec<(usize, f64)>, f64)>);

impl Plain {
    fn read(folder: &Path) -> Self {
        let packed = std::fs::read(folder.join("a9a.libsvm.gz")).expect("it is there");
        let bytes = unpack("a9a", &packed).expect("it is whole");
        let sample = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            let side = if words.next() == Some("1") { 1.0 } else { -1.0 };
            let entry = |word: &str| {
                let (column, value) = word.split_once(':').expect("an entry");
                (column.parse::<usize>().expect("an index") - 1, value.parse().expect("a value"))
            };
            (words.map(entry).chain([(FEATURES, 1.0)]).collect(), side)
        };
        Self(String::from_utf8_lossy(&bytes).lines().map(sample).collect())
    }

    /// The mean loss, and its gradient.
    #[expect(clippy::disallowed_methods, reason = "what comes of it is compared with a tolerance")]
    fn gradient(&self, weights: &[f64]) -> (f64, Vec<f64>) {
        let (mut loss, mut gradient) = (0.0, vec![0.0; weights.len()]);
        for (entries, side) in &self.0 {
            let margin: f64 =
                side * entries.iter().map(|(column, value)| weights[*column] * value).sum::<f64>();
            loss += (-margin).exp().ln_1p();
            let slope = -side / (1.0 + margin.exp());
            entries.iter().for_each(|(column, value)| gradient[*column] += slope * value);
        }
        let count = self.0.len() as f64;
        gradient.iter_mut().for_each(|slope| *slope /= count);
        (loss / count, gradient)
    }

    fn objective(&self, weights: &[f64]) -> f64 {
        self.gradient(weights).0 + L1 * weights.iter().map(|weight| weight.abs()).sum::<f64>()
    }

    /// The least objective, by accelerated proximal gradient (Beck and Teboulle, 2009).
    fn least(&self) -> f64 {
        const RATE: f64 = 0.5;
        let mut weights = vec![0.0; FEATURES + 1];
        let (mut ahead, mut inertia) = (weights.clone(), 1.0_f64);
        for _ in 0..700 {
            let (_, gradient) = self.gradient(&ahead);
            let shrunk = |(weight, slope): (&f64, &f64)| {
                let stepped = weight - RATE * slope;
                stepped.signum() * (stepped.abs() - RATE * L1).max(0.0)
            };
            let next: Vec<f64> = ahead.iter().zip(&gradient).map(shrunk).collect();
            let inertia_after = f64::midpoint(1.0, (1.0 + 4.0 * inertia * inertia).sqrt());
            let push = (inertia - 1.0) / inertia_after;
            ahead = next.iter().zip(&weights).map(|(next, weight)| next + push * (next - weight)).collect();
            (weights, inertia) = (next, inertia_after);
        }
        self.objective(&weights)
    }
}

#[test]
fn l1_training_reaches_the_optimum_of_a_plain_solver() {
    let Some(folder) = shared_data() else { return };
    let plain = Plain::read(&folder);
    let least = plain.least();
    let apart = |parameters: &[f32]| {
        let weights: Vec<f64> = parameters.iter().map(|weight| f64::from(*weight)).collect();
        plain.objective(&weights) / least - 1.0
    };
    let scenario = a9a(&folder, 1, 900, 2.0, 0, "");
    let whole_steps = parameters(&run(&scenario, 1));
    assert!(apart(&whole_steps) < 1e-4, "{} from {least}", apart(&whole_steps));
    let not_zero = whole_steps.iter().filter(|weight| **weight != 0.0).count();
    assert!((20..60).contains(&not_zero), "{not_zero} of 124 are not zero");
    let test = std::fs::read(folder.join("a9a_test.libsvm.gz")).expect("it is there");
    let specification = Specification::parse(&scenario.workload.specification).expect("it was just made");
    let evaluation =
        specification.evaluate(&whole_steps, "a9a_test", &test, &None).expect("it suits").evaluation;
    println!(
        "a9a: {least:.6}, {:.1e} above it in whole steps, {not_zero} of 124 weights; on the test file {evaluation:?}",
        apart(&whole_steps)
    );
    assert!(evaluation.samples == 16_281 && evaluation.accuracy.expect("classes") >= 0.845, "{evaluation:?}");
    let delayed = parameters(&run(&a9a(&folder, 1, 600, 0.3, 8, ""), 1));
    println!("{:.1e} above it at a staleness of 8", apart(&delayed));
    assert!(apart(&delayed) < 0.01, "{}", apart(&delayed));
}

/// Number of clocks until the mean loss of one is at most 0.36, and seconds until that clock is complete at all workers, over a few seeds.
fn to_the_target(folder: &Path, every: usize, staleness: u64) -> (f64, f64) {
    const SEEDS: u64 = 3;
    let trouble = "[[faults]]\nat_start = \"0s\"\nkind = \"bursts\"\nany = 4\nslower = 6\nchance = 0.05";
    let scenario = a9a(folder, every, 400, 0.2, staleness, trouble);
    let (mut clocks, mut seconds) = (0.0, 0.0);
    for seed in 0..SEEDS {
        let cluster = run(&scenario, seed);
        let history = cluster.history();
        let mut means: Vec<(u64, f64, Instant)> = Vec::new();
        for note in &history.commits {
            let (clock, samples) = (note.committed.step.0 as usize, note.committed.samples);
            means.resize(means.len().max(clock + 1), (0, 0.0, note.at));
            let (all, loss, at) = &mut means[clock];
            *all += samples;
            *loss += note.committed.loss * samples as f64;
            *at = (*at).max(note.at);
        }
        let is_there = |(all, loss, _): &(u64, f64, Instant)| loss / (*all as f64) <= 0.36;
        // A run that does not reach the target counts with its last clock.
        let clock = means.iter().position(is_there).unwrap_or(means.len() - 1);
        clocks += clock as f64 / SEEDS as f64;
        let began = history.began.expect("it has trained");
        seconds += means[clock].2.since(began).as_secs_f64() / SEEDS as f64;
    }
    (clocks, seconds)
}

/// A folder in which the data has one of `every` rows.
fn thinned(folder: &Path, every: usize) -> PathBuf {
    let thin = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("a9a-{every}"));
    std::fs::create_dir_all(&thin).expect("the folder of the tests can be written");
    let packed = std::fs::read(folder.join("a9a.libsvm.gz")).expect("it is there");
    let bytes = unpack("a9a", &packed).expect("it is whole");
    let rows: Vec<&[u8]> = bytes.split_inclusive(|&byte| byte == b'\n').step_by(every).collect();
    std::fs::write(thin.join("a9a.libsvm.gz"), rows.concat()).expect("it can be written");
    thin
}

/// With more staleness workers wait less and need more clocks; a value in between is the best. `PEERGRAD_ROWS=all` takes all rows.
#[test]
fn a_moderate_staleness_is_faster_than_none_and_than_much() {
    let Some(folder) = shared_data() else { return };
    let every = if std::env::var("PEERGRAD_ROWS").is_ok_and(|rows| rows == "all") { 1 } else { 8 };
    let folder = thinned(&folder, every);
    let found = [0, 1, 2, 4, 8, 16].map(|staleness| (staleness, to_the_target(&folder, every, staleness)));
    for (staleness, (clocks, seconds)) in found {
        println!("staleness {staleness}: {clocks:.0} clocks, {:.2} s each, {seconds:.0} s", seconds / clocks);
    }
    let [none, .., much] = found.map(|(_, found)| found);
    let (_, (_, best)) = found.into_iter().min_by(|one, other| one.1.1.total_cmp(&other.1.1)).expect("some");
    assert!(much.1 / much.0 < 0.8 * none.1 / none.0, "a clock takes less");
    assert!(much.0 > 1.2 * none.0, "it takes more clocks");
    assert!(best < 0.9 * none.1 && best < 0.9 * much.1, "{best} s");
}

/// A dense gradient would be 40 MB from each worker in each of 124 clocks.
#[test]
fn of_ten_million_features_a_worker_transfers_only_those_it_touches() {
    let text = "about = \"clicks\"\npeers = 4\n[links]\npreset = \"lan\"\n\
        [task]\nkind = \"clicks\"\nparameters = 10000000\nsamples = 4000\nsample_time = \"100us\"\n\
        [run]\nepochs = 2\nbatch = 64\n[run.optimizer]\nrule = \"ftrl\"\nl1 = 0.0001\n[run.sync]\nkind = \"ssp\"\n";
    let scenario = parse("clicks", text, Path::new("."), Size::Full).expect("it is a scenario");
    let cluster = run(&scenario, 1);
    let all = parameters(&cluster);
    let not_zero = all.iter().filter(|weight| **weight != 0.0).count();
    let evaluation = scenario.workload.loaded.task.evaluate(&all);
    let bytes = cluster.history().traffic.total;
    println!("{not_zero} weights of {}, {:.1} MB, {evaluation:?}", all.len(), bytes as f64 / 1e6);
    assert!(evaluation.loss < 0.66 && evaluation.accuracy.expect("classes") > 0.58, "{evaluation:?}");
    assert!(bytes < 310 * not_zero as u64, "{bytes} bytes for {not_zero} weights");
}
