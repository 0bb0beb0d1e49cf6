//! The writing half of a backup: from chunks and metadata to a committed snapshot.
//!
//! [`backup`](crate::backup::backup()) pulls a source through it. Programs that have their chunks already push them: they append
//! chunks, take references, build recipes and trees of them, and commit.

use std::io::{ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;

use crate::backup::Budget;
use crate::backup::base_stages::BaseChoices;
use crate::backup::block::Buffers;
use crate::backup::cut::{CutBlock, FingerprintChunks};
use crate::backup::identify::{ChunkCounts, IdentifyStage};
use crate::backup::pack::PackStage;
use crate::compress::Compression;
use crate::crypto::Keys;
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprinter;
use crate::identify::{Counters, Identifier};
use crate::pipeline::TaskQueue;
use crate::pipeline::driver::{Driver, Pool};
use crate::recipe::{BuiltRecipe, MetadataSink, RecipeBuilder};
use crate::snapshot::{CommitBody, CommitKind, Snapshot, Summary};
use crate::store::container_set::Containers;
use crate::store::cursor::HintedEntry;
use crate::store::manifests::ManifestBuilder;
use crate::store::metadata::Scratch;
use crate::store::{Session, Store};
use crate::tree::builder::{TreeBuilder, TreeCut};
use crate::tree::format::check_entry;
use crate::types::{ChunkKind, ChunkRef, Fingerprint, SessionId};

/// How a writer works.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// How new regions are compressed.
    pub compression: Compression,
    /// Division of the memory.
    pub budget: Budget,
    /// Directory for spilled state.
    pub scratch: Scratch,
    /// Choose what new regions are compressed against, in a repository of format 2.
    pub bases: BaseChoices,
}

/// Stores chunks and metadata in one session, and commits a snapshot.
pub struct Writer<'a> {
    pub(super) store: Store,
    pub(super) session: Arc<Session>,
    pub(super) options: WriterOptions,
    pub(super) stage: IdentifyStage<'a>,
    pub(super) manifest: Arc<ManifestBuilder>,
    /// Chunks that were appended and have no fingerprint yet.
    open: Option<CutBlock>,
    buffers: Buffers,
    name: TaskQueue<FingerprintChunks>,
    state: State,
}

/// Progress of a writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Something may not be durable.
    Open,
    /// Everything is durable.
    Finished,
    /// The snapshot was committed.
    Committed,
}

impl std::fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("session", &self.session.id).field("state", &self.state).finish_non_exhaustive()
    }
}

impl<'a> Writer<'a> {
    /// Starts to write in a session, which has begun. The identifier must know the session's live containers. What was recorded
    /// with it stays recorded, however this ends.
    pub(crate) fn begin(
        store: &Store,
        session: &Arc<Session>,
        options: &WriterOptions,
        driver: &Driver,
        identifier: &'a mut dyn Identifier,
    ) -> Self {
        let pack = PackStage::new(store, session, driver, options.compression, &options.budget, &options.bases);
        let manifest = Arc::new(ManifestBuilder::new(session.id, &session.live));
        let keys = Arc::clone(&store.keys);
        let stage = IdentifyStage::new(keys, identifier, pack, Arc::clone(&manifest), &options.budget);
        let fingerprinter: Arc<dyn Fingerprinter> = Arc::<Keys>::clone(&store.keys);
        Self {
            store: store.clone(),
            session: Arc::clone(session),
            options: options.clone(),
            stage,
            manifest,
            open: None,
            buffers: Buffers::default(),
            name: driver.queue(FingerprintChunks { fingerprinter }, Pool::Compute, options.budget.blocks_in_flight),
            state: State::Open,
        }
    }

    /// Returns the session, which is also the id of the snapshot to be.
    pub fn session(&self) -> SessionId {
        self.session.id
    }

    /// Returns the containers that the snapshot may refer to, for a [`MetadataReader`](crate::store::MetadataReader).
    pub fn live(&self) -> &Containers {
        &self.session.live
    }

    /// Returns true if a prune has condemned containers and has not ended. [`Writer::reuse`] then looks at every chunk, and refuses a
    /// file of which a part is in these containers. A program that can wait rather ends this session, and writes later.
    pub fn is_condemning(&self) -> bool {
        self.session.is_condemning
    }

    /// Appends a data chunk, which is at most as long as a region of the repository. The caller takes references between the
    /// calls: at most twice [`Budget::references_in_flight`] wait.
    pub fn chunk(&mut self, bytes: &[u8]) -> Result<()> {
        let longest = self.store.config.region_bytes as usize;
        if bytes.is_empty() || longest < bytes.len() {
            return Err(Error::invalid(format!("a chunk of {} bytes: possible are 1 to {longest}", bytes.len())));
        }
        self.reopen();
        if self.open.as_ref().is_some_and(|open| !open.fits(bytes.len())) {
            self.name_open()?;
        }
        self.open.get_or_insert_with(|| CutBlock::new(self.buffers.take())).push(bytes);
        Ok(())
    }

    /// Takes the reference to the next chunk, in the order in which they were appended; `None` if it is not known yet. The
    /// snapshot may refer to it.
    pub fn next_reference(&mut self) -> Option<ChunkRef> {
        let reference = self.stage.next_reference()?;
        self.manifest.add(reference.container, reference.chunk.len);
        Some(reference)
    }

    /// Makes the references to all chunks known. Calls are not free: each ends a region of the repository early.
    pub fn resolve(&mut self) -> Result<()> {
        self.name_all()?;
        self.stage.resolve_all()
    }

    /// Stores a stream, cut every `chunk_bytes` bytes whatever the repository's chunker is, and returns its recipe. No reference may
    /// wait to be taken.
    pub fn stream(&mut self, chunk_bytes: u32, source: &mut dyn Read) -> Result<BuiltRecipe> {
        self.assert_taken();
        let config = Arc::clone(&self.store.config);
        let longest = config.region_bytes;
        if chunk_bytes == 0 || longest < chunk_bytes {
            return Err(Error::invalid(format!("chunks of {chunk_bytes} bytes: possible are 1 to {longest}")));
        }
        let mut recipe = RecipeBuilder::new(config.recipe_cut, config.recipe_inline_max);
        let mut chunk = vec![0; chunk_bytes as usize];
        loop {
            let len = fill(&mut chunk, source)?;
            let filled = chunk.get(..len).expect("a read fills no more than its buffer");
            if !filled.is_empty() {
                self.chunk(filled)?;
            }
            if len < chunk.len() {
                self.resolve()?;
            }
            while let Some(ChunkRef { chunk, container }) = self.next_reference() {
                recipe.chunk(chunk, Some(container), self)?;
            }
            if len < chunk.len() {
                return recipe.finish(self);
            }
        }
    }

    /// Stores a directory and returns its node, which is also the tree of a snapshot if the directory is its root. The entries
    /// may have any order; memory holds them all.
    pub fn directory(&mut self, mut entries: Vec<HintedEntry>) -> Result<Fingerprint> {
        entries.sort_unstable_by(|a, b| a.entry.name.cmp(&b.entry.name));
        let config = Arc::clone(&self.store.config);
        let mut last: Option<&[u8]> = None;
        for HintedEntry { entry, .. } in &entries {
            check_entry(entry, config.entry_bytes_max() as usize).map_err(Error::invalid)?;
            if last.replace(&entry.name) == Some(&entry.name) {
                let name = String::from_utf8_lossy(&entry.name);
                return Err(Error::invalid(format!("two entries of a directory have the name `{name}`")));
            }
        }
        let keys = Arc::clone(&self.store.keys);
        let cut = TreeCut { rule: config.tree_cut, node_bytes: config.tree_node_bytes as usize };
        let mut builder = TreeBuilder::new(cut);
        for HintedEntry { entry, hints } in &entries {
            builder.push(entry, hints, &keys, self)?;
        }
        builder.finish(&keys, self)
    }

    /// Makes everything durable that was appended so far, and makes the index know it, so that a later session finds it even if
    /// this one fails. It ends a container of each kind early.
    pub fn barrier(&mut self) -> Result<()> {
        if self.state == State::Open {
            self.name_all()?;
            // Steps D1 to D3 of docs/durability.md.
            self.stage.finish()?;
            self.state = State::Finished;
        }
        Ok(())
    }

    /// Makes everything durable, and returns the summary with the time, and with the chunks and bytes that were stored.
    pub fn summarize(&mut self, summary: Summary) -> Result<Summary> {
        self.barrier()?;
        let counts = self.stage.counts;
        Ok(Summary {
            end: self.store.host.now(),
            data_chunks: counts.data_unique,
            metadata_chunks: counts.metadata_unique,
            data_added: counts.bytes_added,
            data_added_packed: self.stage.stored_bytes(),
            ..summary
        })
    }

    /// Commits a snapshot, after making durable what it refers to. The session ends with it. Returns the id of the snapshot.
    ///
    /// The tree must consist of chunks that this writer has stored or referred to: of [`Writer::directory`],
    /// [`Writer::next_reference`], and what [`Writer::reuse`] allows.
    pub fn commit(&mut self, snapshot: &Snapshot) -> Result<SessionId> {
        snapshot.validate()?;
        self.barrier()?;
        // Everything the commit refers to is durable before it: see docs/durability.md, D1 to D5.
        let body = CommitBody {
            kind: CommitKind::Snapshot,
            snapshot: Some(snapshot.clone()),
            heads: self.session.heads.clone(),
            manifest: self.session.put_manifest(&self.store, self.manifest.finish()?)?,
        };
        self.session.commit(&body)?;
        self.state = State::Committed;
        Ok(self.session.id)
    }

    /// Returns true if a snapshot was committed.
    pub(crate) fn is_committed(&self) -> bool {
        self.state == State::Committed
    }

    /// Shows that the session is alive, in a work that takes minutes without a call of another method.
    pub fn beat(&self) {
        self.session.beat();
    }

    /// Returns what the identifier counted.
    pub fn counters(&self) -> Counters {
        self.stage.counters()
    }

    /// Returns the chunks so far, by verdict.
    pub fn counts(&self) -> ChunkCounts {
        self.stage.counts
    }

    fn reopen(&mut self) {
        assert!(self.state != State::Committed, "nothing is written after the commit");
        self.state = State::Open;
    }

    fn assert_taken(&self) {
        assert!(self.stage.waiting() == 0, "references are taken before a stream begins");
    }

    /// Hands the open block over to be fingerprinted.
    fn name_open(&mut self) -> Result<()> {
        match self.open.take().and_then(|block| self.name.push(block)) {
            Some(named) => self.identify(named),
            None => Ok(()),
        }
    }

    /// Has all chunks fingerprinted and submitted.
    fn name_all(&mut self) -> Result<()> {
        self.name_open()?;
        while let Some(named) = self.name.pop() {
            self.identify(named)?;
        }
        Ok(())
    }

    fn identify(&mut self, block: CutBlock) -> Result<()> {
        self.session.beat();
        let waiting = self.stage.waiting();
        assert!(
            waiting <= 2 * self.options.budget.references_in_flight,
            "references are taken while chunks are appended"
        );
        self.stage.submit(&Arc::new(block))?;
        if self.stage.is_congested() { self.stage.resolve_all() } else { Ok(()) }
    }
}

impl MetadataSink for Writer<'_> {
    fn store(&mut self, kind: ChunkKind, contents: &[u8], hints: &[u8]) -> Result<Fingerprint> {
        self.reopen();
        self.session.beat();
        self.stage.store(kind, contents, hints)
    }
}

/// Reads until the buffer is full or the stream ends; returns the number of bytes.
fn fill(buffer: &mut [u8], source: &mut dyn Read) -> Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match source.read(rest) {
            Ok(0) => break,
            Ok(len) => filled += len,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io("read", Path::new("a stream"), error)),
        }
    }
    Ok(filled)
}
