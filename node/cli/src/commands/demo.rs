//! `peer demo`: a swarm of real peers on one machine, of which one is killed and another joins late.
//!
//! [`swarm`](super::swarm) starts the peers like any others. [`faults`] plans the kill and the late joiner, and [`results`] prints
//! the tables at the end.

use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, ValueEnum};
use peergrad_config::specification::DeepBackend;
use peergrad_config::specification::deep::check_backend;
use peergrad_config::specification::init::{demo_pictures_run_file, demo_run_file};

use super::progress::Screen;
use super::scratch_directory::ScratchDirectory;
use super::swarm::{LineChannel, Swarm, SwarmConfig, SwarmOutput};
use crate::terminal::OutputFormat;
use faults::DemoFaults;
use results::Results;

mod faults;
mod results;

#[derive(Args)]
pub(super) struct DemoArguments {
    /// What to train: `mlp`, a network with one hidden layer; or `cnn`, a convolutional network
    #[arg(value_name = "MODEL", default_value = "mlp")]
    model: DemoModel,
    /// How many peers to start
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    peers: u32,
    /// Disable the kill and the late joiner
    #[arg(long)]
    calm: bool,
    /// Print the results as JSON on standard output, one object a line
    #[arg(long)]
    json: bool,
}

/// What the demo trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DemoModel {
    /// A network with one hidden layer.
    Mlp,
    /// A convolutional network.
    Cnn,
}

pub(super) fn demo(arguments: &DemoArguments, deep: &DeepBackend) -> anyhow::Result<ExitCode> {
    let settings = match arguments.model {
        DemoModel::Mlp => demo_run_file(),
        DemoModel::Cnn => {
            check_backend(deep)?;
            demo_pictures_run_file()
        }
    };
    let channel = LineChannel::open();
    let scratch = ScratchDirectory::create("demo")?;
    let run_file = scratch.path().join("run.toml");
    std::fs::write(&run_file, settings).context("cannot write the demo's run.toml")?;
    let screen = Screen::new();
    let format = OutputFormat::of_flag(arguments.json);
    if !format.is_json() {
        let noun = if arguments.peers == 1 { "peer" } else { "peers" };
        screen
            .say(&format!("training on handwritten digits with {} {noun} on this machine", arguments.peers));
    }
    let output = SwarmOutput { screen, format };
    let mut faults = if arguments.calm {
        DemoFaults::none()
    } else {
        DemoFaults::planned(arguments.peers as usize, &output)
    };
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
    Results { swarm: &swarm, faults: &faults }.print()
}
