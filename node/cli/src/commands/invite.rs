//! `peer invite`: prints a current invite from the peer that runs on this machine.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use peergrad_net::RunRecord;

#[derive(Args)]
pub(super) struct InviteArguments {
    /// The peer's data directory; needed if several peers run on this machine
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// An address at which others can reach the peer; the invite lists it first (may be repeated)
    #[arg(long, value_name = "ADDRESS")]
    external: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn invite(arguments: &InviteArguments) -> anyhow::Result<ExitCode> {
    let record = match &arguments.dir {
        Some(dir) => RunRecord::read(dir)?,
        None => {
            let mut running = RunRecord::read_defaults();
            match running.len() {
                0 => bail!(
                    "no peer runs in this user's default directories: start one with `peer start` or `peer join`, or name a running peer's data directory with --dir"
                ),
                1 => running.remove(0).1,
                _ => {
                    let list: Vec<String> =
                        running.iter().map(|(path, _)| path.display().to_string()).collect();
                    bail!("several peers are running; select one with --dir: {}", list.join(", "));
                }
            }
        }
    };
    let mut invite = record.invite;
    let external = super::join_target::addresses(&arguments.external)?;
    if let Some(contact) = invite.contacts.first_mut() {
        contact.addresses.splice(0..0, external);
        contact.addresses.truncate(peergrad_protocol::limits::ADDRESSES_MAX);
    }
    if arguments.json {
        crate::terminal::emit(&serde_json::json!({
            "event": "invite", "invite": invite.to_string(), "run": invite.run.to_string(),
        }));
    } else {
        crate::terminal::print_line(&invite.to_string());
    }
    Ok(ExitCode::SUCCESS)
}
