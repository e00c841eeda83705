//! Partitions in which both parts go on: each trains other digits meanwhile, and when they can reach each other again, they merge by
//! themselves.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use flate2::read::GzDecoder;
use serde_json::Value;

use super::network::TestNetwork;
use super::partitions::between;
use super::process::{Ended, Process, is_view_of};
use super::swarm::Swarm;

/// How long the partition lasts after both parts have noticed it. It begins soon after the start.
const APART: Duration = Duration::from_secs(20);
/// Each test needs the machine for itself: what a branch has trained before the merge depends on the computing time that it had.
static MACHINE: Mutex<()> = Mutex::new(());
/// How often each row is in the file: so often that no branch reaches the other's half meanwhile.
const COPIES: usize = 200;

/// The digits 0 to 4 many times, and then 5 to 9 as often; within each half the digits are mixed.
fn halves() -> Vec<u8> {
    let mut text = String::new();
    let digits = include_bytes!("../../models/data/digits.csv.gz").as_slice();
    GzDecoder::new(digits).read_to_string(&mut text).expect("the digits are there");
    let is_low = |row: &&str| row.rsplit(',').next().is_some_and(|label| label.trim() < "5");
    let (low, high): (Vec<&str>, Vec<&str>) = text.lines().partition(is_low);
    let copies = |half: &[&str]| half.repeat(COPIES).join("\n") + "\n";
    (copies(&low) + &copies(&high)).into_bytes()
}

/// A swarm that trains in the order of the file, so that a branch that continues at a later position trains other digits.
fn training(policy: &str) -> Option<Swarm> {
    let run = format!(
        "epochs = 50\nbatch = 2\nshuffle = false\n[data]\nfile = \"halves.csv\"\nheld_out = 0.005\n[model]\nhidden = [256]\n\
         [optimizer]\nrule = \"sgd\"\nrate = 0.002\n[sync]\ndigest_every = 1\n[partition]\npolicy = \"{policy}\"\n"
    );
    let mut swarm = Swarm::start_run(TestNetwork::of(5)?, &run, &[("halves.csv", &halves())]);
    swarm.peers.iter_mut().for_each(|peer| peer.wait_for_step(100));
    Some(swarm)
}

/// Separates two of five peers, and ends the partition once both parts have gone on for a while. Returns the hosts of both parts.
fn cut(swarm: &mut Swarm) -> [Vec<usize>; 2] {
    let hosts = swarm.by_rank();
    let parts = [hosts[..3].to_vec(), hosts[3..].to_vec()];
    let paths = between(&parts[0], &parts[1]);
    swarm.world.cut(&paths);
    for part in &parts {
        for host in part {
            swarm.peers[*host].wait(|event| is_view_of(event, part.len()));
        }
    }
    std::thread::sleep(APART);
    swarm.world.heal(&paths);
    parts
}

/// Waits until all are in one view, and ends them. What they have reported since then must agree.
fn end(mut swarm: Swarm) -> Vec<Ended> {
    swarm.wait_for_all();
    let newest = swarm.peers.iter_mut().map(Process::newest_step).max().unwrap_or(0);
    swarm.peers.iter_mut().for_each(|peer| peer.wait_for_step(newest + 20));
    let ended: Vec<Ended> = swarm.peers.drain(..).map(Process::leave).collect();
    let mut digests: BTreeMap<u64, &Value> = BTreeMap::new();
    for peer in &ended {
        let joined = peer.events.iter().position(|event| is_view_of(event, 5) && event["number"] != 1);
        let since = peer.events[joined.expect("all were in one view again")..].iter();
        for step in since.filter(|event| event["event"] == "step") {
            let number = step["step"].as_u64().expect("a number");
            let known = *digests.entry(number).or_insert(&step["digest"]);
            assert_eq!(known, &step["digest"], "step {number} has one state");
        }
    }
    assert!(digests.len() > 20);
    ended
}

fn accuracy(evaluation: &Value) -> f64 {
    evaluation["accuracy"].as_f64().expect("digits are classes")
}

#[test]
fn the_models_of_both_parts_are_merged() {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut swarm) = training("merge") else { return };
    cut(&mut swarm);
    let ended = end(swarm);
    let weighed: Vec<&Value> = ended.iter().flat_map(|peer| peer.all("merge_evaluation")).collect();
    let [own, theirs, merged] = ["own", "theirs", "merged"].map(|key| accuracy(&weighed[0][key]));
    let merges: Vec<&Value> = ended.iter().flat_map(|peer| peer.all("merged")).collect();
    let [ours, others] = ["own_samples", "their_samples"].map(|key| &merges[0][key]);
    println!("right: {own:.3} ({ours} samples) and {theirs:.3} ({others}) before, {merged:.3} merged");
    assert!(merged > own.max(theirs) + 0.05, "each part knew half of the digits");
    assert!(weighed.iter().all(|weighed| weighed["distance"].as_f64() > Some(0.0)));
    let gave_way =
        ended.iter().filter(|peer| peer.all("branch_abandoned").any(|it| it["merged"] == true)).count();
    assert!((2..=3).contains(&gave_way), "{gave_way} of five joined the others");
}

#[test]
fn the_part_that_is_further_ahead_is_kept() {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut swarm) = training("winner") else { return };
    let parts = cut(&mut swarm);
    let ended = end(swarm);
    let gave_way = |host: &usize| ended[*host].all("branch_abandoned").any(|it| it["merged"] == false);
    let counts = parts.each_ref().map(|part| part.iter().filter(|host| gave_way(host)).count());
    println!("{counts:?} gave way");
    assert!(counts == [3, 0] || counts == [0, 2], "one part as a whole: {counts:?}");
    assert!(ended.iter().all(|peer| peer.all("merged").count() == 0));
}
