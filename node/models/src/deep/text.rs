//! Samples of a text: windows of equal length, whose tokens are bytes.
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
    /// A byte.
    Bytes,
}

impl TextLayout {
    /// The number of samples of a text of so many bytes.
    #[must_use]
    pub fn samples(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(1) / self.context.max(1) as u64
    }
}

/// The samples of a text.
#[derive(Clone, Debug)]
pub struct TextSamples {
    bytes: DataBytes,
    layout: TextLayout,
    training: usize,
}

impl TextSamples {
    /// The samples of a text, of which the last `held_out` are held out.
    ///
    /// # Panics
    /// It has not so many.
    #[must_use]
    pub fn new(bytes: DataBytes, layout: TextLayout, held_out: usize) -> Self {
        let count = layout.samples(bytes.byte_count()) as usize;
        let training = count.checked_sub(held_out).expect("no more are held out than there are");
        Self { bytes, layout, training }
    }

    /// Samples that are trained.
    #[must_use]
    pub fn training(&self) -> Range<usize> {
        0..self.training
    }

    /// Samples that are never trained.
    #[must_use]
    pub fn held_out(&self) -> Range<usize> {
        self.training..self.layout.samples(self.bytes.byte_count()) as usize
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
            self.bytes.read_sample((sample * context) as u64, &mut window);
            tokens.extend(window[..context].iter().map(|&byte| u32::from(byte)));
            next.extend(window[1..].iter().map(|&byte| u32::from(byte)));
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
        let text = TextSamples::new(b"abcdefghijkl".into(), LAYOUT, 1);
        assert_eq!((text.training(), text.held_out()), (0..1, 1..2));
        let (inputs, targets) = text.piece([1, 0].into_iter());
        let numbers = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
        assert_eq!(inputs, Inputs::Tokens { tokens: numbers("efghabcd"), count: 2 });
        assert_eq!(targets, Targets::Classes(numbers("fghibcde")));
    }

    #[test]
    fn a_short_text_has_no_sample() {
        assert_eq!([0, 4, 5, 8, 9].map(|bytes| LAYOUT.samples(bytes)), [0, 0, 1, 1, 2]);
    }
}
