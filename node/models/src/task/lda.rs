//! Latent Dirichlet allocation: finds topics in documents, by collapsed Gibbs sampling.
//!
//! Each word of each document is assigned to a topic. The model counts how many words of a document, and how many occurrences of a word in
//! all documents, have each topic. A sweep visits all words once and draws a new topic for each, from its distribution given all other
//! assignments:
//!
//! ```text
//!                                        n(w, k) + beta
//! p(k)  ~  (n(d, k) + alpha)  x  ------------------------     d the document, w the word, V the size of the vocabulary;
//!                                  n(k) + V x beta            all counts without the word itself
//! ```
//! In the first sweep a word has no topic yet. To compute p(k) for all topics takes long if there are many, so there are four
//! [samplers](Sampler):
//!
//! ```text
//! sampler   time for a word, in proportion to          draws
//! dense     all topics                                 exactly
//! sparse    the topics of the word, mostly             exactly
//! alias     the topics of the document                 with a table that is a little out of date, corrected
//! light     nothing                                    with such a table and the document in turns, corrected; needs more sweeps
//! ```
//!
//! # Invariants
//! - A sweep is a function of its arguments: its random numbers come from its seed.
//! - Counts change by exactly what assignments change, in each topic and for each word.
//!
//! # Not here
//! Who sweeps which documents, and how the counts travel: that is the program's. A model that is used without its documents is a
//! [`TopicModel`].
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
    /// The number of topics, at least 1.
    pub topics: u32,
    /// What is added to the number of a document's words in each topic: above 0.
    pub alpha: f64,
    /// What is added to the number of a topic's words of each kind: above 0.
    pub beta: f64,
    /// How topics are drawn.
    pub sampler: Sampler,
}

impl LdaSettings {
    fn check(&self) {
        let Self { topics, alpha, beta, .. } = *self;
        let is_positive = |value: f64| value > 0.0 && value.is_finite();
        assert!(topics > 0 && is_positive(alpha) && is_positive(beta), "no topic model has these: {self:?}");
    }
}

/// How topics are drawn. In the long run, all of them draw from the same distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sampler {
    /// From the probabilities of all topics, which are computed for each word.
    Dense,
    /// From sums over the topics that the document and the word have. It is as exact as the dense one, and was the fastest of all on the
    /// corpora that we measured, with 20 to 1,024 topics.
    #[default]
    Sparse,
    /// From a sum over the document's topics and a table of the word, with a correction: for short documents and words that have most
    /// topics.
    Alias,
    /// From a table of the word and from the document in turns, with a correction: the time for a word depends on neither. It takes more
    /// sweeps than the others.
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
    ///
    /// # Panics
    /// If a setting is not as it says.
    #[must_use]
    pub fn new(settings: LdaSettings, training: Corpus, held_out: Corpus) -> Self {
        settings.check();
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

    /// Draws a new topic for each word of these documents. Returns an estimate of the mean negative log-likelihood of a word, in nats.
    ///
    /// The estimate is of each word given all others, just before its topic is drawn. With many topics, only a fixed share of the words
    /// are scored, one in 32 at least. All samplers score in the same way.
    ///
    /// - `seed`: of the random numbers; another one for each call.
    /// - `assignments`: (tokens of these documents), one document after the other: the topic of each, from 1; 0 if it has none yet.
    /// - `counts`: of all [words](Self::words_of) of these documents; there may be other words. Both are changed together. A count may be
    ///   below what the assignments of these documents say, if other workers have changed it: it then counts as zero, and ends as the sum
    ///   of all changes.
    ///
    /// # Panics
    /// If a length is not as above, or a word has no counts.
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
        match sampler {
            Sampler::Dense => sweep.run(Dense::new, seed, assignments),
            Sampler::Sparse => sweep.run(Sparse::new, seed, assignments),
            Sampler::Alias => sweep.run(Alias::new, seed, assignments),
            Sampler::Light => sweep.run(Light::new, seed, assignments),
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
