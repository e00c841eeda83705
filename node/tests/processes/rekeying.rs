//! `peer rekey`: a real run gets another secret while it goes on.

#![cfg(unix)]

use serde_json::Value;

use super::departures::training;
use super::process::{ENDLESS, TestFolder, end_all};

/// Asks this peer to replace the secret, and returns the new invite.
fn rekey(place: &TestFolder, directory: &str, members: usize) -> String {
    let answer = place.ask(&["rekey", "--dir", directory]);
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    let all_have_it = format!("all members have confirmed it ({members} members)");
    assert!(answer.stdout.contains(&all_have_it), "{}", answer.stdout);
    answer.stdout.split_whitespace().last().expect("an invite").to_owned()
}

#[test]
fn after_a_rekey_old_invites_are_refused_and_no_member_is_lost() {
    let (place, mut peers) = training(3, ENDLESS);
    let old = place.invite("peer-2");
    let new = rekey(&place, "peer-2", 3);
    let mut late = place.join("peer-4", &old);
    late.wait_for_notice("the secret (or the run) differs");
    late.kill();

    // Any member's invite works; all have the same beginning.
    assert_ne!(place.invite("peer-3"), new, "each names itself first");
    let mut comer = place.join("peer-5", &place.invite("peer-3"));
    comer.wait_for("step");
    let shown = place.ask(&["status", "--json", "--dir", "peer-5"]).stdout;
    let status: Value = serde_json::from_str(&shown).expect("a status");
    let members = status["members"].as_array().expect("a list");
    let others: Vec<&Value> = members.iter().filter(|member| member["is_this"] != true).collect();
    assert_eq!(others.len(), 3);
    assert!(others.iter().all(|member| member["link"]["lane"] == "direct"), "{status}");

    // A restarted peer reads it from its data directory.
    let (killed, gone) = peers.remove(1);
    let killed = killed.kill();
    let local = ["--json", "--no-mdns", "--listen", "127.0.0.1", "--dir", "peer-2"];
    let mut back = place.run(&[&["resume"], &local[..]].concat());
    back.wait_for("step");

    let mut rest = vec![back, comer];
    rest.extend(peers.into_iter().map(|(peer, _)| peer).rev());
    let ended = end_all(&place, "peer-1", rest, &[killed]);
    let counts: Vec<usize> = ended.iter().map(|peer| peer.all("rekeyed").count()).collect();
    assert_eq!(counts, [0, 0, 1, 1], "who came since had it from the directory or the invite");
    let lost = ended[3].all("view").filter(|view| view["change"]["interrupted"] == true);
    let lost: Vec<&Value> =
        lost.flat_map(|view| view["change"]["left"].as_array().expect("a list")).collect();
    assert_eq!(lost, [&*gone], "the one that was killed");
}

#[test]
fn the_secret_can_be_changed_repeatedly_and_at_any_member() {
    let (place, peers) = training(2, ENDLESS);
    let nowhere = place.ask(&["rekey", "--dir", "elsewhere"]);
    assert!(nowhere.failure().contains("no peer runs in elsewhere"), "{}", nowhere.failure());
    let invites = ["peer-1", "peer-2", "peer-1"].map(|directory| rekey(&place, directory, 2));
    let mut turned_away = place.join("peer-3", &invites[0]);
    turned_away.wait_for_notice("the secret (or the run) differs");
    turned_away.kill();
    let mut third = place.join("peer-3", &invites[2]);
    third.wait_for("step");
    let mut rest = vec![third];
    rest.extend(peers.into_iter().map(|(peer, _)| peer).rev());
    end_all(&place, "peer-1", rest, &[]);
}
