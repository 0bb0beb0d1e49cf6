//! Reading of the chosen files in batches of bytes, on a thread of its own.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use onefold_engine::Error;
use onefold_engine::io::tree::SourceFile;
use onefold_engine::monitor::{Action, Monitor};
use onefold_engine::source::walk::{Contents, Event, Item, Walk};

use super::survey::{Covered, Extent, Survey, UnitOf};
use crate::processor::{processor_time, waiting_time};

/// A file that reports no length is still read, up to this length, as by a backup: files of /proc and /sys do so.
const UNSIZED_BYTES_MAX: u64 = 64 << 20;
/// Bytes of one read of such a file, since most are empty.
const UNSIZED_READ_BYTES: usize = 64 << 10;
/// Most runs in a batch, which limits batches of empty files, too.
const RUNS_MAX: usize = 1 << 14;

/// Bytes of one stream without a hole, or their continuation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Number of bytes.
    pub len: usize,
    /// End.
    pub end: RunEnd,
    /// Their unit of the sample.
    pub unit: UnitOf,
}

/// End of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunEnd {
    /// The next batch continues it.
    Open,
    /// A hole of the same stream.
    Hole,
    /// The stream ends.
    Stream,
}

/// Bytes that were read together.
#[derive(Debug, Default)]
pub struct Batch {
    /// Bytes of all runs, one after the other.
    pub bytes: Vec<u8>,
    /// The runs.
    pub runs: Vec<Run>,
}

/// Result of reading: times and amounts.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Reading {
    /// Time in calls that read, without the time for which other processes had the processors, as far as the kernel reports it.
    pub time: Duration,
    /// Processor time of it.
    pub processor: Duration,
    /// Files that were read at least in part.
    pub files: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// Bytes of holes, but for those of files that are divided.
    pub hole_bytes: u64,
    /// Files, and extents of files, that were read.
    pub streams: u64,
    /// Bytes of data of each class and group of units.
    pub covered_data: Covered,
    /// Bytes of holes of each.
    pub covered_holes: Covered,
    /// Failures to read, which the monitor learned.
    pub failures: u64,
    /// Whether reading stopped early, since the chosen files had become too large.
    pub is_cut_short: bool,
}

/// Returns the number of the path, among those that were given, that a file is below.
fn root_of(path: &Path, roots: &[PathBuf]) -> u16 {
    let found = roots.iter().position(|root| path.starts_with(root)).unwrap_or_default();
    u16::try_from(found).unwrap_or(u16::MAX)
}

/// Reads a source.
pub struct Reader<'a> {
    survey: &'a Survey,
    monitor: &'a dyn Monitor,
    batch_bytes: usize,
    batch: Batch,
    reading: Reading,
    send: &'a mut dyn FnMut(Batch) -> bool,
}

impl std::fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("reading", &self.reading).finish_non_exhaustive()
    }
}

/// The receiver stopped, or the user asked to stop.
struct Stop;

impl<'a> Reader<'a> {
    /// Reads into batches of `batch_bytes`. `send` takes them, and returns true if it wants more.
    pub fn new(
        survey: &'a Survey,
        batch_bytes: usize,
        monitor: &'a dyn Monitor,
        send: &'a mut dyn FnMut(Batch) -> bool,
    ) -> Self {
        let (batch, reading) = (Batch::default(), Reading::default());
        Self { survey, monitor, batch_bytes, batch, reading, send }
    }

    /// Reads what a walk finds and the survey chose.
    pub fn read(mut self, walk: Walk, roots: &[PathBuf]) -> Reading {
        let waiting = waiting_time();
        for event in walk {
            if self.monitor.is_interrupted() {
                break;
            }
            let read = match event {
                Event::Entry(item) if item.contents != Contents::None => {
                    let root = root_of(&item.path, roots);
                    let of_root = |extent: Extent| Extent { unit: UnitOf { root, ..extent.unit }, ..extent };
                    let mut extents = self.survey.extents(&item).map(of_root).peekable();
                    if extents.peek().is_some() { self.read_file(&item, extents) } else { Ok(()) }
                }
                Event::Error { path, error } => {
                    self.fail(&path, &error);
                    Ok(())
                }
                Event::EnterDirectory(_) | Event::Entry(_) | Event::LeaveDirectory => Ok(()),
            };
            if read.is_err() {
                break;
            }
            if self.survey.bytes_max <= self.reading.bytes {
                self.reading.is_cut_short = true;
                break;
            }
        }
        let _sent = self.hand_over();
        // The time of reading without competition by cutting. Some of the waiting was outside of calls.
        let ready = waiting_time().saturating_sub(waiting);
        self.reading.time = self.reading.time.saturating_sub(ready).max(self.reading.processor);
        self.reading
    }

    fn fail(&mut self, path: &Path, error: &Error) {
        self.reading.failures += 1;
        self.monitor.failure(path, error);
    }

    fn read_file(&mut self, item: &Item, extents: impl Iterator<Item = Extent>) -> Result<(), Stop> {
        let path = item.path.as_path();
        self.monitor.begin(path);
        let mut file = match self.timed(|_| item.location.open()) {
            Ok(file) => file,
            Err(error) => {
                self.fail(path, &error);
                return Ok(());
            }
        };
        self.reading.files += 1;
        let size = file.opened().size;
        for extent in extents {
            let end = extent.end.unwrap_or(u64::MAX).min(size);
            match self.read_extent(&mut *file, extent, size, end)? {
                Ok(()) => {}
                Err(error) => {
                    self.end_run(RunEnd::Stream, extent.unit)?;
                    self.fail(path, &error);
                    return Ok(());
                }
            }
        }
        self.monitor.entry(path, Action::New);
        Ok(())
    }

    /// Reads an extent of a file as a stream.
    fn read_extent(
        &mut self,
        file: &mut dyn SourceFile,
        extent: Extent,
        size: u64,
        end: u64,
    ) -> Result<Result<(), Error>, Stop> {
        let mut offset = extent.offset;
        // A file that reports no data is tried.
        let is_unsized = size == 0;
        let end = if is_unsized { UNSIZED_BYTES_MAX } else { end };
        while offset < end {
            let range = match self.timed(|_| file.next_data(offset)) {
                Ok(range) => range,
                Err(error) => return Ok(Err(error)),
            };
            let data = match range {
                Some(range) => range.start.clamp(offset, end)..range.end.clamp(offset, end),
                None if is_unsized => offset..end,
                None => end..end,
            };
            if offset < data.start && !is_unsized {
                // The survey knows the holes of files that are divided.
                if !extent.unit.is_divided() {
                    self.reading.hole_bytes += data.start - offset;
                    extent.unit.cover(&mut self.reading.covered_holes, data.start - offset);
                }
                self.end_run(RunEnd::Hole, extent.unit)?;
            }
            offset = data.start;
            while offset < data.end {
                let free = self.batch_bytes - self.batch.bytes.len();
                let free = if is_unsized { free.min(UNSIZED_READ_BYTES) } else { free };
                let wanted = usize::try_from(data.end - offset).unwrap_or(usize::MAX).min(free);
                match self.read_some(file, offset, wanted, extent.unit)? {
                    Ok(read) if read < wanted => {
                        // It has become shorter.
                        self.end_run(RunEnd::Stream, extent.unit)?;
                        return Ok(Ok(()));
                    }
                    Ok(read) => offset += read as u64,
                    Err(error) => return Ok(Err(error)),
                }
            }
        }
        self.end_run(RunEnd::Stream, extent.unit)?;
        Ok(Ok(()))
    }

    /// Reads `wanted` bytes, which fit into the batch, as the next run.
    fn read_some(
        &mut self,
        file: &mut dyn SourceFile,
        offset: u64,
        wanted: usize,
        unit: UnitOf,
    ) -> Result<Result<usize, Error>, Stop> {
        let start = self.batch.bytes.len();
        self.batch.bytes.resize(start + wanted, 0);
        let read = self.timed(|reader| {
            let buffer = reader.batch.bytes.get_mut(start..).unwrap_or_default();
            file.read_at(offset, buffer)
        });
        let len = *read.as_ref().unwrap_or(&0);
        self.batch.bytes.truncate(start + len);
        self.reading.bytes += len as u64;
        unit.cover(&mut self.reading.covered_data, len as u64);
        self.monitor.advance(len as u64, 0);
        if 0 < len {
            self.batch.runs.push(Run { len, end: RunEnd::Open, unit });
        }
        if self.batch.bytes.len() == self.batch_bytes {
            self.hand_over()?;
        }
        Ok(read)
    }

    /// Ends the run before, or, where it went with the batch before, one of no bytes.
    fn end_run(&mut self, end: RunEnd, unit: UnitOf) -> Result<(), Stop> {
        self.reading.streams += u64::from(end == RunEnd::Stream);
        match self.batch.runs.last_mut() {
            Some(run) if run.end == RunEnd::Open => run.end = end,
            _ => self.batch.runs.push(Run { len: 0, end, unit }),
        }
        if RUNS_MAX <= self.batch.runs.len() { self.hand_over() } else { Ok(()) }
    }

    fn hand_over(&mut self) -> Result<(), Stop> {
        let next = Batch { bytes: Vec::with_capacity(self.batch_bytes), runs: Vec::new() };
        let batch = std::mem::replace(&mut self.batch, next);
        if batch.runs.is_empty() {
            return Ok(());
        }
        if (self.send)(batch) && !self.monitor.is_interrupted() { Ok(()) } else { Err(Stop) }
    }

    fn timed<T>(&mut self, call: impl FnOnce(&mut Self) -> T) -> T {
        let (start, processor) = (Instant::now(), processor_time());
        let result = call(self);
        self.reading.time += start.elapsed();
        self.reading.processor += processor_time().saturating_sub(processor);
        result
    }
}
