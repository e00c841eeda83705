//! `simulate run`: once, with everything that there is to tell.

use std::process::ExitCode;

use peergrad_simulations::simulation::Outcome;

use crate::{RunArguments, json, words};

/// Runs a scenario and tells how it went.
pub(crate) fn run(arguments: &RunArguments) -> anyhow::Result<ExitCode> {
    let scenario = arguments.chosen.scenario()?;
    let outcome = arguments.chosen.simulation(&scenario)?.run();
    if arguments.json {
        json::tell(&scenario, arguments.chosen.seed, &outcome);
    } else {
        println!("{}, seed {}: {}", scenario.name, arguments.chosen.seed, scenario.about);
        for sentence in words::summary(&scenario, &outcome) {
            println!("{sentence}");
        }
        verdict(&outcome);
        println!("trace hash {}", outcome.trace_hash);
        if !outcome.violations.is_empty() {
            println!("to see what led there: {}", arguments.chosen.command("replay"));
        }
    }
    Ok(if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn verdict(outcome: &Outcome) {
    for violation in &outcome.violations {
        println!("BROKEN  {}, at {}: {}", violation.law, words::at(violation.at.0), violation.words);
    }
    if outcome.violations.is_empty() {
        println!("Kept: {}.", outcome.checked.join(", "));
    }
}
