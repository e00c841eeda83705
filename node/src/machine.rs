//! The machine: routes inputs and commands to the part that owns the state they concern. No algorithm lives here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use peergrad_protocol::durable::Durable;
use peergrad_protocol::message::{Contact, Departure, Message, Refusal};
use peergrad_protocol::view::{Member, View};
use peergrad_protocol::{Buffer, Frame, Instant, PeerId, Pool, RunId};

use crate::founding::Founding;
use crate::host::Host;
use crate::io::{Answer, Ended, Event, Failure, Input, JobId, Output, Panicked, PersistId, Reject};
use crate::jobs::{Jobs, Purpose};
use crate::joining::Joining;
use crate::loader::{Loaded, Loader};
use crate::memo::Memo;
use crate::node::{Config, Role, Standing, Wait};
use crate::peer::Command;
use crate::preparation::{Ingredients, Preparation};
use crate::session::Session;
use crate::task::Evaluation;

mod frames;

/// All state of a node but its program.
pub(crate) struct Machine {
    me: Member,
    loader: Arc<dyn Loader>,
    segments: Pool,
    memo: Memo,
    stage: Stage,
    /// What the founder was started with; taken when preparation begins.
    specification: Option<Arc<[u8]>>,
    preparation: Option<Preparation>,
    /// Peers that frames can be sent to.
    linked: BTreeSet<PeerId>,
    /// Members of the view that cannot be reached yet.
    unlinked: BTreeSet<PeerId>,
    /// Frames of members whose view is not installed here yet, at most a window a link.
    early: BTreeMap<PeerId, Vec<Frame>>,
    jobs: Jobs,
    /// Records that were handed out to be kept.
    persisted_count: u64,
    rejects: BTreeMap<PeerId, u32>,
}

enum Stage {
    Founding(Founding),
    Joining(Joining),
    Training { session: Box<Session>, progress: Progress },
    Ended,
}

/// How far training in a view is.
#[derive(Clone, Copy, PartialEq)]
enum Progress {
    /// The view is not on disk yet: nothing may be said in it.
    Recording(PersistId),
    /// Some members are not linked yet.
    Linking,
    /// All are; the program is to be started.
    Due,
    Running,
    /// The last step is committed; the result is being evaluated.
    Evaluating,
}

impl Machine {
    pub(crate) fn new(config: Config) -> Self {
        let Config { peer, incarnation, addresses, weight, loader, segments, memo, restored, role } = config;
        let me = Member { peer, incarnation, addresses, weight };
        let restored = restored.and_then(|record| Durable::from_bytes(&record));
        let (stage, specification) = match role {
            Role::Founder { specification, nonce, peers } => {
                let run = RunId::derive(&specification, &nonce);
                (Stage::Founding(Founding::new(run, nonce, me.clone(), peers)), Some(specification))
            }
            Role::Joiner { run } => (Stage::Joining(Joining::new(run, me.clone(), restored)), None),
        };
        Self {
            me,
            loader,
            segments,
            memo,
            stage,
            specification,
            preparation: None,
            linked: BTreeSet::new(),
            unlinked: BTreeSet::new(),
            early: BTreeMap::new(),
            jobs: Jobs::default(),
            persisted_count: 0,
            rejects: BTreeMap::new(),
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Joining(joining) => joining.deadline(),
            Stage::Founding(_) | Stage::Training { .. } | Stage::Ended => None,
        }
    }

    // Inputs.

    pub(crate) fn input(&mut self, now: Instant, input: Input, out: &mut Vec<Output>) {
        if matches!(self.stage, Stage::Ended) {
            return;
        }
        if let Some(specification) = self.specification.take() {
            self.prepare(specification, out);
        }
        match input {
            Input::Tick => self.tick(now, out),
            Input::Frame { from, frame } => {
                if let Err(reject) = self.frame(from, frame, out) {
                    self.reject(from, reject, out);
                }
            }
            Input::LinkUp(peer) => self.link_up(now, peer, out),
            Input::LinkDown { peer, reason } => self.link_down(peer, reason, out),
            Input::Credit { peer, segments } => {
                if let Stage::Training { session, .. } = &mut self.stage
                    && let Err(reject) = session.credit(&peer, segments, out)
                {
                    self.reject(peer, reject, out);
                }
            }
            Input::Computed { job, result } => self.computed(job, result, out),
            Input::Located(data) => {
                let donor = self.founder();
                if let Some(preparation) = &mut self.preparation {
                    match preparation.located(data, donor, out) {
                        Ok(ingredients) => self.load(ingredients, out),
                        Err(failure) => self.end(Err(failure), out),
                    }
                }
            }
            Input::Persisted { id, result } => self.persisted(id, result, out),
            Input::Leave => self.end(Err(Failure::Left), out),
        }
        self.advance(out);
    }

    fn tick(&mut self, now: Instant, out: &mut Vec<Output>) {
        if let Stage::Joining(joining) = &mut self.stage {
            joining.tick(now, self.linked.iter().copied(), out);
        }
    }

    fn link_up(&mut self, now: Instant, peer: PeerId, out: &mut Vec<Output>) {
        self.linked.insert(peer);
        self.unlinked.remove(&peer);
        if let Stage::Joining(joining) = &mut self.stage {
            joining.link_up(now, peer, out);
            if let (Some(preparation), true) = (&mut self.preparation, joining.founder() == Some(peer)) {
                preparation.restart_fetching(peer, out);
            }
        }
    }

    fn link_down(&mut self, peer: PeerId, reason: String, out: &mut Vec<Output>) {
        self.linked.remove(&peer);
        match &mut self.stage {
            Stage::Founding(founding) => founding.gone(peer, reason, out),
            Stage::Joining(joining) => joining.link_down(peer),
            Stage::Training { session, .. } if session.is_needed(&peer) => {
                self.end(Err(Failure::PeerLost { peer, reason }), out);
            }
            Stage::Training { .. } | Stage::Ended => {}
        }
    }

    // Preparation.

    fn founder(&self) -> Option<PeerId> {
        match &self.stage {
            Stage::Joining(joining) => joining.founder(),
            _ => None,
        }
    }

    fn prepare(&mut self, specification: Arc<[u8]>, out: &mut Vec<Output>) {
        match Preparation::start(specification, &*self.loader, out) {
            Ok((preparation, ingredients)) => {
                self.preparation = Some(preparation);
                self.load(ingredients, out);
            }
            Err(failure) => self.end(Err(failure), out),
        }
    }

    fn load(&mut self, ingredients: Option<Ingredients>, out: &mut Vec<Output>) {
        let Some(Ingredients { specification, data }) = ingredients else { return };
        let loader = Arc::clone(&self.loader);
        let work = Box::new(move || Box::new(loader.load(&specification, data)) as Answer);
        // No sample is computed with yet; how long it takes to read them is the disk's affair.
        self.jobs.start(Purpose::Load, 0, work, out);
    }

    fn loaded(&mut self, loaded: Loaded, out: &mut Vec<Output>) {
        let scope = loaded.scope();
        let Some(preparation) = &mut self.preparation else { return };
        preparation.loaded(loaded);
        out.push(Output::Event(Event::Prepared(scope)));
        match &mut self.stage {
            Stage::Founding(founding) => founding.ready_here(out),
            Stage::Joining(joining) => {
                if let Some(founder) = joining.founder() {
                    self.send(founder, &Message::Ready, None, out);
                }
            }
            Stage::Training { .. } | Stage::Ended => {}
        }
    }

    // Jobs.

    fn computed(&mut self, job: JobId, result: Result<Answer, Panicked>, out: &mut Vec<Output>) {
        // A job of an interrupted program: its buffers find home by themselves.
        let Some(purpose) = self.jobs.finish(job) else { return };
        let answer = match result {
            Ok(answer) => answer,
            Err(Panicked(message)) => return self.end(Err(Failure::TaskPanicked(message)), out),
        };
        match purpose {
            Purpose::Program(reply) => reply(answer),
            Purpose::Load => match *answer.downcast().expect("a loader's answer") {
                Ok(loaded) => self.loaded(loaded, out),
                Err(words) => self.end(Err(Failure::Unusable(words)), out),
            },
            Purpose::Evaluate => {
                let evaluation: Evaluation = *answer.downcast().expect("an evaluation");
                self.finish(Some(evaluation), out);
            }
        }
    }

    // Views.

    /// Whatever became possible: the first view, the start of the program, the end of the run.
    fn advance(&mut self, out: &mut Vec<Output>) {
        if let Stage::Founding(founding) = &self.stage
            && let Some(view) = founding.view()
        {
            let install = Message::Install(view.clone());
            for member in view.members.iter().filter(|member| member.peer != self.me.peer) {
                self.send(member.peer, &install, None, out);
            }
            for late in founding.candidates().filter(|peer| view.rank(peer).is_none()) {
                self.send(late, &Message::Refuse(Refusal::Started), None, out);
            }
            self.install(view, out).expect("our own view is valid and we are prepared");
        }
        let Stage::Training { session, progress } = &mut self.stage else { return };
        if *progress == Progress::Linking && self.unlinked.is_empty() {
            *progress = Progress::Due;
            out.push(Output::Event(Event::Began));
        }
        if *progress == Progress::Running && session.is_closed() {
            *progress = Progress::Evaluating;
            session.commit_last(out);
            let (task, parameters) = (Arc::clone(&session.loaded().task), Arc::clone(session.parameters()));
            let cost = u64::from(task.held_out_count());
            let work = Box::new(move || Box::new(task.evaluate(&parameters)) as Answer);
            self.jobs.start(Purpose::Evaluate, cost, work, out);
        }
    }

    fn install(&mut self, view: View, out: &mut Vec<Output>) -> Result<(), Reject> {
        let preparation = self.preparation.as_ref().ok_or(Reject::OutOfPlace)?;
        let loaded = preparation.ready().ok_or(Reject::OutOfPlace)?.clone();
        let specification = Arc::clone(preparation.specification());
        let geometry = self.memo.geometry(view, loaded.manifest.chunks(), loaded.training.segment_elements);
        let view = Arc::clone(&geometry.view);
        for member in view.members.iter().filter(|member| member.peer != self.me.peer) {
            if !self.linked.contains(&member.peer) {
                self.unlinked.insert(member.peer);
            }
            let contact = Contact { peer: member.peer, addresses: member.addresses.clone() };
            out.push(Output::Dial(contact));
        }
        let (segments, memo) = (self.segments.clone(), self.memo.clone());
        let session = Session::found(&geometry, self.me.peer, specification, loaded, segments, memo);
        let (digest, shard) = (session.digest, session.shard_len());
        out.push(Output::Event(Event::Installed { view, digest, shard }));
        let id = PersistId(self.persisted_count);
        self.persisted_count += 1;
        let record = Durable { view: View::clone(&session.view) }.to_bytes();
        out.push(Output::Persist { id, record });
        self.stage = Stage::Training { session: Box::new(session), progress: Progress::Recording(id) };
        for (from, frames) in std::mem::take(&mut self.early) {
            for frame in frames {
                if let Err(reject) = self.frame(from, frame, out) {
                    self.reject(from, reject, out);
                }
            }
        }
        Ok(())
    }

    /// A record is on disk: what waited for it may be said.
    fn persisted(&mut self, id: PersistId, result: Result<(), String>, out: &mut Vec<Output>) {
        let Stage::Training { progress, .. } = &mut self.stage else { return };
        if *progress != Progress::Recording(id) {
            return;
        }
        match result {
            Ok(()) => *progress = Progress::Linking,
            Err(reason) => self.end(Err(Failure::DiskFailed(reason)), out),
        }
    }

    pub(crate) fn standing(&self) -> Standing {
        match &self.stage {
            Stage::Founding(_) => Standing::Founding,
            Stage::Joining(_) => Standing::Joining,
            Stage::Training { session, progress } => {
                let has_begun = matches!(progress, Progress::Running | Progress::Evaluating);
                let mut standing = session.standing(has_begun);
                if *progress == Progress::Evaluating {
                    standing.wait = Wait::Evaluation;
                }
                Standing::Member(standing)
            }
            Stage::Ended => Standing::Ended,
        }
    }

    // The program.

    /// The program, when it is time to start it.
    pub(crate) fn program(&mut self) -> Option<Host> {
        let Stage::Training { session, progress } = &mut self.stage else { return None };
        if *progress != Progress::Due {
            return None;
        }
        *progress = Progress::Running;
        let loaded = session.loaded();
        Some(loaded.program.host(loaded))
    }

    /// Carries out one command. A command for a view that is gone is dropped, and its reply with it.
    pub(crate) fn command(&mut self, command: Command, out: &mut Vec<Output>) {
        let Stage::Training { session, .. } = &mut self.stage else { return };
        let current = session.digest;
        match command {
            Command::Ready(reply) => drop(reply.send(())),
            Command::Begin(reply) => session.begin(reply),
            Command::Compute { view, cost, work, reply } if view == current => {
                self.jobs.start(Purpose::Program(reply), cost, work, out);
            }
            Command::ReduceScatter { view, contribution, reply } if view == current => {
                if let Err((peer, reject)) = session.reduce_scatter(contribution, reply, out) {
                    self.reject(peer, reject, out);
                }
            }
            Command::UpdateOwned { view, rule, reply } if view == current => {
                session.update_owned(rule, reply)
            }
            Command::AllGather { view, reply } if view == current => session.all_gather(reply, out),
            Command::Finished => session.close(out),
            Command::Compute { .. }
            | Command::ReduceScatter { .. }
            | Command::UpdateOwned { .. }
            | Command::AllGather { .. } => {}
        }
        self.advance(out);
    }

    // The end.

    fn finish(&mut self, evaluation: Option<Evaluation>, out: &mut Vec<Output>) {
        let Stage::Training { session, .. } = &self.stage else { return };
        let mut state = session.state();
        state.evaluation = evaluation;
        out.push(Output::Event(Event::Ended(Ended { outcome: Ok(()), state: Some(state) })));
        self.stage = Stage::Ended;
    }

    /// Ends the run here before it is done, and tells the others why.
    fn end(&mut self, outcome: Result<(), Failure>, out: &mut Vec<Output>) {
        let (state, others) = match &self.stage {
            Stage::Training { session, .. } => {
                (Some(session.state()), session.view.members.iter().map(|member| member.peer).collect())
            }
            Stage::Founding(founding) => (None, founding.candidates().collect()),
            Stage::Joining(joining) => (None, Vec::from_iter(joining.founder())),
            Stage::Ended => return,
        };
        if let Err(failure) = &outcome {
            let (lost, reason) = match failure {
                Failure::PeerLost { peer, reason } => (Some(*peer), reason.clone()),
                Failure::GivenUp { reason, .. } => (None, format!("others had lost it: {reason}")),
                other => (None, other.to_string()),
            };
            let message = Message::Leave(Departure::new(lost, &reason));
            for peer in others.into_iter().filter(|peer| self.linked.contains(peer)) {
                self.send(peer, &message, None, out);
            }
        }
        out.push(Output::Event(Event::Ended(Ended { outcome, state })));
        self.stage = Stage::Ended;
    }

    fn send(&self, to: PeerId, message: &Message, payload: Option<Buffer>, out: &mut Vec<Output>) {
        out.push(Output::Send { to, frame: Frame::encode(message, payload) });
    }
}
