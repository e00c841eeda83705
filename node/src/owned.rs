//! The optimizer state of the shard that a member owns: committed and pending, side by side.
//!
//! Like a form and its carbon copy: an update reads the committed sheet and writes the pending one. Only when the step is
//! known to be complete everywhere do they change places, so an undone step leaves no trace.
//!
//! # Invariants
//! - Each chunk carries its own count of updates: state that is lost restarts with its own bias correction.
//! - Memory is 2 x moments x shard: it falls as 1 / n.

use std::ops::Range;

use peergrad_protocol::message::Tally;

use crate::optimizer::{Rule, Update};

/// The state of the chunks that this member owns.
#[derive(Debug)]
pub(crate) struct Owned {
    chunks: Vec<Chunk>,
    /// Moments of all chunks, end to end; within a chunk moment by moment.
    committed: Vec<f32>,
    pending: Vec<f32>,
    /// Whether `pending` holds a newer state.
    has_pending: bool,
}

#[derive(Debug)]
struct Chunk {
    /// Its elements in the parameter vector.
    elements: Range<usize>,
    /// Its moments in `committed` and `pending`.
    moments: Range<usize>,
    /// Updates behind `committed`.
    updates: u32,
}

impl Owned {
    /// Fresh state for `chunks` under a rule that keeps `moment_count` numbers an element.
    pub(crate) fn new(chunks: impl IntoIterator<Item = Range<usize>>, moment_count: usize) -> Self {
        let mut end = 0;
        let chunks: Vec<Chunk> = chunks
            .into_iter()
            .map(|elements| {
                let start = end;
                end += elements.len() * moment_count;
                Chunk { elements, moments: start..end, updates: 0 }
            })
            .collect();
        Self { chunks, committed: vec![0.0; end], pending: vec![0.0; end], has_pending: false }
    }

    /// Turns the summed gradients in the owned parts of `vector` into new parameters, starting from `parameters`.
    ///
    /// A sum that no sample stands behind leaves parameters and state as they are.
    pub(crate) fn update(
        &mut self,
        rule: Rule,
        rate: f64,
        tally: Tally,
        parameters: &[f32],
        vector: &mut [f32],
    ) {
        assert!(!self.has_pending, "the update before is committed");
        self.has_pending = tally.samples > 0;
        if tally.samples == 0 {
            for Chunk { elements, .. } in &self.chunks {
                vector[elements.clone()].copy_from_slice(&parameters[elements.clone()]);
            }
            return;
        }
        let scale = 1.0 / tally.samples as f32;
        // Chunks mostly share their count: one update serves them all.
        let mut prepared: Option<(u32, Update)> = None;
        for Chunk { elements, moments, updates } in &self.chunks {
            let (_, update) = match prepared.take() {
                Some(same) if same.0 == *updates => prepared.insert(same),
                _ => prepared.insert((*updates, rule.update(rate, updates + 1, scale))),
            };
            let (old, new) = (&self.committed[moments.clone()], &mut self.pending[moments.clone()]);
            update.apply(&parameters[elements.clone()], &mut vector[elements.clone()], old, new);
        }
    }

    /// The pending update is committed.
    pub(crate) fn commit(&mut self) {
        if std::mem::take(&mut self.has_pending) {
            std::mem::swap(&mut self.committed, &mut self.pending);
            self.chunks.iter_mut().for_each(|chunk| chunk.updates += 1);
        }
    }

    /// Bytes of optimizer state kept.
    pub(crate) fn byte_count(&self) -> u64 {
        (size_of_val(&*self.committed) + size_of_val(&*self.pending)) as u64
    }
}
