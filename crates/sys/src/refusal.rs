//! An allocator that ends the process in an orderly way when the system refuses memory.
//!
//! The standard library would abort, after a backtrace if `RUST_BACKTRACE` requests one. The backtrace also needs
//! memory. If the system refuses that, the thread waits forever for a lock that it holds itself.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt;

thread_local! {
    /// Number of calls of [`answer_refusals`] on the thread's stack. It has a constant initial value and no destructor,
    /// so the allocator may use it at any time.
    static ANSWERED: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator. A refusal calls a function that ends the process, unless [`answer_refusals`] is on the stack.
pub struct EndOnRefusal {
    end: fn(usize) -> !,
}

impl EndOnRefusal {
    /// `end` gets the number of bytes that were refused. It must not allocate.
    pub const fn new(end: fn(usize) -> !) -> Self {
        Self { end }
    }

    fn check(&self, start: *mut u8, bytes: usize) -> *mut u8 {
        if start.is_null() { self.refused(bytes) } else { start }
    }

    #[cold]
    fn refused(&self, bytes: usize) -> *mut u8 {
        if ANSWERED.get() == 0 {
            (self.end)(bytes);
        }
        std::ptr::null_mut()
    }
}

impl fmt::Debug for EndOnRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndOnRefusal").finish_non_exhaustive()
    }
}

// SAFETY: every call goes to the system's allocator with its arguments, and returns its result.
unsafe impl GlobalAlloc for EndOnRefusal {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, which is that of the system's allocator.
        self.check(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        self.check(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as above.
        self.check(unsafe { System.realloc(start, layout, new_size) }, new_size)
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }
}

/// Calls a function that handles refusals of memory on this thread itself, as `Vec::try_reserve` does.
pub fn answer_refusals<T>(allocate: impl FnOnce() -> T) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            ANSWERED.set(ANSWERED.get().saturating_sub(1));
        }
    }
    ANSWERED.set(ANSWERED.get() + 1);
    let _leave = Leave;
    allocate()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More bytes than any address space has.
    const REFUSED_BYTES: usize = isize::MAX as usize - 4096;

    fn end(bytes: usize) -> ! {
        panic!("{bytes} bytes refused")
    }

    #[test]
    fn a_refusal_ends_the_process_unless_the_caller_handles_it() {
        let allocator = EndOnRefusal::new(end);
        let layout = Layout::from_size_align(REFUSED_BYTES, 1).unwrap();
        // SAFETY: the layout is not of size 0.
        let allocate = || unsafe { allocator.alloc(layout) };
        assert!(answer_refusals(|| answer_refusals(allocate)).is_null());
        let ended = std::panic::catch_unwind(allocate).unwrap_err();
        assert_eq!(ended.downcast_ref::<String>().unwrap(), &format!("{REFUSED_BYTES} bytes refused"));
    }

    #[test]
    fn granted_memory_comes_from_the_system() {
        let allocator = EndOnRefusal::new(end);
        let layout = Layout::from_size_align(64, 8).unwrap();
        // SAFETY: the size of the layout is not 0, the memory was allocated with it, and all bytes read are
        // initialized.
        unsafe {
            let start = allocator.alloc_zeroed(layout);
            assert_eq!(start.read(), 0);
            start.write(7);
            let grown = allocator.realloc(start, layout, 128);
            assert_eq!(grown.read(), 7);
            allocator.dealloc(grown, Layout::from_size_align(128, 8).unwrap());
        }
    }
}
