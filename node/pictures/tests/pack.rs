//! Folders and archives as one packed file.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::fs;
use std::io::{self, Cursor, Seek, SeekFrom, Write};
use std::path::Path;

use common::*;
use peergrad_pictures::{PackError, Packed, Shape, pack};

const THREADS: usize = 2;

fn shape() -> Shape {
    Shape::new(1, 1, 2).unwrap()
}

/// The packed file and what it holds.
fn packed_with(source: &Path, shape: Shape, threads: usize) -> Result<(Vec<u8>, Packed), PackError> {
    let mut out = Cursor::new(vec![]);
    let packed = pack(source, shape, threads, &mut out, &mut |_, _| {})?;
    assert_eq!(out.position(), out.get_ref().len() as u64);
    Ok((out.into_inner(), packed))
}

fn packed(source: &Path) -> (Vec<u8>, Packed) {
    packed_with(source, shape(), THREADS).unwrap()
}

fn words(source: &Path) -> String {
    packed_with(source, shape(), THREADS).unwrap_err().to_string()
}

fn picture(value: u8) -> Vec<u8> {
    png(grey(2, &[value, value + 1]))
}

/// Two classes with three pictures, sorted.
fn files() -> Vec<(&'static str, Vec<u8>)> {
    vec![("cat/1.png", picture(10)), ("cat/b/2.png", picture(20)), ("hound/1.png", picture(30))]
}

/// What the files above are packed into.
fn expected() -> Vec<u8> {
    [
        &[0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 2, 10, 11, 20, 21, 30, 31][..],
        &[0, 0, 8, 1, 0, 0, 0, 3, 0, 0, 1],
        &[0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 5],
        b"cat\0\0hound",
    ]
    .concat()
}

fn folder_of(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, bytes)| write(folder.path(), name, bytes));
    folder
}

fn archive_of(files: &[(String, Vec<u8>)]) -> tempfile::NamedTempFile {
    let files: Vec<_> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    file_of(&tar(&files))
}

fn file_of(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

#[test]
fn a_folder_becomes_three_arrays() {
    let folder = folder_of(&files());
    write(folder.path(), ".DS_Store", b"");
    write(folder.path(), "cat/Thumbs.db", b"");
    write(folder.path(), "README.txt", b"");
    let (bytes, packed) = packed(folder.path());
    assert_eq!(bytes, expected());
    let classes = vec![("cat".to_owned(), 2), ("hound".to_owned(), 1)];
    assert_eq!((packed.classes, packed.pictures), (classes, 3));
    assert_eq!((packed.broken_count, packed.broken, packed.empty_classes), (0, vec![], vec![]));
    assert_eq!((packed.without_class_count, packed.without_class), (1, vec!["README.txt".to_owned()]));
}

#[test]
fn colours_have_a_dimension_for_the_channels() {
    let folder = folder_of(&[("b/1.png", png(colours(2, 2))), ("a/1.png", png(colours(2, 2)))]);
    let (bytes, _) = packed_with(folder.path(), Shape::new(3, 2, 2).unwrap(), 1).unwrap();
    let header = [0, 0, 8, 4, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 2];
    assert_eq!(bytes[..header.len()], header);
    assert_eq!(bytes[header.len()..][..12], [0, 9, 0, 9, 0, 0, 13, 13, 0, 0, 0, 1]);
}

#[test]
fn a_packed_file_can_begin_anywhere() {
    let folder = folder_of(&files());
    let mut out = Cursor::new(b"before".to_vec());
    out.seek(SeekFrom::End(0)).unwrap();
    pack(folder.path(), shape(), 1, &mut out, &mut |_, _| {}).unwrap();
    assert_eq!(out.into_inner(), [b"before".as_slice(), &expected()].concat());
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for class in ["a", "b", "c"] {
        for file in 0..60 {
            write(folder.path(), &format!("{class}/{file}.png"), &png(colours(10 + file % 7, 9 + file)));
        }
    }
    write(folder.path(), "b/broken.png", b"no");
    let shape = Shape::new(3, 5, 6).unwrap();
    let alone = packed_with(folder.path(), shape, 0).unwrap();
    assert_eq!(packed_with(folder.path(), shape, 3).unwrap(), alone);
    assert_eq!(packed_with(folder.path(), shape, usize::MAX).unwrap(), alone);
    let mut heard = vec![];
    let mut out = Cursor::new(vec![]);
    pack(folder.path(), shape, 1, &mut out, &mut |done, of| heard.push((done, of))).unwrap();
    assert_eq!(heard, [(0, 181), (64, 181), (128, 181), (181, 181)]);
}

#[test]
fn archives_give_the_bytes_of_the_folder() {
    for prefix in ["", "./", "photos/", "./photos/", "/photos/", "../"] {
        let mut named: Vec<_> =
            files().into_iter().map(|(name, bytes)| (format!("{prefix}{name}"), bytes)).collect();
        let good = archive_of(&named);
        assert_eq!(packed(good.path()).0, expected(), "{prefix}");
        let bytes = fs::read(good.path()).unwrap();
        assert_eq!(packed(file_of(&gzipped(&bytes)).path()).0, expected(), "{prefix}");
        named.push((format!("{prefix}README"), vec![]));
        named.push((format!("{prefix}cat/._1.png"), vec![]));
        named.push(("__MACOSX/photos/cat/1.png".to_owned(), vec![]));
        let (bytes, packed) = packed(archive_of(&named).path());
        assert_eq!((bytes, packed.without_class), (expected(), vec![format!("{prefix}README")]));
    }
}

#[test]
fn an_archive_is_refused_if_it_is_damaged() {
    let named: Vec<_> = files().into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
    let bytes = fs::read(archive_of(&named).path()).unwrap();
    for length in [512 + 40, 1024 + 100, 2048 + 512 + 40] {
        let words = words(file_of(&bytes[..length]).path());
        assert!(words.contains("cannot be read to its end") && words.contains("copy it again"), "{words}");
    }
    let gzipped = gzipped(&bytes);
    let cut = words(file_of(&gzipped[..gzipped.len() - 20]).path());
    assert!(cut.contains("cannot be read"), "{cut}");
    let text = words(file_of(b"PK\x03\x04").path());
    assert!(text.contains("neither a folder nor a tar archive") && text.contains("unpack"), "{text}");
    let none = words(Path::new("/no/such/path"));
    assert!(none.contains("/no/such/path cannot be read: No such file"), "{none}");
}

#[test]
fn broken_files_are_counted() {
    let folder = folder_of(&files());
    (0..20).for_each(|file| write(folder.path(), &format!("hound/x/{file}.png"), &picture(7)));
    write(folder.path(), "cat/notes.txt", b"my cats");
    write(folder.path(), "hound/2.png", &picture(3)[..40]);
    fs::create_dir(folder.path().join("empty")).unwrap();
    write(folder.path(), "bird/1.gif", b"GIF89a");
    let error = words(folder.path());
    assert!(error.contains(" has 26 files, and more than one of 10 cannot be decoded"), "{error}");
    assert!(error.contains("`bird/1.gif` (this is a GIF file"), "{error}");
    assert!(
        error.ends_with("remove these files from the folder, or convert them to PNG, JPEG or WebP"),
        "{error}"
    );
    (20..40).for_each(|file| write(folder.path(), &format!("hound/x/{file}.png"), &picture(7)));
    let (bytes, packed) = packed(folder.path());
    assert_eq!(packed.classes, [("cat".to_owned(), 2), ("hound".to_owned(), 41)]);
    assert_eq!((packed.pictures, packed.broken_count), (43, 3));
    let broken: Vec<_> = packed.broken.iter().map(|broken| broken.path.as_str()).collect();
    assert_eq!(broken, ["bird/1.gif", "cat/notes.txt", "hound/2.png"]);
    assert_eq!(packed.empty_classes, ["bird", "empty"]);
    // The labels leave no gap where the class `bird` was.
    let labels = [&[0, 0, 8, 1, 0, 0, 0, 43, 0, 0][..], &[1; 41], b"\0\0\x08\x02"].concat();
    assert!(bytes.windows(labels.len()).any(|window| window == labels));
}

#[test]
fn more_than_256_classes_have_labels_of_32_bits() {
    let folder = tempfile::tempdir().unwrap();
    (0..257).for_each(|class| write(folder.path(), &format!("{class:03}/1.png"), &picture(1)));
    let (bytes, _) = packed(folder.path());
    let labels = &bytes[16 + 257 * 2..];
    assert_eq!(labels[..16], [0, 0, 0x0c, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(labels[8 + 256 * 4..][..16], [0, 0, 1, 0, 0, 0, 8, 2, 0, 0, 1, 1, 0, 0, 0, 3]);
    fs::remove_dir_all(folder.path().join("000")).unwrap();
    let (bytes, _) = packed(folder.path());
    assert_eq!(bytes[16 + 256 * 2..][..10], [0, 0, 8, 1, 0, 0, 1, 0, 0, 1]);
}

#[test]
fn a_source_without_two_classes_is_refused() {
    let loose = folder_of(&[("1.png", picture(1)), ("2.png", picture(2))]);
    let error = words(loose.path());
    assert!(error.contains("2 files and no folders") && error.contains("`photos/cat/1.jpg`"), "{error}");
    fs::create_dir(loose.path().join("empty")).unwrap();
    assert_eq!(words(loose.path()), error);
    let one = folder_of(&[("cat/1.png", picture(1))]);
    let error = words(one.path());
    assert!(error.contains("only one class, `cat`") && error.contains("add a folder"), "{error}");
    let below = folder_of(&[("photos/cat/1.png", picture(1)), ("photos/dog/1.png", picture(2))]);
    let error = words(below.path());
    assert!(error.contains(&format!("give `{}`", below.path().join("photos").display())), "{error}");
    let named = ["a/photos/cat/1.png", "a/photos/dog/1.png"].map(|name| (name.to_owned(), picture(1)));
    let error = words(archive_of(&named).path());
    assert!(error.contains("unpack the archive and give its folder `a/photos`"), "{error}");
    let good: Vec<_> = (0..30).map(|file| (format!("cat/{file}.png"), picture(1))).collect();
    let bad = [("dog/1.png".to_owned(), vec![])];
    let error = words(archive_of(&[&good[..], &bad].concat()).path());
    assert!(error.contains("only one class, `cat`"), "{error}");
}

#[test]
fn parts_of_a_data_set_are_no_classes() {
    let split = folder_of(&[("test/cat/1.png", picture(1)), ("Train/cat/1.png", picture(2))]);
    let error = words(split.path());
    assert!(error.contains("`Train`, `test`"), "{error}");
    assert!(error.ends_with(&format!("give `{}`", split.path().join("Train").display())), "{error}");
    let named = ["set/val/cat/1.png", "set/train/dog/1.png"].map(|name| (name.to_owned(), picture(1)));
    let error = words(archive_of(&named).path());
    assert!(error.contains("unpack the archive and give its folder `set/train`"), "{error}");
    let vehicles = folder_of(&[("bus/1.png", picture(1)), ("train/1.png", picture(2))]);
    assert_eq!(packed(vehicles.path()).1.classes.len(), 2);
}

#[test]
fn names_of_classes_are_text() {
    let control = folder_of(&[("cat/1.png", picture(1)), ("d\nog/1.png", picture(2))]);
    let error = words(control.path());
    assert!(error.contains("`d\u{fffd}og` has control characters") && error.contains("rename"), "{error}");
    let mut archive = tar::Builder::new(vec![]);
    for name in [format!("{}/1.png", "x".repeat(256)), "cat/1.png".to_owned()] {
        let mut header = tar::Header::new_gnu();
        header.set_size(1);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, &b"x"[..]).unwrap();
    }
    let error = words(file_of(&archive.into_inner().unwrap()).path());
    assert!(error.contains("more than 255 bytes"), "{error}");
}

#[cfg(unix)]
#[test]
fn names_that_are_not_utf8() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let folder = folder_of(&files());
    // A file may have any name.
    fs::write(folder.path().join("hound").join(OsStr::from_bytes(b"\xff.png")), picture(40)).unwrap();
    assert_eq!(packed(folder.path()).1.pictures, 4);
    fs::create_dir(folder.path().join(OsStr::from_bytes(b"bird\xff"))).unwrap();
    let error = words(folder.path());
    assert!(error.contains("`bird\u{fffd}` has a name that is not UTF-8"), "{error}");
}

#[cfg(unix)]
#[test]
fn links_to_files_are_followed_and_links_to_folders_are_not() {
    use std::os::unix::fs::symlink;

    let folder = folder_of(&files());
    let cat = folder.path().join("cat");
    symlink(folder.path(), cat.join("loop")).unwrap();
    symlink(&cat, folder.path().join("tiger")).unwrap();
    symlink(cat.join("1.png"), cat.join("3.png")).unwrap();
    let (_, linked) = packed(folder.path());
    assert_eq!((linked.pictures, linked.broken_count), (4, 0));
    assert_eq!(linked.without_class, ["tiger"]);
    (0..20).for_each(|file| write(folder.path(), &format!("hound/{file}.png"), &picture(7)));
    symlink("nowhere", cat.join("4.png")).unwrap();
    let (_, linked) = packed(folder.path());
    assert_eq!((linked.broken_count, linked.broken[0].path.as_str()), (1, "cat/4.png"));
}

/// A disk without space.
struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Full {
    fn seek(&mut self, _: SeekFrom) -> io::Result<u64> {
        Ok(0)
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let folder = folder_of(&files());
    let error = pack(folder.path(), shape(), 1, &mut Full, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, PackError::Write { .. }), "{error}");
    assert!(error.to_string().contains("no storage space"), "{error}");
}
