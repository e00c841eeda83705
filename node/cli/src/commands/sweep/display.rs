//! The display of a sweep: a live table where there is a terminal, else a line for each result; or JSON.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context;

use super::monitor::{KnownSweep, SweepMonitor};
use super::table;
use crate::commands::progress::{LiveText, Screen};
use crate::terminal::{OutputFormat, emit, print_line};

/// Shows what a monitor learns, on a thread of its own: the reader of the output may be slow.
pub(in crate::commands) struct SweepDisplay {
    monitor: Arc<SweepMonitor>,
    format: OutputFormat,
    thread: JoinHandle<()>,
}

impl SweepDisplay {
    pub(in crate::commands) fn start(
        monitor: Arc<SweepMonitor>,
        screen: Screen,
        format: OutputFormat,
    ) -> anyhow::Result<Self> {
        let watched = Arc::clone(&monitor);
        let show = move || Shown::new(screen, format).follow(&watched);
        let thread = std::thread::Builder::new().name("sweep".to_owned()).spawn(show);
        Ok(Self { monitor, format, thread: thread.context("cannot show the sweep")? })
    }

    /// Shows what is left to show, and the result of a sweep that has ended.
    pub(in crate::commands) fn finish(self, has_ended: bool) {
        self.monitor.close();
        // A panic there is reported by its thread.
        let _ = self.thread.join();
        let known = self.monitor.conclusion().filter(|_| has_ended);
        let Some(KnownSweep { specification, snapshot }) = known else { return };
        match self.format {
            OutputFormat::Json => emit(&table::sweep_object(&specification, &snapshot)),
            OutputFormat::Text => print_line(table::result_text(&specification, &snapshot).trim_end()),
        }
    }
}

/// What is on the screen.
struct Shown {
    screen: Screen,
    format: OutputFormat,
    /// The live table; `None` without a terminal, and before the first result.
    live: Option<LiveText>,
    /// The jobs whose results were shown.
    results: BTreeSet<usize>,
}

impl Shown {
    fn new(screen: Screen, format: OutputFormat) -> Self {
        Self { screen, format, live: None, results: BTreeSet::new() }
    }

    fn follow(mut self, monitor: &SweepMonitor) {
        let mut seen = 0;
        while let Some((version, known)) = monitor.wait(seen) {
            seen = version;
            self.show(&known);
        }
        if let Some(live) = &self.live {
            live.close();
        }
    }

    fn show(&mut self, KnownSweep { specification, snapshot }: &KnownSweep) {
        let new: Vec<_> = snapshot.done().filter(|(number, ..)| self.results.insert(*number)).collect();
        if self.format == OutputFormat::Text && self.screen.is_terminal() {
            let live = self.live.get_or_insert_with(|| self.screen.live_text());
            return live.set(&table::live_text(specification, snapshot));
        }
        for (number, job, result) in new {
            match self.format {
                OutputFormat::Json => {
                    let is_own = snapshot.own_jobs.contains(&number);
                    emit(&table::trial_object(specification, job, &result, is_own));
                }
                OutputFormat::Text => self.screen.say(&table::trial_text(specification, job, &result)),
            }
        }
    }
}
