//! A swarm on this machine: starts real peers as processes with sockets on loopback, and follows their output.
//!
//! It runs this same program with `start` and `join`, reads the JSON that they print, and draws a progress bar for each peer. So the
//! demo, the comparison and the benchmarks show what a real run does. A command calls [`Swarm::advance`] until all processes have
//! ended, and may inspect the peers after each call.
//!
//! # How it works
//! Two threads per process send its output lines into one [`LineChannel`], which also receives the user's request to stop. If a
//! process fails and was not meant to, that is an error at once, with the message of the process, because the others would wait for
//! it. Dropping the swarm kills all processes.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context, bail};
use peergrad_core::io::{Committed, RunSize, ViewDelta};
use peergrad_net::MonotonicClock;
use peergrad_protocol::{PeerId, StepNumber};
use serde_json::Value;

use super::curve::Curve;
use super::progress::{Progress, Screen};
use crate::terminal::{OutputFormat, emit};
use peergrad_embed::text::change_text;
use peergrad_embed::text::event_json::change_of;
use peergrad_embed::threads_of_one;

/// What a swarm trains, and with how many peers.
pub(super) struct SwarmConfig<'a> {
    /// The swarm's name in errors, such as "the demo".
    pub(super) name: String,
    /// The arguments of this program before `start` and `join`; usually none.
    pub(super) program: &'a [String],
    /// The run file of the founder.
    pub(super) run_file: &'a Path,
    /// Overrides the run file's seed; `None` keeps it.
    pub(super) seed: Option<u64>,
    /// The run's data file; `None` if it is built in. Joiners are given its path, since fetching it would count as traffic.
    pub(super) data: Option<&'a Path>,
    /// How many peers found the run; others may join later.
    pub(super) peers: u32,
    /// The folder for the data directories of the peers.
    pub(super) folder: &'a Path,
}

/// Where and how a swarm's events are shown.
#[derive(Clone)]
pub(super) struct SwarmOutput {
    pub(super) screen: Screen,
    pub(super) format: OutputFormat,
}

/// Receives the output lines of a command's processes, for one swarm after another, and the user's request to stop.
pub(super) struct LineChannel {
    sender: Sender<(usize, Line)>,
    lines: Receiver<(usize, Line)>,
}

/// The processes of a swarm. Dropping it kills them.
pub(super) struct Swarm<'a> {
    pub(super) output: SwarmOutput,
    pub(super) peers: Vec<ChildPeer>,
    config: SwarmConfig<'a>,
    invite: String,
    channel: &'a LineChannel,
}

/// One process, and what it has reported.
pub(super) struct ChildPeer {
    process: Child,
    /// Its peer id; null until it has reported it.
    pub(super) id: Value,
    /// Its short name; empty until it has reported its id.
    pub(super) name: String,
    /// Whether it may fail without failing the swarm.
    pub(super) is_excused: bool,
    pub(super) summary: Option<Value>,
    pub(super) scope: Option<RunSize>,
    /// Committed steps of the run, as this peer reported last.
    pub(super) steps: u64,
    /// The first step that it saw committed; `None` before that.
    pub(super) first_step: Option<u64>,
    /// The samples of the steps that it saw committed.
    pub(super) trained: TrainedSamples,
    /// Its usage up to its newest step.
    pub(super) usage: PeerUsage,
    /// The views that followed its first one.
    pub(super) changes: Vec<ViewDelta>,
    /// The training loss of each step that it saw committed.
    pub(super) losses: Curve,
    /// When it installed its first view, in seconds of its own clock; `None` before that.
    began_seconds: Option<f64>,
    /// Its progress bar; `None` where none is shown.
    progress: Option<Progress>,
    output: ProcessOutput,
}

/// The usage of a peer up to its newest step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerUsage {
    /// Bytes sent.
    pub(super) bytes_sent: u64,
    /// Seconds since it installed its first view.
    pub(super) training_seconds: f64,
    /// Seconds spent on gradients and other jobs.
    pub(super) computing_seconds: f64,
}

/// The state of a process's standard output and standard error.
struct ProcessOutput {
    /// The invite that it printed, until it is taken.
    invite: Option<String>,
    /// Its lines on standard error, shown if it fails without a reason.
    error_text: String,
    /// Why it failed; `None` before it has said so.
    reason: Option<String>,
    /// How many of the two are open.
    open: usize,
}

/// Trained samples, and the sum of their losses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct TrainedSamples {
    pub(super) samples: u64,
    pub(super) loss_sum: f64,
}

/// A message of the channel.
enum Line {
    /// A JSON object from standard output.
    Report(Value),
    /// A line from standard error.
    Text(String),
    /// Standard output or standard error was closed.
    End,
    /// The user asked to stop.
    Stop,
}

impl LineChannel {
    /// Opens the channel. From now on, it receives termination signals, which no longer end this process by themselves.
    pub(super) fn open() -> Self {
        let (sender, lines) = channel();
        stop_on_signals(sender.clone());
        Self { sender, lines }
    }
}

impl<'a> Swarm<'a> {
    /// Starts the founder, and with its invite the others.
    pub(super) fn start(
        config: SwarmConfig<'a>,
        output: SwarmOutput,
        channel: &'a LineChannel,
    ) -> anyhow::Result<Self> {
        let (run_file, count) = (config.run_file, config.peers);
        let mut swarm = Self { output, peers: Vec::new(), config, invite: String::new(), channel };
        let (peers, seed) = (count.to_string(), swarm.config.seed.map(|seed| seed.to_string()));
        let mut arguments: Vec<&OsStr> =
            vec!["start".as_ref(), run_file.as_os_str(), "--peers".as_ref(), peers.as_ref()];
        if let Some(seed) = &seed {
            arguments.extend(["--seed".as_ref(), seed.as_ref()] as [&OsStr; 2]);
        }
        swarm.spawn(&arguments, "")?;
        if count == 1 {
            // A single peer trains at once and needs no invite.
            return Ok(swarm);
        }
        swarm.invite = swarm.founder_invite()?;
        for _ in 1..count {
            swarm.spawn_joiner()?;
        }
        Ok(swarm)
    }

    /// Starts one more peer.
    pub(super) fn spawn_joiner(&mut self) -> anyhow::Result<&mut ChildPeer> {
        // Through standard input, since every user of the machine can see command lines.
        let invite = self.invite.clone();
        let mut arguments: Vec<&OsStr> = vec!["join".as_ref(), "-".as_ref()];
        if let Some(data) = self.config.data {
            arguments.extend(["--data".as_ref(), data.as_os_str()]);
        }
        self.spawn(&arguments, &invite)
    }

    fn spawn(&mut self, arguments: &[&OsStr], input: &str) -> anyhow::Result<&mut ChildPeer> {
        let (program, before) = this_program()?;
        let index = self.peers.len();
        let mut process = Command::new(program)
            .args(before)
            .args(self.config.program)
            .args(arguments)
            .args(["--json", "--no-mdns", "--listen", "127.0.0.1", "--port", "0", "--dir"])
            .arg(self.config.folder.join((index + 1).to_string()))
            .args(["--threads", &threads_of_one(self.config.peers as usize).get().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start a peer")?;
        let mut stdin = process.stdin.take().expect("piped");
        // If the process has ended already, its own message says why.
        let _ = stdin.write_all(input.as_bytes());
        let (stdout, stderr) = (process.stdout.take().expect("piped"), process.stderr.take().expect("piped"));
        let parse = |line: String| serde_json::from_str(&line).map(Line::Report).ok();
        read_lines(index, stdout, self.channel.sender.clone(), parse);
        read_lines(index, stderr, self.channel.sender.clone(), |line| Some(Line::Text(line)));
        self.peers.push(ChildPeer::new(process));
        Ok(&mut self.peers[index])
    }

    fn founder_invite(&mut self) -> anyhow::Result<String> {
        loop {
            if let Some(invite) = self.peers[0].output.invite.take() {
                return Ok(invite);
            }
            if !self.advance()? {
                bail!("the first peer of {} ended without an invite", self.config.name);
            }
        }
    }

    /// Waits for the next output line of any process and shows it. Returns false once all processes have ended.
    ///
    /// # Errors
    /// A process has failed, or the user has asked to stop.
    pub(super) fn advance(&mut self) -> anyhow::Result<bool> {
        if self.peers.iter().all(|peer| peer.output.open == 0) {
            return Ok(false);
        }
        let (index, line) = self.channel.lines.recv().context("the output of the peers is no longer read")?;
        match &line {
            Line::Stop => bail!("stopped on request"),
            Line::End => self.note_end(index)?,
            Line::Report(object) if index == 0 => self.show_change(object),
            Line::Report(_) | Line::Text(_) => {}
        }
        // Without a terminal there are no bars, and the lines of one peer are enough.
        let is_shown = !self.output.format.is_json() && (index == 0 || self.output.screen.is_terminal());
        self.peers[index].take(line, is_shown.then_some(&self.output.screen));
        Ok(true)
    }

    /// A process has closed standard output or standard error. After both, it has ended.
    fn note_end(&mut self, index: usize) -> anyhow::Result<()> {
        let peer = &mut self.peers[index];
        peer.output.open -= 1;
        if peer.output.open > 0 {
            return Ok(());
        }
        let status = peer.process.wait().context("cannot wait for a peer")?;
        let is_well = status.success() && peer.summary.is_some();
        if !is_well && !peer.is_excused {
            let reason = peer.output.reason.as_deref().unwrap_or(peer.output.error_text.trim());
            bail!("peer {} of {} failed ({status}): {reason}", index + 1, self.config.name);
        }
        Ok(())
    }

    /// Shows a view change, as reported by the founder.
    fn show_change(&self, object: &Value) {
        let Some((view_number, members, change)) = change_of(object) else { return };
        if self.output.format.is_json() {
            emit(object);
        } else {
            self.output.screen.say(&change_text::change_text(view_number, members, &change));
        }
    }

    /// CPU seconds of all processes so far, in user and system mode; `None` where the system does not report them.
    pub(super) fn cpu_seconds(&self) -> Option<f64> {
        self.peers.iter().map(|peer| cpu_seconds(peer.process.id())).sum()
    }

    /// Resident memory of all processes, in bytes; `None` where the system does not report it.
    pub(super) fn resident_bytes(&self) -> Option<u64> {
        self.peers.iter().map(|peer| resident_bytes(peer.process.id())).sum()
    }

    /// Checks that all peers that finished hold the same model.
    ///
    /// # Errors
    /// Their digests differ, or no peer finished.
    pub(super) fn check_digests(&self) -> anyhow::Result<()> {
        let digests: BTreeSet<&str> =
            self.summaries().iter().filter_map(|summary| summary["digest"].as_str()).collect();
        if digests.len() != 1 {
            bail!("the peers hold different parameters: {digests:?}");
        }
        Ok(())
    }

    /// The summaries of the peers that finished.
    pub(super) fn summaries(&self) -> Vec<&Value> {
        self.peers.iter().filter_map(|peer| peer.summary.as_ref()).collect()
    }
}

impl Drop for Swarm<'_> {
    fn drop(&mut self) {
        for peer in &mut self.peers {
            // Fails harmlessly if the process has ended.
            let _ = peer.process.kill();
            let _ = peer.process.wait();
        }
    }
}

impl ChildPeer {
    fn new(process: Child) -> Self {
        Self {
            process,
            id: Value::Null,
            name: String::new(),
            is_excused: false,
            summary: None,
            scope: None,
            steps: 0,
            first_step: None,
            trained: TrainedSamples::default(),
            usage: PeerUsage::default(),
            changes: Vec::new(),
            losses: Curve::default(),
            began_seconds: None,
            progress: None,
            output: ProcessOutput { invite: None, error_text: String::new(), reason: None, open: 2 },
        }
    }

    /// Kills the process, as `kill -9` does.
    pub(super) fn kill(&mut self) {
        self.close();
        // Fails harmlessly if the process has ended.
        let _ = self.process.kill();
        self.is_excused = true;
    }

    /// Processes an output line, and shows progress on `screen` if there is one.
    fn take(&mut self, line: Line, screen: Option<&Screen>) {
        match line {
            Line::End | Line::Stop => {}
            Line::Text(text) => self.output.error_text += &(text + "\n"),
            Line::Report(object) => match object["event"].as_str() {
                Some("listening") => {
                    self.name = short(&object["peer"]);
                    self.id = object["peer"].clone();
                }
                Some("invite") => self.output.invite = object["invite"].as_str().map(str::to_owned),
                Some("prepared") => self.scope = scope(&object),
                Some("view") => self.view(&object, screen),
                Some("step") => self.step(&object),
                Some("failed") => self.output.reason = object["reason"].as_str().map(str::to_owned),
                Some("summary") => {
                    self.close();
                    self.summary = Some(object);
                }
                _ => {}
            },
        }
    }

    fn view(&mut self, object: &Value, screen: Option<&Screen>) {
        self.began_seconds = self.began_seconds.or(object["wall_seconds"].as_f64());
        self.changes.extend(change_of(object).map(|(_, _, change)| change));
        if let (Some(screen), Some(scope), None) = (screen, self.scope, &self.progress) {
            self.progress =
                Some(Progress::new(screen, format!("peer {}", self.name), scope, MonotonicClock::start()));
        }
    }

    /// Removes its progress bar.
    fn close(&mut self) {
        if let Some(progress) = self.progress.take() {
            progress.close();
        }
    }

    fn step(&mut self, object: &Value) {
        let usage = &mut self.usage;
        usage.bytes_sent = object["bytes_sent"].as_u64().unwrap_or(usage.bytes_sent);
        usage.computing_seconds = object["computing_seconds"].as_f64().unwrap_or(usage.computing_seconds);
        if let (Some(now), Some(began)) = (object["wall_seconds"].as_f64(), self.began_seconds) {
            usage.training_seconds = now - began;
        }
        // JSON has no number for a loss that is not finite.
        let (Some(step), Some(epoch), Some(loss)) =
            (object["step"].as_u64(), object["epoch"].as_u64(), object["loss"].as_f64())
        else {
            return;
        };
        let samples = object["samples"].as_u64().unwrap_or(0);
        self.losses.push(loss);
        self.steps = step + 1;
        self.first_step.get_or_insert(step);
        self.trained.samples += samples;
        self.trained.loss_sum += samples as f64 * loss;
        if let Some(progress) = &mut self.progress {
            let (left_out, rate) = (0, 0.0);
            progress.committed(&Committed {
                step: StepNumber(step),
                epoch,
                steps_expected: object["steps_expected"].as_u64().unwrap_or(step + 1),
                loss,
                samples,
                left_out,
                may_be_late: false,
                is_own: false,
                rate,
                digest: None,
            });
        }
    }
}

/// CPU seconds of a process, which Linux reports in hundredths; `None` on other systems.
fn cpu_seconds(process: u32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The program's name, in parentheses, may contain spaces.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let hundredths = |index: usize| fields.get(index)?.parse::<f64>().ok();
    Some((hundredths(11)? + hundredths(12)?) / 100.0)
}

/// Resident memory of a process in bytes, which Linux reports in KiB; `None` on other systems.
fn resident_bytes(process: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let words = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(1024 * words.split_whitespace().next()?.parse::<u64>().ok()?)
}

/// The short name of a peer; empty if the value is no peer id.
pub(super) fn short(peer: &Value) -> String {
    peer.as_str().and_then(|text| text.parse::<PeerId>().ok()).map(|peer| peer.short()).unwrap_or_default()
}

fn scope(object: &Value) -> Option<RunSize> {
    Some(RunSize {
        parameters: object["parameters"].as_u64()? as usize,
        owned: object["owned"].as_u64()? as usize,
        samples: object["samples"].as_u64()?,
        steps: object["steps"].as_u64()?,
        epochs: object["epochs"].as_u64()?,
        flops_per_sample: None,
        tokens_per_sample: None,
    })
}

/// Starts a thread that reads lines until the other end is closed.
fn read_lines(
    index: usize,
    source: impl Read + Send + 'static,
    sender: Sender<(usize, Line)>,
    parse: impl Fn(String) -> Option<Line> + Send + 'static,
) {
    std::thread::spawn(move || {
        for line in BufReader::new(source).lines().map_while(Result::ok) {
            let Some(line) = parse(line) else { continue };
            if sender.send((index, line)).is_err() {
                return;
            }
        }
        let _ = sender.send((index, Line::End));
    });
}

/// Passes termination signals to the command, so that it can kill its peers and remove its folder.
fn stop_on_signals(sender: Sender<(usize, Line)>) {
    std::thread::spawn(move || {
        // Without a runtime, signals still end the process in the default way.
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(super::signals::stop_requested());
        let _ = sender.send((0, Line::Stop));
    });
}

/// What starts this program again, if its executable alone does not.
static PROGRAM: OnceLock<Vec<String>> = OnceLock::new();

/// Sets what starts this program again: its executable, and the first arguments. Only the first call counts.
pub(super) fn set_program(program: Vec<String>) {
    let _ = PROGRAM.set(program);
}

/// The executable of this program, and the arguments before those of a command.
pub(super) fn this_program() -> anyhow::Result<(PathBuf, &'static [String])> {
    match PROGRAM.get().and_then(|program| program.split_first()) {
        Some((executable, before)) => Ok((executable.into(), before)),
        None => Ok((std::env::current_exe().context("cannot find this program itself")?, &[])),
    }
}
