//! The timeline: which of several contents have each chunk.
//!
//! Contents are taken one after the other. A node is *open* while it belongs to the current contents: it counts the references
//! that open nodes have to it. It is read when the first one comes, and once more when the last one goes; then its **period**
//! ends, and so does that of each data chunk that it refers to. Nodes that the next contents share stay open and are not read. So
//! nodes are counted in a spilled map, data chunks are not, and the periods of a chunk are joined when they are sorted.

use std::ops::Range;

use crate::collect::ledger::Held;
use crate::collect::usage::{PREFIX_LEN, Prefix, prefix_of};
use crate::collect::why::of_snapshot;
use crate::error::Result;
use crate::monitor::Monitor;
use crate::recipe::{Recipe, RecipeItem};
use crate::spill::SpillMap;
use crate::spill::partition::{FilledPartitions, Partitions, SortedRecords};
use crate::store::MetadataReader;
use crate::store::node_walk::Frontier;
use crate::store::references::Reference;
use crate::types::{ChunkKind, Fingerprint, SessionId};

/// Bytes of a period: prefix of the chunk, number of the first contents that have it, and of the next that do not; the numbers in
/// big-endian order.
pub(super) const PERIOD_LEN: usize = PREFIX_LEN + 4 + 4;
/// Bytes of a node's state: the number of references to it, and of the contents that it is open since.
const STATE_LEN: usize = 8 + 4;

/// Contents of a path, or of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Contents {
    /// A directory, by the root node of its list.
    Directory(Fingerprint),
    /// A file.
    File(Recipe),
    /// An entry without chunks.
    Nothing,
}

/// Returns the contents with a number, and a snapshot that has them.
type ContentsOf<'a> = dyn FnMut(&mut MetadataReader, u32) -> Result<(SessionId, Contents)> + 'a;

/// Periods of chunks.
pub(super) type Periods = FilledPartitions<PERIOD_LEN>;

/// Records the periods of chunks.
pub(super) struct Timeline<'a> {
    /// Reads nodes.
    pub(super) reader: &'a mut MetadataReader,
    /// Chunks whose periods are recorded.
    pub(super) keeps: &'a dyn Fn(&Fingerprint) -> bool,
    /// Stops at an interruption, and takes the number of contents that were taken.
    pub(super) monitor: &'a dyn Monitor,
}

/// Nodes that are open, and the periods that have ended.
struct Recorder<'a> {
    nodes: SpillMap,
    periods: Partitions<PERIOD_LEN>,
    keeps: &'a dyn Fn(&Fingerprint) -> bool,
}

/// State of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct State {
    references: u64,
    since: u32,
}

impl Timeline<'_> {
    /// Takes so many contents, which `contents` returns with a snapshot that has them, and records the periods of their chunks.
    /// `nodes` and `periods` are empty.
    pub(super) fn record(
        self,
        count: u32,
        contents: &mut ContentsOf<'_>,
        nodes: SpillMap,
        periods: Partitions<PERIOD_LEN>,
    ) -> Result<Periods> {
        let Self { reader, keeps, monitor } = self;
        let mut recorder = Recorder { nodes, periods, keeps };
        let mut frontier = Frontier::new(reader);
        let mut before = (SessionId([0; 16]), Contents::Nothing);
        for at in 0..count {
            let next = contents(frontier.reader(), at)?;
            let begun = recorder.begin(&mut frontier, &next.1, at, monitor);
            begun.map_err(|error| of_snapshot(next.0, error))?;
            // What both have stays open.
            let ended = recorder.end(&mut frontier, &before.1, at, monitor);
            ended.map_err(|error| of_snapshot(before.0, error))?;
            before = next;
            monitor.advance(0, 1);
        }
        let ended = recorder.end(&mut frontier, &before.1, count, monitor);
        ended.map_err(|error| of_snapshot(before.0, error))?;
        recorder.periods.finish()
    }
}

impl Recorder<'_> {
    /// Opens the nodes of contents that are not open.
    fn begin(
        &mut self,
        frontier: &mut Frontier<'_>,
        contents: &Contents,
        at: u32,
        monitor: &dyn Monitor,
    ) -> Result<()> {
        match contents {
            Contents::Directory(node) => self.acquire(frontier, (ChunkKind::Tree, *node), at)?,
            Contents::File(recipe) => {
                for segment in segments(recipe) {
                    self.acquire(frontier, (ChunkKind::Recipe, segment), at)?;
                }
            }
            Contents::Nothing => {}
        }
        frontier.read_all(monitor, &mut |frontier, _, linked| {
            linked?.each_reference(&mut |reference| match reference {
                Reference::Node(link) => self.acquire(frontier, (link.kind(), link.fingerprint()), at),
                Reference::Chunk(..) => Ok(()),
            })
        })
    }

    /// Ends the contents before those numbered `at`, and the periods of chunks that no open node refers to.
    fn end(&mut self, frontier: &mut Frontier<'_>, contents: &Contents, at: u32, monitor: &dyn Monitor) -> Result<()> {
        match contents {
            Contents::Directory(node) => self.release(frontier, (ChunkKind::Tree, *node), at)?,
            Contents::File(recipe) => {
                for item in &recipe.items {
                    match item {
                        RecipeItem::Hole { .. } => {}
                        RecipeItem::Chunk(chunk) => self.record(&chunk.fingerprint, at.saturating_sub(1)..at)?,
                        RecipeItem::Segment { fingerprint, .. } => {
                            self.release(frontier, (ChunkKind::Recipe, *fingerprint), at)?;
                        }
                    }
                }
            }
            Contents::Nothing => {}
        }
        frontier.read_all(monitor, &mut |frontier, node, linked| {
            let since = self.state(&node)?.since;
            linked?.each_reference(&mut |reference| match reference {
                Reference::Node(link) => self.release(frontier, (link.kind(), link.fingerprint()), at),
                Reference::Chunk(chunk, _) => self.record(&chunk.fingerprint, since..at),
            })
        })
    }

    /// Counts a reference to a node. Opens the node if it is the first one.
    fn acquire(&mut self, frontier: &mut Frontier<'_>, (kind, node): (ChunkKind, Fingerprint), at: u32) -> Result<()> {
        let mut state = self.state(&node)?;
        if state.references == 0 {
            state.since = at;
            frontier.push(kind, node);
        }
        state.references += 1;
        self.nodes.insert(node.0, &state.encode())
    }

    /// Takes a reference to a node back. Closes the node if it was the last one.
    fn release(&mut self, frontier: &mut Frontier<'_>, (kind, node): (ChunkKind, Fingerprint), at: u32) -> Result<()> {
        let mut state = self.state(&node)?;
        // A node that was read twice with different references would be damage, which its fingerprint rules out.
        state.references = state.references.checked_sub(1).expect("each reference was counted");
        self.nodes.insert(node.0, &state.encode())?;
        if state.references == 0 {
            self.record(&node, state.since..at)?;
            frontier.push(kind, node);
        }
        Ok(())
    }

    fn state(&mut self, node: &Fingerprint) -> Result<State> {
        Ok(self.nodes.get(&node.0)?.as_deref().map(State::decode).unwrap_or_default())
    }

    fn record(&mut self, chunk: &Fingerprint, period: Range<u32>) -> Result<()> {
        if !(self.keeps)(chunk) {
            return Ok(());
        }
        let mut record = [0; PERIOD_LEN];
        let fields = prefix_of(chunk).into_iter().chain(period.start.to_be_bytes()).chain(period.end.to_be_bytes());
        record.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
        self.periods.push(&record)
    }
}

/// Returns the segments of a recipe.
fn segments(recipe: &Recipe) -> impl Iterator<Item = Fingerprint> {
    recipe.items.iter().filter_map(|item| match item {
        RecipeItem::Segment { fingerprint, .. } => Some(*fingerprint),
        RecipeItem::Chunk(_) | RecipeItem::Hole { .. } => None,
    })
}

impl State {
    fn encode(self) -> [u8; STATE_LEN] {
        let mut bytes = [0; STATE_LEN];
        let fields = self.references.to_le_bytes().into_iter().chain(self.since.to_le_bytes());
        bytes.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
        bytes
    }

    fn decode(bytes: &[u8]) -> Self {
        let (references, since) = bytes.split_first_chunk().expect("a state begins with a number");
        let since = since.first_chunk().expect("a state ends with a number");
        Self { references: u64::from_le_bytes(*references), since: u32::from_le_bytes(*since) }
    }
}

/// Cursor over chunks in the order of their prefixes, each with its periods. After an error it must be dropped.
pub(super) struct PeriodCursor<'a> {
    records: SortedRecords<'a, PERIOD_LEN>,
    next: Option<(Prefix, Range<u32>)>,
}

impl<'a> PeriodCursor<'a> {
    pub(super) fn new(periods: &'a Periods) -> Result<Self> {
        let mut cursor = Self { records: periods.sorted(), next: None };
        cursor.advance()?;
        Ok(cursor)
    }

    fn advance(&mut self) -> Result<()> {
        self.next = self.records.next().transpose()?.map(|record| {
            let [p0, p1, p2, p3, p4, p5, p6, p7, f0, f1, f2, f3, e0, e1, e2, e3] = record;
            let period = u32::from_be_bytes([f0, f1, f2, f3])..u32::from_be_bytes([e0, e1, e2, e3]);
            ([p0, p1, p2, p3, p4, p5, p6, p7], period)
        });
        Ok(())
    }

    /// Returns the next chunk, and replaces `periods` by its periods, which ascend and do not touch each other.
    pub(super) fn next(&mut self, periods: &mut Vec<Range<u32>>) -> Result<Option<Prefix>> {
        periods.clear();
        let Some((prefix, _)) = self.next else { return Ok(None) };
        while let Some((_, period)) = self.next.take_if(|(next, _)| *next == prefix) {
            match periods.last_mut() {
                Some(last) if period.start <= last.end => last.end = last.end.max(period.end),
                _ => periods.push(period),
            }
            self.advance()?;
        }
        Ok(Some(prefix))
    }
}

/// Sums for each of several contents.
#[derive(Debug)]
pub(super) struct Sums {
    /// Chunks that begin with each, and those that end before it.
    changes: Vec<(Held, Held)>,
}

impl Sums {
    /// Starts with so many contents.
    pub(super) fn new(count: u32) -> Self {
        Self { changes: vec![<(Held, Held)>::default(); count as usize + 1] }
    }

    /// Adds a chunk to the contents of a period.
    pub(super) fn add(&mut self, period: &Range<u32>, chunk: (u32, u32)) {
        self.at(period.start).0.add(chunk);
        self.at(period.end).1.add(chunk);
    }

    fn at(&mut self, number: u32) -> &mut (Held, Held) {
        self.changes.get_mut(number as usize).expect("periods are those of the contents")
    }

    /// Returns the sum of each.
    pub(super) fn finish(self) -> Vec<Held> {
        let count = self.changes.len().saturating_sub(1);
        let sums = self.changes.into_iter().scan(Held::default(), |sum, (begun, ended)| {
            // What ends has begun before.
            *sum = Held {
                chunks: sum.chunks + begun.chunks - ended.chunks,
                plain_bytes: sum.plain_bytes + begun.plain_bytes - ended.plain_bytes,
                stored_bytes: sum.stored_bytes + begun.stored_bytes - ended.stored_bytes,
            };
            Some(*sum)
        });
        sums.take(count).collect()
    }
}
