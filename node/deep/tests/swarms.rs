//! Deep networks in simulated swarms: every member computes what one process would, whatever happens to the others.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the answer")]

use std::sync::Arc;
use std::time::Duration;

use peergrad_config::specification::RunFile;
use peergrad_config::specification::run_file::DataSection;
use peergrad_deep::Burn;
use peergrad_models::data::embedded::{DIGITS, embedded};
use peergrad_simulations::host::Crash;
use peergrad_simulations::oracles::plain::PLAIN;
use peergrad_simulations::oracles::replay::REPLAY;
use peergrad_simulations::scenario::{Fault, FaultTime, Scenario, Targets};
use peergrad_simulations::simulation::{Outcome, Simulation};
use peergrad_simulations::workload::Workload;

fn digits(settings: &str) -> Workload {
    let run = RunFile::parse(&format!("epochs = 1\nbatch = 96\nseed = 3\n{settings}")).unwrap();
    let run = RunFile { data: run.data.clone().or_else(|| Some(DataSection::new(DIGITS))), ..run };
    let deep = Some(Arc::new(Burn::cpu()) as _);
    Workload::deep(&run, DIGITS, embedded(DIGITS).unwrap(), &deep).unwrap()
}

const SMALL: &str = "[model]\nkind = \"cnn\"\nlayers = [\"conv 4 3\", \"relu\", \"pool 2\", \"dropout 0.1\"]\n[optimizer]\nrate = 0.01\n";

fn disturbed(workload: &Workload, seed: u64) -> Outcome {
    let crash = Fault::Crash { targets: Targets::Any(1), crash: Crash::Killed };
    let mut scenario = Scenario::new("deep", 4, workload.clone())
        .at(FaultTime::Step(4), crash)
        .at(FaultTime::Step(8), Fault::Join { count: 1 });
    scenario.sample_time = Duration::from_micros(200);
    scenario.faults[0].within = Duration::from_millis(4);
    scenario.expect.restarted = Some(false);
    Simulation::new(&scenario, seed).run()
}

/// Seeds of a small convolutional network with a crash and a joiner: `PEERGRAD_DEEP_SEEDS=200` tries more.
#[test]
fn a_small_network_survives_a_crash_and_a_joiner() {
    let count = std::env::var("PEERGRAD_DEEP_SEEDS").map_or(6, |text| text.parse().unwrap());
    let workload = digits(SMALL);
    for seed in 0..count {
        let outcome = disturbed(&workload, seed);
        assert_eq!(outcome.violations, [], "seed {seed}");
        assert!(
            outcome.checked.contains(&REPLAY) && outcome.checked.contains(&PLAIN),
            "{:?}",
            outcome.checked
        );
        assert_eq!((outcome.samples_lost, outcome.samples_repeated()), (0, 0), "seed {seed}");
    }
}

#[test]
fn a_small_transformer_survives_a_crash_and_a_joiner() {
    let text = "[data]\nfile = \"book.txt\"\n[model]\nkind = \"gpt\"\nlayers = 1\nwidth = 16\nheads = 2\ncontext = 8\ndropout = 0.1";
    let run = RunFile::parse(&format!(
        "epochs = 2\nbatch = 30\nseed = 3\n{text}\n[optimizer]\nrate = 0.01\nclip_norm = 1.0"
    ))
    .unwrap();
    let book = "It is a truth universally acknowledged. ".repeat(60);
    let workload =
        Workload::deep(&run, "book.txt", book.as_bytes(), &Some(Arc::new(Burn::cpu()) as _)).unwrap();
    for seed in 0..4 {
        let outcome = disturbed(&workload, seed);
        assert_eq!(outcome.violations, [], "seed {seed}");
        assert!(outcome.plain_loss_error.unwrap() < 1e-5, "seed {seed}: {:?}", outcome.plain_loss_error);
    }
}

/// Parts of the batch are computed at different members, and the losses are those of one loop, with statistics of the batch too.
#[test]
fn losses_are_those_of_one_process() {
    // Not with Adam: a bias before a batch norm has no slope but that of rounding, which Adam makes as large as any other.
    let normed =
        "[model]\nkind = \"resnet\"\ndepth = 8\nnorm = \"batch\"\n[optimizer]\nrule = \"momentum\"\nrate = 0.05\n".to_owned();
    let dropped = "[data]\nfile = \"digits\"\nchanges = [\"shift 1\"]\n";
    for settings in [SMALL.to_owned(), format!("{SMALL}{dropped}"), normed] {
        let workload = digits(&settings);
        for peers in [1, 2, 4] {
            let outcome = Simulation::new(&Scenario::new("deep", peers, workload.clone()), 1).run();
            assert_eq!(outcome.violations, []);
            let error = outcome.plain_loss_error.unwrap();
            assert!(error < 1e-5, "{peers} peers: {error}");
        }
    }
}
