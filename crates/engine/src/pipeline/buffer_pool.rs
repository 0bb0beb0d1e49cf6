//! What jobs use again.

use std::sync::Mutex;

/// What one job needs at a time and the next can use again; as many as jobs run at a time.
#[derive(Debug)]
pub struct BufferPool<T>(Mutex<Vec<T>>);

impl<T> Default for BufferPool<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Default> BufferPool<T> {
    /// Takes one that was put back, or a new one.
    pub fn take(&self) -> T {
        self.0.lock().ok().and_then(|mut spare| spare.pop()).unwrap_or_default()
    }

    /// Puts one back.
    pub fn put(&self, used: T) {
        if let Ok(mut spare) = self.0.lock() {
            spare.push(used);
        }
    }
}
