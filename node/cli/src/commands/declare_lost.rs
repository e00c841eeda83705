//! `peer declare-lost`: goes on without what nobody has any more of a run's tables, asked of a peer on this machine that waits for it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::local_peer::{block_on, running_member};
use crate::status::{AdminCommand, connect_directory};
use crate::terminal::{print_line, program_name};

#[derive(Args)]
pub(super) struct DeclareLostArguments {
    /// The data directory of the peer to ask, if several run on this machine
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn declare_lost(arguments: &DeclareLostArguments) -> anyhow::Result<ExitCode> {
    block_on(async {
        let directory = running_member(arguments.dir.as_deref())?;
        let mut connection = connect_directory(&directory).await?;
        connection.order(AdminCommand::DeclareLost).await?;
        print_line(&format!(
            "declared lost: the peers agree on going on without, and what nobody has begins anew; `{} status` tells how that goes",
            program_name()
        ));
        Ok(ExitCode::SUCCESS)
    })
}
