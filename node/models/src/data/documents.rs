//! Documents: the words of many texts, for topic models, read from plain text or from counts of words.
//!
//! ```text
//! text      The cat sat.          vocabulary  cat, sat         words without meaning of their own are left out
//!           A cat!                documents   [cat sat], [cat]
//! LDA-C     2 0:1 1:1             the same as counts: how many pairs follow, then `word:times`, words numbered from 0
//!           1 0:1
//! ```
//! The founder of a run chooses the vocabulary once ([`Vocabulary`]) and writes it to the specification. All peers then read the same words from
//! the same bytes.
//!
//! # Invariants
//! - Documents without a word of the vocabulary are left out; the others keep their order.
//! - A word occurs at most 2^24 times in all documents together: up to there, counts are exact in 32-bit floating point.
//! - Reading takes no more memory than the file's size says. Only [`Documents::corpus`] writes out the counts of LDA-C, whose number is bounded.
//!
//! # Reading
//! LDA-C is the format of David Blei's program of that name, and of data sets that were made for it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::corpus::Corpus;
use super::encoding::UTF_8_MARK;
use super::limits::ROWS_MAX;
use super::unsupported::{self, Unsupported};

mod error;
mod lda_c;
mod stop_words;
mod text;
mod vocabulary;

pub use error::DocumentsError;
pub use stop_words::StopWords;
pub use vocabulary::{Vocabulary, VocabularyChoice};

/// The most words that a vocabulary may have.
pub const VOCABULARY_MAX: usize = 1 << 20;
/// The most times that a word may occur in all documents together: larger whole numbers are not exact in 32-bit floating point.
pub const OCCURRENCES_MAX: u64 = 1 << 24;
/// The most words that all documents together may have: 1 GiB in memory.
pub const TOKENS_MAX: u64 = 1 << 28;

/// How a file of documents is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DocumentsLayout {
    /// What stands in the file.
    pub documents: DocumentForm,
    /// Of a text: what begins a document. `None`: each line is one. Empty: an empty line ends one. Otherwise, a line that begins with this text,
    /// in upper or lower case, begins one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub separator: Option<String>,
    /// How many words of the vocabulary all documents have together.
    pub tokens: u64,
}

/// What stands in a file of documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DocumentForm {
    /// Text.
    Text,
    /// Counts of words.
    LdaC,
}

impl DocumentForm {
    /// The form of a file: LDA-C if the first line with more than a number has a number and then pairs of numbers, and text otherwise.
    #[must_use]
    pub fn of(text: &str) -> Self {
        if lda_c::is_lda_c(text) { Self::LdaC } else { Self::Text }
    }
}

/// The documents of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Documents {
    /// Words, and how often each follows itself: those of all documents, one after the other.
    entries: Vec<(u32, u32)>,
    /// Where each document ends in them, ascending.
    ends: Vec<usize>,
    /// The number of each document in the file, from 1.
    numbers: Vec<u32>,
    /// How many documents have no word of the vocabulary.
    left_out: u32,
}

impl Documents {
    /// Reads a file whose text is `text`; `file` is the name for errors.
    ///
    /// # Errors
    /// At the first line of LDA-C that cannot be used, if a word occurs too often or there are too many words, or if no document has a word of
    /// the vocabulary.
    pub fn read(
        file: &str,
        text: &str,
        form: DocumentForm,
        separator: Option<&str>,
        vocabulary: &Vocabulary,
    ) -> Result<Self, DocumentsError> {
        let documents = match form {
            DocumentForm::Text => text::read(file, text, separator, vocabulary)?,
            DocumentForm::LdaC => lda_c::read(file, text, vocabulary.count())?,
        };
        documents.check(file, vocabulary)?;
        Ok(documents)
    }

    /// Adds a document: the entries since the last one.
    fn end_document(&mut self, file: &str) -> Result<(), DocumentsError> {
        let number = self.numbers.len() + self.left_out as usize + 1;
        if number > ROWS_MAX {
            return Err(DocumentsError::TooManyDocuments { file: file.to_owned() });
        }
        if self.ends.last().copied().unwrap_or(0) == self.entries.len() {
            self.left_out += 1;
        } else {
            self.ends.push(self.entries.len());
            self.numbers.push(number as u32);
        }
        Ok(())
    }

    fn check(&self, file: &str, vocabulary: &Vocabulary) -> Result<(), DocumentsError> {
        let file = || file.to_owned();
        if self.ends.is_empty() {
            return Err(DocumentsError::NoKnownWord { file: file(), documents: self.left_out });
        }
        let tokens = self.token_count();
        if tokens > TOKENS_MAX {
            return Err(DocumentsError::TooManyTokens { file: file(), tokens });
        }
        let mut times = vec![0; self.words()];
        self.entries.iter().for_each(|&(word, count)| times[word as usize] += u64::from(count));
        match (0..).zip(&times).find(|(_, times)| **times > OCCURRENCES_MAX) {
            Some((word, &times)) => {
                let word = vocabulary.word(word).into_owned();
                Err(DocumentsError::Frequent { file: file(), word, times })
            }
            None => Ok(()),
        }
    }

    /// How many there are, without those that are left out.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.ends.len() as u32
    }

    /// The number of words in all documents together.
    #[must_use]
    pub fn token_count(&self) -> u64 {
        self.entries.iter().map(|&(_, times)| u64::from(times)).sum()
    }

    /// The number of each document in the file, from 1.
    #[must_use]
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// How many documents were left out, because they have no word of the vocabulary.
    #[must_use]
    pub fn left_out(&self) -> u32 {
        self.left_out
    }

    /// How many different words the documents have, at most: the largest number of a word, and one.
    #[must_use]
    pub fn words(&self) -> usize {
        self.entries.iter().map(|&(word, _)| word as usize + 1).max().unwrap_or(0)
    }

    /// The documents as lists of words, each as often as it occurs. Words of a text are in its order.
    ///
    /// - `vocabulary`: how many words it has.
    #[must_use]
    pub fn corpus(&self, vocabulary: usize) -> Corpus {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        let documents = starts.zip(&self.ends).map(|(start, &end)| {
            let entries = self.entries[start..end].iter();
            entries.flat_map(|&(word, times)| std::iter::repeat_n(word, times as usize))
        });
        Corpus::new(vocabulary as u32, documents)
    }
}

/// The text of `bytes` (unpacked); `file` is the name for errors.
///
/// # Errors
/// They are of a format that is recognized and no text, or not UTF-8.
pub fn text_of<'a>(file: &str, bytes: &'a [u8]) -> Result<&'a str, DocumentsError> {
    if let Some(Unsupported { name, .. }) = unsupported::by_mark(bytes) {
        return Err(DocumentsError::NoText { file: file.to_owned(), name });
    }
    let bytes = bytes.strip_prefix(UTF_8_MARK).unwrap_or(bytes);
    std::str::from_utf8(bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count() as u64;
        DocumentsError::NotUtf8 { file: file.to_owned(), line }
    })
}

impl DocumentsLayout {
    /// Why this layout cannot be used, in words; `None` if it can. It checks layouts that other peers sent.
    #[must_use]
    pub fn problem(&self) -> Option<Cow<'static, str>> {
        if !(1..=TOKENS_MAX).contains(&self.tokens) {
            return Some(format!("documents of {} words", self.tokens).into());
        }
        let is_lda_c = self.documents == DocumentForm::LdaC;
        (is_lda_c && self.separator.is_some()).then_some("LDA-C has no separator".into())
    }
}

#[cfg(test)]
mod tests;
