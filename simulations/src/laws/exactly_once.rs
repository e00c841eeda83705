//! Law 3, exactly once: each contribution that a commit claims is in it once. Checked where gradients are integers: there
//! the sum over a batch can be counted out, and one sample twice, or left out, changes it by whole units.
//!
//! # How it works
//! Sums of small integers are exact in `f32`, in whatever order and from whatever parts they are added. So the parameters
//! after a step follow from its samples alone: the integer total, times one over their number, times the rate, each
//! rounded once as the rule rounds it. Where a step does not wait for everybody, the parts of those who were too late for it
//! are in no total.
//!
//! # Not here
//! Which member computes and which one owns: nothing of that shows in an integer total.

use std::any::Any;
use std::collections::BTreeMap;

use peergrad::io::Event;
use peergrad::loader::Training;
use peergrad::optimizer::Rule;
use peergrad::task::Task;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::message::Message;
use peergrad_protocol::view::View;
use peergrad_protocol::{Rank, ViewDigest};

use super::{Law, Observation};
use crate::cluster::World;
use crate::oracles::lineage::Lineage;
use crate::oracles::passes::Passes;
use crate::task::Integers;

/// The totals as they must be.
#[derive(Clone)]
pub struct ExactlyOnce {
    task: Integers,
    training: Training,
    lineage: Lineage,
    passes: Passes,
    parameters: Vec<f32>,
    /// By view and step: who was too late.
    late: BTreeMap<(ViewDigest, u64), Vec<Rank>>,
    /// By step: what its commit must hold.
    digests: BTreeMap<u64, ContentDigest>,
    /// By step with which another lineage is merged: its parameters, and what they weigh.
    inherited: BTreeMap<u64, (Vec<f32>, f32)>,
}

impl ExactlyOnce {
    /// Whether the parameters of such a run can be counted out: plain descent, and batches whose sums are exact.
    #[must_use]
    pub fn applies(task: &Integers, training: &Training) -> bool {
        let is_plain = training.rule == Rule::Sgd { weight_decay: 0.0 };
        let batch_size = training.step_samples().min(u64::from(task.sample_count()));
        is_plain && batch_size.saturating_mul(GRADIENT_MAX) <= EXACT_MAX
    }

    /// The law for a run to which it [applies](Self::applies).
    #[must_use]
    pub fn new(task: Integers, training: &Training) -> Self {
        let mut parameters = vec![0.0; task.manifest().parameter_count()];
        task.initial(training.seed, &mut parameters);
        let passes = Passes::of(training.step_samples(), u64::from(task.sample_count()));
        let (lineage, late, digests) = (Lineage::default(), BTreeMap::new(), BTreeMap::new());
        let inherited = BTreeMap::new();
        Self { task, training: training.clone(), lineage, passes, parameters, late, digests, inherited }
    }

    /// The digest after a step, counting up to it; `None` if nobody has installed a view.
    fn digest(&mut self, step: u64) -> Option<ContentDigest> {
        while self.passes.steps() <= step {
            let number = self.passes.steps();
            let counted = self.passes.count(&self.lineage)?;
            let order = self.training.order(counted.pass, self.task.sample_count());
            let view = self.lineage.of_step(number)?.digest;
            let late = self.late.get(&(view, number)).map_or(&[][..], |late| late);
            let samples = counted.samples_but_for(late, &order);
            self.descend(number, &samples);
            if let Some((theirs, share)) =
                self.inherited.get(&number).filter(|_| self.lineage.merge_of(number).is_some())
            {
                let pairs = self.parameters.iter_mut().zip(theirs);
                pairs.for_each(|(ours, theirs)| *ours += (theirs - *ours) * share);
            }
            let digest = ContentDigest::of(bytemuck::cast_slice(&self.parameters));
            self.digests.insert(number, digest);
        }
        self.digests.get(&step).copied()
    }

    /// The run goes back: what was trained beyond this step is in no total any more.
    fn rewind(&mut self, step: u64) {
        self.passes.rewind(&self.lineage, 0);
        self.parameters.fill(0.0);
        self.task.initial(self.training.seed, &mut self.parameters);
        self.digests.clear();
        if step > 0 {
            self.digest(step - 1);
        }
    }

    /// One step against the mean of the samples' gradients.
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

impl Law for ExactlyOnce {
    fn name(&self) -> &'static str {
        "exactly once (law 3)"
    }

    fn fork(&self) -> Option<Box<dyn Law>> {
        Some(Box::new(self.clone()))
    }

    fn merge(&mut self, other: &dyn Law, view: &View) {
        let other = other.as_any().and_then(|other| other.downcast_ref::<Self>());
        if let (Some(other), Some(merge)) = (other, view.merge()) {
            let mut other = other.clone();
            other.rewind(merge.steps.0);
            self.inherited.insert(view.first_step().0, (other.parameters, merge.share()));
            self.passes.merge(view.first_step().0, other.passes);
        }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn observe(&mut self, observation: &Observation<'_>, _world: &World<'_>) -> Result<(), String> {
        if let Some(step) = self.lineage.observe(observation) {
            self.rewind(step);
        }
        if let Observation::Sent { message: Message::Chosen(chosen), .. } = observation {
            self.late.insert((chosen.view, chosen.step.0), chosen.late.clone());
        }
        let Observation::Told { host, event: Event::Committed(committed) } = observation else {
            return Ok(());
        };
        let Some(told) = committed.digest else { return Ok(()) };
        if self.digest(committed.step.0) == Some(told) {
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
    use peergrad::specification::RunFile;

    use super::*;
    use crate::workload::Workload;

    #[test]
    fn only_what_can_be_counted_out_is() {
        let applies = |run: &str| {
            let workload = Workload::integers(&RunFile::parse(run).unwrap(), 100, 640).unwrap();
            ExactlyOnce::applies(workload.integers.as_ref().unwrap(), &workload.loaded.training)
        };
        let optimizer = "[optimizer]\nrule = \"sgd\"\nrate";
        for run in ["batch = 64\npasses = 4", "batch = 60\npasses = 100000"] {
            assert!(applies(&format!("{run}\n{optimizer} = 0.3")), "{run}");
        }
        for run in [
            "".to_owned(),
            "batch = 64\npasses = 4\n[optimizer]\nrule = \"adam\"\nrate = 0.5".to_owned(),
            format!("batch = 64\npasses = 4\n{optimizer} = 0.5\nweight_decay = 0.1"),
        ] {
            assert!(!applies(&run), "{run}");
        }
    }
}
