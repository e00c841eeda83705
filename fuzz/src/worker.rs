//! The worker: a process that runs one target, and the process that watches it.
//!
//! A decoder that overflows the stack or exhausts memory ends its process, and one that hangs never returns. So before each execution
//! the worker writes the input to a file, and a thread of it ends the process when an execution takes too long. The watching process
//! finds the input in that file.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::inputs::{inputs_in, regressions_folder};
use crate::session::{Session, Summary, keep_panic_messages, minimized};
use crate::target::Target;

/// What a worker is to do.
#[derive(Clone, Debug)]
pub struct Order {
    /// The seed of its session.
    pub seed: u64,
    /// It ends after this time.
    pub time: Duration,
    /// It ends after this number of executions; `None`: only the time counts.
    pub executions: Option<u64>,
    /// An execution that takes longer is a failure.
    pub hang: Duration,
    /// The folder for inputs that fail, which exists.
    pub folder: PathBuf,
}

/// The result of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// No input failed.
    Passed,
    /// An input failed; it was written to a file.
    Failed,
}

/// The exit code of a worker whose input failed, and has been written.
const FAILED: i32 = 1;
/// How often the watchdog looks.
const WATCH_PAUSE: Duration = Duration::from_millis(200);
/// The exit code of a worker whose input takes too long.
const HUNG: i32 = 86;

/// Runs a target in this process, and prints the result.
///
/// # Errors
/// A file cannot be read or written.
pub fn work(target: &dyn Target, order: &Order) -> anyhow::Result<Ending> {
    keep_panic_messages();
    let earlier = inputs_in(&regressions_folder(), target)?.into_iter().map(|(_, input)| input).collect();
    let mut session = Session::new(target, order.seed, earlier);
    let path = current_path(&order.folder, target);
    let mut current = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let executed = watched(order.hang)?;
    let began = Instant::now();
    while began.elapsed() < order.time
        && order.executions.is_none_or(|count| session.summary().executions < count)
    {
        let input = session.next_input();
        record(&mut current, &input).with_context(|| format!("cannot write {}", path.display()))?;
        let result = session.execute(input.clone());
        let count = || _ = executed.fetch_add(1, Ordering::Relaxed);
        count();
        if let Err(failure) = result {
            let shortest = minimized(target, &input, &failure, &count);
            let number = session.summary().executions;
            let file = keep(target, order, &format!("execution{number}"), &shortest)?;
            println!("{}: {failure}\n  {}", target.name(), replay(&file));
            return Ok(Ending::Failed);
        }
    }
    keep(target, order, "slowest", &session.summary().slowest_input)?;
    println!("{}", sentence(target, order.seed, session.summary(), began.elapsed()));
    Ok(Ending::Passed)
}

/// Counts executions. If the count stays the same for longer than `hang`, the process ends.
fn watched(hang: Duration) -> anyhow::Result<Arc<AtomicU64>> {
    let executed = Arc::new(AtomicU64::new(0));
    let watched = Arc::clone(&executed);
    thread::Builder::new().name("watchdog".to_owned()).spawn(move || {
        // Pauses are counted instead of time, which passes also while the machine is suspended.
        let (mut last, mut pauses) = (u64::MAX, 0);
        loop {
            thread::sleep(WATCH_PAUSE);
            let now = watched.load(Ordering::Relaxed);
            pauses = if now == last { pauses + 1 } else { 0 };
            last = now;
            if WATCH_PAUSE * pauses > hang {
                exit(HUNG);
            }
        }
    })?;
    Ok(executed)
}

/// Writes the length of an input, and the input.
fn record(file: &mut File, input: &[u8]) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&[&(input.len() as u64).to_le_bytes(), input].concat())
}

/// The input that [`record`] wrote.
fn recorded(path: &Path) -> anyhow::Result<Vec<u8>> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (length, rest) = bytes.split_first_chunk().context("the worker ended before its first input")?;
    let length = u64::from_le_bytes(*length) as usize;
    Ok(rest.get(..length).context("the worker's last input is incomplete")?.to_vec())
}

fn current_path(folder: &Path, target: &dyn Target) -> PathBuf {
    folder.join(format!("{}.current", target.name()))
}

/// Writes an input to a file whose name has target, seed and `kind`.
fn keep(target: &dyn Target, order: &Order, kind: &str, input: &[u8]) -> anyhow::Result<PathBuf> {
    let path = order.folder.join(format!("{}-seed{}-{kind}.bin", target.name(), order.seed));
    fs::write(&path, input).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn replay(file: &Path) -> String {
    format!("repeat: cargo run -p peergrad-fuzz -- --replay {}", file.display())
}

fn sentence(target: &dyn Target, seed: u64, summary: &Summary, took: Duration) -> String {
    let Summary { executions, accepted, slowest, requested, .. } = summary;
    let kibibytes = |bytes: usize| bytes.div_ceil(1024);
    format!(
        "{:<10} seed {seed}: {executions} executions in {:.0} s, {accepted} accepted; slowest {:.1} ms; at most {} KiB at once, {} KiB in all",
        target.name(),
        took.as_secs_f64(),
        slowest.as_secs_f64() * 1000.0,
        kibibytes(requested.largest_bytes),
        kibibytes(requested.total_bytes),
    )
}

/// Runs a target in a process of its own, which `command` starts. If that process ends without a result, its last input is kept.
///
/// # Errors
/// The process cannot be started, or its last input cannot be read.
pub fn watch(target: &dyn Target, order: &Order, mut command: Command) -> anyhow::Result<Ending> {
    let status = command.status().context("cannot start a worker")?;
    match status.code() {
        Some(0) => return Ok(Ending::Passed),
        Some(FAILED) => return Ok(Ending::Failed),
        _ => {}
    }
    let (kind, words) = match status.code() {
        Some(HUNG) => ("hang", format!("an execution took longer than {} s", order.hang.as_secs())),
        _ => ("crash", format!("the process ended: {status}")),
    };
    let file = keep(target, order, kind, &recorded(&current_path(&order.folder, target))?)?;
    println!("{}: {words}\n  {}", target.name(), replay(&file));
    Ok(Ending::Failed)
}
