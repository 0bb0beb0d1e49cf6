//! The map from deleted containers to those that have their chunks now, for the hints that live metadata still has (`moved` of
//! `final`).
//!
//! Each `final` has the whole map, so that readers read the newest one only.

use crate::bitmap::Bitmap;
use crate::collect::mark::Hint;
use crate::collect::settle::Settled;
use crate::error::Result;
use crate::snapshot::{CollectionEncoder, TARGETS_MAX};
use crate::spill::SpillMap;
use crate::store::Store;
use crate::store::container_ids::spill_key;
use crate::store::container_set::{ContainerNumber, Containers, RunCursor};
use crate::store::metadata::Scratch;
use crate::types::ContainerId;

/// The containers that hints of live metadata name, and manifests of snapshots.
#[derive(Debug)]
pub(super) struct Hinted {
    containers: Containers,
    /// Numbers of those that are listed.
    listed: Bitmap,
    near: RunCursor,
    /// Containers that are not listed, with numbers of their own, counted from 0.
    others: SpillMap,
    others_count: u32,
    /// Numbers of those that are named.
    named_others: Bitmap,
    /// True if the hints are not known, so that all containers count.
    is_unknown: bool,
}

/// A container that a hint names, in four bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HintCode {
    /// The number of a listed container.
    Listed(u32),
    /// The number of a container that is not listed.
    Other(u32),
}

/// The bit that tells the numbers of other containers from those of listed ones.
const OTHER_BIT: u32 = 1 << 31;

impl HintCode {
    /// Returns the code as it is spilled.
    pub(super) fn encode(self) -> u32 {
        match self {
            Self::Listed(number) => number,
            Self::Other(number) => number | OTHER_BIT,
        }
    }

    /// Reads a spilled code.
    pub(super) fn decode(code: u32) -> Self {
        if code & OTHER_BIT == 0 { Self::Listed(code) } else { Self::Other(code & !OTHER_BIT) }
    }
}

impl Hinted {
    /// Starts without hints.
    pub(super) fn new(store: &Store, scratch: &Scratch, memory_bytes: usize) -> Result<Self> {
        Ok(Self {
            containers: Containers::default(),
            listed: Bitmap::default(),
            near: RunCursor::default(),
            others: scratch.map(&store.host, "hints to deleted containers", memory_bytes)?,
            others_count: 0,
            named_others: Bitmap::default(),
            is_unknown: false,
        })
    }

    /// Starts again, with the containers that most hints name.
    pub(super) fn start(&mut self, containers: &Containers) {
        self.containers = containers.clone();
        self.listed = Bitmap::default();
        self.near = RunCursor::default();
    }

    /// Returns the code of a container.
    pub(super) fn code_of(&mut self, id: ContainerId) -> Result<HintCode> {
        if let Some(number) = self.containers.find_near(id, &mut self.near) {
            return Ok(HintCode::Listed(number.0));
        }
        if let Some(number) = self.other(id)? {
            return Ok(HintCode::Other(number));
        }
        let number = self.others_count;
        self.others.insert(spill_key(id), &number.to_be_bytes())?;
        // More would share the last number, which costs entries of `moved`.
        self.others_count = (number + 1).min(OTHER_BIT - 1);
        Ok(HintCode::Other(number))
    }

    /// Returns the number of a container that is not listed, if it has one.
    pub(super) fn other(&mut self, id: ContainerId) -> Result<Option<u32>> {
        let number = self.others.get(&spill_key(id))?;
        Ok(number.and_then(|bytes| bytes.first_chunk().copied()).map(u32::from_be_bytes))
    }

    /// Adds a container that a hint names.
    pub(super) fn insert(&mut self, id: ContainerId) -> Result<()> {
        let code = self.code_of(id)?;
        self.insert_code(code);
        Ok(())
    }

    /// Adds the container that a hint names, if it names one.
    pub(super) fn insert_hint(&mut self, hint: &Hint) -> Result<()> {
        hint.container.map_or(Ok(()), |container| self.insert(container))
    }

    /// Adds a container by its code.
    pub(super) fn insert_code(&mut self, code: HintCode) {
        match code {
            HintCode::Listed(number) => self.listed.insert(number),
            HintCode::Other(number) => self.named_others.insert(number),
        }
    }

    /// Lets all containers count from now on: nothing was marked.
    pub(super) fn set_unknown(&mut self) {
        self.is_unknown = true;
    }

    fn contains(&mut self, id: ContainerId) -> Result<bool> {
        if self.is_unknown {
            return Ok(true);
        }
        match self.containers.find(id) {
            Some(number) if self.listed.contains(number.0) => Ok(true),
            _ => Ok(self.other(id)?.is_some_and(|number| self.named_others.contains(number))),
        }
    }
}

/// Deleted containers of which a `final` says where their chunks are now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MovedCounts {
    /// All of them.
    pub containers: u64,
    /// Those whose chunks stand in too many containers to name: they are looked for everywhere.
    pub anywhere: u64,
}

/// Adds to a `final` where chunks have moved: what `settled` says, and what the `final` before says of containers that are
/// gone for longer. Where a target is deleted now, its own targets take its place. Returns what it has added.
pub(super) fn merge(
    store: &Store,
    number: u32,
    containers: &Containers,
    settled: &Settled,
    hinted: &mut Hinted,
    step: &mut CollectionEncoder,
) -> Result<MovedCounts> {
    let mut counts = MovedCounts::default();
    let mut add = |container: ContainerId, targets: &[ContainerId]| {
        counts.containers += 1;
        counts.anywhere += u64::from(targets.is_empty());
        step.moved(container, targets);
    };
    let id_of = |number: u32| containers.name(ContainerNumber(number)).map(|name| name.id);
    for (deleted, targets) in settled.moved.iter() {
        let deleted = id_of(deleted)?;
        if hinted.contains(deleted)? {
            let targets: Vec<ContainerId> = targets.iter().map(|target| id_of(*target)).collect::<Result<_>>()?;
            add(deleted, &targets);
        }
    }
    store.read_moved(Some(number), &mut |container, targets| {
        if hinted.contains(container)? {
            add(container, &translate(targets, containers, settled, &id_of)?);
        }
        Ok(())
    })?;
    Ok(counts)
}

/// Returns where the chunks of some containers are now; an empty list: anywhere.
fn translate(
    targets: &[ContainerId],
    containers: &Containers,
    settled: &Settled,
    id_of: &dyn Fn(u32) -> Result<ContainerId>,
) -> Result<Vec<ContainerId>> {
    let mut translated: Vec<ContainerId> = Vec::new();
    for target in targets {
        let Some(number) = containers.find(*target) else { return Ok(Vec::new()) };
        if settled.deleted.binary_search(&number.0).is_err() {
            translated.push(*target);
            continue;
        }
        match settled.moved.of(number.0) {
            // Nothing of it is needed.
            None => {}
            Some([]) => return Ok(Vec::new()),
            Some(further) => {
                for further in further {
                    translated.push(id_of(*further)?);
                }
            }
        }
    }
    translated.sort_unstable();
    translated.dedup();
    translated.truncate(if TARGETS_MAX < translated.len() { 0 } else { TARGETS_MAX });
    Ok(translated)
}
