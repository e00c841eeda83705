//! `simulate report`: the report of a real run, drawn from its peers' event logs.

use std::process::ExitCode;

use anyhow::Context;
use peergrad_simulations::history::{ExitStatus, PeerState};
use peergrad_simulations::logs::clocks::ClockOffset;
use peergrad_simulations::logs::{RecordedRun, recorded_run};
use peergrad_simulations::report::{Report, render};

use crate::ReportArguments;
use crate::run::check_writable;
use crate::say::say;
use crate::text::{branch_ends, bytes, date, plural, time};
use peergrad_page::axis::count;

/// Draws the report. Exit code 1 if the logs contradict each other.
pub(crate) fn report(arguments: &ReportArguments) -> anyhow::Result<ExitCode> {
    let recorded_run = recorded_run(&arguments.logs, arguments.run.as_deref())?;
    check_writable(&arguments.output)?;
    let path = arguments.output.display();
    let words = summary(&recorded_run);
    let page = render(&Report {
        title: &format!("run {}", recorded_run.run.short()),
        about: &format!("A real run, drawn from the event logs of {}.", plural(logs(&recorded_run), "peer")),
        command: &command(arguments),
        words: &words,
        facts: &facts(&recorded_run),
        check_results: &recorded_run.check_results,
        history: &recorded_run.history,
    });
    std::fs::write(&arguments.output, page).with_context(|| format!("cannot write the report {path}"))?;
    words.iter().chain(&branch_ends(&recorded_run.history)).try_for_each(
        |sentence| -> anyhow::Result<()> {
            say!("{sentence}");
            Ok(())
        },
    )?;
    let broken: Vec<_> =
        recorded_run.check_results.iter().filter(|verdict| verdict.outcome.is_err()).collect();
    for verdict in &broken {
        let words = verdict.outcome.as_ref().err().map_or("", String::as_str);
        say!("VIOLATED  {} ({}): {words}", verdict.name, verdict.source);
    }
    say!("report: {path}");
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Peers whose logs were read.
fn logs(recorded_run: &RecordedRun) -> usize {
    recorded_run.names.iter().flatten().count()
}

fn command(arguments: &ReportArguments) -> String {
    let logs: Vec<String> = arguments.logs.iter().map(|path| path.display().to_string()).collect();
    let run = arguments.run.as_ref().map_or(String::new(), |run| format!(" --run {run}"));
    format!("simulate report {} -o {}{run}", logs.join(" "), arguments.output.display())
}

/// A summary in a few sentences.
fn summary(recorded_run: &RecordedRun) -> Vec<String> {
    let history = &recorded_run.history;
    let silent = recorded_run.names.len() - logs(recorded_run);
    let mut words = vec![format!(
        "{} committed {} in {}, {} of it in training; {} sent; {}.",
        plural(recorded_run.names.len(), "peer"),
        plural(recorded_run.steps as usize, "step"),
        time(history.end.0 as f64 / 1e9),
        time(history.training_time().as_secs_f64()),
        bytes(history.traffic.total),
        plural(history.views.len(), "view"),
    )];
    if silent > 0 {
        let lanes = recorded_run.names.iter().enumerate().filter(|(_, name)| name.is_none());
        let lanes: Vec<String> = lanes.map(|(index, _)| format!("p{index}")).take(LANES_NAMED_MAX).collect();
        words.push(format!(
            "There is no log of {}: the report shows only what other logs say about {}, and leaves {} share of the parameters white.",
            if silent > lanes.len() { plural(silent, "peer") } else { lanes.join(", ") },
            if silent == 1 { "it" } else { "them" },
            if silent == 1 { "its" } else { "their" },
        ));
    }
    words.extend(clock_words(&recorded_run.clock_offsets));
    words.push(format!("At the end: {}.", endings(recorded_run)));
    words.push(
        "The logs list a few steps per second, and all steps around a change; the other steps are counted with the next listed one."
            .to_owned(),
    );
    if recorded_run.damaged_lines + recorded_run.lost_lines as usize > 0 {
        words.push(format!(
            "{} cut off or damaged, and skipped; {} never written.",
            were(recorded_run.damaged_lines),
            were(recorded_run.lost_lines as usize)
        ));
    }
    if recorded_run.other_runs > 0 {
        words.push(format!(
            "The logs contain {} more: --run selects one.",
            plural(recorded_run.other_runs, "run")
        ));
    }
    words
}

fn were(lines: usize) -> String {
    format!("{} {}", plural(lines, "line"), if lines == 1 { "was" } else { "were" })
}

/// How the clocks of several hosts were aligned.
fn clock_words(clock_offsets: &[ClockOffset]) -> Option<String> {
    let set: Vec<&ClockOffset> = clock_offsets.iter().filter(|offset| offset.points > 0).collect();
    let alone = clock_offsets.len().saturating_sub(set.len() + 1);
    if clock_offsets.len() < 2 {
        return None;
    }
    let most = |of: fn(&&ClockOffset) -> f64| set.iter().map(of).fold(0.0, f64::max);
    let (apart, spread) = (most(|offset| offset.added.abs()), most(|offset| offset.spread));
    let points = set.iter().map(|offset| offset.points).min().unwrap_or(0);
    let mut words = match set.len() {
        0 => String::new(),
        _ => format!(
            "Clocks were aligned by the steps and views that several logs share, at least {points} per clock, using the median: they were up to {} apart, and half of the shared points are within {} afterwards.",
            time(apart),
            time(spread)
        ),
    };
    if alone > 0 {
        let what = if alone == 1 {
            "log shares no step with the others: its clock"
        } else {
            "logs share no steps with the others: their clocks"
        };
        words = format!("{words} {alone} {what} could not be aligned.").trim().to_owned();
    }
    Some(words)
}

/// How the peers ended.
fn endings(recorded_run: &RecordedRun) -> String {
    let mut counts = [
        (0, "finished"),
        (0, "left"),
        (0, "failed"),
        (0, "killed"),
        (0, "still running at the end of the log"),
    ];
    for lane in &recorded_run.history.peers {
        let index = match lane.spans.last().map(|span| span.state) {
            Some(PeerState::Ended(ExitStatus::Finished)) => 0,
            Some(PeerState::Ended(ExitStatus::Left)) => 1,
            Some(PeerState::Ended(ExitStatus::Failed)) => 2,
            Some(PeerState::Down) | None => 3,
            Some(PeerState::Joining | PeerState::Member(_) | PeerState::Paused) => 4,
        };
        counts[index].0 += 1;
    }
    let nonzero = counts.iter().filter(|(count, _)| *count > 0);
    nonzero.map(|(count, words)| format!("{count} {words}")).collect::<Vec<_>>().join(", ")
}

/// Named numbers, and the peer of each lane of the chart.
fn facts(recorded_run: &RecordedRun) -> Vec<(String, String)> {
    let history = &recorded_run.history;
    let fact = |name: &str, value: String| (name.to_owned(), value);
    let mut facts = vec![
        fact("time", time(history.end.0 as f64 / 1e9)),
        fact("committed steps", count(recorded_run.steps)),
        fact("views", history.views.len().to_string()),
        fact("steps redone", history.redone.len().to_string()),
        fact("bytes sent", bytes(history.traffic.total)),
    ];
    if let Some(last) = history.commits.iter().max_by_key(|note| note.committed.step) {
        facts.push(fact("last loss", format!("{:.4e}", last.committed.loss)));
    }
    facts.push(fact("run", recorded_run.run.to_string()));
    facts.push(fact("began at", date(recorded_run.began_at)));
    for (index, (lane, name)) in
        history.peers.iter().zip(&recorded_run.names).enumerate().take(LANES_NAMED_MAX)
    {
        let added: Vec<String> = recorded_run
            .clock_offsets
            .iter()
            .filter(|offset| offset.peer == lane.peer && offset.added.abs() >= CLOCK_SHOWN_MIN)
            .map(|offset| format!("clock {:+.3} s", offset.added))
            .collect();
        let name = name.as_deref().unwrap_or("no log");
        let clock = if added.is_empty() { String::new() } else { format!(", {}", added.join(", ")) };
        facts.push(fact(&format!("p{index}"), format!("peer {}: {name}{clock}", lane.peer.short())));
    }
    facts
}

/// Most lanes that are named one by one.
const LANES_NAMED_MAX: usize = 24;
/// Clock differences below this, in seconds, are not mentioned.
const CLOCK_SHOWN_MIN: f64 = 0.0005;
