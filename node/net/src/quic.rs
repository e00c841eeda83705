//! QUIC: the carrier for networks in which TCP does not get through.
//!
//! Some networks drop TCP between machines and let UDP pass. So a peer can also be reached over QUIC, at the UDP port of the
//! same number as its TCP port. A peer's QUIC address follows from its TCP address, so QUIC addresses are neither announced nor
//! remembered.
//!
//! QUIC brings what Noise and yamux bring to TCP, except for the run's secret; a [`proof`](super::proof) shows that.
//!
//! # Invariants
//! - The swarm never hears of a connection whose other end has not proved the secret.
//! - Connections that have not proved it share [a small number of places](super::handshake_limits) of their own: the first packets of
//!   QUIC may carry a forged address. What the library does for such a packet before it asks this peer cannot be limited here.

use std::io;
use std::time::Duration;

use libp2p::identity::Keypair;
use libp2p::{PeerId, Transport, quic};

use super::handshake_limits::QUIC_MAX;
use super::keyring::Keyring;
use super::link::error_text;
use super::proof::{ProofError, Prover};

/// Why there is no connection over QUIC.
///
/// libp2p wraps errors in others that only forward to their source, so each variant has a source.
#[derive(Debug, thiserror::Error)]
pub(super) enum QuicError {
    /// The system's error.
    #[error("{}", error_text(.0))]
    System(#[source] io::Error),
    /// The QUIC library's error.
    #[error(transparent)]
    Connection(quic::Error),
    /// The proof of the secret failed.
    #[error("{0}")]
    Proof(#[source] ProofError),
}

impl From<quic::Error> for QuicError {
    fn from(error: quic::Error) -> Self {
        match error {
            quic::Error::Io(error) => Self::System(error),
            error => Self::Connection(error),
        }
    }
}

/// A transport whose connections run over QUIC, each between two holders of the secret.
pub(super) fn transport(
    keypair: &Keypair,
    keyring: &Keyring,
) -> impl Transport<Output = (PeerId, quic::Connection), Error = QuicError, ListenerUpgrade: Send, Dial: Send>
+ Send
+ Unpin
+ use<> {
    let (own, keyring) = (keypair.public().to_peer_id(), keyring.clone());
    quic::tokio::Transport::new(config(keypair))
        .and_then(move |connection, point| Prover::new(own, &keyring.secret()).prove(connection, point))
        .map_err(|error| error.either(QuicError::from, QuicError::Proof))
}

/// The options of the QUIC library that differ from its defaults.
fn config(keypair: &Keypair) -> quic::Config {
    let mut config = quic::Config::new(keypair);
    config.handshake_timeout = HANDSHAKE_MAX;
    config.max_idle_timeout = SILENCE_MAX.as_millis() as u32;
    config.keep_alive_interval = KEEP_ALIVE;
    config.max_concurrent_stream_limit = STREAMS_MAX;
    config.max_stream_data = STREAM_WINDOW_BYTES;
    config.max_connection_data = 2 * STREAM_WINDOW_BYTES;
    config
}

/// Shorter than the swarm's limit for setting up a connection.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// After this silence a connection is closed, as after unanswered pings.
const SILENCE_MAX: Duration = Duration::from_secs(12);
/// The pause between keep-alive packets. Several may be lost before the silence is too long.
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// A lane in each direction, earlier lanes that are being closed, and libp2p's own streams.
const STREAMS_MAX: u32 = 64;
/// What a lane has in flight, and as much again for the time until the other end reports that it has read it.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
const _: () = assert!(
    QUIC_MAX * 2 * STREAM_WINDOW_BYTES as usize <= 64 << 20,
    "what strangers may send before they have proved the secret"
);
