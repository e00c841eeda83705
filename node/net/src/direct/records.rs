//! Records of TLS 1.3, once the handshake has made the keys.
//!
//! The bytes on the wire are those of any TLS library: a header, up to 16 KiB that are sealed, a tag. They are made here
//! because a library returns each record in newly allocated memory, with copies on the way. Here the cipher itself moves a
//! tensor from its place to the buffer for the system, and from there to its place at the other end. One system call takes many
//! records.
//!
//! ```text
//! header (23, 3, 3, length u16) | sealed: up to 16384 bytes, a byte that says their kind (23) | tag, 16 bytes
//! ```
//! The nonce is the key's, with the number of the record in its last bytes. A key seals at most [`RECORDS_MAX`] records, well
//! below what AES-GCM allows; then the lane ends, and the next one has new keys.
//!
//! An idle lane has no buffer: buffers come from a [`Pool`] that all lanes share, since most lanes are idle most of the time,
//! and a peer may have a thousand.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use futures::{AsyncRead, AsyncWrite};
use peergrad_protocol::{Buffer, Pool};
use rustls::{ConnectionTrafficSecrets, ExtractedSecrets};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::net::TcpStream;

/// A connection whose handshake is complete.
#[derive(Debug)]
pub(crate) struct Records {
    socket: TcpStream,
    sealing: Sealing,
    opening: Opening,
}

/// Outgoing bytes.
#[derive(Debug)]
struct Sealing {
    key: Key,
    /// Sealed records, and one open record that still takes bytes.
    buffer: Burst,
    /// How many bytes of the buffer are used.
    filled: usize,
    /// Where the open record begins.
    unsealed: Option<usize>,
    /// How many bytes are written, once all records are sealed.
    written: Option<usize>,
}

/// Incoming bytes.
#[derive(Debug)]
struct Opening {
    key: Key,
    buffer: Burst,
    /// Bytes that are still sealed.
    sealed: Range<usize>,
    /// Bytes that are opened and not yet taken.
    opened: Range<usize>,
}

/// A buffer for [`BURST_BYTES`] and one more record, as long as it is needed.
#[derive(Debug)]
struct Burst {
    pool: Pool,
    buffer: Option<Buffer>,
}

/// The key of one direction.
#[derive(Debug)]
struct Key {
    key: LessSafeKey,
    iv: [u8; 12],
    record: u64,
}

/// The handshake has agreed on a cipher that it did not offer.
#[derive(Debug, thiserror::Error)]
#[error("the handshake agreed on a cipher that was not offered")]
pub(crate) struct UnknownCipher;

impl Records {
    /// Continues where the handshake ended. No byte after it may have been read.
    pub(super) fn new(
        socket: TcpStream,
        secrets: ExtractedSecrets,
        bursts: &Pool,
    ) -> Result<Self, UnknownCipher> {
        let buffer = || Burst { pool: bursts.clone(), buffer: None };
        let sealing = Sealing {
            key: Key::new(secrets.tx)?,
            buffer: buffer(),
            filled: 0,
            unsealed: None,
            written: None,
        };
        let opening = Opening { key: Key::new(secrets.rx)?, buffer: buffer(), sealed: 0..0, opened: 0..0 };
        Ok(Self { socket, sealing, opening })
    }

    /// The address of the other end; `None` if the connection is gone.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.socket.peer_addr().ok()
    }

    /// Limits how much the socket takes before it is sent, or lets the system decide.
    ///
    /// Of several connections, one that carries little would otherwise hold much that others could carry. The limit is set on Linux only;
    /// elsewhere what is in flight on the lane is the only one.
    pub(super) fn limit_unsent(&self, is_limited: bool) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let _ = socket2::SockRef::from(&self.socket).set_tcp_notsent_lowat(if is_limited {
            UNSENT_BYTES
        } else {
            0
        });
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let _ = is_limited;
    }
}

impl Burst {
    fn bytes_mut(&mut self) -> &mut [u8] {
        let take = || self.pool.take_bytes(BURST_BYTES + RECORD_BYTES_MAX);
        self.buffer.get_or_insert_with(take).bytes_mut()
    }

    fn bytes(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], Buffer::bytes)
    }

    /// Whether it holds no bytes.
    fn give_back(&mut self) {
        self.buffer = None;
    }
}

impl Key {
    fn new((record, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Self, UnknownCipher> {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(UnknownCipher),
        };
        let key = UnboundKey::new(algorithm, key.as_ref()).map_err(|_| UnknownCipher)?;
        let iv = iv.as_ref().try_into().map_err(|_| UnknownCipher)?;
        Ok(Self { key: LessSafeKey::new(key), iv, record })
    }

    /// The nonce of the next record.
    fn nonce(&mut self) -> io::Result<Nonce> {
        if self.record >= RECORDS_MAX {
            return Err(io::Error::other("its keys have sealed as many bytes as they may"));
        }
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.record.to_be_bytes()) {
            *byte ^= number;
        }
        self.record += 1;
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

impl Sealing {
    /// Copies as many of these bytes as there is room for; at least one.
    fn take(&mut self, mut bytes: &[u8]) -> io::Result<usize> {
        let mut taken = 0;
        while !bytes.is_empty() && self.filled < BURST_BYTES {
            if let Some((now, later)) = bytes.split_at_checked(PLAIN_BYTES_MAX) {
                // So that a record that it fills goes from there.
                self.seal()?;
                self.seal_whole(now)?;
                (bytes, taken) = (later, taken + now.len());
                continue;
            }
            let start = match self.unsealed {
                Some(start) => start,
                None => {
                    self.unsealed = Some(self.filled);
                    self.put(&[0; HEADER_BYTES]);
                    self.filled - HEADER_BYTES
                }
            };
            let room = start + HEADER_BYTES + PLAIN_BYTES_MAX - self.filled;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.put(now);
            taken += now.len();
            bytes = later;
            if now.len() == room {
                self.seal()?;
            }
        }
        if self.filled >= BURST_BYTES {
            self.finish()?;
        }
        Ok(taken)
    }

    fn put(&mut self, bytes: &[u8]) {
        let end = self.filled + bytes.len();
        self.buffer.bytes_mut()[self.filled..end].copy_from_slice(bytes);
        self.filled = end;
    }

    /// Seals these bytes as one record, without a copy in between.
    fn seal_whole(&mut self, plain: &[u8]) -> io::Result<()> {
        let header = header(plain.len() + 1 + TAG_BYTES);
        // If sealing fails, nothing is left behind that could be written.
        let nonce = self.key.nonce()?;
        self.put(&header);
        let (start, end) = (self.filled, self.filled + plain.len() + 1 + TAG_BYTES);
        self.filled = end;
        let (sealed, rest) = self.buffer.bytes_mut()[start..end].split_at_mut(plain.len());
        let key = &self.key.key;
        key.seal_out_of_place_scatter(nonce, Aad::from(header), plain, sealed, &[KIND_DATA], rest)
            .map_err(|_| io::Error::other("a record could not be sealed"))
    }

    /// Seals the open record, if there is one.
    fn seal(&mut self) -> io::Result<()> {
        let Some(start) = self.unsealed else { return Ok(()) };
        let nonce = self.key.nonce()?;
        self.unsealed = None;
        self.put(&[KIND_DATA]);
        let sealed_bytes = self.filled - start - HEADER_BYTES + TAG_BYTES;
        let header = header(sealed_bytes);
        let (head, plain) = self.buffer.bytes_mut()[start..self.filled].split_at_mut(HEADER_BYTES);
        head.copy_from_slice(&header);
        let sealed = self.key.key.seal_in_place_separate_tag(nonce, Aad::from(header), plain);
        let tag = sealed.map_err(|_| io::Error::other("a record could not be sealed"))?;
        self.put(tag.as_ref());
        Ok(())
    }

    /// Marks the sealed records as ready to be written.
    fn finish(&mut self) -> io::Result<()> {
        self.seal()?;
        if self.written.is_none() && self.filled > 0 {
            self.written = Some(0);
        }
        Ok(())
    }

    /// Writes the sealed records.
    fn poll_written(&mut self, socket: &mut TcpStream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(written) = &mut self.written else { return Poll::Ready(Ok(())) };
        while *written < self.filled {
            let rest = &self.buffer.bytes()[*written..self.filled];
            match ready!(Pin::new(&mut *socket).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => *written += count,
            }
        }
        self.written = None;
        self.filled = 0;
        self.buffer.give_back();
        Poll::Ready(Ok(()))
    }
}

impl Opening {
    /// Opens the next record if it has arrived completely. If `room` is large enough the bytes go there, and their number is
    /// returned.
    fn open(&mut self, room: &mut [u8]) -> io::Result<Option<usize>> {
        let start = self.sealed.start;
        let Some(header) = self.buffer.bytes()[self.sealed.clone()].first_chunk::<HEADER_BYTES>().copied()
        else {
            return Ok(None);
        };
        let [kind, 3, 3, high, low] = header else { return Err(nonsense()) };
        let byte_count = usize::from(u16::from_be_bytes([high, low]));
        if kind != KIND_DATA || !(TAG_BYTES + 1..=SEALED_BYTES_MAX).contains(&byte_count) {
            return Err(nonsense());
        }
        if self.sealed.len() < HEADER_BYTES + byte_count {
            return Ok(None);
        }
        let body = start + HEADER_BYTES;
        self.sealed.start = body + byte_count;
        let (nonce, aad, key) = (self.key.nonce()?, Aad::from(header), &self.key.key);
        let sealed = &mut self.buffer.bytes_mut()[body..body + byte_count];
        let (cipher, tag) = sealed.split_at_mut(byte_count - TAG_BYTES);
        if let Some(plain) = room.get_mut(..cipher.len()) {
            key.open_separate_gather(nonce, aad, cipher, tag, plain).map_err(|_| nonsense())?;
            return data_bytes(plain).map(Some);
        }
        let plain = key.open_in_place(nonce, aad, sealed).map_err(|_| nonsense())?;
        self.opened = body..body + data_bytes(plain)?;
        Ok(Some(0))
    }

    /// Releases the buffer, if it is empty.
    fn rest(&mut self) {
        if self.sealed.is_empty() && self.opened.is_empty() {
            self.sealed = 0..0;
            self.buffer.give_back();
        }
    }

    /// Reads more sealed bytes. Returns false at the end of the connection.
    fn poll_more(&mut self, socket: &mut TcpStream, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.sealed.start > 0 {
            // Less than one record is left.
            self.buffer.bytes_mut().copy_within(self.sealed.clone(), 0);
            self.sealed = 0..self.sealed.len();
        }
        if self.sealed.is_empty() {
            ready!(socket.poll_read_ready(context))?;
        }
        let mut room = ReadBuf::new(&mut self.buffer.bytes_mut()[self.sealed.end..]);
        let read = Pin::new(socket).poll_read(context, &mut room);
        let count = room.filled().len();
        self.sealed.end += count;
        self.rest();
        ready!(read)?;
        Poll::Ready(Ok(count > 0))
    }
}

impl AsyncRead for Records {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let Self { socket, opening, .. } = self.get_mut();
        while opening.opened.is_empty() {
            match opening.open(room)? {
                // A record without bytes, or one that is larger than the room.
                Some(0) => {}
                Some(count) => {
                    opening.rest();
                    return Poll::Ready(Ok(count));
                }
                None if ready!(opening.poll_more(socket, context))? => {}
                None if opening.sealed.is_empty() => return Poll::Ready(Ok(0)),
                None => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            }
        }
        let count = room.len().min(opening.opened.len());
        room[..count].copy_from_slice(&opening.buffer.bytes()[opening.opened.start..][..count]);
        opening.opened.start += count;
        opening.rest();
        Poll::Ready(Ok(count))
    }
}

impl AsyncWrite for Records {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { socket, sealing, .. } = self.get_mut();
        ready!(sealing.poll_written(socket, context))?;
        let taken = sealing.take(bytes)?;
        // Bytes that cannot be written now are written before any others are accepted.
        match sealing.poll_written(socket, context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(taken)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { socket, sealing, .. } = self.get_mut();
        sealing.finish()?;
        sealing.poll_written(socket, context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_flush(context))?;
        Pin::new(&mut self.get_mut().socket).poll_shutdown(context)
    }
}

fn header(sealed_bytes: usize) -> [u8; HEADER_BYTES] {
    let [high, low] = u16::try_from(sealed_bytes).expect("a record is small").to_be_bytes();
    [KIND_DATA, 3, 3, high, low]
}

/// How many of these opened bytes are data: the record's kind follows, and perhaps zeros.
fn data_bytes(plain: &[u8]) -> io::Result<usize> {
    let end = plain.iter().rposition(|byte| *byte != 0).ok_or_else(nonsense)?;
    match plain[end] {
        KIND_DATA => Ok(end),
        KIND_ALERT => Err(io::ErrorKind::ConnectionAborted.into()),
        _ => Err(nonsense()),
    }
}

fn nonsense() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the received bytes are not a record of this connection")
}

pub(super) const HEADER_BYTES: usize = 5;
const TAG_BYTES: usize = 16;
const PLAIN_BYTES_MAX: usize = 16 << 10;
/// The limit of the standard. Records that are made here are smaller.
pub(super) const SEALED_BYTES_MAX: usize = PLAIN_BYTES_MAX + 256;
const RECORD_BYTES_MAX: usize = HEADER_BYTES + SEALED_BYTES_MAX;
const KIND_ALERT: u8 = 21;
const KIND_DATA: u8 = 23;
/// How much may wait in the socket of one of several connections before it is sent.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNSENT_BYTES: u32 = 16 << 10;
/// How many bytes one call writes or reads.
const BURST_BYTES: usize = 128 << 10;
// A burst ends with a record that begins within its limit and follows a sealed record.
const _: () = assert!(2 * (1 + TAG_BYTES) + HEADER_BYTES + PLAIN_BYTES_MAX <= RECORD_BYTES_MAX);
/// Buffers that are kept while no lane needs them: each end of a lane may have been busy a moment ago.
pub(super) const BURSTS_KEPT_MAX: usize = 16;
/// A quarter of a terabyte can be sealed with one key; this is half of that.
const RECORDS_MAX: u64 = 1 << 23;
