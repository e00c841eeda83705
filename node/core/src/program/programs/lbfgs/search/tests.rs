//! The search on functions of a few numbers, with owners that are played here.

use peergrad_protocol::table::Map;

use super::*;

/// The vectors of the table, as owners hold them.
struct Owners {
    vectors: Vec<Vec<f32>>,
}

impl Owners {
    fn starting_at(point: &[f32], settings: &LbfgsSettings) -> Self {
        let mut vectors = vec![vec![0.0; point.len()]; settings.vectors()];
        vectors[vector::POINT as usize] = point.to_vec();
        Self { vectors }
    }

    fn carry_out(&mut self, map: &Map) {
        for assignment in &map.assignments {
            let value = |at: usize| -> f64 {
                let of = |(vector, by): &(u32, f32)| {
                    f64::from(*by) * f64::from(self.vectors[*vector as usize][at])
                };
                assignment.terms.iter().map(of).sum()
            };
            let new = (0..self.vectors[0].len()).map(|at| value(at) as f32).collect();
            self.vectors[assignment.to as usize] = new;
        }
    }

    fn pass(&mut self, objective: impl Fn(&[f64]) -> (f64, Vec<f64>)) -> Pass {
        let point: Vec<f64> = self.vectors[vector::POINT as usize].iter().copied().map(f64::from).collect();
        let (loss, gradient) = objective(&point);
        let sums = self.vectors[vector::GRADIENT as usize].iter_mut().zip(gradient);
        sums.for_each(|(sum, added)| *sum += added as f32);
        let dot = |one: &[f32], other: &[f32]| -> f64 {
            one.iter().zip(other).map(|(one, other)| f64::from(*one) * f64::from(*other)).sum()
        };
        let count = self.vectors.len();
        let pairs = (0..count).flat_map(|one| (one..count).map(move |other| (one, other)));
        let products = pairs.map(|(one, other)| dot(&self.vectors[one], &self.vectors[other])).collect();
        Pass { loss, products }
    }
}

const SETTINGS: LbfgsSettings = LbfgsSettings { history: 10, l2: 0.0, tolerance: 1e-5 };

/// The search for the minimum of `objective`, and the point where it ends.
fn minimum(
    start: &[f32],
    settings: &LbfgsSettings,
    objective: impl Fn(&[f64]) -> (f64, Vec<f64>),
) -> (Search, Vec<f32>) {
    let (mut owners, mut search) = (Owners::starting_at(start, settings), Search::default());
    for passes in 1..=500 {
        owners.carry_out(&search.operations(settings));
        let pass = owners.pass(&objective);
        let after = search.after(&pass, passes, false, settings);
        // Every worker reads it from its row.
        search = Search::from_row(&after.to_row(), settings).unwrap();
        assert_eq!(search.is_over, after.is_over);
        if search.is_over {
            owners.carry_out(&search.operations(settings));
            return (search, owners.vectors[vector::POINT as usize].clone());
        }
    }
    panic!("it does not end");
}

/// A sum of squares whose curvatures are from 1 to 100.
fn bowl(point: &[f64]) -> (f64, Vec<f64>) {
    let curvature = |at: usize| 100_f64.powf(at as f64 / 9.0);
    let value = point.iter().enumerate().map(|(at, x)| curvature(at) * (x - 1.0) * (x - 1.0) / 2.0).sum();
    (value, point.iter().enumerate().map(|(at, x)| curvature(at) * (x - 1.0)).collect())
}

fn rosenbrock(point: &[f64]) -> (f64, Vec<f64>) {
    let (x, y) = (point[0], point[1]);
    let value = (1.0 - x).powi(2) + 100.0 * (y - x * x).powi(2);
    (value, vec![-2.0 * (1.0 - x) - 400.0 * x * (y - x * x), 200.0 * (y - x * x)])
}

#[test]
fn it_finds_minima_in_few_passes() {
    let (search, point) = minimum(&[0.0; 10], &SETTINGS, bowl);
    assert!(search.passes < 60, "{} passes", search.passes);
    assert!(point.iter().all(|x| (x - 1.0).abs() < 1e-4), "{point:?}");
    let (search, point) = minimum(&[-1.2, 1.0], &SETTINGS, rosenbrock);
    assert!(search.passes < 70, "{} passes", search.passes);
    assert!(point.iter().all(|x| (x - 1.0).abs() < 1e-3), "{point:?}");
}

#[test]
fn the_penalty_draws_to_zero() {
    let settings = LbfgsSettings { l2: 1.0, ..SETTINGS };
    let (_, point) = minimum(&[0.0; 10], &settings, bowl);
    // Half as far where the curvature is 1, and nearly all the way where it is 100.
    assert!((point[0] - 0.5).abs() < 1e-4 && (point[9] - 100.0 / 101.0).abs() < 1e-4, "{point:?}");
}

#[test]
fn a_history_of_one_step_suffices_and_more_help() {
    let passes = |history| minimum(&[0.0; 10], &LbfgsSettings { history, ..SETTINGS }, bowl).0.passes;
    assert!(passes(10) < passes(1), "{} and {}", passes(10), passes(1));
}

#[test]
fn a_point_without_a_value_is_left_for_a_shorter_step() {
    // Not defined beyond 2, with a minimum close to that.
    let objective = |point: &[f64]| match point[0] {
        x if x < 2.0 => (-(2.0 - x).ln() - 20.0 * x, vec![1.0 / (2.0 - x) - 20.0]),
        _ => (f64::INFINITY, vec![0.0]),
    };
    let (_, point) = minimum(&[0.0], &SETTINGS, objective);
    assert!((point[0] - 1.95).abs() < 1e-4, "{point:?}");
}

#[test]
fn a_step_that_was_good_enough_is_taken_if_no_longer_one_is() {
    // The value falls as steeply everywhere, and there is none beyond 1.
    let objective = |point: &[f64]| match point[0] {
        x if x < 1.0 => (-x, vec![-1.0]),
        _ => (f64::INFINITY, vec![0.0]),
    };
    let (_, point) = minimum(&[0.0], &SETTINGS, objective);
    assert!(point[0] > 0.99, "{point:?}");
}

/// An owner of a part of all vectors was lost for good: it begins with the point at which the run started.
#[test]
fn lost_parts_of_the_vectors_cost_some_passes_only() {
    let (mut owners, mut search) = (Owners::starting_at(&[0.0; 10], &SETTINGS), Search::default());
    let mut passes = 0;
    while !search.is_over {
        passes += 1;
        owners.carry_out(&search.operations(&SETTINGS));
        if passes == 9 {
            owners.vectors.iter_mut().for_each(|vector| vector[2..6].fill(0.0));
        }
        if passes == 30 {
            // The search itself, while a pass was under way.
            let Pass { products, .. } = owners.pass(bowl);
            search =
                Search::default().after(&Pass { loss: f64::INFINITY, products }, passes, false, &SETTINGS);
            continue;
        }
        search = search.after(&owners.pass(bowl), passes, false, &SETTINGS);
        assert!(passes < 200);
    }
    owners.carry_out(&search.operations(&SETTINGS));
    let point = &owners.vectors[vector::POINT as usize];
    assert!(passes > 30 && point.iter().all(|x| (x - 1.0).abs() < 1e-4), "{passes} passes: {point:?}");
}

#[test]
fn an_objective_without_a_value_at_the_start_ends_it() {
    let (search, _) = minimum(&[3.0], &SETTINGS, |_| (f64::INFINITY, vec![0.0]));
    assert_eq!(search.passes, 1);
}

/// The last pass of a run may be cut short: its point is not taken then.
#[test]
fn the_end_of_the_run_leaves_the_better_point() {
    let mut owners = Owners::starting_at(&[0.0; 10], &SETTINGS);
    let mut search = Search::default();
    for passes in 1..=6 {
        owners.carry_out(&search.operations(&SETTINGS));
        search = search.after(&owners.pass(bowl), passes, false, &SETTINGS);
    }
    let (value, is_new) = (search.value(), search.has_accepted);
    assert!(is_new);
    owners.carry_out(&search.operations(&SETTINGS));
    let complete = owners.pass(bowl);
    let cut_short = Pass { loss: f64::INFINITY, products: complete.products.clone() };
    let last = search.after(&cut_short, 7, true, &SETTINGS);
    assert!(last.is_over && last.value() == value);
    owners.carry_out(&last.operations(&SETTINGS));
    let there = owners.pass(bowl).loss;
    assert!((there - value).abs() < 1e-6 * value, "{there} and {value}");
    let better = search.after(&complete, 7, true, &SETTINGS);
    assert!(better.is_over && better.value() < value);
}
