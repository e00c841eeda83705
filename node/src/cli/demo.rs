//! The demo: real peers, as real processes with real sockets, on one machine.
//!
//! It starts this very program as `start` and `join`, reads what they report as JSON, and draws one progress bar for each;
//! so what it shows is what anybody's own run does.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context, bail};
use clap::Args;
use peergrad_protocol::{PeerId, StepNumber};
use serde_json::{Value, json};

use super::curve::Curve;
use super::plot;
use super::progress::{Progress, Screen};
use super::report::{emit, print_line};
use super::table::{bytes, count, table};
use crate::io::{Committed, Scope};
use crate::specification::init::demo_run_file;

#[derive(Args)]
pub(super) struct DemoArguments {
    /// Peers to start
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    peers: u32,
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
    let mut swarm = Swarm::start(&run_file, &folder.path, arguments.peers)?;
    swarm.watch(&screen, arguments.json)?;
    swarm.tell(arguments.json)
}

/// The processes of the demo. Dropping it ends them.
struct Swarm {
    peers: Vec<Peer>,
    lines: Receiver<(usize, Line)>,
}

/// One process, and what it has reported.
struct Peer {
    process: Child,
    /// The end of its id, once it has told it.
    name: String,
    summary: Option<Value>,
    scope: Option<Scope>,
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
    fn start(run_file: &Path, folder: &Path, count: u32) -> anyhow::Result<Self> {
        let (sender, lines) = channel();
        stop_on_signals(sender.clone());
        let mut swarm = Self { peers: Vec::new(), lines };
        let (run_file, peers) = (run_file.as_os_str(), count.to_string());
        let arguments = ["start".as_ref(), run_file, "--peers".as_ref(), peers.as_ref()];
        swarm.spawn(&arguments, &folder.join("1"), None, &sender)?;
        if count == 1 {
            return Ok(swarm);
        }
        let invite = swarm.founder_invite()?;
        for number in 2..=count {
            // By standard input: the command line is visible to every user of the machine.
            let arguments = ["join".as_ref(), "-".as_ref()];
            swarm.spawn(&arguments, &folder.join(number.to_string()), Some(&invite), &sender)?;
        }
        Ok(swarm)
    }

    fn spawn(
        &mut self,
        arguments: &[&std::ffi::OsStr],
        directory: &Path,
        input: Option<&str>,
        sender: &Sender<(usize, Line)>,
    ) -> anyhow::Result<()> {
        let program = std::env::current_exe().context("cannot find this program itself")?;
        let mut process = Command::new(program)
            .args(arguments)
            .args(["--json", "--no-mdns", "--listen", "127.0.0.1", "--port", "0", "--dir"])
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start a peer")?;
        let mut stdin = process.stdin.take().expect("piped");
        // A peer that has gone already says why in its own words.
        let _ = stdin.write_all(input.unwrap_or_default().as_bytes());
        let index = self.peers.len();
        let (stdout, stderr) = (process.stdout.take().expect("piped"), process.stderr.take().expect("piped"));
        read_lines(index, stdout, sender.clone(), |line| serde_json::from_str(&line).map(Line::Report).ok());
        read_lines(index, stderr, sender.clone(), |line| Some(Line::Words(line)));
        let (summary, scope, progress) = (None, None, None);
        let (name, words) = (String::new(), String::new());
        self.peers.push(Peer { process, name, summary, scope, progress, words, losses: Curve::default() });
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
            self.peers[index].take(line, &Screen::new(), true);
        }
        bail!("the first peer did not start: {}", self.peers[0].words.trim());
    }

    /// Shows progress until every process has ended.
    fn watch(&mut self, screen: &Screen, is_quiet: bool) -> anyhow::Result<()> {
        // Standard output and standard error of each.
        let mut open = 2 * self.peers.len();
        while open > 0 {
            let (index, line) = self.lines.recv().context("lost sight of the peers")?;
            if matches!(line, Line::Stop) {
                bail!("stopped on request");
            }
            open -= usize::from(matches!(line, Line::End));
            // Without a terminal there are no bars to fill: one peer's lines say it all.
            let is_silent = is_quiet || (index > 0 && !screen.is_terminal());
            self.peers[index].take(line, screen, is_silent);
        }
        for (index, peer) in self.peers.iter_mut().enumerate() {
            let status = peer.process.wait().context("cannot wait for a peer")?;
            if !status.success() || peer.summary.is_none() {
                bail!("peer {} of the demo failed ({status}): {}", index + 1, peer.words.trim());
            }
        }
        Ok(())
    }

    fn summaries(&self) -> Vec<&Value> {
        self.peers.iter().filter_map(|peer| peer.summary.as_ref()).collect()
    }

    /// The results, for people or programs.
    fn tell(&self, is_json: bool) -> anyhow::Result<ExitCode> {
        let summaries = self.summaries();
        let digests: std::collections::BTreeSet<&str> =
            summaries.iter().filter_map(|summary| summary["digest"].as_str()).collect();
        if digests.len() != 1 {
            bail!("the peers hold different parameters: {digests:?}");
        }
        if is_json {
            self.tell_json(&summaries);
        } else {
            self.tell_words(&summaries);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn tell_json(&self, summaries: &[&Value]) {
        for summary in summaries {
            let mut object = (*summary).clone();
            object["event"] = json!("peer");
            emit(&object);
        }
        let sum = |key: &str| summaries.iter().filter_map(|summary| summary[key].as_u64()).sum::<u64>();
        let slowest =
            summaries.iter().filter_map(|summary| summary["wall_seconds"].as_f64()).fold(0.0, f64::max);
        let mut object = summaries[0].clone();
        for key in ["peer", "own_samples", "shard", "optimizer_bytes"] {
            object.as_object_mut().expect("a summary is an object").remove(key);
        }
        object["wall_seconds"] = json!(slowest);
        object["bytes_sent"] = json!(sum("bytes_sent"));
        object["bytes_received"] = json!(sum("bytes_received"));
        emit(&object);
    }

    fn tell_words(&self, summaries: &[&Value]) {
        let number = |summary: &Value, key: &str| summary[key].as_u64().unwrap_or(0);
        let parameters = self.peers[0].scope.map_or(1, |scope| scope.parameters).max(1);
        let rows: Vec<Vec<String>> = summaries
            .iter()
            .map(|summary| {
                let shard = number(summary, "shard");
                let share = 100.0 * shard as f64 / parameters as f64;
                vec![
                    short(&summary["peer"]),
                    format!("{} ({share:.0} %)", count(shard)),
                    count(number(summary, "own_samples")),
                    bytes(number(summary, "bytes_received")),
                    bytes(number(summary, "bytes_sent")),
                    bytes(number(summary, "optimizer_bytes")),
                ]
            })
            .collect();
        let header = ["peer", "owns parameters", "samples", "received", "sent", "optimizer memory"];
        print_line(&table(&header, &rows));
        print_line(&format!(
            "training loss over {} steps\n{}",
            count(number(summaries[0], "steps")),
            plot::curve(self.peers[0].losses.means(), 60, 10)
        ));
        let seconds = summaries[0]["wall_seconds"].as_f64().unwrap_or(0.0);
        print_line(&format!(
            "test accuracy {:.4} on the held-out fifth, after {seconds:.1} s",
            summaries[0]["test_accuracy"].as_f64().unwrap_or(0.0)
        ));
        print_line(&format!(
            "one digest at all {} peers: {}",
            summaries.len(),
            summaries[0]["digest"].as_str().unwrap_or_default()
        ));
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
    fn take(&mut self, line: Line, screen: &Screen, is_quiet: bool) {
        match line {
            Line::End | Line::Stop => {}
            Line::Words(words) => self.words += &(words + "\n"),
            Line::Report(object) => match object["event"].as_str() {
                Some("listening") => self.name = short(&object["peer"]),
                Some("prepared") => self.scope = scope(&object),
                Some("view") if !is_quiet => {
                    let name = format!("peer {}", self.name);
                    self.progress = self.scope.map(|scope| Progress::new(screen, name, scope));
                }
                Some("step") => self.step(&object),
                Some("failed") => self.words += object["reason"].as_str().unwrap_or_default(),
                Some("summary") => {
                    if let Some(progress) = self.progress.take() {
                        progress.close();
                    }
                    self.summary = Some(object);
                }
                _ => {}
            },
        }
    }

    fn step(&mut self, object: &Value) {
        let (Some(step), Some(pass), Some(loss)) =
            (object["step"].as_u64(), object["pass"].as_u64(), object["loss"].as_f64())
        else {
            return;
        };
        self.losses.push(loss);
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
