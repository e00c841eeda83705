//! How batches are divided among the peers: by measured speed, or evenly.

use super::algorithm::{Aggregation, Algorithm};
use super::run_file::{DealingName, SyncSection};
use super::{SpecificationError, TrainingSettings};

/// Resolves `dealing` of `[sync]` with its default.
///
/// # Errors
/// It is given with a kind in which peers take samples as they need them.
pub(super) fn resolve(
    section: &SyncSection,
    algorithm: &Algorithm,
    combine: &Aggregation,
) -> Result<DealingName, SpecificationError> {
    if algorithm.has_tables() && section.dealing.is_some() {
        let allowed = "nothing with this kind: each peer takes samples when it needs them".to_owned();
        return Err(SpecificationError::Setting { key: KEY, found: "given".to_owned(), allowed });
    }
    let default = if is_weighted(algorithm, combine) { DealingName::Speed } else { DealingName::Even };
    Ok(section.dealing.unwrap_or(default))
}

/// Checks that contributions count by their samples if parts differ, and that speeds are measured if they decide how long rounds are.
///
/// # Errors
/// They do not, or are not.
pub(super) fn check(settings: &TrainingSettings) -> Result<(), SpecificationError> {
    if settings.dealing == DealingName::Even && settings.algorithm.round_duration().is_some() {
        let allowed =
            "only with dealing = \"speed\" and combine = \"mean\": speeds decide how long a round is";
        let (key, found) = ("sync.round_seconds", "given".to_owned());
        return Err(SpecificationError::Setting { key, found, allowed: allowed.to_owned() });
    }
    if settings.dealing == DealingName::Even || is_weighted(&settings.algorithm, &settings.combine) {
        return Ok(());
    }
    let allowed = match settings.algorithm {
        Algorithm::DsSync { .. } => "\"even\" with kind = \"ds-sync\": all peers count alike in its means",
        ref algorithm if algorithm.has_tables() => {
            "\"even\" with this kind: each peer takes samples when it needs them"
        }
        _ => "\"even\" with a robust mean: all peers count alike in it",
    };
    let found = "\"speed\"".to_owned();
    Err(SpecificationError::Setting { key: KEY, found, allowed: allowed.to_owned() })
}

/// Whether a contribution counts by its samples.
fn is_weighted(algorithm: &Algorithm, combine: &Aggregation) -> bool {
    let is_mean_of_samples = !matches!(algorithm, Algorithm::DsSync { .. }) && !algorithm.has_tables();
    is_mean_of_samples && *combine == Aggregation::Mean
}

const KEY: &str = "sync.dealing";

#[cfg(test)]
mod tests {
    use super::super::resolve::resolve_training;
    use super::super::run_file::RunFile;
    use super::*;

    fn dealing(sync: &str) -> Result<DealingName, String> {
        let run = RunFile::parse(&format!("[sync]\n{sync}")).expect("all keys exist");
        Ok(resolve_training(&run, 1000).map_err(|error| error.to_string())?.dealing)
    }

    #[test]
    fn speeds_count_where_contributions_are_weighted_by_samples() {
        for kind in ["sync", "backup-workers", "local", "diloco"] {
            assert_eq!(dealing(&format!("kind = \"{kind}\"")), Ok(DealingName::Speed));
            assert_eq!(dealing(&format!("kind = \"{kind}\"\ndealing = \"even\"")), Ok(DealingName::Even));
        }
        for other in ["kind = \"ds-sync\"", "combine = \"median\"", "combine = \"trimmed-mean\""] {
            assert_eq!(dealing(other), Ok(DealingName::Even));
            let error = dealing(&format!("{other}\ndealing = \"speed\"")).expect_err("it would be wrong");
            assert!(error.contains("`sync.dealing`") && error.contains("all peers count alike"), "{error}");
        }
        let timed = "kind = \"diloco\"\nround_seconds = 30";
        assert_eq!(dealing(timed), Ok(DealingName::Speed));
        for other in ["dealing = \"even\"", "combine = \"median\""] {
            let error = dealing(&format!("{timed}\n{other}")).expect_err("no speed is measured");
            assert!(error.contains("`sync.round_seconds` is given; allowed: only with dealing"), "{error}");
        }
        let error = dealing("kind = \"ssp\"\ndealing = \"even\"").expect_err("there are no batches");
        assert!(error.contains("takes samples when it needs them"), "{error}");
        assert_eq!(dealing("kind = \"ssp\""), Ok(DealingName::Even));
    }
}
