//! Plans.

/// How tensors travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// From neighbour to neighbour.
    Ring,
    /// Straight to the owner.
    Direct,
}
