//! Acknowledged: in a run with tables, what an owner acknowledges to a worker survives the owner, because all other holders of the chunk have
//! confirmed it; and only the owner of a chunk changes it.
//!
//! The invariant reads the messages of tables as they are sent. So it sees what members tell each other, and not what a member does with its
//! own chunks: a worker's changes to those are not checked.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use peergrad_core::io::Event;
use peergrad_core::program::loader::Loaded;
use peergrad_protocol::message::{Message, TrainingMessage};
use peergrad_protocol::placement::{Placement, Replicas};
use peergrad_protocol::table::{Request, Response, TableChunk, TableMessage, WorkerId};
use peergrad_protocol::view::View;
use peergrad_protocol::wire::decode_table_message;
use peergrad_protocol::{Rank, ViewDigest};

use super::{Invariant, Observation};
use crate::host::HostId;
use crate::world::World;

/// The name of the invariant.
pub const ACKNOWLEDGED: &str = "acknowledged";

/// What members have told each other about the chunks of tables.
pub struct Acknowledged {
    /// The number of chunks of all tables.
    chunk_count: usize,
    /// How many members hold a chunk.
    replicas: Replicas,
    /// The views that were installed last.
    views: BTreeMap<ViewDigest, TablesOfView>,
    /// By view, sender and receiver: what was sent of a message that is not complete yet.
    streams: BTreeMap<(ViewDigest, HostId, HostId), Vec<u8>>,
    /// By holder and chunk: the last change of each worker that the holder has confirmed.
    confirmed: BTreeMap<(WorkerId, usize), BTreeMap<WorkerId, u64>>,
}

/// The tables in one view.
struct TablesOfView {
    view: Arc<View>,
    placement: Placement,
    /// By owner and worker: the changes that the owner was sent and has not acknowledged, with their chunks.
    changes: BTreeMap<(Rank, Rank), VecDeque<(u64, usize)>>,
    /// By owner and other holder: the last update that the holder was sent.
    updates: BTreeMap<(Rank, Rank), (u64, Vec<Update>)>,
}

/// An update of a chunk: the chunk, and the last change of each worker in it.
type Update = (usize, Vec<(WorkerId, u64)>);

impl TablesOfView {
    fn worker(&self, rank: Rank) -> WorkerId {
        let member = &self.view.members[rank.index()];
        WorkerId { peer: member.peer, incarnation: member.incarnation }
    }

    /// An error unless this member owns the chunk.
    fn check_owner(&self, rank: Rank, chunk: u32, what: &str) -> Result<(), String> {
        let owner = self.placement.owner(chunk as usize);
        if owner == rank {
            return Ok(());
        }
        Err(format!("{what} chunk {chunk} in view {}, which rank {} owns", self.view.number.0, owner.0))
    }
}

impl Acknowledged {
    /// For a run with tables; `None` for another one.
    #[must_use]
    pub fn of(loaded: &Loaded) -> Option<Self> {
        let spec = loaded.program.table_spec(loaded)?;
        let replicas = match loaded.config.replicas {
            Replicas::Number(count) => Replicas::Number(count.max(2)),
            Replicas::All => Replicas::All,
        };
        Some(Self {
            chunk_count: spec.layout.chunk_count(),
            replicas,
            views: BTreeMap::new(),
            streams: BTreeMap::new(),
            confirmed: BTreeMap::new(),
        })
    }

    fn installed(&mut self, digest: ViewDigest, view: &Arc<View>) {
        /// Members that are late still speak in earlier views.
        const VIEWS_KEPT: u64 = 8;
        if self.views.contains_key(&digest) {
            return;
        }
        let placement = Placement::compute(&view.run, &view.members, self.chunk_count, self.replicas);
        let tables = TablesOfView {
            view: Arc::clone(view),
            placement,
            changes: BTreeMap::new(),
            updates: BTreeMap::new(),
        };
        self.views.insert(digest, tables);
        let oldest = view.number.0.saturating_sub(VIEWS_KEPT);
        self.views.retain(|_, tables| tables.view.number.0 >= oldest);
        self.streams.retain(|(of, ..), _| self.views.contains_key(of));
    }

    /// Reads the messages that are complete with these bytes.
    fn sent(
        &mut self,
        digest: ViewDigest,
        (from, to): (HostId, HostId),
        bytes: &[u8],
        world: &World<'_>,
    ) -> Result<(), String> {
        let Some(tables) = self.views.get_mut(&digest) else { return Ok(()) };
        let rank = |host| tables.view.rank(&world.peer(host));
        let (Some(sender), Some(receiver)) = (rank(from), rank(to)) else { return Ok(()) };
        let stream = self.streams.entry((digest, from, to)).or_default();
        stream.extend_from_slice(bytes);
        let mut read = 0;
        while let Some((length, rest)) = stream[read..].split_first_chunk::<4>() {
            let Some(bytes) = rest.get(..u32::from_le_bytes(*length) as usize) else { break };
            read += 4 + bytes.len();
            // What is no message is a fault of the network that was planted, and another invariant's concern.
            if let Ok(message) = decode_table_message(bytes) {
                told(&mut self.confirmed, tables, (sender, receiver), &message)?;
            }
        }
        stream.drain(..read);
        Ok(())
    }
}

/// One member has sent another a message.
fn told(
    confirmed: &mut BTreeMap<(WorkerId, usize), BTreeMap<WorkerId, u64>>,
    tables: &mut TablesOfView,
    (from, to): (Rank, Rank),
    message: &TableMessage,
) -> Result<(), String> {
    match message {
        TableMessage::Request(Request::Change(change)) => {
            tables.check_owner(to, change.chunk, &format!("rank {} is to change", to.0))?;
            let changes = tables.changes.entry((to, from)).or_default();
            changes.push_back((change.sequence, change.chunk as usize));
        }
        TableMessage::Handover(state) => {
            tables.check_owner(to, state.chunk, &format!("rank {} gets", to.0))?;
            note(confirmed, tables.worker(from), &update_of(state));
        }
        TableMessage::ReplicaUpdate(update) => {
            for state in &update.chunks {
                tables.check_owner(from, state.chunk, &format!("rank {} sends an update of", from.0))?;
                // What an owner sends, it has.
                note(confirmed, tables.worker(from), &update_of(state));
            }
            let updates = update.chunks.iter().map(update_of).collect();
            tables.updates.insert((from, to), (update.number, updates));
        }
        TableMessage::ReplicaAck(number) => {
            let holder = tables.worker(from);
            if let Some((last, updates)) = tables.updates.get(&(to, from))
                && last == number
            {
                updates.iter().for_each(|update| note(confirmed, holder, update));
            }
        }
        TableMessage::Response(Response::Acknowledged { up_to }) => {
            return acknowledged(confirmed, tables, (from, to), *up_to);
        }
        _ => {}
    }
    Ok(())
}

fn update_of(state: &TableChunk) -> Update {
    (state.chunk as usize, state.applied.clone())
}

/// A holder has these changes of a chunk.
fn note(
    confirmed: &mut BTreeMap<(WorkerId, usize), BTreeMap<WorkerId, u64>>,
    holder: WorkerId,
    (chunk, applied): &Update,
) {
    let known = confirmed.entry((holder, *chunk)).or_default();
    for (worker, last) in applied {
        let known = known.entry(*worker).or_default();
        *known = (*known).max(*last);
    }
}

/// An owner acknowledges a worker's changes: all other holders must have confirmed them.
fn acknowledged(
    confirmed: &mut BTreeMap<(WorkerId, usize), BTreeMap<WorkerId, u64>>,
    tables: &mut TablesOfView,
    (owner, to): (Rank, Rank),
    up_to: u64,
) -> Result<(), String> {
    let (me, worker) = (tables.worker(owner), tables.worker(to));
    while let Some((sequence, chunk)) = tables.changes.entry((owner, to)).or_default().front().copied()
        && sequence <= up_to
    {
        tables.changes.entry((owner, to)).or_default().pop_front();
        let others = tables.placement.replica_holders(chunk).iter().filter(|holder| **holder != owner);
        for holder in others {
            let known = confirmed.get(&(tables.worker(*holder), chunk));
            let last = known.and_then(|known| known.get(&worker)).copied().unwrap_or(0);
            if last < sequence {
                return Err(format!(
                    "rank {} acknowledges change {sequence} of rank {} in view {}, and rank {} has confirmed {last} of chunk {chunk}",
                    owner.0, to.0, tables.view.number.0, holder.0
                ));
            }
        }
        note(confirmed, me, &(chunk, vec![(worker, sequence)]));
    }
    Ok(())
}

impl Invariant for Acknowledged {
    fn name(&self) -> &'static str {
        ACKNOWLEDGED
    }

    fn observe(&mut self, observation: &Observation<'_>, world: &World<'_>) -> Result<(), String> {
        match observation {
            Observation::Emitted { event: Event::ViewInstalled { view, digest, .. }, .. } => {
                self.installed(*digest, view);
                Ok(())
            }
            Observation::Sent {
                from,
                to,
                message: Message::InView { view, message: TrainingMessage::Tables },
                payload: Some(payload),
            } => self.sent(*view, (*from, *to), payload.bytes(), world),
            _ => Ok(()),
        }
    }
}
