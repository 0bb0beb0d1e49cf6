//! Heap memory that starts at a multiple of a page, as direct I/O wants it.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use rustix::mm::{Advice, madvise};

/// Where every buffer starts: a multiple of this many bytes.
///
/// 4,096: a page of memory, and at least the logical block of every disk that direct I/O is tried on.
pub const ALIGNMENT: usize = 4096;

/// Bytes of a huge page where one is 512 pages. A buffer that long or longer starts at a multiple of it and asks for huge
/// pages, so that the processor, and the kernel that hands the buffer to a disk, look up few addresses instead of thousands.
const HUGE_PAGE: usize = 2 << 20;

/// Bytes on the heap, the first of them at a multiple of [`ALIGNMENT`]. An empty one holds no memory.
///
/// Whoever holds it counts its capacity as memory; `len` bytes are initialized at any time.
pub struct AlignedBuffer {
    start: NonNull<u8>,
    len: usize,
    /// Allocated bytes; 0: nothing is allocated and `start` dangles, aligned.
    capacity: usize,
}

// SAFETY: the buffer owns its memory alone and hands it out by the rules of `&` and `&mut` only, as `Vec<u8>` does.
unsafe impl Send for AlignedBuffer {}
// SAFETY: as above.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Returns a buffer of so many zeros.
    pub fn new_zeroed(len: usize) -> Self {
        if len == 0 {
            return Self::default();
        }
        let layout = layout(len);
        // SAFETY: the layout is not of size 0.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        if HUGE_PAGE <= len {
            // Of whole huge pages only: the rest would take more memory than was asked for.
            let advised = len - len % HUGE_PAGE;
            // SAFETY: the range was just allocated, and the advice changes nothing that can be read. It is one: that it is
            // not taken is no error.
            let _ = unsafe { madvise(start.as_ptr().cast(), advised, Advice::LinuxHugepage) };
        }
        // SAFETY: so many bytes were allocated.
        unsafe { start.as_ptr().write_bytes(0, len) };
        Self { start, len, capacity: len }
    }

    /// Makes the buffer `len` bytes long: cuts it, or appends zeros. Memory is allocated only to grow beyond the longest
    /// it ever was.
    pub fn resize(&mut self, len: usize) {
        if self.capacity < len {
            let mut grown = Self::new_zeroed(len);
            grown[..self.len].copy_from_slice(self);
            *self = grown;
            return;
        }
        let old_len = self.len;
        // All bytes up to the capacity are initialized: the memory came zeroed, and nothing takes that back.
        self.len = len;
        if old_len < len {
            self[old_len..].fill(0);
        }
    }

    /// Returns how many bytes of memory the buffer holds.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}

fn layout(capacity: usize) -> Layout {
    let alignment = if capacity < HUGE_PAGE { ALIGNMENT } else { HUGE_PAGE };
    Layout::from_size_align(capacity, alignment).expect("no buffer is half the address space")
}

impl Default for AlignedBuffer {
    fn default() -> Self {
        // Aligned even though nothing is there: a read of no bytes is a read like any other.
        let start = std::ptr::without_provenance_mut(ALIGNMENT);
        Self { start: NonNull::new(start).expect("the alignment is not 0"), len: 0, capacity: 0 }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if self.capacity != 0 {
            // SAFETY: allocated in `new_zeroed` with this very layout, and not yet freed.
            unsafe { dealloc(self.start.as_ptr(), layout(self.capacity)) }
        }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes from `start` are ours and initialized; with a length of 0 an aligned address is enough.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes it the only reference.
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

/// Says how long it is. The bytes may be somebody's data and do not belong in a message.
impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuffer").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_buffer_is_aligned_zeroed_and_as_long_as_asked() {
        for len in [0, 1, 511, 4096, 4097, 1 << 20, HUGE_PAGE, 2 * HUGE_PAGE + 4097] {
            let buffer = AlignedBuffer::new_zeroed(len);
            assert_eq!((buffer.len(), buffer.as_ptr().addr() % ALIGNMENT), (len, 0));
            assert!(buffer.iter().all(|byte| *byte == 0));
        }
        assert_eq!(AlignedBuffer::default().len(), 0);
    }

    #[test]
    fn resizing_keeps_what_stands_and_appends_zeros_also_where_bytes_stood_before() {
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
