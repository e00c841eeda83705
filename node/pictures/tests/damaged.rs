//! Pictures that are cut off, and pictures with wrong bytes: an error in words or a picture, and never a panic.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::*;
use image::ImageFormat;
use peergrad_pictures::{Shape, decode};

fn pictures() -> Vec<(&'static str, Vec<u8>)> {
    let transparent = image::RgbaImage::from_fn(9, 11, |column, row| {
        image::Rgba([column as u8 * 20, row as u8, 7, (column * row) as u8])
    });
    vec![
        ("png", png(colours(21, 13))),
        ("transparent png", png(transparent.clone())),
        ("png with notes", png_with_exif(&grey(4, &[9; 16]), 5)),
        ("jpeg", jpeg_with_exif(colours(21, 13), 8)),
        ("webp", encoded(colours(21, 13), ImageFormat::WebP)),
        ("transparent webp", encoded(transparent, ImageFormat::WebP)),
        ("lossy webp", LOSSY_WEBP.to_vec()),
        ("animation", animation(&colours(6, 5), &colours(6, 5))),
    ]
}

#[test]
fn a_picture_that_is_cut_off_is_refused() {
    let shape = Shape::new(3, 4, 5).unwrap();
    for (name, bytes) in pictures() {
        decode(&bytes, shape).unwrap();
        // The last chunk of a PNG has nothing in it, nor has the byte that fills a WebP up.
        let needed = bytes.len() - if name.contains("png") { 12 } else { 1 };
        for length in 0..bytes.len() {
            let found = decode(&bytes[..length], shape);
            assert!(length >= needed || found.is_err(), "{name} with {length} of {} bytes", bytes.len());
        }
    }
}

#[test]
fn wrong_bytes_do_no_harm() {
    let shape = Shape::new(1, 4, 4).unwrap();
    let mut state = 1_u64;
    let mut draw = |below: usize| {
        // Knuth's generator; the low bits are poor.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let rounds = std::env::var("ROUNDS").map_or(1500, |rounds| rounds.parse().unwrap());
    for (_, good) in pictures() {
        for _ in 0..rounds {
            let mut bytes = good.clone();
            for _ in 0..=draw(4) {
                let at = draw(bytes.len());
                bytes[at] = draw(256) as u8;
            }
            if let Ok(picture) = decode(&bytes, shape) {
                assert_eq!(picture.len(), shape.bytes());
            }
        }
    }
}
