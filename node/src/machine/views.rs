//! Views, as the machine sees them: from the first one on, into the next one, and out.

use std::collections::BTreeSet;
use std::sync::Arc;

use peergrad_protocol::agreement::Acceptor;
use peergrad_protocol::durable::Record;
use peergrad_protocol::message::{Contact, Message, Refusal};
use peergrad_protocol::view::{Member, Recovery, View};
use peergrad_protocol::{Instant, PeerId, RunId, ViewDigest};

use super::{Healing, Machine, Progress, Seat, Stage};
use crate::checkpoint::Timetable;
use crate::geometry::Cut;
use crate::io::{Answer, Event, Failure, Output, PersistId, Reject};
use crate::jobs::{Jobs, Purpose};
use crate::joining::{Entry, Joining};
use crate::loader::Loaded;
use crate::membership::{Facts, Membership, Wish};
use crate::session::{Ingredients, Session};

impl Seat {
    /// Asks membership something that depends on where training is.
    pub(super) fn with_facts<T>(
        &mut self,
        jobs: &Jobs,
        ask: impl FnOnce(&mut Membership, &Facts<'_>) -> T,
    ) -> T {
        let session = &self.session;
        let report = || session.report();
        let mut facts = session.facts(&report, jobs.computing());
        let will = self.healing.will_of_all(&session.view().members);
        facts.will = will.filter(|will| !session.has_merged(will.view));
        ask(&mut self.membership, &facts)
    }

    /// Whether this member can leave its view for the one that is chosen, which begins as `view` says.
    fn can_enter(&self, view: &View) -> bool {
        let Recovery::Resume(resume) = &view.recovery else { return false };
        let is_between_steps = !resume.is_interruption() && !self.session.is_over();
        !is_between_steps
            || self.session.has_stopped_before(resume.step)
            || self.session.step() > resume.step
            || self.membership.is_troubled()
    }
}

impl Machine {
    /// Looks after membership, outside of its usual times.
    pub(super) fn look(&mut self, now: Instant, out: &mut Vec<Output>) {
        if let Stage::Member(seat) = &mut self.stage
            && seat.progress == Progress::Training
        {
            let wishes = seat.with_facts(&self.jobs, |membership, facts| membership.look(now, facts, out));
            self.grant(wishes, out);
        }
    }

    /// Does what membership wants of training.
    pub(super) fn grant(&mut self, wishes: Vec<Wish>, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &mut self.stage else { return };
        for wish in wishes {
            match wish {
                Wish::Freeze => seat.session.freeze(),
                Wish::StopBefore(step) => seat.session.stop_before(step, out),
                // What is due is looked after at the end of every input.
                Wish::Look => {}
            }
        }
    }

    /// A record is on disk, or it could not be written.
    pub(super) fn persisted(
        &mut self,
        now: Instant,
        id: PersistId,
        result: Result<(), String>,
        out: &mut Vec<Output>,
    ) {
        if let Err(reason) = result {
            return self.end(Err(Failure::DiskFailed(reason)), out);
        }
        match &mut self.stage {
            Stage::Member(seat) => {
                let wishes = seat.membership.persisted(id, out);
                self.grant(wishes, out);
            }
            Stage::Joining(joining) => {
                if let Some(entry) = joining.persisted(id, out) {
                    self.become_member(now, entry, out);
                }
            }
            Stage::Founding(founding) => {
                if let Some((view, digest)) = founding.persisted(id) {
                    let checkpoint = founding.checkpoint();
                    self.become_member(now, Entry { view, digest, checkpoint }, out);
                }
            }
            Stage::Ended => {}
        }
    }

    /// Whatever became possible: the first view, the next view, the end of the run.
    pub(super) fn advance(&mut self, now: Instant, out: &mut Vec<Output>) {
        if let Some(view) = self.first_view() {
            let record = self.record(&view, view.digest(), out);
            if let Stage::Founding(founding) = &mut self.stage {
                founding.recording(record, view);
            }
        }
        self.enter_next(now, out);
        self.weigh(out);
        let Stage::Member(seat) = &mut self.stage else { return };
        let is_alone = seat.session.view().members.len() == 1 || seat.membership.is_paused();
        if self.is_leaving && is_alone && seat.progress == Progress::Training {
            // There is nobody left to hand over to.
            return self.end(Err(Failure::Left), out);
        }
        if self.jobs.computing().is_some() {
            seat.session.close_without_program(out);
        }
        if seat.progress == Progress::Training && seat.session.is_closed() {
            seat.progress = Progress::Evaluating;
            seat.session.commit_last(out);
            let closed = seat.session.closed();
            let (task, parameters) =
                (Arc::clone(&seat.session.loaded().task), seat.session.parameters().cloned());
            // Whoever hears it is closed too, and tells its own.
            let others = if seat.session.is_closer() {
                seat.session.view().members.iter().map(|member| member.peer).collect()
            } else {
                seat.membership.partners()
            };
            let waiting = seat.membership.waiting();
            for peer in others.into_iter().filter(|peer| self.credits.contains_key(peer)) {
                self.send(peer, &closed, None, out);
            }
            for peer in waiting.into_iter().filter(|peer| self.credits.contains_key(peer)) {
                self.send(peer, &Message::Refuse(Refusal::Over), None, out);
            }
            let Some(parameters) = parameters else { return };
            let cost = u64::from(task.held_out_count());
            let work = Box::new(move || Box::new(task.evaluate(&parameters)) as Answer);
            self.jobs.start(Purpose::Evaluate, cost, work, out);
        }
    }

    /// A founder's first view, once it can begin.
    fn first_view(&self) -> Option<View> {
        let Stage::Founding(founding) = &self.stage else { return None };
        let loaded = self.preparation.as_ref().and_then(|preparation| preparation.ready());
        let cut = loaded.map(Cut::of).filter(|cut| cut.has_state);
        founding.view(cut.map_or(0, |cut| cut.chunks.count()))
    }

    /// Has a view written down in which this peer is to be.
    fn record(&mut self, view: &View, digest: ViewDigest, out: &mut Vec<Output>) -> PersistId {
        let id = PersistId(self.persisted_count);
        self.persisted_count += 1;
        let view = self.memo.view_bytes(view, digest);
        let record = Record::new(view, self.me.incarnation, &Acceptor::default(), self.charter());
        out.push(Output::Persist { id, record });
        id
    }

    // In.

    /// This peer is in a view, it is told: that is written down first.
    pub(super) fn install(&mut self, view: View, out: &mut Vec<Output>) -> Result<(), Reject> {
        let loaded = self.preparation.as_ref().and_then(|preparation| preparation.ready());
        let fits = |loaded: &Loaded| {
            view.fits(u64::from(loaded.task.sample_count()), Cut::of(loaded).chunks.count())
        };
        if !loaded.is_some_and(fits) {
            return Err(Reject::OutOfPlace);
        }
        if let Stage::Joining(joining) = &mut self.stage
            && let Some(saved) = joining.restore(&view)
        {
            out.push(Output::Restore(saved));
            return Ok(());
        }
        let record = self.record(&view, view.digest(), out);
        if let Stage::Joining(joining) = &mut self.stage {
            joining.recording(record, view);
        }
        Ok(())
    }

    /// The view is on disk: this peer is a member from now on.
    fn become_member(&mut self, now: Instant, entry: Entry, out: &mut Vec<Output>) {
        let Entry { view, digest, checkpoint } = entry;
        let view = &view;
        let preparation = self.preparation.as_ref().expect("a peer is in a view once it is prepared");
        let loaded = preparation.ready().expect("a peer is in a view once it is prepared").clone();
        let ingredients = Ingredients {
            me: self.me.clone(),
            specification: Arc::clone(preparation.specification()),
            loaded,
            segments: self.segments.clone(),
            memo: self.memo.clone(),
            checkpoint,
        };
        let timetable = Timetable::new(now, ingredients.loaded.training.checkpoint_every);
        let charter = self.charter();
        self.install_first(view, out);
        let mut session = Session::begin_in(view, digest, ingredients, &mut self.credits, out);
        let linked = self.credits.keys().copied().collect();
        let (me, count, memo) = (self.me.clone(), self.persisted_count, self.memo.clone());
        let policy = session.loaded().training.policy;
        let mut membership =
            Membership::new(now, me, Arc::clone(view), digest, linked, count, (memo, charter, policy));
        self.relayed.iter().for_each(|peer| membership.set_relayed(now, *peer, true));
        membership.offer(self.me.weight);
        out.push(Output::Event(session.installed(None)));
        out.extend(session.restored().map(Output::Event));
        if view.parents.is_empty()
            && let Some(checkpoint) = session.checkpoint().filter(|_| session.restored().is_some())
        {
            // A run of its own: the one that it goes on from is another one's, which nobody looks for.
            let keep = session.loaded().training.checkpoints_kept;
            out.push(Output::Save { checkpoint: Arc::new(checkpoint), keep });
        }
        if let Some(reply) = self.parked.take() {
            session.ready(reply, out);
        }
        let progress = Progress::Training;
        let healing = Healing::default();
        self.stage = Stage::Member(Box::new(Seat { session, membership, progress, timetable, healing }));
        let others = view.members.iter().map(|member| member.peer).filter(|peer| *peer != self.me.peer);
        dial(view, others, out);
        self.take_early(now, out);
    }

    /// A founder tells those who are in the first view.
    fn install_first(&mut self, view: &Arc<View>, out: &mut Vec<Output>) {
        let Stage::Founding(founding) = &self.stage else { return };
        let install = Message::Install(View::clone(view));
        for member in view.members.iter().filter(|member| member.peer != self.me.peer) {
            self.send(member.peer, &install, None, out);
        }
        for late in founding.candidates().filter(|peer| view.rank(peer).is_none()) {
            // It asks again, and finds members.
            self.send(late, &Message::Refuse(Refusal::NotYet), None, out);
        }
    }

    // On, or out.

    /// Enters the next view once it is chosen and training has got there.
    fn enter_next(&mut self, now: Instant, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &mut self.stage else { return };
        let Some((view, digest)) = seat.membership.next() else { return };
        let (view, digest) = (Arc::clone(view), digest);
        if !seat.can_enter(&view) {
            if seat.session.is_still() && !seat.session.is_unbegun() {
                seat.session.thaw(out);
            }
            if let Recovery::Resume(resume) = &view.recovery {
                seat.session.stop_before(resume.step, out);
            }
            if !seat.can_enter(&view) {
                return;
            }
        }
        let me = seat.membership.me();
        let is_in = view.rank(&me.peer).is_some_and(|rank| view.member(rank).incarnation == me.incarnation);
        if !is_in {
            return self.exclude(now, &view, out);
        }
        let guests = seat.membership.guests_in(&view);
        let known = &seat.session.view().expelled;
        let expelled = view.expelled.iter().filter(|expulsion| !known.contains(expulsion));
        out.extend(expelled.map(|expulsion| Output::Event(Event::Expelled(*expulsion))));
        let entered_at = out.len();
        seat.session.enter(&view, digest, &mut self.credits, out);
        let difference = seat.membership.advance(now).expect("the next view is known");
        seat.healing.enter(now);
        // What is committed by entering it is committed in this view, and perhaps not in another one after the same.
        out.insert(entered_at, Output::Event(seat.session.installed(Some(&difference))));
        // Who has come since does not know of it.
        let due = seat.session.save_is_due();
        if due.is_some_and(|steps| steps > seat.session.step()) {
            seat.tell_when_to_save(due, out);
        }
        let joined = difference.joined.iter().filter(|peer| **peer != self.me.peer);
        let wanted: BTreeSet<PeerId> = joined.chain(seat.membership.unlinked()).copied().collect();
        let install = || Message::Install(View::clone(&view));
        for guest in guests {
            self.send(guest, &install(), None, out);
        }
        if let Stage::Member(seat) = &self.stage {
            // After they have been told that they are in.
            seat.membership.tell_secret(&difference.joined, out);
        }
        self.tell_waiting(out);
        for gone in difference.left.iter().copied().filter(|peer| view.rank(peer).is_none()) {
            // One that is still there hears of it, and asks to come in again.
            if self.credits.contains_key(&gone) {
                self.send(gone, &install(), None, out);
            } else {
                out.push(Output::Hangup(gone));
            }
        }
        dial(&view, wanted.into_iter(), out);
        self.take_early(now, out);
    }

    /// Those who wait to be let in hear who the members are now: all that they knew of may be gone when their turn comes.
    fn tell_waiting(&mut self, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &self.stage else { return };
        let guests = seat.membership.guests();
        if guests.is_empty() {
            return;
        }
        let welcome = self.words_of_welcome();
        for guest in guests {
            self.send(guest, &welcome, None, out);
        }
    }

    /// The others go on without this peer.
    pub(super) fn exclude(&mut self, now: Instant, view: &View, out: &mut Vec<Output>) {
        if !matches!(self.stage, Stage::Member(_)) {
            return;
        }
        if let Some(expulsion) = view.expulsion(&self.me.peer).copied() {
            let by = expulsion.by;
            let refusal = Refusal::Expelled(expulsion);
            return self.end(Err(Failure::Refused { by, refusal }), out);
        }
        if self.is_leaving {
            // Perhaps it was lost before its turn came, and something with it.
            let is_whole = view.moves.restarted.is_empty();
            if let (Stage::Member(seat), true) = (&self.stage, is_whole) {
                let chunks = seat.session.handed_over();
                out.push(Output::Event(Event::HandedOver { chunks, members: view.members.len() }));
            }
            return self.end(Err(Failure::Left), out);
        }
        // They come from this view by another way than over a loss, and what was here has been left to them.
        let event = match &self.stage {
            Stage::Member(seat)
                if seat.session.has_bequeathed() && view.has_merged(seat.session.digest()) =>
            {
                Event::GaveWay { is_merged: true, steps_since: seat.session.steps_since_bequest() }
            }
            _ => Event::Excluded { epoch: view.epoch },
        };
        out.push(Output::Event(event));
        self.ask_again(now, view.run, view.members.iter().map(Member::contact).collect(), out);
    }

    /// This peer is in no view any more, and asks to be let in, members that it knows of first.
    pub(super) fn ask_again(
        &mut self,
        now: Instant,
        run: RunId,
        contacts: Vec<Contact>,
        out: &mut Vec<Output>,
    ) {
        self.me.incarnation = self.me.incarnation.again();
        let mut joining = Joining::again(run, contacts, self.me.clone());
        self.relayed.iter().for_each(|peer| joining.set_relayed(*peer, true));
        let Stage::Member(seat) = std::mem::replace(&mut self.stage, Stage::Joining(Box::new(joining)))
        else {
            return;
        };
        self.persisted_count = seat.membership.persisted_count();
        self.state_before = seat.session.state().or(self.state_before.take());
        self.parked = seat.session.leave(&mut self.credits, out);
        for peer in self.early.keys().copied().collect::<Vec<_>>() {
            self.forget_held(peer, None, out);
        }
        if let Stage::Joining(joining) = &mut self.stage {
            joining.ask_all(now, self.credits.keys().copied(), out);
        }
    }
}

/// Members that are to be linked.
fn dial(view: &View, peers: impl Iterator<Item = PeerId>, out: &mut Vec<Output>) {
    for member in peers.filter_map(|peer| view.rank(&peer)).map(|rank| view.member(rank)) {
        out.push(Output::Dial(member.contact()));
    }
}
