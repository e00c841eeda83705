//! The event log: what happened to a peer, on disk, one line of JSON an event.
//!
//! A ship's log: every change of course is in it, and of the hours in between only so much that the voyage can be drawn
//! again. `simulate report` draws it, of one peer or of several together.
//!
//! # How it works
//! ```text
//!   observer --- lines, without waiting ---> queue ---> one thread ---> events.jsonl --- full ---> events.1.jsonl, .2, ...
//! ```
//! - Each line has `at`, in seconds since 1970, and `event`. A file begins with a line `log` that says whose it is, and with
//!   the view of then; so each can be read by itself. The lines are explained in `docs/status.md`.
//! - *Thinned* are committed steps and bytes, which come all the time; nothing else is. Steps are kept where their number is
//!   divisible by a power of two, which follows the rate so that there are a few a second: logs of several peers hold the same
//!   ones then, and can be laid over each other. The steps around a change are kept too.
//! - *Bounded*: [`FILES`] files of [`FILE_BYTES`]; the oldest goes. With each full file the pauses between kept steps
//!   double, so that an hour is told by the quarter of a second, and a week by the minute.
//!
//! # Invariants
//! - Whoever tells never waits: where the disk does not keep up, lines are left out and counted.
//! - What a crash leaves is whole but for its last line, which ends without a line break; the next start begins on a new line.
//! - A disk that is full is told once, and tried again: training goes on without the log.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use peergrad_core::io::{Committed, Event, Failure};
use peergrad_net::{Notice, unix_seconds};
use peergrad_protocol::view::{Branch, Recovery, View};
use peergrad_protocol::{Incarnation, Instant, PeerId, RunId, ViewDigest};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::text::event_json::{event_json, event_name};

/// The log of one process. What is told of is on its way to disk.
pub struct EventLog {
    /// `None` where there is no log: a thread could not be had.
    lines: Option<SyncSender<Line>>,
    is_closed: oneshot::Receiver<()>,
    /// Lines that the queue had no room for.
    lost: u64,
    steps: StepSampler,
    traffic_due: Instant,
    /// Files that were filled since the process started.
    filled: Arc<AtomicU32>,
}

/// Whose log it is.
#[derive(Clone, Copy, Debug)]
pub struct LogOrigin {
    /// The peer.
    pub peer: PeerId,
    /// Which start of it.
    pub incarnation: Incarnation,
    /// The run, where it is known from the beginning.
    pub run: Option<RunId>,
}

/// What the thread is to write.
enum Line {
    /// One line; the first, and the newest view, begin each file again.
    Head(Value),
    View(Value),
    Plain(Value),
}

/// Which committed steps are kept.
#[derive(Debug)]
struct StepSampler {
    /// A power of two: multiples of it are kept.
    stride: u64,
    /// When the last multiple came.
    kept_at: Option<Instant>,
    /// The last step, if it was not kept.
    skipped: Option<Committed>,
    /// The next one is kept, whatever its number.
    is_news: bool,
    /// Whether samples were left out of the step before.
    before: Option<bool>,
}

impl EventLog {
    /// Goes on with the log in `directory`. What goes wrong with the disk comes out of the second result.
    #[must_use]
    pub fn start(directory: &Path, origin: &LogOrigin) -> (Self, mpsc::UnboundedReceiver<Notice>) {
        let (notices, noticed) = mpsc::unbounded_channel();
        let (lines, queue) = sync_channel(LINES_WAITING_MAX);
        let (closed, is_closed) = oneshot::channel();
        let filled = Arc::new(AtomicU32::new(0));
        let mut writer = Writer::new(directory.join(FILE), notices.clone(), Arc::clone(&filled));
        let thread = thread::Builder::new().name("event log".to_owned()).spawn(move || {
            writer.run(&queue);
            // Whoever waited may have gone.
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

    /// Something happened, in these words. `sent_bytes` says how much was sent until now, where that is written.
    pub(super) fn event(
        &mut self,
        now: Instant,
        event: &Event,
        words: Option<String>,
        sent_bytes: impl Fn() -> u64,
    ) {
        match event {
            Event::Committed(committed) => {
                if let Some(committed) = self.steps.take(now, committed, self.pause()) {
                    self.step(&committed, sent_bytes());
                }
            }
            // There are many, and what counts is that it is there.
            Event::FetchingData { received, total } if received < total => {}
            event => {
                // What went before a change is worth a line.
                if let Some(skipped) = self.steps.change() {
                    self.step(&skipped, sent_bytes());
                }
                let line = Self::plain(event, words);
                self.write(match event {
                    Event::ViewInstalled { .. } => Line::View(line),
                    _ => Line::Plain(line),
                });
            }
        }
    }

    /// The network has told something.
    pub(super) fn notice(&mut self, words: String) {
        self.write(Line::Plain(json!({"event": "notice", "text": words})));
    }

    /// By peer: bytes written and read, since the process started.
    pub(super) fn traffic(&mut self, now: Instant, bytes: &BTreeMap<PeerId, (u64, u64)>) {
        if now < self.traffic_due {
            return;
        }
        self.traffic_due = now.after((TRAFFIC_PAUSE * self.slowness()).min(TRAFFIC_PAUSE_MAX));
        let bytes: serde_json::Map<String, Value> = bytes
            .iter()
            .map(|(peer, (sent, received))| (peer.to_string(), json!([sent, received])))
            .collect();
        self.write(Line::Plain(json!({"event": "traffic", "bytes": bytes})));
    }

    /// Waits until everything is on disk, or the disk has had its time.
    pub(super) async fn close(self) {
        let Self { lines, is_closed, .. } = self;
        drop(lines);
        let _ = timeout(CLOSING_MAX, is_closed).await;
    }

    fn plain(event: &Event, words: Option<String>) -> Value {
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
        if let Some(words) = words {
            line["text"] = json!(words);
        }
        line
    }

    fn step(&mut self, committed: &Committed, sent_bytes: u64) {
        let mut line = event_json(&Event::Committed(*committed)).expect("a step has a form");
        line["bytes_sent"] = json!(sent_bytes);
        self.write(Line::Plain(line));
    }

    fn write(&mut self, mut line: Line) {
        let Some(lines) = &self.lines else { return };
        let (Line::Head(value) | Line::View(value) | Line::Plain(value)) = &mut line;
        // What is not there need not be said.
        value.as_object_mut().expect("each line is an object").retain(|_, field| !field.is_null());
        value["at"] = json!((unix_seconds() * 1e6).round() / 1e6);
        if self.lost > 0 {
            value["lost_before"] = json!(self.lost);
        }
        match lines.try_send(line) {
            Ok(()) => self.lost = 0,
            Err(TrySendError::Full(_)) => self.lost += 1,
            // The thread only ends with us.
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

/// What a view's line has beyond what is told on standard output: what it follows, and whether a step begins again.
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
    let Branch { view_number, step, fork } = view.branch;
    line["branch"] = json!({ "view_number": view_number.0, "step": step.0, "fork": fork });
}

impl Default for StepSampler {
    fn default() -> Self {
        Self { stride: 1, kept_at: None, skipped: None, is_news: true, before: None }
    }
}

impl StepSampler {
    /// The step if it is to be kept.
    fn take(&mut self, now: Instant, committed: &Committed, pause: Duration) -> Option<Committed> {
        let looks = committed.left_out > 0;
        let is_news = std::mem::take(&mut self.is_news) | (self.before.replace(looks) != Some(looks));
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
        let is_kept = is_news || is_multiple;
        self.skipped = (!is_kept).then_some(*committed);
        is_kept.then_some(*committed)
    }

    /// Something else happens: the step before it is kept, and the one after it.
    fn change(&mut self) -> Option<Committed> {
        self.is_news = true;
        self.skipped.take()
    }
}

/// The thread's part: files.
struct Writer {
    path: PathBuf,
    file: Option<File>,
    byte_count: u64,
    /// Whether what was written last was cut off.
    is_mid_line: bool,
    /// With which each file begins.
    head: Option<String>,
    view: Option<String>,
    is_told: bool,
    /// Lines that the disk did not take.
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
            is_told: false,
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
                Ok(()) => self.is_told = false,
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

    /// Appends text; afterwards it is all there, or it is known that a line was cut.
    fn put(&mut self, text: &str) -> io::Result<()> {
        let file = self.file.as_mut().expect("opened before");
        self.is_mid_line = true;
        file.write_all(text.as_bytes())?;
        self.is_mid_line = false;
        self.byte_count += text.len() as u64;
        Ok(())
    }

    /// Opens the file to go on with, or begins one.
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

    /// Puts the full file aside, and begins another one.
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

    /// Tells the user once, until it works again.
    fn complain(&mut self, error: &io::Error) {
        // Another attempt opens it anew: the folder may have been another one meanwhile.
        self.file = None;
        if !std::mem::replace(&mut self.is_told, true) {
            let reason = error.to_string();
            // Nobody has to listen.
            let _ = self.notices.send(Notice::NoEventLog { path: self.path.clone(), reason });
        }
    }
}

/// Whether what a file holds ends with a line break; an empty one does.
fn ends_in_a_line(mut file: &File, byte_count: u64) -> io::Result<bool> {
    use std::io::{Read, Seek, SeekFrom};
    let Some(last) = byte_count.checked_sub(1) else { return Ok(true) };
    file.seek(SeekFrom::Start(last))?;
    let mut byte = [0];
    file.read_exact(&mut byte)?;
    Ok(byte == *b"\n")
}

/// `events.3.jsonl`, beside `events.jsonl`.
fn numbered(path: &Path, number: u32) -> PathBuf {
    path.with_extension(format!("{number}.jsonl"))
}

fn rename_if_there(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The file that is written, in the data directory.
pub const FILE: &str = "events.jsonl";
/// The number of the log's form.
pub const FORMAT: u32 = 1;
/// As many files are kept, the one that is written included.
pub const FILES: u32 = 8;
/// How large each may get.
pub const FILE_BYTES: u64 = 4 << 20;
/// Pause between two kept steps, in the first file that a process fills.
const STEP_PAUSE: Duration = Duration::from_millis(250);
/// Pause between two lines of bytes, and the longest: it shows until when a peer was alive.
const TRAFFIC_PAUSE: Duration = Duration::from_secs(1);
const TRAFFIC_PAUSE_MAX: Duration = Duration::from_secs(30);
/// After so many full files pauses grow no more.
const SLOWER_MAX: u32 = 10;
const STRIDE_MAX: u64 = 1 << 40;
const LINES_WAITING_MAX: usize = 4096;
/// As much is written at once.
const BATCH_BYTES: usize = 256 << 10;
/// How long the end waits for the disk.
const CLOSING_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
