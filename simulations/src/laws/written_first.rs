//! Written first: a member says nothing in a view before the view is on its disk, so that a crash cannot make it forget
//! what others have heard from it.

use std::collections::BTreeMap;

use peergrad::io::Event;
use peergrad_protocol::ViewDigest;
use peergrad_protocol::durable::Durable;
use peergrad_protocol::message::Message;

use super::{Law, Observation};
use crate::cluster::World;
use crate::host::HostId;

/// The views in which each process may speak.
#[derive(Default)]
pub struct WrittenFirst {
    /// By host: the view that was seen on its disk.
    written: BTreeMap<HostId, ViewDigest>,
}

impl Law for WrittenFirst {
    fn name(&self) -> &'static str {
        "written first"
    }

    fn observe(&mut self, observation: &Observation<'_>, world: &World<'_>) -> Result<(), String> {
        match observation {
            Observation::Sent { from, message, .. } => {
                let said = match message {
                    Message::Segment(segment) => segment.view,
                    Message::Complete(complete) => complete.view,
                    _ => return Ok(()),
                };
                if self.written.get(from) == Some(&said) {
                    return Ok(());
                }
                let on_disk = world.record(*from).and_then(|record| Durable::from_bytes(record));
                if on_disk.is_some_and(|durable| durable.view.digest() == said) {
                    self.written.insert(*from, said);
                    return Ok(());
                }
                Err(format!("{from} speaks in a view that is not on its disk"))
            }
            Observation::Told { host, event: Event::Ended(_) } | Observation::Crashed { host } => {
                self.written.remove(host);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
