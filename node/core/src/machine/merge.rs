//! Merge negotiation in the machine: branches that meet again become one.
//!
//! # How it works
//! 1. A member sends each lost peer that it can reach again a probe, which tells where the member's branch is. The branch whose view has
//!    the smaller digest decides which of the two yields. In that branch only the coordinator decides, and only once for those two views:
//!    so the branches never wait for each other, and never both yield. The branch with fewer steps yields.
//! 2. The coordinator of the yielding branch gets the decision. If the branches are to be merged, it names a step and offers the snapshot
//!    that its members keep after that step. The coordinator of the leading branch passes the offer to its members. Once all of them have
//!    their part of the snapshot, they agree on a view that merges it. If only one branch is kept, or the yielding one has trained nothing,
//!    the yielding coordinator only asks whether its members may join.
//! 3. When the merging step is committed, or nothing is to be merged, the coordinator of the leading branch says so. The members of the
//!    yielding branch learn that their branch has ended, and ask to be admitted as any joiner does.
//!
//! No member stops training meanwhile, and no member gives up its state before that is merged. Lost messages are repeated. A negotiation
//! that fails starts again when the branches meet the next time.
//!
//! ```text
//! coordinator:    Idle -- decided: this branch yields --------> MergeExport -- MergeAccept: members join the other
//!               | ^--------- no answer, or another view <------'
//!               '-- MergeOffer: another branch yields --> MergeImport -- merged, or no progress any more --> Idle
//! ```
//!
//! # Invariants
//! - A coordinator negotiates with one other branch at a time.
//! - A message that ends a branch counts only as the answer to a recent question: messages sent during a partition may arrive later.

mod export;
mod import;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use peergrad_protocol::message::{
    AgreementMessage, Contact, MergeAccept, MergeMessage, MergeOffer, MergeProbe, Message,
};
use peergrad_protocol::view::{Ancestor, Member, View};
use peergrad_protocol::{Frame, Instant, PeerId, ViewDigest};

use self::export::MergeExport;
use self::import::MergeImport;
use super::{ActiveMember, Machine, NodeRole, Progress};
use crate::io::{Output, Reject};
use crate::state::snapshot_id::SnapshotId;

/// The merge negotiation of a member between its branch and others.
#[derive(Default)]
pub(super) struct MergeNegotiation {
    probed_at: Instant,
    /// When questions were sent recently, oldest first. The time of a question is also its number.
    asked: VecDeque<Instant>,
    /// At a coordinator that decides: for each view of another branch, the view of the branch that yields.
    decided: BTreeMap<ViewDigest, ViewDigest>,
    /// At a coordinator: its negotiation with another branch, if there is one.
    state: MergeState,
    /// At a coordinator: the snapshot of another branch that members failed to get in the present view, if any.
    refused: Option<SnapshotId>,
}

#[derive(Default)]
enum MergeState {
    #[default]
    Idle,
    Exporting(MergeExport),
    Importing(MergeImport),
}

impl MergeNegotiation {
    /// The offer to be merged, if all `members` have their part of the snapshot.
    pub(super) fn ready_offer(&self, members: &[Member]) -> Option<&MergeOffer> {
        let MergeState::Importing(import) = &self.state else { return None };
        let has_all_chunks = |member: &Member| import.missing_chunks.get(&member.peer) == Some(&0);
        members.iter().all(has_all_chunks).then_some(&import.offer)
    }

    /// A new view begins: a yielding branch negotiates again, and a leading branch counts the missing chunks again.
    pub(super) fn enter(&mut self, now: Instant) {
        self.decided.clear();
        self.refused = None;
        match &mut self.state {
            MergeState::Importing(import) => {
                *import = MergeImport::new(now, import.offer.clone());
            }
            MergeState::Exporting(_) => self.state = MergeState::Idle,
            MergeState::Idle => {}
        }
    }

    fn is_idle(&self) -> bool {
        matches!(self.state, MergeState::Idle)
    }

    /// The other branch, which is in `view` and descends from `ancestors`, yields to this one. If this branch yields to it as well, because
    /// one of them has changed its view meanwhile, the branch whose view has the smaller digest leads.
    fn break_tie(&mut self, own: ViewDigest, view: ViewDigest, ancestors: &[Ancestor]) {
        let MergeState::Exporting(export) = &self.state else { return };
        let is_it = export.view == view || ancestors.iter().any(|root| root.view == export.view);
        if is_it && view < own {
            self.state = MergeState::Idle;
        }
    }

    /// The number of a question that is asked now.
    fn ask(&mut self, now: Instant) -> u64 {
        self.asked.retain(|asked| now.since(*asked) <= ANSWER_MAX);
        if self.asked.back() != Some(&now) {
            self.asked.push_back(now);
        }
        now.0
    }

    /// Whether this number belongs to a question that was asked recently.
    fn is_answer(&self, now: Instant, question: u64) -> bool {
        self.asked.iter().any(|asked| asked.0 == question && now.since(*asked) <= ANSWER_MAX)
    }
}

impl ActiveMember {
    /// The probe that tells another branch where this one is; `None` while no coordinator can be named.
    fn merge_probe(&self, now: Instant) -> Option<MergeProbe> {
        Some(MergeProbe {
            run: self.training.view().run,
            view: self.training.base().digest(),
            steps: self.training.committed(),
            trained: self.training.trained(),
            ancestors: self.training.ancestors(),
            coordinator: self.membership.members.coordinator_contact(now)?,
            yields: None,
            question: 0,
            answers: 0,
        })
    }

    /// Whether this branch can negotiate with another one now.
    fn can_negotiate(&self) -> bool {
        let trains = self.progress == Progress::Training && self.training.has_parameters();
        trains && !self.training.is_closing() && !self.membership.is_troubled()
    }

    /// Cancels the import of a snapshot that is incomplete here, if the other branch, which descends from `ancestors`, has changed its view
    /// since the offer: its members have discarded that snapshot.
    fn drop_stale_import(&mut self, ancestors: &[Ancestor]) {
        let pinned_snapshot = self.pinned_snapshot();
        let MergeState::Importing(import) = &self.negotiation.state else { return };
        let is_before = ancestors.iter().any(|root| root.view == import.offer.view);
        let is_whole = self.negotiation.ready_offer(&self.training.view().members).is_some();
        let snapshot_id = import.snapshot_id();
        if is_before && !is_whole && pinned_snapshot != Some(snapshot_id) {
            self.negotiation.state = MergeState::Idle;
            if let Some(mut merging) = self.training.merging_mut() {
                merging.cancel_import(snapshot_id);
            }
        }
    }

    /// Whether this member keeps a snapshot of the present view for another branch.
    pub(super) fn has_snapshot(&self) -> bool {
        self.training.merging().is_some_and(|merging| merging.has_snapshot())
    }

    /// The number of steps that this branch has committed since that snapshot: they are not merged.
    pub(super) fn steps_since_snapshot(&self) -> u64 {
        self.training.merging().map_or(0, |merging| merging.steps_since_snapshot())
    }

    /// The snapshot that a view merges which may still be entered, or which the present view has not merged yet.
    fn pinned_snapshot(&self) -> Option<SnapshotId> {
        let pending = self.training.merging().and_then(|merging| merging.pending_merge());
        let pending = pending.map(|merge| (merge.view, merge.steps));
        pending.or_else(|| self.membership.pending_merge())
    }
}

impl Machine {
    /// Sends and advances whatever is due between this branch and others.
    pub(super) fn negotiate(&mut self, now: Instant, out: &mut Vec<Output>) {
        let NodeRole::Member(active) = &mut self.role else { return };
        if !active.membership.members.allows_forks()
            || !active.can_negotiate()
            || now.since(active.negotiation.probed_at) < PROBE_INTERVAL
        {
            return;
        }
        active.negotiation.probed_at = now;
        let pinned_snapshot = active.pinned_snapshot();
        if let Some(mut merging) = active.training.merging_mut() {
            merging.expire(now, pinned_snapshot);
        }
        let Some(probe) = active.merge_probe(now) else { return };
        for peer in active.membership.find_partitioned(out) {
            out.push(Output::Send {
                to: peer,
                frame: Frame::encode(&MergeMessage::Probe(probe.clone()).into(), None),
            });
        }
        if probe.coordinator.peer == self.me.peer {
            self.resume_import(now);
            self.advance_export(now, &probe, out);
            self.advance_import(now, out);
        }
        self.fetch_snapshot(now, &probe.coordinator, out);
    }

    /// Sends a message to a peer of another branch, or dials the peer if it is not linked. The caller repeats the message later.
    fn send_or_dial(&self, to: &Contact, message: &Message, out: &mut Vec<Output>) {
        if self.credits.contains_key(&to.peer) {
            self.send(to.peer, message, None, out);
        } else {
            out.push(Output::Dial(to.clone()));
        }
    }

    /// A member of another branch tells where that branch is, or a member of this branch passes a decision on.
    pub(super) fn on_merge_probe(
        &mut self,
        now: Instant,
        from: PeerId,
        probe: MergeProbe,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let NodeRole::Member(active) = &mut self.role else { return Ok(()) };
        if probe.run != active.training.view().run || !active.membership.members.allows_forks() {
            return Err(Reject::OutOfPlace);
        }
        if active.training.view().descends_from(probe.view) {
            // The sender is only behind, or its branch has been merged into this one.
            let install = Message::Agreement(AgreementMessage::Install(View::clone(active.training.view())));
            self.send(from, &install, None, out);
            return Ok(());
        }
        let Some(own) = active.merge_probe(now).filter(|_| active.can_negotiate()) else { return Ok(()) };
        if probe.view == own.view {
            return Ok(());
        }
        let is_mine = own.coordinator.peer == self.me.peer;
        if probe.ancestors.iter().any(|root| root.view == own.view) {
            match is_mine {
                true => self.on_merged_elsewhere(now, probe, &own, out),
                false => self.send(own.coordinator.peer, &MergeMessage::Probe(probe).into(), None, out),
            }
            return Ok(());
        }
        active.membership.note_in_other_view(now, &from, probe.view);
        match probe.yields {
            Some(view) if view == own.view && is_mine => self.start_export(now, probe, &own, out),
            Some(view) if view == probe.view && is_mine => self.accept_merge(&probe, &own, out),
            // A view has changed meanwhile, so both branches negotiate again.
            Some(view) if view != own.view && view != probe.view => {}
            None if own.view > probe.view => {
                let answers = probe.question;
                self.send(from, &MergeMessage::Probe(MergeProbe { answers, ..own }).into(), None, out);
            }
            None if is_mine => self.decide(now, probe, own, out),
            // Only the coordinator decides and negotiates.
            Some(_) | None => self.send(own.coordinator.peer, &MergeMessage::Probe(probe).into(), None, out),
        }
        Ok(())
    }

    /// Decides which branch yields: once for these two views, whatever either branch trains meanwhile, and from a recent answer only.
    fn decide(&mut self, now: Instant, other: MergeProbe, own: MergeProbe, out: &mut Vec<Output>) {
        let NodeRole::Member(active) = &mut self.role else { return };
        active.drop_stale_import(&other.ancestors);
        let negotiation = &mut active.negotiation;
        if !negotiation.is_idle() {
            return;
        }
        if negotiation.decided.len() >= DECIDED_MAX {
            negotiation.decided.clear();
        }
        let to = other.coordinator.clone();
        if !negotiation.is_answer(now, other.answers) && !negotiation.decided.contains_key(&other.view) {
            let question = negotiation.ask(now);
            return self.send_or_dial(&to, &MergeMessage::Probe(MergeProbe { question, ..own }).into(), out);
        }
        let is_ahead = (own.steps, other.view) > (other.steps, own.view);
        let yields =
            *negotiation.decided.entry(other.view).or_insert(if is_ahead { other.view } else { own.view });
        if yields == own.view {
            return self.start_export(now, MergeProbe { yields: Some(yields), ..other }, &own, out);
        }
        self.send_or_dial(&to, &MergeMessage::Probe(MergeProbe { yields: Some(yields), ..own }).into(), out);
    }

    /// Another branch offers to yield, with nothing to merge. A coordinator that accepts does not itself yield to that branch.
    fn accept_merge(&mut self, other: &MergeProbe, own: &MergeProbe, out: &mut Vec<Output>) {
        let NodeRole::Member(active) = &mut self.role else { return };
        let is_merged = active.training.has_merged(other.view);
        let negotiation = &mut active.negotiation;
        negotiation.break_tie(own.view, other.view, &other.ancestors);
        let does_yield = matches!(negotiation.state, MergeState::Exporting(_));
        let mut is_decided = || *negotiation.decided.entry(other.view).or_insert(other.view) == other.view;
        if is_merged || !does_yield && is_decided() {
            let (view, question, contacts) =
                (other.view, other.question, active.membership.members.contacts());
            let accept = MergeAccept { view, question, is_merged, contacts };
            self.send_or_dial(&other.coordinator, &MergeMessage::Accept(accept).into(), out);
        }
    }

    /// Another branch has merged this one, but the member that should have said so may be lost: its present coordinator is asked.
    fn on_merged_elsewhere(
        &mut self,
        now: Instant,
        other: MergeProbe,
        own: &MergeProbe,
        out: &mut Vec<Output>,
    ) {
        let NodeRole::Member(active) = &mut self.role else { return };
        let (view, to) = (other.view, other.coordinator);
        match &mut active.negotiation.state {
            MergeState::Exporting(export) if export.to == to => {}
            MergeState::Exporting(_) | MergeState::Idle => {
                let export = MergeExport { view, to, heard_at: now, snapshot_step: None, offered_at: None };
                active.negotiation.state = MergeState::Exporting(export);
                self.advance_export(now, own, out);
            }
            // One negotiation at a time.
            MergeState::Importing(_) => {}
        }
    }

    /// A member sends a view that this peer may enter next, or that no longer contains this peer.
    pub(super) fn on_install(
        &mut self,
        now: Instant,
        from: PeerId,
        view: View,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let NodeRole::Member(active) = &mut self.role else { return Ok(()) };
        if view.run != active.training.view().run
            || !active.with_snapshot(&self.jobs, |_, snapshot| snapshot.planner.fits(&view))
        {
            return Err(Reject::OutOfPlace);
        }
        let own = active.training.base().digest();
        if active.membership.members.is_minority_branch(&view) && !active.has_snapshot() {
            active.membership.note_in_other_view(now, &from, view.digest());
        } else if !active.membership.members.allows_forks() || view.parents.first() == Some(&own) {
            if !active.membership.on_install(view.clone(), &mut self.journal, out) {
                // The others are more than one view ahead: this peer is not a member any more.
                self.exclude(now, &view, out);
            }
        } else if view.descends_from(own) {
            if active.has_snapshot() {
                // Other members of this branch may not know that view yet, and would go on alone.
                active.training.base().broadcast(&AgreementMessage::Install(view.clone()).into(), out);
            }
            self.exclude(now, &view, out);
        } else if !active.training.view().descends_from(view.digest()) {
            active.membership.note_in_other_view(now, &from, view.digest());
        }
        Ok(())
    }
}

/// The interval at which a branch probes others and advances its negotiation.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// The age from which an answer no longer counts.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// The most views of other branches for which a decision is remembered.
const DECIDED_MAX: usize = 16;
