//! Which snapshots hold chunks of a container, and which containers it and others depend on.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

use crate::collect::ledger::Held;
use crate::collect::usage::{Prefix, prefix_of};
use crate::collect::why::related::Related;
use crate::collect::why::timeline::{Contents, PeriodCursor, Periods, Sums, Timeline};
use crate::collect::why::{Numbers, WhyRequest};
use crate::container::ContainerReader;
use crate::error::{Error, Result};
use crate::inspect::stats::share;
use crate::monitor::Items;
use crate::object::names::{CollectionStep, ContainerKind};
use crate::snapshot::CollectionItem;
use crate::store::container_set::Containers;
use crate::store::view::open_each;
use crate::store::{MetadataReader, Store};
use crate::types::{ContainerId, Fingerprint, SessionId};

/// The state of a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContainerState {
    /// Neither condemned nor quarantined.
    Live,
    /// Written by a session that has not ended: no collection touches it.
    Unended,
    /// A collection, by its number, has condemned it and has not decided.
    Condemned(u32),
    /// A collection, by its number, has decided to delete it.
    Decided(u32),
}

/// The snapshots that hold chunks of a container, and the containers that it depends on or that depend on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ContainerHolders {
    /// The container.
    pub id: ContainerId,
    /// Its kind.
    pub kind: ContainerKind,
    /// Its state.
    pub state: ContainerState,
    /// Bytes of the object.
    pub stored_bytes: u64,
    /// Regions.
    pub regions: u64,
    /// All of its chunks.
    pub all: Held,
    /// Those that any snapshot holds.
    pub held: Held,
    /// Those of them of which another container has a copy that is not about to be deleted.
    pub copied: Held,
    /// Those that no snapshot holds, and further copies within the container.
    pub unneeded: Held,
    /// The snapshots that hold any, of those that were asked for, by host, paths and time.
    pub snapshots: Vec<ContainerInSnapshot>,
    /// Held chunks that forgetting the given snapshots would free.
    pub freed: Option<Held>,
    /// The containers that hold bases of its regions.
    pub bases: Related,
    /// The containers with regions that have bases in it.
    pub dependents: Related,
}

impl ContainerHolders {
    /// Returns true if no snapshot would hold a chunk after the given ones were forgotten; without any, if none does.
    pub fn is_unused(&self) -> bool {
        self.freed.unwrap_or_default().chunks == self.held.chunks
    }

    /// Returns true if it stays only because other containers depend on it: no snapshot holds a chunk of it, or would hold one after
    /// the given ones were forgotten. A collection removes it with all that depends on it, or if it compresses these without it.
    pub fn is_only_base(&self) -> bool {
        self.is_unused() && self.state == ContainerState::Live && self.dependents.count != 0
    }
}

/// A snapshot that holds chunks of a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContainerInSnapshot {
    /// The snapshot.
    pub session: SessionId,
    /// The chunks that it holds.
    pub held: Held,
    /// Those of them that no other snapshot holds.
    pub only: Held,
}

/// A chunk of the container.
#[derive(Clone, Copy, Debug)]
struct OwnChunk {
    /// Its length, and its share of its region.
    lengths: (u32, u32),
    /// True if another container has it, too.
    is_copied: bool,
}

/// At most as many as a container may have.
type OwnChunks = BTreeMap<Prefix, OwnChunk>;

/// Finds the snapshots that hold chunks of a container, and counts these.
///
/// Fails if the container or a node cannot be read, or another container does not open: then the numbers are not known.
pub fn why_container(store: &Store, request: &WhyRequest<'_>, id: ContainerId) -> Result<ContainerHolders> {
    let listed = store.list_sized_containers(request.scratch)?;
    let number = listed.find(id).ok_or_else(|| Error::Missing { object: format!("container {id}") })?;
    let (name, stored_bytes) = listed.sized(number)?;
    let mut found = ContainerHolders {
        id,
        kind: name.kind,
        state: state_of(store, id)?,
        stored_bytes,
        regions: 0,
        all: Held::default(),
        held: Held::default(),
        copied: Held::default(),
        unneeded: Held::default(),
        snapshots: Vec::new(),
        freed: request.forgotten.map(|_| Held::default()),
        bases: Related::default(),
        dependents: Related::default(),
    };
    let container = store.open_container(&name)?;
    let mut chunks = own_chunks(store, &container, &mut found)?;
    found.bases = Related::bases_of(&container, &listed)?;
    find_others(store, request, &listed, &mut chunks, &mut found)?;
    let holders = Holders::of(request);
    request.monitor.stage(Items::Snapshots, holders.trees.len() as u64);
    let periods = holders.periods(store, request, &chunks)?;
    holders.count(request, &periods, &chunks, &mut found)?;
    Ok(found)
}

/// Returns the chunks of a container.
fn own_chunks(store: &Store, container: &ContainerReader, found: &mut ContainerHolders) -> Result<OwnChunks> {
    found.regions = container.directory.regions.len() as u64;
    let mut own = OwnChunks::new();
    let mut chunks = container.directory.chunks.iter();
    for region in &container.directory.regions {
        for chunk in chunks.by_ref().take(region.chunk_count as usize) {
            let unnamed = || Error::damaged(store.display(container.name), "its directory does not name all chunks");
            let stored_len = share(chunk.len, region.sealed_len, region.plain_len);
            let lengths = (chunk.len, u32::try_from(stored_len).unwrap_or(u32::MAX));
            found.all.add(lengths);
            let fingerprint = chunk.fingerprint.ok_or_else(unnamed)?;
            own.entry(prefix_of(&fingerprint)).or_insert(OwnChunk { lengths, is_copied: false });
        }
    }
    Ok(own)
}

/// Notes which chunks other containers have, too, and which of these have bases in the container.
fn find_others(
    store: &Store,
    request: &WhyRequest<'_>,
    listed: &Containers,
    chunks: &mut OwnChunks,
    found: &mut ContainerHolders,
) -> Result<()> {
    // What is about to be deleted is read before containers are listed.
    let absent = store.read_absent()?;
    open_each(store, request.scratch, false, &mut |name, opened| {
        request.go_on()?;
        if name.id == found.id || absent.containers.contains(name.id) {
            return Ok(ControlFlow::Continue(()));
        }
        let opened = opened?;
        // What a collection has not decided about may stay, and then keeps its bases.
        found.dependents.add_dependent(&opened, found.id, listed)?;
        if absent.is_undecided(name.id) {
            return Ok(ControlFlow::Continue(()));
        }
        for chunk in opened.directory.chunks.iter().filter_map(|chunk| chunk.fingerprint) {
            if let Some(own) = chunks.get_mut(&prefix_of(&chunk)) {
                own.is_copied = true;
            }
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// Snapshots in their order, by the distinct trees that they have.
struct Holders {
    /// The distinct trees, each with a snapshot that has it.
    trees: Vec<(SessionId, Fingerprint)>,
    /// The snapshots with the number of their trees.
    snapshots: Vec<(SessionId, u32)>,
    /// Number of snapshots with the trees before each one: all, and those that would be kept.
    counts: Vec<(u64, u64)>,
}

impl Holders {
    fn of(request: &WhyRequest<'_>) -> Self {
        let (mut numbers, mut trees, mut snapshots) = (Numbers::default(), Vec::new(), Vec::new());
        for (session, snapshot) in request.ordered() {
            let (number, is_new) = numbers.of(snapshot.tree.0);
            if is_new {
                trees.push((session, snapshot.tree));
            }
            snapshots.push((session, number));
        }
        let mut each = vec![(0, 0); trees.len()];
        for (session, number) in &snapshots {
            let (all, kept) = each.get_mut(*number as usize).expect("the tree was counted");
            *all += 1;
            *kept += u64::from(request.is_kept(session));
        }
        let sums = each.iter().scan((0, 0), |(all, kept), (more, more_kept)| {
            (*all, *kept) = (*all + more, *kept + more_kept);
            Some((*all, *kept))
        });
        let counts = std::iter::once((0, 0)).chain(sums).collect();
        Self { trees, snapshots, counts }
    }

    fn periods(&self, store: &Store, request: &WhyRequest<'_>, chunks: &OwnChunks) -> Result<Periods> {
        let mut reader = request.reader(store)?;
        let nodes = request.scratch.map(&store.host, "open nodes", request.memory() / 4)?;
        let periods = request.scratch.partitions(&store.host, "periods of chunks", request.memory() / 4)?;
        let mut contents = |_: &mut MetadataReader, number: u32| {
            let (session, tree) = self.trees.get(number as usize).expect("numbers are below the count");
            Ok((*session, Contents::Directory(*tree)))
        };
        let timeline = Timeline {
            reader: &mut reader,
            keeps: &|fingerprint| chunks.contains_key(&prefix_of(fingerprint)),
            monitor: request.monitor,
        };
        timeline.record(self.count_trees(), &mut contents, nodes, periods)
    }

    fn count_trees(&self) -> u32 {
        u32::try_from(self.trees.len()).expect("each stands for a snapshot in memory")
    }

    /// Returns how many snapshots have the trees of a period: all, and those that would be kept.
    fn holders(&self, period: &Range<u32>) -> (u64, u64) {
        let at = |number: u32| self.counts.get(number as usize).expect("periods are those of the trees");
        let (before, end) = (at(period.start), at(period.end));
        (end.0 - before.0, end.1 - before.1)
    }

    fn count(
        &self,
        request: &WhyRequest<'_>,
        periods: &Periods,
        chunks: &OwnChunks,
        found: &mut ContainerHolders,
    ) -> Result<()> {
        let mut sums = Sums::new(self.count_trees());
        let mut only_of_tree = vec![Held::default(); self.trees.len()];
        let mut cursor = PeriodCursor::new(periods)?;
        let mut chunk_periods = Vec::new();
        while let Some(prefix) = cursor.next(&mut chunk_periods)? {
            let OwnChunk { lengths, is_copied } = chunks.get(&prefix).expect("only these are recorded");
            let (mut all, mut kept) = (0, 0);
            for period in &chunk_periods {
                sums.add(period, *lengths);
                let (more, more_kept) = self.holders(period);
                (all, kept) = (all + more, kept + more_kept);
            }
            found.held.add(*lengths);
            if *is_copied {
                found.copied.add(*lengths);
            }
            if let Some(freed) = found.freed.as_mut().filter(|_| kept == 0) {
                freed.add(*lengths);
            }
            // Each tree has a snapshot, so one snapshot means one tree.
            if let [period] = chunk_periods.as_slice()
                && all == 1
            {
                only_of_tree.get_mut(period.start as usize).expect("periods are those of the trees").add(*lengths);
            }
        }
        found.unneeded = found.all.without(&found.held);
        let sums = sums.finish();
        for (session, number) in &self.snapshots {
            let held = *sums.get(*number as usize).expect("a sum for each tree");
            if request.is_listed(session) && held.chunks != 0 {
                let only = *only_of_tree.get(*number as usize).expect("a sum for each tree");
                found.snapshots.push(ContainerInSnapshot { session: *session, held, only });
            }
        }
        Ok(())
    }
}

/// Returns the state of a container that is listed.
fn state_of(store: &Store, id: ContainerId) -> Result<ContainerState> {
    for (number, steps) in store.list_collections()? {
        let has_condemn = steps.contains(&CollectionStep::Condemn);
        if steps.contains(&CollectionStep::Final) {
            match names(store, number, CollectionStep::Final, id) {
                Ok(true) => return Ok(ContainerState::Decided(number)),
                Ok(false) => continue,
                Err(error) if error.is_loss() && has_condemn => {}
                Err(error) => return Err(error),
            }
        }
        // A `done` that does not open proves nothing.
        let is_done = steps.contains(&CollectionStep::Done) && store.read_ids(number, CollectionStep::Done).is_ok();
        if has_condemn && !is_done && names(store, number, CollectionStep::Condemn, id)? {
            return Ok(ContainerState::Condemned(number));
        }
    }
    let has_ended = store.list_ended()?.contains(&id.session);
    Ok(if has_ended { ContainerState::Live } else { ContainerState::Unended })
}

/// Returns true if a step of a collection names a container.
fn names(store: &Store, number: u32, step: CollectionStep, id: ContainerId) -> Result<bool> {
    let mut is_named = false;
    store.read_collection(number, step, &mut |item| {
        is_named |= item == CollectionItem::Container(id);
        Ok(())
    })?;
    Ok(is_named)
}
