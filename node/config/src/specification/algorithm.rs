//! The algorithm: what `[sync]` of a run file comes to, and the program that it launches.

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;

use peergrad_collectives::combine::Combine;
use peergrad_collectives::groups::Groups;
use peergrad_core::program::ProgramFactory;
use peergrad_core::program::loader::{Loaded, TrainingConfig};
use peergrad_core::program::programs::backup_workers::BackupWorkers;
use peergrad_core::program::programs::diloco::Diloco;
use peergrad_core::program::programs::downpour::{Downpour, DownpourSettings};
use peergrad_core::program::programs::ds_sync::DsSync;
use peergrad_core::program::programs::local::Local;
use peergrad_core::program::programs::local_trainer::LocalTrainer;
use peergrad_core::program::programs::ssp::Ssp;
use peergrad_core::program::programs::sync::SyncDataParallel;
use peergrad_core::table::{
    ApplyMode, BatchScope, Init, ReadPolicy, ReadSchedule, Table, TableLayout, TableRule, TableSpec,
};
use peergrad_models::optimizer::Optimizer;
use peergrad_protocol::limits::{LEASES_MAX, PER_CLOCK_STALENESS_MAX, STEPS_MAX};
use serde::{Deserialize, Serialize};

use super::run_file::{AggregationName, ApplyName, LocalSteps, SyncKind, SyncSection};
use super::{Route, SpecificationError, within};

/// How the peers of a run train together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Algorithm {
    /// [`SyncDataParallel`].
    #[default]
    Sync,
    /// [`BackupWorkers`].
    BackupWorkers {
        /// Contributions that a step does not wait for.
        backups: usize,
    },
    /// [`DsSync`].
    DsSync {
        /// Members of a group; 0: about the square root of all.
        group: usize,
        /// Whether groups change from round to round.
        shuffle: bool,
    },
    /// [`Local`].
    Local {
        /// Local steps between two means.
        local_steps: u64,
    },
    /// [`Diloco`].
    Diloco {
        /// Local steps between two outer steps.
        local_steps: u64,
        /// The outer learning rate.
        outer_rate: f64,
        /// Share of the outer velocity that is kept.
        outer_momentum: f32,
    },
    /// [`Ssp`].
    Ssp {
        /// Steps that the fastest may be ahead of the slowest.
        staleness: u64,
        /// Other bounds, from these steps on, ascending.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        staleness_from: Vec<(u64, u64)>,
        /// When owners apply gradients; `None`: as the rule wants it.
        apply: Option<ApplyName>,
    },
    /// [`Downpour`], sending and reading in each step.
    Async {
        /// Samples that one peer trains alone.
        warm_up: u64,
        /// Samples after which one more comes in.
        wave: u64,
    },
    /// [`Downpour`].
    Downpour {
        /// Steps after which a peer sends what it has added.
        n_push: u64,
        /// Steps after which it reads again.
        n_fetch: u64,
        /// The rate at which it goes on by itself in between, where owners update by a rule; `None`: that of the optimizer.
        local_rate: Option<f64>,
        /// Samples that one peer trains alone.
        warm_up: u64,
        /// Samples after which one more comes in.
        wave: u64,
    },
}

impl Algorithm {
    /// Settles what `[sync]` leaves open; an epoch has so many steps.
    ///
    /// # Errors
    /// A key does not go with the kind, or has a value that is not allowed.
    pub(super) fn resolve(section: &SyncSection, steps_per_epoch: u64) -> Result<Self, SpecificationError> {
        let kind = section.kind;
        let only_for = |key, is_given: bool, kinds: &[SyncKind], allowed: &str| {
            if is_given && !kinds.contains(&kind) {
                let allowed = format!("nothing but with {allowed}");
                return Err(SpecificationError::Setting { key, found: "given".to_owned(), allowed });
            }
            Ok(())
        };
        let (with_groups, with_local_steps) = ([SyncKind::DsSync], [SyncKind::Local, SyncKind::Diloco]);
        only_for(
            "sync.backups",
            section.backups.is_some(),
            &[SyncKind::BackupWorkers],
            "kind = \"backup-workers\"",
        )?;
        only_for("sync.group", section.group.is_some(), &with_groups, "kind = \"ds-sync\"")?;
        only_for("sync.shuffle", section.shuffle.is_some(), &with_groups, "kind = \"ds-sync\"")?;
        let words = "kind = \"local\" or \"diloco\"";
        only_for("sync.local_steps", section.local_steps.is_some(), &with_local_steps, words)?;
        let (diloco, words) = ([SyncKind::Diloco], "kind = \"diloco\"");
        only_for("sync.outer_rate", section.outer_rate.is_some(), &diloco, words)?;
        only_for("sync.outer_momentum", section.outer_momentum.is_some(), &diloco, words)?;
        let (ssp, words) = ([SyncKind::Ssp], "kind = \"ssp\"");
        only_for("sync.staleness", section.staleness.is_some(), &ssp, words)?;
        only_for("sync.staleness_from", section.staleness_from.is_some(), &ssp, words)?;
        only_for("sync.apply", section.apply.is_some(), &ssp, words)?;
        let (downpour, words) = ([SyncKind::Downpour], "kind = \"downpour\"");
        only_for("sync.n_push", section.n_push.is_some(), &downpour, words)?;
        only_for("sync.n_fetch", section.n_fetch.is_some(), &downpour, words)?;
        only_for("sync.local_rate", section.local_rate.is_some(), &downpour, words)?;
        let free = [SyncKind::Async, SyncKind::Downpour];
        let words = "kind = \"async\" or \"downpour\"";
        only_for("sync.warm_up", section.warm_up.is_some(), &free, words)?;
        only_for("sync.wave", section.wave.is_some(), &free, words)?;
        let (warm_up, wave) = (section.warm_up.unwrap_or(0), section.wave.unwrap_or(0));
        let local_steps = match section.local_steps {
            None => LOCAL_STEPS_DEFAULT.min(steps_per_epoch),
            Some(LocalSteps::Number(number)) => {
                // A round ends with its epoch: more steps would be smaller ones.
                let allowed = format!("1 to {steps_per_epoch}, the steps of an epoch; or \"epoch\"");
                within("sync.local_steps", number, 1..=steps_per_epoch, &allowed)?;
                number
            }
            Some(LocalSteps::Epoch) => steps_per_epoch,
        };
        let algorithm = match kind {
            SyncKind::Sync => Self::Sync,
            SyncKind::BackupWorkers => {
                Self::BackupWorkers { backups: section.backups.unwrap_or(BACKUPS_DEFAULT) }
            }
            SyncKind::DsSync => {
                Self::DsSync { group: section.group.unwrap_or(0), shuffle: section.shuffle.unwrap_or(true) }
            }
            SyncKind::Local => Self::Local { local_steps },
            SyncKind::Diloco => Self::Diloco {
                local_steps,
                outer_rate: section.outer_rate.unwrap_or(OUTER_RATE_DEFAULT),
                outer_momentum: section.outer_momentum.unwrap_or(OUTER_MOMENTUM_DEFAULT),
            },
            SyncKind::Ssp => Self::Ssp {
                staleness: section.staleness.unwrap_or(STALENESS_DEFAULT),
                staleness_from: section.staleness_from.clone().unwrap_or_default(),
                apply: section.apply,
            },
            SyncKind::Async => Self::Async { warm_up, wave },
            SyncKind::Downpour => Self::Downpour {
                n_push: section.n_push.unwrap_or(1),
                n_fetch: section.n_fetch.unwrap_or(1),
                local_rate: section.local_rate,
                warm_up,
                wave,
            },
        };
        if let Some(0 | 1) = section.group {
            within("sync.group", section.group.unwrap_or(0), 2.., "2 or more peers")?;
        }
        Ok(algorithm)
    }

    /// An error unless all settings are allowed.
    pub(super) fn check(&self, route: Route) -> Result<(), SpecificationError> {
        let steps =
            |steps: u64| within("sync.local_steps", steps, 1..=1_000_000, "1 to 1000000, or \"epoch\"");
        match *self {
            Self::Sync | Self::DsSync { .. } => Ok(()),
            Self::BackupWorkers { .. } if route == Route::Ring => Err(SpecificationError::Setting {
                key: "sync.topology",
                found: "\"ring\"".to_owned(),
                allowed: "\"auto\" or \"direct\" with kind = \"backup-workers\": a ring waits for everybody"
                    .to_owned(),
            }),
            Self::BackupWorkers { backups } => {
                within("sync.backups", backups, 1..=500, "1 to 500 contributions")
            }
            Self::Local { local_steps } => steps(local_steps),
            Self::Diloco { local_steps, outer_rate, outer_momentum } => {
                steps(local_steps)?;
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
        }
    }

    /// Steps that each member takes by itself before it hears of the others.
    #[must_use]
    pub fn local_steps(&self) -> u64 {
        match *self {
            Self::Sync | Self::BackupWorkers { .. } | Self::DsSync { .. } => 1,
            Self::Ssp { .. } | Self::Async { .. } | Self::Downpour { .. } => 1,
            Self::Local { local_steps } | Self::Diloco { local_steps, .. } => local_steps,
        }
    }

    /// Contributions that a step does not wait for; `None` if it waits for all.
    #[must_use]
    pub fn backups(&self) -> Option<NonZeroUsize> {
        if let Self::BackupWorkers { backups } = *self { NonZeroUsize::new(backups) } else { None }
    }

    /// Whether all peers hold the same parameters after each step, and have to complete it.
    pub(super) fn can_merge(&self) -> bool {
        matches!(self, Self::Sync | Self::Local { .. } | Self::Diloco { .. })
    }

    /// An error unless it goes with the optimizer's rule.
    pub(super) fn check_rule(&self, rule: &Optimizer) -> Result<(), SpecificationError> {
        match *self {
            Self::Ssp { staleness, ref staleness_from, apply } if is_by_step(apply, rule) => {
                let allowed = "0 to 16 steps where all gradients of a step are applied together";
                within("sync.staleness", staleness, ..=PER_CLOCK_STALENESS_MAX, allowed)?;
                let within_bound = |(_, bound): &(u64, u64)| {
                    within("sync.staleness_from", *bound, ..=PER_CLOCK_STALENESS_MAX, allowed)
                };
                staleness_from.iter().try_for_each(within_bound)
            }
            _ => Ok(()),
        }
    }

    /// Whether parameters are kept in a table, with a clock for each peer.
    #[must_use]
    pub fn has_tables(&self) -> bool {
        matches!(self, Self::Ssp { .. } | Self::Async { .. } | Self::Downpour { .. })
    }

    /// What makes the program.
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
            }),
            Self::Ssp { staleness, ref staleness_from, apply } => {
                let first = ReadSchedule::constant(ReadPolicy::Staleness(staleness));
                let read_schedule = staleness_from.iter().fold(first, |read_schedule, &(step, bound)| {
                    read_schedule.then(step, ReadPolicy::Staleness(bound))
                });
                let apply_mode = move |loaded: &Loaded| {
                    if is_by_step(apply, &loaded.config.rule) {
                        ApplyMode::PerClock
                    } else {
                        ApplyMode::Immediate
                    }
                };
                let table_spec = move |loaded: &Loaded| TableSpec {
                    layout: layout(loaded, apply_mode(loaded)),
                    read_schedule: read_schedule.clone(),
                    batch_scope: BatchScope::Global,
                    warm_up: 0,
                    wave: None,
                };
                ProgramFactory::with_tables(table_spec, |loaded| Ssp::of(loaded, rule_of(loaded)))
            }
            Self::Async { warm_up, wave } => downpour(DownpourSettings::default(), (warm_up, wave)),
            Self::Downpour { n_push, n_fetch, local_rate, warm_up, wave } => {
                downpour(DownpourSettings { n_push, n_fetch, local_rate }, (warm_up, wave))
            }
        }
    }
}

/// Whether all gradients of a step are applied together; plain SGD needs that least.
fn is_by_step(apply: Option<ApplyName>, rule: &Optimizer) -> bool {
    match apply {
        Some(apply) => apply == ApplyName::ByStep,
        None => !matches!(rule, Optimizer::Sgd { weight_decay: 0.0 }),
    }
}

/// What owners of a table of parameters do with what they are sent: plain SGD needs no owner to do anything but add.
fn rule_of(loaded: &Loaded) -> TableRule {
    let TrainingConfig { rule, schedule, .. } = loaded.config;
    match rule {
        Optimizer::Sgd { weight_decay: 0.0 } => TableRule::Sum,
        rule => TableRule::Optimizer { rule, schedule },
    }
}

/// One table of the parameters: a few of them a row, or each by itself, where few of them are touched at a time.
fn layout(loaded: &Loaded, apply_mode: ApplyMode) -> Arc<TableLayout> {
    let count = loaded.manifest.parameter_count();
    let width = match loaded.task.sparse() {
        Some(_) => 1,
        None => count.div_ceil(ROWS_WANTED).next_multiple_of(ROW_NUMBERS_MIN),
    };
    let (rows, rule, init) = (count.div_ceil(width).max(1) as u64, rule_of(loaded), Init::Parameters);
    Arc::new(TableLayout::new(vec![Table { name: "parameters", rows, width, rule, apply_mode, init }]))
}

fn downpour(settings: DownpourSettings, (warm_up, wave): (u64, u64)) -> ProgramFactory {
    let table_spec = move |loaded: &Loaded| TableSpec {
        layout: layout(loaded, ApplyMode::Immediate),
        read_schedule: ReadSchedule::constant(ReadPolicy::Unbounded),
        batch_scope: BatchScope::PerWorker,
        warm_up,
        wave: NonZeroU64::new(wave),
    };
    ProgramFactory::with_tables(table_spec, move |loaded| Downpour::of(loaded, rule_of(loaded), settings))
}

/// What owners make of contributions, as it is written in files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Aggregation {
    /// Their mean, weighted by samples.
    #[default]
    Mean,
    /// By element, the mean of all but so many of the largest and of the smallest.
    TrimmedMean {
        /// How many.
        trim: usize,
    },
    /// By element, the middle one.
    Median,
}

impl Aggregation {
    /// What `[sync]` says.
    ///
    /// # Errors
    /// `trim` does not go with the rest.
    pub(super) fn resolve(section: &SyncSection) -> Result<Self, SpecificationError> {
        if let (Some(_), AggregationName::Mean | AggregationName::Median) = (section.trim, section.combine) {
            return Err(SpecificationError::Setting {
                key: "sync.trim",
                found: "given".to_owned(),
                allowed: "nothing but with combine = \"trimmed-mean\"".to_owned(),
            });
        }
        Ok(match section.combine {
            AggregationName::Mean => Self::Mean,
            AggregationName::TrimmedMean => Self::TrimmedMean { trim: section.trim.unwrap_or(1) },
            AggregationName::Median => Self::Median,
        })
    }

    /// An error unless it goes with the rest.
    pub(super) fn check(&self, route: Route, algorithm: &Algorithm) -> Result<(), SpecificationError> {
        let allowed = match (self, route, algorithm) {
            (Self::Mean, ..) => return Ok(()),
            _ if algorithm.has_tables() => "\"mean\" with this kind: owners see one gradient at a time",
            (_, _, Algorithm::DsSync { .. }) => "\"mean\" with kind = \"ds-sync\"",
            (_, Route::Ring, _) => {
                "\"mean\" with topology = \"ring\": nobody sees single contributions there"
            }
            (Self::TrimmedMean { trim }, ..) => return within("sync.trim", *trim, 1..=500, "1 to 500"),
            (Self::Median, ..) => return Ok(()),
        };
        let found = "a robust mean".to_owned();
        Err(SpecificationError::Setting { key: "sync.combine", found, allowed: allowed.to_owned() })
    }
}

impl From<Aggregation> for Combine {
    fn from(robustness: Aggregation) -> Self {
        match robustness {
            Aggregation::Mean => Self::Sum,
            Aggregation::TrimmedMean { trim } => Self::Trimmed(trim),
            Aggregation::Median => Self::Median,
        }
    }
}

/// One slow peer at a time is what a swarm sees most.
const BACKUPS_DEFAULT: usize = 1;
/// As in the paper that `local` is best known from, about: enough for the traffic to stop mattering on most lines.
const LOCAL_STEPS_DEFAULT: u64 = 32;
/// The values that *DiLoCo* recommends.
const OUTER_RATE_DEFAULT: f64 = 0.7;
const OUTER_MOMENTUM_DEFAULT: f32 = 0.9;
/// Most of what there is to be gained from not waiting is gained with a few steps.
const STALENESS_DEFAULT: u64 = 3;
/// What is not sent yet is lost with its worker, so that what it has trained since is trained again.
const N_PUSH_MAX: u64 = 32;
const _: () = assert!((N_PUSH_MAX as usize) < LEASES_MAX, "and two more");
/// Rows of a table of parameters are as long as they have to be for this many.
const ROWS_WANTED: usize = 1 << 14;
const ROW_NUMBERS_MIN: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::specification::RunFile;

    fn resolve(sync: &str) -> Result<Algorithm, SpecificationError> {
        let sync = RunFile::parse(&format!("[sync]\n{sync}")).unwrap().sync;
        let algorithm = Algorithm::resolve(&sync, 23)?;
        algorithm.check(sync.topology)?;
        Ok(algorithm)
    }

    #[test]
    fn backup_workers_do_not_go_around_a_ring() {
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
    fn a_kind_is_enough() {
        assert_eq!(resolve(""), Ok(Algorithm::Sync));
        assert_eq!(resolve("kind = \"ds-sync\""), Ok(Algorithm::DsSync { group: 0, shuffle: true }));
        assert_eq!(
            resolve("kind = \"local\""),
            Ok(Algorithm::Local { local_steps: 23 }),
            "no more than an epoch has"
        );
        let once_an_epoch = resolve("kind = \"local\"\nlocal_steps = \"epoch\"");
        assert_eq!(once_an_epoch, Ok(Algorithm::Local { local_steps: 23 }));
        assert_eq!(resolve("kind = \"backup-workers\""), Ok(Algorithm::BackupWorkers { backups: 1 }));
        let diloco = Algorithm::Diloco { local_steps: 8, outer_rate: 0.7, outer_momentum: 0.9 };
        assert_eq!(resolve("kind = \"diloco\"\nlocal_steps = 8"), Ok(diloco));
    }

    #[test]
    fn robust_means_need_single_contributions() {
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
    fn what_waits_for_a_whole_step_waits_for_few() {
        let resolve = |text: &str| {
            let run = RunFile::parse(text).unwrap();
            let training = crate::specification::resolve::resolve_training(&run, 100)?;
            training.check()?;
            Ok::<_, SpecificationError>(training.algorithm)
        };
        let ssp = |staleness, apply| Algorithm::Ssp { staleness, staleness_from: vec![], apply };
        assert_eq!(resolve("[sync]\nkind = \"ssp\""), Ok(ssp(3, None)));
        let sgd = "[optimizer]\nrule = \"sgd\"\n[sync]\nkind = \"ssp\"\nstaleness = 400";
        assert_eq!(resolve(sgd), Ok(ssp(400, None)));
        for text in [&format!("{sgd}\napply = \"by-step\""), "[sync]\nkind = \"ssp\"\nstaleness = 17"] {
            let error = resolve(text).unwrap_err().to_string();
            assert!(error.contains("0 to 16 steps where all gradients"), "{error}");
        }
        let winner = "[partition]\npolicy = \"winner\"\n[sync]\nkind = \"async\"";
        let error = resolve(winner).unwrap_err().to_string();
        assert!(error.contains("\"majority\" with this [sync] kind"), "{error}");
    }

    #[test]
    fn keys_that_do_not_go_with_the_kind_are_errors() {
        for (text, words) in [
            ("group = 4", "`sync.group` is given; allowed: nothing but with kind = \"ds-sync\""),
            ("kind = \"ds-sync\"\nlocal_steps = 4", "kind = \"local\" or \"diloco\""),
            ("kind = \"local\"\nouter_rate = 1.0", "kind = \"diloco\""),
            (
                "kind = \"local\"\nlocal_steps = 0",
                "`sync.local_steps` is 0; allowed: 1 to 23, the steps of an epoch",
            ),
            ("kind = \"diloco\"\nlocal_steps = 24", "`sync.local_steps` is 24; allowed: 1 to 23"),
            ("backups = 2", "`sync.backups` is given; allowed: nothing but with kind = \"backup-workers\""),
            ("kind = \"ds-sync\"\ngroup = 1", "`sync.group` is 1; allowed: 2 or more"),
            ("staleness = 1", "`sync.staleness` is given; allowed: nothing but with kind = \"ssp\""),
            (
                "kind = \"async\"\nn_push = 2",
                "`sync.n_push` is given; allowed: nothing but with kind = \"downpour\"",
            ),
            (
                "kind = \"ssp\"\nstaleness_from = [[20, 0], [20, 1]]",
                "`sync.staleness_from` is 20; allowed: at most 16 pairs of a step and a bound, steps ascending",
            ),
            ("kind = \"async\"\nlocal_rate = 0.1", "`sync.local_rate` is given"),
            ("kind = \"downpour\"\nn_push = 33", "`sync.n_push` is 33; allowed: 1 to 32"),
            ("kind = \"ssp\"\nwave = 3", "`sync.wave` is given; allowed: nothing but with kind = \"async\""),
            ("kind = \"diloco\"\nouter_momentum = 1.0", "`sync.outer_momentum` is 1"),
        ] {
            let error = resolve(text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
