//! `simulate mutants`: a test of the invariants. Each planted bug must be caught by the invariant that it violates.

use std::ops::Range;
use std::process::ExitCode;

use peergrad_simulations::invariants::Violation;
use peergrad_simulations::mutants::{MUTANTS, Mutant};
use peergrad_simulations::scenario::file::Size;
use peergrad_simulations::simulation::Simulation;

use crate::{MutantsArguments, source};

use crate::say::say;

/// Runs every mutant with one seed after another, until it is caught.
pub(crate) fn mutants(arguments: &MutantsArguments) -> anyhow::Result<ExitCode> {
    let mut missed = 0;
    for mutant in MUTANTS {
        say!("{:20} {}", mutant.name, mutant.about);
        match catch(mutant, &arguments.seeds)? {
            Some((seed, violation)) => {
                say!("  caught at seed {seed} by {}: {}", violation.invariant, violation.message);
                say!("  simulate replay {} --small --seed {seed} --mutant {}", mutant.scenario, mutant.name);
            }
            None => {
                missed += 1;
                say!("  MISSED by {} with all seeds of {:?}", mutant.invariant, arguments.seeds);
            }
        }
    }
    say!("{} of {} planted bugs were caught", MUTANTS.len() - missed, MUTANTS.len());
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The first seed with which the mutant's invariant catches it.
fn catch(mutant: &Mutant, seeds: &Range<u64>) -> anyhow::Result<Option<(u64, Violation)>> {
    let scenario = source::scenario(mutant.scenario, Size::Sweep)?;
    for seed in seeds.clone() {
        let violations = Simulation::with_mutant(&scenario, seed, mutant).run().violations;
        if let Some(violation) =
            violations.into_iter().find(|violation| violation.invariant == mutant.invariant)
        {
            return Ok(Some((seed, violation)));
        }
    }
    Ok(None)
}
