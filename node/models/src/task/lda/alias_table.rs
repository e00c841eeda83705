//! An alias table: draws one of n outcomes with given probabilities, in the same time whatever n is.
//!
//! Each outcome owns a slot of the same width. An outcome with too much probability lends the rest to slots whose owners have too little,
//! so that each slot holds two outcomes at most:
//!
//! ```text
//! probabilities 1/2 1/3 1/6          slots   | 0 0 | 1 1 | 2 0 |      a draw chooses a slot, and then one of its two outcomes
//! ```
//! Building it takes time in proportion to n.
//!
//! # Reading
//! Walker, *An Efficient Method for Generating Discrete Random Variables with General Distributions*, 1977; Vose, *A Linear Algorithm for
//! Generating Random Numbers with a Given Distribution*, 1991, whose order of building this is.

use super::random::Random;

/// Outcomes and their probabilities.
#[derive(Debug, Default)]
pub(super) struct AliasTable {
    slots: Vec<Slot>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The slot's first outcome has this share of it, in units of 2^-32.
    threshold: u32,
    outcomes: [u32; 2],
}

/// Memory for building tables, which many of them share.
#[derive(Debug, Default)]
pub(super) struct BuildBuffers {
    /// (outcomes): what an outcome still has to place, in units of a slot.
    left: Vec<f64>,
    /// Slots whose owners have less than a slot, and more.
    below: Vec<usize>,
    above: Vec<usize>,
}

impl AliasTable {
    /// Replaces the table with one of these outcomes, in proportion to their weights, of which `sum` is the sum.
    ///
    /// - `weights`: (outcomes), not negative.
    pub(super) fn rebuild(
        &mut self,
        outcomes: impl Iterator<Item = u32>,
        weights: &[f64],
        sum: f64,
        buffers: &mut BuildBuffers,
    ) {
        let BuildBuffers { left, below, above } = buffers;
        let scale = weights.len() as f64 / sum;
        left.clear();
        left.extend(weights.iter().map(|weight| weight * scale));
        self.slots.clear();
        self.slots.extend(outcomes.map(|own| Slot { threshold: u32::MAX, outcomes: [own; 2] }));
        below.clear();
        above.clear();
        for (slot, left) in left.iter().enumerate() {
            if *left < 1.0 { &mut *below } else { &mut *above }.push(slot);
        }
        // What is left in either list at the end has a whole slot, up to rounding.
        while let (Some(&to), Some(&from)) = (below.last(), above.last()) {
            below.pop();
            self.slots[to].threshold = (left[to] * TWO_TO_32) as u32;
            self.slots[to].outcomes[1] = self.slots[from].outcomes[0];
            left[from] -= 1.0 - left[to];
            if left[from] < 1.0 {
                above.pop();
                below.push(from);
            }
        }
    }

    /// An outcome. There must be one.
    pub(super) fn draw(&self, random: &mut Random) -> u32 {
        let [slot, within] = random.pair(self.slots.len());
        let slot = self.slots[slot as usize];
        slot.outcomes[usize::from(within >= slot.threshold)]
    }
}

const TWO_TO_32: f64 = 4_294_967_296.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_drawn_in_proportion_to_their_weights() {
        let (outcomes, weights) = ([7, 1, 4, 9, 2], [0.5, 0.0, 3.0, 1.0, 0.5]);
        let mut table = AliasTable::default();
        table.rebuild(outcomes.into_iter(), &weights, 5.0, &mut BuildBuffers::default());
        let mut random = Random::new([3; 32]);
        let mut drawn = [0; 10];
        (0..100_000).for_each(|_| drawn[table.draw(&mut random) as usize] += 1);
        for (outcome, weight) in outcomes.into_iter().zip(weights) {
            let share = f64::from(drawn[outcome as usize]) / 100_000.0;
            assert!((share - weight / 5.0).abs() < 0.005, "{outcome}: {share}");
        }
        assert_eq!(drawn[1], 0, "an outcome without weight is never drawn");
    }

    #[test]
    fn a_table_can_be_replaced() {
        let (mut table, mut buffers) = (AliasTable::default(), BuildBuffers::default());
        table.rebuild(0..3, &[1.0, 2.0, 3.0], 6.0, &mut buffers);
        table.rebuild(5..6, &[0.1], 0.1, &mut buffers);
        let mut random = Random::new([0; 32]);
        assert!((0..100).all(|_| table.draw(&mut random) == 5));
    }
}
