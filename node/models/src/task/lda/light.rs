//! The light sampler: draws a topic in a few steps, whose number depends neither on the number of topics nor on the document.
//!
//! The conditional distribution is a product of what the document says and what the word says. A topic is proposed by one of them, and
//! accepted or not by what the other says (Metropolis and Hastings), in turns:
//!
//! ```text
//! the word proposes:      (n(w,k) + beta) / (n(k) + V beta), from a table, as of a while ago
//! the document proposes:  n(d,k) + alpha: the topic of another word of the document, or with probability alpha K / (L - 1 + alpha K) any
//! ```
//! L is the number of the document's words. The document's proposal is up to date and has no word's own topic in it, so what it says
//! cancels out of the ratio.
//!
//! # Reading
//! Yuan, Gao, Ho et al., *LightLDA: Big Topic Models on Modest Computer Clusters*, 2015, section 4. We leave the word itself out of both
//! proposals.

use super::dense::Dense;
use super::random::Random;
use super::state::State;
use super::sweep::{Draw, Token};
use super::word_tables::WordTables;

/// The tables of words.
pub(super) struct Light {
    tables: WordTables,
    /// For words that have no topic yet.
    dense: Dense,
}

impl Light {
    pub(super) fn new(state: &State<'_>) -> Self {
        Self { tables: WordTables::new(state), dense: Dense::new(state) }
    }
}

impl Draw for Light {
    fn prepare(&mut self, state: &State<'_>, row: usize) {
        self.tables.prepare(state, row);
    }

    fn draw(&mut self, state: &State<'_>, token: &Token<'_>, random: &mut Random) -> usize {
        let Some(mut topic) = token.before else { return self.dense.draw(state, token, random) };
        let row = state.row(token.row);
        let by_word = self.tables.proposal(token.row, topic);
        let mut weight = state.weight(row, topic);
        for _ in 0..ROUNDS {
            let proposed = by_word.draw(random);
            if proposed != topic {
                let then = state.weight(row, proposed);
                if random.unit() * weight * by_word.weight(proposed) < then * by_word.weight(topic) {
                    (topic, weight) = (proposed, then);
                }
            }
            let proposed = of_document(state, token, random);
            if proposed != Some(topic)
                && let Some(proposed) = proposed
            {
                let (now, then) = (state.word_weight(row, topic), state.word_weight(row, proposed));
                if random.unit() * now < then {
                    (topic, weight) = (proposed, state.weight(row, proposed));
                }
            }
        }
        topic
    }
}

/// A topic that the document proposes: `None` if it chose a word without a topic.
fn of_document(state: &State<'_>, token: &Token<'_>, random: &mut Random) -> Option<usize> {
    let others = token.document.len() - 1;
    let drawn = random.unit() * (others as f64 + state.alpha * state.topics() as f64);
    let other = drawn as usize;
    if other < others {
        let other = other + usize::from(other >= token.position);
        return (token.document[other] as usize).checked_sub(1);
    }
    let topic = ((drawn - others as f64) / state.alpha) as usize;
    Some(topic.min(state.topics() - 1))
}

/// Rounds of two proposals for each word.
const ROUNDS: usize = 2;
