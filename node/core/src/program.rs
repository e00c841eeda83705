//! The program: a training algorithm, written as one round of sequential code that every peer runs.
//!
//! The node calls the round in a loop, and never drops it midway. An interruption ends a round early; the node then calls the round again,
//! in the next view. The program's *fields* survive the interruption and the locals of the round do not. So a round changes `self` only
//! after its last await, and can then be repeated.
//!
//! A loader returns a [`ProgramFactory`] beside the task, which makes the program when the first view begins.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::program::context::{Context, Interrupted};
use crate::program::executor::ProgramExecutor;
use crate::program::loader::Loaded;
use crate::program::programs::sync::SyncDataParallel;
use crate::table::TableSpec;

pub(crate) mod batch;
mod clock;
pub(crate) mod command;
pub mod context;
pub(crate) mod contribution;
pub(crate) mod executor;
pub mod loader;
mod mailbox;
pub mod programs;
mod step;

/// Whether the node calls another round.
pub type Flow = ControlFlow<()>;

/// An algorithm, the same on every peer.
pub trait Program: Send + 'static {
    /// The name by which peers check that they run the same algorithm. Change the name when the algorithm changes.
    const NAME: &'static str;

    /// Whether each member has its own parameters, which become equal only in a step that averages all members. A step is then final at
    /// each member that has completed it. When a member is lost, a member that is behind skips the steps that others have completed, and
    /// keeps its last contribution, which must therefore be its parameters.
    const LOCAL_PARAMETERS: bool = false;

    /// Whether owners update by a rule of the program
    /// ([`Step::update_owned_with`](crate::program::context::Step::update_owned_with)). Owners then keep no optimizer state, and parameters
    /// are sent without compression.
    const CUSTOM_RULE: bool = false;

    /// Whether the program updates with the [grouped optimizer](crate::program::loader::TrainingConfig::optimizer) of the run. Otherwise
    /// a run file with parameter groups or a greatest norm is refused.
    const GROUPED_OPTIMIZER: bool = false;

    /// Moments that the owner of a shard keeps for each parameter: as many as the optimizer given to
    /// [`Step::update_owned`](crate::program::context::Step::update_owned) needs. Unused with a [custom rule](Program::CUSTOM_RULE).
    #[must_use]
    fn owner_moments(loaded: &Loaded) -> usize {
        loaded.config.rule.moment_count()
    }

    /// One round, usually one step or one clock. `Break` ends the program.
    ///
    /// Implementations write plain `async fn round`.
    ///
    /// # Errors
    /// [`Interrupted`], which an implementation passes on with `?`; the node calls the round again in the next view.
    fn round(&mut self, context: &Context) -> impl Future<Output = Result<Flow, Interrupted>> + Send;
}

/// Makes the tables of a program, for a loaded task.
type TableSpecFactory = Arc<dyn Fn(&Loaded) -> TableSpec + Send + Sync>;

/// Makes a program for a loaded task.
#[derive(Clone)]
pub struct ProgramFactory {
    /// The program's name: [`Program::NAME`], or the one that [`named`](Self::named) has set.
    name: Cow<'static, str>,
    /// Whether each member has its own parameters: [`Program::LOCAL_PARAMETERS`].
    has_local_parameters: bool,
    /// Whether owners update by a rule of the program: [`Program::CUSTOM_RULE`].
    has_custom_rule: bool,
    /// Whether it updates with the run's grouped optimizer: [`Program::GROUPED_OPTIMIZER`].
    has_grouped_optimizer: bool,
    /// How many numbers for each element the owners' rule keeps: [`Program::owner_moments`].
    owner_moments: fn(&Loaded) -> usize,
    /// Makes the tables of the program; `None` if it has none.
    table_spec: Option<TableSpecFactory>,
    /// Makes the program, and what runs it.
    executor: Arc<dyn Fn(&Loaded) -> ProgramExecutor + Send + Sync>,
}

impl ProgramFactory {
    /// A factory that calls `program` once at each peer, when the first view begins.
    #[must_use]
    pub fn new<P: Program>(program: impl Fn(&Loaded) -> P + Send + Sync + 'static) -> Self {
        let executor = Arc::new(move |loaded: &Loaded| ProgramExecutor::new(program(loaded)));
        let (has_local_parameters, has_custom_rule) = (P::LOCAL_PARAMETERS, P::CUSTOM_RULE);
        Self {
            name: Cow::Borrowed(P::NAME),
            has_local_parameters,
            has_custom_rule,
            has_grouped_optimizer: P::GROUPED_OPTIMIZER,
            owner_moments: P::owner_moments,
            table_spec: None,
            executor,
        }
    }

    /// A factory of a program that keeps its state in tables. Such a program has no steps: each worker has its own
    /// [clock](crate::program::context::Clock).
    #[must_use]
    pub fn with_tables<P: Program>(
        table_spec: impl Fn(&Loaded) -> TableSpec + Send + Sync + 'static,
        program: impl Fn(&Loaded) -> P + Send + Sync + 'static,
    ) -> Self {
        Self { table_spec: Some(Arc::new(table_spec)), ..Self::new(program) }
    }

    /// A factory of [`SyncDataParallel`], the default program.
    #[must_use]
    pub fn sync() -> Self {
        Self::new(SyncDataParallel::of)
    }

    /// The same program by another name: for one whose algorithm, or whose tables, are known only when the binary runs.
    #[must_use]
    pub fn named(self, name: impl Into<Cow<'static, str>>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// The name by which peers check that they run the same algorithm.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether each member has its own parameters: see [`Program::LOCAL_PARAMETERS`].
    #[must_use]
    pub fn has_local_parameters(&self) -> bool {
        self.has_local_parameters
    }

    /// Whether owners update by a rule of the program: see [`Program::CUSTOM_RULE`].
    #[must_use]
    pub fn has_custom_rule(&self) -> bool {
        self.has_custom_rule
    }

    /// Whether the program updates with the run's grouped optimizer: see [`Program::GROUPED_OPTIMIZER`].
    #[must_use]
    pub fn has_grouped_optimizer(&self) -> bool {
        self.has_grouped_optimizer
    }

    /// The tables of the program in a run of this task; `None` if it has none.
    ///
    /// # Panics
    /// If a table is applied by clock, and the read policy lets workers be too far apart for that.
    #[must_use]
    pub fn table_spec(&self, loaded: &Loaded) -> Option<TableSpec> {
        let table_spec = self.table_spec.as_ref()?(loaded);
        table_spec.check();
        Some(table_spec)
    }

    /// Whether the program keeps its state in tables.
    #[must_use]
    pub fn has_tables(&self) -> bool {
        self.table_spec.is_some()
    }

    pub(crate) fn owner_moments(&self, loaded: &Loaded) -> usize {
        if self.has_custom_rule { 0 } else { (self.owner_moments)(loaded) }
    }

    pub(crate) fn executor(&self, loaded: &Loaded) -> ProgramExecutor {
        (self.executor)(loaded)
    }
}

impl fmt::Debug for ProgramFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProgramFactory({})", self.name)
    }
}
