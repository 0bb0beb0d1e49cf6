//! Reading a container: which bytes to fetch, and what they mean.
//!
//! Does no I/O. Everything is checked before it is used, and a wrong byte anywhere is an error that names the container.

use std::sync::OnceLock;

use crate::codec::DecodeError;
use crate::compress::{Algorithm, Compressor};
use crate::container::bases::{Bases, ChunkRun};
use crate::container::directory::{Directory, Form, RegionEntry, RegionSample, Side, sealed_len};
use crate::container::seal::{Plaintext, padme, region_aad};
use crate::container::trailer::{TRAILER_LEN, Trailer};
use crate::crypto::{Domain, Keys, ObjectKey, TAG_LEN};
use crate::error::{Error, Result};
use crate::object::header::{FormatVersion, HEADER_LEN, Header, ObjectType};
use crate::object::names::{ContainerKind, ContainerName};
use crate::types::{ContainerId, Fingerprint, RepositoryId};

/// Where a chunk stands in its container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChunkPosition {
    /// Number of the region.
    pub(crate) region: u32,
    /// First byte in the region's plaintext.
    pub(crate) offset: u32,
    /// Bytes, hints included.
    pub(crate) len: u32,
    /// Bytes of hints at the end.
    pub(crate) hints_len: u32,
}

/// A container whose header and directory have been read and checked.
#[derive(Debug)]
pub struct ContainerReader {
    /// Its name.
    pub(crate) name: ContainerName,
    /// Its table of contents.
    pub directory: Directory,
    /// Version of its format.
    pub(crate) format: FormatVersion,
    header: [u8; HEADER_LEN],
    key: ObjectKey,
    /// Where each region begins, and where the last one ends.
    region_offsets: Vec<u64>,
    /// First chunk of each region.
    region_chunks: Vec<usize>,
    /// First byte of each chunk in its region's plaintext.
    chunk_offsets: Vec<u32>,
    /// Chunk numbers, sorted by fingerprint, once one is looked for; empty after a back directory.
    by_fingerprint: OnceLock<Vec<u32>>,
}

/// A region that is open.
#[derive(Debug)]
pub(crate) enum OpenedRegion<'a> {
    /// In buffers.
    Own(&'a [u8]),
    /// In a cache, too.
    Shared(Plaintext),
}

impl OpenedRegion<'_> {
    pub(crate) fn plain(&self) -> &[u8] {
        match self {
            Self::Own(plain) => plain,
            Self::Shared(plain) => plain,
        }
    }
}

/// A container's header, checked.
#[derive(Debug)]
pub(crate) struct OpenHeader {
    /// The header's bytes, which every seal in the container authenticates.
    pub(crate) bytes: [u8; HEADER_LEN],
    /// Bytes of the sealed front directory that follows.
    pub(crate) front_len: u32,
    /// Version of the container's format.
    pub(crate) format: FormatVersion,
    key: ObjectKey,
}

/// Checks a container's header: that it is this repository's, under its own name, and sealed with its key.
pub(crate) fn open_header(
    keys: &Keys,
    repository: RepositoryId,
    name: &ContainerName,
    bytes: &[u8],
) -> Result<OpenHeader> {
    let object = name.to_string();
    let Some(bytes) = bytes.first_chunk::<HEADER_LEN>() else {
        return Err(Error::damaged(object, "ends inside its header"));
    };
    let header = Header::decode(&object, bytes)?;
    let expected = match name.kind {
        ContainerKind::Data => ObjectType::DataContainer,
        ContainerKind::Metadata => ObjectType::MetadataContainer,
    };
    if header.object_type != expected {
        return Err(Error::damaged(object, format!("is a {:?}, not a {expected:?}", header.object_type)));
    }
    if header.repository != repository {
        return Err(Error::damaged(object, "belongs to another repository"));
    }
    if (header.session, header.ordinal) != (name.id.session, name.id.ordinal) {
        let found = ContainerId { session: header.session, ordinal: header.ordinal };
        return Err(Error::damaged(object, format!("stands under a wrong name; it is container {found}")));
    }
    let key = header.key(&object, keys)?;
    Ok(OpenHeader { bytes: *bytes, front_len: header.sealed_len, format: header.format, key })
}

impl ContainerReader {
    /// Opens one of the directories. `sealed` is exactly the sealed directory.
    pub(crate) fn open(
        name: ContainerName,
        header: OpenHeader,
        side: Side,
        sealed: &[u8],
        region_bytes_limit: u32,
    ) -> Result<Self> {
        let object = || name.to_string();
        let mut sealed = sealed.to_vec();
        let domain = match side {
            Side::Front => Domain::FrontDirectory,
            Side::Back => Domain::BackDirectory,
        };
        let Ok(plain) = header.key.open(domain, 0, &header.bytes, &mut sealed) else {
            return Err(Error::damaged(object(), format!("its {side:?} directory does not open")));
        };
        let form = Form { format: header.format, kind: name.kind, side };
        let directory =
            Directory::decode(plain, form, region_bytes_limit).map_err(|DecodeError { offset, reason }| {
                Error::damaged(object(), format!("its {side:?} directory: byte {offset}: {reason}"))
            })?;
        // A base is durable before a region that needs it, so that it lies in an earlier container.
        let is_own = |region: &RegionEntry| region.bases.iter().any(|base| base.container == name.id);
        if let Some(number) = directory.regions.iter().position(is_own) {
            let reason = format!("region {number}: names a region of its own container as a base");
            return Err(Error::damaged(object(), reason));
        }
        Ok(Self::index(name, header, directory))
    }

    fn index(name: ContainerName, header: OpenHeader, directory: Directory) -> Self {
        let mut offset = HEADER_LEN as u64 + u64::from(header.front_len);
        let mut chunk = 0;
        let mut region_offsets = vec![offset];
        let mut region_chunks = vec![chunk];
        let mut chunk_offsets = Vec::with_capacity(directory.chunks.len());
        for region in &directory.regions {
            offset += u64::from(region.sealed_len);
            let first = chunk;
            chunk += region.chunk_count as usize;
            region_offsets.push(offset);
            region_chunks.push(chunk);
            // The chunks of a region add up to its plaintext, whose length is 32 bits: the decoder has checked that.
            chunk_offsets.extend(directory.chunks.get(first..chunk).unwrap_or_default().iter().scan(
                0,
                |end, chunk| {
                    let start: u32 = *end;
                    *end = start.saturating_add(chunk.len);
                    Some(start)
                },
            ));
        }
        let OpenHeader { bytes, key, format, .. } = header;
        let (header, by_fingerprint) = (bytes, OnceLock::new());
        Self { name, directory, format, header, key, region_offsets, region_chunks, chunk_offsets, by_fingerprint }
    }

    /// Names the chunks of a container that was opened by its back directory, in order.
    pub(crate) fn name_chunks(&mut self, fingerprints: &[Option<Fingerprint>]) {
        for (chunk, fingerprint) in self.directory.chunks.iter_mut().zip(fingerprints) {
            chunk.fingerprint = *fingerprint;
        }
        self.by_fingerprint = OnceLock::new();
    }

    /// Returns chunk numbers in the order of their fingerprints.
    fn by_fingerprint(&self) -> &[u32] {
        self.by_fingerprint.get_or_init(|| {
            let chunks = &self.directory.chunks;
            let named = |number: u32| chunks.get(number as usize).and_then(|chunk| chunk.fingerprint);
            let count = u32::try_from(chunks.len()).unwrap_or(0);
            let mut numbers: Vec<u32> = (0..count).filter(|&number| named(number).is_some()).collect();
            numbers.sort_unstable_by_key(|&number| named(number));
            numbers
        })
    }

    /// Returns roughly how many bytes of memory the directory takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let chunks = self.directory.chunks.len() * (size_of::<crate::container::DirectoryChunk>() + 8);
        let samples = self.directory.samples.len() * size_of::<RegionSample>();
        chunks + samples + self.directory.regions.len() * (size_of::<RegionEntry>() + 32) + 512
    }

    /// Returns where a chunk stands.
    pub(crate) fn find(&self, fingerprint: &Fingerprint) -> Option<ChunkPosition> {
        self.position(self.number_of(fingerprint, 0)?)
    }

    /// Returns the number of a chunk. The chunk numbered `guess` is looked at first: what is referred to in the order
    /// in which it was stored is found without a search.
    pub(crate) fn number_of(&self, fingerprint: &Fingerprint, guess: usize) -> Option<usize> {
        let named = |number: usize| self.directory.chunks.get(number).and_then(|chunk| chunk.fingerprint);
        if named(guess) == Some(*fingerprint) {
            return Some(guess);
        }
        let key = |&number: &u32| named(number as usize);
        let numbers = self.by_fingerprint();
        let at = numbers.binary_search_by_key(&Some(*fingerprint), key).ok()?;
        numbers.get(at).map(|number| *number as usize)
    }

    /// Returns where the chunk with this number stands.
    pub(crate) fn position(&self, number: usize) -> Option<ChunkPosition> {
        let region = self.region_chunks.partition_point(|&first| first <= number).checked_sub(1)?;
        let offset = *self.chunk_offsets.get(number)?;
        let chunk = self.directory.chunks.get(number)?;
        Some(ChunkPosition { region: u32::try_from(region).ok()?, offset, len: chunk.len, hints_len: chunk.hints_len })
    }

    /// Returns the chunks of a region, by number.
    pub(crate) fn chunks_of(&self, region: u32) -> std::ops::Range<usize> {
        let region = region as usize;
        match (self.region_chunks.get(region), self.region_chunks.get(region + 1)) {
            (Some(&first), Some(&end)) => first..end,
            _ => 0..0,
        }
    }

    /// Returns which bytes of the container a region takes.
    pub(crate) fn region_range(&self, region: u32) -> Option<(u64, u32)> {
        let offset = *self.region_offsets.get(region as usize)?;
        Some((offset, self.directory.regions.get(region as usize)?.sealed_len))
    }

    /// Returns how long the container's file is, which follows from its directory.
    pub(crate) fn stored_len(&self) -> u64 {
        let back_len = self.back_len();
        let regions_end = usize::try_from(self.regions_end()).unwrap_or(usize::MAX);
        padme(regions_end.saturating_add(back_len + TRAILER_LEN)) as u64
    }

    /// Returns how long the sealed back directory is.
    pub(crate) fn back_len(&self) -> usize {
        sealed_len(Form { format: self.format, kind: self.name.kind, side: Side::Back }, self.directory.shape())
    }

    /// Returns how long the sealed front directory is, by the header: a back directory does not tell how many samples there are.
    fn front_len(&self) -> u64 {
        self.region_offsets.first().map_or(0, |start| start.saturating_sub(HEADER_LEN as u64))
    }

    /// Returns the bases of a region; those of a region that does not exist are none.
    pub(crate) fn bases_of(&self, region: u32) -> Bases {
        self.directory.regions.get(region as usize).map_or_else(Bases::default, |entry| entry.bases.clone())
    }

    /// Returns true if a region has bases.
    pub(crate) fn has_bases(&self) -> bool {
        self.directory.regions.iter().any(|region| region.bases.iter().next().is_some())
    }

    /// Fails if a base of its regions is in a container that is not there.
    pub(crate) fn expect_bases_in(&self, is_there: &dyn Fn(ContainerId) -> bool) -> Result<()> {
        for (number, region) in (0u32..).zip(&self.directory.regions) {
            if let Some(base) = region.bases.iter().find(|base| !is_there(base.container)) {
                let problem = format!("lacks a base: container {} is lost or damaged", base.container);
                return Err(self.wrong_region(number, &problem));
            }
        }
        Ok(())
    }

    /// Returns true if nothing may be compressed against its regions because they look like some: it has no samples though its format has, as
    /// `--no-similarity` stores containers, and a few short ones are.
    pub(crate) fn withholds_samples(&self) -> bool {
        self.format != FormatVersion::V1 && self.directory.samples.is_empty()
    }

    /// Returns the samples of a region, none after a back directory.
    pub(crate) fn samples_of(&self, region: u32) -> impl Iterator<Item = u64> + '_ {
        let start = self.directory.samples.partition_point(|sample| u32::from(sample.region) < region);
        let samples = self.directory.samples.get(start..).unwrap_or_default().iter();
        samples.take_while(move |sample| u32::from(sample.region) == region).map(|sample| sample.hash)
    }

    /// Returns which bytes of a region's plaintext some of its chunks take, or all of them; `None` if it lacks one.
    pub(crate) fn plain_range(&self, region: u32, run: Option<&ChunkRun>) -> Option<std::ops::Range<usize>> {
        let entry = self.directory.regions.get(region as usize)?;
        let Some(ChunkRun { first, count }) = run else { return Some(0..entry.plain_len as usize) };
        let numbers = self.chunks_of(region);
        let first = numbers.start + usize::from(*first);
        let last = first + usize::from(*count).checked_sub(1)?;
        if numbers.end <= last {
            return None;
        }
        let end = self.chunk_offsets.get(last)?.checked_add(self.directory.chunks.get(last)?.len)?;
        Some(*self.chunk_offsets.get(first)? as usize..end as usize)
    }

    /// Returns where the regions end.
    pub(crate) fn regions_end(&self) -> u64 {
        self.region_offsets.last().copied().unwrap_or(HEADER_LEN as u64)
    }

    /// Opens and decompresses a region's sealed bytes into `plain`, which is replaced. `sealed` is used up. The plaintexts of its
    /// bases, one after the other, are `prefix`.
    pub(crate) fn open_region(
        &self,
        region: u32,
        prefix: &[u8],
        sealed: &mut [u8],
        compressor: &mut Compressor,
        plain: &mut Vec<u8>,
    ) -> Result<()> {
        let (entry, stored) = self.unseal_region(region, sealed)?;
        let plain_len = entry.plain_len as usize;
        let is_whole = match entry.algorithm {
            Algorithm::ZstdBased => compressor.decompress_against(prefix, stored, plain_len, plain),
            algorithm => compressor.decompress(algorithm, stored, plain_len, plain),
        };
        if is_whole { Ok(()) } else { Err(self.wrong_region(region, "does not decompress")) }
    }

    /// Opens a region as [`ContainerReader::open_region`] does; what was not compressed is not copied. Returns the
    /// plaintext, which lies in `sealed` or in `scratch`.
    pub(crate) fn plaintext_of_region<'a>(
        &self,
        region: u32,
        prefix: &[u8],
        sealed: &'a mut [u8],
        compressor: &mut Compressor,
        scratch: &'a mut Vec<u8>,
    ) -> Result<&'a [u8]> {
        let (entry, stored) = self.unseal_region(region, sealed)?;
        let wrong = || self.wrong_region(region, "does not decompress");
        entry.plaintext(prefix, stored, compressor, scratch).ok_or_else(wrong)
    }

    /// Opens a region's sealed bytes in place. Returns what is stored, which may be compressed.
    pub(crate) fn unseal_region<'a>(&self, region: u32, sealed: &'a mut [u8]) -> Result<(&RegionEntry, &'a [u8])> {
        let wrong = |what| self.wrong_region(region, what);
        let entry = self.directory.regions.get(region as usize).ok_or_else(|| wrong("does not exist"))?;
        let aad = region_aad(self.format, &self.header, entry);
        let stored = self.key.open(Domain::Region, region.into(), &aad, sealed).map_err(|_| wrong("does not open"))?;
        Ok((entry, stored))
    }

    /// Returns the error of a region that is damaged.
    pub(crate) fn wrong_region(&self, region: u32, what: &str) -> Error {
        Error::damaged(self.name, format!("region {region}: {what}"))
    }
}

/// A container read whole: every part of it checked against every other.
#[derive(Debug)]
pub(crate) struct WholeContainer {
    /// The container by its front directory, or by its back directory if the front does not open.
    pub(crate) reader: ContainerReader,
    /// What is wrong with it, in sentences; empty for a sound container.
    pub(crate) findings: Vec<String>,
}

/// Checks all that can be checked of a container without reading its regions' contents. `head` holds the bytes from the
/// first on (header and front directory at least), `tail` the last bytes (trailer and back directory at least).
pub(crate) fn inspect(
    keys: &Keys,
    repository: RepositoryId,
    name: ContainerName,
    region_bytes_limit: u32,
    (len, head, tail): (u64, &[u8], &[u8]),
) -> Result<WholeContainer> {
    let object = name.to_string();
    let mut findings = Vec::new();
    let trailer = tail
        .len()
        .checked_sub(TRAILER_LEN)
        .and_then(|start| tail.get(start..))
        .map_or(Err("ends inside its trailer".to_owned()), |bytes| {
            Trailer::decode(bytes).map_err(|error| format!("trailer: {error}"))
        });
    let header = open_header(keys, repository, &name, head)?;
    let front_end = HEADER_LEN + header.front_len as usize;
    let front = head.get(HEADER_LEN..front_end).ok_or_else(|| Error::damaged(&object, "ends inside its directory"));
    let again = open_header(keys, repository, &name, head)?;
    let front = front.and_then(|sealed| ContainerReader::open(name, header, Side::Front, sealed, region_bytes_limit));
    let back = match &trailer {
        Ok(trailer) => {
            open_back(name, again, trailer, (len, tail), region_bytes_limit).map_err(|error| error.to_string())
        }
        Err(reason) => Err(format!("{object}: damaged: {reason}")),
    };
    let reader = match (front, back) {
        (Ok(front), Ok(back)) => {
            if !front.directory.agrees_with(&back.directory) {
                findings.push(format!("{object}: damaged: its two directories disagree"));
            }
            front
        }
        (Ok(front), Err(reason)) => {
            findings.push(reason);
            front
        }
        (Err(error), Ok(back)) => {
            findings.push(error.to_string());
            back
        }
        (Err(error), Err(_)) => return Err(error),
    };
    if let Ok(trailer) = trailer {
        findings.extend(layout_findings(&object, &trailer, &reader, len));
    }
    Ok(WholeContainer { reader, findings })
}

fn open_back(
    name: ContainerName,
    header: OpenHeader,
    trailer: &Trailer,
    (len, tail): (u64, &[u8]),
    region_bytes_limit: u32,
) -> Result<ContainerReader> {
    let wrong = |what: &str| Error::damaged(name, what);
    let tail_start = len.checked_sub(tail.len() as u64).ok_or_else(|| wrong("is shorter than its end"))?;
    let start = u64::from(trailer.back_offset).checked_sub(tail_start).and_then(|start| usize::try_from(start).ok());
    let start = start.ok_or_else(|| wrong("its back directory lies outside it"))?;
    let end =
        start.checked_add(trailer.back_len as usize).ok_or_else(|| wrong("its back directory lies outside it"))?;
    let sealed = tail.get(start..end).ok_or_else(|| wrong("its back directory lies outside it"))?;
    ContainerReader::open(name, header, Side::Back, sealed, region_bytes_limit)
}

fn layout_findings(object: &str, trailer: &Trailer, reader: &ContainerReader, len: u64) -> Vec<String> {
    let front_len = reader.front_len();
    let back_len = reader.back_len() as u64;
    let regions_len: u64 = reader.directory.regions.iter().map(|region| u64::from(region.sealed_len)).sum();
    let expected_back = len.checked_sub(TRAILER_LEN as u64 + back_len);
    let consistent = u64::from(trailer.front_len) == front_len
        && u64::from(trailer.back_len) == back_len
        && u64::from(trailer.regions_len) == regions_len
        && Some(u64::from(trailer.back_offset)) == expected_back
        && HEADER_LEN as u64 + front_len + regions_len <= u64::from(trailer.back_offset)
        && front_len > TAG_LEN as u64;
    if consistent { Vec::new() } else { vec![format!("{object}: damaged: its trailer contradicts its directory")] }
}
