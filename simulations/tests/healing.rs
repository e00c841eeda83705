//! Lineages that meet again after more than a cut.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the answer")]

use std::path::Path;

use peergrad_simulations::scenario::file::{Size, parse};
use peergrad_simulations::simulation::Simulation;

/// A power cut takes all back to checkpoints, and then they are cut in two: neither part may think that it has what the other
/// one has come to, though both have heard of views that had trained more.
#[test]
fn what_was_trained_after_a_power_cut_is_merged() {
    let text = r#"
about = "power cut, restore from an older checkpoint, then a short cut"
peers = 5
[links]
preset = "home"
[task]
kind = "squares"
sample_time = "1ms"
[run]
passes = 100
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
