//! Ways to join: by invite, by another joiner's invite, by address, before there is a run.

use std::net::{TcpListener, UdpSocket};

use super::departures::training;
use super::process::{ENDLESS, LOCAL, Process, TestFolder, end_all, invite_of, is_change, listening};

/// The digits for a few epochs.
fn place() -> TestFolder {
    let place = TestFolder::new();
    place.write("run.toml", "epochs = 2\n[data]\nfile = \"digits\"\n");
    place
}

/// Checks that all finish, with one model.
fn finish(peers: Vec<Process>) {
    let count = peers.len() as u64;
    let peers: Vec<_> = peers.into_iter().map(Process::end).collect();
    for peer in &peers {
        assert_eq!(peer.summary()["digest"], peers[0].summary()["digest"]);
        assert_eq!(peer.summary()["peers"].as_u64(), Some(count));
    }
}

#[test]
fn through_a_joiner_that_waits() {
    let place = place();
    let mut founder = place.start("founder", 3, &[]);
    let mut first = place.join("first", &invite_of(&mut founder));
    first.wait_for("welcomed");
    let invite = place.ask(&["invite", "--dir", "first"]);
    assert_eq!(invite.code, Some(0), "{}", invite.stderr);
    let second = place.join("second", invite.stdout.trim());
    finish(vec![founder, first, second]);
}

#[test]
fn by_an_invite_of_a_killed_peer() {
    let (place, peers) = training(3, ENDLESS);
    let invite = place.invite("peer-1");
    let (mut peers, names): (Vec<Process>, Vec<String>) = peers.into_iter().unzip();
    let killed = peers.remove(0).kill();
    for peer in &mut peers {
        peer.wait(|event| is_change(event, "left", &names[0]));
    }
    let mut late = place.join("late", &invite);
    late.wait_for("step");
    peers.push(late);
    end_all(&place, "late", peers, &[killed]);
}

#[test]
fn while_a_single_peer_already_trains() {
    let place = TestFolder::new();
    place.write("run.toml", format!("epochs = {ENDLESS}\n[data]\nfile = \"digits\"\n"));
    let mut alone = place.start("alone", 1, &[]);
    let invite = invite_of(&mut alone);
    alone.wait_for("step");
    let mut joiner = place.join("joiner", &invite);
    joiner.wait_for("step");
    end_all(&place, "joiner", vec![alone, joiner], &[]);
}

#[test]
fn by_a_fresh_invite_of_the_founder_on_standard_input() {
    let place = place();
    let mut founder = place.start("founder", 2, &[]);
    let run = founder.wait_for("invite")["run"].clone();
    let invite = place.run(&["invite", "--json", "--dir", "founder"]).end();
    let invite = &invite.events[0];
    assert!(invite["run"].as_str().unwrap().starts_with(run.as_str().unwrap()));
    let mut joiner = place.join("joiner", "-");
    joiner.type_in(&format!("\n  {}\n", invite["invite"].as_str().unwrap()));
    finish(vec![founder, joiner]);
    let late = place.ask(&["invite", "--dir", "founder"]);
    assert!(late.failure().contains("no peer runs in founder"), "{}", late.stderr);
}

#[test]
fn by_address_with_the_secret() {
    let place = place();
    let mut founder = place.start("founder", 4, &["--secret-file", "secret"]);
    let (id, port) = listening(&mut founder);
    founder.wait_for("invite");
    let mut peers = vec![founder];
    let addresses = [
        format!("127.0.0.1:{port}"),
        format!("/ip4/127.0.0.1/tcp/{port}"),
        format!("/ip4/127.0.0.1/tcp/{port}/p2p/{id}"),
    ];
    for (number, address) in addresses.iter().enumerate() {
        let directory = format!("joiner-{number}");
        let arguments = ["join", address, "--secret-file", "secret"];
        peers.push(place.run(&[arguments.as_slice(), &LOCAL, &[&directory]].concat()));
    }
    finish(peers);
}

#[test]
fn by_an_address_where_nobody_listens_yet() {
    let place = place();
    place.write("secret", "7f".repeat(32));
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let arguments = ["join", &address, "--secret-file", "secret"];
    let mut joiner = place.run(&[arguments.as_slice(), &LOCAL, &["joiner"]].concat());
    let notice = joiner.wait_for_notice(&format!("/ip4/127.0.0.1/tcp/{port}"));
    assert!(notice.contains("connection refused; still trying"), "{notice}");

    let port = port.to_string();
    let place_to_listen =
        ["--json", "--no-mdns", "--listen", "127.0.0.1", "--port", &port, "--dir", "founder"];
    let arguments = ["start", "run.toml", "--peers", "2", "--secret-file", "secret"];
    let founder = place.run(&[arguments.as_slice(), &place_to_listen].concat());
    finish(vec![founder, joiner]);
}

#[test]
fn by_the_reachable_one_of_several_addresses() {
    let place = place();
    let mut founder = place.start("founder", 2, &["--secret-file", "secret"]);
    let (_, port) = listening(&mut founder);
    let (dead, alive) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{port}"));
    let arguments = ["join", &dead, &alive, "--secret-file", "secret"];
    let joiner = place.run(&[arguments.as_slice(), &LOCAL, &["joiner"]].concat());
    finish(vec![founder, joiner]);
}

/// The founder has ended, and the joiner listens where it did.
#[test]
fn a_run_that_has_ended_through_an_invite_to_this_peer_itself() {
    let place = place();
    let port = free_port().to_string();
    let listen = ["--json", "--no-mdns", "--listen", "127.0.0.1", "--port", &port, "--dir"];
    let mut founder =
        place.run(&[["start", "run.toml", "--peers", "1"].as_slice(), &listen, &["founder"]].concat());
    let invite = invite_of(&mut founder);
    founder.end().summary();
    let mut joiner = place.run(&[["join", &invite].as_slice(), &listen, &["joiner"]].concat());
    let notice = joiner.wait_for_notice("this is the address of this peer itself");
    assert!(notice.contains("the run may have ended") && notice.contains("fresh invite"), "{notice}");
    let silence = joiner.wait_for("no_peer_answers");
    assert!(silence["seconds"].as_f64().is_none_or(|seconds| seconds < 20.0), "{silence}");
    // With the secret and an address, too.
    place.write("secret", "7f".repeat(32));
    let address = format!("127.0.0.1:{port}");
    drop(joiner);
    let arguments = ["join", &address, "--secret-file", "secret"];
    let mut joiner = place.run(&[arguments.as_slice(), &listen, &["another"]].concat());
    joiner.wait_for_notice("give the address of another peer");
}

#[test]
fn a_run_that_has_ended_where_nobody_listens_any_more() {
    let place = place();
    let mut founder = place.start("founder", 1, &[]);
    let invite = invite_of(&mut founder);
    founder.end().summary();
    let mut joiner = place.join("joiner", &invite);
    joiner.wait_for_notice("connection refused; still trying");
    joiner.wait_for("no_peer_answers");
    let told = joiner.kill();
    assert_eq!(told.all("no_peer_answers").count(), 1);
    assert_eq!(told.all("notice").filter(|notice| notice.to_string().contains("refused")).count(), 1);
}

#[test]
fn a_run_that_has_ended_where_a_peer_of_another_run_listens() {
    let place = place();
    let port = free_port().to_string();
    let listen = ["--json", "--no-mdns", "--listen", "127.0.0.1", "--port", &port, "--dir"];
    let start = |peers: &'static str, directory: &'static str| {
        place.run(&[["start", "run.toml", "--peers", peers].as_slice(), &listen, &[directory]].concat())
    };
    let mut founder = start("1", "founder");
    let invite = invite_of(&mut founder);
    founder.end().summary();
    let mut other = start("2", "other");
    other.wait_for("invite");
    let mut joiner = place.join("joiner", &invite);
    let notice = joiner.wait_for_notice("the secret (or the run) differs");
    assert!(notice.contains("if the invite's run has ended"), "{notice}");
    joiner.wait_for("no_peer_answers");
}

#[test]
fn again_after_leaving_before_the_start() {
    let place = place();
    let mut founder = place.start("founder", 3, &[]);
    let invite = invite_of(&mut founder);
    let mut first = place.join("first", &invite);
    first.wait_for("prepared");
    founder.wait(|event| event["event"] == "peer_ready" && event["ready"] == 2);
    first.kill();
    let withdrawn = founder.wait_for("peer_withdrawn");
    assert_eq!((withdrawn["ready"].as_u64(), withdrawn["wanted"].as_u64()), (Some(1), Some(3)));
    let (first, second) = (place.join("first", &invite), place.join("second", &invite));
    finish(vec![founder, first, second]);
}

/// A free port, outside the range from which the system assigns ports.
pub(crate) fn free_port() -> u16 {
    let start = 10_000 + (std::process::id() % 10_000) as u16;
    let is_free = |port: &u16| {
        TcpListener::bind(("127.0.0.1", *port)).is_ok() && UdpSocket::bind(("127.0.0.1", *port)).is_ok()
    };
    // Tests in one process use different ports: each continues after the last one.
    static TAKEN: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(0);
    let fresh = || start + TAKEN.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    std::iter::repeat_with(fresh).take(1000).find(is_free).expect("some port is free")
}
