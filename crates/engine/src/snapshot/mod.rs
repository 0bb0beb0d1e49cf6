//! Snapshots: the ends of sessions, and what else is written once per session.
//!
//! A snapshot exists from the moment `commits/<session>` does. Each names every head it saw, a commit that no other
//! names, by the checksum of its bytes: a hash-linked log in which a removed or exchanged snapshot shows.

pub(crate) mod collection;
mod fields;
mod forget;
pub(crate) mod format;
pub(crate) mod journal;
pub(crate) mod manifest;
mod owners;
mod positions;
mod session;

pub use collection::TARGETS_MAX;
pub(crate) use collection::{CollectionBody, CollectionEncoder, CollectionItem};
pub use forget::ForgetBody;
pub(crate) use format::{CommitBody, CommitKind, decode_commit};
pub use format::{Head, IndexNote, Rewritten, Snapshot, Summary};
pub use journal::{JournalNote, MARK_LEN_MAX, MARKS_MAX, Mark};
pub(crate) use manifest::{ManifestEncoder, decode_manifest};
pub use owners::{OWNER_NAME_LEN_MAX, OWNER_NAMES_MAX, OwnerNames};
pub(crate) use session::{SessionBody, SessionKind};
