//! `peer generate`: continues a text with a language model that was trained.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use peergrad_config::prepared_text::PreparedText;
use peergrad_config::specification::ComputeDevice;
use peergrad_config::specification::deep::check_backend;
use peergrad_embed::threads_of_one;
use peergrad_models::data::bytes::DataBytes;
use peergrad_models::deep::Architecture;
use peergrad_models::deep::generate::{Choice, generate as next_tokens};
use peergrad_models::deep::text::VOCABULARY;
use peergrad_net::compute_on;

use super::device::DeepDevices;
use super::files;
use super::model::decode;
use super::tokenizer::Tokenizer;
use crate::terminal::{OutputFormat, print_piece};

#[derive(Args)]
pub(super) struct GenerateArguments {
    /// A model file written by `peer export`, of a run with `kind = "gpt"` or `"llama"`
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The prepared text that the model was trained on, if it has only adapters, or if its tokens are not bytes
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,
    /// The text to continue; `-` reads it from standard input
    #[arg(long, value_name = "TEXT", default_value = "\n")]
    prompt: String,
    /// How many tokens to write; with most models they are bytes
    #[arg(long, value_name = "N", default_value_t = 500, alias = "bytes")]
    tokens: usize,
    /// Below 1 likely tokens become more likely; 0 always takes the most likely one
    #[arg(long, value_name = "T", default_value_t = 0.8, value_parser = temperature)]
    temperature: f32,
    /// Consider only so many of the most likely tokens; 0 for all
    #[arg(long, value_name = "N", default_value_t = 0)]
    top: usize,
    /// The seed of the draws
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Where to compute: `cpu`, or `gpu` with the feature `deep-wgpu`
    #[arg(long, value_name = "DEVICE", default_value_t)]
    device: ComputeDevice,
}

pub(super) fn generate(arguments: &GenerateArguments, deep: &DeepDevices) -> anyhow::Result<ExitCode> {
    let path = &arguments.model;
    let model = decode(path, &files::read(path)?)?;
    let specification = model.specification().with_context(|| path.display().to_string())?;
    let deep = deep.open(arguments.device, OutputFormat::Text)?;
    let backend = check_backend(&deep)?;
    let Ok(Architecture::Transformer(transformer)) = specification.architecture() else {
        bail!(
            "{} is no language model: give one that was trained with `kind = \"gpt\"` or `\"llama\"`",
            path.display()
        );
    };
    let base = arguments.base.as_deref().map(files::open).transpose()?;
    let name = arguments.base.as_deref().unwrap_or(path).display().to_string();
    let weights = specification.weights(&model.parameters, &name, base.as_ref());
    let weights = weights.with_context(|| path.display().to_string())?;
    let tokenizer = match transformer.vocabulary {
        VOCABULARY => None,
        _ => Some(tokenizer_in(&name, base.as_ref())?),
    };
    let mut prompt = arguments.prompt.clone().into_bytes();
    if arguments.prompt == "-" {
        prompt.clear();
        std::io::stdin().read_to_end(&mut prompt).context("cannot read standard input")?;
    }
    if prompt.is_empty() {
        bail!("the text to continue is empty: give at least one character");
    }
    let choice = Choice { temperature: arguments.temperature, top: arguments.top, seed: arguments.seed };
    let tokens = match &tokenizer {
        None => prompt.iter().map(|&byte| u32::from(byte)).collect(),
        Some(tokenizer) => tokenizer.encode(&String::from_utf8_lossy(&prompt))?,
    };
    if let Some(token) = tokens.iter().find(|&&token| token as usize >= transformer.vocabulary) {
        bail!(
            "the tokenizer makes the token {token} of the text, which the model does not have: give the prepared text that it was trained on"
        );
    }
    if tokens.is_empty() {
        bail!("the tokenizer makes no token of the text to continue: give another one with `--prompt`");
    }
    let mut writer = Writer { tokenizer, tokens: vec![], written: 0, bytes: Utf8Pieces::default() };
    tokens.iter().for_each(|&token| {
        writer.write(token);
    });
    let work = || {
        let next = |token: u32| writer.write(token);
        next_tokens(transformer, &**backend, &weights, &tokens, arguments.tokens, choice, next);
    };
    compute_on(threads_of_one(1).get(), work).context("cannot start threads")?;
    print_piece(&writer.bytes.rest());
    print_piece("\n");
    Ok(ExitCode::SUCCESS)
}

/// The tokenizer in a prepared text.
fn tokenizer_in(name: &str, base: Option<&DataBytes>) -> anyhow::Result<Tokenizer> {
    const WANTED: &str =
        "the model's tokens are not bytes: give the prepared text that it was trained on, with `--base`";
    let base = base.context(WANTED)?;
    let text = PreparedText::find(name, base)?.context(WANTED)?.tokenizer(base);
    Tokenizer::read(&text.with_context(|| format!("cannot read {name}"))?.context(WANTED)?)
}

/// Writes tokens as they come.
struct Writer {
    /// What makes a text of tokens; `None` if they are bytes.
    tokenizer: Option<Tokenizer>,
    /// Those of the last line or so: a character may be spread over several.
    tokens: Vec<u32>,
    /// How much of their text is written.
    written: usize,
    bytes: Utf8Pieces,
}

impl Writer {
    /// Returns whether somebody reads it.
    fn write(&mut self, token: u32) -> bool {
        let Some(tokenizer) = &self.tokenizer else {
            return self.bytes.add(token as u8).is_none_or(|piece| print_piece(&piece));
        };
        self.tokens.push(token);
        let Ok(text) = tokenizer.decode(&self.tokens) else { return true };
        // A replacement character at the end is one that is not complete.
        if text.ends_with('\u{fffd}') {
            return true;
        }
        let is_read = text.get(self.written..).is_none_or(print_piece);
        self.written = text.len();
        if text.ends_with('\n') {
            self.tokens.clear();
            self.written = 0;
        }
        is_read
    }
}

/// Makes characters of bytes that come one by one.
#[derive(Default)]
struct Utf8Pieces {
    waiting: Vec<u8>,
}

impl Utf8Pieces {
    /// What can be shown, with this byte: nothing while a character is incomplete.
    fn add(&mut self, byte: u8) -> Option<String> {
        self.waiting.push(byte);
        let is_incomplete =
            std::str::from_utf8(&self.waiting).is_err_and(|error| error.error_len().is_none());
        (!is_incomplete).then(|| self.rest())
    }

    /// What waits for more bytes.
    fn rest(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.waiting)).into_owned()
    }
}

fn temperature(text: &str) -> Result<f32, String> {
    let found: Option<f32> = text.parse().ok().filter(|found: &f32| found.is_finite() && *found >= 0.0);
    found.ok_or_else(|| "give a number from 0 on, such as 0.8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_shown_when_they_are_complete() {
        let mut text = Utf8Pieces::default();
        let mut shown: Vec<Option<String>> = vec![];
        "aé".bytes().for_each(|byte| shown.push(text.add(byte)));
        assert_eq!(shown, [Some("a".to_owned()), None, Some("é".to_owned())]);
        assert_eq!(text.add(0xc3), None);
        assert_eq!(text.add(b'x').as_deref(), Some("\u{fffd}x"), "it was no character");
    }
}
