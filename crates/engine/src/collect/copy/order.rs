//! The live chunks of the containers to be copied, container by container.

use crate::bitmap::Bitmap;
use crate::collect::copy::CopyRequest;
use crate::collect::lifetime::{self, ClassBytes};
use crate::collect::usage::LiveChunk;
use crate::error::Result;
use crate::object::names::ContainerKind;
use crate::spill::partition::FilledPartitions;
use crate::store::container_set::ContainerNumber;

/// Bytes of a record: position of the container, slot, rank; all in big-endian order.
const RECORD_LEN: usize = 4 + 2 + 2;

/// Live chunks, sorted by the position of their container and by slot.
#[derive(Debug)]
pub(super) struct LiveByContainer<'a> {
    records: FilledPartitions<RECORD_LEN>,
    /// Numbers of the containers by position.
    copy: &'a [u32],
    step: u32,
    bytes: KindBytes,
}

/// Bytes of live chunks by class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct KindBytes {
    /// In data containers.
    pub(super) data: ClassBytes,
    /// In metadata containers.
    pub(super) metadata: ClassBytes,
}

/// A chunk to be copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wanted {
    /// Its position in the directory.
    pub(super) slot: u16,
    /// Number of the newest snapshot that reaches it.
    pub(super) rank: u16,
}

/// A container to be copied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CopiedContainer {
    /// Its number.
    pub(super) number: u32,
    /// Its live chunks in ascending order, at most 65,536.
    pub(super) wanted: Vec<Wanted>,
}

impl<'a> LiveByContainer<'a> {
    /// Sorts the chunks of the containers `copy` in this order. Takes the memory for sorting, and 8 bytes for each container
    /// that is copied.
    pub(super) fn sort(
        request: &CopyRequest<'_>,
        copy: &'a [u32],
        live: impl Iterator<Item = Result<LiveChunk>>,
    ) -> Result<Self> {
        let mut is_copied = Bitmap::default();
        let mut positions = Vec::with_capacity(copy.len());
        for (position, number) in (0u32..).zip(copy) {
            is_copied.insert(*number);
            positions.push((*number, position));
        }
        positions.sort_unstable();
        // Records are divided by their first bits: positions are spread over all of them.
        let step = u32::try_from(copy.len()).ok().and_then(|count| u32::MAX.checked_div(count)).unwrap_or(1).max(1);
        let mut records =
            request.scratch.partitions(&request.store.host, "chunks to be copied", request.budget.sort_bytes)?;
        let mut bytes = KindBytes::default();
        for chunk in live {
            let LiveChunk { container, slot, rank, len } = chunk?;
            if !is_copied.contains(container) {
                continue;
            }
            let found = positions.binary_search_by_key(&container, |(number, _)| *number).ok();
            let (_, position) = found.and_then(|at| positions.get(at)).expect("the bitmap has the same numbers");
            let mut record = [0; RECORD_LEN];
            let (head, tail) = record.split_at_mut(4);
            head.copy_from_slice(&(position * step).to_be_bytes());
            let (slot_bytes, rank_bytes) = tail.split_at_mut(2);
            slot_bytes.copy_from_slice(&slot.to_be_bytes());
            rank_bytes.copy_from_slice(&rank.to_be_bytes());
            records.push(&record)?;
            let of_kind = match request.containers.kind(ContainerNumber(container)) {
                ContainerKind::Data => &mut bytes.data,
                ContainerKind::Metadata => &mut bytes.metadata,
            };
            lifetime::add(of_kind, request.classes.of(rank), len);
        }
        Ok(Self { records: records.finish()?, copy, step, bytes })
    }

    /// Returns the bytes of the chunks.
    pub(super) fn bytes(&self) -> &KindBytes {
        &self.bytes
    }

    /// Returns the containers that have live chunks, in their order.
    pub(super) fn containers(&self) -> Result<impl Iterator<Item = Result<CopiedContainer>>> {
        let mut records = self.records.sorted();
        let mut next = records.next().transpose()?;
        Ok(std::iter::from_fn(move || {
            let [p0, p1, p2, p3, ..] = next?;
            let position = [p0, p1, p2, p3];
            let index = u32::from_be_bytes(position) / self.step;
            let number = *self.copy.get(index as usize).expect("records have positions of the plan");
            let mut wanted: Vec<Wanted> = Vec::new();
            while let Some([p0, p1, p2, p3, s0, s1, r0, r1]) = next.filter(|record| record.starts_with(&position)) {
                debug_assert_eq!([p0, p1, p2, p3], position);
                let chunk = Wanted { slot: u16::from_be_bytes([s0, s1]), rank: u16::from_be_bytes([r0, r1]) };
                // The newest rank comes first.
                if wanted.last().is_none_or(|last| last.slot != chunk.slot) {
                    wanted.push(chunk);
                }
                next = match records.next().transpose() {
                    Ok(record) => record,
                    Err(error) => {
                        next = None;
                        return Some(Err(error));
                    }
                };
            }
            Some(Ok(CopiedContainer { number, wanted }))
        }))
    }
}
