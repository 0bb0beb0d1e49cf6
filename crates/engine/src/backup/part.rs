//! Parts of long files, which several readers read.

use std::sync::{Arc, Mutex, PoisonError};

use crate::backup::unread::Unread;
use crate::chunk::WINDOW;
use crate::error::Error;
use crate::io::tree::SourceFile;

/// Bytes compared at the beginning of a file that has grown, to distinguish appending from rewriting.
pub(super) const HEAD_BYTES: usize = 4096;

/// A long file, open.
#[derive(Debug)]
pub(crate) struct LongFile {
    /// Its handle.
    pub(super) file: Box<dyn SourceFile>,
    /// The file as it was found.
    pub(super) unread: Unread,
    /// Its end when it was opened.
    pub(super) end: u64,
    /// Counts the long files that are open.
    pub(super) _open: Arc<()>,
    /// Bytes that tell whether it was rewritten.
    pub(super) ends: Mutex<Ends>,
}

/// Bytes that were read, with their offsets.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// The first ones.
    pub(super) head: Option<(u64, Vec<u8>)>,
    /// The last ones, if the file ends with data.
    pub(super) tail: Option<(u64, Vec<u8>)>,
}

/// A part of a long file that is not read yet.
#[derive(Debug)]
pub(crate) struct Part {
    /// The file.
    pub(super) file: Arc<LongFile>,
    /// Its first byte in the file.
    pub(super) offset: u64,
    /// Its bytes.
    pub(super) len: usize,
    /// Bytes of the stream before `offset` that are read once more, to warm up the hash.
    pub(super) halo: usize,
    /// Whether no data lies before it.
    pub(super) is_first: bool,
}

/// The reason for which a file was not read to its end.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It has become shorter since it was opened.
    Short,
    /// It cannot be read.
    Failed(Error),
}

impl LongFile {
    /// Keeps the bytes of a part that are compared if the file grows meanwhile.
    pub(super) fn keep_ends(&self, offset: u64, is_first: bool, bytes: &[u8]) {
        let is_last = offset + bytes.len() as u64 == self.end;
        if !is_first && !is_last {
            return;
        }
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        if is_first {
            ends.head = Some((offset, bytes.get(..HEAD_BYTES).unwrap_or(bytes).to_vec()));
        }
        if is_last {
            let tail = bytes.len().saturating_sub(WINDOW - 1);
            ends.tail = Some((offset + tail as u64, bytes.get(tail..).unwrap_or_default().to_vec()));
        }
    }
}
