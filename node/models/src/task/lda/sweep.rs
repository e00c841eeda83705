//! A sweep over documents: takes each word's topic away, lets a sampler draw another, and counts.
//!
//! It goes through the documents one after the other, as they lie in the corpus. What changes with each word is then counted in arrays of
//! one document, which stay in the fastest cache. The rows of words are read in the order in which the words occur: natural text repeats
//! few words often. To go word by word would make these the fast ones, and would need the counts of all documents at once.

use super::TopicCounts;
use super::random::Random;
use super::state::State;
use crate::data::corpus::Corpus;

/// A sampler. A sweep calls it before and after each change of the counts, so that it can correct what it keeps of them.
pub(super) trait Draw {
    /// A document starts. It is already in `state`.
    fn begin(&mut self, _state: &State<'_>) {}

    /// A word that has a topic is about to be drawn. It is still in `state`.
    fn prepare(&mut self, _state: &State<'_>, _row: usize) {}

    /// The counts of a topic are about to change.
    fn before_change(&mut self, _state: &State<'_>, _topic: usize) {}

    /// The counts of a topic have changed.
    fn after_change(&mut self, _state: &State<'_>, _topic: usize) {}

    /// A topic for the word, which is not in `state`. It will get it.
    fn draw(&mut self, state: &State<'_>, token: &Token<'_>, random: &mut Random) -> usize;
}

/// A word at its place in a document.
pub(super) struct Token<'a> {
    /// The row of the word.
    pub(super) row: usize,
    /// The topic that it had.
    pub(super) before: Option<usize>,
    /// Where it is in the document.
    pub(super) position: usize,
    /// (words of the document): their topics from 1; 0 is none. That of this word is the one that it had.
    pub(super) document: &'a [u32],
}

/// The documents, and the counts of their words.
pub(super) struct Sweep<'a> {
    corpus: &'a Corpus,
    documents: &'a [u32],
    /// (words up to the last that occurs): the row of each.
    rows: Vec<u32>,
    state: State<'a>,
}

impl<'a> Sweep<'a> {
    /// # Panics
    /// If there are not as many counts as words and topics.
    pub(super) fn new(
        [alpha, beta]: [f64; 2],
        corpus: &'a Corpus,
        documents: &'a [u32],
        counts: &'a mut TopicCounts,
    ) -> Self {
        let topics = counts.totals.len();
        assert_eq!(counts.by_word.len(), counts.words.len() * topics, "a count for each word and topic");
        let mut rows = vec![u32::MAX; counts.words.last().map_or(0, |last| *last as usize + 1)];
        (0..).zip(&counts.words).for_each(|(row, word)| rows[*word as usize] = row);
        Self { corpus, documents, rows, state: State::new(alpha, beta, corpus.vocabulary(), counts) }
    }

    /// Draws all topics. Returns the mean negative log-likelihood of those words that are scored.
    pub(super) fn run<D: Draw>(
        mut self,
        sampler: impl FnOnce(&State<'_>) -> D,
        seed: [u8; 32],
        assignments: &mut [u32],
    ) -> f64 {
        let mut sampler = sampler(&self.state);
        let mut random = Random::new(seed);
        let (mut scored, mut loss) = (Scored::new(self.state.topics(), assignments.len(), &mut random), 0.0);
        let mut rest = assignments;
        for &document in self.documents {
            let words = self.corpus.words(document);
            let (of_document, others) = rest.split_at_mut(words.len());
            rest = others;
            self.state.document.begin(of_document);
            sampler.begin(&self.state);
            for (position, &word) in words.iter().enumerate() {
                let row = self.rows[word as usize] as usize;
                let before = (of_document[position] as usize).checked_sub(1);
                if let Some(before) = before {
                    sampler.prepare(&self.state, row);
                    sampler.before_change(&self.state, before);
                    self.state.remove(row, before);
                    sampler.after_change(&self.state, before);
                }
                if scored.is_next() {
                    loss -= libm::log(self.state.likelihood(self.state.row(row)));
                }
                let token = Token { row, before, position, document: of_document };
                let after = sampler.draw(&self.state, &token, &mut random);
                sampler.before_change(&self.state, after);
                self.state.add(row, after);
                sampler.after_change(&self.state, after);
                of_document[position] = after as u32 + 1;
            }
        }
        assert!(rest.is_empty(), "a topic for each word of the documents");
        loss / f64::from(scored.count.max(1))
    }
}

/// Which words are scored: a fixed share, because it takes time in proportion to the number of topics.
struct Scored {
    every: usize,
    /// Words before the next one.
    next: usize,
    count: u32,
}

impl Scored {
    fn new(topics: usize, tokens: usize, random: &mut Random) -> Self {
        let every = (topics / TOPICS_PER_TOKEN).clamp(1, SCORED_EVERY_MAX).min(tokens.max(1));
        Self { every, next: random.pair(every)[0] as usize, count: 0 }
    }

    fn is_next(&mut self) -> bool {
        let is_scored = self.next == 0;
        if is_scored {
            self.next = self.every;
            self.count += 1;
        }
        self.next -= 1;
        is_scored
    }
}

/// So many topics are computed for the loss, in the mean of all words, unless that would leave out more than [`SCORED_EVERY_MAX`] allows.
const TOPICS_PER_TOKEN: usize = 32;
/// At least one word of so many is scored.
const SCORED_EVERY_MAX: usize = 32;
