//! The history of one run, from which a report and a summary are made.
//!
//! During a simulated run, the cluster records the states of peers and the traffic, the nodes' events give the commits and views, and the
//! faults give the partitions. The history of a real run is read from its peers' event logs ([`logs`](crate::logs)).
//!
//! # Not here
//! Verdicts: a history says what happened, and the invariants decide whether that is right.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use peergrad_core::io::{Committed, Failure};
use peergrad_protocol::view::{Recovery, Resume, View};
use peergrad_protocol::{Instant, PeerId, ViewDigest};

use crate::host::HostId;

mod branch_end;

pub use branch_end::{BranchEnd, MergeSummary, branch_letter};

/// What happened in one run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// By host: the states of its peer.
    pub peers: Vec<PeerHistory>,
    /// Views in the order in which they were first installed.
    pub views: Vec<ViewNote>,
    /// Steps in the order in which their commit was first known.
    pub commits: Vec<CommitNote>,
    /// Steps that were started again after an interruption, with the time.
    pub redone: Vec<(Instant, u64)>,
    /// How branches ended that met another one.
    pub branch_ends: Vec<BranchEnd>,
    /// Times in which the network was partitioned.
    pub cuts: Vec<CutInterval>,
    /// Bytes on the wire.
    pub traffic: Traffic,
    /// When training first began; `None` before that.
    pub began: Option<Instant>,
    /// When a member last learned that a step is committed; after the last step the model is evaluated. `None` before the first commit.
    pub trained: Option<Instant>,
    /// When the run was over, or was stopped.
    pub end: Instant,
    /// Whether its times come from real machines' clocks.
    pub is_real: bool,
    /// Number of elements of the parameter vector, for a run in which not all owners are known; else `None`.
    pub parameters: Option<usize>,
}

/// The history of one host's peer.
#[derive(Clone, Debug)]
pub struct PeerHistory {
    /// The peer on this host.
    pub peer: PeerId,
    /// Its states in order, without gaps from its first start on.
    pub spans: Vec<StateSpan>,
    /// What happened to it, in a few words each, in order: "crashed", "said that p3 is gone".
    pub notes: Vec<(Instant, String)>,
}

/// A time during which a host's peer was in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSpan {
    /// When the state began.
    pub from: Instant,
    /// When the next state began, or the run ended.
    pub until: Instant,
    /// The state.
    pub state: PeerState,
}

/// The state of a host's peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// It founds a run, or asks to join one.
    Joining,
    /// It is a member of the view with this index in [`History::views`].
    Member(usize),
    /// The machine sleeps.
    Paused,
    /// No process runs.
    Down,
    /// Its process ended by itself.
    Ended(ExitStatus),
}

/// Why a peer's process ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// After the last step.
    Finished,
    /// Its user asked it to leave.
    Left,
    /// It could not continue.
    Failed,
}

impl ExitStatus {
    /// The exit status that corresponds to how the run ended for a peer.
    #[must_use]
    pub fn of(outcome: &Result<(), Failure>) -> Self {
        match outcome {
            Ok(()) => Self::Finished,
            Err(Failure::Left) => Self::Left,
            Err(_) => Self::Failed,
        }
    }
}

/// A view, and how many elements each member owned in it.
#[derive(Clone, Debug)]
pub struct ViewNote {
    /// The record.
    pub view: Arc<View>,
    /// Its digest.
    pub digest: ViewDigest,
    /// When it was first installed.
    pub at: Instant,
    /// By host: how many elements of the parameter vector its peer owns once all chunks have moved, as the member reported when it
    /// installed the view.
    pub shards: BTreeMap<HostId, usize>,
    /// The index of its branch: 0 for the first, another number after each fork.
    pub branch_index: usize,
}

/// A committed step.
#[derive(Clone, Debug)]
pub struct CommitNote {
    /// When a member first knew that it is committed.
    pub at: Instant,
    /// The view in which it was committed, as an index into [`History::views`].
    pub view: usize,
    /// The step's result as its members report it.
    pub committed: Committed,
    /// Bytes that all peers had sent by then.
    pub bytes: u64,
    /// How many steps this note stands for, the last of which is `committed`: more than one where a log does not have all.
    pub count: u64,
}

/// A time during which the network was partitioned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutInterval {
    /// When it began.
    pub from: Instant,
    /// When it was over, or the end of the run.
    pub until: Instant,
    /// A short description: "cut 0-2 | 3-4".
    pub label: String,
}

/// Bytes on the wire, over time and by link.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// All bytes sent.
    pub total: u64,
    /// Length of one entry of `over_time`: it grows with the length of the run.
    pub step: Duration,
    /// Bytes sent, in intervals of `step` from the start on.
    pub over_time: Vec<u64>,
    /// By (sender, receiver): bytes sent.
    pub by_link: BTreeMap<(HostId, HostId), u64>,
    /// By (sender, receiver): the line as the sender last measured it. Empty for a simulated run.
    pub lines: BTreeMap<(HostId, HostId), LineRate>,
}

/// What a line carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineRate {
    /// The most bytes that were acknowledged in a second.
    pub bytes_per_second: u64,
    /// The round trip.
    pub round_trip: Duration,
}

/// Length of one entry of [`Traffic::over_time`] at the start of a simulated run.
pub const TRAFFIC_STEP: Duration = Duration::from_millis(100);

impl History {
    /// A host's peer changes its state.
    pub fn set_state(&mut self, host: HostId, at: Instant, state: PeerState) {
        let spans = &mut self.peers[host.index()].spans;
        if let Some(last) = spans.last_mut() {
            if last.state == state {
                return;
            }
            last.until = at;
        }
        spans.push(StateSpan { from: at, until: at, state });
    }

    /// Adds a note on what happened to a host's peer.
    pub fn note(&mut self, host: HostId, at: Instant, words: String) {
        self.peers[host.index()].notes.push((at, words));
    }

    /// The present state of a host's peer; `None` before its first start.
    #[must_use]
    pub fn state(&self, host: HostId) -> Option<PeerState> {
        self.peers[host.index()].spans.last().map(|span| span.state)
    }

    /// Adds a view that a member has installed; returns the view's index.
    pub fn installed(
        &mut self,
        host: HostId,
        at: Instant,
        view: &Arc<View>,
        digest: ViewDigest,
        shard: usize,
    ) -> usize {
        let index = self.views.iter().position(|known| known.digest == digest).unwrap_or_else(|| {
            let branch_index = self.branch_index_of(view);
            self.redone.extend(redone(view).map(|step| (at, step)));
            let shards = BTreeMap::new();
            self.views.push(ViewNote { view: Arc::clone(view), digest, at, shards, branch_index });
            self.views.len() - 1
        });
        self.views[index].shards.insert(host, shard);
        self.set_state(host, at, PeerState::Member(index));
        index
    }

    /// Whether the run had more than one branch at any time.
    #[must_use]
    pub fn has_forked(&self) -> bool {
        self.views.iter().any(|note| note.branch_index > 0)
    }

    /// A view and its ancestors, as indices into [`History::views`]; without views that it only merges.
    #[must_use]
    pub fn chain(&self, view: usize) -> BTreeSet<usize> {
        let parent = |index: &usize| {
            let parent = self.views[*index].view.parents.first()?;
            self.views.iter().position(|note| note.digest == *parent)
        };
        std::iter::successors(Some(view), parent).collect()
    }

    /// The views of the run, as indices; with several branches, those of the branch with the most steps.
    #[must_use]
    pub fn main_chain(&self) -> BTreeSet<usize> {
        let furthest = self.commits.iter().max_by_key(|note| note.committed.step);
        match furthest.filter(|_| self.has_forked()) {
            Some(note) => self.chain(note.view),
            None => (0..self.views.len()).collect(),
        }
    }

    /// The branch of a view: the parent's for its first child, a new one for each further child.
    fn branch_index_of(&self, view: &View) -> usize {
        let parent = view.parents.first().and_then(|parent| self.views.iter().find(|v| v.digest == *parent));
        let has_sibling = self.views.iter().any(|known| known.view.parents.first() == view.parents.first());
        match parent {
            Some(parent) if !has_sibling => parent.branch_index,
            None if self.views.is_empty() => 0,
            _ => self.views.iter().map(|known| known.branch_index).max().map_or(0, |last| last + 1),
        }
    }

    /// From the first view to the newest step that any member knows to be committed. The evaluation after that does not count, nor the time
    /// that a stuck run is waited for.
    #[must_use]
    pub fn training_time(&self) -> Duration {
        self.began.zip(self.trained).map_or(Duration::ZERO, |(began, trained)| trained.since(began))
    }

    /// Adds a step that a member knows to be committed; it is added once for each step and view.
    pub fn committed(&mut self, host: HostId, at: Instant, committed: Committed) {
        self.trained = Some(at);
        let Some(PeerState::Member(view)) = self.member_state(host) else { return };
        let is_known = |note: &CommitNote| note.committed.step == committed.step && note.view == view;
        // The newest commits are at the end.
        if !self.commits.iter().rev().take(COMMITS_ALIVE_MAX).any(is_known) {
            self.commits.push(CommitNote { at, view, committed, bytes: self.traffic.total, count: 1 });
        }
    }

    /// The state in which a host was last a member: a paused peer remains in its view.
    fn member_state(&self, host: HostId) -> Option<PeerState> {
        let spans = &self.peers[host.index()].spans;
        spans.iter().rev().map(|span| span.state).find(|state| matches!(state, PeerState::Member(_)))
    }

    /// Ends all open spans and intervals.
    pub fn close(&mut self, at: Instant) {
        self.end = at;
        for lane in &mut self.peers {
            if let Some(last) = lane.spans.last_mut() {
                last.until = at;
            }
        }
    }
}

/// The step that a view starts again because it was interrupted in the view before.
fn redone(view: &View) -> Option<u64> {
    match &view.recovery {
        Recovery::Resume(Resume { step, batch: Some(_), forward: None, .. }) => Some(step.0),
        _ => None,
    }
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            total: 0,
            step: TRAFFIC_STEP,
            over_time: Vec::new(),
            by_link: BTreeMap::new(),
            lines: BTreeMap::new(),
        }
    }
}

impl Traffic {
    /// Counts a frame that is sent.
    pub fn add(&mut self, at: Instant, from: HostId, to: HostId, bytes: u64) {
        self.total += bytes;
        let slot = |step: Duration| (at.0 / step.as_nanos() as u64) as usize;
        while slot(self.step) >= SLOTS_MAX {
            self.step *= 2;
            self.over_time = self.over_time.chunks(2).map(|pair| pair.iter().sum()).collect();
        }
        let slot = slot(self.step);
        if self.over_time.len() <= slot {
            self.over_time.resize(slot + 1, 0);
        }
        self.over_time[slot] += bytes;
        *self.by_link.entry((from, to)).or_default() += bytes;
    }
}

/// Most steps by which members can be apart.
const COMMITS_ALIVE_MAX: usize = 4;
/// Most entries of `over_time`. At the initial interval they span two and a half hours; a longer run gets longer intervals.
const SLOTS_MAX: usize = 90_000;
