//! The strip under the lanes: a tick for each committed step, in one line for each branch, and below, in a warning colour, the steps that
//! were started again. Where ticks would run together, columns show their number.

use std::collections::BTreeMap;

use super::axis;
use super::svg::{Area, Drawing, LEFT, RIGHT, outline};
use super::timeline::{Timeline, times, tone};
use crate::history::{CommitNote, branch_letter};

/// The position of the strip.
pub(super) struct Steps {
    top: f64,
    lines: usize,
    has_redone: bool,
}

/// Steps committed at about one time.
struct Column {
    count: u64,
    first: u64,
    last: u64,
    branch_index: usize,
}

impl Steps {
    /// A strip that begins at `top`.
    pub(super) fn new(timeline: &Timeline<'_>, top: f64) -> Self {
        let lines = timeline.branch_count().clamp(1, LINES_MAX);
        Self { top, lines, has_redone: !timeline.history.redone.is_empty() }
    }

    /// Where it ends.
    pub(super) fn bottom(&self) -> f64 {
        self.top + (self.lines + usize::from(self.has_redone)) as f64 * LINE + 6.0
    }

    /// The line of a branch; branches without a line share the last one.
    fn line(&self, branch_index: usize) -> usize {
        branch_index.min(self.lines - 1)
    }

    /// Draws the strip.
    pub(super) fn draw(&self, timeline: &Timeline<'_>, drawing: &mut Drawing) {
        drawing.line("rule", (LEFT, self.top - 3.0), (RIGHT, self.top - 3.0));
        for line in 0..self.lines {
            let name = match self.lines {
                1 => "steps".to_owned(),
                lines if line + 1 == lines && timeline.branch_count() > lines => "others".to_owned(),
                _ => format!("steps {}", branch_letter(line)),
            };
            drawing.text("tick end", LEFT - 12.0, self.top + (line as f64 + 0.75) * LINE, &name);
            self.committed(timeline, drawing, line);
        }
        if self.has_redone {
            let y = self.top + (self.lines as f64 + 0.75) * LINE;
            drawing.text("tick end warn", LEFT - 12.0, y, "redone");
            self.redone(timeline, drawing);
        }
        if let Some(began) = timeline.history.began {
            let (x, y) = (timeline.x(began), self.bottom());
            let words = format!("training began at {}", axis::duration(began.0));
            drawing.path("began", &format!("M{x:.1} {:.1}l-4 7h8z", y - 7.0), &words);
        }
    }

    /// One line of committed steps: ticks if they are far enough apart, else columns.
    fn committed(&self, timeline: &Timeline<'_>, drawing: &mut Drawing, line: usize) {
        let commits = timeline.history.commits.iter();
        let commits: Vec<&CommitNote> =
            commits.filter(|note| self.line(timeline.branch_index(note.view)) == line).collect();
        let are_apart = commits.len() <= TICKS_MAX && commits.iter().all(|note| note.count == 1);
        let (grain, width) = if are_apart { (1.0, 1.2) } else { (COLUMN, COLUMN - 0.5) };
        let bottom = self.top + (line + 1) as f64 * LINE - 2.0;
        let columns = columns(timeline, &commits, grain);
        let most = columns.values().map(|column| column.count).max().unwrap_or(1);
        let mut paths: BTreeMap<String, String> = BTreeMap::new();
        for (index, column) in &columns {
            let part = if are_apart { 1.0 } else { column.count as f64 / most as f64 };
            let height = (LINE - 4.0) * part;
            let area = Area { x: LEFT + f64::from(*index) * grain, y: bottom - height, width, height };
            paths.entry(tone(column.branch_index, 1)).or_default().push_str(&outline(area));
        }
        for (class, d) in paths {
            drawing.path(&class, &d, "");
        }
        for (index, column) in self::columns(timeline, &commits, CELL) {
            let x = LEFT + f64::from(index) * CELL;
            let area = Area { x, y: bottom - LINE + 2.0, width: CELL, height: LINE };
            let span = times(timeline.nanos_at(x), timeline.nanos_at((x + CELL).min(RIGHT)));
            let Column { count, first, last, .. } = column;
            let which =
                if first == last { format!("step {first}") } else { format!("steps {first} to {last}") };
            drawing.rect("hit", area, &format!("{which}: {count} committed\n{span}"));
        }
    }

    /// The line of steps that were started again.
    fn redone(&self, timeline: &Timeline<'_>, drawing: &mut Drawing) {
        let mut cells: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        for (at, step) in &timeline.history.redone {
            cells.entry(((timeline.x(*at) - LEFT) / REDONE) as u32).or_default().push((at.0, *step));
        }
        let y = self.bottom() - LINE - 3.0;
        for (index, steps) in cells {
            let x = LEFT + f64::from(index) * REDONE;
            let (at, step) = steps[0];
            let mut words = format!("step {step} restarted at {}", axis::duration(at));
            if steps.len() > 1 {
                words.push_str(&format!("\nand {} more", steps.len() - 1));
            }
            drawing.path("redone", &format!("M{x:.1} {y:.1}l4 9h-8z"), &words);
        }
    }
}

/// Committed steps by position, in columns of `grain` pixels.
fn columns(timeline: &Timeline<'_>, commits: &[&CommitNote], grain: f64) -> BTreeMap<u32, Column> {
    let mut columns: BTreeMap<u32, Column> = BTreeMap::new();
    for note in commits {
        let (step, branch_index) = (note.committed.step.0, timeline.branch_index(note.view));
        let place = ((timeline.x(note.at) - LEFT) / grain) as u32;
        let first = step.saturating_sub(note.count - 1);
        let column = columns.entry(place).or_insert(Column { count: 0, first, last: step, branch_index });
        column.count += note.count;
        column.first = column.first.min(first);
        column.last = column.last.max(step);
    }
    columns
}

/// Height of a line.
const LINE: f64 = 16.0;
/// Most lines: with more branches, the last line is shared.
const LINES_MAX: usize = 5;
/// Most ticks that can be told apart.
const TICKS_MAX: usize = 350;
const COLUMN: f64 = 3.0;
const CELL: f64 = 8.0;
const REDONE: f64 = 4.0;
