//! The receiver of the chunks that a restore fetches.

use std::ops::Range;

use crate::error::Error;

/// Chunks of a window by their numbers, and why each of them failed.
pub(super) type Failures = Vec<(usize, Error)>;

/// Takes the chunks of a window.
pub trait Sink: Send + Sync {
    /// Takes chunks of one region: each by its number in the window, ascending, and the range of its bytes in `plain`. Returns
    /// those that could not be taken. Called from any thread, in any order.
    fn take(&self, plain: &[u8], chunks: &[(usize, Range<usize>)]) -> Failures;
    /// Records a chunk that could not be fetched, or not be taken. Called from the thread that fetches.
    fn lose(&self, number: usize, error: Error);
    /// Closes files that nobody needs right now, since no more can be opened.
    fn relieve(&self) {}
    /// Returns true if nothing more is to be fetched.
    fn is_interrupted(&self) -> bool {
        false
    }
}
