//! The member's role: it trains in a view, and agrees with the other members on the next one.
//!
//! # Files
//! - `messages`: joiners, votes on the next view, other branches, and requests of users.
//! - `frames`: messages of training.
//! - `views`: the first view of this member, the next one, and its exclusion.
//! - `commands`: the commands of the program.
//! - `checkpoints`: when all members save one.
//! - `ending`: the end of the run, and the user's wish to leave.
//! - `inspect`: the report for status requests.

use std::collections::BTreeSet;

use peergrad_models::task::Evaluation;
use peergrad_protocol::invite::Secret;
use peergrad_protocol::message::{
    AgreementMessage, Heartbeat, JoinMessage, Message, TrainingMessage, Welcome,
};
use peergrad_protocol::view::{ExpulsionCause, MemberFault, Resume, View};
use peergrad_protocol::{Buffer, Frame, Instant, PeerId, StepNumber, ViewDigest};

use crate::io::{Failure, Output, Reject, Work};
use crate::machine::context::NodeContext;
use crate::machine::early_frames::return_credit;
use crate::machine::jobs::{Jobs, Purpose};
use crate::machine::role::{Farewell, Interrupt, Role, Transition};
use crate::machine::run_setup::RunSetup;
use crate::membership::journal::Effect;
use crate::membership::{Measurement, Membership, TrainingCommand, TrainingStatus};
use crate::merge::{Branch, MergeNegotiation};
use crate::node_report::{NodeReport, NodeState};
use crate::peer_links::Route;
use crate::program::command::ProgramCommand;
use crate::program::loader::Shares;
use crate::state::checkpoint::CheckpointSchedule;
use crate::training::Training;

mod checkpoints;
pub(super) mod commands;
mod ending;
mod evaluations;
mod frames;
mod inspect;
mod messages;
mod views;

/// What a member holds while it is in a view.
pub(super) struct ActiveMember {
    /// This member's part in training.
    pub(super) training: Training,
    /// What it knows of the other members.
    membership: Membership,
    /// How far it has got with the run.
    progress: Progress,
    /// When all members save a checkpoint.
    checkpoint_schedule: CheckpointSchedule,
    /// The negotiation with other branches of a partitioned swarm.
    negotiation: MergeNegotiation,
    /// Why this peer leaves: its user has asked it to, or training has diverged. It hands over its chunks first. `None` if it stays.
    leaves_for: Option<Failure>,
}

/// How far a member has got with the run.
#[derive(Clone, Copy, PartialEq)]
enum Progress {
    /// It trains, or waits for others to do so.
    Training,
    /// The last step is committed, and the final parameters are being evaluated.
    Evaluating,
}

impl ActiveMember {
    /// Calls `ask` with the membership and the status of training, on which the answer depends.
    fn with_status<T>(
        &mut self,
        jobs: &Jobs,
        ask: impl FnOnce(&mut Membership, &TrainingStatus<'_>) -> T,
    ) -> T {
        let training = &self.training;
        let report = || training.report();
        let mut status = training.status(&report, jobs.program());
        let offer = self.negotiation.ready_offer(&training.view().members);
        status.merge.offer = offer.filter(|offer| !training.has_merged(offer.view));
        ask(&mut self.membership, &status)
    }

    /// Carries out what the membership commands the training to do.
    fn apply(&mut self, commands: Vec<TrainingCommand>, out: &mut Vec<Output>) {
        for command in commands {
            match command {
                TrainingCommand::Freeze => self.training.base_mut().freeze(),
                TrainingCommand::StopBefore(step) => self.training.stop_before(step, out),
                TrainingCommand::Continue => self.training.continue_steps(out),
            }
        }
    }

    /// The negotiation with other branches, and what it needs of this member's branch.
    fn negotiation<'a>(&'a mut self, cx: &'a mut NodeContext<'_>) -> (&'a mut MergeNegotiation, Branch<'a>) {
        let Self { training, membership, negotiation, .. } = self;
        let (now, me, links) = (cx.now, cx.node.me.peer, &cx.node.links);
        (negotiation, Branch { now, me, links, training, membership, out: cx.out })
    }

    /// Two branches have been merged: evaluates the parameters of each, and the merged ones.
    fn evaluate_merge(&mut self, cx: &mut NodeContext<'_>) {
        if let Some((comparison, task)) =
            self.training.branch_snapshots_mut().and_then(|mut snapshots| snapshots.take_comparison())
        {
            let cost = 3 * u64::from(task.held_out_count());
            let work = Work::whole(move || comparison.evaluate(&*task));
            cx.node.jobs.start(Purpose::EvaluateMerge, cost, work, cx.out);
        }
    }

    /// The message with the present view, for peers that should be in it, or should learn that they are not.
    fn install_message(&self) -> Message {
        Message::Agreement(AgreementMessage::Install(View::clone(self.training.view())))
    }

    /// The welcome to a joiner: the run's specification, and its present members.
    fn welcome_message(&self, run: &RunSetup) -> Message {
        let (specification, nonce) = run.identity();
        let contacts = self.membership.members.contacts();
        Message::Join(JoinMessage::Welcome(Welcome {
            specification: specification.to_vec(),
            nonce,
            non_owners: self.training.base().non_owners(self.training.step(), &contacts),
            members: contacts,
        }))
    }

    /// Whether this member keeps a snapshot of the present view for another branch.
    fn has_snapshot(&self) -> bool {
        self.training.branch_snapshots().is_some_and(|snapshots| snapshots.has_snapshot())
    }

    /// The number of steps that this branch has committed since that snapshot: they are not merged.
    fn steps_since_snapshot(&self) -> u64 {
        self.training.branch_snapshots().map_or(0, |merging| merging.steps_since_snapshot())
    }

    /// Whether this member can change from its present view to the one that has been chosen, which resumes as `resume` says.
    fn can_enter(&self, resume: &Resume) -> bool {
        let is_between_steps = !resume.is_interruption() && !self.training.is_over();
        !is_between_steps
            || self.training.steps().is_some_and(|steps| steps.has_stopped_before(resume.step))
            || self.training.step() > resume.step
            || self.membership.is_troubled()
    }
}

impl Role for ActiveMember {
    fn state(&self) -> NodeState {
        NodeState::Member(self.member_progress())
    }

    fn report(&self, now: Instant, jobs: &Jobs) -> NodeReport {
        NodeReport::Member(Box::new(self.details(now, jobs)))
    }

    fn next_tick(&self) -> Option<Instant> {
        if self.progress != Progress::Training {
            return None;
        }
        self.membership.deadline().into_iter().chain(self.checkpoint_schedule.deadline()).min()
    }

    fn wake(&mut self) {
        if let Some(tables) = self.training.tables_mut() {
            tables.wake();
        }
    }

    fn on_tick(&mut self, cx: &mut NodeContext<'_>) {
        if self.progress != Progress::Training {
            return;
        }
        // Tables deal samples as they are asked for, and their messages have no topology.
        let config = self.training.steps().is_some().then(|| &self.training.base().loaded().config);
        let is_dealt_by_speed = config.is_some_and(|config| config.dealing.shares == Shares::Speed);
        let line = config.filter(|config| config.chooses_topology()).map(|_| cx.node.links.member_line());
        let speed = cx.node.jobs.samples_per_minute().filter(|_| is_dealt_by_speed);
        let (samples_per_minute, line) = (speed.unwrap_or_default(), line.unwrap_or_default());
        self.membership.set_measurement(Measurement { samples_per_minute, line });
        let commands =
            self.with_status(&cx.node.jobs, |membership, status| membership.tick(cx.now, status, cx.out));
        self.apply(commands, cx.out);
        self.membership.test_disk(cx.now, &mut cx.node.journal, cx.out);
        self.save_if_due(cx.now, cx.out);
        let (negotiation, mut branch) = self.negotiation(cx);
        negotiation.poll(&mut branch);
    }

    fn poll(&mut self, cx: &mut NodeContext<'_>) {
        if self.progress == Progress::Training {
            let commands =
                self.with_status(&cx.node.jobs, |membership, status| membership.poll(cx.now, status, cx.out));
            self.apply(commands, cx.out);
        }
    }

    fn retire_if_done(&mut self, cx: &mut NodeContext<'_>) {
        if self.leaves_for.is_some()
            && !self.membership.members.is_retiring()
            && self.training.has_wound_down()
        {
            self.membership.members.on_retire(cx.node.me.peer);
            self.poll(cx);
        }
    }

    fn advance(&mut self, cx: &mut NodeContext<'_>) -> Result<(), Transition> {
        views::enter_next(self, cx)?;
        self.evaluate_merge(cx);
        evaluations::begin_if_due(self, cx);
        ending::advance(self, cx)
    }

    fn on_link_up(&mut self, cx: &mut NodeContext<'_>, peer: PeerId) {
        self.membership.link_up(cx.now, peer);
        self.training.link_up(&peer, cx.out);
    }

    fn on_link_down(&mut self, cx: &mut NodeContext<'_>, peer: PeerId, _reason: String) {
        self.training.link_down(&peer);
        self.membership.members.link_down(&peer);
        if self.training.view().rank(&peer).is_none() {
            self.membership.admission.forget(&peer);
            // A peer that is no member dials again if it needs the link.
            cx.out.push(Output::Disconnect(peer));
            return;
        }
        if self.training.base().is_needed(&peer) {
            // A member is dialed again, whether it closed the link or was cut off.
            cx.out.extend(self.training.base().contact_of(&peer).map(Output::Dial));
            self.poll(cx);
        }
    }

    fn on_route_changed(&mut self, cx: &mut NodeContext<'_>, peer: PeerId, route: Route) {
        self.membership.members.set_route(cx.now, peer, route);
        self.poll(cx);
    }

    fn on_reachability_changed(&mut self, cx: &mut NodeContext<'_>) {
        self.membership.offer_capacity(cx.node.me.capacity);
        self.poll(cx);
    }

    fn on_credit(&mut self, cx: &mut NodeContext<'_>, peer: PeerId, segments: u32) {
        if self.training.view().rank(&peer).is_some() {
            self.training.credit(&peer, segments, cx.out);
        } else {
            cx.node.links.give_back(&peer, segments);
        }
    }

    fn on_message(
        &mut self,
        cx: &mut NodeContext<'_>,
        from: PeerId,
        message: Message,
        payload: Option<Buffer>,
    ) -> Result<(), Interrupt> {
        self.membership.members.heard(cx.now, &from);
        match self.progress {
            Progress::Training => messages::receive(self, cx, from, message, payload),
            Progress::Evaluating => {
                messages::answer_after_end(self, cx, from, &message);
                Ok(())
            }
        }
    }

    fn on_view_message(
        &mut self,
        cx: &mut NodeContext<'_>,
        from: PeerId,
        view: ViewDigest,
        message: TrainingMessage,
        frame: Frame,
    ) -> Result<(), Reject> {
        self.membership.members.heard(cx.now, &from);
        if self.training.base().digest() == view {
            cx.node.early_frames.keep_only(from, view, cx.out);
            return frames::receive(self, cx, from, message, frame.payload);
        }
        if !self.training.base().is_past(&view) {
            return cx.node.early_frames.hold(from, view, frame, cx.out);
        }
        return_credit(from, &message, cx.out);
        if let TrainingMessage::Closed(closed) = message {
            self.training.base_mut().closed_before(closed);
        }
        Ok(())
    }

    fn complain(&mut self, cx: &mut NodeContext<'_>, about: PeerId, fault: MemberFault) {
        if self.membership.members.complain(cx.now, &about, fault, cx.out) {
            self.poll(cx);
        }
    }

    fn take_heartbeat(&mut self) -> Option<(Heartbeat, Vec<PeerId>)> {
        self.membership.members.take_heartbeat()
    }

    fn on_contribution(&mut self, cx: &mut NodeContext<'_>, command: ProgramCommand) {
        commands::carry_out(self, cx, command);
    }

    fn on_busy(&mut self, cx: &mut NodeContext<'_>) {
        self.membership.heartbeat_is_due(cx.now);
    }

    fn on_step_evaluated(&mut self, cx: &mut NodeContext<'_>, steps: StepNumber, evaluation: Evaluation) {
        evaluations::finish(self, cx, steps, evaluation);
    }

    fn on_evaluated(&mut self, evaluation: Evaluation) -> Result<(), Transition> {
        // A last batch of bad samples alone spoils no parameters.
        let is_bad = evaluation.samples == 0 || !evaluation.loss.is_finite();
        if let Some(failure) = self.training.failure_at_end().filter(|_| is_bad) {
            return Err(failure.into());
        }
        match self.training.final_state() {
            Some(mut state) => {
                state.evaluation = Some(evaluation);
                Err(Transition::Complete(Box::new(state)))
            }
            None => Ok(()),
        }
    }

    fn on_persisted(&mut self, cx: &mut NodeContext<'_>, effects: Vec<Effect>) -> Result<(), Transition> {
        self.membership.persisted(effects, cx.out);
        let disk_fails = cx.node.journal.is_failing();
        if self.membership.members.set_disk_fails(cx.node.me.peer, disk_fails) {
            self.membership.heartbeat_is_due(cx.now);
            self.poll(cx);
        }
        Ok(())
    }

    fn expel(&mut self, cx: &mut NodeContext<'_>, peer: PeerId, cause: ExpulsionCause) {
        self.membership.members.expel(peer, cause, cx.out);
    }

    fn end_run(&mut self, cx: &mut NodeContext<'_>) {
        self.membership.end_run(cx.out);
    }

    fn declare_lost(&mut self) {
        self.membership.declare_lost();
    }

    fn rekey(&mut self, cx: &mut NodeContext<'_>, secret: Secret, drawn_at: u64) {
        self.membership.rekey(secret, drawn_at, cx.out);
    }

    fn leave(&mut self, cx: &mut NodeContext<'_>) -> Result<(), Transition> {
        // A user who stops a run that is about to fail learns that nothing is saved.
        let reason = self.training.failure_at_end().unwrap_or(Failure::Left);
        ending::leave(self, cx, reason)
    }

    fn farewell(&mut self, cx: &mut NodeContext<'_>) -> Farewell {
        let peers: BTreeSet<PeerId> = self.training.view().members.iter().map(|member| member.peer).collect();
        if self.training.failure_at_end().is_some() {
            return Farewell { state: None, peers };
        }
        if peers.len() == 1 {
            self.training.commit_alone(cx.out);
        }
        // This peer may be the last one that has the state.
        cx.out.extend(self.training.checkpoint());
        Farewell { state: self.training.final_state().or(cx.node.state_before.take()), peers }
    }
}
