//! Healing, as the machine sees it: lineages that meet again become one.
//!
//! # How it works
//! 1. Members tell those whom they have lost, as soon as these can be reached again, where their lineage is. Of the two, the one
//!    whose view has the smaller digest decides, and in it the convener alone, once for those two views: so both never wait for
//!    each other, and never both yield. The one with more steps leads.
//! 2. The convener of the one that yields hears of it. Where both are merged it names a step, and says what was kept after it;
//!    the convener of the one that leads tells that to its members, and once all have their part of it, they agree on a view
//!    that merges it. Where one is kept, or the other has trained nothing, it only asks whether it may come.
//! 3. When the step that merges is committed, or nothing is to be merged, the convener of the one that leads says so; members of
//!    the other one hear that theirs is over, and ask to be let in as anybody does.
//!
//! Nobody stops for any of it, and nobody gives anything up before it is merged. Whatever is lost on the way is said again; what
//! comes to nothing begins anew when both meet the next time.
//!
//! ```text
//! convener:    Idle -- decided or told: this one yields ---> Yielding -- Yield: comes as newcomers
//!               | ^------ nobody answers, or another view <-----'
//!               '-- Will: another one yields --> Inheriting -- merged, or nothing comes any more --> Idle
//! ```
//!
//! # Invariants
//! - A convener has to do with one other lineage at a time.
//! - Words that end a lineage count only as the answer to what was asked just now: what was sent during a cut arrives as well.

mod inheriting;
mod yielding;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use peergrad_protocol::message::{Contact, Meeting, Message, Will, Yield};
use peergrad_protocol::view::{Member, Root, View};
use peergrad_protocol::{Frame, Instant, PeerId, ViewDigest};

use self::inheriting::Inheriting;
use self::yielding::Yielding;
use super::{Machine, Progress, Seat, Stage};
use crate::io::{Output, Reject};
use crate::session::Left;

/// What goes on between this lineage and others.
#[derive(Default)]
pub(super) struct Healing {
    told_at: Instant,
    /// When questions were asked of late.
    asked: VecDeque<Instant>,
    /// At a convener that decides: by the other lineage's view, the one that yields.
    decided: BTreeMap<ViewDigest, ViewDigest>,
    /// At a convener: what it has to do with another lineage.
    affair: Affair,
    /// At a convener: what could not be had of another lineage, in the present view.
    refused: Option<Left>,
}

#[derive(Default)]
enum Affair {
    #[default]
    Idle,
    Yielding(Yielding),
    Inheriting(Inheriting),
}

impl Healing {
    /// What is to be merged, if all `members` have their part of it.
    pub(super) fn will_of_all(&self, members: &[Member]) -> Option<&Will> {
        let Affair::Inheriting(inheriting) = &self.affair else { return None };
        let is_heir = |member: &Member| inheriting.heirs.get(&member.peer) == Some(&0);
        members.iter().all(is_heir).then_some(&inheriting.will)
    }

    /// Another view begins: who yields negotiates anew, and who inherits counts anew.
    pub(super) fn enter(&mut self, now: Instant) {
        self.decided.clear();
        self.refused = None;
        match &mut self.affair {
            Affair::Inheriting(inheriting) => {
                *inheriting = Inheriting::new(now, inheriting.will.clone());
            }
            Affair::Yielding(_) => self.affair = Affair::Idle,
            Affair::Idle => {}
        }
    }

    fn is_idle(&self) -> bool {
        matches!(self.affair, Affair::Idle)
    }

    /// The other lineage, which is in `view` and comes from `roots`, yields to this one. If this one yields to it as well, because
    /// one of them has got another view meanwhile, that one has its way whose view has the smaller digest.
    fn let_yield(&mut self, own: ViewDigest, view: ViewDigest, roots: &[Root]) {
        let Affair::Yielding(yielding) = &self.affair else { return };
        let is_it = yielding.view == view || roots.iter().any(|root| root.view == yielding.view);
        if is_it && view < own {
            self.affair = Affair::Idle;
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

impl Seat {
    /// Where this lineage is, for another one.
    fn meeting(&self, now: Instant) -> Option<Meeting> {
        Some(Meeting {
            run: self.session.view().run,
            view: self.session.digest(),
            steps: self.session.committed(),
            trained: self.session.trained(),
            roots: self.session.roots(),
            convener: self.membership.convener_contact(now)?,
            yields: None,
            question: 0,
            answers: 0,
        })
    }

    /// Whether another lineage has anything to do with this one now.
    fn can_heal(&self) -> bool {
        let trains = self.progress == Progress::Training && self.session.has_parameters();
        trains && !self.session.is_closing() && !self.membership.is_troubled()
    }

    /// What this lineage is inheriting is not waited for any more if it is not here and the other one, which comes from `roots`,
    /// has gone on from there: who was to give it has forgotten it.
    fn drop_superseded(&mut self, roots: &[Root]) {
        let pinned = self.pinned();
        let Affair::Inheriting(inheriting) = &self.healing.affair else { return };
        let is_before = roots.iter().any(|root| root.view == inheriting.will.view);
        let is_whole = self.healing.will_of_all(&self.session.view().members).is_some();
        let left = inheriting.left();
        if is_before && !is_whole && pinned != Some(left) {
            self.healing.affair = Affair::Idle;
            self.session.disinherit(left);
        }
    }

    /// What of another lineage a view merges that may be entered, or is there and has not merged it yet.
    fn pinned(&self) -> Option<Left> {
        let pending = self.session.to_be_merged().map(|merge| (merge.view, merge.steps));
        pending.or_else(|| self.membership.may_merge())
    }
}

impl Machine {
    /// Does what is due between this lineage and others.
    pub(super) fn heal(&mut self, now: Instant, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &mut self.stage else { return };
        if !seat.membership.forks() || !seat.can_heal() || now.since(seat.healing.told_at) < TELL_EVERY {
            return;
        }
        seat.healing.told_at = now;
        seat.session.forget_inheritance(now, seat.pinned());
        let Some(meeting) = seat.meeting(now) else { return };
        for peer in seat.membership.find_estranged(out) {
            out.push(Output::Send { to: peer, frame: Frame::encode(&Message::Meet(meeting.clone()), None) });
        }
        if meeting.convener.peer == self.me.peer {
            self.inherit_from_predecessor(now);
            self.yield_on(now, &meeting, out);
            self.inherit_on(now, out);
        }
        self.fetch(now, &meeting.convener, out);
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
    pub(super) fn met(
        &mut self,
        now: Instant,
        from: PeerId,
        meeting: Meeting,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let Stage::Member(seat) = &mut self.stage else { return Ok(()) };
        if meeting.run != seat.session.view().run || !seat.membership.forks() {
            return Err(Reject::OutOfPlace);
        }
        if seat.session.view().comes_from(meeting.view) {
            // It is only behind, or has left us what it had.
            let install = Message::Install(View::clone(seat.session.view()));
            self.send(from, &install, None, out);
            return Ok(());
        }
        let Some(own) = seat.meeting(now).filter(|_| seat.can_heal()) else { return Ok(()) };
        if meeting.view == own.view {
            return Ok(());
        }
        let is_mine = own.convener.peer == self.me.peer;
        if meeting.roots.iter().any(|root| root.view == own.view) {
            match is_mine {
                true => self.is_merged_by(now, meeting, &own, out),
                false => self.send(own.convener.peer, &Message::Meet(meeting), None, out),
            }
            return Ok(());
        }
        seat.membership.note_elsewhere(now, &from, meeting.view);
        match meeting.yields {
            Some(view) if view == own.view && is_mine => self.yield_to(now, meeting, &own, out),
            Some(view) if view == meeting.view && is_mine => self.take_over(&meeting, &own, out),
            // Where a view has changed meanwhile, both begin anew.
            Some(view) if view != own.view && view != meeting.view => {}
            None if own.view > meeting.view => {
                let answers = meeting.question;
                self.send(from, &Message::Meet(Meeting { answers, ..own }), None, out);
            }
            None if is_mine => self.decide(now, meeting, own, out),
            // It is for the convener to decide, or to do.
            Some(_) | None => self.send(own.convener.peer, &Message::Meet(meeting), None, out),
        }
        Ok(())
    }

    /// Says which of the two yields: once, whatever either trains meanwhile, and by what it hears just now.
    fn decide(&mut self, now: Instant, other: Meeting, own: Meeting, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &mut self.stage else { return };
        seat.drop_superseded(&other.roots);
        let healing = &mut seat.healing;
        if !healing.is_idle() {
            return;
        }
        if healing.decided.len() >= DECIDED_MAX {
            healing.decided.clear();
        }
        let to = other.convener.clone();
        if !healing.is_answer(now, other.answers) && !healing.decided.contains_key(&other.view) {
            let question = healing.ask(now);
            return self.send_or_dial(&to, &Message::Meet(Meeting { question, ..own }), out);
        }
        let is_ahead = (own.steps, other.view) > (other.steps, own.view);
        let yields =
            *healing.decided.entry(other.view).or_insert(if is_ahead { other.view } else { own.view });
        if yields == own.view {
            return self.yield_to(now, Meeting { yields: Some(yields), ..other }, &own, out);
        }
        self.send_or_dial(&to, &Message::Meet(Meeting { yields: Some(yields), ..own }), out);
    }

    /// Another lineage offers to yield to this one, and leaves nothing more. Whoever says yes does not yield to it.
    fn take_over(&mut self, other: &Meeting, own: &Meeting, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &mut self.stage else { return };
        let is_merged = seat.session.has_merged(other.view);
        let healing = &mut seat.healing;
        healing.let_yield(own.view, other.view, &other.roots);
        let does_yield = matches!(healing.affair, Affair::Yielding(_));
        let mut is_decided = || *healing.decided.entry(other.view).or_insert(other.view) == other.view;
        if is_merged || !does_yield && is_decided() {
            let (view, question, contacts) = (other.view, other.question, seat.membership.contacts());
            let words = Yield { view, question, is_merged, contacts };
            self.send_or_dial(&other.convener, &Message::Yield(words), out);
        }
    }

    /// Another lineage has merged this one, and whoever was to say so may have been lost since: who speaks for it now is asked.
    fn is_merged_by(&mut self, now: Instant, other: Meeting, own: &Meeting, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &mut self.stage else { return };
        let (view, to) = (other.view, other.convener);
        match &mut seat.healing.affair {
            Affair::Yielding(yielding) if yielding.to == to => {}
            Affair::Yielding(_) | Affair::Idle => {
                let yielding = Yielding { view, to, heard_at: now, leaves: None, willed_at: None };
                seat.healing.affair = Affair::Yielding(yielding);
                self.yield_on(now, own, out);
            }
            // One after the other.
            Affair::Inheriting(_) => {}
        }
    }

    /// A member says what its view is, which this peer may be in next, or not any more.
    pub(super) fn told_of(
        &mut self,
        now: Instant,
        from: PeerId,
        view: View,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let Stage::Member(seat) = &mut self.stage else { return Ok(()) };
        if view.run != seat.session.view().run
            || !seat.with_facts(&self.jobs, |_, facts| facts.basis.fits(&view))
        {
            return Err(Reject::OutOfPlace);
        }
        let own = seat.session.digest();
        if seat.membership.is_splinter(&view) && !seat.session.has_bequeathed() {
            seat.membership.note_elsewhere(now, &from, view.digest());
        } else if !seat.membership.forks() || view.parents.first() == Some(&own) {
            if !seat.membership.on_install(view.clone(), out) {
                // Others have gone on for more than one view: this peer is not among them any more.
                self.exclude(now, &view, out);
            }
        } else if view.comes_from(own) {
            if seat.session.has_bequeathed() {
                // The others of this lineage may not have heard of it: whoever is left behind would go on alone.
                seat.session.tell_all(&Message::Install(view.clone()), out);
            }
            self.exclude(now, &view, out);
        } else if !seat.session.view().comes_from(view.digest()) {
            seat.membership.note_elsewhere(now, &from, view.digest());
        }
        Ok(())
    }
}

/// How often lineages that have met are told where this one is, and what is left to do is looked after.
const TELL_EVERY: Duration = Duration::from_millis(500);
/// An answer that took longer is none.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Other views about which this one has decided.
const DECIDED_MAX: usize = 16;
