//! Codecs: how the elements of a segment look as bytes, exactly or with less precision.
//!
//! Asked for the distances on a long walk, one person reads out every metre, another rounds to kilometres, and a third
//! names only the three longest stretches. All are understood, and the shorter answers are quicker to say. A codec is one
//! such manner of speaking, fixed beforehand: who hears an answer can tell from its manner how to write it down.
//!
//! | codec | bytes for `n` elements | what gets lost |
//! |---|---|---|
//! | [`F32`](Codec::F32) | 4 n | nothing |
//! | [`Bf16`](Codec::Bf16) | 2 n | all but 8 binary digits: at most 2^-8 of an element |
//! | [`F16`](Codec::F16) | 2 n | all but 11 digits: at most 2^-11 of an element, between 6.1e-5 and 65504 |
//! | [`Int8`](Codec::Int8) | n + 4 for each 256 | at most 1/254 of the largest of 256 neighbours |
//! | [`TopK`](Codec::TopK), one in 100, bf16 | about 0.031 n | all but the largest, of which 8 digits are kept |
//!
//! # How it works
//! Who sends turns elements into bytes with [`Codec::encode`]; who receives turns them back with [`Codec::decode`]. The
//! sender often has to go on with what everybody else sees: [`Codec::encode_in_place`] leaves the decoded elements where
//! the elements were. What a lossy codec left out of a contribution is added to the next one by a
//! [`Residual`](crate::residual::Residual).
//!
//! A lossy codec is for segments that go straight to where they are used. A partial sum that is encoded again at each hop
//! of a ring loses something each time, so only an exact codec may ride a ring with sums; finished sums may be relayed as
//! the bytes they are. A payload's number of bytes follows from the codec and the number of elements, whatever these are.
//!
//! # Invariants
//! - The same elements are the same bytes on every machine, and the same bytes the same elements: bit operations, and
//!   single + - x / whose results are exact or rounded as IEEE 754 says. Bytes are little-endian.
//! - What was decoded once is the same bytes when it is encoded again, so a relay or a joiner may do so, as long as
//!   segments are cut alike: `encode` after `decode` after `encode` is `encode`.
//! - A finite element is never decoded as infinite: what is too large becomes the largest that the codec has.
//! - What is not finite is not hidden: the element, with [`Codec::Int8`] its block, is decoded as something not finite, and
//!   an owner sees that the sum is not to be used. [`Codec::TopK`] sends such elements first, and of more than it sends only some.
//! - Decoders neither panic nor allocate, whatever the bytes. They look for bytes that would lead outside the elements, or
//!   make a finite number infinite; other bytes that no encoder writes may pass.
//!
//! # Reading
//! - Kalamkar et al., *A Study of BFLOAT16 for Deep Learning Training*, 2019, section 3. Theirs flushes what is subnormal to
//!   zero and lets large numbers overflow; here neither happens.
//! - Micikevicius et al., *Mixed Precision Training*, 2018, section 3.2: why gradients fall out of the range of f16.
//! - Dettmers, *8-Bit Approximations for Parallelism in Deep Learning*, 2016. Blocks with a scale of their own as in Dettmers
//!   et al., *8-bit Optimizers via Block-wise Quantization*, 2022, section 2.1, but with evenly spaced codes.
//! - Lin et al., *Deep Gradient Compression*, 2018, for the largest elements. Its threshold is estimated from a sample and its
//!   momentum is corrected; here the threshold is exact and momentum is with the owner, behind the sum.

mod bf16;
mod f16;
mod int8;
mod positions;
mod top_k;

pub use top_k::{TopK, Values};

/// How elements look as bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codec {
    /// The elements themselves.
    #[default]
    F32,
    /// The upper half of an f32, rounded to nearest, ties to even.
    Bf16,
    /// IEEE 754 half precision, rounded to nearest, ties to even.
    F16,
    /// Whole numbers from -127 to 127, in blocks of 256 elements with a scale of their own.
    Int8,
    /// Only the largest elements, and where they are.
    TopK(TopK),
}

/// How the elements of a round travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Codecs {
    /// Contributions, on their way to an owner. A lossy one needs the direct topology.
    pub reduce: Codec,
    /// What an owner has made of them, on its way to everyone. Everyone goes on with what it is once it is decoded, the owner
    /// too.
    pub gather: Codec,
}

/// Bytes that are not what a codec makes of so many elements. The elements decoded so far are unspecified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// Another number of bytes than so many elements have.
    #[error("{found} encoded bytes where there should be {expected}")]
    Length {
        /// What the number of elements asks for.
        expected: usize,
        /// What has come.
        found: usize,
    },
    /// A block's scale that no encoder writes.
    #[error("a block of elements with an impossible scale")]
    Scale,
    /// A code that stands for no element.
    #[error("a code that stands for no element")]
    Code,
    /// Positions that are not a rising sequence within the segment, or not as many as there are values.
    #[error("elements at impossible positions")]
    Position,
}

impl Codec {
    /// Whether decoding gives back every element as it was.
    #[must_use]
    pub fn is_exact(self) -> bool {
        self == Self::F32
    }

    /// Bytes of `len` elements.
    #[must_use]
    pub fn encoded_len(self, len: usize) -> usize {
        match self {
            Self::F32 => len * size_of::<f32>(),
            Self::Bf16 | Self::F16 => len * size_of::<u16>(),
            Self::Int8 => int8::encoded_len(len),
            Self::TopK(top) => top.encoded_len(len),
        }
    }

    /// Fills `out` with what these elements are as bytes.
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

    /// Elements of a segment of `len` that can be encoded apart from those after them: whole blocks of the codec, about
    /// `elements_max` of them, or all where they depend on each other. Never 0.
    #[must_use]
    pub(crate) fn block_elements(self, len: usize, elements_max: usize) -> usize {
        match self {
            Self::F32 | Self::Bf16 | Self::F16 | Self::Int8 => {
                (elements_max - elements_max % BLOCK_ELEMENTS).max(BLOCK_ELEMENTS)
            }
            // The largest are those of the whole segment.
            Self::TopK(_) => len.max(1),
        }
    }

    /// As [`Codec::encode`], and turns each element into what it will be once it is decoded.
    ///
    /// # Panics
    /// If `out` is not [`encoded_len`](Self::encoded_len) bytes.
    pub fn encode_in_place(self, elements: &mut [f32], out: &mut [u8]) {
        assert_eq!(out.len(), self.encoded_len(elements.len()), "room for the elements");
        if self == Self::F32 {
            // Nothing changes.
            return self.encode(elements, out);
        }
        // While they are in the nearest cache.
        let block_elements = self.block_elements(elements.len(), BLOCK_ELEMENTS);
        let block_bytes = self.encoded_len(block_elements);
        for (block, out) in elements.chunks_mut(block_elements).zip(out.chunks_mut(block_bytes)) {
            self.encode(block, out);
            self.decode(out, block).expect("what was just encoded");
        }
    }

    /// Fills `out` with the elements that `bytes` stand for.
    ///
    /// # Errors
    /// The bytes are not those of so many elements; those in `out` are unspecified then.
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

// Arrays of known size instead of slices: their bounds are not checked element by element, and the compiler works on many
// elements at once.

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

/// An element without its sign: such numbers are in the order of the magnitudes, and what is not finite comes last.
fn magnitude(element: f32) -> u32 {
    element.to_bits() & (SIGN - 1)
}

/// Elements that are looked at together: those of an int8 scale.
const BLOCK_ELEMENTS: usize = 256;
/// The bit that is an element's sign.
pub(crate) const SIGN: u32 = 1 << 31;
/// The magnitude of what is infinite; beyond it is what is not a number.
pub(crate) const INFINITE: u32 = 0x7f80_0000;
