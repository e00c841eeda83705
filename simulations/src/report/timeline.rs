//! The timeline: one horizontal axis of time, virtual or real, shared by several panels, so that an event in one panel can be found in the
//! next.
//!
//! Partitions are drawn behind all of them: a label and a bar above the lanes, a tint and dashed edges in every panel.

use std::collections::BTreeMap;

use peergrad_protocol::Instant;

use super::axis;
use super::svg::{Area, Drawing, HUES, LEFT, RIGHT, outline, thinned};
use crate::history::{CutInterval, History, PeerState, branch_letter};

/// A history, and the positions of its times on the page.
pub(super) struct Timeline<'a> {
    /// The history to draw.
    pub(super) history: &'a History,
    /// The time at the right end, in nanoseconds.
    pub(super) extent: u64,
    stripes: Vec<Stripe>,
}

/// A time during which the network was partitioned, on the page.
struct Stripe {
    left: f64,
    right: f64,
    label: String,
    words: String,
    /// The line of its label; `None` if there is no room for the label.
    row: Option<usize>,
}

impl<'a> Timeline<'a> {
    /// The timeline of a whole run.
    pub(super) fn new(history: &'a History) -> Self {
        let mut timeline = Self { history, extent: extent(history), stripes: Vec::new() };
        timeline.stripes = thinned(STRIPES_MAX, |grain| timeline.stripes_at(grain));
        place_labels(&mut timeline.stripes);
        timeline
    }

    /// The position of an instant, in pixels.
    pub(super) fn x(&self, at: Instant) -> f64 {
        LEFT + (RIGHT - LEFT) * (at.0.min(self.extent) as f64 / self.extent as f64)
    }

    /// The instant at a position, in nanoseconds.
    pub(super) fn nanos_at(&self, x: f64) -> u64 {
        ((x - LEFT) / (RIGHT - LEFT) * self.extent as f64).max(0.0) as u64
    }

    /// The partitions as stripes that are at least `grain` pixels apart.
    fn stripes_at(&self, grain: f64) -> Vec<Stripe> {
        let mut cells: BTreeMap<(i64, i64), Vec<&CutInterval>> = BTreeMap::new();
        for band in &self.history.cuts {
            let cell = |at| ((self.x(at) - LEFT) / grain).round() as i64;
            cells.entry((cell(band.from), cell(band.until).max(cell(band.from)))).or_default().push(band);
        }
        let stripe = |((from, until), bands): ((i64, i64), Vec<&CutInterval>)| {
            let (left, first) = (LEFT + from as f64 * grain, bands[0]);
            let label = match bands.len() {
                1 => first.label.clone(),
                more => format!("{} and {} more", first.label, more - 1),
            };
            let times = times(first.from.0, first.until.0.min(self.extent));
            let right = (LEFT + until as f64 * grain).max(left + 1.5).min(RIGHT);
            Stripe { left, right, words: format!("{label}\n{times}"), label, row: None }
        };
        cells.into_iter().map(stripe).collect()
    }

    /// The labels of the partitions, from `top` down; returns where they end.
    pub(super) fn headings(&self, drawing: &mut Drawing, top: f64) -> f64 {
        let rows = self.stripes.iter().filter_map(|stripe| stripe.row).max().map_or(0, |last| last + 1);
        let bottom = top + rows as f64 * HEADING;
        for stripe in &self.stripes {
            let bar = top + (stripe.row.unwrap_or(rows.saturating_sub(1)) + 1) as f64 * HEADING - 4.0;
            let area = Area { x: stripe.left, y: bar, width: stripe.right - stripe.left, height: 3.0 };
            drawing.rect("band-bar", area, &stripe.words);
            if stripe.row.is_some() {
                drawing.text("band-label", label_left(stripe), bar - 4.0, &stripe.label);
            }
        }
        bottom
    }

    /// The background of a panel: the partitions' tint and a faint line at each tick.
    pub(super) fn backdrop(&self, drawing: &mut Drawing, top: f64, bottom: f64) {
        let areas = self.stripes.iter().map(|stripe| Area {
            x: stripe.left,
            y: top,
            width: stripe.right - stripe.left,
            height: bottom - top,
        });
        // One path for all, so that the tint is not darker where partitions overlap.
        drawing.path("band", &areas.clone().map(outline).collect::<String>(), "");
        for (area, stripe) in
            areas.zip(&self.stripes).filter(|_| self.stripes.len() <= STRIPES_WITH_WORDS_MAX)
        {
            drawing.rect("hit", area, &stripe.words);
        }
        for (at, _) in axis::time_ticks(self.extent) {
            let x = self.x(Instant(at));
            drawing.line("grid", (x, top), (x, bottom));
        }
    }

    /// The edges of the partitions, in front of a panel's content; and the line that follows the pointer.
    pub(super) fn foreground(&self, drawing: &mut Drawing, top: f64, bottom: f64) {
        for stripe in &self.stripes {
            drawing.line("band-edge", (stripe.left, top), (stripe.left, bottom));
            if stripe.right - stripe.left > 3.0 {
                drawing.line("band-edge", (stripe.right, top), (stripe.right, bottom));
            }
        }
        drawing.line("hair", (LEFT, top), (LEFT, bottom));
    }

    /// The axis below a panel; returns where it ends.
    pub(super) fn axis(&self, drawing: &mut Drawing, y: f64) -> f64 {
        drawing.line("axis", (LEFT, y), (RIGHT, y));
        for (at, label) in axis::time_ticks(self.extent) {
            let x = self.x(Instant(at));
            drawing.line("axis", (x, y), (x, y + 4.0));
            drawing.text("tick mid", x, y + 16.0, &label);
        }
        y + 20.0
    }

    /// The attributes of an aligned drawing for the script that shows the time at the pointer.
    pub(super) fn attributes(&self) -> String {
        format!(" class=\"time\" data-left=\"{LEFT}\" data-right=\"{RIGHT}\" data-extent=\"{}\"", self.extent)
    }

    /// The kind of time: virtual or real.
    pub(super) fn time(&self) -> &'static str {
        if self.history.is_real { "time" } else { "virtual time" }
    }

    /// The name of a view: its number, after its branch's letter if there are several branches.
    pub(super) fn view_name(&self, index: usize) -> String {
        let Some(note) = self.history.views.get(index) else { return "?".to_owned() };
        let view_number = note.view.number.0;
        if self.branch_count() > 1 {
            format!("{}{view_number}", branch_letter(note.branch_index))
        } else {
            view_number.to_string()
        }
    }

    /// The branch of the view with this index.
    pub(super) fn branch_index(&self, view: usize) -> usize {
        self.history.views.get(view).map_or(0, |note| note.branch_index)
    }

    /// How many branches there were.
    pub(super) fn branch_count(&self) -> usize {
        self.history.views.iter().map(|note| note.branch_index + 1).max().unwrap_or(0)
    }

    /// When the last peer left the views of this branch; the end of the run if members remained.
    pub(super) fn branch_end_time(&self, branch_index: usize) -> Instant {
        let spans = self.history.peers.iter().flat_map(|lane| &lane.spans);
        let ends = spans.filter_map(|span| match span.state {
            PeerState::Member(view) if self.branch_index(view) == branch_index => Some(span.until),
            _ => None,
        });
        ends.max().unwrap_or(Instant(self.extent))
    }
}

/// The class that colours what belongs to a view: the hue depends on the branch, the lightness alternates. With many branches hues repeat,
/// and the letters tell them apart.
pub(super) fn tone(branch_index: usize, view_number: u64) -> String {
    format!("{}{}", if view_number % 2 == 1 { 'a' } else { 'b' }, branch_index % HUES)
}

/// "1.2 s to 3.4 s".
pub(super) fn times(from: u64, until: u64) -> String {
    format!("{} to {}", axis::duration(from), axis::duration(until))
}

/// The latest time in a history; a second if nothing happened.
fn extent(history: &History) -> u64 {
    let spans = history.peers.iter().flat_map(|lane| lane.spans.iter().map(|span| span.from.max(span.until)));
    let notes = history.peers.iter().flat_map(|lane| lane.notes.iter().map(|note| note.0));
    let views = history.views.iter().map(|view| view.at);
    let commits = history.commits.iter().map(|commit| commit.at);
    let others = [history.end].into_iter().chain(history.redone.iter().map(|redone| redone.0));
    let latest = spans.chain(notes).chain(views).chain(commits).chain(others).max();
    latest.map_or(0, |at| at.0).clamp(0, TIME_MAX).max(if latest > Some(Instant(0)) {
        1
    } else {
        1_000_000_000
    })
}

/// Gives each label the first line in which it hides no other; some labels get none.
fn place_labels(stripes: &mut [Stripe]) {
    let mut free_from = [f64::MIN; HEADINGS_MAX];
    for stripe in stripes {
        let left = label_left(stripe);
        stripe.row = free_from.iter().position(|free| *free <= left.min(stripe.left));
        if let Some(row) = stripe.row {
            free_from[row] = stripe.right.max(left + label_width(stripe)) + 8.0;
        }
    }
}

fn label_left(stripe: &Stripe) -> f64 {
    stripe.left.min(RIGHT - label_width(stripe)).max(LEFT)
}

fn label_width(stripe: &Stripe) -> f64 {
    stripe.label.chars().count() as f64 * 6.0
}

const HEADING: f64 = 18.0;
const HEADINGS_MAX: usize = 3;
const STRIPES_MAX: usize = 240;
const STRIPES_WITH_WORDS_MAX: usize = 40;
/// Later than any run, and small enough to add up without overflow.
const TIME_MAX: u64 = u64::MAX / 4;
