//! The named scenarios keep every law, oracle and expectation with many seeds, in their small size.

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
