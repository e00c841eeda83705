//! Jobs under way: what each answer is for, by the name under which the driver hands it back.

use std::collections::BTreeMap;

use peergrad_protocol::StepNumber;

use crate::io::{Job, JobId, JobOutput, Output};

/// What a job's answer is for.
pub(crate) enum Purpose {
    /// A loader's answer.
    Load,
    /// How well the final parameters do.
    Evaluate,
    /// How well the parameters of two lineages do, and those that came of them.
    EvaluateMerge,
    /// Something that the program waits for, in a step.
    Program(StepNumber, Box<dyn FnOnce(JobOutput) + Send>),
}

/// The jobs that have been handed out.
#[derive(Default)]
pub(crate) struct Jobs {
    purposes: BTreeMap<JobId, Purpose>,
    count: u64,
}

impl Jobs {
    /// Hands out a job.
    pub(crate) fn start(
        &mut self,
        purpose: Purpose,
        cost: u64,
        work: Box<dyn FnOnce() -> JobOutput + Send>,
        out: &mut Vec<Output>,
    ) {
        let id = JobId(self.count);
        self.count += 1;
        self.purposes.insert(id, purpose);
        out.push(Output::Compute(Job { id, cost, work }));
    }

    /// The step for which the program waits for a job.
    pub(crate) fn computing(&self) -> Option<StepNumber> {
        self.purposes.values().find_map(|purpose| match purpose {
            Purpose::Program(step, _) => Some(*step),
            Purpose::Load | Purpose::Evaluate | Purpose::EvaluateMerge => None,
        })
    }

    /// What the answer of a job is for; `None` if nobody waits for it any more.
    pub(crate) fn finish(&mut self, id: JobId) -> Option<Purpose> {
        self.purposes.remove(&id)
    }
}
