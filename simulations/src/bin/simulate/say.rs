//! Lines on standard output. If the reader has closed it (`simulate run x | head -1`), the program ends, which is no error.

use std::io;

/// As `println!`, but an output that is closed or full is an error and not a panic.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write;
        writeln!(std::io::stdout(), $($words)*)?;
    }};
}
pub(crate) use say;

/// Prints rows of cells, in columns as wide as their widest cell.
pub(crate) fn table(rows: &[Vec<String>]) -> io::Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        say!("{}", cells.join("  ").trim_end());
    }
    Ok(())
}

/// Whether the error says that the reader has closed standard output.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
