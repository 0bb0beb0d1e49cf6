//! Heap memory that is aligned to a page, as direct I/O requires.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use rustix::mm::{Advice, madvise};

/// Alignment of every buffer in bytes.
///
/// 4,096 is a page of memory, and at least the logical block size of every disk on which Onefold tries direct I/O.
pub const ALIGNMENT: usize = 4096;

/// Bytes of a huge page of 512 pages. A buffer of at least this length is aligned to it and asks for huge pages. The
/// processor, and the kernel when it passes the buffer to a disk, then translate few addresses instead of thousands.
const HUGE_PAGE: usize = 2 << 20;

/// Bytes on the heap, aligned to [`ALIGNMENT`]. A new empty buffer holds no memory.
///
/// The owner counts its capacity toward the memory budget.
pub struct AlignedBuffer {
    start: NonNull<u8>,
    len: usize,
    /// Allocated bytes. If 0, nothing is allocated, and `start` dangles but is aligned.
    capacity: usize,
}

// SAFETY: the buffer owns its memory exclusively and lends it only as `&` and `&mut`, like `Vec<u8>`.
unsafe impl Send for AlignedBuffer {}
// SAFETY: as above.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Returns a buffer of `len` zeros.
    pub fn new_zeroed(len: usize) -> Self {
        if len == 0 {
            return Self::default();
        }
        let layout = layout(len);
        // SAFETY: the layout is not of size 0.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        if HUGE_PAGE <= len {
            // For whole huge pages only: the remainder would take more memory than requested.
            let advised = len - len % HUGE_PAGE;
            // SAFETY: the range was just allocated, and the advice does not change its contents. The kernel may ignore
            // advice, so a failure is no error.
            let _ = unsafe { madvise(start.as_ptr().cast(), advised, Advice::LinuxHugepage) };
        }
        // SAFETY: `len` bytes were allocated.
        unsafe { start.as_ptr().write_bytes(0, len) };
        Self { start, len, capacity: len }
    }

    /// Truncates the buffer to `len` bytes, or appends zeros. Allocates only if `len` exceeds the capacity.
    pub fn resize(&mut self, len: usize) {
        if self.capacity < len {
            let mut grown = Self::new_zeroed(len);
            grown[..self.len].copy_from_slice(self);
            *self = grown;
            return;
        }
        let old_len = self.len;
        // All bytes up to the capacity are initialized, because `new_zeroed` wrote zeros.
        self.len = len;
        if old_len < len {
            self[old_len..].fill(0);
        }
    }

    /// Returns the number of bytes of memory that the buffer holds.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}

/// Asks for huge pages for the memory of a vector, as far as it has whole ones. Its contents do not change.
///
/// A program that reads memory in random order translates an address for each page, and the kernel gives pages out one by one.
pub fn advise_huge_pages<T>(memory: &Vec<T>) {
    let start = memory.as_ptr().addr();
    // A vector holds at most half the address space; its capacity has no bound if its elements take no memory.
    let end = start + memory.capacity().saturating_mul(size_of::<T>());
    let first = start.next_multiple_of(HUGE_PAGE);
    let Some(advised) = end.checked_sub(first).map(|len| len - len % HUGE_PAGE).filter(|len| 0 < *len) else { return };
    let inner = memory.as_ptr().cast::<u8>().wrapping_add(first - start).cast_mut();
    // SAFETY: the range lies in memory that the vector has allocated, and the advice does not change its contents. The kernel may
    // ignore advice, so a failure is no error.
    let _ = unsafe { madvise(inner.cast(), advised, Advice::LinuxHugepage) };
}

fn layout(capacity: usize) -> Layout {
    let alignment = if capacity < HUGE_PAGE { ALIGNMENT } else { HUGE_PAGE };
    Layout::from_size_align(capacity, alignment).expect("no buffer is half the address space")
}

impl Default for AlignedBuffer {
    fn default() -> Self {
        // Aligned although it is empty, because the kernel checks the address of an empty read, too.
        let start = std::ptr::without_provenance_mut(ALIGNMENT);
        Self { start: NonNull::new(start).expect("the alignment is not 0"), len: 0, capacity: 0 }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if self.capacity != 0 {
            // SAFETY: `new_zeroed` allocated the memory with the same layout, and nothing has freed it.
            unsafe { dealloc(self.start.as_ptr(), layout(self.capacity)) }
        }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the buffer owns `len` initialized bytes from `start`; for a length of 0 an aligned address is enough.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` guarantees that there is no other reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl From<&[u8]> for AlignedBuffer {
    fn from(bytes: &[u8]) -> Self {
        let mut buffer = Self::new_zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }
}

/// Shows the length only: the bytes may be a user's data and do not belong in a message.
impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuffer").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_buffer_is_aligned_zeroed_and_of_the_requested_length() {
        for len in [0, 1, 511, 4096, 4097, 1 << 20, HUGE_PAGE, 2 * HUGE_PAGE + 4097] {
            let buffer = AlignedBuffer::new_zeroed(len);
            assert_eq!((buffer.len(), buffer.as_ptr().addr() % ALIGNMENT), (len, 0));
            assert!(buffer.iter().all(|byte| *byte == 0));
        }
        assert_eq!(AlignedBuffer::default().len(), 0);
    }

    #[test]
    fn advice_on_a_vector_changes_nothing_in_it_or_beside_it() {
        for len in [0, 1, 4096, HUGE_PAGE - 1, HUGE_PAGE, 5 * HUGE_PAGE + 4097] {
            let (mut advised, beside) = (vec![[7_u8; 3]; len / 3], vec![9_u8; 4096]);
            advise_huge_pages(&advised);
            assert!(advised.iter().all(|bytes| *bytes == [7; 3]) && beside.iter().all(|byte| *byte == 9));
            advised.reserve_exact(len);
            advise_huge_pages(&advised);
            advised.resize(2 * (len / 3), [8; 3]);
            assert!(advised.iter().rev().take(len / 3).all(|bytes| *bytes == [8; 3]));
        }
        advise_huge_pages(&Vec::<[u8; 0]>::with_capacity(usize::MAX));
    }

    #[test]
    fn resizing_keeps_bytes_and_appends_zeros_even_over_old_bytes() {
        let mut buffer = AlignedBuffer::from(&[7; 5000][..]);
        buffer.resize(10_000);
        assert!(buffer[..5000] == [7; 5000] && buffer[5000..] == [0; 5000]);
        assert_eq!(buffer.as_ptr().addr() % ALIGNMENT, 0);
        buffer.resize(10);
        buffer.resize(5000);
        assert!(buffer[..10] == [7; 10] && buffer[10..] == [0; 4990]);
        assert_eq!(buffer.capacity(), 10_000, "shrinking and growing again allocates nothing");
        buffer.resize(0);
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_buffer_crosses_threads() {
        let buffer = AlignedBuffer::from(&b"bytes"[..]);
        let buffer = std::thread::scope(|scope| scope.spawn(move || buffer).join().unwrap());
        assert_eq!(&buffer[..], b"bytes");
    }
}
