//! The driver: the only loop. It hands a machine its inputs one at a time and carries out what comes back.
//!
//! # Invariants
//! - Everything that one call asks for is carried out before the next call.
//! - A machine hears of a link's up, then its frames, then its down. What it sends into a link that has gone meanwhile is
//!   dropped: it is about to hear of that.
//! - The machine is called by one task only, and never waits for anything.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use peergrad_protocol::invite::Secret;
use peergrad_protocol::{Instant, PeerId};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::checkpoints::Checkpoints;
use super::clock::Clock;
use super::compute::Compute;
use super::link::{Link, LinkEvent};
use super::network::Network;
use super::store::Store;
use crate::io::{DataReference, Event, Input, Output};
use crate::overview::Overview;

/// What the driver drives: a node, or something simpler in a test.
pub trait Machine {
    /// Takes in one input and appends what is to be done.
    fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Output>);

    /// When to call again with a tick, at the latest.
    fn deadline(&self) -> Option<Instant>;

    /// How it stands, for somebody who asks; `None` if it has nothing to tell.
    fn overview(&self, _now: Instant) -> Option<Overview> {
        None
    }
}

impl Machine for crate::node::Node {
    fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Output>) {
        Self::handle(self, now, input, out);
    }

    fn deadline(&self) -> Option<Instant> {
        Self::deadline(self)
    }

    fn overview(&self, now: Instant) -> Option<Overview> {
        Some(Self::overview(self, now))
    }
}

/// Looks for a data file on this machine. May read from disk: it runs on a thread where that does no harm.
pub type Locate = Arc<dyn Fn(&DataReference) -> Option<Arc<[u8]>> + Send + Sync>;

/// What somebody at this machine asks of a machine that is driven.
#[derive(Debug)]
pub enum Inquiry {
    /// How does it stand?
    Look(oneshot::Sender<Overview>),
    /// This member is to be put out of the run.
    Expel(PeerId),
    /// What nobody has any more of tables is lost for good.
    DeclareLost,
    /// The run is to have another secret.
    Rekey {
        /// The secret.
        secret: Secret,
        /// When it was drawn: Unix time in milliseconds.
        at: u64,
    },
}

/// All that a machine needs around it.
pub struct Surroundings {
    /// Its links.
    pub network: Network,
    /// Its jobs.
    pub compute: Compute,
    /// Its time.
    pub clock: Clock,
    /// Its data.
    pub locate: Locate,
    /// Its record that survives crashes.
    pub store: Store,
    /// Its checkpoints.
    pub checkpoints: Checkpoints,
    /// Where its events go.
    pub events: mpsc::UnboundedSender<Event>,
    /// Who asks how it stands.
    pub inquiries: mpsc::Receiver<Inquiry>,
}

/// Drives `machine` until it has told [`Event::Ended`], and its last frames have arrived or had `PARTING_MAX` to.
///
/// When `leave` is done, the machine is asked to leave, once.
pub async fn drive(machine: &mut impl Machine, surroundings: Surroundings, leave: impl Future<Output = ()>) {
    let mut driver = Driver::new(surroundings);
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
            Some(inquiry) = driver.inquiries.recv() => driver.take(machine, inquiry),
            () = &mut leave, if !is_leaving => {
                is_leaving = true;
                driver.feed(machine, Input::Leave);
            }
        }
    }
    driver.part().await;
}

struct Driver {
    network: Network,
    compute: Compute,
    clock: Clock,
    locate: Locate,
    store: Store,
    checkpoints: Checkpoints,
    events: mpsc::UnboundedSender<Event>,
    inquiries: mpsc::Receiver<Inquiry>,
    /// The links that the machine knows of.
    links: BTreeMap<PeerId, Arc<Link>>,
    /// Those of them that lead through another peer, as the machine knows it.
    relayed: BTreeSet<PeerId>,
    /// Links that the machine has hung up; what it sent last is still on its way.
    parting: Vec<Arc<Link>>,
    /// Inputs that outputs led to.
    own: VecDeque<Input>,
    found: mpsc::UnboundedSender<Input>,
    located: mpsc::UnboundedReceiver<Input>,
    has_ended: bool,
}

impl Driver {
    fn new(surroundings: Surroundings) -> Self {
        let Surroundings { network, compute, clock, locate, store, checkpoints, events, inquiries } =
            surroundings;
        let (found, located) = mpsc::unbounded_channel();
        Self {
            network,
            compute,
            clock,
            locate,
            store,
            checkpoints,
            events,
            inquiries,
            links: BTreeMap::new(),
            relayed: BTreeSet::new(),
            parting: Vec::new(),
            own: VecDeque::new(),
            found,
            located,
            has_ended: false,
        }
    }

    /// Hands over one input, and then those that its outputs lead to.
    fn feed(&mut self, machine: &mut impl Machine, input: Input) {
        let mut out = Vec::new();
        let mut next = Some(input);
        while let Some(input) = next {
            machine.handle(self.clock.now(), input, &mut out);
            out.drain(..).for_each(|output| self.carry_out(output));
            if self.has_ended {
                return;
            }
            next = self.own.pop_front();
        }
    }

    fn on_link_event(&mut self, machine: &mut impl Machine, event: LinkEvent) {
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
            LinkEvent::Widened(link) if self.knows(&link) => {
                self.relayed.remove(&link.peer());
                self.feed(machine, Input::Relayed { peer: link.peer(), is_relayed: false });
            }
            LinkEvent::Placed { addresses, is_reachable } => {
                self.feed(machine, Input::Placed { addresses, is_reachable });
            }
            LinkEvent::Outdated { by } => self.feed(machine, Input::Outdated { by }),
            LinkEvent::Down { link, reason } if self.knows(&link) => {
                self.links.remove(&link.peer());
                self.relayed.remove(&link.peer());
                self.feed(machine, Input::LinkDown { peer: link.peer(), reason });
            }
            // Of a link that the machine has hung up.
            LinkEvent::Frame { .. }
            | LinkEvent::Credit { .. }
            | LinkEvent::Widened(_)
            | LinkEvent::Down { .. } => {}
        }
    }

    fn take(&mut self, machine: &mut impl Machine, inquiry: Inquiry) {
        match inquiry {
            Inquiry::Look(reply) => {
                if let Some(overview) = machine.overview(self.clock.now()) {
                    // Whoever has asked may have gone.
                    let _ = reply.send(overview);
                }
            }
            Inquiry::Expel(peer) => self.feed(machine, Input::Expel(peer)),
            Inquiry::DeclareLost => self.feed(machine, Input::DeclareLost),
            Inquiry::Rekey { secret, at } => self.feed(machine, Input::Rekey { secret, at }),
        }
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Send { to, frame } if to == self.network.peer() => {
                self.own.push_back(Input::Frame { from: to, frame });
            }
            Output::Send { to, frame } if frame.payload.is_some() && self.relayed.contains(&to) => {
                // Tensors never pass through a relay. Whoever has some for this peer has to reach it.
                let reason = "only a relay leads to it, and that carries no tensors".to_owned();
                self.carry_out(Output::Hangup(to));
                self.own.push_back(Input::LinkDown { peer: to, reason });
            }
            Output::Send { to, frame } => {
                if let Some(link) = self.links.get(&to) {
                    link.send(frame);
                }
            }
            Output::Credit { to, segments } if to == self.network.peer() => {
                self.own.push_back(Input::Credit { peer: to, segments });
            }
            Output::Credit { to, segments } => {
                if let Some(link) = self.links.get(&to) {
                    link.give_credit(segments);
                }
            }
            Output::Dial(contact) => self.network.dial(contact),
            Output::Hangup(peer) => match self.links.remove(&peer) {
                Some(link) => {
                    self.relayed.remove(&peer);
                    self.parting.push(link);
                    self.network.hang_up(peer);
                }
                // There may be another link already, which the machine does not know of yet.
                None => self.network.stop_dialing(peer),
            },
            Output::Compute(job) => self.compute.run(job),
            Output::Locate(reference) => {
                let (locate, found) = (Arc::clone(&self.locate), self.found.clone());
                // The driver may have ended by the time a slow disk answers.
                tokio::task::spawn_blocking(move || drop(found.send(Input::Located(locate(&reference)))));
            }
            Output::Persist { id, record } => self.store.persist(id, record),
            Output::KeepData { reference, data } => self.checkpoints.keep_data(reference, data),
            Output::Save { checkpoint, keep } => self.checkpoints.save(checkpoint, keep),
            Output::Restore(saved) => self.checkpoints.restore(saved),
            Output::Event(event) => {
                self.has_ended |= matches!(event, Event::Ended(_));
                match &event {
                    Event::Installed { view, .. } => {
                        let members = view.members.iter().map(|member| member.peer);
                        self.network.keep_dialing_only(members.collect());
                    }
                    Event::Rekeyed { rekey, members } => {
                        self.network.change_secret(rekey.secret, members.clone());
                    }
                    _ => {}
                }
                tracing::debug!(target: "peergrad::event", peer = self.network.peer().short(), ?event);
                // Nobody has to listen.
                let _ = self.events.send(event);
            }
        }
    }

    /// Says goodbye to everyone, and gives the last frames time to arrive.
    async fn part(mut self) {
        for peer in self.links.keys() {
            self.network.hang_up(*peer);
        }
        self.parting.extend(self.links.into_values());
        let all_settled = async {
            for link in &self.parting {
                link.settled().await;
            }
        };
        let settled = timeout(PARTING_MAX, all_settled);
        // What still comes in is taken and dropped, or the others' last frames would wait for room.
        let discard = async {
            loop {
                self.network.next().await;
            }
        };
        tokio::select! {
            _ = settled => {}
            () = discard => {}
        }
        // What the run leaves here may be all that is left of it.
        for answer in self.checkpoints.finish().await {
            if let Input::Saved { steps, result } = answer {
                let _ = self.events.send(Event::Saved { steps, result });
            }
        }
        self.network.close().await;
    }

    fn knows(&self, link: &Arc<Link>) -> bool {
        self.links.get(&link.peer()).is_some_and(|known| Arc::ptr_eq(known, link))
    }
}

async fn wait_until(clock: Clock, deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep(clock.until(deadline)).await,
        None => std::future::pending().await,
    }
}

/// How long the end waits for last frames to arrive.
const PARTING_MAX: Duration = Duration::from_secs(3);
