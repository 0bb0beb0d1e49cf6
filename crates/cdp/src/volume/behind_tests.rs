use onefold_engine::random::SplitMix64;
use onefold_engine::testing::sim::{CrashMode, Fault, SimDisk};

use super::*;

const FILE: &str = "behind";
/// Two pages: 3 GiB and a bit in two volumes.
const SIZES: [u64; 2] = [(1 << 30) + 4096, 2 << 30];

fn world(is_marked: bool) -> SimDisk {
    let disk = SimDisk::new();
    BehindMap::create(&disk, Path::new(FILE), &SIZES, is_marked).unwrap();
    disk.sync_dir(Path::new("")).unwrap();
    disk.crash(CrashMode::LoseUnsynced)
}

fn open(disk: &SimDisk) -> Result<BehindMap> {
    BehindMap::open(disk, Path::new(FILE), &SIZES)
}

/// Marked extents, by volume and number.
type Model = BTreeSet<(u16, u64)>;

fn marked(map: &BehindMap) -> Model {
    let (mut cursor, mut found) = (0, Model::new());
    while let Some(VolumeRange { volume, bytes }) = map.next(&mut cursor, 1 << 20) {
        assert!(!bytes.is_empty() && bytes.end <= SIZES[usize::from(volume)] && bytes.end - bytes.start <= 1 << 20);
        found.extend((bytes.start / BEHIND_BYTES..bytes.end.div_ceil(BEHIND_BYTES)).map(|number| (volume, number)));
    }
    assert_eq!(cursor, 0);
    found
}

/// Marks and clears by a seed. `durable` gets what must be marked after any crash; `all` what may be.
fn run(disk: &SimDisk, durable: &mut Model, all: &mut Model) -> Result<()> {
    let map = open(disk)?;
    let mut random = SplitMix64::new(9);
    let mut last = (0, 0..1);
    for turn in 0..30 {
        let volume = u16::try_from(random.index(2)).unwrap();
        let size = SIZES[usize::from(volume)];
        let start = if turn % 3 == 0 { size - 100 } else { random.index(usize::try_from(size).unwrap()) as u64 };
        let range = start..(start + 1 + random.index(300_000) as u64).min(size);
        // What is cleared was marked right before.
        let (volume, range) = if turn % 4 == 3 { std::mem::take(&mut last) } else { (volume, range) };
        let size = SIZES[usize::from(volume)];
        last = (volume, range.clone());
        let extents = range.start / BEHIND_BYTES..range.end.div_ceil(BEHIND_BYTES);
        if turn % 4 == 3 {
            let whole = range.start.div_ceil(BEHIND_BYTES)..if range.end == size {
                extents.end
            } else {
                range.end / BEHIND_BYTES
            };
            durable.retain(|(of, number)| *of != volume || !whole.contains(number));
            map.clear(volume, range);
        } else {
            all.extend(extents.clone().map(|number| (volume, number)));
            map.mark(volume, range)?;
            durable.extend(extents.map(|number| (volume, number)));
        }
        assert_eq!(marked(&map), *durable);
        if turn % 10 == 9 {
            map.persist()?;
        }
    }
    map.set_announced(true)
}

#[test]
fn no_fault_at_any_call_loses_a_mark() {
    let start = world(false);
    let whole = start.fork();
    let (mut durable, mut all) = (Model::new(), Model::new());
    run(&whole, &mut durable, &mut all).unwrap();
    assert!(open(&whole.reopen()).unwrap().is_announced());
    assert!(durable.len() < all.len());
    let calls = whole.calls();
    for call in 1..=calls {
        for fault in
            [Fault::Error(std::io::ErrorKind::Other), Fault::ShortWrite(std::io::ErrorKind::Other), Fault::DieAfter]
        {
            let disk = start.fork();
            disk.fail_at(call, fault);
            let (mut durable, mut all) = (Model::new(), Model::new());
            let _ = run(&disk, &mut durable, &mut all);
            for mode in [CrashMode::LoseUnsynced, CrashMode::KeepAll, CrashMode::Torn(call)] {
                // The second opening follows a process that has done nothing, and another power cut.
                let image = disk.crash(mode);
                drop(open(&image).unwrap());
                for image in [&image, &image.crash(CrashMode::LoseUnsynced)] {
                    let found = marked(&open(image).unwrap());
                    assert!(durable.is_subset(&found), "{fault:?} at {call}, {mode:?}");
                    assert!(found.is_subset(&all), "{fault:?} at {call}, {mode:?}");
                }
            }
        }
    }
    assert!(30 < calls, "{calls}");
}

#[test]
fn a_page_without_a_whole_slot_counts_as_marked() {
    let disk = world(false);
    assert!(open(&disk).unwrap().is_empty());
    for slot in 0..2 {
        disk.damage(FILE, |bytes| bytes[slot * SLOT_BYTES + 100] ^= 1);
    }
    let map = open(&disk).unwrap();
    assert_eq!(map.bytes(), PAGE_BITS * BEHIND_BYTES - (BEHIND_BYTES - 4096));
    assert!(map.holds(0, &(0..SIZES[0])) && !map.holds(1, &(0..SIZES[1])));
    disk.damage(FILE, |bytes| bytes.truncate(4096));
    assert!(open(&disk).unwrap_err().to_string().contains("does not fit the volumes"));
}

#[test]
fn all_extents_of_a_group_can_be_marked_at_its_creation() {
    let map = open(&world(true)).unwrap();
    assert_eq!(map.bytes(), SIZES.iter().sum::<u64>());
    assert!(!map.is_announced());
    assert!(matches!(&map.ranges(0, 4)[..], [all] if *all == (0..SIZES[0])));
    map.clear(0, 0..SIZES[0]);
    map.clear(1, 0..SIZES[1]);
    assert!(map.is_empty() && marked(&map).is_empty() && map.bytes() == 0);
}

#[test]
fn ranges_are_coalesced_over_their_smallest_holes() {
    let map = open(&world(false)).unwrap();
    for number in [0, 2, 10, 11, 12, 30] {
        map.mark(1, number * BEHIND_BYTES..number * BEHIND_BYTES + 1).unwrap();
    }
    let ranges = |most| {
        let extents = |range: &Range<u64>| range.start / BEHIND_BYTES..range.end / BEHIND_BYTES;
        map.ranges(1, most).iter().map(extents).collect::<Vec<_>>()
    };
    assert_eq!(ranges(9), [0..1, 2..3, 10..13, 30..31]);
    assert_eq!(ranges(3), [0..3, 10..13, 30..31]);
    assert_eq!(ranges(2), [0..13, 30..31]);
    assert!(matches!(&ranges(1)[..], [all] if *all == (0..31)));
    assert!(map.ranges(0, 3).is_empty());
}

#[test]
fn threads_that_mark_the_same_extents_find_them_durable() {
    let disk = world(false);
    let map = open(&disk).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (map, disk) = (&map, &disk);
            scope.spawn(move || {
                for turn in 0..40 {
                    let number = (turn * 5 + thread) % 60;
                    map.mark(1, number * BEHIND_BYTES..(number + 1) * BEHIND_BYTES).unwrap();
                    if turn % 10 == 0 {
                        let image = disk.crash(CrashMode::LoseUnsynced);
                        assert!(marked(&open(&image).unwrap()).contains(&(1, number)));
                    }
                }
            });
        }
    });
    assert!(disk.calls() < 4 * 40 * 2, "marks are written together, and once");
}

#[test]
fn no_bytes_make_the_decoder_panic() {
    let mut random = SplitMix64::new(3);
    let good = encode(7, 1, 99, &[5; PAGE_WORDS]);
    assert_eq!(decode(&mut good.clone(), 1, 99), Some((7, vec![5; PAGE_WORDS])));
    assert!(decode(&mut good.clone(), 0, 99).is_none() && decode(&mut good.clone(), 1, 98).is_none());
    for len in [0, 7, 19, 24, 31, 32, 4095] {
        assert_eq!(decode(&mut good[..len].to_vec(), 1, 99), None);
    }
    for _ in 0..2_000 {
        let mut wrong = good.clone();
        wrong[random.index(SLOT_BYTES)] ^= 1 << random.index(8);
        assert_eq!(decode(&mut wrong, 1, 99), None);
    }
}
