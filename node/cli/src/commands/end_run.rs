//! `peer end-run`: asks a member on this machine to end the run at all peers, before its epochs are over.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::local_peer::{block_on, running_member};
use crate::terminal::print_line;
use peergrad_embed::status::{AdminCommand, connect_directory};

#[derive(Args)]
pub(super) struct EndRunArguments {
    /// The data directory of the member to ask; needed if several run on this machine
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn end_run(arguments: &EndRunArguments) -> anyhow::Result<ExitCode> {
    block_on(async {
        let directory = running_member(arguments.dir.as_deref())?;
        let mut connection = connect_directory(&directory).await?;
        connection.order(AdminCommand::EndRun).await?;
        print_line(
            "the run ends soon: after the next step, or with tables once the workers have computed the samples that they hold. Every peer saves the same model",
        );
        Ok(ExitCode::SUCCESS)
    })
}
