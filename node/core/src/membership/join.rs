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

use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::JOIN_RETRY;
use peergrad_protocol::message::{Contact, Join, JoinMessage, Message, Refusal, SavedCheckpoint, Welcome};
use peergrad_protocol::time::Timers;
use peergrad_protocol::view::{Member, Recovery, View};
use peergrad_protocol::{Instant, PeerId, RunId};

use crate::io::{Event, Failure, Output};
use crate::membership::journal::{Effect, Journal};
use crate::membership::links::send;
use crate::membership::recovery::RecoveringMember;
use crate::membership::view_change::ViewChangePlanner;
use crate::node_report::NodeReport;
use crate::peer_links::Route;
use crate::state::checkpoint::Checkpoint;
use contacts::Contacts;
use entering::Entry;
pub(crate) use entering::ViewEntry;
use reachability::Reachability;
use silence::Silence;

mod contacts;
mod entering;
mod reachability;
mod silence;

/// A peer that asks to join a run.
pub(crate) struct Joiner {
    /// The run of the invite; `None` for any run, until the first welcome.
    run: Option<RunId>,
    /// This peer, as the next view would list it.
    me: Member,
    /// How far it is with the member that it asks.
    stage: Stage,
    /// How far it is on its way into a view.
    entry: Entry,
    /// The peers that it may ask.
    contacts: Contacts,
    /// How it reaches the members.
    reachability: Reachability,
    /// How it was answered while no member has welcomed it.
    silence: Silence,
    /// Peers that speak to this one as to a member, so they may be in a view that contains it.
    presumed_members: BTreeSet<PeerId>,
    /// The member that this peer was before its restart; `None` if it was none.
    before_restart: Option<RestartedMember>,
    /// When it asks again, and when it advances the recovery.
    timers: Timers<2>,
}

/// How far a joiner is with the member that it asks. The sponsor is the linked member that has welcomed this peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No member has welcomed it.
    Asking,
    /// It needs task and data, or a link to another member.
    Preparing { sponsor: PeerId },
    /// The sponsor knows that it is ready, with these initial parameters.
    Waiting { sponsor: PeerId, parameters: ContentDigest },
}

impl Stage {
    fn sponsor(self) -> Option<PeerId> {
        match self {
            Self::Asking => None,
            Self::Preparing { sponsor } | Self::Waiting { sponsor, .. } => Some(sponsor),
        }
    }
}

/// A member whose process was restarted.
struct RestartedMember {
    /// What is left of it: its vote, its last view, and its checkpoints.
    member: RecoveringMember,
    /// Whether the user has been informed that the recovery has begun.
    is_reported: bool,
    /// Whether the other members of its view were dialed.
    has_dialed: bool,
}

/// The specification and the random bytes, from which a run's id is derived.
pub(crate) struct RunIdentity {
    /// The encoded specification.
    pub(crate) specification: Vec<u8>,
    /// The random bytes, which make runs of the same specification different.
    pub(crate) nonce: [u8; 32],
}

/// The timers: to ask again, and to advance the recovery.
const RETRY: usize = 0;
const RECOVERY: usize = 1;
/// The interval at which the recovery is advanced.
const RECOVERY_INTERVAL: Duration = Duration::from_millis(250);

impl Joiner {
    /// A peer that was invited to `run`. With `None` it joins the run of the first member that it meets.
    pub(crate) fn new(run: Option<RunId>, me: Member, recovering: Option<RecoveringMember>) -> Self {
        let mut joiner = Self::with_contacts(run, Vec::new(), me);
        // A silence from the start is reported, too.
        joiner.timers.set(RETRY, Instant::default());
        // The record of a member of another run is of no use in this one.
        let is_of_run = |member: &RecoveringMember| run.is_none_or(|run| run == member.view().run);
        if let Some(member) = recovering.filter(is_of_run) {
            joiner.timers.set(RECOVERY, Instant::default());
            joiner.before_restart = Some(RestartedMember { member, is_reported: false, has_dialed: false });
        }
        joiner
    }

    /// A peer whose other members have continued without it; `contacts` are some of them.
    pub(crate) fn rejoining(run: RunId, contacts: Vec<Contact>, me: Member) -> Self {
        Self::with_contacts(Some(run), contacts, me)
    }

    fn with_contacts(run: Option<RunId>, contacts: Vec<Contact>, me: Member) -> Self {
        Self {
            run,
            stage: Stage::Asking,
            entry: Entry::Outside,
            contacts: Contacts::new(me.peer, contacts),
            reachability: Reachability::default(),
            silence: Silence::default(),
            presumed_members: BTreeSet::new(),
            before_restart: None,
            timers: Timers::default(),
            me,
        }
    }

    /// The member that is asked for the data and learns that this peer is ready; `None` while this peer still asks for one.
    pub(crate) fn sponsor(&self) -> Option<PeerId> {
        self.stage.sponsor()
    }

    /// This joiner's part of the node's report.
    pub(crate) fn node_report(&self) -> NodeReport {
        let restarted = self.before_restart.as_ref().filter(|_| self.stage == Stage::Asking);
        NodeReport::Join {
            run: self.run,
            sponsor: self.sponsor(),
            is_ready: matches!(self.stage, Stage::Waiting { .. }),
            out_of_reach: self.reachability.unlinked().iter().copied().collect(),
            recovery: restarted.map(|restarted| restarted.member.progress()),
        }
    }

    // Asking.

    /// A link came up: asks the peer to admit this one, unless another peer has welcomed it.
    pub(crate) fn link_up(&mut self, now: Instant, peer: PeerId, out: &mut Vec<Output>) {
        self.reachability.prove(&peer);
        self.silence.linked();
        if self.stage == Stage::Asking {
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
        self.contacts.dial_others(&BTreeSet::new(), out);
        self.timers.set(RETRY, now.after(JOIN_RETRY));
        for peer in linked {
            self.reachability.doubt(peer);
            self.ask(now, peer, out);
        }
    }

    /// A peer speaks to this one as to a member. Perhaps this peer is one, and does not know yet.
    pub(crate) fn on_heartbeat(&mut self, from: PeerId) {
        self.presumed_members.insert(from);
    }

    /// A frame has arrived from this peer.
    pub(crate) fn heard(&mut self, peer: &PeerId) {
        self.reachability.prove(peer);
    }

    fn ask(&mut self, now: Instant, peer: PeerId, out: &mut Vec<Output>) {
        if let Some(restarted) =
            self.before_restart.as_mut().filter(|restarted| Some(restarted.member.view().run) == self.run)
            && !std::mem::replace(&mut restarted.is_reported, true)
        {
            let view_number = restarted.member.view().number;
            out.push(Output::Event(Event::RecoveryStarted { view_number }));
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
        self.reachability.set_route(peer, Route::Direct);
        if let Some(restarted) = &mut self.before_restart {
            restarted.member.link_down(&peer);
        }
        if self.sponsor() == Some(peer) {
            self.ask_others_at(now);
        }
    }

    /// Drops the sponsor: other members are asked at this time.
    fn ask_others_at(&mut self, time: Instant) {
        self.stage = Stage::Asking;
        self.timers.set(RETRY, time);
    }

    /// A peer is now reached by this route.
    pub(crate) fn set_route(&mut self, peer: PeerId, route: Route) {
        self.reachability.set_route(peer, route);
    }

    /// This peer's addresses or its offered capacity have changed: its sponsor learns of it.
    pub(crate) fn reachability_changed(&mut self, now: Instant, me: &Member, out: &mut Vec<Output>) {
        self.me = me.clone();
        if let Some(sponsor) = self.sponsor().filter(|_| !self.entry.is_recording()) {
            self.stage = Stage::Preparing { sponsor };
            self.ask(now, sponsor, out);
        }
    }

    /// Asks again if no member has answered for a while, or if the members have changed meanwhile.
    pub(crate) fn tick(&mut self, now: Instant, linked: impl Iterator<Item = PeerId>, out: &mut Vec<Output>) {
        if !self.timers.expired(RETRY, now) || self.entry.is_begun() {
            return;
        }
        self.timers.set(RETRY, now.after(JOIN_RETRY));
        let linked: BTreeSet<PeerId> = linked.collect();
        self.contacts.dial_others(&linked, out);
        for peer in std::mem::take(&mut self.presumed_members) {
            if linked.contains(&peer) && self.sponsor() != Some(peer) {
                self.ask(now, peer, out);
            }
        }
        match self.stage {
            Stage::Waiting { sponsor, parameters } => {
                send(sponsor, &JoinMessage::Ready(parameters).into(), out);
            }
            Stage::Preparing { sponsor } => {
                self.reachability.report(out);
                self.ask(now, sponsor, out);
                // A peer that answers can be reached.
                self.reachability.unproven().for_each(|peer| self.ask(now, peer, out));
            }
            Stage::Asking => {
                if self.contacts.are_current() && !linked.is_empty() {
                    self.reachability.note(&self.contacts, &self.me, |peer| linked.contains(&peer));
                    self.reachability.report(out);
                }
                self.silence.note_retry(linked.len(), out);
                linked.into_iter().for_each(|peer| self.ask(now, peer, out));
            }
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
        mut welcome: Welcome,
        out: &mut Vec<Output>,
    ) -> Result<Option<RunIdentity>, Failure> {
        if self.sponsor().is_some_and(|sponsor| sponsor != from) {
            // One sponsor is enough.
            return Ok(None);
        }
        let run = RunId::derive(&welcome.specification, &welcome.nonce);
        if self.run.is_some_and(|expected| expected != run) {
            return Err(Failure::WrongSpecification { by: from });
        }
        let is_first = self.stage == Stage::Asking;
        self.run = Some(run);
        // The sponsor also sends the data, so a peer that is reached through another one only names the members.
        let is_sponsor = !self.reachability.is_relayed(&from);
        self.stage = if is_sponsor { Stage::Preparing { sponsor: from } } else { Stage::Asking };
        self.silence.answered();
        let specification = std::mem::take(&mut welcome.specification);
        let nonce = welcome.nonce;
        self.contacts.welcomed(welcome);
        self.timers.set(RETRY, now.after(JOIN_RETRY));
        self.contacts.dial_others(&BTreeSet::new(), out);
        if !is_sponsor {
            return Ok(None);
        }
        if is_first {
            out.push(Output::Event(Event::Welcomed { run, by: from }));
        }
        Ok(Some(RunIdentity { specification, nonce }))
    }

    /// Task and data are here, and the digest of the initial `parameters` is known: tells the sponsor, once all members that it named are
    /// linked.
    pub(crate) fn report_ready(
        &mut self,
        parameters: ContentDigest,
        is_linked: impl Fn(PeerId) -> bool,
        out: &mut Vec<Output>,
    ) {
        let Stage::Preparing { sponsor } = self.stage else { return };
        if !is_linked(sponsor) {
            return;
        }
        self.reachability.note(&self.contacts, &self.me, is_linked);
        if self.reachability.unlinked().is_empty() {
            self.stage = Stage::Waiting { sponsor, parameters };
            send(sponsor, &JoinMessage::Ready(parameters).into(), out);
        }
    }

    /// The peer that was asked is not a member, or not any more. It names a member or the founder.
    pub(crate) fn on_refer(&mut self, now: Instant, from: PeerId, contact: Contact, out: &mut Vec<Output>) {
        if self.sponsor() == Some(from) {
            self.ask_others_at(now);
        }
        if self.stage == Stage::Asking && self.contacts.refer(&contact) {
            out.push(Output::Dial(contact));
        }
    }

    /// The peer that was asked refuses. Once a member has welcomed this peer, only that member's refusal counts: others were asked before.
    ///
    /// # Errors
    /// The refusal is final.
    pub(crate) fn on_refuse(&mut self, by: PeerId, refusal: Refusal) -> Result<(), Failure> {
        if self.entry.is_begun() {
            // This peer is about to enter a view that the sender does not know yet.
            return Ok(());
        }
        match refusal {
            _ if self.sponsor().is_some_and(|sponsor| sponsor != by) => Ok(()),
            Refusal::NotReady => {
                // When the timer expires, this peer asks others, and this one again.
                self.silence.add_idle(by);
                self.stage = Stage::Asking;
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
        if self.sponsor() != Some(from) {
            return Ok(());
        }
        if !self.contacts.forget(from) {
            return Err(Failure::FounderLeft { by: from, reason: reason.to_owned() });
        }
        self.ask_others_at(now);
        Ok(())
    }

    /// Another joiner asks this one.
    pub(crate) fn on_join(&mut self, from: PeerId, join: &Join, out: &mut Vec<Output>) {
        let message = match (self.contacts.referral(self.sponsor()), self.run) {
            (_, Some(run)) if join.run.is_some_and(|theirs| theirs != run) => {
                Message::Join(JoinMessage::Refuse(Refusal::OtherRun { run }))
            }
            (Some(contact), _) => Message::Join(JoinMessage::Redirect(contact.clone())),
            (None, _) => Message::Join(JoinMessage::Refuse(Refusal::NotReady)),
        };
        send(from, &message, out);
        if let Some(restarted) = &mut self.before_restart {
            restarted.member.inform(from, join.run, out);
        }
    }

    // Entering a view.

    /// Whether this peer, in this incarnation, is in `view`.
    pub(crate) fn is_in(&self, view: &View) -> bool {
        let is_me =
            |member: &Member| member.peer == self.me.peer && member.incarnation == self.me.incarnation;
        self.run == Some(view.run) && !self.entry.is_begun() && view.members.iter().any(is_me)
    }

    /// The checkpoint that this peer must read before it can enter `view`; `None` if it needs none. The view waits until `restored`.
    pub(crate) fn restore(&mut self, view: &View) -> Option<SavedCheckpoint> {
        let Recovery::Resume(resume) = &view.recovery else { return None };
        let is_new = view.rank(&self.me.peer).is_none_or(|rank| resume.newcomers.contains(&rank));
        if !resume.is_restored || is_new || matches!(self.entry, Entry::Restored(_)) {
            return None;
        }
        let saved = self.before_restart.as_ref()?.member.checkpoint_of(view)?.clone();
        self.entry = Entry::Restoring(Box::new(view.clone()));
        Some(saved)
    }

    /// The view that waits for a checkpoint, if there is one.
    pub(crate) fn restoring(&self) -> Option<&View> {
        self.entry.restoring()
    }

    /// The checkpoint has been read. Returns the view that waited for it.
    pub(crate) fn restored(&mut self, checkpoint: Arc<Checkpoint>) -> Option<View> {
        self.entry.restored(checkpoint)
    }

    /// The view that this peer enters is being written to disk.
    pub(crate) fn recording(&mut self) {
        self.entry.record();
    }

    /// Records are on disk: sends the answers that waited for them. Returns the view, if this peer may enter one, with its checkpoint.
    pub(crate) fn persisted(&mut self, effects: Vec<Effect>, out: &mut Vec<Output>) -> Option<ViewEntry> {
        let mut entry = None;
        for effect in effects {
            match effect {
                Effect::Answer { to, message } => send(to, &message, out),
                Effect::EnterView(view, digest) => {
                    entry = Some(ViewEntry { view, digest, checkpoint: self.entry.take_checkpoint() });
                }
            }
        }
        entry
    }

    // Recovery.

    /// Whether this peer was a member of the run before its restart.
    pub(crate) fn is_recovering(&self) -> bool {
        self.before_restart.is_some() && self.run.is_some()
    }

    /// The member that this peer was before its restart, if it was one.
    pub(crate) fn recovering(&mut self) -> Option<&mut RecoveringMember> {
        self.before_restart.as_mut().map(|restarted| &mut restarted.member)
    }

    /// Another member sends a view that does not contain this incarnation of this peer.
    pub(crate) fn on_install(&mut self, now: Instant, from: PeerId, view: View, journal: &mut Journal) {
        if let Some(restarted) = &mut self.before_restart {
            restarted.member.on_install(now, from, view, journal);
            self.timers.set(RECOVERY, now);
        }
    }

    /// Advances the recovery, if it is needed. `planner` is `None` until this peer could train.
    pub(crate) fn poll_recovery(
        &mut self,
        now: Instant,
        planner: Option<&ViewChangePlanner<'_>>,
        out: &mut Vec<Output>,
    ) {
        // A peer that a member may admit starts no attempt.
        let planner = planner.filter(|_| self.stage == Stage::Asking && !self.entry.is_begun());
        let Some(restarted) = self.before_restart.as_mut().filter(|_| self.run.is_some()) else { return };
        if self.timers.expired(RECOVERY, now) {
            if !std::mem::replace(&mut restarted.has_dialed, true) {
                restarted.member.dial(out);
            }
            restarted.member.poll(now, planner, out);
            self.timers.set(RECOVERY, now.after(RECOVERY_INTERVAL));
        }
    }
}

#[cfg(test)]
mod tests;
