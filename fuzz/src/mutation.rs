//! Mutation: small changes of an input.
//!
//! | kind | what it does |
//! |---|---|
//! | bytes | flips a bit, sets a byte, inserts, deletes, repeats or cuts |
//! | tokens | replaces, deletes, doubles or swaps a word, a number or a line of a text |
//! | integers | writes a number at a boundary, in a fixed length or as a varint |
//! | splice | continues with the rest of another input, or inserts a part of it |
//!
//! All draws come from the caller's generator, so a seed gives the same inputs again.

use std::ops::Range;

use rand::RngExt;
use rand::rngs::ChaCha8Rng;

use crate::target::Form;

/// No input is longer, in bytes.
pub const INPUT_BYTES_MAX: usize = 64 << 10;

/// Numbers at which integers, floats or limits end, as texts write them.
const NUMBERS: [&str; 24] = [
    "0",
    "-0",
    "-1",
    "1",
    "2",
    "7",
    "127",
    "255",
    "256",
    "65535",
    "65536",
    "16777217",
    "2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "99999999999999999999999",
    "0.5",
    "1e-320",
    "1e39",
    "1e308",
    "-1e309",
    "nan",
];
/// The same as integers.
const INTEGERS: [u64; 16] = [
    0,
    1,
    2,
    127,
    128,
    250,
    251,
    255,
    256,
    65_535,
    65_536,
    1 << 24,
    (1 << 31) - 1,
    u32::MAX as u64,
    1 << 40,
    u64::MAX,
];

/// Changes inputs of one form.
pub struct Mutator {
    form: Form,
    /// Words of the examples; empty for binary inputs.
    words: Vec<Vec<u8>>,
}

impl Mutator {
    /// A mutator that knows the words in these examples.
    #[must_use]
    pub fn new(form: Form, examples: &[Vec<u8>]) -> Self {
        let mut words = Vec::new();
        if form == Form::Text {
            words = examples.iter().flat_map(|example| tokens(example)).map(<[u8]>::to_vec).collect();
            words.sort_unstable();
            words.dedup();
            words.extend(NUMBERS.map(|number| number.as_bytes().to_vec()));
        }
        Self { form, words }
    }

    /// Changes `input`; parts may come from `other`.
    pub fn mutate(&self, input: &mut Vec<u8>, other: &[u8], generator: &mut ChaCha8Rng) {
        // One change most often, and up to sixteen.
        let changes = 1 << generator.random_range(0..5_u32).saturating_sub(generator.random_range(0..3));
        for _ in 0..changes {
            match (self.form, generator.random_range(0..10)) {
                (_, 0) => splice(input, other, generator),
                (Form::Text, 1..=6) => self.change_token(input, generator),
                (Form::Text, 7) => change_lines(input, generator),
                (Form::Binary, 1..=4) => change_integer(input, generator),
                _ => change_bytes(input, generator),
            }
            // After each change: a hundred lines may be put in, sixteen times over.
            input.truncate(INPUT_BYTES_MAX);
        }
    }

    fn change_token(&self, input: &mut Vec<u8>, generator: &mut ChaCha8Rng) {
        if input.is_empty() || self.words.is_empty() {
            return change_bytes(input, generator);
        }
        let token = token_at(input, generator.random_range(0..input.len()));
        let word = &self.words[generator.random_range(0..self.words.len())];
        let text = match generator.random_range(0..6) {
            0 => Vec::new(),
            1 => input[token.clone()].repeat(2),
            2 => input[token_at(input, generator.random_range(0..input.len()))].to_vec(),
            3 => NUMBERS[generator.random_range(0..NUMBERS.len())].as_bytes().to_vec(),
            4 => [&input[token.clone()], word].concat(),
            _ => word.clone(),
        };
        input.splice(token, text);
    }
}

/// Whether a byte belongs to a word or a number.
fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-' | b'+') || byte >= 0x80
}

/// The word around a position, or the single byte there.
fn token_at(text: &[u8], at: usize) -> Range<usize> {
    if !is_of_word(text[at]) {
        return at..at + 1;
    }
    let start = text[..at].iter().rposition(|byte| !is_of_word(*byte)).map_or(0, |before| before + 1);
    let end = text[at..].iter().position(|byte| !is_of_word(*byte)).map_or(text.len(), |after| at + after);
    start..end
}

fn tokens(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let token = token_at(rest, (!rest.is_empty()).then_some(0)?);
        let (first, after) = rest.split_at(token.end);
        rest = after;
        Some(first)
    })
    .filter(|token| token.len() <= 64)
}

/// A range of at most `longest` bytes; empty in an empty input.
fn range_in(input: &[u8], longest: usize, generator: &mut ChaCha8Rng) -> Range<usize> {
    let start = generator.random_range(0..=input.len());
    let length = generator.random_range(0..=longest.min(input.len() - start));
    start..start + length
}

fn change_lines(input: &mut Vec<u8>, generator: &mut ChaCha8Rng) {
    let mut lines: Vec<Vec<u8>> = input.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    if lines.is_empty() {
        return;
    }
    let (a, b) = (generator.random_range(0..lines.len()), generator.random_range(0..lines.len()));
    match generator.random_range(0..4) {
        0 => drop(lines.remove(a)),
        1 => lines.insert(b, lines[a].clone()),
        2 => lines.swap(a, b),
        _ => {
            let times = generator.random_range(1..100);
            let again = vec![lines[a].clone(); times];
            lines.splice(b..b, again);
        }
    }
    *input = lines.concat();
}

fn change_integer(input: &mut Vec<u8>, generator: &mut ChaCha8Rng) {
    let at = generator.random_range(0..=input.len());
    let chosen = INTEGERS[generator.random_range(0..INTEGERS.len())];
    let number = chosen.wrapping_add(generator.random_range(0..3)).wrapping_sub(1);
    let bytes = number.to_le_bytes();
    let (bytes, replaced) = match generator.random_range(0..6) {
        0 => (bytes[..1].to_vec(), 1),
        1 => (bytes[..2].to_vec(), 2),
        2 => (bytes[..4].to_vec(), 4),
        3 => (bytes.to_vec(), 8),
        // IDX has its integers in the other order.
        4 => (bytes[..4].iter().rev().copied().collect(), 4),
        _ => (varint(number), input.get(at).map_or(0, |first| varint_bytes(*first))),
    };
    let end = (at + replaced).min(input.len());
    input.splice(at..end, bytes);
}

/// A number as the wire format writes it.
fn varint(number: u64) -> Vec<u8> {
    let bytes = number.to_le_bytes();
    match number {
        0..=250 => vec![bytes[0]],
        251..=0xffff => [&[251], &bytes[..2]].concat(),
        0x1_0000..=0xffff_ffff => [&[252], &bytes[..4]].concat(),
        _ => [&[253], &bytes[..]].concat(),
    }
}

/// How many bytes a varint has that begins with this one.
fn varint_bytes(first: u8) -> usize {
    match first {
        251 => 3,
        252 => 5,
        253 => 9,
        _ => 1,
    }
}

fn change_bytes(input: &mut Vec<u8>, generator: &mut ChaCha8Rng) {
    if input.is_empty() {
        return input.push(generator.random());
    }
    let at = generator.random_range(0..input.len());
    match generator.random_range(0..8) {
        0 => input[at] ^= 1 << generator.random_range(0..8),
        1 => input[at] = generator.random(),
        2 => input[at] = [0, 1, 0x7f, 0x80, 0xff, b'\n', b'"', b'\''][generator.random_range(0..8)],
        3 => input.insert(at, generator.random()),
        4 => drop(input.drain(range_in(input, 64, generator))),
        5 => {
            let range = range_in(input, 64, generator);
            let again = input[range.clone()].repeat(generator.random_range(1..4));
            input.splice(range.end..range.end, again);
        }
        6 => {
            // Many small elements, which take more memory than their bytes.
            let range = range_in(input, 8, generator);
            let again = input[range.clone()].repeat(generator.random_range(1..2000));
            input.splice(range.end..range.end, again);
        }
        _ => input.truncate(at),
    }
}

fn splice(input: &mut Vec<u8>, other: &[u8], generator: &mut ChaCha8Rng) {
    let at = generator.random_range(0..=input.len());
    if generator.random_bool(0.5) {
        input.truncate(at);
        input.extend_from_slice(&other[generator.random_range(0..=other.len())..]);
    } else {
        let part = range_in(other, 256, generator);
        input.splice(at..at, other[part].iter().copied());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn a_seed_gives_the_same_inputs_again() {
        let examples = [b"epochs = 3\nrate = 0.5\n".to_vec(), vec![0, 251, 1, 2]];
        for form in [Form::Text, Form::Binary] {
            let mutator = Mutator::new(form, &examples);
            let inputs = |seed| -> Vec<Vec<u8>> {
                let mut generator = ChaCha8Rng::seed_from_u64(seed);
                let mut input = examples[0].clone();
                (0..200)
                    .map(|_| {
                        mutator.mutate(&mut input, &examples[1], &mut generator);
                        input.clone()
                    })
                    .collect()
            };
            assert_eq!(inputs(1), inputs(1));
            assert_ne!(inputs(1), inputs(2));
            assert!(inputs(1).iter().all(|input| input.len() <= INPUT_BYTES_MAX));
        }
    }

    #[test]
    fn tokens_cover_a_text() {
        let text = b"rate=0.5 [a]\n";
        assert_eq!(
            tokens(text).collect::<Vec<_>>(),
            [&b"rate"[..], b"=", b"0.5", b" ", b"[", b"a", b"]", b"\n"]
        );
        assert_eq!(token_at(text, 6), 5..8);
    }

    #[test]
    fn varints_are_those_of_the_wire_format() {
        for number in [0, 250, 251, 255, 256, 65_535, 65_536, u64::from(u32::MAX), 1 << 32, u64::MAX] {
            let bytes = varint(number);
            assert_eq!(peergrad_protocol::wire::decode_record(&bytes), Ok(number));
            assert_eq!(varint_bytes(bytes[0]), bytes.len());
        }
    }
}
