//! Pipes for tests: a stream in memory, as libp2p reads and writes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::{AsyncRead, AsyncWrite};
use tokio::io::{AsyncRead as TokioRead, AsyncWrite as TokioWrite, DuplexStream, ReadBuf};

/// An end of a pipe, as libp2p reads and writes.
pub(crate) struct Pipe(pub(crate) DuplexStream);

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut room = ReadBuf::new(bytes);
        let result = TokioRead::poll_read(Pin::new(&mut self.0), context, &mut room);
        result.map_ok(|()| room.filled().len())
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        TokioWrite::poll_write(Pin::new(&mut self.0), context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        TokioWrite::poll_flush(Pin::new(&mut self.0), context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        TokioWrite::poll_shutdown(Pin::new(&mut self.0), context)
    }
}
