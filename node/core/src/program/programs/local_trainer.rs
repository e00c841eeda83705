//! The local trainer: the local steps of one member, in programs where each member has its own optimizer state and, between rounds, its own
//! parameters.

use std::sync::Arc;

use peergrad_collectives::plan::are_finite;
use peergrad_models::optimizer::{GroupedOptimizer, Schedule};
use peergrad_models::task::{StepInfo, Task};
use peergrad_protocol::Buffer;
use peergrad_protocol::cursor::mixed;
use peergrad_protocol::message::SampleStats;

use crate::program::context::{Interrupted, Step};
use crate::program::loader::Loaded;

/// The model, data and optimizer of one member. Its optimizer state is that after the last round that was not interrupted. A round may be
/// completed here, undone because other members could not complete it, and repeated: then the state contains it twice.
pub struct LocalTrainer {
    /// The model and its data.
    task: Arc<dyn Task>,
    /// The optimizer of the local steps, and the groups of the parameters.
    optimizer: GroupedOptimizer,
    /// The learning rate of each local step, counted over the whole run.
    schedule: Schedule,
    /// The optimizer state after the last complete round.
    state: Arc<OptimizerState>,
    /// Vectors of the previous round, for reuse.
    spare: SpareBuffers,
}

/// The optimizer's moments, and the number of updates that they come from.
#[derive(Default)]
struct OptimizerState {
    /// The moments of all parameters; empty if the optimizer has none.
    moments: Vec<f32>,
    /// How many updates they come from.
    updates: u32,
}

/// Memory for the next optimizer state, for one in between, and for a gradient.
#[derive(Default)]
struct SpareBuffers {
    /// For the optimizer state after the round.
    next: Vec<f32>,
    /// For the moments after one local step, which then change places with those before it.
    between: Vec<f32>,
    /// For the gradient of one local step.
    gradient: Vec<f32>,
}

/// The result of one round of local steps.
pub struct RoundResult {
    /// The member's parameters after the round.
    pub parameters: Buffer,
    /// The number of the round's samples, and their summed loss.
    pub stats: SampleStats,
    /// What the worker keeps if the round is not interrupted.
    pending: PendingState,
}

impl LocalTrainer {
    /// The trainer at the start of a run, or of this member's part in it: without optimizer state.
    #[must_use]
    pub fn new(loaded: &Loaded) -> Self {
        let optimizer = loaded.config.optimizer();
        let moments = vec![0.0; loaded.manifest.parameter_count() * optimizer.rule.moment_count()];
        Self {
            task: Arc::clone(&loaded.task),
            optimizer,
            schedule: loaded.config.schedule,
            state: Arc::new(OptimizerState { moments, updates: 0 }),
            spare: SpareBuffers::default(),
        }
    }

    /// Trains this member's samples of the step on a compute thread, in as many local steps as the step has.
    ///
    /// # Errors
    /// [`Interrupted`] if the step is undone meanwhile.
    pub async fn train(
        &mut self,
        step: &Step,
        parameters: Arc<Buffer>,
        room: Buffer,
    ) -> Result<RoundResult, Interrupted> {
        let (task, samples, state) = (self.task.clone(), step.samples.clone(), self.state.clone());
        let (optimizer, schedule, numbers) =
            (self.optimizer.clone(), self.schedule, step.local_steps.clone());
        let spare = std::mem::take(&mut self.spare);
        let info = step.info();
        let work = move || {
            let mut at = room;
            at.copy_from_slice(&parameters);
            if let Some(loss) = task.learn(&info, &mut at, &samples) {
                return RoundResult::of_task(at, loss, &parameters, samples.len());
            }
            at.copy_from_slice(&parameters);
            let mut run = LocalRun { task: &*task, optimizer, at, stats: SampleStats::default(), spare };
            let mut state = run.begin(&state);
            let count = (numbers.end - numbers.start) as usize;
            // Samples that depend on each other stay together.
            let batch = samples.len().div_ceil(count).max(1).next_multiple_of(task.block().max(1) as usize);
            for (samples, number) in samples.chunks(batch).zip(numbers) {
                let info = StepInfo {
                    rate: schedule.rate(number),
                    local_steps: number..number + 1,
                    seed: mixed(info.seed ^ mixed(number)),
                    ..info.clone()
                };
                run.step(&info, samples, &mut state);
            }
            let pending = PendingState { state: Some(state), spare: run.spare };
            RoundResult { parameters: run.at, stats: run.stats, pending }
        };
        step.compute(step.samples.len() as u64, work).await
    }

    /// The round is complete: its optimizer state becomes the current one.
    pub fn commit(&mut self, pending: PendingState) {
        self.spare = pending.spare;
        let Some(state) = pending.state else { return };
        let before = std::mem::replace(&mut self.state, Arc::new(state));
        // A job of an interrupted round may still read the state before.
        if let Ok(before) = Arc::try_unwrap(before) {
            self.spare.next = before.moments;
        }
    }
}

/// What a worker keeps from a round until the round is complete.
#[derive(Default)]
pub struct PendingState {
    /// The optimizer state after the round; `None` if the task has taken the local steps by itself.
    state: Option<OptimizerState>,
    /// The vectors that the round has used, for the next one.
    spare: SpareBuffers,
}

impl RoundResult {
    /// The result of a task that takes local steps by itself. What is not finite would ruin the parameters of every member, so it counts for
    /// nothing.
    fn of_task(mut parameters: Buffer, loss: f64, begun_at: &[f32], samples: usize) -> Self {
        let mut stats = SampleStats { samples: samples as u64, loss };
        if !loss.is_finite() || !are_finite(&parameters) {
            parameters.copy_from_slice(begun_at);
            stats = SampleStats::default();
        }
        Self { parameters, stats, pending: PendingState::default() }
    }

    /// Splits the result into the parameters, their weight, and what the worker keeps if the round is not interrupted.
    #[must_use]
    pub fn split(self) -> (Buffer, SampleStats, PendingState) {
        (self.parameters, self.stats, self.pending)
    }
}

/// The local steps of one job.
struct LocalRun<'a> {
    /// The model and its data.
    task: &'a dyn Task,
    /// The optimizer of the local steps, and the groups of the parameters.
    optimizer: GroupedOptimizer,
    /// The member's parameters, after the local steps so far.
    at: Buffer,
    /// The number of samples so far, and their summed loss.
    stats: SampleStats,
    /// Vectors that are written in each local step.
    spare: SpareBuffers,
}

impl LocalRun<'_> {
    fn begin(&mut self, before: &OptimizerState) -> OptimizerState {
        let mut moments = std::mem::take(&mut self.spare.next);
        moments.clear();
        moments.extend_from_slice(&before.moments);
        self.spare.between.resize(before.moments.len(), 0.0);
        self.spare.gradient.resize(self.at.len(), 0.0);
        OptimizerState { moments, updates: before.updates }
    }

    /// Takes one local step. A gradient that overflowed would ruin the parameters, so its samples are left out.
    fn step(&mut self, info: &StepInfo, samples: &[u32], state: &mut OptimizerState) {
        let SpareBuffers { between, gradient, .. } = &mut self.spare;
        let loss = self.task.contribute(info, &self.at, samples, gradient);
        if !loss.is_finite() || !are_finite(gradient) {
            return;
        }
        state.updates += 1;
        let samples = samples.len() as u64;
        let clip_factor = self.optimizer.clip_factor_of(gradient, samples);
        let update = self.optimizer.update(info.rate, state.updates, samples, clip_factor);
        update.apply(0, &self.at, gradient, &state.moments, between);
        self.at.swap_with_slice(gradient);
        std::mem::swap(&mut state.moments, between);
        self.stats += SampleStats { samples, loss };
    }
}
