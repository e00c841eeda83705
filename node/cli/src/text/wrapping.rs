//! Wrapping: breaks text between words, into lines that fit a terminal.

use console::measure_text_width;

/// Splits text into lines of at most `width` columns. A longer word gets a line of its own.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    text.lines().flat_map(|paragraph| pieces(paragraph.split_whitespace(), " ", width)).collect()
}

/// Joins pieces with `between` into lines of at most `width` columns. No piece is broken.
pub(crate) fn pieces(
    pieces: impl IntoIterator<Item = impl AsRef<str>>,
    between: &str,
    width: usize,
) -> Vec<String> {
    let mut lines = vec![String::new()];
    for piece in pieces {
        let piece = piece.as_ref();
        let line = lines.last_mut().expect("the list starts with one line");
        if line.is_empty() {
            line.push_str(piece);
        } else if measure_text_width(line) + between.len() + measure_text_width(piece) > width {
            lines.push(piece.to_owned());
        } else {
            line.push_str(between);
            line.push_str(piece);
        }
    }
    lines
}

/// As [`wrapped`], but leaves two kinds of lines as they are: lines that fit, and indented lines, which hold text to be copied, such
/// as a command with an invite.
pub(crate) fn wrapped_as_is(text: &str, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        if line.starts_with(' ') || measure_text_width(line) <= width {
            lines.push(line.to_owned());
        } else {
            lines.extend(wrapped(line, width));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        assert_eq!(wrapped("one two three\nfour", 8), ["one two", "three", "four"]);
        assert_eq!(wrapped("unbreakable", 4), ["unbreakable"]);
        assert_eq!(
            pieces(["step 1 of 2", "loss 0.1", "9 s to go"], "   ", 24),
            ["step 1 of 2   loss 0.1", "9 s to go"]
        );
    }

    #[test]
    fn indented_lines_stay_as_they_are() {
        let text = "type on every other machine\n\n    peer join pg1abcdefghijkl\n\nkeep it to yourself";
        let lines = wrapped_as_is(text, 16);
        assert_eq!(
            lines,
            "type on every\nother machine\n\n    peer join pg1abcdefghijkl\n\nkeep it to\nyourself"
        );
        assert_eq!(wrapped_as_is("a  b", 16), "a  b");
    }
}
