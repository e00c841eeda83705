//! The speed of workers: by staleness, and with one owner or many.

use std::path::Path;

use peergrad_config::specification::RunFile;
use peergrad_core::program::ProgramFactory;
use peergrad_core::program::programs::ssp::Ssp;
use peergrad_core::table::{Atomicity, Init, ReadPolicy, Table, TableRule, TableSpec};
use peergrad_simulations::compare::measure;
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::scenario::file::{Size, parse};
use peergrad_simulations::task::Squares;
use peergrad_simulations::workload::Workload;

/// Virtual seconds that eight workers need for four hundred clocks of about a second each, with these faults.
fn seconds(staleness: u64, trouble: &str) -> f64 {
    let text = format!(
        "about = \"ssp\"\npeers = 8\n[links]\npreset = \"lan\"\n\
         [task]\nkind = \"squares\"\nparameters = 64\nsamples = 32000\nsample_time = \"100ms\"\n\
         [run]\nepochs = 1\nbatch = 80\n[run.optimizer]\nrule = \"sgd\"\nrate = 0.01\n\
         [run.sync]\nkind = \"ssp\"\nstaleness = {staleness}\n\
         [[faults]]\nat_start = \"0s\"\n{trouble}\n[expect]\npatience = \"20h\"\n"
    );
    let scenario = parse("ssp", &text, Path::new("."), Size::Full).expect("it is a scenario");
    let course = measure(&scenario, 1);
    assert_eq!(course.outcome.violations, [], "{trouble}");
    course.end.expect("it ends").time.as_secs_f64()
}

/// Ratios that are known from models of the barrier alone, without any code of this project.
#[test]
fn staleness_absorbs_only_transient_delays() {
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

/// Virtual seconds of a clock of this many workers, each with a batch of its own, with all parameters in one chunk, and so with one owner,
/// or in many chunks.
fn clock_seconds(workers: usize, has_one_owner: bool) -> f64 {
    const PARAMETERS: usize = 65_536;
    const CLOCKS: u32 = 24;
    let text = format!(
        "about = \"owners\"\npeers = {workers}\n[links]\npreset = \"lan\"\nup_mbit = 100\ndown_mbit = 100\n\
         [task]\nkind = \"squares\"\nsample_time = \"2ms\"\n[run]\nepochs = 1\nbatch = 16\n[expect]\npatience = \"1h\"\n"
    );
    let scenario = parse("owners", &text, Path::new("."), Size::Full).expect("it is a scenario");
    let (rows, width) = if has_one_owner { (1, PARAMETERS) } else { (PARAMETERS as u64 / 16, 16) };
    let table = Table { init: Init::Parameters, ..Table::additive("parameters", rows, width) };
    let table_spec = TableSpec::new(vec![table], ReadPolicy::Staleness(0));
    // Keepers of a journal would share the work of the one owner.
    let table_spec = TableSpec { atomicity: Atomicity::Chunk, ..table_spec };
    let launch =
        ProgramFactory::with_tables(move |_| table_spec.clone(), |loaded| Ssp::of(loaded, TableRule::Sum));
    let run = "epochs = 1\nbatch = 16\n[optimizer]\nrule = \"sgd\"\nrate = 0.0001";
    let run = RunFile::parse(run).expect("it is a run file");
    let task = Squares::new(PARAMETERS, CLOCKS * 16 * workers as u32);
    let workload = Workload::custom_program("owners", task, launch, &run).expect("all of it is allowed");
    let course = measure(&Scenario { workload, ..scenario }, 1);
    assert_eq!(course.outcome.violations, []);
    course.end.expect("it ends").time.as_secs_f64() / f64::from(CLOCKS)
}

/// Sixteen workers with one owner are hardly faster than four: all of them wait for its line. With as many owners as workers, no line is slow.
#[test]
fn one_owner_is_a_bottleneck_and_many_owners_are_none() {
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
        one.is_sorted() && one[3] > 3.6 * one[1],
        "almost four times as long, with four times the samples: {one:?}"
    );
    assert!(all[3] < 1.3 * all[1], "{all:?}");
}
