//! Loading a scenario, by name or from a file.

use std::path::Path;

use anyhow::{Context, anyhow, bail};
use peergrad_simulations::mutants::Mutant;
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::scenario::file::{ScenarioError, Size, parse};
use peergrad_simulations::scenario::named::{NAMED, named};
use peergrad_simulations::simulation::Simulation;

use crate::ScenarioArguments;

/// The scenario of this name or in this file.
pub(crate) fn scenario(name: &str, size: Size) -> anyhow::Result<Scenario> {
    if let Some(scenario) = named(name, size) {
        return Ok(scenario?);
    }
    let path = Path::new(name);
    if !path.exists() {
        let names: Vec<&str> = NAMED.iter().map(|(name, _)| *name).collect();
        bail!(
            "there is no scenario and no file `{name}`; the scenarios are {}; to write your own, start from `simulate keys`",
            names.join(", ")
        );
    }
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read {name} as a scenario file (TOML text)"))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let stem = path.file_stem().map_or(name.into(), |stem| stem.to_string_lossy());
    parse(&stem, &text, folder, size).map_err(|error| match error {
        ScenarioError::Toml(_) => anyhow!("{name}: {error}\n`simulate keys` explains every key"),
        error => anyhow!("{name}: {error}"),
    })
}

impl ScenarioArguments {
    /// The scenario that the arguments name.
    pub(crate) fn scenario(&self) -> anyhow::Result<Scenario> {
        let size = if self.small { Size::Sweep } else { Size::Full };
        let mut scenario = scenario(&self.scenario, size)?;
        if let Some(peers) = self.peers {
            scenario = scenario.with_peers(peers)?;
        }
        Ok(scenario)
    }

    /// The run that the arguments describe.
    pub(crate) fn simulation(&self, scenario: &Scenario) -> anyhow::Result<Simulation> {
        let Some(name) = &self.mutant else { return Ok(Simulation::new(scenario, self.seed)) };
        let Some(mutant) = Mutant::named(name) else {
            bail!("there is no planted bug `{name}`; `simulate mutants` lists them");
        };
        Ok(Simulation::with_mutant(scenario, self.seed, mutant))
    }

    /// The command that repeats the run.
    pub(crate) fn command(&self, verb: &str) -> String {
        let mut command = format!("simulate {verb} {} --seed {}", self.scenario, self.seed);
        if let Some(peers) = self.peers {
            command += &format!(" --peers {peers}");
        }
        if self.small {
            command += " --small";
        }
        if let Some(mutant) = &self.mutant {
            command += &format!(" --mutant {mutant}");
        }
        command
    }
}
