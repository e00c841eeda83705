//! Samples of a text: windows of equal length, whose tokens are bytes or numbers.
//!
//! ```text
//! text      |t0 t1 t2 t3|t4 t5 t6 t7|t8 ...          a context of 4
//! sample 0   t0 t1 t2 t3 -> t1 t2 t3 t4              each token predicts the next one
//! sample 1               t4 t5 t6 t7 -> t5 t6 t7 t8
//! ```
//! The last windows are held out, so that no held-out sentence stands between two that are trained.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{Inputs, Targets};
use crate::data::bytes::DataBytes;

/// Different bytes.
pub const VOCABULARY: usize = 256;

/// How a text is cut into samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextLayout {
    /// What a token is.
    pub tokens: TokenKind,
    /// Tokens of a sample.
    pub context: usize,
}

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenKind {
    /// A byte. The file is the text.
    Bytes,
    /// A number below the vocabulary. The file is a safetensors file with all tokens in one tensor, `tokens`.
    Prepared,
}

impl TextLayout {
    /// The number of samples of a text of so many tokens.
    #[must_use]
    pub fn samples(&self, tokens: u64) -> u64 {
        tokens.saturating_sub(1) / self.context.max(1) as u64
    }
}

/// The tokens of a text, somewhere in a file.
#[derive(Clone, Debug)]
pub struct Tokens {
    /// The file.
    pub bytes: DataBytes,
    /// Where the first token begins.
    pub start: u64,
    /// The number of tokens.
    pub count: u64,
    /// How each token is stored.
    pub width: TokenWidth,
}

/// How a token is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenWidth {
    /// In one byte.
    Byte,
    /// In four bytes, the lowest first.
    Four,
}

impl From<DataBytes> for Tokens {
    /// Each byte is a token.
    fn from(bytes: DataBytes) -> Self {
        Self { count: bytes.byte_count(), start: 0, width: TokenWidth::Byte, bytes }
    }
}

impl Tokens {
    /// Reads the tokens from a place on, as many as `window` has.
    ///
    /// - `window`: overwritten.
    fn read(&self, first: usize, window: &mut [u32]) {
        match self.width {
            TokenWidth::Byte => {
                let mut bytes = vec![0; window.len()];
                self.bytes.read_sample(self.start + first as u64, &mut bytes);
                window.iter_mut().zip(bytes).for_each(|(token, byte)| *token = byte.into());
            }
            TokenWidth::Four => {
                let mut bytes = vec![0; 4 * window.len()];
                self.bytes.read_sample(self.start + 4 * first as u64, &mut bytes);
                for (token, bytes) in window.iter_mut().zip(bytes.chunks_exact(4)) {
                    *token = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
                }
            }
        }
    }
}

/// The samples of a text.
#[derive(Clone, Debug)]
pub struct TextSamples {
    tokens: Tokens,
    layout: TextLayout,
    training: usize,
}

impl TextSamples {
    /// The samples of a text, of which the last `held_out` are held out.
    ///
    /// # Panics
    /// It has not so many.
    #[must_use]
    pub fn new(tokens: impl Into<Tokens>, layout: TextLayout, held_out: usize) -> Self {
        let tokens = tokens.into();
        let count = layout.samples(tokens.count) as usize;
        let training = count.checked_sub(held_out).expect("no more are held out than there are");
        Self { tokens, layout, training }
    }

    /// Samples that are trained.
    #[must_use]
    pub fn training(&self) -> Range<usize> {
        0..self.training
    }

    /// Samples that are never trained.
    #[must_use]
    pub fn held_out(&self) -> Range<usize> {
        self.training..self.layout.samples(self.tokens.count) as usize
    }

    /// Tokens of a sample.
    #[must_use]
    pub fn context(&self) -> usize {
        self.layout.context
    }

    /// These samples, counted from the first one of the text, and the tokens that come next.
    #[must_use]
    pub fn piece(&self, samples: impl Iterator<Item = usize>) -> (Inputs, Targets) {
        let context = self.layout.context;
        let (mut tokens, mut next, mut count) = (vec![], vec![], 0);
        let mut window = vec![0; context + 1];
        for sample in samples {
            self.tokens.read(sample * context, &mut window);
            tokens.extend_from_slice(&window[..context]);
            next.extend_from_slice(&window[1..]);
            count += 1;
        }
        (Inputs::Tokens { tokens, count }, Targets::Classes(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: TextLayout = TextLayout { tokens: TokenKind::Bytes, context: 4 };

    #[test]
    fn windows_follow_each_other() {
        let text = TextSamples::new(DataBytes::from(b"abcdefghijkl"), LAYOUT, 1);
        assert_eq!((text.training(), text.held_out()), (0..1, 1..2));
        let (inputs, targets) = text.piece([1, 0].into_iter());
        let numbers = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
        assert_eq!(inputs, Inputs::Tokens { tokens: numbers("efghabcd"), count: 2 });
        assert_eq!(targets, Targets::Classes(numbers("fghibcde")));
    }

    #[test]
    fn tokens_may_be_numbers() {
        let file: Vec<u8> = [7, 70_000, 1, 2, 3].iter().flat_map(|token: &u32| token.to_le_bytes()).collect();
        let bytes = DataBytes::from([&b"head"[..], &file].concat());
        let tokens = Tokens { bytes, start: 4, count: 5, width: TokenWidth::Four };
        let layout = TextLayout { tokens: TokenKind::Prepared, context: 2 };
        let (inputs, targets) = TextSamples::new(tokens, layout, 0).piece(0..2);
        assert_eq!(inputs, Inputs::Tokens { tokens: vec![7, 70_000, 1, 2], count: 2 });
        assert_eq!(targets, Targets::Classes(vec![70_000, 1, 2, 3]));
    }

    #[test]
    fn a_short_text_has_no_sample() {
        assert_eq!([0, 4, 5, 8, 9].map(|bytes| LAYOUT.samples(bytes)), [0, 0, 1, 1, 2]);
    }
}
