//! The sparse sampler: sums over the topics that a document or a word has, which are few, instead of over all.
//!
//! The product of the conditional distribution falls apart into three sums, of which only the last depends on the word:
//!
//! ```text
//! (n(d,k) + alpha) (n(w,k) + beta)        alpha beta        n(d,k) beta      (n(d,k) + alpha) n(w,k)
//! --------------------------------   =    ----------   +    -----------   +  -----------------------
//!          n(k) + V beta                     ...                ...                   ...
//!                                       smoothing:         document:          word:
//!                                       all topics         its topics         its topics
//! ```
//! The first two sums are kept and corrected when counts change. It is as exact as the dense one, up to rounding, and takes time in
//! proportion to the number of topics that the word has, rarely more.
//!
//! # Reading
//! Yao, Mimno and McCallum, *Efficient Methods for Topic Model Inference on Streaming Document Collections*, 2009, section 3.4. We do not
//! keep a word's topics ordered by their counts.

use super::random::Random;
use super::state::{State, occurrences};
use super::sweep::{Draw, Token};

/// The sums, and the topics of each word.
pub(super) struct Sparse {
    /// The sum over all topics, without alpha and beta.
    smoothing: f64,
    /// The sum over the document's topics, without beta.
    document: f64,
    /// (topics): what the count of a word in a topic is multiplied with.
    factors: Vec<f64>,
    /// (words): topics with a count above zero, in an order without meaning.
    of_words: Vec<Vec<u32>>,
    /// The terms of the sum over a word's topics.
    terms: Vec<f64>,
}

impl Sparse {
    pub(super) fn new(state: &State<'_>) -> Self {
        let topics_of = |row| {
            let counts = (0..).zip(state.row(row));
            counts.filter(|(_, count)| **count > 0.0).map(|(topic, _)| topic).collect()
        };
        Self {
            smoothing: 0.0,
            document: 0.0,
            factors: vec![0.0; state.topics()],
            of_words: (0..state.rows()).map(topics_of).collect(),
            terms: vec![],
        }
    }

    /// Computes the terms of a word, forgets topics that it no longer has, and returns their sum.
    fn word_terms(&mut self, row: usize, counts: &[f32]) -> f64 {
        let topics = &mut self.of_words[row];
        let (mut place, mut sum) = (0, 0.0);
        self.terms.clear();
        while let Some(&topic) = topics.get(place) {
            let count = occurrences(counts[topic as usize]);
            if count > 0.0 {
                let term = count * self.factors[topic as usize];
                self.terms.push(term);
                sum += term;
                place += 1;
            } else {
                topics.swap_remove(place);
            }
        }
        sum
    }
}

impl Draw for Sparse {
    fn begin(&mut self, state: &State<'_>) {
        let inverses = state.inverses();
        self.smoothing = inverses.iter().sum();
        let of_topic = |topic: &u32| state.document.counts()[*topic as usize] * inverses[*topic as usize];
        self.document = state.document.present().iter().map(of_topic).sum();
        let factors = state.document.counts().iter().zip(inverses);
        self.factors
            .iter_mut()
            .zip(factors)
            .for_each(|(factor, (count, inverse))| *factor = (count + state.alpha) * inverse);
    }

    fn before_change(&mut self, state: &State<'_>, topic: usize) {
        let inverse = state.inverses()[topic];
        self.smoothing -= inverse;
        self.document -= state.document.counts()[topic] * inverse;
    }

    fn after_change(&mut self, state: &State<'_>, topic: usize) {
        let (count, inverse) = (state.document.counts()[topic], state.inverses()[topic]);
        self.smoothing += inverse;
        self.document += count * inverse;
        self.factors[topic] = (count + state.alpha) * inverse;
    }

    fn draw(&mut self, state: &State<'_>, token: &Token<'_>, random: &mut Random) -> usize {
        let counts = state.row(token.row);
        let word = self.word_terms(token.row, counts);
        let document = state.beta * self.document.max(0.0);
        let smoothing = state.alpha * state.beta * self.smoothing;
        let drawn = random.unit() * (word + document + smoothing);
        let topic = if drawn < word {
            let terms = self.of_words[token.row].iter().zip(&self.terms);
            find(drawn, terms.map(|(topic, term)| (*topic as usize, *term)))
        } else if drawn < word + document {
            let term = |topic| state.document.counts()[topic] * state.inverses()[topic];
            let terms = state.document.present().iter().map(|topic| (*topic as usize, term(*topic as usize)));
            find((drawn - word) / state.beta, terms)
        } else {
            let left = (drawn - word - document) / (state.alpha * state.beta);
            find(left, state.inverses().iter().copied().enumerate())
        };
        // No word and no document has a topic whose term rounding has made up.
        let topic = topic.unwrap_or(0);
        if counts[topic] <= 0.0 && counts[topic] + 1.0 > 0.0 {
            self.of_words[token.row].push(topic as u32);
        }
        topic
    }
}

/// The topic at which the sum of terms exceeds `drawn`; the last one if rounding prevents it. `None` if there are none.
fn find(mut drawn: f64, terms: impl Iterator<Item = (usize, f64)>) -> Option<usize> {
    let mut last = None;
    for (topic, term) in terms {
        if drawn < term {
            return Some(topic);
        }
        drawn -= term;
        last = Some(topic);
    }
    last
}
