//! Bytes on the wire over time: how many a second, by all peers together.

use peergrad_protocol::Instant;

use super::axis::{self, AxisScale};
use super::svg::{Area, Drawing, LEFT, Px, RIGHT};
use super::timeline::{Timeline, times};

/// The chart.
pub(super) fn panel(timeline: &Timeline<'_>) -> String {
    let columns = columns(timeline);
    let most = columns.iter().map(|column| column.2).fold(0.0, f64::max);
    if most == 0.0 {
        return "<p class=\"empty\">Nothing was sent.</p>\n".to_owned();
    }
    let mut drawing = Drawing::default();
    let (top, bottom) = (22.0, 22.0 + HEIGHT);
    let resolution = axis::duration(timeline.history.traffic.step.as_nanos() as u64);
    drawing.text(
        "small-head",
        LEFT,
        14.0,
        &format!("bytes per second, all peers, means over {resolution} or a pixel"),
    );
    timeline.backdrop(&mut drawing, top, bottom);
    let rates = AxisScale::bytes(most, 3, "/s");
    let y = |rate: f64| bottom - (bottom - top) * rates.part(rate);
    for (value, label) in &rates.ticks {
        drawing.line("grid", (LEFT, y(*value)), (RIGHT, y(*value)));
        drawing.text("tick end", LEFT - 8.0, y(*value) + 4.0, label);
    }
    let mut d = format!("M{} {}", Px(LEFT), Px(bottom));
    let mut right_end = LEFT;
    for (left, right, rate) in &columns {
        d.push_str(&format!("H{}V{}", Px(*left), Px(y(*rate))));
        right_end = *right;
    }
    d.push_str(&format!("H{}V{}z", Px(right_end), Px(bottom)));
    drawing.path("flow", &d, "");
    for (left, right, rate) in columns.iter().filter(|_| columns.len() <= COLUMNS_WITH_WORDS_MAX) {
        let span = times(timeline.nanos_at(*left), timeline.nanos_at(*right));
        let area = Area { x: *left, y: top, width: right - left, height: bottom - top };
        drawing.rect("hit", area, &format!("{}/s\n{span}", axis::bytes(*rate)));
    }
    timeline.foreground(&mut drawing, top, bottom);
    let height = timeline.axis(&mut drawing, bottom);
    drawing.finish(height, &timeline.attributes(), &format!("Bytes per second over {}", timeline.time()))
}

/// Left end, right end and bytes per second of each column, at most one column for each pixel.
fn columns(timeline: &Timeline<'_>) -> Vec<(f64, f64, f64)> {
    let slot_nanos = timeline.history.traffic.step.as_nanos() as u64;
    let slots = &timeline.history.traffic.over_time;
    let pixels = (RIGHT - LEFT) as u64;
    let together = (timeline.extent / slot_nanos).div_ceil(pixels).max(1) as usize;
    let mut columns = Vec::new();
    let count = if slots.is_empty() { 0 } else { (slots.len() / together).max(1) };
    for index in 0..count {
        // The last column takes the rest, so that no short one stands out.
        let end = if index + 1 == count { slots.len() } else { (index + 1) * together };
        let slots = &slots[index * together..end];
        let from = (index * together) as u64 * slot_nanos;
        if from >= timeline.extent {
            break;
        }
        let until = from + slots.len() as u64 * slot_nanos;
        let rate = slots.iter().map(|bytes| *bytes as f64).sum::<f64>() * 1e9 / (until - from) as f64;
        columns.push((timeline.x(Instant(from)), timeline.x(Instant(until)), rate));
    }
    columns
}

const HEIGHT: f64 = 110.0;
const COLUMNS_WITH_WORDS_MAX: usize = 600;
