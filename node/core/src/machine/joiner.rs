//! The joiner's role: it asks to be admitted, prepares the task, and enters a view.
//!
//! A joiner that was a member before its restart also votes on the next view, if all members have stopped.

use std::sync::Arc;

use peergrad_protocol::message::{AgreementMessage, JoinMessage, Message, Refusal, TrainingMessage, Welcome};
use peergrad_protocol::view::View;
use peergrad_protocol::{Buffer, Frame, Instant, PeerId, ViewDigest};

use crate::io::{Failure, Output, Reject};
use crate::machine::context::NodeContext;
use crate::machine::jobs::Jobs;
use crate::machine::preparation::Donor;
use crate::machine::role::{Farewell, Interrupt, Role, Transition};
use crate::membership::join::{Joiner, RunIdentity};
use crate::membership::journal::Effect;
use crate::membership::recovery::Readiness;
use crate::membership::view_change::ViewChangePlanner;
use crate::node_report::{NodeReport, NodeState};
use crate::peer_links::Route;
use crate::program::loader::Loaded;
use crate::state::checkpoint::Checkpoint;
use crate::state::shard_map::ShardingConfig;

impl Role for Joiner {
    fn state(&self) -> NodeState {
        if self.is_recovering() { NodeState::Recovery } else { NodeState::Join }
    }

    fn report(&self, _now: Instant, _jobs: &Jobs) -> NodeReport {
        self.node_report()
    }

    fn next_tick(&self) -> Option<Instant> {
        self.deadline()
    }

    fn donor(&self) -> Donor {
        self.sponsor().map_or(Donor::Awaited, Donor::Sponsor)
    }

    fn on_tick(&mut self, cx: &mut NodeContext<'_>) {
        self.tick(cx.now, cx.node.links.linked(), cx.out);
        poll_recovery(self, cx);
    }

    fn on_link_up(&mut self, cx: &mut NodeContext<'_>, peer: PeerId) {
        self.link_up(cx.now, peer, cx.out);
        if self.sponsor() == Some(peer) {
            cx.node.run.restart_fetching(peer, cx.out);
        }
        report_ready(self, cx);
    }

    fn on_link_down(&mut self, cx: &mut NodeContext<'_>, peer: PeerId, _reason: String) {
        self.link_down(cx.now, peer);
    }

    fn on_route_changed(&mut self, cx: &mut NodeContext<'_>, peer: PeerId, route: Route) {
        self.set_route(peer, route);
        if route == Route::Direct && self.sponsor().is_none() && cx.node.links.is_linked(&peer) {
            self.link_up(cx.now, peer, cx.out);
        }
        report_ready(self, cx);
    }

    fn on_reachability_changed(&mut self, cx: &mut NodeContext<'_>) {
        self.reachability_changed(cx.now, &cx.node.me, cx.out);
    }

    fn on_message(
        &mut self,
        cx: &mut NodeContext<'_>,
        from: PeerId,
        message: Message,
        payload: Option<Buffer>,
    ) -> Result<(), Interrupt> {
        self.heard(&from);
        match message {
            Message::Join(message) => receive_join(self, cx, from, message, payload)?,
            Message::Agreement(message) => receive_agreement(self, cx, from, message)?,
            Message::Heartbeat(_) => self.on_heartbeat(from),
            Message::FrameCount { .. } => {}
            Message::Leave(departure) => self.departed(cx.now, from, &departure.reason)?,
            // It belongs to a view that this peer is not in, or to a branch that it has left.
            Message::Admin(_) | Message::Merge(_) | Message::InView { .. } => {}
        }
        Ok(())
    }

    fn on_view_message(
        &mut self,
        cx: &mut NodeContext<'_>,
        from: PeerId,
        view: ViewDigest,
        _message: TrainingMessage,
        frame: Frame,
    ) -> Result<(), Reject> {
        self.heard(&from);
        cx.node.early_frames.hold(from, view, frame, cx.out)
    }

    fn on_prepared(&mut self, cx: &mut NodeContext<'_>) {
        report_ready(self, cx);
    }

    fn on_program_idle(&mut self, cx: &mut NodeContext<'_>) {
        report_ready(self, cx);
    }

    fn on_persisted(&mut self, cx: &mut NodeContext<'_>, effects: Vec<Effect>) -> Result<(), Transition> {
        match self.persisted(effects, cx.out) {
            Some(entry) => Err(Transition::Enter(entry)),
            None => Ok(()),
        }
    }

    fn on_checkpoint_loaded(
        &mut self,
        cx: &mut NodeContext<'_>,
        result: Result<Arc<Checkpoint>, String>,
    ) -> Result<(), Transition> {
        let Some(steps) = self.restoring().map(View::first_step) else { return Ok(()) };
        let checkpoint = cx.node.run.fitting_checkpoint(steps, result)?;
        if let Some(view) = self.restored(checkpoint) {
            // The view was checked before the checkpoint was read.
            let _ = install(self, cx, view);
        }
        Ok(())
    }

    fn declare_lost(&mut self) {
        if let Some(recovering) = self.recovering() {
            recovering.declare_lost();
        }
    }

    fn farewell(&mut self, cx: &mut NodeContext<'_>) -> Farewell {
        Farewell { state: cx.node.state_before.take(), peers: self.sponsor().into_iter().collect() }
    }
}

/// A joiner that is prepared reports that it is ready. A joiner that was excluded because its program hung waits until the program's job
/// has ended.
fn report_ready(joiner: &mut Joiner, cx: &mut NodeContext<'_>) {
    if let Some(parameters) = cx.node.run.initial_digest().filter(|_| cx.node.jobs.computing().is_none()) {
        joiner.report_ready(parameters, |peer| cx.node.links.is_linked(&peer), cx.out);
    }
}

/// Handles the messages of joining.
fn receive_join(
    joiner: &mut Joiner,
    cx: &mut NodeContext<'_>,
    from: PeerId,
    message: JoinMessage,
    payload: Option<Buffer>,
) -> Result<(), Interrupt> {
    match message {
        JoinMessage::Join(join) => joiner.on_join(from, &join, cx.out),
        JoinMessage::Welcome(welcome) => receive_welcome(joiner, cx, from, welcome)?,
        JoinMessage::Redirect(contact) => joiner.on_refer(cx.now, from, contact, cx.out),
        JoinMessage::Refuse(refusal) => joiner.on_refuse(from, refusal)?,
        JoinMessage::Data(piece) if joiner.sponsor() == Some(from) => {
            cx.node.run.piece(from, piece, payload, &mut cx.node.jobs, cx.out)?;
        }
        // The sponsor that this peer asked for the data has refused it since, or this peer asks another member by now.
        JoinMessage::Data(_) => {}
        // This peer was a member when it welcomed the sender.
        JoinMessage::Ready(_) | JoinMessage::WantData(_) => {
            cx.send(from, &JoinMessage::Refuse(Refusal::NotReady).into());
        }
        // It is for the coordinator of a view that this peer is not in.
        JoinMessage::Candidate(_) => {}
    }
    Ok(())
}

/// A member has told this peer the run's specification and members.
fn receive_welcome(
    joiner: &mut Joiner,
    cx: &mut NodeContext<'_>,
    from: PeerId,
    welcome: Welcome,
) -> Result<(), Failure> {
    let had_sponsor = joiner.sponsor().is_some();
    let identity = joiner.on_welcome(cx.now, from, welcome, cx.out)?;
    if let Some(RunIdentity { specification, nonce }) = identity.filter(|_| !cx.node.run.is_preparing()) {
        return cx.node.run.prepare(specification.into(), nonce, &mut cx.node.jobs, cx.out);
    }
    if !had_sponsor {
        cx.node.run.restart_fetching(from, cx.out);
    }
    report_ready(joiner, cx);
    Ok(())
}

/// Handles a view that this peer may be in. While all members return from a stop, handles the votes on the next one.
fn receive_agreement(
    joiner: &mut Joiner,
    cx: &mut NodeContext<'_>,
    from: PeerId,
    message: AgreementMessage,
) -> Result<(), Reject> {
    let message = match message {
        AgreementMessage::Install(view) if joiner.is_in(&view) => return install(joiner, cx, view),
        AgreementMessage::Install(view) => {
            joiner.on_install(cx.now, from, view, &mut cx.node.journal);
            return Ok(());
        }
        other => other,
    };
    let is_promise = matches!(message, AgreementMessage::Promise(_));
    if let Some(recovering) = joiner.recovering() {
        let (now, journal) = (cx.now, &mut cx.node.journal);
        match message {
            AgreementMessage::Prepare(prepare) => {
                let readiness = cx.node.run.ready().map_or(Readiness::Preparing, |_| Readiness::Prepared);
                recovering.on_prepare(now, from, prepare, readiness, journal, cx.out);
            }
            AgreementMessage::Propose(propose) => recovering.on_propose(now, from, propose, journal, cx.out),
            AgreementMessage::Promise(promise) => recovering.on_promise(now, from, *promise, cx.out),
            AgreementMessage::Accepted(accepted) => recovering.on_accepted(from, accepted, cx.out),
            AgreementMessage::Nack(nack) => recovering.on_nack(now, &nack),
            // It is about a view that this peer is not in.
            AgreementMessage::Learn(_)
            | AgreementMessage::Install(_)
            | AgreementMessage::Complain { .. }
            | AgreementMessage::Withdraw { .. }
            | AgreementMessage::Measured { .. } => {}
        }
    }
    if is_promise {
        poll_recovery(joiner, cx);
    }
    Ok(())
}

/// A member sends the view in which this peer is a member. The view is written to disk before it is entered.
fn install(joiner: &mut Joiner, cx: &mut NodeContext<'_>, view: View) -> Result<(), Reject> {
    let fits = |loaded: &Loaded| {
        view.fits(u64::from(loaded.task.sample_count()), ShardingConfig::of(loaded).chunks.count())
    };
    if !cx.node.run.ready().is_some_and(fits) {
        return Err(Reject::OutOfPlace);
    }
    // A member that merges has fetched its part of the other branch before it enters the view. A joiner has none.
    let is_newcomer = view.rank(&cx.node.me.peer).is_some_and(|rank| view.newcomers().contains(&rank));
    if view.merge().is_some() && !is_newcomer {
        return Err(Reject::OutOfPlace);
    }
    if let Some(saved) = joiner.restore(&view) {
        cx.out.push(Output::LoadCheckpoint(saved));
        return Ok(());
    }
    joiner.recording();
    cx.node.record(view, cx.out);
    Ok(())
}

/// Advances the recovery from a stop of all members, if this peer is in one.
fn poll_recovery(joiner: &mut Joiner, cx: &mut NodeContext<'_>) {
    let loaded = cx.node.run.ready();
    let view = joiner.recovering().map(|recovering| recovering.shared_view());
    let shard_map = loaded
        .zip(view)
        .map(|(loaded, (view, digest))| cx.node.cache.shard_map(&view, digest, ShardingConfig::of(loaded)));
    let planner =
        loaded.zip(shard_map.as_deref()).map(|(loaded, shard_map)| ViewChangePlanner::new(shard_map, loaded));
    joiner.poll_recovery(cx.now, planner.as_ref(), cx.out);
}
