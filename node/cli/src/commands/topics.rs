//! `peer topics`: what the topics of a saved topic model are about, and which of them other documents have.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Args;
use peergrad_config::file_error::explained;
use peergrad_config::model_file::{DataPart, Evaluated, ModelFile};
use peergrad_config::specification::Specification;
use peergrad_models::data::bytes::DataBytes;
use peergrad_models::data::documents::Vocabulary;
use peergrad_models::task::lda::TopicModel;
use peergrad_net::write_atomically;
use serde_json::{Value, json};

use super::files;
use super::model::{check_built_in, decode, samples};
use crate::terminal::{emit, print_line};

#[derive(Args)]
pub(super) struct TopicsArguments {
    /// A model file written by `peer export`, of a run with `kind = "lda"`
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// How many words of each topic to print, the most probable ones
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// A text or an LDA-C file: print how well the model predicts the words of its documents; of the file that the model was trained on, those of
    /// the held-out documents
    #[arg(long, value_name = "FILE")]
    documents: Option<PathBuf>,
    /// A CSV file to write: which share of each document of `--documents` is about each topic
    #[arg(long, value_name = "FILE", requires = "documents")]
    output: Option<PathBuf>,
    /// A file to write: the words of the model, one a line, in the order of the rows of `word_topic_counts`
    #[arg(long, value_name = "FILE")]
    vocabulary: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn topics(arguments: &TopicsArguments) -> anyhow::Result<ExitCode> {
    let path = &arguments.model;
    let model = decode(path, &files::read(path)?)?;
    check_built_in(&model, path)?;
    let named = || path.display().to_string();
    let specification = model.specification().with_context(named)?;
    let topic_model = specification.topic_model(&model.parameters).with_context(named)?;
    let vocabulary = specification.vocabulary().with_context(named)?;
    let topics = Topic::all(&topic_model, vocabulary, arguments.top);
    let documents = arguments.documents.as_deref();
    let data = documents.map(|documents| Ok::<_, anyhow::Error>((documents, files::open(documents)?)));
    let data = data.transpose()?;
    let evaluated = data.as_ref().map(|(name, data)| evaluate(&model, name, data)).transpose()?;
    if let Some(to) = &arguments.vocabulary {
        write(to, &words_text(vocabulary))?;
    }
    if let (Some(to), Some((name, data))) = (&arguments.output, &data) {
        write(to, &mixtures(&specification, &topic_model, name, data)?)?;
    }
    if arguments.json {
        emit(&topics_json(&topics, evaluated.as_ref()));
        return Ok(ExitCode::SUCCESS);
    }
    table(topics).lines().for_each(print_line);
    if let Some(evaluated) = &evaluated {
        let (perplexity, loss) = (evaluated.perplexity.unwrap_or_default(), evaluated.evaluation.loss);
        print_line("");
        print_line(&format!("perplexity {perplexity:.1}, loss {loss:.4} on {}", samples(evaluated)));
    }
    Ok(ExitCode::SUCCESS)
}

/// How well the model predicts the words of documents.
fn evaluate(model: &ModelFile, path: &Path, data: &DataBytes) -> anyhow::Result<Evaluated> {
    let name = path.display().to_string();
    let evaluated = model.evaluate(&name, data, &None)?;
    files::warn_about(&name, &evaluated.notices);
    Ok(evaluated)
}

/// A topic as it is printed.
struct Topic {
    /// Its number, from 1.
    number: usize,
    /// Which share of all words it has, 0 to 1.
    share: f64,
    /// Its most probable words, with their probabilities.
    words: Vec<(String, f64)>,
}

impl Topic {
    /// All topics, in the order of their numbers, with so many words each.
    fn all(model: &TopicModel, vocabulary: &Vocabulary, top: usize) -> Vec<Self> {
        let topic = |(index, share)| {
            let words = model.top_words(index, top).into_iter();
            let words =
                words.map(|(word, probability)| (vocabulary.word(word).into_owned(), probability)).collect();
            Self { number: index + 1, share, words }
        };
        model.topic_shares().into_iter().enumerate().map(topic).collect()
    }
}

/// A line for each topic, that with the largest share first.
fn table(mut topics: Vec<Topic>) -> String {
    // The sort is stable.
    topics.sort_by(|one, other| other.share.total_cmp(&one.share));
    let line = |Topic { number, share, words }: &Topic| {
        let words: Vec<&str> = words.iter().map(|(word, _)| word.as_str()).collect();
        format!("{number:>5}  {:>5.1}%  {}\n", share * 100.0, words.join(" "))
    };
    let head = "topic   share  words\n".to_owned();
    [head].into_iter().chain(topics.iter().map(line)).collect()
}

fn topics_json(topics: &[Topic], evaluated: Option<&Evaluated>) -> Value {
    let word = |(word, probability): &(String, f64)| json!({"word": word, "probability": probability});
    let topic = |Topic { number, share, words }: &Topic| {
        let words: Vec<Value> = words.iter().map(word).collect();
        json!({"topic": number, "share": share, "words": words})
    };
    json!({
        "event": "topics", "topics": topics.iter().map(topic).collect::<Vec<_>>(),
        "perplexity": evaluated.map(|evaluated| evaluated.perplexity),
        "loss": evaluated.map(|evaluated| evaluated.evaluation.loss),
        "documents": evaluated.map(|evaluated| evaluated.evaluation.samples),
        "held_out": evaluated.map(|evaluated| evaluated.part == DataPart::HeldOut),
        "warnings": evaluated.map(|evaluated| &evaluated.notices),
    })
}

/// The words of a model, one a line.
fn words_text(vocabulary: &Vocabulary) -> Vec<u8> {
    let words = (0..vocabulary.count() as u32).map(|word| vocabulary.word(word).into_owned() + "\n");
    words.collect::<String>().into_bytes()
}

/// The topics of all documents of a file, as CSV: the number of a document in the file, its first words that the model knows, and the share of
/// each topic.
fn mixtures(
    specification: &Specification,
    model: &TopicModel,
    path: &Path,
    data: &DataBytes,
) -> anyhow::Result<Vec<u8>> {
    const WORDS_SHOWN: usize = 5;
    let documents = specification.documents(&path.display().to_string(), data)?;
    let vocabulary = specification.vocabulary()?;
    let corpus = documents.corpus(vocabulary.count());
    let mut writer = csv::Writer::from_writer(vec![]);
    let topics = (1..=model.settings().topics).map(|number| format!("topic {number}"));
    writer.write_record(["document".to_owned(), "words".to_owned()].into_iter().chain(topics))?;
    for (index, number) in (0..).zip(documents.numbers()) {
        let words = corpus.words(index);
        let first: Vec<_> = words.iter().take(WORDS_SHOWN).map(|&word| vocabulary.word(word)).collect();
        let shares = model.mixture(words).into_iter().map(|share| format!("{share:.4}"));
        writer.write_record([number.to_string(), first.join(" ")].into_iter().chain(shares))?;
    }
    writer.into_inner().map_err(|error| anyhow!("{}", error.error()))
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    write_atomically(path, bytes)
        .map_err(|error| anyhow!("cannot write {}: {}", path.display(), explained(&error)))
}

#[cfg(test)]
mod tests {
    use peergrad_config::specification::{RunFile, resolve};

    use super::*;

    const TEXT: &[u8] = b"cat dog\nstar moon\ncat cat\nmoon, star\nit is\n";

    fn specification() -> Specification {
        let text = "[data]\nfile = \"f.txt\"\nheld_out = 0.25\n[model]\nkind = \"lda\"\ntopics = 2\n";
        resolve(&RunFile::parse(text).unwrap(), "f.txt", TEXT).unwrap()
    }

    /// Counts of cat, dog, moon and star in two topics.
    const COUNTS: [f32; 8] = [3.0, 0.0, 1.0, 0.0, 0.0, 8.0, 0.0, 4.0];

    #[test]
    fn topics_are_a_table_or_json() {
        let specification = specification();
        let model = specification.topic_model(&COUNTS).unwrap();
        let topics = || Topic::all(&model, specification.vocabulary().unwrap(), 2);
        assert_eq!(
            table(topics()),
            "topic   share  words\n    2   75.0%  moon star\n    1   25.0%  cat dog\n"
        );
        let json = topics_json(&topics(), None);
        assert_eq!(
            (&json["topics"][0]["topic"], &json["topics"][0]["words"][0]["word"]),
            (&json!(1), &json!("cat"))
        );
        assert_eq!((&json["topics"][1]["share"], &json["perplexity"]), (&json!(0.75), &json!(null)));
    }

    #[test]
    fn words_and_mixtures_are_written() {
        let specification = specification();
        assert_eq!(words_text(specification.vocabulary().unwrap()), b"cat\ndog\nmoon\nstar\n");
        let model = specification.topic_model(&COUNTS).unwrap();
        let found = mixtures(&specification, &model, Path::new("f.txt"), &TEXT.into()).unwrap();
        let text = String::from_utf8(found).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "document,words,topic 1,topic 2");
        assert_eq!(lines.len(), 5, "the last document has no known word");
        assert!(lines[1].starts_with("1,cat dog,0.9") && lines[4].starts_with("4,moon star,0.0"), "{text}");
    }
}
