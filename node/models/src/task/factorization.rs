//! Matrix factorization: predicts how a user rates an item from a few numbers for each user and each item.
//!
//! The ratings are the known cells of a matrix of users by items. The model is a product of two thin matrices, plus what a user and an item
//! add to every rating:
//!
//! ```text
//!                                                              items
//! rating(u, i) = mean + b[u] + c[i] + p[u] . q[i]             +-------------+          rank
//!                                                       users |  3 . . 5 .  |   ~   users | p |  x  rank | q |  items
//!                                                             |  . 4 . . 1  |
//! ```
//! The loss of a rating is its squared error, plus `regularization` times the squares of all numbers that it is computed from. So a user with
//! many ratings is regularized in many of them. A rating touches one row of each table only, whatever the number of users and items.
//!
//! All factors at 0 are a saddle, where every gradient is zero. So factors start with small numbers that are drawn from the run's seed.
//!
//! # Invariants
//! - Predictions are summed in `f64`, in the order of the factors.
//! - Initial values are the same bits on every machine.
//!
//! # Reading
//! Koren, Bell and Volinsky, *Matrix Factorization Techniques for Recommender Systems*, 2009.

use std::ops::Range;

use peergrad_protocol::manifest::Manifest;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

use super::network::signed_unit;
use super::{Evaluation, ParameterTable, SparseTask, Task};

/// Factors start uniform between minus and plus this: their deviation is 0.1.
const START_LIMIT: f32 = 0.173_205_08;

/// The shape of a factorization, and its penalty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factorization {
    /// The number of users.
    pub users: usize,
    /// The number of items.
    pub items: usize,
    /// Factors of a user, and of an item.
    pub rank: usize,
    /// Whether each user and each item has a bias.
    pub has_biases: bool,
    /// This times the squares of all numbers behind a rating is added to its loss.
    pub regularization: f32,
}

/// Ratings, by the rows of their users and items.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RatingSamples {
    /// (ratings), each below the number of users.
    pub users: Vec<u32>,
    /// (ratings), each below the number of items.
    pub items: Vec<u32>,
    /// (ratings), each minus the mean of the model.
    pub values: Vec<f32>,
}

/// Where the numbers behind a rating are, in a vector.
struct Place {
    /// The user's first factor.
    user: usize,
    /// The item's first factor.
    item: usize,
    /// The biases of the user and of the item, if there are biases.
    biases: Option<[usize; 2]>,
}

impl Factorization {
    /// `user_factors` (users, rank), `item_factors` (items, rank); with biases also `user_bias` (users), `item_bias` (items).
    #[must_use]
    pub fn manifest(&self) -> Manifest {
        let [users, items, rank] = [self.users, self.items, self.rank].map(|count| count as u32);
        let factors = Manifest::tensor("user_factors", [users, rank]).and("item_factors", [items, rank]);
        if self.has_biases { factors.and("user_bias", [users]).and("item_bias", [items]) } else { factors }
    }

    /// Where the numbers behind a rating are, in a vector with the factors of so many users and items, and then their biases.
    fn place(&self, [users, items]: [usize; 2], user: usize, item: usize) -> Place {
        let factors = (users + items) * self.rank;
        Place {
            user: user * self.rank,
            item: (users + item) * self.rank,
            biases: self.has_biases.then_some([factors + user, factors + users + item]),
        }
    }

    /// What the model adds to the mean for this user and item.
    fn prediction(&self, parameters: &[f32], place: &Place) -> f64 {
        let factors =
            |start: usize| parameters[start..start + self.rank].iter().map(|&factor| f64::from(factor));
        let product: f64 = factors(place.user).zip(factors(place.item)).map(|(p, q)| p * q).sum();
        let biases =
            place.biases.map_or(0.0, |biases| biases.iter().map(|&bias| f64::from(parameters[bias])).sum());
        product + biases
    }

    /// Adds the gradient of a rating to `gradient`, and returns its loss.
    fn add_gradient(&self, parameters: &[f32], place: &Place, value: f32, gradient: &mut [f32]) -> f64 {
        let error = self.prediction(parameters, place) - f64::from(value);
        let slope = 2.0 * error as f32;
        let decay = 2.0 * self.regularization;
        let mut squares = 0.0;
        for factor in 0..self.rank {
            let (user, item) = (place.user + factor, place.item + factor);
            let (p, q) = (parameters[user], parameters[item]);
            squares += f64::from(p) * f64::from(p) + f64::from(q) * f64::from(q);
            gradient[user] += slope * q + decay * p;
            gradient[item] += slope * p + decay * q;
        }
        for bias in place.biases.into_iter().flatten() {
            let value = parameters[bias];
            squares += f64::from(value) * f64::from(value);
            gradient[bias] += slope + decay * value;
        }
        error * error + f64::from(self.regularization) * squares
    }

    /// What the model adds to the mean, for each of these pairs of a user and an item.
    ///
    /// # Panics
    /// If there is no such user or item.
    #[must_use]
    pub fn predictions(&self, parameters: &[f32], pairs: impl Iterator<Item = (u32, u32)>) -> Vec<f32> {
        pairs.map(|(user, item)| self.prediction(parameters, &self.place_of(user, item)) as f32).collect()
    }

    /// Where the numbers of this user and this item are in the flat vector.
    fn place_of(&self, user: u32, item: u32) -> Place {
        self.place([self.users, self.items], user as usize, item as usize)
    }

    /// The mean squared error on the ratings `which`, without the penalty: the square of the RMSE. Without ratings it is 0.
    #[must_use]
    pub fn evaluate(&self, samples: &RatingSamples, which: Range<u32>, parameters: &[f32]) -> Evaluation {
        let count = which.end.saturating_sub(which.start);
        let squares = which.map(|sample| {
            let (user, item, value) = samples.get(sample);
            let error = self.prediction(parameters, &self.place_of(user, item)) - f64::from(value);
            error * error
        });
        let loss = squares.sum::<f64>() / f64::from(count.max(1));
        Evaluation { samples: count, loss, accuracy: None }
    }
}

impl RatingSamples {
    /// The number of ratings.
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.values.len()).expect("a file has fewer than 2^32 rows")
    }

    fn get(&self, sample: u32) -> (u32, u32, f32) {
        let sample = sample as usize;
        (self.users[sample], self.items[sample], self.values[sample])
    }

    /// A copy of the ratings with these indices, in the order of `rows`.
    #[must_use]
    pub fn select(&self, rows: &[u32]) -> Self {
        let of = |all: &[u32]| rows.iter().map(|&row| all[row as usize]).collect();
        let values = rows.iter().map(|&row| self.values[row as usize]).collect();
        Self { users: of(&self.users), items: of(&self.items), values }
    }
}

/// A factorization of ratings, the last of which are held out.
#[derive(Debug)]
pub struct FactorizationTask {
    model: Factorization,
    samples: RatingSamples,
    /// Ratings from this one on are held out.
    training: u32,
}

impl FactorizationTask {
    /// A task that trains on the first `training` ratings and evaluates on the others.
    ///
    /// # Panics
    /// If there are fewer ratings, or one is of a user or an item that the model does not have.
    #[must_use]
    pub fn new(model: Factorization, samples: RatingSamples, training: u32) -> Self {
        assert!(training <= samples.count(), "{training} of {} ratings are trained", samples.count());
        let is_known = |rows: &[u32], count: usize| rows.iter().all(|&row| (row as usize) < count);
        assert!(is_known(&samples.users, model.users), "a user is not in the model");
        assert!(is_known(&samples.items, model.items), "an item is not in the model");
        Self { model, samples, training }
    }
}

impl Task for FactorizationTask {
    fn manifest(&self) -> Manifest {
        self.model.manifest()
    }

    /// Biases start at 0.
    fn initial(&self, seed: u64, parameters: &mut [f32]) {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[16..23].copy_from_slice(b"factors");
        let mut generator = ChaCha8Rng::from_seed(key);
        let factors = (self.model.users + self.model.items) * self.model.rank;
        for factor in &mut parameters[..factors] {
            *factor = START_LIMIT * signed_unit(generator.next_u32());
        }
    }

    fn sample_count(&self) -> u32 {
        self.training
    }

    fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        gradient.fill(0.0);
        let of_sample = |&sample: &u32| {
            let (user, item, value) = self.samples.get(sample);
            self.model.add_gradient(parameters, &self.model.place_of(user, item), value, gradient)
        };
        samples.iter().map(of_sample).sum()
    }

    fn held_out_count(&self) -> u32 {
        self.samples.count() - self.training
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        self.model.evaluate(&self.samples, self.training..self.samples.count(), parameters)
    }

    fn sparse(&self) -> Option<&dyn SparseTask> {
        Some(self)
    }
}

impl SparseTask for FactorizationTask {
    fn tables(&self) -> Vec<ParameterTable> {
        let Factorization { users, items, rank, has_biases, .. } = self.model;
        let table = |name, rows: usize, width| ParameterTable { name, rows: rows as u64, width };
        let mut tables = vec![table("user_factors", users, rank), table("item_factors", items, rank)];
        if has_biases {
            tables.extend([table("user_bias", users, 1), table("item_bias", items, 1)]);
        }
        tables
    }

    fn touched(&self, samples: &[u32]) -> Vec<u32> {
        let different = |all: &[u32]| {
            let mut rows: Vec<u32> = samples.iter().map(|&sample| all[sample as usize]).collect();
            rows.sort_unstable();
            rows.dedup();
            rows
        };
        let (users, items) = (different(&self.samples.users), different(&self.samples.items));
        // The tables lie one after the other: factors of users and of items, then their biases.
        let [user_count, item_count] = [self.model.users as u32, self.model.items as u32];
        let pair = |first: u32| {
            let of_users = users.iter().map(move |&user| first + user);
            of_users.chain(items.iter().map(move |&item| first + user_count + item))
        };
        let biases = self.model.has_biases.then(|| pair(user_count + item_count));
        pair(0).chain(biases.into_iter().flatten()).collect()
    }

    fn gradient_at(&self, touched: &[u32], parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        gradient.fill(0.0);
        let first_item = self.model.users as u32;
        let user_count = touched.partition_point(|&row| row < first_item);
        let end = (self.model.users + self.model.items) as u32;
        let item_count = touched.partition_point(|&row| row < end) - user_count;
        let (users, items) = touched[..user_count + item_count].split_at(user_count);
        let of_sample = |&sample: &u32| {
            let (user, item, value) = self.samples.get(sample);
            let user = users.binary_search(&user).expect("a touched user");
            let item = items.binary_search(&(first_item + item)).expect("a touched item");
            let place = self.model.place([user_count, item_count], user, item);
            self.model.add_gradient(parameters, &place, value, gradient)
        };
        samples.iter().map(of_sample).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: Factorization =
        Factorization { users: 3, items: 2, rank: 2, has_biases: true, regularization: 0.125 };
    /// Factors of three users and two items, then their biases.
    const AT: [f32; 15] = [1.0, 0.5, -1.0, 2.0, 0.25, 0.0, 2.0, -1.0, 0.5, 1.0, 0.125, -0.5, 0.25, 1.0, 0.75];

    fn task(has_biases: bool) -> FactorizationTask {
        let samples = RatingSamples {
            users: vec![0, 2, 1, 0, 2],
            items: vec![1, 0, 1, 0, 1],
            values: vec![2.0, -1.0, 0.5, 3.0, 1.0],
        };
        FactorizationTask::new(Factorization { has_biases, ..MODEL }, samples, 4)
    }

    #[test]
    fn loss_and_gradient_by_hand() {
        let mut gradient = [f32::NAN; 15];
        // User 0 and item 1: 1 x 0.5 + 0.5 x 1 + 0.125 + 0.75 = 1.875, which is 0.125 too low.
        let loss = task(true).gradient(&AT, &[0], &mut gradient);
        let squares = 1.0 + 0.25 + 0.25 + 1.0 + 0.015_625 + 0.5625;
        assert_eq!(loss, 0.015_625 + 0.125 * squares);
        let expected = [
            -0.25 * 0.5 + 0.25,
            -0.25 + 0.125,
            0.0,
            0.0,
            0.0,
            0.0, // users
            0.0,
            0.0,
            -0.25 + 0.125,
            -0.125 + 0.25, // items
            -0.25 + 0.031_25,
            0.0,
            0.0,
            0.0,
            -0.25 + 0.1875, // biases
        ];
        assert_eq!(gradient, expected);
    }

    #[test]
    fn the_gradient_agrees_with_finite_differences() {
        for has_biases in [false, true] {
            let task = task(has_biases);
            let at = &AT[..task.manifest().parameter_count()];
            let loss = |parameters: &[f32]| task.gradient(parameters, &[0, 1, 2, 3], &mut [0.0; 15]);
            let mut gradient = vec![0.0; at.len()];
            task.gradient(at, &[0, 1, 2, 3], &mut gradient);
            for index in 0..at.len() {
                let shifted = |by: f32| {
                    let mut parameters = at.to_vec();
                    parameters[index] += by;
                    loss(&parameters)
                };
                let slope = (shifted(1e-2) - shifted(-1e-2)) / 2e-2;
                assert!((slope - f64::from(gradient[index])).abs() < 1e-3, "{index}: {slope}");
            }
        }
    }

    #[test]
    fn a_gradient_needs_only_the_touched_rows() {
        for has_biases in [false, true] {
            let task = task(has_biases);
            let tables = task.tables();
            let widths = tables.iter().flat_map(|table| (0..table.rows).map(|_| table.width));
            let mut start = 0;
            let rows: Vec<Range<usize>> = widths
                .map(|width| {
                    start += width;
                    start - width..start
                })
                .collect();
            let at = &AT[..start];
            assert_eq!(task.manifest().parameter_count(), at.len(), "tables hold all parameters");
            let mut whole = vec![0.0; at.len()];
            for samples in [&[0][..], &[1, 3], &[0, 1, 2, 3], &[]] {
                let touched = task.touched(samples);
                assert!(touched.is_sorted_by(|one, next| one < next));
                let of = |values: &[f32]| {
                    touched
                        .iter()
                        .flat_map(|&row| values[rows[row as usize].clone()].to_vec())
                        .collect::<Vec<f32>>()
                };
                let mut gradient = vec![f32::NAN; of(at).len()];
                let loss = task.gradient_at(&touched, &of(at), samples, &mut gradient);
                assert_eq!(loss, task.gradient(at, samples, &mut whole));
                assert_eq!(gradient, of(&whole));
                let others = (0..rows.len()).filter(|row| !touched.contains(&(*row as u32)));
                assert!(others.flat_map(|row| whole[rows[row].clone()].to_vec()).all(|slope| slope == 0.0));
            }
        }
        assert_eq!(task(true).touched(&[0]), [0, 4, 5, 9]);
        assert_eq!(task(false).touched(&[0, 1]), [0, 2, 3, 4]);
    }

    #[test]
    fn factors_start_away_from_zero_and_biases_at_zero() {
        let mut parameters = [0.0; 15];
        task(true).initial(5, &mut parameters);
        assert!(parameters[..10].iter().all(|factor| *factor != 0.0 && factor.abs() <= START_LIMIT));
        assert!(parameters[10..].iter().all(|bias| *bias == 0.0));
        let mut other = [0.0; 15];
        task(true).initial(6, &mut other);
        assert_ne!(parameters, other);
    }

    #[test]
    fn the_held_out_loss_is_the_mean_squared_error() {
        let task = task(true);
        // User 2 and item 1: 0.25 x 0.5 + 0 + 0.25 + 0.75 = 1.125.
        let found = task.evaluate(&AT);
        assert_eq!(found, Evaluation { samples: 1, loss: 0.015_625, accuracy: None });
        assert_eq!(MODEL.predictions(&AT, [(2, 1), (0, 0)].into_iter()), [1.125, 1.5 + 0.125 + 1.0]);
        let none = MODEL.evaluate(&RatingSamples::default(), 0..0, &AT);
        assert_eq!((none.samples, none.loss), (0, 0.0));
    }
}
