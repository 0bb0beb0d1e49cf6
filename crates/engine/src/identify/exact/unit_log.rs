//! A log of chunks with its units, and with the jobs that it runs in the background.
//!
//! At most one write and one read of the log run at a time. A job owns its inputs. The caller takes its results at points
//! that the stream decides, so the speed of a disk changes no verdict.

use std::sync::Arc;

use crate::error::Result;
use crate::identify::exact::registry::Registry;
use crate::identify::locality::arrival_log::{ArrivalLog, LogExtent, LogReadDone, LogWindow};
use crate::identify::locality::units::Units;
use crate::io::background::Background;
use crate::io::{Disk, Host};
use crate::kv::{Ordinal, Position};

/// A log with its units, and with its write and its read in the background.
#[derive(Debug)]
pub(in crate::identify) struct UnitLog {
    disk: Arc<dyn Disk>,
    host: Arc<dyn Host>,
    /// Not to be written or read directly.
    pub(crate) log: ArrivalLog,
    /// Ranges that hits read as a whole; none if hits read windows.
    pub(crate) units: Units,
    writing: Option<Background<Result<()>>>,
    reading: Option<Background<LogReadDone>>,
}

impl UnitLog {
    pub(crate) fn new(disk: Arc<dyn Disk>, host: Arc<dyn Host>, log: ArrivalLog, units: Units) -> Self {
        Self { disk, host, log, units, writing: None, reading: None }
    }

    /// Begins a unit with the next record; the first one of a stream, if so.
    pub(in crate::identify) fn begin_unit(&mut self, begins_stream: bool) {
        let next = self.log.next_position();
        if begins_stream { self.units.begin_stream(next) } else { self.units.begin(next) }
    }

    /// Begins the unit of a container with the next record.
    pub(in crate::identify) fn begin_container(&mut self, ordinal: Ordinal) {
        self.units.begin_container(self.log.next_position(), ordinal);
    }

    /// Returns the range that a hit on a record reads: its unit, and `more` units after it; see [`Units::around`].
    pub(in crate::identify) fn around(&self, number: u64, more: u32, records_max: u32) -> Option<LogWindow> {
        if number < self.log.first_position().0 {
            return None;
        }
        self.units.around(Position(number), self.log.next_position(), more, records_max)
    }

    /// Returns the mean number of records of a unit; 0 without units.
    pub(in crate::identify) fn mean_records(&self) -> u64 {
        self.units.mean_records(self.log.next_position())
    }

    /// Makes space for another record: writes the whole pages in memory in the background.
    pub(in crate::identify) fn make_space(&mut self, registry: &mut Registry) -> Result<()> {
        if self.log.has_space() {
            return Ok(());
        }
        self.finish_write()?;
        let (synced, records) = registry.begin_sync()?;
        let write = self.log.start_write();
        // Registry before log: an ordinal in it must mean the same container after a power cut.
        let write = move || synced.sync(records).and_then(|()| write());
        self.writing = Some(Background::start(&self.host, "log write", write));
        Ok(())
    }

    /// Waits for the pages that are being written, if any are.
    pub(in crate::identify) fn finish_write(&mut self) -> Result<()> {
        let Some(done) = self.writing.take() else { return Ok(()) };
        self.log.finish_write(done.wait().flatten())
    }

    /// Reads windows.
    pub(in crate::identify) fn read(&mut self, windows: Vec<LogWindow>) -> Vec<LogExtent> {
        self.log.read(&*self.disk, windows)
    }

    /// Returns true if windows are being read in the background.
    pub(in crate::identify) fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// Starts to read windows in the background.
    pub(in crate::identify) fn start_read(&mut self, windows: Vec<LogWindow>) {
        assert!(self.reading.is_none(), "windows of the log are taken before the next are read");
        let read = self.log.start_read(windows);
        let disk = Arc::clone(&self.disk);
        self.reading = Some(Background::start(&self.host, "window read", move || read(&*disk)));
    }

    /// Waits for the read in the background; returns its records, or `None` if none was started.
    pub(in crate::identify) fn end_read(&mut self) -> Option<Vec<LogExtent>> {
        let read = self.reading.take()?;
        Some(self.log.finish_read(read.wait().expect("a read ends with its records")))
    }
}

impl Drop for UnitLog {
    fn drop(&mut self) {
        // The write goes into the log file: the index keeps its lock until the write ends.
        let _ = self.finish_write();
    }
}
