//! Bytes as the kernel counts them, against the volume that a ring with two replicas must move.

use std::process::Command;

use super::process::{PROGRAM, Process, TestFolder};

/// Weights and biases of the demo's model: 64 x 128 + 128 + 128 x 10 + 10.
const PARAMETERS: u64 = 9610;

#[test]
fn the_kernel_counts_few_more_bytes_than_must_be_sent() {
    for peers in [2_u64, 4] {
        let Some((steps, counted, own)) = count_demo(peers) else { return };
        // All peers together: each sends its vector except one share, twice a step; and the sums of its own shard once more, to the holder
        // of the replica, unless there are two peers, which both hold everything.
        let mirrored = u64::from(peers > 2);
        let needed = (2 * (peers - 1) + mirrored) * PARAMETERS * 4 * steps;
        let ratio = counted as f64 / needed as f64;
        println!("{peers} peers: {counted} bytes on the wire, {ratio:.4} of what must be moved");
        assert!(ratio > 1.0, "nothing goes another way");
        assert!(ratio < 1.1, "{ratio:.4}");
        assert!(own <= counted && own as f64 > 0.9 * counted as f64, "own count {own} of {counted}");
    }
}

/// Runs the demo without faults, alone in a network with nothing but loopback. Returns the steps, the kernel's count of bytes, and the
/// peers' own count.
fn count_demo(peers: u64) -> Option<(u64, u64, u64)> {
    let script =
        format!("ip link set lo up && '{PROGRAM}' demo --json --calm --peers {peers} && cat /proc/net/dev");
    let probe = Command::new("unshare").args(["-n", "ip", "link", "set", "lo", "up"]).output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        println!("skipped: a separate network needs root, `unshare` and `ip`");
        return None;
    }
    let place = TestFolder::new();
    let mut command = Command::new("unshare");
    command.args(["-n", "sh", "-c", &script]).current_dir(place.path(""));
    let output = Process::spawn(&mut command).end_in_words();
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let line = |start: &str| output.stdout.lines().find(|line| line.trim_start().starts_with(start));
    let summary = output.stdout.lines().find(|line| line.contains("\"event\":\"summary\""));
    let summary: serde_json::Value = serde_json::from_str(summary.expect("a summary")).expect("JSON");
    // Name, then received: bytes, packets, and six more; then sent: bytes.
    let sent = line("lo:").and_then(|line| line.split_whitespace().nth(9)).expect("a count for loopback");
    Some((
        summary["steps"].as_u64().expect("a number"),
        sent.parse().expect("a number"),
        summary["bytes_sent"].as_u64().expect("a number"),
    ))
}
