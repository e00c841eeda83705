//! Merge export: this branch yields to another one, which merges its snapshot.

use std::ops::ControlFlow;
use std::time::Duration;

use peergrad_protocol::message::{
    Contact, MergeAccept, MergeMessage, MergeProbe, SaveAt, TrainingMessage, WantSnapshot,
};
use peergrad_protocol::view::fork_point;
use peergrad_protocol::{Instant, PeerId, StepNumber, ViewDigest};

use super::branch::Branch;
use super::questions::Questions;
use super::{MergeNegotiation, MergeState};
use crate::io::{BranchDetected, Event, Output};

/// The state of a coordinator whose branch yields to another one.
pub(super) struct MergeExport {
    /// A view of the other branch.
    pub(super) view: ViewDigest,
    /// The coordinator of the other branch.
    pub(super) to: Contact,
    /// When the other branch was last heard from, or this one last had something to do itself.
    pub(super) heard_at: Instant,
    /// The step after which members keep a snapshot to be merged; `None` if nothing is to be merged.
    pub(super) snapshot_step: Option<StepNumber>,
    /// When the snapshot was last offered to the other branch; `None` before that.
    pub(super) offered_at: Option<Instant>,
}

impl MergeExport {
    /// Has members keep the snapshot, then offers it, or asks whether members may join. Breaks if the other branch is silent for too long.
    fn advance(
        &mut self,
        own: &MergeProbe,
        questions: &mut Questions,
        branch: &mut Branch<'_>,
    ) -> ControlFlow<()> {
        let now = branch.now;
        if now.since(self.heard_at) > branch.membership.merge_timeout() {
            return ControlFlow::Break(());
        }
        let Some(steps) = self.snapshot_step else {
            let question = questions.ask(now);
            let offer = MergeProbe { yields: Some(own.view), question, ..own.clone() };
            branch.send_or_dial(&self.to, &MergeMessage::Probe(offer).into());
            return ControlFlow::Continue(());
        };
        // Members that have kept the snapshot keep it for longer.
        if let Some(mut snapshots) = branch.training.branch_snapshots_mut() {
            snapshots.snapshot_after(steps);
        }
        let take = TrainingMessage::TakeSnapshot(SaveAt { steps }).in_view(own.view);
        branch.training.base().broadcast(&take, branch.out);
        if branch.training.committed() < steps {
            return ControlFlow::Continue(());
        }
        if self.offered_at.is_none() {
            self.heard_at = now;
        }
        if self.offered_at.is_some_and(|offered| now.since(offered) < OFFER_INTERVAL) {
            return ControlFlow::Continue(());
        }
        self.offered_at = Some(now);
        let question = questions.ask(now);
        // If the members did not keep the snapshot in time, the next probe leads to another step.
        let Some(offer) = branch.training.branch_snapshots().and_then(|snapshots| snapshots.offer(question))
        else {
            return ControlFlow::Break(());
        };
        branch.send_or_dial(&self.to, &MergeMessage::Offer(offer).into());
        ControlFlow::Continue(())
    }
}

impl MergeNegotiation {
    /// This branch yields to that of `other`.
    pub(super) fn start_export(&mut self, other: MergeProbe, own: &MergeProbe, branch: &mut Branch<'_>) {
        if let MergeState::Exporting(export) = &mut self.state {
            if self.questions.is_known(other.answers) {
                // The decision is known here already; it may now come from another coordinator.
                (export.heard_at, export.view, export.to) = (branch.now, other.view, other.coordinator);
            }
            return;
        }
        self.drop_stale_import(&other.ancestors, branch);
        if !self.is_idle() {
            return;
        }
        let common = fork_point(&own.history(), &other.history()).unwrap_or(0);
        let loaded = branch.training.base().loaded();
        let is_merged = loaded.merges_branches() && own.trained > common;
        branch.out.push(Output::Event(Event::BranchDetected(BranchDetected {
            leads: other.coordinator.peer,
            ours: own.trained.saturating_sub(common),
            theirs: other.trained.saturating_sub(common),
            is_merged,
        })));
        let snapshot_step =
            is_merged.then(|| StepNumber(branch.training.step().0 + branch.membership.merge_lead_steps()));
        let (view, to, heard_at) = (other.view, other.coordinator, branch.now);
        self.state =
            MergeState::Exporting(MergeExport { view, to, heard_at, snapshot_step, offered_at: None });
        self.advance_export(own, branch);
    }

    /// Advances the export, if this branch yields to another one.
    pub(super) fn advance_export(&mut self, own: &MergeProbe, branch: &mut Branch<'_>) {
        if let MergeState::Exporting(export) = &mut self.state
            && export.advance(own, &mut self.questions, branch).is_break()
        {
            self.state = MergeState::Idle;
        }
    }

    /// The other branch accepts that this one yields to it. Returns the acceptance if this peer is to abandon its branch now.
    pub(crate) fn on_accept(
        &self,
        from: PeerId,
        accept: MergeAccept,
        branch: &mut Branch<'_>,
    ) -> Option<MergeAccept> {
        if accept.view != branch.training.base().digest() || !branch.membership.members.allows_forks() {
            return None;
        }
        if !branch.membership.members.is_member(&from) {
            let is_asked = matches!(self.state, MergeState::Exporting(_));
            if !is_asked || !self.questions.is_answer(branch.now, accept.question) {
                return None;
            }
            branch.training.base().broadcast(&MergeMessage::Accept(accept.clone()).into(), branch.out);
        }
        Some(accept)
    }

    /// A member of the other branch asks for chunks of the snapshot.
    pub(crate) fn send_snapshot_chunks(
        &mut self,
        from: PeerId,
        want: &WantSnapshot,
        branch: &mut Branch<'_>,
    ) {
        if let MergeState::Exporting(export) = &mut self.state
            && (want.view, Some(want.steps)) == (branch.training.base().digest(), export.snapshot_step)
        {
            // The other branch is reading the snapshot: the export does not time out meanwhile.
            export.heard_at = branch.now;
        }
        if let Some(mut snapshots) = branch.training.branch_snapshots_mut() {
            let frames = snapshots.frames(want).into_iter();
            branch.out.extend(frames.map(|frame| Output::Send { to: from, frame }));
        }
    }
}

/// The interval at which an offer is repeated to the other branch. An offer is long where members are many.
const OFFER_INTERVAL: Duration = Duration::from_secs(2);
