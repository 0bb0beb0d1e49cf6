//! Compressing regions on workers.

use std::sync::Arc;

use crate::compress::{Compression, Compressor};
use crate::container::Region;
use crate::container::seal::BasePlaintexts;
use crate::pipeline::{BufferPool, Task};

/// Compresses a region.
#[derive(Clone, Debug)]
pub(crate) struct CompressRegion {
    compression: Compression,
    compressors: Arc<BufferPool<Compressor>>,
    bases: Option<Arc<dyn BasePlaintexts>>,
}

impl CompressRegion {
    /// Compresses as asked. Copies of the task share their compressors.
    pub(crate) fn new(compression: Compression) -> Self {
        Self { compression, compressors: Arc::default(), bases: None }
    }

    /// Compresses regions against bases that were chosen for them, too.
    pub(crate) fn with_bases(self, bases: Arc<dyn BasePlaintexts>) -> Self {
        Self { bases: Some(bases), ..self }
    }

    /// Compresses a region against its bases where that saves enough. Bases that cannot be read are no bases.
    fn compress_against(&self, region: &mut Region, compressor: &mut Compressor) -> Option<()> {
        let reader = self.bases.as_ref()?;
        let chosen = std::mem::take(&mut region.chosen);
        let bases = reader.list(&chosen).ok()??;
        let prefix = reader.prefix(&bases).ok().filter(|prefix| !prefix.is_empty())?;
        region.compress_against(compressor, self.compression, (&bases, &prefix));
        Some(())
    }
}

impl Task for CompressRegion {
    type In = Region;
    type Out = Region;

    fn run(&self, mut region: Region) -> Region {
        let mut compressor = self.compressors.take();
        region.compress(&mut compressor, self.compression);
        if !region.chosen.is_empty() {
            let _stays_without = self.compress_against(&mut region, &mut compressor);
        }
        self.compressors.put(compressor);
        region
    }
}
