//! The handshake: TLS 1.3 between the identities of two peers, and a proof on both sides that they hold the run's secret.
//!
//! ```text
//! dialer                                        listener
//!   hello --------------------------------------> hello, certificate     (the dialer knows whom it wants)
//!   certificate --------------------------------> any peer, known from its certificate
//!   proof of the secret ------------------------> is it right?
//!   is it right?  <------------------------------ proof of the secret
//! ```
//! Certificates are those of libp2p: each is signed by its own key, for which the identity's key vouches. A proof is a hash of
//! secrets that only the two ends of this handshake know, keyed by the run's secret, and different in each direction: it is
//! useless anywhere else. The run is named on the link, as over libp2p, since one secret may serve several runs.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::tls::certificate;
use peergrad_protocol::Pool;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::{self, cipher_suite};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct, DistinguishedName,
    ServerConfig, ServerConnection, SignatureScheme,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::records::{BURSTS_KEPT_MAX, HEADER_BYTES, Records, SEALED_BYTES_MAX, UnknownCipher};
use crate::identity::Identity;
use crate::keyring::Keyring;
use crate::proof::Side;

/// What a peer shows in handshakes, and how it checks the other end.
#[derive(Debug)]
pub(super) struct Credentials {
    provider: Arc<rustls::crypto::CryptoProvider>,
    mine: Arc<SingleCertAndKey>,
    server: Arc<ServerConfig>,
    /// The run's secret, which is the key of the proofs.
    keyring: Keyring,
    /// The buffers in which records are sealed and opened.
    bursts: Pool,
}

/// The certificate of this process cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The identity's certificate cannot be generated.
    #[error("cannot make a certificate: {0}")]
    Certificate(#[from] certificate::GenError),
    /// The TLS library refuses the certificate.
    #[error("cannot use the certificate: {0}")]
    Tls(#[from] rustls::Error),
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("{}", crate::link::error_text(.0))]
    Broken(#[from] io::Error),
    #[error("no answer for {} s", HANDSHAKE_MAX.as_secs())]
    Slow,
    #[error("its address is not known")]
    Unknown,
    #[error("it is another peer")]
    OtherPeer,
    #[error("it does not hold the secret of this run")]
    OtherSecret,
    #[error("its bytes are not the handshake of a peer: {0}")]
    Tls(rustls::Error),
    #[error(transparent)]
    Cipher(#[from] UnknownCipher),
}

impl From<rustls::Error> for HandshakeError {
    fn from(error: rustls::Error) -> Self {
        match error {
            rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure) => {
                Self::OtherPeer
            }
            error => Self::Tls(error),
        }
    }
}

impl Credentials {
    pub(super) fn new(identity: &Identity, keyring: &Keyring) -> Result<Self, CredentialsError> {
        let (certificate, key) = certificate::generate(identity.keypair())?;
        Self::of(certificate, key, keyring.clone())
    }

    fn of(
        certificate: CertificateDer<'static>,
        key: PrivateKeyDer<'static>,
        keyring: Keyring,
    ) -> Result<Self, CredentialsError> {
        let provider = Arc::new(provider());
        let key = provider.key_provider.load_private_key(key)?;
        let mine = Arc::new(SingleCertAndKey::from(CertifiedKey::new(vec![certificate], key)));
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(Arc::new(Verifier { wanted: None }))
            .with_cert_resolver(Arc::clone(&mine) as _);
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        // Only our own records follow the handshake.
        server.send_tls13_tickets = 0;
        server.enable_secret_extraction = true;
        Ok(Self { provider, mine, server: Arc::new(server), keyring, bursts: Pool::new(BURSTS_KEPT_MAX) })
    }

    /// Makes the handshake as the dialer, with `peer`.
    pub(super) async fn dial(
        &self,
        address: SocketAddr,
        peer: libp2p::PeerId,
    ) -> Result<Records, HandshakeError> {
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Verifier { wanted: Some(peer) }))
            .with_client_cert_resolver(Arc::clone(&self.mine) as _);
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        client.enable_sni = false;
        client.resumption = rustls::client::Resumption::disabled();
        client.enable_secret_extraction = true;
        let dialer = async {
            let socket = TcpStream::connect(address).await?;
            let connection = ClientConnection::new(Arc::new(client), ServerName::from(address.ip()))?;
            self.shake_hands(socket, connection.into(), [Side::Dialer, Side::Listener]).await
        };
        Ok(timeout(HANDSHAKE_MAX, dialer).await.unwrap_or(Err(HandshakeError::Slow))?.0)
    }

    /// Makes the handshake as the listener, and returns the peer that has connected.
    pub(super) async fn answer(
        &self,
        socket: TcpStream,
    ) -> Result<(Records, libp2p::PeerId), HandshakeError> {
        let answering = async {
            let connection = ServerConnection::new(Arc::clone(&self.server))?;
            self.shake_hands(socket, connection.into(), [Side::Listener, Side::Dialer]).await
        };
        timeout(HANDSHAKE_MAX, answering).await.unwrap_or(Err(HandshakeError::Slow))
    }

    async fn shake_hands(
        &self,
        mut socket: TcpStream,
        mut connection: Connection,
        [mine, theirs]: [Side; 2],
    ) -> Result<(Records, libp2p::PeerId), HandshakeError> {
        socket.set_nodelay(true)?;
        agree(&mut socket, &mut connection).await?;
        let peer = peer_of(connection.peer_certificates().unwrap_or_default())?;
        let shared = connection.export_keying_material([0; 32], EXPORT_LABEL, None)?;
        let mut records = Records::new(socket, connection.dangerous_extract_secrets()?, &self.bursts)?;
        let key = self.keyring.secret().lane_key();
        let proof = |side: Side| blake3::keyed_hash(&key, &[&shared[..], &[side as u8]].concat());
        let mut shown = [0; 32];
        // The dialer proves the secret first: the listener shows nothing to a stranger.
        if mine == Side::Dialer {
            records.write_all(proof(mine).as_bytes()).await?;
            records.flush().await?;
        }
        records.read_exact(&mut shown).await?;
        // In constant time, as hashes are compared.
        if proof(theirs) != shown {
            return Err(HandshakeError::OtherSecret);
        }
        if mine == Side::Listener {
            records.write_all(proof(mine).as_bytes()).await?;
            records.flush().await?;
        }
        Ok((records, peer))
    }
}

/// Runs the TLS library until both ends have finished their handshake, and reads nothing beyond that: the rest is ours.
async fn agree(socket: &mut TcpStream, connection: &mut Connection) -> Result<(), HandshakeError> {
    let mut bytes = Vec::new();
    loop {
        while connection.wants_write() {
            connection.write_tls(&mut bytes)?;
        }
        socket.write_all(&bytes).await?;
        if !connection.is_handshaking() {
            return Ok(());
        }
        bytes.resize(HEADER_BYTES, 0);
        socket.read_exact(&mut bytes).await?;
        let byte_count = usize::from(u16::from_be_bytes([bytes[3], bytes[4]]));
        // The rest of a record is missing.
        if matches!(bytes[..2], [20..=23, 3]) && byte_count <= SEALED_BYTES_MAX {
            bytes.resize(HEADER_BYTES + byte_count, 0);
            socket.read_exact(&mut bytes[HEADER_BYTES..]).await?;
        }
        // The library refuses a record that is too long, or bytes that are no record.
        let mut unread = &bytes[..];
        while !unread.is_empty() {
            if connection.read_tls(&mut unread)? == 0 {
                return Err(rustls::Error::General("it accepts no more bytes".to_owned()).into());
            }
            if let Err(error) = connection.process_new_packets() {
                // Tell the other end why, if it still reads.
                let mut last_words = Vec::new();
                connection.write_tls(&mut last_words)?;
                let _ = socket.write_all(&last_words).await;
                return Err(error.into());
            }
        }
        bytes.clear();
    }
}

/// AES where the processor has instructions for it: it is several times as fast there, and several times as slow elsewhere.
fn provider() -> rustls::crypto::CryptoProvider {
    let (aes, chacha) = (
        [cipher_suite::TLS13_AES_128_GCM_SHA256, cipher_suite::TLS13_AES_256_GCM_SHA384],
        cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    );
    let cipher_suites = if has_aes() { vec![aes[0], aes[1], chacha] } else { vec![chacha, aes[0], aes[1]] };
    rustls::crypto::CryptoProvider { cipher_suites, ..aws_lc_rs::default_provider() }
}

fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

/// The peer that has shown these certificates.
fn peer_of(certificates: &[CertificateDer<'_>]) -> Result<libp2p::PeerId, rustls::Error> {
    let [certificate] = certificates else {
        return Err(rustls::Error::General("a peer has exactly one certificate".to_owned()));
    };
    Ok(parse(certificate)?.peer_id())
}

/// A certificate in the form of libp2p.
fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<certificate::P2pCertificate<'a>, rustls::Error> {
    certificate::parse(certificate)
        .map_err(|_| rustls::Error::InvalidCertificate(CertificateError::BadEncoding))
}

/// Checks certificates in the form of libp2p.
#[derive(Debug)]
struct Verifier {
    /// The peer that is expected; `None` for any peer.
    wanted: Option<libp2p::PeerId>,
}

impl Verifier {
    fn check(&self, first: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        let all: Vec<CertificateDer<'_>> = std::iter::once(first).chain(others).cloned().collect();
        let found = peer_of(&all)?;
        if self.wanted.is_some_and(|wanted| wanted != found) {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        Ok(())
    }
}

fn check_signature(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    parse(certificate)?
        .verify_signature(signed.scheme, message, signed.signature())
        .map_err(|_| rustls::Error::InvalidCertificate(CertificateError::BadSignature))?;
    Ok(HandshakeSignatureValid::assertion())
}

/// The first is the scheme of certificates that this peer makes.
fn schemes() -> Vec<SignatureScheme> {
    vec![SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::ED25519]
}

fn only_tls13() -> rustls::Error {
    rustls::Error::General("only TLS 1.3 is supported".to_owned())
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        first: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(first, others).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(only_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        check_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        first: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(first, others).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(only_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        check_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes()
    }
}

/// No other program uses it, so no other program connects by mistake.
const PROTOCOL: &[u8] = b"peergrad-lane/1";
const EXPORT_LABEL: &[u8] = b"EXPORTER-peergrad-lane";
/// From the first packet to the last proof. A slower end holds a place that others need.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
pub(super) mod tests {
    use peergrad_protocol::invite::Secret;
    use tokio::net::TcpListener;

    use super::*;

    type Answered = Result<(Records, libp2p::PeerId), HandshakeError>;

    fn credentials(identity: &Identity, secret: u8) -> Credentials {
        Credentials::new(identity, &Keyring::new(Secret([secret; 32]))).unwrap()
    }

    /// One dials the other, as `wanted`.
    async fn handshake_pair(
        dialer: &Credentials,
        listener: &Credentials,
        wanted: &Identity,
    ) -> (Result<Records, HandshakeError>, Answered) {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let answering = async { listener.answer(socket.accept().await.unwrap().0).await };
        tokio::join!(dialer.dial(address, wanted.keypair().public().to_peer_id()), answering)
    }

    /// Connections between two peers, each with both ends.
    pub(in crate::direct) async fn record_pairs(count: usize) -> Vec<(Records, Records)> {
        record_pairs_of(count).await.0
    }

    /// And what the two show.
    async fn record_pairs_of(count: usize) -> (Vec<(Records, Records)>, [Credentials; 2]) {
        let identities = [Identity::generate(), Identity::generate()];
        let [one, other] = [&identities[0], &identities[1]].map(|identity| credentials(identity, 1));
        let mut pairs = Vec::new();
        for _ in 0..count {
            let (dialed, answered) = handshake_pair(&one, &other, &identities[1]).await;
            pairs.push((dialed.unwrap(), answered.unwrap().0));
        }
        (pairs, [one, other])
    }

    #[tokio::test]
    async fn idle_lanes_hold_no_buffers_and_share_a_pool() {
        let (mut lanes, peers) = record_pairs_of(12).await;
        for round in 0..5_u8 {
            for (index, (near, far)) in lanes.iter_mut().enumerate() {
                // From less than a record to more than a few.
                let sent = vec![round ^ index as u8; 1 + index * 5000];
                let mut there = vec![0; sent.len()];
                let (writer, reader) = if round % 2 == 0 { (near, far) } else { (far, near) };
                let writing = async {
                    writer.write_all(&sent).await.unwrap();
                    writer.flush().await.unwrap();
                };
                tokio::join!(writing, async { reader.read_exact(&mut there).await.unwrap() });
                assert_eq!(there, sent);
            }
        }
        let allocated = peers.map(|credentials| credentials.bursts.allocated_count());
        assert!(allocated.iter().all(|count| *count <= 4), "{allocated:?} for 24 ends");
    }

    #[tokio::test]
    async fn two_peers_of_a_run_connect_and_exchange_bytes() {
        let identities = [Identity::generate(), Identity::generate()];
        let [one, other] = [&identities[0], &identities[1]].map(|identity| credentials(identity, 1));
        let (dialed, answered) = handshake_pair(&one, &other, &identities[1]).await;
        let (mut near, (mut far, peer)) = (dialed.unwrap(), answered.unwrap());
        assert_eq!(peer, identities[0].keypair().public().to_peer_id());
        // Not a multiple of anything, and more than a socket holds.
        let sent: Vec<u8> = (0..5_000_003_u32).map(|index| ((index * 7) >> 3) as u8).collect();
        let (mut there, mut back) = (vec![0; sent.len()], vec![0; 3]);
        let writing = async {
            for part in sent.chunks(77_777) {
                near.write_all(part).await.unwrap();
            }
            near.flush().await.unwrap();
            near.read_exact(&mut back).await.unwrap();
            near.close().await.unwrap();
        };
        let reading = async {
            far.read_exact(&mut there).await.unwrap();
            far.write_all(b"yes").await.unwrap();
            far.flush().await.unwrap();
            assert_eq!(far.read(&mut [0; 1]).await.unwrap(), 0, "closed between two records");
        };
        tokio::join!(writing, reading);
        assert!(there == sent && back == b"yes");
    }

    #[tokio::test]
    async fn a_dialer_refuses_another_peer_than_the_expected_one() {
        let identities = [Identity::generate(), Identity::generate()];
        let [one, other] = [&identities[0], &identities[1]].map(|identity| credentials(identity, 1));
        let (dialed, answered) = handshake_pair(&one, &other, &identities[0]).await;
        assert!(matches!(dialed.unwrap_err(), HandshakeError::OtherPeer));
        answered.unwrap_err();
    }

    /// The certificate of an identity with another key, and one in which another identity is named: each as dialer and listener.
    #[tokio::test]
    async fn a_stolen_or_forged_certificate_is_refused() {
        let [honest, taken] = [Identity::generate(), Identity::generate()];
        let (certificate, key) = certificate::generate(taken.keypair()).unwrap();
        let (_, other_key) = certificate::generate(honest.keypair()).unwrap();
        let id = taken.peer().0;
        let at = certificate.windows(id.len()).position(|bytes| bytes == id).expect("it names its identity");
        let mut renamed = certificate.to_vec();
        renamed[at..at + id.len()].copy_from_slice(&honest.peer().0);
        let secret = Keyring::new(Secret([1; 32]));
        let stolen = Credentials::of(certificate, other_key, secret.clone()).unwrap();
        let forged = Credentials::of(CertificateDer::from(renamed), key, secret).unwrap();
        let own = credentials(&honest, 1);
        for (liar, claimed) in [(&stolen, &taken), (&forged, &honest)] {
            let (dialed, answered) = handshake_pair(liar, &own, &honest).await;
            assert!(matches!(answered.unwrap_err(), HandshakeError::Tls(_)));
            assert!(dialed.is_err());
            let (dialed, answered) = handshake_pair(&own, liar, claimed).await;
            assert!(matches!(dialed.unwrap_err(), HandshakeError::Tls(_)));
            answered.unwrap_err();
        }
    }

    #[tokio::test]
    async fn a_stranger_without_the_secret_learns_only_that_it_is_refused() {
        let identities = [Identity::generate(), Identity::generate()];
        let (one, other) = (credentials(&identities[0], 1), credentials(&identities[1], 2));
        let (dialed, answered) = handshake_pair(&one, &other, &identities[1]).await;
        assert!(matches!(answered.unwrap_err(), HandshakeError::OtherSecret));
        assert!(matches!(dialed.unwrap_err(), HandshakeError::Broken(_)));
    }

    #[tokio::test]
    async fn bytes_that_are_no_handshake_are_refused() {
        let listener = credentials(&Identity::generate(), 1);
        for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 300], &[22, 3, 1, 0, 4, 1, 0, 0, 0]] {
            let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut stranger = TcpStream::connect(socket.local_addr().unwrap()).await.unwrap();
            stranger.write_all(garbage).await.unwrap();
            stranger.shutdown().await.unwrap();
            let error = listener.answer(socket.accept().await.unwrap().0).await.unwrap_err();
            assert!(matches!(error, HandshakeError::Tls(_) | HandshakeError::Broken(_)), "{error}");
        }
    }

    #[tokio::test]
    async fn a_silent_connection_times_out() {
        let listener = credentials(&Identity::generate(), 1);
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _silent = TcpStream::connect(socket.local_addr().unwrap()).await.unwrap();
        let accepted = socket.accept().await.unwrap().0;
        tokio::time::pause();
        assert!(matches!(listener.answer(accepted).await.unwrap_err(), HandshakeError::Slow));
    }

    #[tokio::test]
    async fn a_record_that_was_changed_ends_the_connection() {
        let identities = [Identity::generate(), Identity::generate()];
        let [one, other] = [&identities[0], &identities[1]].map(|identity| credentials(identity, 1));
        let listening = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = between.local_addr().unwrap();
        let middle = async {
            let near = between.accept().await.unwrap().0;
            let far = TcpStream::connect(listening.local_addr().unwrap()).await.unwrap();
            let ((mut near_in, mut near_out), (mut far_in, mut far_out)) =
                (near.into_split(), far.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut far_in, &mut near_out).await });
            let mut bytes = vec![0; 1 << 16];
            loop {
                let count = near_in.read(&mut bytes).await.unwrap();
                if count > 40_000 {
                    bytes[count / 2] ^= 1;
                }
                if count == 0 || far_out.write_all(&bytes[..count]).await.is_err() {
                    return;
                }
            }
        };
        let wanted = identities[1].keypair().public().to_peer_id();
        let sending = async {
            let mut near = one.dial(address, wanted).await.unwrap();
            let _ = near.write_all(&[7; 1 << 20]).await;
            let _ = near.flush().await;
        };
        let receiving = async {
            let (mut far, _) = other.answer(listening.accept().await.unwrap().0).await.unwrap();
            let mut bytes = vec![0; 1 << 20];
            let error = far.read_exact(&mut bytes).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        };
        tokio::join!(middle, sending, receiving);
    }
}
