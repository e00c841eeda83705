//! `simulate report`: the page of a real run, from what its peers have written down.

use std::process::ExitCode;

use anyhow::Context;
use peergrad_simulations::history::{Ending, State};
use peergrad_simulations::logs::clocks::Setting;
use peergrad_simulations::logs::{Tale, tale};
use peergrad_simulations::report::{Report, render};

use crate::LogArguments;
use crate::run::check_writable;
use crate::say::say;
use crate::words::{bytes, date, healings, plural, time};
use peergrad::page::axis::count;

/// Draws it. Exit code 1 if the logs contradict each other.
pub(crate) fn report(arguments: &LogArguments) -> anyhow::Result<ExitCode> {
    let tale = tale(&arguments.logs, arguments.run.as_deref())?;
    check_writable(&arguments.output)?;
    let path = arguments.output.display();
    let words = summary(&tale);
    let page = render(&Report {
        title: &format!("run {}", tale.run.short()),
        about: &format!("A real run, drawn from the event logs of {}.", plural(logs(&tale), "peer")),
        command: &command(arguments),
        words: &words,
        facts: &facts(&tale),
        verdicts: &tale.verdicts,
        history: &tale.history,
    });
    std::fs::write(&arguments.output, page).with_context(|| format!("cannot write the report {path}"))?;
    words.iter().chain(&healings(&tale.history)).try_for_each(|sentence| -> anyhow::Result<()> {
        say!("{sentence}");
        Ok(())
    })?;
    let broken: Vec<_> = tale.verdicts.iter().filter(|verdict| verdict.outcome.is_err()).collect();
    for verdict in &broken {
        let words = verdict.outcome.as_ref().err().map_or("", String::as_str);
        say!("BROKEN  {} ({}): {words}", verdict.name, verdict.source);
    }
    say!("report: {path}");
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Peers whose logs were read.
fn logs(tale: &Tale) -> usize {
    tale.names.iter().flatten().count()
}

fn command(arguments: &LogArguments) -> String {
    let logs: Vec<String> = arguments.logs.iter().map(|path| path.display().to_string()).collect();
    let run = arguments.run.as_ref().map_or(String::new(), |run| format!(" --run {run}"));
    format!("simulate report {} -o {}{run}", logs.join(" "), arguments.output.display())
}

/// A few sentences.
fn summary(tale: &Tale) -> Vec<String> {
    let history = &tale.history;
    let silent = tale.names.len() - logs(tale);
    let mut words = vec![format!(
        "{} committed {} in {}, {} of it in training; {} on the wire; {}.",
        plural(tale.names.len(), "peer"),
        plural(tale.steps as usize, "step"),
        time(history.end.0 as f64 / 1e9),
        time(history.training_time().as_secs_f64()),
        bytes(history.traffic.total),
        plural(history.views.len(), "view"),
    )];
    if silent > 0 {
        let lanes = tale.names.iter().enumerate().filter(|(_, name)| name.is_none());
        let lanes: Vec<String> = lanes.map(|(index, _)| format!("p{index}")).take(LANES_NAMED_MAX).collect();
        words.push(format!(
            "There is no log of {}: of {} there is what the others say, and what {} of the parameters stays white.",
            if silent > lanes.len() { plural(silent, "peer") } else { lanes.join(", ") },
            if silent == 1 { "it" } else { "them" },
            if silent == 1 { "it owned" } else { "they owned" },
        ));
    }
    words.extend(clock_words(&tale.settings));
    words.push(format!("In the end: {}.", endings(tale)));
    words.push(
        "Of the steps a few a second are in the logs, and all around a change; the others are counted with the next one."
            .to_owned(),
    );
    if tale.damaged_lines + tale.lost_lines as usize > 0 {
        words.push(format!(
            "{} cut off or damaged and passed over; {} could not be written down.",
            were(tale.damaged_lines),
            were(tale.lost_lines as usize)
        ));
    }
    if tale.other_runs > 0 {
        words.push(format!("The logs tell of {} more: --run chooses.", plural(tale.other_runs, "run")));
    }
    words
}

fn were(lines: usize) -> String {
    format!("{} {}", plural(lines, "line"), if lines == 1 { "was" } else { "were" })
}

/// How the clocks of several hosts were made one.
fn clock_words(settings: &[Setting]) -> Option<String> {
    let set: Vec<&Setting> = settings.iter().filter(|setting| setting.points > 0).collect();
    let alone = settings.len().saturating_sub(set.len() + 1);
    if settings.len() < 2 {
        return None;
    }
    let most = |of: fn(&&Setting) -> f64| set.iter().map(of).fold(0.0, f64::max);
    let (apart, spread) = (most(|setting| setting.added.abs()), most(|setting| setting.spread));
    let points = set.iter().map(|setting| setting.points).min().unwrap_or(0);
    let mut words = match set.len() {
        0 => String::new(),
        _ => format!(
            "Clocks were set by the steps and views that several tell of, at least {points} for each, by the median: they were up to {} apart, and then half of all were within {}.",
            time(apart),
            time(spread)
        ),
    };
    if alone > 0 {
        let what = if alone == 1 { "log shares" } else { "logs share" };
        words = format!("{words} {alone} {what} nothing with the others and was believed as it is.")
            .trim()
            .to_owned();
    }
    Some(words)
}

/// What became of everybody.
fn endings(tale: &Tale) -> String {
    let mut counts = [
        (0, "finished"),
        (0, "left"),
        (0, "could not go on"),
        (0, "killed"),
        (0, "still running, or at the end of its log"),
    ];
    for lane in &tale.history.lanes {
        let index = match lane.spans.last().map(|span| span.state) {
            Some(State::Ended(Ending::Finished)) => 0,
            Some(State::Ended(Ending::Left)) => 1,
            Some(State::Ended(Ending::Failed)) => 2,
            Some(State::Down) | None => 3,
            Some(State::Joining | State::Member(_) | State::Paused) => 4,
        };
        counts[index].0 += 1;
    }
    let told = counts.iter().filter(|(count, _)| *count > 0);
    told.map(|(count, words)| format!("{count} {words}")).collect::<Vec<_>>().join(", ")
}

/// Numbers with names; who the lanes are.
fn facts(tale: &Tale) -> Vec<(String, String)> {
    let history = &tale.history;
    let fact = |name: &str, value: String| (name.to_owned(), value);
    let mut facts = vec![
        fact("time", time(history.end.0 as f64 / 1e9)),
        fact("committed steps", count(tale.steps)),
        fact("views", history.views.len().to_string()),
        fact("steps redone", history.redone.len().to_string()),
        fact("bytes sent", bytes(history.traffic.total)),
    ];
    if let Some(last) = history.commits.iter().max_by_key(|note| note.committed.step) {
        facts.push(fact("last loss", format!("{:.4e}", last.committed.loss)));
    }
    facts.push(fact("run", tale.run.to_string()));
    facts.push(fact("began at", date(tale.began_at)));
    for (index, (lane, name)) in history.lanes.iter().zip(&tale.names).enumerate().take(LANES_NAMED_MAX) {
        let added: Vec<String> = tale
            .settings
            .iter()
            .filter(|setting| setting.peer == lane.peer && setting.added.abs() >= CLOCK_TOLD)
            .map(|setting| format!("clock {:+.3} s", setting.added))
            .collect();
        let name = name.as_deref().unwrap_or("no log");
        let clock = if added.is_empty() { String::new() } else { format!(", {}", added.join(", ")) };
        facts.push(fact(&format!("p{index}"), format!("peer {}: {name}{clock}", lane.peer.short())));
    }
    facts
}

/// As many lanes are told one by one.
const LANES_NAMED_MAX: usize = 24;
/// Smaller differences of clocks are nothing to tell of, seconds.
const CLOCK_TOLD: f64 = 0.0005;
