//! Fetching: the data file of the run, as a member sends it in pieces.
//!
//! A small file is collected in memory. A larger one goes to disk piece by piece. A piece is requested only after those before the window are
//! stored, so a disk that is slower than the line makes the sender wait.
//!
//! ```text
//! member --piece--> received --stored on disk--> requests move on ... all stored --> the file is opened, and its digest checked
//! ```

use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::{DATA_PIECE_BYTES_MAX, DATA_PIECES_IN_FLIGHT_MAX, KEPT_DATA_BYTES_MAX};
use peergrad_protocol::message::{DataPiece, JoinMessage, Message, WantData};
use peergrad_protocol::{Buffer, Frame, PeerId};

use crate::io::{DataReference, Event, Output, Reject};

/// A data file on its way here.
pub(super) struct Fetching {
    reference: DataReference,
    kept: Kept,
    /// The offset up to which bytes were requested.
    requested: u64,
    /// Whether some of the bytes are from an earlier try.
    is_resumed: bool,
}

/// The bytes that have arrived.
enum Kept {
    /// They are in memory.
    Memory(Vec<u8>),
    /// They were handed to the disk, which has written those before `stored`.
    Disk { received: u64, stored: u64 },
}

/// What is to be done after a piece.
pub(super) enum Fetched {
    /// More pieces are on their way.
    Part,
    /// All bytes are in memory.
    Whole(Vec<u8>),
}

impl Fetching {
    /// A file of which the disk has the first `stored` bytes from an earlier try.
    pub(super) fn new(reference: DataReference, stored: u64) -> Self {
        let is_small = reference.byte_count <= KEPT_DATA_BYTES_MAX;
        // Pieces begin where a member cuts the file. What is left of one is fetched again.
        let stored = if is_small || stored >= reference.byte_count { 0 } else { stored };
        let stored = stored - stored % DATA_PIECE_BYTES_MAX as u64;
        let kept = if is_small { Kept::Memory(Vec::new()) } else { Kept::Disk { received: stored, stored } };
        Self { reference, kept, requested: stored, is_resumed: stored > 0 }
    }

    fn received(&self) -> u64 {
        match &self.kept {
            Kept::Memory(bytes) => bytes.len() as u64,
            Kept::Disk { received, .. } => *received,
        }
    }

    /// The bytes behind which the window of requests begins.
    fn settled(&self) -> u64 {
        match &self.kept {
            Kept::Memory(bytes) => bytes.len() as u64,
            Kept::Disk { stored, .. } => *stored,
        }
    }

    /// Requests pieces until the window is full. If all pieces are on disk, asks for the file.
    pub(super) fn request(&mut self, donor: PeerId, out: &mut Vec<Output>) {
        let total = self.reference.byte_count;
        if matches!(self.kept, Kept::Disk { stored, .. } if stored == total) {
            out.push(Output::FindData(self.reference.clone()));
            return;
        }
        // Each piece that arrives brings two more, up to the limit: a long line needs many, and a slow one few.
        let in_flight_max = (DATA_PIECES_IN_FLIGHT_MAX * DATA_PIECE_BYTES_MAX) as u64;
        let settled = self.settled();
        let end = settled + in_flight_max.min(in_flight_max / 8 + settled);
        while self.requested < total.min(end) {
            let want = WantData { digest: self.reference.digest, offset: self.requested };
            let message = Message::Join(JoinMessage::WantData(want));
            out.push(Output::Send { to: donor, frame: Frame::encode(&message, None) });
            self.requested = total.min(self.requested + DATA_PIECE_BYTES_MAX as u64);
        }
    }

    /// The link to the donor is up again: requests again the pieces that were on their way.
    pub(super) fn restart(&mut self, donor: PeerId, out: &mut Vec<Output>) {
        if self.received() < self.reference.byte_count {
            self.requested = self.received();
            self.request(donor, out);
        }
    }

    /// The disk has the file up to this offset. `donor` is asked for more, or by [`restart`](Self::restart) when there is one.
    pub(super) fn stored(&mut self, byte_count: u64, donor: Option<PeerId>, out: &mut Vec<Output>) {
        if let Kept::Disk { received, stored } = &mut self.kept {
            *stored = byte_count.min(*received);
            let is_whole = *stored == self.reference.byte_count;
            if let Some(donor) = donor {
                self.request(donor, out);
            } else if is_whole {
                out.push(Output::FindData(self.reference.clone()));
            }
        }
    }

    /// A piece has arrived. A piece at another offset than the next one was requested twice, and is dropped.
    ///
    /// # Errors
    /// The piece is not of the requested file or was not requested, or the complete file does not match the digest in the specification.
    pub(super) fn piece(
        &mut self,
        from: PeerId,
        piece: DataPiece,
        payload: &Buffer,
        out: &mut Vec<Output>,
    ) -> Result<Fetched, Reject> {
        let before = self.received();
        if piece.offset != before {
            return Ok(Fetched::Part);
        }
        let total = self.reference.byte_count;
        let expected = (total - before).min(DATA_PIECE_BYTES_MAX as u64);
        let end = before + expected;
        if end > self.requested || payload.byte_count() as u64 != expected || expected == 0 {
            return Err(Reject::Data);
        }
        match &mut self.kept {
            Kept::Memory(bytes) => {
                bytes.extend_from_slice(payload.bytes());
                out.push(Output::Event(Event::FetchingData { received: end, total }));
                if end < total {
                    self.request(from, out);
                    return Ok(Fetched::Part);
                }
                let bytes = std::mem::take(bytes);
                if ContentDigest::of(&bytes) == self.reference.digest {
                    return Ok(Fetched::Whole(bytes));
                }
                // The transfer starts again from offset 0. After too many rejects this peer ignores the sender.
                self.requested = 0;
                self.request(from, out);
                Err(Reject::Data)
            }
            Kept::Disk { received, .. } => {
                *received = end;
                if hundredths(end, total) != hundredths(before, total) {
                    out.push(Output::Event(Event::FetchingData { received: end, total }));
                }
                let (reference, piece) = (self.reference.clone(), payload.bytes().into());
                out.push(Output::StorePiece { reference, offset: before, piece });
                Ok(Fetched::Part)
            }
        }
    }

    /// All pieces are on disk, but they are another file. Returns whether fetching begins again: what an earlier try has left may be damaged.
    pub(super) fn begin_again(&mut self) -> bool {
        let is_resumed = std::mem::take(&mut self.is_resumed);
        if is_resumed {
            (self.kept, self.requested) = (Kept::Disk { received: 0, stored: 0 }, 0);
        }
        is_resumed
    }
}

/// How many hundredths of a file are here.
fn hundredths(received: u64, total: u64) -> u64 {
    (u128::from(received) * 100 / u128::from(total.max(1))) as u64
}
