//! Written first: a member sends nothing in a view before the view is on its disk, and answers no proposer before its answer is on its
//! disk. So a crash cannot make it forget what others have heard from it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use peergrad_core::io::Event;
use peergrad_protocol::agreement::Acceptor;
use peergrad_protocol::durable::{DurableBytes, DurableRecord};
use peergrad_protocol::message::{Accepted, AgreementMessage, Message, Promise};
use peergrad_protocol::view::{View, ViewChange};
use peergrad_protocol::{Incarnation, ViewDigest, wire};

use super::{Invariant, Observation};
use crate::host::HostId;
use crate::world::World;

/// The views in which each process may send.
#[derive(Default)]
pub struct WrittenFirst {
    /// By host: views that were seen on its disk while this process ran, the newest last.
    written: BTreeMap<HostId, VecDeque<ViewDigest>>,
    /// The bytes of the newest views: a record begins with those of its view, so that a long view need not be decoded again.
    views: VecDeque<(ViewDigest, Arc<[u8]>)>,
}

impl WrittenFirst {
    fn speaks_in(&mut self, host: HostId, said: ViewDigest, world: &World<'_>) -> Result<(), String> {
        if self.written.get(&host).is_some_and(|written| written.contains(&said)) {
            return Ok(());
        }
        // The next view is written while members still send in the one before.
        let is_before = |record: &DurableBytes| {
            DurableRecord::from_bytes(&record.to_bytes())
                .is_some_and(|durable| durable.view.parents.contains(&said))
        };
        let is_written =
            self.acceptor(host, said, world).is_some() || world.record(host).is_some_and(is_before);
        if !is_written {
            return Err(format!("{host} sends a message in a view that is not on its disk"));
        }
        let written = self.written.entry(host).or_default();
        written.push_back(said);
        if written.len() > VIEWS_ALIVE {
            written.pop_front();
        }
        Ok(())
    }

    /// The promise and the accepted value on a host's disk, for the view after `view`.
    fn acceptor(&self, host: HostId, view: ViewDigest, world: &World<'_>) -> Option<Acceptor<ViewChange>> {
        let record = world.record(host)?;
        let known = self.views.iter().find(|(digest, _)| *digest == view);
        let Some((_, bytes)) = known else {
            return DurableRecord::from_bytes(&record.to_bytes())
                .filter(|durable| durable.view.digest() == view)
                .map(|durable| durable.acceptor);
        };
        if !Arc::ptr_eq(&record.view, bytes) && record.view != *bytes {
            return None;
        }
        let rest = wire::decode_record::<(Incarnation, Acceptor<ViewChange>)>(&record.promised);
        rest.ok().map(|(_, acceptor)| acceptor)
    }

    fn learn(&mut self, digest: ViewDigest, view: &View, record: Option<&DurableBytes>) {
        if self.views.iter().all(|(known, _)| *known != digest) {
            let bytes: Arc<[u8]> = wire::encode_record(view).into();
            // Members mostly share the same memory.
            let known = record.map(|record| &record.view).filter(|known| **known == bytes);
            self.views.push_back((digest, known.map_or(Arc::clone(&bytes), Arc::clone)));
            if self.views.len() > VIEWS_ALIVE {
                self.views.pop_front();
            }
        }
    }

    /// Whether a promise, and the accepted value in it, is on the disk of its sender. A value that was accepted under the promised ballot or
    /// a later one came after the promise, whose answer may still have waited for the disk.
    fn is_promised(&self, host: HostId, promise: &Promise, world: &World<'_>) -> Result<(), String> {
        let is_written = self.acceptor(host, promise.view, world).is_some_and(|acceptor| {
            let accepted = acceptor.accepted();
            let is_later = accepted.is_some_and(|(ballot, _)| *ballot >= promise.ballot);
            acceptor.promised() >= Some(promise.ballot) && (is_later || accepted == promise.accepted.as_ref())
        });
        if is_written { Ok(()) } else { Err(format!("{host} sends a promise that is not on its disk")) }
    }

    /// Whether an acceptance is on the disk of its sender.
    fn is_accepted(&self, host: HostId, accepted: Accepted, world: &World<'_>) -> Result<(), String> {
        let is_written = self.acceptor(host, accepted.view, world).is_some_and(|acceptor| {
            acceptor.accepted().is_some_and(|(ballot, _)| *ballot >= accepted.ballot)
        });
        if is_written { Ok(()) } else { Err(format!("{host} sends an acceptance that is not on its disk")) }
    }
}

impl Invariant for WrittenFirst {
    fn name(&self) -> &'static str {
        "written first"
    }

    fn observe(&mut self, observation: &Observation<'_>, world: &World<'_>) -> Result<(), String> {
        match observation {
            Observation::Sent {
                from,
                message: Message::Agreement(AgreementMessage::Promise(promise)),
                ..
            } => self.is_promised(*from, promise, world),
            Observation::Sent {
                from,
                message: Message::Agreement(AgreementMessage::Accepted(accepted)),
                ..
            } => self.is_accepted(*from, *accepted, world),
            // No other host hears what a member sends to itself.
            Observation::Sent { from, to, .. } if from == to => Ok(()),
            // It has entered the view without a record, and has no vote in it.
            Observation::Sent { from, .. } if world.disk_fails(*from) => Ok(()),
            Observation::Sent { from, message, .. } => match view_of(message) {
                Some(said) => self.speaks_in(*from, said, world),
                None => Ok(()),
            },
            Observation::Emitted { host, event: Event::ViewInstalled { view, digest, .. } } => {
                self.learn(*digest, view, world.record(*host));
                Ok(())
            }
            Observation::Emitted { host, event: Event::Ended(_) } | Observation::Crashed { host } => {
                self.written.remove(host);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// The view in which a message is sent; `None` if it is in none.
fn view_of(message: &Message) -> Option<ViewDigest> {
    match message {
        Message::Heartbeat(beat) => Some(beat.view),
        Message::Agreement(AgreementMessage::Prepare(prepare)) => Some(prepare.view),
        Message::Agreement(AgreementMessage::Propose(propose)) => Some(propose.change.parent),
        Message::InView { view, .. } => Some(*view),
        Message::Join(_)
        | Message::Agreement(_)
        | Message::Merge(_)
        | Message::Admin(_)
        | Message::FrameCount { .. }
        | Message::Leave(_) => None,
    }
}

/// Views of a member whose frames may still be sent.
const VIEWS_ALIVE: usize = 16;
