//! Creating, opening, checkpoints and closing.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use onefold_engine::codec::DecodeError;
use onefold_engine::error::{Error, Result};
use onefold_engine::io::{Access, Disk, DiskFile};

use super::checkpoint::{self, Header};
use super::state::{Blocks, State};
use super::{JOURNAL_BYTES, Log, Store, StoreOptions, bytes_of, disk, journal, refuse_memory};
use crate::image::block::BlockKeys;

/// Bytes of a journal at most: it is as long as when a checkpoint becomes due, and has a frame more.
fn journal_bytes_max(checkpoint_bytes: u64) -> u64 {
    (checkpoint_bytes / 4).max(JOURNAL_BYTES) + (journal::FRAME_BYTES_MAX + journal::SECTOR_BYTES) as u64
}

fn damaged(disk: &dyn Disk, path: &Path, error: DecodeError) -> Error {
    Error::damaged(disk.display(path), format_args!("byte {}: {}", error.offset, error.reason))
}

/// Opens the file of blocks and locks it.
fn lock(disk: &dyn Disk, blocks: Arc<dyn DiskFile>) -> Result<Arc<dyn DiskFile>> {
    if blocks.try_lock()? {
        return Ok(blocks);
    }
    Err(Error::invalid(format_args!("{} is open in another process", disk.display(Path::new("")))))
}

/// Creates the file of blocks of a new store. Refuses a directory that has one.
pub(in crate::image) fn create_blocks(disk: &dyn Disk) -> Result<Arc<dyn DiskFile>> {
    let path = Path::new(disk::BLOCKS);
    // A file that cannot be locked is the one that was just made.
    lock(disk, disk.create(path)?).inspect_err(|_| drop(disk.remove(path)))
}

/// Removes what a creation that failed has made. Errors leave files that no store has.
pub(in crate::image) fn remove_unfinished(disk: &dyn Disk) {
    if let Ok((None, left)) = disk::newest(disk) {
        for path in left.iter().map(|path| &**path).chain([Path::new(disk::BLOCKS)]) {
            let _ignored = disk.remove(path);
        }
    }
}

impl Store {
    /// Creates a store of zeros in an empty directory.
    pub fn create(disk: Arc<dyn Disk>, image_len: u64, key: [u8; 32], options: StoreOptions) -> Result<Self> {
        let state = zeros(image_len, options)?;
        let blocks = create_blocks(&*disk)?;
        Self::of_state(disk, blocks, state, key, options)
    }

    /// Makes a store of a state whose blocks are written: the first checkpoint.
    pub(super) fn of_state(
        disk: Arc<dyn Disk>,
        blocks: Arc<dyn DiskFile>,
        state: State,
        key: [u8; 32],
        options: StoreOptions,
    ) -> Result<Self> {
        refuse_memory(state.memory(), options.memory)?;
        blocks.sync()?;
        let bytes = encode(&state, 1, key);
        let journal = disk::publish(&*disk, 1, &[&bytes.0, &bytes.1])?;
        let keys = BlockKeys::new(&key);
        let checkpoint_bytes = (bytes.0.len() + bytes.1.len()) as u64;
        let log = Log { checkpoint: 1, checkpoint_bytes, is_open: true, ..Log::default() };
        Ok(Self { disk, blocks, journal, state, key, zeros: keys.zeros(), keys, options, log, failed: None })
    }

    /// Opens a store, and takes in what the journal has. Only `memory` and `threads` of the options count.
    pub fn open(disk: Arc<dyn Disk>, options: StoreOptions) -> Result<Self> {
        let blocks = match disk.open(Path::new(disk::BLOCKS), Access::ReadWrite) {
            Err(error) if error.io_kind() == Some(ErrorKind::NotFound) => {
                let root = disk.display(Path::new(""));
                return Err(Error::invalid(format_args!(
                    "{root} has no store of an image; `onefold lab image pack` makes one"
                )));
            }
            opened => lock(&*disk, opened?)?,
        };
        let (newest, old) = disk::newest(&*disk)?;
        let unfinished = || {
            let root = disk.display(Path::new(""));
            Error::invalid(format_args!(
                "{root}: its store was never finished; remove the directory and pack the image again"
            ))
        };
        let number = newest.ok_or_else(unfinished)?;
        let (header, mut state) = read_checkpoint(&*disk, number, options.memory)?;
        let path = disk::journal_path(number);
        let checkpoint_bytes = checkpoint::HEADER_BYTES as u64 + header.body_len;
        let most = journal_bytes_max(checkpoint_bytes);
        let (journal, bytes) = disk::read(&*disk, &path, most)?;
        let mut over = None;
        let read = journal::read(&bytes, number, |change| {
            over = over.take().or_else(|| refuse_memory(state.memory(), options.memory).err());
            if over.is_some() { Err("too little memory") } else { state.apply(&change, Blocks::Free) }
        });
        let read = match (over, read) {
            (Some(error), _) => return Err(error),
            (None, read) => read.map_err(|error| damaged(&*disk, &path, error))?,
        };
        let behind = state.descriptors.last_key_value();
        let end = behind.map_or(0, |(address, descriptor)| bytes_of(*address) + bytes_of(1 << descriptor.level));
        if blocks.len()? < end {
            let path = disk.display(Path::new(disk::BLOCKS));
            return Err(Error::damaged(path, format_args!("it has less than {end} bytes")));
        }
        let keys = BlockKeys::new(&header.key);
        let (len, sequence) = (read.len, read.sequence);
        let log = Log { checkpoint: number, checkpoint_bytes, len, sequence, ..Log::default() };
        let options = StoreOptions { level_min: header.level_min, ..options };
        let (key, zeros) = (header.key, keys.zeros());
        let mut store = Self { disk, blocks, journal, state, key, keys, zeros, options, log, failed: None };
        // Otherwise the last sync of another process may have failed, and nothing may rely on what it was to make durable: neither on
        // the name of the checkpoint nor on the last frame.
        if !read.is_ended || old.iter().any(|path| disk::is_checkpoint(path)) {
            store.checkpoint()?;
            store.or_fail(Self::write_frame)?;
        }
        for path in disk::newest(&*store.disk)?.1 {
            store.disk.remove(&path)?;
        }
        Ok(store)
    }

    /// Makes all that was written durable.
    pub fn flush(&mut self) -> Result<()> {
        self.refuse_failed()?;
        if self.log.buffer.is_empty() {
            return Ok(());
        }
        self.or_fail(Self::write_frame)?;
        if (self.log.checkpoint_bytes / 4).max(JOURNAL_BYTES) <= self.log.len { self.checkpoint() } else { Ok(()) }
    }

    /// Writes a frame with the buffered changes, after the blocks that they refer to; without changes, the frame that ends the journal.
    fn write_frame(&mut self) -> Result<()> {
        self.blocks.sync()?;
        let log = &mut self.log;
        let frame = journal::encode_frame(log.checkpoint, log.sequence, &log.buffer);
        self.journal.write_at(log.len, &frame)?;
        self.journal.sync()?;
        log.is_open = !log.buffer.is_empty();
        // The next frame is written over one that ends the journal.
        if log.is_open {
            log.buffer.clear();
            (log.len, log.sequence) = (log.len + frame.len() as u64, log.sequence + 1);
        }
        Ok(())
    }

    /// Writes the whole state and begins another journal. Space that changes have made free can then be used.
    pub fn checkpoint(&mut self) -> Result<()> {
        self.refuse_failed()?;
        self.or_fail(Self::write_checkpoint)
    }

    fn write_checkpoint(&mut self) -> Result<()> {
        self.blocks.sync()?;
        let number = self.log.checkpoint + 1;
        let bytes = encode(&self.state, number, self.key);
        self.journal = disk::publish(&*self.disk, number, &[&bytes.0, &bytes.1])?;
        let checkpoint_bytes = (bytes.0.len() + bytes.1.len()) as u64;
        let old = std::mem::replace(
            &mut self.log,
            Log { checkpoint: number, checkpoint_bytes, is_open: true, ..Log::default() },
        );
        self.state.buddy.reclaim();
        self.disk.remove(&disk::checkpoint_path(old.checkpoint))?;
        self.disk.remove(&disk::journal_path(old.checkpoint))
    }

    /// Makes all durable, and ends the journal: from then on, damage to its last changes is distinguished from a write that a crash has cut.
    pub fn close(mut self) -> Result<()> {
        self.flush()?;
        if self.log.is_open { self.or_fail(Self::write_frame) } else { Ok(()) }
    }

    fn refuse_failed(&self) -> Result<()> {
        self.refuse_range(0, 0)
    }

    /// Does something after whose failure the files may lack what the state has.
    fn or_fail(&mut self, act: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        act(self).inspect_err(|error| self.failed = Some(error.to_string()))
    }
}

/// Makes the state of an image of zeros.
fn zeros(image_len: u64, options: StoreOptions) -> Result<State> {
    let level_min = options.level_min.min(crate::image::block::LEVEL_MAX);
    let units = State::units_of(image_len, level_min).ok_or_else(|| Error::invalid("an image has at most 4 TiB"))?;
    // One more for each level at the end.
    let entries = u64::from(units >> crate::image::block::LEVEL_MAX) + crate::image::block::LEVELS as u64;
    refuse_memory(State::memory_of(entries, 0), options.memory)?;
    let mut state = State::new(image_len, level_min);
    for (start, level) in super::layout::largest(&(0..units)) {
        state.push(start, super::state::zeros_at(level)).expect("blocks of an image follow each other");
    }
    Ok(state)
}

/// Encodes a checkpoint: its header and its body.
fn encode(state: &State, number: u64, key: [u8; 32]) -> (Vec<u8>, Vec<u8>) {
    let body = checkpoint::encode_body(&checkpoint::encode_contents(state));
    let header = Header {
        number,
        key,
        image_len: state.image_len,
        level_min: state.level_min,
        descriptors: state.descriptors.len() as u64,
        entries: state.index.len() as u64,
        body_len: body.len() as u64,
    };
    (header.encode(), body)
}

/// Reads a checkpoint.
fn read_checkpoint(disk: &dyn Disk, number: u64, memory: u64) -> Result<(Header, State)> {
    let path = disk::checkpoint_path(number);
    let (_, mut bytes) = disk::read(disk, &path, memory)?;
    let (header, state) = decode(&mut bytes, memory).map_err(|error| match error {
        Undecoded::Damaged(error) => damaged(disk, &path, error),
        Undecoded::TooLarge(error) => error,
    })?;
    if header.number != number {
        return Err(Error::damaged(disk.display(&path), "it has the number of another checkpoint"));
    }
    Ok((header, state))
}

/// Why a checkpoint cannot be used.
#[derive(Debug)]
pub(super) enum Undecoded {
    /// Its bytes are wrong.
    Damaged(DecodeError),
    /// It needs more memory than is allowed.
    TooLarge(Error),
}

/// Decodes a checkpoint, whose bytes it takes apart.
pub(super) fn decode(bytes: &mut Vec<u8>, memory: u64) -> Result<(Header, State), Undecoded> {
    let error = |reason| Undecoded::Damaged(DecodeError { offset: 0, reason });
    let header = bytes.first_chunk().ok_or_else(|| error("ends too early"))?;
    let header = Header::decode(header).map_err(Undecoded::Damaged)?;
    let body = bytes.split_off(checkpoint::HEADER_BYTES);
    if body.len() as u64 != header.body_len || !header.is_possible() {
        return Err(error("it has another length than it says"));
    }
    refuse_memory(State::memory_of(header.entries, header.descriptors), memory).map_err(Undecoded::TooLarge)?;
    let contents = checkpoint::contents_of(body).map_err(Undecoded::Damaged)?;
    let state = checkpoint::decode_contents(&header, &contents).map_err(Undecoded::Damaged)?;
    Ok((header, state))
}
