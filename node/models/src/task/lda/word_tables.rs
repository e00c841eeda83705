//! Tables of words: draw a topic for a word as its counts were a while ago, in the same time whatever the number of topics.
//!
//! ```text
//!              n(w, k) + beta        n(w, k)             beta
//! weight(k) =  --------------   =   ---------    +     ---------
//!               n(k) + V beta          ...                ...
//!                                   an alias table     an alias table
//!                                   of this word       of all words
//! ```
//! A word's table has its own topics only, so its size does not grow with the number of topics. It is built when the word is first drawn in a
//! sweep, and again after as many draws as make up for that. The totals n(k) and the table of all words are those of the sweep's start.
//!
//! The counts include the word that is to be drawn, with the topic that it had. A proposal must not depend on that topic: if it did, a rare
//! word would be proposed its own topic, and those of a correction that takes the proposal as given would be accepted too often. So the
//! word is taken out of the table: its topic, if drawn, is drawn again with the probability that belongs to the word itself.
//!
//! # Reading
//! Li, Ahmed, Ravi and Smola, *Reducing the Sampling Complexity of Topic Models*, 2014, section 4; Yuan et al., *LightLDA*, 2015, section 4.
//! Both leave the word in the table. For a word that occurs a few times only, that changes the distribution that is drawn from.

use super::alias_table::{AliasTable, Workshop};
use super::random::Random;
use super::state::{State, occurrences};

/// The tables of all words of a sweep.
pub(super) struct WordTables {
    beta: f64,
    /// (topics): one over the totals at the sweep's start.
    inverses: Vec<f64>,
    /// (topics): the same if a topic had one word less.
    inverses_of_one_less: Vec<f64>,
    /// The second part, which has no counts.
    smoothing: AliasTable,
    /// The sum of `inverses`.
    smoothing_sum: f64,
    /// (words, topics): counts as of when a word's table was built.
    counts: Vec<f32>,
    /// (words)
    words: Vec<WordTable>,
    /// The weights of a table that is being built.
    weights: Vec<f64>,
    workshop: Workshop,
}

/// The first part of a word's weights.
#[derive(Default)]
struct WordTable {
    table: AliasTable,
    /// The topics with a count above zero.
    topics: Vec<u32>,
    /// The sum of their weights.
    sum: f64,
    /// It is built again after so many words.
    words_left: usize,
}

impl WordTables {
    pub(super) fn new(state: &State<'_>) -> Self {
        let (topics, rows) = (state.topics(), state.rows());
        let inverses = state.inverses().to_vec();
        let (mut smoothing, mut workshop) = (AliasTable::default(), Workshop::default());
        let smoothing_sum = inverses.iter().sum();
        let all: Vec<u32> = (0..topics as u32).collect();
        smoothing.rebuild(&all, &inverses, smoothing_sum, &mut workshop);
        Self {
            beta: state.beta,
            inverses,
            inverses_of_one_less: state.inverses_of_one_less(),
            smoothing,
            smoothing_sum,
            counts: vec![0.0; rows * topics],
            words: (0..rows).map(|_| WordTable::default()).collect(),
            weights: vec![],
            workshop,
        }
    }

    /// Builds the table of a word, if it is time. The word that is to be drawn is still counted in `state`.
    pub(super) fn prepare(&mut self, state: &State<'_>, row: usize) {
        let word = &mut self.words[row];
        if word.words_left == 0 {
            let now = state.row(row);
            self.counts[row * now.len()..][..now.len()].copy_from_slice(now);
            word.topics.clear();
            self.weights.clear();
            for (topic, count) in now.iter().enumerate().filter(|(_, count)| **count > 0.0) {
                word.topics.push(topic as u32);
                self.weights.push(f64::from(*count) * self.inverses[topic]);
            }
            word.sum = self.weights.iter().sum();
            word.table.rebuild(&word.topics, &self.weights, word.sum, &mut self.workshop);
            word.words_left = word.topics.len().max(now.len() / TOPICS_PER_WORD).max(1);
        }
        word.words_left -= 1;
    }

    /// What topics are proposed for a word of this row, which had the topic `own` when the table was built.
    pub(super) fn proposal(&self, row: usize, own: usize) -> Proposal<'_> {
        let topics = self.inverses.len();
        let counts = &self.counts[row * topics..][..topics];
        let (with, without) = (self.inverses[own], self.inverses_of_one_less[own]);
        let own_with = occurrences(counts[own]) * with;
        // Rounding, and totals that other workers have changed, must not make it more.
        let own_without = (occurrences(counts[own] - 1.0) * without).min(own_with);
        Proposal {
            tables: self,
            word: &self.words[row],
            counts,
            own,
            own_with,
            own_without,
            more_smoothing: self.beta * (without - with),
        }
    }
}

/// The distribution from which topics are proposed for a word. It does not depend on the topic that the word had.
pub(super) struct Proposal<'a> {
    tables: &'a WordTables,
    word: &'a WordTable,
    /// (topics)
    counts: &'a [f32],
    /// The topic that the word had.
    own: usize,
    /// The first part of that topic's weight, with the word and without it.
    own_with: f64,
    own_without: f64,
    /// What the second part of that topic's weight grows by, without the word.
    more_smoothing: f64,
}

impl Proposal<'_> {
    /// The sum of the weights of all topics.
    pub(super) fn sum(&self) -> f64 {
        self.counted_sum() + self.tables.beta * self.tables.smoothing_sum + self.more_smoothing
    }

    /// The sum of the first parts.
    fn counted_sum(&self) -> f64 {
        (self.word.sum - self.own_with + self.own_without).max(0.0)
    }

    /// What the probability of a topic is in proportion to.
    pub(super) fn weight(&self, topic: usize) -> f64 {
        if topic == self.own {
            return self.own_without + self.tables.beta * self.tables.inverses_of_one_less[topic];
        }
        (occurrences(self.counts[topic]) + self.tables.beta) * self.tables.inverses[topic]
    }

    /// A topic.
    pub(super) fn draw(&self, random: &mut Random) -> usize {
        let drawn = random.unit() * self.sum() - self.counted_sum();
        if drawn < 0.0 {
            self.draw_counted(random)
        } else if drawn < self.more_smoothing {
            self.own
        } else {
            self.tables.smoothing.draw(random) as usize
        }
    }

    /// A topic, in proportion to the first parts.
    fn draw_counted(&self, random: &mut Random) -> usize {
        let topic = self.word.table.draw(random) as usize;
        if topic != self.own || random.unit() * self.own_with < self.own_without {
            return topic;
        }
        // The word itself was drawn, which happens once in as many draws as the word occurs: its other occurrences one by one.
        let mut drawn = random.unit() * self.counted_sum();
        let topics = self.word.topics.iter().map(|topic| *topic as usize);
        for topic in topics {
            let weight = if topic == self.own {
                self.own_without
            } else {
                f64::from(self.counts[topic]) * self.tables.inverses[topic]
            };
            if drawn < weight {
                return topic;
            }
            drawn -= weight;
        }
        self.own
    }
}

/// A table is used for at least one word for each so many topics, which are looked at to build it.
const TOPICS_PER_WORD: usize = 8;
