//! Devices in tables and claims: each stage of a paper that ran on a GPU has a row, also where there is no device.

use std::sync::Arc;

use anyhow::{Context, Result};
use onefold_accel::device::{About, Device, FaultKind, cuda};

use crate::coprocessor::fingerprint::Hash;
use crate::experiment::verdict::Samples;
use crate::findings::Cell;
use crate::processor::driver_version;
use crate::rates::noise::Noise;
use crate::rates::transfers::{Transfers, Work};
use crate::together::Taken;

/// Name of a device's rows.
pub(super) const TITLE: &str = "device";

/// In place of a number where there is no device.
const NO_DEVICE: &str = "no device";
/// Bytes of a batch: twice those of a backup's.
const BATCH_BYTES: usize = 32 << 20;
/// Bytes in memory that a device reads: eight batches, twice those in flight.
const LOADED_BYTES: usize = 8 * BATCH_BYTES;
/// Times that they are read in a round: 1 GiB, some hundredths of a second.
const PASSES: usize = 4;
/// Average of chunks where the rule does not matter, because they are known before.
const AVERAGE_BYTES: u32 = 8 << 10;

/// Word in place of a number, and the reason in a sentence.
pub(super) type Missing = (&'static str, String);

/// A device that experiments measure, or the reason why there is none.
#[derive(Debug)]
pub struct Accelerator {
    found: Result<Arc<dyn Device>, Missing>,
    /// Bytes that it reads.
    bytes: usize,
}

/// Rates of a device, of each round; empty without one.
#[derive(Clone, Default, Debug)]
pub(super) struct Rates {
    /// MB/s by the clock, with transfers.
    pub(super) rates: Samples,
    /// Seconds for a GB of the thread that serves the device.
    pub(super) costs: Samples,
}

impl Accelerator {
    /// Opens the first device, after its self-test.
    pub fn find() -> Self {
        let found = cuda::open(0).map_err(|fault| match fault.kind {
            FaultKind::Absent => (NO_DEVICE, format!("No device: {fault}. It was not judged.")),
            _ => (NO_DEVICE, format!("No device can be used: {fault}. It was not judged.")),
        });
        Self { found, bytes: LOADED_BYTES }
    }

    /// Takes a device that is open, and reads so many bytes in each measurement.
    pub fn of(device: Arc<dyn Device>, bytes: usize) -> Self {
        Self { found: Ok(device), bytes }
    }

    /// Returns why nothing can be measured; none if there is a device.
    pub(super) fn missing(&self) -> Option<Missing> {
        self.found.as_ref().err().cloned()
    }

    /// Returns a sentence for readers: the device and its driver, or why there is none.
    pub(super) fn note(&self) -> String {
        match &self.found {
            Ok(device) => format!(
                "Device: {}. It reads {} MiB of noise from page-locked memory, {PASSES} times in each round, in batches of {} MiB. Rates are by the clock, with transfers, and \
                 the processor computes a sample of the results again. A round that does not count goes before.",
                words(device.about(), driver_version().as_deref()),
                self.bytes >> 20,
                BATCH_BYTES >> 20
            ),
            Err((_, sentence)) => sentence.clone(),
        }
    }

    /// Returns the cells of a row: the word, then nothing.
    pub(super) fn empty_cells(&self, count: usize) -> impl Iterator<Item = Cell> {
        let word = self.missing().map_or("", |(word, _)| word).to_owned();
        std::iter::once(Cell::Text(word)).chain(std::iter::repeat(Cell::Empty(()))).take(count)
    }

    /// Measures the names of chunks of `chunk` bytes. A device that fails or answers wrongly is an error.
    pub(super) fn names(&self, hash: Hash, chunk: u32, rounds: u32) -> Result<Rates> {
        self.measure(Work::Names(hash), || Ok(Noise::new(self.bytes, AVERAGE_BYTES)?.with_chunks_of(chunk)), rounds)
    }

    /// Measures the search for chunks of this average, by Gear.
    pub(super) fn boundaries(&self, average: u32, rounds: u32) -> Result<Rates> {
        self.measure(Work::Candidates, || Noise::new(self.bytes, average), rounds)
    }

    fn measure(&self, work: Work, noise: impl Fn() -> Result<Noise>, rounds: u32) -> Result<Rates> {
        let Ok(device) = &self.found else { return Ok(Rates::default()) };
        let transfers = Transfers::load(device, noise()?)?;
        let taken = transfers.measure(work, BATCH_BYTES, 0, (PASSES, rounds as usize));
        let taken = taken.with_context(|| format!("the device {}", device.about().name))?;
        let rates = Samples(taken.iter().map(Taken::rate).collect());
        Ok(Rates { rates, costs: Samples(taken.iter().map(Taken::processor_per_gigabyte).collect()) })
    }
}

/// Describes a device, with the version of its driver if the system tells it.
fn words(about: &About, driver: Option<&str>) -> String {
    let About { name, architecture, multiprocessors, driver: cuda, .. } = about;
    let driver = driver.map(|version| format!("driver {version}, ")).unwrap_or_default();
    let (capability, cuda) = ((architecture / 10, architecture % 10), (cuda / 1000, cuda % 1000 / 10));
    format!(
        "{name}, compute capability {}.{}, {multiprocessors} multiprocessors, {driver}CUDA {}.{}",
        capability.0, capability.1, cuda.0, cuda.1
    )
}

#[cfg(test)]
pub(super) mod tests {
    use onefold_accel::device::host_device::{Field, HostDevice, Mood, Script};

    use super::*;

    /// A device whose work the host does, on few bytes.
    pub(in crate::experiment) fn host() -> Accelerator {
        Accelerator::of(Arc::new(HostDevice::new(Script { late: 1, ..Script::default() })), 1 << 20)
    }

    /// No device, whatever this machine has.
    pub(in crate::experiment) fn none() -> Accelerator {
        Accelerator { found: Err((NO_DEVICE, "No device: none. It was not judged.".to_owned())), bytes: LOADED_BYTES }
    }

    #[test]
    fn a_row_without_a_device_says_so_once_and_nothing_is_measured() {
        let found = Accelerator::find();
        assert_eq!(found.missing().is_some(), cuda::open(0).is_err());
        let accelerator = none();
        let (word, sentence) = accelerator.missing().unwrap();
        let cells: Vec<_> = accelerator.empty_cells(3).collect();
        assert_eq!(cells, [Cell::Text(word.to_owned()), Cell::Empty(()), Cell::Empty(())]);
        assert!(sentence.ends_with("It was not judged.") && accelerator.note() == sentence, "{sentence}");
        let Rates { rates, costs } = accelerator.names(Hash::Sha1, 4096, 2).unwrap();
        assert!(rates.is_empty() && costs.is_empty());
    }

    #[test]
    fn a_device_has_a_rate_of_each_round_and_its_name_in_the_report() {
        let accelerator = host();
        assert!(accelerator.missing().is_none());
        let mut all: Vec<_> =
            [Hash::Sha1, Hash::Sha256, Hash::Blake3].map(|hash| accelerator.names(hash, 4096, 3).unwrap()).into();
        all.push(accelerator.boundaries(4096, 3).unwrap());
        for Rates { rates, costs } in all {
            assert!((rates.0.len(), costs.0.len()) == (3, 3) && rates.0.iter().all(|rate| 0.0 < *rate), "{rates:?}");
        }
        assert!(accelerator.note().starts_with("Device: the host, compute capability 0.0, 1 multiprocessors"));
        let name = "NVIDIA H200".to_owned();
        let about = About { name, architecture: 90, multiprocessors: 132, memory_bytes: 0, driver: 13_000 };
        let expected = "NVIDIA H200, compute capability 9.0, 132 multiprocessors, driver 580.159.04, CUDA 13.0";
        assert_eq!(words(&about, Some("580.159.04")), expected);
    }

    #[test]
    fn a_device_that_lies_is_an_error_and_no_rate() {
        let liar = HostDevice::new(Script { at: 5, mood: Some(Mood::Lie(Field::NamesNumber)), late: 0 });
        let error = Accelerator::of(Arc::new(liar), 1 << 20).names(Hash::Blake3, 4096, 3).unwrap_err();
        assert!(format!("{error:#}").starts_with("the device the host: "), "{error:#}");
    }
}
