//! Why a file of documents cannot be used.

use super::{OCCURRENCES_MAX, TOKENS_MAX, VOCABULARY_MAX};

/// Why a file of documents, or a list of words, cannot be used. Each message names the file and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentsError {
    /// The file is of a format that is recognized and no text.
    #[error("{file}: this looks like {name}; give a text in UTF-8 or an LDA-C file, plain or gzipped")]
    NoText {
        /// The file.
        file: String,
        /// The format, with an article.
        name: &'static str,
    },
    /// The file is not UTF-8.
    #[error("{file}, line {line}: this is not UTF-8; save the text as UTF-8")]
    NotUtf8 {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
    },
    /// A line of LDA-C does not begin with a number.
    #[error(
        "{file}, line {line}: `{found}` is no number of pairs; a line of LDA-C is `N word:count word:count ...`, with N pairs"
    )]
    NotLdaC {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// What stands there, shortened.
        found: String,
    },
    /// What should be a pair is none.
    #[error(
        "{file}, line {line}: `{found}` is no pair `word:count`, in which the word is a whole number from 0 on"
    )]
    NotAPair {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// What stands there, shortened.
        found: String,
    },
    /// A count is not a whole number from 1 on, or too large.
    #[error(
        "{file}, line {line}: the count of `{found}` is not a whole number from 1 to {OCCURRENCES_MAX}; correct it, or delete the pair and lower the \
         number at the beginning of the line"
    )]
    Count {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The pair, shortened.
        found: String,
    },
    /// A line has another number of pairs than it says.
    #[error(
        "{file}, line {line}: the line says that it has {stated} pairs `word:count`, and has {found}; correct one of them. A LIBSVM file \
         is none of documents"
    )]
    PairCount {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// How many it says, shortened.
        stated: String,
        /// How many it has.
        found: usize,
    },
    /// A word is not in the vocabulary.
    #[error(
        "{file}, line {line}: there is no word {word}: the vocabulary has {count} words, numbered from 0; give the vocabulary that belongs to this \
         file"
    )]
    Outside {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The number of the word.
        word: String,
        /// How many words there are.
        count: usize,
    },
    /// A word has two counts in one document.
    #[error("{file}, line {line}: word {word} has two counts; add them up")]
    Repeated {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The number of the word.
        word: u32,
    },
    /// A word occurs too often.
    #[error(
        "{file}: the word `{word}` occurs {times} times, and at most {OCCURRENCES_MAX} are counted exactly; leave it out, with `max_share` or \
         `stop_words` in [data] if the file is a text"
    )]
    Frequent {
        /// The file.
        file: String,
        /// The word.
        word: String,
        /// How often it occurs.
        times: u64,
    },
    /// There are too many words.
    #[error(
        "{file}: the documents have {tokens} words of the vocabulary, and at most {TOKENS_MAX} are supported; train on a part of the documents"
    )]
    TooManyTokens {
        /// The file.
        file: String,
        /// How many words.
        tokens: u64,
    },
    /// There are too many documents.
    #[error("{file}: there are more than 4294967295 documents; give longer ones with `separator` in [data]")]
    TooManyDocuments {
        /// The file.
        file: String,
    },
    /// No line begins with the separator.
    #[error(
        "{file}: no line begins with `{separator}`; set `separator` in [data] to what begins a document, to \"\" if empty lines separate \
         documents, or leave it out if each line is one"
    )]
    NoSeparator {
        /// The file.
        file: String,
        /// The separator.
        separator: String,
    },
    /// No document has a word of the vocabulary.
    #[error("{file}: none of {documents} documents has a word of the vocabulary")]
    NoKnownWord {
        /// The file.
        file: String,
        /// How many documents it has.
        documents: u32,
    },
    /// No word of a text is in the vocabulary.
    #[error(
        "{file}: no word is left for the vocabulary: of {words} words in {documents} documents, {stop} are stop words, {rare} are in fewer than \
         {min_documents} documents, and {common} in more than a share of {max_share} of them; change `min_documents`, `max_share` or `stop_words` \
         in [data], or `separator` if these are not the documents"
    )]
    NoWordLeft {
        /// The file.
        file: String,
        /// How many documents it has.
        documents: u32,
        /// How many different words.
        words: usize,
        /// How many of them are stop words.
        stop: usize,
        /// How many of the others are in too few documents.
        rare: usize,
        /// How many are in too many.
        common: usize,
        /// In how many documents a word has to be.
        min_documents: u32,
        /// In which share of the documents it may be.
        max_share: String,
    },
    /// A line of a list of words is empty.
    #[error("{file}, line {line}: the line is empty; a vocabulary has one word a line")]
    NoWord {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
    },
    /// A word is twice in a vocabulary.
    #[error("{file}, line {line}: the word `{word}` is in line {first_line} already; each word has one line")]
    RepeatedWord {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The line in which it is first.
        first_line: u64,
        /// The word, shortened.
        word: String,
    },
    /// A vocabulary has too many words, or none.
    #[error("{file}: the vocabulary has {count} words; 1 to {VOCABULARY_MAX} are supported")]
    WordCount {
        /// The file.
        file: String,
        /// How many it has.
        count: usize,
    },
}
