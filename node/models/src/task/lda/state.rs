//! State of a sweep: how often topics occur, while words change theirs.
//!
//! # Invariants
//! - A stored count changes by exactly 1 when a word gets or loses a topic, even if it is below zero.
//! - In probabilities, a count below zero is zero. So all of them are finite, and above zero.

use super::TopicCounts;

/// How often topics occur: in all documents, and in the one whose words are being drawn.
pub(super) struct State<'a> {
    pub(super) alpha: f64,
    pub(super) beta: f64,
    /// (words, topics)
    by_word: &'a mut [f32],
    /// (topics)
    totals: &'a mut [i64],
    /// (topics): one over the number of a topic's words plus `smoothing`.
    inverses: Vec<f64>,
    /// `beta` for each word of the vocabulary.
    smoothing: f64,
    pub(super) document: DocumentTopics,
}

impl<'a> State<'a> {
    pub(super) fn new(alpha: f64, beta: f64, vocabulary: u32, counts: &'a mut TopicCounts) -> Self {
        let TopicCounts { by_word, totals, .. } = counts;
        let document = DocumentTopics::new(totals.len());
        let smoothing = f64::from(vocabulary) * beta;
        let inverses = totals.iter().map(|&total| inverse(total, smoothing)).collect();
        Self { alpha, beta, by_word, totals, inverses, smoothing, document }
    }

    /// The number of topics.
    pub(super) fn topics(&self) -> usize {
        self.totals.len()
    }

    /// The number of words that have a row.
    pub(super) fn rows(&self) -> usize {
        self.by_word.len() / self.topics()
    }

    /// How often the word of this row has each topic: (topics). Some may be below zero.
    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.by_word[row * self.topics()..][..self.topics()]
    }

    /// One over the number of each topic's words, with `beta` for each word of the vocabulary: (topics).
    pub(super) fn inverses(&self) -> &[f64] {
        &self.inverses
    }

    /// The same if each topic had one word less: (topics).
    pub(super) fn inverses_of_one_less(&self) -> Vec<f64> {
        self.totals.iter().map(|&total| inverse(total.saturating_sub(1), self.smoothing)).collect()
    }

    /// What a topic's probability is in proportion to, for a word of this document that has the counts `row`.
    pub(super) fn weight(&self, row: &[f32], topic: usize) -> f64 {
        (self.document.counts[topic] + self.alpha) * self.word_weight(row, topic)
    }

    /// The same without the document's share.
    pub(super) fn word_weight(&self, row: &[f32], topic: usize) -> f64 {
        (occurrences(row[topic]) + self.beta) * self.inverses[topic]
    }

    /// How probable a word with the counts `row` is in this document.
    pub(super) fn likelihood(&self, row: &[f32]) -> f64 {
        let mut lanes = [0.0; LANES];
        let parts = self.document.counts.chunks(LANES).zip(row.chunks(LANES));
        for ((of_document, of_word), inverses) in parts.zip(self.inverses.chunks(LANES)) {
            let each = of_document.iter().zip(of_word).zip(inverses);
            for (lane, ((of_document, of_word), inverse)) in lanes.iter_mut().zip(each) {
                *lane += (of_document + self.alpha) * (occurrences(*of_word) + self.beta) * inverse;
            }
        }
        let of_document = f64::from(self.document.assigned) + self.alpha * self.topics() as f64;
        lanes.iter().sum::<f64>() / of_document
    }

    /// A word of this document gets a topic.
    pub(super) fn add(&mut self, row: usize, topic: usize) {
        self.document.add(topic);
        self.change(row, topic, 1);
    }

    /// A word of this document loses its topic.
    pub(super) fn remove(&mut self, row: usize, topic: usize) {
        self.document.remove(topic);
        self.change(row, topic, -1);
    }

    fn change(&mut self, row: usize, topic: usize, by: i8) {
        self.by_word[row * self.totals.len() + topic] += f32::from(by);
        let total = &mut self.totals[topic];
        *total += i64::from(by);
        self.inverses[topic] = inverse(*total, self.smoothing);
    }
}

/// A count as probabilities see it.
pub(super) fn occurrences(count: f32) -> f64 {
    f64::from(count.max(0.0))
}

fn inverse(total: i64, smoothing: f64) -> f64 {
    1.0 / (total.max(0) as f64 + smoothing)
}

/// Sums that are computed side by side.
pub(super) const LANES: usize = 8;

/// How many words of a document have each topic.
pub(super) struct DocumentTopics {
    /// (topics), whole numbers.
    counts: Vec<f64>,
    /// The topics that occur, in an order without meaning.
    present: Vec<u32>,
    /// (topics): where a topic is in `present`, if it occurs.
    places: Vec<u32>,
    /// How many words have a topic.
    assigned: u32,
}

impl DocumentTopics {
    fn new(topics: usize) -> Self {
        Self { counts: vec![0.0; topics], present: vec![], places: vec![0; topics], assigned: 0 }
    }

    /// (topics), whole numbers.
    pub(super) fn counts(&self) -> &[f64] {
        &self.counts
    }

    /// The topics that occur, in an order without meaning.
    pub(super) fn present(&self) -> &[u32] {
        &self.present
    }

    /// Starts a document whose words have these topics, from 1; 0 is none.
    pub(super) fn begin(&mut self, assignments: &[u32]) {
        self.present.drain(..).for_each(|topic| self.counts[topic as usize] = 0.0);
        self.assigned = 0;
        assignments.iter().filter(|topic| **topic > 0).for_each(|topic| self.add(*topic as usize - 1));
    }

    fn add(&mut self, topic: usize) {
        if self.counts[topic] == 0.0 {
            self.places[topic] = self.present.len() as u32;
            self.present.push(topic as u32);
        }
        self.counts[topic] += 1.0;
        self.assigned += 1;
    }

    fn remove(&mut self, topic: usize) {
        self.counts[topic] -= 1.0;
        self.assigned -= 1;
        if self.counts[topic] == 0.0 {
            let place = self.places[topic] as usize;
            self.present.swap_remove(place);
            if let Some(&moved) = self.present.get(place) {
                self.places[moved as usize] = place as u32;
            }
        }
    }
}
