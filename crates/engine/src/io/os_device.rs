//! A short measurement of the device under a file, with direct reads.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::io::{AlignedBuffer, BatchRead, DIRECT_ALIGN, DeviceProfile, DiskFile};
use crate::random::SplitMix64;

/// Minimum length of a measured file. In a smaller one, random reads would repeat pages that the device may cache.
const FILE_BYTES_MIN: u64 = 8 << 20;

/// Time for each of the three parts. The clock is read between reads, and the second part limits its batches to this
/// time. A disk whose reads take 8 ms is measured in less than 60 ms; only a device that stalls takes longer.
const PART: Duration = Duration::from_millis(12);
/// Minimum and maximum number of single reads: enough for a median, and as many as a fast device can do in the time.
const SINGLE_READS: RangeInclusive<usize> = 3..=1024;
/// Minimum and maximum number of batches in the second part.
const BATCHES: RangeInclusive<usize> = 1..=256;
/// Bytes of one sequential read: a hard disk transfers as many in the time of one seek.
const SEQUENTIAL_BYTES: usize = 1 << 20;
/// Maximum number of sequential reads: 32 MiB.
const SEQUENTIAL_READS_MAX: usize = 32;

/// Number of random pages that are read in turn.
const POSITIONS_MAX: usize = 4096;
/// Minimum number of pages for a measurement.
const POSITIONS_MIN: usize = 256;

/// The file, batches and clock that a measurement uses.
pub(super) struct Measured<'a> {
    /// Opened with [`Access::Direct`](crate::io::Access::Direct).
    pub(super) file: Arc<dyn DiskFile>,
    /// Returns the offset of the first written byte from an offset on, if there is one. Reads of other bytes do not
    /// reach the device.
    pub(super) written_from: &'a dyn Fn(u64) -> Option<u64>,
    /// Carries out batches.
    pub(super) read_batch: &'a dyn Fn(&mut [BatchRead]),
    /// Returns the time of a clock that never moves back.
    pub(super) clock: &'a dyn Fn() -> Duration,
}

/// Measures the device. Returns `None` if the file has too few written bytes, or reads cannot bypass the page cache.
pub(super) fn measure(measured: &Measured<'_>) -> Result<Option<DeviceProfile>> {
    let len = measured.file.len()?;
    if len < FILE_BYTES_MIN || !measured.file.is_direct() {
        return Ok(None);
    }
    let positions = positions(measured, len / DIRECT_ALIGN as u64);
    if positions.len() < POSITIONS_MIN {
        return Ok(None);
    }
    let mut positions = positions.iter().copied().cycle();
    let mut draw = || positions.next().expect("a cyclic iterator never ends");
    let single = single(measured, &mut draw)?;
    let deep = deep(measured, &mut draw, single)?;
    let sequential = sequential(measured, draw(), len)?;
    Ok(Some(DeviceProfile {
        random_reads_per_s_single: single,
        random_reads_per_s_deep: deep,
        sequential_bytes_per_s: sequential,
    }))
}

/// Draws distinct written pages in random order.
fn positions(measured: &Measured<'_>, pages: u64) -> Vec<u64> {
    // Different pages each time: the device may still cache those of the last measurement.
    let mut random = SplitMix64::new(u64::try_from((measured.clock)().as_nanos()).unwrap_or(1));
    let mut seen = BTreeSet::new();
    let mut positions = Vec::with_capacity(POSITIONS_MAX);
    for _ in 0..POSITIONS_MAX {
        let Some(written) = (measured.written_from)(random.below(pages) * DIRECT_ALIGN as u64) else { continue };
        let page = written / DIRECT_ALIGN as u64;
        if page < pages && seen.insert(page) {
            positions.push(page * DIRECT_ALIGN as u64);
        }
    }
    positions
}

/// Repeats an action until a part's time is over and returns its rate per second, at least 1. The rate is that of the
/// median, so one delay by other programs does not change it.
fn rate(
    clock: &dyn Fn() -> Duration,
    times: RangeInclusive<usize>,
    mut once: impl FnMut() -> Result<()>,
) -> Result<u64> {
    let start = clock();
    let mut before = start;
    let mut durations = Vec::new();
    while durations.len() < *times.start() || (durations.len() < *times.end() && before.saturating_sub(start) < PART) {
        once()?;
        let now = clock();
        durations.push(now.saturating_sub(before));
        before = now;
    }
    durations.sort_unstable();
    let median = durations.get(durations.len() / 2).copied().unwrap_or_default();
    Ok(u64::try_from(1_000_000_000 / median.as_nanos().max(1)).unwrap_or(u64::MAX).max(1))
}

fn single(measured: &Measured<'_>, draw: &mut dyn FnMut() -> u64) -> Result<u64> {
    let mut buffer = AlignedBuffer::new_zeroed(DIRECT_ALIGN);
    rate(measured.clock, SINGLE_READS, || measured.file.read_at(draw(), &mut buffer))
}

/// Measures with [`DeviceProfile::DEPTH`] reads in flight, or with as many as a part has time for if the device serves
/// them one at a time. A device whose speed still grows with that number is assumed to scale further.
fn deep(measured: &Measured<'_>, draw: &mut dyn FnMut() -> u64, single: u64) -> Result<u64> {
    let in_time = u128::from(single) * PART.as_nanos() / 1_000_000_000;
    let depth = u64::try_from(in_time).unwrap_or(u64::MAX).clamp(2, DeviceProfile::DEPTH);
    let mut reads: Vec<BatchRead> = (0..depth)
        .map(|_| {
            let buffer = AlignedBuffer::new_zeroed(DIRECT_ALIGN);
            BatchRead { file: Arc::clone(&measured.file), offset: 0, buffer, outcome: Ok(()) }
        })
        .collect();
    let batches = rate(measured.clock, BATCHES, || {
        for read in &mut reads {
            read.offset = draw();
        }
        (measured.read_batch)(&mut reads);
        reads.iter_mut().try_for_each(|read| std::mem::replace(&mut read.outcome, Ok(())))
    })?;
    let reads_per_s = batches.saturating_mul(depth);
    // At least four fifths of linear scaling.
    let still_rising = single.saturating_mul(depth) / 5 * 4 <= reads_per_s;
    Ok(if still_rising { reads_per_s.saturating_mul(DeviceProfile::DEPTH) / depth } else { reads_per_s })
}

fn sequential(measured: &Measured<'_>, at: u64, len: u64) -> Result<u64> {
    let mut buffer = AlignedBuffer::new_zeroed(SEQUENTIAL_BYTES);
    let bytes = SEQUENTIAL_BYTES as u64;
    let reads_max = SEQUENTIAL_READS_MAX.min(usize::try_from(len / bytes).unwrap_or(usize::MAX));
    // The offset leaves space for all reads before the end of the file.
    let mut offset = at.min(len - reads_max as u64 * bytes) / DIRECT_ALIGN as u64 * DIRECT_ALIGN as u64;
    let reads = rate(measured.clock, 1..=reads_max, || {
        measured.file.read_at(offset, &mut buffer)?;
        offset += bytes;
        Ok(())
    })?;
    Ok(reads.saturating_mul(bytes))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::error::Error;
    use crate::io::os::OsDisk;
    use crate::io::{Access, Disk};

    /// A device on which each read takes a time of its own, and a batch that of its slowest `lanes`-th part.
    #[derive(Debug)]
    struct Device {
        len: u64,
        now: AtomicU64,
        read_ns: u64,
        bytes_per_s: u64,
        lanes: u64,
        /// Extra delay of the first read.
        stall_ns: AtomicU64,
    }

    impl DiskFile for Device {
        fn len(&self) -> Result<u64> {
            Ok(self.len)
        }
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
            assert!(offset + buffer.len() as u64 <= self.len);
            let through = if buffer.len() == DIRECT_ALIGN {
                self.read_ns
            } else {
                buffer.len() as u64 * 1_000_000_000 / self.bytes_per_s
            };
            let stall = self.stall_ns.swap(0, Ordering::SeqCst);
            self.now.fetch_add(through + stall, Ordering::SeqCst);
            Ok(())
        }
        fn write_at(&self, _: u64, _: &[u8]) -> Result<()> {
            Err(Error::invalid("a measurement writes nothing"))
        }
        fn set_len(&self, _: u64) -> Result<()> {
            Err(Error::invalid("a measurement writes nothing"))
        }
        fn sync(&self) -> Result<()> {
            Ok(())
        }
        fn try_lock(&self) -> Result<bool> {
            Ok(true)
        }
        fn is_direct(&self) -> bool {
            true
        }
    }

    fn profile(device: Device, written: u64) -> (Option<DeviceProfile>, Duration) {
        let device = Arc::new(device);
        let measured = measure(&Measured {
            file: Arc::clone(&device) as Arc<dyn DiskFile>,
            written_from: &|offset| (offset < written).then_some(offset),
            read_batch: &|reads| {
                let rounds = (reads.len() as u64).div_ceil(device.lanes);
                device.now.fetch_add(rounds * device.read_ns, Ordering::SeqCst);
            },
            clock: &|| Duration::from_nanos(device.now.load(Ordering::SeqCst)),
        });
        (measured.unwrap(), Duration::from_nanos(device.now.load(Ordering::SeqCst)))
    }

    fn device(read_us: u64, lanes: u64, bytes_per_s: u64) -> Device {
        Device {
            len: 1 << 30,
            now: AtomicU64::new(0),
            read_ns: read_us * 1000,
            bytes_per_s,
            lanes,
            stall_ns: AtomicU64::new(0),
        }
    }

    #[test]
    fn every_device_is_measured_in_time_and_as_it_is() {
        let cases = [
            // A hard disk, a network disk that takes many reads, an SSD, and a fast SSD.
            (8000, 1, 150_000_000, 125),
            (1000, 64, 200_000_000, 32_000),
            (52, 5, 1_500_000_000, 87_900),
            (10, 32, 7_000_000_000, 3_200_000),
        ];
        for (read_us, lanes, bytes_per_s, deep) in cases {
            let (profile, elapsed) = profile(device(read_us, lanes, bytes_per_s), 1 << 30);
            let profile = profile.unwrap();
            let near = |found: u64, wanted: u64| wanted / 10 * 9 <= found && found <= wanted / 9 * 10;
            assert!(near(profile.random_reads_per_s_single, 1_000_000 / read_us), "{profile:?}");
            assert!(near(profile.random_reads_per_s_deep, deep), "{profile:?}");
            assert!(near(profile.sequential_bytes_per_s, bytes_per_s), "{profile:?}");
            assert!(elapsed <= Duration::from_millis(60), "{elapsed:?}");
        }
    }

    #[test]
    fn a_device_that_others_keep_busy_for_a_moment_is_not_taken_for_a_slow_one() {
        let stalled = Device { stall_ns: AtomicU64::new(66_000_000), ..device(50, 5, 1_000_000_000) };
        assert_eq!(profile(stalled, 1 << 30).0.unwrap().random_reads_per_s_single, 20_000);
    }

    #[test]
    fn small_files_and_holes_are_not_measured() {
        assert!(profile(device(100, 1, 1 << 30), 4 << 20).0.is_none());
        assert!(profile(Device { len: (8 << 20) - 1, ..device(100, 1, 1 << 30) }, 8 << 20).0.is_none());
        assert!(profile(Device { len: 8 << 20, ..device(100, 1, 1 << 30) }, 8 << 20).0.is_some());
    }

    #[test]
    fn a_file_of_the_host_is_measured_once_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let disk = OsDisk::new(directory.path().to_path_buf());
        let path = Path::new("a");
        let file = disk.create(path).unwrap();
        file.set_len(16 << 20).unwrap();
        assert_eq!(disk.measure(path).unwrap(), None, "holes are read without the device");
        file.write_at(0, &vec![7; 16 << 20]).unwrap();
        file.sync().unwrap();
        let is_direct = disk.open(path, Access::Direct).unwrap().is_direct();
        match disk.measure(path).unwrap() {
            Some(profile) => assert!(0 < profile.random_reads_per_s_single && is_direct, "{profile:?}"),
            None => assert!(!is_direct),
        }
    }
}
