//! Dial failures: why an address could not be reached, read from libp2p's nested errors, in words for the user.

use std::fmt;
use std::io;

use libp2p::core::upgrade::{NegotiationError, ProtocolError};
use libp2p::swarm::DialError;
use libp2p::{Multiaddr, TransportError, dns, noise};

use crate::address::{is_relayed, without_peer};
use crate::link::error_text;
use crate::proof::ProofError;

/// Why an address could not be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DialFailure {
    /// The machine answers, and no program listens at the port.
    Refused,
    /// The system's words: timed out, no route, ...
    System(String),
    /// The handshake failed as it does with a peer that holds another secret.
    WrongSecret,
    /// The connection was closed before either end had identified itself.
    HungUp,
    /// A program answers there that does not speak the protocol.
    NotAPeer,
    /// The secret is right, but another peer has the address now.
    OtherPeer {
        /// The peer that answers there.
        found: libp2p::PeerId,
    },
    /// The address is that of this peer itself.
    Ourselves,
    /// The address is of a kind that this peer does not speak, or its name cannot be resolved.
    Unusable(String),
}

impl fmt::Display for DialFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("connection refused"),
            Self::System(words) | Self::Unusable(words) => f.write_str(words),
            Self::WrongSecret => {
                f.write_str("answered, but the secret (or the run) differs: check the invite; if the invite's run has ended, ask for an invite of the present one")
            }
            Self::HungUp => {
                f.write_str("answered and closed the connection at once: check the address and the port")
            }
            Self::NotAPeer => f.write_str("answered, but not as a peer: check the address and the port"),
            Self::OtherPeer { found } => {
                write!(f, "answered, but as another peer ({found}): the invited peer has stopped or moved; ask for a fresh invite")
            }
            Self::Ourselves => {
                f.write_str("this is the address of this peer itself")
            }
        }
    }
}

/// Whether an attempt over the other carrier would fail in the same way.
pub(super) fn is_final(trouble: &DialFailure) -> bool {
    match trouble {
        DialFailure::WrongSecret
        | DialFailure::NotAPeer
        | DialFailure::OtherPeer { .. }
        | DialFailure::Ourselves
        | DialFailure::Unusable(_) => true,
        DialFailure::Refused | DialFailure::System(_) | DialFailure::HungUp => false,
    }
}

/// The addresses that an attempt has tried, if the machine at each of them refuses the connection. Addresses through relays do not count:
/// they fail when the peer has left the relay.
pub(in super::super) fn refused_everywhere(error: &DialError) -> Vec<Multiaddr> {
    let DialError::Transport(errors) = error else { return Vec::new() };
    let direct = || errors.iter().filter(|(address, _)| !is_relayed(address));
    if direct().all(|(_, error)| failure_of(error) == DialFailure::Refused) {
        direct().map(|(address, _)| without_peer(address.clone())).collect()
    } else {
        Vec::new()
    }
}

/// Finds the reason in libp2p's nested errors that a user can act on.
pub(in super::super) fn failure_of(error: &TransportError<io::Error>) -> DialFailure {
    let error = match error {
        TransportError::MultiaddrNotSupported(_) => {
            return DialFailure::Unusable(
                "this kind of address is not supported: use /ip4/.../tcp/...".to_owned(),
            );
        }
        TransportError::Other(error) => error,
    };
    let mut words = error_text(error);
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(reason) = next {
        match reason.downcast_ref::<noise::Error>() {
            // What does not decrypt is invalid data with the reason inside; invalid data without one comes from the
            // negotiation before, which libp2p checks only now. Any other I/O error is the connection's.
            Some(noise::Error::Io(error)) => match (error.kind(), error.get_ref()) {
                (io::ErrorKind::InvalidData, Some(_)) => return DialFailure::WrongSecret,
                (io::ErrorKind::InvalidData, None) => return DialFailure::NotAPeer,
                _ => {}
            },
            Some(_) => return DialFailure::WrongSecret,
            None => {}
        }
        match reason.downcast_ref::<ProofError>() {
            Some(ProofError::OtherSecret) => return DialFailure::WrongSecret,
            Some(ProofError::NotAPeer) => return DialFailure::NotAPeer,
            Some(ProofError::Broken(_)) | None => {}
        }
        match reason.downcast_ref::<NegotiationError>() {
            Some(NegotiationError::ProtocolError(ProtocolError::IoError(_))) | None => {}
            Some(_) => return DialFailure::NotAPeer,
        }
        if reason.is::<libp2p::core::multiaddr::Error>() || reason.is::<dns::ResolveError>() {
            return DialFailure::Unusable("the name cannot be resolved".to_owned());
        }
        // An I/O error hides what it wraps from `source`.
        next = match reason.downcast_ref::<io::Error>() {
            Some(system) => {
                words = error_text(system);
                system.get_ref().map(|inner| inner as &(dyn std::error::Error + 'static))
            }
            None => {
                words = tidied(&reason.to_string());
                reason.source()
            }
        };
    }
    match words.as_str() {
        // Which of them it is depends on who was faster; told apart, they would be told again and again.
        "connection closed"
        | "connection reset"
        | "connection reset by peer"
        | "Broken pipe"
        | "unexpected end of file" => DialFailure::HungUp,
        "connection refused" => DialFailure::Refused,
        _ => DialFailure::System(words),
    }
}

/// Some wrappers hide the system's error and leave only its text.
fn tidied(text: &str) -> String {
    match text.split_once(" (os error").map_or(text, |(words, _)| words) {
        "Timeout has been reached" | "Connection timed out" => "timed out".to_owned(),
        words => words.replacen("Connection", "connection", 1),
    }
}
