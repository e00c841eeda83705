//! The history of carriers: which of TCP and QUIC get through between this peer and another one.

use crate::address::Carrier;

/// The carriers that have worked with one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CarrierHistory {
    /// The carrier of the last connection, from either side; `None` before the first.
    pub(crate) last: Option<Carrier>,
    /// The carrier that gets through from this peer, and is tried first; `None` while unknown.
    pub(crate) out: Option<Carrier>,
}

/// The conclusion from a new connection about the carriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CarrierEvidence {
    /// Nothing: it leads through a relay, or it runs over QUIC beside one over TCP.
    None,
    /// Its carrier gets through from the other end, which has dialed.
    In,
    /// Its carrier gets through from this peer, which has dialed.
    Out,
    /// This peer has dialed, and the attempt may have got through only because it took long: the other end has perhaps just begun to
    /// listen.
    OutLate,
}

impl CarrierHistory {
    /// Takes in newer knowledge about the same peer.
    pub(crate) fn learn(&mut self, newer: Self) {
        self.last = newer.last.or(self.last);
        self.out = newer.out.or(self.out);
    }

    /// Takes in a new connection.
    pub(crate) fn record_connection(&mut self, evidence: CarrierEvidence, carrier: Carrier) {
        match evidence {
            CarrierEvidence::None => return,
            // Perhaps TCP no longer gets through in either direction.
            CarrierEvidence::In if carrier == Carrier::Quic && self.out == Some(Carrier::Tcp) => {
                self.out = None
            }
            CarrierEvidence::Out => self.out = Some(carrier),
            CarrierEvidence::In | CarrierEvidence::OutLate => {}
        }
        self.last = Some(carrier);
    }

    /// The most likely carrier of the next connection. If it is QUIC, a refusal over TCP shows nothing.
    pub(crate) fn likely(&self) -> Carrier {
        self.out.or(self.last).unwrap_or_default()
    }
}
