//! The key to the lanes: only what occurs in them.

use std::collections::BTreeSet;

use super::rows::Rows;
use super::timeline::{Timeline, tone};
use crate::history::{ExitStatus, PeerState, branch_letter};

/// The key above lanes at `rows`, whose notes have the class `note`.
pub(super) fn lanes(timeline: &Timeline<'_>, rows: Rows, note: &str) -> String {
    let history = timeline.history;
    let mut entries = Vec::new();
    let branches: BTreeSet<usize> = history.views.iter().map(|view| view.branch_index).collect();
    for branch_index in branches.iter().take(BRANCHES_MAX) {
        let swatches = [1, 2].map(|view_number| {
            let x = 11 * (view_number - 1);
            format!(
                r#"<rect class="{}" x="{x}" y="1" width="11" height="10"/>"#,
                tone(*branch_index, view_number)
            )
        });
        let name = match branches.len() {
            1 => "member (light and dark shades alternate between views)".to_owned(),
            _ => format!("member in part {}", branch_letter(*branch_index)),
        };
        entries.push(entry(&swatches.concat(), &name));
    }
    if branches.len() > BRANCHES_MAX {
        entries.push(entry("", &format!("and {} parts more", branches.len() - BRANCHES_MAX)));
    }
    let has = |wanted: fn(&PeerState) -> bool| {
        history.peers.iter().flat_map(|lane| &lane.spans).any(|span| wanted(&span.state))
    };
    let lanes_have_notes = history.peers.iter().any(|lane| !lane.notes.is_empty());
    let joining = if rows.are_tall() { "joining" } else { "joining-many" };
    let others = [
        (has(|s| *s == PeerState::Joining), JOINING.replace("CLASS", joining), "joining"),
        (
            has(|s| *s == PeerState::Paused),
            PAUSED.to_owned(),
            "paused: waits for others, sleeps or is suspended",
        ),
        (has(|s| *s == PeerState::Down) && rows.are_tall(), KILLED.to_owned(), "killed, or lost power"),
        (has(|s| *s == PeerState::Down), GAP.to_owned(), "down"),
        (has(|s| *s == PeerState::Ended(ExitStatus::Finished)), FINISHED.to_owned(), "finished"),
        (has(|s| *s == PeerState::Ended(ExitStatus::Left)), LEFT.to_owned(), "left"),
        (has(|s| *s == PeerState::Ended(ExitStatus::Failed)), BROKEN_OFF.to_owned(), "failed"),
        (lanes_have_notes, NOTE.replace("CLASS", note), "event (hover for details)"),
        (!history.cuts.is_empty(), BAND.to_owned(), "network fault"),
        (history.began.is_some(), BEGAN.to_owned(), "training begins"),
        (!history.redone.is_empty(), REDONE.to_owned(), "step restarted"),
    ];
    let others = others.into_iter().filter(|(occurs, ..)| *occurs);
    entries.extend(others.map(|(_, picture, name)| entry(&picture, name)));
    format!("<ul class=\"legend\">{}</ul>\n", entries.concat())
}

fn entry(picture: &str, name: &str) -> String {
    format!("<li><svg width=\"22\" height=\"12\" aria-hidden=\"true\">{picture}</svg>{name}</li>\n")
}

const BRANCHES_MAX: usize = 6;
const JOINING: &str = r#"<rect class="CLASS" x="0" y="1" width="22" height="10"/>"#;
const PAUSED: &str = r#"<rect class="paused" x="0" y="4" width="22" height="4"/>"#;
const GAP: &str = r#"<line class="guide" x1="0" y1="6" x2="22" y2="6"/>"#;
const FINISHED: &str = r#"<rect class="finished" x="10" y="0" width="3" height="12"/>"#;
const LEFT: &str = r#"<rect class="left" x="10" y="0" width="3" height="12"/>"#;
const KILLED: &str = r#"<path class="killed" d="M7 2l8 8m0 -8l-8 8"/>"#;
const BROKEN_OFF: &str = r#"<path class="broken-off" d="M7 2l8 8m0 -8l-8 8"/>"#;
const NOTE: &str = r#"<circle class="CLASS" cx="11" cy="6" r="2.6"/>"#;
const BAND: &str = r#"<rect class="band" x="0" y="0" width="22" height="12"/><rect class="band-bar" x="0" y="0" width="22" height="3"/>"#;
const BEGAN: &str = r#"<path class="began" d="M11 2l-4 7h8z"/>"#;
const REDONE: &str = r#"<path class="redone" d="M11 2l4 9h-8z"/>"#;
