//! `peer status`: asked of real peers, on their machine and over the network, with and without faults.

#![cfg(unix)]

use peergrad_embed::status::{StatusError, connect_run};
use peergrad_net::{BootstrapAddress, StatusTarget};
use peergrad_protocol::invite::Invite;
use serde_json::Value;

use super::departures::{training, training_by};
use super::process::{ENDLESS, LOCAL, Process, TestFolder, invite_of, listening};

/// The status of a peer, once `is_it` holds for it.
fn status(place: &TestFolder, arguments: &[&str], is_it: impl Fn(&Value) -> bool) -> Value {
    let arguments = [&["status", "--json", "--watch"], arguments].concat();
    // The process that watches is killed after that.
    place.run(&arguments).wait(|status| status["error"].is_null() && is_it(status))
}

/// The entry of a peer in a list of the status; `None` if it is not there.
fn of<'a>(status: &'a Value, list: &str, peer: &str) -> Option<&'a Value> {
    status[list].as_array()?.iter().find(|entry| entry["peer"] == peer)
}

fn state(status: &Value, peer: &str) -> String {
    of(status, "members", peer).and_then(|member| member["state"].as_str()).unwrap_or("gone").to_owned()
}

fn words(place: &TestFolder, arguments: &[&str]) -> String {
    let answer = place.ask(&[&["status"], arguments].concat());
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    answer.stdout
}

fn failure(place: &TestFolder, arguments: &[&str]) -> String {
    place.ask(&[&["status"], arguments].concat()).failure().to_owned()
}

#[test]
fn each_member_reports_the_state_of_all_members() {
    let (place, peers) = training(3, ENDLESS);
    let is_moving = |status: &Value| {
        let members = status["members"].as_array().expect("a list");
        let links = members.iter().filter(|member| member["is_this"] == false).map(|member| &member["link"]);
        let is_up = |link: &Value| {
            link["lane"].is_string()
                && link["round_trip_seconds"].as_f64() > Some(0.0)
                && link["sent_bytes_per_second"].as_f64() > Some(0.0)
                && link["received_bytes_per_second"].as_f64() > Some(0.0)
        };
        let is_fast = status["training"]["steps_per_second"].as_f64() > Some(0.0);
        let is_calm = members.iter().all(|member| member["state"] == "working");
        is_fast && is_calm && members.len() == 3 && links.clone().count() == 2 && links.into_iter().all(is_up)
    };
    for (number, (_, me)) in peers.iter().enumerate() {
        let directory = format!("peer-{}", number + 1);
        let status = status(&place, &["--dir", &directory], is_moving);
        assert_eq!(
            (&status["peer"], &status["phase"], &status["is_well"]),
            (&(*me).clone().into(), &"training".into(), &true.into())
        );
        assert_eq!(status["directory"], directory.as_str());
        assert_eq!(status["view"]["number"], 1);
        let members = status["members"].as_array().expect("a list");
        let owned: u64 = members.iter().filter_map(|member| member["owned"].as_u64()).sum();
        assert_eq!(
            owned,
            status["training"]["parameters"].as_u64().expect("a number"),
            "nothing has two owners, or none"
        );
        assert_eq!(of(&status, "members", me).expect("it is one")["is_this"], true);
        assert!(status["events"].as_array().is_some_and(|events| !events.is_empty()));
    }
    let text = words(&place, &["--dir", "peer-2"]);
    for part in [
        "training with 3 peers",
        "view 1",
        "working",
        "direct",
        "steps/s",
        "first of the run",
        "training with 3 peers; this one owns",
    ] {
        assert!(text.contains(part), "`{part}` in\n{text}");
    }
    assert!(!text.contains('\x1b'), "no colours where there is no terminal");
}

#[test]
fn a_remote_user_with_the_secret_may_ask_and_remains_a_guest() {
    let place = TestFolder::new();
    place.write("run.toml", "epochs = 100000\n[data]\nfile = \"digits\"\n");
    let mut founder = place.start("peer-1", 2, &["--secret-file", "secret"]);
    let (me, port) = listening(&mut founder);
    let invite = invite_of(&mut founder);
    let waiting = status(&place, &[&invite], |status| {
        status["phase"] == "bootstrapping" && status["others"].as_array().is_some()
    });
    assert!(waiting["directory"].is_null(), "a remote user is not shown where the peer keeps its data");
    assert_eq!(waiting["members"], serde_json::json!([]));
    let mut joiner = place.join("peer-2", &invite);
    let mut peers = [&mut founder, &mut joiner];
    peers.iter_mut().for_each(|peer| peer.wait_for_step(20));
    let address = format!("127.0.0.1:{port}");
    let by_address =
        status(&place, &[&address, "--secret-file", "secret"], |status| status["phase"] == "training");
    assert_eq!(by_address["peer"], me.to_string());
    let by_invite = status(&place, &[&invite], |status| status["training"]["steps"].as_u64() > Some(20));
    assert_eq!(by_invite["members"].as_array().map(Vec::len), Some(2), "a guest is no member");
    assert_eq!(by_invite["view"]["number"], 1, "and nobody was interrupted");
    // By standard input, since other users of a machine can see command lines.
    let mut asker = place.run(&["status", "--json", "-"]);
    asker.type_in(&invite);
    assert_eq!(asker.end().events[0]["run"], by_invite["run"]);
    let step = founder.newest_step();
    founder.wait_for_step(step + 50);
    let kept = founder.kill();
    let events: Vec<&Value> = kept.all("violation").chain(kept.all("join_requested")).collect();
    assert!(events.is_empty(), "a guest is no news: {events:?}");
}

#[test]
fn guests_do_not_keep_the_user_from_the_peer() {
    let (place, peers) = training(3, ENDLESS);
    let invite: Invite = place.invite("peer-1").parse().expect("an invite");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a thread can start");
    // As many who ask once a second and never leave.
    let (mut guests, mut refusals) = (Vec::new(), Vec::new());
    for _ in 0..64 {
        let contact = BootstrapAddress::Contact(invite.contacts[0].clone());
        let target = StatusTarget { secret: invite.secret, bootstrap_addresses: vec![contact] };
        let mut guest = runtime.block_on(connect_run(target, Some(invite.run))).expect("it knows the secret");
        match runtime.block_on(guest.status()) {
            Ok(_) => guests.push(guest),
            Err(StatusError::Busy { text, .. }) => refusals.push((guest, text)),
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(guests.len(), 4, "one machine has a few places");
    assert!(refusals.iter().all(|(_, text)| text.contains("4 from one machine: try again later")));
    assert!(words(&place, &["--dir", "peer-1"]).contains("training with 3 peers"));
    // The other members that an invite names would answer in its place.
    let alone = Invite { contacts: invite.contacts[..1].to_vec(), ..invite.clone() };
    let refused = place.ask(&["status", &alone.to_string()]);
    assert!(refused.failure().contains(" is busy: it answers 16 guests at a time"), "{}", refused.stderr);
    let (_, other) = &peers[1];
    let removed = place.ask(&["remove", other, "--dir", "peer-1"]);
    assert_eq!(removed.code, Some(0), "{}", removed.stderr);
    assert!(runtime.block_on(guests[0].status()).is_ok(), "guests with a place keep it");
    guests.clear();
    assert!(words(&place, &[&place.invite("peer-1")]).contains("training with 2 peers"));
}

#[test]
fn trouble_is_reported_as_it_comes_and_goes() {
    let (place, mut peers) = training(3, ENDLESS);
    let names: Vec<String> = peers.iter().map(|(_, name)| name.clone()).collect();
    let at_first = ["--dir", "peer-1"];
    peers[2].0.signal("STOP");
    // Before the others go on without it, or after that, depending on the machine's speed.
    status(&place, &at_first, |status| {
        matches!(state(status, &names[2]).as_str(), "suspected" | "unreachable" | "gone")
    });
    let silent = failure(&place, &["--dir", "peer-3"]);
    assert!(silent.contains("does not answer") && silent.contains("suspended"), "{silent}");
    let without = status(&place, &at_first, |status| {
        status["members"].as_array().is_some_and(|members| members.len() == 2)
    });
    assert!(without["events"].to_string().contains("no contact"), "{without}");
    peers[2].0.signal("CONT");
    status(&place, &at_first, |status| state(status, &names[2]) == "working");

    // Two of three stop at once: one member is too few.
    peers[1..].iter().for_each(|(peer, _)| peer.signal("STOP"));
    peers.drain(1..).for_each(|(peer, _)| drop(peer.kill()));
    let paused = status(&place, &at_first, |status| status["phase"] == "paused");
    assert_eq!((&paused["is_well"], state(&paused, &names[0]).as_str()), (&false.into(), "paused"));
    let text = words(&place, &at_first);
    for part in ["paused: 1 of 3 peers can be reached and 2 are needed", "   paused", "unreachable"] {
        assert!(text.contains(part), "`{part}` in\n{text}");
    }
    assert!(!text.contains("to go"), "nobody knows how long it takes:\n{text}");
    let gone = failure(&place, &["--dir", "peer-2"]);
    assert!(
        gone.contains("any more") && gone.contains("`peer resume --dir peer-2` continues the run"),
        "{gone}"
    );
    // A socket that a killed process left does not disturb.
    let mut again = place.join("peer-2", &place.invite("peer-1"));
    again.wait_for("step");
    status(&place, &["--dir", "peer-2"], |status| status["phase"] == "training");
}

#[test]
fn joiners_are_reported_before_they_are_members() {
    let place = TestFolder::new();
    place.write("run.toml", "epochs = 4\n[data]\nfile = \"digits\"\n");
    let mut founder = place.start("peer-1", 3, &[]);
    let mut joiner = place.join("peer-2", &invite_of(&mut founder));
    let (name, _) = listening(&mut joiner);
    let name = name.to_string();
    let is_ready =
        |status: &Value| of(status, "others", &name).is_some_and(|other| other["state"] == "ready");
    let status_of_founder = status(&place, &["--dir", "peer-1"], is_ready);
    assert_eq!(status_of_founder["phase"], "bootstrapping");
    assert!(status_of_founder["summary"].as_str().is_some_and(|words| words.contains("2 of 3 ready")));
    let joining = status(&place, &["--dir", "peer-2"], |status| {
        status["summary"].as_str().is_some_and(|words| words.contains("ready;"))
    });
    assert_eq!((&joining["phase"], &joining["is_well"]), (&"joining".into(), &true.into()));
}

/// Both others are killed, and the last one goes on alone: it reports that this is not right, and which peers it has lost.
#[test]
fn one_part_of_a_swarm_reports_the_members_that_it_has_lost() {
    let merging = "digest_every = 1\n[partition]\npolicy = \"merge\"";
    let (place, mut peers) = training_by(3, ENDLESS, merging);
    let lost: Vec<String> = peers.drain(1..).map(|(peer, name)| (peer.kill(), name).1).collect();
    let has_all = |status: &Value, list: &str| lost.iter().all(|peer| of(status, list, peer).is_some());
    let seen = status(&place, &["--dir", "peer-1"], |status| {
        has_all(status, "others")
            && has_all(status, "unreached")
            && status["summary"].as_str().is_some_and(|words| words.contains("lost in a partition"))
    });
    assert_eq!(seen["is_well"], false);
    let summary = seen["summary"].as_str().expect("words");
    assert!(summary.starts_with("training without 2 peers lost in a partition: "), "{summary}");
    assert!(summary.contains("; when the parts meet again, both models are merged"), "{summary}");
    for peer in &lost {
        assert_eq!(of(&seen, "others", peer).expect("it is there")["state"], "missing");
        let unreached = of(&seen, "unreached", peer).expect("it is there");
        assert!(unreached["tries"].as_u64() > Some(1), "{unreached}");
    }
    let events = seen["events"].to_string();
    assert!(!events.contains("still trying"), "{events}");
    let text = words(&place, &["--dir", "peer-1"]);
    assert_eq!(text.matches(": cannot be reached (").count(), 2, "{text}");
    assert_eq!(text.matches("  missing").count(), 2, "{text}");
}

#[test]
fn watching_follows_the_run_and_ends_with_it() {
    let place = TestFolder::new();
    place.write("run.toml", "epochs = 20\n[data]\nfile = \"digits\"\n");
    let mut peer = place.start("peer-1", 1, &[]);
    peer.wait_for("view");
    let watching = place.run(&["status", "--watch", "--dir", "peer-1"]);
    assert_eq!(peer.end().code, Some(0));
    let shown = watching.end_in_words();
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    assert!(shown.stdout.contains("it has ended"), "{}", shown.stdout);
    assert!(shown.stdout.contains("step "), "{}", shown.stdout);
}

#[test]
fn mistakes_are_reported_with_advice() {
    let place = TestFolder::new();
    let nobody = failure(&place, &["--dir", "nowhere"]);
    assert!(nobody.contains("no peer runs in nowhere") && nobody.contains("--dir"), "{nobody}");
    let refused = failure(&place, &["127.0.0.1:1"]);
    assert!(refused.contains("--secret-file FILE"), "{refused}");
    let missing = failure(&place, &["127.0.0.1:1", "--secret-file", "nofile"]);
    assert!(missing.contains("cannot read nofile"), "{missing}");
    place.write("secret", format!("{:064}\n", 7));
    let silent = failure(&place, &["127.0.0.1:1", "--secret-file", "secret"]);
    assert!(silent.contains("/ip4/127.0.0.1/tcp/1: connection refused"), "{silent}");
    let altered = failure(&place, &["pg1abc"]);
    assert!(altered.contains("the invite is incomplete or altered"), "{altered}");
    for arguments in [&["status", "pg1abc", "--dir", "x"][..], &["status", "--secret-file", "secret"]] {
        assert_eq!(place.ask(arguments).code, Some(2), "{arguments:?}");
    }

    place.write("run.toml", "[data]\nfile = \"digits\"\n");
    let mut peer = place.start("peer-1", 2, &[]);
    let (_, port) = listening(&mut peer);
    let stranger = failure(&place, &[&format!("127.0.0.1:{port}"), "--secret-file", "secret"]);
    assert!(stranger.contains("the secret (or the run) differs: check the invite"), "{stranger}");
    assert!(!stranger.contains("panicked"));
}

/// A peer of an earlier release holds the lock and has no socket; one of a later release has another format.
#[test]
fn peers_of_other_releases_are_recognized() {
    use std::io::{BufRead, BufReader, Write};
    let place = TestFolder::new();
    let folder = place.path("other");
    std::fs::create_dir_all(&folder).expect("writable");
    let lock = std::fs::File::create(folder.join("lock")).expect("writable");
    lock.lock().expect("nobody else has it");
    let without = failure(&place, &["--dir", "other"]);
    assert!(without.contains("its release does not support `status`"), "{without}");

    let listener = std::os::unix::net::UnixListener::bind(folder.join("status.sock")).expect("a free path");
    let answers = [
        "{\"format\":2,\"version\":\"9.0.0\"}\n",
        "{\"error\":\"asked in form 1\",\"version\":\"9.0.0\"}\n",
        "hello\n",
    ];
    let answering = std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().expect("somebody asks");
            let mut line = String::new();
            BufReader::new(stream.try_clone().expect("a copy"))
                .read_line(&mut line)
                .expect("it says what it reads");
            assert_eq!(line, "{\"format\":1}\n");
            stream.write_all(answer.as_bytes()).expect("it listens");
        }
    });
    for _ in 0..2 {
        let newer = failure(&place, &["--dir", "other"]);
        assert!(newer.contains("release 9.0.0") && newer.contains("use the same release"), "{newer}");
    }
    let garbage = failure(&place, &["--dir", "other"]);
    assert!(garbage.contains("does not understand"), "{garbage}");
    answering.join().expect("all were answered");
}

/// Malformed bytes on the socket, and very many requests, do no harm.
#[test]
fn malformed_status_requests_are_refused() {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    let place = TestFolder::new();
    place.write("run.toml", "[data]\nfile = \"digits\"\n");
    let mut peer = place.start("peer-1", 2, &[]);
    listening(&mut peer);
    peer.wait_for("peer_ready");
    let socket = place.path("peer-1").join("status.sock");
    let connect = || UnixStream::connect(&socket).expect("it is there");
    let ask = |bytes: &[u8]| {
        let mut stream = connect();
        // The peer may have closed the connection already.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    assert!(ask(b"what?\n").contains("does not understand the request"));
    assert!(ask(b"{\"format\":99}\n").contains("supports format 1"));
    assert_eq!(ask(&[b'x'; 100_000]), "", "longer than any question");
    assert_eq!(ask(b"{\"format\":1}"), "", "cut off");
    let held = |_| {
        let mut stream = connect();
        stream.write_all(b"{\"format\":1}\n").expect("it reads");
        stream.read_exact(&mut [0]).expect("it answers");
        stream
    };
    let asking: Vec<UnixStream> = (0..32).map(held).collect();
    let silent: Vec<UnixStream> = (0..16).map(|_| connect()).collect();
    assert!(ask(b"{\"format\":1}\n").contains("32 commands on this machine ask it already"));
    let order = ask(b"{\"format\":1,\"order\":{\"remove\":\"nobody\"}}\n");
    assert!(order.contains("this peer is not a member now"), "an order waits for no question: {order}");
    drop((asking, silent));
    status(&place, &["--dir", "peer-1"], |status| status["phase"] == "bootstrapping");
}

/// The peers in the default directories, if no directory is given.
#[test]
fn without_a_directory_all_peers_of_this_user_are_asked() {
    let place = TestFolder::new();
    place.write("run.toml", "[data]\nfile = \"digits\"\n");
    let home = place.path("home");
    let in_home = |arguments: &[&str]| {
        let mut command = std::process::Command::new(super::process::PROGRAM);
        Process::spawn(command.args(arguments).current_dir(place.path("")).env("XDG_DATA_HOME", &home))
    };
    let nobody = in_home(&["status"]).end_in_words();
    assert!(
        nobody.failure().contains("no peer runs in this user's default directories"),
        "{}",
        nobody.stderr
    );
    let start = [&["start", "run.toml"], &LOCAL[..LOCAL.len() - 1]].concat();
    let mut peers = [in_home(&start), in_home(&start)];
    peers.iter_mut().for_each(|peer| drop(peer.wait_for("peer_ready")));
    let shown = in_home(&["status", "--json"]).end();
    assert_eq!((shown.code, shown.events.len()), (Some(0), 2));
    assert_ne!(shown.events[0]["peer"], shown.events[1]["peer"]);
}
