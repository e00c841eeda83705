//! Gradients of deep networks: right by finite differences, equal to those of the dense networks where both can compute them, the same bits
//! whatever the number of threads, and the same sums however a batch is cut.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the answer")]

use peergrad_deep::Burn;
use peergrad_models::data::bytes::DataBytes;
use peergrad_models::data::dataset::{Dataset, Samples};
use peergrad_models::data::labels::Labels;
use peergrad_models::deep::convolutional::PictureShape;
use peergrad_models::deep::pictures::PictureSamples;
use peergrad_models::deep::task::DeepSamples;
use peergrad_models::deep::text::{TextLayout, TextSamples, TokenKind};
use peergrad_models::deep::{
    Architecture, Backend, ConvolutionalNet, DeepTask, Family, Inputs, Llama, Piece, Targets, Transformer,
};
use peergrad_models::task::activation::Activation;
use peergrad_models::task::loss::Loss;
use peergrad_models::task::network::Network;
use peergrad_models::task::supervised::Supervised;
use peergrad_models::task::{KnownGradient, StepInfo, Task};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

/// Numbers between -1 and 1.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| generator.next_u32() as f32 / u32::MAX as f32 * 2.0 - 1.0).collect()
}

fn convolutional(layers: &[&str]) -> (Architecture, Piece) {
    let shape = PictureShape { channels: 2, height: 8, width: 8 };
    let layers: Vec<_> = layers.iter().map(|text| text.parse().unwrap()).collect();
    let net = ConvolutionalNet::new(shape, &layers, 3).unwrap();
    let piece = Piece {
        inputs: Inputs::Pictures { values: numbers(5 * shape.values(), 1), count: 5 },
        targets: Targets::Classes(vec![0, 1, 2, 1, 0]),
        weight: 1.0,
        seeds: vec![1, 2, 3, 4, 5],
    };
    (Architecture::Convolutional(net), piece)
}

fn transformer(dropout: f32, family: Family) -> (Architecture, Piece) {
    let net = Transformer { layers: 2, width: 16, heads: 4, context: 12, vocabulary: 20, dropout, family };
    let tokens =
        |seed| numbers(36, seed).iter().map(|value| ((value + 1.0) * 9.9) as u32).collect::<Vec<_>>();
    let piece = Piece {
        inputs: Inputs::Tokens { tokens: tokens(1), count: 3 },
        targets: Targets::Classes(tokens(2)),
        weight: 1.0 / 12.0,
        seeds: vec![7, 8, 9],
    };
    (Architecture::Transformer(net), piece)
}

/// Two heads share a key, and heads are not a part of the width.
const LLAMA: Llama = Llama {
    kv_heads: 2,
    head_width: 6,
    hidden_width: 20,
    rope_theta: 100.0,
    norm_epsilon: 1e-5,
    tied_embeddings: false,
    qkv_biases: false,
};

fn gradient(architecture: &Architecture, parameters: &[f32], pieces: &[Piece]) -> (f64, Vec<f32>) {
    gradient_in_parts(architecture, parameters, pieces, None)
}

fn gradient_in_parts(
    architecture: &Architecture,
    parameters: &[f32],
    pieces: &[Piece],
    finished: Option<&mut KnownGradient<'_>>,
) -> (f64, Vec<f32>) {
    let mut gradient = vec![f32::NAN; parameters.len()];
    let piece = |index: usize| pieces[index].clone();
    let loss = Burn::cpu().gradient(architecture, parameters, pieces.len(), &piece, &mut gradient, finished);
    (loss, gradient)
}

/// First values that are not as symmetric as those of a run: every parameter matters.
fn parameters(architecture: &Architecture) -> Vec<f32> {
    let mut parameters = vec![0.0; architecture.manifest().parameter_count()];
    architecture.initial(3, &mut parameters);
    let noise = numbers(parameters.len(), 5);
    parameters.iter_mut().zip(noise).for_each(|(value, noise)| *value += 0.1 * noise);
    parameters
}

/// The slope along each tensor's gradient must be its squared length.
#[track_caller]
fn assert_slopes((architecture, piece): &(Architecture, Piece)) {
    let at = parameters(architecture);
    let (_, found) = gradient(architecture, &at, std::slice::from_ref(piece));
    let is_statistic = |name: &str| name.contains("running_");
    for (tensor, range) in architecture.manifest().tensors().filter(|(tensor, _)| !is_statistic(&tensor.name))
    {
        let own = &found[range.clone()];
        let length = own.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        assert!(length > 0.0, "{} has no gradient", tensor.name);
        let moved = |by: f64| {
            let mut moved = at.clone();
            for (value, slope) in moved[range.clone()].iter_mut().zip(own) {
                *value += (by * f64::from(*slope) / length) as f32;
            }
            gradient(architecture, &moved, std::slice::from_ref(piece)).0
        };
        let step = 3e-3;
        let slope = (moved(step) - moved(-step)) / (2.0 * step);
        let error = (slope - length).abs();
        assert!(error < 0.02 * length + 2e-3, "{}: {slope} along a gradient of length {length}", tensor.name);
    }
}

#[test]
fn gradients_are_slopes() {
    assert_slopes(&convolutional(&["conv 8 3", "norm 4", "tanh", "average-pool 2", "dense 6", "gelu"]));
    assert_slopes(&convolutional(&["conv 8 3 stride 2", "gelu", "conv 4 2 padding 0", "tanh", "mean"]));
    assert_slopes(&convolutional(&[
        "conv 8 3",
        "tanh",
        "pool 2",
        "dropout 0.3",
        "dense 6",
        "tanh",
        "dropout 0.2",
    ]));
    assert_slopes(&transformer(0.0, Family::Gpt2));
    assert_slopes(&transformer(0.1, Family::Gpt2));
    assert_slopes(&transformer(0.0, Family::Llama(LLAMA)));
    let relative = Llama { tied_embeddings: true, qkv_biases: true, ..LLAMA };
    assert_slopes(&transformer(0.1, Family::Llama(relative)));
}

#[test]
fn residual_blocks_have_gradients() {
    assert_slopes(&convolutional(&["conv 8 3", "tanh", "block 8", "block 16 stride 2", "mean"]));
    assert_slopes(&convolutional(&["batch-norm", "conv 8 3", "tanh", "block 12 batch-norm", "mean"]));
}

#[test]
fn a_batch_norm_measures_what_it_normalizes() {
    let (architecture, piece) = convolutional(&["batch-norm", "dense 3"]);
    let mut at = vec![0.0; architecture.manifest().parameter_count()];
    architecture.initial(3, &mut at);
    let (_, found) = gradient(&architecture, &at, &[piece.clone(), piece.clone()]);
    let of = |name: &str| {
        let manifest = architecture.manifest();
        let range = manifest.tensors().find(|(tensor, _)| tensor.name == name).unwrap().1;
        found[range].iter().map(|sum| f64::from(*sum) / 10.0).collect::<Vec<_>>()
    };
    let Inputs::Pictures { values, count } = &piece.inputs else { panic!("they are pictures") };
    let channels = of("0.running_mean").len();
    let per_channel = values.len() / count / channels;
    for channel in 0..channels {
        let own = values
            .chunks(per_channel)
            .skip(channel)
            .step_by(channels)
            .flatten()
            .map(|value| f64::from(*value));
        let (sum, squares, number) = own.fold((0.0, 0.0, 0.0), |(sum, squares, number), value| {
            (sum + value, squares + value * value, number + 1.0)
        });
        let mean = sum / number;
        let variance = (squares - number * mean * mean) / (number - 1.0);
        assert!((of("0.running_mean")[channel] - 0.1 * mean).abs() < 1e-6, "a tenth of the way from 0");
        assert!((of("0.running_var")[channel] - (0.9 + 0.1 * variance)).abs() < 1e-6, "and from 1");
    }
    // In an evaluation they take the place of what is measured.
    let outputs = |mean: f32| {
        let mut moved = at.clone();
        let range =
            architecture.manifest().tensors().find(|(tensor, _)| tensor.name == "0.running_mean").unwrap().1;
        moved[range].fill(mean);
        Burn::cpu().outputs(&architecture, &moved, &piece.inputs)
    };
    assert_ne!(outputs(0.0), outputs(0.5));
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let cases = [
        convolutional(&["conv 32 3", "relu", "pool 2", "dense 64", "relu"]),
        transformer(0.2, Family::Gpt2),
        transformer(0.0, Family::Llama(LLAMA)),
    ];
    for case in cases {
        let (architecture, piece) = &case;
        let at = parameters(architecture);
        let on = |threads| {
            let pool = rayon_core::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| gradient(architecture, &at, &vec![piece.clone(); 11]))
        };
        let one = on(1);
        for threads in [2, 4] {
            let found = on(threads);
            assert_eq!(found.0.to_bits(), one.0.to_bits());
            assert!(found.1 == one.1, "{threads} threads");
        }
    }
}

/// The elements that a gradient hands out while it is being computed are those that it has in the end.
#[test]
fn a_gradient_is_known_from_the_last_layer_on() {
    let tied = Llama { tied_embeddings: true, ..LLAMA };
    let cases = [
        convolutional(&["conv 8 3", "relu", "pool 2", "dense 6", "relu"]),
        convolutional(&["conv 8 3", "batch-norm", "tanh", "block 12 batch-norm", "mean"]),
        transformer(0.2, Family::Gpt2),
        transformer(0.0, Family::Llama(LLAMA)),
        transformer(0.0, Family::Llama(tied)),
    ];
    for (architecture, piece) in &cases {
        let at = parameters(architecture);
        // Eight pieces are computed at once. On a thread alone, only the last four of them go through one stage after the other.
        for (count, threads) in [(1, 1), (8, 1), (8, 2), (11, 2)] {
            let pool = rayon_core::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut told = vec![];
            let pieces = vec![piece.clone(); count];
            let (loss, in_parts) = pool.install(|| {
                let mut finished = |loss: f64, known: &[f32]| told.push((loss, known.to_vec()));
                gradient_in_parts(architecture, &at, &pieces, Some(&mut finished))
            });
            let (whole_loss, gradient) = gradient(architecture, &at, &pieces);
            assert!(loss.to_bits() == whole_loss.to_bits() && in_parts == gradient);
            let stages = architecture.stages();
            assert_eq!(told.len(), stages.len());
            let lengths: Vec<usize> = architecture.tensors().iter().map(|tensor| tensor.len()).collect();
            for (stage, (loss_told, known)) in stages.iter().zip(&told) {
                assert_eq!(loss_told.to_bits(), loss.to_bits());
                assert_eq!(known.len(), lengths[..stage.end].iter().sum::<usize>());
                assert!(known[..] == gradient[..known.len()]);
            }
        }
    }
}

/// A network without convolutions is one of the built-in dense networks.
#[test]
fn dense_layers_are_those_of_the_dense_network() {
    let samples = |rows: usize| Samples {
        features: numbers(rows * 16, 1),
        columns: 16,
        labels: Labels::Classes((0..rows as u32).map(|row| row % 3).collect()),
    };
    let dataset = Dataset { training: samples(20), held_out: samples(7) };
    let network = Network::new(&[16, 12, 3], Activation::Tanh, Loss::SoftmaxCrossEntropy);
    let dense = Supervised::new(network, dataset.clone());
    let shape = PictureShape { channels: 1, height: 4, width: 4 };
    let layers = ["dense 12", "tanh"].map(|text| text.parse().unwrap());
    let net = Architecture::Convolutional(ConvolutionalNet::new(shape, &layers, 3).unwrap());
    let samples = DeepSamples::Pictures { pictures: PictureSamples::Table(dataset), shape, changes: vec![] };
    let deep = DeepTask::new(net, samples, 1, Arc::new(Burn::cpu()));
    let at = numbers(deep.manifest().parameter_count(), 9);
    let all: Vec<u32> = (0..20).collect();
    let of = |task: &dyn Task, at: &[f32]| {
        let mut gradient = vec![0.0; at.len()];
        let loss = task.gradient(at, &all, &mut gradient);
        (loss, gradient, task.evaluate(at))
    };
    // A deep network has the tensors of its last layer first.
    let first_layer = 16 * 12 + 12;
    let mut turned = at.clone();
    turned.rotate_left(first_layer);
    let (expected, mut found) = (of(&dense, &at), of(&deep, &turned));
    found.1.rotate_right(first_layer);
    assert!((found.0 / expected.0 - 1.0).abs() < 1e-6, "{} {}", found.0, expected.0);
    assert!(found.1.iter().zip(&expected.1).all(|(found, expected)| (found - expected).abs() < 2e-5));
    assert_eq!((found.2.samples, found.2.accuracy), (expected.2.samples, expected.2.accuracy));
    assert!((found.2.loss - expected.2.loss).abs() < 1e-6);
}

/// Dropout depends on the sample and the epoch, and not on who computes the sample or beside which others.
#[test]
fn parts_of_a_batch_add_up_with_dropout() {
    let (architecture, _) = transformer(0.3, Family::Gpt2);
    let Architecture::Transformer(net) = architecture else { panic!("it is one") };
    let net = Transformer { vocabulary: 256, ..net };
    let layout = TextLayout { tokens: TokenKind::Bytes, context: net.context };
    let text: Vec<u8> = (0..=255).cycle().take(20 * net.context + 1).collect();
    let samples = DeepSamples::Text(TextSamples::new(DataBytes::from(text), layout, 4));
    let task = DeepTask::new(Architecture::Transformer(net), samples, 5, Arc::new(Burn::cpu()));
    assert_eq!((task.sample_count(), task.held_out_count()), (16, 4));
    let at = parameters(&Architecture::Transformer(net));
    let of = |epoch, samples: &[u32]| {
        let mut gradient = vec![0.0; at.len()];
        let loss = task.contribute(&StepInfo::alone(0, epoch, 0.1), &at, samples, &mut gradient);
        (loss, gradient)
    };
    let all: Vec<u32> = (0..16).collect();
    let (loss, whole) = of(3, &all);
    let (first, second) = (of(3, &all[..5]), of(3, &all[5..]));
    assert!((loss - first.0 - second.0).abs() < 1e-5 * loss);
    let parts = first.1.iter().zip(&second.1).map(|(first, second)| first + second);
    assert!(whole.iter().zip(parts).all(|(whole, sum)| (whole - sum).abs() < 1e-5));
    assert_ne!(of(4, &all).0, loss, "another epoch draws other factors");
    let none = of(3, &[]);
    assert!(none.0 == 0.0 && none.1.iter().all(|&slope| slope == 0.0));
}
