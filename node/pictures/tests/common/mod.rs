//! Encoded pictures, and files that hold them.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::fs;
use std::io::{Cursor, Write};
use std::path::Path;

use flate2::Crc;
use flate2::write::{GzEncoder, ZlibEncoder};
use image::codecs::png::PngEncoder;
use image::codecs::webp::WebPEncoder;
use image::{DynamicImage, ImageEncoder, ImageFormat};

/// A WebP picture of one pixel with loss, which `image` reads and does not write.
pub const LOSSY_WEBP: [u8; 42] = [
    0x52, 0x49, 0x46, 0x46, 0x22, 0, 0, 0, 0x57, 0x45, 0x42, 0x50, 0x56, 0x50, 0x38, 0x20, 0x16, 0, 0, 0,
    0x30, 1, 0, 0x9d, 1, 0x2a, 1, 0, 1, 0, 0x0e, 0xc0, 0xfe, 0x25, 0xa4, 0, 3, 0x70, 0, 0, 0, 0,
];

pub fn encoded(image: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
    let mut bytes = vec![];
    image.into().write_to(&mut Cursor::new(&mut bytes), format).unwrap();
    bytes
}

pub fn png(image: impl Into<DynamicImage>) -> Vec<u8> {
    encoded(image, ImageFormat::Png)
}

/// A grey PNG of these rows.
pub fn grey(width: u32, values: &[u8]) -> image::GrayImage {
    image::GrayImage::from_raw(width, values.len() as u32 / width, values.to_vec()).unwrap()
}

/// A colourful picture.
pub fn colours(width: u32, height: u32) -> image::RgbImage {
    image::RgbImage::from_fn(width, height, |column, row| {
        image::Rgb([(column * 9) as u8, (row * 13) as u8, (column * row) as u8])
    })
}

/// The notes of a camera that was held in this way.
pub fn exif(orientation: u8) -> Vec<u8> {
    [b"II*\0\x08\0\0\0".as_slice(), &[1, 0, 0x12, 1, 3, 0, 1, 0, 0, 0, orientation, 0, 0, 0, 0, 0, 0, 0]]
        .concat()
}

pub fn png_with_exif(image: &image::GrayImage, orientation: u8) -> Vec<u8> {
    let mut bytes = vec![];
    let mut encoder = PngEncoder::new(&mut bytes);
    encoder.set_exif_metadata(exif(orientation)).unwrap();
    encoder.write_image(image, image.width(), image.height(), image::ExtendedColorType::L8).unwrap();
    bytes
}

pub fn jpeg_with_exif(image: impl Into<DynamicImage>, orientation: u8) -> Vec<u8> {
    let jpeg = encoded(image, ImageFormat::Jpeg);
    let notes = [b"Exif\0\0".as_slice(), &exif(orientation)].concat();
    let length = (notes.len() as u16 + 2).to_be_bytes();
    [&jpeg[..2], &[0xff, 0xe1], &length, &notes, &jpeg[2..]].concat()
}

/// A grey PNG with one bit for each of `width` x `height` pixels; `data` is what the pixels are packed into.
pub fn black_png(width: u32, height: u32, data: &[u8]) -> Vec<u8> {
    let header = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[1, 0, 0, 0, 0]].concat();
    let mut bytes = b"\x89PNG\r\n\x1a\n".to_vec();
    for (name, chunk) in [(b"IHDR", header.as_slice()), (b"IDAT", data), (b"IEND", &[])] {
        let mut check = Crc::new();
        check.update(name);
        check.update(chunk);
        bytes.extend((chunk.len() as u32).to_be_bytes());
        bytes.extend(name);
        bytes.extend(chunk);
        bytes.extend(check.sum().to_be_bytes());
    }
    bytes
}

/// What a PNG of so many black pixels is packed into.
pub fn black_rows(width: u32, height: u32) -> Vec<u8> {
    let mut packed = ZlibEncoder::new(vec![], flate2::Compression::default());
    let row = vec![0; width.div_ceil(8) as usize + 1];
    (0..height).for_each(|_| packed.write_all(&row).unwrap());
    packed.finish().unwrap()
}

/// A WebP animation of two frames without loss.
pub fn animation(first: &image::RgbImage, second: &image::RgbImage) -> Vec<u8> {
    let chunk = |name: &[u8; 4], data: &[u8]| {
        [name.as_slice(), &(data.len() as u32).to_le_bytes(), data, &vec![0; data.len() % 2]].concat()
    };
    let three = |number: u32| number.to_le_bytes()[..3].to_vec();
    let size = [three(first.width() - 1), three(first.height() - 1)].concat();
    let mut chunks = chunk(b"VP8X", &[&[0b10, 0, 0, 0], size.as_slice()].concat());
    chunks.extend(chunk(b"ANIM", &[0; 6]));
    for frame in [first, second] {
        let mut bytes = vec![];
        let encoder = WebPEncoder::new_lossless(&mut bytes);
        encoder.encode(frame, frame.width(), frame.height(), image::ExtendedColorType::Rgb8).unwrap();
        // Place, size, duration, flags; then the chunk of pixels.
        let frame = [&[0; 6], size.as_slice(), &three(100), &[0b10], &bytes[12..]].concat();
        chunks.extend(chunk(b"ANMF", &frame));
    }
    let length = (chunks.len() as u32 + 4).to_le_bytes();
    [b"RIFF".as_slice(), &length, b"WEBP", &chunks].concat()
}

pub fn write(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// A tar archive of these files.
pub fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(vec![]);
    for (name, bytes) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        // Not `append_data`, which refuses paths that lead out of the archive.
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        archive.append(&header, *bytes).unwrap();
    }
    archive.into_inner().unwrap()
}

pub fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(vec![], flate2::Compression::default());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}
