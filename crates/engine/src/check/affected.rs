//! Which files of which snapshots a finding hits: a second way through the trees that are not sound, by path.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::check::findings::{AffectedFile, Extent};
use crate::check::references::{References, Soundness};
use crate::error::{Error, Result};
use crate::recipe::{Recipe, RecipeItem};
use crate::store::cursor::HintedEntry;
use crate::store::metadata::HintedNode;
use crate::tree::{Content, TreeNode};
use crate::types::{ContainerId, Fingerprint, SessionId};

/// A node on the way.
#[derive(Debug)]
struct Step {
    /// The directory that it lists, or a part of.
    path: PathBuf,
    node: Fingerprint,
    /// Of a part of a directory's list: the first name, and how many entries there are.
    part: Option<(Vec<u8>, u64)>,
}

/// Goes through a snapshot whose tree is not sound and notes with every finding the files it hits.
pub(super) fn find_affected(
    references: &mut References<'_, '_>,
    snapshot: SessionId,
    tree: Fingerprint,
    interrupted: &dyn Fn() -> bool,
) -> Result<()> {
    let mut todo = vec![Step { path: PathBuf::from("/"), node: tree, part: None }];
    while let Some(step) = todo.pop() {
        if interrupted() {
            return Err(Error::Interrupted);
        }
        match references.soundness(step.node)? {
            Soundness::Sound => {}
            Soundness::Lost => {
                if let Some(number) = references.inventory.lost(step.node)? {
                    references.inventory.findings.affect(number, step.lost(snapshot));
                }
            }
            Soundness::Hit => descend(references, snapshot, &step, &mut todo)?,
        }
    }
    Ok(())
}

/// Looks into a node below which something is lost.
fn descend(references: &mut References<'_, '_>, snapshot: SessionId, step: &Step, todo: &mut Vec<Step>) -> Result<()> {
    // The next check reports a node that could be read before and cannot be read now.
    let Ok(HintedNode { node, hints, .. }) = references.reader.read_node(step.node) else { return Ok(()) };
    let first = todo.len();
    match node {
        TreeNode::Children { children, .. } => todo.extend(children.into_iter().map(|child| {
            let part = Some((child.first_name, child.entries));
            Step { path: step.path.clone(), node: child.node, part }
        })),
        TreeNode::Entries(entries) => {
            let mut hints = hints.into_iter();
            for entry in entries {
                let path = step.path.join(OsStr::from_bytes(&entry.name));
                match &entry.content {
                    Content::Directory { node } => todo.push(Step { path, node: *node, part: None }),
                    Content::File { recipe, .. } => {
                        let hints = hints.by_ref().take(recipe.chunk_count()).collect();
                        judge_file(references, snapshot, &path, &HintedEntry { entry, hints })?;
                    }
                    Content::Symlink { .. } | Content::Special { .. } => {}
                }
            }
        }
    }
    // The next one last, since they are taken from the end.
    if let Some(added) = todo.get_mut(first..) {
        added.reverse();
    }
    Ok(())
}

impl Step {
    fn lost(self, snapshot: SessionId) -> AffectedFile {
        match self.part {
            None => AffectedFile { snapshot, path: self.path, extent: Extent::Directory },
            Some((first_name, entries)) => {
                let path = self.path.join(OsStr::from_bytes(&first_name));
                AffectedFile { snapshot, path, extent: Extent::Run { entries } }
            }
        }
    }
}

/// Notes a file with every finding that hits it.
fn judge_file(references: &mut References<'_, '_>, snapshot: SessionId, path: &Path, file: &HintedEntry) -> Result<()> {
    let Content::File { recipe, .. } = &file.entry.content else { return Ok(()) };
    let mut numbers = BTreeSet::new();
    let mut segments = Vec::new();
    judge_items(references, recipe, &file.hints, &mut numbers, &mut segments)?;
    while let Some(segment) = segments.pop() {
        match references.soundness(segment)? {
            Soundness::Sound => {}
            Soundness::Lost => numbers.extend(references.inventory.lost(segment)?),
            Soundness::Hit => {
                let Ok((recipe, hints)) = references.reader.read_segment(segment) else { continue };
                judge_items(references, &recipe, &hints, &mut numbers, &mut segments)?;
            }
        }
    }
    for number in numbers {
        let file = AffectedFile { snapshot, path: path.to_path_buf(), extent: Extent::File };
        references.inventory.findings.affect(number, file);
    }
    Ok(())
}

fn judge_items(
    references: &mut References<'_, '_>,
    recipe: &Recipe,
    hints: &[Option<ContainerId>],
    numbers: &mut BTreeSet<usize>,
    segments: &mut Vec<Fingerprint>,
) -> Result<()> {
    let mut hints = hints.iter().copied();
    for item in &recipe.items {
        match *item {
            RecipeItem::Hole { .. } => {}
            RecipeItem::Chunk(chunk) => {
                numbers.extend(references.judge_chunk(chunk, hints.next().flatten())?.lost());
            }
            RecipeItem::Segment { fingerprint, .. } => segments.push(fingerprint),
        }
    }
    Ok(())
}
