//! The receiving end of a bundle: reads the pieces of all stripes in their order.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use futures::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::{HEAD_BYTES, PieceHead, Stripe};
use crate::direct::Records;
use crate::link::STRIPES_MAX;

/// The receiving end of a bundle. What it writes goes out on the first stripe.
pub(crate) struct BundleReceiver {
    stripes: Vec<IncomingStripe>,
    joining: mpsc::Receiver<Stripe>,
    /// How many bytes have come in.
    received: Arc<AtomicU64>,
    /// How many pieces have begun.
    piece_count: u64,
    /// The stripe of the piece that has begun, and how many of its bytes are still to come.
    current: (usize, u32),
}

struct IncomingStripe {
    records: Records,
    /// The head of its next piece, as far as it was read.
    head: ([u8; HEAD_BYTES], usize),
    /// `None` for the first stripe.
    _place: Option<OwnedSemaphorePermit>,
}

/// What a stripe has next.
enum Next {
    Piece(PieceHead),
    /// The other end has closed it after a piece.
    End,
}

impl BundleReceiver {
    /// A bundle of one stripe, to which others may be added.
    pub(crate) fn new(first: Records, joining: mpsc::Receiver<Stripe>, received: Arc<AtomicU64>) -> Self {
        let stripes = vec![IncomingStripe::new(first, None)];
        Self { stripes, joining, received, piece_count: 0, current: (0, 0) }
    }

    /// How many stripes there are.
    #[cfg(test)]
    pub(super) fn stripe_count(&self) -> usize {
        self.stripes.len()
    }

    /// Finds the stripe that has the next piece. Returns false at the end of the first stripe.
    fn poll_begin(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        while let Poll::Ready(Some(Stripe { records, place })) = self.joining.poll_recv(context) {
            // More than a correct peer adds are closed at once.
            if self.stripes.len() < STRIPES_MAX {
                self.stripes.push(IncomingStripe::new(records, Some(place)));
            }
        }
        let mut index = 0;
        while let Some(stripe) = self.stripes.get_mut(index) {
            match stripe.poll_next(context, self.piece_count)? {
                Poll::Ready(Next::Piece(head)) if head.number == self.piece_count => {
                    stripe.head.1 = 0;
                    self.piece_count += 1;
                    self.current = (index, head.byte_count);
                    return Poll::Ready(Ok(true));
                }
                Poll::Ready(Next::End) if index == 0 => return Poll::Ready(Ok(false)),
                Poll::Ready(Next::End) => drop(self.stripes.remove(index)),
                // Its turn comes later, or nothing has arrived.
                Poll::Ready(Next::Piece(_)) | Poll::Pending => index += 1,
            }
        }
        Poll::Pending
    }
}

impl IncomingStripe {
    fn new(records: Records, place: Option<OwnedSemaphorePermit>) -> Self {
        Self { records, head: ([0; HEAD_BYTES], 0), _place: place }
    }

    fn poll_next(&mut self, context: &mut Context<'_>, expected: u64) -> Poll<io::Result<Next>> {
        let (bytes, filled) = &mut self.head;
        while *filled < HEAD_BYTES {
            let room = &mut bytes[*filled..];
            match ready!(Pin::new(&mut self.records).poll_read(context, room))? {
                0 if *filled == 0 => return Poll::Ready(Ok(Next::End)),
                0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                count => *filled += count,
            }
        }
        Poll::Ready(PieceHead::from_bytes(*bytes, expected).map(Next::Piece))
    }
}

impl AsyncRead for BundleReceiver {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.current.1 == 0 && !ready!(this.poll_begin(context))? {
            return Poll::Ready(Ok(0));
        }
        let (index, rest) = &mut this.current;
        let count = room.len().min(*rest as usize);
        let records = Pin::new(&mut this.stripes[*index].records);
        match ready!(records.poll_read(context, &mut room[..count]))? {
            0 if count > 0 => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            read => {
                *rest -= read as u32;
                this.received.fetch_add(read as u64, Ordering::Relaxed);
                Poll::Ready(Ok(read))
            }
        }
    }
}

impl AsyncWrite for BundleReceiver {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stripes[0].records).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stripes[0].records).poll_flush(context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stripes[0].records).poll_close(context)
    }
}
