//! `peer generate`: continues a text with a language model that was trained.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use peergrad_config::specification::DeepBackend;
use peergrad_config::specification::deep::check_backend;
use peergrad_embed::threads_of_one;
use peergrad_models::deep::Architecture;
use peergrad_models::deep::generate::{Choice, generate as next_tokens};
use peergrad_models::deep::text::VOCABULARY;
use peergrad_net::compute_on;

use super::files;
use super::model::decode;
use crate::terminal::print_piece;

#[derive(Args)]
pub(super) struct GenerateArguments {
    /// A model file written by `peer export`, of a run with `kind = "gpt"`
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The prepared text that a model of adapters was trained on: it holds the model that they adapt
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,
    /// The text to continue; `-` reads it from standard input
    #[arg(long, value_name = "TEXT", default_value = "\n")]
    prompt: String,
    /// How many bytes to write
    #[arg(long, value_name = "N", default_value_t = 500)]
    bytes: usize,
    /// Below 1 likely bytes become more likely; 0 always takes the most likely one
    #[arg(long, value_name = "T", default_value_t = 0.8, value_parser = temperature)]
    temperature: f32,
    /// Consider only so many of the most likely bytes; 0 for all
    #[arg(long, value_name = "N", default_value_t = 0)]
    top: usize,
    /// The seed of the draws
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
}

pub(super) fn generate(arguments: &GenerateArguments, deep: &DeepBackend) -> anyhow::Result<ExitCode> {
    let path = &arguments.model;
    let model = decode(path, &files::read(path)?)?;
    let specification = model.specification().with_context(|| path.display().to_string())?;
    let backend = check_backend(deep)?;
    let Ok(Architecture::Transformer(transformer)) = specification.architecture() else {
        bail!("{} is no language model: give one that was trained with `kind = \"gpt\"`", path.display());
    };
    if transformer.vocabulary != VOCABULARY {
        bail!("{} has other tokens than bytes, which this program cannot write", path.display());
    }
    let base = arguments.base.as_deref().map(files::open).transpose()?;
    let name = arguments.base.as_deref().unwrap_or(path).display().to_string();
    let weights = specification.weights(&model.parameters, &name, base.as_ref());
    let weights = weights.with_context(|| path.display().to_string())?;
    let mut prompt = arguments.prompt.clone().into_bytes();
    if arguments.prompt == "-" {
        prompt.clear();
        std::io::stdin().read_to_end(&mut prompt).context("cannot read standard input")?;
    }
    if prompt.is_empty() {
        bail!("the text to continue is empty: give at least one character");
    }
    let choice = Choice { temperature: arguments.temperature, top: arguments.top, seed: arguments.seed };
    let tokens: Vec<u32> = prompt.iter().map(|&byte| u32::from(byte)).collect();
    let mut text = Utf8Pieces::default();
    let mut write = |byte: u8| text.add(byte).is_none_or(|piece| print_piece(&piece));
    prompt.iter().for_each(|&byte| {
        write(byte);
    });
    let work = || {
        let parameters = &weights;
        let next = |token: u32| write(token as u8);
        next_tokens(transformer, &**backend, parameters, &tokens, arguments.bytes, choice, next);
    };
    compute_on(threads_of_one(1).get(), work).context("cannot start threads")?;
    print_piece(&text.rest());
    print_piece("\n");
    Ok(ExitCode::SUCCESS)
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
