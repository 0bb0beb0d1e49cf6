//! Naming chunks on a device, where their blocks are already.

use std::sync::Arc;

use onefold_accel::device::{Batch, Span};

use crate::accelerator::DeviceWork;
use crate::backup::cut::{CutBlock, FingerprintChunks};
use crate::fingerprint::Fingerprinter;
use crate::pipeline::{Lineup, Oldest, Ordered, TaskQueue};
use crate::types::Fingerprint;

/// Names chunks on a device and on the processor.
#[derive(Debug)]
pub(crate) struct DeviceNames {
    lineup: Lineup<FingerprintChunks, OnDevice>,
    fingerprinter: Arc<dyn Fingerprinter>,
    work: DeviceWork,
    /// The batch whose blocks are coming.
    open: Option<Group>,
    /// The last batch whose chunks were handed over: blocks of it that come later are the processor's.
    started: Option<Batch>,
    /// The batch whose names came last.
    named: Option<(Batch, Vec<Fingerprint>)>,
    /// Blocks for the processor, at most.
    depth: usize,
}

/// Chunks of a batch.
#[derive(Debug)]
struct Group {
    batch: Batch,
    spans: Vec<Span>,
    /// Bytes of those that began in an earlier block.
    joined: Vec<u8>,
}

/// A block whose chunks a device names.
#[derive(Debug)]
struct OnDevice {
    block: CutBlock,
    batch: Batch,
    /// For each chunk its number in the batch; `None` if the processor names it.
    numbers: Vec<Option<usize>>,
}

impl DeviceNames {
    /// Starts without a block. `depth` is the length of the processor's queue.
    pub(crate) fn new(
        queue: TaskQueue<FingerprintChunks>,
        fingerprinter: Arc<dyn Fingerprinter>,
        work: DeviceWork,
        depth: usize,
    ) -> Self {
        Self { lineup: Lineup::new(queue), fingerprinter, work, open: None, started: None, named: None, depth }
    }

    /// Returns true if a block more would exceed the limits: two batches, of which one is named while the blocks of the other one come, and the
    /// processor's queue. Blocks that wait here for no reason would be missing where files are read.
    fn is_full(&self) -> bool {
        2 * self.work.limits.blocks <= self.lineup.elsewhere_count() || self.depth <= self.lineup.processor_count()
    }

    fn enter(&mut self, block: CutBlock) {
        let sent = block.sent().filter(|sent| self.started != Some(sent.batch) && self.work.is_usable());
        let Some(sent) = sent else {
            // Another batch has begun, so that the rest of the open one is the processor's.
            self.lineup.push(block);
            return;
        };
        if self.open.as_ref().is_some_and(|group| group.batch != sent.batch) {
            self.start();
        }
        let limits = self.work.limits;
        let group = self.open.get_or_insert_with(|| Group { batch: sent.batch, spans: Vec::new(), joined: Vec::new() });
        let numbers = (0..block.chunk_count()).map(|number| {
            let bytes = block.chunk(number);
            if group.spans.len() == limits.chunks_max() {
                return None;
            }
            let start = match block.start_in_block(number) {
                Some(start) => sent.number * limits.block_bytes + start,
                None if group.joined.len() + bytes.len() <= limits.joined_bytes => {
                    let start = limits.area_bytes() + group.joined.len();
                    group.joined.extend_from_slice(bytes);
                    start
                }
                None => return None,
            };
            let word = |number| u32::try_from(number).expect("positions in a batch have 30 bits");
            group.spans.push(Span { start: word(start), len: word(bytes.len()) });
            Some(group.spans.len() - 1)
        });
        let numbers = numbers.collect();
        let _number = self.lineup.push_elsewhere(OnDevice { block, batch: sent.batch, numbers });
        if sent.number + 1 == sent.count {
            self.start();
        }
    }

    /// Hands the chunks of the open batch over.
    fn start(&mut self) {
        if let Some(Group { batch, spans, joined }) = self.open.take() {
            self.started = Some(batch);
            self.work.name(batch, spans, joined);
        }
    }

    fn finish(&mut self, OnDevice { mut block, batch, numbers }: OnDevice) -> CutBlock {
        if self.open.as_ref().is_some_and(|group| group.batch == batch) {
            self.start();
        }
        let is_wanted = numbers.iter().any(Option::is_some);
        if is_wanted && self.named.as_ref().is_none_or(|(named, _)| *named != batch) {
            self.named = self.work.names(batch).map(|names| (batch, names));
        }
        let names: &[Fingerprint] = match &self.named {
            Some((named, names)) if *named == batch => names,
            _ => &[],
        };
        let named = |number: &Option<usize>| number.and_then(|number| names.get(number)).copied();
        let found: Vec<Option<Fingerprint>> = numbers.iter().map(named).collect();
        let left: Vec<&[u8]> = found
            .iter()
            .enumerate()
            .filter(|(_, name)| name.is_none())
            .map(|(number, _)| block.chunk(number))
            .collect();
        let mut left = if left.is_empty() { Vec::new() } else { self.fingerprinter.name(&left) }.into_iter();
        let name = |found: Option<Fingerprint>| found.or_else(|| left.next()).expect("the others were named here");
        block.fingerprints = found.into_iter().map(name).collect();
        block
    }
}

impl Ordered for DeviceNames {
    type In = CutBlock;
    type Out = CutBlock;

    fn push(&mut self, block: CutBlock) -> Option<CutBlock> {
        let oldest = if self.is_full() { self.pop() } else { None };
        self.enter(block);
        oldest
    }

    fn pop(&mut self) -> Option<CutBlock> {
        Some(match self.lineup.pop()? {
            Oldest::Done(block) => block,
            Oldest::Elsewhere(entry) => self.finish(entry),
        })
    }
}
