//! Encoded elements, as segments carry them.

use std::num::NonZeroU32;

use peergrad_collectives::codec::{Codec, TopK, Values};

use crate::allocations;
use crate::target::{Bound, Form, Target, Verdict};

/// Codecs: a byte that chooses one, two bytes with the number of elements, and the encoded elements.
pub(super) struct CodecTarget;

const HEAD_BYTES: usize = 3;

fn codec(number: u8) -> Codec {
    let top_k =
        |one_in, values| Codec::TopK(TopK { one_in: NonZeroU32::new(one_in).expect("not zero"), values });
    match number % 8 {
        0 => Codec::F32,
        1 => Codec::Bf16,
        2 => Codec::F16,
        3 => Codec::Int8,
        4 => top_k(1, Values::F32),
        5 => top_k(7, Values::Bf16),
        6 => top_k(100, Values::F32),
        _ => top_k(1000, Values::Bf16),
    }
}

fn head(input: &[u8]) -> Option<(Codec, usize, &[u8])> {
    let (&[number, low, high], bytes) = input.split_first_chunk::<HEAD_BYTES>()?;
    Some((codec(number), usize::from(u16::from_le_bytes([low, high])), bytes))
}

impl Target for CodecTarget {
    fn name(&self) -> &'static str {
        "codec"
    }

    fn form(&self) -> Form {
        Form::Binary
    }

    fn examples(&self) -> Vec<Vec<u8>> {
        let mut examples = Vec::new();
        for number in 0..8 {
            for count in [0_u16, 1, 10, 256, 700] {
                let element = |index: u16| {
                    (f32::from(index) - 100.0) * if index.is_multiple_of(50) { 1e3 } else { 1e-3 }
                };
                let elements: Vec<f32> = (0..count).map(element).collect();
                let mut bytes = vec![0; codec(number).encoded_len(elements.len())];
                codec(number).encode(&elements, &mut bytes);
                examples.push([&[number], &count.to_le_bytes()[..], &bytes].concat());
            }
        }
        examples
    }

    /// As many bytes as the elements need.
    fn mend(&self, input: &mut Vec<u8>) {
        if let Some((codec, count, _)) = head(input) {
            input.resize(HEAD_BYTES + codec.encoded_len(count), 0x5a);
        }
    }

    fn run(&self, input: &[u8]) -> Verdict {
        let Some((codec, count, bytes)) = head(input) else { return Verdict::Refused };
        let mut elements = vec![0.0; count];
        let before = allocations::requested();
        let decoded = codec.decode(bytes, &mut elements);
        assert_eq!(allocations::requested(), before, "decoders do not allocate");
        if decoded.is_err() {
            return Verdict::Refused;
        }
        let mut again = vec![0; codec.encoded_len(count)];
        codec.encode(&elements, &mut again);
        let mut elements_again = vec![0.0; count];
        codec.decode(&again, &mut elements_again).expect("what an encoder wrote");
        Verdict::Accepted
    }

    fn bound(&self, _input_bytes: usize) -> Bound {
        Bound::mebibytes(1, 8)
    }
}
