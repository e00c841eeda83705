//! The report: turns what happens to a peer into words for people, or into JSON for programs.

use std::collections::BTreeSet;
use std::io::Write;
use std::num::NonZeroU16;
use std::sync::Arc;

use peergrad_protocol::{Instant, PeerId, RunId};
use serde_json::{Value, json};

use super::changes;
use super::curve::Curve;
use super::objects::event_object;
use super::passes::Passes;
use super::plot;
use super::progress::{Progress, Screen};
use super::table::{bytes, count};
use crate::io::{Committed, Event, FinalState, Scope};
use crate::net::{Advice, Clock, Counters, Notice, Reachability, Standing, Traffic};

/// Tells the user what happens.
pub(super) struct Report {
    me: PeerId,
    style: Style,
    meter: Meter,
    screen: Screen,
    scope: Option<Scope>,
    progress: Option<Progress>,
    peers: usize,
    losses: Curve,
    passes: Passes,
    has_left_out: bool,
    /// Peers that were asked to let this one in and have not answered, so that each is told of once.
    asked: BTreeSet<PeerId>,
    /// Members of the present view that have said that they stop, or that were said to be missed: that they are silent is
    /// no news.
    gone: BTreeSet<PeerId>,
    is_paused: bool,
    /// What was said last of how others reach this peer: whether they do, what to do, and whether only itself knows a way.
    reach_told: Option<(Standing, Advice, bool)>,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Style {
    Words,
    Json,
}

/// What this peer has taken so far: time, and bytes.
pub(super) struct Meter {
    /// Since it started.
    pub(super) clock: Clock,
    pub(super) counters: Arc<Counters>,
}

/// What is said of a run that is over.
struct Summary<'a> {
    state: &'a FinalState,
    wall_seconds: f64,
    traffic: Traffic,
}

impl Report {
    pub(super) fn new(me: PeerId, style: Style, meter: Meter) -> Self {
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
            passes: Passes::default(),
            has_left_out: false,
            asked: BTreeSet::new(),
            gone: BTreeSet::new(),
            is_paused: false,
            reach_told: None,
        }
    }

    /// Something that only people need to know.
    pub(super) fn say(&self, words: &str) {
        match self.style {
            Style::Words => self.screen.say(words),
            Style::Json => emit(&json!({"event": "note", "text": words})),
        }
    }

    pub(super) fn notice(&mut self, notice: &Notice) {
        if let Notice::Reach(reachability) = notice {
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
                let gist =
                    (reachability.standing, reachability.advice.clone(), reachability.relays.is_empty());
                if self.reach_told.replace(gist.clone()) != Some(gist) {
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
                if let Some(object) = event_object(event) {
                    emit(&self.meter.stamped(event, object));
                }
            }
        }
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Prepared(scope) => self.scope = Some(*scope),
            Event::Installed { view, .. } => {
                self.peers = view.members.len();
                self.asked.clear();
                self.gone.clear();
                self.is_paused = false;
                if self.style == Style::Words && self.progress.is_none() {
                    self.progress =
                        self.scope.map(|scope| Progress::new(&self.screen, self.me.short(), scope));
                }
            }
            Event::Committed(committed) => {
                self.losses.push(committed.loss);
                self.passes.note(committed);
            }
            _ => {}
        }
    }

    fn say_event(&mut self, event: &Event) {
        let say = |words: String| self.screen.say(&words);
        match event {
            Event::Asking(peer) if self.asked.insert(*peer) => {
                say(format!("asking peer {} to be let in", peer.short()));
            }
            Event::Asking(_) => {}
            Event::Gathered { peer, ready, wanted } if *peer == self.me && ready >= wanted => {
                say("ready".to_owned());
            }
            Event::Gathered { peer, ready, wanted } if *peer == self.me => {
                say(format!("ready; waiting for {} more", wanted - ready));
            }
            Event::Gathered { peer, ready, wanted } => {
                say(format!("peer {} is ready: {ready} of {wanted}", peer.short()));
            }
            Event::Withdrawn { peer, reason, ready, wanted } => {
                say(format!(
                    "peer {} has gone before the start ({reason}): {ready} of {wanted}",
                    peer.short()
                ));
            }
            Event::Welcomed { run, by } => {
                say(format!("let into run {} by peer {}", run.short(), by.short()))
            }
            Event::Returned { epoch } => say(format!(
                "this peer was in view {} of the run before it stopped; what it held in memory is gone",
                epoch.0
            )),
            Event::Fetching { received, total } if received == total => {
                say(format!("data received from the swarm: {}", bytes(*total)));
            }
            Event::Fetching { .. } => {}
            Event::Prepared(scope) => say(format!(
                "{} parameters, {} training samples, {} ({})",
                count(scope.parameters as u64),
                count(scope.samples),
                plural(scope.passes as usize, "pass"),
                plural(scope.steps as usize, "step"),
            )),
            Event::OutOfReach { peers } => say(format!(
                "ready, but these members cannot be reached from here: {}; either they have stopped, and the run waits for them, or the network between here and there has to be looked at",
                short_names(peers)
            )),
            Event::NobodyTrains { peers } => say(format!(
                "{} {}, but nobody trains; waiting for a member that does (if all of them have stopped, the run is gone: start it anew)",
                short_names(peers),
                if peers.len() == 1 { "answers" } else { "answer" },
            )),
            Event::NobodyAnswers => say(format!(
                "nobody answers any more; still trying. The run may be over; if it goes on, `{} invite` on a machine where it does prints an invite with another address",
                program_name()
            )),
            event => self.say_change(event),
        }
    }

    /// As [`Self::say_event`], from the first view on.
    fn say_change(&mut self, event: &Event) {
        let say = |words: String| self.screen.say(&words);
        match event {
            Event::Installed { view, change: Some(change), .. } => {
                say(changes::words(view.epoch.0, view.members.len(), change));
            }
            Event::Installed { view, shard, .. } => {
                let total = self.scope.map_or(0, |scope| scope.parameters).max(1);
                let share = 100.0 * *shard as f64 / total as f64;
                let owns = match shard {
                    0 => "its share moves here in the next steps".to_owned(),
                    _ => format!("this one owns {} parameters ({share:.0} %)", count(*shard as u64)),
                };
                say(format!("training with {}; {owns}", plural(view.members.len(), "peer")));
            }
            Event::Missed(peer) if self.gone.insert(*peer) => {
                say(format!("no contact with peer {}", peer.short()));
            }
            Event::Missed(_) => {}
            Event::Stopped { peer, reason } => {
                self.gone.insert(*peer);
                say(format!("peer {} stops: {reason}", peer.short()));
            }
            Event::Paused { reached, needed, members, missing } => {
                self.is_paused = true;
                say(format!(
                    "paused: {reached} of {members} peers can be reached, this one included, and {needed} are needed; waiting for {} more of {} (one that has stopped can join again from its data directory; Ctrl-C saves the model as it is)",
                    needed - reached,
                    short_names(missing)
                ));
            }
            Event::Orphaned { peers } => say(format!(
                "nobody who can be reached has the parameters; waiting for one of {}",
                short_names(peers)
            )),
            Event::Excluded { .. } => {
                say("the others could not reach this peer and have gone on; asking to be let in again"
                    .to_owned());
            }
            Event::Leaving => say("handing over to the others before leaving".to_owned()),
            Event::HandedOver { chunks: 0, .. } => {
                say("others hold all that this peer owned; nothing is lost".to_owned());
            }
            Event::HandedOver { chunks, members } => say(format!(
                "{} handed over to {}; nothing is lost",
                plural(*chunks, "chunk"),
                plural(*members, "peer")
            )),
            Event::Committed(committed) => self.say_committed(committed),
            Event::Violation { peer, reject } => {
                say(format!("peer {} misbehaves, ignored: {reject}", peer.short()))
            }
            _ => {}
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
                print_line(&summary_words(summary, &self.passes.words(self.samples())));
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
                self.screen.say(&format!("{reason}; nobody else was in the run, so it ends here"));
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

    /// Samples of a pass.
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
            "passes": self.passes.objects(self.samples()),
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

impl Meter {
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

fn summary_words(summary: &Summary, passes: &str) -> String {
    let Summary { state, wall_seconds, traffic } = summary;
    let result = match state.evaluation {
        Some(evaluation) => {
            let accuracy = evaluation.accuracy.map(|share| format!("test accuracy {share:.4}, "));
            format!(
                "{}test loss {:.4} on {} held-out samples",
                accuracy.unwrap_or_default(),
                evaluation.loss,
                count(evaluation.samples)
            )
        }
        None => "not evaluated".to_owned(),
    };
    format!(
        "{result}\n{} steps, {} samples ({} here), {passes}; {wall_seconds:.1} s; {} sent ({} of them directly), {} received\ndigest {}",
        count(state.steps),
        count(state.samples),
        count(state.own_samples),
        bytes(traffic.sent_bytes),
        bytes(traffic.direct_bytes),
        bytes(traffic.received_bytes),
        state.digest
    )
}

fn short_names(peers: &[PeerId]) -> String {
    peers.iter().map(PeerId::short).collect::<Vec<_>>().join(", ")
}

/// One object, one line, at once: whoever reads may be waiting for it.
pub(super) fn emit(object: &Value) {
    print_line(&object.to_string());
}

/// Words for people, to standard error. Nobody has to be there to read them.
pub(super) fn complain(words: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{words}");
}

/// A result, to standard output.
pub(super) fn print_line(text: &str) {
    let mut out = std::io::stdout().lock();
    // A reader that has gone is no reason to stop training, nor an accident: it has seen enough.
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// What this program is called, without its folder.
pub(super) fn program_name() -> String {
    let path = std::env::args_os().next().map(std::path::PathBuf::from);
    let name = path.as_deref().and_then(std::path::Path::file_name).and_then(std::ffi::OsStr::to_str);
    name.unwrap_or("peer").to_owned()
}

pub(super) fn plural(number: usize, noun: &str) -> String {
    let ending = match (number, noun.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{} {noun}{ending}", count(number as u64))
}
