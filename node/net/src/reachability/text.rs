//! The text of a reachability report: what the log and `peer status` show of it.

use std::fmt;

use peergrad_protocol::PeerId;

use super::{Advice, PortForwarding, Reachability, ReachabilityState, Tried};
use crate::address::DIRECT_PORT_OFFSET;

/// The conclusion; then one line for each fact; then the one thing to do.
impl fmt::Display for Reachability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cut_off.is_empty() {
            true => write!(f, "{}", self.state)?,
            false => {
                let names: Vec<String> = self.cut_off.iter().map(PeerId::short).collect();
                let names = names.join(", ");
                write!(
                    f,
                    "this peer and {names} cannot reach each other: they train, and own no parameters"
                )?;
            }
        }
        if let Some(router) = self.seen_at.first() {
            write!(f, "; it is behind a router, others see it as {router}")?;
        }
        if let Some(router) = &self.router {
            write!(f, "\n  {router}")?;
        }
        for tried in &self.tried {
            write!(f, "\n  {tried}")?;
        }
        self.write_relays(f)?;
        write!(f, "\n  ")?;
        self.advice.write(f, self.router.as_ref())
    }
}

impl Reachability {
    fn write_relays(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.relays.is_empty() {
            let names: Vec<String> = self.relays.iter().map(PeerId::short).collect();
            write!(f, "\n  peers without a direct connection to it use the relay {}", names.join(" or "))?;
        }
        let met_count = self.upgraded + self.relayed;
        if met_count > 0 {
            write!(
                f,
                "\n  of {met_count} peers first connected through a relay, {} are connected directly now",
                self.upgraded
            )?;
        }
        if self.relayed > 0 && self.cut_off.is_empty() {
            write!(f, "; {PORT_PER_CONNECTION}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ReachabilityState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "no peer has tested yet whether others can dial this peer",
            Self::Reachable => "others can dial this peer",
            Self::Unreachable => "others cannot dial this peer: it trains, and owns no parameters",
        })
    }
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, reached_by, failed_by, reason } = self;
        write!(f, "{address}: reached by {reached_by} of {}", reached_by + failed_by)?;
        match reason {
            Some(reason) if *failed_by > 0 => write!(f, " ({reason})"),
            _ => Ok(()),
        }
    }
}

impl Advice {
    /// Writes the advice to a user whose router gave this answer; `None` if the router was not asked.
    fn write(&self, f: &mut fmt::Formatter<'_>, router: Option<&PortForwarding>) -> fmt::Result {
        match self {
            Self::Fine => write!(f, "nothing to do"),
            Self::Wait => write!(f, "nothing to do for now"),
            Self::Forward { port } => {
                write!(
                    f,
                    "to own a share, forward port {port} (TCP and UDP) of the router to this machine, and for speed {} (TCP); if the \
                     router uses another port, pass --external ADDRESS:PORT",
                    port.saturating_add(DIRECT_PORT_OFFSET)
                )?;
                match router {
                    None => write!(f, "; or restart the peer with --upnp, which asks the router to do it"),
                    Some(_) => Ok(()),
                }
            }
            Self::Open { port } => {
                write!(f, "to own a share, open port {port} (TCP and UDP) in this machine's firewall")
            }
            Self::Connect => write!(
                f,
                "to own a share, let these peers reach each other, for example in one network; until then another peer relays their control messages"
            ),
            Self::FixExternal { address } => {
                write!(f, "to own a share, correct --external {address}: no peer can reach this one there")
            }
        }
    }
}

/// The usual reason why hole punching fails: a router with address- and port-dependent mapping (RFC 4787, section 4.1).
const PORT_PER_CONNECTION: &str =
    "one of the two routers probably uses a different port for each connection, which prevents direct ones";
