//! A pool of buffers for bytes that go from thread to thread.
//!
//! The allocator maps a buffer of this size anew each time, and the kernel clears its pages at each first access. That
//! took a fifth of a pull's processor time. The pool never shrinks; the channels that carry buffers bound how many are
//! in use.

use std::sync::{Arc, Mutex, PoisonError};

/// Large enough that hashing and inflating run at full speed, small enough to stay in the cache.
pub const SIZE: usize = 256 << 10;

/// The pool. Clones share their buffers.
#[derive(Clone, Default)]
pub struct Buffers {
    free: Arc<Mutex<Vec<Box<[u8]>>>>,
}

/// [`SIZE`] bytes, of which the first are filled. Returns to the pool when dropped.
pub struct Buffer {
    bytes: Box<[u8]>,
    filled: usize,
    pool: Buffers,
}

impl Buffers {
    /// An empty buffer.
    pub fn take(&self) -> Buffer {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let bytes = free.unwrap_or_else(|| vec![0; SIZE].into_boxed_slice());
        Buffer { bytes, filled: 0, pool: self.clone() }
    }
}

impl Buffer {
    /// The part that is not filled yet.
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    /// Marks further bytes as filled.
    pub fn fill(&mut self, length: usize) {
        self.filled = (self.filled + length).min(SIZE);
    }

    /// Copies as much of `from` as fits, and returns how much that was.
    pub fn copy(&mut self, from: &[u8]) -> usize {
        let space = self.space();
        let length = from.len().min(space.len());
        space[..length].copy_from_slice(&from[..length]);
        self.fill(length);
        length
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returned_buffer_is_used_again_and_is_empty() {
        let buffers = Buffers::default();
        let mut buffer = buffers.take();
        assert_eq!(buffer.copy(&[7; SIZE + 1]), SIZE);
        assert_eq!((buffer.as_ref().len(), buffer.space().len()), (SIZE, 0));
        let address = buffer.as_ref().as_ptr();
        drop(buffer);
        let again = buffers.take();
        assert_eq!(again.as_ref(), b"");
        assert_eq!(again.bytes.as_ptr(), address);
        assert_ne!(buffers.take().bytes.as_ptr(), address);
    }
}
