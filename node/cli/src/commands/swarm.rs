//! A swarm on this machine: real peers, as real processes with real sockets on loopback, and what they say.
//!
//! It starts this very program as `start` and `join`, reads what they report as JSON, and draws one progress bar for each; so
//! what it shows is what anybody's own run does. A command that uses it calls [`Swarm::advance`] until that is over, and looks at
//! the peers as often as it likes.
//!
//! # How it works
//! Two threads a process read its lines into one [`Channel`], where the user's wish to end arrives too. A process that ends
//! badly, and was not meant to, is an error at once, in its own words: the others would wait for it. Dropping the swarm ends all.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context, bail};
use peergrad_core::io::{Committed, RunSize, ViewDelta};
use peergrad_net::MonotonicClock;
use peergrad_protocol::{PeerId, StepNumber};
use serde_json::Value;

use super::curve::Curve;
use super::progress::{Progress, Screen};
use crate::terminal::emit;
use crate::text::change_text;
use crate::text::event_json::change_of;

/// What a swarm is to do.
pub(super) struct SwarmConfig<'a> {
    /// What its peers are peers of, where one of them fails: "the demo".
    pub(super) name: String,
    /// What this program is told before `start` and `join`.
    pub(super) program: &'a [String],
    pub(super) run_file: &'a Path,
    /// In place of the run file's.
    pub(super) seed: Option<u64>,
    /// The run's data file, if it is not embedded. Joiners need not ask for it then, which would be counted as sent.
    pub(super) data: Option<&'a Path>,
    /// Those that found the run; others may be added.
    pub(super) peers: u32,
    /// For their data directories.
    pub(super) folder: &'a Path,
}

/// Where it is shown what happens, and how.
#[derive(Clone)]
pub(super) struct SwarmOutput {
    pub(super) screen: Screen,
    pub(super) is_json: bool,
}

/// Where the processes of a command are heard, one swarm after the other, and whoever wants it to end.
pub(super) struct LineChannel {
    sender: Sender<(usize, Line)>,
    lines: Receiver<(usize, Line)>,
}

/// The processes. Dropping it ends them.
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
    /// Its id, and the end of that, once it has told it.
    pub(super) id: Value,
    pub(super) name: String,
    /// It need not end well.
    pub(super) is_excused: bool,
    pub(super) summary: Option<Value>,
    pub(super) scope: Option<RunSize>,
    /// Committed steps, and the first of them that it has seen.
    pub(super) steps: u64,
    pub(super) first_step: Option<u64>,
    /// What was trained in the steps that it has seen.
    pub(super) trained: TrainedSamples,
    /// Bytes that it had sent by its newest step.
    pub(super) bytes_sent: u64,
    /// Seconds from its first view to its newest step.
    pub(super) training_seconds: f64,
    /// Seconds that it had computed by then.
    pub(super) computing_seconds: f64,
    /// Views that followed the first one that it was in.
    pub(super) changes: Vec<ViewDelta>,
    pub(super) losses: Curve,
    /// By its own clock.
    began_seconds: Option<f64>,
    progress: Option<Progress>,
    invite: Option<String>,
    /// What it wrote for people, shown if it fails without a reason.
    words: String,
    reason: Option<String>,
    /// Standard outputs and standard errors that are not closed yet.
    open: usize,
}

/// Samples, and the sum of their losses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct TrainedSamples {
    pub(super) samples: u64,
    pub(super) loss_sum: f64,
}

enum Line {
    Report(Value),
    Words(String),
    End,
    /// The user has had enough.
    Stop,
}

impl LineChannel {
    /// From now on, a signal to end is heard here and does not end the process by itself.
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
            // It trains at once, and invites nobody.
            return Ok(swarm);
        }
        swarm.invite = swarm.founder_invite()?;
        for _ in 1..count {
            swarm.spawn_joiner()?;
        }
        Ok(swarm)
    }

    /// Starts one more.
    pub(super) fn spawn_joiner(&mut self) -> anyhow::Result<&mut ChildPeer> {
        // By standard input: the command line is visible to every user of the machine.
        let invite = self.invite.clone();
        let mut arguments: Vec<&OsStr> = vec!["join".as_ref(), "-".as_ref()];
        if let Some(data) = self.config.data {
            arguments.extend(["--data".as_ref(), data.as_os_str()]);
        }
        self.spawn(&arguments, &invite)
    }

    fn spawn(&mut self, arguments: &[&OsStr], input: &str) -> anyhow::Result<&mut ChildPeer> {
        let program = std::env::current_exe().context("cannot find this program itself")?;
        let index = self.peers.len();
        let mut process = Command::new(program)
            .args(self.config.program)
            .args(arguments)
            .args(["--json", "--no-mdns", "--listen", "127.0.0.1", "--port", "0", "--dir"])
            .arg(self.config.folder.join((index + 1).to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start a peer")?;
        let mut stdin = process.stdin.take().expect("piped");
        // A peer that has gone already says why in its own words.
        let _ = stdin.write_all(input.as_bytes());
        let (stdout, stderr) = (process.stdout.take().expect("piped"), process.stderr.take().expect("piped"));
        let parse = |line: String| serde_json::from_str(&line).map(Line::Report).ok();
        read_lines(index, stdout, self.channel.sender.clone(), parse);
        read_lines(index, stderr, self.channel.sender.clone(), |line| Some(Line::Words(line)));
        self.peers.push(ChildPeer::new(process));
        Ok(&mut self.peers[index])
    }

    fn founder_invite(&mut self) -> anyhow::Result<String> {
        loop {
            if let Some(invite) = self.peers[0].invite.take() {
                return Ok(invite);
            }
            if !self.advance()? {
                bail!("the first peer of {} ended without an invite", self.config.name);
            }
        }
    }

    /// Waits until one of them says something, and shows it; false once all have ended.
    ///
    /// # Errors
    /// One of them has failed, or the user wants all to end.
    pub(super) fn advance(&mut self) -> anyhow::Result<bool> {
        if self.peers.iter().all(|peer| peer.open == 0) {
            return Ok(false);
        }
        let (index, line) = self.channel.lines.recv().context("lost sight of the peers")?;
        match &line {
            Line::Stop => bail!("stopped on request"),
            Line::End => self.note_end(index)?,
            Line::Report(object) if index == 0 => self.tell_change(object),
            Line::Report(_) | Line::Words(_) => {}
        }
        // Without a terminal there are no bars to fill: one peer's lines say it all.
        let is_shown = !self.output.is_json && (index == 0 || self.output.screen.is_terminal());
        self.peers[index].take(line, is_shown.then_some(&self.output.screen));
        Ok(true)
    }

    /// One of its two ends is closed. After both, it has ended.
    fn note_end(&mut self, index: usize) -> anyhow::Result<()> {
        let peer = &mut self.peers[index];
        peer.open -= 1;
        if peer.open > 0 {
            return Ok(());
        }
        let status = peer.process.wait().context("cannot wait for a peer")?;
        let is_well = status.success() && peer.summary.is_some();
        if !is_well && !peer.is_excused {
            let words = peer.reason.as_deref().unwrap_or(peer.words.trim());
            bail!("peer {} of {} failed ({status}): {words}", index + 1, self.config.name);
        }
        Ok(())
    }

    /// What the founder says of a change of the members, for all.
    fn tell_change(&self, object: &Value) {
        let Some((view_number, members, change)) = change_of(object) else { return };
        if self.output.is_json {
            emit(object);
        } else {
            self.output.screen.say(&change_text::change_text(view_number, members, &change));
        }
    }

    /// Seconds of computing of all of them so far, the system's work for them included; `None` where it does not tell.
    pub(super) fn cpu_seconds(&self) -> Option<f64> {
        self.peers.iter().map(|peer| cpu_seconds(peer.process.id())).sum()
    }

    /// Memory that all of them have at present; `None` where the system does not tell.
    pub(super) fn resident_bytes(&self) -> Option<u64> {
        self.peers.iter().map(|peer| resident_bytes(peer.process.id())).sum()
    }

    /// # Errors
    /// They do not all hold the same model.
    pub(super) fn check_digests(&self) -> anyhow::Result<()> {
        let digests: BTreeSet<&str> =
            self.summaries().iter().filter_map(|summary| summary["digest"].as_str()).collect();
        if digests.len() != 1 {
            bail!("the peers hold different parameters: {digests:?}");
        }
        Ok(())
    }

    /// What those said at the end who got there.
    pub(super) fn summaries(&self) -> Vec<&Value> {
        self.peers.iter().filter_map(|peer| peer.summary.as_ref()).collect()
    }
}

impl Drop for Swarm<'_> {
    fn drop(&mut self) {
        for peer in &mut self.peers {
            // One that has ended is no longer there to be killed.
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
            bytes_sent: 0,
            training_seconds: 0.0,
            computing_seconds: 0.0,
            changes: Vec::new(),
            losses: Curve::default(),
            began_seconds: None,
            progress: None,
            invite: None,
            words: String::new(),
            reason: None,
            open: 2,
        }
    }

    /// Ends it, as `kill -9` does.
    pub(super) fn kill(&mut self) {
        self.close();
        // One that has ended already has lost nothing by it.
        let _ = self.process.kill();
        self.is_excused = true;
    }

    /// Takes note of what it has said, and shows it on `screen`.
    fn take(&mut self, line: Line, screen: Option<&Screen>) {
        match line {
            Line::End | Line::Stop => {}
            Line::Words(words) => self.words += &(words + "\n"),
            Line::Report(object) => match object["event"].as_str() {
                Some("listening") => {
                    self.name = short(&object["peer"]);
                    self.id = object["peer"].clone();
                }
                Some("invite") => self.invite = object["invite"].as_str().map(str::to_owned),
                Some("prepared") => self.scope = scope(&object),
                Some("view") => self.view(&object, screen),
                Some("step") => self.step(&object),
                Some("failed") => self.reason = object["reason"].as_str().map(str::to_owned),
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

    /// Takes its bar away.
    fn close(&mut self) {
        if let Some(progress) = self.progress.take() {
            progress.close();
        }
    }

    fn step(&mut self, object: &Value) {
        self.bytes_sent = object["bytes_sent"].as_u64().unwrap_or(self.bytes_sent);
        self.computing_seconds = object["computing_seconds"].as_f64().unwrap_or(self.computing_seconds);
        if let (Some(now), Some(began)) = (object["wall_seconds"].as_f64(), self.began_seconds) {
            self.training_seconds = now - began;
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

/// Linux tells, in hundredths.
fn cpu_seconds(process: u32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The program's name, in brackets, may hold anything.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let hundredths = |index: usize| fields.get(index)?.parse::<f64>().ok();
    Some((hundredths(11)? + hundredths(12)?) / 100.0)
}

/// Linux tells, in KiB.
fn resident_bytes(process: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let words = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(1024 * words.split_whitespace().next()?.parse::<u64>().ok()?)
}

/// The end of a peer's id, as it is shown everywhere.
pub(super) fn short(peer: &Value) -> String {
    peer.as_str().and_then(|text| text.parse::<PeerId>().ok()).map(|peer| peer.short()).unwrap_or_default()
}

fn scope(object: &Value) -> Option<RunSize> {
    Some(RunSize {
        parameters: object["parameters"].as_u64()? as usize,
        samples: object["samples"].as_u64()?,
        steps: object["steps"].as_u64()?,
        epochs: object["epochs"].as_u64()?,
    })
}

/// Reads lines on a thread of its own until the other end is closed.
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

/// Tells a command to end when the user or the system asks for it, so that it ends its peers and removes its folder.
fn stop_on_signals(sender: Sender<(usize, Line)>) {
    std::thread::spawn(move || {
        // Without signals the system's own way of stopping a process stays.
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(super::signals::stop_requested());
        let _ = sender.send((0, Line::Stop));
    });
}

/// A folder of one's own that goes away at the end.
pub(super) struct ScratchDirectory {
    path: PathBuf,
}

impl ScratchDirectory {
    /// A folder for a command of this name.
    pub(super) fn create(command: &str) -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("peergrad-{command}-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        // Whatever stays is in the system's folder for such things.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
