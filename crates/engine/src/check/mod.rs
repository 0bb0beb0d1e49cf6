//! Verification: every object, every reference, and on request every byte.
//!
//! Damage of a repository is a finding, not an error: it names the object, the files of snapshots that it hits, and what to do.
//! A check writes nothing to the repository. The order is: config and key slots; sessions, commits and their log; containers;
//! every reference of every snapshot, each node once. If something is lost, a second walk through the trees that are hit names
//! the files.

use std::collections::BTreeSet;
use std::path::Path;

use crate::accelerator::Accelerator;
use crate::error::Result;
use crate::monitor::{Items, Monitor};
use crate::object::names::ObjectName;
use crate::pipeline::Driver;
use crate::store::metadata::{MetadataMemory, Scratch};
use crate::store::{MetadataReader, Store};
use crate::types::{ContainerId, Fingerprint, SessionId};

mod affected;
mod compared;
mod comparing;
mod condition;
mod config;
pub mod findings;
mod graph;
mod inventory;
mod listing;
mod loading;
mod manifests;
mod objects;
mod order;
mod references;
pub(crate) mod remembered_heads;
mod sample;
mod verify;

pub use findings::{AffectedFile, Extent, Finding, Severity};
pub use remembered_heads::{
    ComparedCommits, ComparedHeads, HeadsAccess, HeadsDir, LostHeads, OtherCopy, known_locations, read_commits_compared,
};

pub(crate) use config::{read_config, read_slot, version_of};

use affected::find_affected;
use findings::Findings;
use graph::Graph;
use inventory::Inventory;
use manifests::Listing;
use objects::History;
use references::{References, Soundness};
use remembered_heads::{RememberedCopy, compare, read_copies, remember_heads};

/// Share of the containers that is read.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum ReadData {
    /// Their directories.
    #[default]
    None,
    /// Every byte.
    All,
    /// Every byte of one of so many parts; a container stays in its part.
    Subset {
        /// Which part, counted from 1.
        index: u64,
        /// Number of parts.
        of: u64,
    },
    /// Every byte of a random sample of so many percent.
    Percent(f64),
    /// Every byte of a random sample of as many containers as take so many bytes at their greatest size, at least one.
    Bytes(u64),
}

/// Snapshots whose references are followed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum CheckedSnapshots {
    /// Those of every snapshot.
    #[default]
    All,
    /// Those of these snapshots. Containers and small objects are looked at all the same.
    Selected(BTreeSet<SessionId>),
}

impl CheckedSnapshots {
    fn contains(&self, session: SessionId) -> bool {
        match self {
            Self::All => true,
            Self::Selected(sessions) => sessions.contains(&session),
        }
    }
}

/// Request of a check.
#[derive(Clone, Debug)]
pub struct CheckRequest {
    /// Share of the containers that is read.
    pub read: ReadData,
    /// Snapshots whose references are followed.
    pub snapshots: CheckedSnapshots,
    /// Directory of temporary files.
    pub scratch: Scratch,
    /// Memory in bytes; at least `MEMORY_BYTES_MIN` is used.
    pub memory_bytes: usize,
    /// Driver of the work queues.
    pub driver: Driver,
    /// Makes a random sample repeat; `None`: the host draws.
    pub seed: Option<u64>,
    /// Directory of the remembered heads; `None` remembers none.
    pub heads: Option<HeadsDir>,
    /// Device that names chunks, too, of containers whose every byte is read.
    pub accelerator: Option<Accelerator>,
}

/// The least memory that a check uses, in bytes: its smallest share is a sixteenth and holds a map.
pub(crate) const MEMORY_BYTES_MIN: usize = 16 * crate::spill::MEMORY_BYTES_MIN;

/// Report of a check.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Findings, the worst first; empty for a sound repository.
    pub findings: Vec<Finding>,
    /// Snapshots whose references were followed.
    pub snapshots: u64,
    /// Snapshots that there are.
    pub snapshots_total: u64,
    /// Containers looked at.
    pub containers: u64,
    /// Different chunks in them.
    pub chunks: u64,
    /// Nodes of trees and recipes read.
    pub nodes: u64,
    /// Bytes of containers that were read whole.
    pub bytes_read: u64,
    /// Chunks whose bytes were compared with their names.
    pub chunks_read: u64,
    /// Regions that were opened for that, and as bases of others; one that was opened twice counts twice.
    pub regions_read: u64,
    /// Files left over by sessions that were interrupted. They are harmless.
    pub leftovers: u64,
    /// Containers whose bytes are damaged, of those that were looked at.
    pub damaged: BTreeSet<ContainerId>,
    /// Containers that could not be read for another reason than damage, of those that were looked at.
    pub unreadable: BTreeSet<ContainerId>,
    /// Number of quarantined containers.
    pub quarantined: u64,
}

impl CheckReport {
    /// Returns true if nothing is damaged or missing.
    pub fn is_sound(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity == Severity::UnknownFile)
    }
}

/// Checks a repository. An error says only that checking itself was not possible.
pub fn check(store: &Store, request: &CheckRequest, monitor: &dyn Monitor) -> Result<CheckReport> {
    check_with(store, request, &BTreeSet::new(), monitor)
}

/// Checks a repository, and reads every byte of some containers in any case.
pub fn check_with(
    store: &Store,
    request: &CheckRequest,
    whole: &BTreeSet<ContainerId>,
    monitor: &dyn Monitor,
) -> Result<CheckReport> {
    let request = CheckRequest { memory_bytes: request.memory_bytes.max(MEMORY_BYTES_MIN), ..request.clone() };
    request.read.validate()?;
    let mut findings = Findings::default();
    config::check_config(store, &mut findings);
    config::check_slots(store, &mut findings);
    // Before the commits are listed: another command may remember a head that it commits meanwhile.
    let seen =
        request.heads.as_ref().map(|heads_dir| read_copies(&*heads_dir.disk, &heads_dir.dir, store.config.repository));
    let history = objects::check_objects(store, &mut findings);
    if let (Some(heads_dir), Some(seen)) = (&request.heads, seen) {
        check_remembered(store, (heads_dir, seen), &history, &mut findings, monitor);
    }
    let (mut inventory, listed) = Inventory::list(store, &request, &history, &mut findings)?;
    inventory.examine(&request, whole, &listed, monitor)?;
    inventory.find_gone(&history, &listed)?;
    inventory.check_moved(&history)?;
    let mut report = CheckReport { leftovers: history.leftovers, ..CheckReport::default() };
    report.nodes = check_references(&request, &history, &mut inventory, monitor)?;
    if request.snapshots == CheckedSnapshots::All {
        // Otherwise a snapshot that was not looked at may need them.
        inventory.judge_gone();
    }
    report.snapshots = history.snapshots().filter(|(session, _)| request.snapshots.contains(*session)).count() as u64;
    report.snapshots_total = history.snapshots().count() as u64;
    report.containers = inventory.counts.containers;
    report.chunks = inventory.counts.chunks;
    report.chunks_read = inventory.counts.chunks_read;
    report.bytes_read = inventory.counts.bytes_read;
    report.regions_read = inventory.regions_read();
    report.quarantined = inventory.quarantined;
    report.damaged = std::mem::take(&mut inventory.damaged);
    report.unreadable = std::mem::take(&mut inventory.unreadable);
    report.findings = findings.finish();
    Ok(report)
}

/// Compares the log with what this host has seen of it, and remembers what it sees now.
fn check_remembered(
    store: &Store,
    (heads_dir, seen): (&HeadsDir, Result<Vec<RememberedCopy>>),
    history: &History,
    findings: &mut Findings,
    monitor: &dyn Monitor,
) {
    let compared = store.read_commits().and_then(|commits| {
        match seen {
            Ok(copies) => report_compared(store, &compare(&copies, heads_dir, &commits), heads_dir, history, findings),
            Err(error) => monitor.note(&format!("which snapshots this host has seen is not known: {error}")),
        }
        remember_heads(store, heads_dir, &commits)
    });
    if let Err(error) = compared {
        monitor.note(&format!("which snapshots there are could not be remembered: {error}"));
    }
}

fn report_compared(
    store: &Store,
    compared: &ComparedHeads,
    heads_dir: &HeadsDir,
    history: &History,
    findings: &mut Findings,
) {
    if heads_dir.lost == LostHeads::Report {
        for head in &compared.lost {
            objects::check_head(store, findings, history, head, "seen before from this host");
        }
    }
    if let Some(other) = &compared.other {
        let object = store.display(ObjectName::Commit(other.head.session));
        findings.harmless(object, other, "nothing has to be done if you use several copies of the repository in turn");
    }
}

/// Follows every reference; returns how many nodes were read.
fn check_references(
    request: &CheckRequest,
    history: &History,
    inventory: &mut Inventory<'_>,
    monitor: &dyn Monitor,
) -> Result<u64> {
    let store = inventory.store;
    let memory = MetadataMemory::left_by(&inventory.live, request.memory_bytes / 4);
    let reader = MetadataReader::open(store, &inventory.live, &request.scratch, memory)?;
    let visited = request.scratch.map(&store.host, "judgments", request.memory_bytes / 8)?;
    let interrupted = || monitor.is_interrupted();
    let graph = Graph::new(&inventory.listed, &request.scratch, &store.host);
    let mut references = References::new(reader, inventory, (visited, graph), monitor);
    let mut hit: Vec<(SessionId, Fingerprint)> = Vec::new();
    let chosen = || history.snapshots().filter(|(session, _)| request.snapshots.contains(*session));
    monitor.stage(Items::Snapshots, chosen().count() as u64);
    for (session, snapshot) in chosen() {
        monitor.begin(Path::new(&format!("snapshot {session}")));
        if references.judge_tree(snapshot.tree, &interrupted)? != Soundness::Sound {
            hit.push((session, snapshot.tree));
        }
        monitor.advance(0, 1);
    }
    for (session, tree) in hit {
        find_affected(&mut references, session, tree, &interrupted)?;
    }
    let mut listings = Vec::new();
    for (session, snapshot) in chosen() {
        let manifest = history.commits.get(&session).and_then(|commit| commit.body.manifest);
        if let (Some(manifest), Some(root)) = (manifest, references.number_of(snapshot.tree)?) {
            listings.push(Listing { session, root, manifest });
        }
    }
    if !manifests::compare(&mut references, &listings, (&request.scratch, request.memory_bytes / 8))? {
        monitor.note("manifests were not compared with references: a prune is at work; check again when it has ended");
    }
    Ok(references.nodes)
}
