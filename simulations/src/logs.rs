//! Logs: the history of a real run, built from the event logs of its peers.
//!
//! They resemble diaries, each kept by its author's own watch: side by side, they tell what happened to all. But the watches differ, so
//! they are aligned by the events that several diaries have.
//!
//! ```text
//! events.jsonl of p0 --.                                       one clock
//! events.jsonl of p1 --+--> reader --> process logs --> clocks --> history --> the same report as of a simulated run
//! events.jsonl of p2 --'                              '----> checks
//! ```
//! # How it works
//! - [`reader`] parses lines; a line that was cut off by a crash, or is damaged, is skipped and counted.
//! - A *process log* has the lines of one process and one run, from its start to its last line.
//! - [`clocks`]: all members learn of a committed step, and of a view, within about a step's time. The clock of each process log is aligned
//!   by the median difference of what it shares with those that are aligned already.
//! - [`history_builder`] builds the history from all of them. For a peer without a log it uses what the others report.
//!
//! # Not here
//! Invariants: a log has too little for most. Three that it can show are in [`checks`].

pub mod checks;
pub mod clocks;
pub mod history_builder;
pub mod reader;
mod sent_bytes;

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::path::PathBuf;

use peergrad_config::file_error::advice;
use peergrad_protocol::{PeerId, RunId};

use crate::history::History;
use crate::report::CheckResult;
use clocks::ClockOffset;
use reader::{Log, ProcessLog};

/// A real run, as its peers' logs report it.
#[derive(Debug)]
pub struct RecordedRun {
    /// The run's id.
    pub run: RunId,
    /// What happened in it.
    pub history: History,
    /// Whether the logs agree with each other.
    pub check_results: Vec<CheckResult>,
    /// How the clocks were aligned, by process log.
    pub clock_offsets: Vec<ClockOffset>,
    /// The time zero of the history, in seconds since 1970 on the reference clock.
    pub began_at: f64,
    /// Number of steps that are known to be committed.
    pub steps: u64,
    /// The name of each lane's log; `None` for a peer that only other logs mention.
    pub names: Vec<Option<String>>,
    /// Number of lines that could not be parsed.
    pub damaged_lines: usize,
    /// Number of lines that a peer could not write.
    pub lost_lines: u64,
    /// Number of other runs in the logs.
    pub other_runs: usize,
}

/// What to do about a log that cannot be read: usually it is not there, or belongs to another user.
fn remedy(cause: &Error) -> &'static str {
    match cause.kind() {
        ErrorKind::NotFound | ErrorKind::PermissionDenied => {
            "give a data directory or an events.jsonl that you may read"
        }
        _ => advice(cause),
    }
}

/// Why no history can be built.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The system cannot read a file.
    #[error("cannot read {}: {cause}; {}", path.display(), remedy(cause))]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        cause: Error,
    },
    /// The directory has no log.
    #[error("no event log in {}: give a peer's data directory, which holds events.jsonl, or such a file", path.display())]
    NoLog {
        /// The directory.
        path: PathBuf,
    },
    /// The file is no event log.
    #[error("{} is not the event log of a peer; give a peer's data directory, or its events.jsonl", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The log was written by a release with another format.
    #[error("{} is an event log of format {format_number}, and this program reads format {FORMAT}: use the release that wrote it", path.display())]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// The log's format.
        format_number: u64,
    },
    /// No log has a run.
    #[error("the logs contain no run, because their peers never joined one; give the logs of other peers")]
    NoRun,
    /// The logs have other runs only.
    #[error("no run in these logs has an id that begins with `{wanted}`; they contain {}", known.join(", "))]
    NoSuchRun {
        /// The beginning of an id, as the user typed it.
        wanted: String,
        /// The runs that the logs have.
        known: Vec<String>,
    },
}

/// Builds the history of one run from the logs at these paths, which are files or data directories: of the run whose id begins with
/// `wanted`, or of the last one.
///
/// # Errors
/// A path is no log, or no log has such a run.
pub fn recorded_run(paths: &[PathBuf], wanted: Option<&str>) -> Result<RecordedRun, LogError> {
    let logs = paths.iter().map(|path| reader::read(path)).collect::<Result<_, _>>()?;
    recorded_run_of(logs, wanted)
}

/// As [`recorded_run`], from logs that were read. Several may be of one peer.
///
/// # Errors
/// No log has such a run.
pub fn recorded_run_of(read: Vec<Log>, wanted: Option<&str>) -> Result<RecordedRun, LogError> {
    let mut logs: BTreeMap<PeerId, Log> = BTreeMap::new();
    for log in read {
        match logs.get_mut(&log.peer) {
            Some(known) => known.add(log),
            None => drop(logs.insert(log.peer, log)),
        }
    }
    let damaged_lines = logs.values().map(|log| log.damaged_lines).sum();
    let mut names: BTreeMap<PeerId, String> = BTreeMap::new();
    let mut process_logs: Vec<ProcessLog> = Vec::new();
    for (peer, log) in logs {
        names.insert(peer, log.name);
        process_logs.extend(log.process_logs);
    }
    let (run, other_runs) = choose(&process_logs, wanted)?;
    process_logs.retain(|process_log| process_log.run == Some(run));
    let lost_lines = total(process_logs.iter().map(|process_log| process_log.lost_lines));
    let clock_offsets = clocks::align(&mut process_logs);
    process_logs.sort_by(|a, b| a.began().total_cmp(&b.began()).then(a.peer.cmp(&b.peer)));
    let history_builder::BuiltHistory { history, began_at, steps, peers } =
        history_builder::history(&process_logs);
    Ok(RecordedRun {
        run,
        check_results: checks::check_results(&process_logs, &peers),
        history,
        clock_offsets,
        began_at,
        steps,
        names: peers.iter().map(|peer| names.get(peer).cloned()).collect(),
        damaged_lines,
        lost_lines,
        other_runs,
    })
}

/// The sum. A damaged line may hold any number.
fn total(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

/// The requested run, or else the one with the latest line; and the number of other runs.
fn choose(process_logs: &[ProcessLog], wanted: Option<&str>) -> Result<(RunId, usize), LogError> {
    let mut runs: BTreeMap<RunId, f64> = BTreeMap::new();
    for (run, process_log) in
        process_logs.iter().filter_map(|process_log| Some((process_log.run?, process_log)))
    {
        let last = runs.entry(run).or_insert(f64::MIN);
        *last = last.max(process_log.ended());
    }
    let is_wanted = |run: &&RunId| wanted.is_none_or(|wanted| run.to_string().starts_with(wanted));
    let chosen = runs.keys().filter(is_wanted).max_by(|a, b| runs[a].total_cmp(&runs[b]));
    match (chosen, wanted) {
        (Some(run), _) => Ok((*run, runs.len() - 1)),
        (None, Some(wanted)) if !runs.is_empty() => {
            let known = runs.keys().map(RunId::short).collect();
            Err(LogError::NoSuchRun { wanted: wanted.to_owned(), known })
        }
        (None, _) => Err(LogError::NoRun),
    }
}

/// The format of logs that this program reads.
pub const FORMAT: u64 = 1;
