//! A sweep: which values of a run file's keys give the best model. Each trial is a whole training with values of its own.
//!
//! ```text
//! run.toml + --vary ──resolve──> SweepSpecification ──bytes──> every peer
//! trials in order of numbers        a schedule of jobs (trial, epochs)        a table: one row for each job
//!   one worker claims a job  -->  trains the trial alone, from its beginning  -->  adds its result to the row
//! ```
//! A trial's result is a function of the specification alone. The [schedule] of jobs is a function of the results. So the best
//! trial is the same for any number of peers, and whichever of them are lost.
//!
//! | file | what it has |
//! |---|---|
//! | [`variation`] | reads `--vary` |
//! | [`trials`] | all combinations of values, or some at random |
//! | [`schedule`] | which job is next: grid, random, successive halving, ASHA |
//! | [`specification`] | what the peers of a sweep agree on |
//! | [`results`] | the rows of the tables |
//! | [`program`] | the algorithm at one worker |
//! | [`host`] | what a worker needs of the process around it |
//! | [`loader`] | from the specification to the run of the table |

pub mod host;
pub mod loader;
pub mod program;
pub mod results;
pub mod schedule;
pub mod specification;
pub mod trials;
pub mod variation;

pub use host::{SweepHost, SweepProgress, UnattendedHost};
pub use loader::SweepLoader;
pub use results::TrialResult;
pub use schedule::{Job, Schedule, Strategy};
pub use specification::{SweepError, SweepPlan, SweepSpecification, TrialSettings};
pub use trials::TrialSource;
pub use variation::Variation;

/// The most trials of a sweep.
pub const TRIALS_MAX: usize = 512;
/// The most keys that a sweep varies.
pub const KEYS_MAX: usize = 16;
