//! Simulated containers: how many chunks and bytes each has.

use anyhow::{Context, Result};
use onefold_engine::types::Chunk;

/// The capacity of a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Layout {
    /// So many bytes of chunks.
    #[default]
    Chunks,
    /// As in destor: of its bytes, 32 KiB have a head of 16 bytes and 28 bytes for each chunk, 1,169 at most.
    Destor,
}

impl Layout {
    /// Returns when a container of this many bytes closes.
    pub fn rule(self, bytes: u64) -> ContainerRule {
        const METADATA_BYTES: u64 = 32 << 10;
        match self {
            Self::Chunks => ContainerRule::of_bytes(bytes),
            Self::Destor => {
                ContainerRule { file_bytes: bytes, bytes: bytes.saturating_sub(METADATA_BYTES), chunks: 1169 }
            }
        }
    }
}

/// When a container closes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContainerRule {
    /// Bytes of its file.
    file_bytes: u64,
    /// Bytes of chunks.
    bytes: u64,
    chunks: usize,
}

impl ContainerRule {
    /// A container of so many bytes of chunks.
    pub fn of_bytes(bytes: u64) -> Self {
        Self { file_bytes: bytes, bytes, chunks: usize::MAX }
    }

    /// Returns the bytes of chunks that a container has room for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes of a container.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }
}

/// Chunks and bytes of a closed container; none once it is reclaimed.
type Filled = Option<(u32, u64)>;

/// The containers of a repository, numbered from 0 on. The last one may be open.
#[derive(Debug)]
pub struct Containers {
    rule: ContainerRule,
    closed: Vec<Filled>,
    open: Vec<Chunk>,
    open_bytes: u64,
}

impl Containers {
    /// Starts without any.
    pub fn new(rule: ContainerRule) -> Self {
        Self { rule, closed: Vec::new(), open: Vec::new(), open_bytes: 0 }
    }

    /// Starts with so many whose contents are not known.
    pub fn starting_after(rule: ContainerRule, containers: u32) -> Self {
        Self { closed: vec![Some((0, 0)); containers as usize], ..Self::new(rule) }
    }

    /// Returns when they close.
    pub fn rule(&self) -> &ContainerRule {
        &self.rule
    }

    /// Returns true if a chunk of this length fits into the open container. Any fits into an empty one.
    pub fn fits(&self, len: u32) -> bool {
        let has_room = self.open.len() < self.rule.chunks && self.open_bytes + u64::from(len) <= self.rule.bytes;
        self.open.is_empty() || has_room
    }

    /// Adds a chunk to the open container; returns its number.
    pub fn push(&mut self, chunk: Chunk) -> Result<u32> {
        let number = u32::try_from(self.closed.len()).ok().context("more containers than have a number")?;
        self.open.push(chunk);
        self.open_bytes += u64::from(chunk.len);
        Ok(number)
    }

    /// Returns the chunks of the open container.
    pub fn open(&self) -> &[Chunk] {
        &self.open
    }

    /// Closes the open container.
    pub fn close(&mut self) {
        let chunks = u32::try_from(self.open.len()).unwrap_or(u32::MAX);
        self.closed.push(Some((chunks, std::mem::take(&mut self.open_bytes))));
        self.open.clear();
    }

    /// Returns the number of the next container that closes.
    pub fn next_number(&self) -> u32 {
        u32::try_from(self.closed.len()).unwrap_or(u32::MAX)
    }

    /// Returns the numbers of the closed containers that are there.
    pub fn live(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.closed).filter_map(|(number, filled)| filled.map(|_| number))
    }

    /// Returns false if a container was reclaimed.
    pub fn is_live(&self, container: u32) -> bool {
        self.closed.get(container as usize).is_none_or(Option::is_some)
    }

    /// Reclaims a container.
    pub fn reclaim(&mut self, container: u32) {
        if let Some(filled) = self.closed.get_mut(container as usize) {
            *filled = None;
        }
    }

    /// Returns the chunks and the bytes of the closed containers that are there.
    pub fn stored(&self) -> (u64, u64) {
        let sum = |(chunks, bytes): (u64, u64), filled: &(u32, u64)| (chunks + u64::from(filled.0), bytes + filled.1);
        self.closed.iter().flatten().fold((0, 0), sum)
    }
}
