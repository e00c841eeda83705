//! The sending end of a bundle: cuts the stream into pieces, each for a stripe that can take it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{HEAD_BYTES, PIECE_BYTES_MAX, PieceHead, STRIPED_PIECE_BYTES, Stripe};
use crate::direct::Records;
use crate::link::NotAPiece;

/// A change of the stripes.
pub(crate) enum Change {
    /// This one takes pieces, too.
    Add(Box<Stripe>),
    /// Only the first ones take pieces from now on, so many of them.
    Keep(usize),
}

/// The sending end of a bundle. What it reads is what the other end sends on the first stripe.
pub(crate) struct BundleSender {
    first: Records,
    added: Vec<Stripe>,
    changes: mpsc::UnboundedReceiver<Change>,
    /// How many pieces have begun.
    piece_count: u64,
    current: Piece,
}

/// The piece that has begun, as far as it is not written.
struct Piece {
    stripe: usize,
    head: [u8; HEAD_BYTES],
    /// How many bytes of the head are written.
    head_written: usize,
    /// How many bytes are still to come after the head.
    rest: u32,
}

impl BundleSender {
    /// A bundle of one stripe, which follows these changes.
    pub(crate) fn new(first: Records, changes: mpsc::UnboundedReceiver<Change>) -> Self {
        let current = Piece { stripe: 0, head: [0; HEAD_BYTES], head_written: HEAD_BYTES, rest: 0 };
        Self { first, added: Vec::new(), changes, piece_count: 0, current }
    }

    fn stripe_count(&self) -> usize {
        1 + self.added.len()
    }

    fn stripe(&mut self, index: usize) -> &mut Records {
        match index.checked_sub(1) {
            None => &mut self.first,
            Some(added) => &mut self.added[added].records,
        }
    }

    /// Takes in the changes that have come. No piece has begun that is not whole.
    fn follow_changes(&mut self, context: &mut Context<'_>) {
        while let Poll::Ready(Some(change)) = self.changes.poll_recv(context) {
            match change {
                Change::Add(stripe) => self.added.push(*stripe),
                Change::Keep(count) => {
                    for stripe in self.added.drain(count.saturating_sub(1).min(self.added.len())..) {
                        tokio::spawn(close(stripe));
                    }
                }
            }
            let is_striped = !self.added.is_empty();
            (0..self.stripe_count()).for_each(|index| self.stripe(index).limit_unsent(is_striped));
        }
    }

    /// Begins a piece of so many bytes on a stripe that can take it.
    fn poll_begin(&mut self, context: &mut Context<'_>, byte_count: usize) -> Poll<io::Result<()>> {
        let count = self.stripe_count();
        let byte_count_max = if count > 1 { STRIPED_PIECE_BYTES } else { PIECE_BYTES_MAX };
        let rest = u32::try_from(byte_count).unwrap_or(u32::MAX).min(byte_count_max);
        let last = self.current.stripe;
        for stripe in (last + 1..count).chain(0..count.min(last + 1)) {
            // With several stripes, one that still has bytes to write takes no more.
            if count > 1 && self.poll_flushed(context, stripe)?.is_pending() {
                continue;
            }
            let head = PieceHead { number: self.piece_count, byte_count: rest }.to_bytes();
            self.current = Piece { stripe, head, head_written: 0, rest };
            self.piece_count += 1;
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }

    /// Writes what is left of the piece's head, and as many of these bytes as its stripe takes.
    fn poll_piece(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Piece { stripe, head, head_written, rest } = self.current;
        if head_written < HEAD_BYTES {
            let records = Pin::new(self.stripe(stripe));
            self.current.head_written += ready!(records.poll_write(context, &head[head_written..]))?;
            return self.poll_piece(context, bytes);
        }
        let now = &bytes[..bytes.len().min(rest as usize)];
        let taken = ready!(Pin::new(self.stripe(stripe)).poll_write(context, now))?;
        self.current.rest -= taken as u32;
        if self.current.rest == 0 && !self.added.is_empty() {
            // It goes at once, since this stripe may get no other one for a while. What cannot be written now is written later.
            let _ = self.poll_flushed(context, stripe)?;
        }
        Poll::Ready(Ok(taken))
    }

    fn poll_flushed(&mut self, context: &mut Context<'_>, stripe: usize) -> Poll<io::Result<()>> {
        Pin::new(self.stripe(stripe)).poll_flush(context)
    }
}

impl AsyncRead for BundleSender {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        for stripe in &mut this.added {
            // Nothing comes on these but their end.
            match Pin::new(&mut stripe.records).poll_read(context, &mut [0])? {
                Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Poll::Ready(_) => return Poll::Ready(Err(NotAPiece.into())),
                Poll::Pending => {}
            }
        }
        Pin::new(&mut this.first).poll_read(context, room)
    }
}

impl AsyncWrite for BundleSender {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if this.current.rest == 0 {
            this.follow_changes(context);
            ready!(this.poll_begin(context, bytes.len()))?;
        }
        this.poll_piece(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.current.rest == 0 {
            this.follow_changes(context);
        }
        let mut flushed = Poll::Ready(Ok(()));
        for index in 0..this.stripe_count() {
            if this.poll_flushed(context, index)?.is_pending() {
                flushed = Poll::Pending;
            }
        }
        flushed
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_flush(context))?;
        Pin::new(&mut self.get_mut().first).poll_close(context)
    }
}

/// Closes a stripe that is no longer needed, and waits until the other end has read everything.
async fn close(stripe: Stripe) {
    let Stripe { mut records, place } = stripe;
    let closing = async {
        records.close().await?;
        records.read(&mut [0]).await
    };
    // If it breaks, a piece is missing at the other end, and the lane ends for want of acknowledgements.
    let _ = timeout(CLOSING_MAX, closing).await;
    drop(place);
}

/// As long as a lane may go without acknowledgements.
const CLOSING_MAX: Duration = crate::link::STALL_TIMEOUT;
