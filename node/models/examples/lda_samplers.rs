//! How fast the samplers of the topic model are, alone, and how well they do: `lda_samplers FILE TOPICS SWEEPS [SAMPLER]` prints a line
//! of JSON for each.
//!
//! The file has a document in each line: its words, as integers from 0, with spaces between them. `synthetic` stands for a corpus of 2,000
//! documents of 100 words each, from a vocabulary of 10,000 words, in 50 topics.
//!
//! Rates are in millions of words a second: of the first sweep, in which words have no topic yet, of the sweep that is slower than a
//! quarter of the others, and of an evaluation. `log_likelihood` is the mean of all words of the corpus, with the counts after the last
//! sweep; `completion_loss` is what an evaluation would say of the corpus.

#![allow(clippy::unwrap_used, reason = "a measurement that cannot start has no answer")]
#![allow(clippy::disallowed_methods, reason = "it measures time")]

use std::time::Instant;

use peergrad_models::data::corpus::Corpus;
use peergrad_models::task::lda::{Lda, LdaSettings, Sampler, TopicCounts, TopicModel};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// Of how many topics, documents and words the synthetic corpus is.
const TOPICS: u32 = 50;
const DOCUMENTS: u32 = 2_000;
const LENGTH: u32 = 100;
const VOCABULARY: u32 = 10_000;

fn corpus(name: &str) -> Corpus {
    if name == "synthetic" {
        let mut generator = ChaCha8Rng::seed_from_u64(1);
        let mut below = |count: u32| ((u64::from(generator.next_u32()) * u64::from(count)) >> 32) as u32;
        // A topic's words lie together; the product of two numbers makes the first of them the more frequent ones.
        let width = VOCABULARY / TOPICS;
        let mut word = |topics: &[u32; 3]| {
            let topic = topics[below(3) as usize];
            let rank = below(width) * below(width) / width;
            topic * width + rank
        };
        let documents = (0..DOCUMENTS).map(|document| {
            let topics = [document, document / 7, document / 31].map(|topic| topic % TOPICS);
            (0..LENGTH).map(|_| word(&topics)).collect::<Vec<u32>>()
        });
        return Corpus::new(VOCABULARY, documents);
    }
    let text = std::fs::read_to_string(name).unwrap();
    let words = |line: &str| line.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let documents: Vec<Vec<u32>> = text.lines().map(words).collect();
    let vocabulary = documents.iter().flatten().max().map_or(0, |last| last + 1);
    Corpus::new(vocabulary, documents)
}

/// The mean log-likelihood of a word, with the shares that the assignments give to documents and topics.
fn log_likelihood(lda: &Lda, assignments: &[u32], counts: &TopicCounts) -> f64 {
    let LdaSettings { alpha, beta, .. } = *lda.settings();
    let (topics, smoothing) = (counts.totals.len(), beta * f64::from(lda.training().vocabulary()));
    let mut sum = 0.0;
    for document in 0..lda.training().documents() {
        let mut shares = vec![alpha; topics];
        let range = lda.training().range(document);
        let all = range.len() as f64 + alpha * topics as f64;
        assignments[range].iter().for_each(|topic| shares[*topic as usize - 1] += 1.0);
        for word in lda.training().words(document) {
            let row = &counts.by_word[counts.words.binary_search(word).unwrap() * topics..][..topics];
            let terms = shares.iter().zip(row).zip(&counts.totals);
            let term = |((share, count), total): ((&f64, &f32), &i64)| {
                share / all * (f64::from(*count) + beta) / (*total as f64 + smoothing)
            };
            sum += libm::log(terms.map(term).sum());
        }
    }
    sum / assignments.len() as f64
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, file, topics, sweeps, only @ ..] = arguments.as_slice() else {
        panic!("FILE|synthetic TOPICS SWEEPS [SAMPLER]")
    };
    let (topics, sweeps): (u32, u64) = (topics.parse().unwrap(), sweeps.parse().unwrap());
    let samplers = [Sampler::Dense, Sampler::Sparse, Sampler::Alias, Sampler::Light];
    let is_wanted =
        |sampler: &Sampler| only.first().is_none_or(|only| format!("{sampler:?}").eq_ignore_ascii_case(only));
    for sampler in samplers.into_iter().filter(is_wanted) {
        let settings = LdaSettings { topics, alpha: 0.1, beta: 0.01, sampler };
        let lda = Lda::new(settings, corpus(file), Corpus::default());
        let documents: Vec<u32> = (0..lda.training().documents()).collect();
        let words = lda.words_of(&documents);
        let by_word = vec![0.0; words.len() * topics as usize];
        let mut counts = TopicCounts { words, by_word, totals: vec![0; topics as usize] };
        let mut assignments = vec![0; lda.training().token_count()];
        let (mut times, mut loss) = (vec![], 0.0);
        for sweep in 0..sweeps {
            let mut seed = [0; 32];
            seed[..8].copy_from_slice(&sweep.to_le_bytes());
            let started = Instant::now();
            loss = lda.sweep(seed, &documents, &mut assignments, &mut counts);
            times.push(started.elapsed().as_secs_f64());
        }
        let first = times.remove(0);
        times.sort_by(f64::total_cmp);
        let rate = |seconds: f64| assignments.len() as f64 / seconds / 1e6;
        let log_likelihood = log_likelihood(&lda, &assignments, &counts);
        let started = Instant::now();
        let completion = TopicModel::new(settings, counts.words.len(), &counts.by_word).loss(lda.training());
        let evaluation = rate(started.elapsed().as_secs_f64());
        println!(
            "{{\"sampler\": \"{sampler:?}\", \"topics\": {topics}, \"first_sweep\": {:.3}, \"sweep\": {:.3}, \
             \"evaluation\": {evaluation:.3}, \"loss\": {loss:.4}, \"log_likelihood\": {log_likelihood:.4}, \
             \"completion_loss\": {completion:.4}}}",
            rate(first),
            rate(times[times.len() / 4]),
        );
    }
}
