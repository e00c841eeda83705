//! What a path holds, by its first bytes: a folder, an archive, a picture, or something else.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use image::ImageFormat;

/// The first two bytes of a gzipped file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Where the header of the first file of a tar archive says that it is one, and the word.
const TAR_WORD: (usize, &[u8]) = (257, b"ustar");

/// The bytes of a header in a tar archive.
const TAR_HEADER_BYTES: usize = 512;

/// Whether `path` is something to make data or predictions of: a folder, a tar archive, a gzipped tar archive, or a PNG, JPEG or WebP
/// picture. The names of files do not count, only their first bytes. `false` if the path cannot be read.
#[must_use]
pub fn looks_like_pictures(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => true,
        Ok(found) if found.is_file() => is_tar(path).unwrap_or(false) || is_picture(path).unwrap_or(false),
        _ => false,
    }
}

fn is_picture(path: &Path) -> io::Result<bool> {
    let start = start_of(File::open(path)?)?;
    let format = image::guess_format(&start);
    Ok(matches!(format, Ok(ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::WebP)))
}

/// Whether the file, gunzipped if it is gzipped, begins like a tar archive. `path` is a file.
pub(crate) fn is_tar(path: &Path) -> io::Result<bool> {
    let (at, word) = TAR_WORD;
    Ok(start_of(unpacked(path)?)?.get(at..at + word.len()) == Some(word))
}

/// The bytes of a file, gunzipped if it is gzipped.
pub(crate) fn unpacked(path: &Path) -> io::Result<Box<dyn Read>> {
    let mut file = File::open(path)?;
    let mut start = vec![];
    file.by_ref().take(GZIP.len() as u64).read_to_end(&mut start)?;
    file.seek(SeekFrom::Start(0))?;
    let file = BufReader::with_capacity(1 << 18, file);
    Ok(if start == GZIP { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) })
}

/// The first bytes, fewer if there are no more.
fn start_of(reader: impl Read) -> io::Result<Vec<u8>> {
    let mut start = vec![];
    reader.take(TAR_HEADER_BYTES as u64).read_to_end(&mut start)?;
    Ok(start)
}
