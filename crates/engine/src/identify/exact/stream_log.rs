//! The stream log: the chunks of all streams, duplicates too, in the order of the streams. It is what exploits logical
//! locality.
//!
//! Chunks that were backed up together are likely to be backed up together again, also if they were first stored at different
//! times. So a hit reads the stream segment of the last stream that had the chunk, not the container that it lies in (Fu et
//! al., "Design Tradeoffs for Data Deduplication Performance in Backup Workloads", FAST 2015, section 2.1.3). The entries of
//! new chunks get their position in the stream, and of duplicates those that are sampled, or whose entry led to no segment.
//!
//! The log holds all chunks that are submitted: with data those of trees and recipes, which follow the data that they
//! describe.
//!
//! Exactness rests on the containers of entries alone. A position is a hint: one that the log has lost leads to nothing. So the
//! log has a bound. A checkpoint writes its newest pages to the other one of two files, `stream.0` and `stream.1`, once it is
//! twice as long. The segments are in `segments.N`.

use crate::error::Result;
use crate::identify::exact::directory::IndexDirectory;
use crate::identify::exact::registry::Registry;
use crate::identify::exact::stream_queue::StreamChunk;
use crate::identify::exact::unit_log::UnitLog;
use crate::identify::locality::arrival_log::{LogExtent, LogRecord, LogWindow};
use crate::identify::locality::frame::FRAME_BYTES;
use crate::identify::options::SEGMENT_ENTRIES_MAX;
use crate::identify::sampling::Sampling;
use crate::identify::segmenting::{Segmenter, Segmenting};
use crate::io::Access;
use crate::kv::{Entry, Key, Position};

/// Factor by which a log may exceed its bound before a checkpoint copies the newest pages.
const COPY_FACTOR: u64 = 2;
/// Factor by which it may exceed its bound before that is worth a checkpoint by itself.
const CHECKPOINT_FACTOR: u64 = 4;

/// How streams are logged.
#[derive(Clone, Copy, Debug)]
pub(in crate::identify) struct StreamRules {
    pub(crate) segmenting: Segmenting,
    pub(crate) sampling: Sampling,
    /// The bound of the log, in bytes for each record of the arrival log.
    pub(crate) bytes_per_chunk: u32,
    /// Pages that the log may always have.
    pub(crate) pages_min: u64,
}

impl StreamRules {
    /// Returns the bound of the log with so many chunks stored, in pages.
    fn bound(self, stored: u64) -> u64 {
        let bytes = stored.saturating_mul(u64::from(self.bytes_per_chunk));
        (bytes / FRAME_BYTES as u64).max(self.pages_min)
    }
}

/// The stream log, and the open segment of the stream.
#[derive(Debug)]
pub(in crate::identify) struct StreamLog {
    /// Positions in it are numbers of records, without the bit that distinguishes the two logs.
    pub(crate) log: UnitLog,
    /// Which of the two files it is in, 0 or 1.
    pub(crate) file_number: u8,
    /// The other file, if the log has left it since the last checkpoint.
    old_file: Option<u8>,
    rules: StreamRules,
    segmenter: Segmenter,
    /// Entries of the open segment that get their position in the stream.
    entries: Vec<Entry>,
    /// Segments begun since the opening.
    pub(crate) segments: u64,
    /// Segments that ended early.
    pub(crate) segments_cut_short: u64,
    /// Entries that got their position in the stream.
    pub(crate) updates: u64,
    /// Copies of the newest pages.
    pub(crate) compactions: u64,
}

fn with_bit(mut extents: Vec<LogExtent>) -> Vec<LogExtent> {
    for extent in &mut extents {
        extent.start = Position::in_stream(extent.start.0);
    }
    extents
}

/// Returns windows of the stream log as ranges of numbers of records.
fn without_bit(windows: Vec<LogWindow>) -> Vec<LogWindow> {
    windows.into_iter().map(|window| LogWindow { start: Position(window.start.number()), ..window }).collect()
}

impl StreamLog {
    /// Returns the name of one of the two files.
    pub(in crate::identify) fn file_name(number: u8) -> String {
        format!("stream.{number}")
    }

    /// Makes the log over its open file.
    pub(crate) fn new(log: UnitLog, file_number: u8, rules: StreamRules) -> Self {
        Self {
            log,
            file_number,
            old_file: None,
            rules,
            segmenter: Segmenter::new(rules.segmenting),
            entries: Vec::new(),
            segments: 0,
            segments_cut_short: 0,
            updates: 0,
            compactions: 0,
        }
    }

    /// Returns true if a segment has begun and not ended.
    pub(in crate::identify) fn has_open_segment(&self) -> bool {
        self.segmenter.chunks() != 0
    }

    /// Returns true if the entries of the open segment are to be entered before a chunk: the segment ends there, or they are
    /// too many.
    pub(in crate::identify) fn has_due_entries(&self, next: &StreamChunk) -> bool {
        let is_full = SEGMENT_ENTRIES_MAX <= self.entries.len();
        is_full || (self.has_open_segment() && self.segmenter.begins(&next.chunk.fingerprint))
    }

    /// Appends the next chunk of the stream. The entries that were due before it were taken.
    pub(in crate::identify) fn push(&mut self, stream: &StreamChunk, registry: &mut Registry) -> Result<()> {
        let StreamChunk { chunk, ordinal, is_entered } = *stream;
        self.log.make_space(registry)?;
        if self.segmenter.push(&chunk.fingerprint) {
            self.log.begin_unit();
            self.segments += 1;
        }
        let number = self.log.log.append(LogRecord { chunk, ordinal });
        if is_entered || self.rules.sampling.takes(self.segmenter.chunks() - 1, &chunk.fingerprint) {
            let position = Position::in_stream(number.0);
            if self.entries.capacity() == 0 {
                self.entries.reserve_exact(SEGMENT_ENTRIES_MAX);
            }
            self.entries.push(Entry { key: Key::from(&chunk.fingerprint), ordinal, position });
        }
        Ok(())
    }

    /// Takes the entries of the open segment.
    pub(in crate::identify) fn take_entries(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.entries)
    }

    /// Ends the open segment early; returns its entries.
    pub(in crate::identify) fn cut(&mut self) -> Vec<Entry> {
        self.segments_cut_short += u64::from(self.has_open_segment());
        self.segmenter.cut();
        self.take_entries()
    }

    /// Gives the memory of taken entries back for the next segment.
    pub(in crate::identify) fn reuse(&mut self, mut entries: Vec<Entry>) {
        if self.entries.is_empty() {
            entries.clear();
            self.entries = entries;
        }
    }

    /// Returns true if a position leads to a segment.
    pub(in crate::identify) fn holds(&self, position: Position) -> bool {
        let log = &self.log.log;
        let records = log.first_position().0..log.next_position().0;
        position.is_in_stream() && records.contains(&position.number())
    }

    /// Returns what a hit on a position reads: its segment and `following` segments after it, at most so many records.
    pub(in crate::identify) fn around(
        &self,
        position: Position,
        following: u32,
        records_max: u32,
    ) -> Option<LogWindow> {
        let window = self.log.around(position.number(), following, records_max)?;
        Some(LogWindow { start: Position::in_stream(window.start.0), ..window })
    }

    /// Returns how many records a segment has about.
    pub(in crate::identify) fn mean_records(&self) -> u64 {
        match self.log.mean_records() {
            0 => self.rules.segmenting.chunks_mean().into(),
            mean => mean,
        }
    }

    /// Reads windows of the log.
    pub(in crate::identify) fn read(&mut self, windows: Vec<LogWindow>) -> Vec<LogExtent> {
        with_bit(self.log.read(without_bit(windows)))
    }

    /// Starts to read windows of the log in the background.
    pub(in crate::identify) fn start_read(&mut self, windows: Vec<LogWindow>) {
        self.log.start_read(without_bit(windows));
    }

    /// Waits for the read in the background; returns its records, or `None` if none was started.
    pub(in crate::identify) fn end_read(&mut self) -> Option<Vec<LogExtent>> {
        self.log.end_read().map(with_bit)
    }

    fn pages(&self) -> u64 {
        self.log.log.written_pages - self.log.log.lost_pages
    }

    /// Returns true if the log is so long, with so many chunks stored, that a checkpoint is worth its cost.
    pub(in crate::identify) fn is_checkpoint_due(&self, stored: u64) -> bool {
        CHECKPOINT_FACTOR * self.rules.bound(stored) < self.pages()
    }

    /// Empties the file that the log has left, after a checkpoint that names the other one. A read may still need it; then it
    /// stays until it is left again.
    pub(in crate::identify) fn saved(&mut self, directory: &IndexDirectory) -> Result<()> {
        match self.old_file.take().filter(|_| !self.log.is_reading()) {
            Some(old) => directory.open_or_create(&Self::file_name(old))?.set_len(0),
            None => Ok(()),
        }
    }

    /// Makes the log durable. If it is too long, its newest pages are copied into the file that the last checkpoint does not
    /// name.
    pub(in crate::identify) fn save(&mut self, directory: &IndexDirectory, stored: u64) -> Result<()> {
        self.log.log.sync()?;
        let pages = self.rules.bound(stored);
        if COPY_FACTOR * pages < self.pages() {
            let other = 1 - self.file_number;
            let name = Self::file_name(other);
            directory.open_or_create(&name)?;
            self.log.log.compact(directory.open(&name, Access::Direct)?, pages)?;
            self.log.units.drop_before(self.log.log.first_position());
            self.old_file = Some(std::mem::replace(&mut self.file_number, other));
            self.compactions += 1;
        }
        Ok(())
    }
}
