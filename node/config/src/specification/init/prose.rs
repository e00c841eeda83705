//! The run file for a transformer on a text.

use peergrad_models::data::bytes::DataBytes;
use peergrad_models::deep::Family;

use super::super::SpecificationError;
use super::super::deep::transformer::resolve_text;
use super::super::run_file::{DataSection, ModelKind, ModelSection, SEED_DEFAULT};
use super::fixed::{HEAD, REST};
use super::{WrittenRunFile, line, toml};
use crate::prepared_text::PreparedText;

/// The run file for a transformer on prose; `prepared` says what is in the file, if it is a prepared text. `kind` is the one that the user
/// wants: by default that of the model in the file, or a GPT.
pub(super) fn run_file(
    name: &str,
    packed: &DataBytes,
    prepared: Option<&PreparedText>,
    kind: Option<ModelKind>,
) -> Result<WrittenRunFile, SpecificationError> {
    let section = DataSection::new(name);
    let data = resolve_text(&section, &ModelSection::default(), name, packed, prepared)?;
    let base = prepared.and_then(|text| text.base);
    let of_base = base.is_some_and(|base| matches!(base.family, Family::Llama(_)));
    let is_llama = kind.map_or(of_base, |kind| kind == ModelKind::Llama);
    let samples = format!("{} samples of text", data.rows);
    let of_data = [
        format!("\n[data]                     # {samples}\n"),
        line(&format!("file = {}", toml(name)), "path relative to this file's folder; gzipped or not"),
        line("held_out = 0.1", "share of the text, at its end, that is not trained but used for evaluation"),
    ]
    .concat();
    let model = match base {
        None => sizes_of_a_new_model(is_llama, prepared.is_some()),
        Some(base) => [
            "\n[model]\n".to_owned(),
            line(kind_line(is_llama), "the transformer that is in the file learns this text"),
            line(&format!("context = {}", data.layout.columns()), "tokens that it sees at once"),
            line(
                "lora = 8",
                "the rank of adapters, which alone are trained; without this the whole model is",
            ),
            line("lora_alpha = 16.0", "what the adapters are multiplied by, times the rank"),
            line("dropout = 0.0", "share of values left out in training, if it learns the text by heart"),
            format!(
                "# {} blocks, {} numbers for each token, {} heads\n",
                base.layers, base.width, base.heads
            ),
        ]
        .concat(),
    };
    let training = [
        line("epochs = 10", "passes over the text"),
        line("batch = 32", "samples per step, over all peers together"),
        line(&format!("seed = {SEED_DEFAULT}"), "seed of the initial parameters and the order of samples"),
    ]
    .concat();
    let decay = match (base, is_llama) {
        (Some(_), _) => NO_DECAY,
        (None, true) => NO_DECAY_OF_SCALES,
        (None, false) => NO_DECAY_OF_NORMS,
    };
    let optimizer = [
        "\n[optimizer]\n".to_owned(),
        line("rule = \"adamw\"", "or adam, momentum, sgd"),
        line("rate = 0.001", "the highest learning rate"),
        line("schedule = \"cosine\"", "decays to 0 at the end; or step, constant"),
        line(decay.0, "the share by which weights shrink, times the rate"),
        line("warmup_steps = 100", "steps over which the rate rises from 0"),
        line("clip_norm = 1.0", "a gradient with a larger norm is shortened to this one"),
        decay.1.to_owned(),
    ]
    .concat();
    let text = [HEAD, &training, &of_data, &model, &optimizer, REST].concat();
    Ok(WrittenRunFile { text, notices: vec![] })
}

/// Adapters start at 0 and are few: they need no decay.
const NO_DECAY: (&str, &str) = ("weight_decay = 0.0", "");
/// Offsets and norms do not shrink.
const NO_DECAY_OF_NORMS: (&str, &str) = (
    "weight_decay = 0.1",
    "
[[optimizer.groups]]       # tensors that are trained differently
tensors = [\"*.bias\", \"*.ln_*\"] # offsets and norms do not shrink
weight_decay = 0.0
",
);

/// Norms have only scales, which do not shrink.
const NO_DECAY_OF_SCALES: (&str, &str) = (
    "weight_decay = 0.1",
    "
[[optimizer.groups]]       # tensors that are trained differently
tensors = [\"*norm.weight\"] # norms do not shrink
weight_decay = 0.0
",
);

fn kind_line(is_llama: bool) -> &'static str {
    if is_llama { "kind = \"llama\"" } else { "kind = \"gpt\"" }
}

fn sizes_of_a_new_model(is_llama: bool, is_prepared: bool) -> String {
    let tokens = if is_prepared { "a tokenizer's" } else { "bytes" };
    let kv_heads = match is_llama {
        true => line("kv_heads = 4", "heads of keys and values, a divisor of heads; fewer are shared"),
        false => String::new(),
    };
    [
        "\n[model]\n".to_owned(),
        line(kind_line(is_llama), &format!("a transformer, whose tokens are {tokens}")),
        line("layers = 4", "blocks"),
        line("width = 128", "numbers for each token"),
        line("heads = 4", "heads of the attention, which share the width"),
        kv_heads,
        line("context = 128", "tokens that it sees at once"),
        line("dropout = 0.0", "share of values left out in training, if it learns the text by heart"),
    ]
    .concat()
}
