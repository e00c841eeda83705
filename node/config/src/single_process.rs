//! The plain reference: trains a run in one process with one loop. Tests compare the results of swarms with it, number by number.
//!
//! Batches, their order, learning rates, optimizer, parameter groups and clipping are those of a run with many peers. Only the order of summation within a batch
//! differs, so results agree closely but not in every bit.

use peergrad_core::program::loader::Loaded;
use peergrad_models::optimizer::GroupedOptimizer;
use peergrad_models::task::{StepInfo, Task};
use peergrad_protocol::cursor::{DataCursor, Span};

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

/// A training in one process, between two steps.
pub struct SingleProcess {
    loaded: Loaded,
    optimizer: GroupedOptimizer,
    /// The parameters after the steps so far, (parameters).
    parameters: Vec<f32>,
    /// Room for a gradient, (parameters).
    vector: Vec<f32>,
    /// The moments of the optimizer, (moments, parameters), and room for the next ones.
    moments: [Vec<f32>; 2],
    cursor: DataCursor,
    /// The order of samples in the cursor's epoch.
    order: Vec<u32>,
    /// The number of the next step.
    step: u64,
}

impl SingleProcess {
    /// A training that has taken no step.
    #[must_use]
    pub fn new(loaded: Loaded) -> Self {
        let count = loaded.manifest.parameter_count();
        let mut parameters = vec![0.0; count];
        loaded.initial(&mut parameters);
        let optimizer = loaded.config.optimizer();
        let moments = vec![0.0; count * optimizer.rule.moment_count()];
        let order = loaded.config.order(0, loaded.task.sample_count());
        Self {
            optimizer,
            parameters,
            vector: vec![0.0; count],
            moments: [moments.clone(), moments],
            cursor: DataCursor::default(),
            order,
            step: 0,
            loaded,
        }
    }

    /// The model and its data.
    #[must_use]
    pub fn task(&self) -> &dyn Task {
        &*self.loaded.task
    }

    /// The parameters after the steps so far, (parameters).
    #[must_use]
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// How many samples were trained so far.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.cursor.taken(self.loaded.task.sample_count().into())
    }

    /// Takes the next step of the first `epochs` epochs; `None` if there is none.
    ///
    /// # Panics
    /// There are 2^32 steps.
    pub fn advance(&mut self, epochs: u64) -> Option<SingleProcessStep> {
        let Self { loaded, parameters, vector, moments: [old, new], .. } = self;
        let (task, training) = (&loaded.task, &loaded.config);
        let sample_count = task.sample_count();
        let (batch, after) = self.cursor.next_batch(training.batch_size, u64::from(sample_count));
        if batch.epoch >= epochs {
            return None;
        }
        if batch.epoch != self.cursor.epoch {
            self.order = training.order(batch.epoch, sample_count);
        }
        self.cursor = after;
        let of = |span: &Span| &self.order[span.start as usize..span.end as usize];
        let samples: Vec<u32> = batch.spans.iter().flat_map(of).copied().collect();
        let step = self.step;
        let update_count = u32::try_from(step + 1).expect("a run in one process has fewer than 2^32 steps");
        let rate = training.schedule.rate(step);
        let info = StepInfo::alone(step, batch.epoch, rate);
        let loss = task.contribute(&info, parameters, &samples, vector);
        let count = samples.len() as u64;
        let clip_factor = self.optimizer.clip_factor_of(vector, count);
        let update = self.optimizer.update(rate, update_count, count, clip_factor);
        update.apply(0, parameters, vector, old, new);
        std::mem::swap(parameters, vector);
        std::mem::swap(old, new);
        self.step += 1;
        Some(SingleProcessStep { step, epoch: batch.epoch, loss: loss / samples.len() as f64 })
    }
}

/// Trains to the end of the last epoch and returns the parameters; `watch` is called after each step.
pub fn train_single_process(loaded: &Loaded, mut watch: impl FnMut(SingleProcessStep)) -> Vec<f32> {
    let mut training = SingleProcess::new(loaded.clone());
    while let Some(step) = training.advance(loaded.config.epochs) {
        watch(step);
    }
    training.parameters
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
