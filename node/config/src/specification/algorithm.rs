//! The training algorithm: resolves `[sync]` of a run file, checks it, and creates the program that runs it.

use std::num::{NonZeroU64, NonZeroUsize};
use std::ops::RangeInclusive;
use std::time::Duration;

use peergrad_collectives::groups::Groups;
use peergrad_core::program::ProgramFactory;
use peergrad_core::program::programs::backup_workers::BackupWorkers;
use peergrad_core::program::programs::diloco::Diloco;
use peergrad_core::program::programs::downpour::DownpourSettings;
use peergrad_core::program::programs::ds_sync::DsSync;
use peergrad_core::program::programs::local::Local;
use peergrad_core::program::programs::local_trainer::LocalTrainer;
use peergrad_core::program::programs::sync::SyncDataParallel;
use peergrad_core::table::Atomicity;
use peergrad_models::optimizer::{Bounds, Optimizer};
use peergrad_protocol::limits::{LEASES_MAX, LOCAL_STEPS_MAX, PER_CLOCK_STALENESS_MAX, STEPS_MAX};
use serde::{Deserialize, Serialize};

use super::run_file::{ApplyName, LocalSteps, SyncKind, SyncSection};
use super::{SpecificationError, TopologyName, within};
use tables::{atomicity, downpour, l2_of, lbfgs, ssp};

mod aggregation;
mod tables;

pub use aggregation::Aggregation;

/// How the peers of a run train together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Algorithm {
    /// Synchronous steps: [`SyncDataParallel`].
    #[default]
    Sync,
    /// Steps that do not wait for the last contributions: [`BackupWorkers`].
    BackupWorkers {
        /// How many contributions a step does not wait for.
        backups: usize,
    },
    /// Averaging in small groups: [`DsSync`].
    DsSync {
        /// Members per group; 0 selects about the square root of all.
        group: usize,
        /// Whether groups change from round to round.
        shuffle: bool,
    },
    /// Local steps, then averaging: [`Local`].
    Local {
        /// Local steps between two averages.
        local_steps: u64,
        /// Seconds that these take, by the measured speeds; `None`: as long as `local_steps` take.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        round_seconds: Option<f64>,
    },
    /// Local steps, then an outer step: [`Diloco`].
    Diloco {
        /// Local steps between two outer steps.
        local_steps: u64,
        /// Seconds that these take, by the measured speeds; `None`: as long as `local_steps` take.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        round_seconds: Option<f64>,
        /// The outer learning rate.
        outer_rate: f64,
        /// The outer momentum: the share of the outer velocity that is kept, 0 to 1.
        outer_momentum: f32,
    },
    /// Tables with bounded staleness: [`Ssp`](peergrad_core::program::programs::ssp::Ssp).
    Ssp {
        /// How many steps the fastest member may be ahead of the slowest.
        staleness: u64,
        /// Pairs of a step and the bound from that step on, in ascending order; empty for a constant bound.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        staleness_from: Vec<(u64, u64)>,
        /// When owners apply gradients; `None` leaves it to the optimizer.
        apply: Option<ApplyName>,
        /// Whether all of a step's gradient counts or nothing of it, if its member is lost.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        atomic: bool,
    },
    /// Asynchronous updates: [`Downpour`](peergrad_core::program::programs::downpour::Downpour) that sends and reads in each step.
    Async {
        /// Samples that the first member trains alone; 0 for no warm-up.
        warm_up: u64,
        /// Samples after which each further member starts; 0 starts all at once.
        wave: u64,
        /// As for [`Ssp`](Self::Ssp).
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        atomic: bool,
    },
    /// Asynchronous updates with less frequent communication: [`Downpour`](peergrad_core::program::programs::downpour::Downpour).
    Downpour {
        /// Steps between two sends of a member's additions.
        n_push: u64,
        /// Steps between two reads of the parameters.
        n_fetch: u64,
        /// The learning rate of the local updates in between, where owners use an optimizer; `None` uses the optimizer's rate.
        local_rate: Option<f64>,
        /// Samples that the first member trains alone; 0 for no warm-up.
        warm_up: u64,
        /// Samples after which each further member starts; 0 starts all at once.
        wave: u64,
    },
    /// A quasi-Newton method over all samples: [`Lbfgs`](peergrad_core::program::programs::lbfgs::Lbfgs).
    LBfgs {
        /// How many of the last steps it remembers.
        history: usize,
        /// The norm of the gradient, relative to that of the parameters, at which the run ends.
        tolerance: f64,
        /// Portions of a pass for each member.
        portions: NonZeroU64,
    },
    /// Topics are drawn for the documents, one part at a time, with their counts in a table.
    Lda {
        /// How many parts the training documents are cut into.
        parts: NonZeroU64,
    },
}

impl Algorithm {
    /// Resolves `[sync]` of this kind with its defaults; an epoch has `steps_per_epoch` steps.
    ///
    /// # Errors
    /// A key does not belong to the kind, or its value is not allowed.
    pub(super) fn resolve(
        section: &SyncSection,
        kind: SyncKind,
        steps_per_epoch: u64,
    ) -> Result<Self, SpecificationError> {
        check_keys(section, kind)?;
        if let Some(group @ (0 | 1)) = section.group {
            within("sync.group", group, 2.., "2 or more peers")?;
        }
        let (warm_up, wave) = (section.warm_up.unwrap_or(0), section.wave.unwrap_or(0));
        let atomic = section.atomic.unwrap_or(false);
        let round_seconds = section.round_seconds;
        let local_steps = resolve_local_steps(section, steps_per_epoch)?;
        Ok(match kind {
            SyncKind::Sync => Self::Sync,
            SyncKind::BackupWorkers => {
                Self::BackupWorkers { backups: section.backups.unwrap_or(BACKUPS_DEFAULT) }
            }
            SyncKind::DsSync => {
                Self::DsSync { group: section.group.unwrap_or(0), shuffle: section.shuffle.unwrap_or(true) }
            }
            SyncKind::Local => Self::Local { local_steps, round_seconds },
            SyncKind::Diloco => Self::Diloco {
                local_steps,
                round_seconds,
                outer_rate: section.outer_rate.unwrap_or(OUTER_RATE_DEFAULT),
                outer_momentum: section.outer_momentum.unwrap_or(OUTER_MOMENTUM_DEFAULT),
            },
            SyncKind::Ssp => Self::Ssp {
                staleness: section.staleness.unwrap_or(STALENESS_DEFAULT),
                staleness_from: section.staleness_from.clone().unwrap_or_default(),
                apply: section.apply,
                atomic,
            },
            SyncKind::Async => Self::Async { warm_up, wave, atomic },
            SyncKind::Downpour => Self::Downpour {
                n_push: section.n_push.unwrap_or(1),
                n_fetch: section.n_fetch.unwrap_or(1),
                local_rate: section.local_rate,
                warm_up,
                wave,
            },
            SyncKind::LBfgs => Self::LBfgs {
                history: section.history.unwrap_or(HISTORY_DEFAULT),
                tolerance: section.tolerance.unwrap_or(TOLERANCE_DEFAULT),
                portions: resolve_portions(section.portions)?,
            },
            // A step is a part of the documents.
            SyncKind::Lda => Self::Lda { parts: NonZeroU64::new(steps_per_epoch).unwrap_or(NonZeroU64::MIN) },
        })
    }

    /// Checks that all values are allowed.
    ///
    /// # Errors
    /// One is not.
    pub(super) fn check(&self, topology: TopologyName) -> Result<(), SpecificationError> {
        match *self {
            Self::Sync | Self::DsSync { .. } => Ok(()),
            Self::BackupWorkers { .. } if topology == TopologyName::Ring => {
                Err(SpecificationError::Setting {
                    key: "sync.topology",
                    found: "\"ring\"".to_owned(),
                    allowed:
                        "\"auto\" or \"direct\" with kind = \"backup-workers\": a ring waits for every member"
                            .to_owned(),
                })
            }
            Self::BackupWorkers { backups } => {
                within("sync.backups", backups, 1..=500, "1 to 500 contributions")
            }
            Self::Local { local_steps, round_seconds } => check_round(local_steps, round_seconds),
            Self::Diloco { local_steps, round_seconds, outer_rate, outer_momentum } => {
                check_round(local_steps, round_seconds)?;
                within("sync.outer_rate", outer_rate, f64::MIN_POSITIVE..=10.0, "above 0, up to 10")?;
                within("sync.outer_momentum", outer_momentum, 0.0..1.0, "0 up to, not including, 1")
            }
            Self::Ssp { staleness, ref staleness_from, .. } => {
                within("sync.staleness", staleness, ..=1_000_000, "0 to 1000000 steps")?;
                let allowed = "at most 16 pairs of a step and a bound, steps ascending from 1";
                within("sync.staleness_from", staleness_from.len(), ..=16, allowed)?;
                let mut least = 1;
                for &(step, bound) in staleness_from {
                    within("sync.staleness_from", step, least..=STEPS_MAX, allowed)?;
                    within("sync.staleness_from", bound, ..=1_000_000, "bounds of 0 to 1000000 steps")?;
                    least = step + 1;
                }
                Ok(())
            }
            Self::Async { .. } => Ok(()),
            Self::Downpour { n_push, n_fetch, local_rate, .. } => {
                within("sync.n_push", n_push, 1..=N_PUSH_MAX, "1 to 32 steps")?;
                within("sync.n_fetch", n_fetch, 1..=1000, "1 to 1000 steps")?;
                within("sync.local_rate", local_rate.unwrap_or(0.0), 0.0..=1e6, "0 to 1000000")
            }
            Self::LBfgs { history, tolerance, portions } => {
                within("sync.history", history, 1..=100, "1 to 100 steps")?;
                within("sync.portions", portions.get(), 1..=PORTIONS_MAX, "1 to 64 portions")?;
                within("sync.tolerance", tolerance, 0.0..1.0, "0 up to, not including, 1")
            }
            Self::Lda { parts } => within("sync.parts", parts.get(), 1..=PARTS_MAX, "1 to 256 parts"),
        }
    }

    /// Local steps of each member between two exchanges with the others.
    #[must_use]
    pub fn local_steps(&self) -> u64 {
        match *self {
            Self::Sync | Self::BackupWorkers { .. } | Self::DsSync { .. } => 1,
            Self::Ssp { .. } | Self::Async { .. } | Self::Downpour { .. } => 1,
            Self::LBfgs { .. } | Self::Lda { .. } => 1,
            Self::Local { local_steps, .. } | Self::Diloco { local_steps, .. } => local_steps,
        }
    }

    /// How long the local steps of a round take together; `None` if their number is fixed.
    #[must_use]
    pub fn round_duration(&self) -> Option<Duration> {
        match *self {
            Self::Local { round_seconds, .. } | Self::Diloco { round_seconds, .. } => {
                round_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            }
            _ => None,
        }
    }

    /// How many contributions a step does not wait for; `None` if it waits for all.
    #[must_use]
    pub fn backups(&self) -> Option<NonZeroUsize> {
        if let Self::BackupWorkers { backups } = *self { NonZeroUsize::new(backups) } else { None }
    }

    /// Whether two parts of a swarm can merge their models: all members hold the same parameters after each step.
    pub(super) fn can_merge(&self) -> bool {
        matches!(self, Self::Sync | Self::Local { .. } | Self::Diloco { .. })
    }

    /// Checks that the algorithm supports the optimizer.
    ///
    /// # Errors
    /// The staleness is too large for it, or the algorithm has no use for it.
    pub(super) fn check_rule(
        &self,
        rule: &Optimizer,
        bounds: Option<Bounds>,
    ) -> Result<(), SpecificationError> {
        match *self {
            Self::Ssp { staleness, ref staleness_from, apply, .. } if is_by_step(apply, rule, bounds) => {
                let allowed = "0 to 16 steps if all gradients of a step are applied together";
                within("sync.staleness", staleness, ..=PER_CLOCK_STALENESS_MAX, allowed)?;
                let within_bound = |(_, bound): &(u64, u64)| {
                    within("sync.staleness_from", *bound, ..=PER_CLOCK_STALENESS_MAX, allowed)
                };
                staleness_from.iter().try_for_each(within_bound)
            }
            Self::LBfgs { .. } if bounds.is_some() => Err(SpecificationError::Setting {
                key: "optimizer.bounds",
                found: "given".to_owned(),
                allowed: "not with kind = \"l-bfgs\", whose steps leave any bounds".to_owned(),
            }),
            Self::LBfgs { .. } if l2_of(rule).is_none() => Err(SpecificationError::Setting {
                key: "optimizer.rule",
                found: "another one".to_owned(),
                allowed: "none with kind = \"l-bfgs\", which is an optimizer itself; only \
                    optimizer.weight_decay is used, as an L2 penalty"
                    .to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Whether the parameters are in a table, and each member has its own clock.
    #[must_use]
    pub fn has_tables(&self) -> bool {
        match self {
            Self::Ssp { .. } | Self::Async { .. } | Self::Downpour { .. } => true,
            Self::LBfgs { .. } | Self::Lda { .. } => true,
            Self::Sync | Self::BackupWorkers { .. } | Self::DsSync { .. } => false,
            Self::Local { .. } | Self::Diloco { .. } => false,
        }
    }

    /// The factory of the program that runs the algorithm.
    #[must_use]
    pub fn launch(&self) -> ProgramFactory {
        match *self {
            Self::Sync => ProgramFactory::sync(),
            Self::BackupWorkers { .. } => {
                ProgramFactory::new(|loaded| BackupWorkers { sync: SyncDataParallel::of(loaded) })
            }
            Self::DsSync { group, shuffle } => ProgramFactory::new(move |loaded| DsSync {
                local_trainer: LocalTrainer::new(loaded),
                groups: Groups {
                    size: (group > 0).then_some(group),
                    seed: loaded.config.seed,
                    is_shuffled: shuffle,
                },
            }),
            Self::Local { .. } => {
                ProgramFactory::new(|loaded| Local { local_trainer: LocalTrainer::new(loaded) })
            }
            Self::Diloco { outer_rate, outer_momentum, .. } => ProgramFactory::new(move |loaded| Diloco {
                local_trainer: LocalTrainer::new(loaded),
                outer_rate,
                outer_momentum,
                statistics: loaded.config.groups.statistics_only(),
                bounds: loaded.config.bounds,
            }),
            Self::Ssp { staleness, ref staleness_from, apply, atomic } => {
                ssp((staleness, staleness_from), apply, atomicity(atomic))
            }
            Self::Async { warm_up, wave, atomic } => {
                downpour(DownpourSettings::default(), (warm_up, wave), atomicity(atomic))
            }
            Self::Downpour { n_push, n_fetch, local_rate, warm_up, wave } => {
                let settings = DownpourSettings { n_push, n_fetch, local_rate };
                downpour(settings, (warm_up, wave), Atomicity::Chunk)
            }
            Self::LBfgs { history, tolerance, portions } => lbfgs(history, tolerance, portions),
            // Its program needs the documents: that of a topic model is made with its task.
            Self::Lda { .. } => ProgramFactory::sync(),
        }
    }
}

/// An error if a key is given that does not belong to the kind.
fn check_keys(section: &SyncSection, kind: SyncKind) -> Result<(), SpecificationError> {
    let backup_workers = (&[SyncKind::BackupWorkers][..], "kind = \"backup-workers\"");
    let ds_sync = (&[SyncKind::DsSync][..], "kind = \"ds-sync\"");
    let local = (&[SyncKind::Local, SyncKind::Diloco][..], "kind = \"local\" or \"diloco\"");
    let diloco = (&[SyncKind::Diloco][..], "kind = \"diloco\"");
    let ssp = (&[SyncKind::Ssp][..], "kind = \"ssp\"");
    let downpour = (&[SyncKind::Downpour][..], "kind = \"downpour\"");
    let atomic = (&[SyncKind::Ssp, SyncKind::Async][..], "kind = \"ssp\" or \"async\"");
    let lbfgs = (&[SyncKind::LBfgs][..], "kind = \"l-bfgs\"");
    let lda = (&[SyncKind::Lda][..], "kind = \"lda\"");
    let asynchronous = (&[SyncKind::Async, SyncKind::Downpour][..], "kind = \"async\" or \"downpour\"");
    let keys = [
        ("sync.backups", section.backups.is_some(), backup_workers),
        ("sync.group", section.group.is_some(), ds_sync),
        ("sync.shuffle", section.shuffle.is_some(), ds_sync),
        ("sync.local_steps", section.local_steps.is_some(), local),
        ("sync.round_seconds", section.round_seconds.is_some(), local),
        ("sync.outer_rate", section.outer_rate.is_some(), diloco),
        ("sync.outer_momentum", section.outer_momentum.is_some(), diloco),
        ("sync.staleness", section.staleness.is_some(), ssp),
        ("sync.staleness_from", section.staleness_from.is_some(), ssp),
        ("sync.apply", section.apply.is_some(), ssp),
        ("sync.n_push", section.n_push.is_some(), downpour),
        ("sync.n_fetch", section.n_fetch.is_some(), downpour),
        ("sync.local_rate", section.local_rate.is_some(), downpour),
        ("sync.warm_up", section.warm_up.is_some(), asynchronous),
        ("sync.wave", section.wave.is_some(), asynchronous),
        ("sync.atomic", section.atomic.is_some(), atomic),
        ("sync.history", section.history.is_some(), lbfgs),
        ("sync.tolerance", section.tolerance.is_some(), lbfgs),
        ("sync.portions", section.portions.is_some(), lbfgs),
        ("sync.parts", section.parts.is_some(), lda),
    ];
    for (key, is_given, (kinds, allowed)) in keys {
        if is_given && !kinds.contains(&kind) {
            let allowed = format!("only with {allowed}");
            return Err(SpecificationError::Setting { key, found: "given".to_owned(), allowed });
        }
    }
    Ok(())
}

/// The number of parts that so many training documents are cut into.
///
/// # Errors
/// There are more parts than documents, or too many.
pub(super) fn resolve_parts(section: &SyncSection, documents: u64) -> Result<u64, SpecificationError> {
    let most = documents.min(PARTS_MAX);
    let parts = section.parts.unwrap_or(PARTS_DEFAULT.min(most));
    let allowed = format!("1 to {most}, with {documents} training documents");
    within("sync.parts", parts, 1..=most, &allowed)?;
    Ok(parts)
}

fn resolve_portions(portions: Option<u64>) -> Result<NonZeroU64, SpecificationError> {
    let portions = portions.unwrap_or(PORTIONS_DEFAULT);
    within("sync.portions", portions, 1..=PORTIONS_MAX, "1 to 64 portions")?;
    Ok(NonZeroU64::MIN.saturating_add(portions - 1))
}

/// The number of local steps in a round. A round ends with its epoch, so more steps than an epoch has make no sense.
fn resolve_local_steps(section: &SyncSection, steps_per_epoch: u64) -> Result<u64, SpecificationError> {
    let is_timed = section.round_seconds.is_some();
    match section.local_steps {
        None if is_timed => Ok(UNMEASURED_STEPS_DEFAULT.min(steps_per_epoch)),
        None => Ok(LOCAL_STEPS_DEFAULT.min(steps_per_epoch)),
        Some(LocalSteps::Number(number)) => {
            let allowed = format!("1 to {steps_per_epoch}, the steps of an epoch; or \"epoch\"");
            within("sync.local_steps", number, 1..=steps_per_epoch, &allowed)?;
            Ok(number)
        }
        Some(LocalSteps::Epoch) => Ok(steps_per_epoch),
    }
}

/// Checks the length of a round.
fn check_round(local_steps: u64, round_seconds: Option<f64>) -> Result<(), SpecificationError> {
    within("sync.local_steps", local_steps, 1..=LOCAL_STEPS_MAX, "1 to 1000000, or \"epoch\"")?;
    let Some(seconds) = round_seconds else { return Ok(()) };
    within("sync.round_seconds", seconds, ROUND_SECONDS, "0.001 to 86400 seconds")
}

/// Whether all gradients of a step are applied together. By default that holds for all optimizers but plain SGD without bounds.
fn is_by_step(apply: Option<ApplyName>, rule: &Optimizer, bounds: Option<Bounds>) -> bool {
    match apply {
        Some(apply) => apply == ApplyName::ByStep,
        None => !matches!((rule, bounds), (Optimizer::Sgd { weight_decay: 0.0 }, None)),
    }
}

/// One: most often, a swarm has one slow member at a time.
const BACKUPS_DEFAULT: usize = 1;
/// Enough local steps that traffic no longer matters on most links.
const LOCAL_STEPS_DEFAULT: u64 = 32;
/// The first rounds of a run whose rounds have a length in seconds: short ones, since nothing is known of how long they take.
const UNMEASURED_STEPS_DEFAULT: u64 = 4;
/// The seconds of a round.
const ROUND_SECONDS: RangeInclusive<f64> = 0.001..=86_400.0;
/// The outer learning rate that the DiLoCo paper recommends.
const OUTER_RATE_DEFAULT: f64 = 0.7;
/// The outer momentum that the DiLoCo paper recommends.
const OUTER_MOMENTUM_DEFAULT: f32 = 0.9;
/// A few steps avoid most of the waiting.
const STALENESS_DEFAULT: u64 = 3;
/// More steps hardly save passes.
const HISTORY_DEFAULT: usize = 10;
/// As small as gradients of 32 bits allow on well scaled data.
const TOLERANCE_DEFAULT: f64 = 1e-5;
/// A slow peer then delays a pass by little, and portions are still large beside a round trip.
const PORTIONS_DEFAULT: u64 = 8;
/// The most portions of a pass for each peer.
const PORTIONS_MAX: u64 = 64;
/// The parts of the documents, which are enough for some ten peers.
const PARTS_DEFAULT: u64 = 64;
/// The most parts of the documents.
const PARTS_MAX: u64 = 256;
/// The most steps between two sends. Additions that were not sent are lost with their worker, and their samples are trained again.
const N_PUSH_MAX: u64 = 32;
const _: () = assert!((N_PUSH_MAX as usize) < LEASES_MAX, "unsent steps and two more fit in the leases");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::specification::RunFile;

    fn resolve(sync: &str) -> Result<Algorithm, SpecificationError> {
        let sync = RunFile::parse(&format!("[sync]\n{sync}")).unwrap().sync;
        let algorithm = Algorithm::resolve(&sync, sync.kind.unwrap_or_default(), 23)?;
        algorithm.check(sync.topology)?;
        Ok(algorithm)
    }

    #[test]
    fn backup_workers_need_another_topology_than_a_ring() {
        for (text, words) in [
            (
                "topology = \"ring\"",
                "`sync.topology` is \"ring\"; allowed: \"auto\" or \"direct\" with kind = \"backup-workers\"",
            ),
            ("backups = 0", "`sync.backups` is 0; allowed: 1 to 500"),
        ] {
            let error = resolve(&format!("kind = \"backup-workers\"\n{text}")).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn each_kind_has_defaults() {
        assert_eq!(resolve(""), Ok(Algorithm::Sync));
        assert_eq!(resolve("kind = \"ds-sync\""), Ok(Algorithm::DsSync { group: 0, shuffle: true }));
        assert_eq!(
            resolve("kind = \"local\""),
            Ok(Algorithm::Local { local_steps: 23, round_seconds: None }),
            "at most the steps of an epoch"
        );
        let once_an_epoch = resolve("kind = \"local\"\nlocal_steps = \"epoch\"");
        assert_eq!(once_an_epoch, Ok(Algorithm::Local { local_steps: 23, round_seconds: None }));
        assert_eq!(resolve("kind = \"backup-workers\""), Ok(Algorithm::BackupWorkers { backups: 1 }));
        let diloco = |local_steps, round_seconds| Algorithm::Diloco {
            local_steps,
            round_seconds,
            outer_rate: 0.7,
            outer_momentum: 0.9,
        };
        assert_eq!(resolve("kind = \"diloco\"\nlocal_steps = 8"), Ok(diloco(8, None)));
        assert_eq!(resolve("kind = \"diloco\"\nround_seconds = 30"), Ok(diloco(4, Some(30.0))));
        let both = resolve("kind = \"diloco\"\nround_seconds = 0.5\nlocal_steps = 9");
        assert_eq!(both, Ok(diloco(9, Some(0.5))));
    }

    #[test]
    fn robust_means_need_individual_contributions() {
        let resolve = |text: &str| {
            let run = RunFile::parse(&format!("[sync]\n{text}")).unwrap();
            crate::specification::resolve::resolve_training(&run, 100).map(|training| training.combine)
        };
        assert_eq!(resolve(""), Ok(Aggregation::Mean));
        let trimmed = "combine = \"trimmed-mean\"";
        assert_eq!(resolve(trimmed), Ok(Aggregation::TrimmedMean { trim: 1 }));
        assert_eq!(resolve(&format!("{trimmed}\ntrim = 3")), Ok(Aggregation::TrimmedMean { trim: 3 }));
        for (text, words) in [
            ("topology = \"ring\"\ncombine = \"median\"".to_owned(), "\"mean\" with topology = \"ring\""),
            (format!("{trimmed}\nkind = \"ds-sync\""), "with kind = \"ds-sync\""),
            ("trim = 2".to_owned(), "with combine = \"trimmed-mean\""),
            (format!("{trimmed}\ntrim = 0"), "`sync.trim` is 0"),
        ] {
            let error = resolve(&text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn applying_whole_steps_limits_the_staleness() {
        let resolve = |text: &str| {
            let run = RunFile::parse(text).unwrap();
            let training = crate::specification::resolve::resolve_training(&run, 100)?;
            training.check()?;
            Ok::<_, SpecificationError>(training.algorithm)
        };
        let ssp =
            |staleness, apply| Algorithm::Ssp { staleness, staleness_from: vec![], apply, atomic: false };
        assert_eq!(resolve("[sync]\nkind = \"ssp\""), Ok(ssp(3, None)));
        let sgd = "[optimizer]\nrule = \"sgd\"\n[sync]\nkind = \"ssp\"\nstaleness = 400";
        assert_eq!(resolve(sgd), Ok(ssp(400, None)));
        for text in [&format!("{sgd}\napply = \"by-step\""), "[sync]\nkind = \"ssp\"\nstaleness = 17"] {
            let error = resolve(text).unwrap_err().to_string();
            assert!(error.contains("0 to 16 steps if all gradients"), "{error}");
        }
        let winner = "[partition]\npolicy = \"winner\"\n[sync]\nkind = \"async\"";
        let error = resolve(winner).unwrap_err().to_string();
        assert!(error.contains("\"majority\" with this [sync] kind"), "{error}");
    }

    #[test]
    fn keys_of_another_kind_are_errors() {
        for (text, words) in [
            ("group = 4", "`sync.group` is given; allowed: only with kind = \"ds-sync\""),
            ("kind = \"ds-sync\"\nlocal_steps = 4", "kind = \"local\" or \"diloco\""),
            ("kind = \"local\"\nouter_rate = 1.0", "kind = \"diloco\""),
            (
                "kind = \"local\"\nlocal_steps = 0",
                "`sync.local_steps` is 0; allowed: 1 to 23, the steps of an epoch",
            ),
            ("kind = \"diloco\"\nlocal_steps = 24", "`sync.local_steps` is 24; allowed: 1 to 23"),
            ("round_seconds = 30", "`sync.round_seconds` is given; allowed: only with kind = \"local\" or"),
            ("kind = \"ds-sync\"\nround_seconds = 30", "`sync.round_seconds` is given; allowed: only with"),
            (
                "kind = \"local\"\nround_seconds = 0",
                "`sync.round_seconds` is 0; allowed: 0.001 to 86400 seconds",
            ),
            ("kind = \"diloco\"\nround_seconds = -5", "`sync.round_seconds` is -5; allowed: 0.001 to"),
            ("kind = \"diloco\"\nround_seconds = nan", "`sync.round_seconds` is NaN; allowed: 0.001 to"),
            ("kind = \"diloco\"\nround_seconds = 1e9", "`sync.round_seconds` is 1000000000; allowed: 0.001"),
            ("backups = 2", "`sync.backups` is given; allowed: only with kind = \"backup-workers\""),
            ("kind = \"ds-sync\"\ngroup = 1", "`sync.group` is 1; allowed: 2 or more"),
            ("staleness = 1", "`sync.staleness` is given; allowed: only with kind = \"ssp\""),
            (
                "kind = \"async\"\nn_push = 2",
                "`sync.n_push` is given; allowed: only with kind = \"downpour\"",
            ),
            (
                "kind = \"ssp\"\nstaleness_from = [[20, 0], [20, 1]]",
                "`sync.staleness_from` is 20; allowed: at most 16 pairs of a step and a bound, steps ascending",
            ),
            ("kind = \"async\"\nlocal_rate = 0.1", "`sync.local_rate` is given"),
            ("kind = \"downpour\"\nn_push = 33", "`sync.n_push` is 33; allowed: 1 to 32"),
            ("kind = \"ssp\"\nwave = 3", "`sync.wave` is given; allowed: only with kind = \"async\""),
            ("kind = \"diloco\"\nouter_momentum = 1.0", "`sync.outer_momentum` is 1"),
        ] {
            let error = resolve(text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
