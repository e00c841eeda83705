//! Law 6, every sample once: step by step, those samples are trained that no step of the pass has trained before, as many as
//! a batch has, whoever comes and goes; and when a run is over, each pass has trained every one.
//!
//! # How it works
//! [`Passes`] counts out which positions of a pass are whose in a step, from the members of its view alone; where a view's
//! record says how the batch is dealt or what is left, that must be the same. A commit must claim as many samples as that
//! makes, with those that are said to be left out.
//!
//! # Not here
//! Whether members trained on these samples and not on others: that shows in the parameters, and [`super::exactly_once`]
//! and the replay look at those.

use peergrad::io::{Committed, Event, FinalState};
use peergrad::loader::Loaded;
use peergrad::program::Program;
use peergrad::programs::quorum::Quorum;
use peergrad::programs::ring::Ring;
use peergrad_protocol::view::View;
use std::any::Any;

use super::{Law, Observation};
use crate::cluster::World;
use crate::host::HostId;
use crate::oracles::lineage::Lineage;
use crate::oracles::passes::Passes;

/// Passes as they must be, counted out without the ledger that nodes use.
#[derive(Clone)]
pub struct EverySampleOnce {
    lineage: Lineage,
    passes: Passes,
    /// Passes of the whole run; `None`: the program ends when it likes.
    pass_count: Option<u64>,
    /// By step: its pass, its samples, and how many of them were left out as the first member said.
    steps: Vec<(u64, u64, u64)>,
}

impl EverySampleOnce {
    /// The law for a run of this task.
    #[must_use]
    pub fn new(loaded: &Loaded) -> Self {
        let pass_count =
            [Ring::NAME, Quorum::NAME].contains(&loaded.program.name()).then_some(loaded.training.passes);
        Self { lineage: Lineage::default(), passes: Passes::new(loaded), pass_count, steps: Vec::new() }
    }

    fn committed(&mut self, host: HostId, committed: &Committed) -> Result<(), String> {
        let Committed { step, pass, samples, left_out, .. } = *committed;
        while self.passes.steps() <= step.0 {
            let Some(counted) = self.passes.count(&self.lineage) else {
                return Err(format!("{host} commits step {}, and nobody has installed a view", step.0));
            };
            self.steps.push((counted.pass, counted.sample_count(), left_out));
            if let Some(objection) = counted.objection {
                return Err(objection);
            }
        }
        let (due_pass, due, _) = self.steps[step.0 as usize];
        if (pass, samples + left_out) == (due_pass, due) && samples <= due {
            return Ok(());
        }
        Err(format!(
            "{host} commits step {} with {samples} samples and {left_out} left out in pass {pass}; its batch has {due}, in pass {due_pass}",
            step.0
        ))
    }

    /// A peer has finished the run and leaves a state: that of the whole run.
    fn finished(&self, host: HostId, state: &FinalState) -> Result<(), String> {
        let Some(pass_count) = self.pass_count else { return Ok(()) };
        let steps = self.passes.steps();
        if state.steps != steps || !self.passes.are_over(pass_count) {
            return Err(format!(
                "{host} has finished after {} steps; {steps} are committed, and {} samples of the last pass were never dealt",
                state.steps,
                self.passes.left()
            ));
        }
        let own: u64 = self.steps.iter().map(|(_, samples, _)| samples).sum();
        let samples = own + self.passes.inherited();
        let left_out: u64 = self.steps.iter().map(|(_, _, left_out)| left_out).sum();
        if (state.samples, state.left_out) == (samples - left_out, left_out) {
            return Ok(());
        }
        Err(format!(
            "{host} leaves a state of {} samples and {} left out; {samples} were dealt, {left_out} of them left out",
            state.samples, state.left_out
        ))
    }
}

impl Law for EverySampleOnce {
    fn name(&self) -> &'static str {
        "every sample once (law 6)"
    }

    fn fork(&self) -> Option<Box<dyn Law>> {
        Some(Box::new(self.clone()))
    }

    fn merge(&mut self, other: &dyn Law, view: &View) {
        let other = other.as_any().and_then(|other| other.downcast_ref::<Self>());
        if let (Some(other), Some(merge)) = (other, view.merge()) {
            let mut passes = other.passes.clone();
            passes.rewind(&other.lineage, merge.steps.0);
            self.passes.merge(view.first_step().0, passes);
        }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn observe(&mut self, observation: &Observation<'_>, _world: &World<'_>) -> Result<(), String> {
        if let Some(step) = self.lineage.observe(observation) {
            self.passes.rewind(&self.lineage, step);
            self.steps.truncate(step as usize);
        }
        match observation {
            Observation::Told { host, event: Event::Committed(committed) } => {
                self.committed(*host, committed)
            }
            Observation::Told { host, event: Event::Ended(ended) } => match (&ended.outcome, &ended.state) {
                (Ok(()), Some(state)) => self.finished(*host, state),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}
