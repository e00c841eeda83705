//! The outbox: frames to send, and frames that are sent and not yet acknowledged. It outlives the lanes that empty it.
//!
//! ```text
//!   acknowledged          next            acknowledged + retained
//!      |  in flight    |   waiting       |
//! -----[###############|uuu##############]        frames are numbered from 0 within a link
//! ```
//! An urgent frame (`u`) goes before all normal ones that wait. A frame has its number once it is sent, and keeps it when it is sent again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use peergrad_core::io::Line;
use peergrad_protocol::Frame;
use peergrad_protocol::limits::LINK_SEGMENTS_MAX;
use peergrad_protocol::message::Priority;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::line::{LineMeter, Pace, Turn, Uplink};
use super::stripes::{Throughput, ThroughputMeter};
use super::{Acknowledgement, LaneError, STALL_TIMEOUT};

/// Frames of one life of a link, until they are acknowledged.
#[derive(Debug)]
pub(crate) struct Outbox {
    state: Mutex<OutboxState>,
    /// Wakes the writer of the current lane: there may be something to write.
    changed: Notify,
    /// Wakes those that wait for the end: the last frame is acknowledged, or the outbox is closed.
    settled: Notify,
}

#[derive(Debug)]
struct OutboxState {
    retained: VecDeque<Arc<Frame>>,
    acknowledged: u64,
    next: u64,
    /// How many frames were ever sent. Those after `next` among them are sent again, in the same order.
    sent: u64,
    /// What is known of the line, which bounds what may be in flight.
    line: LineMeter,
    throughput: ThroughputMeter,
    consumed: u64,
    /// Grows with each lane. A writer of an earlier lane sees another number and stops.
    lane: u64,
    moved_at: Instant,
    /// How many lanes in a row were opened and then stalled behind more bytes than a small packet holds. A large frame that is acknowledged
    /// resets it.
    stalls_behind_large: u32,
    finished: bool,
    closed: bool,
}

/// What a lane's writer has to do.
#[derive(Debug)]
pub(super) enum Next {
    /// Write this frame, on a slow line at this pace.
    Frame(Arc<Frame>, Option<Pace>),
    /// Wait until something changes, or until this time: nothing may be written now.
    Wait(Option<Instant>),
    /// End: another lane has taken over, or the link is closed.
    Stop,
}

impl Default for Outbox {
    fn default() -> Self {
        let state = OutboxState {
            retained: VecDeque::new(),
            acknowledged: 0,
            next: 0,
            sent: 0,
            line: LineMeter::new(Instant::now()),
            throughput: ThroughputMeter::default(),
            consumed: 0,
            lane: 0,
            moved_at: Instant::now(),
            stalls_behind_large: 0,
            finished: false,
            closed: false,
        };
        Self { state: Mutex::new(state), changed: Notify::new(), settled: Notify::new() }
    }
}

impl Outbox {
    pub(super) fn push(&self, frame: Frame) {
        self.queue(&mut self.lock(), frame);
    }

    /// Queues the last frame. Frames that are pushed after it are dropped.
    pub(super) fn finish(&self, last: Frame) {
        let mut state = self.lock();
        self.queue(&mut state, last);
        state.finished = true;
    }

    fn queue(&self, state: &mut OutboxState, frame: Frame) {
        if !state.closed && !state.finished {
            let place = match frame.priority() {
                Priority::Urgent => state.first_waiting_normal(),
                Priority::Normal => state.retained.len(),
            };
            state.retained.insert(place, Arc::new(frame));
            state.throughput.note_waiting(Instant::now(), true);
            self.changed.notify_one();
        }
    }

    /// Releases all frames: no acknowledgement will come.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.retained.clear();
        drop(state);
        self.changed.notify_one();
        self.settled.notify_waiters();
    }

    /// This lane has ended, and perhaps another one has begun. What was in flight on it waits for the next lane, and other lines need not
    /// wait for that.
    pub(super) fn lane_ended(&self, lane: u64) {
        let mut state = self.lock();
        if state.lane == lane {
            state.line.leave_uplink();
        }
    }

    /// Starts a lane, after the frames that the other end has.
    ///
    /// Returns the lane's number and the new credit, or `None` if the link is closed.
    ///
    /// # Errors
    /// The other end's position is impossible: one of the two ends has lost its memory, and the link cannot continue.
    pub(crate) fn start_lane(
        &self,
        acknowledgement: Acknowledgement,
    ) -> Result<Option<(u64, u32)>, LaneError> {
        let mut state = self.lock();
        if state.closed {
            return Ok(None);
        }
        let credit = state.release(acknowledgement)?;
        state.next = acknowledgement.received;
        state.line.restart(Instant::now());
        state.lane += 1;
        state.moved_at = Instant::now();
        // Wakes the writer of the earlier lane, which then ends.
        self.changed.notify_one();
        if state.is_drained() {
            self.settled.notify_waiters();
        }
        Ok(Some((state.lane, credit)))
    }

    /// Takes the next frame to write, if there is one and it may be written now.
    pub(super) fn next(&self, lane: u64) -> Next {
        let mut state = self.lock();
        if state.closed || state.lane != lane {
            // The wake-up may have been for the next lane.
            self.changed.notify_one();
            return Next::Stop;
        }
        let position = state.in_flight_count();
        let Some(frame) = state.retained.get(position).cloned() else { return Next::Wait(None) };
        let (now, size) = (Instant::now(), frame.byte_count());
        match state.line.turn(now, size) {
            Turn::Now => {}
            Turn::At(time) => return Next::Wait(Some(time)),
            Turn::AfterAcknowledgement => return Next::Wait(None),
        }
        if state.line.in_flight_bytes() == 0 {
            // The wait for an acknowledgement begins only now.
            state.moved_at = now;
        }
        let was_last = position + 1 == state.retained.len();
        let pace = state.line.note_sent(now, size, was_last);
        state.throughput.note_waiting(now, !was_last);
        state.next += 1;
        state.sent = state.sent.max(state.next);
        Next::Frame(frame, pace)
    }

    /// Waits until something changes, or until this time.
    pub(super) async fn changed(&self, time: Option<Instant>) {
        match time {
            // The time has come, or something has changed: the writer looks again.
            Some(time) => drop(timeout_at(time, self.changed.notified()).await),
            None => self.changed.notified().await,
        }
    }

    /// Forgets the frames that the other end has, and returns the new credit.
    ///
    /// # Errors
    /// The acknowledgement does not fit the frames that were sent.
    pub(super) fn acknowledge(&self, lane: u64, acknowledgement: Acknowledgement) -> Result<u32, LaneError> {
        let mut state = self.lock();
        if state.closed || state.lane != lane {
            return Ok(0);
        }
        if acknowledgement.received > state.next {
            return Err(LaneError::Acknowledgement);
        }
        let frames = usize::try_from(acknowledgement.received.saturating_sub(state.acknowledged));
        let credit = state.release(acknowledgement)?;
        let now = Instant::now();
        state.line.note_acknowledged(now, frames.unwrap_or(usize::MAX), acknowledgement.arrived_at);
        state.moved_at = now;
        let is_drained = state.is_drained();
        drop(state);
        self.changed.notify_one();
        if is_drained {
            self.settled.notify_waiters();
        }
        Ok(credit)
    }

    /// Whether more than a few small frames wait, or are not acknowledged.
    pub(super) fn is_busy(&self) -> bool {
        let state = self.lock();
        let mut bytes = state.retained.iter().scan(0, |sum, frame| {
            *sum += frame.byte_count();
            Some(*sum)
        });
        bytes.any(|sum| sum > BUSY_BYTES)
    }

    /// What the line carries; `None` before the first measurement.
    pub(super) fn line(&self) -> Option<Line> {
        self.lock().line.line(Instant::now())
    }

    /// What was acknowledged while frames waited for the line.
    pub(crate) fn throughput(&self) -> Throughput {
        self.lock().throughput.sum(Instant::now())
    }

    /// How many connections share what is in flight.
    pub(super) fn stripe_count(&self) -> usize {
        self.lock().line.stripes()
    }

    /// So many connections of this lane share what is in flight from now on.
    pub(crate) fn set_stripes(&self, lane: u64, count: usize) {
        let mut state = self.lock();
        if state.lane == lane {
            state.line.set_stripes(Instant::now(), count);
            drop(state);
            self.changed.notify_one();
        }
    }

    /// The line is one of those that share this uplink.
    pub(super) fn share(&self, uplink: Uplink) {
        self.lock().line.share(uplink);
    }

    /// A ping to the same peer has come back over a connection of its own.
    pub(super) fn note_ping(&self, round_trip: Duration) {
        self.lock().line.note_ping(Instant::now(), round_trip);
    }

    /// How many bytes a second all long lines of this peer carry together, if that differs much from what was last returned.
    pub(super) fn take_uplink_news(&self) -> Option<u64> {
        self.lock().line.take_uplink_news(Instant::now())
    }

    /// What the line carries, if that differs much from what was last returned.
    pub(super) fn take_line_news(&self) -> Option<Line> {
        self.lock().line.take_news(Instant::now())
    }

    /// Whether frames have been in flight for too long without an acknowledgement. If so, the lane ends. On a long line an
    /// acknowledgement gets more time than this patience, as [`LineMeter::patience`] says.
    pub(super) fn is_stalled(&self, lane: u64, patience: Duration) -> bool {
        let mut state = self.lock();
        let is_stalled = state.lane == lane
            && state.line.in_flight_bytes() > 0
            && state.moved_at.elapsed() > state.line.patience(patience);
        if is_stalled && state.line.in_flight_bytes() > SMALL_PACKET_BYTES {
            state.stalls_behind_large += 1;
        }
        is_stalled
    }

    /// Whether small messages arrive and large ones do not: each new lane was opened, which takes small messages, and then stalled.
    pub(crate) fn loses_large_packets(&self) -> bool {
        self.lock().stalls_behind_large >= STALLS_BEHIND_LARGE
    }

    /// Whether the other end has just acknowledged something, or reported progress.
    pub(super) fn is_moving(&self) -> bool {
        let state = self.lock();
        state.line.in_flight_bytes() > 0 && state.moved_at.elapsed() <= STALL_TIMEOUT
    }

    /// Waits until the last frame is queued and all frames are acknowledged, or the outbox is closed.
    pub(super) async fn drained(&self) {
        loop {
            // Waiting begins before the check: otherwise a wake-up could fall in between.
            let news = self.settled.notified();
            if self.lock().is_drained() {
                return;
            }
            news.await;
        }
    }

    /// A panic elsewhere cannot leave the state half-changed: nothing in between can panic.
    fn lock(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OutboxState {
    /// How many frames are in flight.
    fn in_flight_count(&self) -> usize {
        usize::try_from(self.next - self.acknowledged).expect("retained frames fit in memory")
    }

    /// The index of the first normal frame that waits to be sent for the first time, or of the end.
    fn first_waiting_normal(&self) -> usize {
        let begin = usize::try_from(self.sent - self.acknowledged).expect("retained frames fit in memory");
        let waiting = self.retained.range(begin..);
        begin + waiting.take_while(|frame| frame.priority() == Priority::Urgent).count()
    }

    /// Even with nothing retained, the last frame may still follow.
    fn is_drained(&self) -> bool {
        self.closed || (self.finished && self.retained.is_empty())
    }

    fn release(&mut self, acknowledgement: Acknowledgement) -> Result<u32, LaneError> {
        let news =
            acknowledgement.received.checked_sub(self.acknowledged).ok_or(LaneError::Acknowledgement)?;
        let credit = acknowledgement.consumed.checked_sub(self.consumed).ok_or(LaneError::Acknowledgement)?;
        // Each segment is a frame, so no more segments than frames can have been consumed, and credit for a larger window is limited; and
        // only frames that were written can have arrived.
        let consumed_max = acknowledgement.received.saturating_add(u64::from(LINK_SEGMENTS_MAX));
        if acknowledgement.consumed > consumed_max || acknowledgement.received > self.sent {
            return Err(LaneError::Acknowledgement);
        }
        let credit = u32::try_from(credit).map_err(|_| LaneError::Acknowledgement)?;
        for frame in self.retained.drain(..usize::try_from(news).expect("not more than are retained")) {
            self.throughput.note_acknowledged(frame.byte_count());
            if frame.byte_count() > SMALL_PACKET_BYTES {
                self.stalls_behind_large = 0;
            }
        }
        self.acknowledged = acknowledgement.received;
        self.consumed = acknowledgement.consumed;
        Ok(credit)
    }
}

/// What even a slow line carries within a moment.
const BUSY_BYTES: usize = 8 << 10;
/// Every network carries packets of this size.
const SMALL_PACKET_BYTES: usize = 1200;
/// A single stall may be a line that was cut.
const STALLS_BEHIND_LARGE: u32 = 2;

#[cfg(test)]
mod tests {
    use peergrad_protocol::message::{AgreementMessage, Message};
    use peergrad_protocol::view::{Complaint, MemberFault};
    use peergrad_protocol::{Rank, ViewDigest};

    use super::*;

    /// What may be in flight on a line that has not been measured.
    const IN_FLIGHT: usize = 256 << 10;

    fn frame(size: usize) -> Frame {
        Frame { head: vec![1; size], payload: None }
    }

    fn sizes_ready(outbox: &Outbox, lane: u64) -> Vec<usize> {
        let mut sizes = Vec::new();
        while let Next::Frame(frame, _) = outbox.next(lane) {
            sizes.push(frame.byte_count());
        }
        sizes
    }

    fn acknowledgement(received: u64, consumed: u64) -> Acknowledgement {
        Acknowledgement { received, consumed, arrived_at: Duration::ZERO }
    }

    fn received(received: u64) -> Acknowledgement {
        acknowledgement(received, 0)
    }

    #[test]
    fn a_new_lane_continues_after_the_last_received_frame() {
        let outbox = Outbox::default();
        (1..=4).for_each(|size| outbox.push(frame(size)));
        let (lane, _) = outbox.start_lane(received(0)).unwrap().unwrap();
        assert_eq!(sizes_ready(&outbox, lane), [1, 2, 3, 4]);
        outbox.acknowledge(lane, received(1)).unwrap();

        let (next_lane, _) = outbox.start_lane(received(2)).unwrap().unwrap();
        assert!(matches!(outbox.next(lane), Next::Stop));
        assert_eq!(sizes_ready(&outbox, next_lane), [3, 4]);
    }

    fn urgent(size: usize) -> Frame {
        let message = Message::from(AgreementMessage::Complain {
            view: ViewDigest([0; 32]),
            complaint: Complaint { about: Rank(1), fault: MemberFault::Frames },
        });
        let mut frame = Frame::encode(&message, None);
        frame.head.resize(size, 0);
        frame
    }

    #[test]
    fn urgent_frames_go_before_waiting_ones_and_keep_their_order() {
        let outbox = Outbox::default();
        [IN_FLIGHT, 1001, 1002].into_iter().for_each(|size| outbox.push(frame(size)));
        let (lane, _) = outbox.start_lane(received(0)).unwrap().unwrap();
        assert!(matches!(outbox.next(lane), Next::Frame(frame, _) if frame.byte_count() == IN_FLIGHT));
        [501, 502].into_iter().for_each(|size| outbox.push(urgent(size)));
        outbox.finish(frame(14));
        assert_eq!(sizes_ready(&outbox, lane), [501, 502, 1001, 1002, 14]);
        // Only the first two frames have arrived: what follows is still in order.
        let (lane, _) = outbox.start_lane(received(2)).unwrap().unwrap();
        assert_eq!(sizes_ready(&outbox, lane), [502, 1001, 1002, 14]);
    }

    #[test]
    fn urgent_frames_do_not_overtake_those_that_are_sent_again() {
        let outbox = Outbox::default();
        let (lane, _) = outbox.start_lane(received(0)).unwrap().unwrap();
        outbox.push(frame(1001));
        outbox.push(urgent(501));
        outbox.push(frame(1002));
        assert_eq!(sizes_ready(&outbox, lane), [501, 1001, 1002]);
        outbox.push(urgent(502));
        outbox.push(frame(1003));
        assert_eq!(sizes_ready(&outbox, lane), [502, 1003]);
        let (lane, _) = outbox.start_lane(received(1)).unwrap().unwrap();
        outbox.push(urgent(503));
        assert_eq!(sizes_ready(&outbox, lane), [1001, 1002, 502, 1003, 503]);
    }

    #[test]
    fn large_frames_wait_for_acknowledgements_and_small_ones_do_not() {
        let outbox = Outbox::default();
        let half = IN_FLIGHT / 2;
        [half, half, 10, half].into_iter().for_each(|size| outbox.push(frame(size)));
        let (lane, _) = outbox.start_lane(received(0)).unwrap().unwrap();
        assert_eq!(sizes_ready(&outbox, lane), [half, half, 10]);
        assert!(sizes_ready(&outbox, lane).is_empty());
        outbox.acknowledge(lane, received(3)).unwrap();
        assert_eq!(sizes_ready(&outbox, lane), [half]);
    }

    #[test]
    fn an_outbox_is_busy_until_its_large_frames_are_acknowledged() {
        let outbox = Outbox::default();
        let (lane, _) = outbox.start_lane(received(0)).unwrap().unwrap();
        outbox.push(frame(100));
        assert!(!outbox.is_busy());
        outbox.push(frame(BUSY_BYTES));
        assert!(outbox.is_busy());
        sizes_ready(&outbox, lane);
        outbox.acknowledge(lane, received(1)).unwrap();
        assert!(!outbox.is_busy(), "what is left is little");
    }

    #[test]
    fn a_frame_over_the_limit_goes_alone() {
        let outbox = Outbox::default();
        outbox.push(frame(2 * IN_FLIGHT));
        let (lane, _) = outbox.start_lane(received(0)).unwrap().unwrap();
        assert_eq!(sizes_ready(&outbox, lane).len(), 1);
    }

    #[test]
    fn credit_is_reported_once() {
        let outbox = Outbox::default();
        (0..4).for_each(|_| outbox.push(frame(1)));
        let (lane, _) = outbox.start_lane(received(0)).unwrap().unwrap();
        sizes_ready(&outbox, lane);
        assert_eq!(outbox.acknowledge(lane, acknowledgement(3, 2)).unwrap(), 2);
        assert_eq!(outbox.acknowledge(lane, acknowledgement(3, 2)).unwrap(), 0);
        let (_, credit) = outbox.start_lane(acknowledgement(4, 4)).unwrap().unwrap();
        assert_eq!(credit, 2);
    }

    #[test]
    fn impossible_acknowledgements_are_refused() {
        let outbox = Outbox::default();
        (0..4).for_each(|_| outbox.push(frame(1)));
        let (lane, _) = outbox.start_lane(received(0)).unwrap().unwrap();
        assert!(outbox.acknowledge(lane, received(1)).is_err(), "nothing was written yet");
        sizes_ready(&outbox, lane);
        outbox.acknowledge(lane, acknowledgement(2, 1)).unwrap();
        for (received, consumed) in
            [(1, 1), (2, 0), (5, 1), (u64::MAX, 1), (3, 4 + u64::from(LINK_SEGMENTS_MAX))]
        {
            assert!(
                outbox.acknowledge(lane, acknowledgement(received, consumed)).is_err(),
                "{received} {consumed}"
            );
        }
        assert!(outbox.start_lane(received(0)).is_err(), "what was acknowledged cannot be sent again");
    }

    #[tokio::test]
    async fn an_outbox_is_settled_once_its_last_frame_is_acknowledged() {
        let outbox = Outbox::default();
        let (lane, _) = outbox.start_lane(received(0)).unwrap().unwrap();
        let mut settled = std::pin::pin!(outbox.drained());
        assert!(futures::poll!(&mut settled).is_pending(), "there may be more to come");
        outbox.finish(frame(1));
        assert_eq!(sizes_ready(&outbox, lane), [1]);
        assert!(futures::poll!(&mut settled).is_pending(), "it may not have arrived");
        outbox.acknowledge(lane, received(1)).unwrap();
        settled.await;
    }

    #[tokio::test]
    async fn a_new_lane_may_bring_the_last_acknowledgement() {
        let outbox = Outbox::default();
        let (lane, _) = outbox.start_lane(received(0)).unwrap().unwrap();
        outbox.finish(frame(1));
        sizes_ready(&outbox, lane);
        let mut settled = std::pin::pin!(outbox.drained());
        assert!(futures::poll!(&mut settled).is_pending());
        outbox.start_lane(received(1)).unwrap();
        settled.await;
    }

    #[tokio::test]
    async fn a_closed_outbox_is_settled_and_takes_nothing() {
        let outbox = Outbox::default();
        outbox.push(frame(1));
        outbox.close();
        outbox.push(frame(1));
        outbox.drained().await;
        assert!(outbox.start_lane(received(0)).unwrap().is_none());
    }

    /// Lanes that open and then stall, with a frame of this size in flight on each: whether large packets are found to be lost.
    async fn stalls(sizes: &[usize]) -> bool {
        let outbox = Outbox::default();
        for size in sizes {
            let (lane, _) = outbox.start_lane(Acknowledgement::default()).unwrap().unwrap();
            outbox.push(frame(*size));
            while !matches!(outbox.next(lane), Next::Wait(_)) {}
            tokio::time::advance(2 * STALL_TIMEOUT).await;
            assert!(outbox.is_stalled(lane, STALL_TIMEOUT));
        }
        outbox.loses_large_packets()
    }

    #[tokio::test(start_paused = true)]
    async fn large_packets_are_lost_if_lanes_open_and_stall_behind_them_again() {
        assert!(stalls(&[2000, 10]).await, "the large frame is sent again");
        assert!(!stalls(&[2000]).await, "the line may have been cut");
        assert!(!stalls(&[100, 100, 100]).await, "no large packet was sent");
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_frame_that_arrives_shows_that_large_packets_do() {
        let outbox = Outbox::default();
        outbox.push(frame(2000));
        let lane = |received| {
            let acknowledgement = acknowledgement(received, 0);
            outbox.start_lane(acknowledgement).unwrap().unwrap().0
        };
        let first = lane(0);
        assert!(matches!(outbox.next(first), Next::Frame(..)));
        tokio::time::advance(2 * STALL_TIMEOUT).await;
        assert!(outbox.is_stalled(first, STALL_TIMEOUT));
        outbox.push(frame(2000));
        let second = lane(1);
        assert!(matches!(outbox.next(second), Next::Frame(..)));
        tokio::time::advance(2 * STALL_TIMEOUT).await;
        assert!(outbox.is_stalled(second, STALL_TIMEOUT) && !outbox.loses_large_packets());
    }
}
