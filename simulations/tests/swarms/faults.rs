//! Every kind of fault does what its name says, and the rest of the swarm goes on.

use std::collections::BTreeMap;
use std::time::Duration;

use peergrad_config::specification::RunFile;
use peergrad_protocol::view::Recovery;
use peergrad_simulations::disk::DiskMode;
use peergrad_simulations::history::{PeerState, StateSpan};
use peergrad_simulations::host::Crash;
use peergrad_simulations::links::Links;
use peergrad_simulations::scenario::file::Size;
use peergrad_simulations::scenario::named::named;
use peergrad_simulations::scenario::{
    Directions, Fault, FaultTime, Groups, Scenario, SurvivorOutcome, Targets,
};
use peergrad_simulations::simulation::{Outcome, Simulation};
use peergrad_simulations::workload::Workload;

/// Four peers that need about twenty seconds.
fn swarm() -> Scenario {
    let run = RunFile::parse("epochs = 10\nbatch = 64").unwrap();
    let mut scenario = Scenario::new("faults", 4, Workload::squares(&run, 500, 640).unwrap());
    scenario.sample_time = Duration::from_millis(12);
    // A peer that is slowed down needs long to evaluate the final model.
    scenario.expect.patience = Duration::from_secs(60);
    scenario
}

/// Runs the swarm with `fault` two seconds after the start.
fn after(fault: Fault, survivors: SurvivorOutcome) -> Outcome {
    let scenario = swarm().after(Duration::from_secs(2), fault).expecting(survivors);
    let outcome = Simulation::new(&scenario, 5).run();
    assert_eq!(outcome.violations, [], "{:?}", outcome.endings);
    outcome
}

fn endings<const N: usize>(expected: [(&str, usize); N]) -> BTreeMap<String, usize> {
    expected.map(|(words, count)| (words.to_owned(), count)).into()
}

fn one() -> Targets {
    Targets::Peers(vec![2])
}

/// Shorter than any patience.
const SHORT: Duration = Duration::from_secs(1);
/// Long enough to be noticed, and over well before the run.
const LONG: Duration = Duration::from_secs(7);

#[test]
fn faults_shorter_than_the_timeouts_only_take_time() {
    let quiet = Simulation::new(&swarm(), 5).run();
    assert_eq!((quiet.steps, quiet.violations), (100, vec![]));
    let groups = Groups::Split(vec![3, 1]);
    let (between, duration) = ([1, 2], Some(SHORT));
    let cut = Box::new(Fault::Cut { between, directions: Directions::Both, duration });
    for fault in [
        Fault::Partition { groups, duration },
        Fault::Cut { between, directions: Directions::Both, duration },
        Fault::Cut { between, directions: Directions::Forward, duration },
        Fault::Pause { targets: one(), duration: SHORT },
        Fault::Flap { fault: cut, times: 3, every: SHORT * 3 },
    ] {
        let shown = format!("{fault:?}");
        let outcome = after(fault, SurvivorOutcome::Finish);
        assert_eq!(outcome.endings, endings([("finished", 4)]), "{shown}");
        assert_eq!(outcome.digest, quiet.digest, "{shown}: the result is the same");
        assert_eq!(outcome.history.views.len(), 1, "{shown}: nobody is left out");
        // Two peers that are no neighbours in the ring exchange few messages.
        assert!(outcome.time * 10 > quiet.time * 9, "{shown}");
    }
}

#[test]
fn a_peer_cut_off_for_long_is_excluded_and_rejoins() {
    let duration = Some(LONG);
    for fault in [
        Fault::Partition { groups: Groups::Peers(vec![vec![0, 1], vec![2, 3]]), duration },
        Fault::Cut { between: [1, 2], directions: Directions::Both, duration },
        Fault::Cut { between: [1, 2], directions: Directions::Forward, duration },
        Fault::Pause { targets: one(), duration: LONG },
    ] {
        let shown = format!("{fault:?}");
        let outcome = after(fault, SurvivorOutcome::Finish);
        assert_eq!(outcome.endings, endings([("finished", 4)]), "{shown}");
        assert!(outcome.history.views.len() >= 3, "{shown}: out and in again");
    }
}

#[test]
fn the_others_finish_without_a_peer_that_crashed_or_left() {
    let crashed = after(Fault::Crash { targets: one(), crash: Crash::Killed }, SurvivorOutcome::Finish);
    assert_eq!(crashed.endings, endings([("crashed", 1), ("finished", 3)]));
    let silent = after(Fault::Crash { targets: one(), crash: Crash::PowerLost }, SurvivorOutcome::Finish);
    assert_eq!(silent.endings, crashed.endings);
    let left = after(Fault::Leave { targets: one() }, SurvivorOutcome::Finish);
    assert_eq!(left.endings, endings([("left", 1), ("finished", 3)]));
    let panicked = after(Fault::Panic { targets: one() }, SurvivorOutcome::Finish);
    assert_eq!(panicked.endings, endings([("stopped: its task failed", 1), ("finished", 3)]));
    for outcome in [&crashed, &silent, &panicked, &left] {
        let restarted: usize = outcome.history.views.iter().map(|v| v.view.moves.restarted.len()).sum();
        assert_eq!(restarted, 0, "another peer keeps a copy of all that it kept");
    }
}

#[test]
fn a_minority_waits_for_others_and_continues_when_they_are_back() {
    let targets = || Targets::Peers(vec![1, 2, 3]);
    let dead = after(Fault::Crash { targets: targets(), crash: Crash::Killed }, SurvivorOutcome::Wait);
    assert_eq!(dead.endings, endings([("crashed", 3), ("still a member", 1)]));
    let back = after(
        Fault::Restart { targets: targets(), duration: LONG, keeps_disk: true },
        SurvivorOutcome::Finish,
    );
    assert_eq!(back.endings, endings([("finished", 4)]));
}

#[test]
fn a_peer_whose_task_hangs_is_left_behind() {
    let outcome = after(Fault::Hang { targets: one() }, SurvivorOutcome::Finish);
    assert_eq!(outcome.endings.get("finished"), Some(&3), "{:?}", outcome.endings);
}

#[test]
fn a_peer_that_is_busy_is_waited_for() {
    let quiet = Simulation::new(&swarm(), 5).run();
    let busy = Fault::Busy { targets: one(), duration: 6 * LONG };
    let outcome = after(busy.clone(), SurvivorOutcome::Finish);
    assert_eq!(outcome.endings, endings([("finished", 4)]));
    assert_eq!((outcome.history.views.len(), outcome.digest), (1, quiet.digest), "nobody is left out");
    assert!(outcome.time > quiet.time + 5 * LONG);

    let crash = Fault::Crash { targets: Targets::Peers(vec![1]), crash: Crash::Killed };
    let scenario = swarm().after(2 * SHORT, busy).after(4 * SHORT, crash);
    let outcome = Simulation::new(&scenario, 5).run();
    assert_eq!((&outcome.violations, outcome.history.views.len()), (&vec![], 2));
    assert_eq!(outcome.endings, endings([("crashed", 1), ("finished", 3)]), "the dead one is not waited for");
}

/// Each member watches a few others, and yet all know whom they wait for.
#[test]
fn a_busy_peer_of_a_large_swarm_causes_no_other_view() {
    let run = RunFile::parse("epochs = 2\nbatch = 80").unwrap();
    let mut scenario = Scenario::new("busy", 40, Workload::squares(&run, 500, 800).unwrap());
    scenario.sample_time = Duration::from_millis(20);
    scenario.expect.patience = Duration::from_secs(90);
    let scenario = scenario.after(SHORT / 2, Fault::Busy { targets: one(), duration: 6 * LONG });
    let outcome = Simulation::new(&scenario, 5).run();
    assert_eq!((&outcome.violations, outcome.history.views.len()), (&vec![], 1));
    assert_eq!(outcome.endings, endings([("finished", 40)]));
}

#[test]
fn an_unnoticed_restart_is_told_apart_from_the_earlier_process() {
    for (keeps_disk, expected) in
        [(true, endings([("finished", 4)])), (false, endings([("crashed", 1), ("finished", 4)]))]
    {
        let fault = Fault::Restart { targets: one(), duration: Duration::from_millis(300), keeps_disk };
        assert_eq!(after(fault, SurvivorOutcome::Finish).endings, expected);
    }
}

#[test]
fn of_two_machines_with_one_identity_one_continues() {
    let outcome = after(Fault::Clone { targets: one() }, SurvivorOutcome::Finish);
    assert!(outcome.endings.get("finished") >= Some(&3), "{:?}", outcome.endings);
}

#[test]
fn garbage_ends_no_run_and_outdated_views_change_nothing() {
    let garbage = after(Fault::Garbage { targets: one(), count: 20 }, SurvivorOutcome::Finish);
    let refusals = garbage.history.peers.iter().flat_map(|lane| &lane.notes);
    assert!(refusals.filter(|(_, note)| note.starts_with("rejected a message of p2")).count() >= 3);
    let stale = after(Fault::StaleViews { targets: one() }, SurvivorOutcome::Finish);
    assert_eq!(stale.history.views.len(), 1, "the view stays");
    for outcome in [garbage, stale] {
        assert_eq!(outcome.endings, endings([("finished", 4)]));
    }
}

#[test]
fn slow_peers_and_lines_slow_the_whole_run() {
    let quiet = Simulation::new(&swarm(), 5).run().time;
    let duration = 3 * SHORT;
    for (fault, at_least) in [
        (Fault::Slow { targets: one(), percent: 400, duration: None }, quiet * 2),
        (Fault::Slow { targets: one(), percent: 400, duration: Some(duration) }, quiet + duration / 2),
        (Fault::Bursts { targets: one(), per_mille: 200, percent: 500 }, quiet * 5 / 4),
        (Fault::Throttle { targets: one(), up: 100_000, down: 100_000, duration: None }, quiet * 5 / 4),
    ] {
        let shown = format!("{fault:?}");
        let outcome = after(fault, SurvivorOutcome::Finish);
        assert!(outcome.time >= at_least, "{shown}: {:?}, {quiet:?} without", outcome.time);
    }
}

#[test]
fn a_peer_with_a_full_disk_trains_like_the_others() {
    let fault = Fault::Disk { targets: Targets::Peers(vec![3]), mode: DiskMode::Full, duration: None };
    let outcome = Simulation::new(&swarm().at(FaultTime::Start(Duration::ZERO), fault), 5).run();
    assert_eq!(outcome.violations, []);
    assert_eq!(outcome.endings, endings([("finished", 4)]));
}

#[test]
fn overlapping_faults_do_not_disturb_each_other() {
    let targets = || Targets::Peers(vec![2, 2]);
    let mut twice = swarm();
    for duration in [3 * SHORT, SHORT] {
        twice = twice.after(3 * SHORT, Fault::Restart { targets: targets(), duration, keeps_disk: true });
    }
    assert_eq!(Simulation::new(&twice, 5).run().violations, []);

    let asleep =
        swarm().at(FaultTime::Start(Duration::ZERO), Fault::Pause { targets: one(), duration: LONG }).at(
            FaultTime::Start(Duration::from_millis(1)),
            Fault::Restart { targets: one(), duration: SHORT, keeps_disk: true },
        );
    let outcome = Simulation::new(&asleep, 5).run();
    assert_eq!(outcome.steps, 100, "who died in its sleep comes back: {:?}", outcome.violations);
}

#[test]
fn the_label_of_a_partition_keeps_the_given_order() {
    let duration = Some(SHORT);
    for (groups, label) in [
        (Groups::Peers(vec![vec![3, 0], vec![1, 2]]), "cut p3 p0 | p1-p2"),
        (Groups::Peers(vec![vec![0, 3, 2], vec![1]]), "cut p0 p3 p2 | p1"),
        (Groups::Split(vec![0, 0]), "cut nobody | nobody"),
    ] {
        let outcome = after(Fault::Partition { groups, duration }, SurvivorOutcome::Finish);
        assert_eq!(outcome.history.cuts[0].label, label);
    }
}

#[test]
fn late_joiners_finish_and_churn_does_not_stop_the_run() {
    let joined = after(Fault::Join { count: 3 }, SurvivorOutcome::Finish);
    assert_eq!(joined.endings, endings([("finished", 7)]));
    let churned = after(Fault::Churn { times: 6, every: Duration::from_secs(2) }, SurvivorOutcome::Finish);
    assert!(churned.history.peers.len() > 4 || churned.endings.contains_key("crashed"));
}

#[test]
fn longer_distances_take_more_time_and_change_no_result() {
    let home = Simulation::new(&swarm().on(Links::home()), 5).run();
    let continents = Simulation::new(&swarm().on(Links::continents()), 5).run();
    let lan = Simulation::new(&swarm(), 5).run();
    assert!(lan.time < home.time && home.time < continents.time);
    assert_eq!((&lan.digest, &home.digest), (&continents.digest, &lan.digest), "the result is the same");
}

/// A paused member admits no peer, and redirects joiners to the members that train.
#[test]
fn a_rejoining_peer_does_not_wait_for_a_sponsor_that_is_cut_off() {
    let scenario = named("waiting-sponsor", Size::Full).unwrap().unwrap();
    for seed in [2, 11, 12, 13] {
        let outcome = Simulation::new(&scenario, seed).run();
        assert_eq!(outcome.violations, [], "seed {seed}");
        let is_member = |span: &&StateSpan| matches!(span.state, PeerState::Member(view) if view > 0);
        let is_in = outcome.history.peers[5].spans.iter().find(is_member).unwrap();
        let cut = outcome.history.cuts[0].clone();
        assert!(
            is_in.from < cut.until,
            "seed {seed}: it is let in after {:?}, and the cut ends after {:?}",
            is_in.from,
            cut.until
        );
    }
}

/// By view: the capacities of its members, by peer.
fn capacities(outcome: &Outcome) -> Vec<Vec<u8>> {
    let views = outcome.history.views.iter();
    views.map(|note| note.view.members.iter().map(|member| member.capacity).collect()).collect()
}

#[test]
fn a_peer_that_cannot_be_dialed_owns_nothing_and_interrupts_no_step() {
    for count in [1, 2, 3] {
        let targets = Targets::Peers((0..count).collect());
        let outcome = after(Fault::Unreachable { targets, duration: Some(LONG) }, SurvivorOutcome::Finish);
        assert_eq!(outcome.endings, endings([("finished", 4)]), "{count}");
        let capacities = capacities(&outcome);
        let owners: Vec<usize> =
            capacities.iter().map(|all| all.iter().filter(|capacity| **capacity > 0).count()).collect();
        assert_eq!((owners.first(), owners.last()), (Some(&4), Some(&4)), "{count}: {owners:?}");
        assert_eq!(owners.iter().min(), Some(&(4 - count)), "{count}: {owners:?}");
        for note in &outcome.history.views {
            if let Recovery::Resume(resume) = &note.view.recovery {
                assert!(!resume.is_interruption(), "{count}: {resume:?}");
            }
            assert!(note.view.moves.restarted.is_empty(), "{count}: no state is lost");
        }
    }
}

#[test]
fn a_member_still_owns_the_chunks_if_no_member_can_be_dialed() {
    let targets = Targets::Peers((0..4).collect());
    let outcome = after(Fault::Unreachable { targets, duration: None }, SurvivorOutcome::Finish);
    assert_eq!(outcome.endings, endings([("finished", 4)]));
    assert!(capacities(&outcome).iter().all(|all| all.iter().any(|capacity| *capacity > 0)));
}

/// Owners and others crash and join while capacities change.
#[test]
fn capacities_change_amid_crashes_and_joiners() {
    for seed in 0..20 {
        let run =
            RunFile::parse("epochs = 20\nbatch = 64\n[optimizer]\nrule = \"adam\"\nrate = 0.01").unwrap();
        let mut scenario = Scenario::new("capacities", 6, Workload::squares(&run, 500, 640).unwrap());
        scenario.sample_time = Duration::from_millis(12);
        scenario.expect.patience = Duration::from_secs(60);
        let any = |count| Targets::Any(count);
        let within = Duration::from_secs(5);
        let scenario = scenario
            .after(Duration::from_secs(2), Fault::Unreachable { targets: any(3), duration: Some(LONG) })
            .after(
                within,
                Fault::Crash {
                    targets: any(1),
                    crash: if seed % 2 == 0 { Crash::Killed } else { Crash::PowerLost },
                },
            )
            .after(within + SHORT, Fault::Join { count: 1 })
            .after(2 * within, Fault::Unreachable { targets: any(2), duration: None })
            .after(2 * within + SHORT, Fault::Crash { targets: any(1), crash: Crash::Killed });
        let outcome = Simulation::new(&scenario, seed).run();
        assert_eq!(outcome.violations, [], "seed {seed}: {:?}", outcome.endings);
    }
}
