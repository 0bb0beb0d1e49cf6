//! Compressing regions on workers.

use std::sync::Arc;

use crate::compress::{Compression, Compressor, Tables};
use crate::container::seal::{BasePlaintexts, checksum_of};
use crate::container::{Base, ChosenBases, Region};
use crate::object::FormatVersion;
use crate::pipeline::{BufferPool, Permits, Task};

/// Returns the tables with which a format's regions are compressed: format 2 gives time for size (decision 0056).
pub(crate) fn tables_of(format: FormatVersion) -> Tables {
    match format {
        FormatVersion::V1 => Tables::Small,
        FormatVersion::V2 => Tables::Large,
    }
}

/// Starts a compressor that compresses as regions of a format are.
pub fn compressor_of(format: FormatVersion) -> Compressor {
    Compressor::with_tables(tables_of(format))
}

/// Compresses a region.
#[derive(Clone, Debug)]
pub(crate) struct CompressRegion {
    compression: Compression,
    tables: Tables,
    compressors: Arc<BufferPool<Compressor>>,
    bases: Option<(Arc<dyn BasePlaintexts>, Arc<Permits>)>,
    /// One for each compressor in use; `None`: each thread has its own.
    limit: Option<Arc<Permits>>,
}

impl CompressRegion {
    /// Compresses as asked. Copies of the task share their compressors.
    pub(crate) fn new(compression: Compression) -> Self {
        Self { compression, tables: Tables::default(), compressors: Arc::default(), bases: None, limit: None }
    }

    /// Compresses with these tables.
    pub(crate) fn with_tables(self, tables: Tables) -> Self {
        Self { tables, ..self }
    }

    /// Has so many compressors at most, since they take memory.
    pub(crate) fn limited(self, compressors: usize) -> Self {
        Self { limit: Some(Arc::new(Permits::new(compressors))), ..self }
    }

    /// Lends a compressor. `work` must not wait for another thread that compresses.
    pub(crate) fn with_compressor<T>(&self, work: impl FnOnce(&mut Compressor) -> T) -> T {
        let _permit = self.limit.as_ref().map(|limit| limit.take());
        let mut compressor = self.compressors.take();
        compressor.tables = self.tables;
        let done = work(&mut compressor);
        self.compressors.put(compressor);
        done
    }

    /// Compresses regions against bases that were chosen for them, too. Each one takes a permit for its prefix and the compressor.
    pub(crate) fn with_bases(self, bases: Arc<dyn BasePlaintexts>, permits: Arc<Permits>) -> Self {
        Self { bases: Some((bases, permits)), ..self }
    }

    /// Compresses a region against its bases where that saves enough. Bases that cannot be read are no bases.
    ///
    /// The result is decompressed and compared at once, while its prefix is in memory: a container that is sealed would have to read all bases
    /// of its regions again. A region that is found to be wrong here is compared once more when it is sealed, which fails then.
    fn compress_against(&self, region: &mut Region, chosen: Vec<Base>, compressor: &mut Compressor) {
        let Some((reader, permits)) = &self.bases else { return };
        let _permit = permits.take();
        let (bases, prefix) = if let Some(held) = region.prefix.take() {
            *held
        } else {
            let Ok(Some(bases)) = reader.list(chosen) else { return };
            let Ok(prefix) = reader.prefix(&bases) else { return };
            (bases, prefix)
        };
        if prefix.is_empty() || !region.compress_against(compressor, self.compression, (&bases, &prefix)) {
            return;
        }
        let checksum = checksum_of(region.stored(), &bases);
        let is_right = |plain: &[u8]| reader.is_right((region.kind(), &region.chunks), plain, &bases, &prefix);
        let plain_len = region.plain_len as usize;
        let is_right = compressor.check_against(&prefix, region.stored(), plain_len, is_right);
        region.compared = is_right.then_some(checksum);
    }
}

impl Task for CompressRegion {
    type In = Region;
    type Out = Region;

    fn run(&self, mut region: Region) -> Region {
        region.gather();
        self.with_compressor(|compressor| {
            let ChosenBases { bases: chosen, is_sure } = std::mem::take(&mut region.chosen);
            if !is_sure {
                region.compress(compressor, self.compression);
            }
            if !chosen.is_empty() {
                self.compress_against(&mut region, chosen, compressor);
            }
            if region.algorithm.is_none() {
                region.compress(compressor, self.compression);
            }
            region.prefix = None;
        });
        region
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::Algorithm;
    use crate::container::bases::Bases;
    use crate::container::seal::Plaintext;
    use crate::container::{ContainerBuilder, RegionChunk, Sealer};
    use crate::crypto::{Keys, MasterKey};
    use crate::error::Result;
    use crate::io::AlignedBuffer;
    use crate::object::names::ContainerKind;
    use crate::random::SplitMix64;
    use crate::types::{Chunk, ChunkKind, ContainerId, RegionId, RepositoryId, Sequence, SessionId};

    /// One base, and what is said of regions that were compressed against it.
    #[derive(Debug)]
    struct OneBase {
        plain: Vec<u8>,
        is_right: bool,
    }

    impl BasePlaintexts for OneBase {
        fn list(&self, bases: Vec<Base>) -> Result<Option<Bases>> {
            Ok(Bases::of(bases, 1))
        }

        fn prefix(&self, _: &Bases) -> Result<Plaintext> {
            Ok(Arc::new(self.plain.clone()))
        }

        fn is_right(&self, _: (ContainerKind, &[RegionChunk]), plain: &[u8], _: &Bases, prefix: &[u8]) -> bool {
            self.is_right && [plain, prefix].iter().all(|bytes| *bytes == self.plain)
        }
    }

    /// Seals a region that was compressed against a base, by a sealer that cannot read the base; returns the error.
    fn sealed(is_right: bool, change: impl FnOnce(&mut Region)) -> Option<String> {
        let keys = Keys::derive(&MasterKey([1; 32]), RepositoryId([3; 16]));
        let mut random = SplitMix64::new(5);
        let plain: Vec<u8> = (0..8192).flat_map(|_| random.next_u64().to_le_bytes()).collect();
        let fingerprint = keys.fingerprint(ChunkKind::Data, &plain);
        let chunk = Chunk { fingerprint, len: u32::try_from(plain.len()).unwrap() };
        let mut region = Region::default();
        region.push(RegionChunk { chunk, kind: ChunkKind::Data, hints_len: 0, sequence: Sequence(0) }, &plain);
        let base = RegionId { container: ContainerId { session: SessionId([1; 16]), ordinal: 0 }, region: 0 };
        region.chosen = ChosenBases { bases: vec![Base::whole(base)], is_sure: true };
        let task = CompressRegion::new(Compression::Zstd(3))
            .with_bases(Arc::new(OneBase { plain, is_right }), Arc::new(Permits::new(1)));
        let mut region = task.run(region);
        assert_eq!(region.algorithm, Some(Algorithm::ZstdBased));
        assert_eq!(region.compared.is_some(), is_right);
        change(&mut region);
        let id = ContainerId { session: SessionId([2; 16]), ordinal: 0 };
        let builder =
            ContainerBuilder { format: FormatVersion::V2, id, kind: ContainerKind::Data, regions: vec![region] };
        let sealed = Sealer::default().seal(&keys, RepositoryId([3; 16]), &builder, &[4; 32], AlignedBuffer::default());
        sealed.err().map(|error| error.to_string())
    }

    #[test]
    fn a_region_with_bases_is_compared_once_and_what_changes_later_is_noticed() {
        assert_eq!(sealed(true, |_| ()), None);
        let reason = |is_right, change: fn(&mut Region)| sealed(is_right, change).unwrap();
        assert!(reason(true, |region| region.stored_mut()[9] ^= 1).contains("changed a region"));
        let renamed = reason(true, |region| {
            let base = RegionId { container: ContainerId { session: SessionId([1; 16]), ordinal: 1 }, region: 0 };
            region.bases = Bases::new(&[base], 1).unwrap();
        });
        assert!(renamed.contains("changed a region"), "{renamed}");
        // What was not found to be right is compared when it is sealed, with bases that this sealer lacks.
        assert!(reason(false, |_| ()).contains("lost the bases of a region"));
    }
}
