//! The demo: real peers, as real processes with real sockets, on one machine; one of them is killed, and another comes late.
//!
//! It starts this very program as `start` and `join`, reads what they report as JSON, and draws one progress bar for each;
//! so what it shows is what anybody's own run does. What goes wrong is in [`trouble`], what is shown at the end in
//! [`results`].

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context, bail};
use clap::Args;
use peergrad_protocol::{PeerId, StepNumber};
use serde_json::Value;

use super::changes;
use super::curve::Curve;
use super::objects::change_of;
use super::progress::{Progress, Screen};
use super::report::emit;
use crate::io::{Change, Committed, Scope};
use crate::specification::init::demo_run_file;
use trouble::Trouble;

mod results;
mod trouble;

#[derive(Args)]
pub(super) struct DemoArguments {
    /// Peers to start
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    peers: u32,
    /// Nobody is killed, and nobody comes late
    #[arg(long)]
    calm: bool,
    /// The results as JSON, one object a line, on standard output
    #[arg(long)]
    json: bool,
}

pub(super) fn demo(arguments: &DemoArguments) -> anyhow::Result<ExitCode> {
    let folder = Scratch::create()?;
    let run_file = folder.path.join("run.toml");
    std::fs::write(&run_file, demo_run_file()).context("cannot write the demo's run.toml")?;
    let screen = Screen::new();
    if !arguments.json {
        let noun = if arguments.peers == 1 { "peer learns" } else { "peers learn" };
        screen.say(&format!("{} {noun} to read handwritten digits on this machine", arguments.peers));
    }
    let show = Show { screen, is_json: arguments.json };
    let mut trouble = Trouble::planned(arguments.peers as usize, arguments.calm, &show);
    let mut swarm = Swarm::start(&run_file, &folder.path, arguments.peers, show)?;
    swarm.watch(&mut trouble)?;
    swarm.tell(&trouble)
}

/// Where it is shown what happens, and how.
#[derive(Clone)]
struct Show {
    screen: Screen,
    is_json: bool,
}

/// The processes of the demo. Dropping it ends them.
struct Swarm {
    show: Show,
    folder: PathBuf,
    invite: String,
    peers: Vec<Peer>,
    sender: Sender<(usize, Line)>,
    lines: Receiver<(usize, Line)>,
    /// Standard outputs and standard errors that are not closed yet.
    open: usize,
}

/// One process, and what it has reported.
struct Peer {
    process: Child,
    /// Its id, and the end of that, once it has told it.
    id: Value,
    name: String,
    is_killed: bool,
    summary: Option<Value>,
    scope: Option<Scope>,
    /// Committed steps, and the first of them that it has seen.
    steps: u64,
    first_step: Option<u64>,
    /// Views that followed the first one that it was in.
    changes: Vec<Change>,
    progress: Option<Progress>,
    /// What it wrote for people, shown if it fails.
    words: String,
    losses: Curve,
}

enum Line {
    Report(Value),
    Words(String),
    End,
    /// The user has had enough.
    Stop,
}

impl Swarm {
    /// Starts the founder, and with its invite the others.
    fn start(run_file: &Path, folder: &Path, count: u32, show: Show) -> anyhow::Result<Self> {
        let (sender, lines) = channel();
        stop_on_signals(sender.clone());
        let (folder, invite) = (folder.to_owned(), String::new());
        let mut swarm = Self { show, folder, invite, peers: Vec::new(), sender, lines, open: 0 };
        let (run_file, peers) = (run_file.as_os_str(), count.to_string());
        swarm.spawn(&["start".as_ref(), run_file, "--peers".as_ref(), peers.as_ref()], "")?;
        if count == 1 {
            // It trains at once, and invites nobody.
            return Ok(swarm);
        }
        swarm.invite = swarm.founder_invite()?;
        (1..count).try_for_each(|_| swarm.spawn_joiner())?;
        Ok(swarm)
    }

    fn spawn_joiner(&mut self) -> anyhow::Result<()> {
        // By standard input: the command line is visible to every user of the machine.
        let invite = self.invite.clone();
        self.spawn(&["join".as_ref(), "-".as_ref()], &invite)
    }

    fn spawn(&mut self, arguments: &[&std::ffi::OsStr], input: &str) -> anyhow::Result<()> {
        let program = std::env::current_exe().context("cannot find this program itself")?;
        let index = self.peers.len();
        let mut process = Command::new(program)
            .args(arguments)
            .args(["--json", "--no-mdns", "--listen", "127.0.0.1", "--port", "0", "--dir"])
            .arg(self.folder.join((index + 1).to_string()))
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
        read_lines(index, stdout, self.sender.clone(), parse);
        read_lines(index, stderr, self.sender.clone(), |line| Some(Line::Words(line)));
        self.open += 2;
        self.peers.push(Peer::new(process));
        Ok(())
    }

    fn founder_invite(&mut self) -> anyhow::Result<String> {
        while let Ok((index, line)) = self.lines.recv() {
            if let Line::Report(object) = &line
                && let Some(invite) = object["invite"].as_str()
            {
                return Ok(invite.to_owned());
            }
            match line {
                Line::End => break,
                Line::Stop => bail!("stopped on request"),
                Line::Report(_) | Line::Words(_) => {}
            }
            self.peers[index].take(line, None);
        }
        bail!("the first peer did not start: {}", self.peers[0].words.trim());
    }

    /// Shows what happens until every process has ended.
    fn watch(&mut self, trouble: &mut Trouble) -> anyhow::Result<()> {
        while self.open > 0 {
            let (index, line) = self.lines.recv().context("lost sight of the peers")?;
            if matches!(line, Line::Stop) {
                bail!("stopped on request");
            }
            self.open -= usize::from(matches!(line, Line::End));
            // Without a terminal there are no bars to fill: one peer's lines say it all.
            let is_shown = !self.show.is_json && (index == 0 || self.show.screen.is_terminal());
            self.tell_change(index, &line);
            self.peers[index].take(line, is_shown.then_some(&self.show.screen));
            trouble.go_on(self)?;
        }
        for (index, peer) in self.peers.iter_mut().enumerate() {
            let status = peer.process.wait().context("cannot wait for a peer")?;
            if !trouble.excuses(index, peer) && (!status.success() || peer.summary.is_none()) {
                bail!("peer {} of the demo failed ({status}): {}", index + 1, peer.words.trim());
            }
        }
        Ok(())
    }

    /// What the founder says of a change of the members, for all.
    fn tell_change(&self, index: usize, line: &Line) {
        let Line::Report(object) = line else { return };
        let Some((epoch, members, change)) = change_of(object).filter(|_| index == 0) else { return };
        if self.show.is_json {
            emit(object);
        } else {
            self.show.screen.say(&changes::words(epoch, members, &change));
        }
    }
}

impl Drop for Swarm {
    fn drop(&mut self) {
        for peer in &mut self.peers {
            // One that has ended is no longer there to be killed.
            let _ = peer.process.kill();
            let _ = peer.process.wait();
        }
    }
}

impl Peer {
    fn new(process: Child) -> Self {
        Self {
            process,
            id: Value::Null,
            name: String::new(),
            is_killed: false,
            summary: None,
            scope: None,
            steps: 0,
            first_step: None,
            changes: Vec::new(),
            progress: None,
            words: String::new(),
            losses: Curve::default(),
        }
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
                Some("prepared") => self.scope = scope(&object),
                Some("view") => self.view(&object, screen),
                Some("step") => self.step(&object),
                Some("failed") => self.words += object["reason"].as_str().unwrap_or_default(),
                Some("summary") => {
                    self.close();
                    self.summary = Some(object);
                }
                _ => {}
            },
        }
    }

    fn view(&mut self, object: &Value, screen: Option<&Screen>) {
        self.changes.extend(change_of(object).map(|(_, _, change)| change));
        if let (Some(screen), Some(scope), None) = (screen, self.scope, &self.progress) {
            self.progress = Some(Progress::new(screen, format!("peer {}", self.name), scope));
        }
    }

    /// Takes its bar away.
    fn close(&mut self) {
        if let Some(progress) = self.progress.take() {
            progress.close();
        }
    }

    fn step(&mut self, object: &Value) {
        let (Some(step), Some(pass), Some(loss)) =
            (object["step"].as_u64(), object["pass"].as_u64(), object["loss"].as_f64())
        else {
            return;
        };
        self.losses.push(loss);
        self.steps = step + 1;
        self.first_step.get_or_insert(step);
        if let Some(progress) = &mut self.progress {
            let (samples, left_out, rate) = (0, 0, 0.0);
            progress.committed(&Committed {
                step: StepNumber(step),
                pass,
                loss,
                samples,
                left_out,
                rate,
                digest: None,
            });
        }
    }
}

/// The end of a peer's id, as it is shown everywhere.
fn short(peer: &Value) -> String {
    peer.as_str().and_then(|text| text.parse::<PeerId>().ok()).map(|peer| peer.short()).unwrap_or_default()
}

fn scope(object: &Value) -> Option<Scope> {
    Some(Scope {
        parameters: object["parameters"].as_u64()? as usize,
        samples: object["samples"].as_u64()?,
        steps: object["steps"].as_u64()?,
        passes: object["passes"].as_u64()?,
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

/// Tells the demo to end when the user or the system asks for it, so that it ends its peers and removes its folder.
fn stop_on_signals(sender: Sender<(usize, Line)>) {
    std::thread::spawn(move || {
        // Without signals the system's own way of stopping a process stays.
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(super::signals::stop_requested());
        let _ = sender.send((0, Line::Stop));
    });
}

/// A folder of one's own that goes away at the end.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn create() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("peergrad-demo-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Whatever stays is in the system's folder for such things.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
