//! Batches on a device, from memory that it reads without a copy in between to checked results: one measurement for `lab rates` and for papers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use onefold_accel::device::{
    Batch, Batches, Check, Device, Frozen, Limits, NameHash, Namer, Pool, Range, Rule, Span, Wait,
};
use onefold_accel::fingerprint::keyed_hashes;

use super::noise::{BLOCK_BYTES, KEY, Noise};
use crate::coprocessor::fingerprint::Hash;
use crate::processor::{processor_time, processor_time_since};
use crate::together::Taken;

/// Batches in flight. A backup has six smaller ones.
const BATCHES: usize = 4;

/// Work on all bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// They reach the device.
    Copy,
    /// It finds candidates, of which the processor makes chunks.
    Candidates,
    /// It names chunks that are known before.
    Names(Hash),
    /// It finds candidates, then names the chunks.
    Both(Hash),
}

impl Work {
    fn hash(self) -> Option<Hash> {
        match self {
            Self::Copy | Self::Candidates => None,
            Self::Names(hash) | Self::Both(hash) => Some(hash),
        }
    }

    fn searches(self) -> bool {
        matches!(self, Self::Candidates | Self::Both(_))
    }
}

/// Bytes in memory of the host that a device reads, as readers of files leave them.
#[derive(Debug)]
pub(crate) struct Transfers {
    device: Arc<dyn Device>,
    noise: Noise,
    blocks: Vec<Arc<Frozen>>,
}

impl Transfers {
    /// Moves bytes to memory that the device reads, for as long as this lives.
    pub(crate) fn load(device: &Arc<dyn Device>, mut noise: Noise) -> Result<Self> {
        let bytes = std::mem::take(&mut noise.bytes);
        let pool = pool(device, bytes.len().div_ceil(BLOCK_BYTES));
        let blocks = bytes.chunks(BLOCK_BYTES).map(|block| filled(&pool, block)).collect::<Result<_>>()?;
        Ok(Self { device: Arc::clone(device), noise, blocks })
    }

    /// Bytes of all blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.len() as u64).sum()
    }

    /// Does work on all bytes so many times in a row for each round, in batches of about so many bytes. One round more goes before and does not count:
    /// drivers take memory at first use. `fill` threads bring the bytes into other buffers inside of the measured time; with 0 they lie there
    /// before. An unequal result is an error.
    pub(crate) fn measure(
        &self,
        work: Work,
        batch_bytes: usize,
        fill: usize,
        (passes, rounds): (usize, usize),
    ) -> Result<Vec<Taken>> {
        let mut flow = Flow::open(self, work, batch_bytes, Check::Sample)?;
        let pool = pool(&self.device, self.blocks.len());
        let mut round = || {
            let (start, processor) = (Instant::now(), processor_time());
            for _ in 0..passes.max(1) {
                if fill == 0 {
                    flow.pass(&mut self.blocks.iter().cloned().map(Ok))?;
                } else {
                    flow.filled(&pool, fill)?;
                }
            }
            let (elapsed, processor) = (start.elapsed(), processor_time_since(processor));
            anyhow::Ok(Taken { bytes: self.bytes() * passes.max(1) as u64, elapsed, processor })
        };
        round()?;
        (0..rounds.max(1)).map(|_| round()).collect()
    }
}

/// Bytes of a batch of at most so many bytes, a whole number of blocks.
pub(crate) fn whole_batch(batch_bytes: usize) -> usize {
    limits(batch_bytes).area_bytes()
}

fn limits(batch_bytes: usize) -> Limits {
    let blocks = (batch_bytes / BLOCK_BYTES).max(1);
    Limits { block_bytes: BLOCK_BYTES, blocks, batches: BATCHES, joined_bytes: 0 }
}

/// Seconds of rounds, shortest first.
pub(crate) fn seconds(taken: &[Taken]) -> Vec<f64> {
    let mut seconds: Vec<_> =
        taken.iter().map(|taken| taken.elapsed).map(|elapsed: Duration| elapsed.as_secs_f64()).collect();
    seconds.sort_by(f64::total_cmp);
    seconds
}

fn pool(device: &Arc<dyn Device>, buffers: usize) -> Pool {
    let allocating = Arc::clone(device);
    Pool::new(BLOCK_BYTES, buffers, move |len| allocating.allocate(len))
}

fn filled(pool: &Pool, block: &[u8]) -> Result<Arc<Frozen>> {
    let mut buffer = pool.take().ok_or_else(|| anyhow!("the device has no memory of the host"))?;
    buffer.get_mut(..block.len()).context("a block is as long as a buffer")?.copy_from_slice(block);
    Ok(buffer.freeze(block.len()))
}

fn namer(hash: Hash) -> Namer {
    let algorithm = match hash {
        Hash::Sha1 => &SHA1_FOR_LEGACY_USE_ONLY,
        Hash::Sha256 => &SHA256,
        Hash::Blake3 => {
            return Arc::new(|chunks| {
                let mut names = Vec::new();
                keyed_hashes(&KEY, chunks, &mut names);
                names
            });
        }
    };
    let name = move |chunk: &&[u8]| {
        let mut name = [0; 32];
        name.iter_mut().zip(digest(algorithm, chunk).as_ref()).for_each(|(to, from)| *to = *from);
        name
    };
    Arc::new(move |chunks| chunks.iter().map(name).collect())
}

/// A batch that is searched: the number of its first block, and the lengths of all.
type Searching = (Batch, usize, Vec<usize>);

/// Batches in flight.
struct Flow<'a> {
    from: &'a Transfers,
    batches: Batches,
    work: Work,
    limits: Limits,
    searching: VecDeque<Searching>,
    fingerprinting: VecDeque<Batch>,
    /// Number of chunks so far.
    chunks: u64,
}

impl<'a> Flow<'a> {
    fn open(from: &'a Transfers, work: Work, batch_bytes: usize, check: Check) -> Result<Self> {
        let hash = work.hash().map(|hash| match hash {
            Hash::Sha1 => NameHash::Sha1,
            Hash::Sha256 => NameHash::Sha256,
            Hash::Blake3 => NameHash::Blake3(KEY),
        });
        let rule = Rule { search: work.searches().then(|| from.noise.search.clone()), hash };
        let (limits, namer) = (limits(batch_bytes), namer(work.hash().unwrap_or(Hash::Blake3)));
        let batches = Batches::open(&*from.device, &rule, limits, (namer, check, [9; 32]))?;
        let (searching, fingerprinting) = (VecDeque::new(), VecDeque::new());
        Ok(Self { from, batches, work, limits, searching, fingerprinting, chunks: 0 })
    }

    /// Sends all blocks through the device, and waits for the last result.
    fn pass(&mut self, blocks: &mut dyn Iterator<Item = Result<Arc<Frozen>>>) -> Result<()> {
        let mut first = 0;
        loop {
            let part = (&mut *blocks).take(self.limits.blocks).collect::<Result<Vec<_>>>()?;
            if part.is_empty() {
                break;
            }
            while !self.batches.has_free_position() {
                self.advance()?;
            }
            let lens: Vec<_> = part.iter().map(|block| block.len()).collect();
            let number = first;
            first += part.len();
            self.searching.push_back((self.batches.begin(part)?, number, lens));
            // Half of the batches are searched while the others are named.
            if BATCHES / 2 < self.searching.len() {
                self.name_oldest()?;
            }
        }
        while !(self.searching.is_empty() && self.fingerprinting.is_empty()) {
            self.advance()?;
        }
        Ok(())
    }

    /// Does the same from buffers that threads fill meanwhile.
    fn filled(&mut self, pool: &Pool, threads: usize) -> Result<()> {
        let (next, from) = (&AtomicUsize::new(0), self.from);
        let (sender, receiver) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let sender = sender.clone();
                scope.spawn(move || {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let Some(block) = from.blocks.get(number) else { return };
                        if sender.send((number, filled(pool, block))).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            let mut early = BTreeMap::new();
            let mut in_order = (0..from.blocks.len()).map(|number| {
                loop {
                    if let Some(block) = early.remove(&number) {
                        return block;
                    }
                    let (found, block) = receiver.recv().context("a thread that fills buffers ended")?;
                    early.insert(found, block);
                }
            });
            self.pass(&mut in_order)
        })
    }

    /// Ends the oldest batch, or names one if none is being named.
    fn advance(&mut self) -> Result<()> {
        let Some(batch) = self.fingerprinting.pop_front() else { return self.name_oldest() };
        let names = self.batches.names(batch, Wait::Yes)?;
        self.chunks += names.map_or(0, |names| names.len()) as u64;
        Ok(())
    }

    fn name_oldest(&mut self) -> Result<()> {
        let Some((batch, first, lens)) = self.searching.pop_front() else { return Ok(()) };
        let range =
            |(block, len): (usize, &usize)| Range { block, start: 0, len: u32::try_from(*len).unwrap_or(0), halo: 0 };
        let ranges: Vec<Range> = lens.iter().enumerate().map(range).collect();
        let found = if self.work.searches() { self.batches.candidates(batch, &ranges)? } else { Vec::new() };
        let Transfers { noise, .. } = self.from;
        let mut spans = Vec::new();
        for range in &ranges {
            let found = found.get(range.block);
            let chunks = match (self.work, found) {
                (Work::Copy, _) => continue,
                (_, Some(found)) => &noise.cut(found, range.len),
                (_, None) => noise.chunks.get(first + range.block).context("chunks of each block are known")?,
            };
            let start = u32::try_from(range.block * BLOCK_BYTES)?;
            spans.extend(chunks.iter().map(|(at, len)| Span { start: start + at, len: *len }));
        }
        if self.work.hash().is_none() {
            self.chunks += spans.len() as u64;
            return Ok(self.batches.end(batch)?);
        }
        ensure!(
            spans.len() <= self.limits.chunks_max(),
            "{} chunks of a batch: a device names at most {}",
            spans.len(),
            self.limits.chunks_max()
        );
        self.batches.name(batch, spans, Vec::new())?;
        self.fingerprinting.push_back(batch);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use onefold_accel::device::host_device::{Field, HostDevice, Mood, Script};

    use super::*;

    const WORKS: [Work; 8] = [
        Work::Copy,
        Work::Candidates,
        Work::Names(Hash::Blake3),
        Work::Names(Hash::Sha1),
        Work::Names(Hash::Sha256),
        Work::Both(Hash::Blake3),
        Work::Both(Hash::Sha1),
        Work::Both(Hash::Sha256),
    ];

    fn device(script: Script) -> Arc<dyn Device> {
        Arc::new(HostDevice::new(script))
    }

    #[test]
    fn a_device_finds_and_names_the_chunks_of_the_processor_whoever_fills_the_buffers() {
        let noise = Noise::new(5 << 19, 8 << 10).unwrap().with_cuts();
        let expected: usize = noise.chunks.iter().map(Vec::len).sum();
        assert!(100 < expected);
        let from = Transfers::load(&device(Script { late: 1, ..Script::default() }), noise).unwrap();
        for work in WORKS {
            for fill in [0, 3] {
                // Two batches, of which the second is not full.
                let mut flow = Flow::open(&from, work, 4 << 19, Check::All).unwrap();
                if fill == 0 {
                    flow.pass(&mut from.blocks.iter().cloned().map(Ok)).unwrap();
                } else {
                    flow.filled(&pool(&from.device, from.blocks.len()), fill).unwrap();
                }
                let chunks = if work == Work::Copy { 0 } else { expected as u64 };
                assert_eq!(flow.chunks, chunks, "{work:?} with {fill} threads");
            }
        }
    }

    #[test]
    fn chunks_of_one_length_are_named_and_so_many_rounds_are_measured() {
        let noise = Noise::new(1 << 20, 8 << 10).unwrap().with_chunks_of(4096);
        let from = Transfers::load(&device(Script::default()), noise).unwrap();
        let mut flow = Flow::open(&from, Work::Names(Hash::Sha1), 1 << 20, Check::All).unwrap();
        flow.pass(&mut from.blocks.iter().cloned().map(Ok)).unwrap();
        assert_eq!(flow.chunks, 256);
        let taken = from.measure(Work::Names(Hash::Sha1), 1 << 20, 0, (3, 4)).unwrap();
        assert!(taken.len() == 4 && taken.iter().all(|taken| taken.bytes == 3 << 20), "{taken:?}");
        assert!(seconds(&taken).is_sorted());
        let short =
            Transfers::load(&device(Script::default()), Noise::new(1 << 20, 8 << 10).unwrap().with_chunks_of(64));
        let refused = short.unwrap().measure(Work::Names(Hash::Sha1), 1 << 20, 0, (1, 1)).unwrap_err();
        assert!(refused.to_string().contains("16384 chunks of a batch: a device names at most 1024"), "{refused}");
    }

    #[test]
    fn a_device_that_lies_or_has_no_memory_is_an_error() {
        for (field, work) in [(Field::Count, Work::Candidates), (Field::NamesNumber, Work::Names(Hash::Sha256))] {
            let liar = device(Script { at: 3, mood: Some(Mood::Lie(field)), late: 0 });
            let noise = Noise::new(1 << 20, 8 << 10).unwrap().with_cuts();
            let error = Transfers::load(&liar, noise).unwrap().measure(work, 1 << 20, 0, (1, 2)).unwrap_err();
            assert!(error.to_string().contains("the device"), "{work:?}: {error}");
        }
        let error = filled(&Pool::new(BLOCK_BYTES, 0, |_| unreachable!()), &[1]).unwrap_err();
        assert_eq!(error.to_string(), "the device has no memory of the host");
    }
}
