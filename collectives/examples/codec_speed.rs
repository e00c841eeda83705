//! How fast codecs are on this machine, one thread, in GB/s of f32 elements:
//! `cargo run --release -p peergrad-collectives --example codec_speed`.
//!
//! The elements of a segment fit into a core's own cache, as they do when a round has just packed or received them. Each
//! number is the best of many runs, for a machine that has other things to do as well.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;

use peergrad_collectives::codec::{Codec, TopK, Values};
use peergrad_collectives::plan::ShardLayout;
use peergrad_collectives::residual::Residual;
use peergrad_protocol::limits::SEGMENT_ELEMENTS;
use peergrad_protocol::{Pool, StepNumber};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

fn main() {
    let mut generator = ChaCha8Rng::seed_from_u64(1);
    // Sums of four even numbers, which are roughly normal, as gradients are.
    let mut even = || generator.next_u32() as f32 / u32::MAX as f32 - 0.5;
    let elements: Vec<f32> =
        (0..SEGMENT_ELEMENTS).map(|_| (even() + even() + even() + even()) * 1e-3).collect();

    println!(
        "{:<22} {:>12} {:>8} {:>8} {:>8} {:>13}",
        "GB/s", "bytes/f32", "encode", "in place", "decode", "with residual"
    );
    for (name, codec) in [
        ("f32", Codec::F32),
        ("bf16", Codec::Bf16),
        ("f16", Codec::F16),
        ("int8", Codec::Int8),
        ("top-k, 1 in 10, bf16", top_k(10, Values::Bf16)),
        ("top-k, 1 in 100, bf16", top_k(100, Values::Bf16)),
        ("top-k, 1 in 100, f32", top_k(100, Values::F32)),
    ] {
        let mut bytes = vec![0; codec.encoded_len(elements.len())];
        let mut decoded = elements.clone();
        let encode = best(|| codec.encode(black_box(&elements), &mut bytes));
        let decode = best(|| codec.decode(black_box(&bytes), &mut decoded).expect("what was encoded"));
        let mut changed = elements.clone();
        let in_place = best(|| codec.encode_in_place(black_box(&mut changed), &mut bytes));
        changed.copy_from_slice(&elements);
        let layout = ShardLayout::even(elements.len(), 1, &[0], elements.len());
        let mut residual = Residual::new(elements.len(), Pool::new(3));
        residual.begin(StepNumber(0));
        let segment = &layout.shard(0).segments()[0];
        let with_residual =
            best(|| residual.encode(codec, segment, black_box(&elements), &mut changed, &mut bytes));
        let speed = |time: Duration| size_of_val(&*elements) as f64 / time.as_secs_f64() / 1e9;
        println!(
            "{name:<22} {:>12.4} {:>8.1} {:>8.1} {:>8.1} {:>13.1}",
            bytes.len() as f64 / elements.len() as f64,
            speed(encode),
            speed(in_place),
            speed(decode),
            speed(with_residual)
        );
    }
}

fn top_k(one_in: u32, values: Values) -> Codec {
    Codec::TopK(TopK { one_in: NonZeroU32::new(one_in).expect("not zero"), values })
}

/// The shortest of many runs.
fn best(mut run: impl FnMut()) -> Duration {
    (0..2000)
        .map(|_| {
            let start = now();
            run();
            start.elapsed()
        })
        .min()
        .expect("some runs")
}

// This program is about time; the machines that it measures know none.
#[expect(clippy::disallowed_methods)]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}
