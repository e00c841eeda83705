//! `simulate run`: runs a scenario once and prints its results.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use peergrad_simulations::report::{CheckResult, Report, render};
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::simulation::Outcome;

use crate::{RunArguments, json, text};

use crate::say::say;

/// Runs a scenario and prints its results.
pub(crate) fn run(arguments: &RunArguments) -> anyhow::Result<ExitCode> {
    let scenario = arguments.chosen.scenario()?;
    if let Some(path) = &arguments.report {
        check_writable(path)?;
    }
    let outcome = arguments.chosen.simulation(&scenario)?.run();
    if arguments.json {
        json::print(&scenario, arguments.chosen.seed, &outcome)?;
    } else {
        say!("{}, seed {}: {}", scenario.name, arguments.chosen.seed, scenario.about);
        for sentence in text::summary(&scenario, &outcome).iter().chain(&text::branch_ends(&outcome.history))
        {
            say!("{sentence}");
        }
        verdict(&outcome)?;
        say!("trace hash {}", outcome.trace_hash);
        if !outcome.violations.is_empty() {
            say!("last events before the violation: {}", arguments.chosen.command("replay"));
        }
    }
    if let Some(path) = &arguments.report {
        let page = report(&scenario, arguments, &outcome);
        std::fs::write(path, page).with_context(|| format!("cannot write the report {}", path.display()))?;
        if !arguments.json {
            say!("report: {}", path.display());
        }
    }
    Ok(if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks that the report can be written, before a run that may take long.
pub(crate) fn check_writable(report: &Path) -> anyhow::Result<()> {
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(report);
    opened
        .with_context(|| format!("cannot write the report {}; give the path of a file", report.display()))?;
    Ok(())
}

fn verdict(outcome: &Outcome) -> anyhow::Result<()> {
    for violation in &outcome.violations {
        say!("VIOLATED  {}, at {}: {}", violation.invariant, text::at(violation.at.0), violation.message);
    }
    if outcome.violations.is_empty() {
        say!("Checked, without a violation: {}.", outcome.checked.join(", "));
    }
    Ok(())
}

fn report(scenario: &Scenario, arguments: &RunArguments, outcome: &Outcome) -> String {
    let of = |name: &&'static str| {
        let violated = outcome.violations.iter().find(|violation| violation.invariant == *name);
        // The name is, for example, "one chain (invariant 1)": a name and its source.
        let (name, source) = name
            .split_once(" (")
            .map_or((*name, ""), |(name, invariant)| (name, invariant.trim_end_matches(')')));
        let outcome = match violated {
            Some(violation) => Err(format!("{}, at {}", violation.message, text::at(violation.at.0))),
            None => Ok(()),
        };
        CheckResult { name: name.to_owned(), source: source.to_owned(), outcome }
    };
    let check_results: Vec<CheckResult> = outcome.checked.iter().map(of).collect();
    render(&Report {
        title: &format!("{}, seed {}", scenario.name, arguments.chosen.seed),
        about: &scenario.about,
        command: &arguments.chosen.command("run"),
        words: &text::summary(scenario, outcome),
        facts: &text::facts(outcome),
        check_results: &check_results,
        history: &outcome.history,
    })
}
