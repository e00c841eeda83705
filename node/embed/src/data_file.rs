//! A data file on this machine: read into memory if it is small, and otherwise where it lies.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use peergrad_models::data::bytes::{DataBytes, DiskFile, ReadAt};
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::KEPT_DATA_BYTES_MAX;

/// Opens a data file. A large one that is not gzipped stays on disk.
///
/// # Errors
/// It cannot be read.
pub fn open_data(path: &Path) -> io::Result<DataBytes> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.len() > KEPT_DATA_BYTES_MAX {
        return on_disk_unless_gzipped(file, metadata.len());
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes.into())
}

fn on_disk_unless_gzipped(mut file: File, byte_count: u64) -> io::Result<DataBytes> {
    const GZIP_MARK: [u8; 2] = [0x1f, 0x8b];
    let reader = OpenFile::new(file.try_clone()?);
    let mut mark = [0; GZIP_MARK.len()];
    reader.read_at(0, &mut mark)?;
    if mark == GZIP_MARK {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        return Ok(bytes.into());
    }
    let digest = ContentDigest::of_reader(file.take(byte_count))?;
    Ok(DataBytes::Disk(DiskFile { reader: Arc::new(reader), byte_count, digest }))
}

/// An open file. It can be read even after another one has taken its name.
#[cfg(unix)]
#[derive(Debug)]
struct OpenFile(File);

#[cfg(unix)]
impl OpenFile {
    fn new(file: File) -> Self {
        Self(file)
    }
}

#[cfg(unix)]
impl ReadAt for OpenFile {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.0, out, offset)
    }
}

/// An open file, which one thread reads at a time.
#[cfg(not(unix))]
#[derive(Debug)]
struct OpenFile(std::sync::Mutex<File>);

#[cfg(not(unix))]
impl OpenFile {
    fn new(file: File) -> Self {
        Self(std::sync::Mutex::new(file))
    }
}

#[cfg(not(unix))]
impl ReadAt for OpenFile {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        use std::io::{Seek, SeekFrom};
        let mut file = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_file_stays_on_disk() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        let file = File::create(&path).unwrap();
        file.set_len(KEPT_DATA_BYTES_MAX + 1).unwrap();
        let bytes = open_data(&path).unwrap();
        assert!(matches!(bytes, DataBytes::Disk(_)));
        assert_eq!(bytes.byte_count(), KEPT_DATA_BYTES_MAX + 1);
        assert_eq!(bytes.digest(), ContentDigest::of(&bytes.all().unwrap()));
        std::fs::remove_file(&path).unwrap();
        let mut out = [1; 4];
        bytes.read_at(KEPT_DATA_BYTES_MAX - 3, &mut out).unwrap();
        assert_eq!(out, [0; 4], "it is still open");
        assert!(bytes.read_at(KEPT_DATA_BYTES_MAX - 2, &mut out).is_err());
    }

    #[test]
    fn small_and_gzipped_files_are_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("small");
        std::fs::write(&path, b"1,2\n").unwrap();
        assert!(matches!(open_data(&path).unwrap(), DataBytes::Memory(_)));
        let packed = File::create(&path).unwrap();
        std::io::Write::write_all(&mut &packed, &[0x1f, 0x8b]).unwrap();
        packed.set_len(KEPT_DATA_BYTES_MAX + 1).unwrap();
        assert!(matches!(open_data(&path).unwrap(), DataBytes::Memory(_)));
    }
}
