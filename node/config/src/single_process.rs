//! The plain reference: trains a run in one process with one loop. Tests compare the results of swarms with it, number by number.
//!
//! Batches, their order, learning rates, optimizer, parameter groups and clipping are those of a run with many peers. Only the order of summation within a batch
//! differs, so results agree closely but not in every bit.

use peergrad_core::program::loader::Loaded;
use peergrad_models::task::StepInfo;
use peergrad_protocol::cursor::DataCursor;

/// One step of a run in one process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SingleProcessStep {
    /// Its number, from 0.
    pub step: u64,
    /// The epoch that its samples belong to, from 0.
    pub epoch: u64,
    /// The mean loss over its samples, before its update.
    pub loss: f64,
}

/// Trains to the end of the last epoch and returns the parameters; `watch` is called after each step.
pub fn train_single_process(loaded: &Loaded, mut watch: impl FnMut(SingleProcessStep)) -> Vec<f32> {
    let (task, training) = (&loaded.task, &loaded.config);
    let count = loaded.manifest.parameter_count();
    let mut parameters = vec![0.0; count];
    task.initial(training.seed, &mut parameters);
    let mut vector = vec![0.0; count];
    let optimizer = training.optimizer();
    let mut old = vec![0.0; count * optimizer.rule.moment_count()];
    let mut new = old.clone();
    let sample_count = task.sample_count();
    let mut cursor = DataCursor::default();
    let mut order = training.order(0, sample_count);
    let mut samples = Vec::new();
    for step in 0.. {
        let (batch, after) = cursor.next_batch(training.batch_size, u64::from(sample_count));
        if batch.epoch == training.epochs {
            break;
        }
        if batch.epoch != cursor.epoch {
            order = training.order(batch.epoch, sample_count);
        }
        cursor = after;
        samples.clear();
        for span in &batch.spans {
            samples.extend_from_slice(&order[span.start as usize..span.end as usize]);
        }
        let update_count = u32::try_from(step + 1).expect("a run in one process has fewer than 2^32 steps");
        let rate = training.schedule.rate(step);
        let info = StepInfo::alone(step, batch.epoch, rate);
        let loss = task.contribute(&info, &parameters, &samples, &mut vector);
        let sample_count = samples.len() as u64;
        let clip_factor = optimizer.clip_factor_of(&vector, sample_count);
        let update = optimizer.update(rate, update_count, sample_count, clip_factor);
        update.apply(0, &parameters, &mut vector, &old, &mut new);
        std::mem::swap(&mut parameters, &mut vector);
        std::mem::swap(&mut old, &mut new);
        watch(SingleProcessStep { step, epoch: batch.epoch, loss: loss / samples.len() as f64 });
    }
    parameters
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::specification::{RunFile, demo_run_file, resolve};
    use peergrad_models::data::embedded::{DIGITS, embedded};

    #[test]
    fn the_digits_are_learned() {
        let run = RunFile::parse(&demo_run_file()).unwrap();
        let bytes = embedded(DIGITS).unwrap();
        let loaded = resolve(&run, DIGITS, bytes).unwrap().load(bytes).unwrap();
        let (mut first, mut last) = (None, 0.0);
        let parameters = train_single_process(&loaded, |step| {
            first.get_or_insert(step.loss);
            last = step.loss;
        });
        assert!(last < first.unwrap() / 100.0, "{first:?} {last}");
        let found = loaded.task.evaluate(&parameters);
        assert_eq!(found.samples, 359);
        assert!(found.accuracy >= Some(0.96), "{found:?}");
    }
}
