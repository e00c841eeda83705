//! Peers of the examples as real processes on loopback.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

/// A process that reports events as JSON. Dropping it kills it.
pub(crate) struct Peer {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    /// Founds a run of so many peers.
    pub(crate) fn start(program: &str, folder: &Path, peers: u32) -> Self {
        let peers = peers.to_string();
        Self::spawn(Command::new(program).args(["start", "--peers", &peers, "--dir", "founder"]), folder)
    }

    /// Joins the run of this invite event.
    pub(crate) fn join(program: &str, folder: &Path, name: &str, invite: &Value) -> Self {
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
    pub(crate) fn event(&mut self, name: &str) -> Value {
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
