//! The driver: the only loop. It hands a machine its inputs one at a time and carries out what comes back.
//!
//! # Invariants
//! - All outputs of one call are carried out before the next call.
//! - For each link the machine is told first that it is up, then its frames, then that it is down. A frame for a link that is already
//!   down is dropped: the machine is about to be told.
//! - Only one task calls the machine, and a call never waits for anything.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use peergrad_core::io::{DataReference, Event, FoundData, Input, Output};
use peergrad_core::node_report::NodeReport;
use peergrad_protocol::invite::Secret;
use peergrad_protocol::{Frame, Instant, PeerId};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use super::checkpoints::Checkpoints;
use super::clock::MonotonicClock;
use super::compute::Compute;
use super::link::{Link, LinkEvent};
use super::network::Network;
use super::stable_storage::StableStorage;

/// What the driver drives: a node, or something simpler in a test.
pub trait StateMachine {
    /// Takes in one input and appends what is to be done.
    fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Output>);

    /// The latest time of the next call with a tick; `None` if no tick is needed.
    fn deadline(&self) -> Option<Instant>;

    /// A report of its state for a status request; `None` from a machine that reports no state.
    fn node_report(&self, _now: Instant) -> Option<NodeReport> {
        None
    }
}

impl StateMachine for peergrad_core::node::Node {
    fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Output>) {
        Self::handle(self, now, input, out);
    }

    fn deadline(&self) -> Option<Instant> {
        Self::deadline(self)
    }

    fn node_report(&self, now: Instant) -> Option<NodeReport> {
        Some(Self::node_report(self, now))
    }
}

/// Looks for a data file on this machine. It may read from disk: it runs on a thread for blocking work.
pub type DataFinder = Arc<dyn Fn(&DataReference) -> FoundData + Send + Sync>;

/// A request from a command on this computer to the machine that is driven.
#[derive(Debug)]
pub enum AdminRequest {
    /// Report the machine's state.
    Report(oneshot::Sender<NodeReport>),
    /// Expel this member from the run.
    Expel(PeerId),
    /// End the run at all members.
    EndRun,
    /// Give up the table chunks that no member has any more.
    DeclareLost,
    /// Give the run another secret.
    Rekey {
        /// The new secret.
        secret: Secret,
        /// When it was drawn: Unix time in milliseconds.
        at: u64,
    },
}

/// Everything that a machine needs around it.
pub struct Environment {
    /// Carries frames to other peers.
    pub network: Network,
    /// Runs the computing jobs.
    pub compute: Compute,
    /// Tells the time.
    pub clock: MonotonicClock,
    /// Finds data files.
    pub find_data: DataFinder,
    /// Keeps the record that survives crashes.
    pub store: StableStorage,
    /// Writes and reads checkpoints.
    pub checkpoints: Checkpoints,
    /// Receives the machine's events.
    pub events: mpsc::UnboundedSender<Event>,
    /// Brings requests from commands on this computer.
    pub admin_requests: mpsc::Receiver<AdminRequest>,
    /// Says for how long the program is busy, from each change on; zero if it is not.
    pub busy: watch::Receiver<Duration>,
}

/// Drives `machine` until it reports [`Event::Ended`], and then until its last frames have arrived or `CLOSING_MAX` has passed.
///
/// When `leave` completes, the machine is asked to leave, once.
pub async fn drive(
    machine: &mut impl StateMachine,
    environment: Environment,
    leave: impl Future<Output = ()>,
) {
    let mut driver = Driver::new(environment);
    driver.feed(machine, Input::Tick);
    let mut leave = std::pin::pin!(leave);
    let mut is_leaving = false;
    while !driver.has_ended {
        let deadline = machine.deadline();
        tokio::select! {
            event = driver.network.next() => driver.on_link_event(machine, event),
            input = driver.compute.finished() => driver.feed(machine, input),
            Some(input) = driver.located.recv() => driver.feed(machine, input),
            input = driver.store.persisted() => driver.feed(machine, input),
            input = driver.checkpoints.answer() => driver.feed(machine, input),
            () = wait_until(driver.clock, deadline) => driver.feed(machine, Input::Tick),
            Ok(()) = driver.busy.changed() => {
                let time = *driver.busy.borrow_and_update();
                driver.feed(machine, Input::Busy(time));
            }
            Some(request) = driver.admin_requests.recv() => driver.on_admin_request(machine, request),
            () = &mut leave, if !is_leaving => {
                is_leaving = true;
                driver.feed(machine, Input::Leave);
            }
        }
    }
    driver.close().await;
}

struct Driver {
    network: Network,
    compute: Compute,
    clock: MonotonicClock,
    find_data: DataFinder,
    store: StableStorage,
    checkpoints: Checkpoints,
    events: mpsc::UnboundedSender<Event>,
    admin_requests: mpsc::Receiver<AdminRequest>,
    busy: watch::Receiver<Duration>,
    /// The links that the machine knows of.
    links: BTreeMap<PeerId, Arc<Link>>,
    /// Peers whose link leads through a relay, as far as the machine knows.
    relayed: BTreeSet<PeerId>,
    /// Whether much was on its way, to whatever peer, at the last tick.
    is_busy: bool,
    /// Links that the machine has closed, and whose last frames are still under way.
    closing_links: Vec<Arc<Link>>,
    /// Inputs that follow from outputs, for after the current call.
    loopback: VecDeque<Input>,
    found: mpsc::UnboundedSender<Input>,
    located: mpsc::UnboundedReceiver<Input>,
    has_ended: bool,
}

impl Driver {
    fn new(environment: Environment) -> Self {
        let Environment {
            network,
            compute,
            clock,
            find_data,
            store,
            checkpoints,
            events,
            admin_requests,
            busy,
        } = environment;
        let (found, located) = mpsc::unbounded_channel();
        Self {
            network,
            compute,
            clock,
            find_data,
            store,
            checkpoints,
            events,
            admin_requests,
            busy,
            links: BTreeMap::new(),
            relayed: BTreeSet::new(),
            is_busy: false,
            closing_links: Vec::new(),
            loopback: VecDeque::new(),
            found,
            located,
            has_ended: false,
        }
    }

    /// Says whether a link is busy, since heartbeats do.
    fn report_busy_uplink(&mut self, machine: &mut impl StateMachine) {
        let is_busy = self.links.values().any(|link| link.is_busy());
        if std::mem::replace(&mut self.is_busy, is_busy) != is_busy {
            self.hand_over(machine, Input::UplinkBusy(is_busy));
        }
    }

    /// Hands over an input. If a deadline has passed, the machine may send heartbeats.
    fn feed(&mut self, machine: &mut impl StateMachine, input: Input) {
        if machine.deadline().is_some_and(|deadline| deadline <= self.clock.now()) {
            self.report_busy_uplink(machine);
        }
        self.hand_over(machine, input);
    }

    /// Hands over one input, and then those that its outputs lead to.
    fn hand_over(&mut self, machine: &mut impl StateMachine, input: Input) {
        let mut out = Vec::new();
        let mut next = Some(input);
        while let Some(input) = next {
            machine.handle(self.clock.now(), input, &mut out);
            out.drain(..).for_each(|output| self.execute(output));
            if self.has_ended {
                return;
            }
            next = self.loopback.pop_front();
        }
    }

    fn on_link_event(&mut self, machine: &mut impl StateMachine, event: LinkEvent) {
        match event {
            LinkEvent::Up(link) => {
                let (peer, is_relayed) = (link.peer(), link.is_relayed());
                self.links.insert(peer, link);
                if is_relayed {
                    self.relayed.insert(peer);
                    self.feed(machine, Input::Relayed { peer, is_relayed });
                }
                self.feed(machine, Input::LinkUp(peer));
            }
            LinkEvent::Frame { link, frame, room: _room } if self.knows(&link) => {
                self.feed(machine, Input::Frame { from: link.peer(), frame });
            }
            LinkEvent::Credit { link, segments } if self.knows(&link) => {
                self.feed(machine, Input::Credit { peer: link.peer(), segments });
            }
            LinkEvent::LineMeasured { link, line } if self.knows(&link) => {
                self.feed(machine, Input::LineMeasured { peer: link.peer(), line });
            }
            LinkEvent::UplinkMeasured { bytes_per_second } => {
                self.feed(machine, Input::UplinkMeasured { bytes_per_second });
            }
            LinkEvent::NoLongerRelayed(link) if self.knows(&link) => {
                self.relayed.remove(&link.peer());
                self.feed(machine, Input::Relayed { peer: link.peer(), is_relayed: false });
            }
            LinkEvent::ReachabilityChanged { addresses, is_reachable } => {
                self.feed(machine, Input::ReachabilityChanged { addresses, is_reachable });
            }
            LinkEvent::BadStream(peer) => self.feed(machine, Input::BadStream(peer)),
            LinkEvent::DuplicateIdentity { by } => self.feed(machine, Input::DuplicateIdentity { by }),
            LinkEvent::Down { link, reason } if self.knows(&link) => {
                self.links.remove(&link.peer());
                self.relayed.remove(&link.peer());
                self.feed(machine, Input::LinkDown { peer: link.peer(), reason });
            }
            // Events of a link that the machine has closed.
            LinkEvent::Frame { .. }
            | LinkEvent::Credit { .. }
            | LinkEvent::LineMeasured { .. }
            | LinkEvent::NoLongerRelayed(_)
            | LinkEvent::Down { .. } => {}
        }
    }

    fn on_admin_request(&mut self, machine: &mut impl StateMachine, request: AdminRequest) {
        match request {
            AdminRequest::Report(reply) => {
                if let Some(node_report) = machine.node_report(self.clock.now()) {
                    // The command that asked may have ended.
                    let _ = reply.send(node_report);
                }
            }
            AdminRequest::Expel(peer) => self.feed(machine, Input::Expel(peer)),
            AdminRequest::EndRun => self.feed(machine, Input::EndRun),
            AdminRequest::DeclareLost => self.feed(machine, Input::DeclareLost),
            AdminRequest::Rekey { secret, at } => self.feed(machine, Input::Rekey { secret, at }),
        }
    }

    /// Carries out what the machine asks for.
    fn execute(&mut self, output: Output) {
        match output {
            Output::Send { to, frame } => self.send(to, frame),
            Output::Credit { to, segments } => self.give_credit(to, segments),
            Output::Dial(contact) => self.network.dial(contact),
            Output::Disconnect(peer) => self.disconnect(peer),
            Output::Compute(job) => self.compute.run(job),
            Output::FindData(reference) => {
                let (find_data, found) = (Arc::clone(&self.find_data), self.found.clone());
                // The driver may have ended by the time a slow disk answers.
                tokio::task::spawn_blocking(move || {
                    drop(found.send(Input::DataFound(find_data(&reference))))
                });
            }
            Output::Persist { id, record } => self.store.persist(id, record),
            Output::StoreData { reference, data } => self.checkpoints.keep_data(reference, data),
            Output::StorePiece { reference, offset, piece } => {
                self.checkpoints.keep_piece(reference, offset, piece);
            }
            Output::SaveCheckpoint { checkpoint, retention } => {
                self.checkpoints.save(checkpoint, retention);
            }
            Output::KeepBest { run, steps } => self.checkpoints.keep_best(run, steps),
            Output::LoadCheckpoint(saved) => self.checkpoints.restore(saved),
            Output::Event(event) => self.report(event),
        }
    }

    /// Sends a frame on the link to a peer; a frame to this peer itself becomes an input.
    fn send(&mut self, to: PeerId, frame: Frame) {
        if to == self.network.peer() {
            return self.loopback.push_back(Input::Frame { from: to, frame });
        }
        if frame.payload.is_some() && self.relayed.contains(&to) {
            // Tensors never pass through a relay: a peer that receives some must be reachable directly.
            let reason = "it is connected through a relay only, and a relay carries no tensors".to_owned();
            self.disconnect(to);
            return self.loopback.push_back(Input::LinkDown { peer: to, reason });
        }
        if let Some(link) = self.links.get(&to) {
            link.send(frame);
        }
    }

    fn give_credit(&mut self, to: PeerId, segments: u32) {
        if to == self.network.peer() {
            self.loopback.push_back(Input::Credit { peer: to, segments });
        } else if let Some(link) = self.links.get(&to) {
            link.give_credit(segments);
        }
    }

    fn disconnect(&mut self, peer: PeerId) {
        match self.links.remove(&peer) {
            Some(link) => {
                self.relayed.remove(&peer);
                self.closing_links.push(link);
                self.network.hang_up(peer);
            }
            // There may be another link already, which the machine does not know of yet.
            None => self.network.stop_dialing(peer),
        }
    }

    /// Passes on an event, and has the network follow it: a view names the peers to dial, a rekey the secret.
    fn report(&mut self, event: Event) {
        self.has_ended |= matches!(event, Event::Ended(_));
        match &event {
            Event::ViewInstalled { view, .. } => {
                let members = view.members.iter().map(|member| member.peer);
                self.network.keep_dialing_only(members.collect());
            }
            Event::Rekeyed { rekey, members } => {
                self.network.change_secret(rekey.secret, members.clone());
            }
            _ => {}
        }
        tracing::debug!(target: "peergrad::event", peer = self.network.peer().short(), ?event);
        // The receiver may be gone: events need no listener.
        let _ = self.events.send(event);
    }

    /// Closes all links in order, and gives the last frames time to arrive.
    async fn close(mut self) {
        for peer in self.links.keys() {
            self.network.hang_up(*peer);
        }
        self.closing_links.extend(self.links.into_values());
        let all_drained = async {
            for link in &self.closing_links {
                link.drained().await;
            }
        };
        let drained = timeout(CLOSING_MAX, all_drained);
        // Incoming events are taken and dropped: otherwise the other peers' last frames would wait for room.
        let discard = async {
            loop {
                self.network.next().await;
            }
        };
        tokio::select! {
            _ = drained => {}
            () = discard => {}
        }
        // This checkpoint may be the only one that is left of the run.
        for answer in self.checkpoints.finish().await {
            if let Input::CheckpointSaved { steps, result } = answer {
                let _ = self.events.send(Event::Saved { steps, result });
            }
        }
        self.network.close().await;
    }

    fn knows(&self, link: &Arc<Link>) -> bool {
        self.links.get(&link.peer()).is_some_and(|known| Arc::ptr_eq(known, link))
    }
}

async fn wait_until(clock: MonotonicClock, deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep(clock.until(deadline)).await,
        None => std::future::pending().await,
    }
}

/// How long closing waits for the last frames to arrive.
const CLOSING_MAX: Duration = Duration::from_secs(3);
