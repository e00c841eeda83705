//! Every example as two real processes on loopback, to the end: both hold the same model, and it has learnt.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

#[test]
fn a_task_of_ones_own() {
    assert!(test_loss(env!("CARGO_BIN_EXE_own_task")) < 0.006);
}

#[test]
fn a_program_of_ones_own() {
    assert!(test_loss(env!("CARGO_BIN_EXE_own_program")) < 0.001);
}

#[test]
fn a_partition_test_of_ones_own_task() {
    let output = Command::new(env!("CARGO_BIN_EXE_partition_test")).output().expect("the example starts");
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{words}{}", String::from_utf8_lossy(&output.stderr));
    assert!(words.contains("a cut of 1 s: 5 finished; 320 steps"), "{words}");
    assert!(words.contains("a cut of 10 s: 5 finished; 321 steps"), "{words}");
}

#[test]
fn two_binaries_are_not_mixed() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut founder = Peer::start(env!("CARGO_BIN_EXE_own_program"), folder.path());
    let invite = founder.event("invite");
    let mut stranger = Peer::join(env!("CARGO_BIN_EXE_own_task"), folder.path(), &invite);
    let failed = stranger.event("failed");
    assert!(failed["reason"].as_str().is_some_and(|words| words.contains("the task `weights`")), "{failed}");
}

/// Trains with two peers to the end.
fn test_loss(program: &str) -> f64 {
    let folder = tempfile::tempdir().expect("a folder");
    let mut founder = Peer::start(program, folder.path());
    let invite = founder.event("invite");
    let mut joiner = Peer::join(program, folder.path(), &invite);
    let [first, second] = [&mut founder, &mut joiner].map(|peer| peer.event("summary"));
    assert_eq!((&first["digest"], &first["peers"]), (&second["digest"], &Value::from(2)));
    first["test_loss"].as_f64().expect("a loss")
}

/// A process that says as JSON what happens. Dropping it kills it.
struct Peer {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn start(program: &str, folder: &Path) -> Self {
        Self::spawn(Command::new(program).args(["start", "--peers", "2", "--dir", "founder"]), folder)
    }

    fn join(program: &str, folder: &Path, invite: &Value) -> Self {
        let invite = invite["invite"].as_str().expect("text");
        Self::spawn(Command::new(program).args(["join", invite, "--dir", "joiner"]), folder)
    }

    fn spawn(command: &mut Command, folder: &Path) -> Self {
        let local = ["--json", "--no-mdns", "--listen", "127.0.0.1", "--port", "0"];
        let command = command.args(local).current_dir(folder).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the example starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, lines }
    }

    /// Waits for the event of this name.
    fn event(&mut self, name: &str) -> Value {
        let events = self.lines.by_ref().map_while(Result::ok).map(|line| serde_json::from_str(&line));
        let mut events = events.map(|event: Result<Value, _>| event.expect("JSON"));
        events.find(|event| event["event"] == name).unwrap_or_else(|| panic!("ended without `{name}`"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // One that has ended is no longer there to be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
