//! The environment of one process: all that the outputs of its node can touch.

use std::time::Duration;

use peergrad_core::io::{Event, FoundData, Input, Job, Output, Panicked};
use peergrad_core::state::shared_cache::SharedCache;
use peergrad_protocol::message::Contact;
use peergrad_protocol::{Frame, PeerId};
use rand::rngs::ChaCha8Rng;

use super::record::Record;
use super::schedule::{Schedule, ScheduledEvent};
use crate::filters::{Envelope, Filters, FrameAction};
use crate::host::{HostId, ProcessId, TaskFault, address};
use crate::hosts::Hosts;
use crate::network::{Network, Transmission};
use crate::observation::Observation;
use crate::world::World;

/// Carries out what a node asks for.
pub(super) struct Environment<'a> {
    /// The process whose node's outputs are carried out.
    pub(super) process: ProcessId,
    /// Answers are scheduled here.
    pub(super) schedule: &'a mut Schedule,
    /// The process's host has its disk and its speed; others have the peers that it sends to.
    pub(super) hosts: &'a mut Hosts,
    /// Frames, credit and dials go here.
    pub(super) network: &'a mut Network,
    /// They are asked before the network.
    pub(super) filters: &'a mut Filters,
    /// Events and observations go here.
    pub(super) record: &'a mut Record,
    /// Decoded messages, shared by all hosts.
    pub(super) cache: &'a SharedCache,
    /// The source of computing times.
    pub(super) generator: &'a mut ChaCha8Rng,
}

impl Environment<'_> {
    /// Carries out one output.
    pub(super) fn execute(&mut self, output: Output) {
        let process = self.process;
        let now = self.schedule.now();
        let setup = &mut self.hosts.get_mut(process.host).setup;
        match output {
            Output::Send { to, frame } => self.send(to, frame),
            Output::Credit { to, segments } => self.give_credit(to, segments),
            Output::Dial(contact) => self.dial(&contact),
            Output::Disconnect(peer) => self.disconnect(peer),
            Output::Compute(job) => self.compute(job),
            Output::FindData(_) => {
                let data = setup.data.clone();
                // Without a file the answer comes at once.
                let time = data.as_ref().map_or(Duration::ZERO, |_| setup.reading_time);
                self.schedule.push_input(
                    now.after(time),
                    process,
                    Input::DataFound(data.map_or(FoundData::Nothing, |data| FoundData::Whole(data.into()))),
                );
            }
            Output::Persist { id, record } => {
                let at = now.after(setup.disk.write_time);
                self.schedule.push(at, ScheduledEvent::Written { process, id, record });
                if let Some(running) = self.hosts.process_mut(process) {
                    running.newest_record = Some(id);
                }
            }
            Output::StoreData { data, .. } => setup.data = Some(data),
            Output::StorePiece { .. } => unreachable!("a simulated data file fits into memory"),
            Output::SaveCheckpoint { checkpoint, retention } => {
                let at = now.after(setup.disk.write_time);
                self.schedule.push(at, ScheduledEvent::Saved { process, checkpoint, retention });
            }
            Output::KeepBest { steps, .. } => {
                let at = now.after(setup.disk.write_time);
                self.schedule.push(at, ScheduledEvent::KeepBest { process, steps });
            }
            Output::LoadCheckpoint(saved) => {
                let result = setup.disk.restore(&saved);
                let at = now.after(setup.reading_time);
                self.schedule.push_input(at, process, Input::CheckpointLoaded(result));
            }
            Output::Event(event) => self.report(event),
        }
    }

    /// Does a job now; the answer arrives after the time that the host needs for it. Parts of it arrive in the second half of that time, one
    /// after the other.
    fn compute(&mut self, job: Job) {
        let place = self.hosts.get_mut(self.process.host);
        let mut duration = place.setup.compute_model.duration(job.cost, self.generator);
        let id = job.id;
        let mut parts = Vec::new();
        let mut part = |part| parts.push(part);
        let result = match place.task_fault {
            Some(TaskFault::Hang) => return,
            Some(TaskFault::Panic) => Err(Panicked("injected".to_owned())),
            Some(TaskFault::Long(time)) => {
                place.task_fault = None;
                duration += time;
                job.run(&mut part)
            }
            None => job.run(&mut part),
        };
        let now = self.schedule.now();
        let interval = duration / 2 / (parts.len() as u32 + 1);
        for (number, part) in (1..).zip(parts) {
            let at = now.after(duration / 2 + interval * number);
            self.schedule.push_input(at, self.process, Input::ComputedPart { job: id, part });
        }
        let at = now.after(duration);
        self.schedule.push_input(at, self.process, Input::Computed { job: id, result });
    }

    // Links.

    fn send(&mut self, peer: PeerId, frame: Frame) {
        let (now, from) = (self.schedule.now(), self.process.host);
        if peer == self.hosts.peer(from) {
            self.observe_frame(from, &frame);
            return self.schedule.push_input(now, self.process, Input::Frame { from: peer, frame });
        }
        let Some(to) = self.linked(peer) else { return };
        let frame = self.hosts.get_mut(from).forged.corrected(to, frame);
        let (frames, delay) = match self.filters.on_frame(&Envelope { at: now, from, to, frame: &frame }) {
            FrameAction::Pass => (vec![frame], Duration::ZERO),
            FrameAction::Drop => return,
            FrameAction::Delay(delay) => (vec![frame], delay),
            FrameAction::Replace(frames) => (frames, Duration::ZERO),
        };
        for frame in frames {
            self.record.history.traffic.add(now, from, to, frame.byte_count() as u64);
            self.observe_frame(to, &frame);
            self.network.send(now, from, to, Transmission::Frame(frame), delay);
        }
    }

    fn give_credit(&mut self, peer: PeerId, segments: u32) {
        let (now, from) = (self.schedule.now(), self.process.host);
        let Some(to) = self.linked(peer) else { return };
        self.observe(&Observation::Granted { from, to, segments });
        let segments = self.filters.on_credit(from, to, segments);
        self.network.send(now, from, to, Transmission::Credit(segments), Duration::ZERO);
    }

    /// Dials the host that the address names, if that host has the peer.
    fn dial(&mut self, contact: &Contact) {
        if self.linked(contact.peer).is_some() {
            return;
        }
        let from = self.process.host;
        let homes = self.hosts.of(contact.peer);
        let is_named = |home: &&HostId| contact.addresses.contains(&address(**home));
        let named = if homes.len() > 1 { homes.iter().find(is_named) } else { None };
        if let Some(&to) = named.or(homes.first()).filter(|to| **to != from) {
            self.network.dial(self.schedule.now(), from, to);
        }
    }

    fn disconnect(&mut self, peer: PeerId) {
        let host = self.process.host;
        // A link of which the node has not been notified yet remains.
        let process = self.hosts.process_mut(self.process);
        let is_known = process.is_some_and(|process| process.linked.remove(&peer));
        match self.linked(peer) {
            Some(to) if is_known => self.network.hang_up(self.schedule.now(), host, to),
            Some(_) => {}
            None => self.hosts.of(peer).iter().for_each(|&to| self.network.stop_dialing(host, to)),
        }
    }

    /// The host of a peer to which this one has a link.
    fn linked(&self, peer: PeerId) -> Option<HostId> {
        linked(self.hosts, self.network, self.process.host, peer)
    }

    // What is seen from outside.

    /// The node tells its user something.
    fn report(&mut self, event: Event) {
        let (now, host) = (self.schedule.now(), self.process.host);
        self.record.add(now, host, &event, self.hosts);
        self.record.trace.event(now, host, &event);
        self.observe(&Observation::Emitted { host, event: &event });
        if let Event::Ended(_) = event {
            // The process is over once it has said goodbye.
            self.hosts.get_mut(host).process = None;
            self.network.shut_down(now, host);
        }
        self.record.events.push((now, host, event));
    }

    fn observe_frame(&mut self, to: HostId, frame: &Frame) {
        if let Ok(message) = self.cache.message(frame) {
            let (from, payload) = (self.process.host, frame.payload.as_ref());
            self.observe(&Observation::Sent { from, to, message: &message, payload });
        }
    }

    /// Shows something to the invariants.
    pub(super) fn observe(&mut self, observation: &Observation<'_>) {
        let world = World { now: self.schedule.now(), hosts: self.hosts, network: self.network };
        self.record.invariants.observe(observation, &world);
    }
}

/// The host of a peer to which a host has a link; `None` if it has a link to no host of the peer.
pub(super) fn linked(hosts: &Hosts, network: &Network, from: HostId, peer: PeerId) -> Option<HostId> {
    hosts.of(peer).iter().copied().find(|&home| network.interfaces.is_up(from, home))
}
