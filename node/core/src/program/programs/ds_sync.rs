//! Divide and shuffle: each member takes its own steps and averages parameters with a few others; with whom, changes.
//!
//! In even rounds members stand in rows, in odd ones in columns of the same grid, so what one of them has learnt reaches all
//! in two rounds, while a round waits for a few members only. Optimizer state is each member's own, and gradients are never
//! sent.
//!
//! # Cost
//! A step sends 2 (g - 1) / g times the parameters from each of g members of a group, in 2 (g - 1) hops where a ring of all n
//! takes 2 (n - 1). A member that is slow now and then holds up its group and not everybody; one that is always slow holds
//! up all, as in a ring, since groups are shuffled.
//!
//! # What the model is
//! While members train, each has parameters of its own. In the last step all of them are averaged, and every member ends
//! with the same bits. A joiner begins with the mean of all.
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

/// Divide-and-shuffle synchronization.
pub struct DsSync {
    /// What this member does by itself.
    pub local_trainer: LocalTrainer,
    /// Who averages with whom. Without shuffling the members of a group never hear of the others.
    pub groups: Groups,
}

impl Program for DsSync {
    const NAME: &'static str = "ds-sync";
    const LOCAL_PARAMETERS: bool = true;

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
