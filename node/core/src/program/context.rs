//! The interface of a program: [`Context`], the handle to its peer, and [`Step`] or [`Clock`], the unit of work that it is in.
//!
//! A program is sequential code that awaits its operations; the node is a state machine that never waits. A mailbox connects them: each
//! operation is a command with a one-shot reply. A reply that is dropped without an answer interrupts the program.
//!
//! # Invariants
//! - An operation starts when it is called; `await` only waits for its end. To overlap operations, call all of them first.
//! - Operations belong to a [`Step`]: a program that ignores an interruption is interrupted again by its next operation.
//! - Tensors move into an operation; nothing is borrowed across an await.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use futures_channel::{mpsc, oneshot};
use peergrad_collectives::groups::Groups;
use peergrad_collectives::plan::are_finite;
use peergrad_models::optimizer::Optimizer;
use peergrad_models::task::Task;
use peergrad_protocol::message::SampleStats;
use peergrad_protocol::table::{Map, Reduce, Row, RowSet, Rows};
use peergrad_protocol::{Buffer, Rank, StepNumber};

use crate::io::JobOutput;
use crate::state::blend::Blend;
use crate::table::{TableError, TableLayout};

/// The step was undone, or the run ended, before the operation was done. The node keeps what the operation was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted: the step is undone")]
pub struct Interrupted;

/// The sender of a command's answer.
pub(crate) type Reply<T> = oneshot::Sender<T>;

/// One operation of a program, as the machine sees it.
pub(crate) enum ProgramCommand {
    /// Answer when there is a view to train in.
    Ready(Reply<()>),
    /// Answer with the next step.
    Begin(Reply<StepStart>),
    /// Run a job; the reply converts the answer to its type.
    Compute { turn: u64, cost: u64, work: Work, reply: Box<dyn FnOnce(JobOutput) + Send> },
    /// Sum all contributions; answer when the shard of this member is summed.
    ReduceScatter { turn: u64, contribution: Contribution, among: Option<Groups>, reply: Reply<()> },
    /// Turn the sums of this member's shard into new parameters.
    UpdateOwned { turn: u64, rule: OwnerRule, reply: Reply<()> },
    /// Send this member's shard to every member; answer when every shard has arrived.
    AllGather { turn: u64, reply: Reply<()> },
    /// Answer with the next clock.
    BeginClock(Reply<ClockStart>),
    /// Read from tables, add to them, or end the clock.
    Operate { turn: u64, operation: TableOperation },
    /// The program has ended: answer when the programs of all members have.
    Finished(Reply<()>),
}

/// An operation of a program on its tables.
pub(crate) enum TableOperation {
    /// Answer with rows.
    Get { rows: RowSet, reply: Reply<Vec<f32>> },
    /// Answer with the rows of a range that are not zero.
    Pull { rows: Range<Row>, reply: Reply<Rows> },
    /// Answer with all of the parameters.
    Parameters(Reply<Arc<Buffer>>),
    /// Apply a function to columns of these chunks.
    Map { chunks: Range<usize>, map: Map },
    /// Answer with a number computed from columns of these chunks.
    Reduce { chunks: Range<usize>, reduce: Reduce, reply: Reply<f64> },
    /// Add to rows.
    Add(Rows),
    /// Send the additions so far; answer when they would survive the loss of their owners.
    Push(Reply<()>),
    /// The clock is over; the statistics are those of its samples.
    End(SampleStats),
    /// This worker has no more clocks.
    Finish,
}

type Work = Box<dyn FnOnce() -> JobOutput + Send>;

/// The rule by which an owner turns the sums of its shard into new parameters.
pub(crate) enum OwnerRule {
    /// An optimizer, at a learning rate.
    Optimizer { rule: Optimizer, rate: f64 },
    /// The mean of the members' contributions: the sum divided by their number.
    Mean,
    /// A rule of the program.
    Custom(CustomRule),
    /// A step without contributions that blends in the parameters of another branch.
    Blend(Blend),
}

impl OwnerRule {
    /// Whether owners keep optimizer state under this rule, of which other members keep replicas.
    pub(crate) fn keeps_state(&self) -> bool {
        matches!(self, Self::Optimizer { .. } | Self::Blend(_))
    }
}

/// A rule of a program, which the owner of a shard calls for each chunk with the statistics of the sums, the chunk's parameters and its
/// sums; the rule overwrites the sums with new parameters. See [`Step::update_owned_with`].
pub type CustomRule = Box<dyn FnMut(SampleStats, &[f32], &mut [f32]) + Send>;

/// The answer to [`ProgramCommand::Begin`]: a step.
pub(crate) struct StepStart {
    pub(crate) number: StepNumber,
    pub(crate) epoch: u64,
    pub(crate) rate: f64,
    pub(crate) samples: Arc<[u32]>,
    pub(crate) turn: u64,
    pub(crate) is_over: bool,
    pub(crate) rank: Rank,
    pub(crate) member_count: usize,
    pub(crate) parameters: Arc<Buffer>,
    pub(crate) room: Buffer,
}

/// The answer to [`ProgramCommand::BeginClock`]: a clock.
pub(crate) struct ClockStart {
    pub(crate) turn: u64,
    pub(crate) number: u64,
    pub(crate) is_over: bool,
    pub(crate) epoch: u64,
    pub(crate) rate: f64,
    pub(crate) samples: Arc<[u32]>,
    pub(crate) rank: Rank,
    pub(crate) member_count: usize,
    pub(crate) layout: Arc<TableLayout>,
}

/// What one member adds to a step: a vector, usually the sum of its samples' gradients, and the weight of that vector.
#[derive(Debug)]
pub struct Contribution {
    /// (parameters): the vector that is summed over all members. Every element is finite.
    pub vector: Buffer,
    /// How many samples the vector was computed from, and the sum of their losses.
    pub stats: SampleStats,
}

impl Contribution {
    /// The contribution of `vector` and `stats`; of weight 0, with a vector of zeros, if an element or the loss is not finite.
    ///
    /// A gradient that overflowed would ruin the parameters of every member, so its samples are left out of the step.
    #[must_use]
    pub fn finite(mut vector: Buffer, stats: SampleStats) -> Self {
        if stats.loss.is_finite() && are_finite(&vector) {
            return Self { vector, stats };
        }
        vector.fill(0.0);
        Self { vector, stats: SampleStats::default() }
    }
}

/// How the owner of a shard turns the sums of a step into the shard's new parameters: see [`Step::all_reduce`].
pub enum ShardUpdate {
    /// One step of this optimizer with the mean gradient, at the learning rate of the step.
    Optimizer(Optimizer),
    /// One step of this optimizer with the mean gradient, at this learning rate.
    OptimizerAt {
        /// The optimizer. The peers keep its state between steps.
        rule: Optimizer,
        /// The learning rate, in place of the step's.
        rate: f64,
    },
    /// The mean of all contributions, each of the same weight: see [`Step::average_owned`].
    Mean,
    /// A rule of the program: see [`Step::update_owned_with`].
    Custom(CustomRule),
}

impl ShardUpdate {
    /// A rule of the program: see [`Step::update_owned_with`].
    #[must_use]
    pub fn custom(rule: impl FnMut(SampleStats, &[f32], &mut [f32]) + Send + 'static) -> Self {
        Self::Custom(Box::new(rule))
    }

    /// The rule as the machine sees it, in a step with this learning rate.
    fn owner_rule(self, step_rate: f64) -> OwnerRule {
        match self {
            Self::Optimizer(rule) => OwnerRule::Optimizer { rule, rate: step_rate },
            Self::OptimizerAt { rule, rate } => OwnerRule::Optimizer { rule, rate },
            Self::Mean => OwnerRule::Mean,
            Self::Custom(rule) => OwnerRule::Custom(rule),
        }
    }
}

impl From<Optimizer> for ShardUpdate {
    fn from(rule: Optimizer) -> Self {
        Self::Optimizer(rule)
    }
}

impl fmt::Debug for ShardUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Optimizer(_) => "ShardUpdate::Optimizer",
            Self::OptimizerAt { .. } => "ShardUpdate::OptimizerAt",
            Self::Mean => "ShardUpdate::Mean",
            Self::Custom(_) => "ShardUpdate::Custom",
        })
    }
}

/// A program's handle to its peer.
#[derive(Clone)]
pub struct Context {
    commands: mpsc::UnboundedSender<ProgramCommand>,
}

impl Context {
    pub(crate) fn new(commands: mpsc::UnboundedSender<ProgramCommand>) -> Self {
        Self { commands }
    }

    fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> ProgramCommand) -> Pending<T> {
        let (reply, answer) = oneshot::channel();
        // A closed mailbox drops the command and its reply with it, which is the interruption.
        let _ = self.commands.unbounded_send(command(reply));
        Pending(answer)
    }

    pub(crate) fn ready(&self) -> Pending<()> {
        self.ask(ProgramCommand::Ready)
    }

    pub(crate) fn finished(&self) -> Pending<()> {
        self.ask(ProgramCommand::Finished)
    }

    /// Begins the next step. Returns the step, the parameters that it starts from, and a buffer of the same length (parameters) for a
    /// gradient, with unspecified contents.
    ///
    /// # Errors
    /// [`Interrupted`] if the run ends first.
    pub async fn begin_step(&self) -> Result<(Step, Arc<Buffer>, Buffer), Interrupted> {
        let begun = self.ask(ProgramCommand::Begin).await?;
        let StepStart { turn, number, is_over, epoch, rate, samples, .. } = begun;
        let StepStart { rank, member_count, parameters, room, .. } = begun;
        let context = self.clone();
        let step = Step { number, is_over, epoch, rate, samples, rank, member_count, turn, context };
        Ok((step, parameters, room))
    }

    /// Begins the next clock of this worker, in a program that has [tables](crate::program::ProgramFactory::with_tables).
    ///
    /// # Errors
    /// [`Interrupted`] if the run ends first.
    pub async fn begin_clock(&self) -> Result<Clock, Interrupted> {
        let ClockStart { turn, number, is_over, epoch, rate, samples, rank, member_count, layout } =
            self.ask(ProgramCommand::BeginClock).await?;
        let context = self.clone();
        Ok(Clock { number, is_over, epoch, rate, samples, rank, member_count, layout, turn, context })
    }

    fn compute<T: Send + 'static>(
        &self,
        turn: u64,
        cost: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Pending<T> {
        self.ask(|reply| ProgramCommand::Compute {
            turn,
            cost,
            work: Box::new(move || Box::new(work())),
            reply: Box::new(move |answer: JobOutput| {
                let answer = answer.downcast().expect("a job answers with what its work returned");
                // The program may have stopped waiting for it.
                let _ = reply.send(*answer);
            }),
        })
    }
}

/// One clock of a worker: the samples of one batch, for a program that keeps its state in [tables](crate::table). A new view does not
/// interrupt a clock.
pub struct Clock {
    /// The number of clocks that this worker has completed.
    pub number: u64,
    /// Whether the run has no more samples: the program should [finish](Clock::finish).
    pub is_over: bool,
    /// The epoch its samples belong to.
    pub epoch: u64,
    /// The learning rate of the schedule.
    pub rate: f64,
    /// Indices of the samples to compute. Empty if there are none for this worker at present: the program should end the clock, for which
    /// other workers may wait. The node has pushed all additions by then, and begins such a clock only when the read policy allows reads
    /// in it.
    pub samples: Arc<[u32]>,
    /// This member's rank in the view in which the clock began.
    pub rank: Rank,
    /// The number of members of that view.
    pub member_count: usize,
    /// The names, sizes and rules of the tables.
    pub layout: Arc<TableLayout>,
    turn: u64,
    context: Context,
}

impl Clock {
    /// Runs `work` on a compute thread: see [`Step::compute`].
    pub fn compute<T: Send + 'static>(
        &self,
        cost: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Pending<T> {
        self.context.compute(self.turn, cost, work)
    }

    fn operate<T>(&self, operation: impl FnOnce(Reply<T>) -> TableOperation) -> Pending<T> {
        let turn = self.turn;
        self.context.ask(|reply| ProgramCommand::Operate { turn, operation: operation(reply) })
    }

    fn tell(&self, operation: TableOperation) {
        let _ = self.context.commands.unbounded_send(ProgramCommand::Operate { turn: self.turn, operation });
    }

    /// Reads rows, no staler than the read policy allows: (rows, width), in the order of their indices. They include this worker's own
    /// additions if the table applies additions as they arrive.
    ///
    /// # Errors
    /// If a row does not exist.
    pub fn get(&self, rows: RowSet) -> Result<Pending<Vec<f32>>, TableError> {
        match rows.bounds().map(|(_, last)| last).filter(|last| *last >= self.layout.row_count()) {
            Some(row) => Err(TableError::NoRow(row)),
            None => Ok(self.operate(|reply| TableOperation::Get { rows, reply })),
        }
    }

    /// Reads the rows of a range that are not zero, no staler than the read policy allows. The additions of this worker are sent first. The
    /// rows are not cached: each call asks their owners.
    ///
    /// # Errors
    /// If a row does not exist, or the range has more than 4294967295 rows.
    pub fn pull(&self, rows: Range<Row>) -> Result<Pending<Rows>, TableError> {
        if rows.end > self.layout.row_count() {
            return Err(TableError::NoRow(rows.end - 1));
        }
        let (found, most) = (rows.end.saturating_sub(rows.start) as usize, u32::MAX as usize);
        if found > most {
            return Err(TableError::TooMany { found, most });
        }
        Ok(self.operate(|reply| TableOperation::Pull { rows, reply }))
    }

    /// Reads all parameters (parameters), no staler than the read policy allows.
    ///
    /// # Panics
    /// The node panics if no table has the parameters.
    pub fn parameters(&self) -> Pending<Arc<Buffer>> {
        self.operate(TableOperation::Parameters)
    }

    /// Adds numbers to rows. All additions to a row before the next [push](Clock::push) are sent as one.
    ///
    /// # Errors
    /// If a row does not exist or a number is not finite; nothing was added then.
    pub fn add(&self, rows: Rows) -> Result<(), TableError> {
        self.layout.check_rows(&rows)?;
        self.tell(TableOperation::Add(rows));
        Ok(())
    }

    /// Has the owners of a table apply `map` to its columns once, after all additions of this worker so far. The result survives the loss
    /// of owners when the next [push](Clock::push) is done.
    ///
    /// # Errors
    /// If the table or the column does not exist, or the table's owners update by an optimizer.
    pub fn map(&self, table: &str, map: Map) -> Result<(), TableError> {
        let chunks = self.layout.chunks(table)?;
        self.layout.check_map(chunks.start, map)?;
        self.tell(TableOperation::Map { chunks, map });
        Ok(())
    }

    /// Has the owners of a table compute a number from its columns, no staler than the read policy allows, with all additions of this
    /// worker so far. A [`map`](Self::map) that this worker starts before the answer arrives may be included.
    ///
    /// # Errors
    /// If the table or the column does not exist.
    pub fn reduce(&self, table: &str, reduce: Reduce) -> Result<Pending<f64>, TableError> {
        let chunks = self.layout.chunks(table)?;
        self.layout.check_reduce(chunks.start, reduce)?;
        Ok(self.operate(|reply| TableOperation::Reduce { chunks, reduce, reply }))
    }

    /// Sends all additions so far, of this clock and earlier ones. Done when they would survive the loss of their owners.
    pub fn push(&self) -> Pending<()> {
        self.operate(TableOperation::Push)
    }

    /// Ends the clock; `stats` are the number and the summed loss of the samples that were computed.
    pub fn end(self, stats: SampleStats) {
        self.tell(TableOperation::End(stats));
    }

    /// Declares that this worker has no more clocks, so that no other worker waits for it. Its reads from now on are answered when all
    /// workers have finished. If the run has samples left, other workers get them, including the samples of this clock. Later additions of
    /// this worker do not count.
    pub fn finish(&self) {
        self.tell(TableOperation::Finish);
    }
}

/// One optimizer step of the run, at this member, in one view.
pub struct Step {
    /// The number of the step in the run, from 0.
    pub number: StepNumber,
    /// Whether all epochs are over: the program should end its loop.
    pub is_over: bool,
    /// The epoch its samples belong to.
    pub epoch: u64,
    /// The learning rate of the schedule.
    pub rate: f64,
    /// Indices of the samples that this member computes; may be empty.
    pub samples: Arc<[u32]>,
    /// This member's rank in the view.
    pub rank: Rank,
    /// The number of members of the view.
    pub member_count: usize,
    turn: u64,
    context: Context,
}

impl Step {
    /// Runs `work` on a compute thread, while the node goes on. `cost` is the number of samples that the work computes, from which the
    /// simulator models its duration.
    pub fn compute<T: Send + 'static>(
        &self,
        cost: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Pending<T> {
        self.context.compute(self.turn, cost, work)
    }

    /// Computes the gradient of this step's samples on a compute thread: the contribution of plain data-parallel training.
    ///
    /// - `parameters`, `room`: as [`Context::begin_step`] returned them; the gradient is written to `room`.
    ///
    /// A gradient that is not finite becomes a contribution of weight 0: see [`Contribution::finite`].
    pub fn gradient(
        &self,
        task: &Arc<dyn Task>,
        parameters: Arc<Buffer>,
        mut room: Buffer,
    ) -> Pending<Contribution> {
        let (task, samples) = (Arc::clone(task), Arc::clone(&self.samples));
        self.compute(self.samples.len() as u64, move || {
            let loss = task.gradient(&parameters, &samples, &mut room);
            Contribution::finite(room, SampleStats { samples: samples.len() as u64, loss })
        })
    }

    /// The whole exchange of a step: sums all contributions, has each owner update its shard, and sends every shard to every
    /// member. The step is complete when the returned future is done.
    ///
    /// The same as [`reduce_scatter`](Self::reduce_scatter), an update of the owned shard and [`all_gather`](Self::all_gather),
    /// all started at this call: the first segments of a shard travel to the members while its last ones are still being
    /// summed. (Thakur et al., "Optimization of Collective Communication Operations in MPICH", 2005, section 4.5; we differ in
    /// the update between the two halves.)
    ///
    /// # Errors
    /// [`Interrupted`] if a new view undoes the step before it is complete; the node calls the round again.
    ///
    /// # Panics
    /// The node panics if the program may not update its shard that way: see [`update_owned`](Self::update_owned),
    /// [`average_owned`](Self::average_owned) and [`update_owned_with`](Self::update_owned_with).
    pub fn all_reduce(
        self,
        contribution: Contribution,
        update: impl Into<ShardUpdate>,
    ) -> impl Future<Output = Result<(), Interrupted>> + Send {
        let rule = update.into().owner_rule(self.rate);
        let summed = self.reduce_scatter(contribution);
        let updated = self.update(rule);
        let gathered = self.all_gather();
        async move {
            summed.await?;
            updated.await?;
            gathered.await
        }
    }

    /// Sums the contributions of all members. Done when this member has the sums of its own shard. Call the operations that follow before
    /// you await this one: then the first segments of a shard are updated and sent while its last ones are still being summed.
    pub fn reduce_scatter(&self, contribution: Contribution) -> Pending<()> {
        let (turn, among) = (self.turn, None);
        self.context.ask(|reply| ProgramCommand::ReduceScatter { turn, contribution, among, reply })
    }

    /// As [`Step::reduce_scatter`], within this member's group only; the operations that follow in the step stay within the group too.
    ///
    /// Only for programs with [local parameters](crate::program::Program::LOCAL_PARAMETERS), whose contributions are their parameters. In
    /// the first step of a view with a new member, and in the last step of the run, the group is all members.
    ///
    /// # Panics
    /// The node panics if the program has no local parameters.
    pub fn reduce_scatter_among(&self, groups: Groups, contribution: Contribution) -> Pending<()> {
        let (turn, among) = (self.turn, Some(groups));
        self.context.ask(|reply| ProgramCommand::ReduceScatter { turn, contribution, among, reply })
    }

    /// Applies `rule` to this member's shard: computes new parameters, and new optimizer state that becomes valid when the step is
    /// committed. If it is called before all sums have arrived, it updates each chunk when the chunk's sums have.
    ///
    /// # Panics
    /// The node panics if the program has [local parameters](crate::program::Program::LOCAL_PARAMETERS), since its owners keep no state.
    pub fn update_owned(&self, rule: Optimizer, rate: f64) -> Pending<()> {
        self.update(OwnerRule::Optimizer { rule, rate })
    }

    /// Replaces this member's shard with the mean of all contributions, each of the same weight. A segment whose sums are not finite keeps
    /// its parameters.
    ///
    /// # Panics
    /// The node panics if the program has no [local parameters](crate::program::Program::LOCAL_PARAMETERS).
    pub fn average_owned(&self) -> Pending<()> {
        self.update(OwnerRule::Mean)
    }

    /// As [`Step::update_owned`], with a rule of the program, which keeps no optimizer state.
    ///
    /// The node calls `rule(stats, parameters, sums)` for each chunk of this member's shard: `stats` counts the samples behind the sums,
    /// `parameters` and `sums` are (chunk), and the rule overwrites the sums with new parameters. The rule runs inside the node, between
    /// two frames: a few operations for each element are fine; longer work belongs into [`Step::compute`]. Sums of no samples, and sums
    /// that are not finite, leave the parameters as they are, without a call.
    ///
    /// # Panics
    /// The node panics if the program does not declare a [custom rule](crate::program::Program::CUSTOM_RULE).
    pub fn update_owned_with(
        &self,
        rule: impl FnMut(SampleStats, &[f32], &mut [f32]) + Send + 'static,
    ) -> Pending<()> {
        self.update(OwnerRule::Custom(Box::new(rule)))
    }

    fn update(&self, rule: OwnerRule) -> Pending<()> {
        let turn = self.turn;
        self.context.ask(|reply| ProgramCommand::UpdateOwned { turn, rule, reply })
    }

    /// Sends this member's shard to every member, each part as soon as it is updated. Done when every shard has arrived: the step is
    /// complete.
    pub fn all_gather(self) -> Pending<()> {
        let turn = self.turn;
        self.context.ask(|reply| ProgramCommand::AllGather { turn, reply })
    }
}

/// An operation that has started. It goes on even if this future is dropped.
#[must_use = "an operation has to be awaited before the program uses its result"]
pub struct Pending<T>(oneshot::Receiver<T>);

impl<T> Future for Pending<T> {
    type Output = Result<T, Interrupted>;

    fn poll(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_err(|_| Interrupted)
    }
}
