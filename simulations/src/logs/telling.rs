//! Telling: one history, from lives whose clocks are set.
//!
//! What a log does not say is told by what it does: a process that wrote nothing for much longer than it otherwise did, stood
//! still (suspended, or its machine asleep); one whose lines end without an end was killed, unless the others' end there too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use peergrad::io::Committed;
use peergrad_protocol::ledger::Ledger;
use peergrad_protocol::view::{Branch, Deal, Member, Moves, Recovery, Resume, View};
use peergrad_protocol::{Epoch, Incarnation, Instant, PeerId, RunId, StepNumber};

use super::bytes::Sent;
use super::reading::{Life, Line, StepLine, ViewLine, What};
use crate::history::{CommitNote, History, Lane, State};
use crate::host::HostId;

/// A history, and what belongs to it.
pub struct Told {
    /// What happened.
    pub history: History,
    /// Seconds since 1970 where its time is zero.
    pub began_at: f64,
    /// Steps that are known to be committed.
    pub steps: u64,
    /// By lane: who.
    pub peers: Vec<PeerId>,
}

/// The history of lives that are in the order of their beginnings.
#[must_use]
pub fn history(lives: &[Life]) -> Told {
    let peers = peers(lives);
    let began_at = lives.iter().map(Life::began).fold(f64::MAX, f64::min);
    let ended_at = lives.iter().map(Life::ended).fold(f64::MIN, f64::max);
    let mut teller = Teller { began_at, ended_at, peers: &peers, history: History::default() };
    teller.history.is_real = true;
    teller.history.lanes =
        peers.iter().map(|peer| Lane { peer: *peer, spans: Vec::new(), notes: Vec::new() }).collect();
    teller.views(lives);
    for (index, life) in lives.iter().enumerate() {
        let next = lives[index + 1..].iter().find(|later| later.peer == life.peer);
        teller.life(life, next.map(Life::began));
    }
    teller.silent(lives);
    let sent = Sent::of(lives, &peers, began_at);
    teller.commits(lives, &sent);
    teller.history.traffic = sent.traffic((ended_at - began_at).max(0.0));
    teller.history.parameters = lives.iter().flat_map(|life| &life.lines).find_map(|line| match line.what {
        What::Prepared { parameters, .. } => Some(parameters),
        _ => None,
    });
    for lane in &mut teller.history.lanes {
        lane.notes.sort_by_key(|note| note.0);
    }
    let end = teller.at(ended_at);
    teller.history.close(end);
    let history = teller.history;
    let steps = history.commits.iter().map(|note| note.committed.step.0 + 1).max().unwrap_or(0);
    Told { history, began_at, steps, peers }
}

/// Those who wrote, in the order in which they began; then those who are only told of.
fn peers(lives: &[Life]) -> Vec<PeerId> {
    let mut peers: Vec<PeerId> = Vec::new();
    let mut note = |peer: &PeerId| {
        if !peers.contains(peer) {
            peers.push(*peer);
        }
    };
    lives.iter().for_each(|life| note(&life.peer));
    let lines = lives.iter().flat_map(|life| &life.lines);
    for line in lines {
        if let What::View(view) = &line.what {
            view.members.iter().for_each(&mut note);
        }
    }
    peers
}

struct Teller<'a> {
    began_at: f64,
    ended_at: f64,
    peers: &'a [PeerId],
    history: History,
}

impl Teller<'_> {
    fn at(&self, seconds: f64) -> Instant {
        Instant(((seconds - self.began_at).max(0.0) * 1e9) as u64)
    }

    fn host(&self, peer: &PeerId) -> HostId {
        let index = self.peers.iter().position(|known| known == peer).expect("everyone has a lane");
        HostId(index as u32)
    }

    /// The views in the order in which they were first installed anywhere.
    fn views(&mut self, lives: &[Life]) {
        let mut lines: Vec<(f64, &Life, &ViewLine)> = Vec::new();
        for life in lives {
            for line in &life.lines {
                if let What::View(view) = &line.what {
                    lines.push((line.at, life, view));
                }
            }
        }
        // A view goes after the one that it follows, however clocks are set.
        lines.sort_by(|a, b| a.2.epoch.cmp(&b.2.epoch).then(a.0.total_cmp(&b.0)));
        for (seconds, life, line) in lines {
            let (host, at) = (self.host(&life.peer), self.at(seconds));
            let view = record(line, life.run.unwrap_or(RunId([0; 32])));
            // Only to be known: who was in it when, each life says.
            let spans = std::mem::take(&mut self.history.lanes[host.index()].spans);
            self.history.installed(host, at, &Arc::new(view), line.digest, line.share);
            self.history.lanes[host.index()].spans = spans;
            self.history.began = Some(self.history.began.map_or(at, |began| began.min(at)));
        }
    }

    fn view_index(&self, line: &ViewLine) -> usize {
        let is_it = |known: &crate::history::ViewNote| known.digest == line.digest;
        self.history.views.iter().position(is_it).expect("all views were noted")
    }

    /// What one process was, from its start to its end or until the next one of the same peer.
    fn life(&mut self, life: &Life, next_began: Option<f64>) {
        let host = self.host(&life.peer);
        let mut view = None;
        let mut pause = TRAFFIC_PAUSE;
        let mut traffic_at: Option<f64> = None;
        let mut last_at = life.began();
        let is_repeated = |line: &Line| matches!(&line.what, What::View(view) if view.is_repeated);
        // Where older files are gone, there is nothing between the head and what comes after it.
        let missing = life.lines.iter().position(is_repeated).map_or(0, |repeated| repeated + 2);
        for (index, line) in life.lines.iter().enumerate() {
            // A process that runs writes at least how much it has sent.
            if index >= missing && line.at - last_at > SILENCE.max(SILENCE_PAUSES * pause) {
                let was = self.history.state(host);
                self.history.become_state(host, self.at(last_at + pause), State::Paused);
                let words = format!(
                    "wrote nothing for {:.0} s: its process or its machine stood still",
                    line.at - last_at
                );
                self.note(host, last_at + pause, words);
                was.into_iter().for_each(|was| self.history.become_state(host, self.at(line.at), was));
                traffic_at = None;
            }
            if let What::Traffic(_) = line.what
                && let Some(before) = traffic_at.replace(line.at)
            {
                pause = (line.at - before).clamp(TRAFFIC_PAUSE, TRAFFIC_PAUSE_MAX);
            }
            last_at = line.at;
            self.line(host, line, &mut view);
        }
        let is_ended = matches!(self.history.state(host), Some(State::Ended { .. }));
        let goes_on = next_began.is_none() && self.ended_at - last_at <= SILENCE.max(SILENCE_PAUSES * pause);
        if !is_ended && !goes_on {
            self.history.become_state(host, self.at(last_at), State::Down);
            self.note(host, last_at, "its log breaks off: it was killed, or its machine stopped".to_owned());
        }
    }

    fn line(&mut self, host: HostId, line: &Line, view: &mut Option<usize>) {
        let at = self.at(line.at);
        match &line.what {
            What::Started => self.history.become_state(host, at, State::Joining),
            What::View(installed) => {
                let index = self.view_index(installed);
                *view = Some(index);
                self.history.become_state(host, at, State::Member(index));
            }
            What::Step(_) => {
                // One that was paused goes on.
                if let (Some(view), Some(State::Paused)) = (*view, self.history.state(host)) {
                    self.history.become_state(host, at, State::Member(view));
                }
            }
            What::GaveWay(words) => {
                self.history.gave_way(host, at);
                *view = None;
                self.history.become_state(host, at, State::Joining);
                self.note(host, line.at, words.clone());
            }
            What::Merged { view, merged, words } => {
                self.history.merged(host, at, *view, merged.clone());
                self.note(host, line.at, words.clone());
            }
            What::Weighed(weighed, words) => {
                self.history.weighed(host, *weighed);
                self.note(host, line.at, words.clone());
            }
            What::Excluded(words) => {
                *view = None;
                self.history.become_state(host, at, State::Joining);
                self.note(host, line.at, words.clone());
            }
            What::Paused(words) => {
                self.history.become_state(host, at, State::Paused);
                self.note(host, line.at, words.clone());
            }
            What::Ended(ending) => self.history.become_state(host, at, State::Ended(*ending)),
            What::Note(words) => {
                let before = self.history.lanes[host.index()].notes.last();
                let is_repeated = before.is_some_and(|(_, before)| before.ends_with(STILL_TRYING));
                if !is_repeated || !words.ends_with(STILL_TRYING) {
                    self.note(host, line.at, words.clone());
                }
            }
            What::Prepared { .. } | What::Traffic(_) | What::Other => {}
        }
    }

    /// A note, in which peers are called as the lanes are.
    fn note(&mut self, host: HostId, seconds: f64, mut words: String) {
        for (index, peer) in self.peers.iter().enumerate().take(NAMED_MAX) {
            words = words.replace(&peer.short(), &format!("p{index}"));
        }
        self.history.note(host, self.at(seconds), words);
    }

    /// Those who wrote nothing were members where the others say so.
    fn silent(&mut self, lives: &[Life]) {
        let wrote: BTreeSet<PeerId> = lives.iter().map(|life| life.peer).collect();
        let mut views: Vec<usize> = (0..self.history.views.len()).collect();
        views.sort_by_key(|view| self.history.views[*view].at);
        for (index, peer) in self.peers.iter().enumerate().filter(|(_, peer)| !wrote.contains(peer)) {
            let host = HostId(index as u32);
            for view in &views {
                let note = &self.history.views[*view];
                let is_in = note.view.rank(peer).is_some();
                let at = note.at;
                match (is_in, self.history.state(host)) {
                    (true, _) => self.history.become_state(host, at, State::Member(*view)),
                    (false, Some(State::Member(_))) => self.history.become_state(host, at, State::Down),
                    (false, _) => {}
                }
            }
        }
    }

    /// Each step that somebody tells of, when it was first known; how many it stands for, and what had been sent by then.
    fn commits(&mut self, lives: &[Life], sent: &Sent) {
        let mut first: BTreeMap<(usize, Branch, u64), (f64, &StepLine)> = BTreeMap::new();
        for life in lives {
            let mut view = None;
            for line in &life.lines {
                match &line.what {
                    What::View(installed) => view = Some(self.view_index(installed)),
                    What::Step(step) => {
                        let Some(view) = view else { continue };
                        let note = &self.history.views[view];
                        let known = first.entry((note.lineage, note.view.branch, step.step));
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
        for ((lineage, branch, number), (seconds, step)) in first {
            // A step belongs to the last view of its branch that begins with it or before.
            let is_before = |(_, note): &(usize, &crate::history::ViewNote)| {
                let of = (note.lineage, note.view.branch);
                of == (lineage, branch) && note.view.first_step().0 <= number
            };
            let view = views.iter().enumerate().filter(is_before).max_by_key(|(_, note)| note.view.epoch);
            let Some((view, _)) = view else { continue };
            let is_same = |before: &(usize, Branch, u64)| (before.0, before.1) == (lineage, branch);
            let count = before.filter(is_same).map_or(1, |before| number - before.2);
            before = Some((lineage, branch, number));
            let committed = Committed {
                step: StepNumber(number),
                pass: step.pass,
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

/// The record of a view, as far as a line tells it.
fn record(line: &ViewLine, run: RunId) -> View {
    let member =
        |peer: &PeerId| Member { peer: *peer, incarnation: Incarnation(0), addresses: Vec::new(), weight: 1 };
    let mut members: Vec<Member> = line.members.iter().map(member).collect();
    members.sort_by_key(|member| member.peer);
    let begins_here = line.branch.epoch == Epoch(line.epoch) && line.branch.step != StepNumber(0);
    let is_restored = begins_here && line.branch.fork == 0;
    let recovery = if line.parents.is_empty() && !is_restored {
        Recovery::Found
    } else {
        let deal = line.is_redone.then(|| Deal { pass: 0, parts: Vec::new() });
        Recovery::Resume(Resume { deal, is_restored, ..Resume::at(StepNumber(line.first_step)) })
    };
    View {
        run,
        epoch: Epoch(line.epoch),
        parents: line.parents.clone(),
        members,
        branch: line.branch,
        branches_before: Vec::new(),
        recovery,
        ledger: Ledger::default(),
        moves: Moves::default(),
        expelled: Vec::new(),
        roots: Vec::new(),
        estranged: Vec::new(),
    }
}

/// What can be told again and again, of one address after another.
const STILL_TRYING: &str = "still trying";
/// A process writes at least that often how much it has sent, seconds; at first, and after many full files.
const TRAFFIC_PAUSE: f64 = 1.0;
const TRAFFIC_PAUSE_MAX: f64 = 32.0;
/// A process that runs is never silent for so long.
const SILENCE: f64 = 4.0;
const SILENCE_PAUSES: f64 = 3.0;
/// So many are called by their lanes in notes.
const NAMED_MAX: usize = 64;
