//! Checkpoints: records of the journal become a snapshot.
//!
//! A checkpoint stores every version of every block that records of the journal wrote, their order, and the image of each volume after
//! the last of them. Its images are those of the checkpoint before, patched. The journal is durable up to the last record before the
//! snapshot is committed, so that no record gets a number that the repository knows with other contents. A checkpoint that fails
//! changes nothing: the next one begins with the same record.

mod cut;
mod hole;
mod image;
mod policy;
mod run;

pub(crate) use cut::Contents;
pub use policy::{CheckpointPolicy, Due, JournalLoad, proof};
pub use run::{CheckpointOptions, CheckpointOutcome, Checkpointer, MadeCheckpoint};
pub(crate) use run::{INDEX_CHUNK_BYTES, check_record, store_tree};
