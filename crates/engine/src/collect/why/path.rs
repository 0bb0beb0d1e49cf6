//! Which snapshots have a path, and what of its contents only they hold.

use std::collections::BTreeSet;

use crate::collect::ledger::{Held, LedgerRequest, RankCursor, StoredCursor, fail_on_missing};
use crate::collect::mark::MarkedSnapshot;
use crate::collect::usage::{REACHED_LEN, Reached};
use crate::collect::why::elsewhere::Elsewhere;
use crate::collect::why::timeline::{Contents, PeriodCursor, Periods, Sums, Timeline};
use crate::collect::why::{Numbers, WhyRequest, of_snapshot, roots};
use crate::error::Result;
use crate::io::tree::EntryKind;
use crate::monitor::Items;
use crate::snapshot::Snapshot;
use crate::spill::Partitions;
use crate::store::cursor::DirectoryCursor;
use crate::store::node_walk::NodeWalk;
use crate::store::{MetadataReader, Store};
use crate::tree::Content;
use crate::types::{Fingerprint, SessionId};

/// Rank of a chunk that another snapshot reaches.
const OTHER_SNAPSHOT: u16 = 0;
/// Rank of a chunk that the snapshots with the path reach by another path, too.
const OTHER_PATH: u16 = 1;

/// The snapshots that have a path, and its chunks: those of the file, or of the directory and everything below it, in all of these
/// snapshots together. The entry itself stands in the directory above and does not count.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PathHolders {
    /// The snapshots with the path that were asked for, by host, paths and time. Empty: none has it.
    pub snapshots: Vec<PathInSnapshot>,
    /// All chunks of the path.
    pub all: Held,
    /// Those that no snapshot but these holds: what forgetting all of these would free.
    pub only: Held,
    /// Those of them that no other path of these snapshots holds, except directories above: what leaving the path out of
    /// all of these would free.
    pub only_path: Held,
    /// Those that other snapshots hold, too.
    pub shared: Held,
    /// Chunks that forgetting the given snapshots would free.
    pub freed: Option<Held>,
}

/// A snapshot with the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathInSnapshot {
    /// The snapshot.
    pub session: SessionId,
    /// Kind of the entry.
    pub kind: EntryKind,
    /// Number of the contents, from 0: equal numbers stand for equal contents. For a directory, these are also the names and metadata
    /// of everything below it.
    pub contents: u32,
    /// True if the contents are those in the snapshot before it of the same host and paths; `None` for the first one.
    pub is_unchanged: Option<bool>,
    /// The chunks of the path in this snapshot.
    pub held: Held,
}

/// Finds a path in snapshots, and counts what they hold of it. A path has a slash before each name, or is `/`.
///
/// Fails if a node cannot be read, a container does not open, or a chunk is missing: then the numbers are not known.
pub fn why_path(store: &Store, request: &WhyRequest<'_>, path: &[u8]) -> Result<PathHolders> {
    let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
    let mut question = Question { store, request, names: &names, reader: request.reader(store)? };
    let found = question.find()?;
    if found.rows.is_empty() {
        return Ok(PathHolders::default());
    }
    let having: BTreeSet<SessionId> = found.rows.iter().map(|row| row.session).collect();
    let (with, without): (Vec<_>, Vec<_>) = request.snapshots.iter().partition(|(session, _)| having.contains(session));
    let kept = roots(request.snapshots.iter().filter(|(session, _)| request.is_kept(session)));
    let (with, without) = (roots(with.into_iter()), roots(without.into_iter()));
    let marked = if request.forgotten.is_some() { kept.len() } else { 0 } + with.len() + without.len();
    request.monitor.stage(Items::Snapshots, (found.trees.len() + marked) as u64);
    let periods = question.periods(&found.trees)?;
    let others = question.mark_others(&with, &without)?;
    let kept = request.forgotten.map(|_| question.mark(&kept)).transpose()?;
    // Its memory is free for the directories of containers.
    drop(question);
    let marks = Marks { others: &others, kept: kept.as_ref() };
    let (mut counted, sums) = count(store, request, &periods, &marks, found.trees.len())?;
    counted.snapshots = found.rows;
    for row in &mut counted.snapshots {
        row.held = *sums.get(row.contents as usize).expect("each has a sum");
    }
    Ok(counted)
}

/// Snapshots with the path, and the trees with its distinct contents.
struct FoundPath {
    rows: Vec<PathInSnapshot>,
    trees: Vec<(SessionId, Fingerprint)>,
}

struct Question<'a> {
    store: &'a Store,
    request: &'a WhyRequest<'a>,
    names: &'a [&'a [u8]],
    reader: MetadataReader,
}

impl Question<'_> {
    fn find(&mut self) -> Result<FoundPath> {
        let mut found = FoundPath { rows: Vec::new(), trees: Vec::new() };
        let mut numbers = Numbers::default();
        let mut before: Option<(&Snapshot, u32)> = None;
        for (session, snapshot) in self.request.ordered() {
            self.request.go_on()?;
            if !self.request.is_listed(&session) {
                continue;
            }
            let entry = entry_of(&mut self.reader, snapshot.tree, self.names);
            let Some((kind, content)) = entry.map_err(|error| of_snapshot(session, error))? else { continue };
            let (contents, is_new) = numbers.of(identity(kind, &content));
            if is_new {
                found.trees.push((session, snapshot.tree));
            }
            let is_after = |last: &Snapshot| (&last.hostname, &last.paths) == (&snapshot.hostname, &snapshot.paths);
            let last = before.replace((snapshot, contents)).filter(|(last, _)| is_after(last));
            let is_unchanged = last.map(|(_, number)| number == contents);
            found.rows.push(PathInSnapshot { session, kind, contents, is_unchanged, held: Held::default() });
        }
        Ok(found)
    }

    fn periods(&mut self, trees: &[(SessionId, Fingerprint)]) -> Result<Periods> {
        let (scratch, host, memory) = (self.request.scratch, &self.store.host, self.request.memory());
        let nodes = scratch.map(host, "open nodes", memory / 4)?;
        let periods = scratch.partitions(host, "periods of chunks", memory / 4)?;
        let names = self.names;
        let mut contents = |reader: &mut MetadataReader, number: u32| {
            let (session, tree) = trees.get(number as usize).expect("numbers are below the count");
            let entry = entry_of(reader, *tree, names).map_err(|error| of_snapshot(*session, error))?;
            let contents = match entry.map(|(_, content)| content) {
                Some(Content::Directory { node }) => Contents::Directory(node),
                Some(Content::File { recipe, .. }) => Contents::File(recipe),
                Some(Content::Symlink { .. } | Content::Special { .. }) | None => Contents::Nothing,
            };
            Ok((*session, contents))
        };
        let count = u32::try_from(trees.len()).expect("each stands for a snapshot in memory");
        let timeline = Timeline { reader: &mut self.reader, keeps: &|_| true, monitor: self.request.monitor };
        timeline.record(count, &mut contents, nodes, periods)
    }

    /// Marks what other snapshots reach, and what those with the path reach elsewhere.
    fn mark_others(
        &mut self,
        with: &[(SessionId, Fingerprint)],
        without: &[(SessionId, Fingerprint)],
    ) -> Result<Reached> {
        let (scratch, host, memory) = (self.request.scratch, &self.store.host, self.request.memory());
        let walked = scratch.map(host, "directories above the path", memory / 16)?;
        let mut elsewhere = Elsewhere { names: self.names, walked, monitor: self.request.monitor };
        self.walk_all(&mut |walk, reached, request| {
            for (session, root) in without {
                let mut visitor = MarkedSnapshot::of_rank(reached, OTHER_SNAPSHOT);
                let walked = walk.walk(*root, &mut visitor, request.monitor);
                walked.map_err(|error| of_snapshot(*session, error))?;
                request.monitor.advance(0, 1);
            }
            for (session, root) in with {
                let mut visitor = MarkedSnapshot::of_rank(reached, OTHER_PATH);
                let walked = elsewhere.walk(walk, *root, &mut visitor);
                walked.map_err(|error| of_snapshot(*session, error))?;
                request.monitor.advance(0, 1);
            }
            Ok(())
        })
    }

    /// Marks what snapshots reach.
    fn mark(&mut self, roots: &[(SessionId, Fingerprint)]) -> Result<Reached> {
        self.walk_all(&mut |walk, reached, request| {
            for (session, root) in roots {
                let walked = walk.walk(*root, &mut MarkedSnapshot::of_rank(reached, 0), request.monitor);
                walked.map_err(|error| of_snapshot(*session, error))?;
                request.monitor.advance(0, 1);
            }
            Ok(())
        })
    }

    fn walk_all(&mut self, walk_each: &mut WalkEach<'_>) -> Result<Reached> {
        let (scratch, host, memory) = (self.request.scratch, &self.store.host, self.request.memory());
        let visited = scratch.map(host, "nodes visited", memory / 16)?;
        let mut reached: Partitions<REACHED_LEN> = scratch.partitions(host, "references", memory / 16 * 3)?;
        let mut walk = NodeWalk::new(&mut self.reader, visited);
        walk_each(&mut walk, &mut reached, self.request)?;
        reached.finish()
    }
}

/// Walks trees, and adds what they reach.
type WalkEach<'w> = dyn FnMut(&mut NodeWalk<'_>, &mut Partitions<REACHED_LEN>, &WhyRequest<'_>) -> Result<()> + 'w;

/// Finds an entry in a tree, by the names of its path. The root of the tree is a directory.
fn entry_of(reader: &mut MetadataReader, root: Fingerprint, names: &[&[u8]]) -> Result<Option<(EntryKind, Content)>> {
    let mut found = (EntryKind::Directory, Content::Directory { node: root });
    for name in names {
        let Content::Directory { node } = found.1 else { return Ok(None) };
        let Some(hinted) = DirectoryCursor::new(node).find(name, reader)? else { return Ok(None) };
        found = (hinted.entry.kind, hinted.entry.content);
    }
    Ok(Some(found))
}

/// Returns a value that is the same for the same contents. Equal contents are cut into equal segments.
fn identity(kind: EntryKind, content: &Content) -> [u8; 32] {
    let code = match kind {
        EntryKind::File => 0,
        EntryKind::Directory => 1,
        EntryKind::Symlink => 2,
        EntryKind::Fifo => 3,
        EntryKind::Socket => 4,
        EntryKind::CharDevice => 5,
        EntryKind::BlockDevice => 6,
    };
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[code]);
    match content {
        Content::Directory { node } => hasher.update(&node.0),
        Content::File { recipe, .. } => {
            let mut encoded = Vec::new();
            recipe.encode(&mut encoded);
            hasher.update(&encoded)
        }
        Content::Symlink { target } => hasher.update(target),
        Content::Special { rdev } => hasher.update(&rdev.to_le_bytes()),
    };
    *hasher.finalize().as_bytes()
}

/// Chunks that snapshots reach.
struct Marks<'a> {
    others: &'a Reached,
    kept: Option<&'a Reached>,
}

/// Counts the chunks of the path by their holders, and those of each contents.
fn count(
    store: &Store,
    request: &WhyRequest<'_>,
    periods: &Periods,
    marks: &Marks<'_>,
    contents: usize,
) -> Result<(PathHolders, Vec<Held>)> {
    let &WhyRequest { scratch, memory_bytes, monitor, .. } = request;
    let stored = LedgerRequest { scratch, memory_bytes, monitor }.stored(store)?;
    let (mut chunks, mut stored) = (PeriodCursor::new(periods)?, StoredCursor::new(&stored)?);
    let mut others = RankCursor::new(marks.others)?;
    let mut kept = marks.kept.map(RankCursor::new).transpose()?;
    let mut counted = PathHolders { freed: kept.as_ref().map(|_| Held::default()), ..PathHolders::default() };
    let mut sums = Sums::new(u32::try_from(contents).expect("each stands for a snapshot in memory"));
    let (mut periods, mut missing) = (Vec::new(), 0);
    while let Some(prefix) = chunks.next(&mut periods)? {
        let Some(chunk) = stored.find(prefix)? else {
            missing += 1;
            continue;
        };
        counted.all.add(chunk);
        for period in &periods {
            sums.add(period, chunk);
        }
        match others.find(prefix)? {
            Some(OTHER_SNAPSHOT) => counted.shared.add(chunk),
            Some(_) => counted.only.add(chunk),
            None => {
                counted.only.add(chunk);
                counted.only_path.add(chunk);
            }
        }
        if let (Some(kept), Some(freed)) = (&mut kept, &mut counted.freed)
            && kept.find(prefix)?.is_none()
        {
            freed.add(chunk);
        }
    }
    fail_on_missing(missing)?;
    Ok((counted, sums.finish()))
}
