//! The named scenarios keep every invariant, oracle and expectation with many seeds, in their small size.

use peergrad_simulations::scenario::file::Size;
use peergrad_simulations::scenario::named::{NAMED, named};
use peergrad_simulations::simulation::Simulation;

#[test]
fn named_scenarios_keep_every_law() {
    for (name, _) in NAMED {
        let scenario = named(name, Size::Sweep).unwrap().unwrap();
        for seed in 0..20 {
            let outcome = Simulation::new(&scenario, seed).run();
            assert_eq!(outcome.violations, [], "simulate replay {name} --small --seed {seed}");
        }
    }
}

/// Seeds that have found something: what was wrong is mended, and is not to come back.
const FOUND: [(&str, u64); 6] = [
    // A peer's own request, held up by a cut, was taken for that of a copy of its identity.
    ("flapping-member", 1687),
    // A peer waited to be let in until all members that it knew of had crashed.
    ("outer", 1961),
    // Two members of one branch told two of the other different things about which of them yields: both did.
    ("halves", 1),
    // A state had had more updates than its branch had steps, since another one that was further was merged into it.
    ("flapping-apart", 11),
    // Who was to say that a branch was merged crashed, and nobody else said so.
    ("merge-counted", 252_458_818),
    // A branch that yielded got another coordinator by those it let in, and that one yielded to the other branch in turn.
    ("merge-three", 300_087),
];

#[test]
fn seeds_that_have_found_something_find_nothing_any_more() {
    for (name, seed) in FOUND {
        let scenario = named(name, Size::Sweep).unwrap().unwrap();
        let outcome = Simulation::new(&scenario, seed).run();
        assert_eq!(outcome.violations, [], "simulate replay {name} --small --seed {seed}");
    }
}
