//! Merge import: another branch yields to this one, which merges its snapshot.

use std::collections::BTreeMap;
use std::time::Duration;

use peergrad_protocol::message::{
    Contact, MergeAccept, MergeMessage, MergeOffer, MergeProbe, MergeReady, Message, SnapshotChunks,
};
use peergrad_protocol::view::{Member, fork_point};
use peergrad_protocol::{Buffer, Instant, PeerId};

use super::branch::Branch;
use super::{MergeNegotiation, MergeState};
use crate::io::{Event, Output, Reject};
use crate::state::snapshot_id::SnapshotId;

/// The state of a coordinator whose branch merges another one.
pub(super) struct MergeImport {
    /// The offer of the other branch.
    pub(super) offer: MergeOffer,
    /// How many chunks each member lacks something of, as it has reported in the present view.
    pub(super) missing_chunks: BTreeMap<PeerId, u32>,
    /// When less was missing than ever before.
    advanced_at: Instant,
    /// How much was missing then.
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

    /// Whether something is missing and members have received nothing for long.
    fn is_hopeless(&mut self, branch: &Branch<'_>) -> bool {
        let missing = self.note_missing(branch.now, &branch.training.view().members);
        let patience = 2 * branch.membership.merge_timeout();
        missing != (0, 0) && branch.now.since(self.advanced_at) > patience
    }

    /// Passes the offer on: to members that have not reported, and from time to time to all.
    fn announce(&mut self, branch: &mut Branch<'_>) {
        let is_due =
            self.announced_at.is_none_or(|announced_at| branch.now.since(announced_at) > REMINDER_INTERVAL);
        if is_due {
            self.announced_at = Some(branch.now);
        }
        let message = Message::Merge(MergeMessage::Offer(self.offer.clone()));
        let members = branch.training.view().members.iter().map(|member| member.peer);
        let others = members.filter(|peer| *peer != branch.me);
        let missing_chunks = &self.missing_chunks;
        let to: Vec<PeerId> = others.filter(|peer| is_due || !missing_chunks.contains_key(peer)).collect();
        branch.begin_import(self.offer.clone());
        to.into_iter().for_each(|peer| branch.send(peer, &message));
    }
}

impl MergeNegotiation {
    /// If the coordinator is another member than before, it resumes the import that it knows as a member.
    pub(super) fn resume_import(&mut self, branch: &Branch<'_>) {
        if !self.is_idle() {
            return;
        }
        let offer = branch.importing().map(|(offer, _)| offer.clone());
        if let Some(offer) = offer.filter(|offer| !branch.training.has_merged(offer.view)) {
            self.state = MergeState::Importing(MergeImport::new(branch.now, offer));
        }
    }

    /// Has members fetch the snapshot; abandons the import if that makes no progress.
    pub(super) fn advance_import(&mut self, branch: &mut Branch<'_>) {
        let MergeState::Importing(import) = &mut self.state else { return };
        if branch.training.has_merged(import.offer.view) {
            self.state = MergeState::Idle;
            return;
        }
        let snapshot_id = import.snapshot_id();
        if import.is_hopeless(branch) && branch.pinned_snapshot() != Some(snapshot_id) {
            // This branch continues unchanged.
            self.refused = Some(snapshot_id);
            self.state = MergeState::Idle;
            branch.cancel_import(snapshot_id);
            branch.out.push(Output::Event(Event::MergeAbandoned));
            return;
        }
        import.announce(branch);
    }

    /// Fetches this member's part of the snapshot, and reports to the coordinator how many chunks are still missing.
    pub(super) fn fetch_snapshot(&mut self, coordinator: &Contact, branch: &mut Branch<'_>) {
        let links = branch.links;
        let Some(mut snapshots) = branch.training.branch_snapshots_mut() else { return };
        snapshots.fetch(branch.now, |peer| links.is_direct(peer), branch.out);
        let Some((offer, missing)) = branch.importing() else { return };
        let (recipients, missing) =
            (branch.training.base().digest(), u32::try_from(missing).unwrap_or(u32::MAX));
        let ready = MergeReady { recipients, view: offer.view, steps: offer.steps, missing };
        if coordinator.peer == branch.me {
            self.on_ready(branch.me, ready, branch);
        } else {
            branch.send(coordinator.peer, &MergeMessage::Ready(ready).into());
        }
    }

    /// Chunks of the snapshot have arrived: the next ones are requested, and the coordinator gets a new report.
    ///
    /// # Errors
    /// The chunks are damaged, or have values that no branch can have.
    pub(crate) fn on_snapshot_chunks(
        &mut self,
        from: PeerId,
        chunks: &SnapshotChunks,
        payload: &Buffer,
        branch: &mut Branch<'_>,
    ) -> Result<(), Reject> {
        if let Some(mut snapshots) = branch.training.branch_snapshots_mut() {
            snapshots.receive_chunks(branch.now, from, chunks, payload)?;
        }
        if let Some(coordinator) = branch.membership.members.coordinator_contact(branch.now) {
            self.fetch_snapshot(&coordinator, branch);
        }
        Ok(())
    }

    /// Another branch offers its snapshot to this one.
    ///
    /// # Errors
    /// The offer cannot be merged, or the policy of this run lets one branch continue only.
    pub(crate) fn on_offer(
        &mut self,
        from: PeerId,
        offer: MergeOffer,
        branch: &mut Branch<'_>,
    ) -> Result<(), Reject> {
        let can_be = branch.training.planner().can_merge(&offer);
        if !branch.membership.members.allows_forks() || !can_be || offer.coordinator().is_none() {
            return Err(Reject::OutOfPlace);
        }
        let Some(own) = branch.merge_probe().filter(|_| branch.can_negotiate()) else { return Ok(()) };
        if own.coordinator.peer == branch.me {
            self.on_offer_at_coordinator(offer, own, branch);
        } else if branch.membership.members.is_member(&from) {
            branch.begin_import(offer);
            self.fetch_snapshot(&own.coordinator, branch);
        } else {
            branch.send(own.coordinator.peer, &MergeMessage::Offer(offer).into());
        }
        Ok(())
    }

    fn on_offer_at_coordinator(&mut self, offer: MergeOffer, own: MergeProbe, branch: &mut Branch<'_>) {
        let (snapshot_id, question) = ((offer.view, offer.steps), offer.question);
        let Some(to) = offer.coordinator().cloned() else { return };
        let is_merged = branch.training.has_merged(offer.view)
            || fork_point(&own.history(), &offer.history()).is_some_and(|common| common >= offer.trained);
        if is_merged || self.refused == Some(snapshot_id) {
            let contacts = branch.membership.members.contacts();
            let accept = MergeAccept { view: offer.view, question, is_merged, contacts };
            return branch.send_or_dial(&to, &MergeMessage::Accept(accept).into());
        }
        self.drop_stale_import(&offer.ancestors, branch);
        self.break_tie(own.view, offer.view, &offer.ancestors);
        match &mut self.state {
            MergeState::Importing(import) if import.snapshot_id() == snapshot_id => import.offer = offer,
            MergeState::Idle => self.state = MergeState::Importing(MergeImport::new(branch.now, offer)),
            // One negotiation at a time.
            MergeState::Importing(_) | MergeState::Exporting(_) => return,
        }
        let seen_to = MergeProbe { yields: Some(snapshot_id.0), answers: question, ..own.clone() };
        branch.send_or_dial(&to, &MergeMessage::Probe(seen_to).into());
        self.advance_import(branch);
        self.fetch_snapshot(&own.coordinator, branch);
    }

    /// A member reports how many chunks of the snapshot it lacks.
    pub(crate) fn on_ready(&mut self, from: PeerId, ready: MergeReady, branch: &Branch<'_>) {
        let is_member =
            branch.membership.members.is_member(&from) && ready.recipients == branch.training.base().digest();
        if let MergeState::Importing(import) = &mut self.state
            && is_member
            && import.snapshot_id() == (ready.view, ready.steps)
        {
            import.missing_chunks.insert(from, ready.missing);
        }
    }
}

/// The interval at which the offer is sent again to all members.
const REMINDER_INTERVAL: Duration = Duration::from_secs(15);
