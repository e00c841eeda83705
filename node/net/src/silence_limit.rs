//! The limit on silence: an incoming TCP connection on which nothing arrives ends while places for handshakes are scarce.
//!
//! A peer that dials sends its first message at once. A machine that only opens connections costs nothing to itself, and keeps a place
//! of this peer until the time for the whole handshake is over. Slow networks exist, so a silent connection may stay as long as
//! there is [room](super::handshake_limits).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{AsyncRead, AsyncWrite};
use libp2p::core::ConnectedPoint;
use tokio::time::{Instant, Sleep, sleep};

use super::handshake_limits::Handshakes;
use super::machine::Machine;

/// A stream that ends with an error if the other end is silent for too long at its beginning.
pub(super) struct SilenceLimited<S> {
    stream: S,
    /// `None` once the first message has arrived, and where this peer has dialed.
    awaited: Option<Awaited>,
}

/// The first message, which has not arrived yet.
struct Awaited {
    missing_bytes: usize,
    timer: Pin<Box<Sleep>>,
    from: Machine,
    handshakes: Handshakes,
}

impl<S> SilenceLimited<S> {
    /// Limits the silence of a new connection, if the other end has dialed.
    pub(super) fn new(stream: S, endpoint: &ConnectedPoint, handshakes: &Handshakes) -> Self {
        let awaited = match endpoint {
            ConnectedPoint::Dialer { .. } => None,
            ConnectedPoint::Listener { send_back_addr, .. } => Some(Awaited {
                missing_bytes: FIRST_MESSAGE_BYTES,
                timer: Box::pin(sleep(SILENCE_MAX)),
                from: Machine::at(send_back_addr),
                handshakes: handshakes.clone(),
            }),
        };
        Self { stream, awaited }
    }
}

impl Awaited {
    /// Checks the time, and each second again, since places may become scarce later.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while self.timer.as_mut().poll(context).is_ready() {
            if self.handshakes.are_scarce(self.from) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.timer.as_mut().reset(Instant::now() + SILENCE_MAX);
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for SilenceLimited<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let read = Pin::new(&mut self.stream).poll_read(context, bytes);
        let Some(awaited) = &mut self.awaited else { return read };
        match &read {
            Poll::Ready(Ok(count)) if *count < awaited.missing_bytes => awaited.missing_bytes -= count,
            Poll::Ready(_) => self.awaited = None,
            Poll::Pending => awaited.check(context)?,
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for SilenceLimited<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(context)
    }
}

/// What a dialer sends before it needs an answer: the header of libp2p's negotiation, and the name of Noise.
const FIRST_MESSAGE_BYTES: usize = b"\x13/multistream/1.0.0\n\x07/noise\n".len();
/// How long the first message may take while places are scarce.
const SILENCE_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use futures::AsyncReadExt;
    use futures::future::poll_immediate;
    use futures::io::Cursor;
    use libp2p::core::Endpoint;
    use libp2p::core::transport::PortUse;
    use libp2p::swarm::{ConnectionId, NetworkBehaviour};
    use tokio::time::advance;

    use super::*;
    use crate::handshake_limits::HandshakeLimits;

    const FROM: &str = "/ip4/10.0.0.7/tcp/40000";

    /// A stream on which these bytes arrive, and then nothing.
    struct Silent(Cursor<Vec<u8>>);

    impl AsyncRead for Silent {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            match Pin::new(&mut self.0).poll_read(context, bytes) {
                Poll::Ready(Ok(0)) => Poll::Pending,
                read => read,
            }
        }
    }

    fn incoming() -> ConnectedPoint {
        let address = FROM.parse().unwrap();
        ConnectedPoint::Listener {
            local_addr: "/ip4/10.0.0.1/tcp/9".parse().unwrap(),
            send_back_addr: address,
        }
    }

    /// Handshakes of which the machine at [`FROM`] holds all that it may.
    fn scarce() -> Handshakes {
        let handshakes = Handshakes::new(256);
        let mut limits = HandshakeLimits::new(handshakes.clone());
        let (at, from) = ("/ip4/10.0.0.1/tcp/9".parse().unwrap(), FROM.parse().unwrap());
        let is_let_in = |number: &usize| {
            let id = ConnectionId::new_unchecked(*number);
            limits.handle_pending_inbound_connection(id, &at, &from).is_ok()
        };
        assert!((0..).take_while(is_let_in).count() > 1);
        handshakes
    }

    /// Whether a connection on which this many bytes have arrived ends, after a silence of a few seconds.
    async fn ends(bytes: usize, endpoint: &ConnectedPoint, handshakes: &Handshakes) -> bool {
        let mut stream = SilenceLimited::new(Silent(Cursor::new(vec![0; bytes])), endpoint, handshakes);
        let mut room = [0; 100];
        assert!(poll_immediate(stream.read_exact(&mut room)).await.is_none());
        advance(3 * SILENCE_MAX).await;
        matches!(poll_immediate(stream.read(&mut room)).await, Some(Err(error)) if error.kind() == io::ErrorKind::TimedOut)
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_ends_while_places_are_scarce() {
        let handshakes = scarce();
        assert!(ends(0, &incoming(), &handshakes).await);
        assert!(ends(FIRST_MESSAGE_BYTES - 1, &incoming(), &handshakes).await, "a beginning is no message");
        assert!(!ends(FIRST_MESSAGE_BYTES, &incoming(), &handshakes).await, "the message has arrived");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_stays_while_there_is_room_and_where_this_peer_has_dialed() {
        assert!(!ends(0, &incoming(), &Handshakes::new(256)).await);
        let outgoing = ConnectedPoint::Dialer {
            address: FROM.parse().unwrap(),
            role_override: Endpoint::Dialer,
            port_use: PortUse::New,
        };
        assert!(!ends(0, &outgoing, &scarce()).await);
    }
}
