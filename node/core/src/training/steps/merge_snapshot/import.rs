//! The import of a snapshot: fetching chunks from several donors, with a window and a timeout for each.
//!
//! # How it works
//! Each donor gets a request for one window of chunks at a time. If it sends a window fast, the next one is twice as large; if it is slow,
//! half as large. If it sends nothing until its timeout, its chunks are requested from other donors. Values come first, then the optimizer
//! state, which only a chunk's replicas have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use peergrad_collectives::plan::are_finite;
use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::limits::{CHUNK_BATCH_BYTES, REQUESTED_BYTES_MAX};
use peergrad_protocol::message::{
    ChunkContent, ChunkEntry, MergeMessage, MergeOffer, SnapshotChunks, SnapshotDonor, WantSnapshot,
};
use peergrad_protocol::{Buffer, Frame, Instant, PeerId, Rank};

use super::super::chunk_batch::unpack;
use crate::io::{Output, Reject};
use crate::state::blend::{RemoteState, WantedContent};
use crate::state::optimizer_state::OptimizerState;
use crate::state::snapshot_id::SnapshotId;

/// The part of another branch's state that a member has so far.
pub(super) struct SnapshotImport {
    /// The description of the snapshot, with the members that store it.
    pub(super) offer: MergeOffer,
    /// The chunks that have arrived. A step that blends them in shares them as long as that step lasts.
    pub(super) remote: Arc<RemoteState>,
    /// Chunks of which something is missing that is needed in the present view, and what is needed of each.
    pub(super) missing: BTreeMap<usize, WantedContent>,
    /// The pending request to each donor.
    asked: BTreeMap<PeerId, ChunkRequest>,
    /// How often a donor did not answer: each time other donors are asked.
    timeouts: usize,
    /// The window of each donor in bytes, if it is not [`CHUNK_BATCH_BYTES`].
    windows: BTreeMap<PeerId, usize>,
    /// When the coordinator last renewed the offer.
    pub(super) renewed_at: Instant,
}

/// A request to one donor.
struct ChunkRequest {
    /// The requested chunks that have not arrived.
    chunks: BTreeSet<usize>,
    /// When the request was sent.
    since: Instant,
    /// When the request is given up, unless something arrives.
    until: Instant,
}

/// The content of a request to one donor.
struct WantedChunks {
    /// Whether the values of the chunks are requested, or their optimizer state.
    content: ChunkContent,
    /// The indices of the chunks.
    chunks: BTreeSet<usize>,
    /// The size of the answer, which the donor's window bounds.
    bytes: usize,
}

impl SnapshotImport {
    /// An import without any chunks, and with none known to be missing.
    pub(super) fn new(offer: MergeOffer, now: Instant) -> Self {
        Self {
            offer,
            remote: Arc::default(),
            missing: BTreeMap::new(),
            asked: BTreeMap::new(),
            timeouts: 0,
            windows: BTreeMap::new(),
            renewed_at: now,
        }
    }

    /// Sets which chunks are needed, and what is needed of each.
    pub(super) fn set_wanted(&mut self, wanted: impl Iterator<Item = (usize, WantedContent)>) {
        self.missing = wanted.filter(|(chunk, content)| !self.remote.has(*chunk, *content)).collect();
    }

    /// Requests missing chunks: one window from each linked donor without a pending request. Donors that are not linked are dialed.
    /// `len_of`: the number of elements of a chunk's values, or of its state.
    pub(super) fn fetch(
        &mut self,
        now: Instant,
        rank: Rank,
        is_linked: impl Fn(&PeerId) -> bool,
        len_of: impl Fn(usize, ChunkContent) -> usize,
        out: &mut Vec<Output>,
    ) {
        if self.missing.is_empty() {
            return;
        }
        let before = self.asked.len();
        self.asked.retain(|peer, asked| asked.until > now && is_linked(peer));
        self.timeouts += before - self.asked.len();
        self.windows.retain(|peer, _| is_linked(peer));
        for donor in self.offer.donors.iter().filter(|donor| !is_linked(&donor.contact.peer)) {
            out.push(Output::Dial(donor.contact.clone()));
        }
        for (peer, WantedChunks { content, chunks, bytes }) in self.wanted(rank.index(), is_linked, len_of) {
            let MergeOffer { view, steps, .. } = self.offer;
            let listed: ChunkSet = chunks.iter().copied().collect();
            let until = now.after(timeout_for(bytes));
            self.asked.insert(peer, ChunkRequest { chunks, since: now, until });
            let want = WantSnapshot { view, steps, content, chunks: listed };
            out.push(Output::Send {
                to: peer,
                frame: Frame::encode(&MergeMessage::WantSnapshot(want).into(), None),
            });
        }
    }

    /// Takes in chunks from a donor; those of an earlier offer are dropped. `len_of`: the number of elements that a chunk must have.
    ///
    /// # Errors
    /// The chunks are damaged, or have values that no branch can have.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        from: PeerId,
        chunks: &SnapshotChunks,
        payload: &Buffer,
        len_of: impl Fn(usize) -> Option<usize>,
    ) -> Result<(), Reject> {
        let SnapshotChunks { view, batch: chunk_batch } = chunks;
        let is_donor = self.offer.donors.iter().any(|donor| donor.contact.peer == from);
        if self.id() != (*view, chunk_batch.steps) || !is_donor {
            return Ok(());
        }
        let parts = unpack(chunk_batch, payload, len_of)?;
        if !are_finite(payload) {
            return Err(Reject::Chunk);
        }
        // While a step blends the snapshot in, nothing is missing any more.
        let Some(remote) = Arc::get_mut(&mut self.remote) else { return Ok(()) };
        for (ChunkEntry { chunk, updates }, part) in parts {
            let (chunk, part) = (chunk as usize, part.to_vec());
            let Some(wanted) = self.missing.get(&chunk).copied() else { continue };
            match chunk_batch.content {
                ChunkContent::Values => _ = remote.values.insert(chunk, part),
                ChunkContent::State => {
                    _ = remote.states.insert(chunk, OptimizerState { moments: part, updates })
                }
            }
            if remote.has(chunk, wanted) {
                self.missing.remove(&chunk);
            }
            if let Some(asked) = self.asked.get_mut(&from) {
                asked.chunks.remove(&chunk);
                asked.until = asked.until.max(now.after(timeout_for(CHUNK_BATCH_BYTES)));
            }
        }
        if let Some(asked) = self.asked.get(&from).filter(|asked| asked.chunks.is_empty()) {
            self.adapt_window(from, now.since(asked.since));
            self.asked.remove(&from);
        }
        Ok(())
    }

    pub(super) fn id(&self) -> SnapshotId {
        (self.offer.view, self.offer.steps)
    }

    fn window(&self, donor: &PeerId) -> usize {
        self.windows.get(donor).copied().unwrap_or(CHUNK_BATCH_BYTES)
    }

    /// A donor has answered a request after the time `took`: adapts its window, because what waits in a link delays all that follows.
    fn adapt_window(&mut self, donor: PeerId, took: Duration) {
        let window = match took {
            _ if took < WINDOW_TIME / 2 => self.window(&donor) * 2,
            _ if took > WINDOW_TIME => self.window(&donor) / 2,
            _ => return,
        };
        self.windows.insert(donor, window.clamp(CHUNK_BATCH_BYTES, REQUESTED_BYTES_MAX));
    }

    /// The next request to each donor. `len_of`: the number of elements of a chunk's values, or of its state.
    fn wanted(
        &self,
        rank: usize,
        is_linked: impl Fn(&PeerId) -> bool,
        len_of: impl Fn(usize, ChunkContent) -> usize,
    ) -> BTreeMap<PeerId, WantedChunks> {
        let linked: Vec<&SnapshotDonor> =
            self.offer.donors.iter().filter(|donor| is_linked(&donor.contact.peer)).collect();
        let on_their_way: BTreeSet<usize> =
            self.asked.values().flat_map(|asked| asked.chunks.iter().copied()).collect();
        let mut wanted: BTreeMap<PeerId, WantedChunks> = BTreeMap::new();
        for &chunk in self.missing.keys().filter(|chunk| !on_their_way.contains(chunk)) {
            let has_values = self.remote.values.contains_key(&chunk);
            let content = if has_values { ChunkContent::State } else { ChunkContent::Values };
            let can_give = |donor: &&&SnapshotDonor| !has_values || donor.states.contains(chunk);
            let able: Vec<&&SnapshotDonor> = linked.iter().filter(can_give).collect();
            // Runs of neighboring chunks go to different donors, so that all of them send.
            let turn = chunk / DONOR_RUN + rank + self.timeouts;
            let Some(donor) = able.get(turn % able.len().max(1)).map(|donor| donor.contact.peer) else {
                continue;
            };
            if self.asked.contains_key(&donor) {
                continue;
            }
            let (chunks, bytes) = (BTreeSet::new(), 0);
            let wanted = wanted.entry(donor).or_insert(WantedChunks { content, chunks, bytes });
            if wanted.content == content && wanted.bytes < self.window(&donor) {
                wanted.chunks.insert(chunk);
                wanted.bytes += len_of(chunk, content) * size_of::<f32>();
            }
        }
        wanted
    }
}

/// How long a donor may take for this many bytes.
fn timeout_for(bytes: usize) -> Duration {
    REQUEST_TIMEOUT + BYTE_TIME_MAX * u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// A donor that has sent nothing for so long is not waited for, and other donors are asked.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
/// The slowest link that is waited for carries a quarter of a megabit per second to one recipient.
const BYTE_TIME_MAX: Duration = Duration::from_micros(32);
/// A window that takes longer than this is halved.
const WINDOW_TIME: Duration = Duration::from_secs(1);
/// How many neighboring chunks are requested from the same donor.
const DONOR_RUN: usize = 16;

#[cfg(test)]
mod tests {
    use peergrad_protocol::cursor::DataCursor;
    use peergrad_protocol::{StepNumber, ViewDigest};

    use super::*;
    use crate::fixtures::{member, peer};

    const LEN: usize = 1 << 12;

    /// Two donors: the first has the states of even chunks, the second those of odd ones. The chunks in `missing` are missing.
    fn import(missing: impl Iterator<Item = usize>) -> SnapshotImport {
        let donation = |byte, parity| {
            let states = (0..128).filter(|chunk| chunk % 2 == parity).collect();
            SnapshotDonor { contact: member(byte).contact(), states }
        };
        let offer = MergeOffer {
            view: ViewDigest([9; 32]),
            steps: StepNumber(7),
            cursor: DataCursor::default(),
            trained: 1,
            ancestors: vec![],
            donors: vec![donation(1, 0), donation(2, 1)],
            coordinator: peer(1),
            question: 0,
        };
        SnapshotImport {
            missing: missing.map(|chunk| (chunk, WantedContent::ValuesAndState)).collect(),
            ..SnapshotImport::new(offer, Instant(0))
        }
    }

    /// The requests to each donor.
    fn wanted(it: &SnapshotImport) -> Vec<(PeerId, ChunkContent, Vec<usize>)> {
        let wanted = it.wanted(0, |_| true, |_, _| LEN).into_iter();
        wanted.map(|(peer, it)| (peer, it.content, it.chunks.into_iter().collect())).collect()
    }

    #[test]
    fn a_window_of_chunks_is_requested_from_each_donor_in_runs() {
        let asked = wanted(&import(0..64));
        let window = CHUNK_BATCH_BYTES / (LEN * size_of::<f32>());
        let of = |start: usize| (start..start + window).collect::<Vec<_>>();
        assert_eq!(
            asked,
            [(peer(1), ChunkContent::Values, of(0)), (peer(2), ChunkContent::Values, of(DONOR_RUN))]
        );
    }

    #[test]
    fn the_window_of_a_fast_donor_grows_and_that_of_a_slow_one_shrinks() {
        let mut it = import(0..1);
        let mut windows = |took| {
            it.adapt_window(peer(1), took);
            it.window(&peer(1)) / CHUNK_BATCH_BYTES
        };
        assert_eq!([0, 100, 499, 700].map(|ms| windows(Duration::from_millis(ms))), [2, 4, 8, 8]);
        assert_eq!(
            [10, 1001, 3000, 9000, 9000].map(|ms| windows(Duration::from_millis(ms))),
            [8, 4, 2, 1, 1]
        );
    }

    #[test]
    fn states_are_requested_from_the_donors_that_store_them() {
        let mut it = import(0..6);
        let values = (0..6).map(|chunk| (chunk, vec![0.0; LEN])).collect();
        it.remote = Arc::new(RemoteState { values, states: BTreeMap::new() });
        let (even, odd) = (vec![0, 2, 4], vec![1, 3, 5]);
        assert_eq!(wanted(&it), [(peer(1), ChunkContent::State, even), (peer(2), ChunkContent::State, odd)]);
    }

    #[test]
    fn chunks_that_one_donor_does_not_send_are_requested_from_another() {
        let mut it = import(0..4);
        let all: Vec<usize> = (0..4).collect();
        assert_eq!(wanted(&it), [(peer(1), ChunkContent::Values, all.clone())]);
        // While the answer may still arrive, no other donor is asked.
        let (since, until) = (Instant(0), Instant(9));
        it.asked.insert(peer(1), ChunkRequest { chunks: (0..4).collect(), since, until });
        assert_eq!(wanted(&it), []);
        (it.asked, it.timeouts) = (BTreeMap::new(), 1);
        assert_eq!(wanted(&it), [(peer(2), ChunkContent::Values, all)]);
    }
}
