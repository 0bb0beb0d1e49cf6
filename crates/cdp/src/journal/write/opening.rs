//! Opening a journal: a new one, the one that is there, and one that has lost records.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use onefold_engine::error::Result;
use onefold_engine::io::{Disk, Host};

use super::{Journal, State, Writer, boot_of};
use crate::journal::head::Head;
use crate::journal::recovery::{self, Recovered, Resumed};
use crate::journal::segment::Directory;
use crate::journal::{JournalIdentity, JournalSize, Lsn};

impl Journal {
    /// Creates the directory of an empty journal, in an existing one.
    pub fn create(disk: &dyn Disk, dir: &Path) -> Result<()> {
        disk.create_dir(dir)?;
        Head::create(disk, dir).map(drop)
    }

    /// Opens the journal in a directory of a disk, and finds its end.
    ///
    /// The caller excludes other processes. Fails with [`onefold_engine::Error::Damaged`] if records are gone that were durable, if the journal belongs
    /// to another repository or group, and if the key does not open it.
    pub fn open(
        disk: Arc<dyn Disk>,
        host: Arc<dyn Host>,
        dir: &Path,
        identity: JournalIdentity,
        size: JournalSize,
    ) -> Result<(Self, Recovered)> {
        let mut head = Head::open(&*disk, dir)?;
        let directory = Directory { disk, dir: dir.to_owned(), identity: Arc::new(identity), size };
        let resumed = recovery::recover(&directory, &mut head, boot_of(&*host))?;
        Ok(Self::resume(directory, host, head, resumed))
    }

    /// Opens a journal that has lost records: those up to the loss stay if they continue a checkpoint, whose last record is given. All other
    /// segments are set aside. The next record must begin a gap.
    ///
    /// The caller excludes other processes, and refuses the group until the gap is durable.
    pub fn begin_again(
        disk: Arc<dyn Disk>,
        host: Arc<dyn Host>,
        dir: &Path,
        identity: JournalIdentity,
        size: JournalSize,
        stored: Lsn,
    ) -> Result<(Self, Recovered)> {
        disk.create_dir(dir)?;
        let directory = Directory { disk, dir: dir.to_owned(), identity: Arc::new(identity), size };
        let resumed = recovery::salvage(&directory, stored)?;
        let head = Head::create(&*directory.disk, dir)?;
        Ok(Self::resume(directory, host, head, resumed))
    }

    fn resume(directory: Directory, host: Arc<dyn Host>, head: Head, resumed: Resumed) -> (Self, Recovered) {
        let Resumed { recovered, segments, free, file_number, next, number } = resumed;
        let written_frame = next.frame - 1;
        let writer = Writer {
            segment: None,
            offset: 0,
            next,
            number,
            free,
            released: VecDeque::new(),
            file_number,
            filling: None,
        };
        let state = State {
            next: next.lsn,
            written: next.lsn,
            synced: next.lsn,
            written_frame,
            synced_frame: written_frame,
            writer: Some(Box::new(writer)),
            segments: segments.into(),
            ..State::default()
        };
        let (head, state, opened) = (Mutex::new(head), Mutex::new(state), recovered.next);
        (Self { directory, host, head, opened, state, changed: Condvar::new() }, recovered)
    }
}
