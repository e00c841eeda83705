//! The queue of a peer's events, which its user takes one by one.
//!
//! A user may take none for a long time, and steps are many. So only so many events of committed steps wait at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use peergrad_core::io::Event;
use peergrad_protocol::limits::STEP_EVENTS_KEPT_MAX;

use crate::PeerEvent;

/// The end into which the peer puts events.
pub(crate) struct EventSender {
    events: Sender<PeerEvent>,
    /// The number of events of committed steps that wait.
    steps: Arc<AtomicUsize>,
}

/// The end from which the user takes them.
pub(crate) struct EventReceiver {
    events: Receiver<PeerEvent>,
    steps: Arc<AtomicUsize>,
}

/// An empty queue.
pub(crate) fn event_queue() -> (EventSender, EventReceiver) {
    let (sender, receiver) = channel();
    let steps = Arc::<AtomicUsize>::default();
    (EventSender { events: sender, steps: Arc::clone(&steps) }, EventReceiver { events: receiver, steps })
}

impl EventSender {
    /// Adds an event. While [`STEP_EVENTS_KEPT_MAX`] committed steps wait, later ones are left out.
    pub(crate) fn push(&self, event: PeerEvent) {
        if is_step(&event) && self.steps.fetch_add(1, Ordering::Relaxed) >= STEP_EVENTS_KEPT_MAX {
            self.steps.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        // The user may be gone.
        let _ = self.events.send(event);
    }
}

impl EventReceiver {
    /// Waits for the next event.
    pub(crate) fn take(&self) -> Result<PeerEvent, RecvTimeoutError> {
        self.taken(self.events.recv().map_err(RecvTimeoutError::from))
    }

    /// As [`take`](Self::take), for at most so long.
    pub(crate) fn take_within(&self, time: Duration) -> Result<PeerEvent, RecvTimeoutError> {
        self.taken(self.events.recv_timeout(time))
    }

    fn taken(&self, event: Result<PeerEvent, RecvTimeoutError>) -> Result<PeerEvent, RecvTimeoutError> {
        if event.as_ref().is_ok_and(is_step) {
            self.steps.fetch_sub(1, Ordering::Relaxed);
        }
        event
    }
}

fn is_step(event: &PeerEvent) -> bool {
    matches!(event, PeerEvent::Node(Event::Committed(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::log::tests::committed;

    #[test]
    fn so_many_steps_wait_at_once_and_other_events_are_never_left_out() {
        let (sender, receiver) = event_queue();
        let step = || PeerEvent::Node(Event::Committed(committed(1)));
        (0..=STEP_EVENTS_KEPT_MAX).for_each(|_| sender.push(step()));
        sender.push(PeerEvent::Panicked(String::new()));
        assert!((0..STEP_EVENTS_KEPT_MAX).all(|_| receiver.take().is_ok_and(|event| is_step(&event))));
        assert!(matches!(receiver.take(), Ok(PeerEvent::Panicked(_))), "one step was left out");
        sender.push(step());
        assert!(receiver.take().is_ok(), "there is room again");
        drop(sender);
        assert_eq!(receiver.take_within(Duration::ZERO).err(), Some(RecvTimeoutError::Disconnected));
    }
}
