//! Carrying a plan out.

use std::collections::BTreeSet;
use std::io::Cursor;
use std::path::Path;

use onefold_engine::backup::{Proof, Reuse, Writer};
use onefold_engine::error::{Error, Result};
use onefold_engine::forget::{Forgetting, Trust, Zone};
use onefold_engine::pipeline::Driver;
use onefold_engine::recipe::{BuiltRecipe, RecipeBuilder};
use onefold_engine::repo::{WriteRequest, write};
use onefold_engine::restore::find_entry;
use onefold_engine::snapshot::{ForgetBody, JournalNote, Snapshot, Summary};
use onefold_engine::store::Store;
use onefold_engine::store::cursor::HintedEntry;
use onefold_engine::store::metadata::Scratch;
use onefold_engine::store::recipe_cursor::{FileExtent, HintedChunk, RecipeCursor};
use onefold_engine::tree::Content;
use onefold_engine::types::{ChunkRef, SessionId};

use crate::checkpoint::{INDEX_CHUNK_BYTES, proof, store_tree};
use crate::history::{BLOCK_BYTES, CheckpointLimits};
use crate::journal::{GroupId, Lsn};
use crate::retention::collapse::{Collapsed, Collapser};
use crate::retention::facts::{FactsRequest, Moments, Remembered, read_facts};
use crate::retention::plan::{CheckpointFacts, Fate, MomentFacts, Plan, plan};
use crate::retention::rules::KeepMoments;
use crate::stored::{Checkpoint, Checkpoints, IMAGE, Streams, THINNED_TAG, data_path, read_index};

/// How a group is thinned.
#[derive(Clone, Debug)]
pub struct ThinOptions {
    /// The longest history of a checkpoint that is thinned; it takes [`CheckpointLimits::memory_bytes`] twice.
    pub limits: CheckpointLimits,
    /// Directory of temporary files.
    pub scratch: Scratch,
    /// Memory for reading the repository, besides that.
    pub memory_bytes: usize,
    /// Whether times are compared with those of receipt, as `forget` does.
    pub trust: Trust,
}

/// Snapshots that were changed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Carried {
    /// Checkpoints that were thinned, with the snapshots that took their place.
    pub thinned: Vec<(SessionId, SessionId)>,
    /// Checkpoints that were forgotten.
    pub forgotten: Vec<SessionId>,
    /// True if a prune is deleting containers: what is left can be done after it.
    pub is_prune_in_progress: bool,
    /// True if the caller stopped it: another run does what is left.
    pub is_stopped: bool,
}

/// Thins the history of a group.
#[derive(Debug)]
pub struct Thinner {
    store: Store,
    name: String,
    id: Option<GroupId>,
    options: ThinOptions,
    streams: Streams,
    remembered: Remembered,
}

impl Thinner {
    /// Prepares to thin a group: `group` is its name, and its identity if several groups have had the name.
    pub fn open(store: &Store, group: (&str, Option<GroupId>), options: ThinOptions, driver: &Driver) -> Result<Self> {
        let streams = Streams::open(store, &options.scratch, driver, options.memory_bytes)?;
        Ok(Self {
            store: store.clone(),
            name: group.0.to_owned(),
            id: group.1,
            options,
            streams,
            remembered: Remembered::default(),
        })
    }

    /// Returns its memory.
    pub fn memory_bytes(&self) -> usize {
        2 * self.options.limits.memory_bytes() + self.options.memory_bytes + Remembered::MEMORY_BYTES
    }

    fn checkpoints(&self) -> Result<Checkpoints> {
        let checkpoints = Checkpoints::read(&self.store, &self.name, self.id)?;
        if checkpoints.list.is_empty() {
            return Err(Error::invalid(format!("there is no checkpoint of a group `{}`", self.name)));
        }
        Ok(checkpoints)
    }

    /// Reads the facts of all checkpoints, ascending.
    fn facts(&mut self, rules: &KeepMoments, now: u64) -> Result<Vec<CheckpointFacts>> {
        let checkpoints = self.checkpoints()?;
        self.streams.refresh()?;
        let request = FactsRequest { rules, limits: self.options.limits, trust: self.options.trust, now };
        read_facts(&self.store, &mut self.streams, &checkpoints, &request, &mut self.remembered)
    }

    /// Plans what is kept by rules now. Changes nothing.
    pub fn plan(&mut self, rules: &KeepMoments, zone: &Zone<'_>) -> Result<Plan> {
        if rules.is_empty() {
            return Err(Error::invalid("no rule keeps anything by its age: give at least one"));
        }
        // One time for both: a checkpoint whose history was not read must stay whole.
        let now = self.now();
        Ok(plan(&self.facts(rules, now)?, rules, now, zone))
    }

    fn now(&self) -> u64 {
        let now = self.store.host.now();
        let seconds = u64::try_from(now.seconds).unwrap_or(0);
        seconds.saturating_mul(1_000_000_000).saturating_add(now.nanoseconds.into())
    }

    /// Carries a plan out: thins first, then forgets, each from the oldest on. An interrupted run leaves what another one finishes.
    /// `note` is stored with each snapshot that is forgotten. It stops before the next checkpoint when `stops` returns true.
    pub fn carry_out(
        &mut self,
        plan: &Plan,
        request: &WriteRequest<'_>,
        note: &ForgetBody,
        stops: &mut dyn FnMut() -> bool,
    ) -> Result<Carried> {
        let store = self.store.clone();
        let forgetting = Forgetting::begin(&store, note)?;
        let mut carried = Carried { forgotten: self.forget_left_over(&forgetting)?, ..Carried::default() };
        let checkpoints = self.checkpoints()?;
        for planned in &plan.checkpoints {
            if planned.fate != Fate::Thinned {
                continue;
            }
            // It may have been changed since the plan was made.
            let found = checkpoints.list.iter().find(|checkpoint| checkpoint.snapshot == planned.snapshot);
            let Some(checkpoint) = found else { continue };
            if stops() {
                return Ok(Carried { is_stopped: true, ..carried });
            }
            match self.thin(checkpoint, &planned.inside, request)? {
                Thinned::Made(session) => {
                    // The derived snapshot is durable.
                    forgetting.forget(checkpoint.snapshot)?;
                    carried.thinned.push((checkpoint.snapshot, session));
                }
                Thinned::Gone => {}
                Thinned::PruneInProgress => return Ok(Carried { is_prune_in_progress: true, ..carried }),
            }
        }
        let newest = checkpoints.newest().map(|newest| newest.snapshot);
        for planned in &plan.checkpoints {
            if planned.fate == Fate::Forgotten && Some(planned.snapshot) != newest {
                forgetting.forget(planned.snapshot)?;
                carried.forgotten.push(planned.snapshot);
            }
        }
        Ok(carried)
    }

    /// Forgets derived snapshots that a run has left that ended before it forgot their originals: the originals have every moment that they have.
    fn forget_left_over(&mut self, forgetting: &Forgetting<'_>) -> Result<Vec<SessionId>> {
        let checkpoints = self.checkpoints()?;
        let mut forgotten = Vec::new();
        for other in checkpoints.others.iter().filter(|other| other.is_thinned) {
            let Some(winner) = checkpoints.list.iter().find(|winner| winner.last() == other.last()) else { continue };
            if other.original != Some(winner.snapshot) && other.original != winner.original {
                continue;
            }
            let is_superset = !winner.is_thinned || self.has_moments(winner, other)?;
            if is_superset {
                forgetting.forget(other.snapshot)?;
                forgotten.push(other.snapshot);
            }
        }
        Ok(forgotten)
    }

    /// Returns true if a checkpoint that was thinned has all moments of another one.
    fn has_moments(&mut self, checkpoint: &Checkpoint, other: &Checkpoint) -> Result<bool> {
        self.streams.refresh()?;
        let mut read = |checkpoint| Moments::read(&mut self.streams, checkpoint, 0, &|_| 1);
        let (moments, wanted) = (read(checkpoint)?, read(other)?);
        let has = |wanted: &MomentFacts| moments.list.iter().any(|moment| moment.lsn == wanted.lsn);
        Ok(wanted.list.iter().all(has))
    }

    /// Makes the derived snapshot of a checkpoint.
    fn thin(&mut self, checkpoint: &Checkpoint, kept: &[MomentFacts], request: &WriteRequest<'_>) -> Result<Thinned> {
        self.streams.refresh()?;
        let collapsed = self.collapse(checkpoint, kept)?;
        let versions = self.versions(checkpoint, &collapsed.versions)?;
        let Self { store, streams, .. } = self;
        let outcome = write(store, request, &mut |writer| {
            if writer.is_condemning() {
                return Ok(Thinned::PruneInProgress);
            }
            let commits = store.read_commits()?;
            let found = commits.snapshots().into_iter().find(|(session, _)| *session == checkpoint.snapshot);
            let Some((_, original)) = found else { return Ok(Thinned::Gone) };
            let deriving = Deriving { writer, store, streams, checkpoint };
            deriving.derive(original, kept, &collapsed, &versions).map(Thinned::Made)
        })?;
        Ok(outcome.value)
    }

    /// Returns the index that leads to the kept moments.
    fn collapse(&mut self, checkpoint: &Checkpoint, kept: &[MomentFacts]) -> Result<Collapsed> {
        let kept: Vec<(Lsn, u64)> = kept.iter().map(|moment| (moment.lsn, moment.time)).collect();
        let last = (checkpoint.last(), checkpoint.nanoseconds());
        let mut collapser = Collapser::new(checkpoint.first(), last, &kept, checkpoint.volumes.len());
        read_index(&mut self.streams, checkpoint, &mut |entry| {
            collapser.push(&entry);
            Ok(())
        })?;
        Ok(collapser.finish())
    }

    /// Finds the chunks of versions. No payload is read.
    fn versions(&mut self, checkpoint: &Checkpoint, numbers: &[u64]) -> Result<Versions> {
        let path = data_path(checkpoint.first());
        let reader = &mut self.streams.reader;
        let Some(HintedEntry { entry, hints }) = find_entry(reader, checkpoint.tree, &path)? else {
            return Err(Error::damaged(path.display(), "is a directory in the snapshot"));
        };
        let Content::File { recipe, .. } = &entry.content else {
            return Err(Error::damaged(path.display(), "is no file in the snapshot"));
        };
        let mut cursor = RecipeCursor::new(recipe, &hints);
        let mut order: Vec<usize> = (0..numbers.len()).collect();
        order.sort_unstable_by_key(|at| numbers.get(*at).copied());
        let mut chunks: Vec<Option<HintedChunk>> = vec![None; numbers.len()];
        let mut offset = 0;
        for at in order {
            let wanted = numbers.get(at).copied().unwrap_or_default().saturating_mul(BLOCK_BYTES);
            if offset != wanted {
                offset = cursor.seek(wanted, reader)?;
            }
            match cursor.next(reader)? {
                Some(FileExtent::Chunk(chunk)) if offset == wanted && u64::from(chunk.chunk.len) == BLOCK_BYTES => {
                    if let Some(place) = chunks.get_mut(at) {
                        *place = Some(chunk);
                    }
                    offset += BLOCK_BYTES;
                }
                None => return Err(Error::damaged(path.display(), format!("ends before byte {wanted}"))),
                // It is not on the grid of blocks: another program has stored it.
                Some(_) => return Ok(Versions::Numbers(numbers.to_vec())),
            }
        }
        Ok(Versions::Chunks(chunks.into_iter().flatten().collect()))
    }
}

/// Outcome of thinning a checkpoint.
#[derive(Debug)]
enum Thinned {
    Made(SessionId),
    /// It was forgotten meanwhile.
    Gone,
    PruneInProgress,
}

/// Versions of the former data stream, in their new order.
#[derive(Debug)]
enum Versions {
    Chunks(Vec<HintedChunk>),
    /// Their contents must be stored again.
    Numbers(Vec<u64>),
}

/// A derived snapshot that is being written.
struct Deriving<'a, 'w> {
    writer: &'a mut Writer<'w>,
    store: &'a Store,
    streams: &'a mut Streams,
    checkpoint: &'a Checkpoint,
}

impl Deriving<'_, '_> {
    fn derive(
        mut self,
        original: &Snapshot,
        kept: &[MomentFacts],
        collapsed: &Collapsed,
        versions: &Versions,
    ) -> Result<SessionId> {
        let (images, proof) = self.images()?;
        let data = self.data(versions, proof)?;
        let chunk_bytes = INDEX_CHUNK_BYTES.min(self.store.config.region_bytes);
        let index = self.writer.stream(chunk_bytes, &mut Cursor::new(&collapsed.index))?;
        let (first, time) = (self.checkpoint.first(), self.checkpoint.time);
        let names = self.checkpoint.volumes.iter().map(|name| &**name);
        let tree = store_tree(self.writer, names, images, Some((first, data, index)), time)?;
        let journal = Some(note(&self.checkpoint.note, kept));
        let unstored =
            Summary { data_chunks: 0, metadata_chunks: 0, data_added: 0, data_added_packed: 0, ..original.summary };
        let summary = self.writer.summarize(unstored)?;
        let mut snapshot = Snapshot { tree, journal, summary, ..original.clone() };
        snapshot.original = Some(self.checkpoint.snapshot);
        if !self.checkpoint.is_thinned {
            snapshot.tags.push(THINNED_TAG.to_owned());
        }
        self.writer.commit(&snapshot)
    }

    /// Takes the images over.
    fn images(&mut self) -> Result<(Vec<BuiltRecipe>, Proof)> {
        let Self { writer, streams, checkpoint, .. } = self;
        let mut bytes: u64 = 0;
        for name in &checkpoint.volumes {
            bytes = bytes.saturating_add(streams.find(checkpoint.tree, &Path::new(name).join(IMAGE))?.len());
        }
        let wanted = proof(true, bytes);
        let mut images = Vec::with_capacity(checkpoint.volumes.len());
        for name in &checkpoint.volumes {
            let path = [name.as_bytes(), IMAGE.as_bytes()];
            images.push(taken_over(writer.reuse(checkpoint.snapshot, &path, &mut streams.reader, wanted)?, name)?);
        }
        Ok((images, wanted))
    }

    /// Builds the data stream of versions.
    fn data(&mut self, versions: &Versions, proof: Proof) -> Result<BuiltRecipe> {
        let config = &self.store.config;
        let mut recipe = RecipeBuilder::new(config.recipe_cut, config.recipe_inline_max);
        match versions {
            Versions::Chunks(chunks) => {
                if proof == Proof::Rule {
                    // The manifest lists what that of the original does, as for the images.
                    let path = data_path(self.checkpoint.first());
                    let names: Vec<&[u8]> = path.iter().map(std::ffi::OsStr::as_encoded_bytes).collect();
                    let reader = &mut self.streams.reader;
                    let reuse = self.writer.reuse(self.checkpoint.snapshot, &names, reader, proof)?;
                    taken_over(reuse, &path.display().to_string())?;
                }
                let mut finder = self.writer.chunk_finder();
                for chunk in chunks {
                    self.writer.beat();
                    let Some(ChunkRef { chunk, container }) = finder.find(chunk)? else {
                        return Err(Error::MissingChunk { fingerprint: chunk.chunk.fingerprint.to_string() });
                    };
                    recipe.chunk(chunk, Some(container), self.writer)?;
                }
            }
            Versions::Numbers(numbers) => {
                let mut stream = self.streams.find(self.checkpoint.tree, &data_path(self.checkpoint.first()))?;
                let mut block = vec![0; usize::try_from(BLOCK_BYTES).expect("blocks are short")];
                for number in numbers {
                    self.streams.read(&mut stream, number.saturating_mul(BLOCK_BYTES), &mut block)?;
                    self.writer.chunk(&block)?;
                    self.take_references(&mut recipe)?;
                }
                self.writer.resolve()?;
                self.take_references(&mut recipe)?;
            }
        }
        recipe.finish(self.writer)
    }

    fn take_references(&mut self, recipe: &mut RecipeBuilder) -> Result<()> {
        while let Some(ChunkRef { chunk, container }) = self.writer.next_reference() {
            recipe.chunk(chunk, Some(container), self.writer)?;
        }
        Ok(())
    }
}

/// Returns the contents of a file that the new snapshot may refer to.
fn taken_over(reuse: Reuse, name: &str) -> Result<BuiltRecipe> {
    let Reuse::Allowed(file, _) = reuse else {
        return Err(Error::damaged(
            name,
            "cannot be taken over: some of its chunks are in no container that can be read",
        ));
    };
    let HintedEntry { entry, hints } = *file;
    match entry.content {
        Content::File { recipe, .. } => Ok(BuiltRecipe { recipe, hints }),
        Content::Directory { .. } | Content::Symlink { .. } | Content::Special { .. } => {
            Err(Error::damaged(name, "is no file"))
        }
    }
}

/// Returns the note of a checkpoint with the marks whose moments stay.
fn note(original: &JournalNote, kept: &[MomentFacts]) -> JournalNote {
    let stays: BTreeSet<u64> = kept.iter().map(|moment| moment.lsn.0).chain([original.last_lsn]).collect();
    let marks = original.marks.iter().filter(|mark| stays.contains(&mark.lsn)).cloned().collect();
    JournalNote { marks, ..original.clone() }
}
