//! Searching for candidates on a device.

use onefold_accel::device::{Batch, Range};

use crate::accelerator::DeviceWork;
use crate::backup::block::{Block, ByteRange, Event, Input, Sent};
use crate::backup::cut::{ReadSmall, SearchBlock, Searched};
use crate::pipeline::{Lineup, Oldest, Ordered, Task, TaskQueue};

/// Reads small files, and finds candidates on a device and on the processor.
#[derive(Debug)]
pub(crate) struct DeviceSearch {
    read: TaskQueue<ReadSmall>,
    lineup: Lineup<SearchBlock, OnDevice>,
    /// The same as the processor's queue, for what the device failed to do.
    again: SearchBlock,
    work: DeviceWork,
    /// Entries of the batch that is being filled.
    open: Vec<u64>,
    /// Blocks for the processor, at most.
    depth: usize,
}

/// A block that a device has, or will have.
#[derive(Debug)]
struct OnDevice {
    block: Block<ByteRange>,
    /// Candidates of its ranges, in order.
    found: Option<Vec<Vec<u32>>>,
}

impl DeviceSearch {
    /// Starts without a block. `depth` is the length of the processor's queue.
    pub(crate) fn new(
        read: TaskQueue<ReadSmall>,
        queue: TaskQueue<SearchBlock>,
        again: SearchBlock,
        work: DeviceWork,
        depth: usize,
    ) -> Self {
        Self { read, lineup: Lineup::new(queue), again, work, open: Vec::new(), depth }
    }

    /// Returns true if a block more would exceed the limits: half of the batches, since the others are being named, and the processor's queue.
    fn is_full(&self) -> bool {
        let limits = &self.work.limits;
        let blocks = limits.blocks * (limits.batches / 2).max(1);
        blocks <= self.lineup.elsewhere_count() || self.depth <= self.lineup.processor_count()
    }

    /// Takes a block that was read.
    fn enter(&mut self, mut block: Block<ByteRange>) {
        let is_for_device = !block.bytes.is_empty() && self.work.is_usable() && block.bytes.freeze().is_some();
        if !is_for_device {
            self.lineup.push(block);
            return;
        }
        self.open.push(self.lineup.push_elsewhere(OnDevice { block, found: None }));
        if self.open.len() == self.work.limits.blocks {
            self.close();
        }
    }

    /// Sends the batch that is being filled. If the device is busy, the processor takes the blocks.
    fn close(&mut self) {
        let numbers = std::mem::take(&mut self.open);
        let lineup = &mut self.lineup;
        let frozen: Vec<_> = numbers
            .iter()
            .filter_map(|number| lineup.elsewhere_mut(*number).and_then(|entry| entry.block.bytes.freeze()))
            .collect();
        let count = frozen.len();
        match self.work.begin(frozen) {
            Some(batch) => {
                for (number, entry) in numbers.into_iter().enumerate() {
                    if let Some(entry) = self.lineup.elsewhere_mut(entry) {
                        entry.block.bytes.sent = Some(Sent { batch, number, count });
                    }
                }
            }
            None => {
                for number in numbers {
                    self.lineup.take_over(number, |entry| entry.block);
                }
            }
        }
    }

    /// Waits for the candidates of all blocks of a batch.
    fn fetch(&mut self, batch: Batch) {
        let of_batch = |entry: &&mut OnDevice| entry.block.bytes.sent.is_some_and(|sent| sent.batch == batch);
        let mut ranges = Vec::new();
        for entry in self.lineup.all_elsewhere().filter(of_batch) {
            let block = entry.block.bytes.sent.map_or(0, |sent| sent.number);
            ranges.extend(entry.block.events.iter().filter_map(|event| match event {
                Event::Bytes(ByteRange { start, len, halo }) => {
                    Some(Range { block, start: *start, len: *len, halo: *halo })
                }
                Event::Step(_) | Event::Stop(_) | Event::LongEnd(_) => None,
            }));
        }
        let Some(found) = self.work.candidates(batch, &ranges) else { return };
        let mut found = found.into_iter();
        for entry in self.lineup.all_elsewhere().filter(of_batch) {
            let count = entry.block.events.iter().filter(|event| matches!(event, Event::Bytes(_))).count();
            entry.found = Some(found.by_ref().take(count).collect());
        }
    }

    /// Takes the oldest block.
    fn pop_entered(&mut self) -> Option<Block<Searched>> {
        let oldest = self.lineup.oldest()?;
        if self.open.first() == Some(&oldest) {
            self.close();
        }
        if let Some(entry) = self.lineup.elsewhere_mut(oldest)
            && entry.found.is_none()
            && let Some(sent) = entry.block.bytes.sent
        {
            self.fetch(sent.batch);
        }
        match self.lineup.pop()? {
            Oldest::Done(block) => Some(block),
            Oldest::Elsewhere(OnDevice { mut block, found }) => {
                if found.is_none() || !self.work.names {
                    // The batch has ended.
                    block.bytes.sent = None;
                }
                Some(match found {
                    Some(found) => joined(block, found),
                    None => self.again.run(block),
                })
            }
        }
    }
}

/// Joins the ranges of a block with their candidates.
fn joined(Block { bytes, events }: Block<ByteRange>, found: Vec<Vec<u32>>) -> Block<Searched> {
    let mut found = found.into_iter();
    let mut searched = |range| Searched::of(range, found.next().expect("each range was searched"));
    Block { bytes, events: events.into_iter().map(|event| event.map(&mut searched)).collect() }
}

impl Ordered for DeviceSearch {
    type In = Block<Input>;
    type Out = Block<Searched>;

    fn push(&mut self, input: Block<Input>) -> Option<Block<Searched>> {
        let read = self.read.push(input)?;
        let oldest = if self.is_full() { self.pop_entered() } else { None };
        self.enter(read);
        oldest
    }

    fn pop(&mut self) -> Option<Block<Searched>> {
        if self.lineup.oldest().is_none() {
            let read = self.read.pop()?;
            self.enter(read);
        }
        // More blocks make a larger batch.
        while let Some(read) = (!self.is_full()).then(|| self.read.pop()).flatten() {
            self.enter(read);
        }
        self.pop_entered()
    }
}
