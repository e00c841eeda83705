//! The host: what a worker of a sweep needs of the process around it. It shows results, lets time pass, and says when the peer leaves.

use std::fmt::Debug;
use std::sync::Arc;

use super::results::TrialResult;
use super::schedule::Schedule;
use super::specification::SweepSpecification;

/// The process around a worker. None of its answers changes a result.
pub trait SweepHost: Debug + Send + Sync + 'static {
    /// A sweep is about to begin at this peer.
    fn begin(&self, specification: &Arc<SweepSpecification>);

    /// The worker has read the tables. Must not wait.
    fn show(&self, progress: &SweepProgress<'_>);

    /// Lets a moment pass, on a compute thread: no job is ready.
    fn pause(&self);

    /// Returns what says, after each step of a training, whether the worker should look at the tables again. Called on a compute thread.
    fn begin_slice(&self) -> Box<dyn FnMut() -> bool>;

    /// Whether the peer leaves: then the worker gives its job back.
    fn is_leaving(&self) -> bool;
}

/// What a worker knows of a sweep.
#[derive(Clone, Copy, Debug)]
pub struct SweepProgress<'a> {
    /// The jobs that are decided.
    pub schedule: &'a Schedule,
    /// The results, shape (jobs at most); `None` for a job that is not done.
    pub results: &'a [Option<TrialResult>],
    /// How many jobs are claimed and not done.
    pub claimed: usize,
    /// The job that this worker trains, and the part that it has trained, 0 to 1. `None` if it trains none.
    pub own: Option<(usize, f64)>,
}

/// A process that shows nothing, and in which time passes by itself: that of a simulation, or of a test.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnattendedHost;

impl SweepHost for UnattendedHost {
    fn begin(&self, _specification: &Arc<SweepSpecification>) {}

    fn show(&self, _progress: &SweepProgress<'_>) {}

    fn pause(&self) {}

    fn begin_slice(&self) -> Box<dyn FnMut() -> bool> {
        Box::new(|| false)
    }

    fn is_leaving(&self) -> bool {
        false
    }
}
