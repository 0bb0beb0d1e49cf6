//! Snapshots of a volume that a program writes without a source: the image is patched from the one of the parent.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::io::{Cursor, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use onefold_engine::Error;
use onefold_engine::backup::{BaseChoices, Proof, Reuse, Writer, WriterOptions};
use onefold_engine::collect::{PruneReport, PruneRequest, PruneState, prune};
use onefold_engine::compress::Compression;
use onefold_engine::error::Result;
use onefold_engine::identify::{IndexOptions, IndexPreset};
use onefold_engine::monitor::Silent;
use onefold_engine::object::FormatVersion;
use onefold_engine::object::names::{CollectionStep, ContainerKind, ObjectName, Prefix};
use onefold_engine::pipeline::Driver;
use onefold_engine::recipe::{BuiltRecipe, Edit, EditItem, RecipeBuilder, patch};
use onefold_engine::repo::{Cache, WriteRequest, write};
use onefold_engine::snapshot::{JournalNote, Mark, Snapshot, Summary};
use onefold_engine::store::create::{Adjustments, Purpose};
use onefold_engine::store::cursor::HintedEntry;
use onefold_engine::store::metadata::MetadataMemory;
use onefold_engine::store::recipe_cursor::{FileExtent, RecipeCursor};
use onefold_engine::store::{MetadataReader, Store};
use onefold_engine::testing::sim::{CrashMode, Fault, SimDisk, TraceEntry};
use onefold_engine::tree::Content;
use onefold_engine::types::{Chunk, ChunkKind, ChunkRef, ContainerId, Fingerprint, SessionId, Timestamp};

use crate::integration::condemned::{collect, condemn};
use crate::integration::damage::contents;
use crate::integration::manifests::{assert_complete, listed_by, reached};
use crate::integration::pruning::{assert_clean, forget, request};
use crate::integration::support::{
    Ask, Draw, SMALL, World, container_names, containers, hash_directory, heads_on, noise, tell,
};

const IMAGE: [&[u8]; 2] = [b"web", b"image"];

/// A repository as `init --for volumes` makes it.
const VOLUMES: Adjustments = Adjustments {
    purpose: Purpose::Volumes,
    chunk_bytes: None,
    fixed_bytes: None,
    region_bytes: None,
    container_bytes: None,
    format: FormatVersion::V2,
    no_similarity: false,
};

/// The same with small blocks and containers, so that little data makes many of them.
const SMALL_VOLUMES: Adjustments =
    Adjustments { fixed_bytes: Some(256), region_bytes: Some(4 << 10), container_bytes: Some(64 << 10), ..VOLUMES };

/// A volume, and how it came about.
#[derive(Clone, PartialEq, Eq)]
struct Volume {
    block: usize,
    bytes: Vec<u8>,
    /// Blocks written since the last snapshot, in order. A block of zeros is discarded.
    writes: Vec<usize>,
    lsn: u64,
}

impl Volume {
    fn new(block: usize, bytes: Vec<u8>) -> Self {
        Self { block, bytes, writes: Vec::new(), lsn: 0 }
    }

    fn blocks(&self) -> usize {
        self.bytes.len() / self.block
    }

    fn block(&self, number: usize) -> &[u8] {
        &self.bytes[number * self.block..][..self.block]
    }

    fn write(&mut self, number: usize, bytes: &[u8]) {
        self.bytes[number * self.block..][..self.block].copy_from_slice(bytes);
        self.writes.push(number);
        self.lsn += 1;
    }

    fn is_zero(&self, number: usize) -> bool {
        self.block(number).iter().all(|byte| *byte == 0)
    }
}

/// Facts about a snapshot that was made.
#[derive(Clone, Copy, Debug)]
struct Made {
    session: SessionId,
    /// How the image came about; `None` if it was stored as a whole.
    proof: Option<Proof>,
}

fn options(world: &World) -> WriterOptions {
    WriterOptions {
        compression: Compression::Zstd(1),
        budget: Ask::default().budget,
        scratch: world.scratch(),
        bases: BaseChoices::default(),
    }
}

/// Writes in a session with an index as those of the other tests.
fn in_session<T>(
    world: &World,
    store: &Store,
    driver: &Driver,
    work: &mut dyn FnMut(&mut Writer<'_>) -> Result<T>,
) -> Result<T> {
    let cache = Cache { disk: world.cache(), dir: PathBuf::new() };
    let mut index = IndexOptions::for_memory(8 << 20);
    (index.filter_bytes, index.log_tail_pages, index.memtable_bytes) = (64 << 10, 1, 2 << 10);
    let request = WriteRequest {
        cache: &cache,
        index,
        preset: IndexPreset::default(),
        hostname: "host",
        options: options(world),
        driver: driver.clone(),
        monitor: Arc::new(Silent),
        heads: Some(heads_on(&world.cache())),
    };
    write(store, &request, work).map(|outcome| outcome.value)
}

fn open_reader(world: &World, store: &Store) -> Result<MetadataReader> {
    let listed = store.list_containers(&world.scratch())?;
    MetadataReader::open(store, &listed, &world.scratch(), MetadataMemory::of(4 << 20))
}

/// Stores the blocks of a volume, those of zeros as holes.
fn store_image(writer: &mut Writer<'_>, store: &Store, volume: &Volume) -> Result<BuiltRecipe> {
    let mut recipe = RecipeBuilder::new(store.config.recipe_cut, store.config.recipe_inline_max);
    let mut waiting: VecDeque<bool> = VecDeque::new();
    for number in 0..=volume.blocks() {
        if number == volume.blocks() {
            writer.resolve()?;
        } else {
            let is_hole = volume.is_zero(number);
            waiting.push_back(is_hole);
            if !is_hole {
                writer.chunk(volume.block(number))?;
            }
        }
        while let Some(is_hole) = waiting.front() {
            if *is_hole {
                recipe.hole(volume.block as u64, writer)?;
            } else {
                let Some(ChunkRef { chunk, container }) = writer.next_reference() else { break };
                recipe.chunk(chunk, Some(container), writer)?;
            }
            waiting.pop_front();
        }
    }
    assert!(waiting.is_empty());
    recipe.finish(writer)
}

/// The blocks that were written, in the order of writing, and the last version of each as an edit.
fn store_writes(writer: &mut Writer<'_>, store: &Store, volume: &Volume) -> Result<(BuiltRecipe, Vec<Edit>)> {
    let mut data = RecipeBuilder::new(store.config.recipe_cut, store.config.recipe_inline_max);
    let mut edits: BTreeMap<usize, EditItem> = BTreeMap::new();
    for number in &volume.writes {
        writer.chunk(volume.block(*number))?;
    }
    writer.resolve()?;
    for number in &volume.writes {
        let ChunkRef { chunk, container } = writer.next_reference().expect("all are resolved");
        data.chunk(chunk, Some(container), writer)?;
        let item = if volume.is_zero(*number) {
            EditItem::Hole { len: volume.block as u64 }
        } else {
            EditItem::Chunk(chunk, Some(container))
        };
        edits.insert(*number, item);
    }
    assert_eq!(writer.next_reference(), None);
    let block = volume.block as u64;
    let edit = |(number, item)| Edit { start: number as u64 * block, end: (number as u64 + 1) * block, item };
    Ok((data.finish(writer)?, edits.into_iter().map(edit).collect()))
}

fn index_of(volume: &Volume) -> Vec<u8> {
    volume.writes.iter().flat_map(|number| (*number as u64).to_le_bytes()).collect()
}

/// Commits a snapshot of a volume: its image, and the blocks that were written since the last one.
fn commit(
    writer: &mut Writer<'_>,
    volume: &Volume,
    (parent, image, data): (Option<SessionId>, BuiltRecipe, BuiltRecipe),
) -> Result<SessionId> {
    let time = Timestamp { seconds: 1_000_000 + i64::try_from(volume.lsn).unwrap(), nanoseconds: 0 };
    let index = writer.stream(u32::try_from(volume.block).unwrap(), &mut Cursor::new(index_of(volume)))?;
    let file = |name: &str, recipe| HintedEntry::file(name.as_bytes(), 0o600, time, recipe);
    let first = volume.lsn + 1 - volume.writes.len() as u64;
    let history = writer.directory(vec![
        file(&format!("{first}.index"), index),
        file(&format!("{first}.data"), data),
        file(&format!("{first}.marks"), BuiltRecipe::default()),
    ])?;
    let volume_files = vec![HintedEntry::directory(b"history", 0o700, time, history), file("image", image)];
    let web = writer.directory(volume_files)?;
    let tree = writer.directory(vec![HintedEntry::directory(b"web", 0o700, time, web)])?;
    let summary = Summary { files_new: 4, bytes_processed: volume.bytes.len() as u64, ..Summary::default() };
    let snapshot = Snapshot {
        hostname: "host".into(),
        tags: vec!["cdp:web".into()],
        parent,
        journal: Some(JournalNote {
            volume: [1; 16],
            first_lsn: first,
            last_lsn: volume.lsn,
            synced_lsn: volume.lsn,
            marks: vec![Mark { lsn: volume.lsn, name: "now".into() }],
        }),
        summary: writer.summarize(summary)?,
        ..Snapshot::new(time, tree)
    };
    writer.commit(&snapshot)
}

/// Makes a snapshot: patched from the parent if that is allowed, else as a whole. `meanwhile` happens right before the commit.
fn snapshot(
    (world, store): (&World, &Store),
    (volume, parent, proof): (&Volume, Option<SessionId>, Proof),
    reader: &mut MetadataReader,
    meanwhile: &mut dyn FnMut(),
) -> Result<Made> {
    in_session(world, store, &Driver::inline(volume.lsn), &mut |writer| {
        let (data, edits) = store_writes(writer, store, volume)?;
        let reuse = match parent {
            Some(parent) => writer.reuse(parent, &IMAGE, reader, proof)?,
            None => Reuse::Refused,
        };
        let (image, proof) = match reuse {
            Reuse::Allowed(file, proof) => {
                let HintedEntry { entry, hints } = *file;
                let Content::File { recipe, .. } = entry.content else { panic!("the image is a file") };
                let old = BuiltRecipe { recipe, hints };
                let rule = (store.config.recipe_cut, store.config.recipe_inline_max);
                let patched = patch(&old, &mut edits.iter().copied().map(Ok), rule, reader, writer)?;
                (patched, Some(proof))
            }
            Reuse::Refused => (store_image(writer, store, volume)?, None),
        };
        meanwhile();
        let session = commit(writer, volume, (parent, image, data))?;
        Ok(Made { session, proof })
    })
}

fn restored(world: &World, store: &Store, session: SessionId, case: &str) -> Vec<u8> {
    let commits = store.read_commits().unwrap();
    let found = commits.snapshots().into_iter().find(|(listed, _)| *listed == session);
    let (_, snapshot) = found.unwrap_or_else(|| panic!("{case}: {session} is not listed"));
    let (target, report) = world.restore(store, snapshot).unwrap_or_else(|error| panic!("{case}: restore: {error}"));
    assert_eq!(report.failures, 0, "{case}");
    let journal = snapshot.journal.as_ref().expect("a snapshot of a volume");
    let index = contents(&target, Path::new(&format!("/web/history/{}.index", journal.first_lsn))).unwrap();
    let data = contents(&target, Path::new(&format!("/web/history/{}.data", journal.first_lsn))).unwrap();
    assert_eq!(index.len() as u64, (journal.last_lsn + 1 - journal.first_lsn) * 8, "{case}");
    let image = contents(&target, Path::new("/web/image")).unwrap();
    // The last version of each block in the history is that of the image.
    let block = if index.is_empty() { 1 } else { data.len() * 8 / index.len() };
    let mut last = BTreeMap::new();
    for (at, number) in index.chunks_exact(8).enumerate() {
        last.insert(u64::from_le_bytes(number.try_into().unwrap()), &data[at * block..][..block]);
    }
    for (number, bytes) in last {
        assert_eq!(&image[usize::try_from(number).unwrap() * block..][..block], bytes, "{case}: block {number}");
    }
    image
}

/// Bytes of the chunks of some kinds that a session has stored.
fn stored_by(store: &Store, session: SessionId, kinds: &[ChunkKind]) -> usize {
    let own = containers(store).into_iter().filter(|container| container.name.id.session == session);
    let chunks = own.flat_map(|container| container.chunks);
    chunks.filter(|(kind, ..)| kinds.contains(kind)).map(|(_, _, len)| len as usize).sum()
}

#[test]
fn a_second_snapshot_of_a_volume_stores_changed_blocks_and_few_references() {
    let world = World::new(1);
    let store = world.create(VOLUMES).unwrap();
    // A quarter of the volume was never written.
    let mut bytes = noise(1, 64 << 20);
    bytes[16 << 20..32 << 20].fill(0);
    let mut volume = Volume::new(4096, bytes);
    let mut reader = open_reader(&world, &store).unwrap();
    let first = snapshot((&world, &store), (&volume, None, Proof::Rule), &mut reader, &mut || {}).unwrap();
    let before = volume.clone();
    let metadata = [ChunkKind::Recipe, ChunkKind::Tree];
    let all = stored_by(&store, first.session, &metadata);

    let mut draw = Draw::new(4);
    let mut numbers = BTreeSet::from([77]);
    while numbers.len() < 101 {
        numbers.insert(draw.below(volume.blocks()));
    }
    for number in numbers {
        let bytes = if number == 77 { vec![0; 4096] } else { noise(draw.next(), 4096) };
        volume.write(number, &bytes);
    }
    let second = (&volume, Some(first.session), Proof::Rule);
    let second = snapshot((&world, &store), second, &mut reader, &mut || {}).unwrap();
    assert_eq!(second.proof, Some(Proof::Rule));
    let after = volume.clone();
    volume.writes.clear();
    volume.write(12_345, &noise(3, 4096));
    let third = (&volume, Some(second.session), Proof::Rule);
    let third = snapshot((&world, &store), third, &mut reader, &mut || {}).unwrap();

    for (made, expected) in [(first, &before), (second, &after), (third, &volume)] {
        assert!(restored(&world, &store, made.session, "64 MiB") == expected.bytes, "{made:?}");
    }
    assert_clean(&world, &store, "64 MiB");
    assert_complete(&world, &store, "64 MiB");
    let hundred = stored_by(&store, second.session, &metadata);
    let one = stored_by(&store, third.session, &metadata);
    tell(&format!("metadata of 64 MiB: {all} bytes; of 101 changed blocks: {hundred}; of one: {one}"));
    assert!(hundred <= 101 * 4096 * 3 / 4, "{hundred} bytes of metadata for 101 blocks");
    assert!(one <= 16 << 10, "{one} bytes of metadata for one block");
    assert_eq!(stored_by(&store, third.session, &[ChunkKind::Data]), 4096 + 8, "a block and its line of the index");
    assert_eq!(stored_by(&store, second.session, &[ChunkKind::Data]), 101 * 4096 + 101 * 8);

    // The patched image is the one that storing the volume again gives.
    let whole = snapshot((&world, &store), (&volume, None, Proof::Rule), &mut reader, &mut || {}).unwrap();
    assert_eq!(stored_by(&store, whole.session, &[ChunkKind::Data]), 0);
    assert_eq!(stored_by(&store, whole.session, &metadata), 0, "the same segments, nodes and tree");
}

/// Each chunk that is not durable takes memory. A container of the smallest chunks has ten times as many as others.
#[test]
fn a_container_of_many_chunks_is_durable_before_the_next_barrier() {
    let world = World::new(9);
    let sizes = Adjustments { region_bytes: Some(64 << 10), container_bytes: Some(1 << 20), ..SMALL };
    let store = world.create(sizes).unwrap();
    let barrier = options(&world).budget.barrier_containers as u64;
    in_session(&world, &store, &Driver::inline(1), &mut |writer| {
        for number in 0..2 * barrier * 1536 + 90_000 {
            writer.chunk(&number.to_le_bytes())?;
            while writer.next_reference().is_some() {}
        }
        let durable = store.list(Prefix::Containers)?.len() as u64;
        assert!((1..2 * barrier).contains(&durable), "{durable} of {barrier}");
        Ok(())
    })
    .unwrap();
}

/// A small volume: blocks, holes, and three states of it.
fn versions(seed: u64) -> [Volume; 3] {
    let mut draw = Draw::new(seed);
    let mut first = Volume::new(256, noise(seed, 256 * 700));
    for _ in 0..6 {
        let start = draw.below(680);
        first.bytes[start * 256..(start + draw.below(20)) * 256].fill(0);
    }
    let mut next = |before: &Volume| {
        let mut volume = Volume { writes: Vec::new(), ..before.clone() };
        for _ in 0..30 {
            let bytes = if draw.once_in(4) { vec![0; 256] } else { noise(draw.next(), 256) };
            volume.write(draw.below(700), &bytes);
        }
        volume
    };
    let second = next(&first);
    let third = next(&second);
    [first, second, third]
}

/// Makes snapshots of the first two versions; returns those that were acknowledged.
fn run(world: &World, versions: &[Volume; 3]) -> Vec<(SessionId, usize)> {
    let mut acknowledged = Vec::new();
    if world.create(SMALL_VOLUMES).is_err() {
        return acknowledged;
    }
    for (number, volume) in versions.iter().enumerate().take(2) {
        let Ok(store) = world.open() else { continue };
        let Ok(mut reader) = open_reader(world, &store) else { continue };
        let parent = acknowledged.last().map(|(session, _)| *session);
        let made = snapshot((world, &store), (volume, parent, Proof::Rule), &mut reader, &mut || {});
        if let Ok(made) = made {
            acknowledged.push((made.session, number));
        }
    }
    acknowledged
}

/// Asserts that acknowledged snapshots are listed and whole, and that the next one can be made.
fn assert_sound(world: &World, versions: &[Volume; 3], acknowledged: &[(SessionId, usize)], case: &str) {
    let store = world.open().unwrap_or_else(|error| panic!("{case}: {error}"));
    let listed: Vec<SessionId> = store.read_commits().unwrap().snapshots().iter().map(|(id, _)| *id).collect();
    for session in &listed {
        let bytes = restored(world, &store, *session, case);
        match acknowledged.iter().find(|(known, _)| known == session) {
            Some((_, version)) => assert!(bytes == versions[*version].bytes, "{case}: {session}"),
            None => assert!(versions.iter().any(|volume| volume.bytes == bytes), "{case}: {session} is not whole"),
        }
    }
    assert!(acknowledged.iter().all(|(session, _)| listed.contains(session)), "{case}: a snapshot is lost");
    assert_clean(world, &store, case);
    assert_complete(world, &store, case);
    let mut reader = open_reader(world, &store).unwrap();
    // What was committed last, acknowledged or not, is the parent. All writes since then are stored again.
    let parent = listed.last().copied();
    let mut volume = versions[2].clone();
    volume.writes.splice(..0, versions[1].writes.iter().copied());
    let next = snapshot((world, &store), (&volume, parent, Proof::Rule), &mut reader, &mut || {});
    let next = next.unwrap_or_else(|error| panic!("{case}: the next snapshot: {error}"));
    assert_eq!(next.proof, parent.map(|_| Proof::Rule), "{case}");
    assert!(restored(world, &store, next.session, case) == volume.bytes, "{case}: the next snapshot");
}

/// The calls of the second snapshot, of a life without faults.
fn calls(versions: &[Volume; 3]) -> Vec<TraceEntry> {
    let world = World::new(1);
    world.disk.record_trace();
    let acknowledged = run(&world, versions);
    assert_eq!(acknowledged.len(), 2);
    let trace = world.disk.trace();
    assert_sound(&world, versions, &acknowledged, "undisturbed");
    let commits: Vec<u64> = trace
        .iter()
        .filter(|call| call.operation == "link" && call.path.starts_with("repo/commits"))
        .map(|call| call.number)
        .collect();
    assert_eq!(commits.len(), 2, "{commits:?}");
    trace.into_iter().filter(|call| commits[0] < call.number).collect()
}

/// The images of a disk that were examined.
#[derive(Default)]
struct Examined(HashSet<blake3::Hash>);

impl Examined {
    fn is_new(&mut self, disk: &SimDisk, acknowledged: usize) -> bool {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[u8::try_from(acknowledged).unwrap()]);
        hash_directory(&disk.fork(), Path::new(""), &mut hasher);
        self.0.insert(hasher.finalize())
    }
}

#[test]
fn an_error_at_any_call_of_a_patched_snapshot_loses_nothing() {
    let versions = versions(5);
    let faults = [
        Fault::Error(ErrorKind::Other),
        Fault::DiskFull,
        Fault::ShortWrite(ErrorKind::Other),
        Fault::ErrorAfter(ErrorKind::Other),
    ];
    let (calls, mut images) = (calls(&versions), Examined::default());
    assert!(60 < calls.len(), "{} calls", calls.len());
    for call in &calls {
        for fault in faults {
            let world = World::new(1);
            world.disk.fail_at(call.number, fault);
            let acknowledged = run(&world, &versions);
            world.disk.clear_faults();
            if images.is_new(&world.disk, acknowledged.len()) {
                assert_sound(&world, &versions, &acknowledged, &format!("{fault:?} at call {call:?}"));
            }
        }
    }
    tell(&format!("errors at {} calls of a patched snapshot: {} results, nothing lost", calls.len(), images.0.len()));
}

#[test]
fn a_crash_at_any_call_of_a_patched_snapshot_loses_nothing() {
    let versions = versions(5);
    let ways = [
        Some(CrashMode::LoseUnsynced),
        Some(CrashMode::KeepAll),
        Some(CrashMode::Subset(1)),
        Some(CrashMode::Subset(2)),
        Some(CrashMode::Subset(3)),
        Some(CrashMode::Torn(4)),
        None,
    ];
    let (calls, mut images) = (calls(&versions), Examined::default());
    for call in &calls {
        let world = World::new(1);
        let fault = if call.number % 2 == 0 { Fault::Die } else { Fault::DieAfter };
        world.disk.fail_at(call.number, fault);
        let acknowledged = run(&world, &versions);
        for way in ways {
            let after = way.map_or_else(|| world.disk.reopen(), |mode| world.disk.crash(mode));
            if images.is_new(&after, acknowledged.len()) {
                let case = format!("{fault:?} at call {call:?}, {way:?}");
                assert_sound(&world.on(after), &versions, &acknowledged, &case);
            }
        }
    }
    tell(&format!("crashes at {} calls of a patched snapshot: {} images, nothing lost", calls.len(), images.0.len()));
}

#[test]
fn an_error_that_the_caller_returns_ends_the_session_without_a_snapshot() {
    let world = World::new(1);
    let store = world.create(SMALL_VOLUMES).unwrap();
    let [volume, ..] = versions(6);
    let outcome = in_session(&world, &store, &Driver::inline(1), &mut |writer| {
        store_image(writer, &store, &volume)?;
        writer.barrier()?;
        Err::<(), _>(Error::Interrupted)
    });
    assert!(matches!(outcome, Err(Error::Interrupted)));
    in_session(&world, &store, &Driver::inline(1), &mut |_| Ok(())).unwrap();
    let commits = store.read_commits().unwrap();
    assert_eq!((commits.commits.len(), commits.snapshots().len()), (2, 0), "both sessions have ended");
    // The barrier has made durable what the next session finds.
    let mut reader = open_reader(&world, &store).unwrap();
    let made = snapshot((&world, &store), (&volume, None, Proof::Rule), &mut reader, &mut || {}).unwrap();
    assert_eq!(stored_by(&store, made.session, &[ChunkKind::Data]), 0);
    assert!(restored(&world, &store, made.session, "after an error") == volume.bytes);
}

#[test]
fn requests_that_make_no_snapshot_are_refused() {
    let world = World::new(1);
    let store = world.create(SMALL_VOLUMES).unwrap();
    let longest = store.config.region_bytes as usize;
    in_session(&world, &store, &Driver::inline(1), &mut |writer| {
        for len in [0, longest + 1] {
            assert!(matches!(writer.chunk(&vec![1; len]), Err(Error::Invalid { .. })));
        }
        for len in [0, store.config.region_bytes + 1] {
            assert!(matches!(writer.stream(len, &mut Cursor::new(b"x")), Err(Error::Invalid { .. })));
        }
        writer.chunk(&vec![1; longest])?;
        writer.resolve()?;
        assert_eq!(writer.next_reference().map(|reference| reference.chunk.len as usize), Some(longest));
        let file = |name: &str| HintedEntry::file(name.as_bytes(), 0o644, Timestamp::default(), BuiltRecipe::default());
        for name in ["", ".", "..", "a/b", "a\0", &"a".repeat(256)] {
            assert!(matches!(writer.directory(vec![file(name)]), Err(Error::Invalid { .. })), "{name}");
        }
        assert!(matches!(writer.directory(vec![file("a"), file("b"), file("a")]), Err(Error::Invalid { .. })));
        let mut odd = file("a");
        odd.entry.mode = 0o10_000;
        assert!(matches!(writer.directory(vec![odd]), Err(Error::Invalid { .. })));
        Ok(())
    })
    .unwrap();
}

/// A stream on a grid, in a repository that cuts by content.
#[test]
fn streams_are_cut_on_a_grid_in_every_repository() {
    let world = World::new(1);
    let store = world.create(SMALL).unwrap();
    let bytes = noise(8, 100 * 512 + 37);
    let (session, lens) = in_session(&world, &store, &Driver::inline(1), &mut |writer| {
        let recipe = writer.stream(512, &mut Cursor::new(&bytes))?;
        let mut reader = open_reader(&world, &store)?;
        let file = HintedEntry::file(b"stream", 0o644, Timestamp::default(), recipe.clone());
        let tree = writer.directory(vec![file])?;
        let session = writer.commit(&Snapshot::new(Timestamp::default(), tree))?;
        reader.learn(&store.list_containers(&world.scratch())?)?;
        let mut cursor = RecipeCursor::new(&recipe.recipe, &recipe.hints);
        assert_eq!(cursor.seek(70 * 512 + 1, &mut reader)?, 70 * 512);
        let mut lens = Vec::new();
        while let Some(extent) = cursor.next(&mut reader)? {
            let FileExtent::Chunk(hinted) = extent else { panic!("no holes") };
            assert_eq!(hinted.hint.map(|hint| hint.session), Some(session));
            lens.push(hinted.chunk.len);
        }
        Ok((session, lens))
    })
    .unwrap();
    assert_eq!(lens, [vec![512; 30], vec![37]].concat());
    let commits = store.read_commits().unwrap();
    let (_, snapshot) = commits.snapshots().into_iter().find(|(listed, _)| *listed == session).unwrap();
    let (target, _) = world.restore(&store, snapshot).unwrap();
    assert!(contents(&target, Path::new("/stream")).unwrap() == bytes);
    assert_clean(&world, &store, "grid");
}

#[test]
fn a_reader_that_stays_open_reads_the_directories_of_new_containers_only() {
    let world = World::new(1);
    let store = world.create(SMALL_VOLUMES).unwrap();
    let versions = versions(7);
    let mut reader = open_reader(&world, &store).unwrap();
    let mut parent = None;
    for volume in &versions {
        let made = snapshot((&world, &store), (volume, parent, Proof::Rule), &mut reader, &mut || {}).unwrap();
        let listed = store.list_containers(&world.scratch()).unwrap();
        let count = |session: Option<SessionId>| {
            let is_new = |id: &ContainerId| session.is_none_or(|session| id.session == session);
            let names = container_names(&store);
            let metadata = names.iter().filter(|name| name.kind == ContainerKind::Metadata);
            metadata.filter(|name| is_new(&name.id)).count()
        };
        world.disk.record_trace();
        let before = world.disk.calls();
        reader.learn(&listed).unwrap();
        let opened: HashSet<PathBuf> = world
            .disk
            .trace()
            .into_iter()
            .filter(|call| before < call.number && call.path.starts_with("repo/containers") && call.operation == "read")
            .map(|call| call.path)
            .collect();
        assert_eq!(opened.len(), count(Some(made.session)), "{opened:?}");
        assert!(opened.len() < count(None) || parent.is_none());
        parent = Some(made.session);
    }
}

fn prune_with(world: &World, store: &Store, change: impl Fn(PruneRequest) -> PruneRequest) -> PruneReport {
    prune(store, &change(request(world, store)), &Silent).unwrap()
}

/// Makes the parent, and returns the world with it.
fn with_parent(seed: u64) -> (World, Store, [Volume; 3], SessionId) {
    let world = World::new(seed);
    let store = world.create(SMALL_VOLUMES).unwrap();
    let versions = versions(seed);
    let mut reader = open_reader(&world, &store).unwrap();
    let parent = snapshot((&world, &store), (&versions[0], None, Proof::Rule), &mut reader, &mut || {}).unwrap();
    (world, store, versions, parent.session)
}

#[test]
fn a_parent_that_is_forgotten_before_the_session_is_looked_at_chunk_by_chunk() {
    let (world, store, versions, parent) = with_parent(11);
    let mut reader = open_reader(&world, &store).unwrap();
    forget(&store, parent).unwrap();
    let made = (&versions[1], Some(parent), Proof::Rule);
    let made = snapshot((&world, &store), made, &mut reader, &mut || {}).unwrap();
    assert_eq!(made.proof, Some(Proof::EveryChunk));
    assert_eq!(assert_complete(&world, &store, "forgotten"), 0, "the manifest lists what is needed, and no more");
    prune_with(&world, &store, |request| request);
    assert!(restored(&world, &store, made.session, "forgotten") == versions[1].bytes);
    assert_clean(&world, &store, "forgotten");
}

#[test]
fn a_parent_that_a_prune_has_deleted_is_refused_and_the_volume_stored_again() {
    let (world, store, versions, parent) = with_parent(12);
    // The reader has known the containers before they were deleted.
    let mut reader = open_reader(&world, &store).unwrap();
    forget(&store, parent).unwrap();
    let report = prune_with(&world, &store, |request| request);
    assert!(0 < report.deleted_containers);
    let made = (&versions[1], Some(parent), Proof::Rule);
    let made = snapshot((&world, &store), made, &mut reader, &mut || {}).unwrap();
    assert_eq!(made.proof, None);
    assert!(restored(&world, &store, made.session, "deleted") == versions[1].bytes);
    assert_clean(&world, &store, "deleted");
}

/// The case that could lose data: the parent is forgotten after the session has begun, and a prune begins.
#[test]
fn a_prune_that_begins_after_the_session_keeps_what_is_reused() {
    for (seed, quick) in [(13, false), (14, true)] {
        let (world, store, versions, parent) = with_parent(seed);
        let mut reader = open_reader(&world, &store).unwrap();
        let patient = |request| PruneRequest { quick, fence_after: Duration::from_hours(24), ..request };
        let mut waited = 0;
        let mut meanwhile = || {
            let other = world.open().unwrap();
            forget(&other, parent).unwrap();
            let report = prune_with(&world, &other, patient);
            assert!(matches!(report.state, PruneState::Waiting(_)), "{:?}", report.state);
            assert_eq!(report.deleted_containers, 0);
            waited += 1;
        };
        let made = (&versions[1], Some(parent), Proof::Rule);
        let made = snapshot((&world, &store), made, &mut reader, &mut meanwhile).unwrap();
        assert_eq!((made.proof, waited), (Some(Proof::Rule), 1));
        let report = prune_with(&world, &store, patient);
        assert!(matches!(report.state, PruneState::Done), "{:?}", report.state);
        let case = format!("seed {seed}");
        assert!(restored(&world, &store, made.session, &case) == versions[1].bytes, "{case}");
        assert_clean(&world, &store, &case);
        // The next one finds that the manifest of its parent lists what is gone, or that the rest has moved.
        let next = (&versions[2], Some(made.session), Proof::Rule);
        let next = snapshot((&world, &store), next, &mut reader, &mut || {}).unwrap();
        assert!(next.proof.is_some(), "{case}");
        assert!(restored(&world, &store, next.session, &case) == versions[2].bytes, "{case}");
        assert_complete_of(&world, &store, next.session, &case);
    }
}

/// A session that begins while containers are condemned looks at every chunk.
#[test]
fn while_containers_are_condemned_the_rule_does_not_hold() {
    let (world, store, versions, parent) = with_parent(15);
    let mut reader = open_reader(&world, &store).unwrap();
    let patient = |request| PruneRequest { fence_after: Duration::from_hours(24), ..request };
    // A session that the prune waits for, so that it stays between the two steps.
    let mut proofs = Vec::new();
    in_session(&world, &store, &Driver::inline(1), &mut |_| {
        let other = world.open().unwrap();
        forget(&other, parent).unwrap();
        let report = prune_with(&world, &other, patient);
        assert!(matches!(report.state, PruneState::Waiting(_)), "{:?}", report.state);
        Ok(())
    })
    .unwrap();
    for proof in [Proof::Rule, Proof::EveryChunk] {
        let made = (&versions[1], Some(parent), proof);
        let made = snapshot((&world, &store), made, &mut reader, &mut || {}).unwrap();
        proofs.push(made.proof);
        assert!(restored(&world, &store, made.session, "condemned") == versions[1].bytes);
    }
    assert_eq!(proofs[0], None, "the parent's containers are condemned");
    prune_with(&world, &store, patient);
    assert_clean(&world, &store, "condemned");
}

/// The rule needs more than that the containers of the parent are live.
#[test]
fn while_other_containers_are_condemned_every_chunk_is_looked_at() {
    let (world, store, versions, parent) = with_parent(16);
    let mut reader = open_reader(&world, &store).unwrap();
    let other = snapshot((&world, &store), (&versions[2], None, Proof::Rule), &mut reader, &mut || {}).unwrap();
    let ids = container_names(&store).into_iter().map(|name| name.id);
    let unrelated: Vec<ContainerId> = ids.filter(|id| id.session == other.session).collect();
    assert!(!unrelated.is_empty());
    condemn((&world, &store), 1, &unrelated);
    let made = (&versions[1], Some(parent), Proof::Rule);
    let made = snapshot((&world, &store), made, &mut reader, &mut || {}).unwrap();
    assert_eq!(made.proof, Some(Proof::EveryChunk));
    let is_condemning = || in_session(&world, &store, &Driver::inline(1), &mut |writer| Ok(writer.is_condemning()));
    assert!(is_condemning().unwrap());
    collect((&world, &store), 1, CollectionStep::Done, &[]);
    assert!(!is_condemning().unwrap());
    let made = (&versions[1], Some(parent), Proof::Rule);
    let made = snapshot((&world, &store), made, &mut reader, &mut || {}).unwrap();
    assert_eq!(made.proof, Some(Proof::Rule));
    assert!(restored(&world, &store, made.session, "unrelated") == versions[1].bytes);
}

#[test]
fn a_container_of_the_parent_that_is_gone_is_noticed() {
    for kind in [ContainerKind::Data, ContainerKind::Metadata] {
        let (world, store, versions, parent) = with_parent(17);
        let mut reader = open_reader(&world, &store).unwrap();
        let lost = container_names(&store).into_iter().find(|name| name.kind == kind).unwrap();
        world.repo().remove(Path::new(&ObjectName::from(lost).to_string())).unwrap();
        let made = (&versions[1], Some(parent), Proof::Rule);
        let made = snapshot((&world, &store), made, &mut reader, &mut || {}).unwrap();
        assert_eq!(made.proof, None, "{kind:?}");
        assert!(restored(&world, &store, made.session, "gone") == versions[1].bytes, "{kind:?}");
    }
}

/// Chunks that another session still needs are copied, and their containers deleted.
#[test]
fn chunks_that_have_moved_are_reused() {
    for seed in 20..24 {
        let (world, store, versions, parent) = with_parent(seed);
        let mut reader = open_reader(&world, &store).unwrap();
        let second = (&versions[1], Some(parent), Proof::Rule);
        let second = snapshot((&world, &store), second, &mut reader, &mut || {}).unwrap();
        forget(&store, parent).unwrap();
        let report = prune_with(&world, &store, |request| request);
        assert!(0 < report.deleted_containers);
        let case = format!("seed {seed}");
        for proof in [Proof::EveryChunk, Proof::Rule] {
            let third = (&versions[2], Some(second.session), proof);
            let third = snapshot((&world, &store), third, &mut reader, &mut || {}).unwrap();
            assert!(third.proof.is_some(), "{case}");
            assert!(restored(&world, &store, third.session, &case) == versions[2].bytes, "{case}");
            assert_complete_of(&world, &store, third.session, &case);
        }
        assert_clean(&world, &store, &case);
    }
}

/// Asserts that the manifest of a snapshot names a container for each chunk, and only containers that exist.
fn assert_complete_of(world: &World, store: &Store, session: SessionId, case: &str) {
    let listed = listed_by(store, session).unwrap_or_else(|| panic!("{case}: no manifest"));
    let mut held: HashSet<Fingerprint> = HashSet::new();
    let mut exist = HashSet::new();
    for container in containers(store) {
        exist.insert(container.name.id);
        if listed.contains_key(&container.name.id) {
            held.extend(container.chunks.iter().map(|(_, fingerprint, _)| *fingerprint));
        }
    }
    assert!(listed.keys().all(|id| exist.contains(id)), "{case}: a container that is gone is listed");
    let commits = store.read_commits().unwrap();
    let (_, snapshot) = commits.snapshots().into_iter().find(|(listed, _)| *listed == session).unwrap();
    let reached = reached(world, store, snapshot.tree);
    assert!(reached.iter().all(|chunk| held.contains(chunk)), "{case}: a chunk is in no listed container");
}

/// Snapshots, forgets and prunes in any order. The oracle of the world asserts that nothing is removed that a snapshot needs.
#[test]
fn snapshots_of_a_volume_survive_any_sequence_of_forgets_and_prunes() {
    let mut removed = 0;
    let mut proofs: BTreeMap<String, u32> = BTreeMap::new();
    for seed in 0..if cfg!(feature = "slow") { 60 } else { 8 } {
        let case = format!("seed {seed}");
        let mut draw = Draw::new(seed);
        let world = World::new(seed);
        let store = world.create(SMALL_VOLUMES).unwrap();
        let mut volume = Volume::new(256, noise(seed, 256 * 300));
        let mut reader = open_reader(&world, &store).unwrap();
        let mut kept: Vec<(SessionId, Vec<u8>)> = Vec::new();
        for _ in 0..14 {
            volume.writes.clear();
            for _ in 0..draw.below(12) {
                // Old contents come back now and then.
                let bytes = noise(draw.below(200) as u64, 256);
                volume.write(draw.below(300), &bytes);
            }
            let parent = kept.last().map(|(session, _)| *session);
            let forgotten =
                if draw.once_in(3) && !kept.is_empty() { Some(kept.remove(draw.below(kept.len())).0) } else { None };
            let (is_pruned, quick) = (draw.once_in(2), draw.once_in(2));
            let patient = |request| PruneRequest { quick, fence_after: Duration::from_hours(24), ..request };
            let mut meanwhile = || {
                let other = world.open().unwrap();
                if let Some(forgotten) = forgotten {
                    forget(&other, forgotten).unwrap();
                }
                if is_pruned {
                    prune_with(&world, &other, patient);
                }
            };
            let proof = if draw.once_in(4) { Proof::EveryChunk } else { Proof::Rule };
            let made = snapshot((&world, &store), (&volume, parent, proof), &mut reader, &mut meanwhile).unwrap();
            *proofs.entry(format!("{:?}", made.proof)).or_default() += 1;
            kept.push((made.session, volume.bytes.clone()));
            assert!(listed_by(&store, made.session).is_some(), "{case}: no manifest");
            if draw.once_in(2) {
                prune_with(&world, &store, patient);
            }
        }
        for (session, bytes) in &kept {
            assert!(restored(&world, &store, *session, &case) == *bytes, "{case}");
        }
        assert_clean(&world, &store, &case);
        removed += world.removals().0;
    }
    tell(&format!("{removed} containers removed; images by proof: {proofs:?}"));
    assert!(20 < removed && proofs.len() == 3, "{removed} containers removed, {proofs:?}");
}

/// Blocks of a few bytes and more of them than wait at a time.
#[test]
fn chunks_come_back_in_the_order_of_the_stream_with_every_driver() {
    let mut trees = HashSet::new();
    for driver in [Driver::inline(1), Driver::inline(2), Driver::threads(2)] {
        let world = World::new(3);
        let store = world.create(SMALL_VOLUMES).unwrap();
        let tree = in_session(&world, &store, &driver, &mut |writer| {
            let (mut pushed, mut taken) = (VecDeque::new(), 0);
            for number in 0..30_000u32 {
                let bytes = noise(u64::from(number % 9_000), 16 + number as usize % 32);
                writer.chunk(&bytes)?;
                pushed.push_back(store.keys.fingerprint(ChunkKind::Data, &bytes));
                while let Some(ChunkRef { chunk: Chunk { fingerprint, .. }, .. }) = writer.next_reference() {
                    assert_eq!(Some(fingerprint), pushed.pop_front());
                    taken += 1;
                }
            }
            writer.resolve()?;
            while let Some(reference) = writer.next_reference() {
                assert_eq!(Some(reference.chunk.fingerprint), pushed.pop_front());
                taken += 1;
            }
            assert_eq!((taken, pushed.len()), (30_000, 0));
            let stream = writer.stream(200, &mut Cursor::new(noise(5, 100_000)))?;
            writer.directory(vec![HintedEntry::file(b"stream", 0o644, Timestamp::default(), stream)])
        })
        .unwrap();
        trees.insert(tree);
    }
    assert_eq!(trees.len(), 1, "{trees:?}");
}
