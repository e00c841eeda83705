//! The program's side of a step: which step it has begun, what it has requested, and what it waits for.
//!
//! Each step has its own turn. A command carries the turn of the step that it belongs to, so that a command which arrives after an
//! interruption is recognized as void.

use std::sync::Arc;

use peergrad_collectives::groups::Groups;
use peergrad_protocol::PeerId;
use peergrad_protocol::cursor::Span;

use super::StepEngine;
use crate::io::{Output, Reject};
use crate::program::command::{Reply, StepStart};
use crate::program::contribution::Contribution;
use crate::state::owner_rule::OwnerRule;
use crate::state::shard_map::StepShards;

/// The state of this member's program.
#[derive(Default)]
pub(super) struct ProgramStep {
    /// Counts the steps that the program has begun.
    turn: u64,
    /// The program's part in the step in progress. `None` until it has begun that step.
    pub(super) current: Option<CurrentStep>,
    pub(super) replies: PendingReplies,
}

/// What the program waits for, with the reply that is due.
#[derive(Default)]
pub(super) struct PendingReplies {
    /// For a view to train in.
    pub(super) ready: Option<Reply<()>>,
    /// For the next step to open.
    pub(super) begin: Option<Reply<StepStart>>,
    /// For the sums of this member's shard.
    pub(super) reduced: Option<Reply<()>>,
    /// For the final values of this member's shard.
    pub(super) updated: Option<Reply<()>>,
    /// For the step to be complete.
    pub(super) gathered: Option<Reply<()>>,
}

/// The program's part in the step in progress.
pub(super) struct CurrentStep {
    /// The turn in which the program has begun the step. `None` if the member takes the step without its program: a newcomer has no
    /// parameters to begin with, and a late member has missed the step.
    pub(super) turn: Option<u64>,
    /// Whether this member has contributed, so that sums of its shard may become final.
    pub(super) has_contributed: bool,
    /// How the members of the step's round are grouped; `None`: all are one group.
    pub(super) among: Option<Groups>,
    /// The rule by which owners use their sums; `None` until the program has named it.
    pub(super) rule: Option<OwnerRule>,
    pub(super) updated: UpdatedPrefix,
    /// Whether final values may be sent to all members.
    pub(super) wants_gather: bool,
}

/// How much of this member's shard has its final values, from the first chunk on.
#[derive(Clone, Copy, Default)]
pub(super) struct UpdatedPrefix {
    pub(super) chunks: usize,
    pub(super) elements: usize,
}

impl StepEngine {
    /// Replies when there is a view to train in.
    pub(in crate::training) fn ready(&mut self, reply: Reply<()>, out: &mut Vec<Output>) {
        self.program.replies.ready = Some(reply);
        self.make_progress(out);
    }

    /// Replies with the next step, once it is open.
    pub(in crate::training) fn begin(&mut self, reply: Reply<StepStart>, out: &mut Vec<Output>) {
        self.program.replies.begin = Some(reply);
        self.make_progress(out);
    }

    pub(super) fn start_step(&mut self, reply: Reply<StepStart>) {
        let config = &self.base.loaded.config;
        let is_over = self.is_over();
        let samples: Arc<[u32]> = if is_over {
            Arc::new([])
        } else {
            let sample_count = self.base.loaded.task.sample_count();
            let order = self.base.cache.order(config, self.assignment.epoch, sample_count);
            let of = |span: &Span| order[span.start as usize..span.end as usize].iter().copied();
            self.part().iter().flat_map(of).collect()
        };
        self.program.turn += 1;
        self.program.current = Some(CurrentStep::of_program(self.program.turn));
        let begun = StepStart {
            turn: self.program.turn,
            number: self.step,
            is_over,
            epoch: self.assignment.epoch,
            rate: config.rate(self.step.0),
            samples,
            rank: self.base.rank,
            member_count: self.base.view().members.len(),
            parameters: Arc::clone(self.commit.complete.as_ref().expect("a step is opened with parameters")),
            room: self.base.vectors.take(self.base.shard_map.sharding.chunks.parameter_count()),
        };
        // The send fails if the program has ended; the buffer then returns to its pool by itself.
        let _ = reply.send(begun);
    }

    /// Whether a command belongs to the step that the program has begun last, and that was not interrupted since.
    pub(in crate::training) fn is_current(&self, turn: u64) -> bool {
        self.program.current.as_ref().is_some_and(|current| current.turn == Some(turn))
    }

    /// Starts the round of the current step.
    ///
    /// # Errors
    /// A member that is ahead sent a segment that the plan does not contain.
    pub(in crate::training) fn reduce_scatter(
        &mut self,
        contribution: Contribution,
        among: Option<Groups>,
        reply: Reply<()>,
        out: &mut Vec<Output>,
    ) -> Result<(), (PeerId, Reject)> {
        assert!(
            among.is_none() || self.has_local_parameters(),
            "groups are for programs with local parameters"
        );
        let Some(current) = &mut self.program.current else { return Ok(()) };
        current.has_contributed = true;
        current.among = among;
        self.program.replies.reduced = Some(reply);
        self.contribute(contribution);
        self.take_early(out)?;
        self.make_progress(out);
        Ok(())
    }

    /// Takes the optimizer step for this member's shard, as its sums arrive.
    pub(in crate::training) fn update_owned(
        &mut self,
        rule: OwnerRule,
        reply: Reply<()>,
        out: &mut Vec<Output>,
    ) {
        if let OwnerRule::Custom(_) = rule {
            let words = "a program whose owners update by a rule of its own says so: Program::CUSTOM_RULE";
            assert!(self.base.loaded.program.has_custom_rule(), "{words}");
        }
        if let Some(current) = &mut self.program.current {
            current.rule = Some(rule);
            self.program.replies.updated = Some(reply);
        }
        self.make_progress(out);
    }

    /// Sends this member's shard to all members, as its values become final.
    pub(in crate::training) fn all_gather(&mut self, reply: Reply<()>, out: &mut Vec<Output>) {
        if let Some(current) = &mut self.program.current {
            current.wants_gather = true;
            self.program.replies.gathered = Some(reply);
        }
        self.make_progress(out);
    }

    /// All commands of the program so far are void; a program that waits for the next step gets this one.
    pub(super) fn interrupt(&mut self) {
        self.program.current = None;
        self.backup_workers.withdraw_offer();
        self.base.barrier.withdraw();
        let PendingReplies { begin, ready, .. } = std::mem::take(&mut self.program.replies);
        self.program.replies = PendingReplies { begin, ready, ..PendingReplies::default() };
    }
}

impl CurrentStep {
    /// A step that the program has begun.
    fn of_program(turn: u64) -> Self {
        Self {
            turn: Some(turn),
            has_contributed: false,
            among: None,
            rule: None,
            updated: UpdatedPrefix::default(),
            wants_gather: false,
        }
    }

    /// A step that the member takes without its program; owners update by this rule.
    pub(super) fn silent(rule: Option<OwnerRule>) -> Self {
        Self {
            turn: None,
            has_contributed: true,
            among: None,
            rule,
            updated: UpdatedPrefix::default(),
            wants_gather: true,
        }
    }

    pub(super) fn is_silent(&self) -> bool {
        self.turn.is_none()
    }

    /// Whether members gather the sums of the step, and each of them updates all chunks.
    pub(super) fn gathers_sums(&self, shards: &StepShards) -> bool {
        // A custom rule is called for owned chunks only.
        shards.is_fully_replicated && self.rule.as_ref().is_some_and(OwnerRule::keeps_state)
    }
}
