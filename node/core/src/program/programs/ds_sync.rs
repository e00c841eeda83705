//! Divide and shuffle: each member takes its own steps and averages its parameters with a few others, which change from round to round.
//!
//! Members stand in a grid. In even rounds the groups are its rows, in odd ones its columns. So each member's progress reaches all others
//! in two rounds, while a round waits for a few members only. Each member has its own optimizer state, and gradients are never sent.
//!
//! # Cost
//! In a step, each of the g members of a group sends 2 (g - 1) / g times the parameters, in 2 (g - 1) hops; a ring of all n members takes 2
//! (n - 1) hops. A member that is slow now and then delays its group and not all members. A member that is always slow delays all, as in a
//! ring, since groups are shuffled.
//!
//! # What the model is
//! During training each member has its own parameters. In the last step all of them are averaged, and every member ends with the same bits.
//! A joiner begins with the mean of all.
//!
//! # Reading
//! Wang et al., *DS-Sync: Addressing Network Bottlenecks with Divide-and-Shuffle Synchronization*, 2020 and 2022. The grid
//! for any number of members is ours ([`groups`](peergrad_collectives::groups)).

use std::ops::ControlFlow::{Break, Continue};

use peergrad_collectives::groups::Groups;

use super::local_trainer::LocalTrainer;
use crate::program::context::{Context, Contribution, Interrupted};
use crate::program::loader::Loaded;
use crate::program::{Flow, Program};

/// The divide-and-shuffle program.
pub struct DsSync {
    /// The task and optimizer of this member.
    pub local_trainer: LocalTrainer,
    /// Which members average with each other. Without shuffling the groups never change, so the members of different groups exchange
    /// nothing.
    pub groups: Groups,
}

impl Program for DsSync {
    const NAME: &'static str = "ds-sync";
    const LOCAL_PARAMETERS: bool = true;
    const GROUPED_OPTIMIZER: bool = true;

    fn owner_moments(_: &Loaded) -> usize {
        0
    }

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let (step, parameters, room) = context.begin_step().await?;
        if step.is_over {
            return Ok(Break(()));
        }
        let (vector, stats, pending) = self.local_trainer.train(&step, parameters, room).await?.split();
        let contribution = Contribution { vector, stats };
        let summed = step.reduce_scatter_among(self.groups, contribution);
        let averaged = step.average_owned();
        let gathered = step.all_gather();
        summed.await?;
        averaged.await?;
        gathered.await?;
        self.local_trainer.commit(pending);
        Ok(Continue(()))
    }
}
