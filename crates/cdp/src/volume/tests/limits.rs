//! The smallest journal and the longest requests.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::nbd::export::{Context, StatusExtents};
use crate::nbd::wire::export_flag;

const SMALLEST: JournalSize = JournalSize { segment_bytes: 64 << 10, segments_max: JournalSize::SEGMENTS_MIN };

fn options(when_behind: WhenBehind) -> GroupOptions {
    GroupOptions { size: SMALLEST, durability: Durability::Both, when_behind }
}

/// Ends a use, in order or not.
fn end(group: Arc<Group>, closes: bool) {
    if closes {
        group.close().unwrap();
    }
    drop(group);
}

#[test]
fn an_opening_takes_no_space_and_frees_what_a_checkpoint_has() {
    for closes in [true, false] {
        let disk = world();
        let mut segments = 0;
        for turn in 0..12_u8 {
            let (group, _) = open_with(&disk, 1, options(WhenBehind::Fail)).unwrap();
            if turn % 4 == 1 {
                ProtectedVolume::new(Arc::clone(&group), 0).write(USED.start, &[turn; 4096], Fua::Yes).unwrap();
                segments = group.journal().status().segments;
            }
            assert_eq!(group.journal().status().segments, segments, "turn {turn}: an opening takes nothing");
            end(group, closes);
        }
        assert_eq!(segments, 3);
        // A checkpoint has all of them, and its process ends before it uses a file again.
        for turn in 0..12_u8 {
            let (group, _) = open_with(&disk, 1, options(WhenBehind::Fail)).unwrap();
            group.sync().unwrap();
            group.release(group.journal().next());
            assert_eq!(group.journal().status().segments, 1);
            ProtectedVolume::new(Arc::clone(&group), 0).write(USED.start, &[turn; 4096], Fua::Yes).unwrap();
            end(group, closes);
        }
    }
}

#[test]
fn writes_reach_the_volume_whatever_the_fill_of_the_smallest_journal_and_however_often_it_is_opened() {
    let mut most = 0;
    for (closes, level) in [true, false].into_iter().flat_map(|closes| (0..40_u64).map(move |level| (closes, level))) {
        let disk = world();
        let mut state = empty();
        let write = |group: &Arc<Group>, state: &mut Bytes, byte: u8| {
            let volume = ProtectedVolume::new(Arc::clone(group), 0);
            volume
                .write(USED.start, &[byte; 4096], Fua::Yes)
                .unwrap_or_else(|errno| panic!("level {level}: {errno:?}"));
            state[0][..4096].fill(byte);
        };
        let (group, _) = open_with(&disk, 1, options(WhenBehind::Bitmap)).unwrap();
        (0..level).for_each(|turn| write(&group, &mut state, u8::try_from(turn).unwrap()));
        most = most.max(group.journal().status().used);
        end(group, closes);
        for turn in 0..6 {
            let (group, _) = open_with(&disk, 1, options(WhenBehind::Bitmap)).unwrap();
            write(&group, &mut state, 100 + turn);
            let status = group.status();
            // The history says so if it lacks anything.
            assert!(status.behind_bytes == 0 || group.behind().is_announced(), "level {level}, turn {turn}");
            assert!(status.journal.segments <= SMALLEST.segments_max);
            end(group, closes);
        }
        assert_eq!(contents(&disk), state);
        let (group, _) = open_with(&disk, 1, options(WhenBehind::Bitmap)).unwrap();
        group.sync().unwrap();
        group.release(group.journal().next());
        behind::resync(&group);
        write(&group, &mut state, 200);
        assert!(group.status().is_recording && group.behind().is_empty(), "level {level}");
        group.close().unwrap();
    }
    assert!(SMALLEST.bytes() / 2 < most);
}

/// A volume of any size that keeps nothing.
#[derive(Debug, Default)]
struct Void {
    refuses_zeros: AtomicBool,
}

impl Export for Void {
    fn size(&self) -> u64 {
        1 << 40
    }

    fn flags(&self) -> u16 {
        export_flag::SEND_TRIM
    }

    fn has_context(&self, _: Context) -> bool {
        true
    }

    fn read(&self, _: u64, into: &mut [u8]) -> Result<(), Errno> {
        into.fill(0);
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8], _: Fua) -> Result<(), Errno> {
        Ok(())
    }

    fn write_zeroes(&self, _: Range<u64>, _: ZeroOptions) -> Result<(), Errno> {
        if self.refuses_zeros.load(Ordering::Relaxed) { Err(Errno::Io) } else { Ok(()) }
    }

    fn trim(&self, _: Range<u64>, _: Fua) -> Result<(), Errno> {
        Ok(())
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn cache(&self, _: Range<u64>) -> Result<(), Errno> {
        Ok(())
    }

    fn block_status(&self, range: Range<u64>, _: Context, extents: &mut StatusExtents) -> Result<(), Errno> {
        extents.push(range.end - range.start, 3);
        Ok(())
    }
}

#[test]
fn the_longest_requests_are_answered_by_the_smallest_journal_and_many_at_a_time() {
    const LONGEST: u64 = u32::MAX as u64;
    for when_behind in [WhenBehind::Fail, WhenBehind::Bitmap] {
        let disk = SimDisk::new();
        let _ = disk.subdir(DIR);
        let void = Arc::new(Void::default());
        Group::create(&disk, Path::new(DIR), &[void.size()]).unwrap();
        let options = GroupOptions { size: JournalSize { segment_bytes: 4 << 20, ..SMALLEST }, ..options(when_behind) };
        let origins: Vec<Arc<dyn Export>> = vec![Arc::clone(&void) as _];
        let (group, _) = open_on(&disk, Arc::new(SimHost::new(1)), options, origins).unwrap();
        let volume = ProtectedVolume::new(Arc::clone(&group), 0);
        let all = |start: u64| -> Result<(), Errno> {
            let range = start..start + LONGEST;
            volume.trim(range.clone(), Fua::Yes)?;
            volume.write_zeroes(range.clone(), ZEROS_NO)?;
            volume.cache(range.clone())?;
            let mut extents = StatusExtents::default();
            extents.begin(u32::MAX, 1);
            volume.block_status(range, Context::Allocation, &mut extents)?;
            volume.write(start, &vec![1; 100_000], Fua::No)
        };
        std::thread::scope(|scope| {
            for thread in 0..6 {
                scope.spawn(move || all((thread << 36) + 4_095).unwrap());
            }
        });
        // A request that the volume refuses is not read back into the journal.
        void.refuses_zeros.store(true, Ordering::Relaxed);
        let used = group.journal().status().used;
        assert_eq!(volume.trim(1..LONGEST, Fua::No), Err(Errno::Io));
        assert!(group.journal().status().used < used + (1 << 20) && group.behind().bytes() != 0);
        group.sync().unwrap();
        group.release(group.journal().next());
        assert!(group.status().failure.is_none() && group.status().active_extents == 0);
        group.close().unwrap();
    }
}
