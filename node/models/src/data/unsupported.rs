//! Unsupported formats: files that hold something else than samples as text, recognized so that an error can say what to do.
//!
//! Most formats begin with a mark of a few bytes. Text formats are recognized by their first characters.

use std::fmt;

use super::encoding::UTF_8_MARK;

/// How many bytes are searched for control characters, which text does not have.
const CONTROLS_SEARCHED: usize = 4096;

/// A format that is recognized and not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// Its name, with an article.
    pub name: &'static str,
    /// What the user can do.
    pub remedy: Remedy,
}

/// What to do with a file of an unsupported format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Unpack it.
    Unpack,
    /// Save the table as CSV, with the program that wrote the file.
    SaveAsCsv,
    /// Convert the table with a script.
    Convert,
    /// Convert the table with `peer init`.
    ConvertParquet,
    /// Get the file that this one only stands for.
    FetchLfs,
    /// Get the file that this one only stands for.
    FetchAnnex,
    /// It holds no table.
    GiveData,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unpack => "unpack it, and give the CSV, LIBSVM or IDX file inside; of packed files, only gzip (.gz) is read",
            Self::SaveAsCsv => "save the table as CSV, and give that file",
            Self::Convert => "convert it to CSV (in Python, for example: pandas, `to_csv(\"data.csv\", index=False)`), and give that file",
            Self::ConvertParquet => "convert it to CSV: `peer init --data FILE` does that if `peer` is built with `cargo build --release --features parquet` (in Python, for example: pandas, `to_csv(\"data.csv\", index=False)`), and give that file",
            Self::FetchLfs => "get the data with `git lfs pull`, and give the file again",
            Self::FetchAnnex => "get the data with `git annex get`, and give the file again",
            Self::GiveData => "give a CSV, LIBSVM or IDX file",
        })
    }
}

/// The marks with which files of other formats begin.
const MARKS: [(&[u8], &str, Remedy); 41] = [
    (b"\x1f\x8b", "a file that was gzipped twice", Remedy::Unpack),
    (b"\xfd7zXZ\0", "an xz archive", Remedy::Unpack),
    (b"BZh", "a bzip2 archive", Remedy::Unpack),
    (b"\x28\xb5\x2f\xfd", "a Zstandard (zstd) archive", Remedy::Unpack),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", Remedy::Unpack),
    (b"Rar!\x1a\x07", "a RAR archive", Remedy::Unpack),
    (b"\x04\x22\x4d\x18", "an LZ4 archive", Remedy::Unpack),
    (b"\xff\x06\0\0sNaPpY", "a Snappy archive", Remedy::Unpack),
    (b"\x1f\x9d", "a file packed by `compress` (.Z)", Remedy::Unpack),
    (b"LZIP", "an lzip archive", Remedy::Unpack),
    (b"]\0\0", "an lzma archive", Remedy::Unpack),
    (b"PAR1", "a Parquet file", Remedy::ConvertParquet),
    (b"ARROW1", "an Arrow or Feather file", Remedy::Convert),
    (b"FEA1", "a Feather file", Remedy::Convert),
    (b"\xff\xff\xff\xff", "an Arrow stream", Remedy::Convert),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", Remedy::Convert),
    (b"\x93NUMPY", "a NumPy file (.npy)", Remedy::Convert),
    (b"CDF\x01", "a NetCDF file", Remedy::Convert),
    (b"CDF\x02", "a NetCDF file", Remedy::Convert),
    (b"MATLAB 5.0", "a MATLAB file (.mat)", Remedy::Convert),
    (b"Obj\x01", "an Avro file", Remedy::Convert),
    (b"ORC", "an ORC file", Remedy::Convert),
    (b"SQLite format 3\0", "an SQLite database", Remedy::SaveAsCsv),
    (b"RDX3\n", "an R data file", Remedy::SaveAsCsv),
    (b"RDX2\n", "an R data file", Remedy::SaveAsCsv),
    (b"X\n\0\0\0", "an R data file", Remedy::SaveAsCsv),
    (b"$FL2", "an SPSS file", Remedy::Convert),
    (b"<stata_dta>", "a Stata file", Remedy::Convert),
    (
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        "an old Office document, such as an Excel workbook (.xls)",
        Remedy::SaveAsCsv,
    ),
    (b"%PDF-", "a PDF document", Remedy::SaveAsCsv),
    (b"{\\rtf", "an RTF document", Remedy::SaveAsCsv),
    (b"\x89PNG\r\n\x1a\n", "a PNG image", Remedy::GiveData),
    (b"\xff\xd8\xff", "a JPEG image", Remedy::GiveData),
    (b"GIF8", "a GIF image", Remedy::GiveData),
    (b"II*\0", "a TIFF image", Remedy::GiveData),
    (b"MM\0*", "a TIFF image", Remedy::GiveData),
    (b"RIFF", "a media file (RIFF)", Remedy::GiveData),
    (b"OggS", "a media file (Ogg)", Remedy::GiveData),
    (b"\x7fELF", "a program", Remedy::GiveData),
    (
        b"version https://git-lfs.github.com/",
        "a Git LFS pointer, which only stands for the data",
        Remedy::FetchLfs,
    ),
    (b"/annex/objects/", "a git-annex pointer, which only stands for the data", Remedy::FetchAnnex),
];

/// The unsupported format of `bytes` (unpacked once) by the mark with which they begin; `None` if there is no such mark.
#[must_use]
pub fn by_mark(bytes: &[u8]) -> Option<Unsupported> {
    let found = |name, remedy| Some(Unsupported { name, remedy });
    if let Some(&(_, name, remedy)) = MARKS.iter().find(|(mark, ..)| begins(bytes, mark)) {
        return found(name, remedy);
    }
    if bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"PK\x05\x06") {
        let (name, remedy) = zipped(bytes);
        return found(name, remedy);
    }
    if bytes.get(257..262) == Some(b"ustar") {
        return found("a tar archive", Remedy::Unpack);
    }
    if matches!(bytes, [0x80, 2..=5, ..]) && bytes.ends_with(b".") {
        return found("a Python pickle", Remedy::Convert);
    }
    let length = (bytes.len() as u32).to_le_bytes();
    if bytes.starts_with(b"BM") && bytes.get(2..6).is_some_and(|field| field == length) {
        return found("a BMP image", Remedy::GiveData);
    }
    if bytes.get(4..8) == Some(b"ftyp") {
        return found("a media file (MP4 or HEIF)", Remedy::GiveData);
    }
    match bytes.first_chunk::<9>() {
        Some([.., 0, 0, 0, 0, b'{']) => {
            found("a safetensors file, which holds a model and no samples", Remedy::GiveData)
        }
        _ => None,
    }
}

/// What `text` is if it is no table: markup, JSON, or no text at all.
#[must_use]
pub fn by_text(text: &[u8]) -> Option<Unsupported> {
    let trimmed = text.strip_prefix(UTF_8_MARK).unwrap_or(text).trim_ascii();
    let found = markup(trimmed).map(|(name, remedy)| Unsupported { name, remedy });
    found.or_else(|| is_binary(text).then_some(BINARY))
}

/// A file that is no text.
pub(super) const BINARY: Unsupported =
    Unsupported { name: "a binary file of an unknown format", remedy: Remedy::GiveData };

/// Whether `bytes` begin with this mark. Marks of letters and digits alone could begin a text, so more is asked for there.
fn begins(bytes: &[u8], mark: &[u8]) -> bool {
    let Some(rest) = bytes.strip_prefix(mark) else { return false };
    let is_followed_by_controls = || rest.iter().take(64).any(|&byte| is_control(byte) || byte >= 0x80);
    match mark {
        b"BZh" => matches!(rest, [b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, ..] | [b'1'..=b'9', 0x17, 0x72, ..]),
        _ if mark.len() <= 6 && mark.iter().all(u8::is_ascii_alphanumeric) => is_followed_by_controls(),
        _ => true,
    }
}

/// What a zip archive holds, by the names of its first files.
fn zipped(bytes: &[u8]) -> (&'static str, Remedy) {
    const NAMES_SEARCHED: usize = 1 << 16;
    let head = &bytes[..bytes.len().min(NAMES_SEARCHED)];
    let has = |name: &[u8]| head.windows(name.len()).any(|window| window == name);
    if has(b"xl/") {
        ("an Excel workbook (.xlsx)", Remedy::SaveAsCsv)
    } else if has(b"opendocument.spreadsheet") {
        ("an OpenDocument spreadsheet (.ods)", Remedy::SaveAsCsv)
    } else if has(b"[Content_Types].xml") || has(b"opendocument.") {
        ("an Office document", Remedy::SaveAsCsv)
    } else if has(b".npy") {
        ("a NumPy archive (.npz)", Remedy::Convert)
    } else if has(b"data.pkl") {
        ("a PyTorch file", Remedy::Convert)
    } else {
        ("a zip archive", Remedy::Unpack)
    }
}

/// Text that is not a table; `text` is without white space at both ends.
fn markup(text: &[u8]) -> Option<(&'static str, Remedy)> {
    let text = without_comments(text);
    let begins =
        |start: &str| text.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start.as_bytes()));
    let after = |count: usize| text[count..].trim_ascii_start().first().copied();
    if begins("<!doctype html") || begins("<html") || begins("<head") || begins("<body") || begins("<script")
    {
        return Some(("an HTML page, perhaps the page of a download", Remedy::GiveData));
    }
    if begins("<?xml")
        || (begins("<!") || matches!(text, [b'<', b'a'..=b'z' | b'A'..=b'Z', ..])) && text.ends_with(b">")
    {
        return Some(("an XML file", Remedy::Convert));
    }
    if text.starts_with(b"{") && matches!(after(1), Some(b'"' | b'\'' | b'}')) {
        return Some(("JSON", Remedy::Convert));
    }
    if text.starts_with(b"[")
        && text.ends_with(b"]")
        && matches!(after(1), Some(b'[' | b'{' | b'"' | b'0'..=b'9' | b'-' | b']'))
    {
        return Some(("JSON", Remedy::Convert));
    }
    if is_markdown(text) {
        return Some(("a table in Markdown", Remedy::SaveAsCsv));
    }
    let mut lines = text.split(|&byte| byte == b'\n' || byte == b'\r').map(<[u8]>::trim_ascii);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with(b"%")).unwrap_or_default();
    let is_arff = first.get(..9).is_some_and(|word| word.eq_ignore_ascii_case(b"@relation"));
    is_arff.then_some(("an ARFF file (Weka)", Remedy::Convert))
}

/// Whether the second line is the one below the header of a table in Markdown: `|---|:--|`.
fn is_markdown(text: &[u8]) -> bool {
    let second = text.split(|&byte| byte == b'\n').nth(1).unwrap_or_default().trim_ascii();
    text.starts_with(b"|")
        && second.windows(3).any(|window| window == b"---")
        && second.iter().all(|byte| matches!(byte, b'|' | b'-' | b':' | b' '))
}

/// The text after comments of HTML or XML at its beginning.
fn without_comments(mut text: &[u8]) -> &[u8] {
    const END: &[u8] = b"-->";
    while text.starts_with(b"<!--") {
        let Some(end) = text.windows(END.len()).position(|window| window == END) else { break };
        text = text[end + END.len()..].trim_ascii_start();
    }
    text
}

/// Whether many of the first bytes are control characters.
fn is_binary(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(CONTROLS_SEARCHED)];
    head.iter().filter(|&&byte| is_control(byte)).count() > head.len() / 16
}

/// Whether a byte is a control character that text does not have.
fn is_control(byte: u8) -> bool {
    matches!(byte, 0..=8 | 0x0e..=0x19 | 0x1b..=0x1f | 0x7f)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recognize(bytes: &[u8]) -> Option<Unsupported> {
        by_mark(bytes).or_else(|| by_text(bytes))
    }

    #[track_caller]
    fn assert_named(bytes: &[u8], name: &str) {
        let found = recognize(bytes).map(|found| found.name);
        assert!(found.is_some_and(|found| found.contains(name)), "{name}: {found:?}");
    }

    #[test]
    fn other_formats_are_recognized() {
        assert_named(b"\x1f\x8b\x08\0", "gzipped twice");
        assert_named(b"\xfd7zXZ\0\0\x04", "xz");
        assert_named(b"BZh91AY&SY", "bzip2");
        assert_named(b"\x28\xb5\x2f\xfd\x04", "zstd");
        assert_named(b"PK\x03\x04\x14\0\0\0\x08\0xl/workbook.xml", "Excel workbook (.xlsx)");
        assert_named(b"PK\x03\x04mimetypeapplication/vnd.oasis.opendocument.spreadsheetPK", ".ods");
        assert_named(b"PK\x03\x04\x14\0a.npy", ".npz");
        assert_named(b"PK\x03\x04\x14\0data.csv", "zip archive");
        assert_named(b"PAR1\x15\x04\x15", "Parquet");
        assert_named(b"\x93NUMPY\x01\0", "NumPy file");
        assert_named(b"\x80\x04\x95\x10\0.", "pickle");
        assert_named(b"SQLite format 3\0\x10", "SQLite");
        assert_named(b"%PDF-1.7\n", "PDF");
        assert_named(b"\n<!DOCTYPE HTML>\n<html>", "HTML");
        assert_named(b"<!-- saved -->\n<!doctype html>\n", "HTML");
        assert_named(b"| a | label |\n|---|:--|\n| 1 | 0 |\n", "Markdown");
        assert_named(b"\0\0\0\x18ftypmp42", "MP4");
        assert_named(b"]\0\0\x80\0", "lzma");
        assert_named(b"\xef\xbb\xbf<?xml version=\"1.0\"?>", "XML");
        assert_named(b"<rows>\n<row a=\"1\"/>\n</rows>\n", "XML");
        assert_named(b"{\"a\": 1, \"label\": 0}\n{\"a\": 2, \"label\": 1}\n", "JSON");
        assert_named(b"[\n {\"a\": 1}\n]\n", "JSON");
        assert_named(b"[[1, 2], [3, 4]]", "JSON");
        assert_named(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS");
        assert_named(b"\x89PNG\r\n\x1a\n\0", "PNG");
        assert_named(b"% a comment\n@RELATION iris\n", "ARFF");
        assert_named(&[b"a.csv".as_slice(), &[0; 252], b"ustar\0"].concat(), "tar");
        assert_named(&[7, 1, 200, 3, 9, 0, 255, 4], "unknown format");
    }

    #[test]
    fn tables_are_not_taken_for_other_formats() {
        for text in [
            &b""[..],
            b"a,b,label\n1,2,0\n",
            b"BZh9,b,label\n1,2,0\n",
            b"PAR1,ORC,label\n1,2,0\n",
            b"GIF8,RIFF\n1,2\n",
            b"<5,x\n1,2\n",
            b"{x},label\n1,0\n",
            b"[1,2],0\n[3,4],1\n",
            b"BM,b\n1,2\n",
            b"M\xfcller,1\nM\xf6ller,2\n",
            b"1,\0,2\n3,4,5\n6,7,8\n",
            b"a,b\r\n1,2\r\n\x1a",
            b"1 1:2\n",
        ] {
            assert_eq!(recognize(text), None, "{}", String::from_utf8_lossy(text));
        }
    }
}
