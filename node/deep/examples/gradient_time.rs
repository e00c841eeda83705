//! How long a gradient of a deep network takes, alone: `gradient_time cnn|gpt|llama THREADS SECONDS [gpu]` prints a line of JSON.
//!
//! The networks `cnn` and `gpt` are those of `bench/deep.py`, which measures a whole peer and PyTorch.

#![allow(clippy::unwrap_used, reason = "a measurement that cannot start has no answer")]
#![allow(clippy::disallowed_methods, reason = "it measures time")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use peergrad_deep::Burn;
use peergrad_models::data::bytes::DataBytes;
use peergrad_models::data::dataset::{Dataset, Samples};
use peergrad_models::data::labels::Labels;
use peergrad_models::deep::convolutional::PictureShape;
use peergrad_models::deep::pictures::PictureSamples;
use peergrad_models::deep::task::DeepSamples;
use peergrad_models::deep::text::{TextLayout, TextSamples, TokenKind};
use peergrad_models::deep::{Architecture, ConvolutionalNet, DeepTask, Family, Llama, Transformer};
use peergrad_models::task::Task as _;

#[global_allocator]
static HEAP: mimalloc::MiMalloc = mimalloc::MiMalloc;

const LAYERS: [&str; 8] = ["conv 32 3", "relu", "pool 2", "conv 64 3", "relu", "pool 2", "dense 128", "relu"];

/// 64 pictures or 16 texts, whose values do not matter.
fn task(name: &str, burn: Burn) -> (DeepTask, u32) {
    if name == "cnn" {
        let shape = PictureShape { channels: 1, height: 28, width: 28 };
        let net = ConvolutionalNet::new(shape, &LAYERS.map(|text| text.parse().unwrap()), 10).unwrap();
        let value = |index: usize| ((index * 7919) % 1000) as f32 / 500.0 - 1.0;
        let training = Samples {
            features: (0..64 * shape.values()).map(value).collect(),
            columns: shape.values(),
            labels: Labels::Classes((0..64).map(|index| index % 10).collect()),
        };
        let dataset = Dataset { held_out: training.clone(), training };
        let samples =
            DeepSamples::Pictures { pictures: PictureSamples::Table(dataset), shape, changes: vec![] };
        return (DeepTask::new(Architecture::Convolutional(net), samples, 1, Arc::new(burn)), 64);
    }
    let family = if name == "llama" { Family::Llama(Llama::new(128, 4)) } else { Family::Gpt2 };
    let net =
        Transformer { layers: 4, width: 128, heads: 4, context: 128, vocabulary: 256, dropout: 0.0, family };
    let text: Vec<u8> = (0..=16 * 128).map(|index: usize| (index * 31) as u8).collect();
    let layout = TextLayout { tokens: TokenKind::Bytes, context: 128 };
    let samples = DeepSamples::Text(TextSamples::new(DataBytes::from(text), layout, 0));
    (DeepTask::new(Architecture::Transformer(net), samples, 1, Arc::new(burn)), 16)
}

fn burn(device: Option<&str>) -> Burn {
    match device {
        None => Burn::cpu(),
        #[cfg(feature = "wgpu")]
        Some("gpu") => Burn::gpu().unwrap().0,
        Some(_) => panic!("a device is nothing, or gpu with the feature `wgpu`"),
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, name, threads, seconds, device @ ..] = arguments.as_slice() else {
        panic!("cnn|gpt|llama THREADS SECONDS [gpu]")
    };
    let (task, count) = task(name, burn(device.first().map(String::as_str)));
    let samples: Vec<u32> = (0..count).collect();
    let mut parameters = vec![0.0; task.manifest().parameter_count()];
    task.initial(1, &mut parameters);
    let mut gradient = parameters.clone();
    let pool = rayon_core::ThreadPoolBuilder::new().num_threads(threads.parse().unwrap()).build().unwrap();
    let limit = Duration::from_secs_f64(seconds.parse().unwrap());
    let mut times = vec![];
    let begin = Instant::now();
    while begin.elapsed() < limit || times.len() < 3 {
        let started = Instant::now();
        pool.install(|| task.gradient(&parameters, &samples, &mut gradient));
        times.push(1e3 * started.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    println!("{{\"milliseconds\": {:.3}, \"steps\": {}}}", times[times.len() / 2], times.len());
}
