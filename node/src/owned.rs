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

use crate::optimizer::Update;
use crate::peer::OwnerRule;

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
    /// Whether the pending update passes it by: its sum overflowed.
    is_passed_by: bool,
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
                Chunk { elements, moments: start..end, updates: 0, is_passed_by: false }
            })
            .collect();
        Self { chunks, committed: vec![0.0; end], pending: vec![0.0; end], has_pending: false }
    }

    /// Turns the summed gradients in the owned parts of `vector` into new parameters, starting from `parameters`.
    ///
    /// A sum that no sample stands behind, or that is not finite, leaves parameters and state of its chunk as they are:
    /// one overflow must not ruin everybody's parameters.
    pub(crate) fn update(
        &mut self,
        mut rule: OwnerRule,
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
        for Chunk { elements, moments, updates, is_passed_by } in &mut self.chunks {
            *is_passed_by = !vector[elements.clone()].iter().all(|sum| sum.is_finite());
            if *is_passed_by {
                vector[elements.clone()].copy_from_slice(&parameters[elements.clone()]);
                self.pending[moments.clone()].copy_from_slice(&self.committed[moments.clone()]);
                continue;
            }
            let (parameters, vector) = (&parameters[elements.clone()], &mut vector[elements.clone()]);
            let (old, new) = (&self.committed[moments.clone()], &mut self.pending[moments.clone()]);
            match &mut rule {
                OwnerRule::Own(rule) => {
                    rule(tally, parameters, vector);
                    new.copy_from_slice(old);
                }
                OwnerRule::Stock(rule) => {
                    let (_, update) = match prepared.take() {
                        Some(same) if same.0 == *updates => prepared.insert(same),
                        _ => prepared.insert((*updates, rule.update(rate, *updates + 1, scale))),
                    };
                    update.apply(parameters, vector, old, new);
                }
            }
        }
    }

    /// The pending update is committed.
    pub(crate) fn commit(&mut self) {
        if std::mem::take(&mut self.has_pending) {
            std::mem::swap(&mut self.committed, &mut self.pending);
            self.chunks.iter_mut().for_each(|chunk| chunk.updates += u32::from(!chunk.is_passed_by));
        }
    }

    /// Bytes of optimizer state kept.
    pub(crate) fn byte_count(&self) -> u64 {
        (size_of_val(&*self.committed) + size_of_val(&*self.pending)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::Rule;

    const MOMENTUM: OwnerRule =
        OwnerRule::Stock(Rule::Momentum { momentum: 0.5, nesterov: false, weight_decay: 0.0 });
    const TALLY: Tally = Tally { samples: 2, loss: 0.0 };

    #[test]
    fn an_update_counts_once_it_is_committed() {
        let mut owned = Owned::new([0..2, 3..4], 1);
        let mut vector = [2.0, 2.0, 9.0, 4.0];
        owned.update(MOMENTUM, 1.0, TALLY, &[0.0; 4], &mut vector);
        assert_eq!(vector, [-1.0, -1.0, 9.0, -2.0], "only what is owned");
        assert_eq!(owned.committed, [0.0; 3]);
        owned.commit();
        assert_eq!(owned.committed, [1.0, 1.0, 2.0]);
        assert_eq!(owned.byte_count(), 24);
    }

    #[test]
    fn a_rule_of_ones_own_sees_each_chunk_and_leaves_the_moments() {
        let mut owned = Owned::new([0..2, 3..4], 1);
        let mut vector = [2.0, 4.0, 9.0, 6.0];
        let rule = |tally: Tally, old: &[f32], sums: &mut [f32]| {
            sums.iter_mut().zip(old).for_each(|(sum, old)| *sum = old + *sum / tally.samples as f32);
        };
        owned.update(OwnerRule::Own(Box::new(rule)), 1.0, TALLY, &[10.0; 4], &mut vector);
        owned.commit();
        assert_eq!((vector, owned.committed), ([11.0, 12.0, 9.0, 13.0], vec![0.0; 3]));
    }

    #[test]
    fn a_sum_that_overflowed_passes_its_chunk_by() {
        let mut owned = Owned::new([0..1, 1..2], 1);
        let mut vector = [f32::INFINITY, 2.0];
        owned.update(MOMENTUM, 1.0, TALLY, &[7.0, 7.0], &mut vector);
        assert_eq!(vector, [7.0, 6.0]);
        owned.commit();
        assert_eq!((owned.chunks[0].updates, owned.chunks[1].updates), (0, 1));
        assert_eq!(owned.committed, [0.0, 1.0]);
    }

    #[test]
    fn a_step_without_samples_changes_nothing() {
        let mut owned = Owned::new([0..1, 1..2], 1);
        let mut vector = [5.0, 5.0];
        owned.update(MOMENTUM, 1.0, Tally::default(), &[1.0, 2.0], &mut vector);
        owned.commit();
        assert_eq!(vector, [1.0, 2.0]);
        assert_eq!(owned.chunks[0].updates, 0);
    }
}
