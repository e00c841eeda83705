//! The step: one optimizer step at this member, and the exchanges of which it consists.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

use peergrad_collectives::groups::Groups;
use peergrad_models::optimizer::GroupedOptimizer;
use peergrad_models::task::{StepInfo, Task};
use peergrad_protocol::message::SampleStats;
use peergrad_protocol::{Buffer, StepNumber};

use crate::io::Work;
use crate::program::batch::Batch;
use crate::program::command::{JobReply, ProgramCommand};
use crate::program::contribution::{Contribution, ShardUpdate, contribution_in_parts};
use crate::program::mailbox::{Interrupted, Mailbox, Pending};
use crate::state::owner_rule::OwnerRule;

/// One optimizer step of the run, at this member, in one view.
pub struct Step {
    /// The number of the step in the run, from 0.
    pub number: StepNumber,
    /// This member's samples of the step.
    pub(super) batch: Batch,
    /// Where its operations go.
    pub(super) mailbox: Mailbox,
}

impl Deref for Step {
    type Target = Batch;

    fn deref(&self) -> &Batch {
        &self.batch
    }
}

impl Step {
    /// What a task learns about this step.
    #[must_use]
    pub fn info(&self) -> StepInfo {
        self.batch.info(self.number.0)
    }

    /// Runs `work` on a compute thread, while the node continues. `cost` is the number of samples that the work computes, from which the
    /// simulator models its duration.
    pub fn compute<T: Send + 'static>(
        &self,
        cost: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Pending<T> {
        self.mailbox.compute(self.turn, cost, work)
    }

    /// Computes the gradient of this step's samples on a compute thread: the contribution of plain data-parallel training.
    ///
    /// - `parameters`, `room`: as [`Context::begin_step`](crate::program::context::Context::begin_step) returned them; the gradient is
    ///   written to `room`.
    ///
    /// A gradient that is not finite becomes a contribution of weight 0: see [`Contribution::finite`].
    pub fn gradient(
        &self,
        task: &Arc<dyn Task>,
        parameters: Arc<Buffer>,
        room: Buffer,
    ) -> Pending<Contribution> {
        let (task, samples, info) = (Arc::clone(task), Arc::clone(&self.samples), self.info());
        self.compute(self.samples.len() as u64, move || {
            contribution(&*task, &info, &parameters, &samples, room)
        })
    }

    /// The whole of a plain data-parallel step: computes the gradient of this step's samples, as [`gradient`](Self::gradient) does, and then
    /// does what [`all_reduce`](Self::all_reduce) does.
    ///
    /// A task that [hands out](Task::contribute_in_parts) the first elements of its gradient while it computes the others has them summed,
    /// updated and sent meanwhile.
    ///
    /// # Errors
    /// [`Interrupted`] if a new view undoes the step before it is complete; the node calls the round again.
    ///
    /// # Panics
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_reduce_gradient(
        self,
        task: &Arc<dyn Task>,
        parameters: Arc<Buffer>,
        room: Buffer,
        update: impl Into<ShardUpdate>,
    ) -> impl Future<Output = Result<(), Interrupted>> + Send {
        let (turn, cost, info) = (self.turn, self.samples.len() as u64, self.info());
        let (task, samples, elements_min) =
            (Arc::clone(task), Arc::clone(&self.samples), self.part_elements_min);
        let work = Work::in_parts(move |hand_out| {
            let Some(elements_min) = elements_min else {
                return contribution(&*task, &info, &parameters, &samples, room);
            };
            contribution_in_parts(room, cost, elements_min, &mut |part| hand_out(Box::new(part)), {
                |room, known| task.contribute_in_parts(&info, &parameters, &samples, room, known)
            })
        });
        let summed = self.mailbox.ask(|reply| {
            let reply = JobReply::Sums { turn, reply };
            ProgramCommand::Compute { turn, cost, work, reply }
        });
        self.exchange(summed, update.into())
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
        let summed = self.reduce_scatter(contribution);
        self.exchange(summed, update.into())
    }

    /// Updates and gathers what will be `summed`.
    fn exchange(
        self,
        summed: Pending<()>,
        update: ShardUpdate,
    ) -> impl Future<Output = Result<(), Interrupted>> + Send {
        let updated = self.update(update.owner_rule(self.rate));
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
        self.mailbox.ask(|reply| ProgramCommand::ReduceScatter { turn, contribution, among, reply })
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
        self.mailbox.ask(|reply| ProgramCommand::ReduceScatter { turn, contribution, among, reply })
    }

    /// Applies an optimizer to this member's shard: computes new parameters, and new optimizer state that becomes valid when the step is
    /// committed. If it is called before all sums have arrived, it updates each chunk when the chunk's sums have.
    ///
    /// # Panics
    /// The node panics if the program has [local parameters](crate::program::Program::LOCAL_PARAMETERS), since its owners keep no state.
    pub fn update_owned(&self, optimizer: impl Into<GroupedOptimizer>, rate: f64) -> Pending<()> {
        self.update(OwnerRule::optimizer(optimizer.into(), rate))
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
        self.mailbox.ask(|reply| ProgramCommand::UpdateOwned { turn, rule, reply })
    }

    /// Sends this member's shard to every member, each part as soon as it is updated. Done when every shard has arrived: the step is
    /// complete.
    pub fn all_gather(self) -> Pending<()> {
        let turn = self.turn;
        self.mailbox.ask(|reply| ProgramCommand::AllGather { turn, reply })
    }
}

/// The contribution of these samples, as a whole.
fn contribution(
    task: &dyn Task,
    info: &StepInfo,
    parameters: &[f32],
    samples: &[u32],
    mut room: Buffer,
) -> Contribution {
    let loss = task.contribute(info, parameters, samples, &mut room);
    Contribution::finite(room, SampleStats { samples: samples.len() as u64, loss })
}
