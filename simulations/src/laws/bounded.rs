//! Law 9, bounded: what is in flight on a link, and what a member holds of others, keeps to the limits; and credit is only
//! given for what was sent.

use std::collections::BTreeMap;

use peergrad::io::Event;
use peergrad::node::Standing;
use peergrad_protocol::ViewDigest;
use peergrad_protocol::limits::LINK_SEGMENTS;
use peergrad_protocol::message::Message;

use super::{Law, Observation};
use crate::cluster::World;
use crate::host::HostId;

/// Segments that were sent and not yet granted again.
#[derive(Default)]
pub struct Bounded {
    /// By view, sender and receiver.
    in_flight: BTreeMap<(HostId, HostId), (ViewDigest, u32)>,
}

impl Law for Bounded {
    fn name(&self) -> &'static str {
        "bounded (law 9)"
    }

    fn observe(&mut self, observation: &Observation<'_>, world: &World<'_>) -> Result<(), String> {
        match observation {
            Observation::Sent { from, to, message: Message::Segment(segment), .. } => {
                let entry = self.in_flight.entry((*from, *to)).or_insert((segment.view, 0));
                if entry.0 != segment.view {
                    *entry = (segment.view, 0);
                }
                entry.1 += 1;
                if entry.1 > LINK_SEGMENTS {
                    return Err(format!(
                        "{} segments are in flight from {from} to {to}; {LINK_SEGMENTS} may be",
                        entry.1
                    ));
                }
                Ok(())
            }
            Observation::Granted { from, to, segments } => {
                let Some((_, in_flight)) = self.in_flight.get_mut(&(*to, *from)) else { return Ok(()) };
                let Some(left) = in_flight.checked_sub(*segments) else {
                    return Err(format!(
                        "{from} gives {to} credit for {segments} segments, and {in_flight} were in flight"
                    ));
                };
                *in_flight = left;
                Ok(())
            }
            Observation::Told { host, event: Event::Committed(_) } => {
                let Some(Standing::Member(standing)) = world.standing(*host) else { return Ok(()) };
                let links = standing.view.members.len() as u32 - 1;
                if standing.held_segments <= links * LINK_SEGMENTS {
                    return Ok(());
                }
                Err(format!("{host} holds {} segments of {links} others", standing.held_segments))
            }
            Observation::Told { host, event: Event::Ended(_) } | Observation::Crashed { host } => {
                self.in_flight.retain(|(from, to), _| from != host && to != host);
                Ok(())
            }
            Observation::Told { .. } | Observation::Sent { .. } => Ok(()),
        }
    }
}
