//! How owners combine the contributions of the members.

use peergrad_collectives::combine::Combine;
use serde::{Deserialize, Serialize};

use super::Algorithm;
use crate::specification::run_file::{AggregationName, SyncSection};
use crate::specification::{SpecificationError, TopologyName, within};

/// How owners combine contributions, as written in files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Aggregation {
    /// The mean, weighted by samples.
    #[default]
    Mean,
    /// For each element, the mean without the largest and the smallest contributions.
    TrimmedMean {
        /// How many of the largest, and how many of the smallest, are left out.
        trim: usize,
    },
    /// For each element, the median.
    Median,
}

impl Aggregation {
    /// Resolves `combine` and `trim` of `[sync]`.
    ///
    /// # Errors
    /// `trim` is given without `combine = "trimmed-mean"`.
    pub(in crate::specification) fn resolve(section: &SyncSection) -> Result<Self, SpecificationError> {
        if let (Some(_), AggregationName::Mean | AggregationName::Median) = (section.trim, section.combine) {
            return Err(SpecificationError::Setting {
                key: "sync.trim",
                found: "given".to_owned(),
                allowed: "only with combine = \"trimmed-mean\"".to_owned(),
            });
        }
        Ok(match section.combine {
            AggregationName::Mean => Self::Mean,
            AggregationName::TrimmedMean => Self::TrimmedMean { trim: section.trim.unwrap_or(1) },
            AggregationName::Median => Self::Median,
        })
    }

    /// Checks that the topology and the algorithm support it.
    ///
    /// # Errors
    /// They do not.
    pub(in crate::specification) fn check(
        &self,
        topology: TopologyName,
        algorithm: &Algorithm,
    ) -> Result<(), SpecificationError> {
        let allowed = match (self, topology, algorithm) {
            (Self::Mean, ..) => return Ok(()),
            _ if algorithm.has_tables() => "\"mean\" with this kind: owners see one gradient at a time",
            (_, _, Algorithm::DsSync { .. }) => "\"mean\" with kind = \"ds-sync\"",
            (_, TopologyName::Ring, _) => {
                "\"mean\" with topology = \"ring\": members of a ring see only partial sums"
            }
            (Self::TrimmedMean { trim }, ..) => return within("sync.trim", *trim, 1..=500, "1 to 500"),
            (Self::Median, ..) => return Ok(()),
        };
        let found = "a robust mean".to_owned();
        Err(SpecificationError::Setting { key: "sync.combine", found, allowed: allowed.to_owned() })
    }
}

impl From<Aggregation> for Combine {
    fn from(aggregation: Aggregation) -> Self {
        match aggregation {
            Aggregation::Mean => Self::Sum,
            Aggregation::TrimmedMean { trim } => Self::Trimmed(trim),
            Aggregation::Median => Self::Median,
        }
    }
}
