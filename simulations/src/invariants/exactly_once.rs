//! Invariant 3, exactly once: each contribution that a commit claims is in it once. It is checked where gradients are integers: there the
//! sum over a batch can be computed exactly, and a sample that is there twice or missing changes it by whole units.
//!
//! # How it works
//! Sums of small integers are exact in `f32`, in whatever order and from whatever parts they are added. So the parameters after a step
//! follow from its samples alone: the integer total, times one over their number, times the rate, each rounded once as the rule rounds it.
//! If a step does not wait for all members, its total is without the late contributions.
//!
//! # Not here
//! Which member computes and which one owns: the total does not depend on it.

use std::any::Any;
use std::collections::BTreeMap;

use peergrad_core::io::Event;
use peergrad_core::program::loader::TrainingConfig;
use peergrad_models::optimizer::Optimizer;
use peergrad_models::task::Task;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::message::{Message, TrainingMessage};
use peergrad_protocol::view::View;
use peergrad_protocol::{Rank, ViewDigest};

use super::{Invariant, Observation};
use crate::oracles::sample_counter::SampleCounter;
use crate::oracles::view_chain::ViewChain;
use crate::task::Integers;
use crate::world::World;

/// The totals as they must be.
#[derive(Clone)]
pub struct ExactlyOnce {
    task: Integers,
    training: TrainingConfig,
    view_chain: ViewChain,
    epochs: SampleCounter,
    parameters: Vec<f32>,
    /// By view and step: the members whose contributions were late.
    late: BTreeMap<(ViewDigest, u64), Vec<Rank>>,
    /// By step: the digest that its commit must have.
    digests: BTreeMap<u64, ContentDigest>,
    /// By step with which another branch is merged: its parameters, and their share in the average.
    merged_branches: BTreeMap<u64, (Vec<f32>, f32)>,
}

impl ExactlyOnce {
    /// Whether the parameters of such a run can be computed exactly: plain gradient descent, and batches with exact sums.
    #[must_use]
    pub fn applies(task: &Integers, training: &TrainingConfig) -> bool {
        let has_steps = training.round_duration.is_none();
        let is_plain = training.optimizer() == Optimizer::SGD.into();
        let is_exact_sync = has_steps && is_plain;
        let batch_size = training.step_samples().min(u64::from(task.sample_count()));
        is_exact_sync && batch_size.saturating_mul(GRADIENT_MAX) <= EXACT_MAX
    }

    /// The invariant for a run to which it [applies](Self::applies).
    #[must_use]
    pub fn new(task: Integers, training: &TrainingConfig) -> Self {
        let mut parameters = vec![0.0; task.manifest().parameter_count()];
        task.initial(training.seed, &mut parameters);
        let epochs = SampleCounter::of(training.step_samples(), u64::from(task.sample_count()));
        let (view_chain, late, digests) = (ViewChain::default(), BTreeMap::new(), BTreeMap::new());
        let merged_branches = BTreeMap::new();
        Self {
            task,
            training: training.clone(),
            view_chain,
            epochs,
            parameters,
            late,
            digests,
            merged_branches,
        }
    }

    /// The digest after a step, counting up to it; `None` if there is no view for the step.
    fn digest(&mut self, step: u64) -> Option<ContentDigest> {
        while self.epochs.steps() <= step {
            let number = self.epochs.steps();
            let counted = self.epochs.count(&self.view_chain)?;
            let order = self.training.order(counted.epoch, self.task.sample_count());
            let view = self.view_chain.of_step(number)?.digest;
            let late = self.late.get(&(view, number)).map_or(&[][..], |late| late);
            let samples = counted.samples_but_for(late, &order);
            self.descend(number, &samples);
            if let Some((theirs, share)) =
                self.merged_branches.get(&number).filter(|_| self.view_chain.merge_of(number).is_some())
            {
                let pairs = self.parameters.iter_mut().zip(theirs);
                pairs.for_each(|(ours, theirs)| *ours += (theirs - *ours) * share);
            }
            let digest = ContentDigest::of(bytemuck::cast_slice(&self.parameters));
            self.digests.insert(number, digest);
        }
        self.digests.get(&step).copied()
    }

    /// The run goes back to a checkpoint: samples of later steps are in no total any more.
    fn rewind(&mut self, step: u64) {
        self.epochs.rewind(&self.view_chain, 0);
        self.parameters.fill(0.0);
        self.task.initial(self.training.seed, &mut self.parameters);
        self.digests.clear();
        if step > 0 {
            self.digest(step - 1);
        }
    }

    /// One step of gradient descent with the mean of the samples' gradients.
    fn descend(&mut self, step: u64, samples: &[u32]) {
        if samples.is_empty() {
            return;
        }
        let share = 1.0 / samples.len() as f32;
        let rate = self.training.schedule.rate(step) as f32;
        for (parameter, total) in self.parameters.iter_mut().zip(self.task.sum(samples)) {
            *parameter -= rate * (total as f32 * share);
        }
    }
}

impl Invariant for ExactlyOnce {
    fn name(&self) -> &'static str {
        "exactly once (invariant 3)"
    }

    fn fork(&self) -> Option<Box<dyn Invariant>> {
        Some(Box::new(self.clone()))
    }

    fn merge(&mut self, other: &dyn Invariant, view: &View) {
        let other = other.as_any().and_then(|other| other.downcast_ref::<Self>());
        if let (Some(other), Some(merge)) = (other, view.merge()) {
            let mut other = other.clone();
            other.rewind(merge.steps.0);
            self.merged_branches.insert(view.first_step().0, (other.parameters, merge.share()));
            self.epochs.merge(view.first_step().0, other.epochs);
        }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn observe(&mut self, observation: &Observation<'_>, _world: &World<'_>) -> Result<(), String> {
        if let Some(step) = self.view_chain.observe(observation) {
            self.rewind(step);
        }
        if let Observation::Sent {
            message: Message::InView { view, message: TrainingMessage::StepContributors(chosen) },
            ..
        } = observation
        {
            self.late.insert((*view, chosen.step.0), chosen.late.clone());
        }
        let Observation::Emitted { host, event: Event::Committed(committed) } = observation else {
            return Ok(());
        };
        let Some(digest) = committed.digest else { return Ok(()) };
        if self.digest(committed.step.0) == Some(digest) {
            return Ok(());
        }
        Err(format!(
            "step {} at {host}: the parameters do not hold each contribution exactly once",
            committed.step.0
        ))
    }
}

/// The largest element of a sample's gradient.
const GRADIENT_MAX: u64 = 2;
/// Integers up to this are exact in `f32`.
const EXACT_MAX: u64 = 1 << 24;

#[cfg(test)]
mod tests {
    use peergrad_config::specification::RunFile;

    use super::*;
    use crate::workload::Workload;

    #[test]
    fn the_invariant_applies_only_where_samples_can_be_counted() {
        let applies = |run: &str| {
            let workload = Workload::integers(&RunFile::parse(run).unwrap(), 100, 640).unwrap();
            ExactlyOnce::applies(workload.integers.as_ref().unwrap(), &workload.loaded.config)
        };
        let optimizer = "[optimizer]\nrule = \"sgd\"\nrate";
        let groups = "[[optimizer.groups]]\ntensors = [\"integers\"]\nrate_factor = 0.5";
        for run in ["batch = 64\nepochs = 4", "batch = 60\nepochs = 100000"] {
            assert!(applies(&format!("{run}\n{optimizer} = 0.3")), "{run}");
        }
        for run in [
            "".to_owned(),
            "batch = 64\nepochs = 4\n[optimizer]\nrule = \"adam\"\nrate = 0.5".to_owned(),
            format!("batch = 64\nepochs = 4\n{optimizer} = 0.5\nweight_decay = 0.1"),
            format!("batch = 64\nepochs = 4\n{optimizer} = 0.5\n{groups}"),
            format!("batch = 64\nepochs = 4\n{optimizer} = 0.5\nclip_norm = 1.0"),
        ] {
            assert!(!applies(&run), "{run}");
        }
    }
}
