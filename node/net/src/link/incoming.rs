//! The incoming lane: reads frames straight into pooled buffers, hands them over, and acknowledges.

use std::io;
use std::num::{NonZeroU16, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use futures::{AsyncRead, AsyncReadExt, AsyncWrite};
use peergrad_protocol::wire::{PREFIX_BYTES, Prefix};
use peergrad_protocol::{Frame, Pool};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::handshake::ACKNOWLEDGEMENT_BYTES;
use super::inbox::InboxStatus;
use super::{
    Acknowledgement, GOODBYE, LaneError, Link, LinkEvent, OpenRequest, OpenResponse, STALL_TIMEOUT,
    SessionId, Verdict,
};
use crate::counters::{Counters, LaneCounters};

/// Reads the opening of a lane.
pub(crate) async fn read_opening(stream: &mut (impl AsyncRead + Unpin)) -> Result<OpenRequest, LaneError> {
    timeout(STALL_TIMEOUT, OpenRequest::read(stream)).await.unwrap_or(Err(LaneError::Stalled))
}

/// Tells the opener why it may not send frames, and this end's session.
pub(crate) async fn refuse(
    stream: &mut (impl AsyncWrite + Unpin),
    verdict: Verdict,
    session: SessionId,
) -> Result<(), LaneError> {
    answer(stream, verdict, session).await
}

/// Tells the opener that its connection is added to the lane that it named.
pub(crate) async fn welcome_stripe(
    stream: &mut (impl AsyncWrite + Unpin),
    session: SessionId,
) -> Result<(), LaneError> {
    answer(stream, Verdict::Welcome, session).await
}

async fn answer(
    stream: &mut (impl AsyncWrite + Unpin),
    verdict: Verdict,
    session: SessionId,
) -> Result<(), LaneError> {
    let acknowledgement = Acknowledgement::default();
    let answer = OpenResponse { verdict, port: None, session, acknowledgement, token: None };
    timeout(STALL_TIMEOUT, answer.write(stream)).await.unwrap_or(Err(LaneError::Stalled))
}

/// Receives frames until the lane breaks, another takes its place, or the other end says goodbye.
///
/// `lane` and `start` come from the inbox. `said_goodbye` is called just before a goodbye is acknowledged: after that the other
/// end closes the connection, which must not look like a loss.
pub(crate) async fn receive(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    link: &Arc<Link>,
    (lane, start): (u64, Acknowledgement),
    session: SessionId,
    shared: &Shared<'_>,
    said_goodbye: impl FnOnce(),
) -> Result<(), LaneError> {
    let (mut reader, mut writer) = stream.split();
    let (verdict, port, token) = (Verdict::Welcome, shared.port, shared.token);
    OpenResponse { verdict, port, session, acknowledgement: start, token }.write(&mut writer).await?;
    let counters = &shared.counters.with(link.peer());
    let reading = async {
        match read_frames(&mut reader, link, lane, shared, counters).await {
            Ok(End::Goodbye) => said_goodbye(),
            Ok(End::Superseded) => {}
            Err(error) => return error,
        }
        // The writer ends by itself when the goodbye is acknowledged.
        std::future::pending().await
    };
    let writing = write_acknowledgements(&mut writer, link, lane, start, counters);
    let ended = tokio::select! {
        error = reading => return Err(error),
        ended = writing => ended?,
    };
    if ended == End::Goodbye {
        // The other end closes first, so that nothing in flight to it is lost. If it never does, the network closes the
        // connection.
        let mut rest = [0; 1];
        let _ = timeout(STALL_TIMEOUT, reader.read(&mut rest)).await;
    }
    Ok(())
}

/// What an incoming lane needs besides its stream and its link.
pub(crate) struct Shared<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) events: &'a mpsc::UnboundedSender<LinkEvent>,
    pub(crate) counters: &'a Counters,
    /// The port on which this peer listens for direct lanes; `None` if it offers none.
    pub(crate) port: Option<NonZeroU16>,
    /// What a connection names that is added to the lane; `None` if none can be added.
    pub(crate) token: Option<NonZeroU64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Goodbye,
    Superseded,
}

async fn read_frames(
    reader: &mut (impl AsyncRead + Unpin),
    link: &Arc<Link>,
    lane: u64,
    shared: &Shared<'_>,
    counters: &LaneCounters<'_>,
) -> Result<End, LaneError> {
    loop {
        // A place is taken before reading: a full queue pauses the reading, and with it the sender.
        let room =
            Arc::clone(&link.inbox.room).acquire_owned().await.expect("the inbox never closes its room");
        let Some(frame) = read_frame(reader, link, shared.pool).await? else {
            return Ok(if link.inbox.note_goodbye(lane) { End::Goodbye } else { End::Superseded });
        };
        let byte_count = frame.byte_count();
        let event = LinkEvent::Frame { link: Arc::clone(link), frame, room };
        let hand_over = || {
            counters.add_received_frame(byte_count);
            // A driver that is gone needs no frames.
            drop(shared.events.send(event));
        };
        if !link.inbox.deliver(lane, hand_over) {
            return Ok(End::Superseded);
        }
    }
}

/// Reads a frame; `None` for a goodbye. Memory is allocated only after the lengths are found to be within the limits.
async fn read_frame(
    reader: &mut (impl AsyncRead + Unpin),
    link: &Link,
    pool: &Pool,
) -> Result<Option<Frame>, LaneError> {
    let mut prefix_bytes = [0; PREFIX_BYTES];
    reader.read_exact(&mut prefix_bytes).await?;
    if prefix_bytes == GOODBYE {
        return Ok(None);
    }
    let prefix = Prefix::decode(prefix_bytes)?;
    let mut head = vec![0; PREFIX_BYTES + prefix.header_bytes];
    head[..PREFIX_BYTES].copy_from_slice(&prefix_bytes);
    reader.read_exact(&mut head[PREFIX_BYTES..]).await?;
    let payload = match prefix.payload_bytes {
        0 => None,
        byte_count => {
            let mut buffer = pool.take_bytes(byte_count);
            let mut rest = buffer.bytes_mut();
            // The whole free space is offered, so that one call reads as much as has arrived.
            while !rest.is_empty() {
                let count = reader.read(rest).await?;
                if count == 0 {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                link.inbox.moved();
                rest = &mut rest[count..];
            }
            Some(buffer)
        }
    };
    Ok(Some(Frame { head, payload }))
}

/// Writes how far this end has come whenever that has changed, and now and then while a large frame arrives slowly, so that the
/// other end does not take a slow line for a dead one.
async fn write_acknowledgements(
    writer: &mut (impl AsyncWrite + Unpin),
    link: &Link,
    lane: u64,
    start: Acknowledgement,
    counters: &LaneCounters<'_>,
) -> Result<End, LaneError> {
    let mut written = start;
    loop {
        match link.inbox.status(lane) {
            InboxStatus::At(acknowledgement) | InboxStatus::Final(acknowledgement)
                if acknowledgement != written =>
            {
                acknowledgement.write(writer).await?;
                counters.add_sent_bytes(ACKNOWLEDGEMENT_BYTES);
                written = acknowledgement;
            }
            InboxStatus::At(acknowledgement) => {
                let news = timeout(STILL_COMING, link.inbox.changed()).await;
                if news.is_err() && link.inbox.take_moved() {
                    acknowledgement.write(writer).await?;
                    counters.add_sent_bytes(ACKNOWLEDGEMENT_BYTES);
                }
            }
            InboxStatus::Final(_) => return Ok(End::Goodbye),
            InboxStatus::Superseded => return Ok(End::Superseded),
        }
    }
}

/// How often progress within a frame is reported.
const STILL_COMING: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use peergrad_protocol::{Incarnation, PeerId};

    use super::super::Route;
    use super::*;

    /// Says goodbye, and closes as soon as that is acknowledged. Notes what was known here at each write.
    struct Leaver<'a> {
        unread: &'static [u8],
        is_goodbye_known: &'a Cell<bool>,
        writes: &'a RefCell<Vec<(usize, bool)>>,
    }

    impl AsyncRead for Leaver<'_> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            room: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            if self.unread.is_empty() && self.writes.borrow().len() < 2 {
                return Poll::Pending;
            }
            let (read, unread) = self.unread.split_at(room.len().min(self.unread.len()));
            room[..read.len()].copy_from_slice(read);
            self.unread = unread;
            Poll::Ready(Ok(read.len()))
        }
    }

    impl AsyncWrite for Leaver<'_> {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.writes.borrow_mut().push((bytes.len(), self.is_goodbye_known.get()));
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn a_goodbye_is_known_before_it_is_acknowledged() {
        let (is_goodbye_known, writes) = (Cell::new(false), RefCell::default());
        let leaver = Leaver { unread: &GOODBYE, is_goodbye_known: &is_goodbye_known, writes: &writes };
        let session = SessionId::draw(Incarnation(1));
        let link = Arc::new(Link::new(PeerId([1; 32]), session, Route::Straight));
        let (events, _heard) = mpsc::unbounded_channel();
        let (pool, counters) = (Pool::new(1), Counters::default());
        let shared = Shared { pool: &pool, events: &events, counters: &counters, port: None, token: None };
        let said_goodbye = || {
            is_goodbye_known.set(true);
            // The actor may be done with the link at once.
            link.close();
        };
        let lane = link.inbox.start_lane();
        receive(leaver, &link, lane, session, &shared, said_goodbye).await.unwrap();
        assert_eq!(*writes.borrow(), [(52, false), (24, true)], "the answer, and the acknowledgement");
    }
}
