//! Joining: from a link to any member to a place in a view.
//!
//! ```text
//! asking -- Welcome --> preparing -- task and data at hand, members linked: Ready --> waiting -- Install --> in the view
//!    ^  \-- Refer: ask there                                                             |
//!    '------------------------ the member's link went down: ask another -----------------'
//! ```
//! A process that was a member before it was restarted can still vote in that member's view, if it remembers what it had
//! promised and accepted there: without its vote the others might be too few.

use std::collections::BTreeSet;
use std::sync::Arc;

use peergrad_protocol::agreement::Acceptor;
use peergrad_protocol::durable::{Durable, Record};
use peergrad_protocol::limits::JOIN_RETRY;
use peergrad_protocol::message::{
    Accepted, Contact, Join, Message, Outbid, Prepare, Promise, Propose, Refusal, Report, Welcome,
};
use peergrad_protocol::time::TimerTable;
use peergrad_protocol::view::{Member, Succession, View};
use peergrad_protocol::wire::encode_record;
use peergrad_protocol::{Frame, Incarnation, Instant, PeerId, RunId, StepNumber, ViewDigest};

use crate::io::{Event, Failure, Output, PersistId};

mod reaching;

/// A peer that asks to be let in.
pub(crate) struct Joining {
    /// The run of the invite; known at the latest from the first welcome.
    run: Option<RunId>,
    me: Member,
    /// The member that has welcomed this peer, as long as it is linked.
    host: Option<PeerId>,
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
    insiders: BTreeSet<PeerId>,
    /// Members that are not linked; those that were not when this was looked at last; and those the user was told of.
    unlinked: BTreeSet<PeerId>,
    unlinked_before: BTreeSet<PeerId>,
    told: BTreeSet<PeerId>,
    /// Those who have answered that they are in no view themselves, and how often this peer has asked since the first did.
    idle: BTreeSet<PeerId>,
    idle_count: u32,
    /// How often this peer would have asked since there was nobody to ask.
    lonely_count: u32,
    /// Whether the host knows that this peer is ready.
    is_ready_told: bool,
    /// Who founds the run, where another joiner has said so.
    founder: Option<Contact>,
    /// The member that an earlier start of this peer was.
    voter: Option<Voter>,
    /// The view in which this peer is to be, while it is written down.
    recording: Option<(PersistId, View)>,
    timers: TimerTable<1>,
}

/// A vote that is left over.
struct Voter {
    view: View,
    digest: ViewDigest,
    /// The view as its record has it.
    view_bytes: Arc<[u8]>,
    incarnation: Incarnation,
    acceptor: Acceptor<Succession>,
    /// Answers that leave once the record is on disk.
    answers: Vec<(PersistId, PeerId, Message)>,
    is_told: bool,
}

/// What makes a run's id.
pub(crate) struct Identity {
    pub(crate) specification: Vec<u8>,
    pub(crate) nonce: [u8; 32],
}

/// The only timer: asking again.
const RETRY: usize = 0;
/// Whoever has been asked so often, and still is in no view, is not just about to be.
const IDLE_TOLD_AT: u32 = 5;
/// Members that are cut off for a moment come back before that.
const LONELY_TOLD_AT: u32 = 10;

impl Joining {
    /// A peer that was invited to `run`, or to whatever run the first member it meets belongs to.
    pub(crate) fn new(run: Option<RunId>, me: Member, restored: Option<Durable>) -> Self {
        let voter = restored.map(|durable| Voter {
            digest: durable.view.digest(),
            view_bytes: encode_record(&durable.view).into(),
            view: durable.view,
            incarnation: durable.incarnation,
            acceptor: durable.acceptor,
            answers: Vec::new(),
            is_told: false,
        });
        Self {
            run,
            me,
            host: None,
            contacts: Vec::new(),
            workers: BTreeSet::new(),
            relayed: BTreeSet::new(),
            has_contacts: false,
            unproven: BTreeSet::new(),
            insiders: BTreeSet::new(),
            unlinked: BTreeSet::new(),
            unlinked_before: BTreeSet::new(),
            told: BTreeSet::new(),
            idle: BTreeSet::new(),
            idle_count: 0,
            lonely_count: 0,
            is_ready_told: false,
            founder: None,
            voter,
            recording: None,
            timers: TimerTable::default(),
        }
    }

    /// A peer whose others have gone on to `view` without it.
    pub(crate) fn again(view: &View, me: Member) -> Self {
        let mut joining = Self::new(Some(view.run), me, None);
        let contact = |member: &Member| Contact { peer: member.peer, addresses: member.addresses.clone() };
        joining.contacts = view.members.iter().map(contact).collect();
        joining
    }

    /// Who is asked for data and told that this peer is ready.
    pub(crate) fn host(&self) -> Option<PeerId> {
        self.host
    }

    // Asking.

    /// A link came up: whoever is there is asked, unless somebody has answered already.
    pub(crate) fn link_up(&mut self, now: Instant, peer: PeerId, out: &mut Vec<Output>) {
        self.unproven.remove(&peer);
        if self.host.is_none() {
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
    pub(crate) fn on_beat(&mut self, from: PeerId) {
        self.insiders.insert(from);
    }

    /// A frame of a peer arrived.
    pub(crate) fn heard(&mut self, peer: &PeerId) {
        self.unproven.remove(peer);
    }

    fn ask(&mut self, now: Instant, peer: PeerId, out: &mut Vec<Output>) {
        if let Some(voter) = self.voter.as_mut().filter(|voter| Some(voter.view.run) == self.run)
            && !std::mem::replace(&mut voter.is_told, true)
        {
            out.push(Output::Event(Event::Returned { epoch: voter.view.epoch }));
        }
        let join = Join {
            run: self.run,
            incarnation: self.me.incarnation,
            addresses: self.me.addresses.clone(),
            weight: self.me.weight,
        };
        out.push(Output::Event(Event::Asking(peer)));
        send(peer, &Message::Join(join), out);
        self.timers.set(RETRY, now.after(JOIN_RETRY));
    }

    /// The host's link went down: others are asked.
    pub(crate) fn link_down(&mut self, now: Instant, peer: PeerId) {
        if self.host == Some(peer) {
            self.leave_host();
            self.timers.set(RETRY, now);
        }
    }

    /// Others are asked at the next time.
    fn leave_host(&mut self) {
        self.host = None;
        self.is_ready_told = false;
    }

    /// Asks again if nobody has answered for a while, or the members are other ones meanwhile.
    pub(crate) fn tick(&mut self, now: Instant, linked: impl Iterator<Item = PeerId>, out: &mut Vec<Output>) {
        if !self.timers.expired(RETRY, now) || self.recording.is_some() {
            return;
        }
        self.timers.set(RETRY, now.after(JOIN_RETRY));
        let linked: BTreeSet<PeerId> = linked.collect();
        for contact in self.contacts.iter().filter(|c| c.peer != self.me.peer && !linked.contains(&c.peer)) {
            out.push(Output::Dial(contact.clone()));
        }
        for peer in std::mem::take(&mut self.insiders) {
            if linked.contains(&peer) && self.host != Some(peer) {
                self.ask(now, peer, out);
            }
        }
        match self.host {
            Some(host) if self.is_ready_told => send(host, &Message::Ready, out),
            Some(host) => {
                self.tell_unlinked(out);
                self.ask(now, host, out);
                // Whoever answers is not out of reach.
                self.unproven.clone().into_iter().for_each(|peer| self.ask(now, peer, out));
            }
            None => {
                if self.has_contacts && !linked.is_empty() {
                    self.note_unlinked(|peer| linked.contains(&peer));
                    self.tell_unlinked(out);
                }
                self.tell_idle(out);
                self.tell_lonely(linked.is_empty(), out);
                linked.into_iter().for_each(|peer| self.ask(now, peer, out));
            }
        }
    }

    /// Tells the user, once, that others answer and nobody trains.
    fn tell_idle(&mut self, out: &mut Vec<Output>) {
        self.idle_count += u32::from(!self.idle.is_empty());
        if self.idle_count == IDLE_TOLD_AT {
            out.push(Output::Event(Event::NobodyTrains { peers: self.idle.iter().copied().collect() }));
        }
    }

    /// Tells the user, once, that nobody is there any more.
    fn tell_lonely(&mut self, is_lonely: bool, out: &mut Vec<Output>) {
        self.lonely_count = if is_lonely { self.lonely_count.saturating_add(1) } else { 0 };
        if self.lonely_count == LONELY_TOLD_AT {
            out.push(Output::Event(Event::NobodyAnswers));
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
    pub(crate) fn welcome(
        &mut self,
        now: Instant,
        from: PeerId,
        welcome: Welcome,
        out: &mut Vec<Output>,
    ) -> Result<Option<Identity>, Failure> {
        if self.host.is_some_and(|host| host != from) {
            // One member is enough.
            return Ok(None);
        }
        let run = RunId::derive(&welcome.specification, &welcome.nonce);
        if self.run.is_some_and(|expected| expected != run) {
            return Err(Failure::WrongSpecification { by: from });
        }
        let is_first = self.host.is_none();
        self.run = Some(run);
        // Data would have to come from the host: whoever is reached through another only says who else there is.
        let is_host = !self.relayed.contains(&from);
        self.host = is_host.then_some(from);
        self.is_ready_told = false;
        self.idle.clear();
        self.idle_count = 0;
        self.contacts = welcome.members;
        self.workers = welcome.workers.into_iter().collect();
        self.has_contacts = true;
        self.timers.set(RETRY, now.after(JOIN_RETRY));
        for contact in self.contacts.iter().filter(|contact| contact.peer != self.me.peer) {
            out.push(Output::Dial(contact.clone()));
        }
        if !is_host {
            return Ok(None);
        }
        if is_first {
            out.push(Output::Event(Event::Welcomed { run, by: from }));
        }
        Ok(Some(Identity { specification: welcome.specification, nonce: welcome.nonce }))
    }

    /// Task and data are at hand: the host is told, once all members that it named are linked.
    pub(crate) fn report_ready(&mut self, is_linked: impl Fn(PeerId) -> bool, out: &mut Vec<Output>) {
        let Some(host) = self.host.filter(|host| is_linked(*host)) else { return };
        if self.is_ready_told {
            return;
        }
        self.note_unlinked(is_linked);
        if self.unlinked.is_empty() {
            self.is_ready_told = true;
            send(host, &Message::Ready, out);
        }
    }

    /// The one asked is not a member, or not any more, and says who is or founds the run.
    pub(crate) fn refer(&mut self, now: Instant, from: PeerId, contact: Contact, out: &mut Vec<Output>) {
        if self.host == Some(from) {
            self.leave_host();
            self.timers.set(RETRY, now);
        }
        let is_news = self.founder.as_ref() != Some(&contact) && contact.peer != self.me.peer;
        if is_news && self.host.is_none() {
            out.push(Output::Dial(contact.clone()));
            self.founder = Some(contact);
        }
    }

    /// The one asked says no. Once a member has said yes, only its word counts: others were asked before.
    ///
    /// # Errors
    /// The no is final.
    pub(crate) fn refused(&mut self, by: PeerId, refusal: Refusal) -> Result<(), Failure> {
        if self.recording.is_some() {
            // It is in: whoever says no does not know yet.
            return Ok(());
        }
        match refusal {
            _ if self.host.is_some_and(|host| host != by) => Ok(()),
            Refusal::NotYet => {
                // The timer that is running asks others, and this one again.
                self.idle.insert(by);
                self.leave_host();
                Ok(())
            }
            Refusal::OtherRun { .. } | Refusal::Full | Refusal::Over | Refusal::Copied => {
                Err(Failure::Refused { by, refusal })
            }
        }
    }

    /// The one who had welcomed this peer stops. Others that it has named are asked.
    ///
    /// # Errors
    /// There are no others: the run has not begun, or is no more.
    pub(crate) fn departed(&mut self, now: Instant, from: PeerId, reason: &str) -> Result<(), Failure> {
        if self.host != Some(from) {
            return Ok(());
        }
        self.contacts.retain(|contact| contact.peer != from);
        if self.contacts.iter().all(|contact| contact.peer == self.me.peer) {
            return Err(Failure::NotFounded { by: from, reason: reason.to_owned() });
        }
        self.leave_host();
        self.timers.set(RETRY, now);
        Ok(())
    }

    /// Another joiner asks this one.
    pub(crate) fn asked(&self, from: PeerId, join: &Join, out: &mut Vec<Output>) {
        let host = self.contacts.iter().find(|contact| Some(contact.peer) == self.host);
        let message = match (host.or(self.founder.as_ref()), self.run) {
            (_, Some(run)) if join.run.is_some_and(|theirs| theirs != run) => {
                Message::Refuse(Refusal::OtherRun { run })
            }
            (Some(contact), _) => Message::Refer(contact.clone()),
            (None, _) => Message::Refuse(Refusal::NotYet),
        };
        send(from, &message, out);
    }

    // In.

    /// Whether this peer, in this incarnation, is in a view of its run.
    pub(crate) fn is_in(&self, view: &View) -> bool {
        let is_me =
            |member: &Member| member.peer == self.me.peer && member.incarnation == self.me.incarnation;
        self.run == Some(view.run) && self.recording.is_none() && view.members.iter().any(is_me)
    }

    /// The view in which it is, is being written down.
    pub(crate) fn recording(&mut self, id: PersistId, view: View) {
        self.recording = Some((id, view));
    }

    /// A record is on disk. The view, if it was that which was written.
    pub(crate) fn persisted(
        &mut self,
        id: PersistId,
        out: &mut Vec<Output>,
    ) -> Option<(Arc<View>, ViewDigest)> {
        if let Some(voter) = &mut self.voter {
            for (_, to, message) in voter.answers.extract_if(.., |(of, ..)| *of <= id) {
                send(to, &message, out);
            }
        }
        let (_, view) = self.recording.take_if(|(of, _)| *of <= id)?;
        let digest = view.digest();
        Some((Arc::new(view), digest))
    }

    // The vote that is left over.

    /// The members of the view that an earlier start of this peer was in want to agree on the next one.
    pub(crate) fn on_prepare(
        &mut self,
        from: PeerId,
        prepare: Prepare,
        persisted_count: &mut u64,
        out: &mut Vec<Output>,
    ) {
        let Prepare { view, ballot, .. } = prepare;
        let Some(voter) = self.voter.as_mut().filter(|voter| voter.is_asked(view, from, ballot.rank)) else {
            return;
        };
        if let Err(promised) = voter.acceptor.promise(ballot) {
            let outbid = Outbid { view, ballot, promised: Some(promised), step: StepNumber(0) };
            return send(from, &Message::Outbid(outbid), out);
        }
        let report = Report { is_over: true, ..Report::default() };
        let accepted = voter.acceptor.accepted().cloned();
        let promise = Promise { view, ballot, accepted, report };
        voter.answer(from, Message::Promise(Box::new(promise)), persisted_count, out);
    }

    /// A view that an earlier start of this peer may be in: that start had a vote in it, and has not used it, since it would
    /// have written the view down first.
    pub(crate) fn learn(&mut self, view: View) {
        let Some(voter) = &mut self.voter else { return };
        let earlier = voter.incarnation..self.me.incarnation;
        let rank = view.rank(&self.me.peer).filter(|rank| earlier.contains(&view.member(*rank).incarnation));
        if let Some(rank) = rank
            && view.run == voter.view.run
            && view.epoch > voter.view.epoch
        {
            voter.incarnation = view.member(rank).incarnation;
            voter.digest = view.digest();
            voter.view_bytes = encode_record(&view).into();
            voter.view = view;
            voter.acceptor = Acceptor::default();
            voter.answers.clear();
        }
    }

    /// One of them proposes it.
    pub(crate) fn on_propose(
        &mut self,
        from: PeerId,
        propose: Propose,
        persisted_count: &mut u64,
        out: &mut Vec<Output>,
    ) {
        let Propose { ballot, change } = propose;
        let view = change.parent;
        let Some(voter) = self.voter.as_mut().filter(|voter| voter.is_asked(view, from, ballot.rank)) else {
            return;
        };
        match voter.acceptor.accept(ballot, change) {
            Ok(()) => voter.answer(from, Message::Accepted(Accepted { view, ballot }), persisted_count, out),
            Err(promised) => {
                let outbid = Outbid { view, ballot, promised: Some(promised), step: StepNumber(0) };
                send(from, &Message::Outbid(outbid), out);
            }
        }
    }
}

impl Voter {
    fn is_asked(&self, view: ViewDigest, from: PeerId, rank: peergrad_protocol::Rank) -> bool {
        self.digest == view && self.view.rank(&from) == Some(rank)
    }

    fn answer(&mut self, to: PeerId, message: Message, persisted_count: &mut u64, out: &mut Vec<Output>) {
        let id = PersistId(*persisted_count);
        *persisted_count += 1;
        let record = Record::new(Arc::clone(&self.view_bytes), self.incarnation, &self.acceptor);
        out.push(Output::Persist { id, record });
        self.answers.push((id, to, message));
    }
}

fn send(to: PeerId, message: &Message, out: &mut Vec<Output>) {
    out.push(Output::Send { to, frame: Frame::encode(message, None) });
}

#[cfg(test)]
mod tests;
