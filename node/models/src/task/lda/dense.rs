//! The dense sampler: computes the probabilities of all topics for each word. Exact, and slow with many topics.
//!
//! The weights are computed in one pass that has no division. Then a draw looks for the block of topics that holds the drawn number, and
//! after that for the topic within.

use super::random::Random;
use super::state::{LANES, State, occurrences};
use super::sweep::{Draw, Token};

/// Memory for the weights of all topics.
pub(super) struct Dense {
    /// (topics, and zeros up to whole blocks)
    weights: Vec<f64>,
}

impl Dense {
    pub(super) fn new(state: &State<'_>) -> Self {
        Self { weights: vec![0.0; state.topics().next_multiple_of(BLOCK)] }
    }
}

impl Draw for Dense {
    fn draw(&mut self, state: &State<'_>, token: &Token<'_>, random: &mut Random) -> usize {
        let counts = state.document.counts().iter().zip(state.row(token.row)).zip(state.inverses());
        for (weight, ((of_document, of_word), inverse)) in self.weights.iter_mut().zip(counts) {
            *weight = (of_document + state.alpha) * (occurrences(*of_word) + state.beta) * inverse;
        }
        let blocks = self.weights.chunks_exact(BLOCK);
        let mut left = random.unit() * blocks.clone().map(block_sum).sum::<f64>();
        let mut start = 0;
        for block in blocks {
            let sum = block_sum(block);
            if left < sum {
                break;
            }
            left -= sum;
            start += BLOCK;
        }
        for (topic, weight) in self.weights.iter().enumerate().skip(start) {
            if left < *weight {
                return topic.min(state.topics() - 1);
            }
            left -= weight;
        }
        // Rounding has left a little.
        state.topics() - 1
    }
}

/// The sum of a block, in an order that vector units can follow.
fn block_sum(block: &[f64]) -> f64 {
    let mut lanes = [0.0; LANES];
    for part in block.chunks_exact(LANES) {
        lanes.iter_mut().zip(part).for_each(|(lane, weight)| *lane += weight);
    }
    lanes.iter().sum()
}

/// Topics of a block.
const BLOCK: usize = 32;
