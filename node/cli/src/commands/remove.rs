//! `peer remove`: asks a member on this machine to remove another member from the run permanently.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use peergrad_protocol::PeerId;

use super::local_peer::{block_on, running_member};
use super::signals::stop_requested;
use crate::terminal::print_line;
use peergrad_embed::status::{AdminCommand, Status, StatusConnection, connect_directory};
use peergrad_embed::text::command_name::command_name;
use peergrad_embed::text::event_text::{is_called, short_names};

#[derive(Args)]
pub(super) struct RemoveArguments {
    /// The member to remove: its six-character name, as shown by `status`, or its whole id
    #[arg(value_name = "PEER")]
    peer: String,
    /// The data directory of the member to ask; needed if several run on this machine
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn remove(arguments: &RemoveArguments) -> anyhow::Result<ExitCode> {
    block_on(async {
        let directory = running_member(arguments.dir.as_deref())?;
        if arguments.peer.len() > NAME_BYTES_MAX {
            bail!("that is not the name of a member; `{} status` lists them", command_name());
        }
        let mut connection = connect_directory(&directory).await?;
        // The order is the first request: the peer has places for orders that no question takes.
        let status = connection.order(AdminCommand::Remove(arguments.peer.clone())).await?;
        let peer = peer_called(&arguments.peer, &status)?;
        let name = short_names(&[peer]);
        if !is_out(&peer, &status) {
            print_line(&format!("removing peer {name}: it hands over its shard first"));
        }
        tokio::select! {
            view_number = until_out(&mut connection, &peer, status) => {
                let view_number = view_number?;
                print_line(&format!("peer {name} was removed from the run in view {view_number}, and its id cannot join again. Anyone who knows the secret can still join with a new id; `{} rekey` changes the secret", command_name()));
                Ok(ExitCode::SUCCESS)
            }
            () = stop_requested() => {
                print_line(&format!("the members continue the removal; `{} status` shows who is in the run", command_name()));
                Ok(ExitCode::SUCCESS)
            }
        }
    })
}

/// Waits until the member is in no view any more; returns the number of the first view without it.
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

/// The peer that a status calls by this short name or id, as a member or as one that is out already.
fn peer_called(name: &str, status: &Status) -> anyhow::Result<PeerId> {
    let expelled = status.view.iter().flat_map(|view| &view.expelled).map(|expelled| &expelled.peer);
    let all = status.members.iter().map(|member| &member.peer).chain(expelled);
    let mut called = all.filter_map(|peer| peer.parse().ok()).filter(|peer| is_called(peer, name));
    called.next().context("the peer is no member any more: try again")
}

/// Longer than any id.
const NAME_BYTES_MAX: usize = 128;
/// The pause between two requests for the status.
const ROUND: Duration = Duration::from_millis(200);
