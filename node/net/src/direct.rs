//! Direct lanes: TCP connections of their own for what links carry, between peers that reach each other without a relay.
//!
//! A substream of libp2p passes through Noise and yamux: two layers of copies, a cipher without help of the processor, and one
//! window for all substreams. Tensors are most of what peers say, so they get a connection that does nothing but seal and
//! write: TLS 1.3 with the same identities ([`handshake`]), and records in large bursts ([`records`]).
//!
//! Each peer listens on one more port for them, and tells its number in the answer to an opening; a link uses a substream until
//! its direct lane stands, and again whenever that breaks.

mod handshake;
mod path;
mod records;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, lookup_host};

use super::address::DIRECT_PORT_OFFSET;
use super::identity::Identity;
use super::keyring::Keyring;
use super::listen::Listen;
use handshake::Credentials;
pub(super) use handshake::{CredentialsError, HandshakeError};
pub(super) use path::DirectPath;
pub(super) use records::Records;

/// Dials direct lanes, and answers those who do.
#[derive(Debug)]
pub(super) struct DirectEndpoint {
    credentials: Credentials,
    /// Where others reach this peer's; `None` if it cannot listen.
    port: Option<NonZeroU16>,
    /// How many of each machine have not shown yet who they are.
    handshakes: Mutex<BTreeMap<IpAddr, usize>>,
}

/// A place of one who has not shown yet who it is.
struct HandshakeSlot<'a> {
    from: IpAddr,
    handshakes: &'a Mutex<BTreeMap<IpAddr, usize>>,
}

/// Sockets that others connect to.
#[derive(Debug)]
pub(super) struct Listeners(Vec<TcpListener>);

impl DirectEndpoint {
    /// Listens at the port [`DIRECT_PORT_OFFSET`] above `port` if that is free, or else at any.
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
        Ok((Self { credentials, port, handshakes: Mutex::default() }, listeners))
    }

    /// Where others reach it.
    pub(super) fn port(&self) -> Option<NonZeroU16> {
        self.port
    }

    /// Connects to `peer`, which listens at this port of one of these hosts.
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
                match self.credentials.dial(address, peer).await {
                    Ok(records) => return Ok(records),
                    Err(error) => last = error,
                }
            }
        }
        Err(last)
    }

    /// Hears who has connected from this machine. `None`: too many others are being heard.
    pub(super) async fn answer(
        &self,
        socket: TcpStream,
        from: IpAddr,
    ) -> Option<Result<(Records, libp2p::PeerId), HandshakeError>> {
        let _slot = self.slot(from)?;
        Some(self.credentials.answer(socket).await)
    }

    fn slot(&self, from: IpAddr) -> Option<HandshakeSlot<'_>> {
        // Counting cannot panic.
        let mut handshakes = self.handshakes.lock().unwrap_or_else(PoisonError::into_inner);
        let own = handshakes.get(&from).copied().unwrap_or(0);
        if own >= HANDSHAKES_PER_IP_MAX || handshakes.values().sum::<usize>() >= HANDSHAKES_MAX {
            return None;
        }
        handshakes.insert(from, own + 1);
        Some(HandshakeSlot { from, handshakes: &self.handshakes })
    }
}

impl Drop for HandshakeSlot<'_> {
    fn drop(&mut self) {
        let mut handshakes = self.handshakes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = handshakes.get_mut(&self.from) {
            *count -= 1;
        }
        handshakes.retain(|_, count| *count > 0);
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

/// Handshakes that are answered at once; so that no machine takes all places, with one of them fewer.
const HANDSHAKES_MAX: usize = 256;
const HANDSHAKES_PER_IP_MAX: usize = 64;
/// A name may stand for many machines.
const ADDRESSES_OF_A_NAME_MAX: usize = 4;
/// Connections that the system holds ready.
const BACKLOG: i32 = 256;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
