//! Invariant 9, bounded: a member sends only what it has credit for, and what is in flight to a member, and stored there for others, stays
//! within the limits.
//!
//! Credit belongs to a link, in whatever views its ends are: credit for what was sent in one view may return in the next. A new connection
//! starts with the first credit, which its two ends learn one after the other. Chunks that complete a step need none, and are requested. A
//! link whose sender has not said that its line needs more never has more. The others have a limit each, and one together. Links of a host
//! whose frames have a fault are not checked.

use std::collections::BTreeMap;

use peergrad_core::io::Event;
use peergrad_core::node::NodeState;
use peergrad_protocol::limits::{
    LINK_SEGMENTS, LINK_SEGMENTS_MAX, LONG_LINES_BYTES_MAX, REQUESTED_BYTES_MAX,
};
use peergrad_protocol::manifest::Chunks;
use peergrad_protocol::message::{ChunkBatch, ChunkContent, MergeMessage, Message, TrainingMessage};

use super::{Invariant, Observation};
use crate::host::HostId;
use crate::world::World;

/// The credit of each link.
pub struct Bounded {
    /// By receiver, then sender.
    links: BTreeMap<HostId, BTreeMap<HostId, Credit>>,
    /// How much more than the first credit the senders to one receiver have together.
    extra: u32,
    /// The chunks of the parameters.
    chunks: Chunks,
    /// By donor and requester of chunks: what the donor may still send. Answers need no credit.
    asked: BTreeMap<(HostId, HostId), Asked>,
}

/// What was requested from a donor and has not been sent.
#[derive(Default)]
struct Asked {
    /// Chunks that complete a step.
    of_step: u64,
    /// Chunks of another branch.
    of_branch: u64,
}

/// One direction of a link, as its sender knows it.
struct Credit {
    /// The number of the connection.
    session: u32,
    /// How many segments or chunks may still be sent.
    left: u32,
    /// Whether the sender has said that its line needs more.
    is_long: bool,
}

impl Credit {
    /// The credit of a new connection.
    fn new(session: u32) -> Self {
        Self { session, left: LINK_SEGMENTS, is_long: false }
    }
}

impl Bounded {
    /// For segments of so many elements, and parameters in these chunks.
    #[must_use]
    pub fn new(segment_elements: usize, chunks: Chunks) -> Self {
        let extra = LONG_LINES_BYTES_MAX / (segment_elements * size_of::<f32>()).max(1);
        let extra = u32::try_from(extra).unwrap_or(u32::MAX);
        Self { links: BTreeMap::new(), extra, chunks, asked: BTreeMap::new() }
    }

    fn sent(&mut self, from: HostId, to: HostId, message: &Message) -> Result<(), String> {
        match message {
            Message::Heartbeat(heartbeat) => {
                self.credit(from, to).is_long |= heartbeat.window_bytes > 0;
                Ok(())
            }
            Message::InView { message, .. } => match message {
                TrainingMessage::Segment(_) | TrainingMessage::Tables => self.in_flight(from, to),
                TrainingMessage::ChunkBatch(chunk_batch) => match chunk_batch.content {
                    ChunkContent::State => self.in_flight(from, to),
                    ChunkContent::Values => {
                        let of_step = &mut self.asked.entry((from, to)).or_default().of_step;
                        take(of_step, chunk_batch.entries.len() as u64, from, to)
                    }
                },
                TrainingMessage::WantChunks(want) => {
                    self.asked.entry((to, from)).or_default().of_step += want.chunks.len() as u64;
                    let others = want.chunks.iter().take(want.chunks.len().saturating_sub(1));
                    let bytes = |chunk| self.chunks.range(chunk).len() * size_of::<f32>();
                    if others.map(bytes).sum::<usize>() > REQUESTED_BYTES_MAX {
                        return Err(format!("{from} requests too much of {to} at a time"));
                    }
                    Ok(())
                }
                _ => Ok(()),
            },
            Message::Merge(MergeMessage::SnapshotChunks(chunks)) => self.given(from, to, &chunks.batch),
            Message::Merge(MergeMessage::WantSnapshot(want)) => {
                self.asked.entry((to, from)).or_default().of_branch += want.chunks.len() as u64;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn credit(&mut self, from: HostId, to: HostId) -> &mut Credit {
        self.links.entry(to).or_default().entry(from).or_insert_with(|| Credit::new(0))
    }

    /// A segment or chunk takes credit.
    fn in_flight(&mut self, from: HostId, to: HostId) -> Result<(), String> {
        let left = &mut self.credit(from, to).left;
        *left = left
            .checked_sub(1)
            .ok_or_else(|| format!("{from} sends {to} a segment or chunk without credit"))?;
        Ok(())
    }

    /// A merge snapshot comes in several batches, and has only chunks that were requested.
    fn given(&mut self, from: HostId, to: HostId, chunk_batch: &ChunkBatch) -> Result<(), String> {
        let chunks = &mut self.asked.entry((from, to)).or_default().of_branch;
        take(chunks, chunk_batch.entries.len() as u64, from, to)
    }

    fn granted(&mut self, from: HostId, to: HostId, segments: u32) -> Result<(), String> {
        if !self.is_known_to_both(to, from) {
            // A receiver that has not heard of the new connection yet gives credit for the old one.
            return Ok(());
        }
        let link = self.credit(to, from);
        link.left = link.left.saturating_add(segments);
        let (left, limit) = (link.left, if link.is_long { LINK_SEGMENTS_MAX } else { LINK_SEGMENTS });
        if left > limit {
            return Err(format!(
                "{from} gives {to} credit for {segments} segments or chunks: {left}, of at most {limit}"
            ));
        }
        if left > LINK_SEGMENTS && self.extra_to(from) > self.extra {
            return Err(format!(
                "all peers may send {from} {} more segments than at first; the limit is {}",
                self.extra_to(from),
                self.extra
            ));
        }
        Ok(())
    }

    /// Whether both ends of a link know the same connection.
    fn is_known_to_both(&self, from: HostId, to: HostId) -> bool {
        let session = |from: &HostId, to: &HostId| {
            self.links.get(to).and_then(|links| links.get(from)).map(|link| link.session)
        };
        session(&from, &to).is_some_and(|known| known == session(&to, &from).unwrap_or(0))
    }

    /// How many more segments than the first ones all peers may send to a host.
    fn extra_to(&self, to: HostId) -> u32 {
        let links = self.links.get(&to).into_iter().flatten();
        let known = links.filter(|(from, _)| self.is_known_to_both(**from, to));
        known.map(|(_, link)| link.left.saturating_sub(LINK_SEGMENTS)).sum()
    }

    /// Checks how many received segments the member on a host holds.
    fn holds_few_segments(&self, host: HostId, world: &World<'_>) -> Result<(), String> {
        let Some(NodeState::Member(standing)) = world.node_state(host) else { return Ok(()) };
        let links = standing.view.members.len() as u32 - 1;
        if standing.held_segments <= links * LINK_SEGMENTS + self.extra {
            return Ok(());
        }
        Err(format!("{host} stores {} segments from {links} links", standing.held_segments))
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
                self.links.entry(to).or_default().insert(at, Credit::new(session));
                Ok(())
            }
            Observation::Emitted { host, event: Event::Committed(_) } => self.holds_few_segments(host, world),
            Observation::Emitted { host, event: Event::Ended(_) } | Observation::Crashed { host } => {
                // What the others may send to it, they may until they notice.
                self.links.values_mut().for_each(|links| _ = links.remove(&host));
                Ok(())
            }
            Observation::Emitted { .. } => Ok(()),
        }
    }
}
