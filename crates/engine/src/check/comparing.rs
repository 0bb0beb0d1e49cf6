//! Naming the chunks of containers that were read, on a device if there is one.
//!
//! A task of the processor opens the regions of a container. Without a device it names the chunks, too. With one it copies them into buffers
//! that the device reads, as long as some are free, and this stage compares the names when they come.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use onefold_accel::device::{Batch, Frozen, Limits, Pool, Rule, Span};

use crate::accelerator::{Accelerator, DeviceWork};
use crate::check::loading::{BLOCK_BYTES, BLOCKS, Loading};
use crate::check::verify::{Examined, Opened, Verify};
use crate::crypto::Keys;
use crate::error::Result;
use crate::fingerprint::Fingerprinter;
use crate::object::names::ContainerName;
use crate::pipeline::{Ordered, TaskQueue};
use crate::types::{ChunkKind, Fingerprint};

/// Batches at a time: one is filled while the other one is named.
const BATCHES: usize = 2;

/// Sizes of a queue.
const LIMITS: Limits = Limits { block_bytes: BLOCK_BYTES, blocks: BLOCKS, batches: BATCHES, joined_bytes: 0 };

/// Opens a device for a check. Returns the bytes that its buffers, lists and results take, too.
pub(super) fn prepare(
    accelerator: Option<&Accelerator>,
    keys: &Arc<Keys>,
) -> (Option<DeviceWork>, Option<Pool>, usize) {
    let fingerprinter: Arc<dyn Fingerprinter> = Arc::<Keys>::clone(keys);
    let rule = Rule { search: None, hash: fingerprinter.on_device() };
    match accelerator.and_then(|accelerator| accelerator.open(&rule, &fingerprinter, (LIMITS, BLOCKS * BATCHES))) {
        Some((work, pool)) => (Some(work), Some(pool), LIMITS.area_bytes() * BATCHES + LIMITS.host_bytes(0)),
        None => (None, None, 0),
    }
}

/// A container in this stage.
#[derive(Debug)]
struct Entry {
    opened: Opened,
    frozen: Vec<Arc<Frozen>>,
    /// The batch, and the number of its first chunk there.
    sent: Option<(Batch, usize)>,
}

/// Verifies containers that were read.
#[derive(Debug)]
pub(super) struct CompareNames {
    verify: TaskQueue<Verify>,
    keys: Arc<Keys>,
    work: Option<DeviceWork>,
    entries: VecDeque<Entry>,
    /// Entries at the end whose batch is being filled, and their blocks.
    open: (usize, usize),
    named: HashMap<Batch, Vec<Fingerprint>>,
}

impl CompareNames {
    /// Starts without a container.
    pub(super) fn new(verify: TaskQueue<Verify>, keys: Arc<Keys>, work: Option<DeviceWork>) -> Self {
        Self { verify, keys, work, entries: VecDeque::new(), open: (0, 0), named: HashMap::new() }
    }

    fn enter(&mut self, mut opened: Opened) {
        let blocks = std::mem::take(&mut opened.loading.blocks);
        let frozen: Vec<_> = blocks.into_iter().map(|(buffer, filled)| buffer.freeze(filled)).collect();
        if BLOCKS < self.open.1 + frozen.len() {
            self.close();
        }
        self.open = (self.open.0 + 1, self.open.1 + frozen.len());
        self.entries.push_back(Entry { opened, frozen, sent: None });
    }

    /// Sends the batch that is being filled. Without a device, its chunks are left to the processor.
    fn close(&mut self) {
        let (count, blocks) = std::mem::take(&mut self.open);
        let Some(work) = self.work.clone().filter(|_| blocks != 0) else { return };
        let first = self.entries.len() - count;
        let frozen: Vec<_> = self.entries.range(first..).flat_map(|entry| entry.frozen.iter().cloned()).collect();
        let batch = loop {
            match work.begin(frozen.clone()) {
                Some(batch) => break batch,
                // The device is busy, or not used any more.
                None if !work.is_usable() || !self.wait_for_one(&work) => return,
                None => {}
            }
        };
        let (mut spans, mut block) = (Vec::new(), 0);
        for entry in self.entries.range_mut(first..) {
            entry.sent = Some((batch, spans.len()));
            for chunk in &entry.opened.loading.chunks {
                let start = (block + chunk.block) * BLOCK_BYTES + chunk.start;
                spans.push(Span { start: u32::try_from(start).unwrap_or(u32::MAX), len: chunk.len });
            }
            block += entry.frozen.len();
        }
        // Chunks of less than 1 KiB on average: the processor names the others.
        spans.truncate(work.limits.chunks_max());
        work.name(batch, spans, Vec::new());
    }

    /// Takes the names of the oldest batch that has none. Returns false if there is none.
    fn wait_for_one(&mut self, work: &DeviceWork) -> bool {
        let batches = self.entries.iter().filter_map(|entry| entry.sent.map(|(batch, _)| batch));
        let Some(batch) = batches.into_iter().find(|batch| !self.named.contains_key(batch)) else { return false };
        let names = work.names(batch).unwrap_or_default();
        self.named.insert(batch, names);
        true
    }

    /// Compares the chunks of a container with their names.
    fn finish(&mut self, Entry { mut opened, frozen, sent }: Entry) -> Examined {
        let Loading { chunks, .. } = opened.loading;
        let mut names: &[Fingerprint] = &[];
        if let (Some((batch, first)), Some(work)) = (sent, &self.work) {
            if !self.named.contains_key(&batch) && !chunks.is_empty() {
                self.named.insert(batch, work.names(batch).unwrap_or_default());
            }
            names = self.named.get(&batch).and_then(|names| names.get(first..)).unwrap_or_default();
            let taken = chunks.iter().take(names.len());
            work.count(taken.map(|chunk| u64::from(chunk.len)).sum());
        }
        let mut wrong = Vec::new();
        for (position, chunk) in chunks.iter().enumerate() {
            if names.get(position) == Some(&chunk.expected) {
                continue;
            }
            // Damage is the processor's verdict.
            let bytes = frozen.get(chunk.block).and_then(|block| block.get(chunk.start..)).unwrap_or_default();
            let bytes = bytes.get(..chunk.len as usize).unwrap_or_default();
            if self.keys.fingerprint(ChunkKind::Data, bytes) != chunk.expected {
                wrong.push(*chunk);
            } else if let (Some(_), Some(work)) = (names.get(position), &self.work) {
                work.fail("the device's name of a chunk differs from that of the processor");
            }
        }
        if let Ok(contents) = &mut opened.examined.contents {
            for (inserted, chunk) in wrong.into_iter().enumerate() {
                contents.condemn(chunk.index, chunk.number, chunk.problems + inserted);
            }
        }
        let next = self.entries.front().and_then(|entry| entry.sent);
        if let Some((batch, _)) = sent
            && next.is_none_or(|(next, _)| next != batch)
        {
            self.named.remove(&batch);
        }
        opened.examined
    }

    /// Returns true if the oldest container must leave: one batch is full and the other one is half full, or many containers wait.
    fn is_full(&self) -> bool {
        let blocks: usize = self.entries.iter().map(|entry| entry.frozen.len()).sum();
        BLOCKS * (BATCHES - 1) + BLOCKS / 2 <= blocks || BLOCKS <= self.entries.len()
    }
}

impl Ordered for CompareNames {
    type In = (ContainerName, Result<Vec<u8>>);
    type Out = Examined;

    fn push(&mut self, read: Self::In) -> Option<Examined> {
        let opened = self.verify.push(read)?;
        self.enter(opened);
        // Without a device nothing waits here.
        let waits = self.work.as_ref().is_some_and(DeviceWork::is_usable) && !self.is_full();
        if waits && !self.entries.front().is_some_and(|entry| entry.frozen.is_empty()) {
            None
        } else {
            self.pop_entered()
        }
    }

    fn pop(&mut self) -> Option<Examined> {
        while let Some(opened) = (!self.is_full()).then(|| self.verify.pop()).flatten() {
            self.enter(opened);
        }
        self.pop_entered()
    }
}

impl CompareNames {
    fn pop_entered(&mut self) -> Option<Examined> {
        if self.entries.len() <= self.open.0 {
            self.close();
        }
        let entry = self.entries.pop_front()?;
        Some(self.finish(entry))
    }
}
