//! The oracle of tables: the parameters at the end of a run whose owners add integers to them. Each sample of each epoch must be in them
//! exactly once, also if members were lost.

use peergrad_core::program::loader::Loaded;
use peergrad_core::table::{Atomicity, BatchScope, TableRule};
use peergrad_models::optimizer::Schedule;
use peergrad_models::task::Task;

use crate::task::Integers;

/// The name of the oracle.
pub const TABLE_SUMS: &str = "table sums";

/// Whether the oracle knows what the run computes, if it trains all of its epochs: its parameters are rows to which owners add, exactly, and
/// the additions of a clock are atomic.
#[must_use]
pub fn applies(loaded: &Loaded) -> bool {
    let rate = loaded.config.schedule.rate(0);
    // Then every sum and every product is exact.
    let is_power_of_two = has_no_fraction(rate / loaded.config.batch_size as f64);
    is_power_of_two
        && loaded.config.schedule == Schedule::constant(rate)
        && loaded.program.table_spec(loaded).is_some_and(|spec| {
            let is_sum = spec.layout.tables().all(|table| table.rule == TableRule::Sum);
            // A worker with a batch of its own divides by the samples that it got, which are fewer at the end of an epoch.
            spec.atomicity == Atomicity::Clock && is_sum && spec.batch_scope == BatchScope::Global
        })
}

/// Whether a number is a power of two: all bits of its fraction are zero.
fn has_no_fraction(number: f64) -> bool {
    number.is_normal() && number.to_bits().trailing_zeros() >= f64::MANTISSA_DIGITS - 1
}

/// Compares the parameters at the end of a run with the sum of all samples' gradients.
///
/// # Errors
/// A description of the first parameter that differs.
pub fn compare(loaded: &Loaded, task: &Integers, parameters: &[f32]) -> Result<(), String> {
    let config = &loaded.config;
    let samples: Vec<u32> = (0..task.sample_count()).collect();
    let factor = -config.schedule.rate(0) / config.batch_size as f64 * config.epochs as f64;
    for (index, (sum, found)) in task.sum(&samples).into_iter().zip(parameters).enumerate() {
        let expected = (factor * sum as f64) as f32;
        if *found != expected {
            return Err(format!(
                "parameter {index} is {found} at the end, and {expected} if each sample of each epoch counts exactly once"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use peergrad_config::specification::RunFile;

    use super::*;
    use crate::scenario::Scenario;
    use crate::simulation::Simulation;
    use crate::workload::Workload;

    fn workload(sync: &str) -> Workload {
        let text = format!("epochs = 2\nbatch = 32\n[optimizer]\nrule = \"sgd\"\nrate = 0.5\n[sync]\n{sync}");
        Workload::integers(&RunFile::parse(&text).unwrap(), 20, 103).unwrap()
    }

    #[test]
    fn it_is_asked_about_atomic_clocks_only_and_notices_a_sample_too_many() {
        for (sync, is_known) in [
            ("kind = \"ssp\"\natomic = true", true),
            ("kind = \"ssp\"\natomic = true\nstaleness = 0\napply = \"by-step\"", true),
            ("kind = \"async\"\natomic = true", false),
            ("kind = \"ssp\"", false),
            ("kind = \"sync\"", false),
        ] {
            let outcome = Simulation::new(&Scenario::new("tables", 3, workload(sync)), 1).run();
            assert_eq!(outcome.violations, [], "{sync}");
            assert_eq!(outcome.checked.contains(&TABLE_SUMS), is_known, "{sync}");
        }
        let workload = workload("kind = \"ssp\"\natomic = true");
        let task = workload.integers.unwrap();
        let all: Vec<u32> = (0..103).collect();
        let sum = |samples: &[u32]| -> Vec<f32> {
            task.sum(samples).into_iter().map(|sum| -(sum as f32) / 32.0).collect()
        };
        assert_eq!(compare(&workload.loaded, &task, &sum(&all)), Ok(()));
        let words = compare(&workload.loaded, &task, &sum(&all[1..])).unwrap_err();
        assert!(words.starts_with("parameter 0 is "), "{words}");
    }
}
