//! Every example as real processes on loopback, to the end: all peers have the same model, and it is trained.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

#[test]
fn a_custom_task_trains() {
    assert!(test_loss(env!("CARGO_BIN_EXE_custom_task")) < 0.006);
}

#[test]
fn a_custom_program_trains() {
    assert!(test_loss(env!("CARGO_BIN_EXE_custom_program")) < 0.001);
}

/// Eight peers; three are killed, one after the other, and two join later. Each epoch fills in each row exactly once, whatever was in progress
/// and whichever peer owned the row.
#[test]
fn a_custom_table_loses_no_row_whichever_peer_is_killed() {
    const EPOCHS: f64 = 40.0;
    let (program, folder) = (env!("CARGO_BIN_EXE_custom_table"), tempfile::tempdir().expect("a folder"));
    let mut founder = Peer::start(program, folder.path(), 8);
    let invite = founder.event("invite");
    let join = |name: &str| Peer::join(program, folder.path(), name, &invite);
    let mut doomed = ["a", "b", "c"].map(join);
    let mut others: Vec<Peer> = ["d", "e", "f", "g"].map(join).into();
    for (index, victim) in doomed.iter_mut().enumerate() {
        (0..12).for_each(|_| _ = founder.event("step"));
        victim.child.kill().expect("it runs");
        if index < 2 {
            others.push(join(&format!("late-{index}")));
        }
    }
    let end = founder.event("summary");
    assert_eq!(end["test_accuracy"], 1.0, "each row is a sum of equal numbers: {end}");
    assert_eq!(end["test_loss"], EPOCHS, "the mean number of additions to a row: {end}");
    for other in &mut others {
        assert_eq!(other.event("summary")["digest"], end["digest"]);
    }
}

#[test]
fn a_custom_task_survives_the_partition_test() {
    let output = Command::new(env!("CARGO_BIN_EXE_partition_test")).output().expect("the example starts");
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{words}{}", String::from_utf8_lossy(&output.stderr));
    assert!(words.contains("a cut of 1 s: 5 finished; 320 steps"), "{words}");
    assert!(words.contains("a cut of 10 s: 5 finished; 321 steps"), "{words}");
}

#[test]
fn peers_of_different_binaries_do_not_train_together() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut founder = Peer::start(env!("CARGO_BIN_EXE_custom_program"), folder.path(), 2);
    let invite = founder.event("invite");
    let mut stranger = Peer::join(env!("CARGO_BIN_EXE_custom_task"), folder.path(), "joiner", &invite);
    let failed = stranger.event("failed");
    assert!(failed["reason"].as_str().is_some_and(|words| words.contains("the task `weights`")), "{failed}");
}

/// Trains with two peers to the end, and returns the test loss.
fn test_loss(program: &str) -> f64 {
    let folder = tempfile::tempdir().expect("a folder");
    let mut founder = Peer::start(program, folder.path(), 2);
    let invite = founder.event("invite");
    let mut joiner = Peer::join(program, folder.path(), "joiner", &invite);
    let [first, second] = [&mut founder, &mut joiner].map(|peer| peer.event("summary"));
    assert_eq!((&first["digest"], &first["peers"]), (&second["digest"], &Value::from(2)));
    first["test_loss"].as_f64().expect("a loss")
}

/// A process that reports events as JSON. Dropping it kills it.
struct Peer {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn start(program: &str, folder: &Path, peers: u32) -> Self {
        let peers = peers.to_string();
        Self::spawn(Command::new(program).args(["start", "--peers", &peers, "--dir", "founder"]), folder)
    }

    fn join(program: &str, folder: &Path, name: &str, invite: &Value) -> Self {
        let invite = invite["invite"].as_str().expect("text");
        Self::spawn(Command::new(program).args(["join", invite, "--dir", name]), folder)
    }

    fn spawn(command: &mut Command, folder: &Path) -> Self {
        let local = ["--json", "--no-mdns", "--listen", "127.0.0.1", "--port", "0"];
        let command = command.args(local).current_dir(folder).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the example starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, lines }
    }

    /// Waits for the event with this name.
    fn event(&mut self, name: &str) -> Value {
        let events = self.lines.by_ref().map_while(Result::ok).map(|line| serde_json::from_str(&line));
        let mut events = events.map(|event: Result<Value, _>| event.expect("JSON"));
        events.find(|event| event["event"] == name).unwrap_or_else(|| panic!("ended without `{name}`"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // A process that has ended can no longer be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
