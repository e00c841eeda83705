//! Progress of one peer: a bar on a terminal, a line now and then elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::report::complain;
use crate::io::{Committed, Scope};

/// Where words and bars go: standard error, so that they never break each other.
#[derive(Clone)]
pub(crate) struct Screen {
    bars: MultiProgress,
    is_terminal: bool,
}

impl Screen {
    pub(crate) fn new() -> Self {
        Self { bars: MultiProgress::new(), is_terminal: std::io::stderr().is_terminal() }
    }

    /// Whether there is room for bars.
    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Writes words above the bars.
    pub(crate) fn say(&self, words: &str) {
        if self.is_terminal {
            // A closed terminal is no reason to stop training.
            let _ = self.bars.println(words);
        } else {
            complain(words);
        }
    }
}

/// The progress of one peer.
pub(crate) struct Progress {
    screen: Screen,
    name: String,
    scope: Scope,
    bar: Option<ProgressBar>,
    said_pass: Option<u64>,
    /// The pass and the number of the last step.
    last: Option<(u64, u64)>,
    /// The steps of the whole run, as they are expected now.
    steps: u64,
}

impl Progress {
    pub(crate) fn new(screen: &Screen, name: String, scope: Scope) -> Self {
        let bar = screen.is_terminal.then(|| {
            let bar = screen.bars.add(ProgressBar::new(scope.steps));
            let template = "{prefix} {bar:30} step {pos}/{len}  {msg}  {per_sec}, {eta} left";
            bar.set_style(
                ProgressStyle::with_template(template).expect("a fixed template").progress_chars("=> "),
            );
            bar.set_prefix(name.clone());
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        let steps = scope.steps;
        Self { screen: screen.clone(), name, scope, bar, said_pass: None, last: None, steps }
    }

    pub(crate) fn committed(&mut self, committed: &Committed) {
        let Committed { step, pass, loss, .. } = committed;
        // After a gap a pass is first seen in its middle.
        if self.last.is_some_and(|(before, last)| before < *pass && last + 1 == step.0) {
            self.steps = expected_steps(&self.scope, *pass, step.0);
        }
        self.last = Some((*pass, step.0));
        self.steps = self.steps.max(step.0 + 1);
        if let Some(bar) = &self.bar {
            bar.set_length(self.steps);
            bar.set_position(step.0 + 1);
            bar.set_message(format!("pass {}/{}  loss {loss:.4}", pass + 1, self.scope.passes));
            return;
        }
        let is_new = self.said_pass.is_none_or(|said| *pass >= said + self.scope.passes.div_ceil(LINES_MAX));
        if is_new {
            self.said_pass = Some(*pass);
            let (name, scope) = (&self.name, &self.scope);
            complain(&format!(
                "{name} pass {}/{}, step {}/{}, loss {loss:.4}",
                pass + 1,
                scope.passes,
                step.0 + 1,
                self.steps
            ));
        }
    }

    /// Takes the bar away.
    pub(crate) fn close(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
            self.screen.bars.remove(bar);
        }
    }
}

/// Steps of the whole run, when a pass begins with this step. What was given back when members were lost took further
/// steps in the passes before; those to come are expected to take as many as there are batches.
fn expected_steps(scope: &Scope, pass: u64, step: u64) -> u64 {
    step + scope.passes.saturating_sub(pass) * (scope.steps / scope.passes.max(1))
}

/// Lines of progress where there is no terminal.
const LINES_MAX: u64 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_moves_with_what_was_given_back() {
        let scope = Scope { parameters: 10, samples: 100, steps: 80, passes: 8 };
        assert_eq!(expected_steps(&scope, 3, 30), 80, "as many as there are batches");
        assert_eq!(expected_steps(&scope, 3, 32), 82, "two steps were taken again in parts");
        assert_eq!(expected_steps(&scope, 7, 75), 85);
    }
}
