//! Notices: which conditions of a peer the user knows, so that the start and the end of each are reported once.

use std::collections::BTreeSet;

/// A condition that lasts, and about which the user is notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Condition {
    /// The connection runs over QUIC.
    OverQuic,
    /// The connection leads through a relay.
    Relayed,
    /// There is no direct lane.
    NoDirectLane,
    /// The link has lost its connection.
    Reconnecting,
    /// Small messages arrive, and large packets do not.
    LosesLargePackets,
}

/// The conditions that were reported to the user and have not ended since.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    reported: BTreeSet<Condition>,
}

impl Notices {
    /// The condition holds. Returns whether that is news to the user.
    pub(crate) fn begin(&mut self, condition: Condition) -> bool {
        self.reported.insert(condition)
    }

    /// The condition no longer holds. Returns whether that is news to the user.
    pub(crate) fn end(&mut self, condition: Condition) -> bool {
        self.reported.remove(&condition)
    }
}
