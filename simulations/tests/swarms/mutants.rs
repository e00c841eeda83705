//! Every planted bug is noticed by its invariant within two hundred seeds, and again in a replay; without the bug the same scenario and
//! seed violate no invariant.

use peergrad_simulations::mutants::MUTANTS;
use peergrad_simulations::scenario::file::Size;
use peergrad_simulations::scenario::named::named;
use peergrad_simulations::simulation::{Outcome, Simulation};

#[test]
fn every_planted_bug_is_caught_by_its_invariant() {
    for mutant in MUTANTS {
        let scenario = named(mutant.scenario, Size::Sweep).unwrap().unwrap();
        let run = |seed| Simulation::with_mutant(&scenario, seed, mutant).run();
        let is_caught =
            |outcome: &Outcome| outcome.violations.iter().any(|v| v.invariant == mutant.invariant);
        let seed = (0..200).find(|&seed| is_caught(&run(seed)));
        let seed = seed.unwrap_or_else(|| panic!("{} was missed by {}", mutant.name, mutant.invariant));
        assert!(is_caught(&run(seed)), "{} is caught again when replayed", mutant.name);
        let clean = Simulation::new(&scenario, seed).run();
        assert_eq!(clean.violations, [], "{} without {}", mutant.scenario, mutant.name);
    }
}
