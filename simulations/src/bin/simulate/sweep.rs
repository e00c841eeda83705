//! `simulate sweep`: runs scenarios with many seeds, on all cores.

use std::ops::Range;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use peergrad_simulations::invariants::Violation;
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::scenario::file::Size;
use peergrad_simulations::scenario::named::NAMED;
use peergrad_simulations::simulation::Simulation;
use serde_json::json;

use crate::{SweepArguments, source};

use crate::say::say;

/// The results of many seeds.
#[derive(Default)]
struct SweepResult {
    steps: u64,
    time: Duration,
    broken: Vec<(u64, Violation)>,
}

/// Runs scenarios with many seeds.
pub(crate) fn sweep(arguments: &SweepArguments) -> anyhow::Result<ExitCode> {
    let mut names: Vec<&str> = arguments.scenarios.iter().map(String::as_str).collect();
    if names.is_empty() {
        names.extend(NAMED.iter().map(|(name, _)| *name));
    }
    let mut is_kept = true;
    // All scenarios are read before the first is run, which may take long, so that a mistake is reported at once.
    let read = |name| Ok((name, source::scenario(name, Size::Sweep)?));
    let scenarios = names.into_iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
    for (name, scenario) in scenarios {
        let result = sweep_one(&scenario, &arguments.seeds);
        is_kept &= result.broken.is_empty();
        if arguments.json {
            print_json(name, &arguments.seeds, &result)?;
        } else {
            print(name, &arguments.seeds, &result)?;
        }
    }
    Ok(if is_kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every core takes the next seed until all are done.
#[expect(
    clippy::disallowed_methods,
    reason = "each run is alone on its thread; only their number is counted together"
)]
fn sweep_one(scenario: &Scenario, seeds: &Range<u64>) -> SweepResult {
    let count = seeds.end - seeds.start;
    let next = AtomicU64::new(0);
    let result = Mutex::new(SweepResult::default());
    let bar = progress(&scenario.name, count);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return;
            }
            let seed = seeds.start + index;
            let outcome = Simulation::new(scenario, seed).run();
            let mut result = result.lock().expect("no thread panics while counting");
            result.steps += outcome.steps;
            result.time += outcome.time;
            result.broken.extend(outcome.violations.into_iter().next().map(|violation| (seed, violation)));
            bar.inc(1);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    bar.finish_and_clear();
    let mut result = result.into_inner().expect("no thread panicked while counting");
    result.broken.sort_by_key(|(seed, _)| *seed);
    result
}

fn progress(name: &str, count: u64) -> ProgressBar {
    let bar = ProgressBar::new(count).with_message(name.to_owned());
    let style = ProgressStyle::with_template("{msg:16} {wide_bar} {pos}/{len} seeds, {eta} left");
    bar.with_style(style.expect("the template is right"))
}

fn print(name: &str, seeds: &Range<u64>, result: &SweepResult) -> anyhow::Result<()> {
    let count = seeds.end - seeds.start;
    say!(
        "{name:16} {:>5} of {count} seeds without a violation  ({} steps, {:.1} h of virtual time)",
        count - result.broken.len() as u64,
        result.steps,
        result.time.as_secs_f64() / 3600.0
    );
    for (seed, violation) in result.broken.iter().take(BROKEN_SHOWN_MAX) {
        say!("  seed {seed}: {}: {}", violation.invariant, violation.message);
        say!("    simulate replay {name} --small --seed {seed}");
    }
    if result.broken.len() > BROKEN_SHOWN_MAX {
        say!("  and {} more", result.broken.len() - BROKEN_SHOWN_MAX);
    }
    Ok(())
}

fn print_json(name: &str, seeds: &Range<u64>, result: &SweepResult) -> anyhow::Result<()> {
    let broken: Vec<_> = result
        .broken
        .iter()
        .map(|(seed, violation)| json!({"seed": seed, "invariant": violation.invariant, "text": violation.message}))
        .collect();
    say!(
        "{}",
        json!({"event": "sweep", "scenario": name, "seeds": [seeds.start, seeds.end], "steps": result.steps,
            "virtual_seconds": result.time.as_secs_f64(), "broken": broken})
    );
    Ok(())
}

/// Most seeds that are listed one by one.
const BROKEN_SHOWN_MAX: usize = 5;
