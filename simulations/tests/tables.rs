//! Tables: what programs that keep their state in them compute, and that sums are exact whoever comes, goes, dies and is cut off.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow::{Break, Continue};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use peergrad::io::Event;
use peergrad::peer::{Clock, Interrupted, Peer};
use peergrad::program::{Flow, Launch, Program};
use peergrad::programs::ssp::Ssp;
use peergrad::specification::RunFile;
use peergrad::table::client::{Gate, Gates};
use peergrad::table::{Begins, Layout, Shared, Split, Table, TableRule, When};
use peergrad_protocol::message::Tally;
use peergrad_protocol::table::{Map, Names, Reduce, Row, Rows};
use peergrad_simulations::cluster::Cluster;
use peergrad_simulations::compare::follow;
use peergrad_simulations::host::{Entry, HostId};
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::scenario::file::{Size, parse};
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::task::{Integers, Squares};
use peergrad_simulations::workload::Workload;

mod common;
use common::{assert_nobody_is_blamed, ended, run_until, run_until_training};

/// What all peers end with, which is the same, where gradients are integers that depend on no parameter.
fn integers(peers: usize, passes: u64, batch: usize, rate: f64, sync: &str) -> Vec<f32> {
    let text = format!(
        "passes = {passes}\nbatch = {batch}\n[optimizer]\nrule = \"sgd\"\nrate = {rate}\n[sync]\nsegment_kib = 1\n{sync}"
    );
    let run = RunFile::parse(&text).expect("it is a run file");
    let workload = Workload::integers(&run, 3000, 960).expect("all of it is allowed");
    let mut simulation = Simulation::new(&Scenario::new("tables", peers, workload), 5);
    while simulation.tick() {}
    assert_nobody_is_blamed(&simulation.cluster);
    let cluster = &simulation.cluster;
    let state = |host| ended(cluster, host).state.as_ref().expect("it has trained");
    let states: Vec<_> = cluster.hosts().map(state).collect();
    assert!(states.windows(2).all(|pair| pair[0].digest == pair[1].digest), "one model in the end");
    states[0].parameters.to_vec()
}

/// Whoever leaves in order is done with its samples first: they count, and nobody computes them again.
#[test]
fn nobody_computes_again_what_one_that_leaves_has() {
    let run = |sync: &str| {
        let text = format!(
            "passes = 8\nbatch = 32\n[optimizer]\nrule = \"sgd\"\nrate = 0.25\n[sync]\nsegment_kib = 1\n{sync}"
        );
        Workload::integers(&RunFile::parse(&text).expect("it is a run file"), 3000, 960).expect("allowed")
    };
    let parameters = |workload: Workload, seed, leavers: &[u32]| {
        let scenario = Scenario::new("tables", 6, workload);
        let mut simulation = Simulation::new(&scenario, seed);
        run_until_training(&mut simulation.cluster);
        for (index, leaver) in leavers.iter().enumerate() {
            let clocks = 30 * (index + 1);
            run_until(&mut simulation.cluster, "more clocks", |cluster| {
                cluster.history().commits.len() > clocks
            });
            simulation.cluster.leave(HostId(*leaver));
        }
        while simulation.tick() {}
        let states = simulation.cluster.events().iter().filter_map(|(_, _, event)| match event {
            Event::Ended(ended) if ended.outcome.is_ok() => ended.state.as_ref(),
            _ => None,
        });
        let states: Vec<Vec<f32>> = states.map(|state| state.parameters.to_vec()).collect();
        assert!(states.len() == 6 - leavers.len() && states.windows(2).all(|pair| pair[0] == pair[1]));
        states[0].clone()
    };
    let ring = parameters(run(""), 1, &[]);
    for seed in 0..10 {
        for sync in [
            "kind = \"ssp\"\nstaleness = 0",
            "kind = \"ssp\"",
            "kind = \"downpour\"\nn_push = 5\nn_fetch = 2",
        ] {
            assert!(parameters(run(sync), seed, &[4, 0, 2]) == ring, "{seed}, {sync}");
        }
    }
}

/// However old what they read is, workers add the same: every sample of every pass, once.
#[test]
fn every_sample_is_in_the_parameters_once() {
    for peers in [1, 2, 5, 8] {
        let ring = integers(peers, 3, 64, 0.25, "");
        for sync in ["staleness = 0", "staleness = 3", "staleness = 0\napply = \"by-step\""] {
            assert!(
                integers(peers, 3, 64, 0.25, &format!("kind = \"ssp\"\n{sync}")) == ring,
                "{peers}, {sync}"
            );
        }
        // Each has a batch of its own, so that the rate of one sample is as large.
        for sync in
            ["kind = \"async\"", "kind = \"downpour\"\nn_push = 4\nn_fetch = 3\nwarm_up = 200\nwave = 64"]
        {
            assert!(integers(peers, 3, 32, 0.125, sync) == ring, "{peers}, {sync}");
        }
    }
}

/// What a worker has added, by row.
#[derive(Default)]
struct Account {
    /// It knows that this is safe.
    safe: BTreeMap<Row, u64>,
    /// It does not know yet; or it never will, if it is dead.
    unsettled: BTreeMap<Row, u64>,
    /// It never will: it was put out of the view meanwhile, and has come back as another one.
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

    async fn round(&mut self, peer: &Peer) -> Result<Flow, Interrupted> {
        let flow = self.count(peer).await;
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

    async fn count(&mut self, peer: &Peer) -> Result<Flow, Interrupted> {
        let clock = peer.begin_clock().await?;
        if clock.is_over {
            clock.finish();
            let end = clock.get(Names::range(0..ROWS)).expect("there are as many").await?;
            // What all have come to has this worker's part in it.
            self.account().settle();
            self.account().end = Some(end);
            return Ok(Break(()));
        }
        self.rounds += 1;
        let first = u64::from(clock.samples.first().copied().unwrap_or(0));
        let rows: BTreeSet<Row> = (0..4).map(|index| (first * 7 + index * 31) % ROWS).collect();
        let names: Names = rows.into_iter().collect();
        let values = clock.get(names.clone()).expect("they are rows").await?;
        for (row, values) in names.iter().zip(values.chunks_exact(2)) {
            assert_eq!(values[1], -2.0 * values[0], "a row is read as a whole");
            let account = self.account();
            let own = account.safe.get(&row).unwrap_or(&0) + account.unsettled.get(&row).unwrap_or(&0);
            assert!(values[0] >= own as f32, "a worker sees its own");
        }
        clock.compute(clock.samples.len() as u64, || ()).await?;
        if !clock.samples.is_empty() {
            let values = [1.0, -2.0].repeat(names.len());
            add_to(&mut self.account().unsettled, names.iter().map(|row| (row, 1)).collect());
            clock.add(Rows { names, values }).expect("finite rows");
        }
        let pushed = clock.push();
        if self.rounds.is_multiple_of(3) {
            pushed.await?;
            self.account().settle();
        }
        let samples = clock.samples.len() as u64;
        clock.end(Tally { samples, loss: 1.0 });
        Ok(Continue(()))
    }
}

/// A run in which everybody counts, and the accounts of all workers that there ever were.
fn counting(gate: Gate) -> (Workload, Arc<Mutex<Accounts>>) {
    let accounts = Arc::<Mutex<Accounts>>::default();
    let all = Arc::clone(&accounts);
    let (rule, when, begins) = (TableRule::Sum, When::AtOnce, Begins::AtZero);
    let layout =
        Arc::new(Layout::new(vec![Table { name: "counts", rows: ROWS, width: 2, rule, when, begins }]));
    let shared = move |_: &_| Shared {
        layout: Arc::clone(&layout),
        gates: Gates::of(gate),
        split: Split::EachItsOwn,
        warm_up: 0,
        wave: 0,
    };
    let launch = Launch::with_tables(shared, move |_| {
        let account = Arc::<Mutex<Account>>::default();
        all.lock().expect("nobody panics with it").push(Arc::clone(&account));
        Counting { account, rounds: 0 }
    });
    let run = RunFile::parse("passes = 40\nbatch = 16\n[shards]\ncopies = 6").expect("it is a run file");
    let workload = Workload::own_program("counting", Integers::new(16, 1200), launch, &run);
    (workload.expect("all of it is allowed"), accounts)
}

/// Sixteen workers; as they go, others come; some die, and five are cut off for a while.
const TROUBLE: &str = r#"
about = "workers that count, in all kinds of trouble"
peers = 16
[task]
kind = "squares"
sample_time = "20ms"
[run]
passes = 1
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

/// As many seeds as `TABLE_SEEDS` says, from 0 on; a few, if it says nothing.
fn seeds() -> std::ops::Range<u64> {
    0..std::env::var("TABLE_SEEDS").map_or(6, |seeds| seeds.parse().expect("a number of seeds"))
}

#[test]
fn sums_are_exact_in_all_kinds_of_trouble() {
    for seed in seeds() {
        let gate = [Gate::None, Gate::Staleness(0), Gate::Staleness(3)][seed as usize % 3];
        let (workload, accounts) = counting(gate);
        let scenario = parse("counting", TROUBLE, Path::new("."), Size::Full).expect("it is a scenario");
        let course = follow(&Scenario { workload, ..scenario }, seed);
        assert_eq!(course.outcome.violations, [], "seed {seed}");
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

/// Five peers that train with parameters in a table, each chunk of which two of them keep.
fn five() -> Simulation {
    let text = "about = \"lost\"\npeers = 5\n[links]\npreset = \"lan\"\n\
        [task]\nkind = \"squares\"\nparameters = 10000\nsample_time = \"10ms\"\n[run]\npasses = 6\nbatch = 32\n\
        [run.sync]\nkind = \"ssp\"\n[expect]\npatience = \"20h\"\n";
    let scenario = parse("lost", text, Path::new("."), Size::Full).expect("it is a scenario");
    let mut simulation = Simulation::new(&scenario, 1);
    run_until(&mut simulation.cluster, "some clocks are over", |cluster| {
        cluster.history().commits.len() > 10
    });
    simulation
}

/// All who run have the same in the end.
fn run_to_the_end(mut simulation: Simulation, expected: usize) {
    run_until(&mut simulation.cluster, "all come to the end", |cluster| cluster.running_count() == 0);
    let is_state = |(_, _, event): &(_, _, Event)| match event {
        Event::Ended(ended) => ended.state.as_ref().map(|state| state.digest),
        _ => None,
    };
    let digests: Vec<_> = simulation.cluster.events().iter().filter_map(is_state).collect();
    assert!(digests.len() == expected && digests.windows(2).all(|pair| pair[0] == pair[1]), "{digests:?}");
}

#[test]
fn what_nobody_has_any_more_is_waited_for_until_a_user_says_that_it_is_lost() {
    let mut simulation = five();
    let cluster = &mut simulation.cluster;
    let hosts: Vec<HostId> = cluster.hosts().collect();
    hosts[3..].iter().for_each(|host| cluster.crash(*host, true));
    let waits = |cluster: &Cluster| {
        let told = |(_, host, event): &(_, HostId, Event)| match event {
            Event::ChunksMissing { chunks, .. } => Some((*host, *chunks)),
            _ => None,
        };
        cluster.events().iter().find_map(told)
    };
    run_until(cluster, "chunks are missing", |cluster| waits(cluster).is_some());
    let (host, missing) = waits(cluster).expect("one waits");
    let later = cluster.now().after(Duration::from_secs(60));
    run_until(cluster, "time goes by", |cluster| cluster.now() >= later);
    let views = |cluster: &Cluster| {
        let installed = |event: &(_, _, Event)| matches!(event.2, Event::Installed { .. });
        cluster.events().iter().filter(|event| installed(event)).count()
    };
    let before = views(cluster);
    cluster.declare_lost(host);
    run_until(cluster, "they go on", |cluster| views(cluster) == before + 3);
    let lost =
        |(_, _, event): &(_, _, Event)| matches!(event, Event::ChunksLost { chunks } if *chunks == missing);
    assert_eq!(cluster.events().iter().filter(|event| lost(event)).count(), 3);
    run_to_the_end(simulation, 3);
}

#[test]
fn after_a_stop_of_all_tables_begin_anew_only_where_nobody_can_have_kept_any() {
    for is_one_away in [false, true] {
        let mut simulation = five();
        let cluster = &mut simulation.cluster;
        let hosts: Vec<HostId> = cluster.hosts().collect();
        hosts.iter().for_each(|host| cluster.crash(*host, true));
        let back = &hosts[usize::from(is_one_away)..];
        let run = cluster.run_id();
        for host in back {
            let bootstraps = back.iter().copied().filter(|other| other != host).collect();
            cluster.start(*host, Entry::Join { run, bootstraps });
        }
        let restored = |cluster: &Cluster| {
            let is_restored = |event: &(_, _, Event)| matches!(event.2, Event::Restored { .. });
            cluster.events().iter().filter(|event| is_restored(event)).count()
        };
        if is_one_away {
            let later = cluster.now().after(Duration::from_secs(110));
            run_until(cluster, "time goes by", |cluster| cluster.now() >= later);
            assert_eq!(restored(cluster), 0, "the other may be running somewhere");
            cluster.declare_lost(back[0]);
        }
        run_until(cluster, "they begin anew", |cluster| restored(cluster) == back.len());
        run_to_the_end(simulation, back.len());
    }
}

/// Conjugate gradients, of which one worker says what is done and owners do it: `columns` are x, r, p and A p of one table, where A
/// is 4 everywhere on the diagonal and -1 beside it. All others only keep what they own.
struct Conjugate {
    /// What it has come to: the squared norm of what is left, and what is in the table.
    end: Arc<Mutex<Vec<(f64, Rows)>>>,
    is_first: bool,
    squared: Option<f64>,
}

const X: u32 = 0;
const R: u32 = 1;
const P: u32 = 2;
const AP: u32 = 3;
const UNKNOWNS: Row = 200;

impl Program for Conjugate {
    const NAME: &'static str = "conjugate";

    async fn round(&mut self, peer: &Peer) -> Result<Flow, Interrupted> {
        let clock = peer.begin_clock().await?;
        if clock.is_over {
            clock.finish();
            let left = clock.reduce("vectors", Reduce::Dot(R, R)).expect("there is such a column").await?;
            let rows = clock.pull(0..UNKNOWNS).expect("there are as many").await?;
            self.end.lock().expect("nobody panics with it").push((left, rows));
            return Ok(Break(()));
        }
        if self.is_first && !clock.samples.is_empty() {
            self.step(&clock).await?;
        }
        let samples = clock.samples.len() as u64;
        clock.compute(samples, || ()).await?;
        clock.push().await?;
        clock.end(Tally { samples, loss: 0.0 });
        Ok(Continue(()))
    }
}

impl Conjugate {
    async fn step(&mut self, clock: &Clock) -> Result<(), Interrupted> {
        let dot =
            |one, other| clock.reduce("vectors", Reduce::Dot(one, other)).expect("there are such columns");
        let map = |map| clock.map("vectors", map).expect("owners add to this table");
        let axpy = |by: f64, from, to| map(Map::Axpy { by: by as f32, from, to });
        let add = |rows: &Names, column: u32, value: &dyn Fn(Row) -> f32| {
            let values =
                rows.iter().flat_map(|row| (0..4).map(move |at| if at == column { value(row) } else { 0.0 }));
            clock.add(Rows { names: rows.clone(), values: values.collect() }).expect("finite rows");
        };
        let all = Names::range(0..UNKNOWNS);
        let squared = match self.squared {
            Some(squared) => squared,
            None => {
                // x = 0, r = p = b.
                add(&all, R, &|row| (row % 7) as f32 - 3.0);
                axpy(1.0, R, P);
                dot(R, R).await?
            }
        };
        if squared < 1e-9 {
            return Ok(());
        }
        // Only this needs the numbers themselves: a row has to do with its neighbours.
        let rows = clock.pull(0..UNKNOWNS).expect("there are as many").await?;
        let mut p = vec![0.0; UNKNOWNS as usize + 2];
        for (row, values) in rows.names.iter().zip(rows.values.chunks_exact(4)) {
            p[row as usize + 1] = values[P as usize];
        }
        map(Map::Scale { by: 0.0, column: AP });
        add(&all, AP, &|row| 4.0 * p[row as usize + 1] - p[row as usize] - p[row as usize + 2]);
        let length = squared / dot(P, AP).await?;
        axpy(length, P, X);
        axpy(-length, AP, R);
        let after = dot(R, R).await?;
        // p = r + (after / squared) p
        map(Map::Scale { by: (after / squared) as f32, column: P });
        axpy(1.0, R, P);
        self.squared = Some(after);
        Ok(())
    }
}

/// What owners do to columns they do once, whoever owns them by then; what they make of them is of all that came before.
#[test]
fn owners_compute_with_columns_while_chunks_move() {
    for seed in 0..4 {
        let ends = Arc::<Mutex<Vec<(f64, Rows)>>>::default();
        let (rule, when, begins) = (TableRule::Sum, When::AtOnce, Begins::AtZero);
        let table = Table { name: "vectors", rows: UNKNOWNS, width: 4, rule, when, begins };
        let layout = Arc::new(Layout::new(vec![table]));
        let shared = move |_: &_| Shared {
            layout: Arc::clone(&layout),
            gates: Gates::of(Gate::None),
            split: Split::EachItsOwn,
            warm_up: 0,
            wave: 0,
        };
        let kept = Arc::clone(&ends);
        let count = AtomicUsize::new(0);
        let launch = Launch::with_tables(shared, move |_| {
            let is_first = count.fetch_add(1, Ordering::Relaxed) == 0;
            Conjugate { end: Arc::clone(&kept), is_first, squared: None }
        });
        let run = RunFile::parse("passes = 60\nbatch = 4\n[shards]\ncopies = 3").expect("it is a run file");
        let workload =
            Workload::own_program("conjugate", Integers::new(16, 160), launch, &run).expect("allowed");
        let trouble = "about = \"x\"\npeers = 6\n[task]\nkind = \"squares\"\nsample_time = \"4ms\"\n\
            [[faults]]\nat = \"1s\"\nwithin = \"1s\"\nkind = \"join\"\ncount = 2\n\
            [[faults]]\nat = \"2s\"\nwithin = \"1s\"\nkind = \"crash\"\npeers = [4]\n\
            [[faults]]\nat = \"4s\"\nwithin = \"1s\"\nkind = \"leave\"\npeers = [3]\n";
        let scenario = parse("conjugate", trouble, Path::new("."), Size::Full).expect("it is a scenario");
        let course = follow(&Scenario { workload, ..scenario }, seed);
        assert_eq!(course.outcome.violations, [], "seed {seed}");
        let ends = ends.lock().expect("nobody panics with it");
        let (left, rows) = &ends[0];
        assert!(ends.len() >= 5 && ends.iter().all(|end| end == &ends[0]), "seed {seed}: all read the same");
        assert!(*left < 1e-6, "seed {seed}: {left} is left");
        let x: Vec<f32> = rows.values.chunks_exact(4).map(|row| row[X as usize]).collect();
        assert_eq!(rows.names, Names::range(0..UNKNOWNS), "no row is zero");
        for row in 1..UNKNOWNS as usize - 1 {
            let b = (row % 7) as f32 - 3.0;
            assert!((4.0 * x[row] - x[row - 1] - x[row + 1] - b).abs() < 1e-3, "seed {seed}, row {row}");
        }
    }
}

/// Virtual seconds that eight workers take for four hundred clocks of about a second each, where this goes wrong.
fn seconds(staleness: u64, trouble: &str) -> f64 {
    let text = format!(
        "about = \"ssp\"\npeers = 8\n[links]\npreset = \"lan\"\n\
         [task]\nkind = \"squares\"\nparameters = 64\nsamples = 32000\nsample_time = \"100ms\"\n\
         [run]\npasses = 1\nbatch = 80\n[run.optimizer]\nrule = \"sgd\"\nrate = 0.01\n\
         [run.sync]\nkind = \"ssp\"\nstaleness = {staleness}\n\
         [[faults]]\nat_start = \"0s\"\n{trouble}\n[expect]\npatience = \"20h\"\n"
    );
    let scenario = parse("ssp", &text, Path::new("."), Size::Full).expect("it is a scenario");
    let course = follow(&scenario, 1);
    assert_eq!(course.outcome.violations, [], "{trouble}");
    course.end.expect("it ends").time.as_secs_f64()
}

/// Ratios that are known from models of the barrier alone, without any of this machinery.
#[test]
fn staleness_absorbs_what_is_transient_and_nothing_else() {
    for (trouble, expected) in [
        ("kind = \"noise\"\nany = 8\nmean = 0.5", &[(1, 1.39), (3, 1.51)][..]),
        ("kind = \"bursts\"\nany = 8\nslower = 6\nchance = 0.05", &[(1, 1.27), (3, 1.61), (15, 2.02)]),
        ("kind = \"slow\"\npeers = [3]\nslower = 3", &[(3, 1.0), (15, 1.0)]),
    ] {
        let barrier = seconds(0, trouble);
        for (staleness, expected) in expected {
            let gain = barrier / seconds(*staleness, trouble);
            println!("{trouble}: {gain:.2} x at a staleness of {staleness}");
            assert!(
                (gain / expected - 1.0).abs() < 0.1,
                "{trouble}, {staleness}: {gain} x, not {expected} x"
            );
        }
    }
}

/// Virtual seconds of a clock of this many workers, each with a batch of its own, where all parameters are in one chunk, and so with
/// one owner, or in many.
fn clock_seconds(workers: usize, has_one_owner: bool) -> f64 {
    const PARAMETERS: usize = 65_536;
    const CLOCKS: u32 = 24;
    let text = format!(
        "about = \"owners\"\npeers = {workers}\n[links]\npreset = \"lan\"\nup_mbit = 100\ndown_mbit = 100\n\
         [task]\nkind = \"squares\"\nsample_time = \"2ms\"\n[run]\npasses = 1\nbatch = 16\n[expect]\npatience = \"1h\"\n"
    );
    let scenario = parse("owners", &text, Path::new("."), Size::Full).expect("it is a scenario");
    let (rows, width) = if has_one_owner { (1, PARAMETERS) } else { (PARAMETERS as u64 / 16, 16) };
    let (rule, when, begins) = (TableRule::Sum, When::AtOnce, Begins::AtParameters);
    let layout = Arc::new(Layout::new(vec![Table { name: "parameters", rows, width, rule, when, begins }]));
    let shared = move |_: &_| Shared {
        layout: Arc::clone(&layout),
        gates: Gates::of(Gate::Staleness(0)),
        split: Split::EachItsOwn,
        warm_up: 0,
        wave: 0,
    };
    let launch = Launch::with_tables(shared, |loaded| Ssp::of(loaded, TableRule::Sum));
    let run = "passes = 1\nbatch = 16\n[optimizer]\nrule = \"sgd\"\nrate = 0.0001";
    let run = RunFile::parse(run).expect("it is a run file");
    let task = Squares::new(PARAMETERS, CLOCKS * 16 * workers as u32);
    let workload = Workload::own_program("owners", task, launch, &run).expect("all of it is allowed");
    let course = follow(&Scenario { workload, ..scenario }, 1);
    assert_eq!(course.outcome.violations, []);
    course.end.expect("it ends").time.as_secs_f64() / f64::from(CLOCKS)
}

/// Sixteen workers of one owner are slower than four: all of them wait for its line. With as many owners as workers, none is.
#[test]
fn one_owner_is_a_bottleneck_and_many_are_none() {
    let seconds = |has_one_owner| [2, 4, 8, 16].map(|workers| clock_seconds(workers, has_one_owner));
    let [one, all] = [true, false].map(seconds);
    for (workers, (one, all)) in [2, 4, 8, 16].into_iter().zip(one.iter().zip(&all)) {
        let samples = |seconds: &f64| 16.0 * f64::from(workers) / seconds;
        println!(
            "{workers} workers: {:.0} ms a clock and {:.0} samples/s with one owner, {:.0} ms and {:.0} samples/s with all",
            1e3 * one,
            samples(one),
            1e3 * all,
            samples(all)
        );
    }
    assert!(
        one.is_sorted() && one[3] > 4.0 * one[1],
        "slower than four, with four times the samples: {one:?}"
    );
    assert!(all[3] < 1.3 * all[1], "{all:?}");
}
