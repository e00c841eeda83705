//! Tables of words: draw a topic for a word as its counts were a while ago, in the same time whatever the number of topics.
//!
//! ```text
//!              n(w, k) + beta        n(w, k)             beta
//! weight(k) =  --------------   =   ---------    +     ---------
//!               n(k) + V beta          ...                ...
//!                                   an alias table     an alias table
//!                                   of this word       of all words
//! ```
//! A word's table has its own topics only, so its size does not grow with the number of topics. It is built when the word is first drawn
//! in a sweep, and again after as many draws as make up for that. The totals n(k) and the table of all words are those of the sweep's
//! start.
//!
//! The counts include the word that is to be drawn, with the topic that it had. If it stayed in the table, the proposals would depend on
//! that topic: a rare word would mostly be proposed the topic that it has, and would accept any other. So the word is taken out: if its
//! topic is drawn, then with the word's own share of that topic's weight the draw is repeated without it.
//!
//! # Invariants
//! - Proposals for a word do not depend on the topic that it has. While no other word has changed either, what they lead to is exact.
//!
//! # Reading
//! Li, Ahmed, Ravi and Smola, *Reducing the Sampling Complexity of Topic Models*, 2014, section 4; Yuan et al., *LightLDA*, 2015, section
//! 4. Both leave the word in the table, and have tables of all topics.

use super::alias_table::{AliasTable, BuildBuffers};
use super::random::Random;
use super::state::State;

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
    /// (words)
    words: Vec<WordTable>,
    /// The weights of a table that is being built.
    weights: Vec<f64>,
    buffers: BuildBuffers,
}

/// The first part of a word's weights.
#[derive(Default)]
struct WordTable {
    table: AliasTable,
    /// The topics with a count above zero when the table was built, ascending, and their counts.
    counts: Vec<(u32, f32)>,
    /// The sum of their weights.
    sum: f64,
    /// It is built again after so many words.
    words_left: usize,
}

impl WordTable {
    /// How often the word had a topic when the table was built.
    fn count(&self, topic: usize) -> f64 {
        let place = self.counts.binary_search_by_key(&(topic as u32), |(topic, _)| *topic);
        place.map_or(0.0, |place| f64::from(self.counts[place].1))
    }
}

impl WordTables {
    pub(super) fn new(state: &State<'_>) -> Self {
        let (topics, rows) = (state.topics(), state.rows());
        let inverses = state.inverses().to_vec();
        let (mut smoothing, mut buffers) = (AliasTable::default(), BuildBuffers::default());
        let smoothing_sum = inverses.iter().sum();
        smoothing.rebuild(0..topics as u32, &inverses, smoothing_sum, &mut buffers);
        Self {
            beta: state.beta,
            inverses,
            inverses_of_one_less: state.inverses_of_one_less(),
            smoothing,
            smoothing_sum,
            words: (0..rows).map(|_| WordTable::default()).collect(),
            weights: vec![],
            buffers,
        }
    }

    /// Builds the table of a word, if it is time. The word that is to be drawn is still counted in `state`.
    pub(super) fn prepare(&mut self, state: &State<'_>, row: usize) {
        let word = &mut self.words[row];
        if word.words_left == 0 {
            let counts = (0..).zip(state.row(row).iter().copied());
            word.counts.clear();
            word.counts.extend(counts.filter(|(_, count)| *count > 0.0));
            let weight = |(topic, count): &(u32, f32)| f64::from(*count) * self.inverses[*topic as usize];
            self.weights.clear();
            self.weights.extend(word.counts.iter().map(weight));
            word.sum = self.weights.iter().sum();
            let topics = word.counts.iter().map(|(topic, _)| *topic);
            word.table.rebuild(topics, &self.weights, word.sum, &mut self.buffers);
            // The more topics the table has, the more draws its building is worth.
            word.words_left = word.counts.len().max(state.topics() / TOPICS_PER_WORD).max(1);
        }
        word.words_left -= 1;
    }

    /// What topics are proposed for a word of this row, which had the topic `own` when the table was built.
    pub(super) fn proposal(&self, row: usize, own: usize) -> Proposal<'_> {
        let word = &self.words[row];
        let count = word.count(own);
        let (with, without) = (self.inverses[own], self.inverses_of_one_less[own]);
        let own_with = count * with;
        // Rounding, and totals that other workers have changed, must not make it more.
        let own_without = ((count - 1.0).max(0.0) * without).min(own_with);
        Proposal {
            tables: self,
            word,
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
        (self.word.count(topic) + self.tables.beta) * self.tables.inverses[topic]
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
        for (topic, count) in &self.word.counts {
            let topic = *topic as usize;
            let weight = if topic == self.own {
                self.own_without
            } else {
                f64::from(*count) * self.tables.inverses[topic]
            };
            if drawn < weight {
                return topic;
            }
            drawn -= weight;
        }
        self.own
    }
}

/// A table is used for at least as many words as there are topics, divided by this: all topics are looked at to build it.
const TOPICS_PER_WORD: usize = 8;
