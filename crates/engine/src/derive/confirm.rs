//! Whether all chunks of a snapshot are in containers that a session may refer to (step W4 of docs/protocol.md).
//!
//! Every chunk is looked for in the directory of the container that its hint names, each directory once. Those that are not
//! there are looked for in all directories. Memory does not grow with the snapshot or the repository.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::bitmap::Bitmap;
use crate::container::{ContainerReader, DirectoryChunk};
use crate::derive::DeriveOptions;
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::object::names::ContainerName;
use crate::spill::{FilledPartitions, Partitions, SpillMap};
use crate::store::container_set::{ContainerNumber, Containers, RunCursor};
use crate::store::cursor::HintedEntry;
use crate::store::manifests::ManifestBuilder;
use crate::store::node_walk::{NodeVisitor, NodeWalk};
use crate::store::recipe_cursor::{FileExtent, HintedChunk, RecipeCursor};
use crate::store::walk::{Event, TreeWalk};
use crate::store::{MetadataReader, Session, Store};
use crate::tree::Content;
use crate::types::{Chunk, ContainerId, Fingerprint, SessionId};

/// Bytes of a reference: number of the container, fingerprint.
const REFERENCE_LEN: usize = 4 + 32;

/// State of a chunk in [`Missing`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It was not found so far.
    Wanted = 0,
    /// It was found after all.
    Found = 1,
    /// It is a node that cannot be read.
    Unreadable = 2,
}

/// The chunks of a snapshot that are in no container that a session may refer to.
#[derive(Debug)]
pub(crate) struct Missing {
    states: SpillMap,
    /// Chunks that are wanted or unreadable.
    count: u64,
    /// Containers that could not be made durable.
    unusable: Vec<ContainerId>,
}

/// The containers in which chunks are looked for.
#[derive(Clone, Debug)]
pub(crate) struct View<'a> {
    /// Takes the containers in which chunks are found.
    pub(crate) manifest: Option<&'a ManifestBuilder>,
    /// Those that may be referred to.
    pub(crate) live: Containers,
    /// Sessions whose containers are made durable before they are relied on.
    pub(crate) in_doubt: BTreeSet<SessionId>,
    /// The session that refers to them; `None`: nothing is written.
    pub(crate) session: Option<&'a Session>,
}

impl<'a> View<'a> {
    /// Returns what a session may refer to.
    pub(crate) fn of(session: &'a Session) -> Self {
        let (live, in_doubt) = (session.live.clone(), session.in_doubt.clone());
        Self { manifest: None, live, in_doubt, session: Some(session) }
    }

    fn found(&self, container: ContainerId, len: u32) {
        if let Some(manifest) = self.manifest {
            manifest.add(container, len);
        }
    }

    fn beat(&self) {
        if let Some(session) = self.session {
            session.beat();
        }
    }
}

/// Looks for all chunks that the roots of trees reach in the containers of a view. Makes those durable that it relies on.
/// `reader` reads these containers. Fails if a container cannot be read for another reason than loss or damage.
pub(crate) fn confirm(
    store: &Store,
    view: &View<'_>,
    reader: &mut MetadataReader,
    roots: &[Fingerprint],
    options: &DeriveOptions,
) -> Result<Missing> {
    reader.findings().iter().find(|error| !error.is_loss()).map_or(Ok(()), |error| Err(error.clone()))?;
    let (host, memory_bytes) = (&store.host, options.budget.index_bytes);
    let visited = options.scratch.map(host, "nodes visited", memory_bytes / 4)?;
    let states = options.scratch.map(host, "chunks missing", memory_bytes / 4)?;
    let references = options.scratch.partitions(host, "references", memory_bytes / 2)?;
    let missing = Missing { states, count: 0, unusable: Vec::new() };
    let near = RunCursor::default();
    let mut gathering = Gathering { view, references, named: Bitmap::default(), missing, near };
    let mut walk = NodeWalk::new(reader, visited);
    roots.iter().try_for_each(|root| walk.walk(*root, &mut gathering, &*options.monitor))?;
    let Gathering { references, named, mut missing, .. } = gathering;
    let search = Search { store, view, monitor: &*options.monitor };
    search.in_named(&named, &references.finish()?, &mut missing)?;
    if 0 < missing.count {
        search.everywhere(&mut missing)?;
    }
    Ok(missing)
}

/// Collects the references of a tree.
struct Gathering<'a> {
    view: &'a View<'a>,
    references: Partitions<REFERENCE_LEN>,
    /// Numbers of the containers that they name.
    named: Bitmap,
    missing: Missing,
    near: RunCursor,
}

impl Gathering<'_> {
    fn refer(&mut self, chunk: Fingerprint, container: Option<ContainerId>) -> Result<()> {
        let Some(number) = container.and_then(|id| self.view.live.find_near(id, &mut self.near)) else {
            return self.missing.want(chunk);
        };
        self.named.insert(number.0);
        let mut record = [0; REFERENCE_LEN];
        let (first, last) = record.split_first_chunk_mut().expect("a record begins with a number");
        *first = number.0.to_be_bytes();
        last.copy_from_slice(&chunk.0);
        self.references.push(&record)
    }
}

impl NodeVisitor for Gathering<'_> {
    fn node(&mut self, node: Fingerprint, reader: &mut MetadataReader) -> Result<()> {
        self.view.beat();
        let copies = reader.copies_of(&node)?;
        let durable = copies.iter().find(|id| !self.view.in_doubt.contains(&id.session));
        self.refer(node, durable.or(copies.first()).copied())
    }

    fn chunk(&mut self, chunk: Chunk, hint: Option<ContainerId>) -> Result<()> {
        self.refer(chunk.fingerprint, hint)
    }

    fn unreadable(&mut self, node: Fingerprint, error: Error) -> Result<()> {
        if error.is_loss() { self.missing.lose(node) } else { Err(error) }
    }
}

/// Takes a container with its directory. Returns false to end the search.
type TakeContainer<'a> = dyn FnMut(ContainerNumber, &ContainerName, Option<&ContainerReader>) -> Result<bool> + 'a;

/// A search in the directories of containers.
struct Search<'a> {
    store: &'a Store,
    view: &'a View<'a>,
    monitor: &'a dyn Monitor,
}

impl Search<'_> {
    /// Looks for each chunk in the container that its reference names.
    fn in_named(
        &self,
        named: &Bitmap,
        references: &FilledPartitions<REFERENCE_LEN>,
        missing: &mut Missing,
    ) -> Result<()> {
        let containers = self.view.live.retain(|number, _| named.contains(number.0));
        let mut references = references.sorted();
        let mut next = references.next().transpose()?;
        self.each_container(&containers, &mut |number, name, container| {
            // What is relied upon must be durable first.
            let container = if self.make_durable(name, missing)? { container } else { None };
            let mut last = None;
            while let Some(record) = next.filter(|record| record.starts_with(&number.0.to_be_bytes())) {
                next = references.next().transpose()?;
                let chunk = Fingerprint(*record.last_chunk().expect("a record ends with a fingerprint"));
                if last.replace(chunk) == Some(chunk) {
                    continue;
                }
                match container.and_then(|container| container.find(&chunk)) {
                    Some(position) => self.view.found(name.id, position.len),
                    None => missing.want(chunk)?,
                }
            }
            Ok(true)
        })
    }

    /// Looks for the missing chunks in all containers.
    fn everywhere(&self, missing: &mut Missing) -> Result<()> {
        self.each_container(&self.view.live, &mut |_, name, container| {
            let Some(container) = container else { return Ok(true) };
            let mut is_durable = None;
            for Chunk { fingerprint: chunk, len } in container.directory.chunks.iter().filter_map(DirectoryChunk::chunk)
            {
                if missing.state(&chunk)? != Some(State::Wanted) {
                    continue;
                }
                let is_durable = match is_durable {
                    Some(known) => known,
                    None => *is_durable.insert(self.make_durable(name, missing)?),
                };
                if is_durable {
                    self.view.found(name.id, len);
                    missing.find(chunk)?;
                }
            }
            Ok(0 < missing.count)
        })
    }

    /// Passes on containers with their directories while `each` returns true. One whose directory cannot be read, or whose
    /// file has another length than it should have, comes without.
    fn each_container(&self, containers: &Containers, each: &mut TakeContainer<'_>) -> Result<()> {
        for (number, opened) in containers.numbers().zip(self.store.open_containers(containers, containers.numbers())) {
            self.view.beat();
            if self.monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            let (name, opened) = opened?;
            let (_, len) = containers.sized(number)?;
            if let Some(error) = opened.as_ref().err().filter(|error| !error.is_loss()) {
                return Err(error.clone());
            }
            let whole = opened.ok().filter(|container| container.stored_len() == len);
            if !each(number, &name, whole.as_ref())? {
                break;
            }
        }
        Ok(())
    }

    /// Makes a container durable if it is not known to be. Returns false if that is not possible.
    fn make_durable(&self, name: &ContainerName, missing: &mut Missing) -> Result<bool> {
        let Some(session) = self.view.session else { return Ok(true) };
        if !self.view.in_doubt.contains(&name.id.session) {
            return Ok(true);
        }
        let unusable = session.make_durable(&[*name], &|| self.monitor.is_interrupted())?;
        missing.unusable.extend(unusable.iter().map(|(name, _)| name.id));
        Ok(unusable.is_empty())
    }
}

impl Missing {
    /// Returns how many chunks are missing.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the containers that hold chunks, and that could not be made durable.
    pub(crate) fn unusable(&self) -> &[ContainerId] {
        &self.unusable
    }

    /// Returns true if a chunk of the trees is missing.
    pub(crate) fn contains(&mut self, chunk: &Fingerprint) -> Result<bool> {
        Ok(self.state(chunk)?.is_some_and(|state| state != State::Found))
    }

    /// Passes on the path of each file, and of each directory with a part, that needs a missing chunk, with the reason. Returns
    /// their number.
    pub(crate) fn each_path(
        &mut self,
        root: Fingerprint,
        reader: &mut MetadataReader,
        monitor: &dyn Monitor,
        each: &mut dyn FnMut(&Path, &Error),
    ) -> Result<u64> {
        let mut paths = 0;
        let mut walk = TreeWalk::new(root, b"", ());
        while let Some(event) = walk.next(reader, monitor)? {
            let problem = match event {
                Event::Entry(hinted) => match &hinted.entry.content {
                    Content::Directory { node } => {
                        walk.enter(*node, ())?;
                        None
                    }
                    Content::File { .. } => self.problem_of(&hinted, reader)?,
                    Content::Symlink { .. } | Content::Special { .. } => None,
                },
                Event::Leave => None,
                Event::Unreadable(error) => Some(error),
            };
            if let Some(problem) = problem {
                let path = if walk.path().is_empty() { b"/" } else { walk.path() };
                each(Path::new(OsStr::from_bytes(path)), &problem);
                paths += 1;
            }
        }
        Ok(paths)
    }

    /// Returns why a file cannot be restored.
    fn problem_of(&mut self, file: &HintedEntry, reader: &mut MetadataReader) -> Result<Option<Error>> {
        let Content::File { recipe, .. } = &file.entry.content else { return Ok(None) };
        let mut cursor = RecipeCursor::new(recipe, &file.hints);
        loop {
            let chunk = match cursor.next(reader) {
                Ok(Some(FileExtent::Chunk(HintedChunk { chunk, .. }))) => chunk,
                Ok(Some(FileExtent::Hole { .. })) => continue,
                Ok(None) => return Ok(None),
                Err(error) => return Ok(Some(error)),
            };
            if self.contains(&chunk.fingerprint)? {
                return Ok(Some(Error::MissingChunk { fingerprint: chunk.fingerprint.to_string() }));
            }
        }
    }

    /// Adds a chunk that was not found.
    fn want(&mut self, chunk: Fingerprint) -> Result<()> {
        if self.states.insert_new(chunk.0, &[State::Wanted as u8])? {
            self.count += 1;
        }
        Ok(())
    }

    /// Adds a node that cannot be read.
    fn lose(&mut self, node: Fingerprint) -> Result<()> {
        if self.state(&node)?.is_none() {
            self.count += 1;
        }
        self.states.insert(node.0, &[State::Unreadable as u8])
    }

    /// Notes that a wanted chunk was found.
    fn find(&mut self, chunk: Fingerprint) -> Result<()> {
        self.count -= 1;
        self.states.insert(chunk.0, &[State::Found as u8])
    }

    fn state(&mut self, chunk: &Fingerprint) -> Result<Option<State>> {
        let state = self.states.get(&chunk.0)?;
        Ok(state.map(|state| match state.first() {
            Some(0) => State::Wanted,
            Some(1) => State::Found,
            _ => State::Unreadable,
        }))
    }
}
