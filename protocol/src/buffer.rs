//! Pooled memory: where vectors and segments live, so that training allocates nothing vector-sized per step.
//!
//! A [`Buffer`] is like a library book: its holder may write in it, and when it is dropped it returns to its [`Pool`],
//! where the next reader takes it. A socket reads straight into one, a collective adds into the same
//! one, and the same one goes out again.
//!
//! # Invariants
//! - The contents of a buffer that was just taken are unspecified: never add into a buffer that was not filled.
//! - Which buffer a pool hands out depends on thread timing; contents never do, so runs stay deterministic.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// A pooled block of 4-byte words, seen as `f32` elements or as raw little-endian bytes.
pub struct Buffer {
    words: Vec<f32>,
    byte_count: usize,
    home: Option<Arc<FreeList>>,
}

impl Buffer {
    /// A buffer without a pool, holding a copy of `values`.
    #[must_use]
    pub fn from_values(values: &[f32]) -> Self {
        Self { words: values.to_vec(), byte_count: size_of_val(values), home: None }
    }

    /// A buffer without a pool, holding a copy of `bytes`; their number need not be a multiple of four.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut buffer =
            Self { words: vec![0.0; bytes.len().div_ceil(WORD_BYTES)], byte_count: bytes.len(), home: None };
        buffer.bytes_mut().copy_from_slice(bytes);
        buffer
    }

    /// The contents as raw bytes: on the wire, elements are little-endian.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.byte_count]
    }

    /// The contents as raw bytes, to be filled by a socket.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.byte_count]
    }

    /// Number of bytes held.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        self.byte_count
    }
}

/// The contents as `f32` elements; a trailing partial word is not among them.
impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.words[..self.byte_count / WORD_BYTES]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.words[..self.byte_count / WORD_BYTES]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.put(std::mem::take(&mut self.words));
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.byte_count)
    }
}

/// A pool of buffers of similar size. A clone shares the free list.
#[derive(Clone)]
pub struct Pool {
    free_list: Arc<FreeList>,
}

impl Pool {
    /// A pool that keeps at most `idle_max` idle buffers. Further buffers are freed when they are dropped, and so are buffers that
    /// stay idle for a while.
    #[must_use]
    pub fn new(idle_max: usize) -> Self {
        Self { free_list: Arc::new(FreeList { idle_max, state: Mutex::default() }) }
    }

    /// A buffer of `len` elements with unspecified contents.
    #[must_use]
    pub fn take(&self, len: usize) -> Buffer {
        self.take_bytes(len * WORD_BYTES)
    }

    /// A buffer of `len` zeros, always newly allocated: memory from the operating system is zero already, and takes no space until
    /// it is written.
    #[must_use]
    pub fn take_zeroed(&self, len: usize) -> Buffer {
        self.free_list.lock().allocated_count += 1;
        Buffer {
            words: vec![0.0; len],
            byte_count: len * WORD_BYTES,
            home: Some(Arc::clone(&self.free_list)),
        }
    }

    /// A buffer of `byte_count` bytes with unspecified contents.
    #[must_use]
    pub fn take_bytes(&self, byte_count: usize) -> Buffer {
        let word_count = byte_count.div_ceil(WORD_BYTES);
        let words = self.free_list.take(word_count);
        Buffer { words, byte_count, home: Some(Arc::clone(&self.free_list)) }
    }

    /// The number of allocations of this pool: constant once a run has warmed up.
    #[must_use]
    pub fn allocated_count(&self) -> u64 {
        self.free_list.lock().allocated_count
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pool")
    }
}

struct FreeList {
    idle_max: usize,
    state: Mutex<FreeListState>,
}

#[derive(Default)]
struct FreeListState {
    /// Idle buffers. The one that returned last is taken first, so those at the bottom are needed least.
    idle: Vec<Vec<f32>>,
    /// The largest request so far, in words: a new allocation fits every request seen.
    largest: usize,
    allocated_count: u64,
    /// Buffers taken since the last check of how many are needed, and the smallest number of idle ones since then.
    taken: usize,
    spare: usize,
}

impl FreeList {
    /// Words keep their full length while idle, so that reuse neither allocates nor clears.
    fn take(&self, word_count: usize) -> Vec<f32> {
        let mut state = self.lock();
        state.largest = state.largest.max(word_count);
        let words = state.idle.pop().unwrap_or_default();
        let unneeded = state.trim();
        if words.len() >= word_count {
            drop(state);
            drop(unneeded);
            return words;
        }
        let largest = state.largest;
        state.allocated_count += 1;
        drop(state);
        vec![0.0; largest]
    }

    fn put(&self, words: Vec<f32>) {
        let mut state = self.lock();
        if state.idle.len() < self.idle_max && !words.is_empty() {
            state.idle.push(words);
        }
    }

    /// A panic elsewhere cannot leave the free list half-changed, so a poisoned lock is still good.
    fn lock(&self) -> std::sync::MutexGuard<'_, FreeListState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FreeListState {
    /// Counts a taken buffer. Now and then, frees buffers that were idle all the time.
    fn trim(&mut self) -> Vec<Vec<f32>> {
        self.spare = if self.taken == 0 { self.idle.len() } else { self.spare.min(self.idle.len()) };
        self.taken += 1;
        if self.taken < TRIM_EVERY {
            return Vec::new();
        }
        self.taken = 0;
        self.idle.drain(..self.spare).collect()
    }
}

/// Buffers taken between two checks for idle ones.
const TRIM_EVERY: usize = 1024;

const WORD_BYTES: usize = size_of::<f32>();

// The wire is little-endian and buffers go out as they lie in memory.
const _: () = assert!(cfg!(target_endian = "little"), "peergrad runs on little-endian machines only");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_is_reused() {
        let pool = Pool::new(2);
        for _ in 0..10 {
            let mut buffer = pool.take(1000);
            buffer[999] = 1.0;
        }
        assert_eq!(pool.allocated_count(), 1);
    }

    #[test]
    fn buffers_unused_for_a_while_are_freed() {
        let pool = Pool::new(8);
        let idle = || pool.free_list.lock().idle.len();
        drop((0..6).map(|_| pool.take(10)).collect::<Vec<_>>());
        assert_eq!(idle(), 6);
        for _ in 0..3 * TRIM_EVERY {
            drop([pool.take(10), pool.take(10)]);
        }
        assert_eq!((idle(), pool.allocated_count()), (2, 6));
    }

    #[test]
    fn a_zeroed_buffer_is_zero_even_if_a_used_one_is_idle() {
        let pool = Pool::new(2);
        pool.take(4).fill(1.0);
        assert_eq!(*pool.take_zeroed(4), [0.0; 4]);
        assert_eq!(pool.allocated_count(), 2);
    }

    #[test]
    fn a_smaller_request_reuses_a_larger_buffer() {
        let pool = Pool::new(2);
        drop(pool.take(1000));
        let small = pool.take_bytes(10);
        assert_eq!((small.len(), small.bytes().len()), (2, 10));
        assert_eq!(pool.allocated_count(), 1);
    }

    #[test]
    fn idle_buffers_are_bounded() {
        let pool = Pool::new(1);
        drop((pool.take(10), pool.take(10), pool.take(10)));
        assert_eq!(pool.free_list.lock().idle.len(), 1);
    }

    #[test]
    fn bytes_are_little_endian_elements() {
        let buffer = Buffer::from_values(&[1.0, -2.0]);
        assert_eq!(buffer.bytes(), [0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]);
        assert_eq!(&*Buffer::from_bytes(buffer.bytes()), &[1.0, -2.0]);
    }
}
