//! Whether the file of a picture has its end.
//!
//! Half a file is what a broken download leaves. The decoder of JPEG fills the missing rows with grey and says nothing, so a model would
//! learn from grey rows. The decoder of WebP believes the length of a chunk and asks for as much memory. So both files are walked first,
//! from part to part, without decoding.

use image::ImageFormat;

/// Whether `bytes` of this format go to the end of the picture. `true` for PNG, whose decoder finds out by itself.
pub(crate) fn is_complete(format: ImageFormat, bytes: &[u8]) -> bool {
    match format {
        ImageFormat::Jpeg => jpeg_has_its_end(bytes).is_some(),
        ImageFormat::WebP => webp_has_its_end(bytes),
        _ => true,
    }
}

/// `Some` if the markers of a JPEG lead to its end marker.
///
/// A marker is 0xff and a byte. Most markers begin a segment, whose length follows in two bytes that count themselves. A scan has no
/// length: it goes on to the next marker, and a 0xff of its own has a zero behind it.
fn jpeg_has_its_end(bytes: &[u8]) -> Option<()> {
    const RESTARTS: std::ops::RangeInclusive<u8> = 0xd0..=0xd7;
    const START: u8 = 0xd8;
    const END: u8 = 0xd9;
    const STANDALONE: u8 = 0x01;

    let mut at = 0;
    loop {
        // Bytes of a scan, and bytes between segments that do not belong there, which decoders skip.
        at += bytes.get(at..)?.iter().position(|&byte| byte == 0xff)? + 1;
        match *bytes.get(at)? {
            END => return Some(()),
            // A marker may have more than one 0xff before it.
            0xff => {}
            0 | STANDALONE | START => at += 1,
            restart if RESTARTS.contains(&restart) => at += 1,
            _ => {
                let length = bytes.get(at + 1..at + 3)?;
                at += 1 + usize::from(u16::from_be_bytes([length[0], length[1]]));
            }
        }
    }
}

/// Whether the chunks of a WebP, each with its length, are all there.
fn webp_has_its_end(bytes: &[u8]) -> bool {
    let length = |at: usize| {
        let length = bytes.get(at..at + 4)?;
        Some(u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize)
    };
    // `RIFF`, the length of all behind it, `WEBP`; then for each chunk a name, a length and the chunk, filled up to an even number.
    let Some(end) = length(4).map(|length| length.saturating_add(8)) else { return false };
    let mut at = 12;
    // The last byte is allowed to be missing: some programs leave the filling out.
    if end > bytes.len() + 1 {
        return false;
    }
    // Fewer than 8 bytes are no chunk.
    while at + 8 <= end.min(bytes.len()) {
        match length(at + 4) {
            Some(length) if length <= bytes.len() - at - 8 => at += 8 + length + length % 2,
            _ => return false,
        }
    }
    true
}
