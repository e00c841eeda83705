//! Pictures that a user names: a folder of them, an archive, or a single one. They are read only by a program with deep networks.

use std::path::{Path, PathBuf};

use super::files;

/// How the pictures of a folder are packed.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "pictures"), expect(dead_code, reason = "nothing packs pictures"))]
pub(super) struct PackSettings {
    /// Height and width of a packed picture.
    pub(super) side: usize,
    /// Whether colours are dropped.
    pub(super) grey: bool,
}

#[cfg(not(feature = "pictures"))]
mod of_this_program {
    use anyhow::bail;
    use peergrad_config::specification::SpecificationError;

    use super::{PackSettings, Path, PathBuf};

    pub(in super::super) fn are_at(path: &Path) -> bool {
        path.is_dir()
    }

    pub(in super::super) fn below(_: &Path) -> anyhow::Result<Vec<PathBuf>> {
        bail!(SpecificationError::NoBackend)
    }

    pub(in super::super) fn read(_: &Path, _: [usize; 3]) -> anyhow::Result<Vec<u8>> {
        bail!(SpecificationError::NoBackend)
    }

    pub(super) fn pack_into(_: &Path, _: PackSettings, _: &Path) -> anyhow::Result<Vec<String>> {
        bail!(SpecificationError::NoBackend)
    }
}

#[cfg(feature = "pictures")]
mod of_this_program {
    use std::io::{BufWriter, Write as _};

    use anyhow::Context;
    use indicatif::{ProgressBar, ProgressStyle};
    use peergrad_embed::text::text_table::{bytes, count, plural};
    use peergrad_embed::threads_of_one;
    use peergrad_pictures::{Packed, Shape, looks_like_pictures, pack, pictures_below, read_picture};

    use super::{PackSettings, Path, PathBuf, files};
    use crate::terminal::complain;

    /// The most names that a warning lists.
    const NAMES_SHOWN: usize = 5;

    /// Whether there are pictures at this path, in a folder, an archive or by themselves.
    pub(in super::super) fn are_at(path: &Path) -> bool {
        looks_like_pictures(path)
    }

    /// All pictures at and below this path.
    pub(in super::super) fn below(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
        Ok(pictures_below(path)?)
    }

    /// The bytes of one picture, in this shape: channels, height and width.
    pub(in super::super) fn read(
        path: &Path,
        [channels, height, width]: [usize; 3],
    ) -> anyhow::Result<Vec<u8>> {
        Ok(read_picture(path, Shape::new(channels, height, width)?)?)
    }

    /// Packs the pictures at `source` into the file `packed`, and returns what was left out, each a sentence.
    pub(super) fn pack_into(
        source: &Path,
        settings: PackSettings,
        packed: &Path,
    ) -> anyhow::Result<Vec<String>> {
        let PackSettings { side, grey } = settings;
        let shape = Shape::new(if grey { 1 } else { 3 }, side, side)?;
        let mut draft = files::draft_beside(packed)?;
        let bar = ProgressBar::new(0).with_style(
            ProgressStyle::with_template("packing pictures {bar:30} {pos}/{len}").expect("it is a template"),
        );
        let threads = threads_of_one(1).get().get();
        let mut progress = |done: usize, all: usize| {
            bar.set_length(all.max(done) as u64);
            bar.set_position(done as u64);
        };
        let mut out = BufWriter::new(draft.as_file_mut());
        let found = pack(source, shape, threads, &mut out, &mut progress)?;
        out.flush().with_context(|| format!("cannot write {}", packed.display()))?;
        drop(out);
        bar.finish_and_clear();
        let size = draft.as_file().metadata().map_or(0, |metadata| metadata.len());
        files::keep_draft(draft, packed)?;
        let said = format!(
            "packed {} of {} into {} ({} x {side} x {side} each, {} in all)",
            plural(found.pictures, "picture"),
            plural(found.classes.len(), "class"),
            packed.display(),
            if grey { 1 } else { 3 },
            bytes(size),
        );
        complain(&said);
        Ok(left_out(&found))
    }

    fn left_out(packed: &Packed) -> Vec<String> {
        let mut notices = vec![];
        if packed.broken_count > 0 {
            let shown = packed.broken.iter().take(NAMES_SHOWN);
            let shown: Vec<String> =
                shown.map(|broken| format!("{} ({})", broken.path, broken.reason)).collect();
            notices.push(listed(
                &plural(packed.broken_count, "file"),
                "that cannot be read as pictures",
                &shown,
                packed.broken_count,
            ));
        }
        if packed.without_class_count > 0 {
            let shown: Vec<String> = packed.without_class.iter().take(NAMES_SHOWN).cloned().collect();
            let count = packed.without_class_count;
            notices.push(listed(&plural(count, "file"), "that are in no folder of a class", &shown, count));
        }
        if !packed.empty_classes.is_empty() {
            let shown: Vec<String> = packed.empty_classes.iter().take(NAMES_SHOWN).cloned().collect();
            let count = packed.empty_classes.len();
            notices.push(listed(&plural(count, "class"), "without pictures", &shown, count));
        }
        notices
    }

    /// What was left out, with the first few names.
    fn listed(counted: &str, why: &str, shown: &[String], all: usize) -> String {
        let more = all - shown.len();
        let more = if more == 0 { String::new() } else { format!(" and {} more", count(more as u64)) };
        format!("left out {counted} {why}: {}{more}", shown.join(", "))
    }
}

pub(super) use of_this_program::{are_at, below, read};

/// Packs the pictures at `source` into one file beside it. Returns the file's path, and what was left out, each a sentence.
pub(super) fn pack(source: &Path, settings: PackSettings) -> anyhow::Result<(PathBuf, Vec<String>)> {
    let packed = packed_path(source);
    files::check_is_new(&packed, source)?;
    let notices = of_this_program::pack_into(source, settings, &packed)?;
    Ok((packed, notices))
}

/// Where the pictures at `source` are packed: `photos/` becomes `photos.idx`, and so does `photos.tar.gz`.
fn packed_path(source: &Path) -> PathBuf {
    let name =
        source.file_name().map_or_else(|| "pictures".into(), |name| name.to_string_lossy().into_owned());
    let lower = name.to_lowercase();
    let ending = [".tar.gz", ".tgz", ".tar"].into_iter().find(|ending| lower.ends_with(ending));
    let stem = &name[..name.len() - ending.map_or(0, str::len)];
    source.with_file_name(format!("{stem}.idx"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_files_lie_beside_their_source() {
        for (source, packed) in [
            ("photos", "photos.idx"),
            ("photos/", "photos.idx"),
            ("../my photos", "../my photos.idx"),
            ("a/photos.TAR.gz", "a/photos.idx"),
            ("v1.5", "v1.5.idx"),
            ("/", "/pictures.idx"),
        ] {
            assert_eq!(packed_path(Path::new(source)), Path::new(packed), "{source}");
        }
    }
}
