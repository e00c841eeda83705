//! The page of a sweep.

use peergrad_config::sweep::SweepSpecification;

use super::monitor::SweepSnapshot;

pub(super) fn page(_sweep: &SweepSpecification, _snapshot: &SweepSnapshot) -> String {
    String::new()
}
