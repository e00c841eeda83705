//! Invariant 6, every sample once: each step trains samples that no earlier step of the epoch has trained, as many as a batch has,
//! whichever members join and depart. When a run is over, each epoch has trained every sample.
//!
//! # How it works
//! [`SampleCounter`] computes which positions of an epoch each member trains in a step, from the members of its view alone. If a view's
//! record says how the batch is assigned or what is left, that must be the same. The number of samples in a commit, with those reported as
//! left out, must be the size of that batch.
//!
//! # Not here
//! Whether members trained these samples and not others: that shows in the parameters, which [`super::exactly_once`] and the replay check.

use peergrad_core::io::{Committed, Event, FinalState};
use peergrad_core::program::Program;
use peergrad_core::program::loader::Loaded;
use peergrad_core::program::programs::backup_workers::BackupWorkers;
use peergrad_core::program::programs::sync::SyncDataParallel;
use peergrad_protocol::view::View;
use std::any::Any;

use super::{Invariant, Observation};
use crate::host::HostId;
use crate::oracles::sample_counter::SampleCounter;
use crate::oracles::view_chain::ViewChain;
use crate::world::World;

/// Epochs as they must be, counted without the cursor that nodes use.
#[derive(Clone)]
pub struct EverySampleOnce {
    view_chain: ViewChain,
    epochs: SampleCounter,
    /// Number of epochs in the whole run; `None` if the program decides when to end.
    epoch_count: Option<u64>,
    /// By step: its epoch, its number of samples, and how many of them were left out as the first member reported.
    steps: Vec<(u64, u64, u64)>,
}

impl EverySampleOnce {
    /// The invariant for a run of this task.
    #[must_use]
    pub fn new(loaded: &Loaded) -> Self {
        let epoch_count = [SyncDataParallel::NAME, BackupWorkers::NAME]
            .contains(&loaded.program.name())
            .then_some(loaded.config.epochs);
        Self {
            view_chain: ViewChain::default(),
            epochs: SampleCounter::new(loaded),
            epoch_count,
            steps: Vec::new(),
        }
    }

    fn committed(&mut self, host: HostId, committed: &Committed) -> Result<(), String> {
        let Committed { step, epoch, samples, left_out, .. } = *committed;
        while self.epochs.steps() <= step.0 {
            let Some(counted) = self.epochs.count(&self.view_chain) else {
                return Err(format!("{host} commits step {} before any view is installed", step.0));
            };
            self.steps.push((counted.epoch, counted.sample_count(), left_out));
            if let Some(objection) = counted.objection {
                return Err(objection);
            }
        }
        let (due_epoch, due, _) = self.steps[step.0 as usize];
        if (epoch, samples + left_out) == (due_epoch, due) && samples <= due {
            return Ok(());
        }
        Err(format!(
            "{host} commits step {} with {samples} samples and {left_out} left out in epoch {epoch}; its batch has {due}, in epoch {due_epoch}",
            step.0
        ))
    }

    /// A peer has finished the run: its final state must be that of the whole run.
    fn finished(&self, host: HostId, state: &FinalState) -> Result<(), String> {
        let Some(epoch_count) = self.epoch_count else { return Ok(()) };
        let steps = self.epochs.steps();
        if state.steps != steps || !self.epochs.are_over(epoch_count) {
            return Err(format!(
                "{host} has finished after {} steps; {steps} are committed, and {} samples of the last epoch were never assigned",
                state.steps,
                self.epochs.left()
            ));
        }
        let own: u64 = self.steps.iter().map(|(_, samples, _)| samples).sum();
        let samples = own + self.epochs.merged_samples();
        let left_out: u64 = self.steps.iter().map(|(_, _, left_out)| left_out).sum();
        if (state.samples, state.left_out) == (samples - left_out, left_out) {
            return Ok(());
        }
        Err(format!(
            "{host} ends with {} samples trained and {} left out; {samples} were assigned, {left_out} of them left out",
            state.samples, state.left_out
        ))
    }
}

impl Invariant for EverySampleOnce {
    fn name(&self) -> &'static str {
        "every sample once (invariant 6)"
    }

    fn fork(&self) -> Option<Box<dyn Invariant>> {
        Some(Box::new(self.clone()))
    }

    fn merge(&mut self, other: &dyn Invariant, view: &View) {
        let other = other.as_any().and_then(|other| other.downcast_ref::<Self>());
        if let (Some(other), Some(merge)) = (other, view.merge()) {
            let mut epochs = other.epochs.clone();
            epochs.rewind(&other.view_chain, merge.steps.0);
            self.epochs.merge(view.first_step().0, epochs);
        }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn observe(&mut self, observation: &Observation<'_>, _world: &World<'_>) -> Result<(), String> {
        if let Some(step) = self.view_chain.observe(observation) {
            self.epochs.rewind(&self.view_chain, step);
            self.steps.truncate(step as usize);
        }
        match observation {
            Observation::Emitted { host, event: Event::Committed(committed) } => {
                self.committed(*host, committed)
            }
            Observation::Emitted { host, event: Event::Ended(ended) } => match (&ended.outcome, &ended.state)
            {
                (Ok(()), Some(state)) => self.finished(*host, state),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}
