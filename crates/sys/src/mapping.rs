//! Memory that a file or the machine's memory stands behind, read and written in words of eight bytes.
//!
//! Every access is that of an atomic word, so that another process that writes to the same file at the same time can make
//! what is read wrong, but not undefined. What it must not do is cut the file off: the kernel then ends whoever reads past its end.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::fs::{FallocateFlags, fallocate, fstat, ftruncate};
use rustix::mm::{
    Advice, MapFlags, MremapFlags, MsyncFlags, ProtFlags, madvise, mmap, mmap_anonymous, mremap, msync, munmap,
};

/// Bytes of a word: what is loaded and stored at once.
pub const WORD_BYTES: usize = 8;
/// Bytes of a cache line: what is flushed at once.
pub const LINE_BYTES: usize = 64;
/// Bytes of a page: what is mapped and released at once.
const PAGE_BYTES: usize = 4096;

/// Memory, mapped for reading and writing.
///
/// Offsets are in bytes, multiples of [`WORD_BYTES`]; an access that is not inside the mapping is a mistake of the caller
/// and panics. A mapping may be shared between threads; words are neither torn nor ordered, except by [`Mapping::fence`].
pub struct Mapping {
    /// Dangles while the mapping is empty.
    start: NonNull<u8>,
    len: usize,
    file: Option<OwnedFd>,
    is_direct: bool,
    line_flush: LineFlush,
}

// SAFETY: the memory belongs to the mapping alone and is accessed as atomic words only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// How a line is told to go to where the memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LineFlush {
    /// `clwb`: written back, and kept in the cache.
    WriteBack,
    /// `clflushopt`: written back and thrown out of the cache.
    Evict,
    /// `clflush`: the same, one after another.
    EvictInOrder,
    /// The processor is not one that this program knows how to tell: nothing is done.
    None,
}

impl LineFlush {
    /// Returns what this processor has.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__cpuid, __cpuid_count};
            // Every x86-64 processor has the leaf that says how many there are, and `clflush`.
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
    /// Maps so much of the machine's memory, zeroed; it is gone with the mapping.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        let mut mapping =
            Self { start: NonNull::dangling(), len: 0, file: None, is_direct: false, line_flush: LineFlush::detect() };
        mapping.grow(len)?;
        Ok(mapping)
    }

    /// Maps all whole pages that a file has; it must be open for reading and writing. What is written to it is in the
    /// file for everyone, at once.
    pub fn of_file(file: OwnedFd) -> io::Result<Self> {
        let len = usize::try_from(fstat(&file)?.st_size).map_err(|_| io::Error::from(ErrorKind::FileTooLarge))?;
        let mut mapping = Self {
            start: NonNull::dangling(),
            len: 0,
            file: Some(file),
            is_direct: false,
            line_flush: LineFlush::detect(),
        };
        mapping.map(len - len % PAGE_BYTES)?;
        Ok(mapping)
    }

    /// Returns how many bytes are mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Says whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns how lines are flushed here.
    pub fn line_flush(&self) -> LineFlush {
        self.line_flush
    }

    /// Says whether the file's own memory is mapped, with no page cache between (DAX): what was flushed and fenced is
    /// durable then.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Maps `len` bytes where nothing is mapped so far.
    fn map(&mut self, len: usize) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let start = match &self.file {
            None => {
                // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
                let start =
                    unsafe { mmap_anonymous(null_mut(), len, access, MapFlags::PRIVATE | MapFlags::NORESERVE)? };
                // SAFETY: the range was just mapped, and the advice changes nothing that can be read. It is one: that it
                // is not taken is no error.
                let _ = unsafe { madvise(start, len, Advice::LinuxHugepage) };
                start
            }
            Some(file) => {
                // Only memory that the file itself consists of can be mapped so; elsewhere the kernel refuses.
                let direct = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
                // SAFETY: as above. Others may change the file, but every access is that of an atomic word.
                let mapped = unsafe { mmap(null_mut(), len, access, direct, file, 0) };
                self.is_direct = mapped.is_ok();
                match mapped {
                    Ok(start) => start,
                    // SAFETY: as above.
                    Err(_) => unsafe { mmap(null_mut(), len, access, MapFlags::SHARED, file, 0)? },
                }
            }
        };
        self.start = NonNull::new(start.cast()).expect("the kernel maps nothing at address 0");
        self.len = len;
        Ok(())
    }

    /// Makes the mapping at least `len` bytes long, in whole pages; the new ones are zero. Where a file stands behind it,
    /// the file grows and has its space reserved: a full disk is an error here, and no signal later. After an error the
    /// mapping is as it was.
    pub fn grow(&mut self, len: usize) -> io::Result<()> {
        let len = rounded(len)?;
        if len <= self.len {
            return Ok(());
        }
        if let Some(file) = &self.file {
            let (from, to) = (self.len as u64, len as u64);
            // What may stand after the last whole page goes.
            ftruncate(file, from)?;
            match fallocate(file, FallocateFlags::empty(), from, to - from) {
                Err(rustix::io::Errno::OPNOTSUPP) => ftruncate(file, to)?,
                other => other?,
            }
        }
        if self.len == 0 {
            return self.map(len);
        }
        // SAFETY: the range is what was mapped last, and no reference into it outlives a call; it may move.
        let start = unsafe { mremap(self.start.as_ptr().cast(), self.len, len, MremapFlags::MAYMOVE)? };
        self.start = NonNull::new(start.cast()).expect("the kernel maps nothing at address 0");
        self.len = len;
        Ok(())
    }

    /// Returns the word at an offset after checking that the range from there is inside.
    fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        assert!(offset.is_multiple_of(WORD_BYTES), "offset {offset} is not that of a word");
        let end = count.checked_mul(WORD_BYTES).and_then(|bytes| bytes.checked_add(offset));
        let is_inside = end.is_some_and(|end| end <= self.len);
        assert!(is_inside, "{count} words at {offset} are not inside {} bytes", self.len);
        // SAFETY: the range is mapped for reading and writing for as long as `self` is borrowed, since unmapping and moving
        // need it exclusively; pages are aligned and so are words; atomic words may be changed by anyone.
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

    /// Tells the processor to write back the lines that hold `len` bytes from an offset on. They have arrived after the
    /// next [`Mapping::fence`].
    pub fn flush(&self, offset: usize, len: usize) {
        let first = offset - offset % LINE_BYTES;
        let end = offset.saturating_add(len).min(self.len);
        for line in (first..end).step_by(LINE_BYTES) {
            flush_line(self.line_flush, self.words(line, 1));
        }
    }

    /// Waits until what was stored before can be seen by all, and flushed lines have left the caches.
    pub fn fence(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a store fence changes no register and no memory. That it may touch memory, as far as the compiler knows,
        // keeps it from moving stores past it.
        unsafe {
            std::arch::asm!("sfence", options(nostack, preserves_flags));
        }
        fence(Ordering::SeqCst);
    }

    /// Writes what was stored to the device under the file and waits for it; does nothing without a file.
    pub fn sync(&self) -> io::Result<()> {
        if self.file.is_some() && self.len != 0 {
            // SAFETY: the range is mapped; its contents stay as they are.
            unsafe { msync(self.start.as_ptr().cast(), self.len, MsyncFlags::SYNC)? };
        }
        Ok(())
    }

    /// Gives back the memory of all pages that lie inside `len` bytes from an offset on; they are zero afterwards, or as
    /// they were where a file system cannot do it.
    pub fn release(&self, offset: usize, len: usize) {
        let end = offset.saturating_add(len).min(self.len) / PAGE_BYTES * PAGE_BYTES;
        let Some(start) = offset.checked_next_multiple_of(PAGE_BYTES).filter(|start| *start < end) else { return };
        match &self.file {
            Some(file) => {
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let _ = fallocate(file.as_fd(), hole, start as u64, (end - start) as u64);
            }
            None => {
                // SAFETY: the range is inside the mapping, and its words may change at any time for whoever reads them.
                let _ = unsafe { madvise(self.start.as_ptr().add(start).cast(), end - start, Advice::LinuxDontNeed) };
            }
        }
    }

    /// Asks for the line of an offset, without waiting for it; does nothing outside the mapping.
    pub fn will_need(&self, offset: usize) {
        if offset < self.len {
            #[cfg(target_arch = "x86_64")]
            {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                // SAFETY: the address is inside the mapping, and a hint reads nothing that the program sees.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(self.start.as_ptr().add(offset).cast()) }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn flush_line(how: LineFlush, line: &[AtomicU64]) {
    use std::arch::asm;
    let address = line.as_ptr();
    // SAFETY: the address is that of memory that exists, and no instruction changes it, nor a register. The processor
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
            // SAFETY: the range is what was mapped last, and nothing refers into it any more. What fails, leaks.
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

    /// Runs a property on memory, and on a file.
    fn on_both(property: impl Fn(Mapping)) {
        property(Mapping::anonymous(PAGE_BYTES).unwrap());
        let mut mapping = Mapping::of_file(tempfile::tempfile().unwrap().into()).unwrap();
        assert!(mapping.is_empty());
        mapping.grow(PAGE_BYTES).unwrap();
        property(mapping);
    }

    #[test]
    fn what_is_stored_is_loaded_also_after_growing_and_new_pages_are_zero() {
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
    fn a_file_holds_what_was_stored_and_bytes_after_its_last_page_are_no_words() {
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
    fn what_is_outside_or_between_words_is_refused() {
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
    fn every_way_to_flush_that_the_processor_has_leaves_the_words_alone() {
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
