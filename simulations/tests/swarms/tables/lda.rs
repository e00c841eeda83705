//! A topic model: counts are those of the assignments, also if workers are lost.

use std::num::NonZeroU64;
use std::ops::ControlFlow::{Break, Continue};
use std::sync::{Arc, Mutex};

use peergrad_config::specification::RunFile;
use peergrad_core::program::context::{Context, Interrupted};
use peergrad_core::program::programs::lda::GibbsSampling;
use peergrad_core::program::{Flow, Program, ProgramFactory};
use peergrad_core::table::Integer;
use peergrad_models::data::corpus::Corpus;
use peergrad_models::task::lda::{Lda, LdaSettings, Sampler};
use peergrad_protocol::message::SampleStats;
use peergrad_protocol::table::RowSet;
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::workload::Workload;

use super::counting::{POWER_CUTS, TROUBLE, seeds, under_faults};
use crate::common::parameters;

const TOPICS: u32 = 48;
const VOCABULARY: u32 = 90;
const DOCUMENTS: u32 = 70;
const EPOCHS: u64 = 30;
/// The words of a document whose topics are in one row, after the number of its sweeps.
pub(super) const ROW_WORDS: usize = 31;

/// Documents of 0 to 80 words.
fn corpus() -> Corpus {
    let word = |document: u32, place: u32| (document * 37 + place * place * 11 + place) % VOCABULARY;
    let document = |document: u32| (0..document * 29 % 81).map(move |place| word(document, place));
    Corpus::new(VOCABULARY, (0..DOCUMENTS).map(document))
}

/// Sweeps, and reads all tables in the end.
struct Sweeping {
    program: GibbsSampling,
    ends: Arc<Mutex<Vec<Vec<f32>>>>,
    /// The portions whose topics a worker has remembered, and all portions.
    kept: Arc<Mutex<(u64, u64)>>,
}

impl Program for Sweeping {
    const NAME: &'static str = "sweeping";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let clock = context.begin_clock().await?;
        if clock.is_over {
            clock.finish();
            let rows = clock.layout.tables().map(|table| table.rows).sum();
            let end = clock.get(RowSet::range(0..rows)).expect("there are as many").await?;
            clock.parameters().await?;
            self.ends.lock().expect("nobody panics with it").push(end);
            return Ok(Break(()));
        }
        if clock.samples.is_empty() {
            clock.end(SampleStats::default());
            return Ok(Continue(()));
        }
        self.count(clock.is_kept);
        self.program.sweep(clock).await?;
        Ok(Continue(()))
    }
}

impl Sweeping {
    fn count(&self, is_kept: bool) {
        let mut kept = self.kept.lock().expect("nobody panics with it");
        *kept = (kept.0 + u64::from(is_kept), kept.1 + 1);
    }
}

/// The numbers of all tables at the end of the run of this seed, under these faults, and the share of portions that workers have kept.
fn end(trouble: &str, sampler: Sampler, seed: u64) -> (Vec<f32>, f64) {
    let settings = LdaSettings { topics: TOPICS, alpha: 0.1, beta: 0.01, sampler };
    let task = || Lda::new(settings, corpus(), Corpus::default());
    let portions = NonZeroU64::MIN.saturating_add(9 + 20 * (seed % 4));
    let (ends, kept) = end_of(trouble, task, portions, EPOCHS, seed);
    assert!(ends.len() > 5, "seed {seed}: {} have come to the end", ends.len());
    assert!(ends.iter().all(|end| *end == ends[0]), "seed {seed}: all read the same");
    (ends[0].clone(), kept)
}

/// What each worker reads of all tables at the end of a run of this task under these faults, and the share of portions that workers have kept.
pub(super) fn end_of(
    scenario: &str,
    task: impl Fn() -> Lda,
    portions: NonZeroU64,
    epochs: u64,
    seed: u64,
) -> (Vec<Vec<f32>>, f64) {
    let shared = Arc::new(task());
    let spec = Arc::clone(&shared);
    let (ends, kept) = (Arc::<Mutex<Vec<Vec<f32>>>>::default(), Arc::<Mutex<(u64, u64)>>::default());
    let (all_ends, all_kept) = (Arc::clone(&ends), Arc::clone(&kept));
    let launch = ProgramFactory::with_tables(
        move |_| GibbsSampling::table_spec(&spec, portions),
        move |_| Sweeping {
            program: GibbsSampling::of(Arc::clone(&shared)),
            ends: Arc::clone(&all_ends),
            kept: Arc::clone(&all_kept),
        },
    );
    let run = format!(
        "epochs = {epochs}\nbatch = 1\nshuffle = false\n[shards]\nreplicas = 6\n[checkpoints]\nseconds = 3"
    );
    let run = RunFile::parse(&run).expect("it is a run file");
    let workload = Workload::custom_program("sweeping", task(), launch, &run);
    under_faults(scenario, workload.expect("all of it is allowed"), seed);
    let (kept, all) = *kept.lock().expect("nobody panics with it");
    let ends = std::mem::take(&mut *ends.lock().expect("nobody panics with it"));
    (ends, kept as f64 / all as f64)
}

/// Compares the counts with the assignments.
fn check(end: &[f32], seed: u64) {
    let (corpus, topics) = (corpus(), TOPICS as usize);
    let (by_word, rest) = end.split_at(VOCABULARY as usize * topics);
    let (totals, mut rows) = rest.split_at(2 * topics);
    let (mut counted, mut all) = (vec![0.0; by_word.len()], vec![0; topics]);
    for document in 0..DOCUMENTS {
        for words in corpus.words(document).chunks(ROW_WORDS) {
            let (row, others) = rows.split_at(ROW_WORDS + 1);
            rows = others;
            assert_eq!(row[0] as u64, EPOCHS, "seed {seed}: the sweeps of document {document}");
            for (word, topic) in words.iter().zip(&row[1..]) {
                let topic = *topic as usize - 1;
                counted[*word as usize * topics + topic] += 1.0;
                all[topic] += 1;
            }
        }
    }
    assert!(rows.is_empty());
    assert_eq!(by_word, counted, "seed {seed}: how often each word has each topic");
    let totals: Vec<i64> =
        totals.chunks_exact(2).map(|pair| Integer::from_pair([pair[0], pair[1]]).unwrap().get()).collect();
    assert_eq!(totals, all, "seed {seed}: how many words have each topic");
}

#[test]
fn counts_are_those_of_the_assignments_whoever_is_lost() {
    for seed in seeds(4) {
        let samplers = [Sampler::Light, Sampler::Dense, Sampler::Sparse, Sampler::Alias];
        for trouble in [TROUBLE, POWER_CUTS] {
            let (end, kept) = end(trouble, samplers[seed as usize % 4], seed);
            check(&end, seed);
            println!("seed {seed}: {kept:.2} of all portions were kept");
            assert!(kept > 0.3, "seed {seed}: {kept}");
        }
    }
}

/// Documents about one of two things each.
#[test]
fn peers_train_what_a_run_file_says() {
    let things =
        [["river", "water", "fish", "boat", "shore"], ["engine", "wheel", "road", "brake", "driver"]];
    let document = |number: usize| {
        let word = |place: usize| things[number % 2][(number / 2 + place * place) % 5];
        (0..20).map(word).collect::<Vec<_>>().join(" ") + "\n"
    };
    let text: String = (0..60).map(document).collect();
    let run = "epochs = 20\n[data]\nfile = \"texts.txt\"\nheld_out = 0.1\n[model]\nkind = \"lda\"\ntopics = 2\n[sync]\nparts = 8";
    let workload = Workload::data_file(&RunFile::parse(run).unwrap(), "texts.txt", text.as_bytes()).unwrap();
    let task = Arc::clone(&workload.loaded.task);
    let mut simulation = Simulation::new(&Scenario::new("topics", 4, workload), 1);
    while simulation.tick() {}
    let counts = parameters(&simulation);
    assert_eq!(simulation.finish().violations, []);
    assert_eq!(counts.iter().sum::<f32>(), 54.0 * 20.0, "each word of a trained document has a topic");
    let most: f32 = counts.chunks_exact(2).map(|word| word[0].max(word[1])).sum();
    assert!(most > 0.9 * 54.0 * 20.0, "words have one topic each: {counts:?}");
    let evaluation = task.evaluate(&counts);
    // Five words are equally probable where the topic is known, and ten where it is not.
    assert!(evaluation.samples == 6 && evaluation.loss < 1.9, "{evaluation:?}");
}
