//! Workers that count, under all kinds of faults.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow::{Break, Continue};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use peergrad_config::specification::RunFile;
use peergrad_core::program::context::{Context, Interrupted};
use peergrad_core::program::{Flow, Program, ProgramFactory};
use peergrad_core::table::{ReadPolicy, Table, TableSpec};
use peergrad_protocol::message::SampleStats;
use peergrad_protocol::table::{Row, RowSet, Rows};
use peergrad_simulations::compare::measure;
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::scenario::file::{Size, parse};
use peergrad_simulations::task::Integers;
use peergrad_simulations::workload::Workload;

/// What a worker has added, by row.
#[derive(Default)]
struct Account {
    /// Additions that it knows to be safe.
    safe: BTreeMap<Row, u64>,
    /// Additions of which it does not know that yet; after a crash of the worker this remains so.
    unsettled: BTreeMap<Row, u64>,
    /// Additions of which it will never know: it was removed from the view meanwhile, and has rejoined as another worker.
    unknown: BTreeMap<Row, u64>,
    end: Option<Vec<f32>>,
}

impl Account {
    fn settle(&mut self) {
        add_to(&mut self.safe, std::mem::take(&mut self.unsettled));
    }

    fn unknown(&self, row: Row) -> u64 {
        self.unknown.get(&row).unwrap_or(&0) + self.unsettled.get(&row).unwrap_or(&0)
    }
}

fn add_to(counts: &mut BTreeMap<Row, u64>, more: BTreeMap<Row, u64>) {
    more.into_iter().for_each(|(row, count)| *counts.entry(row).or_default() += count);
}

type Accounts = Vec<Arc<Mutex<Account>>>;

/// A worker that counts.
struct Counting {
    account: Arc<Mutex<Account>>,
    rounds: u64,
}

const ROWS: Row = 400;

impl Program for Counting {
    const NAME: &'static str = "counting";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let flow = self.count(context).await;
        if flow.is_err() {
            let mut account = self.account();
            let unsettled = std::mem::take(&mut account.unsettled);
            add_to(&mut account.unknown, unsettled);
        }
        flow
    }
}

impl Counting {
    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().expect("nobody panics with it")
    }

    async fn count(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let clock = context.begin_clock().await?;
        if clock.is_over {
            clock.finish();
            let end = clock.get(RowSet::range(0..ROWS)).expect("there are as many").await?;
            // The parameters at the end include what this worker has added.
            self.account().settle();
            self.account().end = Some(end);
            return Ok(Break(()));
        }
        self.rounds += 1;
        let first = u64::from(clock.samples.first().copied().unwrap_or(0));
        let rows: BTreeSet<Row> = (0..4).map(|index| (first * 7 + index * 31) % ROWS).collect();
        let indices: RowSet = rows.into_iter().collect();
        let values = clock.get(indices.clone()).expect("they are rows").await?;
        for (row, values) in indices.iter().zip(values.chunks_exact(2)) {
            assert_eq!(values[1], -2.0 * values[0], "a row is read as a whole");
            let account = self.account();
            let own = account.safe.get(&row).unwrap_or(&0) + account.unsettled.get(&row).unwrap_or(&0);
            assert!(values[0] >= own as f32, "a worker sees its own");
        }
        clock.compute(clock.samples.len() as u64, || ()).await?;
        if !clock.samples.is_empty() {
            let values = [1.0, -2.0].repeat(indices.len());
            add_to(&mut self.account().unsettled, indices.iter().map(|row| (row, 1)).collect());
            clock.add(Rows { indices, values }).expect("finite rows");
        }
        let pushed = clock.push();
        if self.rounds.is_multiple_of(3) {
            pushed.await?;
            self.account().settle();
        }
        let samples = clock.samples.len() as u64;
        clock.end(SampleStats { samples, loss: 1.0 });
        Ok(Continue(()))
    }
}

/// A run in which all workers count, and the accounts of all workers in it.
fn counting(read_policy: ReadPolicy) -> (Workload, Arc<Mutex<Accounts>>) {
    let accounts = Arc::<Mutex<Accounts>>::default();
    let all = Arc::clone(&accounts);
    let table_spec = TableSpec::new(vec![Table::additive("counts", ROWS, 2)], read_policy);
    let launch = ProgramFactory::with_tables(
        move |_| table_spec.clone(),
        move |_| {
            let account = Arc::<Mutex<Account>>::default();
            all.lock().expect("nobody panics with it").push(Arc::clone(&account));
            Counting { account, rounds: 0 }
        },
    );
    let run = RunFile::parse("epochs = 40\nbatch = 16\n[shards]\nreplicas = 6").expect("it is a run file");
    let workload = Workload::custom_program("counting", Integers::new(16, 1200), launch, &run);
    (workload.expect("all of it is allowed"), accounts)
}

/// Sixteen workers; some leave and others join; some crash, and five are cut off for a while.
pub(super) const TROUBLE: &str = r#"
about = "workers that count, in all kinds of trouble"
peers = 16
[task]
kind = "squares"
sample_time = "20ms"
[run]
epochs = 1
batch = 16
[[faults]]
at = "1s"
within = "1s"
kind = "churn"
times = 12
every = "5s"
[[faults]]
at = "2s"
within = "4s"
kind = "join"
count = 4
[[faults]]
at = "8s"
within = "4s"
kind = "leave"
any = 2
[[faults]]
at = "14s"
within = "4s"
kind = "partition"
split = [11, 5]
for = "12s"
[[faults]]
at = "30s"
within = "4s"
kind = "restart"
any = 1
for = "1s"
"#;

/// Workers that crash, and whose power is cut three times.
pub(super) const POWER_CUTS: &str = r#"
about = "workers that lose power, all at once, again and again"
peers = 12
[task]
kind = "squares"
sample_time = "20ms"
[run]
epochs = 1
batch = 16
[[faults]]
at = "1s"
within = "1s"
kind = "churn"
times = 4
every = "5s"
[[faults]]
at = "5s"
within = "5s"
kind = "blackout"
for = "1s"
every = "100ms"
[[faults]]
at = "18s"
within = "5s"
kind = "blackout"
for = "1s"
every = "100ms"
[[faults]]
at = "31s"
within = "5s"
kind = "blackout"
for = "1s"
every = "100ms"
damaged = 1
"#;

/// Runs sixteen workers in all kinds of trouble.
pub(super) fn in_trouble(workload: Workload, seed: u64) {
    under_faults(TROUBLE, workload, seed);
}

/// Runs a workload under the faults of this scenario.
pub(super) fn under_faults(scenario: &str, workload: Workload, seed: u64) {
    let scenario = parse("trouble", scenario, Path::new("."), Size::Full).expect("it is a scenario");
    let course = measure(&Scenario { workload, ..scenario }, seed);
    assert_eq!(course.outcome.violations, [], "seed {seed}");
}

/// The seeds that `TABLE_SEEDS` says, as `first..end`; so many if it is not set.
pub(super) fn seeds(count: u64) -> std::ops::Range<u64> {
    let Ok(seeds) = std::env::var("TABLE_SEEDS") else { return 0..count };
    let (first, end) = seeds.split_once("..").expect("a range of seeds");
    let number = |text: &str| text.parse().expect("a number");
    number(first)..number(end)
}

#[test]
fn sums_are_exact_under_all_kinds_of_faults() {
    for seed in seeds(6) {
        let read_policy =
            [ReadPolicy::Unbounded, ReadPolicy::Staleness(0), ReadPolicy::Staleness(3)][seed as usize % 3];
        let (workload, accounts) = counting(read_policy);
        in_trouble(workload, seed);
        let accounts = accounts.lock().expect("nobody panics with it");
        let accounts: Vec<_> =
            accounts.iter().map(|account| account.lock().expect("nobody panics with it")).collect();
        let ends: Vec<&Vec<f32>> = accounts.iter().filter_map(|account| account.end.as_ref()).collect();
        assert!(ends.len() > 5, "seed {seed}: {} have come to the end", ends.len());
        for row in 0..ROWS {
            let safe: u64 = accounts.iter().filter_map(|account| account.safe.get(&row)).sum();
            let unknown: u64 = accounts.iter().map(|account| account.unknown(row)).sum();
            let values: BTreeSet<u64> = ends.iter().map(|end| end[2 * row as usize] as u64).collect();
            assert_eq!(values.len(), 1, "seed {seed}: all have read the same");
            let value = values.into_iter().next().unwrap_or_default();
            assert!(
                (safe..=safe + unknown).contains(&value),
                "seed {seed}, row {row}: {value}, where {safe} are safe, and of {unknown} nobody knows"
            );
        }
    }
}
