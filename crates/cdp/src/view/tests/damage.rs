//! Checkpoints that lie, and bytes that changed.

use std::io::Cursor;

use onefold_engine::recipe::BuiltRecipe;
use onefold_engine::repo::write;
use onefold_engine::snapshot::{JournalNote, Snapshot};
use onefold_engine::store::cursor::HintedEntry;
use onefold_engine::types::Timestamp;

use super::*;
use crate::history::{Change, HistoryEntry, IndexWriter};
use crate::stored::Checkpoints;

const TIME: Timestamp = Timestamp { seconds: 1_800_000_000, nanoseconds: 0 };

/// Makes a snapshot as a checkpoint of records 1 to 5 would be, with any index and data. Images are cut in chunks of so many bytes.
fn forge(world: &World, store: &Store, index: Option<&[u8]>, data: &[u8], (last, chunk): (u64, u32)) {
    let images = world.origins().unwrap();
    let made = world.write(|request| {
        write(store, request, &mut |writer| {
            let mut root = Vec::new();
            for (name, origin) in NAMES.iter().zip(&images) {
                let mut bytes = vec![0; usize::try_from(origin.size()).unwrap()];
                origin.read(0, &mut bytes).unwrap();
                let image = writer.stream(chunk, &mut Cursor::new(bytes))?;
                let node = writer.directory(vec![HintedEntry::file(b"image", 0o600, TIME, image)])?;
                root.push(HintedEntry::directory(name.as_bytes(), 0o700, TIME, node));
            }
            let mut files = Vec::new();
            let stream = |writer: &mut onefold_engine::backup::Writer<'_>, bytes: &[u8]| -> Result<BuiltRecipe> {
                writer.stream(4096, &mut Cursor::new(bytes.to_vec()))
            };
            if let Some(index) = index {
                let index = stream(writer, index)?;
                files.push(HintedEntry::file(b"0000000000000001.index", 0o600, TIME, index));
            }
            let data = stream(writer, data)?;
            files.push(HintedEntry::file(b"0000000000000001.data", 0o600, TIME, data));
            let node = writer.directory(files)?;
            root.push(HintedEntry::directory(b"history", 0o700, TIME, node));
            let tree = writer.directory(root)?;
            let note = JournalNote { volume: ID.0, first_lsn: 1, last_lsn: last, synced_lsn: 0, marks: Vec::new() };
            let snapshot = Snapshot {
                tags: vec!["cdp:web".into()],
                paths: NAMES.iter().map(|name| format!("/{name}/image").into_bytes()).collect(),
                journal: Some(note),
                ..Snapshot::new(TIME, tree)
            };
            writer.commit(&snapshot)
        })
    });
    made.unwrap();
}

fn entry(lsn: u64, change: Change, volume: u16, blocks: Range<u64>) -> HistoryEntry {
    HistoryEntry { lsn: Lsn(lsn), time: 9, volume, change, block: blocks.start, count: blocks.end - blocks.start }
}

fn index_of(entries: &[HistoryEntry]) -> Vec<u8> {
    let mut writer = IndexWriter::new(Lsn(1));
    for entry in entries {
        writer.push(entry);
    }
    writer.take()
}

#[test]
fn an_index_that_lies_is_an_error_and_no_panic() {
    let (world, bytes) = World::new(5);
    let sound = [entry(1, Change::Data, 0, 3..5), entry(2, Change::Zero, 1, 7..299), entry(5, Change::Flush, 0, 0..0)];
    let cases: [(&str, Vec<u8>); 8] = [
        ("has record 6", index_of(&[entry(6, Change::Flush, 0, 0..0)])),
        ("volume 2, which is not in the group", index_of(&[entry(1, Change::Zero, 2, 0..1)])),
        ("beyond the end of volume 0", index_of(&[entry(1, Change::Data, 0, 39..41)])),
        ("beyond the end of volume 1", index_of(&[entry(1, Change::Zero, 1, 0..301)])),
        ("beyond the end of volume 1", index_of(&[entry(1, Change::Gap, 1, 5..1 << 51)])),
        (
            "ends before the contents of record 3",
            index_of(&[entry(2, Change::Data, 0, 1..3), entry(3, Change::Data, 0, 1..2)]),
        ),
        ("ends early", index_of(&sound)[..20].to_vec()),
        ("does not begin as an index", b"something else".to_vec()),
    ];
    for (expected, index) in &cases {
        let world = World::on(world.disk.fork(), 1);
        let store = world.store().unwrap();
        forge(&world, &store, Some(index), &[7; 8192], (5, 4096));
        let refused = world.point(&store, &At::Lsn(Lsn(4)), None).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
        let _ = history(&store, &world.options(), (GROUP, None), HistoryRequest::default(), None);
        for at in [At::Latest, At::FlushBack(0), At::Time(u64::MAX, TimeRule::Exact)] {
            let _ = world.point(&store, &at, None);
        }
    }
    let without = World::on(world.disk.fork(), 1);
    let store = without.store().unwrap();
    forge(&without, &store, None, &[], (5, 4096));
    assert!(without.point(&store, &At::Lsn(Lsn(4)), None).is_err());

    let store = world.store().unwrap();
    forge(&world, &store, Some(&index_of(&sound)), &[7; 8192], (5, 4096));
    let mut state = bytes;
    state[0][3 * 4096..5 * 4096].fill(7);
    state[1][7 * 4096..299 * 4096].fill(0);
    assert!(read_all(&world.point(&store, &At::Lsn(Lsn(4)), None).unwrap()) == state);
}

#[test]
fn changed_bytes_of_the_repository_are_errors_or_nothing() {
    let mut random = SplitMix64::new(6);
    let (world, bytes) = World::new(6);
    let mut model = Model::new(bytes);
    let mut opened = world.open(CheckpointLimits::DEFAULT).unwrap();
    for _ in 0..30 {
        model.step(&opened, &mut random).unwrap();
    }
    world.checkpoint_all(&mut opened).unwrap();
    drop(opened);
    let files = files_below(&world.disk, Path::new("repo/containers"));
    assert!(2 < files.len(), "{files:?}");
    let (mut errors, mut right) = (0, 0);
    for path in files {
        for _ in 0..6 {
            let world = World::on(world.disk.fork(), 1);
            world.disk.damage(&path, |bytes| {
                let at = random.index(bytes.len());
                bytes[at] ^= 0x10;
            });
            let store = world.store().unwrap();
            let lsn = random.index(model.states.len()) as u64;
            let Ok(point) = world.point(&store, &At::Lsn(Lsn(lsn)), None) else {
                errors += 1;
                continue;
            };
            for (at, state) in model.states[usize::try_from(lsn).unwrap()].iter().enumerate() {
                let mut found = vec![0; state.len()];
                match point.read(at, 0, &mut found) {
                    Ok(()) => {
                        assert!(found == *state, "wrong bytes without an error");
                        right += 1;
                    }
                    Err(_) => errors += 1,
                }
            }
        }
    }
    assert!(5 < errors && 5 < right, "{errors} errors, {right} right");
}

fn files_below(disk: &SimDisk, directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in disk.list(directory).unwrap_or_default() {
        let path = directory.join(&entry.name);
        if entry.is_dir {
            files.extend(files_below(disk, &path));
        } else {
            files.push(path);
        }
    }
    files
}

/// Another program may have stored the image in chunks of other lengths.
#[test]
fn an_image_off_the_grid_is_stored_again_from_the_image_and_the_journal() {
    let (world, bytes) = World::new(7);
    let mut random = SplitMix64::new(7);
    let mut model = Model::new(bytes);
    let mut opened = world.open(CheckpointLimits::DEFAULT).unwrap();
    for _ in 0..4 {
        opened.volumes[0].flush().unwrap();
    }
    model.fill(&model.now(), opened.group.journal().next());
    forge(&world, &opened.store, Some(&index_of(&[])), &[], (4, 5_000));
    for _ in 0..30 {
        model.step(&opened, &mut random).unwrap();
    }
    // The volumes themselves are never read for a checkpoint.
    for name in NAMES {
        world.disk.damage(name, |bytes| bytes.fill(0xee));
    }
    let made = world.checkpoint(&mut opened).unwrap().unwrap();
    assert_eq!((made.first, made.last, made.whole_images), (Lsn(5), model.last(), 2));
    for lsn in 4..=model.last().0 {
        let point = world.point(&opened.store, &At::Lsn(Lsn(lsn)), None).unwrap();
        assert!(read_all(&point) == model.states[usize::try_from(lsn).unwrap()], "after record {lsn}");
    }
    world.assert_clean(&opened.store);
    let newest = Checkpoints::read(&opened.store, GROUP, None).unwrap().newest().unwrap().clone();
    assert_eq!((newest.last(), newest.volumes), (model.last(), NAMES.map(String::from).into()));
}
