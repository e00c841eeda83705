//! Latent Dirichlet allocation: finds topics in documents, by collapsed Gibbs sampling.
//!
//! Each word of each document is assigned to a topic. The model counts how many words of a document, and how many occurrences of a word in all
//! documents, have each topic. A sweep visits all words once and draws a new topic for each, from its distribution given all other assignments:
//!
//! ```text
//!                                        n(w, k) + beta
//! p(k)  ~  (n(d, k) + alpha)  x  ------------------------     d the document, w the word, V the size of the vocabulary;
//!                                  n(k) + V x beta            all counts without the word itself
//! ```
//! In the first sweep a word has no topic yet.
//!
//! # Reading
//! Griffiths and Steyvers, *Finding Scientific Topics*, 2004.

use peergrad_protocol::manifest::Manifest;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

use super::{Evaluation, Task};
use crate::data::corpus::Corpus;

/// The number of topics, and how they are found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LdaSettings {
    /// The number of topics.
    pub topics: u32,
    /// What is added to the number of a document's words in each topic.
    pub alpha: f64,
    /// What is added to the number of a topic's words of each kind.
    pub beta: f64,
    /// How topics are drawn.
    pub sampler: Sampler,
}

/// How topics are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sampler {
    /// From the probabilities of all topics, all computed for each word.
    #[default]
    Dense,
}

/// A topic model and its documents. The parameters are the number of occurrences of each word in each topic.
#[derive(Debug)]
pub struct Lda {
    settings: LdaSettings,
    training: Corpus,
    held_out: Corpus,
}

/// How often words have each topic, as far as a worker knows: another worker may have changed some of them meanwhile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopicCounts {
    /// The words, ascending.
    pub words: Vec<u32>,
    /// How often each of them has each topic: (words, topics). They are whole numbers.
    pub by_word: Vec<f32>,
    /// How many occurrences of any word have each topic: (topics).
    pub totals: Vec<i64>,
}

impl Lda {
    /// A model that is trained on one corpus and evaluated on another.
    #[must_use]
    pub fn new(settings: LdaSettings, training: Corpus, held_out: Corpus) -> Self {
        Self { settings, training, held_out }
    }

    /// The number of topics, and how they are found.
    #[must_use]
    pub fn settings(&self) -> &LdaSettings {
        &self.settings
    }

    /// The documents that are trained. Their indices are those of the task's samples.
    #[must_use]
    pub fn training(&self) -> &Corpus {
        &self.training
    }

    /// The words that occur in these documents, ascending.
    #[must_use]
    pub fn words_of(&self, documents: &[u32]) -> Vec<u32> {
        let mut words: Vec<u32> =
            documents.iter().flat_map(|&document| self.training.words(document)).copied().collect();
        words.sort_unstable();
        words.dedup();
        words
    }

    /// Draws a new topic for each word of these documents. Returns an estimate of the mean negative log-likelihood of a word.
    ///
    /// - `seed`: of the random numbers; another one for each call.
    /// - `assignments`: (tokens of these documents), one document after the other: the topic of each, from 1; 0 if it has none yet.
    /// - `counts`: of all [words](Self::words_of) of these documents. Both are changed together. A count may be below what the assignments
    ///   of these documents say, if other workers have changed it: it then counts as zero, and ends as the sum of all changes.
    ///
    /// # Panics
    /// If a length is not as above.
    pub fn sweep(
        &self,
        seed: [u8; 32],
        documents: &[u32],
        assignments: &mut [u32],
        counts: &mut TopicCounts,
    ) -> f64 {
        let mut generator = ChaCha8Rng::from_seed(seed);
        let LdaSettings { topics, alpha, beta, .. } = self.settings;
        let topics = topics as usize;
        let all = f64::from(self.training.vocabulary()) * beta;
        let mut sums = vec![0.0; topics];
        let (mut at, mut loss) = (0, 0.0);
        for &document in documents {
            let words = self.training.words(document);
            let assigned = &mut assignments[at..at + words.len()];
            at += words.len();
            let mut of_document = vec![0_u32; topics];
            assigned
                .iter()
                .filter(|topic| **topic > 0)
                .for_each(|topic| of_document[*topic as usize - 1] += 1);
            for (word, assigned) in words.iter().zip(assigned) {
                let row = counts.words.binary_search(word).expect("counts of all words") * topics;
                let by_word = &mut counts.by_word[row..row + topics];
                if let Some(before) = (*assigned as usize).checked_sub(1) {
                    of_document[before] -= 1;
                    by_word[before] -= 1.0;
                    counts.totals[before] -= 1;
                }
                let mut sum = 0.0;
                for topic in 0..topics {
                    let total = counts.totals[topic].max(0) as f64 + all;
                    sum += (f64::from(of_document[topic]) + alpha)
                        * (f64::from(by_word[topic].max(0.0)) + beta)
                        / total;
                    sums[topic] = sum;
                }
                let drawn = sum * f64::from(generator.next_u32()) / f64::from(u32::MAX);
                let after = sums.partition_point(|sum| *sum < drawn).min(topics - 1);
                *assigned = after as u32 + 1;
                of_document[after] += 1;
                by_word[after] += 1.0;
                counts.totals[after] += 1;
                loss -= libm::log(sum / (words.len() as f64 - 1.0 + alpha * topics as f64));
            }
        }
        loss / at.max(1) as f64
    }
}

impl Task for Lda {
    /// `word_topic_counts` (vocabulary, topics).
    fn manifest(&self) -> Manifest {
        Manifest::tensor("word_topic_counts", [self.training.vocabulary(), self.settings.topics])
    }

    fn sample_count(&self) -> u32 {
        self.training.documents()
    }

    fn gradient(&self, _: &[f32], _: &[u32], _: &mut [f32]) -> f64 {
        unreachable!("a topic model has no gradient: its program sweeps")
    }

    fn held_out_count(&self) -> u32 {
        self.held_out.documents()
    }

    fn evaluate(&self, _: &[f32]) -> Evaluation {
        Evaluation { samples: 0, loss: 0.0, accuracy: None }
    }
}
