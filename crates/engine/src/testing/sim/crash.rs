//! What a power cut leaves of a simulated world.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::SimDisk;
use super::contents::Contents;
use super::file::{Change, FileNode};
use super::world::{DirNode, Inode, Moment, Names, Node, ROOT, World};
use crate::random::SplitMix64;

/// Bytes that a disk writes wholly or not at all.
const SECTOR_BYTES: usize = 512;
const SECTOR: u64 = SECTOR_BYTES as u64;

/// Which of the changes that were not synced survive a power cut. What was synced survives each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CrashMode {
    /// None.
    LoseUnsynced,
    /// All, except what a failed sync lost.
    KeepAll,
    /// A subset drawn with the seed: changes to names and to contents independently of each other and out of order;
    /// of a write that grows a file, perhaps only the length (the bytes read as zeros) or only what lies within the
    /// old length. What a failed sync lost may be in the subset.
    Subset(u64),
    /// As `Subset`; of some writes also only some sectors of 512 bytes, and in sectors after the last durable byte
    /// perhaps garbage.
    Torn(u64),
}

/// Returns the world after a power cut.
pub(super) fn crash(world: &World, mode: CrashMode) -> io::Result<World> {
    let mut survivors = Survivors { world, mode, nodes: Vec::new(), renumbered: vec![None; world.nodes().len()] };
    survivors.keep(ROOT)?;
    // A node is numbered before its children are known, so that a name that leads back up ends the walk.
    let nodes = survivors.nodes.into_iter().map(|node| Arc::new(node.unwrap_or(Node::Dir(DirNode::default()))));
    Ok(World::durable_as(nodes.collect()))
}

/// The walk over the names that survive, from the root: what none of them reaches is lost.
struct Survivors<'a> {
    world: &'a World,
    mode: CrashMode,
    nodes: Vec<Option<Node>>,
    renumbered: Vec<Option<Inode>>,
}

impl Survivors<'_> {
    /// Keeps a node and all that its names reach; returns its new number.
    fn keep(&mut self, inode: Inode) -> io::Result<Inode> {
        if let Some(new) = self.renumbered[inode] {
            return Ok(new);
        }
        let new = self.nodes.len();
        self.renumbered[inode] = Some(new);
        self.nodes.push(None);
        let node = match &*self.world.nodes()[inode] {
            Node::File(file) => Node::File(FileNode::durable_as(surviving_file(file, self.mode, inode)?)),
            Node::Dir(dir) => {
                let mut names = surviving_names(dir, self.mode, inode);
                for child in names.values_mut() {
                    *child = self.keep(*child)?;
                }
                Node::Dir(DirNode::durable_as(names))
            }
        };
        self.nodes[new] = Some(node);
        Ok(new)
    }
}

/// Returns the choices for one node. Each has its own, so that a write more in one file does not turn the fate of all
/// others.
fn choices(seed: u64, inode: Inode) -> SplitMix64 {
    let mut mixed = SplitMix64::new(seed);
    SplitMix64::new(mixed.next_u64() ^ (inode as u64).wrapping_mul(0xd6e8_feb8_6659_fd93))
}

/// What happens to the changes of one node. Coins alone would hardly ever keep or lose all changes of a long list.
#[derive(Clone, Copy)]
enum Fate {
    All,
    None,
    /// All before this one; it is the one that was under way.
    Before(usize),
    Coins,
}

impl Fate {
    fn draw(random: &mut SplitMix64, changes: usize) -> Self {
        match random.below(6) {
            0 => Self::All,
            1 => Self::None,
            2 => Self::Before(usize::try_from(random.below(changes.max(1) as u64)).expect("below a length in memory")),
            _ => Self::Coins,
        }
    }
}

fn surviving_names(dir: &DirNode, mode: CrashMode, inode: Inode) -> Names {
    let seed = match mode {
        CrashMode::LoseUnsynced => return dir.durable().clone(),
        CrashMode::KeepAll => return dir.live().clone(),
        CrashMode::Subset(seed) | CrashMode::Torn(seed) => seed,
    };
    let mut random = choices(seed, inode);
    let fate = Fate::draw(&mut random, dir.undurable().len());
    let mut names = dir.durable().clone();
    for (index, change) in dir.undurable().enumerate() {
        let kept = match fate {
            Fate::All => true,
            Fate::None => false,
            Fate::Before(end) => index < end,
            Fate::Coins => random.coin(),
        };
        if kept {
            change.apply(&mut names);
        }
    }
    names
}

fn surviving_file(file: &FileNode, mode: CrashMode, inode: Inode) -> io::Result<Contents> {
    let (seed, torn) = match mode {
        CrashMode::LoseUnsynced => return Ok(file.durable().clone()),
        CrashMode::KeepAll => return file.synced(),
        CrashMode::Subset(seed) => (seed, false),
        CrashMode::Torn(seed) => (seed, true),
    };
    let count = file.lost().len() + file.pending().len();
    let mut random = choices(seed, inode);
    let fate = Fate::draw(&mut random, count);
    let durable_len = file.durable().len();
    let mut settling = Settling { contents: file.durable().clone(), len: durable_len, durable_len, random };
    for (index, change) in file.lost().iter().chain(file.pending()).enumerate() {
        match settling.landing(fate, index, torn) {
            Landing::Nothing => {}
            Landing::Whole => settling.land_whole(change)?,
            Landing::LengthOnly => settling.land_length(change),
            Landing::BytesOnly => settling.land_bytes(change)?,
            Landing::Torn => settling.land_torn(change)?,
        }
    }
    settling.contents.set_len(settling.len);
    Ok(settling.contents)
}

/// How much of one change reached the disk.
#[derive(Clone, Copy)]
enum Landing {
    Nothing,
    Whole,
    LengthOnly,
    BytesOnly,
    Torn,
}

/// A file on its way through a power cut.
struct Settling {
    /// Bytes that landed, also after `len`.
    contents: Contents,
    /// The length that landed.
    len: u64,
    durable_len: u64,
    random: SplitMix64,
}

impl Settling {
    fn landing(&mut self, fate: Fate, index: usize, torn: bool) -> Landing {
        match fate {
            Fate::All if torn => Landing::Torn,
            Fate::All => Landing::Whole,
            Fate::Before(end) if index < end => Landing::Whole,
            Fate::Before(end) if index == end && torn => Landing::Torn,
            Fate::None | Fate::Before(_) => Landing::Nothing,
            Fate::Coins => match self.random.below(if torn { 8 } else { 6 }) {
                0 | 1 => Landing::Nothing,
                2 | 3 => Landing::Whole,
                4 => Landing::LengthOnly,
                5 => Landing::BytesOnly,
                _ => Landing::Torn,
            },
        }
    }

    fn land_whole(&mut self, change: &Change) -> io::Result<()> {
        self.land_length(change);
        self.land_bytes(change)
    }

    fn land_length(&mut self, change: &Change) {
        match change {
            Change::Write { offset, bytes } => self.len = self.len.max(offset + bytes.len() as u64),
            Change::SetLen(len) => {
                self.contents.set_len(self.contents.len().min(*len));
                self.len = *len;
            }
        }
    }

    fn land_bytes(&mut self, change: &Change) -> io::Result<()> {
        match change {
            Change::Write { offset, bytes } => self.contents.write(*offset, bytes),
            Change::SetLen(_) => Ok(()),
        }
    }

    fn land_torn(&mut self, change: &Change) -> io::Result<()> {
        if self.random.coin() {
            self.land_length(change);
        }
        let Change::Write { offset, bytes } = change else { return Ok(()) };
        let (mut offset, mut rest) = (*offset, &bytes[..]);
        while !rest.is_empty() {
            let within = usize::try_from(offset % SECTOR).expect("below a sector's size");
            let (piece, after) = rest.split_at(rest.len().min(SECTOR_BYTES - within));
            // A sector that holds durable bytes is the old one or the new one; one that never did may hold anything.
            let never_synced = self.durable_len <= offset - within as u64;
            match self.random.below(4) {
                0 | 1 => self.contents.write(offset, piece)?,
                2 if never_synced => {
                    let garbage: Vec<u8> = piece.iter().map(|_| self.random.next_u64().to_le_bytes()[0]).collect();
                    self.contents.write(offset, &garbage)?;
                }
                _ => {}
            }
            offset += piece.len() as u64;
            rest = after;
        }
        Ok(())
    }
}

impl SimDisk {
    /// Returns what a power cut leaves, drawn with a seed.
    #[must_use]
    pub fn power_cut(&self, seed: u64) -> Self {
        self.crash(CrashMode::Torn(seed))
    }

    /// Returns all files below this directory as readers see them, without counting a call.
    pub fn files(&self) -> Vec<(PathBuf, Contents)> {
        self.shared.state().world.files(&self.root, Moment::Now)
    }

    /// Returns all files below this directory that are left if all that is not synced is lost, without counting a call.
    pub fn durable_files(&self) -> Vec<(PathBuf, Contents)> {
        self.shared.state().world.files(&self.root, Moment::AfterPowerCut)
    }
}
