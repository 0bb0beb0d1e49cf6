//! Finding and opening containers.

use crate::compress::Compressor;
use crate::container::ContainerReader;
use crate::container::directory::Side;
use crate::container::reader::{WholeContainer, inspect, open_header};
use crate::container::trailer::{TRAILER_LEN, Trailer};
use crate::error::{Error, Result};
use crate::object::header::HEADER_LEN;
use crate::object::names::{ContainerName, ObjectName, Prefix};
use crate::object::store::{Detail, RangeRead};
use crate::pipeline::driver::Pool;
use crate::pipeline::{Driver, Task};
use crate::store::Store;
use crate::store::base_reader::BaseReader;
use crate::store::container_set::{ContainerNumber, ContainerSetBuilder, Containers};
use crate::store::scratch::Scratch;

/// Bytes read from the front of a container in the hope that its directory ends there.
const HEAD_LEN: usize = 64 << 10;
/// Containers whose directories are read in one batch.
const DIRECTORY_BATCH: usize = 32;
/// Containers whose directories are read by one task, and tasks at a time.
const AHEAD_BATCH: usize = 2;
const AHEAD_BATCHES: usize = 4;
/// Memory for bases while the chunks of one container are named by their contents.
const LOCATED_BASES_BYTES: usize = 4 << 20;

/// Opens containers by their directories.
struct OpenContainers(Store);

impl Task for OpenContainers {
    type In = Vec<ContainerName>;
    type Out = Vec<(ContainerName, Result<ContainerReader>)>;

    fn run(&self, names: Self::In) -> Self::Out {
        let opened = self.0.open_batch(&names);
        names.into_iter().zip(opened).collect()
    }
}

impl Store {
    /// Lists all containers. Names that are no container's are left out.
    pub fn list_containers(&self, scratch: &Scratch) -> Result<Containers> {
        self.list_containers_with(Detail::Names, scratch)
    }

    /// Lists all containers with the lengths of their objects.
    pub(crate) fn list_sized_containers(&self, scratch: &Scratch) -> Result<Containers> {
        self.list_containers_with(Detail::Lengths, scratch)
    }

    fn list_containers_with(&self, detail: Detail, scratch: &Scratch) -> Result<Containers> {
        let mut builder = ContainerSetBuilder::new(&self.host, scratch);
        self.objects.list(Prefix::Containers, detail, &mut |page| {
            page.iter().try_for_each(|listed| match &listed.name {
                Ok(ObjectName::Container(name)) => builder.push(name, listed.len),
                _ => Ok(()),
            })
        })?;
        Ok(builder.finish()?.into())
    }

    /// Counts the containers.
    pub(crate) fn count_containers(&self) -> Result<usize> {
        let mut count = 0;
        self.objects.list(Prefix::Containers, Detail::Names, &mut |page| {
            count += page.iter().filter(|listed| matches!(listed.name, Ok(ObjectName::Container(_)))).count();
            Ok(())
        })?;
        Ok(count)
    }

    /// Opens a container by its front directory, or, where that is damaged, by its back directory and contents.
    pub fn open_container(&self, name: &ContainerName) -> Result<ContainerReader> {
        let mut opened = self.open_batch(std::slice::from_ref(name));
        opened.pop().unwrap_or_else(|| Err(Error::Missing { object: self.display(name) }))
    }

    /// Opens containers in the given order. Reads a batch of directories together when the first of them is wanted. An error
    /// outside is one of the disk of temporary files, and ends everything.
    pub(crate) fn open_containers<'a>(
        &'a self,
        containers: &'a Containers,
        mut numbers: impl Iterator<Item = ContainerNumber> + 'a,
    ) -> impl Iterator<Item = Result<(ContainerName, Result<ContainerReader>)>> + 'a {
        let mut batch = Vec::new().into_iter();
        std::iter::from_fn(move || {
            if batch.as_slice().is_empty() {
                let names = numbers.by_ref().take(DIRECTORY_BATCH).map(|number| containers.name(number));
                let names: Vec<ContainerName> = match names.collect() {
                    Ok(names) => names,
                    Err(error) => return Some(Err(error)),
                };
                let opened = self.open_batch(&names);
                batch = names.into_iter().zip(opened).collect::<Vec<_>>().into_iter();
            }
            batch.next().map(Ok)
        })
    }

    /// Opens containers as [`Store::open_containers`] does, ahead of whoever takes them, on the threads of a driver. Takes at
    /// most 10 directories.
    pub(crate) fn open_containers_ahead<'a>(
        &self,
        driver: &Driver,
        containers: &'a Containers,
        mut numbers: impl Iterator<Item = ContainerNumber> + 'a,
    ) -> impl Iterator<Item = Result<(ContainerName, Result<ContainerReader>)>> + 'a {
        let mut queue = driver.queue(OpenContainers(self.clone()), Pool::Read, AHEAD_BATCHES);
        let mut opened = Vec::new().into_iter();
        std::iter::from_fn(move || {
            while opened.as_slice().is_empty() {
                let names = numbers.by_ref().take(AHEAD_BATCH).map(|number| containers.name(number));
                let names: Vec<ContainerName> = match names.collect() {
                    Ok(names) => names,
                    Err(error) => return Some(Err(error)),
                };
                let oldest = if names.is_empty() { Some(queue.pop()?) } else { queue.push(names) };
                opened = oldest.unwrap_or_default().into_iter();
            }
            opened.next().map(Ok)
        })
    }

    fn open_batch(&self, names: &[ContainerName]) -> Vec<Result<ContainerReader>> {
        let mut reads: Vec<RangeRead> =
            names.iter().map(|name| RangeRead::new(self.standing(name), 0, HEAD_LEN)).collect();
        self.objects.read(&mut reads);
        let opened = names.iter().zip(reads).map(|(name, read)| {
            let len = read.outcome?;
            self.open_front(name, len, &read.buffer).or_else(|error| self.open_by_contents(name, error))
        });
        opened.collect()
    }

    /// Returns the name under which a container stands.
    pub(crate) fn standing(&self, name: &ContainerName) -> ObjectName {
        let is_aside = self.quarantined.as_ref().is_some_and(|quarantined| quarantined.contains(name.id));
        if is_aside { ObjectName::Quarantined(*name) } else { ObjectName::Container(*name) }
    }

    /// Returns the length of a container as it is stored.
    pub(crate) fn container_len(&self, name: &ContainerName) -> Result<u64> {
        self.objects.len(self.standing(name))?.ok_or_else(|| Error::Missing { object: self.display(name) })
    }

    fn open_front(&self, name: &ContainerName, len: u64, head: &[u8]) -> Result<ContainerReader> {
        let header = open_header(&self.keys, self.config.repository, name, head)?;
        let end = HEADER_LEN.saturating_add(header.front_len as usize);
        let limit = self.config.region_bytes_limit();
        if let Some(sealed) = head.get(HEADER_LEN..end) {
            return ContainerReader::open(*name, header, Side::Front, sealed, limit);
        }
        if u64::from(self.config.container_bytes) < end as u64 || len < end as u64 {
            return Err(Error::damaged(self.display(name), "its directory reaches past its end"));
        }
        let mut sealed = vec![0; header.front_len as usize];
        self.objects.read_exact(self.standing(name), HEADER_LEN as u64, &mut sealed)?;
        ContainerReader::open(*name, header, Side::Front, &sealed, limit)
    }

    /// The front directory does not open: takes the back one and names the chunks by their contents.
    fn open_by_contents(&self, name: &ContainerName, error: Error) -> Result<ContainerReader> {
        let whole = match self.read_container(name) {
            Ok(whole) => whole,
            // What cannot be read now is not known to be lost.
            Err(unread) => return Err(if unread.is_loss() { error } else { unread }),
        };
        let Ok(mut reader) = self.open_back(name, &whole) else { return Err(error) };
        let mut compressor = Compressor::default();
        let mut fingerprints = Vec::with_capacity(reader.directory.chunks.len());
        let mut plain = Vec::new();
        // Only if a region has bases, since the containers have to be listed for them.
        let has_bases = reader.directory.regions.iter().any(|region| !region.bases.is_empty());
        let listed = if has_bases { self.list_containers(&Scratch::default())? } else { Containers::default() };
        let bases = BaseReader::new(self, &listed, LOCATED_BASES_BYTES);
        for region in 0..u32::try_from(reader.directory.regions.len()).unwrap_or(0) {
            let numbers = reader.chunks_of(region);
            let opened = open_region_of((&reader, &whole), region, &bases, &mut compressor, &mut plain)?;
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
        let wrong = || Error::damaged(self.display(name), "its back directory lies outside it");
        let header = open_header(&self.keys, self.config.repository, name, whole)?;
        let trailer = whole.len().checked_sub(TRAILER_LEN).and_then(|start| whole.get(start..)).ok_or_else(wrong)?;
        let trailer = Trailer::decode(trailer).map_err(|error| error.of(self.display(name)))?;
        let start = trailer.back_offset as usize;
        let sealed = whole.get(start..start.saturating_add(trailer.back_len as usize)).ok_or_else(wrong)?;
        ContainerReader::open(*name, header, Side::Back, sealed, self.config.region_bytes_limit())
    }

    /// Opens a container for its regions alone: by the front directory, or, where that is damaged, by the back one, which does
    /// not name the chunks.
    pub(crate) fn open_regions(&self, name: &ContainerName) -> Result<ContainerReader> {
        let mut reads = [RangeRead::new(self.standing(name), 0, HEAD_LEN)];
        self.objects.read(&mut reads);
        let [RangeRead { buffer, outcome, .. }] = reads;
        let opened = self.open_front(name, outcome?, &buffer);
        opened.or_else(|error| match self.read_container(name) {
            Ok(whole) => self.open_back(name, &whole).map_err(|_| error),
            Err(unread) => Err(if unread.is_loss() { error } else { unread }),
        })
    }

    /// Reads a region of a container and opens it; `bases` reads its bases.
    pub(crate) fn read_region(
        &self,
        container: &ContainerReader,
        region: u32,
        bases: &BaseReader,
        compressor: &mut Compressor,
    ) -> Result<Vec<u8>> {
        let prefix = bases.prefix_of(container, region)?;
        self.read_region_on(container, region, &prefix, compressor)
    }

    /// Reads a region whose bases have these plaintexts, one after the other.
    pub(crate) fn read_region_on(
        &self,
        container: &ContainerReader,
        region: u32,
        prefix: &[u8],
        compressor: &mut Compressor,
    ) -> Result<Vec<u8>> {
        let missing = || Error::damaged(container.name, "region that does not exist");
        let (offset, len) = container.region_range(region).ok_or_else(missing)?;
        let (mut sealed, mut plain) = (vec![0; len as usize], Vec::new());
        self.objects.read_exact(self.standing(&container.name), offset, &mut sealed)?;
        container.open_region(region, prefix, &mut sealed, compressor, &mut plain)?;
        Ok(plain)
    }

    /// Reads a container whole.
    pub fn read_container(&self, name: &ContainerName) -> Result<Vec<u8>> {
        let len = usize::try_from(self.container_len(name)?).unwrap_or(usize::MAX);
        if (self.config.container_bytes as usize) < len {
            return Err(Error::damaged(self.display(name), "longer than a container can be"));
        }
        let mut bytes = vec![0; len];
        self.objects.read_exact(self.standing(name), 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads a container whole and compares it with the checksum in its name.
    pub(crate) fn read_verified(&self, name: &ContainerName) -> Result<Vec<u8>> {
        let bytes = self.read_container(name)?;
        if *blake3::hash(&bytes).as_bytes() == name.checksum {
            Ok(bytes)
        } else {
            Err(Error::damaged(self.display(name), "its bytes do not match the checksum in its name"))
        }
    }

    /// Checks all of a container but the contents of its regions.
    pub(crate) fn inspect_container(&self, name: &ContainerName) -> Result<WholeContainer> {
        let len = self.container_len(name)?;
        let read = |offset, bytes: &mut [u8]| self.objects.read_exact(self.standing(name), offset, bytes);
        if u64::from(self.config.container_bytes) < len {
            return Err(Error::damaged(self.display(name), "longer than a container can be"));
        }
        let ends = |len: usize| len.min(HEAD_LEN);
        let whole = usize::try_from(len).unwrap_or(usize::MAX);
        let mut head = vec![0; ends(whole)];
        read(0, &mut head)?;
        let front_len = open_header(&self.keys, self.config.repository, name, &head)?.front_len as usize;
        let head_len = HEADER_LEN.saturating_add(front_len).min(whole);
        if head.len() < head_len {
            head.resize(head_len, 0);
            read(0, &mut head)?;
        }
        // The back directory is never longer than the front one.
        let tail_len = TRAILER_LEN.saturating_add(front_len).min(whole);
        let mut tail = vec![0; tail_len];
        read(len - tail_len as u64, &mut tail)?;
        let limit = self.config.region_bytes_limit();
        let mut whole = inspect(&self.keys, self.config.repository, *name, limit, (len, &head, &tail))?;
        // Padding lies between the regions and the back directory.
        let back_len = whole.reader.back_len();
        let (start, end) = (whole.reader.regions_end(), len.saturating_sub((back_len + TRAILER_LEN) as u64));
        let mut padding = vec![0; usize::try_from(end.saturating_sub(start)).unwrap_or(0)];
        read(start, &mut padding)?;
        if padding.iter().any(|byte| *byte != 0) {
            whole.findings.push(format!("{}: damaged: its padding is not empty", self.display(name)));
        }
        Ok(whole)
    }
}

/// Opens a region of a container that was read whole; false if it does not open. Fails if a base cannot be read now.
fn open_region_of(
    (reader, whole): (&ContainerReader, &[u8]),
    region: u32,
    bases: &BaseReader,
    compressor: &mut Compressor,
    plain: &mut Vec<u8>,
) -> Result<bool> {
    let sealed = reader.region_range(region).and_then(|(offset, len)| {
        let offset = usize::try_from(offset).ok()?;
        whole.get(offset..offset.saturating_add(len as usize))
    });
    let Some(sealed) = sealed else { return Ok(false) };
    let prefix = match bases.prefix_of(reader, region) {
        Err(error) if error.is_loss() => return Ok(false),
        prefix => prefix?,
    };
    Ok(reader.open_region(region, &prefix, &mut sealed.to_vec(), compressor, plain).is_ok())
}
