//! Topic models in a specification: their shape, their vocabulary, and the documents that they are trained on.
//!
//! The vocabulary is part of the specification, so a saved model knows its words without the data file.

use std::sync::Arc;

use peergrad_core::program::ProgramFactory;
use peergrad_core::program::loader::{Loaded, TrainingConfig};
use peergrad_core::program::programs::lda::GibbsSampling;
use peergrad_models::data::bytes::DataBytes;
use peergrad_models::data::corpus::Corpus;
use peergrad_models::data::dense_table::unpack;
use peergrad_models::data::documents::{
    DocumentForm, Documents, DocumentsLayout, StopWords, VOCABULARY_MAX, Vocabulary, VocabularyChoice,
    text_of,
};
use peergrad_models::data::format::{FileLayout, FormatError};
use peergrad_models::data::labels::Target;
use peergrad_models::data::limits::UNPACKED_BYTES_MAX;
use peergrad_models::data::standardize::Standardization;
use peergrad_models::task::Evaluation;
use peergrad_models::task::lda::{Lda, LdaSettings, Sampler, TopicModel};
use peergrad_protocol::limits::SPECIFICATION_BYTES_MAX;
use peergrad_protocol::manifest::Manifest;
use serde::{Deserialize, Serialize};

use super::algorithm::Algorithm;
use super::answers::DataPart;
use super::deep::data::in_memory;
use super::resolve::{Condition, column_hints};
use super::run_file::{DataSection, ModelKind, ModelSection, OptimizerSection, RunFile, WordList};
use super::{DataSettings, ModelSettings, PARAMETERS_MAX, Specification, SpecificationError, within};

/// The default of `topics`.
pub(super) const TOPICS_DEFAULT: u32 = 20;
/// The default of `alpha`: documents are mostly about few topics.
pub(super) const ALPHA_DEFAULT: f64 = 0.1;
/// The default of `beta`: topics have few of the words.
pub(super) const BETA_DEFAULT: f64 = 0.01;
/// The default of `max_share`.
pub(super) const MAX_SHARE_DEFAULT: f64 = 0.5;
/// The default of `vocabulary_size`: so many words take less than half of a specification.
pub(super) const VOCABULARY_SIZE_DEFAULT: usize = 20_000;
/// The most topics.
const TOPICS_MAX: u32 = 1 << 14;
/// The longest separator, in bytes.
const SEPARATOR_BYTES_MAX: usize = 256;

/// A model of what documents are about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopicSettings {
    /// The number of topics.
    pub topics: u32,
    /// What is added to the number of a document's words in each topic.
    pub alpha: f64,
    /// What is added to the number of a topic's words of each kind.
    pub beta: f64,
    /// How topics are drawn.
    pub sampler: Sampler,
    /// The words, in the order of their numbers.
    pub vocabulary: Vocabulary,
}

impl TopicSettings {
    /// The settings that a section names, for this vocabulary.
    fn resolve(section: &ModelSection, vocabulary: Vocabulary) -> Self {
        Self {
            topics: section.topics.unwrap_or(TOPICS_DEFAULT),
            alpha: section.alpha.unwrap_or(ALPHA_DEFAULT),
            beta: section.beta.unwrap_or(BETA_DEFAULT),
            sampler: section.sampler.unwrap_or_default(),
            vocabulary,
        }
    }

    /// The number of topics, and how they are found.
    pub(super) fn settings(&self) -> LdaSettings {
        let &Self { topics, alpha, beta, sampler, .. } = self;
        LdaSettings { topics, alpha, beta, sampler }
    }

    /// The tensors of the model.
    pub(super) fn manifest(&self) -> Manifest {
        Manifest::tensor("word_topic_counts", [self.vocabulary.count() as u32, self.topics])
    }

    /// Checks that the model is within its bounds, and fits the data.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn check(&self, data: &DataSettings) -> Result<(), SpecificationError> {
        let foreign = |what: &str| Err(SpecificationError::Foreign(what.to_owned()));
        if let Some(problem) = self.vocabulary.problem() {
            return foreign(problem);
        }
        let FileLayout::Documents(DocumentsLayout { tokens, .. }) = data.layout else {
            return foreign("a topic model needs documents");
        };
        let words = self.vocabulary.count();
        if data.target != (Target::Token { vocabulary: words })
            || data.standardization != Standardization::identity()
            || tokens < u64::from(data.rows)
        {
            return foreign("a topic model has other documents");
        }
        let most = u64::from(TOPICS_MAX).min(tokens);
        let allowed = format!("2 to {most}: the documents have {tokens} words in all");
        within("model.topics", u64::from(self.topics), 2..=most, &allowed)?;
        let parameters = words as u64 * u64::from(self.topics);
        let allowed = "a model of at most 1073741824 parameters: a count for each word and topic";
        within("model.topics", parameters, ..=PARAMETERS_MAX, allowed)?;
        within("model.alpha", self.alpha, f64::MIN_POSITIVE..=1000.0, "above 0, up to 1000")?;
        within("model.beta", self.beta, f64::MIN_POSITIVE..=1000.0, "above 0, up to 1000")
    }
}

/// Rejects the keys of a topic model for other models, and keys that mean nothing for a topic model.
pub(super) fn check_topic_keys(run: &RunFile, data: &DataSection) -> Result<(), SpecificationError> {
    let (model, is_topic_model) = (&run.model, run.model.kind == ModelKind::Lda);
    let own = Condition { holds: is_topic_model, allowed: "only if `kind` in [model] is \"lda\"" };
    own.check("model.topics", model.topics)?;
    own.check("model.alpha", model.alpha)?;
    own.check("model.beta", model.beta)?;
    own.check("model.sampler", model.sampler)?;
    own.check("data.separator", data.separator.as_ref())?;
    own.check("data.min_documents", data.min_documents)?;
    own.check("data.max_share", data.max_share)?;
    own.check("data.stop_words", data.stop_words.as_ref())?;
    own.check("data.vocabulary_size", data.vocabulary_size)?;
    own.check("data.vocabulary", data.vocabulary.as_ref())?;
    let stepwise = Condition {
        holds: !is_topic_model,
        allowed: "nothing if `kind` in [model] is \"lda\": topics are drawn for parts of the documents, without steps of an optimizer",
    };
    stepwise.check("batch", run.batch)?;
    stepwise.check("optimizer", (run.optimizer != OptimizerSection::default()).then_some(()))
}

/// Resolves a topic model and the documents that it is trained on; `packed` are the bytes of their file on disk.
pub(super) fn resolve_topics(
    run: &RunFile,
    section: &DataSection,
    name: &str,
    packed: &DataBytes,
) -> Result<(ModelSettings, DataSettings, Vec<String>), SpecificationError> {
    column_hints(section)?;
    let unpacked = packed.unpacked(name, UNPACKED_BYTES_MAX)?;
    let bytes = in_memory(name, &unpacked)?;
    let text = text_of(name, &bytes).map_err(FormatError::from)?;
    let form = DocumentForm::of(text);
    check_form_keys(section, form)?;
    let separator = section.separator.as_deref();
    let vocabulary = match form {
        DocumentForm::Text => choose_vocabulary(section, name, text)?,
        DocumentForm::LdaC => listed_vocabulary(section)?,
    };
    let documents = Documents::read(name, text, form, separator, &vocabulary).map_err(FormatError::from)?;
    let mut notices = Vec::new();
    let vocabulary = match vocabulary {
        Vocabulary::Numbered(_) => Vocabulary::Numbered(documents.words()),
        listed => listed,
    };
    if documents.words() < vocabulary.count() && form == DocumentForm::LdaC {
        notices.push(format!(
            "the vocabulary has {} words, and the documents use only the first {}; if that is wrong, give the vocabulary that belongs to them",
            vocabulary.count(),
            documents.words()
        ));
    }
    notices.extend(left_out(&documents));
    let rows = documents.count();
    let data = DataSettings {
        name: name.to_owned(),
        digest: packed.digest().to_string(),
        byte_count: packed.byte_count(),
        rows,
        held_out_rows: section.held_out_rows(rows),
        layout: FileLayout::Documents(DocumentsLayout {
            documents: form,
            separator: section.separator.clone(),
            tokens: documents.token_count(),
        }),
        target: Target::Token { vocabulary: vocabulary.count() },
        standardization: Standardization::identity(),
    };
    let settings = TopicSettings::resolve(&run.model, vocabulary);
    check_room(name, &settings)?;
    Ok((ModelSettings::Lda(settings), data, notices))
}

/// A notice about documents that are left out, if there are any.
fn left_out(documents: &Documents) -> Option<String> {
    let all = documents.count() + documents.left_out();
    let text =
        |left_out| format!("{left_out} of {all} documents have no word of the vocabulary, and are left out");
    Some(documents.left_out()).filter(|left_out| *left_out > 0).map(text)
}

/// Rejects the keys of text for LDA-C, and those of LDA-C for text.
fn check_form_keys(section: &DataSection, form: DocumentForm) -> Result<(), SpecificationError> {
    let text = Condition {
        holds: form == DocumentForm::Text,
        allowed: "nothing with an LDA-C file, whose words are counted already",
    };
    text.check("data.separator", section.separator.as_ref())?;
    text.check("data.min_documents", section.min_documents)?;
    text.check("data.max_share", section.max_share)?;
    text.check("data.stop_words", section.stop_words.as_ref())?;
    text.check("data.vocabulary_size", section.vocabulary_size)?;
    let counts = Condition {
        holds: form == DocumentForm::LdaC,
        allowed: "nothing with a text, whose words are known; set `vocabulary_size` and `stop_words`",
    };
    counts.check("data.vocabulary", section.vocabulary.as_ref())
}

/// Chooses the vocabulary of a text.
fn choose_vocabulary(
    section: &DataSection,
    name: &str,
    text: &str,
) -> Result<Vocabulary, SpecificationError> {
    let separator = section.separator.as_deref();
    let bytes = separator.map_or(0, str::len);
    within("data.separator", bytes, ..=SEPARATOR_BYTES_MAX, "a text of at most 256 bytes")?;
    if let Some(documents) = section.min_documents {
        within("data.min_documents", documents, 1.., "at least 1")?;
    }
    let max_share = section.max_share.unwrap_or(MAX_SHARE_DEFAULT);
    within("data.max_share", max_share, f64::MIN_POSITIVE..=1.0, "a share above 0, up to 1")?;
    let size = section.vocabulary_size.unwrap_or(VOCABULARY_SIZE_DEFAULT);
    within("data.vocabulary_size", size, 1..=VOCABULARY_MAX, "1 to 1048576 words")?;
    let stop_words = match &section.stop_words {
        None => StopWords::english(),
        Some(list) if list.name == WordList::ENGLISH => StopWords::english(),
        Some(list) if list.name == WordList::NONE => StopWords::none(),
        Some(list) => {
            let allowed = "\"english\", \"none\", or the path of a file, which this command does not read";
            StopWords::of_list(words_in(list, "data.stop_words", allowed)?)
        }
    };
    let choice = VocabularyChoice { min_documents: section.min_documents, max_share, stop_words, size };
    Ok(Vocabulary::choose(name, text, separator, &choice).map_err(FormatError::from)?)
}

/// The vocabulary that the section names for an LDA-C file, or as many words as there may be.
fn listed_vocabulary(section: &DataSection) -> Result<Vocabulary, SpecificationError> {
    let Some(list) = &section.vocabulary else { return Ok(Vocabulary::Numbered(VOCABULARY_MAX)) };
    let allowed = "the path of a file with one word a line, which this command does not read";
    let text = words_in(list, "data.vocabulary", allowed)?;
    Ok(Vocabulary::of_list(&list.name, text).map_err(FormatError::from)?)
}

/// The text of a list of words that has been read.
fn words_in<'a>(list: &'a WordList, key: &'static str, allowed: &str) -> Result<&'a str, SpecificationError> {
    let unread = || SpecificationError::Setting {
        key,
        found: format!("\"{}\"", list.name),
        allowed: allowed.to_owned(),
    };
    let bytes = list.bytes.as_ref().ok_or_else(unread)?;
    Ok(text_of(&list.name, bytes).map_err(FormatError::from)?)
}

/// Checks that the specification has room for the vocabulary.
fn check_room(name: &str, settings: &TopicSettings) -> Result<(), SpecificationError> {
    /// Everything else in a specification is shorter.
    const OTHERS_BYTES: usize = 8192;
    let bytes = toml::to_string(settings).map_or(usize::MAX, |text| text.len());
    if bytes.saturating_add(OTHERS_BYTES) <= SPECIFICATION_BYTES_MAX {
        return Ok(());
    }
    Err(SpecificationError::ManyWords { name: name.to_owned(), words: settings.vocabulary.count(), bytes })
}

impl Specification {
    /// The topic model, if it is one.
    fn topic_settings(&self) -> Result<&TopicSettings, SpecificationError> {
        match &self.model {
            ModelSettings::Lda(settings) => Ok(settings),
            _ => Err(SpecificationError::NoTopics),
        }
    }

    /// The task of a topic model, and the program that trains it; `bytes` are those of the data file, unpacked.
    pub(super) fn load_topics(&self, bytes: &[u8]) -> Result<Loaded, SpecificationError> {
        let [training, held_out] = self.own_documents(bytes)?;
        let task = Arc::new(Lda::new(self.topic_settings()?.settings(), training, held_out));
        let Algorithm::Lda { parts } = self.training.algorithm else {
            return Err(SpecificationError::Foreign("a topic model is trained in its own way".to_owned()));
        };
        // The parts are the same in each epoch.
        let config = TrainingConfig { is_shuffled: false, ..self.training.training(&self.manifest())? };
        let (of, with) = (Arc::clone(&task), Arc::clone(&task));
        let program = ProgramFactory::with_tables(
            move |_| GibbsSampling::table_spec(&of, parts),
            move |_| GibbsSampling::of(Arc::clone(&with)),
        );
        Ok(Loaded { program, ..Loaded::new(task, config) })
    }

    /// The run's documents, from the bytes of the data file (unpacked): those that are trained, and those that are held out.
    pub(super) fn own_documents(&self, bytes: &[u8]) -> Result<[Corpus; 2], SpecificationError> {
        let settings = self.topic_settings()?;
        let FileLayout::Documents(layout) = &self.data.layout else {
            return Err(self.other("it has no documents"));
        };
        let name = &self.data.name;
        let text = text_of(name, bytes).map_err(FormatError::from)?;
        let (form, separator) = (layout.documents, layout.separator.as_deref());
        let documents =
            Documents::read(name, text, form, separator, &settings.vocabulary).map_err(FormatError::from)?;
        // Another release may know other letters.
        if documents.token_count() != layout.tokens {
            return Err(self.other("its documents have another number of words"));
        }
        let split = self.split(documents.count() as usize)?;
        let corpus = documents.corpus(settings.vocabulary.count());
        Ok([corpus.select(&split.training), corpus.select(&split.held_out)])
    }

    /// The documents of another file, packed or not, in the words of the model. It may be a text or an LDA-C file, whatever the model was
    /// trained on. `file` is the name for errors.
    ///
    /// # Errors
    /// The model is no topic model, the file cannot be read, or the model knows none of its words.
    pub fn documents(&self, file: &str, data: &DataBytes) -> Result<Documents, SpecificationError> {
        let vocabulary = &self.topic_settings()?.vocabulary;
        let bytes = &*in_memory(file, data)?;
        let unpacked = unpack(file, bytes)?;
        let text = text_of(file, &unpacked).map_err(FormatError::from)?;
        let separator = match &self.data.layout {
            FileLayout::Documents(layout) => layout.separator.as_deref(),
            _ => None,
        };
        let form = DocumentForm::of(text);
        Ok(Documents::read(file, text, form, separator, vocabulary).map_err(FormatError::from)?)
    }

    /// The words of a topic model.
    ///
    /// # Errors
    /// The model is none.
    pub fn vocabulary(&self) -> Result<&Vocabulary, SpecificationError> {
        Ok(&self.topic_settings()?.vocabulary)
    }

    /// The topics of a topic model with these parameters, (vocabulary, topics).
    ///
    /// # Errors
    /// The model is none.
    ///
    /// # Panics
    /// The number of parameters is not that of the model.
    pub fn topic_model(&self, parameters: &[f32]) -> Result<TopicModel, SpecificationError> {
        let settings = self.topic_settings()?;
        Ok(TopicModel::new(settings.settings(), settings.vocabulary.count(), parameters))
    }

    /// Evaluates a topic model on a part of a file.
    pub(super) fn evaluate_topics(
        &self,
        parameters: &[f32],
        file: &str,
        data: &DataBytes,
        part: DataPart,
        notices: &mut Vec<String>,
    ) -> Result<Evaluation, SpecificationError> {
        let own = || self.own_documents(&unpack(file, &in_memory(file, data)?)?);
        let corpus = match part {
            DataPart::HeldOut => own()?.into_iter().next_back(),
            DataPart::Trained => own()?.into_iter().next(),
            DataPart::All => {
                let documents = self.documents(file, data)?;
                notices.extend(left_out(&documents));
                Some(documents.corpus(self.vocabulary()?.count()))
            }
        };
        let corpus = corpus.expect("there are two parts");
        let loss = self.topic_model(parameters)?.loss(&corpus);
        Ok(Evaluation { samples: corpus.documents(), loss, accuracy: None })
    }
}

#[cfg(test)]
mod tests;
