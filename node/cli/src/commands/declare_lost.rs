//! `peer declare-lost`: tells a waiting peer on this machine to give up table chunks whose replicas are all gone.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::local_peer::{block_on, running_member};
use crate::terminal::print_line;
use peergrad_embed::status::{AdminCommand, connect_directory};
use peergrad_embed::text::command_name::command_name;

#[derive(Args)]
pub(super) struct DeclareLostArguments {
    /// The data directory of the peer to ask; needed if several run on this machine
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn declare_lost(arguments: &DeclareLostArguments) -> anyhow::Result<ExitCode> {
    block_on(async {
        let directory = running_member(arguments.dir.as_deref())?;
        let mut connection = connect_directory(&directory).await?;
        connection.order(AdminCommand::DeclareLost).await?;
        print_line(&format!(
            "declared lost: the peers are agreeing to continue, and the missing table chunks restart from initial values; `{} status` shows the progress",
            command_name()
        ));
        Ok(ExitCode::SUCCESS)
    })
}
