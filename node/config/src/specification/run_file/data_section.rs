//! The section `[data]` of a run file: the data file, and what it holds.

use peergrad_models::data::column_names::Column;
use peergrad_models::data::dialect::Delimiter;
use peergrad_models::data::encoding::TextEncoding;
use peergrad_models::data::labels::{Classes, Predict};
use peergrad_models::data::notation::Decimal;
use serde::Deserialize;

/// `[data]`: the data file and its contents. It has 21 fields because the section is flat; most belong to some formats, and others reject
/// them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSection {
    /// A CSV, LIBSVM or IDX file, or a text, gzipped or not, by its path relative to the run file's folder; or `digits`, which is built in. The
    /// format is detected from the file's contents.
    pub file: String,
    /// CSV only: the label column, by name or by number from 1. Default: the one named label, class or target, or else inferred. With
    /// `factorization`, the column of ratings.
    pub label: Option<Column>,
    /// CSV only: whether the first line names the columns. Default: inferred.
    pub header: Option<bool>,
    /// CSV only: what separates the cells: `,`, `;`, `|`, `tab` or `space`. Default: inferred.
    pub delimiter: Option<Delimiter>,
    /// CSV only: the decimal mark, `.` or `,`. Default: inferred.
    pub decimal: Option<Decimal>,
    /// CSV only: the encoding of the text, such as `utf-8`, `utf-16le` or `windows-1252`. Default: inferred.
    pub encoding: Option<TextEncoding>,
    /// CSV only: how many lines come before the table. Default: inferred.
    pub skip_lines: Option<usize>,
    /// LIBSVM only: the number of features, if later files have larger indices than this one. Default: the largest index.
    pub features: Option<usize>,
    /// The feature columns, by name (CSV) or by number from 1: the indices of a LIBSVM file, the values of a sample in an IDX file.
    /// Default: all except the label. With `factorization`, the column of users and that of items.
    pub columns: Option<Vec<Column>>,
    /// `class` or `number`. Default: inferred from the labels.
    pub predict: Option<Predict>,
    /// A count (the labels are then 0 to count - 1), or a list of labels. Default: the labels in the file, sorted.
    pub classes: Option<Classes>,
    /// Share of the rows that is held out for evaluation, 0 to 0.9. Default 0.2.
    #[serde(default = "held_out_default")]
    pub held_out: f64,
    /// Whether features are scaled to mean 0 and deviation 1; those of pictures together, each channel for itself. Default true, but false
    /// for LIBSVM, because it would change the zeros.
    pub standardize: Option<bool>,
    /// `cnn` and `resnet` only: channels, height and width of the picture that a row holds. Default: those of an IDX file, or a square.
    pub picture: Option<[usize; 3]>,
    /// `cnn` and `resnet` only: how pictures are changed at random in training, such as `["flip", "shift 2"]`. Default: not at all.
    pub changes: Option<Vec<String>>,
    /// `lda` only, with a text: what begins a document: a text with which its first line begins, in upper or lower case; or `""` if empty lines
    /// separate documents. Default: each line is one.
    pub separator: Option<String>,
    /// `lda` only, with a text: in how many documents a word has to be. Default 5, or one in ten documents if that is less.
    pub min_documents: Option<u32>,
    /// `lda` only, with a text: in which share of the documents a word may be, above 0 and up to 1. Default 0.5.
    pub max_share: Option<f64>,
    /// `lda` only, with a text: `english`, `none`, or the path of a file with one word a line, relative to the run file's folder: words that are
    /// left out. Default `english`.
    pub stop_words: Option<WordList>,
    /// `lda` only, with a text: how many words the vocabulary has at most, the most frequent ones. Default 20000.
    pub vocabulary_size: Option<usize>,
    /// `lda` only, with an LDA-C file: the path of a file with its words, one a line, relative to the run file's folder. Default: words are
    /// called by their numbers.
    pub vocabulary: Option<WordList>,
}

/// A list of words: the path of a file, and what stands there once it has been [read](DataSection::read_word_lists).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub struct WordList {
    /// The path, relative to the run file's folder, or the name of a list that is built in.
    pub name: String,
    /// The bytes of the file; `None` if it has not been read.
    pub bytes: Option<Vec<u8>>,
}

impl From<String> for WordList {
    fn from(name: String) -> Self {
        Self { name, bytes: None }
    }
}

impl WordList {
    /// The stop words of English, which are built in.
    pub const ENGLISH: &str = "english";
    /// No words.
    pub const NONE: &str = "none";
}

impl DataSection {
    /// A section with this file, and everything else inferred or by default.
    #[must_use]
    pub fn new(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            label: None,
            header: None,
            delimiter: None,
            decimal: None,
            encoding: None,
            skip_lines: None,
            features: None,
            columns: None,
            predict: None,
            classes: None,
            held_out: held_out_default(),
            standardize: None,
            picture: None,
            changes: None,
            separator: None,
            min_documents: None,
            max_share: None,
            stop_words: None,
            vocabulary_size: None,
            vocabulary: None,
        }
    }

    /// Reads the lists of words that the section names, with `read`, which takes a path relative to the run file's folder.
    ///
    /// # Errors
    /// The first error of `read`.
    pub fn read_word_lists<E>(&mut self, mut read: impl FnMut(&str) -> Result<Vec<u8>, E>) -> Result<(), E> {
        let is_built_in = |list: &&mut WordList| [WordList::ENGLISH, WordList::NONE].contains(&&*list.name);
        let stop_words = self.stop_words.as_mut().filter(|list| !is_built_in(list));
        for list in stop_words.into_iter().chain(&mut self.vocabulary) {
            list.bytes = Some(read(&list.name)?);
        }
        Ok(())
    }
}

fn held_out_default() -> f64 {
    0.2
}
