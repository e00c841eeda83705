//! From the tables that a user declares to those of the core.

use peergrad::loader::Loaded;
use peergrad::optimizer::{Bounds, Optimizer, Schedule};
use peergrad::prelude::{ApplyMode, Atomicity, Init, ReadPolicy, Table, TableRule, TableSpec};
use peergrad::specification::RunFile;
use peergrad::specification::resolve::resolve_rule;
use peergrad::table::TableLayout;
use pyo3::prelude::*;

use crate::options::value_error;

/// One table: the keys of a Python mapping.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct TableOptions {
    name: String,
    rows: u64,
    width: usize,
    /// The keys of an `[optimizer]` section, as text; `None` if owners only add.
    optimizer: Option<String>,
    /// Whether it starts with parameters of the task, and not with zeros.
    has_initial: bool,
    /// Whether each peer reads it at the end of the run.
    read_at_end: bool,
}

/// The tables of a run, and how stale reads may be.
pub(crate) struct Declaration {
    tables: Vec<Declared>,
    read_policy: ReadPolicy,
    atomicity: Atomicity,
}

/// A table whose options are checked.
struct Declared {
    options: TableOptions,
    /// The rule of its owners, and its rate; `None` if owners only add.
    optimizer: Option<(Optimizer, Option<f64>, Option<Bounds>)>,
}

impl Declaration {
    /// # Errors
    /// No run can have these tables.
    pub(crate) fn new(tables: Vec<TableOptions>, staleness: Option<u64>, atomic: bool) -> PyResult<Self> {
        let tables = tables.into_iter().map(Declared::new).collect::<PyResult<Vec<_>>>()?;
        let read_policy = staleness.map_or(ReadPolicy::Unbounded, ReadPolicy::Staleness);
        let any_rate = Schedule::constant(1.0);
        TableLayout::try_new(tables.iter().map(|table| table.table(any_rate)).collect())
            .map_err(value_error)?;
        let atomicity = if atomic { Atomicity::Clock } else { Atomicity::Chunk };
        Ok(Self { tables, read_policy, atomicity })
    }

    /// What peers compare, and quote where they differ.
    pub(crate) fn program_name(&self) -> String {
        let tables = self.tables.iter().map(|Declared { options, .. }| {
            let TableOptions { name, rows, width, optimizer, .. } = options;
            let rule = optimizer.as_deref().unwrap_or("rule = \"sum\"").replace('\n', ", ");
            format!("{name}: {rows} x {width}, {rule}")
        });
        let staleness = match self.read_policy {
            ReadPolicy::Staleness(clocks) => format!("staleness {clocks}"),
            ReadPolicy::Unbounded => "any staleness".to_owned(),
        };
        let atomicity = match self.atomicity {
            Atomicity::Clock => "atomic clocks",
            Atomicity::Chunk => "clocks that are not atomic",
        };
        format!("tables ({}; {staleness}; {atomicity})", tables.collect::<Vec<_>>().join("; "))
    }

    /// The tables that start with zeros and that each peer reads at the end. Those with parameters are read anyway.
    pub(crate) fn read_at_end(&self) -> impl Iterator<Item = &str> {
        let options = self.tables.iter().map(|table| &table.options);
        options.filter(|table| table.read_at_end && !table.has_initial).map(|table| &table.name[..])
    }

    /// The tables of a run with these settings.
    pub(crate) fn spec(&self, loaded: &Loaded) -> TableSpec {
        let tables = self.tables.iter().map(|table| table.table(loaded.config.schedule));
        TableSpec { atomicity: self.atomicity, ..TableSpec::new(tables.collect(), self.read_policy) }
    }
}

impl Declared {
    fn new(options: TableOptions) -> PyResult<Self> {
        let optimizer = match &options.optimizer {
            Some(keys) => {
                let run = RunFile::parse(&format!("[optimizer]\n{keys}")).map_err(value_error)?;
                let rule = resolve_rule(&run.optimizer).map_err(value_error)?;
                Some((rule, run.optimizer.rate, run.optimizer.bounds))
            }
            None => None,
        };
        Ok(Self { options, optimizer })
    }

    /// The table, in a run with this schedule.
    fn table(&self, schedule: Schedule) -> Table {
        let TableOptions { name, rows, width, has_initial, .. } = &self.options;
        let rule = match self.optimizer {
            Some((rule, rate, bounds)) => {
                let schedule = rate.map_or(schedule, Schedule::constant);
                TableRule::Optimizer { rule, schedule, bounds }
            }
            None => TableRule::Sum,
        };
        Table {
            name: name.clone().into(),
            rows: *rows,
            width: *width,
            vectors: 1,
            rule,
            apply_mode: ApplyMode::Immediate,
            init: if *has_initial { Init::Parameters } else { Init::Zeros },
        }
    }
}
