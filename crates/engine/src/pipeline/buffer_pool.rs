//! Buffers that tasks reuse.

use std::sync::Mutex;

/// Reusable buffers, as many as tasks run at a time.
#[derive(Debug)]
pub(crate) struct BufferPool<T>(Mutex<Vec<T>>);

impl<T> Default for BufferPool<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Default> BufferPool<T> {
    /// Takes one that was put back, or a new one.
    pub(crate) fn take(&self) -> T {
        self.0.lock().ok().and_then(|mut free| free.pop()).unwrap_or_default()
    }

    /// Puts one back.
    pub(crate) fn put(&self, used: T) {
        if let Ok(mut free) = self.0.lock() {
            free.push(used);
        }
    }
}
