//! Two networks that only one host is in: the peers at its two sides cannot reach each other, and all three train.
//!
//! ```text
//!   b ------------- 10.60.0.0/24 ------------- a ------------- 10.61.0.0/24 ------------- c
//!   10.60.0.2                     10.60.0.1         10.61.0.1                     10.61.0.2
//! ```

use super::network::{Namespace, try_out};
use super::process::{ENDLESS, PROGRAM, Process, TestFolder, end_all, invite_of};

/// The host in both networks, and one in each; `None`, after the reason was printed, if the system does not allow it.
fn hosts() -> Option<[Namespace; 3]> {
    if let Err(reason) = try_out() {
        println!("skipped: network namespaces need root, `unshare`, `nsenter`, `ip` and `bash`: {reason}");
        return None;
    }
    let hosts = [(); 3].map(|()| Namespace::hold());
    let [both, sides @ ..] = &hosts;
    both.ip("link set dev lo up\n");
    for (side, network) in sides.iter().zip([60, 61]) {
        both.ip(&format!(
            "link add pgwire{network} type veth peer name pgwire netns {}\n\
             address add 10.{network}.0.1/24 dev pgwire{network}\n\
             link set dev pgwire{network} up\n",
            side.id()
        ));
        side.ip(&format!(
            "link set dev lo up\naddress add 10.{network}.0.2/24 dev pgwire\nlink set dev pgwire up\n"
        ));
    }
    Some(hosts)
}

#[test]
fn peers_on_both_sides_of_a_host_own_nothing_and_train() {
    let Some(hosts) = hosts() else { return };
    let place = TestFolder::new();
    let run = format!("epochs = {ENDLESS}\n[data]\nfile = \"digits\"\n[sync]\ndigest_every = 1\n");
    place.write("run.toml", run);
    let spawn = |index: usize, arguments: &[&str]| {
        let mut command = hosts[index].command(PROGRAM);
        let directory = format!("peer-{index}");
        command.args(arguments).args(["--json", "--no-mdns", "--dir", &directory]);
        Process::spawn(command.current_dir(place.path("")))
    };
    let mut founder = spawn(0, &["start", "run.toml", "--peers", "3"]);
    let invite = invite_of(&mut founder);
    let mut peers = vec![founder, spawn(1, &["join", &invite]), spawn(2, &["join", &invite])];

    let own_nothing = |status: &serde_json::Value| {
        let members = status["members"].as_array().map_or(&[][..], Vec::as_slice);
        let owners = members.iter().filter(|member| member["owned"].as_u64() > Some(0));
        members.len() == 3 && owners.count() == 1
    };
    place.run(&["status", "--json", "--watch", "--dir", "peer-0"]).wait(own_nothing);
    for peer in &mut peers[1..] {
        let report = peer.wait(|event| event["event"] == "reachability" && event["advice"] == "connect");
        let text = report["text"].as_str().expect("in words");
        println!("{text}");
        assert!(text.contains("cannot reach each other: they train, and own no parameters"), "{text}");
    }
    peers[0].wait_for("step");
    let newest = peers[0].newest_step();
    peers.iter_mut().for_each(|peer| peer.wait_for_step(newest + 50));
    peers.reverse();
    end_all(&place, "peer-0", peers, &[]);
}
