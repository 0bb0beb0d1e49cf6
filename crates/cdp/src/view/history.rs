//! Which moments there are.

use std::ops::Range;

use onefold_engine::error::Result;
use onefold_engine::store::Store;

use crate::history::{BLOCK_BYTES, Change, GapTracker, HistoryEntry, OpenGap};
use crate::journal::{GroupId, Journal, Lsn, Op};
use crate::stored::{Checkpoint, Streams, read_index};
use crate::view::moment::Moment;
use crate::view::point::ViewOptions;
use crate::view::sources::{Next, Sources, moment, plain_entry};

/// Most flushes and gaps of a listing: the latest ones.
const LISTED_MAX: usize = 100_000;
/// Nanoseconds of a minute.
const MINUTE: u64 = 60_000_000_000;

/// Which flushes are listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FlushDetail {
    /// The last one of each minute.
    #[default]
    PerMinute,
    /// All.
    All,
    /// None. The listing needs no index then, unless gaps are wanted.
    None,
}

/// Items to list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HistoryRequest {
    /// Flushes.
    pub flushes: FlushDetail,
    /// Checkpoints whose last record is before this one are left out, with their records.
    pub since: Lsn,
}

/// A moment with a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MarkListed {
    /// Its record.
    pub lsn: Lsn,
    /// Its name.
    pub name: String,
    /// Wall clock of the record, or of the last one before it that has blocks or is a flush; `None` if there is none.
    pub time: Option<u64>,
    /// True if it is in a checkpoint.
    pub is_stored: bool,
}

/// A range of a volume whose changes are or were missing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GapListed {
    /// Name of the volume.
    pub volume: String,
    /// Bytes, on the grid of blocks.
    pub bytes: Range<u64>,
    /// The first moment in it.
    pub from: Moment,
    /// The first moment after it; `None` if it is still open.
    pub to: Option<Moment>,
}

/// Records that are in no checkpoint and not in the journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnreachableRange {
    /// The first one.
    pub first: Lsn,
    /// The last one. The moment after it can be reached.
    pub last: Lsn,
}

/// The moments of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HistoryListing {
    /// Identity of the group.
    pub group: GroupId,
    /// Checkpoints, ascending.
    pub checkpoints: Vec<Checkpoint>,
    /// Marks, ascending.
    pub marks: Vec<MarkListed>,
    /// Flushes, ascending.
    pub flushes: Vec<Moment>,
    /// Flushes that were left out since there were too many.
    pub flushes_left_out: u64,
    /// Gaps, in the order in which they ended, the open ones last.
    pub gaps: Vec<GapListed>,
    /// Records between checkpoints that are gone.
    pub unreachable: Vec<UnreachableRange>,
    /// The latest moment.
    pub latest: Moment,
}

/// Lists the moments of a group: `group` is its name, and its identity if several groups have had the name.
pub fn history(
    store: &Store,
    options: &ViewOptions,
    group: (&str, Option<GroupId>),
    request: HistoryRequest,
    journal: Option<&Journal>,
) -> Result<HistoryListing> {
    let mut sources = Sources::read(store, group, journal)?;
    let group = sources.checkpoints.id().expect("the sources have a checkpoint");
    let newest = sources.newest().last();
    sources.checkpoints.list.retain(|checkpoint| request.since <= checkpoint.last() || checkpoint.last() == newest);
    let mut streams = Streams::open(store, &options.scratch, &options.driver, options.memory_bytes)?;
    let first = sources.first();
    let latest = Moment { lsn: first.last(), time: Some(first.nanoseconds()) };
    let listing = HistoryListing {
        group,
        checkpoints: sources.checkpoints.list.clone(),
        marks: Vec::new(),
        flushes: Vec::new(),
        flushes_left_out: 0,
        gaps: Vec::new(),
        unreachable: Vec::new(),
        latest,
    };
    let volumes = first.volumes.clone();
    let mut scan = Scan { listing, volumes, gaps: GapTracker::default(), request };
    scan.checkpoint(&mut streams, first, Reach::Last)?;
    scan.walk(&mut streams, &sources)?;
    let open: Vec<OpenGap> = scan.gaps.open().cloned().collect();
    for gap in &open {
        scan.gap(gap, None);
    }
    Ok(scan.listing)
}

/// Moments of a checkpoint that can be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    /// All that its index leads to.
    All,
    /// The one after its last record: the checkpoint before it is gone.
    Last,
}

struct Scan {
    listing: HistoryListing,
    volumes: Vec<String>,
    gaps: GapTracker,
    request: HistoryRequest,
}

impl Scan {
    fn walk(&mut self, streams: &mut Streams, sources: &Sources<'_>) -> Result<()> {
        let mut last = sources.first().last();
        loop {
            last = match sources.after(last) {
                Next::Checkpoint(checkpoint) => {
                    self.checkpoint(streams, checkpoint, Reach::All)?;
                    checkpoint.last()
                }
                Next::Journal(journal) => {
                    self.journal(journal, last)?;
                    if self.listing.latest.lsn <= last {
                        return Ok(());
                    }
                    self.listing.latest.lsn
                }
                Next::Missing(found) => {
                    self.listing.unreachable.push(UnreachableRange { first: Lsn(last.0 + 1), last: found });
                    let open: Vec<OpenGap> = self.gaps.open().cloned().collect();
                    for gap in &open {
                        self.gap(gap, None);
                    }
                    self.gaps = GapTracker::default();
                    if let Some(checkpoint) = sources.checkpoints.at(found).filter(|last| last.last() == found) {
                        self.checkpoint(streams, checkpoint, Reach::Last)?;
                    }
                    found
                }
                Next::End => return Ok(()),
            };
        }
    }

    fn checkpoint(&mut self, streams: &mut Streams, checkpoint: &Checkpoint, reach: Reach) -> Result<()> {
        let is_moment = |lsn: Lsn| reach == Reach::All || lsn == checkpoint.last();
        let mut marks = checkpoint.note.marks.iter().peekable();
        let mut time = None;
        let mut take_marks = |listing: &mut HistoryListing, before: Lsn, time| {
            while let Some(mark) = marks.next_if(|mark| mark.lsn < before.0) {
                let (lsn, name) = (Lsn(mark.lsn), mark.name.clone());
                if !is_moment(lsn) {
                    continue;
                }
                listing.marks.push(MarkListed { lsn, name, time, is_stored: true });
            }
        };
        read_index(streams, checkpoint, &mut |entry| {
            take_marks(&mut self.listing, entry.lsn, time);
            time = Some(entry.time);
            self.entry(&entry, is_moment(entry.lsn));
            Ok(())
        })?;
        take_marks(&mut self.listing, Lsn(u64::MAX), time);
        self.listing.latest = Moment { lsn: checkpoint.last(), time: Some(checkpoint.nanoseconds()) };
        Ok(())
    }

    fn journal(&mut self, journal: &Journal, after: Lsn) -> Result<()> {
        let mut frames = journal.frames(Lsn(after.0 + 1));
        while frames.next_frame(&mut |entry| {
            if entry.record.op == Op::Mark {
                let name = String::from_utf8_lossy(entry.record.payload).into_owned();
                self.listing.marks.push(MarkListed { lsn: entry.lsn, name, time: Some(entry.time), is_stored: false });
            }
            if let Some(entry) = plain_entry(&entry) {
                self.entry(&entry, true);
            }
            self.listing.latest = Moment { lsn: entry.lsn, time: Some(entry.time) };
            Ok(())
        })? {}
        Ok(())
    }

    fn entry(&mut self, entry: &HistoryEntry, is_moment: bool) {
        for gap in self.gaps.push(entry) {
            self.gap(&gap, Some(moment(entry)));
        }
        if entry.change == Change::Flush && is_moment {
            self.flush(moment(entry));
        }
    }

    fn flush(&mut self, next: Moment) {
        let flushes = &mut self.listing.flushes;
        let minute = |moment: &Moment| moment.time.map(|time| time / MINUTE);
        match self.request.flushes {
            FlushDetail::None => return,
            FlushDetail::PerMinute if flushes.last().is_some_and(|last| minute(last) == minute(&next)) => {
                flushes.pop();
            }
            FlushDetail::PerMinute | FlushDetail::All => {}
        }
        flushes.push(next);
        if 2 * LISTED_MAX <= flushes.len() {
            self.listing.flushes_left_out += LISTED_MAX as u64;
            flushes.drain(..LISTED_MAX);
        }
    }

    fn gap(&mut self, gap: &OpenGap, to: Option<Moment>) {
        let volume = self.volumes.get(usize::from(gap.volume)).cloned().unwrap_or_default();
        let bytes = gap.blocks.start * BLOCK_BYTES..gap.blocks.end * BLOCK_BYTES;
        let from = Moment { lsn: gap.lsn, time: Some(gap.time) };
        self.listing.gaps.push(GapListed { volume, bytes, from, to });
        if 2 * LISTED_MAX <= self.listing.gaps.len() {
            self.listing.gaps.drain(..LISTED_MAX);
        }
    }
}
