//! How pictures are changed at random while they are trained.

use std::fmt;
use std::str::FromStr;

use rand::Rng;

use super::convolutional::PictureShape;
use super::draws::generator;

/// A change of a picture that keeps its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Half of the pictures are mirrored from left to right.
    Flip,
    /// The picture moves by up to so many pixels in each direction; zeros come in.
    Shift {
        /// Pixels.
        pixels: usize,
    },
}

/// A text that is not a change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no change of a picture: give `flip`, or `shift N` with a number of pixels from 1 on")]
pub struct NotAChange(String);

impl FromStr for Change {
    type Err = NotAChange;

    fn from_str(text: &str) -> Result<Self, NotAChange> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            ["flip"] => Ok(Self::Flip),
            ["shift", pixels] => match pixels.parse() {
                Ok(pixels) if pixels > 0 => Ok(Self::Shift { pixels }),
                _ => Err(NotAChange(text.to_owned())),
            },
            _ => Err(NotAChange(text.to_owned())),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flip => f.write_str("flip"),
            Self::Shift { pixels } => write!(f, "shift {pixels}"),
        }
    }
}

/// Places of the generators of changes; those of layers count from 0.
const CHANGES: u64 = 1 << 32;

/// Changes one picture as its seed says.
///
/// - `picture`: (channels, height, width), overwritten.
pub(super) fn change(changes: &[Change], shape: PictureShape, seed: u64, picture: &mut [f32]) {
    for (place, change) in (CHANGES..).zip(changes) {
        let mut generator = generator(seed, place);
        match *change {
            Change::Flip if generator.next_u32() & 1 == 1 => {
                picture.chunks_mut(shape.width).for_each(<[f32]>::reverse);
            }
            Change::Flip => {}
            Change::Shift { pixels } => {
                let mut draw =
                    || (generator.next_u32() as usize % (2 * pixels + 1)) as isize - pixels as isize;
                shift(shape, draw(), draw(), picture);
            }
        }
    }
}

/// Moves a picture down and to the right; zeros come in.
fn shift(shape: PictureShape, down: isize, right: isize, picture: &mut [f32]) {
    let before = picture.to_vec();
    let PictureShape { height, width, .. } = shape;
    let source =
        |at: usize, by: isize, extent: usize| at.checked_add_signed(-by).filter(|&from| from < extent);
    for (channel, values) in picture.chunks_mut(height * width).enumerate() {
        for (row, values) in values.chunks_mut(width).enumerate() {
            for (column, value) in values.iter_mut().enumerate() {
                let from = source(row, down, height).zip(source(column, right, width));
                *value = from.map_or(0.0, |(row, column)| before[(channel * height + row) * width + column]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: PictureShape = PictureShape { channels: 2, height: 2, width: 3 };

    fn picture() -> Vec<f32> {
        (1..=12).map(|value| value as f32).collect()
    }

    #[test]
    fn a_shift_brings_zeros_in() {
        let mut moved = picture();
        shift(SHAPE, 1, -1, &mut moved);
        assert_eq!(moved, [0.0, 0.0, 0.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0, 8.0, 9.0, 0.0]);
    }

    #[test]
    fn changes_follow_the_seed() {
        let changed = |seed, changes: &[Change]| {
            let mut changed = picture();
            change(changes, SHAPE, seed, &mut changed);
            changed
        };
        let flipped = (0..64).filter(|&seed| changed(seed, &[Change::Flip]) != picture()).count();
        assert!((20..44).contains(&flipped), "{flipped}");
        let mirrored =
            (0..64).map(|seed| changed(seed, &[Change::Flip])).find(|found| *found != picture()).unwrap();
        assert_eq!(mirrored[..6], [3.0, 2.0, 1.0, 6.0, 5.0, 4.0]);
        let both = [Change::Flip, Change::Shift { pixels: 1 }];
        assert_eq!(changed(5, &both), changed(5, &both));
        assert_eq!(changed(5, &[]), picture());
    }

    #[test]
    fn changes_read_back_as_they_are_written() {
        for text in ["flip", "shift 4"] {
            assert_eq!(text.parse::<Change>().unwrap().to_string(), text);
        }
        for text in ["", "crop", "shift", "shift 0", "shift -1", "flip 2"] {
            let error = text.parse::<Change>().unwrap_err().to_string();
            assert!(error.contains("give `flip`"), "{error}");
        }
    }
}
