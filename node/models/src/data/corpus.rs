//! A corpus: documents as words of a vocabulary, for topic models.

use std::ops::Range;

/// Documents, each of which is a list of words. A word is known by its index in a vocabulary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Corpus {
    /// How many different words there may be.
    vocabulary: u32,
    /// The words of all documents, one document after the other: (tokens), each below `vocabulary`.
    tokens: Vec<u32>,
    /// Where each document ends in them, ascending.
    ends: Vec<usize>,
}

impl Corpus {
    /// A corpus of these documents.
    ///
    /// # Panics
    /// If a word is not in the vocabulary.
    #[must_use]
    pub fn new<D: IntoIterator<Item = u32>>(vocabulary: u32, documents: impl IntoIterator<Item = D>) -> Self {
        let mut corpus = Self { vocabulary, ..Self::default() };
        for document in documents {
            corpus.tokens.extend(document);
            corpus.ends.push(corpus.tokens.len());
        }
        assert!(corpus.tokens.iter().all(|word| *word < vocabulary), "a word is not in the vocabulary");
        corpus
    }

    /// How many different words there may be.
    #[must_use]
    pub fn vocabulary(&self) -> u32 {
        self.vocabulary
    }

    /// The number of documents.
    #[must_use]
    pub fn documents(&self) -> u32 {
        u32::try_from(self.ends.len()).expect("a file has fewer than 2^32 documents")
    }

    /// The number of words in all documents together.
    #[must_use]
    pub fn token_count(&self) -> usize {
        self.tokens.len()
    }

    /// Where the words of a document are among those of all documents.
    ///
    /// # Panics
    /// If there is no such document.
    #[must_use]
    pub fn range(&self, document: u32) -> Range<usize> {
        let document = document as usize;
        let start = if document == 0 { 0 } else { self.ends[document - 1] };
        start..self.ends[document]
    }

    /// The words of a document.
    ///
    /// # Panics
    /// If there is no such document.
    #[must_use]
    pub fn words(&self, document: u32) -> &[u32] {
        &self.tokens[self.range(document)]
    }

    /// A copy of these documents, in the order of `documents`.
    ///
    /// # Panics
    /// If there is no such document.
    #[must_use]
    pub fn select(&self, documents: &[u32]) -> Self {
        Self::new(self.vocabulary, documents.iter().map(|&document| self.words(document).iter().copied()))
    }
}
