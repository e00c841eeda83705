//! The machine: routes inputs and commands to the part that owns the state they concern. No algorithm lives here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use peergrad_protocol::durable::Durable;
use peergrad_protocol::limits::{LINK_SEGMENTS, REJECTS_MAX};
use peergrad_protocol::message::{Departure, Message, Refusal};
use peergrad_protocol::view::{Cause, Member};
use peergrad_protocol::{Buffer, Frame, Instant, PeerId, Pool, RunId, ViewDigest};

use crate::checkpoint::Timetable;
use crate::founding::Founding;
use crate::host::Host;
use crate::io::{Answer, Ended, Event, Failure, FinalState, Input, JobId, Output, Panicked, Reject};
use crate::jobs::{Jobs, Purpose};
use crate::joining::Joining;
use crate::loader::{Loaded, Loader};
use crate::membership::Membership;
use crate::memo::Memo;
use crate::node::{Config, Role, Standing, Wait};
use crate::peer::{Command, Reply};
use crate::preparation::{Ingredients, Preparation};
use crate::returning::Returning;
use crate::session::Session;
use crate::task::Evaluation;
use healing::Healing;

mod frames;
mod healing;
mod looking;
mod restarts;
mod users;
mod views;

/// All state of a node but its program.
pub(crate) struct Machine {
    /// This peer, in its present incarnation.
    me: Member,
    loader: Arc<dyn Loader>,
    segments: Pool,
    memo: Memo,
    stage: Stage,
    /// What the founder was started with; taken when preparation begins.
    specification: Option<Arc<[u8]>>,
    preparation: Option<Preparation>,
    /// Peers that frames can be sent to, and how many segments: those of members are counted by the session.
    credits: BTreeMap<PeerId, u32>,
    /// Peers to which the way leads through another one.
    relayed: BTreeSet<PeerId>,
    /// How much this peer offers to own where others can reach it.
    offered_weight: u8,
    /// The random bytes drawn when the run was founded, once they are known.
    nonce: Option<[u8; 32]>,
    /// Frames of members whose view is not entered here yet, and that view; at most a window a link.
    early: BTreeMap<PeerId, (ViewDigest, Vec<Frame>)>,
    jobs: Jobs,
    /// Records that were handed out to be kept.
    persisted_count: u64,
    rejects: BTreeMap<PeerId, u32>,
    /// Whether the program was started, and waits for a view while there is none.
    has_host: bool,
    parked: Option<Reply<()>>,
    /// What this peer has learnt before it was excluded.
    state_before: Option<FinalState>,
    /// The user wants this peer to go.
    is_leaving: bool,
}

enum Stage {
    Founding(Box<Founding>),
    Joining(Box<Joining>),
    Member(Box<Seat>),
    Ended,
}

/// A member's place in the view.
struct Seat {
    session: Session,
    membership: Membership,
    progress: Progress,
    timetable: Timetable,
    healing: Healing,
}

/// How far a member is.
#[derive(Clone, Copy, PartialEq)]
enum Progress {
    Training,
    /// The last step is committed; the result is being evaluated.
    Evaluating,
}

impl Machine {
    pub(crate) fn new(config: Config) -> Self {
        let Config { peer, incarnation, addresses, weight, loader, segments, memo, restored, saved, role } =
            config;
        let me = Member { peer, incarnation, addresses, weight };
        let (stage, specification, nonce) = match role {
            Role::Founder { specification, nonce, peers, from } => {
                let run = RunId::derive(&specification, &nonce);
                let founding = Founding::new(run, nonce, me.clone(), peers, from);
                (Stage::Founding(Box::new(founding)), Some(specification), Some(nonce))
            }
            Role::Joiner { run } => {
                let restored = restored.and_then(|record| Durable::from_bytes(&record));
                let is_whole = |durable: &Durable| {
                    durable.charter.run() == durable.view.run && durable.view.rank(&peer).is_some()
                };
                let returning = restored.filter(is_whole).map(|it| Returning::new(it, me.clone(), saved));
                let mut joining = Joining::new(run, me.clone(), returning);
                // What the run is, it knows from before: it may be that nobody is there who could tell.
                let charter = joining.returning().filter(|_| run.is_some()).map(|it| it.charter().clone());
                let (specification, nonce) = charter.map(|it| (it.specification.into(), it.nonce)).unzip();
                (Stage::Joining(Box::new(joining)), specification, nonce)
            }
        };
        Self {
            me,
            loader,
            segments,
            memo,
            stage,
            specification,
            preparation: None,
            credits: BTreeMap::new(),
            relayed: BTreeSet::new(),
            offered_weight: weight,
            nonce,
            early: BTreeMap::new(),
            jobs: Jobs::default(),
            persisted_count: 0,
            rejects: BTreeMap::new(),
            has_host: false,
            parked: None,
            state_before: None,
            is_leaving: false,
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Joining(joining) => joining.deadline(),
            Stage::Member(seat) if seat.progress == Progress::Training => {
                seat.membership.deadline().into_iter().chain(seat.timetable.deadline()).min()
            }
            Stage::Founding(_) | Stage::Member(_) | Stage::Ended => None,
        }
    }

    // Inputs.

    pub(crate) fn input(&mut self, now: Instant, input: Input, out: &mut Vec<Output>) {
        if matches!(self.stage, Stage::Ended) {
            return;
        }
        if let Some(specification) = self.specification.take() {
            if let Stage::Founding(founding) = &self.stage {
                out.extend(founding.wants().cloned().map(Output::Restore));
            }
            self.prepare(specification, out);
        }
        if let Stage::Member(seat) = &mut self.stage {
            seat.session.wake();
        }
        match input {
            Input::Tick => self.tick(now, out),
            Input::Frame { from, frame } => {
                if let Err(reject) = self.frame(now, from, frame, out) {
                    self.reject(now, from, reject, out);
                }
            }
            Input::LinkUp(peer) => self.link_up(now, peer, out),
            Input::LinkDown { peer, reason } => self.link_down(now, peer, reason, out),
            Input::Relayed { peer, is_relayed } => self.set_relayed(now, peer, is_relayed, out),
            Input::Placed { addresses, is_reachable } => self.placed(now, addresses, is_reachable, out),
            Input::Outdated { by } => {
                self.end(Err(Failure::Refused { by, refusal: Refusal::Copied }), out);
            }
            Input::Credit { peer, segments } => self.credit(peer, segments, out),
            Input::Computed { job, result } => self.computed(job, result, out),
            Input::Located(data) => {
                let donor = self.donor();
                let may_wait = matches!(self.stage, Stage::Joining(_));
                if let Some(preparation) = &mut self.preparation {
                    match preparation.located(data, donor, may_wait, out) {
                        Ok(ingredients) => self.load(ingredients, out),
                        Err(failure) => self.end(Err(failure), out),
                    }
                }
            }
            Input::Persisted { id, result } => self.persisted(now, id, result, out),
            Input::Saved { steps, result } => out.push(Output::Event(Event::Saved { steps, result })),
            Input::Restored(result) => self.restored(result, out),
            Input::Expel(peer) => self.expel(now, peer, out),
            Input::DeclareLost => self.declare_lost(now, out),
            Input::Rekey { secret, at } => {
                if let Stage::Member(seat) = &mut self.stage {
                    seat.membership.rekey(secret, at, out);
                }
            }
            Input::Leave => self.leave(out),
        }
        self.retire_if_done(now, out);
        self.advance(now, out);
    }

    fn tick(&mut self, now: Instant, out: &mut Vec<Output>) {
        match &mut self.stage {
            Stage::Joining(joining) => {
                joining.tick(now, self.credits.keys().copied(), out);
                self.regroup(now, out);
            }
            Stage::Member(seat) if seat.progress == Progress::Training => {
                let wishes =
                    seat.with_facts(&self.jobs, |membership, facts| membership.tick(now, facts, out));
                self.grant(wishes, out);
                self.save_in_time(now, out);
                self.heal(now, out);
            }
            Stage::Founding(_) | Stage::Member(_) | Stage::Ended => {}
        }
    }

    fn link_up(&mut self, now: Instant, peer: PeerId, out: &mut Vec<Output>) {
        self.credits.insert(peer, LINK_SEGMENTS);
        match &mut self.stage {
            Stage::Joining(joining) => {
                joining.link_up(now, peer, out);
                if let (Some(preparation), true) = (&mut self.preparation, joining.host() == Some(peer)) {
                    preparation.restart_fetching(peer, out);
                }
                self.report_ready(out);
            }
            Stage::Member(seat) => {
                seat.membership.link_up(now, peer);
                seat.session.link_up(&peer, out);
            }
            Stage::Founding(_) | Stage::Ended => {}
        }
    }

    /// The way to a peer leads through another one from now on, or does not any more.
    fn set_relayed(&mut self, now: Instant, peer: PeerId, is_relayed: bool, out: &mut Vec<Output>) {
        if is_relayed {
            self.relayed.insert(peer);
        } else {
            self.relayed.remove(&peer);
        }
        match &mut self.stage {
            Stage::Joining(joining) => {
                joining.set_relayed(peer, is_relayed);
                if !is_relayed && joining.host().is_none() && self.credits.contains_key(&peer) {
                    joining.link_up(now, peer, out);
                }
                self.report_ready(out);
            }
            Stage::Member(seat) => {
                seat.membership.set_relayed(now, peer, is_relayed);
                self.look(now, out);
            }
            Stage::Founding(_) | Stage::Ended => {}
        }
    }

    /// Where others can dial this peer is known better than before. Whom they cannot dial owns nothing.
    fn placed(&mut self, now: Instant, addresses: Vec<String>, is_reachable: bool, out: &mut Vec<Output>) {
        self.me.addresses = addresses;
        self.me.weight = if is_reachable { self.offered_weight } else { 0 };
        match &mut self.stage {
            Stage::Founding(founding) => founding.placed(&self.me),
            Stage::Joining(joining) => joining.placed(now, &self.me, out),
            Stage::Member(seat) => {
                seat.membership.offer(self.me.weight);
                self.look(now, out);
            }
            Stage::Ended => {}
        }
    }

    fn link_down(&mut self, now: Instant, peer: PeerId, reason: String, out: &mut Vec<Output>) {
        self.credits.remove(&peer);
        self.relayed.remove(&peer);
        self.early.remove(&peer);
        match &mut self.stage {
            Stage::Founding(founding) => founding.gone(peer, reason, out),
            Stage::Joining(joining) => {
                joining.set_relayed(peer, false);
                joining.link_down(now, peer);
            }
            Stage::Member(seat) => {
                seat.session.link_down(&peer);
                seat.membership.link_down(&peer);
                if seat.session.view().rank(&peer).is_none() {
                    seat.membership.forget(&peer);
                    // Whoever wants something dials itself.
                    out.push(Output::Hangup(peer));
                    return;
                }
                if seat.session.is_needed(&peer) {
                    // Whether it has hung up or is cut off: as long as it is a member, it is wanted.
                    out.extend(seat.session.contact_of(&peer).map(Output::Dial));
                    self.look(now, out);
                }
            }
            Stage::Ended => {}
        }
    }

    fn credit(&mut self, peer: PeerId, segments: u32, out: &mut Vec<Output>) {
        if let Stage::Member(seat) = &mut self.stage
            && seat.session.view().rank(&peer).is_some()
        {
            return seat.session.credit(&peer, segments, out);
        }
        if let Some(credit) = self.credits.get_mut(&peer) {
            *credit = credit.saturating_add(segments).min(LINK_SEGMENTS);
        }
    }

    // Preparation.

    /// Whom data is asked of.
    fn donor(&self) -> Option<PeerId> {
        match &self.stage {
            Stage::Joining(joining) => joining.host(),
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
        if let Stage::Founding(founding) = &mut self.stage {
            founding.ready_here(out);
        }
        self.report_ready(out);
    }

    /// A joiner that has everything says so; one that was excluded since its program hangs, when that is over.
    fn report_ready(&mut self, out: &mut Vec<Output>) {
        let is_prepared = self.preparation.as_ref().is_some_and(|preparation| preparation.ready().is_some())
            && self.jobs.computing().is_none();
        if let (Stage::Joining(joining), true) = (&mut self.stage, is_prepared) {
            joining.report_ready(|peer| self.credits.contains_key(&peer), out);
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
            Purpose::Program(_, reply) => {
                reply(answer);
                self.report_ready(out);
            }
            Purpose::Load => match *answer.downcast().expect("a loader's answer") {
                Ok(loaded) => self.loaded(loaded, out),
                Err(words) => self.end(Err(Failure::Unusable(words)), out),
            },
            Purpose::Weigh => {
                let weighed = *answer.downcast().expect("what was weighed");
                out.push(Output::Event(Event::Weighed(weighed)));
            }
            Purpose::Evaluate => {
                let evaluation: Evaluation = *answer.downcast().expect("an evaluation");
                self.finish(Some(evaluation), out);
            }
        }
    }

    // Looking on.

    pub(crate) fn standing(&self) -> Standing {
        match &self.stage {
            Stage::Founding(_) => Standing::Founding,
            Stage::Joining(joining) if joining.is_returning() => Standing::Returning,
            Stage::Joining(_) => Standing::Joining,
            Stage::Member(seat) => {
                let mut standing = seat.session.standing();
                if seat.progress == Progress::Evaluating {
                    standing.wait = Wait::Evaluation;
                }
                Standing::Member(standing)
            }
            Stage::Ended => Standing::Ended,
        }
    }

    /// The newest committed parameters.
    pub(crate) fn parameters(&self) -> Option<&Arc<Buffer>> {
        match &self.stage {
            Stage::Member(seat) => seat.session.parameters(),
            Stage::Joining(_) | Stage::Founding(_) | Stage::Ended => None,
        }
    }

    pub(crate) fn kept_states(&self) -> impl Iterator<Item = (usize, &[f32], u32)> {
        let session = if let Stage::Member(seat) = &self.stage { Some(&seat.session) } else { None };
        session.into_iter().flat_map(Session::kept_states)
    }

    // The program.

    /// The program, when it is time to start it.
    pub(crate) fn program(&mut self) -> Option<Host> {
        let Stage::Member(seat) = &mut self.stage else { return None };
        if self.has_host || !seat.session.has_parameters() {
            return None;
        }
        self.has_host = true;
        let loaded = seat.session.loaded();
        Some(loaded.program.host(loaded))
    }

    /// Carries out one command. A command of a step that was interrupted is dropped, and its reply with it.
    pub(crate) fn command(&mut self, now: Instant, command: Command, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &mut self.stage else {
            if let Command::Ready(reply) = command {
                self.parked = Some(reply);
            }
            return;
        };
        let session = &mut seat.session;
        match command {
            Command::Ready(reply) => session.ready(reply, out),
            Command::Begin(reply) => session.begin(reply, out),
            Command::Compute { turn, cost, work, reply } if session.is_current(turn) => {
                self.jobs.start(Purpose::Program(session.at(), reply), cost, work, out);
            }
            Command::ReduceScatter { turn, contribution, among, reply } if session.is_current(turn) => {
                if let Err((peer, reject)) = session.reduce_scatter(contribution, among, reply, out) {
                    self.reject(now, peer, reject, out);
                }
            }
            Command::UpdateOwned { turn, rule, reply } if session.is_current(turn) => {
                session.update_owned(rule, reply, out);
            }
            Command::AllGather { turn, reply } if session.is_current(turn) => session.all_gather(reply, out),
            Command::UpdateOwned { turn, reply, .. } | Command::AllGather { turn, reply }
                if session.is_finished(turn) =>
            {
                // A program that no longer waits has ended.
                let _ = reply.send(());
            }
            Command::BeginClock(reply) => session.begin_clock(reply, out),
            Command::Operate { turn, operation } if session.is_current(turn) => {
                session.operate(operation, out)
            }
            Command::Finished(reply) => session.close(reply, out),
            Command::Compute { .. }
            | Command::Operate { .. }
            | Command::ReduceScatter { .. }
            | Command::UpdateOwned { .. }
            | Command::AllGather { .. } => {}
        }
        self.advance(now, out);
    }

    // The end.

    fn finish(&mut self, evaluation: Option<Evaluation>, out: &mut Vec<Output>) {
        let Stage::Member(seat) = &self.stage else { return };
        let Some(mut state) = seat.session.state() else { return };
        state.evaluation = evaluation;
        out.push(Output::Event(Event::Ended(Ended { outcome: Ok(()), state: Some(state) })));
        self.stage = Stage::Ended;
    }

    /// Ends the run here before it is done, and tells the others why.
    fn end(&mut self, outcome: Result<(), Failure>, out: &mut Vec<Output>) {
        let (state, others): (_, BTreeSet<PeerId>) = match &self.stage {
            Stage::Member(seat) => {
                // Perhaps it is the last one.
                let keep = seat.session.loaded().training.checkpoints_kept;
                let checkpoint = seat.session.checkpoint().map(Arc::new);
                out.extend(checkpoint.map(|checkpoint| Output::Save { checkpoint, keep }));
                let members = seat.session.view().members.iter().map(|member| member.peer);
                (seat.session.state().or(self.state_before.take()), members.collect())
            }
            Stage::Founding(founding) => (None, founding.candidates().collect()),
            Stage::Joining(joining) => (self.state_before.take(), joining.host().into_iter().collect()),
            Stage::Ended => return,
        };
        if let Err(failure) = &outcome {
            let message = Message::Leave(Departure::new(&failure.to_string()));
            for peer in others.into_iter().filter(|peer| self.credits.contains_key(peer)) {
                self.send(peer, &message, None, out);
            }
        }
        out.push(Output::Event(Event::Ended(Ended { outcome, state })));
        self.stage = Stage::Ended;
    }

    fn send(&self, to: PeerId, message: &Message, payload: Option<Buffer>, out: &mut Vec<Output>) {
        out.push(Output::Send { to, frame: Frame::encode(message, payload) });
    }

    fn reject(&mut self, now: Instant, peer: PeerId, reject: Reject, out: &mut Vec<Output>) {
        out.push(Output::Event(Event::Violation { peer, reject }));
        let count = self.rejects.entry(peer).or_default();
        *count += 1;
        // A round cannot end without the segment that should have come, so there is nothing to wait for.
        let is_fatal = matches!(reject, Reject::Segment | Reject::OverCredit | Reject::Word);
        let is_last = *count >= REJECTS_MAX;
        if let (Stage::Member(seat), true) = (&mut self.stage, is_last) {
            seat.membership.expel(peer, Cause::Violations, out);
        }
        if is_last || is_fatal {
            let words = format!("hung up on it after {count} violations, the last: {reject}");
            out.push(Output::Hangup(peer));
            self.link_down(now, peer, words, out);
        }
    }
}
