//! Writes the packed file: pictures, labels and names of classes, each an IDX array.
//!
//! ```text
//! 0 0 type rank | each dimension: 32 bits, highest byte first | values ...
//! ```
//! How many pictures there are is known only when the last one is decoded. So the count is written as 0 first, and at the end again.

use std::io::{self, BufWriter, Seek, SeekFrom, Write};

use crate::shape::Shape;

/// The type of bytes.
const U8: u8 = 0x08;
/// The type of signed numbers of 32 bits, highest byte first.
const I32: u8 = 0x0c;

/// A packed file that is being written.
pub(crate) struct IdxWriter<W: Write + Seek> {
    out: BufWriter<W>,
    /// Where the file begins in `out`.
    start: u64,
}

impl<W: Write + Seek> IdxWriter<W> {
    /// Writes the header of pictures of this shape: (count, height, width) if they are grey, or (count, channels, height, width).
    pub(crate) fn begin(mut out: W, shape: Shape) -> io::Result<Self> {
        let start = out.stream_position()?;
        let mut writer = Self { out: BufWriter::with_capacity(1 << 18, out), start };
        let sides = [shape.height(), shape.width()];
        if shape.channels() == 1 {
            writer.header(U8, &[0, sides[0], sides[1]])?;
        } else {
            writer.header(U8, &[0, shape.channels(), sides[0], sides[1]])?;
        }
        Ok(writer)
    }

    /// Writes one picture.
    ///
    /// - `picture`: (channels, height, width).
    pub(crate) fn picture(&mut self, picture: &[u8]) -> io::Result<()> {
        self.out.write_all(picture)
    }

    /// Writes the labels and the names of the classes, and then how many pictures there are.
    ///
    /// - `labels`: one for each picture that was written, each the index of a name.
    pub(crate) fn finish(mut self, labels: &[u32], names: &[&str]) -> io::Result<()> {
        if names.len() <= usize::from(u8::MAX) + 1 {
            self.header(U8, &[labels.len()])?;
            labels.iter().try_for_each(|&label| self.out.write_all(&[label as u8]))?;
        } else {
            self.header(I32, &[labels.len()])?;
            labels.iter().try_for_each(|&label| self.out.write_all(&label.to_be_bytes()))?;
        }
        let longest = names.iter().map(|name| name.len()).max().unwrap_or(0);
        self.header(U8, &[names.len(), longest])?;
        for name in names {
            self.out.write_all(name.as_bytes())?;
            self.out.write_all(&vec![0; longest - name.len()])?;
        }
        let end = self.out.stream_position()?;
        // Behind the two zeros, the type and the rank.
        self.out.seek(SeekFrom::Start(self.start + 4))?;
        self.out.write_all(&dimension(labels.len()))?;
        self.out.seek(SeekFrom::Start(end))?;
        self.out.flush()
    }

    fn header(&mut self, kind: u8, shape: &[usize]) -> io::Result<()> {
        self.out.write_all(&[0, 0, kind, shape.len() as u8])?;
        shape.iter().try_for_each(|&extent| self.out.write_all(&dimension(extent)))
    }
}

fn dimension(extent: usize) -> [u8; 4] {
    u32::try_from(extent).expect("pictures, classes and sides are bounded").to_be_bytes()
}
