//! The program around a receiver.

use std::fmt;
use std::sync::Arc;

use onefold_engine::error::Result;

use crate::link::reception::Reception;
use crate::link::wire::{Compare, Done, Hello};

/// Functions of the program that a receiver calls.
pub trait ReceiverHost: fmt::Debug + Send + Sync {
    /// Returns the reception for a sender; creates it if there is none yet. The receiver checks that the group is the same. The sender
    /// gets an error as a sentence.
    fn admit(&self, hello: &Hello) -> Result<Arc<Reception>>;

    /// Makes a checkpoint of all records that are durable in the journal.
    fn checkpoint(&self) -> Result<Done>;

    /// Appends the fingerprints of a range as it was after a record, which is durable.
    fn fingerprints(&self, compare: &Compare, out: &mut Vec<u8>) -> Result<()>;
}
