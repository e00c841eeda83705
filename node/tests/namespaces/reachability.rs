//! Peers behind routers: they join by any one address, train with the others, and report correctly how they can be reached.

use serde_json::Value;

use super::network::Namespace;
use super::process::{ENDLESS, Ended, PROGRAM, Process, TestFolder, end_all, invite_of};
use super::routers::{Outside, Ports};

/// A peer on each of some hosts and homes, the founder first.
struct Party {
    peers: Vec<Process>,
    place: TestFolder,
}

impl Party {
    /// Starts a run that waits for all of these peers, the first of which founds it.
    fn start(members: &[(&Namespace, &[&str])]) -> Self {
        let place = TestFolder::new();
        let run = format!("epochs = {ENDLESS}\n[data]\nfile = \"digits\"\n[sync]\ndigest_every = 1\n");
        place.write("run.toml", run);
        let count = members.len().to_string();
        let mut party = Self { peers: Vec::new(), place };
        let (founder, more) = members[0];
        party.spawn(founder, &[&["start", "run.toml", "--peers", &count], more].concat());
        let invite = invite_of(&mut party.peers[0]);
        for (home, more) in &members[1..] {
            party.spawn(home, &[&["join", &invite], *more].concat());
        }
        party
    }

    fn spawn(&mut self, namespace: &Namespace, arguments: &[&str]) {
        let directory = format!("peer-{}", self.peers.len());
        let mut command = namespace.command(PROGRAM);
        command.args(arguments).args(["--json", "--no-mdns", "--dir", &directory]);
        self.peers.push(Process::spawn(command.current_dir(self.place.path(""))));
    }

    /// Waits until a peer reports this about its reachability, after another peer has tried.
    fn wait_for_reach(&mut self, index: usize, standing: &str) -> Value {
        let is_it = |event: &Value| {
            event["event"] == "reachability" && event["state"] == standing && event["helpers"] != 0
        };
        let report = self.peers[index].wait(is_it);
        println!("peer {index}: {}", report["text"].as_str().expect("in words"));
        report
    }

    /// Waits until all have trained `steps` more steps, counted from the first peer's present step.
    fn train(&mut self, steps: u64) {
        self.peers[0].wait_for("step");
        let newest = self.peers[0].newest_step();
        self.peers.iter_mut().for_each(|peer| peer.wait_for_step(newest + steps));
    }

    /// Waits until `count` of all members own chunks.
    fn wait_for_owners(&self, count: usize) {
        let is_it = |status: &Value| {
            let members = status["members"].as_array().map_or(&[][..], Vec::as_slice);
            let owners = members.iter().filter(|member| member["owned"].as_u64() > Some(0));
            members.len() == self.peers.len() && owners.count() == count
        };
        self.place.run(&["status", "--json", "--watch", "--dir", "peer-0"]).wait(is_it);
    }

    /// All leave, the founder last, and their reports form one history without an interruption.
    fn end(self) -> Vec<Ended> {
        let Self { mut peers, place } = self;
        peers.reverse();
        let ended = end_all(&place, "peer-0", peers, &[]);
        for peer in &ended {
            assert_eq!(peer.all("excluded").count() + peer.all("paused").count(), 0);
            assert!(
                peer.all("view").all(|view| view["change"]["interrupted"] != true),
                "a step was interrupted"
            );
        }
        ended
    }
}

fn finding<'a>(report: &'a Value, address: &str) -> &'a Value {
    let tried = report["tried"].as_array().expect("a list");
    tried.iter().find(|tried| tried["address"] == address).unwrap_or_else(|| panic!("{address}: {report}"))
}

fn notices<'a>(peer: &'a Ended, words: &str) -> Vec<&'a Value> {
    let is_it = |notice: &&Value| notice["text"].as_str().is_some_and(|text| text.contains(words));
    peer.all("notice").filter(is_it).collect()
}

/// What the peer owned in views with `members` members, oldest first.
fn shards(peer: &Ended, members: usize) -> Vec<u64> {
    let views =
        peer.all("view").filter(|view| view["members"].as_array().is_some_and(|all| all.len() == members));
    views.map(|view| view["shard"].as_u64().expect("a number")).collect()
}

#[test]
fn hole_punching_works_through_routers_that_keep_ports() {
    let Some(outside) = Outside::of(1, Ports::Kept, &[1, 1]) else { return };
    let mut party =
        Party::start(&[(outside.host(0), &[]), (outside.home(0, 0), &[]), (outside.home(1, 0), &[])]);
    party.peers[1].wait_for_notice("without a relay now");
    party.peers[2].wait_for_notice("without a relay now");
    let report = party.wait_for_reach(1, "unreachable");
    assert_eq!(report["seen_at"][0], "203.0.113.1");
    assert_eq!(report["advice"]["forward"]["port"], 4747);
    let router = finding(&report, "/ip4/203.0.113.1/tcp/4747");
    assert_eq!((&router["reached_by"], &router["reason"]), (&0.into(), &"could not be reached".into()));
    let report = party.wait_for_reach(0, "reachable");
    assert_eq!((&report["advice"], &report["seen_at"]), (&"fine".into(), &Value::Array(vec![])));
    assert_eq!(finding(&report, "/ip4/203.0.113.10/tcp/4747")["failed_by"], 0);
    party.train(50);
    party.end();
}

#[test]
fn control_messages_are_relayed_where_hole_punching_fails() {
    let Some(outside) = Outside::of(1, Ports::Drawn, &[1, 1]) else { return };
    let asking: &[&str] = &["--upnp"];
    let mut party =
        Party::start(&[(outside.host(0), &[]), (outside.home(0, 0), asking), (outside.home(1, 0), &[])]);
    for home in [1, 2] {
        party.peers[home].wait_for_notice("through another peer only");
        let mut report = party.wait_for_reach(home, "unreachable");
        if home == 1 && report["router"].is_null() {
            report = party.peers[home].wait(|event| event["router"].is_object());
        }
        let expected = if home == 1 { "no router answers to UPnP".into() } else { Value::Null };
        assert_eq!(report["router"]["refused"]["reason"], expected);
    }
    party.train(50);
    let ended = party.end();
    for home in &ended[..2] {
        assert_eq!(notices(home, "without a relay").len(), 0);
        assert!(shards(home, 3).iter().all(|shard| *shard == 0), "what others cannot reach they do not need");
    }
    assert!(shards(&ended[2], 3).iter().all(|shard| *shard == 9610), "it owns everything");
}

#[test]
fn two_peers_behind_one_router_reach_each_other_locally() {
    let Some(outside) = Outside::of(1, Ports::Drawn, &[2]) else { return };
    let mut party =
        Party::start(&[(outside.host(0), &[]), (outside.home(0, 0), &[]), (outside.home(0, 1), &[])]);
    let report = party.wait_for_reach(1, "unreachable");
    assert_eq!(report["seen_at"][0], "203.0.113.1");
    // If the other peer at home is the first to find this one reachable, it owns chunks until the one outside has tried.
    party.wait_for_owners(1);
    party.train(50);
    party.end();
}

#[test]
fn a_port_forwarded_later_makes_an_owner_without_an_interruption() {
    let Some(outside) = Outside::of(1, Ports::Drawn, &[1, 1]) else { return };
    let mut party =
        Party::start(&[(outside.host(0), &[]), (outside.home(0, 0), &[]), (outside.home(1, 0), &[])]);
    party.wait_for_reach(1, "unreachable");
    party.train(10);
    outside.forward(0, 0, 4747);
    let report = party.wait_for_reach(1, "reachable");
    assert_eq!(finding(&report, "/ip4/203.0.113.1/tcp/4747")["failed_by"], 0);
    assert_eq!(report["advice"], "fine");
    // Its chunks arrive a few with each step, so that it owns some once another view has begun and gone on for a while.
    party.peers[1].wait(|event| event["event"] == "view" && event["change"]["moving"].as_u64() > Some(0));
    party.train(200);
    let ended = party.end();
    assert!(shards(&ended[0], 3).iter().all(|shard| *shard == 0), "the other one is where it was");
}

#[test]
fn a_peer_with_an_external_address_owns_chunks_from_the_start() {
    let Some(outside) = Outside::of(1, Ports::Drawn, &[1]) else { return };
    outside.forward(0, 0, 4747);
    let external = ["--external", "203.0.113.1:4747"];
    let mut party = Party::start(&[(outside.host(0), &[]), (outside.home(0, 0), &external)]);
    let report = party.wait_for_reach(1, "reachable");
    assert_eq!(report["announced"][0], "/ip4/203.0.113.1/tcp/4747");
    party.train(20);
    let ended = party.end();
    assert!(shards(&ended[0], 2).iter().all(|shard| *shard > 0));
}

#[test]
fn a_wrong_external_address_is_reported() {
    let Some(outside) = Outside::of(1, Ports::Drawn, &[1]) else { return };
    let external = ["--external", "203.0.113.1:4747"];
    let mut party = Party::start(&[(outside.host(0), &[]), (outside.home(0, 0), &external)]);
    let report = party.wait_for_reach(1, "unreachable");
    assert_eq!(report["advice"]["fix_external"]["address"], "/ip4/203.0.113.1/tcp/4747");
    party.train(20);
    party.end();
}

#[test]
fn hole_punching_works_over_quic_where_it_fails_over_tcp() {
    let Some(outside) = Outside::of(1, Ports::Kept, &[1, 1]) else { return };
    outside.keep_out_tcp(0, 1);
    let mut party =
        Party::start(&[(outside.host(0), &[]), (outside.home(0, 0), &[]), (outside.home(1, 0), &[])]);
    party.peers[1].wait_for_notice("without a relay now");
    party.peers[2].wait_for_notice("without a relay now");
    party.train(50);
    let ended = party.end();
    // There is one such notice, unless a machine is so slow that the connection is lost in between.
    assert!(ended[..2].iter().all(|home| !notices(home, "over QUIC (UDP)").is_empty()));
}

#[test]
fn a_router_asked_over_upnp_forwards_ports_until_the_peers_end() {
    let Some(mut outside) = Outside::of(1, Ports::Drawn, &[2]) else { return };
    if !outside.answer_upnp(0) {
        return;
    }
    let asking: &[&str] = &["--upnp"];
    let mut party = Party::start(&[
        (outside.host(0), &[]),
        (outside.home(0, 0), asking),
        // Both request the same port of the router.
        (outside.home(0, 1), asking),
    ]);
    let mut ports: Vec<String> = (1..=2)
        .map(|home| {
            // The peer at the same home cannot reach it through the router, which accepts no such connection from inside.
            let is_reached = |tried: &Value| {
                tried["address"].as_str().is_some_and(|address| address.starts_with("/ip4/45.0.0.1/tcp/"))
                    && tried["reached_by"] == 1
            };
            let report = party.peers[home].wait(|event| {
                event["state"] == "reachable"
                    && event["tried"].as_array().is_some_and(|all| all.iter().any(is_reached))
            });
            println!("peer {home}: {}", report["text"].as_str().expect("in words"));
            assert_eq!(report["advice"], "fine");
            report["router"]["done"]["address"].as_str().expect("it forwards").to_owned()
        })
        .collect();
    ports.sort();
    assert_eq!(ports, ["/ip4/45.0.0.1/tcp/4747", "/ip4/45.0.0.1/tcp/4748"]);
    party.wait_for_owners(3);
    party.train(50);
    assert!(outside.forwarded(0).contains("dnat"), "{}", outside.forwarded(0));
    party.end();
    assert!(!outside.forwarded(0).contains("dnat"), "{}", outside.forwarded(0));
}
