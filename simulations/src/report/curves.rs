//! Loss against time and against bytes: every committed step as a faint line, with the mean of its neighbours above it.
//!
//! The second chart is the fairer comparison of two algorithms: time depends on the network, bytes on the algorithm.

use std::collections::BTreeMap;

use super::axis::{self, AxisScale};
use super::svg::{Drawing, LEFT, Px, RIGHT, stroke};
use super::timeline::Timeline;
use crate::history::{CommitNote, branch_letter};

/// A committed step on the page, before its height is known.
#[derive(Clone, Copy)]
struct Point {
    x: f64,
    loss: f64,
}

/// The two charts.
pub(super) fn panel(timeline: &Timeline<'_>) -> String {
    let commits = &timeline.history.commits;
    let losses: Vec<f64> =
        commits.iter().map(|note| note.committed.loss).filter(|loss| loss.is_finite()).collect();
    if losses.is_empty() {
        let why =
            if commits.is_empty() { "No step was committed" } else { "No committed step had a finite loss" };
        return format!("<p class=\"empty\">{why}: there is nothing to draw.</p>\n");
    }
    let (low, high) = losses.iter().fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(*x), high.max(*x)));
    // Losses that are zero or almost zero are drawn at the lower end.
    let low = if low >= 0.0 { low.max(high * FACTOR_MAX) } else { low };
    let values = AxisScale::of_losses(low, high, 4);
    // A step without samples, such as one that merges, has no loss.
    let is_lossless = |note: &&CommitNote| note.committed.samples > 0 && !note.committed.loss.is_finite();
    let left_out = match commits.iter().filter(is_lossless).count() {
        0 => String::new(),
        count => {
            format!("<p class=\"more\">{count} committed steps had no finite loss; they are left out.</p>\n")
        }
    };
    format!("{}{}{left_out}", over_time(timeline, &values), over_bytes(timeline, &values))
}

fn over_time(timeline: &Timeline<'_>, values: &AxisScale) -> String {
    let mut drawing = Drawing::default();
    let (top, bottom) = (22.0, 22.0 + HEIGHT);
    let scale = if values.is_logarithmic { " (loss on a logarithmic scale)" } else { "" };
    drawing.text("small-head", LEFT, 14.0, &format!("against {}{scale}", timeline.time()));
    line_names(timeline, &mut drawing);
    timeline.backdrop(&mut drawing, top, bottom);
    levels(&mut drawing, values, (top, bottom));
    curves(timeline, &mut drawing, values, (top, bottom), |note| timeline.x(note.at));
    timeline.foreground(&mut drawing, top, bottom);
    let height = timeline.axis(&mut drawing, bottom);
    drawing.finish(height, &timeline.attributes(), &format!("Loss over {}", timeline.time()))
}

fn over_bytes(timeline: &Timeline<'_>, values: &AxisScale) -> String {
    let mut drawing = Drawing::default();
    let (top, bottom) = (22.0, 22.0 + HEIGHT * 0.8);
    let most = timeline.history.commits.iter().map(|note| note.bytes).max().unwrap_or(0).max(1) as f64;
    let x = |bytes: f64| LEFT + (RIGHT - LEFT) * bytes / most;
    drawing.text("small-head", LEFT, 14.0, "against bytes sent, by all peers together");
    levels(&mut drawing, values, (top, bottom));
    let sent = AxisScale::bytes(most, 10, "");
    for (value, label) in sent.ticks.iter().filter(|tick| tick.0 <= most) {
        let x = x(*value);
        drawing.line("grid", (x, top), (x, bottom));
        drawing.line("axis", (x, bottom), (x, bottom + 4.0));
        drawing.text("tick mid", x, bottom + 16.0, label);
    }
    curves(timeline, &mut drawing, values, (top, bottom), |note| x(note.bytes as f64));
    drawing.line("axis", (LEFT, bottom), (RIGHT, bottom));
    drawing.finish(bottom + 20.0, "", "Loss over bytes sent")
}

/// Which colour belongs to which branch, if there are several.
fn line_names(timeline: &Timeline<'_>, drawing: &mut Drawing) {
    let mut x = LEFT + 350.0;
    let branches = timeline.branch_count();
    for branch_index in (0..branches.min(LINES_NAMED_MAX)).filter(|_| branches > 1) {
        drawing.line(&format!("curve {}", stroke(branch_index)), (x, 10.0), (x + 16.0, 10.0));
        drawing.text("tick", x + 21.0, 14.0, &format!("part {}", branch_letter(branch_index)));
        x += 90.0;
    }
}

/// Horizontal lines at round losses.
fn levels(drawing: &mut Drawing, values: &AxisScale, (top, bottom): (f64, f64)) {
    for (value, label) in &values.ticks {
        let y = bottom - (bottom - top) * values.part(*value);
        drawing.line("grid", (LEFT, y), (RIGHT, y));
        drawing.text("tick end", LEFT - 8.0, y + 4.0, label);
    }
}

/// One raw and one smooth line for each branch.
fn curves(
    timeline: &Timeline<'_>,
    drawing: &mut Drawing,
    values: &AxisScale,
    (top, bottom): (f64, f64),
    x: impl Fn(&CommitNote) -> f64,
) {
    let mut lines: BTreeMap<usize, Vec<Point>> = BTreeMap::new();
    for note in timeline.history.commits.iter().filter(|note| note.committed.loss.is_finite()) {
        let point = Point { x: x(note), loss: note.committed.loss };
        lines.entry(timeline.branch_index(note.view)).or_default().push(point);
    }
    let y = |loss: f64| bottom - (bottom - top) * values.part(loss);
    for (branch_index, points) in lines.iter().take(LINES_MAX) {
        let class = stroke(*branch_index);
        let is_smoothed = points.len() >= SMOOTHED_MIN;
        let kind = if is_smoothed { "raw" } else { "curve" };
        drawing.path(&format!("{kind} {class}"), &line(&columns(points), y), "");
        let mut last = points[points.len() - 1];
        if is_smoothed {
            let smoothed = smoothed(points);
            last = smoothed[smoothed.len() - 1];
            drawing.path(&format!("curve {class}"), &line(&columns(&smoothed), y), "");
        }
        let width = points[points.len() - 1].x - points[0].x;
        if !is_smoothed && width >= points.len() as f64 * DOT_PITCH {
            for point in points {
                drawing.put(format_args!(
                    r#"<circle class="dot {class}" cx="{}" cy="{}" r="2"/>"#,
                    Px(point.x),
                    Px(y(point.loss))
                ));
            }
        }
        let is_at_end = last.x > RIGHT - 40.0;
        let lift = if is_at_end { -4.0 } else { 7.0 };
        drawing.text("value", last.x + 6.0, y(last.loss) - lift, &axis::value(last.loss));
    }
}

fn line(points: &[Point], y: impl Fn(f64) -> f64) -> String {
    let mut d = String::new();
    for point in points {
        d.push_str(&format!("{}{} {}", if d.is_empty() { 'M' } else { 'L' }, Px(point.x), Px(y(point.loss))));
    }
    d
}

/// At most the least and the greatest loss of each column of pixels, in their order.
fn columns(points: &[Point]) -> Vec<Point> {
    let mut kept = Vec::new();
    for column in points.chunk_by(|a, b| a.x.floor() == b.x.floor()) {
        let least = (0..column.len()).min_by(|a, b| column[*a].loss.total_cmp(&column[*b].loss)).unwrap_or(0);
        let most = (0..column.len()).max_by(|a, b| column[*a].loss.total_cmp(&column[*b].loss)).unwrap_or(0);
        kept.push(column[least.min(most)]);
        if least != most {
            kept.push(column[least.max(most)]);
        }
    }
    kept
}

/// Each loss as the mean of itself and its nearest neighbours. At the beginning, where the loss falls fast, the two sides have equally
/// many; at the end more come from before, or one last step would determine the mean.
fn smoothed(points: &[Point]) -> Vec<Point> {
    let reach = (points.len() / 60).clamp(4, 50);
    let mut sums = vec![0.0];
    for point in points {
        sums.push(sums[sums.len() - 1] + point.loss);
    }
    let mean = |(index, point): (usize, &Point)| {
        let before = reach.min(index);
        let after = before.min(points.len() - 1 - index);
        let (from, until) = (index - before, index + after + 1);
        Point { x: point.x, loss: (sums[until] - sums[from]) / (until - from) as f64 }
    };
    points.iter().enumerate().map(mean).collect()
}

const HEIGHT: f64 = 150.0;
/// Losses below this part of the largest are drawn alike.
const FACTOR_MAX: f64 = 1e-6;
const SMOOTHED_MIN: usize = 40;
/// Steps that are this far apart, in pixels, get a dot each.
const DOT_PITCH: f64 = 7.0;
const LINES_MAX: usize = 12;
const LINES_NAMED_MAX: usize = 5;
