//! The outgoing lane: writes the frames of an outbox, reads acknowledgements, and ends when nothing moves.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use super::handshake::ACKNOWLEDGEMENT_BYTES;
use super::line::Pace;
use super::outbox::Next;
use super::{
    Acknowledgement, LaneError, LaneKind, Link, LinkEvent, OpenRequest, OpenResponse, STALL_TIMEOUT,
};
use crate::counters::{Counters, LaneCounters};

/// Sends the opening on a new stream, and reads the answer.
pub(crate) async fn open(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    opening: OpenRequest,
) -> Result<OpenResponse, LaneError> {
    let greeting = async {
        opening.write(stream).await?;
        OpenResponse::read(stream).await
    };
    timeout(STALL_TIMEOUT, greeting).await.unwrap_or(Err(LaneError::Stalled))
}

/// Sends the link's frames until the lane breaks or another lane takes its place.
///
/// `lane` is the outbox's number of this lane. Without an acknowledgement for the given patience the lane counts as broken.
pub(crate) async fn transmit(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    (lane_kind, patience): (LaneKind, Duration),
    link: &Arc<Link>,
    lane: u64,
    events: &mpsc::UnboundedSender<LinkEvent>,
    counters: &Counters,
) -> Result<(), LaneError> {
    link.is_direct.store(lane_kind == LaneKind::Direct, Ordering::Relaxed);
    let (reader, writer) = stream.split();
    let counters = &counters.with(link.peer());
    let _ending = LaneEnding { link, lane };
    // The first of these that ends ends the lane. The next lane writes a half-written frame again.
    tokio::select! {
        ended = write_frames(writer, lane_kind, link, lane, counters) => ended,
        ended = read_acknowledgements(reader, link, lane, events, counters) => ended,
        ended = watch(link, lane, patience) => ended,
    }
}

/// However a lane ends, even if its task is cancelled, it takes nothing of the uplink any more.
struct LaneEnding<'a> {
    link: &'a Link,
    lane: u64,
}

impl Drop for LaneEnding<'_> {
    fn drop(&mut self) {
        self.link.outbox.lane_ended(self.lane);
    }
}

async fn write_frames(
    mut writer: impl AsyncWrite + Unpin,
    lane_kind: LaneKind,
    link: &Link,
    lane: u64,
    counters: &LaneCounters<'_>,
) -> Result<(), LaneError> {
    loop {
        match link.outbox.next(lane) {
            Next::Frame(frame, pace) => {
                writer.write_all(&frame.head).await?;
                match (&frame.payload, pace) {
                    (Some(payload), Some(pace)) => write_paced(&mut writer, payload.bytes(), &pace).await?,
                    (Some(payload), None) => writer.write_all(payload.bytes()).await?,
                    (None, _) => {}
                }
                counters.add_sent_frame(lane_kind, frame.byte_count());
            }
            Next::Wait(time) => tokio::select! {
                // What was written goes out before this end waits.
                biased;
                ended = flush(&mut writer) => ended?,
                () = link.outbox.changed(time) => {}
            },
            Next::Stop => return Ok(()),
        }
    }
}

/// Writes part by part, each when its time has come and the system has taken what was written before. So several connections, each with a
/// window of its own, hold no more than one.
async fn write_paced(
    writer: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    pace: &Pace,
) -> Result<(), LaneError> {
    for (index, part) in bytes.chunks(PART_BYTES).enumerate() {
        let time = pace.time(index * PART_BYTES);
        if time > Instant::now() {
            writer.flush().await?;
            sleep_until(time).await;
        }
        writer.write_all(part).await?;
    }
    Ok(())
}

/// Hands over what was written, and then waits for good.
async fn flush(writer: &mut (impl AsyncWrite + Unpin)) -> Result<(), LaneError> {
    writer.flush().await?;
    std::future::pending().await
}

async fn read_acknowledgements(
    mut reader: impl AsyncRead + Unpin,
    link: &Arc<Link>,
    lane: u64,
    events: &mpsc::UnboundedSender<LinkEvent>,
    counters: &LaneCounters<'_>,
) -> Result<(), LaneError> {
    loop {
        let acknowledgement = Acknowledgement::read(&mut reader).await?;
        counters.add_received_bytes(ACKNOWLEDGEMENT_BYTES);
        let segments = link.outbox.acknowledge(lane, acknowledgement)?;
        // A driver that is gone needs neither.
        if segments > 0 {
            let _ = events.send(LinkEvent::Credit { link: Arc::clone(link), segments });
        }
        if let Some(line) = link.outbox.take_line_news() {
            counters.note_line(line);
            let _ = events.send(LinkEvent::LineMeasured { link: Arc::clone(link), line });
        }
        if let Some(bytes_per_second) = link.outbox.take_uplink_news() {
            let _ = events.send(LinkEvent::UplinkMeasured { bytes_per_second });
        }
    }
}

async fn watch(link: &Link, lane: u64, patience: Duration) -> Result<(), LaneError> {
    let mut looks = interval(patience / 10);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        if link.outbox.is_stalled(lane, patience) {
            return Err(LaneError::Stalled);
        }
    }
}

/// A part fills a record.
const PART_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use peergrad_protocol::{Frame, Incarnation, PeerId};

    use super::super::{Route, SessionId};
    use super::*;

    /// Takes everything and never says a word: a half-open connection, or a stalled multiplexer. Notes when it took how many bytes.
    #[derive(Default)]
    struct Silent(Vec<(Instant, usize)>);

    impl AsyncRead for Silent {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut [u8]) -> Poll<io::Result<usize>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Silent {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.0.push((Instant::now(), bytes.len()));
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lane_without_acknowledgements_is_given_up_but_an_idle_one_is_not() {
        let link = Arc::new(Link::new(PeerId([1; 32]), SessionId::draw(Incarnation(1)), Route::Straight));
        let (events, _heard) = mpsc::unbounded_channel();
        let counters = Counters::default();
        let (lane, _) = link.outbox.start_lane(Acknowledgement::default()).unwrap().unwrap();
        let mut lane = std::pin::pin!(transmit(
            Silent::default(),
            (LaneKind::Substream, STALL_TIMEOUT),
            &link,
            lane,
            &events,
            &counters
        ));
        assert!(timeout(10 * STALL_TIMEOUT, &mut lane).await.is_err(), "nothing was under way");
        link.send(Frame { head: vec![1; 10], payload: None });
        assert!(matches!(lane.await, Err(LaneError::Stalled)));
    }

    #[tokio::test(start_paused = true)]
    async fn parts_of_a_frame_leave_one_after_another() {
        let (begin, mut writer) = (Instant::now(), Silent::default());
        let pace = Pace { begin, bytes_per_second: PART_BYTES as u64 * 50 };
        write_paced(&mut writer, &[1; 3 * PART_BYTES + 7], &pace).await.unwrap();
        let expected = [(0, PART_BYTES), (20, PART_BYTES), (40, PART_BYTES), (60, 7)];
        let expected = expected.map(|(millis, count)| (begin + Duration::from_millis(millis), count));
        assert_eq!(writer.0, expected);
    }
}
