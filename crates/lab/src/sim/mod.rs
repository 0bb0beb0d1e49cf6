//! A simulated repository: containers of counts and bytes, and for each version the chunks that it refers to, without their bytes.
//!
//! [`containers`] close at a size. [`recipe`] brings verdicts into the order of the stream, where [`rewriting`] decides. A version's
//! [`references`] lie in a file. After each version [`restore`] counts what reading it back costs, and old versions are deleted by
//! the container-marker algorithm (Fu et al., USENIX ATC 2014): containers that no kept version marks are reclaimed. [`cost`] has the
//! prices.

pub mod containers;
pub mod cost;
pub mod recipe;
pub mod references;
pub mod restore;
pub mod rewriting;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use onefold_engine::types::{Chunk, ContainerId, Fingerprint, SessionId};

use crate::counts::counts;
use crate::sim::containers::{ContainerRule, Containers, Layout};
use crate::sim::references::{ReferencesWriter, Referred};
use crate::sim::restore::Cache;
use crate::sim::rewriting::Rewrite;

/// The session of all containers.
const SESSION: SessionId = SessionId([7; 16]);

/// Simulation in addition to containers.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Plan {
    /// The capacity of a container.
    pub layout: Layout,
    /// Which duplicates are stored again.
    pub rewrite: Rewrite,
    /// Caches that restore each version after it was backed up.
    pub restores: Vec<Cache>,
    /// Versions that are kept; older ones are deleted.
    pub keep_last: Option<u32>,
}

impl Plan {
    /// Returns true if versions are simulated: something is restored, deleted or stored again.
    pub fn has_versions(&self) -> bool {
        self.rewrite != Rewrite::default() || !self.restores.is_empty() || self.keep_last.is_some()
    }
}

counts! {
    /// Chunks that were stored although they were stored already.
    pub struct StoredAgain {
        /// Chunks that rewriting stored again.
        pub rewritten_chunks: u64,
        /// Their bytes.
        pub rewritten_bytes: u64,
        /// Duplicates that a near-exact index missed.
        pub missed_chunks: u64,
        /// Their bytes.
        pub missed_bytes: u64,
    }
}

impl StoredAgain {
    /// Returns the number of all.
    pub fn chunks(&self) -> u64 {
        self.rewritten_chunks + self.missed_chunks
    }

    /// Returns the bytes of all.
    pub fn bytes(&self) -> u64 {
        self.rewritten_bytes + self.missed_bytes
    }

    /// Notes a chunk that rewriting stores again.
    pub fn add_rewritten(&mut self, chunk: &Chunk) {
        self.rewritten_chunks += 1;
        self.rewritten_bytes += u64::from(chunk.len);
    }
}

/// A repository after a version.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Kept {
    /// Containers.
    pub containers: u64,
    /// Bytes of their chunks.
    pub stored_bytes: u64,
    /// Chunks in them.
    pub stored_chunks: u64,
    /// Bytes of the versions that are kept.
    pub bytes: u64,
    /// Containers that the version refers to.
    pub containers_used: u64,
    /// Containers that were reclaimed.
    pub containers_reclaimed: u64,
    /// Containers that each cache of the plan reads for the version.
    pub reads: Vec<u64>,
}

/// A version that is kept.
#[derive(Debug)]
struct Version {
    bytes: u64,
    /// Its containers, and the bytes that it refers to of each.
    used: Vec<(u32, u64)>,
    references: PathBuf,
}

/// Earlier copies of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Before {
    /// Nothing, or its container was reclaimed.
    New,
    /// It is in a container that this session does not refer to, as rewriting demands.
    Shunned,
    /// It was stored more than once. An index may know an older copy only, which is shunned or reclaimed.
    Again,
    /// It is in one container.
    Stored,
}

/// The newest container of a stored chunk.
#[derive(Clone, Copy, Debug)]
struct Newest {
    container: u32,
    /// Whether it was stored more than once.
    is_again: bool,
}

/// Returns the bytes of a fingerprint that stand for it.
pub fn brief(fingerprint: &Fingerprint) -> u64 {
    fingerprint.0.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The simulated repository of one series.
#[derive(Debug)]
pub struct Repository {
    /// Its containers.
    pub containers: Containers,
    plan: Plan,
    scratch: PathBuf,
    versions: Vec<Version>,
    writing: Option<ReferencesWriter>,
    /// Bytes of the present version's references to each container.
    used: HashMap<u32, u64>,
    bytes: u64,
    /// Containers that the next version does not refer to; sorted.
    shunned: Vec<u32>,
    /// The newest container of each stored chunk, where it must be known what is stored again.
    truth: Option<HashMap<u64, Newest>>,
    /// Chunks stored again in the present version.
    pub again: StoredAgain,
    next_version: u64,
}

impl Repository {
    /// Makes one with so many containers whose contents are not known, and without versions.
    pub fn starting_after(rule: ContainerRule, containers: u32) -> Self {
        let containers = Containers::starting_after(rule, containers);
        Self { containers, ..Self::with_versions(rule, Plan::default(), Path::new("")) }
    }

    /// Makes an empty one. Its files lie in a directory.
    pub fn with_versions(rule: ContainerRule, plan: Plan, scratch: &Path) -> Self {
        let truth = (plan.rewrite != Rewrite::default()).then(HashMap::new);
        Self {
            containers: Containers::new(rule),
            plan,
            scratch: scratch.to_path_buf(),
            versions: Vec::new(),
            writing: None,
            used: HashMap::new(),
            bytes: 0,
            shunned: Vec::new(),
            truth,
            again: StoredAgain::default(),
            next_version: 0,
        }
    }

    /// Returns the plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the containers that are there.
    pub fn live(&self) -> Vec<ContainerId> {
        self.containers.live().map(container).collect()
    }

    /// Returns the containers that the present version must not refer to.
    pub fn shunned(&self) -> Vec<ContainerId> {
        self.shunned.iter().copied().map(container).collect()
    }

    /// Learns from now on what is stored again.
    pub fn learn_truth(&mut self) {
        self.truth.get_or_insert_default();
    }

    /// Notes that a chunk is stored in a container. Returns what was stored before; `None`: not known.
    pub fn note_stored(&mut self, chunk: &Chunk, container: u32) -> Option<Before> {
        let truth = self.truth.as_mut()?;
        let newest = Newest { container, is_again: false };
        let before = truth.insert(brief(&chunk.fingerprint), newest);
        let Some(Newest { container: before, is_again }) = before else { return Some(Before::New) };
        let is_live = self.containers.is_live(before);
        truth.insert(brief(&chunk.fingerprint), Newest { container, is_again: is_again || is_live });
        Some(if !is_live {
            Before::New
        } else if self.shunned.binary_search(&before).is_ok() {
            Before::Shunned
        } else if is_again {
            Before::Again
        } else {
            Before::Stored
        })
    }

    /// Begins a version.
    pub fn begin_version(&mut self) -> Result<()> {
        if self.plan.has_versions() {
            let path = self.scratch.join(format!("version-{}", self.next_version));
            self.next_version += 1;
            self.writing = Some(ReferencesWriter::create(&path)?);
        }
        Ok(())
    }

    /// Adds a reference to the present version.
    pub fn refer(&mut self, chunk: &Chunk, container: u32) -> Result<()> {
        if let Some(writing) = &mut self.writing {
            writing.push(Referred { container, len: chunk.len, fingerprint: brief(&chunk.fingerprint) })?;
            *self.used.entry(container).or_default() += u64::from(chunk.len);
        }
        self.bytes += u64::from(chunk.len);
        Ok(())
    }

    /// Ends the present version, whose containers are closed: restores it, deletes those that the plan does not keep, and chooses the
    /// containers that the next one does not refer to. `None`: the plan has no versions.
    pub fn end_version(&mut self) -> Result<Option<Kept>> {
        let Some(writing) = self.writing.take() else { return Ok(None) };
        let references = writing.finish()?;
        let mut used: Vec<_> = self.used.drain().collect();
        used.sort_unstable();
        let restored = |cache: &Cache| cache.reads(self.containers.rule(), references::read(&references)?);
        let reads = self.plan.restores.iter().map(restored).collect::<Result<_>>()?;
        if let Some(history) = self.plan.rewrite.history {
            let used: Vec<_> = used.iter().map(|(number, bytes)| (container(*number), *bytes)).collect();
            let sparse = history.sparse(&used, self.containers.rule().bytes());
            self.shunned = sparse.into_iter().map(|container| container.ordinal).collect();
            self.shunned.sort_unstable();
        }
        let containers_used = used.len() as u64;
        self.versions.push(Version { bytes: std::mem::take(&mut self.bytes), used, references });
        let mut containers_reclaimed = 0;
        while self.plan.keep_last.is_some_and(|keep| (keep as usize) < self.versions.len()) {
            containers_reclaimed += self.delete(0)?;
        }
        self.again = StoredAgain::default();
        let (stored_chunks, stored_bytes) = self.containers.stored();
        Ok(Some(Kept {
            containers: self.containers.live().count() as u64,
            stored_bytes,
            stored_chunks,
            bytes: self.versions.iter().map(|version| version.bytes).sum(),
            containers_used,
            containers_reclaimed,
            reads,
        }))
    }

    /// Deletes a version, of those that are kept, and reclaims the containers that no other one marks. Returns how many.
    pub fn delete(&mut self, version: usize) -> Result<u64> {
        let Version { used, references, .. } = self.versions.remove(version);
        std::fs::remove_file(&references).with_context(|| references.display().to_string())?;
        let is_marked = |container: u32| {
            self.versions.iter().any(|version| version.used.binary_search_by_key(&container, |it| it.0).is_ok())
        };
        let unmarked: Vec<u32> = used.iter().map(|(container, _)| *container).filter(|it| !is_marked(*it)).collect();
        for container in &unmarked {
            self.containers.reclaim(*container);
        }
        self.shunned.retain(|container| self.containers.is_live(*container));
        Ok(unmarked.len() as u64)
    }
}

/// Returns the name of a container.
pub fn container(ordinal: u32) -> ContainerId {
    ContainerId { session: SESSION, ordinal }
}

#[cfg(test)]
mod tests;
