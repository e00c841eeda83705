//! `simulate replay`: repeats a run and prints its last events before the first violation.

use std::process::ExitCode;

use crate::{ReplayArguments, text};

use crate::say::say;

/// Runs a scenario and prints its last events.
pub(crate) fn replay(arguments: &ReplayArguments) -> anyhow::Result<ExitCode> {
    let scenario = arguments.chosen.scenario()?;
    let mut simulation = arguments.chosen.simulation(&scenario)?;
    simulation.cluster.trace_mut().keep_lines(arguments.lines.max(1));
    while simulation.tick() {}
    for (at, line) in simulation.cluster.trace().lines() {
        say!("{:>12}  {line}", text::at(at.0));
    }
    let outcome = simulation.finish();
    let Some(first) = outcome.violations.first() else {
        say!("No invariant was violated. These were the last events.");
        return Ok(ExitCode::SUCCESS);
    };
    say!("{:>12}  VIOLATED  {}: {}", text::at(first.at.0), first.invariant, first.message);
    Ok(ExitCode::FAILURE)
}
