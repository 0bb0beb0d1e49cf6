//! Reading any part of a file of a snapshot.

use std::path::Path;

use onefold_engine::error::{Error, Result};
use onefold_engine::pipeline::Driver;
use onefold_engine::restore::fetch::Fetcher;
use onefold_engine::restore::{fetch_chunks, find_entry};
use onefold_engine::store::cursor::HintedEntry;
use onefold_engine::store::metadata::{MetadataMemory, Scratch};
use onefold_engine::store::recipe_cursor::{FileExtent, HintedChunk, RecipeCursor};
use onefold_engine::store::{MetadataReader, Store};
use onefold_engine::tree::Content;
use onefold_engine::types::Fingerprint;

/// Most bytes that are read at a time, and most chunks, whatever their lengths are.
const READ_BYTES: usize = 1 << 20;
const READ_CHUNKS_MAX: usize = 4096;

/// A file of a snapshot.
#[derive(Debug)]
pub struct Stream {
    name: String,
    cursor: RecipeCursor,
    len: u64,
}

impl Stream {
    /// Returns its length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns its path, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Reads streams of a repository. Regions and directories that were used last stay in memory.
#[derive(Debug)]
pub struct Streams {
    store: Store,
    scratch: Scratch,
    driver: Driver,
    memory_bytes: usize,
    pub(crate) reader: MetadataReader,
    fetcher: Fetcher,
}

impl Streams {
    /// Prepares to read within `memory_bytes`: a third is for trees and recipes.
    pub fn open(store: &Store, scratch: &Scratch, driver: &Driver, memory_bytes: usize) -> Result<Self> {
        let containers = store.list_containers(scratch)?;
        let memory = MetadataMemory::left_by(&containers, memory_bytes / 3);
        let reader = MetadataReader::open(store, &containers, scratch, memory)?;
        let fetcher = Fetcher::new(store, &containers, scratch, driver, memory_bytes - memory_bytes / 3);
        let (scratch, driver) = (scratch.clone(), driver.clone());
        Ok(Self { store: store.clone(), scratch, driver, memory_bytes, reader, fetcher })
    }

    /// Learns the containers that there are now.
    pub fn refresh(&mut self) -> Result<()> {
        let containers = self.store.list_containers(&self.scratch)?;
        self.reader.learn(&containers)?;
        let memory_bytes = self.memory_bytes - self.memory_bytes / 3;
        self.fetcher = Fetcher::new(&self.store, &containers, &self.scratch, &self.driver, memory_bytes);
        Ok(())
    }

    /// Returns the repository.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Opens a file of a snapshot's tree.
    pub fn find(&mut self, tree: Fingerprint, path: &Path) -> Result<Stream> {
        let found = find_entry(&mut self.reader, tree, path)?;
        let Some(HintedEntry { entry, hints }) = found else {
            return Err(Error::damaged(path.display(), "is a directory in the snapshot"));
        };
        let Content::File { recipe, .. } = &entry.content else {
            return Err(Error::damaged(path.display(), "is no file in the snapshot"));
        };
        let (cursor, len) = (RecipeCursor::new(recipe, &hints), recipe.len());
        Ok(Stream { name: path.display().to_string(), cursor, len })
    }

    /// Fills a buffer from an offset of a stream. Fails with [`Error::Damaged`] if the stream ends first.
    pub fn read(&mut self, stream: &mut Stream, offset: u64, into: &mut [u8]) -> Result<()> {
        for (part, bytes) in into.chunks_mut(READ_BYTES).enumerate() {
            self.read_part(stream, offset + (part * READ_BYTES) as u64, bytes)?;
        }
        Ok(())
    }

    fn read_part(&mut self, stream: &mut Stream, offset: u64, into: &mut [u8]) -> Result<()> {
        into.fill(0);
        let end = offset + into.len() as u64;
        if stream.len < end {
            return Err(Error::damaged(&stream.name, format!("ends at {} and is read up to {end}", stream.len)));
        }
        let mut at = stream.cursor.seek(offset, &mut self.reader)?;
        let mut wanted: Vec<(u64, HintedChunk)> = Vec::new();
        while at < end {
            match stream.cursor.next(&mut self.reader)? {
                Some(FileExtent::Hole { len }) => at = at.saturating_add(len),
                Some(FileExtent::Chunk(chunk)) => {
                    wanted.push((at, chunk));
                    at += u64::from(chunk.chunk.len);
                }
                None => return Err(Error::damaged(&stream.name, format!("ends at {at} already"))),
            }
            if end <= at || wanted.len() == READ_CHUNKS_MAX {
                self.fetch(std::mem::take(&mut wanted), offset, into)?;
            }
        }
        Ok(())
    }

    /// Fetches chunks at offsets of a stream, and copies their bytes to a buffer that begins at an offset.
    fn fetch(&mut self, wanted: Vec<(u64, HintedChunk)>, offset: u64, into: &mut [u8]) -> Result<()> {
        if wanted.is_empty() {
            return Ok(());
        }
        let chunks = fetch_chunks(&mut self.fetcher, wanted.iter().map(|(_, chunk)| *chunk).collect())?;
        for ((start, _), bytes) in wanted.into_iter().zip(chunks) {
            let skipped = usize::try_from(offset.saturating_sub(start)).unwrap_or(usize::MAX);
            let target = usize::try_from(start.saturating_sub(offset)).unwrap_or(usize::MAX);
            let bytes = bytes.get(skipped..).unwrap_or_default();
            let target = into.get_mut(target..).unwrap_or_default();
            let len = bytes.len().min(target.len());
            target[..len].copy_from_slice(&bytes[..len]);
        }
        Ok(())
    }

    /// Returns true if a hole is at an offset of a stream, and how many bytes from it on are alike, up to `max`.
    pub fn is_hole(&mut self, stream: &mut Stream, offset: u64, max: u64) -> Result<(bool, u64)> {
        let start = stream.cursor.seek(offset, &mut self.reader)?;
        let mut end = start;
        let mut kind = None;
        while end < offset.saturating_add(max) {
            let (is_hole, len) = match stream.cursor.next(&mut self.reader)? {
                Some(FileExtent::Hole { len }) => (true, len),
                Some(FileExtent::Chunk(chunk)) => (false, chunk.chunk.len.into()),
                None => break,
            };
            if *kind.get_or_insert(is_hole) != is_hole {
                break;
            }
            end = end.saturating_add(len);
        }
        Ok((kind.unwrap_or(true), end.saturating_sub(offset).min(max)))
    }
}
