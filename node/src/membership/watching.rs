//! Watching: who is lost, and who holds everybody up.
//!
//! # How it works
//! - *Reach.* A member hears beats of those whom it watches: of everybody in a swarm that is not large, else of a few at
//!   growing distances. One that is silent for longer than its frames were late of late, or whose link broke, is lost.
//! - *Progress.* A beat says how many steps are complete and whether the program computes. One that computes at the same
//!   step for a large multiple of the usual time, while the others wait, hangs.

use std::collections::BTreeSet;
use std::time::Duration;

use peergrad_protocol::message::{Beat, Message};
use peergrad_protocol::view::View;
use peergrad_protocol::{Instant, PeerId, Rank, StepNumber};

use super::{Facts, Membership};
use crate::io::{Event, Output};

/// Where a member was when it was last heard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) complete: StepNumber,
    computing: Option<StepNumber>,
    /// Since when both are so; if it computes, since when for that step.
    since: Instant,
}

/// How long steps take.
#[derive(Debug, Default)]
pub(super) struct Pace {
    step: StepNumber,
    since: Option<Instant>,
    /// Since when the own program computes.
    computing_since: Option<Instant>,
    /// The longest of late: falls slowly, rises at once.
    longest: Duration,
}

impl Pace {
    pub(super) fn note(&mut self, now: Instant, step: StepNumber) {
        if let Some(since) = self.since.filter(|_| step > self.step) {
            let steps = u32::try_from(step.0 - self.step.0).unwrap_or(u32::MAX);
            let took = now.since(since) / steps;
            self.longest = (self.longest - self.longest / PACE_MEMORY).max(took);
        }
        if step != self.step || self.since.is_none() {
            (self.step, self.since) = (step, Some(now));
        }
    }

    /// What the own program takes, a step takes at least: also one that began in another view.
    pub(super) fn note_computing(&mut self, now: Instant, is_computing: bool) {
        if is_computing {
            self.computing_since.get_or_insert(now);
        } else if let Some(since) = self.computing_since.take() {
            self.longest = self.longest.max(now.since(since));
        }
    }

    /// A step begins again.
    pub(super) fn restart(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// How long nobody has to be done with a step.
    fn patience(&self) -> Duration {
        (self.longest * HANG_STEPS).max(HANG_MIN)
    }

    /// Whether nothing has come to its end for that long.
    fn is_overdue(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.since(since) > self.patience())
    }

    /// A step's usual time.
    pub(super) fn usual(&self) -> Duration {
        self.longest
    }
}

impl Membership {
    /// A frame of a peer arrived.
    pub(crate) fn heard(&mut self, now: Instant, peer: &PeerId) {
        self.watch.heard(now, peer);
    }

    /// A segment or a parcel of a member arrived: slow, perhaps, but not stuck.
    pub(crate) fn moved(&mut self, now: Instant) {
        self.moved_at = now;
    }

    /// A member says where it is. Whoever is behind is told of the view, unless it is about to hear of it anyway.
    pub(crate) fn on_beat(&mut self, now: Instant, from: PeerId, beat: Beat, out: &mut Vec<Output>) {
        if beat.view != self.digest {
            self.note_elsewhere(now, &from, beat.view);
        }
        if beat.epoch < self.view.epoch {
            if beat.epoch.0 + 1 == self.view.epoch.0 && now.since(self.term.entered_at) < HEARSAY {
                return;
            }
            let view = self.view.as_ref().clone();
            return self.send(from, &Message::Install(view), out);
        }
        if let Some(rank) = self.view.rank(&from).filter(|_| beat.view == self.digest) {
            self.note_beat(now, rank, beat);
        }
    }

    /// Takes note of where a member is, this one included.
    pub(super) fn note_beat(&mut self, now: Instant, rank: Rank, beat: Beat) {
        // Where steps do not wait for a program, they go on while it computes.
        let is_same = |seen: &&Seen| {
            seen.computing == beat.computing && (beat.computing.is_some() || seen.complete == beat.complete)
        };
        let since = self.term.seen.get(&rank).filter(is_same).map_or(now, |seen| seen.since);
        self.term.elsewhere.remove(&rank);
        let Beat { complete, computing, .. } = beat;
        self.term.seen.insert(rank, Seen { complete, computing, since });
    }

    /// Frames can be sent to this peer.
    pub(crate) fn link_up(&mut self, now: Instant, peer: PeerId) {
        self.linked.insert(peer);
        self.unlinked.remove(&peer);
        self.watch.heard(now, &peer);
    }

    /// They cannot any more, and some may be lost.
    pub(crate) fn link_down(&mut self, peer: &PeerId) {
        self.linked.remove(peer);
        self.relayed.remove(peer);
        if let Some(rank) = self.view.rank(peer) {
            self.term.broken.insert(rank);
            self.unlinked.insert(*peer);
        }
    }

    /// A peer stops, and says so. Whether it is a member.
    pub(crate) fn departed(&mut self, from: &PeerId, reason: &str, out: &mut Vec<Output>) -> bool {
        let Some(rank) = self.view.rank(from) else { return false };
        self.term.departed.insert(rank);
        out.push(Output::Event(Event::Stopped { peer: *from, reason: reason.to_owned() }));
        true
    }

    /// The process of a member is another one by now.
    pub(super) fn superseded(&mut self, rank: Rank) {
        self.term.broken.insert(rank);
        self.term.seen.remove(&rank);
    }

    /// Members that this one cannot reach, in order.
    pub(super) fn lost(&self, now: Instant) -> Vec<Rank> {
        // A link that is still being dialed has its patience, as a beat that has not come yet.
        let is_cut = |rank: &&Rank| self.unlinked.contains(&self.view.member(**rank).peer);
        let cut = self.term.broken.iter().filter(is_cut).copied();
        let silent = self.watch.suspected(now).filter_map(|peer| self.view.rank(peer));
        let far = self.relayed.iter().filter_map(|(peer, since)| self.out_of_reach(now, peer, *since));
        let lost: BTreeSet<Rank> = cut
            .chain(self.term.departed.iter().copied())
            .chain(silent)
            .chain(far)
            .chain(self.elsewhere(now))
            .chain(self.outcasts())
            .collect();
        lost.into_iter().collect()
    }

    /// Members whose program holds everybody up; never this one itself, which would know.
    pub(super) fn hanging(&self, now: Instant, facts: &Facts<'_>) -> Vec<Rank> {
        if facts.computing.is_some() || facts.is_still || facts.is_closing || !facts.has_parameters {
            return vec![];
        }
        let hangs = |seen: &Seen| {
            let is_behind = seen.computing.is_some_and(|step| step <= facts.at());
            is_behind && now.since(seen.since) > self.pace.patience()
        };
        if facts.tables.as_ref().is_some_and(|tables| !tables.is_reading || !self.pace.is_overdue(now)) {
            // Nobody holds this one up.
            return vec![];
        }
        self.term.seen.iter().filter(|(_, seen)| hangs(seen)).map(|(rank, _)| *rank).collect()
    }

    /// Whether nobody gets on although nobody computes: something has been lost on the way.
    pub(super) fn is_stalled(&self, now: Instant, facts: &Facts<'_>) -> bool {
        let computes = self.term.seen.values().any(|seen| seen.computing.is_some());
        let is_waiting = facts.computing.is_none() && !facts.is_closing && facts.has_parameters;
        let waited = self.pace.since.map_or(Duration::ZERO, |since| now.since(since.max(self.moved_at)));
        is_waiting && !computes && waited > self.pace.patience()
    }

    /// Takes note of how training gets on.
    pub(super) fn note_pace(&mut self, now: Instant, facts: &Facts<'_>) {
        self.term.has_committed = facts.has_committed;
        self.pace.note_computing(now, facts.computing.is_some());
        if !facts.is_still {
            self.pace.note(now, facts.at());
        }
    }

    /// Notes that something is wrong, or no longer.
    pub(super) fn note_trouble(&mut self, now: Instant, is_trouble: bool, out: &mut Vec<Output>) {
        match (is_trouble, self.term.trouble_since) {
            (true, None) => {
                self.term.trouble_since = Some(now);
                for rank in self.lost(now) {
                    out.push(Output::Event(Event::Missed(self.view.member(rank).peer)));
                }
            }
            (false, Some(_)) => self.term.trouble_since = None,
            _ => {}
        }
    }

    /// A member that is not linked is wanted: whoever dials may have given up, or waits ever longer.
    pub(super) fn dial_again(&mut self, now: Instant, out: &mut Vec<Output>) {
        if now.since(self.dialed_at) < DIAL_AGAIN {
            return;
        }
        self.dialed_at = now;
        for rank in self.unlinked.iter().filter_map(|peer| self.view.rank(peer)) {
            let member = self.view.member(rank);
            out.push(Output::Dial(member.contact()));
        }
    }

    /// Those whom this member watches, and who watch it.
    pub(crate) fn partners(&self) -> Vec<PeerId> {
        let count = self.view.members.len();
        let rank = self.rank.index();
        let ranks: Vec<usize> = if !self.view.has_many() {
            (0..count).filter(|other| *other != rank).collect()
        } else {
            let distances = [1, 7, count - 7, count - 1];
            let mut ranks: Vec<usize> = distances.iter().map(|distance| (rank + distance) % count).collect();
            ranks.sort_unstable();
            ranks
        };
        ranks.into_iter().map(|index| self.view.members[index].peer).collect()
    }
}

/// How often members say that they live.
pub(super) fn beat_of(view: &View) -> Duration {
    if view.has_many() { BEAT_OF_MANY } else { BEAT }
}

/// Within this time all members hear of a view, mostly, from the one that proposed it.
const HEARSAY: Duration = Duration::from_millis(200);
/// Pause before members that are not linked are dialed again.
const DIAL_AGAIN: Duration = Duration::from_secs(2);
/// Time between two beats.
const BEAT: Duration = Duration::from_millis(250);
/// The same in a swarm of many.
const BEAT_OF_MANY: Duration = Duration::from_secs(1);
/// A program may take so many times as long as the slowest step of late.
const HANG_STEPS: u32 = 10;
/// And at least this long.
const HANG_MIN: Duration = Duration::from_secs(10);
/// The longest step is forgotten over some tens of steps.
const PACE_MEMORY: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Instant {
        Instant(0).after(Duration::from_millis(milliseconds))
    }

    #[test]
    fn the_pace_rises_at_once_and_falls_slowly() {
        let mut pace = Pace::default();
        pace.note(at(0), StepNumber(7));
        assert_eq!((pace.usual(), pace.patience()), (Duration::ZERO, HANG_MIN));
        pace.note(at(100), StepNumber(8));
        assert_eq!(pace.usual(), Duration::from_millis(100));
        // Nothing new, for however long.
        pace.note(at(2000), StepNumber(8));
        assert_eq!(pace.usual(), Duration::from_millis(100));
        pace.note(at(4100), StepNumber(9));
        assert_eq!((pace.usual(), pace.patience()), (Duration::from_secs(4), Duration::from_secs(40)));
        pace.note(at(4200), StepNumber(10));
        assert_eq!(pace.usual(), Duration::from_millis(3875));
    }

    /// Whoever computes for long has that much more patience with others, although the view has changed meanwhile.
    #[test]
    fn the_own_program_s_time_counts_across_views() {
        let mut pace = Pace::default();
        pace.note_computing(at(0), true);
        pace.restart(at(19_000));
        pace.note_computing(at(19_500), true);
        assert_eq!(pace.patience(), HANG_MIN);
        pace.note_computing(at(20_000), false);
        pace.note_computing(at(21_000), false);
        assert_eq!((pace.usual(), pace.patience()), (Duration::from_secs(20), Duration::from_secs(200)));
    }

    #[test]
    fn steps_that_are_noted_together_share_the_time() {
        let mut pace = Pace::default();
        pace.note(at(0), StepNumber(0));
        pace.note(at(1000), StepNumber(4));
        assert_eq!(pace.usual(), Duration::from_millis(250));
    }

    /// A step that is undone counts from when it begins again.
    #[test]
    fn a_step_back_is_no_step() {
        let mut pace = Pace::default();
        pace.note(at(0), StepNumber(3));
        pace.note(at(100), StepNumber(4));
        pace.note(at(5000), StepNumber(3));
        pace.note(at(5100), StepNumber(4));
        assert_eq!(pace.usual(), Duration::from_millis(100));
    }
}
