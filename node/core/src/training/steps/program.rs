//! The program's side of a step: which step it has begun, what it has requested, and what it waits for.
//!
//! Each step has its own turn. A command carries the turn of the step that it belongs to, so that a command which arrives after an
//! interruption is recognized as void.

use std::sync::Arc;

use peergrad_collectives::groups::Groups;
use peergrad_models::task::Claim;
use peergrad_protocol::PeerId;
use peergrad_protocol::cursor::Span;

use super::StepEngine;
use super::state::{StepKind, StepState};
use crate::io::{Output, Reject};
use crate::program::batch::Batch;
use crate::program::command::{ProgramCommand, Reply, StepStart};
use crate::state::owner_rule::OwnerRule;
use crate::state::shard_map::StepShards;

/// The state of this member's program.
#[derive(Default)]
pub(super) struct ProgramStep {
    /// Counts the steps that the program has begun.
    turn: u64,
    /// The program's part in the step in progress. `None` until it has begun that step.
    pub(super) current: Option<CurrentStep>,
    /// The replies that the program waits for.
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
    /// What the program's jobs compute is wanted for as long as this step is in progress.
    claim: Claim,
    /// Whether this member has contributed, or the first part of it, so that sums of its shard may become final.
    pub(super) has_contributed: bool,
    /// How the members of the step's round are grouped; `None`: all are one group.
    pub(super) among: Option<Groups>,
    /// The rule by which owners use their sums; `None` until the program has named it.
    pub(super) rule: Option<OwnerRule>,
    /// How much of this member's shard is summed, and was sent to holders of replicas.
    pub(super) summed: ShardPrefix,
    /// The sum of the squares of these sums; 0 unless gradients are clipped.
    pub(super) squares: f64,
    /// How much of this member's shard has its final values.
    pub(super) updated: ShardPrefix,
    /// Whether final values may be sent to all members.
    pub(super) wants_gather: bool,
}

/// The first chunks of this member's shard.
#[derive(Clone, Copy, Default)]
pub(super) struct ShardPrefix {
    /// The number of those chunks.
    pub(super) chunks: usize,
    /// The number of their elements.
    pub(super) elements: usize,
}

impl ProgramStep {
    /// Whether a command belongs to the step that the program has begun last, and that was not interrupted since.
    fn is_current(&self, turn: u64) -> bool {
        self.current.as_ref().is_some_and(|current| current.turn == Some(turn))
    }

    /// The step is open: replies to a program that waits for a view, or for this step.
    pub(super) fn answer(&mut self, state: &StepState) {
        if let Some(reply) = self.replies.ready.take() {
            // Here and below, the send fails if the program has ended and no longer waits.
            let _ = reply.send(());
        }
        if self.current.is_none()
            && !state.base.barrier.is_waiting()
            && let Some(reply) = self.replies.begin.take()
        {
            self.start_step(state, reply);
        }
    }

    fn start_step(&mut self, state: &StepState, reply: Reply<StepStart>) {
        let (base, config) = (&state.base, &state.base.loaded.config);
        let is_over = state.is_over();
        let samples: Arc<[u32]> = if is_over {
            Arc::new([])
        } else {
            let order = base.cache.order(config, state.assignment.epoch, base.loaded.task.sample_count());
            let of = |span: &Span| order[span.start as usize..span.end as usize].iter().copied();
            state.part().iter().flat_map(of).collect()
        };
        let local_steps = state.local_steps(state.step, state.assignment());
        self.turn += 1;
        let current = self.current.insert(CurrentStep::of_program(self.turn));
        let batch = Batch {
            is_over,
            epoch: state.assignment.epoch,
            rate: config.schedule.rate(local_steps.start),
            local_steps,
            samples,
            is_checkpoint: state.is_saved_after(state.step),
            rank: base.rank,
            member_count: base.view().members.len(),
            turn: self.turn,
            run_seed: config.seed,
            part_elements_min: state.part_elements_min(),
            wanted: current.claim.wanted(),
        };
        let begun = StepStart {
            number: state.step,
            batch,
            parameters: Arc::clone(state.commit.complete.as_ref().expect("a step is opened with parameters")),
            room: base.vectors.take(base.shard_map.sharding.chunks.parameter_count()),
        };
        // The buffer of a reply that fails returns to its pool by itself.
        let _ = reply.send(begun);
    }

    /// The program contributes to the step in progress.
    fn reduce_scatter(&mut self, among: Option<Groups>, reply: Reply<()>) {
        if let Some(current) = &mut self.current {
            current.has_contributed = true;
            current.among = among;
            self.replies.reduced = Some(reply);
        }
    }

    /// Takes the optimizer step for this member's shard, as its sums arrive.
    fn update_owned(&mut self, rule: OwnerRule, reply: Reply<()>) {
        if let Some(current) = &mut self.current {
            current.rule = Some(rule);
            self.replies.updated = Some(reply);
        }
    }

    /// Sends this member's shard to all members, as its values become final.
    fn all_gather(&mut self, reply: Reply<()>) {
        if let Some(current) = &mut self.current {
            current.wants_gather = true;
            self.replies.gathered = Some(reply);
        }
    }

    /// The step is completed without the program, to which it looks as if its operations had succeeded. Returns the program's turn.
    pub(super) fn finish_silently(&mut self) -> Option<u64> {
        let replies = [&mut self.replies.reduced, &mut self.replies.updated];
        for reply in replies.into_iter().filter_map(Option::take) {
            let _ = reply.send(());
        }
        self.current.as_ref().and_then(|current| current.turn)
    }

    /// The step is complete.
    pub(super) fn end_step(&mut self) {
        self.current = None;
        if let Some(reply) = self.replies.gathered.take() {
            let _ = reply.send(());
        }
    }

    /// All commands of the program so far are void; a program that waits for the next step gets this one.
    pub(super) fn interrupt(&mut self) {
        self.current = None;
        let PendingReplies { begin, ready, .. } = std::mem::take(&mut self.replies);
        self.replies = PendingReplies { begin, ready, ..PendingReplies::default() };
    }
}

impl StepEngine {
    /// Whether a command belongs to the step that the program has begun last, and that was not interrupted since.
    pub(in crate::training) fn is_current(&self, turn: u64) -> bool {
        self.program.is_current(turn)
    }

    /// Carries out a command of the program.
    ///
    /// # Errors
    /// A member that is ahead sent a segment that the plan does not contain.
    pub(in crate::training) fn command(
        &mut self,
        command: ProgramCommand,
        out: &mut Vec<Output>,
    ) -> Result<(), (PeerId, Reject)> {
        let mut taken = Ok(());
        match command {
            ProgramCommand::Ready(reply) => self.program.replies.ready = Some(reply),
            ProgramCommand::Begin(reply) => self.program.replies.begin = Some(reply),
            ProgramCommand::ReduceScatter { turn, contribution, among, reply } if self.is_current(turn) => {
                assert!(
                    among.is_none() || self.state.kind == StepKind::LocalParameters,
                    "groups are for programs with local parameters"
                );
                self.program.reduce_scatter(among, reply);
                self.contribute(contribution);
                taken = self.take_early(out);
            }
            ProgramCommand::ContributePart { turn, part } if self.is_current(turn) => {
                self.contribute_part(part);
                taken = self.take_early(out);
            }
            ProgramCommand::UpdateOwned { turn, rule, reply } if self.is_current(turn) => {
                if let OwnerRule::Custom(_) = rule {
                    let words =
                        "a program whose owners update by a rule of its own says so: Program::CUSTOM_RULE";
                    assert!(self.state.base.loaded.program.has_custom_rule(), "{words}");
                }
                self.program.update_owned(rule, reply);
            }
            ProgramCommand::AllGather { turn, reply } if self.is_current(turn) => {
                self.program.all_gather(reply);
            }
            ProgramCommand::UpdateOwned { turn, reply, .. } | ProgramCommand::AllGather { turn, reply }
                if self.group.is_finished(turn) =>
            {
                let _ = reply.send(());
                return Ok(());
            }
            ProgramCommand::Finished(reply) => {
                self.close(reply, out);
                return Ok(());
            }
            // A command of an interrupted step is dropped together with its reply, and so is a command for tables.
            ProgramCommand::ReduceScatter { .. }
            | ProgramCommand::ContributePart { .. }
            | ProgramCommand::UpdateOwned { .. }
            | ProgramCommand::AllGather { .. }
            | ProgramCommand::Compute { .. }
            | ProgramCommand::BeginClock(_)
            | ProgramCommand::EndRun
            | ProgramCommand::Operate { .. } => return Ok(()),
        }
        self.make_progress(out);
        taken
    }
}

impl CurrentStep {
    /// A step that the program has begun.
    fn of_program(turn: u64) -> Self {
        Self {
            turn: Some(turn),
            claim: Claim::default(),
            has_contributed: false,
            among: None,
            rule: None,
            summed: ShardPrefix::default(),
            squares: 0.0,
            updated: ShardPrefix::default(),
            wants_gather: false,
        }
    }

    /// A step that the member takes without its program; owners update by this rule.
    pub(super) fn silent(rule: Option<OwnerRule>) -> Self {
        Self {
            turn: None,
            claim: Claim::default(),
            has_contributed: true,
            among: None,
            rule,
            summed: ShardPrefix::default(),
            squares: 0.0,
            updated: ShardPrefix::default(),
            wants_gather: true,
        }
    }

    /// The step is repeated, with the same rule.
    pub(super) fn repeat(&mut self) {
        (self.summed, self.updated) = (ShardPrefix::default(), ShardPrefix::default());
        self.squares = 0.0;
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
