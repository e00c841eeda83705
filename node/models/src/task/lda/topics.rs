//! A topic model as it is used: what its topics are, what a document is about, and how well it predicts words.
//!
//! The topics are fixed: topic k has word w with probability (n(w,k) + beta) / (n(k) + V beta). What a document is about is found by
//! repetition: each word is shared among the topics in proportion to how well they explain it, the topics' shares of the document follow
//! from that, and so on until they change little.
//!
//! Most words have few topics. So only counts above zero are kept, and each repetition takes time in proportion to their number.
//!
//! # Reading
//! Wallach, Murray, Salakhutdinov and Mimno, *Evaluation Methods for Topic Models*, 2009, section 5.1: document completion.

use std::ops::Range;

use super::LdaSettings;
use super::state::occurrences;
use crate::data::corpus::Corpus;

/// The topics of a vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicModel {
    settings: LdaSettings,
    /// (words): where a word's counts end.
    ends: Vec<usize>,
    /// Topics in which a word occurs, ascending, one word after the other.
    topics: Vec<u32>,
    /// How often it occurs in each of them, above zero.
    counts: Vec<f32>,
    /// (topics): the sum of all words' counts.
    totals: Vec<f64>,
}

impl TopicModel {
    /// A model with these counts, which may be any numbers: what is not above zero counts as zero.
    ///
    /// - `vocabulary`: the number of words.
    /// - `counts`: (vocabulary, topics), how often each word has each topic.
    ///
    /// # Panics
    /// If there are not as many counts, or a setting is not as it says.
    #[must_use]
    pub fn new(settings: LdaSettings, vocabulary: usize, counts: impl AsRef<[f32]>) -> Self {
        settings.check();
        let (counts, width) = (counts.as_ref(), settings.topics as usize);
        assert_eq!(counts.len(), vocabulary * width, "a count for each word and topic");
        let mut model =
            Self { settings, ends: vec![], topics: vec![], counts: vec![], totals: vec![0.0; width] };
        for row in counts.chunks_exact(width) {
            for (topic, count) in row.iter().enumerate().filter(|(_, count)| **count > 0.0) {
                let count = count.min(f32::MAX);
                model.topics.push(topic as u32);
                model.counts.push(count);
                model.totals[topic] += occurrences(count);
            }
            model.ends.push(model.topics.len());
        }
        model
    }

    /// The number of topics, and how they were found.
    #[must_use]
    pub fn settings(&self) -> &LdaSettings {
        &self.settings
    }

    /// The number of words.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.ends.len()
    }

    /// The `count` most probable words of a topic, and their probabilities, the most probable first. Among equal ones, the first in the
    /// vocabulary is first.
    ///
    /// # Panics
    /// If there is no such topic.
    #[must_use]
    pub fn top_words(&self, topic: usize, count: usize) -> Vec<(u32, f64)> {
        let inverse = self.inverse(topic);
        let probability = |word| {
            let place = self.topics[self.range(word)].binary_search(&(topic as u32));
            let occurrences =
                place.map_or(0.0, |place| f64::from(self.counts[self.range(word).start + place]));
            (occurrences + self.settings.beta) * inverse
        };
        let mut words: Vec<(u32, f64)> =
            (0..self.vocabulary()).map(|word| (word as u32, probability(word))).collect();
        // The sort is stable.
        words.sort_by(|(_, left), (_, right)| right.total_cmp(left));
        words.truncate(count);
        words
    }

    /// Which share of all words each topic has: (topics). All are 0 if there are no words.
    #[must_use]
    pub fn topic_shares(&self) -> Vec<f64> {
        let all: f64 = self.totals.iter().sum();
        self.totals.iter().map(|total| if all > 0.0 { total / all } else { 0.0 }).collect()
    }

    /// Which share of a document is about each topic: (topics). Words outside the vocabulary are left out.
    #[must_use]
    pub fn mixture(&self, words: &[u32]) -> Vec<f64> {
        self.fold_in(words.iter().copied())
    }

    /// The mean negative log-likelihood of a word, in nats: what each document is about is found from its first, third, fifth word and so
    /// on, and its other words are scored. It is 0 if there are none.
    #[must_use]
    pub fn loss(&self, corpus: &Corpus) -> f64 {
        let (mut loss, mut scored) = (0.0, 0_u64);
        for document in 0..corpus.documents() {
            let words = corpus.words(document);
            if words.len() < 2 {
                continue;
            }
            let weights = self.word_weights(&self.fold_in(words.iter().copied().step_by(2)));
            let floor = self.settings.beta * weights.iter().sum::<f64>();
            for word in self.known(words.iter().copied().skip(1).step_by(2)) {
                loss -= libm::log(floor + self.dot(word, &weights));
                scored += 1;
            }
        }
        loss / scored.max(1) as f64
    }

    /// How often a topic's `count` most probable words occur in the same documents: the sum over all pairs of
    /// log((documents with both + 1) / documents with the more probable one). Higher is better, and 0 is about the best. Pairs whose more
    /// probable word occurs in no document are left out.
    ///
    /// Source: Mimno, Wallach, Talley, Leenders and McCallum, *Optimizing Semantic Coherence in Topic Models*, 2011, equation 1 ("UMass").
    ///
    /// # Panics
    /// If there is no such topic.
    #[must_use]
    pub fn coherence(&self, topic: usize, count: usize, corpus: &Corpus) -> f64 {
        let words: Vec<u32> = self.top_words(topic, count).into_iter().map(|(word, _)| word).collect();
        // (documents, words): whether a document has a word.
        let has: Vec<Vec<bool>> = (0..corpus.documents())
            .map(|document| words.iter().map(|word| corpus.words(document).contains(word)).collect())
            .collect();
        let documents =
            |left: usize, right: usize| has.iter().filter(|has| has[left] && has[right]).count() as f64;
        let pairs = (0..words.len()).flat_map(|right| (0..right).map(move |left| (left, right)));
        pairs
            .map(|(left, right)| (documents(left, right), documents(left, left)))
            .filter(|(_, with_left)| *with_left > 0.0)
            .map(|(with_both, with_left)| libm::log((with_both + 1.0) / with_left))
            .sum()
    }

    /// One over the number of a topic's words, with beta for each word of the vocabulary.
    fn inverse(&self, topic: usize) -> f64 {
        1.0 / (self.totals[topic] + self.settings.beta * self.vocabulary() as f64)
    }

    /// Where the counts of a word are.
    fn range(&self, word: usize) -> Range<usize> {
        let start = if word == 0 { 0 } else { self.ends[word - 1] };
        start..self.ends[word]
    }

    fn known(&self, words: impl Iterator<Item = u32>) -> impl Iterator<Item = usize> {
        words.map(|word| word as usize).filter(|word| *word < self.vocabulary())
    }

    /// Shares of a document over the numbers of the topics' words: (topics). A word's probability is the sum of its counts, plus beta,
    /// times these.
    fn word_weights(&self, shares: &[f64]) -> Vec<f64> {
        shares.iter().enumerate().map(|(topic, share)| share * self.inverse(topic)).collect()
    }

    /// The sum of a word's counts times the weights of their topics.
    fn dot(&self, word: usize, weights: &[f64]) -> f64 {
        self.terms(word).map(|(topic, count)| count * weights[topic]).sum()
    }

    fn terms(&self, word: usize) -> impl Iterator<Item = (usize, f64)> {
        let range = self.range(word);
        let counts = self.counts[range.clone()].iter().map(|count| f64::from(*count));
        self.topics[range].iter().map(|topic| *topic as usize).zip(counts)
    }

    /// The shares of a document that has these words: (topics).
    fn fold_in(&self, words: impl Iterator<Item = u32>) -> Vec<f64> {
        let mut words: Vec<usize> = self.known(words).collect();
        words.sort_unstable();
        let LdaSettings { alpha, beta, .. } = self.settings;
        let width = self.totals.len();
        let all = words.len() as f64 + alpha * width as f64;
        let mut shares = vec![1.0 / width as f64; width];
        // (topics): what words are to a topic, over its weight.
        let mut gains = vec![0.0; width];
        for _ in 0..REPETITIONS_MAX {
            let weights = self.word_weights(&shares);
            let floor = beta * weights.iter().sum::<f64>();
            let mut of_all_topics = 0.0;
            gains.fill(0.0);
            for same in words.chunk_by(|left, right| left == right) {
                let gain = same.len() as f64 / (floor + self.dot(same[0], &weights));
                of_all_topics += gain;
                self.terms(same[0]).for_each(|(topic, count)| gains[topic] += gain * count);
            }
            let mut change = 0.0;
            for ((share, gain), weight) in shares.iter_mut().zip(&gains).zip(&weights) {
                let next = (alpha + weight * (gain + beta * of_all_topics)) / all;
                change += (next - *share).abs();
                *share = next;
            }
            if change < CHANGE_MIN {
                break;
            }
        }
        shares
    }
}

/// The search for a document's shares ends after so many repetitions,
const REPETITIONS_MAX: usize = 50;
/// or when they have changed by no more than this, all together.
const CHANGE_MIN: f64 = 1e-4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Task;
    use crate::task::lda::{Lda, Sampler};

    const SETTINGS: LdaSettings = LdaSettings { topics: 2, alpha: 0.5, beta: 0.5, sampler: Sampler::Dense };
    /// Four words and two topics.
    const COUNTS: [f32; 8] = [6.0, 0.0, 2.0, 1.0, 0.0, 5.0, 0.0, 0.0];

    fn model() -> TopicModel {
        TopicModel::new(SETTINGS, 4, COUNTS)
    }

    #[test]
    fn top_words_are_the_most_probable_ones() {
        assert_eq!(model().top_words(0, 3), [(0, 0.65), (1, 0.25), (2, 0.05)]);
        assert_eq!(model().top_words(1, 9), [(2, 0.6875), (1, 0.1875), (0, 0.0625), (3, 0.0625)]);
        assert_eq!(model().topic_shares(), [8.0 / 14.0, 6.0 / 14.0]);
    }

    /// Expectation and maximization on plain matrices, until nothing changes.
    fn plain_mixture(words: &[u32]) -> [f64; 2] {
        let phi = |word: u32, topic: usize| {
            let total: f32 = COUNTS.iter().skip(topic).step_by(2).sum();
            (f64::from(COUNTS[word as usize * 2 + topic]) + 0.5) / (f64::from(total) + 2.0)
        };
        let mut theta = [0.5; 2];
        for _ in 0..1000 {
            let mut next = [0.5; 2];
            for &word in words {
                let all: f64 = (0..2).map(|topic| theta[topic] * phi(word, topic)).sum();
                (0..2).for_each(|topic| next[topic] += theta[topic] * phi(word, topic) / all);
            }
            theta = next.map(|count| count / (words.len() as f64 + 1.0));
        }
        theta
    }

    #[test]
    fn a_mixture_agrees_with_a_plain_computation() {
        for words in [&[0, 0, 2, 1][..], &[2, 2, 2, 2, 3, 0], &[3], &[]] {
            let (found, plain) = (model().mixture(words), plain_mixture(words));
            assert!((found[0] - plain[0]).abs() < 1e-3, "{words:?}: {found:?} {plain:?}");
            assert!((found.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        }
        assert_eq!(model().mixture(&[0, 9, 2]), model().mixture(&[0, 2]), "word 9 is unknown");
    }

    #[test]
    fn the_loss_is_that_of_every_other_word() {
        let documents: [&[u32]; 4] = [&[0, 1, 0, 0], &[], &[2], &[2, 3]];
        let corpus = Corpus::new(4, documents.map(|words| words.iter().copied()));
        let log = |words: &[u32], [first, second]: [f64; 2]| {
            let [first_share, second_share] = plain_mixture(words);
            libm::log(first_share * first + second_share * second)
        };
        let expected =
            log(&[0, 0], [0.25, 0.1875]) + log(&[0, 0], [0.65, 0.0625]) + log(&[2], [0.05, 0.0625]);
        assert!((model().loss(&corpus) + expected / 3.0).abs() < 1e-3);
        let task = Lda::new(SETTINGS, Corpus::new(4, [[0]]), corpus.clone());
        let evaluation = task.evaluate(&COUNTS);
        assert_eq!((evaluation.samples, evaluation.loss), (4, model().loss(&corpus)));
    }

    #[test]
    fn any_counts_have_a_loss() {
        let corpus = Corpus::new(4, [[0, 1, 2, 3, 1, 1]]);
        let loss = |counts: [f32; 8]| TopicModel::new(SETTINGS, 4, counts).loss(&corpus);
        assert!((loss([0.0; 8]) - libm::log(4.0)).abs() < 1e-12);
        assert_eq!(loss([0.0; 8]), loss([-1.0; 8]));
        assert_eq!(loss([0.0; 8]), loss([f32::NAN; 8]));
        for count in [0.25, 1e30, f32::INFINITY] {
            assert!(loss([0.0, count, 0.0, -3.0, count, 0.0, 1.5, 0.0]).is_finite(), "{count}");
        }
        assert_eq!(model().loss(&Corpus::default()), 0.0);
        assert_eq!(TopicModel::new(SETTINGS, 4, [0.0; 8]).topic_shares(), [0.0; 2]);
    }

    #[test]
    fn coherence_counts_documents_with_two_words() {
        let documents: [&[u32]; 3] = [&[0, 1], &[0, 2, 0], &[1]];
        let corpus = Corpus::new(4, documents.map(|words| words.iter().copied()));
        // Words 0, 1 and 2: 0 and 1 share one of two documents, 0 and 2 one of two, 1 and 2 none of two.
        assert_eq!(model().coherence(0, 3, &corpus), libm::log(0.5));
    }
}
