//! Opening of the inputs of a command: the repository and this host's cache for it.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use onefold_engine::Error;
use onefold_engine::io::os::{IoBackend, OsDisk, OsHost};
use onefold_engine::io::{Access, Disk, Host};
use onefold_engine::object::ObjectStore;
use onefold_engine::object::directory::DirectoryStore;
use onefold_engine::repo::{Cache, LatestDoubt, Selection, SnapshotName};
use onefold_engine::snapshot::Snapshot;
use onefold_engine::store::commits::Commits;
use onefold_engine::store::create::{open_copies, read_configs};
use onefold_engine::store::metadata::{MetadataMemory, Scratch};
use onefold_engine::store::{MetadataReader, Store, Unlock};
use onefold_engine::types::{RepositoryId, SessionId, Timestamp};

use crate::args::SelectionArgs;
use crate::files;
use crate::interrupt::Interrupt;
use crate::json::short_id;
use crate::output::Output;
use crate::password::Password;
use crate::settings::{CacheLocation, Settings};
use crate::sources::{self, absolute};
use crate::text;
use crate::trust::{self, Pinned};

/// Days after which `--cleanup-cache` removes the cache of a repository, as restic has it.
const CACHE_UNUSED_DAYS: i64 = 30;
/// Path of the index's lock in a cache.
const INDEX_LOCK: &str = "index/lock";
/// Times that a password may be typed.
const TRIES_MAX: usize = 3;

/// An open repository.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The repository.
    pub(crate) store: Store,
    /// Its directory.
    pub(crate) directory: PathBuf,
    /// The password that opened it; `None`: it is not encrypted.
    pub(crate) password: Option<Password>,
}

/// Returns the objects of a repository's directory, and the host.
pub(crate) fn objects_and_host(directory: &Path, settings: &Settings) -> (Arc<dyn ObjectStore>, Arc<dyn Host>) {
    let disk = Arc::new(OsDisk::with_backend(directory.to_path_buf(), settings.io));
    (Arc::new(DirectoryStore::new(disk)), Arc::new(OsHost::new()))
}

/// Opens the repository that was named.
pub(crate) fn open(settings: &Settings, output: &Output) -> Result<Opened> {
    let directory = settings.repository()?;
    let (objects, host) = objects_and_host(&directory, settings);
    let copies = read_configs(&*objects).map_err(|error| not_a_directory(&directory, error))?;
    let pinned = Pinned::read(settings, output, &directory);
    let copies = pinned.admit(copies)?;
    let is_encrypted = copies.iter().any(|(_, _, config)| config.clear_key.is_none());
    if !is_encrypted && !settings.password.is_given() {
        output.note("the repository is not encrypted");
        let store = open_copies(&objects, &host, Unlock::Unencrypted, &copies)?;
        pinned.remember(output, &store);
        clean_if_asked(settings, output, &store);
        return Ok(Opened { store, directory, password: None });
    }
    let tries = if settings.password.is_given() || !io::stdin().is_terminal() { 1 } else { TRIES_MAX };
    for left in (0..tries).rev() {
        let password = settings.password.read("password: ")?;
        match open_copies(&objects, &host, Unlock::PasswordOn { password: &password, policy: &settings.slots }, &copies)
        {
            Ok(store) => {
                pinned.remember(output, &store);
                clean_if_asked(settings, output, &store);
                return Ok(Opened { store, directory, password: Some(password) });
            }
            Err(Error::WrongPassword | Error::SlotsNotTried { .. }) if 0 < left => output.warn("wrong password"),
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::WrongPassword.into())
}

/// Replaces the error for a repository that is no directory.
fn not_a_directory(directory: &Path, error: Error) -> Error {
    if error.io_kind() == Some(io::ErrorKind::NotADirectory) {
        return Error::NoRepository { path: directory.to_path_buf(), reason: "it is not a directory".to_owned() };
    }
    error
}

/// A snapshot that was named, and what is needed to read it.
#[derive(Debug)]
pub(crate) struct OpenedSnapshot {
    /// Its repository.
    pub(crate) opened: Opened,
    /// This host's cache.
    pub(crate) cache: OpenedCache,
    /// Whether the user has asked to stop.
    pub(crate) interrupt: Interrupt,
    /// The snapshot.
    pub(crate) session: SessionId,
    /// Its contents.
    pub(crate) snapshot: Snapshot,
    /// The part of it that was named, empty for all of it.
    pub(crate) path: String,
}

impl OpenedSnapshot {
    /// Finds the snapshot that was named, as `SNAPSHOT` or `SNAPSHOT:PATH`.
    pub(crate) fn open(settings: &Settings, output: &Output, name: &str, args: &SelectionArgs) -> Result<Self> {
        let opened = open(settings, output)?;
        let interrupt = Interrupt::listen()?;
        let name = SnapshotName::parse(name);
        let commits = trust::read_commits(settings, output, &opened.store)?;
        let (session, snapshot) = find(output, &commits, args, &name)?;
        let snapshot = snapshot.clone();
        warn_of_lacks(session, &snapshot, output);
        let cache = OpenedCache::open(settings, opened.store.config.repository, output)?;
        Ok(Self { opened, cache, interrupt, session, snapshot, path: name.path.unwrap_or_default() })
    }

    /// Returns a reader of the repository's metadata.
    pub(crate) fn reader(&self, settings: &Settings) -> Result<MetadataReader> {
        metadata_reader(settings, &self.opened.store, &self.cache)
    }
}

/// Tags of checkpoints whose images lack changes. A program that cannot protect volumes reads such snapshots, too.
const LACKING_TAGS: [&str; 2] = ["cdp-empty", "cdp-incomplete"];

/// Warns if the images of a checkpoint lack changes of their volumes.
fn warn_of_lacks(session: SessionId, snapshot: &Snapshot, output: &Output) {
    if snapshot.tags.iter().any(|tag| LACKING_TAGS.contains(&tag.as_str())) {
        let snapshot = short_id(session);
        output.warn(&format!(
            "snapshot {snapshot} ends inside a gap of its history: its images lack changes of the volumes"
        ));
    }
}

/// An open repository with its snapshots, and a reader of their metadata.
pub(crate) struct OpenedMetadata {
    /// The commits of the repository.
    pub(crate) commits: Commits,
    /// This host's cache.
    pub(crate) cache: OpenedCache,
    /// Whether the user has asked to stop.
    pub(crate) interrupt: Interrupt,
    /// Reader of the metadata.
    pub(crate) reader: MetadataReader,
}

impl OpenedMetadata {
    /// Opens the repository that was named.
    pub(crate) fn open(settings: &Settings, output: &Output) -> Result<Self> {
        let opened = open(settings, output)?;
        let interrupt = Interrupt::listen()?;
        let commits = trust::read_commits(settings, output, &opened.store)?;
        let cache = OpenedCache::open(settings, opened.store.config.repository, output)?;
        let reader = metadata_reader(settings, &opened.store, &cache)?;
        Ok(Self { commits, cache, interrupt, reader })
    }
}

/// Returns a reader of a repository's metadata within the memory budget.
pub(crate) fn metadata_reader(settings: &Settings, store: &Store, cache: &OpenedCache) -> Result<MetadataReader> {
    let containers = store.list_containers(&cache.scratch())?;
    let memory = MetadataMemory::left_by(&containers, settings.budget().parent_bytes);
    Ok(MetadataReader::open(store, &containers, &cache.scratch(), memory)?)
}

/// Returns the named snapshots. Without names, returns all selected ones, oldest first.
pub(crate) fn find_all<'a>(
    output: &Output,
    commits: &'a Commits,
    args: &SelectionArgs,
    names: &[String],
) -> Result<Vec<(SessionId, &'a Snapshot)>> {
    if names.is_empty() {
        let selection = selection(args)?;
        return Ok(commits.snapshots().into_iter().filter(|(_, snapshot)| selection.admits(snapshot)).collect());
    }
    names.iter().map(|name| find(output, commits, args, &SnapshotName::parse(name))).collect()
}

/// This host's cache for one repository, or a temporary directory that is removed at the end.
#[derive(Debug)]
pub(crate) struct OpenedCache {
    /// The cache, as the engine expects it.
    pub(crate) cache: Cache,
    /// The directory of all caches, to be left out of backups.
    pub(crate) directory: PathBuf,
    is_scratch: bool,
}

impl OpenedCache {
    /// Opens the cache. If it cannot be written, makes a temporary one and warns.
    pub(crate) fn open(settings: &Settings, repository: RepositoryId, output: &Output) -> Result<Self> {
        let name = PathBuf::from(repository.to_string());
        let reason = match &settings.cache {
            CacheLocation::Unwanted(_) => {
                let scratch = make_scratch(&name).context("a cache for this run")?;
                return Ok(Self::at(scratch, name, settings.io, true));
            }
            CacheLocation::Unknown => {
                "its location is unknown (HOME, XDG_CACHE_HOME and CACHE_DIRECTORY are not set)".to_owned()
            }
            CacheLocation::Directory(directory) => match prepare_for(directory, &name) {
                Ok(()) => return Ok(Self::at(directory.clone(), name, settings.io, false)),
                Err(error) => format!("{}: {error}", directory.display()),
            },
        };
        let scratch = make_scratch(&name).with_context(|| format!("the cache cannot be used ({reason})"))?;
        output.warn(&format!(
            "the cache cannot be used: {reason}; {} replaces it and is removed at the end, so that each command rebuilds \
             the index",
            scratch.display()
        ));
        Ok(Self::at(scratch, name, settings.io, true))
    }

    fn at(directory: PathBuf, name: PathBuf, io: IoBackend, is_scratch: bool) -> Self {
        let disk = Arc::new(OsDisk::with_backend(directory.clone(), io));
        Self { cache: Cache { disk, dir: name }, directory, is_scratch }
    }

    /// Returns true if the cache is removed at the end.
    pub(crate) fn is_temporary(&self) -> bool {
        self.is_scratch
    }

    /// Returns the directory that state may be spilled to.
    pub(crate) fn scratch(&self) -> Scratch {
        Scratch { disk: Some(Arc::clone(&self.cache.disk)), dir: self.cache.dir.clone() }
    }
}

impl Drop for OpenedCache {
    fn drop(&mut self) {
        if self.is_scratch {
            // The rest of it is in a directory for temporary files.
            let _ignored = files::remove_all(&self.directory);
        }
    }
}

/// Makes a directory for a cache that is removed at the end.
fn make_scratch(name: &Path) -> Result<PathBuf> {
    let mut random = [0; 8];
    OsHost::new().random(&mut random)?;
    let scratch = std::env::temp_dir().join(format!("onefold-{:016x}", u64::from_be_bytes(random)));
    files::create_new_directory(&scratch)
        .and_then(|()| files::create_new_directory(&scratch.join(name)))
        .with_context(|| format!("create {}", scratch.display()))?;
    Ok(scratch)
}

/// Removes old caches if the user asked for it. A failure is reported and does not end the command.
fn clean_if_asked(settings: &Settings, output: &Output, store: &Store) {
    let Some(directory) = settings.cache.written().filter(|_| settings.cleans_cache) else { return };
    let own = PathBuf::from(store.config.repository.to_string());
    let cleaned = files::prepare_cache(directory)
        .with_context(|| format!("create {}", directory.display()))
        .and_then(|()| clean(directory, &own, settings.io, output));
    if let Err(error) = cleaned {
        output.warn(&format!("warning: old caches cannot be removed: {error:#}"));
    }
}

/// Removes the caches of other repositories that were not used for [`CACHE_UNUSED_DAYS`]. One whose index another process
/// holds is in use.
fn clean(directory: &Path, own: &Path, io: IoBackend, output: &Output) -> Result<()> {
    let limit = OsHost::new().now().seconds - CACHE_UNUSED_DAYS * 24 * 60 * 60;
    let mut removed = 0;
    for (name, used) in files::directories(directory).with_context(|| format!("list {}", directory.display()))? {
        let is_cache = name.to_str().is_some_and(|name| RepositoryId::parse(name).is_some());
        if !is_cache || Path::new(&name) == own || limit <= used {
            continue;
        }
        let path = directory.join(&name);
        let disk = OsDisk::with_backend(path.clone(), io);
        let lock = match disk.open(Path::new(INDEX_LOCK), Access::ReadWrite) {
            Ok(lock) if !lock.try_lock()? => continue,
            Ok(lock) => Some(lock),
            Err(_) => None,
        };
        files::remove_all(&path).with_context(|| format!("remove the cache {}", path.display()))?;
        drop(lock);
        output.note(&format!("removed the cache {}, which was not used for {CACHE_UNUSED_DAYS} days", path.display()));
        removed += 1;
    }
    if removed == 0 {
        output.note("there are no old caches to remove");
    }
    Ok(())
}

fn prepare_for(directory: &Path, name: &Path) -> io::Result<()> {
    files::prepare_cache(directory)?;
    let own = directory.join(name);
    files::create_directories(&own)?;
    files::probe(&own)
}

/// Returns the selection of snapshots. An empty host means any host, even if the environment names one.
pub(crate) fn selection(args: &SelectionArgs) -> Result<Selection> {
    let tags = args.tag.iter().map(|list| list.split(',').map(str::to_owned).collect()).collect();
    let paths = args.path.iter().map(|path| absolute(path).map(sources::bytes_of)).collect::<Result<_>>()?;
    let hosts = args.host.iter().filter(|host| !host.is_empty()).cloned().collect();
    Ok(Selection { hosts, tags, paths })
}

/// Returns the only item whose id begins with `prefix`.
pub(crate) fn find_by_id<T>(
    kind: &str,
    prefix: &str,
    items: impl IntoIterator<Item = T>,
    id: impl Fn(&T) -> String,
) -> Result<T> {
    let mut matching = items.into_iter().filter(|item| !prefix.is_empty() && id(item).starts_with(prefix));
    let found = matching.next().with_context(|| format!("{kind} `{prefix}` not found"))?;
    ensure!(matching.next().is_none(), "{kind} `{prefix}`: several ids begin like that; use a longer prefix");
    Ok(found)
}

/// Finds the snapshot that a name means.
pub(crate) fn find<'a>(
    output: &Output,
    commits: &'a Commits,
    args: &SelectionArgs,
    name: &SnapshotName,
) -> Result<(SessionId, &'a Snapshot)> {
    let now = OsHost::new().now();
    Ok(selection(args)?.find(commits, &name.name, now, &mut |doubt| warn_of_doubt(output, &doubt, now))?)
}

/// Warns that the latest snapshot may be another one than the user expects.
pub(crate) fn warn_of_doubt(output: &Output, doubt: &LatestDoubt, now: Timestamp) {
    let clock = || text::local_time(now);
    output.warn(&match doubt {
        LatestDoubt::Future(id, time) => format!(
            "warning: snapshot {} is dated {}, later than the clock of this host ({}): it does not count as the latest; name it by \
             its id, or forget it if its date is wrong",
            short_id(*id),
            text::local_time(*time),
            clock()
        ),
        LatestDoubt::AllFuture(id, time) => format!(
            "warning: the clock of this host ({}) is behind all snapshots: the latest is {}, dated {}; set the clock if it is wrong",
            clock(),
            short_id(*id),
            text::local_time(*time)
        ),
    });
}

#[cfg(all(test, feature = "cdp"))]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_that_lack_changes_have_the_tags_that_the_command_knows() {
        assert_eq!(LACKING_TAGS, [onefold_cdp::stored::EMPTY_TAG, onefold_cdp::stored::INCOMPLETE_TAG]);
    }
}
