//! Snapshots: the ends of sessions, and what else is written once per session.
//!
//! A snapshot exists from the moment `commits/<session>` does. Each names every head it saw, a commit that no other
//! names, by the checksum of its bytes: a hash-linked log in which a removed or exchanged snapshot shows.

mod forget;
pub(crate) mod format;

pub use forget::ForgetBody;
pub(crate) use format::{CollectionBody, CommitBody, CommitKind, SessionBody, SessionKind, decode_commit};
pub use format::{Head, Snapshot, Summary};
