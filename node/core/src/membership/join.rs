//! Joiner: from a link to any member to a place in a view.
//!
//! ```text
//! asking -- Welcome --> preparing -- task and data at hand, members linked: Ready --> waiting -- Install --> in the view
//!    ^  \-- Redirect: ask there                                                             |
//!    '------------------------ the member's link went down: ask another -----------------'
//! ```
//! A process that was a member before it was restarted has more to say: see [`recovery`](crate::membership::recovery).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use peergrad_protocol::limits::JOIN_RETRY;
use peergrad_protocol::message::{Contact, Join, Message, Refusal, SavedCheckpoint, Welcome};
use peergrad_protocol::time::Timers;
use peergrad_protocol::view::{Member, Recovery, View};
use peergrad_protocol::{Instant, PeerId, RunId, ViewDigest};

use crate::io::{Event, Failure, Output};
use crate::membership::journal::{Effect, Journal};
use crate::membership::links::send;
use crate::membership::recovery::RecoveringMember;
use crate::membership::view_change::ViewChangePlanner;
use crate::node_report::NodeReport;
use crate::state::checkpoint::Checkpoint;

mod reachability;

/// A peer that asks to be let in.
pub(crate) struct Joiner {
    /// The run of the invite; known at the latest from the first welcome.
    run: Option<RunId>,
    me: Member,
    /// The member that has welcomed this peer, as long as it is linked.
    sponsor: Option<PeerId>,
    /// Members, as the last one that answered has named them.
    contacts: Vec<Contact>,
    /// Those of them who own nothing.
    workers: BTreeSet<PeerId>,
    /// Linked peers to which the way leads through another one.
    relayed: BTreeSet<PeerId>,
    /// Members are known by now, be it only from one that is reached through another.
    has_contacts: bool,
    /// Linked peers that have not answered since this one was excluded: they may be those that it cannot reach.
    unproven: BTreeSet<PeerId>,
    /// Members of a view that has this peer in it, as it seems.
    presumed_members: BTreeSet<PeerId>,
    /// Members that are not linked; those that were not when this was looked at last; and those the user was told of.
    unlinked: BTreeSet<PeerId>,
    unlinked_before: BTreeSet<PeerId>,
    told: BTreeSet<PeerId>,
    /// Those who have answered that they are in no view themselves, and how often this peer has asked since the first did.
    idle: BTreeSet<PeerId>,
    idle_count: u32,
    /// How often this peer would have asked since there was nobody to ask.
    isolated_count: u32,
    /// Whether the sponsor knows that this peer is ready.
    is_ready_told: bool,
    /// Who founds the run, where another joiner has said so.
    founder: Option<Contact>,
    /// The member that an earlier start of this peer was, whether the user was told, and the other members dialed.
    recovering: Option<RecoveringMember>,
    is_return_told: bool,
    has_dialed: bool,
    /// The view in which this peer is to be, while the checkpoint is read with which it begins there.
    restoring: Option<View>,
    /// That checkpoint.
    checkpoint: Option<Arc<Checkpoint>>,
    /// Whether the view in which it is to be is being written to disk.
    is_recording: bool,
    timers: Timers<2>,
}

/// What makes a run's id.
pub(crate) struct RunIdentity {
    pub(crate) specification: Vec<u8>,
    pub(crate) nonce: [u8; 32],
}

/// The timers: asking again, and looking after those who are back.
const RETRY: usize = 0;
const RECOVERY: usize = 1;
/// How often that is.
const RECOVERY_INTERVAL: Duration = Duration::from_millis(250);
/// Whoever has been asked so often, and still is in no view, is not just about to be.
const IDLE_REPORTED_AT: u32 = 5;
/// Members that are cut off for a moment come back before that.
const ISOLATED_REPORTED_AT: u32 = 10;

impl Joiner {
    /// A peer that was invited to `run`, or to whatever run the first member it meets belongs to.
    pub(crate) fn new(run: Option<RunId>, me: Member, recovering: Option<RecoveringMember>) -> Self {
        let mut timers = Timers::default();
        if recovering.is_some() {
            timers.set(RECOVERY, Instant::default());
        }
        Self {
            run,
            me,
            sponsor: None,
            contacts: Vec::new(),
            workers: BTreeSet::new(),
            relayed: BTreeSet::new(),
            has_contacts: false,
            unproven: BTreeSet::new(),
            presumed_members: BTreeSet::new(),
            unlinked: BTreeSet::new(),
            unlinked_before: BTreeSet::new(),
            told: BTreeSet::new(),
            idle: BTreeSet::new(),
            idle_count: 0,
            isolated_count: 0,
            is_ready_told: false,
            founder: None,
            // What it was in another run is of no use in this one.
            recovering: recovering.filter(|recovering| run.is_none_or(|run| run == recovering.view().run)),
            is_return_told: false,
            has_dialed: false,
            restoring: None,
            checkpoint: None,
            is_recording: false,
            timers,
        }
    }

    /// A peer whose others have gone on without it; these are some of them.
    pub(crate) fn rejoining(run: RunId, contacts: Vec<Contact>, me: Member) -> Self {
        let mut joiner = Self::new(Some(run), me, None);
        joiner.contacts = contacts;
        joiner
    }

    /// Who is asked for data and told that this peer is ready.
    pub(crate) fn sponsor(&self) -> Option<PeerId> {
        self.sponsor
    }

    /// How it stands.
    pub(crate) fn node_report(&self) -> NodeReport {
        NodeReport::Join {
            run: self.run,
            sponsor: self.sponsor,
            is_ready: self.is_ready_told,
            out_of_reach: self.unlinked.iter().copied().collect(),
            recovery: self
                .recovering
                .as_ref()
                .filter(|_| self.sponsor.is_none())
                .map(RecoveringMember::progress),
        }
    }

    // Asking.

    /// A link came up: whoever is there is asked, unless somebody has answered already.
    pub(crate) fn link_up(&mut self, now: Instant, peer: PeerId, out: &mut Vec<Output>) {
        self.unproven.remove(&peer);
        if self.sponsor.is_none() {
            self.ask(now, peer, out);
        }
    }

    /// Asks all of these, some of which may be members.
    pub(crate) fn ask_all(
        &mut self,
        now: Instant,
        linked: impl Iterator<Item = PeerId>,
        out: &mut Vec<Output>,
    ) {
        for contact in &self.contacts {
            out.push(Output::Dial(contact.clone()));
        }
        self.timers.set(RETRY, now.after(JOIN_RETRY));
        for peer in linked {
            self.unproven.insert(peer);
            self.ask(now, peer, out);
        }
    }

    /// Somebody speaks to this peer as to a member: perhaps it is one, and has not been told.
    pub(crate) fn on_heartbeat(&mut self, from: PeerId) {
        self.presumed_members.insert(from);
    }

    /// A frame of a peer arrived.
    pub(crate) fn heard(&mut self, peer: &PeerId) {
        self.unproven.remove(peer);
    }

    fn ask(&mut self, now: Instant, peer: PeerId, out: &mut Vec<Output>) {
        if let Some(recovering) = self.recovering.as_ref().filter(|it| Some(it.view().run) == self.run)
            && !std::mem::replace(&mut self.is_return_told, true)
        {
            out.push(Output::Event(Event::RecoveryStarted { view_number: recovering.view().number }));
        }
        let join = Join {
            run: self.run,
            incarnation: self.me.incarnation,
            addresses: self.me.addresses.clone(),
            capacity: self.me.capacity,
        };
        out.push(Output::Event(Event::JoinRequested(peer)));
        send(peer, &Message::Join(join), out);
        self.timers.set(RETRY, now.after(JOIN_RETRY));
    }

    /// The sponsor's link went down: others are asked.
    pub(crate) fn link_down(&mut self, now: Instant, peer: PeerId) {
        if let Some(recovering) = &mut self.recovering {
            recovering.link_down(&peer);
        }
        if self.sponsor == Some(peer) {
            self.leave_sponsor();
            self.timers.set(RETRY, now);
        }
    }

    /// Others are asked at the next time.
    fn leave_sponsor(&mut self) {
        self.sponsor = None;
        self.is_ready_told = false;
    }

    /// Asks again if nobody has answered for a while, or the members are other ones meanwhile.
    pub(crate) fn tick(&mut self, now: Instant, linked: impl Iterator<Item = PeerId>, out: &mut Vec<Output>) {
        if !self.timers.expired(RETRY, now) || self.is_entering() {
            return;
        }
        self.timers.set(RETRY, now.after(JOIN_RETRY));
        let linked: BTreeSet<PeerId> = linked.collect();
        for contact in self.contacts.iter().filter(|c| c.peer != self.me.peer && !linked.contains(&c.peer)) {
            out.push(Output::Dial(contact.clone()));
        }
        for peer in std::mem::take(&mut self.presumed_members) {
            if linked.contains(&peer) && self.sponsor != Some(peer) {
                self.ask(now, peer, out);
            }
        }
        match self.sponsor {
            Some(sponsor) if self.is_ready_told => send(sponsor, &Message::Ready, out),
            Some(sponsor) => {
                self.report_unlinked(out);
                self.ask(now, sponsor, out);
                // Whoever answers is not out of reach.
                self.unproven.clone().into_iter().for_each(|peer| self.ask(now, peer, out));
            }
            None => {
                if self.has_contacts && !linked.is_empty() {
                    self.note_unlinked(|peer| linked.contains(&peer));
                    self.report_unlinked(out);
                }
                self.report_idle(out);
                self.report_isolated(linked.is_empty(), out);
                linked.into_iter().for_each(|peer| self.ask(now, peer, out));
            }
        }
    }

    /// Tells the user, once, that others answer and nobody trains.
    fn report_idle(&mut self, out: &mut Vec<Output>) {
        self.idle_count += u32::from(!self.idle.is_empty());
        if self.idle_count == IDLE_REPORTED_AT {
            out.push(Output::Event(Event::NoActiveMember { peers: self.idle.iter().copied().collect() }));
        }
    }

    /// Tells the user, once, that nobody is there any more.
    fn report_isolated(&mut self, is_isolated: bool, out: &mut Vec<Output>) {
        self.isolated_count = if is_isolated { self.isolated_count.saturating_add(1) } else { 0 };
        if self.isolated_count == ISOLATED_REPORTED_AT {
            out.push(Output::Event(Event::NoPeerAnswers));
        }
    }

    /// When to tick next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    // Answers.

    /// A member says what the run is, and who is in it. The specification is returned, and the nonce.
    ///
    /// # Errors
    /// It is not the run of the invite.
    pub(crate) fn on_welcome(
        &mut self,
        now: Instant,
        from: PeerId,
        welcome: Welcome,
        out: &mut Vec<Output>,
    ) -> Result<Option<RunIdentity>, Failure> {
        if self.sponsor.is_some_and(|sponsor| sponsor != from) {
            // One member is enough.
            return Ok(None);
        }
        let run = RunId::derive(&welcome.specification, &welcome.nonce);
        if self.run.is_some_and(|expected| expected != run) {
            return Err(Failure::WrongSpecification { by: from });
        }
        let is_first = self.sponsor.is_none();
        self.run = Some(run);
        // Data would have to come from the sponsor: whoever is reached through another only says who else there is.
        let is_sponsor = !self.relayed.contains(&from);
        self.sponsor = is_sponsor.then_some(from);
        self.is_ready_told = false;
        self.idle.clear();
        self.idle_count = 0;
        self.contacts = welcome.members;
        self.workers = welcome.non_owners.into_iter().collect();
        self.has_contacts = true;
        self.timers.set(RETRY, now.after(JOIN_RETRY));
        for contact in self.contacts.iter().filter(|contact| contact.peer != self.me.peer) {
            out.push(Output::Dial(contact.clone()));
        }
        if !is_sponsor {
            return Ok(None);
        }
        if is_first {
            out.push(Output::Event(Event::Welcomed { run, by: from }));
        }
        Ok(Some(RunIdentity { specification: welcome.specification, nonce: welcome.nonce }))
    }

    /// Task and data are at hand: the sponsor is told, once all members that it named are linked.
    pub(crate) fn report_ready(&mut self, is_linked: impl Fn(PeerId) -> bool, out: &mut Vec<Output>) {
        let Some(sponsor) = self.sponsor.filter(|sponsor| is_linked(*sponsor)) else { return };
        if self.is_ready_told {
            return;
        }
        self.note_unlinked(is_linked);
        if self.unlinked.is_empty() {
            self.is_ready_told = true;
            send(sponsor, &Message::Ready, out);
        }
    }

    /// The one asked is not a member, or not any more, and says who is or founds the run.
    pub(crate) fn on_refer(&mut self, now: Instant, from: PeerId, contact: Contact, out: &mut Vec<Output>) {
        if self.sponsor == Some(from) {
            self.leave_sponsor();
            self.timers.set(RETRY, now);
        }
        let is_news = self.founder.as_ref() != Some(&contact) && contact.peer != self.me.peer;
        if is_news && self.sponsor.is_none() {
            out.push(Output::Dial(contact.clone()));
            self.founder = Some(contact);
        }
    }

    /// The one asked says no. Once a member has said yes, only its word counts: others were asked before.
    ///
    /// # Errors
    /// The no is final.
    pub(crate) fn on_refuse(&mut self, by: PeerId, refusal: Refusal) -> Result<(), Failure> {
        if self.is_entering() {
            // It is in: whoever says no does not know yet.
            return Ok(());
        }
        match refusal {
            _ if self.sponsor.is_some_and(|sponsor| sponsor != by) => Ok(()),
            Refusal::NotReady => {
                // The timer that is running asks others, and this one again.
                self.idle.insert(by);
                self.leave_sponsor();
                Ok(())
            }
            Refusal::OtherRun { .. }
            | Refusal::Full
            | Refusal::RunComplete
            | Refusal::DuplicateIdentity
            | Refusal::Expelled(_) => Err(Failure::Refused { by, refusal }),
        }
    }

    /// The one who had welcomed this peer stops. Others that it has named are asked.
    ///
    /// # Errors
    /// There are no others: the run has not begun, or is no more.
    pub(crate) fn departed(&mut self, now: Instant, from: PeerId, reason: &str) -> Result<(), Failure> {
        if self.sponsor != Some(from) {
            return Ok(());
        }
        self.contacts.retain(|contact| contact.peer != from);
        if self.contacts.iter().all(|contact| contact.peer == self.me.peer) {
            return Err(Failure::FounderLeft { by: from, reason: reason.to_owned() });
        }
        self.leave_sponsor();
        self.timers.set(RETRY, now);
        Ok(())
    }

    /// Another joiner asks this one.
    pub(crate) fn on_join(&mut self, from: PeerId, join: &Join, out: &mut Vec<Output>) {
        let sponsor = self.contacts.iter().find(|contact| Some(contact.peer) == self.sponsor);
        let message = match (sponsor.or(self.founder.as_ref()), self.run) {
            (_, Some(run)) if join.run.is_some_and(|theirs| theirs != run) => {
                Message::Refuse(Refusal::OtherRun { run })
            }
            (Some(contact), _) => Message::Redirect(contact.clone()),
            (None, _) => Message::Refuse(Refusal::NotReady),
        };
        send(from, &message, out);
        if let Some(recovering) = &mut self.recovering {
            recovering.inform(from, join.run, out);
        }
    }

    // In.

    /// Whether it is in a view, which it is about to enter.
    fn is_entering(&self) -> bool {
        self.is_recording || self.restoring.is_some()
    }

    /// Whether this peer, in this incarnation, is in a view of its run.
    pub(crate) fn is_in(&self, view: &View) -> bool {
        let is_me =
            |member: &Member| member.peer == self.me.peer && member.incarnation == self.me.incarnation;
        self.run == Some(view.run) && !self.is_entering() && view.members.iter().any(is_me)
    }

    /// The checkpoint that is lacking before this peer can be in `view`: it is read, and then that is asked again.
    pub(crate) fn restore(&mut self, view: &View) -> Option<SavedCheckpoint> {
        let Recovery::Resume(resume) = &view.recovery else { return None };
        let is_new = view.rank(&self.me.peer).is_none_or(|rank| resume.newcomers.contains(&rank));
        if !resume.is_restored || is_new || self.checkpoint.is_some() {
            return None;
        }
        let saved = self.recovering.as_ref()?.checkpoint_of(view)?.clone();
        self.restoring = Some(view.clone());
        Some(saved)
    }

    /// The view that waits for a checkpoint.
    pub(crate) fn restoring(&self) -> Option<&View> {
        self.restoring.as_ref()
    }

    /// The checkpoint is here. The view that waits for it.
    pub(crate) fn restored(&mut self, checkpoint: Arc<Checkpoint>) -> Option<View> {
        self.checkpoint = Some(checkpoint);
        self.restoring.take()
    }

    /// The view in which it is, is being written to disk.
    pub(crate) fn recording(&mut self) {
        self.is_recording = true;
    }

    /// Records are on disk: answers leave. The view, if this peer may enter one, and the checkpoint with which it begins there.
    pub(crate) fn persisted(&mut self, effects: Vec<Effect>, out: &mut Vec<Output>) -> Option<ViewEntry> {
        let mut entry = None;
        for effect in effects {
            match effect {
                Effect::Answer { to, message } => send(to, &message, out),
                Effect::EnterView(view, digest) => {
                    entry = Some(ViewEntry { view, digest, checkpoint: self.checkpoint.take() });
                }
            }
        }
        entry
    }

    /// Whether an earlier start of this peer was a member of the run.
    pub(crate) fn is_recovering(&self) -> bool {
        self.recovering.is_some() && self.run.is_some()
    }

    /// The member that an earlier start of this peer was.
    pub(crate) fn recovering(&mut self) -> Option<&mut RecoveringMember> {
        self.recovering.as_mut()
    }

    /// Another member's view is none that this peer is in, as it is now.
    pub(crate) fn on_install(&mut self, now: Instant, from: PeerId, view: View, journal: &mut Journal) {
        if let Some(recovering) = &mut self.recovering {
            recovering.on_install(now, from, view, journal);
            self.timers.set(RECOVERY, now);
        }
    }

    /// Looks after those who are back, if there is any need to. `planner` is there once this peer could train.
    pub(crate) fn poll_recovery(
        &mut self,
        now: Instant,
        planner: Option<&ViewChangePlanner<'_>>,
        out: &mut Vec<Output>,
    ) {
        let is_entering = self.is_entering();
        let Some(recovering) = self.recovering.as_mut().filter(|_| self.run.is_some()) else { return };
        if self.timers.expired(RECOVERY, now) {
            if !std::mem::replace(&mut self.has_dialed, true) {
                recovering.dial(out);
            }
            // Whoever may be let in asks for nothing.
            let planner = planner.filter(|_| self.sponsor.is_none() && !is_entering);
            recovering.poll(now, planner, out);
            self.timers.set(RECOVERY, now.after(RECOVERY_INTERVAL));
        }
    }
}

/// A place in a view, which is on disk.
pub(crate) struct ViewEntry {
    pub(crate) view: Arc<View>,
    pub(crate) digest: ViewDigest,
    /// What this peer has saved of the steps before it, where it goes on from there.
    pub(crate) checkpoint: Option<Arc<Checkpoint>>,
}

#[cfg(test)]
mod tests;
