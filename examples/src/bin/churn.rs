//! Churn: kills and replaces real peers on this machine while they train, and measures the effect on the run.
//!
//! ```text
//! cargo build --release --workspace
//! target/release/churn                                  8 peers for a minute; one is killed and replaced every 5 s
//! target/release/churn --every 0                        the same without faults, for comparison
//! target/release/churn --founder-first --seconds 3600   for an hour; the founder is killed first
//! ```
//! Each peer is a process of the program `peer` in the same folder (or of `--peer FILE`). The seed selects a peer, which is killed as
//! by `kill -9`. A new peer joins with the invite of another selected member, so that the run does not depend on the founder. At the
//! end, the remaining peers leave one after another and hand over.
//!
//! It prints:
//! - *steps*, and steps per second;
//! - *stalls*: for each kill, the longest time without a committed step that began before the next kill;
//! - *digests*: steps for which two peers report different parameters (must be none);
//! - *samples*: complete epochs, and those that did not train each row once (must be none);
//! - *memory*: the resident memory of the peers, at several times (Linux only).
//!
//! The exit code is 1 if one of these is wrong, or if a peer ends that was not killed. Needs a Unix system.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use clap::Parser;
use rand::rand_core::Rng;
use rand::{SeedableRng, rngs::ChaCha8Rng};
use serde_json::Value;

/// Kill and replace peers on this machine while they train on the digits
#[derive(Parser)]
struct Arguments {
    /// How many peers train at the same time
    #[arg(long, value_name = "N", default_value_t = 8)]
    peers: usize,
    /// Seconds between two kills; 0 kills no peer
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    every: f64,
    /// Duration of the test in seconds, from the first step
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    seconds: f64,
    /// Kill the founder first
    #[arg(long)]
    founder_first: bool,
    /// Seed that selects the peers to kill, and the members whose invites are used
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The program to run as a peer [default: `peer` in the folder of this program]
    #[arg(long, value_name = "FILE")]
    peer: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let beside = || Some(std::env::current_exe().ok()?.with_file_name("peer"));
    let Some(program) = arguments.peer.clone().or_else(beside).filter(|program| program.exists()) else {
        eprintln!(
            "there is no program `peer` in the folder of this one: build it, or name it with --peer FILE"
        );
        return ExitCode::FAILURE;
    };
    let folder = tempfile::tempdir().expect("the system's folder for temporary files is writable");
    let mut swarm = Swarm::new(program, folder.path().to_owned(), arguments.seed);
    swarm.found(arguments.peers);
    let began = Instant::now();
    swarm.churn(&arguments, began);
    let seconds = began.elapsed().as_secs_f64();
    let accuracy = swarm.stop_all();
    swarm.report(seconds, accuracy)
}

/// The processes, and what they have reported.
struct Swarm {
    program: PathBuf,
    folder: PathBuf,
    random: ChaCha8Rng,
    peers: Vec<Peer>,
    lines: Receiver<(usize, Line)>,
    sender: Sender<(usize, Line)>,
    history: History,
    kills: Vec<Instant>,
    /// Seconds since the first step; peers; mean, largest memory of a peer, and that of the oldest one, in MiB.
    memory: Vec<(f64, usize, [f64; 3])>,
    problems: Vec<String>,
}

struct Peer {
    process: Child,
    directory: String,
    /// Whether it has committed a step.
    trains: bool,
    /// Whether it was killed or asked to leave, so that its end is expected.
    may_end: bool,
    has_ended: bool,
}

/// Which peer is killed next.
#[derive(Clone, Copy)]
enum NextVictim {
    /// The founder.
    Founder,
    /// One that the seed selects.
    Drawn,
}

enum Line {
    Event(Instant, Value),
    End,
}

impl Swarm {
    fn new(program: PathBuf, folder: PathBuf, seed: u64) -> Self {
        let (sender, lines) = channel();
        Self {
            program,
            folder,
            random: ChaCha8Rng::seed_from_u64(seed),
            peers: Vec::new(),
            lines,
            sender,
            history: History::default(),
            kills: Vec::new(),
            memory: Vec::new(),
            problems: Vec::new(),
        }
    }

    // Starting, killing and stopping peers.

    /// Starts the first `count` peers, and waits until all of them train.
    fn found(&mut self, count: usize) {
        // The test ends long before these epochs do.
        let run = "epochs = 10000000\n[data]\nfile = \"digits\"\n[sync]\ndigest_every = 1\n";
        std::fs::write(self.folder.join("run.toml"), run).expect("the folder is writable");
        self.spawn(&["start", "run.toml", "--peers", &count.to_string()], "");
        if count > 1 {
            let invite = loop {
                if let Some(invite) = self.invite(0) {
                    break invite;
                }
                assert!(!self.peers[0].has_ended, "the founder did not start: {:?}", self.problems);
                self.listen_until(Instant::now() + POLL_INTERVAL);
            };
            (1..count).for_each(|_| self.spawn(&["join", "-"], &invite));
        }
        while self.peers.iter().any(|peer| !peer.trains) {
            assert!(self.peers.iter().all(|peer| !peer.has_ended), "a peer has ended: {:?}", self.problems);
            self.listen_until(Instant::now() + POLL_INTERVAL);
        }
    }

    fn churn(&mut self, arguments: &Arguments, began: Instant) {
        let end = began + Duration::from_secs_f64(arguments.seconds);
        let pause = Duration::from_secs_f64(arguments.every);
        let sample_pause = Duration::from_secs_f64(arguments.seconds / MEMORY_SAMPLES);
        let (mut next_kill, mut next_sample) = (began + pause, began + sample_pause);
        while Instant::now() < end {
            if !pause.is_zero() && Instant::now() >= next_kill {
                let is_founder = arguments.founder_first && self.kills.is_empty();
                self.replace(began, if is_founder { NextVictim::Founder } else { NextVictim::Drawn });
                next_kill += pause;
            }
            if Instant::now() >= next_sample {
                self.sample_memory(began);
                next_sample += sample_pause;
            }
            let next = if pause.is_zero() { next_sample } else { next_kill.min(next_sample) };
            self.listen_until(next.min(end));
        }
    }

    /// Kills a peer, and starts another one.
    fn replace(&mut self, began: Instant, next: NextVictim) {
        let training: Vec<usize> =
            self.alive().into_iter().filter(|index| self.peers[*index].trains).collect();
        if training.len() < 2 {
            self.problems
                .push("no peer could be killed, because fewer than two peers were training".to_owned());
            return;
        }
        let victim = match next {
            NextVictim::Founder => 0,
            NextVictim::Drawn => self.draw(&training),
        };
        self.peers[victim].may_end = true;
        self.peers[victim].process.kill().expect("a child can be killed");
        self.kills.push(Instant::now());
        let others: Vec<usize> = training.into_iter().filter(|index| *index != victim).collect();
        let sponsor = self.draw(&others);
        let fresh = self.peers.len() + 1;
        eprintln!(
            "{:6.1} s: peer {} is killed; peer {fresh} joins with the invite of peer {}; {} steps so far",
            began.elapsed().as_secs_f64(),
            victim + 1,
            sponsor + 1,
            self.history.steps.len()
        );
        match self.invite(sponsor) {
            Some(invite) => self.spawn(&["join", "-"], &invite),
            None => self.problems.push(format!("peer {} printed no invite", sponsor + 1)),
        }
    }

    /// Stops all peers, one after another. Returns the accuracy of the last one's model on the held-out rows.
    fn stop_all(&mut self) -> Option<f64> {
        let mut last = None;
        for index in self.alive() {
            self.peers[index].may_end = true;
            let id = self.peers[index].process.id().to_string();
            let signalled = Command::new("kill").args(["-s", "INT", &id]).status();
            assert!(signalled.is_ok_and(|status| status.success()), "there is a `kill` command");
            let deadline = Instant::now() + LEAVE_MAX;
            while !self.peers[index].has_ended && Instant::now() < deadline {
                self.listen_until(Instant::now() + POLL_INTERVAL);
            }
            if !self.peers[index].has_ended {
                self.problems.push(format!("peer {} did not leave in time", index + 1));
            }
            last = Some(index);
        }
        let model = format!("{}/model.safetensors", self.peers[last?].directory);
        let answer = self.command(&["evaluate", &model, "--data", "digits", "--json"]).output().ok()?;
        serde_json::from_slice::<Value>(&answer.stdout).ok()?["accuracy"].as_f64()
    }

    fn alive(&self) -> Vec<usize> {
        let is_alive = |index: &usize| !self.peers[*index].has_ended && !self.peers[*index].may_end;
        (0..self.peers.len()).filter(is_alive).collect()
    }

    fn draw(&mut self, among: &[usize]) -> usize {
        among[(self.random.next_u64() % among.len() as u64) as usize]
    }

    // Processes.

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).current_dir(&self.folder);
        command
    }

    fn spawn(&mut self, arguments: &[&str], input: &str) {
        let index = self.peers.len();
        let directory = format!("peer-{}", index + 1);
        let mut command = self.command(arguments);
        command.args(["--json", "--no-mdns", "--listen", "127.0.0.1", "--port", "0", "--dir", &directory]);
        let errors = std::fs::File::create(self.folder.join(format!("{directory}.log"))).expect("writable");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut process = command.spawn().expect("the program starts");
        // A process that has ended already reports the reason itself.
        let _ = process.stdin.take().expect("piped").write_all(input.as_bytes());
        let (stdout, sender) = (process.stdout.take().expect("piped"), self.sender.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The last line of a killed process may be incomplete.
                if let Ok(value) = serde_json::from_str(&line) {
                    let _ = sender.send((index, Line::Event(Instant::now(), value)));
                }
            }
            let _ = sender.send((index, Line::End));
        });
        self.peers.push(Peer { process, directory, trains: false, may_end: false, has_ended: false });
    }

    fn invite(&self, index: usize) -> Option<String> {
        let answer = self.command(&["invite", "--dir", &self.peers[index].directory]).output().ok()?;
        answer.status.success().then(|| String::from_utf8_lossy(&answer.stdout).trim().to_owned())
    }

    /// Handles the reports of the peers until then.
    fn listen_until(&mut self, until: Instant) {
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((index, line)) => self.take(index, line),
                Err(RecvTimeoutError::Timeout) => return,
                Err(RecvTimeoutError::Disconnected) => unreachable!("the swarm holds a sender"),
            }
        }
    }

    fn take(&mut self, index: usize, line: Line) {
        let peer = &mut self.peers[index];
        match line {
            Line::Event(at, event) => match event["event"].as_str() {
                Some("step") => {
                    peer.trains = true;
                    self.history.step(at, &event);
                }
                Some("prepared") => self.history.rows = event["samples"].as_u64(),
                Some("view") => self.history.view(&event),
                Some("excluded") => self.history.exclusions += 1,
                Some("failed") if !peer.may_end => {
                    self.problems.push(format!("peer {} failed: {}", index + 1, event["reason"]));
                }
                _ => {}
            },
            Line::End => {
                peer.has_ended = true;
                let status = peer.process.wait();
                if !peer.may_end {
                    let words = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                    self.problems
                        .push(format!("peer {} ended although it was not killed: {words}", index + 1));
                }
            }
        }
    }

    fn sample_memory(&mut self, began: Instant) {
        let alive = self.alive();
        let sizes: Vec<f64> =
            alive.iter().filter_map(|index| resident(self.peers[*index].process.id())).collect();
        if let Some(oldest) = sizes.first() {
            let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
            let largest = sizes.iter().copied().fold(0.0, f64::max);
            self.memory.push((began.elapsed().as_secs_f64(), sizes.len(), [mean, largest, *oldest]));
        }
    }

    // The end.

    fn report(&mut self, seconds: f64, accuracy: Option<f64>) -> ExitCode {
        let history = &self.history;
        let count = history.steps.len();
        println!("steps       {count} in {seconds:.1} s, {:.0} per second", count as f64 / seconds);
        println!(
            "views       {}; {} steps interrupted, {} of them rolled forward; {} times a peer was excluded and came back",
            history.views.len(),
            history.interruptions.len(),
            history.interruptions.values().filter(|is_forward| **is_forward).count(),
            history.exclusions
        );
        let mut stalls = history.stalls(&self.kills);
        stalls.sort_by(f64::total_cmp);
        if let (Some(median), Some(worst)) = (stalls.get(stalls.len() / 2), stalls.last()) {
            println!("stalls      {} kills: median {median:.2} s, worst {worst:.2} s", stalls.len());
        }
        println!("longest     {:.2} s between two steps", history.longest_pause());
        println!("digests     {} steps with two different digests", history.mismatches);
        let (epochs, wrong) = history.epochs();
        println!("samples     {epochs} complete epochs, {wrong} of them with too many or too few samples");
        println!("chunks      {} reset, because no peer held their optimizer state", history.restarted);
        match accuracy {
            Some(accuracy) => println!("accuracy    {accuracy:.4} on the held-out rows"),
            None => self.problems.push("the last peer saved no model".to_owned()),
        }
        for (at, peers, [mean, largest, oldest]) in &self.memory {
            println!(
                "memory      after {at:6.0} s: {peers} peers, mean {mean:.1} MiB, largest {largest:.1} MiB, oldest {oldest:.1} MiB"
            );
        }
        self.problems.iter().for_each(|problem| println!("problem     {problem}"));
        let is_right = self.history.mismatches == 0 && wrong == 0 && self.problems.is_empty();
        if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

impl Drop for Swarm {
    fn drop(&mut self) {
        for peer in &mut self.peers {
            // A process that has ended cannot be killed any more.
            let _ = peer.process.kill();
            let _ = peer.process.wait();
        }
    }
}

/// The run, as its peers report it.
#[derive(Default)]
struct History {
    rows: Option<u64>,
    /// By number: when it was reported first, its epoch, its samples, and the first half of its digest.
    steps: BTreeMap<u64, (Instant, u64, u64, u128)>,
    mismatches: usize,
    views: BTreeSet<u64>,
    /// By view: whether the interrupted step was rolled forward.
    interruptions: BTreeMap<u64, bool>,
    exclusions: usize,
    restarted: usize,
}

impl History {
    fn step(&mut self, at: Instant, event: &Value) {
        let number = |key: &str| event[key].as_u64().unwrap_or_default();
        let digest = event["digest"].as_str().and_then(|digest| digest.get(..32));
        let digest = digest.and_then(|digest| u128::from_str_radix(digest, 16).ok()).unwrap_or_default();
        let trained = number("samples") + number("left_out");
        let report = (at, number("epoch"), trained, digest);
        let before = self.steps.entry(number("step")).or_insert(report);
        if (before.1, before.2, before.3) != (report.1, report.2, report.3) {
            self.mismatches += 1;
        }
        before.0 = before.0.min(at);
    }

    fn view(&mut self, event: &Value) {
        let view_number = event["number"].as_u64().unwrap_or_default();
        let change = &event["change"];
        if self.views.insert(view_number) {
            self.restarted += change["restarted"].as_array().map_or(0, Vec::len);
        }
        if change["interrupted"] == true {
            self.interruptions.insert(view_number, change["rolled_forward"] == true);
        }
    }

    /// When each new step was reported, in order.
    fn moments(&self) -> Vec<Instant> {
        let mut moments: Vec<Instant> = self.steps.values().map(|step| step.0).collect();
        moments.sort_unstable();
        moments
    }

    /// For each kill, the longest pause after it that began before the next one.
    fn stalls(&self, kills: &[Instant]) -> Vec<f64> {
        let moments = self.moments();
        let next_of = |index: usize| kills.get(index + 1).copied();
        let stall = |(index, kill): (usize, &Instant)| {
            let first = moments.partition_point(|moment| moment < kill);
            let after = std::iter::once(kill).chain(&moments[first..]);
            let is_ours = |moment: &&Instant| next_of(index).is_none_or(|next| **moment < next);
            let starts = after.take_while(is_ours);
            let pauses = starts.zip(&moments[first..]).map(|(start, end)| (*end - *start).as_secs_f64());
            pauses.fold(0.0, f64::max)
        };
        kills.iter().enumerate().map(stall).collect()
    }

    fn longest_pause(&self) -> f64 {
        let moments = self.moments();
        let pauses = moments.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64());
        pauses.fold(0.0, f64::max)
    }

    /// The number of complete epochs, and how many of them did not train each row once.
    fn epochs(&self) -> (usize, usize) {
        let mut epochs: BTreeMap<u64, u64> = BTreeMap::new();
        for (_, epoch, trained, _) in self.steps.values() {
            *epochs.entry(*epoch).or_default() += trained;
        }
        epochs.pop_last();
        let wrong = epochs.values().filter(|trained| Some(**trained) != self.rows).count();
        (epochs.len(), wrong)
    }
}

/// The resident memory of a process, in MiB; `None` where the system does not report it.
fn resident(process: u32) -> Option<f64> {
    let status = std::fs::read_to_string(Path::new("/proc").join(process.to_string()).join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: f64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kibibytes / 1024.0)
}

/// The pause between two checks for a condition that no event reports.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long a peer may take to hand over.
const LEAVE_MAX: Duration = Duration::from_secs(30);
/// How often memory is measured.
const MEMORY_SAMPLES: f64 = 6.0;
