//! The run file for a transformer on a text.

use peergrad_models::data::bytes::DataBytes;

use super::super::run_file::{DataSection, ModelSection, SEED_DEFAULT};
use super::super::{SpecificationError, deep};
use super::{HEAD, REST, WrittenRunFile, line, toml};

/// The run file for a transformer on prose.
pub(super) fn run_file(name: &str, packed: &DataBytes) -> Result<WrittenRunFile, SpecificationError> {
    let section = DataSection::new(name);
    let data = deep::resolve_text(&section, &ModelSection::default(), name, packed)?;
    let samples = format!("{} samples of text", data.rows);
    let data = [
        format!("\n[data]                     # {samples}\n"),
        line(&format!("file = {}", toml(name)), "path relative to this file's folder; gzipped or not"),
        line("held_out = 0.1", "share of the text, at its end, that is not trained but used for evaluation"),
    ]
    .concat();
    let model = [
        "\n[model]\n".to_owned(),
        line("kind = \"gpt\"", "a transformer, whose tokens are bytes"),
        line("layers = 4", "blocks"),
        line("width = 128", "numbers for each byte"),
        line("heads = 4", "heads of the attention, which share the width"),
        line("context = 128", "bytes that it sees at once"),
        line("dropout = 0.0", "share of values left out in training, if it learns the text by heart"),
    ]
    .concat();
    let training = [
        line("epochs = 10", "passes over the text"),
        line("batch = 32", "samples per step, over all peers together"),
        line(&format!("seed = {SEED_DEFAULT}"), "seed of the initial parameters and the order of samples"),
    ]
    .concat();
    let optimizer = [
        "\n[optimizer]\n".to_owned(),
        line("rule = \"adamw\"", "or adam, momentum, sgd"),
        line("rate = 0.001", "the highest learning rate"),
        line("schedule = \"cosine\"", "decays to 0 at the end; or step, constant"),
        line("weight_decay = 0.1", "the share by which weights shrink, times the rate"),
        line("warmup_steps = 100", "steps over which the rate rises from 0"),
        line("clip_norm = 1.0", "a gradient with a larger norm is shortened to this one"),
        "\n".to_owned(),
        line("[[optimizer.groups]]", "tensors that are trained differently"),
        line("tensors = [\"*.bias\", \"*.ln_*\"]", "offsets and norms do not shrink"),
        "weight_decay = 0.0\n".to_owned(),
    ]
    .concat();
    let text = [HEAD, &training, &data, &model, &optimizer, REST].concat();
    Ok(WrittenRunFile { text, notices: vec![] })
}
