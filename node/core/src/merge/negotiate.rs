//! Probes and decisions: branches find each other, and agree which of them yields.

use std::time::Duration;

use peergrad_protocol::PeerId;
use peergrad_protocol::message::{AgreementMessage, MergeAccept, MergeMessage, MergeProbe, Message};
use peergrad_protocol::view::{Ancestor, View};

use super::branch::Branch;
use super::export::MergeExport;
use super::{MergeNegotiation, MergeState};
use crate::io::Reject;

impl MergeNegotiation {
    /// Sends and advances whatever is due between this branch and others.
    pub(crate) fn poll(&mut self, branch: &mut Branch<'_>) {
        if !branch.membership.members.allows_forks()
            || !branch.can_negotiate()
            || branch.now.since(self.probed_at) < PROBE_INTERVAL
        {
            return;
        }
        self.probed_at = branch.now;
        let pinned = branch.pinned_snapshot();
        if let Some(mut snapshots) = branch.training.branch_snapshots_mut() {
            snapshots.expire(branch.now, pinned);
        }
        let Some(probe) = branch.merge_probe() else { return };
        for peer in branch.membership.find_partitioned(branch.out) {
            branch.send(peer, &MergeMessage::Probe(probe.clone()).into());
        }
        if probe.coordinator.peer == branch.me {
            self.resume_import(branch);
            self.advance_export(&probe, branch);
            self.advance_import(branch);
        }
        self.fetch_snapshot(&probe.coordinator, branch);
    }

    /// A member of another branch tells where that branch is, or a member of this branch passes a decision on.
    ///
    /// # Errors
    /// The sender is in another run, or the policy of this run lets one branch continue only.
    pub(crate) fn on_probe(
        &mut self,
        from: PeerId,
        probe: MergeProbe,
        branch: &mut Branch<'_>,
    ) -> Result<(), Reject> {
        if probe.run != branch.training.view().run || !branch.membership.members.allows_forks() {
            return Err(Reject::OutOfPlace);
        }
        if branch.training.view().descends_from(probe.view) {
            // The sender is only behind, or its branch has been merged into this one.
            let install = AgreementMessage::Install(View::clone(branch.training.view()));
            branch.send(from, &Message::Agreement(install));
            return Ok(());
        }
        let Some(own) = branch.merge_probe().filter(|_| branch.can_negotiate()) else { return Ok(()) };
        if probe.view == own.view {
            return Ok(());
        }
        let is_mine = own.coordinator.peer == branch.me;
        if probe.ancestors.iter().any(|root| root.view == own.view) {
            match is_mine {
                true => self.on_merged_elsewhere(probe, &own, branch),
                false => branch.send(own.coordinator.peer, &MergeMessage::Probe(probe).into()),
            }
            return Ok(());
        }
        branch.membership.note_in_other_view(branch.now, &from, probe.view);
        match probe.yields {
            Some(view) if view == own.view && is_mine => self.start_export(probe, &own, branch),
            Some(view) if view == probe.view && is_mine => self.accept_merge(&probe, &own, branch),
            // A view has changed meanwhile, so both branches negotiate again.
            Some(view) if view != own.view && view != probe.view => {}
            None if own.view > probe.view => {
                let answers = probe.question;
                branch.send(from, &MergeMessage::Probe(MergeProbe { answers, ..own }).into());
            }
            None if is_mine => self.decide(probe, own, branch),
            // Only the coordinator decides and negotiates.
            Some(_) | None => branch.send(own.coordinator.peer, &MergeMessage::Probe(probe).into()),
        }
        Ok(())
    }

    /// Decides which branch yields: once for these two views, whatever either branch trains meanwhile, and from a recent answer only.
    fn decide(&mut self, other: MergeProbe, own: MergeProbe, branch: &mut Branch<'_>) {
        self.drop_stale_import(&other.ancestors, branch);
        if !self.is_idle() {
            return;
        }
        if self.decided.len() >= DECIDED_MAX {
            self.decided.clear();
        }
        let to = other.coordinator.clone();
        if !self.questions.is_answer(branch.now, other.answers) && !self.decided.contains_key(&other.view) {
            let question = self.questions.ask(branch.now);
            return branch.send_or_dial(&to, &MergeMessage::Probe(MergeProbe { question, ..own }).into());
        }
        let is_ahead = (own.steps, other.view) > (other.steps, own.view);
        let yields = *self.decided.entry(other.view).or_insert(if is_ahead { other.view } else { own.view });
        if yields == own.view {
            return self.start_export(MergeProbe { yields: Some(yields), ..other }, &own, branch);
        }
        branch.send_or_dial(&to, &MergeMessage::Probe(MergeProbe { yields: Some(yields), ..own }).into());
    }

    /// Another branch offers to yield, with nothing to merge. A coordinator that accepts does not itself yield to that branch.
    fn accept_merge(&mut self, other: &MergeProbe, own: &MergeProbe, branch: &mut Branch<'_>) {
        let is_merged = branch.training.has_merged(other.view);
        self.break_tie(own.view, other.view, &other.ancestors);
        let does_yield = matches!(self.state, MergeState::Exporting(_));
        let mut is_decided = || *self.decided.entry(other.view).or_insert(other.view) == other.view;
        if is_merged || !does_yield && is_decided() {
            let (view, question, contacts) =
                (other.view, other.question, branch.membership.members.contacts());
            let accept = MergeAccept { view, question, is_merged, contacts };
            branch.send_or_dial(&other.coordinator, &MergeMessage::Accept(accept).into());
        }
    }

    /// Another branch has merged this one, but the member that should have said so may be lost: its present coordinator is asked.
    fn on_merged_elsewhere(&mut self, other: MergeProbe, own: &MergeProbe, branch: &mut Branch<'_>) {
        let (view, to) = (other.view, other.coordinator);
        match &mut self.state {
            MergeState::Exporting(export) if export.to == to => {}
            MergeState::Exporting(_) | MergeState::Idle => {
                let heard_at = branch.now;
                let export = MergeExport { view, to, heard_at, snapshot_step: None, offered_at: None };
                self.state = MergeState::Exporting(export);
                self.advance_export(own, branch);
            }
            // One negotiation at a time.
            MergeState::Importing(_) => {}
        }
    }

    /// Cancels the import of a snapshot that is incomplete here, if the other branch, which descends from `ancestors`, has changed its view
    /// since the offer: its members have discarded that snapshot.
    pub(super) fn drop_stale_import(&mut self, ancestors: &[Ancestor], branch: &mut Branch<'_>) {
        let MergeState::Importing(import) = &self.state else { return };
        let is_before = ancestors.iter().any(|root| root.view == import.offer.view);
        let is_whole = self.ready_offer(&branch.training.view().members).is_some();
        let snapshot_id = import.snapshot_id();
        if is_before && !is_whole && branch.pinned_snapshot() != Some(snapshot_id) {
            self.state = MergeState::Idle;
            branch.cancel_import(snapshot_id);
        }
    }
}

/// The interval at which a branch probes others and advances its negotiation.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// The most views of other branches for which a decision is remembered.
const DECIDED_MAX: usize = 16;
