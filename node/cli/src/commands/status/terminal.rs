//! The terminal: how wide it is, and a place on it that is drawn over again and again without flickering.
//!
//! Each line is written over what stood there and the rest of it cleared, between two marks that ask the terminal to show
//! nothing in between; nothing is ever cleared first. Where there is no terminal, each picture follows the one before.

use std::io::{IsTerminal, Write, stdout};

use console::Term;

use super::render::RenderedStatus;

/// A place at the end of what the terminal shows.
pub(super) struct Canvas {
    is_terminal: bool,
    /// Lines of the last picture.
    lines: usize,
}

impl Default for Canvas {
    fn default() -> Self {
        let is_terminal = stdout().is_terminal();
        if is_terminal {
            write(HIDE_CURSOR);
        }
        Self { is_terminal, lines: 0 }
    }
}

impl Canvas {
    /// Shows pictures in place of the last ones.
    pub(super) fn show(&mut self, mut pictures: Vec<RenderedStatus>) {
        if !self.is_terminal {
            return write(&format!("{}\n", joined(&pictures)));
        }
        let height = Term::stdout().size_checked().map_or(usize::MAX, |(rows, _)| usize::from(rows));
        forget_oldest(&mut pictures, height.saturating_sub(1));
        let text = frame(&joined(&pictures), self.lines, height);
        self.lines = text.matches('\n').count();
        write(&text);
    }
}

impl Drop for Canvas {
    fn drop(&mut self) {
        if self.is_terminal {
            write(SHOW_CURSOR);
        }
    }
}

/// One picture below the other.
pub(super) fn joined(pictures: &[RenderedStatus]) -> String {
    pictures.iter().map(RenderedStatus::text).collect::<Vec<_>>().join("\n")
}

/// Leaves out what happened longest ago, of the picture that tells most of it, until all fit in so many lines or nothing is left
/// of it.
fn forget_oldest(pictures: &mut [RenderedStatus], room: usize) {
    let height = |pictures: &[RenderedStatus]| {
        pictures.iter().map(RenderedStatus::height).sum::<usize>() + pictures.len().saturating_sub(1)
    };
    while height(pictures) > room {
        let longest = pictures.iter_mut().max_by_key(|picture| picture.events.len());
        if longest.and_then(|picture| picture.events.pop_front()).is_none() {
            return;
        }
    }
}

/// The bytes that draw a picture over one of so many lines, on a terminal of this height. What still does not fit is left out: lines
/// that have scrolled away cannot be drawn over.
fn frame(picture: &str, lines_before: usize, height: usize) -> String {
    let lines: Vec<&str> = picture.trim_end().lines().collect();
    let room = height.saturating_sub(1).max(1);
    let mut text =
        format!("{BEGIN}{}", if lines_before > 0 { format!("\x1b[{lines_before}F") } else { String::new() });
    let shown = if lines.len() > room { room - 1 } else { lines.len() };
    for line in &lines[..shown] {
        text.push_str(&format!("{line}\x1b[K\n"));
    }
    if shown < lines.len() {
        text.push_str(&format!("... {} more lines: make the window higher\x1b[K\n", lines.len() - shown));
    }
    text + "\x1b[J" + END
}

/// Columns of the terminal; where there is none, or nobody knows, enough for a table.
pub(super) fn width() -> usize {
    match Term::stdout().size_checked() {
        Some((_, columns)) if columns > 0 => usize::from(columns),
        _ => WIDTH_ELSEWHERE,
    }
}

fn write(text: &str) {
    let mut out = stdout().lock();
    // A reader that has gone has seen enough.
    if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

const WIDTH_ELSEWHERE: usize = 110;
const HIDE_CURSOR: &str = "\x1b[?25l";
const SHOW_CURSOR: &str = "\x1b[?25h";
/// From here on nothing is shown until the end: synchronized output, which terminals that do not know it ignore.
const BEGIN: &str = "\x1b[?2026h";
const END: &str = "\x1b[?2026l";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_room_is_lacking_the_oldest_events_go() {
        let picture = |events: &[&str]| RenderedStatus {
            lines: vec!["head".to_owned(), "table".to_owned()],
            events: events.iter().map(|event| event.lines().map(str::to_owned).collect()).collect(),
        };
        let shown = |pictures: &[&[&str]], room| {
            let mut pictures: Vec<RenderedStatus> = pictures.iter().map(|events| picture(events)).collect();
            forget_oldest(&mut pictures, room);
            joined(&pictures)
        };
        let events = ["old", "newer\nstill", "newest"];
        assert_eq!(shown(&[&events], 7), "head\ntable\n\nold\nnewer\nstill\nnewest\n");
        assert_eq!(shown(&[&events], 6), "head\ntable\n\nnewer\nstill\nnewest\n");
        assert_eq!(shown(&[&events], 5), "head\ntable\n\nnewest\n");
        assert_eq!(shown(&[&events], 1), "head\ntable\n");
        assert_eq!(shown(&[&events, &["x"]], 9), "head\ntable\n\nnewest\n\nhead\ntable\n\nx\n");
    }

    #[test]
    fn a_picture_is_drawn_over_the_last_one_and_never_scrolls() {
        assert_eq!(frame("a\nb\n", 0, 24), format!("{BEGIN}a\x1b[K\nb\x1b[K\n\x1b[J{END}"));
        assert_eq!(frame("a", 2, 24), format!("{BEGIN}\x1b[2Fa\x1b[K\n\x1b[J{END}"));
        let high = frame("1\n2\n3\n4\n5", 0, 4);
        assert!(high.contains("2\x1b[K\n... 3 more lines") && !high.contains("3\x1b[K"), "{high:?}");
        assert_eq!(high.matches('\n').count(), 3, "one line is left for the cursor");
    }
}
