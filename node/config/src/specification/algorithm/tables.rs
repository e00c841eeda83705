//! The kinds of `[sync]` whose parameters are in a table.

use std::num::NonZeroU64;
use std::sync::Arc;

use peergrad_core::program::ProgramFactory;
use peergrad_core::program::loader::{Loaded, TrainingConfig};
use peergrad_core::program::programs::downpour::{Downpour, DownpourSettings};
use peergrad_core::program::programs::lbfgs::{Lbfgs, LbfgsSettings};
use peergrad_core::program::programs::ssp::Ssp;
use peergrad_core::table::{
    ApplyMode, Atomicity, BatchScope, Init, Portions, ReadPolicy, ReadSchedule, Table, TableLayout,
    TableRule, TableSpec,
};
use peergrad_models::optimizer::Optimizer;
use peergrad_models::task::ParameterTable;

use super::is_by_step;
use crate::specification::run_file::ApplyName;

/// How the owners of a parameter table apply updates. With plain SGD and without bounds, they only add.
fn rule_of(loaded: &Loaded) -> TableRule {
    let TrainingConfig { rule, schedule, bounds, .. } = loaded.config;
    match (rule, bounds) {
        (Optimizer::Sgd { weight_decay: 0.0 }, None) => TableRule::Sum,
        (rule, bounds) => TableRule::Optimizer { rule, schedule, bounds },
    }
}

/// The layout of one table with all parameters, a few of them in each row; or of the tables of a sparse task.
fn layout(loaded: &Loaded, apply_mode: ApplyMode) -> Arc<TableLayout> {
    let tables = match loaded.task.sparse() {
        Some(task) => task.tables(),
        None => {
            let count = loaded.manifest.parameter_count();
            let width = count.div_ceil(ROWS_WANTED).next_multiple_of(ROW_NUMBERS_MIN);
            vec![ParameterTable { name: "parameters", rows: count.div_ceil(width).max(1) as u64, width }]
        }
    };
    let (rule, init) = (rule_of(loaded), Init::Parameters);
    let table = |ParameterTable { name, rows, width }| {
        // A table has a row even if a task has no parameters.
        Table { name: name.into(), rows: rows.max(1), width, vectors: 1, rule, apply_mode, init }
    };
    Arc::new(TableLayout::new(tables.into_iter().map(table).collect()))
}

pub(super) fn atomicity(is_atomic: bool) -> Atomicity {
    if is_atomic { Atomicity::Clock } else { Atomicity::Chunk }
}

pub(super) fn ssp(
    (staleness, staleness_from): (u64, &[(u64, u64)]),
    apply: Option<ApplyName>,
    atomicity: Atomicity,
) -> ProgramFactory {
    let first = ReadSchedule::constant(ReadPolicy::Staleness(staleness));
    let read_schedule = staleness_from
        .iter()
        .fold(first, |read_schedule, &(step, bound)| read_schedule.then(step, ReadPolicy::Staleness(bound)));
    let table_spec = move |loaded: &Loaded| {
        let is_by_step = is_by_step(apply, &loaded.config.rule, loaded.config.bounds);
        let apply_mode = if is_by_step { ApplyMode::PerClock } else { ApplyMode::Immediate };
        TableSpec {
            layout: layout(loaded, apply_mode),
            read_schedule: read_schedule.clone(),
            batch_scope: BatchScope::Global,
            atomicity,
            warm_up: 0,
            wave: None,
            portions: None,
        }
    };
    ProgramFactory::with_tables(table_spec, |loaded| Ssp::of(loaded, rule_of(loaded)))
}

pub(super) fn downpour(
    settings: DownpourSettings,
    (warm_up, wave): (u64, u64),
    atomicity: Atomicity,
) -> ProgramFactory {
    let table_spec = move |loaded: &Loaded| TableSpec {
        layout: layout(loaded, ApplyMode::Immediate),
        read_schedule: ReadSchedule::constant(ReadPolicy::Unbounded),
        batch_scope: BatchScope::PerWorker,
        atomicity,
        warm_up,
        wave: NonZeroU64::new(wave),
        portions: None,
    };
    ProgramFactory::with_tables(table_spec, move |loaded| Downpour::of(loaded, rule_of(loaded), settings))
}

pub(super) fn lbfgs(history: usize, tolerance: f64, portions: NonZeroU64) -> ProgramFactory {
    let settings = move |loaded: &Loaded| {
        let l2 = l2_of(&loaded.config.rule).map_or(0.0, f64::from);
        LbfgsSettings { history, l2, tolerance }
    };
    let table_spec = move |loaded: &Loaded| TableSpec {
        layout: Arc::new(Lbfgs::layout(loaded.manifest.parameter_count(), &settings(loaded))),
        read_schedule: ReadSchedule::constant(ReadPolicy::Unbounded),
        batch_scope: BatchScope::PerWorker,
        // Every addition has an idempotency key.
        atomicity: Atomicity::Chunk,
        warm_up: 0,
        wave: None,
        portions: Some(Portions::PerWorker(portions)),
    };
    ProgramFactory::with_tables(table_spec, move |loaded| Lbfgs::of(loaded, settings(loaded)))
}

/// The factor of the L2 penalty that an optimizer's weight decay amounts to; `None` for an optimizer that adds none to the gradient.
pub(super) fn l2_of(rule: &Optimizer) -> Option<f32> {
    match *rule {
        Optimizer::Sgd { weight_decay } | Optimizer::Adam { weight_decay, .. } => Some(weight_decay),
        _ => None,
    }
}

/// About how many rows a parameter table has; the row width follows from it.
const ROWS_WANTED: usize = 1 << 14;
/// The row width is a multiple of this.
const ROW_NUMBERS_MIN: usize = 16;
