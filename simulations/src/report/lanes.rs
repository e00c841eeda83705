//! Lanes: the view of each peer over time, with one lane for each peer, from its first start to its end.
//!
//! ```text
//!        cut 0-2 | 3-4
//!        1      |2            |3            name of each view, where it was first installed
//! p0  ///1111111222222222222223333333333|   joining, member of views 1 to 3, finished
//! p1  ///1111111222--22222    ///3333333|   paused in view 2, then down, back in view 3
//!        ' ' ' ' ' '  ' ' ' ' ' ' ' ' '     committed steps
//! ```
//! A few peers get lanes with room for names; a thousand share the same height. What is smaller than a pixel is left out, which keeps the
//! picture readable and the file small.

use std::collections::BTreeMap;

use peergrad_protocol::Instant;

use super::peers::Groups;
use super::rows::Rows;
use super::steps::Steps;
use super::svg::{Area, Drawing, LEFT, RIGHT, outline, thinned};
use super::timeline::{Timeline, times, tone};
use super::{axis, legend, marks};
use crate::history::{ExitStatus, PeerHistory, PeerState};

/// A stretch of a lane, on the page.
struct Piece {
    lane: usize,
    left: f64,
    right: f64,
    state: PeerState,
}

/// The same part of neighbouring lanes, on the page.
struct Shape {
    class: String,
    left: f64,
    right: f64,
    first: usize,
    last: usize,
}

/// The panel.
pub(super) fn panel(timeline: &Timeline<'_>) -> String {
    let lanes = &timeline.history.peers;
    if lanes.is_empty() {
        return "<p class=\"empty\">No peer was ever started.</p>\n".to_owned();
    }
    let mut drawing = Drawing::default();
    let head = timeline.headings(&mut drawing, 0.0);
    let rows = Rows::new(lanes.len(), head + VIEWS_HEIGHT);
    let steps = Steps::new(timeline, rows.bottom() + 8.0);
    timeline.backdrop(&mut drawing, head, steps.bottom());
    view_names(timeline, &mut drawing, head);
    labels(timeline, &mut drawing, rows);
    let have_words = stretches(timeline, &mut drawing, rows);
    timeline.foreground(&mut drawing, head, steps.bottom());
    marks::ends(timeline, &mut drawing, rows);
    if !have_words {
        lane_words(timeline, &mut drawing, rows);
    }
    let note = marks::notes(timeline, &mut drawing, rows);
    steps.draw(timeline, &mut drawing);
    let bottom = timeline.axis(&mut drawing, steps.bottom());
    let drawn =
        drawing.finish(bottom, &timeline.attributes(), &format!("Lanes of peers over {}", timeline.time()));
    format!("{}{drawn}", legend::lanes(timeline, rows, note))
}

/// The name of each view where it was first installed, as far as there is room; a shorter mark for the others.
fn view_names(timeline: &Timeline<'_>, drawing: &mut Drawing, top: f64) {
    let mut free_from = f64::MIN;
    // By position and appearance: height and text of a mark.
    let mut ticks: BTreeMap<(u32, String), (f64, String)> = BTreeMap::new();
    for (index, note) in timeline.history.views.iter().enumerate() {
        let (x, name) = (timeline.x(note.at), timeline.view_name(index));
        let at = axis::duration(note.at.0);
        let members = note.view.members.len();
        let words = format!("view {name}, first installed at {at}\n{members} members, {:?}", note.digest);
        let has_room = x >= free_from;
        let height = if has_room { VIEWS_HEIGHT - 4.0 } else { 5.0 };
        ticks
            .entry((x.round() as u32, tone(note.branch_index, note.view.number.0)))
            .and_modify(|tick| tick.0 = tick.0.max(height))
            .or_insert((height, words));
        if has_room {
            let text = if free_from == f64::MIN { format!("view {name}") } else { name };
            drawing.text("view-name", x + 4.0, top + 10.0, &text);
            free_from = x + 14.0 + 6.5 * text.len() as f64;
        }
    }
    for ((x, tone), (height, words)) in ticks {
        let y = top + VIEWS_HEIGHT - 2.0 - height;
        drawing.rect(&tone, Area { x: f64::from(x), y, width: 2.0, height }, &words);
    }
}

/// Names at the left of as many lanes as there is room for, and the peers' colours along all lanes.
fn labels(timeline: &Timeline<'_>, drawing: &mut Drawing, rows: Rows) {
    let steps = [1, 2, 5, 10, 20, 50, 100, 200, 500];
    let step = steps.into_iter().find(|step| *step as f64 * rows.pitch >= 11.0).unwrap_or(1000);
    for (index, lane) in timeline.history.peers.iter().enumerate().step_by(step) {
        let (x, y) = (LEFT - 12.0, rows.middle(index) + 4.0);
        drawing.put(format_args!(
            r#"<text class="tick end" x="{x}" y="{y:.1}">p{index}<title>{}</title></text>"#,
            lane.peer
        ));
    }
    Groups::new(rows.count).key(drawing, LEFT - 8.0, rows.top, rows.pitch, rows.pitch - rows.bar);
}

/// Draws the states of each peer; returns whether each part of a lane has a text of its own.
fn stretches(timeline: &Timeline<'_>, drawing: &mut Drawing, rows: Rows) -> bool {
    if rows.are_tall() {
        guides(timeline, drawing, rows);
    }
    let lanes = timeline.history.peers.iter().enumerate();
    let all = |grain| lanes.clone().flat_map(move |(index, lane)| pieces(timeline, index, lane, grain));
    let finest: Vec<Piece> = all(0.5).collect();
    let have_words = rows.are_tall() && finest.len() <= PIECES_WITH_WORDS_MAX;
    if have_words {
        finest.iter().for_each(|piece| one_by_one(timeline, drawing, rows, piece));
        return true;
    }
    let mut paths: BTreeMap<String, String> = BTreeMap::new();
    for shape in thinned(SHAPES_MAX, |grain| shapes(timeline, rows, all(grain))) {
        let height = (shape.last - shape.first) as f64 * rows.pitch + rows.bar;
        let (x, width) = (shape.left, shape.right - shape.left);
        let area = Area { x, y: rows.bar_top(shape.first), width, height };
        paths.entry(shape.class).or_default().push_str(&outline(area));
    }
    for (class, d) in paths {
        drawing.path(&class, &d, "");
    }
    false
}

/// A faint line from a peer's start to its end, which makes gaps visible.
fn guides(timeline: &Timeline<'_>, drawing: &mut Drawing, rows: Rows) {
    for (index, lane) in timeline.history.peers.iter().enumerate() {
        let (Some(first), Some(last)) = (lane.spans.first(), lane.spans.last()) else { continue };
        let until = match last.state {
            PeerState::Ended { .. } => last.from,
            _ => Instant(timeline.extent),
        };
        let y = rows.middle(index);
        drawing.line("guide", (timeline.x(first.from), y), (timeline.x(until), y));
    }
}

/// A lane in steps of `grain` pixels. A short stay in a view may vanish. A short absence is widened until it is visible, unless the steps
/// are so wide that this would mislead.
fn pieces(timeline: &Timeline<'_>, index: usize, lane: &PeerHistory, grain: f64) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut drawn_to = i64::MIN;
    for (number, span) in lane.spans.iter().enumerate() {
        let cell = |at| ((timeline.x(at) - LEFT) / grain).round() as i64;
        // The last span of an unfinished history is still open.
        let is_open = number + 1 == lane.spans.len() && span.until <= span.from;
        let until = if is_open { Instant(timeline.extent) } else { span.until };
        let from = cell(span.from).max(drawn_to);
        let is_widened =
            grain <= 1.0 && !matches!(span.state, PeerState::Member(_) | PeerState::Ended { .. });
        let least = from + i64::from(is_widened);
        let until = cell(until).max(least);
        if until <= from {
            continue;
        }
        drawn_to = until;
        let left = (LEFT + from as f64 * grain).min(RIGHT);
        let right = (LEFT + until as f64 * grain).min(RIGHT);
        match pieces.last_mut() {
            Some(last) if last.state == span.state => last.right = right,
            _ => pieces.push(Piece { lane: index, left, right, state: span.state }),
        }
    }
    pieces
}

/// The class of a state; `None` for a state that is not drawn as a bar.
fn class(timeline: &Timeline<'_>, state: PeerState) -> Option<String> {
    match state {
        PeerState::Joining => Some("joining".to_owned()),
        PeerState::Member(view) => {
            let view_number = timeline.history.views.get(view).map_or(1, |note| note.view.number.0);
            Some(tone(timeline.branch_index(view), view_number))
        }
        PeerState::Paused => Some("paused".to_owned()),
        PeerState::Down | PeerState::Ended { .. } => None,
    }
}

fn state_words(timeline: &Timeline<'_>, state: PeerState) -> String {
    match state {
        PeerState::Joining => "joining".to_owned(),
        PeerState::Member(view) => format!("in view {}", timeline.view_name(view)),
        PeerState::Paused => "paused".to_owned(),
        PeerState::Down => "down".to_owned(),
        PeerState::Ended(ExitStatus::Finished) => "finished".to_owned(),
        PeerState::Ended(ExitStatus::Left) => "left".to_owned(),
        PeerState::Ended(ExitStatus::Failed) => "failed".to_owned(),
    }
}

/// Draws the pieces of tall lanes: each as a mark with its text, and the name of its view where there is room.
fn one_by_one(timeline: &Timeline<'_>, drawing: &mut Drawing, rows: Rows, piece: &Piece) {
    let (lane, width) = (piece.lane, piece.right - piece.left);
    let mut area = Area { x: piece.left, y: rows.bar_top(lane), width, height: rows.bar };
    if matches!(piece.state, PeerState::Ended { .. }) {
        return;
    }
    let what = state_words(timeline, piece.state);
    let span = times(timeline.nanos_at(piece.left), timeline.nanos_at(piece.right));
    let peer = timeline.history.peers[lane].peer.short();
    let words = format!("p{lane} ({peer}): {what}\n{span}");
    if piece.state == PeerState::Paused {
        let height = (rows.bar * 0.36).max(2.0);
        area = Area { y: rows.middle(lane) - height / 2.0, height, ..area };
    }
    drawing.rect(class(timeline, piece.state).as_deref().unwrap_or("hit"), area, &words);
    if let PeerState::Member(view) = piece.state {
        let name = timeline.view_name(view);
        if rows.bar >= 11.0 && width >= 8.0 + 6.5 * name.len() as f64 {
            let class = format!("on-{}", class(timeline, piece.state).unwrap_or_default());
            drawing.text(&class, piece.left + 4.0, rows.middle(lane) + 3.5, &name);
        }
    }
}

/// Combines the pieces of many lanes into fewer shapes: equal neighbours without a gap become one, which also avoids faint seams.
fn shapes(timeline: &Timeline<'_>, rows: Rows, pieces: impl Iterator<Item = Piece>) -> Vec<Shape> {
    // By appearance and extent: the shape that still grows.
    let mut growing: BTreeMap<(String, u32, u32), Shape> = BTreeMap::new();
    let mut grown = Vec::new();
    for Piece { lane, left, right, state } in pieces {
        let Some(mut class) = class(timeline, state) else { continue };
        if state == PeerState::Joining && !rows.are_tall() {
            "joining-many".clone_into(&mut class); // hatching needs room
        }
        let key = (class.clone(), (left * 2.0).round() as u32, (right * 2.0).round() as u32);
        let shape = Shape { class, left, right, first: lane, last: lane };
        match growing.get_mut(&key) {
            Some(above) if above.last + 1 == lane && rows.bar == rows.pitch => above.last = lane,
            Some(above) => grown.push(std::mem::replace(above, shape)),
            None => drop(growing.insert(key, shape)),
        }
    }
    grown.extend(growing.into_values());
    grown
}

/// For lanes whose parts have no text: a short text on each peer's history, shown when the pointer is on the lane.
fn lane_words(timeline: &Timeline<'_>, drawing: &mut Drawing, rows: Rows) {
    for (index, lane) in timeline.history.peers.iter().enumerate() {
        let y = rows.top + index as f64 * rows.pitch;
        let area = Area { x: LEFT, y, width: RIGHT - LEFT, height: rows.pitch };
        let listed = lane.spans.iter().take(SPANS_LISTED_MAX);
        let listed = listed
            .map(|span| format!("{} {}", axis::duration(span.from.0), state_words(timeline, span.state)));
        let mut words =
            format!("p{index} ({})\n{}", lane.peer.short(), listed.collect::<Vec<_>>().join(", "));
        if lane.spans.len() > SPANS_LISTED_MAX {
            words.push_str(&format!(" and {} more", lane.spans.len() - SPANS_LISTED_MAX));
        }
        drawing.rect("hit", area, &words);
    }
}

const VIEWS_HEIGHT: f64 = 20.0;
const SPANS_LISTED_MAX: usize = 6;
const SHAPES_MAX: usize = 24_000;
const PIECES_WITH_WORDS_MAX: usize = 4_000;
