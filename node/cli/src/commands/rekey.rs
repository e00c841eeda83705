//! `peer rekey`: asks a member on this machine to change the run's secret.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use peergrad_net::{RecordError, RunRecord};
use peergrad_protocol::PeerId;
use tokio::time::Instant;

use super::local_peer::{block_on, running_member};
use crate::terminal::print_line;
use peergrad_embed::status::{AdminCommand, Status, connect_directory};
use peergrad_embed::text::command_name::command_name;
use peergrad_embed::text::event_text::short_names;
use peergrad_embed::text::text_table::plural;

#[derive(Args)]
pub(super) struct RekeyArguments {
    /// The data directory of the member to ask; needed if several run on this machine
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn rekey(arguments: &RekeyArguments) -> anyhow::Result<ExitCode> {
    block_on(async {
        let directory = running_member(arguments.dir.as_deref())?;
        let secret = || Ok::<_, RecordError>(RunRecord::read(&directory)?.invite.secret);
        let before = secret()?;
        let mut connection = connect_directory(&directory).await?;
        let mut status = connection.order(AdminCommand::Rekey).await?;
        let deadline = Instant::now() + PATIENCE;
        // The record on disk, which holds the invite, follows a moment later.
        while (secret()? == before || missing(&status).is_none_or(|peers| !peers.is_empty()))
            && Instant::now() < deadline
        {
            tokio::time::sleep(ROUND).await;
            status = connection.status().await?;
        }
        if secret()? == before {
            bail!("the secret has not changed: the peer was busy, or is no longer a member; try again");
        }
        let all = plural(status.members.len(), "member");
        print_line(&match missing(&status) {
            Some(peers) if peers.is_empty() => {
                format!("the secret was changed, and all members have confirmed it ({all})")
            }
            Some(peers) => format!(
                "the secret was changed; of {all}, these have not confirmed it yet: {}. Connected members receive it \
                 automatically; a disconnected member needs the invite below to rejoin",
                short_names(&peers)
            ),
            None => {
                "a user of another member changed the secret at the same time, and that secret is in force"
                    .to_owned()
            }
        });
        print_line(&format!(
            "old invites and secret files no longer work; disconnected members rejoin with\n{} join {}",
            command_name(),
            RunRecord::read(&directory)?.invite
        ));
        Ok(ExitCode::SUCCESS)
    })
}

/// The members that have not confirmed the new secret. `None` before the peer has started the change, and after a later change by
/// another member.
fn missing(status: &Status) -> Option<Vec<PeerId>> {
    let missing = &status.rekey.as_ref()?.missing;
    Some(missing.iter().filter_map(|peer| peer.parse().ok()).collect())
}

/// The pause between two requests for the status.
const ROUND: Duration = Duration::from_millis(200);
/// How long this command waits for the members' confirmations.
const PATIENCE: Duration = Duration::from_secs(10);
