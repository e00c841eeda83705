//! The named scenarios violate no invariant, oracle or expectation with a few seeds, in their small size.

use peergrad_simulations::invariants::Violation;
use peergrad_simulations::scenario::file::Size;
use peergrad_simulations::scenario::named::{NAMED, named};
use peergrad_simulations::simulation::Simulation;

/// With assertions, which a release build leaves out. `simulate sweep` runs as many seeds as one likes, without them.
#[test]
#[expect(clippy::disallowed_methods, reason = "each run is alone on its thread")]
fn named_scenarios_violate_no_invariant() {
    std::thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || {
                for (name, _) in NAMED {
                    assert_eq!(violations(name, seed), [], "simulate replay {name} --small --seed {seed}");
                }
            });
        }
    });
}

/// The same with contributions in parts. Segments are so short that parts have some, and so long that shards still have few of them.
#[test]
#[expect(clippy::disallowed_methods, reason = "each run is alone on its thread")]
fn named_scenarios_violate_no_invariant_with_contributions_in_parts() {
    std::thread::scope(|scope| {
        for first in 0..2 {
            scope.spawn(move || {
                for (name, _) in NAMED.iter().skip(first).step_by(2) {
                    let mut scenario = named(name, Size::Sweep).unwrap().unwrap();
                    if !scenario.workload.is_sync() {
                        continue;
                    }
                    scenario.workload = scenario.workload.in_parts();
                    let elements = &mut scenario.workload.loaded.config.segment_elements;
                    *elements = 256.min(*elements);
                    let violations = Simulation::new(&scenario, 7).run().violations;
                    assert_eq!(violations, [], "{name}");
                }
            });
        }
    });
}

fn violations(name: &str, seed: u64) -> Vec<Violation> {
    let scenario = named(name, Size::Sweep).expect("it can be read").expect("it exists");
    Simulation::new(&scenario, seed).run().violations
}

/// Seeds that have found a bug, which is fixed and must not return.
const FOUND: [(&str, u64); 10] = [
    // A peer's own request, delayed by a cut, was taken for that of a copy of its identity.
    ("flapping-member", 1687),
    // A peer waited for admission until all members that it knew had crashed.
    ("outer", 1961),
    // Two members of one branch told two members of the other different things on which branch yields: both did.
    ("halves", 1),
    // A state had had more updates than its branch had steps, since a branch with more steps was merged into it.
    ("flapping-apart", 11),
    // The member that was to report the merge of a branch crashed, and no other member reported it.
    ("merge-counted", 252_458_818),
    // A branch that yielded got another coordinator from the peers it admitted, and that one yielded to the other branch in turn.
    ("merge-three", 300_087),
    // The last of members that removed each other stayed, as it should, but left once another peer had joined, and came back.
    ("orders", 7264),
    // Not in the node: a promise that had waited for the disk was sent after the acceptance that followed it, which was called a violation.
    ("trouble", 3819),
    // Not in the node: a member had a wrong value from a sender that the next view removed. A checker of the order of commits compared
    // parameters, too.
    ("wrong-values", 97_291_606),
    // A heartbeat of an earlier view, overtaken by segments of the next one, made a member drop them.
    ("long-lines", 57_881_011),
];

#[test]
fn seeds_that_once_found_a_bug_find_no_violation() {
    for (name, seed) in FOUND {
        assert_eq!(violations(name, seed), [], "simulate replay {name} --small --seed {seed}");
    }
}
