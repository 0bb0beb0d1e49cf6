use onefold_engine::random::SplitMix64;
use onefold_engine::testing::sim::{CrashMode, Fault, SimDisk};

use super::*;

const SIZE: usize = 21 * 4096 + 512;
const FILE: &str = "overlay";
const IDENTITY: [u8; 32] = [4; 32];

/// A volume whose bytes follow from their offsets. Runs write larger ones.
#[derive(Debug)]
struct Base;

fn base_bytes() -> Vec<u8> {
    (0..SIZE).map(|at| u8::try_from(at % 101 + 1).unwrap()).collect()
}

impl Export for Base {
    fn size(&self) -> u64 {
        SIZE as u64
    }

    fn flags(&self) -> u16 {
        export_flag::READ_ONLY
    }

    fn has_context(&self, _: Context) -> bool {
        true
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        let start = usize::try_from(offset).unwrap();
        into.copy_from_slice(&base_bytes()[start..start + into.len()]);
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8], _: Fua) -> Result<(), Errno> {
        Err(Errno::NotPermitted)
    }

    fn write_zeroes(&self, _: Range<u64>, _: ZeroOptions) -> Result<(), Errno> {
        Err(Errno::NotPermitted)
    }

    fn trim(&self, _: Range<u64>, _: Fua) -> Result<(), Errno> {
        Err(Errno::NotPermitted)
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn cache(&self, _: Range<u64>) -> Result<(), Errno> {
        Ok(())
    }

    fn block_status(&self, range: Range<u64>, _: Context, extents: &mut StatusExtents) -> Result<(), Errno> {
        // Parts of any length.
        extents.push((range.end - range.start).min(5_000), 0);
        Ok(())
    }
}

fn create(disk: &SimDisk) -> Result<Overlay> {
    Overlay::create(disk, Path::new(FILE), Arc::new(Base), &IDENTITY, Log::none())
}

fn open(disk: &SimDisk, identity: [u8; 32]) -> Result<Overlay> {
    Overlay::open(disk, Path::new(FILE), Arc::new(Base), &identity, Log::none())
}

fn read_all(overlay: &Overlay) -> Vec<u8> {
    let mut bytes = vec![0xaa; SIZE];
    overlay.read(0, &mut bytes).unwrap();
    bytes
}

/// Changes an overlay by a seed. `told` gets the bytes when it was flushed last, and those that were answered.
fn run(overlay: &Overlay, seed: u64, told: &mut [Vec<u8>; 2]) -> Result<(), Errno> {
    let mut random = SplitMix64::new(seed);
    let [flushed, answered] = told;
    for turn in 0..40_u8 {
        let start = random.index(SIZE);
        let len = (1 + random.index(14_000)).min(SIZE - start);
        let (start, len) = if random.index(3) == 0 && 8_192 <= SIZE - start / 4096 * 4096 {
            (start / 4096 * 4096, 8_192)
        } else {
            (start, len)
        };
        let range = start as u64..(start + len) as u64;
        match random.index(6) {
            0 => {
                let before = answered.clone();
                overlay.flush()?;
                *flushed = before;
                continue;
            }
            1 => overlay.trim(range, Fua::No)?,
            2 => overlay.write_zeroes(range, ZeroOptions { fua: Fua::No, allocate: false, fast: false })?,
            _ => {
                let byte = 0x80 + turn;
                overlay.write(start as u64, &vec![byte; len], Fua::No)?;
                answered[start..start + len].fill(byte);
                continue;
            }
        }
        answered[start..start + len].fill(0);
    }
    Ok(())
}

#[test]
fn an_overlay_reads_as_the_volume_with_what_was_written() {
    for seed in 0..20 {
        let disk = SimDisk::new();
        let overlay = create(&disk).unwrap();
        assert_eq!(read_all(&overlay), base_bytes());
        let mut told = [base_bytes(), base_bytes()];
        run(&overlay, seed, &mut told).unwrap();
        assert!(read_all(&overlay) == told[1], "seed {seed}");
        let mut extents = StatusExtents::default();
        let mut at = 0;
        while at < SIZE {
            extents.begin(u32::try_from(SIZE - at).unwrap(), 3);
            overlay.block_status(at as u64..SIZE as u64, Context::Allocation, &mut extents).unwrap();
            for extent in extents.as_slice() {
                let part = &told[1][at..at + extent.len as usize];
                assert!(extent.flags & allocation_flag::ZERO == 0 || part.iter().all(|byte| *byte == 0));
                at += extent.len as usize;
            }
        }
        overlay.flush().unwrap();
        drop(overlay);
        let again = open(&disk, IDENTITY).unwrap();
        assert!(read_all(&again) == told[1], "seed {seed}, opened again");
    }
}

#[test]
fn an_overlay_of_another_moment_or_with_impossible_states_is_refused() {
    let disk = SimDisk::new();
    create(&disk).unwrap();
    assert!(create(&disk).is_err(), "no file is replaced");
    let refused = open(&disk, [5; 32]).unwrap_err().to_string();
    assert!(refused.contains("another volume or moment"), "{refused}");
    for (at, byte) in [(PAGE, 3), (PAGE + 1, 0xc0), (0, 1)] {
        let damaged = disk.fork();
        damaged.damage(FILE, |bytes| bytes[at] ^= byte);
        assert!(open(&damaged, IDENTITY).is_err());
    }
    let short = disk.fork();
    short.open(Path::new(FILE), Access::ReadWrite).unwrap().set_len(9_000).unwrap();
    assert!(open(&short, IDENTITY).is_err());
}

#[test]
fn no_fault_at_any_call_loses_what_was_flushed() {
    let start = SimDisk::new();
    create(&start).unwrap();
    start.sync_dir(Path::new("")).unwrap();
    let start = start.crash(CrashMode::LoseUnsynced);
    let whole = start.fork();
    run(&open(&whole, IDENTITY).unwrap(), 3, &mut [base_bytes(), base_bytes()]).unwrap();
    let mut images = 0;
    for call in 1..=whole.calls() {
        for fault in [Fault::Error(std::io::ErrorKind::Other), Fault::Die, Fault::DieAfter] {
            let disk = start.fork();
            disk.fail_at(call, fault);
            let mut told = [base_bytes(), base_bytes()];
            if let Ok(overlay) = open(&disk, IDENTITY) {
                let _ = run(&overlay, 3, &mut told);
            }
            for mode in [CrashMode::LoseUnsynced, CrashMode::KeepAll, CrashMode::Torn(call)] {
                let found = read_all(&open(&disk.crash(mode), IDENTITY).unwrap());
                for (at, (is, flushed)) in found.iter().zip(&told[0]).enumerate() {
                    // Later turns write larger bytes, and zeros.
                    let is_later = 0x80 <= *is && (*flushed < *is || *flushed < 0x80) || *is == 0;
                    assert!(
                        is == flushed || is_later,
                        "{fault:?} at {call}, {mode:?}: byte {at} is {is}, was {flushed}"
                    );
                }
                images += 1;
            }
        }
    }
    assert!(100 < images);
}

#[test]
fn after_a_failed_sync_nothing_is_written_any_more() {
    let disk = SimDisk::new();
    let overlay = create(&disk).unwrap();
    overlay.write(0, &[0x80; 10], Fua::No).unwrap();
    disk.fail_at(disk.calls() + 1, Fault::Error(std::io::ErrorKind::Other));
    assert_eq!(overlay.flush(), Err(Errno::Io));
    assert_eq!((overlay.flush(), overlay.write(0, &[1], Fua::No)), (Err(Errno::Io), Err(Errno::Io)));
    assert_eq!(read_all(&overlay)[..10], [0x80; 10]);
}
