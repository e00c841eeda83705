//! The peers of a sweep that run on this machine besides the first one: processes of this same program.
//!
//! They join by the invite of the first peer, and keep their data below its data directory. They are peers like any other: if one is killed,
//! the others train its trials. When the first peer has ended, they have a moment to end too.

use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use peergrad_embed::threads_of_one;
use peergrad_protocol::invite::Invite;
use serde_json::json;

use crate::commands::arguments::PeerArguments;
use crate::commands::swarm::this_program;
use crate::terminal::{OutputFormat, emit};

/// Which peers to start beside the first one.
#[derive(Clone, Debug, Default)]
pub(in crate::commands) struct LocalPeersPlan {
    /// How many.
    count: u32,
    /// The path of the data file; `None` if they look for it.
    data: Option<PathBuf>,
    /// Where they listen.
    listen: Option<IpAddr>,
    /// How much memory each may take, in bytes.
    max_memory: Option<u64>,
    format: Option<OutputFormat>,
}

/// The processes. Dropping them kills them.
pub(in crate::commands) struct LocalPeers {
    processes: Vec<Child>,
}

impl LocalPeersPlan {
    /// For `peers` on this machine, the first one included.
    pub(super) fn of(peers: u32, data: Option<PathBuf>, peer: &PeerArguments) -> Self {
        let format = Some(OutputFormat::of_flag(peer.json));
        let (listen, max_memory) = (peer.listen, peer.max_memory);
        Self { count: peers.saturating_sub(1), data, listen, max_memory, format }
    }

    /// For a sweep that goes on: the peers that have a directory below the first one's, at least `peers` with the first one.
    pub(super) fn resumed(peers: u32, directory: &Path, peer: &PeerArguments) -> Self {
        let there = (2..).take_while(|number| directory_of(directory, *number).exists()).count() as u32;
        Self::of(peers.max(there + 1), None, peer)
    }

    /// Starts them. `directory` is that of the first peer, and `invite` its invite.
    pub(in crate::commands) fn start(
        &self,
        directory: &Path,
        invite: Option<Invite>,
    ) -> anyhow::Result<LocalPeers> {
        let mut peers = LocalPeers { processes: Vec::new() };
        if self.count == 0 {
            return Ok(peers);
        }
        let invite =
            invite.context("there is no invite for more peers yet: leave `--peers` out")?.to_string();
        for number in 2..=self.count + 1 {
            // Those that were members before still have their records there.
            let process = self.spawn(&directory_of(directory, number), &invite)?;
            if self.format == Some(OutputFormat::Json) {
                emit(&json!({"event": "local_peer", "number": number, "process": process.id()}));
            }
            peers.processes.push(process);
        }
        Ok(peers)
    }

    fn spawn(&self, directory: &Path, invite: &str) -> anyhow::Result<Child> {
        let (program, before) = this_program()?;
        let mut process = Command::new(program);
        process.args(before).args(["join", "-"]);
        process.args(["--json", "--no-mdns", "--port", "0", "--dir"]).arg(directory);
        process.args(["--threads", &threads_of_one(self.count as usize + 1).get().to_string()]);
        if let Some(listen) = self.listen {
            process.args(["--listen", &listen.to_string()]);
        }
        if let Some(bytes) = self.max_memory {
            process.args(["--max-memory", &bytes.to_string()]);
        }
        if let Some(data) = &self.data {
            process.arg("--data").arg(data);
        }
        // Its errors are shown as they are.
        let mut process =
            process.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().context("cannot start a peer")?;
        let mut stdin = process.stdin.take().expect("piped");
        // If the process has ended already, its own message says why.
        let _ = stdin.write_all(invite.as_bytes());
        Ok(process)
    }
}

impl Drop for LocalPeers {
    fn drop(&mut self) {
        for process in &mut self.processes {
            for _ in 0..WAITS {
                if !matches!(process.try_wait(), Ok(None)) {
                    break;
                }
                std::thread::sleep(WAIT);
            }
            // Fails harmlessly if the process has ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// The data directory of a peer, by its number from 2.
fn directory_of(first: &Path, number: u32) -> PathBuf {
    first.join(format!("peer-{number}"))
}

/// How often, and how long each time, the first peer waits for another one to end.
const WAITS: u32 = 50;
const WAIT: Duration = Duration::from_millis(100);
