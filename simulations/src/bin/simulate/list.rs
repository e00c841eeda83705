//! `simulate list` and `simulate show`: what there is to run.

use std::process::ExitCode;

use anyhow::bail;
use peergrad_simulations::scenario::file::Size;
use peergrad_simulations::scenario::named::{NAMED, named};

/// Names, sizes and what each shows.
pub(crate) fn list() -> anyhow::Result<ExitCode> {
    for (name, _) in NAMED {
        let Some(scenario) = named(name, Size::Full) else { continue };
        let scenario = scenario?;
        println!("{name:16} {:>5} peers  {}", scenario.peers, scenario.about);
    }
    Ok(ExitCode::SUCCESS)
}

/// A scenario's file.
pub(crate) fn show(name: &str) -> anyhow::Result<ExitCode> {
    let Some((_, text)) = NAMED.iter().find(|(known, _)| *known == name) else {
        bail!("there is no scenario `{name}`; `simulate list` names them");
    };
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}
