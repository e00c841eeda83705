//! Bounds: how large pictures, files and names may be, and how many of them are in memory at once.

/// The most pixels that a side of a packed picture may have.
pub const SIDE_MAX: usize = 4096;

/// The most bytes that the pixels of one picture may take, with the copy in 8-bit colours that some pictures need. A picture of 80
/// megapixels from a camera fits. A small file can claim to hold any number of pixels, and such a file is refused before it is decoded.
///
/// The decoder's own tables and the step between picture and shrunken picture come on top; both are a small multiple of the pixels at most.
pub const DECODED_BYTES_MAX: u64 = 256 << 20;

/// The most bytes that the file of one picture may have.
pub const FILE_BYTES_MAX: u64 = 256 << 20;

/// The most classes of a packed file.
pub(crate) const CLASSES_MAX: usize = 1 << 16;

/// The most bytes of the name of a class: what file systems allow.
pub(crate) const CLASS_NAME_BYTES_MAX: usize = 255;

/// How many broken files are kept with their names; all are counted.
pub(crate) const BROKEN_KEPT_MAX: usize = 1000;

/// How many files without a class are kept with their names; all are counted.
pub(crate) const WITHOUT_CLASS_KEPT_MAX: usize = 10;

/// How many broken files a message names.
pub(crate) const NAMED_MAX: usize = 3;

/// The most threads that decode.
pub(crate) const THREADS_MAX: usize = 256;

/// How many pictures each thread decodes before the pictures are written: many, because the threads start again for each chunk.
pub(crate) const CHUNK_PICTURES_PER_THREAD: usize = 64;

/// About how many bytes of encoded pictures a chunk holds, and about how many of decoded ones. A chunk has at least one picture.
pub(crate) const CHUNK_BYTES: usize = 128 << 20;

/// The part of the files that may be broken: one of so many.
pub(crate) const BROKEN_ONE_OF: usize = 10;

const _: () = assert!(CLASS_NAME_BYTES_MAX <= u8::MAX as usize && NAMED_MAX <= BROKEN_KEPT_MAX);
const _: () = assert!((SIDE_MAX * SIDE_MAX * 3) as u64 <= DECODED_BYTES_MAX);
