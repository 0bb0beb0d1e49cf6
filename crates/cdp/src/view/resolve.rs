//! Finding the moments that users name.

use std::collections::VecDeque;

use onefold_engine::error::{Error, Result};

use crate::history::Change;
use crate::journal::{Lsn, Op};
use crate::stored::{Checkpoint, Streams, read_index};
use crate::view::moment::{At, Moment, TimeRule};
use crate::view::sources::{Sources, moment, plain_entry};

/// Most flushes that `flush~N` counts back.
const FLUSHES_BACK_MAX: usize = 1 << 20;

impl Sources<'_> {
    /// Finds the moment that a user has named.
    pub(super) fn resolve(&self, streams: &mut Streams, at: &At) -> Result<Moment> {
        match at {
            At::Lsn(lsn) => Ok(Moment { lsn: *lsn, time: None }),
            At::Latest => self.latest(),
            At::Mark(name) => self.mark(name),
            At::Time(time, rule) => self.time(streams, *time, *rule),
            At::FlushBack(back) => self.flush_back(streams, *back),
        }
    }

    fn latest(&self) -> Result<Moment> {
        let newest = self.newest();
        let mut latest = Moment { lsn: newest.last(), time: Some(newest.nanoseconds()) };
        self.journal_tail(&mut |entry| {
            latest = Moment { lsn: entry.lsn, time: Some(entry.time) };
            Ok(())
        })?;
        Ok(latest)
    }

    fn mark(&self, name: &str) -> Result<Moment> {
        let mut found = None;
        self.journal_tail(&mut |entry| {
            if entry.record.op == Op::Mark && entry.record.payload == name.as_bytes() {
                found = Some(Moment { lsn: entry.lsn, time: Some(entry.time) });
            }
            Ok(())
        })?;
        let marks = self.checkpoints.list.iter().rev().flat_map(|checkpoint| checkpoint.note.marks.iter().rev());
        let stored = || marks.into_iter().find(|mark| mark.name == name);
        found
            .or_else(|| stored().map(|mark| Moment { lsn: Lsn(mark.lsn), time: None }))
            .ok_or_else(|| Error::invalid(format!("no moment has the name `{name}`")))
    }

    fn time(&self, streams: &mut Streams, time: u64, rule: TimeRule) -> Result<Moment> {
        let mut found = None;
        let is_exact = rule == TimeRule::Exact;
        self.journal_tail(&mut |entry| {
            if entry.time <= time && (is_exact || entry.record.op == Op::Flush) {
                found = Some(Moment { lsn: entry.lsn, time: Some(entry.time) });
            }
            Ok(())
        })?;
        if let Some(found) = found {
            return Ok(found);
        }
        for (at, checkpoint) in self.checkpoints.list.iter().enumerate().rev() {
            let before = at.checked_sub(1).and_then(|before| self.checkpoints.list.get(before));
            if before.is_some_and(|before| time < before.nanoseconds()) {
                continue;
            }
            let is_continued = self.is_continued(at);
            read_index(streams, checkpoint, &mut |entry| {
                // An index begins with gaps of earlier records, and their times.
                let is_earlier =
                    entry.lsn == checkpoint.first() && matches!(entry.change, Change::Gap | Change::ResyncBegin);
                let is_moment = !is_earlier && (is_continued || entry.lsn == checkpoint.last());
                if entry.time <= time && is_moment && (is_exact || entry.change == Change::Flush) {
                    found = Some(moment(&entry));
                }
                Ok(())
            })?;
            let is_image = !checkpoint.has_history() || is_exact && !is_continued;
            if found.is_none() && is_image && checkpoint.nanoseconds() <= time {
                found = Some(Moment { lsn: checkpoint.last(), time: Some(checkpoint.nanoseconds()) });
            }
            if let Some(found) = found {
                return Ok(found);
            }
        }
        Err(Error::invalid("the history begins after this time"))
    }

    fn flush_back(&self, streams: &mut Streams, back: u64) -> Result<Moment> {
        let Some(wanted) = usize::try_from(back).ok().filter(|back| *back < FLUSHES_BACK_MAX) else {
            return Err(Error::invalid(format!("flushes are counted back up to {}", FLUSHES_BACK_MAX - 1)));
        };
        let mut flushes = VecDeque::new();
        self.journal_tail(&mut |entry| {
            if entry.record.op == Op::Flush {
                keep(&mut flushes, plain_entry(&entry).map(|entry| moment(&entry)), wanted + 1);
            }
            Ok(())
        })?;
        let mut behind = flushes.len();
        let mut intervals: Vec<(usize, &Checkpoint)> = self.checkpoints.list.iter().enumerate().collect();
        while behind <= wanted {
            let Some((at, checkpoint)) = intervals.pop() else { break };
            let skipped = behind;
            flushes.clear();
            let is_continued = self.is_continued(at);
            read_index(streams, checkpoint, &mut |entry| {
                let is_moment = is_continued || entry.lsn == checkpoint.last();
                if entry.change == Change::Flush && is_moment {
                    keep(&mut flushes, Some(moment(&entry)), wanted + 1 - skipped);
                    behind += 1;
                }
                Ok(())
            })?;
            behind = skipped + flushes.len();
        }
        if behind <= wanted {
            return Err(Error::invalid(format!("the history has {behind} flushes")));
        }
        flushes.front().copied().ok_or_else(|| Error::invalid("the history has no flush"))
    }
}

/// Keeps the last moments.
fn keep(moments: &mut VecDeque<Moment>, next: Option<Moment>, most: usize) {
    moments.extend(next);
    while most < moments.len() {
        moments.pop_front();
    }
}
