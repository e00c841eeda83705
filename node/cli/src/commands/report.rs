//! The report: turns what happens to a peer into words for people, or into JSON for programs.

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::sync::Arc;

use peergrad_core::io::{Committed, Event, FinalState, RecoveryProgress, RunSize};
use peergrad_net::{Advice, Counters, MonotonicClock, Notice, Reachability, ReachabilityState, Traffic};
use peergrad_protocol::{Instant, PeerId, RunId};
use serde_json::{Value, json};

use super::curve::Curve;
use super::epochs::Epochs;
use super::plot;
use super::progress::{Progress, Screen, fitted};
use crate::terminal::{emit, print_line, program_name};
use crate::text::event_json::event_json;
use crate::text::event_text::event_text;
use crate::text::text_table::{bytes, count, plural};

/// Tells the user what happens.
pub(super) struct Report {
    me: PeerId,
    style: Style,
    meter: UsageMeter,
    screen: Screen,
    scope: Option<RunSize>,
    progress: Option<Progress>,
    peers: usize,
    losses: Curve,
    epochs: Epochs,
    has_left_out: bool,
    /// Peers that were asked to let this one in and have not answered, so that each is told of once.
    asked: BTreeSet<PeerId>,
    /// Members of the present view that have said that they stop, or that were said to be missed: that they are silent is
    /// no news.
    gone: BTreeSet<PeerId>,
    is_paused: bool,
    /// Former members wait for each other.
    is_waiting_for_others: bool,
    /// The last checkpoint could not be written.
    has_save_failed: bool,
    /// What was said last of how others reach this peer: whether they do, what to do, and whether only itself knows a way.
    reachability_reported: Option<(ReachabilityState, Advice, bool)>,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Style {
    Words,
    Json,
}

/// What this peer has taken so far: time, and bytes.
pub(super) struct UsageMeter {
    /// Since it started.
    pub(super) clock: MonotonicClock,
    pub(super) counters: Arc<Counters>,
}

/// What is said of a run that is over.
struct Summary<'a> {
    state: &'a FinalState,
    wall_seconds: f64,
    traffic: Traffic,
}

impl Report {
    pub(super) fn new(me: PeerId, style: Style, meter: UsageMeter) -> Self {
        let screen = Screen::new();
        Self {
            me,
            style,
            meter,
            screen,
            scope: None,
            progress: None,
            peers: 0,
            losses: Curve::default(),
            epochs: Epochs::default(),
            has_left_out: false,
            asked: BTreeSet::new(),
            gone: BTreeSet::new(),
            is_paused: false,
            is_waiting_for_others: false,
            has_save_failed: false,
            reachability_reported: None,
        }
    }

    /// Where words go that are for people.
    pub(super) fn screen(&self) -> Screen {
        self.screen.clone()
    }

    /// Something that only people need to know.
    pub(super) fn say(&self, words: &str) {
        match self.style {
            Style::Words => self.screen.say(words),
            Style::Json => emit(&json!({"event": "note", "text": words})),
        }
    }

    pub(super) fn notice(&mut self, notice: &Notice) {
        if let Notice::Reachability(reachability) = notice {
            return self.reachability(reachability);
        }
        match self.style {
            Style::Words => self.screen.say(&notice.to_string()),
            Style::Json => emit(&json!({"event": "notice", "text": notice.to_string()})),
        }
    }

    /// How others reach this peer: in words only when there is something else to be said than before.
    fn reachability(&mut self, reachability: &Reachability) {
        match self.style {
            Style::Words => {
                let gist = (reachability.state, reachability.advice.clone(), reachability.relays.is_empty());
                if self.reachability_reported.replace(gist.clone()) != Some(gist) {
                    self.screen.say(&reachability.to_string());
                }
            }
            Style::Json => {
                let mut object =
                    serde_json::to_value(reachability).expect("text and numbers have a JSON form");
                object["event"] = json!("reachability");
                object["text"] = json!(reachability.to_string());
                emit(&object);
            }
        }
    }

    /// The founder's invite.
    pub(super) fn invite(&self, invite: &str, run: &RunId) {
        match self.style {
            Style::Words => self.screen.say(&format!(
                "run {}; on every other machine type\n\n    {} join {invite}\n\n(the line holds the run's secret: treat it like a password)",
                run.short(),
                program_name()
            )),
            Style::Json => emit(&json!({"event": "invite", "invite": invite, "run": run.to_string()})),
        }
    }

    pub(super) fn listening(&self, addresses: &[String], direct_port: Option<NonZeroU16>) {
        let me = self.me;
        match self.style {
            Style::Words => {
                self.screen.say(&format!("peer {} listens on {}", me.short(), addresses.join(", ")));
            }
            Style::Json => emit(&json!({
                "event": "listening", "peer": me.to_string(), "addresses": addresses,
                "direct_port": direct_port.map(NonZeroU16::get),
            })),
        }
    }

    pub(super) fn event(&mut self, event: &Event) {
        self.note(event);
        match self.style {
            Style::Words => self.say_event(event),
            Style::Json => {
                if let Some(object) = event_json(event) {
                    emit(&self.meter.stamped(event, object));
                }
            }
        }
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Prepared(scope) => self.scope = Some(*scope),
            Event::ViewInstalled { view, .. } => {
                self.peers = view.members.len();
                self.asked.clear();
                self.gone.clear();
                self.is_paused = false;
                if self.style == Style::Words && self.progress.is_none() {
                    self.progress = self
                        .scope
                        .map(|scope| Progress::new(&self.screen, self.me.short(), scope, self.meter.clock));
                }
            }
            Event::Committed(committed) => {
                self.losses.push(committed.loss);
                if !committed.is_own {
                    self.epochs.note(committed, self.samples());
                }
            }
            _ => {}
        }
    }

    fn say_event(&mut self, event: &Event) {
        match event {
            // Told of once.
            Event::JoinRequested(peer) if !self.asked.insert(*peer) => return,
            Event::MemberSuspected(peer) if !self.gone.insert(*peer) => return,
            Event::MemberStopped { peer, .. } => _ = self.gone.insert(*peer),
            Event::Paused { .. } => {
                self.is_paused = true;
                if let Some(progress) = &self.progress {
                    progress.pause();
                }
            }
            // Mostly the others train, and let it in at once.
            Event::RecoveryProgress(RecoveryProgress { present: 1, .. }) if !self.is_waiting_for_others => {
                self.is_waiting_for_others = true;
                return;
            }
            Event::RecoveryProgress(_) => self.is_waiting_for_others = true,
            Event::NoActiveMember { .. } | Event::NoPeerAnswers if self.is_waiting_for_others => return,
            Event::Restored { .. } => self.is_waiting_for_others = false,
            Event::Saved { steps, result } => {
                // Told of when it changes.
                let had_failed = std::mem::replace(&mut self.has_save_failed, result.is_err());
                match (had_failed, result.is_err()) {
                    (true, false) => {
                        let words = format!("checkpoints are written again: after step {}", steps.0);
                        return self.screen.say(&words);
                    }
                    (false, true) => {}
                    _ => return,
                }
            }
            Event::Committed(committed) => return self.say_committed(committed),
            _ => {}
        }
        if let Some(words) = event_text(event, &self.me, self.scope.as_ref()) {
            self.screen.say(&words);
        }
    }

    fn say_committed(&mut self, committed: &Committed) {
        if std::mem::take(&mut self.is_paused) {
            self.screen.say("training goes on");
        }
        if committed.left_out > 0 && !committed.may_be_late && !self.has_left_out {
            self.has_left_out = true;
            self.screen.say(&format!(
                "step {}: {} left out, their gradient is not finite; if this goes on, stop and lower `rate`",
                committed.step.0,
                plural(committed.left_out as usize, "sample")
            ));
        }
        if let Some(progress) = &mut self.progress {
            progress.committed(committed);
        }
    }

    /// The results of a run that finished.
    pub(super) fn summary(&self, state: &FinalState) {
        let (wall_seconds, traffic) = (self.meter.wall_seconds(), self.meter.counters.read());
        let summary = &Summary { state, wall_seconds, traffic };
        match self.style {
            Style::Json => emit(&self.summary_object(summary)),
            Style::Words => {
                let plot = plot::curve(self.losses.means(), 60, 8);
                if !plot.is_empty() {
                    self.screen.say(&format!("\ntraining loss\n{plot}"));
                }
                print_line(&fitted(&summary_text(summary, &self.epochs.words(self.samples()))));
            }
        }
    }

    /// Takes the progress bar away.
    pub(super) fn close(&self) {
        if let Some(progress) = &self.progress {
            progress.close();
        }
    }

    /// This peer has left on request, with everything handed over; the others go on.
    pub(super) fn left(&self, state: Option<&FinalState>) {
        match self.style {
            Style::Words => self.screen.say("left the run; the others go on without this peer"),
            Style::Json => emit(&json!({
                "event": "left",
                "steps": state.map(|state| state.steps),
                "own_samples": state.map(|state| state.own_samples),
                "digest": state.map(|state| state.digest.to_string()),
            })),
        }
    }

    /// This peer stops on request, and there was nobody to hand over to.
    pub(super) fn stopped(&self, reason: &str) {
        match self.style {
            Style::Words if self.is_paused => {
                self.screen.say(&format!(
                    "{reason}; nothing could be handed over, and the others may wait for this peer"
                ));
            }
            Style::Words if self.peers == 1 => {
                self.screen.say(&format!(
                    "{reason}; nobody else was in the run: `{} resume` goes on with it",
                    program_name()
                ));
            }
            Style::Words => self.screen.say(reason),
            Style::Json => self.failed(reason),
        }
    }

    /// The run ended before it was done.
    pub(super) fn failed(&self, reason: &str) {
        match self.style {
            Style::Words => self.screen.say(&format!("error: {reason}")),
            Style::Json => emit(&json!({"event": "failed", "reason": reason})),
        }
    }

    /// Samples of an epoch.
    fn samples(&self) -> u64 {
        self.scope.map_or(0, |scope| scope.samples)
    }

    fn summary_object(&self, summary: &Summary) -> Value {
        let Summary { state, wall_seconds, traffic } = summary;
        let evaluation = state.evaluation;
        json!({
            "event": "summary",
            "peer": self.me.to_string(),
            "steps": state.steps,
            "samples": state.samples,
            "left_out": state.left_out,
            "epochs": self.epochs.objects(self.samples()), "epochs_before": self.epochs.before(),
            "test_accuracy": evaluation.and_then(|evaluation| evaluation.accuracy),
            "test_loss": evaluation.map(|evaluation| evaluation.loss),
            "digest": state.digest.to_string(),
            "peers": self.peers,
            "wall_seconds": wall_seconds,
            "bytes_sent": traffic.sent_bytes,
            "bytes_sent_directly": traffic.direct_bytes,
            "bytes_received": traffic.received_bytes,
            "own_samples": state.own_samples,
            "shard": state.shard,
            "optimizer_bytes": state.optimizer_bytes,
        })
    }
}

impl UsageMeter {
    fn wall_seconds(&self) -> f64 {
        self.clock.now().since(Instant::default()).as_secs_f64()
    }

    /// The object of an event, with when it was; of a step also with what had been sent by then, and how long was computed.
    fn stamped(&self, event: &Event, mut object: Value) -> Value {
        object["wall_seconds"] = json!(self.wall_seconds());
        if matches!(event, Event::Committed(_)) {
            object["bytes_sent"] = json!(self.counters.read().sent_bytes);
            object["computing_seconds"] = json!(self.counters.computing().as_secs_f64());
        }
        object
    }
}

fn summary_text(summary: &Summary, epochs: &str) -> String {
    let Summary { state, wall_seconds, traffic } = summary;
    let result = match state.evaluation {
        Some(evaluation) => {
            let accuracy = evaluation.accuracy.map(|share| format!("test accuracy {share:.4}, "));
            format!(
                "{}test loss {:.4} on {} held-out samples",
                accuracy.unwrap_or_default(),
                evaluation.loss,
                count(evaluation.samples.into())
            )
        }
        None => "not evaluated".to_owned(),
    };
    // Where each peer has steps of its own, none has seen an epoch.
    let epochs = if epochs.is_empty() { String::new() } else { format!(", {epochs}") };
    format!(
        "{result}\n{} steps, {} samples ({} here){epochs}; {wall_seconds:.1} s; {} sent ({} of them directly), {} received\ndigest {}",
        count(state.steps),
        count(state.samples),
        count(state.own_samples),
        bytes(traffic.sent_bytes),
        bytes(traffic.direct_bytes),
        bytes(traffic.received_bytes),
        state.digest
    )
}
