//! Priority: which frames go first where several wait to be sent.

/// How soon a frame is sent. Frames of one priority stay in order; urgent ones overtake normal ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Of heartbeats, votes, requests to join and orders of users: other peers act on their absence.
    Urgent,
    /// Of tensors, data, and whatever has to stay in order with them.
    Normal,
}

impl Priority {
    /// Both, in the order in which frames are sent.
    pub const ALL: [Self; 2] = [Self::Urgent, Self::Normal];
}
