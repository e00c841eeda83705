//! Every codec, with any elements and any bytes.
//!
//! The properties that `codec.rs` and `residual.rs` guarantee are tested on elements of every kind (ordinary, tiny, huge, equal, zero, not
//! finite), on segments with sizes around that of a block, and on bytes that no encoder wrote.

// Only a global allocator can measure what a decoder allocates, and its implementation is unsafe.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, System};
use std::cell::Cell;
use std::num::NonZeroU32;

use peergrad_collectives::codec::{Codec, TopK, Values};
use peergrad_collectives::plan::ShardLayout;
use peergrad_collectives::residual::Residual;
use peergrad_protocol::{Pool, StepNumber};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all calls go to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller guarantees what `System` requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: std::alloc::Layout) {
        // SAFETY: the caller guarantees what `System` requires.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn any_codec() -> impl Strategy<Value = Codec> {
    let values = prop_oneof![Just(Values::F32), Just(Values::Bf16)];
    let top = (prop_oneof![1_u32..20, 50_u32..2000], values).prop_map(|(one_in, values)| {
        Codec::TopK(TopK { one_in: NonZeroU32::new(one_in).expect("not zero"), values })
    });
    prop_oneof![Just(Codec::F32), Just(Codec::Bf16), Just(Codec::F16), Just(Codec::Int8), top]
}

/// Any finite element, and often one of the kinds that gradients have.
fn finite() -> impl Strategy<Value = f32> {
    use proptest::num::f32::{NEGATIVE, NORMAL, POSITIVE, SUBNORMAL, ZERO};
    prop_oneof![
        8 => -1e-2_f32..1e-2,
        2 => (-8_i8..8).prop_map(f32::from),
        1 => POSITIVE | NEGATIVE | NORMAL | SUBNORMAL | ZERO,
        1 => prop_oneof![Just(f32::MAX), Just(f32::MIN), Just(0.0), Just(-0.0)],
    ]
}

fn segment(element: impl Strategy<Value = f32>) -> impl Strategy<Value = Vec<f32>> {
    let len = prop_oneof![0..20_usize, 250..260_usize, 500..600_usize];
    let scale = prop_oneof![3 => Just(1.0_f32), 1 => Just(1e-30), 1 => Just(1e-42), 1 => Just(1e5)];
    // `len` elements of similar size: otherwise one huge element would hide the others of its block.
    let elements = prop::collection::vec(element, 600);
    (len, elements, scale).prop_map(|(len, elements, scale)| {
        elements[..len].iter().map(|element| (element * scale).clamp(f32::MIN, f32::MAX)).collect()
    })
}

fn anything() -> impl Strategy<Value = f32> {
    prop_oneof![20 => finite(), 1 => any::<u32>().prop_map(f32::from_bits)]
}

fn encoded(codec: Codec, elements: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0xaa; codec.encoded_len(elements.len())];
    codec.encode(elements, &mut bytes);
    bytes
}

fn decoded(codec: Codec, bytes: &[u8], len: usize) -> Vec<f32> {
    let mut elements = vec![f32::NAN; len];
    codec.decode(bytes, &mut elements).expect("what was encoded");
    elements
}

fn bits(elements: &[f32]) -> Vec<u32> {
    elements.iter().map(|element| element.to_bits()).collect()
}

/// The greatest difference between an element and its decoded value.
fn error_max(codec: Codec, elements: &[f32], index: usize) -> f64 {
    let element = f64::from(elements[index].abs());
    match codec {
        Codec::F32 => 0.0,
        // Half a unit in the last place, or half of the smallest positive number.
        Codec::Bf16 => (element / 256.0).max(f64::from(f32::from_bits(0x8000))),
        Codec::F16 => (element / 2048.0).max(0.5 / f64::from(1 << 24)).max(element - 65504.0),
        Codec::Int8 => {
            let block = elements[index / 256 * 256..].iter().take(256);
            let largest = block.fold(0.0_f64, |largest, element| largest.max(f64::from(element.abs())));
            // The code is a rounded quotient.
            (largest / 127.0).max(f64::from(f32::MIN_POSITIVE)) / 2.0 * (1.0 + 1.0 / 16_384.0)
        }
        Codec::TopK(_) => unreachable!("bounded by the smallest that is kept"),
    }
}

fn config() -> ProptestConfig {
    let persistence = FileFailurePersistence::Direct("tests/codecs.proptest-regressions");
    ProptestConfig {
        cases: 1000,
        failure_persistence: Some(Box::new(persistence)),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn decoded_elements_encode_to_the_same_bytes(codec in any_codec(), elements in segment(anything())) {
        let first = encoded(codec, &elements);
        let seen = decoded(codec, &first, elements.len());
        let second = encoded(codec, &seen);
        prop_assert_eq!(&second, &first);
        prop_assert_eq!(bits(&decoded(codec, &second, elements.len())), bits(&seen));
    }

    #[test]
    fn encoding_in_place_leaves_the_decoded_elements(codec in any_codec(), elements in segment(anything())) {
        let mut in_place = elements.clone();
        let mut bytes = vec![0xaa; codec.encoded_len(elements.len())];
        codec.encode_in_place(&mut in_place, &mut bytes);
        prop_assert_eq!(&bytes, &encoded(codec, &elements));
        prop_assert_eq!(bits(&in_place), bits(&decoded(codec, &bytes, elements.len())));
    }

    #[test]
    fn encoding_errors_are_bounded(elements in segment(finite())) {
        for codec in [Codec::F32, Codec::Bf16, Codec::F16, Codec::Int8] {
            let seen = decoded(codec, &encoded(codec, &elements), elements.len());
            for (index, (element, seen)) in elements.iter().zip(seen).enumerate() {
                let error = (f64::from(*element) - f64::from(seen)).abs();
                prop_assert!(seen.is_finite() && error <= error_max(codec, &elements, index));
            }
        }
    }

    #[test]
    fn top_k_keeps_the_largest_elements(one_in in 1_u32..300, elements in segment(anything())) {
        let top = TopK { one_in: NonZeroU32::new(one_in).unwrap(), values: Values::F32 };
        let codec = Codec::TopK(top);
        let seen = decoded(codec, &encoded(codec, &elements), elements.len());
        // By a stable sort, which keeps the order of equal elements.
        let mut order: Vec<usize> = (0..elements.len()).collect();
        order.sort_by_key(|index| std::cmp::Reverse(elements[*index].abs().to_bits()));
        let mut expected = vec![0.0; elements.len()];
        order.iter().take(top.count(elements.len())).for_each(|index| expected[*index] = elements[*index]);
        prop_assert_eq!(bits(&seen), bits(&expected));
    }

    #[test]
    fn decoding_any_bytes_allocates_nothing(
        codec in any_codec(),
        elements in segment(finite()),
        noise in prop::collection::vec(any::<u8>(), 0..2400),
        bent in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut bytes = encoded(codec, &elements);
        for (index, byte) in bent {
            if !bytes.is_empty() {
                let index = index.index(bytes.len());
                bytes[index] ^= byte;
            }
        }
        let mut noise_of_right_len = noise.clone();
        noise_of_right_len.resize(bytes.len(), 0xa5);
        let mut out = vec![0.0; elements.len()];
        let before = ALLOCATIONS.get();
        for bytes in [&bytes, &noise, &noise_of_right_len] {
            let _ = codec.decode(bytes, &mut out);
        }
        prop_assert_eq!(ALLOCATIONS.get(), before);
        if let (Ok(()), Codec::Int8) = (codec.decode(&noise_of_right_len, &mut out), codec) {
            prop_assert!(out.iter().all(|element| !element.is_infinite()));
        }
    }

    /// Multiples of a power of two, so few that all sums are exact: then all that was sent over all steps, plus the residual, is to the
    /// last bit all that was contributed.
    #[test]
    fn sent_values_and_the_residual_add_up_to_the_contributions(
        codec in any_codec(),
        steps in prop::collection::vec((prop::collection::vec(-1000_i16..1000, 40), any::<bool>()), 1..12),
    ) {
        let layout = ShardLayout::even(40, 2, &[0, 1], 16);
        let mut residual = Residual::new(40, Pool::new(3));
        let (mut contributed, mut received) = (vec![0.0_f64; 40], vec![0.0_f64; 40]);
        let mut complete = None;
        for (step, (contribution, is_undone)) in steps.into_iter().enumerate() {
            let contribution: Vec<f32> = contribution.into_iter().map(|units| f32::from(units) / 1024.0).collect();
            let step = StepNumber(step as u64);
            residual.begin(step);
            let mut sent = vec![0.0; 40];
            for segment in (0..2).flat_map(|rank| layout.shard(rank).segments()) {
                let mut packed = vec![f32::NAN; segment.len()];
                let mut bytes = vec![0; codec.encoded_len(segment.len())];
                residual.encode(codec, segment, &contribution, &mut packed, &mut bytes);
                segment.copy_in(&decoded(codec, &bytes, segment.len()), &mut sent);
            }
            // The step before is known to be complete everywhere only after this one has been sent.
            if let Some(complete) = complete.take() {
                residual.commit(complete);
            }
            if is_undone {
                residual.undo(step);
                continue;
            }
            complete = Some(step);
            for element in 0..40 {
                contributed[element] += f64::from(contribution[element]);
                received[element] += f64::from(sent[element]);
            }
        }
        if let Some(complete) = complete {
            residual.commit(complete);
        }
        // An element sent with int8 has as many digits as scale and code together, so totals are rounded.
        let rounded = if codec == Codec::Int8 { 1e-5 } else { 0.0 };
        for element in 0..40 {
            let left = f64::from(residual.committed()[element]);
            prop_assert!((received[element] + left - contributed[element]).abs() <= rounded);
        }
    }

    /// For each step, with elements of any size: the residual loses no bit.
    #[test]
    fn the_residual_of_each_element_is_exact(codec in any_codec(), elements in segment(finite())) {
        let seen = decoded(codec, &encoded(codec, &elements), elements.len());
        for (element, seen) in elements.iter().zip(seen) {
            if codec != Codec::F16 || element.abs() <= 65504.0 {
                prop_assert_eq!(f64::from(element - seen), f64::from(*element) - f64::from(seen));
            }
        }
    }
}
