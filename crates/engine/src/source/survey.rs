//! What an entry is, and whether it belongs to the snapshot. A function of the source, for any thread.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::tree::{EntryKind, Links, Metadata, SourceDirectory, Xattr};
use crate::monitor::{Monitor, Silent};
use crate::source::exclude::{Excludes, Patterns};
use crate::source::item::{Contents, Item, Location};
use crate::source::roots::Node;

/// Tries at an entry that becomes one of another kind whenever it is looked at.
const KIND_TRIES_MAX: u32 = 3;

/// What decides about every entry.
#[derive(Clone, Debug)]
pub(super) struct Survey {
    pub(super) excludes: Arc<Excludes>,
    /// Directories on one path.
    pub(super) depth_max: usize,
    /// Whether the attributes of files are read with their metadata.
    pub(super) reads_file_xattrs: bool,
    /// Interrupts the wait for pipes that the user named; `None`: they are not read.
    pub(super) pipes: Option<Arc<dyn Monitor>>,
}

/// An entry that is looked at.
#[derive(Debug)]
pub(super) struct Subject<'a> {
    /// Where the source has it.
    pub(super) path: PathBuf,
    /// Its name in the tree.
    pub(super) name: OsString,
    /// What opens it.
    pub(super) location: Location,
    /// What the roots say about it.
    pub(super) node: &'a Node,
    /// Device that counts in the directory around it.
    pub(super) device: Option<u64>,
    /// Directories around it in the snapshot, and the snapshot's root.
    pub(super) depth: usize,
    /// Its metadata, if it was asked for already.
    pub(super) known: Option<Metadata>,
}

/// What comes of an entry.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are entries, and a box would take each an allocation")]
pub(super) enum Visit {
    /// It is left out.
    Excluded,
    /// It cannot be looked at.
    Failed(PathBuf, Error),
    /// It is not a directory. The error is that of reading its attributes.
    Entry(Item, Option<Error>),
    /// A directory, which is entered.
    Directory(Box<Opened>),
}

/// A directory that is entered.
#[derive(Debug)]
pub(super) struct Opened {
    /// The directory as an entry.
    pub(super) item: Item,
    /// Why its attributes cannot be read.
    pub(super) error: Option<Error>,
    /// The directory.
    pub(super) directory: Arc<dyn SourceDirectory>,
    /// Device that counts in it.
    pub(super) device: Option<u64>,
    /// Whether all that is in it belongs to the snapshot.
    pub(super) is_whole: bool,
    /// Whether it lies on another file system, so that what is in it is left out.
    pub(super) is_foreign: bool,
}

/// Names in a directory.
#[derive(Default, Debug)]
pub(super) struct Listing {
    /// Those that belong to the snapshot unless they are excluded, sorted.
    pub(super) names: Vec<OsString>,
    /// What could not be read, and why.
    pub(super) errors: Vec<(PathBuf, Error)>,
    /// Whether a mark left others out.
    pub(super) is_marked: bool,
}

/// What is found out about an entry.
struct Look {
    metadata: Metadata,
    rest: Rest,
    /// Why an entry that the user named is stored without contents.
    error: Option<Error>,
}

/// What there is of an entry besides its metadata.
enum Rest {
    /// Bytes, which are read later.
    Bytes(Contents),
    /// Nothing else.
    Closed { link_target: Option<PathBuf>, xattrs: Result<Vec<Xattr>> },
    /// Entries.
    Directory(Arc<dyn SourceDirectory>),
}

impl Subject<'_> {
    /// Returns true for what the user asked for, and what leads there.
    fn is_required(&self) -> bool {
        self.node.explicit || self.leads()
    }

    fn leads(&self) -> bool {
        !self.node.children.is_empty()
    }

    /// Looks at an entry; what is found out about it is all of one inode.
    ///
    /// What leads to a root must be a directory: a link there is followed, as it was when the root was named.
    fn look(&mut self, pipes: Option<&Arc<dyn Monitor>>) -> Result<Look> {
        let leads = self.leads();
        let mut known = self.known.take();
        for _ in 0..KIND_TRIES_MAX {
            let metadata = known.take().map_or_else(|| self.location.metadata(), Ok)?;
            if let Some(look) = self.look_behind(&metadata, pipes) {
                return Ok(look);
            }
            let Location { directory, name, .. } = &self.location;
            let links = match metadata.kind {
                EntryKind::Directory => Links::NotFollowed,
                EntryKind::Symlink if leads => Links::Followed,
                _ if leads => return Err(Error::io("enter", &self.path, io::ErrorKind::NotADirectory.into())),
                EntryKind::File => return Ok(Look { metadata, rest: Rest::Bytes(Contents::File), error: None }),
                EntryKind::Symlink
                | EntryKind::Fifo
                | EntryKind::Socket
                | EntryKind::CharDevice
                | EntryKind::BlockDevice => {
                    let closed = directory.read_entry(name)?;
                    if !matches!(closed.metadata.kind, EntryKind::File | EntryKind::Directory) {
                        // The capacity of a device is not among what is read of it closed.
                        let size = if closed.metadata.rdev == metadata.rdev { metadata.size } else { 0 };
                        let size = if closed.link_target.is_some() { closed.metadata.size } else { size };
                        let rest = Rest::Closed { link_target: closed.link_target, xattrs: closed.xattrs };
                        let error = self.without_contents(&closed.metadata);
                        return Ok(Look { metadata: Metadata { size, ..closed.metadata }, rest, error });
                    }
                    continue;
                }
            };
            match directory.open_dir(name, links) {
                Ok(directory) => {
                    let metadata = directory.metadata()?;
                    return Ok(Look { metadata, rest: Rest::Directory(directory), error: None });
                }
                // Replaced by an entry of another kind since it was looked at.
                Err(_) if directory.metadata_of(name).is_ok_and(|now| now.kind != metadata.kind) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::SourceUnsteady { path: self.path.clone() })
    }

    /// Looks at a block device or a pipe that the user named, also behind a link. Another user's link is not followed: with access to
    /// the snapshot, they could read what they may not read here.
    fn look_behind(&mut self, found: &Metadata, pipes: Option<&Arc<dyn Monitor>>) -> Option<Look> {
        if !self.node.explicit || self.leads() {
            return None;
        }
        let is_trusted = found.uid == 0 || found.uid == rustix::process::geteuid().as_raw();
        let metadata = match found.kind {
            EntryKind::Symlink if !is_trusted => return None,
            EntryKind::Symlink => self.location.directory.metadata_behind(&self.location.name).ok()?,
            _ => found.clone(),
        };
        let contents = match metadata.kind {
            EntryKind::BlockDevice => Contents::File,
            EntryKind::Fifo if pipes.is_some() => Contents::Stream,
            _ => return None,
        };
        self.location.named = Some(pipes.cloned().unwrap_or_else(|| Arc::new(Silent)));
        Some(Look { metadata, rest: Rest::Bytes(contents), error: None })
    }

    /// Returns why the contents of what the user named are not stored with the entry; `None` if it has none.
    fn without_contents(&self, found: &Metadata) -> Option<Error> {
        let Location { directory, name, .. } = &self.location;
        let behind = match found.kind {
            _ if !self.node.explicit => return None,
            EntryKind::Symlink => directory.metadata_behind(name).ok()?.kind,
            kind => kind,
        };
        let kind = match behind {
            EntryKind::File | EntryKind::Directory | EntryKind::Symlink => return None,
            EntryKind::Fifo => "a pipe",
            EntryKind::Socket => "a socket",
            EntryKind::CharDevice => "a character device",
            EntryKind::BlockDevice => "a block device",
        };
        let link = if found.kind == EntryKind::Symlink { "a link to " } else { "" };
        let path = self.path.display();
        Some(Error::invalid(format!("{path}: only the entry itself is taken, since {link}{kind} cannot be read here")))
    }
}

impl Survey {
    /// Says whether patterns exclude an absolute path. Roots are what the user asked for, and what leads to them must be there.
    /// `look` is called if that depends on what is there.
    pub(super) fn is_excluded(&self, absolute: &Path, node: &Node, look: &mut dyn FnMut() -> Result<Metadata>) -> bool {
        let patterns = &self.excludes.patterns;
        if node.explicit || !node.children.is_empty() || patterns.is_empty() {
            return false;
        }
        let is_directory = patterns.iter().any(Patterns::depends_on_kind)
            && look().is_ok_and(|metadata| metadata.kind == EntryKind::Directory);
        patterns.iter().any(|patterns| patterns.matches(absolute, is_directory))
    }

    /// Decides about an entry that no pattern excludes, and opens a directory.
    pub(super) fn visit(&self, mut subject: Subject<'_>) -> Visit {
        match subject.look(self.pipes.as_ref()) {
            Ok(look) => self.decide(subject, look),
            Err(error) => Visit::Failed(subject.path, error),
        }
    }

    fn decide(&self, subject: Subject<'_>, Look { metadata, rest, error: without }: Look) -> Visit {
        let is_required = subject.is_required();
        let is_directory = metadata.kind == EntryKind::Directory;
        if is_directory && self.excludes.skip.contains(&(metadata.device, metadata.inode)) {
            let path = subject.path.clone();
            let own = "the repository and the cache directory are never backed up";
            let refused = Error::invalid(format!("{}: {own}", path.display()));
            return if is_required { Visit::Failed(path, refused) } else { Visit::Excluded };
        }
        let too_large = self.excludes.file_bytes_max.is_some_and(|limit| limit < metadata.size);
        if !is_required && too_large && metadata.kind == EntryKind::File {
            return Visit::Excluded;
        }
        let Subject { path, name, location, node, device, depth, .. } = subject;
        let device = if node.explicit { Some(metadata.device) } else { node.device.or(device) };
        let foreign = self.excludes.one_file_system && device.is_some_and(|device| device != metadata.device);
        // Of an overlay, files may be of the file systems of its layers.
        if !is_required && foreign && !is_directory && location.directory.is_mount_point(&location.name) {
            return Visit::Excluded;
        }
        if is_directory && self.depth_max < depth {
            return Visit::Failed(path, Error::TooDeep { depth_max: self.depth_max, undone: "backed up" });
        }
        let mut item = Item {
            path,
            name,
            location,
            metadata,
            contents: Contents::None,
            xattrs: Vec::new(),
            file_xattrs: None,
            link_target: None,
        };
        match rest {
            Rest::Bytes(contents) => {
                item.contents = contents;
                if self.reads_file_xattrs && item.metadata.kind == EntryKind::File {
                    item.file_xattrs = item.location.claimed_xattrs().ok();
                }
                Visit::Entry(item, None)
            }
            Rest::Closed { link_target, xattrs } => {
                item.link_target = link_target;
                let error = take_xattrs(&mut item, xattrs);
                Visit::Entry(item, error.or(without))
            }
            Rest::Directory(directory) => {
                let error = take_xattrs(&mut item, directory.xattrs());
                let is_whole = node.whole && !foreign;
                Visit::Directory(Box::new(Opened { item, error, directory, device, is_whole, is_foreign: foreign }))
            }
        }
    }

    /// Lists a directory without what its marks leave out.
    pub(super) fn list(&self, directory: &dyn SourceDirectory, path: &Path) -> Listing {
        self.listing(directory, path, directory.list())
    }

    /// Does the same if the names take at most so many bytes; `None` if they take more.
    pub(super) fn list_within(
        &self,
        bytes_max: usize,
        directory: &dyn SourceDirectory,
        path: &Path,
    ) -> Option<Listing> {
        let names = directory.list_within(bytes_max).transpose()?;
        Some(self.listing(directory, path, names))
    }

    fn listing(&self, directory: &dyn SourceDirectory, path: &Path, names: Result<Vec<OsString>>) -> Listing {
        match names {
            Ok(mut names) => {
                let listed = names.len();
                let errors = self.excludes.apply_tags(directory, path, &mut names);
                let is_marked = names.len() < listed;
                Listing { names, errors, is_marked }
            }
            Err(error) => Listing { errors: vec![(path.to_path_buf(), error)], ..Listing::default() },
        }
    }
}

/// Gives an entry its attributes, or none and returns the error.
fn take_xattrs(item: &mut Item, xattrs: Result<Vec<Xattr>>) -> Option<Error> {
    match xattrs {
        Ok(xattrs) => {
            item.xattrs = xattrs;
            None
        }
        Err(error) => Some(error),
    }
}
