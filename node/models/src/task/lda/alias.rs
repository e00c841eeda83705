//! The alias sampler: sums over the topics of the document, and draws the rest from a table that is not quite up to date.
//!
//! ```text
//! (n(d,k) + alpha) (n(w,k) + beta)      n(d,k) (n(w,k) + beta)         alpha (n(w,k) + beta)
//! --------------------------------  =   ----------------------    +    ---------------------
//!          n(k) + V beta                         ...                            ...
//!                                       the document's topics,         a table of the word,
//!                                       summed for this word           as of a while ago
//! ```
//! A topic from this mixture is a proposal. It is accepted or not, so that in the long run topics come from the distribution as of now
//! (Metropolis and Hastings). It takes time in proportion to the number of topics that the document has.
//!
//! # Reading
//! Li, Ahmed, Ravi and Smola, *Reducing the Sampling Complexity of Topic Models*, 2014.

use super::dense::Dense;
use super::random::Random;
use super::state::State;
use super::sweep::{Draw, Token};
use super::word_tables::WordTables;

/// The tables, and the terms of the sum.
pub(super) struct Alias {
    tables: WordTables,
    /// (topics of the document): the sums of their terms up to each.
    sums: Vec<f64>,
    /// For words that have no topic yet.
    dense: Dense,
}

impl Alias {
    pub(super) fn new(state: &State<'_>) -> Self {
        Self { tables: WordTables::new(state), sums: vec![], dense: Dense::new(state) }
    }
}

impl Draw for Alias {
    fn prepare(&mut self, state: &State<'_>, row: usize) {
        self.tables.prepare(state, row);
    }

    fn draw(&mut self, state: &State<'_>, token: &Token<'_>, random: &mut Random) -> usize {
        let Some(mut topic) = token.before else { return self.dense.draw(state, token, random) };
        let (row, present, counts) =
            (state.row(token.row), state.document.present(), state.document.counts());
        let mut sum = 0.0;
        self.sums.resize(present.len(), 0.0);
        for (sum_up_to, &topic) in self.sums.iter_mut().zip(present) {
            sum += counts[topic as usize] * state.word_weight(row, topic as usize);
            *sum_up_to = sum;
        }
        let stale = self.tables.proposal(token.row, topic);
        let all = sum + state.alpha * stale.sum();
        // What a topic's probability is in proportion to: as it should be, and as it is proposed.
        let weights = |topic| {
            let word = state.word_weight(row, topic);
            let count = counts[topic];
            [(count + state.alpha) * word, count * word + state.alpha * stale.weight(topic)]
        };
        let mut now = weights(topic);
        for _ in 0..STEPS {
            let drawn = random.unit() * all;
            let place = self.sums.partition_point(|sum| *sum <= drawn);
            let proposed = present.get(place).map_or_else(|| stale.draw(random), |topic| *topic as usize);
            if proposed == topic {
                continue;
            }
            let then = weights(proposed);
            if random.unit() * now[0] * then[1] < then[0] * now[1] {
                (topic, now) = (proposed, then);
            }
        }
        topic
    }
}

/// Proposals for each word.
const STEPS: usize = 2;
