//! Metrics for Prometheus, read back from real peers.

#![cfg(unix)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;

use super::process::{Process, TestFolder, invite_of, name_of};

/// The port at which a peer reports that it serves metrics.
fn port(peer: &mut Process) -> u16 {
    let notice = peer.wait_for_notice("metrics at http://127.0.0.1:");
    notice.rsplit(':').next().and_then(|rest| rest.split('/').next()?.parse().ok()).expect("a port")
}

fn get(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

/// Names and labels with their values, from a valid page.
fn parse(answer: &str) -> BTreeMap<String, f64> {
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("openmetrics-text"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    assert!(body.ends_with("# EOF\n"));
    let (mut values, mut types, mut helped) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
    for line in body.lines().filter(|line| *line != "# EOF") {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, _] => assert!(helped.insert(name.to_owned()), "{name} twice"),
            ["#", "TYPE", name, kind] => drop(types.insert(name.to_owned(), kind.to_owned())),
            ["#", "UNIT", name, unit] => assert!(name.ends_with(unit), "{line}"),
            _ => {
                let (name, value) = line.rsplit_once(' ').expect("a name and a value");
                let family = name.split('{').next().expect("a name");
                assert!(family.starts_with("peergrad_"), "{line}");
                let base = family.trim_end_matches("_total").trim_end_matches("_info");
                let kind = types.get(base).unwrap_or_else(|| panic!("no type: {line}"));
                assert!(helped.contains(base), "no help: {line}");
                assert_eq!(kind == "counter", family.ends_with("_total"), "{line}");
                values.insert(name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}")));
            }
        }
    }
    values
}

fn metrics(port: u16) -> BTreeMap<String, f64> {
    parse(&get(port, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"))
}

#[test]
fn the_numbers_of_a_run_can_be_read_by_prometheus() {
    let place = TestFolder::new();
    place.write("run.toml", "epochs = 100000\n[data]\nfile = \"digits\"\n");
    let mut founder = place.start("peer-1", 2, &["--metrics", "0"]);
    let (me, invite, port) = (name_of(&mut founder), invite_of(&mut founder), port(&mut founder));
    let waiting = metrics(port);
    assert_eq!(waiting["peergrad_phase{phase=\"bootstrapping\"}"], 1.0);
    assert_eq!(waiting["peergrad_committed_steps_total"], 0.0);
    let mut joiner = place.join("peer-2", &invite);
    let other = name_of(&mut joiner);
    founder.wait_for_step(100);
    let first = metrics(port);
    assert_eq!(first["peergrad_phase{phase=\"training\"}"], 1.0);
    assert_eq!(first["peergrad_phase{phase=\"bootstrapping\"}"], 0.0);
    assert_eq!(first["peergrad_members{state=\"working\"}"], 2.0);
    assert_eq!(first["peergrad_view_number"], 1.0);
    assert!(first["peergrad_committed_steps_total"] >= 100.0);
    assert!(first["peergrad_step"] >= 100.0 && first["peergrad_loss"] > 0.0);
    assert!(first["peergrad_computing_seconds_total"] > 0.0 && first["peergrad_uptime_seconds"] > 0.0);
    let owned: f64 = [&me, &other]
        .map(|peer| first[&format!("peergrad_owned_parameters{{peer=\"{peer}\"}}")])
        .iter()
        .sum();
    assert_eq!(owned, first["peergrad_parameters"]);
    let sent = format!("peergrad_link_sent_bytes_total{{peer=\"{other}\"}}");
    assert!(first[&sent] > 0.0 && first[&sent] <= first["peergrad_sent_bytes_total"]);
    let step = founder.newest_step();
    founder.wait_for_step(step + 50);
    // An answer is cached for a moment.
    let second = std::iter::repeat_with(|| metrics(port)).take(10_000).find(|now| now[&sent] > first[&sent]);
    let second = second.expect("bytes go on");
    for name in [
        "peergrad_committed_steps_total",
        "peergrad_sent_bytes_total",
        "peergrad_received_frames_total",
        &sent,
    ] {
        assert!(second[name] > first[name], "{name}");
    }

    let head = get(port, "HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.ends_with("\r\n\r\n"), "{head}");
    for (request, code) in [
        ("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        ("POST /metrics HTTP/1.1\r\n\r\n", 405),
        ("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
        ("\r\n\r\n", 400),
    ] {
        assert!(get(port, request).starts_with(&format!("HTTP/1.1 {code} ")), "{request}");
    }

    // Another peer that wants the same port reports the conflict before it does anything.
    let taken =
        place.run(&["join", &invite, "--metrics", &port.to_string(), "--dir", "peer-3"]).end_in_words();
    let words = taken.failure();
    assert!(
        words.contains(&format!("port {port} for metrics is in use")) && words.contains("--metrics PORT"),
        "{words}"
    );
}
