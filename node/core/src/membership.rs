//! Membership: the members of the view, as one of them sees them, and their agreement on the next view.
//!
//! Every member watches some others, remembers the peers that want to join or leave, and answers proposers. Any member can
//! propose. The lowest live rank does so first, the others only if that attempt fails.
//!
//! # How it works
//! ```text
//!  heartbeats, links --> a member is lost -----> Prepare at once --- promises: reports ---> Propose --- accepted ---> Learn
//!  Join, Retire -------> a peer joins or leaves -> Prepare before a future step (training goes on until then)
//! ```
//! | part | subject |
//! |---|---|
//! | [`agreement`], [`view_change`] | when a member proposes the next view, and what that view is |
//! | [`failure_detection`], [`links`] | which members are lost, and which ones can be reached |
//! | [`admission`], [`churn`], [`lead`] | peers that join or leave between two steps, and before which step |
//! | [`expulsion`], [`rekey`] | peers that are removed for good, and a new secret |
//! | [`capacity`] | how much members offer to own |
//! | [`partition`] | other branches of a partitioned run |
//! | [`join`], [`bootstrap`], [`recovery`] | peers that are not in a view yet |
//! | [`journal`] | the records that must be on disk before another peer may rely on them |
//!
//! # Invariants
//! - A promise, an acceptance and a new view are on disk before any message about them is sent.
//! - A member leaves a view only for a successor that is chosen: by a quorum of its members, or where all parts of a partitioned
//!   run go on, by all members that stay.
//!
//! # Not here
//! What a view change means for training: `training/view_change.rs`.

use std::collections::BTreeSet;
use std::sync::Arc;

use peergrad_protocol::agreement::Acceptor;
use peergrad_protocol::durable::DurableBytes;
use peergrad_protocol::message::{Heartbeat, MemberReport, MergeOffer, Message};
use peergrad_protocol::time::Timers;
use peergrad_protocol::view::{Member, Recovery, View};
use peergrad_protocol::{Frame, Instant, PeerId, Rank, StepNumber, ViewDigest};

use crate::io::{Event, Output};
use crate::membership::journal::Effect;
use crate::membership::view_change::ViewChangePlanner;
use crate::membership::view_change::driver::ViewChangeDriver;
use crate::partition_policy::PartitionPolicy;
use crate::state::assignment::BatchAssignment;
use crate::state::shared_cache::{SharedCache, ViewDifference};
use admission::Admission;
use agreement::AttemptPlan;
use capacity::CapacityOffers;
use expulsion::Departures;
use failure_detection::FailureDetection;
pub(crate) use health::MemberHealth;
use lead::Lead;
use links::Links;
use partition::PartitionProbe;
use rekey::Rekeying;
use view_state::ViewState;

mod admission;
mod agreement;
pub(crate) mod bootstrap;
mod capacity;
mod churn;
mod expulsion;
mod failure_detection;
mod health;
pub(crate) mod join;
pub(crate) mod journal;
mod lead;
mod links;
mod partition;
pub(crate) mod recovery;
mod rekey;
pub(crate) mod view_change;
mod view_state;

/// What one member knows about the members. Each part holds what belongs together; the methods of `Membership` connect the parts.
pub(crate) struct Membership {
    place: Place,
    cache: SharedCache,
    /// The definition of the run, as the record on disk has it.
    definition: Arc<[u8]>,
    /// The state that is dropped at the end of this view.
    view_state: ViewState,
    /// This member's part in the choice of the next view.
    driver: ViewChangeDriver<AttemptPlan>,
    next: Option<NextView>,
    timers: Timers<2>,
    links: Links,
    detection: FailureDetection,
    admission: Admission,
    departures: Departures,
    /// The last secret that arrived since this member joined; `None` if there was none.
    rekeying: Option<Rekeying>,
    capacity_offers: CapacityOffers,
    lead: Lead,
    probe: PartitionProbe,
}

/// The view that a member is in, and its place there.
struct Place {
    /// This member, in the incarnation that is in the view.
    me: Member,
    view: Arc<View>,
    digest: ViewDigest,
    rank: Rank,
    /// Whether each member owns or replicates anything, or may; by rank.
    replica_holders: Vec<bool>,
}

impl Place {
    fn new(me: Member, view: Arc<View>, digest: ViewDigest) -> Self {
        let rank = view.rank(&me.peer).expect("a view is installed at its members");
        Self { rank, replica_holders: view.replica_holders(), me, view, digest }
    }
}

/// The next view, once it is chosen.
struct NextView {
    view: Arc<View>,
    digest: ViewDigest,
    /// Whether training may enter it: it is on disk, or this peer is not in it.
    is_enterable: bool,
}

/// The state of a program with tables, as far as membership needs it.
pub(crate) struct TableSnapshot {
    /// The clock of this member's worker.
    pub(crate) clock: StepNumber,
    /// Whether every owner and replica holder of a chunk has it.
    pub(crate) are_replicated: bool,
    /// Whether the program waits for rows, which may need the progress of other members.
    pub(crate) is_reading: bool,
}

/// The state of training, as far as membership needs it.
pub(crate) struct TrainingSnapshot<'a> {
    pub(crate) planner: ViewChangePlanner<'a>,
    /// The step in progress.
    pub(crate) step: StepNumber,
    /// The state of the tables; `None` if the run has none.
    pub(crate) tables: Option<TableSnapshot>,
    /// The assignment of the step in progress.
    pub(crate) assignment: &'a BatchAssignment,
    /// The assignment of the step before; `None` once that step is committed.
    pub(crate) previous_assignment: Option<&'a BatchAssignment>,
    /// The assignment of the step after; `None` if it follows from this view.
    pub(crate) next_assignment: Option<&'a BatchAssignment>,
    /// Whether this member has begun the step.
    pub(crate) is_open: bool,
    /// Whether this member does not begin the step because the next view begins with it.
    pub(crate) is_held: bool,
    pub(crate) report: &'a dyn Fn() -> MemberReport,
    pub(crate) has_parameters: bool,
    /// The step for which this member's own program computes; `None` while it does not compute.
    pub(crate) computing: Option<StepNumber>,
    /// Whether training is frozen: it takes in and sends nothing.
    pub(crate) is_still: bool,
    /// Whether this view cannot begin with what this member has.
    pub(crate) is_behind_view: bool,
    /// Whether the program has ended.
    pub(crate) is_closing: bool,
    /// Whether a step of this view is committed.
    pub(crate) has_committed: bool,
    /// The view and step of another branch's snapshot, once this member has its part of it; `None` otherwise.
    pub(crate) merge_ready: Option<(ViewDigest, StepNumber)>,
    /// At the coordinator: the snapshot to merge, once all members have their part of it; `None` otherwise.
    pub(crate) merge_offer: Option<&'a MergeOffer>,
}

impl TrainingSnapshot<'_> {
    /// The progress of this member: its step, or its worker's clock where there are tables.
    fn progress(&self) -> StepNumber {
        self.tables.as_ref().map_or(self.step, |tables| tables.clock)
    }

    /// Whether no state is lost if `leavers` go before `step`.
    fn can_leave(&self, leavers: &[Rank], step: StepNumber) -> bool {
        self.tables.as_ref().is_none_or(|tables| tables.are_replicated)
            && self.planner.can_leave(leavers, step)
    }

    /// The assignment of a step, if this member knows it.
    fn assignment_of(&self, step: StepNumber) -> Option<&BatchAssignment> {
        if step == self.step {
            Some(self.assignment)
        } else if step == self.step.next() {
            self.next_assignment
        } else {
            self.previous_assignment.filter(|_| step.next() == self.step)
        }
    }
}

/// What membership asks of training.
#[derive(Debug, PartialEq)]
pub(crate) enum TrainingCommand {
    /// Stop at once.
    Freeze,
    /// Leave this view before this step.
    StopBefore(StepNumber),
    /// Check what has become possible: a record is on disk, or the next view is known.
    Advance,
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
        (cache, definition, policy): (SharedCache, Arc<[u8]>, PartitionPolicy),
    ) -> Self {
        let place = Place::new(me, view, digest);
        let (view, rank) = (&place.view, place.rank);
        let mut membership = Self {
            view_state: ViewState::new(now),
            driver: agreement::driver(now, digest, rank, view),
            links: Links::new(place.me.peer, linked, view),
            detection: FailureDetection::new(now, view),
            timers: Timers::default(),
            cache,
            definition,
            next: None,
            admission: Admission::default(),
            departures: Departures::default(),
            rekeying: None,
            capacity_offers: CapacityOffers::new(place.me.capacity),
            lead: Lead::default(),
            probe: PartitionProbe { allows_forks: policy.allows_forks(), turn: rank.index() },
            place,
        };
        membership.begin(now);
        membership
    }

    /// Begins to watch the neighbors of a new view.
    fn begin(&mut self, now: Instant) {
        let neighbors = self.neighbors();
        self.detection.watch(now, &self.place.view, neighbors);
        self.timers.set(Timer::Heartbeat as usize, now);
    }

    /// Enters the chosen view after training has. Returns the members that joined and left.
    pub(crate) fn advance(&mut self, now: Instant) -> Option<Arc<ViewDifference>> {
        let NextView { view, digest, .. } = self.next.take()?;
        let difference = self.cache.difference((&self.place.view, self.place.digest), (&view, digest));
        self.place = Place::new(self.place.me.clone(), view, digest);
        // The neighbors differ from view to view.
        let neighbors = self.neighbors();
        self.detection.detector.retain(|peer| neighbors.contains(peer));
        let (joined, left) = (&difference.joined, &difference.left);
        self.links.members_changed(joined, left);
        if matches!(&self.place.view.recovery, Recovery::Resume(resume) if resume.is_interruption()) {
            self.ban_lost(now, left);
        }
        self.view_state = ViewState::new(now);
        self.driver = agreement::driver(now, self.place.digest, self.place.rank, &self.place.view);
        self.lead.shorten();
        self.admission.view_changed(&self.place.view);
        // A member may have restarted while this view was agreed on; the incarnation in the view is gone.
        let again: Vec<Rank> =
            self.admission.all_asking().filter_map(|peer| self.place.view.rank(peer)).collect();
        again.into_iter().for_each(|rank| self.mark_restarted(rank));
        self.detection.step_timing.restart(now);
        self.departures.view_changed(&self.place.view);
        self.begin(now);
        Some(difference)
    }

    /// Members to which no frame can be sent.
    pub(crate) fn unlinked(&self) -> &BTreeSet<PeerId> {
        &self.links.unlinked
    }

    /// The view that is chosen and that training can enter.
    pub(crate) fn next(&self) -> Option<(&Arc<View>, ViewDigest)> {
        let next = self.next.as_ref().filter(|next| next.is_enterable)?;
        Some((&next.view, next.digest))
    }

    /// Whether this view cannot go on, so that another one is needed.
    pub(crate) fn is_troubled(&self) -> bool {
        self.view_state.is_next_outdated || self.view_state.trouble_since.is_some()
    }

    /// Whether a peer is in the view, in any incarnation.
    pub(crate) fn is_member(&self, peer: &PeerId) -> bool {
        self.place.view.rank(peer).is_some()
    }

    /// This member, in the incarnation that is in the view.
    pub(crate) fn me(&self) -> &Member {
        &self.place.me
    }

    /// When to call [`Membership::tick`] next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Time has passed.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        snapshot: &TrainingSnapshot<'_>,
        out: &mut Vec<Output>,
    ) -> Vec<TrainingCommand> {
        if self.timers.expired(Timer::Heartbeat as usize, now) {
            self.detection.detector.tick(now);
            self.send_heartbeat(now, snapshot, out);
            self.resend(now, out);
            self.redial(now, out);
            self.timers.set(
                Timer::Heartbeat as usize,
                now.after(failure_detection::heartbeat_interval(&self.place.view)),
            );
        }
        self.timers.expired(Timer::Attempt as usize, now);
        self.poll(now, snapshot, out)
    }

    fn send_heartbeat(&mut self, now: Instant, snapshot: &TrainingSnapshot<'_>, out: &mut Vec<Output>) {
        let complete = if snapshot.has_parameters { snapshot.progress() } else { StepNumber(0) };
        let heartbeat = Heartbeat {
            view: self.place.digest,
            view_number: self.place.view.number,
            complete,
            computing: snapshot.computing.filter(|_| !snapshot.is_still),
        };
        self.note_heartbeat(now, self.place.rank, heartbeat);
        let frame = Frame::encode(&Message::Heartbeat(heartbeat), None);
        for to in self.neighbors().into_iter().filter(|peer| self.links.is_linked(peer)) {
            let frame = Frame { head: frame.head.clone(), payload: None };
            out.push(Output::Send { to, frame });
        }
    }

    // Disk.

    /// The record of this view, with this member's vote as it is now.
    fn record(&self) -> DurableBytes {
        let view = self.cache.view_bytes(&self.place.view, self.place.digest);
        let acceptor = &self.driver.acceptor;
        DurableBytes::new(view, self.place.me.incarnation, acceptor, Arc::clone(&self.definition))
    }

    /// The record of a view in which this member has not voted yet.
    fn record_of_next(&self, view: &View, digest: ViewDigest) -> DurableBytes {
        let view = self.cache.view_bytes(view, digest);
        DurableBytes::new(view, self.place.me.incarnation, &Acceptor::default(), Arc::clone(&self.definition))
    }

    /// Records are on disk: this member does what waited for them.
    pub(crate) fn persisted(&mut self, effects: Vec<Effect>, out: &mut Vec<Output>) -> Vec<TrainingCommand> {
        let mut commands = Vec::new();
        for effect in effects {
            match effect {
                Effect::Answer { to, message } => self.send(to, &message, out),
                Effect::EnterView(_, digest) => {
                    if let Some(next) = self.next.as_mut().filter(|next| next.digest == digest) {
                        next.is_enterable = true;
                        commands.push(TrainingCommand::Advance);
                    }
                }
            }
        }
        commands
    }

    // Sending.

    fn send(&self, to: PeerId, message: &Message, out: &mut Vec<Output>) {
        self.links.send(to, message, out);
    }

    fn broadcast(&self, message: &Message, out: &mut Vec<Output>) {
        self.links.broadcast(&self.place.view, message, out);
    }

    /// Whether too few members can be reached to go on or to hand over chunks.
    pub(crate) fn is_paused(&self) -> bool {
        self.view_state.paused.is_some()
    }

    /// Tells the user that too few members can be reached, once for each number of them.
    fn report_paused(&mut self, missing: Vec<PeerId>, out: &mut Vec<Output>) {
        let members = self.place.view.members.len();
        let reached = members - missing.len();
        let needed = self.needed(reached);
        if self.view_state.paused != Some(reached) {
            self.view_state.paused = Some(reached);
            out.push(Output::Event(Event::Paused { reached, needed, members, missing }));
        }
    }

    /// How many members are needed to go on, if `reached` are not enough: more than half of all, and more than `reached`.
    fn needed(&self, reached: usize) -> usize {
        (self.place.view.members.len() / 2 + 1).max(reached + 1)
    }

    /// Tells the user, once, which members have to come back if all that have parameters are lost.
    fn report_orphaned(&mut self, lost: &[Rank], out: &mut Vec<Output>) {
        let ranks = (0..self.place.view.members.len()).map(Rank::from_index);
        let holders: Vec<Rank> = ranks.filter(|rank| !self.is_newcomer(*rank)).collect();
        if !self.view_state.is_orphaned && holders.iter().all(|rank| lost.contains(rank)) {
            self.view_state.is_orphaned = true;
            let peers = holders.iter().map(|rank| self.place.view.member(*rank).peer).collect();
            out.push(Output::Event(Event::ParametersUnreachable { peers }));
        }
    }
}

/// Whether a member is in a view, in this incarnation or a later one.
fn is_in(view: &View, member: &Member) -> bool {
    view.rank(&member.peer).is_some_and(|rank| view.member(rank).incarnation >= member.incarnation)
}
