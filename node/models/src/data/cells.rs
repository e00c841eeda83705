//! Cells: the text of a file, as numbers and as words of an error message.

/// A CSV reader that checks neither header nor row widths: the caller does, and its errors say what to do.
pub(super) fn reader(bytes: &[u8], delimiter: u8) -> csv::Reader<&[u8]> {
    csv::ReaderBuilder::new().has_headers(false).flexible(true).delimiter(delimiter).from_reader(bytes)
}

/// The number in a cell, which may be infinite or NaN; `None` if the cell is not a number.
pub(super) fn number(cell: &[u8]) -> Option<f64> {
    std::str::from_utf8(cell.trim_ascii()).ok()?.parse().ok()
}

/// The text of a cell, trimmed.
pub(super) fn text(cell: &[u8]) -> String {
    String::from_utf8_lossy(cell.trim_ascii()).into_owned()
}

/// The text of a cell for an error message: one line of at most 40 characters.
pub(super) fn shortened(cell: &[u8]) -> String {
    const CHARS_MAX: usize = 40;
    let full = String::from_utf8_lossy(cell);
    let cleaned = full.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut short: String = cleaned.take(CHARS_MAX).collect();
    if full.chars().count() > CHARS_MAX {
        short.push_str("...");
    }
    short
}
