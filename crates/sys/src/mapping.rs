//! Memory that is mapped from a file or from RAM, read and written in words of eight bytes.
//!
//! Every access is to an atomic word. Another process that writes to the same file at the same time can cause wrong
//! values, but no undefined behavior. It must not truncate the file: the kernel ends a process that reads past the end.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::fs::{FallocateFlags, fallocate, fstat, ftruncate};
use rustix::mm::{
    Advice, MapFlags, MremapFlags, MsyncFlags, ProtFlags, madvise, mmap, mmap_anonymous, mremap, msync, munmap,
};

/// Bytes of a word, the unit of loads and stores.
pub const WORD_BYTES: usize = 8;
/// Bytes of a cache line, the unit of flushes.
pub const LINE_BYTES: usize = 64;
/// Bytes of a page, the unit of mapping and release.
const PAGE_BYTES: usize = 4096;

/// Memory, mapped for reading and writing.
///
/// Offsets are in bytes and multiples of [`WORD_BYTES`]. An access outside the mapping is a mistake of the caller and
/// panics. A mapping may be shared between threads; words are neither torn nor ordered, except by [`Mapping::fence`].
pub struct Mapping {
    /// Dangles while the mapping is empty.
    start: NonNull<u8>,
    len: usize,
    file: Option<OwnedFd>,
    line_flush: LineFlush,
}

// SAFETY: the mapping owns the memory exclusively and accesses it as atomic words only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// The instruction that writes a cache line back to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LineFlush {
    /// `clwb`: writes the line back and keeps it in the cache.
    WriteBack,
    /// `clflushopt`: writes the line back and evicts it from the cache.
    Evict,
    /// `clflush`: like `clflushopt`, but one line after another.
    EvictInOrder,
    /// No known instruction: a flush does nothing.
    None,
}

impl LineFlush {
    /// Returns the best instruction of this processor.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__cpuid, __cpuid_count};
            // Every x86-64 processor has `clflush`, and the leaf with the number of leaves.
            if __cpuid(0).eax < 7 {
                return Self::EvictInOrder;
            }
            let features = __cpuid_count(7, 0).ebx;
            match (features >> 24 & 1, features >> 23 & 1) {
                (1, _) => Self::WriteBack,
                (_, 1) => Self::Evict,
                _ => Self::EvictInOrder,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Self::None
    }
}

fn rounded(len: usize) -> io::Result<usize> {
    len.checked_next_multiple_of(PAGE_BYTES)
        .filter(|len| isize::try_from(*len).is_ok())
        .ok_or(ErrorKind::OutOfMemory.into())
}

impl Mapping {
    /// Maps `len` bytes of zeroed RAM, which are freed with the mapping.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        let mut mapping = Self::over(None);
        mapping.grow(len)?;
        Ok(mapping)
    }

    /// Maps all whole pages of a file, which must be open for reading and writing. A store is visible in the file
    /// immediately, to all processes.
    pub fn of_file(file: OwnedFd) -> io::Result<Self> {
        let len = usize::try_from(fstat(&file)?.st_size).map_err(|_| io::Error::from(ErrorKind::FileTooLarge))?;
        let mut mapping = Self::over(Some(file));
        mapping.map(len - len % PAGE_BYTES)?;
        Ok(mapping)
    }

    /// Maps nothing yet.
    fn over(file: Option<OwnedFd>) -> Self {
        Self { start: NonNull::dangling(), len: 0, file, line_flush: LineFlush::detect() }
    }

    /// Returns the number of mapped bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Maps `len` bytes; nothing may be mapped yet.
    fn map(&mut self, len: usize) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let start = match &self.file {
            None => {
                // SAFETY: the kernel chooses the address of a new mapping, so it affects no existing memory.
                let start =
                    unsafe { mmap_anonymous(null_mut(), len, access, MapFlags::PRIVATE | MapFlags::NORESERVE)? };
                // SAFETY: the range was just mapped, and the advice does not change its contents. The kernel may ignore
                // advice, so a failure is no error.
                let _ = unsafe { madvise(start, len, Advice::LinuxHugepage) };
                start
            }
            Some(file) => {
                // The kernel allows this only on a file system without a page cache (DAX).
                let direct = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
                // SAFETY: as above. Other processes may change the file, but every access is to an atomic word.
                unsafe { mmap(null_mut(), len, access, direct, file, 0) }
                    // SAFETY: as above.
                    .or_else(|_| unsafe { mmap(null_mut(), len, access, MapFlags::SHARED, file, 0) })?
            }
        };
        self.start = NonNull::new(start.cast()).expect("the kernel maps nothing at address 0");
        self.len = len;
        Ok(())
    }

    /// Extends the mapping to at least `len` bytes, in whole pages; the new pages are zero. A mapped file grows, and
    /// its space is reserved: a full disk causes an error here and no signal later. After an error the mapping is
    /// unchanged.
    pub fn grow(&mut self, len: usize) -> io::Result<()> {
        let len = rounded(len)?;
        if len <= self.len {
            return Ok(());
        }
        if let Some(file) = &self.file {
            let (from, to) = (self.len as u64, len as u64);
            // Removes bytes after the last whole page.
            ftruncate(file, from)?;
            match fallocate(file, FallocateFlags::empty(), from, to - from) {
                Err(rustix::io::Errno::OPNOTSUPP) => ftruncate(file, to)?,
                other => other?,
            }
        }
        if self.len == 0 {
            return self.map(len);
        }
        // SAFETY: the range is the current mapping. It may move, because no reference into it outlives a call.
        let start = unsafe { mremap(self.start.as_ptr().cast(), self.len, len, MremapFlags::MAYMOVE)? };
        self.start = NonNull::new(start.cast()).expect("the kernel maps nothing at address 0");
        self.len = len;
        Ok(())
    }

    /// Returns `count` words from an offset on. Panics if they are not inside the mapping.
    fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        assert!(offset.is_multiple_of(WORD_BYTES), "offset {offset} is not a multiple of {WORD_BYTES}");
        let end = count.checked_mul(WORD_BYTES).and_then(|bytes| bytes.checked_add(offset));
        let is_inside = end.is_some_and(|end| end <= self.len);
        assert!(is_inside, "{count} words at {offset} are not inside {} bytes", self.len);
        // SAFETY: the range stays mapped for reading and writing while `self` is borrowed, because unmapping and moving
        // need exclusive access. Pages and words are aligned. Any thread or process may change atomic words.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset).cast(), count) }
    }

    /// Returns the word at an offset.
    pub fn load(&self, offset: usize) -> u64 {
        self.words(offset, 1)[0].load(Ordering::Relaxed)
    }

    /// Replaces the word at an offset, as a whole.
    pub fn store(&self, offset: usize, word: u64) {
        self.words(offset, 1)[0].store(word, Ordering::Relaxed);
    }

    /// Copies the words from an offset on.
    pub fn copy_out(&self, offset: usize, out: &mut [u64]) {
        let words = self.words(offset, out.len());
        out.iter_mut().zip(words).for_each(|(out, word)| *out = word.load(Ordering::Relaxed));
    }

    /// Replaces the words from an offset on, each as a whole.
    pub fn write(&self, offset: usize, words: &[u64]) {
        let places = self.words(offset, words.len());
        places.iter().zip(words).for_each(|(place, word)| place.store(*word, Ordering::Relaxed));
    }

    /// Tells the processor to write back the cache lines of `len` bytes from an offset on. They have left the caches
    /// after the next [`Mapping::fence`].
    pub fn flush(&self, offset: usize, len: usize) {
        let first = offset - offset % LINE_BYTES;
        let end = offset.saturating_add(len).min(self.len);
        for line in (first..end).step_by(LINE_BYTES) {
            flush_line(self.line_flush, self.words(line, 1));
        }
    }

    /// Waits until earlier stores are visible to all threads and flushed lines have left the caches.
    pub fn fence(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a store fence changes no register and no memory. The compiler assumes that it may access memory, and
        // so does not move stores past it.
        unsafe {
            std::arch::asm!("sfence", options(nostack, preserves_flags));
        }
        fence(Ordering::SeqCst);
    }

    /// Writes the stores to the device of the file and waits until they are durable; does nothing without a file.
    pub fn sync(&self) -> io::Result<()> {
        if self.file.is_some() && self.len != 0 {
            // SAFETY: the range is mapped; its contents stay as they are.
            unsafe { msync(self.start.as_ptr().cast(), self.len, MsyncFlags::SYNC)? };
        }
        Ok(())
    }

    /// Frees the memory of all pages inside `len` bytes from an offset on. They are zero afterward, or unchanged if the
    /// file system does not support it.
    pub fn release(&self, offset: usize, len: usize) {
        let end = offset.saturating_add(len).min(self.len) / PAGE_BYTES * PAGE_BYTES;
        let Some(start) = offset.checked_next_multiple_of(PAGE_BYTES).filter(|start| *start < end) else { return };
        match &self.file {
            Some(file) => {
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let _ = fallocate(file.as_fd(), hole, start as u64, (end - start) as u64);
            }
            None => {
                // SAFETY: the range is inside the mapping, and readers expect its words to change at any time.
                let _ = unsafe { madvise(self.start.as_ptr().add(start).cast(), end - start, Advice::LinuxDontNeed) };
            }
        }
    }

    /// Prefetches the cache line of an offset, without waiting for it; does nothing outside the mapping.
    pub fn will_need(&self, offset: usize) {
        if offset < self.len {
            #[cfg(target_arch = "x86_64")]
            {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                // SAFETY: the address is inside the mapping, and a hint has no effect that the program can observe.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(self.start.as_ptr().add(offset).cast()) }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn flush_line(how: LineFlush, line: &[AtomicU64]) {
    use std::arch::asm;
    let address = line.as_ptr();
    // SAFETY: the memory at the address exists, and the instructions change neither it nor a register. The processor
    // has the instruction: `LineFlush::detect` chose it.
    unsafe {
        match how {
            LineFlush::WriteBack => asm!("clwb [{}]", in(reg) address, options(nostack, preserves_flags)),
            LineFlush::Evict => asm!("clflushopt [{}]", in(reg) address, options(nostack, preserves_flags)),
            LineFlush::EvictInOrder => asm!("clflush [{}]", in(reg) address, options(nostack, preserves_flags)),
            LineFlush::None => {}
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn flush_line(_how: LineFlush, _line: &[AtomicU64]) {}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len != 0 {
            // SAFETY: the range is the current mapping, and no reference into it is left. A failure leaks the mapping.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        }
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping").field("len", &self.len).field("file", &self.file).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests a property on anonymous memory and on a file.
    fn on_both(property: impl Fn(Mapping)) {
        property(Mapping::anonymous(PAGE_BYTES).unwrap());
        let mut mapping = Mapping::of_file(tempfile::tempfile().unwrap().into()).unwrap();
        assert!(mapping.is_empty());
        mapping.grow(PAGE_BYTES).unwrap();
        property(mapping);
    }

    #[test]
    fn stored_words_are_loaded_even_after_growth_and_new_pages_are_zero() {
        on_both(|mut mapping| {
            assert_eq!((mapping.len(), mapping.load(4088)), (PAGE_BYTES, 0));
            mapping.write(4000, &[1, 2, 3]);
            mapping.store(4008, u64::MAX);
            mapping.flush(4000, 24);
            mapping.fence();
            mapping.grow(3 * PAGE_BYTES + 1).unwrap();
            assert_eq!(mapping.len(), 4 * PAGE_BYTES);
            let mut words = [7; 4];
            mapping.copy_out(4000, &mut words);
            assert_eq!(words, [1, u64::MAX, 3, 0]);
            mapping.copy_out(4 * PAGE_BYTES - 32, &mut words);
            assert_eq!(words, [0; 4]);
            mapping.will_need(16);
            mapping.will_need(usize::MAX);
            mapping.sync().unwrap();
        });
    }

    #[test]
    fn a_file_contains_stored_words_and_bytes_after_its_last_page_are_not_mapped() {
        let file = tempfile::tempfile().unwrap();
        let mut mapping = Mapping::of_file(file.try_clone().unwrap().into()).unwrap();
        mapping.grow(2 * PAGE_BYTES).unwrap();
        mapping.store(PAGE_BYTES, 0x0102_0304_0506_0708);
        drop(mapping);
        file.set_len(2 * PAGE_BYTES as u64 + 7).unwrap();
        let mut mapping = Mapping::of_file(file.into()).unwrap();
        assert_eq!((mapping.len(), mapping.load(PAGE_BYTES)), (2 * PAGE_BYTES, 0x0102_0304_0506_0708));
        mapping.grow(3 * PAGE_BYTES).unwrap();
        assert_eq!(mapping.load(2 * PAGE_BYTES), 0);
    }

    #[test]
    fn released_pages_are_zero_and_their_neighbors_stay() {
        on_both(|mut mapping| {
            mapping.grow(4 * PAGE_BYTES).unwrap();
            for page in 0..4 {
                mapping.store(page * PAGE_BYTES, 5);
            }
            mapping.release(8, 3 * PAGE_BYTES);
            let left: Vec<_> = (0..4).map(|page| mapping.load(page * PAGE_BYTES)).collect();
            assert_eq!(left, [5, 0, 0, 5]);
        });
    }

    #[test]
    fn accesses_outside_the_mapping_or_between_words_panic() {
        on_both(|mapping| {
            for (offset, count) in [(PAGE_BYTES, 1), (PAGE_BYTES - 8, 2), (4, 1), (usize::MAX - 7, 1), (0, usize::MAX)]
            {
                let access = std::panic::AssertUnwindSafe(|| mapping.words(offset, count).len());
                assert!(std::panic::catch_unwind(access).is_err(), "{count} words at {offset}");
            }
            mapping.flush(PAGE_BYTES - 8, 4096);
        });
    }

    #[test]
    fn no_available_flush_instruction_changes_the_words() {
        on_both(|mut mapping| {
            let best = LineFlush::detect();
            let all = [LineFlush::None, LineFlush::EvictInOrder, LineFlush::Evict, LineFlush::WriteBack];
            for how in all.into_iter().take_while(|how| *how != best).chain([best]) {
                mapping.line_flush = how;
                mapping.store(64, 9);
                mapping.flush(60, 10);
                mapping.fence();
                assert_eq!(mapping.load(64), 9, "{how:?}");
            }
        });
    }
}
