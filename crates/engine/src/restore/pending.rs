//! A file that is being restored: its plan, its progress and its losses.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Error;
use crate::io::tree::{EntryKind, Identity, Metadata, TargetFile, Xattr};
use crate::restore::links::SharedInode;
use crate::restore::partial::Partial;

/// A file to be restored.
#[derive(Debug)]
pub(super) struct FilePlan {
    /// Path relative to the target.
    pub(crate) path: PathBuf,
    /// Name of its partial file.
    pub(crate) partial: Partial,
    /// Kind of the existing entry that it replaces. A directory is removed right before the rename.
    pub(crate) replaced: Option<EntryKind>,
    /// Metadata to set when its bytes are written.
    pub(crate) metadata: Metadata,
    /// Extended attributes likewise.
    pub(crate) xattrs: Vec<Xattr>,
    /// The inode that other names of the snapshot share with it.
    pub(crate) link: Option<SharedInode>,
}

/// A file being restored.
#[derive(Debug)]
pub(super) struct PendingFile {
    pub(super) plan: FilePlan,
    pub(super) handle: Mutex<Handle>,
    /// Chunks that are not written, and one more until all chunks are known.
    pub(super) left: AtomicUsize,
    /// Chunks that it has.
    pub(super) chunks: AtomicU64,
    /// True if the length must be set since not every byte up to the end is written.
    pub(super) is_sparse: AtomicBool,
    /// True if some bytes are lost.
    pub(super) has_losses: AtomicBool,
    pub(super) losses: Mutex<Losses>,
}

/// The open file of a [`PendingFile`].
#[derive(Debug, Default)]
pub(super) struct Handle {
    pub(super) file: Option<Arc<dyn TargetFile>>,
    pub(super) partial: PartialFile,
    /// True if the list of idle files has it.
    pub(super) is_listed: bool,
    pub(super) bytes_written: u64,
}

/// The partial file of a [`PendingFile`].
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) enum PartialFile {
    /// It is not made yet.
    #[default]
    NotMade,
    /// Its path. After it was closed, its identity shows if it is still the same file.
    Made(PathBuf, Option<Identity>),
    /// Somebody else has removed it, or put another file in its place.
    Gone(PathBuf),
}

/// Losses of a file.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Chunks that could not be read or written.
    pub(super) chunks: u64,
    pub(super) bytes: u64,
    /// Reason for the first of them.
    pub(super) first: Option<String>,
    /// Offset from which the list of its chunks cannot be read, and the reason.
    pub(super) cut: Option<(u64, String)>,
    /// Error of opening or closing it.
    pub(super) unusable: Option<String>,
}

impl PendingFile {
    /// Starts a file without chunks.
    pub(crate) fn new(plan: FilePlan) -> Self {
        Self {
            plan,
            handle: Mutex::default(),
            left: AtomicUsize::new(1),
            chunks: AtomicU64::new(0),
            is_sparse: AtomicBool::new(false),
            has_losses: AtomicBool::new(false),
            losses: Mutex::default(),
        }
    }

    /// Adds a chunk that is to be written.
    pub(super) fn expect(&self) {
        self.chunks.fetch_add(1, Ordering::Relaxed);
        self.left.fetch_add(1, Ordering::AcqRel);
    }

    /// Marks the file as one with unwritten bytes.
    pub(super) fn skip(&self) {
        self.is_sparse.store(true, Ordering::Release);
    }

    /// Records that the chunks from the byte at `offset` on are unknown.
    pub(crate) fn cut(&self, offset: u64, error: &Error) {
        let bytes = self.plan.metadata.size.saturating_sub(offset);
        self.lack(|losses| {
            losses.bytes += bytes;
            losses.cut = Some((offset, error.to_string()));
        });
    }

    /// Records a loss.
    pub(super) fn lack(&self, change: impl FnOnce(&mut Losses)) {
        change(&mut self.losses.lock().unwrap_or_else(PoisonError::into_inner));
        self.has_losses.store(true, Ordering::Release);
    }

    /// Returns the open file, for one thread at a time.
    pub(super) fn lock(&self) -> std::sync::MutexGuard<'_, Handle> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Losses {
    /// Returns the losses as a clause.
    pub(super) fn describe(&self, chunks: u64) -> String {
        let mut clauses = Vec::new();
        if let Some(reason) = &self.unusable {
            clauses.push(reason.clone());
        }
        if let Some(first) = &self.first {
            let plural = if chunks == 1 { "chunk" } else { "chunks" };
            clauses.push(format!("{} of {chunks} {plural} lost (first: {first})", self.chunks));
        }
        if let Some((offset, reason)) = &self.cut {
            clauses.push(format!("the list of its chunks cannot be read from byte {offset} on: {reason}"));
        }
        if self.bytes != 0 {
            let verb = if self.bytes == 1 { "byte is" } else { "bytes are" };
            clauses.push(format!("{} {verb} missing", self.bytes));
        }
        clauses.join("; ")
    }
}
