//! Written first: a member says nothing in a view before the view is on its disk, and answers no proposer before its
//! answer is; so a crash cannot make it forget what others have heard from it.

use std::collections::{BTreeMap, VecDeque};

use peergrad::io::Event;
use peergrad_protocol::ViewDigest;
use peergrad_protocol::agreement::Ballot;
use peergrad_protocol::durable::Durable;
use peergrad_protocol::message::{Message, Promise};

use super::{Law, Observation};
use crate::cluster::World;
use crate::host::HostId;

/// The views in which each process may speak.
#[derive(Default)]
pub struct WrittenFirst {
    /// By host: views that were seen on its disk while this process ran, the newest last.
    written: BTreeMap<HostId, VecDeque<ViewDigest>>,
}

impl WrittenFirst {
    fn speaks_in(&mut self, host: HostId, said: ViewDigest, world: &World<'_>) -> Result<(), String> {
        let written = self.written.entry(host).or_default();
        if written.contains(&said) {
            return Ok(());
        }
        // The next view is written while members still speak in the one before.
        let is_written = record(host, world)
            .is_some_and(|durable| durable.view.digest() == said || durable.view.parents.contains(&said));
        if !is_written {
            return Err(format!("{host} speaks in a view that is not on its disk"));
        }
        written.push_back(said);
        if written.len() > VIEWS_ALIVE {
            written.pop_front();
        }
        Ok(())
    }
}

impl Law for WrittenFirst {
    fn name(&self) -> &'static str {
        "written first"
    }

    fn observe(&mut self, observation: &Observation<'_>, world: &World<'_>) -> Result<(), String> {
        match observation {
            Observation::Sent { from, message: Message::Promise(promise), .. } => {
                is_promised(*from, promise, world)
            }
            Observation::Sent { from, message: Message::Accepted(accepted), .. } => {
                is_accepted(*from, accepted.view, accepted.ballot, world)
            }
            Observation::Sent { from, message, .. } => match view_of(message) {
                Some(said) => self.speaks_in(*from, said, world),
                None => Ok(()),
            },
            Observation::Told { host, event: Event::Ended(_) } | Observation::Crashed { host } => {
                self.written.remove(host);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// The view in which a message is said.
fn view_of(message: &Message) -> Option<ViewDigest> {
    match message {
        Message::Segment(segment) => Some(segment.view),
        Message::Chunk(chunk) => Some(chunk.view),
        Message::WantChunks(want) => Some(want.view),
        Message::Complete(complete) => Some(complete.view),
        Message::Closed(view) => Some(*view),
        Message::Beat(beat) => Some(beat.view),
        Message::Prepare(prepare) => Some(prepare.view),
        Message::Propose(propose) => Some(propose.change.parent),
        _ => None,
    }
}

/// Whether a promise, and what it says was accepted before, is on the disk of who gives it.
fn is_promised(host: HostId, promise: &Promise, world: &World<'_>) -> Result<(), String> {
    let is_written = record(host, world).is_some_and(|durable| {
        let acceptor = &durable.acceptor;
        durable.view.digest() == promise.view
            && acceptor.promised() >= Some(promise.ballot)
            && acceptor.accepted() == promise.accepted.as_ref()
    });
    if is_written { Ok(()) } else { Err(format!("{host} promises what is not on its disk")) }
}

/// Whether an acceptance is on the disk of who gives it.
fn is_accepted(host: HostId, view: ViewDigest, ballot: Ballot, world: &World<'_>) -> Result<(), String> {
    let is_written = record(host, world).is_some_and(|durable| {
        let accepted = durable.acceptor.accepted().map(|(accepted, _)| *accepted);
        durable.view.digest() == view && accepted >= Some(ballot)
    });
    if is_written { Ok(()) } else { Err(format!("{host} accepts what is not on its disk")) }
}

fn record(host: HostId, world: &World<'_>) -> Option<Durable> {
    Durable::from_bytes(world.record(host)?)
}

/// Views of a member whose frames may still leave.
const VIEWS_ALIVE: usize = 16;
