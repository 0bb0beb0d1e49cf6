//! Reads containers: either their directories, or every byte.

use std::sync::Arc;

use onefold_accel::device::Pool;

use crate::check::compared::Compared;
use crate::check::findings::problem_of;
use crate::check::loading::Loading;
use crate::codec::len_u32;
use crate::compress::Compressor;
use crate::container::ContainerReader;
use crate::container::reader::{OpenedRegion, inspect};
use crate::container::trailer::{CHECKSUM_OFFSET, TRAILER_LEN, Trailer};
use crate::error::{Error, Result};
use crate::object::names::ContainerName;
use crate::pipeline::Task;
use crate::store::Store;
use crate::store::base_reader::BaseReader;
use crate::types::{Chunk, ChunkKind, RegionId};

/// A chunk as a container holds it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundChunk {
    /// The chunk; its length is that of its contents, without hints.
    pub(super) chunk: Chunk,
    /// True if its bytes match its fingerprint, as far as they were read.
    pub(super) is_sound: bool,
}

/// Contents of a container, and its damage.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// Bytes that the object has.
    pub(super) len: u64,
    /// Its damage, in sentences.
    pub(super) problems: Vec<String>,
    /// Its chunks as far as they can be named.
    pub(super) chunks: Vec<FoundChunk>,
    /// Chunks whose bytes were read and compared with their names.
    pub(super) chunks_read: u64,
    /// Regions that were opened for that, those aside that are kept as bases.
    pub(super) regions_read: u64,
    /// Bytes read of the object, where all were.
    pub(super) bytes_read: u64,
    /// True if the fingerprints of some chunks are lost.
    pub(super) is_incomplete: bool,
    /// How many of the problems say that a base of a region is lost, or went with the container in a collection.
    pub(super) bases_lacked: usize,
}

/// A container that was looked at.
#[derive(Debug)]
pub(super) struct Examined {
    /// Its name.
    pub(super) name: ContainerName,
    /// `Err`: nothing in it can be read.
    pub(super) contents: Result<Contents>,
}

/// A container whose regions were opened.
#[derive(Debug)]
pub(super) struct Opened {
    /// The container, as far as it was compared.
    pub(super) examined: Examined,
    /// Chunks that were not compared.
    pub(super) loading: Loading,
}

/// Reads the directories of a container.
#[derive(Debug)]
pub(super) struct Inspect {
    /// The repository.
    pub(super) store: Store,
    /// Finds the bases of regions.
    pub(super) bases: BaseReader,
}

impl Task for Inspect {
    type In = ContainerName;
    type Out = Examined;

    fn run(&self, name: ContainerName) -> Examined {
        Examined { name, contents: inspect_one(&self.store, &self.bases, &name) }
    }
}

fn inspect_one(store: &Store, bases: &BaseReader, name: &ContainerName) -> Result<Contents> {
    let len = store.container_len(name)?;
    let whole = store.inspect_container(name)?;
    let problems = whole.findings.iter().map(|finding| without_object(name, finding)).collect();
    let mut contents = Contents { len, problems, ..Contents::default() };
    let is_named = whole.reader.directory.chunks.iter().all(|chunk| chunk.fingerprint.is_some());
    // Chunks that the front directory does not name any more are named by what they hold.
    let reader = if is_named { whole.reader } else { store.open_container(name)? };
    contents.list(&reader, bases)?;
    Ok(contents)
}

/// Reads all bytes of a container.
#[derive(Debug)]
pub(super) struct ReadWhole {
    /// The repository.
    pub(super) store: Store,
}

impl Task for ReadWhole {
    type In = ContainerName;
    type Out = (ContainerName, Result<Vec<u8>>);

    fn run(&self, name: ContainerName) -> Self::Out {
        (name, self.store.read_container(&name))
    }
}

/// Checks all bytes of a container against each other and against its name.
#[derive(Debug)]
pub(super) struct Verify {
    /// The repository.
    pub(super) store: Store,
    /// Buffers of a device that names chunks.
    pub(super) pool: Option<Pool>,
    /// Reads the bases of regions.
    pub(super) bases: BaseReader,
    /// Regions that were right when they were read as bases; `None` in a repository without bases.
    pub(super) compared: Option<Arc<Compared>>,
}

impl Task for Verify {
    type In = (ContainerName, Result<Vec<u8>>);
    type Out = Opened;

    fn run(&self, (name, bytes): Self::In) -> Opened {
        let mut loading = Loading::new(self.pool.clone());
        let contents = bytes.and_then(|bytes| verify(self, &name, &bytes, &mut loading));
        Opened { examined: Examined { name, contents }, loading }
    }
}

fn verify(task: &Verify, name: &ContainerName, bytes: &[u8], loading: &mut Loading) -> Result<Contents> {
    let store = &task.store;
    let mut problems = Vec::new();
    if blake3::hash(bytes) != name.checksum {
        problems.push("damaged: its bytes are not those that it was named after".to_owned());
    }
    let checksum_at = bytes.len().checked_sub(TRAILER_LEN - CHECKSUM_OFFSET);
    let split = checksum_at.and_then(|at| bytes.split_at_checked(at));
    let is_right = |(body, rest): (&[u8], &[u8])| rest.starts_with(blake3::hash(body).as_bytes());
    if !split.is_some_and(is_right) {
        problems.push("damaged: its bytes are not those that its trailer was made for".to_owned());
    }
    let len = bytes.len() as u64;
    let limit = store.config.region_bytes_limit();
    let whole = match inspect(&store.keys, store.config.repository, *name, limit, (len, bytes, bytes)) {
        Ok(whole) => whole,
        Err(error) => {
            // The whole says that it is damage.
            let first = if let Error::Damaged { reason, .. } = &error { reason.clone() } else { problem_of(&error) };
            problems.insert(0, first);
            return Err(Error::damaged(store.display(name), problems.join("; ")));
        }
    };
    problems.extend(whole.findings.iter().map(|finding| without_object(name, finding)));
    let mut contents = Contents { len, problems, bytes_read: len, ..Contents::default() };
    if !is_padding_empty(&whole.reader, bytes) {
        contents.problems.push("damaged: its padding is not empty".to_owned());
    }
    // These are the bytes from which regions were read before, in parts.
    let compared = task.compared.as_deref().filter(|_| contents.problems.is_empty());
    let reading = Reading {
        bases: &task.bases,
        store,
        reader: &whole.reader,
        bytes,
        // Regions with bases are likely bases of later ones.
        is_shared: compared.is_some() && whole.reader.directory.regions.iter().any(|region| !region.bases.is_empty()),
        compared,
    };
    let mut buffers = Buffers::default();
    for region in 0..u32::try_from(whole.reader.directory.regions.len()).unwrap_or(0) {
        contents.verify_region(&reading, region, &mut buffers, loading)?;
    }
    Ok(contents)
}

/// A container that is read whole.
struct Reading<'a> {
    store: &'a Store,
    bases: &'a BaseReader,
    reader: &'a ContainerReader,
    bytes: &'a [u8],
    /// Regions that were compared as bases of others, if the container's bytes are right.
    compared: Option<&'a Compared>,
    /// True if its regions are kept for others that depend on them.
    is_shared: bool,
}

/// Buffers for opening a region, used again for the next.
#[derive(Default)]
struct Buffers {
    sealed: Vec<u8>,
    plain: Vec<u8>,
    compressor: Compressor,
}

impl Reading<'_> {
    fn is_compared(&self, region: u32) -> bool {
        self.compared.is_some_and(|compared| compared.contains(&self.reader.name, region))
    }

    /// Opens a region. The outer error is that of a base.
    fn open<'a>(&self, region: u32, buffers: &'a mut Buffers) -> Result<Result<OpenedRegion<'a>>> {
        let id = RegionId { container: self.reader.name.id, region };
        if self.is_shared
            && let Some(plain) = self.bases.held(id)
        {
            return Ok(Ok(OpenedRegion::Shared(plain)));
        }
        let prefix = self.bases.prefix_of(self.reader, region)?;
        let Buffers { sealed, plain, compressor } = buffers;
        sealed.clear();
        let stored = self.reader.region_range(region).and_then(|(offset, len)| {
            let start = usize::try_from(offset).ok()?;
            self.bytes.get(start..start.checked_add(len as usize)?)
        });
        sealed.extend_from_slice(stored.unwrap_or_default());
        if self.is_shared {
            let open = |compressor: &mut Compressor| {
                let mut plain = Vec::new();
                self.reader.open_region(region, &prefix, sealed, compressor, &mut plain)?;
                Ok(plain)
            };
            return Ok(self.bases.share(self.reader, region, open).map(OpenedRegion::Shared));
        }
        let opened = self.reader.open_region(region, &prefix, sealed, compressor, plain);
        Ok(opened.map(|()| OpenedRegion::Own(plain)))
    }
}

impl Contents {
    /// Lists what a directory names. The chunks of a region are lost if a base of it is not there. Fails if a base cannot be
    /// looked for.
    fn list(&mut self, reader: &ContainerReader, bases: &BaseReader) -> Result<()> {
        for region in 0..len_u32(reader.directory.regions.len()) {
            let checked = bases.check_bases(reader, region);
            let has_bases = checked.is_ok();
            if let Err(error) = checked {
                self.lack_base(error)?;
            }
            for chunk in reader.directory.chunks.get(reader.chunks_of(region)).unwrap_or_default() {
                match chunk.fingerprint {
                    Some(fingerprint) => {
                        let len = chunk.len.saturating_sub(chunk.hints_len);
                        self.chunks.push(FoundChunk { chunk: Chunk { fingerprint, len }, is_sound: has_bases });
                    }
                    None => self.is_incomplete = true,
                }
            }
        }
        Ok(())
    }

    /// Notes that a region lacks a base; fails if that is not known.
    fn lack_base(&mut self, error: Error) -> Result<()> {
        if !error.is_loss() {
            return Err(error);
        }
        self.bases_lacked += 1;
        self.problems.push(problem_of(&error));
        Ok(())
    }

    /// Notes that a chunk is not what its name says: the chunk with this index in `chunks`, and its number in the container. The problem takes a
    /// position among the others.
    pub(super) fn condemn(&mut self, index: usize, number: usize, position: usize) {
        if let Some(chunk) = self.chunks.get_mut(index) {
            chunk.is_sound = false;
        }
        self.problems.insert(position.min(self.problems.len()), not_its_name(number));
    }

    /// Lists the chunks of a region that was compared.
    fn list_compared(&mut self, reader: &ContainerReader, region: u32) {
        for chunk in reader.directory.chunks.get(reader.chunks_of(region)).unwrap_or_default() {
            if let Some(fingerprint) = chunk.fingerprint {
                let len = chunk.len.saturating_sub(chunk.hints_len);
                self.chunks.push(FoundChunk { chunk: Chunk { fingerprint, len }, is_sound: true });
                self.chunks_read += 1;
            }
        }
    }

    /// Opens a region and compares every chunk with its name, unless that was done when it was read as a base.
    fn verify_region(
        &mut self,
        reading: &Reading<'_>,
        region: u32,
        buffers: &mut Buffers,
        loading: &mut Loading,
    ) -> Result<()> {
        let Reading { store, reader, .. } = *reading;
        if reading.is_compared(region) {
            self.list_compared(reader, region);
            return Ok(());
        }
        let opened = match reading.open(region, buffers) {
            Ok(opened) => {
                self.problems.extend(opened.as_ref().err().map(problem_of));
                opened.ok()
            }
            Err(error) => {
                self.lack_base(error)?;
                None
            }
        };
        // One that was opened for others, too.
        if reading.is_compared(region) {
            self.list_compared(reader, region);
            return Ok(());
        }
        let is_open = opened.is_some();
        self.regions_read += u64::from(matches!(opened, Some(OpenedRegion::Own(_))));
        let mut rest = opened.as_ref().map(OpenedRegion::plain).unwrap_or_default();
        for number in reader.chunks_of(region) {
            let Some(chunk) = reader.directory.chunks.get(number) else { continue };
            let len = chunk.len.saturating_sub(chunk.hints_len);
            let taken = rest.split_at_checked(chunk.len as usize);
            if let (Some((stored, tail)), Some(expected), ChunkKind::Data) = (taken, chunk.fingerprint, chunk.kind)
                && let Some(bytes) = stored.get(..len as usize)
                && loading.take(bytes, expected, (self.chunks.len(), number, self.problems.len()))
            {
                rest = tail;
                self.chunks_read += 1;
                self.chunks.push(FoundChunk { chunk: Chunk { fingerprint: expected, len }, is_sound: true });
                continue;
            }
            let found = taken.and_then(|(stored, tail)| {
                rest = tail;
                Some(store.keys.fingerprint(chunk.kind, stored.get(..len as usize)?))
            });
            self.chunks_read += u64::from(found.is_some());
            let is_sound = found.is_some() && (chunk.fingerprint.is_none() || chunk.fingerprint == found);
            if is_open && !is_sound {
                self.problems.push(not_its_name(number));
            }
            match chunk.fingerprint.or(found) {
                Some(fingerprint) => self.chunks.push(FoundChunk { chunk: Chunk { fingerprint, len }, is_sound }),
                None => self.is_incomplete = true,
            }
        }
        Ok(())
    }
}

fn not_its_name(number: usize) -> String {
    format!("damaged: chunk {number} is not what its name says")
}

/// Returns true if the bytes between the regions and the back directory are zero, as far as their position is known.
fn is_padding_empty(reader: &ContainerReader, bytes: &[u8]) -> bool {
    let trailer = bytes.len().checked_sub(TRAILER_LEN).and_then(|start| bytes.get(start..));
    let Some(Ok(trailer)) = trailer.map(Trailer::decode) else { return true };
    let start = usize::try_from(reader.regions_end()).unwrap_or(usize::MAX);
    let padding = bytes.get(start..trailer.back_offset as usize).unwrap_or_default();
    padding.iter().all(|byte| *byte == 0)
}

/// Returns a sentence of the container reader without the container's path, which the finding has already.
fn without_object(name: &ContainerName, finding: &str) -> String {
    let prefix = format!("{name}: ");
    finding.strip_prefix(&prefix).unwrap_or(finding).to_owned()
}
