//! The Lasso, as a task for methods that change a few coefficients at a time: see `src/bin/shotgun.rs` and `src/bin/strads.rs`.
//!
//! The Lasso is least squares with a penalty on the absolute values of the coefficients, so that most of them are zero:
//!
//! ```text
//! minimize  1/2 |y - X beta|^2 + penalty |beta|_1        X: (rows, columns); its columns and y have length 1
//! ```
//! A sample of this task is a column of X, which belongs to one coefficient. The parameters are `beta` (columns) and the `residual`
//! y - X beta (rows). With the residual, the best value of one coefficient takes one pass over its column. The coefficient and the residual
//! are then changed together, so the residual remains what its name says, except for rounding. [`Task::evaluate`] computes it from the coefficients.
//!
//! # Reading
//! Tibshirani, "Regression Shrinkage and Selection via the Lasso", 1996. Friedman et al., "Pathwise Coordinate Optimization", 2007, for the
//! formula of one coordinate.

use peergrad::data::dense_table::unpack;
use peergrad::prelude::*;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// A Lasso problem.
#[derive(Clone)]
pub struct Lasso {
    /// The name of its data, by which peers check that they have the same.
    pub name: &'static str,
    /// The columns of X.
    pub columns: Arc<[Column]>,
    /// y: (rows).
    pub target: Arc<[f32]>,
    /// What each unit of an absolute value costs: a tenth of the smallest penalty with which all coefficients are zero.
    pub penalty: f64,
}

/// A column of X: the entries that are not zero.
pub struct Column {
    /// Their rows, ascending.
    rows: Vec<u32>,
    /// Their values.
    values: Vec<f32>,
}

/// The change that one worker makes: of coefficients, and of the residual.
pub struct Change {
    /// The change of each coefficient, by its column; ascending, without those that stay as they are.
    pub beta: Vec<(u32, f32)>,
    /// The change of the residual: (rows).
    pub residual: Vec<f32>,
}

impl Lasso {
    /// The problem that the environment variable `LASSO_DATA` names: `diabetes`, the default, or `zipf`.
    ///
    /// # Panics
    /// If the variable names something else.
    #[must_use]
    pub fn of_environment() -> Self {
        match std::env::var("LASSO_DATA").as_deref() {
            Err(_) | Ok("diabetes") => Self::diabetes(),
            Ok("zipf") => Self::zipf(),
            Ok(other) => panic!("LASSO_DATA is {other}: write diabetes or zipf"),
        }
    }

    /// Progression of diabetes from ten values of each patient, with all their products of up to three: 442 rows and 283 columns, many of
    /// which are almost equal.
    ///
    /// # Panics
    /// Never: the data are embedded.
    #[must_use]
    pub fn diabetes() -> Self {
        let bytes =
            unpack("diabetes.csv.gz", include_bytes!("../data/diabetes.csv.gz")).expect("a whole file");
        let lines = str::from_utf8(&bytes).expect("it is text").lines();
        let numbers = |line: &str| line.split(',').map(|cell| cell.parse().expect("a number")).collect();
        let table: Vec<Vec<f64>> = lines.map(numbers).collect();
        let column = |index: usize| standardized(table.iter().map(|line| line[index]).collect());
        let values: Vec<Vec<f64>> = (0..VALUES).map(column).collect();
        let product = |one: &[f64], other: &[f64]| one.iter().zip(other).map(|(a, b)| a * b).collect();
        let mut columns = values.clone();
        // The sex has two values, so its powers would be copies of its column.
        for first in 0..VALUES {
            for second in (first..VALUES).filter(|second| (first, *second) != (SEX, SEX)) {
                columns.push(product(&values[first], &values[second]));
            }
        }
        for first in 0..VALUES {
            for second in first..VALUES {
                let pair: Vec<f64> = product(&values[first], &values[second]);
                for third in (second..VALUES).filter(|third| (first, second, *third) != (SEX, SEX, SEX)) {
                    columns.push(product(&pair, &values[third]));
                }
            }
        }
        let columns = columns.into_iter().map(|values| Column::dense(&standardized(values)));
        Self::new("lasso-diabetes", columns.collect(), column(VALUES))
    }

    /// Generated data: 4,000 rows and 1,000 columns, of which the k-th has an entry in one row of 2 k, as words of a text have, but at least
    /// in one of 200. Their signs are random, so any two columns have almost no correlation.
    #[must_use]
    pub fn zipf() -> Self {
        const ROWS: u32 = 4000;
        const COLUMNS: u32 = 1000;
        const USED: usize = 20;
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut sign = |one_of: u32| match random.next_u64() % u64::from(2 * one_of) {
            0 => 1.0,
            1 => -1.0,
            _ => 0.0,
        };
        let mut column =
            |number: u32| Column::dense(&(0..ROWS).map(|_| sign((2 * number).min(200))).collect::<Vec<_>>());
        let columns: Vec<Column> = (1..=COLUMNS).map(&mut column).collect();
        // Noise, and every twentieth column.
        let mut target: Vec<f64> = (0..ROWS).map(|_| sign(1) * 0.02).collect();
        for (index, column) in columns.iter().step_by(USED).enumerate() {
            let factor = if index % 2 == 0 { 1.0 } else { -1.0 };
            column.entries().for_each(|(row, value)| target[row] += factor * f64::from(value));
        }
        Self::new("lasso-zipf", columns, target)
    }

    /// A problem with this data; `target` may have any length but 0.
    fn new(name: &'static str, columns: Vec<Column>, target: Vec<f64>) -> Self {
        let length = target.iter().map(|value| value * value).sum::<f64>().sqrt();
        let target: Arc<[f32]> = target.iter().map(|value| (value / length) as f32).collect();
        let largest = columns.iter().map(|column| column.dot(&target).abs()).fold(0.0, f64::max);
        Self { name, columns: columns.into(), target, penalty: largest / 10.0 }
    }

    /// Splits a state, which is the flat vector of parameters, into `beta` and the residual.
    #[must_use]
    pub fn split<'a>(&self, state: &'a [f32]) -> (&'a [f32], &'a [f32]) {
        state.split_at(self.columns.len())
    }

    /// The change that makes each of these coefficients the best one if all others stay as they are: all of them from the same residual.
    #[must_use]
    pub fn change(&self, state: &[f32], columns: impl IntoIterator<Item = u32>) -> Change {
        let (beta, residual) = self.split(state);
        let mut change = Change { beta: Vec::new(), residual: vec![0.0; residual.len()] };
        for index in columns {
            let (column, old) = (&self.columns[index as usize], beta[index as usize]);
            let best = self.shrunk(column.dot(residual) + f64::from(old));
            let delta = (best - f64::from(old)) as f32;
            if delta != 0.0 {
                column.entries().for_each(|(row, value)| change.residual[row] -= delta * value);
                change.beta.push((index, delta));
            }
        }
        change.beta.sort_unstable_by_key(|(index, _)| *index);
        change
    }

    /// The tables `beta` and `residual` one after the other, which begin at the parameters. All additions of a clock are applied together, when
    /// all workers have completed it.
    #[must_use]
    pub fn tables(&self) -> Vec<Table> {
        let table = |name, rows: usize| Table {
            apply_mode: ApplyMode::PerClock,
            init: Init::Parameters,
            ..Table::additive(name, rows as u64, 1)
        };
        vec![table("beta", self.columns.len()), table("residual", self.target.len())]
    }

    /// The rows of these tables: all of them.
    #[must_use]
    pub fn state_rows(&self) -> RowSet {
        RowSet::range(0..(self.columns.len() + self.target.len()) as u64)
    }

    /// A change, as additions to these tables.
    #[must_use]
    pub fn additions(&self, change: &Change) -> Rows {
        let beta = change.beta.iter().map(|(column, delta)| (u64::from(*column), *delta));
        let residual = (self.columns.len() as u64..).zip(change.residual.iter().copied());
        let (indices, values): (Vec<Row>, Vec<f32>) =
            beta.chain(residual.filter(|(_, delta)| *delta != 0.0)).unzip();
        Rows { indices: indices.into_iter().collect(), values }
    }

    /// A coefficient after the penalty has moved it towards zero (soft thresholding).
    fn shrunk(&self, value: f64) -> f64 {
        value.signum() * (value.abs() - self.penalty).max(0.0)
    }

    /// What is to be minimized, if this is the residual of `beta`.
    #[must_use]
    pub fn objective(&self, beta: &[f32], residual: &[f32]) -> f64 {
        let sum = |values: &[f32], of: fn(f64) -> f64| {
            values.iter().map(|value| of(f64::from(*value))).sum::<f64>()
        };
        sum(residual, |value| value * value) / 2.0 + self.penalty * sum(beta, f64::abs)
    }

    /// The residual of `beta`, computed from the data: (rows).
    #[must_use]
    pub fn residual(&self, beta: &[f32]) -> Vec<f32> {
        let mut residual: Vec<f64> = self.target.iter().map(|value| f64::from(*value)).collect();
        for (column, &coefficient) in self.columns.iter().zip(beta) {
            let product = |value| f64::from(coefficient) * f64::from(value);
            column.entries().for_each(|(row, value)| residual[row] -= product(value));
        }
        residual.into_iter().map(|value| value as f32).collect()
    }

    /// By what share of itself the objective may at most exceed the least possible one: the duality gap. The residual, made so short that no
    /// column exceeds the penalty, gives a lower bound of the objective.
    #[must_use]
    pub fn gap(&self, state: &[f32]) -> f64 {
        let (beta, residual) = self.split(state);
        let largest = self.columns.iter().map(|column| column.dot(residual).abs()).fold(0.0, f64::max);
        let scale = (self.penalty / largest).min(1.0);
        let (mut squares, mut product) = (0.0, 0.0);
        for (residual, target) in residual.iter().zip(&*self.target) {
            let dual = scale * f64::from(*residual);
            squares += dual * dual;
            product += dual * f64::from(*target);
        }
        let objective = self.objective(beta, residual);
        (objective - (product - squares / 2.0)) / objective
    }

    /// The largest eigenvalue of the columns' products with each other, by power iteration. About columns / radius coefficients can be
    /// changed at a time.
    #[must_use]
    pub fn spectral_radius(&self) -> f64 {
        let mut vector = vec![1.0_f32; self.columns.len()];
        let mut radius = 0.0;
        for _ in 0..1000 {
            let mut image = vec![0.0_f32; self.target.len()];
            for (column, factor) in self.columns.iter().zip(&vector) {
                column.entries().for_each(|(row, value)| image[row] += factor * value);
            }
            let products: Vec<f64> = self.columns.iter().map(|column| column.dot(&image)).collect();
            radius = products.iter().map(|product| product * product).sum::<f64>().sqrt();
            vector = products.iter().map(|product| (product / radius) as f32).collect();
        }
        radius
    }

    /// The correlations of a column with all columns: (columns).
    #[must_use]
    pub fn correlations(&self, index: usize) -> Vec<f32> {
        let mut dense = vec![0.0; self.target.len()];
        self.columns[index].entries().for_each(|(row, value)| dense[row] = value);
        self.columns.iter().map(|column| column.dot(&dense) as f32).collect()
    }
}

impl Task for Lasso {
    fn manifest(&self) -> Manifest {
        let [columns, rows] = [self.columns.len(), self.target.len()].map(|count| count as u32);
        Manifest::new([("beta", &[columns][..]), ("residual", &[rows][..])])
    }

    fn initial(&self, _seed: u64, parameters: &mut [f32]) {
        parameters[self.columns.len()..].copy_from_slice(&self.target);
    }

    fn sample_count(&self) -> u32 {
        self.columns.len() as u32
    }

    fn gradient(&self, _parameters: &[f32], _samples: &[u32], _gradient: &mut [f32]) -> f64 {
        unreachable!("a method by coordinates computes no gradient")
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        let (beta, _) = self.split(parameters);
        let loss = self.objective(beta, &self.residual(beta));
        Evaluation { samples: self.sample_count(), loss, accuracy: None }
    }
}

impl Column {
    /// The column with these values, (rows), scaled to length 1. There must be one that is not zero.
    fn dense(values: &[f64]) -> Self {
        let length = values.iter().map(|value| value * value).sum::<f64>().sqrt();
        let entries = (0..).zip(values).filter(|(_, value)| **value != 0.0);
        let (rows, values) = entries.map(|(row, value): (u32, _)| (row, (value / length) as f32)).unzip();
        Self { rows, values }
    }

    /// The rows and values of its entries.
    fn entries(&self) -> impl Iterator<Item = (usize, f32)> {
        self.rows.iter().map(|row| *row as usize).zip(self.values.iter().copied())
    }

    /// Its product with a vector: (rows).
    #[must_use]
    pub fn dot(&self, vector: &[f32]) -> f64 {
        self.entries().map(|(row, value)| f64::from(value) * f64::from(vector[row])).sum()
    }
}

/// The values, without their mean, in units of their standard deviation.
fn standardized(values: Vec<f64>) -> Vec<f64> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / count;
    values.into_iter().map(|value| (value - mean) / variance.sqrt()).collect()
}

/// A run ends when the objective can be at most this share lower.
pub const GAP_MAX: f64 = 1e-4;
/// A run ends when the objective is larger than this, because the method diverges. With all coefficients zero, the objective is 1/2.
pub const OBJECTIVE_MAX: f64 = 10.0;
/// Number of values of a patient.
const VALUES: usize = 10;
/// The index of the patient's sex.
const SEX: usize = 1;
