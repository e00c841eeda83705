//! MergeNegotiation, as the machine sees it: lineages that meet again become one.
//!
//! # How it works
//! 1. Members tell those whom they have lost, as soon as these can be reached again, where their lineage is. Of the two, the one
//!    whose view has the smaller digest decides, and in it the coordinator alone, once for those two views: so both never wait for
//!    each other, and never both yield. The one with more steps leads.
//! 2. The coordinator of the one that yields hears of it. Where both are merged it names a step, and says what was kept after it;
//!    the coordinator of the one that leads tells that to its members, and once all have their part of it, they agree on a view
//!    that merges it. Where one is kept, or the other has trained nothing, it only asks whether it may come.
//! 3. When the step that merges is committed, or nothing is to be merged, the coordinator of the one that leads says so; members of
//!    the other one hear that theirs is over, and ask to be let in as anybody does.
//!
//! Nobody stops for any of it, and nobody gives anything up before it is merged. Whatever is lost on the way is said again; what
//! comes to nothing begins anew when both meet the next time.
//!
//! ```text
//! coordinator:    Idle -- decided or told: this one yields ---> MergeExport -- MergeAccept: comes as newcomers
//!               | ^------ nobody answers, or another view <-----'
//!               '-- MergeOffer: another one yields --> MergeImport -- merged, or nothing comes any more --> Idle
//! ```
//!
//! # Invariants
//! - A coordinator has to do with one other lineage at a time.
//! - Words that end a lineage count only as the answer to what was asked just now: what was sent during a cut arrives as well.

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
use crate::training::SnapshotId;

/// What goes on between this lineage and others.
#[derive(Default)]
pub(super) struct MergeNegotiation {
    probed_at: Instant,
    /// When questions were asked of late.
    asked: VecDeque<Instant>,
    /// At a coordinator that decides: by the other lineage's view, the one that yields.
    decided: BTreeMap<ViewDigest, ViewDigest>,
    /// At a coordinator: what it has to do with another lineage.
    state: MergeState,
    /// At a coordinator: what could not be had of another lineage, in the present view.
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
    /// What is to be merged, if all `members` have their part of it.
    pub(super) fn ready_offer(&self, members: &[Member]) -> Option<&MergeOffer> {
        let MergeState::Importing(import) = &self.state else { return None };
        let has_all_chunks = |member: &Member| import.missing_chunks.get(&member.peer) == Some(&0);
        members.iter().all(has_all_chunks).then_some(&import.offer)
    }

    /// Another view begins: who yields negotiates anew, and who inherits counts anew.
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

    /// The other lineage, which is in `view` and comes from `ancestors`, yields to this one. If this one yields to it as well, because
    /// one of them has got another view meanwhile, that one has its way whose view has the smaller digest.
    fn break_tie(&mut self, own: ViewDigest, view: ViewDigest, ancestors: &[Ancestor]) {
        let MergeState::Exporting(export) = &self.state else { return };
        let is_it = export.view == view || ancestors.iter().any(|root| root.view == export.view);
        if is_it && view < own {
            self.state = MergeState::Idle;
        }
    }

    /// The name of a question that is asked now.
    fn ask(&mut self, now: Instant) -> u64 {
        self.asked.retain(|asked| now.since(*asked) <= ANSWER_MAX);
        if self.asked.back() != Some(&now) {
            self.asked.push_back(now);
        }
        now.0
    }

    /// Whether it is one that was asked just now.
    fn is_answer(&self, now: Instant, question: u64) -> bool {
        self.asked.iter().any(|asked| asked.0 == question && now.since(*asked) <= ANSWER_MAX)
    }
}

impl ActiveMember {
    /// Where this lineage is, for another one.
    fn merge_probe(&self, now: Instant) -> Option<MergeProbe> {
        Some(MergeProbe {
            run: self.training.view().run,
            view: self.training.digest(),
            steps: self.training.committed(),
            trained: self.training.trained(),
            ancestors: self.training.ancestors(),
            coordinator: self.membership.coordinator_contact(now)?,
            yields: None,
            question: 0,
            answers: 0,
        })
    }

    /// Whether another lineage has anything to do with this one now.
    fn can_negotiate(&self) -> bool {
        let trains = self.progress == Progress::Training && self.training.has_parameters();
        trains && !self.training.is_closing() && !self.membership.is_troubled()
    }

    /// What this lineage is importing is not waited for any more if it is not here and the other one, which comes from `ancestors`,
    /// has gone on from there: who was to give it has forgotten it.
    fn drop_stale_import(&mut self, ancestors: &[Ancestor]) {
        let pinned_snapshot = self.pinned_snapshot();
        let MergeState::Importing(import) = &self.negotiation.state else { return };
        let is_before = ancestors.iter().any(|root| root.view == import.offer.view);
        let is_whole = self.negotiation.ready_offer(&self.training.view().members).is_some();
        let snapshot_id = import.snapshot_id();
        if is_before && !is_whole && pinned_snapshot != Some(snapshot_id) {
            self.negotiation.state = MergeState::Idle;
            self.training.cancel_import(snapshot_id);
        }
    }

    /// What of another lineage a view merges that may be entered, or is there and has not merged it yet.
    fn pinned_snapshot(&self) -> Option<SnapshotId> {
        let pending = self.training.pending_merge().map(|merge| (merge.view, merge.steps));
        pending.or_else(|| self.membership.pending_merge())
    }
}

impl Machine {
    /// Does what is due between this lineage and others.
    pub(super) fn negotiate(&mut self, now: Instant, out: &mut Vec<Output>) {
        let NodeRole::Member(active) = &mut self.role else { return };
        if !active.membership.allows_forks()
            || !active.can_negotiate()
            || now.since(active.negotiation.probed_at) < PROBE_INTERVAL
        {
            return;
        }
        active.negotiation.probed_at = now;
        active.training.expire_snapshots(now, active.pinned_snapshot());
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

    /// Tells somebody of another lineage, or has a way made there; what is to be said is said again.
    fn send_or_dial(&self, to: &Contact, message: &Message, out: &mut Vec<Output>) {
        if self.credits.contains_key(&to.peer) {
            self.send(to.peer, message, None, out);
        } else {
            out.push(Output::Dial(to.clone()));
        }
    }

    /// A member of another lineage says where that is; or one of this lineage, that it is decided.
    pub(super) fn on_merge_probe(
        &mut self,
        now: Instant,
        from: PeerId,
        probe: MergeProbe,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let NodeRole::Member(active) = &mut self.role else { return Ok(()) };
        if probe.run != active.training.view().run || !active.membership.allows_forks() {
            return Err(Reject::OutOfPlace);
        }
        if active.training.view().descends_from(probe.view) {
            // It is only behind, or has left us what it had.
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
            // Where a view has changed meanwhile, both begin anew.
            Some(view) if view != own.view && view != probe.view => {}
            None if own.view > probe.view => {
                let answers = probe.question;
                self.send(from, &MergeMessage::Probe(MergeProbe { answers, ..own }).into(), None, out);
            }
            None if is_mine => self.decide(now, probe, own, out),
            // It is for the coordinator to decide, or to do.
            Some(_) | None => self.send(own.coordinator.peer, &MergeMessage::Probe(probe).into(), None, out),
        }
        Ok(())
    }

    /// Says which of the two yields: once, whatever either trains meanwhile, and by what it hears just now.
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

    /// Another lineage offers to yield to this one, and leaves nothing more. Whoever says yes does not yield to it.
    fn accept_merge(&mut self, other: &MergeProbe, own: &MergeProbe, out: &mut Vec<Output>) {
        let NodeRole::Member(active) = &mut self.role else { return };
        let is_merged = active.training.has_merged(other.view);
        let negotiation = &mut active.negotiation;
        negotiation.break_tie(own.view, other.view, &other.ancestors);
        let does_yield = matches!(negotiation.state, MergeState::Exporting(_));
        let mut is_decided = || *negotiation.decided.entry(other.view).or_insert(other.view) == other.view;
        if is_merged || !does_yield && is_decided() {
            let (view, question, contacts) = (other.view, other.question, active.membership.contacts());
            let accept = MergeAccept { view, question, is_merged, contacts };
            self.send_or_dial(&other.coordinator, &MergeMessage::Accept(accept).into(), out);
        }
    }

    /// Another lineage has merged this one, and whoever was to say so may have been lost since: who speaks for it now is asked.
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
            // One after the other.
            MergeState::Importing(_) => {}
        }
    }

    /// A member says what its view is, which this peer may be in next, or not any more.
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
        let own = active.training.digest();
        if active.membership.is_minority_branch(&view) && !active.training.has_snapshot() {
            active.membership.note_in_other_view(now, &from, view.digest());
        } else if !active.membership.allows_forks() || view.parents.first() == Some(&own) {
            if !active.membership.on_install(view.clone(), &mut self.journal, out) {
                // Others have gone on for more than one view: this peer is not among them any more.
                self.exclude(now, &view, out);
            }
        } else if view.descends_from(own) {
            if active.training.has_snapshot() {
                // The others of this lineage may not have heard of it: whoever is left behind would go on alone.
                active.training.broadcast(&AgreementMessage::Install(view.clone()).into(), out);
            }
            self.exclude(now, &view, out);
        } else if !active.training.view().descends_from(view.digest()) {
            active.membership.note_in_other_view(now, &from, view.digest());
        }
        Ok(())
    }
}

/// How often lineages that have met are told where this one is, and what is left to do is looked after.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// An answer that took longer is none.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Other views about which this one has decided.
const DECIDED_MAX: usize = 16;
