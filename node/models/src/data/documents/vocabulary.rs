//! The vocabulary: the words that a topic model knows, each with its number.
//!
//! That of a text is chosen from its words, once: those that are in neither too few nor too many documents, without stop words. They are in
//! order, so their numbers do not depend on the order of the documents.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::stop_words::StopWords;
use super::text::{begins_with, split, words};
use super::{DocumentsError, VOCABULARY_MAX};
use crate::data::cells::shortened;

/// In how many documents a word of a vocabulary is at least, by default, if there are many documents.
const MIN_DOCUMENTS_DEFAULT: u32 = 5;
/// The same for fewer documents: a word is in one of so many.
const SHARE_DEFAULT: u32 = 10;

/// The words that a topic model knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Vocabulary {
    /// So many words without texts.
    Numbered(usize),
    /// Their texts, in the order of their numbers.
    Words(Vec<String>),
}

/// Which words of a text belong to its vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub struct VocabularyChoice {
    /// Those in at least so many documents; `None`: 5, or one in ten documents if that is less.
    pub min_documents: Option<u32>,
    /// Those in at most this share of the documents, 0 to 1.
    pub max_share: f64,
    /// Those that are not these.
    pub stop_words: StopWords,
    /// The most frequent ones, so many.
    pub size: usize,
}

/// How often a word is in a text.
#[derive(Clone, Copy, Debug, Default)]
struct Occurrences {
    times: u64,
    documents: u32,
    /// The number of the last document with it, from 1.
    last: u32,
}

impl Vocabulary {
    /// Chooses the vocabulary of a text; `file` is the name for errors.
    ///
    /// # Errors
    /// No word is left, or no line begins with the separator.
    pub fn choose(
        file: &str,
        text: &str,
        separator: Option<&str>,
        choice: &VocabularyChoice,
    ) -> Result<Self, DocumentsError> {
        if let Some(separator) = separator.filter(|separator| !separator.is_empty()) {
            let lower = separator.to_lowercase();
            if !text.lines().any(|line| begins_with(line, &lower)) {
                let (file, separator) = (file.to_owned(), separator.to_owned());
                return Err(DocumentsError::NoSeparator { file, separator });
            }
        }
        let documents = split(text, separator);
        let mut found: BTreeMap<String, Occurrences> = BTreeMap::new();
        for (number, document) in (1..).zip(&documents) {
            for word in words(document) {
                let occurrences = found.entry(word).or_default();
                occurrences.times += 1;
                occurrences.documents += u32::from(occurrences.last != number);
                occurrences.last = number;
            }
        }
        choice.chosen(file, documents.len() as u32, found)
    }

    /// The vocabulary in a file with one word a line; `file` is its name for errors.
    ///
    /// # Errors
    /// A line is empty, a word is there twice, or there are too many or none.
    pub fn of_list(file: &str, text: &str) -> Result<Self, DocumentsError> {
        let mut lines: BTreeMap<&str, u64> = BTreeMap::new();
        let mut list = Vec::new();
        for (line, word) in (1..).zip(text.trim_end().lines()) {
            let word = word.trim();
            if word.is_empty() {
                return Err(DocumentsError::NoWord { file: file.to_owned(), line });
            }
            if let Some(&first_line) = lines.get(word) {
                let (file, word) = (file.to_owned(), shortened(word.as_bytes()));
                return Err(DocumentsError::RepeatedWord { file, line, first_line, word });
            }
            lines.insert(word, line);
            list.push(word.to_owned());
        }
        match list.len() {
            1..=VOCABULARY_MAX => Ok(Self::Words(list)),
            count => Err(DocumentsError::WordCount { file: file.to_owned(), count }),
        }
    }

    /// How many words there are.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Numbered(count) => *count,
            Self::Words(words) => words.len(),
        }
    }

    /// The text of a word, or its number if it has none.
    #[must_use]
    pub fn word(&self, number: u32) -> Cow<'_, str> {
        match self {
            Self::Words(words) if (number as usize) < words.len() => words[number as usize].as_str().into(),
            _ => number.to_string().into(),
        }
    }

    /// The number of each word that has a text.
    pub(super) fn numbers(&self) -> BTreeMap<&str, u32> {
        match self {
            Self::Numbered(_) => BTreeMap::new(),
            Self::Words(words) => words.iter().map(String::as_str).zip(0..).collect(),
        }
    }

    /// Why this cannot be the vocabulary of a model, in words; `None` if it can. It checks vocabularies that other peers sent.
    #[must_use]
    pub fn problem(&self) -> Option<&'static str> {
        match self {
            _ if !(1..=VOCABULARY_MAX).contains(&self.count()) => {
                Some("its vocabulary has too many words, or none")
            }
            Self::Words(words) if words.iter().any(|word| word.is_empty() || word.contains('\n')) => {
                Some("a word of its vocabulary is none")
            }
            Self::Words(words) if self.numbers().len() < words.len() => {
                Some("a word is twice in its vocabulary")
            }
            _ => None,
        }
    }
}

impl VocabularyChoice {
    fn chosen(
        &self,
        file: &str,
        documents: u32,
        found: BTreeMap<String, Occurrences>,
    ) -> Result<Vocabulary, DocumentsError> {
        let default = MIN_DOCUMENTS_DEFAULT.min(documents / SHARE_DEFAULT).max(1);
        let min_documents = self.min_documents.unwrap_or(default);
        let max_documents = (f64::from(documents) * self.max_share).floor() as u32;
        let (words, mut stop, mut rare, mut common) = (found.len(), 0, 0, 0);
        let mut kept: Vec<(String, u64)> = Vec::new();
        for (word, Occurrences { times, documents, .. }) in found {
            match () {
                () if self.stop_words.contains(&word) => stop += 1,
                () if documents < min_documents => rare += 1,
                () if documents > max_documents => common += 1,
                () => kept.push((word, times)),
            }
        }
        // The sort is stable: of two words that occur equally often, the first by its letters is kept.
        kept.sort_by_key(|&(_, times)| Reverse(times));
        kept.truncate(self.size);
        kept.sort_unstable();
        if kept.is_empty() {
            let (file, max_share) = (file.to_owned(), self.max_share.to_string());
            return Err(DocumentsError::NoWordLeft {
                file,
                documents,
                words,
                stop,
                rare,
                common,
                min_documents,
                max_share,
            });
        }
        Ok(Vocabulary::Words(kept.into_iter().map(|(word, _)| word).collect()))
    }
}
