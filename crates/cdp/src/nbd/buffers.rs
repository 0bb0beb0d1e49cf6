//! Buffers for the payloads of one connection.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::wire::PAYLOAD_BYTES_MAX;

/// Lengths of buffers are powers of two, from this one on.
const SMALLEST_BYTES: usize = 4096;

/// Number of different lengths.
const CLASSES: usize = (PAYLOAD_BYTES_MAX as usize / SMALLEST_BYTES).ilog2() as usize + 1;

/// Most bytes of buffers that wait for their next use. A new buffer costs a fault for each of its pages.
pub(crate) const UNUSED_BYTES_MAX: usize = 8 << 20;

/// Buffers for payloads, limited together: a thread that wants one waits until others are returned.
#[derive(Debug)]
pub(crate) struct Buffers {
    state: Mutex<State>,
    returned: Condvar,
    limit: usize,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes of all buffers, unused ones included.
    total: usize,
    /// Bytes of unused buffers.
    unused_bytes: usize,
    unused: [Vec<Vec<u8>>; CLASSES],
}

impl Buffers {
    /// Buffers of so many bytes together, enough for one of the longest payload.
    pub(crate) fn new(limit: usize) -> Self {
        let limit = limit.max(PAYLOAD_BYTES_MAX as usize);
        Self { state: Mutex::default(), returned: Condvar::new(), limit }
    }

    /// Takes a buffer for a payload of `len` bytes; waits while there is no memory for it.
    ///
    /// # Panics
    ///
    /// If the payload is longer than [`PAYLOAD_BYTES_MAX`].
    pub(crate) fn take(&self, len: usize) -> Buffer<'_> {
        let class = class_of(len);
        let mut state = self.lock();
        loop {
            if let Some(bytes) = state.unused[class].pop() {
                state.unused_bytes -= bytes.len();
                return Buffer { bytes, len, buffers: self };
            }
            let wanted = SMALLEST_BYTES << class;
            if self.limit < state.total + wanted {
                state.drop_unused();
            }
            if state.total + wanted <= self.limit {
                state.total += wanted;
                drop(state);
                return Buffer { bytes: vec![0; wanted], len, buffers: self };
            }
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn give_back(&self, bytes: Vec<u8>) {
        let mut state = self.lock();
        if state.unused_bytes + bytes.len() <= UNUSED_BYTES_MAX {
            state.unused_bytes += bytes.len();
            state.unused[class_of(bytes.len())].push(bytes);
        } else {
            state.total -= bytes.len();
        }
        drop(state);
        // One thread takes buffers at a time: the one that receives.
        self.returned.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn drop_unused(&mut self) {
        self.unused.iter_mut().for_each(Vec::clear);
        self.total -= self.unused_bytes;
        self.unused_bytes = 0;
    }
}

/// Returns the position of the smallest length that is enough.
fn class_of(len: usize) -> usize {
    assert!(len <= PAYLOAD_BYTES_MAX as usize, "a payload of {len} bytes");
    let rounded = len.max(SMALLEST_BYTES).next_power_of_two();
    (rounded / SMALLEST_BYTES).ilog2() as usize
}

/// Memory for one payload. Returns to its connection when it is dropped.
#[derive(Debug)]
pub(crate) struct Buffer<'a> {
    bytes: Vec<u8>,
    len: usize,
    buffers: &'a Buffers,
}

impl Deref for Buffer<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DerefMut for Buffer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        self.buffers.give_back(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const LONGEST: usize = PAYLOAD_BYTES_MAX as usize;

    #[test]
    fn buffers_are_rounded_reused_and_limited() {
        let buffers = Buffers::new(LONGEST);
        assert_eq!((class_of(0), class_of(4096), class_of(4097), class_of(LONGEST)), (0, 0, 1, CLASSES - 1));
        let mut buffer = buffers.take(5000);
        assert_eq!(buffer.len(), 5000);
        buffer[4999] = 7;
        drop(buffer);
        assert_eq!(buffers.take(8192)[4999], 7, "the same memory");
        assert_eq!(buffers.lock().total, 8192);
        drop(buffers.take(LONGEST));
        assert_eq!(buffers.lock().total, 0, "neither is kept");
    }

    #[test]
    fn a_thread_that_wants_more_than_the_limit_waits_for_a_buffer_to_return() {
        let buffers = Buffers::new(LONGEST);
        let small = buffers.take(1);
        let (sender, receiver) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let large = buffers.take(LONGEST);
                sender.send(large.len()).unwrap();
            });
            assert!(receiver.recv_timeout(Duration::from_millis(100)).is_err());
            drop(small);
            assert_eq!(receiver.recv(), Ok(LONGEST));
        });
    }
}
