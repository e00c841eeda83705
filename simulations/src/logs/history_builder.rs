//! The history builder: one history, from process logs whose clocks are aligned.
//!
//! What a log does not state is inferred: a process that wrote nothing for much longer than usual was paused (suspended, or its machine
//! asleep). A process whose lines stop without an end was killed, unless the other logs stop there too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use peergrad_core::io::Committed;
use peergrad_protocol::cursor::DataCursor;
use peergrad_protocol::view::{BatchParts, Branch, Member, Moves, Recovery, Resume, View, ViewHistory};
use peergrad_protocol::{Incarnation, Instant, PeerId, RunId, StepNumber, ViewNumber};

use super::reader::{Line, LineContent, ProcessLog, StepLine, ViewLine};
use super::sent_bytes::SentBytes;
use crate::history::{CommitNote, History, PeerHistory, PeerState};
use crate::host::HostId;

/// A history with its time and its lanes.
pub struct BuiltHistory {
    /// What happened in the run.
    pub history: History,
    /// The time zero of the history, in seconds since 1970.
    pub began_at: f64,
    /// Number of steps that are known to be committed.
    pub steps: u64,
    /// By lane: the peer.
    pub peers: Vec<PeerId>,
}

/// The history of process logs that are ordered by their first lines.
#[must_use]
pub fn history(process_logs: &[ProcessLog]) -> BuiltHistory {
    let peers = peers(process_logs);
    let began_at = process_logs.iter().map(ProcessLog::began).fold(f64::MAX, f64::min);
    let ended_at = process_logs.iter().map(ProcessLog::ended).fold(f64::MIN, f64::max);
    let mut builder = HistoryBuilder { began_at, ended_at, peers: &peers, history: History::default() };
    builder.history.is_real = true;
    builder.history.peers =
        peers.iter().map(|peer| PeerHistory { peer: *peer, spans: Vec::new(), notes: Vec::new() }).collect();
    builder.views(process_logs);
    for (index, process_log) in process_logs.iter().enumerate() {
        let next = process_logs[index + 1..].iter().find(|later| later.peer == process_log.peer);
        builder.process_log(process_log, next.map(ProcessLog::began));
    }
    builder.silent(process_logs);
    let sent = SentBytes::of(process_logs, &peers, began_at);
    builder.commits(process_logs, &sent);
    builder.history.traffic = sent.traffic((ended_at - began_at).max(0.0));
    builder.history.parameters =
        process_logs.iter().flat_map(|process_log| &process_log.lines).find_map(|line| match line.content {
            LineContent::Prepared { parameters, .. } => Some(parameters),
            _ => None,
        });
    for lane in &mut builder.history.peers {
        lane.notes.sort_by_key(|note| note.0);
    }
    let end = builder.at(ended_at);
    builder.history.close(end);
    let history = builder.history;
    let steps = history.commits.iter().map(|note| note.committed.step.0 + 1).max().unwrap_or(0);
    BuiltHistory { history, began_at, steps, peers }
}

/// Peers with logs, in the order in which they began; then peers that only other logs mention.
fn peers(process_logs: &[ProcessLog]) -> Vec<PeerId> {
    let mut peers: Vec<PeerId> = Vec::new();
    let mut note = |peer: &PeerId| {
        if !peers.contains(peer) {
            peers.push(*peer);
        }
    };
    process_logs.iter().for_each(|process_log| note(&process_log.peer));
    let lines = process_logs.iter().flat_map(|process_log| &process_log.lines);
    for line in lines {
        if let LineContent::View(view) = &line.content {
            view.members.iter().for_each(&mut note);
        }
    }
    peers
}

struct HistoryBuilder<'a> {
    began_at: f64,
    ended_at: f64,
    peers: &'a [PeerId],
    history: History,
}

impl HistoryBuilder<'_> {
    fn at(&self, seconds: f64) -> Instant {
        Instant(((seconds - self.began_at).max(0.0) * 1e9) as u64)
    }

    fn host(&self, peer: &PeerId) -> HostId {
        let index = self.peers.iter().position(|known| known == peer).expect("each peer has a lane");
        HostId(index as u32)
    }

    /// Adds the views in the order in which they were first installed.
    fn views(&mut self, process_logs: &[ProcessLog]) {
        let mut lines: Vec<(f64, &ProcessLog, &ViewLine)> = Vec::new();
        for process_log in process_logs {
            for line in &process_log.lines {
                if let LineContent::View(view) = &line.content {
                    lines.push((line.at, process_log, view));
                }
            }
        }
        // A view comes after its parent, whatever the clocks say.
        lines.sort_by(|a, b| a.2.number.cmp(&b.2.number).then(a.0.total_cmp(&b.0)));
        for (seconds, process_log, line) in lines {
            let (host, at) = (self.host(&process_log.peer), self.at(seconds));
            let view = record(line, process_log.run.unwrap_or(RunId([0; 32])));
            // This only registers the view: each process log says when its peer was in it.
            let spans = std::mem::take(&mut self.history.peers[host.index()].spans);
            self.history.installed(host, at, &Arc::new(view), line.digest, line.share);
            self.history.peers[host.index()].spans = spans;
            self.history.began = Some(self.history.began.map_or(at, |began| began.min(at)));
        }
    }

    fn view_index(&self, line: &ViewLine) -> usize {
        let is_it = |known: &crate::history::ViewNote| known.digest == line.digest;
        self.history.views.iter().position(is_it).expect("all views were noted")
    }

    /// Adds the states of one process, from its start to its end or until the next process of the same peer.
    fn process_log(&mut self, process_log: &ProcessLog, next_began: Option<f64>) {
        let host = self.host(&process_log.peer);
        let mut view = None;
        let mut pause = TRAFFIC_PAUSE;
        let mut traffic_at: Option<f64> = None;
        let mut last_at = process_log.began();
        let is_repeated = |line: &Line| matches!(&line.content, LineContent::View(view) if view.is_repeated);
        // If older files are gone, nothing is known between the first line and the line after the repeated view.
        let missing = process_log.lines.iter().position(is_repeated).map_or(0, |repeated| repeated + 2);
        for (index, line) in process_log.lines.iter().enumerate() {
            // A running process writes at least how much it has sent.
            if index >= missing && line.at - last_at > SILENCE.max(SILENCE_PAUSES * pause) {
                let was = self.history.state(host);
                self.history.set_state(host, self.at(last_at + pause), PeerState::Paused);
                let words = format!(
                    "wrote nothing for {:.0} s: its process or its machine was suspended",
                    line.at - last_at
                );
                self.note(host, last_at + pause, words);
                was.into_iter().for_each(|was| self.history.set_state(host, self.at(line.at), was));
                traffic_at = None;
            }
            if let LineContent::Traffic { .. } = line.content
                && let Some(before) = traffic_at.replace(line.at)
            {
                pause = (line.at - before).clamp(TRAFFIC_PAUSE, TRAFFIC_PAUSE_MAX);
            }
            last_at = line.at;
            self.line(host, line, &mut view);
        }
        let is_ended = matches!(self.history.state(host), Some(PeerState::Ended { .. }));
        let goes_on = next_began.is_none() && self.ended_at - last_at <= SILENCE.max(SILENCE_PAUSES * pause);
        if !is_ended && !goes_on {
            self.history.set_state(host, self.at(last_at), PeerState::Down);
            self.note(
                host,
                last_at,
                "its log ends abruptly: it was killed, or its machine stopped".to_owned(),
            );
        }
    }

    fn line(&mut self, host: HostId, line: &Line, view: &mut Option<usize>) {
        let at = self.at(line.at);
        match &line.content {
            LineContent::Started => self.history.set_state(host, at, PeerState::Joining),
            LineContent::View(installed) => {
                let index = self.view_index(installed);
                *view = Some(index);
                self.history.set_state(host, at, PeerState::Member(index));
            }
            LineContent::Step(_) => {
                // A paused process continues.
                if let (Some(view), Some(PeerState::Paused)) = (*view, self.history.state(host)) {
                    self.history.set_state(host, at, PeerState::Member(view));
                }
            }
            LineContent::BranchAbandoned(words) => {
                self.history.branch_abandoned(host, at);
                *view = None;
                self.history.set_state(host, at, PeerState::Joining);
                self.note(host, line.at, words.clone());
            }
            LineContent::Merged { view, merged, words } => {
                self.history.merged(host, at, *view, merged.clone());
                self.note(host, line.at, words.clone());
            }
            LineContent::MergeEvaluation(comparison, words) => {
                self.history.record_comparison(host, *comparison);
                self.note(host, line.at, words.clone());
            }
            LineContent::Excluded(words) => {
                *view = None;
                self.history.set_state(host, at, PeerState::Joining);
                self.note(host, line.at, words.clone());
            }
            LineContent::Paused(words) => {
                self.history.set_state(host, at, PeerState::Paused);
                self.note(host, line.at, words.clone());
            }
            LineContent::Ended(ending) => self.history.set_state(host, at, PeerState::Ended(*ending)),
            LineContent::Note(words) => {
                let before = self.history.peers[host.index()].notes.last();
                let is_repeated = before.is_some_and(|(_, before)| before.ends_with(STILL_TRYING));
                if !is_repeated || !words.ends_with(STILL_TRYING) {
                    self.note(host, line.at, words.clone());
                }
            }
            LineContent::Prepared { .. } | LineContent::Traffic { .. } | LineContent::Other => {}
        }
    }

    /// Adds a note, in which peers have the names of their lanes.
    fn note(&mut self, host: HostId, seconds: f64, mut words: String) {
        for (index, peer) in self.peers.iter().enumerate().take(NAMED_MAX) {
            words = words.replace(&peer.short(), &format!("p{index}"));
        }
        self.history.note(host, self.at(seconds), words);
    }

    /// Adds the states of peers without logs: they were members where the others say so.
    fn silent(&mut self, process_logs: &[ProcessLog]) {
        let wrote: BTreeSet<PeerId> = process_logs.iter().map(|process_log| process_log.peer).collect();
        let mut views: Vec<usize> = (0..self.history.views.len()).collect();
        views.sort_by_key(|view| self.history.views[*view].at);
        for (index, peer) in self.peers.iter().enumerate().filter(|(_, peer)| !wrote.contains(peer)) {
            let host = HostId(index as u32);
            for view in &views {
                let note = &self.history.views[*view];
                let is_in = note.view.rank(peer).is_some();
                let at = note.at;
                match (is_in, self.history.state(host)) {
                    (true, _) => self.history.set_state(host, at, PeerState::Member(*view)),
                    (false, Some(PeerState::Member(_))) => self.history.set_state(host, at, PeerState::Down),
                    (false, _) => {}
                }
            }
        }
    }

    /// Adds each reported step, when it was first known, with the number of steps that it stands for and the bytes sent by then.
    fn commits(&mut self, process_logs: &[ProcessLog], sent: &SentBytes) {
        let mut first: BTreeMap<(usize, Branch, u64), (f64, &StepLine)> = BTreeMap::new();
        for process_log in process_logs {
            let mut view = None;
            for line in &process_log.lines {
                match &line.content {
                    LineContent::View(installed) => view = Some(self.view_index(installed)),
                    LineContent::Step(step) => {
                        let Some(view) = view else { continue };
                        let note = &self.history.views[view];
                        let known = first.entry((note.branch_index, note.view.history.branch, step.step));
                        let known = known.or_insert((line.at, step));
                        if line.at < known.0 {
                            *known = (line.at, step);
                        }
                        self.history.trained = self.history.trained.max(Some(self.at(line.at)));
                    }
                    _ => {}
                }
            }
        }
        let views = &self.history.views;
        let mut before: Option<(usize, Branch, u64)> = None;
        for ((branch_index, branch, number), (seconds, step)) in first {
            // A step belongs to the last view of its branch that begins with it or before it.
            let is_before = |(_, note): &(usize, &crate::history::ViewNote)| {
                let of = (note.branch_index, note.view.history.branch);
                of == (branch_index, branch) && note.view.first_step().0 <= number
            };
            let view = views.iter().enumerate().filter(is_before).max_by_key(|(_, note)| note.view.number);
            let Some((view, _)) = view else { continue };
            let is_same = |before: &(usize, Branch, u64)| (before.0, before.1) == (branch_index, branch);
            let count = before.filter(is_same).map_or(1, |before| number - before.2);
            before = Some((branch_index, branch, number));
            let committed = Committed {
                step: StepNumber(number),
                epoch: step.epoch,
                steps_expected: number + 1,
                loss: step.loss,
                samples: step.samples,
                left_out: step.left_out,
                may_be_late: false,
                is_own: false,
                rate: step.rate,
                digest: None,
            };
            let bytes = sent.until(seconds);
            let at = self.at(seconds);
            self.history.commits.push(CommitNote { at, view, committed, bytes, count });
        }
        self.history.commits.sort_by_key(|note| note.at);
    }
}

/// The record of a view, as far as a line has it.
fn record(line: &ViewLine, run: RunId) -> View {
    let member = |peer: &PeerId| Member {
        peer: *peer,
        incarnation: Incarnation(0),
        addresses: Vec::new(),
        capacity: 1,
    };
    let mut members: Vec<Member> = line.members.iter().map(member).collect();
    members.sort_by_key(|member| member.peer);
    let begins_here = line.branch.view_number == ViewNumber(line.number) && line.branch.step != StepNumber(0);
    let is_restored = begins_here && line.branch.fork.is_none();
    let recovery = if line.parents.is_empty() && !is_restored {
        Recovery::Initialize
    } else {
        let batch = line.is_redone.then(|| BatchParts { epoch: 0, parts: Vec::new() });
        Recovery::Resume(Resume { batch, is_restored, ..Resume::at(StepNumber(line.first_step)) })
    };
    View {
        run,
        number: ViewNumber(line.number),
        parents: line.parents.clone(),
        members,
        speeds: Vec::new(),
        lines: Vec::new(),
        history: ViewHistory::starting_with(line.branch),
        recovery,
        cursor: DataCursor::default(),
        moves: Moves::default(),
        expelled: Vec::new(),
        quarantined: Vec::new(),
    }
}

/// A note that can repeat, for one address after another.
const STILL_TRYING: &str = "still trying";
/// The longest pause between two lines on traffic, in seconds: at first, and after many full files.
const TRAFFIC_PAUSE: f64 = 1.0;
const TRAFFIC_PAUSE_MAX: f64 = 32.0;
/// Shortest silence that counts as a pause, in seconds; and as a multiple of the pause between lines.
const SILENCE: f64 = 4.0;
const SILENCE_PAUSES: f64 = 3.0;
/// Most peers that notes call by their lanes.
const NAMED_MAX: usize = 64;
