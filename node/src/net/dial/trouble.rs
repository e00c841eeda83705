//! What libp2p's errors mean to whoever has to do something about them.

use std::io;

use libp2p::core::upgrade::{NegotiationError, ProtocolError};
use libp2p::swarm::DialError;
use libp2p::{Multiaddr, TransportError, dns, noise};

use super::super::addresses::without_peer;
use super::super::link::words_of;
use super::super::notice::DialTrouble;
use super::super::proof::ProofError;

/// Whether what came over TCP would come of an attempt over QUIC as well.
pub(super) fn is_final(trouble: &DialTrouble) -> bool {
    match trouble {
        DialTrouble::WrongSecret
        | DialTrouble::NotAPeer
        | DialTrouble::OtherPeer { .. }
        | DialTrouble::Ourselves
        | DialTrouble::Unusable(_) => true,
        DialTrouble::Refused | DialTrouble::System(_) | DialTrouble::HungUp => false,
    }
}

/// The addresses that an attempt has tried, if the machine at each of them says that nobody listens there.
pub(in super::super) fn refused_everywhere(error: &DialError) -> Vec<Multiaddr> {
    let DialError::Transport(errors) = error else { return Vec::new() };
    let is_refused = |(_, error): &(_, TransportError<io::Error>)| trouble_of(error) == DialTrouble::Refused;
    if errors.iter().all(is_refused) {
        errors.iter().map(|(address, _)| without_peer(address.clone())).collect()
    } else {
        Vec::new()
    }
}

/// Finds out of libp2p's nested errors what the user can do something about.
pub(in super::super) fn trouble_of(error: &TransportError<io::Error>) -> DialTrouble {
    let error = match error {
        TransportError::MultiaddrNotSupported(_) => {
            return DialTrouble::Unusable(
                "this kind of address is not supported: use /ip4/.../tcp/...".to_owned(),
            );
        }
        TransportError::Other(error) => error,
    };
    let mut words = words_of(error);
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = next {
        match cause.downcast_ref::<noise::Error>() {
            // What does not decrypt is invalid data with the reason inside; invalid data without one comes from the
            // negotiation before, which libp2p checks only now. Any other I/O error is the connection's.
            Some(noise::Error::Io(error)) => match (error.kind(), error.get_ref()) {
                (io::ErrorKind::InvalidData, Some(_)) => return DialTrouble::WrongSecret,
                (io::ErrorKind::InvalidData, None) => return DialTrouble::NotAPeer,
                _ => {}
            },
            Some(_) => return DialTrouble::WrongSecret,
            None => {}
        }
        match cause.downcast_ref::<ProofError>() {
            Some(ProofError::OtherSecret) => return DialTrouble::WrongSecret,
            Some(ProofError::NotAPeer) => return DialTrouble::NotAPeer,
            Some(ProofError::Broken(_)) | None => {}
        }
        match cause.downcast_ref::<NegotiationError>() {
            Some(NegotiationError::ProtocolError(ProtocolError::IoError(_))) | None => {}
            Some(_) => return DialTrouble::NotAPeer,
        }
        if cause.is::<libp2p::core::multiaddr::Error>() || cause.is::<dns::ResolveError>() {
            return DialTrouble::Unusable("the name cannot be resolved".to_owned());
        }
        // An I/O error hides what it wraps from `source`.
        next = match cause.downcast_ref::<io::Error>() {
            Some(system) => {
                words = words_of(system);
                system.get_ref().map(|inner| inner as &(dyn std::error::Error + 'static))
            }
            None => {
                words = tidied(&cause.to_string());
                cause.source()
            }
        };
    }
    match words.as_str() {
        // Which of them it is depends on who was faster; told apart, they would be told again and again.
        "connection closed"
        | "connection reset"
        | "connection reset by peer"
        | "Broken pipe"
        | "unexpected end of file" => DialTrouble::HungUp,
        "connection refused" => DialTrouble::Refused,
        _ => DialTrouble::System(words),
    }
}

/// Some wrappers hide the system's error and leave only its text.
fn tidied(text: &str) -> String {
    match text.split_once(" (os error").map_or(text, |(words, _)| words) {
        "Timeout has been reached" | "Connection timed out" => "timed out".to_owned(),
        words => words.replacen("Connection", "connection", 1),
    }
}
