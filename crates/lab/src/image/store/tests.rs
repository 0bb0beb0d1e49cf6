use std::collections::HashMap;
use std::io::ErrorKind;

use onefold_engine::monitor::Silent;
use onefold_engine::random::SplitMix64;
use onefold_engine::testing::sim::{CrashMode, Fault, SimDisk};

use super::*;
use crate::image::made::disk_image;
use crate::image::pack::{Around, pack};

const KEY: [u8; 32] = [3; 32];
const OPTIONS: StoreOptions = StoreOptions { level_min: 0, memory: 64 << 20, threads: 2 };

/// An operation on an image.
#[derive(Clone, Copy, Debug)]
enum Act {
    Write,
    Trim,
    Compact,
    Flush,
    Checkpoint,
    Reopen,
}

/// A store, and the image that it must have.
struct Pair {
    sim: SimDisk,
    store: Option<Store>,
    image: Vec<u8>,
}

impl Pair {
    fn new(len: usize, level_min: u8) -> Self {
        let sim = SimDisk::new();
        let options = StoreOptions { level_min, ..OPTIONS };
        let store = Store::create(Arc::new(sim.clone()), len as u64, KEY, options).unwrap();
        Self { sim, store: Some(store), image: vec![0; len] }
    }

    /// Draws an operation and carries it out on both. Contents are of few kinds, so that blocks of all sizes repeat.
    fn act(&mut self, act: Act, random: &mut SplitMix64) -> Result<()> {
        let len = self.image.len();
        let store = self.store.as_mut().unwrap();
        match act {
            Act::Write => {
                let (offset, bytes) = drawn_write(&self.image, random);
                // Before the call: after an error, a first part may have been written.
                let done = store.write(offset as u64, &bytes);
                self.image[offset..offset + bytes.len()].copy_from_slice(&bytes);
                done
            }
            Act::Trim => {
                let (offset, size) = drawn_range(len, random);
                let done = store.trim(offset as u64, size as u64);
                self.image[offset..offset + size].fill(0);
                done
            }
            Act::Compact => store.compact().map(drop),
            Act::Flush => store.flush(),
            Act::Checkpoint => store.checkpoint(),
            Act::Reopen => {
                self.store.take().unwrap().close()?;
                self.store = Some(Store::open(Arc::new(self.sim.clone()), OPTIONS)?);
                Ok(())
            }
        }
    }

    fn check(&self) {
        let store = self.store.as_ref().unwrap();
        let mut read = vec![1; self.image.len()];
        store.read(0, &mut read).unwrap();
        assert!(read == self.image, "the image differs");
        assert_eq!(store.state.inconsistency(), None);
    }
}

fn drawn_range(len: usize, random: &mut SplitMix64) -> (usize, usize) {
    let most = [3, 5000, 70_000, 400_000][random.index(4)].min(len);
    let size = random.index(most) + 1;
    let unit = [1, 512, 1024, 4096][random.index(4)];
    let offset = random.index(len - size + 1) / unit * unit;
    (offset, if random.index(3) == 0 { size } else { (size.next_multiple_of(unit)).min(len - offset) })
}

fn drawn_write(image: &[u8], random: &mut SplitMix64) -> (usize, Vec<u8>) {
    let (offset, size) = drawn_range(image.len(), random);
    let bytes = match random.index(4) {
        0 => vec![u8::try_from(random.index(3)).unwrap(); size],
        1 => {
            let from = random.index((image.len() - size) / 1024 + 1) * 1024;
            image[from.min(image.len() - size)..][..size].to_vec()
        }
        _ => std::iter::repeat_with(|| random.next_u64().to_le_bytes()).flatten().take(size).collect(),
    };
    (offset, bytes)
}

fn drawn_act(random: &mut SplitMix64) -> Act {
    match random.index(20) {
        0..11 => Act::Write,
        11..14 => Act::Trim,
        14 => Act::Compact,
        15 | 16 => Act::Flush,
        17 => Act::Checkpoint,
        _ => Act::Reopen,
    }
}

#[test]
fn reads_equal_a_plain_image_after_any_operations() {
    for seed in 0..24 {
        let mut random = SplitMix64::new(seed);
        let len = [1, 5000, 300_000, 1 << 20][random.index(4)] + random.index(2000);
        let mut pair = Pair::new(len, [0, 0, 2, 7][random.index(4)]);
        for step in 0..60 {
            let act = drawn_act(&mut random);
            pair.act(act, &mut random).unwrap_or_else(|error| panic!("seed {seed}, step {step}, {act:?}: {error}"));
            let (offset, size) = drawn_range(len, &mut random);
            let mut read = vec![1; size];
            pair.store.as_ref().unwrap().read(offset as u64, &mut read).unwrap();
            assert!(read == pair.image[offset..offset + size], "seed {seed}, step {step}, {act:?}");
            if step % 10 == 9 {
                pair.check();
            }
        }
        let checked = pair.store.as_ref().unwrap().check().unwrap();
        assert_eq!((checked.problems, checked.messages), (0, Vec::new()), "seed {seed}");
    }
}

#[test]
fn equal_blocks_are_stored_once_and_what_nobody_refers_to_is_free_after_a_checkpoint() {
    let mut pair = Pair::new(1 << 20, 0);
    let store = pair.store.as_mut().unwrap();
    let noise = disk_image(128 << 10, 9);
    let noise: Vec<u8> = noise.iter().map(|byte| byte | 1).collect();
    store.write(0, &noise).unwrap();
    let once = store.stats();
    store.write(256 << 10, &noise).unwrap();
    store.write(512 << 10, &noise[..64 << 10]).unwrap();
    let stats = store.stats();
    assert_eq!((stats.stored_bytes, stats.descriptors), (once.stored_bytes, once.descriptors));
    store.trim(0, 1 << 20).unwrap();
    let stats = store.stats();
    assert_eq!((stats.stored_bytes, stats.descriptors, stats.zero_entries), (0, 0, 8));
    assert_eq!((stats.free_bytes + once.stored_bytes, stats.released_bytes), (stats.file_bytes, once.stored_bytes));
    store.checkpoint().unwrap();
    let stats = store.stats();
    assert_eq!((stats.free_bytes, stats.released_bytes), (stats.file_bytes, 0));
}

#[test]
fn compacting_joins_blocks_that_are_not_shared_and_finds_those_that_are_known() {
    let mut pair = Pair::new(1 << 20, 0);
    let store = pair.store.as_mut().unwrap();
    let image: Vec<u8> = blake3_noise(1 << 20);
    store.write(0, &image).unwrap();
    assert_eq!(store.stats().entries, 1024);
    assert_eq!(store.compact().unwrap(), 1024 - 8);
    assert_eq!((store.stats().entries_by_level[7], store.stats().stored_bytes), (8, 1 << 20));
    // A change divides one block, and only that is joined again.
    store.write(4096, &[7; 1024]).unwrap();
    assert_eq!(store.stats().entries, 7 + 1 + 7);
    assert_eq!(store.compact().unwrap(), 7);
    // Written in small parts, the contents of a block that is there become that block.
    for at in 0..128 {
        store
            .write((512 << 10) + (at << 10), &image[(256 << 10) + (usize::try_from(at).unwrap() << 10)..][..1024])
            .unwrap();
    }
    store.compact().unwrap();
    assert_eq!((store.stats().entries, store.stats().descriptors), (8, 7));
    pair.image = image;
    pair.image[4096..5120].fill(7);
    pair.image.copy_within(256 << 10..384 << 10, 512 << 10);
    pair.check();
}

fn blake3_noise(len: usize) -> Vec<u8> {
    crate::coprocessor::kernel::noise(len)
}

#[test]
fn requests_that_do_not_fit_are_refused() {
    let mut pair = Pair::new(10_000, 0);
    let disk: Arc<dyn Disk> = Arc::new(pair.sim.clone());
    assert!(Store::open(Arc::clone(&disk), OPTIONS).unwrap_err().to_string().contains("open in another process"));
    let store = pair.store.as_mut().unwrap();
    let refused = |result: Result<()>| assert!(matches!(result, Err(Error::Invalid { .. })), "{result:?}");
    refused(store.write(9_999, &[1, 2]));
    refused(store.read(10_000, &mut [1]));
    refused(store.trim(u64::MAX, 2));
    store.write(10_000, &[]).unwrap();
    pair.store = None;
    let error = Store::open(Arc::new(SimDisk::new()), OPTIONS).unwrap_err().to_string();
    assert!(error.contains("no store of an image"), "{error}");
    let little = StoreOptions { memory: 1000, ..OPTIONS };
    let error = Store::create(Arc::new(SimDisk::new()), 1 << 30, KEY, little).unwrap_err().to_string();
    assert!(error.contains("--memory"), "{error}");
    // A write beyond the memory is refused and changes nothing.
    let mut store = Store::open(disk, StoreOptions { memory: 1000, ..OPTIONS }).unwrap();
    assert!(store.write(0, &blake3_noise(10_000)).unwrap_err().to_string().contains("--memory"));
    let mut read = vec![1; 10_000];
    store.read(0, &mut read).unwrap();
    assert_eq!(read, [0; 10_000]);
}

#[test]
fn a_packed_image_is_the_image_for_any_number_of_threads_and_any_memory() {
    for (units, seed, level_min) in [(0, 1, 0), (3, 1, 0), (3000, 2, 0), (5000, 3, 2)] {
        let mut image = disk_image(units << 10, seed);
        image.truncate(image.len().saturating_sub(100));
        let mut states = Vec::new();
        for (threads, memory) in [(1, 64 << 20), (2, 64 << 20), (64, 64 << 20), (2, 400 << 10)] {
            let sim = SimDisk::new();
            let options = StoreOptions { level_min, memory, threads };
            let around = Around { scratch: std::env::temp_dir(), monitor: &Silent };
            let packed = pack(&image[..], Arc::new(sim.clone()), KEY, options, &around);
            let stats = packed.unwrap_or_else(|error| panic!("{units}, {memory}: {error:#}"));
            let store = Store::open(Arc::new(sim.clone()), options).unwrap();
            assert_eq!((store.stats().entries, store.check().unwrap().problems), (stats.entries, 0));
            let mut read = vec![1; image.len()];
            store.read(0, &mut read).unwrap();
            assert!(read == image);
            states.push((store.state.clone(), sim.bytes(disk::BLOCKS)));
        }
        assert!(states.iter().all(|state| *state == states[0]), "{units}: the same store");
    }
}

#[test]
fn a_pack_that_fails_leaves_an_empty_directory() {
    let image = disk_image(600 << 10, 4);
    let around = Around { scratch: std::env::temp_dir(), monitor: &Silent };
    let sim = SimDisk::new();
    pack(&image[..], Arc::new(sim.clone()), KEY, OPTIONS, &around).unwrap();
    let again = pack(&image[..], Arc::new(sim.clone()), KEY, OPTIONS, &around);
    assert!(again.is_err() && Store::open(Arc::new(sim), OPTIONS).is_ok(), "a store is not replaced");
    let calls = {
        let sim = SimDisk::new();
        pack(&image[..], Arc::new(sim.clone()), KEY, StoreOptions { threads: 1, ..OPTIONS }, &around).unwrap();
        sim.calls()
    };
    let mut failed = 0;
    for call in 2..=calls {
        let sim = SimDisk::new();
        sim.fail_at(call, Fault::Error(ErrorKind::Other));
        let packed = pack(&image[..], Arc::new(sim.clone()), KEY, StoreOptions { threads: 1, ..OPTIONS }, &around);
        failed += u32::from(packed.is_err());
        sim.clear_faults();
        let is_empty = sim.list(Path::new("")).unwrap().is_empty();
        // After its last rename it is a store, even if that may not be durable.
        let opened = Store::open(Arc::new(sim.reopen()), OPTIONS);
        assert!(is_empty || opened.is_ok(), "call {call}: {packed:?}, {opened:?}");
        assert!(packed.is_err() || opened.is_ok());
    }
    assert!(10 < failed);
}

/// A run of operations, with the image after each change and what was durable.
struct Run {
    sim: SimDisk,
    /// Images after each window that was written, in order. The last one is that of the state in memory.
    images: Vec<Vec<u8>>,
    /// The number of the image that was last made durable.
    durable: usize,
    /// Whether there is a store.
    is_created: bool,
}

/// Carries out operations until one fails. Each write stays within a window, so that each is one change.
fn run(sim: &SimDisk, seed: u64) -> Run {
    let mut random = SplitMix64::new(seed);
    let len = 200_000;
    let mut run = Run { sim: sim.clone(), images: vec![vec![0; len]], durable: 0, is_created: false };
    let Ok(store) = Store::create(Arc::new(sim.clone()), len as u64, KEY, OPTIONS) else { return run };
    run.is_created = true;
    let mut store = Some(store);
    for _ in 0..14 {
        let open = store.as_mut().unwrap();
        let mut image = run.images.last().unwrap().clone();
        let done = match random.index(8) {
            0..4 => {
                let (offset, mut bytes) = drawn_write(&image, &mut random);
                bytes.truncate((128 << 10) - offset % (128 << 10));
                image[offset..offset + bytes.len()].copy_from_slice(&bytes);
                run.images.push(image);
                open.write(offset as u64, &bytes)
            }
            4 => {
                let (offset, size) = drawn_range(len, &mut random);
                let size = size.min((128 << 10) - offset % (128 << 10));
                image[offset..offset + size].fill(0);
                run.images.push(image);
                open.trim(offset as u64, size as u64)
            }
            5 => open.compact().map(drop),
            6 => open.flush().inspect(|()| run.durable = run.images.len() - 1),
            _ if random.index(2) == 0 => open.checkpoint().inspect(|()| run.durable = run.images.len() - 1),
            _ => {
                let last = run.images.len() - 1;
                store.take().unwrap().close().and_then(|()| {
                    run.durable = last;
                    Store::open(Arc::new(sim.clone()), OPTIONS).map(|opened| store = Some(opened))
                })
            }
        };
        if done.is_err() {
            break;
        }
    }
    run
}

/// Opens what is left, which must be one of the images from the durable one on; then works on.
fn check_image(left: &SimDisk, run: &Run, what: &str) -> bool {
    let opened = Store::open(Arc::new(left.clone()), OPTIONS);
    let mut store = match opened {
        Ok(store) => store,
        Err(error) => {
            assert!(!run.is_created && matches!(error, Error::Invalid { .. }), "{what}: {error}");
            return false;
        }
    };
    let mut read = vec![1; run.images[0].len()];
    store.read(0, &mut read).unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = run.images.iter().rposition(|image| *image == read);
    assert!(found.is_some_and(|found| run.durable <= found), "{what}: {found:?}, at least {} is durable", run.durable);
    assert_eq!(store.state.inconsistency(), None, "{what}");
    assert_eq!(store.check().unwrap().problems, 0, "{what}");
    store.write(1000, b"goes on").unwrap();
    store.close().unwrap();
    let store = Store::open(Arc::new(left.clone()), OPTIONS).unwrap();
    let mut bytes = [0; 7];
    store.read(1000, &mut bytes).unwrap();
    assert_eq!(bytes, *b"goes on", "{what}");
    drop(store);
    // A sync that has failed in an earlier process has lost what it was to make durable.
    let store = Store::open(Arc::new(left.crash(CrashMode::LoseUnsynced)), OPTIONS);
    let mut bytes = [0; 7];
    store.unwrap_or_else(|error| panic!("{what}: {error}")).read(1000, &mut bytes).unwrap();
    assert_eq!(bytes, *b"goes on", "{what}, then a power cut");
    true
}

/// Seeds of a sweep: more by `ONEFOLD_IMAGE_SEEDS`.
fn seeds() -> u64 {
    std::env::var("ONEFOLD_IMAGE_SEEDS").map_or(3, |seeds| seeds.parse().unwrap())
}

#[test]
fn a_crash_at_any_call_leaves_an_image_that_nothing_durable_is_missing_from() {
    let mut counts: HashMap<bool, u64> = HashMap::new();
    for seed in 0..seeds() {
        let whole = run(&SimDisk::new(), seed);
        for call in 1..=whole.sim.calls() {
            for fault in [Fault::Die, Fault::DieAfter] {
                let sim = SimDisk::new();
                sim.fail_at(call, fault);
                let run = run(&sim, seed);
                let modes =
                    [CrashMode::LoseUnsynced, CrashMode::KeepAll, CrashMode::Subset(call), CrashMode::Subset(!call)];
                let modes = modes.into_iter().chain([0, 1, 2].map(|at| CrashMode::Torn(3 * call + at)));
                for mode in modes {
                    let what = format!("seed {seed}, call {call}, {fault:?}, {mode:?}");
                    *counts.entry(check_image(&sim.crash(mode), &run, &what)).or_default() += 1;
                }
            }
        }
    }
    assert!(300 < counts[&true] && 0 < counts[&false], "{counts:?}");
}

#[test]
fn an_error_at_any_call_loses_nothing_durable_and_is_reported() {
    for seed in 0..seeds() {
        let whole = run(&SimDisk::new(), seed);
        for call in 1..=whole.sim.calls() {
            for fault in [
                Fault::Error(ErrorKind::Other),
                Fault::ErrorAfter(ErrorKind::Other),
                Fault::ShortWrite(ErrorKind::StorageFull),
            ] {
                let sim = SimDisk::new();
                sim.fail_at(call, fault);
                let run = run(&sim, seed);
                let what = format!("seed {seed}, call {call}, {fault:?}");
                check_image(&sim.reopen(), &run, &what);
                check_image(&sim.crash(CrashMode::Torn(call)), &run, &what);
            }
        }
    }
}

#[test]
fn after_a_failed_sync_a_store_refuses_all_work() {
    let mut pair = Pair::new(1 << 20, 0);
    let sim = pair.sim.clone();
    let store = pair.store.as_mut().unwrap();
    store.write(0, &[1; 5000]).unwrap();
    sim.fail_at(sim.calls() + 1, Fault::Error(ErrorKind::Other));
    store.flush().unwrap_err();
    sim.clear_faults();
    let is_refused = |result: Result<()>| result.unwrap_err().to_string().contains("opened again");
    assert!(is_refused(store.flush()) && is_refused(store.write(0, &[1])) && is_refused(store.read(0, &mut [0])));
    assert!(is_refused(store.trim(0, 1)) && is_refused(store.checkpoint()) && is_refused(store.compact().map(drop)));
    assert!(is_refused(store.check().map(drop)));
}

#[test]
fn damage_to_any_file_is_found_and_never_read_as_contents() {
    let mut pair = Pair::new(200_000, 0);
    let mut random = SplitMix64::new(5);
    for act in [Act::Write, Act::Write, Act::Checkpoint, Act::Write, Act::Flush, Act::Write, Act::Write] {
        pair.act(act, &mut random).unwrap();
    }
    pair.store.take().unwrap().close().unwrap();
    let mut found = [0; 3];
    for (path, _) in pair.sim.files() {
        let len = pair.sim.bytes(&path).len();
        for round in 0..250 {
            let sim = pair.sim.fork();
            let at = random.index(len);
            sim.damage(&path, |bytes| bytes[at] ^= 1 << (round % 8));
            let result = Store::open(Arc::new(sim), OPTIONS);
            match result {
                Err(error) => {
                    assert!(matches!(error, Error::Damaged { .. } | Error::Invalid { .. }), "{error}");
                    found[0] += 1;
                }
                Ok(store) => {
                    let mut read = vec![1; pair.image.len()];
                    if let Err(error) = store.read(0, &mut read) {
                        assert!(matches!(error, Error::Damaged { .. }), "{error}");
                        assert_ne!(store.check().unwrap().problems, 0);
                        found[1] += 1;
                    } else {
                        // In free space, or behind the changes of a frame.
                        assert!(read == pair.image, "{} at {at}", path.display());
                        found[2] += 1;
                    }
                }
            }
        }
    }
    assert!(found.iter().all(|count| 20 < *count), "{found:?}");
}
