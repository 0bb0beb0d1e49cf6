//! Checking a store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use onefold_engine::error::{Error, Result};

use super::{Store, bytes_of, len_of};
use crate::image::parallel;

/// Problems that are listed, the first ones by address. The others are counted.
const PROBLEMS_MAX: usize = 100;

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Checked {
    /// Blocks that were read.
    pub blocks: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Problems.
    pub problems: u64,
    /// Sentences on the first of them.
    pub messages: Vec<String>,
}

impl Store {
    /// Reads all blocks and compares them with their names. Also compares reference counts with the index, and free space with the
    /// blocks. Opening has verified the checksums of checkpoint and journal.
    pub fn check(&self) -> Result<Checked> {
        self.refuse_range(0, 0)?;
        let found = Mutex::new(Vec::new());
        let (blocks, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        if let Some(problem) = self.state.inconsistency() {
            found.lock().unwrap_or_else(PoisonError::into_inner).push((0, problem));
        }
        let problems = AtomicU64::new(found.lock().unwrap_or_else(PoisonError::into_inner).len() as u64);
        parallel::for_each(self.state.descriptors.iter(), self.options.threads, |(address, descriptor)| {
            let mut block = vec![0; len_of(1 << descriptor.level)];
            match self.read_block(*address, &mut block) {
                Ok(()) => {}
                // Other blocks may be readable.
                Err(error) => {
                    problems.fetch_add(1, Ordering::Relaxed);
                    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                    found.push((*address, error.to_string()));
                    found.sort_unstable();
                    found.truncate(PROBLEMS_MAX);
                }
            }
            blocks.fetch_add(1, Ordering::Relaxed);
            bytes.fetch_add(bytes_of(1 << descriptor.level), Ordering::Relaxed);
            Ok::<_, Error>(())
        })?;
        let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Checked {
            blocks: blocks.into_inner(),
            bytes: bytes.into_inner(),
            problems: problems.into_inner(),
            messages: found.into_iter().map(|(_, message)| message).collect(),
        })
    }
}
