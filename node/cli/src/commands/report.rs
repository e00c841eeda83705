//! The report of one running peer: prints its events and its result, as text for people or as JSON for programs.

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::path::Path;
use std::sync::Arc;

use peergrad_core::io::{Committed, Event, Failure, FinalState, Line, RecoveryProgress, RunSize};
use peergrad_embed::text::command_name::command_name;
use peergrad_embed::{Outcome, SavedModel, StartReport};
use peergrad_models::task::Evaluation;
use peergrad_net::{
    Advice, BEST_FILE, Counters, Damaged, MonotonicClock, Notice, Reachability, ReachabilityState, Traffic,
};
use peergrad_protocol::message::BestEvaluation;
use peergrad_protocol::{Instant, PeerId, RunId, StepNumber};
use serde_json::{Value, json};

use super::curve::Curve;
use super::epochs::Epochs;
use super::plot;
use super::progress::{Progress, Screen, fitted};
use crate::terminal::{OutputFormat, emit, print_line};
use crate::text::quantities::few_digits;
use peergrad_embed::text::event_json::event_json;
use peergrad_embed::text::event_text::event_text;
use peergrad_embed::text::text_table::{bytes, count, plural};

/// Prints what happens to one peer.
pub(super) struct Report {
    me: PeerId,
    format: OutputFormat,
    meter: UsageMeter,
    screen: Screen,
    scope: Option<RunSize>,
    progress: Option<Progress>,
    /// Members of the newest view.
    peers: usize,
    losses: Curve,
    epochs: Epochs,
    /// The best evaluation during the run.
    best: Option<BestEvaluation>,
    /// The number of steps behind the model that was kept as the best.
    kept: Option<StepNumber>,
    reported: Reported,
    /// Whether the results have a display of their own, as those of a sweep have.
    has_display: bool,
}

/// The reports that the user has had already, so that none is repeated.
#[derive(Default)]
struct Reported {
    /// That samples with a gradient that is not finite were left out.
    left_out: bool,
    /// Peers that this one has asked for admission since the last view.
    asked: BTreeSet<PeerId>,
    /// Members of the newest view that have stopped or were reported as silent.
    gone: BTreeSet<PeerId>,
    /// That training is paused.
    paused: bool,
    /// That former members wait for each other.
    recovering: bool,
    /// That the last checkpoint could not be written.
    save_failed: bool,
    /// How others reach this peer: the state, the advice, and whether no relay is used. `None` before the first report.
    reachability: Option<(ReachabilityState, Advice, bool)>,
}

/// What this peer has used since it started: time, and bytes.
pub(super) struct UsageMeter {
    /// The time since the start.
    pub(super) clock: MonotonicClock,
    pub(super) counters: Arc<Counters>,
}

/// The result of a finished run at this peer.
struct Summary<'a> {
    state: &'a FinalState,
    wall_seconds: f64,
    traffic: Traffic,
    /// The lines to other peers, as last measured, the slowest first.
    lines: Vec<(PeerId, Line)>,
}

impl Report {
    pub(super) fn new(me: PeerId, format: OutputFormat, meter: UsageMeter) -> Self {
        let screen = Screen::new();
        Self {
            me,
            format,
            meter,
            screen,
            scope: None,
            progress: None,
            peers: 0,
            losses: Curve::default(),
            epochs: Epochs::default(),
            best: None,
            kept: None,
            reported: Reported::default(),
            has_display: false,
        }
    }

    /// From now on, training itself is shown elsewhere. JSON stays as it is.
    pub(super) fn leave_training_to_display(&mut self) {
        self.has_display = true;
    }

    /// Where text for people is written.
    pub(super) fn screen(&self) -> Screen {
        self.screen.clone()
    }

    /// Prints something that only people need to know.
    pub(super) fn say(&self, text: &str) {
        match self.format {
            OutputFormat::Text => self.screen.say(text),
            OutputFormat::Json => emit(&json!({"event": "note", "text": text})),
        }
    }

    pub(super) fn notice(&mut self, notice: &Notice) {
        if let Notice::Reachability(reachability) = notice {
            return self.reachability(reachability);
        }
        match self.format {
            OutputFormat::Text => self.screen.say(&notice.to_string()),
            OutputFormat::Json => emit(&json!({"event": "notice", "text": notice.to_string()})),
        }
    }

    /// How others reach this peer. As text, only a change is printed.
    fn reachability(&mut self, reachability: &Reachability) {
        match self.format {
            OutputFormat::Text => {
                let gist = (reachability.state, reachability.advice.clone(), reachability.relays.is_empty());
                if self.reported.reachability.replace(gist.clone()) != Some(gist) {
                    self.screen.say(&reachability.to_string());
                }
            }
            OutputFormat::Json => {
                let mut object =
                    serde_json::to_value(reachability).expect("text and numbers have a JSON form");
                object["event"] = json!("reachability");
                object["text"] = json!(reachability.to_string());
                emit(&object);
            }
        }
    }

    /// Prints the invite to a new run.
    pub(super) fn invite(&self, invite: &str, run: &RunId) {
        match self.format {
            OutputFormat::Text => self.screen.say(&format!(
                "run {}; on every other machine, type\n\n    {} join {invite}\n\n(this command contains the run's secret: treat it like a password)",
                run.short(),
                command_name()
            )),
            OutputFormat::Json => emit(&json!({"event": "invite", "invite": invite, "run": run.to_string()})),
        }
    }

    /// What the peer chose and found when it started.
    pub(super) fn started(&self, started: &StartReport) {
        let here = started.directory.display();
        if !started.directories_in_use.is_empty() {
            self.say(&format!("another peer runs on this machine, so this one keeps its data in {here}"));
        }
        if let Some(path) = started.directories_of_other_runs.first() {
            self.say(&format!(
                "{} holds an unfinished run (`{} resume` continues it), so this peer keeps its data in {here}",
                path.display(),
                command_name()
            ));
        }
        self.listening(started);
        for Damaged { path, reason } in &started.damaged {
            self.say(&format!("skipped the damaged checkpoint {} ({reason})", path.display()));
        }
        if started.is_record_damaged {
            self.say(
                "the durable record of an earlier run is damaged on disk: this peer takes part as a new one",
            );
        }
        if let Some(run) = started.replaced {
            self.say(&format!(
                "this new run replaces the unfinished run {} in {here} (to keep both, give a new run its own directory with --dir)",
                run.short(),
            ));
        }
    }

    fn listening(&self, started: &StartReport) {
        let StartReport { peer, addresses, direct_port, threads, .. } = started;
        match self.format {
            OutputFormat::Text => {
                let threads_text = plural(threads.get(), "thread");
                let addresses = addresses.join(", ");
                self.screen.say(&format!(
                    "peer {} computes on {threads_text}, and listens on {addresses}",
                    peer.short()
                ));
            }
            OutputFormat::Json => emit(&json!({
                "event": "listening", "peer": peer.to_string(), "addresses": addresses,
                "direct_port": direct_port.map(NonZeroU16::get), "threads": threads.get(),
            })),
        }
    }

    pub(super) fn event(&mut self, event: &Event) {
        self.note(event);
        match self.format {
            OutputFormat::Text => self.say_event(event),
            OutputFormat::Json => {
                if let Some(object) = event_json(event) {
                    emit(&self.meter.stamped(event, object));
                }
            }
        }
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Prepared { size, .. } => self.scope = Some(*size),
            Event::EndsEarly => self.epochs.end_early(),
            Event::Evaluated { best, .. } => self.best = Some(*best),
            Event::BestKept { steps, result: Ok(()) } => self.kept = Some(*steps),
            Event::ViewInstalled { view, .. } => {
                self.peers = view.members.len();
                self.reported.asked.clear();
                self.reported.gone.clear();
                self.reported.paused = false;
                if self.format == OutputFormat::Text && self.progress.is_none() && !self.has_display {
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
            Event::Prepared { .. } | Event::Committed(_) | Event::EndsEarly if self.has_display => return,
            // Reported once.
            Event::JoinRequested(peer) if !self.reported.asked.insert(*peer) => return,
            Event::MemberSuspected(peer) if !self.reported.gone.insert(*peer) => return,
            Event::MemberStopped { peer, .. } => _ = self.reported.gone.insert(*peer),
            Event::Paused { .. } => {
                self.reported.paused = true;
                if let Some(progress) = &self.progress {
                    progress.pause();
                }
            }
            // Usually the others still train and admit this peer at once.
            Event::RecoveryProgress(RecoveryProgress { present: 1, .. }) if !self.reported.recovering => {
                self.reported.recovering = true;
                return;
            }
            Event::RecoveryProgress(_) => self.reported.recovering = true,
            Event::NoActiveMember { .. } | Event::NoPeerAnswers if self.reported.recovering => return,
            Event::Restored { .. } => self.reported.recovering = false,
            Event::Saved { result, .. } => {
                // Only the first failure and the first success after it are reported.
                let had_failed = std::mem::replace(&mut self.reported.save_failed, result.is_err());
                match (had_failed, result.is_err()) {
                    (true, false) => {
                        return self.screen.say("checkpoints can be written again");
                    }
                    (false, true) => {}
                    _ => return,
                }
            }
            Event::Committed(committed) => return self.say_committed(committed),
            _ => {}
        }
        if let Some(text) = event_text(event, &self.me, self.scope.as_ref()) {
            self.screen.say(&text);
        }
    }

    fn say_committed(&mut self, committed: &Committed) {
        if std::mem::take(&mut self.reported.paused) {
            self.screen.say("training continues");
        }
        if committed.left_out > 0 && !committed.may_be_late && !self.reported.left_out {
            self.reported.left_out = true;
            self.screen.say(&format!(
                "step {}: {} left out because their gradients are not finite; if this persists, stop and lower `rate`",
                committed.step.0,
                plural(committed.left_out as usize, "sample")
            ));
        }
        if let Some(progress) = &mut self.progress {
            progress.committed(committed);
        }
    }

    /// Prints how the run has ended, and what is in the data directory now.
    pub(super) fn outcome(&self, outcome: &Outcome, directory: &Path) {
        if let Some(progress) = &self.progress {
            progress.close();
        }
        if let (Ok(Some(SavedModel { steps, earlier_model, .. })), false) = (&outcome.model, self.has_display)
        {
            if let Some(earlier) = earlier_model {
                self.say(&format!("moved the model of an earlier run to {}", earlier.display()));
            }
            self.say(&format!(
                "saved the model after {steps} committed steps; `{} export FILE --dir {}` copies it",
                command_name(),
                directory.display()
            ));
        }
        // The last message, since readers of the JSON output stop here.
        match (&outcome.result, &outcome.state) {
            (Ok(()), Some(_)) if self.has_display && self.format == OutputFormat::Text => {}
            (Ok(()), Some(state)) => self.summary(state),
            (Ok(()), None) => {}
            (Err(Failure::Left), state) if outcome.has_handed_over => self.left(state.as_ref()),
            (Err(failure @ Failure::Left), _) => self.stopped(&failure.to_string()),
            (Err(failure), _) => self.failed(&failure.to_string()),
        }
    }

    /// Prints the results of a finished run.
    fn summary(&self, state: &FinalState) {
        let (wall_seconds, traffic) = (self.meter.wall_seconds(), self.meter.counters.read());
        let mut lines: Vec<(PeerId, Line)> = self.meter.counters.lines().into_iter().collect();
        lines.sort_by_key(|(_, line)| line.bytes_per_second);
        let summary = &Summary { state, wall_seconds, traffic, lines };
        match self.format {
            OutputFormat::Json => emit(&self.summary_object(summary)),
            OutputFormat::Text => {
                let plot = plot::curve(self.losses.means(), 60, 8);
                if !plot.is_empty() {
                    self.screen.say(&format!("\ntraining loss\n{plot}"));
                }
                print_line(&fitted(&summary_text(summary, &self.epochs.text(self.samples()))));
                if let Some(BestEvaluation { steps, loss }) = self.best {
                    let is_kept = self.kept == Some(steps);
                    let place = if is_kept {
                        format!(", kept as {BEST_FILE} in the data directory")
                    } else {
                        String::new()
                    };
                    print_line(&format!(
                        "best during the run: loss {loss:.4} after step {}{place}",
                        count(steps.0)
                    ));
                }
            }
        }
    }

    /// Reports that this peer has left on request, after handing over everything; the others continue.
    fn left(&self, state: Option<&FinalState>) {
        match self.format {
            OutputFormat::Text => {
                self.screen.say("left the run; the other members continue without this peer")
            }
            OutputFormat::Json => emit(&json!({
                "event": "left",
                "steps": state.map(|state| state.steps),
                "own_samples": state.map(|state| state.own_samples),
                "digest": state.map(|state| state.digest.to_string()),
            })),
        }
    }

    /// Reports that this peer stops on request without a handover, for `reason`.
    fn stopped(&self, reason: &str) {
        match self.format {
            OutputFormat::Text if self.reported.paused => {
                self.screen.say(&format!(
                    "{reason}; nothing could be handed over, so the other members may wait for this peer"
                ));
            }
            OutputFormat::Text if self.peers == 1 => {
                self.screen.say(&format!(
                    "{reason}; this was the only member: `{} resume` continues the run",
                    command_name()
                ));
            }
            OutputFormat::Text => self.screen.say(reason),
            OutputFormat::Json => self.failed(reason),
        }
    }

    /// Reports that the run ended too early, for `reason`.
    fn failed(&self, reason: &str) {
        match self.format {
            OutputFormat::Text => self.screen.say(&format!("error: {reason}")),
            OutputFormat::Json => emit(&json!({"event": "failed", "reason": reason})),
        }
    }

    /// Samples of an epoch; 0 before the task is prepared.
    fn samples(&self) -> u64 {
        self.scope.map_or(0, |scope| scope.samples)
    }

    fn summary_object(&self, summary: &Summary) -> Value {
        let Summary { state, wall_seconds, traffic, lines } = summary;
        let line = |(peer, line): &(PeerId, Line)| {
            json!({
                "peer": peer.to_string(), "bytes_per_second": line.bytes_per_second,
                "round_trip_seconds": line.round_trip.as_secs_f64(),
            })
        };
        // A loss of no samples is not a number.
        let evaluation = state.evaluation.filter(|evaluation| evaluation.samples > 0);
        json!({
            "event": "summary",
            "peer": self.me.to_string(),
            "steps": state.steps,
            "samples": state.samples,
            "left_out": state.left_out,
            "epochs": self.epochs.objects(self.samples()), "epochs_before": self.epochs.before(),
            "test_accuracy": evaluation.and_then(|evaluation| evaluation.accuracy),
            "best": self.best.map(|best| json!({"steps": best.steps.0, "test_loss": best.loss})),
            "test_loss": evaluation.map(|evaluation| evaluation.loss),
            "digest": state.digest.to_string(),
            "peers": self.peers,
            "wall_seconds": wall_seconds,
            "bytes_sent": traffic.sent_bytes,
            "bytes_sent_directly": traffic.direct_bytes,
            "bytes_received": traffic.received_bytes,
            "lines": lines.iter().map(line).collect::<Vec<Value>>(),
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

    /// Adds the time to the object of an event. For a committed step, adds the bytes sent and the computing time so far.
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
    let Summary { state, wall_seconds, traffic, lines } = summary;
    let result = match state.evaluation {
        Some(Evaluation { samples: 0, .. }) => "not tested, because no samples are held out".to_owned(),
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
    // Without common steps (asynchronous kinds), no peer has seen an epoch.
    let epochs = if epochs.is_empty() { String::new() } else { format!(", {epochs}") };
    format!(
        "{result}\n{} steps, {} samples ({} here){epochs}; {wall_seconds:.1} s; {} sent ({} over direct connections), {} received{}\ndigest {}",
        count(state.steps),
        count(state.samples),
        count(state.own_samples),
        bytes(traffic.sent_bytes),
        bytes(traffic.direct_bytes),
        bytes(traffic.received_bytes),
        lines_text(lines),
        state.digest
    )
}

/// What the slowest lines have carried, with their round trips, as a line of the summary; nothing if no line was measured.
fn lines_text(lines: &[(PeerId, Line)]) -> String {
    let line = |(peer, line): &(PeerId, Line)| {
        let round_trip = few_digits(1000.0 * line.round_trip.as_secs_f64());
        format!("{}/s to {} ({round_trip} ms)", bytes(line.bytes_per_second), peer.short())
    };
    let shown: Vec<String> = lines.iter().take(LINES_SHOWN).map(line).collect();
    let rest = match lines.len() - shown.len() {
        0 => String::new(),
        more => format!(", and more to {}", plural(more, "other")),
    };
    if shown.is_empty() {
        return String::new();
    }
    format!("\nlines carried up to {}{rest}", shown.join(", "))
}

/// How many lines a summary shows; the JSON form has all.
const LINES_SHOWN: usize = 3;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_summary_shows_the_slowest_lines() {
        let line = |byte: u8, megabytes: u64| {
            let round_trip = Duration::from_millis(u64::from(byte));
            (PeerId([byte; 32]), Line::without_losses(round_trip, megabytes * 1_000_000))
        };
        assert_eq!(lines_text(&[]), "");
        let short = |byte: u8| PeerId([byte; 32]).short();
        let lines: Vec<_> = (1..=5).map(|byte| line(byte, 10 * u64::from(byte))).collect();
        assert_eq!(
            lines_text(&lines[..1]),
            format!("\nlines carried up to 10.0 MB/s to {} (1.0 ms)", short(1))
        );
        let end = format!("30.0 MB/s to {} (3.0 ms), and more to 2 others", short(3));
        assert!(lines_text(&lines).ends_with(&end), "{}", lines_text(&lines));
    }
}
