//! The progress of one peer: on a terminal a line that is redrawn in place, elsewhere a new line now and then.
//!
//! ```text
//! MycGAr ━━━━━━━━━━━━━────────   step 12,345 of 53,760   epoch 24 of 100   loss 0.0213   182 steps/s   3 min 48 s to go
//! MycGAr  step 12,345 of 53,760  loss 0.0213  182 steps/s  3 min 48 s to go
//! ```
//! The wording is that of `peer status`. A narrow terminal omits parts, the bar first; step, loss and remaining time always stay.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use console::{Style, Term, measure_text_width, truncate_str};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use peergrad_core::io::{Committed, RunSize};
use peergrad_net::MonotonicClock;
use peergrad_protocol::Instant;

use crate::terminal::complain;
use crate::text::quantities::{PAUSED, loss_text, speed_text, time_to_go};
use crate::text::wrapping::wrapped_as_is;
use peergrad_embed::status::rate_meter::RateMeter;
use peergrad_embed::text::printable::printable;
use peergrad_embed::text::text_table::count;

/// Standard error, where messages and progress bars share the terminal without overwriting each other.
#[derive(Clone)]
pub(crate) struct Screen {
    bars: MultiProgress,
    is_terminal: bool,
}

impl Screen {
    pub(crate) fn new() -> Self {
        Self { bars: MultiProgress::new(), is_terminal: std::io::stderr().is_terminal() }
    }

    /// Whether progress bars are drawn.
    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Writes a message above the bars, wrapped to the width of the terminal.
    pub(crate) fn say(&self, text: &str) {
        if self.is_terminal {
            // Training continues after the terminal is closed.
            let _ = self.bars.println(wrapped_as_is(&printable(text), width()));
        } else {
            complain(text);
        }
    }
}

/// Text of several lines below the messages, which changes in place.
pub(crate) struct LiveText {
    screen: Screen,
    bar: ProgressBar,
}

impl Screen {
    /// Begins such a text.
    pub(crate) fn live_text(&self) -> LiveText {
        let bar = self.bars.add(ProgressBar::no_length());
        bar.set_style(ProgressStyle::with_template("{msg}").expect("a fixed template"));
        LiveText { screen: self.clone(), bar }
    }
}

impl LiveText {
    /// Shows a text in place of the one before. Lines are cut at the width of the terminal.
    pub(crate) fn set(&self, text: &str) {
        let width = width();
        let lines = printable(text);
        let lines: Vec<_> = lines.lines().map(|line| truncate_str(line, width, "…")).collect();
        self.bar.set_message(lines.join("\n"));
        self.bar.tick();
    }

    /// Removes the text.
    pub(crate) fn close(&self) {
        self.bar.finish_and_clear();
        self.screen.bars.remove(&self.bar);
    }
}

/// Wraps a result for standard output to the width of the terminal; unchanged if standard output is none.
pub(crate) fn fitted(text: &str) -> String {
    if std::io::stdout().is_terminal() {
        wrapped_as_is(text, columns(&Term::stdout()))
    } else {
        text.to_owned()
    }
}

/// The progress of one peer.
pub(crate) struct Progress {
    screen: Screen,
    /// `None` where standard error is no terminal.
    bar: Option<ProgressBar>,
    /// The epoch of the last printed line, where there is no bar; `None` before the first.
    said_epoch: Option<u64>,
    clock: MonotonicClock,
    /// Shared with the thread that redraws the bar.
    progress: Arc<Mutex<TrainingProgress>>,
}

/// What the line shows.
struct TrainingProgress {
    name: String,
    scope: RunSize,
    /// The newest committed step; `None` before the first.
    last: Option<Committed>,
    rate: RateMeter,
    is_paused: bool,
}

impl Progress {
    pub(crate) fn new(screen: &Screen, name: String, scope: RunSize, clock: MonotonicClock) -> Self {
        let progress =
            TrainingProgress { name, scope, last: None, rate: RateMeter::default(), is_paused: false };
        let progress = Arc::new(Mutex::new(progress));
        let bar = screen.is_terminal.then(|| {
            let shown = Arc::clone(&progress);
            let line = move |_: &_, out: &mut dyn std::fmt::Write| {
                // A failure to draw must not stop training.
                let _ = out.write_str(&held(&shown).line(clock.now(), width()));
            };
            let style = ProgressStyle::with_template("{line}").expect("a fixed template");
            let bar = screen.bars.add(ProgressBar::no_length());
            bar.set_style(style.with_key("line", line));
            bar.enable_steady_tick(REDRAWN);
            bar
        });
        Self { screen: screen.clone(), bar, said_epoch: None, clock, progress }
    }

    pub(crate) fn committed(&mut self, committed: &Committed) {
        let mut progress = held(&self.progress);
        progress.committed(self.clock.now(), committed);
        let TrainingProgress { name, scope, .. } = &*progress;
        let Committed { step, epoch, loss, steps_expected, .. } = committed;
        let is_new = self.said_epoch.is_none_or(|said| *epoch >= said + scope.epochs.div_ceil(LINES_MAX));
        if self.bar.is_none() && is_new {
            self.said_epoch = Some(*epoch);
            complain(&format!(
                "{name} epoch {}/{}, step {}/{steps_expected}, loss {loss:.4}",
                epoch + 1,
                scope.epochs,
                step.0 + 1,
            ));
        }
    }

    /// Shows that this peer waits for others; the next committed step ends the pause.
    pub(crate) fn pause(&self) {
        held(&self.progress).is_paused = true;
    }

    /// Removes the bar.
    pub(crate) fn close(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
            self.screen.bars.remove(bar);
        }
    }
}

impl TrainingProgress {
    fn committed(&mut self, now: Instant, committed: &Committed) {
        self.rate.note(now);
        self.last = Some(*committed);
        self.is_paused = false;
    }

    /// The line at `now`, at most `width` columns wide.
    fn line(&self, now: Instant, width: usize) -> String {
        let (steps, expected) = self
            .last
            .map_or((0, self.scope.steps), |committed| (committed.step.0 + 1, committed.steps_expected));
        let words_without = |dropped| self.words(now, (steps, expected), dropped);
        let dropped = (0..DROPS).find(|dropped| joined_width(&words_without(*dropped)) <= width);
        let line = words_without(dropped.unwrap_or(DROPS));
        let beside = joined_width(&line) + if line.0.is_empty() { 2 } else { 1 };
        let (room, (name, words)) = (width.saturating_sub(beside), line);
        if room < BAR_CELLS_MIN {
            let gap = if name.is_empty() { "" } else { "  " };
            return truncate_str(&format!("{name}{gap}{words}"), width, "…").into_owned();
        }
        let cells = room.min(BAR_CELLS);
        let filled = ((steps as f64 / expected.max(1) as f64 * cells as f64) as usize).min(cells);
        let done = Style::new().for_stderr().green().apply_to("━".repeat(filled));
        let left = Style::new().for_stderr().dim().apply_to("─".repeat(cells - filled));
        let gap = if name.is_empty() { "" } else { " " };
        format!("{name}{gap}{done}{left}  {words}")
    }

    /// The name, and the text beside it, without the `dropped` least important parts.
    fn words(&self, now: Instant, (steps, expected): (u64, u64), dropped: usize) -> (String, String) {
        let speed = self.rate.per_second(now);
        let epoch = self.last.map_or(0, |committed| committed.epoch) + 1;
        let of = if dropped < 4 { format!(" of {}", count(expected)) } else { String::new() };
        let loss = self
            .last
            .map_or_else(|| "no loss yet".to_owned(), |last| format!("loss {}", loss_text(last.loss)));
        let mut parts = vec![format!("step {}{of}", count(steps))];
        parts
            .extend((dropped < 1).then(|| format!("epoch {} of {}", count(epoch), count(self.scope.epochs))));
        parts.push(loss);
        match self.is_paused {
            true => parts.push(PAUSED.to_owned()),
            false => {
                parts.extend((dropped < 2).then(|| speed_text(speed)));
                parts.extend(time_to_go(expected.saturating_sub(steps), speed));
            }
        }
        let name = if dropped < 3 { self.name.clone() } else { String::new() };
        (name, parts.join(if dropped < 1 { "   " } else { "  " }))
    }
}

fn joined_width((name, words): &(String, String)) -> usize {
    let name = measure_text_width(name);
    name + if name > 0 { 2 } else { 0 } + measure_text_width(words)
}

/// Locks the progress; a panic elsewhere cannot leave it half-changed.
fn held(progress: &Mutex<TrainingProgress>) -> MutexGuard<'_, TrainingProgress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Columns of standard error's terminal.
fn width() -> usize {
    columns(&Term::stderr())
}

fn columns(terminal: &Term) -> usize {
    match terminal.size_checked() {
        Some((_, columns)) if columns > 0 => usize::from(columns),
        _ => WIDTH_ELSEWHERE,
    }
}

/// About how many progress lines a run prints where there is no terminal.
const LINES_MAX: u64 = 20;
const REDRAWN: Duration = Duration::from_millis(200);
const BAR_CELLS: usize = 30;
/// A shorter bar is omitted.
const BAR_CELLS_MIN: usize = 8;
/// How many parts can be omitted, in this order: the epoch, the speed, the name, the total number of steps.
const DROPS: usize = 4;
const WIDTH_ELSEWHERE: usize = 80;

#[cfg(test)]
mod tests {
    use peergrad_protocol::StepNumber;

    use super::*;

    fn at(milliseconds: u64) -> Instant {
        Instant(0).after(Duration::from_millis(milliseconds))
    }

    /// Ten seconds of training at a hundred steps a second, up to step `until`.
    fn progress(until: u64) -> TrainingProgress {
        let scope = RunSize {
            parameters: 10,
            owned: 10,
            samples: 1440,
            steps: 36_000,
            epochs: 400,
            flops_per_sample: None,
            tokens_per_sample: None,
        };
        let mut progress = TrainingProgress {
            name: "MycGAr".to_owned(),
            scope,
            last: None,
            rate: RateMeter::default(),
            is_paused: false,
        };
        for index in 0..1000 {
            let step = StepNumber(until - 1000 + index);
            progress.committed(
                at(10 * index),
                &Committed {
                    step,
                    epoch: 24,
                    steps_expected: 36_002,
                    loss: 0.021_34,
                    samples: 16,
                    left_out: 0,
                    may_be_late: false,
                    is_own: false,
                    rate: 0.1,
                    digest: None,
                },
            );
        }
        progress
    }

    #[test]
    fn the_line_fits_and_keeps_step_loss_and_time_to_go() {
        console::set_colors_enabled_stderr(false);
        let progress = progress(12_345);
        let line = |width| progress.line(at(10_000), width);
        assert_eq!(
            line(130),
            "MycGAr ━━━━━━━━━━────────────────────  step 12,345 of 36,002   epoch 25 of 400   loss 0.0213   100 steps/s   3 min 57 s to go"
        );
        assert_eq!(line(80), "MycGAr  step 12,345 of 36,002  loss 0.0213  100 steps/s  3 min 57 s to go");
        for width in 44..140 {
            let line = line(width);
            assert!(measure_text_width(&line) <= width, "{width}: {line}");
            for part in ["step 12,345", "loss 0.0213", "3 min 57 s to go"] {
                assert!(line.contains(part), "{width}: {line}");
            }
        }
        assert!(measure_text_width(&line(20)) <= 20);
    }

    #[test]
    fn skipped_steps_do_not_count_as_speed() {
        // The peer joins when the others are far ahead.
        let mut progress = progress(30_000);
        assert!(
            progress.line(at(10_000), 200).contains("  100 steps/s   1 min to go"),
            "{}",
            progress.line(at(10_000), 200)
        );
        progress.is_paused = true;
        let still = progress.line(at(11_000), 200);
        assert!(still.ends_with("loss 0.0213   paused"), "{still}");
    }

    #[test]
    fn a_line_is_shown_before_the_first_step() {
        console::set_colors_enabled_stderr(false);
        let progress = TrainingProgress { last: None, rate: RateMeter::default(), ..progress(2000) };
        assert!(
            progress.line(at(0), 80).ends_with("step 0 of 36,000   epoch 1 of 400   no loss yet   0 steps/s"),
            "{}",
            progress.line(at(0), 80)
        );
    }
}
