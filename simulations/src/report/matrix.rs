//! The traffic matrix: a row for each sender, a column for each receiver, darker for more bytes.
//!
//! It shows a swarm's topology at a glance: a ring is a line beside the diagonal, direct exchange fills the square, and a peer that relays
//! for others is a cross.

use std::collections::BTreeMap;

use super::axis;
use super::peers::Groups;
use super::svg::{Area, Drawing, LEFT};
use super::timeline::Timeline;
use crate::history::LineRate;

/// The chart; empty if nothing was sent.
pub(super) fn panel(timeline: &Timeline<'_>) -> String {
    let traffic = &timeline.history.traffic;
    let Some(hosts) = traffic.by_link.keys().map(|(from, to)| from.index().max(to.index()) + 1).max() else {
        return String::new();
    };
    let groups = Groups::new(hosts.max(timeline.history.peers.len()));
    let mut cells: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    for ((from, to), bytes) in &traffic.by_link {
        *cells.entry((groups.of(*from), groups.of(*to))).or_default() += bytes;
    }
    let side = (MATRIX_MAX / groups.count() as f64).clamp(6.0, 32.0);
    let mut drawing = Drawing::default();
    let grid = Grid { groups, side, top: 58.0 };
    grid.cells(&mut drawing, &cells);
    grid.names(&mut drawing);
    grid.totals(&mut drawing, &cells);
    let beside = grid.right() + 190.0;
    let key_bottom = grid.key(&mut drawing, beside, cells.values().copied().max().unwrap_or(0));
    let list_bottom = busiest(&mut drawing, timeline, beside, key_bottom + 34.0);
    let bottom = list_bottom.max(grid.bottom() + BARS * 0.5 + 16.0);
    drawing.finish(bottom, "", "Bytes from each sender to each receiver")
}

/// The matrix on the page: a row a sender, a column a receiver.
struct Grid {
    groups: Groups,
    side: f64,
    top: f64,
}

impl Grid {
    fn right(&self) -> f64 {
        LEFT + self.groups.count() as f64 * self.side
    }

    fn bottom(&self) -> f64 {
        self.top + self.groups.count() as f64 * self.side
    }

    fn cells(&self, drawing: &mut Drawing, cells: &BTreeMap<(usize, usize), u64>) {
        let (size, gap) = (self.right() - LEFT, if self.side > 8.0 { 1.0 } else { 0.5 });
        drawing.rect("empty-cells", Area { x: LEFT, y: self.top, width: size, height: size }, "");
        let most = cells.values().copied().max().unwrap_or(0);
        for ((from, to), bytes) in cells.iter().filter(|cell| *cell.1 > 0) {
            let (x, y) = (LEFT + *to as f64 * self.side, self.top + *from as f64 * self.side);
            let area = Area { x, y, width: self.side - gap, height: self.side - gap };
            let words = format!(
                "{} → {}\n{}",
                self.groups.name(*from),
                self.groups.name(*to),
                axis::bytes(*bytes as f64)
            );
            drawing.rect(&format!("h{}", shade(*bytes, most)), area, &words);
        }
        drawing.line("diagonal", (LEFT, self.top), (self.right(), self.bottom()));
    }

    fn names(&self, drawing: &mut Drawing) {
        let widest = 8.0 + 6.5 * self.groups.short_name(self.groups.count() - 1).len() as f64;
        let every =
            [1, 2, 4, 8, 16].into_iter().find(|step| *step as f64 * self.side >= widest).unwrap_or(32);
        drawing.text("tick", LEFT, self.top - 24.0, "to");
        drawing.text("tick end", LEFT - 8.0, self.top - 24.0, "from");
        for group in (0..self.groups.count()).step_by(every) {
            let (offset, name) = ((group as f64 + 0.5) * self.side, self.groups.short_name(group));
            drawing.text("tick mid", LEFT + offset, self.top - 6.0, &name);
            drawing.text("tick end", LEFT - 8.0, self.top + offset + 4.0, &name);
        }
    }

    /// Bytes sent by each peer, at the end of its row, and received, at the end of its column.
    fn totals(&self, drawing: &mut Drawing, cells: &BTreeMap<(usize, usize), u64>) {
        let count = self.groups.count();
        let (mut sent, mut received) = (vec![0_u64; count], vec![0_u64; count]);
        for ((from, to), bytes) in cells {
            sent[*from] += bytes;
            received[*to] += bytes;
        }
        let most = sent.iter().chain(&received).copied().max().unwrap_or(0).max(1) as f64;
        drawing.text("tick", self.right() + 8.0, self.top - 6.0, "sent");
        drawing.text("tick end", LEFT - 8.0, self.bottom() + 16.0, "received");
        for group in 0..count {
            let along = group as f64 * self.side;
            let (out, into) = (sent[group] as f64, received[group] as f64);
            let thick = (self.side - 2.0).min(10.0);
            let inset = (self.side - thick) / 2.0;
            let name = self.groups.name(group);
            let row = Area {
                x: self.right() + 8.0,
                y: self.top + along + inset,
                width: BARS * out / most,
                height: thick,
            };
            drawing.rect("total", row, &format!("{name} sent {}", axis::bytes(out)));
            if self.side >= 11.0 {
                drawing.text("tick", row.x + row.width + 5.0, row.y + thick / 2.0 + 4.0, &axis::bytes(out));
            }
            let column = Area {
                x: LEFT + along + inset,
                y: self.bottom() + 8.0,
                width: thick,
                height: BARS * 0.5 * into / most,
            };
            drawing.rect("total", column, &format!("{name} received {}", axis::bytes(into)));
        }
    }

    /// The key to the shades; returns where it ends.
    fn key(&self, drawing: &mut Drawing, x: f64, most: u64) -> f64 {
        let what =
            if self.groups.are_peers() { "bytes on a link" } else { "bytes between two groups of peers" };
        drawing.text("small-head", x, self.top - 6.0, what);
        let width = 40.0;
        for shade in 1..=SHADES {
            let left = x + (shade - 1) as f64 * width;
            drawing.rect(
                &format!("h{shade}"),
                Area { x: left, y: self.top + 6.0, width: width - 1.0, height: 12.0 },
                "",
            );
            if shade % 2 == 0 {
                // The upper end of the shade; shades are even in the square root.
                let part = shade as f64 / SHADES as f64;
                let label = axis::bytes(most as f64 * part * part);
                drawing.text("tick end", left + width - 1.0, self.top + 32.0, &label);
            }
        }
        self.top + 40.0
    }
}

/// A list of the links with the most bytes; returns where it ends.
fn busiest(drawing: &mut Drawing, timeline: &Timeline<'_>, x: f64, top: f64) -> f64 {
    let traffic = &timeline.history.traffic;
    let mut links: Vec<_> = traffic.by_link.iter().collect();
    links.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    let of = format!("busiest of {} links", axis::count(links.len() as u64));
    drawing.text("small-head", x, top, &of);
    for (line, ((from, to), bytes)) in links.into_iter().take(BUSIEST_MAX).enumerate() {
        let y = top + 20.0 + line as f64 * 17.0;
        drawing.text("words", x, y, &format!("{from} → {to}"));
        drawing.text("words end", x + 190.0, y, &axis::bytes(*bytes as f64));
        drawing.text("words end", x + 260.0, y, &axis::percent(*bytes as f64, traffic.total as f64));
        if let Some(LineRate { bytes_per_second, round_trip }) = traffic.lines.get(&(*from, *to)) {
            let rate = axis::bytes(*bytes_per_second as f64);
            let words = format!("line: {rate}/s, {:.1} ms", 1000.0 * round_trip.as_secs_f64());
            drawing.text("words", x + 280.0, y, &words);
        }
    }
    top + (BUSIEST_MAX + 1) as f64 * 17.0
}

/// 1 for the least to [`SHADES`] for the most; even in the square root, so that small flows are visible beside large ones.
fn shade(bytes: u64, most: u64) -> usize {
    let part = (bytes as f64 / most.max(1) as f64).sqrt();
    ((part * SHADES as f64).ceil() as usize).clamp(1, SHADES)
}

const MATRIX_MAX: f64 = 480.0;
/// The longest bar of a total.
const BARS: f64 = 90.0;
const SHADES: usize = 8;
const BUSIEST_MAX: usize = 10;
