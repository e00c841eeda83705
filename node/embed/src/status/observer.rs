//! The observer: receives the events of a peer and the notices of its network, remembers the newest, and passes all of them on.
//!
//! It sits between the driver and the report. So the event log and the status are current even if the reader of the report is slow,
//! and the observer waits for none of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use peergrad_core::io::{Committed, Event, Failure, RunSize};
use peergrad_models::task::Evaluation;
use peergrad_net::{Counters, MonotonicClock, Notice};
use peergrad_protocol::message::BestEvaluation;
use peergrad_protocol::{Instant, PeerId, RunId, StepNumber};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::EvaluationStatus;
use super::log::EventLog;
use super::rate_meter::{RateMeter, WINDOW, forget_before, rate};
use crate::text::event_json::event_name;
use crate::text::event_text::event_text;

/// Bytes written to and read from each peer.
type Bytes = BTreeMap<PeerId, (u64, u64)>;

/// Receives everything that one peer reports.
pub struct Observer {
    me: PeerId,
    observations: Arc<Observations>,
    log: EventLog,
    /// Notices about the log itself.
    log_notices: mpsc::UnboundedReceiver<Notice>,
}

/// What the observer remembers, shared with the status service.
#[derive(Debug)]
pub struct Observations {
    pub(super) clock: MonotonicClock,
    pub(super) counters: Arc<Counters>,
    state: Mutex<ObservedState>,
}

/// The newest events, and counts since the start.
#[derive(Debug, Default)]
pub(super) struct ObservedState {
    /// The run; `None` until it is known.
    pub(super) run: Option<RunId>,
    /// The size of the run; `None` until the task is prepared.
    pub(super) scope: Option<RunSize>,
    /// The newest committed step; `None` before the first.
    pub(super) committed: Option<Committed>,
    pub(super) counts: EventCounts,
    /// At most [`EVENTS_KEPT`], oldest first.
    events: VecDeque<RecordedEvent>,
    /// The newest evaluation during the run; `None` before the first.
    pub(super) evaluation: Option<EvaluationStatus>,
    /// The rate of committed steps.
    rate: RateMeter,
    /// The rate of their samples.
    sample_rate: RateMeter,
    /// The bytes by peer at a few recent times.
    traffic: VecDeque<(Instant, Bytes)>,
}

/// Counts since the process started.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EventCounts {
    /// Committed steps.
    pub(super) steps: u64,
    /// Samples of those steps.
    pub(super) samples: u64,
    /// Samples that those steps left out.
    pub(super) left_out: u64,
    /// Installed views.
    pub(super) views: u64,
    /// Views that interrupted a step.
    pub(super) interruptions: u64,
    /// Pauses because too few members were reachable.
    pub(super) pauses: u64,
    /// Members that became suspected.
    pub(super) suspected: u64,
    /// Invalid messages.
    pub(super) violations: u64,
}

/// An event as text.
#[derive(Clone, Debug)]
pub(super) struct RecordedEvent {
    pub(super) at: Instant,
    /// Its name in the event log.
    pub(super) event: &'static str,
    /// A sentence for people.
    pub(super) text: String,
}

impl Observer {
    /// An observer of the peer `me`, which fills `observations` and writes to `log`.
    #[must_use]
    pub fn new(
        me: PeerId,
        observations: Arc<Observations>,
        log: EventLog,
        log_notices: mpsc::UnboundedReceiver<Notice>,
    ) -> Self {
        Self { me, observations, log, log_notices }
    }

    /// Receives until the peer has ended, and passes everything on. On return, the log is on disk.
    pub async fn listen(
        mut self,
        mut events: mpsc::UnboundedReceiver<Event>,
        mut notices: mpsc::UnboundedReceiver<Notice>,
        events_on: mpsc::UnboundedSender<Event>,
        notices_on: mpsc::UnboundedSender<Notice>,
    ) {
        let mut samples_due = interval(TRAFFIC_INTERVAL);
        samples_due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The last line of the log is the end of the run.
        let mut is_over = false;
        loop {
            tokio::select! {
                event = events.recv() => {
                    let Some(event) = event else { break };
                    self.on_event(&event);
                    is_over |= matches!(event, Event::Ended(_));
                    // The receiver may be gone.
                    let _ = events_on.send(event);
                }
                Some(notice) = notices.recv() => {
                    if !is_over {
                        self.on_notice(&notice);
                    }
                    let _ = notices_on.send(notice);
                }
                Some(notice) = self.log_notices.recv() => drop(notices_on.send(notice)),
                _ = samples_due.tick(), if !is_over => self.sample_traffic(),
            }
        }
        drop(events_on);
        self.log.close().await;
    }

    fn on_event(&mut self, event: &Event) {
        let now = self.observations.clock.now();
        let sent_bytes = || self.observations.counters.read().sent_bytes;
        let mut recent = self.observations.recent();
        recent.note(now, event);
        let text = match event {
            Event::Ended(ended) => {
                Some(ended.outcome.as_ref().map_or_else(Failure::to_string, |()| "finished".to_owned()))
            }
            event => event_text(event, &self.me, recent.scope.as_ref()),
        };
        if let Some(text) = &text {
            recent.push(RecordedEvent { at: now, event: event_name(event), text: text.clone() });
        }
        drop(recent);
        self.log.event(now, event, text, sent_bytes);
    }

    fn on_notice(&mut self, notice: &Notice) {
        let (at, text) = (self.observations.clock.now(), notice.to_string());
        self.observations.recent().note_notice(at, notice);
        self.log.notice(text);
    }

    fn sample_traffic(&mut self) {
        let (now, bytes) = (self.observations.clock.now(), self.observations.counters.by_peer());
        self.log.traffic(now, &self.observations.counters);
        self.observations.recent().sample_traffic(now, bytes);
    }
}

impl Observations {
    /// Observations of a peer that has just started.
    #[must_use]
    pub fn new(clock: MonotonicClock, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self { clock, counters, state: Mutex::default() })
    }

    /// Records the run that this peer is about to found.
    pub fn note_run(&self, run: RunId) {
        self.recent().run = Some(run);
    }

    /// Locks the state; a panic elsewhere cannot leave it half-changed.
    pub(super) fn recent(&self) -> MutexGuard<'_, ObservedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObservedState {
    fn note(&mut self, now: Instant, event: &Event) {
        match event {
            Event::Welcomed { run, .. } => self.run = Some(*run),
            Event::Prepared { size, .. } => self.scope = Some(*size),
            Event::ViewInstalled { view, change, .. } => {
                self.run = Some(view.run);
                self.counts.views += 1;
                self.counts.interruptions +=
                    u64::from(change.as_ref().is_some_and(|change| change.is_interruption));
            }
            Event::Paused { .. } => self.counts.pauses += 1,
            Event::MemberSuspected(_) => self.counts.suspected += 1,
            Event::Violation { .. } => self.counts.violations += 1,
            Event::Committed(committed) => self.committed(now, committed),
            Event::Evaluated { steps, evaluation, best, .. } => self.evaluated(*steps, evaluation, best),
            _ => {}
        }
    }

    fn evaluated(&mut self, steps: StepNumber, evaluation: &Evaluation, best: &BestEvaluation) {
        let finite = |loss: f64| Some(loss).filter(|loss| loss.is_finite());
        self.evaluation = Some(EvaluationStatus {
            steps: steps.0,
            samples: evaluation.samples,
            loss: finite(evaluation.loss),
            accuracy: evaluation.accuracy,
            best_steps: best.steps.0,
            best_loss: finite(best.loss),
        });
    }

    fn committed(&mut self, now: Instant, committed: &Committed) {
        self.counts.samples += committed.samples;
        self.counts.left_out += committed.left_out;
        self.committed = Some(*committed);
        self.rate.note(now);
        self.sample_rate.note_many(now, committed.samples);
        self.counts.steps = self.rate.count();
    }

    fn sample_traffic(&mut self, now: Instant, bytes: Bytes) {
        self.traffic.push_back((now, bytes));
        forget_before(&mut self.traffic, now);
    }

    /// Records a notice. Unreachable peers are not recorded: the status lists the present ones.
    fn note_notice(&mut self, at: Instant, notice: &Notice) {
        if !matches!(notice, Notice::Unreachable { .. }) {
            self.push(RecordedEvent { at, event: "notice", text: notice.to_string() });
        }
    }

    fn push(&mut self, happened: RecordedEvent) {
        if self.events.len() == EVENTS_KEPT {
            self.events.pop_front();
        }
        self.events.push_back(happened);
    }

    /// The newest events, oldest first.
    pub(super) fn events(&self) -> impl Iterator<Item = &RecordedEvent> {
        self.events.iter()
    }

    /// Committed steps per second, over the last seconds.
    pub(super) fn steps_per_second(&self, now: Instant) -> f64 {
        self.rate.per_second(now)
    }

    /// Samples of committed steps per second, over the last seconds.
    pub(super) fn samples_per_second(&self, now: Instant) -> f64 {
        self.sample_rate.per_second(now)
    }

    /// Bytes written to and read from each peer per second, over the last seconds. `bytes` are the present counts.
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

/// The pause between two samples of the traffic.
const TRAFFIC_INTERVAL: Duration = Duration::from_secs(1);
/// The most events that are remembered.
const EVENTS_KEPT: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::log::tests::committed;
    use peergrad_net::PeerNotice;
    use peergrad_net::notice::DialFailure;

    fn at(milliseconds: u64) -> Instant {
        Instant(0).after(Duration::from_millis(milliseconds))
    }

    fn step(number: u64) -> Event {
        Event::Committed(Committed { steps_expected: 6000, loss: 1.0, ..committed(number) })
    }

    #[test]
    fn only_steps_committed_here_count() {
        let mut recent = ObservedState::default();
        for number in 0..800 {
            // Half way, the peer was away for a while and continues where the others are.
            let skipped = if number < 400 { 0 } else { 100_000 };
            recent.note(at(number * 10), &step(number + skipped));
        }
        let rate = recent.steps_per_second(at(8_000));
        assert!((rate - 100.0).abs() < 1.0, "{rate}");
        let samples = recent.samples_per_second(at(8_000));
        assert!((samples - 800.0).abs() < 8.0, "{samples}");
        assert_eq!((recent.counts.steps, recent.counts.samples), (800, 6_400));
    }

    #[test]
    fn the_newest_and_the_best_evaluation_are_known() {
        let mut recent = ObservedState::default();
        let evaluation = Evaluation { samples: 8, loss: f64::NAN, accuracy: None };
        let (steps, by, best) =
            (StepNumber(30), PeerId([1; 32]), BestEvaluation { steps: StepNumber(20), loss: 1.0 });
        recent.note(at(30), &Event::Evaluated { steps, evaluation, by, is_best: false, best });
        let EvaluationStatus { steps, loss, best_steps, best_loss, .. } = recent.evaluation.unwrap();
        assert_eq!((steps, loss, best_steps, best_loss), (30, None, 20, Some(1.0)));
    }

    #[test]
    fn traffic_is_measured_by_peer() {
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
    fn failed_dials_do_not_displace_other_events() {
        let (mut recent, peer) = (ObservedState::default(), PeerId([1; 32]));
        recent.note_notice(at(0), &Notice::Peer { peer, change: PeerNotice::Resumed });
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
                text: number.to_string(),
            });
        }
        assert_eq!(recent.events().count(), EVENTS_KEPT);
        assert_eq!(recent.events().last().unwrap().text, "99");
    }
}
