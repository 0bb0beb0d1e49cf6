//! Compressing regions on workers.

use std::sync::Arc;

use crate::compress::{Compression, Compressor};
use crate::container::Region;
use crate::pipeline::{BufferPool, Task};

/// Compresses a region.
#[derive(Clone, Debug)]
pub(crate) struct CompressRegion {
    compression: Compression,
    compressors: Arc<BufferPool<Compressor>>,
}

impl CompressRegion {
    /// Compresses as asked. Copies of the task share their compressors.
    pub(crate) fn new(compression: Compression) -> Self {
        Self { compression, compressors: Arc::default() }
    }
}

impl Task for CompressRegion {
    type In = Region;
    type Out = Region;

    fn run(&self, mut region: Region) -> Region {
        let mut compressor = self.compressors.take();
        region.compress(&mut compressor, self.compression);
        self.compressors.put(compressor);
        region
    }
}
