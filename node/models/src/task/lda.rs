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
use serde::{Deserialize, Serialize};

use self::alias::Alias;
use self::dense::Dense;
use self::light::Light;
use self::sparse::Sparse;
use self::sweep::Sweep;
pub use self::topics::TopicModel;
use super::{Evaluation, Task};
use crate::data::corpus::Corpus;

mod alias;
mod alias_table;
mod dense;
mod light;
mod random;
mod sparse;
mod state;
mod sweep;
#[cfg(test)]
mod tests;
mod topics;
mod word_tables;

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

/// How topics are drawn. All of them draw from the same distribution, in the long run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sampler {
    /// From the probabilities of all topics, which are computed for each word.
    Dense,
    /// From sums over the topics that the document and the word have: exact, in less time.
    Sparse,
    /// From a sum over the document's topics and a table of the word, with a correction.
    Alias,
    /// From a table of the word and from the document in turns, with a correction: the time for a word does not grow with the number of
    /// topics.
    #[default]
    Light,
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
        let LdaSettings { topics, alpha, beta, sampler } = self.settings;
        assert_eq!(counts.totals.len(), topics as usize, "a total for each topic");
        let sweep = Sweep::new([alpha, beta], &self.training, documents, counts);
        let state = &sweep.state;
        match sampler {
            Sampler::Dense => {
                let sampler = Dense::new(state.topics());
                sweep.run(sampler, seed, assignments)
            }
            Sampler::Sparse => {
                let sampler = Sparse::new(state);
                sweep.run(sampler, seed, assignments)
            }
            Sampler::Alias => {
                let sampler = Alias::new(state);
                sweep.run(sampler, seed, assignments)
            }
            Sampler::Light => {
                let sampler = Light::new(state);
                sweep.run(sampler, seed, assignments)
            }
        }
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

    /// The loss is that of [`TopicModel::loss`] on the documents that are held out; the perplexity is its exponential.
    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        let model = TopicModel::new(self.settings, self.training.vocabulary() as usize, parameters);
        Evaluation { samples: self.held_out.documents(), loss: model.loss(&self.held_out), accuracy: None }
    }
}
