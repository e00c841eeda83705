//! A count-min sketch: many machines count the items of one stream, in far fewer counters than there are items.
//!
//! The sketch has 5 lines of 256 counters. An item adds 1 to one counter of each line, which a hash of the line chooses. Items share
//! counters, so each counter is at least the count of each of its items. The smallest of an item's five counters is the estimate.
//! Here 200,000 items of 5000 kinds arrive, of which kind k is 1 / k times as frequent as the first one (Zipf's law).
//!
//! *How it works.* A sample of this task is an item of the stream, and a row of the table is a counter. Each worker leases items, counts them
//! in a sketch of its own, and adds that to the table. The additions of a clock are all in or none of them. So each item counts
//! exactly once, also if peers were killed, and the sketch is the same in every run. Counters are exact up to 2^24, where `f32` ends.
//!
//! ```text
//! cargo run --release -p peergrad-examples --bin count_min -- start
//! cargo run --release -p peergrad-examples --bin count_min -- join pg1...   (what `start` printed; on any machine)
//! ```
//! The run ends with an accuracy of 1 and a loss of 272.08. The accuracy is the share of kinds whose estimate is not below the true count,
//! and above it by at most e * 200,000 / 256 items. The paper guarantees that for each kind with a probability of 1 - e^-5, or 0.993. The loss is
//! the mean difference between estimate and true count, in items.
//!
//! *Reading.* Cormode and Muthukrishnan, *An improved data stream summary: the count-min sketch and its applications*, 2005, theorem 1.

use std::collections::BTreeMap;
use std::f64::consts::E;

use peergrad::prelude::*;
use rand::{SeedableRng, rand_core::Rng, rngs::ChaCha8Rng};

const ITEMS: u32 = 200_000;
const KINDS: u32 = 5000;
const WIDTH: u64 = 256;

/// A factor and an offset of each line's hash, drawn at random once.
const HASHES: [(u64, u64); 5] = [
    (1_348_752_911, 904_120_337),
    (417_690_258, 1_733_094_506),
    (2_061_337_749, 88_451_962),
    (772_915_084, 1_290_667_813),
    (1_605_428_371, 541_908_220),
];

/// The counters of an item: one in each line, by a pairwise independent hash.
fn counters(kind: u32) -> impl Iterator<Item = Row> {
    const PRIME: u64 = (1 << 31) - 1;
    let hash = move |(factor, offset)| (factor * u64::from(kind) + offset) % PRIME % WIDTH;
    HASHES.into_iter().zip(0..).map(move |(pair, line)| line * WIDTH + hash(pair))
}

/// The stream, of which every peer has a copy.
#[derive(Clone)]
struct Stream {
    /// The kind of each item, shape (`ITEMS`).
    kinds: Arc<[u32]>,
}

impl Stream {
    /// The stream that follows from a fixed seed.
    fn new() -> Self {
        let add = |sum: &mut f64, kind: u32| {
            *sum += 1.0 / f64::from(kind);
            Some(*sum)
        };
        let sums: Vec<f64> = (1..=KINDS).scan(0.0, add).collect();
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut kind = || {
            let drawn = f64::from(random.next_u32()) / 2.0_f64.powi(32) * sums[sums.len() - 1];
            sums.partition_point(|sum| *sum <= drawn) as u32
        };
        Self { kinds: (0..ITEMS).map(|_| kind()).collect() }
    }
}

/// The algorithm at one worker.
struct Counting {
    stream: Stream,
}

impl Program for Counting {
    const NAME: &'static str = "counting";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let clock = context.begin_clock().await?;
        if clock.is_over {
            clock.finish();
            clock.parameters().await?;
            return Ok(Flow::Break(()));
        }
        let (samples, kinds) = (Arc::clone(&clock.samples), Arc::clone(&self.stream.kinds));
        let count = samples.len() as u64;
        let rows = clock.compute(count, move || {
            let mut sketch = BTreeMap::<Row, f32>::new();
            let counters = samples.iter().flat_map(|sample| counters(kinds[*sample as usize]));
            counters.for_each(|counter| *sketch.entry(counter).or_default() += 1.0);
            Rows { indices: sketch.keys().copied().collect(), values: sketch.into_values().collect() }
        });
        clock.add(rows.await?).expect("finite numbers, for rows of the table");
        clock.end(SampleStats { samples: count, loss: 0.0 });
        Ok(Flow::Continue(()))
    }
}

/// One table with a counter in each row: its owners apply additions as they arrive, and no worker waits for another one.
fn table_spec(_: &Loaded) -> TableSpec {
    let rows = HASHES.len() as u64 * WIDTH;
    let table = Table { init: Init::Parameters, ..Table::additive("counters", rows, 1) };
    TableSpec::new(vec![table], ReadPolicy::Unbounded)
}

/// The parameters of this task, which begin at zero, are the counters.
impl Task for Stream {
    fn manifest(&self) -> Manifest {
        Manifest::tensor("counters", [HASHES.len() as u32, WIDTH as u32])
    }

    fn sample_count(&self) -> u32 {
        ITEMS
    }

    fn gradient(&self, _parameters: &[f32], _samples: &[u32], _gradient: &mut [f32]) -> f64 {
        unreachable!("the program of this task computes no gradient")
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        let mut counts = vec![0.0; KINDS as usize];
        self.kinds.iter().for_each(|kind| counts[*kind as usize] += 1.0);
        let estimate =
            |kind| counters(kind).map(|row| f64::from(parameters[row as usize])).fold(f64::MAX, f64::min);
        let errors = (0..KINDS).zip(&counts).map(|(kind, count)| estimate(kind) - count);
        let allowed = E * f64::from(ITEMS) / WIDTH as f64;
        let right = errors.clone().filter(|error| (0.0..=allowed).contains(error)).count();
        let kinds = f64::from(KINDS);
        Evaluation { samples: KINDS, loss: errors.sum::<f64>() / kinds, accuracy: Some(right as f64 / kinds) }
    }
}

fn main() -> ExitCode {
    let program = |_: &Loaded| Counting { stream: Stream::new() };
    peergrad::train("count-min", Stream::new()).tables(table_spec, program).epochs(1).batch(500).run()
}
