//! The places of clients, so that neither many clients nor one machine keep the user of a peer from it.
//!
//! ```text
//!   socket     questions: LOCAL_MAX          orders: ORDERS_MAX
//!   network    questions: GUESTS_MAX, and GUESTS_PER_MACHINE_MAX from one machine
//! ```
//! # Invariants
//! - No client of the network takes a place of the socket.
//! - An order that is a client's first request never waits for a place that a question holds.
//! - The connections without a place are bounded as well: each is told that the peer is busy, or leaves after a moment.

use std::sync::Arc;

use peergrad_net::{Machine, Place, Places};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Source {
    /// From the user who started the peer, on this machine.
    Local,
    /// From a network client that knows the run's secret, on that machine.
    Network(Machine),
}

/// The kind of a client's first request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum FirstRequest {
    /// It asks for the status.
    Question,
    /// It commands something.
    Order,
}

/// The places of one peer's clients. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct ClientPlaces {
    /// Connections to the socket, with or without a place.
    connections: Arc<Semaphore>,
    questions: Arc<Semaphore>,
    orders: Arc<Semaphore>,
    /// Streams over the network, with or without a place.
    streams: Places,
    guests: Places,
}

/// A place that a client holds. Dropping it frees the place.
#[derive(Debug)]
pub(super) enum ClientPlace {
    Local(#[expect(dead_code, reason = "dropping it frees the place")] OwnedSemaphorePermit),
    Network(#[expect(dead_code, reason = "dropping it frees the place")] Place),
}

impl Default for ClientPlaces {
    fn default() -> Self {
        Self {
            connections: Arc::new(Semaphore::new(LOCAL_MAX + ORDERS_MAX + LOCAL_WAITING_MAX)),
            questions: Arc::new(Semaphore::new(LOCAL_MAX)),
            orders: Arc::new(Semaphore::new(ORDERS_MAX)),
            streams: Places::new(STREAMS_MAX, STREAMS_PER_MACHINE_MAX),
            guests: Places::new(GUESTS_MAX, GUESTS_PER_MACHINE_MAX),
        }
    }
}

impl ClientPlaces {
    /// A place for a client whose first request is of this kind; `None` if all places are taken.
    pub(super) fn take(&self, from: Source, first: FirstRequest) -> Option<ClientPlace> {
        let places = match (from, first) {
            (Source::Network(machine), _) => return self.guests.take(machine).map(ClientPlace::Network),
            (Source::Local, FirstRequest::Question) => &self.questions,
            (Source::Local, FirstRequest::Order) => &self.orders,
        };
        Arc::clone(places).try_acquire_owned().ok().map(ClientPlace::Local)
    }

    /// Why a client gets no place, and what to do.
    pub(super) fn text(from: Source) -> String {
        match from {
            Source::Local => format!(
                "{LOCAL_MAX} commands on this machine ask it already: end some of them (such as `status --watch`)"
            ),
            Source::Network(_) => format!(
                "it answers {GUESTS_MAX} guests at a time, and {GUESTS_PER_MACHINE_MAX} from one machine: try again later, or ask another member"
            ),
        }
    }

    /// A stream that has just been opened over the network; `None` if there are too many.
    pub(super) fn admit(&self, machine: Machine) -> Option<Place> {
        self.streams.take(machine)
    }

    /// Waits until one more connection to the socket may be open.
    #[cfg(unix)]
    pub(super) async fn local_connection(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.connections).acquire_owned().await.expect("the semaphore is never closed")
    }
}

/// The most clients on this machine that ask at a time.
const LOCAL_MAX: usize = 32;
/// The most clients on this machine that command something at a time.
const ORDERS_MAX: usize = 8;
/// The most clients on this machine that have not asked yet, or are being told that the peer is busy.
const LOCAL_WAITING_MAX: usize = 24;
/// The most clients of the network at a time.
const GUESTS_MAX: usize = 16;
/// The most clients of one machine in the network.
const GUESTS_PER_MACHINE_MAX: usize = 4;
/// The most streams of the network at a time. Those of clients without a place end within seconds.
const STREAMS_MAX: usize = 256;
/// The most streams of one machine.
const STREAMS_PER_MACHINE_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn guest(last_byte: u8) -> Source {
        Source::Network(Machine::V4(Ipv4Addr::new(10, 0, 0, last_byte)))
    }

    #[test]
    fn guests_take_no_place_of_this_machine_and_questions_none_of_orders() {
        let places = ClientPlaces::default();
        let mut held: Vec<_> =
            (0..=255).filter_map(|machine| places.take(guest(machine), FirstRequest::Order)).collect();
        assert_eq!(held.len(), GUESTS_MAX);
        held.extend((0..LOCAL_MAX).map(|_| places.take(Source::Local, FirstRequest::Question).unwrap()));
        assert!(places.take(Source::Local, FirstRequest::Question).is_none());
        held.extend((0..ORDERS_MAX).map(|_| places.take(Source::Local, FirstRequest::Order).unwrap()));
        assert!(places.take(Source::Local, FirstRequest::Order).is_none());
        held.clear();
        assert!(places.take(guest(0), FirstRequest::Question).is_some());
    }

    #[test]
    fn a_machine_has_a_few_guests() {
        let places = ClientPlaces::default();
        let held: Vec<_> = (0..64).filter_map(|_| places.take(guest(7), FirstRequest::Question)).collect();
        assert_eq!(held.len(), GUESTS_PER_MACHINE_MAX);
        assert!(places.take(guest(8), FirstRequest::Question).is_some());
    }
}
