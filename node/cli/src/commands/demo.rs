//! The demo: a swarm of real peers on one machine; one of them is killed, and another comes late.
//!
//! The peers are those of [`swarm`](super::swarm), as anybody's own. What goes wrong is in [`faults`], what is shown at the
//! end in [`results`].

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use peergrad_config::specification::init::demo_run_file;

use super::progress::Screen;
use super::swarm::{LineChannel, ScratchDirectory, Swarm, SwarmConfig, SwarmOutput};
use faults::DemoFaults;
use results::Results;

mod faults;
mod results;

#[derive(Args)]
pub(super) struct DemoArguments {
    /// Peers to start
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    peers: u32,
    /// Nobody is killed, and nobody comes late
    #[arg(long)]
    calm: bool,
    /// The results as JSON, one object a line, on standard output
    #[arg(long)]
    json: bool,
}

pub(super) fn demo(arguments: &DemoArguments) -> anyhow::Result<ExitCode> {
    let channel = LineChannel::open();
    let scratch = ScratchDirectory::create("demo")?;
    let run_file = scratch.path().join("run.toml");
    std::fs::write(&run_file, demo_run_file()).context("cannot write the demo's run.toml")?;
    let screen = Screen::new();
    if !arguments.json {
        let noun = if arguments.peers == 1 { "peer learns" } else { "peers learn" };
        screen.say(&format!("{} {noun} to read handwritten digits on this machine", arguments.peers));
    }
    let output = SwarmOutput { screen, is_json: arguments.json };
    let mut faults = DemoFaults::planned(arguments.peers as usize, arguments.calm, &output);
    let config = SwarmConfig {
        name: "the demo".to_owned(),
        program: &[],
        run_file: &run_file,
        seed: None,
        data: None,
        peers: arguments.peers,
        folder: scratch.path(),
    };
    let mut swarm = Swarm::start(config, output, &channel)?;
    while swarm.advance()? {
        faults.advance(&mut swarm)?;
    }
    Results { swarm: &swarm, faults: &faults }.tell()
}
