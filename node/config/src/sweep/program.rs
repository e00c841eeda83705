//! The algorithm of a sweep at one worker: it claims a job, trains it alone, and adds the result.
//!
//! ```text
//! worker                               owner of the job's row
//!   read all rows                -->
//!   claim the next open job      -->   the first claim stays
//!   read again: is it mine?      <--
//!   train the trial alone, from its beginning
//!   the result, and the end of the turn: both or neither   -->   count 1
//! ```
//! # Exactly once
//! A worker's *turn* is a sample of the dealt data. If the worker is lost in a turn, another one gets the same turn, finds its claim in the
//! table, and trains the job. The result and the end of the turn are one transaction. So each job counts once.
//!
//! # Waiting
//! A worker that finds no open job waits a moment and reads again. After some time it ends its turn, since its next turn may be that of a
//! lost worker, which has a claim. There are more turns than anybody needs: a sweep ends when all jobs are done.

use std::sync::Arc;

use peergrad_core::program::context::{Clock, Context, Interrupted};
use peergrad_core::program::loader::Loaded;
use peergrad_core::program::{Flow, Program, ProgramFactory};
use peergrad_models::data::bytes::DataBytes;
use peergrad_models::task::{Evaluation, Task};
use peergrad_protocol::manifest::Manifest;
use peergrad_protocol::message::SampleStats;

use super::host::{SweepHost, SweepProgress};
use super::results::{JobState, ROW_WIDTH, TABLE, TrialResult, Turn, row_of, states, table_spec};
use super::schedule::{Job, Schedule};
use super::specification::{SweepSpecification, TURNS};
use crate::single_process::SingleProcess;
use crate::specification::memory::MemoryLimit;
use crate::specification::{DeepBackend, SpecificationError};

/// What a worker trains with.
pub struct SweepInput {
    /// The trials.
    pub specification: Arc<SweepSpecification>,
    /// The data file of all of them.
    pub data: DataBytes,
    /// How much memory the sweep may take.
    pub memory: MemoryLimit,
    /// What computes deep networks.
    pub deep: DeepBackend,
    /// The process around the worker.
    pub host: Arc<dyn SweepHost>,
}

impl SweepInput {
    /// The run of this sweep's table.
    ///
    /// # Errors
    /// The data is not that of the sweep.
    pub fn load(self) -> Result<Loaded, SpecificationError> {
        // Whatever is wrong with the data is found now.
        self.specification.trial(0).load_within(&self.data, self.memory, &self.deep)?;
        let jobs_max = self.specification.jobs_max();
        let task = SweepTask { specification: Arc::clone(&self.specification) };
        let config = self.specification.training.training(&task.manifest())?;
        let input = Arc::new(self);
        input.host.begin(&input.specification);
        let program = move |_: &Loaded| SweepProgram::new(Arc::clone(&input));
        let program = ProgramFactory::with_tables(move |_| table_spec(jobs_max), program);
        Ok(Loaded { program, ..Loaded::new(Arc::new(task), config) })
    }

    /// A trial before its first step.
    fn trial(&self, trial: usize) -> SingleProcess {
        let loaded = self.specification.trial(trial).load_within(&self.data, self.memory, &self.deep);
        SingleProcess::new(loaded.expect("all trials have the data of the first one, which was loaded"))
    }
}

/// The run of the table: its samples are turns, and its parameters the rows.
struct SweepTask {
    specification: Arc<SweepSpecification>,
}

impl Task for SweepTask {
    fn manifest(&self) -> Manifest {
        Manifest::tensor(TABLE, [self.specification.jobs_max() as u32, ROW_WIDTH as u32])
    }

    fn sample_count(&self) -> u32 {
        TURNS
    }

    fn gradient(&self, _parameters: &[f32], _samples: &[u32], _gradient: &mut [f32]) -> f64 {
        unreachable!("the program of this task computes no gradient")
    }

    fn held_out_count(&self) -> u32 {
        self.specification.data.held_out_rows
    }

    /// How well the best trial did.
    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        let rows = parameters.chunks_exact(ROW_WIDTH).map(JobState::of_row);
        let results: Vec<Option<TrialResult>> = rows.map(done).collect();
        let mut schedule = self.specification.schedule();
        schedule.extend(&results);
        let best = schedule.best(&results).and_then(|job| results[job]);
        Evaluation {
            samples: self.held_out_count(),
            loss: best.map_or(0.0, |best| best.loss.into()),
            accuracy: best.and_then(|best| best.accuracy).map(f64::from),
        }
    }
}

impl SweepSpecification {
    /// The schedule before the first result.
    #[must_use]
    pub fn schedule(&self) -> Schedule {
        Schedule::new(self.sweep.strategy, self.trials.len())
    }
}

fn done(state: JobState) -> Option<TrialResult> {
    if let JobState::Done(result) = state { Some(result) } else { None }
}

/// The algorithm at one worker.
struct SweepProgram {
    input: Arc<SweepInput>,
    schedule: Schedule,
    /// The state of each job when the rows were last read, shape (jobs at most).
    states: Vec<JobState>,
}

/// What a worker does in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// It trains the job of this number, which it has claimed.
    Train(usize),
    /// It claims the job of this number.
    Claim(usize),
    /// It waits for results of others.
    Wait,
    /// All jobs are done.
    End,
}

impl SweepProgram {
    fn new(input: Arc<SweepInput>) -> Self {
        let schedule = input.specification.schedule();
        let states = vec![JobState::Open; input.specification.jobs_max()];
        Self { input, schedule, states }
    }

    /// What to do in a turn, by the rows that were last read.
    fn action(&self, turn: Turn) -> Action {
        let jobs = self.schedule.jobs().len();
        let states = &self.states[..jobs];
        let find = |wanted: JobState| states.iter().position(|state| *state == wanted);
        match (find(JobState::Claimed(turn)), find(JobState::Open)) {
            (Some(own), _) => Action::Train(own),
            (None, Some(open)) => Action::Claim(open),
            (None, None)
                if self.schedule.is_complete() && states.iter().all(|state| done(*state).is_some()) =>
            {
                Action::End
            }
            (None, None) => Action::Wait,
        }
    }

    /// Reads all rows and decides the jobs that follow. `own` is the job that this worker trains, and which part of it is done.
    async fn read(&mut self, clock: &Clock, own: Option<(usize, f64)>) -> Result<(), Interrupted> {
        let rows = clock.pull(0..self.states.len() as u64).expect("the table has a row for each job");
        self.states = states(&rows.await?, self.states.len());
        self.show(own);
        Ok(())
    }

    /// Decides the jobs that follow from the rows, and tells the host.
    fn show(&mut self, own: Option<(usize, f64)>) {
        let results: Vec<Option<TrialResult>> = self.states.iter().map(|state| done(*state)).collect();
        self.schedule.extend(&results);
        let claimed = self.states.iter().filter(|state| matches!(state, JobState::Claimed(_))).count();
        let progress = SweepProgress { schedule: &self.schedule, results: &results, claimed, own };
        self.input.host.show(&progress);
    }

    /// Reads, claims and waits until this turn has a job; `None` if it has none for long, or all jobs are done.
    async fn claimed_job(&mut self, context: &Context, clock: &Clock) -> Result<Option<usize>, Interrupted> {
        let turn = Turn { epoch: clock.epoch, sample: clock.samples[0] };
        let mut waits = 0;
        loop {
            self.read(clock, None).await?;
            match self.action(turn) {
                Action::Train(job) => return Ok(Some(job)),
                // Whether the claim stays, only the next read says: the turn must not end before.
                Action::Claim(job) => {
                    clock.add(row_of(job, turn.addition())).expect("finite numbers for a row of the table");
                    clock.push().await?;
                }
                Action::Wait if waits == WAITS_MAX || self.input.host.is_leaving() => return Ok(None),
                Action::Wait => {
                    waits += 1;
                    let host = Arc::clone(&self.input.host);
                    clock.compute(PAUSE_COST, move || host.pause()).await?;
                }
                Action::End => {
                    context.end_run();
                    return Ok(None);
                }
            }
        }
    }

    /// Trains a job alone, to its end. `None` if the peer leaves before.
    async fn train(&mut self, clock: &Clock, number: usize) -> Result<Option<TrialResult>, Interrupted> {
        let job = self.schedule.jobs()[number];
        let (samples, epochs) = (self.input.specification.samples(job), self.input.specification.epochs(job));
        self.show(Some((number, 0.0)));
        let input = Arc::clone(&self.input);
        let mut training = clock.compute(1, move || input.trial(job.trial)).await?;
        loop {
            let host = Arc::clone(&self.input.host);
            let (after, state) = clock.compute(samples, move || slice(training, epochs, &*host)).await?;
            training = after;
            match state {
                SliceState::Diverged => {
                    return Ok(Some(TrialResult { loss: 0.0, accuracy: None, diverged: true }));
                }
                SliceState::Done => break,
                SliceState::GoesOn if self.input.host.is_leaving() => return Ok(None),
                SliceState::GoesOn => {
                    self.read(clock, Some((number, training.samples() as f64 / samples as f64))).await?;
                }
            }
        }
        let held_out = self.input.specification.data.held_out_rows;
        clock.compute(held_out.into(), move || evaluated(&training)).await.map(Some)
    }
}

impl Program for SweepProgram {
    const NAME: &'static str = "sweep";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let clock = context.begin_clock().await?;
        if clock.is_over {
            clock.finish();
            clock.parameters().await?;
            // The last results of others have arrived by now.
            self.read(&clock, None).await?;
            return Ok(Flow::Break(()));
        }
        let samples = clock.samples.len() as u64;
        let mut stats = SampleStats { samples, loss: 0.0 };
        if samples > 0
            && let Some(number) = self.claimed_job(context, &clock).await?
        {
            let Some(result) = self.train(&clock, number).await? else {
                // Another worker gets this turn.
                clock.finish();
                return Ok(Flow::Continue(()));
            };
            stats.loss = result.loss.into();
            clock.add(row_of(number, result.addition())).expect("finite numbers for a row of the table");
        }
        clock.end(stats);
        Ok(Flow::Continue(()))
    }
}

/// How a slice of a training has ended.
enum SliceState {
    /// The worker should look at the table, and go on.
    GoesOn,
    /// All epochs are trained.
    Done,
    /// A loss was not finite.
    Diverged,
}

/// Trains for a while.
fn slice(mut training: SingleProcess, epochs: u64, host: &dyn SweepHost) -> (SingleProcess, SliceState) {
    let mut is_over = host.begin_slice();
    let state = loop {
        match training.advance(epochs) {
            None => break SliceState::Done,
            Some(step) if !step.loss.is_finite() => break SliceState::Diverged,
            Some(_) if is_over() => break SliceState::GoesOn,
            Some(_) => {}
        }
    };
    (training, state)
}

/// The result on held-out rows.
fn evaluated(training: &SingleProcess) -> TrialResult {
    let Evaluation { loss, accuracy, .. } = training.task().evaluate(training.parameters());
    let loss = loss as f32;
    if loss.is_finite() {
        TrialResult { loss, accuracy: accuracy.map(|accuracy| accuracy as f32), diverged: false }
    } else {
        TrialResult { loss: 0.0, accuracy: None, diverged: true }
    }
}

impl SweepSpecification {
    /// The result of a job, trained here and now: what any worker adds for it.
    ///
    /// # Errors
    /// The data is not that of the sweep.
    pub fn train_here(
        &self,
        job: Job,
        data: &DataBytes,
        deep: &DeepBackend,
    ) -> Result<TrialResult, SpecificationError> {
        let loaded = self.trial(job.trial).load_within(data, MemoryLimit::default(), deep)?;
        let (training, state) =
            slice(SingleProcess::new(loaded), self.epochs(job), &super::host::UnattendedHost);
        Ok(match state {
            SliceState::Diverged => TrialResult { loss: 0.0, accuracy: None, diverged: true },
            SliceState::Done | SliceState::GoesOn => evaluated(&training),
        })
    }
}

/// How often a worker waits in a turn without a job.
const WAITS_MAX: usize = 24;
/// How many samples a pause takes as long as, where time is simulated.
const PAUSE_COST: u64 = 10;
