//! Synthetic ratings of known structure: a product of random factors, biases, and noise. So it is known how well a model can do.
//!
//! ```text
//! rating(u, i) = 3 + b[u] + c[i] + p[u] . q[i] + noise        deviations: biases 0.5, product 1, noise as wanted
//! ```
//! Each pair of a user and an item is rated with the same probability. A model that knows the true factors has the RMSE of the noise alone.
//!
//! # Invariants
//! - The same ratings on every machine: draws from a fixed generator, and + - x / and sqrt.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::factorization::RatingSamples;

/// The mean of the ratings.
const MEAN: f32 = 3.0;
/// The deviation of the biases.
const BIAS: f32 = 0.5;

/// How ratings are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SyntheticRatings {
    /// The number of users.
    pub users: u32,
    /// The number of items.
    pub items: u32,
    /// Factors of a user, and of an item.
    pub rank: usize,
    /// The probability that a user rates an item.
    pub density: f64,
    /// The deviation of the noise: the least RMSE that any model has on ratings it was not trained on.
    pub noise: f32,
    /// The seed of all draws.
    pub seed: u64,
}

impl SyntheticRatings {
    /// The ratings, in a random order. Their values include the mean.
    #[must_use]
    pub fn draw(&self) -> RatingSamples {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&self.seed.to_le_bytes());
        key[16..23].copy_from_slice(b"ratings");
        let mut generator = ChaCha8Rng::from_seed(key);
        // A sum of as many products as the rank has a deviation of 1.
        let factor = 1.0 / (self.rank as f32).sqrt().sqrt();
        let mut draw = |count: u32, per: usize, deviation: f32| -> Vec<f32> {
            (0..count as usize * per).map(|_| deviation * bell(&mut generator)).collect()
        };
        let (p, q) = (draw(self.users, self.rank, factor), draw(self.items, self.rank, factor));
        let (b, c) = (draw(self.users, 1, BIAS), draw(self.items, 1, BIAS));
        let mut rated: Vec<(u64, u32, u32, f32)> = Vec::new();
        for user in 0..self.users {
            for item in 0..self.items {
                if generator.random_range(0.0..1.0) >= self.density {
                    continue;
                }
                let row = |index: u32| index as usize * self.rank..(index as usize + 1) * self.rank;
                let product: f32 = p[row(user)].iter().zip(&q[row(item)]).map(|(p, q)| p * q).sum();
                let exact = MEAN + b[user as usize] + c[item as usize] + product;
                rated.push((generator.random(), user, item, exact + self.noise * bell(&mut generator)));
            }
        }
        rated.sort_unstable_by_key(|&(order, user, item, _)| (order, user, item));
        RatingSamples {
            users: rated.iter().map(|rating| rating.1).collect(),
            items: rated.iter().map(|rating| rating.2).collect(),
            values: rated.iter().map(|rating| rating.3).collect(),
        }
    }

    /// The ratings as a CSV file with the columns `user`, `item` and `rating`; ids count from 1.
    #[must_use]
    pub fn csv(&self) -> String {
        let RatingSamples { users, items, values } = self.draw();
        let mut text = "user,item,rating\n".to_owned();
        for ((user, item), value) in users.iter().zip(&items).zip(&values) {
            text += &format!("{},{},{value:.3}\n", user + 1, item + 1);
        }
        text
    }
}

/// Close to the normal distribution of mean 0 and deviation 1: the sum of twelve uniform numbers, minus 6.
fn bell(generator: &mut ChaCha8Rng) -> f32 {
    (0..12).map(|_| generator.random_range(0.0_f32..1.0)).sum::<f32>() - 6.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATINGS: SyntheticRatings =
        SyntheticRatings { users: 300, items: 200, rank: 4, density: 0.5, noise: 0.0, seed: 1 };

    #[test]
    fn ratings_have_the_deviations_that_are_wanted() {
        let deviation = |ratings: SyntheticRatings| {
            let values = ratings.draw().values;
            let mean = values.iter().sum::<f32>() / values.len() as f32;
            assert!((mean - MEAN).abs() < 0.2, "{mean}");
            (values.iter().map(|value| (value - mean) * (value - mean)).sum::<f32>() / values.len() as f32)
                .sqrt()
        };
        // 1 + 2 x 0.25, and 4 for the noise.
        assert!((deviation(RATINGS) - 1.5_f32.sqrt()).abs() < 0.1);
        assert!((deviation(SyntheticRatings { noise: 2.0, ..RATINGS }) - 5.5_f32.sqrt()).abs() < 0.1);
    }

    #[test]
    fn about_the_wanted_share_of_pairs_is_rated_once_each() {
        let RatingSamples { users, items, .. } = RATINGS.draw();
        assert!((29_000..31_000).contains(&users.len()), "{}", users.len());
        let mut pairs: Vec<(u32, u32)> = users.into_iter().zip(items).collect();
        assert!(!pairs.is_sorted());
        pairs.sort_unstable();
        assert!(pairs.windows(2).all(|pair| pair[0] != pair[1]));
        assert_ne!(RATINGS.draw(), SyntheticRatings { seed: 2, ..RATINGS }.draw());
        assert!(RATINGS.csv().starts_with("user,item,rating\n"));
    }
}
