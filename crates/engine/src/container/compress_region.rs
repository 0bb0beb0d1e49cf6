//! Compressing regions on workers.

use std::sync::Arc;

use crate::compress::{Compression, Compressor};
use crate::container::seal::BasePlaintexts;
use crate::container::{Base, ChosenBases, Region};
use crate::pipeline::{BufferPool, Permits, Task};

/// Compresses a region.
#[derive(Clone, Debug)]
pub(crate) struct CompressRegion {
    compression: Compression,
    compressors: Arc<BufferPool<Compressor>>,
    bases: Option<(Arc<dyn BasePlaintexts>, Arc<Permits>)>,
}

impl CompressRegion {
    /// Compresses as asked. Copies of the task share their compressors.
    pub(crate) fn new(compression: Compression) -> Self {
        Self { compression, compressors: Arc::default(), bases: None }
    }

    /// Compresses regions against bases that were chosen for them, too. Each one takes a permit for its prefix and the compressor.
    pub(crate) fn with_bases(self, bases: Arc<dyn BasePlaintexts>, permits: Arc<Permits>) -> Self {
        Self { bases: Some((bases, permits)), ..self }
    }

    /// Compresses a region against its bases where that saves enough. Bases that cannot be read are no bases. Returns true if it
    /// is compressed against them.
    fn compress_against(&self, region: &mut Region, chosen: &[Base], compressor: &mut Compressor) -> bool {
        let Some((reader, permits)) = &self.bases else { return false };
        let _permit = permits.take();
        let Ok(Some(bases)) = reader.list(chosen.to_vec()) else { return false };
        let Ok(prefix) = reader.prefix(&bases) else { return false };
        !prefix.is_empty() && region.compress_against(compressor, self.compression, (&bases, &prefix))
    }
}

impl Task for CompressRegion {
    type In = Region;
    type Out = Region;

    fn run(&self, mut region: Region) -> Region {
        region.gather();
        let mut compressor = self.compressors.take();
        let ChosenBases { bases: chosen, is_sure } = std::mem::take(&mut region.chosen);
        let is_done = is_sure && self.compress_against(&mut region, &chosen, &mut compressor);
        if !is_done {
            region.compress(&mut compressor, self.compression);
            if !chosen.is_empty() && !is_sure {
                let _stays_without = self.compress_against(&mut region, &chosen, &mut compressor);
            }
        }
        self.compressors.put(compressor);
        region
    }
}
