//! Logs: the history of a real run, put together from the event logs of its peers.
//!
//! Each peer has kept a diary by its own watch. Laid side by side, they tell what happened to all; but the watches differ, so
//! they are set by what several diaries tell of.
//!
//! ```text
//! events.jsonl of p0 --.                                       one clock
//! events.jsonl of p1 --+--> reader --> process logs --> clocks --> history --> the same report as of a simulated run
//! events.jsonl of p2 --'                              '----> checks
//! ```
//! # How it works
//! - [`reader`] takes lines; what was cut off by a crash, or is damaged, is passed over and counted.
//! - A *process log* is what one process told of one run, from its start to its last line.
//! - [`clocks`]: a committed step, and a view, are known at all members within about a step's time. The clock of each process log is set
//!   by the median of what it shares with those that are set already.
//! - [`history_builder`] makes the history of it all. Of a peer whose log is missing there is what the others say.
//!
//! # Not here
//! Invariants: a log holds too little for most. Three that it can show are in [`checks`].

pub mod checks;
pub mod clocks;
pub mod history_builder;
pub mod reader;
mod sent_bytes;

use std::collections::BTreeMap;
use std::path::PathBuf;

use peergrad_protocol::{PeerId, RunId};

use crate::history::History;
use crate::report::CheckResult;
use clocks::ClockOffset;
use reader::{Log, ProcessLog};

/// A real run, as its peers' logs tell it.
#[derive(Debug)]
pub struct RecordedRun {
    /// The run.
    pub run: RunId,
    /// What happened.
    pub history: History,
    /// Whether the logs agree with each other.
    pub check_results: Vec<CheckResult>,
    /// How the clocks were set, by process log.
    pub clock_offsets: Vec<ClockOffset>,
    /// Where lane `0` is: seconds since 1970 on the clock that the others were set by.
    pub began_at: f64,
    /// Steps of the run that are known to be committed.
    pub steps: u64,
    /// The name of each lane's log; `None` of a peer that only others tell of.
    pub names: Vec<Option<String>>,
    /// Lines that make no sense.
    pub damaged_lines: usize,
    /// Lines that a peer could not write.
    pub lost_lines: u64,
    /// Other runs that the logs tell of.
    pub other_runs: usize,
}

/// No history can be made of it.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The system does not let us.
    #[error("cannot read {}: {cause}", path.display())]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// There is no log in it.
    #[error("no event log in {}: give a peer's data directory, which holds events.jsonl, or such a file", path.display())]
    NoLog {
        /// The directory.
        path: PathBuf,
    },
    /// It is something else.
    #[error("{} is no event log of a peer: none of its lines says whose it is", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// It was written by another release.
    #[error("{} is an event log of format {format_number}, and this program reads format {FORMAT}: use the release that wrote it", path.display())]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        format_number: u64,
    },
    /// Nobody was in a run.
    #[error("the logs tell of no run: their peers were never let into one")]
    NoRun,
    /// It is about other runs.
    #[error("no run whose id begins with `{wanted}` is in these logs; they tell of {}", known.join(", "))]
    NoSuchRun {
        /// As the user typed it.
        wanted: String,
        /// The runs that are.
        known: Vec<String>,
    },
}

/// Puts together what the logs at these paths, files or data directories, tell of one run: of the one whose id begins with
/// `wanted`, or of the last.
///
/// # Errors
/// A path is no log, or no log tells of such a run.
pub fn recorded_run(paths: &[PathBuf], wanted: Option<&str>) -> Result<RecordedRun, LogError> {
    let mut logs: BTreeMap<PeerId, Log> = BTreeMap::new();
    for path in paths {
        let log = reader::read(path)?;
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
    let lost_lines = process_logs.iter().map(|process_log| process_log.lost_lines).sum();
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

/// The run that is asked for, else the one that was told of last; and how many others there are.
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

/// The format of logs that is read.
pub const FORMAT: u64 = 1;
