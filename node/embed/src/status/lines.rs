//! Lines: the socket of a peer on this machine and a stream over the network, read and written alike, one line at a time.

use std::io;

/// A stream of lines in both directions.
pub(super) trait LineStream {
    /// Reads a line of at most `bytes_max` bytes, with its newline. The result is empty if the stream has ended. It lacks the newline
    /// if the stream ended within the line, or if the line is longer.
    fn read_line(&mut self, bytes_max: u64) -> impl Future<Output = io::Result<Vec<u8>>> + Send;

    /// Writes bytes and flushes them.
    fn write(&mut self, bytes: &[u8]) -> impl Future<Output = io::Result<()>> + Send;
}

#[cfg(unix)]
impl LineStream for tokio::io::BufReader<tokio::net::UnixStream> {
    async fn read_line(&mut self, bytes_max: u64) -> io::Result<Vec<u8>> {
        use tokio::io::{AsyncBufReadExt, AsyncReadExt};
        let mut line = Vec::new();
        self.take(bytes_max).read_until(b'\n', &mut line).await?;
        Ok(line)
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        use tokio::io::AsyncWriteExt;
        self.get_mut().write_all(bytes).await?;
        self.get_mut().flush().await
    }
}

impl LineStream for futures::io::BufReader<libp2p::Stream> {
    async fn read_line(&mut self, bytes_max: u64) -> io::Result<Vec<u8>> {
        use futures::{AsyncBufReadExt, AsyncReadExt};
        let mut line = Vec::new();
        self.take(bytes_max).read_until(b'\n', &mut line).await?;
        Ok(line)
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        use futures::AsyncWriteExt;
        self.get_mut().write_all(bytes).await?;
        self.get_mut().flush().await
    }
}
