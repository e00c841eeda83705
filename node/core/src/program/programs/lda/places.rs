//! Places: which rows of the tables of a topic model hold what.

use std::ops::Range;

use peergrad_models::task::lda::{Lda, TopicCounts};
use peergrad_protocol::table::{Row, Rows};

use crate::table::{Init, Integer, Table, TableRule};

/// The words of a document whose topics are in one row.
const ROW_WORDS: usize = 31;
/// A row of assignments begins with the number of sweeps.
const ASSIGNMENTS_WIDTH: usize = ROW_WORDS + 1;
/// The numbers in a row of counts, if a word has several of them.
const WIDTHS: Range<usize> = 16..65;

/// Where everything is in the tables of a topic model.
pub(super) struct Places {
    /// The number of topics.
    topics: usize,
    /// The counts in a row. A word has several rows if there are many topics, because most counts of most words are zero and stay so.
    width: usize,
    /// The row of all topics. Those before it are the counts of words, and those after it are the assignments.
    totals: Row,
    /// For each document, its first row of assignments and the number of its words.
    documents: Vec<(Row, usize)>,
    /// The row after the last one.
    end: Row,
}

impl Places {
    pub(super) fn of(task: &Lda) -> Self {
        let topics = task.settings().topics as usize;
        let width =
            WIDTHS.rev().find(|width| topics > *width && topics.is_multiple_of(*width)).unwrap_or(topics);
        let corpus = task.training();
        let totals = Row::from(corpus.vocabulary()) * (topics / width) as Row;
        let mut end = totals + 1;
        let place = |document| {
            let (start, words) = (end, corpus.words(document).len());
            end += words.div_ceil(ROW_WORDS) as Row;
            (start, words)
        };
        let documents = (0..corpus.documents()).map(place).collect();
        Self { topics, width, totals, documents, end }
    }

    pub(super) fn tables(&self) -> Vec<Table> {
        let assignments = (self.end - self.totals - 1).max(1);
        vec![
            Table { init: Init::Parameters, ..Table::additive("word_topics", self.totals, self.width) },
            Table { rule: TableRule::Integer, ..Table::additive("topics", 1, 2 * self.topics) },
            Table::additive("assignments", assignments, ASSIGNMENTS_WIDTH),
        ]
    }

    /// The rows of these words, of all topics, and of these documents. Words and documents are ascending.
    pub(super) fn rows<'a>(
        &'a self,
        words: &'a [u32],
        documents: &'a [u32],
    ) -> impl Iterator<Item = Range<Row>> + 'a {
        let of_words = words.iter().map(|&word| self.word_rows(word));
        let of_documents = documents.iter().map(|&document| self.document_rows(document));
        let of_all = std::iter::once(self.totals..self.totals + 1);
        of_words.chain(of_all).chain(of_documents).filter(|rows| !rows.is_empty())
    }

    fn word_rows(&self, word: u32) -> Range<Row> {
        let rows = (self.topics / self.width) as Row;
        let start = Row::from(word) * rows;
        start..start + rows
    }

    fn document_rows(&self, document: u32) -> Range<Row> {
        let (start, words) = self.documents[document as usize];
        start..start + words.div_ceil(ROW_WORDS) as Row
    }

    /// The counts of these words in rows that were read.
    pub(super) fn counts(&self, words: Vec<u32>, rows: &Rows) -> TopicCounts {
        let mut by_word = vec![0.0; words.len() * self.topics];
        let mut totals = vec![0; self.topics];
        let mut place = 0;
        for (row, values) in self.each(rows) {
            if row == self.totals {
                let integer = |pair: &[f32]| Integer::from_pair([pair[0], pair[1]]).map_or(0, Integer::get);
                totals = values.chunks_exact(2).map(integer).collect();
            } else if row < self.totals {
                let (word, block) =
                    (row / (self.topics / self.width) as Row, row % (self.topics / self.width) as Row);
                place += words[place..].partition_point(|other| Row::from(*other) < word);
                let start = place * self.topics + block as usize * self.width;
                by_word[start..start + self.width].copy_from_slice(values);
            }
        }
        TopicCounts { words, by_word, totals }
    }

    /// The topics of the words of these documents in rows that were read: one document after the other. `None` if they are not those that
    /// `sweeps` sweeps have left, but older.
    pub(super) fn assignments(&self, documents: &[u32], sweeps: u64, rows: &Rows) -> Option<Vec<u32>> {
        let mut found = self.each(rows).skip_while(|(row, _)| *row <= self.totals).peekable();
        let mut assignments = Vec::new();
        for &document in documents {
            let mut words = self.documents[document as usize].1;
            for row in self.document_rows(document) {
                let in_row = words.min(ROW_WORDS);
                words -= in_row;
                match found.next_if(|(other, _)| *other == row) {
                    Some((_, values)) if values[0] as u64 == sweeps => {
                        assignments.extend(values[1..=in_row].iter().map(|topic| *topic as u32));
                    }
                    None if sweeps == 0 => assignments.resize(assignments.len() + in_row, 0),
                    _ => return None,
                }
            }
        }
        Some(assignments)
    }

    /// What a sweep over these documents adds to the tables: the differences between what it began with and what it has left.
    pub(super) fn additions(
        &self,
        documents: &[u32],
        [before, after]: [&[u32]; 2],
        [counts, left]: [&TopicCounts; 2],
    ) -> Rows {
        let mut indices: Vec<Range<Row>> = Vec::new();
        let mut values = Vec::new();
        let rows = counts.words.iter().flat_map(|&word| self.word_rows(word));
        let blocks = counts.by_word.chunks_exact(self.width).zip(left.by_word.chunks_exact(self.width));
        for (row, (before, after)) in rows.zip(blocks).filter(|(_, (before, after))| before != after) {
            indices.push(row..row + 1);
            values.extend(after.iter().zip(before).map(|(after, before)| after - before));
        }
        if counts.totals != left.totals {
            indices.push(self.totals..self.totals + 1);
            let difference = |(after, before): (&i64, &i64)| {
                Integer::new(after - before).expect("a sweep changes less than all words").to_pair()
            };
            values.extend(left.totals.iter().zip(&counts.totals).flat_map(difference));
        }
        let mut at = 0;
        for &document in documents {
            let end = at + self.documents[document as usize].1;
            for row in self.document_rows(document) {
                let words = at..end.min(at + ROW_WORDS);
                at = words.end;
                indices.push(row..row + 1);
                values.push(1.0);
                let differences = words.clone().map(|word| after[word] as f32 - before[word] as f32);
                values.extend(differences);
                values.resize(values.len() + ROW_WORDS - words.len(), 0.0);
            }
        }
        Rows { indices: indices.into_iter().collect(), values }
    }

    /// Rows with their values.
    fn each<'a>(&'a self, rows: &'a Rows) -> impl Iterator<Item = (Row, &'a [f32])> + 'a {
        let mut rest = &rows.values[..];
        rows.indices.iter().map(move |row| {
            let width = match row.cmp(&self.totals) {
                std::cmp::Ordering::Less => self.width,
                std::cmp::Ordering::Equal => 2 * self.topics,
                std::cmp::Ordering::Greater => ASSIGNMENTS_WIDTH,
            };
            let (values, others) = rest.split_at(width);
            rest = others;
            (row, values)
        })
    }
}
