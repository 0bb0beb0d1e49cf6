//! Making checkpoints.

use std::collections::BTreeSet;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use onefold_engine::backup::{Proof, Writer};
use onefold_engine::error::{Error, Result};
use onefold_engine::pipeline::Driver;
use onefold_engine::recipe::BuiltRecipe;
use onefold_engine::repo::{WriteRequest, write};
use onefold_engine::snapshot::{JournalNote, Mark, Snapshot, Summary};
use onefold_engine::store::Store;
use onefold_engine::store::cursor::HintedEntry;
use onefold_engine::store::metadata::Scratch;
use onefold_engine::types::{Fingerprint, SessionId, Timestamp};

use crate::checkpoint::cut::{Recording, Stored};
use crate::checkpoint::hole::HoleVolume;
use crate::checkpoint::image::{Image, change_image, store_volume};
use crate::checkpoint::policy::proof;
use crate::history::{CheckpointLimits, Cutter, GapTracker, Survey, Surveyor};
use crate::journal::{Entry, Journal, Lsn, Op};
use crate::nbd::export::Export;
use crate::stored::{
    Checkpoint, Checkpoints, EMPTY_TAG, GroupSpec, HISTORY, IMAGE, INCOMPLETE_TAG, Stream, Streams, VolumeSpec,
    data_path, index_path, read_index,
};

/// Modes of files and directories of checkpoints.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;
/// Bytes of a chunk of an index, unless regions are shorter.
pub(crate) const INDEX_CHUNK_BYTES: u32 = 64 << 10;

/// How checkpoints are made.
#[derive(Clone, Debug)]
pub struct CheckpointOptions {
    /// Most of what one checkpoint takes; the rest is left for the next.
    pub limits: CheckpointLimits,
    /// Directory of temporary files.
    pub scratch: Scratch,
    /// Memory for reading the repository, besides [`CheckpointLimits::memory_bytes`].
    pub memory_bytes: usize,
    /// Program and version, as snapshots note them.
    pub program: String,
}

/// Outcome of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckpointOutcome {
    /// It was made.
    Made(MadeCheckpoint),
    /// The journal has no record that is in no checkpoint.
    NothingNew,
    /// A prune is deleting containers. A checkpoint is possible after it.
    PruneInProgress,
}

/// A checkpoint that was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MadeCheckpoint {
    /// Its snapshot.
    pub snapshot: SessionId,
    /// Its first record.
    pub first: Lsn,
    /// Its last record. Records up to it may be released.
    pub last: Lsn,
    /// Versions of blocks.
    pub versions: u64,
    /// Images that were stored again instead of being patched.
    pub whole_images: usize,
    /// True if the limits have left records for the next checkpoint.
    pub has_more: bool,
    /// References to the stored data.
    pub summary: Summary,
}

/// Makes the checkpoints of a group. It stays open from one to the next, so that it learns only what is new in the repository.
#[derive(Debug)]
pub struct Checkpointer {
    store: Store,
    group: GroupSpec,
    options: CheckpointOptions,
    streams: Streams,
    /// The checkpoints that were there at the last one.
    seen: BTreeSet<SessionId>,
}

/// The state that a checkpoint continues.
struct Base<'a> {
    parent: &'a Checkpoint,
    survey: &'a Survey,
    first: Lsn,
    gaps: &'a GapTracker,
    synced: Lsn,
    proof: Proof,
}

impl Checkpointer {
    /// Prepares to make checkpoints of a group.
    pub fn open(store: &Store, group: GroupSpec, options: CheckpointOptions, driver: &Driver) -> Result<Self> {
        group.validate()?;
        let streams = Streams::open(store, &options.scratch, driver, options.memory_bytes)?;
        Ok(Self { store: store.clone(), group, options, streams, seen: BTreeSet::new() })
    }

    /// Returns the memory of a checkpoint.
    pub fn memory_bytes(&self) -> usize {
        let gaps = GapTracker::memory_bytes(self.group.volumes.len());
        self.options.limits.memory_bytes() + self.options.memory_bytes + gaps
    }

    /// Returns the last record that is in a checkpoint; `None` if there is no initial image. Records up to it may be released.
    pub fn last(&self) -> Result<Option<Lsn>> {
        let checkpoints = Checkpoints::read(&self.store, &self.group.name, Some(self.group.id))?;
        Ok(checkpoints.newest().map(Checkpoint::last))
    }

    /// Begins the history of volumes that are on another machine, whose bytes come as records: their images are holes. No view shows them.
    /// Returns `None` if a prune is in progress.
    pub fn initial_empty(&mut self, request: &WriteRequest<'_>) -> Result<Option<SessionId>> {
        let hole = |volume: &VolumeSpec| Arc::new(HoleVolume { size: volume.size }) as Arc<dyn Export>;
        let holes: Vec<_> = self.group.volumes.iter().map(hole).collect();
        self.store_initial(&holes, Lsn(0), &[EMPTY_TAG], request)
    }

    /// Stores the initial images of all volumes, as the volumes are after a record, which is durable in the journal; 0 before the first.
    /// Nobody may change the volumes meanwhile. Returns `None` if a prune is in progress.
    pub fn initial(
        &mut self,
        origins: &[Arc<dyn Export>],
        last: Lsn,
        request: &WriteRequest<'_>,
    ) -> Result<Option<SessionId>> {
        self.store_initial(origins, last, &[], request)
    }

    fn store_initial(
        &mut self,
        origins: &[Arc<dyn Export>],
        last: Lsn,
        tags: &[&str],
        request: &WriteRequest<'_>,
    ) -> Result<Option<SessionId>> {
        let checkpoints = Checkpoints::read(&self.store, &self.group.name, Some(self.group.id))?;
        if let Some(newest) = checkpoints.newest() {
            let last = newest.last();
            return Err(Error::invalid(format!("the group has checkpoints already, the newest up to record {last}")));
        }
        if origins.len() != self.group.volumes.len() {
            return Err(Error::invalid("each volume of the group has one origin"));
        }
        for (volume, origin) in self.group.volumes.iter().zip(origins) {
            if origin.size() != volume.size {
                let (name, found, size) = (&volume.name, origin.size(), volume.size);
                return Err(Error::invalid(format!("volume `{name}` has {found} bytes instead of {size}")));
            }
        }
        let (store, group, program) = (&self.store, &self.group, &self.options.program);
        let outcome = write(store, request, &mut |writer| {
            if writer.is_condemning() {
                return Ok(None);
            }
            let time = store.host.now();
            let mut images = Vec::with_capacity(origins.len());
            for (volume, origin) in group.volumes.iter().zip(origins) {
                images.push(store_volume((writer, store), (volume, &**origin))?);
            }
            let note = JournalNote {
                volume: group.id.0,
                first_lsn: last.0 + 1,
                last_lsn: last.0,
                synced_lsn: last.0,
                marks: Vec::new(),
            };
            let tree = store_tree(writer, group.names(), images, None, time)?;
            let mut snapshot = Snapshot { journal: Some(note), ..describe(group, program, request, (time, tree)) };
            snapshot.tags.extend(tags.iter().map(|tag| (*tag).to_owned()));
            commit(writer, group, snapshot).map(|(session, _)| Some(session))
        })?;
        Ok(outcome.value)
    }

    /// Makes a checkpoint of the records that are in none. `synced` is the record before which all are durable in the volumes.
    ///
    /// Fails with [`Error::Invalid`] if the journal does not hold the first of these records, or ends before the newest checkpoint.
    pub fn checkpoint(
        &mut self,
        journal: &Journal,
        synced: Lsn,
        request: &WriteRequest<'_>,
    ) -> Result<CheckpointOutcome> {
        if journal.group() != self.group.id {
            return Err(Error::invalid("the journal is of another group"));
        }
        let checkpoints = Checkpoints::read(&self.store, &self.group.name, Some(self.group.id))?;
        let Some(parent) = checkpoints.newest() else {
            return Err(Error::invalid(format!("group `{}` has no initial images yet", self.group.name)));
        };
        let first = Lsn(parent.note.last_lsn + 1);
        // A record that a power cut took from the journal must not be in the repository: another one would get its number.
        journal.sync().map_err(|error| Error::invalid(error.to_string()))?;
        let status = journal.status();
        journal.check_continues(parent.last())?;
        let survey = self.survey(journal, first, status.durable)?;
        if survey.end == first {
            return Ok(CheckpointOutcome::NothingNew);
        }
        self.streams.refresh()?;
        let mut images = self.open_images(parent)?;
        let mut gaps = GapTracker::default();
        read_index(&mut self.streams, parent, &mut |entry| {
            gaps.push(&entry);
            Ok(())
        })?;
        let present: BTreeSet<SessionId> = checkpoints.list.iter().map(|checkpoint| checkpoint.snapshot).collect();
        let bytes = self.group.volumes.iter().map(|volume| volume.size).sum();
        let proof = proof(!self.seen.is_subset(&present), bytes);
        let base = Base { parent, survey: &survey, first, gaps: &gaps, synced, proof };
        let outcome = write(&self.store.clone(), request, &mut |writer| {
            if writer.is_condemning() {
                return Ok(None);
            }
            self.write_checkpoint((writer, request), journal, &mut images, &base).map(Some)
        })?;
        if outcome.value.is_some() {
            self.seen = present;
        }
        let has_more = survey.end < status.durable;
        Ok(match outcome.value {
            Some(made) => CheckpointOutcome::Made(MadeCheckpoint { has_more, ..made }),
            None => CheckpointOutcome::PruneInProgress,
        })
    }

    /// The first pass: which records fit, and which blocks they change in part.
    fn survey(&self, journal: &Journal, first: Lsn, end: Lsn) -> Result<Survey> {
        let mut surveyor = Surveyor::new(first, self.options.limits);
        let mut is_full = false;
        let mut frames = journal.frames(first);
        while !is_full
            && frames.next_frame(&mut |entry| {
                if !is_full && entry.lsn < end {
                    check_record(&entry, &self.group.volumes)?;
                    is_full = !surveyor.push(&entry);
                }
                Ok(())
            })?
        {}
        Ok(surveyor.finish())
    }

    fn open_images(&mut self, parent: &Checkpoint) -> Result<Vec<Stream>> {
        let mut images = Vec::with_capacity(self.group.volumes.len());
        for volume in &self.group.volumes {
            let image = self.streams.find(parent.tree, &Path::new(&volume.name).join(IMAGE))?;
            if image.len() != volume.size {
                let (name, stored, size) = (&volume.name, image.len(), volume.size);
                return Err(Error::invalid(format!(
                    "volume `{name}` has {size} bytes and its image {stored}: a volume of another size needs a new group"
                )));
            }
            images.push(image);
        }
        Ok(images)
    }

    /// The second pass, and the snapshot.
    fn write_checkpoint(
        &mut self,
        (writer, request): (&mut Writer<'_>, &WriteRequest<'_>),
        journal: &Journal,
        images: &mut [Stream],
        base: &Base<'_>,
    ) -> Result<MadeCheckpoint> {
        let Self { store, group, options, streams, .. } = self;
        let (stored, nanoseconds) = record((writer, store), streams, journal, images, base)?;
        let Stored { data, index, changes, is_in_gap } = stored;
        let chunk_bytes = INDEX_CHUNK_BYTES.min(store.config.region_bytes);
        let index = writer.stream(chunk_bytes, &mut Cursor::new(index))?;
        let (mut contents, mut whole_images) = (Vec::with_capacity(images.len()), 0);
        for (number, (volume, image)) in group.volumes.iter().zip(images).enumerate() {
            let parent = (base.parent.snapshot, base.proof);
            let Image { contents: image, is_whole } =
                change_image((writer, store), (streams, image), parent, (volume, number), &changes)?;
            whole_images += usize::from(is_whole);
            contents.push(image);
        }
        let last = Lsn(base.survey.end.0 - 1);
        let marks = base.survey.marks.iter().map(|(lsn, name)| Mark { lsn: lsn.0, name: name.clone() });
        let note = JournalNote {
            volume: group.id.0,
            first_lsn: base.first.0,
            last_lsn: last.0,
            synced_lsn: base.synced.0.saturating_sub(1).min(last.0),
            marks: marks.collect(),
        };
        let time = timestamp(nanoseconds);
        let tree = store_tree(writer, group.names(), contents, Some((base.first, data, index)), time)?;
        let mut snapshot = Snapshot {
            parent: Some(base.parent.snapshot),
            journal: Some(note),
            ..describe(group, &options.program, request, (time, tree))
        };
        if is_in_gap {
            snapshot.tags.push(INCOMPLETE_TAG.to_owned());
        }
        let (session, summary) = commit(writer, group, snapshot)?;
        let versions = base.survey.versions;
        Ok(MadeCheckpoint {
            snapshot: session,
            first: base.first,
            last,
            versions,
            whole_images,
            has_more: false,
            summary,
        })
    }
}

/// Stores the records of a checkpoint. Returns the time of the last one, too.
fn record(
    (writer, store): (&mut Writer<'_>, &Store),
    streams: &mut Streams,
    journal: &Journal,
    images: &mut [Stream],
    base: &Base<'_>,
) -> Result<(Stored, u64)> {
    let mut recording = Recording::new((writer, store), streams, images, (base.first, base.gaps));
    let mut cutter = Cutter::new(base.survey);
    let (mut next, mut last_time) = (base.first, 0);
    let mut frames = journal.frames(base.first);
    while next < base.survey.end
        && frames.next_frame(&mut |entry| {
            if entry.lsn < base.survey.end {
                recording.writer.beat();
                cutter.push(&entry, &mut recording)?;
                (next, last_time) = (Lsn(entry.lsn.0 + 1), entry.time);
            }
            Ok(())
        })?
    {}
    if next != base.survey.end {
        return Err(Error::damaged("journal", format!("record {next} is gone although it was read before")));
    }
    Ok((recording.finish()?, last_time))
}

/// Refuses a record that no checkpoint can hold.
pub(crate) fn check_record(entry: &Entry<'_>, volumes: &[VolumeSpec]) -> Result<()> {
    let Entry { lsn, record, .. } = entry;
    if matches!(record.op, Op::Mark | Op::Flush) {
        return Ok(());
    }
    let Some(volume) = volumes.get(usize::from(record.volume)) else {
        return Err(Error::damaged(
            "journal",
            format!("record {lsn} is of volume {}, which is not in the group", record.volume),
        ));
    };
    if record.op == Op::Resize && record.len != volume.size {
        return Err(Error::invalid(format!(
            "record {lsn} changes the size of volume `{}`, which needs a new group",
            volume.name
        )));
    }
    let end = record.offset.checked_add(record.len);
    if end.is_none_or(|end| volume.size < end) {
        return Err(Error::damaged("journal", format!("record {lsn} is beyond the end of volume `{}`", volume.name)));
    }
    Ok(())
}

fn timestamp(nanoseconds: u64) -> Timestamp {
    let within = u32::try_from(nanoseconds % 1_000_000_000).expect("below a second");
    Timestamp { seconds: i64::try_from(nanoseconds / 1_000_000_000).unwrap_or(i64::MAX), nanoseconds: within }
}

/// Returns a snapshot of a group.
fn describe(
    group: &GroupSpec,
    program: &str,
    request: &WriteRequest<'_>,
    (time, tree): (Timestamp, Fingerprint),
) -> Snapshot {
    Snapshot {
        hostname: request.hostname.to_owned(),
        paths: group.paths(),
        tags: vec![group.tag()],
        program: program.to_owned(),
        ..Snapshot::new(time, tree)
    }
}

/// Stores the directories of a checkpoint.
pub(crate) fn store_tree<'a>(
    writer: &mut Writer<'_>,
    volumes: impl ExactSizeIterator<Item = &'a str>,
    images: Vec<BuiltRecipe>,
    history: Option<(Lsn, BuiltRecipe, BuiltRecipe)>,
    time: Timestamp,
) -> Result<Fingerprint> {
    let mut root = Vec::with_capacity(volumes.len() + 1);
    for (volume, image) in volumes.zip(images) {
        let file = HintedEntry::file(IMAGE.as_bytes(), FILE_MODE, time, image);
        let node = writer.directory(vec![file])?;
        root.push(HintedEntry::directory(volume.as_bytes(), DIRECTORY_MODE, time, node));
    }
    if let Some((first, data, index)) = history {
        let file = |path: &Path, contents| {
            let name = path.file_name().expect("the path has a name").as_encoded_bytes();
            HintedEntry::file(name, FILE_MODE, time, contents)
        };
        let files = vec![file(&data_path(first), data), file(&index_path(first), index)];
        let node = writer.directory(files)?;
        root.push(HintedEntry::directory(HISTORY.as_bytes(), DIRECTORY_MODE, time, node));
    }
    writer.directory(root)
}

fn commit(writer: &mut Writer<'_>, group: &GroupSpec, snapshot: Snapshot) -> Result<(SessionId, Summary)> {
    let files = group.volumes.len() as u64;
    let bytes_processed = group.volumes.iter().map(|volume| volume.size).sum();
    let counted = Summary { files_changed: files, files_processed: files, bytes_processed, ..Summary::default() };
    let summary = writer.summarize(counted)?;
    Ok((writer.commit(&Snapshot { summary, ..snapshot })?, summary))
}
