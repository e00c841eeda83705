//! The terminal of `peer status --watch`: its width, and an area that is redrawn without flickering.
//!
//! Each line overwrites the old one and then clears the rest of its row, so nothing is cleared first. Two marks around the frame ask
//! the terminal to show it all at once. Where standard output is no terminal, each frame is printed after the one before.

use std::io::{IsTerminal, Write, stdout};

use console::Term;

use super::render::RenderedStatus;

/// The area at the bottom of the terminal.
pub(super) struct Canvas {
    is_terminal: bool,
    /// Lines of the last frame.
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
    /// Replaces the last frame by these blocks.
    pub(super) fn show(&mut self, mut blocks: Vec<RenderedStatus>) {
        if !self.is_terminal {
            return write(&format!("{}\n", joined(&blocks)));
        }
        let height = Term::stdout().size_checked().map_or(usize::MAX, |(rows, _)| usize::from(rows));
        drop_oldest(&mut blocks, height.saturating_sub(1));
        let text = frame(&joined(&blocks), self.lines, height);
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

/// Blocks below each other, with an empty line between.
pub(super) fn joined(blocks: &[RenderedStatus]) -> String {
    blocks.iter().map(RenderedStatus::text).collect::<Vec<_>>().join("\n")
}

/// Drops events, always the oldest one of the block with the most events, until the blocks fit in `room` lines or no event is left.
fn drop_oldest(blocks: &mut [RenderedStatus], room: usize) {
    let height = |blocks: &[RenderedStatus]| {
        blocks.iter().map(RenderedStatus::height).sum::<usize>() + blocks.len().saturating_sub(1)
    };
    while height(blocks) > room {
        let longest = blocks.iter_mut().max_by_key(|block| block.events.len());
        if longest.and_then(|block| block.events.pop_front()).is_none() {
            return;
        }
    }
}

/// The bytes that draw `content` over a frame of `lines_before` lines, on a terminal with `height` rows. Lines that do not fit are left
/// out, since lines that have scrolled away cannot be overwritten.
fn frame(content: &str, lines_before: usize, height: usize) -> String {
    let lines: Vec<&str> = content.trim_end().lines().collect();
    let room = height.saturating_sub(1).max(1);
    let mut text =
        format!("{BEGIN}{}", if lines_before > 0 { format!("\x1b[{lines_before}F") } else { String::new() });
    let shown = if lines.len() > room { room - 1 } else { lines.len() };
    for line in &lines[..shown] {
        text.push_str(&format!("{line}\x1b[K\n"));
    }
    if shown < lines.len() {
        text.push_str(&format!("... {} more lines: enlarge the window\x1b[K\n", lines.len() - shown));
    }
    text + "\x1b[J" + END
}

/// Columns of the terminal; enough for a table if standard output is none, or its size is unknown.
pub(super) fn width() -> usize {
    match Term::stdout().size_checked() {
        Some((_, columns)) if columns > 0 => usize::from(columns),
        _ => WIDTH_ELSEWHERE,
    }
}

fn write(text: &str) {
    let mut out = stdout().lock();
    // The reader has closed the pipe.
    if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

const WIDTH_ELSEWHERE: usize = 110;
const HIDE_CURSOR: &str = "\x1b[?25l";
const SHOW_CURSOR: &str = "\x1b[?25h";
/// Starts synchronized output: the terminal shows nothing until [`END`]. Terminals without support ignore it.
const BEGIN: &str = "\x1b[?2026h";
const END: &str = "\x1b[?2026l";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_events_are_dropped_first() {
        let block = |events: &[&str]| RenderedStatus {
            lines: vec!["head".to_owned(), "table".to_owned()],
            events: events.iter().map(|event| event.lines().map(str::to_owned).collect()).collect(),
        };
        let shown = |blocks: &[&[&str]], room| {
            let mut blocks: Vec<RenderedStatus> = blocks.iter().map(|events| block(events)).collect();
            drop_oldest(&mut blocks, room);
            joined(&blocks)
        };
        let events = ["old", "newer\nstill", "newest"];
        assert_eq!(shown(&[&events], 7), "head\ntable\n\nold\nnewer\nstill\nnewest\n");
        assert_eq!(shown(&[&events], 6), "head\ntable\n\nnewer\nstill\nnewest\n");
        assert_eq!(shown(&[&events], 5), "head\ntable\n\nnewest\n");
        assert_eq!(shown(&[&events], 1), "head\ntable\n");
        assert_eq!(shown(&[&events, &["x"]], 9), "head\ntable\n\nnewest\n\nhead\ntable\n\nx\n");
    }

    #[test]
    fn a_frame_overwrites_the_last_one_and_never_scrolls() {
        assert_eq!(frame("a\nb\n", 0, 24), format!("{BEGIN}a\x1b[K\nb\x1b[K\n\x1b[J{END}"));
        assert_eq!(frame("a", 2, 24), format!("{BEGIN}\x1b[2Fa\x1b[K\n\x1b[J{END}"));
        let high = frame("1\n2\n3\n4\n5", 0, 4);
        assert!(high.contains("2\x1b[K\n... 3 more lines") && !high.contains("3\x1b[K"), "{high:?}");
        assert_eq!(high.matches('\n').count(), 3, "one line is left for the cursor");
    }
}
