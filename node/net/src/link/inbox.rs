//! The inbox: how far the receiving end of a link has come. It outlives the lanes that fill it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, Semaphore};

use super::{Acknowledgement, UNREAD_FRAMES_MAX};

/// The receiving end of one life of a link.
#[derive(Debug)]
pub(crate) struct Inbox {
    state: Mutex<InboxState>,
    /// For the current lane: there is something to acknowledge.
    changed: Notify,
    /// Places for frames on their way to the driver.
    pub(super) room: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct InboxState {
    record: Acknowledgement,
    /// Grows with each lane; a reader of an earlier lane finds another number and stops.
    lane: u64,
    said_goodbye: bool,
    closed: bool,
    /// Whether bytes have come in since that was last told.
    has_moved: bool,
}

/// What the writer of a lane's acknowledgements is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InboxStatus {
    /// See that this has been told.
    At(Acknowledgement),
    /// See that this has been told, and end: the other end has said goodbye.
    Final(Acknowledgement),
    /// Another lane has taken over, or the link is closed.
    Superseded,
}

impl Default for Inbox {
    fn default() -> Self {
        let room = Arc::new(Semaphore::new(UNREAD_FRAMES_MAX));
        Self { state: Mutex::default(), changed: Notify::new(), room }
    }
}

impl Inbox {
    /// Starts a lane: from now on no other can deliver. Returns its number and where the sender is to go on.
    pub(crate) fn start_lane(&self) -> (u64, Acknowledgement) {
        let mut state = self.lock();
        state.lane += 1;
        // Wakes the writer of the lane before, which then ends.
        self.changed.notify_one();
        (state.lane, state.record)
    }

    /// Counts a frame and hands it over, both or neither. False if the lane is no longer the current one.
    pub(super) fn deliver(&self, lane: u64, hand_over: impl FnOnce()) -> bool {
        let mut state = self.lock();
        if state.closed || state.lane != lane {
            return false;
        }
        state.record.received += 1;
        // Under the lock, so that a lane that takes over cannot count this frame as missing and receive it twice.
        hand_over();
        drop(state);
        self.changed.notify_one();
        true
    }

    /// Counts the goodbye, as a frame that is not handed over. False if the lane is no longer the current one.
    pub(super) fn note_goodbye(&self, lane: u64) -> bool {
        let is_current = self.deliver(lane, || ());
        if is_current {
            self.lock().said_goodbye = true;
            self.changed.notify_one();
        }
        is_current
    }

    /// Notes that bytes of a frame came in, though not yet all of it.
    pub(super) fn moved(&self) {
        self.lock().has_moved = true;
    }

    /// Whether bytes have come in since the last call.
    pub(super) fn take_moved(&self) -> bool {
        std::mem::take(&mut self.lock().has_moved)
    }

    pub(super) fn consume(&self, segments: u32) {
        self.lock().record.consumed += u64::from(segments);
        self.changed.notify_one();
    }

    /// What the writer of `lane` is to do now.
    pub(super) fn status(&self, lane: u64) -> InboxStatus {
        let state = self.lock();
        // A goodbye is acknowledged even if the link is closed for it before that is done: the other end waits for it.
        if (state.closed && !state.said_goodbye) || state.lane != lane {
            // The wake-up was perhaps meant for the lane that took over.
            self.changed.notify_one();
            return InboxStatus::Superseded;
        }
        if state.said_goodbye { InboxStatus::Final(state.record) } else { InboxStatus::At(state.record) }
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
        let (new, record) = inbox.start_lane();
        assert_eq!(record.received, 1);
        assert!(!inbox.deliver(old, || panic!("an old lane delivered")));
        assert!(inbox.deliver(new, || ()));
        assert_eq!(inbox.status(old), InboxStatus::Superseded);
        assert!(inbox.note_goodbye(new));
        assert_eq!(inbox.status(new), InboxStatus::Final(Acknowledgement { received: 3, consumed: 0 }));
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
        assert_eq!(parted.status(1), InboxStatus::Final(Acknowledgement { received: 1, consumed: 0 }));
    }
}
