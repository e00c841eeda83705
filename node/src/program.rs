//! The program: an algorithm that every peer runs, as one round of straight-line code.
//!
//! The host owns the loop and never drops a program midway. A program's *fields* survive an interruption, the locals of
//! its round do not; so a round changes `self` only after its last await, and can then be repeated at will.
//!
//! A loader hands out a [`Launch`] beside the task: how to make the program once there is a view to train in.

use std::fmt;
use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::host::Host;
use crate::loader::Loaded;
use crate::peer::{Interrupted, Peer};
use crate::programs::ring::Ring;
use crate::table::Shared;

/// Whether there is another round.
pub type Flow = ControlFlow<()>;

/// An algorithm, the same on every peer.
pub trait Program: Send + 'static {
    /// By this name peers make sure that they run the same algorithm; an algorithm that has changed takes another.
    const NAME: &'static str;

    /// Whether members have parameters of their own, which become the same only in a round of all of them. Each step is then
    /// final where it is complete, and who is behind when somebody is lost skips what others have done already: it keeps what
    /// it has contributed, which therefore has to be its parameters.
    const DRIFTS: bool = false;

    /// Whether owners update by a rule of the program's own
    /// ([`Step::update_owned_with`](crate::peer::Step::update_owned_with)). They keep no state then, and parameters travel as they
    /// are.
    const OWN_RULE: bool = false;

    /// Numbers an element that the owner of a shard keeps beside its parameters: as many as the rule that is given to
    /// [`Step::update_owned`](crate::peer::Step::update_owned) needs. Not asked for a [rule of its own](Program::OWN_RULE).
    #[must_use]
    fn owner_moments(loaded: &Loaded) -> usize {
        loaded.training.rule.moment_count()
    }

    /// One round. `Break` ends the program.
    ///
    /// Implementations write plain `async fn round`.
    ///
    /// # Errors
    /// [`Interrupted`] is passed on; the host calls again in the next view.
    fn round(&mut self, peer: &Peer) -> impl Future<Output = Result<Flow, Interrupted>> + Send;
}

/// What a program keeps in tables, for a task that has been loaded.
type Sharing = Arc<dyn Fn(&Loaded) -> Shared + Send + Sync>;

/// How to make a program for a task that has been loaded.
#[derive(Clone)]
pub struct Launch {
    name: &'static str,
    drifts: bool,
    has_own_rule: bool,
    owner_moments: fn(&Loaded) -> usize,
    shared: Option<Sharing>,
    host: Arc<dyn Fn(&Loaded) -> Host + Send + Sync>,
}

impl Launch {
    /// Launches what `program` makes.
    #[must_use]
    pub fn new<P: Program>(program: impl Fn(&Loaded) -> P + Send + Sync + 'static) -> Self {
        let host = Arc::new(move |loaded: &Loaded| Host::new(program(loaded)));
        let (drifts, has_own_rule) = (P::DRIFTS, P::OWN_RULE);
        Self { name: P::NAME, drifts, has_own_rule, owner_moments: P::owner_moments, shared: None, host }
    }

    /// Launches what `program` makes, which keeps its state in tables: so it takes no steps, and each worker has a
    /// [clock](crate::peer::Clock) of its own.
    #[must_use]
    pub fn with_tables<P: Program>(
        shared: impl Fn(&Loaded) -> Shared + Send + Sync + 'static,
        program: impl Fn(&Loaded) -> P + Send + Sync + 'static,
    ) -> Self {
        Self { shared: Some(Arc::new(shared)), ..Self::new(program) }
    }

    /// Launches [`Ring`], which is what trains unless something else is asked for.
    #[must_use]
    pub fn ring() -> Self {
        Self::new(Ring::of)
    }

    /// The program's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether members have parameters of their own: see [`Program::DRIFTS`].
    #[must_use]
    pub fn drifts(&self) -> bool {
        self.drifts
    }

    /// Whether owners update by a rule of the program's own: see [`Program::OWN_RULE`].
    #[must_use]
    pub fn has_own_rule(&self) -> bool {
        self.has_own_rule
    }

    /// What is kept in tables, if anything is.
    pub(crate) fn shared(&self, loaded: &Loaded) -> Option<Shared> {
        let shared = self.shared.as_ref()?(loaded);
        shared.check();
        Some(shared)
    }

    /// Whether anything is kept in tables.
    #[must_use]
    pub fn has_tables(&self) -> bool {
        self.shared.is_some()
    }

    pub(crate) fn owner_moments(&self, loaded: &Loaded) -> usize {
        if self.has_own_rule { 0 } else { (self.owner_moments)(loaded) }
    }

    pub(crate) fn host(&self, loaded: &Loaded) -> Host {
        (self.host)(loaded)
    }
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Launch({})", self.name)
    }
}
