//! A device of the host, for tests: the processor does its work, and it fails or lies on demand.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sha1::Digest;

use super::queue::{Limits, Listed, NameHash, Named, POISON, POISON_WORD, Queue, Rule, Span, TILE_BYTES, Wait};
use super::{About, Device, Fault, FaultKind, Frozen, Memory};
use crate::boundary::{Finder, Kernel};

/// A field of a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// The number of candidates in a tile.
    Count,
    /// A candidate.
    Candidate,
    /// The number of the batch behind the candidates.
    CandidatesNumber,
    /// A name.
    Name,
    /// The number of the batch behind the names.
    NamesNumber,
}

impl Field {
    /// All fields.
    pub const ALL: [Self; 5] = [Self::Count, Self::Candidate, Self::CandidatesNumber, Self::Name, Self::NamesNumber];
}

/// Something that goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mood {
    /// The call returns a fault.
    Fail(FaultKind),
    /// The result has a wrong bit in a field.
    Lie(Field),
    /// The result is that of the batch before.
    Stale,
    /// The memory of the result is as it was before the batch.
    Absent,
}

/// A mood, and its moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Script {
    /// The first call of a queue, counted from 1 and over all queues, that it happens at: the first one that has such a field. 0 is never.
    pub at: u64,
    /// The mood; `None` is never.
    pub mood: Option<Mood>,
    /// Results come late, in an order that this number decides; 0 is immediately.
    pub late: u64,
}

/// A device of the host.
#[derive(Debug)]
pub struct HostDevice {
    about: About,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    script: Script,
    calls: AtomicU64,
    /// The mood was shown.
    is_done: Mutex<bool>,
}

impl HostDevice {
    /// Creates a device that follows a script.
    pub fn new(script: Script) -> Self {
        let (name, memory_bytes) = ("the host".to_owned(), 1 << 30);
        let about = About { name, architecture: 0, multiprocessors: 1, memory_bytes, driver: 0 };
        Self { about, shared: Arc::new(Shared { script, calls: AtomicU64::new(0), is_done: Mutex::new(false) }) }
    }

    /// Returns how many calls of queues there were.
    pub fn calls(&self) -> u64 {
        self.shared.calls.load(Ordering::Relaxed)
    }

    /// Returns true if the mood of the script was shown.
    pub fn is_done(&self) -> bool {
        *self.shared.is_done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device for HostDevice {
    fn about(&self) -> &About {
        &self.about
    }

    fn allocate(&self, len: usize) -> Result<Memory, Fault> {
        Ok(Memory::ordinary(len))
    }

    fn open(&self, rule: &Rule, limits: &Limits) -> Result<Box<dyn Queue>, Fault> {
        self.shared.enter()?;
        let positions = (0..limits.batches).map(|_| Position::default()).collect();
        let (rule, shared) = (rule.clone(), Arc::clone(&self.shared));
        Ok(Box::new(HostQueue { rule, limits: *limits, shared, positions, last: (None, None) }))
    }
}

impl Shared {
    /// Counts a call. Fails from the chosen one on, as a device that is lost.
    fn enter(&self) -> Result<u64, Fault> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        match self.script.mood {
            Some(Mood::Fail(kind)) if self.script.at != 0 && self.script.at <= call => {
                self.finish();
                Err(Fault::new(kind, format!("call {call} of the host's device failed")))
            }
            _ => Ok(call),
        }
    }

    fn finish(&self) {
        *self.is_done.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Returns the mood of a result if it is to be shown now.
    fn mood(&self, call: u64) -> Option<Mood> {
        let is_now = self.script.at != 0 && self.script.at <= call;
        self.script.mood.filter(|mood| is_now && !matches!(mood, Mood::Fail(_)))
    }

    /// Returns true if a result is to come later.
    fn is_late(&self, call: u64) -> bool {
        // Knuth's multiplier; the upper bits are the good ones.
        let mixed = (call + self.script.late).wrapping_mul(6_364_136_223_846_793_005);
        self.script.late != 0 && mixed >> 62 != 0
    }
}

/// A batch. It is computed when its results are asked for, from the frozen blocks.
#[derive(Debug, Default)]
struct Position {
    blocks: Vec<Arc<Frozen>>,
    number: u32,
    chunks: Vec<Span>,
    joined: Vec<u8>,
}

#[derive(Debug)]
struct HostQueue {
    rule: Rule,
    limits: Limits,
    shared: Arc<Shared>,
    positions: Vec<Position>,
    /// Results of the batch before.
    last: (Option<Listed>, Option<Named>),
}

impl HostQueue {
    fn position(&mut self, position: usize) -> &mut Position {
        self.positions.get_mut(position).expect("positions are below the limit")
    }

    fn listed(&mut self, position: usize) -> Listed {
        let block_bytes = self.limits.block_bytes;
        let Some(search) = self.rule.search.clone() else { return Listed::default() };
        let Position { blocks, number, .. } = self.position(position);
        // Memory around the blocks and behind their ends has other bytes.
        let mut area = vec![POISON; 32];
        for block in blocks.iter() {
            area.extend_from_slice(block);
            area.resize(area.len() + block_bytes - block.len(), POISON);
        }
        let tiles = (area.len() - 32) / TILE_BYTES;
        let slots = search.slots();
        let mut listed = Listed { counts: vec![0; tiles], slots: vec![0; tiles * slots], number: *number };
        let mut found = Vec::new();
        Finder::with_kernel(&search.table, search.threshold, Kernel::Serial).candidates(&area, 32, &mut found);
        for at in found {
            let at = at as usize - 1;
            let (tile, offset) = (at / TILE_BYTES, at % TILE_BYTES);
            let Some(count) = listed.counts.get_mut(tile) else { continue };
            if (*count as usize) < slots
                && let Some(slot) = listed.slots.get_mut(tile * slots + *count as usize)
            {
                *slot = u16::try_from(offset).unwrap_or(u16::MAX);
            }
            *count += 1;
        }
        listed
    }

    fn named(&mut self, position: usize) -> Named {
        let (limits, hash) = (self.limits, self.rule.hash.clone());
        let Position { blocks, number, chunks, joined } = self.position(position);
        let name = |span: &Span| {
            let bytes = limits.bytes_of(*span, blocks, joined).unwrap_or_default();
            match &hash {
                Some(NameHash::Blake3(key)) => *blake3::keyed_hash(key, bytes).as_bytes(),
                Some(NameHash::Sha1) => {
                    let mut name = [0; 32];
                    name[..20].copy_from_slice(&sha1::Sha1::digest(bytes));
                    name
                }
                Some(NameHash::Sha256) => sha2::Sha256::digest(bytes).into(),
                None => [POISON; 32],
            }
        };
        Named { names: chunks.iter().map(name).collect(), number: *number }
    }
}

impl Queue for HostQueue {
    fn search(&mut self, position: usize, number: u32, blocks: &[Arc<Frozen>]) -> Result<(), Fault> {
        self.shared.enter()?;
        *self.position(position) = Position { blocks: blocks.to_vec(), number, ..Position::default() };
        Ok(())
    }

    fn candidates(&mut self, position: usize, wait: Wait) -> Result<Option<Listed>, Fault> {
        let call = self.shared.enter()?;
        if wait == Wait::No && self.shared.is_late(call) {
            return Ok(None);
        }
        let mut listed = self.listed(position);
        let whole = listed.clone();
        let is_shown = match self.shared.mood(call) {
            Some(Mood::Lie(Field::Count)) => spoil(&mut listed.counts, call, |count| *count += 1),
            Some(Mood::Lie(Field::Candidate)) => spoil_candidate(&mut listed),
            Some(Mood::Lie(Field::CandidatesNumber)) => {
                listed.number ^= 1;
                true
            }
            Some(Mood::Stale) => self.last.0.clone().map(|last| listed = last).is_some(),
            Some(Mood::Absent) => {
                listed.counts.fill(POISON_WORD);
                listed.slots.fill(u16::from_le_bytes([POISON; 2]));
                listed.number = POISON_WORD;
                true
            }
            _ => false,
        };
        if is_shown {
            self.shared.finish();
        }
        self.last.0 = Some(whole);
        Ok(Some(listed))
    }

    fn name(&mut self, position: usize, number: u32, chunks: &[Span], joined: &[u8]) -> Result<(), Fault> {
        self.shared.enter()?;
        let of_batch = self.position(position);
        assert_eq!(of_batch.number, number, "a batch is named where it was searched");
        (of_batch.chunks, of_batch.joined) = (chunks.to_vec(), joined.to_vec());
        Ok(())
    }

    fn names(&mut self, position: usize, wait: Wait) -> Result<Option<Named>, Fault> {
        let call = self.shared.enter()?;
        if wait == Wait::No && self.shared.is_late(call) {
            return Ok(None);
        }
        let mut named = self.named(position);
        let whole = named.clone();
        let is_shown = match self.shared.mood(call) {
            Some(Mood::Lie(Field::Name)) => spoil(&mut named.names, call, |name| name[7] ^= 0x10),
            Some(Mood::Lie(Field::NamesNumber)) => {
                named.number ^= 0x8000;
                true
            }
            Some(Mood::Stale) => self.last.1.clone().map(|last| named = last).is_some(),
            Some(Mood::Absent) => {
                named.names.fill([POISON; 32]);
                true
            }
            _ => false,
        };
        if is_shown {
            self.shared.finish();
        }
        self.last.1 = Some(whole);
        Ok(Some(named))
    }

    fn release(&mut self, position: usize) -> Result<(), Fault> {
        self.shared.enter()?;
        *self.position(position) = Position::default();
        Ok(())
    }
}

/// Changes one of some values. Returns false if there is none.
fn spoil<T>(values: &mut [T], call: u64, change: impl Fn(&mut T)) -> bool {
    let len = values.len().max(1) as u64;
    let at = usize::try_from(call % len).unwrap_or(0);
    values.get_mut(at).map(change).is_some()
}

/// Moves the first candidate that is not the first position of its tile one position to the front.
fn spoil_candidate(listed: &mut Listed) -> bool {
    let slots = listed.slots.len() / listed.counts.len().max(1);
    let mut tiles = listed.counts.iter().zip(listed.slots.chunks_mut(slots.max(1)));
    tiles.any(|(count, slots)| match slots.first_mut() {
        Some(first) if 0 < *count && 0 < *first => {
            *first -= 1;
            true
        }
        _ => false,
    })
}
