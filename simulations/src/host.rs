//! The host: a machine that can run one peer, with its disk and its speed. It stays when the process on it dies.

use std::fmt;

/// A host's number, from 0 in the order in which hosts were added. `p3` in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

impl HostId {
    /// As an index into what is kept by host.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}
