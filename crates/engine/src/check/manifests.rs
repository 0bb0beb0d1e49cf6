//! Compares manifests with references: every chunk that a snapshot needs must stand in a container that its manifest lists.
//!
//! References are followed once, however many snapshots share a node. Meanwhile a graph takes down which nodes and containers
//! each node refers to, by numbers. Nodes have numbers in the order in which they are judged, so that those below come first:
//! one pass from the last edge to the first carries the snapshots that reach a node to all below it, 64 snapshots at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;

use crate::check::findings::{Findings, problem_of};
use crate::check::graph::{Edge, Graph};
use crate::check::references::References;
use crate::codec::{Reader, put_container_id};
use crate::error::{Error, Result};
use crate::object::names::ObjectName;
use crate::spill::SpillMap;
use crate::store::Store;
use crate::store::container_ids::spill_key;
use crate::store::container_set::{ContainerNumber, RunCursor};
use crate::store::metadata::Scratch;
use crate::store::references::Reference;
use crate::types::{Chunk, ContainerId, Fingerprint, SessionId};

/// Snapshots that are compared in one pass: the bits of a word for each node and each container.
const PASS_SNAPSHOTS: usize = 64;
/// Most references that are looked at chunk by chunk (16 bytes each): a copy of each chunk may stand in another container.
const SUSPECTS_MAX: usize = 1 << 18;
const ADVICE: &str = "no snapshot needs it to be restored: `onefold repair objects` sets a damaged one aside; `onefold prune` does \
                      more work without it";
const ADVICE_LACKING: &str = "a quick prune may remove what the snapshot needs: prune without --quick, and report this: a \
                              program has written it so";

/// A snapshot with a manifest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listing {
    /// The snapshot.
    pub(super) session: SessionId,
    /// Number of its root node.
    pub(super) root: u32,
    /// Checksum of its manifest, by its commit.
    pub(super) manifest: [u8; 32],
}

/// Compares the manifests of snapshots with the graph of what they refer to. Returns false if that is not possible now, since a
/// collection is at work.
pub(super) fn compare(
    references: &mut References<'_, '_>,
    listings: &[Listing],
    (scratch, memory_bytes): (&Scratch, usize),
) -> Result<bool> {
    let mut graph = take(&mut references.graph);
    if listings.is_empty() {
        return Ok(true);
    }
    graph.nodes.finish()?;
    graph.edges.finish()?;
    if !graph.is_stable {
        return Ok(false);
    }
    let store = references.inventory.store.clone();
    let mut moved = scratch.map(&store.host, "moved containers", memory_bytes / 2)?;
    read_moved(&store, &mut moved)?;
    for group in listings.chunks(PASS_SNAPSHOTS) {
        let mut pass = Pass::read(&store, &graph, group, &mut moved, references.inventory.findings)?;
        let suspects = pass.follow(&graph)?;
        if !suspects.is_empty() {
            let unlisted = scratch.map(&store.host, "chunks of unlisted containers", memory_bytes / 2)?;
            pass.judge(&graph, &suspects, references, unlisted)?;
        }
        pass.report(&store, &graph, references.inventory.findings)?;
    }
    Ok(true)
}

fn read_moved(store: &Store, moved: &mut SpillMap) -> Result<()> {
    let mut outcome = Ok(());
    let _unread = store.read_moved(None, &mut |container, targets| {
        let mut value = Vec::new();
        for target in targets {
            put_container_id(&mut value, *target);
        }
        outcome = moved.insert(spill_key(container), &value);
        outcome.clone()
    });
    outcome
}

/// A reference to a container that a manifest does not list: a node, the container, the snapshots.
type Suspect = (u32, u32, u64);

/// One pass over the graph.
#[derive(Debug)]
struct Pass<'a> {
    snapshots: &'a [Listing],
    /// The snapshots whose manifests list a container, by its number; a bit for each.
    lists: Vec<u64>,
    /// The snapshots that reach a node, by its number.
    reach: Vec<u64>,
    /// For each snapshot whose manifest lacks containers, these.
    lacking: BTreeMap<usize, BTreeSet<u32>>,
}

impl<'a> Pass<'a> {
    /// Reads manifests. One that cannot be read, or that lists containers that are gone and of which nobody knows where their chunks
    /// are, is not compared.
    fn read(
        store: &Store,
        graph: &Graph,
        snapshots: &'a [Listing],
        moved: &mut SpillMap,
        findings: &mut Findings,
    ) -> Result<Self> {
        let mut lists = vec![0; graph.containers.numbers_end() as usize];
        let mut reach = vec![0; graph.nodes.len()];
        let knows_moved = !store.has_quarantined()?;
        for (bit, listing) in snapshots.iter().enumerate() {
            let bit = 1u64 << bit;
            let (mut near, mut is_known) = (RunCursor::default(), true);
            let mut list = |id: ContainerId| {
                let number = graph.containers.find_near(id, &mut near);
                if let Some(listed) = number.and_then(|number| lists.get_mut(number.0 as usize)) {
                    *listed |= bit;
                }
                number.is_some()
            };
            let read = store.read_manifest(listing.session, &listing.manifest, &mut |id, _| {
                if !list(id) {
                    let targets = moved.get(&spill_key(id))?.unwrap_or_default();
                    is_known &= knows_moved && !targets.is_empty();
                    let mut reader = Reader::new(&targets);
                    while reader.remaining() != 0 {
                        is_known &= list(reader.container_id().map_err(|error| error.of("spilled locations"))?);
                    }
                }
                Ok(())
            });
            let object = store.display(ObjectName::Manifest(listing.session));
            match read {
                Ok(()) if is_known => {
                    if let Some(reached) = reach.get_mut(listing.root as usize) {
                        *reached |= bit;
                    }
                }
                Ok(()) => {}
                Err(error @ Error::Missing { .. }) => {
                    findings.harmless(object, problem_of(&error), ADVICE);
                }
                Err(error) => {
                    findings.add_error(object, &error, ADVICE);
                }
            }
        }
        Ok(Self { snapshots, lists, reach, lacking: BTreeMap::new() })
    }

    fn listed(&self, container: u32) -> u64 {
        self.lists.get(container as usize).copied().unwrap_or(0)
    }

    /// Carries the snapshots from their roots to all nodes. Returns the references of data chunks to containers that are not
    /// listed.
    fn follow(&mut self, graph: &Graph) -> Result<Vec<Suspect>> {
        let mut suspects = Vec::new();
        // The node whose copies are looked at, the snapshots that list one of them, and one of them.
        let mut copies: Option<(u32, u64, u32)> = None;
        for index in (0..graph.edges.len()).rev() {
            let (node, edge) = Edge::decode(graph.edges.get(index)?);
            let reached = self.reach.get(node as usize).copied().unwrap_or(0);
            match edge {
                Edge::Node(below) => {
                    if let Some(below) = self.reach.get_mut(below as usize) {
                        *below |= reached;
                    }
                }
                Edge::Data(container) => {
                    let lacking = reached & !self.listed(container);
                    if lacking != 0 && suspects.len() < SUSPECTS_MAX {
                        suspects.push((node, container, lacking));
                    }
                }
                Edge::Copy(container) => {
                    let listed = self.listed(container);
                    copies = match copies.take() {
                        Some((before, all, _)) if before == node => Some((node, all | listed, container)),
                        before => {
                            self.judge_node(before);
                            Some((node, listed, container))
                        }
                    };
                }
            }
        }
        self.judge_node(copies);
        Ok(suspects)
    }

    fn judge_node(&mut self, copies: Option<(u32, u64, u32)>) {
        if let Some((node, listed, container)) = copies {
            let reached = self.reach.get(node as usize).copied().unwrap_or(0);
            self.lack(reached & !listed, container);
        }
    }

    fn lack(&mut self, snapshots: u64, container: u32) {
        for bit in (0..PASS_SNAPSHOTS).filter(|bit| snapshots >> bit & 1 == 1) {
            self.lacking.entry(bit).or_default().insert(container);
        }
    }

    /// Looks for copies of the chunks of suspect references in the containers that manifests list.
    fn judge(
        &mut self,
        graph: &Graph,
        suspects: &[Suspect],
        references: &mut References<'_, '_>,
        mut unlisted: SpillMap,
    ) -> Result<()> {
        let mask_of = |value: Option<Vec<u8>>| value.and_then(|value| Some(u64::from_le_bytes(*value.first_chunk()?)));
        for suspect in suspects {
            each_chunk(graph, suspect, references, &mut |chunk| {
                let mask = mask_of(unlisted.get(&chunk.0)?).unwrap_or(0) | suspect.2;
                unlisted.insert(chunk.0, &mask.to_le_bytes())
            })?;
        }
        let containers = &graph.containers;
        let opened = references.inventory.store.open_containers(containers, containers.numbers());
        for (number, opened) in containers.numbers().zip(opened) {
            let listed = self.listed(number.0);
            let Ok(container) = opened?.1 else { continue };
            for chunk in container.directory.chunks.iter().filter_map(|chunk| chunk.fingerprint) {
                if let Some(mask) = mask_of(unlisted.get(&chunk.0)?)
                    && mask & listed != 0
                {
                    unlisted.insert(chunk.0, &(mask & !listed).to_le_bytes())?;
                }
            }
        }
        for suspect in suspects {
            let mut lacking = 0;
            each_chunk(graph, suspect, references, &mut |chunk| {
                lacking |= mask_of(unlisted.get(&chunk.0)?).unwrap_or(0) & suspect.2;
                Ok(())
            })?;
            self.lack(lacking, suspect.1);
        }
        Ok(())
    }

    fn report(&self, store: &Store, graph: &Graph, findings: &mut Findings) -> Result<()> {
        for (bit, containers) in &self.lacking {
            let Some(listing) = self.snapshots.get(*bit) else { continue };
            let Some(first) = containers.first() else { continue };
            let container = store.display(graph.containers.name(ContainerNumber(*first))?);
            let others = match containers.len() - 1 {
                0 => String::new(),
                others => format!(", and {others} more"),
            };
            let problem = format!("does not list container {container}, which the snapshot needs{others}");
            findings.add(store.display(ObjectName::Manifest(listing.session)), problem, ADVICE_LACKING);
        }
        Ok(())
    }
}

/// Passes on the chunks of a node that were found in the container of a suspect reference.
fn each_chunk(
    graph: &Graph,
    (node, container, _): &Suspect,
    references: &mut References<'_, '_>,
    each: &mut dyn FnMut(Fingerprint) -> Result<()>,
) -> Result<()> {
    let (kind, name) = graph.node(*node)?;
    let mut chunks: Vec<(Chunk, Option<ContainerId>)> = Vec::new();
    references.reader.read_linked(kind, name)?.each_reference(&mut |reference| {
        if let Reference::Chunk(chunk, hint) = reference {
            chunks.push((chunk, hint));
        }
        Ok(())
    })?;
    for (chunk, hint) in chunks {
        let found = references.judge_chunk(chunk, hint)?.found();
        if found == Some(*container) {
            each(chunk.fingerprint)?;
        }
    }
    Ok(())
}
