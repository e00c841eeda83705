//! `simulate plants`: is the referee awake? Every planted bug must be noticed, by the law that is there for it.

use std::ops::Range;
use std::process::ExitCode;

use peergrad_simulations::laws::Violation;
use peergrad_simulations::plants::{PLANTS, Plant};
use peergrad_simulations::scenario::file::Size;
use peergrad_simulations::simulation::Simulation;

use crate::{PlantsArguments, source};

use crate::say::say;

/// Tries every plant, seed after seed, until it is noticed.
pub(crate) fn plants(arguments: &PlantsArguments) -> anyhow::Result<ExitCode> {
    let mut missed = 0;
    for plant in PLANTS {
        say!("{:20} {}", plant.name, plant.about);
        match catch(plant, &arguments.seeds)? {
            Some((seed, violation)) => {
                say!("  caught at seed {seed} by {}: {}", violation.law, violation.words);
                say!("  simulate replay {} --small --seed {seed} --plant {}", plant.scenario, plant.name);
            }
            None => {
                missed += 1;
                say!("  MISSED by {} with seeds {:?}", plant.law, arguments.seeds);
            }
        }
    }
    say!("{} of {} planted bugs were caught", PLANTS.len() - missed, PLANTS.len());
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The first seed with which its law notices it.
fn catch(plant: &Plant, seeds: &Range<u64>) -> anyhow::Result<Option<(u64, Violation)>> {
    let scenario = source::scenario(plant.scenario, Size::Sweep)?;
    for seed in seeds.clone() {
        let violations = Simulation::planted(&scenario, seed, plant).run().violations;
        if let Some(violation) = violations.into_iter().find(|violation| violation.law == plant.law) {
            return Ok(Some((seed, violation)));
        }
    }
    Ok(None)
}
