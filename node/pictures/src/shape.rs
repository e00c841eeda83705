//! The shape of packed pictures: channels, height and width.

use std::fmt;

use crate::limits::SIDE_MAX;

/// Channels, height and width of all pictures of a packed file: 1 channel (grey) or 3 (red, green, blue), and sides of 1 to [`SIDE_MAX`]
/// pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    channels: usize,
    height: usize,
    width: usize,
}

/// Numbers that are not the shape of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "pictures cannot have {channels} channels, {height} rows and {width} columns: give 1 channel (grey) or 3 (colour), and sides of 1 to {SIDE_MAX} pixels"
)]
pub struct ShapeError {
    channels: usize,
    height: usize,
    width: usize,
}

impl Shape {
    /// A shape of these `channels`, and of a `height` and `width` in pixels.
    ///
    /// # Errors
    /// If `channels` is not 1 or 3, or a side is 0 or longer than [`SIDE_MAX`].
    pub fn new(channels: usize, height: usize, width: usize) -> Result<Self, ShapeError> {
        let sides = 1..=SIDE_MAX;
        if matches!(channels, 1 | 3) && sides.contains(&height) && sides.contains(&width) {
            Ok(Self { channels, height, width })
        } else {
            Err(ShapeError { channels, height, width })
        }
    }

    /// Channels: 1 or 3.
    #[must_use]
    pub fn channels(self) -> usize {
        self.channels
    }

    /// Height in pixels.
    #[must_use]
    pub fn height(self) -> usize {
        self.height
    }

    /// Width in pixels.
    #[must_use]
    pub fn width(self) -> usize {
        self.width
    }

    /// Bytes of one picture: one for each channel of each pixel.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.channels * self.height * self.width
    }
}

/// As in `3 x 32 x 32`: channels, height, width.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {} x {}", self.channels, self.height, self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_has_one_or_three_channels_and_sides_in_range() {
        let shape = Shape::new(3, 4, 4096).unwrap();
        assert_eq!((shape.channels(), shape.height(), shape.width()), (3, 4, 4096));
        assert_eq!((shape.bytes(), shape.to_string()), (3 * 4 * 4096, "3 x 4 x 4096".to_owned()));
        for (channels, height, width) in [(2, 4, 4), (0, 4, 4), (1, 0, 4), (3, 4, 4097)] {
            let error = Shape::new(channels, height, width).unwrap_err().to_string();
            assert!(error.contains("1 to 4096 pixels"), "{error}");
        }
    }
}
