//! Merge export: this branch yields to another one, which merges its snapshot.

use std::time::Duration;

use peergrad_protocol::limits::CONTACTS_MAX;
use peergrad_protocol::message::{
    Contact, MergeAccept, MergeMessage, MergeProbe, SaveAt, TrainingMessage, WantSnapshot,
};
use peergrad_protocol::view::fork_point;
use peergrad_protocol::{Instant, PeerId, StepNumber, ViewDigest};

use super::MergeState;
use crate::io::{BranchDetected, Event, Failure, Output};
use crate::machine::{Machine, NodeRole, Progress};

/// The state of a coordinator whose branch yields to another one.
pub(super) struct MergeExport {
    /// A view of the other branch.
    pub(super) view: ViewDigest,
    pub(super) to: Contact,
    /// When the other branch was last heard from, or this one last had something to do itself.
    pub(super) heard_at: Instant,
    /// The step after which members keep a snapshot to be merged; `None` if nothing is to be merged.
    pub(super) snapshot_step: Option<StepNumber>,
    pub(super) offered_at: Option<Instant>,
}

impl Machine {
    /// This branch yields to that of `other`.
    pub(super) fn start_export(
        &mut self,
        now: Instant,
        other: MergeProbe,
        own: &MergeProbe,
        out: &mut Vec<Output>,
    ) {
        let NodeRole::Member(active) = &mut self.role else { return };
        if let MergeState::Exporting(export) = &mut active.negotiation.state {
            if active.negotiation.asked.iter().any(|asked| asked.0 == other.answers) {
                // The decision is known here already; it may now come from another coordinator.
                (export.heard_at, export.view, export.to) = (now, other.view, other.coordinator);
            }
            return;
        }
        active.drop_stale_import(&other.ancestors);
        if !active.negotiation.is_idle() {
            return;
        }
        let common = fork_point(&own.history(), &other.history()).unwrap_or(0);
        let loaded = active.training.base().loaded();
        let is_merged = loaded.merges_branches() && own.trained > common;
        out.push(Output::Event(Event::BranchDetected(BranchDetected {
            leads: other.coordinator.peer,
            ours: own.trained.saturating_sub(common),
            theirs: other.trained.saturating_sub(common),
            is_merged,
        })));
        let snapshot_step =
            is_merged.then(|| StepNumber(active.training.step().0 + active.membership.merge_lead_steps()));
        let (view, to, heard_at) = (other.view, other.coordinator, now);
        active.negotiation.state =
            MergeState::Exporting(MergeExport { view, to, heard_at, snapshot_step, offered_at: None });
        self.advance_export(now, own, out);
    }

    /// Has members keep the snapshot, then offers it, or asks whether members may join. Gives up if the other branch is silent for too
    /// long.
    pub(super) fn advance_export(&mut self, now: Instant, own: &MergeProbe, out: &mut Vec<Output>) {
        let NodeRole::Member(active) = &mut self.role else { return };
        let MergeState::Exporting(export) = &mut active.negotiation.state else { return };
        if now.since(export.heard_at) > active.membership.merge_timeout() {
            active.negotiation.state = MergeState::Idle;
            return;
        }
        let to = export.to.clone();
        let Some(steps) = export.snapshot_step else {
            let question = active.negotiation.ask(now);
            let offer = MergeProbe { yields: Some(own.view), question, ..own.clone() };
            return self.send_or_dial(&to, &MergeMessage::Probe(offer).into(), out);
        };
        // Members that have kept the snapshot keep it for longer.
        if let Some(mut merging) = active.training.merging_mut() {
            merging.snapshot_after(steps);
        }
        active
            .training
            .base()
            .broadcast(&TrainingMessage::TakeSnapshot(SaveAt { steps }).in_view(own.view), out);
        if active.training.committed() < steps {
            return;
        }
        if export.offered_at.is_none() {
            export.heard_at = now;
        }
        if export.offered_at.is_some_and(|offered| now.since(offered) < OFFER_INTERVAL) {
            return;
        }
        export.offered_at = Some(now);
        let question = active.negotiation.ask(now);
        match active.training.merging().and_then(|merging| merging.offer(question)) {
            Some(offer) => self.send_or_dial(&to, &MergeMessage::Offer(offer).into(), out),
            // The members did not keep the snapshot in time: the next probe leads to another step.
            None => active.negotiation.state = MergeState::Idle,
        }
    }

    /// The other branch accepts that this one yields to it.
    pub(in crate::machine) fn on_merge_accept(
        &mut self,
        now: Instant,
        from: PeerId,
        accept: MergeAccept,
        out: &mut Vec<Output>,
    ) {
        let NodeRole::Member(active) = &self.role else { return };
        let is_ours =
            accept.view == active.training.base().digest() && active.membership.members.allows_forks();
        if !is_ours || active.progress != Progress::Training {
            return;
        }
        if !active.membership.members.is_member(&from) {
            let is_asked = matches!(active.negotiation.state, MergeState::Exporting(_));
            if !is_asked || !active.negotiation.is_answer(now, accept.question) {
                return;
            }
            active.training.base().broadcast(&MergeMessage::Accept(accept.clone()).into(), out);
        }
        self.abandon_branch(now, accept, out);
    }

    /// This branch has ended: this peer asks the other branch to admit it.
    fn abandon_branch(&mut self, now: Instant, accept: MergeAccept, out: &mut Vec<Output>) {
        if self.is_leaving {
            return self.end(Err(Failure::Left), out);
        }
        let NodeRole::Member(active) = &self.role else { return };
        let (run, members) = (active.training.view().run, active.membership.members.contacts());
        let known = accept.contacts.into_iter().chain(members).take(CONTACTS_MAX).collect();
        let steps_since = if accept.is_merged { active.steps_since_snapshot() } else { 0 };
        out.push(Output::Event(Event::BranchAbandoned { is_merged: accept.is_merged, steps_since }));
        self.ask_again(now, run, known, out);
    }

    /// A member of the other branch asks for chunks of the snapshot.
    pub(in crate::machine) fn send_snapshot_chunks(
        &mut self,
        now: Instant,
        from: PeerId,
        want: &WantSnapshot,
        out: &mut Vec<Output>,
    ) {
        let NodeRole::Member(active) = &mut self.role else { return };
        if let MergeState::Exporting(export) = &mut active.negotiation.state
            && (want.view, Some(want.steps)) == (active.training.base().digest(), export.snapshot_step)
        {
            // The other branch is reading the snapshot: the export does not time out meanwhile.
            export.heard_at = now;
        }
        if let Some(mut merging) = active.training.merging_mut() {
            let frames = merging.frames(want).into_iter();
            out.extend(frames.map(|frame| Output::Send { to: from, frame }));
        }
    }
}

/// The interval at which an offer is repeated to the other branch. An offer is long where members are many.
const OFFER_INTERVAL: Duration = Duration::from_secs(2);
