//! The reader: from files to process logs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use peergrad_core::io::MergeEvaluation;
use peergrad_models::task::Evaluation;
use peergrad_protocol::view::Branch;
use peergrad_protocol::{PeerId, RunId, StepNumber, ViewDigest, ViewNumber};
use serde_json::Value;

use super::{FORMAT, LogError};
use crate::history::{ExitStatus, LineRate, MergeSummary};

/// The log of one peer.
#[derive(Debug)]
pub struct Log {
    /// The peer that wrote it.
    pub peer: PeerId,
    /// The path from which it was read.
    pub name: String,
    /// Its processes, the oldest first.
    pub process_logs: Vec<ProcessLog>,
    /// Number of lines that could not be parsed.
    pub damaged_lines: usize,
}

/// What one process wrote on one run.
#[derive(Clone, Debug)]
pub struct ProcessLog {
    /// The peer that wrote it.
    pub peer: PeerId,
    /// The peer's incarnation.
    pub incarnation: u64,
    /// The run; `None` if the process never was in one.
    pub run: Option<RunId>,
    /// Its lines, the oldest first; never empty.
    pub lines: Vec<Line>,
    /// Number of lines that it could not write.
    pub lost_lines: u64,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Line {
    /// Seconds since 1970, on its machine's clock.
    pub at: f64,
    /// The parsed content.
    pub content: LineContent,
}

/// The content of a line.
#[derive(Clone, Debug)]
pub enum LineContent {
    /// The process starts.
    Started,
    /// Task and data are ready.
    Prepared {
        /// Number of elements of the parameter vector.
        parameters: usize,
        /// Number of steps of the run.
        steps: u64,
        /// Whether each member has losses of its own; `None` if an old log does not say.
        has_own_losses: Option<bool>,
    },
    /// A view was installed.
    View(ViewLine),
    /// A step was committed.
    Step(StepLine),
    /// What has gone to and come from other peers.
    Traffic {
        /// By peer: bytes written and read so far.
        bytes: BTreeMap<PeerId, (u64, u64)>,
        /// By peer: the line, where it was measured.
        lines: BTreeMap<PeerId, LineRate>,
    },
    /// The peer is no longer a member, and asks to rejoin.
    Excluded(String),
    /// The peer is no longer a member, since its branch yields to another one and nothing of it is kept.
    BranchAbandoned(String),
    /// Another branch, the one with this view, is merged into the peer's branch.
    Merged {
        /// The digest of that view.
        view: ViewDigest,
        /// The samples and steps that are merged.
        merged: MergeSummary,
        /// The line's text.
        words: String,
    },
    /// The losses of both branches and of the merged model, with the line's text.
    MergeEvaluation(MergeEvaluation, String),
    /// The peer cannot reach enough members.
    Paused(String),
    /// The run has ended for this peer.
    Ended(ExitStatus),
    /// Another event with a text.
    Note(String),
    /// Another event without a text.
    Other,
}

/// A view, as a line describes it.
#[derive(Clone, Debug)]
pub struct ViewLine {
    /// Its number.
    pub number: u64,
    /// Its digest.
    pub digest: ViewDigest,
    /// The digests of the views that it follows.
    pub parents: Vec<ViewDigest>,
    /// The members' ids, by rank.
    pub members: Vec<PeerId>,
    /// Number of elements that this peer owns once all chunks have moved.
    pub share: usize,
    /// Its first step.
    pub first_step: u64,
    /// Whether that step was interrupted before and starts again.
    pub is_redone: bool,
    /// Where the run's present branch begins: with the first view; with the last one that continued from checkpoints; or, if several
    /// branches may exist, with the last one that lost a member.
    pub branch: Branch,
    /// Whether the line repeats an earlier view at the head of a new file, when older files are gone.
    pub is_repeated: bool,
}

/// A committed step, as a line describes it.
#[derive(Clone, Debug)]
pub struct StepLine {
    /// Its number.
    pub step: u64,
    /// The epoch it belongs to.
    pub epoch: u64,
    /// The mean loss; NaN if it was not finite.
    pub loss: f64,
    /// Number of samples that it trained.
    pub samples: u64,
    /// Number of samples of its batch that were left out.
    pub left_out: u64,
    /// The learning rate.
    pub rate: f64,
    /// Digest of the parameters after it; `None` if the line has none.
    pub digest: Option<String>,
    /// Bytes that this peer had sent by then.
    pub sent_bytes: u64,
}

/// A step: its branch of the run, and its number. If the run goes back to a checkpoint, later steps are trained again under the same
/// numbers, in another branch.
pub type StepId = (Branch, u64);

impl ProcessLog {
    /// The steps in this log, each with its time.
    pub fn steps(&self) -> impl Iterator<Item = (f64, StepId, &StepLine)> {
        let mut branch = Branch { view_number: ViewNumber(0), step: StepNumber(0), fork: None };
        self.lines.iter().filter_map(move |line| match &line.content {
            LineContent::View(view) => {
                branch = view.branch;
                None
            }
            LineContent::Step(step) => Some((line.at, (branch, step.step), step)),
            _ => None,
        })
    }
}

impl Log {
    /// Adds more of the same peer: another file, or another copy of the directory.
    pub fn add(&mut self, other: Self) {
        self.damaged_lines += other.damaged_lines;
        self.name = format!("{}, {}", self.name, other.name);
        self.process_logs.extend(other.process_logs);
        self.process_logs
            .sort_by(|a, b| a.incarnation.cmp(&b.incarnation).then(a.began().total_cmp(&b.began())));
        // Two files may have parts of one process, or the same part.
        self.process_logs.dedup_by(|later, earlier| {
            let is_same = later.incarnation == earlier.incarnation && later.run == earlier.run;
            if is_same {
                let until = earlier.ended();
                earlier.lines.extend(later.lines.drain(..).filter(|line| line.at > until));
            }
            is_same
        });
    }
}

impl ProcessLog {
    /// When its first line was written.
    #[must_use]
    pub fn began(&self) -> f64 {
        self.lines[0].at
    }

    /// When its last line was written.
    #[must_use]
    pub fn ended(&self) -> f64 {
        self.lines[self.lines.len() - 1].at
    }
}

/// Reads the log of one peer: a file, or all log files in its data directory.
///
/// # Errors
/// It cannot be read, or is no log.
pub fn read(path: &Path) -> Result<Log, LogError> {
    let unreadable = |path: &Path, cause| LogError::Unreadable { path: path.to_owned(), cause };
    let is_folder = fs::metadata(path).map_err(|cause| unreadable(path, cause))?.is_dir();
    let files = if is_folder {
        files_in(path).map_err(|cause| unreadable(path, cause))?
    } else {
        vec![path.to_owned()]
    };
    if files.is_empty() {
        return Err(LogError::NoLog { path: path.to_owned() });
    }
    let mut contents = Vec::new();
    for file in files {
        let bytes = fs::read(&file).map_err(|cause| unreadable(&file, cause))?;
        contents.push((file, bytes));
    }
    parse(path, &contents)
}

/// The log of one peer from the contents of its files, the oldest first; `path` is the name for errors.
///
/// # Errors
/// They are no log, or one of another format.
pub fn parse(path: &Path, files: &[(PathBuf, Vec<u8>)]) -> Result<Log, LogError> {
    let mut reader = Reader::default();
    for (file, bytes) in files {
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            reader
                .line(line)
                .map_err(|format_number| LogError::OtherFormat { path: file.clone(), format_number })?;
        }
    }
    let Reader { peer, process_logs, damaged_lines, .. } = reader;
    let peer = peer.ok_or_else(|| LogError::Foreign { path: path.to_owned() })?;
    Ok(Log { peer, name: path.display().to_string(), process_logs, damaged_lines })
}

/// `events.7.jsonl`, ..., `events.1.jsonl`, `events.jsonl`: the oldest first.
fn files_in(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut numbered = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(middle) = name.strip_prefix("events").and_then(|rest| rest.strip_suffix(".jsonl")) else {
            continue;
        };
        match middle.strip_prefix('.').map(str::parse::<u32>) {
            None if middle.is_empty() => numbered.push((0, path)),
            Some(Ok(number)) => numbered.push((number, path)),
            _ => {}
        }
    }
    numbered.sort_by(|a, b| b.cmp(a));
    Ok(numbered.into_iter().map(|(_, path)| path).collect())
}

#[derive(Default)]
struct Reader {
    peer: Option<PeerId>,
    process_logs: Vec<ProcessLog>,
    damaged_lines: usize,
}

impl Reader {
    /// Adds one line. An error is the number of a format that this program does not read.
    fn line(&mut self, text: &[u8]) -> Result<(), u64> {
        let value: Option<Value> = serde_json::from_slice(text).ok();
        let at = value.as_ref().and_then(|value| value["at"].as_f64()).filter(|at| TIMES.contains(at));
        let (Some(value), Some(at)) = (value, at) else {
            self.damaged_lines += 1;
            return Ok(());
        };
        if value["event"] == "log" {
            return self.head(&value, at);
        }
        // Lines before any head are the rest of a file whose beginning is gone.
        let Some(process_log) = self.process_logs.last_mut() else { return Ok(()) };
        let lost_before = value["lost_before"].as_u64().unwrap_or(0);
        let lost = value["lines"].as_u64().filter(|_| value["event"] == "lost").unwrap_or(0);
        // A damaged line may hold any number.
        process_log.lost_lines = process_log.lost_lines.saturating_add(lost_before).saturating_add(lost);
        if let Some(run) = value["run"].as_str().and_then(digest).map(RunId) {
            // A process is in one run only.
            process_log.run.get_or_insert(run);
        }
        let is_repeated = value["again"] == true
            && process_log.lines.iter().any(|line| matches!(line.content, LineContent::View(_)));
        if is_repeated {
            return Ok(());
        }
        match content(&value) {
            Some(content) => {
                // If a clock was set back, the order of lines remains.
                let at = process_log.lines.last().map_or(at, |last| at.max(last.at));
                process_log.lines.push(Line { at, content });
            }
            None => self.damaged_lines += 1,
        }
        Ok(())
    }

    /// A process starts, or continues in another file.
    fn head(&mut self, value: &Value, at: f64) -> Result<(), u64> {
        let format_number = value["format"].as_u64().unwrap_or(0);
        if format_number != FORMAT {
            return Err(format_number);
        }
        let (Some(peer), Some(incarnation)) =
            (value["peer"].as_str().and_then(|peer| peer.parse().ok()), value["incarnation"].as_u64())
        else {
            self.damaged_lines += 1;
            return Ok(());
        };
        // The identity was replaced meanwhile: the newer one counts.
        if self.peer.replace(peer).is_some_and(|before| before != peer) {
            self.process_logs.clear();
        }
        if self.process_logs.last().is_none_or(|process_log| process_log.incarnation != incarnation) {
            let run = value["run"].as_str().and_then(digest).map(RunId);
            let lines = vec![Line { at, content: LineContent::Started }];
            self.process_logs.push(ProcessLog { peer, incarnation, run, lines, lost_lines: 0 });
        }
        Ok(())
    }
}

/// The content of a line; `None` if a part of it is missing or invalid.
fn content(value: &Value) -> Option<LineContent> {
    let number = |key: &str| value[key].as_u64().filter(|number| *number <= NUMBER_MAX);
    let words = || value["text"].as_str().unwrap_or_default().to_owned();
    Some(match value["event"].as_str()? {
        "prepared" => LineContent::Prepared {
            parameters: number("parameters")? as usize,
            steps: number("steps")?,
            has_own_losses: value["own_losses"].as_bool(),
        },
        "view" => LineContent::View(ViewLine {
            number: number("number")?,
            digest: ViewDigest(digest(value["digest"].as_str()?)?),
            parents: list(&value["parents"], |text| digest(text).map(ViewDigest))?,
            members: list(&value["members"], |text| text.parse().ok())?,
            share: number("share").or_else(|| number("shard"))? as usize,
            first_step: number("first_step")?,
            is_redone: value["redone"].as_bool()?,
            branch: branch(&value["branch"])?,
            is_repeated: value["again"] == true,
        }),
        "step" => LineContent::Step(StepLine {
            step: number("step")?,
            epoch: number("epoch")?,
            loss: value["loss"].as_f64().unwrap_or(f64::NAN),
            samples: number("samples")?,
            left_out: number("left_out")?,
            rate: value["rate"].as_f64().unwrap_or(f64::NAN),
            digest: value["digest"].as_str().map(str::to_owned),
            sent_bytes: number("bytes_sent")?,
        }),
        "traffic" => {
            let entries = value["bytes"].as_object()?.iter();
            let entry = |(peer, both): (&String, &Value)| {
                let count = |index: usize| both[index].as_u64().filter(|count| *count <= NUMBER_MAX);
                Some((peer.parse().ok()?, (count(0)?, count(1)?)))
            };
            // An old log has no lines.
            let lines = value["lines"].as_object().into_iter().flatten();
            let line = |(peer, both): (&String, &Value)| {
                let bytes_per_second = both[0].as_u64().filter(|rate| *rate <= NUMBER_MAX)?;
                let round_trip = Duration::try_from_secs_f64(both[1].as_f64()?).ok()?;
                Some((peer.parse().ok()?, LineRate { bytes_per_second, round_trip }))
            };
            LineContent::Traffic {
                bytes: entries.map(entry).collect::<Option<_>>()?,
                lines: lines.map(line).collect::<Option<_>>()?,
            }
        }
        "branch_abandoned" if value["merged"] == false => LineContent::BranchAbandoned(words()),
        "excluded" | "branch_abandoned" => LineContent::Excluded(words()),
        "merged" => {
            let (ours, theirs) = (number("own_samples")?, number("their_samples")?);
            let merged = MergeSummary { steps: StepNumber(number("steps")?), ours, theirs, comparison: None };
            LineContent::Merged { view: ViewDigest(digest(value["view"].as_str()?)?), merged, words: words() }
        }
        "merge_evaluation" => {
            let [ours, theirs, merged] = ["own", "theirs", "merged"].map(|of| evaluation(&value[of]));
            let [distance, norm] = ["distance", "norm"].map(|of| value[of].as_f64().unwrap_or(f64::NAN));
            let comparison =
                MergeEvaluation { ours: ours?, theirs: theirs?, merged: merged?, distance, norm };
            LineContent::MergeEvaluation(comparison, words())
        }
        "paused" => LineContent::Paused(words()),
        "ended" if value["left"] == true => LineContent::Ended(ExitStatus::Left),
        "ended" if value["finished"].as_bool()? => LineContent::Ended(ExitStatus::Finished),
        "ended" => LineContent::Ended(ExitStatus::Failed),
        // Every peer writes these at its start.
        "join_requested" | "peer_ready" | "welcomed" | "lost" => LineContent::Other,
        _ => value["text"].as_str().map_or(LineContent::Other, |words| LineContent::Note(words.to_owned())),
    })
}

fn evaluation(value: &Value) -> Option<Evaluation> {
    let samples = value["samples"].as_u64()?.try_into().ok()?;
    // A loss that is not finite is written as null.
    let loss = value["loss"].as_f64().unwrap_or(f64::NAN);
    Some(Evaluation { samples, loss, accuracy: value["accuracy"].as_f64() })
}

fn branch(value: &Value) -> Option<Branch> {
    let number = |key: &str| value[key].as_u64().filter(|number| *number <= NUMBER_MAX);
    let fork = match &value["fork"] {
        Value::Null => None,
        fork => Some(u32::try_from(fork.as_u64()?).ok()?),
    };
    Some(Branch { view_number: ViewNumber(number("view_number")?), step: StepNumber(number("step")?), fork })
}

fn list<T>(value: &Value, of: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    value.as_array()?.iter().map(|entry| of(entry.as_str()?)).collect()
}

fn digest(text: &str) -> Option<[u8; 32]> {
    blake3::Hash::from_hex(text).ok().map(|hash| *hash.as_bytes())
}

/// Valid times of a line, in seconds since 1970.
const TIMES: std::ops::Range<f64> = 0.0..1e11;
/// Larger than any number in a run, and small enough to add up without overflow.
const NUMBER_MAX: u64 = 1 << 50;
