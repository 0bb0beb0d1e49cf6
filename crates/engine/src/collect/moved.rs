//! The map from deleted containers to those that have their chunks now, for the hints that live metadata still has (`moved` of
//! `final`).
//!
//! Each `final` has the whole map, so that readers read the newest one only.

use crate::bitmap::Bitmap;
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
    /// The others.
    others: SpillMap,
    /// True if the hints are not known, so that all containers count.
    is_unknown: bool,
}

impl Hinted {
    /// Starts without hints.
    pub(super) fn new(store: &Store, scratch: &Scratch, memory_bytes: usize) -> Result<Self> {
        let others = scratch.map(&store.host, "hints to deleted containers", memory_bytes)?;
        let (containers, listed, near) = (Containers::default(), Bitmap::default(), RunCursor::default());
        Ok(Self { containers, listed, near, others, is_unknown: false })
    }

    /// Starts again, with the containers that most hints name.
    pub(super) fn start(&mut self, containers: &Containers) {
        self.containers = containers.clone();
        self.listed = Bitmap::default();
        self.near = RunCursor::default();
    }

    /// Adds a container that a hint names.
    pub(super) fn insert(&mut self, id: ContainerId) -> Result<()> {
        match self.containers.find_near(id, &mut self.near) {
            Some(number) => self.listed.insert(number.0),
            None => {
                self.others.insert_new(spill_key(id), &[])?;
            }
        }
        Ok(())
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
            _ => self.others.contains(&spill_key(id)),
        }
    }
}

/// Adds to a `final` where chunks have moved: what `settled` says, and what the `final` before says of containers that are
/// gone for longer. Where a target is deleted now, its own targets take its place.
pub(super) fn merge(
    store: &Store,
    number: u32,
    containers: &Containers,
    settled: &Settled,
    hinted: &mut Hinted,
    step: &mut CollectionEncoder,
) -> Result<()> {
    let id_of = |number: u32| containers.name(ContainerNumber(number)).map(|name| name.id);
    for (deleted, targets) in settled.moved.iter() {
        let deleted = id_of(deleted)?;
        if hinted.contains(deleted)? {
            let targets: Vec<ContainerId> = targets.iter().map(|target| id_of(*target)).collect::<Result<_>>()?;
            step.moved(deleted, &targets);
        }
    }
    store.read_moved(Some(number), &mut |container, targets| {
        if hinted.contains(container)? {
            step.moved(container, &translate(targets, containers, settled, &id_of)?);
        }
        Ok(())
    })
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
