//! The jobs that are running, and the purpose of each: the driver returns a result under the job's id.

use std::collections::BTreeMap;
use std::time::Duration;

use peergrad_protocol::limits::BUSY_MAX;
use peergrad_protocol::{Instant, StepNumber};

use super::speed_meter::SpeedMeter;
use crate::io::{Job, JobId, Output, Work};
use crate::program::command::JobReply;

/// What the result of a job is for.
pub(crate) enum Purpose {
    /// To load the run's task; the result is that of the loader.
    Load,
    /// To evaluate the final parameters.
    Evaluate,
    /// To evaluate the parameters after so many steps, during the run.
    EvaluateStep(StepNumber),
    /// To evaluate the parameters of two branches, and the merged ones.
    EvaluateMerge,
    /// A computation of the program.
    Program(ProgramJob),
}

/// A computation that the program waits for.
pub(crate) struct ProgramJob {
    /// The step in which it waits.
    pub(crate) step: StepNumber,
    /// How many samples it computes.
    pub(crate) samples: u64,
    /// When it was started.
    pub(crate) began: Instant,
    /// Where its result goes.
    pub(crate) reply: JobReply,
}

/// The jobs that are running.
#[derive(Default)]
pub(crate) struct Jobs {
    /// What each running job is for.
    purposes: BTreeMap<JobId, Purpose>,
    /// How many jobs were started, which is the id of the next one.
    count: u64,
    /// How fast the program's jobs were.
    speed: SpeedMeter,
    /// Until when the program is busy, or was, by the word of this peer's user.
    busy_until: Instant,
}

impl Jobs {
    /// Starts a job.
    pub(crate) fn start(&mut self, purpose: Purpose, cost: u64, work: Work, out: &mut Vec<Output>) {
        let id = JobId(self.count);
        self.count += 1;
        let is_of_program = matches!(purpose, Purpose::Program(_));
        self.purposes.insert(id, purpose);
        out.push(Output::Compute(Job { id, cost, is_of_program, work }));
    }

    /// The step in which the program waits for a job; `None` if it waits for none.
    pub(crate) fn computing(&self) -> Option<StepNumber> {
        self.purposes.values().find_map(|purpose| match purpose {
            Purpose::Program(job) => Some(job.step),
            Purpose::Load | Purpose::Evaluate | Purpose::EvaluateStep(_) | Purpose::EvaluateMerge => None,
        })
    }

    /// This peer's user says for how long the program is busy: zero if it is not.
    pub(crate) fn set_busy(&mut self, now: Instant, time: Duration) {
        self.busy_until = now.after(time.min(BUSY_MAX));
    }

    /// The step in which the program waits for a job, and until when it is busy, or was.
    pub(crate) fn program(&self) -> (Option<StepNumber>, Instant) {
        (self.computing(), self.busy_until)
    }

    /// The step for whose sums a job of the program computes, by its turn; `None` if it computes something else, or if nothing waits for it.
    pub(crate) fn turn_of_sums(&self, id: JobId) -> Option<u64> {
        match self.purposes.get(&id)? {
            Purpose::Program(ProgramJob { reply: JobReply::Sums { turn, .. }, .. }) => Some(*turn),
            _ => None,
        }
    }

    /// Removes a finished job and returns its purpose; `None` if nothing waits for its result any more.
    pub(crate) fn finish(&mut self, now: Instant, id: JobId) -> Option<Purpose> {
        let purpose = self.purposes.remove(&id)?;
        if let Purpose::Program(job) = &purpose {
            self.speed.note(job.began, now, job.samples);
        }
        Some(purpose)
    }

    /// How many samples the program's jobs compute in a minute; `None` before there were enough of them.
    pub(crate) fn samples_per_minute(&self) -> Option<u32> {
        self.speed.samples_per_minute()
    }
}
