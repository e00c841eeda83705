//! `peer remove`: puts a member out of the run for good, asked of a member on this machine.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use peergrad_protocol::PeerId;

use super::local_peer::{block_on, running_member};
use super::signals::stop_requested;
use crate::status::{AdminCommand, Status, StatusConnection, connect_directory};
use crate::terminal::{print_line, program_name};
use crate::text::event_text::short_names;

#[derive(Args)]
pub(super) struct RemoveArguments {
    /// Whom: the six characters by which peers are called, as `status` tells them, or the whole id
    #[arg(value_name = "PEER")]
    peer: String,
    /// The data directory of the member to ask, if several run on this machine
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn remove(arguments: &RemoveArguments) -> anyhow::Result<ExitCode> {
    block_on(async {
        let directory = running_member(arguments.dir.as_deref())?;
        let mut connection = connect_directory(&directory).await?;
        let status = connection.status().await?;
        let peer = member_called(&arguments.peer, &status)?;
        let name = short_names(&[peer]);
        let status = connection.order(AdminCommand::Remove(peer.to_string())).await?;
        if !is_out(&peer, &status) {
            print_line(&format!("removing peer {name}: it hands over what it owns first"));
        }
        tokio::select! {
            view_number = until_out(&mut connection, &peer, status) => {
                let view_number = view_number?;
                print_line(&format!("peer {name} is out of the run since view {view_number}, and is not let in again as the one it was; whoever knows the secret can still join under another key, until that is changed (`{} rekey`)", program_name()));
                Ok(ExitCode::SUCCESS)
            }
            () = stop_requested() => {
                print_line(&format!("the members go on seeing to it; `{} status` tells who is in", program_name()));
                Ok(ExitCode::SUCCESS)
            }
        }
    })
}

async fn until_out(
    connection: &mut StatusConnection,
    peer: &PeerId,
    mut status: Status,
) -> anyhow::Result<u64> {
    loop {
        if let Some(view) = status.view.as_ref().filter(|_| is_out(peer, &status)) {
            return Ok(view.number);
        }
        tokio::time::sleep(ROUND).await;
        status = connection.status().await?;
    }
}

fn is_out(peer: &PeerId, status: &Status) -> bool {
    let peer = peer.to_string();
    status.view.as_ref().is_some_and(|view| view.expelled.iter().any(|expelled| expelled.peer == peer))
}

/// The member that goes by this name.
fn member_called(name: &str, status: &Status) -> anyhow::Result<PeerId> {
    let all: Vec<PeerId> = status.members.iter().filter_map(|member| member.peer.parse().ok()).collect();
    let called: Vec<PeerId> =
        all.iter().copied().filter(|peer| peer.short() == name || peer.to_string() == name).collect();
    match called[..] {
        [peer] => Ok(peer),
        [] if all.is_empty() => bail!("that peer is no member of a view now: ask at one that trains"),
        [] => bail!("no member is called {name}; these are in: {}", short_names(&all)),
        [..] => bail!(
            "several members are called {name}: give the whole id, which `{} status --json` tells",
            program_name()
        ),
    }
}

/// How often the member is asked how things are.
const ROUND: Duration = Duration::from_millis(200);
