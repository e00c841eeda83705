//! The setting `patience_seconds`: the least time that a member may compute at one step before the others go on without it.
//!
//! A specification with the default does not name it, so that its bytes and its run's id are those of releases without the setting.

use super::{SpecificationError, within};

/// The default, in seconds.
pub(super) const DEFAULT: u64 = 10;

/// The default, for a specification that does not name it.
pub(super) fn default() -> u64 {
    DEFAULT
}

/// Whether a specification need not name it.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(super) fn is_default(seconds: &u64) -> bool {
    *seconds == DEFAULT
}

/// Checks the number of seconds.
///
/// # Errors
/// It is not allowed.
pub(super) fn check(seconds: u64) -> Result<(), SpecificationError> {
    within("sync.patience_seconds", seconds, 1..=86_400, "1 to 86400")
}
