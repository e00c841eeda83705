//! `peer rekey`: gives the run another secret, asked of a member on this machine.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use peergrad_net::{RecordError, RunRecord};
use peergrad_protocol::PeerId;
use tokio::time::Instant;

use super::local_peer::{block_on, running_member};
use crate::status::{AdminCommand, Status, connect_directory};
use crate::terminal::{print_line, program_name};
use crate::text::event_text::short_names;
use crate::text::text_table::plural;

#[derive(Args)]
pub(super) struct RekeyArguments {
    /// The data directory of the member to ask, if several run on this machine
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
        // Its record of the run is renewed in a moment, too.
        while (secret()? == before || missing(&status).is_none_or(|peers| !peers.is_empty()))
            && Instant::now() < deadline
        {
            tokio::time::sleep(ROUND).await;
            status = connection.status().await?;
        }
        if secret()? == before {
            bail!("the secret is the same as before: the peer was busy, or is no member any more; try again");
        }
        let all = plural(status.members.len(), "member");
        print_line(&match missing(&status) {
            Some(peers) if peers.is_empty() => {
                format!("the run has another secret, and all of its members have it ({all})")
            }
            Some(peers) => format!(
                "the run has another secret, which of {all} these have not confirmed yet: {}. They are told as long as they are \
                 connected; one that is not needs the invite below to come back",
                short_names(&peers)
            ),
            None => "another member's user has changed the run's secret at the same time, and that one holds"
                .to_owned(),
        });
        print_line(&format!(
            "invites and secret files from before are of no use any more; whoever is away comes back with\n{} join {}",
            program_name(),
            RunRecord::read(&directory)?.invite
        ));
        Ok(ExitCode::SUCCESS)
    })
}

/// Members that have not confirmed it; `None` before the peer has begun, or where another one did later.
fn missing(status: &Status) -> Option<Vec<PeerId>> {
    let missing = &status.rekey.as_ref()?.missing;
    Some(missing.iter().filter_map(|peer| peer.parse().ok()).collect())
}

/// How often the member is asked how things are.
const ROUND: Duration = Duration::from_millis(200);
/// How long the members have to confirm.
const PATIENCE: Duration = Duration::from_secs(10);
