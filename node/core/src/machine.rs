//! The machine: routes inputs and commands to the part that owns the state they concern. No algorithm lives here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use peergrad_models::task::Evaluation;
use peergrad_protocol::durable::DurableRecord;
use peergrad_protocol::limits::REJECTS_MAX;
use peergrad_protocol::message::{Departure, Message, Refusal};
use peergrad_protocol::view::{ExpulsionCause, Member};
use peergrad_protocol::{Buffer, Frame, Instant, PeerId, Pool, RunId, ViewDigest};

use crate::config::{Config, StartMode};
use crate::io::{Ended, Event, Failure, FinalState, Input, JobId, JobOutput, Output, Panicked, Reject};
use crate::machine::jobs::{Jobs, Purpose};
use crate::machine::preparation::{LoadRequest, Preparation};
use crate::membership::Membership;
use crate::membership::bootstrap::Founder;
use crate::membership::join::Joiner;
use crate::membership::journal::Journal;
use crate::membership::recovery::RecoveringMember;
use crate::merge::MergeNegotiation;
use crate::peer_links::{PeerLinks, Route};
use crate::program::command::Reply;
use crate::program::loader::{Loaded, Loader};
use crate::state::checkpoint::CheckpointSchedule;
use crate::state::shared_cache::SharedCache;
use crate::training::Training;

mod admin;
mod checkpoints;
mod commands;
mod founder;
mod frames;
mod inspect;
pub(crate) mod jobs;
mod joiner;
mod member;
pub(crate) mod preparation;
mod views;

/// All state of a node except its program.
pub(crate) struct Machine {
    /// This peer, in its present incarnation.
    me: Member,
    loader: Arc<dyn Loader>,
    segments: Pool,
    cache: SharedCache,
    role: NodeRole,
    /// The specification with which the founder was started; `None` at joiners, and once preparation begins.
    specification: Option<Arc<[u8]>>,
    preparation: Option<Preparation>,
    links: PeerLinks,
    /// The capacity that this peer offers if others can reach it: how much it is willing to own.
    offered_capacity: u8,
    /// The random bytes drawn when the run was founded; `None` until they are known.
    nonce: Option<[u8; 32]>,
    /// Frames that members sent in a view that this peer has not entered yet, with that view's digest. At most a window for each link.
    early: BTreeMap<PeerId, (ViewDigest, Vec<Frame>)>,
    jobs: Jobs,
    journal: Journal,
    rejects: BTreeMap<PeerId, u32>,
    /// Whether the program was started. While there is no view, it waits for one.
    is_program_started: bool,
    parked: Option<Reply<()>>,
    /// The last state that this peer had as a member before it was excluded.
    state_before: Option<FinalState>,
    /// Whether the user has asked this peer to leave.
    is_leaving: bool,
}

enum NodeRole {
    Founder(Box<Founder>),
    Joiner(Box<Joiner>),
    Member(Box<ActiveMember>),
    Ended,
}

/// What a member holds while it is in a view.
struct ActiveMember {
    training: Training,
    membership: Membership,
    progress: Progress,
    checkpoint_schedule: CheckpointSchedule,
    negotiation: MergeNegotiation,
}

/// How far a member has got with the run.
#[derive(Clone, Copy, PartialEq)]
enum Progress {
    Training,
    /// The last step is committed, and the final parameters are being evaluated.
    Evaluating,
}

impl Machine {
    pub(crate) fn new(config: Config) -> Self {
        let Config {
            peer,
            incarnation,
            addresses,
            capacity,
            loader,
            segments,
            cache,
            restored,
            saved,
            start_mode,
        } = config;
        let me = Member { peer, incarnation, addresses, capacity };
        let (role, specification, nonce) = match start_mode {
            StartMode::Bootstrap { specification, nonce, peers, from } => {
                let run = RunId::derive(&specification, &nonce);
                let founder = Founder::new(run, nonce, me.clone(), peers, from);
                (NodeRole::Founder(Box::new(founder)), Some(specification), Some(nonce))
            }
            StartMode::Join { run } => {
                let restored = restored.and_then(|record| DurableRecord::from_bytes(&record));
                let is_whole = |durable: &DurableRecord| {
                    durable.definition.run() == durable.view.run && durable.view.rank(&peer).is_some()
                };
                let recovering =
                    restored.filter(is_whole).map(|it| RecoveringMember::new(it, me.clone(), saved));
                let mut joiner = Joiner::new(run, me.clone(), recovering);
                // It takes the definition of the run from its own record, because perhaps no member is there to send it.
                let definition =
                    joiner.recovering().filter(|_| run.is_some()).map(|it| it.definition().clone());
                let (specification, nonce) = definition.map(|it| (it.specification.into(), it.nonce)).unzip();
                (NodeRole::Joiner(Box::new(joiner)), specification, nonce)
            }
        };
        Self {
            me,
            loader,
            segments,
            cache,
            role,
            specification,
            preparation: None,
            links: PeerLinks::default(),
            offered_capacity: capacity,
            nonce,
            early: BTreeMap::new(),
            jobs: Jobs::default(),
            journal: Journal::default(),
            rejects: BTreeMap::new(),
            is_program_started: false,
            parked: None,
            state_before: None,
            is_leaving: false,
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.role {
            NodeRole::Joiner(joiner) => joiner.deadline(),
            NodeRole::Member(active) if active.progress == Progress::Training => {
                active.membership.deadline().into_iter().chain(active.checkpoint_schedule.deadline()).min()
            }
            NodeRole::Founder(_) | NodeRole::Member(_) | NodeRole::Ended => None,
        }
    }

    // Inputs.

    pub(crate) fn input(&mut self, now: Instant, input: Input, out: &mut Vec<Output>) {
        if matches!(self.role, NodeRole::Ended) {
            return;
        }
        if let Some(specification) = self.specification.take() {
            if let NodeRole::Founder(founder) = &self.role {
                out.extend(founder.wanted_checkpoint().cloned().map(Output::LoadCheckpoint));
            }
            self.prepare(specification, out);
        }
        if let NodeRole::Member(active) = &mut self.role {
            active.training.wake();
        }
        match input {
            Input::Tick => self.tick(now, out),
            Input::Frame { from, frame } => {
                if let Err(reject) = self.receive(now, from, frame, out) {
                    self.reject(now, from, reject, out);
                }
            }
            Input::LinkUp(peer) => self.link_up(now, peer, out),
            Input::LinkDown { peer, reason } => self.link_down(now, peer, reason, out),
            Input::Relayed { peer, is_relayed } => self.set_relayed(now, peer, is_relayed, out),
            Input::ReachabilityChanged { addresses, is_reachable } => {
                self.reachability_changed(now, addresses, is_reachable, out)
            }
            Input::DuplicateIdentity { by } => {
                self.end(Err(Failure::Refused { by, refusal: Refusal::DuplicateIdentity }), out);
            }
            Input::Credit { peer, segments } => self.credit(peer, segments, out),
            Input::Computed { job, result } => self.computed(job, result, out),
            Input::DataFound(data) => {
                let donor = self.donor();
                let may_wait = matches!(self.role, NodeRole::Joiner(_));
                if let Some(preparation) = &mut self.preparation {
                    match preparation.data_found(data, donor, may_wait, out) {
                        Ok(load_request) => self.load(load_request, out),
                        Err(failure) => self.end(Err(failure), out),
                    }
                }
            }
            Input::Persisted { id, result } => self.persisted(now, id, result, out),
            Input::CheckpointSaved { steps, result } => {
                out.push(Output::Event(Event::Saved { steps, result }))
            }
            Input::CheckpointLoaded(result) => self.restored(result, out),
            Input::Expel(peer) => self.expel(now, peer, out),
            Input::DeclareLost => self.declare_lost(now, out),
            Input::Rekey { secret, at } => {
                if let NodeRole::Member(active) = &mut self.role {
                    active.membership.rekey(secret, at, out);
                }
            }
            Input::Leave => self.leave(out),
        }
        self.retire_if_done(now, out);
        self.advance(now, out);
    }

    fn tick(&mut self, now: Instant, out: &mut Vec<Output>) {
        match &mut self.role {
            NodeRole::Joiner(joiner) => {
                joiner.tick(now, self.links.linked(), out);
                self.poll_recovery(now, out);
            }
            NodeRole::Member(active) if active.progress == Progress::Training => {
                let commands = active
                    .with_snapshot(&self.jobs, |membership, snapshot| membership.tick(now, snapshot, out));
                self.apply(commands, out);
                self.save_if_due(now, out);
                if let NodeRole::Member(active) = &mut self.role {
                    let (negotiation, mut branch) = active.negotiation(now, self.me.peer, &self.links, out);
                    negotiation.poll(&mut branch);
                }
            }
            NodeRole::Founder(_) | NodeRole::Member(_) | NodeRole::Ended => {}
        }
    }

    fn link_up(&mut self, now: Instant, peer: PeerId, out: &mut Vec<Output>) {
        self.links.up(peer);
        match &mut self.role {
            NodeRole::Joiner(joiner) => {
                joiner.link_up(now, peer, out);
                if let (Some(preparation), true) = (&mut self.preparation, joiner.sponsor() == Some(peer)) {
                    preparation.restart_fetching(peer, out);
                }
                self.report_ready(out);
            }
            NodeRole::Member(active) => {
                active.membership.link_up(now, peer);
                active.training.link_up(&peer, out);
            }
            NodeRole::Founder(_) | NodeRole::Ended => {}
        }
    }

    /// A peer is now reached through another peer, or directly again.
    fn set_relayed(&mut self, now: Instant, peer: PeerId, is_relayed: bool, out: &mut Vec<Output>) {
        self.links.set_route(peer, if is_relayed { Route::Relayed } else { Route::Direct });
        match &mut self.role {
            NodeRole::Joiner(joiner) => {
                joiner.set_relayed(peer, is_relayed);
                if !is_relayed && joiner.sponsor().is_none() && self.links.is_linked(&peer) {
                    joiner.link_up(now, peer, out);
                }
                self.report_ready(out);
            }
            NodeRole::Member(active) => {
                active.membership.set_relayed(now, peer, is_relayed);
                self.poll_membership(now, out);
            }
            NodeRole::Founder(_) | NodeRole::Ended => {}
        }
    }

    /// This peer has learnt more about where others can dial it. A peer that others cannot dial owns nothing.
    fn reachability_changed(
        &mut self,
        now: Instant,
        addresses: Vec<String>,
        is_reachable: bool,
        out: &mut Vec<Output>,
    ) {
        self.me.addresses = addresses;
        self.me.capacity = if is_reachable { self.offered_capacity } else { 0 };
        match &mut self.role {
            NodeRole::Founder(founder) => founder.reachability_changed(&self.me),
            NodeRole::Joiner(joiner) => joiner.reachability_changed(now, &self.me, out),
            NodeRole::Member(active) => {
                active.membership.offer_capacity(self.me.capacity);
                self.poll_membership(now, out);
            }
            NodeRole::Ended => {}
        }
    }

    fn link_down(&mut self, now: Instant, peer: PeerId, reason: String, out: &mut Vec<Output>) {
        self.links.down(&peer);
        self.early.remove(&peer);
        match &mut self.role {
            NodeRole::Founder(founder) => founder.peer_left(peer, reason, out),
            NodeRole::Joiner(joiner) => {
                joiner.set_relayed(peer, false);
                joiner.link_down(now, peer);
            }
            NodeRole::Member(active) => {
                active.training.link_down(&peer);
                active.membership.link_down(&peer);
                if active.training.view().rank(&peer).is_none() {
                    active.membership.forget(&peer);
                    // A peer that is no member dials again if it needs the link.
                    out.push(Output::Disconnect(peer));
                    return;
                }
                if active.training.is_needed(&peer) {
                    // A member is dialed again, whether it closed the link or was cut off.
                    out.extend(active.training.contact_of(&peer).map(Output::Dial));
                    self.poll_membership(now, out);
                }
            }
            NodeRole::Ended => {}
        }
    }

    fn credit(&mut self, peer: PeerId, segments: u32, out: &mut Vec<Output>) {
        if let NodeRole::Member(active) = &mut self.role
            && active.training.view().rank(&peer).is_some()
        {
            return active.training.credit(&peer, segments, out);
        }
        self.links.give_back(&peer, segments);
    }

    // Preparation.

    /// The peer that is asked for the data file; `None` if there is none.
    fn donor(&self) -> Option<PeerId> {
        match &self.role {
            NodeRole::Joiner(joiner) => joiner.sponsor(),
            _ => None,
        }
    }

    fn prepare(&mut self, specification: Arc<[u8]>, out: &mut Vec<Output>) {
        match Preparation::start(specification, &*self.loader, out) {
            Ok((preparation, load_request)) => {
                self.preparation = Some(preparation);
                self.load(load_request, out);
            }
            Err(failure) => self.end(Err(failure), out),
        }
    }

    fn load(&mut self, load_request: Option<LoadRequest>, out: &mut Vec<Output>) {
        let Some(LoadRequest { specification, data }) = load_request else { return };
        let loader = Arc::clone(&self.loader);
        let work = Box::new(move || Box::new(loader.load(&specification, data)) as JobOutput);
        // The load has no cost in samples: how long it takes depends on the disk.
        self.jobs.start(Purpose::Load, 0, work, out);
    }

    fn loaded(&mut self, loaded: Loaded, out: &mut Vec<Output>) {
        let run_size = loaded.run_size();
        let Some(preparation) = &mut self.preparation else { return };
        preparation.loaded(loaded);
        out.push(Output::Event(Event::Prepared(run_size)));
        if let NodeRole::Founder(founder) = &mut self.role {
            founder.ready_here(out);
        }
        self.report_ready(out);
    }

    /// A joiner that is prepared reports that it is ready. A joiner that was excluded because its program hung waits until the program's
    /// job has ended.
    fn report_ready(&mut self, out: &mut Vec<Output>) {
        let is_prepared = self.preparation.as_ref().is_some_and(|preparation| preparation.ready().is_some())
            && self.jobs.computing().is_none();
        if let (NodeRole::Joiner(joiner), true) = (&mut self.role, is_prepared) {
            joiner.report_ready(|peer| self.links.is_linked(&peer), out);
        }
    }

    // Jobs.

    fn computed(&mut self, job: JobId, result: Result<JobOutput, Panicked>, out: &mut Vec<Output>) {
        // The job belongs to an interrupted step; its buffers return to their pool by themselves.
        let Some(purpose) = self.jobs.finish(job) else { return };
        let answer = match result {
            Ok(answer) => answer,
            Err(Panicked(message)) => return self.end(Err(Failure::TaskPanicked(message)), out),
        };
        match purpose {
            Purpose::Program(_, reply) => {
                reply(answer);
                self.report_ready(out);
            }
            Purpose::Load => match *answer.downcast().expect("a loader's answer") {
                Ok(loaded) => self.loaded(loaded, out),
                Err(words) => self.end(Err(Failure::Unusable(words)), out),
            },
            Purpose::EvaluateMerge => {
                let weighed = *answer.downcast().expect("what was weighed");
                out.push(Output::Event(Event::MergeEvaluation(weighed)));
            }
            Purpose::Evaluate => {
                let evaluation: Evaluation = *answer.downcast().expect("an evaluation");
                self.finish(Some(evaluation), out);
            }
        }
    }

    // The end.

    fn finish(&mut self, evaluation: Option<Evaluation>, out: &mut Vec<Output>) {
        let NodeRole::Member(active) = &self.role else { return };
        let Some(mut state) = active.training.final_state() else { return };
        state.evaluation = evaluation;
        out.push(Output::Event(Event::Ended(Ended { outcome: Ok(()), state: Some(state) })));
        self.role = NodeRole::Ended;
    }

    /// Ends the run at this peer before the run is complete, and tells the others why.
    fn end(&mut self, outcome: Result<(), Failure>, out: &mut Vec<Output>) {
        let (state, others): (_, BTreeSet<PeerId>) = match &self.role {
            NodeRole::Member(active) => {
                // This peer may be the last one that has the state.
                let keep = active.training.loaded().config.checkpoints_kept;
                let checkpoint = active.training.checkpoint().map(Arc::new);
                out.extend(checkpoint.map(|checkpoint| Output::SaveCheckpoint { checkpoint, keep }));
                let members = active.training.view().members.iter().map(|member| member.peer);
                (active.training.final_state().or(self.state_before.take()), members.collect())
            }
            NodeRole::Founder(founder) => (None, founder.candidates().collect()),
            NodeRole::Joiner(joiner) => (self.state_before.take(), joiner.sponsor().into_iter().collect()),
            NodeRole::Ended => return,
        };
        if let Err(failure) = &outcome {
            let message = Message::Leave(Departure::new(&failure.to_string()));
            for peer in others.into_iter().filter(|peer| self.links.is_linked(peer)) {
                self.send(peer, &message, None, out);
            }
        }
        out.push(Output::Event(Event::Ended(Ended { outcome, state })));
        self.role = NodeRole::Ended;
    }

    fn send(&self, to: PeerId, message: &Message, payload: Option<Buffer>, out: &mut Vec<Output>) {
        out.push(Output::Send { to, frame: Frame::encode(message, payload) });
    }

    fn reject(&mut self, now: Instant, peer: PeerId, reject: Reject, out: &mut Vec<Output>) {
        out.push(Output::Event(Event::Violation { peer, reject }));
        let count = self.rejects.entry(peer).or_default();
        *count += 1;
        // A round cannot end without the segment that should have come, so the link is closed at once.
        let is_fatal = matches!(reject, Reject::Segment | Reject::OverCredit | Reject::MalformedTableMessage);
        let is_last = *count >= REJECTS_MAX;
        if let (NodeRole::Member(active), true) = (&mut self.role, is_last) {
            active.membership.expel(peer, ExpulsionCause::Violations, out);
        }
        if is_last || is_fatal {
            let words = format!("hung up on it after {count} violations, the last: {reject}");
            out.push(Output::Disconnect(peer));
            self.link_down(now, peer, words, out);
        }
    }
}
