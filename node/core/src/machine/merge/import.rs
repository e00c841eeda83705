//! Merge import: another branch yields to this one, which merges its snapshot.

use std::collections::BTreeMap;
use std::time::Duration;

use peergrad_protocol::message::{
    Contact, MergeAccept, MergeMessage, MergeOffer, MergeProbe, MergeReady, Message,
};
use peergrad_protocol::view::{Member, fork_point};
use peergrad_protocol::{Instant, PeerId};

use super::MergeState;
use crate::io::{Event, JobOutput, Output, Reject};
use crate::machine::jobs::Purpose;
use crate::machine::{Machine, NodeRole};
use crate::state::snapshot_id::SnapshotId;

/// The state of a coordinator whose branch merges another one.
pub(super) struct MergeImport {
    pub(super) offer: MergeOffer,
    /// How many chunks each member lacks something of, as it has reported in the present view.
    pub(super) missing_chunks: BTreeMap<PeerId, u32>,
    /// When less was missing than ever before, and how much that was.
    advanced_at: Instant,
    best: Missing,
    /// When the offer was last sent to all members; `None` before that.
    announced_at: Option<Instant>,
}

/// The number of members that have not reported what they lack, and the sum of the chunks that the others lack.
type Missing = (usize, u64);

impl MergeImport {
    pub(super) fn new(now: Instant, offer: MergeOffer) -> Self {
        let (missing_chunks, best) = (BTreeMap::new(), (usize::MAX, 0));
        Self { offer, missing_chunks, advanced_at: now, best, announced_at: None }
    }

    pub(super) fn snapshot_id(&self) -> SnapshotId {
        (self.offer.view, self.offer.steps)
    }

    fn note_missing(&mut self, now: Instant, members: &[Member]) -> Missing {
        let silent = members.iter().filter(|member| !self.missing_chunks.contains_key(&member.peer)).count();
        let missing = (silent, self.missing_chunks.values().map(|missing| u64::from(*missing)).sum());
        if missing < self.best {
            (self.best, self.advanced_at) = (missing, now);
        }
        missing
    }
}

impl Machine {
    /// If the coordinator is another member than before, it resumes the import that it knows as a member.
    pub(super) fn resume_import(&mut self, now: Instant) {
        let NodeRole::Member(active) = &mut self.role else { return };
        if !active.negotiation.is_idle() {
            return;
        }
        let importing = active.training.merging().and_then(|merging| merging.importing());
        let offer = importing.map(|(offer, _)| offer.clone());
        if let Some(offer) = offer.filter(|offer| !active.training.has_merged(offer.view)) {
            active.negotiation.state = MergeState::Importing(MergeImport::new(now, offer));
        }
    }

    /// Has members fetch the snapshot; abandons the import if that makes no progress.
    pub(super) fn advance_import(&mut self, now: Instant, out: &mut Vec<Output>) {
        let pinned_snapshot =
            if let NodeRole::Member(active) = &self.role { active.pinned_snapshot() } else { None };
        let NodeRole::Member(active) = &mut self.role else { return };
        let MergeState::Importing(import) = &mut active.negotiation.state else { return };
        if active.training.has_merged(import.offer.view) {
            active.negotiation.state = MergeState::Idle;
            return;
        }
        let members = &active.training.view().members;
        let missing = import.note_missing(now, members);
        let patience = 2 * active.membership.merge_timeout();
        let is_hopeless = missing != (0, 0) && now.since(import.advanced_at) > patience;
        if is_hopeless && pinned_snapshot != Some(import.snapshot_id()) {
            // This branch goes on unchanged.
            let snapshot_id = import.snapshot_id();
            active.negotiation.refused = Some(snapshot_id);
            active.negotiation.state = MergeState::Idle;
            if let Some(mut merging) = active.training.merging_mut() {
                merging.cancel_import(snapshot_id);
            }
            out.push(Output::Event(Event::MergeAbandoned));
            return;
        }
        let is_due = import.announced_at.is_none_or(|told| now.since(told) > REMINDER_INTERVAL);
        if is_due {
            import.announced_at = Some(now);
        }
        let message = Message::Merge(MergeMessage::Offer(import.offer.clone()));
        let others = members.iter().map(|member| member.peer).filter(|peer| *peer != self.me.peer);
        let missing_chunks = &import.missing_chunks;
        let to: Vec<PeerId> = others.filter(|peer| is_due || !missing_chunks.contains_key(peer)).collect();
        let offer = import.offer.clone();
        if let Some(mut merging) = active.training.merging_mut() {
            merging.begin_import(now, offer, pinned_snapshot);
        }
        to.into_iter().for_each(|peer| self.send(peer, &message, None, out));
    }

    /// Fetches this member's part of the snapshot, and reports to the coordinator how many chunks are still missing.
    pub(super) fn fetch_snapshot(&mut self, now: Instant, coordinator: &Contact, out: &mut Vec<Output>) {
        let NodeRole::Member(active) = &mut self.role else { return };
        let (credits, relayed) = (&self.credits, &self.relayed);
        let is_linked = |peer: &PeerId| credits.contains_key(peer) && !relayed.contains(peer);
        let Some(mut merging) = active.training.merging_mut() else { return };
        merging.fetch(now, is_linked, out);
        let Some((offer, missing)) = active.training.merging().and_then(|merging| merging.importing()) else {
            return;
        };
        let (recipients, missing) =
            (active.training.base().digest(), u32::try_from(missing).unwrap_or(u32::MAX));
        let inherited = MergeReady { recipients, view: offer.view, steps: offer.steps, missing };
        if coordinator.peer == self.me.peer {
            self.on_merge_ready(self.me.peer, inherited);
        } else {
            self.send(coordinator.peer, &MergeMessage::Ready(inherited).into(), None, out);
        }
    }

    /// Some chunks have arrived: the next ones are requested, and the coordinator gets a new report.
    pub(in crate::machine) fn continue_fetching(&mut self, now: Instant, out: &mut Vec<Output>) {
        let NodeRole::Member(active) = &self.role else { return };
        if let Some(coordinator) = active.membership.members.coordinator_contact(now) {
            self.fetch_snapshot(now, &coordinator, out);
        }
    }

    /// Another branch offers its snapshot to this one.
    pub(in crate::machine) fn on_merge_offer(
        &mut self,
        now: Instant,
        from: PeerId,
        offer: MergeOffer,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let NodeRole::Member(active) = &mut self.role else { return Ok(()) };
        let can_be = active.with_snapshot(&self.jobs, |_, snapshot| snapshot.planner.can_merge(&offer));
        if !active.membership.members.allows_forks() || !can_be || offer.coordinator().is_none() {
            return Err(Reject::OutOfPlace);
        }
        let Some(own) = active.merge_probe(now).filter(|_| active.can_negotiate()) else { return Ok(()) };
        if own.coordinator.peer == self.me.peer {
            self.on_merge_offer_at_coordinator(now, offer, own, out);
        } else if active.membership.members.is_member(&from) {
            let pinned_snapshot = active.pinned_snapshot();
            if let Some(mut merging) = active.training.merging_mut() {
                merging.begin_import(now, offer, pinned_snapshot);
            }
            self.fetch_snapshot(now, &own.coordinator, out);
        } else {
            self.send(own.coordinator.peer, &MergeMessage::Offer(offer).into(), None, out);
        }
        Ok(())
    }

    fn on_merge_offer_at_coordinator(
        &mut self,
        now: Instant,
        offer: MergeOffer,
        own: MergeProbe,
        out: &mut Vec<Output>,
    ) {
        let NodeRole::Member(active) = &mut self.role else { return };
        let (snapshot_id, question) = ((offer.view, offer.steps), offer.question);
        let Some(to) = offer.coordinator().cloned() else { return };
        let is_merged = active.training.has_merged(offer.view)
            || fork_point(&own.history(), &offer.history()).is_some_and(|common| common >= offer.trained);
        if is_merged || active.negotiation.refused == Some(snapshot_id) {
            let contacts = active.membership.members.contacts();
            let accept = MergeAccept { view: offer.view, question, is_merged, contacts };
            return self.send_or_dial(&to, &MergeMessage::Accept(accept).into(), out);
        }
        active.drop_stale_import(&offer.ancestors);
        active.negotiation.break_tie(own.view, offer.view, &offer.ancestors);
        match &mut active.negotiation.state {
            MergeState::Importing(import) if import.snapshot_id() == snapshot_id => import.offer = offer,
            MergeState::Idle => {
                active.negotiation.state = MergeState::Importing(MergeImport::new(now, offer))
            }
            // One negotiation at a time.
            MergeState::Importing(_) | MergeState::Exporting(_) => return,
        }
        let seen_to = MergeProbe { yields: Some(snapshot_id.0), answers: question, ..own.clone() };
        self.send_or_dial(&to, &MergeMessage::Probe(seen_to).into(), out);
        self.advance_import(now, out);
        self.fetch_snapshot(now, &own.coordinator, out);
    }

    /// A member reports how many chunks of the snapshot it lacks.
    pub(in crate::machine) fn on_merge_ready(&mut self, from: PeerId, inherited: MergeReady) {
        let NodeRole::Member(active) = &mut self.role else { return };
        let is_member = active.membership.members.is_member(&from)
            && inherited.recipients == active.training.base().digest();
        if let MergeState::Importing(import) = &mut active.negotiation.state
            && is_member
            && import.snapshot_id() == (inherited.view, inherited.steps)
        {
            import.missing_chunks.insert(from, inherited.missing);
        }
    }

    /// Two branches have been merged: evaluates the parameters of each, and the merged ones.
    pub(in crate::machine) fn evaluate_merge(&mut self, out: &mut Vec<Output>) {
        let NodeRole::Member(active) = &mut self.role else { return };
        let mut merging = active.training.merging_mut();
        if let Some((comparison, task)) = merging.as_mut().and_then(|merging| merging.take_comparison()) {
            let cost = 3 * u64::from(task.held_out_count());
            let work = Box::new(move || Box::new(comparison.evaluate(&*task)) as JobOutput);
            self.jobs.start(Purpose::EvaluateMerge, cost, work, out);
        }
    }
}

/// The interval at which the offer is sent again to all members.
const REMINDER_INTERVAL: Duration = Duration::from_secs(15);
