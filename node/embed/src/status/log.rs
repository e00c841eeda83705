//! The event log: a file with one line of JSON per event of a peer.
//!
//! It is like a ship's log: it records every change of course, and in between only as much as is needed to draw the voyage. `simulate
//! report` draws the logs of one or more peers.
//!
//! # How it works
//! ```text
//!   observer --- lines, without waiting ---> queue ---> one thread ---> events.jsonl --- full ---> events.1.jsonl, .2, ...
//! ```
//! - *Lines.* Each line has the fields `at` (seconds since 1970) and `event`. A file begins with a line `log`, which names the peer,
//!   and with the newest view, so that it can be read without the others. `docs/status.md` explains all lines.
//! - *Sampling.* Only committed steps and traffic, which occur all the time, are sampled. The log keeps a step whose number is a
//!   multiple of a power of two. That power follows the speed, so that the log has a few steps per second. So the logs of several
//!   peers contain the same steps and can be overlaid. The log also keeps the steps just before and after any other event.
//! - *Bounds.* There are at most [`FILES`] files of [`FILE_BYTES`] each; the oldest is deleted. Each full file doubles the pauses
//!   between kept steps, so that the first hour is resolved to a quarter of a second, and a week to a minute.
//!
//! # Invariants
//! - Writers never wait: if the disk is too slow, lines are dropped and counted.
//! - After a crash, all lines are complete except the last one, which lacks its line break. The next start begins a new line.
//! - A full disk is reported once, and writing is retried with each batch. Training continues without the log.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use peergrad_config::file_error::explained;
use peergrad_core::io::{Committed, Event, Failure};
use peergrad_net::{Counters, Notice, unix_seconds};
use peergrad_protocol::view::{Branch, Recovery, View};
use peergrad_protocol::{Incarnation, Instant, PeerId, RunId, ViewDigest};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::text::event_json::{event_json, event_name};

/// The event log of one process. Lines are on their way to disk.
pub struct EventLog {
    /// The queue to the writing thread; `None` if the thread could not be started.
    lines: Option<SyncSender<Line>>,
    /// Completes when the thread has written everything.
    is_closed: oneshot::Receiver<()>,
    /// Lines dropped since the last accepted one, because the queue was full.
    lost: u64,
    steps: StepSampler,
    /// When the next line of traffic is due.
    traffic_due: Instant,
    /// The number of files filled since the process started.
    filled: Arc<AtomicU32>,
}

/// The peer whose log it is.
#[derive(Clone, Copy, Debug)]
pub struct LogOrigin {
    /// Its id.
    pub peer: PeerId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The run; `None` if it is not known at the start.
    pub run: Option<RunId>,
}

/// A line for the writing thread.
enum Line {
    /// The first line, which is repeated at the start of each file.
    Head(Value),
    /// A view; the newest is repeated at the start of each file.
    View(Value),
    /// Any other line.
    Plain(Value),
}

/// Decides which committed steps the log keeps.
#[derive(Debug)]
struct StepSampler {
    /// A power of two; steps whose number is a multiple of it are kept.
    stride: u64,
    /// When the last multiple was committed; `None` before the first.
    kept_at: Option<Instant>,
    /// The newest step, if it was not kept.
    skipped: Option<Committed>,
    /// Whether the next step is kept whatever its number.
    keeps_next: bool,
    /// Whether the step before left out samples; `None` at the first step.
    left_out_before: Option<bool>,
}

impl EventLog {
    /// Opens the log in `directory`, or continues the existing one. The second result receives problems with the disk.
    #[must_use]
    pub fn start(directory: &Path, origin: &LogOrigin) -> (Self, mpsc::UnboundedReceiver<Notice>) {
        let (notices, noticed) = mpsc::unbounded_channel();
        let (lines, queue) = sync_channel(LINES_WAITING_MAX);
        let (closed, is_closed) = oneshot::channel();
        let filled = Arc::new(AtomicU32::new(0));
        let mut writer = Writer::new(directory.join(FILE), notices.clone(), Arc::clone(&filled));
        let thread = thread::Builder::new().name("event log".to_owned()).spawn(move || {
            writer.run(&queue);
            // Nothing may be waiting for it.
            let _ = closed.send(());
        });
        let lines = match thread {
            Ok(_) => Some(lines),
            Err(error) => {
                let path = directory.join(FILE);
                _ = notices.send(Notice::NoEventLog { path, reason: error.to_string() });
                None
            }
        };
        let steps = StepSampler::default();
        let mut log = Self { lines, is_closed, lost: 0, steps, traffic_due: Instant::default(), filled };
        log.write(Line::Head(json!({
            "event": "log", "format": FORMAT, "version": env!("CARGO_PKG_VERSION"), "peer": origin.peer.to_string(),
            "incarnation": origin.incarnation.0, "run": origin.run.map(|run| run.to_string()),
        })));
        (log, noticed)
    }

    /// Logs an event with its sentence, if it has one. `sent_bytes` returns the bytes sent so far, for committed steps.
    pub(super) fn event(
        &mut self,
        now: Instant,
        event: &Event,
        text: Option<String>,
        sent_bytes: impl Fn() -> u64,
    ) {
        match event {
            Event::Committed(committed) => {
                if let Some(committed) = self.steps.take(now, committed, self.pause()) {
                    self.step(&committed, sent_bytes());
                }
            }
            // Only the complete file is worth a line.
            Event::FetchingData { received, total } if received < total => {}
            event => {
                // The step before another event is kept.
                if let Some(skipped) = self.steps.change() {
                    self.step(&skipped, sent_bytes());
                }
                let line = Self::plain(event, text);
                self.write(match event {
                    Event::ViewInstalled { .. } => Line::View(line),
                    _ => Line::Plain(line),
                });
            }
        }
    }

    /// Logs a notice of the network.
    pub(super) fn notice(&mut self, text: String) {
        self.write(Line::Plain(json!({"event": "notice", "text": text})));
    }

    /// Logs the bytes written to and read from each peer since the process started, and the lines to peers where these were measured, if it
    /// is time for that.
    pub(super) fn traffic(&mut self, now: Instant, counters: &Counters) {
        if now < self.traffic_due {
            return;
        }
        self.traffic_due = now.after((TRAFFIC_PAUSE * self.slowness()).min(TRAFFIC_PAUSE_MAX));
        let bytes: serde_json::Map<String, Value> = counters
            .by_peer()
            .iter()
            .map(|(peer, (sent, received))| (peer.to_string(), json!([sent, received])))
            .collect();
        let rates: serde_json::Map<String, Value> = counters
            .lines()
            .iter()
            .map(|(peer, line)| {
                (peer.to_string(), json!([line.bytes_per_second, line.round_trip.as_secs_f64()]))
            })
            .collect();
        self.write(Line::Plain(json!({"event": "traffic", "bytes": bytes, "lines": rates})));
    }

    /// Waits until everything is on disk, but at most [`CLOSING_MAX`].
    pub(super) async fn close(self) {
        let Self { lines, is_closed, .. } = self;
        drop(lines);
        let _ = timeout(CLOSING_MAX, is_closed).await;
    }

    fn plain(event: &Event, text: Option<String>) -> Value {
        let mut line = event_json(event).unwrap_or_else(|| json!({"event": event_name(event)}));
        match event {
            Event::ViewInstalled { view, digest, .. } => add_view(&mut line, view, digest),
            Event::Ended(ended) => {
                line["finished"] = json!(ended.outcome.is_ok());
                line["left"] = json!(ended.outcome == Err(Failure::Left));
                line["steps"] = json!(ended.state.as_ref().map(|state| state.steps));
            }
            _ => {}
        }
        if let Some(text) = text {
            line["text"] = json!(text);
        }
        line
    }

    fn step(&mut self, committed: &Committed, sent_bytes: u64) {
        let mut line = event_json(&Event::Committed(*committed)).expect("a committed step has a JSON object");
        line["bytes_sent"] = json!(sent_bytes);
        self.write(Line::Plain(line));
    }

    fn write(&mut self, mut line: Line) {
        let Some(lines) = &self.lines else { return };
        let (Line::Head(value) | Line::View(value) | Line::Plain(value)) = &mut line;
        // Absent fields are omitted.
        value.as_object_mut().expect("each line is an object").retain(|_, field| !field.is_null());
        value["at"] = json!((unix_seconds() * 1e6).round() / 1e6);
        if self.lost > 0 {
            value["lost_before"] = json!(self.lost);
        }
        match lines.try_send(line) {
            Ok(()) => self.lost = 0,
            Err(TrySendError::Full(_)) => self.lost += 1,
            // The thread ends only after this sender is dropped.
            Err(TrySendError::Disconnected(_)) => {}
        }
    }

    /// The pause between two kept steps.
    fn pause(&self) -> Duration {
        STEP_PAUSE * self.slowness()
    }

    fn slowness(&self) -> u32 {
        1 << self.filled.load(Ordering::Relaxed).min(SLOWER_MAX)
    }
}

/// Adds what the log has beyond the `view` object on standard output: the run, the parents, the first step, whether a step is
/// repeated, and the branch.
fn add_view(line: &mut Value, view: &View, digest: &ViewDigest) {
    let redone = match &view.recovery {
        Recovery::Resume(resume) => resume.batch.is_some() && resume.forward.is_none(),
        Recovery::Initialize => false,
    };
    line["run"] = json!(view.run.to_string());
    line["digest"] = json!(digest.to_string());
    line["parents"] = view.parents.iter().map(ToString::to_string).collect();
    line["first_step"] = json!(view.first_step().0);
    line["redone"] = json!(redone);
    let Branch { view_number, step, fork } = view.history.branch;
    line["branch"] = json!({ "view_number": view_number.0, "step": step.0, "fork": fork });
}

impl Default for StepSampler {
    fn default() -> Self {
        Self { stride: 1, kept_at: None, skipped: None, keeps_next: true, left_out_before: None }
    }
}

impl StepSampler {
    /// Returns the step if the log keeps it. `pause` is the wanted time between kept steps.
    fn take(&mut self, now: Instant, committed: &Committed, pause: Duration) -> Option<Committed> {
        let leaves_out = committed.left_out > 0;
        let is_kept_anyway = std::mem::take(&mut self.keeps_next)
            | (self.left_out_before.replace(leaves_out) != Some(leaves_out));
        let is_multiple = committed.step.0.is_multiple_of(self.stride);
        if is_multiple {
            let apart = self.kept_at.map_or(pause, |at| now.since(at));
            if apart < pause / 2 {
                self.stride = (self.stride * 2).min(STRIDE_MAX);
            } else if apart > 2 * pause {
                self.stride = (self.stride / 2).max(1);
            }
            self.kept_at = Some(now);
        }
        let is_kept = is_kept_anyway || is_multiple;
        self.skipped = (!is_kept).then_some(*committed);
        is_kept.then_some(*committed)
    }

    /// Another event happens: returns the step before it unless that was kept, and keeps the next step.
    fn change(&mut self) -> Option<Committed> {
        self.keeps_next = true;
        self.skipped.take()
    }
}

/// The writing thread's state: the files.
struct Writer {
    path: PathBuf,
    /// The current file; `None` before it is opened, and after an error.
    file: Option<File>,
    /// The size of the current file.
    byte_count: u64,
    /// Whether the last line in the file is incomplete.
    is_mid_line: bool,
    /// The first line of each file; `None` before it was written.
    head: Option<String>,
    /// The second line of each file, the newest view; `None` before the first view.
    view: Option<String>,
    /// Whether the present problem with the disk was reported.
    is_reported: bool,
    /// Lines that could not be written.
    refused: u64,
    notices: mpsc::UnboundedSender<Notice>,
    filled: Arc<AtomicU32>,
}

impl Writer {
    fn new(path: PathBuf, notices: mpsc::UnboundedSender<Notice>, filled: Arc<AtomicU32>) -> Self {
        Self {
            path,
            file: None,
            byte_count: 0,
            is_mid_line: false,
            head: None,
            view: None,
            is_reported: false,
            refused: 0,
            notices,
            filled,
        }
    }

    fn run(&mut self, queue: &Receiver<Line>) {
        while let Ok(first) = queue.recv() {
            let mut text = String::new();
            for line in std::iter::once(first).chain(queue.try_iter()) {
                let line_text = match line {
                    Line::Head(value) => self.head.insert(value.to_string() + "\n").clone(),
                    Line::View(value) => {
                        let text = value.to_string() + "\n";
                        let mut again = value;
                        again["again"] = json!(true);
                        self.view = Some(again.to_string() + "\n");
                        text
                    }
                    Line::Plain(value) => value.to_string() + "\n",
                };
                text.push_str(&line_text);
                if text.len() >= BATCH_BYTES {
                    break;
                }
            }
            match self.write(&text) {
                Ok(()) => self.is_reported = false,
                Err(error) => {
                    self.refused += text.lines().count() as u64;
                    self.complain(&error);
                }
            }
        }
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        if self.file.is_some() && self.byte_count + text.len() as u64 > FILE_BYTES {
            self.rotate()?;
        }
        if self.file.is_none() {
            self.open()?;
        }
        if self.is_mid_line {
            self.put("\n")?;
        }
        if self.refused > 0 {
            let line = json!({"event": "lost", "lines": self.refused, "at": unix_seconds()});
            self.put(&(line.to_string() + "\n"))?;
            self.refused = 0;
        }
        self.put(text)
    }

    /// Appends text. After an error, the file is marked as ending in an incomplete line.
    fn put(&mut self, text: &str) -> io::Result<()> {
        let file = self.file.as_mut().expect("opened before");
        self.is_mid_line = true;
        file.write_all(text.as_bytes())?;
        self.is_mid_line = false;
        self.byte_count += text.len() as u64;
        Ok(())
    }

    /// Opens the current file, or creates it.
    fn open(&mut self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.create(true).append(true).read(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&self.path)?;
        self.byte_count = file.metadata()?.len();
        self.is_mid_line = !ends_in_a_line(&file, self.byte_count)?;
        self.file = Some(file);
        Ok(())
    }

    /// Renames the full file and starts a new one.
    fn rotate(&mut self) -> io::Result<()> {
        self.file = None;
        for number in (1..FILES - 1).rev() {
            rename_if_there(&numbered(&self.path, number), &numbered(&self.path, number + 1))?;
        }
        rename_if_there(&self.path, &numbered(&self.path, 1))?;
        self.filled.fetch_add(1, Ordering::Relaxed);
        self.open()?;
        let beginning = [self.head.clone(), self.view.clone()].into_iter().flatten().collect::<String>();
        self.put(&beginning)
    }

    /// Reports a problem once, until writing succeeds again.
    fn complain(&mut self, error: &io::Error) {
        // The next attempt opens the file again, since the folder may have been replaced.
        self.file = None;
        if !std::mem::replace(&mut self.is_reported, true) {
            let reason = explained(error);
            // The receiver may be gone.
            let _ = self.notices.send(Notice::NoEventLog { path: self.path.clone(), reason });
        }
    }
}

/// Whether a file is empty or ends with a line break.
fn ends_in_a_line(mut file: &File, byte_count: u64) -> io::Result<bool> {
    use std::io::{Read, Seek, SeekFrom};
    let Some(last) = byte_count.checked_sub(1) else { return Ok(true) };
    file.seek(SeekFrom::Start(last))?;
    let mut byte = [0];
    file.read_exact(&mut byte)?;
    Ok(byte == *b"\n")
}

/// The path of an older file: `events.3.jsonl` beside `events.jsonl`.
fn numbered(path: &Path, number: u32) -> PathBuf {
    path.with_extension(format!("{number}.jsonl"))
}

fn rename_if_there(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The name of the current file, in the data directory.
pub const FILE: &str = "events.jsonl";
/// The number of the log's format.
pub const FORMAT: u32 = 1;
/// The most files that are kept, the current one included.
pub const FILES: u32 = 8;
/// The maximum size of a file.
pub const FILE_BYTES: u64 = 4 << 20;
/// The pause between two kept steps while a process fills its first file.
const STEP_PAUSE: Duration = Duration::from_millis(250);
/// The pause between two lines of traffic while a process fills its first file.
const TRAFFIC_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause between two lines of traffic; they also show how long a peer was alive.
const TRAFFIC_PAUSE_MAX: Duration = Duration::from_secs(30);
/// The number of full files after which pauses no longer grow.
const SLOWER_MAX: u32 = 10;
const STRIDE_MAX: u64 = 1 << 40;
const LINES_WAITING_MAX: usize = 4096;
/// The most bytes that are written at once.
const BATCH_BYTES: usize = 256 << 10;
/// How long [`EventLog::close`] waits for the disk.
const CLOSING_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
pub(crate) mod tests;
