//! Invariant 4, same bits: after a commit all members have bit-identical parameters, across views and from a newcomer's first commit on;
//! owner and replicas have bit-identical state; and all members that send a chunk of a step send the same bits.
//!
//! The digests that members report must agree, and must be reported: without a digest several invariants would have nothing to check. The
//! content of chunks is compared when they are sent, and their optimizer state at every commit.

use std::any::Any;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::ops::Bound;

use peergrad_core::io::Event;
use peergrad_core::node::NodeState;
use peergrad_core::program::loader::Loaded;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::manifest::Chunks;
use peergrad_protocol::message::{ChunkBatch, ChunkContent, ChunkEntry, Message, TrainingMessage};
use peergrad_protocol::view::View;
use peergrad_protocol::{ViewDigest, ViewNumber};

use super::single_owner::fold;
use super::{Invariant, Observation};
use crate::host::HostId;
use crate::oracles::view_chain::is_restored;
use crate::world::World;

/// The invariant's name.
pub const SAME_BITS: &str = "same bits (invariant 4)";

/// The digests reported of each step, and what was sent or is stored of each chunk.
#[derive(Clone)]
pub struct SameBits {
    digest_every: Option<NonZeroU64>,
    chunks_of: Chunks,
    /// Numbers of optimizer state for each element.
    number_count: usize,
    /// By step: the first member's digest, and its host.
    digests: BTreeMap<u64, (ContentDigest, HostId)>,
    /// By number of steps, chunk, and kind of content: what the first donor sent, or what the first member that stores it has.
    chunks: BTreeMap<(u64, u32, ChunkContent), Seen>,
    /// By digest: number of the view.
    view_numbers: BTreeMap<ViewDigest, ViewNumber>,
    /// By number of the view: its first step, and the chunks whose state restarts there.
    begins: BTreeMap<ViewNumber, (u64, Vec<u32>)>,
}

/// The content of a chunk, sent or stored.
#[derive(Clone, Copy)]
struct Seen {
    view_number: ViewNumber,
    at: HostId,
    bits: u64,
}

impl SameBits {
    /// The invariant for a run of this task.
    #[must_use]
    pub fn new(loaded: &Loaded) -> Self {
        Self {
            digest_every: loaded.config.digest_every,
            chunks_of: loaded.manifest.chunks(),
            number_count: loaded.state_count(),
            digests: BTreeMap::new(),
            chunks: BTreeMap::new(),
            view_numbers: BTreeMap::new(),
            begins: BTreeMap::new(),
        }
    }

    fn installed(&mut self, view: &View, digest: ViewDigest) {
        self.view_numbers.insert(digest, view.number);
        let is_new =
            self.begins.insert(view.number, (view.first_step().0, view.moves.restarted.clone())).is_none();
        if is_new && is_restored(view) {
            // Later steps are committed once more, with other results.
            self.digests.split_off(&view.first_step().0);
        }
        self.forget_before(view.first_step().0.saturating_sub(STEPS_ALIVE));
    }

    fn check_digest(&mut self, host: HostId, step: u64, digest: Option<ContentDigest>) -> Result<(), String> {
        let Some(digest) = digest else {
            let is_due = self.digest_every.is_some_and(|every| (step + 1).is_multiple_of(every.get()));
            return if is_due {
                Err(format!("{host} commits step {step} without its digest"))
            } else {
                Ok(())
            };
        };
        let (known, first) = *self.digests.entry(step).or_insert((digest, host));
        if known == digest {
            return Ok(());
        }
        Err(format!("after step {step} the parameters of {host} differ from those of {first}"))
    }

    fn piece(
        &mut self,
        from: HostId,
        (view, chunk_batch): (&ViewDigest, &ChunkBatch),
        piece: ChunkEntry,
        payload: &[f32],
    ) -> Result<(), String> {
        // Without the installed view there is nothing to compare.
        let Some(&view_number) = self.view_numbers.get(view) else { return Ok(()) };
        let key = (chunk_batch.steps.0, piece.chunk, chunk_batch.content);
        let sent = Seen { view_number, at: from, bits: fold(payload) ^ u64::from(piece.updates) };
        self.compare(key, sent).map_err(|first| {
            let what = if chunk_batch.content == ChunkContent::Values { "values" } else { "state" };
            let (steps, chunk, _) = key;
            format!("{from} sends other {what} of chunk {chunk} after {steps} steps than {first}")
        })
    }

    /// Checks what a member stores once it knows that `steps` steps are committed.
    fn kept(&mut self, host: HostId, steps: u64, world: &World<'_>) -> Result<(), String> {
        let Some(NodeState::Member(member)) = world.node_state(host) else { return Ok(()) };
        let Some(&view_number) = self.view_numbers.get(&member.digest) else { return Ok(()) };
        // A rule without state has no replicas; and the member may know of more commits by now.
        if self.number_count == 0 || member.committed != steps {
            return Ok(());
        }
        self.forget_before(steps.saturating_sub(STEPS_ALIVE));
        for (chunk, moments, updates) in world.optimizer_states(host) {
            let chunk = chunk as u32;
            let kept = Seen { view_number, at: host, bits: fold(moments) ^ u64::from(updates) };
            self.compare((steps, chunk, ChunkContent::State), kept).map_err(|first| {
                format!("{host} stores a state of chunk {chunk} after {steps} steps that differs from that of {first}")
            })?;
        }
        Ok(())
    }

    /// Compares with what was seen first.
    ///
    /// # Errors
    /// The host where that was.
    fn compare(&mut self, key: (u64, u32, ChunkContent), seen: Seen) -> Result<(), HostId> {
        let (steps, chunk, _) = key;
        let known = *self.chunks.entry(key).or_insert(seen);
        if known.bits == seen.bits {
            return Ok(());
        }
        if self.may_differ(known.view_number, seen.view_number, steps, chunk) {
            self.chunks.insert(key, seen);
            return Ok(());
        }
        Err(known.at)
    }

    fn forget_before(&mut self, steps: u64) {
        if self.chunks.first_key_value().is_some_and(|((first, ..), _)| *first < steps) {
            self.chunks = self.chunks.split_off(&(steps, 0, ChunkContent::Values));
        }
    }

    /// Whether the step may have been undone and repeated between the two views, or the state restarted.
    fn may_differ(&self, one: ViewNumber, other: ViewNumber, steps: u64, chunk: u32) -> bool {
        let (first, last) = (one.min(other), one.max(other));
        let mut between = self.begins.range((Bound::Excluded(first), Bound::Included(last)));
        between.any(|(_, (step, restarted))| *step < steps || restarted.contains(&chunk))
    }
}

impl Invariant for SameBits {
    fn name(&self) -> &'static str {
        SAME_BITS
    }

    fn fork(&self) -> Option<Box<dyn Invariant>> {
        Some(Box::new(self.clone()))
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn observe(&mut self, observation: &Observation<'_>, world: &World<'_>) -> Result<(), String> {
        match observation {
            Observation::Emitted { event: Event::ViewInstalled { view, digest, .. }, .. } => {
                self.installed(view, *digest);
                Ok(())
            }
            Observation::Emitted { host, event: Event::Committed(committed) } => {
                self.check_digest(*host, committed.step.0, committed.digest)?;
                self.kept(*host, committed.step.0 + 1, world)
            }
            Observation::Emitted { host, event: Event::Restored { steps, digest, .. } } if steps.0 > 0 => {
                self.check_digest(*host, steps.0 - 1, Some(*digest))
            }
            Observation::Emitted { host, event: Event::Ended(ended) } => match &ended.state {
                Some(state) if state.steps > 0 => {
                    self.check_digest(*host, state.steps - 1, Some(state.digest))
                }
                _ => Ok(()),
            },
            Observation::Sent {
                from,
                message: Message::InView { view, message: TrainingMessage::ChunkBatch(chunk_batch) },
                payload: Some(payload),
                ..
            } => {
                let mut rest: &[f32] = payload;
                for piece in &chunk_batch.entries {
                    let elements = self.chunks_of.range(piece.chunk as usize).len();
                    let len = match chunk_batch.content {
                        ChunkContent::Values => elements,
                        ChunkContent::State => elements * self.number_count,
                    };
                    let (part, after) =
                        rest.split_at_checked(len).ok_or("a chunk batch of another length")?;
                    self.piece(*from, (view, chunk_batch), *piece, part)?;
                    rest = after;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Steps before a view's first, or before the newest committed one, of which something may still be in transit.
const STEPS_ALIVE: u64 = 3;
