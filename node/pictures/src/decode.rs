//! One encoded picture as the bytes that a model sees.
//!
//! ```text
//! file -> pixels -> the middle, as wide and high in proportion as the shape -> shrunken -> turned as the camera was held -> planes
//! ```
//! The middle is cut out before the picture is shrunken, so that nothing is stretched and no pixel is computed for nothing. The cut is at whole
//! pixels of the picture; so the proportions are exact up to half a pixel.

use std::fs::{self, File};
use std::io::{Cursor, Read};
use std::path::Path;

use image::imageops::{self, FilterType};
use image::metadata::Orientation;
use image::{
    ColorType, DynamicImage, GenericImageView, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits,
    Rgb, RgbImage, Rgba,
};

use crate::complete::is_complete;
use crate::limits::{DECODED_BYTES_MAX, FILE_BYTES_MAX};
use crate::shape::Shape;

/// Why a picture cannot be decoded. No message has the name of the file, which is the caller's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PictureError {
    /// The bytes begin like no picture.
    #[error("this is not a PNG, JPEG or WebP picture; convert it to one of these formats")]
    NoPicture,
    /// The bytes begin like a picture of another format.
    #[error(
        "this is a {format} file, but only PNG, JPEG and WebP pictures can be read; convert it to one of these formats"
    )]
    Format {
        /// The format, such as GIF.
        format: String,
    },
    /// The picture says that it has no rows or no columns.
    #[error("the picture has {width} x {height} pixels, so there is nothing to see; remove it")]
    NoPixels {
        /// Pixels in a row.
        width: u32,
        /// Rows.
        height: u32,
    },
    /// The pixels would take more memory than [`DECODED_BYTES_MAX`].
    #[error(
        "the picture says that it has {width} x {height} pixels, which take more than {} MiB of memory; make it smaller",
        DECODED_BYTES_MAX >> 20
    )]
    TooManyPixels {
        /// Pixels in a row.
        width: u32,
        /// Rows.
        height: u32,
    },
    /// The decoder would need more memory than [`DECODED_BYTES_MAX`], for other things than pixels.
    #[error("decoding the picture takes more than {} MiB of memory; save it again", DECODED_BYTES_MAX >> 20)]
    TooMuchMemory,
    /// The file has more bytes than [`FILE_BYTES_MAX`].
    #[error("the file has more than {} MiB; make the picture smaller", FILE_BYTES_MAX >> 20)]
    FileTooLarge,
    /// The file stops before the end of the picture.
    #[error("the end of the picture is missing; copy the file again")]
    CutOff,
    /// The bytes are not what the format asks for.
    #[error("the picture is damaged ({reason}); copy the file again")]
    Damaged {
        /// What the decoder says.
        reason: String,
    },
    /// The operating system does not let us read the file, or it is not a file.
    #[error("the file cannot be read: {reason}")]
    Read {
        /// What the operating system says.
        reason: String,
    },
}

/// Reads a picture from a file and decodes it as [`decode`] does.
///
/// # Errors
/// If `path` is not a file, cannot be read, has more than [`FILE_BYTES_MAX`] bytes, or cannot be decoded.
pub fn read_picture(path: &Path, shape: Shape) -> Result<Vec<u8>, PictureError> {
    decode(&read_file(path)?, shape)
}

/// The bytes of a file, if they are not too many.
fn read_file(path: &Path) -> Result<Vec<u8>, PictureError> {
    let reason = |error: std::io::Error| PictureError::Read { reason: error.to_string() };
    // Opening a named pipe would wait for a program that writes into it.
    if !fs::metadata(path).map_err(reason)?.is_file() {
        return Err(PictureError::Read { reason: "it is not a file".to_owned() });
    }
    let file = File::open(path).map_err(reason)?;
    let length = file.metadata().map_err(reason)?.len();
    if length > FILE_BYTES_MAX {
        return Err(PictureError::FileTooLarge);
    }
    let mut bytes = Vec::with_capacity(length as usize);
    // The file may grow while it is read.
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(reason)?;
    if bytes.len() as u64 > FILE_BYTES_MAX { Err(PictureError::FileTooLarge) } else { Ok(bytes) }
}

/// Decodes one picture: PNG, JPEG or WebP, which its bytes tell.
///
/// Returns (channels, height, width) bytes: all rows of the first channel, then those of the next. The picture stands as the camera was
/// held (EXIF). Colours of 16 bits become 8 bits; what is transparent lies on white. With one channel the bytes are the luma of the colours;
/// with three channels a grey picture has three equal ones. An animation gives its first frame. The picture is shrunken, or enlarged, so
/// that the shape lies just within it, and its middle is cut out.
///
/// # Errors
/// If the bytes are not such a picture, are damaged or cut off, or if the pixels would take more than [`DECODED_BYTES_MAX`].
pub fn decode(bytes: &[u8], shape: Shape) -> Result<Vec<u8>, PictureError> {
    let format = format_of(bytes)?;
    if !is_complete(format, bytes) {
        return Err(PictureError::CutOff);
    }
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut limits = Limits::default();
    limits.max_alloc = Some(DECODED_BYTES_MAX);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(from_decoder)?;
    let (width, height) = decoder.dimensions();
    if width == 0 || height == 0 {
        return Err(PictureError::NoPixels { width, height });
    }
    if needed_bytes(&decoder) > DECODED_BYTES_MAX {
        return Err(PictureError::TooManyPixels { width, height });
    }
    // Where a camera's notes are damaged, the pixels may still be good.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let image = DynamicImage::from_decoder(decoder).map_err(from_decoder)?;
    let mut fitted = DynamicImage::ImageRgb8(fit(image, lying(shape, orientation)));
    fitted.apply_orientation(orientation);
    Ok(planes(fitted, shape.channels()))
}

/// The format that `bytes` begin with, if it is one that we decode.
fn format_of(bytes: &[u8]) -> Result<ImageFormat, PictureError> {
    match image::guess_format(bytes) {
        Ok(format @ (ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::WebP)) => Ok(format),
        Ok(other) => {
            let format = other.extensions_str().first().copied().unwrap_or("different").to_uppercase();
            Err(PictureError::Format { format })
        }
        // What telephones write.
        Err(_) if matches!(bytes.get(4..12), Some(b"ftypheic" | b"ftypheix" | b"ftypmif1" | b"ftypmsf1")) => {
            Err(PictureError::Format { format: "HEIC".to_owned() })
        }
        Err(_) => Err(PictureError::NoPicture),
    }
}

/// Bytes of the decoded pixels, and of a copy in 8-bit colours if they are something else.
fn needed_bytes(decoder: &impl ImageDecoder) -> u64 {
    let (width, height) = decoder.dimensions();
    let copy_bytes = if decoder.color_type() == ColorType::Rgb8 { 0 } else { 3 };
    // A product that does not fit into 64 bits becomes the largest number, which is too much in any case.
    let copy = (u64::from(width) * u64::from(height)).saturating_mul(copy_bytes);
    decoder.total_bytes().saturating_add(copy)
}

fn from_decoder(error: ImageError) -> PictureError {
    match error {
        ImageError::Limits(_) => PictureError::TooMuchMemory,
        ImageError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            PictureError::CutOff
        }
        other => PictureError::Damaged { reason: other.to_string() },
    }
}

/// Width and height of the fitted picture before it is turned.
fn lying(shape: Shape, orientation: Orientation) -> (u32, u32) {
    let (width, height) = (shape.width() as u32, shape.height() as u32);
    match orientation {
        Orientation::Rotate90
        | Orientation::Rotate270
        | Orientation::Rotate90FlipH
        | Orientation::Rotate270FlipH => (height, width),
        _ => (width, height),
    }
}

/// The middle of the picture with `width` x `height` pixels.
fn fit(image: DynamicImage, (width, height): (u32, u32)) -> RgbImage {
    let (from_left, from_top, window_width, window_height) = middle(image.dimensions(), (width, height));
    let opaque = match image {
        // Most photos: no copy.
        DynamicImage::ImageRgb8(colours) => {
            let window = imageops::crop_imm(&colours, from_left, from_top, window_width, window_height);
            return imageops::resize(&*window, width, height, FilterType::Triangle);
        }
        other => RgbImage::from_fn(window_width, window_height, |column, row| {
            over_white(other.get_pixel(from_left + column, from_top + row))
        }),
    };
    imageops::resize(&opaque, width, height, FilterType::Triangle)
}

/// Left, top, width and height of the largest part in the middle of a picture with the proportions of `wanted`.
///
/// - `picture`, `wanted`: width and height, none of them 0.
fn middle(picture: (u32, u32), wanted: (u32, u32)) -> (u32, u32, u32, u32) {
    let (width, height) = (u64::from(picture.0), u64::from(picture.1));
    let (wanted_width, wanted_height) = (u64::from(wanted.0), u64::from(wanted.1));
    // To the nearest whole pixel. The part is at most as large as the picture: where the exact number is, so is the rounded one.
    let part = |side: u64, numerator: u64, denominator: u64| {
        ((side * numerator + denominator / 2) / denominator).max(1) as u32
    };
    let (part_width, part_height) = if width * wanted_height > height * wanted_width {
        (part(height, wanted_width, wanted_height), picture.1)
    } else {
        (picture.0, part(width, wanted_height, wanted_width))
    };
    ((picture.0 - part_width) / 2, (picture.1 - part_height) / 2, part_width, part_height)
}

/// The colour of a pixel that lies on white paper.
fn over_white(Rgba([red, green, blue, alpha]): Rgba<u8>) -> Rgb<u8> {
    let alpha = u32::from(alpha);
    Rgb([red, green, blue]
        .map(|colour| ((u32::from(colour) * alpha + 255 * (255 - alpha) + 127) / 255) as u8))
}

/// (channels, height, width) bytes.
fn planes(image: DynamicImage, channels: usize) -> Vec<u8> {
    if channels == 1 {
        return image.into_luma8().into_raw();
    }
    let colours = image.into_rgb8();
    (0..channels).flat_map(|channel| colours.pixels().map(move |pixel| pixel.0[channel])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_has_the_proportions_of_the_shape() {
        assert_eq!(middle((6, 2), (2, 2)), (2, 0, 2, 2));
        assert_eq!(middle((2, 7), (4, 4)), (0, 2, 2, 2));
        assert_eq!(middle((400, 300), (200, 100)), (0, 50, 400, 200));
        assert_eq!(middle((5, 5), (5, 5)), (0, 0, 5, 5));
    }

    #[test]
    fn the_middle_is_within_the_picture() {
        for (width, height) in [(1, 1), (1, 65_535), (65_535, 1), (7, 4096), (u32::MAX, u32::MAX)] {
            for wanted in [(1, 1), (1, 4096), (4096, 1), (3, 2), (4096, 4096)] {
                let (left, top, part_width, part_height) = middle((width, height), wanted);
                assert!(part_width > 0 && part_height > 0);
                assert!(u64::from(left) + u64::from(part_width) <= u64::from(width));
                assert!(u64::from(top) + u64::from(part_height) <= u64::from(height));
            }
        }
    }
}
