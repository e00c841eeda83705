//! The named scenarios: files that are included in the program, to run and to copy from.

use std::path::Path;

use super::Scenario;
use super::file::{ScenarioError, Size, parse};

/// Name and text of each scenario.
pub const NAMED: &[(&str, &str)] = &[
    ("steady", include_str!("../../scenarios/steady.toml")),
    ("partition", include_str!("../../scenarios/partition.toml")),
    ("merge", include_str!("../../scenarios/merge.toml")),
    ("merge-counted", include_str!("../../scenarios/merge-counted.toml")),
    ("merge-three", include_str!("../../scenarios/merge-three.toml")),
    ("merge-power-cut", include_str!("../../scenarios/merge-power-cut.toml")),
    ("winner", include_str!("../../scenarios/winner.toml")),
    ("halves", include_str!("../../scenarios/halves.toml")),
    ("flapping-apart", include_str!("../../scenarios/flapping-apart.toml")),
    ("three-way", include_str!("../../scenarios/three-way.toml")),
    ("two-of-four", include_str!("../../scenarios/two-of-four.toml")),
    ("moving", include_str!("../../scenarios/moving.toml")),
    ("uneven", include_str!("../../scenarios/uneven.toml")),
    ("partial-cut", include_str!("../../scenarios/partial-cut.toml")),
    ("flapping", include_str!("../../scenarios/flapping.toml")),
    ("flapping-member", include_str!("../../scenarios/flapping-member.toml")),
    ("kill-mid-step", include_str!("../../scenarios/kill-mid-step.toml")),
    ("one-of-two", include_str!("../../scenarios/one-of-two.toml")),
    ("joiners-between", include_str!("../../scenarios/joiners-between.toml")),
    ("waiting-sponsor", include_str!("../../scenarios/waiting-sponsor.toml")),
    ("founder-dies", include_str!("../../scenarios/founder-dies.toml")),
    ("replicas-lost", include_str!("../../scenarios/replicas-lost.toml")),
    ("all-replicas", include_str!("../../scenarios/all-replicas.toml")),
    ("back-too-late", include_str!("../../scenarios/back-too-late.toml")),
    ("lost-majority", include_str!("../../scenarios/lost-majority.toml")),
    ("power-cut", include_str!("../../scenarios/power-cut.toml")),
    ("half-back", include_str!("../../scenarios/half-back.toml")),
    ("local-blackout", include_str!("../../scenarios/local-blackout.toml")),
    ("restarted-voter", include_str!("../../scenarios/restarted-voter.toml")),
    ("leave", include_str!("../../scenarios/leave.toml")),
    ("leave-together", include_str!("../../scenarios/leave-together.toml")),
    ("end-run", include_str!("../../scenarios/end-run.toml")),
    ("end-run-power-cut", include_str!("../../scenarios/end-run-power-cut.toml")),
    ("orders", include_str!("../../scenarios/orders.toml")),
    ("lost-frames", include_str!("../../scenarios/lost-frames.toml")),
    ("changed-frames", include_str!("../../scenarios/changed-frames.toml")),
    ("repeated-frames", include_str!("../../scenarios/repeated-frames.toml")),
    ("lost-votes", include_str!("../../scenarios/lost-votes.toml")),
    ("lost-frames-merge", include_str!("../../scenarios/lost-frames-merge.toml")),
    ("withheld-values", include_str!("../../scenarios/withheld-values.toml")),
    ("withheld-sums", include_str!("../../scenarios/withheld-sums.toml")),
    ("wrong-values", include_str!("../../scenarios/wrong-values.toml")),
    ("wrong-digests", include_str!("../../scenarios/wrong-digests.toml")),
    ("late-frames", include_str!("../../scenarios/late-frames.toml")),
    ("full-disk", include_str!("../../scenarios/full-disk.toml")),
    ("full-disks", include_str!("../../scenarios/full-disks.toml")),
    ("most-disks", include_str!("../../scenarios/most-disks.toml")),
    ("many-disks", include_str!("../../scenarios/many-disks.toml")),
    ("removed", include_str!("../../scenarios/removed.toml")),
    ("rolling-restart", include_str!("../../scenarios/rolling-restart.toml")),
    ("flash-crowd", include_str!("../../scenarios/flash-crowd.toml")),
    ("churn", include_str!("../../scenarios/churn.toml")),
    ("slow-peer", include_str!("../../scenarios/slow-peer.toml")),
    ("unlike-machines", include_str!("../../scenarios/unlike-machines.toml")),
    ("groups", include_str!("../../scenarios/groups.toml")),
    ("backup-workers", include_str!("../../scenarios/backup-workers.toml")),
    ("last-groups", include_str!("../../scenarios/last-groups.toml")),
    ("outer", include_str!("../../scenarios/outer.toml")),
    ("timed-rounds", include_str!("../../scenarios/timed-rounds.toml")),
    ("compressed", include_str!("../../scenarios/compressed.toml")),
    ("continents", include_str!("../../scenarios/continents.toml")),
    ("long-lines", include_str!("../../scenarios/long-lines.toml")),
    ("lossy-lines", include_str!("../../scenarios/lossy-lines.toml")),
    ("slow-uplink", include_str!("../../scenarios/slow-uplink.toml")),
    ("slower-lines", include_str!("../../scenarios/slower-lines.toml")),
    ("week", include_str!("../../scenarios/week.toml")),
    ("thousand", include_str!("../../scenarios/thousand.toml")),
    ("churn-1000", include_str!("../../scenarios/churn-1000.toml")),
    ("mutants", include_str!("../../scenarios/mutants.toml")),
    ("in-parts", include_str!("../../scenarios/in-parts.toml")),
    ("tables", include_str!("../../scenarios/tables.toml")),
    ("tables-by-step", include_str!("../../scenarios/tables-by-step.toml")),
    ("tables-power-cut", include_str!("../../scenarios/tables-power-cut.toml")),
    ("trouble", include_str!("../../scenarios/trouble.toml")),
];

/// The scenario of this name; `None` if there is none.
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
    fn all_named_scenarios_can_be_read() {
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
