//! Small text tables: each column is as wide as its widest cell. Also counts, bytes and plurals for their cells.

/// Lays out `rows` under `header`; the first column is aligned to the left, the others to the right.
#[must_use]
pub fn text_table(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(header.to_vec());
    for row in rows {
        text += &line(row.iter().map(String::as_str).collect());
    }
    text
}

/// A number of bytes, in the unit that leaves one to three digits before the decimal point: "999 B", "1.2 MB".
#[must_use]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if count < 1000 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A count with a comma between thousands: "1,234,567".
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).expect("ASCII digits"))
        .collect();
    groups.join(",")
}

/// "1 peer", "2 peers", "3 epochs".
#[must_use]
pub fn plural(number: usize, noun: &str) -> String {
    let ending = match (number, noun.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{} {noun}{ending}", count(number as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["a".to_owned(), "1".to_owned()], vec!["long".to_owned(), "1000".to_owned()]];
        assert_eq!(text_table(&["peer", "n"], &rows), "peer     n\na        1\nlong  1000\n");
    }

    #[test]
    fn quantities_are_readable() {
        assert_eq!([bytes(999), bytes(1000), bytes(999_600)], ["999 B", "1.0 kB", "1.0 MB"]);
        assert_eq!([count(7), count(1234), count(1_234_567)], ["7", "1,234", "1,234,567"]);
    }
}
