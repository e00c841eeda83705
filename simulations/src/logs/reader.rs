//! Reading: from files to process logs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use peergrad_core::io::MergeEvaluation;
use peergrad_models::task::Evaluation;
use peergrad_protocol::view::Branch;
use peergrad_protocol::{PeerId, RunId, StepNumber, ViewDigest, ViewNumber};
use serde_json::Value;

use super::{FORMAT, LogError};
use crate::history::{ExitStatus, MergeSummary};

/// What one peer has written down.
#[derive(Debug)]
pub struct Log {
    /// Who.
    pub peer: PeerId,
    /// Where it was read.
    pub name: String,
    /// Its processes, the oldest first.
    pub process_logs: Vec<ProcessLog>,
    /// Lines that make no sense.
    pub damaged_lines: usize,
}

/// What one process told of one run.
#[derive(Clone, Debug)]
pub struct ProcessLog {
    /// Whose.
    pub peer: PeerId,
    /// Which start of it.
    pub incarnation: u64,
    /// The run; `None` if it never was in one.
    pub run: Option<RunId>,
    /// Its lines, the oldest first; never without any.
    pub lines: Vec<Line>,
    /// Lines that it could not write.
    pub lost_lines: u64,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Line {
    /// Seconds since 1970, on its machine's clock.
    pub at: f64,
    /// What it says.
    pub content: LineContent,
}

/// What a line says.
#[derive(Clone, Debug)]
pub enum LineContent {
    /// The process starts.
    Started,
    /// Task and data are ready.
    Prepared {
        /// Elements of the parameter vector.
        parameters: usize,
        /// Steps of the run.
        steps: u64,
    },
    /// A view was installed.
    View(ViewLine),
    /// A step was committed.
    Step(StepLine),
    /// By peer: bytes written and read so far.
    Traffic(BTreeMap<PeerId, (u64, u64)>),
    /// It is no longer a member, and asks to be let in again.
    Excluded(String),
    /// The same, since its part of the swarm yields to another one and nothing of it is kept.
    BranchAbandoned(String),
    /// Another part of the swarm, the one with this view, is merged into its own.
    Merged {
        /// That view.
        view: ViewDigest,
        /// What of it.
        merged: MergeSummary,
        /// In words.
        words: String,
    },
    /// How well both did.
    MergeEvaluation(MergeEvaluation, String),
    /// Too few members can be reached.
    Paused(String),
    /// The run has ended here.
    Ended(ExitStatus),
    /// Something else, worth its words.
    Note(String),
    /// Something else, without words.
    Other,
}

/// A view, as a line tells it.
#[derive(Clone, Debug)]
pub struct ViewLine {
    /// Its number.
    pub number: u64,
    /// Its digest.
    pub digest: ViewDigest,
    /// Those of the views that it follows.
    pub parents: Vec<ViewDigest>,
    /// Who is in.
    pub members: Vec<PeerId>,
    /// Elements that this peer owns once all chunks have moved.
    pub share: usize,
    /// Its first step.
    pub first_step: u64,
    /// Whether that begins again.
    pub is_redone: bool,
    /// Where the run's present branch begins: with the first view, the last one that went on from checkpoints, or where
    /// several may go on, the last one that somebody is lost from.
    pub branch: Branch,
    /// Told again at the head of a file; what was before is not there.
    pub is_repeated: bool,
}

/// A committed step, as a line tells it.
#[derive(Clone, Debug)]
pub struct StepLine {
    /// Its number.
    pub step: u64,
    /// The epoch it belongs to.
    pub epoch: u64,
    /// The mean loss; not a number if it was not finite.
    pub loss: f64,
    /// Samples that it trained.
    pub samples: u64,
    /// Samples of its batch that were left out.
    pub left_out: u64,
    /// The learning rate.
    pub rate: f64,
    /// Digest of the parameters after it.
    pub digest: Option<String>,
    /// Bytes that this peer had sent.
    pub sent_bytes: u64,
}

/// Which step is told of: its branch of the run, and its number. What was trained after a
/// checkpoint, and given up for it, is trained again under the same number.
pub type StepId = (Branch, u64);

impl ProcessLog {
    /// The steps it tells of, and when it did.
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
    /// More of the same peer: another file, or another copy of the directory.
    pub fn add(&mut self, other: Self) {
        self.damaged_lines += other.damaged_lines;
        self.name = format!("{}, {}", self.name, other.name);
        self.process_logs.extend(other.process_logs);
        self.process_logs
            .sort_by(|a, b| a.incarnation.cmp(&b.incarnation).then(a.began().total_cmp(&b.began())));
        // Two files may tell of one process, one after the other or the same.
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

/// Reads the log of one peer: a file, or all of them in its data directory.
///
/// # Errors
/// It cannot be read, or is none.
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
    let mut reader = Reader::default();
    for file in &files {
        let bytes = fs::read(file).map_err(|cause| unreadable(file, cause))?;
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
    /// Takes in one line. An error is the number of a format that is not read here.
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
        // What stands before any head is the rest of a file whose beginning is gone.
        let Some(process_log) = self.process_logs.last_mut() else { return Ok(()) };
        process_log.lost_lines += value["lost_before"].as_u64().unwrap_or(0);
        if value["event"] == "lost" {
            process_log.lost_lines += value["lines"].as_u64().unwrap_or(0);
        }
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
                // A clock that was set back does not turn the order around.
                let at = process_log.lines.last().map_or(at, |last| at.max(last.at));
                process_log.lines.push(Line { at, content });
            }
            None => self.damaged_lines += 1,
        }
        Ok(())
    }

    /// A process starts, or goes on in another file.
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
        // The identity was replaced in between: what is newer counts.
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

/// What a line says; `None` if a part of it is missing or makes no sense.
fn content(value: &Value) -> Option<LineContent> {
    let number = |key: &str| value[key].as_u64().filter(|number| *number <= NUMBER_MAX);
    let words = || value["text"].as_str().unwrap_or_default().to_owned();
    Some(match value["event"].as_str()? {
        "prepared" => {
            LineContent::Prepared { parameters: number("parameters")? as usize, steps: number("steps")? }
        }
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
            LineContent::Traffic(entries.map(entry).collect::<Option<_>>()?)
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
        // Everybody does that at the beginning.
        "join_requested" | "peer_ready" | "welcomed" | "lost" => LineContent::Other,
        _ => value["text"].as_str().map_or(LineContent::Other, |words| LineContent::Note(words.to_owned())),
    })
}

fn evaluation(value: &Value) -> Option<Evaluation> {
    let samples = value["samples"].as_u64()?.try_into().ok()?;
    // A loss that is not finite is told as nothing.
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

/// Seconds since 1970 that a line may have been written at.
const TIMES: std::ops::Range<f64> = 0.0..1e11;
/// Far beyond any run, and safe to reckon with.
const NUMBER_MAX: u64 = 1 << 50;
