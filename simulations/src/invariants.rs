//! The invariants: what must hold in every run, whatever faults there are. Each is in a file of its own, and is checked after every event
//! that can violate it.
//!
//! They resemble a referee who sees what happens on the field: the invariants see what nodes send, report to their users and write to disk,
//! and compute by themselves what that should have been. They read a member's view and its complete steps from its
//! [`NodeState`](peergrad_core::node::NodeState), but never ask it whether these are right.
//!
//! | invariant | what it says | file |
//! |---|---|---|
//! | 1 one chain | each view number has one record, which follows the one before and was accepted by a quorum of its members | [`one_chain`] |
//! | 2 single owner | the values of a chunk come from one owner: in one view and step, all members that forward them forward the same bits; the shards of a view cover everything once | [`single_owner`] |
//! | 3 exactly once | each contribution that a commit claims is in it once: integer totals balance to the unit | [`exactly_once`] |
//! | 4 same bits | after a commit all members have the same parameters, and owner and replicas the same state | [`same_bits`] |
//! | 5 all or nothing | steps are committed in order, each only once it is complete at every member, and never undone; the state at the end of a run is a committed one | [`all_or_nothing`] |
//! | 6 every sample once | step by step, the trained samples are those that follow from seed and cursor | [`every_sample_once`] |
//! | 7 nothing waits on the departed | a departed member is out of every view after the time that it takes to notice and to agree | [`departed`] |
//! | 8 progress | without active faults, steps are committed again within a bounded time | [`crate::liveness`] |
//! | 9 bounded | segments and chunks in flight, and segments held, keep to the limits | [`bounded`] |
//! | expelled | an expelled peer is in no later view, and each later view names it as expelled | [`expelled`] |
//! | restarts | after a stop of all members, the run continues from the newest step that the returned ones have saved completely | [`restarts`] |
//! | merged first | a branch that yields because it is merged does so after the step that merges it is committed | [`merged_first`] |
//! | written first | a member sends nothing in a view before the view is on its disk | [`written_first`] |
//! | acknowledged | what an owner of tables acknowledges is at all other holders of the chunk, and only the owner of a chunk changes it | [`acknowledged`] |
//! | blameless | no message of a correct peer is rejected as an offence, and none has other parameters | [`blameless`] |
//!
//! If both parts of a partitioned swarm go on, invariants 2 to 6 and the ones on expelled peers and on restarts hold for each branch
//! separately: the file `invariants/branches.rs` describes how.
//!
//! If members have local parameters (`Program::LOCAL_PARAMETERS`), invariants 2 to 6 do not apply between two rounds of all members, and
//! are not checked; neither are they if parameters are in tables. There, *acknowledged* is checked at each message, and an
//! [oracle](crate::oracles::table_sums) compares the sums at the end. Invariant 10, that a mean within a group preserves the total, is shown by
//! `tests/swarms/programs.rs`.

use std::any::Any;

use peergrad_core::program::loader::Loaded;
use peergrad_protocol::Instant;
use peergrad_protocol::view::View;

use crate::task::Integers;
use crate::world::World;
use branches::Branches;

pub use crate::observation::Observation;

pub mod acknowledged;
pub mod all_or_nothing;
pub mod blameless;
pub mod bounded;
mod branches;
pub mod departed;
pub mod every_sample_once;
pub mod exactly_once;
pub mod expelled;
pub mod merged_first;
pub mod one_chain;
pub mod restarts;
pub mod same_bits;
pub mod single_owner;
pub mod written_first;

/// One invariant.
pub trait Invariant: Send {
    /// Its name and number.
    fn name(&self) -> &'static str;

    /// Checks an event.
    ///
    /// # Errors
    /// A description of how the invariant is violated.
    fn observe(&mut self, observation: &Observation<'_>, world: &World<'_>) -> Result<(), String>;

    /// An independent copy, for an invariant that follows one branch of views; `None` for an invariant that follows all branches at once.
    fn fork(&self) -> Option<Box<dyn Invariant>> {
        None
    }

    /// The branch has reached a view that merges another branch, which `other` has followed.
    fn merge(&mut self, _other: &dyn Invariant, _view: &View) {}

    /// The invariant itself, for [`Invariant::merge`].
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// Checks what waiting alone can violate; called once in each virtual second.
    ///
    /// # Errors
    /// A description of how the invariant is violated.
    fn check_periodically(&mut self, _world: &World<'_>) -> Result<(), String> {
        Ok(())
    }
}

/// A violation of an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When it was noticed.
    pub at: Instant,
    /// The invariant's name.
    pub invariant: &'static str,
    /// A description of it.
    pub message: String,
}

/// The invariants that are checked, and their violations.
#[derive(Default)]
pub struct Invariants {
    invariants: Vec<Box<dyn Invariant>>,
    /// The invariants of each branch; `None` where there can be one branch only.
    branches: Option<Branches>,
    violations: Vec<Violation>,
}

/// What the invariants need from the run's specification.
#[derive(Clone)]
pub struct InvariantSetup {
    /// The task and its training program.
    pub loaded: Loaded,
    /// The task that moves integers; `None` for any other task.
    pub integers: Option<Integers>,
    /// The time within which a departed member is noticed and a view without it is agreed on.
    pub patience: std::time::Duration,
}

impl Invariants {
    /// All invariants that apply to such a run.
    #[must_use]
    pub fn all(known: &InvariantSetup) -> Self {
        let policy = known.loaded.config.policy;
        let branches = policy.allows_forks().then(Branches::default);
        let mut invariants: Vec<Box<dyn Invariant>> = vec![
            Box::new(one_chain::OneChain::new(policy)),
            Box::new(departed::Departed::new(known.patience, policy)),
            Box::new(bounded::Bounded::new(
                known.loaded.config.segment_elements,
                known.loaded.task.manifest().chunks(),
            )),
            Box::<written_first::WrittenFirst>::default(),
            Box::<merged_first::MergedFirst>::default(),
            Box::<blameless::Blameless>::default(),
            Box::<expelled::Expelled>::default(),
            Box::new(restarts::Restarts::new(&known.loaded)),
        ];
        if let Some(acknowledged) = acknowledged::Acknowledged::of(&known.loaded) {
            invariants.push(Box::new(acknowledged));
        }
        if known.loaded.program.has_local_parameters() || known.loaded.program.has_tables() {
            // Each member has local parameters or a clock, and commits its steps by itself.
            return Self { invariants, branches, violations: Vec::new() };
        }
        invariants.push(Box::new(single_owner::SingleOwner::new(&known.loaded)));
        invariants.push(Box::new(same_bits::SameBits::new(&known.loaded)));
        invariants.push(Box::<all_or_nothing::AllOrNothing>::default());
        invariants.push(Box::new(every_sample_once::EverySampleOnce::new(&known.loaded)));
        let training = &known.loaded.config;
        if let Some(integers) = &known.integers
            && exactly_once::ExactlyOnce::applies(integers, training)
        {
            invariants.push(Box::new(exactly_once::ExactlyOnce::new(integers.clone(), training)));
        }
        Self { invariants, branches, violations: Vec::new() }
    }

    /// Adds an invariant.
    pub fn add(&mut self, invariant: impl Invariant + 'static) {
        self.invariants.push(Box::new(invariant));
    }

    /// All invariants but those with these names.
    #[must_use]
    pub fn without(mut self, names: &[&str]) -> Self {
        self.invariants.retain(|invariant| !names.contains(&invariant.name()));
        self
    }

    /// Only the invariant with this name: to show that this one, and not another, notices a bug.
    #[must_use]
    pub fn only(mut self, name: &str) -> Self {
        self.invariants.retain(|invariant| invariant.name() == name);
        self
    }

    /// Only the invariants with these names.
    #[must_use]
    pub fn subset(mut self, names: &[&str]) -> Self {
        self.invariants.retain(|invariant| names.contains(&invariant.name()));
        self
    }

    /// The names of the invariants that are checked.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.invariants.iter().map(|invariant| invariant.name())
    }

    /// The violations, in order.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    pub(crate) fn observe(&mut self, observation: &Observation<'_>, world: &World<'_>) {
        let mut objections = Vec::new();
        let mut show = |invariant: &mut Box<dyn Invariant>| {
            if let Err(words) = invariant.observe(observation, world) {
                objections.push(Violation { at: world.now, invariant: invariant.name(), message: words });
            }
        };
        if let Some(branches) = &mut self.branches {
            branches.concerned(observation, world, &self.invariants).for_each(&mut show);
            self.invariants.iter_mut().filter(|invariant| invariant.as_any().is_none()).for_each(show);
        } else {
            self.invariants.iter_mut().for_each(show);
        }
        self.violations.extend(objections);
    }

    pub(crate) fn check_periodically(&mut self, world: &World<'_>) {
        for invariant in &mut self.invariants {
            if let Err(words) = invariant.check_periodically(world) {
                self.violations.push(Violation {
                    at: world.now,
                    invariant: invariant.name(),
                    message: words,
                });
            }
        }
    }
}
