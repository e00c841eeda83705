//! Membership: the members of the view, as one of them sees them, and their agreement on the next view.
//!
//! Every member watches some others, remembers the peers that want to join or leave, and answers proposers. Any member can
//! propose. The lowest live rank does so first, the others only if that attempt fails.
//!
//! # How it works
//! ```text
//!  heartbeats, links --> a member is lost -----> Prepare at once --- promises: reports ---> Propose --- accepted ---> Learn
//!  Join, Retire -------> a peer joins or leaves -> Prepare before a future step (training continues until then)
//! ```
//! [`Membership`] only connects its parts. A decision that needs several of them is made by a struct that borrows those parts, such as
//! `Proposing` and `Voting`.
//!
//! | part | subject |
//! |---|---|
//! | [`members`], [`place`], [`hanging`] | the members of the view, and which of them are lost or hold up the others |
//! | [`failure_detection`], [`links`], [`observations`] | silence and step times; links; what this member has seen of others in this view |
//! | [`succession`], [`agreement`], [`view_change`] | when a member proposes the next view, how it votes, and what that view is |
//! | [`admission`], [`churn`], [`lead`] | peers that join or leave between two steps, and before which step |
//! | [`departures`], [`rekey`] | members that leave or are expelled, and a new secret |
//! | [`capacity`], [`own_capacity`] | how much members offer to own; how much this one does |
//! | [`partition`] | other branches of a partitioned run |
//! | [`health`], [`pause`], [`report`] | what the user learns about the members |
//! | [`join`], [`bootstrap`], [`recovery`] | peers that are not in a view yet |
//! | [`journal`], [`records`], [`disks`] | the records that must be on disk before another peer may rely on them; disks that fail |
//!
//! # Invariants
//! - A promise, an acceptance and a new view are on disk before any message about them is sent.
//! - A member leaves a view only for a successor that is chosen: by a quorum of its members, or where all parts of a partitioned
//!   run continue, by all members that stay.
//!
//! # Not here
//! What a view change means for training: `training/steps/view_change.rs` for steps, `training/tables.rs` for tables.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use peergrad_protocol::agreement::Ballot;
use peergrad_protocol::invite::Secret;
use peergrad_protocol::message::{Accepted, AdminMessage, Heartbeat, Join, Nack, Prepare, Promise, Propose};
use peergrad_protocol::time::Timers;
use peergrad_protocol::view::{Member, Recovery, View, ViewChange};
use peergrad_protocol::{Instant, PeerId, ViewDigest};

use crate::io::{Output, Reject};
use crate::membership::journal::{Effect, Journal};
use crate::state::shared_cache::{SharedCache, ViewDifference};
use crate::state::snapshot_id::SnapshotId;
use admission::Admission;
pub(crate) use admission::{JoinAnswer, RunPhase};
use agreement::Proposing;
use agreement::voting::Voting;
use capacity::CapacityOffers;
use churn::Requests;
pub(crate) use health::MemberHealth;
pub(crate) use measurements::Measurement;
use measurements::Measurements;
pub(crate) use members::MemberRules;
use members::Members;
use partition::PartitionProbe;
use place::Place;
use records::Records;
use rekey::{Recipients, Rekeying};
use succession::Succession;
pub(crate) use training_command::TrainingCommand;
pub(crate) use training_status::{Assignments, GateStatus, MergeStatus, TableStatus, TrainingStatus};

mod admission;
mod agreement;
pub(crate) mod bootstrap;
mod capacity;
mod churn;
mod complaints;
mod departures;
mod disks;
mod failure_detection;
mod hanging;
mod health;
pub(crate) mod join;
pub(crate) mod journal;
mod lead;
mod links;
mod measurements;
mod members;
mod observations;
pub(crate) mod own_capacity;
mod partition;
mod pause;
mod place;
mod records;
pub(crate) mod recovery;
mod rekey;
mod report;
mod succession;
mod training_command;
mod training_status;
pub(crate) mod view_change;

/// What one member knows about the members.
pub(crate) struct Membership {
    /// The members of this view, and which of them are linked, lost, leaving, or hold up the others.
    pub(crate) members: Members,
    /// The choice of the next view.
    succession: Succession,
    /// The peers that ask to join, and the penalties of those that were lost.
    pub(crate) admission: Admission,
    /// How much each member offers to own, where that differs from the view.
    capacity_offers: CapacityOffers,
    /// What each member has measured, where that differs from the view.
    measurements: Measurements,
    /// The last new secret that arrived, and which members have it.
    rekeying: Rekeying,
    /// The search for other branches of a partitioned run.
    probe: PartitionProbe,
    /// Makes the records of the view and of this member's vote, as they must be on disk.
    records: Records,
    /// When heartbeats are next sent, and when an attempt to have the next view chosen is next looked at.
    timers: Timers<2>,
    /// When this member last wrote a record only to learn whether its disk works.
    disk_tested_at: Instant,
}

/// The timers of a membership.
#[derive(Clone, Copy)]
enum Timer {
    /// The next heartbeat is due.
    Heartbeat,
    /// An attempt needs attention.
    Attempt,
}

impl Membership {
    /// Membership in a view that is installed and on disk.
    pub(crate) fn new(
        now: Instant,
        me: Member,
        view: Arc<View>,
        digest: ViewDigest,
        linked: BTreeSet<PeerId>,
        (cache, definition, rules): (SharedCache, Arc<[u8]>, MemberRules),
    ) -> Self {
        let place = Place::new(me, view, digest);
        let mut timers = Timers::default();
        timers.set(Timer::Heartbeat as usize, now);
        Self {
            succession: Succession::new(now, &place, &agreement::PACING),
            admission: Admission::default(),
            capacity_offers: CapacityOffers::new(place.me.capacity),
            measurements: Measurements::new(now),
            rekeying: Rekeying::default(),
            probe: PartitionProbe::new(place.rank.index()),
            records: Records { cache, definition },
            timers,
            disk_tested_at: now,
            members: Members::new(now, place, linked, rules),
        }
    }

    // Time and the disk.

    /// When to call [`Membership::tick`] next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Time has passed.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        status: &TrainingStatus<'_>,
        out: &mut Vec<Output>,
    ) -> Vec<TrainingCommand> {
        if self.timers.expired(Timer::Heartbeat as usize, now) {
            self.members.detection.detector.tick(now);
            self.members.make_heartbeat(now, status);
            self.resend(now, out);
            self.measurements.consider(now, &self.members, status.planner.round_size);
            self.members.redial(now, out);
            self.timers.set(Timer::Heartbeat as usize, now.after(self.members.heartbeat_interval()));
        }
        self.timers.expired(Timer::Attempt as usize, now);
        self.poll(now, status, out)
    }

    /// Does what is due: notices losses, begins attempts to have the next view chosen, and drives them.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        status: &TrainingStatus<'_>,
        out: &mut Vec<Output>,
    ) -> Vec<TrainingCommand> {
        self.proposing(now, status, out).poll()
    }

    /// Sends again what may not have arrived.
    fn resend(&mut self, now: Instant, out: &mut Vec<Output>) {
        agreement::resend(&self.succession, &self.members, now, out);
        self.admission.forget_stale(now);
        self.capacity_offers.tick(now, &self.members);
        self.members.resend_expulsions(now, out);
        self.members.resend_complaints(now, out);
        self.rekeying.resend(&self.members, out);
        self.measurements.resend(now, &self.members, out);
        let Self { members, admission, capacity_offers, measurements, .. } = self;
        Requests { members, admission, capacity_offers, measurements }.resend(now, out);
    }

    /// Records are on disk: this member does what waited for them.
    pub(crate) fn persisted(&mut self, effects: Vec<Effect>, out: &mut Vec<Output>) {
        for effect in effects {
            match effect {
                Effect::Answer { to, message } => self.members.send(to, &message, out),
                Effect::EnterView(_, digest) => self.succession.recorded(digest),
            }
        }
    }

    // Links.

    /// A link to this peer is up. A member counts the frames that arrive over it from the next heartbeat on, so that one is due now.
    pub(crate) fn link_up(&mut self, now: Instant, peer: PeerId) {
        self.members.link_up(now, peer);
        if self.members.neighbors().contains(&peer) {
            self.heartbeat_is_due(now);
        }
    }

    /// This member has something to say in a heartbeat that cannot wait.
    pub(crate) fn heartbeat_is_due(&mut self, now: Instant) {
        self.timers.set(Timer::Heartbeat as usize, now);
    }

    // The next view.

    /// The view that is chosen and that training can enter.
    pub(crate) fn next(&self) -> Option<(&Arc<View>, ViewDigest)> {
        self.succession.enterable()
    }

    /// Enters the chosen view after training has. Returns the members that joined and left.
    pub(crate) fn advance(&mut self, now: Instant) -> Option<Arc<ViewDifference>> {
        let next = self.succession.next.take()?;
        let before = &self.members.place;
        let difference =
            self.records.cache.difference((&before.view, before.digest), (&next.view, next.digest));
        let place = Place::new(before.me.clone(), next.view, next.digest);
        self.capacity_offers.view_changed(now, &before.view, &place.view);
        self.members.enter(now, place, &difference);
        let Members { place, departures, .. } = &self.members;
        if matches!(&place.view.recovery, Recovery::Resume(resume) if resume.is_interruption()) {
            self.admission.ban_lost(now, &difference.left, &place.view, departures);
        }
        self.succession.enter(now, place);
        self.admission.view_changed(&place.view);
        self.measurements.view_changed(now);
        // A member may have restarted while this view was agreed on; the incarnation in the view is gone.
        let restarted = self.admission.all_asking().filter_map(|peer| self.members.place.view.rank(peer));
        restarted.for_each(|rank| self.members.observed.mark_restarted(rank));
        self.members.departures.view_changed(&self.members.place.view);
        self.timers.set(Timer::Heartbeat as usize, now);
        Some(difference)
    }

    /// Whether this view cannot continue, so that another one is needed.
    pub(crate) fn is_troubled(&self) -> bool {
        self.succession.is_troubled()
    }

    /// The snapshot of another branch that the next view merges, or may merge.
    pub(crate) fn pending_merge(&self) -> Option<SnapshotId> {
        self.succession.pending_merge()
    }

    /// How many chunks of tables no reachable member stores, if this member leads the next view change and waits for them; else 0.
    pub(crate) fn missing_chunks(&self) -> usize {
        self.succession.table_losses.missing.len()
    }

    /// The user has declared the missing chunks of tables lost: these chunks, and no others, restart from initial values.
    pub(crate) fn declare_lost(&mut self) {
        let losses = &mut self.succession.table_losses;
        losses.declared.clone_from(&losses.missing);
    }

    // Messages of the agreement.

    /// A member that may propose the next view.
    fn proposing<'m>(
        &'m mut self,
        now: Instant,
        status: &'m TrainingStatus<'m>,
        out: &'m mut Vec<Output>,
    ) -> Proposing<'m> {
        let Self { members, succession, admission, capacity_offers, measurements, timers, .. } = self;
        Proposing { now, members, succession, admission, capacity_offers, measurements, timers, status, out }
    }

    /// A member that votes on the next view.
    fn voting<'m>(&'m mut self, journal: &'m mut Journal, out: &'m mut Vec<Output>) -> Voting<'m> {
        let Self { members, succession, records, timers, .. } = self;
        Voting { members, succession, records, timers, journal, out }
    }

    /// A member asks to agree on the next view.
    pub(crate) fn on_prepare(
        &mut self,
        now: Instant,
        from: PeerId,
        prepare: Prepare,
        status: &TrainingStatus<'_>,
        journal: &mut Journal,
        out: &mut Vec<Output>,
    ) -> Result<Vec<TrainingCommand>, Reject> {
        self.voting(journal, out).on_prepare(now, from, prepare, status)
    }

    /// A member has promised, and reports where it is.
    pub(crate) fn on_promise(
        &mut self,
        now: Instant,
        from: PeerId,
        promise: Promise,
        status: &TrainingStatus<'_>,
        out: &mut Vec<Output>,
    ) -> Vec<TrainingCommand> {
        self.proposing(now, status, out).on_promise(from, promise)
    }

    /// A ballot of this member was refused.
    pub(crate) fn on_nack(&mut self, now: Instant, nack: &Nack) {
        self.succession.on_nack(now, nack);
    }

    /// A member proposes the next view.
    pub(crate) fn on_propose(
        &mut self,
        now: Instant,
        from: PeerId,
        propose: Propose,
        status: &TrainingStatus<'_>,
        journal: &mut Journal,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        self.voting(journal, out).on_propose(now, from, propose, status)
    }

    /// A proposer gives up.
    pub(crate) fn on_withdraw(&self, from: PeerId, of: (ViewDigest, Ballot)) -> Vec<TrainingCommand> {
        self.succession.on_withdraw(&self.members.place, from, of)
    }

    /// A member has accepted. If that makes the change chosen, all members learn of it.
    pub(crate) fn on_accepted(
        &mut self,
        now: Instant,
        from: PeerId,
        accepted: Accepted,
        out: &mut Vec<Output>,
    ) {
        self.succession.on_accepted(now, &self.members, from, accepted, out);
    }

    /// The next view is chosen.
    ///
    /// # Errors
    /// It does not follow this one.
    pub(crate) fn on_learn(
        &mut self,
        change: &ViewChange,
        status: &TrainingStatus<'_>,
        journal: &mut Journal,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        self.voting(journal, out).on_learn(change, status)
    }

    /// A member of a later view sends that view. Returns false if it is not the next one.
    pub(crate) fn on_install(&mut self, view: View, journal: &mut Journal, out: &mut Vec<Output>) -> bool {
        self.voting(journal, out).on_install(view)
    }

    // Other messages.

    /// A member has sent a heartbeat.
    pub(crate) fn on_heartbeat(
        &mut self,
        now: Instant,
        from: PeerId,
        heartbeat: Heartbeat,
        out: &mut Vec<Output>,
    ) {
        if heartbeat.view != self.members.place.digest {
            self.note_in_other_view(now, &from, heartbeat.view);
        }
        self.members.on_heartbeat(now, from, heartbeat, out);
    }

    /// A peer asks to join.
    pub(crate) fn on_join(&mut self, from: PeerId, join: &Join, phase: RunPhase) -> JoinAnswer {
        self.admission.on_join(&mut self.members, from, join, phase)
    }

    /// A peer that was welcomed here is ready. Returns false if it was not welcomed, is a member already, or should ask other members.
    pub(crate) fn on_ready(&mut self, now: Instant, from: PeerId) -> bool {
        !self.members.is_paused() && self.admission.ready(now, from, &self.members.place.view)
    }

    /// A member announces a peer that is ready to join, or the capacity that it offers itself.
    pub(crate) fn on_candidate(&mut self, now: Instant, from: PeerId, member: Member) {
        if member.peer == from && self.members.is_current_incarnation(&member) {
            self.capacity_offers.note(now, &member);
        } else {
            self.admission.announce(now, member, &self.members.place.view);
        }
    }

    /// A member tells the coordinator what it has measured of itself.
    pub(crate) fn on_measured(
        &mut self,
        now: Instant,
        from: PeerId,
        view: ViewDigest,
        measurement: Measurement,
    ) {
        if view == self.members.place.digest && self.members.is_member(&from) {
            self.measurements.note(now, from, measurement);
        }
    }

    /// A peer announces that it stops. Returns whether it is a member.
    pub(crate) fn departed(&mut self, from: &PeerId, reason: &str, out: &mut Vec<Output>) -> bool {
        self.admission.forget(from);
        self.members.departed(from, reason, out)
    }

    /// A member forwards what its user asks for.
    pub(crate) fn on_admin(&mut self, from: PeerId, message: AdminMessage, out: &mut Vec<Output>) {
        let Self { members, succession, rekeying, .. } = self;
        match message {
            AdminMessage::Retire => members.on_retire(from),
            AdminMessage::EndRun => members.on_end_run(&from),
            AdminMessage::Expel(expulsion) => members.on_expel(&from, expulsion),
            AdminMessage::Rekey(rekey) => {
                let next = succession.next.as_ref().map(|next| &*next.view);
                rekeying.on_rekey(Recipients { members, next }, &from, rekey, out);
            }
            AdminMessage::Rekeyed(at) => rekeying.on_rekeyed(from, at),
        }
    }

    // What this peer and its user ask for.

    /// The user of this member asks for another secret of the run, drawn at `drawn_at` (Unix time in milliseconds).
    pub(crate) fn rekey(&mut self, secret: Secret, drawn_at: u64, out: &mut Vec<Output>) {
        let Self { members, succession, rekeying, .. } = self;
        let next = succession.next.as_ref().map(|next| &*next.view);
        rekeying.begin(Recipients { members, next }, secret, drawn_at, out);
    }

    /// The user of this member orders to end the run.
    pub(crate) fn end_run(&mut self, out: &mut Vec<Output>) {
        self.members.end_run(out);
    }

    /// Sends the latest secret, if there is one, to the new members of this view.
    pub(crate) fn send_secret(&self, added: &[PeerId], out: &mut Vec<Output>) {
        self.rekeying.send_to(added, &self.members, out);
    }

    /// Sets the capacity that this member offers while it reaches all others.
    pub(crate) fn offer_capacity(&mut self, capacity: u8) {
        self.capacity_offers.set_own(capacity);
    }

    /// This member has measured how fast it computes, and what its line carries.
    pub(crate) fn set_measurement(&mut self, measurement: Measurement) {
        self.measurements.set_own(measurement);
    }

    // Other branches.

    /// A peer speaks in another view than this one. One of the two may only not have received the other's view yet.
    pub(crate) fn note_in_other_view(&mut self, now: Instant, peer: &PeerId, view: ViewDigest) {
        if !self.succession.is_next(view) {
            self.members.note_in_other_view(now, peer, view);
        }
    }

    /// The next few members that may be in another branch: returns those that are linked, and dials the others.
    pub(crate) fn find_partitioned(&mut self, out: &mut Vec<Output>) -> Vec<PeerId> {
        self.probe.find(&self.members, &self.admission, out)
    }

    /// How long it may take until another branch has offered its snapshot, and all members have their part of it.
    pub(crate) fn merge_timeout(&self) -> Duration {
        partition::merge_timeout(self.members.step_time())
    }

    /// How many steps ahead members learn of the step with a snapshot, so that none of them is beyond it by then.
    pub(crate) fn merge_lead_steps(&self) -> u64 {
        partition::merge_lead_steps(self.members.step_time())
    }
}
