//! The proof: both ends of a connection show that they hold the run's secret, for handshakes that have no place for it.
//!
//! ```text
//! dialer                                 listener
//!   nonce -------------------------------> keeps it
//!   keeps it <----------------------------- nonce
//!   proof of the secret -----------------> is it right?
//!   is it right? <------------------------ yes, and proof of the secret; or no, and nothing else
//! ```
//! Noise takes the secret into its handshake. QUIC cannot, because its handshake is that of TLS. After that handshake both ends
//! know each other's id, and this exchange follows on the first stream, before the swarm hears of the connection. A proof is a
//! hash of a role, both ids and both nonces, keyed by the secret. The ids make it useless to a machine in the middle, whose
//! connections have its own id at one end. The nonces make it useless at any other time, and the role makes it useless when it
//! is sent back. The run is named on the link only, as over TCP: a peer that joins by an address alone does not know the run
//! yet.
//!
//! # Invariants
//! - The dialer proves the secret first; the listener shows nothing that depends on the secret to a peer that may be a
//!   stranger.
//! - Proofs are compared in constant time.
//!
//! # Not here
//! A time limit: the swarm has one limit for setting up a connection, and this exchange is part of it.

use std::io;
use std::time::Duration;

use futures::future::poll_fn;
use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use libp2p::PeerId;
use libp2p::core::ConnectedPoint;
use libp2p::core::muxing::{StreamMuxer, StreamMuxerExt};
use peergrad_protocol::invite::Secret;
use tokio::time::timeout;

use super::link::error_text;
use super::random::random_bytes;

/// What a peer makes its proofs from.
#[derive(Clone)]
pub(super) struct Prover {
    own: PeerId,
    key: [u8; 32],
}

/// The exchange failed after the connection's handshake.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProofError {
    /// The connection is gone.
    #[error("{}", error_text(.0))]
    Broken(#[from] io::Error),
    /// The other end has another secret, or none.
    #[error("it does not hold the secret of this run")]
    OtherSecret,
    /// The other end did not answer as a peer does.
    #[error("its answer is not that of a peer")]
    NotAPeer,
}

/// The two ends of a connection, in the order of their roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Dialer = 0,
    Listener = 1,
}

/// The two ends of one connection, in one order for both.
struct Ends {
    dialer: PeerId,
    listener: PeerId,
}

impl Prover {
    pub(super) fn new(own: PeerId, secret: &Secret) -> Self {
        Self { own, key: secret.quic_key() }
    }

    /// Proves the secret to `peer` and checks its proof, on a connection that is not used yet.
    ///
    /// The connection must make progress by itself while one of its streams is read; QUIC's connections do.
    pub(super) async fn prove<M>(
        self,
        (peer, mut connection): (PeerId, M),
        point: ConnectedPoint,
    ) -> Result<(PeerId, M), ProofError>
    where
        M: StreamMuxer + Unpin,
        M::Substream: Unpin,
        M::Error: Send + Sync + 'static,
    {
        if point.is_dialer() {
            let stream = poll_fn(|context| connection.poll_outbound_unpin(context)).await;
            self.prove_first(stream.map_err(io::Error::other)?, peer).await?;
        } else {
            let stream = poll_fn(|context| connection.poll_inbound_unpin(context)).await;
            self.prove_second(stream.map_err(io::Error::other)?, peer).await?;
        }
        Ok((peer, connection))
    }

    /// The dialer's part.
    async fn prove_first(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        listener: PeerId,
    ) -> Result<(), ProofError> {
        let ends = Ends { dialer: self.own, listener };
        let mine: Nonce = random_bytes();
        stream.write_all(&mine).await?;
        stream.flush().await?;
        let nonces = [mine, read_array(&mut stream).await?];
        stream.write_all(self.proof(Side::Dialer, &ends, &nonces).as_bytes()).await?;
        stream.flush().await?;
        match read_array(&mut stream).await? {
            [ACCEPTED] => {}
            [REFUSED] => return Err(ProofError::OtherSecret),
            _ => return Err(ProofError::NotAPeer),
        }
        let shown: [u8; 32] = read_array(&mut stream).await?;
        if self.proof(Side::Listener, &ends, &nonces) != shown {
            return Err(ProofError::OtherSecret);
        }
        Ok(())
    }

    /// The listener's part.
    async fn prove_second(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        dialer: PeerId,
    ) -> Result<(), ProofError> {
        let ends = Ends { dialer, listener: self.own };
        let theirs: Nonce = read_array(&mut stream).await?;
        let nonces = [theirs, random_bytes()];
        stream.write_all(&nonces[1]).await?;
        stream.flush().await?;
        let shown: [u8; 32] = read_array(&mut stream).await?;
        if self.proof(Side::Dialer, &ends, &nonces) != shown {
            stream.write_all(&[REFUSED]).await?;
            stream.close().await?;
            // Closing the connection discards what has not arrived yet, so the other end gets the chance to close it first.
            let _ = timeout(VERDICT_MAX, stream.read(&mut [0])).await;
            return Err(ProofError::OtherSecret);
        }
        let proof = self.proof(Side::Listener, &ends, &nonces);
        stream.write_all(&[&[ACCEPTED], &proof.as_bytes()[..]].concat()).await?;
        stream.close().await?;
        Ok(())
    }

    /// Ids include their length, and each other part has a fixed length: two different inputs never hash as the same bytes.
    fn proof(&self, side: Side, ends: &Ends, nonces: &[Nonce; 2]) -> blake3::Hash {
        let ids = [ends.dialer.to_bytes(), ends.listener.to_bytes()].concat();
        blake3::keyed_hash(&self.key, &[&[side as u8], &ids[..], nonces.as_flattened()].concat())
    }
}

/// Reads this many bytes.
pub(super) async fn read_array<const N: usize>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Of one connection only: the dialer's first, then the listener's.
type Nonce = [u8; 32];

const ACCEPTED: u8 = 1;
const REFUSED: u8 = 0;
/// How long a refused peer has to close the connection.
const VERDICT_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::join;

    use super::*;
    use crate::Identity;
    use crate::pipe::Pipe;

    fn prover(secret: u8) -> Prover {
        let own = Identity::generate().keypair().public().to_peer_id();
        Prover::new(own, &Secret([secret; 32]))
    }

    type Outcome = Result<(), ProofError>;

    /// Both ends, each of which takes the other for who is said there.
    async fn prove_both(dialer: &Prover, listener: &Prover, taken_for: [PeerId; 2]) -> (Outcome, Outcome) {
        let (near, far) = duplex(1024);
        join!(dialer.prove_first(Pipe(near), taken_for[1]), listener.prove_second(Pipe(far), taken_for[0]))
    }

    #[tokio::test]
    async fn only_peers_with_the_same_secret_accept_each_other() {
        for (secrets, is_right) in [([1, 1], true), ([1, 2], false), ([2, 1], false)] {
            let [dialer, listener] = secrets.map(prover);
            let (first, second) = prove_both(&dialer, &listener, [dialer.own, listener.own]).await;
            assert_eq!((first.is_ok(), second.is_ok()), (is_right, is_right), "{secrets:?}");
            if !is_right {
                assert!(matches!(first, Err(ProofError::OtherSecret)), "{first:?}");
                assert!(matches!(second, Err(ProofError::OtherSecret)), "{second:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_peer_in_the_middle_cannot_forward_the_proofs_of_two_others() {
        let [dialer, listener] = [1, 1].map(prover);
        let middle = prover(2).own;
        for taken_for in [[middle, middle], [dialer.own, middle], [middle, listener.own]] {
            let (first, second) = prove_both(&dialer, &listener, taken_for).await;
            assert!(first.is_err() && second.is_err(), "{first:?} {second:?}");
        }
    }

    #[tokio::test]
    async fn a_reflected_proof_is_refused() {
        let (dialer, other) = (prover(1), prover(2).own);
        let (near, mut far) = duplex(1024);
        let mirror = async {
            let mut bytes = [0; 32];
            far.read_exact(&mut bytes).await.unwrap();
            far.write_all(&bytes).await.unwrap();
            far.read_exact(&mut bytes).await.unwrap();
            far.write_all(&[ACCEPTED]).await.unwrap();
            far.write_all(&bytes).await.unwrap();
        };
        let (outcome, ()) = join!(dialer.prove_first(Pipe(near), other), mirror);
        assert!(matches!(outcome, Err(ProofError::OtherSecret)), "{outcome:?}");
    }

    #[test]
    fn a_proof_depends_on_its_side_both_peers_and_both_nonces() {
        let prover = prover(1);
        let [dialer, listener] = [2, 3].map(|secret| self::prover(secret).own);
        let proof = |side, dialer, listener, nonces| prover.proof(side, &Ends { dialer, listener }, &nonces);
        let nonces = [[1; 32], [2; 32]];
        let proofs = [
            proof(Side::Dialer, dialer, listener, nonces),
            proof(Side::Listener, dialer, listener, nonces),
            proof(Side::Dialer, listener, dialer, nonces),
            proof(Side::Dialer, dialer, listener, [[2; 32], [1; 32]]),
            proof(Side::Dialer, dialer, listener, [[1; 32], [1; 32]]),
        ];
        for (index, one) in proofs.iter().enumerate() {
            assert!(!proofs[..index].contains(one), "{index}");
        }
    }

    /// What a dialer makes of bytes that are none of a peer.
    async fn answered_with(bytes: &[u8]) -> ProofError {
        let (near, mut far) = duplex(1024);
        far.write_all(bytes).await.unwrap();
        far.shutdown().await.unwrap();
        prover(1).prove_first(Pipe(near), prover(1).own).await.unwrap_err()
    }

    #[tokio::test]
    async fn garbage_another_secret_and_a_broken_connection_are_told_apart() {
        assert!(matches!(answered_with(&[9; 65]).await, ProofError::NotAPeer));
        assert!(matches!(answered_with(&[ACCEPTED; 65]).await, ProofError::OtherSecret));
        assert!(matches!(answered_with(&[REFUSED; 65]).await, ProofError::OtherSecret));
        for count in [0, 31, 32, 33, 64] {
            let error = answered_with(&vec![ACCEPTED; count]).await;
            assert!(matches!(error, ProofError::Broken(_)), "{count}: {error:?}");
        }
    }

    #[tokio::test]
    async fn a_listener_shows_a_stranger_only_a_nonce_and_a_refusal() {
        let (mut near, far) = duplex(1024);
        let stranger = async {
            near.write_all(&[7; 500]).await.unwrap();
            near.shutdown().await.unwrap();
            let mut shown = Vec::new();
            near.read_to_end(&mut shown).await.unwrap();
            shown
        };
        let (listener, other) = (prover(1), prover(1).own);
        let (outcome, shown) = join!(listener.prove_second(Pipe(far), other), stranger);
        assert!(matches!(outcome, Err(ProofError::OtherSecret)), "{outcome:?}");
        assert_eq!((shown.len(), shown.last()), (33, Some(&REFUSED)));
    }
}
