//! What a program holds: a handle to its peer, and a token for the step it is in.
//!
//! A program is straight-line code that waits; the node is a machine that never waits. Between them lies a mailbox: each
//! operation is a command with a one-shot reply. The reply dropped instead of sent *is* the interruption.
//!
//! # Invariants
//! - An operation starts when it is called; `await` only waits for it. Overlap is "call now, await later".
//! - Operations hang on a [`Step`]: a program that ignores an interruption gets it again.
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

/// The step was undone, or the run ended, before the operation was done. What it was given is with the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted: the step is undone")]
pub struct Interrupted;

/// Where a command's answer goes.
pub(crate) type Reply<T> = oneshot::Sender<T>;

/// One operation of a program, as the node's machine sees it.
pub(crate) enum ProgramCommand {
    /// Answer when there is a view to train in.
    Ready(Reply<()>),
    /// Answer with the next step.
    Begin(Reply<StepStart>),
    /// Run a job; the reply knows the answer's type.
    Compute { turn: u64, cost: u64, work: Work, reply: Box<dyn FnOnce(JobOutput) + Send> },
    /// Add up contributions; answer when the own shard is summed.
    ReduceScatter { turn: u64, contribution: Contribution, among: Option<Groups>, reply: Reply<()> },
    /// Turn the own shard's sum into new parameters.
    UpdateOwned { turn: u64, rule: OwnerRule, reply: Reply<()> },
    /// Send the own shard to everyone; answer when every shard is here.
    AllGather { turn: u64, reply: Reply<()> },
    /// Answer with the next clock.
    BeginClock(Reply<ClockStart>),
    /// Read or add, or end the clock.
    Operate { turn: u64, operation: TableOperation },
    /// The program is done: answer when everyone is.
    Finished(Reply<()>),
}

/// What a program does in a clock.
pub(crate) enum TableOperation {
    /// Answer with rows.
    Get { rows: RowSet, reply: Reply<Vec<f32>> },
    /// Answer with those of a range of rows that are not zero.
    Pull { rows: Range<Row>, reply: Reply<Rows> },
    /// Answer with all of the parameters.
    Parameters(Reply<Arc<Buffer>>),
    /// Do something to columns of these chunks.
    Map { chunks: Range<usize>, map: Map },
    /// Answer with what columns of these chunks come to.
    Reduce { chunks: Range<usize>, reduce: Reduce, reply: Reply<f64> },
    /// Add to rows.
    Add(Rows),
    /// Send what was added; answer when it is safe.
    Push(Reply<()>),
    /// The clock is over: this came of its samples.
    End(SampleStats),
    /// There are no more clocks.
    Finish,
}

type Work = Box<dyn FnOnce() -> JobOutput + Send>;

/// What an owner does with the sums of its shard.
pub(crate) enum OwnerRule {
    /// A rule with optimizer state, at a learning rate.
    Optimizer { rule: Optimizer, rate: f64 },
    /// The mean of what members contributed: the sum divided by their number.
    Mean,
    /// A program's own.
    Custom(CustomRule),
    /// What another lineage has come to is blended in, in a step that nobody contributes to.
    Blend(Blend),
}

impl OwnerRule {
    /// Whether owners have state under it, of which others keep replicas.
    pub(crate) fn keeps_state(&self) -> bool {
        matches!(self, Self::Optimizer { .. } | Self::Blend(_))
    }
}

pub(crate) type CustomRule = Box<dyn FnMut(SampleStats, &[f32], &mut [f32]) + Send>;

/// A step as the machine hands it out.
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

/// A clock as the machine hands it out.
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
    Custom(Box<dyn FnMut(SampleStats, &[f32], &mut [f32]) + Send>),
}

impl ShardUpdate {
    /// A rule of the program: see [`Step::update_owned_with`].
    #[must_use]
    pub fn custom(rule: impl FnMut(SampleStats, &[f32], &mut [f32]) + Send + 'static) -> Self {
        Self::Custom(Box::new(rule))
    }

    /// As the node's machine sees it, in a step of this learning rate.
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

    /// The next step, the parameters it starts from, and room for a gradient (contents unspecified).
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

    /// The next clock of this worker, in a program that has [tables](crate::program::ProgramFactory::with_tables).
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

/// One clock of a worker, whose program keeps its state in [tables](crate::table). A new view does not interrupt it.
pub struct Clock {
    /// Its number: so many are complete at this worker.
    pub number: u64,
    /// Whether there is nothing to compute any more: what is left to do is to [finish](Clock::finish).
    pub is_over: bool,
    /// The epoch its samples belong to.
    pub epoch: u64,
    /// The learning rate.
    pub rate: f64,
    /// The samples to compute. None: at present nobody has any for this worker, and others may wait for its clock to end. The node has
    /// sent what was not pushed, and hands out no such clock before the read policy allows to read in it.
    pub samples: Arc<[u32]>,
    /// This member's rank in the view in which the clock began.
    pub rank: Rank,
    /// Members of that view.
    pub member_count: usize,
    /// The tables.
    pub layout: Arc<TableLayout>,
    turn: u64,
    context: Context,
}

impl Clock {
    /// Runs `work` beside the network, as [`Step::compute`].
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

    /// Rows, no staler than the read policy allows: (rows, numbers of each), one after the other. What this worker has added itself is in
    /// them, where owners add it as it comes.
    ///
    /// # Errors
    /// There is no such row.
    pub fn get(&self, rows: RowSet) -> Result<Pending<Vec<f32>>, TableError> {
        match rows.bounds().map(|(_, last)| last).filter(|last| *last >= self.layout.row_count()) {
            Some(row) => Err(TableError::NoRow(row)),
            None => Ok(self.operate(|reply| TableOperation::Get { rows, reply })),
        }
    }

    /// Those of a range of rows that are not zero, no staler than the read policy allows. What this worker has added is sent first. They are
    /// read anew each time, and not kept here.
    ///
    /// # Errors
    /// There is no such row, or these are more than 4294967295.
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

    /// All of the parameters, no staler than the read policy allows, where there is a table of them.
    ///
    /// # Panics
    /// The node does, where there is none.
    pub fn parameters(&self) -> Pending<Arc<Buffer>> {
        self.operate(TableOperation::Parameters)
    }

    /// Adds to rows; what is added to one row until it is [pushed](Clock::push) travels as one.
    ///
    /// # Errors
    /// What is wrong with them; nothing was added.
    pub fn add(&self, rows: Rows) -> Result<(), TableError> {
        self.layout.check_rows(&rows)?;
        self.tell(TableOperation::Add(rows));
        Ok(())
    }

    /// Has owners do something to columns of a table, once, after all that this worker has added so far. It is safe when the next
    /// [push](Clock::push) is done.
    ///
    /// # Errors
    /// There is no such table or column, or its owners update by a rule.
    pub fn map(&self, table: &str, map: Map) -> Result<(), TableError> {
        let chunks = self.layout.chunks(table)?;
        self.layout.check_map(chunks.start, map)?;
        self.tell(TableOperation::Map { chunks, map });
        Ok(())
    }

    /// What columns of a table come to at its owners, no staler than the read policy allows, with all that this worker has added so far. If it
    /// has columns [changed](Self::map) before the answer is there, that is in it, too.
    ///
    /// # Errors
    /// There is no such table or column.
    pub fn reduce(&self, table: &str, reduce: Reduce) -> Result<Pending<f64>, TableError> {
        let chunks = self.layout.chunks(table)?;
        self.layout.check_reduce(chunks.start, reduce)?;
        Ok(self.operate(|reply| TableOperation::Reduce { chunks, reduce, reply }))
    }

    /// Sends what was added so far, in this clock or before. Done when it would outlive its owners.
    pub fn push(&self) -> Pending<()> {
        self.operate(TableOperation::Push)
    }

    /// The clock is over, and this came of its samples.
    pub fn end(self, stats: SampleStats) {
        self.tell(TableOperation::End(stats));
    }

    /// This worker has no more clocks, so nobody waits for it. What it reads from now on is there once all workers have finished. If it
    /// ends before the run is over, other workers are dealt the samples of this clock, and all others; what it adds after that does not count.
    pub fn finish(&self) {
        self.tell(TableOperation::Finish);
    }
}

/// One optimizer step of the run, at this member, in one view.
pub struct Step {
    /// Its number in the run.
    pub number: StepNumber,
    /// Whether there is none any more: every epoch is over.
    pub is_over: bool,
    /// The epoch its samples belong to.
    pub epoch: u64,
    /// The learning rate.
    pub rate: f64,
    /// The samples that this member computes.
    pub samples: Arc<[u32]>,
    /// This member's rank in the view.
    pub rank: Rank,
    /// Members of the view.
    pub member_count: usize,
    turn: u64,
    context: Context,
}

impl Step {
    /// Runs `work` beside the network. `cost` is how many samples it touches, for a simulator to model its duration.
    ///
    /// # Panics
    /// Never: the answer has the type that the work returned.
    pub fn compute<T: Send + 'static>(
        &self,
        cost: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Pending<T> {
        self.context.compute(self.turn, cost, work)
    }

    /// Computes the gradient of this step's samples beside the network: the contribution of plain data-parallel training.
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
    /// [`Interrupted`] if a new view undoes the step before it is complete; the host calls the round again.
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

    /// Adds everyone's contributions up. Done when this member holds the sums of the shard that it owns. What follows is best
    /// called before that is awaited: then the beginning of a shard goes on while the end of it is still being summed.
    pub fn reduce_scatter(&self, contribution: Contribution) -> Pending<()> {
        let (turn, among) = (self.turn, None);
        self.context.ask(|reply| ProgramCommand::ReduceScatter { turn, contribution, among, reply })
    }

    /// As [`Step::reduce_scatter`], in this member's group of the step: everything that follows in the step stays in it.
    ///
    /// Only for programs that [drift](crate::program::Program::LOCAL_PARAMETERS), whose contributions are their parameters. In the first
    /// step of a view with a newcomer, and in the last step of the run, the group is everybody.
    ///
    /// # Panics
    /// The node does, in another program.
    pub fn reduce_scatter_among(&self, groups: Groups, contribution: Contribution) -> Pending<()> {
        let (turn, among) = (self.turn, Some(groups));
        self.context.ask(|reply| ProgramCommand::ReduceScatter { turn, contribution, among, reply })
    }

    /// Applies `rule` to the owned shard: the mean gradient becomes new parameters, and new optimizer state that stands
    /// once the step is committed. Called before the sums are all here, it is done chunk by chunk as they come.
    ///
    /// # Panics
    /// The node does, in a program that [drifts](crate::program::Program::LOCAL_PARAMETERS): its owners keep nothing.
    pub fn update_owned(&self, rule: Optimizer, rate: f64) -> Pending<()> {
        self.update(OwnerRule::Optimizer { rule, rate })
    }

    /// The mean of what members have contributed takes the place of the owned shard, each member counting the same. A
    /// segment whose sums are not finite stays as it is here.
    ///
    /// # Panics
    /// The node does, in a program that does not [drift](crate::program::Program::LOCAL_PARAMETERS).
    pub fn average_owned(&self) -> Pending<()> {
        self.update(OwnerRule::Mean)
    }

    /// As [`Step::update_owned`], by a rule of the program's own, which keeps no optimizer state.
    ///
    /// It is called for each owned chunk with what the sums are worth, the parameters and the sums, and overwrites the sums
    /// with new parameters. It runs inside the node, between two frames: a few operations an element are fine, more belong
    /// into [`Step::compute`]. It is not called for sums that no sample stands behind or that are not finite: those leave
    /// the parameters as they are.
    ///
    /// # Panics
    /// The node does, in a program that has not said that it has [such a rule](crate::program::Program::CUSTOM_RULE).
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

    /// Sends the owned shard to everyone; called before all of it is updated, what is. Done when every shard is here: the step
    /// is complete.
    pub fn all_gather(self) -> Pending<()> {
        let turn = self.turn;
        self.context.ask(|reply| ProgramCommand::AllGather { turn, reply })
    }
}

/// An operation under way.
#[must_use = "an operation that nobody awaits may not be done before the next one needs it"]
pub struct Pending<T>(oneshot::Receiver<T>);

impl<T> Future for Pending<T> {
    type Output = Result<T, Interrupted>;

    fn poll(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_err(|_| Interrupted)
    }
}
