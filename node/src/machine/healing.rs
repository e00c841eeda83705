//! Healing, as the machine sees it: lineages that meet again become one.
//!
//! # How it works
//! 1. Members tell those whom they have lost, as soon as these can be reached again, where their lineage is. Of the two, the one
//!    whose view has the smaller digest decides, and in it the convener alone, once for those two views: so both never wait for
//!    each other, and never both yield. The one with more steps leads.
//! 2. The convener of the one that yields hears of it. Where both are merged it names a step, and says what was kept after it;
//!    the convener of the one that leads tells that to its members, and once all have their part of it, they agree on a view
//!    that merges it. Where one is kept, or the other has trained nothing, it only asks whether it may come; an answer counts only
//!    if it comes at once, since the other may have yielded to a third meanwhile.
//! 3. Members of the lineage that yields hear that theirs is over, and ask to be let in as anybody does.
//!
//! Nobody stops for any of it. Whatever is lost on the way is said again; what comes to nothing is given up after a while, and
//! begins anew when both meet the next time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use peergrad_protocol::limits::CONTACTS_MAX;
use peergrad_protocol::message::{Contact, Inherited, Meeting, Message, Save, WantBequest, Will, Yield};
use peergrad_protocol::view::{Member, View, fork};
use peergrad_protocol::{Frame, Instant, PeerId, StepNumber, ViewDigest};

use super::{Machine, Progress, Seat, Stage};
use crate::io::{Answer, Event, Met, Output, Reject};
use crate::jobs::Purpose;

/// What goes on between this lineage and another one.
#[derive(Default)]
pub(super) struct Healing {
    told_at: Instant,
    /// At a convener that decides: by the other lineage's view, the one that yields.
    decided: BTreeMap<ViewDigest, ViewDigest>,
    /// At the convener of the lineage that yields.
    yielding: Option<Yielding>,
    /// At the convener of the one that leads.
    legacy: Option<Legacy>,
}

/// This lineage leaves what it has to another one.
struct Yielding {
    to: Contact,
    since: Instant,
    /// What it has is merged; otherwise it only waits for the other to say that its members may come.
    is_merged: bool,
    /// When that was asked: an answer to an old question may come of somebody who has yielded since.
    asked: VecDeque<Instant>,
}

/// What another lineage leaves to this one.
struct Legacy {
    will: Will,
    since: Instant,
    /// Members that have their part of it, in the present view.
    heirs: BTreeSet<PeerId>,
}

impl Healing {
    /// What is to be merged, if all `members` have their part of it.
    pub(super) fn will_of_all(&self, members: &[Member]) -> Option<&Will> {
        let legacy = self.legacy.as_ref()?;
        members.iter().all(|member| legacy.heirs.contains(&member.peer)).then_some(&legacy.will)
    }

    /// Another view begins: whatever is not merged by it is negotiated anew.
    pub(super) fn enter(&mut self, view: &View) {
        self.yielding = None;
        self.decided.clear();
        if let Some(legacy) = &mut self.legacy {
            legacy.heirs.clear();
        }
        self.legacy.take_if(|legacy| view.parents.contains(&legacy.will.view));
    }
}

impl Seat {
    /// Where this lineage is, for another one.
    fn meeting(&self, now: Instant) -> Option<Meeting> {
        let view = self.session.view();
        Some(Meeting {
            run: view.run,
            view: self.session.digest(),
            steps: self.session.committed(),
            trained: self.session.trained(),
            roots: view.roots.clone(),
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
}

impl Machine {
    /// Does what is due between this lineage and others.
    pub(super) fn heal(&mut self, now: Instant, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &mut self.stage else { return };
        if !seat.membership.forks() || !seat.can_heal() || now.since(seat.healing.told_at) < TELL_EVERY {
            return;
        }
        seat.healing.told_at = now;
        let patience = seat.membership.patience_with_others();
        seat.healing.yielding.take_if(|yielding| now.since(yielding.since) > patience);
        seat.session.forget_inheritance(now);
        let Some(meeting) = seat.meeting(now) else { return };
        for peer in seat.membership.find_estranged(out) {
            out.push(Output::Send { to: peer, frame: Frame::encode(&Message::Meet(meeting.clone()), None) });
        }
        self.offer_to_yield(now, &meeting, out);
        self.leave_will(out);
        self.pass_on_will(now, out);
        self.fetch(now, &meeting.convener, out);
    }

    /// At the convener of a lineage that yields, and leaves nothing: asks whether the other one has it.
    fn offer_to_yield(&mut self, now: Instant, own: &Meeting, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &mut self.stage else { return };
        let Some(yielding) = seat.healing.yielding.as_mut().filter(|yielding| !yielding.is_merged) else {
            return;
        };
        yielding.asked.push_back(now);
        yielding.asked.retain(|asked| now.since(*asked) < ANSWER_MAX);
        let to = yielding.to.clone();
        let offer = Meeting { yields: Some(own.view), question: now.0, ..own.clone() };
        self.send_or_dial(to, &Message::Meet(offer), out);
    }

    /// At the convener of a lineage that leaves something: says what is left to the other one.
    fn leave_will(&mut self, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &self.stage else { return };
        if let (Some(yielding), Some(will)) = (&seat.healing.yielding, seat.session.will()) {
            self.send_or_dial(yielding.to.clone(), &Message::Will(will), out);
        }
    }

    /// Tells somebody of another lineage, or has a way made there; what is to be said is said again.
    fn send_or_dial(&self, to: Contact, message: &Message, out: &mut Vec<Output>) {
        if self.credits.contains_key(&to.peer) {
            self.send(to.peer, message, None, out);
        } else {
            out.push(Output::Dial(to));
        }
    }

    /// At the convener of the one that leads: has members inherit; gives up what does not come.
    fn pass_on_will(&mut self, now: Instant, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &self.stage else { return };
        let Some(legacy) = &seat.healing.legacy else { return };
        let is_whole = seat.healing.will_of_all(&seat.session.view().members).is_some();
        if is_whole || now.since(legacy.since) <= seat.membership.patience_with_others() {
            let will = &legacy.will;
            for member in &seat.session.view().members {
                if !legacy.heirs.contains(&member.peer) && member.peer != self.me.peer {
                    self.send(member.peer, &Message::Will(will.clone()), None, out);
                }
            }
            return;
        }
        // Somebody cannot get its part: then what this lineage has is kept as it is.
        let contacts = seat.membership.contacts();
        let Stage::Member(seat) = &mut self.stage else { return };
        let Some(Legacy { will, .. }) = seat.healing.legacy.take() else { return };
        let words = Message::Yield(Yield { view: will.view, question: 0, contacts });
        let donors = will.donors.iter().map(|donor| donor.contact.peer);
        for donor in donors.filter(|peer| self.credits.contains_key(peer)) {
            self.send(donor, &words, None, out);
        }
        out.push(Output::Event(Event::NotMerged));
    }

    /// Gets what is left to this lineage; once all of it is here, the convener hears of it.
    fn fetch(&mut self, now: Instant, convener: &Contact, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &mut self.stage else { return };
        if seat.session.inherited_here().is_none() {
            let (credits, relayed) = (&self.credits, &self.relayed);
            let is_linked = |peer: &PeerId| credits.contains_key(peer) && !relayed.contains(peer);
            seat.session.fetch(now, is_linked, out);
        }
        let Some((view, steps)) = seat.session.inherited_here() else { return };
        if convener.peer == self.me.peer {
            if let Some(legacy) = seat.healing.legacy.as_mut().filter(|legacy| legacy.will.view == view) {
                legacy.heirs.insert(self.me.peer);
            }
        } else {
            let heirs = seat.session.digest();
            self.send(convener.peer, &Message::Inherited(Inherited { heirs, view, steps }), None, out);
        }
    }

    /// Some of it has come.
    pub(super) fn fetch_on(&mut self, now: Instant, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &self.stage else { return };
        if let Some(convener) = seat.membership.convener_contact(now) {
            self.fetch(now, &convener, out);
        }
    }

    // Meeting.

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
        let is_behind = meeting.roots.iter().any(|root| root.view == own.view);
        if meeting.view == own.view || is_behind {
            return Ok(());
        }
        seat.membership.note_elsewhere(now, &from);
        let is_mine = own.convener.peer == self.me.peer;
        match meeting.yields {
            Some(view) if view == own.view && is_mine => self.yield_to(now, meeting, &own, out),
            Some(view) if view == meeting.view && is_mine => self.take_over(from, &meeting, out),
            // Where a view has changed meanwhile, both begin anew.
            Some(view) if view != own.view => {}
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
        if !seat.membership.forks() || view.parents.first() == Some(&own) {
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
            seat.membership.note_elsewhere(now, &from);
        }
        Ok(())
    }

    /// Says which of the two yields: once, whatever either trains meanwhile, and by what it hears just now. What was sent during
    /// the cut arrives as well.
    fn decide(&mut self, now: Instant, other: Meeting, own: Meeting, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &mut self.stage else { return };
        let decided = &mut seat.healing.decided;
        if decided.len() >= DECIDED_MAX {
            decided.clear();
        }
        let to = other.convener.clone();
        let is_fresh = now.since(Instant(other.answers)) <= ANSWER_MAX;
        if !is_fresh && !decided.contains_key(&other.view) {
            return self.send_or_dial(to, &Message::Meet(Meeting { question: now.0, ..own }), out);
        }
        let is_ahead = (own.steps, other.view) > (other.steps, own.view);
        let yields = *decided.entry(other.view).or_insert(if is_ahead { other.view } else { own.view });
        if yields == own.view {
            return self.yield_to(now, Meeting { yields: Some(yields), ..other }, &own, out);
        }
        self.send_or_dial(to, &Message::Meet(Meeting { yields: Some(yields), ..own }), out);
    }

    /// This lineage is the one that yields.
    fn yield_to(&mut self, now: Instant, other: Meeting, own: &Meeting, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &mut self.stage else { return };
        if own.convener.peer != self.me.peer {
            return self.send(own.convener.peer, &Message::Meet(other), None, out);
        }
        if seat.healing.yielding.is_some() {
            return;
        }
        seat.healing.legacy = None;
        let common = fork(&own.history(), &other.history()).unwrap_or(0);
        let loaded = seat.session.loaded();
        let merges = loaded.training.merges(loaded.program.drifts());
        let is_kept = merges && own.trained > common;
        out.push(Output::Event(Event::Met(Met {
            leads: other.convener.peer,
            ours: own.trained.saturating_sub(common),
            theirs: other.trained.saturating_sub(common),
            is_merged: is_kept,
        })));
        if is_kept {
            let steps = StepNumber(seat.session.step().0 + seat.membership.steps_ahead());
            seat.session.bequeath_after(steps);
            seat.session.tell_all(&Message::Bequeath(Save { view: own.view, steps }), out);
        }
        let (to, asked) = (other.convener, VecDeque::new());
        seat.healing.yielding = Some(Yielding { to, since: now, is_merged: is_kept, asked });
        self.offer_to_yield(now, own, out);
    }

    /// Another lineage offers to yield to this one. Whoever says yes does not yield to it.
    fn take_over(&mut self, from: PeerId, other: &Meeting, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &mut self.stage else { return };
        let is_free = seat.healing.yielding.is_none();
        if is_free && *seat.healing.decided.entry(other.view).or_insert(other.view) == other.view {
            let (view, question, contacts) = (other.view, other.question, seat.membership.contacts());
            self.send(from, &Message::Yield(Yield { view, question, contacts }), None, out);
        }
    }

    /// This lineage is over: this peer asks to be let in by the other one.
    fn give_way(&mut self, now: Instant, contacts: Vec<Contact>, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &self.stage else { return };
        let (run, members) = (seat.session.view().run, seat.membership.contacts());
        let known = contacts.into_iter().chain(members).take(CONTACTS_MAX).collect();
        out.push(Output::Event(Event::GaveWay { is_merged: false }));
        self.ask_again(now, run, known, out);
    }

    // What members say about it.

    /// What another lineage leaves to this one.
    pub(super) fn willed(
        &mut self,
        now: Instant,
        from: PeerId,
        will: Will,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let Stage::Member(seat) = &mut self.stage else { return Ok(()) };
        if !seat.membership.forks() {
            return Err(Reject::OutOfPlace);
        }
        if seat.session.view().comes_from(will.view) {
            if !seat.membership.is_member(&from) {
                let install = Message::Install(View::clone(seat.session.view()));
                self.send(from, &install, None, out);
            }
            return Ok(());
        }
        let Some(convener) = seat.membership.convener_contact(now).filter(|_| seat.can_heal()) else {
            return Ok(());
        };
        if convener.peer == self.me.peer {
            let healing = &mut seat.healing;
            let is_other = |legacy: &Legacy| (legacy.will.view, legacy.will.steps) != (will.view, will.steps);
            if healing.yielding.is_some() || healing.legacy.as_ref().is_some_and(is_other) {
                return Ok(());
            }
            healing.legacy.get_or_insert_with(|| Legacy {
                will: will.clone(),
                since: now,
                heirs: BTreeSet::new(),
            });
        } else if !seat.membership.is_member(&from) {
            self.send(convener.peer, &Message::Will(will), None, out);
            return Ok(());
        }
        seat.session.inherit(now, will);
        self.fetch(now, &convener, out);
        Ok(())
    }

    /// A member has its part of what another lineage has left.
    pub(super) fn has_inherited(&mut self, from: PeerId, inherited: Inherited) {
        let Stage::Member(seat) = &mut self.stage else { return };
        let is_now = inherited.heirs == seat.session.digest();
        let is_it = |legacy: &&mut Legacy| {
            is_now && (legacy.will.view, legacy.will.steps) == (inherited.view, inherited.steps)
        };
        if let Some(legacy) = seat.healing.legacy.as_mut().filter(is_it) {
            legacy.heirs.insert(from);
        }
    }

    /// Somebody asks for chunks that were kept for it.
    pub(super) fn give_bequest(&self, from: PeerId, want: &WantBequest, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &self.stage else { return };
        if let Some(frame) = seat.session.give(want) {
            out.push(Output::Send { to: from, frame });
        }
    }

    /// Another lineage is the one that stays.
    pub(super) fn told_to_yield(&mut self, now: Instant, from: PeerId, words: Yield, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &self.stage else { return };
        let is_ours = words.view == seat.session.digest() && seat.membership.forks();
        if !is_ours || seat.progress != Progress::Training {
            return;
        }
        if !seat.membership.is_member(&from) {
            // Only who has asked just now believes a stranger.
            let Some(yielding) = &seat.healing.yielding else { return };
            let is_answer = yielding.asked.iter().any(|asked| asked.0 == words.question);
            let is_late = now.since(Instant(words.question)) > ANSWER_MAX;
            if !yielding.is_merged && (!is_answer || is_late) {
                return;
            }
            seat.session.tell_all(&Message::Yield(words.clone()), out);
        }
        self.give_way(now, words.contacts, out);
    }

    /// What two lineages have come to has been blended: how well each does, and both together.
    pub(super) fn weigh(&mut self, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &mut self.stage else { return };
        if let Some((weighing, task)) = seat.session.take_weighing() {
            let cost = 3 * u64::from(task.held_out_count());
            let work = Box::new(move || Box::new(weighing.weigh(&*task)) as Answer);
            self.jobs.start(Purpose::Weigh, cost, work, out);
        }
    }
}

/// How often lineages that have met are told where this one is, and what is left to do is looked after.
const TELL_EVERY: Duration = Duration::from_millis(500);
/// An answer that took longer is none.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Other views about which this one has decided.
const DECIDED_MAX: usize = 16;
