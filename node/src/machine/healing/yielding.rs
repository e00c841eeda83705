//! Yielding: this lineage ends in another one, which has merged what it leaves.

use std::time::Duration;

use peergrad_protocol::limits::CONTACTS_MAX;
use peergrad_protocol::message::{Contact, Meeting, Message, Save, WantBequest, Yield};
use peergrad_protocol::view::fork;
use peergrad_protocol::{Instant, PeerId, StepNumber, ViewDigest};

use super::Affair;
use crate::io::{Event, Failure, Met, Output};
use crate::machine::{Machine, Progress, Stage};

/// This lineage ends in another one.
pub(super) struct Yielding {
    /// A view of that one, and who spoke for it last.
    pub(super) view: ViewDigest,
    pub(super) to: Contact,
    /// When that one was heard of last, or this one was to do something.
    pub(super) heard_at: Instant,
    /// What is there after this step is to be merged; otherwise nothing is.
    pub(super) leaves: Option<StepNumber>,
    pub(super) willed_at: Option<Instant>,
}

impl Machine {
    /// This lineage is the one that yields.
    pub(super) fn yield_to(&mut self, now: Instant, other: Meeting, own: &Meeting, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &mut self.stage else { return };
        if let Affair::Yielding(yielding) = &mut seat.healing.affair {
            if seat.healing.asked.iter().any(|asked| asked.0 == other.answers) {
                // It is seen to, perhaps by another convener than before.
                (yielding.heard_at, yielding.view, yielding.to) = (now, other.view, other.convener);
            }
            return;
        }
        seat.drop_superseded(&other.roots);
        if !seat.healing.is_idle() {
            return;
        }
        let common = fork(&own.history(), &other.history()).unwrap_or(0);
        let loaded = seat.session.loaded();
        let is_merged = loaded.training.merges(loaded.program.drifts()) && own.trained > common;
        out.push(Output::Event(Event::Met(Met {
            leads: other.convener.peer,
            ours: own.trained.saturating_sub(common),
            theirs: other.trained.saturating_sub(common),
            is_merged,
        })));
        let leaves = is_merged.then(|| StepNumber(seat.session.step().0 + seat.membership.steps_ahead()));
        let (view, to, heard_at) = (other.view, other.convener, now);
        seat.healing.affair = Affair::Yielding(Yielding { view, to, heard_at, leaves, willed_at: None });
        self.yield_on(now, own, out);
    }

    /// Has kept what is left, says what that is, or asks whether members may come; unless the other one is not heard of any more.
    pub(super) fn yield_on(&mut self, now: Instant, own: &Meeting, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &mut self.stage else { return };
        let Affair::Yielding(yielding) = &mut seat.healing.affair else { return };
        if now.since(yielding.heard_at) > seat.membership.patience_with_others() {
            seat.healing.affair = Affair::Idle;
            return;
        }
        let to = yielding.to.clone();
        let Some(steps) = yielding.leaves else {
            let question = seat.healing.ask(now);
            let offer = Meeting { yields: Some(own.view), question, ..own.clone() };
            return self.send_or_dial(&to, &Message::Meet(offer), out);
        };
        // Who has kept it keeps it for a while longer.
        seat.session.bequeath_after(steps);
        seat.session.tell_all(&Message::Bequeath(Save { view: own.view, steps }), out);
        if seat.session.committed() < steps {
            return;
        }
        if yielding.willed_at.is_none() {
            yielding.heard_at = now;
        }
        if yielding.willed_at.is_some_and(|willed| now.since(willed) < WILL_EVERY) {
            return;
        }
        yielding.willed_at = Some(now);
        let question = seat.healing.ask(now);
        match seat.session.will(question) {
            Some(will) => self.send_or_dial(&to, &Message::Will(will), out),
            // It was not kept in time: another step is named at the next meeting.
            None => seat.healing.affair = Affair::Idle,
        }
    }

    /// Another lineage is the one that stays.
    pub(in crate::machine) fn told_to_yield(
        &mut self,
        now: Instant,
        from: PeerId,
        words: Yield,
        out: &mut Vec<Output>,
    ) {
        let Stage::Member(seat) = &self.stage else { return };
        let is_ours = words.view == seat.session.digest() && seat.membership.forks();
        if !is_ours || seat.progress != Progress::Training {
            return;
        }
        if !seat.membership.is_member(&from) {
            let is_asked = matches!(seat.healing.affair, Affair::Yielding(_));
            if !is_asked || !seat.healing.is_answer(now, words.question) {
                return;
            }
            seat.session.tell_all(&Message::Yield(words.clone()), out);
        }
        self.give_way(now, words, out);
    }

    /// This lineage is over: this peer asks to be let in by the other one.
    fn give_way(&mut self, now: Instant, words: Yield, out: &mut Vec<Output>) {
        if self.is_leaving {
            return self.end(Err(Failure::Left), out);
        }
        let Stage::Member(seat) = &self.stage else { return };
        let (run, members) = (seat.session.view().run, seat.membership.contacts());
        let known = words.contacts.into_iter().chain(members).take(CONTACTS_MAX).collect();
        let steps_since = if words.is_merged { seat.session.steps_since_bequest() } else { 0 };
        out.push(Output::Event(Event::GaveWay { is_merged: words.is_merged, steps_since }));
        self.ask_again(now, run, known, out);
    }

    /// Somebody asks for chunks that were kept for it.
    pub(in crate::machine) fn give_bequest(
        &mut self,
        now: Instant,
        from: PeerId,
        want: &WantBequest,
        out: &mut Vec<Output>,
    ) {
        let Stage::Member(seat) = &mut self.stage else { return };
        if let Affair::Yielding(yielding) = &mut seat.healing.affair
            && (want.view, Some(want.steps)) == (seat.session.digest(), yielding.leaves)
        {
            // It is seen to, however long it takes.
            yielding.heard_at = now;
        }
        let frames = seat.session.give(want).into_iter();
        out.extend(frames.map(|frame| Output::Send { to: from, frame }));
    }
}

/// How often a will is said again to the other lineage: it is long, where members are many.
const WILL_EVERY: Duration = Duration::from_secs(2);
