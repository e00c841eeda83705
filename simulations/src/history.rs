//! The history of one run: what a report draws and a summary tells.
//!
//! Noted while a simulated run goes on, by whoever knows: the cluster notes lives and traffic, commits and views come from the
//! nodes' own events, cuts from the faults. That of a real run is read from its peers' event logs ([`logs`](crate::logs)).
//!
//! # Not here
//! Verdicts: a history says what happened, the invariants whether it may.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use peergrad_core::io::{Committed, Failure};
use peergrad_protocol::view::{Recovery, Resume, View};
use peergrad_protocol::{Instant, PeerId, ViewDigest};

use crate::host::HostId;

mod branch_end;

pub use branch_end::{BranchEnd, MergeSummary, branch_letter};

/// One run, for looking at.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// By host: who lived there, and how.
    pub peers: Vec<PeerHistory>,
    /// Views in the order in which they were first installed anywhere.
    pub views: Vec<ViewNote>,
    /// Steps in the order in which they were first known to be committed anywhere.
    pub commits: Vec<CommitNote>,
    /// Steps that were begun again after an interruption.
    pub redone: Vec<(Instant, u64)>,
    /// What became of parts of the swarm that met again.
    pub branch_ends: Vec<BranchEnd>,
    /// When the network was not whole.
    pub cuts: Vec<CutInterval>,
    /// Bytes on the wire.
    pub traffic: Traffic,
    /// When training first began anywhere.
    pub began: Option<Instant>,
    /// When a member last came to know that a step is committed; after the last one the model is evaluated.
    pub trained: Option<Instant>,
    /// When the run was over, or was given up.
    pub end: Instant,
    /// Whether its times are those of real machines.
    pub is_real: bool,
    /// Elements of the parameter vector, where not all owners are known.
    pub parameters: Option<usize>,
}

/// The life of one host's peer.
#[derive(Clone, Debug)]
pub struct PeerHistory {
    /// The peer on this host.
    pub peer: PeerId,
    /// What it was when, without gaps from its first start on.
    pub spans: Vec<StateSpan>,
    /// What happened to it, in a few words each, in order: "crashed", "said that p3 is gone".
    pub notes: Vec<(Instant, String)>,
}

/// A stretch of a host's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSpan {
    /// When it began.
    pub from: Instant,
    /// When the next began, or the run ended.
    pub until: Instant,
    /// What it was.
    pub state: PeerState,
}

/// What a host's peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// It founds a run, or asks to be let in.
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

/// How a peer's process ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// After the last step.
    Finished,
    /// Its user wanted it to go.
    Left,
    /// It could not go on.
    Failed,
}

impl ExitStatus {
    /// How a run ended for a peer.
    #[must_use]
    pub fn of(outcome: &Result<(), Failure>) -> Self {
        match outcome {
            Ok(()) => Self::Finished,
            Err(Failure::Left) => Self::Left,
            Err(_) => Self::Failed,
        }
    }
}

/// A view, and who owned what in it.
#[derive(Clone, Debug)]
pub struct ViewNote {
    /// The record.
    pub view: Arc<View>,
    /// Its digest.
    pub digest: ViewDigest,
    /// When it was first installed anywhere.
    pub at: Instant,
    /// By host: elements of the parameter vector that its peer owns once all have moved, as each member said when it
    /// installed the view.
    pub shards: BTreeMap<HostId, usize>,
    /// The branch that it belongs to: 0 for the first, another number after each fork.
    pub branch_index: usize,
}

/// A committed step.
#[derive(Clone, Debug)]
pub struct CommitNote {
    /// When it was first known anywhere.
    pub at: Instant,
    /// The view in which it was committed, as an index into [`History::views`].
    pub view: usize,
    /// What its members say of it.
    pub committed: Committed,
    /// Bytes sent by everyone up to then.
    pub bytes: u64,
    /// How many steps it stands for, itself the last of them: more than one where not all were written down.
    pub count: u64,
}

/// A time in which the network was not whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutInterval {
    /// When it began.
    pub from: Instant,
    /// When it was over; the end of the run if it never was.
    pub until: Instant,
    /// In a few words: "cut 0-2 | 3-4".
    pub label: String,
}

/// Bytes on the wire over time and by link.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// All bytes sent.
    pub total: u64,
    /// Resolution of `over_time`: it gets coarser as a run gets longer.
    pub step: Duration,
    /// By `step`, from the start: bytes sent in it.
    pub over_time: Vec<u64>,
    /// By (sender, receiver): bytes sent.
    pub by_link: BTreeMap<(HostId, HostId), u64>,
}

/// Resolution of [`Traffic::over_time`] of a simulated run, at first.
pub const TRAFFIC_STEP: Duration = Duration::from_millis(100);

impl History {
    /// A host's peer becomes something else.
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

    /// Something worth a word happened to a host's peer.
    pub fn note(&mut self, host: HostId, at: Instant, words: String) {
        self.peers[host.index()].notes.push((at, words));
    }

    /// What a host's peer is now.
    #[must_use]
    pub fn state(&self, host: HostId) -> Option<PeerState> {
        self.peers[host.index()].spans.last().map(|span| span.state)
    }

    /// A member installed a view; returns the view's index.
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

    /// Whether the swarm was in more than one branch at any time.
    #[must_use]
    pub fn has_forked(&self) -> bool {
        self.views.iter().any(|note| note.branch_index > 0)
    }

    /// A view and those that it comes from, as indices into [`History::views`]; without those that it only merges.
    #[must_use]
    pub fn chain(&self, view: usize) -> BTreeSet<usize> {
        let parent = |index: &usize| {
            let parent = self.views[*index].view.parents.first()?;
            self.views.iter().position(|note| note.digest == *parent)
        };
        std::iter::successors(Some(view), parent).collect()
    }

    /// The views of the run, as indices: where there were several branches, those of the one that got the furthest.
    #[must_use]
    pub fn main_chain(&self) -> BTreeSet<usize> {
        let furthest = self.commits.iter().max_by_key(|note| note.committed.step);
        match furthest.filter(|_| self.has_forked()) {
            Some(note) => self.chain(note.view),
            None => (0..self.views.len()).collect(),
        }
    }

    /// The parent's branch for its first child, a new one for the next.
    fn branch_index_of(&self, view: &View) -> usize {
        let parent = view.parents.first().and_then(|parent| self.views.iter().find(|v| v.digest == *parent));
        let has_sibling = self.views.iter().any(|known| known.view.parents.first() == view.parents.first());
        match parent {
            Some(parent) if !has_sibling => parent.branch_index,
            None if self.views.is_empty() => 0,
            _ => self.views.iter().map(|known| known.branch_index).max().map_or(0, |last| last + 1),
        }
    }

    /// From the first view to the newest step that any member knows to be committed: what is evaluated after that does not count,
    /// nor how long a run that is stuck is waited for.
    #[must_use]
    pub fn training_time(&self) -> Duration {
        self.began.zip(self.trained).map_or(Duration::ZERO, |(began, trained)| trained.since(began))
    }

    /// A member knows a step to be committed; noted once a step and view.
    pub fn committed(&mut self, host: HostId, at: Instant, committed: Committed) {
        self.trained = Some(at);
        let Some(PeerState::Member(view)) = self.member_state(host) else { return };
        let is_known = |note: &CommitNote| note.committed.step == committed.step && note.view == view;
        // The newest are at the end.
        if !self.commits.iter().rev().take(COMMITS_ALIVE_MAX).any(is_known) {
            self.commits.push(CommitNote { at, view, committed, bytes: self.traffic.total, count: 1 });
        }
    }

    /// The state in which a host last was a member: a pause does not take it out of its view.
    fn member_state(&self, host: HostId) -> Option<PeerState> {
        let spans = &self.peers[host.index()].spans;
        spans.iter().rev().map(|span| span.state).find(|state| matches!(state, PeerState::Member(_)))
    }

    /// Closes what is open.
    pub fn close(&mut self, at: Instant) {
        self.end = at;
        for lane in &mut self.peers {
            if let Some(last) = lane.spans.last_mut() {
                last.until = at;
            }
        }
    }
}

/// The step that a view begins again, since it was interrupted in the one before.
fn redone(view: &View) -> Option<u64> {
    match &view.recovery {
        Recovery::Resume(Resume { step, batch: Some(_), forward: None, .. }) => Some(step.0),
        _ => None,
    }
}

impl Default for Traffic {
    fn default() -> Self {
        Self { total: 0, step: TRAFFIC_STEP, over_time: Vec::new(), by_link: BTreeMap::new() }
    }
}

impl Traffic {
    /// A frame leaves.
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

/// Members are never further apart than this many steps.
const COMMITS_ALIVE_MAX: usize = 4;
/// Two and a half hours as they are at first; of a longer run they grow.
const SLOTS_MAX: usize = 90_000;
