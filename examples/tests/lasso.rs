//! Lasso by coordinates, in virtual time: how many coefficients Shotgun and STRADS can improve at a time.

use std::sync::Arc;

use peergrad::ProgramFactory;
use peergrad::io::{Ended, Event};
use peergrad::prelude::Task;
use peergrad::specification::RunFile;
use peergrad_examples::lasso::{GAP_MAX, Lasso, OBJECTIVE_MAX};
use peergrad_simulations::host::{Crash, HostId};
use peergrad_simulations::scenario::{Fault, FaultTime, Scenario, Targets};
use peergrad_simulations::{Simulation, Workload};
use shotgun::Shotgun;
use strads::{CORRELATION_MAX, Scheduler, Strads};

#[allow(dead_code, reason = "its main function")]
#[path = "../src/bin/shotgun.rs"]
mod shotgun;
#[allow(dead_code, reason = "its main function")]
#[path = "../src/bin/strads.rs"]
mod strads;

/// The method of a run.
#[derive(Clone, Copy, Debug)]
enum Method {
    Shotgun,
    Strads,
}

/// The course of a run.
struct Course {
    /// The objective before each round.
    objectives: Vec<f64>,
    /// The objective of the final coefficients, by a residual that is computed from them.
    end: f64,
    /// The greatest difference between that residual and the one in the table.
    drift: f32,
}

impl Course {
    /// Number of rounds until the objective is within `share` of `least`; `None` if it never is.
    fn rounds_to(&self, least: f64, share: f64) -> Option<usize> {
        self.objectives.iter().position(|objective| *objective <= least * (1.0 + share))
    }
}

/// A run to simulate.
struct Plan<'a> {
    method: Method,
    /// P: the most coefficients that all workers together improve in a round.
    together: usize,
    workers: usize,
    /// Further lines of run.toml.
    settings: &'a str,
    /// A fault, with the step after which it happens.
    fault: Option<(u64, Fault)>,
}

/// The course of a run.
fn course(lasso: &Lasso, plan: Plan<'_>) -> Course {
    let Plan { method, together, workers, settings, fault } = plan;
    let run = RunFile::parse(&format!("batch = {together}\n{settings}")).expect("a run file");
    let columns = lasso.clone();
    let factory = match method {
        Method::Shotgun => {
            let spec = shotgun::table_spec(lasso);
            ProgramFactory::with_tables(move |_| spec.clone(), move |_| Shotgun::new(columns.clone()))
        }
        Method::Strads => {
            let spec = strads::table_spec(lasso);
            let scheduler = Arc::new(Scheduler::new(columns, run.seed, together));
            ProgramFactory::with_tables(move |_| spec.clone(), move |_| Strads::new(Arc::clone(&scheduler)))
        }
    };
    let workload = Workload::custom_program(lasso.name, lasso.clone(), factory, &run).expect("a task");
    let mut scenario = Scenario::new("lasso", workers, workload);
    if let Some((step, fault)) = fault {
        scenario = scenario.at(FaultTime::Step(step), fault);
    }
    let mut simulation = Simulation::new(&scenario, 1);
    while simulation.tick() {}
    assert_eq!(simulation.cluster.invariants().violations(), []);
    let mut objectives = Vec::new();
    let mut ends: Vec<Vec<f32>> = Vec::new();
    for (_, host, event) in simulation.cluster.events() {
        match event {
            Event::Committed(committed) if *host == HostId(0) && committed.samples > 0 => {
                objectives.push(committed.loss);
            }
            Event::Ended(Ended { outcome: Ok(_), state: Some(state), .. }) => {
                ends.push(state.parameters.to_vec())
            }
            _ => {}
        }
    }
    assert!(!ends.is_empty() && ends.iter().all(|end| *end == ends[0]), "all end with one state");
    let (beta, residual) = lasso.split(&ends[0]);
    let exact = lasso.residual(beta);
    let drift = exact.iter().zip(residual).map(|(exact, kept)| (exact - kept).abs()).fold(0.0, f32::max);
    Course { objectives, end: lasso.objective(beta, &exact), drift }
}

/// The least objective, by cyclic coordinate descent in one process, in double precision.
fn least(lasso: &Lasso) -> f64 {
    let count = lasso.columns.len();
    let gram: Vec<Vec<f32>> = (0..count).map(|index| lasso.correlations(index)).collect();
    let mut beta = vec![0.0_f64; count];
    // The products of the columns with the residual: (columns).
    let mut products: Vec<f64> = lasso.columns.iter().map(|column| column.dot(&lasso.target)).collect();
    for _ in 0..PASSES_MAX {
        let mut largest = 0.0_f64;
        for index in 0..count {
            let value = products[index] + beta[index];
            let best = value.signum() * (value.abs() - lasso.penalty).max(0.0);
            let delta = best - beta[index];
            if delta != 0.0 {
                products
                    .iter_mut()
                    .zip(&gram[index])
                    .for_each(|(product, gram)| *product -= delta * f64::from(*gram));
                beta[index] = best;
                largest = largest.max(delta.abs());
            }
        }
        if largest < 1e-9 {
            break;
        }
    }
    let beta: Vec<f32> = beta.into_iter().map(|value| value as f32).collect();
    lasso.objective(&beta, &lasso.residual(&beta))
}

/// Passes after which the plain solver gives up.
const PASSES_MAX: usize = 20_000;

/// Columns over spectral radius: how many coefficients may be improved at a time, in theory.
fn together_max(lasso: &Lasso) -> f64 {
    lasso.columns.len() as f64 / lasso.spectral_radius()
}

/// Prints a run, and returns the number of rounds until the objective is within 1e-4 of the least one.
fn rounds(name: &str, course: &Course, least: f64) -> Option<usize> {
    let [near, close] = [1e-3, 1e-4].map(|share| course.rounds_to(least, share));
    let (all, excess) = (course.objectives.len(), course.end / least - 1.0);
    println!(
        "{name}: {near:?} rounds to 1e-3, {close:?} to 1e-4, {all} in all; excess {excess:.1e}, drift {:.1e}",
        course.drift
    );
    close
}

/// With one worker, one coefficient at a time and no random order, Shotgun is cyclic coordinate descent.
#[test]
fn one_coefficient_at_a_time_in_order_is_cyclic_coordinate_descent() {
    let lasso = Lasso::diabetes();
    let settings = "epochs = 3\nshuffle = false";
    let plan = Plan { method: Method::Shotgun, together: 1, workers: 1, settings, fault: None };
    let found = course(&lasso, plan).end;
    let mut state = vec![0.0; lasso.columns.len() + lasso.target.len()];
    lasso.initial(0, &mut state);
    for index in (0..3).flat_map(|_| 0..lasso.sample_count()) {
        let rows = lasso.additions(&lasso.change(&state, [index]));
        rows.indices.iter().zip(rows.values).for_each(|(row, value)| state[row as usize] += value);
    }
    let expected = lasso.evaluate(&state).loss;
    assert!((found / expected - 1.0).abs() < 1e-6, "{found}, {expected} in one process");
}

/// Where columns have little in common, twice as many coefficients at a time take half the rounds, up to columns / radius.
#[test]
fn rounds_fall_as_one_over_their_width_while_columns_are_little_correlated() {
    let lasso = Lasso::zipf();
    let (least, most) = (least(&lasso), together_max(&lasso));
    println!("{}: P* = {most:.0}", lasso.name);
    // These divide the columns. Otherwise the last round of each epoch is smaller, and there are more rounds.
    let cases = [(1, 1), (4, 1), (20, 4), (100, 4), (250, 4), (500, 4)];
    let products = cases.map(|(together, workers)| {
        // One by one, the end is not awaited.
        let settings = if together < 20 { "epochs = 3" } else { "epochs = 20" };
        let course =
            course(&lasso, Plan { method: Method::Shotgun, together, workers, settings, fault: None });
        let rounds = rounds(&format!("P = {together}"), &course, least).expect("it converges");
        if together >= 20 {
            assert!(course.end <= least * (1.0 + GAP_MAX), "P = {together}: {} is not {least}", course.end);
        }
        assert!(course.drift < 1e-5, "P = {together}: {}", course.drift);
        (together, (rounds * together) as f64)
    });
    let (_, first) = products[0];
    for (together, product) in products {
        let is_equal = (product / first - 1.0).abs() < 0.15;
        assert!(
            is_equal || together as f64 > most,
            "P = {together}: {product} coefficients, {first} one by one"
        );
    }
}

/// Many columns of the products of three values are almost equal: at some width between one and four times columns / radius, Shotgun
/// diverges. STRADS does not, since it leaves out what is correlated.
#[test]
fn a_schedule_by_correlation_converges_where_random_coefficients_diverge() {
    let lasso = Lasso::diabetes();
    let (least, most) = (least(&lasso), together_max(&lasso));
    println!("{}: P* = {most:.1}", lasso.name);
    let [small, large] = [most.floor() as usize, (4.0 * most).floor() as usize];
    let cases = [
        (Method::Shotgun, small, 1, true),
        (Method::Shotgun, large, 4, false),
        (Method::Shotgun, 32, 4, false),
        (Method::Strads, 16, 2, true),
        (Method::Strads, 32, 1, true),
    ];
    for (method, together, workers, converges) in cases {
        let name = format!("{method:?}, P = {together}, {workers} workers");
        let course =
            course(&lasso, Plan { method, together, workers, settings: "epochs = 1000", fault: None });
        let rounds = rounds(&name, &course, least);
        assert_eq!(rounds.is_some(), converges, "{name}");
        if converges {
            assert!(course.end <= least * (1.0 + GAP_MAX), "{name}: {} is not {least}", course.end);
            assert!(course.drift < 1e-5, "{name}: {}", course.drift);
        } else {
            assert!(course.end > OBJECTIVE_MAX, "{name}: {} has not grown", course.end);
        }
    }
}

#[test]
fn a_schedule_has_no_two_correlated_columns_and_all_are_chosen_in_time() {
    let lasso = Lasso::diabetes();
    let columns = lasso.columns.len();
    let scheduler = Scheduler::new(lasso.clone(), 7, 16);
    let mut updates = vec![0.0; 2 * columns];
    let mut sizes = 0;
    for clock in 0..500 {
        let chosen = scheduler.schedule(clock, &updates);
        sizes += chosen.len();
        for (index, &one) in chosen.iter().enumerate() {
            let correlations = lasso.correlations(one as usize);
            let is_free = |other: &u32| correlations[*other as usize].abs() < CORRELATION_MAX;
            assert!(chosen[index + 1..].iter().all(is_free), "clock {clock}: {chosen:?}");
            updates[2 * one as usize..][..2].copy_from_slice(&[0.0, clock as f32 + 1.0]);
        }
    }
    println!("{:.2} coefficients a clock", sizes as f64 / 500.0);
    assert!(updates.chunks_exact(2).all(|update| update[1] > 0.0), "some column was never chosen");
}

/// A clock of a worker that is killed is in both tables or in none of them.
#[test]
fn the_residual_is_that_of_the_coefficients_after_a_crash() {
    let lasso = Lasso::zipf();
    let least = least(&lasso);
    let crash = Fault::Crash { targets: Targets::Any(1), crash: Crash::Killed };
    for (method, clock) in [(Method::Shotgun, 4), (Method::Shotgun, 9), (Method::Strads, 6)] {
        let fault = Some((clock, crash.clone()));
        let course =
            course(&lasso, Plan { method, together: 100, workers: 4, settings: "epochs = 30", fault });
        rounds(&format!("{method:?}, a crash"), &course, least);
        assert!(course.drift < 1e-5, "{method:?}: {}", course.drift);
        assert!(course.end <= least * (1.0 + GAP_MAX), "{method:?}: {} is not {least}", course.end);
    }
}
