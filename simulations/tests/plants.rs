//! Every planted bug is noticed by its law within two hundred seeds, and again when it is replayed; without it the same
//! scenario and seed keep every law.

use peergrad_simulations::plants::PLANTS;
use peergrad_simulations::scenario::file::Size;
use peergrad_simulations::scenario::named::named;
use peergrad_simulations::simulation::{Outcome, Simulation};

#[test]
fn every_planted_bug_is_caught_by_its_law() {
    for plant in PLANTS {
        let scenario = named(plant.scenario, Size::Sweep).unwrap().unwrap();
        let run = |seed| Simulation::planted(&scenario, seed, plant).run();
        let is_caught = |outcome: &Outcome| outcome.violations.iter().any(|v| v.law == plant.law);
        let seed = (0..200).find(|&seed| is_caught(&run(seed)));
        let seed = seed.unwrap_or_else(|| panic!("{} was missed by {}", plant.name, plant.law));
        assert!(is_caught(&run(seed)), "{} is caught again when replayed", plant.name);
        let clean = Simulation::new(&scenario, seed).run();
        assert_eq!(clean.violations, [], "{} without {}", plant.scenario, plant.name);
    }
}
