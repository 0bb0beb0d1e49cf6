//! The encoded form of tree nodes.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::codec::{Decoded, Reader, put_string, put_timestamp, put_varint};
use crate::io::tree::{AccessTime, EntryKind, Metadata, Xattr};
use crate::object::config::NODE_ITEMS_MAX;
use crate::recipe::format::Recipe;
use crate::types::{FINGERPRINT_LEN, Fingerprint, Timestamp};

/// Maximum length of an entry's name, in bytes.
pub(crate) const NAME_LEN_MAX: usize = 255;
/// Maximum length of a symbolic link's target, in bytes.
const SYMLINK_LEN_MAX: usize = 64 << 10;
/// Greatest level of a node.
pub(crate) const LEVELS_MAX: u8 = 40;

const FLAG_XATTRS: u8 = 1;
const FLAG_LINK: u8 = 2;
const FLAG_EXTENSION: u8 = 4;

/// Fields of an extension.
const TAG_ACCESS_TIME: u8 = 1;
const TAG_INCOMPLETE: u8 = 2;

/// The inode that the hard links of an entry share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Link {
    /// Device of the inode.
    pub device: u64,
    /// The inode.
    pub inode: u64,
    /// Number of hard links in the source, inside and outside of the backed-up paths.
    pub links: u64,
}

/// The part of an entry that depends on its kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// A regular file.
    File {
        /// Time of the inode's last change. With the default comparison, a backup reads the file again if it differs.
        ctime: Timestamp,
        /// Inode number. A different number means a different file.
        inode: u64,
        /// Contents of the file.
        recipe: Recipe,
    },
    /// A directory, represented by the root node of its list.
    Directory {
        /// Fingerprint of the root node.
        node: Fingerprint,
    },
    /// A symbolic link.
    Symlink {
        /// The path that it contains.
        target: Vec<u8>,
    },
    /// A FIFO, socket or device.
    Special {
        /// Device number, 0 for a FIFO or socket.
        rdev: u64,
    },
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Name within the directory.
    pub name: Vec<u8>,
    /// Kind of the entry.
    pub kind: EntryKind,
    /// Permission, set-id and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last modification.
    pub mtime: Timestamp,
    /// Extended attributes, ACLs among them.
    pub xattrs: Vec<Xattr>,
    /// The shared inode, if the entry has several hard links.
    pub link: Option<Link>,
    /// The part that depends on the kind.
    pub content: Content,
    /// Notes that not every backup makes.
    pub notes: EntryNotes,
}

/// Notes about an entry, which not every backup makes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EntryNotes {
    /// Last access.
    pub atime: Option<Timestamp>,
    /// True for a directory of which something could not be read, so that its list lacks names.
    pub is_incomplete: bool,
}

impl Entry {
    /// Returns the length of a file in bytes, 0 for the other kinds.
    pub fn size(&self) -> u64 {
        match &self.content {
            Content::File { recipe, .. } => recipe.len(),
            Content::Directory { .. } | Content::Symlink { .. } | Content::Special { .. } => 0,
        }
    }

    /// Returns the metadata in the form that a file system reports. A restore sets owner, mode and times from it.
    pub(crate) fn metadata(&self) -> Metadata {
        let (ctime, inode) = match &self.content {
            Content::File { ctime, inode, .. } => (*ctime, *inode),
            Content::Directory { .. } | Content::Symlink { .. } | Content::Special { .. } => (Timestamp::default(), 0),
        };
        let rdev = match &self.content {
            Content::Special { rdev } => *rdev,
            Content::File { .. } | Content::Directory { .. } | Content::Symlink { .. } => 0,
        };
        let (device, links) = self.link.map_or((0, 1), |link| (link.device, link.links));
        Metadata {
            kind: self.kind,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            mtime: self.mtime,
            atime: AccessTime(self.notes.atime.unwrap_or(self.mtime)),
            ctime,
            size: self.size(),
            device,
            inode: self.link.map_or(inode, |link| link.inode),
            links,
            rdev,
        }
    }

    /// Appends the encoded form.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_string(out, &self.name);
        out.push(kind_code(self.kind));
        let xattrs = if self.xattrs.is_empty() { 0 } else { FLAG_XATTRS };
        let link = if self.link.is_some() { FLAG_LINK } else { 0 };
        let extension = if self.notes == EntryNotes::default() { 0 } else { FLAG_EXTENSION };
        out.push(xattrs | link | extension);
        for number in [self.mode, self.uid, self.gid] {
            put_varint(out, number.into());
        }
        put_timestamp(out, self.mtime);
        if !self.xattrs.is_empty() {
            put_varint(out, self.xattrs.len() as u64);
            for xattr in &self.xattrs {
                put_string(out, xattr.name.as_bytes());
                put_string(out, &xattr.value);
            }
        }
        if let Some(link) = self.link {
            for number in [link.device, link.inode, link.links] {
                put_varint(out, number);
            }
        }
        match &self.content {
            Content::File { ctime, inode, recipe } => {
                put_timestamp(out, *ctime);
                put_varint(out, *inode);
                recipe.encode(out);
            }
            Content::Directory { node } => out.extend_from_slice(&node.0),
            Content::Symlink { target } => put_string(out, target),
            Content::Special { rdev } => put_varint(out, *rdev),
        }
        if extension != 0 {
            self.notes.encode(out);
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Decoded<Self> {
        let name = reader.string(NAME_LEN_MAX)?;
        if !is_plain_name(name) {
            return Err(reader.error("invalid name of an entry"));
        }
        let name = name.to_vec();
        let code = reader.u8()?;
        let kind = kind_from_code(code).ok_or_else(|| reader.error("unknown kind of entry"))?;
        let flags = reader.u8()?;
        if flags & !(FLAG_XATTRS | FLAG_LINK | FLAG_EXTENSION) != 0 {
            return Err(reader.error("unknown flags"));
        }
        let (mode, uid, gid) = (reader.varint32()?, reader.varint32()?, reader.varint32()?);
        if mode & !0o7777 != 0 {
            return Err(reader.error("mode out of range"));
        }
        let mtime = reader.timestamp()?;
        let xattrs = if flags & FLAG_XATTRS == 0 { Vec::new() } else { decode_xattrs(reader)? };
        let link = if flags & FLAG_LINK == 0 {
            None
        } else {
            Some(Link { device: reader.varint()?, inode: reader.varint()?, links: reader.varint()? })
        };
        let content = decode_content(reader, kind)?;
        let notes = if flags & FLAG_EXTENSION == 0 { EntryNotes::default() } else { EntryNotes::decode(reader)? };
        Ok(Self { name, kind, mode, uid, gid, mtime, xattrs, link, content, notes })
    }
}

impl EntryNotes {
    /// Appends an extension: fields of a tag and a string each.
    fn encode(self, out: &mut Vec<u8>) {
        let mut fields = Vec::new();
        if let Some(atime) = self.atime {
            let mut value = Vec::new();
            put_timestamp(&mut value, atime);
            fields.push(TAG_ACCESS_TIME);
            put_string(&mut fields, &value);
        }
        if self.is_incomplete {
            fields.extend([TAG_INCOMPLETE, 0]);
        }
        put_string(out, &fields);
    }

    /// Reads an extension. Passes over fields that a later version may write.
    fn decode(reader: &mut Reader<'_>) -> Decoded<Self> {
        let mut fields = Reader::new(reader.string(usize::MAX)?);
        let mut notes = Self::default();
        while 0 < fields.remaining() {
            let tag = fields.u8()?;
            let mut value = Reader::new(fields.string(usize::MAX)?);
            match tag {
                TAG_ACCESS_TIME => notes.atime = Some(value.timestamp()?),
                TAG_INCOMPLETE => notes.is_incomplete = true,
                _ => {}
            }
        }
        Ok(notes)
    }
}

/// Refuses an entry that no reader would accept, or that takes more than `bytes_max` bytes.
pub(crate) fn check_entry(entry: &Entry, bytes_max: usize) -> Result<(), &'static str> {
    if !is_plain_name(&entry.name) || NAME_LEN_MAX < entry.name.len() {
        return Err("the name of an entry is empty, too long, or not plain");
    }
    let is_of_kind = match &entry.content {
        Content::File { .. } => entry.kind == EntryKind::File,
        Content::Directory { .. } => entry.kind == EntryKind::Directory,
        Content::Symlink { .. } => entry.kind == EntryKind::Symlink,
        Content::Special { .. } => !matches!(entry.kind, EntryKind::File | EntryKind::Directory | EntryKind::Symlink),
    };
    if !is_of_kind || entry.mode & !0o7777 != 0 {
        return Err("the kind or mode of an entry contradicts its content");
    }
    let mut encoded = Vec::new();
    entry.encode(&mut encoded);
    if bytes_max < encoded.len() { Err("an entry is too long") } else { Ok(()) }
}

/// Returns true if a directory can hold the name: it is not empty, `.` or `..`, and contains neither `/` nor NUL.
fn is_plain_name(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

fn decode_xattrs(reader: &mut Reader<'_>) -> Decoded<Vec<Xattr>> {
    let count = reader.count(2)?;
    let mut xattrs = Vec::with_capacity(count.min(64));
    for _ in 0..count {
        let name = reader.string(NAME_LEN_MAX)?;
        if name.is_empty() || name.contains(&0) {
            return Err(reader.error("invalid name of an extended attribute"));
        }
        let name = std::ffi::OsString::from_vec(name.to_vec());
        xattrs.push(Xattr { name, value: reader.string(usize::MAX)?.to_vec() });
    }
    Ok(xattrs)
}

fn decode_content(reader: &mut Reader<'_>, kind: EntryKind) -> Decoded<Content> {
    match kind {
        EntryKind::File => {
            Ok(Content::File { ctime: reader.timestamp()?, inode: reader.varint()?, recipe: Recipe::decode(reader)? })
        }
        EntryKind::Directory => Ok(Content::Directory { node: reader.fingerprint()? }),
        EntryKind::Symlink => {
            let target = reader.string(SYMLINK_LEN_MAX)?;
            if target.is_empty() || target.contains(&0) {
                return Err(reader.error("invalid target of a symbolic link"));
            }
            Ok(Content::Symlink { target: target.to_vec() })
        }
        EntryKind::Fifo | EntryKind::Socket | EntryKind::CharDevice | EntryKind::BlockDevice => {
            Ok(Content::Special { rdev: reader.varint()? })
        }
    }
}

fn kind_code(kind: EntryKind) -> u8 {
    match kind {
        EntryKind::File => 1,
        EntryKind::Directory => 2,
        EntryKind::Symlink => 3,
        EntryKind::Fifo => 4,
        EntryKind::Socket => 5,
        EntryKind::CharDevice => 6,
        EntryKind::BlockDevice => 7,
    }
}

fn kind_from_code(code: u8) -> Option<EntryKind> {
    match code {
        1 => Some(EntryKind::File),
        2 => Some(EntryKind::Directory),
        3 => Some(EntryKind::Symlink),
        4 => Some(EntryKind::Fifo),
        5 => Some(EntryKind::Socket),
        6 => Some(EntryKind::CharDevice),
        7 => Some(EntryKind::BlockDevice),
        _ => None,
    }
}

/// A reference to a node one level below.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Child {
    /// Fingerprint of the node.
    pub(crate) node: Fingerprint,
    /// Number of the directory's entries in this node and the nodes below it.
    pub(crate) entries: u64,
    /// Name of its first entry.
    pub(crate) first_name: Vec<u8>,
}

/// A node of a directory's list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum TreeNode {
    /// Entries, strictly ascending by name.
    Entries(Vec<Entry>),
    /// Nodes of the level below, strictly ascending by first name.
    Children {
        /// Level of this node, from 1.
        level: u8,
        /// The nodes.
        children: Vec<Child>,
    },
}

impl TreeNode {
    /// Returns the number of chunks in the entries' level-0 recipes, which is the node's number of hints.
    pub(crate) fn chunk_count(&self) -> usize {
        match self {
            Self::Children { .. } => 0,
            Self::Entries(entries) => entries
                .iter()
                .map(|entry| match &entry.content {
                    Content::File { recipe, .. } => recipe.chunk_count(),
                    Content::Directory { .. } | Content::Symlink { .. } | Content::Special { .. } => 0,
                })
                .sum(),
        }
    }
}

/// Reads the contents of a tree node.
pub(crate) fn decode_node(contents: &[u8]) -> Decoded<TreeNode> {
    let mut reader = Reader::new(contents);
    let level = reader.u8()?;
    if LEVELS_MAX < level {
        return Err(reader.error("tree too deep"));
    }
    let node = if level == 0 { decode_entries(&mut reader)? } else { decode_children(&mut reader, level)? };
    reader.finish()?;
    Ok(node)
}

/// Minimum length of an encoded entry, in bytes.
const ENTRY_LEN_MIN: usize = 10;

fn node_count(reader: &mut Reader<'_>, bytes_each: usize) -> Decoded<usize> {
    let count = reader.count(bytes_each)?;
    if count <= NODE_ITEMS_MAX as usize { Ok(count) } else { Err(reader.error("more items than a node can hold")) }
}

fn decode_entries(reader: &mut Reader<'_>) -> Decoded<TreeNode> {
    let count = node_count(reader, ENTRY_LEN_MIN)?;
    let mut entries: Vec<Entry> = Vec::with_capacity(count.min(1024));
    for _ in 0..count {
        let entry = Entry::decode(reader)?;
        if entries.last().is_some_and(|last| entry.name <= last.name) {
            return Err(reader.error("names not in order"));
        }
        entries.push(entry);
    }
    Ok(TreeNode::Entries(entries))
}

fn decode_children(reader: &mut Reader<'_>, level: u8) -> Decoded<TreeNode> {
    let count = node_count(reader, FINGERPRINT_LEN + 3)?;
    if count == 0 {
        return Err(reader.error("node without children"));
    }
    let mut children: Vec<Child> = Vec::with_capacity(count);
    for _ in 0..count {
        let node = reader.fingerprint()?;
        let entries = reader.varint()?;
        let first_name = reader.string(NAME_LEN_MAX)?.to_vec();
        if !is_plain_name(&first_name) || children.last().is_some_and(|last| first_name <= last.first_name) {
            return Err(reader.error("names not in order"));
        }
        children.push(Child { node, entries, first_name });
    }
    Ok(TreeNode::Children { level, children })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::recipe::format::RecipeItem;
    use crate::types::Chunk;

    pub(crate) fn entry(name: &str, content: Content, kind: EntryKind) -> Entry {
        Entry {
            name: name.into(),
            kind,
            mode: 0o4755,
            uid: 1000,
            gid: u32::MAX,
            mtime: Timestamp { seconds: -5, nanoseconds: 999_999_999 },
            xattrs: vec![Xattr { name: "user.a".into(), value: vec![0, 1, 2] }],
            link: Some(Link { device: 1, inode: 2, links: 3 }),
            content,
            notes: EntryNotes {
                atime: Some(Timestamp { seconds: 1 << 40, nanoseconds: 7 }),
                is_incomplete: name == "b",
            },
        }
    }

    fn node() -> TreeNode {
        let recipe = Recipe {
            level: 0,
            items: vec![
                RecipeItem::Chunk(Chunk { fingerprint: Fingerprint([3; 32]), len: 77 }),
                RecipeItem::Hole { len: 4096 },
            ],
        };
        TreeNode::Entries(vec![
            entry("a", Content::File { ctime: Timestamp::default(), inode: 7, recipe }, EntryKind::File),
            entry("b", Content::Directory { node: Fingerprint([4; 32]) }, EntryKind::Directory),
            entry("c", Content::Symlink { target: b"../x".to_vec() }, EntryKind::Symlink),
            entry("d", Content::Special { rdev: 0x801 }, EntryKind::BlockDevice),
            entry("e", Content::Special { rdev: 0 }, EntryKind::Fifo),
        ])
    }

    fn encode(node: &TreeNode) -> Vec<u8> {
        let TreeNode::Entries(entries) = node else { unreachable!() };
        let mut out = vec![0];
        put_varint(&mut out, entries.len() as u64);
        for entry in entries {
            entry.encode(&mut out);
        }
        out
    }

    #[test]
    fn every_kind_of_entry_comes_back() {
        let bytes = encode(&node());
        assert_eq!(decode_node(&bytes), Ok(node()));
        assert_eq!(node().chunk_count(), 1);
        for len in 0..bytes.len() {
            assert!(decode_node(&bytes[..len]).is_err(), "cut at {len}");
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["", ".", "..", "a/b", "a\0b"] {
            let TreeNode::Entries(mut entries) = node() else { unreachable!() };
            entries.truncate(1);
            entries[0].name = name.into();
            assert!(decode_node(&encode(&TreeNode::Entries(entries))).is_err(), "{name:?}");
        }
    }

    #[test]
    fn names_out_of_order_or_twice_are_refused() {
        let TreeNode::Entries(mut entries) = node() else { unreachable!() };
        entries.swap(0, 1);
        assert!(decode_node(&encode(&TreeNode::Entries(entries.clone()))).is_err());
        entries[1].name = entries[0].name.clone();
        assert!(decode_node(&encode(&TreeNode::Entries(entries))).is_err());
    }
}
