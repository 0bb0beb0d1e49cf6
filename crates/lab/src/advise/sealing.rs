//! Time of sealing, measured with the engine's own sealer, which also verifies.

use std::time::Duration;

use anyhow::Result;
use onefold_engine::compress::{Compression, Compressor};
use onefold_engine::container::{ContainerBuilder, Region, RegionChunk, Sealer};
use onefold_engine::crypto::Keys;
use onefold_engine::io::AlignedBuffer;
use onefold_engine::object::FormatVersion;
use onefold_engine::object::names::ContainerKind;
use onefold_engine::types::{Chunk, ChunkKind, ContainerId, RepositoryId, Sequence, SessionId};

use crate::processor::processor_time;

/// Length of a region's chunks in bytes.
const CHUNK_BYTES: usize = 8 << 10;
const REPOSITORY: RepositoryId = RepositoryId([0; 16]);
const SESSION: SessionId = SessionId([0; 16]);

/// Bytes sealed, and the time for it.
#[derive(Debug, Default)]
pub(super) struct Sealing {
    sealer: Sealer,
    /// Bytes of the chunks.
    pub(super) plain_bytes: u64,
    /// Processor time, without compression.
    pub(super) processor: Duration,
}

impl Sealing {
    /// Seals a region of its own.
    pub(super) fn measure(
        &mut self,
        plain: &[u8],
        compression: Compression,
        compressor: &mut Compressor,
        keys: &Keys,
    ) -> Result<()> {
        let chunks: Vec<&[u8]> = plain.chunks(CHUNK_BYTES).collect();
        let names = keys.fingerprints(ChunkKind::Data, &chunks);
        let mut region = Region::with_buffer(u32::try_from(plain.len())?);
        for (fingerprint, bytes) in names.into_iter().zip(chunks) {
            let len = u32::try_from(bytes.len())?;
            let chunk = Chunk { fingerprint, len };
            region.push(RegionChunk { chunk, kind: ChunkKind::Data, hints_len: 0, sequence: Sequence(0) }, bytes);
        }
        region.compress(compressor, compression);
        let id = ContainerId { session: SESSION, ordinal: 0 };
        let builder =
            ContainerBuilder { format: FormatVersion::default(), id, kind: ContainerKind::Data, regions: vec![region] };
        let start = processor_time();
        let sealed = self.sealer.seal(keys, REPOSITORY, &builder, &[0; 32], AlignedBuffer::default())?;
        self.processor += processor_time().saturating_sub(start);
        self.plain_bytes += plain.len() as u64;
        anyhow::ensure!(!sealed.bytes.is_empty(), "a container has bytes");
        Ok(())
    }
}
