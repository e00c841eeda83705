//! A process of the `peer` binary, and a folder for the processes of one test.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use peergrad_protocol::PeerId;
use serde_json::Value;
use tempfile::TempDir;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_peer");

/// A process that reports nothing for this time is stuck, and so is one that goes on for this time without the expected event. This is no
/// promise of speed.
const PATIENCE: Duration = Duration::from_secs(100);
/// A process that still reports events may need more time to its end, on a machine that does much else.
const PATIENCE_TO_END: Duration = Duration::from_secs(500);

/// A process. Dropping it kills it.
pub(crate) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    words: Option<JoinHandle<String>>,
    /// All events reported so far.
    seen: Vec<Value>,
}

/// The output of a process that has ended.
pub(crate) struct Ended {
    /// The exit code; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    /// Lines of standard output that are JSON.
    pub(crate) events: Vec<Value>,
    /// Standard output, if it was not JSON; else empty.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout.expect("piped")).lines().map_while(Result::ok) {
                // A test that has failed no longer receives.
                let _ = sender.send(line);
            }
        });
        let words = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            stderr.expect("piped").read_to_end(&mut bytes).expect("a pipe can be read");
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Self { child, stdin, lines, words: Some(words), seen: Vec::new() }
    }

    /// Writes to the process's standard input and closes it.
    pub(crate) fn type_in(&mut self, text: &str) {
        let mut stdin = self.stdin.take().expect("typed in once");
        // A process that has ended already has reported the reason.
        let _ = stdin.write_all(text.as_bytes());
    }

    /// The next line of standard output; `None` once it is closed.
    fn line(&mut self) -> Option<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("silent for too long"),
        }
    }

    /// The next event; `None` after the last.
    fn event(&mut self) -> Option<Value> {
        let line = self.line()?;
        let event: Value = match serde_json::from_str(&line) {
            Ok(event) => event,
            // A killed process may have been writing its last line.
            Err(_) if self.line().is_none() => return None,
            Err(_) => panic!("no JSON: {line}"),
        };
        self.seen.push(event.clone());
        Some(event)
    }

    /// Waits for an event for which `is_it` holds.
    pub(crate) fn wait(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + PATIENCE;
        while let Some(event) = self.event() {
            if is_it(&event) {
                return event;
            }
            assert!(Instant::now() < end, "waited too long for the event");
        }
        let words = self.words.take().expect("joined once").join();
        panic!("ended before the event: {}", words.unwrap_or_default());
    }

    /// Waits for an event with this name.
    pub(crate) fn wait_for(&mut self, name: &str) -> Value {
        self.wait(|event| event["event"] == name)
    }

    /// Waits until the process reports step `number` as committed.
    pub(crate) fn wait_for_step(&mut self, number: u64) {
        self.wait(|event| event["event"] == "step" && event["step"].as_u64() >= Some(number));
    }

    /// The last step that the process has reported by now.
    pub(crate) fn newest_step(&mut self) -> u64 {
        let events = self.lines.try_iter().map(|line| serde_json::from_str(&line).expect("an event"));
        self.seen.extend(events);
        let step = self.seen.iter().rfind(|event| event["event"] == "step").expect("it has trained");
        step["step"].as_u64().expect("a number")
    }

    /// Waits for a notice that contains `words`.
    pub(crate) fn wait_for_notice(&mut self, words: &str) -> String {
        let notice = self
            .wait(|event| event["event"] == "notice" && event["text"].as_str().unwrap_or("").contains(words));
        notice["text"].as_str().expect("a notice has a text").to_owned()
    }

    /// Waits for the process's end. A panic on standard error fails every test.
    pub(crate) fn end(mut self) -> Ended {
        let end = Instant::now() + PATIENCE_TO_END;
        while self.event().is_some() {
            assert!(Instant::now() < end, "it does not end");
        }
        self.collect(String::new())
    }

    /// As [`end`](Self::end), for a command that prints text.
    pub(crate) fn end_in_words(mut self) -> Ended {
        let mut stdout = String::new();
        while let Some(line) = self.line() {
            stdout += &(line + "\n");
        }
        self.collect(stdout)
    }

    fn collect(&mut self, stdout: String) -> Ended {
        let stderr = self.words.take().expect("joined once").join().expect("read to the end");
        let code = self.child.wait().expect("a child can be waited for").code();
        assert!(!stderr.contains("panicked"), "{stderr}");
        Ended { code, events: std::mem::take(&mut self.seen), stdout, stderr }
    }

    /// Kills the process.
    pub(crate) fn kill(mut self) -> Ended {
        self.child.kill().expect("it is ours");
        self.end()
    }

    /// Asks the process to leave, and waits until it has.
    #[cfg(unix)]
    pub(crate) fn leave(self) -> Ended {
        self.signal("INT");
        self.end()
    }

    /// Sends a signal to the process, by its name.
    #[cfg(unix)]
    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &id]).status().expect("there is a kill command");
        assert!(status.success(), "kill -s {name}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A process that has ended can no longer be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            // The last events of each process help to find out why a test has failed.
            let rest = self.lines.iter().filter_map(|line| serde_json::from_str(&line).ok());
            let events: Vec<Value> = std::mem::take(&mut self.seen).into_iter().chain(rest).collect();
            eprintln!("\nprocess {}:", self.child.id());
            let mut last_step = None;
            for event in events {
                if event["event"] == "step" {
                    last_step = Some(event);
                } else {
                    last_step.take().into_iter().for_each(|step| eprintln!("  ... {step}"));
                    eprintln!("  {event}");
                }
            }
            last_step.into_iter().for_each(|step| eprintln!("  ... {step}"));
        }
    }
}

impl Ended {
    /// The last event, of a run that must have finished.
    pub(crate) fn summary(&self) -> &Value {
        let last = self.events.last().unwrap_or_else(|| panic!("no events; {}", self.stderr));
        assert_eq!((last["event"].as_str(), self.code), (Some("summary"), Some(0)), "{last} {}", self.stderr);
        last
    }

    /// Why the run failed, as reported to the user: the last event, or standard error.
    pub(crate) fn failure(&self) -> &str {
        assert_eq!(self.code, Some(1), "{} {}", self.stdout, self.stderr);
        match self.events.last() {
            Some(event) if event["event"] == "failed" => event["reason"].as_str().expect("in words"),
            _ => {
                assert!(!self.stderr.trim().is_empty(), "it fails without a word");
                &self.stderr
            }
        }
    }

    /// The events of one name.
    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &Value> {
        self.events.iter().filter(move |event| event["event"] == name)
    }

    /// The digests of all steps, oldest first.
    pub(crate) fn digests(&self) -> Vec<&str> {
        self.all("step").map(|step| step["digest"].as_str().expect("digest_every is 1")).collect()
    }
}

/// Checks that the reports of all peers form one history: each step has one digest and one size, none is missing, and each epoch trains
/// every row once; the last epoch may be incomplete. Returns the number of steps.
pub(crate) fn check_one_history(peers: &[&Ended]) -> u64 {
    let rows = peers.iter().find_map(|peer| peer.all("prepared").next()?["samples"].as_u64());
    let rows = rows.expect("somebody was prepared");
    let mut steps = BTreeMap::new();
    for step in peers.iter().flat_map(|peer| peer.all("step")) {
        let number = step["step"].as_u64().expect("a number");
        let values = ["digest", "epoch", "samples", "left_out", "loss"].map(|key| &step[key]);
        let before = steps.entry(number).or_insert(values);
        assert_eq!(*before, values, "step {number} has two different digests");
    }
    let mut epochs = BTreeMap::new();
    for (index, (number, [_, epoch, samples, left_out, _])) in steps.iter().enumerate() {
        assert_eq!(*number, index as u64, "nobody tells of this step");
        let trained = samples.as_u64().expect("a number") + left_out.as_u64().expect("a number");
        *epochs.entry(epoch.as_u64().expect("a number")).or_insert(0) += trained;
    }
    let (last, trained) = epochs.pop_last().expect("somebody has trained");
    assert!(trained <= rows, "{trained} of {rows} rows in epoch {last}");
    for (index, (epoch, trained)) in epochs.iter().enumerate() {
        assert_eq!((*epoch, *trained), (index as u64, rows), "each epoch trains every row once");
    }
    steps.len() as u64
}

/// Number of epochs of a run that its users end early.
pub(crate) const ENDLESS: u64 = 100_000;

/// All peers leave, one after the other, so that the last one is alone. Their reports agree, and the last one's model has improved. Returns
/// the outputs.
#[cfg(unix)]
pub(crate) fn end_all(
    place: &TestFolder,
    last_directory: &str,
    peers: Vec<Process>,
    before: &[Ended],
) -> Vec<Ended> {
    let count = peers.len();
    let mut ended = Vec::new();
    for (index, peer) in peers.into_iter().enumerate() {
        let peer = peer.leave();
        if index + 1 < count {
            check_left(&peer);
        } else {
            assert_eq!(peer.failure(), "stopped on request", "there is nobody to hand over to");
        }
        ended.push(peer);
    }
    check_one_history(&before.iter().chain(&ended).collect::<Vec<_>>());
    let accuracy = place.accuracy(last_directory);
    assert!(accuracy > 0.9, "{accuracy}");
    ended
}

/// Checks that the process has handed over its chunks, reports that, and exits with success.
#[cfg(unix)]
pub(crate) fn check_left(peer: &Ended) {
    let events: Vec<&str> = peer.events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!((peer.code, events.last()), (Some(0), Some(&"left")), "{}", peer.stderr);
    assert!(events.contains(&"leaving") && events.contains(&"handed_over"), "{events:?}");
    assert!(peer.stderr.contains("leaving; press Ctrl-C again to stop at once"), "{}", peer.stderr);
}

/// A folder for the processes of one test. Peers listen on loopback only and do not look for neighbours.
pub(crate) struct TestFolder {
    folder: TempDir,
}

/// If a test fails, its folder remains, with the peers' event logs.
impl Drop for TestFolder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.folder.disable_cleanup(true);
            println!("the test's folder is kept: {}", self.folder.path().display());
        }
    }
}

impl TestFolder {
    pub(crate) fn new() -> Self {
        Self { folder: TempDir::new().expect("the system's folder for temporary files is writable") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("it is in the folder")).expect("writable");
        std::fs::write(path, contents).expect("writable");
    }

    /// A `peer` command in this folder.
    pub(crate) fn run(&self, arguments: &[impl AsRef<OsStr>]) -> Process {
        self.run_in("", arguments)
    }

    /// A `peer` command in a folder within this one.
    pub(crate) fn run_in(&self, name: &str, arguments: &[impl AsRef<OsStr>]) -> Process {
        let folder = self.path(name);
        std::fs::create_dir_all(&folder).expect("writable");
        Process::spawn(Command::new(PROGRAM).args(arguments).current_dir(folder))
    }

    /// A new invite of the peer whose data is in `directory`.
    pub(crate) fn invite(&self, directory: &str) -> String {
        let answer = self.ask(&["invite", "--dir", directory]);
        assert_eq!(answer.code, Some(0), "{}", answer.stderr);
        answer.stdout.trim().to_owned()
    }

    /// Held-out accuracy of the model that a peer of the digits has saved in `directory`.
    pub(crate) fn accuracy(&self, directory: &str) -> f64 {
        let model = format!("{directory}/model.safetensors");
        let answer = self.run(&["evaluate", &model, "--data", "digits", "--json"]).end();
        answer.events[0]["accuracy"].as_f64().expect("a number")
    }

    /// Runs a `peer` command that prints text, to its end.
    pub(crate) fn ask(&self, arguments: &[impl AsRef<OsStr>]) -> Ended {
        self.run(arguments).end_in_words()
    }

    /// Returns what `peer init` writes for `data`, with some keys changed.
    pub(crate) fn init(&self, data: &str, changes: &[(&str, &str)]) -> String {
        let answer = self.ask(&["init", "--data", data]);
        assert_eq!(answer.code, Some(0), "{}", answer.stderr);
        changes.iter().fold(answer.stdout, |text, (key, value)| with(&text, key, value))
    }

    /// Starts a founder of the run in run.toml, with its data in `directory`.
    pub(crate) fn start(&self, directory: &str, peers: usize, more: &[&str]) -> Process {
        let peers = peers.to_string();
        let arguments = [&["start", "run.toml", "--peers", &peers], more, &LOCAL, &[directory]].concat();
        self.run(&arguments)
    }

    /// Starts a joiner, with its data in `directory`.
    pub(crate) fn join(&self, directory: &str, invite: &str) -> Process {
        self.run(&[&["join", invite], LOCAL.as_slice(), &[directory]].concat())
    }

    /// Starts a founder and joiners of the run in run.toml.
    pub(crate) fn swarm(&self, count: usize) -> Vec<Process> {
        let mut founder = self.start("peer-1", count, &[]);
        let mut peers = Vec::new();
        if count > 1 {
            let invite = invite_of(&mut founder);
            peers.extend((2..=count).map(|number| self.join(&format!("peer-{number}"), &invite)));
        }
        peers.insert(0, founder);
        peers
    }
}

/// Arguments for loopback and JSON; the data directory's name follows.
pub(crate) const LOCAL: [&str; 7] = ["--json", "--no-mdns", "--listen", "127.0.0.1", "--port", "0", "--dir"];

/// `text` with another value for a key in it.
pub(crate) fn with(text: &str, key: &str, value: &str) -> String {
    let start = format!("{key} = ");
    assert_eq!(text.lines().filter(|line| line.starts_with(&start)).count(), 1, "{key} in\n{text}");
    let lines = text.lines().map(|line| match line.starts_with(&start) {
        true => format!("{start}{value}\n"),
        false => format!("{line}\n"),
    });
    lines.collect()
}

/// The id of a peer, as events contain it.
pub(crate) fn name_of(peer: &mut Process) -> String {
    listening(peer).0.to_string()
}

/// Whether the event is a view that the peer has just entered (`joined`) or left (`left`).
pub(crate) fn is_change(event: &Value, list: &str, name: &str) -> bool {
    event["event"] == "view"
        && event["change"][list].as_array().is_some_and(|names| names.iter().any(|other| other == name))
}

/// Whether the event is a view of `count` members.
pub(crate) fn is_view_of(event: &Value, count: usize) -> bool {
    event["event"] == "view" && event["members"].as_array().is_some_and(|members| members.len() == count)
}

/// The invite that a founder prints.
pub(crate) fn invite_of(founder: &mut Process) -> String {
    founder.wait_for("invite")["invite"].as_str().expect("text").to_owned()
}

/// Id and port of a peer, from its first event.
pub(crate) fn listening(peer: &mut Process) -> (PeerId, u16) {
    let event = peer.wait_for("listening");
    let port = event["addresses"][0].as_str().and_then(|address| address.rsplit('/').next()?.parse().ok());
    let id = event["peer"].as_str().and_then(|text| text.parse().ok());
    (id.expect("an id"), port.expect("a TCP port comes last"))
}

/// A data file beside the workspace; `None` if it is not there.
pub(crate) fn shared_data(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data").join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: {} is not here", path.display());
    None
}
