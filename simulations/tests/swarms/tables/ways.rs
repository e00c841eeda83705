//! Programs that use tables in unusual ways: they all finish, and the work of every lease is counted.

use std::ops::ControlFlow::{Break, Continue};
use std::path::Path;
use std::sync::{Arc, Mutex};

use peergrad_config::specification::RunFile;
use peergrad_core::io::Event;
use peergrad_core::program::context::{Clock, Context, Interrupted};
use peergrad_core::program::{Flow, Program, ProgramFactory};
use peergrad_core::table::{ApplyMode, ReadPolicy, Table, TableSpec};
use peergrad_protocol::message::SampleStats;
use peergrad_protocol::table::{Map, Reduce, Row, RowSet, Rows};
use peergrad_simulations::compare::measure;
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::scenario::file::{Size, parse};
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::task::Integers;
use peergrad_simulations::workload::Workload;

use super::counting::in_trouble;
use crate::common::assert_nobody_is_blamed;

/// Each row of the first vector is changed by owners, and each of the second one is a count.
const ROWS: Row = 200;
/// The rows of both vectors.
const ALL: Row = 2 * ROWS;
const EPOCHS: u64 = 10;

/// What a worker does in a clock. The count of each row grows by 1, at least if the worker was given samples.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// Reads all rows past the cache before it computes, which sends its earlier additions.
    PullsFirst,
    /// Requests rows, and has owners change a vector of them before they have arrived.
    MapsWhatItAwaits,
    /// Adds, and leaves the sending to the node.
    Hoards,
    /// Adds to a table that is applied by clock, and never reads.
    NeverReads,
    /// Sends more requests at once than an owner answers.
    Floods,
    /// One of the workers ends while it still has samples to compute, and more to come.
    StopsEarly,
    /// One of the workers orders the end of the run.
    EndsRun,
}

struct Odd {
    way: Way,
    ends: Ends,
    is_first_clock: bool,
}

type Ends = Arc<Mutex<Vec<Rows>>>;

impl Program for Odd {
    const NAME: &'static str = "odd";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let clock = context.begin_clock().await?;
        let has_enough = self.way == Way::StopsEarly
            && clock.rank.0 == 0
            && clock.number >= 2
            && !clock.samples.is_empty();
        if clock.is_over || has_enough {
            clock.finish();
            let counts = clock.layout.vector_rows("odd", 1).expect("there is such a vector");
            let end = clock.pull(counts).expect("there are as many").await?;
            self.ends.lock().expect("nobody panics with it").push(end);
            return Ok(Break(()));
        }
        let samples = clock.samples.len() as u64;
        self.work(&clock).await?;
        if self.way == Way::EndsRun && clock.rank.0 == 1 && clock.number == 20 {
            context.end_run();
        }
        clock.end(SampleStats { samples, loss: 0.0 });
        Ok(Continue(()))
    }
}

impl Odd {
    async fn work(&mut self, clock: &Clock) -> Result<(), Interrupted> {
        let all = || RowSet::range(0..ALL);
        let counted = || Rows { indices: all(), values: [0.0, 1.0].repeat(ROWS as usize) };
        let samples = clock.samples.len() as u64;
        match self.way {
            Way::PullsFirst => {
                clock.pull(0..ALL).expect("there are as many").await?;
                clock.compute(samples, || ()).await?;
                if samples > 0 {
                    clock.add(counted()).expect("finite rows");
                }
                drop(clock.push());
            }
            Way::MapsWhatItAwaits => {
                clock.add(counted()).expect("finite rows");
                let awaited = clock.get(all()).expect("there are as many");
                let sum = clock.reduce("odd", Reduce::L1Norm(0)).expect("there is such a vector");
                clock.map("odd", Map::axpy(1.0, 1, 0)).expect("there are such vectors");
                assert!(sum.await?[0] >= ROWS as f64, "it is of all owners after that");
                let values = awaited.await?;
                assert!(values.chunks_exact(2).all(|row| row[1] >= 1.0), "it has its own");
                drop(clock.push());
            }
            Way::Hoards => clock.add(counted()).expect("finite rows"),
            Way::NeverReads => {
                clock.add(counted()).expect("finite rows");
                drop(clock.push());
            }
            Way::StopsEarly | Way::EndsRun if samples == 0 => {}
            Way::StopsEarly | Way::EndsRun => clock.add(counted()).expect("finite rows"),
            Way::Floods => {
                clock.add(counted()).expect("finite rows");
                drop(clock.push());
                if std::mem::take(&mut self.is_first_clock) {
                    let reduce = |_| clock.reduce("odd", Reduce::Dot(0, 1)).expect("there are such vectors");
                    let asked: Vec<_> = (0..2000).map(reduce).collect();
                    for one in asked {
                        one.await?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn workload(way: Way, read_policy: ReadPolicy, samples: u32, replicas: usize) -> (Workload, Ends) {
    let ends = Ends::default();
    let kept = Arc::clone(&ends);
    let apply_mode = if way == Way::NeverReads { ApplyMode::PerClock } else { ApplyMode::Immediate };
    let table_spec = TableSpec::new(
        vec![Table { apply_mode, ..Table::of_vectors("odd", 2, ROWS as usize, 1) }],
        read_policy,
    );
    let launch = ProgramFactory::with_tables(
        move |_| table_spec.clone(),
        move |_| Odd { way, ends: Arc::clone(&kept), is_first_clock: true },
    );
    let run = RunFile::parse(&format!("epochs = {EPOCHS}\nbatch = 2\n[shards]\nreplicas = {replicas}"));
    let run = run.expect("it is a run file");
    (Workload::custom_program("odd", Integers::new(16, samples), launch, &run).expect("allowed"), ends)
}

/// The least count of a row at the end, where all peers have the same rows.
fn least_count(ends: &Ends) -> f32 {
    let ends = ends.lock().expect("nobody panics with it");
    assert!(!ends.is_empty() && ends.iter().all(|end| *end == ends[0]), "all read the same");
    assert_eq!(ends[0].indices, (0..ROWS).map(|row| 2 * row + 1).collect());
    ends[0].values.iter().copied().fold(f32::INFINITY, f32::min)
}

#[test]
fn a_program_may_use_tables_as_it_likes() {
    for (way, read_policy, peers) in [
        (Way::PullsFirst, ReadPolicy::Unbounded, 3),
        (Way::MapsWhatItAwaits, ReadPolicy::Unbounded, 3),
        (Way::MapsWhatItAwaits, ReadPolicy::Staleness(2), 3),
        (Way::Hoards, ReadPolicy::Unbounded, 1),
        (Way::Hoards, ReadPolicy::Unbounded, 3),
        (Way::Hoards, ReadPolicy::Staleness(1), 1),
        (Way::Hoards, ReadPolicy::Staleness(1), 2),
        (Way::Hoards, ReadPolicy::Staleness(1), 3),
        (Way::NeverReads, ReadPolicy::Staleness(0), 3),
        (Way::NeverReads, ReadPolicy::Staleness(16), 3),
        (Way::Floods, ReadPolicy::Staleness(0), 3),
        (Way::StopsEarly, ReadPolicy::Unbounded, 3),
        (Way::StopsEarly, ReadPolicy::Staleness(2), 3),
    ] {
        let (workload, ends) = workload(way, read_policy, 200, 2);
        let mut simulation = Simulation::new(&Scenario::new("odd", peers, workload), 5);
        while simulation.tick() {}
        assert_nobody_is_blamed(&simulation.cluster);
        let has_ended =
            |event: &(_, _, Event)| matches!(&event.2, Event::Ended(ended) if ended.outcome.is_ok());
        let ended = simulation.cluster.events().iter().filter(|event| has_ended(event)).count();
        assert_eq!(ended, peers, "{way:?}, {read_policy:?}");
        let expected = (EPOCHS * 100) as f32;
        assert!(least_count(&ends) >= expected, "{way:?}, {read_policy:?}: {}", least_count(&ends));
    }
}

/// A program that has converged stops before its epochs are over, at all peers.
#[test]
fn a_program_may_end_the_run() {
    for (read_policy, peers) in [(ReadPolicy::Unbounded, 3), (ReadPolicy::Staleness(0), 2)] {
        let (workload, ends) = workload(Way::EndsRun, read_policy, 2000, 2);
        let outcome = Simulation::new(&Scenario::new("odd", peers, workload), 5).run();
        assert_eq!(outcome.violations, []);
        assert_eq!(outcome.endings.values().sum::<usize>(), peers, "{:?}", outcome.endings);
        let count = least_count(&ends);
        assert!((40.0..200.0).contains(&count), "of {} clocks: {count}", EPOCHS * 1000);
    }
}

/// A lease is done once its results are safe: not when something was sent before they were computed.
#[test]
fn no_lease_is_lost_with_its_worker() {
    for seed in 0..4 {
        let read_policy =
            [ReadPolicy::Unbounded, ReadPolicy::Staleness(0), ReadPolicy::Staleness(3)][seed as usize % 3];
        let (workload, ends) = workload(Way::PullsFirst, read_policy, 1000, 6);
        in_trouble(workload, seed);
        let expected = (EPOCHS * 500) as f32;
        assert!(least_count(&ends) >= expected, "seed {seed}: {} of {expected}", least_count(&ends));
    }
}

/// A worker without samples does not get ahead, whatever the bound on staleness.
#[test]
fn an_idle_worker_waits_for_the_others() {
    let run = |staleness: u64| {
        let text = format!(
            "about = \"idle\"\npeers = 3\n[links]\npreset = \"lan\"\n[task]\nkind = \"squares\"\nparameters = 64\n\
             samples = 320\nsample_time = \"10ms\"\n[run]\nepochs = 1\nbatch = 60\n[run.optimizer]\nrule = \"sgd\"\n\
             rate = 0.01\n[run.sync]\nkind = \"ssp\"\nstaleness = {staleness}\n[[faults]]\nat_start = \"0s\"\n\
             kind = \"slow\"\npeers = [2]\nslower = 30\n[expect]\npatience = \"20h\"\n"
        );
        let course = measure(&parse("idle", &text, Path::new("."), Size::Full).expect("it is a scenario"), 1);
        assert_eq!(course.outcome.violations, []);
        course.end.expect("it ends").bytes
    };
    let few = run(3);
    assert!(run(100_000) < 2 * few, "{few} bytes with a bound of 3");
}
