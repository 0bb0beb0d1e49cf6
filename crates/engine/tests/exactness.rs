//! No chunk is stored twice, through the whole of a backup, whatever the schedule and however small the filter.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use onefold_engine::chunk::{Chunking, Cutter, GearTable};
use onefold_engine::identify::{Counters, Schedule};
use onefold_engine::io::tree::{EntryKind, SourceTree};
use onefold_engine::store::Store;
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::types::{ChunkKind, Fingerprint};

use crate::integration::support::{Ask, Draw, JobTotals, SMALL, World, copy, newest, noise, stored_chunks};

const SEEDS: u64 = if cfg!(feature = "slow") { 20 } else { 8 };
const SESSIONS: u64 = 4;

/// Cuts every file of a tree on its own, whole extents at a time, and names what comes out.
fn cut_serially(store: &Store, source: &MemTree, into: &mut HashSet<Fingerprint>) {
    let chunking = store.config.chunking;
    let Chunking::Gear(sizes) = chunking else { panic!("the repository cuts by content") };
    let table = GearTable::expand(store.keys.chunk(), sizes);
    let mut todo = vec![PathBuf::from("/")];
    while let Some(path) = todo.pop() {
        match SourceTree::metadata(source, &path).unwrap().kind {
            EntryKind::Directory => {
                todo.extend(SourceTree::list(source, &path).unwrap().into_iter().map(|name| path.join(name)));
            }
            EntryKind::File => {
                let file = SourceTree::open(source, &path).unwrap();
                let mut offset = 0;
                while let Some(range) = file.next_data(offset).unwrap() {
                    let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
                    assert_eq!(file.read_at(range.start, &mut bytes).unwrap(), bytes.len());
                    let (mut candidates, mut cuts) = (Vec::new(), Vec::new());
                    table.candidates(&bytes, 0, &mut candidates);
                    let len = u32::try_from(bytes.len()).unwrap();
                    Cutter::new(chunking).advance(len, &candidates, &mut cuts);
                    let mut start = 0;
                    for end in cuts.into_iter().chain([len]).map(|end| end as usize) {
                        if start < end {
                            into.insert(store.keys.fingerprint(ChunkKind::Data, &bytes[start..end]));
                        }
                        start = end;
                    }
                    offset = range.end;
                }
            }
            _ => {}
        }
    }
}

/// Writes files that share much with each other and with those of earlier sessions.
fn vary(tree: &MemTree, draw: &mut Draw) {
    for number in 0..8 {
        let mut bytes = Vec::new();
        for _ in 0..=draw.below(4) {
            // Few sources of bytes, so that stretches come back in other files, at other offsets.
            let stock = noise(draw.next() % 40, 24_000);
            let start = draw.below(stock.len());
            bytes.extend_from_slice(&stock[start..]);
        }
        let path = format!("/d/{}/file-{number}", draw.below(3));
        tree.put_file(Path::new(&path), &bytes);
        if draw.once_in(3) {
            // A copy at once: its chunks meet those of the original while they are pending.
            tree.put_file(Path::new(&format!("{path}-copy")), &bytes);
        }
    }
    let island = noise(draw.next() % 40, 5000);
    tree.put_sparse(Path::new("/d/sparse"), 1 << 30, &[(4096, &island), (1 << 29, &island[..3000])]);
}

#[test]
fn stored_chunks_equal_a_hash_set() {
    let schedules = [
        Schedule::Eager,
        Schedule::Lazy { threshold: 1 },
        Schedule::Lazy { threshold: 7 },
        Schedule::Exhaustive { threshold: 2 },
        Schedule::Pool { candidates: 32 },
        Schedule::Adaptive,
    ];
    let (mut total, mut jobs) = (Counters::default(), JobTotals::default());
    for schedule in schedules {
        for seed in 0..SEEDS {
            let case = format!("{schedule:?}, seed {seed}");
            let world = World::new(seed);
            let store = world.create(SMALL).unwrap();
            let (mut draw, source, mut expected) = (Draw::new(seed), MemTree::new(), HashSet::new());
            for session in 0..SESSIONS {
                vary(&source, &mut draw);
                cut_serially(&store, &source, &mut expected);
                let with_parent = draw.once_in(2);
                let (filter_bytes, memtable_bytes) = (Some(1 << 10), Some(16 << 10));
                let ask = Ask { schedule, with_parent, filter_bytes, memtable_bytes, ..Ask::default() };
                let report = world.backup(&store, &copy(&source), &ask).unwrap().report;
                let counters = report.counters;
                total.disk_hits += counters.disk_hits;
                total.filter_false_positives += counters.filter_false_positives;
                total.joined += counters.joined;
                total.drains += counters.drains;
                let stored = stored_chunks(&store, &[ChunkKind::Data]);
                let unique: HashSet<Fingerprint> = stored.iter().copied().collect();
                assert_eq!(stored.len(), unique.len(), "{case}, session {session}: a chunk is stored twice");
                assert!(unique == expected, "{case}, session {session}: {} of {}", unique.len(), expected.len());
                let metadata = stored_chunks(&store, &[ChunkKind::Tree, ChunkKind::Recipe]);
                let unique: HashSet<Fingerprint> = metadata.iter().copied().collect();
                assert_eq!(metadata.len(), unique.len(), "{case}, session {session}: metadata is stored twice");
            }
            let (restored, report) = world.restore(&store, &newest(&store).unwrap().unwrap().1).unwrap();
            assert_eq!((report.failures, source.diff(&restored)), (0, Vec::new()), "{case}");
            jobs.add(&world);
        }
    }
    jobs.assert_overlapped("exactness");
    // What makes the method hard must have happened, or the equality above says little.
    assert!(total.disk_hits > 0, "no disk hit");
    assert!(total.filter_false_positives > 0, "no false positive");
    assert!(total.joined > 0, "no join of equal pending chunks");
    assert!(total.drains > 0, "no drain");
}
