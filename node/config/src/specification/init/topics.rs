//! The run file for a topic model of documents.

use peergrad_models::data::bytes::DataBytes;
use peergrad_models::data::documents::{DocumentForm, text_of};
use peergrad_models::data::format::{FileLayout, FormatError};
use peergrad_models::data::limits::UNPACKED_BYTES_MAX;

use super::super::SpecificationError;
use super::super::deep::data::in_memory;
use super::super::run_file::{DataSection, ModelKind, ModelSection, RunFile, SEED_DEFAULT};
use super::super::topics::{
    ALPHA_DEFAULT, BETA_DEFAULT, MAX_SHARE_DEFAULT, TOPICS_DEFAULT, VOCABULARY_SIZE_DEFAULT, resolve_topics,
};
use super::fixed::{HEAD, REST};
use super::{WrittenRunFile, counted, line, toml};

/// The run file for a topic model of the documents in this file.
pub(super) fn run_file(name: &str, packed: &DataBytes) -> Result<WrittenRunFile, SpecificationError> {
    let unpacked = packed.unpacked(name, UNPACKED_BYTES_MAX)?;
    let bytes = in_memory(name, &unpacked)?;
    let text = text_of(name, &bytes).map_err(FormatError::from)?;
    let form = DocumentForm::of(text);
    let separator = separator(text).filter(|_| form == DocumentForm::Text);
    let section = DataSection { separator: separator.map(str::to_owned), ..DataSection::new(name) };
    let model = ModelSection { kind: ModelKind::Lda, ..ModelSection::default() };
    let (model, data, mut notices) =
        resolve_topics(&RunFile { model, ..RunFile::default() }, &section, name, packed)?;
    if data.held_out_rows == 0 {
        notices.push("no document is held out for a test, because there are too few: if these are not the documents, set `separator` in [data]".to_owned());
    }
    let training = [
        line("epochs = 60", "sweeps over the training documents"),
        line(
            &format!("seed = {SEED_DEFAULT}"),
            "seed of the draws, the order of documents and the held-out ones",
        ),
    ]
    .concat();
    let tokens = if let FileLayout::Documents(layout) = &data.layout { layout.tokens } else { u64::MAX };
    let topics = tokens.clamp(2, TOPICS_DEFAULT.into());
    let words = model.vocabulary().map_or(0, |vocabulary| vocabulary.count() as u32);
    let of_data = [
        format!(
            "\n[data]                     # {} with {}\n",
            counted(data.rows, "document"),
            counted(words, "different word")
        ),
        line(&format!("file = {}", toml(name)), "path relative to this file's folder; gzipped or not"),
        match form {
            DocumentForm::Text => text_settings(separator),
            DocumentForm::LdaC => line(
                "# vocabulary = \"vocab.txt\"",
                "a file with the words, one a line; without it, words are numbers",
            ),
        },
        line("held_out = 0.2", "share of the documents that is not trained but used for evaluation"),
    ]
    .concat();
    let of_model = [
        "\n[model]\n".to_owned(),
        line("kind = \"lda\"", "topics, of which each document has a mixture (latent Dirichlet allocation)"),
        line(&format!("topics = {topics}"), "how many there are"),
        line(&format!("alpha = {ALPHA_DEFAULT}"), "smaller: a document has fewer topics"),
        line(&format!("beta = {BETA_DEFAULT}"), "smaller: a topic has fewer words"),
        line(
            "sampler = \"sparse\"",
            "how topics are drawn; or dense, alias, light: the last one for thousands of topics",
        ),
    ]
    .concat();
    let after = REST.find("\n[shards]").expect("there is such a section");
    let text = [HEAD, &training, &of_data, &of_model, SYNC, &REST[after..]].concat();
    Ok(WrittenRunFile { text, notices })
}

/// The settings of a text.
fn text_settings(separator: Option<&str>) -> String {
    let comment = "what begins a document; \"\": an empty line; without it, each line is one";
    [
        match separator {
            Some(separator) => line(&format!("separator = {}", toml(separator)), comment),
            None => line("# separator = \"chapter \"", comment),
        },
        line(
            "# min_documents = 5",
            "a word is in so many of them; less by default if there are few documents",
        ),
        line(&format!("max_share = {MAX_SHARE_DEFAULT}"), "a word is at most in this share of them"),
        line("stop_words = \"english\"", "words to leave out: or \"none\", or a file with one word a line"),
        line(&format!("vocabulary_size = {VOCABULARY_SIZE_DEFAULT}"), "the most frequent words are kept"),
    ]
    .concat()
}

/// What seems to begin a document of a text: a chapter, or an empty line if its lines are wrapped; `None` for documents of one line.
fn separator(text: &str) -> Option<&'static str> {
    const CHAPTER: &str = "chapter ";
    const CHAPTERS_MIN: usize = 5;
    let is_chapter =
        |line: &&str| line.get(..CHAPTER.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(CHAPTER));
    if text.lines().filter(is_chapter).count() >= CHAPTERS_MIN {
        return Some(CHAPTER);
    }
    let (mut lines, mut paragraphs, mut was_empty) = (0, 0, true);
    for line in text.lines() {
        let is_empty = line.trim().is_empty();
        lines += usize::from(!is_empty);
        paragraphs += usize::from(was_empty && !is_empty);
        was_empty = is_empty;
    }
    (paragraphs > 1 && 2 * lines >= 3 * paragraphs).then_some("")
}

/// The section `[sync]`.
const SYNC: &str = "
[sync]
kind = \"lda\"               # topics are drawn for one part of the documents at a time, with the counts of words in a table
# parts = 64               # how many parts the documents are cut into, at most 256; fewer by default if there are few documents
";
