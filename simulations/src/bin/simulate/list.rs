//! `simulate list`, `simulate show` and `simulate keys`: the named scenarios, and the reference of scenario files.

use std::io::Write;
use std::process::ExitCode;

use anyhow::bail;
use peergrad_simulations::scenario::file::{KEYS, Size};
use peergrad_simulations::scenario::named::{NAMED, named};

use crate::say::say;

/// Prints each scenario's name, its size, and what it shows.
pub(crate) fn list() -> anyhow::Result<ExitCode> {
    for (name, _) in NAMED {
        let Some(scenario) = named(name, Size::Full) else { continue };
        let scenario = scenario?;
        say!("{name:16} {:>5} peers  {}", scenario.peers, scenario.about);
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a scenario's file.
pub(crate) fn show(name: &str) -> anyhow::Result<ExitCode> {
    let Some((_, text)) = NAMED.iter().find(|(known, _)| *known == name) else {
        bail!("there is no scenario `{name}`; `simulate list` lists them");
    };
    write!(std::io::stdout(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the reference of scenario files.
pub(crate) fn keys() -> anyhow::Result<ExitCode> {
    write!(std::io::stdout(), "{KEYS}")?;
    Ok(ExitCode::SUCCESS)
}
