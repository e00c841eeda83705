//! The ways to a peer: what is known of the carriers between here and there.

use crate::address::Carrier;

/// What is known of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CarrierHistory {
    /// What the last connection ran over, whoever made it.
    pub(crate) last: Option<Carrier>,
    /// What gets through from here, and is tried first.
    pub(crate) out: Option<Carrier>,
}

/// What a connection says of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CarrierEvidence {
    /// Nothing: it leads through a relay, or is over QUIC and stands beside one over TCP.
    None,
    /// What gets through from there: the other end has made it.
    In,
    /// What gets through from here: this peer has made it.
    Out,
}

impl CarrierHistory {
    /// Takes in what is known elsewhere, and perhaps later.
    pub(crate) fn learn(&mut self, newer: Self) {
        self.last = newer.last.or(self.last);
        self.out = newer.out.or(self.out);
    }

    /// Takes in what a connection says. `is_luck`: it may have got through because of the time that it took.
    pub(crate) fn record_connection(&mut self, evidence: CarrierEvidence, carrier: Carrier, is_luck: bool) {
        match evidence {
            CarrierEvidence::None => return,
            // Perhaps TCP does not get through any more, neither from there nor from here.
            CarrierEvidence::In if carrier == Carrier::Quic && self.out == Some(Carrier::Tcp) => {
                self.out = None
            }
            CarrierEvidence::Out if !is_luck => self.out = Some(carrier),
            CarrierEvidence::In | CarrierEvidence::Out => {}
        }
        self.last = Some(carrier);
    }

    /// What a connection is most likely to be made over. Where that is QUIC, a refusal over TCP says nothing.
    pub(crate) fn likely(&self) -> Carrier {
        self.out.or(self.last).unwrap_or_default()
    }
}
