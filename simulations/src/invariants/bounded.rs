//! Invariant 9, bounded: what is in flight on a link, and what a member stores for others, stays within the limits; and credit is only
//! given for what was sent.
//!
//! Credit belongs to a link, in whatever views its ends are: credit for what was sent in one view may return in the next. A new connection
//! starts with nothing in flight, which its two ends learn one after the other. Links of a host whose frames have a fault are
//! not checked.

use std::collections::BTreeMap;

use peergrad_core::io::Event;
use peergrad_core::node::NodeState;
use peergrad_protocol::limits::LINK_SEGMENTS;
use peergrad_protocol::message::{ChunkBatch, ChunkContent, MergeMessage, Message, TrainingMessage};

use super::{Invariant, Observation};
use crate::host::HostId;
use crate::world::World;

/// Segments and chunks for which the receiver has not returned credit.
#[derive(Default)]
pub struct Bounded {
    /// By sender, then receiver.
    links: BTreeMap<HostId, BTreeMap<HostId, InFlight>>,
    /// By donor and requester of chunks: what the donor may still send. Answers need no credit.
    asked: BTreeMap<(HostId, HostId), Asked>,
}

/// What was requested from a donor and has not been sent.
#[derive(Default)]
struct Asked {
    /// Requests that are answered by one chunk batch each.
    chunk_batches: u64,
    /// Chunks of another branch.
    chunks: u64,
}

/// One direction of a link, as its sender knows it.
#[derive(Default)]
struct InFlight {
    /// The number of the connection.
    session: u32,
    count: u32,
}

impl Bounded {
    fn sent(&mut self, from: HostId, to: HostId, message: &Message) -> Result<(), String> {
        match message {
            Message::InView { message, .. } => match message {
                TrainingMessage::Segment(_) | TrainingMessage::Tables => self.in_flight(from, to),
                TrainingMessage::ChunkBatch(chunk_batch) => match chunk_batch.content {
                    ChunkContent::State => self.in_flight(from, to),
                    ChunkContent::Values => self.answered(from, to),
                },
                TrainingMessage::WantChunks(_) => {
                    self.asked.entry((to, from)).or_default().chunk_batches += 1;
                    Ok(())
                }
                _ => Ok(()),
            },
            Message::Merge(MergeMessage::SnapshotChunks(chunks)) => self.given(from, to, &chunks.batch),
            Message::Merge(MergeMessage::WantSnapshot(want)) => {
                self.asked.entry((to, from)).or_default().chunks += want.chunks.len() as u64;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A segment or chunk takes credit.
    fn in_flight(&mut self, from: HostId, to: HostId) -> Result<(), String> {
        let InFlight { count, .. } = self.links.entry(from).or_default().entry(to).or_default();
        *count += 1;
        if *count <= LINK_SEGMENTS {
            return Ok(());
        }
        Err(format!(
            "{count} segments and chunks are in flight from {from} to {to}; the limit is {LINK_SEGMENTS}"
        ))
    }

    /// Each request for chunks that complete a step is answered by one chunk batch at most.
    fn answered(&mut self, from: HostId, to: HostId) -> Result<(), String> {
        take(&mut self.asked.entry((from, to)).or_default().chunk_batches, 1, from, to)
    }

    /// A merge snapshot comes in several batches, and has only chunks that were requested.
    fn given(&mut self, from: HostId, to: HostId, chunk_batch: &ChunkBatch) -> Result<(), String> {
        let chunks = &mut self.asked.entry((from, to)).or_default().chunks;
        take(chunks, chunk_batch.entries.len() as u64, from, to)
    }

    fn granted(&mut self, from: HostId, to: HostId, segments: u32) -> Result<(), String> {
        let theirs = self.links.get(&from).and_then(|links| links.get(&to)).map_or(0, |link| link.session);
        let link = self.links.get_mut(&to).and_then(|links| links.get_mut(&from));
        // A receiver that has not heard of the new connection yet gives credit for the old one.
        let Some(link) = link.filter(|link| link.session == theirs) else { return Ok(()) };
        let Some(left) = link.count.checked_sub(segments) else {
            return Err(format!(
                "{from} returns credit for {segments} segments or chunks to {to}; {} were in flight",
                link.count
            ));
        };
        link.count = left;
        Ok(())
    }
}

/// Subtracts `count` requested chunks or batches that `from` sends.
fn take(asked: &mut u64, count: u64, from: HostId, to: HostId) -> Result<(), String> {
    let Some(left) = asked.checked_sub(count) else {
        return Err(format!("{from} sends {to} chunks that were not requested"));
    };
    *asked = left;
    Ok(())
}

impl Invariant for Bounded {
    fn name(&self) -> &'static str {
        "bounded (invariant 9)"
    }

    fn observe(&mut self, observation: &Observation<'_>, world: &World<'_>) -> Result<(), String> {
        match *observation {
            Observation::Sent { from, to, .. } | Observation::Granted { from, to, .. }
                if [from, to].iter().any(|host| world.has_faulty_frames(world.peer(*host))) =>
            {
                Ok(())
            }
            Observation::Sent { from, to, message, .. } => self.sent(from, to, message),
            Observation::Granted { from, to, segments } => self.granted(from, to, segments),
            Observation::Linked { at, to, session } => {
                let links = self.links.entry(at).or_default();
                links.insert(to, InFlight { session, count: 0 });
                Ok(())
            }
            Observation::Emitted { host, event: Event::Committed(_) } => holds_few_segments(host, world),
            Observation::Emitted { host, event: Event::Ended(_) } | Observation::Crashed { host } => {
                self.links.remove(&host);
                self.links.values_mut().for_each(|links| _ = links.remove(&host));
                Ok(())
            }
            Observation::Emitted { .. } => Ok(()),
        }
    }
}

/// Checks how many received segments the member on a host holds.
fn holds_few_segments(host: HostId, world: &World<'_>) -> Result<(), String> {
    let Some(NodeState::Member(standing)) = world.node_state(host) else { return Ok(()) };
    let links = standing.view.members.len() as u32 - 1;
    if standing.held_segments <= links * LINK_SEGMENTS {
        return Ok(());
    }
    Err(format!("{host} stores {} segments from {links} links", standing.held_segments))
}
