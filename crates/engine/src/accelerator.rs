//! A device that searches and names chunks while the processor's queues do so, too, for one operation after another.
//!
//! Whatever it does, results are those of the processor. At its first fault it ends for the process; what it had is done again by the processor,
//! and one note says so.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onefold_accel::device::{
    Batch, Batches, Check, Device, Fault, Frozen, Limits, Namer, Pool, Range, Rule, Span, Wait,
};

pub use onefold_accel::device::{About, Check as AcceleratorCheck, FaultKind};

use crate::error::{Error, Result};
use crate::fingerprint::Fingerprinter;
use crate::io::Host;
use crate::monitor::Monitor;
use crate::types::Fingerprint;

/// A device, with the record of its work. Clones share it.
#[derive(Clone, Debug)]
pub struct Accelerator(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    device: Arc<dyn Device>,
    check: Check,
    key: [u8; 32],
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    batches: u64,
    bytes: u64,
    fault: Option<Fault>,
    /// Whether the fault was reported.
    is_reported: bool,
}

/// Devices that a command can be asked to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AcceleratorChoice {
    /// None.
    #[default]
    Cpu,
    /// The first one, if there is one that passes its self-test and the memory budget has a share for it.
    Auto,
    /// The NVIDIA GPU of this number.
    Cuda(u32),
}

impl FromStr for AcceleratorChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::invalid(format!("`{text}` is no accelerator: possible are auto, cpu, cuda and cuda:N"));
        match text.split_once(':') {
            None => match text {
                "auto" => Ok(Self::Auto),
                "cpu" => Ok(Self::Cpu),
                "cuda" => Ok(Self::Cuda(0)),
                _ => Err(wrong()),
            },
            Some(("cuda", number)) => number.parse().map(Self::Cuda).map_err(|_| wrong()),
            Some(_) => Err(wrong()),
        }
    }
}

/// The least memory budget with which a device is used: it has a share of 170 to 260 MiB, and its driver takes some hundred MiB besides.
pub const DEVICE_BYTES_MIN: usize = 1 << 30;

/// The least memory budget with which `auto` uses a device: half of it stays with the index.
pub const AUTO_BYTES_MIN: usize = 2 << 30;

/// Returns the devices of this host in the order of their numbers. A fault says what is missing.
pub fn devices() -> std::result::Result<Vec<About>, Fault> {
    #[cfg(feature = "cuda")]
    return onefold_accel::device::cuda::list();
    #[cfg(not(feature = "cuda"))]
    Err(Fault::new(FaultKind::Absent, "this program was built without support for NVIDIA GPUs"))
}

/// Runs every kernel on a device and compares the results with those of the processor.
pub fn self_test(number: u32) -> std::result::Result<About, Fault> {
    #[cfg(feature = "cuda")]
    return onefold_accel::device::cuda::self_test(number);
    #[cfg(not(feature = "cuda"))]
    Err(Fault::new(
        FaultKind::Absent,
        format!("device {number}: this program was built without support for NVIDIA GPUs"),
    ))
}

fn open_device(number: u32) -> std::result::Result<Arc<dyn Device>, Fault> {
    #[cfg(feature = "cuda")]
    return onefold_accel::device::cuda::open(number);
    #[cfg(not(feature = "cuda"))]
    Err(Fault::new(
        FaultKind::Absent,
        format!("device {number}: this program was built without support for NVIDIA GPUs"),
    ))
}

/// Returns the sentence for a device that is there and does not work; `None` if there is none that could.
fn note_on(fault: &Fault) -> Option<String> {
    let sentence = || format!("the accelerator cuda:0 is not used: {fault}; the processor does all of its work");
    fault.kind.is_failure().then(sentence)
}

/// Work of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AcceleratorUsage {
    /// Name of the device.
    pub name: String,
    /// Batches whose results were used.
    pub batches: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Faults: 0 or 1, because the first one ends its use.
    pub faults: u64,
}

impl Accelerator {
    /// Opens the chosen device after its self-test. `None`: the processor does everything. With [`AcceleratorChoice::Auto`], `note`
    /// gets a sentence if there is a device that does not work; none that is absent, too old, or short of memory.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if a device was asked for by its name and cannot be used, or if the memory budget has no share for it.
    pub fn choose(
        choice: AcceleratorChoice,
        check: Check,
        memory_bytes: usize,
        host: &dyn Host,
        note: &mut dyn FnMut(&str),
    ) -> Result<Option<Self>> {
        let device = match choice {
            AcceleratorChoice::Cpu => return Ok(None),
            AcceleratorChoice::Auto if memory_bytes < AUTO_BYTES_MIN => return Ok(None),
            AcceleratorChoice::Auto => match open_device(0) {
                Ok(device) => device,
                Err(fault) => {
                    if let Some(sentence) = note_on(&fault) {
                        note(&sentence);
                    }
                    return Ok(None);
                }
            },
            AcceleratorChoice::Cuda(_) if memory_bytes < DEVICE_BYTES_MIN => {
                let (bytes, least) = (memory_bytes >> 20, DEVICE_BYTES_MIN >> 20);
                return Err(Error::invalid(format!(
                    "an accelerator needs a memory budget of {least} MiB, and this one has {bytes} MiB"
                )));
            }
            AcceleratorChoice::Cuda(number) => open_device(number)
                .map_err(|fault| Error::invalid(format!("the accelerator cuda:{number} cannot be used: {fault}")))?,
        };
        let mut key = [0; 32];
        host.random(&mut key)?;
        Ok(Some(Self::new(device, check, key)))
    }

    /// Uses a device that has passed its self-test. `key` is random: it chooses the results that the processor computes again.
    pub fn new(device: Arc<dyn Device>, check: Check, key: [u8; 32]) -> Self {
        Self(Arc::new(Shared { device, check, key, state: Mutex::default() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what it did so far.
    pub fn usage(&self) -> AcceleratorUsage {
        let State { batches, bytes, fault, .. } = &*self.state();
        let name = self.0.device.about().name.clone();
        AcceleratorUsage { name, batches: *batches, bytes: *bytes, faults: u64::from(fault.is_some()) }
    }

    /// Returns the fault that has ended its use.
    pub fn fault(&self) -> Option<Fault> {
        self.state().fault.clone()
    }

    fn is_ended(&self) -> bool {
        self.state().fault.is_some()
    }

    fn end(&self, fault: Fault) {
        self.state().fault.get_or_insert(fault);
    }

    fn count(&self, bytes: u64) {
        let mut state = self.state();
        state.batches += 1;
        state.bytes += bytes;
    }

    /// Tells the monitor of a fault, once.
    pub(crate) fn report(&self, monitor: &dyn Monitor) {
        let mut state = self.state();
        let Some(fault) = state.fault.clone().filter(|_| !state.is_reported) else { return };
        state.is_reported = true;
        drop(state);
        let name = &self.0.device.about().name;
        monitor.note(&format!("{name} is not used any more: {fault}; the processor does all of its work"));
    }

    /// Opens a queue for one operation, and so many buffers that the device reads. `None`: the device is not used, or is of no use.
    pub(crate) fn open(
        &self,
        rule: &Rule,
        fingerprinter: &Arc<dyn Fingerprinter>,
        (limits, buffers): (Limits, usize),
    ) -> Option<(DeviceWork, Pool)> {
        if self.is_ended() || rule.search.is_none() && rule.hash.is_none() {
            return None;
        }
        let names = rule.hash.is_some();
        let fingerprinter = Arc::clone(fingerprinter);
        let namer: Namer = Arc::new(move |chunks| fingerprinter.name(chunks).into_iter().map(|name| name.0).collect());
        let Shared { device, check, key, .. } = &*self.0;
        match Batches::open(&**device, rule, limits, (namer, *check, *key)) {
            Ok(batches) => {
                let allocating = Arc::clone(device);
                let allocate = move |len| allocating.allocate(len);
                let pool = Pool::new(limits.block_bytes, buffers, allocate);
                let work = Work {
                    accelerator: self.clone(),
                    batches: Some(batches),
                    being_named: Vec::new(),
                    named: HashMap::new(),
                };
                Some((DeviceWork { limits, names, work: Arc::new(Mutex::new(work)) }, pool))
            }
            Err(fault) => {
                self.end(fault);
                None
            }
        }
    }
}

/// Batches of one operation. Clones share them: one stage searches what another one names.
#[derive(Clone, Debug)]
pub(crate) struct DeviceWork {
    /// Sizes of batches.
    pub(crate) limits: Limits,
    /// Whether chunks are named, too.
    pub(crate) names: bool,
    work: Arc<Mutex<Work>>,
}

#[derive(Debug)]
struct Work {
    accelerator: Accelerator,
    /// `None` after a fault.
    batches: Option<Batches>,
    /// Batches whose chunks are being named.
    being_named: Vec<Batch>,
    /// Names that were taken to free a position.
    named: HashMap<Batch, Vec<[u8; 32]>>,
}

impl Work {
    /// Does something with the batches. A fault ends them.
    fn attempt<T>(&mut self, act: impl FnOnce(&mut Batches) -> std::result::Result<T, Fault>) -> Option<T> {
        match act(self.batches.as_mut()?) {
            Ok(value) => Some(value),
            Err(fault) => {
                // Waits for copies of blocks that the device still reads.
                self.batches = None;
                self.named.clear();
                self.accelerator.end(fault);
                None
            }
        }
    }

    /// Takes names that are there.
    fn collect(&mut self) {
        for batch in std::mem::take(&mut self.being_named) {
            match self.attempt(|batches| batches.names(batch, Wait::No)) {
                Some(Some(names)) => drop(self.named.insert(batch, names)),
                Some(None) => self.being_named.push(batch),
                None => return,
            }
        }
    }
}

impl DeviceWork {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns false after a fault.
    pub(crate) fn is_usable(&self) -> bool {
        self.work().batches.is_some()
    }

    /// Begins a batch; `None` if the device is busy, or not used any more.
    pub(crate) fn begin(&self, blocks: Vec<Arc<Frozen>>) -> Option<Batch> {
        let mut work = self.work();
        if !work.batches.as_ref()?.has_free_position() {
            work.collect();
        }
        if !work.batches.as_ref()?.has_free_position() {
            return None;
        }
        work.attempt(|batches| batches.begin(blocks))
    }

    /// Waits for the candidates of some ranges; `None` after a fault. If nothing is named, the batch ends.
    pub(crate) fn candidates(&self, batch: Batch, ranges: &[Range]) -> Option<Vec<Vec<u32>>> {
        let mut work = self.work();
        let found = work.attempt(|batches| batches.candidates(batch, ranges))?;
        if !self.names {
            work.attempt(|batches| batches.end(batch))?;
        }
        work.accelerator.count(ranges.iter().map(|range| u64::from(range.len)).sum());
        Some(found)
    }

    /// Counts work of the device, for a stage that searches nothing.
    pub(crate) fn count(&self, bytes: u64) {
        if bytes != 0 {
            self.work().accelerator.count(bytes);
        }
    }

    /// Ends the use of the device, which was found to be wrong.
    pub(crate) fn fail(&self, message: &str) {
        self.work().attempt(|_| Err::<(), _>(Fault::new(FaultKind::Wrong, message)));
    }

    /// Starts to name chunks of a batch. Without chunks, the batch ends.
    pub(crate) fn name(&self, batch: Batch, spans: Vec<Span>, joined: Vec<u8>) {
        let mut work = self.work();
        let started = if spans.is_empty() {
            work.attempt(|batches| batches.end(batch)).map(|()| false)
        } else {
            work.attempt(|batches| batches.name(batch, spans, joined)).map(|()| true)
        };
        if started == Some(true) {
            work.being_named.push(batch);
        }
    }

    /// Waits for the names of a batch's chunks, which are being named; `None` after a fault.
    pub(crate) fn names(&self, batch: Batch) -> Option<Vec<Fingerprint>> {
        let mut work = self.work();
        work.batches.as_ref()?;
        let names = if let Some(names) = work.named.remove(&batch) {
            names
        } else {
            work.being_named.retain(|other| *other != batch);
            work.attempt(|batches| batches.names(batch, Wait::Yes))??
        };
        Some(names.into_iter().map(Fingerprint).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_does_not_work_gets_a_sentence_and_one_that_is_absent_none() {
        let kinds =
            [FaultKind::Absent, FaultKind::Unsuitable, FaultKind::OutOfMemory, FaultKind::Lost, FaultKind::Wrong];
        let has_note = kinds.map(|kind| note_on(&Fault::new(kind, "the reason")));
        let expected = "the accelerator cuda:0 is not used: the reason; the processor does all of its work";
        assert_eq!(has_note, [None, None, None, Some(expected.to_owned()), Some(expected.to_owned())]);
    }
}
