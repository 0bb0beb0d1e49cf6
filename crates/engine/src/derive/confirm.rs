//! Whether all chunks of a snapshot are in containers that a session may refer to (step W4 of docs/protocol.md).
//!
//! Every chunk is looked for in the directory of the container that its hint names, each directory once. Those that are not
//! there are looked for in all directories. Memory does not grow with the snapshot or the repository.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::bitmap::Bitmap;
use crate::container::ContainerReader;
use crate::derive::DeriveOptions;
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::object::names::ContainerName;
use crate::spill::{FilledPartitions, Partitions, SpillMap};
use crate::store::container_set::{ContainerNumber, Containers, RunCursor};
use crate::store::cursor::{FileExtent, HintedChunk, HintedEntry, RecipeCursor};
use crate::store::node_walk::{NodeVisitor, NodeWalk};
use crate::store::walk::{Event, TreeWalk};
use crate::store::{MetadataReader, Session, Store};
use crate::tree::Content;
use crate::types::{Chunk, ContainerId, Fingerprint};

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
}

/// Looks for all chunks that the root of a tree reaches in the containers that a session may refer to. Makes those durable
/// that it relies on. `reader` reads these containers.
pub(crate) fn confirm(
    store: &Store,
    session: &Session,
    reader: &mut MetadataReader,
    root: Fingerprint,
    options: &DeriveOptions,
) -> Result<Missing> {
    let (host, memory_bytes) = (&store.host, options.budget.index_bytes);
    let visited = options.scratch.map(host, "nodes visited", memory_bytes / 4)?;
    let states = options.scratch.map(host, "chunks missing", memory_bytes / 4)?;
    let references = options.scratch.partitions(host, "references", memory_bytes / 2)?;
    let missing = Missing { states, count: 0 };
    let near = RunCursor::default();
    let mut gathering = Gathering { session, references, named: Bitmap::default(), missing, near };
    NodeWalk::new(reader, visited).walk(root, &mut gathering, &*options.monitor)?;
    let Gathering { references, named, mut missing, .. } = gathering;
    let search = Search { store, session, monitor: &*options.monitor };
    search.in_named(&named, &references.finish()?, &mut missing)?;
    if 0 < missing.count {
        search.everywhere(&mut missing)?;
    }
    Ok(missing)
}

/// Collects the references of a tree.
struct Gathering<'a> {
    session: &'a Session,
    references: Partitions<REFERENCE_LEN>,
    /// Numbers of the containers that they name.
    named: Bitmap,
    missing: Missing,
    near: RunCursor,
}

impl Gathering<'_> {
    fn refer(&mut self, chunk: Fingerprint, container: Option<ContainerId>) -> Result<()> {
        let Some(number) = container.and_then(|id| self.session.live.find_near(id, &mut self.near)) else {
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
        self.session.beat();
        let copies = reader.copies_of(&node)?;
        let durable = copies.iter().find(|id| !self.session.in_doubt.contains(&id.session));
        self.refer(node, durable.or(copies.first()).copied())
    }

    fn chunk(&mut self, chunk: Chunk, hint: Option<ContainerId>) -> Result<()> {
        self.refer(chunk.fingerprint, hint)
    }

    fn unreadable(&mut self, node: Fingerprint, _: Error) -> Result<()> {
        self.missing.lose(node)
    }
}

/// Takes a container with its directory. Returns false to end the search.
type TakeContainer<'a> = dyn FnMut(ContainerNumber, &ContainerName, Option<&ContainerReader>) -> Result<bool> + 'a;

/// A search in the directories of containers.
struct Search<'a> {
    store: &'a Store,
    session: &'a Session,
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
        let containers = self.session.live.retain(|number, _| named.contains(number.0));
        let mut references = references.sorted();
        let mut next = references.next().transpose()?;
        self.each_container(&containers, &mut |number, name, container| {
            // What is relied upon must be durable first.
            let container = if self.make_durable(name)? { container } else { None };
            while let Some(record) = next.filter(|record| record.starts_with(&number.0.to_be_bytes())) {
                let chunk = Fingerprint(*record.last_chunk().expect("a record ends with a fingerprint"));
                if container.is_none_or(|container| container.find(&chunk).is_none()) {
                    missing.want(chunk)?;
                }
                next = references.next().transpose()?;
            }
            Ok(true)
        })
    }

    /// Looks for the missing chunks in all containers.
    fn everywhere(&self, missing: &mut Missing) -> Result<()> {
        self.each_container(&self.session.live, &mut |_, name, container| {
            let Some(container) = container else { return Ok(true) };
            let mut is_durable = None;
            for chunk in container.directory.chunks.iter().filter_map(|chunk| chunk.fingerprint) {
                if missing.state(&chunk)? != Some(State::Wanted) {
                    continue;
                }
                let is_durable = match is_durable {
                    Some(known) => known,
                    None => *is_durable.insert(self.make_durable(name)?),
                };
                if is_durable {
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
            self.session.beat();
            if self.monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            let (name, opened) = opened?;
            let (_, len) = containers.sized(number)?;
            let whole = opened.ok().filter(|container| container.stored_len() == len);
            if !each(number, &name, whole.as_ref())? {
                break;
            }
        }
        Ok(())
    }

    /// Makes a container durable if it is not known to be. Returns false if that is not possible.
    fn make_durable(&self, name: &ContainerName) -> Result<bool> {
        if !self.session.in_doubt.contains(&name.id.session) {
            return Ok(true);
        }
        let unusable = self.session.make_durable(&[*name], &|| self.monitor.is_interrupted())?;
        Ok(unusable.is_empty())
    }
}

impl Missing {
    /// Returns how many chunks are missing.
    pub(crate) fn count(&self) -> u64 {
        self.count
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
            if self.state(&chunk.fingerprint)?.is_some_and(|state| state != State::Found) {
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
