//! Building the list of a directory in bounded memory.

use crate::codec::{put_string, put_varint};
use crate::crypto::Keys;
use crate::error::Result;
use crate::object::config::CutRule;
use crate::recipe::{HintTable, MetadataSink};
use crate::tree::format::{Child, Entry};
use crate::types::{ChunkKind, ContainerId, Fingerprint};

/// How directories are cut into nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeCut {
    /// By number of entries, and the keyed hash of the last one's name.
    pub(crate) rule: CutRule,
    /// By encoded bytes, whatever the names.
    pub(crate) node_bytes: usize,
}

/// Takes the entries of one directory in the order of their names and hands out nodes as they are cut.
#[derive(Debug)]
pub(crate) struct TreeBuilder {
    cut: TreeCut,
    open: OpenNode,
    hints: HintTable,
    /// Open nodes of the levels above, the lowest first.
    levels: Vec<Vec<Child>>,
}

#[derive(Debug, Default)]
struct OpenNode {
    encoded: Vec<u8>,
    count: usize,
    first_name: Vec<u8>,
}

impl TreeBuilder {
    /// Starts a directory.
    pub(crate) fn new(cut: TreeCut) -> Self {
        Self { cut, open: OpenNode::default(), hints: HintTable::default(), levels: Vec::new() }
    }

    /// Appends an entry, whose name follows those before, with a hint for each chunk it refers to.
    pub(crate) fn push(
        &mut self,
        entry: &Entry,
        hints: &[Option<ContainerId>],
        keys: &Keys,
        sink: &mut dyn MetadataSink,
    ) -> Result<()> {
        if self.open.count == 0 {
            self.open.first_name.clone_from(&entry.name);
        }
        entry.encode(&mut self.open.encoded);
        self.open.count += 1;
        self.hints.extend(hints.iter().copied());
        let value = keys.tree_cut_value(&entry.name);
        if self.cut.rule.cuts(self.open.count, value) || self.cut.node_bytes <= self.open.encoded.len() {
            let child = self.store_entries(sink)?;
            self.append(child, 0, keys, sink)?;
        }
        Ok(())
    }

    /// Ends the directory and returns the root of its list.
    pub(crate) fn finish(mut self, keys: &Keys, sink: &mut dyn MetadataSink) -> Result<Fingerprint> {
        if self.open.count > 0 || self.levels.is_empty() {
            let child = self.store_entries(sink)?;
            if self.levels.is_empty() {
                return Ok(child.node);
            }
            self.append(child, 0, keys, sink)?;
        }
        let mut level = 0;
        loop {
            let is_top = level + 1 == self.levels.len();
            let children = self.levels.get_mut(level).map(std::mem::take).unwrap_or_default();
            match children.as_slice() {
                [only] if is_top => return Ok(only.node),
                [] => {}
                _ => {
                    let child = store_children(level, &children, sink)?;
                    self.level_mut(level + 1).push(child);
                }
            }
            level += 1;
        }
    }

    fn append(&mut self, child: Child, level: usize, keys: &Keys, sink: &mut dyn MetadataSink) -> Result<()> {
        let (mut child, mut level) = (child, level);
        loop {
            let cut = self.cut;
            let value = keys.tree_cut_value(&child.first_name);
            let children = self.level_mut(level);
            children.push(child);
            let bytes: usize = children.iter().map(|child| child.first_name.len() + 40).sum();
            if !cut.rule.cuts(children.len(), value) && bytes < cut.node_bytes {
                return Ok(());
            }
            let children = std::mem::take(children);
            child = store_children(level, &children, sink)?;
            level += 1;
        }
    }

    fn level_mut(&mut self, level: usize) -> &mut Vec<Child> {
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, Vec::new);
        }
        self.levels.get_mut(level).expect("resized above")
    }

    fn store_entries(&mut self, sink: &mut dyn MetadataSink) -> Result<Child> {
        let open = std::mem::take(&mut self.open);
        let mut contents = vec![0];
        put_varint(&mut contents, open.count as u64);
        contents.extend_from_slice(&open.encoded);
        let mut hints = Vec::new();
        self.hints.encode(&mut hints);
        self.hints.clear();
        let node = sink.store(ChunkKind::Tree, &contents, &hints)?;
        Ok(Child { node, entries: open.count as u64, first_name: open.first_name })
    }
}

/// Stores a list of nodes; `level` is theirs, counted from 0 above entries.
fn store_children(level: usize, children: &[Child], sink: &mut dyn MetadataSink) -> Result<Child> {
    let level = u8::try_from(level + 1).expect("directories of 2^64 entries are far less deep");
    let mut contents = vec![level];
    put_varint(&mut contents, children.len() as u64);
    for child in children {
        contents.extend_from_slice(&child.node.0);
        put_varint(&mut contents, child.entries);
        put_string(&mut contents, &child.first_name);
    }
    let node = sink.store(ChunkKind::Tree, &contents, &[])?;
    let first_name = children.first().map(|child| child.first_name.clone()).unwrap_or_default();
    Ok(Child { node, entries: children.iter().map(|child| child.entries).sum(), first_name })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::MasterKey;
    use crate::io::tree::EntryKind;
    use crate::recipe::builder::tests::MemorySink;
    use crate::tree::format::{Content, TreeNode, decode_node, tests::entry};
    use crate::types::RepositoryId;

    fn flatten(node: Fingerprint, sink: &MemorySink, out: &mut Vec<Entry>) {
        match decode_node(&sink.0[&node].0).unwrap() {
            TreeNode::Entries(entries) => out.extend(entries),
            TreeNode::Children { children, .. } => children.iter().for_each(|child| flatten(child.node, sink, out)),
        }
    }

    fn build(names: impl Iterator<Item = u32>) -> (Fingerprint, MemorySink, Vec<Entry>) {
        let keys = Keys::derive(&MasterKey([1; 32]), RepositoryId([2; 16]));
        let cut = TreeCut { rule: CutRule { min: 4, target: 4, max: 16 }, node_bytes: 4096 };
        let mut builder = TreeBuilder::new(cut);
        let mut sink = MemorySink::default();
        let mut expected = Vec::new();
        for name in names {
            let content = Content::Symlink { target: b"x".to_vec() };
            let entry = entry(&format!("{name:08}"), content, EntryKind::Symlink);
            builder.push(&entry, &[], &keys, &mut sink).unwrap();
            expected.push(entry);
        }
        (builder.finish(&keys, &mut sink).unwrap(), sink, expected)
    }

    #[test]
    fn directories_of_any_size_come_back_in_order() {
        for count in [0, 1, 4, 5, 16, 17, 100, 5000] {
            let (root, sink, expected) = build(0..count);
            let mut entries = Vec::new();
            flatten(root, &sink, &mut entries);
            assert_eq!(entries, expected);
        }
    }

    #[test]
    fn a_new_entry_costs_a_path_of_nodes_not_the_directory() {
        let (_, old, _) = build((0..5000).map(|name| 2 * name));
        let (_, new, _) = build((0..5000).map(|name| 2 * name).chain([9999]).filter(|name| *name != 4000));
        let fresh = new.0.keys().filter(|node| !old.0.contains_key(*node)).count();
        assert!(fresh < 16, "{fresh} of {} nodes are new", new.0.len());
    }
}
