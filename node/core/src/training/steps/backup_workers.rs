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

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use peergrad_protocol::message::{SampleStats, StepContributors, StepProgress, TrainingMessage};
use peergrad_protocol::{Frame, PeerId, Rank, StepNumber};

use super::program::CurrentStep;
use super::{StepEngine, StepKind};
use crate::io::{Output, Reject};
use crate::program::contribution::Contribution;
use crate::state::owner_rule::OwnerRule;

/// What a member knows about a step before its round begins.
#[derive(Default)]
pub(super) struct BackupWorkers {
    /// This member's contribution, until it is known whether the step uses it.
    offered: Option<Contribution>,
    /// The progress that this member has last sent to the first owner; `None` before the first.
    reported: Option<Readiness>,
    /// Whether that message may have been lost with a link.
    must_repeat: bool,
    /// At the first owner: the last reported progress of each rank.
    offers: BTreeMap<Rank, Readiness>,
    /// The late members of the newest step for which they are known.
    choice: Option<Choice>,
    /// The last step that did not use this member's contribution.
    late_in: Option<StepNumber>,
}

/// A member's progress.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Readiness {
    /// The step in progress.
    step: StepNumber,
    /// Whether the member has a contribution to that step.
    has_contribution: bool,
}

/// The late members of a step.
#[derive(Clone, PartialEq, Eq)]
struct Choice {
    step: StepNumber,
    late: Vec<Rank>,
}

impl BackupWorkers {
    /// Keeps a contribution until it is known whether the step uses it.
    pub(super) fn offer(&mut self, contribution: Contribution) {
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
}

impl StepEngine {
    /// Whether steps wait for fewer than all contributions.
    pub(super) fn has_backups(&self) -> bool {
        self.kind == StepKind::BackupWorkers
    }

    /// Whether the step in progress uses this member's contribution.
    pub(super) fn was_in_time(&self) -> bool {
        self.backup_workers.late_in != Some(self.step)
    }

    /// Sends progress, chooses contributors, and begins the round of the step in progress, as far as possible now.
    pub(super) fn begin_backup_round(&mut self, out: &mut Vec<Output>) {
        let has_begun = self.rounds.live.back().is_some_and(|live| live.step == self.step);
        if !self.has_backups() || !self.gate.is_open || self.is_over() || has_begun {
            return;
        }
        self.offer(out);
        self.choose(out);
        self.begin_chosen(out);
    }

    /// The member that chooses the contributors of the step in progress.
    fn chooser(&self) -> Rank {
        let shards = self.base.shards(self.step);
        Rank::from_index(shards.layout.first_owner().unwrap_or(0))
    }

    fn offer(&mut self, out: &mut Vec<Output>) {
        let readiness =
            Readiness { step: self.step, has_contribution: self.backup_workers.offered.is_some() };
        let was_told = self.backup_workers.reported.replace(readiness) == Some(readiness);
        if !std::mem::take(&mut self.backup_workers.must_repeat) && was_told {
            return;
        }
        let chooser = self.chooser();
        if chooser == self.base.rank {
            self.backup_workers.offers.insert(chooser, readiness);
        } else {
            let Readiness { step, has_contribution } = readiness;
            let (view, left_out) = (self.base.digest(), self.left_out_before());
            let offer = TrainingMessage::StepProgress(StepProgress { step, has_contribution, left_out })
                .in_view(view);
            let to = self.base.view().member(chooser).peer;
            out.push(Output::Send { to, frame: Frame::encode(&offer, None) });
        }
    }

    /// A member reports its progress.
    ///
    /// # Errors
    /// The sender is not a member of the view, or steps of this run wait for all members.
    pub(in crate::training) fn receive_offer(
        &mut self,
        from: PeerId,
        offer: StepProgress,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let rank = self.base.view().rank(&from).ok_or(Reject::NotAMember)?;
        if !self.has_backups() {
            return Err(Reject::OutOfPlace);
        }
        let StepProgress { step, has_contribution, left_out, .. } = offer;
        self.backup_workers.offers.insert(rank, Readiness { step, has_contribution });
        self.base.omissions.report_total_before(left_out);
        self.make_progress(out);
        Ok(())
    }

    /// The contributors of the step in progress if none was late: the members that have samples to compute. If the step is repeated and
    /// only lost members had samples: all members that have parameters.
    fn wanted_of(&self) -> Vec<Rank> {
        let view = self.base.view();
        let is_dealt = |rank: &Rank| {
            let member = view.member(*rank);
            self.assignment.part_len(&member.peer, member.incarnation) > 0
        };
        let newcomers = if self.step == view.first_step() { view.newcomers() } else { &[] };
        let ranks = || (0..view.members.len()).map(Rank::from_index);
        let dealt: Vec<Rank> = ranks().filter(is_dealt).collect();
        if dealt.is_empty() { ranks().filter(|rank| !newcomers.contains(rank)).collect() } else { dealt }
    }

    /// Tells all members which of them are late, once enough of the others have contributed.
    fn choose(&mut self, out: &mut Vec<Output>) {
        if self.choice().is_some() || self.chooser() != self.base.rank {
            return;
        }
        let (offers, members) = (&self.backup_workers.offers, &self.base.view().members);
        let ranks = || (0..members.len()).map(Rank::from_index);
        if !ranks().all(|rank| offers.get(&rank).is_some_and(|readiness| readiness.step >= self.step)) {
            return;
        }
        let ready = Readiness { step: self.step, has_contribution: true };
        let is_ready = |rank: &Rank| offers.get(rank) == Some(&ready);
        let wanted = self.wanted_of();
        let backups = self.base.loaded.config.backups.map_or(0, NonZeroUsize::get);
        let enough = wanted.len().saturating_sub(backups).max(1);
        if wanted.into_iter().filter(is_ready).count() < enough {
            return;
        }
        let late: Vec<Rank> = ranks().filter(|rank| !is_ready(rank)).collect();
        let left_out = self.base.omissions.reported_before().max(self.left_out_before());
        self.learn_left_out(left_out);
        let chosen = StepContributors { step: self.step, late: late.clone(), left_out };
        self.base.broadcast(&TrainingMessage::StepContributors(chosen).in_view(self.base.digest()), out);
        self.backup_workers.choice = Some(Choice { step: self.step, late });
    }

    /// There is a new link to a member: what was sent to it before may be lost, and is sent again.
    pub(super) fn resend(&mut self, peer: &PeerId, out: &mut Vec<Output>) {
        if !self.has_backups() {
            return;
        }
        self.backup_workers.must_repeat = true;
        let is_chooser = self.chooser() == self.base.rank;
        if let Some(Choice { step, late }) = self.backup_workers.choice.clone().filter(|_| is_chooser) {
            let left_out = self.left_out_before();
            let chosen = TrainingMessage::StepContributors(StepContributors { step, late, left_out })
                .in_view(self.base.digest());
            out.push(Output::Send { to: *peer, frame: Frame::encode(&chosen, None) });
        }
    }

    /// The first owner says which members are late.
    ///
    /// # Errors
    /// The sender is not the first owner, or the step is not the one in progress, or it uses contributions that were not offered.
    pub(in crate::training) fn receive_choice(
        &mut self,
        from: PeerId,
        chosen: StepContributors,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let StepContributors { step, late, left_out, .. } = chosen;
        let rank = self.base.view().rank(&from).ok_or(Reject::NotAMember)?;
        let choice = Choice { step, late };
        if step < self.step || self.backup_workers.choice.as_ref() == Some(&choice) {
            // The choice was sent again over a new link.
            return Ok(());
        }
        let late = &choice.late;
        let is_late = late.contains(&self.base.rank);
        let has_told =
            |has_contribution| self.backup_workers.reported == Some(Readiness { step, has_contribution });
        let is_possible = self.has_backups()
            && step == self.step
            && rank == self.chooser()
            && late.len() < self.base.view().members.len()
            && late.iter().all(|rank| rank.index() < self.base.view().members.len())
            && (has_told(true) || (is_late && has_told(false)));
        if !is_possible || self.backup_workers.choice.is_some() {
            return Err(Reject::OutOfPlace);
        }
        self.learn_left_out(left_out);
        self.backup_workers.choice = Some(choice);
        self.make_progress(out);
        Ok(())
    }

    /// The samples that the steps before the one in progress have left out, as far as this member knows.
    pub(super) fn left_out_before(&self) -> u64 {
        self.base.omissions.counted() + self.commit.uncommitted.as_ref().map_or(0, |record| record.left_out)
    }

    /// Adds the omissions of steps that a newcomer has not seen.
    fn learn_left_out(&mut self, before: u64) {
        self.base.omissions.add_unseen(before.saturating_sub(self.left_out_before()));
    }

    /// The late members of the step in progress; `None` until they are known.
    fn choice(&self) -> Option<&Choice> {
        self.backup_workers.choice.as_ref().filter(|choice| choice.step == self.step)
    }

    /// Begins the round of the step in progress, once it is known which members are late.
    fn begin_chosen(&mut self, out: &mut Vec<Output>) {
        let Some(Choice { late, .. }) = self.choice() else { return };
        let count = self.base.view().members.len();
        let contributors = (0..count).filter(|rank| late.binary_search(&Rank::from_index(*rank)).is_err());
        let contributors = contributors.collect();
        let contribution = if late.contains(&self.base.rank) {
            self.go_without_program();
            Contribution { vector: self.base.segments.take(0), stats: SampleStats::default() }
        } else {
            self.backup_workers.offered.take().expect("a member that is in time has offered a contribution")
        };
        self.start_round_of(contribution, Some(contributors));
        if let Err((peer, _)) = self.take_early(out) {
            out.push(Output::Disconnect(peer));
        }
    }

    /// This member's program is too late for the step in progress.
    fn go_without_program(&mut self) {
        self.backup_workers.late_in = Some(self.step);
        self.interrupt();
        let (rule, rate) = (self.base.loaded.config.rule, self.base.loaded.config.rate(self.step.0));
        let rule = self.commit.complete.is_some().then_some(OwnerRule::Optimizer { rule, rate });
        self.program.current = Some(CurrentStep::silent(rule));
    }

    /// The step in progress is repeated. Returns whether its round had begun without this member's contribution.
    pub(super) fn forget_lateness(&mut self) -> bool {
        self.backup_workers.late_in.take() == Some(self.step)
    }
}
