//! One backup session from its start to its commit.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use crate::accelerator::Accelerator;
use crate::backup::Budget;
use crate::backup::assemble::{Assembler, BuiltTree, Owners};
use crate::backup::base_stages::BaseChoices;
use crate::backup::cut::{CutBlock, CutEvent};
use crate::backup::entry::AccessTimes;
use crate::backup::identify::{ChunkCounts, IdentifyStage};
use crate::backup::ingest::{ChunkRule, Ingest};
use crate::backup::parent::{Comparison, Parent};
use crate::backup::read::{FileReader, SourceReader};
use crate::backup::rewriting::History;
use crate::backup::sparse::{Shunned, find_sparse};
use crate::backup::writer::{Writer, WriterOptions};
use crate::compress::Compression;
use crate::crypto::Keys;
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprinter;
use crate::identify::{Counters, Identifier, IndexPreset};
use crate::io::tree::SourceTree;
use crate::monitor::Monitor;
use crate::pipeline::Permits;
use crate::pipeline::driver::Driver;
use crate::similarity::choose::Limits;
use crate::snapshot::{IndexNote, OwnerNames, Rewritten, Snapshot, Summary};
use crate::source::exclude::Excludes;
use crate::source::walk::Walk;
use crate::store::container_set::Containers;
use crate::store::manifests::ManifestBuilder;
use crate::store::metadata::{MetadataMemory, MetadataReader, Scratch};
use crate::store::view::{View, ViewMemory};
use crate::store::{Session, Store};
use crate::types::{ContainerId, Fingerprint, SessionId, Timestamp};

/// What to back up, and how.
#[derive(Clone, Debug)]
pub struct BackupOptions {
    /// Paths as the user named them.
    pub roots: Vec<PathBuf>,
    /// The same, absolute, as they are written into the snapshot.
    pub paths: Vec<Vec<u8>>,
    /// What to leave out.
    pub excludes: Arc<Excludes>,
    /// The patterns among them, as they are written into the snapshot.
    pub exclude_texts: Vec<String>,
    /// Labels.
    pub tags: Vec<String>,
    /// Host, user and their numbers, as they are written into the snapshot.
    pub hostname: String,
    /// User name.
    pub username: String,
    /// User number.
    pub uid: u32,
    /// Group number.
    pub gid: u32,
    /// Time of the snapshot, instead of now.
    pub time: Option<Timestamp>,
    /// Snapshot whose references may be reused.
    pub parent: Option<(SessionId, Snapshot)>,
    /// What makes a file changed.
    pub comparison: Comparison,
    /// Whether a snapshot equal to its parent is made.
    pub unchanged: Unchanged,
    /// How new regions are compressed.
    pub compression: Compression,
    /// Program and version.
    pub program: String,
    /// Preset of the index, which the snapshot notes and the host remembers.
    pub preset: IndexPreset,
    /// Division of the memory.
    pub budget: Budget,
    /// Device that searches and names, too; it has a share in the budget.
    pub accelerator: Option<Accelerator>,
    /// Directory for spilled state.
    pub scratch: Scratch,
    /// Whether entries have the time of their last access.
    pub access_times: AccessTimes,
    /// Limits of the search for similar regions, in a repository of format 2; `None`: new regions are compressed alone.
    pub similarity: Option<Limits>,
    /// Choose what new regions are compressed against, instead of that search.
    pub bases: BaseChoices,
    /// Bounds within which chunks are stored again that stand in containers of which the parent uses little; `None`: none is.
    pub rewriting: Option<History>,
}

/// What becomes of a snapshot whose tree is that of its parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unchanged {
    /// It is made.
    Make,
    /// It is not.
    Skip,
}

/// What a backup did.
#[derive(Clone, Debug)]
pub struct BackupReport {
    /// The session, and the snapshot if one was made.
    pub session: SessionId,
    /// Whether no snapshot was made, since it would have been equal to its parent.
    pub is_skipped: bool,
    /// The snapshot, as it is or would have been committed.
    pub snapshot: Snapshot,
    /// What the identifier counted.
    pub counters: Counters,
    /// Chunks, by verdict.
    pub chunks: ChunkCounts,
    /// Things that could not be read and are not in the snapshot.
    pub failures: u64,
    /// Why nothing was stored again, if the parent could not tell which containers are sparse.
    pub not_rewritten: Option<String>,
}

/// Backs up a source as one session and commits a snapshot.
///
/// The identifier must know the session's live containers. What was recorded with it stays recorded, however this ends.
pub fn backup(
    store: &Store,
    session: &Arc<Session>,
    source: &Arc<dyn SourceTree>,
    options: &BackupOptions,
    driver: &Driver,
    identifier: &mut dyn Identifier,
    monitor: &Arc<dyn Monitor>,
) -> Result<BackupReport> {
    let time = options.time.unwrap_or_else(|| store.host.now());
    let file_clock = store.host.file_clock();
    // Before anything is written: what the snapshot will say must be sayable.
    snapshot_of(options, time, file_clock, Fingerprint([0; 32]), Summary::default()).validate()?;
    let Shunned { containers: shunned, reason: not_rewritten } = match options.rewriting {
        Some(history) => find_sparse(store, &session.live, options.parent.as_ref(), history)?,
        None => Shunned::default(),
    };
    if !shunned.is_empty() {
        identifier.shun(&shunned.iter().copied().collect::<Vec<_>>())?;
    }
    let counted_before = identifier.counters();
    let writing = WriterOptions {
        compression: options.compression,
        budget: options.budget,
        scratch: options.scratch.clone(),
        bases: BaseChoices { shunned: Arc::clone(&shunned), ..options.bases.clone() },
    };
    let mut writer = Writer::begin(store, session, &writing, driver, identifier);
    if !shunned.is_empty() {
        writer.stage.rewrite_metadata(session.id);
    }
    let files = FileReader::new(store.config.entry_bytes_max(), options.access_times);
    let chains = writer.stage.base_chains();
    let listing = Listing::Session { manifest: &writer.manifest, chains, shunned: &shunned };
    let (reader, positions) = open_reader((store, session), source, (files, monitor), options, listing)?;
    let assembler = Assembler::new(store, session.id, Arc::clone(monitor), Arc::clone(&writer.manifest));
    let fingerprinter: Arc<dyn Fingerprinter> = Arc::<Keys>::clone(&store.keys);
    let rule = ChunkRule::new(store.config.chunking, store.keys.chunk(), fingerprinter);
    let ingest = Ingest::new(driver, reader, files, rule, (&options.budget, options.accelerator.as_ref()));
    let built = flow((options, session), ingest, &mut writer.stage, assembler, &**monitor)?;
    let summary = writer.summarize(built.summary)?;
    let mut snapshot = snapshot_of(options, time, file_clock, built.tree, summary);
    snapshot.set_positions(&positions);
    snapshot.is_incomplete = built.is_incomplete;
    let Owners { users, groups } = built.owners;
    snapshot.owners = OwnerNames::look_up(users, |id| source.user_name(id), groups, |id| source.group_name(id));
    if monitor.is_interrupted() {
        return Err(Error::Interrupted);
    }
    let is_equal = options.parent.as_ref().is_some_and(|(_, parent)| parent.tree == snapshot.tree);
    let is_skipped = is_equal && options.unchanged == Unchanged::Skip;
    let (counters, chunks) = (writer.counters(), writer.counts());
    snapshot.rewritten = options.rewriting.map(|_| rewritten(&counters.since(&counted_before), &chunks));
    let (session, failures) = (session.id, built.failures);
    let report = BackupReport { session, is_skipped, snapshot, counters, chunks, failures, not_rewritten };
    if !is_skipped {
        writer.commit(&report.snapshot)?;
    }
    Ok(report)
}

/// Returns what was stored again: data that only shunned containers held, and metadata that named these.
fn rewritten(counters: &Counters, chunks: &ChunkCounts) -> Rewritten {
    let Rewritten { chunks, bytes } = chunks.metadata_rewritten;
    Rewritten { chunks: counters.rewritten_chunks + chunks, bytes: counters.rewritten_bytes + bytes }
}

fn open_reader(
    (store, session): (&Store, &Session),
    source: &Arc<dyn SourceTree>,
    (files, monitor): (FileReader, &Arc<dyn Monitor>),
    options: &BackupOptions,
    listing: Listing<'_>,
) -> Result<(SourceReader, Vec<Vec<u8>>)> {
    let walk = Walk::new(Arc::clone(source), &options.roots, Arc::clone(&options.excludes))?;
    let positions = walk.positions().to_vec();
    let parent = open_parent(store, &session.live, listing, options)?;
    Ok((SourceReader::new(files, walk.with_pipes(Arc::clone(monitor)), parent), positions))
}

/// Origin of the containers that a parent is looked for in.
#[derive(Clone, Debug)]
pub(super) enum Listing<'a> {
    /// A session's, which nothing may be added to, and of which nothing is deleted before the session ends.
    Session {
        /// Takes down what unchanged files refer to.
        manifest: &'a Arc<ManifestBuilder>,
        /// Memory for chains of bases that both have; `None`: the reader of the parent has its own.
        chains: Option<Arc<Permits>>,
        /// Containers whose chunks are read again.
        shunned: &'a Arc<BTreeSet<ContainerId>>,
    },
    /// The reader's, which lists again.
    Reader,
}

/// Opens the tree of the parent snapshot, if there is one.
pub(super) fn open_parent(
    store: &Store,
    containers: &Containers,
    listing: Listing<'_>,
    options: &BackupOptions,
) -> Result<Option<Parent>> {
    let Some((_, snapshot)) = &options.parent else { return Ok(None) };
    let bytes = options.budget.parent_bytes;
    let bytes = bytes.saturating_sub(containers.numbers_end() as usize * ManifestBuilder::BYTES_EACH).max(bytes / 2);
    // A quarter is for files whose hints name deleted containers.
    let memory = MetadataMemory::left_by(containers, bytes - bytes / 4);
    let moved = ViewMemory { directories: bytes / 8, moved: bytes / 8 };
    let view = View::new(store, containers, &options.scratch, moved);
    Ok(Some(match listing {
        Listing::Session { manifest, chains, shunned } => {
            let reader = MetadataReader::open_live(store, containers, &options.scratch, memory, chains)?;
            let manifest = Some(Arc::clone(manifest));
            Parent::new(snapshot, reader, view.fixed(), options.comparison, manifest).shunning(shunned)
        }
        Listing::Reader => {
            let reader = MetadataReader::open(store, containers, &options.scratch, memory)?;
            Parent::new(snapshot, reader, view, options.comparison, None)
        }
    }))
}

fn snapshot_of(
    options: &BackupOptions,
    time: Timestamp,
    file_clock: Timestamp,
    tree: Fingerprint,
    summary: Summary,
) -> Snapshot {
    Snapshot {
        time,
        file_clock,
        tree,
        hostname: options.hostname.clone(),
        username: options.username.clone(),
        uid: options.uid,
        gid: options.gid,
        paths: options.paths.clone(),
        positions: Vec::new(),
        is_incomplete: false,
        owners: OwnerNames::default(),
        tags: options.tags.clone(),
        excludes: options.exclude_texts.clone(),
        parent: options.parent.as_ref().map(|(session, _)| *session),
        original: None,
        rewritten: None,
        journal: None,
        program: options.program.clone(),
        index: (options.preset != IndexPreset::default())
            .then(|| IndexNote { is_exact: true, preset: options.preset.name().to_owned() }),
        summary,
    }
}

/// Moves chunks, references and events from the source through the identifier to the assembler, in stream order.
fn flow(
    (options, session): (&BackupOptions, &Session),
    ingest: Ingest,
    identify: &mut IdentifyStage<'_>,
    assembler: Assembler,
    monitor: &dyn Monitor,
) -> Result<BuiltTree> {
    let waiting_max = options.budget.steps_waiting + options.budget.references_in_flight;
    let mut sequencer = Sequencer { assembler, waiting: VecDeque::new(), waiting_max };
    ingest.run(monitor, &mut |block| {
        session.beat();
        sequencer.take(block, identify)
    })?;
    identify.resolve_all()?;
    sequencer.advance(identify)?;
    sequencer.assembler.finish(identify)
}

/// Lets events wait for the references before them.
struct Sequencer {
    assembler: Assembler,
    waiting: VecDeque<CutEvent>,
    waiting_max: usize,
}

impl Sequencer {
    fn take(&mut self, mut block: CutBlock, identify: &mut IdentifyStage<'_>) -> Result<()> {
        let events = std::mem::take(&mut block.events);
        identify.submit(&Arc::new(block))?;
        self.waiting.extend(events);
        self.advance(identify)?;
        if identify.is_congested() || self.waiting_max <= self.waiting.len() {
            identify.resolve_all()?;
            self.advance(identify)?;
        }
        Ok(())
    }

    fn advance(&mut self, identify: &mut IdentifyStage<'_>) -> Result<()> {
        while let Some(event) = self.waiting.pop_front() {
            match event {
                CutEvent::Step(step) => self.assembler.step(step, identify)?,
                CutEvent::Chunk => {
                    let Some(reference) = identify.next_reference() else {
                        self.waiting.push_front(CutEvent::Chunk);
                        break;
                    };
                    self.assembler.reference(reference, identify)?;
                }
            }
        }
        Ok(())
    }
}
