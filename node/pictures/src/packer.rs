//! Decodes pictures on several threads and writes them in the order in which they come.
//!
//! Pictures are collected until a chunk is full. The threads take them from the chunk one by one, so that a large picture stops only one
//! of them. Then the chunk is written, and the next one begins. So memory holds one chunk and one picture in work for each thread.

use std::io::{Seek, Write};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::counted::Counted;
use crate::decode::{PictureError, decode, read_picture};
use crate::idx_writer::IdxWriter;
use crate::limits::{
    BROKEN_KEPT_MAX, BROKEN_ONE_OF, CHUNK_BYTES, CHUNK_PICTURES_PER_THREAD, NAMED_MAX, THREADS_MAX,
};
use crate::pack::{Broken, Packed};
use crate::pack_error::{PackError, WriteError};
use crate::shape::Shape;

/// A packed file in work.
pub(crate) struct Packer<'a, W: Write + Seek> {
    /// The source, for errors.
    path: &'a Path,
    shape: Shape,
    threads: usize,
    /// Files of the source.
    files: usize,
    writer: IdxWriter<W>,
    progress: &'a mut dyn FnMut(usize, usize),
    chunk: Vec<Picture>,
    /// Bytes of the encoded pictures of the chunk that are in memory.
    chunk_bytes: usize,
    /// Files that were decoded, or were found to be broken.
    done: usize,
    /// For each picture that was written the place of its class.
    labels: Vec<u32>,
    broken: Counted<Broken>,
}

/// An encoded picture.
pub(crate) struct Picture {
    /// The place of its class among all classes.
    pub(crate) class: usize,
    /// Its path in the source, for messages.
    pub(crate) name: String,
    pub(crate) encoded: Encoded,
}

/// Where the bytes of an encoded picture are.
pub(crate) enum Encoded {
    /// In a file. The thread that decodes it also reads it.
    File(PathBuf),
    /// Here, unless they are too many.
    Bytes(Result<Vec<u8>, PictureError>),
}

impl<'a, W: Write + Seek> Packer<'a, W> {
    /// Begins a packed file for the `files` of the source at `path`.
    pub(crate) fn begin(
        (path, files): (&'a Path, usize),
        shape: Shape,
        threads: usize,
        out: W,
        progress: &'a mut dyn FnMut(usize, usize),
    ) -> Result<Self, PackError> {
        let writer = IdxWriter::begin(out, shape).map_err(WriteError)?;
        progress(0, files);
        Ok(Self {
            path,
            shape,
            threads: threads.clamp(1, THREADS_MAX),
            files,
            writer,
            progress,
            chunk: vec![],
            chunk_bytes: 0,
            done: 0,
            labels: vec![],
            broken: Counted::new(BROKEN_KEPT_MAX),
        })
    }

    /// Takes one more picture.
    pub(crate) fn push(&mut self, picture: Picture) -> Result<(), PackError> {
        if let Encoded::Bytes(Ok(bytes)) = &picture.encoded {
            self.chunk_bytes += bytes.len();
        }
        self.chunk.push(picture);
        let full = (self.threads * CHUNK_PICTURES_PER_THREAD).min(CHUNK_BYTES / self.shape.bytes());
        if self.chunk.len() >= full || self.chunk_bytes >= CHUNK_BYTES {
            self.decode_chunk()?;
        }
        Ok(())
    }

    fn decode_chunk(&mut self) -> Result<(), PackError> {
        self.chunk_bytes = 0;
        let decoded = decode_all(&self.chunk, self.shape, self.threads);
        for (picture, decoded) in self.chunk.drain(..).zip(decoded) {
            match decoded {
                Ok(pixels) => {
                    self.writer.picture(&pixels).map_err(WriteError)?;
                    self.labels.push(picture.class as u32);
                }
                Err(error) => {
                    self.broken.push(Broken { path: picture.name, reason: error.to_string() });
                }
            }
            self.done += 1;
        }
        if self.broken.count * BROKEN_ONE_OF > self.files {
            let broken = self.broken.first.iter().take(NAMED_MAX);
            let named = broken.map(|broken| format!("`{}` ({})", broken.path, broken.reason));
            let named = named.collect::<Vec<_>>().join(", ");
            let path = self.path.display().to_string();
            return Err(PackError::TooManyBroken { path, files: self.files, named });
        }
        (self.progress)(self.done, self.files);
        Ok(())
    }

    /// Writes what is left, the labels and the names of the classes that have pictures.
    ///
    /// - `names`: of all classes.
    pub(crate) fn finish(
        mut self,
        names: Vec<String>,
        without_class: Counted<String>,
    ) -> Result<Packed, PackError> {
        self.decode_chunk()?;
        let mut pictures = vec![0_usize; names.len()];
        self.labels.iter().for_each(|&class| pictures[class as usize] += 1);
        let (kept, empty): (Vec<_>, Vec<_>) =
            names.into_iter().zip(pictures.iter().copied()).partition(|(_, pictures)| *pictures > 0);
        if kept.len() < 2 {
            let found =
                kept.first().map_or("no class".to_owned(), |(name, _)| format!("only one class, `{name}`"));
            return Err(PackError::FewClasses { path: self.path.display().to_string(), found });
        }
        // The label of a class is its place among the classes that are kept.
        let mut label = 0;
        let labels_of: Vec<u32> = pictures
            .iter()
            .map(|&pictures| {
                let own = label;
                label += u32::from(pictures > 0);
                own
            })
            .collect();
        self.labels.iter_mut().for_each(|class| *class = labels_of[*class as usize]);
        let kept_names: Vec<&str> = kept.iter().map(|(name, _)| name.as_str()).collect();
        self.writer.finish(&self.labels, &kept_names).map_err(WriteError)?;
        Ok(Packed {
            pictures: self.labels.len(),
            classes: kept,
            broken_count: self.broken.count,
            broken: self.broken.first,
            without_class_count: without_class.count,
            without_class: without_class.first,
            empty_classes: empty.into_iter().map(|(name, _)| name).collect(),
        })
    }
}

impl Encoded {
    fn decode(&self, shape: Shape) -> Result<Vec<u8>, PictureError> {
        match self {
            Self::File(path) => read_picture(path, shape),
            Self::Bytes(Ok(bytes)) => decode(bytes, shape),
            Self::Bytes(Err(error)) => Err(error.clone()),
        }
    }
}

/// The pictures decoded, in their order.
fn decode_all(chunk: &[Picture], shape: Shape, threads: usize) -> Vec<Result<Vec<u8>, PictureError>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut decoded = vec![];
        while let Some((index, picture)) = take(&next, chunk) {
            // The decoders are those of others: a picture that they do not survive is a broken one.
            let outcome = catch_unwind(|| picture.encoded.decode(shape));
            let broken = |_| Err(PictureError::Damaged { reason: "the decoder gave up".to_owned() });
            decoded.push((index, outcome.unwrap_or_else(broken)));
        }
        decoded
    };
    let mut decoded = thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(chunk.len())).map(|_| scope.spawn(work)).collect();
        let mut decoded = work();
        for other in others {
            decoded.extend(other.join().expect("decoding does not panic"));
        }
        decoded
    });
    decoded.sort_unstable_by_key(|(index, _)| *index);
    decoded.into_iter().map(|(_, decoded)| decoded).collect()
}

/// The next picture that no thread has taken.
fn take<'a>(next: &AtomicUsize, chunk: &'a [Picture]) -> Option<(usize, &'a Picture)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    chunk.get(index).map(|picture| (index, picture))
}
