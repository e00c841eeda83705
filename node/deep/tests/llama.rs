//! LLaMA: outputs are those of plain loops, and swarms train it from scratch, as a base and with adapters.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the answer")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use peergrad_config::base_model::BaseModel;
use peergrad_config::prepared_text::{TextTokens, prepare};
use peergrad_config::specification::memory::MemoryLimit;
use peergrad_config::specification::{DeepBackend, RunFile, Specification, resolve, write_run_file};
use peergrad_deep::Burn;
use peergrad_models::data::bytes::DataBytes;
use peergrad_models::deep::text::VOCABULARY;
use peergrad_models::deep::{Architecture, Backend, Family, Inputs, Llama, Transformer};
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::workload::Workload;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// Two heads share a key, and heads are not a part of the width.
const LLAMA: Llama = Llama {
    kv_heads: 2,
    head_width: 6,
    hidden_width: 20,
    rope_theta: 100.0,
    norm_epsilon: 1e-3,
    tied_embeddings: false,
    qkv_biases: false,
};

fn net(llama: Llama) -> Transformer {
    let family = Family::Llama(llama);
    Transformer { layers: 2, width: 16, heads: 4, context: 12, vocabulary: 20, dropout: 0.0, family }
}

/// Numbers between -1 and 1.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| generator.next_u32() as f32 / u32::MAX as f32 * 2.0 - 1.0).collect()
}

type Row = Vec<f64>;

/// The tensors of a network by their names.
struct Named(BTreeMap<String, Row>);

impl Named {
    fn of(net: Transformer, parameters: &[f32]) -> Self {
        let values = |range: Range<usize>| parameters[range].iter().map(|&value| f64::from(value)).collect();
        let manifest = Architecture::Transformer(net).manifest();
        Self(manifest.tensors().map(|(tensor, range)| (tensor.name.clone(), values(range))).collect())
    }

    /// The products of a row with a matrix (outputs, inputs), and a bias if there is one.
    fn dense(&self, layer: &str, row: &Row) -> Row {
        let weight = &self.0[&format!("{layer}.weight")];
        let product = |weights: &[f64]| weights.iter().zip(row).map(|(weight, value)| weight * value).sum();
        let mut outputs: Row = weight.chunks(row.len()).map(product).collect();
        if let Some(bias) = self.0.get(&format!("{layer}.bias")) {
            outputs.iter_mut().zip(bias).for_each(|(output, bias)| *output += bias);
        }
        outputs
    }

    fn norm(&self, layer: &str, epsilon: f64, row: &Row) -> Row {
        let square = row.iter().map(|value| value * value).sum::<f64>() / row.len() as f64;
        let scale = &self.0[&format!("{layer}.weight")];
        row.iter().zip(scale).map(|(value, scale)| value / (square + epsilon).sqrt() * scale).collect()
    }
}

/// Turns the pairs of each head by its place.
fn turned(llama: &Llama, place: usize, row: &Row) -> Row {
    let half = llama.head_width / 2;
    let of_head = |head: &[f64]| -> Row {
        let turn = |index: usize| {
            let pair = index % half;
            let angle = place as f64 * llama.rope_theta.powf(-2.0 * pair as f64 / llama.head_width as f64);
            let other = if index < half { -head[index + half] } else { head[index - half] };
            head[index] * angle.cos() + other * angle.sin()
        };
        (0..head.len()).map(turn).collect()
    };
    row.chunks(llama.head_width).flat_map(of_head).collect()
}

/// What a token at the end of these keys sees: each head on its own.
fn attention(llama: &Llama, heads: usize, query: &Row, keys: &[Row], values: &[Row]) -> Row {
    let width = llama.head_width;
    let mut seen = vec![];
    for head in 0..heads {
        let shared = head / (heads / llama.kv_heads) * width;
        let query = &query[head * width..][..width];
        let fit = |key: &Row| {
            let product: f64 = query.iter().zip(&key[shared..]).map(|(query, key)| query * key).sum();
            (product / (width as f64).sqrt()).exp()
        };
        let fits: Row = keys.iter().map(fit).collect();
        let total: f64 = fits.iter().sum();
        let mean = |index: usize| {
            let weighted = fits.iter().zip(values).map(|(fit, value)| fit / total * value[shared + index]);
            weighted.sum::<f64>()
        };
        seen.extend((0..width).map(mean));
    }
    seen
}

/// The outputs for one text, token by token.
fn plain(net: &Transformer, llama: &Llama, weights: &Named, tokens: &[u32]) -> Vec<Row> {
    let table = &weights.0["model.embed_tokens.weight"];
    let mut rows: Vec<Row> =
        tokens.iter().map(|&token| table[token as usize * net.width..][..net.width].to_vec()).collect();
    let add = |row: &mut Row, added: Row| row.iter_mut().zip(added).for_each(|(value, more)| *value += more);
    for block in 0..net.layers {
        let layer = |name: &str| format!("model.layers.{block}.{name}");
        let (mut keys, mut values) = (vec![], vec![]);
        for (place, row) in rows.iter_mut().enumerate() {
            let normal = weights.norm(&layer("input_layernorm"), llama.norm_epsilon, row);
            let project = |name: &str| weights.dense(&layer(&format!("self_attn.{name}_proj")), &normal);
            keys.push(turned(llama, place, &project("k")));
            values.push(project("v"));
            let seen = attention(llama, net.heads, &turned(llama, place, &project("q")), &keys, &values);
            add(row, weights.dense(&layer("self_attn.o_proj"), &seen));
            let normal = weights.norm(&layer("post_attention_layernorm"), llama.norm_epsilon, row);
            let gate = weights.dense(&layer("mlp.gate_proj"), &normal);
            let up = weights.dense(&layer("mlp.up_proj"), &normal);
            let inner = gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
            add(row, weights.dense(&layer("mlp.down_proj"), &inner));
        }
    }
    let head = if llama.tied_embeddings { "model.embed_tokens" } else { "lm_head" };
    rows.iter().map(|row| weights.dense(head, &weights.norm("model.norm", llama.norm_epsilon, row))).collect()
}

#[test]
fn outputs_are_those_of_plain_loops() {
    for (llama, layer_count) in [
        (LLAMA, 2),
        (Llama { tied_embeddings: true, qkv_biases: true, ..LLAMA }, 2),
        (Llama { kv_heads: 4, head_width: 4, ..LLAMA }, 1),
        (Llama { kv_heads: 1, ..LLAMA }, 1),
    ] {
        let net = Transformer { layers: layer_count, ..net(llama) };
        let architecture = Architecture::Transformer(net);
        let parameters: Vec<f32> = numbers(architecture.manifest().parameter_count(), 3)
            .into_iter()
            .map(|value| 0.5 * value)
            .collect();
        let tokens: Vec<u32> = numbers(18, 7).iter().map(|value| ((value + 1.0) * 9.9) as u32).collect();
        let inputs = Inputs::Tokens { tokens: tokens.clone(), count: 2 };
        let found = Burn::cpu().outputs(&architecture, &parameters, &inputs);
        let weights = Named::of(net, &parameters);
        let expected = tokens.chunks(9).flat_map(|text| plain(&net, &llama, &weights, text)).flatten();
        let mut largest = 0.0f64;
        for (found, expected) in found.iter().zip(expected) {
            let error = (f64::from(*found) - expected).abs();
            assert!(error < 1e-5, "{found} and {expected}");
            largest = largest.max(expected.abs());
        }
        assert!(found.len() == 2 * 9 * 20 && largest > 0.5, "{largest}");
    }
}

fn deep() -> DeepBackend {
    Some(Arc::new(Burn::cpu()))
}

fn book() -> Vec<u8> {
    "It is a truth universally acknowledged. ".repeat(30).into_bytes()
}

/// A text, and a LLaMA that was trained before.
fn prepared() -> (DataBytes, BaseModel) {
    let transformer = Transformer { vocabulary: VOCABULARY, ..net(Llama { tied_embeddings: true, ..LLAMA }) };
    let count = Architecture::Transformer(transformer).manifest().parameter_count();
    let mut parameters = vec![0.0; count];
    Architecture::Transformer(transformer).initial(5, &mut parameters);
    let base = BaseModel { transformer, parameters };
    (prepare(TextTokens::Bytes(&book()), Some(&base)).unwrap().into(), base)
}

fn run(model: &str) -> RunFile {
    let text = format!(
        "epochs = 2\nbatch = 24\nseed = 3\n[data]\nfile = \"book\"\n[optimizer]\nrate = 0.02\n[model]\ncontext = 8\n{model}"
    );
    RunFile::parse(&text).unwrap()
}

#[test]
fn swarms_train_it() {
    let (prepared, _) = prepared();
    let sizes = "kind = \"llama\"\nlayers = 1\nwidth = 16\nheads = 4\nkv_heads = 2";
    for (model, data, peers) in [
        (sizes, DataBytes::from(book()), &[1, 2, 4][..]),
        ("kind = \"llama\"", prepared.clone(), &[4]),
        ("kind = \"llama\"\nlora = 2", prepared, &[1, 4]),
    ] {
        let workload = Workload::deep(&run(model), "book", data, &deep()).unwrap();
        for &peers in peers {
            let outcome = Simulation::new(&Scenario::new("llama", peers, workload.clone()), 1).run();
            assert_eq!(outcome.violations, [], "{model}: {peers} peers");
            assert!(outcome.plain_loss_error.unwrap() < 1e-5, "{model}: {:?}", outcome.plain_loss_error);
        }
    }
}

#[test]
fn one_that_was_trained_before_goes_on() {
    let (data, base) = prepared();
    let of = |model: &str| resolve(&run(model), "book", &data);
    let task = |specification: &Specification| {
        specification.load_within(&data, MemoryLimit::default(), &deep()).unwrap().task
    };
    let whole = of("kind = \"llama\"").unwrap();
    let adapted = of("kind = \"llama\"\nlora = 2").unwrap();
    assert_eq!(Specification::parse(&adapted.to_bytes().unwrap()).unwrap(), adapted);
    let count = adapted.manifest().parameter_count();
    assert_eq!(count, 2 * 2 * ((16 + 24) + 2 * (16 + 12) + (24 + 16) + 3 * (16 + 20)));
    let (mut large, mut small) = (vec![f32::NAN; base.parameters.len()], vec![f32::NAN; count]);
    task(&whole).initial(3, &mut large);
    task(&adapted).initial(3, &mut small);
    assert_eq!(large, base.parameters, "it may see fewer tokens at once, and has no table of places");
    assert_eq!(task(&adapted).evaluate(&small), task(&whole).evaluate(&large));
    let written = write_run_file("book", &data, None).unwrap().text;
    let run = RunFile::parse(&written).unwrap();
    assert!(written.contains("kind = \"llama\"") && run.model.lora == Some(8), "{written}");
    resolve(&run, "book", &data).unwrap();
    for (model, words) in [
        ("kind = \"gpt\"", "`model.kind`: the model in the data file is a \"llama\", not a \"gpt\""),
        ("kind = \"llama\"\nkv_heads = 4", "`model.kv_heads`: the model in the data file has 2, not 4"),
        ("kind = \"llama\"\nhidden_width = 24", "the model in the data file has 20, not 24"),
    ] {
        let error = of(model).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
