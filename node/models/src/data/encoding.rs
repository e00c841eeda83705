//! Encodings: how the bytes of a text file stand for characters.
//!
//! Spreadsheets save text as UTF-8, as UTF-16, or in an older encoding with one byte for each character. Read with the wrong one, two labels
//! may look the same. The founder of a run detects the encoding once ([`TextEncoding::detect`]) and writes its name to the
//! specification; reading with it is exact, and refuses bytes that it has no character for ([`TextEncoding::decode`]).
//!
//! # How it works
//! A byte order mark decides. Else zero bytes at every other place are those of UTF-16. Else the text is UTF-8 if most of its characters
//! beyond ASCII are valid: where one is not, the file is damaged.
//! Else `chardetng`, the detector of a web browser, guesses from the frequencies of bytes; the caller reports a guess to the user.
//!
//! # Reading
//! The Encoding Standard of the WHATWG, whose names and tables `encoding_rs` has.

use std::borrow::Cow;
use std::fmt;

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{DecoderResult, Encoding, REPLACEMENT, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252};
use serde::{Deserialize, Serialize};

use super::error::DenseTableError;

/// The byte order mark of UTF-8.
pub(super) const UTF_8_MARK: &[u8] = b"\xef\xbb\xbf";
/// The mark with which programs of DOS end a text.
const END_MARK: &[u8] = b"\x1a";
/// How many bytes are searched for the zeros of UTF-16.
const ZEROS_SEARCHED: usize = 4096;
/// How many bytes are decoded at a time.
const BLOCK_BYTES: usize = 1 << 16;

/// The encoding of a text.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TextEncoding(&'static Encoding);

impl TextEncoding {
    /// UTF-8, the default.
    pub const UTF_8: Self = Self(UTF_8);

    /// Whether this is UTF-8.
    #[must_use]
    pub fn is_utf_8(&self) -> bool {
        self.0 == UTF_8
    }

    /// Whether this is one of the two forms of UTF-16.
    #[must_use]
    pub fn is_utf_16(&self) -> bool {
        self.0 == UTF_16LE || self.0 == UTF_16BE
    }

    /// The name in lower case, such as `utf-16le`.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.name().to_ascii_lowercase()
    }

    /// Detects the encoding of `bytes`.
    #[must_use]
    pub fn detect(bytes: &[u8]) -> Detected {
        if bytes.starts_with(b"\xff\xfe\0\0") || bytes.starts_with(b"\0\0\xfe\xff") {
            return Detected::Utf32;
        }
        if let Some((encoding, _)) = Encoding::for_bom(bytes) {
            return Detected::Certain(Self(encoding));
        }
        if let Some(found) = by_zeros(&bytes[..bytes.len().min(ZEROS_SEARCHED)]) {
            return found;
        }
        if is_mostly_utf_8(bytes) {
            return Detected::Certain(Self::UTF_8);
        }
        let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
        detector.feed(bytes, true);
        let guess = Self(detector.guess(None, Utf8Detection::Deny));
        // An encoding that has no character for some byte is none that the text was written in; this one has all.
        let is_possible = guess.decode("", bytes).is_ok();
        Detected::Guessed(if is_possible { guess } else { Self(WINDOWS_1252) })
    }

    /// The text of `bytes` in UTF-8, without marks at its beginning and its end; `file` is the name for errors.
    ///
    /// # Errors
    /// At the first byte that is not a character in this encoding.
    pub fn decode<'a>(&self, file: &str, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>, DenseTableError> {
        let not_text = |before: &[u8]| DenseTableError::NotInEncoding {
            file: file.to_owned(),
            line: 1 + line_ends(before),
            encoding: self.name(),
        };
        if self.is_utf_8() {
            let bytes = bytes.strip_prefix(UTF_8_MARK).unwrap_or(bytes);
            return match std::str::from_utf8(bytes) {
                Ok(_) => Ok(Cow::Borrowed(bytes.strip_suffix(END_MARK).unwrap_or(bytes))),
                Err(error) => Err(not_text(&bytes[..error.valid_up_to()])),
            };
        }
        let mut decoder = self.0.new_decoder_with_bom_removal();
        let mut text = String::with_capacity(bytes.len());
        let mut blocks = bytes.chunks(BLOCK_BYTES).peekable();
        while let Some(mut block) = blocks.next() {
            let is_last = blocks.peek().is_none();
            loop {
                text.reserve(decoder.max_utf8_buffer_length_without_replacement(block.len()).unwrap_or(0));
                let (result, read) = decoder.decode_to_string_without_replacement(block, &mut text, is_last);
                match result {
                    DecoderResult::InputEmpty => break,
                    DecoderResult::OutputFull => block = &block[read..],
                    DecoderResult::Malformed(..) => return Err(not_text(text.as_bytes())),
                }
            }
        }
        let mut text = text.into_bytes();
        text.truncate(text.strip_suffix(END_MARK).map_or(text.len(), <[u8]>::len));
        Ok(Cow::Owned(text))
    }
}

/// What the bytes of a text say about its encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detected {
    /// The text is in this encoding.
    Certain(TextEncoding),
    /// This encoding is the most probable one.
    Guessed(TextEncoding),
    /// UTF-32, which is not supported.
    Utf32,
}

/// Whether all characters beyond ASCII, or nearly all, are valid in UTF-8. Those of other encodings hardly ever are.
fn is_mostly_utf_8(bytes: &[u8]) -> bool {
    if std::str::from_utf8(bytes).is_ok() {
        return true;
    }
    let (mut valid, mut invalid) = (0_usize, 0_usize);
    for chunk in bytes.utf8_chunks() {
        valid += chunk.valid().chars().filter(|character| !character.is_ascii()).count();
        invalid += usize::from(!chunk.invalid().is_empty());
    }
    valid > 4 * invalid
}

/// The encoding of a text of which every other byte is mostly zero.
fn by_zeros(bytes: &[u8]) -> Option<Detected> {
    let zeros =
        |place: usize, period: usize| bytes.iter().skip(place).step_by(period).filter(|&&byte| byte == 0);
    let pairs = bytes.len() / 2;
    let (even, odd) = (zeros(0, 2).count(), zeros(1, 2).count());
    let quarter = zeros(2, 4).count();
    match pairs {
        0 => None,
        _ if even + odd > bytes.len() * 2 / 3 && quarter > bytes.len() / 6 && begins_in_utf_32(bytes) => {
            Some(Detected::Utf32)
        }
        _ if odd > pairs / 2 && even <= pairs / 8 => Some(Detected::Certain(TextEncoding(UTF_16LE))),
        _ if even > pairs / 2 && odd <= pairs / 8 => Some(Detected::Certain(TextEncoding(UTF_16BE))),
        _ => None,
    }
}

/// Whether the first four bytes are a character of ASCII.
fn begins_in_utf_32(bytes: &[u8]) -> bool {
    matches!(bytes, [b' '..=b'~', 0, 0, 0, ..] | [0, 0, 0, b' '..=b'~', ..])
}

/// Line ends in `text`: `\n`, `\r\n` and `\r`.
pub(super) fn line_ends(text: &[u8]) -> u64 {
    let returns = (text.iter().enumerate())
        .filter(|&(index, &byte)| byte == b'\r' && text.get(index + 1) != Some(&b'\n'));
    let feeds = text.iter().filter(|&&byte| byte == b'\n');
    (returns.count() + feeds.count()) as u64
}

impl Default for TextEncoding {
    fn default() -> Self {
        Self::UTF_8
    }
}

impl fmt::Debug for TextEncoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl From<TextEncoding> for String {
    fn from(encoding: TextEncoding) -> Self {
        encoding.name()
    }
}

impl TryFrom<String> for TextEncoding {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let found = Encoding::for_label(name.as_bytes()).filter(|&encoding| encoding != REPLACEMENT);
        found.map(Self).ok_or_else(|| {
            format!(
                "unknown encoding `{name}`, expected `utf-8`, `utf-16le`, `utf-16be`, `windows-1252`, `iso-8859-2`, `shift_jis`, `gb18030` \
                 or another name of the WHATWG Encoding Standard"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn named(name: &str) -> TextEncoding {
        TextEncoding::try_from(name.to_owned()).unwrap()
    }

    fn utf_16(text: &str, bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
        text.encode_utf16().flat_map(bytes).collect()
    }

    #[test]
    fn marks_and_zeros_are_certain() {
        let text = "a,b,label\n1,2,M\u{fc}ller\n";
        let (little, big) = (utf_16(text, u16::to_le_bytes), utf_16(text, u16::to_be_bytes));
        for (bytes, name) in [
            (text.as_bytes().to_vec(), "utf-8"),
            ([UTF_8_MARK, text.as_bytes()].concat(), "utf-8"),
            (little.clone(), "utf-16le"),
            ([&b"\xff\xfe"[..], &little].concat(), "utf-16le"),
            (big.clone(), "utf-16be"),
            ([&b"\xfe\xff"[..], &big].concat(), "utf-16be"),
        ] {
            assert_eq!(TextEncoding::detect(&bytes), Detected::Certain(named(name)));
            assert_eq!(named(name).decode("f", &bytes).unwrap(), text.as_bytes());
        }
        let wide: Vec<u8> = text.chars().flat_map(|character| (character as u32).to_le_bytes()).collect();
        assert_eq!(TextEncoding::detect(&wide), Detected::Utf32);
        assert_eq!(TextEncoding::detect(&[b"\xff\xfe\0\0", wide.as_slice()].concat()), Detected::Utf32);
        assert_eq!(TextEncoding::detect(b""), Detected::Certain(TextEncoding::UTF_8));
    }

    #[test]
    fn older_encodings_are_guessed_and_keep_labels_apart() {
        let bytes = b"a,b,label\n0.03,0.38,M\xfcller\n2.72,-1.70,M\xf6ller\n5.92,-4.08,Maier\n";
        assert_eq!(TextEncoding::detect(bytes), Detected::Guessed(named("windows-1252")));
        let text = named("latin1").decode("f", bytes).unwrap();
        assert!(String::from_utf8_lossy(&text).contains("M\u{fc}ller\n2.72,-1.70,M\u{f6}ller"));
        let russian = encoding_rs::WINDOWS_1251.encode("\u{441},label\n1,\u{43a}\u{43e}\u{448}\u{43a}\u{430}\n2,\u{441}\u{43e}\u{431}\u{430}\u{43a}\u{430}\n").0;
        assert_eq!(TextEncoding::detect(&russian), Detected::Guessed(named("windows-1251")));
    }

    #[test]
    fn the_end_mark_of_dos_is_no_text() {
        for name in ["utf-8", "windows-1252"] {
            assert_eq!(named(name).decode("f", b"1,0\r\n\x1a").unwrap(), &b"1,0\r\n"[..]);
        }
    }

    #[test]
    fn damaged_utf_8_is_not_taken_for_another_encoding() {
        let text = "M\u{fc}ller,1\nM\u{f6}ller,2\nJos\u{e9},3\nZo\u{eb},4\nBj\u{f6}rn,5\n";
        let damaged = [text.as_bytes(), b"\xc3"].concat();
        assert_eq!(TextEncoding::detect(&damaged), Detected::Certain(TextEncoding::UTF_8));
        let error = TextEncoding::UTF_8.decode("f.csv", &damaged).unwrap_err().to_string();
        assert!(error.starts_with("f.csv, line 6: "), "{error}");
    }

    #[test]
    fn bytes_without_a_character_are_refused_with_their_line() {
        let error = TextEncoding::UTF_8.decode("f.csv", b"a\r\nb\n\xff").unwrap_err().to_string();
        assert!(error.starts_with("f.csv, line 3: the bytes are not text in utf-8"), "{error}");
        let error = named("utf-16le").decode("f.csv", b"a\0\n\0\0\xd8a\0").unwrap_err().to_string();
        assert!(error.starts_with("f.csv, line 2: the bytes are not text in utf-16le"), "{error}");
        assert!(named("utf-16be").decode("f", b"\0ab").is_err(), "half a character");
    }

    #[test]
    fn unknown_names_are_refused_with_the_usual_ones() {
        let error = TextEncoding::try_from("utf8x".to_owned()).unwrap_err();
        assert!(error.starts_with("unknown encoding `utf8x`, expected `utf-8`, `utf-16le`"), "{error}");
        assert!(TextEncoding::try_from("hz-gb-2312".to_owned()).is_err(), "an encoding that only replaces");
    }

    proptest! {
        #[test]
        fn a_detected_encoding_decodes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Detected::Guessed(encoding) = TextEncoding::detect(&bytes) {
                prop_assert!(encoding.decode("f", &bytes).is_ok());
            }
        }

        #[test]
        fn utf_16_reads_back(text in "\\PC{0,60}") {
            for (name, bytes) in [("utf-16le", utf_16(&text, u16::to_le_bytes)), ("utf-16be", utf_16(&text, u16::to_be_bytes))] {
                let decoded = named(name).decode("f", &bytes).unwrap().into_owned();
                prop_assert_eq!(String::from_utf8(decoded).unwrap(), text.trim_start_matches('\u{feff}'));
            }
        }
    }
}
