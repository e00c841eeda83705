//! Direct lanes: TCP connections for frames alone, between peers that can dial each other without a relay.
//!
//! A substream of libp2p passes through Noise and yamux: two layers of copies, a cipher without hardware support, and one
//! window for all substreams. Tensors are most of the traffic, so they get a connection that only seals and writes: TLS 1.3
//! with the same identities ([`handshake`]), and records in large bursts ([`records`]).
//!
//! Each peer listens on a second port for direct lanes, and names the port in its answer to an opening. A link uses a substream
//! until its direct lane is open, and again whenever that breaks.

mod bundle;
mod handshake;
mod joins;
mod path;
mod records;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::address::DIRECT_PORT_OFFSET;
use super::identity::Identity;
use super::keyring::Keyring;
use super::listen::Listen;
use super::machine::{Machine, Places};
use super::open_files::FileLimit;
pub(super) use bundle::{BundleReceiver, BundleSender, Change, Stripe};
use handshake::Credentials;
pub(super) use handshake::{CredentialsError, HandshakeError};
pub(super) use joins::{COMPARING, Joins};
pub(super) use path::DirectPath;
pub(super) use records::Records;

/// This peer's end of direct lanes: it dials them and answers others.
#[derive(Debug)]
pub(super) struct DirectEndpoint {
    credentials: Credentials,
    /// The port on which it listens; `None` if it cannot listen.
    port: Option<NonZeroU16>,
    /// The places of handshakes that are not complete.
    handshakes: Places,
    /// The places of connections that are added to outgoing lanes.
    added: Arc<Semaphore>,
    /// The places of connections that other ends add to incoming lanes.
    joined: Arc<Semaphore>,
}

/// The listening sockets.
#[derive(Debug)]
pub(super) struct Listeners(Vec<TcpListener>);

impl DirectEndpoint {
    /// Listens at the port [`DIRECT_PORT_OFFSET`] above `port` if that is free, or else at any free port.
    pub(super) async fn open(
        identity: &Identity,
        keyring: &Keyring,
        listen: &Listen,
        port: u16,
    ) -> Result<(Self, io::Result<Listeners>), CredentialsError> {
        let credentials = Credentials::new(identity, keyring)?;
        let wanted = port.checked_add(DIRECT_PORT_OFFSET).unwrap_or_default();
        let listeners = match Listeners::bind(listen, wanted).await {
            Err(_) => Listeners::bind(listen, 0).await,
            bound => bound,
        };
        let port = listeners.as_ref().ok().and_then(Listeners::port);
        let files = FileLimit::raise();
        let (count_max, count_per_machine_max) = files.handshakes_max();
        let handshakes = Places::new(count_max, count_per_machine_max);
        let [added, joined] = [(); 2].map(|()| Arc::new(Semaphore::new(files.stripes_max())));
        Ok((Self { credentials, port, handshakes, added, joined }, listeners))
    }

    /// A place for a connection that is added to an outgoing lane; `None` if all are taken.
    pub(super) fn take_added(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.added).try_acquire_owned().ok()
    }

    /// A place for a connection that the other end has added to an incoming lane; `None` if all are taken.
    pub(super) fn take_joined(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.joined).try_acquire_owned().ok()
    }

    /// The port on which this peer listens; `None` if it cannot listen.
    pub(super) fn port(&self) -> Option<NonZeroU16> {
        self.port
    }

    /// Opens a connection to `peer`, which listens at this port of one of these hosts.
    pub(super) async fn dial(
        &self,
        peer: libp2p::PeerId,
        hosts: &[String],
        port: NonZeroU16,
    ) -> Result<Records, HandshakeError> {
        let mut last = HandshakeError::Unknown;
        for host in hosts {
            let addresses = match lookup_host((host.as_str(), port.get())).await {
                Ok(addresses) => addresses.take(ADDRESSES_OF_A_NAME_MAX),
                Err(error) => {
                    last = error.into();
                    continue;
                }
            };
            for address in addresses {
                match self.dial_address(peer, address).await {
                    Ok(records) => return Ok(records),
                    Err(error) => last = error,
                }
            }
        }
        Err(last)
    }

    /// Opens a connection to `peer`, which listens at this address.
    pub(super) async fn dial_address(
        &self,
        peer: libp2p::PeerId,
        address: SocketAddr,
    ) -> Result<Records, HandshakeError> {
        self.credentials.dial(address, peer).await
    }

    /// Makes the handshake with a machine that has connected; `None` if too many handshakes are under way.
    pub(super) async fn answer(
        &self,
        socket: TcpStream,
        from: Machine,
    ) -> Option<Result<(Records, libp2p::PeerId), HandshakeError>> {
        let _place = self.handshakes.take(from)?;
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
                // A machine without IPv6 listens on IPv4 only.
                Err(_) if index > 0 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self(listeners))
    }

    fn port(&self) -> Option<NonZeroU16> {
        NonZeroU16::new(self.0.first()?.local_addr().ok()?.port())
    }

    /// The next connection.
    pub(super) async fn accept(&self) -> (TcpStream, IpAddr) {
        loop {
            let waiting = self.0.iter().map(|listener| Box::pin(listener.accept()));
            match futures::future::select_all(waiting).await.0 {
                Ok((socket, address)) => return (socket, address.ip().to_canonical()),
                // For example, no file descriptor is free: some may be closed in a moment.
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }
}

/// An IPv6 socket takes IPv6 only: IPv4 has its own socket.
fn bind_one(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    #[cfg(unix)]
    // A port whose last connections the system still remembers can be used again.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// A name may stand for many machines.
const ADDRESSES_OF_A_NAME_MAX: usize = 4;
/// Connections that the system keeps ready.
const BACKLOG: i32 = 256;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
