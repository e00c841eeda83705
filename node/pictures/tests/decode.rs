//! Single pictures: pixels by hand, and files that are no good pictures.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::*;
use image::{DynamicImage, ImageBuffer, ImageFormat, Luma, LumaA, Rgb, RgbImage, Rgba};
use peergrad_pictures::{PictureError, Shape, decode, looks_like_pictures, pictures_below, read_picture};

fn shape(channels: usize, height: usize, width: usize) -> Shape {
    Shape::new(channels, height, width).unwrap()
}

#[test]
fn colours_are_planes() {
    let picture = RgbImage::from_raw(2, 1, vec![1, 2, 3, 4, 5, 6]).unwrap();
    let lossless = [png(picture.clone()), encoded(picture, ImageFormat::WebP)];
    for bytes in lossless {
        assert_eq!(decode(&bytes, shape(3, 1, 2)).unwrap(), [1, 4, 2, 5, 3, 6]);
    }
}

#[test]
fn colours_become_luma_and_grey_becomes_three_channels() {
    let red = RgbImage::from_pixel(1, 1, Rgb([255, 0, 0]));
    assert_eq!(decode(&png(red), shape(1, 1, 1)).unwrap(), [54]);
    let rows = grey(2, &[7, 9]);
    assert_eq!(decode(&png(rows.clone()), shape(3, 1, 2)).unwrap(), [7, 9, 7, 9, 7, 9]);
    let every = grey(16, &(0..=255).collect::<Vec<u8>>());
    assert_eq!(decode(&png(every.clone()), shape(1, 16, 16)).unwrap(), every.into_raw());
}

#[test]
fn what_is_transparent_lies_on_white() {
    let pixels = vec![0, 0, 0, 128, 10, 20, 30, 0, 10, 20, 30, 255];
    let picture = image::RgbaImage::from_raw(3, 1, pixels).unwrap();
    assert_eq!(decode(&png(picture), shape(3, 1, 3)).unwrap(), [127, 255, 10, 127, 255, 20, 127, 255, 30]);
    let picture = ImageBuffer::from_raw(2, 1, vec![0_u8, 51, 0, 255]).unwrap();
    let picture: ImageBuffer<LumaA<u8>, _> = picture;
    assert_eq!(decode(&png(picture), shape(1, 1, 2)).unwrap(), [204, 0]);
}

#[test]
fn sixteen_bits_become_eight() {
    let picture: ImageBuffer<Luma<u16>, _> = ImageBuffer::from_raw(3, 1, vec![0, 0x8080, u16::MAX]).unwrap();
    assert_eq!(decode(&png(picture), shape(1, 1, 3)).unwrap(), [0, 0x80, 255]);
    let pixels = vec![0, u16::MAX, 0x1010, 0];
    let picture: ImageBuffer<Rgba<u16>, _> = ImageBuffer::from_raw(1, 1, pixels).unwrap();
    assert_eq!(decode(&png(picture), shape(3, 1, 1)).unwrap(), [255; 3]);
    let picture: ImageBuffer<Rgb<u16>, _> = ImageBuffer::from_raw(1, 1, vec![0, u16::MAX, 0x1010]).unwrap();
    assert_eq!(decode(&png(picture), shape(3, 1, 1)).unwrap(), [0, 255, 0x10]);
}

#[test]
fn the_middle_is_cut_out_and_shrunken() {
    let wide = grey(4, &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(decode(&png(wide), shape(1, 2, 2)).unwrap(), [2, 3, 6, 7]);
    let high = grey(1, &[1, 2, 3]);
    assert_eq!(decode(&png(high), shape(1, 1, 1)).unwrap(), [2]);
    // All pixels count, not the nearest one.
    let mean = decode(&png(grey(2, &[0, 100, 100, 200])), shape(1, 1, 1)).unwrap();
    assert_eq!(mean, [100]);
    let stripes: Vec<u8> = (0..64 * 64).map(|pixel| if pixel % 2 == 0 { 0 } else { 200 }).collect();
    let shrunken = decode(&png(grey(64, &stripes)), shape(1, 4, 4)).unwrap();
    assert!(shrunken.iter().all(|&value| (92..=108).contains(&value)), "{shrunken:?}");
}

#[test]
fn a_picture_stands_as_the_camera_was_held() {
    let lying = grey(3, &[1, 2, 3, 4, 5, 6]);
    let upright = decode(&png_with_exif(&lying, 6), shape(1, 3, 2)).unwrap();
    assert_eq!(upright, [4, 1, 5, 2, 6, 3]);
    let mirrored = decode(&png_with_exif(&lying, 2), shape(1, 2, 3)).unwrap();
    assert_eq!(mirrored, [3, 2, 1, 6, 5, 4]);
    // White on the left, black on the right; turned by 180 degrees it is the other way round.
    let halves = image::GrayImage::from_fn(32, 16, |column, _| Luma([if column < 16 { 255 } else { 0 }]));
    for (orientation, expected) in [(1, [255, 0]), (3, [0, 255]), (9, [255, 0])] {
        let turned = decode(&jpeg_with_exif(halves.clone(), orientation), shape(1, 1, 2)).unwrap();
        let near = turned.iter().zip(expected).all(|(&found, expected)| found.abs_diff(expected) < 50);
        assert!(near, "{orientation}: {turned:?}");
    }
}

#[test]
fn an_animation_gives_its_first_frame() {
    let (first, second) = (colours(5, 4), RgbImage::new(5, 4));
    let bytes = animation(&first, &second);
    let alone = decode(&png(first), shape(3, 4, 5)).unwrap();
    assert_eq!(decode(&bytes, shape(3, 4, 5)).unwrap(), alone);
}

#[test]
fn jpeg_and_lossy_webp_are_decoded() {
    let flat = RgbImage::from_pixel(20, 10, Rgb([200, 100, 50]));
    let found = decode(&encoded(flat, ImageFormat::Jpeg), shape(3, 2, 2)).unwrap();
    let expected = [200, 200, 200, 200, 100, 100, 100, 100, 50, 50, 50, 50];
    assert!(found.iter().zip(expected).all(|(&found, value)| found.abs_diff(value) < 6), "{found:?}");
    assert_eq!(decode(&LOSSY_WEBP, shape(3, 4, 4)).unwrap().len(), 48);
}

#[test]
fn a_picture_that_would_fill_the_memory_is_refused() {
    let too_many = |width, height| Err(PictureError::TooManyPixels { width, height });
    let small = black_png(400, 400, &black_rows(400, 400));
    assert_eq!(decode(&small, shape(1, 2, 2)).unwrap(), [0; 4]);
    let claims = black_png(60_000, 60_000, &black_rows(8, 1));
    assert_eq!(decode(&claims, shape(3, 8, 8)), too_many(60_000, 60_000));
    let bomb = black_png(20_000, 20_000, &black_rows(20_000, 20_000));
    assert!(bomb.len() < 100_000);
    let refused = decode(&bomb, shape(3, 8, 8));
    assert_eq!(refused, too_many(20_000, 20_000));
    let words = refused.unwrap_err().to_string();
    assert!(words.contains("20000 x 20000 pixels, which take more than 256 MiB"), "{words}");
    // The header of a JPEG with 65,535 x 65,535 pixels.
    let mut jpeg = encoded(colours(16, 16), ImageFormat::Jpeg);
    let frame = jpeg.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
    jpeg[frame + 5..frame + 9].fill(0xff);
    assert_eq!(decode(&jpeg, shape(3, 8, 8)), too_many(65_535, 65_535));
}

#[test]
fn a_picture_without_pixels_is_refused() {
    assert!(decode(&black_png(0, 4, &black_rows(0, 4)), shape(1, 1, 1)).is_err());
    let mut jpeg = encoded(colours(16, 16), ImageFormat::Jpeg);
    let frame = jpeg.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
    jpeg[frame + 7..frame + 9].fill(0);
    assert!(decode(&jpeg, shape(1, 1, 1)).is_err());
}

#[test]
fn other_files_are_refused_with_words() {
    let words = |bytes: &[u8]| decode(bytes, shape(3, 2, 2)).unwrap_err().to_string();
    for (bytes, expected) in [
        (b"GIF89a\x01\0\x01\0".as_slice(), "this is a GIF file"),
        (b"BM\0\0\0\0\0\0\0\0", "this is a BMP file"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "this is a HEIC file"),
        (b"a text", "not a PNG, JPEG or WebP picture"),
        (b"", "not a PNG, JPEG or WebP picture"),
        (b"\x89PNG\r\n\x1a\n and then a text", "copy the file again"),
        (b"\xff\xd8\xff\xe0 and so on", "the end of the picture is missing"),
        (b"RIFF\x04\0\0\0WEBP", "copy the file again"),
    ] {
        assert!(words(bytes).contains(expected), "{}", words(bytes));
    }
}

#[test]
fn files_are_read_within_bounds() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name| folder.path().join(name);
    write(folder.path(), "no.txt", &png(grey(1, &[5])));
    assert_eq!(read_picture(&path("no.txt"), shape(1, 1, 1)).unwrap(), [5]);
    let large = std::fs::File::create(path("large.png")).unwrap();
    large.set_len(peergrad_pictures::FILE_BYTES_MAX + 1).unwrap();
    assert_eq!(read_picture(&path("large.png"), shape(1, 1, 1)), Err(PictureError::FileTooLarge));
    let words = read_picture(&path("none.png"), shape(1, 1, 1)).unwrap_err().to_string();
    assert!(words.contains("cannot be read: No such file"), "{words}");
    let words = read_picture(folder.path(), shape(1, 1, 1)).unwrap_err().to_string();
    assert!(words.contains("it is not a file"), "{words}");
}

#[test]
fn pictures_below_a_path_are_sorted() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["b.png", "a/z/2.png", "a/1.png", ".hidden/1.png", "a/Thumbs.db", "a/.x", "__MACOSX/1.png"] {
        write(folder.path(), name, b"");
    }
    let below = pictures_below(folder.path()).unwrap();
    let names: Vec<_> = below.iter().map(|path| path.strip_prefix(folder.path()).unwrap()).collect();
    assert_eq!(names, ["a/1.png", "a/z/2.png", "b.png"].map(std::path::Path::new));
    let hidden = folder.path().join("a/.x");
    assert_eq!(pictures_below(&hidden).unwrap(), [hidden]);
    let words = pictures_below(&folder.path().join("c")).unwrap_err().to_string();
    assert!(words.contains("cannot be read: No such file"), "{words}");
}

#[test]
fn folders_archives_and_pictures_look_like_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let archive = tar(&[("cat/1.png", b"x")]);
    let image = DynamicImage::from(colours(4, 4));
    for (name, bytes, expected) in [
        ("1", archive.clone(), true),
        ("2", gzipped(&archive), true),
        ("3", encoded(image.clone(), ImageFormat::Png), true),
        ("4", encoded(image.clone(), ImageFormat::Jpeg), true),
        ("5", encoded(image, ImageFormat::WebP), true),
        ("6.tar.gz", gzipped(b"1,2,3\n"), false),
        ("7.png", b"1,2,3\n".to_vec(), false),
        ("8.tar", vec![], false),
        ("9.gz", b"\x1f\x8b broken".to_vec(), false),
    ] {
        write(folder.path(), name, &bytes);
        assert_eq!(looks_like_pictures(&folder.path().join(name)), expected, "{name}");
    }
    assert!(looks_like_pictures(folder.path()));
    assert!(!looks_like_pictures(&folder.path().join("none")));
}
