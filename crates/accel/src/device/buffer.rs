//! Memory of the host that a device reads without a copy in between: ordinary memory for the processor.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use super::Fault;

/// Memory from a device, or ordinary memory.
#[derive(Debug)]
pub struct Memory(Kind);

#[derive(Debug)]
enum Kind {
    Ordinary(Box<[u8]>),
    #[cfg(feature = "cuda")]
    PageLocked(super::cuda::PageLocked),
}

impl Memory {
    /// Takes ordinary memory: zeros.
    pub fn ordinary(len: usize) -> Self {
        Self(Kind::Ordinary(vec![0; len].into_boxed_slice()))
    }

    #[cfg(feature = "cuda")]
    pub(super) fn page_locked(memory: super::cuda::PageLocked) -> Self {
        Self(Kind::PageLocked(memory))
    }

    fn bytes(&self) -> &[u8] {
        match &self.0 {
            Kind::Ordinary(bytes) => bytes,
            #[cfg(feature = "cuda")]
            Kind::PageLocked(memory) => memory,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Kind::Ordinary(bytes) => bytes,
            #[cfg(feature = "cuda")]
            Kind::PageLocked(memory) => memory,
        }
    }
}

/// A limited number of buffers of one length, which are used again.
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

struct Shared {
    allocate: Box<dyn Fn(usize) -> Result<Memory, Fault> + Send + Sync>,
    buffer_bytes: usize,
    state: Mutex<State>,
}

struct State {
    free: Vec<Memory>,
    /// Buffers that may still be allocated.
    left: usize,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("buffer_bytes", &self.0.buffer_bytes).finish_non_exhaustive()
    }
}

impl Pool {
    /// Starts without a buffer: each is allocated when it is first needed, at most `count` of them. `allocate` is [`Device::allocate`](super::Device::allocate).
    pub fn new(
        buffer_bytes: usize,
        count: usize,
        allocate: impl Fn(usize) -> Result<Memory, Fault> + Send + Sync + 'static,
    ) -> Self {
        let allocate = Box::new(allocate);
        Self(Arc::new(Shared { allocate, buffer_bytes, state: Mutex::new(State { free: Vec::new(), left: count }) }))
    }

    /// Takes a free buffer, with bytes of its last use in it. `None` if all are in use, or the device has no memory.
    pub fn take(&self) -> Option<Buffer> {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let free = state.free.pop();
        let memory = if let Some(memory) = free {
            memory
        } else {
            state.left = state.left.checked_sub(1)?;
            // A device that hangs may keep this thread; the others return their buffers meanwhile.
            drop(state);
            let allocated = (self.0.allocate)(self.0.buffer_bytes);
            if allocated.is_err() {
                // The next attempt would fail, too.
                self.0.state.lock().unwrap_or_else(PoisonError::into_inner).left = 0;
            }
            allocated.ok()?
        };
        Some(Buffer { memory: Some(memory), home: Arc::clone(&self.0) })
    }
}

/// A buffer that one owner fills. Dropping it returns its memory to the pool.
pub struct Buffer {
    /// `None` in `drop` only.
    memory: Option<Memory>,
    home: Arc<Shared>,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], Memory::bytes)
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], Memory::bytes_mut)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.home.state.lock().unwrap_or_else(PoisonError::into_inner).free.push(memory);
        }
    }
}

impl Buffer {
    /// Ends the filling: from now on nobody changes the first `len` bytes, and the others are gone. Owners of the result share it with a device
    /// that copies it. The memory returns to the pool when the last of them drops it.
    pub fn freeze(self, len: usize) -> Arc<Frozen> {
        assert!(len <= self.len(), "{len} of {} bytes", self.len());
        Arc::new(Frozen { buffer: self, len })
    }
}

/// Bytes of a buffer that nobody changes any more.
#[derive(Debug)]
pub struct Frozen {
    buffer: Buffer,
    len: usize,
}

impl Deref for Frozen {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.get(..self.len).unwrap_or_default()
    }
}
