//! The manifest: the names and shapes of a model's tensors, and the cut of its flat parameter vector into chunks.
//!
//! Training code uses tensors; placement and transfer use chunks. The tensors lie one after the other in the flat vector, row-major, in the
//! order of the manifest. Chunks cut that vector into equal parts, without regard to tensors.
//!
//! ```text
//! tensors       | layer.0.weight (128, 64)            | layer.0.bias (128) | layer.1.weight ...
//! flat vector   0 ............................... 8192 .............. 8320 ...
//! chunks        |  0  |  1  |  2  |  3  |  4  | ...     sizes differ by at most one element
//! ```
//! A manifest is part of the specification of a run, so all members compute the same chunks.

use std::ops::Range;

use crate::limits::{CHUNK_ELEMENTS_MIN, CHUNKS_MAX, TENSORS_MAX};
use crate::wire::codec::{Decode, Encode};

/// Named tensors in the order in which they lie in the flat parameter vector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Manifest {
    tensors: Vec<Tensor>,
}

/// One named tensor, row-major.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Tensor {
    /// Unique within its manifest, e.g. `layer.0.weight`.
    pub name: String,
    /// Extent of each dimension; empty for a scalar.
    pub shape: Vec<u32>,
}

impl Tensor {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.iter().map(|&extent| extent as usize).product()
    }

    /// Whether any extent is zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Manifest {
    /// A manifest of one tensor. [`and`](Self::and) adds others:
    ///
    /// ```
    /// # use peergrad_protocol::manifest::Manifest;
    /// let manifest = Manifest::tensor("weight", [10, 64]).and("bias", [10]);
    /// assert_eq!(manifest.parameter_count(), 650);
    /// ```
    #[must_use]
    pub fn tensor(name: &str, shape: impl AsRef<[u32]>) -> Self {
        Self::default().and(name, shape)
    }

    /// Adds a tensor of this name and shape; the shape of a scalar is empty.
    ///
    /// # Panics
    /// If a tensor has this name already, or there are more than [`TENSORS_MAX`] tensors.
    #[must_use]
    pub fn and(mut self, name: &str, shape: impl AsRef<[u32]>) -> Self {
        let is_new = self.tensors.iter().all(|earlier| earlier.name != name);
        assert!(is_new, "two tensors are named {name}");
        self.tensors.push(Tensor { name: name.to_owned(), shape: shape.as_ref().to_vec() });
        assert!(self.tensors.len() <= TENSORS_MAX, "a model of {} tensors", self.tensors.len());
        self
    }

    /// A manifest of `(name, shape)` pairs.
    ///
    /// # Panics
    /// If a name occurs twice, or there are more than [`TENSORS_MAX`] tensors.
    #[must_use]
    pub fn new<'a>(tensors: impl IntoIterator<Item = (&'a str, &'a [u32])>) -> Self {
        tensors.into_iter().fold(Self::default(), |manifest, (name, shape)| manifest.and(name, shape))
    }

    /// The tensors in order, each with its range of elements in the flat vector.
    pub fn tensors(&self) -> impl Iterator<Item = (&Tensor, Range<usize>)> {
        let mut end = 0;
        self.tensors.iter().map(move |tensor| {
            let start = end;
            end += tensor.len();
            (tensor, start..end)
        })
    }

    /// The number of elements of the flat vector.
    #[must_use]
    pub fn parameter_count(&self) -> usize {
        self.tensors.iter().map(Tensor::len).sum()
    }

    /// The chunks of the flat vector.
    #[must_use]
    pub fn chunks(&self) -> Chunks {
        Chunks::of(self.parameter_count())
    }
}

/// A flat vector of `parameter_count` elements, cut into chunks whose sizes differ by at most one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    parameter_count: usize,
    count: usize,
}

impl Chunks {
    /// [`CHUNKS_MAX`] chunks, or fewer if a chunk would have less than [`CHUNK_ELEMENTS_MIN`] elements.
    #[must_use]
    pub fn of(parameter_count: usize) -> Self {
        Self::of_at_most(parameter_count, CHUNKS_MAX)
    }

    /// As [`Chunks::of`], with at most `chunks_max` chunks.
    ///
    /// # Panics
    /// If the number of chunks is 0 or more than [`CHUNKS_MAX`].
    #[must_use]
    pub fn of_at_most(parameter_count: usize, chunks_max: usize) -> Self {
        assert!((1..=CHUNKS_MAX).contains(&chunks_max), "{chunks_max} chunks");
        let count = (parameter_count / CHUNK_ELEMENTS_MIN).clamp(1, chunks_max);
        Self { parameter_count, count }
    }

    /// Exactly `count` chunks, some of them perhaps empty.
    ///
    /// # Panics
    /// If the number of chunks is 0 or more than [`CHUNKS_MAX`].
    #[must_use]
    pub fn cut_into(parameter_count: usize, count: usize) -> Self {
        assert!((1..=CHUNKS_MAX).contains(&count), "{count} chunks");
        Self { parameter_count, count }
    }

    /// The number of chunks: at least one, which may be empty.
    #[inline]
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The number of elements of the whole vector.
    #[inline]
    #[must_use]
    pub fn parameter_count(&self) -> usize {
        self.parameter_count
    }

    /// The range of elements of chunk `index` in the flat vector.
    ///
    /// # Panics
    /// If there is no such chunk.
    #[inline]
    #[must_use]
    pub fn range(&self, index: usize) -> Range<usize> {
        assert!(index < self.count, "chunk {index} of {}", self.count);
        // In 64 bits, because index x elements exceeds 32 bits before the number of elements does. That suffices for 2^51 elements.
        let bound = |i: usize| (i as u64 * self.parameter_count as u64 / self.count as u64) as usize;
        bound(index)..bound(index + 1)
    }

    /// The chunk that holds `element`.
    ///
    /// # Panics
    /// If the vector has no such element.
    #[inline]
    #[must_use]
    pub fn at(&self, element: usize) -> usize {
        assert!(element < self.parameter_count, "element {element} of {}", self.parameter_count);
        // Bounds of chunks are rounded down, so this is the last chunk that begins at or before the element.
        (((element as u64 + 1) * self.count as u64 - 1) / self.parameter_count as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tensors_lie_end_to_end() {
        let manifest = Manifest::new([("w", &[2, 3][..]), ("b", &[3]), ("scale", &[])]);
        let ranges: Vec<_> =
            manifest.tensors().map(|(tensor, range)| (tensor.name.as_str(), range)).collect();
        assert_eq!(ranges, [("w", 0..6), ("b", 6..9), ("scale", 9..10)]);
        assert_eq!(manifest.parameter_count(), 10);
    }

    #[test]
    #[should_panic(expected = "two tensors are named w")]
    fn names_are_unique() {
        let _ = Manifest::new([("w", &[1][..]), ("w", &[1])]);
    }

    proptest! {
        #[test]
        fn every_element_is_in_exactly_one_chunk(parameter_count in 0_usize..300_000) {
            let chunks = Chunks::of(parameter_count);
            let mut end = 0;
            for index in 0..chunks.count() {
                let range = chunks.range(index);
                prop_assert_eq!(range.start, end);
                if !range.is_empty() {
                    prop_assert_eq!([chunks.at(range.start), chunks.at(range.end - 1)], [index; 2]);
                }
                prop_assert!(range.len() >= CHUNK_ELEMENTS_MIN.min(parameter_count));
                end = range.end;
            }
            prop_assert_eq!(end, parameter_count);
        }
    }
}
