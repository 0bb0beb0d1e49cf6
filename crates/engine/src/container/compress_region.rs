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
    /// One for each compressor in use; `None`: each thread has its own.
    limit: Option<Arc<Permits>>,
}

impl CompressRegion {
    /// Compresses as asked. Copies of the task share their compressors.
    pub(crate) fn new(compression: Compression) -> Self {
        Self { compression, compressors: Arc::default(), bases: None, limit: None }
    }

    /// Has so many compressors at most, since they take memory.
    pub(crate) fn limited(self, compressors: usize) -> Self {
        Self { limit: Some(Arc::new(Permits::new(compressors))), ..self }
    }

    /// Lends a compressor. `work` must not wait for another thread that compresses.
    pub(crate) fn with_compressor<T>(&self, work: impl FnOnce(&mut Compressor) -> T) -> T {
        let _permit = self.limit.as_ref().map(|limit| limit.take());
        let mut compressor = self.compressors.take();
        let done = work(&mut compressor);
        self.compressors.put(compressor);
        done
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
        self.with_compressor(|compressor| {
            let ChosenBases { bases: chosen, is_sure } = std::mem::take(&mut region.chosen);
            let is_done = is_sure && self.compress_against(&mut region, &chosen, compressor);
            if !is_done {
                region.compress(compressor, self.compression);
                if !chosen.is_empty() && !is_sure {
                    let _stays_without = self.compress_against(&mut region, &chosen, compressor);
                }
            }
        });
        region
    }
}
