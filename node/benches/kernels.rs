//! The inner loops that a step of training consists of, each by itself: `cargo bench -p peergrad`.
//!
//! Numbers of elements are those of one segment for what happens to a segment, and of one model for what happens to a model.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use peergrad_collectives::codec::{Codec, TopK, Values};
use peergrad_collectives::plan::{ShardLayout, are_finite};
use peergrad_collectives::residual::Residual;
use peergrad_models::data::dataset::Samples;
use peergrad_models::data::labels::Labels;
use peergrad_models::optimizer::Optimizer;
use peergrad_models::task::activation::Activation;
use peergrad_models::task::loss::Loss;
use peergrad_models::task::network::Network;
use peergrad_protocol::{Pool, StepNumber};

/// Elements of a segment by default.
const SEGMENT: usize = 32 * 1024;
/// Elements of a vector that no cache holds.
const VECTOR: usize = 1 << 24;

fn codecs() -> [(&'static str, Codec); 5] {
    let one_in = 100.try_into().expect("not zero");
    let top = TopK { one_in, values: Values::Bf16 };
    [
        ("f32", Codec::F32),
        ("bf16", Codec::Bf16),
        ("f16", Codec::F16),
        ("int8", Codec::Int8),
        ("top-k", Codec::TopK(top)),
    ]
}

/// Numbers of both signs and of several sizes.
fn elements(count: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 7919) % 10_007) as f32 / 5_003.0 - 1.0).collect()
}

fn bytes_of(elements: usize) -> Throughput {
    Throughput::Bytes(elements as u64 * 4)
}

/// A segment to bytes and back.
fn codec(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("codec");
    group.throughput(bytes_of(SEGMENT));
    let segment = elements(SEGMENT);
    for (name, codec) in codecs() {
        let mut bytes = vec![0; codec.encoded_len(SEGMENT)];
        group.bench_function(BenchmarkId::new("encode", name), |bencher| {
            bencher.iter(|| codec.encode(black_box(&segment), &mut bytes));
        });
        let mut decoded = vec![0.0; SEGMENT];
        group.bench_function(BenchmarkId::new("decode", name), |bencher| {
            bencher.iter(|| codec.decode(black_box(&bytes), &mut decoded).expect("just encoded"));
        });
    }
}

/// All segments of a contribution, with what was left out before.
fn residual(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("residual");
    group.throughput(bytes_of(VECTOR)).sample_size(10);
    let contribution = elements(VECTOR);
    let layout = ShardLayout::even(VECTOR, 1, &[0], SEGMENT);
    for (name, codec) in codecs() {
        let mut residual = Residual::new(VECTOR, Pool::new(3));
        let mut step = 0;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                residual.begin(StepNumber(step));
                for segment in layout.shard(0).segments() {
                    let mut packed = vec![0.0; segment.len()];
                    let mut bytes = vec![0; codec.encoded_len(segment.len())];
                    residual.encode(codec, segment, &contribution, &mut packed, &mut bytes);
                }
                residual.commit(StepNumber(step));
                step += 1;
            });
        });
    }
}

/// What happens to the elements of a vector on their way.
fn vector(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("vector");
    group.throughput(bytes_of(VECTOR)).sample_size(20);
    let (own, mut sums) = (elements(VECTOR), elements(VECTOR));
    let layout = ShardLayout::even(VECTOR, 1, &[0], SEGMENT);
    group.bench_function("are_finite", |bencher| bencher.iter(|| are_finite(black_box(&own))));
    group.bench_function("add_out", |bencher| {
        bencher.iter(|| {
            for (segment, sums) in layout.shard(0).segments().iter().zip(sums.chunks_mut(SEGMENT)) {
                segment.add_out(black_box(&own), sums);
            }
        });
    });
    let adam = Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };
    let momentum = Optimizer::Momentum { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    for (name, rule) in [("momentum", momentum), ("adam", adam)] {
        let (old, mut new) =
            (vec![0.5; VECTOR * rule.moment_count()], vec![0.0; VECTOR * rule.moment_count()]);
        let update = rule.update(0.001, 5, 1.0);
        let (parameters, mut vector) = (elements(VECTOR), elements(VECTOR));
        group.bench_function(name, |bencher| {
            bencher.iter(|| update.apply(&parameters, black_box(&mut vector), &old, &mut new));
        });
    }
}

/// The gradient of one batch.
fn gradient(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("gradient");
    for (batch, widths) in [(64, &[64, 128, 10][..]), (64, &[784, 256, 10]), (128, &[784, 1024, 1024, 10])] {
        let network = Network::new(widths, Activation::default(), Loss::SoftmaxCrossEntropy);
        let labels = Labels::Classes((0..batch).map(|row| row % 10).collect());
        let features = elements(batch as usize * widths[0]);
        let samples = Samples { features, columns: widths[0], labels };
        let mut parameters = vec![0.0; network.manifest().parameter_count()];
        network.initial(1, &mut parameters);
        let (mut scratch, mut gradient) = (network.scratch(), vec![0.0; parameters.len()]);
        let rows: Vec<u32> = (0..batch).collect();
        group.throughput(Throughput::Elements(batch.into()));
        group.bench_function(format!("{widths:?}"), |bencher| {
            bencher.iter(|| network.gradient(&parameters, &samples, &rows, &mut scratch, &mut gradient));
        });
    }
}

criterion_group!(kernels, codec, residual, vector, gradient);
criterion_main!(kernels);
