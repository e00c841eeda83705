//! The observer: hears what a peer and its network tell, remembers the last of it, and passes it on.
//!
//! It stands between the driver and the report, so that whoever reads the report as slowly as they like, the event log and
//! those who ask are told in time; and it never waits for any of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use peergrad_core::io::{Committed, Event, Failure, RunSize};
use peergrad_net::{Counters, MonotonicClock, Notice};
use peergrad_protocol::{Instant, PeerId, RunId};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::log::EventLog;
use super::rate_meter::{RateMeter, WINDOW, forget_before, rate};
use crate::text::event_json::event_name;
use crate::text::event_text::event_text;

/// By peer: bytes written and read.
type Bytes = BTreeMap<PeerId, (u64, u64)>;

/// Hears everything.
pub struct Observer {
    me: PeerId,
    observations: Arc<Observations>,
    log: EventLog,
    /// What the log has to say for itself.
    log_notices: mpsc::UnboundedReceiver<Notice>,
}

/// What is remembered of what happened, shared with those who answer questions.
#[derive(Debug)]
pub struct Observations {
    pub(super) clock: MonotonicClock,
    pub(super) counters: Arc<Counters>,
    state: Mutex<ObservedState>,
}

/// What happened of late, and how often in all.
#[derive(Debug, Default)]
pub(super) struct ObservedState {
    pub(super) run: Option<RunId>,
    pub(super) scope: Option<RunSize>,
    pub(super) committed: Option<Committed>,
    pub(super) counts: EventCounts,
    events: VecDeque<RecordedEvent>,
    /// Of committed steps.
    rate: RateMeter,
    /// Bytes by peer at a few times.
    traffic: VecDeque<(Instant, Bytes)>,
}

/// How often things happened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EventCounts {
    pub(super) steps: u64,
    pub(super) samples: u64,
    pub(super) left_out: u64,
    pub(super) views: u64,
    pub(super) interruptions: u64,
    pub(super) pauses: u64,
    pub(super) missed: u64,
    pub(super) violations: u64,
}

/// Something that happened, in words.
#[derive(Clone, Debug)]
pub(super) struct RecordedEvent {
    pub(super) at: Instant,
    pub(super) event: &'static str,
    pub(super) words: String,
}

impl Observer {
    /// One for the peer `me`; the log writes its lines for `observations` too.
    #[must_use]
    pub fn new(
        me: PeerId,
        observations: Arc<Observations>,
        log: EventLog,
        log_notices: mpsc::UnboundedReceiver<Notice>,
    ) -> Self {
        Self { me, observations, log, log_notices }
    }

    /// Listens until the peer has ended, and passes everything on. Then what is to be on disk is there.
    pub async fn listen(
        mut self,
        mut events: mpsc::UnboundedReceiver<Event>,
        mut notices: mpsc::UnboundedReceiver<Notice>,
        told: mpsc::UnboundedSender<Event>,
        noticed: mpsc::UnboundedSender<Notice>,
    ) {
        let mut samples_due = interval(TRAFFIC_INTERVAL);
        samples_due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // What is written down last is how it ended.
        let mut is_over = false;
        loop {
            tokio::select! {
                event = events.recv() => {
                    let Some(event) = event else { break };
                    self.on_event(&event);
                    is_over |= matches!(event, Event::Ended(_));
                    // Nobody has to listen.
                    let _ = told.send(event);
                }
                Some(notice) = notices.recv() => {
                    if !is_over {
                        self.on_notice(&notice);
                    }
                    let _ = noticed.send(notice);
                }
                Some(notice) = self.log_notices.recv() => drop(noticed.send(notice)),
                _ = samples_due.tick(), if !is_over => self.sample_traffic(),
            }
        }
        drop(told);
        self.log.close().await;
    }

    fn on_event(&mut self, event: &Event) {
        let now = self.observations.clock.now();
        let sent_bytes = || self.observations.counters.read().sent_bytes;
        let mut recent = self.observations.recent();
        recent.note(now, event);
        let words = match event {
            Event::Ended(ended) => {
                Some(ended.outcome.as_ref().map_or_else(Failure::to_string, |()| "finished".to_owned()))
            }
            event => event_text(event, &self.me, recent.scope.as_ref()),
        };
        if let Some(words) = &words {
            recent.push(RecordedEvent { at: now, event: event_name(event), words: words.clone() });
        }
        drop(recent);
        self.log.event(now, event, words, sent_bytes);
    }

    fn on_notice(&mut self, notice: &Notice) {
        let (at, words) = (self.observations.clock.now(), notice.to_string());
        self.observations.recent().note_notice(at, notice);
        self.log.notice(words);
    }

    fn sample_traffic(&mut self) {
        let (now, bytes) = (self.observations.clock.now(), self.observations.counters.by_peer());
        self.log.traffic(now, &bytes);
        self.observations.recent().sample_traffic(now, bytes);
    }
}

impl Observations {
    /// Nothing has happened yet.
    #[must_use]
    pub fn new(clock: MonotonicClock, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self { clock, counters, state: Mutex::default() })
    }

    /// The run that this peer is about to found.
    pub fn note_run(&self, run: RunId) {
        self.recent().run = Some(run);
    }

    /// A panic elsewhere cannot leave it half-changed.
    pub(super) fn recent(&self) -> MutexGuard<'_, ObservedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObservedState {
    fn note(&mut self, now: Instant, event: &Event) {
        match event {
            Event::Welcomed { run, .. } => self.run = Some(*run),
            Event::Prepared(scope) => self.scope = Some(*scope),
            Event::ViewInstalled { view, change, .. } => {
                self.run = Some(view.run);
                self.counts.views += 1;
                self.counts.interruptions +=
                    u64::from(change.as_ref().is_some_and(|change| change.is_interruption));
            }
            Event::Paused { .. } => self.counts.pauses += 1,
            Event::MemberSuspected(_) => self.counts.missed += 1,
            Event::Violation { .. } => self.counts.violations += 1,
            Event::Committed(committed) => self.committed(now, committed),
            _ => {}
        }
    }

    fn committed(&mut self, now: Instant, committed: &Committed) {
        self.counts.samples += committed.samples;
        self.counts.left_out += committed.left_out;
        self.committed = Some(*committed);
        self.rate.note(now);
        self.counts.steps = self.rate.count();
    }

    fn sample_traffic(&mut self, now: Instant, bytes: Bytes) {
        self.traffic.push_back((now, bytes));
        forget_before(&mut self.traffic, now);
    }

    /// Of whom cannot be reached, and for how long, is told with what is so at present.
    fn note_notice(&mut self, at: Instant, notice: &Notice) {
        if !matches!(notice, Notice::Unreachable { .. }) {
            self.push(RecordedEvent { at, event: "notice", words: notice.to_string() });
        }
    }

    fn push(&mut self, happened: RecordedEvent) {
        if self.events.len() == EVENTS_KEPT {
            self.events.pop_front();
        }
        self.events.push_back(happened);
    }

    /// What happened last, the newest at the end.
    pub(super) fn events(&self) -> impl Iterator<Item = &RecordedEvent> {
        self.events.iter()
    }

    /// Committed steps a second, over the last seconds.
    pub(super) fn steps_per_second(&self, now: Instant) -> f64 {
        self.rate.per_second(now)
    }

    /// By peer: bytes written and read a second, over the last seconds. `bytes` are those of now.
    pub(super) fn bytes_per_second(&self, now: Instant, bytes: &Bytes) -> BTreeMap<PeerId, (f64, f64)> {
        let is_recent = |(at, _): &&(Instant, _)| now.since(*at) <= WINDOW;
        let Some((from, before)) = self.traffic.iter().find(is_recent) else { return BTreeMap::new() };
        let time = now.since(*from);
        let of = |(peer, (sent, received)): (&PeerId, &(u64, u64))| {
            let (sent_before, received_before) = before.get(peer).copied().unwrap_or_default();
            (
                *peer,
                (
                    rate(sent.saturating_sub(sent_before), time),
                    rate(received.saturating_sub(received_before), time),
                ),
            )
        };
        bytes.iter().map(of).collect()
    }
}

/// How often bytes are looked at.
const TRAFFIC_INTERVAL: Duration = Duration::from_secs(1);
/// As many events are told.
const EVENTS_KEPT: usize = 16;

#[cfg(test)]
mod tests {
    use peergrad_protocol::StepNumber;

    use super::*;
    use peergrad_net::notice::DialFailure;

    fn at(milliseconds: u64) -> Instant {
        Instant(0).after(Duration::from_millis(milliseconds))
    }

    fn step(number: u64) -> Event {
        Event::Committed(Committed {
            step: StepNumber(number),
            epoch: 0,
            steps_expected: 6000,
            loss: 1.0,
            samples: 8,
            left_out: 0,
            may_be_late: false,
            is_own: false,
            rate: 0.1,
            digest: None,
        })
    }

    #[test]
    fn steps_are_counted_as_they_are_committed_here() {
        let mut recent = ObservedState::default();
        for number in 0..800 {
            // Half way it was away for a while, and is back where the others are.
            let skipped = if number < 400 { 0 } else { 100_000 };
            recent.note(at(number * 10), &step(number + skipped));
        }
        let rate = recent.steps_per_second(at(8_000));
        assert!((rate - 100.0).abs() < 1.0, "{rate}");
        assert_eq!((recent.counts.steps, recent.counts.samples), (800, 6_400));
    }

    #[test]
    fn bytes_are_told_by_peer() {
        let (mut recent, peer) = (ObservedState::default(), PeerId([1; 32]));
        let bytes = |count| BTreeMap::from([(peer, (count, 2 * count))]);
        assert!(recent.bytes_per_second(at(0), &bytes(5)).is_empty());
        for second in 0..20 {
            recent.sample_traffic(at(1000 * second), bytes(1000 * second));
        }
        let rates = recent.bytes_per_second(at(20_000), &bytes(20_000));
        assert_eq!(rates[&peer], (1000.0, 2000.0));
        assert!(recent.traffic.len() < 12);
    }

    #[test]
    fn tries_that_fail_do_not_drown_what_happened() {
        let (mut recent, peer) = (ObservedState::default(), PeerId([1; 32]));
        recent.note_notice(at(0), &Notice::Resumed { peer });
        for number in 0..100 {
            let address = "/ip4/10.0.0.7/tcp/9".parse().unwrap();
            let trouble = DialFailure::Refused;
            recent.note_notice(at(number), &Notice::Unreachable { peer: Some(peer), address, trouble });
        }
        assert_eq!(recent.events().count(), 1);
    }

    #[test]
    fn only_the_last_events_are_kept() {
        let mut recent = ObservedState::default();
        for number in 0..100 {
            recent.push(RecordedEvent {
                at: at(number),
                event: "member_suspected",
                words: number.to_string(),
            });
        }
        assert_eq!(recent.events().count(), EVENTS_KEPT);
        assert_eq!(recent.events().last().unwrap().words, "99");
    }
}
