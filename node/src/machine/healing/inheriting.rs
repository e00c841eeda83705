//! Inheriting: another lineage ends in this one, which merges what that leaves.

use std::collections::BTreeMap;
use std::time::Duration;

use peergrad_protocol::message::{Contact, Inherited, Meeting, Message, Will, Yield};
use peergrad_protocol::view::{Member, fork};
use peergrad_protocol::{Instant, PeerId};

use super::Affair;
use crate::io::{Answer, Event, Output, Reject};
use crate::jobs::Purpose;
use crate::machine::{Machine, Stage};
use crate::session::Left;

/// Another lineage ends in this one.
pub(super) struct Inheriting {
    pub(super) will: Will,
    /// In the present view: how many chunks members lack something of.
    pub(super) heirs: BTreeMap<PeerId, u32>,
    /// When that was less than ever before, and how much.
    advanced_at: Instant,
    best: Lacking,
    /// When all members were told of the will last.
    told_at: Option<Instant>,
}

/// Members that have not said what they lack, and chunks that the others do.
type Lacking = (usize, u64);

impl Inheriting {
    pub(super) fn new(now: Instant, will: Will) -> Self {
        let (heirs, best) = (BTreeMap::new(), (usize::MAX, 0));
        Self { will, heirs, advanced_at: now, best, told_at: None }
    }

    pub(super) fn left(&self) -> Left {
        (self.will.view, self.will.steps)
    }

    fn note_lacking(&mut self, now: Instant, members: &[Member]) -> Lacking {
        let silent = members.iter().filter(|member| !self.heirs.contains_key(&member.peer)).count();
        let lacking = (silent, self.heirs.values().map(|missing| u64::from(*missing)).sum());
        if lacking < self.best {
            (self.best, self.advanced_at) = (lacking, now);
        }
        lacking
    }
}

impl Machine {
    /// The convener is another member than before: it goes on with what it knows of that.
    pub(super) fn inherit_from_predecessor(&mut self, now: Instant) {
        let Stage::Member(seat) = &mut self.stage else { return };
        if !seat.healing.is_idle() {
            return;
        }
        let will = seat.session.inheriting().map(|(will, _)| will.clone());
        if let Some(will) = will.filter(|will| !seat.session.has_merged(will.view)) {
            seat.healing.affair = Affair::Inheriting(Inheriting::new(now, will));
        }
    }

    /// Has members inherit; gives up what does not come.
    pub(super) fn inherit_on(&mut self, now: Instant, out: &mut Vec<Output>) {
        let pinned = if let Stage::Member(seat) = &self.stage { seat.pinned() } else { None };
        let Stage::Member(seat) = &mut self.stage else { return };
        let Affair::Inheriting(inheriting) = &mut seat.healing.affair else { return };
        if seat.session.has_merged(inheriting.will.view) {
            seat.healing.affair = Affair::Idle;
            return;
        }
        let members = &seat.session.view().members;
        let lacking = inheriting.note_lacking(now, members);
        let patience = 2 * seat.membership.patience_with_others();
        let is_hopeless = lacking != (0, 0) && now.since(inheriting.advanced_at) > patience;
        if is_hopeless && pinned != Some(inheriting.left()) {
            // What this lineage has is kept as it is.
            let left = inheriting.left();
            seat.healing.refused = Some(left);
            seat.healing.affair = Affair::Idle;
            seat.session.disinherit(left);
            out.push(Output::Event(Event::NotMerged));
            return;
        }
        let is_due = inheriting.told_at.is_none_or(|told| now.since(told) > REMIND_EVERY);
        if is_due {
            inheriting.told_at = Some(now);
        }
        let message = Message::Will(inheriting.will.clone());
        let others = members.iter().map(|member| member.peer).filter(|peer| *peer != self.me.peer);
        let heirs = &inheriting.heirs;
        let to: Vec<PeerId> = others.filter(|peer| is_due || !heirs.contains_key(peer)).collect();
        let will = inheriting.will.clone();
        seat.session.inherit(now, will, pinned);
        to.into_iter().for_each(|peer| self.send(peer, &message, None, out));
    }

    /// Gets what is left to this lineage; the convener hears how much of it is not here.
    pub(super) fn fetch(&mut self, now: Instant, convener: &Contact, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &mut self.stage else { return };
        let (credits, relayed) = (&self.credits, &self.relayed);
        let is_linked = |peer: &PeerId| credits.contains_key(peer) && !relayed.contains(peer);
        seat.session.fetch(now, is_linked, out);
        let Some((will, missing)) = seat.session.inheriting() else { return };
        let (heirs, missing) = (seat.session.digest(), u32::try_from(missing).unwrap_or(u32::MAX));
        let inherited = Inherited { heirs, view: will.view, steps: will.steps, missing };
        if convener.peer == self.me.peer {
            self.has_inherited(self.me.peer, inherited);
        } else {
            self.send(convener.peer, &Message::Inherited(inherited), None, out);
        }
    }

    /// Some of it has come: the next is asked for, and who waits for the last of it hears of that.
    pub(in crate::machine) fn fetch_on(&mut self, now: Instant, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &self.stage else { return };
        if let Some(convener) = seat.membership.convener_contact(now) {
            self.fetch(now, &convener, out);
        }
    }

    /// What another lineage leaves to this one.
    pub(in crate::machine) fn willed(
        &mut self,
        now: Instant,
        from: PeerId,
        will: Will,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let Stage::Member(seat) = &mut self.stage else { return Ok(()) };
        let can_be = seat.with_facts(&self.jobs, |_, facts| facts.basis.can_merge(&will));
        if !seat.membership.forks() || !can_be || will.convener().is_none() {
            return Err(Reject::OutOfPlace);
        }
        let Some(own) = seat.meeting(now).filter(|_| seat.can_heal()) else { return Ok(()) };
        if own.convener.peer == self.me.peer {
            self.willed_to_convener(now, will, own, out);
        } else if seat.membership.is_member(&from) {
            let pinned = seat.pinned();
            seat.session.inherit(now, will, pinned);
            self.fetch(now, &own.convener, out);
        } else {
            self.send(own.convener.peer, &Message::Will(will), None, out);
        }
        Ok(())
    }

    fn willed_to_convener(&mut self, now: Instant, will: Will, own: Meeting, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &mut self.stage else { return };
        let (left, question) = ((will.view, will.steps), will.question);
        let Some(to) = will.convener().cloned() else { return };
        let is_merged = seat.session.has_merged(will.view)
            || fork(&own.history(), &will.history()).is_some_and(|common| common >= will.trained);
        if is_merged || seat.healing.refused == Some(left) {
            let contacts = seat.membership.contacts();
            let words = Yield { view: will.view, question, is_merged, contacts };
            return self.send_or_dial(&to, &Message::Yield(words), out);
        }
        seat.drop_superseded(&will.roots);
        seat.healing.let_yield(own.view, will.view, &will.roots);
        match &mut seat.healing.affair {
            Affair::Inheriting(inheriting) if inheriting.left() == left => inheriting.will = will,
            Affair::Idle => seat.healing.affair = Affair::Inheriting(Inheriting::new(now, will)),
            // One after the other.
            Affair::Inheriting(_) | Affair::Yielding(_) => return,
        }
        let seen_to = Meeting { yields: Some(left.0), answers: question, ..own.clone() };
        self.send_or_dial(&to, &Message::Meet(seen_to), out);
        self.inherit_on(now, out);
        self.fetch(now, &own.convener, out);
    }

    /// A member says how far it is with what another lineage has left.
    pub(in crate::machine) fn has_inherited(&mut self, from: PeerId, inherited: Inherited) {
        let Stage::Member(seat) = &mut self.stage else { return };
        let is_member = seat.membership.is_member(&from) && inherited.heirs == seat.session.digest();
        if let Affair::Inheriting(inheriting) = &mut seat.healing.affair
            && is_member
            && inheriting.left() == (inherited.view, inherited.steps)
        {
            inheriting.heirs.insert(from, inherited.missing);
        }
    }

    /// What two lineages have come to has been blended: how well each does, and both together.
    pub(in crate::machine) fn weigh(&mut self, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &mut self.stage else { return };
        if let Some((weighing, task)) = seat.session.take_weighing() {
            let cost = 3 * u64::from(task.held_out_count());
            let work = Box::new(move || Box::new(weighing.weigh(&*task)) as Answer);
            self.jobs.start(Purpose::Weigh, cost, work, out);
        }
    }
}

/// How often all members hear of a will again.
const REMIND_EVERY: Duration = Duration::from_secs(15);
