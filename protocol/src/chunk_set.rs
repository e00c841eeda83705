//! A set of chunks, for reports of what a member holds: one bit per chunk, at most 512 bytes.

use std::fmt;

use crate::limits::CHUNKS_MAX;
use crate::wire::codec::{Decode, Encode};

/// A set of chunks of a parameter vector.
#[derive(Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct ChunkSet {
    /// Chunk `c` is bit `c % 8` of byte `c / 8`. There are no zero bytes at the end.
    bits: Vec<u8>,
}

impl ChunkSet {
    /// The chunks from 0 up to `count`.
    #[must_use]
    pub fn all(count: usize) -> Self {
        (0..count).collect()
    }

    /// Adds a chunk.
    pub fn insert(&mut self, chunk: usize) {
        let byte = chunk / 8;
        if self.bits.len() <= byte {
            self.bits.resize(byte + 1, 0);
        }
        self.bits[byte] |= 1 << (chunk % 8);
    }

    /// Whether the set contains a chunk.
    #[must_use]
    pub fn contains(&self, chunk: usize) -> bool {
        self.bits.get(chunk / 8).is_some_and(|byte| byte & (1 << (chunk % 8)) != 0)
    }

    /// The chunks, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let of_byte = |(index, byte): (usize, &u8)| {
            let byte = *byte;
            (0..8).filter(move |bit| byte & (1 << bit) != 0).map(move |bit| 8 * index + bit)
        };
        self.bits.iter().enumerate().flat_map(of_byte)
    }

    /// The number of chunks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bits.iter().map(|byte| byte.count_ones() as usize).sum()
    }

    /// Whether all chunks of this set are in `others`.
    #[must_use]
    pub fn is_subset(&self, others: &Self) -> bool {
        self.iter().all(|chunk| others.contains(chunk))
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the set is within the limit and in its one form.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.bits.len() <= CHUNKS_MAX / 8 && self.bits.last() != Some(&0)
    }
}

impl Extend<usize> for ChunkSet {
    fn extend<I: IntoIterator<Item = usize>>(&mut self, chunks: I) {
        chunks.into_iter().for_each(|chunk| self.insert(chunk));
    }
}

impl FromIterator<usize> for ChunkSet {
    fn from_iter<I: IntoIterator<Item = usize>>(chunks: I) -> Self {
        let mut set = Self::default();
        set.extend(chunks);
        set
    }
}

impl fmt::Debug for ChunkSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} chunks", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_the_inserted_chunks() {
        let set: ChunkSet = [3, 0, 4095, 8].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 3, 8, 4095]);
        assert!(set.contains(8) && !set.contains(9) && !set.contains(100_000));
        assert_eq!((set.len(), set.is_valid(), set.is_empty()), (4, true, false));
        assert_eq!(ChunkSet::all(10).len(), 10);
    }

    #[test]
    fn odd_bytes_are_no_set() {
        assert!(!ChunkSet { bits: vec![1, 0] }.is_valid());
        assert!(!ChunkSet { bits: vec![1; CHUNKS_MAX / 8 + 1] }.is_valid());
        assert!(ChunkSet::default().is_valid());
    }
}
