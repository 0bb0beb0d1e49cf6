//! Parts of a group's history: checkpoints, and the journal after them.

use onefold_engine::error::{Error, Result};
use onefold_engine::store::Store;

use crate::history::{BLOCK_BYTES, Change, HistoryEntry};
use crate::journal::{Entry, GroupId, Journal, Lsn, Op};
use crate::stored::{Checkpoint, Checkpoints};
use crate::view::moment::Moment;

/// The checkpoints of a group, and its journal on this host.
#[derive(Debug)]
pub(super) struct Sources<'a> {
    pub(super) checkpoints: Checkpoints,
    pub(super) journal: Option<&'a Journal>,
}

/// A part of the history that follows a record.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next<'a> {
    /// A checkpoint that contains the next record.
    Checkpoint(&'a Checkpoint),
    /// The journal, which contains the next record.
    Journal(&'a Journal),
    /// The end of the history.
    End,
    /// The next record is in neither; this one is.
    Missing(Lsn),
}

impl<'a> Sources<'a> {
    pub(super) fn read(
        store: &Store,
        (name, id): (&str, Option<GroupId>),
        journal: Option<&'a Journal>,
    ) -> Result<Self> {
        let checkpoints = Checkpoints::read(store, name, id.or_else(|| journal.map(Journal::group)))?;
        match (checkpoints.id(), journal) {
            (None, _) => Err(Error::invalid(format!("there is no checkpoint of a group `{name}`"))),
            (Some(id), Some(journal)) if id != journal.group() => {
                Err(Error::invalid(format!("the checkpoints of `{name}` are of another group than the journal")))
            }
            (Some(_), journal) => {
                let newest = checkpoints.newest().map_or(Lsn(0), Checkpoint::last);
                journal.map_or(Ok(()), |journal| journal.check_continues(newest))?;
                Ok(Self { checkpoints, journal })
            }
        }
    }

    /// Returns the first checkpoint. There is one.
    pub(super) fn first(&self) -> &Checkpoint {
        self.checkpoints.list.first().expect("the sources have a checkpoint")
    }

    /// Returns the newest checkpoint. There is one.
    pub(super) fn newest(&self) -> &Checkpoint {
        self.checkpoints.newest().expect("the sources have a checkpoint")
    }

    /// Returns true if the moments inside a checkpoint, given by its position, can be reached: those before it continue it.
    pub(super) fn is_continued(&self, at: usize) -> bool {
        let before = at.checked_sub(1).and_then(|before| self.checkpoints.list.get(before));
        let checkpoint = self.checkpoints.list.get(at);
        before.zip(checkpoint).is_some_and(|(before, checkpoint)| checkpoint.first().0 <= before.last().0 + 1)
    }

    /// Returns what follows a record.
    pub(super) fn after(&self, lsn: Lsn) -> Next<'_> {
        let next = Lsn(lsn.0.saturating_add(1));
        if let Some(checkpoint) = self.checkpoints.containing(next) {
            return Next::Checkpoint(checkpoint);
        }
        let status = self.journal.map(|journal| (journal, journal.status()));
        if let Some((journal, status)) = status
            && status.first <= next
            && next < status.next
        {
            return Next::Journal(journal);
        }
        let later = self.checkpoints.list.iter().map(Checkpoint::last).find(|last| next <= *last);
        let in_journal = status.filter(|(_, status)| next < status.first && status.first < status.next);
        match later.or(in_journal.map(|(_, status)| status.first)) {
            Some(found) => Next::Missing(found),
            None => Next::End,
        }
    }

    /// Passes the entries of the records that are in the journal and in no checkpoint, and the marks among them.
    pub(super) fn journal_tail(&self, each: &mut dyn FnMut(Entry<'_>) -> Result<()>) -> Result<()> {
        if let Next::Journal(journal) = self.after(self.newest().last()) {
            let mut frames = journal.frames(Lsn(self.newest().last().0 + 1));
            while frames.next_frame(each)? {}
        }
        Ok(())
    }
}

/// Returns the entry of a record that has no versions: a flush, a gap, or a comparison.
pub(super) fn plain_entry(entry: &Entry<'_>) -> Option<HistoryEntry> {
    let Entry { lsn, time, record } = *entry;
    let (block, end) = (record.offset / BLOCK_BYTES, (record.offset + record.len).div_ceil(BLOCK_BYTES));
    let of = |change, block, count| Some(HistoryEntry { lsn, time, volume: record.volume, change, block, count });
    match record.op {
        Op::Flush => of(Change::Flush, 0, 0),
        Op::Gap => of(Change::Gap, block, end - block),
        Op::ResyncBegin => of(Change::ResyncBegin, block, end - block),
        Op::ResyncEnd => of(Change::ResyncEnd, block, end - block),
        Op::Write | Op::Zero | Op::Trim | Op::Mark | Op::Resize => None,
    }
}

/// Returns the moment after a record.
pub(super) fn moment(entry: &HistoryEntry) -> Moment {
    Moment { lsn: entry.lsn, time: Some(entry.time) }
}
