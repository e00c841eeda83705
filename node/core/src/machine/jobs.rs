//! The jobs that are running, and the purpose of each: the driver returns a result under the job's id.

use std::collections::BTreeMap;

use peergrad_protocol::StepNumber;

use crate::io::{Job, JobId, JobOutput, Output};

/// What the result of a job is for.
pub(crate) enum Purpose {
    /// To load the run's task; the result is that of the loader.
    Load,
    /// To evaluate the final parameters.
    Evaluate,
    /// To evaluate the parameters of two branches, and the merged ones.
    EvaluateMerge,
    /// A computation that the program waits for in this step.
    Program(StepNumber, Box<dyn FnOnce(JobOutput) + Send>),
}

/// The jobs that are running.
#[derive(Default)]
pub(crate) struct Jobs {
    /// What each running job is for.
    purposes: BTreeMap<JobId, Purpose>,
    /// How many jobs were started, which is the id of the next one.
    count: u64,
}

impl Jobs {
    /// Starts a job.
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

    /// The step in which the program waits for a job; `None` if it waits for none.
    pub(crate) fn computing(&self) -> Option<StepNumber> {
        self.purposes.values().find_map(|purpose| match purpose {
            Purpose::Program(step, _) => Some(*step),
            Purpose::Load | Purpose::Evaluate | Purpose::EvaluateMerge => None,
        })
    }

    /// Removes a finished job and returns its purpose; `None` if nothing waits for its result any more.
    pub(crate) fn finish(&mut self, id: JobId) -> Option<Purpose> {
        self.purposes.remove(&id)
    }
}
