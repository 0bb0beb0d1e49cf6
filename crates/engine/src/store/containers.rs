//! Finding and opening containers.

use std::collections::BTreeSet;
use std::path::Path;

use crate::compress::Compressor;
use crate::container::ContainerReader;
use crate::container::directory::{Side, sealed_len};
use crate::container::reader::{WholeContainer, inspect, open_header};
use crate::container::trailer::{TRAILER_LEN, Trailer};
use crate::error::{Error, Result};
use crate::io::{AlignedBuffer, BatchRead, DiskFile};
use crate::object::ObjectType;
use crate::object::header::HEADER_LEN;
use crate::object::names::{self, CONTAINERS, ContainerName, GC};
use crate::object::sealed::{SMALL_LEN_MAX, open_small};
use crate::snapshot::{CollectionBody, CollectionStep};
use crate::store::{Store, open_object};
use crate::types::{ContainerId, SessionId, parse_hex};

/// Bytes read from the front of a container in the hope that its directory ends there.
const HEAD_LEN: usize = 64 << 10;
/// Containers whose directories are read in one batch.
const DIRECTORY_BATCH: usize = 32;

/// A container with the length of its file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SizedContainer {
    /// Its name.
    pub(crate) name: ContainerName,
    /// Bytes of its file.
    pub(crate) len: u64,
}

/// The containers of a repository.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Sorted by session and number. About 60 bytes each in memory.
    pub containers: Vec<ContainerName>,
    /// Names that are no container's.
    pub(crate) unknown_files: Vec<String>,
}

impl Listing {
    /// Returns a container's name.
    pub(crate) fn find(&self, id: ContainerId) -> Option<&ContainerName> {
        let at = self.containers.binary_search_by_key(&id, |name| name.id).ok()?;
        self.containers.get(at)
    }
}

impl Store {
    /// Lists all containers.
    pub fn list_containers(&self) -> Result<Listing> {
        let mut listing = Listing::default();
        for directory in self.disk.list(Path::new(CONTAINERS))? {
            let Some(session) = SessionId::parse(&directory.name) else {
                listing.unknown_files.push(format!("{CONTAINERS}/{}", directory.name));
                continue;
            };
            for entry in self.disk.list(&names::container_dir(session))? {
                match ContainerName::parse(session, &entry.name) {
                    Some(name) => listing.containers.push(name),
                    None => listing.unknown_files.push(format!("{CONTAINERS}/{session}/{}", entry.name)),
                }
            }
        }
        listing.containers.sort_unstable();
        Ok(listing)
    }

    /// Lists all containers with the lengths of their files, sorted by session and number.
    pub(crate) fn list_sized_containers(&self) -> Result<Vec<SizedContainer>> {
        let mut containers = Vec::new();
        let directories = self.disk.list(Path::new(CONTAINERS))?;
        for session in directories.iter().filter_map(|directory| SessionId::parse(&directory.name)) {
            let entries = self.disk.list_sized(&names::container_dir(session))?;
            containers.extend(entries.into_iter().filter_map(|entry| {
                Some(SizedContainer { name: ContainerName::parse(session, &entry.name)?, len: entry.len })
            }));
        }
        containers.sort_unstable();
        Ok(containers)
    }

    /// Reads what running collections have condemned: these containers count as absent. Also returns the number of the
    /// newest collection.
    pub(crate) fn read_condemned(&self) -> Result<(u32, BTreeSet<ContainerId>)> {
        let (mut newest, mut condemned) = (0, BTreeSet::new());
        for entry in self.list_if_there(Path::new(GC))? {
            let Some(number) = parse_hex(&entry.name).map(u32::from_be_bytes) else { continue };
            newest = newest.max(number);
            let read = |step| self.read_collection(&entry.name, number, step);
            // A `done` that does not open proves nothing: what was condemned stays so.
            if matches!(read(CollectionStep::Done), Ok(Some(_))) {
                continue;
            }
            if let Some(body) = read(CollectionStep::Condemn)? {
                condemned.extend(body.containers);
            }
        }
        Ok((newest, condemned))
    }

    /// Reads a step of a collection; `None` where it was not taken. `name` is the collection's directory, which tells
    /// its number.
    pub(crate) fn read_collection(
        &self,
        name: &str,
        number: u32,
        step: CollectionStep,
    ) -> Result<Option<CollectionBody>> {
        let file = match step {
            CollectionStep::Begin => "begin",
            CollectionStep::Condemn => "condemn",
            CollectionStep::Final => "final",
            CollectionStep::Done => "done",
        };
        let path = Path::new(GC).join(name).join(file);
        if !self.disk.exists(&path)? {
            return Ok(None);
        }
        let object = self.display(&path);
        let bytes = self.read(&path, SMALL_LEN_MAX)?;
        let identity = (self.config.repository, None);
        let (header, body) = open_small(&self.keys, &object, ObjectType::Collection, identity, bytes)?;
        let body = CollectionBody::decode(&body).map_err(|error| error.of(&object))?;
        if body.step != step || header.ordinal != number {
            return Err(Error::damaged(object, "stands under the name of another step or collection"));
        }
        Ok(Some(body))
    }

    /// Opens a container by its front directory, or, where that is damaged, by its back directory and contents.
    pub fn open_container(&self, name: &ContainerName) -> Result<ContainerReader> {
        let mut opened = self.open_batch(std::slice::from_ref(name));
        opened.pop().unwrap_or_else(|| Err(Error::Missing { object: self.display(&name.path()) }))
    }

    /// Opens containers in the order of their names. Reads a batch of directories together when the first of them is wanted.
    pub(crate) fn open_containers<'a>(
        &'a self,
        names: &'a [ContainerName],
    ) -> impl Iterator<Item = (&'a ContainerName, Result<ContainerReader>)> {
        names.chunks(DIRECTORY_BATCH).flat_map(move |batch| batch.iter().zip(self.open_batch(batch)))
    }

    fn open_batch(&self, names: &[ContainerName]) -> Vec<Result<ContainerReader>> {
        let mut slots: Vec<Result<BatchRead>> = names.iter().map(|name| self.head_read(name)).collect();
        let mut reads: Vec<BatchRead> = Vec::with_capacity(names.len());
        let opened: Vec<Result<()>> = slots.drain(..).map(|slot| slot.map(|read| reads.push(read))).collect();
        self.disk.read_batch(&mut reads);
        let mut reads = reads.into_iter();
        names
            .iter()
            .zip(opened)
            .map(|(name, opened)| {
                opened?;
                let read = reads.next().ok_or_else(|| Error::Missing { object: self.display(&name.path()) })?;
                read.outcome?;
                self.open_front(name, &*read.file, &read.buffer).or_else(|error| self.open_by_contents(name, error))
            })
            .collect()
    }

    fn head_read(&self, name: &ContainerName) -> Result<BatchRead> {
        let file = self.open_file(name)?;
        let len = usize::try_from(file.len()?).unwrap_or(usize::MAX).min(HEAD_LEN);
        Ok(BatchRead { file, offset: 0, buffer: AlignedBuffer::new_zeroed(len), outcome: Ok(()) })
    }

    /// Opens a container's file.
    pub(crate) fn open_file(&self, name: &ContainerName) -> Result<std::sync::Arc<dyn DiskFile>> {
        open_object(&*self.disk, &name.path())
    }

    fn open_front(&self, name: &ContainerName, file: &dyn DiskFile, head: &[u8]) -> Result<ContainerReader> {
        let header = open_header(&self.keys, self.config.repository, name, head)?;
        let end = HEADER_LEN.saturating_add(header.front_len as usize);
        let limit = self.config.region_bytes_limit();
        if let Some(sealed) = head.get(HEADER_LEN..end) {
            return ContainerReader::open(*name, header, Side::Front, sealed, limit);
        }
        if u64::from(self.config.container_bytes) < end as u64 || file.len()? < end as u64 {
            return Err(Error::damaged(self.display(&name.path()), "its directory reaches past its end"));
        }
        let mut sealed = vec![0; header.front_len as usize];
        file.read_at(HEADER_LEN as u64, &mut sealed)?;
        ContainerReader::open(*name, header, Side::Front, &sealed, limit)
    }

    /// The front directory does not open: takes the back one and names the chunks by their contents.
    fn open_by_contents(&self, name: &ContainerName, error: Error) -> Result<ContainerReader> {
        let Ok(whole) = self.read_container(name) else { return Err(error) };
        let Ok(mut reader) = self.open_back(name, &whole) else { return Err(error) };
        let mut compressor = Compressor::default();
        let mut fingerprints = Vec::with_capacity(reader.directory.chunks.len());
        let mut plain = Vec::new();
        for region in 0..u32::try_from(reader.directory.regions.len()).unwrap_or(0) {
            let numbers = reader.chunks_of(region);
            let opened = open_region_of(&reader, region, &whole, &mut compressor, &mut plain);
            let mut rest = plain.as_slice();
            for number in numbers {
                let chunk = reader.directory.chunks.get(number);
                let taken = chunk.and_then(|chunk| Some((chunk, rest.split_at_checked(chunk.len as usize)?)));
                // A region that does not open leaves its chunks without names; the others are still found.
                let (true, Some((chunk, (bytes, tail)))) = (opened, taken) else {
                    fingerprints.push(None);
                    continue;
                };
                let content = bytes.len().checked_sub(chunk.hints_len as usize).and_then(|len| bytes.get(..len));
                fingerprints.push(content.map(|content| self.keys.fingerprint(chunk.kind, content)));
                rest = tail;
            }
        }
        reader.name_chunks(&fingerprints);
        Ok(reader)
    }

    fn open_back(&self, name: &ContainerName, whole: &[u8]) -> Result<ContainerReader> {
        let wrong = || Error::damaged(self.display(&name.path()), "its back directory lies outside it");
        let header = open_header(&self.keys, self.config.repository, name, whole)?;
        let trailer = whole.len().checked_sub(TRAILER_LEN).and_then(|start| whole.get(start..)).ok_or_else(wrong)?;
        let trailer = Trailer::decode(trailer).map_err(|error| error.of(self.display(&name.path())))?;
        let start = trailer.back_offset as usize;
        let sealed = whole.get(start..start.saturating_add(trailer.back_len as usize)).ok_or_else(wrong)?;
        ContainerReader::open(*name, header, Side::Back, sealed, self.config.region_bytes_limit())
    }

    /// Reads a region of a container and opens it.
    pub(crate) fn read_region(
        &self,
        container: &ContainerReader,
        region: u32,
        compressor: &mut Compressor,
    ) -> Result<Vec<u8>> {
        let missing = || Error::damaged(container.name.path().display(), "region that does not exist");
        let (offset, len) = container.region_range(region).ok_or_else(missing)?;
        let (mut sealed, mut plain) = (vec![0; len as usize], Vec::new());
        self.open_file(&container.name)?.read_at(offset, &mut sealed)?;
        container.open_region(region, &mut sealed, compressor, &mut plain)?;
        Ok(plain)
    }

    /// Reads a container whole.
    pub fn read_container(&self, name: &ContainerName) -> Result<Vec<u8>> {
        self.read(&name.path(), self.config.container_bytes as usize)
    }

    /// Reads a container whole and compares it with the checksum in its name.
    pub(crate) fn read_verified(&self, name: &ContainerName) -> Result<Vec<u8>> {
        let bytes = self.read_container(name)?;
        if *blake3::hash(&bytes).as_bytes() == name.checksum {
            Ok(bytes)
        } else {
            Err(Error::damaged(self.display(&name.path()), "its bytes do not match the checksum in its name"))
        }
    }

    /// Checks all of a container but the contents of its regions.
    pub(crate) fn inspect_container(&self, name: &ContainerName) -> Result<WholeContainer> {
        let file = self.open_file(name)?;
        let len = file.len()?;
        if u64::from(self.config.container_bytes) < len {
            return Err(Error::damaged(self.display(&name.path()), "longer than a container can be"));
        }
        let ends = |len: usize| len.min(HEAD_LEN);
        let whole = usize::try_from(len).unwrap_or(usize::MAX);
        let mut head = vec![0; ends(whole)];
        file.read_at(0, &mut head)?;
        let front_len = open_header(&self.keys, self.config.repository, name, &head)?.front_len as usize;
        let head_len = HEADER_LEN.saturating_add(front_len).min(whole);
        if head.len() < head_len {
            head.resize(head_len, 0);
            file.read_at(0, &mut head)?;
        }
        // The back directory is never longer than the front one.
        let tail_len = TRAILER_LEN.saturating_add(front_len).max(sealed_len(name.kind, Side::Back, 0, 0)).min(whole);
        let mut tail = vec![0; tail_len];
        file.read_at(len - tail_len as u64, &mut tail)?;
        let limit = self.config.region_bytes_limit();
        let mut whole = inspect(&self.keys, self.config.repository, *name, limit, (len, &head, &tail))?;
        // Padding lies between the regions and the back directory.
        let directory = &whole.reader.directory;
        let back_len = sealed_len(name.kind, Side::Back, directory.regions.len(), directory.chunks.len());
        let (start, end) = (whole.reader.regions_end(), len.saturating_sub((back_len + TRAILER_LEN) as u64));
        let mut padding = vec![0; usize::try_from(end.saturating_sub(start)).unwrap_or(0)];
        file.read_at(start, &mut padding)?;
        if padding.iter().any(|byte| *byte != 0) {
            whole.findings.push(format!("{}: damaged: its padding is not empty", self.display(&name.path())));
        }
        Ok(whole)
    }
}

/// Opens a region of a container that was read whole; false if it does not open.
fn open_region_of(
    reader: &ContainerReader,
    region: u32,
    whole: &[u8],
    compressor: &mut Compressor,
    plain: &mut Vec<u8>,
) -> bool {
    let Some((offset, len)) = reader.region_range(region) else { return false };
    let Ok(offset) = usize::try_from(offset) else { return false };
    let Some(sealed) = whole.get(offset..offset.saturating_add(len as usize)) else { return false };
    reader.open_region(region, &mut sealed.to_vec(), compressor, plain).is_ok()
}
