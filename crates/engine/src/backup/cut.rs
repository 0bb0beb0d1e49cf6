//! From bytes to fingerprinted chunks. Workers find candidates and fingerprint chunks; one thread cuts in order.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::backup::block::{BLOCK_EVENTS_MAX, Block, BlockBytes, ByteRange, Event, FileEnd, Input, Sent, Step};
use crate::backup::long_file::LongEnds;
use crate::backup::part::LongFile;
use crate::backup::read::FileReader;
use crate::backup::streamed::{Again, Verdict};
use crate::chunk::{Cutter, GearTable};
use crate::container::LendChunks;
use crate::fingerprint::Fingerprinter;
use crate::pipeline::Task;
use crate::types::Fingerprint;

/// Reads the small files of a block.
#[derive(Debug)]
pub(crate) struct ReadSmall {
    /// Reads what is not read yet.
    pub(crate) files: FileReader,
}

impl Task for ReadSmall {
    type In = Block<Input>;
    type Out = Block<ByteRange>;

    fn run(&self, block: Block<Input>) -> Block<ByteRange> {
        self.files.read_small(block)
    }
}

/// Finds the candidates in a block that was read.
#[derive(Clone, Debug)]
pub(crate) struct SearchBlock {
    /// The hash; `None` where cuts do not depend on candidates.
    pub(crate) table: Option<GearTable>,
}

impl SearchBlock {
    fn search(&self, bytes: &BlockBytes, range: ByteRange) -> Searched {
        let mut candidates = Vec::new();
        if let Some(table) = &self.table {
            let ByteRange { start, len, halo } = range;
            let bytes = bytes.get(start - halo as usize..start + len as usize).unwrap_or_default();
            table.candidates(bytes, halo as usize, &mut candidates);
        }
        Searched::of(range, candidates)
    }
}

impl Task for SearchBlock {
    type In = Block<ByteRange>;
    type Out = Block<Searched>;

    fn run(&self, Block { bytes, events }: Block<ByteRange>) -> Block<Searched> {
        let mut search = |range| self.search(&bytes, range);
        let events = events.into_iter().map(|event| event.map(&mut search)).collect();
        Block { bytes, events }
    }
}

/// Reads the small files of a block, and finds the candidates while the bytes are at hand.
#[derive(Debug)]
pub(crate) struct FindCandidates {
    /// Reads.
    pub(crate) read: ReadSmall,
    /// Finds.
    pub(crate) search: SearchBlock,
}

impl Task for FindCandidates {
    type In = Block<Input>;
    type Out = Block<Searched>;

    fn run(&self, block: Block<Input>) -> Block<Searched> {
        self.search.run(self.read.run(block))
    }
}

/// Bytes of the open file with their candidates.
#[derive(Debug)]
pub(crate) struct Searched {
    start: usize,
    len: u32,
    candidates: Vec<u32>,
}

impl Searched {
    /// Joins bytes and their candidates.
    pub(crate) fn of(ByteRange { start, len, .. }: ByteRange, candidates: Vec<u32>) -> Self {
        Self { start, len, candidates }
    }
}

/// Location of a chunk's bytes.
#[derive(Clone, Debug)]
enum Location {
    Block(Range<usize>),
    /// A chunk that began in an earlier block.
    Joined(Range<usize>),
}

/// One event after cutting.
#[derive(Debug)]
pub(crate) enum CutEvent {
    /// The next chunk of the block; it belongs to the open file.
    Chunk,
    /// A step of the walk.
    Step(Step),
}

/// A block in chunks.
#[derive(Debug)]
pub(crate) struct CutBlock {
    bytes: BlockBytes,
    joined: Vec<u8>,
    locations: Vec<Location>,
    /// The events in order.
    pub(crate) events: Vec<CutEvent>,
    /// Names of the chunks, in order; empty until they were computed.
    pub(crate) fingerprints: Vec<Fingerprint>,
}

impl CutBlock {
    /// Starts a block without events, for chunks that are cut already.
    pub(crate) fn new(bytes: BlockBytes) -> Self {
        let (joined, locations, fingerprints) = (Vec::new(), Vec::new(), Vec::new());
        Self { bytes, joined, locations, events: Vec::new(), fingerprints }
    }

    /// Returns true if a chunk of this length fits into the rest of the block.
    pub(crate) fn fits(&self, len: usize) -> bool {
        len <= self.bytes.free() && self.locations.len() < BLOCK_EVENTS_MAX
    }

    /// Appends a chunk. One that does not fit makes the block longer.
    pub(crate) fn push(&mut self, chunk: &[u8]) {
        let start = self.bytes.len();
        self.bytes.make_free(chunk.len());
        self.bytes.extend_from_slice(chunk);
        self.locations.push(Location::Block(start..start + chunk.len()));
    }

    /// Returns a chunk's bytes.
    pub(crate) fn chunk(&self, number: usize) -> &[u8] {
        let bytes = match self.locations.get(number) {
            Some(Location::Block(range)) => self.bytes.get(range.clone()),
            Some(Location::Joined(range)) => self.joined.get(range.clone()),
            None => None,
        };
        bytes.expect("chunks lie inside their block")
    }

    /// Returns the batch of a device that has the block.
    pub(crate) fn sent(&self) -> Option<Sent> {
        self.bytes.sent
    }

    /// Returns where a chunk begins in the block; `None` if it began in an earlier one.
    pub(crate) fn start_in_block(&self, number: usize) -> Option<usize> {
        match self.locations.get(number) {
            Some(Location::Block(range)) => Some(range.start),
            Some(Location::Joined(_)) | None => None,
        }
    }

    /// Returns how many chunks there are.
    pub(crate) fn chunk_count(&self) -> usize {
        self.locations.len()
    }
}

impl LendChunks for CutBlock {
    fn lent(&self, number: usize) -> &[u8] {
        self.chunk(number)
    }
}

/// Bytes of a chunk.
#[derive(Clone, Copy)]
pub(crate) enum ChunkBytes<'a> {
    /// They are copied at once.
    Here(&'a [u8]),
    /// They are the chunk of this number, and stay where they are until a worker copies them.
    Lent(&'a Arc<CutBlock>, usize),
}

impl ChunkBytes<'_> {
    /// Returns them.
    pub(crate) fn get(&self) -> &[u8] {
        match self {
            Self::Here(bytes) => bytes,
            Self::Lent(block, number) => block.chunk(*number),
        }
    }
}

/// A way to cut streams that no repository has. The cuts do not depend on how a stream is divided into calls.
pub trait StreamCutter: fmt::Debug + Send {
    /// Takes the next bytes of the stream and appends the cuts that they decide: how many of them come before each,
    /// ascending. What follows the last cut stays open; 0 cuts before the first of them, at the end of what came before, and
    /// a negative number that many bytes before that, within the chunk that was open.
    fn advance(&mut self, bytes: &[u8], cuts: &mut Vec<i64>);

    /// Ends the stream; the next bytes start another.
    fn finish(&mut self);
}

/// The source of cut positions.
#[derive(Debug)]
pub(crate) enum Cuts {
    /// Candidates that workers found; the cutter applies minimum and maximum, as in a repository.
    OfCandidates(Cutter),
    /// The bytes themselves.
    OfBytes(Box<dyn StreamCutter>),
}

impl Cuts {
    fn finish(&mut self) {
        match self {
            Self::OfCandidates(cutter) => cutter.finish(),
            Self::OfBytes(cutter) => cutter.finish(),
        }
    }
}

/// Cuts streams that run on from block to block.
#[derive(Debug)]
pub(crate) struct CutStage {
    cutter: Cuts,
    /// Bytes of the open chunk that came with earlier blocks; no longer than the longest chunk.
    carry: Vec<u8>,
    /// Whether the open file, a long one, has stopped.
    long: LongEnds,
    /// The file at the end of the last block, if it is read once more.
    again: Option<Again>,
}

impl CutStage {
    /// Starts before the first stream.
    pub(crate) fn new(cutter: Cuts) -> Self {
        Self { cutter, carry: Vec::new(), long: LongEnds::default(), again: None }
    }

    /// Returns the file that is read once more before the next block.
    pub(crate) fn take_again(&mut self) -> Option<Again> {
        self.again.take()
    }

    /// Cuts the next block.
    pub(crate) fn cut(&mut self, Block { bytes, events }: Block<Searched>) -> CutBlock {
        let mut cut = CutBlock { events: Vec::with_capacity(events.len()), ..CutBlock::new(bytes) };
        let (mut cuts, mut ends) = (Vec::new(), Vec::new());
        // The open end of the last range of bytes.
        let mut open = 0..0;
        for event in events {
            match event {
                Event::Bytes(_) | Event::Step(Step::Hole(_)) if self.long.has_stopped() => {}
                Event::Stop(stop) => self.long.stop(stop),
                Event::LongEnd(file) => {
                    self.take_chunk(&mut open, &mut cut);
                    self.cutter.finish();
                    self.end_long(&file, &mut cut);
                }
                Event::Bytes(Searched { start, len, candidates }) => {
                    self.keep(&mut open, &cut.bytes);
                    cuts.clear();
                    match &mut self.cutter {
                        Cuts::OfCandidates(cutter) => {
                            ends.clear();
                            cutter.advance(len, &candidates, &mut ends);
                            cuts.extend(ends.iter().copied().map(i64::from));
                        }
                        Cuts::OfBytes(cutter) => {
                            let range = cut.bytes.get(start..start + len as usize);
                            cutter.advance(range.expect("a range lies inside its block"), &mut cuts);
                        }
                    }
                    open = start..start;
                    for end in &cuts {
                        match usize::try_from(*end) {
                            Ok(end) => {
                                open.end = start + end;
                                self.take_chunk(&mut open, &mut cut);
                            }
                            Err(_) => self.take_carried(*end, &mut cut),
                        }
                    }
                    open.end = start + len as usize;
                }
                Event::Step(step) => {
                    if let Step::Hole(_) | Step::FileEnd(_) = step {
                        self.take_chunk(&mut open, &mut cut);
                        self.cutter.finish();
                    }
                    cut.events.push(CutEvent::Step(step));
                }
            }
        }
        self.keep(&mut open, &cut.bytes);
        cut
    }

    /// Ends a long file.
    fn end_long(&mut self, long: &LongFile, cut: &mut CutBlock) {
        match self.long.end(long) {
            Verdict::End(end) => cut.events.extend(end.steps(&long.unread.path).map(CutEvent::Step)),
            Verdict::Again(file) => {
                cut.events.push(CutEvent::Step(Step::FileEnd(FileEnd::Changed)));
                self.again = Some(Again { file, unread: long.unread.clone() });
            }
        }
    }

    /// Makes a chunk of what is open, if anything is.
    fn take_chunk(&mut self, open: &mut Range<usize>, cut: &mut CutBlock) {
        let location = if self.carry.is_empty() {
            Location::Block(open.clone())
        } else {
            let start = cut.joined.len();
            cut.joined.append(&mut self.carry);
            cut.joined.extend_from_slice(cut.bytes.get(open.clone()).unwrap_or_default());
            Location::Joined(start..cut.joined.len())
        };
        open.start = open.end;
        let (Location::Block(range) | Location::Joined(range)) = &location;
        if !range.is_empty() {
            cut.locations.push(location);
            cut.events.push(CutEvent::Chunk);
        }
    }

    /// Makes a chunk of what came with earlier ranges, up to a cut that lies before the end of that.
    fn take_carried(&mut self, end: i64, cut: &mut CutBlock) {
        let rest = usize::try_from(end.unsigned_abs()).ok();
        let len = rest.and_then(|rest| self.carry.len().checked_sub(rest));
        let start = cut.joined.len();
        cut.joined.extend(self.carry.drain(..len.expect("a cut lies in the open chunk")));
        if start < cut.joined.len() {
            cut.locations.push(Location::Joined(start..cut.joined.len()));
            cut.events.push(CutEvent::Chunk);
        }
    }

    /// Keeps the open chunk for the next range of the stream.
    fn keep(&mut self, open: &mut Range<usize>, bytes: &[u8]) {
        self.carry.extend_from_slice(bytes.get(open.clone()).unwrap_or_default());
        open.start = open.end;
    }
}

/// Names the chunks of a block.
#[derive(Debug)]
pub(crate) struct FingerprintChunks {
    /// Names them.
    pub(crate) fingerprinter: Arc<dyn Fingerprinter>,
}

impl Task for FingerprintChunks {
    type In = CutBlock;
    type Out = CutBlock;

    fn run(&self, mut block: CutBlock) -> CutBlock {
        let chunks: Vec<&[u8]> = (0..block.chunk_count()).map(|number| block.chunk(number)).collect();
        block.fingerprints = self.fingerprinter.name(&chunks);
        block
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::path::Path;

    use super::*;
    use crate::backup::block::Buffers;
    use crate::backup::long_file::LongReader;
    use crate::backup::part::Stop;
    use crate::backup::unread::{Change, Unread};
    use crate::error::Error;
    use crate::io::tree::SourceTree;
    use crate::testing::mem_tree::MemTree;

    /// Cuts before each zero, so that a chunk's end is known with the first byte behind it only.
    #[derive(Debug)]
    struct BeforeZeros;

    impl StreamCutter for BeforeZeros {
        fn advance(&mut self, bytes: &[u8], cuts: &mut Vec<i64>) {
            cuts.extend((0..).zip(bytes).filter(|(_, byte)| **byte == 0).map(|(at, _)| at));
        }

        fn finish(&mut self) {}
    }

    /// With each 9, cuts behind all zeros since the last cut, wherever they came, and behind the 9.
    #[derive(Default, Debug)]
    struct BehindZeros {
        open: i64,
        zeros: Vec<i64>,
    }

    impl StreamCutter for BehindZeros {
        fn advance(&mut self, bytes: &[u8], cuts: &mut Vec<i64>) {
            for (at, byte) in (1..).zip(bytes) {
                self.open += 1;
                if *byte == 0 {
                    self.zeros.push(self.open);
                }
                if *byte == 9 {
                    cuts.extend(self.zeros.drain(..).map(|zero| at - self.open + zero));
                    cuts.push(at);
                    self.open = 0;
                }
            }
        }

        fn finish(&mut self) {
            *self = Self::default();
        }
    }

    fn block(ranges: &[&[u8]], ends: bool) -> Block<Searched> {
        let mut block = Block { bytes: Buffers::default().take(), events: Vec::new() };
        for range in ranges {
            let (start, len) = (block.bytes.len(), u32::try_from(range.len()).unwrap());
            block.bytes.extend_from_slice(range);
            block.events.push(Event::Bytes(Searched { start, len, candidates: Vec::new() }));
        }
        if ends {
            block.push(Step::FileEnd(FileEnd::Whole));
        }
        block
    }

    /// Cuts a stream in all ways to divide it into three parts, in one block, two or three.
    fn assert_chunks(stream: &[u8], expected: &[&[u8]], cutter: impl Fn() -> Box<dyn StreamCutter>) {
        for first in 0..=stream.len() {
            for second in first..=stream.len() {
                let parts = [&stream[..first], &stream[first..second], &stream[second..]];
                for blocks in [
                    vec![block(&parts, true)],
                    vec![block(&parts[..1], false), block(&parts[1..], true)],
                    vec![block(&parts[..1], false), block(&parts[1..2], false), block(&parts[2..], true)],
                ] {
                    let mut stage = CutStage::new(Cuts::OfBytes(cutter()));
                    let cut: Vec<CutBlock> = blocks.into_iter().map(|block| stage.cut(block)).collect();
                    let chunks =
                        cut.iter().flat_map(|block| (0..block.chunk_count()).map(|number| block.chunk(number)));
                    assert_eq!(chunks.collect::<Vec<_>>(), expected, "cut at {first} and {second}");
                    let events = cut.iter().flat_map(|block| &block.events);
                    assert_eq!(events.filter(|event| matches!(event, CutEvent::Chunk)).count(), expected.len());
                }
            }
        }
    }

    #[test]
    fn cuts_of_bytes_give_the_same_chunks_wherever_blocks_and_stretches_end() {
        let stream = [0, 0, 5, 6, 0, 7, 7, 7, 0, 8];
        assert_chunks(&stream, &[&[0], &[0, 5, 6], &[0, 7, 7, 7], &[0, 8]], || Box::new(BeforeZeros));
    }

    /// A part of a long file that can be read behind one that cannot would move to where the other one was.
    #[test]
    fn what_follows_the_first_stop_of_a_long_file_is_left_out() {
        let tree = MemTree::new();
        // Too long to be read again.
        tree.put_sparse(Path::new("/long"), 65 << 20, &[]);
        let long = || {
            let directory = SourceTree::open_dir(&tree, Path::new("/")).unwrap();
            let location = crate::source::walk::Location::new(directory, OsStr::new("long"));
            let (path, name) = ("/long".into(), b"long".to_vec());
            let unread = Unread { path, name, location, change: Change::New, len: 0 };
            let mut planned = Block { bytes: Buffers::default().take(), events: Vec::new() };
            let file = unread.location.open().unwrap();
            assert!(LongReader::new(file, unread, Arc::default()).plan(&mut planned).is_none());
            match planned.events.pop() {
                Some(Event::LongEnd(file)) => Event::<Searched>::LongEnd(file),
                other => panic!("{other:?}"),
            }
        };
        let failed = || Stop::Failed(Error::invalid("unreadable"));
        let short: fn(&[CutEvent]) -> bool = |events| {
            matches!(
                events,
                [
                    CutEvent::Chunk,
                    CutEvent::Step(Step::FileEnd(FileEnd::Whole)),
                    CutEvent::Step(Step::Failed(_, Error::SourceChanged { change: "it became shorter", reads: 1 })),
                    CutEvent::Chunk,
                    CutEvent::Step(Step::FileEnd(FileEnd::Whole)),
                ]
            )
        };
        let unreadable: fn(&[CutEvent]) -> bool = |events| {
            matches!(
                events,
                [
                    CutEvent::Chunk,
                    CutEvent::Step(Step::FileEnd(FileEnd::Failed(_))),
                    CutEvent::Chunk,
                    CutEvent::Step(Step::FileEnd(FileEnd::Whole)),
                ]
            )
        };
        for (stops, is_right) in [([Stop::Short, failed()], short), ([failed(), Stop::Short], unreadable)] {
            let [first, second] = stops;
            let mut open = block(&[b"abc"], false);
            open.events.push(Event::Stop(first));
            let mut rest = block(&[b"def"], false);
            rest.push(Step::Hole(5));
            rest.events.extend([Event::Stop(second), long()]);
            let mut stage = CutStage::new(Cuts::OfBytes(Box::new(BeforeZeros)));
            let blocks = [open, rest, block(&[b"next"], true)];
            let cut: Vec<CutBlock> = blocks.into_iter().map(|block| stage.cut(block)).collect();
            let chunks = cut.iter().flat_map(|block| (0..block.chunk_count()).map(|number| block.chunk(number)));
            assert_eq!(chunks.collect::<Vec<_>>(), [b"abc".as_slice(), b"next"]);
            let events: Vec<CutEvent> = cut.into_iter().flat_map(|block| block.events).collect();
            assert!(is_right(&events), "{events:?}");
        }
    }

    #[test]
    fn cuts_may_lie_in_what_came_with_earlier_blocks() {
        let stream = [1, 0, 2, 0, 3, 4, 9, 5, 9, 0, 9, 6, 0, 7];
        let expected: [&[u8]; 7] = [&[1, 0], &[2, 0], &[3, 4, 9], &[5, 9], &[0], &[9], &[6, 0, 7]];
        assert_chunks(&stream, &expected, || Box::new(BehindZeros::default()));
    }
}
