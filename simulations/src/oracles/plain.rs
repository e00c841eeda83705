//! The plain oracle: the same training in one process and one loop. It adds up in another order, so its results are close and not equal.
//!
//! It uses the batches of the commit log. While no member departs in the middle of a step, these are the batches of a run with one peer;
//! otherwise a batch is what was left of it, and the returned samples come later. If the swarm lost optimizer state, the oracle drops it
//! too.
//!
//! # Rounding
//! A scenario says how far losses may be apart. In long runs another order of sums alone can have a larger effect. The oracle measures it
//! when a loss differs by more: it runs the plain loop once more with every batch in reverse order, and allows ten times that difference.
//!
//! With tanh units it stays below 1e-6 through four thousand steps of letters. With ReLU units it jumps when it moves the input of a unit
//! across zero, for one sample, and is 5e-3 at the end; which order does so at which step is chance.

use peergrad_core::io::Committed;
use peergrad_core::program::loader::Loaded;
use peergrad_models::task::StepInfo;
use peergrad_protocol::manifest::Chunks;

use super::sample_counter::SampleCounter;
use super::view_chain::ViewChain;

/// Compares the losses of committed steps with those of the plain loop. Returns the greatest relative difference.
///
/// # Errors
/// A description of the first loss that differs by more than `apart_max` and more than rounding explains.
pub fn compare<'a>(
    loaded: &Loaded,
    view_chain: &ViewChain,
    committed: impl IntoIterator<Item = &'a Committed>,
    apart_max: f64,
) -> Result<f64, String> {
    let mut plain = Plain::new(loaded, view_chain, Order::Assigned);
    let mut rounding = Rounding::new(loaded, view_chain);
    let mut losses = Vec::new();
    let mut largest = 0.0;
    for ours in committed {
        let step = plain.epochs.steps();
        if ours.step.0 != step {
            return Err(format!("step {} is committed, but step {step} is not", ours.step.0));
        }
        let theirs =
            plain.step().ok_or_else(|| format!("step {step} is committed, but no view is installed"))?;
        losses.push(theirs);
        let Some(theirs) = theirs else {
            // All members with a part of this step have departed.
            continue;
        };
        let apart = distance(ours.loss, theirs);
        if apart > apart_max || apart.is_nan() {
            let explained = ROUNDING_FACTOR * rounding.largest_of(&losses);
            if apart > explained || apart.is_nan() {
                return Err(format!(
                    "the loss of step {step} is {}, and {theirs} in the plain loop: the relative difference is {apart:.0e}; {apart_max:.0e} is allowed, and rounding explains {explained:.0e}",
                    ours.loss
                ));
            }
        }
        largest = f64::max(largest, apart);
    }
    Ok(largest)
}

/// The relative difference of two losses.
fn distance(loss: f64, expected: f64) -> f64 {
    (loss - expected).abs() / expected.abs().max(LOSS_MIN)
}

/// The effect of rounding alone on the losses of the plain loop; measured only as far as needed.
struct Rounding<'a> {
    backwards: Plain<'a>,
    largest: f64,
}

impl<'a> Rounding<'a> {
    fn new(loaded: &'a Loaded, view_chain: &'a ViewChain) -> Self {
        Self { backwards: Plain::new(loaded, view_chain, Order::Backwards), largest: 0.0 }
    }

    /// The greatest change of these losses by another order of sums; the losses are those of the plain loop from its first step on.
    fn largest_of(&mut self, losses: &[Option<f64>]) -> f64 {
        let from = self.backwards.epochs.steps() as usize;
        for loss in &losses[from..] {
            if let (Some(Some(backwards)), Some(loss)) = (self.backwards.step(), loss) {
                self.largest = self.largest.max(distance(backwards, *loss));
            }
        }
        self.largest
    }
}

/// The order in which a batch is added up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Assigned,
    Backwards,
}

/// The plain loop, between two steps.
struct Plain<'a> {
    loaded: &'a Loaded,
    view_chain: &'a ViewChain,
    order: Order,
    epochs: SampleCounter,
    chunks: Chunks,
    parameters: Vec<f32>,
    vector: Vec<f32>,
    /// By chunk: its moments, one after the other, and how many updates it has had.
    moments: Vec<(Vec<f32>, u32)>,
}

impl<'a> Plain<'a> {
    fn new(loaded: &'a Loaded, view_chain: &'a ViewChain, order: Order) -> Self {
        let chunks = loaded.manifest.chunks();
        let mut parameters = vec![0.0; chunks.parameter_count()];
        loaded.initial(&mut parameters);
        let moment_count = loaded.owner_moments();
        let moments = |chunk: usize| (vec![0.0; chunks.range(chunk).len() * moment_count], 0);
        let moments = (0..chunks.count()).map(moments).collect();
        let (epochs, vector) = (SampleCounter::new(loaded), parameters.clone());
        Self { loaded, view_chain, order, epochs, chunks, vector, parameters, moments }
    }

    /// Does the next step and returns the mean loss of its samples, if it has any. `None` if there is no view for the step.
    fn step(&mut self) -> Option<Option<f64>> {
        let number = self.epochs.steps();
        let counted = self.epochs.count(self.view_chain)?;
        let order = self.loaded.config.order(counted.epoch, self.loaded.task.sample_count());
        let mut samples = counted.samples(&order);
        if self.order == Order::Backwards {
            samples.reverse();
        }
        for chunk in self.view_chain.restarted_with(number) {
            let (moments, updates) = &mut self.moments[chunk];
            (*updates, *moments) = (0, vec![0.0; moments.len()]);
        }
        if samples.is_empty() {
            return Some(None);
        }
        let (task, training) = (&self.loaded.task, &self.loaded.config);
        let (rate, optimizer) = (training.schedule.rate(number), training.optimizer());
        let info = StepInfo::alone(number, counted.epoch, rate);
        let loss = task.contribute(&info, &self.parameters, &samples, &mut self.vector);
        let sample_count = samples.len() as u64;
        let clip_factor = optimizer.clip_factor_of(&self.vector, sample_count);
        for chunk in 0..self.chunks.count() {
            let (moments, updates) = &mut self.moments[chunk];
            *updates += 1;
            let (range, old) = (self.chunks.range(chunk), moments.clone());
            let update = optimizer.update(rate, *updates, sample_count, clip_factor);
            update.apply(
                range.start,
                &self.parameters[range.clone()],
                &mut self.vector[range],
                &old,
                moments,
            );
        }
        std::mem::swap(&mut self.parameters, &mut self.vector);
        Some(Some(loss / samples.len() as f64))
    }
}

/// The name of the plain oracle.
pub const PLAIN: &str = "plain trainer";
/// The swarm adds up in yet another order, and how far that leads is a matter of luck.
const ROUNDING_FACTOR: f64 = 10.0;
/// Below this, losses are compared absolutely.
const LOSS_MIN: f64 = 1e-6;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use peergrad_config::single_process::train_single_process;
    use peergrad_config::specification::RunFile;
    use peergrad_models::optimizer::Schedule;
    use peergrad_protocol::id::ViewDigest;

    use peergrad_protocol::view::{Member, View};
    use peergrad_protocol::{Incarnation, PeerId, RunId, StepNumber};

    use super::*;
    use crate::workload::Workload;

    fn alone() -> ViewChain {
        let member =
            Member { peer: PeerId([1; 32]), incarnation: Incarnation(1), addresses: vec![], capacity: 1 };
        let view = View::first(RunId([1; 32]), vec![member]);
        let mut view_chain = ViewChain::default();
        view_chain.install(&Arc::new(view), ViewDigest([0; 32]));
        view_chain
    }

    #[test]
    fn without_view_changes_the_oracle_matches_training_alone() {
        let run = RunFile::parse("batch = 24\nepochs = 3").unwrap();
        let loaded = Workload::squares(&run, 300, 100).unwrap().loaded;
        let mut losses = Vec::new();
        let parameters = train_single_process(&loaded, |step| losses.push(step.loss));
        let view_chain = alone();
        let mut plain = Plain::new(&loaded, &view_chain, Order::Assigned);
        for (step, loss) in losses.into_iter().enumerate() {
            assert_eq!(plain.step(), Some(Some(loss)), "step {step}");
        }
        assert_eq!(plain.parameters, parameters);
        assert!(plain.epochs.are_over(3));
    }

    #[test]
    fn rounding_errors_are_tolerated_and_mistakes_are_not() {
        let run = RunFile::parse("batch = 64\nepochs = 10").unwrap();
        let loaded = Workload::digits(&run).unwrap().loaded;
        let view_chain = alone();
        let mut backwards = Plain::new(&loaded, &view_chain, Order::Backwards);
        let committed = |step| Committed {
            step: StepNumber(step),
            epoch: 0,
            steps_expected: 200,
            loss: backwards.step().unwrap().unwrap(),
            samples: 64,
            left_out: 0,
            may_be_late: false,
            is_own: false,
            rate: 0.0,
            digest: None,
        };
        let committed: Vec<Committed> = (0..200).map(committed).collect();
        assert!(compare(&loaded, &view_chain, &committed, 0.0).unwrap() > 0.0);
        // Rates that are too high by one in a thousand.
        let mut other = loaded.clone();
        other.config.schedule = Schedule::constant(other.config.schedule.rate(0) * 1.001);
        let words = compare(&other, &view_chain, &committed, 0.0).unwrap_err();
        assert!(words.contains("the loss of step 1 is"), "{words}");
    }
}
