//! The machine: routes inputs and commands to the role of the node, and changes the role. No algorithm lives here.
//!
//! ```text
//!   Input --> Machine { role, node } --> the role's method for that input, with the shared parts of the node
//!                 ^                                        |
//!                 '---------- Transition, if the role ends -'
//! ```

use std::sync::Arc;

use peergrad_protocol::durable::DurableRecord;
use peergrad_protocol::message::{Contact, Departure, Heartbeat, Message, Refusal};
use peergrad_protocol::view::{ExpulsionCause, Member};
use peergrad_protocol::{Buffer, Frame, Instant, PeerId, RunId};

use crate::config::{Config, StartMode};
use crate::io::{Ended, Event, Failure, Input, JobId, JobOutput, Output, Panicked, Reject};
use crate::machine::context::{NodeContext, NodeParts};
use crate::machine::early_frames::EarlyFrames;
use crate::machine::frame_audit::FrameAudit;
use crate::machine::jobs::{Jobs, Purpose};
use crate::machine::member::{ActiveMember, commands};
use crate::machine::preparation::Prepared;
use crate::machine::program_state::ProgramState;
use crate::machine::role::{Farewell, Interrupt, Role, Transition};
use crate::machine::run_setup::RunSetup;
use crate::machine::violations::Violations;
use crate::membership::bootstrap::Founder;
use crate::membership::join::Joiner;
use crate::membership::journal::Journal;
use crate::membership::own_capacity::OwnCapacity;
use crate::membership::recovery::RecoveringMember;
use crate::node_report::{NodeReport, NodeState};
use crate::peer_links::{PeerLinks, Route};
use crate::program::command::{JobReply, ProgramCommand};
use crate::program::executor::ProgramExecutor;

mod context;
mod early_frames;
mod fetching;
mod founder;
mod frame_audit;
mod jobs;
mod joiner;
mod member;
mod preparation;
mod program_state;
mod role;
mod run_setup;
mod speed_meter;
mod violations;

/// All state of a node except its program.
pub(crate) struct Machine {
    /// What this peer is in its run.
    role: NodeRole,
    /// What all roles share.
    node: NodeParts,
}

/// The role of the node.
enum NodeRole {
    /// It founds a run.
    Founder(Box<Founder>),
    /// It asks to join.
    Joiner(Box<Joiner>),
    /// It is in a view.
    Member(Box<ActiveMember>),
    /// The run has ended here.
    Ended,
}

impl NodeRole {
    /// The role that handles inputs; `None` once the run has ended here.
    fn active(&self) -> Option<&dyn Role> {
        match self {
            Self::Founder(founder) => Some(&**founder),
            Self::Joiner(joiner) => Some(&**joiner),
            Self::Member(active) => Some(&**active),
            Self::Ended => None,
        }
    }

    /// As [`NodeRole::active`], to be changed by an input.
    fn active_mut(&mut self) -> Option<&mut dyn Role> {
        match self {
            Self::Founder(founder) => Some(&mut **founder),
            Self::Joiner(joiner) => Some(&mut **joiner),
            Self::Member(active) => Some(&mut **active),
            Self::Ended => None,
        }
    }

    /// The member; `None` in any other role.
    fn member(&self) -> Option<&ActiveMember> {
        if let Self::Member(active) = self { Some(active) } else { None }
    }
}

impl Machine {
    pub(crate) fn new(config: Config) -> Self {
        let own_capacity = OwnCapacity::new(config.capacity);
        let me = Member {
            peer: config.peer,
            incarnation: config.incarnation,
            addresses: config.addresses,
            capacity: own_capacity.offered(),
        };
        let (role, defined) = match config.start_mode {
            StartMode::Bootstrap { specification, nonce, peers, from } => {
                let run = RunId::derive(&specification, &nonce);
                let founder = Founder::new(run, nonce, me.clone(), peers, from);
                (NodeRole::Founder(Box::new(founder)), Some((specification, nonce)))
            }
            StartMode::Join { run } => {
                let restored = config.restored.and_then(|record| DurableRecord::from_bytes(&record));
                let is_whole = |durable: &DurableRecord| {
                    durable.definition.run() == durable.view.run && durable.view.rank(&me.peer).is_some()
                };
                let recovering =
                    restored.filter(is_whole).map(|it| RecoveringMember::new(it, me.clone(), config.saved));
                let mut joiner = Joiner::new(run, me.clone(), recovering);
                // It takes the definition of the run from its own record, because perhaps no member is there to send it.
                let definition =
                    joiner.recovering().filter(|_| run.is_some()).map(|it| it.definition().clone());
                let defined = definition.map(|it| (it.specification.into(), it.nonce));
                (NodeRole::Joiner(Box::new(joiner)), defined)
            }
        };
        let node = NodeParts {
            me,
            own_capacity,
            segments: config.segments,
            cache: config.cache,
            links: PeerLinks::default(),
            early_frames: EarlyFrames::default(),
            violations: Violations::default(),
            frame_audit: FrameAudit::default(),
            run: RunSetup::new(config.loader, defined),
            jobs: Jobs::default(),
            journal: Journal::default(),
            program: ProgramState::default(),
            state_before: None,
            removals_before: Vec::new(),
        };
        Self { role, node }
    }

    // Inspection.

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.role.active().and_then(Role::next_tick)
    }

    pub(crate) fn state(&self) -> NodeState {
        self.role.active().map_or(NodeState::Ended, Role::state)
    }

    pub(crate) fn node_report(&self, now: Instant) -> NodeReport {
        self.role.active().map_or(NodeReport::Ended, |role| role.report(now, &self.node.jobs))
    }

    /// The newest committed parameters; `None` unless this peer is a member that has them.
    pub(crate) fn parameters(&self) -> Option<&Arc<Buffer>> {
        self.role.member()?.training.parameters()
    }

    pub(crate) fn optimizer_states(&self) -> impl Iterator<Item = (usize, &[f32], u32)> {
        let steps = self.role.member().and_then(|active| active.training.steps());
        steps.into_iter().flat_map(|steps| steps.state().optimizer_states())
    }

    // Inputs.

    pub(crate) fn input(&mut self, now: Instant, input: Input, out: &mut Vec<Output>) {
        let handled = match self.borrow(now, out) {
            Some((role, mut cx)) => handle(role, &mut cx, input),
            None => return,
        };
        self.carry_out(now, handled, out);
        if let Some((role, mut cx)) = self.borrow(now, out) {
            role.retire_if_done(&mut cx);
        }
        self.advance(now, out);
        // A view that begins here, or a new link, has a heartbeat due at once, from which the others count frames.
        if self.deadline().is_some_and(|due| due <= now)
            && let Some((role, mut cx)) = self.borrow(now, out)
        {
            role.on_tick(&mut cx);
        }
    }

    /// The role, and the context in which it handles an input; `None` if the run has ended here.
    fn borrow<'a>(
        &'a mut self,
        now: Instant,
        out: &'a mut Vec<Output>,
    ) -> Option<(&'a mut dyn Role, NodeContext<'a>)> {
        let Self { role, node } = self;
        Some((role.active_mut()?, NodeContext { now, node, out }))
    }

    /// Does whatever has become possible: enter the first view or the next one, or end the run.
    fn advance(&mut self, now: Instant, out: &mut Vec<Output>) {
        let advanced = match self.borrow(now, out) {
            Some((role, mut cx)) => role.advance(&mut cx),
            None => return,
        };
        self.carry_out(now, advanced, out);
    }

    // The program.

    /// The program, when it is time to start it; `None` otherwise.
    pub(crate) fn program(&mut self) -> Option<ProgramExecutor> {
        if !matches!(self.node.program, ProgramState::NotStarted) {
            return None;
        }
        let program = self.role.member().and_then(commands::program)?;
        self.node.program = ProgramState::Running;
        Some(program)
    }

    /// Carries out one command of the program. While there is no view, the program waits for one.
    pub(crate) fn command(&mut self, now: Instant, command: ProgramCommand, out: &mut Vec<Output>) {
        let Self { role, node } = self;
        match (role, command) {
            (NodeRole::Member(active), command) => {
                commands::carry_out(active, &mut NodeContext { now, node, out }, command);
                self.advance(now, out);
            }
            (_, ProgramCommand::Ready(reply)) => node.program.park(reply),
            // It belongs to a view that this peer has left.
            _ => {}
        }
    }

    // Frames.

    /// Counts the frames among the outputs from the index `first` on, and adds what is due and names these counts: after an entry into a view
    /// and with heartbeats.
    pub(crate) fn count_sent(&mut self, now: Instant, first: usize, out: &mut Vec<Output>) {
        let Self { role, node } = self;
        let NodeParts { frame_audit, links, .. } = node;
        for output in &out[first..] {
            if let Output::Send { to, frame } = output {
                frame_audit.note_used(to, frame.priority());
            }
        }
        let mut send = |frame_audit: &mut FrameAudit, to, message: &Message| {
            frame_audit.note_sent(&to, message.priority());
            out.push(Output::Send { to, frame: Frame::encode(message, None) });
        };
        for (to, frame_count) in frame_audit.counts_on_entry() {
            send(frame_audit, to, &frame_count);
        }
        let Some((heartbeat, receivers)) = role.active_mut().and_then(|role| role.take_heartbeat()) else {
            return;
        };
        for to in receivers {
            let heartbeat = Heartbeat { window_bytes: links.window_bytes(&to), ..heartbeat };
            let heartbeat = frame_audit.heartbeat_to(now, &to, heartbeat);
            let frame_count = frame_audit.count_to(&to, heartbeat.view);
            send(frame_audit, to, &Message::Heartbeat(heartbeat));
            if let Some(frame_count) = frame_count {
                send(frame_audit, to, &frame_count);
            }
        }
    }

    // The change of the role.

    /// Changes the role, if it has ended.
    fn carry_out(&mut self, now: Instant, handled: Result<(), Transition>, out: &mut Vec<Output>) {
        match handled {
            Ok(()) => {}
            Err(Transition::Enter(entry)) => {
                let mut cx = NodeContext { now, node: &mut self.node, out };
                self.role = NodeRole::Member(Box::new(ActiveMember::begin_in(entry, &mut cx)));
            }
            Err(Transition::Rejoin { run, contacts }) => self.rejoin(now, run, contacts, out),
            Err(Transition::Complete(state)) => {
                let ended = Ended { outcome: Ok(()), state: Some(*state) };
                out.push(Output::Event(Event::Ended(ended)));
                self.role = NodeRole::Ended;
            }
            Err(Transition::Fail(failure)) => self.fail(now, failure, out),
        }
    }

    /// This peer is in no view any more. It asks to join again, first the members that it knows.
    fn rejoin(&mut self, now: Instant, run: RunId, contacts: Vec<Contact>, out: &mut Vec<Output>) {
        if let NodeRole::Member(active) = std::mem::replace(&mut self.role, NodeRole::Ended) {
            active.leave_view(&mut NodeContext { now, node: &mut self.node, out });
        }
        let node = &mut self.node;
        node.me.incarnation = node.me.incarnation.next();
        let mut joiner = Joiner::rejoining(run, contacts, node.me.clone());
        node.links.relayed().for_each(|peer| joiner.set_route(peer, Route::Relayed));
        joiner.ask_all(now, node.links.linked(), out);
        self.role = NodeRole::Joiner(Box::new(joiner));
    }

    /// Ends the run at this peer before the run is complete, and tells the others why.
    fn fail(&mut self, now: Instant, failure: Failure, out: &mut Vec<Output>) {
        let Some((role, mut cx)) = self.borrow(now, out) else { return };
        let Farewell { state, peers } = role.farewell(&mut cx);
        cx.send_to_linked(peers, &Message::Leave(Departure::new(&failure.to_string())));
        out.push(Output::Event(Event::Ended(Ended { outcome: Err(failure), state })));
        self.role = NodeRole::Ended;
    }
}

/// Has the role handle one input.
fn handle(role: &mut dyn Role, cx: &mut NodeContext<'_>, input: Input) -> Result<(), Transition> {
    if cx.node.run.is_due() {
        role.on_start(cx);
        cx.node.run.begin(&mut cx.node.jobs, cx.out)?;
    }
    role.wake();
    match input {
        Input::Tick => role.on_tick(cx),
        Input::Frame { from, frame } => match receive(role, cx, from, frame) {
            Ok(()) => {}
            Err(Interrupt::Reject(reject)) => role.reject(cx, from, reject),
            Err(Interrupt::Transition(transition)) => return Err(transition),
        },
        Input::LinkUp(peer) => {
            cx.node.links.up(peer);
            cx.node.frame_audit.link_up(peer);
            role.on_link_up(cx, peer);
        }
        Input::LinkDown { peer, reason } => role.lose_link(cx, peer, reason),
        Input::BadStream(peer) => role.reject(cx, peer, Reject::Stream),
        Input::Relayed { peer, is_relayed } => {
            let route = if is_relayed { Route::Relayed } else { Route::Direct };
            cx.node.links.set_route(peer, route);
            role.on_route_changed(cx, peer, route);
        }
        Input::ReachabilityChanged { addresses, is_reachable } => {
            cx.node.set_reachable(addresses, is_reachable);
            role.on_reachability_changed(cx);
        }
        Input::DuplicateIdentity { by } => {
            return Err(Failure::Refused { by, refusal: Refusal::DuplicateIdentity }.into());
        }
        Input::UplinkBusy(is_busy) => cx.node.frame_audit.set_busy(is_busy),
        Input::LineMeasured { peer, line } => cx.node.links.note_line(peer, line),
        Input::UplinkMeasured { bytes_per_second } => cx.node.links.note_uplink(bytes_per_second),
        Input::Credit { peer, segments } => role.on_credit(cx, peer, segments),
        Input::ComputedPart { job, part } => {
            if let Some(turn) = cx.node.jobs.turn_of_sums(job) {
                let part = *part.downcast().expect("a part of a contribution");
                role.on_contribution(cx, ProgramCommand::ContributePart { turn, part });
            }
        }
        Input::Computed { job, result } => computed(role, cx, job, result)?,
        Input::DataFound(data) => {
            cx.node.run.data_found(data, role.donor(), &mut cx.node.jobs, cx.out)?;
        }
        Input::PieceStored(stored) => cx.node.run.data_stored(stored, role.donor(), cx.out)?,
        Input::Persisted(id) => {
            let effects = cx.node.journal.persisted(id);
            role.on_persisted(cx, effects)?;
        }
        Input::NotPersisted(id) => {
            let effects = cx.node.journal.not_persisted(id, role.may_enter_unwritten());
            role.on_persisted(cx, effects)?;
        }
        Input::CheckpointSaved { steps, result } => {
            cx.out.push(Output::Event(Event::Saved { steps, result }));
        }
        Input::BestKept { steps, result } => {
            cx.out.push(Output::Event(Event::BestKept { steps, result }));
        }
        Input::CheckpointLoaded(result) => role.on_checkpoint_loaded(cx, result)?,
        request => obey(role, cx, request)?,
    }
    Ok(())
}

/// Has the role carry out a request of the user.
fn obey(role: &mut dyn Role, cx: &mut NodeContext<'_>, request: Input) -> Result<(), Transition> {
    match request {
        Input::Expel(peer) => role.expel(cx, peer, ExpulsionCause::Request),
        Input::EndRun => role.end_run(cx),
        Input::DeclareLost => role.declare_lost(),
        Input::Rekey { secret, at } => {
            role.rekey(cx, secret, at);
            return Ok(());
        }
        Input::Busy(time) => {
            cx.node.jobs.set_busy(cx.now, time);
            role.on_busy(cx);
            return Ok(());
        }
        Input::Leave => return role.leave(cx),
        _ => unreachable!("the node handles all others"),
    }
    role.poll(cx);
    Ok(())
}

/// Decodes a frame, and has the role handle its message. A frame that no correct peer sends here and now is rejected.
fn receive(
    role: &mut dyn Role,
    cx: &mut NodeContext<'_>,
    from: PeerId,
    frame: Frame,
) -> Result<(), Interrupt> {
    let message = cx.node.cache.message(&frame);
    let fault = message.as_ref().ok().and_then(|it| cx.node.frame_audit.compare(cx.now, from, it));
    cx.node.frame_audit.note_received(&from, frame.priority());
    if let Some(fault) = fault {
        role.complain(cx, from, fault);
    }
    match message.map_err(Reject::from)? {
        Message::InView { view, message } => Ok(role.on_view_message(cx, from, view, message, frame)?),
        message => {
            if let Message::FrameCount { view, .. } = &message {
                cx.node.early_frames.keep_only(from, *view, cx.out);
            }
            role.on_message(cx, from, message, frame.payload)
        }
    }
}

/// A job has finished: its result goes to the part that waits for it.
fn computed(
    role: &mut dyn Role,
    cx: &mut NodeContext<'_>,
    job: JobId,
    result: Result<JobOutput, Panicked>,
) -> Result<(), Transition> {
    // The job belongs to an interrupted step; its buffers return to their pool by themselves.
    let Some(purpose) = cx.node.jobs.finish(cx.now, job) else { return Ok(()) };
    let answer = result.map_err(|Panicked(message)| Failure::TaskPanicked(message))?;
    match purpose {
        Purpose::Program(job) => {
            match job.reply {
                JobReply::Program(reply) => reply(answer),
                JobReply::Sums { turn, reply } => {
                    let contribution = *answer.downcast().expect("a contribution");
                    let command = ProgramCommand::ReduceScatter { turn, contribution, among: None, reply };
                    role.on_contribution(cx, command);
                }
            }
            role.on_program_idle(cx);
        }
        Purpose::Load => {
            let prepared = answer.downcast::<Result<Prepared, String>>().expect("a loader's answer");
            cx.node.run.prepared(prepared.map_err(Failure::Unusable)?, cx.out);
            role.on_prepared(cx);
        }
        Purpose::EvaluateMerge => {
            let evaluation = *answer.downcast().expect("an evaluation of a merge");
            cx.out.push(Output::Event(Event::MergeEvaluation(evaluation)));
        }
        Purpose::EvaluateStep(steps) => {
            role.on_step_evaluated(cx, steps, *answer.downcast().expect("an evaluation"));
        }
        Purpose::Evaluate => role.on_evaluated(*answer.downcast().expect("an evaluation"))?,
    }
    Ok(())
}
