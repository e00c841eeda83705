//! Batches are divided by measured speed: a machine that computes slowly gets fewer samples, and steps take little longer for it.

use std::time::Duration;

use peergrad_config::specification::RunFile;
use peergrad_core::io::Event;
use peergrad_protocol::Instant;
use peergrad_simulations::host::HostId;
use peergrad_simulations::oracles::plain::PLAIN;
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::workload::Workload;

use crate::common::assert_nobody_is_blamed;

const PEERS: usize = 8;
const SAMPLES: u32 = 2048;
/// Samples of each member's equal part.
const PART: u64 = 32;

/// Peers that train for so many epochs of eight steps, and compute a sample in this time.
fn simulation(epochs: u32, sync: &str, sample_time: Duration) -> Simulation {
    let batch = PART * PEERS as u64;
    let text = format!(
        "epochs = {epochs}\nbatch = {batch}\n[optimizer]\nrule = \"sgd\"\nrate = 0.01\n[sync]\n{sync}"
    );
    let workload = Workload::squares(&RunFile::parse(&text).unwrap(), 1000, SAMPLES).unwrap();
    let mut scenario = Scenario::new("dealing", PEERS, workload);
    scenario.sample_time = sample_time;
    Simulation::new(&scenario, 5)
}

/// Runs to the end; returns when each step was committed at peer 0.
fn run(
    mut simulation: Simulation,
    has_plain_losses: bool,
    mut change: impl FnMut(&mut Simulation),
) -> Vec<Instant> {
    while simulation.tick() {
        change(&mut simulation);
    }
    assert_nobody_is_blamed(&simulation.cluster);
    let ends = simulation.cluster.events().iter();
    let committed = ends.filter(|(_, host, event)| *host == HostId(0) && is_commit(event));
    let times = committed.map(|(at, _, _)| *at).collect();
    let outcome = simulation.finish();
    assert_eq!(outcome.violations, []);
    assert_eq!(outcome.checked.contains(&PLAIN), has_plain_losses);
    times
}

fn is_commit(event: &Event) -> bool {
    matches!(event, Event::Committed(_))
}

/// The mean time of a step, from the one that ended last before `from` to the last one before `until`.
fn step_time(commits: &[Instant], from: Duration, until: Duration) -> Duration {
    let at = |time: Duration| Instant(0).after(time);
    let within: Vec<Instant> =
        commits.iter().copied().filter(|commit| (at(from)..at(until)).contains(commit)).collect();
    let [first, .., last] = within[..] else { panic!("steps were committed") };
    last.since(first) / (within.len() - 1) as u32
}

fn slow_down(simulation: &mut Simulation, host: HostId, percent: u32) {
    simulation.cluster.setup_mut(host).compute_model.slowness_percent = percent;
}

/// How many times longer late steps take with one machine that is three times slower than with eight equal ones that are, together, as fast.
fn cost_of_a_slow_machine(sync: &str, has_plain_losses: bool) -> f64 {
    let sample_time = Duration::from_millis(4);
    let equal = run(simulation(40, sync, sample_time * 24 / 22), has_plain_losses, |_| {});
    let unlike = run(simulation(40, sync, sample_time), has_plain_losses, |simulation| {
        slow_down(simulation, HostId(3), 300)
    });
    let late = |commits: &[Instant]| {
        let last = commits.last().expect("steps were committed").since(Instant(0));
        step_time(commits, last / 2, last).as_secs_f64()
    };
    let ratio = late(&unlike) / late(&equal);
    println!("{sync}: {ratio:.3}");
    ratio
}

#[test]
fn one_machine_that_is_three_times_slower_costs_little() {
    // Only synchronous steps have the losses of the plain loop.
    assert!(cost_of_a_slow_machine("topology = \"ring\"", true) < 1.25);
    assert!(cost_of_a_slow_machine("kind = \"backup-workers\"", false) < 1.25);
    assert!(cost_of_a_slow_machine("kind = \"local\"\nlocal_steps = 4", false) < 1.25);
    assert!(cost_of_a_slow_machine("dealing = \"even\"", true) > 2.0, "without it, all wait");
}

/// Rounds of a second, while all machines become three times slower and then one of them fast again.
#[test]
fn rounds_take_the_time_that_the_run_asks_for() {
    let text = "epochs = 3\nbatch = 256\n[optimizer]\nrule = \"sgd\"\nrate = 0.01\n\
                [sync]\nkind = \"diloco\"\nround_seconds = 1";
    let workload = Workload::squares(&RunFile::parse(text).unwrap(), 1000, 100_000).unwrap();
    let mut scenario = Scenario::new("timed rounds", PEERS, workload);
    scenario.sample_time = Duration::from_millis(4);
    // At the end, each peer evaluates all samples.
    scenario.expect.patience = Duration::from_secs(1500);
    let mut views = 0;
    let commits = run(Simulation::new(&scenario, 5), false, |simulation| {
        let now = simulation.cluster.now().since(Instant(0)).as_secs();
        for index in 0..PEERS as u32 {
            let is_fast = now < 50 || (now > 100 && index == 3);
            slow_down(simulation, HostId(index), if is_fast { 100 } else { 300 });
        }
        views = simulation.cluster.history().views.len();
    });
    for (from, until) in [(20, 50), (80, 100), (130, 200)] {
        let [from, until] = [from, until].map(Duration::from_secs);
        let time = step_time(&commits, from, until).as_secs_f64();
        assert!((0.85..1.25).contains(&time), "{time} s from {from:?} on");
    }
    assert!(views <= 8, "{views}: the speeds are steady but for two changes");
}

#[test]
fn speeds_that_change_each_minute_are_followed() {
    let mut minute = u64::MAX;
    let commits = run(simulation(300, "topology = \"ring\"", Duration::from_millis(4)), true, |simulation| {
        let now = simulation.cluster.now().since(Instant(0)).as_secs() / 60;
        if now != minute {
            minute = now;
            for index in 0..PEERS as u32 {
                let percent = if u64::from(index) == now % PEERS as u64 { 300 } else { 100 };
                slow_down(simulation, HostId(index), percent);
            }
        }
    });
    let ideal = Duration::from_millis(4 * PART) * 24 / 22;
    let minutes = commits.last().expect("steps were committed").since(Instant(0)).as_secs() / 60;
    assert!(minutes >= 4, "{minutes}");
    for minute in 0..minutes {
        let from = Duration::from_secs(60 * minute + 20);
        let ratio =
            step_time(&commits, from, from + Duration::from_secs(40)).as_secs_f64() / ideal.as_secs_f64();
        assert!(ratio < 1.25, "minute {minute}: {ratio}");
    }
}

#[test]
fn a_machine_that_is_fast_again_gets_its_part_back() {
    let host = HostId(3);
    let simulation = simulation(120, "topology = \"ring\"", Duration::from_millis(4));
    let mut speeds = Vec::new();
    run(simulation, true, |simulation| {
        let percent = if simulation.cluster.now().since(Instant(0)).as_secs() < 20 { 1000 } else { 100 };
        slow_down(simulation, host, percent);
        let views = &simulation.cluster.history().views;
        speeds = views.last().map(|note| note.view.speeds.clone()).unwrap_or_default();
    });
    let (least, most) = (speeds.iter().min(), speeds.iter().max());
    let ratio = f64::from(*most.expect("speeds are known")) / f64::from(*least.expect("speeds are known"));
    assert!(ratio < 1.5, "{speeds:?}");
}
