//! Compressed regions, as a repository would have them, and the cache through which bases are opened.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use onefold_engine::Error;
use onefold_engine::compress::{Algorithm, Compression, Compressor};
use onefold_engine::container::compressor_of;
use onefold_engine::lru::Lru;
use onefold_engine::object::FormatVersion;
use onefold_engine::similarity::choose::Choice;
use onefold_engine::similarity::features::RegionFeatures;
use onefold_engine::similarity::regions::RegionNumber;
use onefold_engine::similarity::search::OpenRegions;
use onefold_engine::types::RegionId;

use super::extract::Extract;
use super::prefix;

/// Bytes of opened regions that are kept: 64 of 512 KiB.
const CACHE_BYTES: usize = 32 << 20;
/// Bytes of features that are kept: of 600 regions with 1,024 anchors.
const FEATURES_BYTES: usize = 8 << 20;

/// A compressed region.
#[derive(Debug)]
struct Region {
    offset: u64,
    len: u32,
    plain_len: u32,
    is_compressed: bool,
    choice: Choice,
    lens: Vec<u32>,
    hash: blake3::Hash,
}

/// Regions in a temporary file.
#[derive(Debug)]
pub(super) struct Stored {
    file: File,
    end: u64,
    level: i32,
    compressor: Compressor,
    regions: Vec<Region>,
    opened: Lru<u32, Arc<Vec<u8>>>,
    features: Lru<u32, Arc<RegionFeatures>>,
    extract: Extract,
    loads: u64,
    decoded: u64,
}

impl Stored {
    pub(super) fn new(level: i32, scratch: &Path) -> Result<Self> {
        Ok(Self {
            file: tempfile::tempfile_in(scratch).with_context(|| format!("create a file in {}", scratch.display()))?,
            end: 0,
            level,
            compressor: compressor_of(FormatVersion::default()),
            regions: Vec::new(),
            opened: Lru::new(CACHE_BYTES),
            features: Lru::new(FEATURES_BYTES),
            extract: Extract::None,
            loads: 0,
            decoded: 0,
        })
    }

    /// Sets what computes the features of regions that are opened.
    pub(super) fn extract_with(&mut self, extract: &Extract) {
        if matches!(self.extract, Extract::None) {
            self.extract = extract.clone();
        }
    }

    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.regions.len()).expect("the engine numbers fewer regions")
    }

    /// Compresses a region; without a prefix as a repository does. Returns the plaintext if it does not shrink.
    pub(super) fn compress(&mut self, prefix: &[u8], plain: &[u8]) -> Result<Vec<u8>> {
        let mut frame = Vec::new();
        if prefix.is_empty() {
            let algorithm = self.compressor.compress(Compression::Zstd(self.level), plain, &mut frame);
            if algorithm == Algorithm::None {
                return Ok(plain.to_vec());
            }
        } else {
            prefix::compress(self.level, prefix, plain, &mut frame)?;
            frame.shrink_to_fit();
        }
        Ok(if frame.len() < plain.len() { frame } else { plain.to_vec() })
    }

    /// Stores a region.
    pub(super) fn push(
        &mut self,
        frame: &[u8],
        choice: Choice,
        lens: Vec<u32>,
        plain: &[u8],
        features: RegionFeatures,
    ) -> Result<()> {
        let bytes = features.memory_bytes();
        self.features.insert(self.count(), Arc::new(features), bytes);
        self.file.write_all(frame).context("write the temporary file of regions")?;
        let (len, plain_len) = (u32::try_from(frame.len())?, u32::try_from(plain.len())?);
        let (is_compressed, hash) = (len < plain_len, blake3::hash(plain));
        self.regions.push(Region { offset: self.end, len, plain_len, is_compressed, choice, lens, hash });
        self.end += frame.len() as u64;
        Ok(())
    }

    fn region(&self, number: u32) -> Result<&Region> {
        self.regions.get(number as usize).context("a region that was not stored")
    }

    /// Returns the plaintext of a region. The regions of its chain that are not in the cache are opened in ascending order: bases
    /// come before the regions that need them.
    fn open(&mut self, number: u32) -> Result<Arc<Vec<u8>>> {
        if let Some(plain) = self.opened.get(&number) {
            return Ok(plain);
        }
        let mut chain = BTreeSet::from([number]);
        let mut next = vec![number];
        while let Some(region) = next.pop() {
            for base in self.region(region)?.choice.regions() {
                if self.opened.get(&base.0).is_none() && chain.insert(base.0) {
                    next.push(base.0);
                }
            }
        }
        let mut plain = Arc::default();
        for region in chain {
            plain = self.decode(region)?;
        }
        Ok(plain)
    }

    /// Decompresses a region whose bases were opened. (One that the cache dropped meanwhile is opened again.)
    fn decode(&mut self, number: u32) -> Result<Arc<Vec<u8>>> {
        let Region { offset, len, plain_len, is_compressed, ref choice, .. } = *self.region(number)?;
        let mut frame = vec![0; len as usize];
        self.file.read_exact_at(&mut frame, offset).context("read the temporary file of regions")?;
        let mut plain = Vec::new();
        if is_compressed {
            let choice = choice.clone();
            let mut front = Vec::new();
            self.prefix(&choice, &mut front)?;
            prefix::decompress(&front, &frame, plain_len as usize, &mut plain)?;
        } else {
            plain = frame;
        }
        self.loads += 1;
        self.decoded += u64::from(plain_len);
        let plain = Arc::new(plain);
        self.opened.insert(number, Arc::clone(&plain), plain.len());
        Ok(plain)
    }

    /// Replaces `out` by what a choice puts in front.
    pub(super) fn prefix(&mut self, choice: &Choice, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        match choice {
            Choice::None => {}
            Choice::Regions(regions) => {
                for region in regions {
                    out.extend_from_slice(&self.open(region.0)?);
                }
            }
            Choice::Chunks(chunks) => {
                for chunk in chunks {
                    let plain = self.open(chunk.region.0)?;
                    let lens = &self.region(chunk.region.0)?.lens;
                    let before = lens.iter().take(usize::from(chunk.chunk)).sum::<u32>() as usize;
                    let len = lens.get(usize::from(chunk.chunk)).copied().unwrap_or_default() as usize;
                    out.extend_from_slice(plain.get(before..before + len).context("a chunk outside its region")?);
                }
            }
        }
        Ok(())
    }

    /// Returns how many of the features are among those of what a choice puts in front, at most.
    pub(super) fn covered(&mut self, choice: &Choice, features: &RegionFeatures) -> usize {
        let mut is_covered = vec![false; features.hashes().len()];
        for base in choice.regions() {
            let Some(base) = self.features.get(&base.0) else { continue };
            for (ours, _) in features.shared(&base) {
                if let Some(covered) = is_covered.get_mut(ours) {
                    *covered = true;
                }
            }
        }
        is_covered.into_iter().filter(|covered| *covered).count()
    }

    /// Opens a region and compares its hash.
    pub(super) fn verify(&mut self, number: RegionNumber) -> Result<()> {
        let plain = self.open(number.0)?;
        ensure!(blake3::hash(&plain) == self.region(number.0)?.hash, "region {} came back as another", number.0);
        Ok(())
    }

    /// Empties the cache, and starts to count again. Returns how many regions were decompressed so far.
    pub(super) fn begin_restore(&mut self) -> Result<u64> {
        self.file.flush()?;
        self.opened = Lru::new(CACHE_BYTES);
        self.decoded = 0;
        Ok(std::mem::take(&mut self.loads))
    }

    pub(super) fn decoded_bytes(&self) -> u64 {
        self.decoded
    }
}

impl OpenRegions for Stored {
    fn features(&mut self, number: RegionNumber, _: RegionId) -> onefold_engine::Result<Option<Arc<RegionFeatures>>> {
        if let Some(features) = self.features.get(&number.0) {
            return Ok(Some(features));
        }
        let opened = self.open(number.0).and_then(|plain| Ok((plain, self.region(number.0)?.lens.clone())));
        let (plain, lens) = opened.map_err(|error| Error::Invalid { reason: format!("{error:#}") })?;
        let features = Arc::new(self.extract.features(&plain, &lens));
        self.features.insert(number.0, Arc::clone(&features), features.memory_bytes());
        Ok(Some(features))
    }
}
