//! Views in the machine: entering the first one, changing to the next one, and leaving.

use std::collections::BTreeSet;
use std::sync::Arc;

use peergrad_protocol::agreement::Acceptor;
use peergrad_protocol::durable::DurableBytes;
use peergrad_protocol::limits::CONTACTS_MAX;
use peergrad_protocol::message::{AgreementMessage, Contact, JoinMessage, MergeAccept, Message, Refusal};
use peergrad_protocol::view::{Member, Recovery, View};
use peergrad_protocol::{Instant, PeerId, RunId};

use super::{ActiveMember, Machine, NodeRole, Progress};
use crate::io::{Event, Failure, JobOutput, Output, PersistId, Reject};
use crate::machine::jobs::{Jobs, Purpose};
use crate::membership::join::{Joiner, ViewEntry};
use crate::membership::journal::Effect;
use crate::membership::{Membership, TrainingCommand, TrainingSnapshot};
use crate::merge::{Branch, MergeNegotiation};
use crate::peer_links::PeerLinks;
use crate::program::loader::Loaded;
use crate::state::checkpoint::CheckpointSchedule;
use crate::state::shard_map::ShardingConfig;
use crate::training::{Training, TrainingInputs};

impl ActiveMember {
    /// Calls `ask` with the membership and a snapshot of training, on which the answer depends.
    pub(super) fn with_snapshot<T>(
        &mut self,
        jobs: &Jobs,
        ask: impl FnOnce(&mut Membership, &TrainingSnapshot<'_>) -> T,
    ) -> T {
        let training = &self.training;
        let report = || training.report();
        let mut snapshot = training.snapshot(&report, jobs.computing());
        let offer = self.negotiation.ready_offer(&training.view().members);
        snapshot.merge_offer = offer.filter(|offer| !training.has_merged(offer.view));
        ask(&mut self.membership, &snapshot)
    }

    /// The negotiation with other branches, and what it needs of this member's branch.
    pub(super) fn negotiation<'a>(
        &'a mut self,
        now: Instant,
        me: PeerId,
        links: &'a PeerLinks,
        out: &'a mut Vec<Output>,
    ) -> (&'a mut MergeNegotiation, Branch<'a>) {
        let Self { training, membership, negotiation, .. } = self;
        (negotiation, Branch { now, me, links, training, membership, out })
    }

    /// Whether this member can change from its present view to `view`, which has been chosen.
    fn can_enter(&self, view: &View) -> bool {
        let Recovery::Resume(resume) = &view.recovery else { return false };
        let is_between_steps = !resume.is_interruption() && !self.training.is_over();
        !is_between_steps
            || self.training.has_stopped_before(resume.step)
            || self.training.step() > resume.step
            || self.membership.is_troubled()
    }
}

impl Machine {
    /// Advances the membership now, and not only at its next deadline.
    pub(super) fn poll_membership(&mut self, now: Instant, out: &mut Vec<Output>) {
        if let NodeRole::Member(active) = &mut self.role
            && active.progress == Progress::Training
        {
            let commands =
                active.with_snapshot(&self.jobs, |membership, snapshot| membership.poll(now, snapshot, out));
            self.apply(commands, out);
        }
    }

    /// Carries out what the membership commands the training to do.
    pub(super) fn apply(&mut self, commands: Vec<TrainingCommand>, out: &mut Vec<Output>) {
        let NodeRole::Member(active) = &mut self.role else { return };
        for command in commands {
            match command {
                TrainingCommand::Freeze => active.training.freeze(),
                TrainingCommand::StopBefore(step) => active.training.stop_before(step, out),
                // Each input ends with a call of `advance` anyway.
                TrainingCommand::Advance => {}
            }
        }
    }

    /// A record is on disk, or could not be written.
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
        let effects = self.journal.persisted(id);
        match &mut self.role {
            NodeRole::Member(active) => {
                let commands = active.membership.persisted(effects, out);
                self.apply(commands, out);
            }
            NodeRole::Joiner(joiner) => {
                if let Some(entry) = joiner.persisted(effects, out) {
                    self.become_member(now, entry, out);
                }
            }
            NodeRole::Founder(founder) => {
                // A founder writes one record only, that of the first view.
                let checkpoint = founder.checkpoint();
                if let Some(Effect::EnterView(view, digest)) = effects.into_iter().next() {
                    self.become_member(now, ViewEntry { view, digest, checkpoint }, out);
                }
            }
            NodeRole::Ended => {}
        }
    }

    /// Does whatever has become possible: enter the first view or the next one, or end the run.
    pub(super) fn advance(&mut self, now: Instant, out: &mut Vec<Output>) {
        if let Some(view) = self.first_view() {
            if let NodeRole::Founder(founder) = &mut self.role {
                founder.recording();
            }
            self.record(view, out);
        }
        self.enter_next(now, out);
        let NodeRole::Member(active) = &mut self.role else { return };
        if let Some((comparison, task)) = active.training.take_comparison() {
            let cost = 3 * u64::from(task.held_out_count());
            let work = Box::new(move || Box::new(comparison.evaluate(&*task)) as JobOutput);
            self.jobs.start(Purpose::EvaluateMerge, cost, work, out);
        }
        let is_alone = active.training.view().members.len() == 1 || active.membership.is_paused();
        if self.is_leaving && is_alone && active.progress == Progress::Training {
            // No other member is there to take over the chunks.
            return self.end(Err(Failure::Left), out);
        }
        if self.jobs.computing().is_some() {
            active.training.close_without_program(out);
        }
        if active.progress == Progress::Training && active.training.is_closed() {
            active.progress = Progress::Evaluating;
            active.training.commit_last(out);
            let closed = active.training.closed();
            let (task, parameters) =
                (Arc::clone(&active.training.loaded().task), active.training.parameters().cloned());
            // A neighbor that receives it has finished as well, and tells its own neighbors.
            let others = if active.training.is_barrier_root() {
                active.training.view().members.iter().map(|member| member.peer).collect()
            } else {
                active.membership.neighbors()
            };
            let waiting = active.membership.waiting();
            for peer in others.into_iter().filter(|peer| self.links.is_linked(peer)) {
                self.send(peer, &closed, None, out);
            }
            for peer in waiting.into_iter().filter(|peer| self.links.is_linked(peer)) {
                self.send(peer, &JoinMessage::Refuse(Refusal::RunComplete).into(), None, out);
            }
            let Some(parameters) = parameters else { return };
            let cost = u64::from(task.held_out_count());
            let work = Box::new(move || Box::new(task.evaluate(&parameters)) as JobOutput);
            self.jobs.start(Purpose::Evaluate, cost, work, out);
        }
    }

    /// The founder's first view; `None` until the run can begin.
    fn first_view(&self) -> Option<View> {
        let NodeRole::Founder(founder) = &self.role else { return None };
        let loaded = self.preparation.as_ref().and_then(|preparation| preparation.ready());
        let sharding = loaded.map(ShardingConfig::of).filter(|sharding| sharding.has_state);
        founder.view(sharding.map_or(0, |sharding| sharding.chunks.count()))
    }

    /// Writes a view to disk. When that is done, this peer becomes a member of it.
    fn record(&mut self, view: View, out: &mut Vec<Output>) {
        let digest = view.digest();
        let bytes = self.cache.view_bytes(&view, digest);
        let record = DurableBytes::new(bytes, self.me.incarnation, &Acceptor::default(), self.definition());
        self.journal.persist_then(record, Effect::EnterView(Arc::new(view), digest), out);
    }

    // Entering.

    /// A member sends the view in which this peer is a member. The view is written to disk before it is entered.
    pub(super) fn install(&mut self, view: View, out: &mut Vec<Output>) -> Result<(), Reject> {
        let loaded = self.preparation.as_ref().and_then(|preparation| preparation.ready());
        let fits = |loaded: &Loaded| {
            view.fits(u64::from(loaded.task.sample_count()), ShardingConfig::of(loaded).chunks.count())
        };
        if !loaded.is_some_and(fits) {
            return Err(Reject::OutOfPlace);
        }
        if let NodeRole::Joiner(joiner) = &mut self.role
            && let Some(saved) = joiner.restore(&view)
        {
            out.push(Output::LoadCheckpoint(saved));
            return Ok(());
        }
        if let NodeRole::Joiner(joiner) = &mut self.role {
            joiner.recording();
        }
        self.record(view, out);
        Ok(())
    }

    /// The view is on disk: this peer becomes a member.
    fn become_member(&mut self, now: Instant, entry: ViewEntry, out: &mut Vec<Output>) {
        let ViewEntry { view, digest, checkpoint } = entry;
        let view = &view;
        let preparation = self.preparation.as_ref().expect("a peer is in a view once it is prepared");
        let loaded = preparation.ready().expect("a peer is in a view once it is prepared").clone();
        let ingredients = TrainingInputs {
            me: self.me.clone(),
            specification: Arc::clone(preparation.specification()),
            loaded,
            segments: self.segments.clone(),
            cache: self.cache.clone(),
            checkpoint,
        };
        let checkpoint_schedule = CheckpointSchedule::new(now, ingredients.loaded.config.checkpoint_every);
        let definition = self.definition();
        self.install_first(view, out);
        let mut training = Training::begin_in(view, digest, ingredients, &mut self.links.credits, out);
        let linked = self.links.linked().collect();
        let (me, cache) = (self.me.clone(), self.cache.clone());
        let policy = training.loaded().config.policy;
        let mut membership =
            Membership::new(now, me, Arc::clone(view), digest, linked, (cache, definition, policy));
        self.links.relayed().for_each(|peer| membership.set_relayed(now, peer, true));
        membership.offer_capacity(self.me.capacity);
        out.push(Output::Event(training.installed_event(None)));
        out.extend(training.restored_event().map(Output::Event));
        if view.parents.is_empty()
            && let Some(checkpoint) = training.checkpoint().filter(|_| training.restored_event().is_some())
        {
            // A new run that starts from another run's checkpoint has its first checkpoint under its own id.
            let keep = training.loaded().config.checkpoints_kept;
            out.push(Output::SaveCheckpoint { checkpoint: Arc::new(checkpoint), keep });
        }
        if let Some(reply) = self.parked.take() {
            training.ready(reply, out);
        }
        let progress = Progress::Training;
        let negotiation = MergeNegotiation::default();
        self.role = NodeRole::Member(Box::new(ActiveMember {
            training,
            membership,
            progress,
            checkpoint_schedule,
            negotiation,
        }));
        let others = view.members.iter().map(|member| member.peer).filter(|peer| *peer != self.me.peer);
        dial(view, others, out);
        self.replay_early(now, out);
    }

    /// The founder sends the first view to its members.
    fn install_first(&mut self, view: &Arc<View>, out: &mut Vec<Output>) {
        let NodeRole::Founder(founder) = &self.role else { return };
        let install = Message::Agreement(AgreementMessage::Install(View::clone(view)));
        for member in view.members.iter().filter(|member| member.peer != self.me.peer) {
            self.send(member.peer, &install, None, out);
        }
        for late in founder.candidates().filter(|peer| view.rank(peer).is_none()) {
            // The candidate asks again, and then finds members.
            self.send(late, &JoinMessage::Refuse(Refusal::NotReady).into(), None, out);
        }
    }

    // The next view, or none.

    /// Enters the next view, once it is chosen and training has reached the point where the view begins.
    fn enter_next(&mut self, now: Instant, out: &mut Vec<Output>) {
        let NodeRole::Member(active) = &mut self.role else { return };
        let Some((view, digest)) = active.membership.next() else { return };
        let (view, digest) = (Arc::clone(view), digest);
        if !active.can_enter(&view) {
            if active.training.is_suspended() && !active.training.is_behind_view() {
                active.training.thaw(out);
            }
            if let Recovery::Resume(resume) = &view.recovery {
                active.training.stop_before(resume.step, out);
            }
            if !active.can_enter(&view) {
                return;
            }
        }
        let me = active.membership.me();
        let is_in = view.rank(&me.peer).is_some_and(|rank| view.member(rank).incarnation == me.incarnation);
        if !is_in {
            return self.exclude(now, &view, out);
        }
        let sponsored = active.membership.sponsored_in(&view);
        let known = &active.training.view().expelled;
        let expelled = view.expelled.iter().filter(|expulsion| !known.contains(expulsion));
        out.extend(expelled.map(|expulsion| Output::Event(Event::Expelled(*expulsion))));
        let entered_at = out.len();
        active.training.enter(&view, digest, &mut self.links.credits, out);
        let difference = active.membership.advance(now).expect("the next view is known");
        active.negotiation.enter(now);
        // The step that entering completes is committed in this view: another view after the same one might not have committed it.
        out.insert(entered_at, Output::Event(active.training.installed_event(Some(&difference))));
        // New members do not know about the save.
        let due = active.training.save_is_due();
        if due.is_some_and(|steps| steps > active.training.step()) {
            active.announce_save(due, out);
        }
        let joined = difference.joined.iter().filter(|peer| **peer != self.me.peer);
        let wanted: BTreeSet<PeerId> = joined.chain(active.membership.unlinked()).copied().collect();
        let install = || Message::Agreement(AgreementMessage::Install(View::clone(&view)));
        for joiner in sponsored {
            self.send(joiner, &install(), None, out);
        }
        if let NodeRole::Member(active) = &self.role {
            // Joiners get the secret after the view in which they are members.
            active.membership.tell_secret(&difference.joined, out);
        }
        self.tell_waiting(out);
        for gone in difference.left.iter().copied().filter(|peer| view.rank(peer).is_none()) {
            // A removed peer that is still linked learns of its removal, and may ask to join again.
            if self.links.is_linked(&gone) {
                self.send(gone, &install(), None, out);
            } else {
                out.push(Output::Disconnect(gone));
            }
        }
        dial(&view, wanted.into_iter(), out);
        self.replay_early(now, out);
    }

    /// Tells the joiners that wait for admission who the members are now: all that they knew may be gone when they are admitted.
    fn tell_waiting(&mut self, out: &mut Vec<Output>) {
        let NodeRole::Member(active) = &self.role else { return };
        let sponsored = active.membership.sponsored();
        if sponsored.is_empty() {
            return;
        }
        let welcome = self.welcome_message();
        for joiner in sponsored {
            self.send(joiner, &welcome, None, out);
        }
    }

    /// The other members have gone on without this peer.
    pub(super) fn exclude(&mut self, now: Instant, view: &View, out: &mut Vec<Output>) {
        if !matches!(self.role, NodeRole::Member(_)) {
            return;
        }
        if let Some(expulsion) = view.expulsion(&self.me.peer).copied() {
            let by = expulsion.by;
            let refusal = Refusal::Expelled(expulsion);
            return self.end(Err(Failure::Refused { by, refusal }), out);
        }
        if self.is_leaving {
            // The peer may have been lost before its handover was complete; then some state was lost with it.
            let is_whole = view.moves.restarted.is_empty();
            if let (NodeRole::Member(active), true) = (&self.role, is_whole) {
                let chunks = active.training.handed_over();
                out.push(Output::Event(Event::HandedOver { chunks, members: view.members.len() }));
            }
            return self.end(Err(Failure::Left), out);
        }
        // The view comes from a merge rather than from a loss, and contains this branch's snapshot.
        let event = match &self.role {
            NodeRole::Member(active)
                if active.training.has_snapshot() && view.has_merged(active.training.digest()) =>
            {
                Event::BranchAbandoned {
                    is_merged: true,
                    steps_since: active.training.steps_since_snapshot(),
                }
            }
            _ => Event::Excluded { view_number: view.number },
        };
        out.push(Output::Event(event));
        self.ask_again(now, view.run, view.members.iter().map(Member::contact).collect(), out);
    }

    /// A member sends a view that this peer may enter next, or that no longer contains this peer.
    pub(super) fn on_install(
        &mut self,
        now: Instant,
        from: PeerId,
        view: View,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let NodeRole::Member(active) = &mut self.role else { return Ok(()) };
        if view.run != active.training.view().run
            || !active.with_snapshot(&self.jobs, |_, snapshot| snapshot.planner.fits(&view))
        {
            return Err(Reject::OutOfPlace);
        }
        let own = active.training.digest();
        if active.membership.is_minority_branch(&view) && !active.training.has_snapshot() {
            active.membership.note_in_other_view(now, &from, view.digest());
        } else if !active.membership.allows_forks() || view.parents.first() == Some(&own) {
            if !active.membership.on_install(view.clone(), &mut self.journal, out) {
                // The others are more than one view ahead: this peer is not a member any more.
                self.exclude(now, &view, out);
            }
        } else if view.descends_from(own) {
            if active.training.has_snapshot() {
                // Other members of this branch may not know that view yet, and would go on alone.
                active.training.broadcast(&AgreementMessage::Install(view.clone()).into(), out);
            }
            self.exclude(now, &view, out);
        } else if !active.training.view().descends_from(view.digest()) {
            active.membership.note_in_other_view(now, &from, view.digest());
        }
        Ok(())
    }

    /// This branch has ended: this peer asks the other branch to admit it.
    pub(super) fn abandon_branch(&mut self, now: Instant, accept: MergeAccept, out: &mut Vec<Output>) {
        if self.is_leaving {
            return self.end(Err(Failure::Left), out);
        }
        let NodeRole::Member(active) = &self.role else { return };
        let (run, members) = (active.training.view().run, active.membership.contacts());
        let known = accept.contacts.into_iter().chain(members).take(CONTACTS_MAX).collect();
        let steps_since = if accept.is_merged { active.training.steps_since_snapshot() } else { 0 };
        out.push(Output::Event(Event::BranchAbandoned { is_merged: accept.is_merged, steps_since }));
        self.ask_again(now, run, known, out);
    }

    /// This peer is in no view any more. It asks to join again, first the members that it knows.
    pub(super) fn ask_again(
        &mut self,
        now: Instant,
        run: RunId,
        contacts: Vec<Contact>,
        out: &mut Vec<Output>,
    ) {
        self.me.incarnation = self.me.incarnation.next();
        let mut joiner = Joiner::rejoining(run, contacts, self.me.clone());
        self.links.relayed().for_each(|peer| joiner.set_relayed(peer, true));
        let NodeRole::Member(active) = std::mem::replace(&mut self.role, NodeRole::Joiner(Box::new(joiner)))
        else {
            return;
        };
        self.journal.drop_effects();
        self.state_before = active.training.final_state().or(self.state_before.take());
        self.parked = active.training.leave(&mut self.links.credits, out);
        for peer in self.early.keys().copied().collect::<Vec<_>>() {
            self.drop_early(peer, None, out);
        }
        if let NodeRole::Joiner(joiner) = &mut self.role {
            joiner.ask_all(now, self.links.linked(), out);
        }
    }
}

/// Dials these members of a view.
fn dial(view: &View, peers: impl Iterator<Item = PeerId>, out: &mut Vec<Output>) {
    for member in peers.filter_map(|peer| view.rank(&peer)).map(|rank| view.member(rank)) {
        out.push(Output::Dial(member.contact()));
    }
}
