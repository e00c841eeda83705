//! Steps with backup workers: they wait for most contributions, and not for the last few.
//!
//! Like a meeting that begins when all but two people are there: a latecomer has missed it, and reads the minutes.
//!
//! # How it works
//! ```text
//! member                                            first owner
//!   | -- StepProgress: the step before is complete here --> |   its node says so, whatever its program does meanwhile
//!   | -- StepProgress: a contribution is there -----------> |   counts them
//!   | <--------------- StepContributors: which members are late |   all have completed the step before, enough have contributed
//!   | == a round of the contributions of the others  |   late members own, sum up and gather as in any step
//! ```
//! A late member takes the step without its program: owners update by the run's rule, which the node knows. The program's gradient is
//! discarded, and its samples count as left out.
//!
//! # Invariants
//! - The contributors of a step are chosen once in a view, by one member, so that all owners add up the same contributions.
//! - They are chosen once every member has completed the step before: a finished sum commits that step, as in any other step.
//!
//! # Reading
//! Chen et al., *Revisiting Distributed Synchronous SGD*, 2016, section 3. There the first gradients that arrive are used. Here a control
//! message precedes them, which costs two hops, and no gradient is sent only to be discarded.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

use peergrad_protocol::message::{SampleStats, Stage, StepContributors, StepProgress, TrainingMessage};
use peergrad_protocol::{Frame, PeerId, Rank, StepNumber};

use super::StepEngine;
use super::program::CurrentStep;
use super::state::{StepKind, StepState};
use crate::io::{Output, Reject};
use crate::program::contribution::Contribution;
use crate::state::owner_rule::OwnerRule;

/// What a member knows about a step before its round begins.
#[derive(Default)]
pub(super) struct BackupWorkers {
    /// This member's contribution, until it is known whether the step uses it.
    offered: Option<Contribution>,
    /// The progress that this member has last sent to the first owner; `None` before the first.
    reported: Option<ReportedStep>,
    /// Whether that message may have been lost with a link.
    must_repeat: bool,
    /// At the first owner: the last reported progress of each rank.
    offers: BTreeMap<Rank, ReportedStep>,
    /// The late members of the newest step for which they are known.
    choice: Option<Choice>,
    /// The last step that did not use this member's contribution.
    late_in: Option<StepNumber>,
}

/// A member's progress.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ReportedStep {
    /// The step in progress.
    step: StepNumber,
    /// Whether the member has a contribution to that step.
    has_contribution: bool,
}

/// The late members of a step.
#[derive(Clone, PartialEq, Eq)]
struct Choice {
    step: StepNumber,
    /// The late members, by rank. Empty if the step uses all contributions.
    late: Vec<Rank>,
}

impl BackupWorkers {
    /// Keeps a contribution until it is known whether the step uses it.
    pub(super) fn keep(&mut self, contribution: Contribution) {
        self.offered = Some(contribution);
    }

    /// Whether a contribution waits for its round.
    pub(super) fn has_offered(&self) -> bool {
        self.offered.is_some()
    }

    /// The offered contribution is not needed any more.
    pub(super) fn withdraw_offer(&mut self) {
        self.offered = None;
    }

    /// The step in progress is complete.
    pub(super) fn end_step(&mut self) {
        self.offered = None;
        self.choice = None;
    }

    /// In a new view, members report again.
    pub(super) fn leave_view(&mut self) {
        self.reported = None;
        self.offers.clear();
        self.choice = None;
    }

    /// How many samples of the step in progress this member has computed, if the step uses its contribution.
    pub(super) fn own_samples(&self, state: &StepState) -> u64 {
        if self.late_in == Some(state.step) { 0 } else { state.part_len() }
    }

    /// The step in progress is repeated. Returns whether its round had begun without this member's contribution.
    pub(super) fn forget_lateness(&mut self, step: StepNumber) -> bool {
        self.late_in.take() == Some(step)
    }

    /// Tells the first owner about this member's progress, unless it knows.
    fn offer(&mut self, state: &StepState, out: &mut Vec<Output>) {
        let readiness = ReportedStep { step: state.step, has_contribution: self.offered.is_some() };
        let was_told = self.reported.replace(readiness) == Some(readiness);
        if !std::mem::take(&mut self.must_repeat) && was_told {
            return;
        }
        let chooser = chooser(state);
        if chooser == state.base.rank {
            self.offers.insert(chooser, readiness);
        } else {
            let ReportedStep { step, has_contribution } = readiness;
            let (view, left_out) = (state.base.digest(), state.left_out_before());
            let offer = TrainingMessage::StepProgress(StepProgress { step, has_contribution, left_out })
                .in_view(view);
            let to = state.base.view().member(chooser).peer;
            out.push(Output::Send { to, frame: Frame::encode(&offer, None) });
        }
    }

    /// A member reports its progress.
    ///
    /// # Errors
    /// The sender is not a member of the view, or steps of this run wait for all members.
    pub(super) fn receive_offer(
        &mut self,
        state: &mut StepState,
        from: PeerId,
        offer: StepProgress,
    ) -> Result<(), Reject> {
        let rank = state.base.view().rank(&from).ok_or(Reject::NotAMember)?;
        if state.kind != StepKind::BackupWorkers {
            return Err(Reject::OutOfPlace);
        }
        let StepProgress { step, has_contribution, left_out, .. } = offer;
        self.offers.insert(rank, ReportedStep { step, has_contribution });
        state.base.omissions.report_total_before(left_out);
        Ok(())
    }

    /// Tells all members which of them are late, once enough of the others have contributed.
    fn choose(&mut self, state: &mut StepState, out: &mut Vec<Output>) {
        if self.choice(state.step).is_some() || chooser(state) != state.base.rank {
            return;
        }
        let (offers, members) = (&self.offers, &state.base.view().members);
        let ranks = || (0..members.len()).map(Rank::from_index);
        if !ranks().all(|rank| offers.get(&rank).is_some_and(|readiness| readiness.step >= state.step)) {
            return;
        }
        let ready = ReportedStep { step: state.step, has_contribution: true };
        let is_ready = |rank: &Rank| offers.get(rank) == Some(&ready);
        let wanted = wanted_contributors(state);
        let backups = state.base.loaded.config.backups.map_or(0, NonZeroUsize::get);
        let enough = wanted.len().saturating_sub(backups).max(1);
        if wanted.into_iter().filter(is_ready).count() < enough {
            return;
        }
        let late: Vec<Rank> = ranks().filter(|rank| !is_ready(rank)).collect();
        let left_out = state.base.omissions.reported_before().max(state.left_out_before());
        state.learn_left_out(left_out);
        let chosen = StepContributors { step: state.step, late: late.clone(), left_out };
        let base = &state.base;
        base.broadcast(&TrainingMessage::StepContributors(chosen).in_view(base.digest()), out);
        self.choice = Some(Choice { step: state.step, late });
    }

    /// What this member waits for before the round of the step in progress, and the members that owe it. `None` if it waits for no member.
    pub(super) fn awaited(&self, state: &StepState) -> Option<(Stage, BTreeSet<Rank>)> {
        if state.kind != StepKind::BackupWorkers || self.reported?.step != state.step {
            return None;
        }
        let chooser = chooser(state);
        if chooser != state.base.rank {
            return Some((Stage::Contributors, [chooser].into()));
        }
        let ranks = (0..state.base.view().members.len()).map(Rank::from_index);
        let is_behind = |rank: &Rank| self.offers.get(rank).is_none_or(|offer| offer.step < state.step);
        Some((Stage::Progress, ranks.filter(is_behind).collect()))
    }

    /// There is a new link to a member: what was sent to it before may be lost, and is sent again.
    pub(super) fn resend(&mut self, state: &StepState, peer: &PeerId, out: &mut Vec<Output>) {
        if state.kind != StepKind::BackupWorkers {
            return;
        }
        self.must_repeat = true;
        let is_chooser = chooser(state) == state.base.rank;
        if let Some(Choice { step, late }) = self.choice.clone().filter(|_| is_chooser) {
            let left_out = state.left_out_before();
            let chosen = TrainingMessage::StepContributors(StepContributors { step, late, left_out })
                .in_view(state.base.digest());
            out.push(Output::Send { to: *peer, frame: Frame::encode(&chosen, None) });
        }
    }

    /// The first owner says which members are late.
    ///
    /// # Errors
    /// The sender is not the first owner, or the step is not the one in progress, or it uses contributions that were not offered.
    pub(super) fn receive_choice(
        &mut self,
        state: &mut StepState,
        from: PeerId,
        chosen: StepContributors,
    ) -> Result<(), Reject> {
        let StepContributors { step, late, left_out, .. } = chosen;
        let rank = state.base.view().rank(&from).ok_or(Reject::NotAMember)?;
        let choice = Choice { step, late };
        if step < state.step || self.choice.as_ref() == Some(&choice) {
            // The choice was sent again over a new link.
            return Ok(());
        }
        let late = &choice.late;
        let is_late = late.contains(&state.base.rank);
        let has_told = |has_contribution| self.reported == Some(ReportedStep { step, has_contribution });
        let member_count = state.base.view().members.len();
        let is_possible = state.kind == StepKind::BackupWorkers
            && step == state.step
            && rank == chooser(state)
            && late.len() < member_count
            && late.iter().all(|rank| rank.index() < member_count)
            && (has_told(true) || (is_late && has_told(false)));
        if !is_possible || self.choice.is_some() {
            return Err(Reject::OutOfPlace);
        }
        state.learn_left_out(left_out);
        self.choice = Some(choice);
        Ok(())
    }

    /// This member's program is too late for the step in progress. Returns the step that the member takes without its program.
    fn go_without_program(&mut self, state: &StepState) -> CurrentStep {
        self.late_in = Some(state.step);
        let optimizer = state.base.loaded.config.optimizer();
        let rate = state.rate(state.step, state.assignment());
        let rule = OwnerRule::optimizer(optimizer, rate);
        CurrentStep::silent(state.commit.complete.is_some().then_some(rule))
    }

    /// The late members of this step; `None` until they are known.
    fn choice(&self, step: StepNumber) -> Option<&Choice> {
        self.choice.as_ref().filter(|choice| choice.step == step)
    }
}

/// The member that chooses the contributors of the step in progress: the first owner.
fn chooser(state: &StepState) -> Rank {
    let shards = state.base.shards(state.step);
    Rank::from_index(shards.layout.first_owner().unwrap_or(0))
}

/// The contributors of the step in progress if none was late: the members that have samples to compute. If the step is repeated and
/// only lost members had samples: all members that have parameters.
fn wanted_contributors(state: &StepState) -> Vec<Rank> {
    let view = state.base.view();
    let has_samples = |rank: &Rank| {
        let member = view.member(*rank);
        state.assignment.part_len(&member.peer, member.incarnation) > 0
    };
    let newcomers = state.newcomers();
    let ranks = || (0..view.members.len()).map(Rank::from_index);
    let assigned: Vec<Rank> = ranks().filter(has_samples).collect();
    if assigned.is_empty() { ranks().filter(|rank| !newcomers.contains(rank)).collect() } else { assigned }
}

impl StepEngine {
    /// Sends progress, chooses contributors, and begins the round of the step in progress, as far as possible now.
    pub(super) fn begin_backup_round(&mut self, out: &mut Vec<Output>) {
        let state = &mut self.state;
        let is_due = self.gate.is_open && !state.is_over() && !self.rounds.has_begun(state.step);
        if state.kind != StepKind::BackupWorkers || !is_due {
            return;
        }
        self.backup_workers.offer(state, out);
        self.backup_workers.choose(state, out);
        let Some(Choice { late, .. }) = self.backup_workers.choice(state.step) else { return };
        let count = state.base.view().members.len();
        let contributors = (0..count).filter(|rank| late.binary_search(&Rank::from_index(*rank)).is_err());
        let contributors = contributors.collect();
        let contribution = if late.contains(&state.base.rank) {
            let vector = state.base.segments.take(0);
            self.interrupt();
            self.program.current = Some(self.backup_workers.go_without_program(&self.state));
            Contribution { vector, stats: SampleStats::default() }
        } else {
            self.backup_workers.offered.take().expect("a member that is in time has offered a contribution")
        };
        self.start_round(contribution.into(), Some(contributors));
        if let Err((peer, _)) = self.take_early(out) {
            out.push(Output::Disconnect(peer));
        }
    }
}
