//! The run that a peer joins, as its user names it: an invite, or an address and a file with the secret.

use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, bail};
use libp2p::Multiaddr;
use peergrad_config::file_error::explained;
use peergrad_net::{BootstrapAddress, create_private, random_bytes};
use peergrad_protocol::RunId;
use peergrad_protocol::invite::{Invite, NotAnInvite, Secret};

use super::files;

/// What is needed to join a run: its secret, and addresses of members.
pub(super) struct JoinTarget {
    /// The run, if an invite names it; `None` when joining by address.
    pub(super) run: Option<RunId>,
    pub(super) secret: Secret,
    pub(super) bootstrap_addresses: Vec<BootstrapAddress>,
}

/// Reads an invite (or `-`, for standard input); with a secret file, `invite` and `more` are addresses.
pub(super) fn join_target_of(
    invite: &str,
    more: &[String],
    secret_file: Option<&Path>,
) -> anyhow::Result<JoinTarget> {
    if let Some(path) = secret_file {
        let secret = parse_secret(path, &files::read_text(path)?)?;
        let addresses = std::iter::once(invite).chain(more.iter().map(String::as_str));
        let bootstrap_addresses = addresses.map(BootstrapAddress::from_str).collect::<Result<_, _>>()?;
        return Ok(JoinTarget { run: None, secret, bootstrap_addresses });
    }
    let (invite, rest) = if invite == "-" {
        let text = std::io::read_to_string(std::io::stdin());
        let text = text.context("cannot read the invite from standard input")?;
        if text.trim().is_empty() {
            bail!("standard input holds no invite; pass it there, or in place of the `-`");
        }
        (text.parse()?, more)
    } else {
        invite_in(invite, more)?
    };
    let mut bootstrap_addresses: Vec<_> =
        invite.contacts.into_iter().map(BootstrapAddress::Contact).collect();
    for address in rest {
        bootstrap_addresses.push(address.parse()?);
    }
    Ok(JoinTarget { run: Some(invite.run), secret: invite.secret, bootstrap_addresses })
}

/// The invite in the first of these arguments, with those that follow it. A pasted line may be several arguments: its breaks became spaces,
/// or the command stands before the invite.
fn invite_in<'a>(first: &str, more: &'a [String]) -> anyhow::Result<(Invite, &'a [String])> {
    let mut text = first.to_owned();
    let mut read = text.parse::<Invite>();
    for (index, next) in more.iter().enumerate() {
        if let Ok(invite) = read {
            return Ok((invite, &more[index..]));
        }
        text = format!("{text} {next}");
        read = text.parse();
    }
    match read {
        Ok(invite) => Ok((invite, &[])),
        Err(NotAnInvite::Prefix) if BootstrapAddress::from_str(first.trim()).is_ok() => bail!(
            "`{}` is not an invite (invites begin with pg1); to join by address, add --secret-file FILE",
            first.trim()
        ),
        Err(error) => Err(error.into()),
    }
}

fn parse_secret(path: &Path, text: &str) -> anyhow::Result<Secret> {
    let hash = blake3::Hash::from_hex(text.trim());
    let hash = hash.map_err(|_| anyhow::anyhow!("{}: a secret is 64 hexadecimal digits", path.display()))?;
    Ok(Secret(*hash.as_bytes()))
}

/// Reads the secret from a file, or creates the file with a new secret.
pub(super) fn secret_for_a_new_run(path: &Path) -> anyhow::Result<Secret> {
    let secret = Secret(random_bytes());
    let text = format!("{}\n", blake3::Hash::from_bytes(secret.0).to_hex());
    match create_private(path, text.as_bytes()) {
        Ok(()) => Ok(secret),
        // An existing file decides.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            parse_secret(path, &files::read_text(path)?)
        }
        Err(error) => bail!("cannot write {}: {}", path.display(), explained(&error)),
    }
}

/// Checks addresses that the user gave, and returns them as multiaddresses.
pub(super) fn addresses(texts: &[String]) -> anyhow::Result<Vec<String>> {
    Ok(multiaddresses(texts)?.iter().map(Multiaddr::to_string).collect())
}

pub(super) fn multiaddresses(texts: &[String]) -> anyhow::Result<Vec<Multiaddr>> {
    let parse = |text: &String| match BootstrapAddress::from_str(text) {
        Ok(BootstrapAddress::Address(address)) => Ok(address),
        Ok(BootstrapAddress::Contact(_)) => {
            bail!("that is an invite, and not an address: `peer join` takes it")
        }
        Err(error) => Err(error.into()),
    };
    texts.iter().map(parse).collect()
}
