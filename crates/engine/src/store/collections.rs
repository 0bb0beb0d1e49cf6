//! Collections as sessions see them: containers that nothing new may refer to.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result};
use crate::object::ObjectType;
use crate::object::names::{CollectionStep, ObjectName, Prefix};
use crate::object::sealed::{SMALL_LEN_MAX, open_small};
use crate::snapshot::{CollectionBody, CollectionItem};
use crate::store::Store;
use crate::store::container_ids::ContainerIds;
use crate::store::container_set::Containers;
use crate::types::ContainerId;

/// Numbers of collections that may be missing: a user may have moved damaged collections out of the repository.
const NUMBERS_SKIPPED_MAX: u32 = 1 << 16;

/// Containers that count as absent, and the newest collection.
#[derive(Debug, Default)]
pub(crate) struct Absent {
    /// Number of the newest collection; 0 if there was none.
    pub(crate) newest: u32,
    /// The containers, without those of `undecided`. They are read before containers are listed, so that their ids are held
    /// until then.
    pub(crate) containers: ContainerIds,
    /// Collections whose `final` is damaged.
    pub(crate) undecided: Vec<Undecided>,
    /// True if a collection has condemned containers and has neither chosen the final ones nor ended.
    pub(crate) is_condemning: bool,
}

/// A collection whose `final` is there and damaged, and that has not ended. Any process that has read it may be deleting any of
/// its condemned containers.
#[derive(Debug)]
pub(crate) struct Undecided {
    /// Its number.
    pub(crate) number: u32,
    /// The containers that it has condemned.
    pub(crate) condemned: ContainerIds,
    /// The damage.
    pub(crate) error: Error,
}

impl Absent {
    /// Returns true if a collection whose `final` is damaged has condemned a container.
    pub(crate) fn is_undecided(&self, id: ContainerId) -> bool {
        self.undecided.iter().any(|undecided| undecided.condemned.contains(id))
    }

    /// Returns the listed containers that a session may refer to.
    pub(crate) fn live(&self, listed: &Containers) -> Containers {
        let live = listed.without(&self.containers);
        if self.undecided.is_empty() { live } else { live.retain(|_, id| !self.is_undecided(id)) }
    }
}

impl Store {
    /// Lists the steps of each collection. Numbers follow each other, and prunes could never count on from some: so a number far beyond
    /// all others is no collection's if nothing in it can be read.
    pub(crate) fn list_collections(&self) -> Result<BTreeMap<u32, BTreeSet<CollectionStep>>> {
        let mut collections: BTreeMap<u32, BTreeSet<CollectionStep>> = BTreeMap::new();
        for name in self.list(Prefix::Collections)? {
            if let ObjectName::Collection(number, step) = name {
                collections.entry(number).or_default().insert(step);
            }
        }
        let mut last: u32 = 0;
        collections.retain(|number, steps| {
            let is_junk = |step: &CollectionStep| {
                self.read_collection(*number, *step, &mut |_| Ok(())).is_err_and(|error| error.is_loss())
            };
            let is_given = number.saturating_sub(last) <= NUMBERS_SKIPPED_MAX || !steps.iter().all(is_junk);
            last = if is_given { *number } else { last };
            is_given
        });
        Ok(collections)
    }

    /// Reads which containers count as absent: for each collection those that its `final` names, for good; without a `final`
    /// that can be read those that its `condemn` names, until `done`. A `condemn` that cannot be read, and that no `final`
    /// replaces, is an error: its containers are unknown.
    ///
    /// A deleted container that a stale listing still shows is therefore absent, too.
    pub(crate) fn read_absent(&self) -> Result<Absent> {
        self.read_absent_but(0)
    }

    /// The same, without what the collection with this number says.
    pub(crate) fn read_absent_but(&self, without: u32) -> Result<Absent> {
        let mut absent = Absent::default();
        for (number, steps) in self.list_collections()? {
            if number == without {
                continue;
            }
            absent.newest = absent.newest.max(number);
            self.read_absent_of(number, &steps, &mut absent)?;
        }
        absent.containers.sort();
        Ok(absent)
    }

    /// Adds the absent containers of a collection.
    fn read_absent_of(&self, number: u32, steps: &BTreeSet<CollectionStep>, absent: &mut Absent) -> Result<()> {
        let (has_final, has_condemn) =
            (steps.contains(&CollectionStep::Final), steps.contains(&CollectionStep::Condemn));
        let mut damage = None;
        if has_final {
            match self.read_ids(number, CollectionStep::Final) {
                Ok(containers) => {
                    // A power cut must not take the name back after a session has relied on a rescued container: another
                    // collector could then publish a `final` that names it.
                    self.objects.confirm(&[ObjectName::Collection(number, CollectionStep::Final)])?;
                    absent.containers.append(containers);
                    return Ok(());
                }
                // `condemn` names at least as much.
                Err(error) if has_condemn => damage = Some(error).filter(Error::is_loss),
                Err(error) => return Err(error),
            }
        }
        // A `done` that does not open proves nothing.
        let is_done = || self.read_ids(number, CollectionStep::Done).is_ok();
        if !has_condemn || (steps.contains(&CollectionStep::Done) && is_done()) {
            return Ok(());
        }
        let condemned = self.read_ids(number, CollectionStep::Condemn);
        let mut condemned = condemned.map_err(|error| {
            let remedy = if damage.is_some() {
                "its decision cannot be read either: bring one of the two back from a copy of the repository"
            } else {
                "`onefold prune --give-up` gives it up"
            };
            error.context(format!("which containers collection {number} has condemned is not known; {remedy}"))
        })?;
        absent.is_condemning = true;
        match damage {
            Some(error) => {
                condemned.sort();
                absent.undecided.push(Undecided { number, condemned, error });
            }
            None => absent.containers.append(condemned),
        }
        Ok(())
    }

    /// Reads the containers that a step lists.
    pub(crate) fn read_ids(&self, number: u32, step: CollectionStep) -> Result<ContainerIds> {
        let mut ids = ContainerIds::default();
        self.read_collection(number, step, &mut |item| {
            if let CollectionItem::Container(id) = item {
                ids.push(id);
            }
            Ok(())
        })?;
        Ok(ids)
    }

    /// Reads a step of a collection and hands on what it lists, instead of returning it. After an error some were handed on.
    pub(crate) fn read_collection(
        &self,
        number: u32,
        step: CollectionStep,
        take: &mut dyn FnMut(CollectionItem<'_>) -> Result<()>,
    ) -> Result<CollectionBody> {
        let name = ObjectName::Collection(number, step);
        let object = self.display(name);
        let bytes = self.read(name, SMALL_LEN_MAX)?;
        let identity = (self.config.repository, None);
        let (header, body) = open_small(&self.keys, &object, ObjectType::Collection, identity, bytes)?;
        let mut taken = Ok(());
        let mut take_next = |item: CollectionItem<'_>| {
            if taken.is_ok() {
                taken = take(item);
            }
        };
        let body = CollectionBody::decode_items(&body, &mut take_next).map_err(|error| error.of(&object))?;
        taken?;
        if body.step != step || header.ordinal != number {
            return Err(Error::damaged(object, "stands under the name of another step or collection"));
        }
        Ok(body)
    }

    /// Returns the number of quick collections since the last full one; `None` if the newest `final` does not open.
    pub(crate) fn count_quick(&self) -> Result<Option<u32>> {
        let collections = self.list_collections()?;
        let newest = collections.iter().rev().find(|(_, steps)| steps.contains(&CollectionStep::Final));
        let Some((number, _)) = newest else { return Ok(Some(0)) };
        match self.read_collection(*number, CollectionStep::Final, &mut |_| Ok(())) {
            Ok(body) => Ok(Some(body.quick)),
            Err(error) if error.is_loss() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns true if a collection may have quarantined containers. Where what was damaged in them is stored again, `moved` does
    /// not say.
    pub(crate) fn has_quarantined(&self) -> Result<bool> {
        for (number, steps) in self.list_collections()? {
            if !steps.contains(&CollectionStep::Final) {
                continue;
            }
            let mut has_any = false;
            let read = self.read_collection(number, CollectionStep::Final, &mut |item| {
                has_any |= matches!(item, CollectionItem::Quarantined(_));
                Ok(())
            });
            match read {
                Ok(_) if !has_any => {}
                Err(error) if !error.is_loss() => return Err(error),
                Ok(_) | Err(_) => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Passes on each deleted container with those that have its chunks now, as the newest `final` says that opens: each has
    /// the whole map, except those of collections that were given up, which name nothing. Leaves out the `final` of one
    /// collection.
    pub(crate) fn read_moved(
        &self,
        without: Option<u32>,
        each: &mut dyn FnMut(ContainerId, &[ContainerId]) -> Result<()>,
    ) -> Result<()> {
        for (number, steps) in self.list_collections()?.into_iter().rev() {
            if Some(number) == without || !steps.contains(&CollectionStep::Final) {
                continue;
            }
            let (mut has_any, mut outcome) = (false, Ok(()));
            let read = self.read_collection(number, CollectionStep::Final, &mut |item| {
                has_any = true;
                if let CollectionItem::Moved(container, targets) = item {
                    outcome = each(container, targets);
                }
                outcome.clone()
            });
            outcome?;
            match read {
                Ok(_) if has_any => return Ok(()),
                Err(error) if !error.is_loss() => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }
}
