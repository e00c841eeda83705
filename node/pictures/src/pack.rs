//! A folder, or an archive of one, as one packed file.

use std::fs;
use std::io::{Seek, Write};
use std::path::Path;

use crate::archive::Archive;
use crate::folder::{Folder, unreadable};
use crate::layout::Layout;
use crate::pack_error::PackError;
use crate::packer::{Encoded, Packer, Picture};
use crate::shape::Shape;
use crate::sniff::is_tar;

/// What a packed file holds, and what was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// The classes, in the order of their labels: name, and number of pictures, which is never 0.
    pub classes: Vec<(String, usize)>,
    /// Number of pictures in all.
    pub pictures: usize,
    /// Number of files that cannot be decoded.
    pub broken_count: usize,
    /// The first 1000 of the files that cannot be decoded.
    pub broken: Vec<Broken>,
    /// Number of files beside the folders of the classes.
    pub without_class_count: usize,
    /// The first 10 files beside the folders of the classes: their paths in the source.
    pub without_class: Vec<String>,
    /// Names of folders without a single good picture, which are no classes.
    pub empty_classes: Vec<String>,
}

/// A file that cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Its path in the source; what is not UTF-8 is replaced.
    pub path: String,
    /// Why it cannot be decoded.
    pub reason: String,
}

/// Packs the pictures of `source` into one file.
///
/// `source` is a folder with a folder for each class, or a tar archive of such a folder, gzipped or not. A picture is any file below the
/// folder of its class, at any depth. Names that begin with a dot, `Thumbs.db`, `desktop.ini` and `__MACOSX` are left out. In a folder,
/// symbolic links to files are followed and those to folders are not; in an archive only regular files count, and a single folder around
/// all classes is no class.
///
/// The packed file has three IDX arrays, where `count` is the number of pictures:
/// - pictures: u8, (count, height, width) with one channel, else (count, channels, height, width); class after class, each sorted by path,
///   or in the order of the archive;
/// - labels: (count), u8 with at most 256 classes, else i32; they count from 0, in the order of the names sorted by bytes;
/// - names of the classes: u8, (classes, bytes of the longest name), UTF-8, filled up with zeros.
///
/// - `threads`: how many threads decode; 0 is as good as 1. The packed file does not depend on it.
/// - `out`: where the file is written, from its current position on.
/// - `progress`: hears how many files are done, and of how many. While the names in an archive are read, the second number is 0.
///
/// Memory: up to 128 MiB of encoded and as many of decoded pictures, and what each thread needs for one picture
/// ([`FILE_BYTES_MAX`](crate::FILE_BYTES_MAX), [`DECODED_BYTES_MAX`](crate::DECODED_BYTES_MAX)); of a folder also the paths of all files.
///
/// # Errors
/// If `source` cannot be read, is not laid out as above, has fewer than two classes with good pictures, more than 65,536 classes, or more
/// than 2^32 - 1 files; if more than a tenth of the files cannot be decoded; or if `out` cannot be written.
pub fn pack(
    source: &Path,
    shape: Shape,
    threads: usize,
    out: &mut (impl Write + Seek),
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Packed, PackError> {
    let read = |error: std::io::Error| unreadable(source, &error);
    let kind = fs::metadata(source).map_err(read)?;
    if kind.is_dir() {
        let Folder { layout, files } = Folder::list(source)?;
        let names = layout.names(source)?;
        let mut packer = Packer::begin((source, layout.files()), shape, threads, out, progress)?;
        for (class, files) in files.into_iter().enumerate() {
            for path in files {
                let name = path.strip_prefix(source).unwrap_or(&path).display().to_string();
                packer.push(Picture { class, name, encoded: Encoded::File(path) })?;
            }
        }
        packer.finish(names, layout.without_class)
    } else if kind.is_file() && is_tar(source).map_err(read)? {
        let archive = Archive::list(source, &mut |files| progress(files, 0))?;
        let names = archive.layout.names(source)?;
        let mut packer = Packer::begin((source, archive.layout.files()), shape, threads, out, progress)?;
        archive.for_each_picture(|file| {
            let encoded = Encoded::Bytes(file.bytes);
            packer.push(Picture { class: file.class, name: file.name, encoded })
        })?;
        let Layout { without_class, .. } = archive.layout;
        packer.finish(names, without_class)
    } else {
        Err(PackError::NoFolder { path: source.display().to_string() })
    }
}
