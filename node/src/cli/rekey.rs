//! `peer rekey`: gives the run another secret, asked of a member on this machine.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use peergrad_protocol::PeerId;
use tokio::time::Instant;

use super::remove::member_here;
use super::report::{print_line, program_name};
use super::table::plural;
use super::words::short_names;
use crate::net::RunRecord;
use crate::status::{Order, Status, ask_directory};

#[derive(Args)]
pub(super) struct RekeyArguments {
    /// The data directory of the member to ask, if several run on this machine
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn rekey(arguments: &RekeyArguments) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start asking")?;
    runtime.block_on(async {
        let directory = member_here(arguments.dir.as_deref())?;
        let before = RunRecord::read(&directory)?.invite.secret;
        let mut asker = ask_directory(&directory).await?;
        let mut status = asker.order(Order::Rekey).await?;
        let deadline = Instant::now() + PATIENCE;
        // Its run record is renewed in a moment, too.
        while RunRecord::read(&directory)?.invite.secret == before
            || (missing(&status).is_none_or(|peers| !peers.is_empty()) && Instant::now() < deadline)
        {
            tokio::time::sleep(ROUND).await;
            status = asker.status().await?;
        }
        let missing = missing(&status).unwrap_or_default();
        let (all, without) = (plural(status.members.len(), "member"), missing.len());
        print_line(&match without {
            0 => format!("the run has another secret, and all of its members have it ({all})"),
            _ => format!(
                "the run has another secret, which {without} of {all} have not confirmed yet: {}. They are told again and again; \
                 one that stays away needs the invite below to come back",
                short_names(&missing)
            ),
        });
        print_line(&format!(
            "invites from before are of no use any more, and whoever is away must be given this one:\n{} join {}",
            program_name(),
            RunRecord::read(&directory)?.invite
        ));
        Ok(ExitCode::SUCCESS)
    })
}

/// Members that have not confirmed it; `None` before the peer has begun.
fn missing(status: &Status) -> Option<Vec<PeerId>> {
    let missing = &status.rekey.as_ref()?.missing;
    Some(missing.iter().filter_map(|peer| peer.parse().ok()).collect())
}

/// How often the member is asked how things are.
const ROUND: Duration = Duration::from_millis(200);
/// How long the members have to confirm.
const PATIENCE: Duration = Duration::from_secs(10);
