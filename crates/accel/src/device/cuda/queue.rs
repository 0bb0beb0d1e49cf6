//! Batches on an NVIDIA GPU. Each has a stream of its own: copies of one overlap with kernels of another, and inside a batch everything is in
//! order without events between streams.

use std::ffi::CStr;
use std::sync::Arc;

use super::context::Argument::{From, Long, Memory, Word};
use super::context::{self, Context, Kernel, PageLocked};
use super::stream::{Event, Stream};
use crate::device::queue::{Limits, Listed, NameHash, Named, POISON, Queue, Rule, Span, TILE_BYTES, Wait};
use crate::device::{Fault, FaultKind, Frozen};

/// Bytes before the first block: kernels read 32, and blocks begin at a multiple of this.
pub(super) const BEFORE_BYTES: usize = 256;
/// Bytes behind the last one, which kernels read.
pub(super) const BEHIND_BYTES: usize = 128;
/// Bytes of a leaf of BLAKE3.
const LEAF_BYTES: usize = 1024;
/// The way of loading leaves that was the fastest on a device (decision 0040).
const LEAVES: &CStr = c"blake3_leaves_quads";
/// Leaves of a chunk from which on a whole CTA merges them.
const WIDE_LEAVES: usize = 64;
/// CTAs of a launch for each multiprocessor.
pub(super) const CTAS_EACH: u32 = 4;
/// Bytes of the number behind results.
const NUMBER_BYTES: usize = 4;
/// Bytes of a listed chunk: where it starts, its length and its first leaf.
const CHUNK_BYTES: usize = 12;
/// Bytes of the result of a leaf or of a pair.
const NODE_BYTES: usize = 32;

/// The kernels of a queue.
#[derive(Debug)]
struct Kernels {
    gear: Kernel,
    expand: Kernel,
    leaves: Kernel,
    trees: Kernel,
    trees_wide: Kernel,
    sha1: Kernel,
    sha256: Kernel,
    stamp: Kernel,
}

impl Kernels {
    fn find(context: &Context) -> Result<Self, Fault> {
        Ok(Self {
            gear: context.kernel(c"gear")?,
            expand: context.kernel(c"expand")?,
            leaves: context.kernel(LEAVES)?,
            trees: context.kernel(c"blake3_trees")?,
            trees_wide: context.kernel(c"blake3_trees_wide")?,
            sha1: context.kernel(c"sha1")?,
            sha256: context.kernel(c"sha256")?,
            stamp: context.kernel(c"stamp")?,
        })
    }
}

/// A batch's memory on the device and on the host. Events come before streams, and streams before memory, when it is dropped.
#[derive(Debug)]
struct Position {
    searched: Event,
    named: Event,
    stream: Stream,
    area: context::Memory,
    /// Counts, slots and the number; also in the host's memory.
    found: context::Memory,
    found_here: PageLocked,
    /// Names and the number.
    names: context::Memory,
    names_here: PageLocked,
    /// Chunks, and bytes of those that lie in no single block, on their way to the device.
    chunks: context::Memory,
    chunks_here: PageLocked,
    joined_here: PageLocked,
    leaves: context::Memory,
    nodes: context::Memory,
    other_nodes: context::Memory,
    /// Blocks that the device may still copy.
    blocks: Vec<Arc<Frozen>>,
    /// Tiles that were searched.
    tiles: usize,
    /// Position of the name of each chunk.
    order: Vec<u32>,
}

/// A queue of a GPU.
#[derive(Debug)]
pub(super) struct CudaQueue {
    limits: Limits,
    hash: Option<NameHash>,
    /// Threshold and slots of the search.
    search: Option<(u32, usize)>,
    ctas: u32,
    kernels: Kernels,
    table: context::Memory,
    key: context::Memory,
    positions: Vec<Position>,
}

impl Drop for CudaQueue {
    fn drop(&mut self) {
        for position in &mut self.positions {
            // A device that refuses calls copies nothing any more; one that hangs may, so that its blocks are never used again.
            let _lost = position.stream.synchronize();
            let blocks = std::mem::take(&mut position.blocks);
            if position.stream.is_hung() {
                std::mem::forget(blocks);
            }
        }
    }
}

fn word(number: usize) -> u32 {
    u32::try_from(number).expect("positions in a batch have 30 bits")
}

fn leaves_of(len: usize) -> usize {
    len.div_ceil(LEAF_BYTES).max(1)
}

impl Position {
    fn open(context: &Arc<Context>, limits: &Limits, slots: usize) -> Result<Self, Fault> {
        let found = limits.area_bytes() / TILE_BYTES * (4 + 2 * slots).next_multiple_of(4) + NUMBER_BYTES;
        let names = limits.chunks_max() * NODE_BYTES + NUMBER_BYTES;
        let nodes = limits.leaves_max() * NODE_BYTES;
        let area = BEFORE_BYTES + limits.area_bytes() + limits.joined_bytes + BEHIND_BYTES;
        Ok(Self {
            searched: Event::open(context)?,
            named: Event::open(context)?,
            stream: Stream::open(context)?,
            area: context.memory(area, 0)?,
            found: context.memory(found, POISON)?,
            found_here: context.page_locked(found)?,
            names: context.memory(names, POISON)?,
            names_here: context.page_locked(names)?,
            chunks: context.memory(limits.chunks_max() * CHUNK_BYTES, 0)?,
            chunks_here: context.page_locked(limits.chunks_max() * CHUNK_BYTES)?,
            joined_here: context.page_locked(limits.joined_bytes)?,
            leaves: context.memory(limits.leaves_max() * 8, 0)?,
            nodes: context.memory(nodes, 0)?,
            other_nodes: context.memory(nodes, 0)?,
            blocks: Vec::new(),
            tiles: 0,
            order: Vec::new(),
        })
    }

    /// Waits until the device has written a result, or returns false.
    fn is_there(event: &Event, wait: Wait) -> Result<bool, Fault> {
        match wait {
            Wait::Yes => event.wait().map(|()| true),
            Wait::No => event.is_behind(),
        }
    }

    /// Lists chunks, those of few leaves first. Returns the number of these, and of all leaves.
    fn list(&mut self, chunks: &[Span]) -> (usize, usize) {
        let mut order: Vec<usize> = (0..chunks.len()).collect();
        let leaves = |number: &usize| chunks.get(*number).map_or(0, |chunk| leaves_of(chunk.len as usize));
        order.sort_by_key(|number| WIDE_LEAVES < leaves(number));
        let narrow = order.partition_point(|number| leaves(number) <= WIDE_LEAVES);
        self.order = vec![0; chunks.len()];
        let mut total = 0;
        for ((at, number), row) in order.iter().enumerate().zip(self.chunks_here.chunks_exact_mut(CHUNK_BYTES)) {
            let Some(chunk) = chunks.get(*number) else { continue };
            let words = [word(BEFORE_BYTES) + chunk.start, chunk.len, word(total)];
            row.copy_from_slice(words.map(u32::to_le_bytes).as_flattened());
            total += leaves(number);
            if let Some(position) = self.order.get_mut(*number) {
                *position = word(at);
            }
        }
        (narrow, total)
    }
}

impl CudaQueue {
    /// Takes all memory that the queue will need.
    pub(super) fn open(
        context: &Arc<Context>,
        multiprocessors: u32,
        rule: &Rule,
        limits: &Limits,
    ) -> Result<Self, Fault> {
        let search = rule.search.as_ref().map(|search| (search.threshold, search.slots()));
        let slots = search.map_or(0, |(_, slots)| slots);
        let table = rule.search.as_ref().map_or(&[][..], |search| &search.table[..]);
        let key = if let Some(NameHash::Blake3(key)) = &rule.hash { *key } else { [0; 32] };
        Ok(Self {
            limits: *limits,
            hash: rule.hash.clone(),
            search,
            ctas: CTAS_EACH * multiprocessors.max(1),
            kernels: Kernels::find(context)?,
            table: context.upload(table)?,
            key: context.upload(&key)?,
            positions: (0..limits.batches).map(|_| Position::open(context, limits, slots)).collect::<Result<_, _>>()?,
        })
    }

    fn position(&mut self, position: usize) -> &mut Position {
        self.positions.get_mut(position).expect("positions are below the limit")
    }

    /// Bytes of the list of candidates, without the number.
    fn listed_bytes(tiles: usize, slots: usize) -> usize {
        (tiles * (4 + 2 * slots)).next_multiple_of(4)
    }
}

impl Queue for CudaQueue {
    fn search(&mut self, position: usize, number: u32, blocks: &[Arc<Frozen>]) -> Result<(), Fault> {
        let Self { limits, search, ctas, kernels, table, positions, .. } = self;
        let at = positions.get_mut(position).expect("positions are below the limit");
        assert!(blocks.len() <= limits.blocks, "a batch within its limits");
        at.blocks = blocks.to_vec();
        for (number, block) in at.blocks.iter().enumerate() {
            assert!(block.len() <= limits.block_bytes, "a block within its limits");
            // SAFETY: nobody changes a frozen block, and it is kept until the stream is behind the copy.
            unsafe { at.stream.send(block, &at.area, BEFORE_BYTES + number * limits.block_bytes)? };
        }
        at.tiles = blocks.len() * limits.block_bytes / TILE_BYTES;
        if let Some((threshold, slots)) = search {
            let listed = Self::listed_bytes(at.tiles, *slots);
            at.found_here.get_mut(..listed + NUMBER_BYTES).expect("as many tiles as a batch has").fill(POISON);
            at.stream.fill(&at.found, POISON, listed + NUMBER_BYTES)?;
            let (first, len) = (Long(BEFORE_BYTES as u64), Long((at.tiles * TILE_BYTES) as u64));
            let (counts, slots_out) = (Memory(&at.found), From(&at.found, 4 * at.tiles));
            let (threshold, slots) = (Word(*threshold), Word(word(*slots)));
            let arguments = [Memory(&at.area), first, len, Memory(table), threshold, slots, counts, slots_out];
            // SAFETY: there is a count for each tile, and slots for each; the area has what surrounds the blocks. The queue waits for the
            // stream before it frees or lends any of it.
            unsafe {
                at.stream.launch(&kernels.gear, (*ctas, 256), &arguments)?;
                at.stream.launch(&kernels.stamp, (1, 32), &[From(&at.found, listed), Word(number)])?;
                at.stream.fetch(&at.found, listed + NUMBER_BYTES, &mut at.found_here)?;
            }
        }
        at.stream.record(&at.searched)
    }

    fn candidates(&mut self, position: usize, wait: Wait) -> Result<Option<Listed>, Fault> {
        let Some((_, slots)) = self.search else { return Ok(Some(Listed::default())) };
        let at = self.position(position);
        if !Position::is_there(&at.searched, wait)? {
            return Ok(None);
        }
        let listed = Self::listed_bytes(at.tiles, slots);
        let (bytes, number) = at.found_here.split_at(listed);
        let (counts, found) = bytes.split_at(4 * at.tiles);
        let counts = counts.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let found = found.as_chunks().0.iter().take(at.tiles * slots).map(|bytes| u16::from_le_bytes(*bytes)).collect();
        let number = number.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        Ok(Some(Listed { counts, slots: found, number }))
    }

    fn name(&mut self, position: usize, number: u32, chunks: &[Span], joined: &[u8]) -> Result<(), Fault> {
        let Self { limits, hash, ctas, kernels, key, positions, .. } = self;
        let Some(hash) = hash else { return Err(Fault::new(FaultKind::Unsuitable, "the queue names nothing")) };
        let at = positions.get_mut(position).expect("positions are below the limit");
        assert!(chunks.len() <= limits.chunks_max() && joined.len() <= limits.joined_bytes, "within limits");
        let end = limits.area_bytes() + joined.len();
        assert!(
            chunks.iter().all(|chunk| chunk.start as usize + chunk.len as usize <= end),
            "chunks lie in their batch"
        );
        let (narrow, total) = at.list(chunks);
        assert!(total <= limits.leaves_max(), "leaves within limits");
        let listed = chunks.len() * NODE_BYTES;
        at.joined_here.get_mut(..joined.len()).expect("checked above").copy_from_slice(joined);
        at.names_here.get_mut(..listed + NUMBER_BYTES).expect("checked above").fill(POISON);
        at.stream.fill(&at.names, POISON, listed + NUMBER_BYTES)?;
        let (count, few, many) = (Word(word(chunks.len())), Word(word(narrow)), Word(word(chunks.len() - narrow)));
        let list = at.chunks_here.get(..chunks.len() * CHUNK_BYTES).expect("checked above");
        let joined = at.joined_here.get(..joined.len()).expect("checked above");
        // SAFETY: the lists are not changed until the stream is behind them. All chunks lie in the area, each has its leaves and
        // nodes, and each a name.
        unsafe {
            at.stream.send(list, &at.chunks, 0)?;
            at.stream.send(joined, &at.area, BEFORE_BYTES + limits.area_bytes())?;
            let shape = (*ctas, 128);
            match hash {
                NameHash::Blake3(_) => {
                    let leaves = [Memory(&at.chunks), count, Memory(&at.leaves)];
                    at.stream.launch(&kernels.expand, shape, &leaves)?;
                    let leaf_hash =
                        [Memory(&at.area), Memory(&at.leaves), Word(word(total)), Memory(key), Memory(&at.nodes)];
                    at.stream.launch(&kernels.leaves, shape, &leaf_hash)?;
                    if 0 < narrow {
                        let trees = [Memory(&at.chunks), few, Memory(key), Memory(&at.nodes), Memory(&at.names)];
                        at.stream.launch(&kernels.trees, shape, &trees)?;
                    }
                    if narrow < chunks.len() {
                        let (list, names) =
                            (From(&at.chunks, narrow * CHUNK_BYTES), From(&at.names, narrow * NODE_BYTES));
                        let nodes = (Memory(&at.nodes), Memory(&at.other_nodes));
                        let trees = [list, many, Memory(key), nodes.0, nodes.1, names];
                        at.stream.launch(&kernels.trees_wide, shape, &trees)?;
                    }
                }
                NameHash::Sha1 | NameHash::Sha256 => {
                    let kernel = if let NameHash::Sha1 = hash { &kernels.sha1 } else { &kernels.sha256 };
                    let names = [Memory(&at.area), Memory(&at.chunks), count, Memory(&at.names)];
                    at.stream.launch(kernel, shape, &names)?;
                }
            }
            at.stream.launch(&kernels.stamp, (1, 32), &[From(&at.names, listed), Word(number)])?;
            at.stream.fetch(&at.names, listed + NUMBER_BYTES, &mut at.names_here)?;
        }
        at.stream.record(&at.named)
    }

    fn names(&mut self, position: usize, wait: Wait) -> Result<Option<Named>, Fault> {
        let len = if let Some(NameHash::Sha1) = self.hash { 20 } else { 32 };
        let at = self.position(position);
        if !Position::is_there(&at.named, wait)? {
            return Ok(None);
        }
        let listed = at.order.len() * NODE_BYTES;
        let (bytes, number) = at.names_here.split_at(listed);
        let name = |position: &u32| {
            let start = *position as usize * len;
            let mut name = [0; 32];
            name[..len].copy_from_slice(bytes.get(start..start + len).unwrap_or(&[POISON; 32][..len]));
            name
        };
        let names = at.order.iter().map(name).collect();
        let number = number.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        Ok(Some(Named { names, number }))
    }

    fn release(&mut self, position: usize) -> Result<(), Fault> {
        let at = self.position(position);
        at.stream.synchronize()?;
        at.blocks.clear();
        Ok(())
    }
}
