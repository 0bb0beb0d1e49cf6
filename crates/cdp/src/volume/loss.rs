//! Going on after the journal of a group has lost records.
//!
//! Order: all extents are behind; the activity log refuses the group until the end; what continues the newest checkpoint stays in
//! the journal, and the rest is set aside; a gap is durable in the journal; the activity log agrees with it. The next opening goes on as a group
//! that is behind.

use std::path::Path;
use std::sync::Arc;

use onefold_engine::error::{Error, Result};
use onefold_engine::io::{Disk, Host};

use crate::journal::{Journal, JournalIdentity, JournalSize, Lsn, Op, Record, Recovered};
use crate::volume::activity::ActivityLog;
use crate::volume::behind::{BEHIND_BYTES, BehindMap};
use crate::volume::compare::FindDifferences;
use crate::volume::group::Group;
use crate::volume::group_files::{ACTIVITY, BEHIND, JOURNAL, UNFINISHED};

/// Puts a file in the place of another one, all at once.
fn replace(disk: &dyn Disk, path: &Path, create: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let new = path.with_extension("new");
    if disk.exists(&new)? {
        disk.remove(&new)?;
    }
    create(&new)?;
    disk.rename(&new, path)?;
    disk.sync_dir(path.parent().unwrap_or(Path::new("")))
}

impl Group {
    /// Goes on after the journal has lost records. `stored` is the last record of the newest checkpoint, and `sizes` are those of the volumes.
    /// Returns the journal with the records that continue the checkpoint; [`Group::end_loss`] must follow.
    pub fn begin_after_loss(
        (disk, host): (&Arc<dyn Disk>, Arc<dyn Host>),
        dir: &Path,
        (identity, size): (JournalIdentity, JournalSize),
        sizes: &[u64],
        stored: Lsn,
    ) -> Result<(Journal, Recovered)> {
        replace(&**disk, &dir.join(BEHIND), |path| BehindMap::create(&**disk, path, sizes, true))?;
        replace(&**disk, &dir.join(ACTIVITY), |path| ActivityLog::create(&**disk, path)?.close(UNFINISHED))?;
        let opened = Journal::begin_again(Arc::clone(disk), host, &dir.join(JOURNAL), identity, size, stored)?;
        disk.sync_dir(dir)?;
        Ok(opened)
    }

    /// Lets the history have a gap over all volumes from a time on, in nanoseconds since 1970-01-01 00:00:00 UTC: that of the first record that
    /// is gone. No moment from then on can be asked for until the gap ends. The group can be opened again.
    pub fn end_loss(disk: &dyn Disk, dir: &Path, journal: Journal, sizes: &[u64], time: u64) -> Result<()> {
        let failed = |error: crate::journal::AppendError| Error::invalid(error.to_string());
        let gap = |(volume, size): (u16, &u64)| Record::range(Op::Gap, volume, 0, *size);
        let mut records: Vec<Record<'_>> = (0..).zip(sizes).map(gap).collect();
        // A time is looked for among flushes.
        records.push(Record::range(Op::Flush, 0, 0, 0));
        let mut body = Vec::new();
        for record in &records {
            record.encode(&mut body);
        }
        let count = u32::try_from(records.len()).expect("a group has few volumes");
        journal.append_frame(journal.next(), time, count, &body).and_then(|()| journal.sync()).map_err(failed)?;
        let next = journal.next();
        drop(journal);
        replace(disk, &dir.join(ACTIVITY), |path| ActivityLog::create(disk, path)?.close(next))
    }

    /// Compares the extents that are behind with the history before the gap, and takes the marks from those that are equal. One mark stays: the
    /// gap ends with the last one. No request is in progress.
    pub fn compare_behind(&self, find: &mut FindDifferences<'_>) -> Result<()> {
        let (mut cursor, mut found, mut blocks) = (0, Vec::new(), Vec::new());
        let first = self.behind.next(&mut cursor, BEHIND_BYTES);
        while let Some(range) = first.as_ref().and_then(|_| self.behind.next(&mut cursor, BEHIND_BYTES)) {
            found.resize(usize::try_from(range.bytes.end - range.bytes.start).expect("an extent is short"), 0);
            self.read_origin(range.volume, range.bytes.start, &mut found)?;
            blocks.clear();
            find(range.volume, range.bytes.start, &found, &mut blocks)?;
            if blocks.is_empty() {
                self.behind.clear(range.volume, range.bytes);
            }
        }
        self.behind.persist()
    }
}
