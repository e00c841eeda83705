//! The bytes of a data file: in memory, or on disk where they are read as samples are needed.
//!
//! Pictures and texts may be larger than the memory of a machine. The shell opens such a file, and hands it over as something that
//! [reads](ReadAt) at any place; this crate opens no files.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::sync::Arc;

use peergrad_protocol::id::ContentDigest;

use super::dense_table::unpack_at_most;
use super::error::DenseTableError;

/// Reads a file that stays where it is.
pub trait ReadAt: fmt::Debug + Send + Sync {
    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// The file cannot be read, or ends before.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
}

/// The bytes of a data file.
#[derive(Clone, Debug)]
pub enum DataBytes {
    /// They are in memory.
    Memory(Arc<[u8]>),
    /// They are in memory, unpacked from a gzipped file.
    Unpacked(Arc<Vec<u8>>),
    /// They are on disk. Such a file is not gzipped.
    Disk(DiskFile),
}

/// A file on disk, whose digest was computed when it was opened.
#[derive(Clone, Debug)]
pub struct DiskFile {
    /// What reads it.
    pub reader: Arc<dyn ReadAt>,
    /// Its length.
    pub byte_count: u64,
    /// The digest of its bytes.
    pub digest: ContentDigest,
}

impl DataBytes {
    /// The number of bytes.
    #[must_use]
    pub fn byte_count(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::Unpacked(bytes) => bytes.len() as u64,
            Self::Disk(file) => file.byte_count,
        }
    }

    /// The digest of the bytes.
    #[must_use]
    pub fn digest(&self) -> ContentDigest {
        match self {
            Self::Memory(bytes) => ContentDigest::of(bytes),
            Self::Unpacked(bytes) => ContentDigest::of(bytes),
            Self::Disk(file) => file.digest,
        }
    }

    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// There are fewer, or the disk does not give them.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes: &[u8] = match self {
            Self::Memory(bytes) => bytes,
            Self::Unpacked(bytes) => bytes,
            Self::Disk(file) => return file.reader.read_at(offset, out),
        };
        let start = usize::try_from(offset).ok().filter(|&start| start <= bytes.len());
        let found = start.and_then(|start| bytes[start..].get(..out.len()));
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    /// As [`read_at`](Self::read_at), for a sample in the middle of a training.
    ///
    /// # Panics
    /// The disk does not give the bytes any more. A peer that cannot read its samples has to stop.
    pub fn read_sample(&self, offset: u64, out: &mut [u8]) {
        if let Err(error) = self.read_at(offset, out) {
            panic!("the data file cannot be read any more ({error})");
        }
    }

    /// The first bytes, at most `count`.
    ///
    /// # Errors
    /// The disk does not give them.
    pub fn head(&self, count: usize) -> io::Result<Vec<u8>> {
        let mut head = vec![0; self.byte_count().min(count as u64) as usize];
        self.read_at(0, &mut head)?;
        Ok(head)
    }

    /// All bytes, in memory.
    ///
    /// # Errors
    /// The disk does not give them.
    pub fn all(&self) -> io::Result<Cow<'_, [u8]>> {
        match self {
            Self::Memory(bytes) => Ok(Cow::Borrowed(bytes)),
            Self::Unpacked(bytes) => Ok(Cow::Borrowed(bytes)),
            Self::Disk(_) => {
                let byte_count =
                    usize::try_from(self.byte_count()).map_err(|_| io::ErrorKind::OutOfMemory)?;
                self.head(byte_count).map(Cow::Owned)
            }
        }
    }
}

impl DataBytes {
    /// The bytes of the file `file`, unpacked if they are gzipped, to at most `limit` bytes.
    ///
    /// # Errors
    /// They are damaged or unpack to more.
    pub fn unpacked(&self, file: &str, limit: u64) -> Result<Self, DenseTableError> {
        let Self::Memory(bytes) = self else { return Ok(self.clone()) };
        Ok(match unpack_at_most(file, bytes, limit)? {
            Cow::Borrowed(_) => self.clone(),
            Cow::Owned(unpacked) => Self::Unpacked(Arc::new(unpacked)),
        })
    }
}

impl From<Arc<[u8]>> for DataBytes {
    fn from(bytes: Arc<[u8]>) -> Self {
        Self::Memory(bytes)
    }
}

impl From<Vec<u8>> for DataBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Memory(bytes.into())
    }
}

impl From<&[u8]> for DataBytes {
    fn from(bytes: &[u8]) -> Self {
        Self::Memory(bytes.into())
    }
}

impl From<&Vec<u8>> for DataBytes {
    fn from(bytes: &Vec<u8>) -> Self {
        Self::Memory(bytes.as_slice().into())
    }
}

impl<const N: usize> From<&[u8; N]> for DataBytes {
    fn from(bytes: &[u8; N]) -> Self {
        Self::Memory(bytes.as_slice().into())
    }
}

impl From<&Self> for DataBytes {
    fn from(bytes: &Self) -> Self {
        bytes.clone()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A disk that is a vector.
    #[derive(Debug)]
    struct Vector(Vec<u8>);

    impl ReadAt for Vector {
        fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            DataBytes::from(self.0.as_slice()).read_at(offset, out)
        }
    }

    /// These bytes as a file on disk.
    pub(crate) fn on_disk(bytes: &[u8]) -> DataBytes {
        DataBytes::Disk(DiskFile {
            reader: Arc::new(Vector(bytes.to_vec())),
            byte_count: bytes.len() as u64,
            digest: ContentDigest::of(bytes),
        })
    }

    #[test]
    fn memory_and_disk_give_the_same() {
        for bytes in [DataBytes::from(b"abcdef"), on_disk(b"abcdef")] {
            let mut out = [0; 3];
            bytes.read_at(2, &mut out).unwrap();
            assert_eq!(&out, b"cde");
            assert!(bytes.read_at(4, &mut out).is_err() && bytes.read_at(u64::MAX, &mut out).is_err());
            assert_eq!((bytes.byte_count(), bytes.digest()), (6, ContentDigest::of(b"abcdef")));
            assert_eq!(bytes.head(9).unwrap(), *bytes.all().unwrap());
        }
    }
}
