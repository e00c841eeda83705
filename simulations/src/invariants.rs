//! The invariants: what must hold in every run, whatever goes wrong, each in a file of its own and checked after every event that
//! can break it.
//!
//! Like a referee who sees what happens on the field: the invariants see what nodes send, tell and write down, and compute for
//! themselves what that should have been. Where a member is (its view, its complete steps) they read off its
//! [`NodeState`](peergrad_core::node::NodeState); whether that is right they never ask it.
//!
//! | invariant | what it says | file |
//! |---|---|---|
//! | 1 one chain | each number of a view is one record, which follows the one before and was accepted by a quorum of its members | [`one_chain`] |
//! | 2 single owner | the values of a chunk come from one owner: whoever passes them on, in one view and step they are the same bits; the shards of a view cover everything once | [`single_owner`] |
//! | 3 exactly once | each contribution that a commit claims is in it once: integer totals balance to the unit | [`exactly_once`] |
//! | 4 same bits | after a commit all members hold the same parameters, and owner and replicas the same state | [`same_bits`] |
//! | 5 all or nothing | a step is committed in order, only once it is complete at every member, and never undone; what a run leaves is a committed state | [`all_or_nothing`] |
//! | 6 every sample once | step by step, the samples trained are those that seed and cursor say | [`every_sample_once`] |
//! | 7 nothing waits on the departed | a member that is gone is out of everybody's view in no longer than it takes to notice and to agree | [`departed`] |
//! | 8 progress | faults off, steps are committed again within a bounded time | [`crate::liveness`] |
//! | 9 bounded | segments and chunks in flight, and segments held, keep to the limits | [`bounded`] |
//! | expelled | who was put out of the run is in no later view, and the views go on saying so | [`expelled`] |
//! | restarts | after a stop of everybody, the run goes on from the newest step of which those who are back have saved everything | [`restarts`] |
//! | merged first | whoever gives its branch up as merged does so after the step that merges it is committed | [`merged_first`] |
//! | written first | a member says nothing in a view before the view is on its disk | [`written_first`] |
//! | blameless | nothing that a correct peer sends is refused as an offence | [`blameless`] |
//!
//! Where both parts of a swarm that is cut in two go on, invariants 2 to 6, the one about who was put out and the one about restarts hold
//! for each branch by itself: the file `invariants/branches.rs` says how.
//!
//! Where members have parameters of their own (`Program::LOCAL_PARAMETERS`), invariants 2 to 6 do not apply between two rounds of all of them,
//! and are not watched; nor are they where parameters are in tables. Invariant 10, that a mean within a group preserves the total, is shown by `tests/programs.rs`.

use std::any::Any;

use peergrad_core::program::loader::Loaded;
use peergrad_protocol::Instant;
use peergrad_protocol::view::View;

use crate::task::Integers;
use crate::world::World;
use branches::Branches;

pub use crate::observation::Observation;

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

    /// Looks at what happens.
    ///
    /// # Errors
    /// In words, what is against the invariant.
    fn observe(&mut self, observation: &Observation<'_>, world: &World<'_>) -> Result<(), String>;

    /// A copy that goes on by itself, of an invariant that counts what one branch of views has done; the others know all of them.
    fn fork(&self) -> Option<Box<dyn Invariant>> {
        None
    }

    /// The branch is at a view that merges another one, which `other` has counted.
    fn merge(&mut self, _other: &dyn Invariant, _view: &View) {}

    /// Itself, for [`Invariant::merge`].
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// Looks at what only time can break; called once a virtual second.
    ///
    /// # Errors
    /// In words, what is against the invariant.
    fn check_periodically(&mut self, _world: &World<'_>) -> Result<(), String> {
        Ok(())
    }
}

/// Something against an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When.
    pub at: Instant,
    /// The invariant's name.
    pub invariant: &'static str,
    /// What happened.
    pub message: String,
}

/// The invariants that are watched over, and what was against them.
#[derive(Default)]
pub struct Invariants {
    invariants: Vec<Box<dyn Invariant>>,
    /// Where there may be more than one.
    branches: Option<Branches>,
    violations: Vec<Violation>,
}

/// What the invariants know of a run from its specification.
#[derive(Clone)]
pub struct InvariantSetup {
    /// The task and how it is trained.
    pub loaded: Loaded,
    /// The task, if it is the one that moves integers.
    pub integers: Option<Integers>,
    /// A member that is gone is noticed, and a view without it agreed on, within this time.
    pub patience: std::time::Duration,
}

impl Invariants {
    /// All of them.
    #[must_use]
    pub fn all(known: &InvariantSetup) -> Self {
        let forks = known.loaded.config.policy.allows_forks();
        let branches = forks.then(Branches::default);
        let mut invariants: Vec<Box<dyn Invariant>> = vec![
            Box::new(one_chain::OneChain::new(forks)),
            Box::new(departed::Departed::new(known.patience, forks)),
            Box::<bounded::Bounded>::default(),
            Box::<written_first::WrittenFirst>::default(),
            Box::<merged_first::MergedFirst>::default(),
            Box::<blameless::Blameless>::default(),
            Box::<expelled::Expelled>::default(),
            Box::new(restarts::Restarts::new(&known.loaded)),
        ];
        if known.loaded.program.has_local_parameters() || known.loaded.program.has_tables() {
            // Each member has parameters, or a clock, of its own, and commits its steps by itself.
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

    /// One more.
    pub fn add(&mut self, invariant: impl Invariant + 'static) {
        self.invariants.push(Box::new(invariant));
    }

    /// Only the one of this name: for showing that it, and not another one, notices something.
    #[must_use]
    pub fn only(mut self, name: &str) -> Self {
        self.invariants.retain(|invariant| invariant.name() == name);
        self
    }

    /// Only those of these names.
    #[must_use]
    pub fn subset(mut self, names: &[&str]) -> Self {
        self.invariants.retain(|invariant| names.contains(&invariant.name()));
        self
    }

    /// The names of the invariants that are watched over.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.invariants.iter().map(|invariant| invariant.name())
    }

    /// What was against them, in order.
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
