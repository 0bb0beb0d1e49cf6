//! State that this host remembers of repositories: their identities at a path, and the newest snapshots of each copy.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use onefold_engine::check::{
    ComparedCommits, ComparedHeads, HeadsAccess, HeadsDir, LostHeads, known_locations, read_commits_compared,
};
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::io::os_identity;
use onefold_engine::store::Store;
use onefold_engine::store::commits::Commits;
use onefold_engine::store::create::ConfigCopy;
use onefold_engine::store::pin::{Pin, admit, read_pins, write_pin};
use onefold_engine::types::RepositoryId;

use crate::files;
use crate::json::short_id;
use crate::output::Output;
use crate::settings::{Change, Settings};

/// The pins of a repository's path.
pub(crate) struct Pinned<'a> {
    settings: &'a Settings,
    directory: &'a Path,
    /// The path without symbolic links.
    canonical: PathBuf,
    /// The latest first.
    seen: Vec<Pin>,
}

impl<'a> Pinned<'a> {
    /// Reads the repositories that this host has seen at the path.
    pub(crate) fn read(settings: &'a Settings, output: &Output, directory: &'a Path) -> Self {
        let canonical = os_identity::canonical(directory);
        let cache = settings.cache.remembered().map(|cache| OsDisk::new(cache.clone()));
        let read = cache.map_or(Ok(Vec::new()), |cache| read_pins(&cache, canonical.as_os_str().as_bytes()));
        let seen = read.unwrap_or_else(|error| {
            output.warn(&format!("cannot read which repository this host has seen at the path: {error}"));
            Vec::new()
        });
        Self { settings, directory, canonical, seen }
    }

    /// Keeps the copies of the config that are of a repository seen before. Refuses another repository, unless the user accepts
    /// it.
    pub(crate) fn admit(&self, copies: Vec<ConfigCopy>) -> Result<Vec<ConfigCopy>> {
        let seen = match self.settings.new_repository {
            Change::Refuse => &self.seen[..],
            Change::Accept => &[],
        };
        Ok(admit(&self.directory.display().to_string(), seen, copies)?)
    }

    /// Remembers the repository that was opened, or made.
    pub(crate) fn remember(&self, output: &Output, store: &Store) {
        let (Some(cache), pin) = (self.settings.cache.written(), Pin::of(&store.config)) else { return };
        match self.seen.first() {
            Some(last) if *last == pin => return,
            Some(last) => output.note(&format!("{}: {pin} is here now, {last} was before", self.directory.display())),
            None => {}
        }
        let path = self.canonical.as_os_str().as_bytes();
        let written = files::prepare_cache(cache)
            .map_err(anyhow::Error::from)
            .and_then(|()| Ok(write_pin(&OsDisk::new(cache.clone()), &OsHost::new(), path, &self.seen, &pin)?));
        if let Err(error) = written {
            output.note(&format!("cannot remember the repository at the path: {}: {error}", cache.display()));
        }
    }
}

/// Returns the directory in which this host remembers the newest snapshots of a repository; `None`: its location is
/// unknown. If the cache is unwanted or cannot be written, the state in it still counts.
pub(crate) fn heads(settings: &Settings, repository: RepositoryId) -> Option<HeadsDir> {
    let dir = PathBuf::from(repository.to_string());
    let make =
        |cache: &PathBuf| files::prepare_cache(cache).and_then(|()| files::create_directories(&cache.join(&dir)));
    let is_written = settings.cache.written().is_some_and(|cache| make(cache).is_ok());
    let access = if is_written { HeadsAccess::Update } else { HeadsAccess::ReadOnly };
    let disk = Arc::new(OsDisk::new(settings.cache.remembered()?.clone()));
    let canonical = os_identity::canonical(&settings.repository().ok()?);
    let location = os_identity::known_as(canonical, known_locations(&*disk, &dir, repository));
    let locations = Arc::new(OsDisk::new("/".into()));
    Some(HeadsDir { disk, dir, location, locations, lost: settings.lost_heads, access })
}

/// Reads all commits. Reports a newest snapshot that this host has seen and that is gone, and remembers the newest ones.
pub(crate) fn read_commits(settings: &Settings, output: &Output, store: &Store) -> Result<Commits> {
    let Some(heads) = heads(settings, store.config.repository) else { return Ok(store.read_commits()?) };
    let ComparedCommits { commits, heads: compared, problems } = read_commits_compared(store, &heads)?;
    report(output, &heads, &compared);
    for problem in problems {
        output.note(&format!("the newest snapshots could not be compared with those seen before: {problem}"));
    }
    Ok(commits)
}

/// Returns false if a newest snapshot that this host has seen is gone and the user has not accepted that, after a report.
pub(crate) fn accepts_all(settings: &Settings, output: &Output, store: &Store) -> Result<bool> {
    let Some(heads) = heads(settings, store.config.repository) else { return Ok(true) };
    let compared = read_commits_compared(store, &heads)?.heads;
    report(output, &heads, &compared);
    Ok(compared.lost.is_empty() || heads.lost == LostHeads::Accept)
}

/// Remembers the newest snapshots after a command has made some. What is gone was reported when it began.
pub(crate) fn remember(settings: &Settings, output: &Output, store: &Store) {
    let Some(heads) = heads(settings, store.config.repository) else { return };
    let problems = read_commits_compared(store, &heads).map_or_else(|error| vec![error], |compared| compared.problems);
    for problem in problems {
        output.note(&format!("the newest snapshots cannot be remembered: {problem}"));
    }
}

/// Reports snapshots that are gone, and another copy of the repository than before.
pub(crate) fn report(output: &Output, heads: &HeadsDir, compared: &ComparedHeads) {
    if let Some(other) = &compared.other {
        output.warn(&format!("warning: {other}"));
    }
    for head in &compared.lost {
        let id = short_id(head.session);
        match (heads.lost, heads.access) {
            (LostHeads::Report, _) => output.warn(&format!(
                "warning: snapshot {id}, one of the newest that this host has seen, is gone: somebody has removed it, or this \
                 is an older copy of the repository; --accept-rollback accepts that, once for each copy"
            )),
            (LostHeads::Accept, HeadsAccess::Update) => {
                output.note(&format!("snapshot {id} is gone, and the loss is accepted"));
            }
            (LostHeads::Accept, HeadsAccess::ReadOnly) => output.note(&format!(
                "snapshot {id} is gone, and the loss is accepted for this command only: nothing is written into the cache"
            )),
        }
    }
}
