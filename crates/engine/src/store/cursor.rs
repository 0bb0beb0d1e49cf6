//! Walking directories and recipes as they are stored, in bounded memory.

use std::collections::VecDeque;

use crate::error::{Error, Result};
use crate::io::tree::EntryKind;
use crate::recipe::BuiltRecipe;
use crate::store::metadata::{HintedNode, MetadataReader};
use crate::tree::EntryNotes;
use crate::tree::{Child, Content, Entry, TreeNode};
use crate::types::{Chunk, ContainerId, Fingerprint, Timestamp};

/// An entry, with a hint for each chunk of its recipe.
#[derive(Clone, Debug)]
pub struct HintedEntry {
    /// The entry.
    pub entry: Entry,
    /// One for each chunk in the entry itself.
    pub hints: Vec<Option<ContainerId>>,
}

impl HintedEntry {
    /// Returns a file that no source has. Owner and group are 0.
    pub fn file(name: &[u8], mode: u32, mtime: Timestamp, contents: BuiltRecipe) -> Self {
        let BuiltRecipe { recipe, hints } = contents;
        let content = Content::File { ctime: mtime, inode: 0, recipe };
        Self { entry: plain(name, EntryKind::File, mode, mtime, content), hints }
    }

    /// Returns a directory that no source has. Owner and group are 0.
    pub fn directory(name: &[u8], mode: u32, mtime: Timestamp, node: Fingerprint) -> Self {
        let content = Content::Directory { node };
        Self { entry: plain(name, EntryKind::Directory, mode, mtime, content), hints: Vec::new() }
    }
}

fn plain(name: &[u8], kind: EntryKind, mode: u32, mtime: Timestamp, content: Content) -> Entry {
    Entry {
        name: name.to_vec(),
        kind,
        mode,
        uid: 0,
        gid: 0,
        mtime,
        xattrs: Vec::new(),
        link: None,
        content,
        notes: EntryNotes::default(),
    }
}

/// Reads the nodes of directories' lists.
pub trait NodeReader {
    /// Reads a node.
    fn read_node(&mut self, node: Fingerprint) -> Result<HintedNode>;
}

impl NodeReader for MetadataReader {
    fn read_node(&mut self, node: Fingerprint) -> Result<HintedNode> {
        Self::read_node(self, node)
    }
}

/// Hands out the entries of one directory in the order of their names, holding one node a level.
///
/// Every node below the root must begin with the name by which the node above refers to it, and must end before the next
/// node begins. A forged list therefore takes no more reads than it has references. The default is an empty list.
#[derive(Debug, Default)]
pub struct DirectoryCursor {
    /// The root of the list, until it is read.
    root: Option<Fingerprint>,
    /// Nodes to be read, the next one last. Their first names ascend from the last to the first, and all entries read so
    /// far come before them.
    pending: Vec<PendingNode>,
    entries: VecDeque<HintedEntry>,
}

/// Next item of a directory's list.
#[derive(Debug)]
pub enum Head<'a> {
    /// An entry.
    Entry(&'a Entry),
    /// A node that was not read yet.
    Node {
        /// Its name.
        node: Fingerprint,
        /// Its level and first name; `None` for the root, of which nothing is known before it is read.
        known: Option<(u8, &'a [u8])>,
    },
    /// The end.
    End,
}

/// A node below the root, with what the node above says about it.
#[derive(Debug)]
struct PendingNode {
    node: Fingerprint,
    level: u8,
    first_name: Vec<u8>,
}

impl DirectoryCursor {
    /// Starts at the root of a directory's list.
    pub fn new(root: Fingerprint) -> Self {
        Self { root: Some(root), pending: Vec::new(), entries: VecDeque::new() }
    }

    /// Returns the next entry; `None` at the end. After an error, the cursor is past the node that cannot be read.
    pub fn next(&mut self, reader: &mut dyn NodeReader) -> Result<Option<HintedEntry>> {
        loop {
            if let Some(hinted) = self.entries.pop_front() {
                return Ok(Some(hinted));
            }
            if self.expand(reader)?.is_none() {
                return Ok(None);
            }
        }
    }

    /// Returns what comes next, without reading.
    pub(crate) fn head(&self) -> Head<'_> {
        match (self.entries.front(), self.root, self.pending.last()) {
            (Some(hinted), _, _) => Head::Entry(&hinted.entry),
            (None, Some(node), _) => Head::Node { node, known: None },
            (None, None, Some(next)) => Head::Node { node: next.node, known: Some((next.level, &next.first_name)) },
            (None, None, None) => Head::End,
        }
    }

    /// Takes the next entry if it has been read.
    pub(crate) fn take_entry(&mut self) -> Option<HintedEntry> {
        self.entries.pop_front()
    }

    /// Skips the node that comes next, without reading it.
    pub(crate) fn skip_node(&mut self) {
        if self.root.take().is_none() {
            self.pending.pop();
        }
    }

    /// Passes over entries whose names come before `name` and returns the one with that name, if there is one. Names must
    /// be asked for in ascending order. Nodes that can hold no such entry are not read.
    pub fn find(&mut self, name: &[u8], reader: &mut dyn NodeReader) -> Result<Option<HintedEntry>> {
        loop {
            let before = self.entries.partition_point(|hinted| hinted.entry.name.as_slice() < name);
            self.entries.drain(..before);
            match self.entries.front() {
                Some(hinted) if hinted.entry.name == name => return Ok(self.entries.pop_front()),
                Some(_) => return Ok(None),
                None => {}
            }
            // A node ends where the next one begins.
            while self.pending.iter().rev().nth(1).is_some_and(|second| second.first_name.as_slice() <= name) {
                self.pending.pop();
            }
            if self.begins_after(name) || self.expand(reader)?.is_none() {
                return Ok(None);
            }
        }
    }

    /// Returns true if what has been read so far shows that no entry after the last one handed out has this name.
    pub(crate) fn rules_out(&self, name: &[u8]) -> bool {
        match self.entries.binary_search_by(|hinted| hinted.entry.name.as_slice().cmp(name)) {
            Ok(_) => false,
            Err(at) => at < self.entries.len() || self.begins_after(name),
        }
    }

    /// Returns true if all that is still to be read comes after a name.
    fn begins_after(&self, name: &[u8]) -> bool {
        self.root.is_none() && self.pending.last().is_none_or(|next| name < next.first_name.as_slice())
    }

    /// Replaces the next node by its contents; `None` if no node is left. Returns the node's chunk; its length includes the
    /// hints. After an error, the cursor is behind the node.
    pub(crate) fn expand(&mut self, reader: &mut dyn NodeReader) -> Result<Option<Chunk>> {
        let next = match self.root.take() {
            Some(root) => Err(root),
            None => match self.pending.pop() {
                Some(next) => Ok(next),
                None => return Ok(None),
            },
        };
        let fingerprint = next.as_ref().map_or_else(|root| *root, |next| next.node);
        let HintedNode { node, hints, len } = reader.read_node(fingerprint)?;
        let end = self.pending.last().map(|after| after.first_name.as_slice());
        if let Some(reason) = next.ok().and_then(|next| next.contradiction(&node, end)) {
            return Err(Error::damaged(format!("tree {fingerprint}"), reason));
        }
        self.take(node, hints);
        Ok(Some(Chunk { fingerprint, len }))
    }

    /// Puts what is in a node before everything that is still to be read.
    fn take(&mut self, node: TreeNode, hints: Vec<Option<ContainerId>>) {
        match node {
            TreeNode::Children { level, children } => {
                let below = |child: Child| PendingNode {
                    node: child.node,
                    level: level.saturating_sub(1),
                    first_name: child.first_name,
                };
                self.pending.extend(children.into_iter().rev().map(below));
            }
            TreeNode::Entries(entries) => {
                let mut hints = hints.into_iter();
                self.entries.extend(entries.into_iter().map(|entry| {
                    let count = match &entry.content {
                        Content::File { recipe, .. } => recipe.chunk_count(),
                        Content::Directory { .. } | Content::Symlink { .. } | Content::Special { .. } => 0,
                    };
                    HintedEntry { hints: hints.by_ref().take(count).collect(), entry }
                }));
            }
        }
    }
}

impl PendingNode {
    /// Returns how the node that was read contradicts what refers to it, or the node after it, which begins with `end`.
    fn contradiction(&self, read: &TreeNode, end: Option<&[u8]>) -> Option<&'static str> {
        let (level, first, last) = match read {
            TreeNode::Children { level, children } => (
                *level,
                children.first().map(|child| &child.first_name),
                children.last().map(|child| &child.first_name),
            ),
            TreeNode::Entries(entries) => {
                (0, entries.first().map(|entry| &entry.name), entries.last().map(|entry| &entry.name))
            }
        };
        if level != self.level {
            return Some("stands at a wrong level");
        }
        let (Some(first), Some(last)) = (first, last) else {
            return Some("is empty, and not the only node of its directory");
        };
        if *first != self.first_name {
            return Some("does not begin with the name by which it is referred to");
        }
        end.is_some_and(|end| end <= last.as_slice()).then_some("names not in order")
    }
}

#[cfg(test)]
pub(in crate::store) mod tests {
    use super::*;
    use crate::codec::{put_string, put_varint};
    use crate::crypto::{Keys, MasterKey};
    use crate::object::config::CutRule;
    use crate::recipe::MetadataSink;
    use crate::recipe::builder::tests::MemorySink;
    use crate::tree::builder::{TreeBuilder, TreeCut};
    use crate::tree::decode_node;
    use crate::tree::format::{LEVELS_MAX, tests::entry};
    use crate::types::{ChunkKind, RepositoryId};

    /// Nodes in memory.
    #[derive(Default)]
    pub(in crate::store) struct Nodes {
        sink: MemorySink,
        reads: usize,
    }

    impl NodeReader for Nodes {
        fn read_node(&mut self, node: Fingerprint) -> Result<HintedNode> {
            self.reads += 1;
            let missing = || Error::MissingChunk { fingerprint: node.to_string() };
            let (contents, _) = self.sink.0.get(&node).ok_or_else(missing)?;
            let node = decode_node(contents).map_err(|error| error.of("node"))?;
            Ok(HintedNode { node, hints: Vec::new(), len: 0 })
        }
    }

    impl Nodes {
        /// Stores a directory as a backup does; returns its root.
        fn directory(&mut self, names: impl Iterator<Item = String>) -> Fingerprint {
            let keys = Keys::derive(&MasterKey([1; 32]), RepositoryId([2; 16]));
            let cut = TreeCut { rule: CutRule { min: 16, target: 16, max: 64 }, node_bytes: 64 << 10 };
            let mut builder = TreeBuilder::new(cut);
            for name in names {
                builder.push(&link(&name), &[], &keys, &mut self.sink).unwrap();
            }
            builder.finish(&keys, &mut self.sink).unwrap()
        }

        /// Stores a node of entries.
        pub(in crate::store) fn leaf(&mut self, entries: &[Entry]) -> Fingerprint {
            let mut contents = vec![0];
            put_varint(&mut contents, entries.len() as u64);
            for entry in entries {
                entry.encode(&mut contents);
            }
            self.sink.store(ChunkKind::Tree, &contents, &[]).unwrap()
        }

        /// Stores a node of nodes.
        pub(in crate::store) fn list(&mut self, level: u8, children: &[(&str, Fingerprint)]) -> Fingerprint {
            let mut contents = vec![level];
            put_varint(&mut contents, children.len() as u64);
            for (first_name, node) in children {
                contents.extend_from_slice(&node.0);
                put_varint(&mut contents, 1);
                put_string(&mut contents, first_name.as_bytes());
            }
            self.sink.store(ChunkKind::Tree, &contents, &[]).unwrap()
        }

        /// Returns the names that a walk hands out, and how many nodes it cannot take.
        fn walk(&mut self, root: Fingerprint) -> (Vec<String>, usize) {
            let (mut cursor, mut names, mut refused) = (DirectoryCursor::new(root), Vec::new(), 0);
            loop {
                match cursor.next(self) {
                    Ok(Some(hinted)) => names.push(String::from_utf8(hinted.entry.name).unwrap()),
                    Ok(None) => return (names, refused),
                    Err(_) => refused += 1,
                }
                assert!(self.reads < 10_000, "the walk has no end");
            }
        }
    }

    pub(in crate::store) fn link(name: &str) -> Entry {
        entry(name, Content::Symlink { target: b"x".to_vec() }, EntryKind::Symlink)
    }

    #[test]
    fn a_list_that_refers_to_its_nodes_again_and_again_ends() {
        let mut nodes = Nodes::default();
        let missing = Fingerprint([9; 32]);
        for bottom in [nodes.leaf(&[]), nodes.leaf(&["a"].map(link)), nodes.leaf(&["a", "c"].map(link)), missing] {
            for second in ["b", "c"] {
                let mut root = bottom;
                for level in 1..=LEVELS_MAX {
                    root = nodes.list(level, &[("a", root), (second, root)]);
                }
                nodes.reads = 0;
                let (names, refused) = nodes.walk(root);
                assert!(nodes.reads <= 2 * usize::from(LEVELS_MAX) + 1, "{} nodes read", nodes.reads);
                assert!(names.len() <= 2 && 0 < refused, "{names:?}, {refused}");
            }
        }
    }

    #[test]
    fn nodes_that_contradict_the_list_are_refused_and_the_others_handed_out() {
        let mut nodes = Nodes::default();
        let mut leaf = |names: &[&str]| nodes.leaf(&names.iter().map(|name| link(name)).collect::<Vec<_>>());
        let (empty, a, b, late) = (leaf(&[]), leaf(&["a"]), leaf(&["b", "c"]), leaf(&["d"]));
        let inner = nodes.list(1, &[("a", a), ("b", b)]);
        for (level, children, expected) in [
            (1, [("a", a), ("d", late)], ("ad", 0)),
            (1, [("a", empty), ("d", late)], ("d", 1)),
            (1, [("a", b), ("d", late)], ("d", 1)),
            (1, [("b", b), ("c", late)], ("", 2)),
            (1, [("a", inner), ("d", late)], ("d", 1)),
            (2, [("a", inner), ("d", late)], ("abc", 1)),
            (2, [("a", inner), ("b", b)], ("", 2)),
        ] {
            let root = nodes.list(level, &children);
            let (names, refused) = nodes.walk(root);
            assert_eq!((names.concat().as_str(), refused), expected, "level {level}, {children:?}");
        }
        // The root of a list may be empty: it is that of an empty directory.
        assert_eq!(nodes.walk(empty), (Vec::new(), 0));
    }

    #[test]
    fn looking_names_up_takes_a_path_of_nodes_each_and_ascending_ones_a_walk() {
        let name = |number: u32| format!("{number:08}");
        let mut nodes = Nodes::default();
        let root = nodes.directory((0..5000).map(|number| name(2 * number)));
        nodes.reads = 0;
        assert_eq!(nodes.walk(root).0.len(), 5000);
        let all = std::mem::take(&mut nodes.reads);
        assert!(100 < all, "{all} nodes are too few for this test");
        let mut ascending = DirectoryCursor::new(root);
        for number in 0..10_000 {
            let expected = (number % 2 == 0).then(|| name(number).into_bytes());
            let found = ascending.find(name(number).as_bytes(), &mut nodes).unwrap();
            assert_eq!(found.map(|hinted| hinted.entry.name), expected);
        }
        assert!(nodes.reads <= all, "{} of {all} nodes read", nodes.reads);
        for number in (0..10_000).step_by(37) {
            nodes.reads = 0;
            let found = DirectoryCursor::new(root).find(name(number).as_bytes(), &mut nodes).unwrap();
            assert_eq!(found.is_some(), number % 2 == 0);
            assert!(nodes.reads <= 5, "{} of {all} nodes read for one name", nodes.reads);
        }
        assert!(DirectoryCursor::new(root).find(b"9", &mut nodes).unwrap().is_none());
    }

    /// The question that a restore asks before it writes a file under another name.
    #[test]
    fn the_next_node_rules_a_name_out_that_comes_before_it() {
        let mut nodes = Nodes::default();
        let root = nodes.directory((0..2000).map(|number| format!("{number:08}")));
        let mut cursor = DirectoryCursor::new(root);
        assert!(!cursor.rules_out(b"00000000.partial"));
        while let Some(hinted) = cursor.next(&mut nodes).unwrap() {
            let name = hinted.entry.name;
            assert!(cursor.rules_out(&[&name, b".partial".as_slice()].concat()));
        }
    }
}
