//! Members: the members of the view, as one of them sees them.
//!
//! Which of them are lost or hold up all others follows from several parts: the links, the failure detector, what was observed in this
//! view, and which members are about to leave. This object holds those parts and answers such questions.
//!
//! # How it works
//! - *Reach.* A member hears the heartbeats of its neighbors: of all members in a small view, else of a few at growing
//!   distances. A member whose link broke is lost, and so is one that is silent for longer than its recent delays explain.
//! - *Progress.* A heartbeat carries the number of complete steps and whether the program computes. A member hangs if it
//!   computes at the same step for a large multiple of the usual time while the others wait: `hanging.rs`.

use std::collections::BTreeSet;
use std::time::Duration;

use peergrad_protocol::cursor::Ending;
use peergrad_protocol::limits::BUSY_MAX;
use peergrad_protocol::message::{
    AdminMessage, AgreementMessage, Awaited, Contact, Heartbeat, Message, SentFrames,
};
use peergrad_protocol::view::{Complaint, Expulsion, ExpulsionCause, Member, MemberFault, Recovery, View};
use peergrad_protocol::{Instant, PeerId, Rank, StepNumber, ViewDigest};

use super::departures::Departures;
use super::disks::{FailingDisks, INFORMED_OF_DISKS};
use super::failure_detection::{FailureDetection, heartbeat_interval};
use super::links::Links;
use super::observations::Observations;
use super::place::Place;
use super::training_status::TrainingStatus;
use crate::io::{Event, Output};
use crate::partition_policy::PartitionPolicy;
use crate::peer_links::Route;
use crate::state::shared_cache::ViewDifference;

/// What a run's specification says of its members.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemberRules {
    /// What the parts of a partitioned swarm do.
    pub(crate) policy: PartitionPolicy,
    /// The least time that a member may compute at one step before the others go on without it.
    pub(crate) patience: Duration,
}

/// The members of the view, as one of them sees them.
pub(crate) struct Members {
    /// The view, and this member's rank in it.
    pub(super) place: Place,
    /// The peers that this member can send frames to.
    pub(super) links: Links,
    /// How long the others have been silent, and how long steps take.
    pub(super) detection: FailureDetection,
    /// What this member has seen of the others in this view.
    pub(super) observed: Observations,
    /// The members that are about to leave, or to be expelled.
    pub(super) departures: Departures,
    /// What the parts of a partitioned swarm do.
    pub(super) policy: PartitionPolicy,
    /// A heartbeat that is to be sent, and the peers that receive it; `None` if none is due.
    due_heartbeat: Option<(Heartbeat, BTreeSet<PeerId>)>,
    /// The members that cannot write to their disks at present.
    pub(super) failing_disks: FailingDisks,
    /// Whether a user has ordered to end the run.
    end_is_ordered: bool,
}

impl Members {
    /// The members of a view that this one enters now, with the peers that it is linked to.
    pub(super) fn new(now: Instant, place: Place, linked: BTreeSet<PeerId>, rules: MemberRules) -> Self {
        let mut detection = FailureDetection::new(now, &place.view, rules.patience);
        detection.watch(now, &place);
        Self {
            links: Links::new(place.me.peer, linked, &place.view),
            detection,
            observed: Observations::new(now),
            departures: Departures::default(),
            policy: rules.policy,
            place,
            due_heartbeat: None,
            failing_disks: FailingDisks::default(),
            end_is_ordered: false,
        }
    }

    /// Enters another view, which differs from the present one by `difference`.
    pub(super) fn enter(&mut self, now: Instant, place: Place, difference: &ViewDifference) {
        self.place = place;
        // What follows it would say that no frame of this view was sent.
        self.due_heartbeat = None;
        self.links.members_changed(&difference.joined, &difference.left);
        self.failing_disks.enter(&self.place);
        self.observed = Observations::new(now);
        self.detection.step_timing.restart(now);
        self.detection.watch(now, &self.place);
    }

    // The view.

    /// This member, in the incarnation that is in the view.
    pub(crate) fn me(&self) -> &Member {
        &self.place.me
    }

    /// Whether a peer is in the view, in any incarnation.
    pub(crate) fn is_member(&self, peer: &PeerId) -> bool {
        self.place.view.rank(peer).is_some()
    }

    /// Whether this incarnation of the member is in the view.
    pub(super) fn is_current_incarnation(&self, member: &Member) -> bool {
        let known = self.place.view.rank(&member.peer).map(|rank| self.place.view.member(rank));
        known.is_some_and(|known| known.incarnation == member.incarnation)
    }

    /// Members that a joiner may ask, this one first.
    pub(crate) fn contacts(&self) -> Vec<Contact> {
        self.place.contacts()
    }

    /// The members that this one watches, which also watch it.
    pub(crate) fn neighbors(&self) -> Vec<PeerId> {
        self.place.neighbors()
    }

    /// The member that proposes changes between two steps: the lowest rank that is not lost, is not expelled and has parameters. `None` if
    /// there is none.
    pub(super) fn coordinator(&self, now: Instant) -> Option<Rank> {
        let lost = self.lost(now);
        let is_to_go = |rank: &Rank| self.departures.expelling.contains_key(&self.place.peer(*rank));
        let candidates =
            || self.place.ranks().filter(|rank| !lost.contains(rank) && !self.is_newcomer(*rank));
        // If all of them are to be expelled, because users had them remove each other, one still has to do it.
        let can_write = |rank: &Rank| !self.disk_fails(*rank);
        let best = candidates().filter(can_write).find(|rank| !is_to_go(rank));
        best.or_else(|| candidates().find(|rank| !is_to_go(rank))).or_else(|| candidates().next())
    }

    /// The contact of the coordinator of this branch; `None` while every member that could be it is lost.
    pub(crate) fn coordinator_contact(&self, now: Instant) -> Option<Contact> {
        Some(self.place.view.member(self.coordinator(now)?).contact())
    }

    /// Whether all parts of a partitioned swarm continue.
    pub(crate) fn allows_forks(&self) -> bool {
        self.policy.allows_forks()
    }

    /// Whether `view` is that of half of the members of this view or fewer, which have continued because they lost this member and the
    /// others. That is no reason to leave the others, which continue as well.
    pub(crate) fn is_minority_branch(&self, view: &View) -> bool {
        let place = &self.place;
        let is_in = |member: &&Member| view.rank(&member.peer).is_some();
        let kept = place.view.members.iter().filter(is_in).count();
        let me = view.rank(&place.me.peer).map(|rank| view.member(rank).incarnation);
        let is_loss = match &view.recovery {
            Recovery::Resume(resume) => {
                resume.is_interruption() || view.parents.first() != Some(&place.digest)
            }
            Recovery::Initialize => false,
        };
        let is_quarantined = view.quarantined_since(&place.view).iter().any(|it| it.peer == place.me.peer);
        let is_out =
            me != Some(place.me.incarnation) && view.expulsion(&place.me.peer).is_none() && !is_quarantined;
        self.allows_forks() && is_out && is_loss && 2 * kept <= place.view.members.len()
    }

    // Links and heartbeats.

    /// A frame has arrived from this peer.
    pub(crate) fn heard(&mut self, now: Instant, peer: &PeerId) {
        self.detection.detector.heard(now, peer);
    }

    /// A segment, a chunk batch or a table message has arrived: training may be slow, but is not stuck.
    pub(crate) fn data_arrived(&mut self, now: Instant) {
        self.detection.data_arrived(now);
    }

    /// A link to this peer is up.
    pub(crate) fn link_up(&mut self, now: Instant, peer: PeerId) {
        self.links.up(peer);
        self.heard(now, &peer);
    }

    /// The link is down, and some frames may be lost.
    pub(crate) fn link_down(&mut self, peer: &PeerId) {
        self.links.down(*peer, &self.place.view);
        self.failing_disks.link_down(peer);
        self.observed.broken.extend(self.place.view.rank(peer));
    }

    /// A peer is now reached by this route.
    pub(crate) fn set_route(&mut self, now: Instant, peer: PeerId, route: Route) {
        self.links.set_route(now, peer, route);
    }

    /// Members to which no frame can be sent.
    pub(crate) fn unlinked(&self) -> &BTreeSet<PeerId> {
        &self.links.unlinked
    }

    /// Sends a message to a linked peer, or to this one itself; does nothing for any other peer.
    pub(super) fn send(&self, to: PeerId, message: &Message, out: &mut Vec<Output>) {
        self.links.send(to, message, out);
    }

    /// Sends a message to all members that are linked, this one included.
    pub(super) fn broadcast(&self, message: &Message, out: &mut Vec<Output>) {
        self.links.broadcast(&self.place.view, message, out);
    }

    /// Dials the members that are not linked again: the driver may have given up, or may wait ever longer between its tries.
    pub(super) fn redial(&mut self, now: Instant, out: &mut Vec<Output>) {
        if !self.detection.take_redial(now) {
            return;
        }
        for rank in self.links.unlinked.iter().filter_map(|peer| self.place.view.rank(peer)) {
            out.push(Output::Dial(self.place.view.member(rank).contact()));
        }
    }

    /// The interval between the heartbeats of a member.
    pub(crate) fn heartbeat_interval(&self) -> Duration {
        heartbeat_interval(&self.place.view)
    }

    /// Makes the heartbeat of this member, which is sent with the next outputs.
    pub(super) fn make_heartbeat(&mut self, now: Instant, status: &TrainingStatus<'_>) {
        let complete = if status.has_parameters { status.progress() } else { StepNumber(0) };
        let busy = status.busy_until.since(now);
        let heartbeat = Heartbeat {
            view: self.place.digest,
            view_number: self.place.view.number,
            complete,
            computing: status.computing.filter(|_| !status.gate.is_frozen),
            sent: SentFrames::default(),
            heard: SentFrames::default(),
            is_uplink_busy: false,
            window_bytes: 0,
            disk_fails: self.disk_fails(self.place.rank),
            busy_milliseconds: busy.min(BUSY_MAX).as_millis() as u32,
        };
        self.observed.note_heartbeat(now, self.place.rank, heartbeat);
        self.observed.busy.note(now, self.place.rank, heartbeat.busy_milliseconds);
        let mut receivers: BTreeSet<PeerId> = self.neighbors().into_iter().collect();
        // Those that may propose a change learn whether it can be chosen.
        if self.failing_disks.are_told(now, heartbeat.disk_fails) {
            let first = self.place.ranks().take(INFORMED_OF_DISKS).map(|rank| self.place.peer(rank));
            receivers.extend(first.filter(|peer| *peer != self.place.me.peer));
        }
        if self.observed.busy.are_told(now, status.busy_until) {
            receivers.extend(self.place.others());
        }
        self.due_heartbeat = Some((heartbeat, receivers));
    }

    /// The heartbeat that is due, and its receivers.
    pub(crate) fn take_heartbeat(&mut self) -> Option<(Heartbeat, Vec<PeerId>)> {
        let (heartbeat, receivers) = self.due_heartbeat.take()?;
        Some((heartbeat, receivers.into_iter().filter(|peer| self.links.is_linked(peer)).collect()))
    }

    /// A member has sent a heartbeat. A member in an earlier view is sent this one, unless it is about to receive it from the proposer.
    pub(super) fn on_heartbeat(
        &mut self,
        now: Instant,
        from: PeerId,
        heartbeat: Heartbeat,
        out: &mut Vec<Output>,
    ) {
        let place = &self.place;
        if heartbeat.view_number < place.view.number {
            if heartbeat.view_number.0 + 1 == place.view.number.0
                && now.since(self.observed.entered_at) < DISSEMINATION_MAX
            {
                return;
            }
            let view = place.view.as_ref().clone();
            return self.send(from, &AgreementMessage::Install(view).into(), out);
        }
        if let Some(rank) = place.view.rank(&from).filter(|_| heartbeat.view == place.digest) {
            if self.set_disk_fails(from, heartbeat.disk_fails) {
                out.push(Output::Event(Event::DiskFails { peer: from, fails: heartbeat.disk_fails }));
            }
            self.observed.busy.note(now, rank, heartbeat.busy_milliseconds);
            // Others send a few, which say nothing of what they do in between.
            if self.detection.detector.is_watched(&from) {
                self.observed.note_heartbeat(now, rank, heartbeat);
            }
        }
    }

    /// A peer speaks in `view`, which is neither this view nor the next one.
    pub(super) fn note_in_other_view(&mut self, now: Instant, peer: &PeerId, view: ViewDigest) {
        let is_before = self.place.view.parents.first() == Some(&view);
        if let Some(rank) = self.place.view.rank(peer).filter(|_| self.allows_forks() && !is_before) {
            self.observed.note_in_other_view(now, rank);
        }
    }

    // Losses and delays.

    /// The members that this one considers lost, in order.
    pub(super) fn lost(&self, now: Instant) -> Vec<Rank> {
        let (view, observed) = (&self.place.view, &self.observed);
        // A link that is still being dialed gets as much time as a heartbeat that has not arrived yet.
        let is_cut = |rank: &&Rank| self.links.unlinked.contains(&view.member(**rank).peer);
        let cut = observed.broken.iter().filter(is_cut).copied();
        let silent = self.detection.detector.suspected(now).filter_map(|peer| view.rank(peer));
        let far = self.links.relayed.iter().filter_map(|(peer, since)| self.out_of_reach(now, peer, *since));
        let violators = self.departures.violators(view).filter(|rank| *rank != self.place.rank);
        let lost: BTreeSet<Rank> = cut
            .chain(observed.departed.iter().copied())
            .chain(silent)
            .chain(far)
            .chain(observed.in_other_views(now))
            .chain(violators)
            .collect();
        lost.into_iter().collect()
    }

    /// The member's rank, if it must be reached directly and is not, because one of the two owns something. A new relayed link usually
    /// becomes direct in a moment, so it gets some time; a relayed link that replaces a direct one gets none.
    fn out_of_reach(&self, now: Instant, peer: &PeerId, since: Instant) -> Option<Rank> {
        let place = &self.place;
        let rank = place.view.rank(peer)?;
        let is_needed = place.replica_holders[rank.index()] || place.replica_holders[place.rank.index()];
        let is_lasting = self.observed.broken.contains(&rank) || now.since(since) > DIRECT_LINK_GRACE;
        (is_needed && is_lasting).then_some(rank)
    }

    /// Whether a member has no parameters yet, as far as this one knows.
    pub(super) fn is_newcomer(&self, rank: Rank) -> bool {
        self.observed.is_newcomer(&self.place.view, rank)
    }

    /// Whether no member advances although none computes: some message has been lost.
    pub(super) fn is_stalled(&self, now: Instant, status: &TrainingStatus<'_>) -> bool {
        let computes = self.observed.reported_progress.values().any(|seen| seen.computing.is_some());
        let is_waiting = status.computing.is_none() && !status.is_closing && status.has_parameters;
        is_waiting && !computes && self.detection.is_still(now)
    }

    /// Whether this member has neither computed nor received anything for long.
    pub(super) fn is_still(&self, now: Instant, status: &TrainingStatus<'_>) -> bool {
        status.computing.is_none() && self.detection.has_been_still(now, STILL_MIN)
    }

    /// What this member waits for, and of those that owe it the members that it has heard for long, whose link did not break, and that are
    /// not busy. In a large view members do not hear each other, so nothing can be said.
    pub(super) fn owed(&self, now: Instant, awaited: Awaited) -> Option<Awaited> {
        let observed = &self.observed;
        let is_heard = |rank: &Rank| {
            !observed.broken.contains(rank)
                && !observed.busy.is_busy(now, *rank)
                && observed.heard_since(now, *rank) >= Some(STILL_MIN)
        };
        let from = || awaited.from.iter().copied().filter(is_heard).collect();
        (!self.place.view.is_large()).then(|| Awaited { at: awaited.at, from: from() })
    }

    /// Records how long this member's steps take.
    pub(super) fn note_step_timing(&mut self, now: Instant, status: &TrainingStatus<'_>) {
        self.observed.has_committed = status.has_committed;
        let is_excused = self.waits_for_busy(now);
        let timing = &mut self.detection.step_timing;
        if is_excused {
            timing.excuse(now);
        }
        timing.note_computing(now, status.computing);
        if !status.gate.is_frozen {
            timing.note(now, status.progress());
        }
    }

    /// The usual time of a step at this member.
    pub(super) fn step_time(&self) -> Duration {
        self.detection.step_timing.usual()
    }

    // Complaints.

    /// This member has noticed a fault of a peer. If that is a member, all learn of it. Returns whether the next view may leave it out.
    pub(crate) fn complain(
        &mut self,
        now: Instant,
        about: &PeerId,
        fault: MemberFault,
        out: &mut Vec<Output>,
    ) -> bool {
        let place = &self.place;
        let Some(rank) = place.view.rank(about).filter(|rank| *rank != place.rank) else { return false };
        let complaint = Complaint { about: rank, fault };
        if !self.observed.complaints.note(now, place.rank, complaint) {
            return false;
        }
        out.push(Output::Event(Event::FaultNoticed { peer: *about, by: place.me.peer, fault }));
        let message = AgreementMessage::Complain { view: place.digest, complaint }.into();
        place.others().for_each(|peer| self.links.send(peer, &message, out));
        true
    }

    /// Complains again: a member may not have entered this view when it was told.
    pub(super) fn resend_complaints(&mut self, now: Instant, out: &mut Vec<Output>) {
        self.observed.complaints.forget_old(now);
        let interval = self.heartbeat_interval();
        for complaint in self.observed.complaints.lasting(now, self.place.rank, interval) {
            let message = AgreementMessage::Complain { view: self.place.digest, complaint }.into();
            self.place.others().for_each(|peer| self.links.send(peer, &message, out));
        }
    }

    /// Another member has noticed a fault of a member of this view. Returns whether the next view may leave one of the two out.
    pub(crate) fn on_complaint(
        &mut self,
        now: Instant,
        from: &PeerId,
        view: ViewDigest,
        complaint: Complaint,
        out: &mut Vec<Output>,
    ) -> bool {
        let place = &self.place;
        let Some(rank) = place.view.rank(from).filter(|_| view == place.digest) else { return false };
        if complaint.about.index() >= place.view.members.len()
            || !self.observed.complaints.note(now, rank, complaint)
        {
            return false;
        }
        let peer = place.peer(complaint.about);
        out.push(Output::Event(Event::FaultNoticed { peer, by: *from, fault: complaint.fault }));
        true
    }

    // Departures.

    /// A peer announces that it stops. Returns whether it is a member.
    pub(super) fn departed(&mut self, from: &PeerId, reason: &str, out: &mut Vec<Output>) -> bool {
        let Some(rank) = self.place.view.rank(from) else { return false };
        self.observed.departed.insert(rank);
        out.push(Output::Event(Event::MemberStopped { peer: *from, reason: reason.to_owned() }));
        true
    }

    /// A member wants to leave; it may be this one.
    pub(crate) fn on_retire(&mut self, from: PeerId) {
        if self.is_member(&from) {
            self.departures.retiring.insert(from);
        }
    }

    /// Whether this member wants to leave.
    pub(crate) fn is_retiring(&self) -> bool {
        self.departures.retiring.contains(&self.place.me.peer)
    }

    /// The members whose removal a user has ordered at this one.
    pub(crate) fn removals_ordered_here(&self) -> Vec<PeerId> {
        self.departures.ordered_by(&self.place.me.peer).collect()
    }

    /// Begins to expel a member.
    pub(crate) fn expel(&mut self, peer: PeerId, cause: ExpulsionCause, out: &mut Vec<Output>) {
        if self.is_member(&peer) && !self.departures.expelling.contains_key(&peer) {
            let expulsion = Expulsion { peer, by: self.place.me.peer, cause };
            self.departures.expel(expulsion);
            self.broadcast(&AdminMessage::Expel(expulsion).into(), out);
        }
    }

    /// Another member begins to expel a member.
    pub(crate) fn on_expel(&mut self, from: &PeerId, expulsion: Expulsion) {
        if self.is_member(from) && self.is_member(&expulsion.peer) {
            self.departures.expel(expulsion);
        }
    }

    /// Sends the expulsions again that may not have arrived: to all members those that this one has begun, and to the coordinator those
    /// that others have begun, who may have left or restarted. A coordinator that has joined since then does not know them.
    pub(super) fn resend_expulsions(&self, now: Instant, out: &mut Vec<Output>) {
        let coordinator = self.coordinator(now).filter(|rank| *rank != self.place.rank);
        for expulsion in self.departures.expelling.values() {
            let message = AdminMessage::Expel(*expulsion).into();
            if expulsion.by == self.place.me.peer {
                self.broadcast(&message, out);
            } else if let Some(coordinator) = coordinator {
                self.send(self.place.peer(coordinator), &message, out);
            }
        }
    }

    /// The user of this member orders to end the run, before its epochs are over.
    pub(super) fn end_run(&mut self, out: &mut Vec<Output>) {
        self.end_is_ordered = true;
        self.broadcast(&AdminMessage::EndRun.into(), out);
    }

    /// The user of another member orders to end the run.
    pub(super) fn on_end_run(&mut self, from: &PeerId) {
        self.end_is_ordered |= self.is_member(from);
    }

    /// Whether the end was ordered, and members have not agreed on it yet.
    pub(crate) fn wants_end(&self) -> bool {
        self.end_is_ordered && self.place.view.cursor.ending == Ending::None
    }

    /// Whether too few members can be reached to continue or to hand over chunks.
    pub(crate) fn is_paused(&self) -> bool {
        self.observed.pause.is_begun()
    }
}

/// A member that has neither computed nor received anything for so long is still. It is the same for all, although they are not equally
/// patient: one that has just joined knows no long steps.
const STILL_MIN: Duration = Duration::from_secs(5);
/// The time within which the proposer's message about a view usually reaches all members.
const DISSEMINATION_MAX: Duration = Duration::from_millis(200);
/// How long a link that begins through a relay may take to become direct.
const DIRECT_LINK_GRACE: Duration = Duration::from_secs(4);
