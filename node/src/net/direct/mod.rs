//! Direct lanes: TCP connections of their own for what links carry, between peers that reach each other without a relay.
//!
//! A substream of libp2p passes through Noise and yamux: two layers of copies, a cipher without help of the processor, and one
//! window for all substreams. Tensors are most of what peers say, so they get a connection that does nothing but seal and
//! write: TLS 1.3 with the same identities ([`handshake`]), and records in large bursts ([`records`]).
//!
//! Each peer listens on one more port for them, and tells its number in the answer to an opening; a link uses a substream until
//! its direct lane stands, and again whenever that breaks.

mod handshake;
mod records;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use peergrad_protocol::invite::Secret;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::identity::Identity;
use super::listen::Listen;
use handshake::Credentials;
pub(super) use handshake::{CredentialsError, HandshakeError};
pub(super) use records::Records;

/// Dials direct lanes, and answers those who do.
#[derive(Debug)]
pub(super) struct Doorway {
    credentials: Credentials,
    /// Where others reach this peer's; `None` if it cannot listen.
    port: Option<NonZeroU16>,
    /// Places for those who have not shown yet who they are.
    strangers: Arc<Semaphore>,
}

/// Sockets that others connect to.
#[derive(Debug)]
pub(super) struct Listeners(Vec<TcpListener>);

impl Doorway {
    /// Listens at the port after `port` if that is free, or else at any.
    pub(super) async fn open(
        identity: &Identity,
        secret: &Secret,
        listen: &Listen,
        port: u16,
    ) -> Result<(Self, io::Result<Listeners>), CredentialsError> {
        let credentials = Credentials::new(identity, secret)?;
        let wanted = port.checked_add(1).unwrap_or_default();
        let listeners = match Listeners::bind(listen, wanted).await {
            Err(_) => Listeners::bind(listen, 0).await,
            bound => bound,
        };
        let port = listeners.as_ref().ok().and_then(Listeners::port);
        let strangers = Arc::new(Semaphore::new(STRANGERS_MAX));
        Ok((Self { credentials, port, strangers }, listeners))
    }

    /// Where others reach it.
    pub(super) fn port(&self) -> Option<NonZeroU16> {
        self.port
    }

    /// Connects to `peer`, which listens at this port of one of these machines.
    pub(super) async fn dial(
        &self,
        peer: libp2p::PeerId,
        machines: &[IpAddr],
        port: NonZeroU16,
    ) -> Result<Records, HandshakeError> {
        let mut last = HandshakeError::Broken(io::ErrorKind::AddrNotAvailable.into());
        for ip in machines {
            match self.credentials.dial(SocketAddr::new(*ip, port.get()), peer).await {
                Ok(records) => return Ok(records),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Hears who has connected. `None`: too many others are being heard.
    pub(super) async fn answer(
        &self,
        socket: TcpStream,
    ) -> Option<Result<(Records, libp2p::PeerId), HandshakeError>> {
        let _place = Arc::clone(&self.strangers).try_acquire_owned().ok()?;
        Some(self.credentials.answer(socket).await)
    }
}

impl Listeners {
    async fn bind(listen: &Listen, port: u16) -> io::Result<Self> {
        let mut listeners = Vec::new();
        let mut port = port;
        for (index, address) in listen.addresses().into_iter().enumerate() {
            match bind_one(SocketAddr::new(address, port)) {
                Ok(listener) => {
                    port = listener.local_addr()?.port();
                    listeners.push(listener);
                }
                // A machine without IPv6 does without.
                Err(_) if index > 0 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self(listeners))
    }

    fn port(&self) -> Option<NonZeroU16> {
        NonZeroU16::new(self.0.first()?.local_addr().ok()?.port())
    }

    /// The next one who connects.
    pub(super) async fn accept(&self) -> (TcpStream, IpAddr) {
        loop {
            let waiting = self.0.iter().map(|listener| Box::pin(listener.accept()));
            match futures::future::select_all(waiting).await.0 {
                Ok((socket, address)) => return (socket, address.ip().to_canonical()),
                // Out of file descriptors, say: others may be closed in a moment.
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }
}

/// On IPv6 for IPv6 only: IPv4 has a socket of its own.
fn bind_one(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    #[cfg(unix)]
    // A port whose last connections are still in the system's memory can be had again.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Handshakes that are answered at once.
const STRANGERS_MAX: usize = 64;
/// Connections that the system holds ready.
const BACKLOG: i32 = 256;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
