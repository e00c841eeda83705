//! Codecs: the encoding of a segment's elements as bytes, exact or lossy.
//!
//! Asked for distances, one person gives every metre, another rounds to kilometres, and a third names only the three longest stretches.
//! The shorter answers take less time. A codec is one such convention, and all members of a run use the same.
//!
//! | codec | bytes for `n` elements | error |
//! |---|---|---|
//! | [`F32`](Codec::F32) | 4 n | none |
//! | [`Bf16`](Codec::Bf16) | 2 n | 8 significant bits remain: at most 2^-8 of an element |
//! | [`F16`](Codec::F16) | 2 n | 11 significant bits remain: at most 2^-11 of an element, for magnitudes from 6.1e-5 to 65504 |
//! | [`Int8`](Codec::Int8) | n + 4 for each 256 | at most 1/254 of the largest magnitude in a block of 256 |
//! | [`TopK`](Codec::TopK), one in 100, bf16 | about 0.031 n | all but the largest elements become zero; those keep 8 significant bits |
//!
//! # How it works
//! The sender turns elements into bytes with [`Codec::encode`], and the receiver turns them back with [`Codec::decode`]. A sender often
//! has to continue with the decoded elements, as all others do: [`Codec::encode_in_place`] also replaces the elements by these. A
//! [`Residual`](crate::residual::Residual) adds what a lossy codec left out of a contribution to the next one.
//!
//! A lossy codec is for segments that go directly to their destination. A partial sum that is encoded again at each hop of a ring loses
//! precision each time, so sums travel around a ring only with an exact codec. Finished sums may be relayed, as unchanged bytes. The
//! number of bytes follows from the codec and the number of elements, whatever their values.
//!
//! # Invariants
//! - The same elements give the same bytes on every machine, and the same bytes the same elements. Only bit operations are used, and
//!   single + - x / whose results are exact or rounded as IEEE 754 says. Bytes are little-endian.
//! - Decoded elements give the same bytes when they are encoded again, if segments are cut alike: `encode` after `decode` after `encode`
//!   is `encode`. So a relay or a joiner may encode them again.
//! - A finite element is never decoded as infinite. If it is too large, it becomes the largest value of the codec.
//! - An element that is not finite is decoded as one that is not finite (with [`Codec::Int8`], its whole block is). So an owner sees that
//!   the sum must not be used. [`Codec::TopK`] sends such elements first; if there are more than it sends, it sends some of them.
//! - Decoders neither panic nor allocate, whatever the bytes. They reject bytes that would lead outside the elements, or make a finite
//!   number infinite. Some other bytes that no encoder writes are accepted.
//!
//! # Reading
//! - Kalamkar et al., *A Study of BFLOAT16 for Deep Learning Training*, 2019, section 3. Their version sets subnormal numbers to zero and
//!   lets large numbers overflow; ours does neither.
//! - Micikevicius et al., *Mixed Precision Training*, 2018, section 3.2: why gradients leave the range of f16.
//! - Dettmers, *8-Bit Approximations for Parallelism in Deep Learning*, 2016. One scale per block, as in Dettmers et al., *8-bit
//!   Optimizers via Block-wise Quantization*, 2022, section 2.1, but with evenly spaced codes.
//! - Lin et al., *Deep Gradient Compression*, 2018, for the largest elements. They estimate the threshold from a sample and correct the
//!   momentum. Here the threshold is exact, and the owner applies momentum to the sum.

mod bf16;
mod f16;
mod int8;
mod positions;
mod top_k;

pub use top_k::{TopK, Values};

/// The encoding of elements as bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codec {
    /// The elements themselves, as little-endian f32.
    #[default]
    F32,
    /// The upper half of an f32, rounded to nearest, ties to even.
    Bf16,
    /// IEEE 754 half precision, rounded to nearest, ties to even.
    F16,
    /// Integers from -127 to 127, times a scale for each block of 256 elements.
    Int8,
    /// Only the largest elements, with their positions.
    TopK(TopK),
}

/// The codecs of the two halves of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Codecs {
    /// For contributions on their way to an owner. A lossy one needs the direct topology.
    pub reduce: Codec,
    /// For the final values of an owner's shard on their way to all members. All members continue with the decoded values, the owner too.
    pub gather: Codec,
}

/// The bytes are not an encoding of the expected number of elements. The elements decoded so far are unspecified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The number of bytes is wrong.
    #[error("{found} encoded bytes; {expected} are expected")]
    Length {
        /// The number of bytes that these elements need.
        expected: usize,
        /// The number of bytes received.
        found: usize,
    },
    /// No encoder writes such a scale of a block.
    #[error("a block of elements has an impossible scale")]
    Scale,
    /// No encoder writes such a code.
    #[error("a code has no element")]
    Code,
    /// The positions are not a rising sequence within the segment, or their number is not that of the values.
    #[error("elements at impossible positions")]
    Position,
}

impl Codec {
    /// Whether decoding returns every element unchanged.
    #[must_use]
    pub fn is_exact(self) -> bool {
        self == Self::F32
    }

    /// The number of bytes of `len` elements.
    #[must_use]
    pub fn encoded_len(self, len: usize) -> usize {
        match self {
            Self::F32 => len * size_of::<f32>(),
            Self::Bf16 | Self::F16 => len * size_of::<u16>(),
            Self::Int8 => int8::encoded_len(len),
            Self::TopK(top) => top.encoded_len(len),
        }
    }

    /// Fills `out` with the encoding of `elements`.
    ///
    /// # Panics
    /// If `out` is not [`encoded_len`](Self::encoded_len) bytes.
    pub fn encode(self, elements: &[f32], out: &mut [u8]) {
        assert_eq!(out.len(), self.encoded_len(elements.len()), "room for the elements");
        match self {
            Self::F32 => encode_each(elements, out, f32::to_le_bytes),
            Self::Bf16 => bf16::encode(elements, out),
            Self::F16 => f16::encode(elements, out),
            Self::Int8 => int8::encode(elements, out),
            Self::TopK(top) => top.encode(elements, out),
        }
    }

    /// The number of elements of a segment of `len` that can be encoded separately from the following ones: whole blocks of the codec,
    /// about `elements_max` elements, or all if they depend on each other. Never 0.
    #[must_use]
    pub(crate) fn block_elements(self, len: usize, elements_max: usize) -> usize {
        match self {
            Self::F32 | Self::Bf16 | Self::F16 | Self::Int8 => {
                (elements_max - elements_max % BLOCK_ELEMENTS).max(BLOCK_ELEMENTS)
            }
            // The largest elements are chosen from the whole segment.
            Self::TopK(_) => len.max(1),
        }
    }

    /// As [`Codec::encode`], and replaces each element by its decoded value.
    ///
    /// # Panics
    /// If `out` is not [`encoded_len`](Self::encoded_len) bytes.
    pub fn encode_in_place(self, elements: &mut [f32], out: &mut [u8]) {
        assert_eq!(out.len(), self.encoded_len(elements.len()), "room for the elements");
        if self == Self::F32 {
            // Decoded values are the elements.
            return self.encode(elements, out);
        }
        // Block by block, so that elements are decoded while they are in the nearest cache.
        let block_elements = self.block_elements(elements.len(), BLOCK_ELEMENTS);
        let block_bytes = self.encoded_len(block_elements);
        for (block, out) in elements.chunks_mut(block_elements).zip(out.chunks_mut(block_bytes)) {
            self.encode(block, out);
            self.decode(out, block).expect("what was just encoded");
        }
    }

    /// Fills `out` with the decoded elements.
    ///
    /// # Errors
    /// The bytes are no encoding of `out.len()` elements; the contents of `out` are then unspecified.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
        let expected = self.encoded_len(out.len());
        if bytes.len() != expected {
            return Err(CodecError::Length { expected, found: bytes.len() });
        }
        match self {
            Self::F32 => decode_each(bytes, out, f32::from_le_bytes),
            Self::Bf16 => decode_each(bytes, out, |bytes| bf16::decode(u16::from_le_bytes(bytes))),
            Self::F16 => decode_each(bytes, out, |bytes| f16::decode(u16::from_le_bytes(bytes))),
            Self::Int8 => int8::decode(bytes, out)?,
            Self::TopK(top) => top.decode(bytes, out)?,
        }
        Ok(())
    }
}

// Arrays of known size instead of slices: their bounds are not checked for each element, and the compiler can process several elements
// at once.

fn encode_each<const N: usize>(elements: &[f32], out: &mut [u8], encode: impl Fn(f32) -> [u8; N]) {
    for (bytes, element) in out.as_chunks_mut().0.iter_mut().zip(elements) {
        *bytes = encode(*element);
    }
}

fn decode_each<const N: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
    for (element, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *element = decode(*bytes);
    }
}

/// The bits of an element without its sign. As integers they are in the order of the magnitudes, and elements that are not finite come
/// last.
fn magnitude(element: f32) -> u32 {
    element.to_bits() & (SIGN - 1)
}

/// Elements that are processed together, and share one scale with int8.
const BLOCK_ELEMENTS: usize = 256;
/// The bit that is an element's sign.
pub(crate) const SIGN: u32 = 1 << 31;
/// The magnitude of infinity; greater ones are NaN.
pub(crate) const INFINITE: u32 = 0x7f80_0000;
