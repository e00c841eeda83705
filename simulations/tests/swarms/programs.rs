//! Programs other than the synchronous one: what they compute, what they send, and that members end with one model.

use std::path::Path;
use std::sync::Arc;

use peergrad_config::specification::RunFile;
use peergrad_core::io::Failure;
use peergrad_models::task::Task;
use peergrad_simulations::compare::measure;
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::scenario::file::{Size, parse};
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::task::AlteredTask;
use peergrad_simulations::workload::Workload;

use crate::common::{
    assert_nobody_is_blamed, committed, ended, found, join, lan, parameters, run_out, setup,
};

/// Integers as gradients, which do not depend on the parameters; `peers` members get equal parts of every batch.
fn integers(peers: usize, sync: &str) -> Simulation {
    let batch = 16 * peers;
    let text = format!(
        "epochs = 3\nbatch = {batch}\n[optimizer]\nrule = \"sgd\"\nrate = 0.125\n[sync]\nsegment_kib = 1\n{sync}"
    );
    let run = RunFile::parse(&text).expect("it is a run file");
    let workload = Workload::integers(&run, 3000, 12 * batch as u32).expect("all of it is allowed");
    simulated(peers, workload)
}

/// The digits, with Adam.
fn digits(peers: usize, epochs: u64, sync: &str) -> Simulation {
    let text = format!("epochs = {epochs}\nbatch = 64\n[sync]\n{sync}");
    let run = RunFile::parse(&text).expect("it is a run file");
    simulated(peers, Workload::digits(&run).expect("all of it is allowed"))
}

fn simulated(peers: usize, workload: Workload) -> Simulation {
    let scenario = Scenario::new("programs", peers, workload);
    let mut simulation = Simulation::new(&scenario, 5);
    while simulation.tick() {}
    assert_nobody_is_blamed(&simulation.cluster);
    simulation
}

fn sent(simulation: &Simulation) -> u64 {
    simulation.cluster.history().traffic.total
}

/// If gradients do not depend on the parameters, the mean over all members is what the synchronous program computes, whichever groups
/// average meanwhile: a mean within a group changes no total.
#[test]
fn averaging_in_groups_preserves_the_total() {
    for peers in [2, 7, 13, 16] {
        let reference = parameters(&integers(peers, ""));
        for groups in ["", "group = 3", "group = 4\ntopology = \"direct\"", "shuffle = false\ngroup = 4"] {
            let found = parameters(&integers(peers, &format!("kind = \"ds-sync\"\n{groups}")));
            for (found, reference) in found.iter().zip(&reference) {
                assert!((found - reference).abs() < 1e-5, "{peers} peers, {groups}: {found} and {reference}");
            }
        }
    }
}

#[test]
fn a_round_of_local_steps_sends_as_many_bytes_as_one_step() {
    for kind in ["local", "diloco"] {
        let run = |local_steps| {
            let simulation = digits(4, 32, &format!("kind = \"{kind}\"\nlocal_steps = {local_steps}"));
            let host = simulation.cluster.hosts().ids().next().expect("there are peers");
            let rounds = committed(&simulation.cluster, host).len();
            parameters(&simulation);
            (rounds as f64, sent(&simulation) as f64)
        };
        let (every_step, every_step_bytes) = run(1);
        for local_steps in [8, 23] {
            let (rounds, bytes) = run(local_steps);
            let (fewer, less) = (every_step / rounds, every_step_bytes / bytes);
            // Bytes that are not tensors do not fall.
            assert!((fewer / less - 1.0).abs() < 0.2, "{kind} {local_steps}: {fewer} and {less}");
        }
    }
}

/// One member alone computes the same as the synchronous program: its local steps are steps.
#[test]
fn one_member_alone_takes_the_same_steps_under_every_program() {
    let reference = parameters(&digits(1, 3, ""));
    for sync in ["kind = \"ds-sync\"", "kind = \"local\"\nlocal_steps = 1", "kind = \"backup-workers\""] {
        let found = parameters(&digits(1, 3, sync));
        let apart = found
            .iter()
            .zip(&reference)
            .map(|(found, reference)| (found - reference).abs())
            .fold(0.0, f32::max);
        assert!(apart < 1e-5, "{sync}: {apart}");
    }
}

#[test]
fn all_programs_learn_the_digits() {
    for sync in
        ["kind = \"ds-sync\"", "kind = \"local\"\nlocal_steps = 4", "kind = \"diloco\"\nlocal_steps = 4"]
    {
        let simulation = digits(9, 20, sync);
        let host = simulation.cluster.hosts().ids().next().expect("there are peers");
        let state = ended(&simulation.cluster, host).state.as_ref().expect("it has trained");
        let accuracy =
            state.evaluation.and_then(|evaluation| evaluation.accuracy).expect("digits have classes");
        assert!(accuracy > 0.93, "{sync}: {accuracy}");
        assert_eq!(state.left_out, 0);
        assert_eq!(state.samples, 20 * 1438);
    }
}

/// Virtual seconds of a run in which every peer is slow from time to time, and the share of samples that it leaves out.
fn seconds_under_bursts(peers: usize, batch: usize, sync: &str) -> (f64, f64) {
    let text = format!(
        "about = \"bursts\"\npeers = {peers}\n[links]\npreset = \"lan\"\n\
         [task]\nkind = \"squares\"\nparameters = 400\nsamples = {samples}\nsample_time = \"2ms\"\n\
         [run]\nepochs = 10\nbatch = {batch}\n[run.sync]\n{sync}\n\
         [[faults]]\nat_start = \"0s\"\nkind = \"bursts\"\nany = {peers}\nslower = 6\nchance = 0.05\n",
        samples = 10 * batch
    );
    let scenario = parse("bursts", &text, Path::new("."), Size::Full).expect("it is a scenario");
    let course = measure(&scenario, 1);
    assert_eq!(course.outcome.violations, []);
    assert_eq!(
        course.outcome.history.views.len(),
        1,
        "no member had to restart, however early the first step was"
    );
    let end = course.end.expect("it ends");
    let dealt = (10 * 10 * batch) as f64;
    (end.time.as_secs_f64(), 1.0 - end.samples as f64 / dealt)
}

/// Ten members of which eight are waited for, against eight, each member with the same number of samples: as many steps, with at least as
/// many samples.
#[test]
fn backup_workers_absorb_bursts() {
    let (all, _) = seconds_under_bursts(8, 160, "topology = \"direct\"");
    let (most, left_out) = seconds_under_bursts(10, 200, "kind = \"backup-workers\"\nbackups = 2");
    assert!(all > 1.5 * most, "{all} s where all are waited for, {most} s where two are not");
    assert!(left_out > 0.05 && left_out < 0.21, "{left_out}");
}

/// The first owner sleeps, links are replaced, and agreed views are abandoned: its late messages about earlier offers are no offence.
#[test]
fn a_late_choice_of_contributions_is_no_violation() {
    let text = "about = \"late\"\npeers = 3\n[links]\npreset = \"continents\"\n\
         [task]\nkind = \"digits\"\nsample_time = \"20ms\"\n[run]\nepochs = 1\nbatch = 16\n\
         [run.sync]\nkind = \"backup-workers\"\nsegment_kib = 4\n\
         [[faults]]\nkind = \"churn\"\nat = \"1111ms\"\nwithin = \"104ms\"\nevery = \"3s\"\ntimes = 8\n\
         [[faults]]\nkind = \"pause\"\nat = \"3438ms\"\nwithin = \"682ms\"\nany = 1\nfor = \"10423ms\"\n";
    let scenario = parse("late", text, Path::new("."), Size::Full).expect("it is a scenario");
    for seed in 0..20 {
        let outcome = measure(&scenario, seed).outcome;
        assert!(outcome.violations.iter().all(|violation| violation.invariant != "blameless"), "seed {seed}");
    }
}

/// Gradients a thousand times too large, in the wrong direction.
fn lie(task: &dyn Task, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
    let loss = task.gradient(parameters, samples, gradient);
    gradient.iter_mut().for_each(|element| *element *= -1000.0);
    loss
}

/// The final accuracy of sixteen peers that train the digits, `liars` of them with wrong gradients.
fn accuracy_with(liars: usize, sync: &str) -> f64 {
    accuracy_of(sync, |task, index| {
        let is_liar = (1..=liars).contains(&index);
        is_liar.then(|| AlteredTask { task: Arc::clone(task), gradient: Arc::new(lie) })
    })
}

/// The final accuracy of sixteen peers that train the digits, each of which has samples of two classes only, whichever samples it is
/// assigned.
fn accuracy_under_skew(sync: &str) -> f64 {
    accuracy_of(sync, |task, index| {
        let of_its_classes = |class: usize| (class + CLASSES - index % CLASSES) % CLASSES < 2;
        let classes = classes(&**task);
        let samples: Vec<u32> =
            (0..task.sample_count()).filter(|&sample| of_its_classes(classes[sample as usize])).collect();
        let gradient = move |task: &dyn Task, parameters: &[f32], dealt: &[u32], gradient: &mut [f32]| {
            let own: Vec<u32> =
                dealt.iter().map(|&sample| samples[sample as usize % samples.len()]).collect();
            task.gradient(parameters, &own, gradient)
        };
        Some(AlteredTask { task: Arc::clone(task), gradient: Arc::new(gradient) })
    })
}

/// The class of each sample: the only output of the last layer whose gradient is negative.
fn classes(task: &dyn Task) -> Vec<usize> {
    let count = task.manifest().parameter_count();
    let (mut parameters, mut gradient) = (vec![0.0; count], vec![0.0; count]);
    task.initial(1, &mut parameters);
    let class = |sample| {
        task.gradient(&parameters, &[sample], &mut gradient);
        let outputs = &gradient[count - CLASSES..];
        outputs.iter().position(|output| *output < 0.0).expect("it has a class")
    };
    (0..task.sample_count()).map(class).collect()
}

/// Number of digits.
const CLASSES: usize = 10;

/// The final accuracy of sixteen peers that train the digits, each with the task that `altered` makes of its own, if any; 0 if the run
/// diverges.
fn accuracy_of(sync: &str, altered: impl Fn(&Arc<dyn Task>, usize) -> Option<AlteredTask>) -> f64 {
    let text = format!(
        "epochs = 30\nbatch = 256\n[optimizer]\nrule = \"momentum\"\nrate = 0.02\n[sync]\ntopology = \"direct\"\n{sync}"
    );
    let run = RunFile::parse(&text).expect("it is a run file");
    let workload = Workload::digits(&run).expect("all of it is allowed");
    let setup_of = |index| match altered(&workload.loaded.task, index) {
        Some(altered) => setup(workload.loader_of(altered), workload.data.clone()),
        None => setup(workload.loader(), workload.data.clone()),
    };
    let mut cluster = lan(3);
    let founder = found(&mut cluster, 16, setup_of(0));
    for index in 1..16 {
        join(&mut cluster, founder, setup_of(index));
    }
    run_out(&mut cluster);
    let end = ended(&cluster, founder);
    if matches!(end.outcome, Err(Failure::Diverged { .. })) {
        return 0.0;
    }
    let state = end.state.as_ref().expect("it has trained");
    state.evaluation.and_then(|evaluation| evaluation.accuracy).expect("digits have classes")
}

#[test]
fn robust_means_tolerate_wrong_gradients_that_ruin_a_plain_mean() {
    let clean = accuracy_with(0, "");
    assert!(clean > 0.93, "{clean}");
    assert!(accuracy_with(3, "") < 0.5, "a mean believes everybody");
    for sync in ["combine = \"trimmed-mean\"\ntrim = 3", "combine = \"median\""] {
        let robust = accuracy_with(3, sync);
        assert!(robust > clean - 0.02, "{sync}: {robust} where nobody lies: {clean}");
    }
}

/// Robust means leave out rare values, and so a class that few members have.
#[test]
fn robust_means_are_biased_where_members_differ_in_kind() {
    let mean = accuracy_under_skew("");
    let [trimmed, median] =
        ["combine = \"trimmed-mean\"\ntrim = 3", "combine = \"median\""].map(accuracy_under_skew);
    println!("mean {mean:.3}, trimmed {trimmed:.3}, median {median:.3}");
    assert!(mean > 0.93, "every class is somewhere: {mean}");
    assert!(trimmed < mean - 0.02 && median < trimmed, "{trimmed} and {median}, where the mean has {mean}");
}
