//! The inbox: how far the receiving end of a link has come. It outlives the lanes that fill it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use super::{Acknowledgement, UNREAD_FRAMES_MAX};

/// The receiving end of one life of a link.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// Its clock: the times of arrivals count from here.
    began_at: Instant,
    state: Mutex<InboxState>,
    /// Wakes the writer of the current lane: there is something to acknowledge.
    changed: Notify,
    /// Places for frames that wait for the driver.
    pub(super) room: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct InboxState {
    acknowledgement: Acknowledgement,
    /// Grows with each lane. A reader of an earlier lane sees another number and stops.
    lane: u64,
    said_goodbye: bool,
    closed: bool,
    /// Whether bytes have arrived since the sender was last told.
    has_moved: bool,
}

/// What the writer of a lane's acknowledgements has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InboxStatus {
    /// Write this acknowledgement if it has changed.
    At(Acknowledgement),
    /// Write this acknowledgement and end: the other end has said goodbye.
    Final(Acknowledgement),
    /// Another lane has taken over, or the link is closed.
    Superseded,
}

impl Default for Inbox {
    fn default() -> Self {
        let room = Arc::new(Semaphore::new(UNREAD_FRAMES_MAX));
        Self { began_at: Instant::now(), state: Mutex::default(), changed: Notify::new(), room }
    }
}

impl Inbox {
    /// Starts a lane, the only one that can deliver from now on. Returns its number and where the sender has to continue.
    pub(crate) fn start_lane(&self) -> (u64, Acknowledgement) {
        let mut state = self.lock();
        state.lane += 1;
        // Wakes the writer of the earlier lane, which then ends.
        self.changed.notify_one();
        (state.lane, state.acknowledgement)
    }

    /// Counts a frame and hands it over. Does neither, and returns false, if the lane is no longer the current one.
    pub(super) fn deliver(&self, lane: u64, hand_over: impl FnOnce()) -> bool {
        let mut state = self.lock();
        if state.closed || state.lane != lane {
            return false;
        }
        state.acknowledgement.received += 1;
        let micros = u64::try_from(self.began_at.elapsed().as_micros()).unwrap_or(u64::MAX);
        state.acknowledgement.arrived_at = Duration::from_micros(micros);
        // Under the lock: otherwise the next lane could count this frame as missing and receive it twice.
        hand_over();
        drop(state);
        self.changed.notify_one();
        true
    }

    /// Counts the goodbye, as a frame that is not handed over. Returns false if the lane is no longer the current one.
    pub(super) fn note_goodbye(&self, lane: u64) -> bool {
        let is_current = self.deliver(lane, || ());
        if is_current {
            self.lock().said_goodbye = true;
            self.changed.notify_one();
        }
        is_current
    }

    /// Notes that bytes of a frame have arrived, though not yet the whole frame.
    pub(super) fn moved(&self) {
        self.lock().has_moved = true;
    }

    /// Whether bytes have arrived since the last call.
    pub(super) fn take_moved(&self) -> bool {
        std::mem::take(&mut self.lock().has_moved)
    }

    pub(super) fn consume(&self, segments: u32) {
        self.lock().acknowledgement.consumed += u64::from(segments);
        self.changed.notify_one();
    }

    /// What the writer of `lane` has to do now.
    pub(super) fn status(&self, lane: u64) -> InboxStatus {
        let state = self.lock();
        // A goodbye is acknowledged even if this end has closed the link meanwhile: the other end waits for it.
        if (state.closed && !state.said_goodbye) || state.lane != lane {
            // The wake-up may have been for the next lane.
            self.changed.notify_one();
            return InboxStatus::Superseded;
        }
        if state.said_goodbye {
            InboxStatus::Final(state.acknowledgement)
        } else {
            InboxStatus::At(state.acknowledgement)
        }
    }

    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// A panic elsewhere cannot leave the state half-changed: nothing in between can panic.
    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_lane_delivers() {
        let inbox = Inbox::default();
        let (old, _) = inbox.start_lane();
        assert!(inbox.deliver(old, || ()));
        let (new, acknowledgement) = inbox.start_lane();
        assert_eq!(acknowledgement.received, 1);
        assert!(!inbox.deliver(old, || panic!("an old lane delivered")));
        assert!(inbox.deliver(new, || ()));
        assert_eq!(inbox.status(old), InboxStatus::Superseded);
        assert!(inbox.note_goodbye(new));
        assert!(matches!(inbox.status(new), InboxStatus::Final(Acknowledgement { received: 3, .. })));
    }

    #[test]
    fn a_closed_inbox_takes_nothing_and_still_acknowledges_a_goodbye() {
        let (cut_off, parted) = (Inbox::default(), Inbox::default());
        for inbox in [&cut_off, &parted] {
            assert_eq!(inbox.start_lane().0, 1);
        }
        parted.note_goodbye(1);
        for inbox in [&cut_off, &parted] {
            inbox.close();
            assert!(!inbox.deliver(1, || panic!("a closed inbox delivered")));
        }
        assert_eq!(cut_off.status(1), InboxStatus::Superseded);
        assert!(matches!(parted.status(1), InboxStatus::Final(Acknowledgement { received: 1, .. })));
    }
}
