//! Dumps of memory through a deduplication server of DedupCDP's kind.
//!
//! The client compresses each block. The server names it, finds duplicates, and puts new blocks and the metadata of all into segments, which
//! are encrypted when they are full. Reading the dumps does not count: in the paper they come over a network.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use onefold_engine::monitor::Monitor;
use onefold_engine::types::{Chunk, Fingerprint, Sequence};
use serde::{Deserialize, Serialize};

use crate::coprocessor::codec::{Codec, Compressor};
use crate::coprocessor::kernel::{Kernel, Ready};
use crate::counts::float;
use crate::device::Device;
use crate::files::open;
use crate::point::preset::Preset;
use crate::processor::{processor_time, processor_time_since};
use crate::replay::{Drawn, Source};
use crate::run::{Setting, run};

/// Bytes that are read, compressed and named at a time, and timed together.
pub const BATCH_BYTES: usize = 1 << 20;
/// Bytes of a segment, which is encrypted as a whole.
const SEGMENT_BYTES: usize = 4 << 20;
/// Most bytes of blocks that wait for their verdict. A replay draws 16,384 chunks, of 4 KiB in the paper's preset, before it asks for verdicts;
/// as many may be pending then.
const HELD_BYTES_MAX: usize = 2 * 16_384 * 4096 + BATCH_BYTES;
/// Longest block: as many of them as wait may be held.
const BLOCK_BYTES_MAX: usize = 8192;
/// Metadata of a block: its name of 160 bits, and where it is.
const METADATA_BYTES: usize = 28;
/// Bytes of SHA-1.
const NAME_BYTES: usize = 20;
/// Memory in addition to that of the point: blocks that wait, two segments, a batch and what it becomes.
pub const MEMORY_BYTES: usize = HELD_BYTES_MAX + 2 * SEGMENT_BYTES + 3 * BATCH_BYTES;

/// Hash that names a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Named {
    /// The block itself.
    Plain,
    /// Bytes that the client sends: the compressed block.
    Compressed,
}

/// Dumps, and what happens to them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PipelineJob {
    /// The dumps, in their order.
    pub dumps: Vec<PathBuf>,
    /// Most bytes that are taken of each, from its start; 0 for all.
    pub bytes_of_each: u64,
    /// Bytes of a block.
    pub block: u32,
    /// The client's compressor.
    pub compressor: Codec,
    /// Bytes that are named.
    pub named: Named,
    /// The hash that names.
    pub hash: Kernel,
    /// The cipher.
    pub cipher: Kernel,
    /// The preset that finds duplicates.
    pub preset: String,
    /// Dimensions that differ from it.
    pub set: Vec<String>,
    /// Device of its index.
    pub device: String,
    /// Directory for the index, which is removed at the end.
    pub scratch: PathBuf,
    /// Bytes of an interval, a whole number of batches.
    pub interval_bytes: u64,
}

/// Times of a part of a run, in seconds of processor time; those of identification have the device's in them if it is modeled.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Interval {
    /// Bytes of blocks.
    pub bytes: u64,
    /// Compressing, by the client.
    pub compress: f64,
    /// Naming.
    pub hash: f64,
    /// Finding duplicates.
    pub identify: f64,
    /// Encrypting.
    pub encrypt: f64,
    /// Blocks.
    pub blocks: u64,
    /// New ones.
    pub unique: u64,
    /// Those that the cache answered.
    pub hits: u64,
    /// Those that were looked up on the device.
    pub lookups: u64,
}

impl Interval {
    /// Returns the server's MB/s.
    pub fn rate(&self) -> f64 {
        float(self.bytes) / 1e6 / (self.hash + self.identify + self.encrypt).max(1e-9)
    }

    /// Returns the client's MB/s.
    pub fn client_rate(&self) -> f64 {
        float(self.bytes) / 1e6 / self.compress.max(1e-9)
    }

    /// Returns which share of the blocks that the cache was asked for it answered; those that the filter rejects are not among them. Where it was
    /// not asked, nothing missed.
    pub fn hit_share(&self) -> f64 {
        let asked = self.hits + self.lookups;
        if asked == 0 { 1.0 } else { float(self.hits) / float(asked) }
    }

    /// Adds another one.
    pub fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.compress += other.compress;
        self.hash += other.hash;
        self.identify += other.identify;
        self.encrypt += other.encrypt;
        self.blocks += other.blocks;
        self.unique += other.unique;
        self.hits += other.hits;
        self.lookups += other.lookups;
    }
}

/// Outcome of a dump.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Dump {
    /// Its bytes.
    pub bytes: u64,
    /// Those of new blocks.
    pub unique_bytes: u64,
    /// The same, as stored: compressed, and with the metadata of all its blocks.
    pub stored_bytes: u64,
    /// Blocks.
    pub blocks: u64,
    /// Those of nothing but zeros.
    pub zero_blocks: u64,
    /// New ones.
    pub unique: u64,
}

/// Outcome of a pipeline.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct PipelineDone {
    /// Intervals, in order.
    pub intervals: Vec<Interval>,
    /// Dumps, in order.
    pub dumps: Vec<Dump>,
    /// Sum of the names of unique blocks, in hexadecimal.
    pub checksum: String,
    /// Blocks that passed the filter, and were new.
    pub false_positives: u64,
    /// Blocks that did not pass.
    pub negatives: u64,
}

/// Blocks without a verdict that were read together.
#[derive(Debug, Default)]
struct Held {
    /// Number of the first.
    first: u64,
    dump: usize,
    /// As stored, one after the other, and where each ends.
    stored: Vec<u8>,
    ends: Vec<usize>,
    plain_lens: Vec<u32>,
    /// Those with a verdict.
    resolved: usize,
}

impl Held {
    fn stored(&self, index: usize) -> Option<&[u8]> {
        let start = index.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied())?;
        self.stored.get(start..*self.ends.get(index)?)
    }
}

/// The dumps as a source of chunks, with all that happens to their bytes.
struct Blocks<'a> {
    job: &'a PipelineJob,
    compressor: Compressor,
    hash: Ready,
    cipher: Ready,
    /// The dump that is read, and how much of it may still be.
    current: Option<(File, u64)>,
    next_dump: usize,
    drawn: VecDeque<Drawn>,
    held: VecDeque<Held>,
    held_bytes: usize,
    /// Number of the next block that is read.
    next: u64,
    data: Vec<u8>,
    metadata: Vec<u8>,
    dumps: Vec<Dump>,
    intervals: Vec<Interval>,
    plain: Vec<u8>,
}

impl<'a> Blocks<'a> {
    fn new(job: &'a PipelineJob) -> Result<Self> {
        Ok(Self {
            job,
            compressor: Compressor::new(job.compressor)?,
            hash: Ready::new(job.hash)?,
            cipher: Ready::new(job.cipher)?,
            current: None,
            next_dump: 0,
            drawn: VecDeque::new(),
            held: VecDeque::new(),
            held_bytes: 0,
            next: 0,
            data: Vec::with_capacity(SEGMENT_BYTES + BATCH_BYTES),
            metadata: Vec::with_capacity(SEGMENT_BYTES + BATCH_BYTES),
            dumps: vec![Dump::default(); job.dumps.len()],
            intervals: Vec::new(),
            plain: Vec::with_capacity(BATCH_BYTES),
        })
    }

    /// Returns the interval that a block belongs to.
    fn interval(&mut self, number: u64) -> &mut Interval {
        let index = number / (self.job.interval_bytes / u64::from(self.job.block));
        let index = usize::try_from(index).expect("as many intervals as there are fit into memory");
        if self.intervals.len() <= index {
            self.intervals.resize(index + 1, Interval::default());
        }
        &mut self.intervals[index]
    }

    /// Reads the next bytes; returns false after the last dump.
    fn read(&mut self) -> Result<bool> {
        loop {
            if self.current.is_none() {
                let Some(path) = self.job.dumps.get(self.next_dump) else { return Ok(false) };
                let most = if self.job.bytes_of_each == 0 { u64::MAX } else { self.job.bytes_of_each };
                self.current = Some((open(path).with_context(|| path.display().to_string())?, most));
                self.next_dump += 1;
            }
            let Some((file, left)) = &mut self.current else { continue };
            self.plain.clear();
            let path = &self.job.dumps[self.next_dump - 1];
            let wanted = (BATCH_BYTES as u64).min(*left);
            let read = file.by_ref().take(wanted).read_to_end(&mut self.plain);
            *left -= read.with_context(|| path.display().to_string())? as u64;
            if !self.plain.is_empty() {
                return Ok(true);
            }
            self.current = None;
        }
    }

    /// Compresses and names what was read.
    fn batch(&mut self) -> Result<()> {
        let block = self.job.block as usize;
        let mut held = Held { first: self.next, dump: self.next_dump - 1, ..Held::default() };
        let mut out = Vec::new();
        let start = processor_time();
        for plain in self.plain.chunks(block) {
            self.compressor.compress(plain, &mut out)?;
            // What does not get shorter is sent as it is.
            held.stored.extend_from_slice(if out.len() < plain.len() { &out } else { plain });
            held.ends.push(held.stored.len());
        }
        let compress = processor_time_since(start);
        let start = processor_time();
        let mut names = Vec::with_capacity(held.ends.len());
        let mut from = 0;
        for (plain, end) in self.plain.chunks_mut(block).zip(&held.ends) {
            names.push(match self.job.named {
                Named::Plain => self.hash.apply(plain)?,
                Named::Compressed => self.hash.apply(&mut held.stored[from..*end])?,
            });
            from = *end;
        }
        let hash = processor_time_since(start);
        let dump = &mut self.dumps[held.dump];
        for (plain, name) in self.plain.chunks(block).zip(names) {
            let mut fingerprint = [0; 32];
            let cut = name.get(..NAME_BYTES).context("a name of 160 bits")?;
            fingerprint[..NAME_BYTES].copy_from_slice(cut);
            let len = u32::try_from(plain.len()).expect("a block");
            held.plain_lens.push(len);
            let chunk = Chunk { fingerprint: Fingerprint(fingerprint), len };
            self.drawn.push_back(Drawn { chunk, is_new: None, begins_file: false });
            dump.bytes += u64::from(len);
            dump.blocks += 1;
            dump.zero_blocks += u64::from(plain.iter().all(|byte| *byte == 0));
        }
        let interval = self.interval(held.first);
        interval.compress += compress.as_secs_f64();
        interval.hash += hash.as_secs_f64();
        self.next += held.ends.len() as u64;
        self.held_bytes += held.stored.len();
        ensure!(
            self.held_bytes <= HELD_BYTES_MAX,
            "more than {HELD_BYTES_MAX} bytes of blocks wait for a verdict: a schedule that looks blocks up when they arrive is needed"
        );
        self.held.push_back(held);
        Ok(())
    }

    /// Encrypts what is in segments; returns the time.
    fn encrypt(&mut self, bytes_min: usize) -> Result<Duration> {
        let mut taken = Duration::ZERO;
        for segment in [&mut self.data, &mut self.metadata] {
            if bytes_min <= segment.len() {
                let start = processor_time();
                segment.resize(segment.len().next_multiple_of(16), 0);
                std::hint::black_box(self.cipher.apply(segment)?);
                taken += processor_time_since(start);
                segment.clear();
            }
        }
        Ok(taken)
    }
}

impl Source for Blocks<'_> {
    fn draw(&mut self) -> Result<Option<Drawn>> {
        if self.drawn.is_empty() && self.read()? {
            self.batch()?;
        }
        Ok(self.drawn.pop_front())
    }

    fn resolved(&mut self, Sequence(number): Sequence, is_unique: bool) -> Result<()> {
        let at = self.held.partition_point(|held| held.first <= number).checked_sub(1);
        let held = at.and_then(|at| self.held.get_mut(at)).context("a verdict on a block that is not held")?;
        let index = usize::try_from(number - held.first)?;
        let stored = held.stored(index).context("a verdict on a block that is not held")?;
        let dump = &mut self.dumps[held.dump];
        if is_unique {
            dump.unique += 1;
            dump.unique_bytes += u64::from(held.plain_lens.get(index).copied().unwrap_or_default());
            dump.stored_bytes += stored.len() as u64;
            self.data.extend_from_slice(stored);
        }
        dump.stored_bytes += METADATA_BYTES as u64;
        // As many bytes as the metadata would have.
        self.metadata.extend_from_slice(&[number.to_le_bytes(); 4].as_flattened()[..METADATA_BYTES]);
        held.resolved += 1;
        while let Some(first) = self.held.pop_front_if(|held| held.resolved == held.ends.len()) {
            self.held_bytes -= first.stored.len();
        }
        let taken = self.encrypt(SEGMENT_BYTES)?;
        // The block that fills a segment pays for it.
        let interval = self.interval(number);
        interval.encrypt += taken.as_secs_f64();
        interval.unique += u64::from(is_unique);
        Ok(())
    }
}

impl PipelineJob {
    /// Refuses what cannot be done.
    pub fn check(&self) -> Result<()> {
        let batch = BATCH_BYTES as u64;
        let fits = self.block.is_power_of_two() && (512..=BLOCK_BYTES_MAX).contains(&(self.block as usize));
        ensure!(fits, "block: 512 to {BLOCK_BYTES_MAX} bytes, a power of two, not {}", self.block);
        let is_whole = self.interval_bytes != 0 && self.interval_bytes.is_multiple_of(batch);
        ensure!(is_whole, "interval: a multiple of {batch} bytes, not {}", self.interval_bytes);
        ensure!(self.hash.is_hash() && !self.cipher.is_hash(), "a hash names, and a cipher encrypts");
        ensure!(!self.dumps.is_empty(), "there is no dump");
        Ok(())
    }

    /// Takes the dumps through the pipeline in this process.
    pub fn perform(&self, monitor: &dyn Monitor) -> Result<PipelineDone> {
        self.check()?;
        let point = Preset::named(&self.preset)?.with(&self.set)?;
        let device = Device::named(&self.device)?;
        let setting = Setting {
            point: &point,
            scale: 1.0,
            device: &device,
            scratch: &self.scratch,
            interval: Some(self.interval_bytes / u64::from(self.block)),
            monitor,
        };
        let mut blocks = Blocks::new(self)?;
        let measured = run(&setting, &mut blocks, u64::MAX)?;
        let taken = blocks.encrypt(1)?;
        if let Some(last) = blocks.intervals.last_mut() {
            last.encrypt += taken.as_secs_f64();
        }
        for (interval, outcome) in blocks.intervals.iter_mut().zip(&measured.intervals) {
            let counters = &outcome.counters;
            interval.bytes = outcome.bytes;
            interval.blocks = outcome.chunks;
            interval.identify = outcome.time.as_secs_f64();
            interval.hits = counters.prelookup_hits + counters.postlookup_hits;
            interval.lookups = counters.lookups;
        }
        let counters = &measured.outcome.counters;
        Ok(PipelineDone {
            intervals: blocks.intervals,
            dumps: blocks.dumps,
            checksum: format!("{:032x}", measured.unique.checksum),
            false_positives: counters.filter_false_positives,
            negatives: counters.filter_negatives,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use onefold_engine::monitor::Silent;

    use super::*;
    use crate::coprocessor::kernel::noise;

    /// Three dumps: half noise and half zeros; the same with a quarter of other noise, and a tail; the second one again.
    fn job(dir: &std::path::Path) -> PipelineJob {
        let mut first = noise(2 << 20);
        first.resize(4 << 20, 0);
        let mut second = first.clone();
        for byte in &mut second[..1 << 20] {
            *byte ^= 0x33;
        }
        second.extend_from_slice(b"the end");
        for (name, bytes) in [("dump-1", &first), ("dump-2", &second), ("dump-3", &second)] {
            std::fs::write(dir.join(name), bytes).unwrap();
        }
        PipelineJob {
            dumps: ["dump-1", "dump-2", "dump-3"].map(|name| dir.join(name)).to_vec(),
            bytes_of_each: 0,
            block: 4096,
            compressor: Codec::Lzjb,
            named: Named::Compressed,
            hash: Kernel::Sha1,
            cipher: Kernel::Aes128Cbc,
            preset: "dedupcdp".to_owned(),
            set: Vec::new(),
            device: "hdd".to_owned(),
            scratch: dir.to_path_buf(),
            interval_bytes: 2 << 20,
        }
    }

    #[test]
    fn new_blocks_are_those_of_a_set_and_all_bytes_are_counted_once() {
        let dir = tempfile::tempdir().unwrap();
        let job = job(dir.path());
        let done = job.perform(&Silent).unwrap();
        let mut known = HashSet::new();
        for (path, dump) in job.dumps.iter().zip(&done.dumps) {
            let bytes = std::fs::read(path).unwrap();
            let new: Vec<_> = bytes.chunks(4096).filter(|block| known.insert(block.to_vec())).collect();
            let unique_bytes = new.iter().map(|block| block.len() as u64).sum::<u64>();
            assert_eq!((dump.unique, dump.unique_bytes), (new.len() as u64, unique_bytes));
            assert_eq!((dump.bytes, dump.zero_blocks), (bytes.len() as u64, 512));
            let metadata = dump.blocks * METADATA_BYTES as u64;
            // Noise stays as long as it is; a block of zeros becomes short.
            let zeros: u64 = new.iter().filter(|block| block[0] == 0 && block[4095] == 0).count() as u64;
            assert!(
                dump.stored_bytes <= unique_bytes + metadata
                    && unique_bytes - 4096 * zeros <= dump.stored_bytes - metadata
            );
        }
        let mut sum = Interval::default();
        done.intervals.iter().for_each(|interval| sum.add(interval));
        let blocks: u64 = done.dumps.iter().map(|dump| dump.blocks).sum();
        assert_eq!((sum.blocks, sum.unique), (blocks, known.len() as u64));
        assert_eq!(done.intervals.len(), 7, "of 12 MiB and two tails");
        assert!(done.intervals.iter().all(|interval| 0.0 < interval.hash && 0.0 < interval.identify), "{done:?}");
        assert!(0.0 < sum.encrypt && 0.0 < sum.compress, "{sum:?}");
        let entries = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(entries, 3, "nothing is left of the index");
    }

    #[test]
    fn whatever_is_named_the_same_blocks_are_new() {
        let dir = tempfile::tempdir().unwrap();
        let compressed = job(dir.path());
        let dumps = |job: &PipelineJob| job.perform(&Silent).unwrap().dumps;
        let plain = PipelineJob { named: Named::Plain, ..compressed.clone() };
        assert_eq!(dumps(&compressed), dumps(&plain));
        let off = dumps(&PipelineJob { compressor: Codec::Off, ..plain.clone() });
        assert_eq!(off[1].unique, dumps(&plain)[1].unique);
        assert_eq!(off[0].stored_bytes, off[0].unique_bytes + 28 * off[0].blocks);
        let start = dumps(&PipelineJob { bytes_of_each: 1 << 20, ..plain });
        assert_eq!(start.iter().map(|dump| dump.bytes).collect::<Vec<_>>(), [1 << 20; 3]);
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let sound = job(dir.path());
        let refused = |job: PipelineJob| format!("{:#}", job.perform(&Silent).unwrap_err());
        assert!(refused(PipelineJob { block: 4095, ..sound.clone() }).starts_with("block: 512 to"));
        assert!(refused(PipelineJob { interval_bytes: 5, ..sound.clone() }).starts_with("interval: a multiple"));
        assert!(refused(PipelineJob { hash: Kernel::Aes128Cbc, ..sound.clone() }).starts_with("a hash names"));
        assert!(refused(PipelineJob { dumps: Vec::new(), ..sound.clone() }).starts_with("there is no dump"));
        let missing = dir.path().join("nothing");
        assert!(refused(PipelineJob { dumps: vec![missing], ..sound }).contains("nothing: No such file"));
    }
}
