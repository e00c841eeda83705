//! `peer remove`: a member is expelled from a real run.

#![cfg(unix)]

use serde_json::Value;

use super::departures::training;
use super::process::{ENDLESS, Ended, end_all};

/// The first six characters of a peer's id, which name it.
fn short(name: &str) -> &str {
    &name[name.len() - 6..]
}

fn last_view(peer: &Ended) -> &Value {
    peer.all("view").last().expect("it was in one")
}

#[test]
fn a_removed_member_hands_over_its_shard_and_cannot_rejoin() {
    let (place, mut peers) = training(3, ENDLESS);
    let (removed, name) = peers.pop().expect("three");
    let invite = place.ask(&["invite", "--dir", "peer-1"]).stdout.trim().to_owned();

    let answer = place.ask(&["remove", short(&name), "--dir", "peer-1"]);
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    for part in [short(&name), "hands over its shard", "was removed from the run in view", "with a new id"] {
        assert!(answer.stdout.contains(part), "`{part}` in\n{}", answer.stdout);
    }
    let ended = removed.end();
    let by = short(&peers[0].1);
    assert_eq!(
        ended.failure(),
        format!("this peer was removed from the run, as a user wanted it at peer {by}: ask there why")
    );
    let again = place.join("peer-3", &invite).end();
    assert_eq!(again.failure(), ended.failure(), "nor does it get in again");

    // The others have lost nothing, and were not interrupted.
    for (peer, _) in &mut peers {
        let step = peer.newest_step();
        peer.wait_for_step(step + 20);
    }
    let peers: Vec<_> = peers.into_iter().map(|(peer, _)| peer).rev().collect();
    let ended = end_all(&place, "peer-1", peers, &[]);
    for peer in &ended {
        let expelled: Vec<&Value> = peer.all("expelled").collect();
        assert_eq!(expelled.len(), 1);
        assert_eq!((&expelled[0]["peer"], &expelled[0]["cause"]), (&Value::from(&*name), &"request".into()));
        assert!(peer.all("view").all(|view| view["change"]["interrupted"] != true));
        assert!(!last_view(peer)["members"].as_array().expect("a list").contains(&Value::from(&*name)));
    }
}

#[test]
fn no_member_is_removed_by_mistake() {
    let (place, peers) = training(2, ENDLESS);
    let refused =
        |whom: &str, directory: &str| place.ask(&["remove", whom, "--dir", directory]).failure().to_owned();
    let unknown = refused("nobody", "peer-1");
    assert!(unknown.contains("no member is called nobody; the members are: "), "{unknown}");
    assert!(peers.iter().all(|(_, name)| unknown.contains(short(name))), "{unknown}");
    let itself = refused(&peers[1].1, "peer-2");
    assert!(itself.contains("that is the peer asked itself: press Ctrl-C in its terminal"), "{itself}");
    let nowhere = refused("nobody", "elsewhere");
    assert!(nowhere.contains("no peer runs in elsewhere"), "{nowhere}");
    let peers: Vec<_> = peers.into_iter().map(|(peer, _)| peer).rev().collect();
    let ended = end_all(&place, "peer-1", peers, &[]);
    assert_eq!(ended.iter().map(|peer| peer.all("expelled").count()).sum::<usize>(), 0);
}
