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
//! Exactness rests on the containers of entries alone. A position is a hint: a hit whose position leads to nothing reads its
//! container. Once the log is twice as long as its bound, and as what the last compaction has left of it, a checkpoint compacts it: it
//! writes the segments that entries name, and those that are read with them, to the other one of two files, `stream.0` and
//! `stream.1`. Each keeps its position, and holes are between them. A store that cannot list its entries, on a server, leaves the
//! newest segments. The segments are in `segments.N`.

use std::collections::BTreeMap;

use crate::bitmap::Bitmap;
use crate::error::Result;
use crate::identify::exact::directory::IndexDirectory;
use crate::identify::exact::registry::Registry;
use crate::identify::exact::stream_queue::{Entering, StreamChunk};
use crate::identify::exact::unit_log::UnitLog;
use crate::identify::locality::arrival_log::{LOG_PAGE_RECORDS, LogExtent, LogRecord, LogWindow};
use crate::identify::locality::frame::FRAME_BYTES;
use crate::identify::options::SEGMENT_ENTRIES_MAX;
use crate::identify::sampling::Sampling;
use crate::identify::segmenting::Segmenting;
use crate::io::Access;
use crate::kv::{Containers, Entry, EntryStore, Key, Ordinal, Position};
use crate::types::Fingerprint;

/// Factor by which a log may exceed its bound before a checkpoint compacts it.
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
    /// Segments that are read after the one of a hit.
    pub(crate) following: u32,
    /// Whether only features have entries.
    pub(crate) is_near_exact: bool,
    /// Whether the features of a segment are known at its end only.
    pub(crate) is_whole: bool,
    /// Segments that a feature leads to.
    pub(crate) mapping: u32,
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
    /// Chunks of the open segment; 0 if none is open.
    chunks: u32,
    /// Whether the next chunk is the first of its stream.
    begins_stream: bool,
    /// Entries of the open segment that get their position in the stream, or that may.
    entries: Vec<Entry>,
    /// The chunks of these entries, if features are known at the end, and whether each gets its position in any case.
    whole: Vec<(Fingerprint, bool)>,
    /// Those that are new.
    new: Vec<(Fingerprint, Ordinal)>,
    /// New chunks that were entered and are in flight still.
    pub(crate) entered: Vec<Fingerprint>,
    /// Containers some of whose chunks are not entered yet, and how many.
    unentered: BTreeMap<Ordinal, u64>,
    /// Pages that the last compaction has left.
    pub(crate) named_pages: u64,
    /// Segments begun since the opening.
    pub(crate) segments: u64,
    /// Segments that ended early.
    pub(crate) segments_cut_short: u64,
    /// Entries that got their position in the stream.
    pub(crate) updates: u64,
    /// Compactions.
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
    pub(crate) fn new(log: UnitLog, file_number: u8, rules: StreamRules, named_pages: u64) -> Self {
        Self {
            log,
            file_number,
            old_file: None,
            rules,
            chunks: 0,
            begins_stream: true,
            entries: Vec::new(),
            whole: Vec::new(),
            new: Vec::new(),
            entered: Vec::new(),
            unentered: BTreeMap::new(),
            named_pages,
            segments: 0,
            segments_cut_short: 0,
            updates: 0,
            compactions: 0,
        }
    }

    /// Returns true if a segment has begun and not ended.
    pub(in crate::identify) fn has_open_segment(&self) -> bool {
        self.chunks != 0
    }

    /// Returns true if the entries of the open segment are to be entered before a chunk: the segment ends there, or they are
    /// too many.
    pub(in crate::identify) fn has_due_entries(&self, next: &StreamChunk) -> bool {
        let most = if self.rules.is_whole { self.rules.segmenting.chunks_max() as usize } else { SEGMENT_ENTRIES_MAX };
        most <= self.entries.len() || (self.has_open_segment() && next.begins_segment)
    }

    /// Appends the next chunk of the stream. The entries that were due before it were taken.
    pub(in crate::identify) fn push(&mut self, stream: &StreamChunk, registry: &mut Registry) -> Result<()> {
        let StreamChunk { chunk, ordinal, entering, begins_segment } = *stream;
        self.log.make_space(registry)?;
        if begins_segment || self.chunks == 0 {
            self.log.begin_unit(std::mem::take(&mut self.begins_stream));
            self.segments += 1;
            self.chunks = 0;
        }
        self.chunks += 1;
        let number = self.log.log.append(LogRecord { chunk, ordinal });
        if entering == Entering::New {
            self.new.push((chunk.fingerprint, ordinal));
        }
        let is_entered = match entering {
            Entering::IfSampled => false,
            Entering::Again | Entering::New => !self.rules.is_near_exact,
        };
        if self.rules.is_whole {
            self.whole.push((chunk.fingerprint, is_entered));
        }
        if self.rules.is_whole || is_entered || self.rules.sampling.takes(self.chunks - 1, &chunk.fingerprint) {
            let position = Position::in_stream(number.0);
            if self.entries.capacity() == 0 {
                self.entries.reserve_exact(if self.rules.is_whole { 0 } else { SEGMENT_ENTRIES_MAX });
            }
            self.entries.push(Entry { key: Key::from(&chunk.fingerprint), ordinal, position });
        }
        Ok(())
    }

    /// Takes the entries of the open segment: of chunks that get their position in any case, and of its features.
    pub(in crate::identify) fn take_entries(&mut self) -> Vec<Entry> {
        let mut entries = std::mem::take(&mut self.entries);
        if self.rules.is_whole {
            let (fingerprints, always): (Vec<_>, Vec<_>) = self.whole.drain(..).unzip();
            let features = self.rules.sampling.features(&fingerprints);
            let mut at = 0..;
            entries.retain(|_| {
                let at: usize = at.next().unwrap_or_default();
                always.get(at) == Some(&true) || features.binary_search(&at).is_ok()
            });
        }
        entries
    }

    /// Notes that the stream has ended.
    pub(in crate::identify) fn end_stream(&mut self) {
        self.begins_stream = true;
    }

    /// Returns how many segments a feature leads to.
    pub(in crate::identify) fn mapping(&self) -> u32 {
        self.rules.mapping
    }

    /// Ends the open segment early; returns its entries.
    pub(in crate::identify) fn cut(&mut self) -> Vec<Entry> {
        self.segments_cut_short += u64::from(self.has_open_segment());
        self.chunks = 0;
        self.take_entries()
    }

    /// Notes that so many chunks of a container are entered with their segments.
    pub(in crate::identify) fn enter_later(&mut self, ordinal: Ordinal, chunks: u64) {
        *self.unentered.entry(ordinal).or_default() += chunks;
    }

    /// Notes that the chunks of the segment are entered. A container all of whose chunks are entered is covered.
    pub(in crate::identify) fn note_entered(&mut self, registry: &mut Registry) {
        for (fingerprint, ordinal) in self.new.drain(..) {
            self.entered.push(fingerprint);
            let Some(left) = self.unentered.get_mut(&ordinal) else { continue };
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.unentered.remove(&ordinal);
                if registry.is_live(ordinal) {
                    registry.cover(ordinal);
                }
            }
        }
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
        position.is_in_stream() && records.contains(&position.number()) && self.log.units.holds(position.number())
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

    /// Returns the pages of the log without those of gaps.
    fn pages(&self) -> u64 {
        (self.log.log.written_pages - self.log.log.lost_pages).saturating_sub(self.log.units.gap_pages())
    }

    /// Returns true if the log has more than so many times the pages of its bound, and of what the last compaction has left.
    fn exceeds(&self, factor: u64, stored: u64) -> bool {
        // The number of gaps is looked at only if the log may be too long.
        let most = factor * self.rules.bound(stored).max(self.named_pages);
        most < self.log.log.written_pages - self.log.log.lost_pages && most < self.pages()
    }

    /// Returns true if the log is so long, with so many chunks stored, that a checkpoint is worth its cost.
    pub(in crate::identify) fn is_checkpoint_due(&self, stored: u64) -> bool {
        self.exceeds(CHECKPOINT_FACTOR, stored)
    }

    /// Empties the file that the log has left, after a checkpoint that names the other one. A read may still need it; then it
    /// stays until it is left again.
    pub(in crate::identify) fn saved(&mut self, directory: &IndexDirectory) -> Result<()> {
        match self.old_file.take().filter(|_| !self.log.is_reading()) {
            Some(old) => directory.open_or_create(&Self::file_name(old))?.set_len(0),
            None => Ok(()),
        }
    }

    /// Makes the log durable. If it is too long, the segments that entries name go into the file that the last checkpoint does not
    /// name.
    pub(in crate::identify) fn save(
        &mut self,
        directory: &IndexDirectory,
        stored: u64,
        entries: &mut dyn EntryStore,
        containers: &dyn Containers,
    ) -> Result<()> {
        self.log.log.sync()?;
        if self.exceeds(COPY_FACTOR, stored) {
            let named = self.named_segments(stored, entries, containers)?;
            let kept = self.log.units.keep(&named, self.rules.following, self.log.log.next_position());
            let other = 1 - self.file_number;
            let name = Self::file_name(other);
            directory.open_or_create(&name)?;
            self.log.log.compact(directory.open(&name, Access::Direct)?, &kept)?;
            self.old_file = Some(std::mem::replace(&mut self.file_number, other));
            self.named_pages = self.pages();
            self.compactions += 1;
        }
        Ok(())
    }

    /// Returns the indexes of the segments that entries of live containers name, or of the newest ones if the store cannot list its
    /// entries.
    fn named_segments(&self, stored: u64, entries: &mut dyn EntryStore, containers: &dyn Containers) -> Result<Bitmap> {
        let mut named = Bitmap::default();
        let mut insert = |number: u64| {
            if let Some(index) = self.log.units.index_of(number).and_then(|index| u32::try_from(index).ok()) {
                named.insert(index);
            }
        };
        let is_listed = entries.list(&mut |entry| {
            if entry.position.is_in_stream() && containers.is_live(entry.ordinal) {
                insert(entry.position.number());
            }
        })?;
        if !is_listed {
            let end = self.log.log.next_position().0;
            let newest = self.rules.bound(stored).saturating_mul(LOG_PAGE_RECORDS as u64);
            let first = end.saturating_sub(newest);
            (first..end).step_by(LOG_PAGE_RECORDS).for_each(insert);
        }
        Ok(named)
    }
}
