//! The id of a merge snapshot. Membership votes on it, and training keeps and imports the state that it names.

use peergrad_protocol::{StepNumber, ViewDigest};

/// The id of a snapshot: the view of its branch, and the number of steps behind it.
pub(crate) type SnapshotId = (ViewDigest, StepNumber);
