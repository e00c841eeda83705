//! The monitor: what the worker of a sweep tells, kept until the display has time for it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use peergrad_config::sweep::{Job, SweepHost, SweepProgress, SweepSpecification, TrialResult};
use peergrad_net::MonotonicClock;

/// The process around a worker, for the worker; and the worker, for the process.
#[derive(Debug, Default)]
pub(in crate::commands) struct SweepMonitor {
    state: Mutex<MonitorState>,
    is_changed: Condvar,
    is_leaving: AtomicBool,
}

#[derive(Debug, Default)]
struct MonitorState {
    /// The sweep; `None` before the peer has learnt of it, and in a run that is none.
    specification: Option<Arc<SweepSpecification>>,
    newest: SweepSnapshot,
    /// Counts the changes.
    version: u64,
    is_closed: bool,
}

/// A sweep, and what is known of it.
#[derive(Clone, Debug)]
pub(super) struct KnownSweep {
    pub(super) specification: Arc<SweepSpecification>,
    pub(super) snapshot: SweepSnapshot,
}

/// What is known of a sweep at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::commands) struct SweepSnapshot {
    /// The jobs that are decided.
    pub(super) jobs: Vec<Job>,
    /// Their results; `None` for a job that is not done.
    pub(super) results: Vec<Option<TrialResult>>,
    /// The number of the job with the best result.
    best: Option<usize>,
    /// How many jobs are claimed and not done.
    pub(super) claimed: usize,
    /// Whether there will be no more jobs.
    pub(super) is_complete: bool,
    /// The job that this peer trains, and the part that is trained, 0 to 1.
    pub(super) own: Option<(usize, f64)>,
    /// The jobs that this peer has begun.
    pub(super) own_jobs: BTreeSet<usize>,
}

impl SweepSnapshot {
    /// The number of the job with the best result at the highest rung.
    pub(super) fn best(&self) -> Option<usize> {
        self.best
    }

    /// The jobs that are done, with their numbers and results.
    pub(super) fn done(&self) -> impl Iterator<Item = (usize, Job, TrialResult)> + '_ {
        let numbered = self.jobs.iter().enumerate().zip(&self.results);
        numbered.filter_map(|((number, job), result)| Some((number, *job, (*result)?)))
    }

    #[cfg(test)]
    pub(super) fn of(schedule: &peergrad_config::sweep::Schedule, results: &[Option<TrialResult>]) -> Self {
        let mut snapshot = Self::default();
        snapshot.note(&SweepProgress { schedule, results, claimed: 0, own: None });
        snapshot
    }

    fn note(&mut self, progress: &SweepProgress<'_>) {
        let SweepProgress { schedule, results, claimed, own } = *progress;
        self.own_jobs.extend(own.map(|(job, _)| job));
        self.jobs = schedule.jobs().to_vec();
        self.results = results[..self.jobs.len()].to_vec();
        self.best = schedule.best(results);
        self.is_complete = schedule.is_complete();
        (self.claimed, self.own) = (claimed, own);
    }
}

impl SweepMonitor {
    pub(in crate::commands) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Whether the run is a sweep, as far as the peer knows.
    pub(in crate::commands) fn is_sweep(&self) -> bool {
        self.held().specification.is_some()
    }

    /// The peer is about to leave.
    pub(in crate::commands) fn leave(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
    }

    /// No more is to come.
    pub(super) fn close(&self) {
        self.held().is_closed = true;
        self.is_changed.notify_all();
    }

    /// Waits for what is newer than `seen`, and returns it with its version. `None` once no more is to come.
    pub(super) fn wait(&self, seen: u64) -> Option<(u64, KnownSweep)> {
        let is_old = |state: &mut MonitorState| state.version == seen && !state.is_closed;
        let state = self.is_changed.wait_while(self.held(), is_old).unwrap_or_else(PoisonError::into_inner);
        if state.version == seen {
            return None;
        }
        let specification = Arc::clone(state.specification.as_ref()?);
        Some((state.version, KnownSweep { specification, snapshot: state.newest.clone() }))
    }

    /// The sweep and what is known of it; `None` if the run is none.
    pub(super) fn conclusion(&self) -> Option<KnownSweep> {
        let state = self.held();
        let specification = Arc::clone(state.specification.as_ref()?);
        Some(KnownSweep { specification, snapshot: state.newest.clone() })
    }

    fn held(&self) -> MutexGuard<'_, MonitorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SweepHost for SweepMonitor {
    fn begin(&self, specification: &Arc<SweepSpecification>) {
        self.held().specification = Some(Arc::clone(specification));
    }

    fn show(&self, progress: &SweepProgress<'_>) {
        let mut state = self.held();
        let before = state.newest.clone();
        state.newest.note(progress);
        if state.newest != before {
            state.version += 1;
            self.is_changed.notify_all();
        }
    }

    fn pause(&self) {
        std::thread::sleep(PAUSE);
    }

    fn begin_slice(&self) -> Box<dyn FnMut() -> bool> {
        let clock = MonotonicClock::start();
        let end = clock.now().after(SLICE);
        Box::new(move || clock.now() >= end)
    }

    fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed)
    }
}

/// How long a worker without a job waits before it reads again.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a worker trains before it reads again.
const SLICE: Duration = Duration::from_millis(500);
