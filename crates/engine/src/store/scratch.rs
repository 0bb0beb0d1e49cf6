//! Temporary files for what exceeds the memory of an operation.

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::Result;
use crate::io::{Disk, Host};
use crate::spill::{Partitions, SpillArray, SpillMap};

/// Directory of caches and temporary files.
#[derive(Clone, Default, Debug)]
pub struct Scratch {
    /// A disk that outlives the operation; `None`: nothing may be spilled.
    pub disk: Option<Arc<dyn Disk>>,
    /// Directory on it.
    pub dir: PathBuf,
}

impl Scratch {
    /// Makes a map that takes at most `memory_bytes` of memory and spills the rest.
    pub(crate) fn map(&self, host: &Arc<dyn Host>, name: &'static str, memory_bytes: usize) -> Result<SpillMap> {
        SpillMap::new(self.disk.clone(), self.dir.clone(), Arc::clone(host), name, memory_bytes)
    }

    /// Makes an array that spills what exceeds its fixed memory.
    pub(crate) fn array<const LEN: usize>(&self, host: &Arc<dyn Host>, name: &'static str) -> SpillArray<LEN> {
        SpillArray::new(self.disk.clone(), self.dir.clone(), Arc::clone(host), name)
    }

    /// Makes partitions that take at most `memory_bytes` of memory and spill the rest.
    pub(crate) fn partitions<const N: usize>(
        &self,
        host: &Arc<dyn Host>,
        name: &'static str,
        memory_bytes: usize,
    ) -> Result<Partitions<N>> {
        Partitions::new(self.disk.clone(), self.dir.clone(), Arc::clone(host), name, memory_bytes)
    }
}
