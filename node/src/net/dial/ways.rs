//! The ways to a peer: what is known of the carriers between here and there.

use super::super::quic::Carrier;

/// What is known of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::net) struct Ways {
    /// What the last connection ran over, whoever made it.
    pub(in crate::net) last: Option<Carrier>,
    /// What gets through from here, and is tried first.
    pub(in crate::net) out: Option<Carrier>,
}

impl Ways {
    /// Takes in what is known now; what nothing is known of stays as it was.
    pub(in crate::net) fn learn(&mut self, newer: Self) {
        self.last = newer.last.or(self.last);
        self.out = newer.out.or(self.out);
    }

    /// What a connection is most likely to be made over. Where that is QUIC, a refusal over TCP says nothing.
    pub(in crate::net) fn likely(&self) -> Carrier {
        self.out.or(self.last).unwrap_or_default()
    }
}
