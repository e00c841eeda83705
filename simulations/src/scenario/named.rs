//! The named scenarios: files that the binary carries, to run and to copy from.

use std::path::Path;

use super::Scenario;
use super::file::{ScenarioError, Size, parse};

/// Name and text of each.
pub const NAMED: &[(&str, &str)] = &[
    ("steady", include_str!("../../scenarios/steady.toml")),
    ("partition", include_str!("../../scenarios/partition.toml")),
    ("three-way", include_str!("../../scenarios/three-way.toml")),
    ("partial-cut", include_str!("../../scenarios/partial-cut.toml")),
    ("flapping", include_str!("../../scenarios/flapping.toml")),
    ("churn", include_str!("../../scenarios/churn.toml")),
    ("rolling-restart", include_str!("../../scenarios/rolling-restart.toml")),
    ("flash-crowd", include_str!("../../scenarios/flash-crowd.toml")),
    ("slow-peer", include_str!("../../scenarios/slow-peer.toml")),
    ("kill-mid-step", include_str!("../../scenarios/kill-mid-step.toml")),
    ("continents", include_str!("../../scenarios/continents.toml")),
    ("thousand", include_str!("../../scenarios/thousand.toml")),
    ("planted", include_str!("../../scenarios/planted.toml")),
    ("trouble", include_str!("../../scenarios/trouble.toml")),
];

/// The scenario of this name, if there is one.
///
/// # Errors
/// Never for the files here; a test reads them all.
pub fn named(name: &str, size: Size) -> Option<Result<Scenario, ScenarioError>> {
    let (name, text) = NAMED.iter().find(|(known, _)| *known == name)?;
    Some(parse(name, text, Path::new("."), size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_them_can_be_read() {
        for (name, _) in NAMED {
            for size in [Size::Full, Size::Sweep] {
                let scenario = named(name, size).unwrap().unwrap_or_else(|error| panic!("{name}: {error}"));
                assert!(!scenario.about.is_empty(), "{name}");
                assert!(size == Size::Full || scenario.peers <= 8, "{name}");
            }
        }
        assert!(named("nonsense", Size::Full).is_none());
    }
}
