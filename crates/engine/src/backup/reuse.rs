//! Whether a snapshot that is written may refer to what its parent refers to.

use std::sync::Arc;

use crate::backup::live::LiveChunks;
use crate::backup::writer::Writer;
use crate::error::Result;
use crate::snapshot::CommitKind;
use crate::store::MetadataReader;
use crate::store::container_set::{ContainerNumber, Containers};
use crate::store::cursor::{DirectoryCursor, HintedEntry};
use crate::store::manifests::{ManifestBuilder, UsedBytes};
use crate::store::recipe_cursor::HintedChunk;
use crate::store::view::{View, ViewMemory};
use crate::tree::Content;
use crate::types::{ChunkRef, Fingerprint, SessionId};

/// How a writer makes sure that the chunks of a file are in containers that its snapshot may refer to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Proof {
    /// By the rule for unchanged files of docs/protocol.md. If it does not hold, or a container that the parent needs is gone
    /// all the same, by looking.
    Rule,
    /// By looking for every chunk in the container that its hint names. The manifest of the snapshot then lists the containers that
    /// the file needs, and no others.
    EveryChunk,
}

/// A file of a parent snapshot.
#[derive(Clone, Debug)]
pub enum Reuse {
    /// The snapshot may refer to all of its chunks and segments, with this proof.
    Allowed(Box<HintedEntry>, Proof),
    /// The parent, or the file, is not there, or some of it is in no container that may be referred to: it is stored again.
    Refused,
}

/// Finds single chunks of snapshots in the containers that a new snapshot may refer to, so that its manifest lists what it needs and no
/// more. See [`Writer::chunk_finder`].
#[derive(Debug)]
pub struct ChunkFinder {
    live: LiveChunks,
    manifest: Arc<ManifestBuilder>,
}

impl ChunkFinder {
    /// Returns a reference to a chunk, to which the snapshot may refer; `None` if it is in no container that may be referred to, as
    /// far as its hint shows.
    pub fn find(&mut self, chunk: &HintedChunk) -> Result<Option<ChunkRef>> {
        let Some(container) = self.live.live_container(chunk)? else { return Ok(None) };
        self.manifest.add(container, chunk.chunk.len);
        Ok(Some(ChunkRef { chunk: chunk.chunk, container }))
    }
}

impl Writer<'_> {
    /// Returns a finder of single chunks. It looks for each in the container that its hint names, as [`Proof::EveryChunk`] does for a
    /// whole file: a program that takes a part of a file over needs it for that part alone. Its answers hold for this session.
    pub fn chunk_finder(&self) -> ChunkFinder {
        ChunkFinder { live: LiveChunks::new(self.view()), manifest: Arc::clone(&self.manifest) }
    }

    /// Finds a file of a parent snapshot, of which parts may then stand in the new one, unchanged or [patched](crate::recipe::patch()).
    /// `path` is the names of the directories that lead to it, and its own. From now on `reader` uses the containers that the
    /// session may refer to, and no others, until it [learns](MetadataReader::learn) others.
    ///
    /// The answer holds for this session. With [`Proof::Rule`] the manifest lists the containers that the parent's manifest lists,
    /// so that it may list more than the new snapshot needs.
    pub fn reuse(
        &mut self,
        parent: SessionId,
        path: &[&[u8]],
        reader: &mut MetadataReader,
        proof: Proof,
    ) -> Result<Reuse> {
        reader.confine(&self.session.live)?;
        // After steps W1 and W2 of docs/protocol.md, which have begun the session.
        let commit = match self.store.read_commit(parent) {
            Err(error) if error.is_loss() => return Ok(Reuse::Refused),
            commit => commit?,
        };
        let (CommitKind::Snapshot, Some(snapshot)) = (commit.body.kind, &commit.body.snapshot) else {
            return Ok(Reuse::Refused);
        };
        let file = match find(snapshot.tree, path, reader) {
            Err(error) if error.is_loss() => return Ok(Reuse::Refused),
            file => file?,
        };
        let Some(file) = file else { return Ok(Reuse::Refused) };
        if proof == Proof::Rule
            && self.rule_holds(parent)?
            && let Some(checksum) = commit.body.manifest
            && self.list_again(parent, &checksum)?
        {
            return Ok(Reuse::Allowed(Box::new(file), Proof::Rule));
        }
        self.look(file, reader)
    }

    /// Returns true if the rule for unchanged files holds: the session had read what collections do before, no collection was
    /// condemning, and the parent, whose commit was read, is not forgotten.
    fn rule_holds(&self, parent: SessionId) -> Result<bool> {
        if self.session.is_condemning {
            return Ok(false);
        }
        match self.store.read_forget(parent) {
            Err(error) if error.is_missing_object() => Ok(true),
            // It is forgotten, or may be.
            Ok(()) => Ok(false),
            Err(error) if error.is_loss() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Adds the containers that the parent's manifest lists to the new one. Returns false, and adds none, if that is not possible:
    /// it cannot be read, or one of them is neither live nor known to have moved to live ones.
    fn list_again(&self, parent: SessionId, checksum: &[u8; 32]) -> Result<bool> {
        let live = &self.session.live;
        let mut view = self.view();
        let mut is_live = true;
        let checked = self.store.read_manifest(parent, checksum, &mut |container, _| {
            if is_live && live.find(container).is_none() {
                let moved = view.moved(container)?;
                is_live = !moved.is_empty() && moved.iter().all(|target| live.contains(*target));
            }
            Ok(())
        });
        match checked {
            Ok(()) if is_live => {}
            Ok(()) => return Ok(false),
            Err(error) if error.is_loss() => return Ok(false),
            Err(error) => return Err(error),
        }
        self.store.read_manifest(parent, checksum, &mut |container, share| {
            if let Some(number) = live.find(container) {
                return self.refer(live, number, share);
            }
            let moved = view.moved(container)?;
            moved.iter().filter_map(|target| live.find(*target)).try_for_each(|number| self.refer(live, number, share))
        })?;
        Ok(true)
    }

    /// Adds a share of a live container to the manifest.
    fn refer(&self, live: &Containers, number: ContainerNumber, share: u8) -> Result<()> {
        let (name, len) = live.sized(number)?;
        let bytes = len.saturating_mul(share.into()).div_ceil(255);
        self.manifest.add(name.id, u32::try_from(bytes).unwrap_or(u32::MAX));
        Ok(())
    }

    /// Looks for every chunk and segment of a file.
    fn look(&self, file: HintedEntry, reader: &mut MetadataReader) -> Result<Reuse> {
        let Content::File { recipe, .. } = &file.entry.content else { return Ok(Reuse::Refused) };
        let mut used = UsedBytes::default();
        let mut live = LiveChunks::new(self.view());
        reader.used = Some(UsedBytes::default());
        let found = live.containers_of(recipe, &file.hints, reader, &mut used, &|| self.session.beat());
        let read = reader.used.take();
        match found {
            Ok(Some(hints)) => {
                self.manifest.add_all(&mut used);
                if let Some(mut read) = read {
                    self.manifest.add_all(&mut read);
                }
                Ok(Reuse::Allowed(Box::new(HintedEntry { entry: file.entry, hints }), Proof::EveryChunk))
            }
            Ok(None) => Ok(Reuse::Refused),
            Err(error) if error.is_loss() => Ok(Reuse::Refused),
            Err(error) => Err(error),
        }
    }

    fn view(&self) -> View {
        let bytes = self.options.budget.parent_bytes / 4;
        let memory = ViewMemory { directories: bytes / 2, moved: bytes / 2 };
        View::new(&self.store, &self.session.live, &self.options.scratch, memory).fixed()
    }
}

/// Finds a file in a tree.
fn find(tree: Fingerprint, path: &[&[u8]], reader: &mut MetadataReader) -> Result<Option<HintedEntry>> {
    let Some((name, directories)) = path.split_last() else { return Ok(None) };
    let mut node = tree;
    for directory in directories {
        let found = DirectoryCursor::new(node).find(directory, reader)?;
        match found.map(|found| found.entry.content) {
            Some(Content::Directory { node: below }) => node = below,
            _ => return Ok(None),
        }
    }
    let found = DirectoryCursor::new(node).find(name, reader)?;
    Ok(found.filter(|found| matches!(found.entry.content, Content::File { .. })))
}
