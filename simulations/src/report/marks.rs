//! Marks on the lanes: how each peer ended, and the notes on what happened to it.

use std::collections::BTreeMap;

use super::axis;
use super::rows::Rows;
use super::svg::{Area, Drawing, LEFT, RIGHT, outline, thinned};
use super::timeline::Timeline;
use crate::history::{ExitStatus, PeerState};

/// The ends of lanes: an upright bar for a peer that has finished or left, a cross for one that failed or was killed.
pub(super) fn ends(timeline: &Timeline<'_>, drawing: &mut Drawing, rows: Rows) {
    // By class: outlines of the ends in lanes that are too low to be read by themselves.
    let mut many: BTreeMap<&str, String> = BTreeMap::new();
    for (index, lane) in timeline.history.peers.iter().enumerate() {
        for span in &lane.spans {
            let (class, words) = match span.state {
                PeerState::Ended(ExitStatus::Finished) => ("finished", "finished"),
                PeerState::Ended(ExitStatus::Left) => ("left", "left"),
                PeerState::Ended(ExitStatus::Failed) => ("broken-off", "failed"),
                PeerState::Down if rows.are_tall() => ("killed", "killed, or lost power"),
                PeerState::Down | PeerState::Joining | PeerState::Member(_) | PeerState::Paused => continue,
            };
            let (x, y) = (timeline.x(span.from), rows.middle(index));
            let words = format!("p{index}: {words} at {}", axis::duration(span.from.0));
            let is_cross = matches!(class, "broken-off" | "killed");
            if !rows.are_tall() {
                let width = if is_cross { 3.0 } else { 2.0 };
                let left = x.min(RIGHT - width);
                let area = Area { x: left, y: y - rows.pitch / 2.0, width, height: rows.pitch };
                let class = if is_cross { "broken-off-many" } else { "finished" };
                many.entry(class).or_default().push_str(&outline(area));
            } else if is_cross {
                let arm = (rows.bar * 0.4).min(5.0);
                let cross = format!(
                    "M{:.1} {:.1}l{d:.1} {d:.1}m0 -{d:.1}l-{d:.1} {d:.1}",
                    x - arm,
                    y - arm,
                    d = 2.0 * arm
                );
                drawing.path(class, &cross, &words);
            } else {
                let area =
                    Area { x: x - 1.0, y: y - rows.bar / 2.0 - 1.0, width: 3.0, height: rows.bar + 2.0 };
                drawing.rect(class, area, &words);
            }
        }
    }
    many.iter().for_each(|(class, outlines)| drawing.path(class, outlines, ""));
}

/// Draws the notes: a small ring each, with its text; where rings would overlap, one ring for all. Returns the class of a ring.
pub(super) fn notes(timeline: &Timeline<'_>, drawing: &mut Drawing, rows: Rows) -> &'static str {
    let rings = thinned(RINGS_MAX, |grain| {
        let grain = grain * 8.0;
        let mut cells: BTreeMap<(u32, u32), NoteGroup<'_>> = BTreeMap::new();
        for (index, lane) in timeline.history.peers.iter().enumerate() {
            for (at, words) in &lane.notes {
                let (x, y) = (timeline.x(*at), rows.middle(index));
                let row = if rows.pitch >= grain { index as u32 } else { (y / grain) as u32 };
                let ring = NoteGroup { x, y, notes: Vec::new() };
                let ring = cells.entry((((x - LEFT) / grain) as u32, row)).or_insert(ring);
                ring.notes.push((index, at.0, words));
            }
        }
        cells.into_values().collect()
    });
    // A few rings stand out; many of them must not hide the lanes.
    let (class, radius) = if rings.len() <= RINGS_APART_MAX { ("note", 2.6) } else { ("note-many", 1.2) };
    for ring in rings {
        let listed = ring.notes.iter().take(WORDS_MAX);
        let listed = listed.map(|(index, at, words)| format!("p{index}, {}: {words}", axis::duration(*at)));
        let mut words = listed.collect::<Vec<_>>().join("\n");
        if ring.notes.len() > WORDS_MAX {
            words.push_str(&format!("\nand {} more", ring.notes.len() - WORDS_MAX));
        }
        let y = ring.y - if rows.pitch > 14.0 { rows.bar / 2.0 + 3.0 } else { 0.0 };
        drawing.put(format_args!(
            r#"<circle class="{class}" cx="{:.1}" cy="{y:.1}" r="{radius}"><title>{}</title></circle>"#,
            ring.x,
            super::svg::Escaped(&words)
        ));
    }
    class
}

/// Notes at about one position: lane, time and text of each.
struct NoteGroup<'a> {
    x: f64,
    y: f64,
    notes: Vec<(usize, u64, &'a String)>,
}

const RINGS_MAX: usize = 1_200;
const RINGS_APART_MAX: usize = 200;
const WORDS_MAX: usize = 4;
