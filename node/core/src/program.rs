//! The program: an algorithm that every peer runs, as one round of straight-line code.
//!
//! The host owns the loop and never drops a program midway. A program's *fields* survive an interruption, the locals of
//! its round do not; so a round changes `self` only after its last await, and can then be repeated at will.
//!
//! A loader hands out a [`ProgramFactory`] beside the task: how to make the program once there is a view to train in.

use std::fmt;
use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::program::context::{Context, Interrupted};
use crate::program::executor::ProgramExecutor;
use crate::program::loader::Loaded;
use crate::program::programs::sync::SyncDataParallel;
use crate::table::TableSpec;

pub mod context;
pub(crate) mod executor;
pub mod loader;
pub mod programs;

/// Whether there is another round.
pub type Flow = ControlFlow<()>;

/// An algorithm, the same on every peer.
pub trait Program: Send + 'static {
    /// By this name peers make sure that they run the same algorithm; an algorithm that has changed takes another.
    const NAME: &'static str;

    /// Whether members have parameters of their own, which become the same only in a round of all of them. Each step is then
    /// final where it is complete, and who is behind when somebody is lost skips what others have done already: it keeps what
    /// it has contributed, which therefore has to be its parameters.
    const LOCAL_PARAMETERS: bool = false;

    /// Whether owners update by a rule of the program's own
    /// ([`Step::update_owned_with`](crate::program::context::Step::update_owned_with)). They keep no state then, and parameters travel as they
    /// are.
    const CUSTOM_RULE: bool = false;

    /// Numbers an element that the owner of a shard keeps beside its parameters: as many as the rule that is given to
    /// [`Step::update_owned`](crate::program::context::Step::update_owned) needs. Not asked for a [rule of its own](Program::CUSTOM_RULE).
    #[must_use]
    fn owner_moments(loaded: &Loaded) -> usize {
        loaded.config.rule.moment_count()
    }

    /// One round. `Break` ends the program.
    ///
    /// Implementations write plain `async fn round`.
    ///
    /// # Errors
    /// [`Interrupted`] is passed on; the host calls again in the next view.
    fn round(&mut self, context: &Context) -> impl Future<Output = Result<Flow, Interrupted>> + Send;
}

/// What a program keeps in tables, for a task that has been loaded.
type TableSpecFactory = Arc<dyn Fn(&Loaded) -> TableSpec + Send + Sync>;

/// How to make a program for a task that has been loaded.
#[derive(Clone)]
pub struct ProgramFactory {
    name: &'static str,
    has_local_parameters: bool,
    has_custom_rule: bool,
    owner_moments: fn(&Loaded) -> usize,
    table_spec: Option<TableSpecFactory>,
    executor: Arc<dyn Fn(&Loaded) -> ProgramExecutor + Send + Sync>,
}

impl ProgramFactory {
    /// Launches what `program` makes.
    #[must_use]
    pub fn new<P: Program>(program: impl Fn(&Loaded) -> P + Send + Sync + 'static) -> Self {
        let executor = Arc::new(move |loaded: &Loaded| ProgramExecutor::new(program(loaded)));
        let (has_local_parameters, has_custom_rule) = (P::LOCAL_PARAMETERS, P::CUSTOM_RULE);
        Self {
            name: P::NAME,
            has_local_parameters,
            has_custom_rule,
            owner_moments: P::owner_moments,
            table_spec: None,
            executor,
        }
    }

    /// Launches what `program` makes, which keeps its state in tables: so it takes no steps, and each worker has a
    /// [clock](crate::program::context::Clock) of its own.
    #[must_use]
    pub fn with_tables<P: Program>(
        table_spec: impl Fn(&Loaded) -> TableSpec + Send + Sync + 'static,
        program: impl Fn(&Loaded) -> P + Send + Sync + 'static,
    ) -> Self {
        Self { table_spec: Some(Arc::new(table_spec)), ..Self::new(program) }
    }

    /// Launches [`SyncDataParallel`], which is what trains unless something else is asked for.
    #[must_use]
    pub fn sync() -> Self {
        Self::new(SyncDataParallel::of)
    }

    /// The program's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether members have parameters of their own: see [`Program::LOCAL_PARAMETERS`].
    #[must_use]
    pub fn has_local_parameters(&self) -> bool {
        self.has_local_parameters
    }

    /// Whether owners update by a rule of the program's own: see [`Program::CUSTOM_RULE`].
    #[must_use]
    pub fn has_custom_rule(&self) -> bool {
        self.has_custom_rule
    }

    /// What is kept in tables, if anything is.
    pub(crate) fn table_spec(&self, loaded: &Loaded) -> Option<TableSpec> {
        let table_spec = self.table_spec.as_ref()?(loaded);
        table_spec.check();
        Some(table_spec)
    }

    /// Whether anything is kept in tables.
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
