//! Branches that meet again after a partition and other faults.

use std::path::Path;

use peergrad_simulations::scenario::file::{Size, parse};
use peergrad_simulations::scenario::named::named;
use peergrad_simulations::simulation::Simulation;

/// After a power cut all go back to checkpoints, and then a partition separates them: neither part may believe that it already has what the
/// other one has trained, though both have heard of views with more steps.
#[test]
fn samples_trained_after_a_power_cut_are_merged() {
    let text = r#"
about = "power cut, restore from an older checkpoint, then a short cut"
peers = 5
[links]
preset = "home"
[task]
kind = "squares"
sample_time = "1ms"
[run]
epochs = 100
batch = 64
[run.optimizer]
rule = "adam"
rate = 0.01
[run.checkpoints]
seconds = 9
[run.partition]
policy = "merge"
[[faults]]
at = "15s"
kind = "restart"
peers = [4]
for = "300ms"
[[faults]]
at = "17500ms"
kind = "blackout"
for = "500ms"
every = "10ms"
[[faults]]
at = "21s"
kind = "partition"
split = [3, 2]
for = "4s"
[expect]
merged = 1
"#;
    let scenario = parse("power-cut-then-apart", text, Path::new("."), Size::Full).unwrap();
    for seed in 1..4 {
        let outcome = Simulation::new(&scenario, seed).run();
        assert_eq!(outcome.violations, [], "seed {seed}");
    }
}

/// The report of a merge has the numbers of the run, under both policies.
#[test]
fn the_report_of_a_healed_partition_says_which_steps_were_kept() {
    let merge = named("merge", Size::Sweep).unwrap().unwrap();
    let history = Simulation::new(&merge, 7).run().history;
    let words = history.branch_end_sentences();
    let [sentence] = &words[..] else { panic!("{words:?}") };
    for part in ["part B was merged into part A", "of both together", "parameters differed by"] {
        assert!(sentence.contains(part), "{sentence}");
    }
    let winner = named("winner", Size::Sweep).unwrap().unwrap();
    let history = Simulation::new(&winner, 3).run().history;
    let words = history.branch_end_sentences();
    assert!(words.len() == 1 && words[0].contains("that it had trained alone were discarded"), "{words:?}");
    // A joiner's share is reported, though it owns nothing when its view begins.
    let last = history.views.last().unwrap();
    assert!(last.shards.len() == 5 && last.shards.values().all(|share| *share > 0), "{:?}", last.shards);
}
