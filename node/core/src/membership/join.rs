//! Joiner: from a link to any member to a place in a view.
//!
//! ```text
//! asking -- Welcome --> preparing -- task and data at hand, members linked: Ready --> waiting -- Install --> in the view
//!    ^  \-- Redirect: ask there                                                             |
//!    '------------------------ the member's link went down: ask another -----------------'
//! ```
//! A process that was a member before it was restarted does more: see [`recovery`](crate::membership::recovery).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use peergrad_protocol::limits::JOIN_RETRY;
use peergrad_protocol::message::{Contact, Join, JoinMessage, Message, Refusal, Welcome};
use peergrad_protocol::time::Timers;
use peergrad_protocol::view::{Member, View};
use peergrad_protocol::{Instant, PeerId, RunId};

use crate::io::{Event, Failure, Output};
use crate::membership::links::send;
use crate::membership::recovery::RecoveringMember;
use crate::node_report::NodeReport;
use crate::state::checkpoint::Checkpoint;
pub(crate) use entering::ViewEntry;

mod entering;
mod reachability;

/// A peer that asks to join a run.
pub(crate) struct Joiner {
    /// The run of the invite; `None` for any run, until the first welcome.
    run: Option<RunId>,
    me: Member,
    /// The linked member that has welcomed this peer; `None` if there is none.
    sponsor: Option<PeerId>,
    /// The members that the last answer named; empty before the first answer.
    contacts: Vec<Contact>,
    /// Those of `contacts` that own nothing.
    workers: BTreeSet<PeerId>,
    /// The linked peers that are reached through another peer.
    relayed: BTreeSet<PeerId>,
    /// Whether members are known, even if only from a peer that is reached through another one.
    has_contacts: bool,
    /// The linked peers that have sent nothing since this one was excluded. Perhaps this peer cannot reach them.
    unproven: BTreeSet<PeerId>,
    /// Peers that speak to this one as to a member, so they may be in a view that contains it.
    presumed_members: BTreeSet<PeerId>,
    /// The members that are not linked now, those that were not linked at the last check, and those last reported to the user.
    unlinked: BTreeSet<PeerId>,
    unlinked_before: BTreeSet<PeerId>,
    told: BTreeSet<PeerId>,
    /// The peers that have answered that they are in no view, and how often this peer has asked again since the first such answer.
    idle: BTreeSet<PeerId>,
    idle_count: u32,
    /// How many times in a row this peer had no linked peer to ask.
    isolated_count: u32,
    /// Whether this peer has told the sponsor that it is ready.
    is_ready_told: bool,
    /// The founder of the run, if another joiner has named it.
    founder: Option<Contact>,
    /// The member that this peer was before its restart (`None` if it was none), whether this was reported to the user, and whether its
    /// members were dialed.
    recovering: Option<RecoveringMember>,
    is_return_told: bool,
    has_dialed: bool,
    /// The view that this peer enters once its checkpoint has been read; `None` unless one is being read.
    restoring: Option<View>,
    /// The checkpoint with which this peer enters that view; `None` until it has been read.
    checkpoint: Option<Arc<Checkpoint>>,
    /// Whether the view that this peer enters is being written to disk.
    is_recording: bool,
    timers: Timers<2>,
}

/// The specification and the random bytes, from which a run's id is derived.
pub(crate) struct RunIdentity {
    pub(crate) specification: Vec<u8>,
    pub(crate) nonce: [u8; 32],
}

/// The timers: to ask again, and to advance the recovery.
const RETRY: usize = 0;
const RECOVERY: usize = 1;
/// The interval at which the recovery is advanced.
const RECOVERY_INTERVAL: Duration = Duration::from_millis(250);
/// Peers that are still in no view after this peer has asked so often are not about to enter one.
const IDLE_REPORTED_AT: u32 = 5;
/// Members that are cut off for a moment are back before this peer has tried so often.
const ISOLATED_REPORTED_AT: u32 = 10;

impl Joiner {
    /// A peer that was invited to `run`. With `None` it joins the run of the first member that it meets.
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
            // The record of a member of another run is of no use in this one.
            recovering: recovering.filter(|recovering| run.is_none_or(|run| run == recovering.view().run)),
            is_return_told: false,
            has_dialed: false,
            restoring: None,
            checkpoint: None,
            is_recording: false,
            timers,
        }
    }

    /// A peer whose other members have gone on without it; `contacts` are some of them.
    pub(crate) fn rejoining(run: RunId, contacts: Vec<Contact>, me: Member) -> Self {
        let mut joiner = Self::new(Some(run), me, None);
        joiner.contacts = contacts;
        joiner
    }

    /// The member that is asked for the data and told that this peer is ready; `None` if there is none.
    pub(crate) fn sponsor(&self) -> Option<PeerId> {
        self.sponsor
    }

    /// This joiner's part of the node's report.
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

    /// A link came up: asks the peer to admit this one, unless another peer has welcomed it.
    pub(crate) fn link_up(&mut self, now: Instant, peer: PeerId, out: &mut Vec<Output>) {
        self.unproven.remove(&peer);
        if self.sponsor.is_none() {
            self.ask(now, peer, out);
        }
    }

    /// Asks all of these peers, some of which may be members.
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

    /// A peer speaks to this one as to a member. Perhaps this peer is one, and does not know yet.
    pub(crate) fn on_heartbeat(&mut self, from: PeerId) {
        self.presumed_members.insert(from);
    }

    /// A frame has arrived from this peer.
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
        send(peer, &JoinMessage::Join(join).into(), out);
        self.timers.set(RETRY, now.after(JOIN_RETRY));
    }

    /// A link went down. If it was the sponsor's, other members are asked at once.
    pub(crate) fn link_down(&mut self, now: Instant, peer: PeerId) {
        if let Some(recovering) = &mut self.recovering {
            recovering.link_down(&peer);
        }
        if self.sponsor == Some(peer) {
            self.leave_sponsor();
            self.timers.set(RETRY, now);
        }
    }

    /// Drops the sponsor: other members are asked when the timer expires.
    fn leave_sponsor(&mut self) {
        self.sponsor = None;
        self.is_ready_told = false;
    }

    /// Asks again if no member has answered for a while, or if the members have changed meanwhile.
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
            Some(sponsor) if self.is_ready_told => send(sponsor, &JoinMessage::Ready.into(), out),
            Some(sponsor) => {
                self.report_unlinked(out);
                self.ask(now, sponsor, out);
                // A peer that answers can be reached.
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

    /// Tells the user, once, that other peers answer and none of them trains.
    fn report_idle(&mut self, out: &mut Vec<Output>) {
        self.idle_count += u32::from(!self.idle.is_empty());
        if self.idle_count == IDLE_REPORTED_AT {
            out.push(Output::Event(Event::NoActiveMember { peers: self.idle.iter().copied().collect() }));
        }
    }

    /// Tells the user, once, that no peer is linked any more.
    fn report_isolated(&mut self, is_isolated: bool, out: &mut Vec<Output>) {
        self.isolated_count = if is_isolated { self.isolated_count.saturating_add(1) } else { 0 };
        if self.isolated_count == ISOLATED_REPORTED_AT {
            out.push(Output::Event(Event::NoPeerAnswers));
        }
    }

    /// When `tick` is due next; `None` if no timer is set.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    // Answers.

    /// A member sends the run's specification and members. Returns the specification and the random bytes; `None` if they are not needed.
    ///
    /// # Errors
    /// The run is not that of the invite.
    pub(crate) fn on_welcome(
        &mut self,
        now: Instant,
        from: PeerId,
        welcome: Welcome,
        out: &mut Vec<Output>,
    ) -> Result<Option<RunIdentity>, Failure> {
        if self.sponsor.is_some_and(|sponsor| sponsor != from) {
            // One sponsor is enough.
            return Ok(None);
        }
        let run = RunId::derive(&welcome.specification, &welcome.nonce);
        if self.run.is_some_and(|expected| expected != run) {
            return Err(Failure::WrongSpecification { by: from });
        }
        let is_first = self.sponsor.is_none();
        self.run = Some(run);
        // The sponsor also sends the data, so a peer that is reached through another one only names the members.
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

    /// Task and data are here: tells the sponsor, once all members that it named are linked.
    pub(crate) fn report_ready(&mut self, is_linked: impl Fn(PeerId) -> bool, out: &mut Vec<Output>) {
        let Some(sponsor) = self.sponsor.filter(|sponsor| is_linked(*sponsor)) else { return };
        if self.is_ready_told {
            return;
        }
        self.note_unlinked(is_linked);
        if self.unlinked.is_empty() {
            self.is_ready_told = true;
            send(sponsor, &JoinMessage::Ready.into(), out);
        }
    }

    /// The peer that was asked is not a member, or not any more. It names a member or the founder.
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

    /// The peer that was asked refuses. Once a member has welcomed this peer, only that member's refusal counts: others were asked before.
    ///
    /// # Errors
    /// The refusal is final.
    pub(crate) fn on_refuse(&mut self, by: PeerId, refusal: Refusal) -> Result<(), Failure> {
        if self.is_entering() {
            // This peer is about to enter a view that the sender does not know yet.
            return Ok(());
        }
        match refusal {
            _ if self.sponsor.is_some_and(|sponsor| sponsor != by) => Ok(()),
            Refusal::NotReady => {
                // When the timer expires, this peer asks others, and this one again.
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

    /// The sponsor stops. This peer asks the other members that the sponsor has named.
    ///
    /// # Errors
    /// The sponsor has named no others: the run has not begun, or has ended.
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
                Message::Join(JoinMessage::Refuse(Refusal::OtherRun { run }))
            }
            (Some(contact), _) => Message::Join(JoinMessage::Redirect(contact.clone())),
            (None, _) => Message::Join(JoinMessage::Refuse(Refusal::NotReady)),
        };
        send(from, &message, out);
        if let Some(recovering) = &mut self.recovering {
            recovering.inform(from, join.run, out);
        }
    }
}

#[cfg(test)]
mod tests;
