//! Peers that join while the others train: through any member, many at once.

#![cfg(unix)]

use super::departures::training;
use super::process::{ENDLESS, Process, end_all, is_view_of};

/// Number of peers that join at the same time.
const MANY: usize = 10;

#[test]
fn ten_at_once_interrupt_no_step() {
    let (place, peers) = training(2, ENDLESS);
    let invites = ["peer-1", "peer-2"].map(|directory| place.invite(directory));
    let mut late: Vec<Process> =
        (0..MANY).map(|number| place.join(&format!("late-{number}"), &invites[number % 2])).collect();
    let mut peers: Vec<Process> = peers.into_iter().map(|(peer, _)| peer).collect();
    for peer in peers.iter_mut().chain(&mut late) {
        peer.wait(|event| is_view_of(event, 2 + MANY));
    }
    late.iter_mut().for_each(|peer| {
        peer.wait_for("step");
    });
    peers.append(&mut late);
    let last = format!("late-{}", MANY - 1);
    let ended = end_all(&place, &last, peers, &[]);
    for view in ended.iter().flat_map(|peer| peer.all("view")) {
        assert_ne!(view["change"]["interrupted"], true, "{view}");
    }
}
