//! Trials: the combinations of values that a sweep tries, in the order of their numbers.

use peergrad_protocol::cursor::mixed;
use toml::Value;

use super::TRIALS_MAX;
use super::specification::SweepError;
use super::variation::{Values, Variation};

/// Where trials come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialSource {
    /// All combinations of values.
    Grid,
    /// So many different combinations, drawn at random.
    Random {
        /// The number of trials.
        count: usize,
        /// The seed of the draws.
        seed: u64,
    },
}

/// The values of each trial, shape (trials, keys).
///
/// # Errors
/// There are too many trials, a range has no fixed values, or there are not so many different combinations.
pub fn trials(variations: &[Variation], source: TrialSource) -> Result<Vec<Vec<Value>>, SweepError> {
    match source {
        TrialSource::Grid => grid(variations),
        TrialSource::Random { count, seed } => random(variations, count, seed),
    }
}

/// All combinations; the values of the last key change fastest.
fn grid(variations: &[Variation]) -> Result<Vec<Vec<Value>>, SweepError> {
    let mut lists = Vec::new();
    for Variation { key, values } in variations {
        match values {
            Values::List(values) => lists.push(values),
            Values::Range(_) => {
                let reason = format!(
                    "a range has no fixed values for a grid: say how many, such as `{key}=LOW..HIGH:4`, or draw some with `--trials N`"
                );
                return Err(SweepError::Key { key: key.clone(), reason });
            }
        }
    }
    let count = lists.iter().fold(1, |count: usize, values| count.saturating_mul(values.len()));
    check_count(count)?;
    let mut trials = vec![Vec::new()];
    for values in lists {
        let extended = |trial: Vec<Value>| {
            values.iter().map(move |value| [&trial[..], std::slice::from_ref(value)].concat())
        };
        trials = trials.into_iter().flat_map(extended).collect();
    }
    Ok(trials)
}

/// Different combinations, each value drawn by itself.
fn random(variations: &[Variation], count: usize, seed: u64) -> Result<Vec<Vec<Value>>, SweepError> {
    check_count(count)?;
    let mut trials: Vec<Vec<Value>> = Vec::new();
    for attempt in 0..(count * ATTEMPTS_PER_TRIAL) as u64 {
        let draw = |(index, variation): (usize, &Variation)| {
            let number =
                [attempt, index as u64].into_iter().fold(mixed(seed), |seed, part| mixed(seed ^ mixed(part)));
            variation.values.drawn(number)
        };
        let trial: Vec<Value> = variations.iter().enumerate().map(draw).collect();
        if !trials.contains(&trial) {
            trials.push(trial);
        }
        if trials.len() == count {
            return Ok(trials);
        }
    }
    Err(SweepError::TooFewValues { found: trials.len(), wanted: count })
}

fn check_count(count: usize) -> Result<(), SweepError> {
    if (1..=TRIALS_MAX).contains(&count) { Ok(()) } else { Err(SweepError::TrialCount { found: count }) }
}

impl Values {
    /// The value that belongs to a random number of 64 bits.
    fn drawn(&self, number: u64) -> Value {
        match self {
            Self::List(values) => {
                values[((u128::from(number) * values.len() as u128) >> 64) as usize].clone()
            }
            Self::Range(range) => range.at((number >> 11) as f64 / (1_u64 << 53) as f64),
        }
    }
}

/// How often a combination is drawn for each trial at most, since some come twice.
const ATTEMPTS_PER_TRIAL: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn variations(texts: &[&str]) -> Vec<Variation> {
        texts.iter().map(|text| Variation::parse(text, &toml::Table::new()).unwrap()).collect()
    }

    fn texts(trials: &[Vec<Value>]) -> Vec<String> {
        trials
            .iter()
            .map(|values| values.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
            .collect()
    }

    #[test]
    fn a_grid_has_all_combinations() {
        let found =
            trials(&variations(&["batch=8,16", "model.hidden=[1],[2],[3]"]), TrialSource::Grid).unwrap();
        assert_eq!(texts(&found), ["8 [1]", "8 [2]", "8 [3]", "16 [1]", "16 [2]", "16 [3]"]);
    }

    #[test]
    fn random_trials_follow_from_the_seed_and_differ() {
        let of = |seed| {
            let wanted = variations(&["optimizer.rate=1e-4..1e-1:log", "batch=8,16"]);
            texts(&trials(&wanted, TrialSource::Random { count: 40, seed }).unwrap())
        };
        assert_eq!(of(3), of(3));
        assert_ne!(of(3), of(4));
        let low = of(3)
            .iter()
            .filter(|text| text.split(' ').next().unwrap().parse::<f64>().unwrap() < 3.162e-3)
            .count();
        assert!((10..=30).contains(&low), "half of the draws are below the middle factor: {low}");
        // All of a small grid are found.
        let all = trials(&variations(&["batch=8,16,32"]), TrialSource::Random { count: 3, seed: 1 }).unwrap();
        assert_eq!(all.len(), 3);
    }

    #[test]
    fn too_many_and_too_few_are_refused() {
        let refused = |texts: &[&str], source| trials(&variations(texts), source).unwrap_err().to_string();
        let many = ["batch=1..30:30", "epochs=1..30:30"];
        assert!(refused(&many, TrialSource::Grid).contains("900 trials"));
        assert!(refused(&["batch=1..30"], TrialSource::Grid).contains("`batch`"));
        let random = |count| TrialSource::Random { count, seed: 1 };
        assert!(refused(&["batch=1,2"], random(3)).contains("only 2 different"));
        assert!(refused(&["batch=1,2"], random(0)).contains("0 trials"));
        assert!(refused(&["batch=1,2"], random(513)).contains("513 trials"));
    }
}
