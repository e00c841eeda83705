//! Joining: from a link to any member to a place in the first view.
//!
//! ```text
//! asking -- Welcome --> preparing -- task and data at hand, Ready --> waiting -- Install --> in the view
//!    ^  \-- Refer: ask there                                             |
//!    '------------------------ the founder's link went down -------------'
//! ```

use peergrad_protocol::durable::Durable;
use peergrad_protocol::ledger::Ledger;
use peergrad_protocol::limits::JOIN_RETRY;
use peergrad_protocol::message::{Contact, Join, Message, Refusal, Welcome};
use peergrad_protocol::time::TimerTable;
use peergrad_protocol::view::{Member, Recovery, View};
use peergrad_protocol::{Epoch, Frame, Instant, PeerId, RunId};

use crate::io::{Event, Failure, Output, Reject};

/// A joiner before the first view.
pub(crate) struct Joining {
    /// The run of the invite; known at the latest from the first welcome.
    run: Option<RunId>,
    me: Member,
    /// Who founds the run, once somebody said so.
    founder: Option<Contact>,
    /// Whether the founder has welcomed this peer since its link came up.
    is_welcome: bool,
    /// The view that an earlier start of this peer was in, until the user has been told.
    restored: Option<View>,
    timers: TimerTable<1>,
}

/// The only timer: asking again.
const RETRY: usize = 0;

impl Joining {
    /// A peer that was invited to `run`, or to whatever run the first member it meets belongs to.
    pub(crate) fn new(run: Option<RunId>, me: Member, restored: Option<Durable>) -> Self {
        let restored = restored.map(|durable| durable.view);
        Self { run, me, founder: None, is_welcome: false, restored, timers: TimerTable::default() }
    }

    /// Who is asked for data and told that this peer is ready.
    pub(crate) fn founder(&self) -> Option<PeerId> {
        self.founder.as_ref().map(|contact| contact.peer)
    }

    /// A link came up: whoever is there is asked.
    pub(crate) fn link_up(&mut self, now: Instant, peer: PeerId, out: &mut Vec<Output>) {
        if !self.is_welcome {
            self.ask(now, peer, out);
        }
    }

    fn ask(&mut self, now: Instant, peer: PeerId, out: &mut Vec<Output>) {
        if let Some(view) = self.restored.take_if(|view| Some(view.run) == self.run) {
            out.push(Output::Event(Event::Returned { epoch: view.epoch }));
        }
        let join = Join {
            run: self.run,
            incarnation: self.me.incarnation,
            addresses: self.me.addresses.clone(),
            weight: self.me.weight,
        };
        out.push(Output::Event(Event::Asking(peer)));
        out.push(Output::Send { to: peer, frame: Frame::encode(&Message::Join(join), None) });
        self.timers.set(RETRY, now.after(JOIN_RETRY));
    }

    /// The founder's link went down: ask again when it is back.
    pub(crate) fn link_down(&mut self, peer: PeerId) {
        if self.founder() == Some(peer) {
            self.is_welcome = false;
        }
    }

    /// Asks again if nobody has answered for a while.
    pub(crate) fn tick(&mut self, now: Instant, linked: impl Iterator<Item = PeerId>, out: &mut Vec<Output>) {
        if !self.timers.expired(RETRY, now) || self.is_welcome {
            return;
        }
        // Everyone, and not only the founder that somebody named: that one may be gone.
        for peer in linked {
            self.ask(now, peer, out);
        }
    }

    /// When to tick next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Whether a welcome comes from the founder itself, and not from another one than the one that has welcomed this peer.
    pub(crate) fn is_from_founder(&self, from: PeerId, welcome: &Welcome) -> bool {
        welcome.founder.peer == from && (!self.is_welcome || self.founder() == Some(from))
    }

    /// The founder says what the run is. The specification is returned the first time.
    ///
    /// # Errors
    /// It is not the run of the invite.
    pub(crate) fn welcome(
        &mut self,
        from: PeerId,
        welcome: Welcome,
        out: &mut Vec<Output>,
    ) -> Result<Vec<u8>, Failure> {
        let run = RunId::derive(&welcome.specification, &welcome.nonce);
        if self.run.is_some_and(|expected| expected != run) {
            return Err(Failure::WrongSpecification { by: from });
        }
        self.run = Some(run);
        self.founder = Some(welcome.founder);
        self.is_welcome = true;
        self.timers.stop(RETRY);
        out.push(Output::Event(Event::Welcomed { run, by: from }));
        Ok(welcome.specification)
    }

    /// The one asked is not the founder, and says who is.
    pub(crate) fn refer(&mut self, contact: Contact, out: &mut Vec<Output>) {
        let is_news = self.founder.as_ref() != Some(&contact) && contact.peer != self.me.peer;
        if is_news && !self.is_welcome {
            out.push(Output::Dial(contact.clone()));
            self.founder = Some(contact);
        }
    }

    /// The one asked says no. Once the founder has said yes, only its word counts: others were asked before.
    ///
    /// # Errors
    /// The no is final.
    pub(crate) fn refused(&self, by: PeerId, refusal: Refusal) -> Result<(), Failure> {
        match refusal {
            Refusal::NotYet => Ok(()),
            _ if self.is_welcome && self.founder() != Some(by) => Ok(()),
            Refusal::OtherRun { .. } | Refusal::Started | Refusal::Full => {
                Err(Failure::Refused { by, refusal })
            }
        }
    }

    /// Another joiner asks this one.
    pub(crate) fn asked(&self, from: PeerId, join: &Join, out: &mut Vec<Output>) {
        let message = match (&self.founder, self.run) {
            (_, Some(run)) if join.run.is_some_and(|theirs| theirs != run) => {
                Message::Refuse(Refusal::OtherRun { run })
            }
            (Some(founder), _) => Message::Refer(founder.clone()),
            (None, _) => Message::Refuse(Refusal::NotYet),
        };
        out.push(Output::Send { to: from, frame: Frame::encode(&message, None) });
    }

    /// Whether this can be the first view: from the founder, of the run, with this peer in this incarnation.
    ///
    /// # Errors
    /// It is out of place.
    pub(crate) fn check_view(&self, from: PeerId, view: &View) -> Result<(), Reject> {
        let is_first = view.epoch == Epoch(1)
            && view.parents.is_empty()
            && view.recovery == Recovery::Found
            && view.ledger == Ledger::default();
        let is_me =
            |member: &Member| member.peer == self.me.peer && member.incarnation == self.me.incarnation;
        let is_expected = self.founder() == Some(from) && self.run == Some(view.run);
        if is_first && is_expected && view.members.iter().any(is_me) {
            Ok(())
        } else {
            Err(Reject::OutOfPlace)
        }
    }
}
