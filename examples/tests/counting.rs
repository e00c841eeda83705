//! The examples in which each sample counts exactly once, each as two real processes on loopback: their ends are known numbers.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

#[test]
fn each_version_of_the_register_has_one_leader() {
    assert_eq!(accuracy_and_loss(env!("CARGO_BIN_EXE_registers")), (1.0, 0.0));
}

#[test]
fn the_sketch_counts_each_item_once() {
    let (accuracy, loss) = accuracy_and_loss(env!("CARGO_BIN_EXE_count_min"));
    assert_eq!(accuracy, 1.0, "no estimate is below the true count, or above the bound");
    assert!((loss - 272.08).abs() < 1e-6, "the mean overestimate of this stream by these hashes: {loss}");
}

#[test]
fn the_ranks_are_those_of_a_plain_loop() {
    let (accuracy, loss) = accuracy_and_loss(env!("CARGO_BIN_EXE_page_rank"));
    assert_eq!(accuracy, 1.0);
    assert!(loss < 1e-6, "{loss}");
}

#[test]
fn naive_bayes_counts_each_picture_once() {
    let (accuracy, loss) = accuracy_and_loss(env!("CARGO_BIN_EXE_naive_bayes"));
    assert_eq!(accuracy, 322.0 / 360.0);
    assert!((loss - 2.359_447).abs() < 1e-6, "the loss of the exact counts: {loss}");
}

/// Runs two peers to the end, and returns the accuracy and the loss, in which they agree.
fn accuracy_and_loss(program: &str) -> (f64, f64) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut founder = Peer::spawn(program, &["start", "--peers", "2"], &folder.path().join("founder"));
    let invite = founder.event("invite");
    let invite = invite["invite"].as_str().expect("text");
    let mut joiner = Peer::spawn(program, &["join", invite], &folder.path().join("joiner"));
    let [first, second] = [&mut founder, &mut joiner].map(|peer| peer.event("summary"));
    assert_eq!((&first["digest"], &first["peers"]), (&second["digest"], &Value::from(2)));
    let number = |name: &str| first[name].as_f64().expect("a number");
    (number("test_accuracy"), number("test_loss"))
}

/// A process that reports events as JSON. Dropping it kills it.
struct Peer {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn spawn(program: &str, arguments: &[&str], folder: &Path) -> Self {
        let local = ["--json", "--no-mdns", "--listen", "127.0.0.1", "--port", "0"];
        let mut command = Command::new(program);
        command.args(arguments).args(local).arg("--dir").arg(folder).stdout(Stdio::piped());
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
