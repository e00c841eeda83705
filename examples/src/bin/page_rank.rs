//! PageRank: how often a surfer who follows random links comes by each of 2000 pages, computed by many machines in common iterations.
//!
//! A rank begins at 1. Each iteration makes it 0.15 + 0.85 x the sum of the last iteration's rank / links over all pages that link to it.
//!
//! *How it works.* A sample of this task is a page, and an epoch is an iteration. Row (iteration, page) of the table is a rank, which is
//! added to a zero exactly once. A clock of all workers together has as many samples as an iteration. With a staleness of 0, a worker
//! reads all that was added in the clocks before. But iterations overlap: a fast worker may take two parts of one, so that another begins the
//! next one early; and the pages of a lost worker are leased again later. A worker that misses ranks does not wait for them, since
//! they could be in its own next lease. It computes them by itself, from the last complete iteration on, and does not add them. A rank has the
//! same bits at all workers. So the result is exact, also if peers were killed, and only some work is done twice.
//!
//! ```text
//! cargo run --release -p peergrad-examples --bin page_rank -- start
//! cargo run --release -p peergrad-examples --bin page_rank -- join pg1...   (what `start` printed; on any machine)
//! ```
//! The run ends with an accuracy of 1: the share of the ranks of all iterations that differ by at most a millionth from those of a plain loop in
//! `f64`. The loss is the mean difference, 3e-8. While it runs, the loss is the mean change of a rank in an iteration.
//!
//! *Reading.* Brin and Page, *The anatomy of a large-scale hypertextual web search engine*, 1998, section 2.1.1, whose formula this is.

use std::collections::BTreeMap;

use peergrad::prelude::*;
use rand::{SeedableRng, rand_core::Rng, rngs::ChaCha8Rng};

const PAGES: u32 = 2000;
const ITERATIONS: u64 = 40;
const LINKS: u32 = 2; // of each page

/// The links between pages, of which every peer has a copy.
#[derive(Clone)]
struct Web {
    /// The pages that link to each page; a page occurs once per link.
    sources: Arc<[Vec<u32>]>,
}

impl Web {
    /// The links that follow from a fixed seed. The smaller of two random numbers is linked to, so the first pages are popular.
    fn new() -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut sources = vec![Vec::new(); PAGES as usize];
        for source in (0..PAGES).flat_map(|page| [page; LINKS as usize]) {
            let target = (random.next_u32() % PAGES).min(random.next_u32() % PAGES);
            sources[target as usize].push(source);
        }
        Self { sources: sources.into() }
    }

    /// The rank of a page, from the ranks of the iteration before.
    fn rank(&self, page: u32, before: &[f32]) -> f32 {
        let parts = self.sources[page as usize].iter().map(|source| f64::from(before[*source as usize]));
        (0.15 + 0.85 * parts.sum::<f64>() / f64::from(LINKS)) as f32
    }
}

/// The algorithm at one worker.
struct Ranking(Web);

impl Program for Ranking {
    const NAME: &'static str = "ranking";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let clock = context.begin_clock().await?;
        if clock.is_over {
            clock.finish();
            clock.parameters().await?;
            return Ok(Flow::Break(()));
        }
        let count = clock.samples.len() as u64;
        if count == 0 || clock.epoch >= ITERATIONS {
            clock.end(SampleStats { samples: count, loss: 0.0 });
            return Ok(Flow::Continue(()));
        }
        // Shape (iterations, pages), from the iteration of this clock back to the last complete one; 0 where a rank is missing.
        let mut iterations: Vec<Vec<f32>> = Vec::new();
        while iterations.last().is_none_or(|ranks| ranks.contains(&0.0)) {
            let first = (clock.epoch - iterations.len() as u64) * u64::from(PAGES);
            let rows = clock.pull(first..first + u64::from(PAGES)).expect("there are such rows").await?;
            let mut ranks = vec![0.0; PAGES as usize];
            rows.indices.iter().zip(rows.values).for_each(|(row, rank)| ranks[(row - first) as usize] = rank);
            iterations.push(ranks);
        }
        let (web, samples) = (self.0.clone(), Arc::clone(&clock.samples));
        let first = (clock.epoch + 1) * u64::from(PAGES);
        let work = clock.compute(count, move || {
            let mut ranks = iterations.pop().expect("one is complete");
            while let Some(next) = iterations.pop() {
                let complete = |(page, rank)| if rank == 0.0 { web.rank(page, &ranks) } else { rank };
                ranks = (0..PAGES).zip(next).map(complete).collect();
            }
            let rank = |page: &u32| (first + u64::from(*page), web.rank(*page, &ranks));
            let rows: BTreeMap<Row, f32> = samples.iter().map(rank).collect();
            let changes = rows.iter().map(|(row, rank)| (rank - ranks[(row - first) as usize]).abs());
            let loss = changes.map(f64::from).sum();
            (Rows { indices: rows.keys().copied().collect(), values: rows.into_values().collect() }, loss)
        });
        let (rows, loss) = work.await?;
        clock.add(rows).expect("finite numbers, for rows of the table");
        clock.end(SampleStats { samples: count, loss });
        Ok(Flow::Continue(()))
    }
}

/// One table with a rank in each row. The batch is one iteration, of which each worker gets its part.
fn table_spec(_: &Loaded) -> TableSpec {
    let rows = (ITERATIONS + 1) * u64::from(PAGES);
    let table = Table { init: Init::Parameters, ..Table::additive("ranks", rows, 1) };
    TableSpec { batch_scope: BatchScope::Global, ..TableSpec::new(vec![table], ReadPolicy::Staleness(0)) }
}

/// The parameters of this task are the ranks of all iterations.
impl Task for Web {
    fn manifest(&self) -> Manifest {
        Manifest::tensor("ranks", [ITERATIONS as u32 + 1, PAGES])
    }

    fn initial(&self, _seed: u64, parameters: &mut [f32]) {
        parameters[..PAGES as usize].fill(1.0);
    }

    fn sample_count(&self) -> u32 {
        PAGES
    }

    fn gradient(&self, _parameters: &[f32], _samples: &[u32], _gradient: &mut [f32]) -> f64 {
        unreachable!("the program of this task computes no gradient")
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        let (mut plain, mut right, mut loss) = (vec![1.0; PAGES as usize], 0.0, 0.0);
        for found in parameters.chunks_exact(PAGES as usize).skip(1) {
            let sum = |sources: &Vec<u32>| sources.iter().map(|source| plain[*source as usize]).sum::<f64>();
            let new = |sources| 0.15 + 0.85 * sum(sources) / f64::from(LINKS);
            plain = self.sources.iter().map(new).collect();
            let differences = plain.iter().zip(found).map(|(rank, is)| (f64::from(*is) / rank - 1.0).abs());
            right += differences.clone().filter(|difference| *difference <= 1e-6).count() as f64;
            loss += differences.sum::<f64>();
        }
        let samples = PAGES * ITERATIONS as u32;
        Evaluation { samples, loss: loss / f64::from(samples), accuracy: Some(right / f64::from(samples)) }
    }
}

fn main() -> ExitCode {
    let program = |_: &Loaded| Ranking(Web::new());
    let training = peergrad::train("page-rank", Web::new()).tables(table_spec, program);
    training.epochs(ITERATIONS).batch(PAGES.into()).run()
}
