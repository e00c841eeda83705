//! Deep networks on a GPU compute what they compute on the processor. Without a GPU these tests say so, and check nothing: Mesa's lavapipe,
//! a GPU in software, is enough (in Debian `apt install mesa-vulkan-drivers`).

#![allow(clippy::unwrap_used, reason = "in a test a panic is the answer")]

use std::sync::Arc;

use peergrad_config::specification::memory::MemoryLimit;
use peergrad_config::specification::{DeepBackend, RunFile, resolve};
use peergrad_deep::{Burn, NoGpu};
use peergrad_models::data::embedded::{DIGITS, embedded};
use peergrad_models::deep::convolutional::PictureShape;
use peergrad_models::deep::{
    Architecture, Backend, ConvolutionalNet, Family, Inputs, Llama, Piece, Targets, Transformer,
};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// The GPU; `None` if there is none.
fn gpu() -> Option<Burn> {
    match Burn::gpu() {
        Ok((burn, name)) => {
            eprintln!("computing on {name}");
            Some(burn)
        }
        Err(NoGpu::Missing(reason)) => {
            eprintln!("nothing is checked: there is no GPU here ({reason})");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Numbers between -1 and 1.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| generator.next_u32() as f32 / u32::MAX as f32 * 2.0 - 1.0).collect()
}

fn convolutional(layers: &[&str]) -> (Architecture, Vec<Piece>) {
    let shape = PictureShape { channels: 2, height: 12, width: 12 };
    let layers: Vec<_> = layers.iter().map(|text| text.parse().unwrap()).collect();
    let net = ConvolutionalNet::new(shape, &layers, 3).unwrap();
    let piece = |number: u64, count: usize| Piece {
        inputs: Inputs::Pictures { values: numbers(count * shape.values(), number), count },
        targets: Targets::Classes((0..count as u32).map(|row| (row + number as u32) % 3).collect()),
        weight: 1.0,
        seeds: (0..count as u64).map(|row| 100 * number + row).collect(),
    };
    let mut pieces: Vec<_> = (0..10).map(|number| piece(number, 5)).collect();
    pieces.push(piece(10, 2));
    (Architecture::Convolutional(net), pieces)
}

fn transformer(family: Family) -> (Architecture, Vec<Piece>) {
    let net =
        Transformer { layers: 2, width: 32, heads: 4, context: 16, vocabulary: 40, dropout: 0.1, family };
    let tokens =
        |seed| numbers(48, seed).iter().map(|value| ((value + 1.0) * 19.9) as u32).collect::<Vec<_>>();
    let piece = |number: u64| Piece {
        inputs: Inputs::Tokens { tokens: tokens(2 * number), count: 3 },
        targets: Targets::Classes(tokens(2 * number + 1)),
        weight: 1.0 / 16.0,
        seeds: vec![7 * number, 7 * number + 1, 7 * number + 2],
    };
    (Architecture::Transformer(net), (0..3).map(piece).collect())
}

/// First values that are not as symmetric as those of a run: every parameter matters.
fn parameters(architecture: &Architecture) -> Vec<f32> {
    let mut parameters = vec![0.0; architecture.manifest().parameter_count()];
    architecture.initial(3, &mut parameters);
    let noise = numbers(parameters.len(), 5);
    parameters.iter_mut().zip(noise).for_each(|(value, noise)| *value += 0.1 * noise);
    parameters
}

fn gradient(burn: &Burn, architecture: &Architecture, at: &[f32], pieces: &[Piece]) -> (f64, Vec<f32>) {
    let mut gradient = vec![f32::NAN; at.len()];
    let piece = |index: usize| pieces[index].clone();
    (burn.gradient(architecture, at, pieces.len(), &piece, &mut gradient), gradient)
}

/// The length of the difference, as a share of the length of `expected`.
fn error(found: &[f32], expected: &[f32]) -> f64 {
    let length =
        |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let differences = found.iter().zip(expected).map(|(found, expected)| f64::from(found - expected));
    length(&mut differences.into_iter()) / length(&mut expected.iter().map(|&value| f64::from(value)))
}

#[track_caller]
fn assert_equal(gpu: &Burn, (architecture, pieces): &(Architecture, Vec<Piece>)) {
    let cpu = Burn::cpu();
    let at = parameters(architecture);
    let expected = gradient(&cpu, architecture, &at, pieces);
    let found = gradient(gpu, architecture, &at, pieces);
    assert!((found.0 / expected.0 - 1.0).abs() < 1e-4, "loss {} and {}", found.0, expected.0);
    for (tensor, range) in architecture.manifest().tensors() {
        let error = error(&found.1[range.clone()], &expected.1[range]);
        assert!(error < 1e-4, "{}: {error}", tensor.name);
    }
    let again = gradient(gpu, architecture, &at, pieces);
    assert!(again == found, "the GPU computes the same bits each time");
    let inputs = &pieces[0].inputs;
    let [found, expected] = [gpu, &cpu].map(|burn| burn.outputs(architecture, &at, inputs));
    assert!(error(&found, &expected) < 1e-4);
    let none = gradient(gpu, architecture, &at, &[]);
    assert!(none.0 == 0.0 && none.1.iter().all(|&slope| slope == 0.0));
}

#[test]
fn gradients_are_those_of_the_processor() {
    let Some(gpu) = gpu() else { return };
    assert_equal(&gpu, &convolutional(&["conv 8 3", "relu", "pool 2", "dropout 0.2", "dense 16", "gelu"]));
    assert_equal(&gpu, &convolutional(&["conv 8 3 stride 2", "tanh", "norm 4", "average-pool 2"]));
    assert_equal(&gpu, &convolutional(&["conv 8 3", "relu", "block 8", "block 16 stride 2", "mean"]));
    assert_equal(&gpu, &transformer(Family::Gpt2));
    let llama = Llama { kv_heads: 2, ..Llama::new(32, 4) };
    assert_equal(&gpu, &transformer(Family::Llama(llama)));
}

/// Several threads may ask at once, as those that evaluate do.
#[test]
fn threads_take_turns() {
    let Some(gpu) = gpu() else { return };
    let (architecture, pieces) = convolutional(&["conv 8 3", "relu", "mean"]);
    let at = parameters(&architecture);
    let alone = gradient(&gpu, &architecture, &at, &pieces);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!(gradient(&gpu, &architecture, &at, &pieces) == alone));
        }
    });
}

#[test]
fn training_goes_as_on_the_processor() {
    let Some(gpu) = gpu() else { return };
    let settings = "seed = 3\n[data]\nfile = \"digits\"\n[model]\nkind = \"cnn\"\nlayers = [\"conv 8 3\", \"relu\", \"pool 2\", \"dropout 0.1\"]";
    let digits = embedded(DIGITS).unwrap();
    let specification = resolve(&RunFile::parse(settings).unwrap(), DIGITS, digits).unwrap();
    let losses = |burn: Burn| {
        let deep: DeepBackend = Some(Arc::new(burn));
        let task = specification.load_within(&digits.into(), MemoryLimit::default(), &deep).unwrap().task;
        let mut parameters = vec![0.0; specification.manifest().parameter_count()];
        let mut gradient = parameters.clone();
        task.initial(3, &mut parameters);
        let step = |step: u32| {
            let samples: Vec<u32> = (step * 64..(step + 1) * 64).map(|at| at % task.sample_count()).collect();
            let loss = task.gradient(&parameters, &samples, &mut gradient) / samples.len() as f64;
            let rate = 0.2 / samples.len() as f32;
            parameters.iter_mut().zip(&gradient).for_each(|(value, slope)| *value -= rate * slope);
            loss
        };
        let losses: Vec<f64> = (0..50).map(step).collect();
        (losses, task.evaluate(&parameters))
    };
    let (found, expected) = (losses(gpu), losses(Burn::cpu()));
    let apart = found.0.iter().zip(&expected.0).map(|(found, expected)| (found - expected).abs());
    let apart = apart.fold(0.0, f64::max);
    eprintln!("losses from {} to {}, at most {apart:e} apart", expected.0[0], expected.0[49]);
    assert!(expected.0[49] < 0.5 * expected.0[0] && apart < 1e-4);
    assert!((found.1.loss - expected.1.loss).abs() < 1e-4);
}
